/* SPDX-License-Identifier: Apache-2.0 */
/* A message on CONTROL that a rank did not take yet is not the announcement of the leader's end. */
#include "trio.h"

static void setup(void)
{
	trio_open(16, 0);
}

/* A proposal, or a reset, that rank 0 has not asked for yet, while it waits for a tick. */
START_TEST(test_tick_is_waited_for_while_a_proposal_is_there)
{
	struct kvr_request req = { .id = 3 };
	struct kvr_completion c[8];

	if (_i)
		ok(kvr_connector_reset(lead, &req, NULL, SOON));
	else
		ok(kvr_connector_propose(lead, &req, "m", 1, SOON));
	ck_assert_int_eq(kvr_connector_check_completed(rank[0], KVR_NEXT, 0, kvr_deadline(50), c, 8,
						       NULL),
			 -ETIMEDOUT);
	ok(kvr_connector_check_completed(lead, KVR_NEXT, 0, SOON, c, 8, NULL));
	ok(kvr_connector_check_completed(rank[0], KVR_NEXT, 0, SOON, c, 8, NULL));
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("connector_control");
	TCase *t = tcase_create("control");

	tcase_add_checked_fixture(t, setup, trio_close);
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, test_tick_is_waited_for_while_a_proposal_is_there, 0, 2);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
