/* SPDX-License-Identifier: Apache-2.0 */
/* The commit word of a message, made and taken apart: for the ring and for those who walk a copy.
 */
#ifndef KVR_RING_WORD_H
#define KVR_RING_WORD_H

#include "kvring/ring.h"
#include "util.h"

#define WORD_VALID (1u << 31)
#define WORD_PADDING (1u << 30)
#define WORD_LEN 0x00ffffffu
#define WORD_RESERVED (~(WORD_VALID | WORD_PADDING | WORD_LEN))

_Static_assert(KVR_RING_MAX / 8 <= WORD_LEN, "a length fits its field");

/* What a commit word says, bounded: `len` bytes of payload in `cells` cells. */
struct parsed {
	uint64_t cells;
	uint32_t len;
	int padding;
};

static inline int bytes_ok(uint32_t bytes)
{
	return kvr_is_pow2(bytes) && bytes >= KVR_RING_MIN && bytes <= KVR_RING_MAX;
}

static inline uint64_t cells_of(uint64_t len)
{
	return (KVR_RING_HEADER + len + KVR_RING_CELL - 1) / KVR_RING_CELL;
}

/* An eighth of the cells, less the header. */
static inline uint64_t max_len(uint64_t capacity)
{
	return capacity * (KVR_RING_CELL / 8) - KVR_RING_HEADER;
}

static inline uint64_t offset_of(uint64_t capacity, uint64_t pos)
{
	return pos & (capacity - 1);
}

static inline uint64_t word_make(uint64_t pos, uint32_t flags, uint64_t len)
{
	return pos << 32 | WORD_VALID | flags | len;
}

/* A message starts at pos: anything else is what an earlier lap left, or 0. */
static inline int word_matches(uint64_t word, uint64_t pos)
{
	return (word ^ word_make(pos, 0, 0)) >> 31 == 0;
}

/*
 * Takes a commit word apart that claims to be at `pos`. 0, or why it cannot be. Padding is only
 * made where a message of legal size did not fit, so it is shorter than the longest message.
 */
static inline const char *word_parse(uint64_t word, uint64_t pos, uint64_t capacity,
				     struct parsed *ret)
{
	uint64_t to_end = capacity - offset_of(capacity, pos);
	uint32_t low = (uint32_t)word;

	if (!word_matches(word, pos))
		return "it is of another position";
	if (low & WORD_RESERVED)
		return "its flags are none that a writer sets";
	ret->len = low & WORD_LEN;
	ret->cells = cells_of(ret->len);
	ret->padding = (low & WORD_PADDING) != 0;
	if (ret->len > max_len(capacity))
		return "its length is over the ring's maximum";
	if (ret->cells > to_end)
		return "it goes past the end of the ring";
	if (ret->padding &&
	    (ret->len != to_end * KVR_RING_CELL - KVR_RING_HEADER || ret->cells >= capacity / 8))
		return "it is padding, but does not fill up the ring's end";
	return NULL;
}

#endif
