/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes of group_gloo.py, as a peer: started where some python3 has torch, ordered about
 * through pipes. Whatever goes wrong with them, the benchmark goes on without.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "group_bench.h"

#define START_NS (120000 * GROUP_MS) /* torch takes seconds, on a busy machine many */
#define SCRIPT "group_gloo.py"

static struct {
	pid_t pid;
	int to, from; /* pipes */
} gloo[GROUP_GLOO_WORLD];
static uint32_t nworld;

/* Beside this file in the source tree, from where the benchmark was built; or from its own path,
 * which is build/bench-group. */
static int script_find(char *to, size_t size)
{
	char self[1024], *slash;
	ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
	int up;

	snprintf(to, size, "%s", __FILE__);
	slash = strrchr(to, '/');
	snprintf(slash ? slash + 1 : to, size - (size_t)(slash ? slash + 1 - to : 0), SCRIPT);
	if (!access(to, R_OK))
		return 1;
	self[len > 0 ? len : 0] = 0;
	for (up = 0; up < 2; up++) {
		slash = strrchr(self, '/');
		if (slash)
			*slash = 0;
	}
	return snprintf(to, size, "%s/bench/" SCRIPT, self) < (int)size && !access(to, R_OK);
}

static void silence(void)
{
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

	if (null >= 0)
		dup2(null, STDERR_FILENO);
}

/* One that has torch: the first in PATH need not be the one that Debian's packages belong to. */
static const char *python_find(void)
{
	static const char *const pythons[] = { "python3", "/usr/bin/python3" };
	size_t i;

	for (i = 0; i < sizeof(pythons) / sizeof(pythons[0]); i++) {
		pid_t pid = group_fork();
		int status;

		if (!pid) {
			silence();
			execlp(pythons[i], pythons[i], "-c",
			       "import importlib.util as u, sys\n"
			       "sys.exit(u.find_spec('torch') is None)",
			       (char *)NULL);
			_exit(1);
		}
		if (waitpid(pid, &status, 0) == pid && !status)
			return pythons[i];
	}
	return NULL;
}

static void child(const char *python, const char *script, uint32_t rank, uint32_t world,
		  const int in[2], const int out[2])
{
	char number[2][16], file[256];

	silence(); /* warnings; errors come as an answer */
	dup2(in[0], STDIN_FILENO);
	dup2(out[1], STDOUT_FILENO);
	snprintf(number[0], sizeof(number[0]), "%u", rank);
	snprintf(number[1], sizeof(number[1]), "%u", world);
	snprintf(file, sizeof(file), "%s/gloo", group_dir);
	setenv("GLOO_SOCKET_IFNAME", "lo", 0);
	execlp(python, python, script, number[0], number[1], file, (char *)NULL);
	_exit(1);
}

static int one_start(const char *python, const char *script, uint32_t rank, uint32_t world)
{
	int in[2], out[2];

	if (pipe2(in, O_CLOEXEC))
		return 0;
	if (pipe2(out, O_CLOEXEC)) {
		close(in[0]);
		close(in[1]);
		return 0;
	}
	gloo[rank].pid = group_fork();
	if (!gloo[rank].pid)
		child(python, script, rank, world, in, out);
	close(in[0]);
	close(out[1]);
	gloo[rank].to = in[1];
	gloo[rank].from = out[0];
	nworld++;
	return 1;
}

/* One line; 0: none came in time, it is an error, or the process has ended. */
static int line_read(uint32_t rank, char *to, size_t size, uint64_t ns)
{
	struct pollfd p = { .fd = gloo[rank].from, .events = POLLIN };
	uint64_t deadline = group_now() + ns;
	size_t used = 0;
	ssize_t got;

	for (;;) {
		uint64_t now = group_now();

		if (now >= deadline || poll(&p, 1, (int)((deadline - now) / GROUP_MS) + 1) < 0)
			return 0;
		if (!p.revents)
			continue;
		got = read(gloo[rank].from, to + used, size - 1 - used);
		if (got <= 0)
			return 0;
		used += (size_t)got;
		to[used] = 0;
		if (to[used - 1] != '\n')
			continue;
		to[used - 1] = 0;
		return strncmp(to, "error", 5) != 0;
	}
}

/* Tells why, and ends it for good. */
static int failed(uint32_t rank, const char *order, const char *said)
{
	group_skip("gloo from here on: process %u, %s: %s", rank, order,
		   *said ? said : "no answer");
	group_gloo_stop();
	return 0;
}

int group_gloo_start(uint32_t world)
{
	const char *python = python_find();
	char script[1200], said[256] = "";
	uint32_t r;

	if (!python || !script_find(script, sizeof(script))) {
		group_skip("gloo: absent, %s", python ? "bench/" SCRIPT " is not where this was "
							"built"
						      : "no python3 here has torch "
							"(apt-get install python3-torch)");
		return 0;
	}
	signal(SIGPIPE, SIG_IGN);
	for (r = 0; r < world; r++)
		if (!one_start(python, script, r, world))
			return failed(r, "start", strerror(errno));
	for (r = 0; r < world; r++)
		if (!line_read(r, said, sizeof(said), START_NS))
			return failed(r, "start", said);
	snprintf(group_run.gloo, sizeof(group_run.gloo), "%.90s", said + strlen("ready "));
	return 1;
}

/* Where process i of n works: as kvring's do. */
static void cpus_for(const char *order, uint32_t i, uint32_t n, char *to, size_t size)
{
	cpu_set_t set;

	if (!strcmp(order, "barrier") || !strcmp(order, "min"))
		group_cpus_of(i, n, &set);
	else
		set = i ? group_rest : group_first;
	group_cpus_text(&set, to, size);
}

static int numbers_read(char *said, uint64_t *to)
{
	uint32_t n = 0;
	char *end;

	for (; *said && n < GROUP_GLOO_NUMBERS; said = end + (*end == ' ')) {
		to[n++] = strtoull(said, &end, 10);
		if (end == said)
			return 0;
	}
	return n != 0;
}

int group_gloo_run(const char *order, uint32_t n, uint32_t size, uint32_t count,
		   struct group_gloo_said *ret)
{
	char text[256], cpus[128], said[GROUP_GLOO_NUMBERS * 24];
	uint32_t r;

	if (n > nworld)
		return 0;
	for (r = 0; r < n; r++) {
		cpus_for(order, r, n, cpus, sizeof(cpus));
		snprintf(text, sizeof(text), "%s %u %u %u %s\n", order, n, size, count, cpus);
		if (write(gloo[r].to, text, strlen(text)) != (ssize_t)strlen(text))
			return failed(r, order, strerror(errno));
	}
	for (r = 0; r < n; r++) {
		*said = 0;
		if (!line_read(r, said, sizeof(said), GROUP_HANG_NS) ||
		    !numbers_read(said, ret->number[r]))
			return failed(r, order, said);
	}
	return 1;
}

void group_gloo_stop(void)
{
	while (nworld) {
		nworld--;
		kill(gloo[nworld].pid, SIGKILL);
		waitpid(gloo[nworld].pid, NULL, 0);
		close(gloo[nworld].to);
		close(gloo[nworld].from);
	}
}
