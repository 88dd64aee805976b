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

/* How a message gets into the ring; the first two still have to be committed. */
enum ring_way { RING_RESERVE, RING_PUT, RING_WRITE };
#define RING_COPY_MAX 4096u

/* The next message from `data`. */
static inline int ring_send(struct test_ring *t, enum ring_way way, const void *data, uint32_t len)
{
	void *payload;
	int err;

	if (way == RING_WRITE) {
		err = kvr_ring_write(&t->w, t->put * 5, data, len);
	} else if (way == RING_PUT) {
		err = kvr_ring_put(&t->w, t->put * 5, data, len);
	} else {
		err = kvr_ring_reserve(&t->w, t->put * 5, len, &payload);
		if (!err && len)
			memcpy(payload, data, len);
	}
	if (!err)
		t->put++;
	return err;
}

/* The next message, every second one without a copy (and those that are too long for one). */
static inline int ring_put(struct test_ring *t, uint32_t len)
{
	uint8_t data[RING_COPY_MAX], *bytes = data;
	uint32_t i;
	void *payload;
	int err;

	if (t->put % 2 || len > sizeof(data)) {
		err = kvr_ring_reserve(&t->w, t->put * 5, len, &payload);
		if (err)
			return err;
		bytes = payload;
	}
	for (i = 0; i < len; i++)
		bytes[i] = ring_byte(t->put, i);
	if (bytes == data)
		return ring_send(t, RING_PUT, data, len);
	t->put++;
	return 0;
}

/*
 * The same with a payload full of commit words: each cell of it seems to start a message at that
 * cell's position plus `ahead`.
 */
static inline int ring_send_words(struct test_ring *t, enum ring_way way, uint32_t len,
				  uint64_t ahead)
{
	uint64_t words[2], cells = (16 + len + 63) / 64, pos = t->w.pos;
	uint8_t data[RING_COPY_MAX];
	uint32_t i;

	if (pos % t->w.capacity + cells > t->w.capacity) /* it will start the next lap */
		pos += t->w.capacity - pos % t->w.capacity;
	memset(data, 0xee, sizeof(data));
	for (i = 48; i + 8 <= len; i += 64) {
		words[0] = (++pos + ahead) << 32 | 1u << 31 | 8;
		words[1] = (uint64_t)(t->put + 1) << 32;
		memcpy(data + i, words, i + 16 <= len ? 16 : 8);
	}
	return ring_send(t, way, data, len);
}

static inline int ring_put_words(struct test_ring *t, uint32_t len, uint64_t ahead)
{
	return ring_send_words(t, t->put % 2 ? RING_RESERVE : RING_PUT, len, ahead);
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
