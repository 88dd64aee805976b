/* SPDX-License-Identifier: Apache-2.0 */
/* The leader's part of the connector: asks the engine, publishes what it decided, counts ticks. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "atomic.h"
#include "channel_priv.h"
#include "connector_priv.h"
#include "err.h"
#include "point.h"
#include "util.h"

int kvr_lead_lookup(struct kvr_connector *c, const struct kvr_request *req,
		    const struct kvr_key *keys, uint32_t n, uint64_t deadline_ns,
		    struct kvr_hit *ret_hit)
{
	struct kvr_hit hit = { 0 };
	int status = kvr_engine_lookup(c->engine, req, keys, n, &hit);
	struct kvr_wire_lookup w = { hit.blocks, hit.host, hit.nvme, status,
				     kvr_keys_sum(req->space, keys, n) };
	int err = kvr_channels_publish(c->channels, KVR_CH_LOOKUP, 0, KVR_TAG_LOOKUP_RESULT, req,
				       &w, sizeof w, deadline_ns);

	if (err) {
		kvr_engine_release(c->engine, req);
		return err;
	}
	c->answered = 1;
	kvr_engine_looked(c->engine, req, c->channels->published[KVR_CH_LOOKUP]);
	if (!status)
		*ret_hit = hit;
	return status;
}

const struct kvr_begin_place kvr_begins[KVR_OP_KINDS] = {
	[KVR_KIND_LOOKUP] = { KVR_CH_LOOKUP, KVR_TAG_LOOKUP_RESULT },
	[KVR_OP_STORE] = { KVR_CH_STORE, KVR_TAG_STORE_BEGIN },
	[KVR_OP_LOAD] = { KVR_CH_LOAD, KVR_TAG_LOAD_BEGIN },
	[KVR_OP_PREFETCH] = { KVR_CH_PREFETCH, KVR_TAG_PREFETCH },
	[KVR_OP_DECISION] = { KVR_CH_CONTROL, KVR_TAG_PROPOSE },
	[KVR_OP_RESET] = { KVR_CH_CONTROL, KVR_TAG_RESET },
};

int kvr_lead_refuse(struct kvr_connector *c, enum kvr_kind kind, const struct kvr_request *req,
		    int status, uint64_t deadline_ns)
{
	struct kvr_engine_answer a = { .status = status,
				       .lookup = c->channels->published[KVR_CH_LOOKUP] };
	struct kvr_wire_lookup w = { .status = status };
	const void *data = kind == KVR_KIND_LOOKUP ? (const void *)&w : &a;
	int err;

	err = kvr_channels_publish(c->channels, kvr_begins[kind].channel, 0, kvr_begins[kind].tag,
				   req, data, kind == KVR_KIND_LOOKUP ? sizeof w : sizeof a,
				   deadline_ns);
	c->answered = !err;
	return err;
}

/*
 * Publishes the answer of a begin, with what belongs to it, and starts the operation; one that no
 * rank will learn of is dropped. A refusal after the deadline still has to reach the ranks, which
 * wait for it.
 */
static int publish_begin(struct kvr_connector *c, enum kvr_op_kind kind,
			 const struct kvr_request *req, const struct kvr_engine_answer *a,
			 const void *more, size_t more_len, uint64_t deadline_ns)
{
	size_t len = sizeof *a + (a->status ? 0 : more_len);
	struct kvr_engine_answer sent = *a;
	char text[512] = "";
	int err;

	/* Also of what has no operation a rank must know to which lookup it belongs. */
	if (!sent.lookup)
		sent.lookup = c->channels->published[KVR_CH_LOOKUP];

	if (a->status)
		strncpy(text, kvr_explain(), sizeof text - 1);
	memcpy(c->message, &sent, sizeof sent);
	if (!a->status && more_len)
		memcpy(c->message + sizeof *a, more, more_len);
	err = kvr_channels_publish(c->channels, kvr_begins[kind].channel, 0, kvr_begins[kind].tag,
				   req, c->message, (uint32_t)len,
				   a->status ? kvr_deadline(1000) : deadline_ns);
	c->answered = !err;
	if (a->status)
		return err ? err : KVR_FAIL(a->status, "%s", text);
	if (a->gen && err)
		kvr_engine_cancel(c->engine, a);
	else if (a->gen)
		kvr_engine_begun(c->engine, a);
	return err;
}

