/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is not stored of a request is filled and stored in parts. A part is begun when the part
 * before is in host memory, so that what a later request hits does not depend on timing.
 */
#include <errno.h>

#include "replay.h"

static void fill(struct replay_run *run, const struct kvr_key *keys, uint32_t from, uint32_t to)
{
	const struct kvr_block *b;
	uint32_t i, s;

	for (i = from; i < to && run->rank != REPLAY_LEADER; i++) {
		b = &run->blocks[i];
		for (s = 0; s < run->writes; s++)
			replay_fill(&keys[b->index], run->write[s].offset, run->write[s].bytes,
				    b->payload + run->write[s].offset);
	}
}

static int copy(struct replay_run *run, const struct kvr_key *keys, uint32_t blocks)
{
	int r;

	fill(run, keys, 0, blocks / 2);
	if (replay_due(run, REPLAY_COPYING))
		return -ECANCELED;
	fill(run, keys, blocks / 2, blocks);
	run->now.copied += blocks;
	r = REPLAY_RETRY(kvr_connector_store_copied(run->c, &run->request, 0));
	if (!r && replay_due(run, REPLAY_COPIED))
		return -ECANCELED;
	return r;
}

/* Stores a part of keys[0..n); *ret_covered of them are done with. */
static int store(struct replay_run *run, const struct kvr_key *keys, uint32_t n,
		 uint32_t *ret_covered)
{
	uint64_t began = replay_now();
	int r, blocks;

	blocks = REPLAY_RETRY(kvr_connector_store_begin(run->c, &run->request, keys, n,
							replay_deadline(), run->blocks,
							run->max_blocks, ret_covered));
	if (blocks < 0)
		return replay_not_begun(run, KVR_KIND_STORE, blocks);
	replay_book_begun(&run->book, &run->request, KVR_KIND_STORE);
	if (!blocks)
		return 0;
	r = copy(run, keys, (uint32_t)blocks);
	if (r < 0)
		return r;
	r = REPLAY_RETRY(
		kvr_connector_wait_store(run->c, &run->request, KVR_STAGE_HOST, replay_deadline()));
	if (replay_due(run, REPLAY_STORED))
		return -ECANCELED;
	if (r < 0)
		return replay_fatal(r) ? r : 0;
	run->proc->store_ns += replay_now() - began;
	run->proc->store_bytes += (uint64_t)blocks * run->job->opts.block_bytes;
	replay_latency(run, REPLAY_STORE, began);
	return 0;
}

int replay_store_rest(struct replay_run *run, uint32_t index, uint32_t pos, uint32_t n)
{
	uint32_t covered, part;
	int r;

	if (replay_due(run, REPLAY_MISSES))
		return -ECANCELED;
	for (; pos < n; pos += covered) {
		r = replay_attempt(run, index);
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
