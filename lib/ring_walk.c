/* SPDX-License-Identifier: Apache-2.0 */
/* The messages in a copy of a ring, for inspectors. */
#include <string.h>

#include "ring_word.h"

/* One message of a copy, which nobody changes and which may lie at any address. */
static int walk_read(const uint8_t *cells, uint64_t capacity, uint64_t pos, struct parsed *ret,
		     struct kvr_ring_msg *ret_msg)
{
	const uint8_t *cell = cells + offset_of(capacity, pos) * KVR_RING_CELL;
	uint64_t words[2];

	memcpy(words, cell, sizeof(words));
	if (word_parse(words[0], pos, capacity, ret))
		return 0;
	*ret_msg = (struct kvr_ring_msg){ .data = cell + KVR_RING_HEADER,
					  .len = ret->len,
					  .tag = (uint32_t)words[1],
					  .seq = (uint32_t)(words[1] >> 32) };
	return 1;
}

/*
 * How many cells before `published` the run of messages starts that ends there, 0: none. Goes from
 * the oldest cell forward and starts anew wherever the chain breaks, so each cell is looked at
 * once.
 */
static uint64_t walk_start(const uint8_t *cells, uint64_t capacity, uint64_t published)
{
	uint64_t left = capacity, run = 0;
	struct kvr_ring_msg msg;
	struct parsed m;
	uint32_t seq = 0;

	while (left) {
		if (!walk_read(cells, capacity, published - left, &m, &msg) || m.cells > left) {
			run = 0;
			left--;
			continue;
		}
		if (!m.padding) {
			if (!run || msg.seq != seq)
				run = left;
			seq = msg.seq + 1;
		}
		left -= m.cells;
	}
	return run;
}

int kvr_ring_walk(const void *cells, uint32_t bytes, uint64_t published,
		  void (*fn)(void *arg, const struct kvr_ring_msg *msg, uint64_t pos), void *arg)
{
	uint64_t capacity = bytes / KVR_RING_CELL, left;
	struct kvr_ring_msg msg;
	struct parsed m;
	int n = 0;

	if (!bytes_ok(bytes))
		return 0;
	left = walk_start(cells, capacity, published);
	while (left && walk_read(cells, capacity, published - left, &m, &msg) && m.cells <= left) {
		if (!m.padding) {
			n++;
			if (fn)
				fn(arg, &msg, published - left);
		}
		left -= m.cells;
	}
	return n;
}
