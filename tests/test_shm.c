/* SPDX-License-Identifier: Apache-2.0 */
/* Files in shared memory: names, creation, the checks at opening, the name lock, identity. */
#include "harness.h"

#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "err.h"
#include "shm.h"

static char dir[128], name[48], path[KVR_SHM_PATH];

static void setup(void)
{
	test_tmpdir(dir, sizeof dir);
	test_name(name, sizeof name, "shm");
	ck_assert_int_eq(kvr_shm_path(path, sizeof path, dir, name, KVR_SHM_SEGMENT, 0), 0);
}

static void teardown(void)
{
	test_rmdir(dir);
}

static int make(uint64_t bytes)
{
	int fd = kvr_shm_create(dir, bytes);

	ck_assert_msg(fd >= 0, "%s", kvr_explain());
	ck_assert_msg(!kvr_shm_publish(fd, path), "%s", kvr_explain());
	return fd;
}

START_TEST(test_names_cannot_escape)
{
	const char *bad[] = { "",    "a/b",
			      "..",  "a.b",
			      "a b", "\xc3\xa4",
			      "a\n", "0123456789012345678901234567890123456789012345678" };
	char p[KVR_SHM_PATH] = "untouched";

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		ck_assert_int_eq(kvr_shm_path(p, sizeof p, NULL, bad[i], KVR_SHM_POOL, 0), -EINVAL);
	ck_assert_int_eq(kvr_shm_path(p, sizeof p, NULL, NULL, KVR_SHM_POOL, 0), -EINVAL);
	ck_assert_int_eq(kvr_shm_path(p, 8, NULL, "x", KVR_SHM_POOL, 0), -EINVAL);
	ck_assert_str_eq(p, "untouched");
}
END_TEST

START_TEST(test_names_parse_back)
{
	static const enum kvr_shm_kind kinds[] = { KVR_SHM_SEGMENT, KVR_SHM_POOL, KVR_SHM_LOCK,
						   KVR_SHM_RETIRED };
	char p[KVR_SHM_PATH], got[48];
	enum kvr_shm_kind kind;
	uint64_t epoch;

	for (size_t i = 0; i < 4; i++) {
		ck_assert_int_eq(kvr_shm_path(p, sizeof p, "/d", "a-B_9", kinds[i], UINT64_MAX), 0);
		ck_assert_int_eq(kvr_shm_parse(p + 3, got, sizeof got, &kind, &epoch), 0);
		ck_assert_str_eq(got, "a-B_9");
		ck_assert_int_eq(kind, kinds[i]);
		ck_assert_uint_eq(epoch, kind == KVR_SHM_RETIRED ? UINT64_MAX : 0);
	}
	ck_assert_int_eq(kvr_shm_parse("kvr-99999-x", got, sizeof got, &kind, &epoch), -EINVAL);
	snprintf(p, sizeof p, "kvr-%u-x.18446744073709551616", (unsigned)geteuid());
	ck_assert_int_eq(kvr_shm_parse(p, got, sizeof got, &kind, &epoch), -EINVAL);
	snprintf(p, sizeof p, "kvr-%u-x.tmp", (unsigned)geteuid());
	ck_assert_int_eq(kvr_shm_parse(p, got, sizeof got, &kind, &epoch), -EINVAL);
	snprintf(p, sizeof p, "kvr-%u-", (unsigned)geteuid());
	ck_assert_int_eq(kvr_shm_parse(p, got, sizeof got, &kind, &epoch), -EINVAL);
}
END_TEST

START_TEST(test_create_reserves_and_publish_is_exclusive)
{
	mode_t before = umask(0777);
	int fd = make(100000), fd2;
	uint64_t bytes = 0;
	struct stat st;

	umask(before);
	ck_assert_int_eq(fstat(fd, &st), 0);
	ck_assert_int_eq(st.st_size, 100000);
	ck_assert_int_ge(st.st_blocks * 512, 100000);
	ck_assert_uint_eq(st.st_mode & 07777, 0600);
	fd2 = kvr_shm_create(dir, 4096);
	ck_assert_int_eq(kvr_shm_publish(fd2, path), -EEXIST);
	ck_assert_int_eq(kvr_shm_unlink(fd2, path), -ESTALE);
	close(fd2);
	fd2 = kvr_shm_open(path, 1, &bytes);
	ck_assert_msg(fd2 >= 0, "%s", kvr_explain());
	ck_assert_uint_eq(bytes, 100000);
	ck_assert(!kvr_shm_unlinked(fd));
	ck_assert_int_eq(kvr_shm_unlink(fd2, path), 0);
	ck_assert(kvr_shm_unlinked(fd));
	ck_assert_int_eq(kvr_shm_unlink(fd2, path), -ENOENT);
	close(fd2);
	close(fd);
}
END_TEST

