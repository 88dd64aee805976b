/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files, their lock and their space. posix_fallocate() is this program's own, so that it can be
 * interrupted or fail half way; file systems that are full or know little are mounted where the
 * test may do so (in a mount namespace of a child: nothing is left).
 */
#include "file.h"

#include <dlfcn.h>
#include <linux/loop.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "harness.h"
#include "kvring/err.h"

#define MIB (1u << 20)
#define NOBODY 65534

static int fallocate_fails;	 /* error that it ends with, when half is done */
static unsigned fallocate_again; /* interruptions first */

int posix_fallocate(int fd, off_t off, off_t len)
{
	int (*real)(int, off_t, off_t);

	if (fallocate_again) {
		fallocate_again--;
		return EINTR;
	}
	*(void **)&real = dlsym(RTLD_NEXT, "posix_fallocate");
	if (fallocate_fails)
		return real(fd, off, len / 2) ? EIO : fallocate_fails;
	return real(fd, off, len);
}

static char dir[256], path[300];

static void set_up(void)
{
	test_tmpdir(dir, sizeof(dir));
	snprintf(path, sizeof(path), "%s/device", dir);
}

static void tear_down(void)
{
	test_rmdir(dir);
}

static void make(struct kvr_file *file, uint64_t bytes)
{
	ck_assert_msg(!kvr_file_open(path, 1, file), "%s", kvr_explain());
	if (bytes)
		ck_assert_msg(!kvr_file_reserve(file, path, bytes), "%s", kvr_explain());
}

/* Opening must fail with `err` and a sentence that has `words` in it, and touch nothing. */
static void must_refuse(const char *name, int create, int err, const char *words)
{
	struct kvr_file file = { .fd = -7 };

	ck_assert_int_eq(kvr_file_open(name, create, &file), err);
	ck_assert_msg(strstr(kvr_explain(), words) != NULL, "'%s' not in: %s", words,
		      kvr_explain());
	ck_assert_int_eq(file.fd, -7);
}

static struct stat stat_of(const char *name)
{
	struct stat st;

	ck_assert_int_eq(lstat(name, &st), 0);
	return st;
}

START_TEST(test_open_makes_a_private_file_once)
{
	struct kvr_file file, again;

	umask(0777); /* even then it must be usable */
	make(&file, 0);
	umask(022);
	ck_assert_int_eq(file.created, 1);
	ck_assert_uint_eq(file.bytes, 0);
	ck_assert_uint_eq(stat_of(path).st_mode & 07777, 0600);
	ck_assert(fcntl(file.fd, F_GETFD) & FD_CLOEXEC);
	ck_assert_uint_ge(file.align, 512);
	ck_assert_uint_eq(file.align & (file.align - 1), 0);
	ck_assert_int_eq(!!(fcntl(file.fd, F_GETFL) & O_DIRECT), file.direct);
	ck_assert_int_eq(file.direct, test_can_direct(dir));
	ck_assert_int_eq(kvr_file_reserve(&file, path, MIB), 0);
	ck_assert_int_eq(kvr_file_open(path, 1, &again), 0);
	ck_assert_int_eq(again.created, 0);
	ck_assert_uint_eq(again.bytes, MIB);
	ck_assert_uint_eq(again.align, file.align);
	kvr_file_close(&file);
	kvr_file_close(&again);
}
END_TEST

START_TEST(test_open_says_what_is_missing)
{
	char deep[400];

	must_refuse(path, 0, -ENOENT, "device does not exist");
	snprintf(deep, sizeof(deep), "%s/no/device", dir);
	must_refuse(deep, 0, -ENOENT, "/no does not exist");
	must_refuse(deep, 1, -ENOENT, "/no does not exist");
	must_refuse("", 1, -EINVAL, "path is empty");
	must_refuse(NULL, 1, -EINVAL, "path is empty");
	ck_assert_int_eq(close(creat(path, 0600)), 0);
	snprintf(deep, sizeof(deep), "%s/device/x", dir);
	must_refuse(deep, 0, -ENOTDIR, "not a directory");
}
END_TEST

START_TEST(test_open_refuses_what_is_no_file)
{
	char other[400];

	must_refuse(dir, 0, -EINVAL, "is a directory");
	must_refuse(dir, 1, -EINVAL, "is a directory");
	snprintf(other, sizeof(other), "%s/fifo", dir);
	ck_assert_int_eq(mkfifo(other, 0600), 0);
	must_refuse(other, 0, -EINVAL, "neither a regular file");
	must_refuse("/dev/null", 0, -EINVAL, "neither a regular file");
	snprintf(other, sizeof(other), "%s/link", dir);
	ck_assert_int_eq(close(creat(path, 0600)), 0);
	ck_assert_int_eq(symlink("device", other), 0);
	must_refuse(other, 0, -EINVAL, "symbolic link");
	must_refuse(other, 1, -EINVAL, "symbolic link");
}
END_TEST

