/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all processes of a round share, in memory that the test maps and they inherit:
 *
 *   actors   one an incarnation of a process: what it is to do, and what it is doing
 *   reigns   one an attempt to create the group: who, when, which epoch, how it is to end
 *   notes    what a call returned that ended something, with its sentence
 *   pasts    what a rank had when it left an epoch
 *
 * The test writes orders, the processes write what they saw, and after the round the test judges
 * it: stress_group_judge.c. Times are CLOCK_MONOTONIC in ns. A fact is written before it is done.
 */
#ifndef TESTS_STRESS_GROUP_WORLD_H
#define TESTS_STRESS_GROUP_WORLD_H

#include "harness.h"

#include "atomic.h"
#include "clock.h"
#include "kvring.h"
#include "point.h"
#include "util.h"

#define WORLD_RANKS 16u
#define WORLD_CHANNELS 4u	  /* KVR_CH_USER0 and on */
#define WORLD_IDLE KVR_CH_CONTROL /* nothing is ever published on this one */
#define WORLD_ACTORS 96u
#define WORLD_REIGNS 32u
#define WORLD_NOTES 768u
#define WORLD_PASTS 256u
#define NOBODY UINT32_MAX

#define WORLD_SLOW (KVR_TEST_TSAN ? 10u : KVR_TEST_ASAN ? 3u : 1u)
/* Bounds that tell "late" from "never": nothing else depends on time. */
#define HANG_MS (20000ull * WORLD_SLOW)
#define LATE_NS (8 * KVR_SEC * WORLD_SLOW)

enum role { ROLE_LEADER, ROLE_RANK, ROLE_TICKER, ROLE_TICKED };
enum order { ORDER_RUN, ORDER_CLOSE, ORDER_FAIL };
enum habit { HABIT_EAGER, HABIT_SLOW };

/* At the n-th passage of a point the process sends itself a signal. */
struct trap {
	uint32_t point; /* KVR_POINT_COUNT: none */
	uint32_t nth;
	int signal;
};

struct actor {
	/* by the test, before it starts */
	enum role role;
	uint32_t rank; /* NOBODY: a leader */
	uint64_t seed;
	struct trap trap;
	enum habit habit;
	uint32_t patience_ms; /* of its calls; 0: it polls */
	uint32_t attach_ms;   /* deadline of one try */
	uint32_t tries;	      /* to attach or to create; 0: until it works */
	uint32_t go;	      /* starts when world.go has reached this */
	uint32_t takeover;    /* leader: enum kvr_takeover */
	int blind;	      /* leader: looks at no liveness word by itself */
	int early;	      /* leader: publishes before all ranks are there */
	int restarts;	      /* leader: makes the next epoch itself */
	int lingers;	      /* rank: looks again when there is a newer epoch */
	int polls_waiting;    /* rank: looks at all channels while it waits for one */
	/* by the test, at any time */
	uint32_t order;
	uint32_t flood; /* rank: reads nothing */
	uint32_t quiet; /* leader: makes no calls */
	int fail_cause;
	uint32_t fail_blamed;
	uint32_t stops;		   /* rises before it is stopped and after it goes on */
	uint64_t ask_ns;	   /* it keeps the next time-out of a call begun after this */
	uint32_t ask_rank;	   /* leader: one that names this rank; NOBODY: any */
	uint64_t stop_ns, cont_ns; /* the last ones */
	uint64_t kill_ns;	   /* before kill() */
	uint32_t pid;
	/* by the actor */
	uint64_t trapped_ns; /* before the signal */
	uint32_t reign;	     /* index + 1 of what it is a member of; 0: none */
	uint32_t joins;
	uint32_t quieted;  /* leader: it makes none */
	uint64_t tried_ns; /* begin of the last call to attach or create that failed */
	uint64_t got;	   /* messages in this reign */
	uint64_t last[WORLD_CHANNELS];
	uint64_t answer_ns; /* the ask_ns that this answers */
	char answer[700];
	const char *doing; /* a literal: all processes are forks of one */
	uint64_t timeouts, calls;
	uint64_t unsure;  /* polls that said "not yet" after the end of the epoch */
	char wrong[1200]; /* why it gave up */
};

