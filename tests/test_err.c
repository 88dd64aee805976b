/* SPDX-License-Identifier: Apache-2.0 */
/* The sentence of the last failure: one per thread, whole after odd arguments, never too long. */
#include "harness.h"

#include <limits.h>
#include <pthread.h>

#include "err.h"

START_TEST(test_nothing_failed_yet)
{
	ck_assert_str_eq(kvr_explain(), "");
}
END_TEST

START_TEST(test_failure_keeps_its_number_and_sentence)
{
	ck_assert_int_eq(KVR_FAIL(-EPROTO, "%s: version %u, expected %u", "ring", 3u, 1u), -EPROTO);
	ck_assert_str_eq(kvr_explain(), "ring: version 3, expected 1");
	ck_assert_str_eq(kvr_explain(), "ring: version 3, expected 1");
	ck_assert_int_eq(KVR_FAIL(-ENOENT, "other"), -ENOENT);
	ck_assert_str_eq(kvr_explain(), "other");
}
END_TEST

START_TEST(test_more_is_appended)
{
	ck_assert_int_eq(KVR_FAIL(-EIO, "read failed"), -EIO);
	ck_assert_int_eq(kvr_fail_more(-EBUSY, " (of %s)", "store"), -EBUSY);
	ck_assert_int_eq(kvr_fail_more(-EBUSY, ", slot %d", 7), -EBUSY);
	ck_assert_str_eq(kvr_explain(), "read failed (of store), slot 7");
}
END_TEST

/* Callers wrap the sentence of a lower layer in their own. */
START_TEST(test_old_sentence_may_be_an_argument)
{
	KVR_FAIL(-EIO, "inner");
	ck_assert_int_eq(KVR_FAIL(-EIO, "outer: %s, again %s", kvr_explain(), kvr_explain()), -EIO);
	ck_assert_str_eq(kvr_explain(), "outer: inner, again inner");
	kvr_fail_more(-EIO, "; was: %s.", kvr_explain());
	ck_assert_str_eq(kvr_explain(), "outer: inner, again inner; was: outer: inner, again "
					"inner.");
}
END_TEST

START_TEST(test_long_sentence_is_cut)
{
	static char text[100000];
	size_t len, at;

	memset(text, 'x', sizeof text - 1);
	ck_assert_int_eq(KVR_FAIL(-EINVAL, "a%s", text), -EINVAL);
	len = strlen(kvr_explain());
	ck_assert_uint_gt(len, 200);
	ck_assert_uint_lt(len, 16384);
	ck_assert_int_eq(kvr_explain()[0], 'a');
	/* no room: nothing is appended, nothing is written past the end */
	ck_assert_int_eq(kvr_fail_more(-EAGAIN, "%s", text), -EAGAIN);
	ck_assert_uint_eq(strlen(kvr_explain()), len);
	/* a part of the room: cut at the same place */
	text[len - 5] = 0;
	KVR_FAIL(-EINVAL, "%s", text);
	kvr_fail_more(-EINVAL, "0123456789");
	ck_assert_uint_eq(strlen(kvr_explain()), len);
	ck_assert_str_eq(kvr_explain() + len - 5, "01234");
	/* and what was long leaves no rest */
	KVR_FAIL(-EINVAL, "short");
	ck_assert_str_eq(kvr_explain(), "short");
	for (at = 0; at < 3; at++)
		KVR_FAIL(-EINVAL, "%s%s", kvr_explain(), kvr_explain());
	ck_assert_uint_eq(strlen(kvr_explain()), 40);
}
END_TEST

#define THREADS 4

struct talker {
	pthread_t thread;
	pthread_barrier_t *barrier;
	int number;
	const char *bad; /* what was seen instead */
	const char *where;
};

static void *talk(void *arg)
{
	struct talker *t = arg;
	char expected[64];
	int i;

	if (kvr_explain()[0])
		t->bad = "a new thread has a sentence";
	for (i = 0; i < 2000 && !t->bad; i++) {
		pthread_barrier_wait(t->barrier);
		kvr_fail(-EIO, "thread %d, failure", t->number);
		kvr_fail_more(-EIO, " %d", i);
		pthread_barrier_wait(t->barrier);
		snprintf(expected, sizeof expected, "thread %d, failure %d", t->number, i);
		if (strcmp(kvr_explain(), expected) != 0)
			t->bad = "the sentence of another thread or failure";
	}
	t->where = kvr_explain();
	pthread_barrier_wait(t->barrier);
	return NULL;
}

START_TEST(test_threads_have_their_own_sentence)
{
	struct talker t[THREADS] = { 0 };
	pthread_barrier_t barrier;
	int i, k;

	KVR_FAIL(-EIO, "main");
	ck_assert_int_eq(pthread_barrier_init(&barrier, NULL, THREADS), 0);
	for (i = 0; i < THREADS; i++) {
		t[i].barrier = &barrier;
		t[i].number = i;
		ck_assert_int_eq(pthread_create(&t[i].thread, NULL, talk, &t[i]), 0);
	}
	for (i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_join(t[i].thread, NULL), 0);
	pthread_barrier_destroy(&barrier);
	for (i = 0; i < THREADS; i++) {
		ck_assert_msg(!t[i].bad, "thread %d: %s", i, t[i].bad ? t[i].bad : "");
		for (k = 0; k < i; k++)
			ck_assert_ptr_ne(t[i].where, t[k].where);
	}
	ck_assert_str_eq(kvr_explain(), "main");
}
END_TEST

START_TEST(test_strerror_takes_either_sign)
{
	ck_assert_str_eq(kvr_strerror(ENOENT), kvr_strerror(-ENOENT));
	ck_assert_str_ne(kvr_strerror(ENOENT), kvr_strerror(ENOSPC));
	ck_assert_ptr_nonnull(strstr(kvr_strerror(-ENOENT), "No such file"));
	ck_assert_ptr_nonnull(kvr_strerror(0));
}
END_TEST

START_TEST(test_strerror_of_no_error_number)
{
	static const int odd[] = { 4095, -4095, 1000000, -1000000, INT_MAX, -INT_MAX, INT_MIN };
	size_t i;

	for (i = 0; i < sizeof odd / sizeof odd[0]; i++) {
		ck_assert_ptr_nonnull(kvr_strerror(odd[i]));
		ck_assert_uint_gt(strlen(kvr_strerror(odd[i])), 0);
	}
}
END_TEST

START_TEST(test_strerror_leaves_the_sentence)
{
	KVR_FAIL(-EIO, "stays");
	kvr_strerror(-ENOMEM);
	ck_assert_str_eq(kvr_explain(), "stays");
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("err");
	TCase *c = tcase_create("err");

	tcase_add_test(c, test_nothing_failed_yet);
	tcase_add_test(c, test_failure_keeps_its_number_and_sentence);
	tcase_add_test(c, test_more_is_appended);
	tcase_add_test(c, test_old_sentence_may_be_an_argument);
	tcase_add_test(c, test_long_sentence_is_cut);
	tcase_add_test(c, test_threads_have_their_own_sentence);
	tcase_add_test(c, test_strerror_takes_either_sign);
	tcase_add_test(c, test_strerror_of_no_error_number);
	tcase_add_test(c, test_strerror_leaves_the_sentence);
	suite_add_tcase(s, c);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
