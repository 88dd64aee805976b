/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank knows of operations: their table, lists of blocks, acknowledgements, and waits. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atomic.h"
#include "channel_priv.h"
#include "connector_rank.h"
#include "err.h"
#include "hash.h"
#include "util.h"

/* --- what this rank knows of operations
 * ----------------------------------------------------------- */

static uint32_t bucket_of(const struct kvr_rank_ops *k, const struct kvr_request *req,
			  uint32_t kind)
{
	return (uint32_t)kvr_hash(req, sizeof *req, kind) & (k->capacity - 1);
}

struct kvr_rank_op *kvr_rank_op_find(struct kvr_rank_ops *k, const struct kvr_request *request,
				     uint32_t kind)
{
	struct kvr_request req = kvr_request_name(request);

	for (uint32_t i = k->buckets[bucket_of(k, &req, kind)]; i != KVR_NO_LIST;
	     i = k->ops[i].next)
		if (k->ops[i].kind == kind && kvr_request_equal(&k->ops[i].req, &req))
			return &k->ops[i];
	return NULL;
}

/* Of the operations of one name the newest is found by it; of this one there is none other. */
struct kvr_rank_op *kvr_rank_op_exact(struct kvr_rank_ops *k, const struct kvr_request *request,
				      uint32_t kind, uint32_t entry, uint32_t gen)
{
	struct kvr_request req = kvr_request_name(request);

	for (uint32_t i = k->buckets[bucket_of(k, &req, kind)]; i != KVR_NO_LIST;
	     i = k->ops[i].next)
		if (k->ops[i].kind == kind && k->ops[i].entry == entry && k->ops[i].gen == gen &&
		    kvr_request_equal(&k->ops[i].req, &req))
			return &k->ops[i];
	return NULL;
}

void kvr_rank_op_forget(struct kvr_rank_ops *k, struct kvr_rank_op *op)
{
	uint32_t *link = &k->buckets[bucket_of(k, &op->req, op->kind)];

	while (&k->ops[*link] != op)
		link = &k->ops[*link].next;
	*link = op->next;
	if (op->list < KVR_OPEN_LISTS)
		k->lists_used &= ~(1ull << op->list);
	op->used = 0;
}

uint64_t kvr_rank_op_word(const struct kvr_connector *c, uint32_t entry)
{
	const struct kvr_layout *l = &c->group->layout;
	const void *table = c->group->seg + l->leader_ops;
	const struct kvr_op_entry *entries = table;

	return kvr_load_acquire(&entries[entry].word); /* O2, pairs with O1 */
}

int kvr_rank_op_ended(const struct kvr_connector *c, const struct kvr_rank_op *op)
{
	uint64_t w = kvr_rank_op_word(c, op->entry);

	return op->stage || kvr_word_gen(w) != op->gen || kvr_word_code(w) >= KVR_STAGE_END;
}

/* An entry is used again only after a tick that told the end of the operation before. */
int kvr_rank_op_told(const struct kvr_connector *c, const struct kvr_rank_op *op, uint64_t done)
{
	uint32_t gen = kvr_word_gen(kvr_rank_op_word(c, op->entry));

	return (op->stage && op->end_tick <= done) || (gen && (int32_t)(gen - op->gen) > 0);
}

void kvr_rank_list_drop(struct kvr_connector *c, struct kvr_rank_op *op)
{
	if (op->list < KVR_OPEN_LISTS)
		c->known.lists_used &= ~(1ull << op->list);
	op->list = KVR_NO_LIST;
}

/* Lists of operations that ended without this rank's acknowledgement: it was not needed for them.
 */
static void lists_reclaim(struct kvr_connector *c)
{
	struct kvr_rank_ops *k = &c->known;

	for (uint32_t i = 0; i < k->capacity && !~k->lists_used; i++)
		if (k->ops[i].used && k->ops[i].list != KVR_NO_LIST &&
		    kvr_rank_op_ended(c, &k->ops[i]))
			kvr_rank_list_drop(c, &k->ops[i]);
}

static int has_list(uint32_t kind)
{
	return kind == KVR_OP_STORE || kind == KVR_OP_LOAD;
}

/* The leader holds its blocks until this rank said that it is done with them. */
static int owes_an_answer(const struct kvr_rank_op *op)
{
	return !op->since && !op->answered &&
	       ((op->stage == KVR_STAGE_CANCELLED && has_list(op->kind)) ||
		(op->stage == KVR_STAGE_FAILED && op->layered));
}

static int may_go(const struct kvr_connector *c, const struct kvr_rank_op *op, uint64_t done)
{
	return !op->held && !owes_an_answer(op) && kvr_rank_op_told(c, op, done);
}

