/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvr_ring_check(): an overwritten word is told from a message that is not there yet, and a healthy
 * ring never fails, wherever its writer stands. The last test stops a writer after each of its
 * instructions. And kvr_ring_passed(): what the reader gave back.
 */
#include "harness.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>

#include "kvring/err.h"
#include "kvring/ring.h"
#include "ring_helpers.h"

#define SMALL KVR_RING_MIN /* 16 cells */
#define CELLS (SMALL / KVR_RING_CELL)
#define STARTS 4

/* Positions where those of a control line or a commit word wrap within a lap or two. */
static uint64_t start_of(int i)
{
	const uint64_t starts[STARTS] = { 0, (1ull << 32) - CELLS, 5ull << 32, 0 - 2ull * CELLS };

	return starts[i];
}

static uint64_t *ctl_of(struct test_ring *t)
{
	return (uint64_t *)(void *)t->mem;
}

static uint64_t *word_of(struct test_ring *t, uint64_t pos)
{
	return (uint64_t *)(void *)(t->mem + KVR_RING_CTL + pos % CELLS * KVR_RING_CELL);
}

static void send(struct test_ring *t, uint32_t n)
{
	while (n--) {
		ck_assert_int_eq(ring_put(t, 8), 0);
		kvr_ring_commit(&t->w);
	}
}

static void receive(struct test_ring *t, uint32_t n)
{
	while (n--)
		ck_assert_int_eq(ring_take(t, 8), 1);
	kvr_ring_release(&t->r);
}

static void says(const char *fmt, uint64_t v)
{
	char text[64];

	snprintf(text, sizeof text, fmt, (unsigned long long)v);
	ck_assert_msg(strstr(kvr_explain(), text), "\"%s\" is not in: %s", text, kvr_explain());
}

/* Whatever takes a commit word's place: a peek finds nothing, the check finds the message missing.
 */
START_TEST(test_overwritten_word_is_found_and_the_evidence_stays)
{
	uint64_t start = start_of(_i / 4), pos = start + 9, right, wrong[4];
	struct kvr_ring_msg m;
	struct test_ring t;
	char first[512];

	ring_open(&t, SMALL, start);
	send(&t, 9);
	receive(&t, 9);
	ck_assert_int_eq(kvr_ring_check(&t.r), 0); /* nothing is missing */
	send(&t, 3);
	right = *word_of(&t, pos);
	wrong[0] = 0;
	wrong[1] = right ^ 1ull << 31;
	wrong[2] = right ^ 1ull << 33;
	wrong[3] = ~0ull;
	*word_of(&t, pos) = wrong[_i % 4];
	ck_assert_int_eq(kvr_ring_peek(&t.r, &m), 0);
	ck_assert_int_eq(kvr_ring_check(&t.r), -EBADMSG);
	says("message %llu must be", 9);
	says("cell %llu of", pos);
	says("word %#llx", wrong[_i % 4]);
	says("says that %llu messages", 12);
	says("up to cell %llu.", (uint32_t)(pos + 3));
	snprintf(first, sizeof first, "%s", kvr_explain());
	*word_of(&t, pos) = right;
	ck_assert_int_eq(kvr_ring_check(&t.r), -EBADMSG);
	ck_assert_str_eq(kvr_explain(), first);
	ck_assert_int_eq(kvr_ring_peek(&t.r, &m), -EBADMSG);
	ck_assert_str_eq(kvr_explain(), first);
	ck_assert_uint_eq(t.r.pos, pos); /* nothing was consumed */
	send(&t, 1);			 /* the writer is not concerned */
	ring_close(&t);
}
END_TEST

/* A reader whose cursor somebody moved on, within what is possible, is overtaken by its writer. */
START_TEST(test_overtaken_reader_finds_out)
{
	struct kvr_ring_msg m;
	struct test_ring t;

	ring_open(&t, SMALL, start_of(_i));
	send(&t, CELLS);
	t.cursor->pos = t.start + CELLS;
	send(&t, 1);
	ck_assert_int_eq(kvr_ring_peek(&t.r, &m), 0);
	ck_assert_int_eq(kvr_ring_check(&t.r), -EBADMSG);
	says("message %llu must be", 0);
	ring_close(&t);
}
END_TEST

/* Those that go with no position of the reader; the message that is there stays unread. */
START_TEST(test_impossible_control_line_is_named)
{
	static const struct {
		int64_t cells, messages; /* beyond the reader */
	} wrong[] = {
		{ CELLS + 1, 1 },
		{ -CELLS - 1, -1 },
		{ 1, 2 },
		{ 1, 0 },
		{ 1, -1 },
		{ 0, 1 },
		{ 0, -1 },
		{ -1, 0 },
		{ -1, 1 },
		{ -1, -2 },
		{ INT32_MIN, INT32_MIN },
		{ INT32_MAX, 1 },
		{ 2, INT32_MIN },
		{ INT32_MIN, -1 },
	};
	struct kvr_ring_msg m;
	struct test_ring t;
	uint64_t pos;
	size_t i;

	for (i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		ring_open(&t, SMALL, start_of(_i));
		send(&t, 5);
		receive(&t, 5);
		pos = t.start + 5;
		*ctl_of(&t) = (pos + (uint64_t)wrong[i].cells) << 32 |
			      (uint32_t)(5 + wrong[i].messages);
		ck_assert_int_eq(kvr_ring_check(&t.r), -EBADMSG);
		says("the control line is impossible%.0llu", 0);
		says("up to cell %llu.", (uint32_t)(pos + (uint64_t)wrong[i].cells));
		ck_assert_int_eq(kvr_ring_peek(&t.r, &m), -EBADMSG);
		ring_close(&t);
	}
}
END_TEST

