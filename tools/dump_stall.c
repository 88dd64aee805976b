/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who waits in vain, and for whom: those who hold up others come first, and who waits for them is
 * said only when nobody else is to blame. Slow is not stalled: only what lasts longer than the
 * limit counts, a declared long phase excuses its process, and a rank that waits for the leader's
 * next tick or message may be right to do so.
 */
#include <inttypes.h>
#include <string.h>

#include "dump_verdict.h"

#define CLAUSES 3 /* that are said; of the others their number */
#define WAIT_NS 1000000000u

struct stall {
	const struct dump *d;
	struct dump_line *l;
	uint32_t count;
	uint64_t described; /* ranks of which was said what they do */
};

/* 1: this one is to be said. */
static int clause(struct stall *s)
{
	if (s->count++ >= CLAUSES)
		return 0;
	if (s->count > 1 || s->l->used)
		dump_say(s->l, "; ");
	if (s->count == 1)
		dump_say(s->l, "stall: ");
	return 1;
}

static int too_long(const struct dump *d, uint64_t ns)
{
	uint64_t age = dump_since(d, ns);

	return age != UINT64_MAX && age > d->stall_ns;
}

static int is_in(const struct kvr_inspect_proc *p, const char *call)
{
	return p->in_call && !strcmp(kvr_inspect_call_name(p->in_call), call);
}

static uint64_t in_phase(const struct dump *d)
{
	uint64_t set = 0;

	for (uint32_t r = 0; r < d->group.ranks; r++)
		if (dump_in_phase(d, &d->rank[r]))
			set |= 1ull << r;
	return set;
}

/* --- messages that nobody reads ----------------------------------------------------------------
 */

/* Since when the channel's oldest unread message is there; 0: there is none. *at_least: its event
 * is overwritten, so it is older than this. */
static uint64_t unread_ns(const struct dump *d, const struct kvr_inspect_channel *c, int *at_least)
{
	*at_least = 0;
	if (!c->oldest_unread || !dump_lag(c))
		return 0;
	*at_least = !c->oldest_unread_ns;
	return c->oldest_unread_ns ? c->oldest_unread_ns : d->oldest_event_ns;
}

static void unread(struct stall *s, uint32_t rank)
{
	const struct kvr_inspect_proc *p = &s->d->rank[rank];
	const struct kvr_inspect_channel *worst = NULL;
	uint64_t oldest = 0;
	int at_least = 0, some;
	char age[32];

	for (uint32_t c = 0; c < KVR_CHANNELS; c++) {
		uint64_t ns = unread_ns(s->d, &s->d->channel[c][rank], &some);

		if (ns && (!worst || ns < oldest)) {
			worst = &s->d->channel[c][rank];
			oldest = ns;
			at_least = some;
		}
	}
	if (!worst || p->alive <= 0 || dump_in_phase(s->d, p) || !too_long(s->d, oldest) ||
	    !clause(s))
		return;
	dump_say(s->l,
		 "rank %" PRIu32 " (pid %" PRIu32 ") does not read %s: %" PRIu64 " message%s,",
		 rank, p->pid, kvr_channel_name(worst->channel), dump_lag(worst),
		 dump_lag(worst) == 1 ? "" : "s");
	dump_say(s->l, " the oldest %s%s old; it is ", at_least ? "at least " : "",
		 dump_age(s->d, oldest, age));
	dump_say_doing(s->l, s->d, p);
	s->described |= 1ull << rank;
	if (p->phase_until && !dump_in_phase(s->d, p) && s->d->group.same_boot)
		dump_say(s->l, ", and its long phase \"%s\" should have ended", p->phase);
}

/* --- operations ---------------------------------------------------------------------------------
 */

