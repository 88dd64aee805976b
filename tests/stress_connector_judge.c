/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold after a round, from what every side wrote down. */
#include "stress_connector_world.h"

#include <stdarg.h>

/* How an operation ended, as the leader was told. */
struct end {
	uint32_t ends, stage, reached, blocks;
	int32_t status;
};

static struct end ends[W_FLOWS][W_BEGINS];
static char why[600];
struct tally tally;

static const char *bad(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static const char *bad(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof why, fmt, ap);
	va_end(ap);
	return why;
}

static const char *name_of_side(uint32_t side)
{
	static char name[4][16];
	static int at;
	char *n = name[at++ & 3];

	if (side == W_LEAD)
		return "the leader";
	snprintf(n, 16, "rank %u", side);
	return n;
}

static int holds_bytes(const struct world *w, uint32_t side)
{
	return side < w->writers;
}

/* --- completions ------------------------------------------------------------------------------ */

static const char *judge_lists(const struct world *w, uint32_t r)
{
	const struct side_log *a = &w->shared->log[W_LEAD], *b = &w->shared->log[r];

	for (uint32_t i = 0; i < a->dones || i < b->dones; i++) {
		const struct kvr_completion *x = &a->told[i].c, *y = &b->told[i].c;

		if (i == a->dones || i == b->dones)
			return bad("%s had %u completions, the leader %u", name_of_side(r),
				   b->dones, a->dones);
		if (memcmp(x, y, sizeof *x))
			return bad("completion %u of %s is %s of kind %u of request %llu/%u "
				   "(status %d, tick %llu), the leader's %s of kind %u of "
				   "%llu/%u (%d, tick %llu)",
				   i, name_of_side(r), kvr_stage_name(y->stage), y->kind,
				   (unsigned long long)y->request.id, y->request.attempt, y->status,
				   (unsigned long long)y->tick, kvr_stage_name(x->stage), x->kind,
				   (unsigned long long)x->request.id, x->request.attempt, x->status,
				   (unsigned long long)x->tick);
	}
	return NULL;
}

static const char *judge_ticks(const struct world *w, uint32_t r)
{
	const struct side_log *a = &w->shared->log[W_LEAD], *b = &w->shared->log[r];
	uint32_t at = 0;

	for (uint32_t i = 0; i < b->ticks; i++) {
		uint32_t count;

		while (at < a->ticks && a->tick[at].tick <= b->tick[i].tick)
			at++;
		count = at ? a->tick[at - 1].count : 0;
		if (b->tick[i].count != count)
			return bad("after tick %llu %s had %u completions, the leader %u",
				   (unsigned long long)b->tick[i].tick, name_of_side(r),
				   b->tick[i].count, count);
	}
	return NULL;
}

static const char *judge_drift(const struct world *w, uint32_t r)
{
	const struct kvr_drift *d = &w->shared->log[r].drift;

	if (!d->kind)
		return NULL;
	return bad("%s is said to have drifted: call %llu of kind %u was of request %llu/%u, the "
		   "leader's of %llu/%u",
		   name_of_side(r), (unsigned long long)d->index, d->kind - 1,
		   (unsigned long long)d->request, d->attempt, (unsigned long long)d->its_request,
		   d->its_attempt);
}

static const char *collect_ends(const struct world *w)
{
	const struct side_log *l = &w->shared->log[W_LEAD];

	memset(ends, 0, sizeof ends[0] * w->flows);
	for (uint32_t i = 0; i < l->dones; i++) {
		const struct told *t = &l->told[i];
		struct end *e = &ends[t->flow][t->begin];

		if (e->ends || t->c.stage <= e->reached)
			return bad("flow %u: request %llu/%u came to stage %s after %s", t->flow,
				   (unsigned long long)t->c.request.id, t->c.request.attempt,
				   kvr_stage_name(t->c.stage),
				   kvr_stage_name(e->ends ? e->stage : e->reached));
		if (t->c.stage < KVR_STAGE_FAILED)
			e->reached = t->c.stage;
		if (t->c.stage < KVR_STAGE_END)
			continue;
		*e = (struct end){ 1, t->c.stage, e->reached, t->c.blocks, t->c.status };
		tally.ended[t->c.kind][t->c.stage]++;
	}
	return NULL;
}

/* --- ends ------------------------------------------------------------------------------------- */

struct op {
	const struct world *w;
	struct flow flow;
	uint32_t f, k;
	const struct seen *lead;
	const struct end *end;
};

static const struct seen *seen_by(const struct op *o, uint32_t side)
{
	return &o->w->shared->log[side].seen[o->f][o->k];
}

static int aborted_by(const struct op *o, uint32_t side)
{
	return o->w->shared->log[side].aborted[o->f] >> o->lead->pass & 1;
}

