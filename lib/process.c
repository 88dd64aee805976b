/* SPDX-License-Identifier: Apache-2.0 */
/* Processes by way of /proc and pidfds. */
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "err.h"
#include "util.h"

#define PF_EXITING 4u /* linux/sched.h: the kernel does not offer it to programs */

/* A whole small file of /proc as text. Its length, 0 when it cannot be read. */
static size_t proc_read(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, buf, size - 1);

	if (fd >= 0)
		close(fd);
	buf[n > 0 ? n : 0] = 0;
	return n > 0 ? (size_t)n : 0;
}

/* What matters in /proc/PID/stat. */
struct stat_line {
	char letter;
	uint64_t flags; /* PF_... of linux/sched.h */
	uint64_t start_time;
};

/* 0, or -1 when there is no such process, or it cannot be read. */
static int read_stat(uint32_t pid, struct stat_line *ret)
{
	char path[40], text[1024], *at;

	snprintf(path, sizeof path, "/proc/%u/stat", pid);
	proc_read(path, text, sizeof text);
	/* Field 2 is the program's name in parentheses and may contain anything. */
	at = strrchr(text, ')');
	if (!at || at[1] != ' ')
		return -1;
	ret->letter = at[2];
	for (int field = 2; at && field < 22; field++) {
		at = strchr(at + 1, ' ');
		if (at && field == 8)
			ret->flags = strtoull(at + 1, NULL, 10);
	}
	ret->start_time = at ? strtoull(at + 1, NULL, 10) : 0;
	return ret->start_time ? 0 : -1;
}

uint64_t kvr_process_start_time(uint32_t pid)
{
	struct stat_line s;

	return read_stat(pid, &s) ? 0 : s.start_time;
}

/* 0 where /proc is not that of our own pid namespace. */
static uint64_t own_space(void)
{
	struct stat pid, clock;
	char self[32] = "";

	if (readlink("/proc/self", self, sizeof self - 1) < 0 ||
	    strtol(self, NULL, 10) != (long)getpid() || stat("/proc/self/ns/pid", &pid))
		return 0;
	if (stat("/proc/self/ns/time", &clock)) /* before Linux 5.6 there are none */
		return (uint32_t)pid.st_ino;
	return (uint64_t)(uint32_t)clock.st_ino << 32 | (uint32_t)pid.st_ino;
}

void kvr_process_self(struct kvr_process *ret)
{
	ret->pid = (uint32_t)getpid();
	ret->space = own_space();
	ret->start_time = ret->space ? kvr_process_start_time(ret->pid) : 0;
}

/* Can /proc of this process tell about it? */
static int is_known(const struct kvr_process *p)
{
	return p->pid && p->pid <= INT32_MAX && p->start_time && p->space &&
	       p->space == own_space();
}

