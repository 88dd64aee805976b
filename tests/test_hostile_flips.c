/* SPDX-License-Identifier: Apache-2.0 */
/* Some flipped bytes under a group at work; make stress T=hostile does the same for longer. */
#include "harness.h"

#include "hostile_flips.h"

#define FLIPS (KVR_TEST_TSAN || KVR_TEST_ASAN ? 300u : 1000u)

START_TEST(test_group_at_work_survives_flipped_bytes)
{
	struct flips_result r = flips_run(test_seed(), FLIPS);

	printf("%llu flips in %llu groups: %llu calls, %llu good, %llu named, %llu out of time, "
	       "%llu others, %llu groups' ends; at most %llu ms late\n",
	       (unsigned long long)r.flips, (unsigned long long)r.rounds,
	       (unsigned long long)r.calls, (unsigned long long)r.good, (unsigned long long)r.named,
	       (unsigned long long)r.timeouts, (unsigned long long)r.other,
	       (unsigned long long)r.over, (unsigned long long)r.late_ms);
	ck_assert_uint_ge(r.good, FLIPS);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("hostile_flips");
	TCase *t = tcase_create("flips");

	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_group_at_work_survives_flipped_bytes);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
