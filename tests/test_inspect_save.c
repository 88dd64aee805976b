/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saved copies: what they show is the moment in which they were saved, whatever becomes of the
 * group, and however much was written while they were copied. A trailer is input like the rest.
 */
#include <fts.h>
#include <sys/resource.h>

#include "hash.h"
#include "inspect_priv.h"
#include "inspect_util.h"

static char dir[256], copy[300];

static void setup_dir(void)
{
	setup();
	test_tmpdir(dir, sizeof dir);
	snprintf(copy, sizeof copy, "%s/copy.seg", dir);
}

static void teardown_dir(void)
{
	test_rmdir(dir);
	teardown();
}

static int files_in(const char *where)
{
	char *const argv[] = { (char *)(uintptr_t)where, NULL };
	FTS *fts = fts_open(argv, FTS_PHYSICAL, NULL);
	FTSENT *e;
	int n = 0;

	ck_assert_ptr_nonnull(fts);
	while ((e = fts_read(fts)))
		n += e->fts_info == FTS_F;
	fts_close(fts);
	return n;
}

/* Both say the same of everything. */
static void same_look(struct kvr_inspect *a, struct kvr_inspect *b)
{
	static struct kvr_inspect_message m[2][64];
	static struct kvr_inspect_event e[2][64];
	struct kvr_inspect_group g[2];
	struct kvr_inspect_proc p[2];
	struct kvr_inspect_channel c[2];
	struct kvr_inspect_op ops[2][16];
	struct kvr_inspect_log log[2];
	struct kvr_inspect_call calls[2][64];
	struct kvr_inspect *in[2] = { a, b };
	int n[2];

	for (int i = 0; i < 2; i++) {
		must(kvr_inspect_group(in[i], &g[i]));
		g[i].now_ns = g[i].saved_unix_ns = 0;
	}
	ck_assert_mem_eq(&g[0], &g[1], sizeof g[0]);
	for (uint32_t r = 0; r <= g[0].ranks; r++) {
		uint32_t rank = r < g[0].ranks ? r : LEADER;

		for (int i = 0; i < 2; i++) {
			uint64_t next = 0;

			must(kvr_inspect_proc(in[i], rank, &p[i]));
			n[i] = kvr_inspect_events_next(in[i], rank, &next, e[i], 64);
		}
		ck_assert_mem_eq(&p[0], &p[1], sizeof p[0]);
		ck_assert_int_eq(n[0], n[1]);
		ck_assert_mem_eq(e[0], e[1], (size_t)n[0] * sizeof e[0][0]);
		for (uint32_t k = 0; k < KVR_ALIKES; k++) {
			for (int i = 0; i < 2; i++)
				n[i] = kvr_inspect_log(in[i], rank, k, &log[i], calls[i], 64);
			ck_assert_int_eq(n[0], n[1]);
			ck_assert_mem_eq(&log[0], &log[1], sizeof log[0]);
			ck_assert_mem_eq(calls[0], calls[1], (size_t)n[0] * sizeof calls[0][0]);
		}
		for (uint32_t ch = 0; ch < KVR_CHANNELS && rank != LEADER; ch++) {
			for (int i = 0; i < 2; i++) {
				must(kvr_inspect_channel(in[i], ch, rank, &c[i]));
				n[i] = kvr_inspect_messages(in[i], ch, rank, m[i], 64);
			}
			ck_assert_mem_eq(&c[0], &c[1], sizeof c[0]);
			ck_assert_int_eq(n[0], n[1]);
			ck_assert_mem_eq(m[0], m[1], (size_t)n[0] * sizeof m[0][0]);
		}
	}
	for (int i = 0; i < 2; i++)
		n[i] = kvr_inspect_ops(in[i], ops[i], 16);
	ck_assert_int_eq(n[0], n[1]);
	ck_assert_mem_eq(ops[0], ops[1], (size_t)n[0] * sizeof ops[0][0]);
}

