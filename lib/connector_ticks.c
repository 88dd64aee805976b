/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's completions: taken from the ring as they come, given to the caller tick by tick. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atomic.h"
#include "channel_priv.h"
#include "connector_priv.h"
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

static void pend(struct kvr_connector *c, const struct kvr_wire_record *r, uint64_t tick)
{
	struct kvr_rank_ops *k = &c->known;
	struct kvr_request req = { .id = r->id, .space = r->space, .attempt = r->attempt };
	struct kvr_rank_op *op = kvr_rank_op_find(k, &req, r->kind);

	k->pending[k->tail++ & k->pending_mask] = (struct kvr_completion){ .request = req,
									   .kind = r->kind,
									   .stage = r->stage,
									   .status = r->status,
									   .blocks = r->blocks,
									   .tick = tick };
	/* This rank may be behind and take the answer to the begin later. */
	if (!op || op->entry != r->entry || op->gen != r->gen)
		op = r->entry < c->group->layout.ops
			     ? kvr_rank_op_place(c, &req, r->kind, r->entry, r->gen)
			     : NULL;
	if (!op)
		return;
	if (r->stage < KVR_STAGE_FAILED)
		op->reached = r->stage;
	if (r->stage >= KVR_STAGE_END) {
		op->stage = r->stage;
		op->status = r->status;
	}
}

/* Takes what is on COMPLETE into `pending`. 0, or -errno other than "nothing there". */
int kvr_rank_pull(struct kvr_connector *c)
{
	struct kvr_rank_ops *k = &c->known;
	uint64_t most = c->max_payload / sizeof(struct kvr_wire_record);

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
		if (m.len != sizeof w + w.count * sizeof(struct kvr_wire_record))
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

/* The leader announced its end, after its last tick; this rank did not take the message yet. */
static int end_announced(const struct kvr_connector *c)
{
	const struct kvr_rank_page *own = (const void *)c->group->own;

	if (c->ended)
		return 1;
	return kvr_group_watermark(c->group, KVR_CH_CONTROL) > own->taken[KVR_CH_CONTROL];
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

int kvr_rank_check_completed(struct kvr_connector *c, enum kvr_tick_mode mode, uint64_t tick,
			     uint64_t deadline_ns, struct kvr_completion *ret, uint32_t max,
			     uint64_t *ret_tick)
{
	struct kvr_rank_ops *k = &c->known;
	struct tick_wait w = { c, mode == KVR_NOW    ? tick_done(c)
				  : mode == KVR_NEXT ? c->tick + 1
						     : tick };
	uint64_t n = 0, upto = w.tick;
	char what[64];
	int err;

	snprintf(what, sizeof what, "tick %llu", (unsigned long long)w.tick);
	err = kvr_group_wait(c->group, tick_ready, &w, deadline_ns, what);
	if (err > 0)
		err = kvr_rank_pull(c); /* what was published between the last look and tick_done */
	if (!err)
		err = kvr_channels_drained(c->channels, KVR_CH_COMPLETE);
	if (err > 0)
		k->whole_tick = kvr_max(k->whole_tick, w.tick);
	if (err == -EOWNERDEAD || err == -ESTALE || err == -ESHUTDOWN) {
		/* What the leader finished comes first; its end is reported when nothing is left.
		 */
		upto = kvr_min(tick_done(c), upto);
		if (k->head == k->tail || k->pending[k->head & k->pending_mask].tick > upto)
			return err;
	} else if (err < 0) {
		return err;
	}
	while (k->head + n != k->tail && k->pending[(k->head + n) & k->pending_mask].tick <= upto)
		n++;
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
