/* SPDX-License-Identifier: Apache-2.0 */
/* A program whose threads need more for their own variables than the watcher has for its stack. */
#include "group_util.h"

static _Thread_local volatile char large[1 << 20];

START_TEST(test_watcher_of_a_program_with_large_thread_variables)
{
	struct kvr_group *g;

	large[0] = 1;
	g = create();
	kvr_group_close(g);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("group_tls");
	TCase *t = tcase_create("tls");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, test_watcher_of_a_program_with_large_thread_variables);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
