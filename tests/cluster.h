/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A leader and its ranks as real processes, for tests of the connector. Each child runs the
 * function it is given with an open connector and leaves with _exit(): 0, or 1 after a sentence on
 * stderr. What a child wants to tell the test goes into the shared area.
 */
#ifndef TESTS_CLUSTER_H
#define TESTS_CLUSTER_H

#include "harness.h"
#include "kvring.h"

#define CLUSTER_RANKS 8
#define CLUSTER_LEAD CLUSTER_RANKS /* index of the leader's words */

struct cluster_area {
	uint64_t word[CLUSTER_RANKS + 1][64]; /* [CLUSTER_RANKS]: the leader's */
	uint32_t step;			      /* a meeting point of the test's own */
};

struct cluster {
	char name[KVR_NAME_MAX];
	char dir[256]; /* of the store; "" none */
	const char *path;
	struct kvr_shape shape;
	struct kvr_connector_opts opts;
	struct cluster_area *area;
	pid_t leader, rank[CLUSTER_RANKS];
};

typedef void (*cluster_fn)(struct cluster *cl, struct kvr_connector *c, uint32_t rank);

/* blocks: of the pool; slots: of the store, 0 none. layers 2, 64 KiB a block. */
void cluster_init(struct cluster *cl, uint32_t ranks, int replicated, uint32_t blocks,
		  uint32_t slots);
/* Forks; returns at once. A NULL function starts nobody. */
void cluster_start(struct cluster *cl, cluster_fn leader, cluster_fn rank);
/* Reaps all; every one must have ended with 0, except those whose bit is set in `killed` (bit
 * CLUSTER_RANKS: the leader). */
void cluster_join(struct cluster *cl, uint32_t killed, uint64_t timeout_ms);
void cluster_exit(struct cluster *cl);

struct kvr_key cluster_key(uint64_t family, uint32_t index);
struct kvr_request cluster_request(uint64_t id, uint32_t attempt);
/* The byte that belongs at `offset` of the block with this key. */
uint8_t cluster_byte(const struct kvr_key *key, uint64_t offset);
void cluster_fill(struct kvr_connector *c, const struct kvr_key *key, struct kvr_block *block);
/* Number of wrong bytes among the spans this rank reads. */
uint64_t cluster_wrong(struct kvr_connector *c, const struct kvr_key *key,
		       const struct kvr_block *block);
/* Both sides of a whole store of keys[0..n): until HOST. Parts use attempts from `attempt` on. */
void cluster_store(struct kvr_connector *c, uint64_t id, uint32_t attempt,
		   const struct kvr_key *keys, uint32_t n, uint32_t rank);
/* Both sides of lookup, load, compare, done, release, in as many parts as it takes (attempts from
 * `attempt` on). Returns the number of good blocks. */
uint32_t cluster_load(struct kvr_connector *c, uint64_t id, uint32_t attempt,
		      const struct kvr_key *keys, uint32_t n, uint32_t rank);
/* keys[0..n) of a family; the same function in leader and ranks, all of which end well. */
void cluster_keys(uint64_t family, struct kvr_key *ret_keys, uint32_t n);
void cluster_run(struct cluster *cl, cluster_fn fn);
void cluster_shutdown(struct kvr_connector *c);

#define CLUSTER_LEADER(rank) ((rank) == UINT32_MAX)
#define SOON test_deadline_ms(20000)

/* In a child: a condition that must hold. */
#define MUST(cond)                                                                              \
	do {                                                                                    \
		if (!(cond)) {                                                                  \
			fprintf(stderr, "%s:%d: pid %d: %s; explain: %s\n", __FILE__, __LINE__, \
				(int)getpid(), #cond, kvr_explain());                           \
			_exit(1);                                                               \
		}                                                                               \
	} while (0)

#endif
