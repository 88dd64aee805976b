/* SPDX-License-Identifier: Apache-2.0 */
/* Operations: their table, their stages, and how acknowledgements and I/O move them on. */
#include "engine_priv.h"

#include <errno.h>

#include "atomic.h"
#include "clock.h"

static struct kvr_op_entry *entry_of(struct kvr_engine *e, const struct kvr_op *op)
{
	const struct kvr_layout *l = &e->group->layout;
	void *table = e->group->own + (l->leader_ops - l->leader);

	return (struct kvr_op_entry *)table + kvr_op_entry(e, op);
}

static void record(struct kvr_engine *e, struct kvr_op *op, uint32_t stage, int status, int end)
{
	uint32_t blocks = op->kind == KVR_OP_PREFETCH ? op->good : op->blocks;

	e->done[e->done_tail++ & e->done_mask] =
		(struct kvr_engine_record){ .c = { .request = op->req,
						   .kind = op->kind,
						   .stage = stage,
						   .status = status,
						   .blocks = blocks },
					    .entry = kvr_op_entry(e, op),
					    .gen = op->gen,
					    .reached = op->reached,
					    .end = (uint32_t)end };
}

/* The ranks that must answer before this stage ends. */
static uint64_t need_of(const struct kvr_engine *e, const struct kvr_op *op)
{
	switch (op->kind << 8 | op->stage) {
	case KVR_OP_STORE << 8 | KVR_STAGE_BEGUN:
		return op->blocks ? e->writers : 0;
	case KVR_OP_LOAD << 8 | KVR_STAGE_BEGUN:
		return op->flags & KVR_OP_LAYERED ? e->all : 0;
	case KVR_OP_LOAD << 8 | KVR_STAGE_COMMITTED:
	case KVR_OP_LOAD << 8 | KVR_STAGE_HOST:
	case KVR_OP_LOAD << 8 | KVR_STAGE_VERIFIED:
		return e->readers;
	case KVR_OP_DECISION << 8 | KVR_STAGE_BEGUN:
	case KVR_OP_DECISION << 8 | KVR_STAGE_COMMITTED:
	case KVR_OP_RESET << 8 | KVR_STAGE_BEGUN:
		return e->all;
	default:
		return 0;
	}
}

static void show_acks(struct kvr_engine *e, struct kvr_op *op)
{
	struct kvr_op_entry *entry = entry_of(e, op);

	kvr_store_relaxed(&entry->need, op->need);
	kvr_store_relaxed(&entry->acked, op->acked);
}

void kvr_op_stage(struct kvr_engine *e, struct kvr_op *op, enum kvr_stage stage, uint32_t value,
		  int recorded)
{
	struct kvr_op_entry *entry = entry_of(e, op);

	if (stage < KVR_STAGE_FAILED)
		op->reached = stage;
	op->stage = stage;
	if (stage < KVR_STAGE_END)
		op->need = need_of(e, op);
	op->acked = 0;
	op->next = 0;
	entry->stage_ns = kvr_now();
	entry->blocks = op->blocks;
	show_acks(e, op);
	kvr_store_release(&entry->word, kvr_word(op->gen, stage, value)); /* O1, pairs with O2 */
	if (recorded)
		record(e, op, stage, 0, 0);
	e->changed = 1;
}

/* The ranks remember its blocks until they answered. */
static int waits_for_ranks(const struct kvr_op *op)
{
	return op->kind == KVR_OP_STORE ? op->stage <= KVR_STAGE_BEGUN
					: op->kind != KVR_OP_PREFETCH;
}

void kvr_op_layers(struct kvr_engine *e, struct kvr_op *op, uint32_t groups)
{
	/* L1, pairs with L2 */
	kvr_store_release(&entry_of(e, op)->layers, (uint64_t)op->gen << 32 | groups);
	e->changed = 1;
}

static void list_add(struct kvr_engine *e, uint32_t *head, struct kvr_op *op)
{
	op->prev = KVR_NO_OP;
	op->next_op = *head;
	if (*head != KVR_NO_OP)
		e->ops[*head].prev = kvr_op_entry(e, op);
	*head = kvr_op_entry(e, op);
}

