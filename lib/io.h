/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The I/O table: what the store needs from a device. io_uring, a pool of pread/pwrite threads and
 * the simulated device stand behind it with equal semantics:
 *
 * - A request belongs to the device from submit() until reap() returns it, and so does its buffer.
 * - Completions come in any order. `res` is bytes moved, possibly fewer than asked (sched.h goes on
 *   with the rest), or a negative errno.
 * - All calls come from one thread at a time. Only `sync` and `close` may block.
 */
#ifndef KVR_IO_H
#define KVR_IO_H

#include <stdint.h>

enum kvr_io_op { KVR_IO_READ, KVR_IO_WRITE };

struct kvr_io_req {
	/* set by the submitter */
	void *buf;    /* aligned to the device's align; so are off and len */
	uint64_t off; /* in the device */
	uint32_t len;
	uint32_t op; /* enum kvr_io_op */
	void *user;
	/* set by the device */
	int32_t res;
	uint32_t reserved;
	/* the holder's own, whoever holds it */
	struct kvr_io_req *next;
};

struct kvr_io;
struct kvr_io_ops {
	const char *name; /* "io_uring", "pread", "simulated" */
	/* Takes one request. 0, or -EAGAIN when `depth` are in flight. */
	int (*submit)(struct kvr_io *io, struct kvr_io_req *req);
	/* Hands everything taken to the kernel at once. 0 or -errno; never loses a request. */
	int (*flush)(struct kvr_io *io);
	/* Up to max ended requests, without waiting; returns their number. */
	int (*reap)(struct kvr_io *io, struct kvr_io_req **ret_reqs, unsigned max);
	/* A descriptor that polls readable while reap() may return something. */
	int (*fd)(struct kvr_io *io);
	/* Makes what ended so far durable (fdatasync). Blocks. */
	int (*sync)(struct kvr_io *io);
	/* Drains, closes the descriptor (and with it the I/O lock), frees. Requests that do not end
	 * within the deadline are leaked and their number returned. */
	int (*close)(struct kvr_io *io, uint64_t deadline_ns);
};

struct kvr_io {
	const struct kvr_io_ops *ops;
	uint64_t bytes;	    /* size of the device */
	uint32_t align;	    /* of buffers, offsets and lengths */
	uint32_t depth;	    /* requests in flight at most */
	uint32_t inflight;  /* now */
	char degraded[192]; /* "" or a sentence: what is missing and what it costs */
};

#endif
