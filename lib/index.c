/* SPDX-License-Identifier: Apache-2.0 */
/* Open addressing; see index.h. */
#include "index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "err.h"
#include "hash.h"

/* Hashed again although keys are hashes: callers may use few bits of them, or short ids. */
static uint64_t hash_of(uint64_t space, const struct kvr_key *key)
{
	return kvr_hash(key, sizeof *key, space);
}

int kvr_index_init(struct kvr_index *ix, const struct kvr_index_key *keys, uint64_t capacity)
{
	uint64_t places = 16;

	while (places < capacity * 2)
		places *= 2;
	ix->places = malloc(places * sizeof *ix->places);
	if (!ix->places)
		return KVR_FAIL(-ENOMEM, "index: no memory for %llu places",
				(unsigned long long)places);
	memset(ix->places, 0xff, places * sizeof *ix->places);
	ix->keys = keys;
	ix->mask = places - 1;
	ix->count = 0;
	return 0;
}

void kvr_index_exit(struct kvr_index *ix)
{
	free(ix->places);
	ix->places = NULL;
}

uint32_t kvr_index_find(const struct kvr_index *ix, uint64_t space, const struct kvr_key *key)
{
	uint64_t hash = hash_of(space, key);

	for (uint64_t i = hash & ix->mask;; i = (i + 1) & ix->mask) {
		const struct kvr_index_place *p = &ix->places[i];

		if (p->id == KVR_INDEX_NONE)
			return KVR_INDEX_NONE;
		if (p->hash == (uint32_t)(hash >> 32) && ix->keys[p->id].space == space &&
		    !memcmp(&ix->keys[p->id].key, key, sizeof *key))
			return p->id;
	}
}

void kvr_index_insert(struct kvr_index *ix, uint32_t id)
{
	uint64_t hash = hash_of(ix->keys[id].space, &ix->keys[id].key);
	uint64_t i = hash & ix->mask;

	while (ix->places[i].id != KVR_INDEX_NONE)
		i = (i + 1) & ix->mask;
	ix->places[i] = (struct kvr_index_place){ (uint32_t)(hash >> 32), id };
	ix->count++;
}

int kvr_index_remove(struct kvr_index *ix, uint32_t id)
{
	uint64_t i = hash_of(ix->keys[id].space, &ix->keys[id].key) & ix->mask;

	while (ix->places[i].id != id) {
		if (ix->places[i].id == KVR_INDEX_NONE)
			return 0;
		i = (i + 1) & ix->mask;
	}
	/* Fill the hole with a later entry of the run whose home is not after the hole. */
	for (uint64_t j = (i + 1) & ix->mask; ix->places[j].id != KVR_INDEX_NONE;
	     j = (j + 1) & ix->mask) {
		const struct kvr_index_key *k = &ix->keys[ix->places[j].id];
		uint64_t home = hash_of(k->space, &k->key) & ix->mask;

		if (((j - home) & ix->mask) >= ((j - i) & ix->mask)) {
			ix->places[i] = ix->places[j];
			i = j;
		}
	}
	ix->places[i].id = KVR_INDEX_NONE;
	ix->count--;
	return 1;
}
