/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads by layers. Blocks that are only on the store are read in parts of some layer groups each:
 * the first part of every block, then the second of every block, so that ranks copy the first
 * layers while the last ones are still on the device. Parts end where the device's unit ends,
 * behind the last byte of their layers: no byte is read twice, and none changes after it was
 * verified.
 */
#include <errno.h>

#include "atomic.h"
#include "clock.h"
#include "engine_priv.h"
#include "util.h"

/* --- parts
 * ---------------------------------------------------------------------------------------- */

/* Where part k begins within an image. */
static uint64_t part_at(const struct kvr_engine *e, const struct kvr_op *op, uint32_t k)
{
	uint64_t groups = kvr_min((uint64_t)k * op->groups_each, e->geo.layer_groups);

	return k ? kvr_align_up(e->geo.header_bytes + groups * e->geo.layer_bytes, e->geo.align)
		 : 0;
}

void kvr_layers_divide(struct kvr_engine *e, struct kvr_op *op)
{
	const uint32_t groups = e->geo.layer_groups;
	uint64_t each = (e->part_bytes + e->geo.layer_bytes - 1) / e->geo.layer_bytes;

	each = kvr_max(kvr_min(each, groups), (groups + KVR_PARTS - 1) / KVR_PARTS);
	op->groups_each = (uint32_t)each;
	op->chunks = (groups + op->groups_each - 1) / op->groups_each;
	/* The last layers may lie in the unit in which the part before them ends. */
	while (op->chunks > 1 && part_at(e, op, op->chunks - 1) >= e->geo.slot_bytes)
		op->chunks--;
	for (uint32_t k = 0; k < op->chunks; k++)
		for (uint32_t i = 0; i < op->n; i++)
			op->left[k] += op->own[i] != 0;
}

static int part_start(struct kvr_engine *e, struct kvr_op *op, uint32_t chunk, uint32_t index)
{
	uint32_t block = op->ids[index];
	struct kvr_engine_io *io = kvr_io_get(e, block, 0);
	uint64_t from = part_at(e, op, chunk);
	uint64_t to = chunk + 1 == op->chunks ? e->geo.slot_bytes : part_at(e, op, chunk + 1);
	int err;

	io->part = 1;
	io->entry = kvr_op_entry(e, op);
	io->gen = op->gen;
	io->index = index;
	io->chunk = chunk;
	io->op.from = (uint32_t)from;
	io->op.bytes = (uint32_t)(to - from);
	err = kvr_store_read(e->store, &io->op);
	if (err)
		kvr_io_put(e, io);
	if (err == -EAGAIN)
		return err;
	e->tier.blocks[block].parts++;
	if (err)
		kvr_layers_part(e, io, err);
	return 0;
}

int kvr_layers_pump(struct kvr_engine *e)
{
	int changed = 0;

	if (e->group_error)
		return 0;
	for (uint32_t i = e->active; i != KVR_NO_OP; i = e->ops[i].next_op) {
		struct kvr_op *op = &e->ops[i];

		if (!(op->flags & KVR_OP_LAYERED) || op->stage != KVR_STAGE_COMMITTED)
			continue;
		for (; op->part_next < op->chunks * op->n && e->free_io; op->part_next++) {
			uint32_t index = op->part_next % op->n;

			if (!op->own[index] || e->tier.blocks[op->ids[index]].part_bad)
				continue;
			if (part_start(e, op, op->part_next / op->n, index))
				return changed;
			changed = 1;
		}
	}
	return changed;
}

/* No part of it is in flight, and no more will be. */
static void settle_parts(struct kvr_engine *e, uint32_t block)
{
	struct kvr_tier_block *b = &e->tier.blocks[block];

	if (b->part_bad) {
		kvr_tier_fetched(&e->tier, block, 0, b->part_bad == 1);
		b->part_bad = 0;
	} else if (b->dead) {
		kvr_tier_fetched(&e->tier, block, 1, 0);
	} else {
		b->reading = KVR_READ_DEMAND;
		e->read_queue[e->read_tail++ & e->queue_mask] = block;
	}
}

void kvr_layers_part(struct kvr_engine *e, const struct kvr_engine_io *io, int result)
{
	struct kvr_tier_block *b = &e->tier.blocks[io->block];
	struct kvr_op *op = &e->ops[io->entry];
	int live = op->gen == io->gen && op->used && op->stage < KVR_STAGE_END;

	b->parts--;
	if (result && !b->part_bad)
		b->part_bad = result == -EBADMSG ? 2 : 1;
	if (!live) {
		if (!b->parts)
			settle_parts(e, io->block);
		return;
	}
	if (result) {
		op->good = (uint32_t)kvr_min(op->good, io->index); /* ends the load */
		return;
	}
	op->left[io->chunk]--;
	if (++op->own[io->index] == 1 + op->chunks)
		kvr_tier_fetched(&e->tier, io->block, 1, 0);
}

void kvr_layers_stop(struct kvr_engine *e, struct kvr_op *op)
{
	for (uint32_t i = 0; i < op->n; i++)
		if (op->own[i] && op->own[i] != 1 + op->chunks && !e->tier.blocks[op->ids[i]].parts)
			settle_parts(e, op->ids[i]);
}

/* Layer groups of all blocks that are in the pool. */
static uint32_t groups_in(struct kvr_engine *e, struct kvr_op *op)
{
	uint32_t k = 0, whole = 1;

	for (uint32_t i = 0; i < op->n; i++) {
		const struct kvr_tier_block *b = &e->tier.blocks[op->ids[i]];

		if (b->dead)
			op->good = (uint32_t)kvr_min(op->good, i);
		whole &= op->own[i] || !b->reading; /* else another one reads it */
	}
	if (!whole)
		return 0;
	while (k < op->chunks && !op->left[k])
		k++;
	return k == op->chunks ? e->geo.layer_groups : k * op->groups_each;
}

/* --- stages
 * --------------------------------------------------------------------------------------- */

/*
 * All blocks are good or the load fails: what a rank has used of them by then, the others used,
 * too, and all must hear that it counts for nothing.
 */
int kvr_layers_progress(struct kvr_engine *e, struct kvr_op *op)
{
	uint32_t groups;
	int all;

	if (op->stage == KVR_STAGE_BEGUN)
		return kvr_decision_progress(e, op);
	all = kvr_op_acks(e, op, KVR_ACK_VERIFIED);
	if (op->stage == KVR_STAGE_COMMITTED && !op->status && op->good == op->n) {
		groups = groups_in(e, op);
		if (groups != op->groups)
			kvr_op_layers(e, op, groups);
		op->groups = groups;
		if (groups == e->geo.layer_groups && kvr_load_read(e, op) && op->good == op->n) {
			kvr_op_stage(e, op, KVR_STAGE_HOST, op->good, 0);
			return 1;
		}
	}
	if (op->status || op->good < op->n) {
		kvr_load_bad(e, op);
		kvr_op_cut(e, op, -EBADMSG);
		return 1;
	}
	if (op->stage != KVR_STAGE_HOST || !all)
		return 0;
	e->stats.blocks_loaded += op->good;
	kvr_op_stage(e, op, KVR_STAGE_VERIFIED, op->good, 0);
	return 1;
}
