/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's half of channels: messages by request, wrong tags, what the end leaves, hostile bytes.
 */
#include "sides.h"

START_TEST(test_take_for_finds_its_request_and_keeps_the_others)
{
	char name[KVR_NAME_MAX];
	struct side l, r;
	struct kvr_message m;
	struct kvr_request four = { .id = 4 };

	test_name(name, sizeof name, "channel");
	must(lead(name, 1, &l));
	must(join(name, 0, &r));
	for (uint32_t i = 1; i <= 6; i++)
		must(publish(&l, 0, KVR_TAG_USER, i, &i, sizeof i));
	for (uint32_t i = 0; i < 3; i++) {
		static const uint32_t order[] = { 3, 1, 5 };

		must(take_for(&r, KVR_TAG_USER, order[i], &m));
		ck_assert_uint_eq(m.request.id, order[i]);
		ck_assert_uint_eq(m.number, order[i]);
		ck_assert_uint_eq(m.len, 4);
		ck_assert_mem_eq(m.data, &order[i], 4);
	}
	ck_assert_int_eq(take_for(&r, KVR_TAG_USER, 3, &m), -EAGAIN); /* had it */
	ck_assert_int_eq(take_for(&r, KVR_TAG_USER + 1, 2, &m), -EAGAIN);
	ck_assert_int_eq(kvr_channels_forget(r.c, KVR_CH_USER0, &four), 1);
	ck_assert_int_eq(kvr_channels_forget(r.c, KVR_CH_USER0, &four), 0);
	ck_assert_int_eq(take_for(&r, KVR_TAG_USER, 4, &m), -EAGAIN);
	must(take_for(&r, KVR_TAG_USER, 2, &m));
	must(take_for(&r, KVR_TAG_USER, 6, &m));
	ck_assert_uint_eq(r.g->proc->expired, 0);
	leave(&r);
	leave(&l);
}
END_TEST

START_TEST(test_another_attempt_or_space_is_another_request)
{
	char name[KVR_NAME_MAX];
	struct side l, r;
	struct kvr_message m;
	struct kvr_request a = { .id = 1, .attempt = 1 }, b = { .id = 1, .attempt = 2 };
	struct kvr_request c = { .id = 1, .attempt = 1, .space = 9 };

	test_name(name, sizeof name, "channel");
	must(lead(name, 1, &l));
	must(join(name, 0, &r));
	must(kvr_channels_publish(l.c, KVR_CH_LOOKUP, 0, KVR_TAG_LOOKUP_RESULT, &a, "a", 1, 0));
	must(kvr_channels_publish(l.c, KVR_CH_LOOKUP, 0, KVR_TAG_LOOKUP_RESULT, &b, "b", 1, 0));
	must(kvr_channels_publish(l.c, KVR_CH_LOOKUP, 0, KVR_TAG_LOOKUP_RESULT, &c, "c", 1, 0));
	must(kvr_channels_take_for(r.c, KVR_CH_LOOKUP, KVR_TAG_LOOKUP_RESULT, &c, 0, &m));
	ck_assert_mem_eq(m.data, "c", 1);
	must(kvr_channels_take_for(r.c, KVR_CH_LOOKUP, KVR_TAG_LOOKUP_RESULT, &b, 0, &m));
	ck_assert_mem_eq(m.data, "b", 1);
	must(kvr_channels_take_for(r.c, KVR_CH_LOOKUP, KVR_TAG_LOOKUP_RESULT, &a, 0, &m));
	ck_assert_mem_eq(m.data, "a", 1);
	leave(&r);
	leave(&l);
}
END_TEST

START_TEST(test_what_nobody_asks_for_expires_and_answers_nobody)
{
	char name[KVR_NAME_MAX];
	struct side l, r;
	struct kvr_message m;

	test_name(name, sizeof name, "channel");
	must(lead(name, 1, &l));
	must(join(name, 0, &r));
	for (uint32_t i = 0; i < KVR_STASH + 6; i++) {
		must(publish(&l, 0, KVR_TAG_USER, 100 + i, &i, sizeof i));
		ck_assert_int_eq(take_for(&r, KVR_TAG_USER, 1, &m), -EAGAIN);
	}
	must(publish(&l, 0, KVR_TAG_USER, 1, "mine", 4));
	must(take_for(&r, KVR_TAG_USER, 1, &m));
	ck_assert_mem_eq(m.data, "mine", 4);
	ck_assert_uint_eq(r.g->proc->expired, 6);
	ck_assert_int_eq(take_for(&r, KVR_TAG_USER, 105, &m), -EAGAIN);
	for (uint32_t i = 6; i < KVR_STASH + 6; i++) {
		must(take_for(&r, KVR_TAG_USER, 100 + i, &m));
		ck_assert_mem_eq(m.data, &i, sizeof i);
	}
	ck_assert_uint_eq(r.g->proc->expired, 6);
	leave(&r);
	leave(&l);
}
END_TEST