START_TEST(test_open_refuses_a_file_of_another_user)
{
	if (geteuid()) {
		test_skip("giving a file away needs root");
		return;
	}
	ck_assert_int_eq(close(creat(path, 0666)), 0);
	ck_assert_int_eq(chown(path, NOBODY, NOBODY), 0);
	must_refuse(path, 1, -EPERM, "belongs to user 65534");
}
END_TEST

/* In a child that is no longer root: -EACCES with `words`? */
static int refused_without_rights(const char *name, int create, const char *words)
{
	struct kvr_file file;

	if (!geteuid() && (setgid(NOBODY) || setuid(NOBODY)))
		return 1;
	if (kvr_file_open(name, create, &file) != -EACCES)
		return 2;
	return strstr(kvr_explain(), words) ? 0 : 3;
}

START_TEST(test_open_says_which_permission_is_missing)
{
	char hidden[300];
	struct kvr_file file;
	pid_t pid;
	int i;

	pid = fork();
	if (!pid)
		_exit(!geteuid() && (setgid(NOBODY) || setuid(NOBODY)) ? 2
								       : access(dir, F_OK) != 0);
	if (test_reap(pid, 5000)) {
		test_skip("the test's directory lies below one that another user may not enter");
		return;
	}
	make(&file, 0);
	kvr_file_close(&file);
	ck_assert_int_eq(chmod(path, 0400), 0);
	ck_assert_int_eq(chown(path, geteuid() ? geteuid() : NOBODY, (gid_t)-1), 0);
	snprintf(hidden, sizeof(hidden), "%s/new", dir);
	for (i = 0; i < 3; i++) {
		ck_assert_int_eq(chmod(dir, i == 2 ? 0444 : 0555), 0);
		pid = fork();
		if (!pid && i == 0)
			_exit(refused_without_rights(path, 0, "chmod 600"));
		if (!pid && i == 1)
			_exit(refused_without_rights(hidden, 1,
						     "may not write into the directory"));
		if (!pid)
			_exit(refused_without_rights(path, 0, "may not look into"));
		ck_assert_msg(WEXITSTATUS(test_reap(pid, 5000)) == 0, "permission %d", i);
	}
	ck_assert_int_eq(chmod(dir, 0700), 0);
}
END_TEST

START_TEST(test_lock_is_held_by_one_open_file)
{
	struct kvr_file a, b;

	make(&a, 0);
	ck_assert_int_eq(kvr_file_open(path, 0, &b), 0);
	ck_assert_int_eq(kvr_file_lock(&a, path, 0), 0);
	ck_assert_int_eq(kvr_file_lock(&a, path, 0), 0); /* its own */
	ck_assert_int_eq(kvr_file_lock(&b, path, 0), -EBUSY);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), path));
	ck_assert_int_eq(kvr_file_lock(&b, path, test_deadline_ms(20)), -EBUSY);
	kvr_file_close(&a);
	ck_assert_int_eq(kvr_file_lock(&b, path, 0), 0);
	kvr_file_close(&b);
}
END_TEST

/* A child that holds the lock; it says so by a byte, and goes when it gets one. */
static pid_t owner(int how, int *ret_talk)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	struct kvr_file file;
	int talk[2];
	pid_t pid;
	char c = 0;

	ck_assert_int_eq(pipe2(talk, O_CLOEXEC), 0);
	pid = fork();
	if (!pid) {
		if (kvr_file_open(path, 0, &file) ||
		    (how == F_OFD_SETLK ? kvr_file_lock(&file, path, 0)
					: fcntl(file.fd, F_SETLK, &lock)))
			_exit(1);
		if (write(talk[1], &c, 1) != 1)
			_exit(2);
		for (;;)
			pause();
	}
	ck_assert_int_eq(read(talk[0], &c, 1), 1);
	close(talk[1]);
	*ret_talk = talk[0];
	return pid;
}

