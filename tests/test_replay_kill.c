/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends that nobody planned: a rank or the leader of kv-replay is killed in mid-run, or asked to
 * stop. The others end by themselves and say who it was, and the next run under the same name, on
 * the same files, works. Whether that takes a second or, under a sanitizer, longer is not for a
 * test to judge.
 * The program is that of the same build: test_tool().
 */
#include "replay_tool.h"

#define RANKS 3
#define NO_STORE                                                                             \
	"--requests", "1000000", "--ranks", "3", "--block-bytes", "12KiB", "--host", "2MiB", \
		"--nvme", "16MiB", "--verbose"
#define ENDLESS                                                                              \
	"--requests", "1000000", "--ranks", "3", "--block-bytes", "12KiB", "--host", "2MiB", \
		"--nvme", "16MiB", "--store", tool.dir, "--verbose"

static struct tool tool;

static void setup(void)
{
	tool_setup(&tool);
}

static void teardown(void)
{
	tool_teardown(&tool);
}

/* Until blocks are moving: the store's file has changed more often than formatting does. */
static void start(const char *const *args)
{
	struct timespec last = { 0, 0 };
	struct stat st;
	int i, changes = 0;

	tool_start(&tool, args, NULL);
	tool_pid(&tool, "rank 2");
	for (i = 0; i < 10000 && changes < 30; i++) {
		test_sleep_ms(2);
		if (stat(tool_path(&tool, "kvring.store"), &st) || !st.st_size)
			continue;
		changes += st.st_mtim.tv_sec != last.tv_sec || st.st_mtim.tv_nsec != last.tv_nsec;
		last = st.st_mtim;
	}
	if (changes < 30)
		ck_abort_msg("nothing is written to the store");
}

/* The next run takes over the dead name and finds a store that it can use. */
static void assert_next_run_works(void)
{
	TOOL_RUN(&tool, 0, "--requests", "20", "--ranks", "3", "--block-bytes", "12KiB", "--host",
		 "2MiB", "--store", tool.dir, "--json");
	tool_assert_right(&tool);
}

START_TEST(test_killed_rank_is_named_by_all)
{
	char text[128];
	pid_t pid, other;

	start(TOOL_ARGS(ENDLESS));
	pid = tool_pid(&tool, "rank 1");
	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	tool_wait(&tool);
	tool_expect(&tool, 1);
	snprintf(text, sizeof(text), "rank 1 (pid %d) was killed by signal 9", (int)pid);
	tool_says(tool.err, text);
	/* each of the others has a line of its own that names it */
	snprintf(text, sizeof(text), "leader (pid %d): ", (int)tool.pid);
	tool_says(tool.err, text);
	tool_says(strstr(tool.err, text), "rank 1 (pid");
	other = tool_pid(&tool, "rank 0");
	snprintf(text, sizeof(text), "rank 0 (pid %d): ", (int)other);
	tool_says(tool.err, text);
	tool_says(strstr(tool.err, text), "rank 1 (pid");
	ck_assert_int_eq(kill(other, 0), -1); /* it was reaped before the leader ended */
	tool_says(tool.out, "ended by a failure");
	assert_next_run_works();
}
END_TEST

START_TEST(test_killed_leader_is_named_by_all_ranks)
{
	pid_t ranks[RANKS];
	char text[128];
	int i, status;

	start(TOOL_ARGS(ENDLESS));
	for (i = 0; i < RANKS; i++) {
		snprintf(text, sizeof(text), "rank %d", i);
		ranks[i] = tool_pid(&tool, text);
	}
	ck_assert_int_eq(tool_pid(&tool, "leader"), tool.pid);
	ck_assert_int_eq(kill(tool.pid, SIGKILL), 0);
	tool_wait(&tool);
	ck_assert(WIFSIGNALED(tool.status));
	for (i = 0; i < RANKS; i++) {
		status = test_reap(ranks[i], TOOL_WAIT_MS);
		ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	}
	tool_slurp(tool_path(&tool, "err"), tool.err);
	for (i = 0; i < RANKS; i++) {
		snprintf(text, sizeof(text), "rank %d (pid %d): ", i, (int)ranks[i]);
		tool_says(tool.err, text);
		snprintf(text, sizeof(text), "the leader (pid %d", (int)tool.pid);
		tool_says(tool.err, text);
	}
	assert_next_run_works();
}
END_TEST

