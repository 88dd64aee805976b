/* SPDX-License-Identifier: Apache-2.0 */
/* Lookups, loads and stores, step by step. */
#include "stress_connector_world.h"

static uint64_t patience(struct side *s)
{
	(void)s;
	return test_deadline_ms(PATIENCE_MS);
}

/* Of a begin: the leader decides soon; a rank waits for it unless it is early. */
static uint64_t begin_until(struct side *s, enum may may)
{
	if (s->lead)
		return mine(s, 4) ? test_now_ns() : test_deadline_ms(mine(s, 8));
	return may == MAY ? patience(s) : test_deadline_ms(mine(s, 3));
}

/* A name that this flow did not have yet. */
static struct kvr_request next_name(struct run *x)
{
	struct kvr_request req = x->flow.req;

	req.attempt = x->attempt;
	return req;
}

/* --- lookups ---------------------------------------------------------------------------------- */

static void after_lookups(struct side *s, struct run *x)
{
	if (x->flow.kind == FLOW_FLIP)
		go(s, x, x->sub == 0 && x->hit ? S_LOAD_BEGIN : S_RELEASE);
	else
		go(s, x, x->flow.load && x->hit ? S_LOAD_BEGIN : S_STORE_BEGIN);
}

/* Leader: keys that were told to be stored are found, where nothing is evicted. */
static void check_kept(struct side *s, const struct run *x, uint32_t blocks)
{
	uint32_t sure = 0;
	uint32_t most = kvr_connector_max_blocks(s->c);

	if (most > kvr_connector_pool_slots(s->c))
		most = kvr_connector_pool_slots(s->c);

	for (; s->w->keeps && sure < x->flow.n && sure < most; sure++) {
		uint32_t number = plan_number(s->w, &x->flow, sure);

		if (number == W_SHARED_KEYS || s->kept[number] != s->generation + 1)
			break;
	}
	CHECK(s, blocks >= sure, sure);
}

/* Lookups of one flow have its first attempt's name, which pins them. */
int step_lookup(struct side *s, struct run *x)
{
	struct kvr_request *req = &x->load;
	struct kvr_hit hit = { 0 };
	enum may may = s->lead ? MAY : may_take(s, x, KVR_KIND_LOOKUP);
	int r, refused = x->flow.refuse == KVR_KIND_LOOKUP;

	if (may == MAY_NEVER || x->hold == x->flow.lookups) {
		after_lookups(s, x);
		return 1;
	}
	if (may == MAY_NOT_YET)
		return 0;
	if (!x->hold && x->sub == 0) {
		*req = next_name(x);
		x->attempt++;
	}
	if (s->lead && refused)
		r = CALL(s, side_soon(s),
			 kvr_connector_refuse(s->c, KVR_KIND_LOOKUP, req, x->flow.refuse_status,
					      until));
	else
		r = CALL(s, s->lead || may == MAY_EARLY ? side_soon(s) : patience(s),
			 kvr_connector_lookup(s->c, req, x->keys, x->flow.n, until, &hit));
	if (r == -ETIMEDOUT && may != MAY_EARLY)
		CHECK(s, s->lead, r);
	if (r == -ETIMEDOUT) {
		x->attempt -= !x->hold && x->sub == 0;
		return not_yet(s, x);
	}
	if (s->lead && refused)
		r = r ? r : x->flow.refuse_status;
	CHECK(s, hit.blocks <= x->flow.n && hit.host + hit.nvme == hit.blocks, hit.blocks);
	CHECK(s, !r || r == -EAGAIN || (refused && r == x->flow.refuse_status), r);
	if (s->lead && !r)
		check_kept(s, x, hit.blocks);
	if (x->expect)
		CHECK(s, (int)hit.blocks == x->expect - 1, hit.blocks);
	began(s, x, KVR_KIND_LOOKUP, req, r ? r : (int)hit.blocks, hit.host);
	x->hit = r ? 0 : hit.blocks;
	x->hold++;
	return 1;
}

/* --- loads ------------------------------------------------------------------------------------ */

