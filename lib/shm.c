/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of shared memory. Everything that looks at names here assumes that others may create files
 * in the same directory (it is world-writable and sticky): nothing is followed, nothing that is not
 * ours is opened for more than a look.
 */
#include "shm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "err.h"
#include "fork.h"
#include "util.h"

#define NAME_MAX_BYTES 48u
#define SUFFIX_MAX 24u /* ".", an epoch and the final 0 */
/* A signal makes the kernel undo and repeat one call of fallocate: small steps always end. */
#define RESERVE_STEP (64ull << 20)

typedef unsigned long long ull;

static int name_ok(const char *name, size_t len)
{
	if (len < 1 || len >= NAME_MAX_BYTES)
		return 0;
	for (size_t i = 0; i < len; i++) {
		char c = name[i];

		if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		      c == '_' || c == '-'))
			return 0;
	}
	return 1;
}

void kvr_shm_sibling(char ret_path[KVR_SHM_PATH], const char *segment, enum kvr_shm_kind kind,
		     uint64_t epoch)
{
	size_t len = strnlen(segment, KVR_SHM_PATH - SUFFIX_MAX);

	memmove(ret_path, segment, len);
	ret_path[len] = 0;
	if (kind == KVR_SHM_POOL)
		memcpy(ret_path + len, ".pool", sizeof ".pool");
	else if (kind == KVR_SHM_LOCK)
		memcpy(ret_path + len, ".lock", sizeof ".lock");
	else if (kind == KVR_SHM_RETIRED)
		snprintf(ret_path + len, SUFFIX_MAX, ".%llu", (ull)epoch);
}

int kvr_shm_path(char *ret_path, size_t size, const char *dir, const char *name,
		 enum kvr_shm_kind kind, uint64_t epoch)
{
	char path[KVR_SHM_PATH];
	int n;

	if (!dir)
		dir = KVR_SHM_DIR;
	if (!name || !name_ok(name, strnlen(name, NAME_MAX_BYTES)))
		return KVR_FAIL(-EINVAL,
				"group name \"%.64s\": 1 to 47 characters of A-Z a-z 0-9 _ - are "
				"allowed",
				name ? name : "(null)");
	n = snprintf(path, sizeof path, "%s/kvr-%u-%s", dir, (unsigned)geteuid(), name);
	if (n >= 0 && (size_t)n < sizeof path - SUFFIX_MAX) {
		kvr_shm_sibling(path, path, kind, epoch);
		n = (int)strlen(path);
	}
	if (n < 0 || (size_t)n >= sizeof path || (size_t)n >= size)
		return KVR_FAIL(-EINVAL, "directory \"%.100s...\": its path is too long", dir);
	memcpy(ret_path, path, (size_t)n + 1);
	return 0;
}

int kvr_shm_parse(const char *file, char *ret_name, size_t size, enum kvr_shm_kind *ret_kind,
		  uint64_t *ret_epoch)
{
	enum kvr_shm_kind kind = KVR_SHM_SEGMENT;
	char prefix[24], *end;
	uint64_t epoch = 0;
	size_t len;
	int n;

	n = snprintf(prefix, sizeof prefix, "kvr-%u-", (unsigned)geteuid());
	if (strncmp(file, prefix, (size_t)n) != 0)
		return -EINVAL;
	file += n;
	len = strcspn(file, ".");
	if (!name_ok(file, len) || len >= size)
		return -EINVAL;
	if (!strcmp(file + len, ".pool")) {
		kind = KVR_SHM_POOL;
	} else if (!strcmp(file + len, ".lock")) {
		kind = KVR_SHM_LOCK;
	} else if (file[len]) {
		kind = KVR_SHM_RETIRED;
		if (file[len + 1] < '1' || file[len + 1] > '9')
			return -EINVAL;
		errno = 0;
		epoch = strtoull(file + len + 1, &end, 10);
		if (*end || errno)
			return -EINVAL;
	}
	memcpy(ret_name, file, len);
	ret_name[len] = 0;
	*ret_kind = kind;
	*ret_epoch = epoch;
	return 0;
}

