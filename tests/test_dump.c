/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring-dump as its users run it: exit statuses, what it says of live, dead and retired groups, that
 * its JSON is JSON, and that no file makes it crash.
 */
#include "dump_util.h"

START_TEST(test_live_group_as_text)
{
	char name[KVR_NAME_MAX], pid[32];
	struct side l, r[2];

	make_dump_group(name, &l, r, NULL);
	snprintf(pid, sizeof pid, "%d", (int)getpid());
	ck_assert_int_eq(run(tool, NULL, name, NULL), 0);
	begins("fine: leader and 2 of 2 ranks alive");
	has("rank 1 is 1 message behind on STORE", name, pid, "STORE_BEGIN", "112/0", "0-1 by 0",
	    "0102ff", "4711", "host", "PUBLISH", "TAKE", "take 11", NULL);
	lacks("104/0"); /* the last 8 messages start after it */
	ck_assert_int_eq(run(tool, NULL, "--messages", "12", "--events", "0", name, NULL), 0);
	has("101/1", "104/0", NULL);
	lacks("EVENTS");
	end_group(&l, r);
}
END_TEST

START_TEST(test_live_group_as_json)
{
	char name[KVR_NAME_MAX];
	struct kvr_model model = { .name = "a\"b\\c\n\x01\x7f\xff", .dtype = "fp8_e4m3" };
	struct side l, r[2];

	make_dump_group(name, &l, r, &model);
	ck_assert_int_eq(run(tool, NULL, "--json", name, NULL), 0);
	json("d['status'] == 0 and d['group']['epoch'] == 1 and d['leader']['alive'] "
	     "and len(d['ranks']) == 2 and all(x['state'] == 'alive' for x in d['ranks']) "
	     "and [(c['channel'], c['rank'], c['published'], c['taken'], c['behind']) "
	     "for c in d['channels']] == [('STORE', 0, 12, 12, 0), ('STORE', 1, 12, 11, 1), "
	     "('USER0', 1, 1, 0, 1)] and len(d['messages']) == 9 "
	     "and d['messages'][7]['number'] == 12 and d['messages'][7]['taken'] == [0] "
	     "and d['messages'][7]['request'] == {'id': 112, 'space': 0, 'attempt': 0} "
	     "and d['messages'][7]['data'] == '0102ff' and d['messages'][8]['tag'] == 4711 "
	     "and d['operations'][0]['stage'] == 'host' and d['operations'][0]['acked'] == [0, 1] "
	     "and len(d['events']) == 16 "
	     "and d['events'] == sorted(d['events'], key=lambda e: e['ns']) "
	     "and d['group']['model']['name'].startswith('a\"b\\\\c')");
	/* Counts of calls that do not exist have no names of their own. */
	kvr_group_leader_page(l.g)->calls[KVR_CALLS] = 1;
	kvr_group_leader_page(l.g)->calls[KVR_CALLS + 1] = 2;
	ck_assert_int_eq(run(tool, NULL, "--json", name, NULL), 0);
	json("'?' not in d['leader']['calls'] and d['leader']['calls']['publish'] == 13");
	end_group(&l, r);
}
END_TEST

