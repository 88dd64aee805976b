/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two games of waiting, without a ring.
 *
 * Teams: two teams, each with one bell on which all its members sleep. In turn k every member of
 * the first team waits until all of the second have done k - 1, does k and rings; every member of
 * the second waits until all of the first have done k. So several ring one bell on which several
 * sleep, and somebody publishes just when another one is about to sleep again. One member each is
 * the plain game of two.
 *
 * Drops: a ringer publishes for a sleeper, and sometimes does not ring. The back-stop has to bring
 * each of these, and the sleeper has to count them.
 */
#ifndef TESTS_RING_WAKES_H
#define TESTS_RING_WAKES_H

#include "harness.h"

#include <sched.h>

#include "atomic.h"
#include "kvring/wait.h"
#include "ring_helpers.h"
#include "ring_sides.h"

/* --- teams ------------------------------------------------------------------------------------ */

#define TEAM_MAX 4u

enum team_cpus { TEAM_ANY_CPU, TEAM_ONE_CPU, TEAM_ONE_CPU_EACH };

struct team_plan {
	uint64_t seed;
	uint64_t deadline;
	uint32_t turns;
	uint32_t members[2];
	uint32_t spin_ns[2]; /* their spin cap; 0: every wait sleeps */
	uint32_t delay[2];   /* at most so many pauses of the core before a publish */
	uint32_t halts;	     /* one in so many publishes stops itself before its ring; 0 never */
	enum team_cpus cpus;
};

struct team_word {
	_Alignas(128) uint32_t done;
};

struct team_game {
	struct kvr_bell bell[2];
	struct team_plan plan;
	struct team_word word[2][TEAM_MAX];
	struct side side[2][TEAM_MAX];
};

struct team_look {
	const struct team_word *word;
	uint32_t n, want;
};

static inline int team_all_done(void *arg)
{
	const struct team_look *l = arg;

	for (uint32_t i = 0; i < l->n; i++)
		if (kvr_load_acquire32(&l->word[i].done) < l->want)
			return 0;
	return 1;
}

/* Puts the caller on one of the CPUs that it may use: the first, or the second if there is one. */
static inline void team_pin(uint32_t which)
{
	cpu_set_t may, one;
	size_t cpu, last = 0;
	uint32_t n = 0;

	if (sched_getaffinity(0, sizeof may, &may))
		return;
	for (cpu = 0; cpu < CPU_SETSIZE && n <= which; cpu++)
		if (CPU_ISSET(cpu, &may)) {
			last = cpu;
			n++;
		}
	CPU_ZERO(&one);
	CPU_SET(last, &one);
	sched_setaffinity(0, sizeof one, &one);
}

/* A member's whole game. NULL, or what went wrong. */
static inline const char *team_play(struct team_game *g, uint32_t team, uint32_t member,
				    struct kvr_waiter *w)
{
	const struct team_plan *p = &g->plan;
	struct team_look look = { .word = g->word[!team], .n = p->members[!team] };
	struct side *me = &g->side[team][member];
	uint64_t x = p->seed + team * TEAM_MAX + member, from;
	uint32_t k, i;
	int rc;

	if (p->cpus != TEAM_ANY_CPU)
		team_pin(p->cpus == TEAM_ONE_CPU_EACH ? team : 0);
	kvr_waiter_init(w, &g->bell[team]);
	w->spin_cap_ns = p->spin_ns[team];
	for (k = 1; k <= p->turns; k++) {
		look.want = team ? k : k - 1;
		rc = kvr_wait(w, team_all_done, &look, p->deadline);
		if (rc != 1) {
			snprintf(me->why, sizeof me->why, "team %u, member %u, turn %u: %s", team,
				 member, k, strerror(-rc));
			return me->why;
		}
		for (i = p->delay[team] ? test_random(&x) % p->delay[team] : 0; i; i--)
			kvr_relax();
		from = test_now_ns();
		kvr_store_release32(&g->word[team][member].done, k);
		if (p->halts && !(test_random(&x) % p->halts))
			raise(SIGSTOP);
		/* Of several ringers one may wait for the ring of another that is held up itself.
		 */
		side_ring(me, &g->bell[!team], from,
			  SIDE_GRACE_NS / (p->members[team] > 1 ? 2 : 1));
	}
	me->messages = p->turns;
	return NULL;
}

/* Starts all members, each a process. Returns how many. */
static inline uint32_t team_start(struct team_game *g, pid_t *pids)
{
	uint32_t n = 0, team, member;
	struct kvr_waiter w;
	const char *why;

	for (team = 0; team < 2; team++)
		for (member = 0; member < g->plan.members[team]; member++) {
			pids[n] = side_fork();
			if (!pids[n]) {
				why = team_play(g, team, member, &w);
				side_exit(&g->side[team][member], &w, why);
			}
			n++;
		}
	return n;
}

