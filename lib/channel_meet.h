/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Barriers and reductions: the words through which processes meet, and this process's part of them.
 *
 * A set of members has an entry (struct kvr_meet) in the page of each of them. Round k: a member
 * stores its values into value[k & 1] of its own entry, exchanges `round` for k and the number of
 * values, and looks at the others' entries until each says k or more.
 *
 *   U1 member: seq_cst exchange of its round    U2 member: seq_cst load of another's round
 *      The load sees the values, too. And both are seq_cst since each member exchanges its own word
 *      and then loads the others': whose exchange is the last of all sees every other one at its
 *      first look, and rings. Without that: two that arrive last miss each other, nobody rings, and
 *      sleepers wait for the back-stop.
 *   U3 member: seq_cst exchange of its entry's ranks    U4 member: seq_cst load of them
 *      It is how the entry is found. Relaxed: an entry that is taken for that of the same ranks
 *      without their leader. Acquire and release: that first look, after U1, misses an entry whose
 *      round it would have seen.
 *
 * Two slots of values are enough. A member enters round k + 1 when it has seen all others in k, and
 * each of those entered k when it had seen all in k - 1 and taken their values. So nobody is two
 * rounds ahead: to a member in round k the others are in k - 1 (not there yet), k, or k + 1 (they
 * have seen all in k). And slot (k + 1) & 1, which the fastest writes now, holds the values of
 * k - 1, which everybody has taken: a member's last load of them comes before its U1 of k, and that
 * was seen by U2 before the store. With one slot the fastest overwrites values of k that somebody
 * who is still asleep has not taken.
 *
 * One bell a set, that of its lowest rank: whoever arrives last wakes all sleepers with one system
 * call. All others that matter to them ring every bell (the end of an epoch), or are found by the
 * back-stop. The leader sleeps on its own, since only there it is told that a rank died.
 */
#ifndef KVR_CHANNEL_MEET_H
#define KVR_CHANNEL_MEET_H

#include "kvring/channel.h"
#include "layout.h"

/* One set that this process is a member of. Its own page it never reads: this is the truth. */
struct kvr_meet_set {
	uint64_t ranks;
	uint64_t round;		      /* the one it is in, or was in last; 0: none yet */
	uint64_t missing;	      /* ranks that it has not seen in this round */
	uint32_t with_leader;	      /* 1: the leader is a member, too */
	uint32_t leader_missing;      /* 1: it was not seen in this round */
	uint32_t n;		      /* values of this round; 0: a barrier */
	int open;		      /* 1: arrived in this round, and has not seen all */
	int64_t min[KVR_MEET_VALUES]; /* of those that it has seen, and its own */
	const struct kvr_meet *at[KVR_MAX_RANKS + 1]; /* others' entries, once found; the leader's
						       * is the last */
	int error;				      /* not 0: the set is out of use, */
	char why[640];				      /* for this reason */
};

struct kvr_meets {
	struct kvr_meet_set set[KVR_MEETS]; /* i has entry i of the own page */
	uint32_t count;
};

#endif
