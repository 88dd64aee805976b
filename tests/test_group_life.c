/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Death, shutdown and takeover. Whoever waits for a process that is gone learns it soon, with a
 * sentence that names it, and the next epoch finds a clean place whatever the last one was doing.
 * Time bounds are there to tell "soon" from "never", not to measure.
 */
#include "group_util.h"

#include <sys/mman.h>
#include <sys/syscall.h>

#include "atomic.h"
#include "point.h"
#include "util.h"

/* The thread sanitizer alone sleeps a second when a process exits. */
#define SOON_NS ((KVR_TEST_TSAN ? 4 : 1) * 1000000000ull)

/* Starts three ranks and lets them wait. */
static void start_waiters(struct member *r)
{
	for (uint32_t i = 0; i < 3; i++) {
		r[i] = start_rank(i);
		member_tell(&r[i], 'w');
	}
	test_sleep_ms(30); /* so that they sleep */
}

static void waiters_hear(struct member *r, int first, int rc, const char *fmt, long v,
			 uint64_t since)
{
	for (int i = first; i < 3; i++) {
		struct report got = member_hears(&r[i]);

		ck_assert_msg(got.rc == rc && has_text(&got, fmt, v), "rank %d: %d %s", i, got.rc,
			      got.why);
		ck_assert_msg(got.ns < since + SOON_NS, "rank %d: after %llu ms", i,
			      (unsigned long long)(got.ns - since) / 1000000);
	}
}

static void end_waiters(struct member *r, int first)
{
	for (int i = first; i < 3; i++)
		member_end(&r[i]);
}

START_TEST(test_dead_leader_ends_all_waits)
{
	struct member l = start_leader(), r[3];
	uint64_t t;

	start_waiters(r);
	t = test_now_ns();
	kill(l.pid, SIGKILL);
	waiters_hear(r, 0, -EOWNERDEAD, "pid %ld, dead", l.pid, t);
	end_waiters(r, 0);
	member_kill(&l);
	ck_assert(file_there(KVR_SHM_SEGMENT, 0)); /* the dead one's is evidence */
}
END_TEST

/* A rank that never looks by itself: only a ring, or the kernel, ends its sleep. */
static int member_deep_sleeper(struct member *m)
{
	struct kvr_group *g = NULL;
	int rc = kvr_group_attach(name, m->rank, &opts, test_deadline_ms(8000), &g);

	if (!rc)
		g->waiter.backstop_ns = UINT64_MAX / 4;
	member_report(m, rc, g);
	member_order(m);
	rc = rc ? rc : kvr_group_wait(g, never, NULL, test_deadline_ms(60000), "the end");
	member_report(m, rc, g);
	member_order(m);
	kvr_group_close(g);
	return 0;
}

/* The kernel wakes one of those who sleep on the word of the dead; that one wakes the others. */
START_TEST(test_death_wakes_all_who_sleep_without_a_back_stop)
{
	struct member l, r[3];
	struct report got;

	if (syscall(SYS_futex_waitv, NULL, 0, 0, NULL, 0) < 0 && errno != EINVAL) {
		test_skip("this kernel or sandbox has no futex_waitv()");
		return;
	}
	l = start_leader();
	for (uint32_t i = 0; i < 3; i++) {
		r[i] = member_start(member_deep_sleeper, i);
		got = member_hears(&r[i]);
		ck_assert_msg(!got.rc, "%s", got.why);
		member_tell(&r[i], 'w');
	}
	test_sleep_ms(100); /* so that they sleep */
	kill(l.pid, SIGKILL);
	for (uint32_t i = 0; i < 3; i++) {
		got = member_hears(&r[i]);
		ck_assert_msg(got.rc == -EOWNERDEAD, "rank %u: %d %s", i, got.rc, got.why);
		member_end(&r[i]);
	}
	member_kill(&l);
}
END_TEST

