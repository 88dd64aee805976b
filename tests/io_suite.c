/* SPDX-License-Identifier: Apache-2.0 */
/* The tests behind io_suite.h: real files, with O_DIRECT where the disk has it, and real deaths. */
#include "io_suite.h"

#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>

#include "harness.h"
#include "kvring/err.h"

#define WAIT_MS 10000
#define BYTES (4u << 20)

static const struct io_kind *kind;

uint8_t *io_pool(uint64_t bytes)
{
	void *pool = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	ck_assert_ptr_ne(pool, MAP_FAILED);
	return pool;
}

void io_set_up(struct io_set *set, const struct io_kind *k, int variant, uint64_t bytes,
	       uint32_t depth)
{
	int err;

	test_tmpdir(set->dir, sizeof(set->dir));
	snprintf(set->path, sizeof(set->path), "%s/device", set->dir);
	ck_assert_msg(!kvr_file_open(set->path, 1, &set->file), "%s", kvr_explain());
	ck_assert_msg(!kvr_file_lock(&set->file, set->path, 0), "%s", kvr_explain());
	ck_assert_msg(!kvr_file_reserve(&set->file, set->path, bytes), "%s", kvr_explain());
	set->pool = io_pool(bytes);
	set->pool_bytes = bytes;
	err = k->open(variant, &set->file, depth, set->pool, bytes, &set->io);
	ck_assert_msg(!err, "%s variant %d: %s", k->name, variant, kvr_explain());
	ck_assert_uint_eq(set->io->depth, depth);
	ck_assert_uint_eq(set->io->bytes, bytes);
	ck_assert_uint_eq(set->io->inflight, 0);
}

void io_set_down(struct io_set *set)
{
	if (set->io)
		ck_assert_int_eq(set->io->ops->close(set->io, test_deadline_ms(WAIT_MS)), 0);
	munmap(set->pool, set->pool_bytes);
	test_rmdir(set->dir);
}

int io_try_lock(const char *path, uint64_t ms)
{
	struct kvr_file file;
	int err;

	ck_assert_msg(!kvr_file_open(path, 0, &file), "%s", kvr_explain());
	err = kvr_file_lock(&file, path, test_deadline_ms(ms));
	kvr_file_close(&file);
	return err;
}

void io_fill(void *buf, uint64_t len, uint64_t seed)
{
	uint64_t *w = buf;
	uint64_t i;

	for (i = 0; i < len / 8; i++)
		w[i] = (seed + i + 1) * 0x9e3779b97f4a7c15u;
}

static int is_filled(const void *buf, uint64_t len, uint64_t seed)
{
	const uint64_t *w = buf;
	uint64_t i;

	for (i = 0; i < len / 8; i++)
		if (w[i] != (seed + i + 1) * 0x9e3779b97f4a7c15u)
			return 0;
	return 1;
}

struct kvr_io_req io_request(enum kvr_io_op op, void *buf, uint64_t off, uint32_t len)
{
	struct kvr_io_req req = { .buf = buf, .off = off, .len = len, .op = op, .res = -ENODATA };

	return req;
}

void io_wait(struct kvr_io *io, unsigned n)
{
	struct kvr_io_req *reqs[8];
	struct pollfd p = { .fd = io->ops->fd(io), .events = POLLIN };
	uint64_t deadline = test_deadline_ms(WAIT_MS);
	int got;

	while (n) {
		got = io->ops->reap(io, reqs, n < 8 ? n : 8);
		ck_assert_int_ge(got, 0);
		n -= (unsigned)got;
		if (got || !n)
			continue;
		ck_assert_msg(test_now_ns() < deadline, "%u requests did not end", n);
		poll(&p, 1, WAIT_MS);
	}
}

int32_t io_one(struct kvr_io *io, enum kvr_io_op op, void *buf, uint64_t off, uint32_t len)
{
	struct kvr_io_req req = io_request(op, buf, off, len);

	ck_assert_int_eq(io->ops->submit(io, &req), 0);
	ck_assert_msg(!io->ops->flush(io), "%s", kvr_explain());
	io_wait(io, 1);
	return req.res;
}

/* All of `reqs` at once; each must move every byte. */
static void move_all(struct kvr_io *io, struct kvr_io_req *reqs, unsigned n)
{
	unsigned i;

	for (i = 0; i < n; i++)
		ck_assert_int_eq(io->ops->submit(io, &reqs[i]), 0);
	ck_assert_int_eq(io->ops->flush(io), 0);
	ck_assert_uint_eq(io->inflight, n);
	io_wait(io, n);
	ck_assert_uint_eq(io->inflight, 0);
	for (i = 0; i < n; i++)
		ck_assert_msg(reqs[i].res == (int32_t)reqs[i].len, "request %u: %d of %u", i,
			      reqs[i].res, reqs[i].len);
}

