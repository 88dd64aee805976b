/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring-dump --gc: what nobody lives of goes, all else stays, and each name gets its line. Groups
 * are real processes, in a directory of this test's own.
 */
#include <sys/file.h>

#include "dump_util.h"

static char dir[256];

static void setup_dir(void)
{
	test_tool(tool, sizeof tool, "ring-dump");
	setup_tool();
	test_tmpdir(dir, sizeof dir);
	group_dir = dir;
}

static void teardown_dir(void)
{
	test_rmdir(dir);
	teardown();
}

static void file_of(const char *name, enum kvr_shm_kind kind, uint64_t epoch,
		    char file[KVR_SHM_PATH])
{
	must(kvr_shm_path(file, KVR_SHM_PATH, dir, name, kind, epoch));
}

static int there(const char *name, enum kvr_shm_kind kind, uint64_t epoch)
{
	char file[KVR_SHM_PATH];

	file_of(name, kind, epoch, file);
	return !access(file, F_OK);
}

static void make_file(const char *name, enum kvr_shm_kind kind, uint64_t epoch, const char *text)
{
	char file[KVR_SHM_PATH];

	file_of(name, kind, epoch, file);
	save(file, text, strlen(text));
	ck_assert_int_eq(chmod(file, 0600), 0);
}

static void gc(const char *line, ...) __attribute__((sentinel));
static void gc(const char *line, ...)
{
	va_list ap;

	ck_assert_int_eq(run(tool, NULL, "--gc", "--dir", dir, NULL), 0);
	va_start(ap, line);
	for (; line; line = va_arg(ap, const char *))
		ck_assert_msg(strstr(output, line), "\"%s\" is not in: %s", line, output);
	va_end(ap);
}

/* A member that tells when it is in, and stays. rank UINT32_MAX: the leader, of two ranks. */
static pid_t member(const char *name, uint32_t rank, uint32_t takeover)
{
	struct kvr_group_opts o = {
		.size = sizeof o, .dir = dir, .ranks = rank == LEADER ? 2 : 0, .takeover = takeover
	};
	int up[2], err;
	pid_t pid;

	ck_assert_int_eq(pipe2(up, O_CLOEXEC), 0);
	pid = fork();
	if (!pid) {
		struct kvr_group *g;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		err = rank == LEADER
			      ? kvr_group_create(name, &o, &g)
			      : kvr_group_attach(name, rank, &o, test_deadline_ms(10000), &g);
		if (write(up[1], &err, sizeof err) != sizeof err)
			_exit(99);
		for (;;)
			pause();
	}
	close(up[1]);
	ck_assert_int_eq(read(up[0], &err, sizeof err), sizeof err);
	close(up[0]);
	ck_assert_int_eq(err, 0);
	return pid;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	test_reap(pid, 10000);
}

START_TEST(test_dead_goes_and_living_stays)
{
	char living[KVR_NAME_MAX], dead[KVR_NAME_MAX], line[128];
	pid_t leader[2], rank[2];

	test_name(living, sizeof living, "dump");
	test_name(dead, sizeof dead, "dump");
	leader[0] = member(living, LEADER, 0);
	rank[0] = member(living, 1, 0);
	leader[1] = member(dead, LEADER, 0);
	rank[1] = member(dead, 1, 0);
	make_file(living, KVR_SHM_POOL, 0, "KVRPOOL1");
	make_file(dead, KVR_SHM_POOL, 0, "KVRPOOL1");
	/* All live. */
	snprintf(line, sizeof line, "alive        %s: its leader (pid %d) lives, rank 1 (pid %d) ",
		 living, (int)leader[0], (int)rank[0]);
	gc(line, dead, NULL);
	lacks("remove");
	/* The leader is dead, a rank lives: it may have to look at what is there. */
	end(leader[1]);
	snprintf(line, sizeof line, "alive        %s: rank 1 (pid %d) lives\n", dead, (int)rank[1]);
	gc(line, NULL);
	ck_assert(there(dead, KVR_SHM_SEGMENT, 0));
	end(rank[1]);
	/* Nobody: first only said. */
	ck_assert_int_eq(run(tool, NULL, "--gc", "--dry-run", "--dir", dir, NULL), 0);
	snprintf(line, sizeof line, "would remove %s: 2 files, ", dead);
	has(line, NULL);
	ck_assert(there(dead, KVR_SHM_SEGMENT, 0) && there(dead, KVR_SHM_POOL, 0));
	snprintf(line, sizeof line, "removed      %s: 2 files, ", dead);
	gc(line, "nobody of it lives", "alive ", NULL);
	ck_assert(!there(dead, KVR_SHM_SEGMENT, 0) && !there(dead, KVR_SHM_POOL, 0));
	ck_assert(there(living, KVR_SHM_SEGMENT, 0) && there(living, KVR_SHM_POOL, 0));
	/* By name. */
	end(rank[0]);
	end(leader[0]);
	ck_assert_int_eq(run(tool, NULL, "--gc", "--dir", dir, dead, NULL), 0);
	begins("nothing of ");
	ck_assert(there(living, KVR_SHM_SEGMENT, 0));
	ck_assert_int_eq(run(tool, NULL, "--gc", "--dir", dir, living, NULL), 0);
	ck_assert(!there(living, KVR_SHM_SEGMENT, 0));
	gc("nothing of uid ", NULL);
}
END_TEST

