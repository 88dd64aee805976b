/* SPDX-License-Identifier: Apache-2.0 */
/* What all ranks decide together: one outcome for all, whoever is against it, late, or gone. */
#include "trio.h"

static const struct kvr_request req = { .id = 3, .attempt = 1 };
static const char manifest[] = "restore 17 generation 4: 12 slots, 80 signals";

static void setup(void)
{
	trio_open(16, 0);
}

static void proposed(uint64_t deadline)
{
	char got[64];

	ok(kvr_connector_propose(lead, &req, manifest, sizeof manifest, deadline));
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert_int_eq(kvr_connector_proposal(rank[r], &req, got, sizeof got, SOON),
				 sizeof manifest);
		ck_assert_str_eq(got, manifest);
	}
}

static void all_hear(int status)
{
	ck_assert_int_eq(kvr_connector_decided(lead, &req, SOON), status);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_decided(rank[r], &req, SOON), status);
}

static void ends(enum kvr_stage stage, int status)
{
	struct kvr_completion c = end_of(req.id, KVR_KIND_DECISION);

	ck_assert_uint_eq(c.stage, (uint32_t)stage);
	ck_assert_int_eq(c.status, status);
	ck_assert_uint_eq(c.request.attempt, 1);
}

START_TEST(test_all_for_it)
{
	proposed(SOON);
	ok(kvr_connector_vote(rank[1], &req, 0));
	ck_assert_int_eq(kvr_connector_decided(rank[1], &req, kvr_deadline(20)), -ETIMEDOUT);
	ok(kvr_connector_vote(rank[0], &req, 0));
	all_hear(0);
	ok(kvr_connector_outcome(rank[0], &req, 0));
	ck_assert_int_eq(tick_all((struct kvr_completion[64]){ 0 }, 64), 0);
	ok(kvr_connector_outcome(rank[1], &req, 0));
	ends(KVR_STAGE_DONE, 0);
	all_hear(0); /* also afterwards */
}
END_TEST

START_TEST(test_one_against_it)
{
	proposed(SOON);
	if (_i == 0)
		ok(kvr_connector_vote(rank[0], &req, 0));
	ok(kvr_connector_vote(rank[1], &req, -ENOSPC)); /* its pool differs */
	all_hear(-ENOSPC);
	must_say("No space left");
	ends(KVR_STAGE_CANCELLED, -ENOSPC);
	if (_i == 1) { /* the other comes late: counted, not applied */
		ok(kvr_connector_vote(rank[0], &req, 0));
		ck_assert_uint_eq(rank_page(0)->late, 1);
		all_hear(-ENOSPC);
	}
}
END_TEST

START_TEST(test_leader_is_against_it)
{
	proposed(SOON);
	ok(kvr_connector_vote(lead, &req, -EHOSTDOWN));
	all_hear(-EHOSTDOWN);
	ends(KVR_STAGE_CANCELLED, -EHOSTDOWN);
}
END_TEST

START_TEST(test_vote_that_does_not_come)
{
	proposed(kvr_deadline(60));
	ok(kvr_connector_vote(rank[0], &req, 0));
	all_hear(-ETIMEDOUT);
	ends(KVR_STAGE_CANCELLED, -ETIMEDOUT);
}
END_TEST

START_TEST(test_rank_that_leaves_is_against_it)
{
	proposed(SOON);
	ok(kvr_connector_vote(rank[0], &req, 0));
	kvr_connector_close(rank[1]);
	rank[1] = NULL;
	ck_assert_int_eq(kvr_connector_decided(rank[0], &req, SOON), -ESHUTDOWN);
}
END_TEST

/* Nobody waits for a signal that will not come. */
START_TEST(test_failure_after_the_commit_reaches_all)
{
	proposed(SOON);
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_vote(rank[r], &req, 0));
	all_hear(0);
	if (_i)
		ok(kvr_connector_outcome(lead, &req, -EIO)); /* the launch in the leader */
	else
		ok(kvr_connector_outcome(rank[1], &req, -EIO));
	ends(KVR_STAGE_FAILED, -EIO);
	ok(kvr_connector_outcome(rank[0], &req, 0));
	ck_assert_uint_eq(rank_page(0)->late, 1);
	all_hear(0); /* it was committed: how it ended is another question */
}
END_TEST

