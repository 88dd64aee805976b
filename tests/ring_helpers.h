/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring with both of its ends, and messages whose every byte follows from their number. Nothing
 * here uses Check's assertions but the set-up, so that threads and child processes may use it.
 */
#ifndef TESTS_RING_HELPERS_H
#define TESTS_RING_HELPERS_H

#include <check.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kvring/ring.h"

struct test_ring {
	uint8_t *mem; /* exactly the ring's bytes: a sanitizer sees its ends */
	struct kvr_ring_cursor *cursor;
	struct kvr_ring_writer w;
	struct kvr_ring_reader r;
	uint64_t start;
	uint32_t put;	/* number of the next message to write */
	uint32_t taken; /* number of the next message to read */
};

#define RING_WRONG (-1000) /* a message came, but not the right one */

static inline void ring_open(struct test_ring *t, uint32_t bytes, uint64_t start)
{
	*t = (struct test_ring){ .start = start };
	t->mem = aligned_alloc(KVR_RING_CELL, kvr_ring_memsize(bytes));
	t->cursor = aligned_alloc(sizeof(*t->cursor), sizeof(*t->cursor));
	ck_assert(t->mem && t->cursor);
	memset(t->mem, 0xa5, kvr_ring_memsize(bytes));
	memset(t->cursor, 0, sizeof(*t->cursor));
	ck_assert_int_eq(kvr_ring_writer_init(&t->w, t->mem, bytes, t->cursor, start), 0);
	ck_assert_int_eq(kvr_ring_reader_init(&t->r, t->mem, bytes, t->cursor, start), 0);
}

static inline void ring_close(struct test_ring *t)
{
	free(t->mem);
	free(t->cursor);
}

/* A small generator of its own: the same numbers everywhere. */
static inline uint32_t test_random(uint64_t *x)
{
	*x = *x * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*x >> 33);
}

static inline uint8_t ring_byte(uint32_t seq, uint32_t i)
{
	return (uint8_t)(seq * 31 + i * 7 + (i >> 8));
}

/* Reserves the next message and fills it. */
static inline int ring_put(struct test_ring *t, uint32_t len)
{
	void *payload;
	int err = kvr_ring_reserve(&t->w, t->put * 5, len, &payload);
	uint32_t i;

	if (err)
		return err;
	for (i = 0; i < len; i++)
		((uint8_t *)payload)[i] = ring_byte(t->put, i);
	t->put++;
	return 0;
}

/*
 * The same with a payload full of commit words: each cell of it seems to start a message at that
 * cell's position plus `ahead`.
 */
static inline int ring_put_words(struct test_ring *t, uint32_t len, uint64_t ahead)
{
	uint64_t words[2], pos;
	uint32_t i;
	void *payload;
	int err = kvr_ring_reserve(&t->w, t->put * 5, len, &payload);

	if (err)
		return err;
	pos = t->w.pos - (16 + len + 63) / 64;
	memset(payload, 0xee, len);
	for (i = 48; i + 16 <= len; i += 64) {
		words[0] = (++pos + ahead) << 32 | 1u << 31 | 8;
		words[1] = (uint64_t)(t->put + 1) << 32;
		memcpy((uint8_t *)payload + i, words, sizeof(words));
	}
	t->put++;
	return 0;
}

/* Peeks the next message without a look at its bytes. 1, 0 when there is none, or an error. */
static inline int ring_take_any(struct test_ring *t, uint32_t len)
{
	struct kvr_ring_msg m;
	int rc = kvr_ring_peek(&t->r, &m);

	if (rc != 1)
		return rc;
	if (m.len != len || m.seq != t->taken || m.tag != t->taken * 5)
		return RING_WRONG;
	t->taken++;
	return 1;
}

/* The same, of any length, and every byte is checked. */
static inline int ring_take_whole(struct test_ring *t, uint32_t *ret_len)
{
	struct kvr_ring_msg m;
	int rc = kvr_ring_peek(&t->r, &m);
	uint32_t i;

	if (rc != 1)
		return rc;
	if (m.seq != t->taken || m.tag != t->taken * 5)
		return RING_WRONG;
	for (i = 0; i < m.len; i++)
		if (((const uint8_t *)m.data)[i] != ring_byte(m.seq, i))
			return RING_WRONG;
	t->taken++;
	*ret_len = m.len;
	return 1;
}

/* The same, of a known length. */
static inline int ring_take(struct test_ring *t, uint32_t len)
{
	uint32_t got = len;
	int rc = ring_take_whole(t, &got);

	return rc == 1 && got != len ? RING_WRONG : rc;
}

#endif
