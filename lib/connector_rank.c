/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's part of the connector: takes answers, copies, hashes, verifies, acknowledges. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atomic.h"
#include "channel_priv.h"
#include "connector_priv.h"
#include "err.h"
#include "hash.h"
#include "util.h"

#define NONE UINT32_MAX

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

	for (uint32_t i = k->buckets[bucket_of(k, &req, kind)]; i != NONE; i = k->ops[i].next)
		if (k->ops[i].kind == kind && kvr_request_equal(&k->ops[i].req, &req))
			return &k->ops[i];
	return NULL;
}

/* Of the operations of one name the newest is found by it; of this one there is none other. */
struct kvr_rank_op *kvr_rank_op_exact(struct kvr_rank_ops *k, const struct kvr_request *request,
				      uint32_t kind, uint32_t entry, uint32_t gen)
{
	struct kvr_request req = kvr_request_name(request);

	for (uint32_t i = k->buckets[bucket_of(k, &req, kind)]; i != NONE; i = k->ops[i].next)
		if (k->ops[i].kind == kind && k->ops[i].entry == entry && k->ops[i].gen == gen &&
		    kvr_request_equal(&k->ops[i].req, &req))
			return &k->ops[i];
	return NULL;
}

static void op_forget(struct kvr_rank_ops *k, struct kvr_rank_op *op)
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

static int op_ended(const struct kvr_connector *c, const struct kvr_rank_op *op)
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

static void list_drop(struct kvr_connector *c, struct kvr_rank_op *op)
{
	if (op->list < KVR_OPEN_LISTS)
		c->known.lists_used &= ~(1ull << op->list);
	op->list = NONE;
}

/* Lists of operations that ended without this rank's acknowledgement: it was not needed for them.
 */
