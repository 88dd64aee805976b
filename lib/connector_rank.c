/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's part of lookup and store: takes answers, copies, hashes, acknowledges. */
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

/* --- answers
 * -------------------------------------------------------------------------------------- */

int kvr_rank_bad_message(struct kvr_connector *c, const struct kvr_message *m, const char *why)
{
	return KVR_FAIL(-EBADMSG, "rank %u: message %llu of channel %s (%s, %u bytes): %s", c->rank,
			(unsigned long long)m->number, kvr_channel_name(m->channel),
			kvr_tag_name(m->tag), m->len, why);
}

#define LOOKED 64u /* lookups without a hit that are remembered: nobody has to release them */

static struct kvr_rank_lookup *looked(struct kvr_rank_ops *k, const struct kvr_request *req)
{
	for (uint32_t i = 0; i < k->looked_n; i++)
		if (k->looked[i].number && kvr_request_equal(&k->looked[i].req, req))
			return &k->looked[i];
	return NULL;
}

/* A free entry, or the oldest that holds no hit once there are enough; NULL: none. */
static struct kvr_rank_lookup *looked_place(struct kvr_connector *c)
{
	struct kvr_rank_ops *k = &c->known;
	struct kvr_rank_lookup *old = NULL;

	for (uint32_t i = 0; i < k->looked_n; i++) {
		struct kvr_rank_lookup *l = &k->looked[i];

		if (!l->number)
			return l;
		if (!l->blocks && (!old || l->number < old->number))
			old = l;
	}
	if (k->looked_n < LOOKED || (!old && k->looked_n < c->group->layout.ops))
		return k->looked_n < c->group->layout.ops ? &k->looked[k->looked_n++] : old;
	return old;
}

static void looked_up(struct kvr_connector *c, const struct kvr_request *req, uint64_t number,
		      uint32_t blocks)
{
	struct kvr_rank_lookup *l = looked(&c->known, req);

	if (!l)
		l = looked_place(c);
	if (l)
		*l = (struct kvr_rank_lookup){ *req, number, blocks };
}

int kvr_rank_lookup(struct kvr_connector *c, const struct kvr_request *req,
		    const struct kvr_key *keys, uint32_t n, uint64_t deadline_ns,
		    struct kvr_hit *ret_hit)
{
	struct kvr_wire_lookup w;
	struct kvr_message m;
	int err = kvr_channels_take_for(c->channels, KVR_CH_LOOKUP, KVR_TAG_LOOKUP_RESULT, req,
					deadline_ns, &m);

	if (err)
		return err;
	c->answered = 1;
	looked_up(c, req, m.number, 0);
	if (m.len != sizeof w)
		return kvr_rank_bad_message(c, &m, "not the size of a lookup's answer");
	memcpy(&w, m.data, sizeof w);
	err = kvr_input_lookup(c, &m, &w);
	if (err)
		return err;
	if (w.status < 0)
		return KVR_FAIL(w.status, "lookup of request %llu/%u failed in the leader: %s",
				(unsigned long long)req->id, req->attempt, kvr_strerror(w.status));
	if (w.keys != kvr_keys_sum(req->space, keys, n))
		return KVR_FAIL(-EPROTO,
				"rank %u: lookup of request %llu/%u: its %u keys are not the "
				"leader's; all ranks must pass the same keys",
				c->rank, (unsigned long long)req->id, req->attempt, n);
	if (w.blocks > n || w.blocks > c->config.max_blocks || w.host > w.blocks)
		return kvr_rank_bad_message(
			c, &m,
			"a longer hit than was asked for; do all ranks pass the "
			"same keys?");
	looked_up(c, req, m.number, w.blocks);
	*ret_hit =
		(struct kvr_hit){ .blocks = w.blocks, .host = w.host, .nvme = w.blocks - w.host };
	return 0;
}

/* Bounds the blocks of an answer and remembers the operation. */
static int begin_known(struct kvr_connector *c, uint32_t kind, const struct kvr_request *req,
		       uint32_t n, const struct kvr_engine_answer *a, const struct kvr_message *m,
		       struct kvr_rank_op **ret_op)
{
	struct kvr_engine_block *list;
	struct kvr_rank_op *op;
	int err;

