/* SPDX-License-Identifier: Apache-2.0 */
/* The liveness word: what peers read after every kind of end, and who may take it. */
#include "harness.h"

#include <poll.h>
#include <pthread.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "kvring/err.h"
#include "life.h"

#define LONG_MS 10000u

/* What a test and its processes share. */
struct shared {
	uint32_t word;
	uint32_t pid; /* of a grandchild */
};

static struct shared *shared_new(void)
{
	struct shared *s =
		mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	ck_assert_ptr_ne(s, MAP_FAILED);
	return s;
}

static int becomes(const uint32_t *word, enum kvr_life_state state, uint64_t ms)
{
	uint64_t deadline = test_deadline_ms(ms);

	while (kvr_life_peek(word) != state) {
		if (test_now_ns() > deadline)
			return 0;
		test_sleep_ms(1);
	}
	return 1;
}

static void hold_or_exit(uint32_t *word)
{
	if (kvr_life_hold(word))
		_exit(9);
}

static void *holder_main(void *arg)
{
	hold_or_exit(arg);
	for (;;)
		pause();
	return NULL;
}

/* A process whose watcher thread, not its main thread, holds the word. */
static pid_t fork_holder(struct shared *s)
{
	pid_t pid = fork();
	pthread_t t;

	if (!pid) {
		if (pthread_create(&t, NULL, holder_main, &s->word))
			_exit(8);
		for (;;)
			pause();
	}
	ck_assert_int_gt(pid, 0);
	ck_assert_msg(becomes(&s->word, KVR_LIFE_ALIVE, LONG_MS), "the holder never came up");
	return pid;
}

START_TEST(test_states_of_a_word)
{
	ck_assert_int_eq(kvr_life_of(0), KVR_LIFE_NONE);
	ck_assert_int_eq(kvr_life_of(1234), KVR_LIFE_ALIVE);
	ck_assert_int_eq(kvr_life_of(0x80000000u | 1234), KVR_LIFE_ALIVE); /* FUTEX_WAITERS */
	ck_assert_int_eq(kvr_life_of(0x80000000u), KVR_LIFE_NONE);
	ck_assert_int_eq(kvr_life_of(0x40000000u), KVR_LIFE_DEAD);
	ck_assert_int_eq(kvr_life_of(0xffffffffu), KVR_LIFE_DEAD);
}
END_TEST

START_TEST(test_hold_and_drop)
{
	uint32_t word = 0;
	int i;

	for (i = 0; i < 3; i++) {
		ck_assert_int_eq(kvr_life_hold(&word), 0);
		ck_assert_uint_eq(word, (uint32_t)gettid() | FUTEX_WAITERS);
		ck_assert_int_eq(kvr_life_peek(&word), KVR_LIFE_ALIVE);
		kvr_life_drop(&word);
		ck_assert_uint_eq(word, 0);
		ck_assert_int_eq(kvr_life_peek(&word), KVR_LIFE_NONE);
	}
}
END_TEST

START_TEST(test_drop_restores_the_list_of_libc)
{
	uint32_t word = 0;
	void *before, *between, *after;
	size_t len;

	ck_assert_int_eq(syscall(SYS_get_robust_list, 0, &before, &len), 0);
	ck_assert_int_eq(kvr_life_hold(&word), 0);
	ck_assert_int_eq(syscall(SYS_get_robust_list, 0, &between, &len), 0);
	kvr_life_drop(&word);
	ck_assert_int_eq(syscall(SYS_get_robust_list, 0, &after, &len), 0);
	ck_assert_ptr_ne(before, between);
	ck_assert_ptr_eq(before, after);
}
END_TEST

START_TEST(test_second_holder_is_refused)
{
	struct shared *s = shared_new();
	pid_t pid = fork_holder(s);
	uint32_t held = s->word;

	ck_assert_int_eq(kvr_life_hold(&s->word), -EBUSY);
	ck_assert_str_ne(kvr_explain(), "");
	ck_assert_uint_eq(s->word, held);
	kill(pid, SIGKILL);
	test_reap(pid, LONG_MS);
}
END_TEST

START_TEST(test_one_thread_holds_one_word)
{
	uint32_t first = 0, second = 0;

	ck_assert_int_eq(kvr_life_hold(&first), 0);
	ck_assert_int_eq(kvr_life_hold(&second), -EBUSY);
	ck_assert_uint_eq(second, 0);
	kvr_life_drop(&second); /* not held: nothing happens */
	ck_assert_uint_eq(first, (uint32_t)gettid() | FUTEX_WAITERS);
	kvr_life_drop(&first);
	ck_assert_int_eq(kvr_life_hold(&second), 0);
	kvr_life_drop(&second);
}
END_TEST