static void lists_reclaim(struct kvr_connector *c)
{
	struct kvr_rank_ops *k = &c->known;

	for (uint32_t i = 0; i < k->capacity && !~k->lists_used; i++)
		if (k->ops[i].used && k->ops[i].list != NONE && op_ended(c, &k->ops[i]))
			list_drop(c, &k->ops[i]);
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

	if (op && !op->held && kvr_rank_op_told(c, op, done))
		op_forget(k, op);
	op = NULL;
	for (uint32_t i = 0; i < k->capacity; i++) {
		op = &k->ops[k->cursor++ & (k->capacity - 1)];
		if (!op->used)
			break;
		if (!op->held && kvr_rank_op_told(c, op, done)) {
			op_forget(k, op);
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
				    .list = NONE,
				    .since = UINT64_MAX };
	bucket = &k->buckets[bucket_of(k, &op->req, kind)];
	op->next = *bucket;
	*bucket = (uint32_t)(op - k->ops);
	return op;
}

/* The operation of an answer, with a list for its blocks. Completions may have told of it before.
 */
static struct kvr_rank_op *op_add(struct kvr_connector *c, const struct kvr_request *req,
				  uint32_t kind, const struct kvr_engine_answer *a)
{
	struct kvr_rank_ops *k = &c->known;
	struct kvr_rank_op *op = kvr_rank_op_exact(k, req, kind, a->entry, a->gen);

	lists_reclaim(c);
	if (!~k->lists_used)
		return NULL;
	if (!op)
		op = kvr_rank_op_place(c, req, kind, a->entry, a->gen);
	if (!op && !kvr_rank_pull(c)) /* what ended meanwhile makes room */
		op = kvr_rank_op_place(c, req, kind, a->entry, a->gen);
	if (!op)
		return NULL;
	op->since = 0;
	op->n = a->count;
	op->list = (uint32_t)__builtin_ctzll(~k->lists_used);
	k->lists_used |= 1ull << op->list;
	return op;
}

static struct kvr_engine_block *list_of(struct kvr_connector *c, const struct kvr_rank_op *op)
{
	return c->known.lists + (size_t)op->list * c->config.max_blocks;
}

static void acknowledge(struct kvr_connector *c, uint32_t entry, uint32_t gen, enum kvr_ack code,
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

static void answer(struct kvr_connector *c, const struct kvr_rank_op *op, enum kvr_ack code,
		   uint32_t value)
{
	acknowledge(c, op->entry, op->gen, code, value);
}

/*
 * The answer to a begin that this rank never asked for (it skipped an aborted request) expires. The
 * leader waits for this rank: say that it will not come, so that the operation ends on all.
 */
static void begin_dropped(void *arg, const struct kvr_message *m)
{
	struct kvr_connector *c = arg;
	struct kvr_engine_answer a;

	if ((m->tag != KVR_TAG_STORE_BEGIN && m->tag != KVR_TAG_LOAD_BEGIN) || m->len < sizeof a)
		return;
	memcpy(&a, m->data, sizeof a);
	if (!a.status && a.entry < c->group->layout.ops)
		acknowledge(c, a.entry, a.gen, KVR_ACK_FAILED, ECANCELED);
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
						1u << KVR_CH_CONTROL);
	kvr_channels_on_drop(c->channels, begin_dropped, c);
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
	if (!k->ops || !k->buckets || !k->lists || !k->pending || !k->header)
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
}

/* --- answers
 * -------------------------------------------------------------------------------------- */

int kvr_rank_bad_message(struct kvr_connector *c, const struct kvr_message *m, const char *why)
{
	return KVR_FAIL(-EBADMSG, "rank %u: message %llu of channel %s (%s, %u bytes): %s", c->rank,
			(unsigned long long)m->number, kvr_channel_name(m->channel),
			kvr_tag_name(m->tag), m->len, why);
}

int kvr_rank_lookup(struct kvr_connector *c, const struct kvr_request *req, uint64_t deadline_ns,
		    uint32_t n, struct kvr_hit *ret_hit)
{
	struct kvr_wire_lookup w;
	struct kvr_message m;
	int err = kvr_channels_take_for(c->channels, KVR_CH_LOOKUP, KVR_TAG_LOOKUP_RESULT, req,
					deadline_ns, &m);

	if (err)
		return err;
	if (m.len != sizeof w)
		return kvr_rank_bad_message(c, &m, "not the size of a lookup's answer");
	memcpy(&w, m.data, sizeof w);
	err = kvr_input_lookup(c, &m, &w);
	if (err)
		return err;
	if (w.status < 0)
		return KVR_FAIL(w.status, "lookup of request %llu/%u failed in the leader: %s",
				(unsigned long long)req->id, req->attempt, kvr_strerror(w.status));
	if (w.blocks > n || w.blocks > c->config.max_blocks || w.host > w.blocks)
		return kvr_rank_bad_message(
			c, &m,
			"a longer hit than was asked for; do all ranks pass the "
			"same keys?");
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

	if (a->count > n || a->count > c->config.max_blocks || a->covered > n ||
	    m->len != sizeof *a + a->count * sizeof *list)
		return kvr_rank_bad_message(
			c, m,
			"more blocks than were asked for; do all ranks pass the "
			"same keys?");
	op = kvr_rank_op_exact(&c->known, req, kind, a->entry, a->gen);
	/* A second list of blocks would pass for the one that was verified. */
	if (op && !op->since)
		return kvr_rank_bad_message(c, m, "this rank began that operation before");
	op = op_add(c, req, kind, a);
	if (!op)
		return KVR_FAIL(-ENOBUFS,
				"rank %u: %u operations are open here; call store_copied, "
				"load_done and check_completed for those that ended",
				c->rank, c->known.capacity);
	list = list_of(c, op);
	memcpy(list, (const uint8_t *)m->data + sizeof *a, a->count * sizeof *list);
	err = kvr_input_blocks(c, m, kind == KVR_OP_STORE, a, list);
	if (err)
		op_forget(&c->known, op);
	else
		*ret_op = op;
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

/* The answer to a begin: copied, bounded, and remembered. 0 or -errno. */
static int take_begin(struct kvr_connector *c, uint32_t kind, const struct kvr_request *req,
		      uint32_t n, uint64_t deadline_ns, struct kvr_engine_answer *ret_answer,
		      struct kvr_rank_op **ret_op)
{
	int store = kind == KVR_OP_STORE;
	struct kvr_engine_answer a;
	struct kvr_message m;
	int err;

	if (deadline_ns < UINT64_MAX - KVR_ANSWER_GRACE_NS)
		deadline_ns += KVR_ANSWER_GRACE_NS;
	err = kvr_channels_take_for(c->channels, store ? KVR_CH_STORE : KVR_CH_LOAD,
				    store ? KVR_TAG_STORE_BEGIN : KVR_TAG_LOAD_BEGIN, req,
				    deadline_ns, &m);
	if (err)
		return err;
	if (m.len < sizeof a)
		return kvr_rank_bad_message(c, &m, "shorter than its fixed part");
	memcpy(&a, m.data, sizeof a);
	err = kvr_input_answer(c, &m, store, n, &a);
	if (!err && a.status < 0)
		return KVR_FAIL(a.status, "%s of request %llu/%u was refused by the leader: %s%s",
				kvr_op_kind_name(kind), (unsigned long long)req->id, req->attempt,
				kvr_strerror(a.status), refusal(a.reason));
	*ret_answer = a;
	if (!err && !store && !a.gen && !a.count)
		return 0; /* a load of which nothing is left: no operation */
	if (!err)
		err = begin_known(c, kind, req, n, &a, &m, ret_op);
	/* The leader counts on this rank: say that it will not come. */
	if (err && a.entry < c->group->layout.ops)
		acknowledge(c, a.entry, a.gen, KVR_ACK_FAILED, (uint32_t)-err);
	return err;
}

static void fill_blocks(struct kvr_connector *c, const struct kvr_rank_op *op, uint32_t n,
			struct kvr_block *ret_blocks)
{
	const struct kvr_engine_block *list = list_of(c, op);

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
	struct kvr_rank_op *op;
	int err = take_begin(c, KVR_OP_STORE, req, n, deadline_ns, &a, &op);

	if (err)
		return err;
	for (uint32_t i = 0; i < a.count; i++) {
		const struct kvr_engine_block *b = &list_of(c, op)[i];
		const struct kvr_key *key = &keys[b->index];

		if (b->sum != kvr_hash(key, sizeof *key, req->space)) {
			answer(c, op, KVR_ACK_FAILED, EPROTO);
			list_drop(c, op);
			return KVR_FAIL(
				-EPROTO,
				"rank %u: store of request %llu/%u: key %u differs from the "
				"leader's; all ranks must pass the same keys",
				c->rank, (unsigned long long)req->id, req->attempt, b->index);
		}
		err = kvr_input_slot(c, op, b, key);
		if (err) {
			answer(c, op, KVR_ACK_FAILED, (uint32_t)-err);
			list_drop(c, op);
			return err;
		}
	}
	fill_blocks(c, op, a.count, ret_blocks);
	*ret_covered = a.covered;
	if (!a.count)
		list_drop(c, op);
	return (int)a.count;
}

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

/* The sentence of an operation that has no other end. */
static int lost(struct kvr_connector *c, const struct kvr_rank_op *op)
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

static int unknown(struct kvr_connector *c, const struct kvr_request *req, uint32_t kind)
{
	return KVR_FAIL(-ENOENT, "rank %u knows no %s of request %llu/%u", c->rank,
			kvr_op_kind_name(kind), (unsigned long long)req->id, req->attempt);
}

int kvr_rank_store_copied(struct kvr_connector *c, const struct kvr_request *req, int status)
{
	struct kvr_rank_op *op = kvr_rank_op_find(&c->known, req, KVR_OP_STORE);

	if (!op)
		return unknown(c, req, KVR_OP_STORE);
	if (status > 0 || status < -4095)
		return KVR_FAIL(-EINVAL, "store_copied: status %d; 0 or a negative errno", status);
	if (op->list == NONE)
		return 0; /* nothing to store, or acknowledged already */
	if (status < 0) {
		answer(c, op, KVR_ACK_FAILED, (uint32_t)-status);
	} else {
		for (uint32_t i = 0; i < op->n; i++) {
			struct segment_job j = job_of(c, list_of(c, op)[i].slot);

			each_segment(c, 1, segment_hash, &j);
		}
		answer(c, op, KVR_ACK_COPIED, op->n);
	}
	list_drop(c, op);
	return 0;
}

/* --- waiting for an operation's word
 * -------------------------------------------------------------- */

struct word_wait {
	struct kvr_connector *c;
	struct kvr_rank_op *op;
	enum kvr_stage stage;
	uint32_t value;
	int failed; /* with a sentence of its own */
};

static int word_failed(struct word_wait *w, uint32_t stage, int status)
{
	const struct kvr_rank_op *op = w->op;

	w->failed = 1;
	if (stage == KVR_STAGE_LOST)
		return lost(w->c, op);
	return KVR_FAIL(status < 0 ? status : -ECANCELED,
			"rank %u: the %s of request %llu/%u ended as %s: %s", w->c->rank,
			kvr_op_kind_name(op->kind), (unsigned long long)op->req.id, op->req.attempt,
			kvr_stage_name(stage), kvr_strerror(status));
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
	if (op->reached >= w->stage)
		return 1;
	return word_failed(w, op->stage, op->status);
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
		return op->kind == KVR_OP_STORE && op->reached >= (uint32_t)w->stage
			       ? 1
			       : word_failed(w, KVR_STAGE_LOST, op->status);
	err = kvr_input_word(w->c, op, word, told);
	if (err) {
		w->failed = 1;
		return err;
	}
	if (kvr_word_gen(word) != op->gen)
		return word_recycled(w);
	make_room(w->c);
	if (stage >= KVR_STAGE_FAILED) {
		/* A store that failed later did reach the stage; a load's blocks are gone. */
		if (op->kind == KVR_OP_STORE && value >> 16 >= (uint32_t)w->stage)
			return 1;
		return word_failed(w, stage, -(int)(value & 0xffff));
	}
	w->value = value;
	return stage >= w->stage;
}

static int wait_word(struct kvr_connector *c, struct kvr_rank_op *op, enum kvr_stage stage,
		     uint64_t deadline_ns, uint32_t *ret_value)
{
	struct word_wait w = { .c = c, .op = op, .stage = stage };
	char what[96];
	int err;

	snprintf(what, sizeof what, "stage %s of the %s of request %llu/%u", kvr_stage_name(stage),
		 kvr_op_kind_name(op->kind), (unsigned long long)op->req.id, op->req.attempt);
	op->held = 1; /* completions that are taken meanwhile must not reuse it */
	err = kvr_group_wait(c->group, word_ready, &w, deadline_ns, what);
	op->held = 0;
	if (err < 0 && !w.failed && kvr_group_check(c->group))
		err = lost(c, op);
	if (err > 0)
		*ret_value = w.value;
	return err > 0 ? 0 : err;
}

int kvr_rank_wait_store(struct kvr_connector *c, const struct kvr_request *req,
			enum kvr_stage stage, uint64_t deadline_ns)
{
	struct kvr_rank_op *op = kvr_rank_op_find(&c->known, req, KVR_OP_STORE);
	uint32_t value;

	return op ? wait_word(c, op, stage, deadline_ns, &value) : unknown(c, req, KVR_OP_STORE);
}

int kvr_rank_load_begin(struct kvr_connector *c, const struct kvr_request *req, uint32_t n,
			uint64_t deadline_ns)
{
	struct kvr_engine_answer a;
	struct kvr_rank_op *op;
	int err = take_begin(c, KVR_OP_LOAD, req, n, deadline_ns, &a, &op);

	return err ? err : (int)a.count; /* 0: nothing is left, and there is no operation */
}

/* A whole header page of another key than the caller's: not the block is bad, but the call. */
static int keys_differ(struct kvr_connector *c, const struct kvr_rank_op *op, uint32_t i,
		       const struct kvr_key *key)
{
	const struct kvr_slot_header *h = c->known.header;

	if (!memcmp(&h->key, key, sizeof *key) ||
	    kvr_slot_check(h, &c->geo, &h->key, h->space, list_of(c, op)[i].sum))
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
	const struct kvr_engine_block *list = list_of(c, op);

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
		return lost(c, op);
	if (!op || op->list == NONE)
		return unknown(c, req, KVR_OP_LOAD);
	if (!op->voted) {
		err = wait_word(c, op, KVR_STAGE_HOST, deadline_ns, &good);
		if (err)
			return err;
		err = verify(c, op, keys, good < op->n ? good : op->n);
		op->voted = 1;
		if (err < 0) {
			answer(c, op, KVR_ACK_FAILED, (uint32_t)-err);
			list_drop(c, op);
			return err;
		}
		op->good = (uint32_t)err;
		answer(c, op, KVR_ACK_VERIFIED, op->good);
	}
	err = wait_word(c, op, KVR_STAGE_VERIFIED, deadline_ns, &good);
	if (err)
		return err;
	if (good > op->n || good > max)
		return KVR_FAIL(-EMSGSIZE, "load_wait: %u good blocks of %u, room for %u", good,
				op->n, max);
	fill_blocks(c, op, good, ret_blocks);
	return (int)good;
}

int kvr_rank_load_done(struct kvr_connector *c, const struct kvr_request *req)
{
	struct kvr_rank_op *op = kvr_rank_op_find(&c->known, req, KVR_OP_LOAD);

	if (!op)
		return unknown(c, req, KVR_OP_LOAD);
	if (op->list == NONE)
		return 0;
	/* Without a vote this rank gives up the load: the others must not wait for it. */
	if (op->voted)
		answer(c, op, KVR_ACK_DONE, op->good);
	else
		answer(c, op, KVR_ACK_FAILED, ECANCELED);
	list_drop(c, op);
	return 0;
}