static void list_remove(struct kvr_engine *e, uint32_t *head, struct kvr_op *op)
{
	if (op->prev == KVR_NO_OP)
		*head = op->next_op;
	else
		e->ops[op->prev].next_op = op->next_op;
	if (op->next_op != KVR_NO_OP)
		e->ops[op->next_op].prev = op->prev;
}

static void unlink_active(struct kvr_engine *e, struct kvr_op *op)
{
	if (waits_for_ranks(op))
		e->open_count--;
	list_remove(e, &e->active, op);
	e->active_count--;
}

/* need: the ranks that may still copy. The operation keeps its blocks, and its entry, until they
 * cannot. */
static void end(struct kvr_engine *e, struct kvr_op *op, enum kvr_stage stage, int status,
		uint64_t need)
{
	uint32_t value = stage == KVR_STAGE_DONE ? op->good : 0;

	unlink_active(e, op);
	op->status = status;
	op->need = need;
	if (stage >= KVR_STAGE_FAILED)
		value = op->reached << 16 | ((uint32_t)-status & 0xffff);
	kvr_op_stage(e, op, stage, value, 0);
	record(e, op, stage, status, 1);
	/*
	 * A lost operation keeps its blocks: a rank that lives on may still copy from them, and
	 * must not find another block's bytes there. The epoch is over; so is the need for slots.
	 */
	if (stage != KVR_STAGE_LOST && !need)
		kvr_tier_unpin(&e->tier, op->ids, op->n);
	e->stats.ops_ended++;
	e->stats.ops_failed += status != 0;
}

void kvr_op_end(struct kvr_engine *e, struct kvr_op *op, enum kvr_stage stage, int status)
{
	end(e, op, stage, status, 0);
}

void kvr_op_free(struct kvr_engine *e, struct kvr_op *op)
{
	op->used = 0;
	e->free_ops[(e->free_head + e->free_count++) % e->group->layout.ops] = kvr_op_entry(e, op);
}

struct kvr_op *kvr_op_find(struct kvr_engine *e, const struct kvr_request *req,
			   enum kvr_op_kind kind)
{
	struct kvr_op *newest = NULL;

	for (uint32_t i = e->active; i != KVR_NO_OP; i = e->ops[i].next_op)
		if (e->ops[i].kind == kind && kvr_request_equal(&e->ops[i].req, req))
			return &e->ops[i];
	for (uint32_t i = 0; i < e->group->layout.ops; i++) {
		struct kvr_op *op = &e->ops[i];

		if (op->kind == kind && kvr_request_equal(&op->req, req) &&
		    (!newest || op->number > newest->number))
			newest = op;
	}
	return newest;
}

struct kvr_op *kvr_op_new(struct kvr_engine *e, const struct kvr_request *req,
			  enum kvr_op_kind kind, uint32_t flags)
{
	struct kvr_op_entry *entry;
	struct kvr_op *op;
	uint32_t i;

	if (!e->free_count)
		return NULL;
	i = e->free_ops[e->free_head++ % e->group->layout.ops];
	e->free_count--;
	op = &e->ops[i];
	*op = (struct kvr_op){ .req = *req,
			       .number = ++e->begun,
			       .gen = op->gen == UINT32_MAX ? 1 : op->gen + 1,
			       .kind = kind,
			       .flags = flags,
			       .ids = op->ids,
			       .own = op->own,
			       .used = 1 };
	list_add(e, &e->active, op);
	e->active_count++;
	e->open_count += (uint32_t)waits_for_ranks(op);
	e->stats.ops_begun++;
	entry = entry_of(e, op);
	entry->request = req->id;
	entry->space = req->space;
	entry->attempt = req->attempt;
	entry->kind = kind;
	entry->flags = flags;
	kvr_store_relaxed(&entry->layers, 0);
	entry->begun_ns = kvr_now();
	kvr_op_stage(e, op, KVR_STAGE_NONE, 0, 0);
	return op;
}

