/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failures that others had, on raw channels: a rank that asks for a completion and meets something
 * else, in each way that this can come about, and readers that do not read. Each time the rank is
 * told what happened, nothing is lost, nobody dies, and the stream goes on.
 */
#include <malloc.h>

#include "sides.h"

#define CH KVR_CH_STORE
#define BEGIN KVR_TAG_STORE_BEGIN
#define COMPLETE KVR_TAG_STORE_COMPLETE
#define OTHER_BEGIN 4711u /* tags of a protocol that this library does not know */
#define OTHER_COMPLETE 4712u

static char name[KVR_NAME_MAX];
static struct side l, r[RANKS];

/* The leader and so many ranks, as handles of this process. */
static void open_sides(uint32_t ranks)
{
	test_name(name, sizeof name, "tags");
	must(lead(name, RANKS, &l));
	for (uint32_t i = 0; i < ranks; i++)
		must(join(name, i, &r[i]));
}

static void close_sides(uint32_t ranks)
{
	for (uint32_t i = 0; i < ranks; i++)
		leave(&r[i]);
	leave(&l);
}

static void send(uint32_t tag, uint64_t id)
{
	struct kvr_request request = { .id = id, .attempt = 1 };

	must(kvr_channels_publish(l.c, CH, 0, tag, &request, &id, sizeof id,
				  test_deadline_ms(10000)));
}

static int expect(uint32_t rank, uint32_t tag, struct kvr_message *m)
{
	return kvr_channels_expect(r[rank].c, CH, tag, test_deadline_ms(10000), m);
}

/* That tag is there, with that number and its payload. */
static void has(uint32_t rank, uint32_t tag, uint64_t number, uint64_t id)
{
	struct kvr_message m;

	must(expect(rank, tag, &m));
	ck_assert_uint_eq(m.number, number);
	ck_assert_uint_eq(m.tag, tag);
	ck_assert_uint_eq(m.request.id, id);
	ck_assert_uint_eq(m.len, sizeof id);
	ck_assert_mem_eq(m.data, &id, sizeof id);
}

/* It expects a completion, meets another tag, is told so; and once more, for the message stays. */
static void meets(uint32_t rank, char text[4096])
{
	struct kvr_message m = { .number = 77 };
	uint64_t before = r[rank].g->proc->mismatches;

	for (int again = 0; again < 2; again++) {
		ck_assert_int_eq(expect(rank, COMPLETE, &m), -EPROTO);
		ck_assert_uint_eq(m.number, 77);
		ck_assert_uint_eq(r[rank].g->proc->mismatches, before + 1 + (uint64_t)again);
		if (!again)
			snprintf(text, 4096, "%s", kvr_explain());
	}
	explained(kvr_explain(), "MISMATCH", NULL); /* the first one is history now */
	must(kvr_group_check(r[rank].g));
	must(kvr_group_check(l.g));
}

/* What every such sentence has, whatever the cause: ages, who, what each did. */
static void complete_sentence(const char *text)
{
	char pid[32];

	snprintf(pid, sizeof pid, "pid %d", (int)getpid());
	explained(text, "kvr_channels_expect", "channel STORE", "expected was STORE_COMPLETE (3)",
		  "It stays where it is", "It was published ", " ms ago.", "On STORE the leader",
		  "Likely cause: ", pid, "alive", "The leader's last events on it: ", "PUBLISH",
		  "This rank's last events on it:", NULL);
}

/* Both sides go on as if nothing had been. */
static void goes_on(uint32_t ranks, uint64_t number)
{
	for (uint64_t id = 900; id < 940; id++, number++) {
		send(id % 2 ? COMPLETE : BEGIN, id);
		for (uint32_t i = 0; i < ranks; i++)
			has(i, id % 2 ? COMPLETE : BEGIN, number, id);
	}
}

/* --- the wrong tag, and what led to it -------------------------------------------------------- */