/* Calls that wait for all ranks are made in one order, or they wait for each other. */
static int earlier_layers(const struct side *s, const struct run *x)
{
	for (uint32_t f = s->log->done; f < x->f; f++) {
		const struct run *y = &s->run[f % W_WINDOW];

		if (y->flow.load == LOAD_LAYERS && y->state <= S_LOAD_BEGIN)
			return 1;
		if (y->flow.again && y->flow.load == LOAD_LAYERS && y->pass == 0)
			return 1;
	}
	return 0;
}

/* Who votes too late comes when another one's deadline is over. */
static uint64_t layers_until(struct side *s, struct run *x)
{
	if (x->flow.early == s->rank)
		return test_deadline_ms(10 + mine(s, 20));
	/* A leader in the same process cannot abort it meanwhile. */
	if (x->flow.aborts && s->shares)
		return test_deadline_ms(mine(s, 50));
	return patience(s);
}

static int agree(struct side *s, struct run *x)
{
	sigset_t alarm, old;
	int r;

	sigemptyset(&alarm);
	if (s->w->known & KNOWN_AGREE_AGAIN)
		sigaddset(&alarm, SIGALRM);
	sigprocmask(SIG_BLOCK, &alarm, &old);
	r = CALL(s, layers_until(s, x),
		 kvr_connector_load_begin_layers(s->c, &x->load, x->flow.load_n, until));
	sigprocmask(SIG_SETMASK, &old, NULL);
	return r;
}

static int load_call(struct side *s, struct run *x, enum may may)
{
	struct kvr_request *req = &x->load;
	int layers = x->flow.load == LOAD_LAYERS && x->flow.differs != s->rank;

	if (s->lead && x->flow.refuse == KVR_KIND_LOAD)
		return CALL(s, side_soon(s),
			    kvr_connector_refuse(s->c, KVR_KIND_LOAD, req, x->flow.refuse_status,
						 until));
	if (layers && s->lead)
		return CALL(s, s->w->tight ? test_deadline_ms(10 + mine(s, 40)) : patience(s),
			    kvr_connector_load_begin_layers(s->c, req, x->flow.load_n, until));
	if (layers)
		return agree(s, x);
	return CALL(s, begin_until(s, may),
		    kvr_connector_load_begin(s->c, req, x->flow.load_n, until));
}

static int load_may(struct side *s, struct run *x)
{
	int layers = x->flow.load == LOAD_LAYERS;
	enum may may = s->lead ? MAY : may_take(s, x, KVR_KIND_LOAD);

	if (layers && may == MAY && earlier_layers(s, x))
		return MAY_NOT_YET;
	if (layers && may == MAY && x->flow.late == s->rank && !marks(s, x, 0))
		return MAY_NOT_YET;
	return (int)may;
}

static void check_load(struct side *s, const struct run *x, int r)
{
	const struct flow *t = &x->flow;
	uint32_t most = x->hit < t->load_n ? x->hit : t->load_n;
	int over = t->aborts || (t->load == LOAD_LAYERS &&
				 (t->late != NOBODY || t->differs != NOBODY ||
				  t->gives_up != NOBODY || s->w->tight || s->w->flips));

	if (r >= 0)
		CHECK(s, (uint32_t)r <= most, r);
	else
		CHECK(s, r == -EAGAIN || r == t->refuse_status || (!s->lead && over), r);
}

int step_load_begin(struct side *s, struct run *x)
{
	enum may may = (enum may)load_may(s, x);
	int r, refused = x->flow.refuse == KVR_KIND_LOAD;

	if (may == MAY_NEVER) {
		go(s, x, S_ENDS);
		return 1;
	}
	if (may == MAY_NOT_YET)
		return 0;
	r = load_call(s, x, may);
	if (r == -ETIMEDOUT && (s->lead || may == MAY_EARLY))
		return not_yet(s, x);
	if (s->lead && refused && !r)
		r = x->flow.refuse_status;
	check_load(s, x, r);
	if (x->flow.early == s->rank)
		mark(s, x, 0);
	x->load_k = x->taken;
	began(s, x, KVR_KIND_LOAD, &x->load, r, 0);
	x->begun = r > 0 ? (uint32_t)r : 0;
	x->group = 0;
	x->told = 0;
	if (!x->begun)
		go(s, x,
		   x->flow.kind != FLOW_FLIP ? S_STORE_BEGIN
		   : r == -EBADMSG	     ? S_LOOKUP /* others have seen it */
					     : S_RELEASE);
	else if (x->flow.load == LOAD_LAYERS && !s->lead)
		go(s, x, S_LAYER);
	else
		go(s, x, S_LOAD_WAIT);
	return 1;
}