/*
 * A place for a new operation: the oldest of which a tick told the end. What no tick told stays,
 * for it may be lost with the epoch; also when its name is used again, which the leader allows as
 * soon as it ended. NULL: everything here is still open, which the leader's own bound (entries)
 * excludes for a rank that takes its completions.
 */
struct kvr_rank_op *kvr_rank_op_place(struct kvr_connector *c, const struct kvr_request *req,
				      uint32_t kind, uint32_t entry, uint32_t gen)
{
	struct kvr_rank_ops *k = &c->known;
	struct kvr_rank_op *op = kvr_rank_op_find(k, req, kind);
	uint64_t done = kvr_rank_done(c);
	uint32_t *bucket;

	if (op && may_go(c, op, done))
		kvr_rank_op_forget(k, op);
	op = NULL;
	for (uint32_t i = 0; i < k->capacity; i++) {
		op = &k->ops[k->cursor++ & (k->capacity - 1)];
		if (!op->used)
			break;
		if (may_go(c, op, done)) {
			kvr_rank_op_forget(k, op);
			break;
		}
		op = NULL;
	}
	if (!op)
		return NULL;
	*op = (struct kvr_rank_op){ .req = kvr_request_name(req),
				    .used = 1,
				    .kind = kind,
				    .entry = entry,
				    .gen = gen,
				    .list = KVR_NO_LIST,
				    .since = UINT64_MAX };
	bucket = &k->buckets[bucket_of(k, &op->req, kind)];
	op->next = *bucket;
	*bucket = (uint32_t)(op - k->ops);
	return op;
}

/* Completions may have told of it before. */
struct kvr_rank_op *kvr_rank_op_add(struct kvr_connector *c, const struct kvr_request *req,
				    uint32_t kind, const struct kvr_engine_answer *a)
{
	struct kvr_rank_ops *k = &c->known;
	struct kvr_rank_op *op = kvr_rank_op_exact(k, req, kind, a->entry, a->gen);

	lists_reclaim(c);
	if (has_list(kind) && !~k->lists_used)
		return NULL;
	if (!op)
		op = kvr_rank_op_place(c, req, kind, a->entry, a->gen);
	if (!op && !kvr_rank_pull(c)) /* what ended meanwhile makes room */
		op = kvr_rank_op_place(c, req, kind, a->entry, a->gen);
	if (!op)
		return NULL;
	op->since = 0;
	op->n = a->count;
	op->layered = a->flags & KVR_OP_LAYERED;
	if (!has_list(kind))
		return op;
	op->list = (uint32_t)__builtin_ctzll(~k->lists_used);
	k->lists_used |= 1ull << op->list;
	return op;
}

struct kvr_engine_block *kvr_rank_list(struct kvr_connector *c, const struct kvr_rank_op *op)
{
	return c->known.lists + (size_t)op->list * c->config.max_blocks;
}

void kvr_rank_acknowledge(struct kvr_connector *c, uint32_t entry, uint32_t gen, enum kvr_ack code,
			  uint32_t value)
{
	void *table = c->group->own + c->group->layout.rank_acks;
	struct kvr_ack_entry *acks = table;

	/* An operation that ended without us: its entry may be another's by now, and the word, too.
	 */
	if (kvr_word_gen(kvr_rank_op_word(c, entry)) != gen)
		return;
	/* The bytes and sums that this rank wrote come before it. */
	kvr_store_release(&acks[entry].word, kvr_word(gen, code, value)); /* A1, pairs with A2 */
	kvr_group_ring_leader(c->group);
}

void kvr_rank_answer(struct kvr_connector *c, struct kvr_rank_op *op, enum kvr_ack code,
		     uint32_t value)
{
	op->answered |= code == KVR_ACK_COPIED || code == KVR_ACK_DONE || code == KVR_ACK_FAILED;
	kvr_rank_acknowledge(c, op->entry, op->gen, code, value);
}

void kvr_rank_give_up(struct kvr_connector *c, struct kvr_rank_op *op)
{
	if (!op->answered)
		kvr_rank_answer(c, op, KVR_ACK_FAILED, ECANCELED);
	kvr_rank_list_drop(c, op);
}

/*
 * The answer to a begin that this rank never asked for (it skipped an aborted request) expires. The
 * leader waits for this rank: say that it will not come, so that the operation ends on all.
 */
