/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank reads from the leader's pages and messages is input: copied once, and bounded here
 * before it is used. A value that no leader writes gives -EBADMSG with its name, and what would be
 * possible.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "atomic.h"
#include "connector_rank.h"
#include "err.h"
#include "util.h"

typedef unsigned long long ull;

#define ERRNO_MAX 4095

/* 0, or -EBADMSG when a number of a message is out of range. */
static int bound(const struct kvr_connector *c, const struct kvr_message *m, const char *field,
		 int64_t got, int64_t least, int64_t most)
{
	if (got >= least && got <= most)
		return 0;
	return KVR_FAIL(-EBADMSG,
			"rank %u: message %llu of channel %s (%s, %u bytes): its %s is %lld, %lld "
			"to %lld is possible",
			c->rank, (ull)m->number, kvr_channel_name(m->channel), kvr_tag_name(m->tag),
			m->len, field, (long long)got, (long long)least, (long long)most);
}

int kvr_input_lookup(const struct kvr_connector *c, const struct kvr_message *m,
		     const struct kvr_wire_lookup *w)
{
	int64_t rest = (int64_t)w->blocks - w->host;
	int err = bound(c, m, "status", w->status, -ERRNO_MAX, 0);

	if (!err)
		err = bound(c, m, "number of blocks in host memory", w->host, 0, w->blocks);
	if (!err)
		err = bound(c, m, "number of blocks on NVMe", w->nvme, rest, rest);
	return err;
}

/* A begin of which nothing is left to do has no operation. */
static int no_operation(uint32_t kind, const struct kvr_engine_answer *a)
{
	return (kind == KVR_OP_LOAD || kind == KVR_OP_PREFETCH) && !a->gen && !a->count;
}

/* The numbers of blocks of an operation, and the message's length, which follows from them. */
static int answer_counts(const struct kvr_connector *c, const struct kvr_message *m, uint32_t kind,
			 uint32_t n, const struct kvr_engine_answer *a)
{
	int store = kind == KVR_OP_STORE, lists = store || kind == KVR_OP_LOAD;
	int64_t some = n ? 1 : 0;
	int64_t len =
		(int64_t)(sizeof *a + (lists ? a->count * sizeof(struct kvr_engine_block) : 0));
	int64_t most = kind == KVR_OP_DECISION ? (int64_t)c->max_payload
		       : kind == KVR_OP_RESET  ? (int64_t)(len + KVR_CHANNELS * 8)
					       : len;
	int covers = store || kind == KVR_OP_PREFETCH;
	int err = bound(c, m, "number of keys that are covered", a->covered, covers ? some : 0,
			covers ? n : 0);

	if (!err)
		err = bound(c, m, "number of blocks", a->count, store || !n ? 0 : some,
			    covers ? a->covered : n);
	if (!err)
		err = bound(c, m, "length", m->len, kind == KVR_OP_RESET ? most : len, most);
	return err;
}

int kvr_input_answer(const struct kvr_connector *c, const struct kvr_message *m, uint32_t kind,
		     uint32_t n, const struct kvr_engine_answer *a)
{
	int64_t layered = a->flags & KVR_OP_LAYERED;
	int err = bound(c, m, "status", a->status, -ERRNO_MAX, 0);

	if (!err)
		err = bound(c, m, "reason", a->reason, KVR_REFUSED_NONE, KVR_REFUSED_OPEN);
	if (err || a->status)
		return err;
	err = bound(c, m, "entry", a->entry, 0, c->group->layout.ops - 1);
	if (!err)
		err = bound(c, m, "flags", a->flags, 0, kind == KVR_OP_LOAD ? KVR_OP_LAYERED : 0);
	if (!err)
		err = bound(c, m, "number of layer groups", a->groups,
			    layered * c->config.shape.layer_groups,
			    layered * c->config.shape.layer_groups);
	if (err || no_operation(kind, a))
		return err;
	err = bound(c, m, "generation", a->gen, 1, UINT32_MAX);
	/* More than was asked for is the caller's mistake, and has a sentence of its own. */
	if (err || a->count > n || a->covered > n)
		return err;
	return answer_counts(c, m, kind, n, a);
}

