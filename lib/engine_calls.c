/* SPDX-License-Identifier: Apache-2.0 */
/* What the leader's caller asks of the engine: lookup, begin, wait. Under the engine's lock. */
#include "engine_priv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "atomic.h"
#include "clock.h"
#include "err.h"
#include "hash.h"
#include "point.h"
#include "util.h"

static struct kvr_pin *pin_find(struct kvr_engine *e, const struct kvr_request *req)
{
	for (uint32_t i = 0; i < e->pin_count; i++)
		if (kvr_request_equal(&e->pins[i].req, req))
			return &e->pins[i];
	return NULL;
}

static void pin_drop(struct kvr_engine *e, struct kvr_pin *pin)
{
	struct kvr_pin *last = &e->pins[e->pin_count - 1], dropped = *pin;

	kvr_tier_unpin(&e->tier, pin->ids, pin->n);
	*pin = *last;
	last->ids = dropped.ids; /* each entry keeps a part of pin_ids of its own */
	e->pin_count--;
}

int kvr_engine_lookup(struct kvr_engine *e, const struct kvr_request *req,
		      const struct kvr_key *keys, uint32_t n, struct kvr_hit *ret_hit)
{
	uint32_t most = (uint32_t)kvr_min(e->opts.max_blocks, e->pool.slots), host;
	struct kvr_pin *pin;
	int err = 0;

	pthread_mutex_lock(&e->lock);
	pin = pin_find(e, req);
	if (pin)
		pin_drop(e, pin);
	if (e->reset != KVR_NO_OP) {
		err = KVR_FAIL(-EBUSY, "lookup of request %llu/%u: a reset is under way",
			       (unsigned long long)req->id, req->attempt);
	} else if (e->pin_count == e->group->layout.ops) {
		err = KVR_FAIL(-EAGAIN,
			       "lookup of request %llu/%u: %u requests hold pins already; release "
			       "those that ended",
			       (unsigned long long)req->id, req->attempt, e->pin_count);
	} else {
		pin = &e->pins[e->pin_count];
		pin->req = *req;
		pin->n = kvr_tier_match(&e->tier, req->space, keys, n < most ? n : most, pin->ids,
					&host);
		*ret_hit =
			(struct kvr_hit){ .blocks = pin->n, .host = host, .nvme = pin->n - host };
		e->pin_count += pin->n > 0;
		e->stats.lookups++;
		e->stats.lookup_keys += n;
		e->stats.hit_blocks += pin->n;
		e->stats.hit_blocks_host += host;
		e->stats.hit_blocks_nvme += pin->n - host;
	}
	pthread_mutex_unlock(&e->lock);
	return err;
}

void kvr_engine_looked(struct kvr_engine *e, const struct kvr_request *req, uint64_t number)
{
	struct kvr_pin *pin;

	pthread_mutex_lock(&e->lock);
	pin = pin_find(e, req);
	if (pin)
		pin->lookup = number;
	pthread_mutex_unlock(&e->lock);
}

int kvr_engine_release(struct kvr_engine *e, const struct kvr_request *req)
{
	struct kvr_pin *pin;

	pthread_mutex_lock(&e->lock);
	pin = pin_find(e, req);
	if (pin)
		pin_drop(e, pin);
	pthread_mutex_unlock(&e->lock);
	return 0;
}

int kvr_engine_abort(struct kvr_engine *e, const struct kvr_request *req)
{
	struct kvr_pin *pin;
	int n = 0;

	pthread_mutex_lock(&e->lock);
	pin = pin_find(e, req);
	if (pin)
		pin_drop(e, pin);
	for (uint32_t i = e->active, next; i != KVR_NO_OP; i = next) {
		struct kvr_op *op = &e->ops[i];

		next = op->next_op;
		if (kvr_request_equal(&op->req, req))
			n += kvr_op_abort(e, op, -ECANCELED);
	}
	pthread_mutex_unlock(&e->lock);
	kvr_engine_wake(e);
	return n;
}