static int reserve(int fd, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes;) {
		uint64_t step = kvr_min(RESERVE_STEP, bytes - at);
		int err = posix_fallocate(fd, (off_t)at, (off_t)step);

		if (err && err != EINTR)
			return -err;
		if (!err)
			at += step;
	}
	return 0;
}

/* MemAvailable of /proc/meminfo in bytes; UINT64_MAX when it does not tell. */
static uint64_t memory_available(void)
{
	unsigned long long kib;
	uint64_t found = UINT64_MAX;
	char line[128];
	FILE *f = fopen("/proc/meminfo", "re");

	while (f && found == UINT64_MAX && fgets(line, sizeof line, f))
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			found = (uint64_t)kib * 1024;
	if (f)
		fclose(f);
	return found;
}

/* The number in a file; UINT64_MAX when there is none ("max", no such file). */
static uint64_t number_in(const char *path)
{
	unsigned long long v;
	FILE *f = fopen(path, "re");
	int n = f ? fscanf(f, "%llu", &v) : 0;

	if (f)
		fclose(f);
	return n == 1 ? v : UINT64_MAX;
}

/* What the memory control groups (version 2) of this process allow; UINT64_MAX: no limit. */
static uint64_t memory_limit(void)
{
	char group[256] = "", path[320], *slash;
	uint64_t limit = UINT64_MAX;
	FILE *f = fopen("/proc/self/cgroup", "re");

	if (f && fscanf(f, "0::%255s", group) != 1)
		group[0] = 0;
	if (f)
		fclose(f);
	/* Up to the root, which in a container is the container's own. */
	for (;;) {
		snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", group);
		limit = kvr_min(limit, number_in(path));
		slash = strrchr(group, '/');
		if (!slash)
			return limit;
		*slash = 0;
	}
}

/*
 * Looked at first: a reservation that is too large would fill the file system for everybody until
 * it fails; where the file system is larger than the memory, it would call the OOM killer; over
 * RLIMIT_FSIZE it would be SIGXFSZ.
 */
static int room_check(const char *dir, uint64_t bytes)
{
	uint64_t memory = memory_available(), space;
	struct statvfs vfs;
	struct rlimit limit;

	if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY &&
	    bytes > limit.rlim_cur)
		return KVR_FAIL(-EFBIG,
				"a file of %llu bytes in %s is over this process's limit of %llu "
				"(ulimit -f, RLIMIT_FSIZE)",
				(ull)bytes, dir, (ull)limit.rlim_cur);
	if (statvfs(dir, &vfs))
		return KVR_FAIL(-errno, "cannot look at %s: %s", dir, kvr_strerror(errno));
	space = (uint64_t)vfs.f_bavail * vfs.f_frsize;
	if (bytes > space)
		return KVR_FAIL(
			-ENOSPC,
			"%s is too small: %llu bytes are needed, %llu are free; remove stale "
			"files there or enlarge it (in a container: docker run --shm-size)",
			dir, (ull)bytes, (ull)space);
	if (bytes > memory)
		return KVR_FAIL(-ENOSPC,
				"%llu bytes in %s are more than the %llu bytes of memory that are "
				"available",
				(ull)bytes, dir, (ull)memory);
	memory = memory_limit();
	if (bytes > memory)
		return KVR_FAIL(-ENOSPC,
				"%llu bytes in %s are more than the %llu bytes that the memory "
				"control group of this process allows (docker run --memory)",
				(ull)bytes, dir, (ull)memory);
	return 0;
}

/* Never 0, 1 or 2, however the program was started: what it prints would go into the file. */
static int above_stdio(int fd)
{
	int high;

	if (fd < 0 || fd > 2)
		return fd;
	high = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	close(fd);
	return high;
}

/* A new file needs no bytes yet. */
static const char *inode_hint(int err)
{
	return err == ENOSPC ? ": no inode is left there (df -i)" : "";
}

