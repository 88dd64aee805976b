/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks ahead in the trace: what is stored of requests to come, and only on NVMe, is brought into
 * host memory. At most `budget` blocks are on their way, or there, for requests that have not come.
 *
 * When the request comes, its prefetch is cancelled. That loses nothing, for the load that follows
 * reads the same blocks, as a demand, before those of other prefetches; and reads that run go on.
 *
 * The leader decides and tells the ranks, since only it knows how far a prefetch is. A rank may be
 * so late that it learns of the end before it makes the call.
 */
#include <errno.h>
#include <stdlib.h>

#include "replay.h"

struct replay_ahead_one {
	uint32_t index;	   /* of the request */
	uint32_t asked;	   /* blocks to read; 0: nothing was begun */
	uint32_t stored;   /* blocks of the prefix, of which */
	uint32_t rest;	   /* so many were on NVMe and stayed there */
	uint32_t arrived;  /* when the prefetch ended */
	uint32_t not_host; /* blocks of the prefix when the request came */
	uint32_t useless;  /* the request does not come, or the blocks are void */
};

/* The prefix that a lookup finds, if a prefetch can do something for it. */
static int look(struct replay_run *run, const struct kvr_request *request, uint32_t n,
		struct kvr_hit *ret_hit)
{
	int r = REPLAY_RETRY(
		kvr_connector_lookup(run->c, request, run->keys, n, replay_deadline(), ret_hit));

	return r < 0 ? r : (int)ret_hit->nvme;
}

int replay_prefetch(struct replay_run *run, uint32_t index, uint32_t budget)
{
	const struct replay_request *wanted = &run->job->trace.requests[index];
	uint32_t n = wanted->blocks < run->max_blocks ? wanted->blocks : run->max_blocks;
	const struct kvr_request request = { .id = index + 1ull };
	struct replay_ahead_one *one;
	struct kvr_hit hit = { 0 };
	int r, asked;

	replay_keys(run->job->opts.seed, run->job->trace.ids + wanted->first, n, run->keys);
	asked = look(run, &request, n, &hit);
	if (asked > 0)
		asked = REPLAY_RETRY(kvr_connector_prefetch(run->c, &request, run->keys, n, budget,
							    replay_deadline()));
	if (asked == -EAGAIN) /* the table is full, for all */
		asked = 0;
	if (asked > 0)
		replay_book_begun(&run->book, &request, KVR_KIND_PREFETCH);
	r = kvr_connector_release(run->c, &request);
	if (run->rank != REPLAY_LEADER)
		return asked < 0 && asked != -ECANCELED && asked != -ENOENT ? asked : r;
	if (asked < 0 || r < 0)
		return asked < 0 ? asked : r;
	one = &run->ahead.one[index % (run->ahead.window + 1)];
	*one = (struct replay_ahead_one){ .index = index,
					  .asked = (uint32_t)asked,
					  .stored = hit.blocks,
					  .rest = hit.nvme - (uint32_t)asked };
	run->ahead.out += (uint32_t)asked;
	return 0;
}

/* NULL: nothing was begun for that request. */
static struct replay_ahead_one *find(struct replay_run *run, uint64_t index)
{
	struct replay_ahead_one *one = &run->ahead.one[index % (run->ahead.window + 1)];

	return one->asked && one->index == index ? one : NULL;
}

/* If it still runs. */
static int cancel(struct replay_run *run, const struct replay_ahead_one *one)
{
	const struct kvr_request request = { .id = one->index + 1ull };
	uint32_t done;

	if (!one->asked || kvr_connector_prefetch_status(run->c, &request, &done))
		return 0;
	return kvr_connector_prefetch_cancel(run->c, &request);
}

int replay_ahead(struct replay_run *run, uint32_t index)
{
	struct replay_ahead_one *one = find(run, index);
	struct replay_ahead *a = &run->ahead;
	uint32_t left;
	int r = 0;

	if (one) {
		a->out -= one->asked;
		r = cancel(run, one);
	}
	if (a->next <= index)
		a->next = index + 1;
	for (; !r && a->next < run->end && a->next - index <= a->window && a->out < a->budget;
	     a->next++) {
		left = a->budget - a->out;
		r = replay_order(run, REPLAY_CMD_PREFETCH, (uint64_t)left << 32 | a->next);
		if (!r)
			r = replay_prefetch(run, a->next, left);
	}
	return r;
}

void replay_ahead_hit(struct replay_run *run, uint32_t index, const struct kvr_hit *hit)
{
	struct replay_ahead_one *one = find(run, index);

	if (!one)
		return;
	one->not_host = hit->nvme;
	if (hit->blocks < one->stored)
		one->not_host += one->stored - hit->blocks;
}

void replay_ahead_completed(struct replay_run *run, const struct kvr_completion *c)
{
	struct replay_ahead_one *one = find(run, c->request.id - 1);

	if (!one || c->kind != KVR_KIND_PREFETCH || c->stage < KVR_STAGE_END)
		return;
	one->arrived = c->blocks < one->asked ? c->blocks : one->asked;
}

/*
 * Every block of the prefix that was neither left on NVMe nor cancelled was in host memory once.
 * What of that is not when the request comes was evicted, and may have been prefetched.
 */
static void account(struct replay_run *run, struct replay_ahead_one *one)
{
	uint32_t left = one->rest + one->asked - one->arrived;
	uint32_t evicted = one->not_host > left ? one->not_host - left : 0;
	struct replay_counts *c = &run->job->area->counts;

	if (evicted > one->arrived || one->useless)
		evicted = one->arrived;
	c->prefetches += one->asked > 0;
	c->prefetched += one->arrived;
	c->prefetch_used += one->arrived - evicted;
	c->prefetch_wasted += evicted;
	c->prefetch_cancelled += one->asked - one->arrived;
	*one = (struct replay_ahead_one){ 0 };
}

void replay_ahead_over(struct replay_run *run, uint32_t index)
{
	struct replay_ahead_one *one = find(run, index);

	if (!one)
		return;
	one->useless |= run->plan.abort != REPLAY_NEVER;
	account(run, one);
}

void replay_ahead_void(struct replay_run *run)
{
	uint32_t i;

	for (i = 0; i <= run->ahead.window; i++)
		run->ahead.one[i].useless = 1;
}

int replay_ahead_stop(struct replay_run *run)
{
	uint32_t i;
	int r = 0;

	replay_ahead_void(run);
	for (i = 0; !r && i <= run->ahead.window; i++)
		r = cancel(run, &run->ahead.one[i]);
	return r;
}

int replay_ahead_open(struct replay_run *run)
{
	const struct replay_opts *o = &run->job->opts;
	uint32_t quarter = kvr_connector_pool_slots(run->c) / 4;
	struct replay_ahead *a = &run->ahead;

	*a = (struct replay_ahead){ .window = o->prefetch, .budget = o->prefetch_budget };
	if (!a->budget)
		a->budget = quarter ? quarter : 1;
	a->one = calloc(a->window + 1ull, sizeof(*a->one));
	return a->one ? 0 : -ENOMEM;
}

void replay_ahead_close(struct replay_run *run)
{
	uint32_t i;

	for (i = 0; run->ahead.one && i <= run->ahead.window; i++)
		account(run, &run->ahead.one[i]);
	free(run->ahead.one);
}