/* A leader that dies before there is a group leaves nobody waiting. */
START_TEST(test_leader_killed_at_any_time_leaves_no_process)
{
	char text[32];
	int i, status;
	pid_t pid;

	tool_start(&tool, TOOL_ARGS(ENDLESS), NULL);
	pid = tool_pid(&tool, "rank 2");
	test_sleep_ms((uint64_t)_i * 7);
	ck_assert_int_eq(kill(tool.pid, SIGKILL), 0);
	tool_wait(&tool);
	for (i = 0; i < RANKS; i++) {
		snprintf(text, sizeof(text), "rank %d", i);
		pid = tool_pid(&tool, text);
		status = test_reap(pid, TOOL_WAIT_MS);
		ck_assert(WIFEXITED(status));
	}
	tool_slurp(tool_path(&tool, "err"), tool.err);
	tool_says(tool.err, "leader");
}
END_TEST

START_TEST(test_everything_killed_then_next_run_works)
{
	pid_t ranks[RANKS];
	char text[32];
	int i;

	start(TOOL_ARGS(ENDLESS));
	for (i = 0; i < RANKS; i++) {
		snprintf(text, sizeof(text), "rank %d", i);
		ranks[i] = tool_pid(&tool, text);
	}
	kill(tool.pid, SIGSTOP); /* so that nobody says anything */
	for (i = 0; i < RANKS; i++)
		kill(ranks[i], SIGKILL);
	kill(tool.pid, SIGKILL);
	tool_wait(&tool);
	for (i = 0; i < RANKS; i++)
		test_reap(ranks[i], TOOL_WAIT_MS);
	assert_next_run_works();
	ck_assert_uint_gt(tool_number(&tool, "recovered_blocks"), 0);
}
END_TEST

/* All that one run had written is hit after another one on the same files was killed. */
START_TEST(test_what_was_written_survives_a_kill_of_everything)
{
	uint64_t references;
	pid_t ranks[RANKS];
	char text[32];
	int i;

	TOOL_RUN(&tool, 0, "--requests", "100", "--seed", "5", "--ranks", "3", "--block-bytes",
		 "12KiB", "--host", "2MiB", "--nvme", "256MiB", "--store", tool.dir, "--json");
	tool_assert_right(&tool);
	references = tool_number(&tool, "references");
	start(TOOL_ARGS("--requests", "1000000", "--ranks", "3", "--block-bytes", "12KiB", "--host",
			"2MiB", "--store", tool.dir, "--verbose"));
	for (i = 0; i < RANKS; i++) {
		snprintf(text, sizeof(text), "rank %d", i);
		ranks[i] = tool_pid(&tool, text);
		kill(ranks[i], SIGKILL);
	}
	kill(tool.pid, SIGKILL);
	tool_wait(&tool);
	for (i = 0; i < RANKS; i++)
		test_reap(ranks[i], TOOL_WAIT_MS);
	TOOL_RUN(&tool, 0, "--requests", "100", "--seed", "5", "--ranks", "3", "--block-bytes",
		 "12KiB", "--host", "2MiB", "--store", tool.dir, "--json");
	tool_assert_right(&tool);
	tool_assert_number(&tool, "hit_blocks", references);
}
END_TEST

/* The first half of --restart has a leader of its own, a child of the one that reports. */
START_TEST(test_killed_leader_of_the_first_half)
{
	pid_t leader, rank;
	int status;

	start(TOOL_ARGS(ENDLESS, "--restart"));
	leader = tool_pid(&tool, "leader");
	rank = tool_pid(&tool, "rank 1");
	ck_assert_int_ne(leader, tool.pid);
	ck_assert_int_eq(kill(leader, SIGKILL), 0);
	tool_wait(&tool);
	tool_expect(&tool, 1);
	tool_says(tool.err, "the leader (pid ");
	tool_says(tool.err, "was killed by signal 9");
	status = test_reap(rank, TOOL_WAIT_MS);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	/* the other ranks are no concern of the next run either */
	test_reap(tool_pid(&tool, "rank 0"), TOOL_WAIT_MS);
	test_reap(tool_pid(&tool, "rank 2"), TOOL_WAIT_MS);
	assert_next_run_works();
}
END_TEST