void kvr_op_drop(struct kvr_engine *e, struct kvr_op *op)
{
	if (op->kind == KVR_OP_STORE)
		for (uint32_t i = 0; i < op->n; i++)
			if (op->own[i])
				kvr_tier_kill(&e->tier, op->ids[i], 0);
	if (op->kind == KVR_OP_PREFETCH)
		kvr_prefetch_stop(e, op);
	if (op->flags & KVR_OP_LAYERED)
		kvr_layers_stop(e, op);
	kvr_tier_unpin(&e->tier, op->ids, op->n);
	unlink_active(e, op);
	op->used = 0;
	op->kind = KVR_OP_NONE;
	e->free_ops[--e->free_head % e->group->layout.ops] = kvr_op_entry(e, op);
	e->free_count++;
	e->stats.ops_begun--;
}

/* --- acknowledgements
 * ----------------------------------------------------------------------------- */

/*
 * Can a rank have written this? A word of an earlier generation is one of an operation that ended;
 * a later generation there is none, as long as they did not wrap.
 */
static int ack_possible(const struct kvr_engine *e, const struct kvr_op *op, uint64_t word)
{
	uint32_t value = kvr_word_value(word);

	if (kvr_word_gen(word) != op->gen)
		return kvr_word_gen(word) < op->gen || e->begun > UINT32_MAX;
	switch (kvr_word_code(word)) {
	case KVR_ACK_VOTED:
	case KVR_ACK_WITHDRAWN:
		return value == 0 && op->kind != KVR_OP_STORE && op->kind != KVR_OP_PREFETCH;
	case KVR_ACK_COPIED:
		return op->kind == KVR_OP_STORE && value == op->blocks;
	case KVR_ACK_VERIFIED:
	case KVR_ACK_DONE:
		return (op->kind == KVR_OP_LOAD && value <= op->n) ||
		       (op->kind == KVR_OP_DECISION && !value);
	case KVR_ACK_FAILED:
		return value >= 1 && value <= 4095;
	default:
		return 0;
	}
}

/* It fails this operation as an answer of the rank's would; the epoch goes on. */
static enum kvr_ack bad_ack(struct kvr_engine *e, uint32_t rank, const struct kvr_op *op,
			    uint64_t word, uint32_t *ret_value)
{
	struct kvr_leader_page *page = kvr_group_leader_page(e->group);

	kvr_store_relaxed(&page->foreign, page->foreign + 1);
	if (!e->bad_ack.word) {
		e->bad_ack.word = word;
		e->bad_ack.rank = rank;
		e->bad_ack.entry = kvr_op_entry(e, op);
		e->bad_ack.gen = op->gen;
		e->bad_ack.kind = op->kind;
		e->bad_ack.blocks = op->kind == KVR_OP_STORE ? op->blocks : op->n;
	}
	*ret_value = EBADMSG;
	return KVR_ACK_FAILED;
}

/* A rank's word for this operation: its code, or NONE; a rank that left counts as failed. */
static enum kvr_ack ack_of(struct kvr_engine *e, uint32_t rank, const struct kvr_op *op,
			   uint32_t *ret_value)
{
	const struct kvr_layout *l = &e->group->layout;
	const struct kvr_rank_page *page = kvr_group_rank_page(e->group, rank);
	const void *table = e->group->seg + kvr_layout_rank(l, rank) + l->rank_acks;
	const struct kvr_ack_entry *acks = table;
	uint64_t w = kvr_load_acquire(&acks[kvr_op_entry(e, op)].word); /* A2, pairs with A1 */

	if (!ack_possible(e, op, w))
		return bad_ack(e, rank, op, w, ret_value);
	*ret_value = kvr_word_value(w);
	/* A vote that is taken back counts against it, unless it was counted before. */
	if (kvr_word_gen(w) == op->gen && kvr_word_code(w) == KVR_ACK_WITHDRAWN) {
		*ret_value = ETIMEDOUT;
		return op->stage == KVR_STAGE_BEGUN ? KVR_ACK_FAILED : KVR_ACK_NONE;
	}
	if (kvr_word_gen(w) == op->gen)
		return (enum kvr_ack)kvr_word_code(w);
	if (kvr_load_relaxed32(&page->proc.state) == KVR_PROC_LEFT) {
		*ret_value = ESHUTDOWN;
		return KVR_ACK_FAILED;
	}
	return KVR_ACK_NONE;
}

