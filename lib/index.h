/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index: (namespace, key) -> block number. Open addressing with linear probing and deletion by
 * shifting back, so there are no tombstones and a lookup ends at the first empty place. The keys
 * themselves stay in the caller's array; a place holds 32 bits of the hash and the number.
 */
#ifndef KVR_INDEX_H
#define KVR_INDEX_H

#include "kvring/types.h"

#define KVR_INDEX_NONE UINT32_MAX

struct kvr_index_key {
	struct kvr_key key;
	uint64_t space;
};

struct kvr_index_place {
	uint32_t hash;
	uint32_t id; /* KVR_INDEX_NONE: empty */
};

struct kvr_index {
	struct kvr_index_place *places;
	const struct kvr_index_key *keys; /* by id; the caller's */
	uint64_t mask;
	uint64_t count;
};

/* For at most `capacity` ids; places are never more than half full. 0 or -ENOMEM. */
int kvr_index_init(struct kvr_index *ix, const struct kvr_index_key *keys, uint64_t capacity);
void kvr_index_exit(struct kvr_index *ix);
uint32_t kvr_index_find(const struct kvr_index *ix, uint64_t space, const struct kvr_key *key);
/* keys[id] must be set, and not be in the index yet. */
void kvr_index_insert(struct kvr_index *ix, uint32_t id);
/* 1: was there. */
int kvr_index_remove(struct kvr_index *ix, uint32_t id);

#endif
