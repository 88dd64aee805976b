/* SPDX-License-Identifier: Apache-2.0 */
/* The flight recorder: order, wrap-around, what a reader must not believe, and the text of events.
 */
#include "harness.h"

#include <pthread.h>
#include <sys/mman.h>

#include "atomic.h"
#include "clock.h"
#include "recorder.h"

#define EVENTS 16u
#define BYTES(events) (sizeof(struct kvr_rec_ctl) + (events) * sizeof(struct kvr_event))

static void *memory_new(uint32_t events)
{
	void *mem = mmap(NULL, BYTES(events), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			 -1, 0);

	ck_assert_ptr_ne(mem, MAP_FAILED);
	return mem;
}

/* Event n, whose fields all follow from n. */
static struct kvr_event event_make(uint64_t n)
{
	struct kvr_event e = {
		.request = n * 3,
		.number = n,
		.arg = ~n,
		.attempt = (uint32_t)n ^ 0x5555,
		.tag = (uint32_t)n * 7,
		.result = -(int32_t)(n & 1023),
		.kind = KVR_EV_TAKE,
		.channel = (uint8_t)(n % 3),
		.call = (uint16_t)n,
	};

	return e;
}

static int event_whole(const struct kvr_event *e)
{
	struct kvr_event want = event_make(e->index);

	want.ns = e->ns;
	want.rank = e->rank;
	want.index = e->index;
	return !memcmp(e, &want, sizeof(want));
}

static void add(struct kvr_recorder *r, uint64_t from, uint64_t to)
{
	for (; from < to; from++) {
		struct kvr_event e = event_make(from);

		kvr_recorder_add(r, &e);
	}
}

START_TEST(test_empty_recorder_has_no_events)
{
	void *mem = memory_new(EVENTS);
	struct kvr_event got[EVENTS];

	ck_assert_uint_eq(kvr_recorder_last(mem, EVENTS, -1, got, EVENTS), 0);
	ck_assert_uint_eq(kvr_recorder_last(mem, 0, -1, got, EVENTS), 0);
	ck_assert_uint_eq(kvr_recorder_last(mem, 12, -1, got, EVENTS), 0);
}
END_TEST

START_TEST(test_events_come_back_oldest_first)
{
	void *mem = memory_new(EVENTS);
	struct kvr_event got[EVENTS];
	uint64_t before = kvr_now(), i;
	struct kvr_recorder r;

	kvr_recorder_init(&r, mem, EVENTS, 5);
	add(&r, 0, 10);
	ck_assert_uint_eq(kvr_recorder_last(mem, EVENTS, -1, got, EVENTS), 10);
	for (i = 0; i < 10; i++) {
		ck_assert_uint_eq(got[i].index, i);
		ck_assert(event_whole(&got[i]));
		ck_assert_uint_eq(got[i].rank, 5);
		ck_assert_uint_ge(got[i].ns, before);
		ck_assert_uint_le(got[i].ns, kvr_now());
	}
	ck_assert_uint_eq(kvr_recorder_last(mem, EVENTS, -1, got, 4), 4);
	ck_assert_uint_eq(got[0].index, 6);
	ck_assert_uint_eq(got[3].index, 9);
}
END_TEST

START_TEST(test_filter_by_channel)
{
	void *mem = memory_new(EVENTS);
	struct kvr_event got[EVENTS];
	struct kvr_recorder r;

	kvr_recorder_init(&r, mem, EVENTS, 0);
	add(&r, 0, 10);
	ck_assert_uint_eq(kvr_recorder_last(mem, EVENTS, 1, got, EVENTS), 3); /* 1 4 7 */
	ck_assert_uint_eq(got[0].index, 1);
	ck_assert_uint_eq(got[2].index, 7);
	ck_assert_uint_eq(kvr_recorder_last(mem, EVENTS, 1, got, 2), 2);
	ck_assert_uint_eq(got[0].index, 4);
	ck_assert_uint_eq(kvr_recorder_last(mem, EVENTS, 9, got, EVENTS), 0);
}
END_TEST

/* Of a full recorder the oldest slot is the one that the writer may be inside of. */
START_TEST(test_old_events_are_overwritten)
{
	void *mem = memory_new(EVENTS);
	struct kvr_event got[4 * EVENTS];
	struct kvr_recorder r;
	uint32_t i;

	kvr_recorder_init(&r, mem, EVENTS, 0);
	add(&r, 0, 100);
	ck_assert_uint_eq(kvr_recorder_last(mem, EVENTS, -1, got, 4 * EVENTS), EVENTS - 1);
	for (i = 0; i < EVENTS - 1; i++)
		ck_assert_uint_eq(got[i].index, 100 - (EVENTS - 1) + i);
}
END_TEST

