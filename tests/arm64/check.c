/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define TESTS 128
#define CASES 16

struct check_case {
	const char *name;
	double timeout;					/* seconds; 0: CK_DEFAULT_TIMEOUT */
	void (*setup)(void), (*teardown)(void);		/* in the child */
	void (*setup_all)(void), (*teardown_all)(void); /* in this process */
	int n;
	struct {
		const TTest *test;
		int from, to;
	} tests[TESTS];
};

struct check_suite {
	const char *name;
	int n;
	TCase *cases[CASES];
};

struct check_runner {
	Suite *suite;
	int checks, failures, errors;
};

/* Where the test is and whether an assertion failed; in memory that the child shares. */
static struct place {
	const char *tcase, *test;
	int i, failed;
} * place;

static volatile pid_t child;
static volatile sig_atomic_t too_long;

static void out_of_memory_or_table(int is)
{
	if (!is)
		return;
	fprintf(stderr, "check: out of memory, or more tests than its tables hold\n");
	exit(2);
}

static void *zeroed(size_t size)
{
	void *p = calloc(1, size);

	out_of_memory_or_table(!p);
	return p;
}

Suite *suite_create(const char *name)
{
	Suite *s = zeroed(sizeof(*s));

	s->name = name;
	return s;
}

void suite_add_tcase(Suite *s, TCase *tc)
{
	out_of_memory_or_table(s->n == CASES);
	s->cases[s->n++] = tc;
}

TCase *tcase_create(const char *name)
{
	TCase *tc = zeroed(sizeof(*tc));

	tc->name = name;
	return tc;
}

void tcase_set_timeout(TCase *tc, double seconds)
{
	tc->timeout = seconds;
}

void tcase_add_checked_fixture(TCase *tc, void (*setup)(void), void (*teardown)(void))
{
	out_of_memory_or_table(tc->setup || tc->teardown);
	tc->setup = setup;
	tc->teardown = teardown;
}

void tcase_add_unchecked_fixture(TCase *tc, void (*setup)(void), void (*teardown)(void))
{
	out_of_memory_or_table(tc->setup_all || tc->teardown_all);
	tc->setup_all = setup;
	tc->teardown_all = teardown;
}

void tcase_add_loop_test(TCase *tc, const TTest *test, int from, int to)
{
	out_of_memory_or_table(tc->n == TESTS);
	tc->tests[tc->n].test = test;
	tc->tests[tc->n].from = from;
	tc->tests[tc->n].to = to;
	tc->n++;
}

SRunner *srunner_create(Suite *s)
{
	SRunner *r = zeroed(sizeof(*r));

	r->suite = s;
	place = mmap(NULL, sizeof(*place), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	out_of_memory_or_table(place == MAP_FAILED);
	return r;
}

int srunner_ntests_failed(SRunner *r)
{
	return r->failures + r->errors;
}

void srunner_free(SRunner *r)
{
	int i;

	for (i = 0; i < r->suite->n; i++)
		free(r->suite->cases[i]);
	free(r->suite);
	free(r);
}

void check_failed(const char *file, int line, const char *fmt, ...)
{
	va_list ap;

	printf("%s:%d:F:%s:%s:%d: ", file, line, place->tcase, place->test, place->i);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	printf("\n");
	fflush(stdout);
	place->failed = 1;
	_exit(1);
}

static void on_alarm(int sig)
{
	(void)sig;
	too_long = 1;
	kill(-child, SIGKILL);
}

static double number(const char *name, double otherwise)
{
	const char *env = getenv(name);

	return env && *env ? atof(env) : otherwise;
}

static unsigned int timeout_of(const TCase *tc)
{
	double seconds = tc->timeout > 0 ? tc->timeout : number("CK_DEFAULT_TIMEOUT", 4);

	return (unsigned int)(seconds * number("CK_TIMEOUT_MULTIPLIER", 1) + 1);
}

static __attribute__((noreturn)) void child_main(const TCase *tc, const TTest *test, int i)
{
	setpgid(0, 0); /* the parent does it, too: whoever comes first */
	signal(SIGALRM, SIG_DFL);
	if (tc->setup)
		tc->setup();
	test->fn(i);
	if (tc->teardown)
		tc->teardown();
	exit(0);
}

/* Does CHECK_SKIP, a file with lines "NAME: why", name the test? Then it counts, and passes. */
static int skipped(const TTest *test)
{
	const char *path = getenv("CHECK_SKIP");
	FILE *f = path ? fopen(path, "re") : NULL;
	size_t len = strlen(test->name);
	char line[256];
	int found = 0;

	while (f && !found && fgets(line, sizeof(line), f))
		found = !strncmp(line, test->name, len) && line[len] == ':';
	if (f)
		fclose(f);
	if (found)
		printf("skipped: %s", line);
	return found;
}

static void run_one(SRunner *r, const TCase *tc, const TTest *test, int i)
{
	int status = 0;
	pid_t pid;

	*place = (struct place){ .tcase = tc->name, .test = test->name, .i = i };
	too_long = 0;
	r->checks++;
	if (skipped(test))
		return;
	fflush(NULL);
	pid = fork();
	if (!pid)
		child_main(tc, test, i);
	if (pid > 0) {
		setpgid(pid, pid);
		child = pid;
		alarm(timeout_of(tc));
		while (waitpid(pid, &status, 0) < 0)
			;
		alarm(0);
		kill(-pid, SIGKILL); /* what it left behind */
	}
	if (pid > 0 && !status)
		return;
	if (pid > 0 && place->failed) {
		r->failures++;
		return;
	}
	r->errors++;
	printf("%s:%s:%d:E: ", tc->name, test->name, i);
	if (pid < 0)
		printf("fork failed\n");
	else if (too_long)
		printf("not over after %u s\n", timeout_of(tc));
	else if (WIFSIGNALED(status))
		printf("ended by signal %d\n", WTERMSIG(status));
	else
		printf("left with status %d\n", WEXITSTATUS(status));
}

static void run_case(SRunner *r, const TCase *tc)
{
	int i, j;

	if (tc->setup_all)
		tc->setup_all();
	for (i = 0; i < tc->n; i++)
		for (j = tc->tests[i].from; j < tc->tests[i].to; j++)
			run_one(r, tc, tc->tests[i].test, j);
	if (tc->teardown_all)
		tc->teardown_all();
}

void srunner_run_all(SRunner *r, enum print_output mode)
{
	const char *only = getenv("CK_RUN_CASE");
	struct sigaction act = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	int i, good;

	(void)mode;
	sigaction(SIGALRM, &act, NULL);
	printf("Running suite(s): %s\n", r->suite->name);
	for (i = 0; i < r->suite->n; i++)
		if (!only || !strcmp(only, r->suite->cases[i]->name))
			run_case(r, r->suite->cases[i]);
	good = r->checks - srunner_ntests_failed(r);
	printf("%d%%: Checks: %d, Failures: %d, Errors: %d\n",
	       r->checks ? good * 100 / r->checks : 100, r->checks, r->failures, r->errors);
	fflush(stdout);
}
