/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host pool: one mapping per group, shared by leader and ranks by name. Made anew by each
 * epoch; the old one's file is unlinked and its memory lives on for whoever still maps it or does
 * I/O to it, so that a late DMA of a dead leader never lands in the new pool.
 *
 *   region   offset           bytes
 *   header   0                4096
 *   slots    4096             slots x slot_bytes, each a slot image (format.h): its header page
 *                             is the slot's metadata, self-checksummed: key, namespace, generation
 *
 * The leader writes the header and the sealed part of header pages; a rank writes the bytes and the
 * segment checksums of its own shards, between store_begin and store_copied.
 */
#ifndef KVR_POOL_H
#define KVR_POOL_H

#include "format.h"

#define KVR_POOL_MAGIC 0x314c4f4f5052564bull /* "KVRPOOL1" */
#define KVR_POOL_VERSION 1u
#define KVR_POOL_DATA 4096u

/* checksum: XXH3-64 of the page with checksum and cache_generation as 0, seed 0: the leader raises
 * the generation (a store's at start, a reset's later) while ranks may read the page. */
struct kvr_pool_header {
	uint64_t magic;		   /*   0 */
	uint32_t version;	   /*   8 */
	uint32_t header_bytes;	   /*  12  of a slot */
	uint64_t checksum;	   /*  16 */
	uint8_t uuid[16];	   /*  24  of the group */
	uint64_t epoch;		   /*  40 */
	uint64_t slots;		   /*  48 */
	uint64_t slot_bytes;	   /*  56 */
	uint64_t block_bytes;	   /*  64 */
	uint64_t cache_generation; /* 72  that the blocks belong to; 0 without a store */
	struct kvr_model model;	   /*  80  144 bytes */
	uint64_t shape_hash;	   /* 224  XXH3-64 of layer groups, layer bytes and the shard map */
	uint8_t reserved[3864];	   /* 232 */
};
_Static_assert(sizeof(struct kvr_pool_header) == 4096, "pool header");
_Static_assert(offsetof(struct kvr_pool_header, uuid) == 24, "pool header");
_Static_assert(offsetof(struct kvr_pool_header, slots) == 48, "pool header");
_Static_assert(offsetof(struct kvr_pool_header, model) == 80, "pool header");
_Static_assert(offsetof(struct kvr_pool_header, shape_hash) == 224, "pool header");

struct kvr_pool {
	uint8_t *mem;
	uint64_t bytes;
	uint64_t slots;
	uint64_t slot_bytes;
	int fd;
	int owner; /* the leader: close unlinks */
	char path[384];
};

struct kvr_pool_opts {
	const char *dir;
	const char *name;
	const uint8_t *uuid;
	uint64_t epoch;
	uint64_t host_bytes;
	int32_t node;
	const struct kvr_model *model; /* may be NULL */
	const struct kvr_shape *shape;
	const struct kvr_geometry *geo;
};

/* Slots that host_bytes hold; 0: not even one. */
uint64_t kvr_pool_slots(uint64_t host_bytes, const struct kvr_geometry *geo);
/* Leader. The pool has no name yet. -ENOSPC with bytes needed and free; -EINVAL. */
int kvr_pool_create(const struct kvr_pool_opts *opts, struct kvr_pool *ret_pool);
/* Leader: ranks can attach from now on. Last of all, so that no rank joins a leader whose opening
 * may still fail. -EEXIST with advice. */
int kvr_pool_publish(struct kvr_pool *pool);
/* Rank: waits until the pool of this group and epoch is there (the segment is visible a little
 * earlier). -ETIMEDOUT, -EINTR, -EPROTO, -EBADMSG. */
int kvr_pool_attach(const struct kvr_pool_opts *opts, uint64_t slots, uint64_t deadline_ns,
		    struct kvr_pool *ret_pool);
void kvr_pool_close(struct kvr_pool *pool);
/* Removes the name but keeps the mapping, for ever: I/O that never ended may still write to it. */
void kvr_pool_unlink(struct kvr_pool *pool);
/* Leader: the blocks in the pool belong to this generation. */
void kvr_pool_set_generation(struct kvr_pool *pool, uint64_t generation);

static inline uint8_t *kvr_pool_image(const struct kvr_pool *pool, uint32_t slot)
{
	return pool->mem + KVR_POOL_DATA + (uint64_t)slot * pool->slot_bytes;
}

#endif