/* In a private mount namespace: an empty tmpfs of `size` over `dir`. 0, or why not. */
static int mount_tmpfs(const char *size)
{
	char opts[64];

	snprintf(opts, sizeof opts, "size=%s,mode=700", size);
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return errno;
	return mount("kvr-test", dir, "tmpfs", 0, opts) ? errno : 0;
}

START_TEST(test_full_tmpfs_is_an_error_with_numbers)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		if (mount_tmpfs("256k"))
			_exit(77);
		if (kvr_shm_create(dir, 1 << 20) != -ENOSPC || !strstr(kvr_explain(), "1048576") ||
		    !strstr(kvr_explain(), "262144") || !strstr(kvr_explain(), "--shm-size"))
			_exit(1);
		/* What was reserved before the failure is free again. */
		_exit(kvr_shm_create(dir, 200 << 10) < 0);
	}
	status = test_reap(pid, 10000);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		test_skip("no private mount namespace here (needs root)");
	else
		ck_assert_int_eq(status, 0);
}
END_TEST

START_TEST(test_create_in_no_directory_says_so)
{
	ck_assert_int_eq(kvr_shm_create("/nonexistent-kvr", 4096), -ENOENT);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "/nonexistent-kvr"));
	ck_assert_int_eq(kvr_shm_create(dir, 0), -EINVAL);
}
END_TEST

static int open_code(void)
{
	uint64_t bytes = 77;
	int fd = kvr_shm_open(path, 0, &bytes);

	if (fd >= 0)
		close(fd);
	else
		ck_assert_uint_eq(bytes, 77);
	return fd < 0 ? fd : 0;
}

START_TEST(test_open_refuses_what_is_not_ours)
{
	char target[KVR_SHM_PATH + 8];
	int fd;

	ck_assert_int_eq(open_code(), -ENOENT);
	snprintf(target, sizeof target, "%s.other", path);
	fd = open(target, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	close(fd);
	ck_assert_int_eq(symlink(target, path), 0);
	ck_assert_int_eq(open_code(), -EPROTO);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "symbolic link"));
	unlink(path);
	ck_assert_int_eq(mkfifo(path, 0600), 0);
	ck_assert_int_eq(open_code(), -EPROTO);
	unlink(path);
	ck_assert_int_eq(mkdir(path, 0700), 0);
	ck_assert_int_eq(open_code(), -EPROTO);
	rmdir(path);
	close(make(4096));
	ck_assert_int_eq(chmod(path, 0644), 0);
	ck_assert_int_eq(open_code(), -EPERM);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "0644"));
	chmod(path, 0600);
	ck_assert_int_eq(open_code(), 0);
	if (!geteuid()) {
		ck_assert_int_eq(chown(path, 12345, (gid_t)-1), 0);
		ck_assert_int_eq(open_code(), -EPERM);
		ck_assert_ptr_nonnull(strstr(kvr_explain(), "12345"));
	}
}
END_TEST

START_TEST(test_map_is_shared_and_takes_any_offset)
{
	int fd = make(3 * 4096);
	uint8_t *w = kvr_shm_map(fd, 4096 + 128, 4096, 1);
	const uint8_t *r = kvr_shm_map(fd, 0, 3 * 4096, 0);
	uint8_t b = 0;

	ck_assert_ptr_nonnull(w);
	ck_assert_ptr_nonnull(r);
	w[5] = 42;
	ck_assert_uint_eq(r[4096 + 128 + 5], 42);
	ck_assert_int_eq(kvr_shm_read(fd, &b, 1, 4096 + 128 + 5), 0);
	ck_assert_uint_eq(b, 42);
	ck_assert_int_eq(kvr_shm_read(fd, &b, 1, 3 * 4096), -EBADMSG);
	kvr_shm_unmap(w, 4096);
	kvr_shm_unmap(r, 3 * 4096);
	kvr_shm_unmap(NULL, 1);
	close(fd);
	ck_assert_ptr_null(kvr_shm_map(fd, 0, 4096, 0));
}
END_TEST