/* A failure is kept but does not end the step: a rank that did not acknowledge may still copy. */
int kvr_op_acks(struct kvr_engine *e, struct kvr_op *op, enum kvr_ack step)
{
	for (uint64_t left = op->need & ~op->acked; left; left &= left - 1) {
		uint32_t rank = (uint32_t)__builtin_ctzll(left), value;
		enum kvr_ack code = ack_of(e, rank, op, &value);

		if (code == KVR_ACK_NONE || (code != KVR_ACK_FAILED && code < step))
			continue;
		op->acked |= 1ull << rank;
		if (code == KVR_ACK_FAILED) {
			op->good = 0;
			if (!op->status)
				op->status = -(int32_t)value;
		} else if (step == KVR_ACK_VERIFIED && value < op->good) {
			op->good = value; /* also in the DONE of a rank that did not wait */
		}
	}
	show_acks(e, op);
	return (op->need & ~op->acked) == 0;
}

/* --- quarantine
 * ----------------------------------------------------------------------------------- */

/* From when on a rank that acknowledged so touches no byte of the operation's blocks any more. */
static enum kvr_ack quiet(const struct kvr_op *op)
{
	return op->kind == KVR_OP_STORE ? KVR_ACK_COPIED : KVR_ACK_DONE;
}

static uint32_t slots_of(const struct kvr_op *op)
{
	return op->kind == KVR_OP_STORE ? op->blocks : op->n;
}

static void show_held(struct kvr_engine *e, const struct kvr_op *op, int sign)
{
	struct kvr_leader_page *page = kvr_group_leader_page(e->group);

	e->held_ops += (uint64_t)(int64_t)sign;
	e->held_slots += (uint64_t)(sign * (int64_t)slots_of(op));
	kvr_store_relaxed(&page->quarantined_ops, e->held_ops);
	kvr_store_relaxed(&page->quarantined_slots, e->held_slots);
}

static void store_undo(struct kvr_engine *e, struct kvr_op *op)
{
	for (uint32_t i = 0; i < op->n; i++)
		if (op->own[i])
			kvr_tier_kill(&e->tier, op->ids[i], 0);
}

/* Of a load nobody touches a byte before its stage is above `begun`, or it is told to all. */
static uint64_t may_copy(const struct kvr_engine *e, const struct kvr_op *op)
{
	if (op->kind == KVR_OP_LOAD)
		return op->stage > KVR_STAGE_BEGUN ? e->readers : 0;
	return op->kind == KVR_OP_STORE && op->blocks ? e->writers : 0;
}

/* Ends an operation that ranks are in the middle of. */
static void cut(struct kvr_engine *e, struct kvr_op *op, enum kvr_stage stage)
{
	if (op->kind == KVR_OP_STORE)
		store_undo(e, op); /* who joined these blocks is told at once */
	if (op->kind == KVR_OP_PREFETCH)
		kvr_prefetch_stop(e, op);
	if (op->flags & KVR_OP_LAYERED)
		kvr_layers_stop(e, op);
	if (kvr_op_entry(e, op) == e->reset)
		e->reset = KVR_NO_OP;
	end(e, op, stage, op->status, may_copy(e, op));
	if (!op->need)
		return;
	op->held = 1;
	list_add(e, &e->held, op);
	show_held(e, op, 1);
}

void kvr_op_cut(struct kvr_engine *e, struct kvr_op *op, int status)
{
	if (!op->status)
		op->status = status;
	cut(e, op, op->stage == KVR_STAGE_BEGUN ? KVR_STAGE_CANCELLED : KVR_STAGE_FAILED);
}

