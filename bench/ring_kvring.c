/* SPDX-License-Identifier: Apache-2.0 */
/* kvring, through its public headers alone; and the bare line that it is compared with. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "kvring/err.h"
#include "kvring/ring.h"
#include "kvring/wait.h"
#include "ring_play.h"

#define CELLS (RING_BYTES / KVR_RING_CELL)
#define FLOOR_PAIRS 8u /* pairs of lines in one measure */

/* What a direction consists of; side i writes ring i. */
struct memory {
	struct kvr_ring_cursor cursor;
	struct kvr_bell bell; /* the reader's */
	uint8_t apart[APART - KVR_RING_CTL - sizeof(struct kvr_ring_cursor) -
		      sizeof(struct kvr_bell)];
	uint8_t ring[KVR_RING_CTL + RING_BYTES];
} __attribute__((aligned(4096)));
static struct memory *mem;
_Static_assert(offsetof(struct memory, ring) + KVR_RING_CTL == APART, "where cells begin");

/* Each side has both, and uses its own. */
static struct kvr_ring_writer writers[2];
static struct kvr_ring_reader readers[2];
static struct kvr_waiter waiter;
static uint32_t expected; /* number of the next message to this side; goes on over all measures */

static const char *setup(void)
{
	int i;

	mem = ring_memory(2 * sizeof(*mem));
	for (i = 0; i < 2; i++)
		if (kvr_ring_writer_init(&writers[i], mem[i].ring, RING_BYTES, &mem[i].cursor, 0) ||
		    kvr_ring_reader_init(&readers[i], mem[i].ring, RING_BYTES, &mem[i].cursor, 0))
			return kvr_explain();
	return NULL;
}

INLINE uint64_t kvring_send(struct ring_side *side, uint64_t i, uint64_t want, uint32_t size)
{
	struct kvr_ring_writer *w = &writers[side->id];
	uint64_t n;
	int err;

	for (n = 0; n < want; n++) {
		err = (want == 1 ? kvr_ring_write : kvr_ring_put)(
			w, entry_of(i + n, size), source_of(side, i + n, size) + 1, size);
		if (err == -EAGAIN)
			break;
		if (err)
			ring_broken("kvring", "put");
	}
	if (n && want > 1)
		kvr_ring_commit(w);
	return n;
}

INLINE uint64_t kvring_receive(struct ring_side *side, uint64_t i, uint64_t want, uint32_t size)
{
	struct kvr_ring_reader *r = &readers[!side->id];
	struct kvr_ring_msg msg;
	uint64_t n;
	uint32_t e;
	int rc;

	for (n = 0; n < want; n++) {
		rc = kvr_ring_peek(r, &msg);
		if (!rc)
			break;
		e = entry_of(i + n, size);
		if (rc < 0 || msg.seq != expected++ || msg.tag != e || msg.len != size ||
		    fold(msg.data, size) != side->folds[e])
			ring_broken("kvring", "not the message that was sent");
	}
	if (n)
		kvr_ring_release(r);
	return n;
}

#define PLAY(size)                                 \
	RING_PLAY_RTT(kvring, size)                \
	RING_PLAY_STREAM(kvring, stream, size, 1u) \
	RING_PLAY_STREAM(kvring, batched, size, RING_BATCH)
RING_SIZES(PLAY)

static void wake_post(struct ring_side *side, uint64_t i)
{
	if (!kvring_send(side, i, 1, RING_WAKE_SIZE))
		ring_broken("kvring", "full, though its reader has taken everything");
	kvr_bell_ring(&mem[0].bell);
}

struct awaited {
	struct ring_side *side;
	uint64_t i;
};

static int wake_ready(void *arg)
{
	const struct awaited *a = arg;

	return (int)kvring_receive(a->side, a->i, 1, RING_WAKE_SIZE);
}

static void wake_await(struct ring_side *side, uint64_t i)
{
	struct awaited a = { side, i };

	if (kvr_wait(&waiter, wake_ready, &a, UINT64_MAX) != 1)
		ring_broken("kvring", "kvr_wait");
}

static void wake(struct ring_side *side, uint64_t count)
{
	if (!waiter.bell)
		kvr_waiter_init(&waiter, &mem[0].bell);
	ring_wakes(side, count, wake_post, wake_await);
}

static double cpu_ns(void)
{
	struct rusage r;

	getrusage(RUSAGE_SELF, &r);
	return 1e9 * (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
	       1e3 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

double ring_idle(struct ring_side *side, uint64_t ms)
{
	struct awaited a = { side, 1 };
	uint64_t start = ring_now();
	double cpu = cpu_ns();

	if (!waiter.bell)
		kvr_waiter_init(&waiter, &mem[0].bell);
	if (kvr_wait(&waiter, wake_ready, &a, start + ms * 1000000u) != -ETIMEDOUT)
		ring_broken("kvring", "an idle reader got something");
	return 100 * (cpu_ns() - cpu) / (double)(ring_now() - start);
}

#define ROW(kind, size) kvring_##kind##_##size,
#define RTT(size) ROW(rtt, size)
#define STREAM(size) ROW(stream, size)
#define BATCHED(size) ROW(batched, size)
const struct ring_impl ring_kvring = {
	.name = "kvring",
	.setup = setup,
	.play = { { RING_SIZES(RTT) }, { RING_SIZES(STREAM) }, { RING_SIZES(BATCHED) } },
	.wake = wake,
};

/*
 * The floor: a line to and fro. It lies in the rings, since how far a line is depends on its
 * address; in the last word of a cell, which no ring takes for a commit word. Both sides draw the
 * same lines.
 */
static uint64_t *line_choose(unsigned int direction)
{
	static uint32_t x[2] = { 88172645u, 463325252u };

	x[direction] = x[direction] * 1664525u + 1013904223u;
	return (uint64_t *)(void *)(mem[direction].ring + KVR_RING_CTL +
				    (x[direction] >> 16) % CELLS * KVR_RING_CELL + 56);
}

static void floor_rtt(struct ring_side *side, uint64_t count)
{
	static uint64_t number; /* never one that a line held before */
	uint64_t *out = NULL, *in = NULL, i, last = ticks(), now;

	for (i = 1; i <= count; i++) {
		if (i % (count / FLOOR_PAIRS + 1) == 1) {
			out = line_choose(side->id);
			in = line_choose(!side->id);
		}
		number++;
		if (!side->id)
			__atomic_store_n(out, number, __ATOMIC_RELEASE);
		while (__atomic_load_n(in, __ATOMIC_ACQUIRE) != number)
			relax();
		if (side->id) {
			__atomic_store_n(out, number, __ATOMIC_RELEASE);
			continue;
		}
		now = ticks();
		sample(side, i, now - last);
		last = now;
	}
}

const struct ring_impl ring_floor = { .name = "floor", .play = { { floor_rtt } } };
