/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store: slots for blocks on one or more preallocated files or block devices.
 *
 * A slot holds a *slot image*: a header page with the checksums of all segments, then the payload.
 * The store moves whole images between a caller's buffer and a slot by direct I/O, writes one
 * record a slot, and never looks at the payload. Who owns a slot and what is evicted is the
 * caller's business (tier.h): alloc, write, read, free.
 *
 * One thread at a time may use a store; with io_uring the first that polls after opening must be
 * the one that goes on (the opener may be another). One process owns a store: the I/O lock.
 */
#ifndef KVRING_STORE_H
#define KVRING_STORE_H

#include "kvring/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvr_store;

enum {
	KVR_STORE_CREATE = 1,	/* make files that are absent */
	KVR_STORE_REFORMAT = 2, /* a store of ours with another fingerprint or size: format anew */
	KVR_STORE_NO_URING = 4, /* use the pread/pwrite threads */
	KVR_STORE_BUFFERED = 8	/* do not ask for O_DIRECT */
};

struct kvr_store_opts {
	size_t size;		  /* sizeof(struct kvr_store_opts) */
	const char *const *paths; /* files or block devices; a directory means DIR/kvring.store */
	uint32_t npaths;	  /* 1..KVR_MAX_DEVICES */
	uint32_t flags;
	uint64_t bytes; /* of all devices together, hard cap; 0: as they are */
	const struct kvr_model *model;
	const struct kvr_shape *shape;
	void *pool; /* buffers that are registered once, or NULL */
	uint64_t pool_bytes;
	uint32_t depth; /* requests in flight a device; 0: 64 */
	uint32_t reserved;
	uint64_t lock_deadline_ns; /* wait for the I/O lock of a dying owner until then; 0: 5 s */
	void (*progress)(void *arg, const char *what, uint64_t done, uint64_t total);
	void *progress_arg;
	/* another thread may store non-zero here: opening then ends with -EINTR at its next step,
	 * such as the next look at the I/O lock. NULL: nobody does */
	const uint32_t *cancel;
};

/*
 * Opens a store and reads its slot table, or formats new files. Nothing is overwritten unless the
 * file is new or empty (or its first MiB is zeros), or REFORMAT is set and it is a store of ours.
 * The devices of a store may be named in any order. Errors: -EPROTO (foreign file; another
 * fingerprint or size, both values named; devices of several stores, or not all), -ENOSPC (bytes
 * needed and free; or smaller than one block), -EBUSY (I/O lock held), -ENOENT, -EACCES, -EBADMSG
 * (damaged superblocks). A file that a failed call made is removed.
 */
KVR_API int kvr_store_open(const struct kvr_store_opts *opts, struct kvr_store **ret_store);

struct kvr_store_info {
	uint64_t slots, used, slot_bytes, header_bytes, block_bytes;
	uint64_t recovered;   /* valid records found at open */
	uint64_t bad_records; /* torn, foreign or unreadable ones */
	uint64_t cache_generation;
	uint64_t bytes_read, bytes_written; /* by devices, headers and table included */
	uint64_t reads, writes, read_errors, write_errors, checksum_errors;
	uint32_t devices, devices_offline;
	uint64_t retired_slots;
	char backend[32]; /* "io_uring", "pread" */
};
KVR_API void kvr_store_info(const struct kvr_store *store, struct kvr_store_info *ret_info);
/* The i-th degradation as a sentence, or NULL: buffered I/O, no io_uring, unregistered buffers...
 */
KVR_API const char *kvr_store_degraded(const struct kvr_store *store, uint32_t i);

/* Where a block lies: device << 40 | slot. */
typedef uint64_t kvr_where;
#define KVR_NOWHERE UINT64_MAX

/* A free slot, striped over the live devices. 0, or -ENOSPC: free one first. */
KVR_API int kvr_store_alloc(struct kvr_store *store, kvr_where *ret_where);
/* Gives a slot back. Writes nothing: its record stays until it is overwritten. No operation on it
 * may be in flight. A slot that is not in use stays as it is. */
