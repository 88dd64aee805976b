/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a request at any moment: its operations end at once and alike for all, and no slot
 * that a rank may still copy is used again before that rank said that it is done. And what comes
 * late, twice, or about nothing: counted, not applied.
 */
#include "trio.h"

static struct kvr_key keys[64];

static void setup(void)
{
	trio_open(16, 0);
	cluster_keys(1, keys, 64);
}

static int abort_on(struct kvr_connector *c, uint64_t id)
{
	struct kvr_request req = { .id = id };

	return kvr_connector_abort(c, &req);
}

static int abort_all(uint64_t id)
{
	int n = abort_on(lead, id);

	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(abort_on(rank[r], id), 0);
	return n;
}

static void quarantined(uint64_t ops, uint64_t slots)
{
	await_word(&leader_page()->quarantined_ops, ops);
	await_word(&leader_page()->quarantined_slots, slots);
}

static void cancelled(uint64_t id, enum kvr_kind kind)
{
	struct kvr_completion c = end_of(id, kind);

	ck_assert_uint_eq(c.stage, KVR_STAGE_CANCELLED);
	ck_assert_int_eq(c.status, -ECANCELED);
}

/* --- stores ----------------------------------------------------------------------------------- */

START_TEST(test_abort_while_ranks_copy_ends_the_store_and_keeps_its_slots)
{
	struct kvr_block mine[N], theirs[N], other[16];
	uint32_t covered, used[N];
	struct kvr_request big = { .id = 2 };
	int n;

	ok(begin_on(lead, 1, keys, N, mine));
	ok(begin_on(rank[0], 1, keys, N, mine));
	ok(begin_on(rank[1], 1, keys, N, theirs));
	for (uint32_t i = 0; i < N; i++)
		used[i] = mine[i].slot;
	ck_assert_int_eq(abort_on(lead, 1), 1);
	ck_assert_int_eq(abort_on(rank[0], 1), 0);
	cancelled(1, KVR_KIND_STORE); /* rank 1 copies on */
	quarantined(1, N);
	ck_assert_uint_eq(lookup_all(9, keys, N), 0);
	/* All the room there is, and not those slots. */
	n = kvr_connector_store_begin(lead, &big, keys + 10, 16, SOON, other, 16, &covered);
	ck_assert_int_eq(n, 16 - (int)N);
	for (int i = 0; i < n; i++)
		for (uint32_t k = 0; k < N; k++)
			ck_assert_uint_ne(other[i].slot, used[k]);
	ok(copied_on(rank[1], 1, 0));
	ck_assert_uint_eq(rank_page(1)->late, 1);
	quarantined(0, 0);
	big.attempt = 1;
	n = kvr_connector_store_begin(lead, &big, keys + 30, N, SOON, other, 16, &covered);
	ck_assert_int_eq(n, N);
}
END_TEST

START_TEST(test_abort_on_all_leaves_nothing)
{
	struct kvr_block b[N];

	ok(begin_on(lead, 1, keys, N, b));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(begin_on(rank[r], 1, keys, N, b));
	ck_assert_int_eq(abort_all(1), 1);
	cancelled(1, KVR_KIND_STORE);
	quarantined(0, 0);
	ck_assert_int_eq(abort_all(1), 0);
	ck_assert_int_eq(store_all(1, keys, N), N); /* also the name is free */
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_uint_eq(rank_page(r)->late + rank_page(r)->duplicate, 0);
}
END_TEST

/* Its begin waits in the ring of a rank that does not call for it any more, or not yet. */
START_TEST(test_abort_before_a_rank_began)
{
	struct kvr_completion c[64];
	struct kvr_block b[N];

	ok(begin_on(lead, 1, keys, N, b));
	ok(begin_on(rank[0], 1, keys, N, b));
	ck_assert_int_eq(abort_on(lead, 1), 1);
	ck_assert_int_eq(abort_on(rank[0], 1), 0);
	if (_i == 0) { /* the rank aborts without having begun */
		ck_assert_int_eq(abort_on(rank[1], 1), 0);
	} else if (_i == 1) { /* it hears of the end, and begins then */
		ok(kvr_connector_check_completed(lead, KVR_NEXT, 0, SOON, c, 64, NULL));
		ck_assert_int_eq(
			kvr_connector_check_completed(rank[1], KVR_NEXT, 0, SOON, c, 64, NULL), 1);
		quarantined(0, 0);
		ck_assert_int_eq(begin_on(rank[1], 1, keys, N, b), -ECANCELED);
		must_say("was cancelled before this rank began it");
	} else { /* it begins, and finds out when it says that it copied */
		ck_assert_int_eq(begin_on(rank[1], 1, keys, N, b), N);
		quarantined(1, N);
		ok(copied_on(rank[1], 1, 0));
	}
	quarantined(0, 0);
	ck_assert_uint_eq(lookup_all(9, keys, N), 0);
}
END_TEST

