/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups that are over, files that cannot be read, copies of the moment, and all groups at once:
 * sentences and exit statuses of ring-dump.
 */
#include "dump_util.h"

static char dir[256], name[KVR_NAME_MAX];

static void setup_dir(void)
{
	test_tool(tool, sizeof tool, "ring-dump");
	setup_tool();
	test_tmpdir(dir, sizeof dir);
	test_name(name, sizeof name, "dump");
	group_dir = NULL;
}

static void teardown_dir(void)
{
	test_rmdir(dir);
	teardown();
}

static void check(int status, const char *word, ...) __attribute__((sentinel));
static void check(int status, const char *word, ...)
{
	int got = group_dir ? run(tool, NULL, "--check", "--dir", group_dir, name, NULL)
			    : run(tool, NULL, "--check", name, NULL);
	va_list ap;

	ck_assert_msg(got == status, "status %d instead of %d: %s", got, status, output);
	ck_assert_ptr_eq(strchr(output, '\n'), output + strlen(output) - 1);
	va_start(ap, word);
	for (; word; word = va_arg(ap, const char *))
		ck_assert_msg(strstr(output, word), "\"%s\" is not in: %s", word, output);
	va_end(ap);
}

static int sleeps(struct side *s, struct report *r)
{
	(void)s;
	r->seen = 1;
	pause();
	return 0;
}

static void await_rank(uint32_t rank)
{
	uint64_t deadline = test_deadline_ms(10000);

	while (!reports[rank].seen && test_now_ns() < deadline)
		test_sleep_ms(1);
	ck_assert_uint_eq(reports[rank].seen, 1);
}

/* A leader that dies inside a call, and a rank that lives on. */
START_TEST(test_dead_leader_and_living_rank)
{
	char text[128];
	pid_t leader = fork(), rank, other;
	uint64_t deadline = test_deadline_ms(10000);
	struct side s;

	if (!leader) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (lead_all(name, 2, &s))
			_exit(99);
		kvr_group_enter(s.g, KVR_CALL_STORE_BEGIN, KVR_CH_STORE);
		pause();
	}
	rank = spawn(name, 0, sleeps);
	other = spawn(name, 1, sleeps);
	await_rank(0);
	await_rank(1);
	do
		ck_assert_int_eq(run(tool, NULL, "--show", "ranks", name, NULL), 0);
	while (!strstr(output, "in store_begin") && test_now_ns() < deadline);
	kill(leader, SIGKILL);
	test_reap(leader, 5000);
	kill(other, SIGKILL);
	test_reap(other, 5000);
	snprintf(text, sizeof text, ": leader (pid %d) died inside store_begin; ", (int)leader);
	check(2, name, text, "leader last active ", NULL);
	snprintf(text, sizeof text, "rank 0 (pid %d)", (int)rank);
	has(text, "still alive", NULL);
	kill(rank, SIGKILL);
	test_reap(rank, 5000);
	check(2, "ranks 0 (pid ", "died", NULL);
	lacks("still alive");
	remove_group(name);
}
END_TEST

START_TEST(test_dead_rank_failed_epoch_retired_and_left)
{
	struct kvr_group_opts o = { .size = sizeof o, .ranks = 2 };
	char text[128], path[KVR_SHM_PATH];
	struct kvr_group *next;
	struct side s;
	pid_t rank;

	rank = spawn(name, 1, sleeps);
	must(lead(name, 2, &s));
	await_rank(1);
	check(0, "fine: leader and 1 of 2 ranks alive", NULL);
	kill(rank, SIGKILL);
	test_reap(rank, 5000);
	snprintf(text, sizeof text, ": rank 1 (pid %d) died; ", (int)rank);
	check(2, text, NULL);
	must(kvr_group_fail(s.g, 1, -EOWNERDEAD));
	check(2, text, "the leader ended the epoch: Owner died (rank 1)", NULL);
	leave(&s);
	check(2, "is gone (failed)", "the leader ended the epoch", NULL);
	must(kvr_group_create(name, &o, &next));
	path_of(name, KVR_SHM_RETIRED, 1, path);
	check(0, "fine: leader and 0 of 2 ranks", NULL);
	ck_assert_int_eq(run(tool, NULL, "--check", path, NULL), 2);
	has("retired: epoch 2 replaced it ", " ago (its leader was gone)", "ended the epoch", NULL);
	kvr_group_close(next);
	check(3, "cannot read: ", "No such file", NULL);
	unlink(path);
}
END_TEST