START_TEST(test_dead_rank_is_named_to_all)
{
	struct member l = start_leader(), r[3];
	struct report got;
	char text[64];
	uint64_t t;

	start_waiters(r);
	member_tell(&l, 'w');
	t = test_now_ns();
	kill(r[0].pid, SIGKILL);
	snprintf(text, sizeof text, "rank 0 (pid %%ld, dead");
	waiters_hear(r, 1, -EOWNERDEAD, text, r[0].pid, t);
	got = member_hears(&l);
	ck_assert_int_eq(got.rc, -EOWNERDEAD);
	ck_assert_msg(has_text(&got, text, r[0].pid), "%s", got.why);
	end_waiters(r, 1);
	member_kill(&r[0]);
	member_end(&l);
	/* What was declared over stays to be looked at. */
	ck_assert_int_eq(files_in_dir(), 1);
	ck_assert_int_eq(kvr_group_remove(name, dir), 0);
	ck_assert_int_eq(files_in_dir(), 0);
	ck_assert_int_eq(kvr_group_remove(name, dir), -ENOENT);
}
END_TEST

START_TEST(test_shutdown_ends_all_waits)
{
	struct member l = start_leader(), r[3];
	uint64_t t;

	start_waiters(r);
	t = test_now_ns();
	member_end(&l);
	waiters_hear(r, 0, -ESHUTDOWN, "pid %ld", l.pid, t);
	end_waiters(r, 0);
	ck_assert_int_eq(files_in_dir(), 0);
}
END_TEST

START_TEST(test_exit_without_close_is_a_death)
{
	struct member l = start_leader();
	struct kvr_group *r = attach(0);
	uint64_t t = test_now_ns();

	member_tell(&l, 'x');
	ck_assert_int_eq(kvr_group_wait(r, never, NULL, test_deadline_ms(5000), "x"), -EOWNERDEAD);
	ck_assert_uint_lt(test_now_ns(), t + SOON_NS);
	kvr_group_close(r);
	member_kill(&l);
}
END_TEST

START_TEST(test_declared_failure_reaches_all_and_the_first_cause_wins)
{
	struct member l = start_leader(), r[3];
	struct kvr_group *g;
	uint64_t t;

	start_waiters(r);
	t = test_now_ns();
	member_tell(&l, 'f');
	waiters_hear(r, 0, -EIO, "epoch %ld over", 1, t);
	member_hears(&l);
	end_waiters(r, 0);
	/* Still there, but over: nobody can join it. */
	ck_assert_int_eq(kvr_group_attach(name, 3, &opts, test_deadline_ms(30), &g), -EIO);
	member_end(&l);

	g = create();
	ck_assert_int_eq(kvr_group_fail(g, 9, -EIO), -EINVAL);
	ck_assert_int_eq(kvr_group_fail(g, 1, 5), -EINVAL);
	ck_assert_int_eq(kvr_group_fail(g, 2, -ETIMEDOUT), 0);
	ck_assert_int_eq(kvr_group_fail(g, 1, -EIO), 0);
	/* A cause that means "again" would be tried again for ever. */
	ck_assert_int_eq(kvr_group_check(g), -ECANCELED);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "rank 2 (not attached)"));
	ck_assert_int_eq(kvr_group_wait(g, never, NULL, test_deadline_ms(50), "x"), -ECANCELED);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "rank 2 (not attached)"));
	kvr_group_close(g);
}
END_TEST

START_TEST(test_rank_cannot_declare_failure)
{
	struct kvr_group *l = create(), *r = attach(0);

	ck_assert_int_eq(kvr_group_fail(r, 1, -EIO), -EINVAL);
	ck_assert_int_eq(kvr_group_check(r), 0);
	kvr_group_close(r);
	kvr_group_close(l);
}
END_TEST

struct last_look {
	struct kvr_group *g;
	pid_t leader;
	int calls;
};

/* The first look finds nothing; then the leader finishes what was awaited, and dies. */
static int finishes_and_dies(void *arg)
{
	struct last_look *w = arg;

	if (w->calls++)
		return 1;
	kill(w->leader, SIGKILL);
	while (kvr_life_peek(&w->g->leader->proc.life) != KVR_LIFE_DEAD)
		test_sleep_ms(1);
	return 0;
}

