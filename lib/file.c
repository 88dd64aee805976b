/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a store's file or block device, its I/O lock, its space.
 *
 * The type is looked at before opening: opening a device node of some other kind may already do
 * something to it. O_DIRECT is switched on after opening: a file system that refuses it leaves an
 * empty file behind when open() itself is asked for it together with O_CREAT.
 */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "err.h"
#include "fork.h"
#include "util.h"

#define ASSUMED_ALIGN 4096u /* when nobody tells: no drive in use demands more */
#define LOCK_STEP (2 * KVR_MS)

/* The directory part of path, "." when it has none. */
static void directory_of(const char *path, char dir[PATH_MAX])
{
	const char *slash = strrchr(path, '/');
	size_t len;

	if (!slash) {
		memcpy(dir, ".", 2);
		return;
	}
	len = slash == path ? 1 : (size_t)(slash - path);
	if (len >= PATH_MAX)
		len = PATH_MAX - 1;
	memcpy(dir, path, len);
	dir[len] = 0;
}

static int fail_absent(const char *path)
{
	char dir[PATH_MAX];
	struct stat st;

	directory_of(path, dir);
	if (stat(dir, &st) && errno == ENOENT)
		return KVR_FAIL(
			-ENOENT,
			"kvr_file_open: %s: the directory %s does not exist. Make it, or name "
			"another path",
			path, dir);
	return KVR_FAIL(-ENOENT,
			"kvr_file_open: %s does not exist, and was not made: either that was not "
			"asked for, or no file can be made in %s. Format a store first, or name "
			"another path",
			path, dir);
}

static int fail_search(const char *path, int error)
{
	char dir[PATH_MAX];

	directory_of(path, dir);
	switch (error) {
	case ENOENT:
		return fail_absent(path);
	case EACCES:
		return KVR_FAIL(
			-EACCES,
			"kvr_file_open: %s: user %u may not look into the directory %s or one "
			"above it. Grant it search permission (chmod u+x), or name another path",
			path, geteuid(), dir);
	case ENOTDIR:
		return KVR_FAIL(
			-ENOTDIR,
			"kvr_file_open: %s: a part of %s is not a directory. Name another path",
			path, dir);
	default:
		return KVR_FAIL(-error, "kvr_file_open: stat of %s failed: %s", path,
				kvr_strerror(error));
	}
}

static int fail_make(const char *path, int error)
{
	char dir[PATH_MAX];

	directory_of(path, dir);
	switch (error) {
	case ENOENT:
		return fail_absent(path);
	case EACCES:
		return KVR_FAIL(
			-EACCES,
			"kvr_file_open: cannot make %s: user %u may not write into the directory "
			"%s. Change its owner or mode, or name another path",
			path, geteuid(), dir);
	case EROFS:
		return KVR_FAIL(-EROFS,
				"kvr_file_open: cannot make %s: the file system of %s is mounted "
				"read-only. Mount it for writing, or name another path",
				path, dir);
	default:
		return KVR_FAIL(-error, "kvr_file_open: cannot make %s in the directory %s: %s",
				path, dir, kvr_strerror(error));
	}
}

static int fail_open(const char *path, const struct stat *st, int error)
{
	switch (error) {
	case EACCES:
		return KVR_FAIL(
			-EACCES,
			"kvr_file_open: user %u may not read and write %s (owner %u, mode %03o). "
			"%s",
			geteuid(), path, st->st_uid, (unsigned)st->st_mode & 0777,
			S_ISBLK(st->st_mode) ? "Change the device's owner, or join its group"
					     : "Change its mode (chmod 600)");
	case EBUSY:
		return KVR_FAIL(
			-EBUSY,
			"kvr_file_open: the block device %s is in use: it is mounted, part of "
			"another device, or open elsewhere with O_EXCL (lsblk and fuser tell). "
			"Nothing was changed",
			path);
	case EPERM:
		return KVR_FAIL(
			-EPERM,
			"kvr_file_open: the kernel does not let user %u open %s for writing: it "
			"may be immutable (chattr -i), or the device cgroup forbids it",
			geteuid(), path);
	case EROFS:
		return KVR_FAIL(
			-EROFS,
			"kvr_file_open: %s lies on a file system mounted read-only. Mount it for "
			"writing, or name another path",
			path);
	default:
		return KVR_FAIL(-error,
				"kvr_file_open: open of %s for reading and writing failed: %s",
				path, kvr_strerror(error));
	}
}

