/* SPDX-License-Identifier: Apache-2.0 */
/* The ring in one thread: sizes, wrap-around, batches, aborts, and what a broken peer may write. */
#include "harness.h"

#include "kvring/err.h"
#include "kvring/ring.h"
#include "ring_helpers.h"

#define SMALL KVR_RING_MIN /* 16 cells: messages of one or two */
#define SLOW (KVR_TEST_ASAN || KVR_TEST_TSAN)

/* An assertion for inner loops: Check's own write a message each to its parent. */
#define MUST(call, want)                                                            \
	do {                                                                        \
		int got_ = (call);                                                  \
		if (got_ != (want))                                                 \
			ck_abort_msg("%s is %d, expected %d", #call, got_, (want)); \
	} while (0)

/* Positions where some field of a cursor or a commit word wraps within a lap or two. */
static uint64_t start_of(int i, uint32_t bytes)
{
	uint64_t cells = bytes / KVR_RING_CELL;
	const uint64_t starts[] = {
		0, cells, (1ull << 32) - cells, (1ull << 32) - 2 * cells, 0 - cells, 0 - 2 * cells
	};

	return starts[i];
}
#define STARTS 6

START_TEST(test_sizes_and_limits)
{
	uint32_t bytes;

	ck_assert_uint_eq(kvr_ring_memsize(0), 0);
	ck_assert_uint_eq(kvr_ring_memsize(512), 0);
	ck_assert_uint_eq(kvr_ring_memsize(1025), 0);
	ck_assert_uint_eq(kvr_ring_memsize(3 * 1024), 0);
	ck_assert_uint_eq(kvr_ring_memsize(128u << 20), 0);
	ck_assert_uint_eq(kvr_ring_max_payload(1025), 0);
	for (bytes = KVR_RING_MIN; bytes <= KVR_RING_MAX; bytes *= 2) {
		ck_assert_uint_eq(kvr_ring_memsize(bytes), bytes + 128);
		ck_assert_uint_eq(kvr_ring_max_payload(bytes), bytes / 8 - 16);
	}
}
END_TEST

START_TEST(test_init_rejects_bad_arguments)
{
	struct test_ring t;
	struct kvr_ring_writer w = { .pos = 99 };
	struct kvr_ring_reader r = { .pos = 99 };

	ring_open(&t, SMALL, 0);
	ck_assert_int_eq(kvr_ring_writer_init(&w, t.mem, 1000, t.cursor, 0), -EINVAL);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "1000 bytes"));
	ck_assert_int_eq(kvr_ring_writer_init(&w, NULL, SMALL, t.cursor, 0), -EINVAL);
	ck_assert_int_eq(kvr_ring_writer_init(&w, t.mem + 8, SMALL, t.cursor, 0), -EINVAL);
	ck_assert_int_eq(kvr_ring_writer_init(&w, t.mem, SMALL, NULL, 0), -EINVAL);
	ck_assert_int_eq(kvr_ring_writer_init(&w, t.mem, SMALL, t.cursor, 8), -EINVAL);
	ck_assert_uint_eq(w.pos, 99);
	ck_assert_int_eq(kvr_ring_reader_init(&r, t.mem, 0, t.cursor, 0), -EINVAL);
	ck_assert_int_eq(kvr_ring_reader_init(&r, t.mem, SMALL, NULL, 0), -EINVAL);
	ck_assert_int_eq(kvr_ring_reader_init(&r, t.mem, SMALL, t.cursor, 3), -EINVAL);
	ck_assert_uint_eq(r.pos, 99);
	ring_close(&t);
}
END_TEST

START_TEST(test_every_length_arrives)
{
	uint32_t bytes = SMALL << (2 * _i), len;
	struct test_ring t;

	ring_open(&t, bytes, 0);
	for (len = 0; len <= kvr_ring_max_payload(bytes); len++) {
		MUST(ring_put(&t, len), 0);
		kvr_ring_commit(&t.w);
		MUST(ring_take(&t, len), 1);
		kvr_ring_release(&t.r);
	}
	MUST(ring_take(&t, 0), 0);
	ring_close(&t);
}
END_TEST

