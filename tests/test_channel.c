/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The leader's half of channels: all ranks get the same or nothing, whoever is slow, leaves or
 * dies.
 */
#include "point.h"
#include "sides.h"

START_TEST(test_all_ranks_get_equal_messages_in_order)
{
	char name[KVR_NAME_MAX];
	uint8_t data[1500];
	pid_t pids[RANKS];
	struct side s;
	struct report sent = { 0 };

	test_name(name, sizeof name, "channel");
	for (uint32_t r = 0; r < RANKS; r++)
		pids[r] = spawn(name, r, take_all);
	must(lead_all(name, RANKS, &s));
	for (uint32_t i = 0; i < 3000; i++) {
		struct kvr_message m = { .tag = KVR_TAG_USER + i % 7,
					 .number = i + 1,
					 .request = { .id = i },
					 .data = data,
					 .len = i * 37 % sizeof data };

		memset(data, (int)i, sizeof data);
		must(publish(&s, 0, m.tag, m.request.id, data, m.len));
		tell(&sent, &m);
	}
	leave(&s);
	reap(pids, RANKS);
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert_uint_eq(reports[r].seen, 3000);
		ck_assert_uint_eq(reports[r].last, 3000);
		ck_assert_uint_eq(reports[r].sum, sent.sum);
		ck_assert_int_eq(reports[r].err, -ESHUTDOWN);
	}
}
END_TEST

START_TEST(test_publish_to_a_set_reaches_that_set_alone)
{
	char name[KVR_NAME_MAX];
	pid_t pids[RANKS];
	struct side s;

	test_name(name, sizeof name, "channel");
	for (uint32_t r = 0; r < RANKS; r++)
		pids[r] = spawn(name, r, take_all);
	must(lead_all(name, RANKS, &s));
	for (uint32_t i = 0; i < 300; i++)
		must(publish(&s, i % 3 == 0 ? 1 : i % 3 == 1 ? 5 : 0, KVR_TAG_USER, i, "x", 1));
	leave(&s);
	reap(pids, RANKS);
	ck_assert_uint_eq(reports[0].seen, 300);
	ck_assert_uint_eq(reports[1].seen, 100);
	ck_assert_uint_eq(reports[2].seen, 200);
	ck_assert_uint_eq(reports[1].last, 300); /* the number of the publish, not of the message */
	ck_assert_uint_eq(reports[2].last, 300);
}
END_TEST

START_TEST(test_channels_do_not_mix)
{
	char name[KVR_NAME_MAX];
	struct side l, r;
	struct kvr_message m;

	test_name(name, sizeof name, "channel");
	must(lead(name, 1, &l));
	must(join(name, 0, &r));
	for (uint32_t c = 0; c < KVR_CHANNELS; c++)
		must(kvr_channels_publish(l.c, c, 0, 1000 + c, NULL, &c, sizeof c, 0));
	for (uint32_t c = KVR_CHANNELS; c--;) {
		must(kvr_channels_take(r.c, c, 0, &m));
		ck_assert_uint_eq(m.channel, c);
		ck_assert_uint_eq(m.tag, 1000 + c);
		ck_assert_uint_eq(m.number, 1);
		ck_assert_uint_eq(m.len, sizeof c);
		ck_assert_mem_eq(m.data, &c, sizeof c);
		ck_assert_int_eq(kvr_channels_take(r.c, c, 0, &m), -EAGAIN);
	}
	leave(&r);
	leave(&l);
}
END_TEST

/* Rank 1 takes nothing until it is told to. */
static int take_late(struct side *s, struct report *r)
{
	r->seen = 0;
	await_go(1);
	return take_all(s, r);
}

START_TEST(test_rank_that_does_not_read_is_named_and_nothing_is_published)
{
	char name[KVR_NAME_MAX], behind[64];
	pid_t pids[RANKS];
	struct side s;
	uint64_t n = 0;
	int err;

	test_name(name, sizeof name, "channel");
	for (uint32_t r = 0; r < RANKS; r++)
		pids[r] = spawn(name, r, r == 1 ? take_late : take_all);
	must(lead_all(name, RANKS, &s));
	while (!(err = kvr_channels_publish(s.c, KVR_CH_USER0, 0, KVR_TAG_USER, NULL, "12345678", 8,
					    test_deadline_ms(300))))
		n++;
	ck_assert_int_eq(err, -ETIMEDOUT);
	ck_assert_uint_eq(n, RING / KVR_RING_CELL);
	snprintf(behind, sizeof behind, "%llu messages and %llu bytes behind",
		 (unsigned long long)n, (unsigned long long)n * KVR_RING_CELL);
	explained(kvr_explain(), "rank 1 does not read channel USER0", behind, "alive",
		  "Nothing was published", "progress", NULL);
	ck_assert_int_eq(kvr_channels_publish(s.c, KVR_CH_USER0, 0, 300, NULL, NULL, 0, 0),
			 -EAGAIN);
	must(publish(&s, 5, KVR_TAG_USER, 0, "to the others",
		     13)); /* the set without it has room */
	*go = 1;
	must(publish(&s, 0, KVR_TAG_USER, 0, "to all", 6)); /* waits until rank 1 reads */
	leave(&s);
	reap(pids, RANKS);
	ck_assert_uint_eq(reports[0].seen, n + 2);
	ck_assert_uint_eq(reports[1].seen, n + 1);
	ck_assert_uint_eq(reports[2].seen, n + 2);
	ck_assert_uint_eq(reports[0].sum, reports[2].sum);
}
END_TEST

