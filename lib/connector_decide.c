/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's part of prefetches, decisions and resets. */
#include <errno.h>
#include <string.h>

#include "channel_priv.h"
#include "connector_rank.h"
#include "err.h"
#include "util.h"

int kvr_rank_prefetch(struct kvr_connector *c, const struct kvr_request *req, uint32_t n,
		      uint64_t deadline_ns)
{
	struct kvr_engine_answer a;
	struct kvr_rank_op *op;
	struct kvr_message m;
	int err = kvr_rank_take_begin(c, KVR_OP_PREFETCH, req, n, deadline_ns, &a, &op, &m);

	return err ? err : (int)a.count;
}

int kvr_rank_prefetch_status(struct kvr_connector *c, const struct kvr_request *req,
			     uint32_t *ret_done)
{
	struct kvr_rank_op *op = kvr_rank_op_find(&c->known, req, KVR_OP_PREFETCH);
	uint32_t told, done = 0;
	uint64_t word;
	int err;

	if (!op)
		return kvr_rank_unknown(c, req, KVR_OP_PREFETCH);
	told = op->reached;
	word = kvr_rank_op_word(c, op->entry);
	err = kvr_input_word(c, op, word, told);
	if (err)
		return err;
	if (kvr_word_gen(word) == op->gen && kvr_word_code(word) < KVR_STAGE_END && !op->stage) {
		*ret_done = kvr_word_value(word);
		return kvr_group_check(c->group);
	}
	err = kvr_rank_wait_op(c, op, KVR_STAGE_DONE, kvr_deadline(0), &done);
	*ret_done = err ? op->good : done;
	return err ? err : 1;
}

int kvr_rank_proposal(struct kvr_connector *c, const struct kvr_request *req, void *manifest,
		      uint32_t max, uint64_t deadline_ns)
{
	struct kvr_engine_answer a;
	struct kvr_rank_op *op;
	struct kvr_message m;
	uint32_t len;
	int err = kvr_rank_take_begin(c, KVR_OP_DECISION, req, 0, deadline_ns, &a, &op, &m);

	if (err)
		return err;
	len = m.len - (uint32_t)sizeof a;
	if (len <= max && len)
		memcpy(manifest, (const uint8_t *)m.data + sizeof a, len);
	kvr_channels_give_back(c->channels, KVR_CH_CONTROL);
	if (len > max) {
		kvr_rank_answer(c, op, KVR_ACK_FAILED, EMSGSIZE);
		return KVR_FAIL(-EMSGSIZE,
				"proposal: request %llu/%u has a manifest of %u bytes, room for "
				"%u; this rank votes against it",
				(unsigned long long)req->id, req->attempt, len, max);
	}
	return (int)len;
}

static int say(struct kvr_connector *c, const struct kvr_request *req, enum kvr_ack code,
	       int status)
{
	struct kvr_rank_op *op = kvr_rank_op_find(&c->known, req, KVR_OP_DECISION);

	if (!op || op->since) {
		kvr_rank_count(&kvr_rank_page(c)->foreign);
		return kvr_rank_unknown(c, req, KVR_OP_DECISION);
	}
	if (op->answered || (code == KVR_ACK_VOTED && op->voted)) {
		kvr_rank_count(&kvr_rank_page(c)->duplicate);
		return 0;
	}
	if (kvr_rank_op_ended(c, op)) {
		kvr_rank_count(&kvr_rank_page(c)->late);
		return 0;
	}
	if (code == KVR_ACK_DONE && !op->voted)
		return KVR_FAIL(-EINVAL,
				"rank %u: outcome of request %llu/%u without a vote: it is not "
				"committed",
				c->rank, (unsigned long long)req->id, req->attempt);
	op->voted = 1;
	if (status)
		kvr_rank_answer(c, op, KVR_ACK_FAILED, (uint32_t)-status);
	else
		kvr_rank_answer(c, op, code, 0);
	return 0;
}

int kvr_rank_vote(struct kvr_connector *c, const struct kvr_request *req, int status)
{
	return say(c, req, KVR_ACK_VOTED, status);
}

int kvr_rank_outcome(struct kvr_connector *c, const struct kvr_request *req, int status)
{
	return say(c, req, KVR_ACK_DONE, status);
}

int kvr_rank_decided(struct kvr_connector *c, const struct kvr_request *req, uint32_t kind,
		     enum kvr_stage stage, uint64_t deadline_ns)
{
	struct kvr_rank_op *op = kvr_rank_op_find(&c->known, req, kind);
	uint32_t none;

	if (!op)
		return kvr_rank_unknown(c, req, kind);
	return kvr_rank_wait_op(c, op, stage, deadline_ns, &none);
}

/* An operation whose blocks this rank may still touch, or NULL. */
static const struct kvr_rank_op *still_open(const struct kvr_connector *c)
{
	for (uint32_t i = 0; i < c->known.capacity; i++) {
		const struct kvr_rank_op *op = &c->known.ops[i];

		if (op->used && op->list != KVR_NO_LIST && !op->answered)
			return op;
	}
	return NULL;
}

/* What was published before the reset counts for nothing after it. */
static int forget_before(struct kvr_connector *c, const struct kvr_message *m)
{
	static const uint32_t channels[] = { KVR_CH_LOOKUP, KVR_CH_STORE, KVR_CH_LOAD,
					     KVR_CH_PREFETCH, KVR_CH_CONTROL };
	uint64_t told[KVR_CHANNELS];
	int n = 0;

	memcpy(told, (const uint8_t *)m->data + sizeof(struct kvr_engine_answer), sizeof told);
	for (uint32_t i = 0; i < KVR_ARRAY_LEN(channels) && n >= 0; i++)
		n = kvr_channels_forget_upto(c->channels, channels[i], told[channels[i]]);
	return n < 0 ? n : 0;
}

int kvr_rank_reset(struct kvr_connector *c, const struct kvr_request *req, uint64_t deadline_ns)
{
	const struct kvr_rank_op *open;
	struct kvr_engine_answer a;
	struct kvr_rank_op *op;
	struct kvr_message m;
	int err = kvr_rank_take_begin(c, KVR_OP_RESET, req, 0, deadline_ns, &a, &op, &m);

	if (err)
		return err;
	err = forget_before(c, &m);
	open = still_open(c);
	if (err) {
		kvr_rank_answer(c, op, KVR_ACK_FAILED, (uint32_t)-err);
		return err;
	}
	if (!open) {
		kvr_rank_answer(c, op, KVR_ACK_VOTED, 0);
		return 0;
	}
	kvr_rank_answer(c, op, KVR_ACK_FAILED, EBUSY);
	return KVR_FAIL(-EBUSY,
			"reset: rank %u still has the blocks of the %s of request %llu/%u: call "
			"%s or abort first; nothing was reset",
			c->rank, kvr_op_kind_name(open->kind), (unsigned long long)open->req.id,
			open->req.attempt,
			open->kind == KVR_OP_STORE ? "store_copied" : "load_done");
}