/* Fills the first blocks of the device, at depth. */
static void *drive(void *arg)
{
	struct io_set *set = arg;
	struct kvr_io_req reqs[IO_DEPTH];
	unsigned i;

	for (i = 0; i < IO_DEPTH; i++) {
		io_fill(set->pool + i * IO_BLOCK, IO_BLOCK, 50 + i);
		reqs[i] =
			io_request(KVR_IO_WRITE, set->pool + i * IO_BLOCK, i * IO_BLOCK, IO_BLOCK);
	}
	move_all(set->io, reqs, IO_DEPTH);
	return NULL;
}

START_TEST(test_io_reads_what_was_written_at_depth)
{
	struct kvr_io_req reqs[IO_DEPTH];
	struct io_set set;
	unsigned i, round;
	uint8_t *at;

	io_set_up(&set, kind, _i, BYTES, IO_DEPTH);
	for (round = 0; round < 4; round++) {
		for (i = 0; i < IO_DEPTH; i++) {
			at = set.pool + i * IO_BLOCK;
			io_fill(at, IO_BLOCK, round * 1000 + i);
			reqs[i] = io_request(KVR_IO_WRITE, at, i * IO_BLOCK, IO_BLOCK);
		}
		move_all(set.io, reqs, IO_DEPTH);
		memset(set.pool, 0, IO_DEPTH * IO_BLOCK);
		for (i = 0; i < IO_DEPTH; i++) {
			at = set.pool + (IO_DEPTH - 1 - i) * IO_BLOCK;
			reqs[i] = io_request(KVR_IO_READ, at, i * IO_BLOCK, IO_BLOCK);
		}
		move_all(set.io, reqs, IO_DEPTH);
		for (i = 0; i < IO_DEPTH; i++)
			ck_assert(is_filled(reqs[i].buf, IO_BLOCK, round * 1000 + i));
	}
	ck_assert_int_eq(set.io->ops->sync(set.io), 0);
	io_set_down(&set);
}
END_TEST

START_TEST(test_io_moves_memory_outside_the_pool)
{
	struct io_set set;
	uint8_t *other = io_pool(IO_BLOCK);

	io_set_up(&set, kind, _i, BYTES, IO_DEPTH);
	io_fill(other, IO_BLOCK, 7);
	ck_assert_int_eq(io_one(set.io, KVR_IO_WRITE, other, IO_BLOCK, IO_BLOCK), (int)IO_BLOCK);
	memset(other, 0, IO_BLOCK);
	ck_assert_int_eq(io_one(set.io, KVR_IO_READ, other, IO_BLOCK, IO_BLOCK), (int)IO_BLOCK);
	ck_assert(is_filled(other, IO_BLOCK, 7));
	munmap(other, IO_BLOCK);
	io_set_down(&set);
}
END_TEST

START_TEST(test_io_refuses_more_than_depth)
{
	struct kvr_io_req reqs[IO_DEPTH], more;
	struct io_set set;
	unsigned i;

	io_set_up(&set, kind, _i, BYTES, IO_DEPTH);
	for (i = 0; i < IO_DEPTH; i++) {
		reqs[i] = io_request(KVR_IO_READ, set.pool + i * IO_BLOCK, 0, IO_BLOCK);
		ck_assert_int_eq(set.io->ops->submit(set.io, &reqs[i]), 0);
	}
	more = io_request(KVR_IO_READ, set.pool, 0, IO_BLOCK);
	ck_assert_int_eq(set.io->ops->submit(set.io, &more), -EAGAIN);
	ck_assert_int_eq(set.io->ops->flush(set.io), 0);
	/* In flight means not reaped, whatever the device did meanwhile. */
	test_sleep_ms(20);
	ck_assert_int_eq(set.io->ops->submit(set.io, &more), -EAGAIN);
	io_wait(set.io, 1);
	ck_assert_int_eq(set.io->ops->submit(set.io, &more), 0);
	ck_assert_int_eq(set.io->ops->flush(set.io), 0);
	io_wait(set.io, IO_DEPTH);
	ck_assert_int_eq(more.res, (int)IO_BLOCK);
	io_set_down(&set);
}
END_TEST

