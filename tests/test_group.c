/* SPDX-License-Identifier: Apache-2.0 */
/* Create and close, waiting, counting, the watcher: what a member of a group can rely on. */
#include "group_util.h"

#include <dirent.h>
#include <sys/eventfd.h>
#include <sched.h>
#include <sys/mount.h>

#include "atomic.h"
#include "group_member.h"
#include "group_watcher.h"

START_TEST(test_create_attach_close)
{
	const char config[] = "the shape and the pool";
	uint32_t len = 0, kind = 0;
	struct kvr_group *l, *r;

	opts.config = config;
	opts.config_len = sizeof config;
	opts.config_kind = 7;
	l = create();
	r = attach(0);
	ck_assert_uint_eq(kvr_group_epoch(l), 1);
	ck_assert_uint_eq(kvr_group_epoch(r), 1);
	ck_assert_uint_eq(kvr_group_ranks(r), 4);
	ck_assert_uint_eq(kvr_group_rank(r), 0);
	ck_assert_uint_eq(kvr_group_rank(l), UINT32_MAX);
	ck_assert_str_eq(kvr_group_config(r, &len, &kind), config);
	ck_assert_uint_eq(len, sizeof config);
	ck_assert_uint_eq(kind, 7);
	ck_assert_int_eq(kvr_group_check(l), 0);
	ck_assert_int_eq(kvr_group_check(r), 0);
	ck_assert_int_eq(kvr_group_watch_ranks(l), 0);
	ck_assert_int_eq(files_in_dir(), 1);
	kvr_group_close(r);
	ck_assert_int_eq(kvr_group_watch_ranks(l), 0);
	kvr_group_close(l);
	kvr_group_close(NULL);
	ck_assert_int_eq(files_in_dir(), 0);
}
END_TEST

START_TEST(test_works_in_the_default_directory)
{
	struct kvr_group *l, *r;

	opts.dir = NULL;
	l = create();
	r = attach(3);
	ck_assert(file_there(KVR_SHM_SEGMENT, 0));
	kvr_group_close(r);
	kvr_group_close(l);
	ck_assert(!file_there(KVR_SHM_SEGMENT, 0));
	ck_assert(!file_there(KVR_SHM_LOCK, 0));
}
END_TEST

START_TEST(test_close_removes_the_pool_name)
{
	char pool[KVR_SHM_PATH];
	struct kvr_group *l = create();
	int fd = kvr_shm_create(dir, 4096);

	kvr_shm_path(pool, sizeof pool, dir, name, KVR_SHM_POOL, 0);
	ck_assert_int_eq(kvr_shm_publish(fd, pool), 0);
	close(fd);
	kvr_group_close(l);
	ck_assert_int_eq(files_in_dir(), 0);
}
END_TEST

START_TEST(test_close_spares_the_files_of_a_newer_leader)
{
	struct kvr_group *l = create(), *newer;

	/* Somebody removes the file of a living leader; another one starts under that name. */
	ck_assert_int_eq(unlink(path), 0);
	newer = create();
	kvr_group_close(l);
	ck_assert_int_eq(try_attach(0, 100), 0);
	kvr_group_close(newer);
	ck_assert_int_eq(files_in_dir(), 0);
}
END_TEST

START_TEST(test_bad_options_are_named)
{
	struct kvr_group *g;

	opts.size = 8;
	ck_assert_int_eq(try_create(), -EINVAL);
	explained("size is 8");
	opts.size = sizeof opts;
	opts.ranks = 65;
	ck_assert_int_eq(try_create(), -EINVAL);
	explained("ranks is 65");
	opts.ranks = 4;
	opts.ring_bytes = 5000;
	ck_assert_int_eq(try_create(), -EINVAL);
	explained("ring_bytes");
	opts.ring_bytes = 0;
	opts.config_len = 5;
	ck_assert_int_eq(try_create(), -EINVAL);
	explained("config_len");
	opts.config_len = 0;
	opts.takeover = 3;
	ck_assert_int_eq(try_create(), -EINVAL);
	explained("takeover is 3");
	opts.takeover = 0;
	opts.setup = "tp_size=8\npp_size";
	ck_assert_int_eq(try_create(), -EINVAL);
	explained("\"pp_size\" is not name=value");
	opts.setup = NULL;
	opts.event_fd = 1000;
	ck_assert_int_eq(try_create(), -EINVAL);
	explained("event_fd 1000");
	opts.event_fd = 0;
	ck_assert_int_eq(kvr_group_create(name, NULL, &g), -EINVAL);
	ck_assert_int_eq(kvr_group_create("../x", &opts, &g), -EINVAL);
	ck_assert_int_eq(kvr_group_attach(name, 64, &opts, 0, &g), -EINVAL);
	explained("rank 64");
	ck_assert_int_eq(files_in_dir(), 0);
}
END_TEST