START_TEST(test_list_of_groups)
{
	char name[KVR_NAME_MAX], second[KVR_NAME_MAX], dir[256];
	struct side l[2], r[2][2];

	test_tmpdir(dir, sizeof dir);
	ck_assert_int_eq(run(tool, NULL, "--dir", dir, NULL), 0);
	has("no groups", dir, NULL);
	ck_assert_int_eq(run(tool, NULL, "--json", "--dir", dir, NULL), 0);
	json("d == {'groups': []}");
	group_dir = dir;
	make_dump_group(name, &l[0], r[0], NULL);
	make_dump_group(second, &l[1], r[1], NULL);
	ck_assert_int_eq(run(tool, NULL, "--dir", dir, NULL), 0);
	has("GROUP", name, second, "2/2", "alive", NULL);
	ck_assert(strstr(output, name) < strstr(output, second));
	ck_assert_int_eq(run(tool, NULL, "--json", "--dir", dir, NULL), 0);
	json("[g['status'] for g in d['groups']] == [0, 0] and "
	     "[len(g['ranks']) for g in d['groups']] == [2, 2]");
	end_group(&l[1], r[1]);
	end_group(&l[0], r[0]);
	group_dir = NULL;
	make_dump_group(name, &l[0], r[0], NULL);
	run(tool, NULL, NULL); /* other groups there may be dead */
	has(name, "2/2", "alive", NULL);
	end_group(&l[0], r[0]);
	ck_assert_int_eq(run(tool, NULL, "--dir", "/no/such/dir", NULL), 3);
	has("ring-dump: ", "/no/such/dir", NULL);
	test_rmdir(dir);
}
END_TEST

START_TEST(test_group_whose_processes_were_all_killed)
{
	char name[KVR_NAME_MAX], path[KVR_SHM_PATH], dead[64];
	pid_t leader = fork();
	struct side l, r[2];

	if (!leader) {
		make_dump_group(name, &l, r, NULL);
		raise(SIGKILL);
	}
	ck_assert_int_eq(WTERMSIG(test_reap(leader, 5000)), SIGKILL);
	test_name_of(name, sizeof name, "dump", leader, 1);
	snprintf(dead, sizeof dead, "leader (pid %d) died", (int)leader);
	ck_assert_int_eq(run(tool, NULL, name, NULL), 2);
	begins(dead);
	has("ranks 0", "died", "112/0", "0-1 by 0", "rank 1 is 1 message behind", NULL);
	ck_assert_int_eq(run(tool, NULL, "--json", name, NULL), 2);
	json("d['status'] == 2 and d['leader']['state'] == 'died' and not d['leader']['alive'] "
	     "and d['ranks'][1]['state'] == 'died' and d['messages'][7]['number'] == 12");
	/* By its file, too; and when a newer epoch has replaced it. */
	must(kvr_shm_path(path, sizeof path, NULL, name, KVR_SHM_SEGMENT, 0));
	ck_assert_int_eq(run(tool, NULL, path, NULL), 2);
	must(lead(name, 1, &l));
	ck_assert_int_eq(run(tool, NULL, name, NULL), 0);
	must(kvr_shm_path(path, sizeof path, NULL, name, KVR_SHM_RETIRED, 1));
	ck_assert_int_eq(run(tool, NULL, path, NULL), 2);
	has("retired: epoch 2 replaced it", "112/0", NULL);
	run(tool, NULL, NULL);
	has("retired", path, NULL);
	unlink(path);
	leave(&l);
}
END_TEST

START_TEST(test_dead_rank_is_named)
{
	char name[KVR_NAME_MAX], dead[64];
	struct side l, s;
	pid_t pid;

	test_name(name, sizeof name, "dump");
	must(lead(name, 2, &l));
	pid = fork();
	if (!pid)
		_exit(join(name, 1, &s) ? 99 : raise(SIGKILL));
	ck_assert_int_eq(WTERMSIG(test_reap(pid, 5000)), SIGKILL);
	snprintf(dead, sizeof dead, "rank 1 (pid %d) died", (int)pid);
	ck_assert_int_eq(run(tool, NULL, name, NULL), 2);
	has(dead, NULL);
	must(kvr_group_fail(l.g, 1, -EOWNERDEAD));
	ck_assert_int_eq(run(tool, NULL, name, NULL), 2);
	has("ended the epoch", "rank 1", NULL);
	leave(&l);
	ck_assert_int_eq(run(tool, NULL, name, NULL), 2); /* it stays to be looked at */
	has("ended the epoch", "rank 1", NULL);
	remove_group(name);
}
END_TEST