/* Reaps the ranks of a process that was killed. */
static void reap_ranks(void)
{
	char text[32];
	int i;

	for (i = 0; i < RANKS; i++) {
		snprintf(text, sizeof(text), "rank %d", i);
		ck_assert(WIFEXITED(test_reap(tool_pid(&tool, text), TOOL_WAIT_MS)));
	}
}

/* The ranks remove it, though they learn of the death before they have another parent. */
START_TEST(test_killed_leader_leaves_no_directory)
{
	char *tmp = tool_own_tmpdir(&tool);

	tool_start(&tool, TOOL_ARGS(NO_STORE), NULL);
	tool_pid(&tool, "rank 2");
	ck_assert_int_eq(tool_entries(tmp), 1);
	test_sleep_ms((uint64_t)_i * 60);
	ck_assert_int_eq(kill(tool.pid, SIGKILL), 0);
	tool_wait(&tool);
	reap_ranks();
	ck_assert_int_eq(tool_entries(tmp), 0);
}
END_TEST

START_TEST(test_first_half_without_its_parent_leaves_no_directory)
{
	char *tmp = tool_own_tmpdir(&tool);
	pid_t leader;
	int status;

	tool_start(&tool, TOOL_ARGS(NO_STORE, "--restart"), NULL);
	tool_pid(&tool, "rank 2");
	leader = tool_pid(&tool, "leader");
	ck_assert_int_eq(tool_entries(tmp), 1);
	test_sleep_ms((uint64_t)_i * 100);
	ck_assert_int_eq(kill(tool.pid, SIGKILL), 0);
	tool_wait(&tool);
	status = test_reap(leader, TOOL_WAIT_MS); /* it has reaped the ranks */
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 130);
	ck_assert_int_eq(tool_entries(tmp), 0);
}
END_TEST

static void assert_interrupted(void)
{
	tool_wait(&tool);
	tool_expect(&tool, 130);
	tool_assert_number(&tool, "wrong_bytes", 0);
	tool_assert_number(&tool, "unfinished", 0);
	tool_says(tool.out, "\"ticks_equal\": true");
	tool_says(tool.out, "\"interrupted\": true");
}

START_TEST(test_interrupt_stops_cleanly)
{
	start(TOOL_ARGS(ENDLESS, "--json"));
	kill(tool.pid, _i ? SIGTERM : SIGINT);
	assert_interrupted();
	assert_next_run_works();
}
END_TEST

START_TEST(test_interrupt_of_the_first_half_stops_all)
{
	start(TOOL_ARGS(ENDLESS, "--json", "--restart"));
	kill(tool.pid, SIGINT);
	assert_interrupted();
}
END_TEST

/* Whatever is in flight: loads by layers, prefetches, aborts, resets. */
#define ALL "--layers", "--prefetch", "4", "--abort", "0.1", "--reset-every", "50"

START_TEST(test_ends_with_all_of_the_protocol)
{
	const char *half = _i % 2 ? "--restart" : "--verbose";
	static const char *const who[] = { "rank 1", "leader" };
	pid_t pid;

	start(TOOL_ARGS(ENDLESS, ALL, "--json", half));
	if (_i < 4) {
		pid = tool_pid(&tool, who[_i / 2]);
		ck_assert_int_eq(kill(pid, SIGKILL), 0);
		tool_wait(&tool);
		if (pid != tool.pid)
			tool_expect(&tool, 1);
		if (_i >= 2)
			reap_ranks();
	} else {
		kill(tool.pid, SIGINT);
		assert_interrupted();
	}
	TOOL_RUN(&tool, 0, "--requests", "100", "--ranks", "3", "--block-bytes", "12KiB", "--host",
		 "2MiB", "--store", tool.dir, "--json", ALL, "--restart");
	tool_assert_right(&tool);
}
END_TEST

static void in_own_group(struct tool *t)
{
	(void)t;
	setpgid(0, 0);
}

/* As a terminal does: all processes get the signal, and it is one wish. */
START_TEST(test_interrupt_of_all_processes_stops_cleanly)
{
	const char *last = _i ? "--restart" : "--verbose";

	tool_start(&tool, TOOL_ARGS(ENDLESS, "--json", last), in_own_group);
	tool_pid(&tool, "rank 2");
	test_sleep_ms(100);
	ck_assert_int_eq(kill(-tool.pid, SIGINT), 0);
	assert_interrupted();
}
END_TEST

