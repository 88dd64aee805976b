/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's part of loads: waits for bytes, verifies them, votes; and the bytes of a block. */
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

/* --- bytes
 * ---------------------------------------------------------------------------------------- */

/*
 * Calls for each segment of a block that this rank writes (or reads), of the layer groups
 * [from, to); ends early when fn says so.
 */
static int each_segment(const struct kvr_connector *c, int write, uint32_t from, uint32_t to,
			int (*fn)(void *arg, uint32_t segment, uint64_t offset, uint64_t bytes),
			void *arg)
{
	for (uint32_t s = 0; s < c->config.shape.shards; s++) {
		const struct kvr_shard *h = &c->config.shape.shard[s];

		if (write ? h->writer != c->rank : !(h->readers >> c->rank & 1))
			continue;
		for (uint32_t l = 0; l < h->layers; l++) {
			uint32_t group = h->first_layer + l;
			uint64_t at = group * c->config.shape.layer_bytes + h->offset;
			int err = group < from || group >= to
					  ? 0
					  : fn(arg, c->shard_base[s] + l, at, h->bytes);

			if (err)
				return err;
		}
	}
	return 0;
}

struct segment_job {
	const uint8_t *payload;
	struct kvr_slot_header *header;
	struct kvr_key key;
};

static int segment_hash(void *arg, uint32_t segment, uint64_t offset, uint64_t bytes)
{
	struct segment_job *j = arg;

	j->header->sum[segment] = kvr_segment_sum(j->payload + offset, bytes, &j->key, segment);
	return 0;
}

static int segment_verify(void *arg, uint32_t segment, uint64_t offset, uint64_t bytes)
{
	struct segment_job *j = arg;

	return j->header->sum[segment] ==
			       kvr_segment_sum(j->payload + offset, bytes, &j->key, segment)
		       ? 0
		       : -EBADMSG;
}

static struct segment_job job_of(struct kvr_connector *c, uint32_t slot)
{
	uint8_t *image = kvr_pool_image(&c->pool, slot);
	struct kvr_slot_header *h = (void *)image;

	return (struct segment_job){ image + c->geo.header_bytes, h, h->key };
}

void kvr_rank_hash(struct kvr_connector *c, uint32_t slot)
{
	struct segment_job j = job_of(c, slot);

	each_segment(c, 1, 0, UINT32_MAX, segment_hash, &j);
}

/* A whole header page of another key than the caller's: not the block is bad, but the call. */
static int keys_differ(struct kvr_connector *c, const struct kvr_rank_op *op, uint32_t i,
		       const struct kvr_key *key)
{
	const struct kvr_slot_header *h = c->known.header;

	if (!memcmp(&h->key, key, sizeof *key) ||
	    kvr_slot_check(h, &c->geo, &h->key, h->space, kvr_rank_list(c, op)[i].sum))
		return 0;
	return KVR_FAIL(
		-EPROTO,
		"rank %u: load of request %llu/%u: key %u differs from the leader's; all ranks "
		"must pass the keys of the lookup",
		c->rank, (unsigned long long)op->req.id, op->req.attempt, i);
}

/*
 * The leading blocks of which this rank's segments in the layer groups [from, to) are right, or
 * -EPROTO. With the first group the header page is checked, too, and what is checked is what is
 * used: the page itself others can write. Later groups' sums come from the page: one that was
 * changed since does not match its bytes.
 */
static int verify(struct kvr_connector *c, const struct kvr_rank_op *op, const struct kvr_key *keys,
		  uint32_t n, uint32_t from, uint32_t to)
{
	const struct kvr_engine_block *list = kvr_rank_list(c, op);

	for (uint32_t i = 0; i < n; i++) {
		struct segment_job j = job_of(c, list[i].slot);

		j.key = keys[i];
		if (!from) {
			memcpy(c->known.header, j.header, c->geo.header_bytes);
			j.header = c->known.header;
			if (keys_differ(c, op, i, &keys[i]))
				return -EPROTO;
			if (kvr_slot_check(j.header, &c->geo, &keys[i], op->req.space, list[i].sum))
				return (int)i;
		}
		if (each_segment(c, 0, from, to, segment_verify, &j))
			return (int)i;
	}
	return (int)n;
}