/* The writer was killed while it wrote event 100: its words are there, its count is not. */
START_TEST(test_half_written_event_is_not_returned)
{
	void *mem = memory_new(EVENTS);
	struct kvr_event got[EVENTS];
	struct kvr_recorder r;
	uint32_t i, n;

	kvr_recorder_init(&r, mem, EVENTS, 0);
	add(&r, 0, 100);
	r.events[100 % EVENTS].number = 100;
	n = kvr_recorder_last(mem, EVENTS, -1, got, EVENTS);
	ck_assert_uint_eq(n, EVENTS - 1);
	for (i = 0; i < n; i++)
		ck_assert(event_whole(&got[i]));
}
END_TEST

START_TEST(test_event_with_a_wrong_index_is_left_out)
{
	void *mem = memory_new(EVENTS);
	struct kvr_event got[EVENTS];
	struct kvr_recorder r;

	kvr_recorder_init(&r, mem, EVENTS, 0);
	add(&r, 0, 10);
	r.events[4].index = 20;
	ck_assert_uint_eq(kvr_recorder_last(mem, EVENTS, -1, got, EVENTS), 9);
	ck_assert_uint_eq(got[4].index, 5);
}
END_TEST

START_TEST(test_random_bytes_are_harmless)
{
	uint64_t seed = test_seed(), rounds = 2000, i;
	struct kvr_rec_ctl *ctl = malloc(BYTES(EVENTS)); /* exact: a sanitizer sees the ends */
	struct kvr_event got[EVENTS];
	uint8_t *bytes = (uint8_t *)ctl;
	char text[256];
	uint32_t n, k;

	while (rounds--) {
		for (i = 0; i < BYTES(EVENTS); i++) {
			seed = seed * 6364136223846793005ull + 1442695040888963407ull;
			bytes[i] = (uint8_t)(seed >> 56);
		}
		if (rounds & 1)
			ctl->count = rounds & 2 ? UINT64_MAX : rounds & 31;
		for (i = 0; i < EVENTS && rounds & 4;
		     i++) /* plausible in number, random in all else */
			((struct kvr_event *)(void *)(ctl + 1))[i].index = i;
		n = kvr_recorder_last(ctl, EVENTS, -1, got, EVENTS);
		ck_assert_uint_lt(n, EVENTS);
		for (k = 0; k < n; k++)
			kvr_event_text(&got[k], kvr_now(), text, sizeof(text));
	}
	free(ctl);
}
END_TEST

struct live {
	void *mem;
	uint32_t stop;
};

static void *writer_main(void *arg)
{
	struct live *l = arg;
	struct kvr_recorder r;
	uint64_t n = 0;

	kvr_recorder_init(&r, l->mem, EVENTS, 0);
	while (!kvr_load_relaxed32(&l->stop)) {
		add(&r, n, n + 8);
		n += 8;
	}
	return NULL;
}

/* 0, or the first of n events that is torn or out of order, from 1. */
static uint32_t events_bad(const struct kvr_event *got, uint32_t n)
{
	uint32_t i;

	for (i = 0; i < n; i++)
		if (!event_whole(&got[i]) || (i && got[i].index <= got[i - 1].index))
			return i + 1;
	return 0;
}

START_TEST(test_reader_beside_a_writer_gets_whole_events)
{
	struct live l = { .mem = memory_new(EVENTS) };
	struct kvr_rec_ctl *ctl = l.mem;
	struct kvr_event got[EVENTS];
	uint64_t last = 0, sum = 0, until = 0;
	uint32_t n;
	pthread_t t;

	ck_assert_int_eq(pthread_create(&t, NULL, writer_main, &l), 0);
	/* 200 ms beside a writer that is known to run. */
	while (!until || test_now_ns() < until) {
		if (!until && kvr_load_acquire(&ctl->count) > 1000)
			until = test_deadline_ms(200);
		n = kvr_recorder_last(l.mem, EVENTS, -1, got, EVENTS);
		ck_assert_uint_eq(events_bad(got, n), 0);
		ck_assert(!n || got[n - 1].index >= last);
		last = n ? got[n - 1].index : last;
		sum += n;
	}
	kvr_store_relaxed32(&l.stop, 1);
	pthread_join(t, NULL);
	printf("%llu events read, %llu written\n", (unsigned long long)sum,
	       (unsigned long long)ctl->count);
}
END_TEST