START_TEST(test_message_over_the_maximum_is_refused)
{
	struct test_ring t;
	void *payload = &t;

	ring_open(&t, SMALL, 0);
	ck_assert_int_eq(kvr_ring_reserve(&t.w, 1, 112, &payload), 0);
	kvr_ring_abort(&t.w);
	payload = &t;
	ck_assert_int_eq(kvr_ring_reserve(&t.w, 1, 113, &payload), -EMSGSIZE);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "113"));
	ck_assert_int_eq(kvr_ring_reserve(&t.w, 1, UINT32_MAX, &payload), -EMSGSIZE);
	ck_assert_ptr_eq(payload, &t);
	ck_assert_int_eq(kvr_ring_write(&t.w, 1, "", 113), -EMSGSIZE);
	ck_assert_int_eq(ring_put(&t, 112), 0); /* not sticky */
	kvr_ring_commit(&t.w);
	ck_assert_int_eq(ring_take(&t, 112), 1);
	ring_close(&t);
}
END_TEST

START_TEST(test_full_ring_holds_every_cell)
{
	struct test_ring t;
	int i;

	ring_open(&t, SMALL, start_of(_i, SMALL));
	for (i = 0; i < 16; i++) {
		ck_assert_int_eq(ring_put(&t, 8), 0);
		kvr_ring_commit(&t.w);
	}
	ck_assert_int_eq(ring_put(&t, 8), -EAGAIN);
	for (i = 0; i < 3; i++)
		ck_assert_int_eq(ring_take(&t, 8), 1);
	kvr_ring_release(&t.r); /* less than a quarter: not told */
	ck_assert_int_eq(ring_put(&t, 8), -EAGAIN);
	ck_assert_int_eq(ring_take(&t, 8), 1);
	ck_assert_int_eq(ring_put(&t, 8), -EAGAIN); /* peeked is not released */
	kvr_ring_release(&t.r);
	for (i = 0; i < 4; i++)
		ck_assert_int_eq(ring_put(&t, 8), 0);
	ck_assert_int_eq(ring_put(&t, 8), -EAGAIN);
	kvr_ring_commit(&t.w);
	for (i = 0; i < 16; i++)
		ck_assert_int_eq(ring_take(&t, 8), 1);
	kvr_ring_release(&t.r);
	ck_assert_int_eq(ring_take(&t, 8), 0);
	for (i = 0; i < 16; i++) /* all of it as one batch */
		ck_assert_int_eq(ring_put(&t, 8), 0);
	ck_assert_int_eq(ring_put(&t, 8), -EAGAIN);
	ck_assert_int_eq(ring_take(&t, 8), 0);
	kvr_ring_commit(&t.w);
	for (i = 0; i < 16; i++)
		ck_assert_int_eq(ring_take(&t, 8), 1);
	ck_assert_int_eq(ring_take(&t, 8), 0);
	ring_close(&t);
}
END_TEST

START_TEST(test_cursor_is_shown_when_idle)
{
	struct test_ring t;
	uint64_t start = start_of(_i, SMALL);

	ring_open(&t, SMALL, start);
	ck_assert_int_eq(ring_put(&t, 8), 0);
	kvr_ring_commit(&t.w);
	ck_assert_int_eq(ring_take(&t, 8), 1);
	ck_assert_int_eq(ring_take(&t, 8), 0);
	ck_assert_uint_eq(t.cursor->pos, start); /* not released */
	kvr_ring_release(&t.r);
	ck_assert_uint_eq(t.cursor->pos, start);
	ck_assert_int_eq(ring_take(&t, 8), 0);
	ck_assert_uint_eq(t.cursor->pos, start + 1);
	ring_close(&t);
}
END_TEST

