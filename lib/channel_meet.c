/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels: barriers and reductions. Who arrives last rings, all others wait: so a sleeper is woken
 * once a round. How they meet, and why two slots are enough, is in channel_meet.h.
 */
#include "channel_meet.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "atomic.h"
#include "channel_priv.h"
#include "err.h"
#include "fork.h"
#include "life.h"
#include "peer.h"

#define AT_LEADER KVR_MAX_RANKS /* in kvr_meet_set.at, and in place of a rank below */
/* Longer than a wake-up mostly takes, or two that have slept once would go on like that: each would
 * stop looking just before the other one, which it woke, is there. */
#define SPIN_NS 12000u
#define NAMED 3u /* members that a sentence describes */
#define WHERE 96 /* bytes of where() */

typedef unsigned long long ull;

/* One call. */
struct meeting {
	struct kvr_channels *c;
	struct kvr_meet_set *s;
	enum kvr_call call;
	uint32_t with_leader;
	uint64_t ranks;
	uint64_t deadline_ns;
	const int64_t *mine;
	uint32_t n; /* 0: a barrier */
};

/* --- sentences --- */

/* "kvr_channels_barrier over ranks 0x7 and the leader" */
static const char *where(const struct meeting *m, char ret_text[WHERE])
{
	snprintf(ret_text, WHERE, "%s over ranks %#llx%s",
		 m->call == KVR_CALL_BARRIER ? "kvr_channels_barrier" : "kvr_channels_min_reduce",
		 (ull)m->ranks, m->with_leader ? " and the leader" : "");
	return ret_text;
}

static void describe(const struct meeting *m, uint32_t who, char *ret_text, size_t size)
{
	kvr_group_describe(m->c->g, who == AT_LEADER ? KVR_LEADER : who, ret_text, size);
}

/* The set is out of use, for the reason in kvr_explain(): the first evidence is kept. */
static int broken(struct kvr_meet_set *s, int err)
{
	s->error = err;
	snprintf(s->why, sizeof s->why, "%s", kvr_explain());
	return err;
}

static int impossible(const struct meeting *m, uint32_t who, uint64_t word)
{
	char text[256], at[WHERE];

	describe(m, who, text, sizeof text);
	return broken(
		m->s,
		KVR_FAIL(-EBADMSG,
			 "%s: round %llu: the page of %s says round %llu with %u values; %llu "
			 "to %llu, and at most %u values, are possible: it was overwritten, "
			 "and this set is out of use",
			 where(m, at), (ull)m->s->round, text, (ull)(word >> 8),
			 (uint32_t)(word & 0xff), (ull)m->s->round - 1, (ull)m->s->round + 1,
			 KVR_MEET_VALUES));
}

static const char *kind(uint32_t n, char *ret_text, size_t size)
{
	if (n)
		snprintf(ret_text, size, "a reduction of %u values", n);
	else
		snprintf(ret_text, size, "a barrier");
	return ret_text;
}

static int mismatch(const struct meeting *m, uint32_t who, uint32_t n)
{
	char text[256], at[WHERE], its[40], ours[40];

	describe(m, who, text, sizeof text);
	return broken(m->s,
		      KVR_FAIL(-EPROTO,
			       "%s: round %llu is %s to this process, and %s to %s: the members' "
			       "calls differ, and this set is out of use",
			       where(m, at), (ull)m->s->round, kind(m->s->n, ours, sizeof ours),
			       kind(n, its, sizeof its), text));
}

/* One that goes because the epoch is over is not the reason. */
static int gone(const struct meeting *m, uint32_t rank, int err)
{
	int end = kvr_group_check(m->c->g);
	char text[256], at[WHERE];

	if (end)
		return end;
	describe(m, rank, text, sizeof text);
	return KVR_FAIL(err, "%s: round %llu: %s %s before it arrived", where(m, at),
			(ull)m->s->round, text, err == -ESHUTDOWN ? "left" : "died");
}