int kvr_engine_fail(struct kvr_engine *e, const struct kvr_request *req, enum kvr_op_kind kind,
		    int status)
{
	struct kvr_op *op;

	pthread_mutex_lock(&e->lock);
	op = kvr_op_find(e, req, kind);
	if (op && op->stage < KVR_STAGE_END && !op->status)
		op->status = status;
	pthread_mutex_unlock(&e->lock);
	kvr_engine_wake(e);
	if (op)
		return 0;
	return KVR_FAIL(-ENOENT, "no %s of request %llu/%u is known", kvr_op_kind_name(kind),
			(unsigned long long)req->id, req->attempt);
}

/*
 * So long a begin waits for ranks that still have slots in quarantine. Not longer: one that was
 * first with its abort answers when a tick tells it the end, and the caller makes the ticks.
 */
#define QUARANTINE_NS (2 * KVR_SEC)

/* A begin that may have to wait for room in the pool. */

struct begin {
	struct kvr_engine *e;
	const struct kvr_request *req;
	const struct kvr_key *keys; /* stores */
	uint32_t n;
	uint32_t budget;	       /* prefetches: blocks */
	const struct kvr_model *model; /* a reset, or NULL */
	enum kvr_op_kind kind;
	uint32_t flags;
	struct kvr_engine_answer *answer;
	struct kvr_engine_block *blocks;
	uint64_t deadline, since;
	uint64_t lookup;

	struct kvr_op *op;
	enum kvr_refused refused;

	char reason[256]; /* why the last try found no room */
};

static void refuse(struct begin *b, int status)
{
	snprintf(b->reason, sizeof b->reason, "%s", kvr_explain());
	*b->answer = (struct kvr_engine_answer){ .status = status, .reason = b->refused };
}

static int quarantine_full(const struct kvr_engine *e)
{
	const struct kvr_op *op = &e->ops[e->held];

	return KVR_FAIL(
		-EAGAIN,
		"%llu of the pool's %llu slots are in quarantine, more than a quarter: rank "
		"%u, for one, did not say that it no longer copies the %s of request "
		"%llu/%u",
		(unsigned long long)e->held_slots, (unsigned long long)e->pool.slots,
		(uint32_t)__builtin_ctzll((op->need & ~op->acked) | 1ull << 63),
		kvr_op_kind_name(op->kind), (unsigned long long)op->req.id, op->req.attempt);
}

/* An entry for a new operation, or the reason why there is none. *ret_final: waiting does not help.
 */
static int begin_op(struct begin *b, int *ret_final)
{
	struct kvr_engine *e = b->e;
	struct kvr_op *old = kvr_op_find(e, b->req, b->kind);

	*ret_final = 1;
	b->refused = KVR_REFUSED_NONE;
	if (e->reset != KVR_NO_OP)
		return KVR_FAIL(-EBUSY, "the reset of request %llu/%u is under way",
				(unsigned long long)e->ops[e->reset].req.id,
				e->ops[e->reset].req.attempt);
	b->refused = KVR_REFUSED_TABLE;
	if (old && old->used && old->stage < KVR_STAGE_END)
		return KVR_FAIL(-EEXIST,
				"request %llu attempt %u already has a %s; raise the attempt",
				(unsigned long long)b->req->id, b->req->attempt,
				kvr_op_kind_name(b->kind));
	if (!e->free_count)
		return KVR_FAIL(-EAGAIN,
				"all %u entries of the operation table are in use; call "
				"check_completed so that ended ones can go",
				e->group->layout.ops);
	*ret_final = 0;
	b->refused = KVR_REFUSED_OPEN;
	if (e->open_count >= KVR_OPEN_OPS && b->kind != KVR_OP_PREFETCH)
		return KVR_FAIL(-EAGAIN, "%u operations wait for ranks, the most at once",
				e->open_count);
	b->refused = KVR_REFUSED_POOL; /* all that can be missing from here on */
	if (e->held_slots > e->pool.slots / 4 &&
	    (b->kind == KVR_OP_STORE || b->kind == KVR_OP_LOAD)) {
		*ret_final = kvr_now() - b->since > QUARANTINE_NS;
		return quarantine_full(e);
	}
	b->op = kvr_op_new(e, b->req, b->kind, b->flags);
	b->op->deadline = b->deadline;
	return 0;
}