int kvr_input_blocks(const struct kvr_connector *c, const struct kvr_message *m, int store,
		     const struct kvr_engine_answer *a, const struct kvr_engine_block *list)
{
	int64_t next = 0;
	int err = 0;

	for (uint32_t i = 0; i < a->count && !err; i++) {
		/* A store's are in the order of the keys, with room for those that follow. */
		int64_t most = store ? a->covered - (a->count - i) : i;

		err = bound(c, m, "slot", list[i].slot, 0, (int64_t)c->pool.slots - 1);
		if (!err)
			err = bound(c, m, "index", list[i].index, store ? next : i, most);
		next = (int64_t)list[i].index + 1;
	}
	return err;
}

static int record(const struct kvr_connector *c, const struct kvr_message *m,
		  const struct kvr_wire_record *r)
{
	int failed = r->stage >= KVR_STAGE_FAILED;
	int err = bound(c, m, "record's kind", r->kind, KVR_OP_STORE, KVR_OP_KINDS - 1);

	if (!err)
		err = bound(c, m, "record's stage", r->stage, KVR_STAGE_BEGUN, KVR_STAGES - 1);
	if (!err)
		err = bound(c, m, "record's status", r->status, failed ? -ERRNO_MAX : 0,
			    failed ? -1 : 0);
	if (!err)
		err = bound(c, m, "record's number of blocks", r->blocks, 0, c->config.max_blocks);
	if (!err)
		err = bound(c, m, "record's stage before", r->reached, 0, KVR_STAGE_FAILED - 1);
	if (!err)
		err = bound(c, m, "record's entry", r->entry, 0, c->group->layout.ops - 1);
	return err ? err : bound(c, m, "record's generation", r->gen, 1, UINT32_MAX);
}

int kvr_input_complete(const struct kvr_connector *c, const struct kvr_message *m,
		       const struct kvr_wire_complete *w)
{
	const struct kvr_rank_ops *k = &c->known;
	uint64_t least = kvr_max(k->pulled_tick, k->whole_tick + 1); /* ticks rise */

	if (w->tick < least || w->tick == UINT64_MAX)
		return KVR_FAIL(
			-EBADMSG,
			"rank %u: message %llu of channel %s: its tick is %llu, %llu or "
			"more is possible, for the last one was of tick %llu, and tick_done "
			"of the leader's page was %llu",
			c->rank, (ull)m->number, kvr_channel_name(m->channel), (ull)w->tick,
			(ull)least, (ull)k->pulled_tick, (ull)k->whole_tick);
	for (uint32_t i = 0; i < w->count; i++) {
		struct kvr_wire_record r;
		int err;

		memcpy(&r, (const uint8_t *)m->data + sizeof *w + i * sizeof r, sizeof r);
		err = record(c, m, &r);
		if (err)
			return err;
	}
	return 0;
}

static int bad_word(const struct kvr_connector *c, const struct kvr_rank_op *op, uint64_t word,
		    const char *field, uint32_t got, uint32_t least, uint32_t most)
{
	return KVR_FAIL(-EBADMSG,
			"rank %u: the %s of request %llu/%u: the word %#llx of entry %u of the "
			"leader's operations is impossible: its %s is %u, %u to %u is possible; "
			"the segment was overwritten",
			c->rank, kvr_op_kind_name(op->kind), (ull)op->req.id, op->req.attempt,
			(ull)word, op->entry, field, got, least, most);
}

/* No more blocks than a rank voted for are good, if the leader asks it. */
static uint32_t most_good(const struct kvr_connector *c, const struct kvr_rank_op *op,
			  uint32_t stage)
{
	const struct kvr_shape *shape = &c->config.shape;

	if (op->kind == KVR_OP_PREFETCH)
		return op->n;
	if (op->kind != KVR_OP_LOAD)
		return 0;
	for (uint32_t s = 0; s < shape->shards && op->voted && stage >= KVR_STAGE_VERIFIED; s++)
		if (shape->shard[s].readers >> c->rank & 1)
			return op->good;
	return op->n;
}