	if (a->count > n || a->count > c->config.max_blocks || a->covered > n)
		return kvr_rank_bad_message(
			c, m,
			"more blocks than were asked for; do all ranks pass the "
			"same keys?");
	op = kvr_rank_op_exact(&c->known, req, kind, a->entry, a->gen);
	if (op && op->stage == KVR_STAGE_CANCELLED && op->since && kind != KVR_OP_PREFETCH)
		return KVR_FAIL(op->status ? op->status : -ECANCELED,
				"rank %u: the %s of request %llu/%u was cancelled before this rank "
				"began it",
				c->rank, kvr_op_kind_name(kind), (unsigned long long)req->id,
				req->attempt);
	/* A second list of blocks would pass for the one that was verified. */
	if (op && !op->since)
		return kvr_rank_bad_message(c, m, "this rank began that operation before");
	op = kvr_rank_op_add(c, req, kind, a);
	if (!op)
		return KVR_FAIL(-ENOBUFS,
				"rank %u: %u operations are open here; call store_copied, "
				"load_done and check_completed for those that ended",
				c->rank, c->known.capacity);
	*ret_op = op;
	if (op->list == KVR_NO_LIST)
		return 0;
	list = kvr_rank_list(c, op);
	memcpy(list, (const uint8_t *)m->data + sizeof *a, a->count * sizeof *list);
	err = kvr_input_blocks(c, m, kind == KVR_OP_STORE, a, list);
	if (err)
		kvr_rank_op_forget(&c->known, op);
	return err;
}

static const char *refusal(uint32_t reason)
{
	switch (reason) {
	case KVR_REFUSED_POOL:
		return "; all slots of the pool are pinned, being copied or written";
	case KVR_REFUSED_TABLE:
		return "; its operation table is full; call check_completed";
	case KVR_REFUSED_OPEN:
		return "; too many operations wait for ranks";
	default:
		return "";
	}
}

int kvr_rank_take_begin(struct kvr_connector *c, uint32_t kind, const struct kvr_request *req,
			uint32_t n, uint64_t deadline_ns, struct kvr_engine_answer *ret_answer,
			struct kvr_rank_op **ret_op, struct kvr_message *ret_message)
{
	struct kvr_engine_answer a;
	struct kvr_message m;
	int err;

	if (deadline_ns < UINT64_MAX - KVR_ANSWER_GRACE_NS)
		deadline_ns += KVR_ANSWER_GRACE_NS;
	err = kvr_channels_take_for(c->channels, kvr_begins[kind].channel, kvr_begins[kind].tag,
				    req, deadline_ns, &m);
	if (err)
		return err;
	c->answered = 1;
	if (m.len < sizeof a)
		return kvr_rank_bad_message(c, &m, "shorter than its fixed part");
	memcpy(&a, m.data, sizeof a);
	err = kvr_input_answer(c, &m, kind, n, &a);
	if (!err && a.status < 0)
		return KVR_FAIL(a.status, "%s of request %llu/%u was refused by the leader: %s%s",
				kvr_op_kind_name(kind), (unsigned long long)req->id, req->attempt,
				kvr_strerror(a.status), refusal(a.reason));
	*ret_answer = a;
	if (!err && !a.gen)
		return 0; /* nothing is left to load, or to prefetch: no operation */
	*ret_message = m;
	if (!err)
		err = begin_known(c, kind, req, n, &a, &m, ret_op);
	if (kind != KVR_OP_DECISION && kind != KVR_OP_RESET) /* whose rest is still to be read */
		kvr_channels_give_back(c->channels, kvr_begins[kind].channel);
	/* The leader counts on this rank: say that it will not come. */
	if (err && a.entry < c->group->layout.ops)
		kvr_rank_acknowledge(c, a.entry, a.gen, KVR_ACK_FAILED, (uint32_t)-err);
	return err;
}

