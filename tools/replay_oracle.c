/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hits of a cache that begins empty, loses nothing and evicts nothing: a block is a hit if its
 * key came before. A key stands for all before it, so the known ones are a prefix.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "replay.h"

/* 64 of the 256 bits are enough to tell millions of keys apart. */
static uint64_t word_of(const struct kvr_key *key)
{
	uint64_t word;

	memcpy(&word, key->bytes, sizeof(word));
	return word ? word : 1;
}

/* The place of a word, or the free one where it belongs. */
static uint64_t *place(const struct replay_oracle *o, uint64_t word)
{
	size_t i = word & (o->size - 1);

	while (o->seen[i] && o->seen[i] != word)
		i = (i + 1) & (o->size - 1);
	return &o->seen[i];
}

static int grow(struct replay_oracle *o, uint32_t more)
{
	struct replay_oracle new = { .n = o->n, .size = o->size ? o->size : 4096 };
	size_t i;

	while (new.size / 2 < o->n + more)
		new.size *= 2;
	if (new.size == o->size)
		return 0;
	new.seen = calloc(new.size, sizeof(*new.seen));
	if (!new.seen)
		return -ENOMEM;
	for (i = 0; i < o->size; i++)
		if (o->seen[i])
			*place(&new, o->seen[i]) = o->seen[i];
	free(o->seen);
	*o = new;
	return 0;
}

int replay_oracle_request(struct replay_oracle *o, const struct kvr_key *keys, uint32_t n)
{
	uint32_t i, known = 0;
	uint64_t word, *at;

	if (grow(o, n))
		return -ENOMEM;
	for (i = 0; i < n; i++) {
		word = word_of(&keys[i]);
		at = place(o, word);
		known += *at != 0;
		o->n += !*at;
		*at = word;
	}
	return (int)known;
}

void replay_oracle_reset(struct replay_oracle *o)
{
	free(o->seen);
	*o = (struct replay_oracle){ 0 };
}
