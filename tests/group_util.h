/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members of a group as real processes. A member is forked, does one thing, and reports through a
 * pipe; it dies with the test, so that a failed assertion leaves nobody behind.
 */
#ifndef TESTS_GROUP_UTIL_H
#define TESTS_GROUP_UTIL_H

#include "harness.h"

#include <poll.h>
#include <sys/prctl.h>

#include "err.h"
#include "group.h"
#include "shm.h"

struct report {
	int rc;
	uint64_t ns; /* when */
	uint64_t epoch;
	char why[900];
};

struct member {
	pid_t pid;
	int from, to; /* pipes, the test's ends */
	int in, out;  /* the member's */
	uint32_t rank;
};

/* Each test has a directory, a name in it, and options for a small group. */
static char dir[128], name[48], path[KVR_SHM_PATH];
static struct kvr_group_opts opts;

static inline void setup(void)
{
	test_tmpdir(dir, sizeof dir);
	test_name(name, sizeof name, "group");
	ck_assert_int_eq(kvr_shm_path(path, sizeof path, dir, name, KVR_SHM_SEGMENT, 0), 0);
	opts = (struct kvr_group_opts){ .size = sizeof opts,
					.dir = dir,
					.ranks = 4,
					.ring_bytes = 1024,
					.ops = 16,
					.events = 16,
					.bulk_bytes = 4096,
					.event_fd = -1 };
}

static inline void teardown(void)
{
	test_rmdir(dir);
}

static inline struct kvr_group *create(void)
{
	struct kvr_group *g = NULL;

	ck_assert_msg(!kvr_group_create(name, &opts, &g), "%s", kvr_explain());
	return g;
}

static inline struct kvr_group *attach(uint32_t rank)
{
	struct kvr_group *g = NULL;

	ck_assert_msg(!kvr_group_attach(name, rank, &opts, test_deadline_ms(3000), &g), "%s",
		      kvr_explain());
	return g;
}

/* Attaches for a moment: 0, or why not. */
static inline int try_attach(uint32_t rank, uint64_t ms)
{
	struct kvr_group *untouched = (void *)&opts, *g = untouched;
	int rc = kvr_group_attach(name, rank, &opts, test_deadline_ms(ms), &g);

	if (!rc)
		kvr_group_close(g);
	else
		ck_assert_ptr_eq(g, untouched);
	return rc;
}

static inline int try_create(void)
{
	struct kvr_group *untouched = (void *)&opts, *g = untouched;
	int rc = kvr_group_create(name, &opts, &g);

	if (!rc)
		kvr_group_close(g);
	else
		ck_assert_ptr_eq(g, untouched);
	return rc;
}

static inline void explained(const char *text)
{
	ck_assert_msg(strstr(kvr_explain(), text), "\"%s\" is not in: %s", text, kvr_explain());
}

static inline void on_alarm(int sig)
{
	(void)sig;
}

/* In a member: tells the test how something went. */
static inline void member_report(struct member *m, int rc, struct kvr_group *g)
{
	struct report r = { .rc = rc, .ns = test_now_ns(), .epoch = g ? kvr_group_epoch(g) : 0 };

	snprintf(r.why, sizeof r.why, "%s", rc < 0 ? kvr_explain() : "");
	if (write(m->out, &r, sizeof r) != sizeof r)
		_exit(98);
}

/* In a member: the test's next order, a letter; 0 for the end. */
static inline char member_order(struct member *m)
{
	char c = 0;

	while (read(m->in, &c, 1) < 0 && errno == EINTR)
		;
	return c == 'q' ? 0 : c;
}

static inline struct member member_start(int (*run)(struct member *), uint32_t rank)
{
	struct member m = { .rank = rank };
	int up[2], down[2];

	signal(SIGPIPE, SIG_IGN); /* a member may have ended already */
	ck_assert_int_eq(pipe2(up, O_CLOEXEC), 0);
	ck_assert_int_eq(pipe2(down, O_CLOEXEC), 0);
	m.from = up[0], m.out = up[1], m.in = down[0], m.to = down[1];
	m.pid = fork();
	ck_assert_int_ge(m.pid, 0);
	if (!m.pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(m.from);
		close(m.to);
		_exit(run(&m));
	}
	close(m.out);
	close(m.in);
	return m;
}

