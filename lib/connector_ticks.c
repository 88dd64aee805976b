/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's completions: taken from the ring as they come, given to the caller tick by tick. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atomic.h"
#include "channel_priv.h"
#include "connector_rank.h"
#include "err.h"
#include "util.h"

#define PENDING_MAX (1u << 20)

static int pending_grow(struct kvr_connector *c)
{
	struct kvr_rank_ops *k = &c->known;
	uint64_t n = (k->pending_mask + 1) * 2;
	struct kvr_completion *p = n > PENDING_MAX ? NULL : malloc(n * sizeof *p);

	if (!p)
		return -EAGAIN;
	for (uint64_t i = k->head; i != k->tail; i++)
		p[i & (n - 1)] = k->pending[i & k->pending_mask];
	free(k->pending);
	k->pending = p;
	k->pending_mask = n - 1;
	return 0;
}

/* This rank may be behind and take the answer to the begin later. */
static struct kvr_rank_op *known(struct kvr_connector *c, const struct kvr_request *req,
				 const struct kvr_wire_record *r)
{
	struct kvr_rank_ops *k = &c->known;
	struct kvr_rank_op *op, *same;

	if (r->entry >= c->group->layout.ops)
		return NULL;
	op = kvr_rank_op_exact(k, req, r->kind, r->entry, r->gen);
	if (op)
		return op;
	/* Of two of one name, the end of the first is told before anything of the second. So when
	 * nothing told the end of the known one, the other is older, and this one in use. */
	same = kvr_rank_op_find(k, req, r->kind);
	if (same && !kvr_rank_op_told(c, same, UINT64_MAX))
		return NULL;
	return kvr_rank_op_place(c, req, r->kind, r->entry, r->gen);
}

static void pend(struct kvr_connector *c, const struct kvr_wire_record *r, uint64_t tick)
{
	struct kvr_rank_ops *k = &c->known;
	struct kvr_request req = { .id = r->id, .space = r->space, .attempt = r->attempt };
	struct kvr_rank_op *op = known(c, &req, r);

	/* What was told before is not told again, and changes nothing. */
	if (op && op->stage != KVR_STAGE_LOST && (op->stage || r->stage <= op->reached)) {
		kvr_rank_count(&kvr_rank_page(c)->duplicate);
		return;
	}
	k->pending[k->tail++ & k->pending_mask] = (struct kvr_completion){ .request = req,
									   .kind = r->kind,
									   .stage = r->stage,
									   .status = r->status,
									   .blocks = r->blocks,
									   .tick = tick };
	/* Of a lost one the caller had the end; this is a publish that was under way then. */
	if (!op || op->stage == KVR_STAGE_LOST)
		return;
	op->since = kvr_min(op->since, tick);
	if (op->since)
		op->n = r->blocks;
	if (r->stage < KVR_STAGE_FAILED)
		op->reached = r->stage;
	if (r->stage >= KVR_STAGE_END) {
		op->reached = (uint32_t)kvr_max(op->reached, r->reached);
		if (r->kind == KVR_OP_PREFETCH)
			op->good = r->blocks;
		op->stage = r->stage;
		op->status = r->status;
		op->end_tick = tick;
	}
	/* It never began here, and now it does not: the leader need not wait for this rank. */
	if (r->stage == KVR_STAGE_CANCELLED && op->since && !op->answered)
		kvr_rank_give_up(c, op);
}

/* Takes what is on COMPLETE into `pending`. 0, or -errno other than "nothing there". */
int kvr_rank_pull(struct kvr_connector *c)
{
	struct kvr_rank_ops *k = &c->known;
	uint64_t most = kvr_channels_inline_payload(c->channels) / sizeof(struct kvr_wire_record);

	if (k->broken[0])
		return kvr_input_broken(c, 0);
	for (;;) {
		struct kvr_wire_complete w;
		struct kvr_message m;
		int err;

		while (k->pending_mask + 1 - (k->tail - k->head) < most)
			if (pending_grow(c))
				return 0; /* the rest waits in the ring */
		err = kvr_channels_take(c->channels, KVR_CH_COMPLETE, 0, &m);
		if (err == -EAGAIN)
			return 0;
		if (err)
			return err;
		if (m.len < sizeof w)
			return kvr_input_broken(
				c, kvr_rank_bad_message(c, &m, "shorter than its fixed part"));
		memcpy(&w, m.data, sizeof w);
		if (w.count > most || m.len != sizeof w + w.count * sizeof(struct kvr_wire_record))
			err = kvr_rank_bad_message(c, &m, "its length and its count do not agree");
		else
			err = kvr_input_complete(c, &m, &w);
		if (err)
			return kvr_input_broken(c, err);
		k->pulled_tick = w.tick;
		for (uint32_t i = 0; i < w.count; i++) {
			struct kvr_wire_record r;

			memcpy(&r, (const uint8_t *)m.data + sizeof w + i * sizeof r, sizeof r);
			pend(c, &r, w.tick);
		}
	}
}

