/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One or two sentences on how a group is. The worst comes first: it is over (retired, its leader or
 * a rank dead, declared failed); ranks made different calls (drift); somebody waits in vain (stall,
 * dump_stall.c); else it is fine. How far a rank is behind is no fault of its own.
 */
#include <inttypes.h>
#include <string.h>

#include "dump_verdict.h"
#include "kvring/err.h"

void dump_say_who(struct dump_line *l, uint32_t rank)
{
	if (rank == DUMP_LEADER)
		dump_say(l, "the leader");
	else
		dump_say(l, "rank %" PRIu32, rank);
}

void dump_say_set(struct dump_line *l, uint64_t ranks)
{
	char set[DUMP_SET_MAX];

	dump_say(l, "rank%s %s", ranks & (ranks - 1) ? "s" : "", dump_set(ranks, set));
}

static void say_and(struct dump_line *l)
{
	if (l->used)
		dump_say(l, "; ");
}

/* What it does, or when it did something: "in lookup for 3.2 s", "in no call, active 3 ms ago". */
void dump_say_doing(struct dump_line *l, const struct dump *d, const struct kvr_inspect_proc *p)
{
	char age[32];

	if (p->peer == KVR_PEER_STOPPED || p->peer == KVR_PEER_DUMPING)
		dump_say(l, "%s, ", kvr_peer_state_name(p->peer));
	if (p->in_call)
		dump_say(l, "in %s for %s", kvr_inspect_call_name(p->in_call),
			 dump_age(d, p->call_ns, age));
	else if (p->progress_ns)
		dump_say(l, "in no call, active %s ago", dump_age(d, p->progress_ns, age));
	else
		dump_say(l, "in no call");
}

/* --- over ------------------------------------------------------------------------------------- */

/* "ranks 1, 3 (pids 812, 814) died"; those with a pid that are in that state. */
static uint32_t say_ranks(struct dump_line *l, const struct dump *d, int32_t alive,
			  const char *what)
{
	uint32_t n = 0, said = 0;

	for (uint32_t r = 0; r < d->group.ranks; r++)
		n += d->rank[r].alive == alive && d->rank[r].pid;
	if (!n)
		return 0;
	say_and(l);
	dump_say(l, "%s", n == 1 ? "rank" : "ranks");
	for (uint32_t r = 0; r < d->group.ranks && said < 8; r++)
		if (d->rank[r].alive == alive && d->rank[r].pid)
			dump_say(l, "%s %" PRIu32 " (pid %" PRIu32 ")", said++ ? "," : "", r,
				 d->rank[r].pid);
	if (n > said)
		dump_say(l, " and %" PRIu32 " more", n - said);
	dump_say(l, " %s", what);
	return n;
}

static void say_retired(struct dump_line *l, const struct dump *d)
{
	const struct kvr_inspect_group *g = &d->group;
	char age[32];

	if (!g->retired_by)
		return;
	say_and(l);
	dump_say(l, "retired: epoch %" PRIu64 " replaced it", g->retired_by);
	if (g->retired_ns && g->same_boot)
		dump_say(l, " %s ago", dump_age(d, g->retired_ns, age));
	dump_say(l, " (its leader was %s)",
		 !strcmp(kvr_inspect_retired_name(g->retired_how), "left")
			 ? "gone"
			 : kvr_inspect_retired_name(g->retired_how));
}

static void say_leader(struct dump_line *l, const struct dump *d)
{
	if (d->leader.alive > 0)
		return;
	say_and(l);
	if (d->leader.alive < 0)
		dump_say(l, "leader (pid %" PRIu32 ") died", d->leader.pid);
	else
		dump_say(l, "leader (pid %" PRIu32 ") is gone (%s)", d->leader.pid,
			 kvr_inspect_state_name(d->group.state));
	if (d->leader.alive < 0 && d->leader.in_call)
		dump_say(l, " inside %s", kvr_inspect_call_name(d->leader.in_call));
}

static void say_failed(struct dump_line *l, const struct dump *d)
{
	if (strcmp(kvr_inspect_state_name(d->group.state), "failed") != 0)
		return;
	say_and(l);
	dump_say(l, "the leader ended the epoch: %s", kvr_strerror(d->group.cause));
	if (d->group.blamed < d->group.ranks)
		dump_say(l, " (rank %" PRIu32 ")", d->group.blamed);
}

