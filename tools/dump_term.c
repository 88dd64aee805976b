/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The terminal. A frame goes out in one write, over the one before and without clearing it first,
 * so that nothing flickers. However this ends, by a key, a signal or exit(), the terminal is as it
 * was.
 */
#include "dump_term.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "dump_options.h"

#define BEGIN "\033[?1049h\033[?25l" /* another page; no cursor */
#define END "\033[?25h\033[?1049l"
#define FRAME_MAX 65536u

static struct termios saved;
static int begun, has_keys;
static volatile sig_atomic_t resized, suspended;

static void on_signal(int sig)
{
	if (sig == SIGWINCH)
		resized = 1;
	else
		suspended = 1;
}

static int write_all(const char *bytes, size_t len)
{
	while (len) {
		ssize_t n = write(STDOUT_FILENO, bytes, len);

		if (n < 0 && errno == EAGAIN)
			poll(&(struct pollfd){ .fd = STDOUT_FILENO, .events = POLLOUT }, 1, 100);
		else if (n < 0 && errno != EINTR)
			return -1;
		if (n > 0) {
			bytes += n;
			len -= (size_t)n;
		}
	}
	return 0;
}

static void enter(void)
{
	struct termios raw;

	has_keys = isatty(STDIN_FILENO) && !tcgetattr(STDIN_FILENO, &saved);
	if (has_keys) {
		raw = saved;
		raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO); /* Ctrl-C stays a signal */
		raw.c_cc[VMIN] = 0;
		raw.c_cc[VTIME] = 0;
		tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	}
	begun = 1;
	write_all(BEGIN, sizeof BEGIN - 1);
}

void dump_term_end(void)
{
	if (!begun)
		return;
	begun = 0;
	write_all(END, sizeof END - 1);
	if (has_keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &saved);
}

void dump_term_size(struct dump_term *t)
{
	struct winsize w;

	t->rows = 24;
	t->columns = 80;
	if (!t->is_tty || ioctl(STDOUT_FILENO, TIOCGWINSZ, &w))
		return;
	if (w.ws_row)
		t->rows = w.ws_row;
	if (w.ws_col)
		t->columns = w.ws_col;
}

void dump_term_begin(struct dump_term *t)
{
	struct sigaction sa = { .sa_handler = on_signal };

	t->is_tty = isatty(STDOUT_FILENO);
	dump_term_size(t);
	if (!t->is_tty)
		return;
	sigaction(SIGWINCH, &sa, NULL);
	sigaction(SIGTSTP, &sa, NULL);
	atexit(dump_term_end);
	enter();
}

/* Ctrl-Z: the shell gets its terminal back as it was. */
static void suspend(void)
{
	struct sigaction sa = { .sa_handler = on_signal };
	sigset_t stop;

	suspended = 0;
	dump_term_end();
	signal(SIGTSTP, SIG_DFL);
	sigemptyset(&stop);
	sigaddset(&stop, SIGTSTP);
	raise(SIGTSTP);
	sigprocmask(SIG_UNBLOCK, &stop, NULL); /* stops here */
	sigaction(SIGTSTP, &sa, NULL);
	enter();
}

/* ESC [ and a letter: home, or erase. */
static size_t put_escape(char *frame, size_t used, char what)
{
	frame[used++] = '\033';
	frame[used++] = '[';
	frame[used++] = what;
	return used;
}

/* Appends what fits of a line; nothing of it moves the cursor. */
static size_t put_line(char *frame, size_t used, const char *line, size_t len, uint32_t columns)
{
	if (len > columns)
		len = columns;
	for (size_t i = 0; i < len; i++)
		frame[used++] = line[i] >= ' ' && line[i] <= '~' ? line[i] : '?';
	return put_escape(frame, used, 'K'); /* the rest of the old line */
}

int dump_term_draw(const struct dump_term *t, const char *text)
{
	static char frame[FRAME_MAX];
	uint32_t columns = t->columns < 500 ? t->columns : 500, row = 0;
	size_t used;

	used = put_escape(frame, 0, 'H');
	while (*text && row < t->rows && used + columns + 16 < sizeof frame) {
		size_t len = strcspn(text, "\n");

		if (row++)
			frame[used++] = '\n'; /* not after the last: that would scroll */
		used = put_line(frame, used, text, len, columns);
		text += len + (text[len] == '\n');
	}
	used = put_escape(frame, used, 'J'); /* what is below */
	return write_all(frame, used);
}

int dump_term_wait(const struct dump_term *t, uint64_t ns)
{
	struct timespec left = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };
	struct pollfd key = { .fd = STDIN_FILENO, .events = POLLIN };
	sigset_t block, old;
	char c = 0;
	int n = 0;

	if (!t->is_tty) {
		dump_pause(ns);
		return dump_ended;
	}
	sigfillset(&block);
	sigprocmask(SIG_BLOCK, &block, &old);
	if (!dump_ended && !resized && !suspended)
		n = ppoll(&key, has_keys ? 1 : 0, &left, &old);
	sigprocmask(SIG_SETMASK, &old, NULL);
	resized = 0;
	if (suspended)
		suspend();
	if (n > 0 && read(STDIN_FILENO, &c, 1) <= 0)
		return 1; /* the terminal is gone */
	return dump_ended || c == 'q' || c == 'Q';
}