/* The writer is stopped between a commit word and the control line; the reader takes the batch, all
 * of it or one message of it. */
START_TEST(test_reader_ahead_of_the_control_line_misses_nothing)
{
	struct kvr_ring_msg m;
	struct test_ring t;
	uint64_t old;
	uint32_t n;

	ring_open(&t, SMALL, start_of(_i));
	send(&t, 7);
	receive(&t, 7);
	old = *ctl_of(&t);
	for (n = 0; n < CELLS - 2; n += 2) /* over the ring's end, with its padding */
		ck_assert_int_eq(ring_put(&t, n == 8 ? 112 : 8), 0);
	kvr_ring_commit(&t.w);
	*ctl_of(&t) = old;
	do
		ck_assert_int_eq(kvr_ring_check(&t.r), 0);
	while (kvr_ring_peek(&t.r, &m) == 1);
	ck_assert_uint_eq(t.r.pos, t.w.published);
	kvr_ring_rewind(&t.r);
	ck_assert_int_eq(kvr_ring_check(&t.r), 0);
	ring_close(&t);
}
END_TEST

/* What is reserved, put or aborted is not missed either. */
START_TEST(test_what_is_not_committed_is_not_missed)
{
	struct kvr_ring_msg m;
	struct test_ring t;
	uint32_t i, k;

	ring_open(&t, SMALL, start_of(_i));
	for (i = 0; i < 100; i++) {
		for (k = 0; k < 1 + i % 4; k++)
			ck_assert_int_eq(ring_put(&t, k == 2 ? 112 : 40), 0);
		ck_assert_int_eq(kvr_ring_peek(&t.r, &m), 0);
		ck_assert_int_eq(kvr_ring_check(&t.r), 0);
		if (i % 3)
			kvr_ring_commit(&t.w);
		else
			kvr_ring_abort(&t.w);
		while (kvr_ring_peek(&t.r, &m) == 1)
			ck_assert_int_eq(kvr_ring_check(&t.r), 0);
		kvr_ring_release(&t.r);
		ck_assert_int_eq(kvr_ring_check(&t.r), 0);
	}
	ring_close(&t);
}
END_TEST

/* --- a writer that is stopped after each instruction ------------------------------------------ */

/* In memory that parent and child share; the child has a copy of its own of the writer. */
struct shared {
	uint8_t mem[KVR_RING_CTL + SMALL];
	struct kvr_ring_cursor cursor;
};

static void writes(struct kvr_ring_writer *w)
{
	static const uint8_t bytes[112];
	void *payload;

	for (uint32_t i = 0; i < 24; i++) {
		uint32_t len = i % 5 == 2 ? 112 : i % 5 == 3 ? 60 : 8; /* two cells, two, one */

		switch (i % 4) {
		case 0:
			while (kvr_ring_write(w, i, bytes, len))
				;
			break;
		case 1:
			while (kvr_ring_put(w, i, bytes, len))
				;
			while (kvr_ring_put(w, i, bytes, 8))
				;
			kvr_ring_commit(w);
			break;
		case 2:
			while (kvr_ring_reserve(w, i, len, &payload))
				;
			while (kvr_ring_reserve(w, i, 8, &payload))
				;
			kvr_ring_abort(w);
			break;
		default:
			for (int k = 0; k < 3; k++)
				while (kvr_ring_reserve(w, i, k == 1 ? 112 : 8, &payload))
					;
			kvr_ring_commit(w);
		}
	}
}

static pid_t writer_start(struct kvr_ring_writer *w)
{
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
		_exit(77);
	raise(SIGSTOP);
	writes(w);
	_exit(0);
}

/*
 * Every second time the reader takes what is there, so that the ring is full now, and empty then.
 * Returns the number of messages taken.
 */
static uint32_t look(struct kvr_ring_reader *r, uint64_t step)
{
	struct kvr_ring_msg m;
	uint32_t n = 0;
	int rc;

	if (kvr_ring_check(r))
		ck_abort_msg("after step %llu: %s", (unsigned long long)step, kvr_explain());
	if (step % 512 >= 256 && step % 3)
		return 0;
	while ((rc = kvr_ring_peek(r, &m)) == 1)
		n++;
	if (rc || kvr_ring_check(r))
		ck_abort_msg("after step %llu: %s", (unsigned long long)step, kvr_explain());
	kvr_ring_release(r);
	return n;
}

