/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of others: should I stop waiting for it, is it gone, is it only slow? Processes
 * that are stopped, dumping core, not reaped, in other pid namespaces, or replaced by one with the
 * same number; a forked child with its parent's handles; and a phase that takes long and was
 * declared.
 */
#include "cluster.h"
#include "group_ends.h"

#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "namespaces.h"
#include "util.h"

static struct kvr_peer peer_of(struct kvr_group *g, uint32_t rank)
{
	struct kvr_peer p;

	ck_assert_int_eq(kvr_group_peer(g, rank, &p), 0);
	ck_assert_uint_eq(p.rank, rank);
	return p;
}

static void peer_is(struct kvr_group *g, uint32_t rank, uint32_t state)
{
	struct kvr_peer p = peer_of(g, rank);

	ck_assert_msg(p.state == state, "%s instead of %s", kvr_peer_state_name(p.state),
		      kvr_peer_state_name(state));
}

/* Within seconds. */
static void peer_becomes(struct kvr_group *g, uint32_t rank, uint32_t state)
{
	uint64_t deadline = test_deadline_ms(WAIT_MS);

	while (peer_of(g, rank).state != state && test_now_ns() < deadline)
		test_sleep_ms(1);
	peer_is(g, rank, state);
}

static void peer_goes(struct kvr_group *g, uint32_t rank)
{
	uint64_t deadline = test_deadline_ms(WAIT_MS);

	while (peer_of(g, rank).gone != 1 && test_now_ns() < deadline)
		test_sleep_ms(1);
	ck_assert_int_eq(peer_of(g, rank).gone, 1);
}

/* Until the rank's ring is full: it reads nothing now. */
static void fill_ring(struct end *l, uint32_t rank)
{
	int rc, n = 0;

	while (!(rc = end_publish(l, 1u << rank, 0)) && n < 10000)
		n++;
	ck_assert_int_eq(rc, -EAGAIN);
}

/* A leader or a rank that, on 't', takes a message within 300 ms, on 'p' publishes one to all. */
static int member_channels(struct member *m)
{
	struct end e = { 0 };
	int rc = m->rank == KVR_LEADER ? end_lead(name, &e) : end_join(name, m->rank, &e);
	struct kvr_message msg;
	char order;

	member_report(m, rc, e.g);
	while (!rc && (order = member_order(m))) {
		if (order == 'p')
			member_report(m, end_publish(&e, 0, WAIT_MS), e.g);
		else
			member_report(m,
				      kvr_channels_take(
					      e.c, CH,
					      test_deadline_ms(order == 't' ? 300 : WAIT_MS), &msg),
				      e.g);
	}
	if (!rc)
		end_close(&e);
	return 0;
}

/* --- stopped --- */

START_TEST(test_stopped_leader_is_said_to_be_stopped)
{
	struct member l;
	struct kvr_message msg;
	struct end r = { 0 };

	opts.ranks = 1;
	l = member_start(member_channels, KVR_LEADER);
	member_ready(&l);
	ck_assert_int_eq(end_join(name, 0, &r), 0);
	peer_is(r.g, KVR_LEADER, KVR_PEER_ALIVE);
	ck_assert_int_eq(kill(l.pid, SIGSTOP), 0);
	peer_becomes(r.g, KVR_LEADER, KVR_PEER_STOPPED);
	ck_assert_int_eq(peer_of(r.g, KVR_LEADER).gone, 0);
	ck_assert_int_eq(kvr_channels_take(r.c, CH, test_deadline_ms(250), &msg), -ETIMEDOUT);
	explained("the leader (pid ");
	explained(", stopped, ");
	ck_assert_int_eq(kvr_group_check(r.g), 0);
	ck_assert_int_eq(try_create(), -EBUSY);
	explained(", stopped");
	ck_assert_int_eq(kill(l.pid, SIGCONT), 0);
	peer_becomes(r.g, KVR_LEADER, KVR_PEER_ALIVE);
	member_tell(&l, 'p');
	ck_assert_int_eq(kvr_channels_take(r.c, CH, test_deadline_ms(WAIT_MS), &msg), 0);
	ck_assert_int_eq(member_hears(&l).rc, 0);
	end_close(&r);
	member_end(&l);
}
END_TEST

