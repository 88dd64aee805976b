/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared library through FFI: tests/rank.py attaches as rank 1, beside a rank 0 in C, and takes
 * completions. The block is replicated with rank 0 as its writer, so the script has nothing to
 * copy; it never takes the messages that begin a store and lags behind on that channel, which must
 * not matter.
 */
#include "kvring/connector.h"
#include "kvring/err.h"
#include "harness.h"

#define STORES 3
#define WAIT_MS 30000u

static char name[64], dir[256], script[1024], library[4352], text[16384];

/* 1 when the script can run here; says why if not. */
static int possible(void)
{
	const char *lib = getenv("KVR_LIB"), *slash = strrchr(__FILE__, '/');

	if (KVR_TEST_ASAN || KVR_TEST_TSAN) {
		test_skip("a sanitized library cannot be loaded into python");
		return 0;
	}
	if (system("python3 -c 'import ctypes' >/dev/null 2>&1")) {
		test_skip("no python3 with ctypes");
		return 0;
	}
	if (lib && *lib)
		snprintf(library, sizeof(library), "%s", lib);
	else
		test_tool(library, sizeof(library), "libkvring.so");
	if (access(library, R_OK))
		ck_abort_msg("%s is not there: build the shared library first (make all)", library);
	snprintf(script, sizeof(script), "%.*s/rank.py", slash ? (int)(slash - __FILE__) : 1,
		 slash ? __FILE__ : ".");
	if (access(script, R_OK))
		ck_abort_msg("%s is not there: run this from the project's directory", script);
	test_name(name, sizeof(name), "python");
	test_tmpdir(dir, sizeof(dir));
	return 1;
}

static char *output(void)
{
	static char path[512];

	snprintf(path, sizeof(path), "%s/out", dir);
	return path;
}