/* What may be opened: a regular file of this user or a block device, and no detour to it. */
static int check_kind(const char *path, const struct stat *st)
{
	if (S_ISLNK(st->st_mode))
		return KVR_FAIL(
			-EINVAL,
			"kvr_file_open: %s is a symbolic link, which is not followed: whoever "
			"may change the link could make this process write elsewhere. Name its "
			"target",
			path);
	if (S_ISDIR(st->st_mode))
		return KVR_FAIL(-EINVAL, "kvr_file_open: %s is a directory. Name a file in it",
				path);
	if (!S_ISREG(st->st_mode) && !S_ISBLK(st->st_mode))
		return KVR_FAIL(
			-EINVAL,
			"kvr_file_open: %s is neither a regular file nor a block device (mode "
			"%06o). Name another path",
			path, (unsigned)st->st_mode);
	if (S_ISREG(st->st_mode) && st->st_uid != geteuid())
		return KVR_FAIL(
			-EPERM,
			"kvr_file_open: %s belongs to user %u, but this process is user %u. Use a "
			"file of this user's own, or change the owner (chown)",
			path, st->st_uid, geteuid());
	return 0;
}

/* Opens what lstat() saw. -EAGAIN when something else has that name by now. */
static int open_existing(const char *path, struct kvr_file *file, struct stat *ret_st)
{
	struct stat seen, st;
	int fd, err;

	if (lstat(path, &seen))
		return fail_search(path, errno);
	err = check_kind(path, &seen);
	if (err)
		return err;
	fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY |
				(S_ISBLK(seen.st_mode) ? O_EXCL : 0));
	if (fd < 0)
		return fail_open(path, &seen, errno);
	if (fstat(fd, &st) || st.st_dev != seen.st_dev || st.st_ino != seen.st_ino) {
		close(fd);
		return KVR_FAIL(
			-EAGAIN,
			"kvr_file_open: %s was replaced by another file while it was opened. "
			"Find out who does that, then try again",
			path);
	}
	file->fd = fd;
	*ret_st = st;
	return 0;
}

/* 0, or -EEXIST without a sentence: it is there already. */
static int make_new(const char *path, struct kvr_file *file, struct stat *ret_st)
{
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	int error;

	if (fd < 0)
		return errno == EEXIST ? -EEXIST : fail_make(path, errno);
	/* A umask may have taken the owner's bits: the next open would fail. */
	if (fchmod(fd, 0600) || fstat(fd, ret_st)) {
		error = errno;
		close(fd);
		unlink(path);
		return fail_make(path, error);
	}
	file->fd = fd;
	file->created = 1;
	return 0;
}

/* Alignment as statx tells it: 0 when direct I/O is not for this file, else at least 512. */
static uint32_t told_align(int fd)
{
	uint32_t align = ASSUMED_ALIGN;
#ifdef STATX_DIOALIGN
	struct statx sx;

	if (!statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) && sx.stx_mask & STATX_DIOALIGN) {
		align = sx.stx_dio_offset_align;
		if (!align || !sx.stx_dio_mem_align)
			return 0;
		if (align < sx.stx_dio_mem_align)
			align = sx.stx_dio_mem_align;
	}
#endif
	return align < 512 ? 512 : align;
}

static int settle(const char *path, const struct stat *st, struct kvr_file *file)
{
	int flags = fcntl(file->fd, F_GETFL);
	uint64_t size = (uint64_t)st->st_size;
	uint32_t align = told_align(file->fd);
	int sector = 0;

	if (S_ISBLK(st->st_mode)) {
		if (ioctl(file->fd, BLKGETSIZE64, &size) || ioctl(file->fd, BLKSSZGET, &sector))
			return KVR_FAIL(-errno, "kvr_file_open: %s does not tell its size: %s",
					path, kvr_strerror(errno));
		if (align && align < (uint32_t)sector)
			align = (uint32_t)sector;
	}
	file->direct = align && !fcntl(file->fd, F_SETFL, flags | O_DIRECT);
	file->align = file->direct ? align : ASSUMED_ALIGN;
	if (!kvr_is_pow2(file->align))
		return KVR_FAIL(
			-EINVAL,
			"kvr_file_open: %s demands an alignment of %u bytes, which is no power of "
			"two. Name a file on another file system",
			path, file->align);
	file->bytes = size;
	return 0;
}

int kvr_file_open(const char *path, int create, struct kvr_file *ret_file)
{
	struct kvr_file file = { .fd = -1 };
	struct stat st = { 0 };
	int err = -EEXIST;

	if (!path || !*path)
		return KVR_FAIL(-EINVAL,
				"kvr_file_open: the path is empty. Name a file or a block device");
	if (create)
		err = make_new(path, &file, &st);
	if (err == -EEXIST)
		err = open_existing(path, &file, &st);
	if (err)
		return err;
	err = settle(path, &st, &file);
	if (err) {
		close(file.fd);
		if (file.created)
			unlink(path);
		return err;
	}
	kvr_fork_guard(file.fd);
	*ret_file = file;
	return 0;
}