START_TEST(test_nobody_ever_came)
{
	pid_t leader = fork();
	struct side s;

	if (!leader)
		_exit(lead(name, 3, &s) ? 99 : raise(SIGKILL));
	ck_assert_int_eq(WTERMSIG(test_reap(leader, 5000)), SIGKILL);
	check(2, "leader (pid ", "no rank was attached", NULL);
	remove_group(name);
}
END_TEST

/* The machine was started again: nobody of it lives, and no age means anything. */
START_TEST(test_segment_of_another_boot)
{
	char file[300], path[KVR_SHM_PATH];
	struct kvr_seg_header *h;
	struct side l, r[2];
	uint8_t *bytes;
	size_t len;

	make_dump_group(name, &l, r, NULL);
	path_of(name, KVR_SHM_SEGMENT, 0, path);
	bytes = load(path, &len);
	end_group(&l, r);
	h = (void *)bytes;
	h->boot_id[3] ^= 1;
	h->checksum = kvr_header_sum(h);
	snprintf(file, sizeof file, "%s/old", dir);
	save(file, bytes, len);
	free(bytes);
	ck_assert_int_eq(run(tool, NULL, "--verdict", "--stall", "0", file, NULL), 2);
	begins("a segment from before the machine restarted; leader (pid ");
	has("died", NULL);
	lacks(" ago");
	lacks("old)");
	ck_assert_int_eq(run(tool, NULL, file, NULL), 2);
	lacks(" ms");
	lacks(" us ");
	ck_assert_int_eq(run(tool, NULL, "--json", file, NULL), 2);
	json("d['group']['same_boot'] is False and d['group']['age_ms'] is None and "
	     "d['leader']['in_call_ms'] is None and d['events'][0]['age_ms'] is None");
	ck_assert_int_eq(run(tool, NULL, "--prom", file, NULL), 0);
	lacks("_seconds{");
}
END_TEST

START_TEST(test_what_cannot_be_read)
{
	char path[KVR_SHM_PATH], big[5000];
	uint64_t seed = test_seed();
	uint8_t *bytes;
	size_t len;
	struct side l, r[2];

	group_dir = dir;
	check(3, "cannot read: ", name, "No such file", NULL);
	ck_assert_int_eq(run(tool, NULL, "--verdict", "--dir", dir, name, NULL), 3);
	begins("ring-dump: no group ");
	must(kvr_shm_path(path, sizeof path, dir, name, KVR_SHM_SEGMENT, 0));
	for (size_t i = 0; i < sizeof big; i++)
		big[i] = (char)((seed = seed * 6364136223846793005u + 1442695040888963407u) >> 56);
	save(path, big, sizeof big);
	chmod(path, 0600);
	check(3, "cannot read: ", "is not a kvring segment", NULL);
	ck_assert_int_eq(run(tool, NULL, "--json", "--dir", dir, name, NULL), 3);
	begins("ring-dump: ");
	ck_assert_int_eq(run(tool, NULL, "--prom", "--dir", dir, NULL), 0);
	has("kvring_unreadable 1\n", NULL);
	ck_assert_int_eq(run(tool, NULL, "--check", "--dir", dir, NULL), 3);
	has("cannot read: ", NULL);
	ck_assert_int_eq(run(tool, NULL, "--dir", dir, NULL), 0);
	has("broken", NULL);
	unlink(path);
	make_dump_group(name, &l, r, NULL);
	must(kvr_shm_path(path, sizeof path, dir, name, KVR_SHM_SEGMENT, 0));
	check(0, "fine", NULL);
	bytes = load(path, &len);
	end_group(&l, r);
	save(path, bytes, 9000);
	free(bytes);
	check(3, "cannot read: ", "truncated", NULL);
}
END_TEST