static void check_bytes(struct side *s, struct run *x, int n, uint32_t groups)
{
	for (int i = 0; i < n && !s->lead; i++)
		s->log->wrong += wrong_in(s, x, (uint32_t)i, &x->blocks[i], groups);
	CHECK(s, !s->log->wrong, s->log->wrong);
}

/* What a wait of a load says is kept for the comparison. */
static void load_told(struct side *s, struct run *x, int r)
{
	struct seen *e = seen_of(s, x, x->load_k);

	e->waited = 1;
	e->told = r;
	x->told = r > 0 ? r : 0;
}

/* It may have ended for want of votes: then it was told, or will be. */
static int still_waits(struct side *s, struct run *x, int r)
{
	const struct name *n = side_name(s, &x->load, KVR_KIND_LOAD);

	return r == -ETIMEDOUT && n->ended < n->begun;
}

/* By layers: one group, or some at a time. */
int step_layer(struct side *s, struct run *x)
{
	uint32_t groups = s->w->groups, group = x->group;
	int r;

	if (x->flow.gives_up == s->rank && mine(s, 4) == 0) {
		go(s, x, S_LOAD_DONE);
		return 1;
	}
	if (group == groups || (group == 0 && mine(s, 24) == 0)) {
		go(s, x, S_LOAD_WAIT);
		return 1;
	}
	if (mine(s, 5) == 0) /* skipped ones are verified, too */
		group += mine(s, groups - group);
	r = CALL(s, side_soon(s),
		 kvr_connector_load_wait_layer(s->c, &x->load, x->keys, group, until, x->blocks,
					       W_LEN));
	if (still_waits(s, x, r))
		return 0;
	if (r < 0) {
		CHECK(s, !x->expect || r == -EBADMSG, r);
		load_told(s, x, r);
		go(s, x, S_LOAD_DONE);
		return 1;
	}
	CHECK(s, (uint32_t)r == x->begun, r);
	check_bytes(s, x, r, group + 1);
	x->group = group + 1;
	return 1;
}

int step_load_wait(struct side *s, struct run *x)
{
	int r;

	/* The leader need not wait. */
	if (x->flow.gives_up == s->rank ||
	    (s->lead && x->flow.kind != FLOW_FLIP && mine(s, 3) == 0)) {
		go(s, x, S_LOAD_DONE);
		return 1;
	}
	r = CALL(s, side_soon(s),
		 kvr_connector_load_wait(s->c, &x->load, x->keys, until, x->blocks, W_LEN));
	if (still_waits(s, x, r))
		return 0;
	if (r == -ENOENT) { /* it ended, and its entry was used again */
		CHECK(s, s->lead && s->log->seen[x->f][x->load_k].over, r);
		go(s, x, S_LOAD_DONE);
		return 1;
	}
	CHECK(s, r <= (int)x->begun, r);
	if (x->expect)
		CHECK(s, r == (x->flow.load == LOAD_LAYERS ? -EBADMSG : x->expect - 1), r);
	load_told(s, x, r);
	x->group = s->w->groups;
	check_bytes(s, x, x->told, x->group);
	go(s, x, S_LOAD_HOLD);
	return 1;
}

/* The blocks stay what they are as long as this rank has them, whatever the others do. */
int step_load_hold(struct side *s, struct run *x)
{
	if (!s->lead && x->told && mine(s, x->flow.aborts ? 8 : 2))
		return 0;
	check_bytes(s, x, x->told, x->group);
	go(s, x, S_LOAD_DONE);
	return 1;
}