START_TEST(test_stopped_rank_is_said_to_be_stopped)
{
	struct end l = { 0 };
	struct member m;
	char text[64];

	opts.ranks = 2;
	m = member_start(member_channels, 1);
	ck_assert_int_eq(end_lead(name, &l), 0);
	member_ready(&m);
	ck_assert_int_eq(kill(m.pid, SIGSTOP), 0);
	peer_becomes(l.g, 1, KVR_PEER_STOPPED);
	fill_ring(&l, 1);
	ck_assert_int_eq(end_publish(&l, 2, 250), -ETIMEDOUT);
	snprintf(text, sizeof text, "rank 1 (pid %d, stopped, ", (int)m.pid);
	explained(text);
	ck_assert_int_eq(kvr_group_watch_ranks(l.g), 0);
	ck_assert_int_eq(kill(m.pid, SIGCONT), 0);
	for (int i = 0; i < 3; i++) {
		member_tell(&m, 'T');
		ck_assert_int_eq(member_hears(&m).rc, 0);
	}
	ck_assert_int_eq(kvr_group_watch_ranks(l.g), 0);
	member_end(&m);
	end_close(&l);
}
END_TEST

/* Its deadline passes while it is stopped; what was published meanwhile is there afterwards. */
START_TEST(test_rank_stopped_for_longer_than_its_deadline_goes_on)
{
	struct end l = { 0 };
	struct report got;
	struct member m;

	opts.ranks = 1;
	m = member_start(member_channels, 0);
	ck_assert_int_eq(end_lead(name, &l), 0);
	member_ready(&m);
	member_tell(&m, 't');
	test_sleep_ms(50);
	ck_assert_int_eq(kill(m.pid, SIGSTOP), 0);
	peer_becomes(l.g, 0, KVR_PEER_STOPPED);
	test_sleep_ms(400);
	if (_i)
		ck_assert_int_eq(end_publish(&l, 0, 0), 0);
	ck_assert_int_eq(kill(m.pid, SIGCONT), 0);
	got = member_hears(&m);
	ck_assert_msg(got.rc == -ETIMEDOUT || (_i && !got.rc), "%d %s", got.rc, got.why);
	if (!_i)
		ck_assert_int_eq(end_publish(&l, 0, 0), 0);
	if (got.rc) {
		member_tell(&m, 'T');
		ck_assert_int_eq(member_hears(&m).rc, 0);
	}
	peer_is(l.g, 0, KVR_PEER_ALIVE);
	member_end(&m);
	end_close(&l);
}
END_TEST

/* --- dead, and not reaped --- */

START_TEST(test_zombie_is_dead)
{
	struct member m = member_start(member_rank, 2);
	struct kvr_group *l = create(), *g;
	siginfo_t info;

	member_ready(&m);
	ck_assert_int_eq(kill(m.pid, SIGKILL), 0);
	/* It has ended, and stays a zombie. */
	ck_assert_int_eq(waitid(P_PID, (id_t)m.pid, &info, WEXITED | WNOWAIT), 0);
	peer_is(l, 2, KVR_PEER_DEAD);
	peer_goes(l, 2);
	ck_assert_int_eq(peer_of(l, 2).pid, (uint32_t)m.pid);
	ck_assert_int_eq(kvr_group_watch_ranks(l), -EOWNERDEAD);
	kvr_group_close(l);
	member_kill(&m);
	/* The same with a leader: whoever comes is not held up by it. */
	m = start_leader();
	ck_assert_int_eq(kill(m.pid, SIGKILL), 0);
	ck_assert_int_eq(waitid(P_PID, (id_t)m.pid, &info, WEXITED | WNOWAIT), 0);
	g = create();
	ck_assert_uint_eq(kvr_group_epoch(g), 3);
	kvr_group_close(g);
	member_kill(&m);
}
END_TEST

START_TEST(test_states_from_absent_to_left)
{
	struct member m = member_start(member_channels, 1);
	struct kvr_group *l = create();
	struct kvr_peer p;

	peer_is(l, 2, KVR_PEER_ABSENT);
	member_ready(&m);
	p = peer_of(l, 1);
	ck_assert(p.state == KVR_PEER_ALIVE && p.gone == 0 && p.pid == (uint32_t)m.pid);
	member_tell(&m, 'T');
	peer_is(l, 1, KVR_PEER_ALIVE);
	kvr_group_fail(l, 1, -EIO);
	ck_assert_int_eq(member_hears(&m).rc, -EIO);
	ck_assert_uint_eq(peer_of(l, KVR_LEADER).failed, 1);
	member_end(&m);
	peer_is(l, 1, KVR_PEER_LEFT);
	peer_goes(l, 1);
	ck_assert_int_eq(kvr_group_peer(l, 4, &p), -EINVAL);
	explained("4 ranks");
	kvr_group_close(l);
}
END_TEST