static pid_t start_script(void)
{
	pid_t pid = fork();
	int fd;

	ck_assert_int_ge(pid, 0);
	if (pid)
		return pid;
	setenv("KVR_LIB", library, 1);
	fd = open(output(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
		_exit(126);
	execlp("python3", "python3", "-B", script, name, "1", (char *)NULL);
	_exit(127);
}

/* Waits until the script has printed this; aborts with what it printed instead. */
static void await(const char *part)
{
	uint64_t until = test_deadline_ms(WAIT_MS);
	size_t n;
	FILE *f;

	do {
		f = fopen(output(), "re");
		n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;
		text[n] = 0;
		if (f)
			fclose(f);
		if (strstr(text, part))
			return;
		test_sleep_ms(2);
	} while (test_now_ns() < until);
	ck_abort_msg("'%s' did not come from the script, only:\n%s", part, text);
}

static struct kvr_key key_of(uint32_t i)
{
	struct kvr_key key = { { 0 } };

	memcpy(key.bytes, &i, sizeof(i));
	return key;
}

static struct kvr_connector *lead(void)
{
	struct kvr_connector_opts opts = { .size = sizeof(opts),
					   .ranks = 2,
					   .host_bytes = 1u << 20 };
	struct kvr_connector *c = NULL;
	struct kvr_shape shape;

	if (kvr_shape_replicated(2, 1, 4096, &shape))
		return NULL;
	opts.shape = &shape;
	return kvr_connector_lead(name, &opts, &c) ? NULL : c;
}

/* Rank 0 makes the leader's calls, until the leader shuts down. */
static void __attribute__((noreturn)) rank0(void)
{
	uint64_t deadline = kvr_deadline(WAIT_MS);
	struct kvr_connector *c;
	struct kvr_block blocks[4];
	uint32_t i, covered;

	if (kvr_connector_join(name, 0, NULL, deadline, &c))
		_exit(10);
	for (i = 1; i <= STORES; i++) {
		struct kvr_request request = { .id = i };
		struct kvr_key key = key_of(i);

		if (kvr_connector_store_begin(c, &request, &key, 1, deadline, blocks, 4,
					      &covered) != 1)
			_exit(11);
		memset(blocks[0].payload, (int)i, 4096);
		if (kvr_connector_store_copied(c, &request, 0))
			_exit(12);
	}
	if (kvr_connector_shutdown(c, deadline))
		_exit(13);
	kvr_connector_close(c);
	_exit(0);
}

static pid_t start_rank0(void)
{
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (!pid)
		rank0();
	return pid;
}

static void store_all(struct kvr_connector *c)
{
	struct kvr_completion completions[64];
	uint64_t deadline = kvr_deadline(WAIT_MS);
	struct kvr_block blocks[4];
	uint32_t i, covered;

	for (i = 1; i <= STORES; i++) {
		struct kvr_request request = { .id = i };
		struct kvr_key key = key_of(i);

		ck_assert_int_eq(kvr_connector_store_begin(c, &request, &key, 1, deadline, blocks,
							   4, &covered),
				 1);
		ck_assert_int_eq(kvr_connector_wait_store(c, &request, KVR_STAGE_HOST, deadline),
				 0);
		ck_assert_int_ge(kvr_connector_check_completed(c, KVR_NEXT, 0, deadline,
							       completions, 64, NULL),
				 1);
	}
}

/* All that the leader published, in order. */
static void assert_stores_seen(void)
{
	char line[64];
	int i;

	for (i = 1; i <= STORES; i++) {
		snprintf(line, sizeof(line), "store %d/0 done: status 0, 1 blocks", i);
		if (!strstr(text, line))
			ck_abort_msg("'%s' is not in:\n%s", line, text);
	}
}

START_TEST(test_script_takes_completions_until_ctrl_c)
{
	struct kvr_connector *c;
	pid_t python, rank;
	char last[32];
	int status;

	if (!possible())
		return;
	python = start_script();
	rank = start_rank0();
	c = lead();
	ck_assert_msg(c != NULL, "%s", kvr_explain());
	await("attached as rank 1");
	store_all(c);
	snprintf(last, sizeof(last), "tick %d\n", STORES);
	await(last); /* now it sleeps inside the library */
	ck_assert_int_eq(kill(python, SIGINT), 0);
	status = test_reap(python, WAIT_MS);
	await("closed");
	ck_assert_msg(WIFEXITED(status) && !WEXITSTATUS(status), "status 0x%x:\n%s",
		      (unsigned int)status, text);
	ck_assert_ptr_nonnull(strstr(text, "interrupted"));
	assert_stores_seen();
	/* a rank that left in good order does not disturb the others */
	ck_assert_msg(kvr_connector_shutdown(c, kvr_deadline(WAIT_MS)) == 0, "%s", kvr_explain());
	ck_assert_int_eq(test_reap(rank, WAIT_MS), 0);
	kvr_connector_close(c);
	test_rmdir(dir);
}
END_TEST

START_TEST(test_script_ends_with_the_leader)
{
	struct kvr_connector *c;
	pid_t python, rank;
	int status;

	if (!possible())
		return;
	python = start_script();
	rank = start_rank0();
	c = lead();
	ck_assert_msg(c != NULL, "%s", kvr_explain());
	await("attached as rank 1");
	store_all(c);
	ck_assert_msg(kvr_connector_shutdown(c, kvr_deadline(WAIT_MS)) == 0, "%s", kvr_explain());
	kvr_connector_close(c);
	status = test_reap(python, WAIT_MS);
	await("closed");
	ck_assert_msg(WIFEXITED(status) && !WEXITSTATUS(status), "status 0x%x:\n%s",
		      (unsigned int)status, text);
	ck_assert_ptr_nonnull(strstr(text, "the leader shut down"));
	assert_stores_seen();
	ck_assert_int_eq(test_reap(rank, WAIT_MS), 0);
	test_rmdir(dir);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("python");
	TCase *c = tcase_create("rank");

	tcase_add_test(c, test_script_takes_completions_until_ctrl_c);
	tcase_add_test(c, test_script_ends_with_the_leader);
	suite_add_tcase(s, c);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