int kvr_file_lock(struct kvr_file *file, const char *path, uint64_t deadline_ns)
{
	struct flock held = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	uint64_t now;

	for (;;) {
		struct flock want = { .l_type = F_WRLCK,
				      .l_whence = SEEK_SET }; /* the whole file */
		struct timespec step;

		if (!fcntl(file->fd, F_OFD_SETLK, &want))
			return 0;
		if (errno != EAGAIN && errno != EACCES && errno != EINTR)
			return KVR_FAIL(
				-errno,
				"kvr_file_lock: %s cannot be locked (F_OFD_SETLK: %s). Without this "
				"lock two processes could write to it. Use a file system with locks",
				path, kvr_strerror(errno));
		now = kvr_now();
		if (now >= deadline_ns)
			break;
		step = kvr_timespec(kvr_min(LOCK_STEP, deadline_ns - now));
		nanosleep(&step, NULL);
	}
	if (!fcntl(file->fd, F_OFD_GETLK, &held) && held.l_type != F_UNLCK && held.l_pid > 0)
		return KVR_FAIL(-EBUSY,
				"kvr_file_lock: %s is locked by process %d. End it, or wait", path,
				held.l_pid);
	return KVR_FAIL(
		-EBUSY,
		"kvr_file_lock: %s is in use: another open file holds its I/O lock. Its owner "
		"lives (fuser %s names it), or is dead and its last reads and writes have not "
		"ended yet. End the owner, or wait longer",
		path, path);
}

/* Free for this user: root may use what is kept back for it. */
static uint64_t free_bytes(int fd)
{
	struct statvfs fs;

	if (fstatvfs(fd, &fs) || !fs.f_blocks)
		return UINT64_MAX; /* nothing counts here, as on ramfs */
	return (uint64_t)(geteuid() ? fs.f_bavail : fs.f_bfree) * fs.f_frsize;
}

/* posix_fallocate, undisturbed by signals and, where it has to write, by O_DIRECT's alignment. */
static int allocate(const struct kvr_file *file, uint64_t bytes)
{
	int flags = fcntl(file->fd, F_GETFL);
	int error;

	fcntl(file->fd, F_SETFL, flags & ~O_DIRECT);
	do
		error = posix_fallocate(file->fd, 0, (off_t)bytes);
	while (error == EINTR);
	fcntl(file->fd, F_SETFL, flags);
	return error;
}

static int fail_reserve(const char *path, uint64_t need, uint64_t have, int error)
{
	if (error == ENOSPC || error == EDQUOT)
		return KVR_FAIL(
			-ENOSPC,
			"kvr_file_reserve: %s needs %llu more bytes, but its file system has %llu "
			"free%s. Free space there, or ask for a smaller store",
			path, (unsigned long long)need, (unsigned long long)have,
			error == EDQUOT ? " and the user's quota ends earlier" : "");
	return KVR_FAIL(-error, "kvr_file_reserve: reserving %llu more bytes for %s failed: %s",
			(unsigned long long)need, path, kvr_strerror(error));
}

static int reserve_device(const struct kvr_file *file, const char *path, uint64_t bytes)
{
	if (bytes <= file->bytes)
		return 0;
	return KVR_FAIL(
		-ENOSPC,
		"kvr_file_reserve: the block device %s has %llu bytes, but %llu are asked for. "
		"Ask for a smaller store",
		path, (unsigned long long)file->bytes, (unsigned long long)bytes);
}

int kvr_file_reserve(struct kvr_file *file, const char *path, uint64_t bytes)
{
	struct rlimit limit;
	struct stat st;
	uint64_t had, need, have;
	int error;

	if (!bytes || bytes > INT64_MAX)
		return KVR_FAIL(-EINVAL, "kvr_file_reserve: %s: a size of %llu bytes is impossible",
				path, (unsigned long long)bytes);
	if (fstat(file->fd, &st))
		return KVR_FAIL(-errno, "kvr_file_reserve: stat of %s failed: %s", path,
				kvr_strerror(errno));
	if (S_ISBLK(st.st_mode))
		return reserve_device(file, path, bytes);
	/* Beyond this limit the kernel does not just refuse: it sends SIGXFSZ, which kills. */
	if (!getrlimit(RLIMIT_FSIZE, &limit) && bytes > limit.rlim_cur)
		return KVR_FAIL(
			-EFBIG,
			"kvr_file_reserve: %s is to have %llu bytes, but this process may not write "
			"files beyond %llu (RLIMIT_FSIZE). Raise ulimit -f",
			path, (unsigned long long)bytes, (unsigned long long)limit.rlim_cur);
	had = (uint64_t)st.st_blocks * 512;
	need = bytes > had ? bytes - had : 0;
	have = free_bytes(file->fd);
	/* Looked at first: trying would take the last free byte from everybody else for a while. */
	error = need > have ? ENOSPC : allocate(file, bytes);
	if (!error && ftruncate(file->fd, (off_t)bytes))
		error = errno;
	if (error) {
		fail_reserve(path, need, have, error);
		return kvr_fail_more(
			error == EDQUOT ? -ENOSPC : -error, ". The file %s its old size",
			ftruncate(file->fd, st.st_size) ? "could not be cut back to" : "has");
	}
	file->bytes = bytes;
	return 0;
}

void kvr_file_close(struct kvr_file *file)
{
	if (file->fd < 0)
		return;
	kvr_fork_unguard(file->fd);
	close(file->fd);
	file->fd = -1;
}
