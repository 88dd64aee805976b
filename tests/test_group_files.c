/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files under a group's name: that are no segment, that shrink, and that of a living group which
 * somebody removes.
 */
#include "group_ends.h"

#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "kvring/inspect.h"
#include "layout.h"
#include "util.h"

#define SOMEBODY 61803u

/* Everything an inspector can read. 0, or the first error. */
static int inspect_all(struct kvr_inspect *in, uint32_t ranks)
{
	struct kvr_inspect_message m[4];
	struct kvr_inspect_channel c;
	struct kvr_inspect_group g;
	struct kvr_inspect_proc p;
	struct kvr_inspect_op o[4];
	int rc = kvr_inspect_group(in, &g);

	for (uint32_t r = 0; rc >= 0 && r < ranks; r++) {
		rc = kvr_inspect_proc(in, r, &p);
		for (uint32_t ch = 0; rc >= 0 && ch < KVR_CHANNELS; ch++) {
			rc = kvr_inspect_channel(in, ch, r, &c);
			if (rc >= 0)
				rc = kvr_inspect_messages(in, ch, r, m, 4);
		}
	}
	return rc < 0 ? rc : kvr_inspect_ops(in, o, 4);
}

/* --- files that are no segment, or no longer one --- */

/* At once, with a word in the sentence, and nothing is changed. */
static void refused(int attach_err, int create_err, const char *word)
{
	uint64_t t = test_now_ns();
	struct stat a, b;

	ck_assert_int_eq(lstat(path, &a), 0);
	ck_assert_int_eq(try_attach(0, 8000), attach_err);
	explained(word);
	explained(path);
	ck_assert_int_eq(try_create(), create_err);
	ck_assert_uint_lt(test_now_ns() - t, 6000000000u);
	ck_assert_int_eq(lstat(path, &b), 0);
	ck_assert(a.st_ino == b.st_ino && a.st_size == b.st_size && a.st_mode == b.st_mode &&
		  a.st_uid == b.st_uid && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec &&
		  a.st_ctim.tv_nsec == b.st_ctim.tv_nsec);
}

START_TEST(test_files_of_other_kinds_are_refused_and_stay)
{
	ck_assert_int_eq(mkfifo(path, 0600), 0);
	refused(-EPROTO, -EPROTO, "no regular file");
	unlink(path);
	ck_assert_int_eq(mknod(path, S_IFSOCK | 0600, 0), 0);
	refused(-EPROTO, -EPROTO, "no regular file");
	unlink(path);
	ck_assert_int_eq(mkdir(path, 0700), 0);
	refused(-EPROTO, -EPROTO, "no regular file");
	rmdir(path);
	ck_assert_int_eq(symlink("/nonexistent-kvr", path), 0);
	refused(-EPROTO, -EPROTO, "symbolic link");
	unlink(path);
}
END_TEST

START_TEST(test_device_is_refused_and_stays)
{
	int fd;

	if (mknod(path, S_IFCHR | 0600, 1 << 8 | 3)) { /* as /dev/null */
		test_skip("a device cannot be made here (needs root)");
		return;
	}
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		refused(-EPERM, -EPERM, "may not be opened");
	} else {
		close(fd);
		refused(-EPROTO, -EPROTO, "no regular file");
	}
	unlink(path);
}
END_TEST

