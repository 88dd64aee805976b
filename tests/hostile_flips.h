/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A leader and its ranks at work, while somebody flips bytes of their segment. A round is one
 * group; it ends when somebody finds the group over, or after a number of flips. What must hold:
 * nobody crashes, no call outlives its deadline (and the grace that the library adds to it),
 * everybody can be closed, and no rank is given a wrong byte: the pool is not flipped, so whatever
 * lies in the segment can at most hide a block.
 */
#ifndef TESTS_HOSTILE_FLIPS_H
#define TESTS_HOSTILE_FLIPS_H

#include <stdint.h>

struct flips_result {
	uint64_t flips, rounds, calls, good;
	uint64_t named;	   /* calls that ended with -EBADMSG */
	uint64_t timeouts; /* or with -ETIMEDOUT or -EAGAIN */
	uint64_t over;	   /* or because the group was over */
	uint64_t other;
	uint64_t late_ms; /* the longest that a call took beyond its deadline */
};

/* Rounds until there were so many flips; the seed alone decides where they hit. */
struct flips_result flips_run(uint64_t seed, uint64_t flips);

#endif
