/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One round: its processes, and what the test does to them. Whatever is awaited here is awaited for
 * HANG_MS at most; a round that goes wrong is reported, its processes are ended, and the next one
 * begins: round_bad() does not return.
 */
#ifndef TESTS_STRESS_GROUP_ROUND_H
#define TESTS_STRESS_GROUP_ROUND_H

#include "stress_group_world.h"

#include <setjmp.h>

#include "shm.h"

enum trouble { TROUBLE_HANG, TROUBLE_CAUSE, TROUBLE_LEFT, TROUBLE_BROKEN, TROUBLES };

/* Sums over all rounds. */
struct tally {
	uint64_t rounds, failed, kills, stops, restarts, takeovers, trouble[TROUBLES];
	uint64_t killed_at[KVR_POINT_COUNT], stopped_at[KVR_POINT_COUNT];
	uint64_t messages, timeouts, ends, unsure;
	uint64_t longest_ns, longest_seed; /* from a kill to the last survivor's end */
};
extern struct tally tally;

struct process {
	pid_t pid; /* 0: never started */
	int running, stopped, status;
};

struct round {
	uint64_t seed, rng;
	const char *deed; /* for reports */
	struct world *w;
	struct process process[WORLD_ACTORS];
	uint32_t actors;	  /* in use */
	uint32_t leader;	  /* actor, NOBODY */
	uint32_t reign;		  /* the last one that was awaited, NOBODY */
	uint32_t fenced;	  /* a leader that lives while another one takes over, NOBODY */
	uint64_t removed_ns;	  /* kvr_group_remove() took the group's files */
	uint32_t at[WORLD_RANKS]; /* actor, NOBODY */
	uint32_t away;		  /* set of ranks that are not there on purpose */
	int ticks;		  /* its processes use the connector */
	int starve;		  /* stops a process now and then */
	uint32_t starved;	  /* actor, NOBODY */
	uint64_t starve_ns;	  /* when to stop or continue the next */
	int fds;
	uint32_t troubles;
	jmp_buf out;
};