struct tick_wait {
	struct kvr_connector *c;
	uint64_t tick;
};

static uint64_t tick_done(const struct kvr_connector *c)
{
	return kvr_group_tick_done(c->group);
}

/* The highest tick that was ever seen done: what a fence hides for a moment was true all the same.
 */
uint64_t kvr_rank_done(struct kvr_connector *c)
{
	c->known.done = kvr_max(c->known.done, tick_done(c));
	return c->known.done;
}

/* The leader announced its end, after its last tick; this rank did not take the message yet. */
static int end_announced(const struct kvr_connector *c)
{
	uint64_t ending = kvr_load_acquire(&c->group->leader->ending); /* Y2, pairs with Y1 */

	/* Of a leader that another one replaces no word counts any more. */
	return c->ended || (ending && kvr_group_untouched(c->group));
}

static int tick_ready(void *arg)
{
	struct tick_wait *w = arg;
	int err = kvr_rank_pull(w->c);

	if (!err)
		err = kvr_input_tick(w->c);
	if (err || tick_done(w->c) >= w->tick)
		return err ? err : 1;
	if (!end_announced(w->c))
		return 0;
	/* Once more: the last tick came before the announcement. Which must be there. */
	err = kvr_rank_pull(w->c);
	if (!err && kvr_channels_drained(w->c->channels, KVR_CH_CONTROL) < 0)
		err = -EBADMSG;
	if (err || tick_done(w->c) >= w->tick)
		return err ? err : 1;
	return KVR_FAIL(-ESHUTDOWN,
			"rank %u: tick %llu will not come: the leader announced its end after "
			"tick %llu; call kvr_connector_shutdown and close",
			w->c->rank, (unsigned long long)w->tick,
			(unsigned long long)tick_done(w->c));
}

/* --- the end of an epoch
 * -------------------------------------------------------------------------- */

/*
 * What the caller is told of an operation without an end: everything that this rank began, or that
 * completions up to the last tick told of, unless a tick up to the last one told its end.
 *
 * The last tick alone decides, not what else can be seen. All ranks find the same last tick: a dead
 * leader stores no other, a leader that lives finishes none after it declared the epoch over
 * (kvr_engine_tick), and one that was shut out has the fence, beyond which none counts. Completions
 * beyond it may be on all ranks (the leader died between the last copy and the tick) or on some
 * (between two copies), and each rank reads an operation's word when it likes. A rank that took an
 * end from there would have another set than its peers after the same tick. What such an operation
 * wrote is not undone: it can be found in the next epoch.
 */
static int is_lost(const struct kvr_connector *c, const struct kvr_rank_op *op)
{
	uint64_t last = c->known.last_tick;

	return op->used && op->since <= last && !kvr_rank_op_told(c, op, last);
}

/* Ends one; a wait for a stage that it had reached goes on saying so. */
static struct kvr_completion lose(struct kvr_connector *c, struct kvr_rank_op *op, int cause)
{
	uint32_t told = op->reached; /* before the word is read */
	uint64_t word = kvr_rank_op_word(c, op->entry);
	uint32_t code = kvr_word_code(word);

	if (!kvr_input_word(c, op, word, told) && kvr_word_gen(word) == op->gen)
		op->reached = code < KVR_STAGE_FAILED ? code : kvr_word_value(word) >> 16;
	op->stage = KVR_STAGE_LOST;
	op->status = cause;
	op->end_tick = c->known.last_tick;
	return (struct kvr_completion){ .request = op->req,
					.kind = op->kind,
					.stage = op->stage,
					.status = cause,
					.blocks = op->n,
					.tick = op->end_tick };
}

/* Returns their number; 0: every operation has its end. */
static int give_lost(struct kvr_connector *c, int cause, struct kvr_completion *ret, uint32_t max)
{
	struct kvr_rank_ops *k = &c->known;
	uint32_t n = 0;

	for (uint32_t i = 0; i < k->capacity; i++) {
		struct kvr_rank_op *op = &k->ops[(k->cursor + i) & (k->capacity - 1)];

		if (!is_lost(c, op))
			continue;
		if (!max)
			return KVR_FAIL(-EMSGSIZE,
					"check_completed: operations were lost with the epoch, and "
					"there is room for none");
		if (n == max)
			break;
		ret[n++] = lose(c, op, cause);
	}
	if (n)
		kvr_connector_explain_lost(c, n);
	return (int)n;
}

/* Completions up to that tick that the caller did not have. */
static uint64_t count_upto(const struct kvr_rank_ops *k, uint64_t tick)
{
	uint64_t n = 0;

	while (k->head + n != k->tail && k->pending[(k->head + n) & k->pending_mask].tick <= tick)
		n++;
	return n;
}