/* The operation is as it will be; it starts when its answer is published (kvr_engine_begun). */
static int begin_decided(struct begin *b, uint32_t covered)
{
	struct kvr_op *op = b->op;

	op->good = op->kind == KVR_OP_LOAD ? op->n : 0;
	*b->answer = (struct kvr_engine_answer){ .entry = kvr_op_entry(b->e, op),
						 .gen = op->gen,
						 .count = op->blocks,
						 .covered = covered,
						 .flags = op->flags,
						 .lookup = b->lookup,
						 .groups = op->flags & KVR_OP_LAYERED
								   ? b->e->geo.layer_groups
								   : 0 };
	return 1;
}

static int begin_refused(struct begin *b, int status, int final)
{
	if (b->op)
		kvr_op_drop(b->e, b->op);
	b->op = NULL;
	refuse(b, status);
	return final;
}

static void begin_add(struct begin *b, uint32_t id, uint32_t own)
{
	kvr_tier_pin(&b->e->tier, &id, 1);
	b->op->own[b->op->n] = (uint8_t)own;
	b->op->ids[b->op->n++] = id;
}

/* 1: decided (the answer says what), 0: no room at all yet. */
static int try_store(struct begin *b)
{
	struct kvr_engine *e = b->e;
	uint32_t covered;
	int final, err = begin_op(b, &final);

	if (err)
		return begin_refused(b, err, final);
	for (covered = 0; covered < b->n && covered < e->opts.max_blocks; covered++) {
		const struct kvr_key *key = &b->keys[covered];
		uint32_t id = kvr_index_find(&e->tier.index, b->req->space, key);

		if (id != KVR_INDEX_NONE) {
			begin_add(b, id, 0);
			continue;
		}
		if (kvr_tier_reserve(&e->tier, b->req->space, key, &id))
			break;
		struct kvr_slot_header *h =
			(void *)kvr_pool_image(&e->pool, e->tier.blocks[id].slot);

		memset(h, 0, e->geo.header_bytes);
		h->key = *key; /* the seed of the ranks' sums */
		b->blocks[b->op->blocks++] =
			(struct kvr_engine_block){ covered, e->tier.blocks[id].slot,
						   kvr_hash(key, sizeof *key, b->req->space) };
		begin_add(b, id, 1);
	}
	if (!covered && b->n)
		return begin_refused(b,
				     KVR_FAIL(-EAGAIN,
					      "no slot of the pool's %llu can be freed: all are "
					      "pinned, being copied or being written",
					      (unsigned long long)e->pool.slots),
				     0);
	return begin_decided(b, covered);
}

