/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a publish costs the leader. The ranks are processes that read between batches alone, so
 * every line of their rings that the leader writes was last in the cache of a rank's core, and
 * nothing else of theirs happens while the clock runs. Groups of all sizes live at the same time,
 * so that their batches are neighbours in time.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "group_bench.h"
#include "kvring/err.h"

#define RING_BYTES 131072u /* the library's default */
#define HEADERS 48u	   /* before a payload in a ring */
#define BATCH_MAX 256u
#define PARTS 8u  /* of a batch; the first is for warming up */
#define WAKES 8u  /* a round, to ranks that are asleep */
#define POLLS 64u /* a round, to ranks that poll */
#define QUIET_NS 100000u
#define QUIET_RANK_NS 15000u /* so much longer for each rank that has to fall asleep */
#define PATIENT (group_now() + GROUP_HANG_NS)

static const uint32_t sizes[] = { 48, 1024 };
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

struct party {
	uint32_t ranks;
	char name[KVR_NAME_MAX];
	struct kvr_group *g;
	struct kvr_channels *c;
	uint64_t number; /* of the last publish */
	struct group_row *cost[SIZES], *asleep, *last_asleep, *last_polled, *skew;
};

static struct party parties[GROUP_RANKS];
static uint32_t nparties;

static void publish(struct party *p, uint32_t size)
{
	struct kvr_request request = { .id = ++p->number };

	if (kvr_channels_publish(p->c, KVR_CH_USER0, 0, KVR_TAG_USER, &request,
				 group_payload(p->number), size, UINT64_MAX))
		group_broken("publish");
}

/* As many as fit, whatever the end of a ring wastes. */
static uint32_t batch_of(uint32_t size)
{
	uint32_t cells = (HEADERS + size + 63) / 64, fit = RING_BYTES / 64 / cells - 2;

	return fit < BATCH_MAX ? fit : BATCH_MAX;
}

static void drain(const struct party *p, uint32_t count)
{
	group_tell(0, p->ranks, ORDER_DRAIN, (uint32_t)(p - parties), count, NULL);
	group_await(0, p->ranks);
}

/*
 * Once with a look at the clock after each eighth, which gives the cost (the median of seven: one
 * in which somebody else had the core does not count), and once after each message, for
 * percentiles.
 */
static void batches(struct party *p, uint32_t k)
{
	static double samples[BATCH_MAX];
	uint32_t n = batch_of(sizes[k]), part = n / PARTS, i;
	struct group_row *row = p->cost[k];
	double eighths[PARTS];
	uint64_t last, now;

	n = part * PARTS;
	last = group_ticks();
	for (i = 1; i <= n; i++) {
		publish(p, sizes[k]);
		if (i % part)
			continue;
		now = group_ticks();
		eighths[i / part - 1] = (double)(now - last) * group_ns_per_tick / part;
		last = now;
	}
	group_add(&row->value, group_median(eighths + 1, PARTS - 1));
	drain(p, n);
	last = group_ticks();
	for (i = 0; i < n; i++) {
		publish(p, sizes[k]);
		now = group_ticks();
		samples[i] = (double)(now - last) * group_ns_per_tick;
		last = now;
	}
	group_add_round(row, samples + part, n - part);
	drain(p, n);
}

/* The leader leaves its ranks alone for a while, without sleeping itself if it need not. */
static void quiet(uint32_t ranks)
{
	uint64_t until = group_now() + QUIET_NS + ranks * QUIET_RANK_NS + group_random(QUIET_NS);

	if (group_run.ncores == 1)
		group_nap(until - group_now());
	while (group_now() < until)
		group_relax();
}

/* When the first and the last of the ranks had it; 0 when one of them had not slept. */
static int arrivals(const struct party *p, int slept, uint64_t *first, uint64_t *last)
{
	const struct group_agent *a;

	*first = UINT64_MAX;
	*last = 0;
	for (a = group_agents; a < group_agents + p->ranks; a++) {
		*first = a->stamp < *first ? a->stamp : *first;
		*last = a->stamp > *last ? a->stamp : *last;
		slept &= a->slept != 0;
	}
	return slept;
}

/* Every rank waits in the kernel: the leader pays a system call for each. */
static void wakes(struct party *p)
{
	uint64_t start, done, first, last;
	double cost[WAKES], late[WAKES];
	uint32_t i, n = 0;

	group_tell(0, p->ranks, ORDER_TAKE, (uint32_t)(p - parties), WAKES, NULL);
	for (i = 1; i <= WAKES; i++) {
		quiet(p->ranks);
		start = group_now();
		publish(p, sizes[0]);
		done = group_now();
		group_await_got(p->ranks, i);
		if (!arrivals(p, 1, &first, &last))
			continue;
		cost[n] = (double)(done - start);
		late[n++] = (double)(last - start);
	}
	group_await(0, p->ranks);
	for (i = 0; i < n; i++) {
		group_sample(p->asleep, cost[i]);
		group_sample(p->last_asleep, late[i]);
	}
}