/* Did a side (a rank that writes, if `writers`) say that status? */
static int said(const struct op *o, int status, int writers)
{
	for (uint32_t i = 0; i < W_SIDES; i++) {
		const struct seen *e = seen_by(o, i);

		if (i != W_LEAD && (i >= o->w->ranks || (writers && !holds_bytes(o->w, i))))
			continue;
		if (e->asked && (e->failed || e->gave_up) && e->said == status && status)
			return 1;
	}
	return 0;
}

static int gave_up(const struct op *o)
{
	for (uint32_t r = 0; r < o->w->ranks; r++)
		if (seen_by(o, r)->gave_up || aborted_by(o, r))
			return 1;
	return 0;
}

static int tainted(const struct op *o, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to && i < o->flow.n; i++) {
		uint32_t number = plan_number(o->w, &o->flow, i);

		if (number < W_SHARED_KEYS && o->w->shared->taint[number])
			return 1;
	}
	return 0;
}

/* A store that failed near this one may have had its blocks. */
static int others_failed(const struct op *o)
{
	const struct side_log *l = &o->w->shared->log[W_LEAD];
	uint32_t from = o->f < W_WINDOW ? 0 : o->f - W_WINDOW;

	for (uint32_t f = from; f < o->f + W_WINDOW && f < o->w->flows; f++)
		for (uint32_t k = 0; k < W_BEGINS; k++)
			if (l->seen[f][k].kind == KVR_KIND_STORE && l->seen[f][k].exists &&
			    ends[f][k].stage >= KVR_STAGE_FAILED)
				return 1;
	return 0;
}

static int store_end(const struct op *o)
{
	const struct end *e = o->end;
	uint32_t good = o->w->cl->dir[0] ? KVR_STAGE_WRITTEN : KVR_STAGE_DONE;

	if (e->stage == KVR_STAGE_CANCELLED)
		return aborted_by(o, W_LEAD) && (e->status == -ECANCELED || said(o, e->status, 1));
	if (e->stage == KVR_STAGE_FAILED)
		return said(o, e->status, 1) ||
		       (e->status == -ECANCELED &&
			(gave_up(o) || tainted(o, 0, o->flow.n) || o->flow.reset == RESET_UNTAKEN ||
			 (o->lead->joined && others_failed(o))));
	for (uint32_t r = 0; r < o->w->writers && o->lead->value; r++)
		if (!seen_by(o, r)->spoke || seen_by(o, r)->failed)
			return 0;
	return e->stage == good && !e->status && !o->lead->surely;
}

static int load_end(const struct op *o)
{
	const struct flow *t = &o->flow;
	const struct end *e = o->end;
	int layers = t->load == LOAD_LAYERS;
	int late = t->late != NOBODY || o->w->tight, differs = t->differs != NOBODY;

	if (e->stage == KVR_STAGE_CANCELLED) {
		if (aborted_by(o, W_LEAD) && e->status == -ECANCELED)
			return 1;
		if (layers && e->status == -ECANCELED)
			return gave_up(o) || late || differs;
		return layers && ((e->status == -ETIMEDOUT && (late || t->aborts)) ||
				  (e->status == -EPROTO && differs));
	}
	if (e->stage == KVR_STAGE_FAILED)
		return (e->status == -ECANCELED && gave_up(o)) ||
		       (layers && e->status == -EBADMSG && tainted(o, 0, t->n));
	for (uint32_t r = 0; r < o->w->ranks; r++)
		if (!seen_by(o, r)->spoke && !aborted_by(o, r))
			return 0;
	return e->stage == KVR_STAGE_DONE && !e->status && e->blocks == (uint32_t)o->lead->value &&
	       t->late == NOBODY && !differs;
}

static int decision_end(const struct op *o)
{
	const struct end *e = o->end;

	if (e->stage == KVR_STAGE_CANCELLED)
		return said(o, e->status, 0) ||
		       (e->status == -ECANCELED && aborted_by(o, W_LEAD)) ||
		       (e->status == -ETIMEDOUT && o->flow.late != NOBODY);
	if (e->stage == KVR_STAGE_FAILED)
		return said(o, e->status, 0);
	for (uint32_t r = 0; r < o->w->ranks; r++)
		if (!seen_by(o, r)->spoke || seen_by(o, r)->failed || seen_by(o, r)->gave_up)
			return 0;
	return e->stage == KVR_STAGE_DONE && !e->status;
}

static int prefetch_end(const struct op *o)
{
	const struct end *e = o->end;

	if (e->stage == KVR_STAGE_CANCELLED)
		return o->lead->cut && e->status == -ECANCELED;
	return e->stage == KVR_STAGE_DONE && !e->status &&
	       (e->blocks == (uint32_t)o->lead->value ||
		(o->w->flips && e->blocks < (uint32_t)o->lead->value));
}