static int try_load(struct begin *b)
{
	struct kvr_engine *e = b->e;
	struct kvr_pin *pin = pin_find(e, b->req);
	uint32_t n = pin && pin->n < b->n ? pin->n : b->n;
	int final = 1, err;

	if (!pin && e->reset == KVR_NO_OP)
		err = KVR_FAIL(-ENOENT, "request %llu attempt %u has no pinned lookup",
			       (unsigned long long)b->req->id, b->req->attempt);
	else
		err = begin_op(b, &final);
	if (err)
		return begin_refused(b, err, final);
	for (uint32_t i = 0; i < n; i++) {
		struct kvr_tier_block *blk = &e->tier.blocks[pin->ids[i]];

		if (blk->dead)
			break;
		int parts = blk->slot == KVR_NO_SLOT && b->flags & KVR_OP_LAYERED;

		if (blk->slot == KVR_NO_SLOT &&
		    kvr_tier_fetch(&e->tier, pin->ids[i],
				   parts ? KVR_READ_PARTS : KVR_READ_PREFETCH))
			break;
		if (blk->reading == KVR_READ_PREFETCH) { /* perhaps another's; now it is urgent */
			blk->reading = KVR_READ_DEMAND;
			e->read_queue[e->read_tail++ & e->queue_mask] = pin->ids[i];
		}
		b->blocks[b->op->blocks++] = (struct kvr_engine_block){ i, blk->slot, blk->sum };
		begin_add(b, pin->ids[i], (uint32_t)parts);
	}
	if (b->flags & KVR_OP_LAYERED)
		kvr_layers_divide(e, b->op);
	b->lookup = pin->lookup;

	if (!b->op->n && n && !e->tier.blocks[pin->ids[0]].dead)
		return begin_refused(b,
				     KVR_FAIL(-EAGAIN,
					      "no slot of the pool's %llu can be freed for a load",
					      (unsigned long long)e->pool.slots),
				     0);
	/* Nothing left of the prefix: there is no operation, and nobody has to end one. */
	if (!b->op->n) {
		kvr_op_drop(e, b->op);
		*b->answer = (struct kvr_engine_answer){ 0 };
		return 1;
	}
	return begin_decided(b, 0);
}

/* Blocks of the prefix that are only on the store, as far as budget and pool go. */
static int try_prefetch(struct begin *b)
{
	struct kvr_engine *e = b->e;
	const uint64_t queue = (uint64_t)e->queue_mask + 1;
	uint32_t i;
	int final, err = begin_op(b, &final);

	if (err)
		return begin_refused(b, err, 1);
	for (i = 0; i < b->n && i < e->opts.max_blocks; i++) {
		uint32_t id = kvr_index_find(&e->tier.index, b->req->space, &b->keys[i]);
		int fetch;

		if (id == KVR_INDEX_NONE || e->tier.blocks[id].copying)
			break;
		fetch = e->tier.blocks[id].slot == KVR_NO_SLOT;
		/* Pinned first: what is in the pool must not go to make room for the rest of it. */
		begin_add(b, id, (uint32_t)fetch);
		if (!fetch)
			continue;
		if (b->op->blocks == b->budget || e->fetch_tail - e->fetch_head >= queue ||
		    kvr_tier_fetch(&e->tier, id, KVR_READ_PREFETCH)) {
			kvr_tier_unpin(&e->tier, &b->op->ids[--b->op->n], 1);
			break;
		}
		e->fetch_queue[e->fetch_tail++ & e->queue_mask] = id;
		b->op->blocks++;
	}
	if (b->op->blocks)
		return begin_decided(b, i);
	for (uint32_t k = 0; k < b->op->n; k++)
		b->op->own[k] = 0;
	kvr_op_drop(e, b->op);
	*b->answer = (struct kvr_engine_answer){ .covered = i };
	return 1;
}

/* A reset also stops what need not be finished, and forgets who counts on the old blocks. */
static int try_propose(struct begin *b)
{
	struct kvr_engine *e = b->e;
	int final, err = begin_op(b, &final);

	if (err)
		return begin_refused(b, err, final);
	begin_decided(b, 0);
	if (b->kind != KVR_OP_RESET)
		return 1;
	e->reset = kvr_op_entry(e, b->op);
	e->has_model = b->model != NULL;
	if (b->model)
		e->model = *b->model;
	return 1;
}

static int try_begin(struct begin *b)
{
	switch (b->kind) {
	case KVR_OP_STORE:
		return try_store(b);
	case KVR_OP_LOAD:
		return try_load(b);
	case KVR_OP_PREFETCH:
		return try_prefetch(b);
	default:
		return try_propose(b);
	}
}

