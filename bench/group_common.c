/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that leave nothing behind, clocks, CPUs, futexes. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "group_bench.h"
#include "kvring/err.h"

struct group_options group_opt = { .rounds = 81, .seconds = 30, .resident = 4ull << 30 };
const char *group_dir;
double group_ns_per_tick = 1;
cpu_set_t group_all, group_first, group_rest;

uint64_t group_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void group_nap(uint64_t ns)
{
	struct timespec t = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

static uint64_t random_state = 88172645463325252u;

uint64_t group_random(uint64_t below)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state % below;
}

long group_sleeps(void)
{
	struct rusage r;

	getrusage(RUSAGE_THREAD, &r);
	return r.ru_nvcsw;
}

void group_futex_wait(const uint32_t *word, uint32_t seen, uint64_t ns)
{
	struct timespec t = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };

	syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

void group_futex_wake(const uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static uint32_t *broken; /* shared: 1 when one process has said why */

void group_broken(const char *what)
{
	const char *why = kvr_explain();

	if (!__atomic_exchange_n(broken, 1, __ATOMIC_ACQ_REL))
		fprintf(stderr, "bench-group: %s%s%s\n", what, *why ? ": " : "", why);
	_exit(1);
}

int group_is_broken(void)
{
	return __atomic_load_n(broken, __ATOMIC_ACQUIRE) != 0;
}

void group_skip(const char *fmt, ...)
{
	FILE *to = group_opt.json ? stderr : stdout;
	va_list ap;

	fputs("skipped: ", to);
	va_start(ap, fmt);
	vfprintf(to, fmt, ap);
	va_end(ap);
	fputc('\n', to);
}

void group_progress(const char *what, uint32_t round)
{
	static int there = -1;

	if (there < 0)
		there = isatty(STDERR_FILENO);
	if (there && what)
		fprintf(stderr, "\r\033[K%s, round %u ", what, round + 1);
	else if (there)
		fputs("\r\033[K", stderr);
}

void *group_memory(size_t bytes)
{
	void *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (mem == MAP_FAILED) {
		perror("bench-group: mmap");
		exit(1);
	}
	return mem;
}

uint64_t group_memory_available(void)
{
	unsigned long long kib = 0;
	FILE *f = fopen("/proc/meminfo", "re");
	char line[128];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return (uint64_t)kib << 10;
}

/* --- CPUs --- */

void group_pin(const cpu_set_t *set)
{
	if (!sched_setaffinity(0, sizeof(*set), set))
		return;
	perror("bench-group: sched_setaffinity");
	_exit(1);
}

void group_cpus_of(uint32_t i, uint32_t n, cpu_set_t *ret_set)
{
	int cpu = 0;

	*ret_set = group_all;
	if (n > (uint32_t)group_run.ncores)
		return;
	while (!CPU_ISSET((size_t)cpu, &group_all) || i--)
		cpu++;
	CPU_ZERO(ret_set);
	CPU_SET((size_t)cpu, ret_set);
}

void group_cpus_text(const cpu_set_t *set, char *to, size_t size)
{
	int cpu, last;
	size_t used = 0;

	*to = 0;
	for (cpu = 0; cpu < CPU_SETSIZE && used < size; cpu = last + 1) {
		last = cpu;
		if (!CPU_ISSET((size_t)cpu, set))
			continue;
		while (last + 1 < CPU_SETSIZE && CPU_ISSET((size_t)last + 1, set))
			last++;
		used += (size_t)snprintf(to + used, size - used, "%s%d", used ? "," : "", cpu);
		if (last > cpu && used < size)
			used += (size_t)snprintf(to + used, size - used, "-%d", last);
	}
}

static void machine_name(void)
{
	FILE *f = fopen("/proc/cpuinfo", "re");
	char line[256], name[96] = "unknown CPU";
	struct utsname u;

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "model name : %95[^\n\"\\]", name) == 1)
			break;
	if (f)
		fclose(f);
	uname(&u);
	snprintf(group_run.machine, sizeof(group_run.machine), "%s, %s %.64s", name, u.sysname,
		 u.release);
}

