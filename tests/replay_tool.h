/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the tests that run build/kv-replay as a user would: starts it with its output in files of a
 * private directory, waits, and finds figures in its JSON.
 */
#ifndef TESTS_REPLAY_TOOL_H
#define TESTS_REPLAY_TOOL_H

#include <dirent.h>
#include <inttypes.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "harness.h"

#define TOOL_WAIT_MS 120000u
#define TOOL_TEXT 65536

struct tool {
	char dir[256]; /* private: output, stores, traces */
	char name[64]; /* of the group */
	pid_t pid;
	int status; /* as waitpid has it */
	char out[TOOL_TEXT], err[TOOL_TEXT];
};

static inline void tool_setup(struct tool *t)
{
	memset(t, 0, sizeof(*t));
	test_tmpdir(t->dir, sizeof(t->dir));
	test_name(t->name, sizeof(t->name), "replay");
	/* Ranks of a leader that was killed become children of this process, which can wait. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
}

/* A path in the private directory; the last eight stay valid. */
__attribute__((format(printf, 2, 3))) static inline char *tool_path(struct tool *t,
								    const char *format, ...)
{
	static char paths[8][512];
	static unsigned int turn;
	char *path = paths[turn++ % 8];
	va_list args;
	int n = snprintf(path, 512, "%s/", t->dir);

	va_start(args, format);
	vsnprintf(path + n, (size_t)(512 - n), format, args);
	va_end(args);
	return path;
}

/* The files in shared memory of a group whose processes were killed. */
static inline void tool_clean_shm(const struct tool *t)
{
	DIR *dir = opendir("/dev/shm");
	struct dirent *entry;
	char prefix[128];
	int n = snprintf(prefix, sizeof(prefix), "kvr-%u-%s", (unsigned int)geteuid(), t->name);

	while (dir && (entry = readdir(dir)))
		if (!strncmp(entry->d_name, prefix, (size_t)n))
			unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
}

static inline void tool_teardown(struct tool *t)
{
	tool_clean_shm(t);
	test_rmdir(t->dir);
}

/* A TMPDIR for the program alone: its path, in the private directory. */
static inline char *tool_own_tmpdir(struct tool *t)
{
	static char tmp[512];

	snprintf(tmp, sizeof(tmp), "%s/tmp", t->dir);
	ck_assert_int_eq(mkdir(tmp, 0700), 0);
	ck_assert_int_eq(setenv("TMPDIR", tmp, 1), 0);
	return tmp;
}

static inline int tool_entries(const char *path)
{
	DIR *dir = opendir(path);
	int n = 0;

	ck_assert_ptr_nonnull(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n - 2;
}

static inline void tool_binary(char *buf, size_t size)
{
	const char *build = getenv("KVR_BUILD");

	if (build && *build)
		ck_assert_int_lt(snprintf(buf, size, "%s/kv-replay", build), (int)size);
	else
		test_tool(buf, size, "kv-replay");
}

static inline void tool_slurp(const char *path, char *text)
{
	FILE *f = fopen(path, "re");
	size_t n = f ? fread(text, 1, TOOL_TEXT - 1, f) : 0;

	text[n] = 0;
	if (f)
		fclose(f);
}

static inline void tool_redirect(const char *path, int to)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	if (fd < 0 || dup2(fd, to) < 0)
		_exit(126);
}

/* argv without the program's name; before: what the child does first, or NULL. */
static inline void tool_start(struct tool *t, const char *const *args,
			      void (*before)(struct tool *))
{
	char binary[4096], *argv[64] = { binary, (char *)(uintptr_t) "--name", t->name };
	size_t i;

	tool_binary(binary, sizeof(binary));
	for (i = 0; args[i] && i < 60; i++)
		argv[3 + i] = (char *)(uintptr_t)args[i];
	t->pid = fork();
	ck_assert_int_ge(t->pid, 0);
	if (t->pid)
		return;
	tool_redirect(tool_path(t, "out"), 1);
	tool_redirect(tool_path(t, "err"), 2);
	if (before)
		before(t);
	execv(binary, argv);
	_exit(127);
}

static inline void tool_wait(struct tool *t)
{
	t->status = test_reap(t->pid, TOOL_WAIT_MS);
	tool_slurp(tool_path(t, "out"), t->out);
	tool_slurp(tool_path(t, "err"), t->err);
}

/* Ends with this exit status, or fails the test with what it said. */
static inline void tool_expect(const struct tool *t, int exit_status)
{
	if (!WIFEXITED(t->status) || WEXITSTATUS(t->status) != exit_status)
		ck_abort_msg("kv-replay: exit status %d expected, wait status 0x%x found\n%s%s",
			     exit_status, (unsigned int)t->status, t->out, t->err);
}

/* Does `text` contain `part`? Otherwise fails with both. */
static inline void tool_says(const char *text, const char *part)
{
	if (!strstr(text, part))
		ck_abort_msg("'%s' is not in:\n%s", part, text);
}

#define TOOL_ARGS(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define TOOL_RUN(t, exit_status, ...)                        \
	do {                                                 \
		tool_start(t, TOOL_ARGS(__VA_ARGS__), NULL); \
		tool_wait(t);                                \
		tool_expect(t, exit_status);                 \
	} while (0)

static inline uint64_t tool_number(const struct tool *t, const char *field)
{
	char key[64];
	const char *p;

	snprintf(key, sizeof(key), "\"%s\": ", field);
	p = strstr(t->out, key);
	if (!p)
		ck_abort_msg("no %s in: %s%s", field, t->out, t->err);
	return strtoull(p + strlen(key), NULL, 10);
}

static inline void tool_assert_number(const struct tool *t, const char *field, uint64_t expected)
{
	uint64_t found = tool_number(t, field);

	if (found != expected)
		ck_abort_msg("%s: %" PRIu64 " expected, %" PRIu64 " found in: %s", field, expected,
			     found, t->out);
}

/* What holds after every run that ended well. */
static inline void tool_assert_right(const struct tool *t)
{
	tool_assert_number(t, "wrong_bytes", 0);
	tool_assert_number(t, "unfinished", 0);
	tool_assert_number(t, "stale_hits", 0);
	tool_assert_number(t, "quarantined_slots", 0);
	tool_says(t->out, "\"ticks_equal\": true");
	tool_says(t->out, "\"counts_equal\": true");
	tool_says(t->out, "\"ok\": true");
}

/* The pid that --verbose tells for "leader" or "rank 1", once it is there. */
static inline pid_t tool_pid(struct tool *t, const char *who)
{
	uint64_t until = test_deadline_ms(20000);
	char key[64];
	const char *p;

	snprintf(key, sizeof(key), "kv-replay: %s pid ", who);
	do {
		tool_slurp(tool_path(t, "err"), t->err);
		p = strstr(t->err, key);
		if (p && strchr(p, '\n'))
			return (pid_t)strtol(p + strlen(key), NULL, 10);
		test_sleep_ms(2);
	} while (test_now_ns() < until);
	ck_abort_msg("no pid of %s in: %s", who, t->err);
	return -1;
}

#endif