/* 0: it is known here, with its blocks; or how it ended, or -ENOENT. */
static int load_known(struct kvr_connector *c, const struct kvr_request *req, uint64_t deadline_ns,
		      struct kvr_rank_op **ret_op)
{
	struct kvr_rank_op *op = kvr_rank_op_find(&c->known, req, KVR_OP_LOAD);
	uint32_t good;
	int err = 0;

	*ret_op = op;
	if (op && op->stage == KVR_STAGE_LOST)
		return kvr_rank_lost(c, op);
	if (op && op->list != KVR_NO_LIST)
		return 0;
	if (op && kvr_rank_op_ended(c, op))
		err = kvr_rank_wait_op(c, op, KVR_STAGE_VERIFIED, deadline_ns, &good);
	return err ? err : kvr_rank_unknown(c, req, KVR_OP_LOAD);
}

/* A wait for a load's stage; if the load ended, this rank gives its blocks back. */
static int load_stage(struct kvr_connector *c, struct kvr_rank_op *op, enum kvr_stage stage,
		      uint64_t deadline_ns, uint32_t *ret_good)
{
	int err = kvr_rank_wait_op(c, op, stage, deadline_ns, ret_good);

	if (err && err != -EINTR && kvr_rank_op_ended(c, op))
		kvr_rank_give_up(c, op);
	return err;
}

/* Verifies, and votes with the number of good blocks. */
static int vote(struct kvr_connector *c, struct kvr_rank_op *op, const struct kvr_key *keys,
		uint32_t n)
{
	int good = verify(c, op, keys, n, op->layers, c->config.shape.layer_groups);

	op->voted = 1;
	if (good < 0) {
		kvr_rank_answer(c, op, KVR_ACK_FAILED, (uint32_t)-good);
		kvr_rank_list_drop(c, op);
		return good;
	}
	op->good = (uint32_t)good;
	kvr_rank_answer(c, op, KVR_ACK_VERIFIED, op->good);
	return 0;
}

int kvr_rank_load_wait(struct kvr_connector *c, const struct kvr_request *req,
		       const struct kvr_key *keys, uint64_t deadline_ns,
		       struct kvr_block *ret_blocks, uint32_t max)
{
	struct kvr_rank_op *op;
	uint32_t good = 0;
	int err = load_known(c, req, deadline_ns, &op);

	if (!err && !op->voted) {
		err = load_stage(c, op, KVR_STAGE_HOST, deadline_ns, &good);
		if (!err)
			err = vote(c, op, keys, good < op->n ? good : op->n);
	}
	if (!err)
		err = load_stage(c, op, KVR_STAGE_VERIFIED, deadline_ns, &good);
	if (err)
		return err;
	if (good > op->n || good > max)
		return KVR_FAIL(-EMSGSIZE, "load_wait: %u good blocks of %u, room for %u", good,
				op->n, max);
	kvr_rank_fill(c, op, good, ret_blocks);
	return (int)good;
}

/*
 * By layers a bad segment ends the load for all: the vote says which block it is, and the engine
 * ends it.
 */
static int bad_layer(struct kvr_connector *c, struct kvr_rank_op *op, uint32_t good,
		     uint64_t deadline_ns)
{
	op->voted = 1;
	op->good = good;
	kvr_rank_answer(c, op, KVR_ACK_VERIFIED, good);
	return load_stage(c, op, KVR_STAGE_VERIFIED, deadline_ns, &good);
}

int kvr_rank_load_wait_layer(struct kvr_connector *c, const struct kvr_request *req,
			     const struct kvr_key *keys, uint32_t group, uint64_t deadline_ns,
			     struct kvr_block *ret_blocks, uint32_t max)
{
	struct kvr_rank_op *op;
	int good, err = load_known(c, req, deadline_ns, &op);

