/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each process of the connector's stress does. All derive the same requests from one seed and
 * from the connector's answers, which are the same on all; what must not matter (pauses, signals,
 * skipped ticks, the order of calls that do not depend on each other) each draws for itself.
 *
 * A process writes what it was told into its log, in shared memory, for the test to compare.
 */
#ifndef TESTS_CONNECTOR_WORK_H
#define TESTS_CONNECTOR_WORK_H

#include "cluster.h"

#define WORK_PROCS (CLUSTER_RANKS + 1)
#define WORK_LEADER CLUSTER_RANKS
#define WORK_KEYS 512u	   /* spaces x families x length, at most */
#define WORK_ANSWERS 1024u /* steps of one process */
#define WORK_TICKS 4096u

/* After the tick: how many completions this process had had, and a hash over them in order. */
struct work_tick {
	uint64_t tick, count, hash;
};

struct work_log {
	uint32_t answers, ticks;
	uint64_t answer[WORK_ANSWERS]; /* a sum over those of a step */
	struct work_tick tick[WORK_TICKS];
	uint64_t end_ns;    /* when it learned that the epoch is over */
	int end;	    /* 0: all done; -EOWNERDEAD and the like */
	char end_text[512]; /* kvr_explain() then */
	uint32_t step;	    /* for the report of a hang: */
	const char *doing;  /* a literal: all processes are forks of one */
	uint64_t interrupts, loaded, stored, refused, wrong;
};

struct work_shared {
	uint32_t opened; /* processes that have their connector */
	uint32_t reserved;
	uint8_t written[WORK_KEYS]; /* somebody was told that this key is on the store */
	struct work_log log[WORK_PROCS];
};

/* What all know of a round. The same in every incarnation of the group but for the last four. */
struct work {
	struct cluster *cl;
	struct work_shared *shared;
	uint32_t spaces, families, length; /* keys of a family: a prompt and its prefixes */
	uint32_t writers;		   /* ranks that write anything: the first ones */
	int keeps;     /* the store holds all keys: nothing is evicted from it */
	uint64_t seed; /* of this incarnation */
	uint32_t steps;
	int deadly;  /* somebody may be killed */
	int recover; /* at the start, keys that are `sure` must be found on the store */
	uint8_t sure[WORK_KEYS];
};

/* Opens the connector, does everything, ends the process. */
void work_run(const struct work *work, uint32_t rank) __attribute__((noreturn));

static inline uint64_t work_rng(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

#endif
