/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks go from the store into the pool before anybody waits for them: within a budget, behind
 * demands, and without a part for any rank. */
#include "trio.h"

#include "engine_priv.h"

#define POOL 16u

static struct kvr_key keys[128];

/* keys[0..48) are stored; at most POOL of them are still in the pool. */
static void setup(void)
{
	trio_open(POOL, 64);
	cluster_keys(1, keys, 128);
	for (uint32_t i = 0; i < 48; i += 8) {
		store_all(1000 + i, keys + i, 8);
		ck_assert_uint_eq(end_of(1000 + i, KVR_KIND_STORE).stage, KVR_STAGE_WRITTEN);
	}
}

/* As if so many were running: with KVR_FETCH_IO none starts. */
static void fetches(uint32_t running)
{
	pthread_mutex_lock(&lead->engine->lock);
	lead->engine->fetch_running = running;
	pthread_mutex_unlock(&lead->engine->lock);
}

static struct kvr_hit hit_of(uint64_t id, const struct kvr_key *k, uint32_t n)
{
	struct kvr_request req = { .id = id };
	struct kvr_hit hit;

	ok(kvr_connector_lookup(lead, &req, k, n, SOON, &hit));
	for (uint32_t r = 0; r < RANKS; r++) {
		struct kvr_hit same;

		ok(kvr_connector_lookup(rank[r], &req, k, n, SOON, &same));
		ck_assert_mem_eq(&same, &hit, sizeof hit);
	}
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_release(rank[r], &req));
	ok(kvr_connector_release(lead, &req));
	return hit;
}

static int prefetch_all(uint64_t id, const struct kvr_key *k, uint32_t n, uint32_t budget)
{
	struct kvr_request req = { .id = id };
	int count = kvr_connector_prefetch(lead, &req, k, n, budget, SOON);

	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_prefetch(rank[r], &req, k, n, budget, SOON), count);
	return count;
}

static void await_done(uint64_t id, uint32_t blocks)
{
	struct kvr_completion c = end_of(id, KVR_KIND_PREFETCH);
	struct kvr_request req = { .id = id };
	uint32_t done;

	ck_assert_uint_eq(c.stage, KVR_STAGE_DONE);
	ck_assert_uint_eq(c.blocks, blocks);
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert_int_eq(kvr_connector_prefetch_status(rank[r], &req, &done), 1);
		ck_assert_uint_eq(done, blocks);
	}
	ck_assert_int_eq(kvr_connector_prefetch_status(lead, &req, &done), 1);
	ck_assert_uint_eq(done, blocks);
}

START_TEST(test_prefix_is_in_the_pool_afterwards)
{
	struct kvr_hit before = hit_of(1, keys, 8), after;

	ck_assert_uint_eq(before.blocks, 8);
	ck_assert_uint_eq(before.nvme, 8);
	ck_assert_int_eq(prefetch_all(2, keys, 8, 0), 8);
	await_done(2, 8);
	after = hit_of(3, keys, 8);
	ck_assert_uint_eq(after.host, 8);
	/* Nothing is left to do: no operation. */
	ck_assert_int_eq(prefetch_all(4, keys, 8, 0), 0);
	ck_assert_int_eq(kvr_connector_prefetch_status(rank[0], &(struct kvr_request){ .id = 4 },
						       &(uint32_t){ 0 }),
			 -ENOENT);
	/* And what was brought is what was stored. */
	ck_assert_uint_eq(lookup_all(5, keys, 8), 8);
	ok(kvr_connector_load_begin(lead, &(struct kvr_request){ .id = 5 }, 8, SOON));
	for (uint32_t r = 0; r < RANKS; r++) {
		struct kvr_request req = { .id = 5 };
		struct kvr_block b[8];

		ok(kvr_connector_load_begin(rank[r], &req, 8, SOON));
		await_host(5);
		ck_assert_int_eq(kvr_connector_load_wait(rank[r], &req, keys,
							 r ? SOON : kvr_deadline(1), b, 8),
				 r ? 8 : -ETIMEDOUT);
		for (uint32_t i = 0; r && i < 8; i++)
			ck_assert_uint_eq(cluster_wrong(rank[r], &keys[i], &b[i]), 0);
	}
}
END_TEST

START_TEST(test_budget_and_pool_bound_it)
{
	ck_assert_int_eq(prefetch_all(1, keys, 8, 3), 3);
	await_done(1, 3);
	ck_assert_uint_eq(hit_of(2, keys, 8).host, 3);
	/* What is there already costs no budget. */
	ck_assert_int_eq(prefetch_all(3, keys, 8, 2), 2);
	await_done(3, 2);
	ck_assert_uint_eq(hit_of(4, keys, 8).host, 5);
	/* Not more than the pool has room for, and not at the cost of its own beginning. */
	ck_assert_int_eq(prefetch_all(5, keys, 48, 0), (int)POOL - 5);
	await_done(5, POOL - 5);
	ck_assert_uint_eq(hit_of(6, keys, POOL).host, POOL);
	/* Of a prefix that is not stored, what is stored of it. */
	ck_assert_int_eq(prefetch_all(7, keys + 44, 20, 0), 4);
	await_done(7, 4);
	ck_assert_int_eq(prefetch_all(8, keys + 100, 8, 0), 0);
}
END_TEST