void kvr_rank_begin_dropped(void *arg, const struct kvr_message *m)
{
	struct kvr_connector *c = arg;
	struct kvr_engine_answer a;

	if ((m->tag != KVR_TAG_STORE_BEGIN && m->tag != KVR_TAG_LOAD_BEGIN &&
	     m->tag != KVR_TAG_PROPOSE && m->tag != KVR_TAG_RESET) ||
	    m->len < sizeof a)
		return;
	memcpy(&a, m->data, sizeof a);
	if (!a.status && a.entry < c->group->layout.ops)
		kvr_rank_acknowledge(c, a.entry, a.gen, KVR_ACK_FAILED, ECANCELED);
}

/*
 * A leader in the middle of a tick waits for room on COMPLETE and answers nobody: a rank that waits
 * for an answer takes completions meanwhile. An error comes again with the next check_completed.
 */
static void make_room(void *arg)
{
	kvr_rank_pull(arg);
}

int kvr_rank_open(struct kvr_connector *c)
{
	struct kvr_rank_ops *k = &c->known;

	kvr_channels_whole(c->channels, 1u << KVR_CH_LOOKUP | 1u << KVR_CH_STORE |
						1u << KVR_CH_COMPLETE | 1u << KVR_CH_LOAD |
						1u << KVR_CH_PREFETCH | 1u << KVR_CH_CONTROL);
	kvr_channels_on_drop(c->channels, kvr_rank_begin_dropped, c);
	kvr_channels_on_wait(c->channels, make_room, c);
	/* What the leader may have open, and what it may tell before this rank asks: all begins
	 * that fit into two rings and stashes. */
	k->capacity = 64;
	while (k->capacity <
	       4 * c->group->layout.ops + 2 * (c->group->layout.ring_bytes / 64 + KVR_STASH))
		k->capacity *= 2;
	k->pending_mask = 4095;
	k->ops = calloc(k->capacity, sizeof *k->ops);
	k->buckets = malloc(k->capacity * sizeof *k->buckets);
	k->lists = calloc((size_t)KVR_OPEN_LISTS * c->config.max_blocks, sizeof *k->lists);
	k->pending = calloc(k->pending_mask + 1, sizeof *k->pending);
	k->header = malloc(c->geo.header_bytes);
	k->looked = calloc(c->group->layout.ops, sizeof *k->looked);
	if (!k->ops || !k->buckets || !k->lists || !k->pending || !k->header || !k->looked)
		return KVR_FAIL(-ENOMEM, "rank %u: no memory for %u operations", c->rank,
				k->capacity);
	memset(k->buckets, 0xff, k->capacity * sizeof *k->buckets);
	return 0;
}

void kvr_rank_close(struct kvr_connector *c)
{
	free(c->known.ops);
	free(c->known.buckets);
	free(c->known.lists);
	free(c->known.pending);
	free(c->known.header);
	free(c->known.looked);
}

/* The sentence of an operation that has no other end. */
int kvr_rank_lost(struct kvr_connector *c, const struct kvr_rank_op *op)
{
	int cause = kvr_group_check(c->group);

	if (!cause)
		cause = KVR_FAIL(op->status < 0 ? op->status : -ECANCELED,
				 "its word says so, and the group seems well");
	return KVR_FAIL(cause, "rank %u: the %s of request %llu/%u was lost with epoch %llu: %s",
			c->rank, kvr_op_kind_name(op->kind), (unsigned long long)op->req.id,
			op->req.attempt, (unsigned long long)kvr_group_epoch(c->group),
			kvr_explain());
}

int kvr_rank_unknown(struct kvr_connector *c, const struct kvr_request *req, uint32_t kind)
{
	return KVR_FAIL(-ENOENT, "rank %u knows no %s of request %llu/%u", c->rank,
			kvr_op_kind_name(kind), (unsigned long long)req->id, req->attempt);
}

/* --- waiting for an operation's word
 * -------------------------------------------------------------- */

struct word_wait {
	struct kvr_connector *c;
	struct kvr_rank_op *op;
	enum kvr_stage stage;
	uint32_t layers; /* 0; or so many layer groups, instead of a stage */
	uint32_t value;
	int failed; /* with a sentence of its own */
};

static int word_failed(struct word_wait *w, uint32_t stage, int status)
{
	const struct kvr_rank_op *op = w->op;

	w->failed = 1;
	if (stage == KVR_STAGE_LOST)
		return kvr_rank_lost(w->c, op);
	return KVR_FAIL(status < 0 ? status : -ECANCELED,
			"rank %u: the %s of request %llu/%u ended as %s: %s", w->c->rank,
			kvr_op_kind_name(op->kind), (unsigned long long)op->req.id, op->req.attempt,
			kvr_stage_name(stage), kvr_strerror(status));
}

