/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring-dump as its users run it: exit statuses, what it says of live, dead and retired groups, that
 * its JSON is JSON, and that no file makes it crash.
 */
#include <sys/stat.h>

#include "sides.h"

#define PYTHON "/usr/bin/python3"

static char tool[4096];
static char output[1 << 18];

static void setup_tool(void)
{
	setup();
	test_tool(tool, sizeof tool, "ring-dump");
	ck_assert_msg(!access(tool, X_OK), "%s is not built", tool);
}

/* Runs a program with its output, both streams, in `output`. Returns its exit status. */
static int run(const char *program, const char *in, ...) __attribute__((sentinel));
static int run(const char *program, const char *in, ...)
{
	const char *argv[16] = { program };
	size_t used = 0;
	int out[2], n = 1, status;
	va_list ap;
	ssize_t got;
	pid_t pid;

	va_start(ap, in);
	while (n < 15 && (argv[n] = va_arg(ap, const char *)))
		n++;
	va_end(ap);
	ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
	pid = fork();
	if (!pid) {
		int from = open(in ? in : "/dev/null", O_RDONLY);

		if (from < 0 || dup2(from, 0) < 0 || dup2(out[1], 1) < 0 || dup2(out[1], 2) < 0)
			_exit(98);
		execv(program, (char **)(uintptr_t)argv);
		_exit(97);
	}
	close(out[1]);
	while ((got = read(out[0], output + used, sizeof output - 1 - used)) > 0)
		used += (size_t)got;
	output[used] = 0;
	close(out[0]);
	status = test_reap(pid, 10000);
	ck_assert_msg(WIFEXITED(status), "%s ended with status %#x: %s", program, status, output);
	return WEXITSTATUS(status);
}

/*
 * Gives the JSON in `output` to python as `d` and evaluates an expression, which must be true.
 * The check is left out, visibly, where there is no python.
 */
static void json(const char *expression)
{
	char script[2048], dir[256], file[300];
	int fd, status;

	if (access(PYTHON, X_OK)) {
		test_skip("no " PYTHON " to parse JSON with");
		return;
	}
	test_tmpdir(dir, sizeof dir);
	snprintf(file, sizeof file, "%s/json", dir);
	fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, output, strlen(output)), (ssize_t)strlen(output));
	close(fd);
	snprintf(script, sizeof script, "import json,sys\nd = json.load(sys.stdin)\nassert (%s), d",
		 expression);
	status = run(PYTHON, file, "-c", script, NULL);
	ck_assert_msg(!status, "%s: %s", expression, output);
	test_rmdir(dir);
}

/* A group in this process: three operations' worth of messages, the last one not taken by rank 1.
 */
static void make_group(char name[KVR_NAME_MAX], struct side *l, struct side r[2],
		       const struct kvr_model *model)
{
	struct kvr_group_opts o = {
		.size = sizeof o, .ranks = 2, .ring_bytes = 4096, .ops = 16, .model = model
	};
	struct kvr_op_entry *ops;
	struct kvr_message m;

	test_name(name, KVR_NAME_MAX, "dump");
	must(kvr_group_create(name, &o, &l->g));
	must(kvr_channels_open(l->g, &l->c));
	must(join(name, 0, &r[0]));
	must(join(name, 1, &r[1]));
	for (uint32_t i = 1; i <= 12; i++) {
		struct kvr_request request = { .id = 100 + i, .attempt = i % 2 };

		must(kvr_channels_publish(l->c, KVR_CH_STORE, 0, KVR_TAG_STORE_BEGIN, &request,
					  "\x01\x02\xff", 3, 0));
		must(kvr_channels_take(r[0].c, KVR_CH_STORE, 0, &m));
		if (i < 12)
			must(kvr_channels_take(r[1].c, KVR_CH_STORE, 0, &m));
	}
	must(publish(l, 2, 4711, 7, NULL, 0));
	ops = (void *)(l->g->own + (l->g->layout.leader_ops - l->g->layout.leader));
	ops[1] = (struct kvr_op_entry){ .word = kvr_word(1, KVR_STAGE_HOST, 0),
					.request = 112,
					.kind = KVR_OP_STORE,
					.blocks = 9,
					.begun_ns = test_now_ns(),
					.stage_ns = test_now_ns(),
					.acked = 3 };
}

static void end_group(struct side *l, struct side r[2])
{
	leave(&r[0]);
	leave(&r[1]);
	leave(l);
}

START_TEST(test_live_group_as_text)
{
	char name[KVR_NAME_MAX], pid[32];
	struct side l, r[2];

	make_group(name, &l, r, NULL);
	snprintf(pid, sizeof pid, "%d", (int)getpid());
	ck_assert_int_eq(run(tool, NULL, name, NULL), 0);
	ck_assert_int_eq(strncmp(output, "all alive: leader and 2 of 2 ranks", 34), 0);
	explained(output, "rank 1 is 1 messages behind on STORE", name, pid, "STORE_BEGIN", "112/0",
		  "0-1 by 0", "0102ff", "4711", "host", "PUBLISH", "TAKE", "take 11", NULL);
	ck_assert_ptr_null(strstr(output, "104/0")); /* the last 8 messages start after it */
	ck_assert_int_eq(run(tool, NULL, "--messages", "12", "--events", "0", name, NULL), 0);
	explained(output, "101/1", "104/0", NULL);
	ck_assert_ptr_null(strstr(output, "EVENTS"));
	end_group(&l, r);
}
END_TEST