/* Says who has not answered, and which of these said that it is busy. */
static void say_missing(struct stall *s, uint64_t missing, const char *what)
{
	uint64_t busy = missing & in_phase(s->d), others = missing & ~busy;
	int64_t one = -1;

	if (others) {
		dump_say_set(s->l, others);
		dump_say(s->l, " %s not %s", others & (others - 1) ? "have" : "has", what);
		if (!(others & (others - 1)))
			for (one = 0; !(others >> one & 1); one++)
				;
	}
	if (busy) {
		dump_say(s->l, "%s", others ? ", " : "");
		dump_say_set(s->l, busy);
		dump_say(s->l, "%s in a long phase", busy & (busy - 1) ? " are" : " is");
	}
	if (one < 0 || one >= (int64_t)s->d->group.ranks || s->described >> one & 1)
		return;
	s->described |= 1ull << one;
	dump_say(s->l, " (it is ");
	dump_say_doing(s->l, s->d, &s->d->rank[one]);
	dump_say(s->l, ")");
}

static int is_stalled(const struct dump *d, const struct kvr_inspect_op *o)
{
	uint64_t missing = dump_unanswered(o);

	if (!too_long(d, o->stage_ns))
		return 0;
	return missing ? (missing & ~in_phase(d)) != 0 : !dump_in_phase(d, &d->leader);
}

static void operation(struct stall *s, const struct kvr_inspect_op *o)
{
	char age[32], request[40];

	if (!clause(s))
		return;
	dump_say(s->l, "%s %s ", kvr_inspect_op_name(o->kind), dump_request(&o->request, request));
	if (dump_quarantined(o))
		dump_say(s->l, "ended (%s) %s ago and holds its slots: ", kvr_stage_name(o->stage),
			 dump_age(s->d, o->stage_ns, age));
	else
		dump_say(s->l, "has been %s for %s: ", kvr_stage_name(o->stage),
			 dump_age(s->d, o->stage_ns, age));
	if (dump_unanswered(o))
		say_missing(s, dump_unanswered(o), "answered");
	else
		dump_say(s->l, "the leader has not taken it further");
}

static int older(const struct kvr_inspect_op *a, const struct kvr_inspect_op *b)
{
	return a->stage_ns != b->stage_ns ? a->stage_ns < b->stage_ns : a->entry < b->entry;
}

/* The oldest first: what came later may wait for it. */
static void operations(struct stall *s)
{
	const struct kvr_inspect_op *ops = s->d->ops, *last = NULL;
	uint32_t stalled = 0;

	for (uint32_t i = 0; i < s->d->op_count; i++)
		stalled += is_stalled(s->d, &ops[i]) != 0;
	for (uint32_t said = 0; said < CLAUSES && said < stalled; said++) {
		const struct kvr_inspect_op *next = NULL;

		for (uint32_t i = 0; i < s->d->op_count; i++)
			if (is_stalled(s->d, &ops[i]) && (!last || older(last, &ops[i])) &&
			    (!next || older(&ops[i], next)))
				next = &ops[i];
		if (!next)
			break;
		operation(s, next);
		last = next;
	}
	s->count += stalled > CLAUSES ? stalled - CLAUSES : 0;
}

/* --- barriers and reductions
 * ---------------------------------------------------------------------- */

static int is_meeting(const struct kvr_inspect_proc *p)
{
	return p->alive > 0 && (is_in(p, "barrier") || is_in(p, "min_reduce"));
}