int kvr_shm_create(const char *dir, uint64_t bytes)
{
	int fd, err;

	if (!dir)
		dir = KVR_SHM_DIR;
	if (bytes < 1 || bytes > INT64_MAX)
		return KVR_FAIL(-EINVAL, "a file of %llu bytes in %s", (ull)bytes, dir);
	fd = above_stdio(open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
	if (fd < 0)
		return KVR_FAIL(-errno,
				"cannot create a file in %s: %s; it must be a writable tmpfs (or "
				"another file system with O_TMPFILE)%s",
				dir, kvr_strerror(errno), inode_hint(errno));
	/* The umask may have taken our own permissions away. */
	if (fchmod(fd, 0600))
		err = KVR_FAIL(-errno, "cannot set the mode of a file in %s", dir);
	else
		err = room_check(dir, bytes);
	if (err) {
		close(fd);
		return err;
	}
	err = reserve(fd, bytes);
	if (!err)
		return fd;
	close(fd);
	/* Somebody else was quicker, or a quota counts what statvfs does not. */
	if (err == -ENOSPC && (room_check(dir, bytes)))
		return -ENOSPC;
	return KVR_FAIL(err, "cannot reserve %llu bytes in %s: %s", (ull)bytes, dir,
			kvr_strerror(err));
}

int kvr_shm_publish(int fd, const char *path)
{
	char self[40];

	snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
	if (!linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW))
		return 0;
	/* Without /proc there is another way, for which older kernels want a capability. */
	if (errno == ENOENT && !linkat(fd, "", AT_FDCWD, path, AT_EMPTY_PATH))
		return 0;
	if (errno == EEXIST)
		return KVR_FAIL(-EEXIST,
				"%s is there already and was not made by this group: look whose it "
				"is (ls -l, fuser) and remove it",
				path);
	return KVR_FAIL(-errno, "cannot give %s its name: %s", path, kvr_strerror(errno));
}

static int check_file(int fd, const char *path, struct stat *st)
{
	if (fstat(fd, st))
		return KVR_FAIL(-errno, "%s: fstat: %s", path, kvr_strerror(errno));
	if (!S_ISREG(st->st_mode))
		return KVR_FAIL(-EPROTO, "%s is no regular file; it is not ours and stays as it is",
				path);
	if (st->st_uid != geteuid())
		return KVR_FAIL(-EPERM, "%s belongs to uid %u, this process runs as %u", path,
				(unsigned)st->st_uid, (unsigned)geteuid());
	if ((st->st_mode & 07777) != 0600)
		return KVR_FAIL(-EPERM,
				"%s has mode %04o instead of 0600: somebody else made it or "
				"opened it up",
				path, (unsigned)st->st_mode & 07777);
	return 0;
}

int kvr_shm_open(const char *path, int writable, uint64_t *ret_bytes)
{
	/* O_NONBLOCK: a FIFO planted under the name must not make us wait. */
	int flags = (writable ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
	int fd = above_stdio(open(path, flags)), err;
	struct stat st;

	if (fd < 0) {
		switch (errno) {
		case ENOENT:
			return KVR_FAIL(-ENOENT, "%s does not exist", path);
		case ELOOP:
			return KVR_FAIL(-EPROTO,
					"%s is a symbolic link; it is not ours and stays "
					"as it is",
					path);
		case EISDIR:
		case ENXIO:
			return KVR_FAIL(-EPROTO,
					"%s is no regular file; it is not ours and stays "
					"as it is",
					path);
		case EACCES:
			return KVR_FAIL(-EPERM, "%s may not be opened by uid %u", path,
					(unsigned)geteuid());
		default:
			return KVR_FAIL(-errno, "cannot open %s: %s", path, kvr_strerror(errno));
		}
	}
	err = check_file(fd, path, &st);
	if (err) {
		close(fd);
		return err;
	}
	*ret_bytes = (uint64_t)st.st_size;
	return fd;
}

int kvr_shm_same(int fd, const char *path)
{
	struct stat a, b;

	if (lstat(path, &b))
		return -errno;
	if (fstat(fd, &a))
		return -errno;
	return a.st_dev == b.st_dev && a.st_ino == b.st_ino ? 0 : -ESTALE;
}

/* Makes or opens the lock file. fd or -errno. */
static int lock_open(const char *path)
{
	int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
	int fd = above_stdio(open(path, flags, 0600)), err;
	struct stat st;

	if (fd < 0)
		return KVR_FAIL(-errno, "cannot open the name lock %s: %s%s", path,
				kvr_strerror(errno), inode_hint(errno));
	if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid())
		fchmod(fd, 0600); /* whatever the umask of the process that made it */
	err = check_file(fd, path, &st);
	if (err)
		close(fd);
	return err ? err : fd;
}