START_TEST(test_message_that_does_not_fit_the_end_goes_to_the_start)
{
	struct test_ring t;
	struct kvr_ring_msg m;
	int i;

	ring_open(&t, SMALL, start_of(_i, SMALL));
	for (i = 0; i < 15; i++) {
		ck_assert_int_eq(ring_put(&t, 8), 0);
		kvr_ring_commit(&t.w);
		ck_assert_int_eq(ring_take(&t, 8), 1);
		kvr_ring_release(&t.r);
	}
	ck_assert_int_eq(ring_put(&t, 100), 0);
	ck_assert_int_eq(kvr_ring_peek(&t.r, &m), 0);
	kvr_ring_commit(&t.w);
	ck_assert_int_eq(kvr_ring_peek(&t.r, &m), 1);
	ck_assert_ptr_eq(m.data, t.mem + KVR_RING_CTL + KVR_RING_HEADER);
	ck_assert_uint_eq(m.seq, 15); /* padding has no number */
	kvr_ring_rewind(&t.r);
	ck_assert_int_eq(ring_take(&t, 100), 1);
	kvr_ring_release(&t.r);
	ck_assert_int_eq(ring_take(&t, 0), 0);
	ck_assert_uint_eq(t.cursor->pos, t.start + 18);
	ring_close(&t);
}
END_TEST

START_TEST(test_batch_becomes_visible_at_once)
{
	struct test_ring t;
	uint32_t i;

	ring_open(&t, SMALL, 0);
	kvr_ring_commit(&t.w); /* nothing reserved */
	for (i = 0; i < 5; i++) {
		ck_assert_int_eq(ring_put(&t, i * 20), 0);
		ck_assert_int_eq(ring_take(&t, 0), 0);
	}
	kvr_ring_commit(&t.w);
	kvr_ring_commit(&t.w);
	ck_assert_uint_eq(*(uint64_t *)(void *)t.mem, 7ull << 32 | 5);
	for (i = 0; i < 5; i++)
		ck_assert_int_eq(ring_take(&t, i * 20), 1);
	ck_assert_int_eq(ring_take(&t, 0), 0);
	ring_close(&t);
}
END_TEST

START_TEST(test_rewind_brings_the_same_messages_again)
{
	struct test_ring t;
	uint32_t i;

	ring_open(&t, SMALL, 0);
	for (i = 0; i < 5; i++)
		ck_assert_int_eq(ring_put(&t, i), 0);
	kvr_ring_commit(&t.w);
	ck_assert_int_eq(ring_take(&t, 0), 1);
	ck_assert_int_eq(ring_take(&t, 1), 1);
	kvr_ring_release(&t.r);
	ck_assert_int_eq(ring_take(&t, 2), 1);
	ck_assert_int_eq(ring_take(&t, 3), 1);
	kvr_ring_rewind(&t.r);
	t.taken = 2;
	for (i = 2; i < 5; i++)
		ck_assert_int_eq(ring_take(&t, i), 1);
	ring_close(&t);
}
END_TEST

/*
 * From every offset of the small ring: a batch whose payloads hold commit words that would be valid
 * just there is aborted; then another batch must arrive, alone and whole. `cells` of both batches
 * are all combinations of three messages of one or two.
 */
static void abort_then_batch(uint32_t offset, uint32_t dropped, uint32_t kept)
{
	struct test_ring t;
	uint32_t i, len;

	ring_open(&t, SMALL, 0);
	for (i = 0; i < 16 + offset; i++) { /* the second lap: every cell held a message before */
		MUST(ring_put(&t, 48), 0);
		kvr_ring_commit(&t.w);
		MUST(ring_take(&t, 48), 1);
		kvr_ring_release(&t.r);
	}
	MUST(ring_take(&t, 0), 0);
	for (i = 0; i < 3; i++)
		MUST(ring_put_words(&t, dropped >> i & 1 ? 112 : 48, 0), 0);
	kvr_ring_abort(&t.w);
	t.put = t.taken;
	MUST(ring_take(&t, 0), 0);
	kvr_ring_commit(&t.w);
	MUST(ring_take(&t, 0), 0);
	for (i = 0; i < 3; i++) {
		len = kept >> i & 1 ? 49
				    : 8; /* 49: the second cell's word is not all overwritten */
		MUST(ring_put(&t, len), 0);
		MUST(ring_take(&t, 0), 0);
		if (kept & 8) { /* one by one instead of at once */
			kvr_ring_commit(&t.w);
			MUST(ring_take(&t, len), 1);
			kvr_ring_release(&t.r);
			MUST(ring_take(&t, 0), 0);
		}
	}
	kvr_ring_commit(&t.w);
	for (i = 0; i < 3 && !(kept & 8); i++)
		MUST(ring_take(&t, kept >> i & 1 ? 49 : 8), 1);
	MUST(ring_take(&t, 0), 0);
	ring_close(&t);
}