/*
 * It ended, badly, after it had reached that stage. What a store or a decision reached stays true;
 * of a load only that all had agreed to it: its blocks are gone.
 */
static int had_reached(const struct word_wait *w, uint32_t reached)
{
	if (w->op->kind == KVR_OP_LOAD && (w->layers || w->stage != KVR_STAGE_COMMITTED))
		return 0;
	return reached >= (uint32_t)w->stage;
}

/* The entry was used again, so this operation's end was published: the completions have it. */
static int word_recycled(struct word_wait *w)
{
	struct kvr_rank_op *op = w->op;
	int err = op->stage ? 0 : kvr_rank_pull(w->c);

	if (err && !op->stage)
		return err;
	if (!op->stage) {
		w->failed = 1;
		return KVR_FAIL(
			-ENOENT,
			"rank %u: the %s of request %llu/%u ended before this rank began it; "
			"its completions were given out",
			w->c->rank, kvr_op_kind_name(op->kind), (unsigned long long)op->req.id,
			op->req.attempt);
	}
	w->value = op->good;
	if (op->stage < KVR_STAGE_FAILED ? op->reached >= w->stage : had_reached(w, op->reached))
		return 1;
	return word_failed(w, op->stage, op->status);
}

/* Layer groups that are in the pool; of another operation's none count. */
static uint32_t layers_of(const struct kvr_connector *c, const struct kvr_rank_op *op)
{
	const void *table = c->group->seg + c->group->layout.leader_ops;
	const struct kvr_op_entry *entries = table;
	uint64_t w = kvr_load_acquire(&entries[op->entry].layers); /* L2, pairs with L1 */

	return (uint32_t)(w >> 32) == op->gen ? (uint32_t)w : 0;
}

static int word_ready(void *arg)
{
	struct word_wait *w = arg;
	struct kvr_rank_op *op = w->op;
	uint32_t told = op->reached; /* before the word is read */
	uint64_t word = kvr_rank_op_word(w->c, op->entry);
	uint32_t stage = kvr_word_code(word), value = kvr_word_value(word);
	int err;

	/* Of a leader that another one replaces no word counts any more: whoever read it later
	 * would have another answer. The group's check says why. */
	if (!kvr_group_untouched(w->c->group))
		return 0;

	/* So the caller was told: a leader that lives on changes nothing any more. */
	if (op->stage == KVR_STAGE_LOST)
		return had_reached(w, op->reached) ? 1 : word_failed(w, KVR_STAGE_LOST, op->status);
	err = kvr_input_word(w->c, op, word, told);
	if (err) {
		w->failed = 1;
		return err;
	}
	if (kvr_word_gen(word) != op->gen)
		return word_recycled(w);
	make_room(w->c);
	if (stage >= KVR_STAGE_FAILED) {
		if (had_reached(w, value >> 16))
			return 1;
		return word_failed(w, stage, -(int)(value & 0xffff));
	}
	w->value = value;
	return w->layers ? layers_of(w->c, op) >= w->layers : stage >= w->stage;
}

static int wait_word(struct word_wait *w, uint64_t deadline_ns, const char *what)
{
	struct kvr_rank_op *op = w->op;
	int err;

	op->held = 1; /* completions that are taken meanwhile must not reuse it */
	err = kvr_group_wait(w->c->group, word_ready, w, deadline_ns, what);
	op->held = 0;
	if (err < 0 && !w->failed && kvr_group_check(w->c->group))
		err = kvr_rank_lost(w->c, op);
	return err > 0 ? 0 : err;
}

int kvr_rank_wait_op(struct kvr_connector *c, struct kvr_rank_op *op, enum kvr_stage stage,
		     uint64_t deadline_ns, uint32_t *ret_value)
{
	struct word_wait w = { .c = c, .op = op, .stage = stage };
	char what[96];
	int err;

	snprintf(what, sizeof what, "stage %s of the %s of request %llu/%u", kvr_stage_name(stage),
		 kvr_op_kind_name(op->kind), (unsigned long long)op->req.id, op->req.attempt);
	err = wait_word(&w, deadline_ns, what);
	if (!err)
		*ret_value = w.value;
	return err;
}

int kvr_rank_wait_layers(struct kvr_connector *c, struct kvr_rank_op *op, uint32_t groups,
			 uint64_t deadline_ns)
{
	struct word_wait w = { .c = c, .op = op, .stage = KVR_STAGE_VERIFIED, .layers = groups };
	char what[96];

	snprintf(what, sizeof what, "layer group %u of the load of request %llu/%u", groups - 1,
		 (unsigned long long)op->req.id, op->req.attempt);
	return wait_word(&w, deadline_ns, what);
}