/* The holder leaves its pid in the file, for the sentence of those who wait in vain. */
static void lock_sign(int fd)
{
	char text[16];
	int n = snprintf(text, sizeof text, "%d\n", (int)getpid());
	struct rlimit limit;

	/* Over the limit it would be SIGXFSZ. */
	if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur < (rlim_t)n)
		return;
	if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)n, 0) != n)
		return; /* a full tmpfs: then the sentence lacks the pid */
}

static int lock_late(int fd, const char *path)
{
	char text[16] = "";
	ssize_t n = pread(fd, text, sizeof text - 1, 0);
	long pid = n > 0 ? strtol(text, NULL, 10) : 0;

	return KVR_FAIL(
		-ETIMEDOUT,
		"the name lock %s is held by another process (pid %ld, 0: unknown) that "
		"creates, takes over or closes the same group, or by a child it forked then",
		path, pid);
}

static int lock_wait(int fd, const char *path, uint64_t deadline_ns)
{
	struct timespec pause = kvr_timespec(KVR_MS);

	while (flock(fd, LOCK_EX | LOCK_NB)) {
		if (errno != EWOULDBLOCK)
			return KVR_FAIL(-errno, "cannot lock %s: %s", path, kvr_strerror(errno));
		if (kvr_now() >= deadline_ns)
			return lock_late(fd, path);
		if (nanosleep(&pause, NULL))
			return KVR_FAIL(-EINTR,
					"a signal handler ran while the name lock %s was "
					"awaited; call again",
					path);
	}
	return 0;
}

int kvr_shm_lock(const char *path, uint64_t deadline_ns)
{
	for (;;) {
		int fd = lock_open(path), err;

		if (fd < 0)
			return fd;
		err = lock_wait(fd, path, deadline_ns);
		if (!err && !kvr_shm_same(fd, path)) {
			/* A child of another thread must not keep it when we are killed. */
			kvr_fork_guard(fd);
			lock_sign(fd);
			return fd;
		}
		/* The holder before us unlinked it: a lock on a nameless file locks nothing. */
		close(fd);
		if (err)
			return err;
	}
}

void kvr_shm_unlock(int fd, const char *path)
{
	kvr_shm_unlink(fd, path);
	kvr_fork_unguard(fd);
	/* Explicitly: a child forked before it was guarded still has the open file description. */
	flock(fd, LOCK_UN);
	close(fd);
}

uint32_t kvr_shm_page(void)
{
	return (uint32_t)sysconf(_SC_PAGESIZE);
}

static uint64_t page_mask(void)
{
	return kvr_shm_page() - 1ull;
}

void *kvr_shm_map(int fd, uint64_t off, size_t len, int writable)
{
	size_t lead = (size_t)(off & page_mask());
	int prot = writable ? PROT_READ | PROT_WRITE : PROT_READ;
	uint8_t *p =
		mmap(NULL, lead + len, prot, MAP_SHARED | MAP_POPULATE, fd, (off_t)(off - lead));

	if (p == MAP_FAILED) {
		KVR_FAIL(-errno, "cannot map %zu bytes of shared memory at %llu: %s", len, (ull)off,
			 kvr_strerror(errno));
		return NULL;
	}
	/* A core dump that includes shared memory takes seconds, during which nobody is dead. */
	madvise(p, lead + len, MADV_DONTDUMP);
	return p + lead;
}

void kvr_shm_unmap(const void *addr, size_t len)
{
	size_t lead = (size_t)((uintptr_t)addr & page_mask());

	if (addr)
		munmap((void *)((uintptr_t)addr - lead), lead + len);
}