START_TEST(test_what_was_finished_is_drained_before_the_death)
{
	struct member l = start_leader();
	struct kvr_group *g = attach(0);
	struct last_look w = { .g = g, .leader = l.pid };

	ck_assert_int_eq(kvr_group_wait(g, finishes_and_dies, &w, test_deadline_ms(5000), "x"), 1);
	ck_assert_int_eq(kvr_group_wait(g, never, NULL, test_deadline_ms(5000), "more"),
			 -EOWNERDEAD);
	explained("the leader of epoch 1 died");
	kvr_group_close(g);
	member_kill(&l);
}
END_TEST

START_TEST(test_stopped_leader_is_not_dead)
{
	struct member l = start_leader();
	struct kvr_group *r = attach(0), *g;

	kill(l.pid, SIGSTOP);
	ck_assert_int_eq(kvr_group_wait(r, never, NULL, test_deadline_ms(250), "x"), -ETIMEDOUT);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "stopped"));
	ck_assert_int_eq(kvr_group_create(name, &opts, &g), -EBUSY);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "stopped"));
	ck_assert_int_eq(kvr_group_remove(name, dir), -EBUSY);
	kill(l.pid, SIGCONT);
	kvr_group_close(r);
	member_end(&l);
}
END_TEST

START_TEST(test_takeover_of_a_dead_group)
{
	struct member l = start_leader(), r[3];
	struct kvr_group *old, *l2, *r2;
	char pool[KVR_SHM_PATH];
	uint64_t t;
	int fd;

	kvr_shm_path(pool, sizeof pool, dir, name, KVR_SHM_POOL, 0);
	fd = kvr_shm_create(dir, 4096);
	ck_assert_int_eq(kvr_shm_publish(fd, pool), 0);
	close(fd);
	start_waiters(r);
	old = attach(3);
	/* Stopped, so that they are still in that wait when the new leader comes. */
	for (int i = 0; i < 3; i++)
		kill(r[i].pid, SIGSTOP);
	member_kill(&l);
	t = test_now_ns();
	l2 = create();
	ck_assert_uint_eq(kvr_group_epoch(l2), 2);
	ck_assert_mem_eq(l2->header.uuid, old->header.uuid, 16);
	ck_assert_int_eq(access(pool, F_OK), -1);
	ck_assert(file_there(KVR_SHM_RETIRED, 1));
	for (int i = 0; i < 3; i++)
		kill(r[i].pid, SIGCONT);
	waiters_hear(r, 0, -ESTALE, "epoch %ld was made", 2, t);
	ck_assert_int_eq(kvr_group_check(old), -ESTALE);
	r2 = attach(3);
	ck_assert_uint_eq(kvr_group_epoch(r2), 2);
	ck_assert_int_eq(kvr_group_check(r2), 0);
	end_waiters(r, 0);
	/* The old handle's close leaves the new epoch alone. */
	kvr_group_close(old);
	ck_assert_int_eq(kvr_group_check(r2), 0);
	ck_assert_int_eq(kvr_group_watch_ranks(l2), 0);
	kvr_group_close(r2);
	kvr_group_close(l2);
	ck_assert(file_there(KVR_SHM_RETIRED, 1));
	ck_assert_int_eq(files_in_dir(), 1);
}
END_TEST

START_TEST(test_takeover_keeps_the_last_two)
{
	for (uint64_t e = 1; e <= 5; e++) {
		struct member l = start_leader();
		struct kvr_group *g = attach(0);

		ck_assert_uint_eq(kvr_group_epoch(g), e);
		for (uint64_t i = 1; i < e; i++)
			ck_assert_int_eq(file_there(KVR_SHM_RETIRED, i), i + 2 >= e);
		kvr_group_close(g);
		member_kill(&l);
		test_sleep_ms(12);
	}
	kvr_group_close(create());
	ck_assert_int_eq(files_in_dir(), 2);
}
END_TEST

START_TEST(test_clean_end_starts_at_epoch_one)
{
	struct member l = start_leader();
	struct kvr_group *g;

	member_end(&l);
	g = create();
	ck_assert_uint_eq(kvr_group_epoch(g), 1);
	kvr_group_close(g);
}
END_TEST

