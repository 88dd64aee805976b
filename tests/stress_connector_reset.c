/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resets, with what can be in their way, and flipped bytes. Nothing else runs at the same time: so
 * what must come of it is known exactly.
 */
#include "stress_connector_world.h"

#include "connector_priv.h"

/* x->sub counts what a reset's flow has done. */
enum { RESET_LOOKED, RESET_OPENED, RESET_SET_UP, RESET_CALLED, RESET_TRIED };

static uint64_t patience(void)
{
	return test_deadline_ms(PATIENCE_MS);
}

static int is_someone(const struct side *s, const struct run *x)
{
	return !s->lead && x->flow.someone == s->rank;
}

static int opens_store(const struct flow *t)
{
	return t->reset == RESET_BUSY || t->reset == RESET_QUARANTINE || t->reset == RESET_UNTAKEN;
}

/* --- before it -------------------------------------------------------------------------------- */

/* UNTAKEN: somebody does not take this answer, nor that of the store. */
static int look(struct side *s, struct run *x)
{
	struct kvr_hit hit = { 0 };
	int r;

	if (x->flow.reset != RESET_UNTAKEN)
		return 1;
	if (!s->lead && may_take(s, x, KVR_KIND_LOOKUP) != MAY)
		return 0;
	x->load = x->flow.req;
	x->load.attempt = 9;
	r = is_someone(s, x)
		    ? -ENODATA
		    : CALL(s, s->lead ? side_soon(s) : patience(),
			   kvr_connector_lookup(s->c, &x->load, x->keys, x->flow.n, until, &hit));
	if (r == -ETIMEDOUT && s->lead)
		return not_yet(s, x);
	CHECK(s, r == 0 || r == -ENODATA, r);
	began(s, x, KVR_KIND_LOOKUP, &x->load, r ? r : (int)hit.blocks, 0);
	return 1;
}

static int open_store(struct side *s, struct run *x)
{
	struct seen *e;
	uint32_t covered = 0;
	int r;

	if (!opens_store(&x->flow))
		return 1;
	if (!s->lead && may_take(s, x, KVR_KIND_STORE) != MAY)
		return 0;
	x->req = x->flow.req;
	x->req.attempt = 8;
	if (is_someone(s, x) && x->flow.reset == RESET_UNTAKEN)
		r = -ENODATA;
	else
		r = CALL(s, s->lead ? test_deadline_ms(50) : patience(),
			 kvr_connector_store_begin(s->c, &x->req, x->keys, x->flow.n, until,
						   x->stored, W_LEN, &covered));
	if (r == -ETIMEDOUT && s->lead)
		return not_yet(s, x);
	CHECK(s,
	      (r > 0 && covered) || r == -EAGAIN || r == -ENODATA ||
		      (r == -ECANCELED && x->flow.reset == RESET_QUARANTINE),
	      r);
	x->store_k = x->taken;
	x->count = r;
	x->covered = covered;
	e = began(s, x, KVR_KIND_STORE, &x->req, r, covered);
	e->joined = r >= 0 && (uint32_t)r < covered;
	return 1;
}

static void fill(struct side *s, struct run *x)
{
	for (int i = 0; i < x->count; i++) {
		struct kvr_key key = plan_content(&x->flow, x->stored[i].index, s->generation);

		cluster_fill(s->c, &key, &x->stored[i]);
	}
}

static void copied(struct side *s, struct run *x)
{
	if (x->count <= 0 || s->lead)
		return;
	fill(s, x);
	CHECK(s, !CALL(s, 0, kvr_connector_store_copied(s->c, &x->req, 0)), 0);
	seen_of(s, x, x->store_k)->spoke = 1;
	x->count = 0;
}

static void aborted(struct side *s, struct run *x)
{
	int r;

	if (x->count <= 0)
		return;
	if (!s->lead)
		fill(s, x); /* until this moment */
	r = CALL(s, 0, kvr_connector_abort(s->c, &x->req));
	CHECK(s, r >= 0, r);
	s->log->abort_ended[x->f] += (uint16_t)r;
	s->log->aborted[x->f] |= 1;
	seen_of(s, x, x->store_k)->gave_up = 1;
	seen_of(s, x, x->store_k)->cut = 1;
	x->count = 0;
}