int kvr_shm_unlink(int fd, const char *path)
{
	int err = kvr_shm_same(fd, path);

	if (!err && unlink(path))
		err = -errno;
	return err;
}

int kvr_shm_retire(int fd, const char *path, const char *retired)
{
	int err = kvr_shm_same(fd, path);

	if (!err && rename(path, retired))
		err = -errno;
	if (!err || err == -ENOENT)
		return 0;
	return KVR_FAIL(err, "cannot rename %s to %s: %s", path, retired, kvr_strerror(err));
}

struct prune {
	const char *dir, *name;
	uint64_t epoch;	 /* kept */
	uint64_t second; /* kept, too */
	uint64_t newest; /* when that one was retired, ns */
	int remove;
	int removed;
};

static void prune_one(void *arg, const char *file)
{
	char name[NAME_MAX_BYTES], path[KVR_SHM_PATH];
	enum kvr_shm_kind kind;
	struct prune *p = arg;
	struct stat st;
	uint64_t epoch, ns;

	if (kvr_shm_parse(file, name, sizeof name, &kind, &epoch) || kind != KVR_SHM_RETIRED ||
	    strcmp(name, p->name) != 0 || epoch == p->epoch)
		return;
	if (kvr_shm_path(path, sizeof path, p->dir, name, kind, epoch) || lstat(path, &st))
		return;
	if (p->remove) {
		if (epoch != p->second)
			p->removed += !unlink(path);
		return;
	}
	/* By time of retirement, not by epoch: epochs start at 1 again after a clean end. */
	ns = (uint64_t)st.st_ctim.tv_sec * KVR_SEC + (uint64_t)st.st_ctim.tv_nsec;
	if (ns > p->newest || (ns == p->newest && epoch > p->second)) {
		p->newest = ns;
		p->second = epoch;
	}
}

int kvr_shm_prune(const char *dir, const char *name, uint64_t epoch, int second)
{
	struct prune p = { .dir = dir, .name = name, .epoch = epoch, .second = epoch };

	if (second)
		kvr_shm_list(dir, prune_one, &p);
	p.remove = 1;
	kvr_shm_list(dir, prune_one, &p);
	return p.removed;
}

int kvr_shm_unlinked(int fd)
{
	struct stat st;

	return !fstat(fd, &st) && !st.st_nlink;
}

int kvr_shm_read(int fd, void *buf, size_t len, uint64_t off)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = pread(fd, (uint8_t *)buf + done, len - done, (off_t)(off + done));

		if (n < 0 && errno != EINTR)
			return KVR_FAIL(-errno, "reading shared memory at %llu: %s",
					(ull)(off + done), kvr_strerror(errno));
		if (!n)
			return KVR_FAIL(-EBADMSG,
					"the file ends at %llu, %zu bytes at %llu are "
					"missing",
					(ull)(off + done), len - done, (ull)(off + done));
		done += n > 0 ? (size_t)n : 0;
	}
	return 0;
}

int kvr_shm_list(const char *dir, void (*fn)(void *arg, const char *file), void *arg)
{
	char name[NAME_MAX_BYTES];
	enum kvr_shm_kind kind;
	struct dirent *e;
	struct stat st;
	uint64_t epoch;
	int count = 0;
	DIR *d;

	if (!dir)
		dir = KVR_SHM_DIR;
	d = opendir(dir);
	if (!d)
		return KVR_FAIL(-errno, "cannot list %s: %s", dir, kvr_strerror(errno));
	while ((e = readdir(d))) {
		if (kvr_shm_parse(e->d_name, name, sizeof name, &kind, &epoch))
			continue;
		if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) ||
		    st.st_uid != geteuid() || !S_ISREG(st.st_mode))
			continue;
		fn(arg, e->d_name);
		count++;
	}
	closedir(d);
	return count;
}

int kvr_shm_random(void *buf, size_t len)
{
	ssize_t n = getrandom(buf, len, 0); /* up to 256 bytes come whole */

	if (n < 0 || (size_t)n != len)
		return KVR_FAIL(-EIO, "getrandom(%zu): %s", len,
				n < 0 ? kvr_strerror(errno) : "short");
	return 0;
}
