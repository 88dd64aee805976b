/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Barriers and reductions with members that call otherwise, or whose pages hold nonsense, and what
 * a caller may ask for. Leader and ranks are mostly handles of one process, which poll.
 */
#include "sides.h"

#define LATE 15000 /* ms; nothing takes that long unless it hangs */
#define FUZZ 200000

static struct side l, rank[RANKS];
static char name[KVR_NAME_MAX];

static void begin(void)
{
	setup();
	test_name(name, sizeof name, "meet");
	must(lead(name, RANKS, &l));
	for (uint32_t r = 0; r < RANKS; r++)
		must(join(name, r, &rank[r]));
}

static void end(void)
{
	for (uint32_t r = 0; r < RANKS; r++)
		leave(&rank[r]);
	leave(&l);
	kvr_group_remove(name, NULL); /* an epoch that was declared over stays to be looked at */
	teardown();
}

static int barrier(uint32_t r)
{
	return kvr_channels_barrier(rank[r].c, 0, 0, 0);
}

static int reduce(uint32_t r, uint32_t n)
{
	int64_t v[KVR_MEET_VALUES] = { r, r, r, r, r, r };

	return kvr_channels_min_reduce(rank[r].c, 0, 0, v, n, v, 0);
}

/* What that rank says about its round in the set it met in first. */
static struct kvr_meet *entry(uint32_t r)
{
	return kvr_group_own_page(rank[r].g)->meet;
}

static void all_meet(void)
{
	ck_assert_int_eq(barrier(0), -EAGAIN);
	ck_assert_int_eq(barrier(1), -EAGAIN);
	ck_assert_int_eq(barrier(2), 0);
	ck_assert_int_eq(barrier(1), 0);
	ck_assert_int_eq(barrier(0), 0);
}

START_TEST(test_barrier_against_reduction_is_told_to_all)
{
	char first[1536];

	all_meet();
	ck_assert_int_eq(barrier(0), -EAGAIN);
	ck_assert_int_eq(reduce(1, 3), -EPROTO);
	explained(kvr_explain(),
		  "kvr_channels_min_reduce over ranks 0x7: round 2 is a reduction of 3 values to "
		  "this process, and a barrier to rank 0 (pid ",
		  "this set is out of use", NULL);
	ck_assert_int_eq(reduce(2, 3), -EPROTO);
	explained(kvr_explain(), "a barrier to rank 0 (", NULL);
	ck_assert_int_eq(barrier(0), -EPROTO);
	explained(
		kvr_explain(),
		"kvr_channels_barrier over ranks 0x7: round 2 is a barrier to this process, and a "
		"reduction of 3 values to rank 1 (",
		NULL);
	/* For good, and the first sentence stays. */
	snprintf(first, sizeof first, "%s", kvr_explain());
	entry(1)->round = 2 << 8;
	ck_assert_int_eq(reduce(0, 3), -EPROTO);
	ck_assert_str_eq(kvr_explain(), first);
	/* Other sets go on. */
	ck_assert_int_eq(kvr_channels_barrier(rank[0].c, 3, 0, 0), -EAGAIN);
	ck_assert_int_eq(kvr_channels_barrier(rank[1].c, 3, 0, 0), 0);
}
END_TEST

START_TEST(test_other_number_of_values)
{
	ck_assert_int_eq(reduce(0, 2), -EAGAIN);
	ck_assert_int_eq(reduce(1, 2), -EAGAIN);
	ck_assert_int_eq(reduce(2, 6), -EPROTO);
	explained(kvr_explain(),
		  "round 1 is a reduction of 6 values to this process, and a reduction of 2 values "
		  "to rank 0 (",
		  NULL);
	ck_assert_int_eq(reduce(1, 2), -EPROTO);
	explained(kvr_explain(), "a reduction of 6 values to rank 2 (", NULL);
}
END_TEST

/* A member asleep is woken for it: what it waited for will not come. */
static int sleep_in_barrier(struct side *s, struct report *r)
{
	int err = kvr_channels_barrier(s->c, 0, 0, test_deadline_ms(LATE));

	r->seen = s->g->waiter.sleeps;
	r->sum = s->g->bells[0].seq;
	return err;
}

