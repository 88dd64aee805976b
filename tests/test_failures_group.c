/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failures that others had with a group of processes as a whole: ranks that decide each for itself,
 * a launch that fails after all had agreed, a rank that comes back, halves of different versions.
 * Here there is one outcome for all, and an incarnation or a version that does not belong is told
 * so.
 */
#include "failures.h"

static const struct kvr_request one = { .id = 1 }, two = { .id = 2 };

static void open_trio(void)
{
	trio_open(POOL, 0);
	cluster_keys(1, keys, 128);
}

static void exit_cluster(void)
{
	cluster_exit(&cl);
}

/* --- decisions -------------------------------------------------------------------------------- */

/* Memory was there on one rank and not on the other: one restored, the other recomputed, and their
 * caches differed from then on. */
START_TEST(test_room_that_one_rank_lacks_is_given_back_by_all)
{
	uint32_t room[RANKS] = { 12, 7 };

	vote_all(&one, 10, 0, -ENOSPC);
	room[0] -= 10; /* reserved, before the outcome is known */
	all_hear(&one, -ENOSPC);
	must_say("No space left");
	room[0] += 10;
	ends(1, KVR_KIND_DECISION, KVR_STAGE_CANCELLED, -ENOSPC);
	vote_all(&two, 6, room[0] < 6 ? -ENOSPC : 0, room[1] < 6 ? -ENOSPC : 0);
	all_hear(&two, 0);
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_outcome(rank[r], &two, 0));
	ends(2, KVR_KIND_DECISION, KVR_STAGE_DONE, 0);
}
END_TEST

/* After all had agreed each rank polled once more, and a request that was aborted in between was
 * ready for some of them and gone for others. */
START_TEST(test_outcome_travels_and_is_not_computed_again)
{
	vote_all(&one, 1, 0, 0);
	ok(kvr_connector_decided(rank[0], &one, SOON));
	ck_assert_int_eq(kvr_connector_abort(lead, &one), 1); /* between the two */
	ok(kvr_connector_decided(rank[1], &one, SOON));
	ok(kvr_connector_vote(rank[1], &one, -EIO)); /* too late to change it */
	all_hear(&one, 0);
	ends(1, KVR_KIND_DECISION, KVR_STAGE_CANCELLED, -ECANCELED); /* which all hear, too */
	all_hear(&one, 0);
	no_other_end(1);
	/* The other way round: aborted before all had agreed, it is so for all. */
	ok(kvr_connector_propose(lead, &two, NULL, 0, SOON));
	ck_assert_int_eq(kvr_connector_proposal(rank[0], &two, NULL, 0, SOON), 0);
	ok(kvr_connector_vote(rank[0], &two, 0));
	ck_assert_int_eq(kvr_connector_abort(lead, &two), 1);
	ck_assert_int_eq(kvr_connector_proposal(rank[1], &two, NULL, 0, SOON), 0);
	ok(kvr_connector_vote(rank[1], &two, 0));
	all_hear(&two, -ECANCELED);
	ends(2, KVR_KIND_DECISION, KVR_STAGE_CANCELLED, -ECANCELED);
}
END_TEST

/* --- processes -------------------------------------------------------------------------------- */

#define FOUR 4u

static void say(struct cluster *c, uint32_t r, uint32_t i, uint64_t value)
{
	c->area->word[CLUSTER_LEADER(r) ? CLUSTER_LEAD : r][i] = value;
}

static uint64_t said(uint32_t r, uint32_t i)
{
	return cl.area->word[r][i];
}

/* Every rank has a counter of its own, and they differ; what all use is in the manifest. */
static void same_counter(struct cluster *c, struct kvr_connector *k, uint32_t r)
{
	for (uint64_t id = 1; id <= 6; id++) {
		struct kvr_request req = cluster_request(id, 0);
		uint64_t counter = id * 10, own = id * 10 + (id % 3 == 0 && r == 2), got = counter;
		int expected = id % 3 == 0 ? -EPROTO : 0, n;

		if (CLUSTER_LEADER(r)) {
			MUST(!kvr_connector_propose(k, &req, &counter, sizeof counter, SOON));
		} else {
			/* Who comes when one was against it, and all were told, need not vote. */
			n = kvr_connector_proposal(k, &req, &got, sizeof got, SOON);
			MUST(n == sizeof got || (n == -ECANCELED && expected));
			MUST(n < 0 || !kvr_connector_vote(k, &req, got == own ? 0 : -EPROTO));
		}
		MUST(kvr_connector_decided(k, &req, SOON) == expected);
		if (!expected && !CLUSTER_LEADER(r))
			MUST(!kvr_connector_outcome(k, &req, 0));
		say(c, r, (uint32_t)id, expected ? 0 : got);
	}
	cluster_shutdown(k);
}