START_TEST(test_io_descriptor_wakes_a_sleeper_and_falls_silent)
{
	const uint32_t big = 64u << 20; /* long enough that poll() sleeps before it ends */
	struct io_set set;
	struct kvr_io_req req, *got;
	struct pollfd p;
	uint64_t start;

	io_set_up(&set, kind, _i, big, IO_DEPTH);
	p = (struct pollfd){ .fd = set.io->ops->fd(set.io), .events = POLLIN };
	ck_assert_int_eq(poll(&p, 1, 0), 0);
	req = io_request(KVR_IO_WRITE, set.pool, 0, big);
	io_fill(set.pool, big, 3);
	ck_assert_int_eq(set.io->ops->submit(set.io, &req), 0);
	ck_assert_int_eq(set.io->ops->flush(set.io), 0);
	start = test_now_ns();
	while (poll(&p, 1, WAIT_MS) < 0)
		ck_assert_int_eq(errno, EINTR);
	/* Not the timeout, at which poll() looks once more: the wakeup itself. */
	ck_assert_uint_lt(test_now_ns() - start, WAIT_MS * 1000000ull);
	ck_assert_int_eq(p.revents, POLLIN);
	io_wait(set.io, 1);
	ck_assert_int_eq(req.res, (int)big);
	ck_assert_int_eq(set.io->ops->reap(set.io, &got, 1), 0);
	ck_assert_int_eq(poll(&p, 1, 0), 0);
	io_set_down(&set);
}
END_TEST

START_TEST(test_io_descriptor_stays_readable_until_all_is_reaped)
{
	struct kvr_io_req reqs[IO_DEPTH], *got;
	struct io_set set;
	struct pollfd p;
	unsigned i, left = IO_DEPTH;

	io_set_up(&set, kind, _i, BYTES, IO_DEPTH);
	p = (struct pollfd){ .fd = set.io->ops->fd(set.io), .events = POLLIN };
	for (i = 0; i < IO_DEPTH; i++) {
		reqs[i] = io_request(KVR_IO_READ, set.pool + i * IO_BLOCK, 0, IO_BLOCK);
		ck_assert_int_eq(set.io->ops->submit(set.io, &reqs[i]), 0);
	}
	ck_assert_int_eq(set.io->ops->flush(set.io), 0);
	while (left) { /* one at a time: a lost wakeup would hang here */
		i = (unsigned)(poll(&p, 1, WAIT_MS) == 1);
		ck_assert_msg(i || errno == EINTR, "%u requests left, but silence", left);
		left -= (unsigned)set.io->ops->reap(set.io, &got, 1);
	}
	ck_assert_int_eq(set.io->ops->reap(set.io, &got, 1), 0);
	ck_assert_int_eq(poll(&p, 1, 0), 0);
	io_set_down(&set);
}
END_TEST

START_TEST(test_io_never_misses_a_wakeup)
{
	struct kvr_io_req reqs[IO_DEPTH], *got[IO_DEPTH];
	struct io_set set;
	struct pollfd p;
	unsigned done = 0, sent = 0, i;
	int n;

	io_set_up(&set, kind, _i, BYTES, IO_DEPTH);
	p = (struct pollfd){ .fd = set.io->ops->fd(set.io), .events = POLLIN };
	for (i = 0; i < IO_DEPTH; i++) {
		reqs[i] = io_request(KVR_IO_READ, set.pool + i * IO_BLOCK, i * IO_BLOCK, 4096);
		ck_assert_int_eq(set.io->ops->submit(set.io, &reqs[i]), 0);
		sent++;
	}
	while (done < 2000) { /* sleeps and completions meet in every order */
		ck_assert_int_eq(set.io->ops->flush(set.io), 0);
		n = poll(&p, 1, WAIT_MS);
		ck_assert_msg(n == 1 || (n < 0 && errno == EINTR), "silence after %u", done);
		n = set.io->ops->reap(set.io, got, 1 + done % IO_DEPTH);
		for (i = 0; (int)i < n; i++) {
			ck_assert_int_eq(got[i]->res, 4096);
			if (sent++ < 2000)
				ck_assert_int_eq(set.io->ops->submit(set.io, got[i]), 0);
		}
		done += (unsigned)n;
	}
	io_set_down(&set);
}
END_TEST

