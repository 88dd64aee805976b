/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that sleep until they are told what to do, so that what they do is never part of what the
 * leader measures. An order goes through a word of the agent's own, not through a bell of the
 * group: to the leader's publish an agent that has no order is a rank that is busy elsewhere.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "group_bench.h"
#include "kvring/err.h"

#define SPIN_NS (2 * GROUP_MS) /* where the leader has a core of its own */

const struct group_agent *group_agents;
static struct group_agent *agents;
static pid_t pids[GROUP_RANKS];
static uint32_t nagents;
static struct {
	uint32_t come __attribute__((aligned(GROUP_LINE)));
	uint32_t gone __attribute__((aligned(GROUP_LINE)));
} * futex;
static uint8_t payloads[GROUP_ENTRIES][GROUP_PAYLOAD];

const void *group_payload(uint64_t number)
{
	return payloads[number % GROUP_ENTRIES];
}

/* --- the agent's side --- */

static struct kvr_group *groups[GROUP_SLOTS];
static struct kvr_channels *channels[GROUP_SLOTS];

static void check(const struct kvr_message *m)
{
	if (m->tag != KVR_TAG_USER || m->request.id != m->number ||
	    memcmp(m->data, group_payload(m->number), m->len) != 0)
		group_broken("a message is not what was published");
}

static void drained(void *arg, const struct kvr_message *m)
{
	check(m);
	++*(uint32_t *)arg;
}

/* Reads `count` messages that are there, and then looks once more, which shows the leader that the
 * ring is empty. */
static void agent_drain(const struct group_agent *a)
{
	struct kvr_channels *c = channels[a->slot];
	uint32_t seen = 0;

	while (seen < a->count)
		if (kvr_channels_drain(c, KVR_CH_USER0, drained, &seen) <= 0)
			group_broken("a published message is not there");
	if (kvr_channels_drain(c, KVR_CH_USER0, drained, &seen))
		group_broken("a message nobody published is there");
}

static void agent_got(struct group_agent *a, const struct kvr_message *m, uint64_t now, long before)
{
	a->stamp = now;
	a->slept = group_sleeps() != before;
	check(m);
	__atomic_store_n(&a->got, a->got + 1, __ATOMIC_RELEASE);
}

/* Alone on a core of its own: it looks without end. */
static void agent_poll(struct group_agent *a, uint32_t rank)
{
	struct kvr_channels *c = channels[a->slot];
	struct kvr_message m;
	cpu_set_t one;
	uint32_t i;
	int cpu, rc;

	CPU_ZERO(&one);
	for (cpu = 0, i = 0; !CPU_ISSET((size_t)cpu, &group_rest) || i++ < rank;)
		cpu++;
	CPU_SET((size_t)cpu, &one);
	group_pin(&one);
	for (i = 0; i < a->count; i++) {
		while ((rc = kvr_channels_take(c, KVR_CH_USER0, 0, &m)) == -EAGAIN)
			group_relax();
		if (rc)
			group_broken("a rank that polls");
		agent_got(a, &m, group_now(), 0);
	}
	group_pin(&group_rest);
}

static void agent_take(struct group_agent *a)
{
	struct kvr_message m;
	uint32_t i;
	long before;

	for (i = 0; i < a->count; i++) {
		before = group_sleeps();
		if (kvr_channels_take(channels[a->slot], KVR_CH_USER0, group_now() + GROUP_HANG_NS,
				      &m))
			group_broken("a rank that waits");
		agent_got(a, &m, group_now(), before);
	}
}

static void agent_stream(struct group_agent *a)
{
	struct kvr_message m;
	uint32_t i;

	for (i = 0; i < a->count; i++) {
		if (kvr_channels_take(channels[a->slot], KVR_CH_USER0, group_now() + GROUP_HANG_NS,
				      &m))
			group_broken("a rank in a stream");
		check(&m);
	}
	a->stamp = group_now();
}

/* What a barrier costs at least: everybody sleeps on one word, and one wake-up is for all. */
static void futex_barrier(uint32_t ranks)
{
	uint32_t seen = __atomic_load_n(&futex->gone, __ATOMIC_ACQUIRE);

	if (__atomic_add_fetch(&futex->come, 1, __ATOMIC_ACQ_REL) == ranks) {
		__atomic_store_n(&futex->come, 0, __ATOMIC_RELAXED);
		__atomic_add_fetch(&futex->gone, 1, __ATOMIC_ACQ_REL);
		group_futex_wake(&futex->gone);
		return;
	}
	while (__atomic_load_n(&futex->gone, __ATOMIC_ACQUIRE) == seen)
		group_futex_wait(&futex->gone, seen, GROUP_HANG_NS);
}

static void meet_once(const struct group_agent *a, uint32_t rank, uint32_t ranks, uint32_t i)
{
	int64_t v[3] = { (int64_t)i + rank, -(int64_t)rank, INT64_MAX - rank };
	uint64_t deadline = group_now() + GROUP_HANG_NS;

	if (a->order == ORDER_FUTEX) {
		futex_barrier(ranks);
	} else if (a->order == ORDER_BARRIER) {
		if (kvr_channels_barrier(channels[a->slot], 0, 0, deadline))
			group_broken("barrier");
	} else if (kvr_channels_min_reduce(channels[a->slot], 0, 0, v, 3, v, deadline) ||
		   v[0] != i || v[1] != 1 - (int64_t)ranks || v[2] != INT64_MAX + v[1]) {
		group_broken("min_reduce");
	}
}

