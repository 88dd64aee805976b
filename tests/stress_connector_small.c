/* SPDX-License-Identifier: Apache-2.0 */
/* Prefetches and decisions, step by step. */
#include "stress_connector_world.h"

static struct kvr_request next_name(struct run *x)
{
	struct kvr_request req = x->flow.req;

	req.attempt = x->attempt;
	return req;
}

static uint64_t take_until(struct side *s, enum may may)
{
	return may == MAY ? test_deadline_ms(PATIENCE_MS) : test_deadline_ms(mine(s, 3));
}

/* --- prefetches ------------------------------------------------------------------------------- */

static void cancel(struct side *s, struct run *x)
{
	struct seen *e = seen_of(s, x, x->load_k);

	e->cut |= s->lead && !e->over;
	CHECK(s, !CALL(s, 0, kvr_connector_prefetch_cancel(s->c, &x->req)), 0);
}

static void prefetch_begun(struct side *s, struct run *x, int r)
{
	const struct flow *t = &x->flow;

	if (r < 0)
		CHECK(s, r == -EAGAIN || r == t->refuse_status, r);
	else
		CHECK(s, (uint32_t)r <= t->n && (!t->budget || (uint32_t)r <= t->budget), r);
	x->begun = r > 0 ? (uint32_t)r : 0;
	x->told = 0;
	go(s, x, x->begun ? S_PREFETCH_LOOK : S_ENDS);
	if (x->begun && t->cancels && s->lead && mine(s, 2)) /* before its reads start, perhaps */
		cancel(s, x);
}

int step_prefetch(struct side *s, struct run *x)
{
	enum may may = s->lead ? MAY : may_take(s, x, KVR_KIND_PREFETCH);
	int r, refused = x->flow.refuse == KVR_KIND_PREFETCH;

	if (may == MAY_NEVER) {
		go(s, x, S_ENDS);
		return 1;
	}
	if (may == MAY_NOT_YET)
		return 0;
	x->req = next_name(x);
	if (s->lead && refused)
		r = CALL(s, side_soon(s),
			 kvr_connector_refuse(s->c, KVR_KIND_PREFETCH, &x->req,
					      x->flow.refuse_status, until));
	else
		r = CALL(s, s->lead ? side_soon(s) : take_until(s, may),
			 kvr_connector_prefetch(s->c, &x->req, x->keys, x->flow.n, x->flow.budget,
						until));
	if (r == -ETIMEDOUT) {
		CHECK(s, s->lead || may == MAY_EARLY, r);
		return not_yet(s, x);
	}
	if (s->lead && refused && !r)
		r = x->flow.refuse_status;
	x->attempt++;
	x->load_k = x->taken;
	began(s, x, KVR_KIND_PREFETCH, &x->req, r, 0);
	prefetch_begun(s, x, r);
	return 1;
}

/* A look now and then; some end it before it ends. */
int step_prefetch_look(struct side *s, struct run *x)
{
	struct seen *e = seen_of(s, x, x->load_k);
	struct name *n = side_name(s, &x->req, KVR_KIND_PREFETCH);
	uint32_t done = 0;
	int r;

	if (x->flow.cancels && mine(s, 3) == 0) {
		cancel(s, x);
		if (!s->lead || mine(s, 2)) {
			go(s, x, S_ENDS);
			return 1;
		}
	}
	r = CALL(s, 0, kvr_connector_prefetch_status(s->c, &x->req, &done));
	if (r == -ENOENT) {
		CHECK(s, n->ended >= n->begun, n->ended);
		go(s, x, S_ENDS);
		return 1;
	}
	if (r >= 0) {
		CHECK(s, done <= x->begun && (int)done >= x->told, done);
		x->told = (int)done;
	}
	if (r == 0)
		return 0;
	e->waited = 1;
	e->told = r < 0 ? r : (int)done;
	go(s, x, S_ENDS);
	return 1;
}

/* --- decisions -------------------------------------------------------------------------------- */

/* Of the leader: until when the votes may come. */
static uint64_t votes_until(const struct run *x)
{
	return test_deadline_ms(x->flow.late == NOBODY ? PATIENCE_MS : x->flow.votes_ms);
}