/* A good segment of a living group, but not in the way it should be. */
START_TEST(test_good_segment_by_a_wrong_way_is_refused)
{
	char good_name[48], good_path[KVR_SHM_PATH], wrong[48], wrong_path[KVR_SHM_PATH];
	struct kvr_group *l = create();

	memcpy(good_name, name, sizeof name);
	memcpy(good_path, path, sizeof path);
	test_name(wrong, sizeof wrong, "group");
	ck_assert_int_eq(kvr_shm_path(wrong_path, sizeof path, dir, wrong, KVR_SHM_SEGMENT, 0), 0);
	memcpy(name, wrong, sizeof name);
	memcpy(path, wrong_path, sizeof path);
	ck_assert_int_eq(symlink(good_path, path), 0);
	refused(-EPROTO, -EPROTO, "symbolic link");
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(link(good_path, path), 0);
	ck_assert_int_eq(try_attach(0, 8000), -EPROTO);
	explained(good_name);
	ck_assert_int_eq(try_create(), -EBUSY);
	ck_assert_int_eq(unlink(path), 0);
	memcpy(name, good_name, sizeof name);
	memcpy(path, good_path, sizeof path);
	ck_assert_int_eq(chmod(path, 0644), 0);
	refused(-EPERM, -EPERM, "0644");
	ck_assert_int_eq(chmod(path, 0600), 0);
	if (!geteuid()) {
		ck_assert_int_eq(chown(path, SOMEBODY, (gid_t)-1), 0);
		refused(-EPERM, -EPERM, "61803");
		ck_assert_int_eq(chown(path, 0, (gid_t)-1), 0);
	}
	ck_assert_int_eq(try_attach(0, 3000), 0);
	kvr_group_close(l);
	ck_assert_int_eq(files_in_dir(), 0);
}
END_TEST

START_TEST(test_segment_truncated_under_its_leader_is_refused)
{
	static const off_t sizes[] = { 3 * 4096, 4096, 100, 0 };
	struct member l = start_leader();

	/* Asleep it does not touch what is gone; nobody can help one that does. */
	kill(l.pid, SIGSTOP);
	for (size_t i = 0; i < KVR_ARRAY_LEN(sizes); i++) {
		ck_assert_int_eq(truncate(path, sizes[i]), 0);
		refused(-EPROTO, -EPROTO, "bytes");
	}
	member_kill(&l);
	refused(-EPROTO, -EPROTO, "bytes");
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(try_create(), 0);
}
END_TEST

/* --- truncated under an inspector --- */

/* The segment of a group that ended, with something in it. */
static void saved_segment(char file[KVR_SHM_PATH])
{
	struct end l = { 0 }, r[2] = { { 0 } };
	char cmd[2 * KVR_SHM_PATH + 8];

	opts.ranks = 2;
	ck_assert_int_eq(end_lead(name, &l), 0);
	ck_assert_int_eq(end_join(name, 0, &r[0]), 0);
	ck_assert_int_eq(end_join(name, 1, &r[1]), 0);
	ck_assert_int_eq(end_traffic(&l, r, 2, CH, 30), 0);
	ck_assert_int_eq(kvr_channels_publish(l.c, CH, 0, KVR_TAG_USER, NULL, "x", 1, 0), 0);
	snprintf(file, KVR_SHM_PATH, "%.200s/saved", dir);
	snprintf(cmd, sizeof cmd, "cp %s %s", path, file);
	ck_assert_int_eq(system(cmd), 0);
	end_close(&r[0]);
	end_close(&r[1]);
	end_close(&l);
}

START_TEST(test_file_that_shrinks_under_an_inspector_is_an_error)
{
	char file[KVR_SHM_PATH];
	struct kvr_inspect *in;
	struct kvr_layout l;

	saved_segment(file);
	ck_assert_int_eq(kvr_layout_init(&l, kvr_shm_page(), 2, opts.ring_bytes, opts.ops,
					 opts.events, opts.bulk_bytes),
			 0);
	ck_assert_int_eq(kvr_inspect_open(file, &in), 0);
	ck_assert_int_eq(inspect_all(in, 2), 0);
	for (off_t size = (off_t)kvr_layout_rank(&l, 1); size >= 0; size -= 4096) {
		ck_assert_int_eq(truncate(file, size), 0);
		ck_assert_int_eq(inspect_all(in, 2), -EBADMSG);
		explained("the file ends at");
	}
	kvr_inspect_close(in);
}
END_TEST