/* 1: it is over, and says why. */
static int judge_over(struct dump *d, struct dump_line *l)
{
	char age[32];
	uint32_t n;

	if (!d->group.same_boot)
		dump_say(l, "a segment from before the machine restarted");
	say_retired(l, d);
	say_leader(l, d);
	n = say_ranks(l, d, -1, "died");
	say_failed(l, d);
	if (!l->used)
		return 0;
	if (d->leader.progress_ns && d->group.same_boot)
		dump_say(l, "; leader last active %s ago", dump_age(d, d->leader.progress_ns, age));
	if (!say_ranks(l, d, 1, "still alive") && !n)
		dump_say(l, "; no rank was attached");
	d->status = DUMP_OVER;
	return 1;
}

/* --- drift ------------------------------------------------------------------------------------ */

/* The rank that drifted first, as far as is known, and in what. 0: nobody did. */
static const struct kvr_inspect_drift *first_drift(const struct dump *d)
{
	const struct kvr_inspect_drift *first = NULL;

	for (uint32_t r = 0; r < d->group.ranks; r++)
		for (uint32_t k = 0; k < KVR_ALIKE_KINDS; k++) {
			const struct kvr_inspect_drift *x = &d->drift[r][k];

			if (!(d->drifted[r] >> k & 1))
				continue;
			if (!first || (x->noticed && (!first->noticed || x->ns < first->ns)))
				first = x;
		}
	return first;
}

static uint64_t drifted_ranks(const struct dump *d, uint32_t kind)
{
	uint64_t set = 0;

	for (uint32_t r = 0; r < d->group.ranks; r++)
		if (d->drifted[r] >> kind & 1)
			set |= 1ull << r;
	return set;
}

static uint64_t attached_ranks(const struct dump *d)
{
	uint64_t set = 0;

	for (uint32_t r = 0; r < d->group.ranks; r++)
		if (d->rank[r].pid)
			set |= 1ull << r;
	return set;
}

/* "; rank 3 made 1 store more than ranks 1-2": than the ranks that made the leader's calls. */
static void say_counts(struct dump_line *l, const struct dump *d, const struct kvr_inspect_drift *x)
{
	uint64_t others = attached_ranks(d) & ~drifted_ranks(d, x->kind), same = 0, count = 0;
	int64_t more;

	for (uint32_t r = 0; r < d->group.ranks; r++) {
		if (!(others >> r & 1))
			continue;
		if (!same)
			count = d->log[r][x->kind].count;
		if (d->log[r][x->kind].count == count)
			same |= 1ull << r;
	}
	more = (int64_t)(x->calls - count);
	if (!same || !more)
		return;
	dump_say(l, "; ");
	dump_say_who(l, x->rank);
	dump_say(l, " made %" PRIu64 " %s%s %s than ", (uint64_t)(more > 0 ? more : -more),
		 kvr_inspect_alike_name(x->kind), more == 1 || more == -1 ? "" : "s",
		 more > 0 ? "more" : "fewer");
	dump_say_set(l, same);
}

static void say_requests(struct dump_line *l, const struct kvr_inspect_drift *x)
{
	char mine[40], its[40];

	dump_request(&x->request, mine);
	dump_request(&x->its_request, its);
	if (strcmp(mine, its) != 0)
		dump_say(l, "request %s there, %s in the leader", mine, its);
	else if (x->keys != x->its_keys)
		dump_say(l, "request %s, with %" PRIu32 " keys there, %" PRIu32 " in the leader",
			 mine, x->keys, x->its_keys);
	else
		dump_say(l, "request %s, with other keys or in another namespace", mine);
}

