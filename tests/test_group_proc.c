/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where /proc does not say what it usually says: no descriptor is left to read it with, it belongs
 * to another pid namespace, it hides processes, or clocks differ. "Cannot be told" is a right
 * answer then; "gone" of a process that lives, and a takeover that says it killed one, are not.
 */
#include "cluster.h"
#include "group_ends.h"
#include "namespaces.h"

#include <grp.h>
#include <sys/resource.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif
#define SOMEBODY 61804u

static int to_stay[2];

/* A leader that stays until it is killed. In a child, which ends with it. */
static pid_t leader_as(uid_t uid)
{
	pid_t pid;
	char c;

	MUST(!pipe2(to_stay, O_CLOEXEC));
	pid = fork();
	if (!pid) {
		struct kvr_group *g;

		if (uid)
			MUST(!setgroups(0, NULL) && !setresgid(uid, uid, uid) &&
			     !setresuid(uid, uid, uid));
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		MUST(!kvr_group_create(name, &opts, &g));
		MUST(write(to_stay[1], "", 1) == 1);
		for (;;)
			pause();
	}
	close(to_stay[1]);
	MUST(read(to_stay[0], &c, 1) == 1);
	return pid;
}

static struct kvr_group *look(uint32_t rank)
{
	struct kvr_group *g;

	MUST(!kvr_group_attach(name, rank, &opts, test_deadline_ms(3000), &g));
	return g;
}

static struct kvr_peer leader_of(struct kvr_group *g)
{
	struct kvr_peer p;

	MUST(!kvr_group_peer(g, KVR_LEADER, &p));
	return p;
}

/* A takeover by force: it says no, or the old leader's process has really ended. */
static void takes_over_honestly(pid_t leader)
{
	struct kvr_group *g;
	char file[64], text[512] = "";
	FILE *f;
	int rc;

	opts.takeover = KVR_TAKEOVER_KILL;
	rc = kvr_group_create(name, &opts, &g);
	if (rc) {
		MUST(rc == -EBUSY);
		return;
	}
	snprintf(file, sizeof file, "/proc/%d/stat", (int)leader);
	f = fopen(file, "re");
	MUST(!f || (fgets(text, sizeof text, f) && (strstr(text, ") Z") || strstr(text, ") X"))));
	kvr_group_close(g);
}

/* In a child: its exit status, 77 to skip. */
static void in_child(void (*body)(void), const char *why_not)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		body();
		_exit(0);
	}
	status = test_reap(pid, 15000);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		test_skip(why_not);
	else
		ck_assert_msg(!status, "status %#x", status);
}

static void no_descriptors(void)
{
	struct rlimit none = { 0, 0 };
	struct kvr_group *g;

	leader_as(0);
	g = look(0);
	MUST(leader_of(g).gone == 0);
	MUST(!setrlimit(RLIMIT_NOFILE, &none));
	MUST(leader_of(g).state == KVR_PEER_ALIVE);
	MUST(leader_of(g).gone != 1);
}

START_TEST(test_without_descriptors_nobody_is_gone)
{
	in_child(no_descriptors, "");
}
END_TEST

static void foreign_proc_inner(void)
{
	pid_t pid = leader_as(0);
	struct kvr_group *g = look(0);

	MUST(leader_of(g).state == KVR_PEER_ALIVE && leader_of(g).gone != 1);
	MUST(!kill(pid, SIGKILL) && waitpid(pid, NULL, 0) == pid);
	MUST(leader_of(g).state == KVR_PEER_DEAD);
	/* Of this process nothing is left, whatever has its number in another namespace. */
	test_sleep_ms(100);
	MUST(leader_of(g).gone != 0);
	kvr_group_close(g);
}

/* A pid namespace without a /proc of its own: numbers mean others there. */
static void foreign_proc(void)
{
	int status;
	pid_t pid;

	if (namespaces_enter(CLONE_NEWPID))
		_exit(77);
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		foreign_proc_inner();
		_exit(0);
	}
	_exit(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status)
									      : 1);
}

START_TEST(test_proc_of_another_namespace_is_not_believed)
{
	in_child(foreign_proc, "no new pid namespace here");
}
END_TEST

static void other_clocks(void)
{
	pid_t leader = leader_as(0), pid;
	int status;

	if (namespaces_enter(CLONE_NEWTIME) ||
	    namespaces_write("/proc/self/timens_offsets", "monotonic 1000 0\nboottime 1000 0\n"))
		_exit(77);
	pid = fork(); /* into it */
	if (!pid) {
		struct kvr_group *g = look(1);

		MUST(leader_of(g).state == KVR_PEER_ALIVE);
		MUST(leader_of(g).gone != 1);
		takes_over_honestly(leader);
		kvr_group_close(g);
		_exit(0);
	}
	_exit(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status)
									      : 1);
}

START_TEST(test_other_clocks_make_nobody_gone)
{
	in_child(other_clocks, "no new time namespace here");
}
END_TEST

static void hidden(void)
{
	pid_t leader, pid;
	int status;

	if (geteuid() || namespaces_enter(CLONE_NEWNS) ||
	    mount("proc", "/proc", "proc", 0, "hidepid=2"))
		_exit(77);
	/* Who changed its user is not even seen by processes of that user. */
	leader = leader_as(SOMEBODY);
	pid = fork();
	if (!pid) {
		struct kvr_group *g;

		MUST(!setgroups(0, NULL) && !setresgid(SOMEBODY, SOMEBODY, SOMEBODY) &&
		     !setresuid(SOMEBODY, SOMEBODY, SOMEBODY));
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		g = look(0);
		MUST(leader_of(g).state == KVR_PEER_ALIVE);
		MUST(leader_of(g).gone != 1);
		opts.takeover = KVR_TAKEOVER_KILL;
		status = kvr_group_create(name, &opts, &g);
		_exit(status == -EBUSY ? 0 : 2);
	}
	MUST(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	/* Unless it said no, it has killed it. */
	test_sleep_ms(20);
	MUST(WEXITSTATUS(status) == 0 ||
	     (WEXITSTATUS(status) == 2 && waitpid(leader, NULL, WNOHANG) == leader));
}

START_TEST(test_hidden_process_is_not_gone)
{
	ck_assert_int_eq(chmod(dir, 01777), 0);
	ck_assert_int_eq(geteuid() ? 0 : chown(dir, SOMEBODY, SOMEBODY), 0);
	in_child(hidden, "no /proc of its own with hidepid here (needs root)");
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("group_proc");
	TCase *t = tcase_create("proc");

	tcase_set_timeout(t, 40);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, test_without_descriptors_nobody_is_gone);
	tcase_add_test(t, test_proc_of_another_namespace_is_not_believed);
	tcase_add_test(t, test_other_clocks_make_nobody_gone);
	tcase_add_test(t, test_hidden_process_is_not_gone);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