static int pidfd_open(uint32_t pid)
{
	return (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
}

/* A pidfd is readable once the last thread of its process has ended. */
static int has_ended(int pidfd)
{
	struct pollfd p = { .fd = pidfd, .events = POLLIN };

	return poll(&p, 1, 0) > 0 && p.revents & POLLIN;
}

static int is_dumping(uint32_t pid)
{
	char path[40], text[4096];

	snprintf(path, sizeof path, "/proc/%u/status", pid);
	return proc_read(path, text, sizeof text) && strstr(text, "\nCoreDumping:\t1");
}

static int no_such_process(uint32_t pid)
{
	return kill((pid_t)pid, 0) && errno == ESRCH;
}

enum kvr_process_state kvr_process_state(const struct kvr_process *p)
{
	struct stat_line s;
	int fd, ended;

	if (!is_known(p))
		return KVR_PROCESS_UNKNOWN;
	if (read_stat(p->pid, &s))
		return no_such_process(p->pid) ? KVR_PROCESS_GONE : KVR_PROCESS_UNKNOWN;
	if (s.start_time != p->start_time)
		return KVR_PROCESS_GONE;
	if (is_dumping(p->pid))
		return KVR_PROCESS_DUMPS;
	/* 'Z' is also the first thread alone having ended. */
	if (s.letter == 'Z' || s.letter == 'X') {
		fd = pidfd_open(p->pid);
		ended = fd < 0 ? errno == ESRCH : has_ended(fd);
		if (fd >= 0)
			close(fd);
		return ended ? KVR_PROCESS_GONE : KVR_PROCESS_RUNS;
	}
	if (s.flags & PF_EXITING)
		return KVR_PROCESS_DUMPS; /* no more: it is on its way out */
	return s.letter == 'T' || s.letter == 't' ? KVR_PROCESS_STOPPED : KVR_PROCESS_RUNS;
}

static int await_end(int pidfd, const struct kvr_process *p, uint64_t deadline_ns)
{
	struct pollfd f = { .fd = pidfd, .events = POLLIN };
	uint64_t now = kvr_now();
	struct timespec left = kvr_timespec(deadline_ns > now ? deadline_ns - now : 0);
	int n = ppoll(&f, 1, &left, NULL);

	if (n > 0)
		return 0;
	if (n < 0 && errno == EINTR)
		return KVR_FAIL(-EINTR,
				"a signal handler ran while the end of process %u was awaited; "
				"calling again goes on",
				p->pid);
	if (n < 0)
		return KVR_FAIL(-errno, "waiting for the end of process %u: %s", p->pid,
				kvr_strerror(errno));
	return KVR_FAIL(-ETIMEDOUT,
			"process %u was killed and did not end by the deadline: it hangs in the "
			"kernel, or still gives back its memory; wait longer",
			p->pid);
}

int kvr_process_kill(const struct kvr_process *p, uint64_t deadline_ns)
{
	struct stat_line s;
	int fd, err;

	if (p->pid == (uint32_t)getpid() && p->space && p->space == own_space())
		return KVR_FAIL(-EBUSY, "process %u is this process itself", p->pid);
	if (!is_known(p))
		return KVR_FAIL(-EBUSY,
				"process %u cannot be killed from here: it lives in another pid or "
				"time namespace (%#llx, this one is %#llx), or /proc does not tell "
				"who it is",
				p->pid, (unsigned long long)p->space,
				(unsigned long long)own_space());
	fd = pidfd_open(p->pid);
	if (fd < 0 && errno == ESRCH)
		return 0;
	if (fd < 0)
		return KVR_FAIL(-errno, "no pidfd of process %u: %s", p->pid, kvr_strerror(errno));
	/* Whose pidfd it is: looked at after it was opened, since a number may be used again. */
	if (read_stat(p->pid, &s)) {
		err = no_such_process(p->pid)
			      ? 0
			      : KVR_FAIL(-EBUSY,
					 "process %u is not killed: /proc does not tell who it is "
					 "(hidden from this user, or no descriptors left)",
					 p->pid);
		close(fd);
		return err;
	}
	if (s.start_time != p->start_time) {
		close(fd);
		return 0;
	}
	if (syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0) && errno != ESRCH)
		err = KVR_FAIL(-errno, "process %u cannot be killed: %s", p->pid,
			       kvr_strerror(errno));
	else
		err = await_end(fd, p, deadline_ns);
	close(fd);
	return err;
}

int kvr_process_boot_id(uint8_t ret_id[16])
{
	const char *path = "/proc/sys/kernel/random/boot_id";
	char text[64];
	uint8_t id[16];
	unsigned have = 0, v;

	proc_read(path, text, sizeof text);
	for (const char *p = text; *p && have < 16; p += *p == '-' ? 1 : 2) {
		if (*p == '-')
			continue;
		if (sscanf(p, "%2x", &v) != 1 || !p[1])
			break;
		id[have++] = (uint8_t)v;
	}
	if (have < 16)
		return KVR_FAIL(-EIO, "%s does not hold the boot id: \"%.40s\"", path, text);
	memcpy(ret_id, id, 16);
	return 0;
}
