/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must not survive in a forked child. An OFD lock lives as long as any copy of its open file
 * description, so a child that a killed leader forked (Python's workers do) would keep the store
 * locked although nobody does I/O any more. Guarded descriptors are closed in a child before fork()
 * returns there; a ring counts, too, since it holds its registered files.
 *
 * H1 compare-and-swap of an entry, acq_rel    H1 the same of another thread
 *    without it: two threads take one entry, and one descriptor is not guarded
 */
#ifndef KVR_FORK_H
#define KVR_FORK_H

#include <stdint.h>

/* fd is this process's alone from now on. At most 256 at a time; more are not guarded. */
void kvr_fork_guard(int fd);
/* Before closing it. */
void kvr_fork_unguard(int fd);
/* How many forks lie between the program's start and this process, counted from the first guard or
 * the first call of this: a handle made under another number was inherited. No system call. */
uint32_t kvr_fork_generation(void);

#endif