/* Also after a refused attempt the thread can take another word. */
START_TEST(test_word_of_the_dead_is_not_taken_again)
{
	struct shared *s = shared_new();
	pid_t pid = fork_holder(s);
	uint32_t word = 0;

	kill(pid, SIGKILL);
	ck_assert(becomes(&s->word, KVR_LIFE_DEAD, LONG_MS));
	test_reap(pid, LONG_MS);
	ck_assert_int_eq(kvr_life_hold(&s->word), -EOWNERDEAD);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "died"));
	ck_assert_int_eq(kvr_life_peek(&s->word), KVR_LIFE_DEAD);
	ck_assert_int_eq(kvr_life_hold(&word), 0);
	kvr_life_drop(&word);
}
END_TEST

START_TEST(test_kill_is_seen_before_the_process_is_reaped)
{
	struct shared *s = shared_new();
	pid_t pid = fork_holder(s);

	kill(pid, SIGKILL);
	ck_assert(becomes(&s->word, KVR_LIFE_DEAD, LONG_MS)); /* a zombie still */
	test_reap(pid, LONG_MS);
}
END_TEST

START_TEST(test_clean_end_is_not_a_death)
{
	struct shared *s = shared_new();
	pid_t pid = fork();

	if (!pid) {
		hold_or_exit(&s->word);
		kvr_life_drop(&s->word);
		_exit(0);
	}
	ck_assert_int_eq(test_reap(pid, LONG_MS), 0);
	ck_assert_uint_eq(s->word, 0);
}
END_TEST

/* exit without drop, a crash, and execve: all leave the word to the kernel. */
START_TEST(test_every_other_end_is_a_death)
{
	struct shared *s = shared_new();
	pid_t pid = fork();

	if (!pid) {
		hold_or_exit(&s->word);
		if (_i == 0)
			_exit(0);
		if (_i == 1) {
			signal(SIGABRT, SIG_DFL);
			abort();
		}
		execl("/bin/sleep", "sleep", "60", NULL);
		_exit(7);
	}
	ck_assert_int_gt(pid, 0);
	ck_assert(becomes(&s->word, KVR_LIFE_DEAD, LONG_MS));
	if (_i == 2)
		kill(pid, SIGKILL);
	test_reap(pid, LONG_MS);
}
END_TEST

static void *brief_holder_main(void *arg)
{
	return kvr_life_hold(arg) ? arg : NULL;
}

START_TEST(test_end_of_the_holding_thread_is_a_death)
{
	uint32_t word = 0;
	void *bad;
	pthread_t t;

	ck_assert_int_eq(pthread_create(&t, NULL, brief_holder_main, &word), 0);
	ck_assert_int_eq(pthread_join(t, &bad), 0);
	ck_assert_ptr_null(bad);
	ck_assert(becomes(&word, KVR_LIFE_DEAD, LONG_MS));
}
END_TEST

START_TEST(test_forked_child_neither_holds_nor_hides_the_death)
{
	struct shared *s = shared_new();
	pid_t pid, heir;

	ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	pid = fork();
	if (!pid) {
		hold_or_exit(&s->word);
		if (!fork()) {
			uint32_t own = 0;

			hold_or_exit(&own); /* what it inherited does not stand in the way */
			kvr_life_drop(&own);
			kvr_life_drop(&s->word); /* not its own: nothing happens */
			__atomic_store_n(&s->pid, (uint32_t)getpid(), __ATOMIC_RELEASE);
			for (;;)
				pause();
		}
		for (;;)
			pause();
	}
	while (!__atomic_load_n(&s->pid, __ATOMIC_ACQUIRE))
		test_sleep_ms(1);
	ck_assert_int_eq(kvr_life_peek(&s->word), KVR_LIFE_ALIVE);
	kill(pid, SIGKILL);
	ck_assert(becomes(&s->word, KVR_LIFE_DEAD, LONG_MS));
	test_reap(pid, LONG_MS);
	heir = (pid_t)s->pid;
	ck_assert_int_eq(kill(heir, 0), 0); /* it is alive all the while */
	kill(heir, SIGKILL);
	test_reap(heir, LONG_MS);
}
END_TEST

/* The middle process, whose children are in the new namespace: 77 when that is not allowed. */
static void namespace_main(struct shared *s)
{
	pid_t pid;

	if (unshare(CLONE_NEWPID) && unshare(CLONE_NEWUSER | CLONE_NEWPID))
		_exit(77);
	pid = fork();
	if (!pid) {
		hold_or_exit(&s->word);
		for (;;)
			pause();
	}
	if (pid < 0)
		_exit(77);
	while (kvr_life_peek(&s->word) != KVR_LIFE_ALIVE)
		test_sleep_ms(1);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	_exit(0);
}