START_TEST(test_writer_stopped_after_each_instruction)
{
	struct shared *s =
		mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t steps = 0, deadline = test_deadline_ms(15000);
	struct kvr_ring_writer w;
	struct kvr_ring_reader r;
	uint32_t taken = 0;
	int status;
	pid_t pid;

	ck_assert_ptr_ne(s, MAP_FAILED);
	s->cursor.pos = start_of(_i);
	ck_assert_int_eq(kvr_ring_writer_init(&w, s->mem, SMALL, &s->cursor, start_of(_i)), 0);
	ck_assert_int_eq(kvr_ring_reader_init(&r, s->mem, SMALL, &s->cursor, start_of(_i)), 0);
	pid = writer_start(&w);
	while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status) && test_now_ns() < deadline) {
		taken += look(&r, steps++);
		if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL))
			break;
	}
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
		test_skip("this system refuses ptrace");
	} else if (!WIFEXITED(status)) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		ck_assert_msg(KVR_TEST_TSAN || KVR_TEST_ASAN, "the writer did not end, status %#x",
			      (unsigned)status);
		test_skip("instrumented code takes too many steps");
	} else {
		taken += look(&r, 0);
		ck_assert_uint_eq(taken, 6 * (1 + 2 + 3));
		printf("%llu stops\n", (unsigned long long)steps);
	}
	munmap(s, sizeof *s);
}
END_TEST

/* Bytes outside the ring may go when the reader passed their message: not before it says so. */
START_TEST(test_reader_says_what_it_passed)
{
	uint64_t start = start_of(_i), end[CELLS];
	struct test_ring t;
	uint32_t i;

	ring_open(&t, SMALL, start);
	ck_assert_int_eq(kvr_ring_passed(&t.w, start), 1);
	for (i = 0; i < 8; i++) {
		send(&t, 1);
		end[i] = t.w.published;
		ck_assert_int_eq(kvr_ring_passed(&t.w, end[i]), 0);
	}
	receive(&t, 1);
	ck_assert_int_eq(kvr_ring_passed(&t.w, end[0]), 0); /* a quarter of the ring later */
	kvr_ring_show(&t.r);
	ck_assert_int_eq(kvr_ring_passed(&t.w, end[0]), 1);
	ck_assert_int_eq(kvr_ring_passed(&t.w, end[1]), 0);
	ck_assert_int_eq(ring_take(&t, 8), 1);
	kvr_ring_show(&t.r); /* peeked is not released */
	ck_assert_int_eq(kvr_ring_passed(&t.w, end[1]), 0);
	receive(&t, 3);
	ck_assert_int_eq(kvr_ring_passed(&t.w, end[4]), 1);
	ck_assert_int_eq(kvr_ring_passed(&t.w, end[5]), 0);
	for (i = 0; i < 40; i++) { /* laps */
		send(&t, 1);
		ck_assert_int_eq(kvr_ring_passed(&t.w, t.w.published), 0);
		receive(&t, 1);
	}
	ck_assert_int_eq(kvr_ring_passed(&t.w, end[7]), 1);
	ck_assert_int_eq(kvr_ring_passed(&t.w, t.w.published), 0);
	ring_close(&t);
}
END_TEST

START_TEST(test_impossible_cursor_passed_nothing)
{
	struct test_ring t;
	uint64_t pos;
	int i;

	ring_open(&t, SMALL, 0);
	send(&t, 2);
	receive(&t, 1);
	kvr_ring_show(&t.r);
	ck_assert_int_eq(kvr_ring_passed(&t.w, 1), 1);
	pos = t.w.published;
	t.cursor->pos = 3;
	for (i = 0; i < 2; i++) {
		ck_assert_int_eq(kvr_ring_passed(&t.w, pos), -EBADMSG);
		says("cursor is at cell %llu;", 3);
		t.cursor->pos = pos; /* sticky */
	}
	ck_assert_int_eq(kvr_ring_passed(&t.w, 1), 1); /* what was known before stays known */
	ck_assert_int_eq(kvr_ring_write(&t.w, 1, "x", 1), -EBADMSG);
	ring_close(&t);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("ring_check");
	TCase *t = tcase_create("overwritten");

	tcase_add_loop_test(t, test_overwritten_word_is_found_and_the_evidence_stays, 0,
			    4 * STARTS);
	tcase_add_loop_test(t, test_overtaken_reader_finds_out, 0, STARTS);
	tcase_add_loop_test(t, test_impossible_control_line_is_named, 0, STARTS);
	tcase_add_test(t, test_impossible_cursor_passed_nothing);
	suite_add_tcase(s, t);
	t = tcase_create("healthy");
	tcase_add_loop_test(t, test_reader_ahead_of_the_control_line_misses_nothing, 0, STARTS);
	tcase_add_loop_test(t, test_what_is_not_committed_is_not_missed, 0, STARTS);
	tcase_add_loop_test(t, test_reader_says_what_it_passed, 0, STARTS);
	tcase_add_loop_test(t, test_writer_stopped_after_each_instruction, 0, STARTS);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