START_TEST(test_sleeper_is_woken_for_a_mismatch)
{
	char own[KVR_NAME_MAX];
	int64_t v = 0;
	struct side lead_, one;
	pid_t pid;

	test_name(own, sizeof own, "meet");
	pid = spawn(own, 0, sleep_in_barrier);
	must(lead(own, 2, &lead_));
	must(join(own, 1, &one));
	for (struct kvr_peer p = { 0 }; p.call != KVR_CALL_BARRIER; test_sleep_ms(1))
		must(kvr_group_peer(lead_.g, 0, &p));
	while (!kvr_load_acquire32(&one.g->bells[0].parked))
		test_sleep_ms(1);
	ck_assert_int_eq(kvr_channels_min_reduce(one.c, 0, 0, &v, 1, &v, 0), -EPROTO);
	reap(&pid, 1);
	ck_assert_int_eq(reports[0].err, -EPROTO);
	ck_assert_uint_gt(reports[0].sum, 0); /* its bell was rung */
	leave(&one);
	leave(&lead_);
}
END_TEST

/* --- nonsense --- */

static const struct {
	uint64_t round; /* of rank 1, while rank 0 is in round 2 */
	int err;
	const char *text;
} words[] = {
	{ 0, -EBADMSG, "says round 0 with 0 values; 1 to 3, and at most 6 values, are possible" },
	{ 4 << 8, -EBADMSG, "says round 4 with 0 values" },
	{ 2 << 8 | 7, -EBADMSG, "says round 2 with 7 values" },
	{ 3 << 8 | 255, -EBADMSG, "says round 3 with 255 values" },
	{ UINT64_MAX, -EBADMSG, "says round 72057594037927935 with 255 values" },
	{ 1ull << 63 | 2 << 8, -EBADMSG, "says round 36028797018963970 with 0 values" },
	{ 2 << 8 | 1, -EPROTO, "and a reduction of 1 values to rank 1 (" },
	{ 1 << 8, -EAGAIN, NULL },
	{ 1 << 8 | 200, -EAGAIN, NULL }, /* of a round that is over */
	{ 2 << 8, 0, NULL },
	{ 3 << 8, 0, NULL },
	{ 3 << 8 | 6, 0, NULL },
};

START_TEST(test_impossible_rounds)
{
	char first[1536];

	all_meet();
	ck_assert_int_eq(barrier(2), -EAGAIN);
	entry(1)->round = words[_i].round;
	ck_assert_int_eq(barrier(0), words[_i].err);
	if (words[_i].text)
		explained(kvr_explain(), words[_i].text, NULL);
	if (words[_i].err != -EBADMSG)
		return;
	explained(kvr_explain(), "the page of rank 1 (pid ", "it was overwritten", NULL);
	snprintf(first, sizeof first, "%s", kvr_explain());
	entry(1)->round = 2 << 8;
	ck_assert_int_eq(barrier(0), -EBADMSG);
	ck_assert_str_eq(kvr_explain(), first);
}
END_TEST

START_TEST(test_own_page_is_not_believed)
{
	all_meet();
	entry(0)->round = 77 << 8;
	ck_assert_int_eq(barrier(0), -EAGAIN); /* which mends it */
	ck_assert_uint_eq(entry(0)->round, 2 << 8);
	ck_assert_int_eq(barrier(1), -EAGAIN);
	ck_assert_int_eq(barrier(2), 0);
	ck_assert_int_eq(barrier(0), 0);
}
END_TEST

static uint64_t random_state;