START_TEST(test_retired_segments)
{
	char name[KVR_NAME_MAX], line[128];
	pid_t first, second;

	test_name(name, sizeof name, "dump");
	first = member(name, LEADER, 0);
	second = member(name, LEADER, KVR_TAKEOVER_FENCE);
	ck_assert(there(name, KVR_SHM_RETIRED, 1));
	/* The one that was fenced lives on, in the old epoch. */
	end(second);
	snprintf(line, sizeof line, "alive        %s: its leader (pid %d) lives\n", name,
		 (int)first);
	gc(line, NULL);
	ck_assert(there(name, KVR_SHM_RETIRED, 1) && there(name, KVR_SHM_SEGMENT, 0));
	end(first);
	/* Of a living group the old ones are kept to be looked at. */
	second = member(name, LEADER, 0);
	gc("alive ", NULL);
	ck_assert(there(name, KVR_SHM_RETIRED, 1) && there(name, KVR_SHM_RETIRED, 2));
	end(second);
	snprintf(line, sizeof line, "removed      %s: 3 files, ", name);
	gc(line, NULL);
	ck_assert(!there(name, KVR_SHM_RETIRED, 1) && !there(name, KVR_SHM_RETIRED, 2));
}
END_TEST

START_TEST(test_foreign_files_stay)
{
	char file[KVR_SHM_PATH], other[KVR_SHM_PATH];
	struct kvr_seg_header *h;
	struct side l, r[2];
	char name[KVR_NAME_MAX];
	uint8_t *bytes;
	size_t len;

	make_file("test-foreign", KVR_SHM_SEGMENT, 0, "what is that?");
	make_file("test-foreign", KVR_SHM_POOL, 0, "KVRPOOL1");
	make_file("test-no-pool", KVR_SHM_POOL, 0, "somebody's");
	/* A segment of another version cannot be judged. */
	make_dump_group(name, &l, r, NULL);
	file_of(name, KVR_SHM_SEGMENT, 0, file);
	bytes = load(file, &len);
	end_group(&l, r);
	h = (void *)bytes;
	h->version++;
	file_of("test-other", KVR_SHM_SEGMENT, 0, file);
	save(file, bytes, len);
	free(bytes);
	ck_assert_int_eq(chmod(file, 0600), 0);
	/* Files of others: by their names, by their owner, and no files at all. */
	snprintf(other, sizeof other, "%s/kvr-%u-test-his", dir, (unsigned)geteuid() + 1);
	save(other, "x", 1);
	make_file("test-owned", KVR_SHM_SEGMENT, 0, "x");
	file_of("test-owned", KVR_SHM_SEGMENT, 0, file);
	if (geteuid() == 0)
		ck_assert_int_eq(chown(file, 4711, 4711), 0);
	file_of("test-link", KVR_SHM_SEGMENT, 0, file);
	ck_assert_int_eq(symlink(other, file), 0);
	gc("left alone   test-foreign: ", "is not a kvring segment",
	   "left alone   test-no-pool: ", "is no pool", "left alone   test-other: ", "version",
	   NULL);
	lacks("removed");
	lacks("test-his");
	lacks("link");
	ck_assert_int_eq(!strstr(output, "owned"), geteuid() == 0);
	ck_assert(there("test-foreign", KVR_SHM_SEGMENT, 0));
	ck_assert(there("test-foreign", KVR_SHM_POOL, 0));
	ck_assert(there("test-no-pool", KVR_SHM_POOL, 0));
	ck_assert(there("test-other", KVR_SHM_SEGMENT, 0));
	ck_assert(there("test-owned", KVR_SHM_SEGMENT, 0));
	ck_assert_int_eq(access(other, F_OK), 0);
	ck_assert_int_eq(readlink(file, other, sizeof other) > 0, 1);
	ck_assert_int_eq(run(tool, NULL, "--gc", "--dir", "/no/such/dir", NULL), 3);
}
END_TEST