/* Each does its part of what is in the way. */
static int set_up(struct side *s, struct run *x)
{
	const struct flow *t = &x->flow;

	if (t->reset == RESET_QUARANTINE && !is_someone(s, x)) {
		aborted(s, x);
	} else if (t->reset == RESET_QUARANTINE) {
		if (mine(s, 6))
			return 0;
		aborted(s, x);
	} else if (opens_store(t) && !is_someone(s, x)) {
		copied(s, x);
	}
	if (t->reset == RESET_PREFETCH && !(s->lead || may_take(s, x, KVR_KIND_PREFETCH) == MAY))
		return 0;
	if (t->reset == RESET_PREFETCH) {
		struct kvr_request req = x->flow.req;
		struct kvr_key keys[W_LEN];
		struct flow shared = *t;
		int r;

		shared.family = shared.other = t->dice % s->w->families;
		shared.n = s->w->length;
		plan_keys(&shared, keys);
		req.attempt = 7;
		r = CALL(s, s->lead ? side_soon(s) : patience(),
			 kvr_connector_prefetch(s->c, &req, keys, shared.n, 0, until));
		if (r == -ETIMEDOUT && s->lead)
			return not_yet(s, x);
		CHECK(s, r >= 0 || r == -ECANCELED || r == -EAGAIN, r);
		began(s, x, KVR_KIND_PREFETCH, &req, r, 0)->cut = 1;
	}
	return 1;
}

/* --- the call --------------------------------------------------------------------------------- */

static uint64_t reset_until(const struct run *x)
{
	switch (x->flow.reset) {
	case RESET_LATE:
		return test_deadline_ms(20 + x->flow.dice % 20);
	case RESET_UNTAKEN:
		return test_deadline_ms(400 * SLOW);
	default:
		return patience();
	}
}

/* Who comes too late comes when all others have heard. */
static int reset_may(struct side *s, struct run *x)
{
	uint32_t others = (all_ranks(s) | 1u << W_LEAD) & ~(1u << x->flow.someone);

	if (s->lead)
		return 1;
	if (x->flow.reset == RESET_LATE && is_someone(s, x) && marks(s, x, 0) != others)
		return 0;
	return may_take(s, x, KVR_KIND_RESET) == MAY;
}

static void check_reset(struct side *s, const struct run *x, int r)
{
	int over = 0; /* what a rank may be told that comes when it is over */

	if (x->flow.reset == RESET_BUSY)
		over = -EBUSY;
	else if (x->flow.reset == RESET_LATE && is_someone(s, x))
		over = -ETIMEDOUT;
	else if (x->flow.reset == RESET_ABORTED)
		over = -ECANCELED;
	if (x->flow.reset == RESET_BUSY && is_someone(s, x) && x->count > 0)
		CHECK(s, r == -EBUSY, r);
	else
		CHECK(s, r == 0 || r == -EAGAIN || (!s->lead && r == over), r);
}

static int call_reset(struct side *s, struct run *x)
{
	struct kvr_request req = x->flow.req;
	int r;

	if (!reset_may(s, x))
		return 0;
	req.attempt = x->attempt;
	r = CALL(s, s->lead ? reset_until(x) : patience(),
		 kvr_connector_reset(s->c, &req, NULL, until));
	if (r == -ETIMEDOUT && s->lead)
		return not_yet(s, x);
	check_reset(s, x, r);
	x->attempt++;
	x->req.space = req.space;
	x->load_k = x->taken;
	began(s, x, KVR_KIND_RESET, &req, r, 0);
	if (r == -EAGAIN) { /* the table is full: a tick, and the next attempt */
		if (s->lead)
			side_ticks(s);
		return 0;
	}
	if (s->lead && x->flow.reset == RESET_ABORTED) {
		r = CALL(s, 0, kvr_connector_abort(s->c, &req));
		CHECK(s, r == 0 || r == 1, r);
		s->log->abort_ended[x->f] = (uint16_t)r;
		s->log->aborted[x->f] |= 1;
		seen_of(s, x, x->load_k)->cut = 1;
	}
	return 1;
}