static void agent_meet(struct group_agent *a, uint32_t rank)
{
	uint32_t ranks = kvr_group_ranks(groups[a->slot]), warm = a->count / 8 + 1, i;
	cpu_set_t cpus;
	uint64_t start;

	group_cpus_of(rank, ranks, &cpus);
	group_pin(&cpus);
	for (i = 0; i < warm; i++)
		meet_once(a, rank, ranks, i);
	start = group_now();
	for (i = 0; i < a->count; i++)
		meet_once(a, rank, ranks, i);
	a->ns = group_now() - start;
	group_pin(&group_rest);
}

static void agent_attach(struct group_agent *a, uint32_t rank)
{
	struct kvr_group_opts o = { .size = sizeof(o), .dir = group_dir, .event_fd = -1 };
	uint64_t start = group_now();
	int rc = kvr_group_attach(a->name, rank, &o, start + GROUP_HANG_NS, &groups[a->slot]);

	a->ns = group_now() - start;
	if (rc || kvr_channels_open(groups[a->slot], &channels[a->slot]))
		group_broken("attach");
}

static void agent_obey(struct group_agent *a, uint32_t rank)
{
	if (a->order == ORDER_ATTACH) {
		agent_attach(a, rank);
	} else if (a->order == ORDER_DRAIN) {
		agent_drain(a);
	} else if (a->order == ORDER_POLL) {
		agent_poll(a, rank);
	} else if (a->order == ORDER_TAKE) {
		agent_take(a);
	} else if (a->order == ORDER_STREAM) {
		agent_stream(a);
	} else if (a->order != ORDER_CLOSE) {
		agent_meet(a, rank);
	} else {
		kvr_channels_close(channels[a->slot]);
		kvr_group_close(groups[a->slot]);
	}
}

static void __attribute__((noreturn)) agent_main(uint32_t rank)
{
	struct group_agent *a = &agents[rank];
	uint32_t seen = 0;

	group_pin(&group_rest);
	for (;;) {
		while (__atomic_load_n(&a->told, __ATOMIC_ACQUIRE) == seen)
			group_futex_wait(&a->told, seen, GROUP_HANG_NS);
		seen++;
		agent_obey(a, rank);
		__atomic_store_n(&a->done, seen, __ATOMIC_RELEASE);
		group_futex_wake(&a->done);
	}
}

/* --- the leader's side --- */

void group_agents_start(uint32_t n)
{
	uint32_t i, x = 2463534242u;

	for (i = 0; i < sizeof(payloads); i++) {
		x = x * 1664525u + 1013904223u;
		payloads[i / GROUP_PAYLOAD][i % GROUP_PAYLOAD] = (uint8_t)(x >> 24);
	}
	group_agents = agents = group_memory(GROUP_RANKS * sizeof(*agents));
	futex = group_memory(sizeof(*futex));
	for (nagents = 0; nagents < n; nagents++) {
		pids[nagents] = group_fork();
		if (!pids[nagents])
			agent_main(nagents);
	}
}

void group_agents_stop(void)
{
	while (nagents) {
		kill(pids[--nagents], SIGKILL);
		waitpid(pids[nagents], NULL, 0);
	}
}

void group_tell(uint32_t from, uint32_t to, enum group_order order, uint32_t slot, uint32_t count,
		const char *name)
{
	uint32_t r;

	for (r = from; r < to; r++) {
		struct group_agent *a = &agents[r];

		a->order = order;
		a->slot = slot;
		a->count = count;
		a->got = 0;
		snprintf(a->name, sizeof(a->name), "%s", name ? name : "");
		__atomic_store_n(&a->told, a->told + 1, __ATOMIC_RELEASE);
		group_futex_wake(&a->told);
	}
}

/* One that ended has said why. */
static void lost(uint32_t rank, uint64_t deadline)
{
	char what[64];
	int status;

	if (waitpid(pids[rank], &status, WNOHANG) == pids[rank])
		exit(1);
	if (group_now() < deadline)
		return;
	snprintf(what, sizeof(what), "rank %u does not do what it was told", rank);
	group_broken(what);
}

static void await(uint32_t from, uint32_t to, uint64_t spin_ns)
{
	uint64_t spin = group_now() + spin_ns;
	uint64_t deadline = group_now() + GROUP_HANG_NS;
	uint32_t r, seen;

	for (r = from; r < to; r++) {
		struct group_agent *a = &agents[r];

		while ((seen = __atomic_load_n(&a->done, __ATOMIC_ACQUIRE)) != a->told) {
			if (group_now() < spin) {
				group_relax();
				continue;
			}
			group_futex_wait(&a->done, seen, 100 * GROUP_MS);
			lost(r, deadline);
		}
	}
}

void group_await(uint32_t from, uint32_t to)
{
	await(from, to, group_run.ncores > 1 ? SPIN_NS : 0);
}

void group_await_asleep(uint32_t from, uint32_t to)
{
	await(from, to, 0);
}

void group_await_got(uint32_t n, uint64_t count)
{
	uint64_t now = group_now(), look = now + 100 * GROUP_MS, deadline = now + GROUP_HANG_NS;
	uint32_t r;

	for (r = 0; r < n; r++)
		while (__atomic_load_n(&agents[r].got, __ATOMIC_ACQUIRE) < count) {
			if (group_run.ncores > 1)
				group_relax();
			else
				group_nap(GROUP_MS / 20);
			now = group_now();
			if (now > look)
				lost(r, deadline);
		}
}