static int leave_at_once(struct side *s, struct report *r)
{
	(void)s;
	(void)r;
	return 0;
}

START_TEST(test_rank_that_left_in_good_order_holds_nobody_up)
{
	char name[KVR_NAME_MAX];
	pid_t pids[2];
	struct side s;

	test_name(name, sizeof name, "channel");
	pids[0] = spawn(name, 0, take_all);
	pids[1] = spawn(name, 1, leave_at_once);
	must(lead_all(name, 2, &s));
	reap(&pids[1], 1);
	for (uint32_t i = 0; i < 1000; i++)
		must(publish(&s, 0, KVR_TAG_USER, i, "12345678", 8));
	leave(&s);
	reap(pids, 1);
	ck_assert_uint_eq(reports[0].seen, 1000);
}
END_TEST

static int die(struct side *s, struct report *r)
{
	(void)s;
	r->seen = 1;
	await_go(1);
	raise(SIGKILL);
	return 0;
}

START_TEST(test_death_of_a_rank_ends_a_publish_that_waits_for_it)
{
	char name[KVR_NAME_MAX];
	uint64_t start;
	struct side s;
	pid_t pid;
	int err;

	test_name(name, sizeof name, "channel");
	pid = spawn(name, 0, die);
	must(lead_all(name, 1, &s));
	while (!(err = kvr_channels_publish(s.c, KVR_CH_USER0, 0, 300, NULL, NULL, 0, 0)))
		;
	ck_assert_int_eq(err, -EAGAIN);
	start = test_now_ns();
	while (!reports[0].seen && test_now_ns() - start < 5000000000u)
		test_sleep_ms(1);
	*go = 1;
	ck_assert_int_eq(publish(&s, 0, KVR_TAG_USER, 1, "x", 1), -EOWNERDEAD);
	explained(kvr_explain(), "rank 0", "dead", NULL);
	ck_assert_int_eq(publish(&s, 0, KVR_TAG_USER, 1, "x", 1), -EOWNERDEAD);
	ck_assert_int_eq(WTERMSIG(test_reap(pid, 5000)), SIGKILL);
	leave(&s);
	remove_group(name); /* it was declared over, and stays to be looked at */
}
END_TEST

static enum kvr_point kill_at;
static uint32_t kill_arg;
static uint32_t kill_after; /* publishes */
static uint32_t passed;

static void hook(enum kvr_point point, uint32_t arg)
{
	if (point == kill_at && arg == kill_arg && ++passed > kill_after)
		raise(SIGKILL);
}

static void lead_and_die(const char *name)
{
	struct side s;

	if (lead_all(name, RANKS, &s))
		_exit(99);
	kvr_point_hook = hook;
	for (uint32_t i = 0; i < 1000; i++)
		if (publish(&s, 0, KVR_TAG_USER + i % 3, i, &i, sizeof i))
			_exit(98);
	_exit(97);
}

static void kill_leader_at(enum kvr_point point, uint32_t arg, uint64_t expected)
{
	char name[KVR_NAME_MAX];
	pid_t pids[RANKS], leader;

	memset(reports, 0, RANKS * sizeof *reports);
	test_name(name, sizeof name, "channel");
	for (uint32_t r = 0; r < RANKS; r++)
		pids[r] = spawn(name, r, take_all);
	kill_at = point;
	kill_arg = arg;
	kill_after = 20;
	leader = fork();
	if (!leader)
		lead_and_die(name);
	ck_assert_int_eq(WTERMSIG(test_reap(leader, 5000)), SIGKILL);
	reap(pids, RANKS);
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert_msg(reports[r].seen == expected, "%s %u: rank %u saw %llu, expected %llu",
			      kvr_point_name(point), arg, r, (unsigned long long)reports[r].seen,
			      (unsigned long long)expected);
		ck_assert_uint_eq(reports[r].sum, reports[0].sum);
		ck_assert_int_eq(reports[r].err, -EOWNERDEAD);
		explained(reports[r].why, "leader", "died", NULL);
	}
	remove_group(name);
}

START_TEST(test_leader_killed_in_a_publish_leaves_equal_histories)
{
	kill_leader_at(KVR_POINT_publish_copied, 0, 20);
	kill_leader_at(KVR_POINT_publish_copied, 1, 20);
	kill_leader_at(KVR_POINT_publish_copied, 2,
		       20); /* two ranks have the copy, the third does not */
	kill_leader_at(KVR_POINT_publish_committed, KVR_CH_USER0, 20);
	kill_leader_at(KVR_POINT_publish_marked, KVR_CH_USER0, 21);
}
END_TEST