int step_load_done(struct side *s, struct run *x)
{
	struct seen *e = seen_of(s, x, x->load_k);

	if (!s->lead) {
		struct name *n = side_name(s, &x->load, KVR_KIND_LOAD);
		int r = CALL(s, 0, kvr_connector_load_done(s->c, &x->load));

		CHECK(s, !r || (r == -ENOENT && n->ended >= n->begun), r);
		if (mine(s, 10) == 0)
			CALL(s, 0, kvr_connector_load_done(s->c, &x->load));
		e->gave_up = !e->waited;
		e->spoke = 1;
	}
	if (x->flow.kind != FLOW_FLIP)
		go(s, x, S_STORE_BEGIN);
	else if (x->sub == 0)
		go(s, x, S_FLIP);
	else
		go(s, x, S_LOOKUP);
	return 1;
}

/* --- stores ----------------------------------------------------------------------------------- */

static uint32_t part_of(const struct run *x)
{
	uint32_t left = x->flow.store_n - x->at;

	return left < x->flow.part ? left : x->flow.part;
}

static int store_call(struct side *s, struct run *x, enum may may, uint32_t n,
		      struct kvr_block *blocks, uint32_t *ret_covered)
{
	if (s->lead && x->flow.refuse == KVR_KIND_STORE)
		return CALL(s, side_soon(s),
			    kvr_connector_refuse(s->c, KVR_KIND_STORE, &x->req,
						 x->flow.refuse_status, until));
	return CALL(s, begin_until(s, may),
		    kvr_connector_store_begin(s->c, &x->req, x->keys + x->at, n, until, blocks,
					      W_LEN, ret_covered));
}

static void check_store(struct side *s, struct run *x, uint32_t n, uint32_t covered)
{
	int last = -1;

	CHECK(s, covered && covered <= n && x->count <= (int)covered, covered);
	for (int i = 0; i < x->count; i++) {
		CHECK(s, (int)x->stored[i].index > last && x->stored[i].index < covered, i);
		last = (int)x->stored[i].index;
	}
}

/* No part: the next attempt, some times; then this store is over. */
static void store_refused(struct side *s, struct run *x, int r)
{
	int refused = x->flow.refuse == KVR_KIND_STORE && r == x->flow.refuse_status;

	CHECK(s, r == -EAGAIN || refused || (!s->lead && x->flow.aborts), r);
	if (r != -EAGAIN && !refused) /* the leader aborted it: nothing follows */
		go(s, x, S_ENDS);
	else if (refused || x->tries++ >= 2 || s->w->max_parts == 1)
		go(s, x, S_STORE_WAIT);
	else
		go(s, x, S_STORE_BEGIN);
}

int step_store_begin(struct side *s, struct run *x)
{
	enum may may = s->lead ? MAY : may_take(s, x, KVR_KIND_STORE);
	uint32_t covered = 0, n = part_of(x);
	struct seen *e;
	int r;

	if (!n || may == MAY_NEVER) {
		go(s, x, S_STORE_WAIT);
		return 1;
	}
	if (may == MAY_NOT_YET)
		return 0;
	x->req = next_name(x);
	r = store_call(s, x, may, n, x->stored, &covered);
	if (r == -ETIMEDOUT) {
		CHECK(s, s->lead || may == MAY_EARLY, r);
		return not_yet(s, x);
	}
	if (s->lead && x->flow.refuse == KVR_KIND_STORE && !r)
		r = x->flow.refuse_status;
	x->attempt++;
	x->store_k = x->taken;
	x->count = r;
	e = began(s, x, KVR_KIND_STORE, &x->req, r, x->at << 16 | covered);
	if (r < 0) {
		store_refused(s, x, r);
		return 1;
	}
	check_store(s, x, n, covered);
	e->joined = (uint32_t)r < covered;
	x->at += covered;
	x->covered = covered;
	x->tries = 0;
	go(s, x, x->flow.twice && r ? S_STORE_TWICE : S_STORE_HOLD);
	return 1;
}

/* It cannot end before all that write have taken this answer, too. */
int step_store_twice(struct side *s, struct run *x)
{
	enum may may = s->lead ? MAY : may_take(s, x, KVR_KIND_STORE);
	struct kvr_block unused[W_LEN];
	uint32_t covered, at = x->at;
	int r;

	if (may == MAY_NEVER) {
		go(s, x, S_STORE_HOLD);
		return 1;
	}
	if (may != MAY)
		return 0;
	x->at -= x->covered;
	r = store_call(s, x, may, x->covered, unused, &covered);
	x->at = at;
	if (r == -ETIMEDOUT) {
		CHECK(s, s->lead, r);
		return not_yet(s, x);
	}
	CHECK(s, r == -EEXIST, r);
	began(s, x, KVR_KIND_STORE, &x->req, r, 0);
	x->flow.twice = 0;
	go(s, x, S_STORE_HOLD);
	return 1;
}