START_TEST(test_aborted_batch_is_never_seen)
{
	uint32_t dropped, kept;

	for (dropped = 0; dropped < 8; dropped++)
		for (kept = 0; kept < 16; kept++)
			abort_then_batch((uint32_t)_i, dropped, kept);
}
END_TEST

START_TEST(test_payload_that_looks_like_commit_words_is_harmless)
{
	uint64_t x = test_seed();
	struct test_ring t;
	uint32_t i, n, got, len[3];

	ring_open(&t, SMALL, start_of(_i, SMALL));
	for (i = 0; i < (SLOW ? 5000 : 20000); i++) {
		for (n = 0; n < 3; n++) {
			len[n] = test_random(&x) % 113;
			if (ring_put_words(&t, len[n], t.w.capacity * (test_random(&x) % 3)))
				break;
		}
		kvr_ring_commit(&t.w);
		for (got = 0; got < n; got++)
			if (ring_take_any(&t, len[got]) != 1)
				ck_abort_msg("round %u: message %u is missing or wrong", i, got);
		if (ring_take_any(&t, 0))
			ck_abort_msg("round %u: a message that nobody wrote", i);
		kvr_ring_release(&t.r);
	}
	ck_assert_uint_gt(t.taken, i);
	ring_close(&t);
}
END_TEST

/* The same, each message written alone: the ways of one cell, of two, and of more. */
START_TEST(test_payload_that_looks_like_commit_words_is_harmless_written_alone)
{
	const uint32_t bytes = _i & 1 ? SMALL : 4096;
	uint64_t x = test_seed();
	struct test_ring t;
	uint32_t i, len;

	ring_open(&t, bytes, start_of(_i / 2, bytes));
	for (i = 0; i < (SLOW ? 5000 : 20000); i++) {
		len = test_random(&x) % (kvr_ring_max_payload(bytes) + 1);
		MUST(ring_send_words(&t, RING_WRITE, len, t.w.capacity * (test_random(&x) % 3)), 0);
		if (ring_take_any(&t, len) != 1)
			ck_abort_msg("round %u: the message is missing or wrong", i);
		if (ring_take_any(&t, 0))
			ck_abort_msg("round %u: a message that nobody wrote", i);
		kvr_ring_release(&t.r);
	}
	ring_close(&t);
}
END_TEST

START_TEST(test_every_length_arrives_written_alone)
{
	uint32_t bytes = SMALL << (2 * _i), len, got, i;
	uint8_t data[RING_COPY_MAX];
	struct test_ring t;

	ring_open(&t, bytes, 0);
	for (len = 0; len <= kvr_ring_max_payload(bytes); len++) {
		for (i = 0; i < len; i++)
			data[i] = ring_byte(t.put, i);
		MUST(ring_send(&t, RING_WRITE, data, len), 0);
		MUST(ring_take_whole(&t, &got), 1);
		MUST((int)got, (int)len);
		MUST(ring_take(&t, 0), 0);
		kvr_ring_release(&t.r);
	}
	MUST(kvr_ring_write(&t.w, 1, data, len), -EMSGSIZE);
	MUST(kvr_ring_put(&t.w, 1, data, len), -EMSGSIZE);
	MUST(kvr_ring_write(&t.w, 1, NULL, 0), 0);
	ring_close(&t);
}
END_TEST