/* The first CPU that is allowed is the leader's, the others are the ranks'. */
static void cpus_choose(void)
{
	int cpu;

	CPU_ZERO(&group_all);
	if (sched_getaffinity(0, sizeof(group_all), &group_all)) {
		perror("bench-group: sched_getaffinity");
		exit(1);
	}
	group_rest = group_all;
	group_run.ncores = CPU_COUNT(&group_all);
	for (cpu = 0; !CPU_ISSET((size_t)cpu, &group_all);)
		cpu++;
	group_run.core = cpu;
	CPU_ZERO(&group_first);
	CPU_SET((size_t)cpu, &group_first);
	if (group_run.ncores > 1)
		CPU_CLR((size_t)cpu, &group_rest);
	group_cpus_text(&group_rest, group_run.others, sizeof(group_run.others));
}

void group_set_up(void)
{
	uint64_t t, ns;

	cpus_choose();
	machine_name();
	t = group_ticks();
	ns = group_now();
	group_nap(10 * GROUP_MS);
	t = group_ticks() - t;
	group_ns_per_tick = (double)(group_now() - ns) / (double)t;
}

/* --- processes --- */

pid_t group_fork(void)
{
	pid_t parent = getpid(), pid = fork();

	if (pid < 0) {
		perror("bench-group: fork");
		exit(1);
	}
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);					  /* it died before we asked */
	random_state ^= (uint64_t)getpid() * 0x9e3779b97f4a7c15u; /* another row of numbers */
	return 0;
}

/* Whatever the groups left: it is all ours, nobody else knows the directory. */
static void dir_remove(const char *dir)
{
	DIR *d = opendir(dir);
	struct dirent *e;

	while (d && (e = readdir(d)))
		if (e->d_name[0] != '.' && unlinkat(dirfd(d), e->d_name, 0))
			perror("bench-group: unlink");
	if (d)
		closedir(d);
	if (rmdir(dir))
		perror("bench-group: rmdir");
}

/* Those which end a process that knows nothing of them, unless it was told to ignore them. */
static void signals_block(sigset_t *set)
{
	static const int ends[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
	struct sigaction before;
	size_t i;

	sigemptyset(set);
	sigaddset(set, SIGCHLD);
	for (i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		if (!sigaction(ends[i], NULL, &before) && before.sa_handler != SIG_IGN)
			sigaddset(set, ends[i]);
	sigprocmask(SIG_BLOCK, set, NULL);
}

/*
 * All who descend from the worker are our children by now, and were told to end when it did; ECHILD
 * says that none is left. On a core that others have it takes them a while.
 */
static int orphans_reap(void)
{
	uint64_t deadline = group_now() + 3 * GROUP_HANG_NS;
	pid_t pid;

	while ((pid = waitpid(-1, NULL, WNOHANG)) >= 0 && group_now() < deadline)
		if (!pid)
			group_nap(GROUP_MS);
	if (pid >= 0)
		fputs("bench-group: a process that was told to end has not\n", stderr);
	return pid >= 0;
}

static int worker_watch(pid_t pid, const sigset_t *set, double limit_s)
{
	uint64_t deadline = group_now() + (uint64_t)(limit_s * 1e9), now;
	struct timespec left;
	int sig, status;

	for (;;) {
		now = group_now();
		left.tv_sec = now < deadline ? (time_t)((deadline - now) / 1000000000u) + 1 : 0;
		left.tv_nsec = 0;
		sig = sigtimedwait(set, NULL, &left);
		if (sig == SIGCHLD && waitpid(pid, &status, WNOHANG) == pid)
			break;
		if (sig == SIGCHLD || (sig < 0 && errno == EINTR))
			continue;
		if (sig < 0)
			fprintf(stderr, "bench-group: no end after %.0f s\n", limit_s);
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
		return sig < 0 ? 1 : 128 + sig;
	}
	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	fprintf(stderr, "bench-group: ended by signal %d\n", WTERMSIG(status));
	return 1;
}

int group_supervise(int (*work)(void), double limit_s)
{
	static char dir[] = "/dev/shm/kvring-bench-XXXXXX";
	sigset_t set;
	pid_t pid;
	int rc;

	broken = group_memory(sizeof(*broken));
	signals_block(&set);
	/* Orphans come to us, not to init. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	group_dir = mkdtemp(dir);
	if (!group_dir) {
		perror("bench-group: a directory in /dev/shm");
		return 1;
	}
	pid = group_fork();
	if (!pid)
		exit(work());
	rc = worker_watch(pid, &set, limit_s);
	if (orphans_reap())
		rc = 1;
	dir_remove(dir);
	return rc;
}
