/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that is killed, or stopped for a while, at a labelled point of the protocol. Before:
 * bring it there. Meanwhile, when it is stopped: what the others must be told. After: go on, or a
 * new epoch.
 */
#include "stress_group_round.h"

enum place {
	IN_CREATE,
	IN_ATTACH,
	IN_LEAVE,
	IN_RANKS_LEAVE,
	IN_FAIL,
	IN_PUBLISH,
	IN_TAKE,
	IN_TICK
};

static enum place place_of(uint32_t point)
{
	const char *name = kvr_point_name(point);

	if (point == KVR_POINT_leave_rank)
		return IN_RANKS_LEAVE;
	return !strncmp(name, "create_", 7)    ? IN_CREATE
	       : !strncmp(name, "attach_", 7)  ? IN_ATTACH
	       : !strncmp(name, "leave_", 6)   ? IN_LEAVE
	       : !strncmp(name, "fail_", 5)    ? IN_FAIL
	       : !strncmp(name, "publish_", 8) ? IN_PUBLISH
	       : !strncmp(name, "bulk_", 5)    ? IN_PUBLISH
	       : !strncmp(name, "take_", 5)    ? IN_TAKE
					       : IN_TICK;
}

static void set_trap(struct actor *a, uint32_t point, uint32_t nth, int signal)
{
	a->trap = (struct trap){ .point = point, .nth = nth, .signal = signal };
}

/* --- on the way to the point --- */

static int needs_old(uint32_t point)
{
	return point == KVR_POINT_create_closing || point == KVR_POINT_create_marked ||
	       point == KVR_POINT_create_retired;
}

/* A group whose leader is dead, or declared the epoch over and left. Some ranks may sleep through
 * that, until the next leader is at the point. */
static void old_group(struct round *r)
{
	struct actor *l;

	group_open(r);
	l = leader_of(r);
	if (pick(r, 2))
		for (uint32_t i = 0; i < r->w->ranks; i++)
			if (pick(r, 3) == 0)
				cast_stop(r, rank_of(r, i));
	usleep(pick(r, 20000)); /* so that they have something to drain */
	if (pick(r, 4)) {
		cast_kill(r, l);
	} else {
		l->fail_cause = -EIO;
		l->fail_blamed = KVR_MAX_RANKS;
		kvr_store_release32(&l->order, ORDER_FAIL);
	}
	cast_await_end(r, l);
	if (pick(r, 2))
		group_await_ended(r, r->reign);
}

static struct actor *to_create(struct round *r, uint32_t point, int signal)
{
	struct actor *v;

	if (point == KVR_POINT_create_closing && pick(r, 2)) {
		group_open(r);
		r->fenced = r->leader; /* it lives, and publishes on */
	} else if (needs_old(point) || pick(r, 2)) {
		old_group(r);
	} else if (pick(r, 2)) {
		group_start_ranks(r);
	}
	v = cast_leader(r);
	if (r->fenced != NOBODY)
		v->takeover = KVR_TAKEOVER_FENCE;
	set_trap(v, point, 1, signal);
	cast_start(r, v);
	return v;
}

static struct actor *to_attach(struct round *r, uint32_t point, int signal)
{
	uint32_t rank = pick(r, r->w->ranks), nth = 1 + pick(r, 2);
	struct actor *v = cast_rank(r, rank), *l = cast_leader(r);

	/* It publishes while the victim is not there; and it can be asked. */
	l->early = 1;
	set_trap(v, point, nth, signal);
	v->lingers = 0;
	cast_start(r, v);
	group_start(r, l);
	if (nth == 2) {
		group_await_joined(r, group_await_reign(r, l));
		cast_kill(r, l);
		cast_await_end(r, l);
		l = group_new_leader(r, KVR_TAKEOVER_REFUSE);
		l->early = 1;
	}
	return v;
}

static struct actor *to_leave(struct round *r, uint32_t point, int signal)
{
	struct actor *v = cast_leader(r);

	set_trap(v, point, 1, signal);
	group_start(r, v);
	group_await_joined(r, group_await_reign(r, v));
	group_await_traffic(r);
	kvr_store_release32(&v->order, ORDER_CLOSE);
	return v;
}