static uint64_t rnd(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

/* The entries of rank 1 and of the leader are written over all the time, mostly by what may pass.
 */
START_TEST(test_random_words_never_do_harm)
{
	struct kvr_meet *at[2];
	uint32_t rounds = 0, r = 0;

	random_state = test_seed() | 1;
	at[0] = entry(1);
	at[1] = kvr_group_leader_page(l.g)->meet;
	for (uint32_t i = 0; i < FUZZ; i++) {
		uint64_t *word = (uint64_t *)at[rnd() % 2] + rnd() % (KVR_MEETS * 16);
		const struct kvr_meet_set *own = &rank[r].c->meets.set[rnd() % KVR_MEETS];
		uint64_t sets[] = { 3, 7, 1, 0, rnd() };
		uint64_t likely[] = { (own->round + rnd() % 3) << 8 | own->n, rnd() % 8, 7, rnd(),
				      1ull << rnd() % 64 };
		uint32_t n = (uint32_t)(rnd() % 3);
		int64_t v[2] = { 0 };
		int err;

		kvr_store_relaxed(word, likely[rnd() % 5]);
		r = rnd() % 2 ? 0 : 2;
		err = n ? kvr_channels_min_reduce(rank[r].c, sets[rnd() % 5], rnd() % 2, v, n, v, 0)
			: kvr_channels_barrier(rank[r].c, sets[rnd() % 5], rnd() % 2, 0);
		rounds += !err;
		if (err && err != -EAGAIN && err != -EBADMSG && err != -EPROTO && err != -EINVAL &&
		    err != -ENOSPC)
			ck_abort_msg("%d: %s", err, kvr_explain());
		/* Out of use is final: begin anew, now and then. */
		if (i % 64 == 0) {
			memset(&rank[r].c->meets, 0, sizeof rank[r].c->meets);
			memset(entry(r), 0, sizeof(struct kvr_meet[KVR_MEETS]));
		}
	}
	ck_assert_uint_gt(rounds, 100);
}
END_TEST

/* --- what a caller may ask --- */

START_TEST(test_refused_calls)
{
	int64_t v[8] = { 0 }, untouched = 5;

	ck_assert_int_eq(kvr_channels_barrier(l.c, 0, 0, 0), -EINVAL);
	explained(kvr_explain(), "kvr_channels_barrier over ranks 0x7: this is the leader; only",
		  NULL);
	ck_assert_int_eq(kvr_channels_barrier(rank[1].c, 5, 1, 0), -EINVAL);
	explained(kvr_explain(), "over ranks 0x5 and the leader: this is rank 1; only members",
		  NULL);
	ck_assert_int_eq(kvr_channels_barrier(rank[1].c, 0x12, 0, 0), -EINVAL);
	explained(kvr_explain(), "over ranks 0x12: the group has 3 ranks", NULL);
	ck_assert_int_eq(kvr_channels_min_reduce(rank[1].c, 0, 0, v, 0, &untouched, 0), -EINVAL);
	explained(kvr_explain(), "0 values; 1 to 6 are possible", NULL);
	ck_assert_int_eq(kvr_channels_min_reduce(rank[1].c, 0, 0, v, 7, &untouched, 0), -EINVAL);
	ck_assert_int_eq(untouched, 5);
	/* None of them has arrived anywhere. */
	ck_assert_uint_eq(rank[1].c->meets.count, 0);
	ck_assert_uint_eq(l.c->meets.count, 0);
}
END_TEST

START_TEST(test_ninth_set)
{
	uint64_t sets[] = { 1, 3, 5, 7 };

	for (uint32_t i = 0; i < KVR_MEETS; i++)
		ck_assert_int_eq(kvr_channels_barrier(rank[0].c, sets[i % 4], i >= 4, 0),
				 i ? -EAGAIN : 0);
	/* In a group of three ranks there are no more. */
	rank[0].c->meets.set[0].ranks = 0x1000;
	ck_assert_int_eq(kvr_channels_barrier(rank[0].c, 1, 0, 0), -ENOSPC);
	explained(
		kvr_explain(),
		"over ranks 0x1: this process met in 8 other sets already: 0x1000, 0x3, 0x5, 0x7, "
		"0x1 and the leader, 0x3 and the leader, 0x5 and the leader, 0x7 and the leader; "
		"an epoch has room for no more",
		NULL);
	rank[0].c->meets.set[0].ranks = 1;
	ck_assert_int_eq(kvr_channels_barrier(rank[1].c, 3, 0, 0), 0);
	ck_assert_int_eq(kvr_channels_barrier(rank[0].c, 3, 0, 0), 0);
}
END_TEST

START_TEST(test_unfinished_round_comes_first)
{
	ck_assert_int_eq(reduce(0, 2), -EAGAIN);
	ck_assert_int_eq(barrier(0), -EINVAL);
	explained(kvr_explain(),
		  "kvr_channels_barrier over ranks 0x7: a barrier, but round 1 is a reduction of 2 "
		  "values and has not ended",
		  NULL);
	ck_assert_int_eq(reduce(1, 2), -EAGAIN);
	ck_assert_int_eq(reduce(2, 2), 0);
	ck_assert_int_eq(reduce(0, 2), 0);
}
END_TEST

START_TEST(test_epoch_that_is_over_has_no_new_rounds)
{
	ck_assert_int_eq(barrier(0), -EAGAIN);
	must(kvr_group_fail(l.g, KVR_MAX_RANKS, -EIO));
	ck_assert_int_eq(barrier(1), -EIO);
	explained(kvr_explain(), "declared epoch 1 over", NULL);
	ck_assert_uint_eq(entry(1)->round, 0);
	ck_assert_int_eq(barrier(0), -EIO); /* whose round goes on */
}
END_TEST

/* Whoever was told first has left by now, and is not the reason. */
START_TEST(test_end_of_the_epoch_comes_before_those_who_left)
{
	ck_assert_int_eq(barrier(0), -EAGAIN);
	must(kvr_group_fail(l.g, KVR_MAX_RANKS, -EIO));
	leave(&rank[1]);
	rank[1] = (struct side){ 0 };
	ck_assert_int_eq(barrier(0), -EIO);
	ck_assert_int_eq(kvr_channels_barrier(rank[0].c, 0, 0, test_deadline_ms(LATE)), -EIO);
	explained(kvr_explain(), "declared epoch 1 over", NULL);
}
END_TEST

START_TEST(test_rounds_do_not_begin_again)
{
	struct kvr_channels *again;

	all_meet();
	kvr_channels_close(rank[0].c);
	must(kvr_channels_open(rank[0].g, &again));
	rank[0].c = again;
	ck_assert_int_eq(barrier(0), -EBUSY);
	explained(kvr_explain(), "this process met in epoch 1 of group", "closed", NULL);
}
END_TEST

START_TEST(test_forked_child_is_refused)
{
	int status;
	pid_t pid = fork();

	if (!pid)
		_exit(barrier(0) != -EINVAL || !strstr(kvr_explain(), "in a forked child"));
	status = test_reap(pid, 10000);
	ck_assert_int_eq(status, 0);
	all_meet();
}
END_TEST

/* --- what others see --- */

static void count_one(void *arg)
{
	++*(uint32_t *)arg;
}

START_TEST(test_waiting_rank_looks_at_other_channels)
{
	uint32_t looks = 0;

	kvr_channels_on_wait(rank[1].c, count_one, &looks);
	ck_assert_int_eq(kvr_channels_barrier(rank[1].c, 0, 0, test_deadline_ms(150)), -ETIMEDOUT);
	ck_assert_uint_gt(looks, 1);
	ck_assert_ptr_eq(rank[1].g->waiter.bell, rank[1].g->bell); /* for what it waits for next */
}
END_TEST

START_TEST(test_calls_are_counted_and_recorded)
{
	struct kvr_group *g = rank[0].g;
	const struct kvr_event *e;
	uint64_t before = g->rec.count;
	struct kvr_peer p;

	for (int i = 0; i < 50; i++)
		ck_assert_int_eq(barrier(0), -EAGAIN);
	ck_assert_uint_eq(g->rec.count, before); /* polls do not push out what happened */
	ck_assert_int_eq(barrier(1), -EAGAIN);
	ck_assert_int_eq(barrier(2), 0);
	ck_assert_int_eq(barrier(0), 0);
	ck_assert_uint_eq(g->rec.count, before + 1);
	e = &g->rec.events[before & (g->rec.capacity - 1)];
	ck_assert_uint_eq(e->kind, KVR_EV_CALL);
	ck_assert_uint_eq(e->call, KVR_CALL_BARRIER);
	ck_assert_int_eq(e->result, 0);
	ck_assert_uint_eq(kvr_group_rank_page(l.g, 0)->calls[KVR_CALL_BARRIER], 51);
	must(kvr_group_peer(l.g, 0, &p));
	ck_assert_uint_eq(p.call, KVR_CALL_NONE);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("channel_meet_peers");
	TCase *t = tcase_create("meet"), *t2 = tcase_create("processes");

	tcase_add_checked_fixture(t, begin, end);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_barrier_against_reduction_is_told_to_all);
	tcase_add_test(t, test_other_number_of_values);
	tcase_add_loop_test(t, test_impossible_rounds, 0, (int)KVR_ARRAY_LEN(words));
	tcase_add_test(t, test_own_page_is_not_believed);
	tcase_add_test(t, test_random_words_never_do_harm);
	tcase_add_test(t, test_refused_calls);
	tcase_add_test(t, test_ninth_set);
	tcase_add_test(t, test_unfinished_round_comes_first);
	tcase_add_test(t, test_epoch_that_is_over_has_no_new_rounds);
	tcase_add_test(t, test_end_of_the_epoch_comes_before_those_who_left);
	tcase_add_test(t, test_rounds_do_not_begin_again);
	tcase_add_test(t, test_forked_child_is_refused);
	tcase_add_test(t, test_waiting_rank_looks_at_other_channels);
	tcase_add_test(t, test_calls_are_counted_and_recorded);
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t2, setup, teardown);
	tcase_add_test(t2, test_sleeper_is_woken_for_a_mismatch);
	suite_add_tcase(s, t2);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