enum reign_state { REIGN_NONE, REIGN_BEGUN, REIGN_MADE, REIGN_REFUSED };

struct reign {
	uint32_t state; /* enum reign_state; written last */
	uint32_t actor, pid;
	uint64_t begin_ns, made_ns;
	uint64_t epoch;
	uint32_t joined;  /* ranks that attached */
	uint32_t failed;  /* an end that its leader declared or heard of: the state stays FAILED */
	uint64_t fail_ns; /* about to declare it over, with this cause */
	int fail_cause;
	uint32_t fail_blamed;
	uint64_t close_ns, closed_ns; /* about to close, and back */
	uint64_t published[WORLD_CHANNELS];
	uint64_t ticks;
};

enum note_kind { NOTE_CREATE, NOTE_ATTACH, NOTE_WAIT, NOTE_CHECK, NOTE_LEAD, NOTE_KINDS };

struct note {
	uint32_t done; /* written last */
	enum note_kind kind;
	uint32_t actor, reign; /* NOBODY: none */
	int rc;
	uint64_t epoch, begin_ns, end_ns, deadline_ns;
	char text[900];
};

/* What a rank had taken when its epoch ended, and what the leader had finished then. */
struct past {
	uint32_t done;
	uint32_t actor, reign, rank;
	int rc;
	uint64_t last[WORLD_CHANNELS], watermark[WORLD_CHANNELS];
	uint64_t ticks, tick_done, told, sum; /* of the connector */
};

struct world {
	uint64_t seed;
	char name[KVR_NAME_MAX];
	char dir[128]; /* "": the default one */
	uint32_t ranks, ring_bytes, channels;
	uint32_t over; /* whoever loses its epoch ends */
	uint32_t go;
	uint32_t reigns, notes, pasts; /* in use */
	struct reign reign[WORLD_REIGNS];
	struct actor actor[WORLD_ACTORS];
	struct note note[WORLD_NOTES];
	struct past past[WORLD_PASTS];
};

/* What the leader gives to the ranks as its configuration. */
struct world_config {
	uint64_t seed;
	uint64_t reign;
};

/* --- messages: all follow from seed, reign, channel and number --- */

struct letter {
	uint64_t set; /* of ranks */
	uint64_t id, bytes_seed;
	uint32_t tag, attempt, len;
};

static inline uint64_t world_mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static inline uint32_t world_pick(uint64_t *state, uint32_t n)
{
	*state += 0x9e3779b97f4a7c15u;
	return (uint32_t)((world_mix(*state) >> 32) % n);
}

static inline struct letter letter_of(const struct world *w, uint32_t reign, uint32_t channel,
				      uint64_t number, uint32_t max_len)
{
	uint64_t all = ~0ull >> (64 - w->ranks);
	uint64_t x = world_mix(world_mix(w->seed + reign * 977 + channel) + number);
	struct letter l = { .set = all };

	if (world_pick(&x, 4) == 0)
		l.set = world_mix(x) & all;
	if (!l.set)
		l.set = all;
	l.id = world_pick(&x, 1000);
	l.attempt = world_pick(&x, 3);
	l.tag = KVR_TAG_USER + world_pick(&x, 60);
	l.len = world_pick(&x, world_pick(&x, 4) ? max_len / 4 + 1 : max_len + 1);
	l.bytes_seed = x;
	return l;
}

static inline uint8_t letter_byte(const struct letter *l, uint32_t i)
{
	return (uint8_t)(l->bytes_seed >> (i % 7 * 8)) ^ (uint8_t)i;
}

/* The first number from `number` on (up or down by `step`) that goes to the rank; 0: none. */
static inline uint64_t letter_next(const struct world *w, uint32_t reign, uint32_t channel,
				   uint32_t rank, uint64_t number, int step)
{
	while (number && !(letter_of(w, reign, channel, number, 0).set >> rank & 1))
		number += (uint64_t)(int64_t)step;
	return number;
}

/* --- actors --- */

/* In a child: does what the actor is to do, and ends the process. 0 unless something was wrong. */
void actor_main(struct world *world, uint32_t index) __attribute__((noreturn));

#endif
