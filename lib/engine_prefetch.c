/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefetches: blocks of a prefix go from the store into the pool before anybody waits for them. No
 * rank has a part in it, so none is waited for: ranks learn the number, and look at the operation's
 * word for how far it is.
 */
#include <errno.h>

#include "atomic.h"
#include "engine_priv.h"
#include "err.h"

void kvr_prefetch_stop(struct kvr_engine *e, struct kvr_op *op)
{
	for (uint32_t i = 0; i < op->n; i++) {
		const struct kvr_tier_block *b = &e->tier.blocks[op->ids[i]];

		/* Another prefetch may count on it: it finds it missing, as if it had been evicted.
		 */
		if (op->own[i] && b->reading == KVR_READ_PREFETCH)
			kvr_tier_unfetch(&e->tier, op->ids[i]);
	}
}

int kvr_prefetch_progress(struct kvr_engine *e, struct kvr_op *op)
{
	uint32_t done = 0, left = 0;

	if (op->stage != KVR_STAGE_BEGUN)
		return 0;
	for (uint32_t i = 0; i < op->n; i++) {
		const struct kvr_tier_block *b = &e->tier.blocks[op->ids[i]];

		if (!op->own[i])
			continue;
		left += b->reading != KVR_READ_NONE;
		done += !b->reading && !b->dead && b->slot != KVR_NO_SLOT;
	}
	if (!left) {
		op->good = done;
		kvr_op_end(e, op, KVR_STAGE_DONE, 0);
		return 1;
	}
	if (done != op->good) {
		op->good = done;
		kvr_op_stage(e, op, KVR_STAGE_BEGUN, done, 0);
	}
	return 0;
}

int kvr_engine_prefetch_status(struct kvr_engine *e, const struct kvr_request *req,
			       uint32_t *ret_done, uint32_t *ret_stage, int *ret_status)
{
	struct kvr_op *op;

	pthread_mutex_lock(&e->lock);
	op = kvr_op_find(e, req, KVR_OP_PREFETCH);
	if (op) {
		*ret_done = op->good;
		*ret_stage = op->stage;
		*ret_status = op->status;
	}
	pthread_mutex_unlock(&e->lock);
	if (op)
		return 0;
	return KVR_FAIL(-ENOENT, "no prefetch of request %llu/%u is known",
			(unsigned long long)req->id, req->attempt);
}

void kvr_engine_prefetch_cancel(struct kvr_engine *e, const struct kvr_request *req)
{
	pthread_mutex_lock(&e->lock);
	for (uint32_t i = e->active, next; i != KVR_NO_OP; i = next) {
		struct kvr_op *op = &e->ops[i];

		next = op->next_op;
		if (op->kind == KVR_OP_PREFETCH && (!req || kvr_request_equal(&op->req, req)))
			kvr_op_abort(e, op, -ECANCELED);
	}
	pthread_mutex_unlock(&e->lock);
	kvr_engine_wake(e);
}