/* A stream makes the reader look at the control line: nothing of it may be late or twice. */
START_TEST(test_stream_of_one_thread_is_seen_at_once)
{
	struct kvr_ring_msg m;
	struct test_ring t;
	uint32_t i;

	ring_open(&t, 4096, start_of(_i, 4096));
	for (i = 0; i < 1000; i++) {
		MUST(ring_put(&t, i % 100), 0);
		kvr_ring_commit(&t.w);
		MUST(ring_take(&t, i % 100), 1);
		kvr_ring_release(&t.r);
		if (i % 100 > 90)
			MUST(kvr_ring_peek(&t.r, &m), 0);
	}
	for (i = 0; i < 40; i++)
		MUST(ring_put(&t, 8), 0);
	kvr_ring_commit(&t.w);
	for (i = 0; i < 40; i++)
		MUST(ring_take(&t, 8), 1);
	kvr_ring_release(&t.r);
	for (i = 0; i < 10; i++) /* and an end of the stream is none of the messages */
		MUST(ring_take(&t, 8), 0);
	MUST(ring_put(&t, 8), 0);
	kvr_ring_commit(&t.w);
	MUST(ring_take(&t, 8), 1);
	ring_close(&t);
}
END_TEST

/* A control line that lies, or that stands still since its writer died: the messages still come. */
START_TEST(test_control_line_is_but_a_hint)
{
	uint64_t x = test_seed(), *ctl;
	struct test_ring t;
	uint32_t i, missed;

	ring_open(&t, 4096, start_of(_i, 4096));
	ctl = (uint64_t *)(void *)t.mem;
	for (i = 0; i < 2000; i++) {
		MUST(ring_put(&t, 8), 0);
		kvr_ring_commit(&t.w);
		if (i % 3 == 0)
			*ctl = (uint64_t)test_random(&x) << 32 | test_random(&x);
		else if (i % 3 == 1)
			*ctl = t.r.pos << 32 | t.r.seq; /* nothing new, it says */
		for (missed = 0; ring_take(&t, 8) != 1; missed++)
			if (missed == 5)
				ck_abort_msg("round %u: the message does not come", i);
		kvr_ring_release(&t.r);
	}
	ring_close(&t);
}
END_TEST

/* A reader that peeks only when it knows of a message is seldom taken for one of a stream. */
START_TEST(test_messages_one_at_a_time_are_no_stream)
{
	uint32_t i, gates = 0;
	struct test_ring t;

	ring_open(&t, 4096, start_of(_i, 4096));
	for (i = 0; i < 10000; i++) {
		MUST(ring_put(&t, 8), 0);
		kvr_ring_commit(&t.w);
		gates += t.r.gate == t.r.pos;
		MUST(ring_take(&t, 8), 1);
		kvr_ring_release(&t.r);
	}
	ck_assert_uint_le(gates, 40);
	ring_close(&t);
}
END_TEST

/* Going back before the message that was not there is no run of messages. */
START_TEST(test_rewind_is_no_stream)
{
	struct test_ring t;
	int i;

	ring_open(&t, 4096, start_of(_i, 4096));
	for (i = 0; i < 3; i++)
		MUST(ring_put(&t, 8), 0);
	kvr_ring_commit(&t.w);
	for (i = 0; i < 3; i++)
		MUST(ring_take(&t, 8), 1);
	MUST(ring_take(&t, 8), 0);
	kvr_ring_rewind(&t.r);
	t.taken = 0;
	MUST(ring_take(&t, 8), 1);
	ck_assert_uint_eq(t.r.gate, t.start - 1); /* none */
	ring_close(&t);
}
END_TEST

/* The writer stands between its commit word and the control line: a stream goes on with the cells.
 */
START_TEST(test_stale_control_line_does_not_end_streams_for_good)
{
	uint64_t *ctl, old, i;
	struct test_ring t;

	ring_open(&t, 65536, start_of(_i, 65536));
	ctl = (uint64_t *)(void *)t.mem;
	old = *ctl;
	for (i = 0; i < 40; i++)
		MUST(ring_put(&t, 8), 0);
	kvr_ring_commit(&t.w);
	*ctl = old;
	for (i = 0; i < 40; i++)
		MUST(ring_take(&t, 8), 1);
	ck_assert_uint_le(t.r.gate - (t.r.pos - 1), t.r.capacity);
	kvr_ring_release(&t.r);
	ring_close(&t);
}
END_TEST

/* What both sides did, in numbers of messages: done <= taken <= committed <= put. */
struct model {
	struct test_ring t;
	uint32_t bytes, committed, done;
	uint32_t lens[1 << 18];
};

