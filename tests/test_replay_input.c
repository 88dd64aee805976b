/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kv-replay refuses: exit status 2, a sentence that says what is wrong, and nothing made,
 * changed or left behind.
 * The program is that of the same build: test_tool().
 */
#include <grp.h>
#include <sched.h>
#include <sys/mount.h>

#include "kvring/version.h"
#include "replay_tool.h"

static struct tool tool;

static void setup(void)
{
	tool_setup(&tool);
}

static void teardown(void)
{
	tool_teardown(&tool);
}

static void write_file(const char *path, const void *bytes, size_t len)
{
	FILE *f = fopen(path, "we");

	ck_assert_ptr_nonnull(f);
	ck_assert_uint_eq(fwrite(bytes, 1, len, f), len);
	fclose(f);
}

#define GOOD "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 5, \"hash_ids\": [1, 2]}"

/* Each is the third line of a trace, after a good one and an empty one. */
static const struct bad_line {
	const char *line, *says;
} bad_lines[] = {
	{ "not json", "not JSON" },
	{ "{", "not JSON" },
	{ "[]", "not JSON" },
	{ "7", "not JSON" },
	{ GOOD "}", "not JSON" },
	{ GOOD GOOD, "not JSON" },
	{ "{\"timestamp\": 0,}", "not JSON" },
	{ "{\"timestamp\" 0}", "not JSON" },
	{ "{\"timestamp\": 0 \"input_length\": 1}", "not JSON" },
	{ "{\"timestamp\": 01}", "not JSON" },
	{ "{\"timestamp\": +1}", "not JSON" },
	{ "{\"timestamp\": 1.}", "not JSON" },
	{ "{\"timestamp\": 1e}", "not JSON" },
	{ "{\"timestamp\": -}", "not JSON" },
	{ "{\"timestamp\": tru}", "not JSON" },
	{ "{'timestamp': 1}", "not JSON" },
	{ "{\"x\": \"no end}", "not JSON" },
	{ "{\"x\": \"\\q\"}", "not JSON" },
	{ "{\"x\": \"\\u12g4\"}", "not JSON" },
	{ "{\"x\": \"\t\"}", "not JSON" },
	{ "{\"hash_ids\": [1, 2}", "not JSON" },
	{ "{\"hash_ids\": [1, 2", "not JSON" },
	{ "{\"hash_ids\": [1,, 2]}", "not JSON" },
	{ "{\"x\": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1", "nested" },
	{ "{}", "lacks timestamp" },
	{ "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 5}", "lacks hash_ids" },
	{ "{\"timestamp\": 0, \"input_length\": 5, \"hash_ids\": []}", "lacks output_length" },
	{ "{\"timestamp\": 0, \"output_length\": 5, \"hash_ids\": []}", "lacks input_length" },
	{ "{\"timestamp\": 0, \"timestamp\": 0}", "timestamp stands there twice" },
	{ "{\"timestamp\": -1}", "timestamp is negative" },
	{ "{\"input_length\": -5}", "input_length is negative (-5)" },
	{ "{\"output_length\": -1}", "output_length is negative" },
	{ "{\"input_length\": 1.5}", "input_length is not a whole number" },
	{ "{\"input_length\": 99999999999999999999}", "input_length is not a whole number" },
	{ "{\"input_length\": \"5\"}", "input_length is not a number" },
	{ "{\"input_length\": null}", "input_length is not a number" },
	{ "{\"hash_ids\": 5}", "hash_ids is not a list" },
	{ "{\"hash_ids\": [\"1\"]}", "hash_ids[0] is not a number" },
	{ "{\"hash_ids\": [1, -2]}", "hash_ids[1] is not a whole number" },
	{ "{\"hash_ids\": [1, 2.0]}", "hash_ids[1] is not a whole number" },
	{ "{\"hash_ids\": [18446744073709551616]}", "hash_ids[0] is not a whole number" },
};

START_TEST(test_bad_trace_line_is_named)
{
	const struct bad_line *bad = &bad_lines[_i];
	char *trace = tool_path(&tool, "t.jsonl"), text[1024];
	int n = snprintf(text, sizeof(text), GOOD "\n\n%s\n" GOOD "\n", bad->line);

	write_file(trace, text, (size_t)n);
	TOOL_RUN(&tool, 2, "--trace", trace);
	tool_says(tool.err, trace);
	tool_says(tool.err, "t.jsonl:3: ");
	tool_says(tool.err, bad->says);
	ck_assert_str_eq(tool.out, "");
}
END_TEST

