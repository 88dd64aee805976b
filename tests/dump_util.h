/* SPDX-License-Identifier: Apache-2.0 */
/* ring-dump as its users run it, on groups of this process or of real ones. */
#ifndef TESTS_DUMP_UTIL_H
#define TESTS_DUMP_UTIL_H

#include <sys/stat.h>

#include "inspect_util.h"

#define PYTHON "/usr/bin/python3"

static char tool[4096];
static char output[1 << 20];

/* `tool` is what test_tool() found: it stands in each test, so that make knows what to build. */
static inline void setup_tool(void)
{
	setup();
	ck_assert_msg(!access(tool, X_OK), "%s is not built", tool);
}

/* What was printed has all of these words (NULL ends them), or lacks this one. */
static inline void has(const char *word, ...) __attribute__((sentinel));
static inline void has(const char *word, ...)
{
	va_list ap;

	va_start(ap, word);
	for (; word; word = va_arg(ap, const char *))
		ck_assert_msg(strstr(output, word), "\"%s\" is not in: %.3000s", word, output);
	va_end(ap);
}

static inline void lacks(const char *word)
{
	ck_assert_msg(!strstr(output, word), "\"%s\" is in: %.3000s", word, output);
}

static inline void begins(const char *word)
{
	ck_assert_msg(!strncmp(output, word, strlen(word)), "\"%s\" does not begin: %.3000s", word,
		      output);
}

/* Runs a program with its output, both streams, in `output`. Returns its exit status. */
static inline int run(const char *program, const char *in, ...) __attribute__((sentinel));
static inline int run(const char *program, const char *in, ...)
{
	const char *argv[24] = { program };
	size_t used = 0;
	int out[2], n = 1, status;
	va_list ap;
	ssize_t got;
	pid_t pid;

	va_start(ap, in);
	while (n < 23 && (argv[n] = va_arg(ap, const char *)))
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
static inline void json(const char *expression)
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
	ck_assert_msg(!status, "%s: %.3000s", expression, output);
	test_rmdir(dir);
}

static const char *group_dir; /* NULL: /dev/shm */

static inline void dump_join(const char *name, uint32_t rank, struct side *s)
{
	struct kvr_group_opts o = { .size = sizeof o, .dir = group_dir };

	must(kvr_group_attach(name, rank, &o, test_deadline_ms(10000), &s->g));
	must(kvr_channels_open(s->g, &s->c));
}

/* A group in this process: three operations' worth of messages, the last one not taken by rank 1.
 */
static inline void make_dump_group(char name[KVR_NAME_MAX], struct side *l, struct side r[2],
				   const struct kvr_model *model)
{
	struct kvr_group_opts o = { .size = sizeof o,
				    .dir = group_dir,
				    .ranks = 2,
				    .ring_bytes = 4096,
				    .ops = 16,
				    .model = model };
	struct kvr_message m;

	test_name(name, KVR_NAME_MAX, "dump");
	must(kvr_group_create(name, &o, &l->g));
	must(kvr_channels_open(l->g, &l->c));
	dump_join(name, 0, &r[0]);
	dump_join(name, 1, &r[1]);
	for (uint32_t i = 1; i <= 12; i++) {
		struct kvr_request request = { .id = 100 + i, .attempt = i % 2 };

		must(kvr_channels_publish(l->c, KVR_CH_STORE, 0, KVR_TAG_STORE_BEGIN, &request,
					  "\x01\x02\xff", 3, 0));
		must(kvr_channels_take(r[0].c, KVR_CH_STORE, 0, &m));
		if (i < 12)
			must(kvr_channels_take(r[1].c, KVR_CH_STORE, 0, &m));
	}
	must(publish(l, 2, 4711, 7, NULL, 0));
	ops_of(l)[1] = (struct kvr_op_entry){ .word = kvr_word(1, KVR_STAGE_HOST, 0),
					      .request = 112,
					      .kind = KVR_OP_STORE,
					      .blocks = 9,
					      .begun_ns = test_now_ns(),
					      .stage_ns = test_now_ns(),
					      .acked = 3 };
}

#endif