START_TEST(test_live_group_as_json)
{
	char name[KVR_NAME_MAX];
	struct kvr_model model = { .name = "a\"b\\c\n\x01\x7f\xff", .dtype = "fp8_e4m3" };
	struct side l, r[2];

	make_group(name, &l, r, &model);
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
	char name[KVR_NAME_MAX], expression[512], dir[256];
	struct side l, r[2];

	make_group(name, &l, r, NULL);
	run(tool, NULL, NULL); /* other groups there may be dead */
	explained(output, name, "2/2", "alive", NULL);
	run(tool, NULL, "--json", NULL);
	snprintf(
		expression, sizeof expression,
		"[g['status'] for g in d['groups'] if g.get('group', {}).get('name') == '%s'] == [0]",
		name);
	json(expression);
	test_tmpdir(dir, sizeof dir);
	ck_assert_int_eq(run(tool, NULL, "--dir", dir, NULL), 0);
	explained(output, "no groups", dir, NULL);
	ck_assert_int_eq(run(tool, NULL, "--json", "--dir", dir, NULL), 0);
	json("d == {'groups': []}");
	ck_assert_int_eq(run(tool, NULL, "--dir", "/no/such/dir", NULL), 3);
	test_rmdir(dir);
	end_group(&l, r);
}
END_TEST

START_TEST(test_group_whose_processes_were_all_killed)
{
	char name[KVR_NAME_MAX], path[KVR_SHM_PATH], dead[64];
	pid_t leader = fork();
	struct side l, r[2];

	if (!leader) {
		make_group(name, &l, r, NULL);
		raise(SIGKILL);
	}
	ck_assert_int_eq(WTERMSIG(test_reap(leader, 5000)), SIGKILL);
	test_name_of(name, sizeof name, "dump", leader, 1);
	snprintf(dead, sizeof dead, "leader (pid %d) died", (int)leader);
	ck_assert_int_eq(run(tool, NULL, name, NULL), 2);
	ck_assert_int_eq(strncmp(output, dead, strlen(dead)), 0);
	explained(output, "ranks 0", "died", "112/0", "0-1 by 0", "rank 1 is 1 messages behind",
		  NULL);
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
	explained(output, "retired: epoch 2 replaced it", "112/0", NULL);
	run(tool, NULL, NULL);
	explained(output, "retired", path, NULL);
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
	explained(output, dead, NULL);
	must(kvr_group_fail(l.g, 1, -EOWNERDEAD));
	ck_assert_int_eq(run(tool, NULL, name, NULL), 2);
	explained(output, "ended the epoch", "rank 1", NULL);
	leave(&l);
	ck_assert_int_eq(run(tool, NULL, name, NULL), 2); /* it stays to be looked at */
	explained(output, "ended the epoch", "rank 1", NULL);
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

	make_group(name, &l, r, NULL);
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
	explained(output, "ring-dump: ", file, "is not a kvring segment: ", "100000 bytes", NULL);
	fd = open(copy, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	ck_assert_int_eq(write(fd, bytes, (size_t)st.st_size), st.st_size);
	close(fd);
	free(bytes);
	ck_assert_int_eq(run(tool, NULL, "--json", copy, NULL), 0);
	json("d['group']['file'].endswith('a\"b\\\\c\\n?.seg')");
	ck_assert_int_eq(run(tool, NULL, tool, NULL), 3);
	explained(output, "is not a kvring segment: it starts with", NULL);
	ck_assert_int_eq(run(tool, NULL, dir, NULL), 3);
	ck_assert_int_eq(run(tool, NULL, "/dev/zero", NULL), 3);
	explained(output, "ring-dump: /dev/zero is not a kvring segment: ", NULL);
	ck_assert_int_eq(run(tool, NULL, "--dir", dir, "nobody", NULL), 3);
	explained(output, "nobody", "No such file", NULL);
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
	explained(output, "no group", name, "say ./", NULL);
	ck_assert_int_eq(rmdir(name), 0);
	make_group(name, &l, r, NULL);
	must(kvr_shm_path(path, sizeof path, NULL, name, KVR_SHM_SEGMENT, 0));
	ck_assert_int_eq(symlink(path, "file"), 0);
	ck_assert_int_eq(run(tool, NULL, "file", NULL), 3);
	ck_assert_int_eq(run(tool, NULL, ".", NULL), 3);
	explained(output, "ring-dump: ", NULL);
	ck_assert_int_eq(chdir("/"), 0);
	test_rmdir(dir);
	end_group(&l, r);
}
END_TEST

START_TEST(test_usage)
{
	ck_assert_int_eq(run(tool, NULL, "--help", NULL), 0);
	explained(output, "usage: ring-dump", "--json", "Exit status", NULL);
	ck_assert_int_eq(run(tool, NULL, "--version", NULL), 0);
	explained(output, KVR_VERSION_STRING, NULL);
	ck_assert_int_eq(run(tool, NULL, "--nonsense", NULL), 64);
	explained(output, "usage", NULL);
	ck_assert_int_eq(run(tool, NULL, "--messages", "-1", "x", NULL), 64);
	ck_assert_int_eq(run(tool, NULL, "--events", "9999999999", "x", NULL), 64);
	ck_assert_int_eq(run(tool, NULL, "--messages", NULL), 64);
	ck_assert_int_eq(run(tool, NULL, "one", "two", NULL), 64);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("dump");
	TCase *t = tcase_create("dump");

	tcase_add_checked_fixture(t, setup_tool, teardown);
	tcase_add_test(t, test_live_group_as_text);
	tcase_add_test(t, test_live_group_as_json);
	tcase_add_test(t, test_list_of_groups);
	tcase_add_test(t, test_group_whose_processes_were_all_killed);
	tcase_add_test(t, test_dead_rank_is_named);
	tcase_add_test(t, test_files_that_are_no_segments);
	tcase_add_test(t, test_name_is_no_file);
	tcase_add_test(t, test_usage);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