START_TEST(test_trace_bounds)
{
	static char line[5u << 20];
	char *trace = tool_path(&tool, "t.jsonl");
	size_t at;
	int i;

	at = (size_t)snprintf(line, sizeof(line), "{\"hash_ids\": [0");
	for (i = 0; i < 65536; i++)
		at += (size_t)snprintf(line + at, 8, ",1");
	write_file(trace, line, at);
	TOOL_RUN(&tool, 2, "--trace", trace);
	tool_says(tool.err, "t.jsonl:1: hash_ids has more than 65536 ids");
	memset(line, ' ', sizeof(line));
	write_file(trace, line, sizeof(line));
	TOOL_RUN(&tool, 2, "--trace", trace);
	tool_says(tool.err, "t.jsonl:1: a line of more than");
	write_file(trace, "{\"x\0\": 1}", 9);
	TOOL_RUN(&tool, 2, "--trace", trace);
	tool_says(tool.err, "t.jsonl:1: not JSON");
	write_file(trace, "\n \n", 3);
	TOOL_RUN(&tool, 2, "--trace", trace);
	tool_says(tool.err, "no request");
	TOOL_RUN(&tool, 2, "--trace", tool.dir);
	tool_says(tool.err, "a directory");
	TOOL_RUN(&tool, 2, "--trace", tool_path(&tool, "none"));
	tool_says(tool.err, "No such file");
}
END_TEST

/* What is not read is not judged. */
START_TEST(test_requests_bounds_what_is_read)
{
	char *trace = tool_path(&tool, "t.jsonl");

	write_file(trace, GOOD "\nnot json\n", sizeof(GOOD "\nnot json\n") - 1);
	TOOL_RUN(&tool, 0, "--trace", trace, "--requests", "1", "--json", "--nvme", "64MiB");
	tool_assert_number(&tool, "requests", 1);
}
END_TEST

static const struct bad_option {
	const char *option, *value, *says;
} bad_options[] = {
	{ "--host", "64MB", "not a size" },
	{ "--host", "", "not a size" },
	{ "--host", "MiB", "not a size" },
	{ "--host", "-1", "not a size" },
	{ "--host", "1.5GiB", "not a size" },
	{ "--host", "64 MiB", "not a size" },
	{ "--host", "0x10", "not a size" },
	{ "--host", "18446744073709551616", "not a size" },
	{ "--host", "8388608TiB", "more than 2^63 - 1" },
	{ "--host", "0", "at least one block" },
	{ "--host", "4096", "host memory do not hold one block" },
	{ "--nvme", "lots", "not a size" },
	{ "--nvme", "4096", "smaller than one block" },
	{ "--nvme", "4000000TiB", "free" },
	{ "--block-bytes", "0", "at least one byte" },
	{ "--block-bytes", "64kib", "not a size" },
	{ "--block-bytes", "1001", "cannot be divided among 4 ranks" },
	{ "--layer-groups", "0", "not a whole number" },
	{ "--layer-groups", "7", "layer groups" },
	{ "--layers=4", "", "takes no value" },
	{ "--ranks", "65", "from 1 to 64" },
	{ "--ranks", "0", "not a whole number" },
	{ "--ranks", "four", "not a whole number" },
	{ "--requests", "0", "not a whole number" },
	{ "--requests", "10000001", "not a whole number" },
	{ "--seed", "-1", "not a whole number" },
	{ "--prefetch", "0", "from 1 to 1024" },
	{ "--prefetch", "1025", "from 1 to 1024" },
	{ "--prefetch", "all", "not a whole number" },
	{ "--prefetch-budget", "0", "not a whole number" },
	{ "--prefetch-budget", "4294967296", "not a whole number" },
	{ "--prefetch-budget", "4", "without --prefetch" },
	{ "--abort", "1.01", "not a share from 0 to 1" },
	{ "--abort", "-0.1", "not a share" },
	{ "--abort", "", "not a share" },
	{ "--abort", ".", "not a share" },
	{ "--abort", "0.1.2", "not a share" },
	{ "--abort", "10%", "not a share" },
	{ "--abort", "1e-1", "not a share" },
	{ "--abort", "0x0", "not a share" },
	{ "--abort", "nan", "not a share" },
	{ "--reset-every", "0", "not a whole number" },
	{ "--reset-every", "-3", "not a whole number" },
	{ "--store", "/nonexistent/dir", "No such file or directory" },
	{ "--store", "/dev/null", "neither a directory nor" },
	{ "--name", "", "1 to 47 characters" },
	{ "--name", "a/b", "group name" },
	{ "--nope", "1", "no such option" },
	{ "-x", "1", "no such option" },
	{ "word", "1", "not an option" },
	{ "--json", "--trace", "needs a value" },
};