static int judge_drift(struct dump *d, struct dump_line *l)
{
	const struct kvr_inspect_drift *x = first_drift(d);
	uint64_t all;
	char age[32];

	if (!x)
		return 0;
	all = drifted_ranks(d, x->kind);
	dump_say(l, "drift: ");
	if (all & (all - 1)) {
		dump_say_set(l, all);
		dump_say(l, "%s differ from the leader; ",
			 all == attached_ranks(d) ? ", which are all," : "");
	}
	dump_say_who(l, x->rank);
	dump_say(l, " and the leader differ %s their %s %" PRIu64 ": ",
		 x->exact ? "from" : "at the latest from", kvr_inspect_alike_name(x->kind),
		 x->index + 1);
	say_requests(l, x);
	if (x->noticed && x->ns && d->group.same_boot)
		dump_say(l, " (noticed %s ago)", dump_age(d, x->ns, age));
	say_counts(l, d, x);
	d->status = DUMP_TROUBLE;
	return 1;
}

/* --- notes ------------------------------------------------------------------------------------ */

/* Alive, and yet it does nothing; or it said that it would be busy. */
static void say_still(struct dump_line *l, const struct dump *d, const struct kvr_inspect_proc *p)
{
	char left[32];

	if (p->alive <= 0)
		return;
	if (p->peer == KVR_PEER_STOPPED || p->peer == KVR_PEER_DUMPING) {
		say_and(l);
		dump_say_who(l, p->rank);
		dump_say(l, " (pid %" PRIu32 ") is %s", p->pid, kvr_peer_state_name(p->peer));
	}
	if (dump_in_phase(d, p)) {
		say_and(l);
		dump_say_who(l, p->rank);
		dump_say(l, " is in the long phase \"%s\" for %s more", p->phase,
			 dump_span(p->phase_until - d->group.now_ns, left));
	}
}

static void say_lag(struct dump_line *l, const struct dump *d)
{
	const struct kvr_inspect_channel *worst = NULL;
	char age[32];

	for (uint32_t c = 0; c < KVR_CHANNELS; c++)
		for (uint32_t r = 0; r < d->group.ranks; r++)
			if (!worst || dump_lag(&d->channel[c][r]) > dump_lag(worst))
				worst = &d->channel[c][r];
	if (!worst || !dump_lag(worst))
		return;
	say_and(l);
	dump_say(l, "rank %" PRIu32 " is %" PRIu64 " message%s behind on %s", worst->rank,
		 dump_lag(worst), dump_lag(worst) == 1 ? "" : "s",
		 kvr_channel_name(worst->channel));
	if (worst->oldest_unread_ns && d->group.same_boot)
		dump_say(l, " (the oldest is %s old)", dump_age(d, worst->oldest_unread_ns, age));
}

static void say_quarantine(struct dump_line *l, const struct dump *d)
{
	if (!d->group.quarantined_ops)
		return;
	say_and(l);
	dump_say(l, "%" PRIu64 " ended operation%s hold%s %" PRIu64 " slot%s in quarantine",
		 d->group.quarantined_ops, d->group.quarantined_ops == 1 ? "" : "s",
		 d->group.quarantined_ops == 1 ? "s" : "", d->group.quarantined_slots,
		 d->group.quarantined_slots == 1 ? "" : "s");
}

static void judge_fine(struct dump *d, struct dump_line *l)
{
	uint32_t attached = 0;
	char age[32];

	for (uint32_t r = 0; r < d->group.ranks; r++)
		attached += d->rank[r].alive > 0;
	dump_say(l, "fine: leader and %" PRIu32 " of %" PRIu32 " ranks alive", attached,
		 d->group.ranks);
	if (d->leader.progress_ns)
		dump_say(l, "; leader active %s ago", dump_age(d, d->leader.progress_ns, age));
}

void dump_judge(struct dump *d)
{
	struct dump_line l = { d->verdict, sizeof d->verdict, 0 };
	int drift, stall = 0;

	d->status = DUMP_FINE;
	if (!judge_over(d, &l)) {
		drift = judge_drift(d, &l);
		stall = dump_judge_stall(d, &l);
		if (!drift && !stall)
			judge_fine(d, &l);
	}
	dump_say(&l, "; tick %" PRIu64, d->group.tick_done);
	if (d->group.ending)
		dump_say(&l, ", the last one: the leader announced the end");
	say_still(&l, d, &d->leader);
	for (uint32_t r = 0; r < d->group.ranks; r++)
		say_still(&l, d, &d->rank[r]);
	if (!stall) {
		say_lag(&l, d);
		dump_say_waits(&l, d);
	}
	say_quarantine(&l, d);
}