/* --- other pid namespaces --- */

static int (*inner)(struct member *);

/* Runs `inner` as process 1 of a new pid namespace; first says which number that has here. */
static int member_in_namespace(struct member *m)
{
	int status = 0, go[2];
	struct report r = { 0 };
	pid_t pid;

	if (pipe2(go, O_CLOEXEC) || namespaces_enter(CLONE_NEWPID)) {
		r.rc = -EPERM;
		return write(m->out, &r, sizeof r) == sizeof r ? 0 : 98;
	}
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(read(go[0], &status, 1) == 1 ? inner(m) : 98);
	}
	r.rc = pid;
	if (pid < 0 || write(m->out, &r, sizeof r) != sizeof r || write(go[1], "", 1) != 1)
		return 98;
	close(m->in); /* the orders are not for this one */
	waitpid(pid, &status, 0);
	return status ? 1 : 0;
}

/* Its process's number here, or 0: not allowed. */
static pid_t start_inner(int (*run)(struct member *), uint32_t rank, struct member *ret)
{
	struct report r;

	inner = run;
	*ret = member_start(member_in_namespace, rank);
	r = member_hears(ret);
	if (r.rc > 0)
		return r.rc;
	member_end(ret);
	test_skip("no new pid namespace here, neither as root nor in a user namespace");
	return 0;
}

START_TEST(test_equal_pids_of_two_namespaces_are_not_mixed_up)
{
	struct member l, r;
	struct report got;
	struct kvr_group *g;
	struct kvr_peer p;
	pid_t lpid, rpid;

	lpid = start_inner(member_leader, KVR_LEADER, &l);
	if (!lpid)
		return;
	rpid = start_inner(member_rank, 0, &r);
	member_ready(&l);
	member_ready(&r);
	g = attach(1);
	p = peer_of(g, KVR_LEADER);
	ck_assert(p.state == KVR_PEER_ALIVE && p.pid == 1 && p.gone == -1);
	p = peer_of(g, 0);
	ck_assert(p.state == KVR_PEER_ALIVE && p.pid == 1 && p.gone == -1);
	/* From here it cannot be told that it is stopped; but it is not dead. */
	ck_assert_int_eq(kill(rpid, SIGSTOP), 0);
	test_sleep_ms(150);
	peer_is(g, 0, KVR_PEER_ALIVE);
	ck_assert_int_eq(kvr_group_check(g), 0);
	ck_assert_int_eq(kill(rpid, SIGCONT), 0);
	/* The rank dies. The leader, which has the same number, does not. */
	member_tell(&l, 'w');
	if (_i) {
		ck_assert_int_eq(kill(rpid, SIGKILL), 0);
		got = member_hears(&l);
		ck_assert_msg(got.rc == -EOWNERDEAD && strstr(got.why, "rank 0 (pid 1, dead"),
			      "%d %s", got.rc, got.why);
		peer_is(g, 0, KVR_PEER_DEAD);
		ck_assert_int_eq(peer_of(g, 0).gone, -1);
		peer_is(g, KVR_LEADER, KVR_PEER_ALIVE);
		ck_assert_int_eq(kvr_group_check(g), -EOWNERDEAD);
		explained("rank 0 (pid 1, dead");
		member_end(&l);
		member_kill(&r);
	} else {
		member_tell(&r, 'w');
		ck_assert_int_eq(kill(lpid, SIGKILL), 0);
		got = member_hears(&r);
		ck_assert_msg(got.rc == -EOWNERDEAD && strstr(got.why, "the leader (pid 1, dead"),
			      "%d %s", got.rc, got.why);
		peer_is(g, KVR_LEADER, KVR_PEER_DEAD);
		peer_is(g, 0, KVR_PEER_ALIVE);
		ck_assert_int_eq(kvr_group_check(g), -EOWNERDEAD);
		member_end(&r);
		member_kill(&l);
	}
	kvr_group_close(g);
}
END_TEST

