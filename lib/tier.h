/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tier: index + host pool + slots of the store. It decides where a block lies and what is
 * evicted; it does no I/O itself. Not thread-safe: the engine's lock covers it.
 *
 * A block is identified by a number. Its state:
 *
 *   copying   has a pool slot, ranks are writing it; no lookup sees it
 *   ready     whole; in the pool (`slot`), on the store (`where`), or both; lookups hit it
 *   + queued  it waits for a write to the store; the pool slot stays
 *   + writing the write is in flight
 *   + reading a read into a new pool slot is queued or in flight
 *   dead      taken out of the index (wrong bytes, failed); freed when nobody uses it any more
 *
 * A block is evicted only when nobody pins it and no I/O or copy touches it. Two lists, least
 * recently used first, hold exactly those: one for pool slots, one for slots of the store. A
 * request's blocks are unpinned from the last to the first, so tails are evicted before the heads
 * they need.
 */
#ifndef KVR_TIER_H
#define KVR_TIER_H

#include "format.h"
#include "index.h"
#include "kvring/store.h"

#define KVR_NO_SLOT UINT32_MAX
#define KVR_NO_BLOCK UINT32_MAX

/* How far a read of a block into the pool is (kvr_tier_block.reading). The tier itself asks only
 * whether there is one. */
enum kvr_tier_reading {
	KVR_READ_NONE,
	KVR_READ_PREFETCH, /* queued for a prefetch, which may still take it back */
	KVR_READ_DEMAND,   /* queued for somebody who waits */
	KVR_READ_RUNNING,  /* submitted */
	KVR_READ_PARTS	   /* in parts, for a load by layers */
};

struct kvr_tier_link {
	uint32_t prev, next;
};

struct kvr_tier_block {
	kvr_where where; /* or KVR_NOWHERE */
	uint64_t sum;	 /* checksum of the sealed header page */
	uint64_t seq;
	uint32_t slot; /* or KVR_NO_SLOT */
	uint32_t pins;
	int16_t error; /* of the last write that failed */
	uint8_t used, copying, reading, queued, writing, dead;
	uint8_t parts;	  /* of its read that are in flight */
	uint8_t part_bad; /* one of them failed: retire the slot, or it holds another block (2) */
	uint8_t in_host, in_disk; /* member of the list */
	struct kvr_tier_link host, disk;
};

struct kvr_tier {
	struct kvr_index index;
	struct kvr_index_key *keys;    /* by block */
	struct kvr_tier_block *blocks; /* [capacity]; the last one is the lists' sentinel */
	uint32_t capacity;
	uint32_t *free_blocks, free_block_count;
	uint32_t *free_slots, free_slot_count, pool_slots;
	struct kvr_store *store; /* NULL: host tier only */
	uint64_t next_seq;
	uint64_t host_evictions, disk_evictions, recovered;
};

/* 0 or -ENOMEM. The store stays the caller's. */
int kvr_tier_init(struct kvr_tier *t, uint32_t pool_slots, struct kvr_store *store);
void kvr_tier_exit(struct kvr_tier *t);
/* Takes in what the store recovered. */
void kvr_tier_recover(struct kvr_tier *t);

/* The longest prefix of keys[0..n) that is ready; pins each block of it. *ret_host: how many are in
 * the pool now. Returns its length. */
uint32_t kvr_tier_match(struct kvr_tier *t, uint64_t space, const struct kvr_key *keys, uint32_t n,
			uint32_t *ret_ids, uint32_t *ret_host);
void kvr_tier_pin(struct kvr_tier *t, const uint32_t *ids, uint32_t n);
/* From the last to the first: tails become the older ones. */
void kvr_tier_unpin(struct kvr_tier *t, const uint32_t *ids, uint32_t n);

/* A new block with a pool slot, copying. -EEXIST: known already, in whatever state; -EAGAIN: no
 * slot can be freed now. */
int kvr_tier_reserve(struct kvr_tier *t, uint64_t space, const struct kvr_key *key,
		     uint32_t *ret_id);
/* The copy is whole and its header sealed: lookups may hit it. */
void kvr_tier_ready(struct kvr_tier *t, uint32_t id, uint64_t seq, uint64_t sum);
/*
 * Takes a block out of the index: a copy that failed, or bytes that were wrong. retire: its slot of
 * the store is not used again in this run, unless a transfer of it is under way: that one's end
 * decides.
 */
void kvr_tier_kill(struct kvr_tier *t, uint32_t id, int retire);

/* The block is to be written: it stays in the pool until kvr_tier_written() or _unqueue(). 0: it is
 * on the store, or on its way there, already. */
int kvr_tier_queue(struct kvr_tier *t, uint32_t id);
/* It is not going to be written, because of `error`. */
void kvr_tier_unqueue(struct kvr_tier *t, uint32_t id, int error);
/* Gives a ready block without one a slot of the store, evicting if need be; it is then writing. 0
 * or -ENOSPC. */
int kvr_tier_place(struct kvr_tier *t, uint32_t id);
/* The store could not take the write now: as before kvr_tier_place(). */
void kvr_tier_unplace(struct kvr_tier *t, uint32_t id);
/* The write ended. error < 0: its slot is retired, the block stays in the pool. */
void kvr_tier_written(struct kvr_tier *t, uint32_t id, int error);
/* Gives a block that is only on the store a pool slot; it is then reading. 0 or -EAGAIN. */
int kvr_tier_fetch(struct kvr_tier *t, uint32_t id, enum kvr_tier_reading reading);
/* Takes that back: the read was not submitted. */
void kvr_tier_unfetch(struct kvr_tier *t, uint32_t id);
/* The read ended; ok 0: the block is killed (retire: I/O error, not just another block's bytes). */
void kvr_tier_fetched(struct kvr_tier *t, uint32_t id, int ok, int retire);

/* Every block goes (a reset: the store's slots are all free already). Nothing may be pinned,
 * copied, read or written. */
void kvr_tier_clear(struct kvr_tier *t);

#endif