static void meeting(struct stall *s, const struct kvr_inspect_meet *m)
{
	uint64_t missing = m->ranks & ~m->arrived, waiting = 0, since = UINT64_MAX, ns;
	int no_leader = m->with_leader && !m->leader_arrived;
	char age[32];

	for (uint32_t r = 0; r <= s->d->group.ranks; r++) {
		uint32_t rank = r < s->d->group.ranks ? r : DUMP_LEADER;
		const struct kvr_inspect_proc *p = dump_proc(s->d, rank);
		int here = rank == DUMP_LEADER ? (int)m->leader_arrived
					       : (int)(m->arrived >> r & 1);

		ns = p->call_ns;
		if (!here || !is_meeting(p) || !ns)
			continue;
		waiting |= rank == DUMP_LEADER ? 0 : 1ull << r;
		since = ns < since ? ns : since;
	}
	if ((!missing && !no_leader) || since == UINT64_MAX || !too_long(s->d, since) ||
	    (!(missing & ~in_phase(s->d)) && (!no_leader || dump_in_phase(s->d, &s->d->leader))) ||
	    !clause(s))
		return;
	dump_say(s->l, "%s %" PRIu64 " of ", m->values ? "reduction" : "barrier", m->round);
	dump_say_set(s->l, m->ranks);
	dump_say(s->l, "%s: ", m->with_leader ? " and the leader" : "");
	if (waiting)
		dump_say_set(s->l, waiting);
	else
		dump_say(s->l, "the leader");
	dump_say(s->l, " waited up to %s; ", dump_age(s->d, since, age));
	if (no_leader) {
		dump_say(s->l, "the leader has not come (it is ");
		dump_say_doing(s->l, s->d, &s->d->leader);
		dump_say(s->l, ")%s", missing ? ", and " : "");
	}
	if (missing)
		say_missing(s, missing, "come");
}

/* --- calls
 * ------------------------------------------------------------------------------------------ */

/* Calls of a rank that wait for what the leader may rightly not have. */
static int may_wait(const struct kvr_inspect_proc *p)
{
	return p->rank != DUMP_LEADER &&
	       (is_in(p, "take") || is_in(p, "expect") || is_in(p, "check_completed"));
}

/* The kind of call alike that a process is inside of; -1: none. */
static int alike_of(const struct kvr_inspect_proc *p)
{
	static const struct {
		const char *call, *kind;
	} table[] = {
		{ "lookup", "lookup" },	    { "store_begin", "store" }, { "load_begin", "load" },
		{ "prefetch", "prefetch" }, { "propose", "decision" },	{ "reset", "reset" },
	};

	for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
		for (uint32_t k = 0; is_in(p, table[i].call) && k < KVR_ALIKE_KINDS; k++)
			if (!strcmp(kvr_inspect_alike_name(k), table[i].kind))
				return (int)k;
	return -1;
}

/* It waits for the answer to a call that the leader has not made. */
static int is_ahead(const struct dump *d, const struct kvr_inspect_proc *p)
{
	int kind = p->rank < KVR_MAX_RANKS ? alike_of(p) : -1;

	return kind >= 0 && d->log[p->rank][kind].count > d->log[DUMP_LEADER_AT][kind].count;
}

/* What a rank asks for that the leader did not ask for. */
static void say_ahead(struct dump_line *l, const struct dump *d, const struct kvr_inspect_proc *p)
{
	int kind = alike_of(p);
	const struct kvr_inspect_log *mine;
	char request[40];

	if (kind < 0 || p->rank >= KVR_MAX_RANKS)
		return;
	mine = &d->log[p->rank][kind];
	if (mine->last_known)
		dump_say(l, ", request %s", dump_request(&mine->last.request, request));
	if (is_ahead(d, p))
		dump_say(l, ", which the leader has not called");
}

/* Who does not make room for the leader's publish. */
static void say_slowest(struct dump_line *l, const struct dump *d, uint32_t channel)
{
	const struct kvr_inspect_channel *worst = NULL;

	if (channel >= KVR_CHANNELS)
		return;
	for (uint32_t r = 0; r < d->group.ranks; r++)
		if (!worst || dump_lag(&d->channel[channel][r]) > dump_lag(worst))
			worst = &d->channel[channel][r];
	if (!worst || !dump_lag(worst))
		return;
	dump_say(l, ": rank %" PRIu32 " has %" PRIu64 " unread there", worst->rank,
		 dump_lag(worst));
}

/* Who has not left. */
static void say_present(struct dump_line *l, const struct dump *d)
{
	uint64_t here = 0;

	for (uint32_t r = 0; r < d->group.ranks; r++)
		if (d->rank[r].alive > 0)
			here |= 1ull << r;
	if (!here)
		return;
	dump_say(l, ": ");
	dump_say_set(l, here);
	dump_say(l, " %s not left", here & (here - 1) ? "have" : "has");
}