static int member_kills(struct member *m)
{
	struct kvr_group *g = NULL;
	int rc;

	member_order(m);
	opts.takeover = KVR_TAKEOVER_KILL;
	rc = kvr_group_create(name, &opts, &g);
	member_report(m, rc, g);
	if (!rc)
		kvr_group_close(g);
	return 0;
}

/* Its number means another process here, or the caller itself: neither may be hit. */
START_TEST(test_leader_of_another_namespace_is_not_killed)
{
	struct member l, k;
	struct report got;
	struct kvr_group *g;

	if (!start_inner(member_leader, KVR_LEADER, &l))
		return;
	ck_assert_int_gt(start_inner(member_kills, KVR_LEADER, &k), 0);
	member_ready(&l);
	g = attach(0);
	opts.takeover = KVR_TAKEOVER_KILL;
	ck_assert_int_eq(try_create(), -EBUSY);
	explained("another pid or time namespace");
	member_tell(&k, 'k');
	got = member_hears(&k);
	ck_assert_msg(got.rc == -EBUSY && strstr(got.why, "another pid or time namespace"), "%d %s",
		      got.rc, got.why);
	member_end(&k);
	ck_assert_int_eq(kvr_group_check(g), 0);
	peer_is(g, KVR_LEADER, KVR_PEER_ALIVE);
	ck_assert_int_eq(try_attach(1, 1000), 0);
	kvr_group_close(g);
	member_end(&l);
}
END_TEST

/* --- a number that is used again; as process 1 of a namespace with a /proc of its own --- */

static pid_t sleeper(void)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;)
		pause();
}

/* A new process with this number. 0: the kernel does not let us choose. */
static pid_t sleeper_with(pid_t number)
{
	char text[16];

	snprintf(text, sizeof text, "%d", (int)number - 1);
	for (int i = 0; i < 20; i++) {
		pid_t pid;

		if (namespaces_write("/proc/sys/kernel/ns_last_pid", text))
			return 0;
		pid = sleeper();
		if (pid == number)
			return pid;
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	return 0;
}

static int is_in[2]; /* a pipe */

/* A leader or rank 0 that stays. */
static pid_t stay(uint32_t rank)
{
	pid_t pid;

	MUST(!pipe2(is_in, O_CLOEXEC));
	pid = fork();
	if (!pid) {
		struct end e = { 0 };

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		MUST(!(rank == KVR_LEADER ? end_lead(name, &e) : end_join(name, rank, &e)));
		MUST(write(is_in[1], "", 1) == 1);
		for (;;)
			pause();
	}
	return pid;
}

static void await_stay(void)
{
	char c;

	close(is_in[1]);
	MUST(read(is_in[0], &c, 1) == 1);
	close(is_in[0]);
}

static void end_now(pid_t pid)
{
	MUST(!kill(pid, SIGKILL) && waitpid(pid, NULL, 0) == pid);
	test_sleep_ms(30); /* start times are counted in hundredths of a second */
}

static void reused_rank(void)
{
	pid_t rank = stay(0), other;
	struct kvr_group *l, *r;
	struct kvr_peer p;

	MUST(!kvr_group_create(name, &opts, &l));
	await_stay();
	MUST(!kvr_group_peer(l, 0, &p) && p.state == KVR_PEER_ALIVE && p.gone == 0);
	MUST(p.pid == (uint32_t)rank);
	end_now(rank);
	MUST(!kvr_group_peer(l, 0, &p) && p.state == KVR_PEER_DEAD && p.gone == 1);
	other = sleeper_with(rank);
	if (!other)
		_exit(78);
	MUST(!kvr_group_peer(l, 0, &p) && p.state == KVR_PEER_DEAD && p.gone == 1);
	MUST(!kill(other, SIGSTOP));
	test_sleep_ms(30);
	MUST(!kvr_group_peer(l, 0, &p) && p.state == KVR_PEER_DEAD && p.gone == 1);
	MUST(kvr_group_watch_ranks(l) == -EOWNERDEAD && strstr(kvr_explain(), ", dead"));
	MUST(!kill(other, SIGKILL) && waitpid(other, NULL, 0) == other);
	kvr_group_close(l);
	/* And nobody holds the number against the next one that has it. */
	MUST(!kvr_group_create(name, &opts, &l) && kvr_group_epoch(l) == 2);
	MUST(!kvr_group_attach(name, 0, &opts, 0, &r));
	kvr_group_close(r);
	kvr_group_close(l);
}

static void reused_leader(void)
{
	pid_t leader = stay(KVR_LEADER), other;
	struct kvr_group *r, *l;
	struct kvr_peer p;

	await_stay();
	MUST(!kvr_group_attach(name, 1, &opts, 0, &r));
	end_now(leader);
	other = sleeper_with(leader);
	if (!other)
		_exit(78);
	MUST(!kvr_group_peer(r, KVR_LEADER, &p) && p.state == KVR_PEER_DEAD && p.gone == 1);
	MUST(kvr_group_check(r) == -EOWNERDEAD);
	opts.takeover = KVR_TAKEOVER_KILL;
	MUST(!kvr_group_create(name, &opts, &l) && kvr_group_epoch(l) == 2);
	MUST(kvr_group_check(r) == -ESTALE);
	/* Who has the number now was not hit. */
	test_sleep_ms(20);
	MUST(waitpid(other, NULL, WNOHANG) == 0);
	kvr_group_close(r);
	kvr_group_close(l);
}

START_TEST(test_another_process_with_the_same_number_is_not_it)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (namespaces_enter(CLONE_NEWPID | CLONE_NEWNS))
			_exit(77);
		pid = fork();
		if (!pid) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (mount("proc", "/proc", "proc", 0, NULL))
				_exit(77);
			(_i ? reused_leader : reused_rank)();
			_exit(0);
		}
		if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
			_exit(1);
		_exit(WEXITSTATUS(status));
	}
	status = test_reap(pid, 20000);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		test_skip("no pid namespace with a /proc of its own here");
	else if (WIFEXITED(status) && WEXITSTATUS(status) == 78)
		test_skip("the number of the next process cannot be chosen here");
	else
		ck_assert_msg(!status, "status %#x", status);
}
END_TEST