START_TEST(test_pools_and_locks_alone)
{
	char file[KVR_SHM_PATH];
	int fd;

	make_file("test-pool", KVR_SHM_POOL, 0, "KVRPOOL1 and slots");
	make_file("test-lock", KVR_SHM_LOCK, 0, "123");
	file_of("test-pool", KVR_SHM_POOL, 0, file);
	fd = open(file, O_RDWR | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	if (fcntl(fd, F_SETLEASE, F_WRLCK)) {
		test_skip("no leases on this file system");
		close(fd);
		return;
	}
	fcntl(fd, F_SETLEASE, F_UNLCK);
	gc("alive        test-pool: somebody has ", "removed      test-lock: 1 file", NULL);
	ck_assert(there("test-pool", KVR_SHM_POOL, 0));
	ck_assert(!there("test-lock", KVR_SHM_LOCK, 0));
	close(fd);
	gc("removed      test-pool: 1 file", NULL);
	ck_assert(!there("test-pool", KVR_SHM_POOL, 0));
}
END_TEST

/* A leader comes while --gc waits for the name lock: what it saw before does not count. */
START_TEST(test_leader_that_comes_meanwhile)
{
	char dead[KVR_NAME_MAX], living[KVR_NAME_MAX], lock[KVR_SHM_PATH], from[KVR_SHM_PATH],
		to[KVR_SHM_PATH], state[64];
	uint64_t deadline = test_deadline_ms(10000);
	pid_t leader, gc_pid;
	int fd, out[2];
	ssize_t n;

	test_name(dead, sizeof dead, "dump");
	test_name(living, sizeof living, "dump");
	end(member(dead, LEADER, 0));
	leader = member(living, LEADER, 0);
	file_of(dead, KVR_SHM_LOCK, 0, lock);
	file_of(living, KVR_SHM_SEGMENT, 0, from);
	file_of(dead, KVR_SHM_SEGMENT, 0, to);
	fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	ck_assert_int_eq(flock(fd, LOCK_EX), 0);
	ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
	gc_pid = fork();
	if (!gc_pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(out[1], 1);
		execl(tool, tool, "--gc", "--dir", dir, dead, NULL);
		_exit(97);
	}
	close(out[1]);
	/* It has looked once it has the lock file open. */
	do {
		char link[512] = "", fds[64];

		test_sleep_ms(2);
		state[0] = 0;
		/* Before exec it has what it inherited. */
		snprintf(fds, sizeof fds, "/proc/%d/exe", (int)gc_pid);
		n = readlink(fds, link, sizeof link - 1);
		link[n > 0 ? n : 0] = 0;
		if (strcmp(link, tool) != 0)
			continue;
		for (int i = 3; i < 12 && !state[0]; i++) {
			snprintf(fds, sizeof fds, "/proc/%d/fd/%d", (int)gc_pid, i);
			n = readlink(fds, link, sizeof link - 1);
			link[n > 0 ? n : 0] = 0;
			if (n > 0 && !strcmp(link, lock))
				strcpy(state, "there");
		}
	} while (!state[0] && test_now_ns() < deadline);
	ck_assert_str_eq(state, "there");
	ck_assert_int_eq(rename(from, to), 0);
	flock(fd, LOCK_UN);
	close(fd);
	ck_assert_int_eq(test_reap(gc_pid, 20000), 0);
	n = read(out[0], output, sizeof output - 1);
	output[n > 0 ? n : 0] = 0;
	close(out[0]);
	begins("alive ");
	has("lives", "is not removed", NULL);
	ck_assert(there(dead, KVR_SHM_SEGMENT, 0));
	end(leader);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("dump_gc");
	TCase *t = tcase_create("dump_gc");

	tcase_add_checked_fixture(t, setup_dir, teardown_dir);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_dead_goes_and_living_stays);
	tcase_add_test(t, test_retired_segments);
	tcase_add_test(t, test_foreign_files_stay);
	tcase_add_test(t, test_pools_and_locks_alone);
	tcase_add_test(t, test_leader_that_comes_meanwhile);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