/* Lost wakes that no held-up ringer explains: each such ring may cost every sleeper one. */
static inline uint64_t team_unexplained(const struct team_game *g)
{
	uint64_t lost, held, sum = 0;
	uint32_t team, i;

	for (team = 0; team < 2; team++) {
		held = 0;
		for (i = 0; i < TEAM_MAX; i++)
			held += g->side[!team][i].held;
		for (i = 0; i < TEAM_MAX; i++) {
			lost = g->side[team][i].lost;
			sum += lost > held ? lost - held : 0;
		}
	}
	return sum;
}

/* --- drops ------------------------------------------------------------------------------------ */

#define DROP_TURNS 512u

struct drop_plan {
	uint64_t seed;
	uint64_t deadline;
	uint32_t drops; /* wake-ups to be dropped */
	uint32_t rings; /* turns with a ring, at least */
	uint32_t halts; /* one in so many of these stops itself before its ring; 0 never */
};

/* What became of a turn; the first half is the ringer's, the second the sleeper's. */
struct drop_turn {
	uint8_t dropped;
	uint8_t held; /* its ring took longer than the grace time */
};
struct drop_seen {
	uint8_t slept; /* found by the look after a sleep */
	uint8_t lost;  /* what the turn added to lost_wakes */
};

struct drop_game {
	struct kvr_bell bell;
	struct drop_plan plan;
	pid_t sleeper;
	_Alignas(128) uint32_t value; /* the turn that was published last */
	uint32_t last;		      /* the last turn; 0: not known yet */
	struct drop_turn turn[DROP_TURNS];
	_Alignas(128) uint32_t answer; /* the turn that was found last */
	uint32_t real;		       /* drops that found the sleeper asleep */
	struct drop_seen seen[DROP_TURNS];
	struct side side[2]; /* the sleeper's, the ringer's */
};

struct drop_look {
	struct drop_game *g;
	uint32_t want, calls;
};

static inline int drop_found(void *arg)
{
	struct drop_look *l = arg;

	l->calls++;
	return kvr_load_acquire32(&l->g->value) >= l->want;
}

static inline const char *drop_sleep(struct drop_game *g, struct kvr_waiter *w)
{
	struct drop_look look = { .g = g };
	uint64_t lost = 0;
	uint32_t k;
	int rc;

	kvr_waiter_init(w, &g->bell);
	w->spin_cap_ns = 0;
	for (k = 1; k < DROP_TURNS; k++) {
		look.want = k;
		look.calls = 0;
		rc = kvr_wait(w, drop_found, &look, g->plan.deadline);
		if (rc != 1)
			return "the sleeper waited for too long";
		/* Without a spin it looks once, then before and after each sleep. */
		g->seen[k].slept = look.calls > 1 && look.calls & 1;
		g->seen[k].lost = (uint8_t)(w->lost_wakes - lost);
		lost = w->lost_wakes;
		if (g->turn[k].dropped && g->seen[k].slept)
			g->real++;
		kvr_store_release32(&g->answer, k);
		if (k == g->last)
			return NULL;
	}
	return "the ringer did not end";
}

static inline const char *drop_ring(struct drop_game *g)
{
	const struct drop_plan *p = &g->plan;
	uint64_t x = p->seed, from;
	uint32_t k, rings = 0;
	int drop;

	for (k = 1; k < DROP_TURNS; k++) {
		/* Only who sleeps can miss a wake-up. */
		while (kvr_load_acquire32(&g->answer) != k - 1 || !side_asleep(g->sleeper)) {
			if (test_now_ns() > p->deadline)
				return "the sleeper does not sleep";
			sched_yield();
		}
		drop = g->real < p->drops && (rings >= p->rings || test_random(&x) & 1);
		g->turn[k].dropped = (uint8_t)drop;
		if (g->real == p->drops && rings + 1 >= p->rings)
			g->last = k;
		from = test_now_ns();
		kvr_store_release32(&g->value, k);
		if (drop)
			continue;
		rings++;
		if (p->halts && !(test_random(&x) % p->halts))
			raise(SIGSTOP);
		kvr_bell_ring(&g->bell);
		g->turn[k].held = test_now_ns() - from >= SIDE_GRACE_NS;
		if (g->last)
			return NULL;
	}
	return "too many drops found the sleeper awake";
}

/* Starts both, each a process. */
static inline void drop_start(struct drop_game *g, pid_t pids[2])
{
	struct kvr_waiter w = { 0 };
	const char *why;

	pids[0] = side_fork();
	if (!pids[0]) {
		g->sleeper = getpid();
		why = drop_sleep(g, &w);
		side_exit(&g->side[0], &w, why);
	}
	g->sleeper = pids[0];
	pids[1] = side_fork();
	if (!pids[1]) {
		why = drop_ring(g);
		side_exit(&g->side[1], &w, why);
	}
}

/*
 * Turn by turn: one lost wake for a drop that found the sleeper asleep, none for any other turn but
 * one whose ringer was held up. Returns the first turn that is wrong, 0 none.
 */
static inline uint32_t drop_wrong(const struct drop_game *g)
{
	for (uint32_t k = 1; k <= g->last; k++) {
		const struct drop_turn *t = &g->turn[k];
		const struct drop_seen *s = &g->seen[k];

		if (s->lost != (t->dropped && s->slept) && !(t->held && s->lost == 1))
			return k;
	}
	return 0;
}

#endif