/* Nothing begins before it is over, and nothing is found then. */
static int try_others(struct side *s, struct run *x)
{
	struct kvr_hit hit = { 0 };
	int r;

	if (x->flow.reset != RESET_MEANWHILE)
		return 1;
	if (!s->lead && may_take(s, x, KVR_KIND_LOOKUP) != MAY)
		return 0;
	x->load = x->flow.req;
	x->load.attempt = 9;
	r = CALL(s, s->lead ? side_soon(s) : patience(),
		 kvr_connector_lookup(s->c, &x->load, x->keys, x->flow.n, until, &hit));
	if (r == -ETIMEDOUT && s->lead)
		return not_yet(s, x);
	CHECK(s, r == -EBUSY || (r == 0 && !hit.blocks), r);
	began(s, x, KVR_KIND_LOOKUP, &x->load, r, 0);
	return 1;
}

/* The name of the reset itself. */
static struct kvr_request reset_name(const struct run *x)
{
	struct kvr_request req = x->flow.req;

	req.attempt = x->attempt - 1;
	return req;
}

int step_reset(struct side *s, struct run *x)
{
	static int (*const does[])(struct side *, struct run *) = {
		[RESET_LOOKED] = look,	     [RESET_OPENED] = open_store, [RESET_SET_UP] = set_up,
		[RESET_CALLED] = call_reset, [RESET_TRIED] = try_others,
	};

	if (!does[x->sub](s, x))
		return 0;
	x->since = test_now_ns();
	if (x->sub++ == RESET_TRIED) {
		x->sub = 0;
		go(s, x, S_RESET_WAIT);
	}
	return 1;
}

/* --- what it came to -------------------------------------------------------------------------- */

static void check_outcome(struct side *s, const struct run *x, int r)
{
	static const int expected[RESET_HOWS] = {
		[RESET_BUSY] = -EBUSY, [RESET_LATE] = -ETIMEDOUT
	};
	int want = expected[x->flow.reset];

	if (x->flow.reset == RESET_ABORTED)
		CHECK(s, r == 0 || r == -ECANCELED, r);
	else if (x->flow.reset == RESET_BUSY) /* unless there was no room for the store */
		CHECK(s, r == want || r == 0, r);
	else
		CHECK(s, r == want, r);
}

int step_reset_wait(struct side *s, struct run *x)
{
	struct kvr_request req = reset_name(x);
	struct name *n = side_name(s, &req, KVR_KIND_RESET);
	struct seen *e = seen_of(s, x, x->load_k);
	int r = CALL(s, side_soon(s), kvr_connector_reset_wait(s->c, &req, until));

	if (r == -ETIMEDOUT && n->ended < n->begun)
		return 0;
	if (r == -ENOENT)
		CHECK(s, n->ended >= n->begun, n->ended);
	check_outcome(s, x, r);
	e->waited = 1;
	e->told = r;
	s->generation += r == 0;
	mark(s, x, 0);
	/* What was in the way goes on, or has failed. */
	if (x->flow.reset == RESET_BUSY || r)
		copied(s, x);
	if (x->flow.reset == RESET_UNTAKEN && is_someone(s, x) && r)
		CHECK(s, !CALL(s, 0, kvr_connector_abort(s->c, &x->req)), 0);
	go(s, x, S_RESET_AFTER);
	return 1;
}

/* Own keys, then some of those that all flows share. */
static void keys_after(struct side *s, const struct run *x, struct kvr_key *ret, uint32_t *ret_n)
{
	struct flow t = x->flow;

	if (x->sub) {
		t.family = t.other = (t.dice >> 8) % s->w->families;
		t.n = s->w->length;
	}
	plan_keys(&t, ret);
	*ret_n = t.n;
}