int kvr_lead_store_begin(struct kvr_connector *c, const struct kvr_request *req,
			 const struct kvr_key *keys, uint32_t n, uint64_t deadline_ns,
			 struct kvr_block *ret_blocks, uint32_t *ret_covered)
{
	struct kvr_pool *pool = kvr_engine_pool(c->engine);
	struct kvr_engine_answer a;
	int err = kvr_engine_store_begin(c->engine, req, keys, n, deadline_ns, &a, c->blocks);

	if (!err)
		err = publish_begin(c, KVR_OP_STORE, req, &a, c->blocks,
				    a.count * sizeof *c->blocks, deadline_ns);
	if (err)
		return err;
	for (uint32_t i = 0; i < a.count; i++)
		ret_blocks[i] = (struct kvr_block){
			.index = c->blocks[i].index,
			.slot = c->blocks[i].slot,
			.payload = kvr_pool_image(pool, c->blocks[i].slot) + c->geo.header_bytes,
		};
	*ret_covered = a.covered;
	return (int)a.count;
}

int kvr_lead_load_wait(struct kvr_connector *c, const struct kvr_request *req, uint64_t deadline_ns,
		       struct kvr_block *ret_blocks, uint32_t max)
{
	struct kvr_pool *pool = kvr_engine_pool(c->engine);
	int n, good = kvr_engine_wait_op(c->engine, req, KVR_OP_LOAD, KVR_STAGE_VERIFIED,
					 deadline_ns);

	if (good < 0)
		return good;
	if ((uint32_t)good > max)
		return KVR_FAIL(-EMSGSIZE, "load_wait: %d good blocks, room for %u", good, max);
	memset(ret_blocks, 0, (size_t)good * sizeof *ret_blocks);
	/* The ranks may be done already, and the slots used again: then only the number remains. */
	n = kvr_engine_op_blocks(c->engine, req, c->blocks, c->config.max_blocks);
	for (int i = 0; i < n && i < good; i++)
		ret_blocks[i] = (struct kvr_block){
			.index = c->blocks[i].index,
			.slot = c->blocks[i].slot,
			.payload = kvr_pool_image(pool, c->blocks[i].slot) + c->geo.header_bytes,
		};
	return good;
}

static int publish_completions(struct kvr_connector *c, uint64_t tick,
			       const struct kvr_completion *done, uint32_t n, uint64_t deadline_ns)
{
	struct kvr_wire_complete w = { tick, n, 0 };
	size_t len = sizeof w + n * sizeof(struct kvr_wire_record);

	memcpy(c->message, &w, sizeof w);
	for (uint32_t i = 0; i < n; i++) {
		struct kvr_wire_record r = { .id = done[i].request.id,
					     .space = done[i].request.space,
					     .attempt = done[i].request.attempt,
					     .kind = (uint8_t)done[i].kind,
					     .stage = (uint8_t)done[i].stage,
					     .reached = (uint8_t)c->names[i].reached,
					     .status = done[i].status,
					     .blocks = done[i].blocks,
					     .entry = c->names[i].entry,
					     .gen = c->names[i].gen };

		memcpy(c->message + sizeof w + i * sizeof r, &r, sizeof r);
	}
	return kvr_channels_publish(c->channels, KVR_CH_COMPLETE, 0, KVR_TAG_STORE_COMPLETE, NULL,
				    c->message, (uint32_t)len, deadline_ns);
}

/*
 * A tick that is interrupted between two of its messages stays open: the call that goes on with it
 * returns its records again, but does not publish them again.
 */
static int tick_records(struct kvr_connector *c, uint64_t t, uint64_t deadline_ns,
			struct kvr_completion *ret, uint32_t max, uint32_t *ret_total)
{
	uint32_t total = 0;

	while (total < max) {
		uint32_t room = (uint32_t)kvr_min(max - total, c->chunk), n;
		int err = 0;

		if (total < c->open_told)
			room = (uint32_t)kvr_min(room, c->open_told - total);
		n = kvr_engine_records(c->engine, total, ret + total, c->names, room);
		if (!n)
			break;
		for (uint32_t i = 0; i < n; i++)
			ret[total + i].tick = t;
		if (total >= c->open_told)
			err = publish_completions(c, t, ret + total, n, deadline_ns);
		if (err)
			return err;
		total += n;
		if (total > c->open_told)
			c->open_told = total;
	}
	if (total < c->open_told)
		return KVR_FAIL(-EMSGSIZE,
				"check_completed: tick %llu was begun with %u completions, room "
				"for %u",
				(unsigned long long)t, c->open_told, max);
	*ret_total = total;
	return 0;
}