START_TEST(test_copy_shows_the_same)
{
	char name[KVR_NAME_MAX];
	struct kvr_alike_logs logs;
	struct kvr_inspect *live, *saved;
	struct kvr_inspect_group g;
	struct kvr_inspect_message m;
	struct side l, r[2];
	uint64_t before;
	char large[600];
	struct stat st;

	make_group(name, &l, r);
	logs_of(&l, &logs);
	for (uint64_t i = 0; i < 20; i++)
		call_alike(&logs, KVR_ALIKE_LOAD, i);
	memset(large, 'L', sizeof large);
	ops_of(&l)[3] = (struct kvr_op_entry){ .word = kvr_word(7, KVR_STAGE_COPIED, 0),
					       .request = 99,
					       .need = 1 };
	must(publish(&l, 1, 300, 77, large, sizeof large)); /* in the bulk area */
	must(kvr_inspect_open_name(NULL, name, &live));
	before = test_now_ns();
	must(kvr_inspect_save(live, copy, 0));
	ck_assert_int_eq(stat(copy, &st), 0);
	ck_assert_uint_eq(st.st_mode & 07777, 0600);
	ck_assert_int_eq(files_in(dir), 1);
	must(kvr_inspect_open(copy, &saved));
	same_look(live, saved);
	ck_assert_int_eq(kvr_inspect_messages(saved, KVR_CH_USER0, 0, &m, 1), 1);
	ck_assert_int_eq(m.bulk, 1);
	ck_assert_uint_eq(m.len, sizeof large);
	ck_assert_mem_eq(m.payload, large, sizeof m.payload);
	must(kvr_inspect_group(saved, &g));
	ck_assert_uint_ge(g.now_ns, before);
	ck_assert_uint_le(g.now_ns, test_now_ns());
	ck_assert_uint_gt(g.saved_unix_ns, 1600000000ull * 1000000000u);
	ck_assert_uint_eq(g.same_boot, 1);
	must(kvr_inspect_group(live, &g));
	ck_assert_uint_eq(g.saved_unix_ns, 0);
	kvr_inspect_close(live);
	/* A copy of the copy is the same copy. */
	must(kvr_inspect_save(saved, copy, 1));
	must(kvr_inspect_open(copy, &live));
	same_look(live, saved);
	ck_assert_uint_eq(kvr_inspect_now(live), kvr_inspect_now(saved));
	kvr_inspect_close(live);
	kvr_inspect_close(saved);
	end_group(&l, r);
}
END_TEST

START_TEST(test_largest_group)
{
	struct kvr_group_opts o = { .size = sizeof o,
				    .ranks = KVR_MAX_RANKS,
				    .ring_bytes = 1024,
				    .events = 16,
				    .ops = 16,
				    .bulk_bytes = 4096 };
	struct kvr_inspect *live, *saved;
	struct kvr_inspect_proc p;
	char name[KVR_NAME_MAX];
	struct side l, r;

	test_name(name, sizeof name, "inspect");
	must(kvr_group_create(name, &o, &l.g));
	must(kvr_channels_open(l.g, &l.c));
	must(join(name, KVR_MAX_RANKS - 1, &r));
	must(publish(&l, 0, 300, 1, "all", 3));
	must(kvr_inspect_open_name(NULL, name, &live));
	must(kvr_inspect_save(live, copy, 0));
	must(kvr_inspect_open(copy, &saved));
	same_look(live, saved);
	must(kvr_inspect_proc(saved, KVR_MAX_RANKS - 1, &p));
	ck_assert_int_eq(p.alive, 1);
	must(kvr_inspect_proc(saved, 0, &p));
	ck_assert_int_eq(p.alive, 0);
	must(kvr_inspect_proc(saved, LEADER, &p));
	ck_assert_int_eq(p.alive, 1);
	kvr_inspect_close(saved);
	kvr_inspect_close(live);
	leave(&r);
	leave(&l);
}
END_TEST

static int sleeps(struct side *s, struct report *r)
{
	(void)s;
	r->seen = 1;
	pause();
	return 0;
}

/* Killed after it was saved: alive in the copy. Killed before: dead in it, also when the machine
 * that looks knows nothing of these processes. */