/* Each rank chose the next counter for itself. One chose another, and eight waited five minutes for
 * each other, until the watchdog came. */
START_TEST(test_ranks_do_not_choose_for_themselves)
{
	cluster_init(&cl, FOUR, 0, POOL, 0);
	cluster_run(&cl, same_counter);
	for (uint32_t r = 0; r < FOUR; r++)
		for (uint32_t id = 1; id <= 6; id++)
			ck_assert_uint_eq(said(r, id), id % 3 ? id * 10 : 0);
}
END_TEST

/* All are for it, and then the leader cannot start it. */
static void launch_fails(struct cluster *c, struct kvr_connector *k, uint32_t r)
{
	struct kvr_request req = cluster_request(1, 0);
	struct kvr_completion done[8];
	int n = 0;

	if (CLUSTER_LEADER(r))
		MUST(!kvr_connector_propose(k, &req, NULL, 0, SOON));
	else
		MUST(!kvr_connector_proposal(k, &req, NULL, 0, SOON) &&
		     !kvr_connector_vote(k, &req, 0));
	MUST(!kvr_connector_decided(k, &req, SOON));
	if (CLUSTER_LEADER(r))
		MUST(!kvr_connector_outcome(k, &req, -EIO));
	/* Nobody else says how it went: they wait for what will not come. */
	while (n == 0) {
		n = kvr_connector_check_completed(k, KVR_NEXT, 0, SOON, done, 8, NULL);
		if (CLUSTER_LEADER(r))
			test_sleep_ms(1);
	}
	MUST(n == 1 && done[0].request.id == 1 && done[0].kind == KVR_KIND_DECISION);
	MUST(done[0].stage == KVR_STAGE_FAILED && done[0].status == -EIO);
	say(c, r, 0, done[0].tick);
	MUST(cluster_load(k, 2, 0, keys, 1, r) == 0); /* all go on */
	cluster_shutdown(k);
}

/* The leader's launch threw after everybody had agreed: the others waited four minutes for layers
 * that nobody was loading. */
START_TEST(test_launch_that_fails_after_the_vote_is_told_to_all)
{
	cluster_init(&cl, FOUR, 0, POOL, 0);
	cluster_run(&cl, launch_fails);
	for (uint32_t r = 0; r < FOUR; r++)
		ck_assert_uint_eq(said(r, 0), said(CLUSTER_LEAD, 0));
}
END_TEST

/* --- a rank dies and comes back --------------------------------------------------------------- */

/* Both sides of the next epoch: a whole store, the good end. */
static void next_epoch(struct kvr_connector *c, uint32_t r)
{
	MUST(kvr_group_epoch(kvr_connector_group(c)) == 2);
	cluster_keys(5, keys, N);
	cluster_store(c, 5, 0, keys, N, r);
	ask(c, r, KVR_TICK, 1);
	cluster_shutdown(c);
	kvr_connector_close(c);
	_exit(0);
}