START_TEST(test_bad_option_is_named)
{
	const struct bad_option *bad = &bad_options[_i];
	const char *quoted = !strcmp(bad->option, "--json") ? bad->value : bad->option;
	char *tmp = tool_path(&tool, "tmp");

	ck_assert_int_eq(mkdir(tmp, 0700), 0);
	setenv("TMPDIR", tmp, 1);
	TOOL_RUN(&tool, 2, "--requests", "3", bad->option, bad->value);
	tool_says(tool.err, "kv-replay: ");
	tool_says(tool.err, bad->says);
	if (!strstr(bad->says, "block") && !strstr(bad->says, "free") &&
	    !strstr(bad->says, "group name"))
		tool_says(tool.err, quoted);
	ck_assert_str_eq(tool.out, "");
	ck_assert_int_eq(rmdir(tmp), 0); /* empty: the private directory is gone */
}
END_TEST

START_TEST(test_contradictions)
{
	TOOL_RUN(&tool, 2, "--nvme", "0", "--store", tool.dir);
	tool_says(tool.err, "leave out --store");
	TOOL_RUN(&tool, 2, "--nvme", "0", "--restart");
	tool_says(tool.err, "--restart");
	TOOL_RUN(&tool, 2, "--nvme", "0", "--prefetch", "2");
	tool_says(tool.err, "nothing to fetch from");
}
END_TEST

START_TEST(test_help_and_version)
{
	TOOL_RUN(&tool, 0, "--help");
	tool_says(tool.out, "Usage: kv-replay");
	tool_says(tool.out, "--block-bytes");
	TOOL_RUN(&tool, 0, "--version");
	tool_says(tool.out, "kv-replay " KVR_VERSION_STRING "\n");
}
END_TEST

/* --- files that are there -----------------------------------------------------------------------
 */

static void slurp(const char *path, char *buf, size_t len)
{
	FILE *f = fopen(path, "re");

	ck_assert_ptr_nonnull(f);
	ck_assert_uint_eq(fread(buf, 1, len, f), len);
	fclose(f);
}

START_TEST(test_foreign_file_is_not_overwritten)
{
	static char before[100000], after[100000];
	char *store = tool_path(&tool, "kvring.store");
	struct stat st;
	size_t i;

	for (i = 0; i < sizeof(before); i++)
		before[i] = (char)(i * 31);
	write_file(store, before, sizeof(before));
	TOOL_RUN(&tool, 2, "--store", tool.dir, "--requests", "3");
	tool_says(tool.err, "not a kvring store");
	TOOL_RUN(&tool, 2, "--store", store, "--requests", "3", "--nvme", "64MiB");
	tool_says(tool.err, "not a kvring store");
	ck_assert_int_eq(stat(store, &st), 0);
	ck_assert_int_eq(st.st_size, (off_t)sizeof(before));
	slurp(store, after, sizeof(after));
	ck_assert_int_eq(memcmp(before, after, sizeof(before)), 0);
}
END_TEST

START_TEST(test_store_of_another_shape_is_not_overwritten)
{
	static const char *const other[][2] = { { "--block-bytes", "128KiB" },
						{ "--layer-groups", "2" },
						{ "--ranks", "2" },
						{ "--nvme", "32MiB" } };
	char *store = tool.dir;
	size_t i;

	TOOL_RUN(&tool, 0, "--store", store, "--requests", "20", "--nvme", "64MiB", "--json");
	tool_assert_right(&tool);
	for (i = 0; i < 4; i++) {
		TOOL_RUN(&tool, 2, "--store", store, "--requests", "20", "--nvme", "64MiB",
			 other[i][0], other[i][1]);
		tool_says(tool.err, "this run");
	}
	TOOL_RUN(&tool, 0, "--store", store, "--requests", "20", "--json");
	tool_assert_right(&tool);
	tool_assert_number(&tool, "blocks_stored", 0); /* all there still */
}
END_TEST