/* The leader announced a store where its receivers were about to ask which stores are done. */
START_TEST(test_other_kind_first_is_explained_as_a_leader_ahead)
{
	char text[4096];

	open_sides(2);
	send(BEGIN, 40);
	send(COMPLETE, 40);
	meets(1, text);
	complete_sentence(text);
	explained(text, "rank 1,", "message 1 carries STORE_BEGIN (2) for request 40/1",
		  "published 2 messages, 2 of them to this rank, which took 0.",
		  "the leader is ahead: STORE_COMPLETE (3) comes as number 2, after 1 others",
		  "last events on it: none.", NULL);
	for (uint32_t i = 0; i < 2; i++) {
		has(i, BEGIN, 1, 40);
		has(i, COMPLETE, 2, 40);
	}
	ck_assert_uint_eq(r[0].g->proc->mismatches, 0);
	ck_assert_uint_eq(r[1].g->proc->mismatches, 2);
	goes_on(2, 3);
	close_sides(2);
}
END_TEST

/* One receiver drained once more than the leader sent, because its own memory ran short. */
START_TEST(test_asking_once_too_often_is_explained_as_that)
{
	char text[4096];

	open_sides(2);
	send(COMPLETE, 50);
	has(0, COMPLETE, 1, 50);
	has(1, COMPLETE, 1, 50);
	send(BEGIN, 51);
	meets(0, text);
	complete_sentence(text);
	explained(text, "rank 0,", "message 2 carries STORE_BEGIN (2) for request 51/1",
		  "published 2 messages, 2 of them to this rank, which took 1.",
		  "this rank asked once too often: it took STORE_COMPLETE (3) as number 1",
		  " ago TAKE channel STORE number", NULL);
	has(0, BEGIN, 2, 51);
	has(1, BEGIN, 2, 51); /* the other one never asked, and noticed nothing */
	ck_assert_uint_eq(r[1].g->proc->mismatches, 0);
	goes_on(2, 3);
	close_sides(2);
}
END_TEST

/* A receiver left a step early, did not read what belonged to it, and went on with the next. */
START_TEST(test_skipping_a_message_is_explained_by_both_counts)
{
	char text[4096];

	open_sides(2);
	for (uint64_t id = 60; id < 63; id++) {
		send(BEGIN, id);
		send(COMPLETE, id);
	}
	has(0, BEGIN, 1, 60);
	has(0, COMPLETE, 2, 60);
	meets(0, text); /* it should have begun 61 first */
	complete_sentence(text);
	explained(text, "rank 0,", "message 3 carries STORE_BEGIN (2) for request 61/1",
		  "published 6 messages, 6 of them to this rank, which took 2.",
		  "STORE_COMPLETE (3) comes as number 4, after 1 others that this rank should have "
		  "taken first",
		  " ago TAKE channel STORE number", NULL);
	for (uint64_t id = 61; id < 63; id++) {
		has(0, BEGIN, 2 * (id - 60) + 1, id);
		has(0, COMPLETE, 2 * (id - 60) + 2, id);
	}
	for (uint64_t id = 60; id < 63; id++) {
		has(1, BEGIN, 2 * (id - 60) + 1, id);
		has(1, COMPLETE, 2 * (id - 60) + 2, id);
	}
	goes_on(2, 7);
	close_sides(2);
}
END_TEST

/* The two halves came from different revisions, which number their messages differently. */
START_TEST(test_unknown_tags_are_explained_as_another_protocol)
{
	char text[4096];

	open_sides(1);
	send(OTHER_BEGIN, 70);
	send(OTHER_COMPLETE, 70);
	meets(0, text);
	complete_sentence(text);
	explained(text, "rank 0,", "message 1 carries USER (4711) for request 70/1",
		  "published 2 messages, 2 of them to this rank, which took 0.",
		  "the two follow different protocols: no STORE_COMPLETE (3) is on this channel",
		  NULL);
	has(0, OTHER_BEGIN, 1, 70);
	has(0, OTHER_COMPLETE, 2, 70);
	goes_on(1, 3);
	close_sides(1);
}
END_TEST

/* A receiver of completions in a process of its own: what is not one it takes for what it is. */
static int receive(struct side *s, struct report *rep)
{
	uint64_t deadline = test_deadline_ms(20000);
	struct kvr_message m;
	int err;

	for (;;) {
		err = kvr_channels_expect(s->c, CH, COMPLETE, deadline, &m);
		if (err == -EPROTO)
			err = kvr_channels_take(s->c, CH, 0, &m);
		if (err)
			return err;
		tell(rep, &m);
	}
}

