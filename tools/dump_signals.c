/* SPDX-License-Identifier: Apache-2.0 */
/* An end by signal is an end in good order: what runs finishes its line and restores the terminal.
 */
#include <signal.h>
#include <sys/select.h>

#include "dump_options.h"

volatile int dump_ended;

static void on_end(int sig)
{
	(void)sig;
	dump_ended = 1;
}

void dump_signals(void)
{
	struct sigaction sa = { .sa_handler = on_end }; /* no SA_RESTART: it ends waits */

	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGHUP, &sa, NULL);
	sigaction(SIGQUIT, &sa, NULL);
}

void dump_pause(uint64_t ns)
{
	struct timespec left = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };
	sigset_t block, old;

	/* Blocked but for the wait itself: one that comes before must not be waited out. */
	sigemptyset(&block);
	sigaddset(&block, SIGINT);
	sigaddset(&block, SIGTERM);
	sigaddset(&block, SIGHUP);
	sigaddset(&block, SIGQUIT);
	sigprocmask(SIG_BLOCK, &block, &old);
	if (!dump_ended)
		pselect(0, NULL, NULL, NULL, &left, &old);
	sigprocmask(SIG_SETMASK, &old, NULL);
}