START_TEST(test_processes_are_those_of_the_moment)
{
	char name[KVR_NAME_MAX];
	struct kvr_inspect_proc p;
	struct kvr_inspect *in;
	uint64_t deadline = test_deadline_ms(10000);
	struct side l;
	pid_t pids[2];

	test_name(name, sizeof name, "inspect");
	pids[0] = spawn(name, 0, sleeps);
	pids[1] = spawn(name, 1, sleeps);
	must(lead_all(name, 2, &l));
	while ((!reports[0].seen || !reports[1].seen) && test_now_ns() < deadline)
		test_sleep_ms(1);
	kill(pids[1], SIGKILL);
	test_reap(pids[1], 5000);
	kill(pids[0], SIGSTOP);
	ck_assert_int_eq(waitpid(pids[0], NULL, WUNTRACED), pids[0]);
	must(kvr_inspect_open_name(NULL, name, &in));
	must(kvr_inspect_save(in, copy, 0));
	kvr_inspect_close(in);
	kill(pids[0], SIGKILL);
	test_reap(pids[0], 5000);
	must(kvr_inspect_open(copy, &in));
	must(kvr_inspect_proc(in, 0, &p));
	ck_assert_int_eq(p.alive, 1);
	ck_assert_uint_eq(p.peer, KVR_PEER_STOPPED);
	ck_assert_int_eq(p.gone, 0);
	must(kvr_inspect_proc(in, 1, &p));
	ck_assert_int_eq(p.alive, -1);
	ck_assert_uint_eq(p.peer, KVR_PEER_DEAD);
	must(kvr_inspect_proc(in, LEADER, &p));
	ck_assert_int_eq(p.alive, 1);
	kvr_inspect_close(in);
	leave(&l);
}
END_TEST

START_TEST(test_copy_of_a_group_that_writes_is_whole)
{
	static struct kvr_inspect_message m[256];
	uint64_t end = test_deadline_ms(300), messages = 0;
	struct kvr_inspect *in, *saved;
	struct crowd c;

	start_crowd(&c);
	in = open_running(&c);
	do {
		must(kvr_inspect_save(in, copy, 1));
		must(kvr_inspect_open(copy, &saved));
		ck_assert_int_eq(everything(saved), 0);
		for (uint32_t r = 0; r < 2; r++) {
			int n = kvr_inspect_messages(saved, KVR_CH_USER0, r, m, 256);

			ck_assert_int_ge(n, 0);
			check_messages(m, n);
			messages += (uint64_t)n;
		}
		kvr_inspect_close(saved);
	} while (test_now_ns() < end);
	ck_assert_uint_gt(messages, 0);
	kvr_inspect_close(in);
	kill_crowd(&c);
	remove_group(c.name);
}
END_TEST

START_TEST(test_names_that_are_taken_are_left_alone)
{
	char name[KVR_NAME_MAX], path[KVR_SHM_PATH], other[300], text[8] = "";
	struct kvr_inspect *in;
	struct side l, r[2];
	struct stat a, b;
	int fd;

	make_group(name, &l, r);
	must(kvr_inspect_open_name(NULL, name, &in));
	save(copy, "mine", 4);
	ck_assert_int_eq(kvr_inspect_save(in, copy, 0), -EEXIST);
	explained(kvr_explain(), copy, "exists", NULL);
	fd = open(copy, O_RDONLY | O_CLOEXEC);
	ck_assert_int_eq(read(fd, text, 7), 4);
	close(fd);
	ck_assert_str_eq(text, "mine");
	ck_assert_int_eq(files_in(dir), 1); /* nothing half-made */
	/* Never a group's name, not even when told to replace. */
	path_of(name, KVR_SHM_SEGMENT, 0, path);
	ck_assert_int_eq(stat(path, &a), 0);
	ck_assert_int_eq(kvr_inspect_save(in, path, 1), -EINVAL);
	explained(kvr_explain(), path, "belong to the group", NULL);
	ck_assert_int_eq(stat(path, &b), 0);
	ck_assert_uint_eq(a.st_ino, b.st_ino);
	path_of(name, KVR_SHM_RETIRED, 3, path);
	ck_assert_int_eq(kvr_inspect_save(in, path, 0), -EINVAL);
	ck_assert_int_eq(kvr_inspect_save(in, "/no/such/dir/x", 0), -ENOENT);
	explained(kvr_explain(), "/no/such/dir/x", NULL);
	snprintf(other, sizeof other, "%s/a-directory", dir);
	ck_assert_int_eq(mkdir(other, 0700), 0);
	ck_assert_int_lt(kvr_inspect_save(in, other, 1), 0);
	ck_assert_int_eq(files_in(dir), 1);
	kvr_inspect_close(in);
	end_group(&l, r);
}
END_TEST

