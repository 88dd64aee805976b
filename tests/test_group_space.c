/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room for a group: too little, exactly enough, used up later; limits of the process; directories
 * that cannot be used; and the size that is documented.
 */
#include "group_ends.h"

#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "kvring/inspect.h"
#include "layout.h"
#include "namespaces.h"
#include "util.h"

#define PAGE ((uint64_t)kvr_shm_page())

typedef unsigned long long ull;

/* In a child: a condition that must hold. */
#define NEED(cond)                                                                             \
	do {                                                                                   \
		if (!(cond)) {                                                                 \
			fprintf(stderr, "%s:%d: %s; explain: %s\n", __FILE__, __LINE__, #cond, \
				kvr_explain());                                                \
			_exit(1);                                                              \
		}                                                                              \
	} while (0)

/* --- a small tmpfs --- */

/* Runs body in a child that has a tmpfs of that size over `dir`. */
static void on_tmpfs(const char *options, void (*body)(void))
{
	int status;
	pid_t pid;

	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (namespaces_enter(CLONE_NEWNS) || mount("kvr-test", dir, "tmpfs", 0, options))
			_exit(77);
		body();
		_exit(0);
	}
	status = test_reap(pid, 30000);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		test_skip("no private mount namespace here, neither as root nor in a user "
			  "namespace");
	else
		ck_assert_msg(!status, "status %#x", status);
}

static uint64_t room(void)
{
	struct statvfs v;

	return statvfs(dir, &v) ? 0 : (uint64_t)v.f_bavail * v.f_frsize;
}

