/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated device behind the I/O table, deterministic from one seed and the calls made. It keeps
 * two images: what a read sees, and what would survive a power cut. Writes become durable at sync,
 * or at a crash in a random subset of their 512-byte sectors. Rates are per 10,000 requests; one
 * request suffers one kind, and may be late besides.
 *
 * It is as unkind as the I/O table allows: nothing ends before flush(), bytes move when a request
 * ends (so a buffer given back too early is seen), the buffer of a read holds rubbish until then,
 * and a write that fails may have written a part.
 */
#ifndef KVR_FAULT_H
#define KVR_FAULT_H

#include "io.h"

struct kvr_fault_rates {
	uint32_t short_io; /* moves fewer bytes than asked: a multiple of align, never none */
	uint32_t eio;
	uint32_t eagain;      /* EAGAIN, EINTR or ECANCELED */
	uint32_t late;	      /* ends only after many others */
	uint32_t lost_write;  /* says success, writes nothing */
	uint32_t torn_write;  /* says success, writes a prefix of sectors */
	uint32_t misdirected; /* writes to another aligned place of the device */
	uint32_t flip;	      /* a read returns one flipped bit */
	uint32_t reorder;     /* 1: completions in random order and portions, 0: in order */
	uint32_t empty;	      /* moves nothing, without an error: the device ends early */
	uint32_t enospc;      /* a write says ENOSPC and writes nothing */
	uint32_t stuck;	      /* never ends; close() counts it */
	uint32_t gone;	      /* this and every later request ends with ENODEV, until set_rates */
};

struct kvr_fault_stats {
	uint64_t requests, short_io, eio, eagain, late, lost_write, torn_write, misdirected, flip;
	uint64_t crashes, empty, enospc, stuck, gone;
};

/* align: a power of two, 512 at least, that divides bytes. rates may be NULL: no faults. */
int kvr_fault_open(uint64_t bytes, uint32_t align, uint32_t depth, uint64_t seed,
		   const struct kvr_fault_rates *rates, struct kvr_io **ret_io);
void kvr_fault_set_rates(struct kvr_io *io, const struct kvr_fault_rates *rates);
void kvr_fault_get_stats(const struct kvr_io *io, struct kvr_fault_stats *ret_stats);
/*
 * A power cut: of all sectors written since the last sync a random subset (seeded) survives, also
 * of requests in flight. These are dropped: their owner must not wait for them, and may free them
 * and their buffers after this call, not before. The device can then be used again as after a
 * reboot.
 */
void kvr_fault_crash(struct kvr_io *io, uint64_t seed);
/* Direct access to the image that reads see, to corrupt a byte in a test. A crash keeps the change
 * where the sector was clean. */
uint8_t *kvr_fault_image(struct kvr_io *io);
/* ops->close ends what is in flight and keeps both images and the handle, so that a new store can
 * use the device again; this frees them. */
void kvr_fault_free(struct kvr_io *io);

#endif