void kvr_rank_fill(struct kvr_connector *c, const struct kvr_rank_op *op, uint32_t n,
		   struct kvr_block *ret_blocks)
{
	const struct kvr_engine_block *list = kvr_rank_list(c, op);

	for (uint32_t i = 0; i < n; i++)
		ret_blocks[i] = (struct kvr_block){
			.index = list[i].index,
			.slot = list[i].slot,
			.payload = kvr_pool_image(&c->pool, list[i].slot) + c->geo.header_bytes,
		};
}

int kvr_rank_store_begin(struct kvr_connector *c, const struct kvr_request *req,
			 const struct kvr_key *keys, uint32_t n, uint64_t deadline_ns,
			 struct kvr_block *ret_blocks, uint32_t *ret_covered)
{
	struct kvr_engine_answer a;
	struct kvr_rank_op *op = NULL;
	struct kvr_message m;
	int err = kvr_rank_take_begin(c, KVR_OP_STORE, req, n, deadline_ns, &a, &op, &m);

	if (err || !op) /* no store is without an operation: kvr_input_answer() */
		return err;
	for (uint32_t i = 0; i < a.count; i++) {
		const struct kvr_engine_block *b = &kvr_rank_list(c, op)[i];
		const struct kvr_key *key = &keys[b->index];

		if (b->sum != kvr_hash(key, sizeof *key, req->space)) {
			kvr_rank_answer(c, op, KVR_ACK_FAILED, EPROTO);
			kvr_rank_list_drop(c, op);
			return KVR_FAIL(
				-EPROTO,
				"rank %u: store of request %llu/%u: key %u differs from the "
				"leader's; all ranks must pass the same keys",
				c->rank, (unsigned long long)req->id, req->attempt, b->index);
		}
		err = kvr_input_slot(c, op, b, key);
		if (err) {
			kvr_rank_answer(c, op, KVR_ACK_FAILED, (uint32_t)-err);
			kvr_rank_list_drop(c, op);
			return err;
		}
	}
	kvr_rank_fill(c, op, a.count, ret_blocks);
	*ret_covered = a.covered;
	if (!a.count)
		kvr_rank_list_drop(c, op);
	return (int)a.count;
}

int kvr_rank_store_copied(struct kvr_connector *c, const struct kvr_request *req, int status)
{
	struct kvr_rank_op *op = kvr_rank_op_find(&c->known, req, KVR_OP_STORE);

	if (status > 0 || status < -4095)
		return KVR_FAIL(-EINVAL, "store_copied: status %d; 0 or a negative errno", status);
	if (!op) {
		kvr_rank_count(&kvr_rank_page(c)->foreign);
		return kvr_rank_unknown(c, req, KVR_OP_STORE);
	}
	if (op->answered || !op->n || op->stage == KVR_STAGE_LOST) {
		if (op->answered)
			kvr_rank_count(&kvr_rank_page(c)->duplicate);
		return 0;
	}
	if (op->list == KVR_NO_LIST || kvr_rank_op_ended(c, op)) {
		/* Nobody waited for this rank; or the slots wait for its word in quarantine. */
		if (kvr_rank_writes(c))
			kvr_rank_count(&kvr_rank_page(c)->late);
		kvr_rank_give_up(c, op);
		return 0;
	}
	if (status < 0) {
		kvr_rank_answer(c, op, KVR_ACK_FAILED, (uint32_t)-status);
	} else {
		for (uint32_t i = 0; i < op->n; i++)
			kvr_rank_hash(c, kvr_rank_list(c, op)[i].slot);
		kvr_rank_answer(c, op, KVR_ACK_COPIED, op->n);
	}
	kvr_rank_list_drop(c, op);
	return 0;
}

int kvr_rank_wait_store(struct kvr_connector *c, const struct kvr_request *req,
			enum kvr_stage stage, uint64_t deadline_ns)
{
	struct kvr_rank_op *op = kvr_rank_op_find(&c->known, req, KVR_OP_STORE);
	uint32_t value;

