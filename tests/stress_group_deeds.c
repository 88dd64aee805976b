/* SPDX-License-Identifier: Apache-2.0 */
/* Deaths at any time, restarts, declared failures, good ends, and ranks that do not read. */
#include "stress_group_round.h"

/* Lets some time pass; whoever is looked after goes on. */
static void pass_time(struct round *r, uint32_t us)
{
	uint64_t until = kvr_now() + us * 1000ull;

	do {
		round_pump(r);
		usleep(us < 1000 ? us : 1000);
	} while (kvr_now() < until);
}

void group_mood(struct round *r)
{
	r->starve = pick(r, 3) == 0;
	if (pick(r, 3) == 0)
		kvr_store_release32(&cast_some_rank(r)->flood, 1);
	pass_time(r, 1 + pick(r, pick(r, 2) ? 2000 : 40000));
}

void group_refused(struct round *r, uint32_t takeover, int rc)
{
	uint32_t leader = r->leader, first = r->w->notes;
	struct actor *a = cast_leader(r);

	a->takeover = takeover;
	cast_start(r, a);
	r->leader = leader;
	cast_await_end(r, a);
	for (uint32_t i = first; i < r->w->notes; i++)
		if (r->w->note[i].actor == cast_index(r, a) && r->w->note[i].rc == rc)
			return;
	round_bad(r, TROUBLE_CAUSE, "a leader was not refused with %d, but ended", rc);
}

void rank_refused(struct round *r, uint32_t rank, int rc)
{
	uint32_t at = r->at[rank], first = r->w->notes;
	struct actor *a = cast_rank(r, rank);

	a->tries = 1;
	cast_start(r, a);
	r->at[rank] = at;
	cast_await_end(r, a);
	tally.restarts++;
	for (uint32_t i = first; i < r->w->notes; i++)
		if (r->w->note[i].actor == cast_index(r, a) && r->w->note[i].rc == rc)
			return;
	round_bad(r, TROUBLE_CAUSE, "rank %u again: not refused with %d, but ended", rank, rc);
}

static void kill_ranks(struct round *r, uint32_t percent)
{
	for (uint32_t i = 0; i < r->w->ranks; i++)
		if (pick(r, 100) < percent)
			cast_kill(r, rank_of(r, i));
}

static void await_victims(struct round *r)
{
	for (uint32_t i = 0; i < r->actors; i++)
		if (r->w->actor[i].kill_ns)
			cast_await_end(r, &r->w->actor[i]);
}

void deed_kill(struct round *r, uint32_t victims)
{
	struct actor *l = cast_leader(r);
	int leader = victims != VICTIM_RANK && victims != VICTIM_RANKS;

	l->restarts = !leader && pick(r, 2);
	group_start(r, l);
	/* The death of a rank that is no member yet ends nothing. */
	if (!leader || pick(r, 3)) {
		group_await_joined(r, group_await_reign(r, l));
		group_await_traffic(r);
	} else {
		group_await_reign(r, l);
	}
	group_mood(r);
	if (leader && pick(r, 2))
		cast_kill(r, l);
	if (victims != VICTIM_LEADER)
		cast_kill(r, cast_some_rank(r));
	if (victims != VICTIM_LEADER && victims != VICTIM_RANK)
		kill_ranks(r, victims == VICTIM_ALL ? 100 : 40);
	if (leader)
		cast_kill(r, l);
	await_victims(r);
	if (leader && !files_there(r, KVR_SHM_SEGMENT))
		round_bad(r, TROUBLE_LEFT, "the segment of a leader that died is gone");
	group_recover(r);
}

void deed_restart(struct round *r, uint32_t kind)
{
	struct actor *l, *v;

	group_open(r);
	l = leader_of(r);
	v = cast_some_rank(r);
	if (kind == RESTART_ALIVE) {
		rank_refused(r, v->rank, -EBUSY);
		group_await_traffic(r);
		return;
	}
	if (kind == RESTART_DEAD) {
		/* A leader that makes no call does not notice. */
		kvr_store_release32(&l->quiet, 1);
		ROUND_AWAIT(r, kvr_load_acquire32(&l->quieted), "a quiet leader");
	}
	if (kind == RESTART_LEFT) {
		r->away = 1u << v->rank;
		kvr_store_release32(&v->order, ORDER_CLOSE);
	} else {
		cast_kill(r, v);
	}
	cast_await_end(r, v);
	if (kind == RESTART_SEEN_DEAD)
		group_await_ended(r, r->reign);
	rank_refused(r, v->rank, kind == RESTART_SEEN_DEAD ? -EOWNERDEAD : -EBUSY);
	/* It waits for the next epoch, and gets in. */
	r->away = 0;
	group_start_ranks(r);
	if (kind == RESTART_SEEN_DEAD) {
		cast_await_end(r, l);
	} else {
		kvr_store_release32(&l->quiet, 0);
		l->order = pick(r, 2) ? ORDER_CLOSE : ORDER_RUN;
		if (l->order == ORDER_RUN)
			cast_kill(r, l);
		cast_await_end(r, l);
	}
	group_recover(r);
}

