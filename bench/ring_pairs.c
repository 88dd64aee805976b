/* SPDX-License-Identifier: Apache-2.0 */
/*
 * More processes than cores: eight pairs that ask and answer, all of them allowed on both cores.
 * Each direction is a ring with a bell. Once the reader waits as kvring does, and once on the bell
 * alone, without a spin: that is what a plain futex gives.
 */
#include <limits.h>
#include <sched.h>

#include "kvring/err.h"
#include "kvring/ring.h"
#include "kvring/wait.h"
#include "ring_play.h"

#define PAIRS 8u
#define SIZE 32u
#define BYTES 16384u /* of a ring's cells */
#define TAG_END UINT32_MAX
#define SETTLE_NS 2000000u /* all are awake by then, and counting begins */

struct direction {
	uint8_t ring[KVR_RING_CTL + BYTES] __attribute__((aligned(128)));
	struct kvr_ring_cursor cursor;
	struct kvr_bell bell; /* the reader's */
};

struct memory {
	struct direction to[PAIRS], fro[PAIRS];
	struct ring_line run, done; /* futex words: how often they were started; who is through */
	uint64_t begin, end;	    /* ns; round trips that end between them count */
	int futex_only;
	struct ring_line trips[PAIRS];
};
static struct memory *mem;

/* A process: writes one direction, reads the other. */
struct worker {
	struct ring_side side; /* the table of messages */
	struct kvr_ring_writer w;
	struct kvr_ring_reader r;
	struct kvr_waiter waiter;
	struct kvr_bell *peer;
	uint64_t sent, received;
	uint32_t tag; /* of the last message */
};

static void put(struct worker *me, uint32_t tag)
{
	uint64_t i = ++me->sent;

	if (tag != TAG_END)
		tag = entry_of(i, SIZE);
	/* Nobody is more than one message ahead of its peer. */
	if (kvr_ring_write(&me->w, tag, source_of(&me->side, i, SIZE) + 1, SIZE))
		ring_broken("pairs", "write");
	kvr_bell_ring(me->peer);
}

static int look(void *arg)
{
	struct worker *me = arg;
	uint32_t e = entry_of(me->received + 1, SIZE);
	struct kvr_ring_msg msg;
	int rc = kvr_ring_peek(&me->r, &msg);

	if (!rc)
		return 0;
	if (rc < 0 || (msg.tag != e && msg.tag != TAG_END) || msg.len != SIZE ||
	    fold(msg.data, SIZE) != me->side.folds[e])
		ring_broken("pairs", "not the message that was sent");
	kvr_ring_release(&me->r);
	me->received++;
	me->tag = msg.tag;
	return 1;
}

static void take(struct worker *me)
{
	if (kvr_wait(&me->waiter, look, me, UINT64_MAX) != 1)
		ring_broken("pairs", "no answer");
}

static void ask(struct worker *me, uint64_t *trips)
{
	uint64_t now;

	*trips = 0;
	do {
		put(me, 0);
		take(me);
		now = ring_now();
		*trips += now >= mem->begin && now < mem->end;
	} while (now < mem->end);
	put(me, TAG_END);
}

static void answer(struct worker *me)
{
	for (take(me); me->tag != TAG_END; take(me))
		put(me, 0);
}

static void worker_main(struct worker *me, unsigned int pair, int asks)
{
	struct direction *out = asks ? &mem->to[pair] : &mem->fro[pair];
	struct direction *in = asks ? &mem->fro[pair] : &mem->to[pair];
	uint32_t *run = (uint32_t *)&mem->run, *done = (uint32_t *)&mem->done, runs = 0;

	ring_prepare(&me->side, SIZE);
	me->peer = &out->bell;
	if (kvr_ring_writer_init(&me->w, out->ring, BYTES, &out->cursor, 0) ||
	    kvr_ring_reader_init(&me->r, in->ring, BYTES, &in->cursor, 0))
		ring_broken("pairs", "init");
	for (;;) {
		__atomic_fetch_add(done, 1, __ATOMIC_ACQ_REL);
		ring_wake_up(done, 1);
		while (__atomic_load_n(run, __ATOMIC_ACQUIRE) == runs)
			ring_sleep_on(run, runs);
		runs++;
		kvr_waiter_init(&me->waiter, &in->bell);
		if (mem->futex_only)
			me->waiter.spin_cap_ns = me->waiter.spin_ns = 0;
		if (asks)
			ask(me, &mem->trips[pair].value);
		else
			answer(me);
	}
}

/* The parent sleeps meanwhile: it shares their cores. */
static void wait_done(void)
{
	uint32_t *done = (uint32_t *)&mem->done, seen;

	while ((seen = __atomic_load_n(done, __ATOMIC_ACQUIRE)) != 2 * PAIRS)
		ring_sleep_on(done, seen);
}

void ring_pairs_start(const int cores[2])
{
	static struct worker me;
	cpu_set_t set;
	unsigned int i;
	int pid;

	mem = ring_memory(sizeof(*mem));
	CPU_ZERO(&set);
	CPU_SET((size_t)cores[0], &set);
	CPU_SET((size_t)cores[1], &set);
	for (i = 0; i < 2 * PAIRS; i++) {
		pid = ring_fork();
		if (pid)
			continue;
		if (sched_setaffinity(0, sizeof(set), &set))
			ring_broken("pairs", "sched_setaffinity");
		worker_main(&me, i / 2, i % 2);
	}
	wait_done();
}

double ring_pairs_run(int futex_only, uint64_t us)
{
	uint32_t *run = (uint32_t *)&mem->run;
	uint64_t trips = 0;
	unsigned int i;

	mem->futex_only = futex_only;
	mem->begin = ring_now() + SETTLE_NS;
	mem->end = mem->begin + us * 1000;
	__atomic_store_n((uint32_t *)&mem->done, 0, __ATOMIC_RELEASE);
	__atomic_fetch_add(run, 1, __ATOMIC_ACQ_REL);
	ring_wake_up(run, INT_MAX);
	wait_done();
	for (i = 0; i < PAIRS; i++)
		trips += mem->trips[i].value;
	return (double)trips / (double)us;
}