START_TEST(test_takeover_of_another_geometry)
{
	struct member l = start_leader();
	struct kvr_group *old = attach(1), *g;

	member_kill(&l);
	opts.ranks = 64;
	opts.ring_bytes = 4096;
	g = create();
	ck_assert_uint_eq(kvr_group_epoch(g), 2);
	ck_assert_int_eq(kvr_group_check(old), -ESTALE);
	kvr_group_close(old);
	old = attach(63);
	kvr_group_close(old);
	kvr_group_close(g);
}
END_TEST

START_TEST(test_failed_takeover_harms_nothing)
{
	struct member l = start_leader();
	struct kvr_group *r = attach(0), *g;

	member_kill(&l);
	opts.event_fd = 999;
	ck_assert_int_eq(kvr_group_create(name, &opts, &g), -EINVAL);
	opts.event_fd = -1;
	ck_assert_int_eq(kvr_group_check(r), -EOWNERDEAD); /* not -ESTALE: there is no newer one */
	g = create();
	ck_assert_uint_eq(kvr_group_epoch(g), 2);
	ck_assert_int_eq(kvr_group_check(r), -ESTALE);
	kvr_group_close(r);
	kvr_group_close(g);
}
END_TEST

START_TEST(test_attach_to_a_dead_group)
{
	struct kvr_model theirs = { .layers = 80 }, ours = { .layers = 61 };
	struct member l, r, l2;
	struct kvr_group *g;
	struct report got;

	opts.model = &theirs;
	l = start_leader();
	member_kill(&l);
	/* Also with another model: the next leader may have it, and this one is no more. */
	opts.model = &ours;
	ck_assert_int_eq(kvr_group_attach(name, 0, &opts, test_deadline_ms(50), &g), -EOWNERDEAD);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "dead"));
	r = member_start(member_rank, 0);
	test_sleep_ms(50);
	l2 = start_leader();
	got = member_hears(&r);
	ck_assert_msg(!got.rc, "%s", got.why);
	ck_assert_uint_eq(got.epoch, 2);
	member_end(&r);
	member_end(&l2);
}
END_TEST

START_TEST(test_restarted_rank_gets_into_the_next_epoch)
{
	struct member l = start_leader(), r = start_rank(2), again;
	struct kvr_group *g;
	struct report got;

	member_kill(&r);
	ck_assert_int_eq(kvr_group_attach(name, 2, &opts, test_deadline_ms(30), &g), -EBUSY);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "died"));
	again = member_start(member_rank, 2);
	member_tell(&l, 'w');
	ck_assert_int_eq(member_hears(&l).rc, -EOWNERDEAD);
	member_end(&l);
	g = create();
	got = member_hears(&again);
	ck_assert_msg(!got.rc, "%s", got.why);
	member_end(&again);
	kvr_group_close(g);
}
END_TEST

/* A rank whose child goes on: it inherits mappings, descriptors and locks, but not the life. */
static int member_with_child(struct member *m)
{
	struct kvr_group *g;
	int rc = kvr_group_attach(name, m->rank, &opts, test_deadline_ms(8000), &g);
	pid_t pid;

	if (rc)
		return 1;
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, 0);
		alarm(20);
		while (member_order(m) != 'e')
			;
		_exit(0);
	}
	member_report(m, (int)pid, g);
	pause();
	return 0;
}

START_TEST(test_death_is_seen_although_a_forked_child_lives)
{
	struct member l = start_leader();
	struct member r = member_start(member_with_child, 1);
	pid_t child = member_hears(&r).rc;
	uint64_t t = test_now_ns();
	struct report got;

	member_tell(&l, 'w');
	kill(r.pid, SIGKILL);
	got = member_hears(&l);
	ck_assert_int_eq(got.rc, -EOWNERDEAD);
	ck_assert_uint_lt(got.ns, t + SOON_NS);
	ck_assert_int_eq(kill(child, 0), 0);
	member_tell(&r, 'e');
	member_kill(&r);
	member_end(&l);
}
END_TEST

#define BIG (2ull << 30)

static int member_big(struct member *m)
{
	struct kvr_group *g;
	uint8_t *p = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return 1;
	madvise(p, BIG, MADV_HUGEPAGE);
	madvise(p, BIG, MADV_POPULATE_WRITE); /* faster where the kernel has it */
	for (uint64_t i = 0; i < BIG; i += 4096)
		p[i] = 1;
	if (kvr_group_attach(name, m->rank, &opts, test_deadline_ms(8000), &g))
		return 1;
	member_report(m, 0, g);
	pause();
	return 0;
}