static void restarts(struct cluster *unused, struct kvr_connector *c, uint32_t r)
{
	struct kvr_request req = cluster_request(1, 0);
	struct kvr_completion done[8];
	struct kvr_block blocks[N];
	uint32_t covered;
	int n, lost = 0;

	(void)unused;
	cluster_keys(1, keys, N);
	MUST(kvr_connector_store_begin(c, &req, keys, N, SOON, blocks, N, &covered) == N);
	__atomic_add_fetch(&cl.area->step, 1, __ATOMIC_ACQ_REL);
	await_step(3); /* all are in, and have begun */
	if (r == 1)
		raise(SIGKILL);
	MUST(kvr_connector_store_copied(c, &req, 0) == 0 || CLUSTER_LEADER(r));
	while ((n = kvr_connector_check_completed(c, KVR_NEXT, 0, SOON, done, 8, NULL)) >= 0) {
		if (CLUSTER_LEADER(r))
			test_sleep_ms(1);
		for (int i = 0; i < n; i++, lost++)
			MUST(done[i].request.id == 1 && done[i].stage == KVR_STAGE_LOST &&
			     done[i].status == -EOWNERDEAD);
	}
	MUST(lost == 1 && n == -EOWNERDEAD && strstr(kvr_explain(), "rank 1 (pid "));
	MUST(kvr_connector_wait_store(c, &req, KVR_STAGE_COPIED, SOON) == -EOWNERDEAD);
	MUST(strstr(kvr_explain(), "store of request 1/0 was lost with epoch 1"));
	__atomic_add_fetch(&cl.area->step, 1, __ATOMIC_ACQ_REL);
	await_step(6); /* its successor tried to come back into this epoch */
	kvr_connector_close(c);
	n = CLUSTER_LEADER(r) ? kvr_connector_lead(cl.name, &cl.opts, &c)
			      : kvr_connector_join(cl.name, r, &cl.opts, SOON, &c);
	MUST(!n);
	next_epoch(c, r);
}

/* The process that the supervisor starts in place of rank 1. */
static void successor(void)
{
	struct kvr_connector *c = NULL;
	int err;

	await_step(5); /* both know that it is over */
	err = kvr_connector_join(cl.name, 1, &cl.opts, test_deadline_ms(50), &c);
	MUST(err == -EOWNERDEAD && !c && strstr(kvr_explain(), "epoch 1 over"));
	reach(6);
	MUST(!kvr_connector_join(cl.name, 1, &cl.opts, SOON, &c));
	next_epoch(c, 1);
}

/* A rank was started again in the middle of a store, and its peers took the new process's first
 * messages for the old one's next. */
START_TEST(test_rank_that_restarts_in_mid_store_comes_back_in_a_new_epoch)
{
	int status;

	cluster_init(&cl, 2, 0, 16, 0); /* both write */
	cluster_start(&cl, restarts, restarts);
	ck_assert_int_eq(waitpid(cl.rank[1], &status, 0), cl.rank[1]);
	ck_assert(WIFSIGNALED(status));
	cl.rank[1] = fork();
	if (!cl.rank[1])
		successor();
	cluster_join(&cl, 0, 40000);
	all_were_told(3, 1);
}
END_TEST

/* --- incarnations and versions, as handles ---------------------------------------------------- */

/* The old process of a rank was only slow, woke up, and acknowledged a store of the new group. */
START_TEST(test_old_incarnation_of_a_rank_changes_nothing)
{
	struct kvr_connector *old;
	struct kvr_completion c[8];
	struct kvr_block b[N];

	ck_assert_int_eq(begin_on(lead, 1, keys, N, b), N);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(begin_on(rank[r], 1, keys, N, b), N);
	ok(kvr_group_fail(kvr_connector_group(lead), 1, -EHOSTDOWN)); /* "stalled for too long" */
	kvr_connector_close(lead);
	kvr_connector_close(rank[0]);
	old = rank[1];
	ok(kvr_connector_lead(cl.name, &cl.opts, &lead));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_join(cl.name, r, NULL, SOON, &rank[r]));
	ck_assert_uint_eq(kvr_group_epoch(kvr_connector_group(rank[1])), 2);
	/* The same request, entry and generation as before: only the epoch differs. */
	ck_assert_int_eq(begin_on(lead, 1, keys, N, b), N);
	ck_assert_int_eq(begin_on(rank[0], 1, keys, N, b), N);
	ck_assert_int_eq(begin_on(rank[1], 1, keys, N, b), N);
	ok(copied_on(rank[0], 1, 0));
	copied_on(old, 1, 0);
	ck_assert_int_eq(kvr_connector_wait_store(lead, &(struct kvr_request){ .id = 1 },
						  KVR_STAGE_COPIED, kvr_deadline(30)),
			 -ETIMEDOUT);
	must_say("not acknowledged by rank 1");
	ck_assert_int_eq(kvr_connector_check_completed(old, KVR_NEXT, 0, SOON, c, 8, NULL), 1);
	ck_assert_uint_eq(c[0].stage, KVR_STAGE_LOST);
	must_say("1 operation was lost with epoch 1");
	ck_assert_int_eq(kvr_connector_check_completed(old, KVR_NEXT, 0, SOON, c, 8, NULL),
			 -ESTALE);
	must_say("epoch 2");
	kvr_connector_close(old);
	ok(copied_on(rank[1], 1, 0));
	ck_assert_uint_eq(end_of(1, KVR_KIND_STORE).stage, KVR_STAGE_DONE);
}
END_TEST

