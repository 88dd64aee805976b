/* SPDX-License-Identifier: Apache-2.0 */
/* What the steps of all kinds of flows have in common: begins, aborts, bytes. */
#include "stress_connector_world.h"

static struct flow_word *word_of(struct side *s, const struct run *x)
{
	return &s->w->shared->flow[x->f];
}

void go(struct side *s, struct run *x, enum state state)
{
	(void)s;
	x->state = state;
	x->since = test_now_ns();
	x->steps++;
	x->hold = 0;
}

void mark(struct side *s, struct run *x, uint32_t which)
{
	__atomic_fetch_or(&word_of(s, x)->mark[which], 1u << s->index, __ATOMIC_ACQ_REL);
}

uint32_t marks(struct side *s, struct run *x, uint32_t which)
{
	return __atomic_load_n(&word_of(s, x)->mark[which], __ATOMIC_ACQUIRE);
}

uint32_t all_ranks(const struct side *s)
{
	return (1u << s->w->ranks) - 1;
}

/* --- begins ----------------------------------------------------------------------------------- */

struct seen *seen_of(struct side *s, struct run *x, uint32_t k)
{
	CHECK(s, k < W_BEGINS, k);
	return &s->log->seen[x->f][k];
}

/* In rounds in which all calls are alike: is that the next one of its kind? */
static int in_order(struct side *s, const struct run *x, uint32_t kind)
{
	const struct order *o = &s->w->shared->order[kind];
	uint32_t at = s->log->at[kind];

	return !s->w->alike || (at < __atomic_load_n(&o->count, __ATOMIC_ACQUIRE) &&
				o->place[at] == (x->f << 8 | x->taken));
}

enum may may_take(struct side *s, struct run *x, uint32_t kind)
{
	struct flow_word *word = word_of(s, x);
	int over = __atomic_load_n(&word->over, __ATOMIC_ACQUIRE) > x->pass;
	uint32_t limit = over ? word->base[x->pass]
			      : __atomic_load_n(&word->published, __ATOMIC_ACQUIRE);

	if (x->taken < limit)
		return in_order(s, x, kind) ? MAY : MAY_NOT_YET;
	if (over)
		return MAY_NEVER;
	if (s->shares || s->w->alike || x->flow.aborts || x->flow.barrier ||
	    x->flow.load == LOAD_LAYERS || x->flow.late != NOBODY || mine(s, 400))
		return MAY_NOT_YET;
	s->log->early++;
	return MAY_EARLY;
}

/* A call that had no answer is made again before another one of its kind. */
int not_yet(struct side *s, struct run *x)
{
	if (s->lead && s->w->alike)
		s->stuck = x;
	return 0;
}

/* Is there an operation of that begin? A rank hears of some only that they are over. */
static int exists(const struct run *x, uint32_t kind, int value)
{
	if (kind == KVR_KIND_LOOKUP)
		return 0;
	if (value < 0)
		return value != -EAGAIN && value != -EEXIST && value != -ENODATA &&
		       value != x->flow.refuse_status;
	return value > 0 || (kind != KVR_KIND_LOAD && kind != KVR_KIND_PREFETCH);
}

struct seen *began(struct side *s, struct run *x, uint32_t kind, const struct kvr_request *req,
		   int value, uint32_t more)
{
	struct seen *e = seen_of(s, x, x->taken);

	*e = (struct seen){ .asked = 1,
			    .kind = (uint8_t)kind,
			    .pass = (uint8_t)x->pass,
			    .attempt = (uint16_t)req->attempt,
			    .exists = (uint8_t)exists(x, kind, value),
			    .value = value,
			    .more = more };
	if (e->exists) {
		struct name *n = side_name(s, req, kind);

		CHECK(s, !s->lead || n->begun - n->ended < 4, n->begun);
		n->flow[n->begun % 4] = x->f;
		n->begin[n->begun % 4] = x->taken;
		n->begun++;
	}
	if (s->lead && s->w->alike) {
		struct order *o = &s->w->shared->order[kind];

		CHECK(s, o->count < W_FLOWS * 4, o->count);
		o->place[o->count] = x->f << 8 | x->taken;
		__atomic_store_n(&o->count, o->count + 1, __ATOMIC_RELEASE);
	}
	s->stuck = NULL;
	s->log->at[kind]++;
	x->taken++;
	if (s->lead) {
		struct flow_word *word = word_of(s, x);

		__atomic_store_n(&word->attempts, x->attempt, __ATOMIC_RELEASE);
		__atomic_store_n(&word->published, x->taken, __ATOMIC_RELEASE);
	}
	return e;
}