/* Every rank polls, on a core of its own. */
static void polls(struct party *p)
{
	uint64_t start, first, last;
	double late[POLLS], skew[POLLS];
	uint32_t i;

	group_tell(0, p->ranks, ORDER_POLL, (uint32_t)(p - parties), POLLS, NULL);
	group_nap(GROUP_MS / 2); /* all of them are there */
	for (i = 0; i < POLLS; i++) {
		start = group_now();
		publish(p, sizes[0]);
		group_await_got(p->ranks, i + 1);
		arrivals(p, 0, &first, &last);
		late[i] = (double)(last - start);
		skew[i] = (double)(last - first);
	}
	group_await(0, p->ranks);
	group_add_round(p->last_polled, late + POLLS / 8, POLLS - POLLS / 8);
	if (p->skew)
		group_add_round(p->skew, skew + POLLS / 8, POLLS - POLLS / 8);
}

static void rows_make(struct party *p)
{
	uint32_t k;

	for (k = 0; k < SIZES; k++)
		p->cost[k] = group_row("publish", "ns", p->ranks, sizes[k]);
	p->asleep = group_row("publish_asleep", "ns", p->ranks, sizes[0]);
	p->last_asleep = group_row("last_asleep", "ns", p->ranks, sizes[0]);
	if (p->ranks > 2)
		return;
	if (p->ranks + 1 > (uint32_t)group_run.ncores) {
		group_skip("time until the last of %u ranks that poll: it needs %u CPUs, there are "
			   "%d",
			   p->ranks, p->ranks + 1, group_run.ncores);
		return;
	}
	p->last_polled = group_row("last_polled", "ns", p->ranks, sizes[0]);
	if (p->ranks > 1)
		p->skew = group_row("skew_polled", "ns", p->ranks, sizes[0]);
}

/* 0: there is no room for this one. */
static int party_start(uint32_t ranks)
{
	struct party *p = &parties[nparties];
	struct kvr_group_opts o = { .size = sizeof(o),
				    .dir = group_dir,
				    .ranks = ranks,
				    .ring_bytes = RING_BYTES,
				    .event_fd = -1 };
	int rc;

	*p = (struct party){ .ranks = ranks };
	snprintf(p->name, sizeof(p->name), "publish-%u", ranks);
	rc = kvr_group_create(p->name, &o, &p->g);
	if (rc == -ENOSPC) {
		group_skip("publish with %u ranks: %s", ranks, kvr_explain());
		return 0;
	}
	if (rc || kvr_channels_open(p->g, &p->c))
		group_broken(p->name);
	group_tell(0, ranks, ORDER_ATTACH, nparties, 0, p->name);
	group_await(0, ranks);
	rows_make(p);
	nparties++;
	return 1;
}

static void round_run(uint32_t round)
{
	uint32_t i, k;

	for (i = 0; i < nparties; i++) {
		/* Every other round goes backwards. */
		struct party *p = &parties[round % 2 ? nparties - 1 - i : i];

		for (k = 0; k < SIZES; k++)
			batches(p, k);
		wakes(p);
		if (p->last_polled)
			polls(p);
	}
}

/*
 * The line through the sizes of group, in each round: least squares of the *relative* distances, or
 * the largest group alone would decide.
 */
static void fit(uint32_t k)
{
	struct group_row *a = group_row("publish_fit_a", "ns", 0, sizes[k]);
	struct group_row *b = group_row("publish_fit_b", "ns", 0, sizes[k]);
	double x, y, w, n, sx, sy, sxx, sxy, slope;
	uint32_t round, i;

	for (round = 0; round < group_run.rounds_publish; round++) {
		n = sx = sy = sxx = sxy = 0;
		for (i = 0; i < nparties; i++) {
			x = parties[i].ranks;
			y = parties[i].cost[k]->value.v[round];
			w = 1 / (y * y);
			n += w;
			sx += w * x;
			sy += w * y;
			sxx += w * x * x;
			sxy += w * x * y;
		}
		slope = (n * sxy - sx * sy) / (n * sxx - sx * sx);
		group_add(&b->value, slope);
		group_add(&a->value, (sy - slope * sx) / n);
	}
}

void group_publish(double seconds)
{
	uint64_t deadline = group_now() + (uint64_t)(seconds * 1e9), begun, longest = 0;
	uint64_t wanted = group_opt.ranks ? group_opt.ranks : 0x800000008000808bu;
	uint32_t r, i, most = 0;

	for (r = 1; r <= GROUP_RANKS; r++)
		most = wanted >> (r - 1) & 1 ? r : most;
	group_agents_start(most);
	group_pin(&group_first);
	for (r = 1; r <= most; r++)
		if (wanted >> (r - 1) & 1 && !party_start(r))
			break;
	for (i = 0; i < group_opt.rounds; i++) {
		begun = group_now();
		if (i >= 3 && begun + longest > deadline)
			break;
		group_progress("publish", i);
		round_run(i);
		longest = group_now() - begun > longest ? group_now() - begun : longest;
	}
	group_run.rounds_publish = i;
	for (i = 0; i < SIZES && nparties > 1; i++)
		fit(i);
	for (i = 0; i < nparties; i++) {
		group_tell(0, parties[i].ranks, ORDER_CLOSE, i, 0, NULL);
		group_await(0, parties[i].ranks);
		kvr_channels_close(parties[i].c);
		kvr_group_close(parties[i].g);
	}
	group_agents_stop();
	group_pin(&group_all);
}