static int tool_main(const char *file, int out)
{
	char tool[4096];

	test_tool(tool, sizeof tool, "ring-dump");
	/* The leak checker would need ptrace for itself, and TSan sleeps before it exits. */
	setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
	setenv("TSAN_OPTIONS", "atexit_sleep_ms=0", 1);
	if (dup2(out, 1) < 0 || dup2(out, 2) < 0 || ptrace(PTRACE_TRACEME, 0, 0, 0))
		return 77;
	raise(SIGSTOP);
	execl(tool, "ring-dump", file, (char *)NULL);
	return 97;
}

/* The next stop at a system call, or its end: 0. */
static int next_syscall(pid_t pid, int *status)
{
	for (int sig = 0;; sig = WSTOPSIG(*status) == SIGTRAP ? 0 : WSTOPSIG(*status)) {
		if (ptrace(PTRACE_SYSCALL, pid, 0, sig) || waitpid(pid, status, 0) != pid)
			return 0;
		if (!WIFSTOPPED(*status))
			return 0;
		if (WSTOPSIG(*status) == (SIGTRAP | 0x80))
			return 1;
	}
}

static int is_pread_entry(pid_t pid)
{
	struct __ptrace_syscall_info info = { 0 };

	/* Of the loader's reads none is as long as a page. */
	return ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) > 0 &&
	       info.op == PTRACE_SYSCALL_INFO_ENTRY && info.entry.nr == SYS_pread64 &&
	       (info.entry.args[3] >= 8192 || info.entry.args[2] >= 4096);
}

/*
 * Runs ring-dump on `file` and cuts the file off right before its read number `at`. Returns the
 * wait status; *ret_cut: there were so many reads. -1: no tracing here.
 */
static int dump_cut_at(const char *file, int at, char *text, size_t size, int *ret_cut)
{
	int out[2], status = 0, reads = 0;
	size_t used = 0;
	ssize_t n;
	pid_t pid;

	*ret_cut = 0;
	ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
	pid = fork();
	if (!pid)
		_exit(tool_main(file, out[1]));
	close(out[1]);
	if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status) ||
	    ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)) {
		close(out[0]);
		return -1;
	}
	while (next_syscall(pid, &status))
		if (!*ret_cut && is_pread_entry(pid) && ++reads == at) {
			ck_assert_int_eq(truncate(file, 4096), 0);
			*ret_cut = 1;
		}
	while (used < size - 1 && (n = read(out[0], text + used, size - 1 - used)) > 0)
		used += (size_t)n;
	text[used] = 0;
	close(out[0]);
	return status;
}

/* Whenever it happens: exit status 3 and a sentence; no signal, and no half of a report. */
START_TEST(test_file_that_shrinks_under_ring_dump_is_an_error)
{
	static char text[1 << 16];
	char file[KVR_SHM_PATH], whole[KVR_SHM_PATH + 8], cmd[3 * KVR_SHM_PATH];
	int cut, status, at;

	saved_segment(file);
	snprintf(whole, sizeof whole, "%s.whole", file);
	ck_assert_int_eq(rename(file, whole), 0);
	snprintf(cmd, sizeof cmd, "cp %s %s", whole, file);
	for (at = 1;; at++) {
		ck_assert_int_eq(system(cmd), 0);
		status = dump_cut_at(file, at, text, sizeof text, &cut);
		if (status < 0) {
			test_skip("no tracing of children here");
			return;
		}
		ck_assert_msg(WIFEXITED(status), "read %d: status %#x: %s", at, status, text);
		if (!cut)
			break;
		ck_assert_msg(WEXITSTATUS(status) == 3 && !strncmp(text, "ring-dump: ", 11) &&
				      strstr(text, "the file ends at"),
			      "read %d: exit status %d: %s", at, WEXITSTATUS(status), text);
	}
	ck_assert_msg(!WEXITSTATUS(status) && at > 20, "%d reads: %s", at, text);
}
END_TEST

/* --- the file of a living group is removed (RemoveIPC of systemd, rm) --- */

static int member_takes(struct member *m)
{
	struct end r = { 0 };
	int rc = end_join(name, m->rank, &r);
	struct kvr_message msg;

	member_report(m, rc, r.g);
	while (!rc && member_order(m))
		member_report(m, kvr_channels_take(r.c, CH, test_deadline_ms(WAIT_MS), &msg), r.g);
	if (!rc)
		end_close(&r);
	return 0;
}

