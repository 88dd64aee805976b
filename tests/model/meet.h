/* SPDX-License-Identifier: Apache-2.0 */
/* Between meet.cpp, which is relacy's, and meet_world.c, which sees the library's headers. */
#ifndef MEET_H
#define MEET_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MEMBERS = 3, LEADER = 2, ENTRIES = 2, VALUES = 2 };

/* What a word is to the others. */
enum word { PRIVATE, SHARED, VALUE };

/* A group of two ranks and a leader, or of three ranks; all words are 0. */
void world_reset(unsigned ranks);
/* What is at this address, and which one of SHARED or of VALUE words it is. */
enum word world_word(const void *p, unsigned *ret_index);
enum { SHARED_WORDS = MEMBERS * ENTRIES * 3 + MEMBERS * 2 };
enum { VALUE_WORDS = MEMBERS * ENTRIES * 2 * VALUES };
/* One call: kvr_channels_barrier() when n is 0, else kvr_channels_min_reduce(). */
int world_meet(unsigned who, uint64_t ranks, int with_leader, const int64_t *mine, unsigned n,
	       int64_t *ret_min, int poll);

#ifdef __cplusplus
}
#endif
#endif