START_TEST(test_store_that_was_copied_goes_on)
{
	struct kvr_block b[N];
	struct kvr_completion c;

	ok(begin_on(lead, 1, keys, N, b));
	for (uint32_t r = 0; r < RANKS; r++) {
		ok(begin_on(rank[r], 1, keys, N, b));
		for (uint32_t i = 0; i < N; i++)
			cluster_fill(rank[r], &keys[i], &b[i]);
		ok(copied_on(rank[r], 1, 0));
	}
	ok(kvr_connector_wait_store(lead, &(struct kvr_request){ .id = 1 }, KVR_STAGE_COPIED,
				    SOON));
	ck_assert_int_eq(abort_all(1), 0);
	c = end_of(1, KVR_KIND_STORE);
	ck_assert_uint_eq(c.stage, KVR_STAGE_DONE);
	ck_assert_uint_eq(lookup_all(9, keys, N), N);
}
END_TEST

START_TEST(test_store_that_joined_an_aborted_one_is_told)
{
	struct kvr_block b[N];
	struct kvr_completion c;

	ok(begin_on(lead, 1, keys, N, b));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(begin_on(rank[r], 1, keys, N, b));
	ck_assert_int_eq(begin_on(lead, 2, keys, N, b), 0); /* on their way already */
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(begin_on(rank[r], 2, keys, N, b), 0);
	ck_assert_int_eq(abort_on(lead, 1), 1); /* both ranks copy on */
	c = end_of(2, KVR_KIND_STORE);
	ck_assert_uint_eq(c.stage, KVR_STAGE_FAILED);
	ck_assert_int_eq(c.status, -ECANCELED);
	/* A new try gets other slots while the old ones are in quarantine. */
	ck_assert_int_eq(store_all(3, keys, N), N);
	quarantined(1, N);
	for (uint32_t r = 0; r < RANKS; r++)
		ok(copied_on(rank[r], 1, 0));
	quarantined(0, 0);
	ck_assert_uint_eq(lookup_all(9, keys, N), N);
}
END_TEST

/* Of 16 slots four may be there before nothing is begun any more. */
START_TEST(test_quarantine_is_bounded)
{
	struct kvr_request req = { .id = 3 };
	struct kvr_block b[N];
	uint32_t covered;

	store_all(7, keys + 20, 1);
	for (uint64_t id = 1; id <= 2; id++) {
		ok(begin_on(lead, id, keys + id * N, N, b));
		for (uint32_t r = 0; r < RANKS; r++)
			ok(begin_on(rank[r], id, keys + id * N, N, b));
		ck_assert_int_eq(abort_on(lead, id), 1);
		cancelled(id, KVR_KIND_STORE);
	}
	quarantined(2, 2 * N);
	ck_assert_int_eq(kvr_connector_store_begin(lead, &req, keys, N, kvr_deadline(20), b, N,
						   &covered),
			 -EAGAIN);
	must_say("6 of the pool's 16 slots are in quarantine");
	must_say("no longer copies the store of request");
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(begin_on(rank[r], 3, keys, N, b), -EAGAIN);
	ck_assert_uint_eq(lookup_all(9, keys + 20, 1), 1);
	ck_assert_int_eq(kvr_connector_load_begin(lead, &(struct kvr_request){ .id = 9 }, 1,
						  kvr_deadline(5)),
			 -EAGAIN);
	for (uint32_t r = 0; r < RANKS; r++)
		ok(copied_on(rank[r], 2, 0));
	quarantined(1, N);
	ck_assert_int_eq(store_all(4, keys, N), N);
	for (uint32_t r = 0; r < RANKS; r++)
		ok(copied_on(rank[r], 1, 0));
	quarantined(0, 0);
}
END_TEST