static uint64_t mem_available(void)
{
	unsigned long long kib = 0;
	FILE *f = fopen("/proc/meminfo", "re");
	char line[128];

	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib << 10;
}

START_TEST(test_death_of_a_big_process_is_seen_before_its_memory_is_freed)
{
	struct member r;
	struct kvr_group *l;
	uint64_t t, seen;

	if (KVR_TEST_ASAN || KVR_TEST_TSAN) {
		test_skip("2 GiB of memory under a sanitizer");
		return;
	}
	if (mem_available() < 4ull << 30) {
		test_skip("less than 4 GiB of memory are available");
		return;
	}
	l = create();
	r = member_start(member_big, 0);
	if (poll(&(struct pollfd){ .fd = r.from, .events = POLLIN }, 1, 10000) != 1) {
		test_skip("2 GiB are not filled within 10 s");
		member_kill(&r);
		kvr_group_close(l);
		return;
	}
	t = test_now_ns();
	kill(r.pid, SIGKILL);
	while (!kvr_group_watch_ranks(l) && test_now_ns() < t + 10 * SOON_NS)
		test_sleep_ms(1);
	seen = test_now_ns() - t;
	ck_assert_int_eq(kvr_group_check(l), -EOWNERDEAD);
	ck_assert_msg(seen < SOON_NS, "seen after %llu ms", (unsigned long long)seen / 1000000);
	member_kill(&r);
	kvr_group_close(l);
}
END_TEST

/* --- killed at each point of the protocol --- */

static enum kvr_point die_at;

static void point(enum kvr_point at, uint32_t arg)
{
	(void)arg;
	if (at == die_at)
		raise(SIGKILL);
}

static int member_dies(struct member *m)
{
	struct kvr_group *g;
	int rc;

	kvr_point_hook = point;
	rc = m->rank == KVR_LEADER
		     ? kvr_group_create(name, &opts, &g)
		     : kvr_group_attach(name, m->rank, &opts, test_deadline_ms(2000), &g);
	if (rc)
		return 1;
	kvr_group_close(g);
	return 0;
}

static void die(enum kvr_point at, uint32_t rank)
{
	struct member m;
	int status;

	die_at = at;
	m = member_start(member_dies, rank);
	status = test_reap(m.pid, 5000);
	ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "%s: status %#x",
		      kvr_point_name(at), status);
	close(m.to);
	close(m.from);
}

static const enum kvr_point leader_points[] = {
	KVR_POINT_create_locked, KVR_POINT_create_made,	   KVR_POINT_create_held,
	KVR_POINT_create_marked, KVR_POINT_create_retired, KVR_POINT_create_published,
	KVR_POINT_leave_told,	 KVR_POINT_leave_unlinked
};

/* The next leader gets in, and a rank after it, whatever the one before was doing. */
static void place_is_clean(enum kvr_point at, int files)
{
	const char *after = kvr_point_name(at);
	struct kvr_group *l = NULL, *r = NULL;
	int rc = kvr_group_create(name, &opts, &l);

	ck_assert_msg(!rc, "after %s: %s", after, kvr_explain());
	rc = kvr_group_attach(name, 0, &opts, test_deadline_ms(2000), &r);
	ck_assert_msg(!rc, "after %s: %s", after, kvr_explain());
	ck_assert_int_eq(kvr_group_check(r), 0);
	kvr_group_close(r);
	kvr_group_close(l);
	ck_assert_msg(files_in_dir() <= files, "after %s: %d files", after, files_in_dir());
}

START_TEST(test_leader_killed_anywhere_in_create)
{
	for (size_t i = 0; i < KVR_ARRAY_LEN(leader_points); i++) {
		if (leader_points[i] == KVR_POINT_create_marked ||
		    leader_points[i] == KVR_POINT_create_retired)
			continue; /* only with a predecessor */
		die(leader_points[i], KVR_LEADER);
		place_is_clean(leader_points[i], 2);
	}
}
END_TEST

