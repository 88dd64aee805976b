/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that were made alike, retries and all, are no difference. */
#include "trio.h"

static struct kvr_key keys[64];

static void setup(void)
{
	trio_open(16, 0);
	cluster_keys(1, keys, 64);
	store_all(1, keys, N);
	ck_assert_uint_eq(lookup_all(5, keys, N), N);
}

static void nothing_drifted(void)
{
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_msg(!rank_page(r)->drift.kind,
			      "rank %u: call %llu of %s is of %llu here "
			      "and of %llu there",
			      r, (unsigned long long)rank_page(r)->drift.index,
			      kvr_alike_name(rank_page(r)->drift.kind - 1),
			      (unsigned long long)rank_page(r)->drift.request,
			      (unsigned long long)rank_page(r)->drift.its_request);
}

static void load_all(uint64_t id)
{
	struct kvr_request req = { .id = id };
	struct kvr_block b[N];

	ck_assert_int_eq(kvr_connector_load_begin(lead, &req, N, SOON), N);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_load_begin(rank[r], &req, N, SOON), N);
	await_host(req.id);
	kvr_connector_load_wait(rank[0], &req, keys, kvr_deadline(5), b, N);
	for (uint32_t r = RANKS; r--;)
		ck_assert_int_eq(kvr_connector_load_wait(rank[r], &req, keys, SOON, b, N), N);
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_load_done(rank[r], &req));
	end_of(id, KVR_KIND_LOAD);
}

/* A load by layers that did not come about; all begin it again, whole. */
START_TEST(test_load_that_was_rolled_back_at_a_deadline)
{
	struct kvr_request req = { .id = 5 };

	ck_assert_int_eq(kvr_connector_load_begin_layers(lead, &req, N, SOON), N);
	ck_assert_int_eq(kvr_connector_load_begin_layers(rank[0], &req, N, kvr_deadline(30)),
			 -ETIMEDOUT);
	ck_assert_int_lt(kvr_connector_load_begin_layers(rank[1], &req, N, SOON), 0);
	end_of(5, KVR_KIND_LOAD);
	load_all(5);
	ck_assert_uint_eq(lookup_all(6, keys, N), N);
	load_all(6);
	ck_assert_uint_eq(lookup_all(7, keys, N), N);
	load_all(7);
	nothing_drifted();
}
END_TEST

/* A rank's call came to nothing, since the leader was late; all abort the request, and begin
 * anew. */
START_TEST(test_call_that_was_given_up_by_an_abort)
{
	struct kvr_request req = { .id = 30 };
	struct kvr_block b[N];
	uint32_t covered;

	ck_assert_int_eq(kvr_connector_store_begin(rank[1], &req, keys + 10, N, kvr_deadline(1), b,
						   N, &covered),
			 -ETIMEDOUT);
	ck_assert_int_eq(begin_on(lead, 30, keys + 10, N, b), N);
	ck_assert_int_eq(begin_on(rank[0], 30, keys + 10, N, b), N);
	ck_assert_int_eq(kvr_connector_abort(lead, &req), 1);
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_abort(rank[r], &req));
	end_of(30, KVR_KIND_STORE);
	for (uint64_t id = 30; id < 33; id++)
		store_all(id, keys + 10 + (id - 30) * N, N);
	nothing_drifted();
}
END_TEST

/* Refused for now; all try again under the same name. */
START_TEST(test_call_that_the_leader_refused_for_now)
{
	struct kvr_request req = { .id = 30 };
	struct kvr_block b[N];

	ok(kvr_connector_refuse(lead, KVR_KIND_STORE, &req, -EAGAIN, SOON));
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(begin_on(rank[r], 30, keys + 10, N, b), -EAGAIN);
	for (uint64_t id = 30; id < 33; id++)
		store_all(id, keys + 10 + (id - 30) * N, N);
	nothing_drifted();
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("connector_alike");
	TCase *t = tcase_create("alike");

	tcase_add_checked_fixture(t, setup, trio_close);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_load_that_was_rolled_back_at_a_deadline);
	tcase_add_test(t, test_call_that_was_given_up_by_an_abort);
	tcase_add_test(t, test_call_that_the_leader_refused_for_now);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
