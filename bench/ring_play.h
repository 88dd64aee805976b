/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops of both sides, for each implementation and size: templates by macro, so that sizes and
 * calls are constants in them, as in a program that uses one of them. Included by C++, too.
 *
 * An implementation IMPL gives IMPL_send(side, i, want, size) and IMPL_receive(...): up to `want`
 * messages from number i on; they return how many it was, 0 when the ring is full or empty. Whoever
 * receives has checked number, tag, length, and each byte of the payload.
 */
#ifndef RING_PLAY_H
#define RING_PLAY_H

#include <string.h>

#include "ring_bench.h"

#define INLINE static inline __attribute__((always_inline))

/* A message as the peers carry it. kvring has fields of the same meaning in its own header. */
struct ring_head {
	uint64_t seq;
	uint32_t tag, len;
};

#define RING_MESSAGE(bytes)                    \
	struct message_##bytes {               \
		struct ring_head head;         \
		uint64_t payload[(bytes) / 8]; \
	} __attribute__((aligned(64)));
RING_SIZES(RING_MESSAGE)

/* Bytes of a message with its header, in whole lines. */
#define STRIDE(size) ((sizeof(struct ring_head) + (size) + 63) / 64 * 64)
/*
 * Messages in a table of things to send. Long enough that what changes in an entry is long in the
 * cache when it is sent again: a copy right behind a store waits for it.
 */
#define ENTRIES(size) ((size) <= 256 ? 64u : 32u)
/*
 * Where in its page a ring's first slot lies. The tables begin at a page, and most sizes go through
 * table and ring in step: half a page apart, no load meets the low 12 bits of a recent store's
 * address, for which the core would wait.
 */
#define APART 2048u
/* A peer's ring: at least the bytes, and so at least the messages, of kvring's; a power of two. */
#define SLOTS(size)               \
	((size) <= 48	  ? 1024u \
	 : (size) <= 64	  ? 512u  \
	 : (size) <= 256  ? 256u  \
	 : (size) <= 1024 ? 64u   \
			  : 16u)

INLINE uint32_t entry_of(uint64_t i, size_t size)
{
	return (uint32_t)i & (ENTRIES(size) - 1);
}

INLINE struct ring_head *source_of(const struct ring_side *side, uint64_t i, size_t size)
{
	return (struct ring_head *)(void *)(side->source + entry_of(i, size) * STRIDE(size));
}

typedef uint64_t ring_pair __attribute__((vector_size(16), aligned(8), may_alias));
typedef uint64_t ring_word __attribute__((may_alias));

/* Each byte of a payload counts, at about the speed of reading it. */
INLINE uint64_t fold(const void *data, size_t size)
{
	const ring_pair *p = (const ring_pair *)data;
	ring_pair a = { 0, 0 }, b = a, c = a, d = a;
	size_t i, n = size / 16, by_four = n / 4 * 4;

	if (size == 8)
		return *(const ring_word *)data;
	for (i = 0; i < by_four; i += 4) {
		a ^= p[i];
		b ^= p[i + 1];
		c ^= p[i + 2];
		d ^= p[i + 3];
	}
	for (i = by_four; i < n; i++)
		a ^= p[i];
	a ^= b ^ c ^ d;
	return a[0] ^ a[1];
}

INLINE int message_good(const struct ring_side *side, const struct ring_head *h, uint64_t i,
			size_t size)
{
	return h->seq == i && h->tag == entry_of(i, size) && h->len == size &&
	       fold(h + 1, size) == side->folds[entry_of(i, size)];
}

INLINE void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* The cheapest clock of a core, once all before it is done. */
INLINE uint64_t ticks(void)
{
#if defined(__x86_64__)
	unsigned int core;

	return __builtin_ia32_rdtscp(&core);
#else
	return ring_now();
#endif
}

INLINE void sample(struct ring_side *side, uint64_t i, uint64_t value)
{
	side->s->samples[i - 1] = value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
}

/* A sample reaches from one answer to the next: nothing lies between two of them. */
#define RING_PLAY_RTT(impl, size)                                             \
	static void impl##_rtt_##size(struct ring_side *side, uint64_t count) \
	{                                                                     \
		uint64_t i, last = ticks(), now;                              \
		for (i = 1; i <= count; i++) {                                \
			if (!side->id)                                        \
				while (!impl##_send(side, i, 1, size))        \
					relax();                              \
			while (!impl##_receive(side, i, 1, size))             \
				relax();                                      \
			if (side->id) {                                       \
				while (!impl##_send(side, i, 1, size))        \
					relax();                              \
				continue;                                     \
			}                                                     \
			now = ticks();                                        \
			sample(side, i, now - last);                          \
			last = now;                                           \
		}                                                             \
	}

#define RING_STREAM_PART(call, size, batch, from, to)                         \
	do {                                                                  \
		uint64_t at, done, want;                                      \
		for (at = (from); at <= (to); at += done) {                   \
			want = (batch) < (to)-at + 1 ? (batch) : (to)-at + 1; \
			(void)want; /* some have no use for it */             \
			while (!(done = call(side, at, want, size)))          \
				relax();                                      \
		}                                                             \
	} while (0)

/* The reader's clock runs over the last seven eighths: the ring is as full as it gets by then. */
#define RING_PLAY_STREAM(impl, kind, size, batch)                                  \
	static void impl##_##kind##_##size(struct ring_side *side, uint64_t count) \
	{                                                                          \
		uint64_t warm = count / 8;                                         \
		if (!side->id) {                                                   \
			RING_STREAM_PART(impl##_send, size, batch, 1, count);      \
			return;                                                    \
		}                                                                  \
		RING_STREAM_PART(impl##_receive, size, batch, 1, warm);            \
		side->s->first = ticks();                                          \
		RING_STREAM_PART(impl##_receive, size, batch, warm + 1, count);    \
		side->s->last = ticks();                                           \
		side->s->streamed = count - warm;                                  \
	}

#endif