void no_more(struct side *s, struct run *x)
{
	struct flow_word *word = word_of(s, x);

	word->base[x->pass] = word->published;
	word->base_attempts[x->pass] = word->attempts;
	__atomic_store_n(&word->over, x->pass + 1, __ATOMIC_RELEASE);
}

/* --- bytes ------------------------------------------------------------------------------------ */

/* Wrong bytes of the block of key i, in the first `groups` layer groups, as far as this rank reads
 * them. */
uint64_t wrong_in(struct side *s, const struct run *x, uint32_t i, const struct kvr_block *b,
		  uint32_t groups)
{
	struct kvr_key key = plan_content(&x->flow, i, s->generation);
	uint64_t end = groups * s->w->cl->shape.layer_bytes, wrong = 0;
	struct kvr_span spans[64];
	uint32_t n = kvr_connector_spans(s->c, 0, spans, 64);

	for (uint32_t k = 0; k < n; k++)
		for (uint64_t at = spans[k].offset;
		     at < spans[k].offset + spans[k].bytes && at < end; at++)
			wrong += b->payload[at] != cluster_byte(&key, at);
	return wrong;
}

/* --- aborts ----------------------------------------------------------------------------------- */

/* A rank copies until the moment in which it says that it does not any more. */
static void copy_until_now(struct side *s, struct run *x)
{
	if (x->state == S_STORE_HOLD || x->state == S_STORE_COPIED)
		for (int i = 0; i < x->count; i++) {
			uint32_t k = x->at - x->covered + x->stored[i].index;
			struct kvr_key key = plan_content(&x->flow, k, s->generation);

			cluster_fill(s->c, &key, &x->stored[i]);
		}
	if (x->state == S_LOAD_HOLD || x->state == S_LOAD_DONE)
		for (int i = 0; i < x->told; i++)
			s->log->wrong += wrong_in(s, x, (uint32_t)i, &x->blocks[i], x->group);
	CHECK(s, !s->log->wrong, s->log->wrong);
}

static void lead_abort(struct side *s, struct run *x)
{
	no_more(s, x);
	for (uint32_t a = 0; a < x->attempt; a++) {
		struct kvr_request req = x->flow.req;
		int n;

		req.attempt = a;
		n = CALL(s, 0, kvr_connector_abort(s->c, &req));
		CHECK(s, n >= 0, n);
		s->log->abort_ended[x->f] += (uint16_t)n;
	}
	for (uint32_t k = 0; k < x->taken; k++)
		s->log->seen[x->f][k].cut |= !s->log->seen[x->f][k].over;
}

static void rank_abort(struct side *s, struct run *x)
{
	struct flow_word *word = word_of(s, x);
	int over = __atomic_load_n(&word->over, __ATOMIC_ACQUIRE) > x->pass;
	uint32_t attempts = over ? word->base_attempts[x->pass] : x->attempt;

	copy_until_now(s, x);
	if (attempts < x->attempt)
		attempts = x->attempt;
	for (uint32_t a = 0; a < attempts; a++) {
		struct kvr_request req = x->flow.req;

		req.attempt = a;
		CHECK(s, !CALL(s, 0, kvr_connector_abort(s->c, &req)), a);
	}
	for (uint32_t k = 0; k < x->taken; k++)
		if (!s->log->seen[x->f][k].spoke)
			s->log->seen[x->f][k].gave_up = 1;
}

void abort_flow(struct side *s, struct run *x)
{
	s->log->aborts[x->state]++;
	if (s->lead)
		lead_abort(s, x);
	else
		rank_abort(s, x);
	s->log->aborted[x->f] |= (uint8_t)(1u << x->pass);
	go(s, x, S_ENDS);
}