START_TEST(test_lock_of_a_living_owner_is_respected_and_that_of_a_dead_one_taken)
{
	struct kvr_file file;
	int talk;
	pid_t pid;

	make(&file, 0);
	pid = owner(F_OFD_SETLK, &talk);
	ck_assert_int_eq(kvr_file_lock(&file, path, test_deadline_ms(30)), -EBUSY);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "is in use"));
	kill(pid, SIGKILL);
	ck_assert_int_eq(kvr_file_lock(&file, path, test_deadline_ms(5000)), 0);
	test_reap(pid, 5000);
	close(talk);
	kvr_file_close(&file);
}
END_TEST

START_TEST(test_lock_names_the_holder_where_the_kernel_does)
{
	struct kvr_file file;
	char words[64];
	int talk;
	pid_t pid;

	make(&file, 0);
	pid = owner(F_SETLK, &talk);
	ck_assert_int_eq(kvr_file_lock(&file, path, 0), -EBUSY);
	snprintf(words, sizeof(words), "locked by process %d", (int)pid);
	ck_assert_msg(strstr(kvr_explain(), words) != NULL, "%s", kvr_explain());
	kill(pid, SIGKILL);
	test_reap(pid, 5000);
	close(talk);
	kvr_file_close(&file);
}
END_TEST

static void check_reserved(const struct kvr_file *file, uint64_t bytes)
{
	struct stat st = stat_of(path);

	ck_assert_uint_eq(file->bytes, bytes);
	ck_assert_uint_eq((uint64_t)st.st_size, bytes);
	ck_assert_uint_ge((uint64_t)st.st_blocks * 512, bytes);
}

START_TEST(test_reserve_is_exact_and_never_sparse)
{
	struct kvr_file file;
	char text[5] = "";
	int fd;

	make(&file, 5 * MIB + 4096);
	check_reserved(&file, 5 * MIB + 4096);
	fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_eq(pwrite(fd, "kept", 4, MIB), 4);
	ck_assert_int_eq(kvr_file_reserve(&file, path, 2 * MIB), 0);
	check_reserved(&file, 2 * MIB);
	ck_assert_int_eq(kvr_file_reserve(&file, path, 9 * MIB), 0);
	check_reserved(&file, 9 * MIB);
	ck_assert_int_eq(pread(fd, text, 4, MIB), 4);
	ck_assert_str_eq(text, "kept");
	ck_assert_int_eq(ftruncate(fd, 0), 0);
	ck_assert_int_eq(ftruncate(fd, 9 * MIB), 0); /* one hole */
	fallocate_again = 3;
	ck_assert_int_eq(kvr_file_reserve(&file, path, 9 * MIB), 0);
	check_reserved(&file, 9 * MIB);
	close(fd);
	kvr_file_close(&file);
}
END_TEST

START_TEST(test_reserve_without_space_leaves_the_file_as_it_was)
{
	struct kvr_file file;

	make(&file, MIB);
	ck_assert_int_eq(kvr_file_reserve(&file, path, 1ull << 50), -ENOSPC);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "needs 11258999"));
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "has its old size"));
	check_reserved(&file, MIB);
	fallocate_fails = ENOSPC; /* somebody else was faster */
	ck_assert_int_eq(kvr_file_reserve(&file, path, 8 * MIB), -ENOSPC);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "needs 7340032 more bytes"));
	check_reserved(&file, MIB);
	fallocate_fails = EDQUOT;
	ck_assert_int_eq(kvr_file_reserve(&file, path, 8 * MIB), -ENOSPC);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "quota"));
	fallocate_fails = EIO;
	ck_assert_int_eq(kvr_file_reserve(&file, path, 8 * MIB), -EIO);
	check_reserved(&file, MIB);
	ck_assert_int_eq(kvr_file_reserve(&file, path, 0), -EINVAL);
	ck_assert_int_eq(kvr_file_reserve(&file, path, UINT64_MAX), -EINVAL);
	kvr_file_close(&file);
}
END_TEST

START_TEST(test_reserve_survives_the_limit_of_file_size)
{
	struct rlimit limit = { 4 * MIB, 4 * MIB };
	struct kvr_file file;
	pid_t pid;

	make(&file, MIB);
	kvr_file_close(&file); /* a child opens its own */
	pid = fork();
	if (!pid) { /* the kernel would kill it with SIGXFSZ */
		if (kvr_file_open(path, 0, &file) || setrlimit(RLIMIT_FSIZE, &limit))
			_exit(1);
		_exit(kvr_file_reserve(&file, path, 8 * MIB) == -EFBIG ? 0 : 2);
	}
	ck_assert_int_eq(test_reap(pid, 5000), 0);
}
END_TEST