static int give(struct kvr_connector *c, uint64_t upto, struct kvr_completion *ret, uint32_t max,
		uint64_t *ret_tick)
{
	struct kvr_rank_ops *k = &c->known;
	uint64_t n = count_upto(k, upto);

	if (n > max)
		return KVR_FAIL(-EMSGSIZE,
				"check_completed: %llu completions up to tick %llu, room for %u; "
				"call again with more",
				(unsigned long long)n, (unsigned long long)upto, max);
	for (uint64_t i = 0; i < n; i++)
		ret[i] = k->pending[k->head++ & k->pending_mask];
	if (upto > c->tick)
		c->tick = upto;
	kvr_store_relaxed(&c->group->proc->tick_seen, c->tick);
	if (ret_tick)
		*ret_tick = upto;
	return (int)n;
}

/* 0; 1: another leader takes over and will say what counts; 2: it said so. */
static uint32_t fence_of(const struct kvr_connector *c)
{
	const struct kvr_seg_takeover *t = c->group->takeover;

	if (kvr_load_acquire(&t->new_epoch)) /* K2, pairs with K1 */
		return 2;
	return kvr_load_acquire32(&t->closing) != 0; /* N2, pairs with N1 */
}

/*
 * Waits for a tick, and takes what was published up to it. When the epoch is over, *ret_cause says
 * why, and the last tick is known for good; unless completions are missing or wrong: then nobody
 * can say what ended. While a fence goes up, messages and ticks are hidden: what was seen then
 * counts for nothing.
 */
static int await_tick(struct kvr_connector *c, struct tick_wait *w, uint64_t deadline_ns,
		      int *ret_cause)
{
	struct kvr_rank_ops *k = &c->known;
	uint64_t last;
	uint32_t fence;
	char what[64];
	int err, cause;

	snprintf(what, sizeof what, "tick %llu", (unsigned long long)w->tick);
	do {
		fence = fence_of(c);
		err = kvr_group_wait(c->group, tick_ready, w, deadline_ns, what);
		if (err > 0)
			err = kvr_rank_pull(c); /* published between the last look and tick_done */
		if (!err)
			err = kvr_channels_drained(c->channels, KVR_CH_COMPLETE);
		cause = err < 0 && err != -EBADMSG ? kvr_group_check(c->group) : 0;
		last = tick_done(c);
		if (cause && (kvr_rank_pull(c) == -EBADMSG || /* likewise */
			      kvr_channels_drained(c->channels, KVR_CH_COMPLETE) < 0)) {
			err = -EBADMSG;
			cause = 0;
		}
	} while (fence_of(c) != fence);
	if (err > 0)
		k->whole_tick = kvr_max(k->whole_tick, w->tick);
	if (cause && !k->over) {
		k->over = 1;
		k->last_tick = last;
	}
	*ret_cause = cause;
	return err;
}

int kvr_rank_nothing_new(struct kvr_connector *c)
{
	const struct kvr_rank_ops *k = &c->known;

	/* Also of a tick that is not done: the leader may wait for room in the ring. */
	return k->head == k->tail && !k->broken[0] && !k->over && tick_done(c) == c->tick &&
	       kvr_group_watermark(c->group, KVR_CH_COMPLETE) ==
		       c->channels->inbox[KVR_CH_COMPLETE].last &&
	       !kvr_group_check(c->group);
}

int kvr_rank_check_completed(struct kvr_connector *c, enum kvr_tick_mode mode, uint64_t tick,
			     uint64_t deadline_ns, struct kvr_completion *ret, uint32_t max,
			     uint64_t *ret_tick)
{
	struct tick_wait w = { c, mode == KVR_NOW    ? kvr_max(tick_done(c), c->tick)
				  : mode == KVR_NEXT ? c->tick + 1
						     : tick };
	int cause, n, err = await_tick(c, &w, deadline_ns, &cause);
	uint64_t last = cause ? c->known.last_tick : tick_done(c);

	if (err >= 0)
		return give(c, w.tick, ret, max, ret_tick);
	if (!cause && err != -ESHUTDOWN)
		return err;
	/*
	 * There will be no more ticks. Those that were done are given out as ever; then what was
	 * lost, unless a living leader announced its end; then why.
	 */
	if (w.tick > c->tick && w.tick <= last)
		return give(c, w.tick, ret, max, ret_tick);
	if (count_upto(&c->known, last))
		return give(c, last, ret, max, ret_tick);
	if (!cause)
		return err;
	err = kvr_group_check(c->group); /* its sentence; 0 when a fence goes up just now */
	n = give_lost(c, err ? err : cause, ret, max);
	if (n > 0 && ret_tick)
		*ret_tick = last;
	return n ? n : err ? err : cause;
}
