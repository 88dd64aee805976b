/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv-replay: the main job from the shell. See --help for what it does, replay.h for how its
 * processes are put together.
 *
 * With --restart the first half is led by a child of this process, so that the second half really
 * starts from nothing but the files: no process, thread, mapping or descriptor of the first is
 * left.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "replay.h"

volatile sig_atomic_t replay_stop;

#define ONCE_NS 500000000u /* signals within this time mean one wish */

static pid_t first_process;

/*
 * One wish to stop may come as several signals. A terminal sends SIGINT to all processes, and the
 * first passes on to the leader of the first half what that has had itself: so it passes on how
 * many it counted. And timeout(1) signals the process, and then its group, where it is again.
 */
static void on_stop(int signal_number, siginfo_t *info, void *context)
{
	static uint64_t counted_ns;
	uint64_t now = replay_now();

	(void)signal_number;
	(void)context;
	if (info->si_code == SI_QUEUE && info->si_pid == first_process) {
		if (info->si_value.sival_int <= replay_stop)
			return;
		replay_stop = info->si_value.sival_int;
	} else if (replay_stop && now - counted_ns < ONCE_NS) {
		return;
	} else {
		replay_stop++;
	}
	counted_ns = now;
}

/*
 * Without SA_RESTART: calls that sleep return, and are called again unless it was the second time.
 * What was ignored or blocked by whoever started this is neither here.
 */
static void catch_signals(void)
{
	struct sigaction stop = { .sa_sigaction = on_stop, .sa_flags = SA_SIGINFO };
	sigset_t both;

	first_process = getpid();
	sigemptyset(&both);
	sigaddset(&both, SIGINT);
	sigaddset(&both, SIGTERM);
	stop.sa_mask = both;
	sigaction(SIGINT, &stop, NULL);
	sigaction(SIGTERM, &stop, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGCHLD, SIG_DFL);
	sigprocmask(SIG_UNBLOCK, &both, NULL);
}

/* Memory that all processes share. Reserved only: what is never touched costs nothing. */
static int make_area(struct replay_job *job)
{
	uint64_t room = job->trace.n + 2 * REPLAY_DRAIN_TICKS + 1;
	size_t bytes = sizeof(struct replay_area) + (job->opts.ranks + 1) * room * 8;

	job->area = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (job->area == MAP_FAILED) {
		replay_complain("no memory for the results of %zu requests: %s", job->trace.n,
				strerror(errno));
		return -1;
	}
	job->area->tick_room = room;
	return 0;
}

static int read_requests(struct replay_job *job)
{
	const struct replay_opts *o = &job->opts;

	if (o->trace)
		return replay_trace_read(o->trace, o->requests, &job->trace);
	return replay_generate(o->seed, o->requests, &job->trace);
}

static void __attribute__((noreturn))
lead_and_exit(struct replay_job *job, uint32_t first, uint32_t end)
{
	int status = replay_lead(job, first, end);

	if (getppid() != job->parent) /* nobody else is left to do it */
		replay_temp_remove(&job->opts);
	_exit(status);
}

/* Leads [first, end) in a child and passes on the signals that ask to stop. Its exit status. */
static int lead_in_child(struct replay_job *job, uint32_t first, uint32_t end)
{
	struct timespec nap = { 0, 20000000 };
	union sigval passed = { .sival_int = 0 };
	pid_t child;
	int status;

	job->parent = getpid();
	fflush(NULL); /* nothing may be printed twice */
	child = fork();
	if (child < 0) {
		replay_complain("cannot start the leader: %s", strerror(errno));
		return REPLAY_FAILED;
	}
	if (!child)
		lead_and_exit(job, first, end);
	while (waitpid(child, &status, WNOHANG) != child) {
		if (passed.sival_int < replay_stop) {
			passed.sival_int = replay_stop;
			sigqueue(child, SIGTERM, passed);
		}
		nanosleep(&nap, NULL); /* a signal cuts it short */
	}
	job->parent = 0;
	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	snprintf(job->area->proc[0].sentence, sizeof(job->area->proc[0].sentence),
		 "the leader (pid %d) was killed by signal %d (%s)", (int)child, WTERMSIG(status),
		 strsignal(WTERMSIG(status)));
	replay_complain("%s", job->area->proc[0].sentence);
	return REPLAY_FAILED;
}

static int replay(struct replay_job *job)
{
	uint32_t n = (uint32_t)job->trace.n, half = job->opts.restart ? n / 2 : 0;
	int status = REPLAY_OK;

	if (half)
		status = lead_in_child(job, 0, half);
	if (status == REPLAY_OK)
		status = replay_lead(job, half, n);
	if (status == REPLAY_BAD_INPUT) /* nothing to report: no group was made */
		return job->area->interrupted ? REPLAY_INTERRUPTED : status;
	if (status == REPLAY_OK || status == REPLAY_INTERRUPTED)
		status = replay_verdict(job);
	if (replay_report(job, status))
		return REPLAY_FAILED;
	return status;
}

int main(int argc, char **argv)
{
	static struct replay_job job; /* zero */
	int status = REPLAY_BAD_INPUT;

	if (replay_opts_parse(argc, argv, &job.opts))
		return REPLAY_BAD_INPUT;
	if (job.opts.done)
		return fflush(stdout) ? REPLAY_FAILED : REPLAY_OK;
	catch_signals();
	if (!read_requests(&job) && !make_area(&job) && !replay_temp_make(&job.opts))
		status = replay(&job);
	replay_temp_remove(&job.opts);
	replay_trace_free(&job.trace);
	return status;
}