static struct actor *to_ranks_leave(struct round *r, uint32_t point, int signal)
{
	uint32_t rank = pick(r, r->w->ranks);
	struct actor *v = cast_rank(r, rank), *l = cast_leader(r);

	set_trap(v, point, 1, signal);
	cast_start(r, v);
	group_start(r, l);
	group_await_joined(r, group_await_reign(r, l));
	group_await_traffic(r);
	r->away |= 1u << rank;
	kvr_store_release32(&v->order, ORDER_CLOSE);
	return v;
}

static struct actor *to_fail(struct round *r, uint32_t point, int signal)
{
	static const int causes[] = { -EIO, -ETIMEDOUT, -ENOMEM, -EOVERFLOW };
	struct actor *v = cast_leader(r);

	set_trap(v, point, 1, signal);
	v->restarts = signal == SIGSTOP && pick(r, 2);
	group_start(r, v);
	group_await_joined(r, group_await_reign(r, v));
	group_await_traffic(r);
	v->fail_cause = causes[pick(r, 4)];
	v->fail_blamed = pick(r, 2) ? pick(r, r->w->ranks) : KVR_MAX_RANKS;
	kvr_store_release32(&v->order, ORDER_FAIL);
	return v;
}

static struct actor *to_tick(struct round *r, uint32_t point, int signal)
{
	struct actor *v;

	r->ticks = 1;
	r->w->ranks = 2 + pick(r, 3);
	v = cast_leader(r);
	set_trap(v, point, 1 + pick(r, 30), signal);
	group_start(r, v);
	return v;
}

static struct actor *to_publish(struct round *r, uint32_t point, int signal)
{
	struct actor *v;

	/* The connector publishes, too: answers and completions, none of them large. */
	if (point != KVR_POINT_bulk_copied && pick(r, 4) == 0)
		return to_tick(r, point, signal);
	v = cast_leader(r);
	set_trap(v, point, 1 + pick(r, pick(r, 3) ? 20 : 200), signal);
	group_start(r, v);
	return v;
}

static struct actor *to_take(struct round *r, uint32_t point, int signal)
{
	uint32_t rank = pick(r, r->w->ranks);
	struct actor *v = cast_rank(r, rank);

	set_trap(v, point, 1 + pick(r, 40), signal);
	cast_start(r, v);
	group_start(r, cast_leader(r));
	return v;
}

static struct actor *to_point(struct round *r, uint32_t point, int signal)
{
	static struct actor *(*const to[])(struct round *, uint32_t,
					   int) = { to_create, to_attach,  to_leave, to_ranks_leave,
						    to_fail,   to_publish, to_take,  to_tick };
	struct actor *v = to[place_of(point)](r, point, signal);

	cast_await_trap(r, v);
	for (uint32_t i = 0; i < r->w->ranks; i++)
		if (rank_of(r, i) && rank_of(r, i) != v && cast_process(r, rank_of(r, i))->stopped)
			cast_continue(r, rank_of(r, i));
	return v;
}

/* --- while it is stopped there --- */

/* Every rank that is a member hears of nothing, and says who is stopped. */
static void ranks_time_out(struct round *r, const struct actor *v)
{
	for (uint32_t i = 0; i < r->w->ranks; i++)
		if (cast_runs(r, r->at[i]) && rank_of(r, i)->reign)
			group_ask(r, rank_of(r, i), NOBODY);
	for (uint32_t i = 0; i < r->w->ranks; i++)
		if (cast_runs(r, r->at[i]) && rank_of(r, i)->reign)
			group_answered(r, rank_of(r, i), "the leader (pid %u, stopped", v->pid);
}

/* Those that want in are told at their deadlines that they cannot. Behind a fence that goes up some
 * still wait for what counts of the old epoch. */
static void ranks_stay_out(struct round *r, const struct actor *v, int fence)
{
	for (uint32_t i = 0; i < r->w->ranks; i++) {
		const struct actor *a = rank_of(r, i);

		if (cast_runs(r, r->at[i]))
			ROUND_AWAIT(r,
				    kvr_load_acquire(&a->tried_ns) > v->stop_ns ||
					    (fence && kvr_load_acquire32(&a->reign)),
				    "the deadline of an attach");
	}
}