START_TEST(test_events_of_a_killed_process_stay_readable)
{
	struct live l = { .mem = memory_new(EVENTS) };
	struct kvr_rec_ctl *ctl = l.mem;
	struct kvr_event got[EVENTS];
	uint32_t n, i;
	pid_t pid = fork();

	if (!pid) {
		writer_main(&l);
		_exit(0);
	}
	while (kvr_load_acquire(&ctl->count) < 1000)
		test_sleep_ms(1);
	kill(pid, SIGKILL);
	test_reap(pid, 10000);
	n = kvr_recorder_last(l.mem, EVENTS, -1, got, EVENTS);
	ck_assert_uint_eq(n, EVENTS - 1);
	for (i = 0; i < n; i++)
		ck_assert(event_whole(&got[i]));
	ck_assert_uint_eq(got[n - 1].index, ctl->count - 1);
}
END_TEST

static const char *text_of(struct kvr_event e, uint64_t now_ns)
{
	static char text[256];

	kvr_event_text(&e, now_ns, text, sizeof(text));
	return text;
}

START_TEST(test_text_says_what_happened)
{
	struct kvr_event e = { .ns = 1000000,
			       .request = 5,
			       .number = 17,
			       .tag = KVR_TAG_STORE_COMPLETE,
			       .kind = KVR_EV_TAKE,
			       .channel = KVR_CH_COMPLETE };
	char want[256];

	snprintf(want, sizeof(want), "12.3 ms ago %s channel %s number 17 request 5/0 tag %s",
		 kvr_event_kind_name(KVR_EV_TAKE), kvr_channel_name(KVR_CH_COMPLETE),
		 kvr_tag_name(KVR_TAG_STORE_COMPLETE));
	ck_assert_str_eq(text_of(e, 13300000), want);
	e.kind = KVR_EV_MISMATCH;
	e.arg = KVR_TAG_USER + 3;
	ck_assert_ptr_nonnull(strstr(text_of(e, 13300000), " expected 259"));
	ck_assert_ptr_nonnull(strstr(text_of(e, 0), "0.0 us ago")); /* a clock of another time */
	e.kind = KVR_EV_DEATH;
	ck_assert_ptr_nonnull(strstr(text_of(e, 1000), " rank 259"));
	e.kind = KVR_EV_STAGE;
	e.arg = KVR_STAGE_WRITTEN;
	ck_assert_ptr_nonnull(strstr(text_of(e, 1000), kvr_stage_name(KVR_STAGE_WRITTEN)));
	e.kind = KVR_EV_CALL;
	e.call = KVR_CALL_LOOKUP;
	e.result = -ETIMEDOUT;
	ck_assert_ptr_nonnull(strstr(text_of(e, 1000), kvr_call_name(KVR_CALL_LOOKUP)));
	ck_assert_ptr_nonnull(strstr(text_of(e, 1000), "result -110"));
}
END_TEST

START_TEST(test_text_is_bounded)
{
	struct kvr_event e = event_make(3);
	char text[128];
	uint32_t size;
	int kind;

	for (kind = 0; kind < 256; kind++) {
		e.kind = (uint8_t)kind;
		e.channel = (uint8_t)kind;
		for (size = 0; size < sizeof(text); size++) {
			memset(text, 'x', sizeof(text));
			kvr_event_text(&e, UINT64_MAX, text, size);
			ck_assert(!size || memchr(text, 0, size));
			ck_assert_int_eq(text[size], 'x');
		}
	}
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("recorder");
	TCase *t = tcase_create("recorder");

	tcase_add_test(t, test_empty_recorder_has_no_events);
	tcase_add_test(t, test_events_come_back_oldest_first);
	tcase_add_test(t, test_filter_by_channel);
	tcase_add_test(t, test_old_events_are_overwritten);
	tcase_add_test(t, test_half_written_event_is_not_returned);
	tcase_add_test(t, test_event_with_a_wrong_index_is_left_out);
	tcase_add_test(t, test_random_bytes_are_harmless);
	tcase_add_test(t, test_reader_beside_a_writer_gets_whole_events);
	tcase_add_test(t, test_events_of_a_killed_process_stay_readable);
	tcase_add_test(t, test_text_says_what_happened);
	tcase_add_test(t, test_text_is_bounded);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
