/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one process does for one request, the same calls in the leader and in every rank:
 *
 *   until nothing more hits:  lookup, load, compare every byte (ranks), give back
 *   until all is stored:      store a part, fill it (ranks), wait until it is in host memory
 *   once:                     take the completions of the request's tick
 *
 * A part is stored when the part before is in host memory, so that what a later request hits does
 * not depend on timing. Beside that this file keeps the books: which operation began, and that each
 * has exactly one end and its stages only rise.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kvring/err.h"
#include "replay.h"

enum { OP_STORE = 1, OP_LOAD = 2 }; /* as completions have it; 0: a lookup that began nothing */
#define OP_BYTE(kind, stage) ((uint8_t)((kind) << 4 | (stage)))

static uint64_t deadline(void)
{
	return kvr_deadline(REPLAY_DEADLINE_MS);
}

static void latency(const struct replay_run *run, int which, uint64_t began)
{
	if (run->rank == REPLAY_LEADER)
		replay_latency_add(&run->job->area->latency[which], replay_now() - began);
}

/* --- operations ------------------------------------------------------------------------------- */

/* Names the next lookup or operation of the request. 0, or -ENOMEM. */
static int next_attempt(struct replay_run *run, uint32_t index)
{
	size_t cap = run->opcap ? 2 * run->opcap : 4096;
	uint8_t *grown;

	if (run->nops == run->opcap) {
		grown = realloc(run->ops, cap);
		if (!grown) {
			run->own = "no memory for the list of operations";
			return -ENOMEM;
		}
		run->ops = grown;
		run->opcap = cap;
	}
	run->request.id = index + 1ull;
	run->request.attempt = (uint32_t)(run->nops - run->op_base[index - run->first]);
	run->ops[run->nops++] = 0;
	return 0;
}

static void op_begun(struct replay_run *run, int kind)
{
	run->ops[run->nops - 1] = OP_BYTE(kind, KVR_STAGE_NONE);
	run->open++;
	run->proc->ops++;
}

/* The byte of the operation that a completion is about, or NULL. */
static uint8_t *op_of(struct replay_run *run, const struct kvr_request *request)
{
	size_t at, end;
	uint64_t i;

	if (request->id <= run->first || request->id > run->end)
		return NULL;
	i = request->id - 1 - run->first;
	at = run->op_base[i];
	end = run->op_base[i + 1];
	if (end == SIZE_MAX) /* the last request that began */
		end = run->nops;
	return at < end && request->attempt < end - at ? &run->ops[at + request->attempt] : NULL;
}