START_TEST(test_io_reports_unaligned_as_a_result)
{
	struct io_set set;

	io_set_up(&set, kind, _i, BYTES, IO_DEPTH);
	if (set.file.direct) {
		/* Where nothing was written yet there is nothing to be aligned with; and unaligned
		 * memory some drives take. */
		drive(&set);
		ck_assert_int_eq(io_one(set.io, KVR_IO_READ, set.pool, 100, IO_BLOCK), -EINVAL);
		ck_assert_int_eq(io_one(set.io, KVR_IO_WRITE, set.pool, 0, 100), -EINVAL);
		ck_assert_int_eq(io_one(set.io, KVR_IO_READ, set.pool, 0, IO_BLOCK), (int)IO_BLOCK);
	} else {
		test_skip("no O_DIRECT here, nothing is unaligned");
	}
	io_set_down(&set);
}
END_TEST

START_TEST(test_io_ends_at_the_end)
{
	struct kvr_io_req req;
	struct io_set set;
	struct kvr_io *io;

	io_set_up(&set, kind, _i, BYTES, IO_DEPTH);
	io = set.io;
	ck_assert_int_eq(io_one(io, KVR_IO_READ, set.pool, BYTES - 8192, IO_BLOCK), 8192);
	ck_assert_int_eq(io_one(io, KVR_IO_READ, set.pool, BYTES, IO_BLOCK), 0);
	/* A write there would make the file longer, and -1 would mean the file position. */
	req = io_request(KVR_IO_WRITE, set.pool, BYTES - 4096, 8192);
	ck_assert_int_eq(io->ops->submit(io, &req), -EINVAL);
	req = io_request(KVR_IO_READ, set.pool, UINT64_MAX, 4096);
	ck_assert_int_eq(io->ops->submit(io, &req), -EINVAL);
	req = io_request((enum kvr_io_op)7, set.pool, 0, 4096);
	ck_assert_int_eq(io->ops->submit(io, &req), -EINVAL);
	ck_assert_uint_eq(io->inflight, 0);
	ck_assert_int_eq(io_one(io, KVR_IO_WRITE, set.pool, BYTES - 8192, 8192), 8192);
	io_set_down(&set);
}
END_TEST

START_TEST(test_io_opened_here_is_driven_by_another_thread)
{
	struct io_set set;
	pthread_t thread;

	io_set_up(&set, kind, _i, BYTES, IO_DEPTH);
	ck_assert_int_eq(pthread_create(&thread, NULL, drive, &set), 0);
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	io_set_down(&set); /* and closed by the first again */
}
END_TEST

START_TEST(test_io_close_drains_what_was_taken)
{
	struct kvr_io_req reqs[IO_DEPTH];
	struct io_set set;
	unsigned i;

	io_set_up(&set, kind, _i, BYTES, IO_DEPTH);
	drive(&set);
	memset(set.pool, 0, IO_DEPTH * IO_BLOCK);
	for (i = 0; i < IO_DEPTH; i++) { /* half of them flushed */
		reqs[i] = io_request(KVR_IO_READ, set.pool + i * IO_BLOCK, i * IO_BLOCK, IO_BLOCK);
		ck_assert_int_eq(set.io->ops->submit(set.io, &reqs[i]), 0);
		if (i == IO_DEPTH / 2)
			ck_assert_int_eq(set.io->ops->flush(set.io), 0);
	}
	ck_assert_int_eq(set.io->ops->close(set.io, test_deadline_ms(WAIT_MS)), 0);
	set.io = NULL;
	for (i = 0; i < IO_DEPTH; i++)
		ck_assert(is_filled(set.pool + i * IO_BLOCK, IO_BLOCK, 50 + i));
	ck_assert_int_eq(io_try_lock(set.path, 0), 0);
	io_set_down(&set);
}
END_TEST

START_TEST(test_io_forked_child_neither_keeps_nor_drops_the_lock)
{
	struct io_set set;
	pid_t quits, stays;

	io_set_up(&set, kind, _i, BYTES, IO_DEPTH);
	ck_assert_int_eq(io_one(set.io, KVR_IO_READ, set.pool, 0, IO_BLOCK), (int)IO_BLOCK);
	quits = fork();
	if (!quits)
		_exit(set.io->ops->close(set.io, test_deadline_ms(WAIT_MS)));
	ck_assert_int_eq(test_reap(quits, WAIT_MS), 0);
	ck_assert_int_eq(io_try_lock(set.path, 0), -EBUSY);
	drive(&set);
	stays = fork(); /* holds copies of every descriptor */
	if (!stays)
		for (;;)
			pause();
	ck_assert_int_eq(set.io->ops->close(set.io, test_deadline_ms(WAIT_MS)), 0);
	set.io = NULL;
	ck_assert_int_eq(io_try_lock(set.path, 0), 0);
	kill(stays, SIGKILL);
	test_reap(stays, WAIT_MS);
	io_set_down(&set);
}
END_TEST

