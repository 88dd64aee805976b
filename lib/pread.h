/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The I/O table on pread/pwrite in a few threads, for kernels and containers that refuse io_uring.
 * Same semantics; completions are announced through an eventfd. The threads block all signals.
 */
#ifndef KVR_PREAD_H
#define KVR_PREAD_H

#include <stdint.h>

#include "io.h"

/* Takes over fd (with its I/O lock) on success. */
int kvr_pread_open(int fd, uint64_t bytes, uint32_t align, uint32_t depth, uint32_t threads,
		   struct kvr_io **ret_io);

#endif