/* Fills the file system but for `left` bytes. */
static void fill(uint64_t left)
{
	char file[200];
	int fd;

	snprintf(file, sizeof file, "%s/filler", dir);
	unlink(file);
	fd = open(file, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	NEED(fd >= 0 && room() >= left);
	NEED(room() == left || !posix_fallocate(fd, 0, (off_t)(room() - left)));
	close(fd);
	NEED(room() == left);
}

static uint64_t total_of(const struct kvr_group_opts *o)
{
	struct kvr_layout l;

	if (kvr_layout_init(&l, kvr_shm_page(), o->ranks, o->ring_bytes ? o->ring_bytes : 131072,
			    o->ops ? o->ops : 1024, o->events ? o->events : 1024,
			    o->bulk_bytes ? o->bulk_bytes : 1048576))
		return 0;
	return l.total;
}

static void too_small(void)
{
	struct kvr_group *g = NULL;
	uint64_t before = room();
	struct statvfs v, w;
	char text[64];

	opts.ranks = 8;
	opts.ring_bytes = opts.ops = opts.events = opts.bulk_bytes = 0;
	NEED(before == 1 << 20 && !statvfs(dir, &v));
	NEED(kvr_group_create(name, &opts, &g) == -ENOSPC && !g);
	snprintf(text, sizeof text, "%llu bytes are needed", (ull)total_of(&opts));
	NEED(strstr(kvr_explain(), text));
	/* While that was found, the name lock had a page. */
	snprintf(text, sizeof text, ", %llu are free", (ull)(before - PAGE));
	NEED(strstr(kvr_explain(), text));
	NEED(strstr(kvr_explain(), "--shm-size") && strstr(kvr_explain(), dir));
	NEED(!statvfs(dir, &w) && w.f_ffree == v.f_ffree && room() == before);
	NEED(!files_in_dir());
}

START_TEST(test_too_little_room_is_said_in_bytes)
{
	on_tmpfs("size=1m,mode=700", too_small);
}
END_TEST

/* The name lock takes a page while the group is made. */
static void exactly_enough(void)
{
	uint64_t total = total_of(&opts);
	struct kvr_group *g = NULL;
	struct stat st;

	fill(total);
	NEED(kvr_group_create(name, &opts, &g) == -ENOSPC && !g);
	NEED(!files_in_dir() && room() == total);
	fill(total + PAGE);
	NEED(!kvr_group_create(name, &opts, &g));
	NEED(!stat(path, &st) && (uint64_t)st.st_size == total);
	NEED(room() == PAGE && files_in_dir() == 1);
	kvr_group_close(g);
	NEED(!files_in_dir() && room() == total + PAGE);
}

START_TEST(test_exactly_enough_room_is_enough)
{
	on_tmpfs("size=1m,mode=700", exactly_enough);
}
END_TEST

static void no_inode(void)
{
	uint64_t before = room();
	struct kvr_group *g = NULL;
	char file[200];
	int fd, n;

	for (n = 0; n < 100; n++) {
		snprintf(file, sizeof file, "%s/%d", dir, n);
		fd = open(file, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
		if (fd < 0)
			break;
		close(fd);
	}
	NEED(n > 2 && n < 100 && errno == ENOSPC);
	NEED(kvr_group_create(name, &opts, &g) == -ENOSPC && strstr(kvr_explain(), dir));
	NEED(strstr(kvr_explain(), "inode"));
	/* One for the lock, none for the segment. */
	snprintf(file, sizeof file, "%s/0", dir);
	unlink(file);
	NEED(kvr_group_create(name, &opts, &g) == -ENOSPC && strstr(kvr_explain(), dir));
	NEED(strstr(kvr_explain(), "inode"));
	NEED(!files_in_dir() && room() == before);
	snprintf(file, sizeof file, "%s/1", dir);
	unlink(file);
	NEED(!kvr_group_create(name, &opts, &g));
	kvr_group_close(g);
	NEED(!files_in_dir());
}

START_TEST(test_no_inode_left_is_an_error)
{
	on_tmpfs("size=1m,nr_inodes=8,mode=700", no_inode);
}
END_TEST

/* --- a tmpfs that is filled later --- */

static void filled_later(void)
{
	struct end l = { 0 }, r[2] = { { 0 } };
	struct kvr_inspect_message m[4];
	struct kvr_inspect *in;

	opts.ranks = 2;
	NEED(!end_lead(name, &l) && !end_join(name, 0, &r[0]));
	fill(0);
	/* Also who comes now. */
	NEED(!end_join(name, 1, &r[1]));
	for (uint32_t ch = 0; ch < KVR_CHANNELS; ch++)
		NEED(!end_traffic(&l, r, 2, ch, 200)); /* each page of each ring and recorder */
	NEED(!kvr_inspect_open_name(dir, name, &in));
	NEED(kvr_inspect_messages(in, CH, 1, m, 4) == 4);
	kvr_inspect_close(in);
	kvr_group_fail(l.g, 1, -EIO);
	NEED(kvr_group_check(r[0].g) == -EIO);
	end_close(&r[0]);
	end_close(&r[1]);
	end_close(&l);
	NEED(!kvr_group_remove(name, dir) && !files_in_dir());
}

START_TEST(test_room_used_up_later_kills_nobody)
{
	on_tmpfs("size=1m,mode=700", filled_later);
}
END_TEST

/* A restart needs room for the new segment beside the old one. */
static void takeover_without_room(void)
{
	uint64_t total = total_of(&opts);
	struct kvr_group *g = NULL;
	struct end r = { 0 };
	struct member l = { 0 };
	int to[2];

	NEED(!pipe2(to, O_CLOEXEC));
	l.pid = fork();
	if (!l.pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (kvr_group_create(name, &opts, &g) || write(to[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	NEED(read(to[0], to, 1) == 1 && !end_join(name, 0, &r));
	NEED(!kill(l.pid, SIGKILL) && waitpid(l.pid, NULL, 0) == l.pid);
	fill(total);
	NEED(kvr_group_create(name, &opts, &g) == -ENOSPC && strstr(kvr_explain(), "are needed"));
	/* Nothing happened to the old one: -EOWNERDEAD, not -ESTALE. */
	NEED(kvr_group_check(r.g) == -EOWNERDEAD);
	NEED(files_in_dir() == 1 && room() == total);
	fill(total + PAGE);
	NEED(!kvr_group_create(name, &opts, &g) && kvr_group_epoch(g) == 2);
	NEED(kvr_group_check(r.g) == -ESTALE);
	end_close(&r);
	kvr_group_close(g);
}

START_TEST(test_takeover_without_room_harms_nothing)
{
	on_tmpfs("size=1m,mode=700", takeover_without_room);
}
END_TEST

static void eight_ranks(void)
{
	struct end l = { 0 }, r[8] = { { 0 } };
	uint64_t before = room();
	struct stat st;

	opts.ranks = 8;
	opts.ring_bytes = opts.ops = opts.events = opts.bulk_bytes = 0;
	NEED(!end_lead(name, &l) && !stat(path, &st));
	for (uint32_t i = 0; i < 8; i++)
		NEED(!end_join(name, i, &r[i]));
	NEED(!end_traffic(&l, r, 8, CH, 100));
	/* All of it is there from the start, and it is all there is. */
	NEED((uint64_t)st.st_blocks * 512 >= (uint64_t)st.st_size);
	NEED(before - room() == (uint64_t)st.st_size);
	for (uint32_t i = 0; i < 8; i++)
		end_close(&r[i]);
	end_close(&l);
	NEED(room() == before);
}

START_TEST(test_eight_ranks_fit_what_a_container_has)
{
	on_tmpfs("size=64m,mode=700", eight_ranks);
}
END_TEST

/* --- the documented size --- */

static uint64_t up(uint64_t n)
{
	return (n + PAGE - 1) / PAGE * PAGE;
}

/* In the words of group.h, not by the code. */
static uint64_t documented(uint64_t ranks, uint64_t ring, uint64_t ops, uint64_t events)
{
	uint64_t window = events / 4 > 16 ? events / 4 : 16;
	uint64_t r = 128 + 64 * events + 6 * (128 + 32 * window), bulk = 4096;

	return 2 * PAGE + up(128 * (ranks + 1)) +
	       up(4096 + 128 * ops + r + 10 * ranks * (128 + ring) + bulk) +
	       ranks * up(4096 + 16 * ops + r);
}

START_TEST(test_files_have_the_documented_size)
{
	static const uint32_t ranks[] = { 1, 2, 8, 31, 32, 63, 64 },
			      more[][3] = { { 1024, 16, 16 },	  { 1024, 4096, 16 },
					    { 2048, 64, 8192 },	  { 16384, 32, 128 },
					    { 65536, 1024, 256 }, { 131072, 16, 64 } };

	for (size_t i = 0; i < KVR_ARRAY_LEN(ranks); i++)
		for (size_t k = 0; k < KVR_ARRAY_LEN(more); k++) {
			struct kvr_group *g;
			struct stat st;

			opts.ranks = ranks[i];
			opts.ring_bytes = more[k][0];
			opts.ops = more[k][1];
			opts.events = more[k][2];
			if (documented(ranks[i], more[k][0], more[k][1], more[k][2]) > 32u << 20)
				continue; /* the small ones tell as much */
			g = create();
			ck_assert_int_eq(stat(path, &st), 0);
			ck_assert_uint_eq((uint64_t)st.st_size,
					  documented(ranks[i], more[k][0], more[k][1], more[k][2]));
			ck_assert_int_ge(st.st_blocks * 512, st.st_size);
			kvr_group_close(g);
		}
}
END_TEST

/* --- a limit on the size of files --- */

static int limited_create(struct member *m)
{
	uint64_t total = total_of(&opts);
	struct rlimit limit = { total - 1, total };
	struct end l = { 0 }, r = { 0 };

	signal(SIGXFSZ, SIG_DFL);
	NEED(!setrlimit(RLIMIT_FSIZE, &limit));
	member_report(m, kvr_group_create(name, &opts, &l.g), NULL);
	limit.rlim_cur = total;
	NEED(!files_in_dir() && !setrlimit(RLIMIT_FSIZE, &limit));
	NEED(!end_lead(name, &l) && !end_join(name, 0, &r));
	NEED(!end_traffic(&l, &r, 1, CH, 100));
	end_close(&r);
	end_close(&l);
	return 0;
}

START_TEST(test_limit_on_file_sizes_is_an_error_and_no_signal)
{
	struct member m = member_start(limited_create, 0);
	struct report r = member_hears(&m);
	char text[64];

	ck_assert_int_eq(r.rc, -EFBIG);
	snprintf(text, sizeof text, "%llu", (ull)total_of(&opts));
	ck_assert_msg(strstr(r.why, "RLIMIT_FSIZE") && strstr(r.why, text), "%s", r.why);
	member_end(&m);
	ck_assert_int_eq(files_in_dir(), 0);
}
END_TEST

/* --- directories that cannot be used --- */

#define SOMEBODY 61803u

static const struct {
	const char *dir;
	mode_t mode;  /* 0: not made */
	int somebody; /* 1: belongs to who tries */
	int create, attach;
} bad_dirs[] = {
	{ "theirs", 0755, 0, -EACCES, -ETIMEDOUT },
	{ "unwritable", 0555, 1, -EACCES, -ETIMEDOUT },
	{ "unsearchable", 0600, 1, -EACCES, -EPERM },
	{ "absent", 0, 1, -ENOENT, -ETIMEDOUT },
	{ "file", 0600, 1, -ENOTDIR, -ENOTDIR },
};

static void try_bad_dirs(uid_t uid)
{
	/* By a name relative to here: its parents may be closed to others. */
	NEED(!chdir(dir));
	if (uid != geteuid())
		NEED(!setresgid(uid, uid, uid) && !setresuid(uid, uid, uid));
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (size_t i = 0; i < KVR_ARRAY_LEN(bad_dirs); i++) {
		struct kvr_group *g;

		if (uid != SOMEBODY && !bad_dirs[i].somebody)
			continue; /* a user has nobody else's */
		opts.dir = bad_dirs[i].dir;
		if (kvr_group_create(name, &opts, &g) != bad_dirs[i].create ||
		    !strstr(kvr_explain(), bad_dirs[i].dir)) {
			fprintf(stderr, "create in %s: %s\n", bad_dirs[i].dir, kvr_explain());
			_exit(1);
		}
		if (kvr_group_attach(name, 0, &opts, test_deadline_ms(20), &g) !=
			    bad_dirs[i].attach ||
		    !strstr(kvr_explain(), bad_dirs[i].dir)) {
			fprintf(stderr, "attach in %s: %s\n", bad_dirs[i].dir, kvr_explain());
			_exit(1);
		}
	}
	_exit(0);
}

START_TEST(test_directories_that_cannot_be_used_are_named)
{
	uid_t uid = geteuid() ? geteuid() : SOMEBODY;
	char sub[256];
	pid_t pid;

	ck_assert_int_eq(chmod(dir, 0755), 0);
	for (size_t i = 0; i < KVR_ARRAY_LEN(bad_dirs); i++) {
		snprintf(sub, sizeof sub, "%s/%s", dir, bad_dirs[i].dir);
		if (bad_dirs[i].create == -ENOTDIR) {
			close(open(sub, O_CREAT | O_RDWR | O_CLOEXEC, 0600));
			ck_assert_int_eq(chown(sub, uid, (gid_t)-1), 0);
		} else if (bad_dirs[i].mode) {
			ck_assert_int_eq(mkdir(sub, 0700), 0);
			ck_assert_int_eq(chmod(sub, bad_dirs[i].mode), 0);
			if (bad_dirs[i].somebody)
				ck_assert_int_eq(chown(sub, uid, (gid_t)-1), 0);
		}
	}
	pid = fork();
	if (!pid)
		try_bad_dirs(uid);
	ck_assert_int_eq(test_reap(pid, 10000), 0);
	for (size_t i = 0; i < KVR_ARRAY_LEN(bad_dirs); i++) {
		snprintf(sub, sizeof sub, "%s/%s", dir, bad_dirs[i].dir);
		/* Empty still: rmdir says so. */
		if (bad_dirs[i].create == -ENOTDIR)
			ck_assert_int_eq(unlink(sub), 0);
		else if (bad_dirs[i].mode)
			ck_assert_int_eq(rmdir(sub), 0);
		else
			ck_assert_int_eq(access(sub, F_OK), -1);
	}
}
END_TEST

static int unlimited_not(struct member *m)
{
	struct rlimit limit = { 0, 0 };
	struct kvr_group *g = NULL;

	signal(SIGXFSZ, SIG_DFL);
	NEED(!setrlimit(RLIMIT_FSIZE, &limit));
	member_report(m, kvr_group_create(name, &opts, &g), NULL);
	return 0;
}

START_TEST(test_limit_of_nothing_is_an_error_and_no_signal)
{
	struct member m = member_start(unlimited_not, 0);
	struct report r = member_hears(&m);

	ck_assert_int_eq(r.rc, -EFBIG);
	ck_assert_msg(strstr(r.why, "RLIMIT_FSIZE"), "%s", r.why);
	member_end(&m);
	ck_assert_int_eq(files_in_dir(), 0);
}
END_TEST

/* Leaders that crash, one after another, where there is room for three and a half segments. */
static void crash_loop(void)
{
	fill(total_of(&opts) * 7 / 2 / PAGE * PAGE);
	for (int i = 0; i < 6; i++) {
		pid_t pid = fork();
		int status;

		if (!pid) {
			struct kvr_group *g;

			NEED(!kvr_group_create(name, &opts, &g));
			raise(SIGKILL);
		}
		NEED(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
	}
}

START_TEST(test_what_is_kept_for_a_look_does_not_stop_a_restart)
{
	on_tmpfs("size=1m,mode=700", crash_loop);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("group_space");
	TCase *t = tcase_create("room");

	tcase_set_timeout(t, 40);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, test_too_little_room_is_said_in_bytes);
	tcase_add_test(t, test_exactly_enough_room_is_enough);
	tcase_add_test(t, test_no_inode_left_is_an_error);
	tcase_add_test(t, test_room_used_up_later_kills_nobody);
	tcase_add_test(t, test_takeover_without_room_harms_nothing);
	tcase_add_test(t, test_eight_ranks_fit_what_a_container_has);
	tcase_add_test(t, test_files_have_the_documented_size);
	tcase_add_test(t, test_limit_on_file_sizes_is_an_error_and_no_signal);
	tcase_add_test(t, test_directories_that_cannot_be_used_are_named);
	tcase_add_test(t, test_limit_of_nothing_is_an_error_and_no_signal);
	tcase_add_test(t, test_what_is_kept_for_a_look_does_not_stop_a_restart);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
