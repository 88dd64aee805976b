/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ck_ring of Concurrency Kit, with values of the message's type in the ring. Written in place
 * (reserve, commit); for reading, it has a copy only. It publishes each message alone.
 */
#include "ring_play.h"

#if defined(__has_include)
#if __has_include(<ck_ring.h>)
#include <ck_ring.h>
#define HAVE_CK
#endif
#endif

#ifdef HAVE_CK
#define CHANNEL(n)                                        \
	CK_RING_PROTOTYPE(n, message_##n)                 \
	struct channel_##n {                              \
		ck_ring_t ring;                           \
		uint8_t apart[APART - sizeof(ck_ring_t)]; \
		struct message_##n slots[SLOTS(n)];       \
	} __attribute__((aligned(4096)));                 \
	static struct channel_##n *channel_##n;
RING_SIZES(CHANNEL)

#define OPEN(n)                                              \
	channel_##n = ring_memory(2 * sizeof(*channel_##n)); \
	ck_ring_init(&channel_##n[0].ring, SLOTS(n));        \
	ck_ring_init(&channel_##n[1].ring, SLOTS(n));

static const char *setup(void)
{
	RING_SIZES(OPEN)
	return NULL;
}

#define CALLS(n)                                                                              \
	INLINE uint64_t ck_send_##n(struct ring_side *side, uint64_t i)                       \
	{                                                                                     \
		struct channel_##n *c = &channel_##n[side->id];                               \
		struct message_##n *m = ck_ring_enqueue_reserve_spsc_##n(&c->ring, c->slots); \
		if (!m)                                                                       \
			return 0;                                                             \
		m->head.seq = i;                                                              \
		m->head.tag = entry_of(i, n);                                                 \
		m->head.len = n;                                                              \
		memcpy(m->payload, source_of(side, i, n) + 1, n);                             \
		ck_ring_enqueue_commit_spsc(&c->ring);                                        \
		return 1;                                                                     \
	}                                                                                     \
	INLINE uint64_t ck_receive_##n(struct ring_side *side, uint64_t i)                    \
	{                                                                                     \
		struct channel_##n *c = &channel_##n[!side->id];                              \
		struct message_##n m;                                                         \
		if (!ck_ring_dequeue_spsc_##n(&c->ring, c->slots, &m))                        \
			return 0;                                                             \
		if (!message_good(side, &m.head, i, n))                                       \
			ring_broken("ck_ring", "not the message that was sent");              \
		return 1;                                                                     \
	}
RING_SIZES(CALLS)
#define ck_send(side, i, want, size) ck_send_##size(side, i)
#define ck_receive(side, i, want, size) ck_receive_##size(side, i)

#define PLAY(size)              \
	RING_PLAY_RTT(ck, size) \
	RING_PLAY_STREAM(ck, stream, size, 1u)
RING_SIZES(PLAY)

#define RTT(size) ck_rtt_##size,
#define STREAM(size) ck_stream_##size,
#define TABLES .play = { { RING_SIZES(RTT) }, { RING_SIZES(STREAM) } }
#else
#define TABLES .wake = NULL
static const char *setup(void)
{
	return "ck_ring.h was not found at build time (Debian: libck-dev)";
}
#endif

const struct ring_impl ring_ck = { .name = "ck_ring", .peer = 1, .setup = setup, TABLES };