#define LATE_BYTES (128u << 20)
#define LATE_LEN (1u << 20)

/* In a process of its own: fills the shared pool from the file, and dies in the middle. */
static void die_reading(int variant, const char *path, uint8_t *pool, int ready)
{
	static struct kvr_io_req reqs[LATE_BYTES / LATE_LEN];
	const unsigned n = LATE_BYTES / LATE_LEN;
	struct kvr_file file;
	struct kvr_io *io;
	unsigned i;

	if (kvr_file_open(path, 0, &file) || kvr_file_lock(&file, path, 0) ||
	    kind->open(variant, &file, n, pool, LATE_BYTES, &io))
		_exit(1);
	for (i = 0; i < n; i++) {
		reqs[i] = io_request(KVR_IO_READ, pool + i * LATE_LEN, i * LATE_LEN, LATE_LEN);
		if (io->ops->submit(io, &reqs[i]))
			_exit(2);
	}
	if (io->ops->flush(io) || write(ready, "x", 1) != 1)
		_exit(3);
	kill(getpid(), SIGKILL);
}

static uint64_t sum(const uint8_t *pool)
{
	const uint64_t *w = (const uint64_t *)(const void *)pool;
	uint64_t s = 0;
	size_t i;

	for (i = 0; i < LATE_BYTES / 8; i++)
		s = (s ^ w[i]) * 0x100000001b3u;
	return s;
}

START_TEST(test_io_lock_comes_free_only_when_a_dead_owner_is_quiet)
{
	struct io_set set;
	uint64_t at_lock;
	struct kvr_file file;
	int ready[2];
	pid_t owner;
	unsigned i;
	char c;

	io_set_up(&set, kind, _i, LATE_BYTES, IO_DEPTH);
	io_fill(set.pool, LATE_BYTES, 11);
	for (i = 0; i < LATE_BYTES; i += 16 * LATE_LEN)
		ck_assert_int_eq(io_one(set.io, KVR_IO_WRITE, set.pool + i, i, 16 * LATE_LEN),
				 (int)(16 * LATE_LEN));
	ck_assert_int_eq(set.io->ops->close(set.io, test_deadline_ms(WAIT_MS)), 0);
	set.io = NULL;
	memset(set.pool, 0, LATE_BYTES);
	ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
	owner = fork();
	if (!owner)
		die_reading(_i, set.path, set.pool, ready[1]);
	ck_assert_int_eq(kvr_file_open(set.path, 0, &file), 0);
	close(ready[1]);
	ck_assert_int_eq(read(ready[0], &c, 1), 1);
	close(ready[0]);
	ck_assert_msg(!kvr_file_lock(&file, set.path, test_deadline_ms(WAIT_MS)), "%s",
		      kvr_explain());
	at_lock = sum(set.pool);
	test_sleep_ms(300);
	ck_assert_msg(sum(set.pool) == at_lock, "bytes landed after the lock came free");
	ck_assert_int_eq(WTERMSIG(test_reap(owner, WAIT_MS)), SIGKILL);
	kvr_file_close(&file);
	io_set_down(&set);
}
END_TEST

void io_suite_add(Suite *suite, const struct io_kind *k)
{
	TCase *tc = tcase_create(k->name);
	int n = k->variants;

	kind = k;
	tcase_add_loop_test(tc, test_io_reads_what_was_written_at_depth, 0, n);
	tcase_add_loop_test(tc, test_io_moves_memory_outside_the_pool, 0, n);
	tcase_add_loop_test(tc, test_io_refuses_more_than_depth, 0, n);
	tcase_add_loop_test(tc, test_io_descriptor_wakes_a_sleeper_and_falls_silent, 0, n);
	tcase_add_loop_test(tc, test_io_descriptor_stays_readable_until_all_is_reaped, 0, n);
	tcase_add_loop_test(tc, test_io_never_misses_a_wakeup, 0, n);
	tcase_add_loop_test(tc, test_io_reports_unaligned_as_a_result, 0, n);
	tcase_add_loop_test(tc, test_io_ends_at_the_end, 0, n);
	tcase_add_loop_test(tc, test_io_opened_here_is_driven_by_another_thread, 0, n);
	tcase_add_loop_test(tc, test_io_close_drains_what_was_taken, 0, n);
	tcase_add_loop_test(tc, test_io_forked_child_neither_keeps_nor_drops_the_lock, 0, n);
	tcase_add_loop_test(tc, test_io_lock_comes_free_only_when_a_dead_owner_is_quiet, 0, 1);
	suite_add_tcase(suite, tc);
}