	if (err)
		return err;
	if (!op->layered || max < op->n)
		return KVR_FAIL(-EINVAL,
				op->layered ? "load_wait_layer: %u blocks, room for %u"
					    : "load_wait_layer: %u blocks are loaded whole",
				op->n, max);
	if (op->voted && op->good < op->n)
		return bad_layer(c, op, op->good, deadline_ns);
	err = kvr_rank_wait_layers(c, op, group + 1, deadline_ns);
	if (err && kvr_rank_op_ended(c, op))
		kvr_rank_give_up(c, op);
	if (err)
		return err;
	good = group < op->layers ? (int)op->n : verify(c, op, keys, op->n, op->layers, group + 1);
	if (good < 0) {
		kvr_rank_answer(c, op, KVR_ACK_FAILED, (uint32_t)-good);
		kvr_rank_list_drop(c, op);
		return good;
	}
	if ((uint32_t)good < op->n)
		return bad_layer(c, op, (uint32_t)good, deadline_ns);
	if (group >= op->layers)
		op->layers = group + 1;
	if (op->layers == c->config.shape.layer_groups && !op->voted) {
		op->voted = 1;
		op->good = op->n;
		kvr_rank_answer(c, op, KVR_ACK_VERIFIED, op->n);
	}
	kvr_rank_fill(c, op, op->n, ret_blocks);
	return (int)op->n;
}

/* Proposed: this rank checks it, votes, and waits for what all decided. */
static int load_agree(struct kvr_connector *c, struct kvr_rank_op *op, uint64_t deadline_ns)
{
	uint32_t none;
	int err;

	kvr_rank_answer(c, op, KVR_ACK_VOTED, 0);
	err = load_stage(c, op, KVR_STAGE_COMMITTED, deadline_ns, &none);
	if (err != -ETIMEDOUT || kvr_rank_op_ended(c, op))
		return err;
	/* The vote may have been counted already: only the leader knows, and says so at once. */
	kvr_rank_answer(c, op, KVR_ACK_WITHDRAWN, 0);
	err = load_stage(c, op, KVR_STAGE_COMMITTED, kvr_deadline(0) + KVR_ANSWER_GRACE_NS, &none);
	if (err == -ETIMEDOUT && !kvr_rank_op_ended(c, op))
		kvr_rank_give_up(c, op); /* nobody is there to say it */
	return err;
}

/* After -EINTR the answer was taken, perhaps. */
static int resumes(const struct kvr_rank_op *op)
{
	return op && !op->since && op->layered && !op->agreed && !op->answered;
}

int kvr_rank_load_resumes(struct kvr_connector *c, const struct kvr_request *req)
{
	return resumes(kvr_rank_op_find(&c->known, req, KVR_OP_LOAD));
}

int kvr_rank_load_begin(struct kvr_connector *c, const struct kvr_request *req, uint32_t n,
			int layered, uint64_t deadline_ns)
{
	struct kvr_rank_op *op = kvr_rank_op_find(&c->known, req, KVR_OP_LOAD);
	struct kvr_engine_answer a = { 0 };
	struct kvr_message m;
	int err = 0;

	if (!layered || !resumes(op)) {
		err = kvr_rank_take_begin(c, KVR_OP_LOAD, req, n, deadline_ns, &a, &op, &m);
		if (err || !a.gen)
			return err; /* 0: nothing is left, and there is no operation */
	}
	if (!layered != !op->layered) {
		kvr_rank_answer(c, op, KVR_ACK_FAILED, EPROTO);
		kvr_rank_list_drop(c, op);
		return KVR_FAIL(-EPROTO,
				"rank %u: the load of request %llu/%u is %s in the leader, and %s "
				"here",
				c->rank, (unsigned long long)req->id, req->attempt,
				layered ? "whole" : "by layers", layered ? "by layers" : "whole");
	}
	if (layered)
		err = load_agree(c, op, deadline_ns);
	op->agreed = !err;
	return err ? err : (int)op->n;
}

int kvr_rank_load_done(struct kvr_connector *c, const struct kvr_request *req)
{
	struct kvr_rank_op *op = kvr_rank_op_find(&c->known, req, KVR_OP_LOAD);

	if (!op || op->since) {
		kvr_rank_count(&kvr_rank_page(c)->foreign);
		return kvr_rank_unknown(c, req, KVR_OP_LOAD);
	}
	if (op->answered) {
		kvr_rank_count(&kvr_rank_page(c)->duplicate);
		return 0;
	}
	if (kvr_rank_op_ended(c, op))
		kvr_rank_count(&kvr_rank_page(c)->late);
	/* Without a vote this rank gives up the load: the others must not wait for it. */
	if (op->voted)
		kvr_rank_answer(c, op, KVR_ACK_DONE, op->good);
	kvr_rank_give_up(c, op);
	return 0;
}