START_TEST(test_pinned_pool_is_not_waited_for)
{
	struct kvr_request req = { .id = 1 };
	struct kvr_hit hit;

	ok(kvr_connector_lookup(lead, &req, keys + 32, 16, SOON, &hit));
	ck_assert_uint_eq(hit.host, 16);
	ck_assert_int_eq(kvr_connector_prefetch(lead, &(struct kvr_request){ .id = 2 }, keys, 8, 0,
						SOON),
			 0);
	ok(kvr_connector_release(lead, &req));
	ck_assert_int_eq(kvr_connector_prefetch(lead, &(struct kvr_request){ .id = 3 }, keys, 8, 0,
						SOON),
			 8);
}
END_TEST

/* With the engine's lock held nothing is submitted: so it can be cancelled before it starts. */
START_TEST(test_cancel_takes_back_what_did_not_start)
{
	struct kvr_request req = { .id = 1 };
	struct kvr_completion c;
	uint32_t done = 99;

	fetches(KVR_FETCH_IO);
	ck_assert_int_eq(prefetch_all(1, keys, 8, 0), 8);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_prefetch_status(rank[r], &req, &done), 0);
	ck_assert_uint_eq(done, 0);
	ck_assert_int_eq(kvr_connector_prefetch(lead, &req, keys, 8, 0, SOON), -EEXIST);
	ok(kvr_connector_prefetch_cancel(rank[0], &req));
	ck_assert_int_eq(kvr_connector_prefetch_status(lead, &req, &done), 0);
	ok(kvr_connector_prefetch_cancel(lead, &req));
	ck_assert_int_eq(kvr_connector_prefetch_status(lead, &req, &done), -ECANCELED);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_prefetch_status(rank[r], &req, &done), -ECANCELED);
	c = end_of(1, KVR_KIND_PREFETCH);
	ck_assert_uint_eq(c.stage, KVR_STAGE_CANCELLED);
	fetches(0);
	ck_assert_uint_eq(hit_of(2, keys, 8).nvme, 8);
	ck_assert_int_eq(prefetch_all(3, keys, 8, 0), 8);
	await_done(3, 8);
}
END_TEST

/* Somebody comes to wait for what is only queued for a prefetch: it is read at once. */
START_TEST(test_demand_overtakes_a_prefetch)
{
	struct kvr_request req = { .id = 2 };

	fetches(KVR_FETCH_IO);
	ck_assert_int_eq(prefetch_all(1, keys, 8, 0), 8);
	ck_assert_uint_eq(lookup_all(2, keys, 4), 4);
	ck_assert_int_eq(kvr_connector_load_begin(lead, &req, 4, SOON), 4);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_load_begin(rank[r], &req, 4, SOON), 4);
	await_host(2);
	ok(kvr_connector_load_wait(rank[0], &req, keys, kvr_deadline(5), (struct kvr_block[4]){ 0 },
				   4) == -ETIMEDOUT
		   ? 0
		   : -1);
	ck_assert_int_eq(kvr_connector_load_wait(rank[1], &req, keys, SOON,
						 (struct kvr_block[4]){ 0 }, 4),
			 4);
	fetches(0);
	kvr_engine_wake(lead->engine);
	await_done(1, 8);
}
END_TEST

START_TEST(test_abort_ends_it_and_shutdown_does_not_wait)
{
	struct kvr_request req = { .id = 1 };

	fetches(KVR_FETCH_IO);
	ck_assert_int_eq(prefetch_all(1, keys, 8, 0), 8);
	ck_assert_int_eq(kvr_connector_abort(lead, &req), 1);
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_abort(rank[r], &req));
	ck_assert_uint_eq(end_of(1, KVR_KIND_PREFETCH).stage, KVR_STAGE_CANCELLED);
	ck_assert_int_eq(prefetch_all(2, keys, 8, 0), 8);
	ok(kvr_connector_shutdown(lead, SOON));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_shutdown(rank[r], SOON));
	fetches(0);
}
END_TEST

START_TEST(test_refused_prefetch_is_the_same_on_all)
{
	struct kvr_request req = { .id = 1 };

	ok(kvr_connector_refuse(lead, KVR_KIND_PREFETCH, &req, -ENOSYS, SOON));
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_prefetch(rank[r], &req, keys, 8, 0, SOON), -ENOSYS);
	ck_assert_int_eq(prefetch_all(1, keys, 8, 0), 8);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("connector_prefetch");
	TCase *t = tcase_create("prefetch");

	tcase_add_checked_fixture(t, setup, trio_close);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_prefix_is_in_the_pool_afterwards);
	tcase_add_test(t, test_budget_and_pool_bound_it);
	tcase_add_test(t, test_pinned_pool_is_not_waited_for);
	tcase_add_test(t, test_cancel_takes_back_what_did_not_start);
	tcase_add_test(t, test_demand_overtakes_a_prefetch);
	tcase_add_test(t, test_abort_ends_it_and_shutdown_does_not_wait);
	tcase_add_test(t, test_refused_prefetch_is_the_same_on_all);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