static int begin_ready(void *arg)
{
	struct begin *b = arg;
	int done;

	pthread_mutex_lock(&b->e->lock);
	/* After a death nothing is reserved: slots that a survivor still copies from must not move.
	 */
	done = kvr_group_check(b->e->group);
	if (!done)
		done = try_begin(b);
	b->e->waiting = !done;
	pthread_mutex_unlock(&b->e->lock);
	return done;
}

static int begin(struct begin *b, uint64_t deadline_ns)
{
	char what[96];
	int err;

	b->deadline = deadline_ns;
	b->since = kvr_now();

	snprintf(what, sizeof what, "room for a %s of request %llu/%u", kvr_op_kind_name(b->kind),
		 (unsigned long long)b->req->id, b->req->attempt);
	refuse(b, -EAGAIN);
	err = kvr_group_wait(b->e->group, begin_ready, b, deadline_ns, what);
	if (err > 0 && b->answer->status)
		return kvr_fail(0, "%s", b->reason);
	if (err > 0)
		return 0;
	if (err != -ETIMEDOUT)
		return err;
	/* What the last try said is the reason; the answer carries the number to the ranks. */
	return kvr_fail(0, "no %s until the deadline: %s", what, b->reason);
}

int kvr_engine_store_begin(struct kvr_engine *e, const struct kvr_request *req,
			   const struct kvr_key *keys, uint32_t n, uint64_t deadline_ns,
			   struct kvr_engine_answer *ret_answer, struct kvr_engine_block *blocks)
{
	struct begin b = { .e = e,
			   .req = req,
			   .keys = keys,
			   .n = n,
			   .kind = KVR_OP_STORE,
			   .answer = ret_answer,
			   .blocks = blocks };

	return begin(&b, deadline_ns);
}

int kvr_engine_load_begin(struct kvr_engine *e, const struct kvr_request *req, uint32_t n,
			  int layered, uint64_t deadline_ns, struct kvr_engine_answer *ret_answer,
			  struct kvr_engine_block *blocks)
{
	struct begin b = { .e = e,
			   .req = req,
			   .n = n,
			   .kind = KVR_OP_LOAD,
			   .flags = layered ? KVR_OP_LAYERED : 0,
			   .answer = ret_answer,
			   .blocks = blocks };

	return begin(&b, deadline_ns);
}

int kvr_engine_prefetch(struct kvr_engine *e, const struct kvr_request *req,
			const struct kvr_key *keys, uint32_t n, uint32_t budget,
			struct kvr_engine_answer *ret_answer)
{
	struct begin b = { .e = e,
			   .req = req,
			   .keys = keys,
			   .n = n,
			   .budget = budget ? budget : UINT32_MAX,
			   .kind = KVR_OP_PREFETCH,
			   .answer = ret_answer };

	return begin(&b, UINT64_MAX); /* it never waits for room */
}

int kvr_engine_propose(struct kvr_engine *e, const struct kvr_request *req, enum kvr_op_kind kind,
		       const struct kvr_model *model, uint64_t deadline_ns,
		       struct kvr_engine_answer *ret_answer)
{
	struct begin b = { .e = e, .req = req, .kind = kind, .model = model, .answer = ret_answer };

	return begin(&b, deadline_ns);
}

struct op_wait {
	struct kvr_engine *e;
	const struct kvr_request *req;
	enum kvr_op_kind kind;
	enum kvr_stage stage;
	uint32_t value;
};