/* A field of the segment's header as another version would have it; 0 puts everything right. */
static void other_header(uint32_t version, uint64_t tags)
{
	struct kvr_seg_header h = lead->group->header;
	char path[128];
	int fd;

	snprintf(path, sizeof path, "/dev/shm/kvr-%u-%s", (unsigned)geteuid(), cl.name);
	fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	h.version = version ? version : h.version;
	h.tag_hash = tags ? tags : h.tag_hash;
	h.checksum = kvr_header_sum(&h);
	ck_assert_int_eq(pwrite(fd, &h, sizeof h, 0), sizeof h);
	close(fd);
}

static void refused(const struct kvr_connector_opts *o, int err, const char *a, const char *b)
{
	struct kvr_connector *c = NULL;

	ck_assert_int_eq(kvr_connector_join(cl.name, 1, o, SOON, &c), err);
	ck_assert_ptr_null(c);
	must_say(a);
	must_say(b);
}

/* Two halves of different revisions met, exchanged messages, and died of the first that differed.
 */
START_TEST(test_version_skew_is_refused_with_both_values)
{
	struct kvr_model weights = { .name = "m", .revision = "9f3c", .layers = 80 },
			 other = weights;
	struct kvr_connector_opts o = { .size = sizeof o, .setup = "tp_size=8\npp_size=4\n" };
	char text[64];

	cluster_init(&cl, RANKS, 0, 16, 0);
	cluster_keys(1, keys, 128);
	cl.opts.model = &weights;
	cl.opts.setup = "tp_size=8\npp_size=2\n";
	ok(kvr_connector_lead(cl.name, &cl.opts, &lead));
	ok(kvr_connector_join(cl.name, 0, NULL, SOON, &rank[0]));
	refused(&o, -EPROTO, "pp_size", "2");
	must_say("4");
	snprintf(other.revision, sizeof other.revision, "77aa");
	o.setup = NULL;
	o.model = &other;
	refused(&o, -EPROTO, "9f3c", "77aa");
	o.model = NULL;
	o.ranks = RANKS + 1;
	refused(&o, -EPROTO, "rank", "3");
	o.ranks = 0;
	o.size -= 8; /* compiled against an older header */
	snprintf(text, sizeof text, "opts->size is %zu", o.size);
	refused(&o, -EINVAL, text, "this library's is");
	o.size = sizeof o;
	other_header(KVR_SEG_VERSION + 1, 0);
	snprintf(text, sizeof text, "0x%x", KVR_SEG_VERSION + 1);
	refused(&o, -EPROTO, "version is", text);
	other_header(0, 0xabc);
	refused(&o, -EPROTO, "tag_hash is 0xabc", "");
	/* Nobody was disturbed, nothing was repaired, and the place is still free. */
	other_header(0, 0);
	ok(kvr_connector_join(cl.name, 1, &cl.opts, SOON, &rank[1]));
	ck_assert_int_eq(store_all(1, keys, N), N);
	ck_assert_int_eq(lookup_all(2, keys, N), N);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("failures_group");
	TCase *t = tcase_create("steps");

	tcase_add_checked_fixture(t, open_trio, trio_close);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_room_that_one_rank_lacks_is_given_back_by_all);
	tcase_add_test(t, test_outcome_travels_and_is_not_computed_again);
	tcase_add_test(t, test_old_incarnation_of_a_rank_changes_nothing);
	suite_add_tcase(s, t);
	t = tcase_create("processes");
	tcase_add_checked_fixture(t, NULL, exit_cluster);
	tcase_set_timeout(t, 90);
	tcase_add_test(t, test_ranks_do_not_choose_for_themselves);
	tcase_add_test(t, test_launch_that_fails_after_the_vote_is_told_to_all);
	tcase_add_test(t, test_rank_that_restarts_in_mid_store_comes_back_in_a_new_epoch);
	suite_add_tcase(s, t);
	t = tcase_create("versions");
	tcase_add_checked_fixture(t, NULL, trio_close);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_version_skew_is_refused_with_both_values);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
