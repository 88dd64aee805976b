/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files in the directory of shared memory (/dev/shm, or another tmpfs chosen by the caller). The
 * only place that knows the file names:
 *
 *   kvr-UID-NAME            the current segment        kvr-UID-NAME.pool    its pool
 *   kvr-UID-NAME.EPOCH      a retired segment (two)    kvr-UID-NAME.lock    the name lock
 *
 * A file is made without a name (O_TMPFILE), every byte reserved, filled, and then linked: nobody
 * ever sees it half-built, and a full file system is an error with the bytes needed and found
 * instead of a SIGBUS later.
 */
#ifndef KVR_SHM_H
#define KVR_SHM_H

#include <stddef.h>
#include <stdint.h>

#define KVR_SHM_DIR "/dev/shm"
#define KVR_SHM_PATH 384

enum kvr_shm_kind { KVR_SHM_SEGMENT, KVR_SHM_POOL, KVR_SHM_LOCK, KVR_SHM_RETIRED };

/* NULL dir: /dev/shm. -EINVAL on a bad name (1..47 of [A-Za-z0-9_-], so that no path escapes). */
int kvr_shm_path(char *ret_path, size_t size, const char *dir, const char *name,
		 enum kvr_shm_kind kind, uint64_t epoch);
/* The path beside that of a segment, which leaves room for it. */
void kvr_shm_sibling(char ret_path[KVR_SHM_PATH], const char *segment, enum kvr_shm_kind kind,
		     uint64_t epoch);
/* The reverse, for a file name without directory: the group's name (at least 48 bytes), kind and
 * epoch (0 unless retired). 0, or -EINVAL when it is no file of this user's groups. No sentence. */
int kvr_shm_parse(const char *file, char *ret_name, size_t size, enum kvr_shm_kind *ret_kind,
		  uint64_t *ret_epoch);

/* An anonymous file in dir with `bytes` reserved (posix_fallocate), mode 0600. fd or -errno:
 * -ENOSPC says bytes needed and free, and the container hint (docker --shm-size). */
int kvr_shm_create(const char *dir, uint64_t bytes);
/* Gives it its name. -EEXIST when the name is taken. */
int kvr_shm_publish(int fd, const char *path);
/* Opens an existing file, O_NOFOLLOW; checks regular file, owner = euid, mode 0600, and returns its
 * size. fd; -ENOENT; -EPERM (owner, mode) or -EPROTO (kind of file) with the reason. */
int kvr_shm_open(const char *path, int writable, uint64_t *ret_bytes);
/* Takes the name lock (exclusive flock on the .lock file, made if absent; an unlinked one is
 * retried) before the deadline. fd; -ETIMEDOUT with the holder's pid; -EINTR. */
int kvr_shm_lock(const char *path, uint64_t deadline_ns);
/* Unlinks the lock file and drops the lock, also for a child that inherited the descriptor. */
void kvr_shm_unlock(int fd, const char *path);
/* Maps [off, off+len) shared, read-only or writable, populated, MADV_DONTDUMP. NULL: see explain.
 * `off` need not be a multiple of the kernel's page size, which is 64 KiB on some arm64. */
void *kvr_shm_map(int fd, uint64_t off, size_t len, int writable);
/* The kernel's page size: what is mapped, and may be written, in one piece. */
uint32_t kvr_shm_page(void);
/* Undoes it. NULL is fine. */
void kvr_shm_unmap(const void *addr, size_t len);
/* 0 when `path` names the file behind `fd` (dev and ino); -ENOENT: nothing; -ESTALE: another. */
int kvr_shm_same(int fd, const char *path);
/* Unlinks `path` only if it is still the file behind `fd`. 0, -ENOENT, -ESTALE. */
int kvr_shm_unlink(int fd, const char *path);
/* Renames `path` to `retired` (replacing what is there) only if it is still the file behind `fd`.
 * 0 also when nothing has that name any more. */
int kvr_shm_retire(int fd, const char *path, const char *retired);
/* Of the retired segments of a group, removes all but that of `epoch` and, if `second`, the one of
 * the others that was retired last. Returns how many were removed. */
int kvr_shm_prune(const char *dir, const char *name, uint64_t epoch, int second);
/* 1: the file behind fd has no name any more (somebody removed it: RemoveIPC, rm). */
int kvr_shm_unlinked(int fd);
/* pread of exactly len bytes for inspectors; -EBADMSG when the file ends before. */
int kvr_shm_read(int fd, void *buf, size_t len, uint64_t off);
/* Calls fn with the name of each kvr-UID-* file of this user in dir; returns their number or
 * -errno. fn may remove the file. */
int kvr_shm_list(const char *dir, void (*fn)(void *arg, const char *file), void *arg);
int kvr_shm_random(void *buf, size_t len);

#endif