/* An operation failed with -EBADMSG: which of the ranks' words was the first to be impossible? */
static void name_bad_ack(const struct kvr_engine *e)
{
	const uint64_t word = e->bad_ack.word;

	if (!word)
		return;
	kvr_fail_more(0,
		      "; the first impossible word was rank %u's for entry %u, %#llx: generation "
		      "%u, code %u, value %u. Possible is an earlier generation, or %u with",
		      e->bad_ack.rank, e->bad_ack.entry, (unsigned long long)word,
		      kvr_word_gen(word), kvr_word_code(word), kvr_word_value(word),
		      e->bad_ack.gen);
	if (e->bad_ack.kind == KVR_OP_STORE)
		kvr_fail_more(0, " code %d and %u blocks", KVR_ACK_COPIED, e->bad_ack.blocks);
	else
		kvr_fail_more(0, " code %d or %d and at most %u blocks", KVR_ACK_VERIFIED,
			      KVR_ACK_DONE, e->bad_ack.blocks);
	kvr_fail_more(0, ", or code %d and an errno; the page of rank %u was overwritten",
		      KVR_ACK_FAILED, e->bad_ack.rank);
}

static int lost(struct kvr_engine *e, const struct kvr_op *op)
{
	int cause = kvr_group_check(e->group);

	if (!cause)
		cause = KVR_FAIL(op->status, "%s", kvr_strerror(op->status));
	return KVR_FAIL(cause, "the %s of request %llu/%u was lost with epoch %llu: %s",
			kvr_op_kind_name(op->kind), (unsigned long long)op->req.id, op->req.attempt,
			(unsigned long long)kvr_group_epoch(e->group), kvr_explain());
}

static int op_ready(void *arg)
{
	struct op_wait *w = arg;
	struct kvr_op *op;
	int done = 0;

	pthread_mutex_lock(&w->e->lock);
	op = kvr_op_find(w->e, w->req, w->kind);
	if (!op) {
		done = KVR_FAIL(-ENOENT, "no %s of request %llu/%u is known",
				kvr_op_kind_name(w->kind), (unsigned long long)w->req->id,
				w->req->attempt);
	} else if (op->stage == KVR_STAGE_LOST &&
		   (op->kind == KVR_OP_LOAD || op->reached < w->stage)) {
		done = lost(w->e, op);
	} else if (op->reached >= w->stage &&
		   !(op->kind == KVR_OP_LOAD && op->stage == KVR_STAGE_CANCELLED)) {
		w->value = op->good;
		done = 1;
	} else if (op->stage >= KVR_STAGE_END) {
		done = KVR_FAIL(op->status ? op->status : -ECANCELED,
				"%s of request %llu/%u ended as %s: %s", kvr_op_kind_name(w->kind),
				(unsigned long long)w->req->id, w->req->attempt,
				kvr_stage_name(op->stage), kvr_strerror(op->status));
		if (done == -EBADMSG)
			name_bad_ack(w->e);
	}
	w->e->waiting = !done;
	pthread_mutex_unlock(&w->e->lock);
	return done;
}

/* Adds to the sentence of a wait that ran out of time: which ranks did not acknowledge. */
static void name_missing(struct kvr_engine *e, const struct kvr_request *req, enum kvr_op_kind kind)
{
	struct kvr_op *op;
	uint64_t missing = 0;
	char who[256];

	pthread_mutex_lock(&e->lock);
	op = kvr_op_find(e, req, kind);
	if (op && op->stage < KVR_STAGE_END)
		missing = op->need & ~op->acked;
	pthread_mutex_unlock(&e->lock);
	for (int n = 0; missing && n < 3; n++, missing &= missing - 1) {
		kvr_group_describe(e->group, (uint32_t)__builtin_ctzll(missing), who, sizeof who);
		kvr_fail_more(0, "%s %s", n ? "," : "; not acknowledged by", who);
	}
	if (missing)
		kvr_fail_more(0, " and %d more", __builtin_popcountll(missing));
}

int kvr_engine_wait_op(struct kvr_engine *e, const struct kvr_request *req, enum kvr_op_kind kind,
		       enum kvr_stage stage, uint64_t deadline_ns)
{
	struct op_wait w = { e, req, kind, stage, 0 };
	char what[96];
	int err, cause;

