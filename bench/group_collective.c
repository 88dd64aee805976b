/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that all processes make: barrier, minimum of three values, a message to all, a stream of
 * them; against gloo as the inference engines use it, and a bare futex. Everybody's turns lie side
 * by side in each round.
 *
 * n processes are: n ranks that meet, and a leader that sleeps; or a leader that publishes to n - 1
 * ranks, as in a gloo world one of the n is the sender.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "group_bench.h"
#include "kvring/err.h"

#define RING_BYTES 131072u /* the library's default */
#define TURN_NS (6 * GROUP_MS)
#define TURN_GLOO_NS (30 * GROUP_MS)
#define MESSAGES 12u /* timed alone, a turn */
#define QUIET_NS 500000u
#define COUNT_MAX 20000u

enum peer { KVRING, FUTEX, GLOO, PEERS };
static const char *const peers[] = { "kvring", "futex", "gloo" };

enum kind { BARRIER, MINIMUM, ASLEEP, POLLED, STREAM };
static const struct {
	enum kind kind;
	const char *metric, *gloo;
	uint32_t size;
} measures[] = {
	{ BARRIER, "barrier", "barrier", 0 },
	{ MINIMUM, "min_reduce", "min", 24 },
	{ ASLEEP, "message_asleep", "message", 48 },
	{ ASLEEP, "message_asleep", "message", 1024 },
	/* gloo cannot: a receive that is not waited for makes no progress. */
	{ POLLED, "message_polled", "message", 48 },
	{ POLLED, "message_polled", "message", 1024 },
	{ STREAM, "message_stream", "stream", 48 },
	{ STREAM, "message_stream", "stream", 1024 },
};
#define MEASURES ((uint32_t)(sizeof(measures) / sizeof(measures[0])))

/* So many processes. */
struct world {
	uint32_t n;
	uint32_t slot; /* of the group that meets; the one that is published to has the next */
	struct kvr_group *g[2];
	struct kvr_channels *c;
	uint64_t number; /* of the last publish */
	struct group_row *row[MEASURES][PEERS];
	uint32_t count[MEASURES][PEERS]; /* of a turn, from how long the last one took */
};

static struct world worlds[GROUP_GLOO_WORLD];
static uint32_t nworlds;
static int gloo;

static void quiet(void)
{
	uint64_t until = group_now() + QUIET_NS;

	if (group_run.ncores == 1)
		group_nap(QUIET_NS);
	while (group_now() < until)
		group_relax();
}

static void publish(struct world *w, uint32_t size)
{
	struct kvr_request request = { .id = ++w->number };

	if (kvr_channels_publish(w->c, KVR_CH_USER0, 0, KVR_TAG_USER, &request,
				 group_payload(w->number), size, group_now() + GROUP_HANG_NS))
		group_broken("publish");
}

/* All turns return ns for one call, or NAN. */

static double turn_meet(const struct world *w, enum group_order order, uint32_t count)
{
	uint64_t ns = 0;
	uint32_t r;

	group_tell(0, w->n, order, w->slot, count, NULL);
	group_await_asleep(0, w->n);
	for (r = 0; r < w->n; r++)
		ns = group_agents[r].ns > ns ? group_agents[r].ns : ns;
	return (double)ns / count;
}

/* Until the last rank has it; the median of some. */
static double turn_message(struct world *w, enum group_order order, uint32_t size)
{
	double late[MESSAGES];
	uint64_t start, last;
	uint32_t i, r;

	group_tell(0, w->n - 1, order, w->slot + 1, MESSAGES, NULL);
	for (i = 0; i < MESSAGES; i++) {
		quiet();
		start = group_now();
		publish(w, size);
		group_await_got(w->n - 1, i + 1);
		for (last = 0, r = 0; r < w->n - 1; r++)
			last = group_agents[r].stamp > last ? group_agents[r].stamp : last;
		late[i] = (double)(last - start);
	}
	group_await(0, w->n - 1);
	return group_median(late + 1, MESSAGES - 1);
}

static double turn_stream(struct world *w, uint32_t size, uint32_t count)
{
	uint64_t start, last = 0;
	uint32_t i, r;

	group_tell(0, w->n - 1, ORDER_STREAM, w->slot + 1, count, NULL);
	quiet(); /* they are there */
	start = group_now();
	for (i = 0; i < count; i++)
		publish(w, size);
	group_await_asleep(0, w->n - 1);
	for (r = 0; r < w->n - 1; r++)
		last = group_agents[r].stamp > last ? group_agents[r].stamp : last;
	return (double)(last - start) / count;
}

static double turn_gloo(const struct world *w, uint32_t m, uint32_t count)
{
	static struct group_gloo_said said;
	enum kind kind = measures[m].kind;
	int each = kind == ASLEEP || kind == POLLED, meet = kind < ASLEEP;
	double late[MESSAGES], last;
	uint32_t i, r;

	count = each ? MESSAGES : count;
	if (!gloo || !group_gloo_run(measures[m].gloo, w->n, measures[m].size, count, &said))
		return (double)NAN;
	for (i = 0; i < (each ? MESSAGES : 1); i++) {
		for (last = 0, r = meet ? 0 : 1; r < w->n; r++)
			last = fmax(last, (double)said.number[r][i]);
		late[i] = last - (meet ? 0 : (double)said.number[0][i]);
	}
	return each ? group_median(late + 1, MESSAGES - 1) : late[0] / count;
}

