/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of failures share: whole steps of a leader and two ranks (trio.h), what each
 * process was told, and steps of processes that wait for each other.
 */
#ifndef TESTS_FAILURES_H
#define TESTS_FAILURES_H

#include "trio.h"

#define POOL 16u

static struct kvr_key keys[128];

/* Every slot of the pool can be had: nothing is pinned, copied or in quarantine. */
static inline void pool_is_free(void)
{
	static uint64_t id = 5000;
	struct kvr_key fresh[POOL];

	await_word(&leader_page()->quarantined_slots, 0);
	cluster_keys(++id, fresh, POOL);
	ck_assert_int_eq(store_all(id, fresh, POOL), POOL);
}

static inline uint32_t found(const struct kvr_key *k, uint32_t n)
{
	static uint64_t id = 7000;
	struct kvr_request req = { .id = ++id };
	uint32_t blocks = lookup_all(id, k, n);

	ok(kvr_connector_release(lead, &req));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_release(rank[r], &req));
	return blocks;
}

static inline void begin_all(uint64_t id, const struct kvr_key *k, uint32_t n, struct kvr_block *b)
{
	ck_assert_int_eq(begin_on(lead, id, k, n, b), (int)n);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(begin_on(rank[r], id, k, n, b), (int)n);
}

static inline void copied_all(uint64_t id)
{
	for (uint32_t r = 0; r < RANKS; r++)
		ok(copied_on(rank[r], id, 0));
}

static inline int abort_all(const struct kvr_request *req)
{
	int n = kvr_connector_abort(lead, req);

	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_abort(rank[r], req));
	return n;
}

/* It had its end: no tick tells it again. */
static inline void no_other_end(uint64_t id)
{
	struct kvr_completion c[256];

	for (uint32_t i = 0; i < 3; i++)
		for (int n = tick_all(c, 256); n-- > 0;)
			ck_assert(c[n].request.id != id || c[n].stage < KVR_STAGE_END);
}

static inline void ends(uint64_t id, enum kvr_kind kind, enum kvr_stage stage, int status)
{
	struct kvr_completion c = end_of(id, kind); /* which all ranks are told alike */

	ck_assert_uint_eq(c.stage, (uint32_t)stage);
	ck_assert_int_eq(c.status, status);
}

/* The ranks learn what the leader proposes, and vote. */
static inline void vote_all(const struct kvr_request *req, uint64_t value, int first, int second)
{
	const int status[RANKS] = { first, second };

	ok(kvr_connector_propose(lead, req, &value, sizeof value, SOON));
	for (uint32_t r = 0; r < RANKS; r++) {
		uint64_t got;

		ck_assert_int_eq(kvr_connector_proposal(rank[r], req, &got, sizeof got, SOON),
				 sizeof got);
		ck_assert_uint_eq(got, value);
		ok(kvr_connector_vote(rank[r], req, status[r]));
	}
}

static inline void all_hear(const struct kvr_request *req, int status)
{
	ck_assert_int_eq(kvr_connector_decided(lead, req, SOON), status);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_decided(rank[r], req, SOON), status);
}

/* What a process was told: how many completions, and a hash over them in order. */
struct told {
	uint64_t count, hash, tick;
};

static inline struct told *told_of(uint32_t r)
{
	return (void *)cl.area->word[CLUSTER_LEADER(r) ? CLUSTER_LEAD : r];
}

static inline void hear(struct told *t, const struct kvr_completion *c, int n, uint64_t tick)
{
	for (int i = 0; i < n; i++) {
		uint64_t word[4] = { c[i].request.id, c[i].kind << 16 | c[i].stage, c[i].tick,
				     (uint64_t)c[i].status };

		for (uint32_t k = 0; k < 4; k++)
			t->hash = (t->hash ^ word[k]) * 0x100000001b3ull;
	}
	t->count += (uint64_t)n;
	t->tick = tick;
}

/* In a child: asks, and keeps what it was told. Returns the number. */
static inline int ask(struct kvr_connector *c, uint32_t r, enum kvr_tick_mode mode, uint64_t tick)
{
	struct kvr_completion done[256];
	uint64_t at = 0;
	int n = kvr_connector_check_completed(c, mode, tick, SOON, done, 256, &at);

	MUST(n >= 0);
	hear(told_of(r), done, n, at);
	return n;
}

/* tick 0: they may have looked further. */
static inline void all_were_told(uint64_t count, uint64_t tick)
{
	for (uint32_t r = 0; r < cl.opts.ranks; r++) {
		ck_assert_uint_eq(told_of(r)->count, count);
		if (tick)
			ck_assert_uint_eq(told_of(r)->tick, tick);
		ck_assert_uint_eq(told_of(r)->hash, told_of(0)->hash);
	}
}

static inline void reach(uint32_t step)
{
	kvr_store_release32(&cl.area->step, step);
}

static inline void await_step(uint32_t step)
{
	uint64_t deadline = SOON;

	while (kvr_load_acquire32(&cl.area->step) < step) {
		MUST(kvr_deadline(0) < deadline);
		test_sleep_ms(1);
	}
}

/* Nobody joins a group that ended, and a leader that needs no rank may soon be done. */
static inline void await_members(void)
{
	uint64_t *count = &cl.area->word[CLUSTER_LEAD][63], deadline = SOON;

	__atomic_add_fetch(count, 1, __ATOMIC_ACQ_REL);
	while (kvr_load_acquire(count) <= cl.opts.ranks) {
		MUST(kvr_deadline(0) < deadline);
		test_sleep_ms(1);
	}
}

#endif