START_TEST(test_timeout_says_what_was_awaited_and_what_both_did)
{
	char name[KVR_NAME_MAX];
	struct side l, r;
	struct kvr_message m;
	struct kvr_request seven = { .id = 7, .attempt = 2 };

	test_name(name, sizeof name, "channel");
	must(lead(name, 1, &l));
	must(join(name, 0, &r));
	must(kvr_channels_publish(l.c, KVR_CH_STORE, 0, KVR_TAG_STORE_BEGIN, NULL, NULL, 0, 0));
	ck_assert_int_eq(kvr_channels_take_for(r.c, KVR_CH_STORE, KVR_TAG_STORE_BEGIN, &seven,
					       test_deadline_ms(20), &m),
			 -ETIMEDOUT);
	explained(kvr_explain(), "STORE", "STORE_BEGIN", "7/2", "leader", "published 1", "took 1",
		  "kept for others: 1", "PUBLISH", NULL);
	ck_assert_ptr_null(strstr(kvr_explain(), "took it before"));
	ck_assert_int_eq(kvr_channels_expect(r.c, KVR_CH_STORE, KVR_TAG_STORE_COMPLETE,
					     test_deadline_ms(20), &m),
			 -ETIMEDOUT);
	explained(kvr_explain(), "Awaited: STORE_COMPLETE (3)", NULL);
	must(kvr_channels_publish(l.c, KVR_CH_STORE, 0, KVR_TAG_STORE_BEGIN, &seven, NULL, 0, 0));
	must(kvr_channels_take_for(r.c, KVR_CH_STORE, KVR_TAG_STORE_BEGIN, &seven, 0, &m));
	ck_assert_int_eq(kvr_channels_take_for(r.c, KVR_CH_STORE, KVR_TAG_STORE_BEGIN, &seven,
					       test_deadline_ms(20), &m),
			 -ETIMEDOUT);
	explained(kvr_explain(), "took it before, as number 2", NULL);
	leave(&r);
	leave(&l);
}
END_TEST

static int expect(struct side *s, uint32_t tag, struct kvr_message *m)
{
	return kvr_channels_expect(s->c, KVR_CH_STORE, tag, test_deadline_ms(5000), m);
}

static void store(struct side *l, uint32_t tag, uint64_t id)
{
	struct kvr_request request = { .id = id };

	must(kvr_channels_publish(l->c, KVR_CH_STORE, 0, tag, &request, "12345678", 8, 0));
}

START_TEST(test_mismatch_is_explained_and_loses_nothing)
{
	char name[KVR_NAME_MAX], pid[32];
	struct side l, r;
	struct kvr_message m;

	test_name(name, sizeof name, "channel");
	must(lead(name, 3, &l));
	must(join(name, 2, &r));
	snprintf(pid, sizeof pid, "pid %d", (int)getpid());
	store(&l, KVR_TAG_STORE_BEGIN, 40);
	store(&l, KVR_TAG_STORE_BEGIN, 41);
	store(&l, KVR_TAG_STORE_BEGIN, 42);
	store(&l, KVR_TAG_STORE_COMPLETE, 40);
	must(expect(&r, KVR_TAG_STORE_BEGIN, &m));
	ck_assert_int_eq(expect(&r, KVR_TAG_STORE_COMPLETE, &m), -EPROTO);
	explained(kvr_explain(), "rank 2", "channel STORE", "message 2", "STORE_BEGIN (2)", "41/0",
		  "STORE_COMPLETE (3)", "published 4", "took 1", "number 4", "2 others", "ms ago",
		  pid, "alive", "leader is ahead", "The leader's last events", "PUBLISH",
		  "This rank's last events", "TAKE", NULL);
	ck_assert_uint_eq(r.g->proc->mismatches, 1);
	ck_assert_int_eq(expect(&r, KVR_TAG_STORE_COMPLETE, &m), -EPROTO); /* and again */
	explained(kvr_explain(), "MISMATCH", NULL);
	ck_assert_uint_eq(m.number, 1); /* untouched on failure */
	must(expect(&r, KVR_TAG_STORE_BEGIN, &m));
	ck_assert_uint_eq(m.number, 2);
	must(kvr_channels_take(r.c, KVR_CH_STORE, 0, &m));
	ck_assert_uint_eq(m.number, 3);
	must(expect(&r, KVR_TAG_STORE_COMPLETE, &m));
	ck_assert_uint_eq(m.number, 4);
	ck_assert_mem_eq(m.data, "12345678", 8);
	leave(&r);
	leave(&l);
}
END_TEST