int kvr_op_abort(struct kvr_engine *e, struct kvr_op *op, int status)
{
	if (op->stage == KVR_STAGE_NONE ||
	    (op->kind == KVR_OP_STORE && op->stage > KVR_STAGE_BEGUN) ||
	    (op->kind == KVR_OP_RESET && op->stage > KVR_STAGE_BEGUN))
		return 0;
	if (!op->status)
		op->status = status;
	if (op->kind == KVR_OP_LOAD)
		op->good = 0;
	cut(e, op, KVR_STAGE_CANCELLED);
	return 1;
}

/* Lets go what no rank can copy any more. */
static int held_progress(struct kvr_engine *e)
{
	int changed = 0;

	for (uint32_t i = e->held, next; i != KVR_NO_OP; i = next) {
		struct kvr_op *op = &e->ops[i];

		next = op->next_op;
		if (!kvr_op_acks(e, op, quiet(op)))
			continue;
		list_remove(e, &e->held, op);
		show_held(e, op, -1);
		kvr_tier_unpin(&e->tier, op->ids, op->n);
		op->held = 0;
		if (op->told)
			kvr_op_free(e, op);
		changed = 1;
	}
	return changed;
}

/* --- stores
 * --------------------------------------------------------------------------------------- */

/*
 * All writers copied: this store's own blocks are whole. Numbered from the last to the first, so
 * that after a restart, too, tails count as older than the heads they need.
 */
static void store_copied(struct kvr_engine *e, struct kvr_op *op)
{
	for (uint32_t i = op->n; i--;) {
		uint32_t id = op->ids[i];
		const struct kvr_index_key *k = &e->tier.keys[id];

		if (!op->own[i])
			continue;
		uint64_t seq = e->tier.next_seq++;
		void *image = kvr_pool_image(&e->pool, e->tier.blocks[id].slot);

		kvr_tier_ready(&e->tier, id, seq,
			       kvr_slot_seal(image, &e->geo, &k->key, k->space, seq,
					     e->info.cache_generation));
	}
	e->stats.blocks_stored += op->blocks;
	e->open_count--;
	kvr_op_stage(e, op, KVR_STAGE_COPIED, 0, 1);
}

/*
 * Every block can be hit, unless one that it joined failed: then the stage is not reached. Those
 * that are not on the store, nor on their way, are written.
 */
static void store_host(struct kvr_engine *e, struct kvr_op *op)
{
	uint64_t now = kvr_now();

	if (op->status)
		return;
	kvr_op_stage(e, op, KVR_STAGE_HOST, 0, 1);
	for (uint32_t i = 0; e->store && i < op->n; i++)
		if (kvr_tier_queue(&e->tier, op->ids[i])) {
			uint64_t at = e->write_tail++ & e->queue_mask;

			e->write_queue[at] = op->ids[i];
			e->write_since[at] = now;
		}
}

static void store_end(struct kvr_engine *e, struct kvr_op *op)
{
	for (uint32_t i = 0; e->store && i < op->n && !op->status; i++) {
		const struct kvr_tier_block *b = &e->tier.blocks[op->ids[i]];

		if (b->dead)
			op->status = -ECANCELED; /* found bad while it was on its way */
		else if (b->where == KVR_NOWHERE)
			op->status = b->error ? b->error : -EIO;
	}
	if (op->status)
		kvr_op_end(e, op, KVR_STAGE_FAILED, op->status);
	else
		kvr_op_end(e, op, e->store ? KVR_STAGE_WRITTEN : KVR_STAGE_DONE, 0);
}

