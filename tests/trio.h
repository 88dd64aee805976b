/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A leader and two ranks as handles of one process, which tests drive step by step. The leader's
 * engine is a thread of its own, as ever.
 */
#ifndef TESTS_TRIO_H
#define TESTS_TRIO_H

#include "cluster.h"

#include "atomic.h"
#include "connector_priv.h"

#define RANKS 2u
#define N 3u /* keys of a request, unless a test says otherwise */

static struct cluster cl;
static struct kvr_connector *lead, *rank[RANKS];

static void ok(int err)
{
	if (err < 0)
		ck_abort_msg("%d: %s", err, kvr_explain());
}

static inline void must_say(const char *text)
{
	ck_assert_msg(strstr(kvr_explain(), text), "\"%s\" is not in: %s", text, kvr_explain());
}

/* blocks: of the pool; slots: of the store, 0 none. */
static inline void trio_open(uint32_t blocks, uint32_t slots)
{
	cluster_init(&cl, RANKS, 0, blocks, slots);
	ok(kvr_connector_lead(cl.name, &cl.opts, &lead));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_join(cl.name, r, NULL, SOON, &rank[r]));
}

static inline void trio_close(void)
{
	for (uint32_t r = 0; r < RANKS; r++)
		kvr_connector_close(rank[r]);
	kvr_connector_close(lead);
	kvr_group_remove(cl.name, NULL);
	cluster_exit(&cl);
}

static inline struct kvr_leader_page *leader_page(void)
{
	return kvr_group_leader_page(lead->group);
}

static inline struct kvr_rank_page *rank_page(uint32_t r)
{
	return kvr_group_own_page(rank[r]->group);
}

/* The begin of a store of keys[0..n), on all or on one. Returns the blocks to copy. */
static inline int begin_on(struct kvr_connector *c, uint64_t id, const struct kvr_key *keys,
			   uint32_t n, struct kvr_block *ret)
{
	struct kvr_request req = { .id = id };
	uint32_t covered;

	return kvr_connector_store_begin(c, &req, keys, n, SOON, ret, n, &covered);
}

static inline int copied_on(struct kvr_connector *c, uint64_t id, int status)
{
	struct kvr_request req = { .id = id };

	return kvr_connector_store_copied(c, &req, status);
}

/* A whole store, until it can be hit. Returns the blocks that were new. */
static inline int store_all(uint64_t id, const struct kvr_key *keys, uint32_t n)
{
	struct kvr_request req = { .id = id };
	struct kvr_block blocks[64];
	int first = begin_on(lead, id, keys, n, blocks);

	ok(first);
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert_int_eq(begin_on(rank[r], id, keys, n, blocks), first);
		for (int i = 0; i < first; i++)
			cluster_fill(rank[r], &keys[blocks[i].index], &blocks[i]);
		ok(copied_on(rank[r], id, 0));
	}
	ok(kvr_connector_wait_store(lead, &req, KVR_STAGE_HOST, SOON));
	return first;
}

/* The hit, the same on all. */
static inline uint32_t lookup_all(uint64_t id, const struct kvr_key *keys, uint32_t n)
{
	struct kvr_request req = { .id = id };
	struct kvr_hit hit, same;

	ok(kvr_connector_lookup(lead, &req, keys, n, SOON, &hit));
	for (uint32_t r = 0; r < RANKS; r++) {
		ok(kvr_connector_lookup(rank[r], &req, keys, n, SOON, &same));
		ck_assert_uint_eq(same.blocks, hit.blocks);
	}
	return hit.blocks;
}

/* Until the load's bytes are in the pool: then a wait of a rank's votes, however short it is. */
static inline void await_host(uint64_t id)
{
	struct kvr_request req = { .id = id };

	ok(kvr_engine_wait_op(lead->engine, &req, KVR_OP_LOAD, KVR_STAGE_HOST, SOON));
}

/* The next tick: what all are told, which must be the same. Returns the number. */
static inline int tick_all(struct kvr_completion *ret, uint32_t max)
{
	struct kvr_completion same[256];
	int n = kvr_connector_check_completed(lead, KVR_NEXT, 0, SOON, ret, max, NULL);

	ok(n);
	ck_assert_uint_le(max, 256);
	for (uint32_t r = 0; r < RANKS; r++) {
		int m = kvr_connector_check_completed(rank[r], KVR_NEXT, 0, SOON, same, max, NULL);

		ok(m);
		ck_assert_int_eq(m, n);
		ck_assert_mem_eq(same, ret, (size_t)n * sizeof *ret);
	}
	return n;
}

/* Ticks until the end of that operation was told; returns its record. */
static inline struct kvr_completion end_of(uint64_t id, enum kvr_kind kind)
{
	struct kvr_completion c[256];
	uint64_t deadline = SOON;

	for (;;) {
		int n = tick_all(c, 256);

		for (int i = 0; i < n; i++)
			if (c[i].request.id == id && c[i].kind == (uint32_t)kind &&
			    c[i].stage >= KVR_STAGE_END)
				return c[i];
		if (kvr_deadline(0) > deadline)
			ck_abort_msg("operation %llu did not end", (unsigned long long)id);
		usleep(1000);
	}
}

/* Waits for a word that another thread stores. */
static inline void await_word(const uint64_t *word, uint64_t value)
{
	uint64_t deadline = SOON;

	while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value) {
		if (kvr_deadline(0) > deadline)
			ck_abort_msg("the word is %llu, not %llu", (unsigned long long)*word,
				     (unsigned long long)value);
		usleep(200);
	}
}

#endif
