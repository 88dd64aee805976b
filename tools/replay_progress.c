/* SPDX-License-Identifier: Apache-2.0 */
/* What is said on stderr while it runs: complaints, and on a terminal how far it is. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kvring/err.h"
#include "replay.h"

#define EVERY_NS 100000000u /* between two drawings */
#define BAR 24

static int drawn; /* there is a line to take away */

static void put(const char *text, size_t len)
{
	while (len) {
		ssize_t n = write(STDERR_FILENO, text, len);

		if (n < 0 && errno != EINTR)
			return;
		if (n > 0)
			text += n, len -= (size_t)n;
	}
}

__attribute__((format(printf, 2, 0))) static void say(const char *who, const char *format,
						      va_list args)
{
	char text[4096];
	int at, n;

	replay_progress_clear();
	at = snprintf(text, sizeof(text), "kv-replay: %s%s", who, *who ? ": " : "");
	n = vsnprintf(text + at, sizeof(text) - (size_t)at - 1, format, args);
	if (n > 0)
		at += n;
	if ((size_t)at > sizeof(text) - 2)
		at = sizeof(text) - 2;
	text[at++] = '\n';
	put(text, (size_t)at);
}

void replay_complain(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say("", format, args);
	va_end(args);
}

void replay_fail(struct replay_run *run, const char *format, ...)
{
	char who[64];
	va_list args;
	int at;

	if (run->rank == REPLAY_LEADER)
		snprintf(who, sizeof(who), "leader (pid %d)", (int)getpid());
	else
		snprintf(who, sizeof(who), "rank %u (pid %d)", run->rank, (int)getpid());
	va_start(args, format);
	say(who, format, args);
	va_end(args);
	at = snprintf(run->proc->sentence, sizeof(run->proc->sentence), "%s: ", who);
	va_start(args, format);
	vsnprintf(run->proc->sentence + at, sizeof(run->proc->sentence) - (size_t)at, format, args);
	va_end(args);
}

/*
 * A call that was cut short by a death says what it waited for; the group says who died. Both
 * matter to whoever reads one line of a log.
 */
const char *replay_why(const struct replay_run *run, int err)
{
	static char both[1400];
	const char *why = kvr_explain();
	int n;

	if (run->own)
		return run->own;
	if (!*why)
		why = kvr_strerror(err);
	if (!run->c || (err != -EOWNERDEAD && err != -ESTALE))
		return why;
	n = snprintf(both, sizeof(both), "%s", why);
	if (kvr_group_check(kvr_connector_group(run->c)) && n > 0 && (size_t)n < sizeof(both) &&
	    strcmp(both, kvr_explain()))
		snprintf(both + n, sizeof(both) - (size_t)n, "; %s", kvr_explain());
	return both;
}

void replay_progress_clear(void)
{
	if (drawn)
		put("\r\033[K", 4);
	drawn = 0;
}

static int on_terminal(void)
{
	static int known = -1;

	if (known < 0)
		known = isatty(STDERR_FILENO) == 1;
	return known;
}

static int too_early(void)
{
	static uint64_t last;
	uint64_t now = replay_now();

	if (last && now - last < EVERY_NS)
		return 1;
	last = now;
	return 0;
}

void replay_progress(const struct replay_run *run)
{
	const struct replay_proc *p = run->proc;
	uint64_t done = p->requests, total = run->job->trace.n, ns = p->store_ns + p->load_ns;
	uint64_t here = done + 1 - run->first, left;
	double rate, speed;
	char text[256];
	int n, full;

	if (!on_terminal() || too_early())
		return;
	rate = p->references ? (double)p->blocks.loaded * 100 / (double)p->references : 0;
	speed = ns ? (double)(p->store_bytes + p->load_bytes) / (double)ns : 0;
	left = (replay_now() - run->began_ns) / here * (total - done) / 1000000000u;
	full = (int)(done * BAR / total);
	n = snprintf(text, sizeof(text),
		     "\r\033[K%" PRIu64 "/%" PRIu64
		     " [%.*s%*s] hits %.1f %%  %.2f GB/s  ETA %" PRIu64 ":%02" PRIu64,
		     done, total, full, "========================", BAR - full, "", rate, speed,
		     left / 60, left % 60);
	if (n > 0 && (size_t)n < sizeof(text))
		put(text, (size_t)n);
	drawn = 1;
}

void replay_progress_open(void *arg, const char *what, uint64_t done, uint64_t total)
{
	char text[256];
	int n;

	(void)arg;
	if (!on_terminal() || too_early())
		return;
	n = snprintf(text, sizeof(text), "\r\033[K%s %.0f %%", what,
		     total ? (double)done * 100 / (double)total : 0.0);
	if (n > 0 && (size_t)n < sizeof(text))
		put(text, (size_t)n);
	drawn = 1;
}