/* Fails, and leaves nothing: the segment ends, or the file system has no room. */
START_TEST(test_copy_that_fails_leaves_nothing)
{
	char name[KVR_NAME_MAX], path[KVR_SHM_PATH];
	struct rlimit old, small = { 20000, 0 };
	struct kvr_inspect *in;
	struct side l, r[2];
	uint8_t *bytes;
	char cut[300];
	size_t len;

	make_group(name, &l, r);
	path_of(name, KVR_SHM_SEGMENT, 0, path);
	bytes = load(path, &len);
	snprintf(cut, sizeof cut, "%s/cut", dir);
	save(cut, bytes, len);
	must(kvr_inspect_open(cut, &in));
	ck_assert_int_eq(truncate(cut, (off_t)len - 4096), 0);
	ck_assert_int_eq(kvr_inspect_save(in, copy, 0), -EBADMSG);
	explained(kvr_explain(), "missing", NULL);
	kvr_inspect_close(in);
	free(bytes);
	ck_assert_int_eq(files_in(dir), 1);
	must(kvr_inspect_open(path, &in));
	signal(SIGXFSZ, SIG_IGN);
	ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
	small.rlim_max = old.rlim_max;
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
	ck_assert_int_eq(kvr_inspect_save(in, copy, 0), -EFBIG);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
	ck_assert_int_eq(files_in(dir), 1);
	kvr_inspect_close(in);
	end_group(&l, r);
}
END_TEST

static void refused(const char *why)
{
	struct kvr_inspect *in;

	ck_assert_int_eq(kvr_inspect_open(copy, &in), -EPROTO);
	explained(kvr_explain(), copy, why, NULL);
}

START_TEST(test_trailers_that_are_not_what_was_saved_are_refused)
{
	char name[KVR_NAME_MAX];
	struct kvr_inspect *in;
	struct side l, r[2];
	struct kvr_saved *t;
	uint8_t *bytes;
	size_t len, at;

	make_group(name, &l, r);
	must(kvr_inspect_open_name(NULL, name, &in));
	must(kvr_inspect_save(in, copy, 0));
	at = in->layout.total;
	kvr_inspect_close(in);
	end_group(&l, r);
	bytes = load(copy, &len);
	ck_assert_uint_eq(len, at + sizeof *t);
	t = malloc(sizeof *t);
	memcpy(t, bytes + at, sizeof *t);
	for (size_t i = 12; i < sizeof *t; i += 97) {
		bytes[at + i] ^= 1;
		save(copy, bytes, len);
		refused(i < 16 ? "version" : "checksum of its trailer");
		bytes[at + i] ^= 1;
	}
	save(copy, bytes, len - 1);
	refused("");
	save(copy, bytes, at + 10); /* no trailer, and not the size */
	refused("total_bytes");
	bytes[at] ^= 1; /* no trailer at all */
	save(copy, bytes, len);
	refused("total_bytes");
	t->version = 9;
	memcpy(bytes + at, t, sizeof *t);
	save(copy, bytes, len);
	refused("version 9");
	/* Made on purpose, with the right checksum. */
	t->version = KVR_SAVED_VERSION;
	t->proc[1].alive = 2;
	t->checksum = kvr_hash(t, offsetof(struct kvr_saved, checksum), 0);
	memcpy(bytes + at, t, sizeof *t);
	save(copy, bytes, len);
	refused("no such state");
	t->proc[1].alive = 1;
	t->proc[1].peer = 77;
	t->now_ns = 0;
	memset(t->later, 0xff, sizeof t->later);
	t->checksum = kvr_hash(t, offsetof(struct kvr_saved, checksum), 0);
	memcpy(bytes + at, t, sizeof *t);
	save(copy, bytes, len);
	must(kvr_inspect_open(copy, &in));
	ck_assert_int_eq(everything(in), 0);
	kvr_inspect_close(in);
	free(t);
	free(bytes);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("inspect_save");
	TCase *t = tcase_create("inspect_save");

	tcase_add_checked_fixture(t, setup_dir, teardown_dir);
	tcase_add_test(t, test_copy_shows_the_same);
	tcase_add_test(t, test_largest_group);
	tcase_add_test(t, test_processes_are_those_of_the_moment);
	tcase_add_test(t, test_copy_of_a_group_that_writes_is_whole);
	tcase_add_test(t, test_names_that_are_taken_are_left_alone);
	tcase_add_test(t, test_copy_that_fails_leaves_nothing);
	tcase_add_test(t, test_trailers_that_are_not_what_was_saved_are_refused);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