static int reset_end(const struct op *o)
{
	if (o->end->stage == KVR_STAGE_DONE)
		return o->lead->told == 0;
	return o->end->stage == KVR_STAGE_CANCELLED && o->end->status == o->lead->told;
}

static int end_is_right(const struct op *o)
{
	switch (o->lead->kind) {
	case KVR_KIND_STORE:
		return store_end(o);
	case KVR_KIND_LOAD:
		return load_end(o);
	case KVR_KIND_PREFETCH:
		return prefetch_end(o);
	case KVR_KIND_DECISION:
		return decision_end(o);
	default:
		return reset_end(o);
	}
}

/* --- answers ---------------------------------------------------------------------------------- */

/* A rank was told that the operation ended before it began it, and how; or, of what all decide, why
 * not. */
static int other_value(const struct op *o, uint32_t side, int value)
{
	const struct flow *t = &o->flow;

	if (o->end->stage < KVR_STAGE_FAILED || value >= 0)
		return 0;
	if (value == o->end->status)
		return o->lead->kind != KVR_KIND_LOOKUP && o->lead->kind != KVR_KIND_PREFETCH;
	if (o->lead->kind == KVR_KIND_RESET)
		return value == -EBUSY;
	return o->lead->kind == KVR_KIND_LOAD && t->load == LOAD_LAYERS &&
	       ((value == -EPROTO && side == t->differs) ||
		(value == -ETIMEDOUT && (side == t->early || t->aborts)));
}

static const char *judge_answer(const struct op *o, uint32_t side)
{
	const struct seen *a = o->lead, *b = seen_by(o, side);

	if (!b->asked)
		return o->flow.aborts && !a->pass
			       ? NULL
			       : bad("%s never asked for it", name_of_side(side));
	if (b->value == -ENODATA) /* it was not to ask */
		return NULL;
	if (a->kind != b->kind || a->attempt != b->attempt || a->pass != b->pass)
		return bad("%s took it for something else", name_of_side(side));
	if (a->value == b->value && a->more == b->more)
		return NULL;
	if (a->exists && other_value(o, side, b->value))
		return NULL;
	return bad("%s was told %d (%#x), the leader %d (%#x)", name_of_side(side), b->value,
		   b->more, a->value, a->more);
}

/* --- what waits said -------------------------------------------------------------------------- */

static int store_told(const struct op *o, int told)
{
	if (told == 0)
		return o->end->reached >= o->flow.wait ||
		       (o->end->stage == KVR_STAGE_DONE && !o->w->cl->dir[0]);
	return told == o->end->status && o->end->reached < o->flow.wait;
}

static int load_told(const struct op *o, int told)
{
	int n = o->lead->value, aborts = o->flow.aborts && !o->lead->pass;

	if (told == n)
		return 1;
	if (told < 0)
		return o->end->stage >= KVR_STAGE_FAILED && told == o->end->status &&
		       (aborts || o->flow.load == LOAD_LAYERS);
	if (o->flow.load == LOAD_LAYERS && !aborts)
		return 0;
	return told < n && ((told == 0 && gave_up(o)) || (told == 0 && aborts) ||
			    tainted(o, (uint32_t)told, (uint32_t)told + 1));
}

static int decision_told(const struct op *o, int told)
{
	if (told)
		return o->end->stage == KVR_STAGE_CANCELLED && told == o->end->status;
	for (uint32_t r = 0; r < o->w->ranks; r++)
		if (!seen_by(o, r)->spoke || seen_by(o, r)->failed)
			return 0;
	return 1;
}

static int told_is_right(const struct op *o, int told)
{
	switch (o->lead->kind) {
	case KVR_KIND_STORE:
		return store_told(o, told);
	case KVR_KIND_LOAD:
		return load_told(o, told);
	case KVR_KIND_DECISION:
		return decision_told(o, told);
	case KVR_KIND_PREFETCH:
		return told < 0 ? o->end->stage == KVR_STAGE_CANCELLED && told == o->end->status
				: o->end->stage == KVR_STAGE_DONE &&
					  (uint32_t)told == o->end->blocks;
	default:
		return told == o->end->status;
	}
}

/* The same for all; of a load that was aborted some heard the number, and some that it was. */
static const char *judge_told(const struct op *o)
{
	const struct seen *first = NULL;
	int some = o->lead->kind == KVR_KIND_LOAD;

	for (uint32_t i = 0; i < W_SIDES; i++) {
		const struct seen *e = seen_by(o, i);

		if ((i >= o->w->ranks && i != W_LEAD) || !e->asked || !e->waited)
			continue;
		if (!told_is_right(o, e->told))
			return bad("a wait told %s %d", name_of_side(i), e->told);
		if (first && first->told != e->told && !(some && (first->told < 0 || e->told < 0)))
			return bad("a wait told %s %d, and another side %d", name_of_side(i),
				   e->told, first->told);
		first = e;
	}
	return NULL;
}

