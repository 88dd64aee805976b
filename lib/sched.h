/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue in front of one device. It turns the device's raw completions into exact ones:
 *
 * - a short completion is not success: the rest is submitted again, from where it stopped; zero
 *   bytes moved without an error is -EIO (the device ends early)
 * - EINTR, EAGAIN, EBUSY, ECANCELED are submitted again, KVR_SCHED_RETRIES times at most
 * - classes: demand loads before prefetch before stores, by bytes in flight, without starvation
 * - a store queue that is full says -EAGAIN
 *
 * After an error the whole request ends with it, once, when none of its parts is in flight.
 */
#ifndef KVR_SCHED_H
#define KVR_SCHED_H

#include "io.h"

#define KVR_SCHED_RETRIES 16u

enum kvr_class { KVR_CLASS_DEMAND, KVR_CLASS_PREFETCH, KVR_CLASS_STORE, KVR_CLASSES };

/* One transfer of exactly `len` bytes. The caller's from poll() on; the scheduler's before. */
struct kvr_xfer {
	/* set by the caller */
	void *buf;
	uint64_t off;
	uint64_t len; /* multiple of the device's align */
	uint32_t op;  /* enum kvr_io_op */
	uint32_t class;
	void *user;
	/* set by the scheduler: 0, or -errno of the first failure */
	int result;
	/* its own */
	uint32_t tries;
	uint64_t done;
	struct kvr_io_req req;
	struct kvr_xfer *next;
};

struct kvr_sched;

/* max_inflight: bytes at the device, but one transfer may always go; max_queued: bytes of stores
 * waiting, but one may always wait. The device stays the caller's. */
int kvr_sched_create(struct kvr_io *io, uint64_t max_inflight, uint64_t max_queued,
		     struct kvr_sched **ret_sched);
/* 0 or -EAGAIN (class STORE and its queue is full) or -EINVAL (alignment, range). Only queues: the
 * device hears of it at the next poll. */
int kvr_sched_submit(struct kvr_sched *s, struct kvr_xfer *x);
/* Submits what may go, takes what ended; up to max ended transfers, in the order of their ends.
 * Never waits. Sleep on the device's fd only after fewer than max came back. -errno: the requests
 * do not reach the kernel and none ended; none is lost, the next poll tries again. */
int kvr_sched_poll(struct kvr_sched *s, struct kvr_xfer **ret_xfers, unsigned max);
/* Transfers not yet returned by poll. */
uint64_t kvr_sched_pending(const struct kvr_sched *s);
/* submit, then poll and sleep on the device's fd until this transfer ends: for opening and closing.
 * Returns its result, or -ETIMEDOUT (the transfer is then still the scheduler's and is leaked).
 * Other transfers that end meanwhile wait for poll(). */
int kvr_sched_transfer(struct kvr_sched *s, struct kvr_xfer *x, uint64_t deadline_ns);
/* Forgets what is pending. The device still holds the requests in flight: only when it is drained,
 * closed or crashed may their transfers and buffers be freed. NULL is allowed. */
void kvr_sched_destroy(struct kvr_sched *s);

#endif