START_TEST(test_death_in_another_pid_namespace_is_seen)
{
	struct shared *s = shared_new();
	int status;
	pid_t pid;

	pid = fork();
	if (!pid)
		namespace_main(s);
	status = test_reap(pid, LONG_MS);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
		test_skip("no new pid namespace allowed here");
		return;
	}
	ck_assert_int_eq(status, 0);
	ck_assert_int_eq(kvr_life_peek(&s->word), KVR_LIFE_DEAD);
}
END_TEST

START_TEST(test_peer_reads_through_a_read_only_mapping)
{
	int fd = memfd_create("life", MFD_CLOEXEC);
	const uint32_t *seen;
	uint32_t *word;

	ck_assert_int_eq(ftruncate(fd, 4096), 0);
	word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	seen = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	ck_assert_int_eq(kvr_life_hold(word), 0);
	ck_assert_int_eq(kvr_life_peek(seen), KVR_LIFE_ALIVE);
	kvr_life_drop(word);
	ck_assert_int_eq(kvr_life_peek(seen), KVR_LIFE_NONE);
	close(fd);
}
END_TEST

static uint64_t available_mib(void)
{
	FILE *f = fopen("/proc/meminfo", "re");
	unsigned long long kib = 0;
	char line[128];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib >> 10;
}

static void *resident_main(void *arg)
{
	size_t bytes = 4ull << 30, i;
	char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		_exit(7);
	madvise(p, bytes, MADV_HUGEPAGE);
	for (i = 0; i < bytes; i += 4096)
		p[i] = 1;
	return holder_main(arg);
}

/* Tearing down 4 GiB takes the kernel a good part of a second; the word does not wait for it. */
START_TEST(test_word_of_a_large_process_dies_before_its_pidfd)
{
	struct shared *s = shared_new();
	struct pollfd gone = { .events = POLLIN };
	uint64_t start, word_ns = 0;
	pthread_t t;
	pid_t pid;

	if (KVR_TEST_ASAN || KVR_TEST_TSAN || available_mib() < 6 * 1024) {
		test_skip(
			"4 GiB resident: not under a sanitizer or with less than 6 GiB available");
		return;
	}
	pid = fork();
	if (!pid) {
		if (pthread_create(&t, NULL, resident_main, &s->word))
			_exit(8);
		for (;;)
			pause();
	}
	ck_assert(becomes(&s->word, KVR_LIFE_ALIVE, 60000));
	gone.fd = (int)syscall(SYS_pidfd_open, pid, 0);
	ck_assert_int_ge(gone.fd, 0);
	start = test_now_ns();
	kill(pid, SIGKILL);
	while (!word_ns) {
		int left = poll(&gone, 1, 0);

		/* In this order: what the pidfd says is older than what the word says. */
		if (kvr_life_peek(&s->word) == KVR_LIFE_DEAD)
			word_ns = test_now_ns() - start;
		else
			ck_assert_msg(!left, "the process is gone, and its word says alive");
	}
	ck_assert_int_eq(poll(&gone, 1, LONG_MS), 1);
	printf("4 GiB resident: word dead after %.1f ms, pidfd after %.1f ms\n",
	       (double)word_ns / 1e6, (double)(test_now_ns() - start) / 1e6);
	close(gone.fd);
	test_reap(pid, LONG_MS);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("life");
	TCase *t = tcase_create("life");

	tcase_add_test(t, test_states_of_a_word);
	tcase_add_test(t, test_hold_and_drop);
	tcase_add_test(t, test_drop_restores_the_list_of_libc);
	tcase_add_test(t, test_second_holder_is_refused);
	tcase_add_test(t, test_one_thread_holds_one_word);
	tcase_add_test(t, test_word_of_the_dead_is_not_taken_again);
	tcase_add_test(t, test_kill_is_seen_before_the_process_is_reaped);
	tcase_add_test(t, test_clean_end_is_not_a_death);
	tcase_add_loop_test(t, test_every_other_end_is_a_death, 0, 3);
	tcase_add_test(t, test_end_of_the_holding_thread_is_a_death);
	tcase_add_test(t, test_forked_child_neither_holds_nor_hides_the_death);
	tcase_add_test(t, test_death_in_another_pid_namespace_is_seen);
	tcase_add_test(t, test_peer_reads_through_a_read_only_mapping);
	suite_add_tcase(s, t);
	t = tcase_create("large process");
	tcase_set_timeout(t, 90);
	tcase_add_test(t, test_word_of_a_large_process_dies_before_its_pidfd);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