START_TEST(test_said_twice_or_about_nothing)
{
	struct kvr_request other = { .id = 99 };

	proposed(SOON);
	ck_assert_int_eq(kvr_connector_outcome(rank[0], &req, 0), -EINVAL);
	must_say("without a vote");
	ok(kvr_connector_vote(rank[0], &req, 0));
	ok(kvr_connector_vote(rank[0], &req, -EIO)); /* the first one counts */
	ck_assert_uint_eq(rank_page(0)->duplicate, 1);
	ok(kvr_connector_vote(rank[1], &req, 0));
	all_hear(0);
	ck_assert_int_eq(kvr_connector_vote(rank[0], &other, 0), -ENOENT);
	ck_assert_uint_eq(rank_page(0)->foreign, 1);
	ck_assert_int_eq(kvr_connector_vote(rank[0], &req, 5), -EINVAL);
	ck_assert_int_eq(kvr_connector_propose(lead, &req, NULL, 0, SOON), -EEXIST);
	ck_assert_int_eq(kvr_connector_propose(rank[0], &other, NULL, 0, SOON), -EINVAL);
	ck_assert_int_eq(kvr_connector_proposal(lead, &other, NULL, 0, SOON), -EINVAL);
}
END_TEST

START_TEST(test_manifest_that_does_not_fit)
{
	char small[4];

	ok(kvr_connector_propose(lead, &req, manifest, sizeof manifest, SOON));
	ck_assert_int_eq(kvr_connector_proposal(rank[0], &req, small, sizeof small, SOON),
			 -EMSGSIZE);
	ck_assert_int_eq(kvr_connector_decided(rank[0], &req, SOON), -EMSGSIZE);
	ck_assert_int_eq(kvr_connector_proposal(rank[1], &req, small, sizeof small, SOON),
			 -EMSGSIZE);
	ends(KVR_STAGE_CANCELLED, -EMSGSIZE);
	ck_assert_int_eq(kvr_connector_propose(lead, &(struct kvr_request){ .id = 4 }, manifest,
					       1u << 30, SOON),
			 -EMSGSIZE);
}
END_TEST

START_TEST(test_aborted_and_refused)
{
	struct kvr_request other = { .id = 8 };

	proposed(SOON);
	ok(kvr_connector_vote(rank[0], &req, 0));
	ck_assert_int_eq(kvr_connector_abort(lead, &req), 1);
	all_hear(-ECANCELED);
	ends(KVR_STAGE_CANCELLED, -ECANCELED);
	ok(kvr_connector_refuse(lead, KVR_KIND_DECISION, &other, -ENODATA, SOON));
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_proposal(rank[r], &other, NULL, 0, SOON), -ENODATA);
}
END_TEST

/* Many at once, in any order on each rank. */
START_TEST(test_many_at_once)
{
	enum { MANY = 40 };

	for (uint64_t id = 1; id <= MANY; id++)
		ok(kvr_connector_propose(lead, &(struct kvr_request){ .id = id }, &id, sizeof id,
					 SOON));
	for (uint32_t r = 0; r < RANKS; r++)
		for (uint64_t k = 0; k < MANY; k++) {
			struct kvr_request q = { .id = 1 + (k * 7 + r * 11) % MANY };
			uint64_t got;

			ck_assert_int_eq(kvr_connector_proposal(rank[r], &q, &got, 8, SOON), 8);
			ck_assert_uint_eq(got, q.id);
			ok(kvr_connector_vote(rank[r], &q, q.id % 5 == r + 1 ? -(int)q.id : 0));
		}
	for (uint64_t id = 1; id <= MANY; id++)
		for (uint32_t r = 0; r < RANKS; r++)
			ck_assert_int_eq(kvr_connector_decided(
						 rank[r], &(struct kvr_request){ .id = id }, SOON),
					 id % 5 == 1 || id % 5 == 2 ? -(int)id : 0);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("connector_decide");
	TCase *t = tcase_create("decide");

	tcase_add_checked_fixture(t, setup, trio_close);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_all_for_it);
	tcase_add_loop_test(t, test_one_against_it, 0, 2);
	tcase_add_test(t, test_leader_is_against_it);
	tcase_add_test(t, test_vote_that_does_not_come);
	tcase_add_test(t, test_rank_that_leaves_is_against_it);
	tcase_add_loop_test(t, test_failure_after_the_commit_reaches_all, 0, 2);
	tcase_add_test(t, test_said_twice_or_about_nothing);
	tcase_add_test(t, test_manifest_that_does_not_fit);
	tcase_add_test(t, test_aborted_and_refused);
	tcase_add_test(t, test_many_at_once);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