static uint32_t reign_by(const struct round *r, const struct actor *v)
{
	uint32_t i = r->w->reigns;

	while (i && r->w->reign[i - 1].actor != cast_index(r, v))
		i--;
	return i - 1;
}

/* A taker has put up its fence and not said yet what counts: nothing does. */
static void ranks_take_nothing(struct round *r)
{
	uint64_t got[WORLD_RANKS], until;

	usleep(1000);
	for (uint32_t i = 0; i < r->w->ranks; i++)
		got[i] = kvr_load_acquire(&rank_of(r, i)->got);
	until = test_deadline_ms(50);
	ROUND_AWAIT(r, kvr_now() > until, "some time");
	for (uint32_t i = 0; i < r->w->ranks; i++)
		/* One may have been on its way. */
		if (kvr_load_acquire(&rank_of(r, i)->got) > got[i] + 1)
			round_bad(r, TROUBLE_BROKEN,
				  "rank %u took messages while the fence went up", i);
}

static void stopped_in_create(struct round *r, struct actor *v, uint32_t point)
{
	if (r->fenced != NOBODY) {
		ranks_take_nothing(r);
		return;
	}
	for (uint32_t i = 0; i < r->w->ranks; i++)
		if (rank_of(r, i))
			rank_of(r, i)->lingers = 0; /* there will be nothing newer for now */
	if (point == KVR_POINT_create_published) {
		group_start_ranks(r);
		group_await_joined(r, reign_by(r, v));
		ranks_time_out(r, v);
	} else {
		ranks_stay_out(r, v, point == KVR_POINT_create_closing);
	}
	/* It has the name lock: five seconds, so not every time. */
	if (pick(r, 12) == 0)
		group_refused(r, pick(r, 3), -ETIMEDOUT);
}

static void stopped_in_attach(struct round *r, struct actor *v, uint32_t point)
{
	struct actor *l = leader_of(r);

	group_ask(r, l, v->rank);
	if (point == KVR_POINT_attach_looked)
		group_answered(r, l, ": rank %u (not attached)", v->rank);
	else if (point == KVR_POINT_attach_claimed)
		group_answered(r, l, ": rank %u (pid 0, attaching)", v->rank);
	else
		group_answered(r, l, ": rank %u (pid %u, stopped", v->rank, v->pid);
	if (point != KVR_POINT_attach_looked) {
		rank_refused(r, v->rank, -EBUSY);
	} else if (pick(r, 2)) {
		/* Somebody else is faster. */
		v->tries = 1;
		cast_start(r, cast_rank(r, v->rank));
		group_await_joined(r, group_await_reign(r, l));
	}
}

static void stopped_in_leave(struct round *r, uint32_t point)
{
	group_await_ended(r, r->reign);
	if (point == KVR_POINT_leave_told) {
		group_refused(r, KVR_TAKEOVER_REFUSE, -EBUSY);
	} else if (pick(r, 2)) {
		struct actor *l = group_new_leader(r, KVR_TAKEOVER_REFUSE);

		group_await_joined(r, group_await_reign(r, l));
		group_await_traffic(r);
	}
}

static void stopped_in_publish(struct round *r, struct actor *v, uint32_t point)
{
	const struct reign *g = &r->w->reign[v->reign - 1];
	uint64_t more = point == KVR_POINT_publish_marked;

	group_await_joined(r, v->reign - 1);
	ranks_time_out(r, v);
	for (uint32_t i = 0; i < r->w->ranks && !r->ticks; i++)
		for (uint32_t ch = 0; ch < r->w->channels; ch++)
			if (kvr_load_relaxed(&rank_of(r, i)->last[ch]) > g->published[ch] + more)
				round_bad(r, TROUBLE_BROKEN,
					  "rank %u took message %llu of channel %u, which is not "
					  "published",
					  i, (unsigned long long)rank_of(r, i)->last[ch], ch);
}

