/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the store's files share: store.c (slots and transfers), store_mount.c (superblocks, format,
 * reset), store_recover.c, store_open.c (files, locks, backends).
 *
 * The slot table lives in memory as pages that are equal to those on disk, so that a record is
 * written by writing its page as it lies there. Which slots are free is derived from it at open and
 * kept beside it, never stored.
 */
#ifndef KVR_STORE_STATE_H
#define KVR_STORE_STATE_H

#include "sched.h"
#include "store.h"

#define STORE_CHUNK (1u << 20)		 /* sweeps of the table */
#define STORE_IO_NS (30 * 1000000000ull) /* one transfer of opening or reset */
#define STORE_MAX_ERRORS 8u		 /* in a row: the device goes offline */
#define STORE_SENTENCES 48u
#define STORE_SLOT_BITS 40u

/* Numbers from disk above this are not ours: with room to count on for ever. */
#define STORE_NUMBER_MAX ((uint64_t)1 << 62)

enum store_slot { SLOT_FREE, SLOT_USED, SLOT_RETIRED };

enum store_op_state { OP_NEW, OP_READ, OP_IMAGE, OP_WAITING, OP_RECORD, OP_ENDED };

/* The store's part of an operation (kvr_store_op.priv). */
struct store_op {
	struct kvr_xfer xfer;	   /* of the image, then of the table page */
	struct kvr_store_op *next; /* in exactly one list: of a page, or of the ended */
};
_Static_assert(sizeof(struct store_op) <= sizeof(((struct kvr_store_op *)0)->priv), "op.priv");
_Static_assert(offsetof(struct kvr_store_op, priv) % _Alignof(struct store_op) == 0, "op.priv");

/*
 * A page of the table. While it is being written its bytes stay as they are: records that come
 * meanwhile wait, and go with the next write of the page, all in one.
 */
struct store_page {
	struct kvr_store_op *writing; /* their records are in the write that is in flight */
	struct kvr_store_op *waiting;
	uint32_t next; /* number + 1 of the next page to write */
	uint32_t listed;
};

struct store_dev {
	struct kvr_io *io;
	struct kvr_sched *sched;
	struct kvr_super *super; /* page-aligned: it is written from here */
	void *readback;		 /* as large */
	uint32_t copy;		 /* which of the two superblocks on disk it is */
	uint32_t given;		 /* its place among the caller's paths */
	uint64_t slots;
	struct kvr_record *table;
	struct store_page *pages;
	uint8_t *state; /* enum store_slot */
	/* Slots are reused in the order they came free: eviction then writes where it wrote before,
	 * in one direction, and an evicted block stays on disk as long as possible. */
	uint32_t *ring;
	uint64_t ring_head, nfree, nused, nretired;
	uint32_t to_write; /* number + 1 of the first page to write */
	uint32_t errors;   /* in a row */
	int offline;
	int leaked; /* a request never ended: what it points to is never freed */
	uint64_t inflight;
	struct kvr_xfer xfer; /* of opening and reset */
};

struct kvr_store {
	struct kvr_geometry geo;
	uint32_t ndev, next_dev;
	uint64_t cache_generation, next_seq;
	uint64_t recovered, bad_records;
	uint64_t bytes_read, bytes_written;
	uint64_t reads, writes, read_errors, write_errors, checksum_errors;
	uint64_t inflight; /* operations that have not ended */
	uint64_t nended;   /* and those that poll() has not returned */
	struct kvr_store_op *ended, **ended_tail;
	uint32_t nsentences;
	char sentence[STORE_SENTENCES][256];
	struct store_dev dev[KVR_MAX_DEVICES];
};

static inline struct store_op *store_priv(struct kvr_store_op *op)
{
	return (struct store_op *)(void *)op->priv;
}

static inline uint64_t store_pages(const struct store_dev *d)
{
	return (d->slots + KVR_RECORDS_PAGE - 1) / KVR_RECORDS_PAGE;
}

/* The caller's options, of whatever size they were compiled with. -EINVAL names what is wrong. */
int store_options(const struct kvr_store_opts *opts, struct kvr_store_opts *ret_opts);
/* Bytes of each of n devices, whole pages; 0: as they are. */
uint64_t store_share(const struct kvr_store_opts *opts, uint32_t n);
/* The geometry for devices of this alignment, if `bytes` hold a slot of it; else -ENOSPC with how
 * many bytes would. */
int store_geometry(const struct kvr_shape *shape, uint32_t align, uint64_t bytes,
		   struct kvr_geometry *ret_geo);
void store_degrade(struct kvr_store *store, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Moves the i-th device to another handle of the same file: opening may be another thread's, and a
 * ring belongs to the first thread that uses it. Takes io over; on failure it is still the
 * caller's. */
int store_replace_io(struct kvr_store *store, uint32_t i, struct kvr_io *io);
/* Memory for the table and what is derived from it, about 160 bytes a slot. All slots are free. */
int store_dev_alloc(struct store_dev *d);
/* One transfer of exactly `len` bytes while nothing else is in flight. */
int store_transfer(struct kvr_store *store, struct store_dev *d, uint32_t op, void *buf,
		   uint64_t off, uint64_t len);
/* Writes d->super over the older of the two copies, makes it durable and reads it back. */
int store_super_write(struct kvr_store *store, struct store_dev *d);
void store_progress(const struct kvr_store_opts *o, const char *what, uint64_t done,
		    uint64_t total);
/* All devices belong to one set, none is missing; puts them in its order. */
int store_set_check(struct kvr_store *store);
/* The set is what the caller asks for; sets the geometry. */
int store_set_match(struct kvr_store *store, const struct kvr_store_opts *o);
/* Reads the tables, and raises the superblocks' update. */
int store_recover(struct kvr_store *store, const struct kvr_store_opts *o);
/* Slots by their state: counts them, and puts the free ones into the ring. */
void store_count_slots(struct store_dev *d);
/* Frees the memory of the store, but nothing that a device may still touch, and not the devices. */
void store_destroy(struct kvr_store *store);

#endif