/* --- a flow ----------------------------------------------------------------------------------- */

static const char *about(const struct op *o, const char *what)
{
	char text[sizeof why];

	snprintf(text, sizeof text, "%s", what);
	return bad("flow %u, begin %u (kind %u, request %llu/%u, pass %u): %s; it ended as %s with "
		   "%d, %u blocks",
		   o->f, o->k, o->lead->kind, (unsigned long long)o->flow.req.id, o->lead->attempt,
		   o->lead->pass, text, kvr_stage_name(o->end->stage), o->end->status,
		   o->end->blocks);
}

static const char *judge_op(const struct op *o)
{
	const char *text = NULL;

	for (uint32_t r = 0; r < o->w->ranks && !text; r++)
		text = judge_answer(o, r);
	if (!text && o->lead->exists && o->end->ends != 1)
		text = "it has no end";
	if (!text && !o->lead->exists && o->end->ends)
		text = "it never was";
	if (!text && o->lead->exists && !end_is_right(o))
		text = "that end is not what was done to it";
	if (!text && o->lead->exists)
		text = judge_told(o);
	return text ? about(o, text) : NULL;
}

static void count_op(const struct op *o)
{
	const struct seen *e = o->lead;

	if (e->exists)
		tally.begun[e->kind]++;
	tally.refused += e->kind != KVR_KIND_LOOKUP && e->value < 0;
	tally.again += e->value == -EAGAIN;
	tally.retries += e->pass == 1 && o->flow.again == AGAIN_RETRY;
	tally.same_name += e->pass == 1 && o->flow.again == AGAIN_SAME_NAME;
	if (e->kind == KVR_KIND_DECISION && e->waited)
		*(e->told ? &tally.rejected : &tally.committed) += 1;
	if (e->kind == KVR_KIND_RESET && e->waited)
		*(e->told ? &tally.resets_refused : &tally.resets) += 1;
	tally.flips_found += e->kind == KVR_KIND_LOAD && e->waited && e->told >= 0 &&
			     e->told < e->value && !gave_up(o);
}

static const char *judge_flow(const struct world *w, uint32_t f)
{
	const struct side_log *l = &w->shared->log[W_LEAD];
	struct op o = { .w = w, .f = f };
	uint32_t cancelled = 0;
	const char *text;

	plan_flow(w, f, &o.flow);
	for (o.k = 0; o.k < W_BEGINS && l->seen[f][o.k].asked; o.k++) {
		o.lead = &l->seen[f][o.k];
		o.end = &ends[f][o.k];
		if (o.lead->pass)
			plan_second(&o.flow);
		count_op(&o);
		text = judge_op(&o);
		if (text)
			return text;
		cancelled += o.lead->exists && o.end->stage == KVR_STAGE_CANCELLED;
	}
	/* What an abort says that it ended, and nothing else, is cancelled. */
	if (o.flow.kind == FLOW_REQUEST && o.flow.load != LOAD_LAYERS &&
	    cancelled != l->abort_ended[f])
		return bad("flow %u: %u operations were cancelled, abort ended %u", f, cancelled,
			   l->abort_ended[f]);
	return NULL;
}

static void count_side(const struct world *w, uint32_t side)
{
	const struct side_log *l = &w->shared->log[side];

	for (uint32_t i = 0; i < S_STATES; i++)
		*(side == W_LEAD ? &tally.aborts[i] : &tally.rank_aborts) += l->aborts[i];
	tally.interrupts += l->interrupts;
	tally.timeouts += l->timeouts;
	tally.early += l->early;
	tally.completions += l->dones;
	tally.late += l->late;
	tally.duplicate += l->duplicate;
	if (l->quarantine > tally.quarantined)
		tally.quarantined = l->quarantine;
	if (l->longest_flow_ns > tally.longest_flow_ns)
		tally.longest_flow_ns = l->longest_flow_ns;
	if (l->longest_ns <= tally.longest_ns)
		return;
	tally.longest_ns = l->longest_ns;
	tally.longest = l->longest;
}

const char *judge_round(const struct world *w)
{
	const char *text = collect_ends(w);

	for (uint32_t i = 0; i < W_SIDES; i++)
		if (i < w->ranks || i == W_LEAD)
			count_side(w, i);
	for (uint32_t r = 0; r < w->ranks && !text; r++) {
		text = judge_lists(w, r);
		if (!text)
			text = judge_ticks(w, r);
		if (!text && w->alike)
			text = judge_drift(w, r);
	}
	for (uint32_t f = 0; f < w->flows && !text; f++)
		text = judge_flow(w, f);
	tally.rounds++;
	tally.flows += w->flows;
	tally.alike += (uint64_t)w->alike;
	tally.joint += (uint64_t)w->joint;
	return text;
}
