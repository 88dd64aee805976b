/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring between threads and between processes, at the wraps of its positions, and under an
 * inspector's eyes.
 */
#include "harness.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include "kvring/ring.h"
#include "ring_helpers.h"
#include "ring_sides.h"
#include "ring_traffic.h"

#define BYTES 4096u
#define CELLS (BYTES / KVR_RING_CELL)
#define LONG_MS 20000u

/* The second lap, or a part of it, crosses where a cursor or a commit word wraps. */
static const uint64_t starts[] = { 0, (1ull << 32) - CELLS, 0 - (uint64_t)CELLS };
#define STARTS 3

/* Random sizes in batches, some of them aborted, until `count` messages are published. */
static int write_many(struct test_ring *t, uint32_t count, uint64_t x)
{
	uint64_t deadline = test_deadline_ms(LONG_MS);
	uint32_t published = 0, n;
	int err = 0;

	while (published < count) {
		for (n = 1 + test_random(&x) % 4; n && !err; n--)
			err = ring_put(t, test_random(&x) % (kvr_ring_max_payload(BYTES) + 1));
		if (err && err != -EAGAIN)
			return err;
		if (err == -EAGAIN) {
			if (test_now_ns() > deadline)
				return -ETIMEDOUT;
			sched_yield();
		}
		err = 0;
		if (test_random(&x) % 8) {
			kvr_ring_commit(&t->w);
			published = t->put;
		} else {
			kvr_ring_abort(&t->w);
			t->put = published;
		}
	}
	return 0;
}

static int read_many(struct test_ring *t, uint32_t count, uint64_t x)
{
	uint64_t deadline = test_deadline_ms(LONG_MS);
	uint32_t len;
	int rc;

	while (t->taken < count) {
		rc = ring_take_whole(t, &len);
		if (rc < 0)
			return rc;
		if (!rc) {
			if (test_now_ns() > deadline)
				return -ETIMEDOUT;
			sched_yield();
		}
		if (!rc || test_random(&x) % 2)
			kvr_ring_release(&t->r);
	}
	return 0;
}

static void *writer_main(void *arg)
{
	struct test_ring *t = arg;

	return write_many(t, 20000, 1) ? t : NULL;
}

/* Each side has its half of the test_ring to itself; what they share is what the library shares. */
START_TEST(test_two_threads)
{
	struct test_ring w, r;
	void *failed;
	pthread_t t;

	ring_open(&w, BYTES, starts[_i]);
	r = w;
	ck_assert_int_eq(pthread_create(&t, NULL, writer_main, &w), 0);
	ck_assert_int_eq(read_many(&r, 20000, 2), 0);
	pthread_join(t, &failed);
	ck_assert_ptr_null(failed);
	ring_close(&w);
}
END_TEST

/* As ring_open(), in memory that a forked process shares. */
static void ring_open_shared(struct test_ring *t, uint64_t start)
{
	size_t bytes = sizeof(*t->cursor) + kvr_ring_memsize(BYTES);
	uint8_t *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	ck_assert_ptr_ne(mem, MAP_FAILED);
	*t = (struct test_ring){ .mem = mem + sizeof(*t->cursor), .start = start };
	t->cursor = (struct kvr_ring_cursor *)(void *)mem;
	ck_assert_int_eq(kvr_ring_writer_init(&t->w, t->mem, BYTES, t->cursor, start), 0);
	ck_assert_int_eq(kvr_ring_reader_init(&t->r, t->mem, BYTES, t->cursor, start), 0);
}

START_TEST(test_two_processes)
{
	uint32_t count = KVR_TEST_TSAN || KVR_TEST_ASAN ? 50000 : 300000;
	struct test_ring t;
	pid_t pid;

	ring_open_shared(&t, starts[_i]);
	pid = fork();
	if (!pid)
		_exit(write_many(&t, count, 3) ? 1 : 0);
	ck_assert_int_eq(read_many(&t, count, 4), 0);
	ck_assert_int_eq(test_reap(pid, LONG_MS), 0);
}
END_TEST

/*
 * Short lives around the wraps, where bytes of the last lap before one could be taken for messages
 * of the first behind it. The reader always looks at the very next cell.
 */