/* One random call. 0, or what the ring did wrong. */
static const char *model_step(struct model *m, uint64_t *x)
{
	struct test_ring *t = &m->t;
	uint32_t len;
	int rc;

	switch (test_random(x) % 8) {
	default:
		len = test_random(x) % (kvr_ring_max_payload(m->bytes) + 1);
		rc = ring_put(t, len);
		if (!rc)
			m->lens[t->put - 1] = len;
		else if (rc != -EAGAIN || t->put == m->done) /* an empty ring takes anything */
			return "reserve failed";
		return NULL;
	case 3:
		kvr_ring_commit(&t->w);
		m->committed = t->put;
		return NULL;
	case 4:
		if (test_random(x) % 4)
			return NULL;
		kvr_ring_abort(&t->w);
		t->put = m->committed;
		return NULL;
	case 5:
	case 6:
		rc = t->taken < m->committed;
		return ring_take(t, m->lens[t->taken]) == rc ? NULL : "peek differs";
	case 7:
		if (test_random(x) % 4) {
			kvr_ring_release(&t->r);
			m->done = t->taken;
		} else {
			kvr_ring_rewind(&t->r);
			t->taken = m->done;
		}
		return NULL;
	}
}

/* Random calls of both sides, against a queue. */
START_TEST(test_random_calls_agree_with_a_queue)
{
	static struct model m;
	uint64_t x = test_seed();
	const char *why = NULL;
	uint32_t step;

	m.bytes = _i & 1 ? SMALL : 4096;
	ring_open(&m.t, m.bytes, start_of(_i / 2, m.bytes));
	for (step = 0; step < (SLOW ? 50000 : 200000) && !why; step++) {
		why = model_step(&m, &x);
		if (!why && kvr_ring_check(&m.t.r))
			why = kvr_explain();
	}
	ck_assert_msg(!why, "step %u: %s", step, why);
	ck_assert_uint_gt(m.done, 5000);
	ring_close(&m.t);
}
END_TEST

/* A commit word, or the number beside it, that no writer would have written. */
static const struct {
	uint32_t low;
	uint32_t seq;
	uint64_t at; /* offset of the reader, in cells of 16 */
} impossible[] = {
	{ 0xa1000008, 0, 0 },		 /* flags nobody uses */
	{ 0x81000008, 0, 0 },		 /* a length beyond its field */
	{ 1u << 31 | 113, 0, 0 },	 /* over the maximum */
	{ 0x80ffffff, 0, 0 },		 /* far over the maximum */
	{ 1u << 31 | 49, 0, 15 },	 /* past the end */
	{ 3u << 30 | 48, 0, 3 },	 /* padding that ends before the end */
	{ 3u << 30 | 112, 0, 14 },	 /* padding as wide as a message */
	{ 3u << 30 | 1008, 0, 0 },	 /* padding of a whole ring */
	{ 3u << 30 | 49, 0, 15 },	 /* padding past the end */
	{ 1u << 31 | 8, 1, 0 },		 /* a message is missing */
	{ 1u << 31 | 8, 0xffffffff, 0 }, /* a message comes again */
};

START_TEST(test_impossible_message_is_refused_for_good)
{
	const uint64_t pos = impossible[_i].at, right = pos << 32 | 1u << 31 | 8;
	struct kvr_ring_msg m = { .len = 77 };
	char word[24], first[512];
	struct test_ring t;
	uint64_t *cell, i;

	ring_open(&t, SMALL, 0);
	for (i = 0; i < pos; i++) {
		ck_assert_int_eq(ring_put(&t, 8), 0);
		kvr_ring_commit(&t.w);
		ck_assert_int_eq(ring_take(&t, 8), 1);
		kvr_ring_release(&t.r);
	}
	cell = (uint64_t *)(void *)(t.mem + KVR_RING_CTL + pos * KVR_RING_CELL);
	cell[1] = (pos + impossible[_i].seq) << 32 | 5;
	cell[0] = pos << 32 | impossible[_i].low;
	ck_assert_int_eq(kvr_ring_peek(&t.r, &m), -EBADMSG);
	snprintf(word, sizeof(word), "word %#llx", (unsigned long long)cell[0]);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), word));
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "out of use"));
	snprintf(first, sizeof(first), "%s", kvr_explain());
	ck_assert_uint_eq(m.len, 77);
	ck_assert_uint_eq(t.r.pos, pos);
	cell[1] = pos << 32 | 5; /* put right again: too late */
	cell[0] = right;
	ck_assert_int_eq(kvr_ring_peek(&t.r, &m), -EBADMSG);
	kvr_ring_rewind(&t.r);
	ck_assert_int_eq(kvr_ring_peek(&t.r, &m), -EBADMSG);
	ck_assert_str_eq(kvr_explain(), first); /* the first evidence, not what is there now */
	ring_close(&t);
}
END_TEST

