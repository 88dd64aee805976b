/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring-dump --follow beside real processes: every event once, in the order of their times, and a
 * clear end whatever ends the group.
 */
#include "dump_util.h"

static char name[KVR_NAME_MAX];
static pid_t follower;
static int from;
static size_t used;

static void setup_follow(void)
{
	test_tool(tool, sizeof tool, "ring-dump");
	setup_tool();
	test_name(name, sizeof name, "dump");
	used = 0;
}

/* Starts it; what it prints goes to `from`. */
static void follow(const char *option, const char *value)
{
	const char *argv[] = { tool, "--follow", name, option, value, NULL };
	int out[2];

	ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
	follower = fork();
	if (!follower) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (dup2(out[1], 1) < 0 || dup2(out[1], 2) < 0)
			_exit(98);
		execv(tool, (char **)(uintptr_t)argv);
		_exit(97);
	}
	close(out[1]);
	from = out[0];
	ck_assert_int_eq(fcntl(from, F_SETFL, O_NONBLOCK), 0);
}

static void drain(void)
{
	ssize_t n;

	while (used < sizeof output - 1 &&
	       (n = read(from, output + used, sizeof output - 1 - used)) > 0)
		used += (size_t)n;
	output[used] = 0;
}

/* Until it has printed that. */
static void await(const char *text)
{
	uint64_t deadline = test_deadline_ms(10000);

	for (drain(); !strstr(output, text) && test_now_ns() < deadline; drain())
		test_sleep_ms(1);
	has(text, NULL);
}

/* Its exit status; all that it printed is in `output` then. */
static int ended(void)
{
	int status = test_reap(follower, 10000);

	drain();
	close(from);
	ck_assert_msg(WIFEXITED(status), "status %#x: %.2000s", status, output);
	return WEXITSTATUS(status);
}

/* The times at the front of the lines never go back. */
static void in_order(void)
{
	char last[16] = "";

	for (const char *at = output; *at; at = strchr(at, '\n') + 1) {
		if (!strncmp(at, "over: ", 6) || !strncmp(at, "... ", 4))
			continue;
		ck_assert_msg(at[2] == ':' && at[8] == '.' && at[15] == ' ', "%.80s", at);
		ck_assert_int_le(strncmp(last, at, 15), 0);
		memcpy(last, at, 15);
	}
}

static uint32_t count(const char *text)
{
	uint32_t n = 0;

	for (const char *at = output; (at = strstr(at, text)); at++)
		n++;
	return n;
}

/* As many messages as the test asks for, step by step. */
static int steps(struct side *s, struct report *rep)
{
	struct kvr_message m;
	int err;

	rep->seen = 1;
	while (!(err = kvr_channels_take(s->c, KVR_CH_USER0, test_deadline_ms(10000), &m)))
		;
	return err;
}

static void start(struct side *l, pid_t ranks[2])
{
	uint64_t deadline = test_deadline_ms(10000);

	for (uint32_t i = 0; i < 2; i++) /* forked before this process has threads */
		ranks[i] = spawn(name, i, steps);
	must(lead_all(name, 2, l));
	while ((!reports[0].seen || !reports[1].seen) && test_now_ns() < deadline)
		test_sleep_ms(1);
}

