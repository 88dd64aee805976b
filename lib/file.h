/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store's file or block device: opening, reserving, the I/O lock, what direct I/O demands. With
 * shm.h, uring.h and pread.h the only place that talks to files.
 *
 * The I/O lock is an OFD lock on *the same open file description that the I/O uses*. A dead
 * process's io_uring reads still land after its pid is gone; this lock comes free only when the
 * last of them has ended, since they hold the description. It is therefore the proof of quiet.
 */
#ifndef KVR_FILE_H
#define KVR_FILE_H

#include <stdint.h>

struct kvr_file {
	int fd;		/* O_CLOEXEC, O_DIRECT unless refused */
	int direct;	/* 0: the file system refused O_DIRECT; I/O is buffered */
	int created;	/* 1: this call made the file */
	uint32_t align; /* of offset, length and memory, at least 512; statx where it tells */
	uint64_t bytes; /* size now */
};

/*
 * Opens path, or makes it (0600, O_EXCL) when create is set and it is absent. O_NOFOLLOW; regular
 * files of this user or block devices (O_EXCL). 0; -ENOENT (says whether the directory or the file
 * is missing), -EACCES, -EPERM (another user's), -EINVAL (a link, a directory, no file), -EBUSY (a
 * block device in use: a dying owner's too, until its last I/O ended), -EAGAIN (replaced
 * meanwhile), each with what to do. Changes no byte of an existing file.
 */
int kvr_file_open(const char *path, int create, struct kvr_file *ret_file);
/* Takes the I/O lock before the deadline. -EBUSY with the reason (held by a live or dying owner).
 */
int kvr_file_lock(struct kvr_file *file, const char *path, uint64_t deadline_ns);
/* Makes the file exactly `bytes` long, every byte reserved (posix_fallocate), never sparse. -ENOSPC
 * with bytes needed and free; the file is then back at its old size. A block device only has to be
 * large enough, and keeps its size. */
int kvr_file_reserve(struct kvr_file *file, const char *path, uint64_t bytes);

/* For a file that no device took over. In a forked child the descriptor is closed already. */
void kvr_file_close(struct kvr_file *file);

#endif