	return op ? kvr_rank_wait_op(c, op, stage, deadline_ns, &value)
		  : kvr_rank_unknown(c, req, KVR_OP_STORE);
}

/* --- the end of a request
 * ------------------------------------------------------------------------- */

/*
 * The leader may be ahead, and what waits in the ring be the answer to a later call of that name.
 * So only a call that had no answer here takes one away, the oldest; and of loads only one that
 * uses the pin of this lookup, or of one before it.
 */
static int drop_one(struct kvr_connector *c, uint32_t kind, const struct kvr_request *req,
		    uint32_t open, int (*fn)(void *, const struct kvr_message *), void *arg)
{
	int n = kvr_channels_forget_if(c->channels, kvr_begins[kind].channel, kvr_begins[kind].tag,
				       req, fn, arg);

	_Static_assert(KVR_ALIKE_LOOKUP == (int)KVR_KIND_LOOKUP &&
			       KVR_ALIKE_RESET == (int)KVR_KIND_RESET,
		       "a log for each kind");
	/* A call that this rank spares itself counts as made: the others made it. */
	if (n > 0 && !(open >> kind & 1)) {
		kvr_alike_call(&c->alike, (enum kvr_alike)kind, req, 0, NULL);
		kvr_alike_answered(&c->alike, (enum kvr_alike)kind);
	}
	return n;
}

static int keep_number(void *arg, const struct kvr_message *m)
{
	*(uint64_t *)arg = m->number;
	return 1;
}

static int of_lookup(void *arg, const struct kvr_message *m)
{
	struct kvr_engine_answer a;

	if (m->len < sizeof a)
		return 1;
	memcpy(&a, m->data, sizeof a);
	return a.lookup <= *(const uint64_t *)arg;
}

void kvr_rank_release(struct kvr_connector *c, const struct kvr_request *req, uint32_t open)
{
	struct kvr_rank_lookup *l = looked(&c->known, req);
	uint64_t number = l ? l->number : 0;

	if (l)
		l->number = 0;
	else if (c->known.looked_n < c->group->layout.ops)
		drop_one(c, KVR_KIND_LOOKUP, req, open, keep_number, &number);
	while (number && drop_one(c, KVR_OP_LOAD, req, open, of_lookup, &number) > 0)
		;
}

void kvr_rank_prefetch_cancel(struct kvr_connector *c, const struct kvr_request *req)
{
	struct kvr_rank_op *op = kvr_rank_op_find(&c->known, req, KVR_OP_PREFETCH);

	if (op && !op->since && !op->closed)
		op->closed = 1;
	else
		drop_one(c, KVR_OP_PREFETCH, req, 1u << KVR_OP_PREFETCH, NULL, NULL);
}

static void op_abort(struct kvr_connector *c, struct kvr_rank_op *op)
{
	op->closed = 1;
	if (op->answered || op->kind == KVR_OP_PREFETCH || op->kind == KVR_OP_RESET ||
	    (op->kind == KVR_OP_STORE && !op->n) || (op->kind == KVR_OP_DECISION && op->voted))
		return;
	if (op->kind == KVR_OP_LOAD && op->voted)
		kvr_rank_answer(c, op, KVR_ACK_DONE, op->good);
	kvr_rank_give_up(c, op);
}

void kvr_rank_abort(struct kvr_connector *c, const struct kvr_request *req, uint32_t open)
{
	static const uint32_t kinds[] = { KVR_OP_STORE, KVR_OP_LOAD, KVR_OP_PREFETCH,
					  KVR_OP_DECISION, KVR_OP_RESET };

	kvr_rank_release(c, req, open);
	for (uint32_t i = 0; i < KVR_ARRAY_LEN(kinds); i++) {
		struct kvr_rank_op *op = kvr_rank_op_find(&c->known, req, kinds[i]);

		if (op && !op->since && !op->closed)
			op_abort(c, op);
		else if (kinds[i] != KVR_OP_LOAD) /* release did */
			drop_one(c, kinds[i], req, open, NULL, NULL);
	}
}
