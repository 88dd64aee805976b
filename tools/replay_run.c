/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one process does for one request, the same calls in the leader and in every rank:
 *
 *   until nothing more hits:  lookup, load, compare every byte (ranks), give back
 *   until all is stored:      store a part, fill it (ranks), wait until it is in host memory
 *   at some point, if so:     abort
 *   once:                     take the completions of the request's tick
 */
#include <errno.h>
#include <stdlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kvring/err.h"
#include "replay.h"

uint64_t replay_deadline(void)
{
	return kvr_deadline(REPLAY_DEADLINE_MS);
}

void replay_latency(const struct replay_run *run, uint32_t which, uint64_t began)
{
	uint32_t teller = which == REPLAY_LAYER ? 0 : REPLAY_LEADER;

	if (run->rank == teller)
		replay_latency_add(&run->job->area->latency[which], replay_now() - began);
}

int replay_fatal(int err)
{
	return err == -EOWNERDEAD || err == -ESTALE || err == -ESHUTDOWN || err == -ETIMEDOUT ||
	       err == -EINTR || err == -EPROTO || err == -EINVAL || err == -ENOENT ||
	       err == -EBADMSG;
}

int replay_attempt(struct replay_run *run, uint32_t index)
{
	int r = replay_book_attempt(&run->book, index, &run->request);

	if (r)
		run->own = "no memory for the list of operations";
	return r;
}

/* --- aborts ----------------------------------------------------------------------------------- */

/*
 * A rank that lags is still at its copies, or waits, while others have ended the request. It must
 * not come to a begin, which the leader does not make any more.
 */
static struct replay_plan plan(const struct replay_run *run, uint32_t index)
{
	static const uint8_t may_lag[REPLAY_POINTS] = { [REPLAY_LOADING] = 1,
							[REPLAY_LAYERS] = 1,
							[REPLAY_LOADED] = 1,
							[REPLAY_COPYING] = 1,
							[REPLAY_COPIED] = 1 };
	const struct replay_opts *o = &run->job->opts;
	uint64_t draw = XXH3_64bits_withSeed(&index, sizeof(index), o->seed ^ 0x61626f7274u);
	struct replay_plan p = { .abort = REPLAY_NEVER };

	if ((double)(draw >> 11) * 0x1p-53 >= o->abort)
		return p;
	draw = XXH3_64bits_withSeed(&index, sizeof(index), draw);
	p.abort = (enum replay_point)(REPLAY_HIT + draw % (REPLAY_POINTS - REPLAY_HIT));
	p.layer = (uint32_t)(draw >> 16) % o->layer_groups;
	draw = XXH3_64bits_withSeed(&run->rank, sizeof(run->rank), draw);
	p.lags = run->rank != REPLAY_LEADER && may_lag[p.abort] && draw & 1;
	return p;
}

int replay_due(const struct replay_run *run, enum replay_point point)
{
	const struct replay_plan *p = &run->plan;

	return p->abort && (point > p->abort || (point == p->abort && !p->lags));
}

int replay_not_begun(struct replay_run *run, uint32_t kind, int err)
{
	if (!run->plan.abort || (err != -ECANCELED && err != -ENOENT))
		return err;
	replay_book_begun(&run->book, &run->request, kind);
	return -ECANCELED;
}

/* --- ticks ------------------------------------------------------------------------------------ */

/* Canonical: no padding and no reserved fields in what is hashed. */
static void chain(struct replay_run *run, const struct kvr_completion *c)
{
	const uint64_t words[] = { c->request.id,
				   c->request.space,
				   c->request.attempt,
				   (uint64_t)c->kind << 32 | c->stage,
				   (uint64_t)(uint32_t)c->status << 32 | c->blocks,
				   c->tick };

	run->chain = XXH3_64bits_withSeed(words, sizeof(words), run->chain);
}

static void completed(struct replay_run *run, const struct kvr_completion *c)
{
	replay_book_completed(&run->book, c);
	if (run->rank == REPLAY_LEADER)
		replay_ahead_completed(run, c);
}

