/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is stored of a request comes back here, whole or by layers, and every byte that this rank
 * reads is compared with what it must be: before the slots are given back, so that a slot that is
 * used again too early would show, also when the request is aborted meanwhile.
 */
#include <errno.h>
#include <stdio.h>

#include "replay.h"

/* The bytes [from, from + bytes) of each block. */
static void compare(struct replay_run *run, const struct kvr_key *keys, uint32_t blocks,
		    uint64_t from, uint64_t bytes)
{
	uint64_t at, end, wrong, first = 0;
	const struct kvr_block *b;
	uint32_t i, s;

	for (i = 0; i < blocks && run->rank != REPLAY_LEADER; i++) {
		b = &run->blocks[i];
		for (s = 0; s < run->reads && run->read[s].offset < from + bytes; s++) {
			at = run->read[s].offset > from ? run->read[s].offset : from;
			end = run->read[s].offset + run->read[s].bytes;
			end = end < from + bytes ? end : from + bytes;
			if (at >= end)
				continue;
			wrong = replay_compare(&keys[b->index], at, end - at, b->payload + at,
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
}

/* The number of blocks that are being loaded; 0: none, and there is no operation. */
static int begin(struct replay_run *run, uint32_t n)
{
	int layers = run->job->opts.layers, r;

	if (layers)
		r = REPLAY_RETRY(kvr_connector_load_begin_layers(run->c, &run->request, n,
								 replay_deadline()));
	else
		r = REPLAY_RETRY(
			kvr_connector_load_begin(run->c, &run->request, n, replay_deadline()));
	/* No room for a single block: what was hit is stored anew, which only costs time. */
	if (r == -EAGAIN)
		return 0;
	if (r < 0 && !layers)
		return replay_not_begun(run, KVR_KIND_LOAD, r);
	/* By layers a rank hears here already how it ended. */
	if (r)
		replay_book_begun(&run->book, &run->request, KVR_KIND_LOAD);
	return r;
}

static int load_wait(struct replay_run *run, const struct kvr_key *keys)
{
	return REPLAY_RETRY(kvr_connector_load_wait(run->c, &run->request, keys, replay_deadline(),
						    run->blocks, run->max_blocks));
}

/* Layer group by layer group; the leader copies nothing. 0, or -errno. */
static int wait_layers(struct replay_run *run, const struct kvr_key *keys, uint64_t began)
{
	uint64_t bytes = run->job->opts.shape.layer_bytes;
	uint32_t g, groups = run->job->opts.layer_groups;
	int n;

	for (g = 0; g < groups && run->rank != REPLAY_LEADER; g++) {
		n = REPLAY_RETRY(kvr_connector_load_wait_layer(run->c, &run->request, keys, g,
							       replay_deadline(), run->blocks,
							       run->max_blocks));
		if (n < 0)
			return n;
		if (!g)
			replay_latency(run, REPLAY_LAYER, began);
		compare(run, keys, (uint32_t)n, g * bytes, bytes);
		if (g >= run->plan.layer && replay_due(run, REPLAY_LAYERS))
			return -ECANCELED;
	}
	return 0;
}

/* The number of good blocks, compared; or -errno. */
static int finish(struct replay_run *run, const struct kvr_key *keys, uint64_t began)
{
	int layers = run->job->opts.layers, good = 0;

	if (replay_due(run, REPLAY_LOADING))
		return -ECANCELED;
	if (layers)
		good = wait_layers(run, keys, began);
	if (!good)
		good = load_wait(run, keys);
	if (!layers && good > 0)
		compare(run, keys, (uint32_t)good, 0, run->job->opts.block_bytes);
	return good;
}

/*
 * By layers one bad block makes all of them count for nothing, on all ranks. It is a miss from then
 * on, so the next lookup ends before it.
 */
static int failed(struct replay_run *run, int err)
{
	if (!run->job->opts.layers || run->plan.abort || (replay_fatal(err) && err != -EBADMSG))
		return err;
	return kvr_connector_abort(run->c, &run->request) < 0 ? err : 0;
}

/* Loads what was looked up. The number of good blocks. */
static int load(struct replay_run *run, const struct kvr_key *keys, uint32_t n)
{
	uint64_t began = replay_now();
	int r, good = begin(run, n);

	if (good > 0)
		good = finish(run, keys, began);
	else if (!good)
		return 0;
	if (good < 0)
		return failed(run, good);
	run->proc->load_ns += replay_now() - began;
	run->proc->load_bytes += (uint64_t)good * run->job->opts.block_bytes;
	replay_latency(run, REPLAY_LOAD, began);
	if (replay_due(run, REPLAY_LOADED))
		return -ECANCELED;
	run->now.loaded += (uint64_t)good;
	r = REPLAY_RETRY(kvr_connector_load_done(run->c, &run->request));
	return r < 0 ? r : good;
}

static int lookup(struct replay_run *run, const struct kvr_key *keys, uint32_t n,
		  struct kvr_hit *ret_hit)
{
	uint64_t began = replay_now();
	int r = REPLAY_RETRY(
		kvr_connector_lookup(run->c, &run->request, keys, n, replay_deadline(), ret_hit));

	replay_latency(run, REPLAY_LOOKUP, began);
	return r;
}

/* One part: 1, or 0 when nothing more hits; *ret_good blocks are done with. */
static int load_part(struct replay_run *run, const struct kvr_key *keys, uint32_t n,
		     uint32_t longest, struct kvr_hit *ret_hit, uint32_t *ret_good)
{
	uint32_t host;
	int good = 0, r = lookup(run, keys, n, ret_hit);

	if (r < 0)
		return r;
	if (replay_due(run, REPLAY_HIT))
		return -ECANCELED;
	if (ret_hit->blocks && ret_hit->blocks <= longest)
		good = load(run, keys, ret_hit->blocks);
	if (good < 0)
		return good;
	r = kvr_connector_release(run->c, &run->request);
	if (r < 0)
		return r;
	host = ret_hit->host < (uint32_t)good ? ret_hit->host : (uint32_t)good;
	run->now.hits_host += host;
	run->now.hits_nvme += (uint32_t)good - host;
	if (replay_due(run, REPLAY_GIVEN_BACK))
		return -ECANCELED;
	*ret_good = (uint32_t)good;
	return ret_hit->blocks && ret_hit->blocks <= longest;
}

/* After a load of nothing (no room, or a bad block) a hit must be shorter to be worth another. */
int replay_load_prefix(struct replay_run *run, uint32_t index, uint32_t n, uint32_t *ret_pos)
{
	uint32_t pos = 0, good = 0, longest = UINT32_MAX;
	struct kvr_hit hit = { 0 };
	int r = 1, first = 1;

	for (; pos < n && r; pos += good, first = 0) {
		r = replay_attempt(run, index);
		if (!r)
			r = load_part(run, run->keys + pos, n - pos, longest, &hit, &good);
		if (r < 0)
			return r;
		if (first && run->rank == REPLAY_LEADER)
			replay_ahead_hit(run, index, &hit);
		longest = good ? UINT32_MAX : hit.blocks - 1;
	}
	*ret_pos = pos;
	return 0;
}