/* Who has not arrived, and what it does instead. */
static int late(const struct meeting *m)
{
	const struct kvr_meet_set *s = m->s;
	uint32_t all = (uint32_t)__builtin_popcountll(s->missing) + s->leader_missing, named = 0;
	char text[256], at[WHERE], waited[32] = "";
	uint64_t rest = s->missing;

	kvr_peer_age(m->c->g->proc->call_ns, waited, sizeof waited);
	KVR_FAIL(-ETIMEDOUT, "%s: round %llu: the deadline passed after %s; ", where(m, at),
		 (ull)s->round, waited);
	for (; named < NAMED && named < all; named++, rest &= rest - 1) {
		describe(m, rest ? (uint32_t)__builtin_ctzll(rest) : AT_LEADER, text, sizeof text);
		kvr_fail_more(0, "%s%s", named ? ", " : "", text);
	}
	if (all > named)
		kvr_fail_more(0, " and %u more", all - named);
	kvr_fail_more(0, " %s not arrived; calling again goes on with this round",
		      all > 1 ? "have" : "has");
	kvr_group_add_unlinked(m->c->g);
	return -ETIMEDOUT;
}

/* --- the others --- */

/* A member's entry of this set, which stays where it is; NULL: it was never here. */
static const struct kvr_meet *entry_of(const struct meeting *m, uint32_t who)
{
	const struct kvr_group *g = m->c->g;
	const struct kvr_meet *e = m->s->at[who];

	if (e)
		return e;
	e = who == AT_LEADER ? g->leader->meet : kvr_group_rank_page(g, who)->meet;
	for (uint32_t i = 0; i < KVR_MEETS; i++, e++) {
		uint64_t ranks = kvr_load_seq_cst(&e->ranks); /* U4, pairs with U3 */

		if (!ranks)
			break;
		if (ranks == m->ranks && kvr_load_relaxed32(&e->with_leader) == m->with_leader) {
			m->s->at[who] = e;
			return e;
		}
	}
	return NULL;
}

/* Has this member arrived? 1, and its values are taken; 0; or why it cannot count. */
static int look_at(const struct meeting *m, uint32_t who)
{
	struct kvr_meet_set *s = m->s;
	const struct kvr_meet *e = entry_of(m, who);
	uint64_t word, round;
	uint32_t n;

	if (!e)
		return 0;
	word = kvr_load_seq_cst(&e->round); /* U2, pairs with U1 */
	round = word >> 8;
	n = word & 0xff;
	if (round == s->round - 1)
		return 0;
	if ((round != s->round && round != s->round + 1) || n > KVR_MEET_VALUES)
		return impossible(m, who, word);
	/* One that is in the next round has compared this one, and says nothing of it any more. */
	if (round == s->round && n != s->n)
		return mismatch(m, who, n);
	for (uint32_t i = 0; i < s->n; i++) {
		const int64_t *theirs = &e->value[s->round & 1][i];
		int64_t v = (int64_t)kvr_load_relaxed((const uint64_t *)theirs);

		s->min[i] = v < s->min[i] ? v : s->min[i];
	}
	return 1;
}

static int all_here(const struct kvr_meet_set *s)
{
	return !s->missing && !s->leader_missing;
}

/* 1: all have arrived; 0: not yet; or why they never will. */
static int look(const struct meeting *m)
{
	struct kvr_meet_set *s = m->s;
	int got;

	for (uint64_t rest = s->missing; rest; rest &= rest - 1) {
		got = look_at(m, (uint32_t)__builtin_ctzll(rest));
		if (got < 0)
			return got;
		if (got)
			s->missing &= ~(rest & -rest);
	}
	if (s->leader_missing) {
		got = look_at(m, AT_LEADER);
		if (got < 0)
			return got;
		s->leader_missing = !got;
	}
	return all_here(s);
}

/*
 * As look(), of those that are no more. What kvr_group_check() says is enough of the leader, and
 * to the leader; a rank learns of a dead rank from the leader, but that may be busy elsewhere.
 */
static int look_for_gone(const struct meeting *m)
{
	const struct kvr_group *g = m->c->g;
	struct kvr_meet_set *s = m->s;

	for (uint64_t rest = s->missing; rest; rest &= rest - 1) {
		uint32_t r = (uint32_t)__builtin_ctzll(rest);
		const struct kvr_proc *p = &kvr_group_rank_page(g, r)->proc;
		int err = 0, got;

		if (kvr_load_acquire32(&p->state) == KVR_PROC_LEFT) /* G2, pairs with G1 */
			err = -ESHUTDOWN;
		else if (g->rank != KVR_LEADER && kvr_life_peek(&p->life) == KVR_LIFE_DEAD)
			err = -EOWNERDEAD;
		if (!err)
			continue;
		/* It may have arrived before that. */
		got = look_at(m, r);
		if (got <= 0)
			return got ? got : gone(m, r, err);
		s->missing &= ~(rest & -rest);
	}
	return all_here(s);
}

