/* SPDX-License-Identifier: Apache-2.0 */
/* Namespaces for a forked child of a test: with root's rights, or in a user namespace without. */
#ifndef TESTS_NAMESPACES_H
#define TESTS_NAMESPACES_H

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

/* 0 when all of the text went into the file with one write. */
static inline int namespaces_write(const char *file, const char *text)
{
	int fd = open(file, O_WRONLY | O_CLOEXEC), bad;

	if (fd < 0)
		return -1;
	bad = write(fd, text, strlen(text)) != (ssize_t)strlen(text);
	close(fd);
	return bad ? -1 : 0;
}

/*
 * unshare(flags); where that takes root, in a user namespace in which uid and gid are the same as
 * before. Mounts made afterwards stay private. 0, or -1: not allowed here.
 */
static inline int namespaces_enter(int flags)
{
	unsigned uid = geteuid(), gid = getegid();
	char map[64];

	if (unshare(flags)) {
		if (unshare(CLONE_NEWUSER | flags))
			return -1;
		snprintf(map, sizeof map, "%u %u 1", uid, uid);
		if (namespaces_write("/proc/self/setgroups", "deny") ||
		    namespaces_write("/proc/self/uid_map", map))
			return -1;
		snprintf(map, sizeof map, "%u %u 1", gid, gid);
		if (namespaces_write("/proc/self/gid_map", map))
			return -1;
	}
	return flags & CLONE_NEWNS ? mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) : 0;
}

#endif