START_TEST(test_files_that_are_no_segments)
{
	char name[KVR_NAME_MAX], path[KVR_SHM_PATH], dir[256], file[300], copy[300];
	struct side l, r[2];
	struct stat st;
	char *bytes;
	int fd;

	make_dump_group(name, &l, r, NULL);
	must(kvr_shm_path(path, sizeof path, NULL, name, KVR_SHM_SEGMENT, 0));
	test_tmpdir(dir, sizeof dir);
	snprintf(file, sizeof file, "%s/cut", dir);
	snprintf(copy, sizeof copy, "%s/a\"b\\c\n\xff.seg", dir);
	ck_assert_int_eq(stat(path, &st), 0);
	bytes = malloc((size_t)st.st_size);
	ck_assert_ptr_nonnull(bytes);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_eq(read(fd, bytes, (size_t)st.st_size), st.st_size);
	close(fd);
	fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	ck_assert_int_eq(write(fd, bytes, 100000), 100000);
	close(fd);
	ck_assert_int_eq(run(tool, NULL, file, NULL), 3);
	has("ring-dump: ", file, "is not a kvring segment: ", "100000 bytes", NULL);
	fd = open(copy, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	ck_assert_int_eq(write(fd, bytes, (size_t)st.st_size), st.st_size);
	close(fd);
	free(bytes);
	ck_assert_int_eq(run(tool, NULL, "--json", copy, NULL), 0);
	json("d['group']['file'].endswith('a\"b\\\\c\\n?.seg')");
	ck_assert_int_eq(run(tool, NULL, tool, NULL), 3);
	has("is not a kvring segment: it starts with", NULL);
	ck_assert_int_eq(run(tool, NULL, dir, NULL), 3);
	ck_assert_int_eq(run(tool, NULL, "/dev/zero", NULL), 3);
	has("ring-dump: /dev/zero is not a kvring segment: ", NULL);
	ck_assert_int_eq(run(tool, NULL, "--dir", dir, "nobody", NULL), 3);
	has("nobody", "No such file", NULL);
	test_rmdir(dir);
	end_group(&l, r);
}
END_TEST

/* What lies in the current directory is no answer to the name of a group. */
START_TEST(test_name_is_no_file)
{
	char name[KVR_NAME_MAX], path[KVR_SHM_PATH], dir[256];
	struct side l, r[2];

	test_name(name, sizeof name, "dump-no-file");
	test_tmpdir(dir, sizeof dir);
	ck_assert_int_eq(chdir(dir), 0);
	ck_assert_int_eq(mkdir(name, 0700), 0);
	ck_assert_int_eq(run(tool, NULL, name, NULL), 3);
	has("no group", name, "say ./", NULL);
	ck_assert_int_eq(rmdir(name), 0);
	make_dump_group(name, &l, r, NULL);
	must(kvr_shm_path(path, sizeof path, NULL, name, KVR_SHM_SEGMENT, 0));
	ck_assert_int_eq(symlink(path, "file"), 0);
	ck_assert_int_eq(run(tool, NULL, "file", NULL), 3);
	ck_assert_int_eq(run(tool, NULL, ".", NULL), 3);
	has("ring-dump: ", NULL);
	ck_assert_int_eq(chdir("/"), 0);
	test_rmdir(dir);
	end_group(&l, r);
}
END_TEST

static void setup_dump(void)
{
	test_tool(tool, sizeof tool, "ring-dump");
	setup_tool();
}

static void wrong(const char *why, ...) __attribute__((sentinel));
static void wrong(const char *why, ...)
{
	const char *a[6] = { NULL };
	va_list ap;

	va_start(ap, why);
	for (int i = 0; i < 5 && (a[i] = va_arg(ap, const char *)); i++)
		;
	va_end(ap);
	ck_assert_int_eq(run(tool, NULL, a[0], a[1], a[2], a[3], a[4], NULL), 64);
	begins("ring-dump: ");
	has(why, NULL);
	ck_assert_ptr_eq(strchr(output, '\n'), output + strlen(output) - 1); /* a sentence */
}

START_TEST(test_usage)
{
	ck_assert_int_eq(run(tool, NULL, "--help", NULL), 0);
	has("usage: ring-dump", "--json", "--check", "--verdict", "--watch", "--follow", "--prom",
	    "--save", "--gc", "--dry-run", "--force", "--show", "--last", "--channel", "--tag",
	    "--rank", "--request", "--stall", "--dir", "--messages", "--events", "Exit status",
	    NULL);
	ck_assert_int_eq(run(tool, NULL, "--version", NULL), 0);
	has(KVR_VERSION_STRING, NULL);
	wrong("--nonsense", "--nonsense", NULL);
	wrong("-x is no option", "-x", "name", NULL);
	wrong("takes no value", "--check=3", "name", NULL);
	wrong("a number from 0 to 10000", "--messages", "-1", "x", NULL);
	wrong("a number from 0", "--events", "9999999999", "x", NULL);
	wrong("a number from 0", "--last", "12x", "x", NULL);
	wrong("a number from 0", "--last", "", "x", NULL);
	wrong("--messages needs a value", "--messages", NULL);
	wrong("'two' is too many", "one", "two", NULL);
	wrong("--stall 1e3", "--stall", "1e3", "x", NULL);
	wrong("--stall -1", "--stall", "-1", "x", NULL);
	wrong("--stall 5.", "--stall", "5.", "x", NULL);
	wrong("from 0.1 to 86400", "--watch=0", "x", NULL);
	wrong("--watch 99999999999999999999", "--watch=99999999999999999999", "x", NULL);
	wrong("a list of ranks, channels", "--show", "ranks,nothing", "x", NULL);
	wrong("a list of ranks, channels", "--show", "", "x", NULL);
	wrong("a channel (LOOKUP", "--channel", "STORES", "x", NULL);
	wrong("a tag of the library", "--tag", "STORES", "x", NULL);
	wrong("a number from 0 to 63", "--rank", "64", "x", NULL);
	wrong("number/attempt", "--request", "5/", "x", NULL);
	wrong("number/attempt", "--request", "18446744073709551616", "x", NULL);
	wrong("--check and --prom: one of them", "--check", "--prom", "x", NULL);
	wrong("--json is another form", "--json", "--check", "x", NULL);
	wrong("--dry-run goes with --gc", "--dry-run", "x", NULL);
	wrong("--force goes with --save", "--force", "x", NULL);
	wrong("which group?", "--verdict", NULL);
	wrong("which group?", "--follow", NULL);
	wrong("which group?", "--save", "file", NULL);
	wrong("a group's name", "--gc", "./file", NULL);
}
END_TEST

/* Filters choose what is shown; the verdict stays what it is. */
START_TEST(test_views_and_filters)
{
	char name[KVR_NAME_MAX];
	struct side l, r[2];

	make_dump_group(name, &l, r, NULL);
	ck_assert_int_eq(run(tool, NULL, "--show", "messages", name, NULL), 0);
	has("rank 1 is 1 message behind", "MESSAGES", "112/0", "USER0", NULL);
	lacks("EVENTS");
	lacks("CHANNEL   RANK");
	lacks("STATE");
	lacks("\nOP ");
	ck_assert_int_eq(
		run(tool, NULL, "--show", "messages,events", "--channel", "user0", name, NULL), 0);
	has("USER0 ", "4711", "PUBLISH channel USER0", NULL);
	lacks("112/0");
	lacks("channel STORE");
	/* The filter looks at all messages, not only at the last few. */
	ck_assert_int_eq(run(tool, NULL, "--show", "messages,events", "--last", "3", "--request",
			     "101", name, NULL),
			 0);
	has("101/1", "PUBLISH channel STORE number 1 request 101/1", NULL);
	lacks("112/0");
	ck_assert_int_eq(run(tool, NULL, "--show", "messages", "--request", "101/0", name, NULL),
			 0);
	lacks("101/1");
	ck_assert_int_eq(run(tool, NULL, "--show", "messages", "--last", "2", name, NULL), 0);
	has("111/1", "112/0", "4711", NULL);
	lacks("110/0");
	ck_assert_int_eq(run(tool, NULL, "--show", "messages", "--tag", "4711", name, NULL), 0);
	has("USER0", NULL);
	lacks("STORE_BEGIN");
	ck_assert_int_eq(run(tool, NULL, "--show", "messages", "--tag", "store_begin", name, NULL),
			 0);
	lacks("USER0");
	ck_assert_int_eq(
		run(tool, NULL, "--show", "messages,ranks,events", "--rank", "0", name, NULL), 0);
	has("calls of rank 0", "rank 0", NULL);
	lacks("calls of rank 1");
	lacks("4711"); /* that went to rank 1 alone */
	lacks("\nleader");
	ck_assert_int_eq(run(tool, NULL, "--show", "events", "--rank", "leader", name, NULL), 0);
	has("leader", "PUBLISH", NULL);
	lacks("TAKE");
	ck_assert_int_eq(run(tool, NULL, "--show", "operations", "--request", "112", name, NULL),
			 0);
	has("store    112/0", NULL);
	ck_assert_int_eq(run(tool, NULL, "--show", "operations", "--request", "113", name, NULL),
			 0);
	lacks("112/0");
	end_group(&l, r);
}
END_TEST

START_TEST(test_large_message)
{
	char name[KVR_NAME_MAX], data[3000];
	struct side l, r[2];

	make_dump_group(name, &l, r, NULL);
	memset(data, 0x5a, sizeof data);
	must(publish(&l, 3, 300, 5, data, sizeof data));
	ck_assert_int_eq(run(tool, NULL, "--show", "messages", "--request", "5", name, NULL), 0);
	has("3000  0-1 by none  5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a... (in the bulk area)", "bulk ",
	    NULL);
	ck_assert_int_eq(run(tool, NULL, "--json", "--request", "5", name, NULL), 0);
	json("[(m['bytes'], m['bulk'], m['data']) for m in d['messages']] == [(3000, 1, '5a' * "
	     "64)] and d['group']['bulk_used'] >= 3000");
	end_group(&l, r);
}
END_TEST

START_TEST(test_largest_group)
{
	static const char *const modes[] = { "--json", "--check", "--prom", "--show=all",
					     "--verdict" };
	struct kvr_group_opts o = { .size = sizeof o,
				    .ranks = KVR_MAX_RANKS,
				    .ring_bytes = 1024,
				    .events = 16,
				    .ops = 16 };
	char name[KVR_NAME_MAX];
	struct side l, r;

	test_name(name, sizeof name, "dump");
	must(kvr_group_create(name, &o, &l.g));
	must(kvr_channels_open(l.g, &l.c));
	dump_join(name, KVR_MAX_RANKS - 1, &r);
	must(publish(&l, 0, 300, 1, "all", 3));
	for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
		ck_assert_int_eq(run(tool, NULL, modes[i], name, NULL), 0);
		if (i == 0)
			json("len(d['ranks']) == 64 and d['ranks'][63]['alive'] and "
			     "d['messages'][0]['ranks'] == list(range(64))");
		else if (i == 3)
			has("0-63 by none", NULL);
	}
	leave(&r);
	leave(&l);
}
END_TEST