static void call(struct stall *s, const struct kvr_inspect_proc *p)
{
	char age[32];

	if (p->alive <= 0 || !p->in_call || dump_in_phase(s->d, p) || may_wait(p) ||
	    is_meeting(p) || !too_long(s->d, p->call_ns) || !clause(s))
		return;
	dump_say_who(s->l, p->rank);
	dump_say(s->l, " has been inside %s", kvr_inspect_call_name(p->in_call));
	if (is_in(p, "publish"))
		dump_say(s->l, " (%s)", kvr_channel_name(p->call_channel));
	dump_say(s->l, " for %s", dump_age(s->d, p->call_ns, age));
	say_ahead(s->l, s->d, p);
	if (is_in(p, "publish"))
		say_slowest(s->l, s->d, p->call_channel);
	else if (is_in(p, "shutdown") && p->rank == DUMP_LEADER && s->d->group.ending)
		say_present(s->l, s->d);
}

static void stopped(struct stall *s, const struct kvr_inspect_proc *p)
{
	char age[32];

	if (p->alive <= 0 || p->peer != KVR_PEER_STOPPED || !too_long(s->d, p->progress_ns) ||
	    (p->rank < KVR_MAX_RANKS && s->described >> p->rank & 1) || !clause(s))
		return;
	dump_say_who(s->l, p->rank);
	dump_say(s->l, " was last active %s ago", dump_age(s->d, p->progress_ns, age));
}

int dump_judge_stall(struct dump *d, struct dump_line *l)
{
	struct stall s = { .d = d, .l = l };
	uint32_t others;

	for (uint32_t r = 0; r < d->group.ranks; r++)
		unread(&s, r);
	operations(&s);
	for (uint32_t i = 0; i < d->meet_count; i++)
		meeting(&s, &d->meets[i]);
	stopped(&s, &d->leader);
	for (uint32_t r = 0; r < d->group.ranks; r++)
		stopped(&s, &d->rank[r]);
	for (uint32_t r = 0; r < d->group.ranks; r++)
		if (is_ahead(d, &d->rank[r]))
			call(&s, &d->rank[r]);
	call(&s, &d->leader);
	others = s.count;
	for (uint32_t r = 0; !others && r < d->group.ranks; r++)
		call(&s, &d->rank[r]);
	if (!s.count)
		return 0;
	if (s.count > CLAUSES)
		dump_say(l, "; and %" PRIu32 " more", s.count - CLAUSES);
	d->status = DUMP_TROUBLE;
	return 1;
}

void dump_say_waits(struct dump_line *l, const struct dump *d)
{
	const struct kvr_inspect_proc *longest = NULL;
	char age[32];

	for (uint32_t r = 0; r < d->group.ranks; r++) {
		const struct kvr_inspect_proc *p = &d->rank[r];
		uint64_t since = dump_since(d, p->call_ns);

		if (p->alive > 0 && p->in_call && since != UINT64_MAX && since > WAIT_NS &&
		    (!longest || p->call_ns < longest->call_ns))
			longest = p;
	}
	if (!longest)
		return;
	dump_say(l, "; ");
	dump_say_who(l, longest->rank);
	if (!is_in(longest, "check_completed")) {
		dump_say(l, " has been inside %s for %s", kvr_inspect_call_name(longest->in_call),
			 dump_age(d, longest->call_ns, age));
		say_ahead(l, d, longest);
		return;
	}
	dump_say(l, " has waited in check_completed for %s for tick %" PRIu64 "; the leader",
		 dump_age(d, longest->call_ns, age), longest->tick_seen + 1);
	dump_say(l, " finished tick %" PRIu64, d->group.tick_done);
	if (d->tick_ns)
		dump_say(l, " %s ago", dump_age(d, d->tick_ns, age));
	dump_say(l, " and is ");
	dump_say_doing(l, d, &d->leader);
}