/* Root may write anywhere, so it becomes somebody else. */
static void as_nobody(struct tool *t)
{
	char binary[4096];

	(void)t;
	tool_binary(binary, sizeof(binary));
	if (geteuid() == 0 && (setgroups(0, NULL) || setgid(65534) || setuid(65534)))
		_exit(77);
	if (access(binary, X_OK) || !access(tool_path(t, "closed"), W_OK))
		_exit(77);
}

START_TEST(test_directory_that_is_not_writable)
{
	char *dir = tool_path(&tool, "closed");

	ck_assert_int_eq(mkdir(dir, 0555), 0);
	ck_assert_int_eq(chmod(tool.dir, 0755), 0);
	tool_start(&tool, TOOL_ARGS("--store", dir, "--requests", "3"), as_nobody);
	tool_wait(&tool);
	if (WIFEXITED(tool.status) && WEXITSTATUS(tool.status) == 77) {
		test_skip("no other user here who could run the program");
		return;
	}
	tool_expect(&tool, 2);
	tool_says(tool.err, "may not write");
}
END_TEST

/* --- file systems that are full ------------------------------------------------------------------
 */

static int write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));

	if (fd >= 0)
		close(fd);
	return n < 0 ? -1 : 0;
}

/* A mount namespace of its own, as root or through a user namespace. 0, or -1. */
static int own_mounts(void)
{
	unsigned int uid = geteuid(), gid = getegid();
	char map[64];

	if (unshare(CLONE_NEWNS)) {
		if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
			return -1;
		snprintf(map, sizeof(map), "%u %u 1", uid, uid);
		if (write_text("/proc/self/uid_map", map))
			return -1;
		/* Files of a group that is not mapped cannot be made either. */
		snprintf(map, sizeof(map), "%u %u 1", gid, gid);
		if (write_text("/proc/self/setgroups", "deny") ||
		    write_text("/proc/self/gid_map", map))
			return -1;
	}
	return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL);
}

static void small_store(struct tool *t)
{
	if (own_mounts() || mount("none", tool_path(t, "full"), "tmpfs", 0, "size=1m"))
		_exit(77);
}

static void small_shm(struct tool *t)
{
	(void)t;
	if (own_mounts() || mount("none", "/dev/shm", "tmpfs", 0, "size=3m"))
		_exit(77);
}

/* Runs in a namespace; 0 when that is not possible here. */
static int run_confined(const char *const *args, void (*confine)(struct tool *))
{
	tool_start(&tool, args, confine);
	tool_wait(&tool);
	if (WIFEXITED(tool.status) && WEXITSTATUS(tool.status) == 77) {
		test_skip("no mount namespace here, so no small file system");
		return 0;
	}
	tool_expect(&tool, 2);
	return 1;
}

START_TEST(test_full_directory)
{
	char *dir = tool_path(&tool, "full");

	ck_assert_int_eq(mkdir(dir, 0700), 0);
	if (!run_confined(TOOL_ARGS("--store", dir, "--nvme", "64MiB"), small_store))
		return;
	tool_says(tool.err, "67108864 more bytes");
	tool_says(tool.err, "free");
}
END_TEST

START_TEST(test_full_shared_memory)
{
	if (!run_confined(TOOL_ARGS("--nvme", "64MiB"), small_shm))
		return;
	tool_says(tool.err, "/dev/shm is too small");
	tool_says(tool.err, "are needed");
	tool_says(tool.err, "are free");
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("replay_input");
	TCase *c = tcase_create("refused");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_loop_test(c, test_bad_trace_line_is_named, 0,
			    sizeof(bad_lines) / sizeof(bad_lines[0]));
	tcase_add_test(c, test_trace_bounds);
	tcase_add_test(c, test_requests_bounds_what_is_read);
	tcase_add_loop_test(c, test_bad_option_is_named, 0,
			    sizeof(bad_options) / sizeof(bad_options[0]));
	tcase_add_test(c, test_contradictions);
	tcase_add_test(c, test_help_and_version);
	tcase_add_test(c, test_foreign_file_is_not_overwritten);
	tcase_add_test(c, test_store_of_another_shape_is_not_overwritten);
	tcase_add_test(c, test_directory_that_is_not_writable);
	tcase_add_test(c, test_full_directory);
	tcase_add_test(c, test_full_shared_memory);
	suite_add_tcase(s, c);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
