/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two players of bench_ring.c, for each thing it measures. They are templates by macro, so that
 * sizes and calls are constants in the loops, as in a program that uses one of them.
 */
#ifndef BENCH_RING_PLAY_H
#define BENCH_RING_PLAY_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kvring/err.h"
#include "kvring/ring.h"

#if defined(__has_include)
#if __has_include(<ck_ring.h>)
#include <ck_ring.h>
#define HAVE_CK 1
#endif
#endif
#ifndef HAVE_CK
#define HAVE_CK 0
#endif

#define BYTES 65536u /* of each ring: 1024 cells */
#define BATCH 16u
#define SAMPLES_MAX 20000u
#define INLINE static inline __attribute__((always_inline))

struct line {
	uint64_t value, pad[15];
};

/* One message as ck_ring carries it: the same header fields, in one line with 48 bytes. */
struct message {
	uint64_t number;
	uint32_t tag, len;
	uint64_t payload[6];
} __attribute__((aligned(64)));

struct shared {
	struct line bounce[2], arrived[2];
	struct kvr_ring_cursor cursor[2];
	uint8_t ring[2][KVR_RING_CTL + BYTES] __attribute__((aligned(128)));
#if HAVE_CK
	ck_ring_t ck[2];
	struct message slots[2][BYTES / 64];
#endif
	uint64_t measure, count; /* what to do next; the parent's */
} __attribute__((aligned(128)));

/* A process. `out` goes to the peer, `in` comes from it. */
struct side {
	struct shared *s;
	struct kvr_ring_writer out;
	struct kvr_ring_reader in;
	uint64_t last;
	unsigned int id;
};

static uint64_t samples[SAMPLES_MAX];

static void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The cheapest clock; what a tick is worth follows from a whole measure. */
INLINE uint64_t ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#else
	return now_ns();
#endif
}

static void broken(const char *what)
{
	fprintf(stderr, "bench-ring: %s (%s)\n", what, kvr_explain());
	_exit(1);
}

INLINE int floor_send(struct side *side, uint64_t number, uint32_t size, uint32_t batch)
{
	(void)size;
	(void)batch;
	__atomic_store_n(&side->s->bounce[side->id].value, number, __ATOMIC_RELEASE);
	return 1;
}

INLINE uint64_t floor_receive(struct side *side, uint32_t size, uint32_t batch)
{
	uint64_t number = __atomic_load_n(&side->s->bounce[!side->id].value, __ATOMIC_ACQUIRE);

	(void)size;
	(void)batch;
	if (number == side->last)
		return 0;
	return side->last = number;
}

/* batch 0 and 1: each message alone. */
INLINE int kvr_send(struct side *side, uint64_t number, uint32_t size, uint32_t batch)
{
	uint64_t payload[8] = { number, 2, 3, number, 5, number, 7, number };
	void *to;
	int err = kvr_ring_reserve(&side->out, 1, size, &to);

	if (err) {
		if (err != -EAGAIN)
			broken("reserve");
		kvr_ring_commit(&side->out);
		return 0;
	}
	memcpy(to, payload, size);
	if (batch < 2 || number % batch == 0)
		kvr_ring_commit(&side->out);
	return 1;
}

INLINE uint64_t kvr_receive(struct side *side, uint32_t size, uint32_t batch)
{
	uint64_t payload[8];
	struct kvr_ring_msg msg;
	int rc = kvr_ring_peek(&side->in, &msg);

	if (rc <= 0) {
		if (rc < 0)
			broken("peek");
		if (batch >= 2)
			kvr_ring_release(&side->in);
		return 0;
	}
	memcpy(payload, msg.data, size);
	if (payload[0] != payload[size / 8 - 1])
		broken("wrong payload");
	if (batch < 2 || payload[0] % batch == 0)
		kvr_ring_release(&side->in);
	return payload[0];
}

#if HAVE_CK
CK_RING_PROTOTYPE(message, message)

INLINE int ck_send(struct side *side, uint64_t number, uint32_t size, uint32_t batch)
{
	struct message m = { number, 1, size, { number, 2, 3, number, 5, number } };

	(void)batch;
	return ck_ring_enqueue_spsc_message(&side->s->ck[side->id], side->s->slots[side->id], &m);
}

INLINE uint64_t ck_receive(struct side *side, uint32_t size, uint32_t batch)
{
	unsigned int in = !side->id;
	struct message m;

	(void)batch;
	if (!ck_ring_dequeue_spsc_message(&side->s->ck[in], side->s->slots[in], &m))
		return 0;
	if (m.payload[0] != m.payload[size / 8 - 1])
		broken("wrong payload");
	return m.number;
}
#endif

/* One measure, on either side: round trips when batch is 0, else a stream from 0 to 1. */
#define PLAY(name, impl, size, batch)                                              \
	static void name(struct side *side, uint64_t count)                        \
	{                                                                          \
		uint64_t i, got, start;                                            \
		for (i = 1; i <= count; i++) {                                     \
			start = (batch) ? 0 : ticks();                             \
			if (!side->id)                                             \
				while (!impl##_send(side, i, size, batch))         \
					relax();                                   \
			if (side->id || !(batch)) {                                \
				while (!(got = impl##_receive(side, size, batch))) \
					relax();                                   \
				if (got != i)                                      \
					broken("wrong number");                    \
			}                                                          \
			if (side->id && !(batch))                                  \
				while (!impl##_send(side, i, size, batch))         \
					relax();                                   \
			if (!side->id && !(batch))                                 \
				samples[i - 1] = ticks() - start;                  \
		}                                                                  \
		kvr_ring_commit(&side->out); /* the rest of a batch */             \
	}

PLAY(play_floor, floor, 8, 0)
PLAY(play_kvr, kvr, 32, 0)
PLAY(play_kvr_48, kvr, 48, 1)
PLAY(play_kvr_48_batch, kvr, 48, BATCH)
PLAY(play_kvr_64, kvr, 64, 1)
PLAY(play_kvr_64_batch, kvr, 64, BATCH)
#if HAVE_CK
PLAY(play_ck, ck, 32, 0)
PLAY(play_ck_48, ck, 48, 1)
#endif

#endif
