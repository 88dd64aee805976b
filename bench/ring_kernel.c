/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel offers: a socket of packets, two eventfds, a futex word. All of them block. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ring_play.h"

static int sockets[2] = { -1, -1 }, events[2] = { -1, -1 };
static struct ring_line *words;
static uint32_t posted, awaited; /* of a side: what its word holds, what the other's must */

static const char *failed(const char *call)
{
	static char text[128];

	snprintf(text, sizeof(text), "%s: %s", call, strerror(errno));
	return text;
}

static const char *seqpacket_setup(void)
{
	return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) ? failed("socketpair")
									      : NULL;
}

static uint64_t seqpacket_send(struct ring_side *side, uint64_t i, uint64_t want, uint32_t size)
{
	struct ring_head *h = source_of(side, i, size);
	ssize_t bytes = (ssize_t)(sizeof(*h) + size);

	(void)want;
	if (send(sockets[side->id], h, (size_t)bytes, MSG_NOSIGNAL) != bytes)
		ring_broken("seqpacket", failed("send"));
	h->seq += ENTRIES(size); /* for the next time */
	return 1;
}

static uint64_t seqpacket_receive(struct ring_side *side, uint64_t i, uint64_t want, uint32_t size)
{
	static struct message_4096 m;
	ssize_t bytes = recv(sockets[side->id], &m, sizeof(m), 0);

	(void)want;
	if (bytes < 0)
		ring_broken("seqpacket", failed("recv"));
	if (bytes != (ssize_t)(sizeof(m.head) + size) || !message_good(side, &m.head, i, size))
		ring_broken("seqpacket", "not the message that was sent");
	return 1;
}

static const char *eventfd_setup(void)
{
	int i;

	for (i = 0; i < 2; i++) {
		events[i] = eventfd(0, EFD_CLOEXEC);
		if (events[i] < 0)
			return failed("eventfd");
	}
	return NULL;
}

static uint64_t eventfd_send(struct ring_side *side, uint64_t i, uint64_t want, uint32_t size)
{
	(void)want;
	(void)size;
	if (write(events[side->id], &i, sizeof(i)) != (ssize_t)sizeof(i))
		ring_broken("eventfd", failed("write"));
	return 1;
}

static uint64_t eventfd_receive(struct ring_side *side, uint64_t i, uint64_t want, uint32_t size)
{
	uint64_t value = 0;

	(void)want;
	(void)size;
	if (read(events[!side->id], &value, sizeof(value)) != (ssize_t)sizeof(value))
		ring_broken("eventfd", failed("read"));
	if (value != i)
		ring_broken("eventfd", "not the number that was sent");
	return 1;
}

static const char *futex_setup(void)
{
	words = ring_memory(2 * sizeof(*words));
	return NULL;
}

static uint64_t futex_send(struct ring_side *side, uint64_t i, uint64_t want, uint32_t size)
{
	(void)i;
	(void)want;
	(void)size;
	__atomic_store_n((uint32_t *)&words[side->id], ++posted, __ATOMIC_RELEASE);
	ring_wake_up(&words[side->id], 1);
	return 1;
}

static uint64_t futex_receive(struct ring_side *side, uint64_t i, uint64_t want, uint32_t size)
{
	const uint32_t *word = (const uint32_t *)&words[!side->id];
	uint32_t seen;

	(void)i;
	(void)want;
	(void)size;
	awaited++;
	while ((seen = __atomic_load_n(word, __ATOMIC_ACQUIRE)) != awaited)
		if (ring_sleep_on(word, seen) && errno != EAGAIN)
			ring_broken("futex", failed("futex"));
	return 1;
}

#define WAKE(impl)                                                      \
	static void impl##_post(struct ring_side *side, uint64_t i)     \
	{                                                               \
		impl##_send(side, i, 1, RING_WAKE_SIZE);                \
	}                                                               \
	static void impl##_await(struct ring_side *side, uint64_t i)    \
	{                                                               \
		impl##_receive(side, i, 1, RING_WAKE_SIZE);             \
	}                                                               \
	static void impl##_wake(struct ring_side *side, uint64_t count) \
	{                                                               \
		ring_wakes(side, count, impl##_post, impl##_await);     \
	}
WAKE(seqpacket)
WAKE(eventfd)
WAKE(futex)

#define PLAY(size)                     \
	RING_PLAY_RTT(seqpacket, size) \
	RING_PLAY_STREAM(seqpacket, stream, size, 1u)
RING_SIZES(PLAY)
RING_PLAY_RTT(eventfd, 8)
RING_PLAY_RTT(futex, 8)

#define RTT(size) seqpacket_rtt_##size,
#define STREAM(size) seqpacket_stream_##size,
const struct ring_impl ring_seqpacket = {
	.name = "seqpacket",
	.peer = 1,
	.setup = seqpacket_setup,
	.play = { { RING_SIZES(RTT) }, { RING_SIZES(STREAM) } },
	.wake = seqpacket_wake,
};
const struct ring_impl ring_eventfd = { .name = "eventfd",
					.setup = eventfd_setup,
					.play = { { eventfd_rtt_8 } },
					.wake = eventfd_wake };
const struct ring_impl ring_futex = {
	.name = "futex", .setup = futex_setup, .play = { { futex_rtt_8 } }, .wake = futex_wake
};