START_TEST(test_mismatch_tells_who_asked_too_often)
{
	char name[KVR_NAME_MAX];
	struct side l, r;
	struct kvr_message m;

	test_name(name, sizeof name, "channel");
	must(lead(name, 1, &l));
	must(join(name, 0, &r));
	store(&l, KVR_TAG_STORE_COMPLETE, 1);
	store(&l, KVR_TAG_STORE_BEGIN, 2);
	must(expect(&r, KVR_TAG_STORE_COMPLETE, &m));
	ck_assert_int_eq(expect(&r, KVR_TAG_STORE_COMPLETE, &m), -EPROTO);
	explained(kvr_explain(), "asked once too often", "number 1", NULL);
	ck_assert_int_eq(expect(&r, 4711, &m), -EPROTO);
	explained(kvr_explain(), "different protocols", "4711", NULL);
	must(expect(&r, KVR_TAG_STORE_BEGIN, &m));
	leave(&r);
	leave(&l);
}
END_TEST

static void numbers(void *arg, const struct kvr_message *m)
{
	uint64_t *seen = arg;

	*seen = *seen * 10 + m->number;
}

START_TEST(test_forget_upto_drops_what_was_published_before)
{
	char name[KVR_NAME_MAX];
	struct side l, r;
	struct kvr_message m;
	uint64_t seen = 0;

	test_name(name, sizeof name, "channel");
	must(lead(name, 2, &l));
	must(join(name, 0, &r));
	kvr_channels_on_drop(r.c, numbers, &seen);
	ck_assert_int_eq(kvr_channels_forget_upto(r.c, KVR_CH_USER0, 7), 0);
	for (uint32_t i = 1; i <= 8; i++)
		must(publish(&l, i == 3 ? 2 : 0, KVR_TAG_USER, i, &i, sizeof i));
	must(take_for(&r, KVR_TAG_USER, 4, &m)); /* 1 and 2 are stashed, 3 is another rank's */
	ck_assert_int_eq(kvr_channels_forget_upto(r.c, KVR_CH_USER0, 0), 0);
	ck_assert_int_eq(kvr_channels_forget_upto(r.c, KVR_CH_USER0, 1), 1);
	ck_assert_int_eq(kvr_channels_forget_upto(r.c, KVR_CH_USER0, 6), 3);
	ck_assert_int_eq(kvr_channels_forget_upto(r.c, KVR_CH_USER0, 6), 0);
	ck_assert_uint_eq(seen, 1256);
	ck_assert_int_eq(take_for(&r, KVR_TAG_USER, 2, &m), -EAGAIN);
	must(take_for(&r, KVR_TAG_USER, 8, &m));
	must(take_for(&r, KVR_TAG_USER, 7, &m));
	ck_assert_uint_eq(r.g->proc->expired, 0);
	leave(&r);
	leave(&l);
}
END_TEST

static void drained(void *arg, const struct kvr_message *m)
{
	tell(arg, m);
}

START_TEST(test_drain_takes_what_is_there)
{
	char name[KVR_NAME_MAX];
	struct side l, r;
	struct report got = { 0 };

	test_name(name, sizeof name, "channel");
	must(lead(name, 1, &l));
	must(join(name, 0, &r));
	ck_assert_int_eq(kvr_channels_drain(r.c, KVR_CH_USER0, drained, &got), 0);
	for (uint32_t i = 0; i < 50; i++)
		must(publish(&l, 0, KVR_TAG_USER, i, "12345678", 8));
	ck_assert_int_eq(kvr_channels_drain(r.c, KVR_CH_USER0, drained, &got), 50);
	ck_assert_uint_eq(got.seen, 50);
	ck_assert_uint_eq(got.last, 50);
	ck_assert_int_eq(kvr_channels_drain(r.c, KVR_CH_USER0, drained, &got), 0);
	must(publish(&l, 0, KVR_TAG_USER, 1, "x", 1));
	leave(&l);
	ck_assert_int_eq(kvr_channels_drain(r.c, KVR_CH_USER0, drained, &got), 1);
	ck_assert_int_eq(kvr_channels_drain(r.c, KVR_CH_USER0, drained, &got), -ESHUTDOWN);
	leave(&r);
}
END_TEST