START_TEST(test_hostile_bytes_where_positions_wrap)
{
	uint64_t x = test_seed(), round;
	uint32_t i, n, got, len[2];

	for (round = 0; round < 3000 / SIDE_SLOW; round++) {
		uint32_t bytes = KVR_RING_MIN << test_random(&x) % 3;
		uint64_t cells = bytes / KVR_RING_CELL;
		uint64_t wrap = round & 1 ? 0 : 1ull << 32;
		struct test_ring t;

		ring_open(&t, bytes, wrap - cells * (1 + test_random(&x) % 2));
		for (i = 0; i < 4 * cells; i++) {
			for (n = 0; n < 2; n++) {
				len[n] = test_random(&x) % (kvr_ring_max_payload(bytes) + 1);
				if (ring_put_words(&t, len[n], cells))
					break;
			}
			kvr_ring_commit(&t.w);
			for (got = 0; got < n; got++)
				if (ring_take_any(&t, len[got]) != 1)
					ck_abort_msg("message %u is missing or wrong", t.taken);
			if (ring_take_any(&t, 0))
				ck_abort_msg("a message behind message %u", t.taken);
			kvr_ring_release(&t.r);
		}
		ring_close(&t);
	}
}
END_TEST

/* --- traffic with waits: see ring_traffic.h --------------------------------------------------- */

/* All ways to wait for both sides; the first messages' numbers wrap, too. */
static struct traffic *traffic_open(int i, uint32_t count)
{
	struct traffic *t = side_map(traffic_bytes(BYTES));
	struct traffic_plan p = {
		.seed = test_seed(),
		.start = starts[i % STARTS],
		.deadline = test_deadline_ms(LONG_MS),
		.bytes = BYTES,
		.count = count,
		.first = 0u - 500,
		.batch = 4,
		.hold = 3,
		.hostile = 4,
		.aborts = 1,
		.rewinds = 1,
		.pauses = 1,
		.writer_waits = (enum traffic_wait)(i / STARTS % 3),
		.reader_waits = (enum traffic_wait)(i / STARTS / 3),
	};

	traffic_set(t, &p);
	return t;
}

static void traffic_judge(const struct traffic *t)
{
	ck_assert_msg(!*t->writer.why && !*t->reader.why, "writer: %s. Reader: %s", t->writer.why,
		      t->reader.why);
	ck_assert_uint_eq(t->writer.messages, t->plan.count);
	ck_assert_uint_eq(t->reader.messages, t->plan.count);
	ck_assert_uint_eq(*(const uint64_t *)(const void *)t->cells >> 32, (uint32_t)t->cursor.pos);
}

static void *traffic_writer_main(void *arg)
{
	struct kvr_waiter w = { 0 };

	traffic_write(arg, &w);
	return (void *)(uintptr_t)w.lost_wakes;
}

START_TEST(test_traffic_of_threads)
{
	struct traffic *t = traffic_open(_i, SIDE_SLOW > 1 ? 3000 : 10000);
	struct kvr_waiter r = { 0 };
	pthread_t thread;
	void *lost;

	ck_assert_int_eq(pthread_create(&thread, NULL, traffic_writer_main, t), 0);
	traffic_read(t, &r);
	pthread_join(thread, &lost);
	traffic_judge(t);
	ck_assert_uint_le(r.lost_wakes, t->writer.held);
	ck_assert_uint_le((uintptr_t)lost, t->reader.held);
}
END_TEST

static void traffic_fork(struct traffic *t, pid_t pids[2])
{
	struct kvr_waiter w = { 0 };
	const char *why;

	pids[0] = side_fork();
	if (!pids[0]) {
		why = traffic_write(t, &w);
		side_exit(&t->writer, &w, why);
	}
	pids[1] = side_fork();
	if (!pids[1]) {
		why = traffic_read(t, &w);
		side_exit(&t->reader, &w, why);
	}
}

START_TEST(test_traffic_of_processes)
{
	struct traffic *t = traffic_open(_i, SIDE_SLOW > 1 ? 5000 : 20000);
	const char *why;
	pid_t pids[2];

	traffic_fork(t, pids);
	why = sides_run(pids, 2, &(struct stops){ 0 }, t->plan.deadline);
	traffic_judge(t);
	ck_assert_ptr_null(why);
	ck_assert_uint_le(t->reader.lost, t->writer.held);
	ck_assert_uint_le(t->writer.lost, t->reader.held);
}
END_TEST

/*
 * Eight pairs of processes on the CPUs that there are, each with a ring that is full or empty all
 * the time: nobody starves.
 */
#define PAIRS 8
START_TEST(test_more_processes_than_cpus)
{
	struct traffic *t[PAIRS];
	pid_t pids[2 * PAIRS];
	const char *why;
	uint32_t i;

	for (i = 0; i < PAIRS; i++) {
		t[i] = traffic_open(0, 20000 / SIDE_SLOW);
		t[i]->plan.bytes = KVR_RING_MIN;
		t[i]->plan.pauses = 0;
		t[i]->plan.writer_waits = t[i]->plan.reader_waits = TRAFFIC_WAIT;
		traffic_fork(t[i], &pids[2 * i]);
	}
	why = sides_run(pids, 2 * PAIRS, &(struct stops){ 0 }, t[0]->plan.deadline);
	for (i = 0; i < PAIRS; i++)
		traffic_judge(t[i]);
	ck_assert_ptr_null(why);
}
END_TEST