static int mount_and_create(struct member *m)
{
	struct kvr_group *g;
	char size[64];

	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("kvr-test", dir, "tmpfs", 0, "size=64k,mode=700"))
		return 77;
	if (kvr_group_create(name, &opts, &g) != -ENOSPC)
		return 1;
	opts.ranks = 1;
	opts.ring_bytes = 1024;
	opts.bulk_bytes = 4096;
	member_report(m, -ENOSPC, NULL);
	if (files_in_dir())
		return 2;
	/* Room was given back: a smaller group fits. */
	snprintf(size, sizeof size, "size=%dk,mode=700", 512);
	if (mount("kvr-test", dir, "tmpfs", MS_REMOUNT, size) || kvr_group_create(name, &opts, &g))
		return 3;
	kvr_group_close(g);
	return files_in_dir();
}

START_TEST(test_full_shared_memory_is_an_error_with_numbers)
{
	struct kvr_layout l;
	char bytes[32];
	struct member m;
	struct pollfd p;
	int status;

	ck_assert_int_eq(kvr_layout_init(&l, kvr_shm_page(), 4, 131072, 1024, 1024, 1048576), 0);
	opts.ring_bytes = opts.ops = opts.events = opts.bulk_bytes = 0;
	m = member_start(mount_and_create, 0);
	p = (struct pollfd){ .fd = m.from, .events = POLLIN };
	poll(&p, 1, 10000);
	if (p.revents & POLLIN) {
		struct report r = member_hears(&m);

		snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)l.total);
		ck_assert_msg(strstr(r.why, bytes) && strstr(r.why, "bytes are needed"), "%s",
			      r.why);
	}
	status = test_reap(m.pid, 10000);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		test_skip("no private mount namespace here (needs root)");
	else
		ck_assert_int_eq(status, 0);
}
END_TEST

START_TEST(test_create_over_a_living_leader_is_busy)
{
	struct member l = start_leader();
	char pid[32];

	ck_assert_int_eq(try_create(), -EBUSY);
	snprintf(pid, sizeof pid, "pid %d", (int)l.pid);
	explained(pid);
	ck_assert_int_eq(try_attach(0, 1000), 0);
	member_end(&l);
	ck_assert_int_eq(try_create(), 0);
}
END_TEST

START_TEST(test_signal_handlers_end_waits)
{
	struct sigaction sa = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	struct kvr_group *l, *r;

	sigaction(SIGALRM, &sa, NULL);
	ualarm(20000, 5000);
	ck_assert_int_eq(try_attach(0, 8000), -EINTR);
	explained("signal");
	ualarm(0, 0);
	l = create();
	r = attach(0);
	ualarm(20000, 5000);
	ck_assert_int_eq(kvr_group_wait(r, never, NULL, test_deadline_ms(8000), "the moon"),
			 -EINTR);
	ualarm(0, 0);
	explained("the moon");
	kvr_group_close(r);
	kvr_group_close(l);
}
END_TEST

static int set_flag(void *arg)
{
	return *(int *)arg;
}

START_TEST(test_wait_returns_what_ready_says)
{
	struct kvr_group *l = create(), *r = attach(1);
	int flag = 5;

	ck_assert_int_eq(kvr_group_wait(r, set_flag, &flag, 0, "x"), 5);
	flag = -ENOENT;
	ck_assert_int_eq(kvr_group_wait(r, set_flag, &flag, 0, "x"), -ENOENT);
	kvr_group_enter(r, KVR_CALL_TAKE, KVR_CH_STORE);
	kvr_group_enter(l, KVR_CALL_LOOKUP, 0);
	test_sleep_ms(20);
	ck_assert_int_eq(kvr_group_wait(r, never, NULL, test_deadline_ms(30), "request 7/0"),
			 -ETIMEDOUT);
	explained("request 7/0");
	explained("the leader (pid ");
	explained("alive, in lookup for ");
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(kvr_group_wait(r, never, NULL, 0, "x"), -ETIMEDOUT);
	explained("RemoveIPC");
	kvr_group_close(r);
	kvr_group_close(l);
}
END_TEST