/* Copies, and takes its time; what it copies late must not land in another block. */
int step_store_hold(struct side *s, struct run *x)
{
	if (s->lead || !x->count) {
		go(s, x, S_STORE_COPIED);
		return 1;
	}
	if (!x->hold && mine(s, x->flow.aborts ? 10 : 3))
		return 0;
	for (int i = 0; i < x->count; i++) {
		uint32_t k = x->at - x->covered + x->stored[i].index;
		struct kvr_key key = plan_content(&x->flow, k, s->generation);

		cluster_fill(s->c, &key, &x->stored[i]);
	}
	go(s, x, S_STORE_COPIED);
	return 1;
}

static int lead_copied(struct side *s, struct run *x, struct seen *e)
{
	int status = x->flow.lead_fails ? -EREMOTEIO : 0;
	int r = CALL(s, 0, kvr_connector_store_copied(s->c, &x->req, status));

	/* What ended is forgotten when its entry is needed. */
	CHECK(s, !r || (r == -ENOENT && e->over), r);
	e->failed = x->flow.lead_fails && !r;
	e->said = status;
	/* A rank that did not begin to say that it copied: so the store was under way. */
	for (uint32_t w = 0; w < s->w->writers && e->failed && e->value > 0; w++)
		e->surely |= !__atomic_load_n(&s->w->shared->log[w].seen[x->f][x->store_k].speaks,
					      __ATOMIC_ACQUIRE);
	return r;
}

int step_store_copied(struct side *s, struct run *x)
{
	struct seen *e = seen_of(s, x, x->store_k);
	int status = x->flow.fails == s->rank && x->count ? -EIO : 0;

	if (s->lead) {
		lead_copied(s, x, e);
	} else {
		struct name *n = side_name(s, &x->req, KVR_KIND_STORE);
		int r;

		__atomic_store_n(&e->speaks, 1, __ATOMIC_RELEASE);
		r = CALL(s, 0, kvr_connector_store_copied(s->c, &x->req, status));
		CHECK(s, !r || (r == -ENOENT && n->ended >= n->begun), r);
		if (mine(s, 12) == 0)
			CALL(s, 0,
			     kvr_connector_store_copied(s->c, &x->req, mine(s, 2) ? 0 : -EIO));
		e->failed = status != 0;
		e->said = status;
		e->spoke = 1;
	}
	x->count = 0;
	if (x->flow.wait && x->at >= x->flow.store_n)
		go(s, x, S_STORE_WAIT);
	else
		go(s, x, S_STORE_BEGIN);
	return 1;
}

int step_store_wait(struct side *s, struct run *x)
{
	struct seen *e;
	struct name *n;
	int r;

	if (!x->flow.wait || !x->at || x->count < 0) {
		go(s, x, S_RELEASE);
		return 1;
	}
	r = CALL(s, side_soon(s),
		 kvr_connector_wait_store(s->c, &x->req, (enum kvr_stage)x->flow.wait, until));
	if (r == -ETIMEDOUT)
		return 0;
	n = side_name(s, &x->req, KVR_KIND_STORE);
	if (r == -ENOENT)
		CHECK(s, n->ended >= n->begun, n->ended);
	e = seen_of(s, x, x->store_k);
	e->waited = r != -ENOENT;
	e->told = r;
	go(s, x, S_RELEASE);
	return 1;
}

int step_release(struct side *s, struct run *x)
{
	if (x->flow.lookups && x->attempt) {
		if (x->flow.kind == FLOW_REQUEST && mine(s, 3) == 0)
			return 0; /* late */
		CHECK(s, !CALL(s, 0, kvr_connector_release(s->c, &x->load)), 0);
		if (mine(s, 8) == 0)
			CHECK(s, !CALL(s, 0, kvr_connector_release(s->c, &x->load)), 1);
	}
	go(s, x, S_ENDS);
	return 1;
}