/* Whoever asks twice does not want to wait for a rank that is stopped. It is named. */
START_TEST(test_second_interrupt_ends_at_once)
{
	char text[128];
	pid_t pid;
	int i;

	start(TOOL_ARGS(ENDLESS, "--json"));
	pid = tool_pid(&tool, "rank 1");
	ck_assert_int_eq(kill(pid, SIGSTOP), 0);
	for (i = 0; i < 20 && !kill(tool.pid, SIGINT); i++) {
		test_sleep_ms(600); /* less is the same wish */
		tool_slurp(tool_path(&tool, "err"), tool.err);
		if (strstr(tool.err, "second"))
			break;
	}
	tool_wait(&tool);
	tool_expect(&tool, 1);
	tool_says(tool.err, "ended by a second signal");
	snprintf(text, sizeof(text), "; rank 1 (pid %d) is stopped", (int)pid);
	tool_says(tool.err, text);
	snprintf(text, sizeof(text), "rank 0 (pid %d): ", (int)tool_pid(&tool, "rank 0"));
	if (!strstr(tool.err, "all ranks to leave")) /* then rank 0 had left in good order */
		tool_says(strstr(tool.err, text), "because of rank 1 (pid");
	assert_next_run_works();
}
END_TEST

static void signal_in_advance(struct tool *t)
{
	sigset_t set;

	(void)t;
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	raise(SIGINT);
}

/* A signal that came before the group was there: no request runs, and bad input is not the news. */
START_TEST(test_interrupt_before_the_group_is_there)
{
	if (_i) /* no store will do that */
		ck_assert_int_eq(mkdir(tool_path(&tool, "kvring.store"), 0700), 0);
	tool_start(&tool, TOOL_ARGS("--requests", "50", "--store", tool.dir, "--nvme", "16MiB"),
		   signal_in_advance);
	tool_wait(&tool);
	tool_expect(&tool, 130);
	if (_i)
		tool_says(tool.err, "kvring.store");
	else
		tool_says(tool.out, "requests         0 of 50");
}
END_TEST

START_TEST(test_name_of_a_living_group_is_refused)
{
	static struct tool second;

	start(TOOL_ARGS(ENDLESS, "--json"));
	second = tool;
	snprintf(second.dir, sizeof(second.dir), "%s", tool_path(&tool, "second"));
	ck_assert_int_eq(mkdir(second.dir, 0700), 0);
	TOOL_RUN(&second, 2, "--requests", "5", "--store", second.dir);
	tool_says(second.err, "alive");
	kill(tool.pid, SIGINT);
	assert_interrupted();
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("replay_kill");
	TCase *c = tcase_create("ends");
	int few = KVR_TEST_TSAN || KVR_TEST_ASAN; /* up to five seconds each there */

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, test_killed_rank_is_named_by_all);
	tcase_add_test(c, test_killed_leader_is_named_by_all_ranks);
	tcase_add_loop_test(c, test_leader_killed_at_any_time_leaves_no_process, 0, few ? 1 : 5);
	tcase_add_test(c, test_everything_killed_then_next_run_works);
	tcase_add_test(c, test_what_was_written_survives_a_kill_of_everything);
	tcase_add_test(c, test_killed_leader_of_the_first_half);
	tcase_add_loop_test(c, test_killed_leader_leaves_no_directory, 0, few ? 1 : 4);
	tcase_add_loop_test(c, test_first_half_without_its_parent_leaves_no_directory, 0,
			    few ? 1 : 2);
	tcase_add_loop_test(c, test_interrupt_stops_cleanly, 0, few ? 1 : 2);
	tcase_add_loop_test(c, test_ends_with_all_of_the_protocol, 0, few ? 2 : 6);
	tcase_add_loop_test(c, test_interrupt_of_all_processes_stops_cleanly, 0, few ? 1 : 2);
	tcase_add_test(c, test_second_interrupt_ends_at_once);
	tcase_add_loop_test(c, test_interrupt_before_the_group_is_there, 0, few ? 1 : 2);
	tcase_add_test(c, test_interrupt_of_the_first_half_stops_all);
	tcase_add_test(c, test_name_of_a_living_group_is_refused);
	suite_add_tcase(s, c);
	return s;
}

int main(void)
{
	if (KVR_TEST_TSAN)
		return test_no_threads_of_its_own();
	return kvr_test_main(suite);
}