/* What a walk saw: numbers and positions must follow each other. */
struct seen {
	const uint8_t *cells;
	uint32_t n, first, last;
	uint64_t pos;
	uint64_t from; /* payloads before this cell may be half overwritten */
	const char *bad;
};

static void walk_see(void *arg, const struct kvr_ring_msg *m, uint64_t pos)
{
	struct seen *s = arg;
	const uint8_t *data = m->data;
	uint32_t i;

	if (data < s->cells + 16 || data + m->len > s->cells + BYTES)
		s->bad = "outside the copy";
	else if (s->n && (m->seq != s->last + 1 || pos - s->pos - 1 >= CELLS))
		s->bad = "out of order";
	for (i = 0; i < m->len && !s->bad && pos >= s->from; i++)
		if (data[i] != ring_byte(m->seq, i))
			s->bad = "another message's bytes";
	if (!s->n++)
		s->first = m->seq;
	s->last = m->seq;
	s->pos = pos;
}

static int walk_from(struct seen *s, const void *cells, uint64_t published, uint64_t from)
{
	*s = (struct seen){ .cells = cells, .from = from };
	return kvr_ring_walk(cells, BYTES, published, walk_see, s);
}

static int walk(struct seen *s, const void *cells, uint64_t published)
{
	return walk_from(s, cells, published, 0);
}

START_TEST(test_walk_finds_the_last_lap)
{
	uint64_t start = _i ? (1ull << 32) - CELLS : 0, x = 7;
	struct test_ring t;
	struct seen s;
	uint32_t i, len;

	ring_open(&t, BYTES, start);
	ck_assert_int_eq(walk(&s, t.w.cells, t.w.published), 0);
	for (i = 0; i < 500; i++) {
		len = test_random(&x) % (kvr_ring_max_payload(BYTES) + 1);
		ck_assert_int_eq(ring_put(&t, len), 0);
		kvr_ring_commit(&t.w);
		ck_assert_int_eq(ring_take(&t, len), 1);
		kvr_ring_release(&t.r);
		ck_assert_int_eq(walk(&s, t.w.cells, t.w.published), (int)s.n);
		ck_assert_ptr_null(s.bad);
		ck_assert_uint_eq(s.last, i);
		/* Nine cells hold the largest message and its padding: so many fit at least. */
		ck_assert_uint_le(s.first, i < CELLS / 9 ? 0 : i + 1 - (CELLS - 9) / 9);
	}
	ring_close(&t);
}
END_TEST

START_TEST(test_walk_leaves_out_what_is_not_published)
{
	struct test_ring t;
	struct seen s;
	uint32_t i;

	ring_open(&t, BYTES, 0);
	for (i = 0; i < 10; i++)
		ck_assert_int_eq(ring_put(&t, 200), 0);
	kvr_ring_commit(&t.w);
	for (i = 0; i < 5; i++)
		ck_assert_int_eq(ring_put(&t, 100), 0);
	ck_assert_int_eq(walk(&s, t.w.cells, t.w.published), 10);
	kvr_ring_abort(&t.w);
	ck_assert_int_eq(walk(&s, t.w.cells, t.w.published), 10);
	ck_assert_ptr_null(s.bad);
	ck_assert_int_eq(kvr_ring_walk(t.w.cells, BYTES, t.w.published, NULL, NULL), 10);
	ck_assert_int_eq(kvr_ring_walk(t.w.cells, 1000, t.w.published, NULL, NULL), 0);
	ring_close(&t);
}
END_TEST

/* One broken cell ends the run there; what came later is still found. */
START_TEST(test_walk_of_corrupted_cells)
{
	uint8_t *copy = malloc(BYTES);
	struct test_ring t;
	struct seen s;
	uint32_t i, bit;
	int n;

	ring_open(&t, BYTES, 0);
	for (i = 0; i < 40; i++)
		ck_assert_int_eq(ring_put(&t, 8), 0);
	kvr_ring_commit(&t.w);
	for (i = 0; i < 40; i++) {
		for (bit = 0; bit < 64; bit++) {
			memcpy(copy, t.w.cells, BYTES);
			copy[64 * i + bit / 8] ^= (uint8_t)(1u << bit % 8);
			n = walk(&s, copy, t.w.published);
			if (bit < 6) /* another length within the cell: nobody can tell */
				ck_assert_int_eq(n, (8u ^ 1u << bit) <= 48 ? 40 : (int)(39 - i));
			else if (bit >= 9) /* over the maximum, other flags, another position */
				ck_assert_int_eq(n, (int)(39 - i));
			else
				ck_assert_int_lt(n, 40);
		}
		memcpy(copy, t.w.cells, BYTES);
		copy[64 * i + 12] ^= 1; /* its number: it follows no more, and none follows it */
		ck_assert_int_eq(walk(&s, copy, t.w.published), i == 39 ? 1 : (int)(39 - i));
	}
	ring_close(&t);
	free(copy);
}
END_TEST