int step_propose(struct side *s, struct run *x)
{
	enum may may = s->lead ? MAY : may_take(s, x, KVR_KIND_DECISION);
	uint8_t bytes[64], got[64];
	uint32_t len = plan_manifest(&x->flow, x->pass, bytes);
	int r, refused = x->flow.refuse == KVR_KIND_DECISION;

	if (may == MAY_NEVER) {
		go(s, x, S_ENDS);
		return 1;
	}
	if (may == MAY_NOT_YET)
		return 0;
	x->req = next_name(x);
	if (s->lead && refused)
		r = CALL(s, side_soon(s),
			 kvr_connector_refuse(s->c, KVR_KIND_DECISION, &x->req,
					      x->flow.refuse_status, until));
	else if (s->lead)
		r = CALL(s, votes_until(x),
			 kvr_connector_propose(s->c, &x->req, bytes, len, until));
	else
		r = CALL(s, take_until(s, may),
			 kvr_connector_proposal(s->c, &x->req, got, sizeof got, until));
	/* A rank may be told that it is over already, and why: votes may be late. */
	if (r == -ETIMEDOUT && (s->lead || may == MAY_EARLY))
		return not_yet(s, x);
	if (s->lead)
		r = r ? r : refused ? x->flow.refuse_status : (int)len;
	CHECK(s,
	      r == (int)len || r == -EAGAIN || (refused && r == x->flow.refuse_status) ||
		      (!s->lead && (x->flow.aborts || x->flow.contested || x->flow.late != NOBODY ||
				    x->flow.lead_fails)),
	      r);
	if (r == (int)len && !s->lead)
		CHECK(s, !memcmp(got, bytes, len), len);
	x->attempt++;
	x->load_k = x->taken;
	began(s, x, KVR_KIND_DECISION, &x->req, r, 0);
	go(s, x, r >= 0 ? S_VOTE : S_ENDS);
	return 1;
}

/* The first word counts; whoever is late says nothing until all have heard. */
int step_vote(struct side *s, struct run *x)
{
	struct seen *e = seen_of(s, x, x->load_k);
	struct name *n = side_name(s, &x->req, KVR_KIND_DECISION);
	int r, status = s->lead ? 0 : plan_vote(s->w, &x->flow, x->pass, s->rank);

	if (!s->lead && x->flow.late == s->rank) {
		go(s, x, S_DECIDED);
		return 1;
	}
	if (mine(s, 3))
		return 0;
	if (s->lead && x->flow.lead_fails)
		status = -EHOSTDOWN;
	r = CALL(s, 0, kvr_connector_vote(s->c, &x->req, status));
	CHECK(s, !r || (r == -ENOENT && n->ended >= n->begun), r);
	if (!s->lead && mine(s, 12) == 0)
		CALL(s, 0, kvr_connector_vote(s->c, &x->req, mine(s, 2) ? 0 : -EIO));
	e->failed = status != 0;
	e->said = status;
	e->spoke = 1;
	go(s, x, S_DECIDED);
	return 1;
}

int step_decided(struct side *s, struct run *x)
{
	struct seen *e = seen_of(s, x, x->load_k);
	struct name *n = side_name(s, &x->req, KVR_KIND_DECISION);
	int r = CALL(s, side_soon(s), kvr_connector_decided(s->c, &x->req, until));

	/* A decision can be lost for want of votes until the leader's deadline: then that is what
	 * all are told, and when it was cancelled this side was told its end, too. */
	if (r == -ETIMEDOUT && !(x->flow.late != NOBODY && n->ended >= n->begun))
		return 0;
	if (r == -ENOENT)
		CHECK(s, n->ended >= n->begun, n->ended);
	e->waited = r != -ENOENT;
	e->told = r;
	if (r == 0 && x->flow.late == s->rank && !s->lead)
		CHECK(s, 0, r); /* without its vote */
	go(s, x, r == 0 ? S_OUTCOME : S_ENDS);
	return 1;
}

int step_outcome(struct side *s, struct run *x)
{
	struct seen *e = seen_of(s, x, x->load_k);
	struct name *n = side_name(s, &x->req, KVR_KIND_DECISION);
	int r, status = s->lead ? 0 : plan_outcome(s->w, &x->flow, x->pass, s->rank);

	if (mine(s, 2))
		return 0;
	r = CALL(s, 0, kvr_connector_outcome(s->c, &x->req, status));
	CHECK(s, !r || (r == -ENOENT && n->ended >= n->begun), r);
	if (!s->lead && mine(s, 12) == 0)
		CALL(s, 0, kvr_connector_outcome(s->c, &x->req, mine(s, 2) ? 0 : -EIO));
	e->gave_up = status != 0; /* after the commit */
	if (status)
		e->said = status;
	go(s, x, S_ENDS);
	return 1;
}