static int lead_tick(struct kvr_connector *c, enum kvr_tick_mode mode, uint64_t tick,
		     uint64_t deadline_ns, struct kvr_completion *ret, uint32_t max,
		     uint64_t *ret_tick)
{
	uint64_t t = mode == KVR_TICK ? tick : c->open_tick ? c->open_tick : c->tick + 1;
	uint32_t total;
	int err;

	if (t == UINT64_MAX)
		return KVR_FAIL(-EINVAL, "check_completed: no tick may follow tick %llu",
				(unsigned long long)t);
	if (t <= c->tick || (c->open_tick && t != c->open_tick))
		return KVR_FAIL(-EINVAL, "check_completed: tick %llu; the last one was %llu%s",
				(unsigned long long)t, (unsigned long long)c->tick,
				c->open_tick ? ", and the next was begun under another number"
					     : "");
	c->open_tick = t;
	err = tick_records(c, t, deadline_ns, ret, max, &total);
	if (err)
		return err;
	KVR_POINT(tick_published, 0);
	err = kvr_engine_tick(c->engine, t, total, deadline_ns);
	if (err)
		return err;
	KVR_POINT(tick_done, 0);
	for (uint32_t r = 0; r < kvr_group_ranks(c->group); r++)
		kvr_group_ring_rank(c->group, r);
	c->tick = t;
	c->open_tick = 0;
	c->open_told = 0;
	if (ret_tick)
		*ret_tick = t;
	return (int)total;
}

/*
 * The epoch is over: nothing is published any more, and no tick will be done. The caller is told
 * what the engine ended since the last one, and that the rest was lost. No rank was told of those
 * ends: they bear the tick that would have been next.
 */
static int tell_the_end(struct kvr_connector *c, int cause, struct kvr_completion *ret,
			uint32_t max, uint64_t *ret_tick)
{
	uint64_t next = c->open_tick ? c->open_tick : c->tick + 1;
	struct kvr_completion one;
	uint32_t n, lost = 0;

	kvr_engine_lose(c->engine, cause);
	if (!max && kvr_engine_records(c->engine, 0, &one, NULL, 1))
		return KVR_FAIL(-EMSGSIZE,
				"check_completed: operations ended with the epoch, and there is "
				"room for none");
	n = kvr_engine_records(c->engine, 0, ret, NULL, max);
	if (!n)
		return kvr_group_check(c->group);
	for (uint32_t i = 0; i < n; i++) {
		ret[i].tick = ret[i].stage == KVR_STAGE_LOST ? c->tick : next;
		lost += ret[i].stage == KVR_STAGE_LOST;
	}
	kvr_engine_told(c->engine, n);
	if (lost)
		kvr_connector_explain_lost(c, lost);
	if (ret_tick)
		*ret_tick = c->tick;
	return (int)n;
}

int kvr_lead_check_completed(struct kvr_connector *c, enum kvr_tick_mode mode, uint64_t tick,
			     uint64_t deadline_ns, struct kvr_completion *ret, uint32_t max,
			     uint64_t *ret_tick)
{
	int cause = kvr_group_check(c->group), n;

	if (cause)
		return tell_the_end(c, cause, ret, max, ret_tick);
	n = lead_tick(c, mode, tick, deadline_ns, ret, max, ret_tick);
	cause = n < 0 ? kvr_group_check(c->group) : 0;
	return cause ? tell_the_end(c, cause, ret, max, ret_tick) : n;
}

/* All but those of this very process, which leave after the leader's call returns. */
static int ranks_left(void *arg)
{
	struct kvr_connector *c = arg;
	const struct kvr_proc *own = c->group->proc;

	for (uint32_t r = 0; r < kvr_group_ranks(c->group); r++) {
		const struct kvr_proc *p = &kvr_group_rank_page(c->group, r)->proc;

		if (kvr_load_acquire32(&p->state) == KVR_PROC_ACTIVE && /* G2, pairs with G1 */
		    !(kvr_load_relaxed32(&p->pid) == own->pid &&
		      kvr_load_relaxed(&p->start_time) == own->start_time))
			return 0;
	}
	return 1;
}