/* Mounts a file system over `dir` in a child; runs fn there. 77: not possible here. */
static int on_mount(const char *type, const char *options, int (*fn)(void))
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
		    mount("none", dir, type, 0, options))
			_exit(77);
		_exit(fn());
	}
	status = test_reap(pid, 10000);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int fill_small(void)
{
	struct kvr_file file;

	if (kvr_file_open(path, 1, &file))
		return 1;
	if (kvr_file_reserve(&file, path, MIB))
		return 2;
	if (kvr_file_reserve(&file, path, 8 * MIB) != -ENOSPC)
		return 3;
	if (file.bytes != MIB || stat_of(path).st_size != MIB)
		return 4;
	return kvr_file_reserve(&file, path, 2 * MIB) ? 5 : 0;
}

START_TEST(test_reserve_on_a_full_file_system)
{
	int rc = on_mount("tmpfs", "size=4m", fill_small);

	if (rc == 77)
		test_skip("no file system can be mounted (not root)");
	else
		ck_assert_int_eq(rc, 0);
}
END_TEST

static int use_simple(void)
{
	struct kvr_file file;

	if (kvr_file_open(path, 1, &file))
		return 1;
	if (file.direct || file.align != 4096)
		return 2;
	if (kvr_file_reserve(&file, path, MIB) || file.bytes != MIB)
		return 3;
	return stat_of(path).st_size == MIB ? 0 : 4;
}

START_TEST(test_file_system_without_direct_io_and_fallocate_is_used)
{
	int rc = on_mount("ramfs", NULL, use_simple);

	if (rc == 77)
		test_skip("no file system can be mounted (not root)");
	else
		ck_assert_int_eq(rc, 0);
}
END_TEST

/* A loop device on `path`; -1 when there is none to have. */
static int loop_device(char *name, size_t size)
{
	int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	int back = open(path, O_RDWR | O_CLOEXEC);
	int n = control < 0 ? -1 : ioctl(control, LOOP_CTL_GET_FREE);
	int fd = -1;

	if (n >= 0) {
		snprintf(name, size, "/dev/loop%d", n);
		fd = open(name, O_RDWR | O_CLOEXEC);
	}
	if (fd >= 0 && ioctl(fd, LOOP_SET_FD, back)) {
		close(fd);
		fd = -1;
	}
	close(control);
	close(back);
	return fd;
}

START_TEST(test_block_device_is_exclusive_and_keeps_its_size)
{
	struct kvr_file file;
	char name[32];
	int loop;

	make(&file, 4 * MIB);
	kvr_file_close(&file);
	loop = loop_device(name, sizeof(name));
	if (loop < 0) {
		test_skip("no loop device to be had");
		return;
	}
	ck_assert_msg(!kvr_file_open(name, 0, &file), "%s", kvr_explain());
	ck_assert_int_eq(file.created, 0);
	ck_assert_uint_eq(file.bytes, 4 * MIB);
	ck_assert_uint_ge(file.align, 512);
	must_refuse(name, 0, -EBUSY, "is in use");
	ck_assert_int_eq(kvr_file_lock(&file, name, 0), 0);
	ck_assert_int_eq(kvr_file_reserve(&file, name, 2 * MIB), 0);
	ck_assert_uint_eq(file.bytes, 4 * MIB);
	ck_assert_int_eq(kvr_file_reserve(&file, name, 5 * MIB), -ENOSPC);
	kvr_file_close(&file);
	ioctl(loop, LOOP_CLR_FD, 0);
	close(loop);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("file");
	TCase *tc = tcase_create("file");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, test_open_makes_a_private_file_once);
	tcase_add_test(tc, test_open_says_what_is_missing);
	tcase_add_test(tc, test_open_refuses_what_is_no_file);
	tcase_add_test(tc, test_open_refuses_a_file_of_another_user);
	tcase_add_test(tc, test_open_says_which_permission_is_missing);
	tcase_add_test(tc, test_lock_is_held_by_one_open_file);
	tcase_add_test(tc, test_lock_of_a_living_owner_is_respected_and_that_of_a_dead_one_taken);
	tcase_add_test(tc, test_lock_names_the_holder_where_the_kernel_does);
	tcase_add_test(tc, test_reserve_is_exact_and_never_sparse);
	tcase_add_test(tc, test_reserve_without_space_leaves_the_file_as_it_was);
	tcase_add_test(tc, test_reserve_survives_the_limit_of_file_size);
	tcase_add_test(tc, test_reserve_on_a_full_file_system);
	tcase_add_test(tc, test_file_system_without_direct_io_and_fallocate_is_used);
	tcase_add_test(tc, test_block_device_is_exclusive_and_keeps_its_size);
	suite_add_tcase(s, tc);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
