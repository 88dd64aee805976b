/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every I/O table must do, whatever stands behind it. A test program fills in a struct
 * io_kind; its variants (io_uring with more or fewer flags, for example) all run the same tests.
 */
#ifndef TESTS_IO_SUITE_H
#define TESTS_IO_SUITE_H

#include <check.h>
#include <stdint.h>

#include "file.h"
#include "io.h"

#define IO_BLOCK (64u << 10)
#define IO_DEPTH 16u

struct io_kind {
	const char *name;
	int variants;
	/* Takes over file->fd on success, like kvr_uring_open(). */
	int (*open)(int variant, const struct kvr_file *file, uint32_t depth, void *pool,
		    uint64_t pool_bytes, struct kvr_io **ret_io);
};

/* A private directory with a reserved and locked file, a shared pool, and the table on both. */
struct io_set {
	char dir[256];
	char path[300];
	struct kvr_file file;
	struct kvr_io *io;
	uint8_t *pool;
	uint64_t pool_bytes;
};

void io_suite_add(Suite *suite, const struct io_kind *kind);

void io_set_up(struct io_set *set, const struct io_kind *kind, int variant, uint64_t bytes,
	       uint32_t depth);
/* Closes the table when it is still open, and removes everything. */
void io_set_down(struct io_set *set);

uint8_t *io_pool(uint64_t bytes);
/* Opens the file once more and asks for its lock: 0 or kvr_file_lock()'s error. */
int io_try_lock(const char *path, uint64_t ms);
void io_fill(void *buf, uint64_t len, uint64_t seed);
struct kvr_io_req io_request(enum kvr_io_op op, void *buf, uint64_t off, uint32_t len);
/* Polls and reaps until n requests ended; no one may take longer than 10 s. */
void io_wait(struct kvr_io *io, unsigned n);
/* Submits, flushes and waits for one request; returns its res. */
int32_t io_one(struct kvr_io *io, enum kvr_io_op op, void *buf, uint64_t off, uint32_t len);

#endif
