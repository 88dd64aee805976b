/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all ranks decide together. The leader proposes; each rank checks, and votes in its word;
 * when all voted for it, one word of the leader's commits it for all, and the first vote against
 * it, or the deadline, aborts it for all. Nobody can be told both: this thread alone writes that
 * word.
 *
 *   a decision of the caller's    begun, committed, and done when each rank said how it went; the
 *                                 first failure after the commit fails it for all
 *   a load by layers              begun, committed, then as a load (engine_ops.c)
 *   a reset                       begun; committed when nothing is in flight any more
 */
#include <errno.h>

#include "clock.h"
#include "engine_priv.h"
#include "err.h"

/* Votes. 1: something changed. */
static int voting(struct kvr_engine *e, struct kvr_op *op)
{
	int all;

	op->acked = 0; /* who voted for it may take that back until the commit */
	all = kvr_op_acks(e, op, KVR_ACK_VOTED);
	if (!op->status && !all && kvr_now() >= op->deadline)
		op->status = -ETIMEDOUT;
	if (op->status) {
		kvr_op_cut(e, op, op->status);
		return 1;
	}
	if (all)
		kvr_op_stage(e, op, KVR_STAGE_COMMITTED, 0, 0);
	return all;
}

int kvr_decision_progress(struct kvr_engine *e, struct kvr_op *op)
{
	int all;

	if (op->stage == KVR_STAGE_BEGUN)
		return voting(e, op);
	if (op->stage != KVR_STAGE_COMMITTED)
		return 0;
	all = kvr_op_acks(e, op, KVR_ACK_DONE);
	if (op->status)
		kvr_op_end(e, op, KVR_STAGE_FAILED, op->status);
	else if (all)
		kvr_op_end(e, op, KVR_STAGE_DONE, 0);
	return op->status || all;
}

/* Nothing but the reset is in flight: no copy, no read, no write. */
static int quiet(const struct kvr_engine *e)
{
	return e->active_count == 1 && e->held == KVR_NO_OP && !e->io_running &&
	       e->write_head == e->write_tail && e->read_head == e->read_tail;
}

int kvr_reset_progress(struct kvr_engine *e, struct kvr_op *op)
{
	int all;

	if (op->stage != KVR_STAGE_BEGUN || e->reset_ready)
		return 0;
	for (uint32_t i = e->active; i != KVR_NO_OP; i = e->ops[i].next_op)
		if (e->ops[i].kind == KVR_OP_PREFETCH && e->ops[i].stage == KVR_STAGE_BEGUN)
			return kvr_op_abort(e, &e->ops[i], -ECANCELED);
	all = kvr_op_acks(e, op, KVR_ACK_VOTED);
	if (!op->status && !(all && quiet(e)) && kvr_now() >= op->deadline)
		op->status = all ? -EBUSY : -ETIMEDOUT;
	if (op->status) {
		kvr_op_cut(e, op, op->status);
		return 1;
	}
	if (all && quiet(e)) {
		/* From here on nobody but the thread touches the tier, and with it the store. */
		while (e->pin_count) {
			struct kvr_pin *pin = &e->pins[--e->pin_count];

			kvr_tier_unpin(&e->tier, pin->ids, pin->n);
		}
		e->reset_ready = 1;
		kvr_op_stage(e, op, KVR_STAGE_COMMITTED, 0, 0);
	}
	return 0;
}

void kvr_reset_run(struct kvr_engine *e)
{
	int err = e->store ? kvr_store_reset(e->store, e->has_model ? &e->model : NULL) : 0;
	struct kvr_op *op;

	pthread_mutex_lock(&e->lock);
	op = &e->ops[e->reset];
	kvr_tier_clear(&e->tier);
	if (e->store)
		kvr_store_info(e->store, &e->info);
	else
		e->info.cache_generation++;
	kvr_pool_set_generation(&e->pool, e->info.cache_generation);
	e->reset = KVR_NO_OP;
	e->reset_ready = 0;
	if (op->stage >= KVR_STAGE_END)
		; /* lost with the epoch meanwhile */
	else if (err)
		kvr_op_end(e, op, KVR_STAGE_FAILED, err);
	else
		kvr_op_end(e, op, KVR_STAGE_DONE, 0);
	pthread_mutex_unlock(&e->lock);
	kvr_engine_wake(e);
}