/* The receiver took a wrong tag for the end of the world, and took the server down with it. */
START_TEST(test_tag_mismatch_does_not_kill_the_receiver)
{
	pid_t pids[RANKS];

	test_name(name, sizeof name, "tags");
	for (uint32_t i = 0; i < RANKS; i++)
		pids[i] = spawn(name, i, receive);
	must(lead_all(name, RANKS, &l));
	for (uint64_t id = 0; id < 300; id++)
		send(id % 3 == 1 ? BEGIN : id % 3 == 2 ? OTHER_BEGIN : COMPLETE, id);
	for (uint32_t i = 0; i < RANKS; i++) {
		const struct kvr_rank_page *page = kvr_group_rank_page(l.g, i);
		uint64_t deadline = test_deadline_ms(20000);

		while (kvr_load_acquire(&page->taken[CH]) < 300 && test_now_ns() < deadline)
			test_sleep_ms(1);
		ck_assert_uint_eq(kvr_load_acquire(&page->taken[CH]), 300);
		ck_assert_uint_eq(kvr_load_acquire(&page->proc.mismatches), 200);
	}
	leave(&l);
	reap(pids, RANKS);
	for (uint32_t i = 0; i < RANKS; i++) {
		ck_assert_int_eq(reports[i].err, -ESHUTDOWN);
		ck_assert_uint_eq(reports[i].seen, 300);
		ck_assert_uint_eq(reports[i].sum, reports[0].sum);
	}
}
END_TEST

/* One tag for every kind of message: whoever asked next got whatever had been sent next. */
START_TEST(test_kinds_on_channels_of_their_own_never_meet)
{
	struct kvr_message m;

	open_sides(1);
	send(BEGIN, 80);
	must(kvr_channels_publish(l.c, KVR_CH_COMPLETE, 0, COMPLETE, NULL, NULL, 0, 0));
	must(kvr_channels_publish(l.c, KVR_CH_LOOKUP, 0, KVR_TAG_LOOKUP_RESULT, NULL, "h", 1, 0));
	/* In the reverse order of their sending. */
	must(kvr_channels_expect(r[0].c, KVR_CH_LOOKUP, KVR_TAG_LOOKUP_RESULT, 0, &m));
	ck_assert_mem_eq(m.data, "h", 1);
	must(kvr_channels_expect(r[0].c, KVR_CH_COMPLETE, COMPLETE, 0, &m));
	ck_assert_uint_eq(m.len, 0); /* no completions are an answer, too */
	has(0, BEGIN, 1, 80);
	ck_assert_uint_eq(r[0].g->proc->mismatches, 0);
	close_sides(1);
}
END_TEST

/* --- readers that do not read ----------------------------------------------------------------- */

/* What was sent and not yet received stayed in the sender's heap, half a gigabyte in the end. */
START_TEST(test_unread_messages_take_bounded_memory)
{
	static const uint8_t mask[1800]; /* one byte a token, as it was there */
	size_t heap;
	uint64_t sent = 0, taken = 0;
	struct kvr_message m;
	int err;

	open_sides(1);
	must(publish(&l, 1, KVR_TAG_USER, 0, mask, sizeof mask));
	heap = mallinfo2().uordblks;
	while (!(err = kvr_channels_publish(l.c, KVR_CH_USER0, 1, KVR_TAG_USER, NULL, mask,
					    sizeof mask, 0)))
		sent++;
	ck_assert_int_eq(err, -EAGAIN); /* the policy when it is full: the caller is told */
	ck_assert_uint_le((sent + 1) * sizeof mask, RING);
	ck_assert_uint_ge(sent, 6);
	ck_assert_uint_le(mallinfo2().uordblks, heap);
	ck_assert_int_eq(kvr_channels_publish(l.c, KVR_CH_USER0, 1, KVR_TAG_USER, NULL, mask,
					      sizeof mask, test_deadline_ms(20)),
			 -ETIMEDOUT);
	explained(kvr_explain(), "rank 0 does not read channel USER0", "in a ring of 16384 bytes",
		  "Nothing was published to any rank", NULL);
	/* Other channels have their own room, and nothing of what was sent is lost. */
	send(BEGIN, 90);
	has(0, BEGIN, 1, 90);
	for (; !(err = take(&r[0], &m)); taken++)
		ck_assert_uint_eq(m.number, taken + 1);
	ck_assert_int_eq(err, -EAGAIN);
	ck_assert_uint_eq(taken, sent + 1);
	must(publish(&l, 1, KVR_TAG_USER, 0, mask, sizeof mask));
	must(take(&r[0], &m));
	ck_assert_uint_eq(m.number, sent + 2);
	close_sides(1);
}
END_TEST