	snprintf(what, sizeof what, "stage %s of the %s of request %llu/%u", kvr_stage_name(stage),
		 kvr_op_kind_name(kind), (unsigned long long)req->id, req->attempt);
	err = kvr_group_wait(e->group, op_ready, &w, deadline_ns, what);
	cause = err < 0 ? kvr_group_check(e->group) : 0;
	if (cause) {
		kvr_engine_lose(e, cause);
		err = op_ready(&w); /* its own end, or this one */
	}
	if (err == -ETIMEDOUT)
		name_missing(e, req, kind);
	return err > 0 ? (int)w.value : err;
}

int kvr_engine_op_blocks(struct kvr_engine *e, const struct kvr_request *req,
			 struct kvr_engine_block *blocks, uint32_t max)
{
	struct kvr_op *op;
	int n = 0;

	pthread_mutex_lock(&e->lock);
	op = kvr_op_find(e, req, KVR_OP_LOAD);
	if (op && op->stage < KVR_STAGE_END)
		for (; n < (int)kvr_min(op->good, max); n++) {
			struct kvr_tier_block *blk = &e->tier.blocks[op->ids[n]];

			blocks[n] = (struct kvr_engine_block){ (uint32_t)n, blk->slot, blk->sum };
		}
	pthread_mutex_unlock(&e->lock);
	return n;
}

void kvr_engine_begun(struct kvr_engine *e, const struct kvr_engine_answer *answer)
{
	pthread_mutex_lock(&e->lock);
	if (e->group_error)
		kvr_op_end(e, &e->ops[answer->entry], KVR_STAGE_LOST, e->group_error);
	else
		kvr_op_stage(e, &e->ops[answer->entry], KVR_STAGE_BEGUN, 0, 0);
	pthread_mutex_unlock(&e->lock);
	kvr_engine_wake(e);
}

void kvr_engine_cancel(struct kvr_engine *e, const struct kvr_engine_answer *answer)
{
	pthread_mutex_lock(&e->lock);
	if (answer->entry == e->reset)
		e->reset = KVR_NO_OP;
	kvr_op_drop(e, &e->ops[answer->entry]);
	pthread_mutex_unlock(&e->lock);
}

uint32_t kvr_engine_records(struct kvr_engine *e, uint32_t from, struct kvr_completion *ret,
			    struct kvr_engine_name *ret_names, uint32_t max)
{
	uint32_t n = 0;

	pthread_mutex_lock(&e->lock);
	for (uint64_t i = e->done_head + from; i < e->done_tail && n < max; i++, n++) {
		const struct kvr_engine_record *r = &e->done[i & e->done_mask];

		ret[n] = r->c;
		if (ret_names)
			ret_names[n] = (struct kvr_engine_name){ r->entry, r->gen, r->reached };
	}
	pthread_mutex_unlock(&e->lock);
	return n;
}

void kvr_engine_told(struct kvr_engine *e, uint32_t n)
{
	pthread_mutex_lock(&e->lock);
	while (n--) {
		const struct kvr_engine_record *r = &e->done[e->done_head++ & e->done_mask];

		if (!r->end)
			continue;
		e->ops[r->entry].told = 1;
		if (!e->ops[r->entry].held)
			kvr_op_free(e, &e->ops[r->entry]);
	}
	pthread_mutex_unlock(&e->lock);
}

/*
 * A leader that was stopped may have been replaced. What its successor saw of its ticks counts, and
 * no other: either it saw this one, or we see that its fence is going up, and wait for it.
 */
static int tick_counts(struct kvr_group *g, uint64_t tick, uint64_t deadline_ns)
{
	struct timespec pause = kvr_timespec(KVR_MS / 10);
	uint64_t up;

	for (;;) {
		up = kvr_load_acquire(&g->takeover->new_epoch); /* K2, pairs with K1 */
		if (kvr_group_tick_done(g) >= tick)
			return 0;
		if (up)
			return kvr_group_check(g);
		if (kvr_now() >= deadline_ns)
			return KVR_FAIL(-ETIMEDOUT,
					"group %s: tick %llu is published, but another leader is "
					"taking over (it may be stopped), or the takeover page was "
					"overwritten; calling again goes on",
					g->name, (unsigned long long)tick);
		nanosleep(&pause, NULL);
	}
}