static void walk_touch(void *arg, const struct kvr_ring_msg *m, uint64_t pos)
{
	uint64_t *sum = arg;
	uint32_t i;

	*sum += pos;
	for (i = 0; i < m->len; i++)
		*sum += ((const uint8_t *)m->data)[i];
}

START_TEST(test_walk_of_random_bytes_ends_inside)
{
	uint64_t x = test_seed(), sum = 0, published, round, i;
	uint64_t *words = malloc(BYTES);
	uint32_t messages = 0;
	int n;

	for (round = 0; round < 20000; round++) {
		published = (uint64_t)test_random(&x) << 33 ^ test_random(&x);
		for (i = 0; i < BYTES / 8; i++)
			words[i] = (uint64_t)test_random(&x) << 32 | test_random(&x);
		for (i = 0; i < CELLS && round & 1; i++) { /* likely headers in likely places */
			uint64_t pos = published - 1 - i, *cell = &words[8 * (pos % CELLS)];

			cell[0] = pos << 32 | 1u << 31 | (test_random(&x) % 600);
			cell[0] |= (uint64_t) !(test_random(&x) % 8) << 30;
			cell[1] &= 0x1ffffffff;
		}
		n = kvr_ring_walk(words, BYTES, published, walk_touch, &sum);
		ck_assert(n >= 0 && n <= (int)CELLS);
		messages += (uint32_t)n;
	}
	ck_assert_uint_gt(messages, 0);
	free(words);
}
END_TEST

/*
 * The writer's cursor first, then the cells, as an inspector does, while another process writes.
 * Bytes may be newer than the cursor, so only numbers and positions must hold.
 */
START_TEST(test_walk_of_a_live_ring)
{
	uint64_t until, published, sum = 0;
	uint8_t *copy = malloc(BYTES);
	struct test_ring t;
	struct seen s;
	uint32_t found = 0;
	int n, status;
	pid_t pid;

	ring_open_shared(&t, 0);
	pid = fork();
	if (!pid) { /* both ends: somebody must read, too */
		uint64_t x = 5;
		uint32_t len;

		for (;;) {
			len = test_random(&x) % 300;
			if (ring_put(&t, len))
				_exit(1);
			kvr_ring_commit(&t.w);
			if (ring_take(&t, len) != 1)
				_exit(2);
			kvr_ring_release(&t.r);
		}
	}
	until = test_deadline_ms(300);
	while (test_now_ns() < until) {
		published = __atomic_load_n(t.w.ctl, __ATOMIC_ACQUIRE) >> 32;
		memcpy(copy, t.w.cells, BYTES);
		n = kvr_ring_walk(copy, BYTES, published, walk_touch, &sum);
		ck_assert(n >= 0 && n <= (int)CELLS);
		found += (uint32_t)n;
	}
	kill(pid, SIGKILL);
	status = test_reap(pid, LONG_MS);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	ck_assert_uint_gt(found, 0);
	/*
	 * Killed between commit word and cursor, the ring says one message less. Killed while it
	 * filled a message in, that one's payload lies over the oldest ones.
	 */
	published = t.w.ctl[0] >> 32;
	ck_assert_int_gt(walk_from(&s, t.w.cells, published, published - CELLS / 2), 5);
	ck_assert_ptr_null(s.bad);
	ck_assert_uint_ge(s.last + 1, (uint32_t)t.w.ctl[0]);
	free(copy);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("ring peers");
	TCase *t = tcase_create("peers");

	tcase_set_timeout(t, 30);
	tcase_add_loop_test(t, test_two_threads, 0, STARTS);
	tcase_add_loop_test(t, test_two_processes, 0, STARTS);
	tcase_add_test(t, test_hostile_bytes_where_positions_wrap);
	tcase_add_loop_test(t, test_traffic_of_threads, 0, 9 * STARTS);
	tcase_add_loop_test(t, test_traffic_of_processes, 0, 9 * STARTS);
	tcase_add_test(t, test_more_processes_than_cpus);
	suite_add_tcase(s, t);
	t = tcase_create("walk");
	tcase_add_loop_test(t, test_walk_finds_the_last_lap, 0, 2);
	tcase_add_test(t, test_walk_leaves_out_what_is_not_published);
	tcase_add_test(t, test_walk_of_corrupted_cells);
	tcase_add_test(t, test_walk_of_random_bytes_ends_inside);
	tcase_add_test(t, test_walk_of_a_live_ring);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
