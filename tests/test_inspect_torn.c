/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A read that is torn on purpose: in the middle of it the group writes on, so far that what was
 * read first and what is read then do not belong together. Looks and copies must leave out what may
 * be torn, and keep what cannot be.
 */
#include <sys/syscall.h>

#include "inspect_util.h"

#define PAYLOAD 100u /* and its heads: three cells; 85 messages a lap */

static char name[KVR_NAME_MAX];
static struct side l, r;
static struct kvr_alike_logs logs[2];
static uint64_t tear_at; /* offset in the file; 0: nowhere */
static void (*meanwhile)(void);
static int torn;

/* The library's own: it has no other way to the file. */
ssize_t pread(int fd, void *to, size_t len, off_t off)
{
	uint64_t from = (uint64_t)off, at = tear_at;
	ssize_t a, b;

	if (!at || at <= from || at >= from + len)
		return (ssize_t)syscall(SYS_pread64, fd, to, len, off);
	tear_at = 0;
	torn++;
	a = (ssize_t)syscall(SYS_pread64, fd, to, at - from, off);
	meanwhile();
	b = (ssize_t)syscall(SYS_pread64, fd, (char *)to + (at - from), len - (at - from), at);
	return a < 0 || b < 0 ? -1 : a + b;
}

static uint64_t published;

static void publish_many(uint32_t n)
{
	struct kvr_message m;
	uint8_t data[PAYLOAD];

	while (n--) {
		published++;
		memset(data, (int)(published & 0xff), sizeof data);
		must(publish(&l, 0, KVR_TAG_USER, published, data, sizeof data));
		must(take(&r, &m));
	}
}

static void publish_more(void)
{
	publish_many(100);
}

/* Messages of one cell, up to the middle of the message in cells 60 to 62. */
static void publish_small(void)
{
	struct kvr_message m;

	for (uint64_t cell = 602; cell < 3 * 256 + 62; cell++) {
		must(publish(&l, 0, KVR_TAG_USER, 9999, "small", 5));
		must(take(&r, &m));
	}
	ck_assert_uint_eq(l.c->writer[KVR_CH_USER0].pos, 3 * 256 + 62);
}

static void call_more(void)
{
	for (uint64_t i = 0; i < 20; i++)
		for (int k = 0; k < 2; k++)
			call_alike(&logs[k], KVR_ALIKE_STORE, 1000 + i);
}

/* Ten more calls, and a writer that is in the middle of the next one. */
static void half_a_call(void)
{
	struct kvr_alike_log *log =
		(void *)(logs[0].logs + kvr_layout_log(&l.g->layout, KVR_ALIKE_STORE));

	for (uint64_t i = 0; i < 10; i++)
		call_alike(&logs[0], KVR_ALIKE_STORE, 40 + i);
	log->call[50 & 15].chain = 1;
	log->call[50 & 15].request = 50;
}

static void setup_group(void)
{
	struct kvr_group_opts o = { .size = sizeof o,
				    .ranks = 1,
				    .ring_bytes = 16384,
				    .ops = 16,
				    .events = 64,
				    .bulk_bytes = 4096 };

	setup();
	test_name(name, sizeof name, "inspect");
	must(kvr_group_create(name, &o, &l.g));
	must(kvr_channels_open(l.g, &l.c));
	must(join(name, 0, &r));
	logs_of(&l, &logs[0]);
	logs_of(&r, &logs[1]);
	for (uint64_t i = 0; i < 40; i++)
		for (int k = 0; k < 2; k++)
			call_alike(&logs[k], KVR_ALIKE_STORE, i);
	publish_many(200);
}

static void teardown_group(void)
{
	ck_assert_int_eq(torn, 1);
	leave(&r);
	leave(&l);
	teardown();
}

static struct kvr_inspect *look(uint64_t at, void (*fn)(void))
{
	struct kvr_inspect *in;

	must(kvr_inspect_open_name(NULL, name, &in));
	tear_at = at;
	meanwhile = fn;
	return in;
}

static void check(struct kvr_inspect *in, int least)
{
	static struct kvr_inspect_message m[256];
	int n = kvr_inspect_messages(in, KVR_CH_USER0, 0, m, 256);

	ck_assert_int_ge(n, least);
	for (int i = 0; i < n; i++) {
		ck_assert_uint_eq(m[i].len, PAYLOAD);
		ck_assert_uint_eq(m[i].request.id, m[i].number);
		for (uint32_t b = 0; b < sizeof m[i].payload; b++)
			ck_assert_uint_eq(m[i].payload[b], m[i].number & 0xff);
		ck_assert(!i || m[i].number == m[i - 1].number + 1);
	}
}

/* Boundaries within the newer messages: each word of theirs may be the first that is newer. */
static uint64_t in_ring(uint64_t byte)
{
	return kvr_layout_ring(&l.g->layout, KVR_CH_USER0, 0) + KVR_RING_CTL + 60 * KVR_RING_CELL +
	       byte;
}

START_TEST(test_messages)
{
	struct kvr_inspect *in = look(in_ring(8 * (uint64_t)_i + 8), publish_more);

	check(in, 0);
	kvr_inspect_close(in);
}
END_TEST