int replay_run_tick(struct replay_run *run)
{
	struct kvr_completion *grown;
	uint64_t tick = run->tick + 1, reached = tick;
	int i, n;

	for (;;) {
		n = REPLAY_RETRY(kvr_connector_check_completed(run->c, KVR_TICK, tick,
							       replay_deadline(), run->completions,
							       run->room, &reached));
		/* The epoch is over: this tells what was lost with it, the next call why. */
		for (i = 0; reached < tick && i < n; i++)
			completed(run, &run->completions[i]);
		if (reached < tick && n >= 0)
			continue;
		if (n != -EMSGSIZE)
			break;
		grown = reallocarray(run->completions, 2ull * run->room, sizeof(*grown));
		if (!grown || run->room > UINT32_MAX / 4) {
			run->own = "no memory for the completions of a tick";
			return -ENOMEM;
		}
		run->completions = grown;
		run->room *= 2;
	}
	if (n < 0)
		return n;
	for (i = 0; i < n; i++) {
		chain(run, &run->completions[i]);
		completed(run, &run->completions[i]);
	}
	run->chain = XXH3_64bits_withSeed(&tick, sizeof(tick), run->chain);
	run->tick = tick;
	run->tick_hash[tick] = run->chain;
	run->proc->ticks++;
	return 0;
}

int replay_run_settle(struct replay_run *run)
{
	struct kvr_request request;

	if (!replay_book_oldest_store(&run->book, &request))
		return 0;
	/* Whatever comes out: the tick that follows says how it ended. */
	REPLAY_RETRY(
		kvr_connector_wait_store(run->c, &request, KVR_STAGE_WRITTEN, replay_deadline()));
	return 1;
}

/* --- requests --------------------------------------------------------------------------------- */

int replay_run_reset(struct replay_run *run, uint32_t index)
{
	const struct kvr_request request = { .id = index + 1ull };
	int r = REPLAY_RETRY(kvr_connector_reset(run->c, &request, NULL, replay_deadline()));

	if (r < 0)
		return r;
	replay_book_begun(&run->book, &request, KVR_KIND_RESET);
	r = REPLAY_RETRY(kvr_connector_reset_wait(run->c, &request, replay_deadline()));
	if (r < 0)
		return r;
	run->proc->resets++;
	if (run->rank == REPLAY_LEADER) {
		replay_ahead_void(run);
		replay_oracle_reset(&run->oracle);
	}
	return 0;
}

static void keys_of(struct replay_run *run, uint32_t index)
{
	const struct replay_request *request = &run->job->trace.requests[index];

	replay_keys(run->job->opts.seed, run->job->trace.ids + request->first, request->blocks,
		    run->keys);
}

/* The hits that are possible, or -ENOMEM; in a rank 0. */
static int possible(struct replay_run *run, uint32_t index)
{
	int r = 0;

	if (run->rank == REPLAY_LEADER)
		r = replay_oracle_request(&run->oracle, run->keys,
					  run->job->trace.requests[index].blocks);
	if (r < 0)
		run->own = "no memory for the keys of all requests";
	return r;
}

/* A hit is stale if its block was not stored since the weights changed, or never. */
static void count_hits(struct replay_run *run, uint32_t could)
{
	struct replay_area *area = run->job->area;
	uint64_t hits = run->now.hits_host + run->now.hits_nvme;

	area->counts.possible += could;
	if (area->began_empty && hits > could)
		area->counts.stale += hits - could;
}

static void add_blocks(struct replay_blocks *sum, const struct replay_blocks *more)
{
	sum->copied += more->copied;
	sum->loaded += more->loaded;
	sum->hits_host += more->hits_host;
	sum->hits_nvme += more->hits_nvme;
}

/*
 * The request is over. One that was to be aborted is, at the latest now, also when it never came to
 * its point; whatever else went wrong for it may be because others were faster.
 */
