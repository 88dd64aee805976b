/* SPDX-License-Identifier: Apache-2.0 */
/* 100 flipped bytes a round under groups at work: see hostile_flips.h. */
#include "harness.h"

#include "hostile_flips.h"

START_TEST(test_many_flipped_bytes)
{
	uint64_t seed = test_seed(), rounds = test_rounds(100);
	struct flips_result r = flips_run(seed, 100 * rounds);

	printf("%llu flips in %llu groups: %llu calls, %llu good, %llu named, %llu out of time, "
	       "%llu others, %llu groups' ends; at most %llu ms late\n",
	       (unsigned long long)r.flips, (unsigned long long)r.rounds,
	       (unsigned long long)r.calls, (unsigned long long)r.good, (unsigned long long)r.named,
	       (unsigned long long)r.timeouts, (unsigned long long)r.other,
	       (unsigned long long)r.over, (unsigned long long)r.late_ms);
	ck_assert_uint_ge(r.good, r.flips);
	ck_assert_uint_gt(r.named, 0);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("stress hostile");
	TCase *t = tcase_create("flips");

	tcase_set_timeout(t, 120.0 + 10.0 * (double)test_rounds(100));
	tcase_add_test(t, test_many_flipped_bytes);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