/* --- dumping core --- */

static uint64_t dump_bytes;

static int member_crashes(struct member *m)
{
	struct rlimit all = { RLIM_INFINITY, RLIM_INFINITY };
	struct kvr_group *g;
	uint8_t *p;

	/* Into the test's directory, where the core pattern is a plain name. */
	if (chdir(dir) || setrlimit(RLIMIT_CORE, &all))
		return 1;
	p = mmap(NULL, dump_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return 1;
	memset(p, 0x5a, dump_bytes);
	if (kvr_group_attach(name, m->rank, &opts, test_deadline_ms(WAIT_MS), &g))
		return 1;
	member_report(m, 0, g);
	member_order(m);
	signal(SIGABRT, SIG_DFL);
	prctl(PR_SET_DUMPABLE, 1);
	abort();
}

/* NULL, or why a core dump cannot be watched here. */
static const char *no_core(void)
{
	FILE *f = fopen("/proc/sys/kernel/core_pattern", "re");
	char pattern[128] = "";
	struct rlimit limit;
	struct statvfs v;

	if (f) {
		if (!fgets(pattern, sizeof pattern, f))
			pattern[0] = 0;
		fclose(f);
	}
	if (KVR_TEST_ASAN || KVR_TEST_TSAN)
		return "a sanitizer's core dump would have terabytes of shadow memory";
	if (pattern[0] == '|' || strchr(pattern, '/') || strlen(pattern) < 2)
		return "core_pattern does not put core dumps into the current directory";
	if (getrlimit(RLIMIT_CORE, &limit) || limit.rlim_max != RLIM_INFINITY)
		return "core dumps are off (ulimit -Hc)";
	if (statvfs(dir, &v) || (uint64_t)v.f_bavail * v.f_frsize < 3ull << 30)
		return "less than 3 GiB of disk are free for a core dump";
	return NULL;
}

/* How often it was seen dumping until it was dead. */
static int watch_dump(struct kvr_group *l, uint32_t rank)
{
	uint64_t deadline = test_deadline_ms(30000);
	struct kvr_peer p;
	int seen = 0;

	for (;;) {
		p = peer_of(l, rank);
		if (p.state == KVR_PEER_DUMPING) {
			char text[256];

			ck_assert_int_eq(p.gone, 0);
			kvr_group_describe(l, rank, text, sizeof text);
			/* Unless it ended in between. */
			ck_assert_msg(strstr(text, "dumping core") || strstr(text, ", dead"), "%s",
				      text);
			seen++;
		} else if (p.state == KVR_PEER_DEAD) {
			return seen;
		} else {
			ck_assert_msg(p.state == KVR_PEER_ALIVE && !seen,
				      "%s after it was seen dumping %d times",
				      kvr_peer_state_name(p.state), seen);
		}
		ck_assert_msg(test_now_ns() < deadline, "still %s after 30 s",
			      kvr_peer_state_name(p.state));
		test_sleep_ms(1);
	}
}

START_TEST(test_dumping_core_is_a_state_of_its_own)
{
	const char *why = no_core();
	int seen = 0;

	if (why) {
		test_skip(why);
		return;
	}
	/* A fast disk gets more to do. */
	for (dump_bytes = 192ull << 20; !seen && dump_bytes < 2ull << 30; dump_bytes *= 2) {
		struct member m = member_start(member_crashes, 0);
		struct kvr_group *l = create();
		int status;

		member_ready(&m);
		member_tell(&m, 'c');
		seen = watch_dump(l, 0);
		peer_goes(l, 0);
		ck_assert_int_eq(kvr_group_watch_ranks(l), -EOWNERDEAD);
		status = test_reap(m.pid, 20000);
		close(m.to);
		close(m.from);
		kvr_group_close(l);
		ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "status %#x",
			      status);
		if (!WCOREDUMP(status)) {
			test_skip("the kernel wrote no core dump");
			return;
		}
	}
	ck_assert_int_gt(seen, 0);
}
END_TEST

