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

/* Calls for each segment of a block that this rank writes (or reads); ends early when fn says so.
 */
static int each_segment(const struct kvr_connector *c, int write,
			int (*fn)(void *arg, uint32_t segment, uint64_t offset, uint64_t bytes),
			void *arg)
{
	for (uint32_t s = 0; s < c->config.shape.shards; s++) {
		const struct kvr_shard *h = &c->config.shape.shard[s];

		if (write ? h->writer != c->rank : !(h->readers >> c->rank & 1))
			continue;
		for (uint32_t l = 0; l < h->layers; l++) {
			uint64_t at =
				(h->first_layer + l) * c->config.shape.layer_bytes + h->offset;
			int err = fn(arg, c->shard_base[s] + l, at, h->bytes);

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

	each_segment(c, 1, segment_hash, &j);
}

int kvr_rank_load_begin(struct kvr_connector *c, const struct kvr_request *req, uint32_t n,
			uint64_t deadline_ns)
{
	struct kvr_engine_answer a;
	struct kvr_rank_op *op;
	int err = kvr_rank_take_begin(c, KVR_OP_LOAD, req, n, deadline_ns, &a, &op);

	return err ? err : (int)a.count; /* 0: nothing is left, and there is no operation */
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

/* The leading blocks whose header page and segments (those this rank reads) are right; or -EPROTO.
 */
static int verify(struct kvr_connector *c, const struct kvr_rank_op *op, const struct kvr_key *keys,
		  uint32_t n)
{
	const struct kvr_engine_block *list = kvr_rank_list(c, op);

	for (uint32_t i = 0; i < n; i++) {
		struct segment_job j = job_of(c, list[i].slot);

		/* What is checked is what is used: the page itself others can write. */
		memcpy(c->known.header, j.header, c->geo.header_bytes);
		j.header = c->known.header;
		if (keys_differ(c, op, i, &keys[i]))
			return -EPROTO;
		if (kvr_slot_check(j.header, &c->geo, &keys[i], op->req.space, list[i].sum))
			return (int)i;
		j.key = keys[i];
		if (each_segment(c, 0, segment_verify, &j))
			return (int)i;
	}
	return (int)n;
}

int kvr_rank_load_wait(struct kvr_connector *c, const struct kvr_request *req,
		       const struct kvr_key *keys, uint64_t deadline_ns,
		       struct kvr_block *ret_blocks, uint32_t max)
{
	struct kvr_rank_op *op = kvr_rank_op_find(&c->known, req, KVR_OP_LOAD);
	uint32_t good = 0;
	int err;

	if (op && op->stage == KVR_STAGE_LOST)
		return kvr_rank_lost(c, op);
	if (!op)
		return kvr_rank_unknown(c, req, KVR_OP_LOAD);
	if (op->list == KVR_NO_LIST) { /* given back: how it ended, or -ENOENT */
		err = kvr_rank_op_ended(c, op)
			      ? kvr_rank_wait_op(c, op, KVR_STAGE_VERIFIED, deadline_ns, &good)
			      : 0;
		return err ? err : kvr_rank_unknown(c, req, KVR_OP_LOAD);
	}
	if (!op->voted) {
		err = kvr_rank_wait_op(c, op, KVR_STAGE_HOST, deadline_ns, &good);
		if (err && kvr_rank_op_ended(c, op))
			kvr_rank_give_up(c, op);
		if (err)
			return err;
		err = verify(c, op, keys, good < op->n ? good : op->n);
		op->voted = 1;
		if (err < 0) {
			kvr_rank_answer(c, op, KVR_ACK_FAILED, (uint32_t)-err);
			kvr_rank_list_drop(c, op);
			return err;
		}
		op->good = (uint32_t)err;
		kvr_rank_answer(c, op, KVR_ACK_VERIFIED, op->good);
	}
	err = kvr_rank_wait_op(c, op, KVR_STAGE_VERIFIED, deadline_ns, &good);
	if (err && kvr_rank_op_ended(c, op))
		kvr_rank_give_up(c, op);
	if (err)
		return err;
	if (good > op->n || good > max)
		return KVR_FAIL(-EMSGSIZE, "load_wait: %u good blocks of %u, room for %u", good,
				op->n, max);
	kvr_rank_fill(c, op, good, ret_blocks);
	return (int)good;
}

int kvr_rank_load_done(struct kvr_connector *c, const struct kvr_request *req)
{
	struct kvr_rank_op *op = kvr_rank_op_find(&c->known, req, KVR_OP_LOAD);

	if (!op) {
		kvr_rank_count(&kvr_rank_page(c)->foreign);
		return kvr_rank_unknown(c, req, KVR_OP_LOAD);
	}
	if (op->answered)
		kvr_rank_count(&kvr_rank_page(c)->duplicate);
	if (op->list == KVR_NO_LIST)
		return 0;
	/* Without a vote this rank gives up the load: the others must not wait for it. */
	if (op->voted)
		kvr_rank_answer(c, op, KVR_ACK_DONE, op->good);
	else
		kvr_rank_answer(c, op, KVR_ACK_FAILED, ECANCELED);
	kvr_rank_list_drop(c, op);
	return 0;
}