static void arrives(struct end *l, struct end *here, struct member *there)
{
	struct report got;

	member_tell(there, 't');
	ck_assert_msg(!end_traffic(l, here, 1, CH, 1), "%s", kvr_explain());
	ck_assert_msg(!kvr_channels_publish(l->c, CH, 2, 1, NULL, "x", 1, 0), "%s", kvr_explain());
	got = member_hears(there);
	ck_assert_msg(!got.rc, "%s", got.why);
}

START_TEST(test_members_go_on_when_their_file_is_removed)
{
	struct end l = { 0 }, r = { 0 }, l2 = { 0 }, r2 = { 0 };
	struct kvr_message msg;
	struct member m;

	m = member_start(member_takes, 1);
	ck_assert_int_eq(end_lead(name, &l), 0);
	ck_assert_int_eq(end_join(name, 0, &r), 0);
	ck_assert_int_eq(member_hears(&m).rc, 0);
	arrives(&l, &r, &m);
	ck_assert_int_eq(kvr_group_visible(l.g), 0);
	ck_assert_int_eq(unlink(path), 0);
	arrives(&l, &r, &m);
	ck_assert_int_eq(kvr_group_check(l.g), 0);
	ck_assert_int_eq(kvr_group_check(r.g), 0);
	ck_assert_int_eq(kvr_group_visible(l.g), -ENOENT);
	explained("RemoveIPC");
	ck_assert_int_eq(kvr_group_visible(r.g), -ENOENT);
	explained(path);
	ck_assert_int_eq(kvr_channels_take(r.c, CH, test_deadline_ms(20), &msg), -ETIMEDOUT);
	explained("RemoveIPC");
	/* Who comes now finds nothing. */
	ck_assert_int_eq(try_attach(2, 50), -ETIMEDOUT);
	explained("does not exist");
	/* A second leader, who cannot know of the first: each has its own ranks. */
	ck_assert_int_eq(end_lead(name, &l2), 0);
	ck_assert_uint_eq(kvr_group_epoch(l2.g), 1);
	ck_assert_mem_ne(l2.g->header.uuid, l.g->header.uuid, 16);
	ck_assert_int_eq(end_join(name, 0, &r2), 0);
	ck_assert_int_eq(kvr_group_visible(l2.g), 0);
	ck_assert_int_eq(kvr_group_visible(r2.g), 0);
	ck_assert_int_eq(kvr_group_visible(l.g), -ESTALE);
	explained("another leader has the name");
	arrives(&l, &r, &m);
	ck_assert_int_eq(end_traffic(&l2, &r2, 1, CH, 50), 0);
	ck_assert_int_eq(kvr_group_check(r.g), 0);
	if (_i) {
		/* The first ends first, and spares the file of the second ... */
		member_end(&m);
		end_close(&l);
		ck_assert_int_eq(kvr_group_check(r.g), -ESHUTDOWN);
		end_close(&r);
		ck_assert_int_eq(end_traffic(&l2, &r2, 1, CH, 50), 0);
		ck_assert_int_eq(try_attach(2, 3000), 0);
		end_close(&r2);
		end_close(&l2);
	} else {
		/* ... or last, with its own file gone for long. */
		end_close(&r2);
		end_close(&l2);
		arrives(&l, &r, &m);
		member_end(&m);
		end_close(&r);
		end_close(&l);
	}
	ck_assert_int_eq(files_in_dir(), 0);
}
END_TEST

/* --- names that change their meaning while a group lives --- */

static int is_unlink_entry(pid_t pid)
{
	struct __ptrace_syscall_info info = { 0 };

	if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) <= 0 ||
	    info.op != PTRACE_SYSCALL_INFO_ENTRY)
		return 0;
#ifdef SYS_unlink
	if (info.entry.nr == SYS_unlink)
		return 1;
#endif
	return info.entry.nr == SYS_unlinkat;
}