static int ready(void *arg)
{
	const struct meeting *m = arg;
	struct kvr_channels *c = m->c;
	int got;

	if (c->waits)
		c->waits(c->waits_arg);
	got = look(m);
	/* About to sleep. Nobody rings for a rank that is gone, but a sleeper looks each 100 ms. */
	if (!got && kvr_load_relaxed32(&c->g->waiter.bell->parked))
		got = look_for_gone(m);
	return got;
}

/* --- a round --- */

static struct kvr_meet *own_entries(struct kvr_group *g)
{
	return g->rank == KVR_LEADER ? kvr_group_leader_page(g)->meet : kvr_group_own_page(g)->meet;
}

static void arrive(const struct meeting *m)
{
	struct kvr_group *g = m->c->g;
	struct kvr_meet_set *s = m->s;
	struct kvr_meet *own = &own_entries(g)[s - m->c->meets.set];

	s->round++;
	s->n = m->n;
	s->open = 1;
	s->missing = s->ranks;
	s->leader_missing = s->with_leader;
	if (g->rank == KVR_LEADER)
		s->leader_missing = 0;
	else
		s->missing &= ~(1ull << g->rank);
	for (uint32_t i = 0; i < s->n; i++) {
		s->min[i] = m->mine[i];
		kvr_store_relaxed((uint64_t *)&own->value[s->round & 1][i], (uint64_t)m->mine[i]);
	}
	kvr_xchg_seq_cst(&own->round, s->round << 8 | s->n); /* U1, pairs with U2 */
}

static struct kvr_bell *bell_of(const struct kvr_group *g, const struct kvr_meet_set *s)
{
	return &g->bells[__builtin_ctzll(s->ranks)];
}

static void ring_others(struct kvr_group *g, const struct kvr_meet_set *s)
{
	kvr_bell_ring(bell_of(g, s));
	if (s->with_leader && g->rank != KVR_LEADER)
		kvr_group_ring_leader(g);
}

/*
 * Members mostly arrive within microseconds of each other, however rarely they meet, so it is worth
 * a spin: the gap between arrivals, which the waiter goes by, says nothing here. Where spins end in
 * a sleep, since there are more members than cores, it leaves them out by itself.
 */
static int wait(struct meeting *m)
{
	struct kvr_waiter *w = &m->c->g->waiter;
	struct kvr_bell *own = w->bell;
	int err;

	if (m->c->g->rank != KVR_LEADER)
		w->bell = bell_of(m->c->g, m->s);
	w->spin_ns = SPIN_NS;
	err = kvr_group_wait(m->c->g, ready, m, m->deadline_ns, "the others of a set");
	w->bell = own;
	if (err == -ETIMEDOUT)
		err = look_for_gone(m);
	return err ? err : late(m);
}

static int poll(const struct meeting *m)
{
	int err = look_for_gone(m);

	if (!err)
		err = kvr_group_check(m->c->g);
	return err ? err : -EAGAIN;
}

static int unfinished(const struct meeting *m)
{
	char at[WHERE], its[40], ours[40];

	return KVR_FAIL(-EINVAL,
			"%s: %s, but round %llu is %s and has not ended: first go on there",
			where(m, at), kind(m->n, ours, sizeof ours), (ull)m->s->round,
			kind(m->s->n, its, sizeof its));
}

static int meet(struct meeting *m)
{
	struct kvr_meet_set *s = m->s;
	int fresh = !s->open, err = 0;

	if (s->error)
		return KVR_FAIL(s->error, "%s", s->why);
	if (!fresh && s->n != m->n)
		return unfinished(m);
	if (fresh)
		err = kvr_group_check(m->c->g);
	if (err)
		return err;
	if (fresh)
		arrive(m);
	err = look(m);
	/* At the first look: the last one who arrives. One who arrived before was rung for. */
	if (fresh && err)
		ring_others(m->c->g, s);
	if (!err)
		err = m->deadline_ns ? wait(m) : poll(m);
	if (err < 0)
		return err;
	s->open = 0;
	return 0;
}

/* --- sets --- */

static int too_many(const struct meeting *m)
{
	const struct kvr_meet_set *s = m->c->meets.set;
	char at[WHERE];

	KVR_FAIL(-ENOSPC, "%s: this process met in %u other sets already:", where(m, at),
		 KVR_MEETS);
	for (uint32_t i = 0; i < KVR_MEETS; i++)
		kvr_fail_more(0, "%s %#llx%s", i ? "," : "", (ull)s[i].ranks,
			      s[i].with_leader ? " and the leader" : "");
	return kvr_fail_more(-ENOSPC, "; an epoch has room for no more");
}