static double turn(struct world *w, uint32_t m, enum peer peer)
{
	uint32_t count = w->count[m][peer], size = measures[m].size;

	if (peer == GLOO)
		return turn_gloo(w, m, count);
	switch (measures[m].kind) {
	case BARRIER:
		return turn_meet(w, peer == FUTEX ? ORDER_FUTEX : ORDER_BARRIER, count);
	case MINIMUM:
		return turn_meet(w, ORDER_MIN, count);
	case ASLEEP:
		return turn_message(w, ORDER_TAKE, size);
	case POLLED:
		return turn_message(w, ORDER_POLL, size);
	default:
		return turn_stream(w, size, count);
	}
}

static void count_next(struct world *w, uint32_t m, enum peer peer, double ns)
{
	double n = (double)(peer == GLOO ? TURN_GLOO_NS : TURN_NS) / ns;

	w->count[m][peer] = (uint32_t)fmin(fmax(n, MESSAGES), COUNT_MAX);
}

/* Every other round goes backwards. The first shows how many fit into a turn. */
static void measure(struct world *w, uint32_t m, uint32_t round)
{
	double ns[PEERS] = { (double)NAN, (double)NAN, (double)NAN };
	uint32_t i, peer;

	for (i = 0; i < PEERS; i++) {
		peer = round % 2 ? i : PEERS - 1 - i;
		if (!w->row[m][peer])
			continue;
		ns[peer] = turn(w, m, peer);
		if (isfinite(ns[peer]))
			count_next(w, m, peer, ns[peer]);
	}
	for (peer = 0; peer < PEERS && round; peer++) {
		if (!w->row[m][peer] || !isfinite(ns[peer]))
			continue;
		group_sample(w->row[m][peer], ns[peer] / 1e3);
		if (peer != KVRING)
			group_add(&w->row[m][peer]->ratio, ns[peer] / ns[KVRING]);
	}
}

static void group_make(struct world *w, uint32_t i, uint32_t ranks)
{
	struct kvr_group_opts o = { .size = sizeof(o),
				    .dir = group_dir,
				    .ranks = ranks,
				    .ring_bytes = RING_BYTES,
				    .event_fd = -1 };
	char name[KVR_NAME_MAX];

	snprintf(name, sizeof(name), "collective-%u-%u", w->n, i);
	if (kvr_group_create(name, &o, &w->g[i]) || (i && kvr_channels_open(w->g[i], &w->c)))
		group_broken(name);
	group_tell(0, ranks, ORDER_ATTACH, w->slot + i, 0, name);
	group_await(0, ranks);
}

static int possible(uint32_t n, enum kind kind, enum peer peer)
{
	if (peer == FUTEX)
		return kind == BARRIER;
	return kind != POLLED || n <= (uint32_t)group_run.ncores;
}

static void world_make(uint32_t n)
{
	struct world *w = &worlds[nworlds];
	uint32_t m, peer;

	*w = (struct world){ .n = n, .slot = 2 * nworlds };
	nworlds++;
	group_make(w, 0, n);
	group_make(w, 1, n - 1);
	for (m = 0; m < MEASURES; m++)
		for (peer = 0; peer < PEERS; peer++) {
			if ((peer == GLOO && !gloo) || !possible(n, measures[m].kind, peer))
				continue;
			w->count[m][peer] = MESSAGES;
			w->row[m][peer] = group_row(measures[m].metric, "us", n, measures[m].size);
			w->row[m][peer]->peer = peers[peer];
		}
}

static void world_end(struct world *w)
{
	uint32_t i;

	for (i = 0; i < 2; i++) {
		group_tell(0, w->n - i, ORDER_CLOSE, w->slot + i, 0, NULL);
		group_await(0, w->n - i);
	}
	kvr_channels_close(w->c);
	kvr_group_close(w->g[1]);
	kvr_group_close(w->g[0]);
}

static void round_run(uint32_t round)
{
	uint32_t i, m;

	for (i = 0; i < nworlds; i++)
		for (m = 0; m < MEASURES; m++)
			measure(&worlds[i], m, round);
}

void group_collective(double seconds)
{
	uint64_t wanted = group_opt.ranks ? group_opt.ranks : 0xa, deadline, begun, longest = 0;
	uint32_t n, most = 0, round;

	for (n = 2; n <= GROUP_GLOO_WORLD; n++)
		most = wanted >> (n - 1) & 1 ? n : most;
	if (!most) {
		group_skip("collective: 2 to %u processes are possible", GROUP_GLOO_WORLD);
		return;
	}
	gloo = group_gloo_start(most);
	group_agents_start(most);
	group_pin(&group_first);
	for (n = 2; n <= most; n++)
		if (wanted >> (n - 1) & 1)
			world_make(n);
	deadline = group_now() + (uint64_t)(seconds * 1e9);
	for (round = 0; round <= group_opt.rounds; round++) {
		begun = group_now();
		if (round > 3 && begun + longest > deadline)
			break;
		group_progress("collective", round);
		round_run(round);
		longest = group_now() - begun > longest ? group_now() - begun : longest;
	}
	group_run.rounds_collective = round - 1;
	for (n = 0; n < nworlds; n++)
		world_end(&worlds[n]);
	group_agents_stop();
	group_gloo_stop();
	group_pin(&group_all);
}