/* What an earlier lap, or nobody, left where the next message will start. */
START_TEST(test_word_of_another_position_is_no_message)
{
	const uint64_t words[] = {
		17ull << 32 | 1u << 31 | 8, /* the next cell's */
		0ull << 32 | 1u << 31 | 8,  /* the last lap's */
		32ull << 32 | 1u << 31 | 8, /* the next lap's */
		16ull << 32 | 8,	    /* without its valid bit */
		~0ull,
		0,
	};
	struct kvr_ring_msg m;
	struct test_ring t;
	uint64_t *cell;
	size_t i;

	ring_open(&t, SMALL, 16);
	cell = (uint64_t *)(void *)(t.mem + KVR_RING_CTL);
	for (i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		cell[0] = words[i];
		ck_assert_int_eq(kvr_ring_peek(&t.r, &m), 0);
	}
	ck_assert_int_eq(ring_put(&t, 8), 0);
	kvr_ring_commit(&t.w);
	ck_assert_int_eq(ring_take(&t, 8), 1);
	ring_close(&t);
}
END_TEST

/* Padding in front of nothing, or of more padding, which a writer never leaves behind. */
START_TEST(test_lone_padding_is_refused)
{
	const uint64_t behind = _i ? 16ull << 32 | 3u << 30 | 48 : 0;
	struct kvr_ring_msg m;
	struct test_ring t;
	uint64_t *last, *first, i;

	ring_open(&t, SMALL, 0);
	for (i = 0; i < 15; i++)
		ck_assert_int_eq(ring_put(&t, 8), 0);
	kvr_ring_commit(&t.w);
	for (i = 0; i < 15; i++)
		ck_assert_int_eq(ring_take(&t, 8), 1);
	kvr_ring_release(&t.r);
	first = (uint64_t *)(void *)(t.mem + KVR_RING_CTL);
	last = first + 15 * 8;
	first[0] = behind;
	last[0] = 15ull << 32 | 3u << 30 | 48;
	ck_assert_int_eq(kvr_ring_peek(&t.r, &m), -EBADMSG);
	ck_assert_uint_eq(t.r.pos, 15);
	ring_close(&t);
}
END_TEST

START_TEST(test_random_cells_never_lead_outside)
{
	uint64_t x = test_seed(), round, i;
	struct kvr_ring_msg m;
	struct test_ring t;
	uint64_t *words, sum = 0;
	uint8_t *data;

	for (round = 0; round < (SLOW ? 4000 : 20000); round++) {
		ring_open(&t, SMALL, 0);
		words = (uint64_t *)(void *)(t.mem + KVR_RING_CTL);
		for (i = 0; i < 16; i++) { /* right positions, so that most else is reached */
			words[8 * i] = i << 32 | 1u << 31 | (test_random(&x) % 130);
			words[8 * i + 1] = i << 32;
			if (!(test_random(&x) % 8))
				words[8 * i] ^= 1ull << (test_random(&x) % 64);
		}
		while (kvr_ring_peek(&t.r, &m) == 1) {
			data = (uint8_t *)(uintptr_t)m.data;
			if (data < t.mem + KVR_RING_CTL ||
			    data + m.len > t.mem + KVR_RING_CTL + SMALL)
				ck_abort_msg("a message outside the ring");
			for (i = 0; i < m.len; i++)
				sum += data[i];
		}
		ring_close(&t);
	}
	ck_assert_uint_gt(sum, 0);
}
END_TEST