START_TEST(test_check_of_all_groups_is_the_worst)
{
	char fine[KVR_NAME_MAX], drifts[KVR_NAME_MAX], dead[KVR_NAME_MAX], line[128];
	struct kvr_alike_logs logs[2];
	struct side l[2], r[2][2];
	pid_t pid;

	group_dir = dir;
	ck_assert_int_eq(run(tool, NULL, "--check", "--dir", dir, NULL), 0);
	begins("no groups of uid ");
	make_dump_group(fine, &l[0], r[0], NULL);
	ck_assert_int_eq(run(tool, NULL, "--check", "--dir", dir, NULL), 0);
	make_dump_group(drifts, &l[1], r[1], NULL);
	logs_of(&l[1], &logs[0]);
	logs_of(&r[1][0], &logs[1]);
	call_alike(&logs[0], KVR_ALIKE_LOAD, 1);
	call_alike(&logs[1], KVR_ALIKE_LOAD, 2);
	ck_assert_int_eq(run(tool, NULL, "--check", "--dir", dir, NULL), 1);
	snprintf(line, sizeof line, "%s: drift: ", drifts);
	has(line, NULL);
	snprintf(line, sizeof line, "%s: fine: ", fine);
	has(line, NULL);
	ck_assert_int_eq(run(tool, NULL, "--dir", dir, NULL), 1);
	test_name(dead, sizeof dead, "dump");
	pid = fork();
	if (!pid) {
		struct kvr_group_opts o = { .size = sizeof o, .dir = dir, .ranks = 1 };
		struct kvr_group *g;

		_exit(kvr_group_create(dead, &o, &g) ? 99 : raise(SIGKILL));
	}
	ck_assert_int_eq(WTERMSIG(test_reap(pid, 5000)), SIGKILL);
	ck_assert_int_eq(run(tool, NULL, "--check", "--dir", dir, NULL), 2);
	snprintf(line, sizeof line, "%s: leader (pid %d) died", dead, (int)pid);
	has(line, NULL);
	ck_assert_int_eq(run(tool, NULL, "--dir", dir, NULL), 2);
	end_group(&l[1], r[1]);
	end_group(&l[0], r[0]);
}
END_TEST

START_TEST(test_saved_copy_says_what_was)
{
	char file[300], text[128];
	struct side s;
	pid_t rank;

	snprintf(file, sizeof file, "%s/then.seg", dir);
	rank = spawn(name, 0, sleeps);
	must(lead(name, 1, &s));
	await_rank(0);
	ck_assert_int_eq(run(tool, NULL, "--save", file, name, NULL), 0);
	has("saved to", file, NULL);
	ck_assert_int_eq(run(tool, NULL, "--save", file, name, NULL), 3);
	has("exists already", "--force", NULL);
	kill(rank, SIGKILL);
	test_reap(rank, 5000);
	/* Then it was fine, and nothing was old. */
	test_sleep_ms(1100);
	ck_assert_int_eq(run(tool, NULL, "--check", file, NULL), 0);
	has("fine: leader and 1 of 1 ranks alive", NULL);
	ck_assert_int_eq(run(tool, NULL, file, NULL), 0);
	has("saved      20", " UTC: ages and processes are those of then", NULL);
	ck_assert_int_eq(run(tool, NULL, "--json", file, NULL), 0);
	json("d['group']['saved_unix_ms'] > 1600000000000 and d['group']['age_ms'] < "
	     "1e9 and all(r['alive'] for r in d['ranks']) and d['leader']['active_ms'] < 1e9");
	ck_assert_int_eq(run(tool, NULL, "--save", file, "--force", name, NULL), 0);
	snprintf(text, sizeof text, "rank 0 (pid %d) died", (int)rank);
	ck_assert_int_eq(run(tool, NULL, "--check", file, NULL), 2);
	has(text, NULL);
	ck_assert_int_eq(run(tool, NULL, "--save", file, "no-such-group", NULL), 3);
	leave(&s);
	/* Dead in the copy, and in the age of its death, for ever. */
	ck_assert_int_eq(run(tool, NULL, "--check", file, NULL), 2);
	has(text, NULL);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("dump_over");
	TCase *t = tcase_create("dump_over");

	tcase_add_checked_fixture(t, setup_dir, teardown_dir);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_dead_leader_and_living_rank);
	tcase_add_test(t, test_dead_rank_failed_epoch_retired_and_left);
	tcase_add_test(t, test_nobody_ever_came);
	tcase_add_test(t, test_segment_of_another_boot);
	tcase_add_test(t, test_what_cannot_be_read);
	tcase_add_test(t, test_check_of_all_groups_is_the_worst);
	tcase_add_test(t, test_saved_copy_says_what_was);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