START_TEST(test_leader_killed_anywhere_in_takeover)
{
	for (size_t i = 0; i < KVR_ARRAY_LEN(leader_points); i++) {
		struct member l = start_leader(), r = start_rank(1);
		struct report got;

		member_kill(&l);
		die(leader_points[i], KVR_LEADER);
		member_tell(&r, 'w');
		got = member_hears(&r);
		ck_assert_msg(got.rc == -EOWNERDEAD || got.rc == -ESTALE, "%s", got.why);
		place_is_clean(leader_points[i], 2);
		member_end(&r);
	}
}
END_TEST

START_TEST(test_rank_killed_anywhere_in_attach)
{
	static const enum kvr_point points[] = { KVR_POINT_attach_claimed,
						 KVR_POINT_attach_entered };

	for (size_t i = 0; i < KVR_ARRAY_LEN(points); i++) {
		struct member l = start_leader();
		struct kvr_group *g;
		struct report got;

		die(points[i], 2);
		ck_assert_int_eq(kvr_group_attach(name, 2, &opts, 0, &g), -EBUSY);
		member_tell(&l, 'w');
		got = member_hears(&l);
		ck_assert_int_eq(got.rc, -EOWNERDEAD);
		ck_assert_msg(has_text(&got, "rank %ld (pid", 2), "%s", got.why);
		member_end(&l);
		ck_assert_int_eq(kvr_group_remove(name, dir), 0);
		ck_assert_int_eq(files_in_dir(), 0);
	}
}
END_TEST

START_TEST(test_segment_of_another_boot_is_dead)
{
	struct kvr_group *l = create(), *g;
	struct kvr_seg_header h = l->header;
	int fd = open(path, O_RDWR | O_CLOEXEC);

	/* In a directory on disk, after a power cut: the word still says "alive". */
	h.boot_id[3] ^= 1;
	h.checksum = kvr_header_sum(&h);
	ck_assert_int_eq(pwrite(fd, &h, sizeof h, 0), sizeof h);
	close(fd);
	ck_assert_int_eq(kvr_group_attach(name, 0, &opts, test_deadline_ms(20), &g), -EOWNERDEAD);
	g = create();
	ck_assert_uint_eq(kvr_group_epoch(g), 2);
	ck_assert_int_eq(kvr_group_check(l), -ESTALE);
	kvr_group_close(l);
	kvr_group_close(g);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("group_life");
	TCase *t = tcase_create("life");

	tcase_set_timeout(t, 20); /* 2 GiB want to be written and freed */
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, test_dead_leader_ends_all_waits);
	tcase_add_test(t, test_death_wakes_all_who_sleep_without_a_back_stop);
	tcase_add_test(t, test_dead_rank_is_named_to_all);
	tcase_add_test(t, test_shutdown_ends_all_waits);
	tcase_add_test(t, test_exit_without_close_is_a_death);
	tcase_add_test(t, test_declared_failure_reaches_all_and_the_first_cause_wins);
	tcase_add_test(t, test_rank_cannot_declare_failure);
	tcase_add_test(t, test_what_was_finished_is_drained_before_the_death);
	tcase_add_test(t, test_stopped_leader_is_not_dead);
	tcase_add_test(t, test_takeover_of_a_dead_group);
	tcase_add_test(t, test_takeover_keeps_the_last_two);
	tcase_add_test(t, test_clean_end_starts_at_epoch_one);
	tcase_add_test(t, test_takeover_of_another_geometry);
	tcase_add_test(t, test_failed_takeover_harms_nothing);
	tcase_add_test(t, test_attach_to_a_dead_group);
	tcase_add_test(t, test_restarted_rank_gets_into_the_next_epoch);
	tcase_add_test(t, test_death_is_seen_although_a_forked_child_lives);
	tcase_add_test(t, test_death_of_a_big_process_is_seen_before_its_memory_is_freed);
	tcase_add_test(t, test_leader_killed_anywhere_in_create);
	tcase_add_test(t, test_leader_killed_anywhere_in_takeover);
	tcase_add_test(t, test_rank_killed_anywhere_in_attach);
	tcase_add_test(t, test_segment_of_another_boot_is_dead);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