/* What ended while draining is told at a last tick, so that it comes before the announcement. */
static int last_tick(struct kvr_connector *c, uint64_t deadline_ns)
{
	uint32_t room = c->open_told > c->chunk ? c->open_told : c->chunk;
	struct kvr_completion *done = calloc(room, sizeof *done);
	int n = done ? 0 : KVR_FAIL(-ENOMEM, "shutdown: no memory");

	if (done)
		do
			n = lead_tick(c, KVR_NEXT, 0, deadline_ns, done, room, NULL);
		while (n == (int)room);
	free(done);
	return n < 0 ? n : 0;
}

int kvr_lead_shutdown(struct kvr_connector *c, uint64_t deadline_ns)
{
	struct kvr_leader_page *page;
	uint64_t told[KVR_CHANNELS];
	int err = kvr_engine_drain(c->engine, deadline_ns);

	if (!err)
		err = last_tick(c, deadline_ns);
	for (uint32_t i = 0; i < KVR_CHANNELS; i++)
		told[i] = kvr_load_relaxed(&c->group->leader->watermark[i]);
	if (!err)
		err = kvr_channels_publish(c->channels, KVR_CH_CONTROL, 0, KVR_TAG_SHUTDOWN, NULL,
					   told, sizeof told, deadline_ns);
	page = kvr_group_leader_page(c->group);
	if (!err)
		kvr_store_release(&page->ending, c->tick + 1); /* Y1, pairs with Y2 */
	for (uint32_t r = 0; !err && r < kvr_group_ranks(c->group); r++)
		kvr_group_ring_rank(c->group, r);
	if (!err)
		err = kvr_group_wait(c->group, ranks_left, c, deadline_ns, "all ranks to leave");
	return err > 0 ? 0 : err;
}

int kvr_lead_load_begin(struct kvr_connector *c, const struct kvr_request *req, uint32_t n,
			int layered, uint64_t deadline_ns)
{
	struct kvr_engine_answer a;
	int err = kvr_engine_load_begin(c->engine, req, n, layered, deadline_ns, &a, c->blocks);

	if (!err)
		err = publish_begin(c, KVR_OP_LOAD, req, &a, c->blocks, a.count * sizeof *c->blocks,
				    deadline_ns);
	return err ? err : (int)a.count;
}

int kvr_lead_prefetch(struct kvr_connector *c, const struct kvr_request *req,
		      const struct kvr_key *keys, uint32_t n, uint32_t budget, uint64_t deadline_ns)
{
	struct kvr_engine_answer a;
	int err = kvr_engine_prefetch(c->engine, req, keys, n, budget, &a);

	if (!err)
		err = publish_begin(c, KVR_OP_PREFETCH, req, &a, NULL, 0, deadline_ns);
	return err ? err : (int)a.count;
}

int kvr_lead_propose(struct kvr_connector *c, const struct kvr_request *req, const void *manifest,
		     uint32_t len, uint64_t deadline_ns)
{
	struct kvr_engine_answer a;
	int err;

	if (len > c->max_payload - sizeof a)
		return KVR_FAIL(-EMSGSIZE,
				"propose: a manifest of %u bytes; a message carries %zu at most "
				"(ring_bytes, bulk_bytes)",
				len, c->max_payload - sizeof a);
	err = kvr_engine_propose(c->engine, req, KVR_OP_DECISION, NULL, deadline_ns, &a);
	return err ? err : publish_begin(c, KVR_OP_DECISION, req, &a, manifest, len, deadline_ns);
}

int kvr_lead_reset(struct kvr_connector *c, const struct kvr_request *req,
		   const struct kvr_model *model, uint64_t deadline_ns)
{
	struct kvr_engine_answer a;
	uint64_t told[KVR_CHANNELS];
	int err = kvr_engine_propose(c->engine, req, KVR_OP_RESET, model, deadline_ns, &a);

	for (uint32_t i = 0; i < KVR_CHANNELS; i++)
		told[i] = kvr_load_relaxed(&c->group->leader->watermark[i]);
	return err ? err : publish_begin(c, KVR_OP_RESET, req, &a, told, sizeof told, deadline_ns);
}
