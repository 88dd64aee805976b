/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The weights changed: when a reset is over, no block from before it is ever found again, not by a
 * lookup, not after a restart; and when it is refused, everything is as before.
 */
#include "trio.h"

#include "engine_priv.h"

static struct kvr_key keys[128];
static const struct kvr_request reset = { .id = 900 };

static void setup(void)
{
	trio_open(16, 64);
	cluster_keys(1, keys, 128);
	store_all(1, keys, 8);
	ck_assert_uint_eq(end_of(1, KVR_KIND_STORE).stage, KVR_STAGE_WRITTEN);
}

static void reset_called(uint64_t deadline)
{
	ok(kvr_connector_reset(lead, &reset, NULL, deadline));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_reset(rank[r], &reset, NULL, SOON));
}

static void all_hear(int status)
{
	ck_assert_int_eq(kvr_connector_reset_wait(lead, &reset, SOON), status);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_reset_wait(rank[r], &reset, SOON), status);
}

static uint32_t found(const struct kvr_key *k, uint32_t n)
{
	static uint64_t id = 5000;
	struct kvr_request req = { .id = ++id };
	uint32_t blocks = lookup_all(id, k, n);

	ok(kvr_connector_release(lead, &req));
	return blocks;
}

START_TEST(test_nothing_from_before_is_found)
{
	struct kvr_stats s;

	ck_assert_uint_eq(found(keys, 8), 8);
	reset_called(SOON);
	all_hear(0);
	ck_assert_uint_eq(end_of(reset.id, KVR_KIND_RESET).stage, KVR_STAGE_DONE);
	ck_assert_uint_eq(found(keys, 8), 0);
	ok(kvr_connector_stats(lead, &s));
	ck_assert_uint_eq(s.pool_free, s.pool_slots);
	ck_assert_uint_eq(s.store_used, 0);
	/* The new ones are, also the same keys. */
	ck_assert_int_eq(store_all(2, keys + 4, 8), 8);
	end_of(2, KVR_KIND_STORE);
	ck_assert_uint_eq(found(keys, 8), 0);
	ck_assert_uint_eq(found(keys + 4, 8), 8);
	/* After a restart, too. */
	for (uint32_t r = 0; r < RANKS; r++)
		kvr_connector_close(rank[r]);
	kvr_connector_close(lead);
	lead = NULL;
	ok(kvr_connector_lead(cl.name, &cl.opts, &lead));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_join(cl.name, r, NULL, SOON, &rank[r]));
	ck_assert_uint_eq(found(keys, 4), 0);
	ck_assert_uint_eq(found(keys + 4, 8), 8);
}
END_TEST

START_TEST(test_rank_that_still_has_blocks_is_against_it)
{
	struct kvr_request req = { .id = 3 };
	struct kvr_block b[4];
	uint32_t covered;

	ck_assert_int_eq(begin_on(lead, 3, keys + 20, 4, b), 4);
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_store_begin(rank[r], &req, keys + 20, 4, SOON, b, 4, &covered));
	ok(copied_on(rank[0], 3, 0));
	ok(kvr_connector_reset(lead, &reset, NULL, SOON));
	ok(kvr_connector_reset(rank[0], &reset, NULL, SOON));
	ck_assert_int_eq(kvr_connector_reset(rank[1], &reset, NULL, SOON), -EBUSY);
	must_say("still has the blocks of the store of request 3/0");
	all_hear(-EBUSY);
	ck_assert_uint_eq(end_of(reset.id, KVR_KIND_RESET).stage, KVR_STAGE_CANCELLED);
	/* Everything is as before, and the store goes on. */
	ok(copied_on(rank[1], 3, 0));
	ck_assert_uint_eq(end_of(3, KVR_KIND_STORE).stage, KVR_STAGE_WRITTEN);
	ck_assert_uint_eq(found(keys, 8), 8);
}
END_TEST

/* Nothing is begun while it is under way; what was in flight is waited for, or the deadline. */
START_TEST(test_nothing_is_begun_meanwhile)
{
	struct kvr_request req = { .id = 4 };
	struct kvr_block b[4];
	struct kvr_hit hit;

	ok(kvr_connector_reset(lead, &reset, NULL, SOON));
	ck_assert_int_eq(begin_on(lead, 4, keys + 20, 4, b), -EBUSY);
	must_say("the reset of request 900/0 is under way");
	ck_assert_int_eq(kvr_connector_lookup(lead, &req, keys, 4, SOON, &hit), -EBUSY);
	ck_assert_int_eq(kvr_connector_prefetch(lead, &req, keys, 4, 0, SOON), -EBUSY);
	ck_assert_int_eq(kvr_connector_load_begin(lead, &req, 4, SOON), -EBUSY);
	ck_assert_int_eq(kvr_connector_reset(lead, &(struct kvr_request){ .id = 901 }, NULL, SOON),
			 -EBUSY);
	for (uint32_t r = 0; r < RANKS; r++) { /* the ranks' calls get the same answer */
		ck_assert_int_eq(begin_on(rank[r], 4, keys + 20, 4, b), -EBUSY);
		ok(kvr_connector_reset(rank[r], &reset, NULL, SOON));
		ck_assert_int_eq(kvr_connector_lookup(rank[r], &req, keys, 4, SOON, &hit), -EBUSY);
	}
	all_hear(0);
	ck_assert_int_eq(store_all(5, keys, 4), 4);
}
END_TEST