START_TEST(test_impossible_messages_are_refused_and_stay_refused)
{
	char name[KVR_NAME_MAX];
	struct side l, r;
	struct kvr_message m;
	struct kvr_msg_head head = { .number = 1 };
	struct kvr_ring_writer *w;

	test_name(name, sizeof name, "channel");
	must(lead(name, 1, &l));
	must(join(name, 0, &r));
	/* Too short for a head. */
	must(kvr_ring_write(&l.c->writer[KVR_CH_USER1], 300, "short", 5));
	ck_assert_int_eq(kvr_channels_take(r.c, KVR_CH_USER1, 0, &m), -EBADMSG);
	explained(kvr_explain(), "rank 0", "USER1", "length is 5", NULL);
	ck_assert_int_eq(kvr_channels_take(r.c, KVR_CH_USER1, test_deadline_ms(1000), &m),
			 -EBADMSG);
	/* A number that was there before. */
	must(publish(&l, 0, KVR_TAG_USER, 1, "x", 1));
	must(take(&r, &m));
	must(kvr_ring_write(&l.c->writer[KVR_CH_USER0], 300, &head, sizeof head));
	ck_assert_int_eq(take(&r, &m), -EBADMSG);
	explained(kvr_explain(), "number is 1", NULL);
	/* Above the watermark: not there yet. */
	must(kvr_ring_write(&l.c->writer[KVR_CH_USER2], 300, &head, sizeof head));
	ck_assert_int_eq(kvr_channels_take(r.c, KVR_CH_USER2, 0, &m), -EAGAIN);
	/* A commit word of garbage, of the right position: any other is no message. */
	w = &l.c->writer[KVR_CH_USER3];
	memset(w->cells, 0xa5, 4);
	ck_assert_int_eq(kvr_channels_take(r.c, KVR_CH_USER3, 0, &m), -EBADMSG);
	explained(kvr_explain(), "rank 0", "USER3", NULL);
	ck_assert_int_eq(kvr_channels_drain(r.c, KVR_CH_USER3, drained, &m), -EBADMSG);
	leave(&r);
	leave(&l);
}
END_TEST

START_TEST(test_leader_that_ends_lets_ranks_drain_first)
{
	char name[KVR_NAME_MAX];
	struct side l, r;
	struct kvr_message m;

	test_name(name, sizeof name, "channel");
	must(lead(name, 1, &l));
	must(join(name, 0, &r));
	must(publish(&l, 0, KVR_TAG_USER, 1, "x", 1));
	must(publish(&l, 0, KVR_TAG_USER, 2, "y", 1));
	leave(&l);
	must(kvr_channels_take(r.c, KVR_CH_USER0, test_deadline_ms(5000), &m));
	must(kvr_channels_take(r.c, KVR_CH_USER0, 0, &m));
	ck_assert_int_eq(kvr_channels_take(r.c, KVR_CH_USER0, 0, &m), -ESHUTDOWN);
	ck_assert_int_eq(kvr_channels_take(r.c, KVR_CH_USER0, test_deadline_ms(5000), &m),
			 -ESHUTDOWN);
	leave(&r);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("channel_take");
	TCase *t = tcase_create("channel_take");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, test_take_for_finds_its_request_and_keeps_the_others);
	tcase_add_test(t, test_another_attempt_or_space_is_another_request);
	tcase_add_test(t, test_what_nobody_asks_for_expires_and_answers_nobody);
	tcase_add_test(t, test_timeout_says_what_was_awaited_and_what_both_did);
	tcase_add_test(t, test_mismatch_is_explained_and_loses_nothing);
	tcase_add_test(t, test_mismatch_tells_who_asked_too_often);
	tcase_add_test(t, test_forget_upto_drops_what_was_published_before);
	tcase_add_test(t, test_drain_takes_what_is_there);
	tcase_add_test(t, test_impossible_messages_are_refused_and_stay_refused);
	tcase_add_test(t, test_leader_that_ends_lets_ranks_drain_first);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
