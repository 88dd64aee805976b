/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys, and the bytes that belong to them. A block's bytes follow from its key and the offset
 * alone, so any process can tell at any time whether a byte is the right one, and a block in
 * another's place, a shifted one, or one that mixes two, differs nearly everywhere.
 */
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "replay.h"

void replay_keys(uint64_t seed, const uint64_t *ids, uint32_t n, struct kvr_key *ret_keys)
{
	struct {
		struct kvr_key before;
		uint64_t id;
	} link;
	XXH128_canonical_t half;
	uint32_t i;

	memset(&link, 0, sizeof(link));
	for (i = 0; i < n; i++) {
		link.id = ids[i];
		XXH128_canonicalFromHash(&half, XXH3_128bits_withSeed(&link, sizeof(link), seed));
		memcpy(ret_keys[i].bytes, half.digest, 16);
		XXH128_canonicalFromHash(&half, XXH3_128bits_withSeed(&link, sizeof(link), ~seed));
		memcpy(ret_keys[i].bytes + 16, half.digest, 16);
		link.before = ret_keys[i];
	}
}

static uint64_t seed_of(const struct kvr_key *key)
{
	uint64_t part[4];

	memcpy(part, key->bytes, sizeof(part));
	return part[0] ^ part[1] ^ part[2] ^ part[3];
}

/* Word i of a block: two multiplications, no dependence on word i - 1. */
static inline uint64_t word_at(uint64_t seed, uint64_t i)
{
	uint64_t x = seed + i * 0x9e3779b97f4a7c15u;

	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93u;
	return x ^ x >> 32;
}

/* Bytes of word offset / 8 from offset on, at most `bytes`. */
static uint64_t part_at(uint64_t seed, uint64_t offset, uint64_t bytes, uint8_t *ret_part)
{
	uint64_t word = word_at(seed, offset / 8), in = offset % 8, n = 8 - in;

	if (n > bytes)
		n = bytes;
	memcpy(ret_part, (const uint8_t *)&word + in, n);
	return n;
}

void replay_fill(const struct kvr_key *key, uint64_t offset, uint64_t bytes, uint8_t *to)
{
	uint64_t seed = seed_of(key), word, words, i, n;

	if (offset % 8) {
		n = part_at(seed, offset, bytes, to);
		offset += n, to += n, bytes -= n;
	}
	words = bytes / 8;
	for (i = 0; i < words; i++) {
		word = word_at(seed, offset / 8 + i);
		memcpy(to + 8 * i, &word, 8);
	}
	if (bytes % 8)
		part_at(seed, offset + 8 * words, bytes % 8, to + 8 * words);
}

/* As replay_compare(), for less than one word or for one that is known to differ. */
static uint64_t compare_part(uint64_t seed, uint64_t offset, uint64_t bytes, const uint8_t *from,
			     uint64_t before, uint64_t *ret_first)
{
	uint64_t n, i, wrong = 0;
	uint8_t part[8];

	n = part_at(seed, offset, bytes, part);
	for (i = 0; i < n; i++) {
		if (from[i] == part[i])
			continue;
		if (!before && !wrong)
			*ret_first = offset + i;
		wrong++;
	}
	return wrong;
}

uint64_t replay_compare(const struct kvr_key *key, uint64_t offset, uint64_t bytes,
			const uint8_t *from, uint64_t *ret_first)
{
	uint64_t seed = seed_of(key), wrong = 0, word, words, i, n;

	if (offset % 8) {
		n = 8 - offset % 8 < bytes ? 8 - offset % 8 : bytes;
		wrong += compare_part(seed, offset, n, from, wrong, ret_first);
		offset += n, from += n, bytes -= n;
	}
	words = bytes / 8;
	for (i = 0; i < words; i++) {
		memcpy(&word, from + 8 * i, 8);
		if (word != word_at(seed, offset / 8 + i))
			wrong += compare_part(seed, offset + 8 * i, 8, from + 8 * i, wrong,
					      ret_first);
	}
	if (bytes % 8)
		wrong += compare_part(seed, offset + 8 * words, bytes % 8, from + 8 * words, wrong,
				      ret_first);
	return wrong;
}
