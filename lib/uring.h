/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The I/O table on io_uring. Flags step down by probing: SINGLE_ISSUER|DEFER_TASKRUN (6.1),
 * SINGLE_ISSUER|COOP_TASKRUN, COOP_TASKRUN (5.19), none. The ring is made disabled or lazily so
 * that the first submitting thread becomes the single issuer. The file is a fixed file; buffers
 * inside [pool, pool + pool_bytes) are registered once (unregistered, and said in `degraded`, when
 * the limit of locked memory forbids it). No thread but the caller's touches the ring. fd() is an
 * eventfd: a ring with DEFER_TASKRUN wakes nobody who polls it. submit() also says -EINVAL to a
 * write beyond the end. flush() that says -EAGAIN or -EBUSY keeps everything; reap() tries again.
 */
#ifndef KVR_URING_H
#define KVR_URING_H

#include <stdint.h>

#include "io.h"

/* Takes over fd (with its I/O lock) on success. -EPERM, -ENOSYS, -ENOMEM: io_uring is refused here;
 * use pread.h. pool may be NULL. */
int kvr_uring_open(int fd, uint64_t bytes, uint32_t align, uint32_t depth, void *pool,
		   uint64_t pool_bytes, struct kvr_io **ret_io);

#endif