/* 10 messages are published, the reader's cursor stands at 4; then it says something else. */
START_TEST(test_impossible_cursor_is_refused_for_good)
{
	static const int64_t wrong[] = { 11, 3, 0, -1, INT64_MAX, INT64_MIN, 10 - 17, 1000 };
	char seen[32], first[512];
	struct test_ring t;
	void *payload;
	int i;

	ring_open(&t, SMALL, start_of(_i % STARTS, SMALL));
	for (i = 0; i < 10; i++)
		ck_assert_int_eq(ring_put(&t, 8), 0);
	kvr_ring_commit(&t.w);
	for (i = 0; i < 4; i++)
		ck_assert_int_eq(ring_take(&t, 8), 1);
	kvr_ring_release(&t.r);
	while (!(i = ring_put(&t, 8)))
		;
	ck_assert_int_eq(i, -EAGAIN); /* now the writer has seen the 4 */
	t.cursor->pos = t.start + (uint64_t)wrong[_i / STARTS];
	snprintf(seen, sizeof(seen), "is at cell %llu;", (unsigned long long)t.cursor->pos);
	ck_assert_int_eq(kvr_ring_reserve(&t.w, 1, 8, &payload), -EBADMSG);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "cursor"));
	ck_assert_ptr_nonnull(strstr(kvr_explain(), seen));
	snprintf(first, sizeof(first), "%s", kvr_explain());
	t.cursor->pos = t.start + 10;
	kvr_ring_commit(&t.w); /* what was put before is still published */
	ck_assert_int_eq(kvr_ring_reserve(&t.w, 1, 8, &payload), -EBADMSG);
	ck_assert_int_eq(kvr_ring_write(&t.w, 1, "", 0), -EBADMSG);
	ck_assert_str_eq(kvr_explain(), first);
	ring_close(&t);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("ring");
	TCase *t = tcase_create("ring");

	tcase_add_test(t, test_sizes_and_limits);
	tcase_add_test(t, test_init_rejects_bad_arguments);
	tcase_add_loop_test(t, test_every_length_arrives, 0, 4);
	tcase_add_test(t, test_message_over_the_maximum_is_refused);
	tcase_add_loop_test(t, test_full_ring_holds_every_cell, 0, STARTS);
	tcase_add_loop_test(t, test_cursor_is_shown_when_idle, 0, STARTS);
	tcase_add_loop_test(t, test_message_that_does_not_fit_the_end_goes_to_the_start, 0, STARTS);
	tcase_add_test(t, test_batch_becomes_visible_at_once);
	tcase_add_test(t, test_rewind_brings_the_same_messages_again);
	tcase_add_loop_test(t, test_aborted_batch_is_never_seen, 0, 16);
	tcase_add_loop_test(t, test_payload_that_looks_like_commit_words_is_harmless, 0, STARTS);
	tcase_add_loop_test(t, test_payload_that_looks_like_commit_words_is_harmless_written_alone,
			    0, 2 * STARTS);
	tcase_add_loop_test(t, test_every_length_arrives_written_alone, 0, 3);
	tcase_add_loop_test(t, test_stream_of_one_thread_is_seen_at_once, 0, STARTS);
	tcase_add_loop_test(t, test_random_calls_agree_with_a_queue, 0, 2 * STARTS);
	suite_add_tcase(s, t);
	t = tcase_create("broken peer");
	tcase_add_test(t, test_word_of_another_position_is_no_message);
	tcase_add_loop_test(t, test_control_line_is_but_a_hint, 0, STARTS);
	tcase_add_loop_test(t, test_messages_one_at_a_time_are_no_stream, 0, STARTS);
	tcase_add_loop_test(t, test_rewind_is_no_stream, 0, STARTS);
	tcase_add_loop_test(t, test_stale_control_line_does_not_end_streams_for_good, 0, STARTS);
	tcase_add_loop_test(t, test_impossible_message_is_refused_for_good, 0,
			    (int)(sizeof(impossible) / sizeof(impossible[0])));
	tcase_add_loop_test(t, test_lone_padding_is_refused, 0, 2);
	tcase_add_test(t, test_random_cells_never_lead_outside);
	tcase_add_loop_test(t, test_impossible_cursor_is_refused_for_good, 0, 8 * STARTS);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
