/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring-dump --watch on a terminal: a pseudo-terminal, and as much of a terminal's mind as is
 * needed to see what a person would see. And without one.
 */
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>

#include "dump_util.h"

#define ROWS_MAX 60
#define COLUMNS_MAX 200

static char name[KVR_NAME_MAX];
static struct side l, r[2];
static int master;
static pid_t watcher, shell;
static int from_shell, to_shell;

static struct {
	int rows, columns, row, column;
	int other_page, no_cursor;
	int scrolled, wrapped, frames;
	char cell[ROWS_MAX][COLUMNS_MAX + 1];
	char escape[16];
	int in_escape;
} screen;

/* --- the terminal ------------------------------------------------------------------------------
 */

static void erase_line(int row, int column)
{
	memset(screen.cell[row] + column, ' ', (size_t)(COLUMNS_MAX - column));
}

static void escape_done(char letter)
{
	if (letter == 'H') {
		screen.row = screen.column = 0;
		screen.frames++;
	} else if (letter == 'K') {
		erase_line(screen.row, screen.column);
	} else if (letter == 'J') {
		erase_line(screen.row, screen.column);
		for (int i = screen.row + 1; i < ROWS_MAX; i++)
			erase_line(i, 0);
	} else if (!strcmp(screen.escape, "[?1049") || !strcmp(screen.escape, "[?25")) {
		int *what = screen.escape[2] == '1' ? &screen.other_page : &screen.no_cursor;

		*what = (letter == 'h') == (screen.escape[2] == '1');
	} else {
		ck_abort_msg("escape %s%c", screen.escape, letter);
	}
}