START_TEST(test_every_event_once_until_the_leader_leaves)
{
	pid_t ranks[2];
	struct side l;
	char text[64];

	start(&l, ranks);
	for (uint64_t i = 1; i <= 20; i++)
		must(publish(&l, 0, 300, i, NULL, 0));
	follow("--events", "4"); /* of those before */
	await("PUBLISH channel USER0 number 20 ");
	lacks("PUBLISH channel USER0 number 16 ");
	for (uint64_t i = 21; i <= 600; i++) {
		must(publish(&l, 0, 300, i, NULL, 0));
		if (i % 50 == 0)
			test_sleep_ms(5);
	}
	snprintf(text, sizeof text, "rank 1  TAKE channel USER0 number 600 request 600/0 tag 300");
	await(text);
	leave(&l);
	reap(ranks, 2);
	ck_assert_int_eq(ended(), 0);
	in_order();
	for (uint64_t i = 17; i <= 600; i++) {
		snprintf(text, sizeof text, "leader  PUBLISH channel USER0 number %d ", (int)i);
		ck_assert_msg(count(text) == 1, "%s: %u times", text, count(text));
	}
	for (uint64_t i = 21; i <= 600; i++) {
		snprintf(text, sizeof text, "rank 0  TAKE channel USER0 number %d ", (int)i);
		ck_assert_msg(count(text) == 1, "%s: %u times", text, count(text));
	}
	has("\nover: leader (pid ", " is gone (left)", NULL);
}
END_TEST

/*
 * A rank that is interrupted between the stamp of its event and the publication: the event comes
 * 20 ms after it happened, and is printed where it belongs.
 */
START_TEST(test_event_that_comes_late)
{
	struct kvr_event e = { .kind = KVR_EV_CALL, .call = KVR_CALL_RELEASE, .request = 77 };
	struct kvr_recorder *rec;
	struct side l, r[2];
	uint64_t late;

	make_dump_group(name, &l, r, NULL);
	must(publish(&l, 1, 300, 1, NULL, 0));
	follow(NULL, NULL);
	await("PUBLISH channel USER0 number 2 ");
	e.ns = test_now_ns();
	must(publish(&l, 1, 300, 2, NULL, 0));
	test_sleep_ms(20);
	rec = &r[0].g->rec;
	e.index = rec->count;
	rec->events[rec->count & (rec->capacity - 1)] = e;
	kvr_store_release(&rec->ctl->count, ++rec->count);
	late = test_now_ns() - e.ns;
	await("CALL release request 77/0 ");
	kill(follower, SIGTERM);
	ck_assert_int_eq(ended(), 0);
	if (late < 150000000)
		in_order();
	else
		test_skip("the machine is too slow for an event that is only 20 ms late");
	end_group(&l, r);
}
END_TEST

START_TEST(test_filters)
{
	pid_t ranks[2];
	struct side l;

	start(&l, ranks);
	follow("--rank", "1");
	for (uint64_t i = 1; i <= 8; i++) /* fewer than it shows of those before */
		must(publish(&l, 0, 300, i, NULL, 0));
	await("rank 1  TAKE channel USER0 number 8 ");
	leave(&l);
	reap(ranks, 2);
	ck_assert_int_eq(ended(), 0);
	lacks("rank 0");
	lacks("leader  PUBLISH");
	ck_assert_uint_eq(count("rank 1  TAKE"), 8);
}
END_TEST

START_TEST(test_lines_of_json)
{
	char *copy, *save = NULL;
	pid_t ranks[2];
	struct side l;
	uint32_t n = 0;

	start(&l, ranks);
	follow("--json", NULL);
	must(publish(&l, 0, 300, 7, NULL, 0));
	await("\"text\":\"TAKE channel USER0 number 1 request 7/0 tag 300\"");
	leave(&l);
	reap(ranks, 2);
	ck_assert_int_eq(ended(), 0);
	copy = strdup(output);
	for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		snprintf(output, sizeof output, "%s", line);
		if (!n++ || strstr(line, "TAKE"))
			json("d['kind'] in ('PUBLISH', 'TAKE', 'CALL') and d['ns'] > 0 and "
			     "d['rank'] in (None, 0, 1)");
	}
	ck_assert_uint_ge(n, 3);
	free(copy);
}
END_TEST