/* The next report, within 10 s. */
static inline struct report member_hears(struct member *m)
{
	struct pollfd p = { .fd = m->from, .events = POLLIN };
	struct report r = { 0 };

	ck_assert_msg(poll(&p, 1, 10000) == 1, "no report from pid %d within 10 s", (int)m->pid);
	ck_assert_msg(read(m->from, &r, sizeof r) == sizeof r, "pid %d ended without a report",
		      (int)m->pid);
	return r;
}

static inline void member_tell(struct member *m, char order)
{
	ck_assert_int_eq(write(m->to, &order, 1), 1);
}

/* Lets it end by itself; it must succeed. */
static inline void member_end(struct member *m)
{
	int status;

	/* Members forked later hold the pipe, too: closing it would say nothing. */
	if (write(m->to, "q", 1) != 1)
		ck_assert_int_eq(errno, EPIPE);
	close(m->to);
	status = test_reap(m->pid, 10000);
	ck_assert_msg(!status, "member %d ended with status %#x", (int)m->pid, status);
	close(m->from);
}

static inline void member_kill(struct member *m)
{
	ck_assert_int_eq(kill(m->pid, SIGKILL), 0);
	test_reap(m->pid, 20000);
	close(m->to);
	close(m->from);
}

/* A leader: reports, then obeys: 'w' watch ranks until the epoch fails, 'f' fail it, 'x' exit. */
static inline int member_leader(struct member *m)
{
	struct kvr_group *g = NULL;
	int rc = kvr_group_create(name, &opts, &g), i;
	char order;

	member_report(m, rc, g);
	if (rc)
		return 0;
	while ((order = member_order(m))) {
		if (order == 'x')
			_exit(0);
		rc = 0;
		for (i = 0; order == 'w' && !rc && i < 5000; i++) {
			rc = kvr_group_watch_ranks(g);
			test_sleep_ms(1);
		}
		if (order == 'f')
			rc = kvr_group_fail(g, KVR_MAX_RANKS, -EIO);
		member_report(m, rc, g);
	}
	kvr_group_close(g);
	return 0;
}

static inline int never(void *arg)
{
	(void)arg;
	return 0;
}

/* A rank: attaches, reports, and on 'w' waits for what never comes, reports again. */
static inline int member_rank(struct member *m)
{
	struct kvr_group *g = NULL;
	int rc = kvr_group_attach(name, m->rank, &opts, test_deadline_ms(8000), &g);

	member_report(m, rc, g);
	if (rc)
		return 0;
	while (member_order(m) == 'w') {
		kvr_group_enter(g, KVR_CALL_WAIT_STORE, 0);
		rc = kvr_group_wait(g, never, NULL, test_deadline_ms(8000), "the end of the test");
		kvr_group_leave(g, KVR_CALL_WAIT_STORE, 0, NULL, rc);
		member_report(m, rc, g);
	}
	kvr_group_close(g);
	return 0;
}

static inline struct member start_leader(void)
{
	struct member m = member_start(member_leader, KVR_LEADER);
	struct report r = member_hears(&m);

	ck_assert_msg(!r.rc, "create: %d %s", r.rc, r.why);
	return m;
}

static inline struct member start_rank(uint32_t rank)
{
	struct member m = member_start(member_rank, rank);
	struct report r = member_hears(&m);

	ck_assert_msg(!r.rc, "attach: %d %s", r.rc, r.why);
	return m;
}

static inline int has_text(const struct report *r, const char *fmt, long v)
{
	char text[64];

	snprintf(text, sizeof text, fmt, v);
	return strstr(r->why, text) != NULL;
}

static inline int file_there(enum kvr_shm_kind kind, uint64_t epoch)
{
	char file[KVR_SHM_PATH];

	ck_assert_int_eq(kvr_shm_path(file, sizeof file, opts.dir, name, kind, epoch), 0);
	return !access(file, F_OK);
}

static inline void count_one(void *arg, const char *file)
{
	(void)file;
	++*(int *)arg;
}

/* kvring's files in the test's directory. */
static inline int files_in_dir(void)
{
	int n = 0;

	ck_assert_int_ge(kvr_shm_list(dir, count_one, &n), 0);
	return n;
}

#endif
