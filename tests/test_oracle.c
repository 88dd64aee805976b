/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store on simulated devices, judged by the oracle; and the oracle itself, by breaking the
 * rules on purpose. stress_store.c runs many more seeds.
 */
#include "harness.h"
#include "oracle.h"

#define STEPS 2500

static void run_rounds(uint64_t seed, uint64_t rounds, int lying)
{
	struct oracle_verdict sum = { 0 }, v;

	for (uint64_t i = 0; i < rounds; i++) {
		v = oracle_run(seed + i, lying, MUTANT_NONE, STEPS);
		ck_assert_msg(!oracle_bad(&v),
			      "wrong %llu, missing %llu, broken %llu (line %d): repeat with "
			      "KVR_TEST_SEED=%llu KVR_TEST_ROUNDS=1",
			      (unsigned long long)v.wrong, (unsigned long long)v.missing,
			      (unsigned long long)v.broken, v.broken_line,
			      (unsigned long long)(seed + i));
		oracle_add(&sum, &v);
	}
	oracle_print(lying ? "lying" : "honest", rounds, &sum);
	/* A driver that hits nothing proves nothing. */
	ck_assert_uint_gt(sum.hits, 100 * rounds);
	ck_assert_uint_gt(sum.found, 50 * rounds);
}

START_TEST(test_honest_devices_lose_nothing_that_ended)
{
	run_rounds(test_seed(), test_rounds(16), 0);
}
END_TEST

START_TEST(test_lying_devices_make_misses_and_no_wrong_bytes)
{
	run_rounds(test_seed(), test_rounds(16), 1);
}
END_TEST

/* What the oracle noticed within a few rounds; fixed seeds, so that this cannot flicker. */
static struct oracle_verdict caught(int lying, enum mutant mutant)
{
	struct oracle_verdict sum = { 0 }, v;

	for (uint64_t seed = 1; !sum.wrong && !sum.missing && seed <= 12; seed++) {
		v = oracle_run(seed, lying, mutant, STEPS);
		oracle_add(&sum, &v);
	}
	return sum;
}

START_TEST(test_oracle_notices_loads_that_are_not_verified)
{
	ck_assert_uint_gt(caught(1, MUTANT_SKIP_SEGMENTS).wrong, 0);
}
END_TEST

START_TEST(test_oracle_notices_blocks_that_the_store_refused)
{
	ck_assert_uint_gt(caught(1, MUTANT_TAKE_BADMSG).wrong, 0);
}
END_TEST

START_TEST(test_oracle_notices_records_that_were_lost)
{
	ck_assert_uint_gt(caught(0, MUTANT_LOSE_RECORDS).missing, 0);
}
END_TEST

START_TEST(test_oracle_notices_blocks_from_before_a_reset)
{
	ck_assert_uint_gt(caught(0, MUTANT_OLD_BLOCKS).wrong, 0);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("oracle");
	TCase *t = tcase_create("oracle");

	tcase_set_timeout(t, 60.0 + (double)test_rounds(16));
	tcase_add_test(t, test_honest_devices_lose_nothing_that_ended);
	tcase_add_test(t, test_lying_devices_make_misses_and_no_wrong_bytes);
	tcase_add_test(t, test_oracle_notices_loads_that_are_not_verified);
	tcase_add_test(t, test_oracle_notices_blocks_that_the_store_refused);
	tcase_add_test(t, test_oracle_notices_records_that_were_lost);
	tcase_add_test(t, test_oracle_notices_blocks_from_before_a_reset);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	if (KVR_TEST_TSAN)
		return test_no_threads_of_its_own();
	return kvr_test_main(suite);
}