START_TEST(test_lock_excludes_and_leaves_nothing)
{
	char lock[KVR_SHM_PATH], pid_text[32];
	int fd, i, status;
	uint64_t t;
	pid_t pid;

	kvr_shm_path(lock, sizeof lock, dir, name, KVR_SHM_LOCK, 0);
	fd = kvr_shm_lock(lock, test_deadline_ms(1000));
	ck_assert_msg(fd >= 0, "%s", kvr_explain());
	t = test_now_ns();
	ck_assert_int_eq(kvr_shm_lock(lock, test_deadline_ms(50)), -ETIMEDOUT);
	ck_assert_uint_ge(test_now_ns() - t, 50000000);
	snprintf(pid_text, sizeof pid_text, "pid %d", (int)getpid());
	ck_assert_ptr_nonnull(strstr(kvr_explain(), pid_text));
	/* A child forked while it is held keeps the descriptor, not the lock. */
	pid = fork();
	if (!pid) {
		pause();
		_exit(0);
	}
	kvr_shm_unlock(fd, lock);
	ck_assert_int_eq(access(lock, F_OK), -1);
	for (i = 0; i < 3; i++) {
		fd = kvr_shm_lock(lock, 0);
		ck_assert_msg(fd >= 0, "%s", kvr_explain());
		kvr_shm_unlock(fd, lock);
	}
	kill(pid, SIGKILL);
	status = test_reap(pid, 5000);
	ck_assert(WIFSIGNALED(status));
}
END_TEST

/* The holder forks, as another of its threads may, and is killed: its child keeps nothing. */
START_TEST(test_lock_of_a_killed_holder_is_free_although_its_child_lives)
{
	char lock[KVR_SHM_PATH];
	int fd, up[2];
	pid_t pid, child = 0;

	kvr_shm_path(lock, sizeof lock, dir, name, KVR_SHM_LOCK, 0);
	ck_assert_int_eq(pipe(up), 0);
	pid = fork();
	if (!pid) {
		fd = kvr_shm_lock(lock, test_deadline_ms(1000));
		child = fork();
		if (!child)
			pause();
		if (fd < 0 || write(up[1], &child, sizeof child) != sizeof child)
			_exit(1);
		raise(SIGKILL);
	}
	ck_assert_int_eq(read(up[0], &child, sizeof child), sizeof child);
	test_reap(pid, 5000);
	ck_assert_int_eq(kill(child, 0), 0);
	fd = kvr_shm_lock(lock, test_deadline_ms(1000));
	ck_assert_msg(fd >= 0, "%s", kvr_explain());
	kvr_shm_unlock(fd, lock);
	kill(child, SIGKILL);
	close(up[0]);
	close(up[1]);
}
END_TEST