START_TEST(test_deadline_leaves_everything_as_it_was)
{
	ok(kvr_connector_reset(lead, &reset, NULL, kvr_deadline(60)));
	ok(kvr_connector_reset(rank[0], &reset, NULL, SOON));
	ck_assert_int_eq(kvr_connector_reset_wait(rank[0], &reset, SOON), -ETIMEDOUT);
	ck_assert_int_eq(kvr_connector_reset_wait(lead, &reset, SOON), -ETIMEDOUT);
	ck_assert_uint_eq(end_of(reset.id, KVR_KIND_RESET).stage, KVR_STAGE_CANCELLED);
	ck_assert_int_eq(kvr_connector_reset(rank[1], &reset, NULL, SOON), -ETIMEDOUT);
	ck_assert_uint_eq(found(keys, 8), 8);
	ck_assert_int_eq(store_all(6, keys + 30, 4), 4);
}
END_TEST

/* A slot that a rank may still copy: the proof of quiescence lacks. */
START_TEST(test_quarantine_holds_it_up)
{
	struct kvr_block b[3];

	ck_assert_int_eq(begin_on(lead, 3, keys + 20, 3, b), 3);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(begin_on(rank[r], 3, keys + 20, 3, b), 3);
	ck_assert_int_eq(kvr_connector_abort(lead, &(struct kvr_request){ .id = 3 }), 1);
	ok(copied_on(rank[0], 3, 0));
	ok(kvr_connector_reset(lead, &reset, NULL, kvr_deadline(_i ? 20000 : 80)));
	ok(kvr_connector_reset(rank[0], &reset, NULL, SOON));
	if (_i) {
		ok(copied_on(rank[1], 3, 0));
		ok(kvr_connector_reset(rank[1], &reset, NULL, SOON));
		all_hear(0);
		ck_assert_uint_eq(found(keys, 8), 0);
	} else {
		ck_assert_int_eq(kvr_connector_reset_wait(rank[0], &reset, SOON), -ETIMEDOUT);
		ck_assert_uint_eq(found(keys, 8), 8);
	}
}
END_TEST

/* Answers that a rank did not take, from before: they count for nothing. */
START_TEST(test_answers_from_before_are_dropped)
{
	struct kvr_request a = { .id = 21 }, b = { .id = 22 };
	struct kvr_block blocks[4];
	struct kvr_hit hit;

	ok(kvr_connector_lookup(lead, &a, keys, 8, SOON, &hit));
	ck_assert_uint_eq(hit.blocks, 8);
	ck_assert_int_eq(begin_on(lead, 22, keys + 20, 4, blocks), 4);
	for (uint32_t r = 0; r < RANKS; r++) /* of both: they skipped these requests */
		ok(kvr_connector_abort(rank[r], &b));
	ck_assert_uint_eq(end_of(22, KVR_KIND_STORE).stage, KVR_STAGE_FAILED);
	reset_called(SOON);
	all_hear(0);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_lookup(rank[r], &a, keys, 8, kvr_deadline(10), &hit),
				 -ETIMEDOUT);
	ck_assert_int_eq(kvr_connector_load_begin(lead, &a, 8, SOON), -ENOENT); /* nor its pin */
}
END_TEST

START_TEST(test_without_a_store)
{
	trio_close();
	trio_open(16, 0);
	store_all(1, keys, 8);
	ck_assert_uint_eq(found(keys, 8), 8);
	reset_called(SOON);
	all_hear(0);
	ck_assert_uint_eq(found(keys, 8), 0);
	ck_assert_int_eq(store_all(2, keys, 16), 16);
	ck_assert_uint_eq(found(keys, 16), 16);
}
END_TEST

/* The store is for the new revision from then on: a process with the old weights is refused. */
START_TEST(test_new_revision)
{
	struct kvr_model model = { .name = "m", .revision = "new" };

	ok(kvr_connector_reset(lead, &reset, &model, SOON));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_reset(rank[r], &reset, NULL, SOON));
	all_hear(0);
	for (uint32_t r = 0; r < RANKS; r++) {
		kvr_connector_close(rank[r]);
		rank[r] = NULL;
	}
	kvr_connector_close(lead);
	lead = NULL;
	ck_assert_int_eq(kvr_connector_lead(cl.name, &cl.opts, &lead), -EPROTO);
	must_say("model.");
	cl.opts.model = &model;
	ok(kvr_connector_lead(cl.name, &cl.opts, &lead));
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("connector_reset");
	TCase *t = tcase_create("reset");

	tcase_add_checked_fixture(t, setup, trio_close);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_nothing_from_before_is_found);
	tcase_add_test(t, test_rank_that_still_has_blocks_is_against_it);
	tcase_add_test(t, test_nothing_is_begun_meanwhile);
	tcase_add_test(t, test_deadline_leaves_everything_as_it_was);
	tcase_add_loop_test(t, test_quarantine_holds_it_up, 0, 2);
	tcase_add_test(t, test_answers_from_before_are_dropped);
	tcase_add_test(t, test_without_a_store);
	tcase_add_test(t, test_new_revision);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
