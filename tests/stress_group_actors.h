/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the actors share. All of it runs in a child, which is one actor. */
#ifndef TESTS_STRESS_GROUP_ACTORS_H
#define TESTS_STRESS_GROUP_ACTORS_H

#include "stress_group_world.h"

#include "group.h"

extern struct world *world_;
extern struct actor *self_;

/* What each kind of actor does, from its start to its end. */
void actor_leader(void);
void actor_rank(void);
void actor_ticker(void);
void actor_ticked(void);

uint32_t actor_pick(uint32_t n);
/* Keeps the reason, and ends the process: the test reports it. */
void actor_wrong(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));
void actor_note(enum note_kind kind, uint32_t reign, uint64_t epoch, int rc, uint64_t begin_ns,
		uint64_t deadline_ns);
struct past *actor_past(uint32_t reign, int rc);
uint32_t actor_order(void);
int actor_over(void);
struct kvr_group_opts actor_options(void);
/* A deadline for its next call; 0: to poll. */
uint64_t actor_patience(void);
/* After a call that ran out of time: not before its deadline, and not long after it. */
void actor_late(const char *call, uint64_t deadline_ns, uint32_t stops);
/* The test may have asked for the sentence of such a call. */
void actor_answer(uint64_t begin_ns);

/* Counts descriptors and shared mappings; after the handle is closed both are what they were. */
struct residue {
	int fds, maps;
};
struct residue actor_residue(void);
void actor_no_residue(const struct residue *before, const char *after);

/* Whoever sleeps must be rung by whoever ends the epoch: a look before, and one after. */
struct bells {
	uint8_t *seg; /* a mapping of its own: it outlives the handle */
	uint64_t bytes;
	const struct kvr_bell *bell;
	const struct kvr_seg_takeover *takeover;
	uint32_t pid; /* of its leader */
	uint64_t epoch;
	uint32_t n, parked[KVR_MAX_RANKS + 1], seq[KVR_MAX_RANKS + 1]; /* n = 0: no segment */
};
/* At what has the group's name now. */
void bells_look(struct bells *b);
void bells_rung(struct bells *b, const char *after);
void bells_end(struct bells *b);

#endif