static void lead_and_leave(void)
{
	struct kvr_group *g;

	if (kvr_group_create(name, &opts, &g) || ptrace(PTRACE_TRACEME, 0, 0, 0))
		_exit(77);
	raise(SIGSTOP);
	kvr_group_close(g);
	_exit(0);
}

/* It closes while a newer leader takes its name: right after its look whose file that is. */
START_TEST(test_fenced_leader_spares_the_file_of_the_newer_one)
{
	struct kvr_group *newer = NULL;
	int status = 0;
	pid_t pid = fork();

	if (!pid)
		lead_and_leave();
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	if (!WIFSTOPPED(status) ||
	    ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)) {
		test_skip("no tracing of children here");
		return;
	}
	opts.takeover = KVR_TAKEOVER_FENCE;
	while (next_syscall(pid, &status))
		if (!newer && is_unlink_entry(pid)) {
			/* -EAGAIN or -EBUSY would do as well: it leaves by itself. */
			int rc = kvr_group_create(name, &opts, &newer);

			if (rc)
				break;
		}
	ptrace(PTRACE_DETACH, pid, 0, 0);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	if (!newer)
		return;
	ck_assert_msg(!kvr_group_visible(newer), "%s", kvr_explain());
	kvr_group_close(newer);
}
END_TEST

START_TEST(test_relative_directory_is_refused_or_stays_the_same)
{
	struct kvr_group *g;
	int rc;

	ck_assert_int_eq(chdir(dir), 0);
	opts.dir = ".";
	rc = kvr_group_create(name, &opts, &g);
	ck_assert_int_eq(chdir("/"), 0);
	if (!rc) {
		ck_assert_msg(!kvr_group_visible(g), "%s", kvr_explain());
		kvr_group_close(g);
	} else {
		ck_assert_int_eq(rc, -EINVAL);
	}
	ck_assert_int_eq(files_in_dir(), 0);
}
END_TEST

START_TEST(test_process_that_changes_its_user_keeps_its_group)
{
	struct kvr_group *g;

	if (geteuid()) {
		test_skip("only root can become another user for a while");
		return;
	}
	opts.dir = NULL;
	g = create();
	ck_assert_int_eq(seteuid(SOMEBODY), 0);
	ck_assert_msg(!kvr_group_visible(g), "%s", kvr_explain());
	ck_assert_int_eq(seteuid(0), 0);
	kvr_group_close(g);
	ck_assert(!file_there(KVR_SHM_SEGMENT, 0));
}
END_TEST

START_TEST(test_leader_is_told_why_nobody_comes_any_more)
{
	struct end l = { 0 };

	opts.ranks = 1;
	ck_assert_int_eq(end_lead(name, &l), 0);
	while (!end_publish(&l, 0, 0))
		;
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(end_publish(&l, 0, 20), -ETIMEDOUT);
	explained("not attached");
	explained("RemoveIPC");
	end_close(&l);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("group_files");
	TCase *t = tcase_create("files");

	tcase_set_timeout(t, 40);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, test_files_of_other_kinds_are_refused_and_stay);
	tcase_add_test(t, test_device_is_refused_and_stays);
	tcase_add_test(t, test_good_segment_by_a_wrong_way_is_refused);
	tcase_add_test(t, test_segment_truncated_under_its_leader_is_refused);
	tcase_add_test(t, test_file_that_shrinks_under_an_inspector_is_an_error);
	tcase_add_test(t, test_file_that_shrinks_under_ring_dump_is_an_error);
	tcase_add_loop_test(t, test_members_go_on_when_their_file_is_removed, 0, 2);
	tcase_add_test(t, test_fenced_leader_spares_the_file_of_the_newer_one);
	tcase_add_test(t, test_relative_directory_is_refused_or_stays_the_same);
	tcase_add_test(t, test_process_that_changes_its_user_keeps_its_group);
	tcase_add_test(t, test_leader_is_told_why_nobody_comes_any_more);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	if (KVR_TEST_TSAN)
		return test_no_threads_of_its_own();
	return kvr_test_main(make_suite);
}