static void put(char c)
{
	size_t n = strlen(screen.escape);

	if (screen.in_escape) {
		if ((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) {
			screen.in_escape = 0;
			escape_done(c);
		} else {
			ck_assert_uint_lt(n, sizeof screen.escape - 1);
			screen.escape[n] = c;
			screen.escape[n + 1] = 0;
		}
	} else if (c == 27) {
		screen.in_escape = 1;
		screen.escape[0] = 0;
	} else if (c == '\n') {
		if (++screen.row >= screen.rows) {
			screen.row = screen.rows - 1;
			screen.scrolled++;
		}
	} else if (c == '\r') {
		screen.column = 0;
	} else {
		ck_assert_msg(c >= ' ' && c <= '~', "byte %#x", (unsigned)c);
		if (screen.column >= screen.columns)
			screen.wrapped++;
		else
			screen.cell[screen.row][screen.column++] = c;
	}
}

static void take_in(void)
{
	char bytes[4096];
	ssize_t n;

	while ((n = read(master, bytes, sizeof bytes)) > 0)
		for (ssize_t i = 0; i < n; i++)
			put(bytes[i]);
}

/* Where it stands in a row. */
static const char *shows(const char *text)
{
	const char *at = NULL;

	for (int i = 0; i < screen.rows && !at; i++) {
		screen.cell[i][COLUMNS_MAX] = 0;
		at = strstr(screen.cell[i], text);
	}
	return at;
}

static void dump_screen(void)
{
	for (int i = 0; i < screen.rows; i++)
		printf("|%.*s|\n", screen.columns, screen.cell[i]);
}

static void await_screen(const char *text)
{
	uint64_t deadline = test_deadline_ms(10000);

	for (take_in(); !shows(text) && test_now_ns() < deadline; take_in())
		test_sleep_ms(2);
	if (shows(text))
		return;
	dump_screen();
	ck_abort_msg("the screen does not show \"%s\"", text);
}

static void set_size(int rows, int columns)
{
	struct winsize w = { .ws_row = (unsigned short)rows, .ws_col = (unsigned short)columns };

	ck_assert_int_eq(ioctl(master, TIOCSWINSZ, &w), 0);
	screen.rows = rows;
	screen.columns = columns;
}

/* --- the program on it ---------------------------------------------------------------------------
 */

/*
 * What a shell does: it has the terminal as its own, gives it to the program, and hears when that
 * stops or ends. It lives on, so that the terminal does, too.
 */
static void be_shell(const char *slave, const char *const *argv, int in, int out)
{
	int fd, status;
	pid_t pid;
	char c;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGTTOU, SIG_IGN);
	setsid();
	fd = open(slave, O_RDWR | O_CLOEXEC); /* the terminal of the session now */
	if (fd < 0)
		_exit(98);
	pid = fork();
	if (!pid) {
		setpgid(0, 0);
		tcsetpgrp(fd, getpid());
		signal(SIGTTOU, SIG_DFL);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (dup2(fd, 0) < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
			_exit(98);
		execv(tool, (char **)(uintptr_t)argv);
		_exit(97);
	}
	if (write(out, &pid, sizeof pid) != sizeof pid)
		_exit(96);
	while (waitpid(pid, &status, WUNTRACED) == pid) {
		if (write(out, &status, sizeof status) != sizeof status || read(in, &c, 1) != 1)
			break;
		if (!WIFSTOPPED(status))
			break;
		tcsetpgrp(fd, pid);
		kill(-pid, SIGCONT);
	}
	_exit(0);
}

static const char *every = "--watch=0.1";

static void watch(const char *what, const char *more, const char *value)
{
	const char *argv[] = { tool, every, what, more, value, NULL };
	int up[2], down[2];
	char slave[64];

	memset(&screen, 0, sizeof screen);
	for (int i = 0; i < ROWS_MAX; i++)
		erase_line(i, 0);
	master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	ck_assert_int_ge(master, 0);
	ck_assert_int_eq(grantpt(master), 0);
	ck_assert_int_eq(unlockpt(master), 0);
	ck_assert_int_eq(ptsname_r(master, slave, sizeof slave), 0);
	set_size(24, 80);
	ck_assert_int_eq(pipe2(up, O_CLOEXEC), 0);
	ck_assert_int_eq(pipe2(down, O_CLOEXEC), 0);
	shell = fork();
	if (!shell)
		be_shell(slave, argv, down[0], up[1]);
	close(up[1]);
	close(down[0]);
	from_shell = up[0];
	to_shell = down[1];
	ck_assert_int_eq(read(from_shell, &watcher, sizeof watcher), sizeof watcher);
	ck_assert_int_eq(fcntl(master, F_SETFL, O_NONBLOCK), 0);
}

/* Until the shell says that it stopped or ended; its words meanwhile are read. */
static int heard(void)
{
	struct pollfd p = { .fd = from_shell, .events = POLLIN };
	uint64_t deadline = test_deadline_ms(10000);
	int status;

	while (poll(&p, 1, 2) != 1 && test_now_ns() < deadline)
		take_in();
	ck_assert_int_eq(poll(&p, 1, 0), 1);
	ck_assert_int_eq(read(from_shell, &status, sizeof status), sizeof status);
	take_in();
	return status;
}

static void go_on(void)
{
	ck_assert_int_eq(write(to_shell, "x", 1), 1);
}

static void type(const char *keys)
{
	ck_assert_int_eq(write(master, keys, strlen(keys)), (ssize_t)strlen(keys));
}

static void modes_are(tcflag_t expected)
{
	struct termios t;
	char slave[64];
	int fd;

	ck_assert_int_eq(ptsname_r(master, slave, sizeof slave), 0);
	fd = open(slave, O_RDWR | O_NOCTTY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(tcgetattr(fd, &t), 0);
	close(fd);
	ck_assert_uint_eq(t.c_lflag & (ICANON | ECHO | ISIG), expected);
}

/* It ended, and the terminal is as it was. */
static void over(void)
{
	ck_assert_int_eq(heard(), 0);
	ck_assert_int_eq(screen.other_page, 0);
	ck_assert_int_eq(screen.no_cursor, 0);
	ck_assert_int_eq(screen.scrolled, 0);
	ck_assert_int_eq(screen.wrapped, 0);
	modes_are(ICANON | ECHO | ISIG);
	go_on();
	test_reap(shell, 10000);
	close(from_shell);
	close(to_shell);
	close(master);
}

static void setup_watch(void)
{
	test_tool(tool, sizeof tool, "ring-dump");
	setup_tool();
	group_dir = NULL;
}

START_TEST(test_table_fits_and_q_ends)
{
	make_dump_group(name, &l, r, NULL);
	watch(name, NULL, NULL);
	await_screen("fine: leader and 2 of 2 ranks");
	ck_assert_int_eq(screen.other_page, 1);
	ck_assert_int_eq(screen.no_cursor, 1);
	modes_are(ISIG);
	await_screen("STORE             12        0            1       1  "); /* and its age */
	ck_assert_ptr_nonnull(strstr(shows("STORE             12"), "s "));
	ck_assert(shows(name) && shows("leader") && shows("STORE"));
	/* The newest event is in the last row, in full or cut. */
	await_screen("PUBLISH channel USER0 number 1");
	screen.cell[23][COLUMNS_MAX] = 0;
	ck_assert_msg(strstr(screen.cell[23], "PUBLISH channel USER0 number 1"), "%s",
		      screen.cell[23]);
	/* Drawn again and again, over itself. */
	for (int n = screen.frames; screen.frames < n + 3; take_in())
		test_sleep_ms(1);
	type("x");
	await_screen("fine: ");
	type("q");
	over();
	end_group(&l, r);
}
END_TEST

START_TEST(test_terminal_that_changes_its_size)
{
	static const int sizes[][2] = { { 5, 20 }, { 50, 190 }, { 1, 1 }, { 10, 80 } };

	make_dump_group(name, &l, r, NULL);
	watch(name, NULL, NULL);
	await_screen("RANK");
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		int n;

		take_in();
		set_size(sizes[i][0], sizes[i][1]); /* tells it by SIGWINCH */
		for (n = screen.frames; screen.frames < n + 2; take_in())
			test_sleep_ms(1);
		/* One frame may have been made for the old size before. */
		screen.wrapped = screen.scrolled = 0;
		for (n = screen.frames; screen.frames < n + 3; take_in())
			test_sleep_ms(1);
		ck_assert_int_eq(screen.wrapped, 0);
		ck_assert_int_eq(screen.scrolled, 0);
	}
	ck_assert(shows(name));
	type("\003"); /* Ctrl-C */
	over();
	/* At once, not when it is time. */
	every = "--watch=3600";
	watch(name, NULL, NULL);
	await_screen("PUBLISH channel USER0 number 1");
	set_size(30, 60);
	for (uint64_t end = test_deadline_ms(10000); screen.frames < 2; take_in()) {
		ck_assert_uint_lt(test_now_ns(), end);
		test_sleep_ms(1);
	}
	type("q");
	over();
	end_group(&l, r);
}
END_TEST

START_TEST(test_ctrl_z_gives_the_terminal_back)
{
	make_dump_group(name, &l, r, NULL);
	watch(name, NULL, NULL);
	await_screen("RANK");
	for (int i = 0; i < 2; i++) {
		int n;

		type("\032"); /* Ctrl-Z */
		ck_assert_int_eq(WSTOPSIG(heard()), SIGTSTP);
		ck_assert_int_eq(screen.other_page, 0);
		ck_assert_int_eq(screen.no_cursor, 0);
		modes_are(ICANON | ECHO | ISIG);
		n = screen.frames;
		test_sleep_ms(150);
		take_in();
		ck_assert_int_eq(screen.frames, n);
		go_on();
		while (screen.frames < n + 3) {
			take_in();
			test_sleep_ms(1);
		}
		ck_assert_int_eq(screen.other_page, 1);
		modes_are(ISIG);
	}
	kill(watcher, SIGTERM);
	over();
	end_group(&l, r);
}
END_TEST

START_TEST(test_group_that_ends_and_comes_again)
{
	struct kvr_group_opts o = { .size = sizeof o, .ranks = 1 };
	struct kvr_group *g;
	pid_t pid;

	make_dump_group(name, &l, r, NULL);
	watch(name, NULL, NULL);
	await_screen("fine: ");
	end_group(&l, r);
	await_screen("there is no such group now: ");
	await_screen("when it was last seen: fine: leader and 2 of 2");
	pid = fork();
	if (!pid)
		_exit(kvr_group_create(name, &o, &g) ? 99 : raise(SIGKILL));
	ck_assert_int_eq(WTERMSIG(test_reap(pid, 5000)), SIGKILL);
	await_screen("died");
	must(kvr_group_create(name, &o, &g));
	await_screen("epoch 2");
	await_screen("fine: leader and 0 of 1 ranks");
	type("q");
	over();
	kvr_group_close(g);
	remove_group(name);
}
END_TEST

START_TEST(test_all_groups)
{
	char second[KVR_NAME_MAX], dir[256];
	struct side l2, r2[2];

	test_tmpdir(dir, sizeof dir);
	group_dir = dir;
	make_dump_group(name, &l, r, NULL);
	watch("--dir", dir, NULL);
	await_screen(name);
	ck_assert(shows("all groups") && shows("2/2"));
	make_dump_group(second, &l2, r2, NULL);
	await_screen(second);
	end_group(&l2, r2);
	end_group(&l, r);
	await_screen("none in ");
	type("Q");
	over();
	test_rmdir(dir);
}
END_TEST

/* Not a terminal: a table after the other, until a signal. */
START_TEST(test_without_a_terminal)
{
	const char *argv[] = { tool, "--watch", "0.1", NULL, NULL };
	uint64_t deadline = test_deadline_ms(10000);
	uint32_t tables = 0;
	size_t used = 0;
	struct kvr_message m;
	int out[2];
	ssize_t n;

	make_dump_group(name, &l, r, NULL);
	argv[3] = name;
	ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
	watcher = fork();
	if (!watcher) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (dup2(out[1], 1) < 0)
			_exit(98);
		execv(tool, (char **)(uintptr_t)argv);
		_exit(97);
	}
	close(out[1]);
	ck_assert_int_eq(fcntl(out[0], F_SETFL, O_NONBLOCK), 0);
	for (uint32_t i = 0; tables < 4 && test_now_ns() < deadline; i++) {
		must(kvr_channels_publish(l.c, KVR_CH_USER1, 1, 300, NULL, NULL, 0, 0));
		must(kvr_channels_take(r[0].c, KVR_CH_USER1, 0, &m));
		while ((n = read(out[0], output + used, sizeof output - 1 - used)) > 0)
			used += (size_t)n;
		output[used] = 0;
		tables = 0;
		for (const char *at = output; (at = strstr(at, "epoch 1  tick 0 ")); at++)
			tables++;
		test_sleep_ms(1);
	}
	kill(watcher, SIGTERM);
	ck_assert_int_eq(test_reap(watcher, 10000), 0);
	close(out[0]);
	ck_assert_uint_ge(tables, 4);
	lacks("\033");
	has("(-/s)", "(0/s)", "fine: ", "PUBLISH channel USER1", NULL);
	/* Calls and messages a second: not known at first, then of all messages of this loop. */
	ck_assert_ptr_nonnull(strstr(strstr(output, "(0/s)"), "leader "));
	ck_assert_int_gt(atoi(strstr(strstr(output, "(0/s)"), "\nleader ") + 38), 0);
	end_group(&l, r);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("dump_watch");
	TCase *t = tcase_create("dump_watch");

	tcase_add_checked_fixture(t, setup_watch, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_table_fits_and_q_ends);
	tcase_add_test(t, test_terminal_that_changes_its_size);
	tcase_add_test(t, test_ctrl_z_gives_the_terminal_back);
	tcase_add_test(t, test_group_that_ends_and_comes_again);
	tcase_add_test(t, test_all_groups);
	tcase_add_test(t, test_without_a_terminal);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