static void check_after(struct side *s, struct run *x, uint32_t blocks)
{
	const struct seen *e = seen_of(s, x, x->load_k);

	if (e->told == 0)
		CHECK(s, blocks == 0, blocks);
	else if (x->flow.reset == RESET_BUSY && x->sub == 0 && s->lead &&
		 seen_of(s, x, x->store_k)->value == (int)x->flow.n)
		CHECK(s, blocks == x->flow.n, blocks);
}

int step_reset_after(struct side *s, struct run *x)
{
	struct kvr_request req = x->flow.req;
	struct kvr_key keys[W_LEN];
	struct kvr_hit hit = { 0 };
	uint32_t n;
	int r;

	if (x->sub == 2) {
		req.attempt = 9; /* the lookup of before, in case it is still pinned */
		if (x->flow.reset == RESET_UNTAKEN && is_someone(s, x))
			CHECK(s,
			      CALL(s, side_soon(s),
				   kvr_connector_lookup(s->c, &req, x->keys, x->flow.n, until,
							&hit)) == -ETIMEDOUT,
			      hit.blocks);
		CHECK(s, !CALL(s, 0, kvr_connector_release(s->c, &req)), 0);
		go(s, x, S_ENDS);
		return 1;
	}
	if (s->lead ? !side_told(s, x->f) : may_take(s, x, KVR_KIND_LOOKUP) != MAY) {
		if (s->lead)
			side_ticks(s);
		return 0;
	}
	keys_after(s, x, keys, &n);
	req.attempt = 10 + x->sub;
	r = CALL(s, s->lead ? side_soon(s) : patience(),
		 kvr_connector_lookup(s->c, &req, keys, n, until, &hit));
	if (r == -ETIMEDOUT && s->lead)
		return not_yet(s, x);
	CHECK(s, r == 0, r);
	check_after(s, x, hit.blocks);
	began(s, x, KVR_KIND_LOOKUP, &req, (int)hit.blocks, hit.host);
	CHECK(s, !CALL(s, 0, kvr_connector_release(s->c, &req)), 0);
	x->sub++;
	return 1;
}

/* --- flipped bytes ---------------------------------------------------------------------------- */

/* Which block, and which byte of its image, from the payload on: the same for all. Of the header
 * page what is in use counts. */
static uint32_t flipped(const struct side *s, const struct run *x, int64_t *ret_at)
{
	uint64_t payload = (uint64_t)s->w->cl->shape.layer_bytes * s->w->groups;
	uint64_t head = KVR_HEADER_FIXED + 8ull * s->c->geo.segments, dice = x->flow.dice;

	*ret_at = dice >> 16 & 3 ? (int64_t)((dice >> 20) % payload)
				 : (int64_t)((dice >> 20) % head) - (int64_t)s->c->geo.header_bytes;
	return (uint32_t)(dice >> 8) % (uint32_t)x->told;
}

static void flip(struct side *s, struct run *x)
{
	int64_t at;
	uint32_t i = flipped(s, x, &at), number = plan_number(s->w, &x->flow, i);

	__atomic_store_n(&s->w->shared->taint[number], s->generation + 1, __ATOMIC_RELEASE);
	x->blocks[i].payload[at] ^= (uint8_t)(1u << (x->flow.dice & 7));
}

/*
 * All have loaded, compared and given back. One damages a byte. Then all load it again, or leave it
 * for others to find.
 */
int step_flip(struct side *s, struct run *x)
{
	uint32_t all = all_ranks(s) | 1u << W_LEAD;
	int64_t at;

	mark(s, x, 0);
	if (marks(s, x, 0) != all || (s->lead && !side_told(s, x->f))) {
		if (s->lead && mine(s, 4) == 0)
			side_ticks(s);
		return 0;
	}
	if (is_someone(s, x) && x->told)
		flip(s, x);
	if (is_someone(s, x))
		mark(s, x, 1);
	if (!marks(s, x, 1))
		return 0;
	x->sub = 1;
	x->expect = x->told ? 1 + (int)flipped(s, x, &at) : 0;
	go(s, x, x->flow.dice >> 4 & 3 ? S_LOAD_BEGIN : S_RELEASE);
	return 1;
}