/* However many operations come and go meanwhile, a rank does not forget what it owes. */
START_TEST(test_rank_answers_after_thousands_of_others)
{
	struct kvr_completion c[64];
	struct kvr_block b[N];

	for (uint32_t r = 0; r < RANKS; r++)
		kvr_connector_close(rank[r]);
	kvr_connector_close(lead);
	cl.opts.ops = 16; /* so that the ranks' tables are small, too */
	cl.opts.ring_bytes = 8192;
	ok(kvr_connector_lead(cl.name, &cl.opts, &lead));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_join(cl.name, r, NULL, SOON, &rank[r]));
	ck_assert_uint_le(rank[1]->known.capacity, 1024);
	store_all(500, keys + 20, 1);
	ok(begin_on(lead, 1, keys, 2, b));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(begin_on(rank[r], 1, keys, 2, b));
	ck_assert_int_eq(abort_on(lead, 1), 1);
	ok(abort_on(rank[0], 1));
	for (uint64_t id = 1000; id < 3000;) { /* of a key that is known: nothing to copy */
		int err = begin_on(lead, id, keys + 20, 1, b);

		for (uint32_t r = 0; r < RANKS; r++)
			ck_assert_int_eq(begin_on(rank[r], id, keys + 20, 1, b), err);
		if (err == -EAGAIN) /* the table is full of what was not told yet */
			tick_all(c, 64);
		else
			ck_assert_int_eq(err, 0);
		id += err == 0;
	}
	quarantined(1, 2);
	ok(_i ? abort_on(rank[1], 1) : copied_on(rank[1], 1, 0));
	quarantined(0, 0);
}
END_TEST

START_TEST(test_rank_that_leaves_ends_the_quarantine)
{
	struct kvr_block b[N];

	ok(begin_on(lead, 1, keys, N, b));
	ok(begin_on(rank[0], 1, keys, N, b));
	ok(begin_on(rank[1], 1, keys, N, b));
	ck_assert_int_eq(abort_on(lead, 1), 1);
	ck_assert_int_eq(abort_on(rank[0], 1), 0);
	cancelled(1, KVR_KIND_STORE);
	quarantined(1, N);
	kvr_connector_close(rank[1]);
	rank[1] = NULL;
	quarantined(0, 0);
}
END_TEST

/* --- loads ------------------------------------------------------------------------------------ */

static int load_wait_on(uint32_t r, uint64_t id, uint64_t deadline, struct kvr_block *b)
{
	struct kvr_request req = { .id = id };

	return kvr_connector_load_wait(rank[r], &req, keys, deadline, b, N);
}

static void load_begin_all(uint64_t id)
{
	struct kvr_request req = { .id = id };

	ck_assert_uint_eq(lookup_all(id, keys, N), N);
	ck_assert_int_eq(kvr_connector_load_begin(lead, &req, N, SOON), N);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_load_begin(rank[r], &req, N, SOON), N);
}

/* Before a vote, after one vote, after both. */
START_TEST(test_abort_of_a_load)
{
	struct kvr_request req = { .id = 1 };
	struct kvr_block b[N];

	store_all(7, keys, N);
	load_begin_all(1);
	await_host(1);
	if (_i >= 1)
		ck_assert_int_eq(load_wait_on(0, 1, kvr_deadline(20), b), -ETIMEDOUT);
	if (_i >= 2) {
		ck_assert_int_eq(load_wait_on(1, 1, SOON, b), N);
		ck_assert_int_eq(load_wait_on(0, 1, SOON, b), N);
	}
	ck_assert_int_eq(abort_on(lead, 1), 1);
	cancelled(1, KVR_KIND_LOAD);
	quarantined(1, N);
	/* The bytes stay what they are until both said so. */
	ck_assert_int_eq(_i < 2 ? load_wait_on(0, 1, SOON, b)
				: kvr_connector_load_done(rank[0], &req),
			 _i < 2 ? -ECANCELED : 0);
	quarantined(1, N);
	ok(_i % 2 ? abort_on(rank[1], 1) : kvr_connector_load_done(rank[1], &req));
	quarantined(0, 0);
	ck_assert_int_eq(load_wait_on(0, 1, SOON, b), -ECANCELED);
	must_say("ended as cancelled");
	ok(abort_all(1));
	ck_assert_int_eq(store_all(2, keys + 20, 16), 16);
}
END_TEST

START_TEST(test_abort_drops_the_pin)
{
	store_all(7, keys, 16);
	ck_assert_uint_eq(lookup_all(1, keys, N), N);
	ck_assert_int_eq(abort_all(1), 0);
	ck_assert_int_eq(store_all(8, keys + 20, 16), 16); /* every slot could go */
	ck_assert_int_eq(kvr_connector_load_begin(lead, &(struct kvr_request){ .id = 1 }, N, SOON),
			 -ENOENT);
}
END_TEST

/* --- a launch that fails ---------------------------------------------------------------------- */