static void others_took(uint64_t n)
{
	uint64_t deadline = test_deadline_ms(20000);

	for (uint32_t i = 0; i < RANKS; i += 2)
		while (kvr_load_acquire(&kvr_group_rank_page(l.g, i)->taken[KVR_CH_USER0]) < n)
			if (test_now_ns() > deadline)
				ck_abort_msg("rank %u did not take message %llu", i,
					     (unsigned long long)n);
}

/* "No room in the broadcast buffer": the writer's only message, whoever it was that did not read.
 */
START_TEST(test_slow_reader_is_named_with_its_lag_and_state)
{
	static const uint8_t data[1000];
	char lag[64], pid[32];
	pid_t pids[RANKS];
	int err, status;
	uint64_t n = 0;

	test_name(name, sizeof name, "tags");
	for (uint32_t i = 0; i < RANKS; i++)
		pids[i] = spawn(name, i, take_all);
	must(lead_all(name, RANKS, &l));
	ck_assert_int_eq(kill(pids[1], SIGSTOP), 0);
	ck_assert_int_eq(waitpid(pids[1], &status, WUNTRACED), pids[1]);
	ck_assert(WIFSTOPPED(status));
	/* Those that read are waited for before the clock runs: it must be the stopped one alone.
	 */
	do {
		others_took(n);
		err = kvr_channels_publish(l.c, KVR_CH_USER0, 0, KVR_TAG_USER, NULL, data,
					   sizeof data, test_deadline_ms(1000));
	} while (!err && ++n < 100000);
	ck_assert_int_eq(err, -ETIMEDOUT);
	snprintf(lag, sizeof lag, "it is %llu messages and ",
		 (unsigned long long)(n -
				      kvr_load_acquire(
					      &kvr_group_rank_page(l.g, 1)->taken[KVR_CH_USER0])));
	snprintf(pid, sizeof pid, "pid %d", (int)pids[1]);
	explained(kvr_explain(), "rank 1 does not read channel USER0", lag, "bytes behind",
		  "made its last progress", "ms ago", pid, "stopped",
		  "Nothing was published to any rank", NULL);
	must(kvr_group_check(l.g)); /* slow is not dead */
	ck_assert_int_eq(kill(pids[1], SIGCONT), 0);
	for (int i = 0; i < 100; i++, n++)
		must(publish(&l, 0, KVR_TAG_USER, 0, data, sizeof data));
	leave(&l);
	reap(pids, RANKS);
	for (uint32_t i = 0; i < RANKS; i++) {
		ck_assert_int_eq(reports[i].err, -ESHUTDOWN);
		ck_assert_uint_eq(reports[i].seen, n);
		ck_assert_uint_eq(reports[i].last, n);
	}
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("failures_tags");
	TCase *t = tcase_create("tags");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_other_kind_first_is_explained_as_a_leader_ahead);
	tcase_add_test(t, test_asking_once_too_often_is_explained_as_that);
	tcase_add_test(t, test_skipping_a_message_is_explained_by_both_counts);
	tcase_add_test(t, test_unknown_tags_are_explained_as_another_protocol);
	tcase_add_test(t, test_tag_mismatch_does_not_kill_the_receiver);
	tcase_add_test(t, test_kinds_on_channels_of_their_own_never_meet);
	tcase_add_test(t, test_unread_messages_take_bounded_memory);
	tcase_add_test(t, test_slow_reader_is_named_with_its_lag_and_state);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