START_TEST(test_message_up_to_the_maximum_and_not_beyond)
{
	char name[KVR_NAME_MAX];
	struct side l, r;
	struct kvr_message m;
	uint32_t max, largest;
	uint8_t *data;

	test_name(name, sizeof name, "channel");
	must(lead(name, 1, &l));
	must(join(name, 0, &r));
	max = kvr_channels_inline_payload(l.c);
	ck_assert_uint_eq(max, RING / 8 - 16 - 32);
	ck_assert_uint_eq(kvr_channels_inline_payload(r.c), max);
	largest = kvr_channels_max_payload(l.c);
	ck_assert_uint_eq(largest, l.g->layout.bulk_bytes / 4);
	data = calloc(1, largest + 1);
	ck_assert_ptr_nonnull(data);
	ck_assert_int_eq(publish(&l, 0, KVR_TAG_USER, 1, data, largest + 1), -EMSGSIZE);
	explained(kvr_explain(), "USER0", "262145 bytes", "2000 at most", "262144 in", NULL);
	for (int i = 0; i < 40; i++) { /* five laps */
		memset(data, i, max);
		must(publish(&l, 0, KVR_TAG_USER, 1, data, max));
		must(take(&r, &m));
		ck_assert_uint_eq(m.len, max);
		ck_assert_mem_eq(m.data, data, max);
	}
	must(publish(&l, 0, KVR_TAG_USER, 1, NULL, 0));
	must(take(&r, &m));
	ck_assert_uint_eq(m.len, 0);
	free(data);
	leave(&r);
	leave(&l);
}
END_TEST

START_TEST(test_wrong_arguments_are_refused)
{
	char name[KVR_NAME_MAX];
	struct side l, r;
	struct kvr_channels *again;
	struct kvr_message m;

	test_name(name, sizeof name, "channel");
	must(lead(name, 2, &l));
	must(join(name, 0, &r));
	ck_assert_int_eq(kvr_channels_publish(l.c, KVR_CHANNELS, 0, 1, NULL, NULL, 0, 0), -EINVAL);
	ck_assert_int_eq(kvr_channels_publish(l.c, KVR_CH_USER0, 4, 1, NULL, NULL, 0, 0), -EINVAL);
	explained(kvr_explain(), "0x4", "group has 2", NULL);
	ck_assert_int_eq(kvr_channels_publish(r.c, KVR_CH_USER0, 0, 1, NULL, NULL, 0, 0), -EINVAL);
	ck_assert_int_eq(kvr_channels_take(l.c, KVR_CH_USER0, 0, &m), -EINVAL);
	explained(kvr_explain(), "ranks take", "the leader", NULL);
	ck_assert_int_eq(kvr_channels_take(r.c, 77, 0, &m), -EINVAL);
	ck_assert_int_eq(take(&r, &m), -EAGAIN);
	must(publish(&l, 0, KVR_TAG_USER, 1, "x", 1));
	must(take(&r, &m));
	ck_assert_int_eq(kvr_channels_open(l.g, &again), -EBUSY);
	ck_assert_int_eq(kvr_channels_open(r.g, &again), -EBUSY);
	leave(&r);
	leave(&l);
}
END_TEST

START_TEST(test_impossible_cursor_of_a_rank_is_named)
{
	char name[KVR_NAME_MAX];
	struct side l, r;
	int err;

	test_name(name, sizeof name, "channel");
	must(lead(name, 2, &l));
	must(join(name, 1, &r));
	kvr_group_own_page(r.g)->cursor[KVR_CH_USER0][0] = 1ull << 50;
	while (!(err = kvr_channels_publish(l.c, KVR_CH_USER0, 2, 300, NULL, NULL, 0, 0)))
		;
	ck_assert_int_eq(err, -EBADMSG);
	explained(kvr_explain(), "rank 1", "USER0", "cursor", NULL);
	must(publish(&l, 1, KVR_TAG_USER, 1, "x", 1)); /* the other rank is not concerned */
	leave(&r);
	leave(&l);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("channel");
	TCase *t = tcase_create("channel");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, test_all_ranks_get_equal_messages_in_order);
	tcase_add_test(t, test_publish_to_a_set_reaches_that_set_alone);
	tcase_add_test(t, test_channels_do_not_mix);
	tcase_add_test(t, test_rank_that_does_not_read_is_named_and_nothing_is_published);
	tcase_add_test(t, test_rank_that_left_in_good_order_holds_nobody_up);
	tcase_add_test(t, test_death_of_a_rank_ends_a_publish_that_waits_for_it);
	tcase_add_test(t, test_leader_killed_in_a_publish_leaves_equal_histories);
	tcase_add_test(t, test_message_up_to_the_maximum_and_not_beyond);
	tcase_add_test(t, test_wrong_arguments_are_refused);
	tcase_add_test(t, test_impossible_cursor_of_a_rank_is_named);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
