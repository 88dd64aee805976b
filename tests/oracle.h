/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store on simulated devices that lie, fail and lose power, driven from one seed and watched by
 * a model that knows which bytes each write had. What must hold:
 *
 *   wrong    every load that passes the header's check and all segment checksums has the bytes that
 *            were stored under that key; and nothing from before a reset, or of no write at all, is
 *            found
 *   missing  on devices that fail but do not lie, a write that ended is found and loads; after a
 *            power cut, one that a sync followed
 *   broken   each operation ends exactly once; slots in use + free + retired are all slots
 *
 * An oracle that does not notice when the rules are broken is none: so it can break them itself.
 */
#ifndef TESTS_ORACLE_H
#define TESTS_ORACLE_H

#include <stdint.h>

enum mutant {
	MUTANT_NONE,
	MUTANT_SKIP_SEGMENTS, /* as ranks that do not verify what they load */
	MUTANT_TAKE_BADMSG,   /* as an engine that serves what the store says is another block */
	MUTANT_LOSE_RECORDS,  /* as a store that does not write all records */
	MUTANT_OLD_BLOCKS     /* as a reset that is not durable */
};

struct oracle_verdict {
	uint64_t wrong, missing, broken; /* all 0, or something is wrong with the store */
	uint64_t stores, loads, hits, misses, errors, found, crashes, opens, resets, formats;
	int broken_line; /* of oracle.c, where the last of `broken` was noticed */
};

/* One world, from one seed: the same each time. */
struct oracle_verdict oracle_run(uint64_t seed, int lying, enum mutant mutant, int steps);
int oracle_bad(const struct oracle_verdict *v);
/* Adds up; prints a line. */
void oracle_add(struct oracle_verdict *sum, const struct oracle_verdict *v);
void oracle_print(const char *devices, uint64_t rounds, const struct oracle_verdict *v);

#endif