static int store_progress(struct kvr_engine *e, struct kvr_op *op)
{
	const struct kvr_tier_block *b;

	switch (op->stage) {
	case KVR_STAGE_BEGUN:
		if (!kvr_op_acks(e, op, KVR_ACK_COPIED))
			return 0;
		if (!op->status) {
			store_copied(e, op);
			return 1;
		}
		store_undo(e, op);
		kvr_op_end(e, op, KVR_STAGE_FAILED, op->status);
		return 1;
	case KVR_STAGE_COPIED:
		for (; op->next < op->n; op->next++) {
			b = &e->tier.blocks[op->ids[op->next]];
			if (b->copying)
				return 0; /* joined: another store's ranks are at it */
			if (b->dead && !op->status)
				op->status = -ECANCELED;
		}
		store_host(e, op);
		if (op->status)
			kvr_op_end(e, op, KVR_STAGE_FAILED, op->status);
		return 1;
	case KVR_STAGE_HOST:
		for (; op->next < op->n; op->next++) {
			b = &e->tier.blocks[op->ids[op->next]];
			if (b->queued || b->writing)
				return 0;
			e->stats.blocks_written += op->own[op->next] && b->where != KVR_NOWHERE;
		}
		store_end(e, op);
		return 1;
	default:
		return 0;
	}
}

/* --- loads
 * ---------------------------------------------------------------------------------------- */

/* The first block that is not good on every rank is a miss from now on. */
void kvr_load_bad(struct kvr_engine *e, struct kvr_op *op)
{
	if (op->good == op->n || op->status || e->tier.blocks[op->ids[op->good]].dead)
		return;
	kvr_tier_kill(&e->tier, op->ids[op->good], 1);
	e->stats.blocks_bad++;
}

/* 1: all blocks are in the pool, or found bad: op->good of them are whole. */
int kvr_load_read(struct kvr_engine *e, struct kvr_op *op)
{
	for (; op->next < op->n; op->next++) {
		const struct kvr_tier_block *b = &e->tier.blocks[op->ids[op->next]];

		if (b->reading)
			return 0;
		if (b->dead && op->next < op->good)
			op->good = op->next;
	}
	return 1;
}

static int load_progress(struct kvr_engine *e, struct kvr_op *op)
{
	if (op->flags & KVR_OP_LAYERED && op->stage <= KVR_STAGE_HOST)
		return kvr_layers_progress(e, op);
	switch (op->stage) {
	case KVR_STAGE_BEGUN:
	case KVR_STAGE_COMMITTED:
		if (!kvr_load_read(e, op))
			return 0;
		kvr_op_stage(e, op, KVR_STAGE_HOST, op->good, 0);
		return 1;
	case KVR_STAGE_HOST:
		if (!kvr_op_acks(e, op, KVR_ACK_VERIFIED))
			return 0;
		kvr_load_bad(e, op);
		e->stats.blocks_loaded += op->good;
		kvr_op_stage(e, op, KVR_STAGE_VERIFIED, op->good, 0);
		return 1;
	case KVR_STAGE_VERIFIED:
		if (!kvr_op_acks(e, op, KVR_ACK_DONE))
			return 0;
		if (op->status)
			kvr_op_end(e, op, KVR_STAGE_FAILED, op->status);
		else
			kvr_op_end(e, op, KVR_STAGE_DONE, 0);
		return 1;
	default:
		return 0;
	}
}

static int progress(struct kvr_engine *e, struct kvr_op *op)
{
	switch (op->kind) {
	case KVR_OP_STORE:
		return store_progress(e, op);
	case KVR_OP_LOAD:
		return load_progress(e, op);
	case KVR_OP_PREFETCH:
		return kvr_prefetch_progress(e, op);
	case KVR_OP_DECISION:
		return kvr_decision_progress(e, op);
	default:
		return kvr_reset_progress(e, op);
	}
}

int kvr_ops_progress(struct kvr_engine *e)
{
	int changed = held_progress(e);

	for (uint32_t i = e->active, next; i != KVR_NO_OP; i = next) {
		struct kvr_op *op = &e->ops[i];

		next = op->next_op;
		while (progress(e, op))
			changed = 1;
	}
	return changed;
}

void kvr_ops_lose(struct kvr_engine *e, int status)
{
	for (uint32_t i = e->active, next; i != KVR_NO_OP; i = next) {
		struct kvr_op *op = &e->ops[i];

		next = op->next_op;
		if (op->stage != KVR_STAGE_NONE)
			kvr_op_end(e, op, KVR_STAGE_LOST, status);
	}
}