START_TEST(test_copied_messages)
{
	struct kvr_inspect *in = look(in_ring(8 * (uint64_t)_i + 8), publish_more), *copy;
	char dir[256], file[300];

	test_tmpdir(dir, sizeof dir);
	snprintf(file, sizeof file, "%s/copy", dir);
	must(kvr_inspect_save(in, file, 0));
	must(kvr_inspect_open(file, &copy));
	check(copy, 0);
	kvr_inspect_close(copy);
	/* Nothing torn: then most of the ring is there. */
	must(kvr_inspect_save(in, file, 1));
	must(kvr_inspect_open(file, &copy));
	check(copy, 40);
	kvr_inspect_close(copy);
	kvr_inspect_close(in);
	test_rmdir(dir);
}
END_TEST

/* What is behind the torn message is whole up to the newest, and so would seem to be that one. */
START_TEST(test_messages_overtaken_by_smaller_ones)
{
	struct kvr_inspect *in = look(in_ring(60), publish_small), *copy;
	char dir[256], file[300];

	if (_i) {
		test_tmpdir(dir, sizeof dir);
		snprintf(file, sizeof file, "%s/copy", dir);
		must(kvr_inspect_save(in, file, 0));
		must(kvr_inspect_open(file, &copy));
		check(copy, 0);
		kvr_inspect_close(copy);
		test_rmdir(dir);
	} else {
		check(in, 0);
	}
	kvr_inspect_close(in);
}
END_TEST

START_TEST(test_events)
{
	struct kvr_inspect_event e[64];
	uint64_t next = 0, count;
	uint64_t at = l.g->layout.leader_rec + sizeof(struct kvr_rec_ctl) +
		      30 * sizeof(struct kvr_event) + 8 * (uint64_t)_i;
	struct kvr_inspect *in;
	int n;

	in = look(at, publish_more);
	must(kvr_inspect_event_count(in, LEADER, &count));
	n = kvr_inspect_events_next(in, LEADER, &next, e, 64);
	ck_assert_int_ge(n, 0);
	ck_assert_uint_eq(next, count);
	for (int i = 0; i < n; i++) { /* one a publish */
		ck_assert_uint_eq(e[i].number, e[i].index + 1);
		ck_assert_uint_eq(e[i].request.id, e[i].number);
		ck_assert_uint_ge(e[i].index, count + 100 - 64);
	}
	kvr_inspect_close(in);
}
END_TEST

static uint64_t in_log(uint64_t byte)
{
	return l.g->layout.leader_logs + kvr_layout_log(&l.g->layout, KVR_ALIKE_STORE) +
	       sizeof(struct kvr_alike_log) + 7 * sizeof(struct kvr_alike_call) + byte;
}

START_TEST(test_logs)
{
	struct kvr_inspect_drift drift;
	struct kvr_inspect *in = look(in_log(8 * (uint64_t)_i), call_more);

	ck_assert_int_eq(kvr_inspect_drift(in, 0, KVR_ALIKE_STORE, &drift), 0);
	ck_assert_uint_ge(drift.calls, 40);
	kvr_inspect_close(in);
}
END_TEST

START_TEST(test_copied_logs)
{
	struct kvr_inspect *in = look(in_log(8 * (uint64_t)_i), call_more), *copy;
	struct kvr_inspect_call calls[16];
	struct kvr_inspect_drift drift;
	struct kvr_inspect_log log;
	char dir[256], file[300];
	int n;

	test_tmpdir(dir, sizeof dir);
	snprintf(file, sizeof file, "%s/copy", dir);
	must(kvr_inspect_save(in, file, 0));
	must(kvr_inspect_open(file, &copy));
	ck_assert_int_eq(kvr_inspect_drift(copy, 0, KVR_ALIKE_STORE, &drift), 0);
	n = kvr_inspect_log(copy, LEADER, KVR_ALIKE_STORE, &log, calls, 16);
	for (int i = 0; i < n; i++)
		ck_assert_uint_eq(calls[i].request.id, calls[i].index);
	kvr_inspect_close(copy);
	kvr_inspect_close(in);
	test_rmdir(dir);
}
END_TEST

static void calls_are_whole(struct kvr_inspect *in)
{
	struct kvr_inspect_call calls[16];
	struct kvr_inspect_log log;
	int n = kvr_inspect_log(in, LEADER, KVR_ALIKE_STORE, &log, calls, 16);

	ck_assert_int_ge(n, 5);
	for (int i = 0; i < n; i++)
		ck_assert_uint_eq(calls[i].request.id, calls[i].index);
}

START_TEST(test_half_a_record)
{
	struct kvr_inspect *in, *copy;
	char dir[256], file[300];

	in = look(in_log(0) - 7 * sizeof(struct kvr_alike_call) - 8, half_a_call);
	if (_i) {
		test_tmpdir(dir, sizeof dir);
		snprintf(file, sizeof file, "%s/copy", dir);
		must(kvr_inspect_save(in, file, 0));
		must(kvr_inspect_open(file, &copy));
		calls_are_whole(copy);
		kvr_inspect_close(copy);
		test_rmdir(dir);
	} else {
		calls_are_whole(in);
	}
	kvr_inspect_close(in);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("inspect_torn");
	TCase *t = tcase_create("inspect_torn");

	tcase_add_checked_fixture(t, setup_group, teardown_group);
	tcase_add_loop_test(t, test_messages, 0, 40);
	tcase_add_loop_test(t, test_copied_messages, 0, 40);
	tcase_add_loop_test(t, test_messages_overtaken_by_smaller_ones, 0, 2);
	tcase_add_loop_test(t, test_events, 0, 16);
	tcase_add_loop_test(t, test_logs, 0, 8);
	tcase_add_loop_test(t, test_copied_logs, 0, 8);
	tcase_add_loop_test(t, test_half_a_record, 0, 2);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