START_TEST(test_calls_are_counted_and_recorded)
{
	struct kvr_request req = { .id = 77, .attempt = 2 };
	struct kvr_group *l = create(), *r = attach(1);
	const struct kvr_rank_page *p = kvr_group_rank_page(l, 1);
	struct kvr_event e[4];
	char text[200];

	kvr_group_describe(l, 0, text, sizeof text);
	ck_assert_str_eq(text, "rank 0 (not attached)");
	kvr_group_enter(r, KVR_CALL_TAKE, KVR_CH_STORE);
	ck_assert_uint_eq(kvr_load_relaxed32(&p->proc.in_call), KVR_CALL_TAKE);
	kvr_group_describe(l, 1, text, sizeof text);
	ck_assert_msg(strstr(text, "alive, in take of channel STORE for "), "%s", text);
	ck_assert_int_eq(kvr_group_leave(r, KVR_CALL_TAKE, KVR_CH_STORE, &req, -EPROTO), -EPROTO);
	ck_assert_uint_eq(kvr_load_relaxed32(&p->proc.in_call), 0);
	ck_assert_uint_eq(p->calls[KVR_CALL_TAKE], 1);
	ck_assert_uint_gt(p->proc.progress_ns, 0);
	ck_assert_uint_eq(kvr_recorder_last((const uint8_t *)p + l->layout.rank_rec, 16, -1, e, 4),
			  1);
	ck_assert_uint_eq(e[0].kind, KVR_EV_CALL);
	ck_assert_uint_eq(e[0].call, KVR_CALL_TAKE);
	ck_assert_uint_eq(e[0].request, 77);
	ck_assert_int_eq(e[0].result, -EPROTO);
	ck_assert_int_eq(kvr_group_phase(r, "graph capture of 40 layers", test_deadline_ms(90000)),
			 0);
	kvr_group_describe(l, 1, text, sizeof text);
	ck_assert_msg(strstr(text, "in the long phase \"graph capture of 40 lay\" for 90 s more"),
		      "%s", text);
	ck_assert_int_eq(kvr_group_phase(r, "compile", 1), 0);
	kvr_group_describe(l, 1, text, sizeof text);
	ck_assert_msg(strstr(text, "its long phase \"compile\" should have ended"), "%s", text);
	ck_assert_int_eq(kvr_group_phase(r, NULL, 0), 0);
	kvr_group_describe(l, 1, text, sizeof text);
	ck_assert_msg(!strstr(text, "phase"), "%s", text);
	kvr_group_close(r);
	kvr_group_describe(l, 1, text, sizeof text);
	ck_assert_msg(strstr(text, "left in good order"), "%s", text);
	kvr_group_describe(l, 9, text, sizeof text);
	ck_assert_str_eq(text, "rank 9 (there is none)");
	kvr_group_describe(l, KVR_LEADER, text, 10);
	ck_assert_str_eq(text, "the leade");
	kvr_group_close(l);
}
END_TEST

START_TEST(test_nonsense_in_pages_of_others_is_bounded)
{
	struct kvr_group *l = create(), *r = attach(0);
	struct kvr_proc *p = l->proc, *q = r->proc;
	char text[300];

	q->in_call = 0xdeadbeef;
	q->call_arg = q->state = UINT32_MAX;
	q->call_ns = q->progress_ns = q->phase_until = UINT64_MAX;
	kvr_group_describe(l, 0, text, sizeof text);
	q->in_call = KVR_CALL_TAKE;
	kvr_group_describe(l, 0, text, sizeof text);
	ck_assert_int_eq(kvr_group_watch_ranks(l), 0);
	q->state = KVR_PROC_ACTIVE;
	p->cause = 12345;
	p->blamed = 0x7fffffff;
	p->state = KVR_PROC_FAILED;
	ck_assert_int_eq(kvr_group_check(r), -EBADMSG);
	p->cause = -EIO;
	ck_assert_int_eq(kvr_group_check(r), -EIO);
	p->state = 1000;
	ck_assert_int_eq(kvr_group_check(r), -EBADMSG);
	p->state = KVR_PROC_ACTIVE;
	ck_assert_int_eq(kvr_group_check(r), 0);
	kvr_group_close(r);
	kvr_group_close(l);
}
END_TEST

