/* SPDX-License-Identifier: Apache-2.0 */
/* pread/pwrite threads behind the I/O table. A hanging device is a pread() of this file's own. */
#include "pread.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/syscall.h>

#include "harness.h"
#include "io_suite.h"
#include "kvring/err.h"

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

/* The library's calls end here: each waits until the gate is open. */
ssize_t pread(int fd, void *buf, size_t len, off_t off)
{
	pthread_mutex_lock(&gate);
	pthread_mutex_unlock(&gate);
	return syscall(SYS_pread64, fd, buf, len, off);
}

static int open_pread(int variant, const struct kvr_file *file, uint32_t depth, void *pool,
		      uint64_t pool_bytes, struct kvr_io **ret_io)
{
	(void)pool;
	(void)pool_bytes;
	return kvr_pread_open(file->fd, file->bytes, file->align, depth, variant ? 4 : 1, ret_io);
}

static const struct io_kind kind = { "pread", 2, open_pread };

START_TEST(test_pread_says_what_it_costs)
{
	struct io_set set;

	io_set_up(&set, &kind, 1, 1 << 20, IO_DEPTH);
	ck_assert_str_eq(set.io->ops->name, "pread");
	ck_assert_ptr_nonnull(strstr(set.io->degraded, "4 threads"));
	io_set_down(&set);
}
END_TEST

START_TEST(test_pread_refuses_impossible_numbers)
{
	struct kvr_io *io = NULL;

	ck_assert_int_eq(kvr_pread_open(-1, 4096, 512, 1, 1, &io), -EINVAL);
	ck_assert_int_eq(kvr_pread_open(0, 4096, 513, 1, 1, &io), -EINVAL);
	ck_assert_int_eq(kvr_pread_open(0, 4096, 512, 0, 1, &io), -EINVAL);
	ck_assert_int_eq(kvr_pread_open(0, 4096, 512, 1, 0, &io), -EINVAL);
	ck_assert_int_eq(kvr_pread_open(0, 4096, 512, 1, 100000, &io), -EINVAL);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "100000 threads"));
	ck_assert_ptr_null(io);
}
END_TEST

START_TEST(test_pread_hanging_device_leaks_and_keeps_the_lock)
{
	struct kvr_io_req reqs[4];
	struct io_set set;
	unsigned i;

	io_set_up(&set, &kind, 0, 1 << 20, IO_DEPTH);
	io_fill(set.pool, 4 * IO_BLOCK, 1);
	pthread_mutex_lock(&gate);
	for (i = 0; i < 4; i++) {
		reqs[i] = io_request(KVR_IO_READ, set.pool + i * IO_BLOCK, 0, IO_BLOCK);
		ck_assert_int_eq(set.io->ops->submit(set.io, &reqs[i]), 0);
	}
	ck_assert_int_eq(set.io->ops->flush(set.io), 0);
	test_sleep_ms(20);
	ck_assert_int_eq(set.io->ops->close(set.io, test_deadline_ms(50)), 4);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "4 requests"));
	set.io = NULL;
	ck_assert_int_eq(io_try_lock(set.path, 20), -EBUSY);
	pthread_mutex_unlock(&gate);
	/* The device came back: its last request ends, the others are not begun, the lock is free.
	 */
	ck_assert_int_eq(io_try_lock(set.path, 5000), 0);
	ck_assert_int_eq(reqs[1].res, -ENODATA);
	io_set_down(&set);
}
END_TEST

/* Mask of blocked signals of a thread of this process; 0 when it is not one of the library's. */
static uint64_t blocked_in(const char *tid)
{
	char path[300], line[256];
	unsigned long long mask = 0;
	int ours = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%s/status", tid);
	f = fopen(path, "re");
	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof(line), f)) {
		ours |= !strcmp(line, "Name:\tkvr-pread\n");
		if (sscanf(line, "SigBlk: %llx", &mask) == 1)
			break;
	}
	fclose(f);
	return ours ? mask : 0;
}

START_TEST(test_pread_threads_block_all_signals)
{
	struct io_set set;
	struct dirent *e;
	uint64_t mask;
	int found = 0;
	DIR *dir;

	io_set_up(&set, &kind, 1, 1 << 20, IO_DEPTH);
	ck_assert_int_eq(io_one(set.io, KVR_IO_READ, set.pool, 0, 4096), 4096);
	dir = opendir("/proc/self/task");
	ck_assert_ptr_nonnull(dir);
	while ((e = readdir(dir))) {
		mask = e->d_name[0] == '.' ? 0 : blocked_in(e->d_name);
		if (!mask)
			continue;
		found++;
		ck_assert(mask & 1u << (SIGTERM - 1));
		ck_assert(mask & 1u << (SIGUSR1 - 1));
		ck_assert(mask & 1u << (SIGCHLD - 1));
	}
	closedir(dir);
	ck_assert_int_eq(found, 4);
	io_set_down(&set);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("pread");
	TCase *tc = tcase_create("own");

	io_suite_add(s, &kind);
	tcase_add_test(tc, test_pread_says_what_it_costs);
	tcase_add_test(tc, test_pread_refuses_impossible_numbers);
	tcase_add_test(tc, test_pread_hanging_device_leaks_and_keeps_the_lock);
	tcase_add_test(tc, test_pread_threads_block_all_signals);
	suite_add_tcase(s, tc);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