void deed_fail(struct round *r, uint32_t kind)
{
	static const int causes[] = {
		-EIO, -EAGAIN, -EINTR, -EPROTO, -EBADMSG, -ENOSPC, -EMSGSIZE
	};
	struct actor *l = cast_leader(r), *v;

	l->restarts = kind == DECLARED_RESTARTS;
	group_start(r, l);
	group_await_joined(r, group_await_reign(r, l));
	group_await_traffic(r);
	v = cast_some_rank(r);
	l->fail_cause = causes[pick(r, 7)];
	l->fail_blamed = kind == DECLARED_NOBODY ? KVR_MAX_RANKS : v->rank;
	if (kind == DECLARED_FLOOD) {
		/* The way it is meant: a rank that does not read is named, then blamed. */
		kvr_store_release32(&v->flood, 1);
		group_ask(r, l, v->rank);
		group_answered(r, l, "rank %u does not read channel", v->rank);
		l->fail_cause = -ETIMEDOUT;
	} else {
		group_mood(r);
	}
	kvr_store_release32(&l->order, ORDER_FAIL);
	group_recover(r);
}

void deed_close(struct round *r, uint32_t kind)
{
	struct actor *l = cast_leader(r);

	if (kind == CLOSING_ATTACH) {
		cast_start(r, l);
		group_await_reign(r, l);
		group_start_ranks(r);
		pass_time(r, 1 + pick(r, 4000));
	} else {
		group_start(r, l);
		group_await_joined(r, group_await_reign(r, l));
		group_await_traffic(r);
		if (kind == CLOSING_FLOOD)
			for (uint32_t i = 0; i < r->w->ranks; i++)
				kvr_store_release32(&rank_of(r, i)->flood, pick(r, 2));
		group_mood(r);
	}
	kvr_store_release32(&l->order, ORDER_CLOSE);
	if (pick(r, 2)) {
		cast_await_end(r, l);
		if (files_there(r, KVR_SHM_SEGMENT))
			round_bad(r, TROUBLE_LEFT, "the segment after a good end");
	}
	group_recover(r);
}

void deed_leave(struct round *r, uint32_t percent)
{
	group_open(r);
	group_mood(r);
	for (uint32_t i = 0; i < r->w->ranks; i++) {
		struct actor *a = rank_of(r, i);

		if (pick(r, 100) >= percent)
			continue;
		r->away |= 1u << i;
		kvr_store_release32(&a->order, ORDER_CLOSE);
		if (pick(r, 2))
			cast_await_end(r, a);
	}
	/* Nobody waits for them. */
	group_await_traffic(r);
	for (uint32_t i = 0; i < r->w->ranks; i++)
		if (r->away >> i & 1)
			cast_await_end(r, rank_of(r, i));
}

/* The rank that a time-out of the leader names, once that is one of those that read nothing. */
static uint32_t named_flood(struct round *r, struct actor *l)
{
	uint64_t until = test_deadline_ms(HANG_MS);
	uint32_t rank = 0;

	do {
		const char *at;

		group_ask(r, l, NOBODY);
		group_answered(r, l, "does not read channel");
		at = strstr(l->answer, "rank ");
		if (!at || sscanf(at, "rank %u does not read", &rank) != 1)
			round_bad(r, TROUBLE_CAUSE, "no rank is named: %s", l->answer);
		if (rank_of(r, rank)->flood)
			return rank;
	} while (kvr_now() < until);
	round_hang(r, "a time-out that names a rank that reads nothing");
}

void deed_flood(struct round *r, uint32_t percent)
{
	uint32_t n = 0;

	group_open(r);
	cast_some_rank(r)->flood = 1;
	for (uint32_t i = 0; i < r->w->ranks; i++) {
		if (pick(r, 100) < percent)
			kvr_store_release32(&rank_of(r, i)->flood, 1);
		n += rank_of(r, i)->flood;
	}
	while (n--)
		kvr_store_release32(&rank_of(r, named_flood(r, leader_of(r)))->flood, 0);
	group_await_traffic(r);
}

void deed_starve(struct round *r, uint32_t unused)
{
	(void)unused;
	group_open(r);
	r->starve = 1;
	pass_time(r, 50000 + pick(r, 300000));
	r->starve = 0;
	group_await_traffic(r);
}