static int met_before(const struct meeting *m)
{
	const struct kvr_group *g = m->c->g;
	char at[WHERE];

	return KVR_FAIL(-EBUSY,
			"%s: this process met in epoch %llu of group %s already, through channels "
			"that it has closed: its rounds cannot begin again",
			where(m, at), (ull)g->header.epoch, g->name);
}

/* A new entry in the own page, which all of this set may look for from now on. */
static int claim(struct meeting *m)
{
	struct kvr_meets *all = &m->c->meets;
	struct kvr_meet *own;

	if (all->count == KVR_MEETS)
		return too_many(m);
	own = &own_entries(m->c->g)[all->count];
	if (kvr_load_relaxed(&own->ranks))
		return met_before(m);
	m->s = &all->set[all->count++];
	m->s->ranks = m->ranks;
	m->s->with_leader = m->with_leader;
	kvr_store_relaxed32(&own->with_leader, m->with_leader);
	kvr_xchg_seq_cst(&own->ranks, m->ranks); /* U3, pairs with U4 */
	return 0;
}

static int find(struct meeting *m)
{
	struct kvr_meets *all = &m->c->meets;

	for (uint32_t i = 0; i < all->count; i++)
		if (all->set[i].ranks == m->ranks && all->set[i].with_leader == m->with_leader) {
			m->s = &all->set[i];
			return 0;
		}
	return claim(m);
}

static int check(const struct meeting *m, uint64_t all)
{
	const struct kvr_group *g = m->c->g;
	char at[WHERE], us[32] = "the leader";

	if (g->forks != kvr_fork_generation())
		return KVR_FAIL(-EINVAL, "%s in a forked child: the handle is its parent's",
				where(m, at));
	if (m->ranks & ~all)
		return KVR_FAIL(-EINVAL, "%s: the group has %u ranks", where(m, at),
				g->layout.ranks);
	if (g->rank == KVR_LEADER ? m->with_leader : m->ranks >> g->rank & 1)
		return 0;
	if (g->rank != KVR_LEADER)
		snprintf(us, sizeof us, "rank %u", g->rank);
	return KVR_FAIL(-EINVAL, "%s: this is %s; only members may call", where(m, at), us);
}

static int run(struct meeting *m)
{
	struct kvr_group *g = m->c->g;
	uint64_t all = ~0ull >> (64 - g->layout.ranks);
	int outer = !g->proc->in_call, err;

	if (!m->ranks)
		m->ranks = all;
	err = check(m, all);
	if (!err)
		err = find(m);
	if (err)
		return err;
	if (outer)
		kvr_group_enter(g, m->call, 0);
	err = meet(m);
	if (outer && err == -EAGAIN) /* one that polls would fill the recorder */
		kvr_store_relaxed32(&g->proc->in_call, KVR_CALL_NONE);
	else if (outer)
		kvr_group_leave(g, m->call, 0, NULL, err);
	return err;
}

int kvr_channels_barrier(struct kvr_channels *channels, uint64_t ranks, int with_leader,
			 uint64_t deadline_ns)
{
	struct meeting m = { .c = channels,
			     .call = KVR_CALL_BARRIER,
			     .with_leader = !!with_leader,
			     .ranks = ranks,
			     .deadline_ns = deadline_ns };

	return run(&m);
}

int kvr_channels_min_reduce(struct kvr_channels *channels, uint64_t ranks, int with_leader,
			    const int64_t *mine, uint32_t n, int64_t *ret_min, uint64_t deadline_ns)
{
	struct meeting m = { .c = channels,
			     .call = KVR_CALL_MIN_REDUCE,
			     .with_leader = !!with_leader,
			     .ranks = ranks,
			     .deadline_ns = deadline_ns,
			     .mine = mine,
			     .n = n };
	int err;

	if (n < 1 || n > KVR_MEET_VALUES)
		return KVR_FAIL(-EINVAL, "kvr_channels_min_reduce: %u values; 1 to %u are possible",
				n, KVR_MEET_VALUES);
	err = run(&m);
	if (!err)
		memcpy(ret_min, m.s->min, n * sizeof *ret_min);
	return err;
}
