/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that a forked child must not keep. */
#include "fork.h"

#include "harness.h"

static int is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

START_TEST(test_guarded_descriptors_are_closed_in_a_child_alone)
{
	int a = open("/dev/null", O_RDONLY | O_CLOEXEC),
	    b = open("/dev/null", O_RDONLY | O_CLOEXEC);
	uint32_t before = kvr_fork_generation();
	pid_t pid;

	kvr_fork_guard(a);
	kvr_fork_guard(b);
	kvr_fork_unguard(b);
	pid = fork();
	if (!pid)
		_exit(!is_open(a) && is_open(b) && kvr_fork_generation() == before + 1 ? 0 : 1);
	ck_assert_int_eq(test_reap(pid, 5000), 0);
	ck_assert(is_open(a) && is_open(b));
	ck_assert_uint_eq(kvr_fork_generation(), before);
	kvr_fork_unguard(a);
	close(a);
	close(b);
}
END_TEST

/* A number that the child used again is not closed by its own fork. */
START_TEST(test_a_grandchild_keeps_what_the_child_opened)
{
	int a = open("/dev/null", O_RDONLY | O_CLOEXEC), fd, status;
	pid_t pid, grand;

	kvr_fork_guard(a);
	pid = fork();
	if (!pid) {
		fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
		grand = fd == a ? fork() : -1;
		if (!grand)
			_exit(is_open(fd) ? 0 : 1);
		_exit(grand > 0 && waitpid(grand, &status, 0) == grand ? status : 2);
	}
	ck_assert_int_eq(test_reap(pid, 5000), 0);
	kvr_fork_unguard(a);
	close(a);
}
END_TEST

START_TEST(test_more_than_the_table_holds_is_not_guarded)
{
	int fds[300];
	pid_t pid;

	for (int i = 0; i < 300; i++) {
		fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
		kvr_fork_guard(fds[i]);
	}
	pid = fork();
	if (!pid) {
		int left = 0;

		for (int i = 0; i < 300; i++)
			left += is_open(fds[i]);
		_exit(left == 300 - 256 ? 0 : 1);
	}
	ck_assert_int_eq(test_reap(pid, 5000), 0);
	for (int i = 0; i < 300; i++) {
		kvr_fork_unguard(fds[i]);
		close(fds[i]);
	}
}
END_TEST

static Suite *make(void)
{
	Suite *s = suite_create("fork");
	TCase *t = tcase_create("guard");

	tcase_add_test(t, test_guarded_descriptors_are_closed_in_a_child_alone);
	tcase_add_test(t, test_a_grandchild_keeps_what_the_child_opened);
	tcase_add_test(t, test_more_than_the_table_holds_is_not_guarded);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make);
}