/* Reports and goes on with the round. */
void round_trouble(struct round *r, enum trouble kind, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Reports and ends the round. */
void round_bad(struct round *r, enum trouble kind, const char *fmt, ...)
	__attribute__((noreturn, format(printf, 3, 4)));
/* Like that, with what every process is doing. */
void round_hang(struct round *r, const char *what) __attribute__((noreturn));

static inline uint32_t pick(struct round *r, uint32_t n)
{
	return world_pick(&r->rng, n);
}

void round_begin(struct round *r, uint64_t seed, int default_dir);
/* Ends the group in good order, judges the round, and looks for what is left. */
void round_finish(struct round *r);
/* Ends whoever still runs and removes all files; after a failure, too. */
void round_clean(struct round *r);

/* Looks after the processes: reaps, notices those that failed, starves. Called by all that wait. */
void round_pump(struct round *r);

#define ROUND_AWAIT(r, condition, what)                          \
	do {                                                     \
		uint64_t await_end_ = test_deadline_ms(HANG_MS); \
                                                                 \
		for (uint32_t await_n_ = 0;; await_n_++) {       \
			round_pump(r);                           \
			if (condition)                           \
				break;                           \
			if (kvr_now() > await_end_)              \
				round_hang(r, what);             \
			usleep(await_n_ < 20 ? 200 : 1000);      \
		}                                                \
	} while (0)

/* --- processes --- */

/* A new actor with habits of its own; start it with cast_start(). */
struct actor *cast_leader(struct round *r);
struct actor *cast_rank(struct round *r, uint32_t rank);
void cast_start(struct round *r, struct actor *a);
uint32_t cast_index(const struct round *r, const struct actor *a);
struct process *cast_process(struct round *r, const struct actor *a);
void cast_kill(struct round *r, struct actor *a);
/* Returns when it is stopped: by us, or (trapped) by itself. */
void cast_stop(struct round *r, struct actor *a);
void cast_await_trap(struct round *r, struct actor *a);
void cast_continue(struct round *r, struct actor *a);
void cast_await_end(struct round *r, struct actor *a);
struct actor *leader_of(struct round *r);
struct actor *rank_of(struct round *r, uint32_t rank);
int cast_runs(const struct round *r, uint32_t index);
/* A running rank that is a member, or NULL. */
struct actor *cast_some_rank(struct round *r);

/* --- steps that many deeds share --- */

/* Leader and all ranks, in any order; returns when they are members and messages go through. */
void group_open(struct round *r);
/* The same without waiting. */
void group_start(struct round *r, struct actor *leader);
void group_start_ranks(struct round *r);
/* A new leader, with what `takeover` says. Returns the actor. */
struct actor *group_new_leader(struct round *r, uint32_t takeover);
/* The reign of this leader, once it is made. */
uint32_t group_await_reign(struct round *r, struct actor *leader);
/* All ranks but those that are away have left this reign. */
void group_await_ended(struct round *r, uint32_t reign);
void group_await_joined(struct round *r, uint32_t reign);
/* Every rank that is there gets messages. */
void group_await_traffic(struct round *r);
/*
 * After the end of an epoch: survivors end, a new leader comes (or the old one makes a new epoch),
 * whoever is missing starts again, messages go through.
 */
void group_recover(struct round *r);
/* The sentence of the next time-out of a call begun from now on; `rank`: that names this rank. */
void group_ask(struct round *r, struct actor *a, uint32_t rank);
/* Waits for it, and requires these words of it. */
void group_answered(struct round *r, struct actor *a, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* --- stress_group_judge.c --- */

/* When the process died, 0: it did not. */
uint64_t death_ns(const struct round *r, uint32_t actor);
void judge_round(struct round *r);
void judge_files(struct round *r);
int files_there(struct round *r, enum kvr_shm_kind kind);

/* --- what is done to a group: stress_group_points.c, _deeds.c, _takeovers.c --- */

void deed_kill_at(struct round *r, uint32_t point);
void deed_stop_at(struct round *r, uint32_t point);
void deed_take_from(struct round *r, uint32_t takeover);
void deed_oversleep(struct round *r, uint32_t unused);

enum victims { VICTIM_LEADER, VICTIM_RANK, VICTIM_RANKS, VICTIM_LEADER_AND_RANKS, VICTIM_ALL };
void deed_kill(struct round *r, uint32_t victims);
enum restart { RESTART_DEAD, RESTART_SEEN_DEAD, RESTART_LEFT, RESTART_ALIVE };
void deed_restart(struct round *r, uint32_t kind);
enum declared { DECLARED_RANK, DECLARED_NOBODY, DECLARED_RESTARTS, DECLARED_FLOOD };
void deed_fail(struct round *r, uint32_t kind);
enum closing { CLOSING_TRAFFIC, CLOSING_ATTACH, CLOSING_FLOOD };
void deed_close(struct round *r, uint32_t kind);
void deed_leave(struct round *r, uint32_t percent);
void deed_flood(struct round *r, uint32_t percent);
void deed_starve(struct round *r, uint32_t unused);

enum takeover {
	TAKEOVER_ONE,
	TAKEOVER_RIVALS,
	TAKEOVER_RIVAL_DIES,
	TAKEOVER_CHAIN,
	TAKEOVER_REMOVED,
	TAKEOVER_REFUSED,
	TAKEOVER_REFUSED_STOPPED,
	TAKEOVER_KILLS,
	TAKEOVER_KILLS_STOPPED,
	TAKEOVER_FENCES,
	TAKEOVER_FENCES_STOPPED,
	TAKEOVER_FENCE_DIES,
	TAKEOVER_FREE_FOR_ALL
};
void deed_takeover(struct round *r, uint32_t kind);

/* Messages go through while processes starve and ranks read nothing; then some time passes. */
void group_mood(struct round *r);
/* A leader that is refused: its one call must return this. Whoever leads stays it. */
void group_refused(struct round *r, uint32_t takeover, int rc);
/* Another process for that rank, with one try to attach, which must return this. */
void rank_refused(struct round *r, uint32_t rank, int rc);

#endif
