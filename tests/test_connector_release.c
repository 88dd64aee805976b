/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's release or abort takes nothing away that belongs to a later call of that name. */
#include "trio.h"

static struct kvr_key keys[64];

static void setup(void)
{
	trio_open(16, 0);
	cluster_keys(1, keys, 64);
	store_all(1, keys, N);
}

static int lookup_soon(struct kvr_connector *c, uint64_t id)
{
	struct kvr_request req = { .id = id };
	struct kvr_hit hit;

	return kvr_connector_lookup(c, &req, keys, N, kvr_deadline(200), &hit);
}

static void release(struct kvr_connector *c, uint64_t id)
{
	struct kvr_request req = { .id = id };

	ok(kvr_connector_release(c, &req));
}

/* One request waits with its pin while others come and go. */
START_TEST(test_lookup_again_of_a_request_that_waited)
{
	for (uint32_t r = 0; r <= RANKS; r++)
		ok(lookup_soon(r ? rank[r - 1] : lead, 9));
	for (uint64_t id = 100; id < 170; id++)
		for (uint32_t r = 0; r <= RANKS; r++) {
			struct kvr_connector *c = r ? rank[r - 1] : lead;

			ok(lookup_soon(c, id));
			release(c, id);
		}
	release(lead, 9);
	ok(lookup_soon(lead, 9));
	for (uint32_t r = 0; r < RANKS; r++) {
		release(rank[r], 9);
		ck_assert_int_eq(lookup_soon(rank[r], 9), 0);
	}
}
END_TEST

/* The later call is a load that is refused; or one of which nothing is left. */
START_TEST(test_refusal_of_a_later_load)
{
	struct kvr_request req = { .id = 9 };

	ok(lookup_soon(lead, 9));
	release(lead, 9);
	ok(lookup_soon(lead, 9));
	if (_i)
		ck_assert_int_eq(kvr_connector_load_begin(lead, &req, 0, SOON), 0);
	else
		ok(kvr_connector_refuse(lead, KVR_KIND_LOAD, &req, -EIO, SOON));
	for (uint32_t r = 0; r < RANKS; r++) {
		ok(lookup_soon(rank[r], 9));
		release(rank[r], 9);
		ok(lookup_soon(rank[r], 9));
		ck_assert_int_eq(kvr_connector_load_begin(rank[r], &req, _i ? 0 : N,
							  kvr_deadline(100)),
				 _i ? 0 : -EIO);
	}
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("connector_release");
	TCase *t = tcase_create("release");

	tcase_add_checked_fixture(t, setup, trio_close);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_lookup_again_of_a_request_that_waited);
	tcase_add_loop_test(t, test_refusal_of_a_later_load, 0, 2);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