static int settle_request(struct replay_run *run, uint32_t index, int result, uint32_t could)
{
	struct replay_proc *proc = run->proc;
	int r;

	if (run->plan.abort && (!result || result == -ECANCELED || result == -ENOENT)) {
		r = kvr_connector_abort(run->c, &run->request);
		proc->aborted++;
		return r < 0 ? r : 0;
	}
	if (result)
		return result;
	add_blocks(&proc->blocks, &run->now);
	proc->references += run->job->trace.requests[index].blocks;
	if (run->rank == REPLAY_LEADER)
		count_hits(run, could);
	return 0;
}

int replay_run_request(struct replay_run *run, uint32_t index)
{
	uint32_t blocks = run->job->trace.requests[index].blocks, pos = 0;
	uint64_t began = replay_now();
	int r, could;

	run->plan = plan(run, index);
	run->now = (struct replay_blocks){ 0 };
	run->request = (struct kvr_request){ .id = index + 1ull };
	replay_book_request(&run->book, index);
	keys_of(run, index);
	could = possible(run, index);
	r = could < 0 ? could : replay_load_prefix(run, index, blocks, &pos);
	if (!r)
		r = replay_store_rest(run, index, pos, blocks);
	if (!r && !run->plan.abort)
		replay_latency(run, REPLAY_REQUEST, began);
	r = settle_request(run, index, r, (uint32_t)could);
	if (!r)
		r = replay_run_tick(run);
	if (r)
		return r;
	run->proc->requests++;
	if (run->rank == REPLAY_LEADER)
		replay_ahead_over(run, index);
	return 0;
}

/* --- memory ----------------------------------------------------------------------------------- */

static struct kvr_span *spans(struct kvr_connector *c, int write, uint32_t *ret_n)
{
	uint32_t n = kvr_connector_spans(c, write, NULL, 0);
	struct kvr_span *list = calloc(n + 1ull, sizeof(*list));

	if (list)
		*ret_n = kvr_connector_spans(c, write, list, n);
	return list;
}

/* What only the leader needs. After a restart it has not seen the requests of the first half. */
static int open_leader(struct replay_run *run)
{
	uint32_t every = run->job->opts.reset_every, i;
	int r = replay_ahead_open(run);
	struct kvr_stats stats;

	if (!run->job->area->phases && !kvr_connector_stats(run->c, &stats))
		run->job->area->began_empty = !stats.blocks_recovered;

	for (i = every ? run->first / every * every : 0; !r && i < run->first; i++) {
		keys_of(run, i);
		r = possible(run, i) < 0 ? -ENOMEM : 0;
	}
	return r;
}

int replay_run_open(struct replay_run *run)
{
	int r = replay_book_open(&run->book, run->proc, run->first, run->end);

	run->max_blocks = kvr_connector_max_blocks(run->c);
	run->room = 4096;
	run->keys = calloc(run->job->trace.longest + 1ull, sizeof(*run->keys));
	run->blocks = calloc(run->max_blocks + 1ull, sizeof(*run->blocks));
	run->completions = calloc(run->room, sizeof(*run->completions));
	if (run->rank != REPLAY_LEADER) {
		run->write = spans(run->c, 1, &run->writes);
		run->read = spans(run->c, 0, &run->reads);
	}
	if (!r && (!run->keys || !run->blocks || !run->completions ||
		   (run->rank != REPLAY_LEADER && (!run->write || !run->read))))
		r = -ENOMEM;
	if (!r && run->rank == REPLAY_LEADER)
		r = open_leader(run);
	if (r)
		run->own = "no memory for the keys and blocks of a request";
	return r;
}

void replay_run_close(struct replay_run *run)
{
	replay_ahead_close(run);
	replay_oracle_reset(&run->oracle);
	replay_book_close(&run->book);
	free(run->keys);
	free(run->blocks);
	free(run->completions);
	free(run->write);
	free(run->read);
}
