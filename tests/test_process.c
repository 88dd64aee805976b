/* SPDX-License-Identifier: Apache-2.0 */
/* Who a process is, what became of it, and how one is ended. Real processes. */
#include "process.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "err.h"
#include "harness.h"

/* A child that does nothing until it is killed; `who` names it. */
static pid_t sleeper(struct kvr_process *who)
{
	pid_t pid = fork();

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	kvr_process_self(who);
	who->pid = (uint32_t)pid;
	who->start_time = kvr_process_start_time(who->pid);
	return pid;
}

static void becomes(const struct kvr_process *who, enum kvr_process_state state)
{
	uint64_t end = test_deadline_ms(5000);

	while (kvr_process_state(who) != state && test_now_ns() < end)
		test_sleep_ms(1);
	ck_assert_int_eq(kvr_process_state(who), state);
}

START_TEST(test_identity)
{
	uint64_t start = kvr_process_start_time((uint32_t)getpid());
	struct kvr_process self;
	uint8_t a[16], b[16];

	ck_assert_uint_gt(start, 0);
	ck_assert_uint_eq(kvr_process_start_time(0x3fffffff), 0);
	kvr_process_self(&self);
	ck_assert_uint_eq(self.pid, (uint32_t)getpid());
	ck_assert_uint_eq(self.start_time, start);
	ck_assert_uint_gt(self.space, 0);
	ck_assert_int_eq(kvr_process_state(&self), KVR_PROCESS_RUNS);
	ck_assert_int_eq(kvr_process_boot_id(a), 0);
	ck_assert_int_eq(kvr_process_boot_id(b), 0);
	ck_assert_mem_eq(a, b, 16);
}
END_TEST

START_TEST(test_states_of_a_process)
{
	struct kvr_process who;
	pid_t pid = sleeper(&who);

	becomes(&who, KVR_PROCESS_RUNS);
	kill(pid, SIGSTOP);
	becomes(&who, KVR_PROCESS_STOPPED);
	kill(pid, SIGCONT);
	becomes(&who, KVR_PROCESS_RUNS);
	kill(pid, SIGKILL);
	becomes(&who, KVR_PROCESS_GONE); /* not reaped: its number is still taken */
	test_reap(pid, 5000);
	ck_assert_int_eq(kvr_process_state(&who), KVR_PROCESS_GONE);
}
END_TEST

START_TEST(test_another_process_with_that_number_is_not_it)
{
	struct kvr_process who, other;
	pid_t pid = sleeper(&who);

	other = who;
	other.start_time--;
	ck_assert_int_eq(kvr_process_state(&other), KVR_PROCESS_GONE);
	ck_assert_int_eq(kvr_process_kill(&other, test_deadline_ms(5000)), 0);
	becomes(&who, KVR_PROCESS_RUNS); /* it was not hit */
	other = who;
	other.space++;
	ck_assert_int_eq(kvr_process_state(&other), KVR_PROCESS_UNKNOWN);
	ck_assert_int_eq(kvr_process_kill(&other, test_deadline_ms(5000)), -EBUSY);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "another pid or time namespace"));
	becomes(&who, KVR_PROCESS_RUNS);
	kill(pid, SIGKILL);
	test_reap(pid, 5000);
}
END_TEST

START_TEST(test_kill_waits_for_the_end_even_of_a_stopped_process)
{
	struct kvr_process who;
	pid_t pid = sleeper(&who);
	int status;

	kill(pid, SIGSTOP);
	becomes(&who, KVR_PROCESS_STOPPED);
	ck_assert_int_eq(kvr_process_kill(&who, test_deadline_ms(5000)), 0);
	ck_assert_int_eq(kvr_process_state(&who), KVR_PROCESS_GONE);
	ck_assert_int_eq(kvr_process_kill(&who, test_deadline_ms(5000)), 0); /* again */
	status = test_reap(pid, 5000);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	kvr_process_self(&who);
	ck_assert_int_eq(kvr_process_kill(&who, test_deadline_ms(5000)), -EBUSY);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "this process itself"));
}
END_TEST

static void *sleep_on(void *arg)
{
	for (;;)
		pause();
	return arg;
}

/* 'Z' in /proc while other threads live on. */
START_TEST(test_process_whose_first_thread_ended_runs)
{
	struct kvr_process who;
	int ready[2];
	char c;
	pid_t pid;

	ck_assert_int_eq(pipe(ready), 0);
	pid = fork();
	if (!pid) {
		pthread_t t;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pthread_create(&t, NULL, sleep_on, NULL);
		if (write(ready[1], "r", 1) != 1)
			_exit(1);
		syscall(SYS_exit, 0); /* this thread alone */
	}
	ck_assert_int_eq(read(ready[0], &c, 1), 1);
	kvr_process_self(&who);
	who.pid = (uint32_t)pid;
	who.start_time = kvr_process_start_time(who.pid);
	for (int i = 0; i < 50; i++, test_sleep_ms(1))
		ck_assert_int_eq(kvr_process_state(&who), KVR_PROCESS_RUNS);
	kill(pid, SIGKILL);
	becomes(&who, KVR_PROCESS_GONE);
	test_reap(pid, 5000);
	close(ready[0]);
	close(ready[1]);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("process");
	TCase *t = tcase_create("process");

	tcase_set_timeout(t, 30);
	tcase_add_test(t, test_identity);
	tcase_add_test(t, test_states_of_a_process);
	tcase_add_test(t, test_another_process_with_that_number_is_not_it);
	tcase_add_test(t, test_kill_waits_for_the_end_even_of_a_stopped_process);
	tcase_add_test(t, test_process_whose_first_thread_ended_runs);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