START_TEST(test_impossible_successor_is_named)
{
	struct kvr_group *l = create(), *r = attach(0);
	struct kvr_seg_takeover *t = kvr_shm_map(l->fd, l->layout.takeover, sizeof *t, 1);

	kvr_store_relaxed(&t->new_epoch, 77);
	ck_assert_int_eq(kvr_group_check(r), -EBADMSG);
	explained("new_epoch of the takeover page is 77, 0 or 2 is possible");
	kvr_store_relaxed(&t->new_epoch, 0);
	ck_assert_int_eq(kvr_group_check(r), 0);
	kvr_shm_unmap(t, sizeof *t);
	kvr_group_close(r);
	kvr_group_close(l);
}
END_TEST

START_TEST(test_pages_of_others_are_read_only)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		struct kvr_group *l = create(), *r = attach(0);
		volatile uint8_t *seg = (volatile uint8_t *)(uintptr_t)r->seg;

		l->own[512] = 1;
		if (seg[r->layout.leader + 512] != 1)
			_exit(0);
		signal(SIGSEGV, SIG_DFL);
		seg[r->layout.leader + 512] = 2;
		_exit(0);
	}
	status = test_reap(pid, 10000);
	ck_assert(WIFSIGNALED(status) || WEXITSTATUS(status)); /* a sanitizer makes it an exit */
}
END_TEST

START_TEST(test_close_in_a_forked_child_ends_nothing)
{
	struct kvr_group *l = create(), *r = attach(0);
	pid_t pid = fork();

	if (!pid) {
		kvr_group_close(r);
		kvr_group_close(l);
		_exit(0);
	}
	ck_assert_int_eq(test_reap(pid, 10000), 0);
	ck_assert_int_eq(kvr_group_check(r), 0);
	ck_assert_int_eq(kvr_group_watch_ranks(l), 0);
	ck_assert_int_eq(try_attach(1, 100), 0);
	kvr_group_close(r);
	kvr_group_close(l);
}
END_TEST

START_TEST(test_watcher_blocks_all_signals)
{
	struct kvr_group *l = create();
	DIR *d = opendir("/proc/self/task");
	int found = 0;
	struct dirent *e;

	while ((e = readdir(d))) {
		char file[300], text[4096], *at;
		FILE *f;
		size_t n;

		snprintf(file, sizeof file, "/proc/self/task/%s/status", e->d_name);
		f = e->d_name[0] == '.' ? NULL : fopen(file, "re");
		if (!f)
			continue;
		n = fread(text, 1, sizeof text - 1, f);
		fclose(f);
		text[n] = 0;
		at = strstr(text, "\nSigBlk:\t");
		if (!strstr(text, "kvr-watcher") || !at)
			continue;
		found++;
		/* All but SIGKILL, SIGSTOP and the two that the C library keeps for itself. */
		ck_assert_uint_eq(strtoull(at + 9, NULL, 16) | 0x180000000ull | 0x40100ull, ~0ull);
	}
	closedir(d);
	ck_assert_int_eq(found, 1);
	kvr_group_close(l);
}
END_TEST

#define RINGS 2000u

/* Publishes twice in quick succession, then waits until the reader saw both. */
static int member_ringer(struct member *m)
{
	const struct kvr_rank_page *r;
	struct kvr_group *g;
	uint64_t i, deadline;

	if (kvr_group_create(name, &opts, &g))
		return 1;
	r = kvr_group_rank_page(g, 0);
	member_report(m, 0, g);
	member_order(m);
	for (i = 2; i <= 2 * RINGS; i += 2) {
		kvr_store_release(&kvr_group_leader_page(g)->tick_done, i - 1);
		kvr_group_ring_rank(g, 0);
		/* The second one meets the watcher at another point of its round each time. */
		for (uint64_t k = 0; k < i % 512 * 32; k++)
			kvr_relax();
		kvr_store_release(&kvr_group_leader_page(g)->tick_done, i);
		kvr_group_ring_rank(g, 0);
		deadline = test_deadline_ms(5000);
		while (kvr_load_acquire(&r->proc.tick_seen) < i && test_now_ns() < deadline)
			sched_yield();
	}
	member_order(m);
	kvr_group_close(g);
	return 0;
}