static void while_stopped(struct round *r, struct actor *v, uint32_t point)
{
	switch (place_of(point)) {
	case IN_CREATE:
		stopped_in_create(r, v, point);
		break;
	case IN_ATTACH:
		stopped_in_attach(r, v, point);
		break;
	case IN_LEAVE:
		stopped_in_leave(r, point);
		break;
	case IN_RANKS_LEAVE:
		group_await_traffic(r);
		rank_refused(r, v->rank, -EBUSY);
		break;
	case IN_FAIL:
		if (point == KVR_POINT_fail_declared)
			group_await_ended(r, r->reign);
		else
			ranks_time_out(r, v);
		break;
	case IN_PUBLISH:
		stopped_in_publish(r, v, point);
		break;
	case IN_TAKE:
		group_ask(r, leader_of(r), v->rank);
		group_answered(r, leader_of(r), ": rank %u (pid %u, stopped", v->rank, v->pid);
		break;
	case IN_TICK:
		group_await_joined(r, v->reign - 1);
		ranks_time_out(r, v);
		break;
	}
}

/* --- afterwards --- */

/* It was killed there, or it went on and did what it was about to do. */
static void afterwards(struct round *r, struct actor *v, uint32_t point, int killed)
{
	enum place at = place_of(point);

	if (at == IN_RANKS_LEAVE) {
		cast_await_end(r, v);
		rank_refused(r, v->rank, -EBUSY);
		group_await_traffic(r);
		return;
	}
	if (at == IN_CREATE && !killed) {
		group_await_reign(r, v);
	} else if (at == IN_CREATE && r->fenced != NOBODY) {
		r->leader = r->fenced; /* nothing happened */
	} else if (at == IN_LEAVE || at == IN_FAIL ||
		   (killed && point != KVR_POINT_attach_looked)) {
		/* Unless there is a new one, and messages go through. */
		if (v != leader_of(r) && v->rank == NOBODY)
			cast_await_end(r, v);
		else
			group_recover(r);
		return;
	}
	group_start_ranks(r);
	group_await_joined(r, group_await_reign(r, leader_of(r)));
	group_await_traffic(r);
}

void deed_kill_at(struct round *r, uint32_t point)
{
	struct actor *v = to_point(r, point, SIGKILL);

	afterwards(r, v, point, 1);
}

void deed_stop_at(struct round *r, uint32_t point)
{
	struct actor *v = to_point(r, point, SIGSTOP);
	int killed;

	while_stopped(r, v, point);
	killed = pick(r, 4) == 0;
	if (killed) {
		cast_kill(r, v);
		cast_await_end(r, v);
	} else {
		cast_continue(r, v);
	}
	afterwards(r, v, point, killed);
}

/* A leader stopped in the middle of something, and a new one that does not wait for it. */
void deed_take_from(struct round *r, uint32_t takeover)
{
	static const uint32_t points[] = { KVR_POINT_publish_reserved,	KVR_POINT_publish_copied,
					   KVR_POINT_publish_committed, KVR_POINT_publish_marked,
					   KVR_POINT_fail_caused,	KVR_POINT_fail_declared,
					   KVR_POINT_leave_told };
	uint32_t point = points[pick(r, pick(r, 4) ? 4 : KVR_ARRAY_LEN(points))];
	struct actor *old = to_point(r, point, SIGSTOP), *l;

	if (takeover == KVR_TAKEOVER_KILL)
		kvr_store_release(&old->kill_ns, kvr_now());
	l = group_new_leader(r, takeover);
	group_start_ranks(r);
	group_await_joined(r, group_await_reign(r, l));
	group_await_traffic(r);
	if (takeover == KVR_TAKEOVER_FENCE)
		cast_continue(r, old);
	cast_await_end(r, old);
	group_await_traffic(r);
}

/* A rank that is stopped while the leader dies and another one comes. */
void deed_oversleep(struct round *r, uint32_t unused)
{
	static const uint32_t points[] = { KVR_POINT_attach_looked, KVR_POINT_attach_claimed,
					   KVR_POINT_attach_entered, KVR_POINT_take_peeked,
					   KVR_POINT_take_released };
	struct actor *v = to_point(r, points[pick(r, KVR_ARRAY_LEN(points))], SIGSTOP), *l;

	(void)unused;
	l = leader_of(r);
	group_await_reign(r, l);
	cast_kill(r, l);
	cast_await_end(r, l);
	l = group_new_leader(r, pick(r, 3));
	group_start_ranks(r);
	group_await_joined(r, group_await_reign(r, l));
	cast_continue(r, v);
	group_await_joined(r, r->reign);
	group_await_traffic(r);
}