START_TEST(test_group_that_was_killed)
{
	char text[64];
	pid_t leader = fork(), rank;
	struct side s;

	if (!leader) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (lead_all(name, 1, &s) || publish(&s, 0, 300, 1, NULL, 0))
			_exit(99);
		pause();
	}
	rank = spawn(name, 0, steps);
	for (uint64_t end = test_deadline_ms(10000); test_now_ns() < end; test_sleep_ms(1))
		if (!run(tool, NULL, "--verdict", name, NULL))
			break;
	follow(NULL, NULL);
	await("rank 0  TAKE channel USER0 number 1 ");
	kill(leader, SIGKILL);
	test_reap(leader, 5000);
	ck_assert_int_eq(ended(), 0);
	snprintf(text, sizeof text, "over: leader (pid %d) died", (int)leader);
	has(text, NULL);
	reap(&rank, 1);
	remove_group(name);
}
END_TEST

START_TEST(test_epoch_that_was_declared_over)
{
	pid_t ranks[2];
	struct side l;

	start(&l, ranks);
	must(publish(&l, 0, 300, 1, NULL, 0));
	follow(NULL, NULL);
	await("rank 0  TAKE channel USER0 number 1 ");
	must(kvr_group_fail(l.g, 1, -EIO));
	ck_assert_int_eq(ended(), 0);
	has("over: the leader ended the epoch: Input/output error (rank 1)", NULL);
	reap(ranks, 2);
	leave(&l);
	remove_group(name);
}
END_TEST

START_TEST(test_newer_epoch)
{
	struct kvr_group_opts o = { .size = sizeof o, .ranks = 1, .takeover = KVR_TAKEOVER_FENCE };
	struct kvr_group *next;
	pid_t leader;
	struct side s;

	leader = fork();
	if (!leader) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(lead(name, 1, &s) || publish(&s, 0, 300, 1, NULL, 0) ? 99 : pause());
	}
	for (uint64_t end = test_deadline_ms(10000); test_now_ns() < end; test_sleep_ms(1))
		if (!run(tool, NULL, "--verdict", name, NULL))
			break;
	follow(NULL, NULL);
	await("PUBLISH channel USER0 number 1 ");
	must(kvr_group_create(name, &o, &next));
	ck_assert_int_eq(ended(), 0);
	has("over: retired: epoch 2 replaced it", "(its leader was fenced)", NULL);
	kill(leader, SIGKILL);
	test_reap(leader, 5000);
	kvr_group_close(next);
	remove_group(name);
}
END_TEST

START_TEST(test_signal_ends_it_and_a_file_is_over_at_once)
{
	char dir[256], file[300];
	pid_t ranks[2];
	struct side l;

	start(&l, ranks);
	must(publish(&l, 0, 300, 1, NULL, 0));
	follow(NULL, NULL);
	await("rank 0  TAKE channel USER0 number 1 ");
	kill(follower, SIGINT);
	ck_assert_int_eq(ended(), 0);
	lacks("over: ");
	test_tmpdir(dir, sizeof dir);
	snprintf(file, sizeof file, "%s/copy", dir);
	ck_assert_int_eq(run(tool, NULL, "--save", file, name, NULL), 0);
	ck_assert_int_eq(run(tool, NULL, "--follow", file, NULL), 0);
	has("PUBLISH channel USER0 number 1 ", "over: this is a saved copy\n", NULL);
	/* One that ends while it is followed. */
	ck_assert_int_eq(run(tool, NULL, "--follow", "no-such-group", NULL), 3);
	begins("ring-dump: ");
	leave(&l);
	reap(ranks, 2);
	test_rmdir(dir);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("dump_follow");
	TCase *t = tcase_create("dump_follow");

	tcase_add_checked_fixture(t, setup_follow, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_every_event_once_until_the_leader_leaves);
	tcase_add_test(t, test_event_that_comes_late);
	tcase_add_test(t, test_filters);
	tcase_add_test(t, test_lines_of_json);
	tcase_add_test(t, test_group_that_was_killed);
	tcase_add_test(t, test_epoch_that_was_declared_over);
	tcase_add_test(t, test_newer_epoch);
	tcase_add_test(t, test_signal_ends_it_and_a_file_is_over_at_once);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