static void meet_at(struct kvr_meet *m, uint64_t round)
{
	*m = (struct kvr_meet){ .ranks = 3, .with_leader = 1, .round = round << 8 | 2 };
}

START_TEST(test_quarantine_barriers_and_logs)
{
	struct kvr_alike_logs logs[3];
	char name[KVR_NAME_MAX];
	struct side l, r[2];

	make_dump_group(name, &l, r, NULL);
	ops_of(&l)[2] = (struct kvr_op_entry){ .word = kvr_word(1, KVR_STAGE_CANCELLED, 0),
					       .request = 113,
					       .kind = KVR_OP_STORE,
					       .stage_ns = test_now_ns(),
					       .need = 3,
					       .acked = 1 };
	ops_of(&l)[3] = (struct kvr_op_entry){ .word = kvr_word(4, KVR_STAGE_COMMITTED, 0),
					       .request = 114,
					       .kind = KVR_OP_LOAD,
					       .flags = KVR_OP_LAYERED,
					       .layers = 4ull << 32 | 5,
					       .stage_ns = test_now_ns(),
					       .need = 3 };
	kvr_group_leader_page(l.g)->quarantined_ops = 1;
	kvr_group_leader_page(l.g)->quarantined_slots = 17;
	meet_at(kvr_group_leader_page(l.g)->meet, 4);
	meet_at(kvr_group_own_page(r[1].g)->meet, 5);
	logs_of(&l, &logs[2]);
	logs_of(&r[0], &logs[0]);
	logs_of(&r[1], &logs[1]);
	for (uint64_t i = 1; i <= 5; i++) {
		call_alike(&logs[2], KVR_ALIKE_LOAD, i);
		call_alike(&logs[0], KVR_ALIKE_LOAD, i);
		if (i < 3)
			call_alike(&logs[1], KVR_ALIKE_LOAD, i);
	}
	ck_assert_int_eq(
		run(tool, NULL, "--show", "operations,quarantine,barriers,logs", name, NULL), 0);
	has("1 ended operation holds 17 slots in quarantine", "HELD", "store    113/0", "load     ",
	    "114/0", "reduction of 2", "leader,0-1", "leader,0\n", "load      leader", "3 behind",
	    "HASH OF ALL", NULL);
	ck_assert_int_eq(
		run(tool, NULL, "--show", "logs", "--last", "1", "--rank", "1", name, NULL), 0);
	has("load      1                  2", NULL);
	lacks("load      leader");
	lacks("load      0");
	ck_assert_int_eq(run(tool, NULL, "--json", name, NULL), 0);
	json("[(o['request']['id'], o['waits_for']) for o in d['operations']] == "
	     "[(112, []), (114, [0, 1])] and d['operations'][1]['layers'] == 5 and "
	     "[(o['request']['id'], o['waits_for'], o['stage']) for o in d['quarantine']] == "
	     "[(113, [1], 'cancelled')] and d['group']['quarantined_slots'] == 17 and "
	     "d['barriers'] == [{'kind': 'reduction', 'ranks': [0, 1], 'with_leader': True, "
	     "'round': 5, 'values': 2, 'missing': [0], 'leader_missing': True, 'differ': False}] "
	     "and [(x['kind'], x['rank'], x['calls'], x['last']['id']) for x in d['logs']] == "
	     "[('load', None, 5, 5), ('load', 0, 5, 5), ('load', 1, 2, 2)] and d['drift'] == []");
	end_group(&l, r);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("dump");
	TCase *t = tcase_create("dump");

	tcase_add_checked_fixture(t, setup_dump, teardown);
	tcase_add_test(t, test_live_group_as_text);
	tcase_add_test(t, test_live_group_as_json);
	tcase_add_test(t, test_list_of_groups);
	tcase_add_test(t, test_group_whose_processes_were_all_killed);
	tcase_add_test(t, test_dead_rank_is_named);
	tcase_add_test(t, test_files_that_are_no_segments);
	tcase_add_test(t, test_name_is_no_file);
	tcase_add_test(t, test_usage);
	tcase_add_test(t, test_views_and_filters);
	tcase_add_test(t, test_large_message);
	tcase_add_test(t, test_largest_group);
	tcase_add_test(t, test_quarantine_barriers_and_logs);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