/*
 * The entry is used again when the end of this operation was told (and the caller had it, or it is
 * in `pending`): so before that, its generation is this operation's. What completions told before
 * the word was read (`told`), it tells, too: it is stored first.
 */
int kvr_input_word(const struct kvr_connector *c, struct kvr_rank_op *op, uint64_t word,
		   uint32_t told)
{
	uint32_t gen = kvr_word_gen(word), stage = kvr_word_code(word);
	uint32_t value = kvr_word_value(word), most;
	int err = 0;

	if (op->bad) { /* the first evidence, again */
		word = op->bad_word;
		gen = kvr_word_gen(word);
		stage = kvr_word_code(word);
		value = kvr_word_value(word);
		told = op->bad_told;
	}
	most = most_good(c, op, stage);
	if (gen != op->gen && !op->stage && (!gen || (int32_t)(gen - op->gen) < 0))
		err = bad_word(c, op, word, "generation", gen, op->gen, UINT32_MAX);
	else if (gen != op->gen)
		return 0;
	else if (stage >= KVR_STAGES || stage < told)
		err = bad_word(c, op, word, "stage", stage, told, KVR_STAGES - 1);
	else if (stage < KVR_STAGE_FAILED && value > most)
		err = bad_word(c, op, word, "number of good blocks", value, 0, most);
	else if (stage >= KVR_STAGE_FAILED && value >> 16 >= KVR_STAGE_FAILED)
		err = bad_word(c, op, word, "stage before the end", value >> 16, 0,
			       KVR_STAGE_FAILED - 1);
	else if (stage >= KVR_STAGE_FAILED && !((value & 0xffff) - 1 < ERRNO_MAX))
		err = bad_word(c, op, word, "errno", value & 0xffff, 1, ERRNO_MAX);
	if (err) {
		op->bad = 1;
		op->bad_word = word;
		op->bad_told = told;
	}
	return err;
}

int kvr_input_broken(struct kvr_connector *c, int err)
{
	struct kvr_rank_ops *k = &c->known;

	if (err && !k->broken[0])
		snprintf(k->broken, sizeof k->broken, "%s", kvr_explain());
	return k->broken[0] ? KVR_FAIL(-EBADMSG, "%s", k->broken) : 0;
}

int kvr_input_tick(struct kvr_connector *c)
{
	struct kvr_rank_ops *k = &c->known;
	/* Also what no longer counts because of a newer leader. T2, pairs with T1 */
	uint64_t done = kvr_load_acquire(&c->group->leader->tick_done);
	int err = 0;

	if (done < k->seen_tick || done == UINT64_MAX)
		err = KVR_FAIL(-EBADMSG,
			       "rank %u: tick_done of the leader's page is %llu, and was %llu: "
			       "from there to %llu is possible; the segment was overwritten",
			       c->rank, (ull)done, (ull)k->seen_tick, (ull)UINT64_MAX - 1);
	else
		k->seen_tick = done;
	return kvr_input_broken(c, err);
}

int kvr_rank_writes(const struct kvr_connector *c)
{
	const struct kvr_shape *shape = &c->config.shape;

	for (uint32_t s = 0; s < shape->shards; s++)
		if (shape->shard[s].writer == c->rank)
			return 1;
	return 0;
}

/*
 * The leader names a slot's key in its header page before it publishes the answer, and leaves the
 * page alone until all that write into the slot have acknowledged, of which this rank is one. For
 * a rank that does not write, the page may be sealed at this very moment, or be another block's.
 */
int kvr_input_slot(const struct kvr_connector *c, const struct kvr_rank_op *op,
		   const struct kvr_engine_block *b, const struct kvr_key *key)
{
	const struct kvr_slot_header *h = (void *)kvr_pool_image(&c->pool, b->slot);

	if (!kvr_rank_writes(c) || !memcmp(&h->key, key, sizeof *key))
		return 0;
	return KVR_FAIL(-EBADMSG,
			"rank %u: store of request %llu/%u: the answer's slot for key %u is %u, "
			"whose header page has another key; the segment or the pool was "
			"overwritten",
			c->rank, (ull)op->req.id, op->req.attempt, b->index, b->slot);
}