KVR_API void kvr_store_free(struct kvr_store *store, kvr_where where);
/* Takes a slot out of use for this run: its I/O failed or its bytes were wrong. */
KVR_API void kvr_store_retire(struct kvr_store *store, kvr_where where);

/* One transfer. Owned by the caller; from submit until poll returns it, it and its buffer belong
 * to the store. */
struct kvr_store_op {
	/* set by the caller */
	kvr_where where;
	void *image; /* slot_bytes long, aligned to 4096 */
	struct kvr_key key;
	uint64_t space;
	uint64_t seq;		  /* write: of the sealed header */
	uint64_t header_checksum; /* write: of the sealed header; read: the expected one */
	uint32_t demand;	  /* read: 1 before prefetches and stores */
	uint32_t from, bytes;	  /* read: a part of the image; bytes 0: the whole */
	uint32_t reserved;
	void *user;
	/* set by the store: 0 or -errno. -EBADMSG: the slot does not hold that block (any more). */
	int result;
	int state;
	void *priv[40];
};

/* Fills in the header page of an image around its segments' checksums, zeros its padding, and
 * returns the header's checksum, for the operation that writes it. */
KVR_API uint64_t kvr_store_seal(const struct kvr_store *store, void *image,
				const struct kvr_key *key, uint64_t space, uint64_t seq);
/* Writes the sealed image, then its record. Ends when both are written. 0; -EAGAIN: queue full;
 * -EINVAL: the slot is not in use. A failed write leaves the slot with no block: retire or free it.
 */
KVR_API int kvr_store_write(struct kvr_store *store, struct kvr_store_op *op);
/* Reads the image, or a part of it that begins and ends at multiples of 4096 (and of the device's
 * alignment), and checks its header page against header_checksum, key and space, unless the part
 * does not begin with it. The payload's segments are for the ranks to verify. -EINVAL: a part that
 * is none. */
KVR_API int kvr_store_read(struct kvr_store *store, struct kvr_store_op *op);
/* Drives I/O; up to max ended operations, without waiting. Call it after submitting, and until it
 * returns fewer than max, before you sleep on the descriptors. */
KVR_API int kvr_store_poll(struct kvr_store *store, struct kvr_store_op **ret_ops, uint32_t max);
/* Descriptors that poll readable when kvr_store_poll() has something to do; returns their number.
 */
KVR_API uint32_t kvr_store_fds(const struct kvr_store *store, int *ret_fds, uint32_t max);
/* Operations not yet returned by poll. */
KVR_API uint64_t kvr_store_pending(const struct kvr_store *store);

/* What recovery found, once after open: fn for each valid record, newest of its key. */
struct kvr_store_found {
	struct kvr_key key;
	uint64_t space, seq, header_checksum;
	kvr_where where;
};
KVR_API uint64_t kvr_store_scan(struct kvr_store *store,
				void (*fn)(void *arg, const struct kvr_store_found *found),
				void *arg);
/* Above every seq in the store; the caller numbers on from here. */
KVR_API uint64_t kvr_store_next_seq(const struct kvr_store *store);

/* Voids every block for ever (the weights changed): raises the cache generation in all superblocks
 * and syncs before it returns. model: what the store is for from now on, NULL: as before. With a
 * new revision, a process that still has the old weights is refused. All slots are free afterwards,
 * also when it fails (-EIO: no device took the new generation). -EBUSY: operations are in flight.
 */
KVR_API int kvr_store_reset(struct kvr_store *store, const struct kvr_model *model);

/* Drains until the deadline, drops the I/O lock, frees. Returns the number of operations that never
 * ended (their buffers must not be reused), 0 normally. NULL is fine. */
KVR_API int kvr_store_close(struct kvr_store *store, uint64_t deadline_ns);

#ifdef __cplusplus
}
#endif
#endif
