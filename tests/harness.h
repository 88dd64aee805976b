/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every test program shares: a main() for one Check suite, private directories on a real disk,
 * group names that no other run uses, deadlines, and waiting for child processes that may hang.
 * A test that cannot run here calls test_skip() and returns; tests/run.sh counts it.
 *
 * Everything here is for the process that runs the test. A forked child must leave with _exit(),
 * and says what went wrong by its exit status: Check's assertions work in the test process alone.
 */
#ifndef TESTS_HARNESS_H
#define TESTS_HARNESS_H

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* 1 under a sanitizer: gcc has macros of its own, clang a feature test. */
#if defined(__SANITIZE_ADDRESS__)
#define KVR_TEST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KVR_TEST_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define KVR_TEST_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KVR_TEST_TSAN 1
#endif
#endif
#ifndef KVR_TEST_ASAN
#define KVR_TEST_ASAN 0
#endif
#ifndef KVR_TEST_TSAN
#define KVR_TEST_TSAN 0
#endif

/* Runs the suite; returns main()'s status. Check itself honours CK_RUN_CASE, CK_FORK and others. */
static inline int kvr_test_main(Suite *(*make)(void))
{
	SRunner *runner;
	int failed;

	setvbuf(stdout, NULL, _IOLBF, 0); /* a forked test must not repeat its parent's buffer */
	runner = srunner_create(make());
	srunner_run_all(runner, CK_ENV); /* CK_VERBOSITY, else normal */
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

static inline uint64_t test_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A deadline for the library: absolute, CLOCK_MONOTONIC, in ns. */
static inline uint64_t test_deadline_ms(uint64_t ms)
{
	return test_now_ns() + ms * 1000000u;
}

static inline void test_sleep_ms(uint64_t ms)
{
	struct timespec t = { (time_t)(ms / 1000), (long)(ms % 1000) * 1000000 };

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

/* Say why and return from the test: Check has no notion of a skipped test. */
static inline void test_skip(const char *why)
{
	printf("skipped: %s\n", why);
	fflush(stdout);
}

/* For main() of a program whose threads others have, too: what it returns under TSan, where all is
 * many times as slow. */
static inline int test_no_threads_of_its_own(void)
{
	test_skip("its threads are those of other tests, too: not under the thread sanitizer");
	return 77;
}

/* KVR_TEST_SEED, or the clock; printed, so that a failure can be repeated. */
static inline uint64_t test_seed(void)
{
	const char *env = getenv("KVR_TEST_SEED");
	uint64_t seed = env && *env ? strtoull(env, NULL, 0) : test_now_ns();

	printf("seed: KVR_TEST_SEED=%llu\n", (unsigned long long)seed);
	fflush(stdout);
	return seed;
}

/* KVR_TEST_ROUNDS bounds a stress program's work. */
static inline uint64_t test_rounds(uint64_t otherwise)
{
	const char *env = getenv("KVR_TEST_ROUNDS");

	return env && *env ? strtoull(env, NULL, 0) : otherwise;
}

/* 1 when a file in `dir` can be opened with O_DIRECT: not on every tmpfs or overlay. */
static inline int test_can_direct(const char *dir)
{
	int fd = open(dir, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);

	if (fd < 0)
		return 0;
	close(fd);
	return 1;
}

/* 1 when `dir` lies on memory: a store test there would prove nothing about O_DIRECT. */
static inline int test_on_memory(const char *dir)
{
	struct statfs fs;

	return !statfs(dir, &fs) && fs.f_type == 0x01021994; /* TMPFS_MAGIC */
}

/*
 * Makes a private directory, on a real disk where there is one: under TMPDIR (tests/run.sh points
 * it below the build directory), else /var/tmp. Remove it with test_rmdir().
 */
static inline void test_tmpdir(char *buf, size_t size)
{
	const char *dir = getenv("TMPDIR");
	int n;

	if (!dir || !*dir || test_on_memory(dir))
		dir = "/var/tmp";
	n = snprintf(buf, size, "%s/kvr-test-XXXXXX", dir);
	if (n < 0 || (size_t)n >= size || !mkdtemp(buf))
		ck_abort_msg("no private directory under %s: %s", dir, strerror(errno));
}

static inline int test_rm_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st;
	(void)type;
	(void)at;
	return remove(path);
}

static inline void test_rmdir(const char *dir)
{
	nftw(dir, test_rm_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

/*
 * A group name that no other test or run uses at this time: test-rRUN-NOUN-PID-COUNT. tests/run.sh
 * blames a program only for files of its own run.
 */
static inline void test_name_of(char *buf, size_t size, const char *noun, pid_t pid, int count)
{
	const char *run = getenv("KVR_TEST_RUN");
	int n = snprintf(buf, size, "test-r%d-%s-%d-%d", run ? atoi(run) : 0, noun, (int)pid,
			 count);

	if (n < 0 || (size_t)n >= size)
		ck_abort_msg("no room for a name with '%s' in %zu bytes", noun, size);
}

static inline void test_name(char *buf, size_t size, const char *noun)
{
	static int count;

	test_name_of(buf, size, noun, getpid(), ++count);
}

/* Path of a program of the same build, such as "ring-dump": one directory above the test's own. */
static inline void test_tool(char *buf, size_t size, const char *tool)
{
	char self[4096];
	ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;
	int i, n;

	ck_assert_int_gt(len, 0);
	self[len] = 0;
	for (i = 0; i < 2; i++) {
		slash = strrchr(self, '/');
		ck_assert_ptr_nonnull(slash);
		*slash = 0;
	}
	n = snprintf(buf, size, "%s/%s", self, tool);
	if (n < 0 || (size_t)n >= size)
		ck_abort_msg("no room for the path of %s", tool);
}

/*
 * Waits for a child and returns its wait status. One that is still there after `timeout_ms` is
 * killed and fails the test. Polls: a signal handler of the test's own must not matter.
 */
static inline int test_reap(pid_t pid, uint64_t timeout_ms)
{
	uint64_t deadline = test_deadline_ms(timeout_ms);
	int status = 0;
	pid_t got;

	for (;;) {
		got = waitpid(pid, &status, WNOHANG);
		if (got == pid)
			return status;
		if (got < 0 && errno != EINTR)
			ck_abort_msg("waitpid(%d): %s", (int)pid, strerror(errno));
		if (test_now_ns() >= deadline)
			break;
		test_sleep_ms(1);
	}
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	ck_abort_msg("process %d was still running after %llu ms", (int)pid,
		     (unsigned long long)timeout_ms);
	return -1;
}

#endif