static void op_completed(struct replay_run *run, const struct kvr_completion *c)
{
	uint8_t *op = op_of(run, &c->request);

	if (!op || c->stage >= KVR_STAGES || *op >> 4 != c->kind || (*op & 15u) >= c->stage ||
	    (*op & 15u) >= KVR_STAGE_END) {
		run->stray++; /* unknown, foreign, or beyond its end */
		return;
	}
	*op = OP_BYTE(c->kind, c->stage);
	if (c->stage < KVR_STAGE_END)
		return;
	run->open--;
	if (c->stage != KVR_STAGE_WRITTEN && c->stage != KVR_STAGE_DONE)
		run->proc->ops_failed++;
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

int replay_run_tick(struct replay_run *run)
{
	struct kvr_completion *grown;
	uint64_t tick = run->tick + 1, reached = tick;
	int i, n;

	for (;;) {
		n = REPLAY_RETRY(kvr_connector_check_completed(
			run->c, KVR_TICK, tick, deadline(), run->completions, run->room, &reached));
		/* The epoch is over: this tells what was lost with it, the next call why. */
		for (i = 0; reached < tick && i < n; i++)
			op_completed(run, &run->completions[i]);
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
		op_completed(run, &run->completions[i]);
	}
	run->chain = XXH3_64bits_withSeed(&tick, sizeof(tick), run->chain);
	run->tick = tick;
	run->tick_hash[tick] = run->chain;
	run->proc->ticks++;
	return 0;
}

int replay_run_settle(struct replay_run *run)
{
	struct kvr_request request = { 0 };
	size_t i, at = 0;

	for (; run->oldest < run->nops; run->oldest++)
		if (run->ops[run->oldest] >> 4 == OP_STORE &&
		    (run->ops[run->oldest] & 15u) < KVR_STAGE_END)
			break;
	if (run->oldest == run->nops)
		return 0;
	for (i = 0; i < run->end - run->first && run->op_base[i] <= run->oldest; i++)
		at = i;
	request.id = run->first + at + 1;
	request.attempt = (uint32_t)(run->oldest - run->op_base[at]);
	/* Whatever comes out: the tick that follows says how it ended. */
	REPLAY_RETRY(kvr_connector_wait_store(run->c, &request, KVR_STAGE_WRITTEN, deadline()));
	return 1;
}

/* --- bytes ------------------------------------------------------------------------------------ */

static void fill(struct replay_run *run, const struct kvr_key *keys, uint32_t blocks)
{
	const struct kvr_block *b;
	uint32_t i, s;

	for (i = 0; i < blocks && run->rank != REPLAY_LEADER; i++) {
		b = &run->blocks[i];
		for (s = 0; s < run->writes; s++)
			replay_fill(&keys[b->index], run->write[s].offset, run->write[s].bytes,
				    b->payload + run->write[s].offset);
	}
	run->proc->blocks_copied += blocks;
}

static void compare(struct replay_run *run, const struct kvr_key *keys, uint32_t blocks)
{
	uint64_t wrong, first = 0;
	const struct kvr_block *b;
	uint32_t i, s;

	for (i = 0; i < blocks && run->rank != REPLAY_LEADER; i++) {
		b = &run->blocks[i];
		for (s = 0; s < run->reads; s++) {
			wrong = replay_compare(&keys[b->index], run->read[s].offset,
					       run->read[s].bytes, b->payload + run->read[s].offset,
					       &first);
			run->proc->wrong_bytes += wrong;
			if (!wrong || run->proc->wrong[0])
				continue;
			snprintf(run->proc->wrong, sizeof(run->proc->wrong),
				 "rank %u, request %llu attempt %u, block %u of the part in slot "
				 "%u: first wrong byte at %llu",
				 run->rank, (unsigned long long)run->request.id,
				 run->request.attempt, b->index, b->slot,
				 (unsigned long long)first);
		}
	}
	run->proc->blocks_loaded += blocks;
}

/* --- a request -------------------------------------------------------------------------------- */

/* Loads what was looked up. The number of good blocks, at most *n; *n is how many were tried. */
static int load(struct replay_run *run, const struct kvr_key *keys, uint32_t *n)
{
	uint64_t began = replay_now();
	int r, good;

	r = REPLAY_RETRY(kvr_connector_load_begin(run->c, &run->request, *n, deadline()));
	/* Nothing is left of it, or no room for a single block: there is no operation, on no rank,
	 * and what was hit is stored anew, which only costs time. */
	if (r <= 0) {
		*n = 0;
		return r == -EAGAIN ? 0 : r;
	}
	*n = (uint32_t)r;
	op_begun(run, OP_LOAD);
	good = REPLAY_RETRY(kvr_connector_load_wait(run->c, &run->request, keys, deadline(),
						    run->blocks, run->max_blocks));
	if (good < 0)
		return good;
	run->proc->load_ns += replay_now() - began;
	run->proc->load_bytes += (uint64_t)good * run->job->opts.block_bytes;
	latency(run, REPLAY_LOAD, began);
	compare(run, keys, (uint32_t)good);
	r = REPLAY_RETRY(kvr_connector_load_done(run->c, &run->request));
	return r < 0 ? r : good;
}

static int load_prefix(struct replay_run *run, uint32_t index, uint32_t n, uint32_t *ret_pos)
{
	struct kvr_hit hit;
	uint32_t pos = 0, tried, host;
	uint64_t began;
	int r, good;

	for (; pos < n; pos += (uint32_t)good) {
		r = next_attempt(run, index);
		if (r)
			return r;
		began = replay_now();
		r = REPLAY_RETRY(kvr_connector_lookup(run->c, &run->request, run->keys + pos,
						      n - pos, deadline(), &hit));
		if (r < 0)
			return r;
		latency(run, REPLAY_LOOKUP, began);
		if (!hit.blocks)
			break;
		tried = hit.blocks;
		good = load(run, run->keys + pos, &tried);
		if (good < 0)
			return good;
		r = kvr_connector_release(run->c, &run->request);
		if (r < 0 && r != -ENOENT)
			return r;
		host = hit.host < (uint32_t)good ? hit.host : (uint32_t)good;
		run->proc->hits_host += host;
		run->proc->hits_nvme += (uint32_t)good - host;
		if (!good ||
		    (uint32_t)good < tried) { /* a bad block: what follows is stored anew */
			pos += (uint32_t)good;
			break;
		}
	}
	*ret_pos = pos;
	return 0;
}

/* An error that ends the run, against one that only this operation had: a cache may lose. */
static int fatal(int err)
{
	return err == -EOWNERDEAD || err == -ESTALE || err == -ESHUTDOWN || err == -ETIMEDOUT ||
	       err == -EINTR || err == -EPROTO || err == -EINVAL || err == -ENOENT ||
	       err == -EBADMSG;
}

/* Stores a part of keys[0..n); *ret_covered of them are done with. */
static int store(struct replay_run *run, const struct kvr_key *keys, uint32_t n,
		 uint32_t *ret_covered)
{
	uint64_t began = replay_now();
	int r, blocks;

	blocks = REPLAY_RETRY(kvr_connector_store_begin(run->c, &run->request, keys, n, deadline(),
							run->blocks, run->max_blocks, ret_covered));
	if (blocks < 0)
		return blocks;
	op_begun(run, OP_STORE);
	if (!blocks)
		return 0;
	fill(run, keys, (uint32_t)blocks);
	r = REPLAY_RETRY(kvr_connector_store_copied(run->c, &run->request, 0));
	if (r < 0)
		return r;
	r = REPLAY_RETRY(
		kvr_connector_wait_store(run->c, &run->request, KVR_STAGE_HOST, deadline()));
	if (r < 0)
		return fatal(r) ? r : 0;
	run->proc->store_ns += replay_now() - began;
	run->proc->store_bytes += (uint64_t)blocks * run->job->opts.block_bytes;
	latency(run, REPLAY_STORE, began);
	return 0;
}

static int store_rest(struct replay_run *run, uint32_t index, uint32_t pos, uint32_t n)
{
	uint32_t covered, part;
	int r;

	for (; pos < n; pos += covered) {
		r = next_attempt(run, index);
		if (r)
			return r;
		covered = 0;
		part = n - pos < run->max_blocks ? n - pos : run->max_blocks;
		r = store(run, run->keys + pos, part, &covered);
		if (r)
			return r;
		if (!covered || covered > part) { /* would never end */
			run->own = "store_begin covered no key, or more keys than it was given";
			return -EBADMSG;
		}
	}
	return 0;
}

int replay_run_request(struct replay_run *run, uint32_t index)
{
	const struct replay_request *request = &run->job->trace.requests[index];
	uint64_t began = replay_now();
	uint32_t pos = 0;
	int r;

	run->op_base[index - run->first] = run->nops;
	replay_keys(run->job->opts.seed, run->job->trace.ids + request->first, request->blocks,
		    run->keys);
	r = load_prefix(run, index, request->blocks, &pos);
	if (!r)
		r = store_rest(run, index, pos, request->blocks);
	if (!r)
		latency(run, REPLAY_REQUEST, began);
	if (!r)
		r = replay_run_tick(run);
	if (r)
		return r;
	run->proc->requests++;
	run->proc->references += request->blocks;
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

int replay_run_open(struct replay_run *run)
{
	size_t i, requests = run->end - run->first;

	run->max_blocks = kvr_connector_max_blocks(run->c);
	run->room = 4096;
	run->keys = calloc(run->job->trace.longest + 1ull, sizeof(*run->keys));
	run->blocks = calloc(run->max_blocks + 1ull, sizeof(*run->blocks));
	run->completions = calloc(run->room, sizeof(*run->completions));
	run->op_base = calloc(requests + 1, sizeof(*run->op_base));
	if (run->rank != REPLAY_LEADER) {
		run->write = spans(run->c, 1, &run->writes);
		run->read = spans(run->c, 0, &run->reads);
	}
	if (!run->keys || !run->blocks || !run->completions || !run->op_base ||
	    (run->rank != REPLAY_LEADER && (!run->write || !run->read))) {
		run->own = "no memory for the keys and blocks of a request";
		return -ENOMEM;
	}
	for (i = 0; i <= requests; i++)
		run->op_base[i] = SIZE_MAX; /* not begun */
	return 0;
}

void replay_run_close(struct replay_run *run)
{
	free(run->keys);
	free(run->blocks);
	free(run->completions);
	free(run->op_base);
	free(run->write);
	free(run->read);
	free(run->ops);
}