START_TEST(test_eventfd_misses_no_ring)
{
	struct member m = member_start(member_ringer, KVR_LEADER);
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	struct pollfd p = { .fd = fd, .events = POLLIN };
	uint64_t got = 0, n;
	struct kvr_group *g;

	member_hears(&m);
	opts.event_fd = fd;
	g = attach(0);
	member_tell(&m, 'g');
	while (got < 2 * RINGS) {
		/* The eventfd alone can bring it. */
		ck_assert_msg(poll(&p, 1, 3000) == 1, "stuck at %llu", (unsigned long long)got);
		ck_assert_int_eq(read(fd, &n, sizeof n), sizeof n);
		got = kvr_load_acquire(&g->leader->tick_done);
		kvr_store_release(&g->proc->tick_seen, got);
	}
	/* Silent while nobody rings. */
	test_sleep_ms(20);
	(void)!read(fd, &n, sizeof n);
	ck_assert_int_eq(poll(&p, 1, 150), 0);
	/* Fed once more by a death, which rings no bell. */
	member_kill(&m);
	ck_assert_int_eq(poll(&p, 1, 5000), 1);
	ck_assert_int_eq(kvr_group_check(g), -EOWNERDEAD);
	kvr_group_close(g);
	close(fd);
}
END_TEST

/*
 * A ring that met nobody parked, then a park by another waiter of the same bell: the bell looks as
 * if nothing had happened, and the watcher has not looked yet.
 */
START_TEST(test_eventfd_tells_of_what_came_before_the_watcher)
{
	struct kvr_bell bell = { .seq = 5, .parked = 1 };
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	struct pollfd p = { .fd = fd, .events = POLLIN };
	struct kvr_watcher *w;
	uint32_t life = 0;

	ck_assert_int_eq(kvr_watcher_start(&life, &bell, NULL, 0, fd, &w), 0);
	ck_assert_int_eq(poll(&p, 1, 3000), 1);
	kvr_watcher_stop(w);
	close(fd);
}
END_TEST

/* abandon() has to ring the leader: without that, only the back-stop brings it. */
START_TEST(test_abandon_rings_the_leader)
{
	struct kvr_group *l = create(), *r = attach(0);
	struct kvr_bell *bell = l->bell;

	kvr_store_relaxed32(&bell->parked, 1);
	kvr_group_abandon(r);
	ck_assert_uint_eq(kvr_load_relaxed32(&bell->parked), 0);
	kvr_group_close(r);
	kvr_group_close(l);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("group");
	TCase *t = tcase_create("members");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, test_create_attach_close);
	tcase_add_test(t, test_works_in_the_default_directory);
	tcase_add_test(t, test_close_removes_the_pool_name);
	tcase_add_test(t, test_close_spares_the_files_of_a_newer_leader);
	tcase_add_test(t, test_bad_options_are_named);
	tcase_add_test(t, test_full_shared_memory_is_an_error_with_numbers);
	tcase_add_test(t, test_create_over_a_living_leader_is_busy);
	tcase_add_test(t, test_signal_handlers_end_waits);
	tcase_add_test(t, test_wait_returns_what_ready_says);
	tcase_add_test(t, test_calls_are_counted_and_recorded);
	tcase_add_test(t, test_nonsense_in_pages_of_others_is_bounded);
	tcase_add_test(t, test_impossible_successor_is_named);
	tcase_add_test(t, test_pages_of_others_are_read_only);
	tcase_add_test(t, test_close_in_a_forked_child_ends_nothing);
	tcase_add_test(t, test_watcher_blocks_all_signals);
	tcase_add_test(t, test_eventfd_misses_no_ring);
	tcase_add_test(t, test_eventfd_tells_of_what_came_before_the_watcher);
	tcase_add_test(t, test_abandon_rings_the_leader);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