/* --- a declared long phase --- */

START_TEST(test_declared_phase_is_in_the_sentences)
{
	struct kvr_message msg;
	struct end l = { 0 }, r = { 0 };
	uint64_t until = test_deadline_ms(100000);
	struct kvr_peer p;

	opts.ranks = 1;
	ck_assert_int_eq(end_lead(name, &l), 0);
	ck_assert_int_eq(end_join(name, 0, &r), 0);
	ck_assert_int_eq(kvr_group_phase(l.g, "compile", until), 0);
	p = peer_of(r.g, KVR_LEADER);
	ck_assert_str_eq(p.phase, "compile");
	ck_assert_uint_eq(p.phase_until_ns, until);
	ck_assert_int_eq(kvr_channels_take(r.c, CH, test_deadline_ms(20), &msg), -ETIMEDOUT);
	explained("in the long phase \"compile\" for ");
	ck_assert_int_eq(try_create(), -EBUSY);
	explained("in the long phase \"compile\" for ");
	ck_assert_int_eq(kvr_group_phase(r.g, "graph capture that takes too long", until), 0);
	fill_ring(&l, 0);
	ck_assert_int_eq(end_publish(&l, 0, 20), -ETIMEDOUT);
	explained("in the long phase \"graph capture that take\" for ");
	/* Over, but not ended. */
	ck_assert_int_eq(kvr_group_phase(r.g, "warm-up", test_now_ns() - 1), 0);
	ck_assert_int_eq(end_publish(&l, 0, 20), -ETIMEDOUT);
	explained("its long phase \"warm-up\" should have ended");
	ck_assert_int_eq(kvr_group_phase(r.g, NULL, 0), 0);
	ck_assert_int_eq(end_publish(&l, 0, 20), -ETIMEDOUT);
	ck_assert_ptr_null(strstr(kvr_explain(), "long phase"));
	p = peer_of(l.g, 0);
	ck_assert(p.phase_until_ns == 0 && !p.phase[0]);
	/* It says nothing about life. */
	peer_is(l.g, 0, KVR_PEER_ALIVE);
	end_close(&r);
	end_close(&l);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("group_peers");
	TCase *t = tcase_create("peers");

	tcase_set_timeout(t, 60);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, test_stopped_leader_is_said_to_be_stopped);
	tcase_add_test(t, test_stopped_rank_is_said_to_be_stopped);
	tcase_add_loop_test(t, test_rank_stopped_for_longer_than_its_deadline_goes_on, 0, 2);
	tcase_add_test(t, test_zombie_is_dead);
	tcase_add_test(t, test_states_from_absent_to_left);
	tcase_add_loop_test(t, test_equal_pids_of_two_namespaces_are_not_mixed_up, 0, 2);
	tcase_add_test(t, test_leader_of_another_namespace_is_not_killed);
	tcase_add_loop_test(t, test_another_process_with_the_same_number_is_not_it, 0, 2);
	tcase_add_test(t, test_dumping_core_is_a_state_of_its_own);
	tcase_add_test(t, test_declared_phase_is_in_the_sentences);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