START_TEST(test_refusal_reaches_all_at_once)
{
	struct kvr_request req = { .id = 5 };
	struct kvr_block b[N];
	struct kvr_hit hit;
	uint64_t before = kvr_deadline(0);
	uint32_t covered;

	ok(kvr_connector_refuse(lead, KVR_KIND_STORE, &req, -ENODEV, SOON));
	ok(kvr_connector_refuse(lead, KVR_KIND_LOOKUP, &req, -EHOSTDOWN, SOON));
	ok(kvr_connector_refuse(lead, KVR_KIND_LOAD, &req, -EIO, SOON));
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert_int_eq(kvr_connector_store_begin(rank[r], &req, keys, N, SOON, b, N,
							   &covered),
				 -ENODEV);
		must_say("refused by the leader");
		ck_assert_int_eq(kvr_connector_lookup(rank[r], &req, keys, N, SOON, &hit),
				 -EHOSTDOWN);
		ck_assert_int_eq(kvr_connector_load_begin(rank[r], &req, N, SOON), -EIO);
	}
	ck_assert_uint_lt(kvr_deadline(0) - before, 10000000000ull);
	ck_assert_int_eq(kvr_connector_refuse(rank[0], KVR_KIND_STORE, &req, -EIO, SOON), -EINVAL);
	ck_assert_int_eq(kvr_connector_refuse(lead, KVR_KIND_STORE, &req, 0, SOON), -EINVAL);
	ck_assert_int_eq(kvr_connector_refuse(lead, KVR_KIND_RESET, &req, -EIO, SOON), -EINVAL);
	ck_assert_int_eq(store_all(5, keys, N), N); /* nothing was begun under that name */
}
END_TEST

/* The launch goes wrong after the ranks were told: an end with the cause, not an exception. */
START_TEST(test_leader_fails_a_store_that_it_began)
{
	struct kvr_completion c;
	struct kvr_block b[N];

	ok(begin_on(lead, 1, keys, N, b));
	ok(copied_on(lead, 1, -EREMOTEIO));
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert_int_eq(begin_on(rank[r], 1, keys, N, b), N);
		ok(copied_on(rank[r], 1, 0));
	}
	c = end_of(1, KVR_KIND_STORE);
	ck_assert_uint_eq(c.stage, KVR_STAGE_FAILED);
	ck_assert_int_eq(c.status, -EREMOTEIO);
	ck_assert_uint_eq(lookup_all(9, keys, N), 0);
	ck_assert_int_eq(copied_on(lead, 77, -EIO), -ENOENT);
	ck_assert_int_eq(store_all(2, keys, N), N);
}
END_TEST

/* --- late, twice, about nothing --------------------------------------------------------------- */

START_TEST(test_what_comes_twice_or_about_nothing_is_counted)
{
	struct kvr_request req = { .id = 2 };
	struct kvr_block b[N];

	store_all(1, keys, N);
	ok(copied_on(rank[0], 1, 0));
	ok(copied_on(rank[0], 1, -EIO)); /* it was copied, and stays so */
	ck_assert_uint_eq(rank_page(0)->duplicate, 2);
	ck_assert_int_eq(copied_on(rank[1], 99, 0), -ENOENT);
	ck_assert_int_eq(kvr_connector_load_done(rank[1], &req), -ENOENT);
	ck_assert_uint_eq(rank_page(1)->foreign, 2);
	load_begin_all(2);
	await_host(2);
	ck_assert_int_eq(load_wait_on(0, 2, kvr_deadline(1), b), -ETIMEDOUT);
	for (uint32_t r = RANKS; r--;)
		ck_assert_int_eq(load_wait_on(r, 2, SOON, b), N);
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_load_done(rank[r], &req));
	ck_assert_uint_eq(end_of(2, KVR_KIND_LOAD).stage, KVR_STAGE_DONE);
	ok(kvr_connector_load_done(rank[0], &req));
	ck_assert_uint_eq(rank_page(0)->duplicate, 3);
	ck_assert_uint_eq(lookup_all(9, keys, N), N);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("connector_abort");
	TCase *t = tcase_create("abort");

	tcase_add_checked_fixture(t, setup, trio_close);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_abort_while_ranks_copy_ends_the_store_and_keeps_its_slots);
	tcase_add_test(t, test_abort_on_all_leaves_nothing);
	tcase_add_loop_test(t, test_abort_before_a_rank_began, 0, 3);
	tcase_add_test(t, test_store_that_was_copied_goes_on);
	tcase_add_test(t, test_store_that_joined_an_aborted_one_is_told);
	tcase_add_test(t, test_quarantine_is_bounded);
	tcase_add_loop_test(t, test_rank_answers_after_thousands_of_others, 0, 2);
	tcase_add_test(t, test_rank_that_leaves_ends_the_quarantine);
	tcase_add_loop_test(t, test_abort_of_a_load, 0, 3);
	tcase_add_test(t, test_abort_drops_the_pin);
	tcase_add_test(t, test_refusal_reaches_all_at_once);
	tcase_add_test(t, test_leader_fails_a_store_that_it_began);
	tcase_add_test(t, test_what_comes_twice_or_about_nothing_is_counted);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
