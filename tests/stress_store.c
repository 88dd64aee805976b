/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store on simulated devices, judged by the oracle, over many seeds: each of them on devices
 * that fail but do not lie, on devices that lie, and one in eight for a long time. Goes on after a
 * failure: the list of all seeds that fail says more than the first.
 */
#include "harness.h"
#include "oracle.h"

#define STEPS 2500
#define LONG_STEPS 20000
#define FAILURES_MAX 20

static int run_seed(uint64_t seed, int lying, struct oracle_verdict *sum)
{
	struct oracle_verdict v =
		oracle_run(seed, lying, MUTANT_NONE, seed % 8 ? STEPS : LONG_STEPS);

	oracle_add(sum, &v);
	if (!oracle_bad(&v))
		return 0;
	printf("%s devices: wrong %llu, missing %llu, broken %llu (oracle.c:%d): "
	       "make stress T=store SEED=%llu ROUNDS=1\n",
	       lying ? "lying" : "honest", (unsigned long long)v.wrong,
	       (unsigned long long)v.missing, (unsigned long long)v.broken, v.broken_line,
	       (unsigned long long)seed);
	return 1;
}

START_TEST(test_many_seeds)
{
	uint64_t seed = test_seed(), rounds = test_rounds(100), i;
	struct oracle_verdict honest = { 0 }, lying = { 0 };
	int failed = 0;

	for (i = 0; i < rounds && failed < FAILURES_MAX; i++) {
		failed += run_seed(seed + i, 0, &honest);
		failed += run_seed(seed + i, 1, &lying);
	}
	oracle_print("honest", i, &honest);
	oracle_print("lying", i, &lying);
	ck_assert_msg(!failed, "%d failed; their seeds are above", failed);
	/* A driver that hits nothing proves nothing. */
	ck_assert_uint_gt(honest.hits, 100 * rounds);
	ck_assert_uint_gt(lying.hits, 100 * rounds);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("stress store");
	TCase *t = tcase_create("seeds");

	tcase_set_timeout(t, 60.0 + 2.0 * (double)test_rounds(100));
	tcase_add_test(t, test_many_seeds);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