/*
 * The engine's thread declares the epoch over under the same lock. So a tick is done before that,
 * and every rank finds it; or the epoch is over, and it never is. In between, a rank that looks at
 * the last tick at once would lose what one that looks later is given.
 */
int kvr_engine_tick(struct kvr_engine *e, uint64_t tick, uint32_t n, uint64_t deadline_ns)
{
	uint64_t *word = &kvr_group_leader_page(e->group)->tick_done;
	int err;

	pthread_mutex_lock(&e->lock);
	err = kvr_group_check(e->group);
	KVR_POINT(tick_checked, 0);
	if (!err) /* an exchange, so that the look at the fence does not come before it */
		kvr_xchg_acq_rel(word, tick); /* T1, pairs with T2 */
	pthread_mutex_unlock(&e->lock);
	if (!err)
		err = tick_counts(e->group, tick, deadline_ns);
	if (!err)
		kvr_engine_told(e, n);
	return err;
}

void kvr_engine_lose(struct kvr_engine *e, int cause)
{
	pthread_mutex_lock(&e->lock);
	if (!e->group_error)
		e->group_error = cause;
	kvr_ops_lose(e, e->group_error);
	pthread_mutex_unlock(&e->lock);
	kvr_engine_wake(e);
}

static int drained(void *arg)
{
	struct kvr_engine *e = arg;
	int done;

	pthread_mutex_lock(&e->lock);
	done = !e->active_count && !e->io_running && e->write_head == e->write_tail;
	e->waiting = !done;
	pthread_mutex_unlock(&e->lock);
	return done;
}

int kvr_engine_drain(struct kvr_engine *e, uint64_t deadline_ns)
{
	uint32_t oldest = KVR_NO_OP;
	int err;

	kvr_engine_prefetch_cancel(e, NULL);
	err = kvr_group_wait(e->group, drained, e, deadline_ns, "the end of all operations");
	if (err != -ETIMEDOUT)
		return err > 0 ? 0 : err;
	pthread_mutex_lock(&e->lock);
	for (uint32_t i = e->active; i != KVR_NO_OP; i = e->ops[i].next_op)
		oldest = i; /* new ones go to the front */
	struct kvr_op op = e->ops[oldest == KVR_NO_OP ? 0 : oldest];

	pthread_mutex_unlock(&e->lock);
	if (oldest == KVR_NO_OP)
		return kvr_fail_more(err, "; writes to the store are under way");
	kvr_fail_more(err, "; the oldest is the %s of request %llu/%u, at stage %s",
		      kvr_op_kind_name(op.kind), (unsigned long long)op.req.id, op.req.attempt,
		      kvr_stage_name(op.stage));
	name_missing(e, &op.req, op.kind);
	return err;
}

void kvr_engine_stats(struct kvr_engine *e, struct kvr_stats *ret_stats)
{
	pthread_mutex_lock(&e->lock);
	*ret_stats = e->stats;
	ret_stats->epoch = e->group->header.epoch;
	ret_stats->blocks_recovered = e->tier.recovered;
	ret_stats->host_evictions = e->tier.host_evictions;
	ret_stats->nvme_evictions = e->tier.disk_evictions;
	ret_stats->pool_slots = e->pool.slots;
	ret_stats->pool_free = e->tier.free_slot_count;
	ret_stats->store_slots = e->info.slots;
	ret_stats->store_used = e->info.used;
	ret_stats->bytes_read = e->info.bytes_read;
	ret_stats->bytes_written = e->info.bytes_written;
	pthread_mutex_unlock(&e->lock);
}