/* Many processes; the critical section makes, checks and removes a file exclusively. */
START_TEST(test_lock_is_exclusive_across_unlinks)
{
	char lock[KVR_SHM_PATH], inside[KVR_SHM_PATH + 8];
	pid_t pids[4];
	int i, k;

	kvr_shm_path(lock, sizeof lock, dir, name, KVR_SHM_LOCK, 0);
	snprintf(inside, sizeof inside, "%s.in", path);
	for (i = 0; i < 4; i++) {
		pids[i] = fork();
		if (pids[i])
			continue;
		for (k = 0; k < 100; k++) {
			int fd = kvr_shm_lock(lock, test_deadline_ms(15000)), in;

			if (fd < 0)
				_exit(1);
			in = open(inside, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
			if (in < 0)
				_exit(2);
			close(in);
			unlink(inside);
			kvr_shm_unlock(fd, lock);
		}
		_exit(0);
	}
	for (i = 0; i < 4; i++)
		ck_assert_int_eq(test_reap(pids[i], 30000), 0);
	ck_assert_int_eq(access(lock, F_OK), -1);
}
END_TEST

START_TEST(test_lock_of_somebody_else_is_refused)
{
	char lock[KVR_SHM_PATH];
	int fd;

	if (geteuid()) {
		test_skip("only root can make a file of another user");
		return;
	}
	kvr_shm_path(lock, sizeof lock, dir, name, KVR_SHM_LOCK, 0);
	fd = open(lock, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	ck_assert_int_eq(fchown(fd, 12345, (gid_t)-1), 0);
	close(fd);
	ck_assert_int_eq(kvr_shm_lock(lock, test_deadline_ms(100)), -EPERM);
}
END_TEST

static void on_alarm(int sig)
{
	(void)sig;
}

START_TEST(test_lock_wait_ends_with_eintr)
{
	struct sigaction sa = { .sa_handler = on_alarm };
	char lock[KVR_SHM_PATH];
	int fd;

	sigaction(SIGALRM, &sa, NULL);
	kvr_shm_path(lock, sizeof lock, dir, name, KVR_SHM_LOCK, 0);
	fd = kvr_shm_lock(lock, 0);
	ualarm(20000, 2000);
	ck_assert_int_eq(kvr_shm_lock(lock, test_deadline_ms(10000)), -EINTR);
	ualarm(0, 0);
	kvr_shm_unlock(fd, lock);
}
END_TEST

static void count_file(void *arg, const char *file)
{
	ck_assert_ptr_null(strchr(file, '/'));
	++*(int *)arg;
}

START_TEST(test_list_and_prune_keep_the_last_two)
{
	char p[KVR_SHM_PATH];
	int n = 0, fd;
	uint64_t e;

	/* 7 and 9 of an earlier run under that name, then 1, 2, 3 of this one. */
	static const uint64_t epochs[] = { 7, 9, 1, 2, 3 };

	for (size_t i = 0; i < 5; i++) {
		kvr_shm_path(p, sizeof p, dir, name, KVR_SHM_RETIRED, epochs[i]);
		fd = kvr_shm_create(dir, 4096);
		ck_assert_int_eq(kvr_shm_publish(fd, p), 0);
		close(fd);
		test_sleep_ms(12);
	}
	close(make(4096));
	snprintf(p, sizeof p, "%s/unrelated", dir);
	close(open(p, O_CREAT | O_CLOEXEC | O_RDWR, 0600));
	ck_assert_int_eq(kvr_shm_list(dir, count_file, &n), 6);
	ck_assert_int_eq(n, 6);
	kvr_shm_prune(dir, name, 3, 1);
	for (e = 1; e < 10; e++) {
		kvr_shm_path(p, sizeof p, dir, name, KVR_SHM_RETIRED, e);
		ck_assert_int_eq(access(p, F_OK), e == 2 || e == 3 ? 0 : -1);
	}
	ck_assert_int_eq(access(path, F_OK), 0);
	ck_assert_int_lt(kvr_shm_list("/nonexistent-kvr", count_file, &n), 0);
}
END_TEST

START_TEST(test_random_bytes_differ)
{
	uint8_t a[16], b[16];

	ck_assert_int_eq(kvr_shm_random(a, 16), 0);
	ck_assert_int_eq(kvr_shm_random(b, 16), 0);
	ck_assert_mem_ne(a, b, 16);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("shm");
	TCase *t = tcase_create("files");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, test_names_cannot_escape);
	tcase_add_test(t, test_names_parse_back);
	tcase_add_test(t, test_create_reserves_and_publish_is_exclusive);
	tcase_add_test(t, test_full_tmpfs_is_an_error_with_numbers);
	tcase_add_test(t, test_create_in_no_directory_says_so);
	tcase_add_test(t, test_open_refuses_what_is_not_ours);
	tcase_add_test(t, test_map_is_shared_and_takes_any_offset);
	tcase_add_test(t, test_lock_excludes_and_leaves_nothing);
	tcase_add_test(t, test_lock_of_a_killed_holder_is_free_although_its_child_lives);
	tcase_add_test(t, test_lock_is_exclusive_across_unlinks);
	tcase_add_test(t, test_lock_of_somebody_else_is_refused);
	tcase_add_test(t, test_lock_wait_ends_with_eintr);
	tcase_add_test(t, test_list_and_prune_keep_the_last_two);
	tcase_add_test(t, test_random_bytes_differ);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
