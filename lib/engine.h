/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine: the leader's own thread, and the only place where the ring half (group, operation and
 * ack words) meets the storage half (tier, pool, store).
 *
 * Progress model. The leader's caller begins operations and publishes messages; everything after
 * that is the engine's: it reads the ranks' ack words, seals and publishes blocks, drives I/O,
 * writes the operations' state words, and wakes waiters. So a store reaches "written" and a rank in
 * wait_store returns while the leader's caller is inside a forward pass. The engine never writes
 * into a ring: rings keep one writer, the caller's thread.
 *
 *   O1 engine/caller under the lock: store-release of an op entry's word   O2 rank: load-acquire
 *      without it: a rank sees a stage of an entry whose request it cannot read yet, or bytes in
 *      the pool that are not there
 *   A1 rank: store-release of its ack word      A2 engine: load-acquire
 *      without it: blocks are published whose bytes or checksums are still on their way
 *
 * One lock covers operations and tier. The engine sleeps in poll() on an eventfd (the group's
 * watcher feeds it when a rank rings; callers feed it with new work) and on the devices.
 */
#ifndef KVR_ENGINE_H
#define KVR_ENGINE_H

#include "group.h"
#include "kvring/store.h"
#include "pool.h"

struct kvr_engine;

struct kvr_engine_opts {
	struct kvr_pool_opts pool;
	struct kvr_store_opts store; /* npaths 0: no store. Its pool fields are the engine's */
	uint32_t max_blocks;	     /* of one operation */
	int event_fd;		     /* the one the group's watcher feeds; stays the caller's */
};

/* Makes pool and store, recovers, starts the thread. The group stays the caller's. */
int kvr_engine_start(struct kvr_group *group, const struct kvr_engine_opts *opts,
		     struct kvr_engine **ret_engine);
/* Drains I/O (5 s at most), closes store and pool, frees. */
void kvr_engine_stop(struct kvr_engine *e);
struct kvr_pool *kvr_engine_pool(struct kvr_engine *e);

/* One block of an answer to the ranks. */
struct kvr_engine_block {
	uint32_t index; /* in the caller's keys */
	uint32_t slot;
	uint64_t sum; /* load: of the sealed header page. store: hash of the key */
};

/* Which operation a completion is of: names can be used again, entry and generation are unique. */
struct kvr_engine_name {
	uint32_t entry, gen;
	uint32_t reached; /* the last stage before an end */
};

/* Why a begin was refused with -EAGAIN. */
enum kvr_refused { KVR_REFUSED_NONE, KVR_REFUSED_POOL, KVR_REFUSED_TABLE, KVR_REFUSED_OPEN };

/* What a begin decided; goes to the ranks as it is. */
struct kvr_engine_answer {
	uint32_t entry, gen;
	uint32_t count;	  /* of blocks */
	uint32_t covered; /* store: keys handled */
	int32_t status;	  /* 0, or -errno: no operation was begun */
	uint32_t reason;  /* of -EAGAIN: enum kvr_refused */
	uint32_t flags;	  /* KVR_OP_LAYERED */
	uint32_t groups;  /* load by layers: how many there will be */
	uint64_t lookup;  /* load: the number of the lookup's answer whose pin it uses */
};

/* The calls of connector.h, leader's part; blocks has room for max_blocks. Return -EOWNERDEAD and
 * the like when the group is over, -EINTR; any other failure of a begin is in answer->status. */
int kvr_engine_lookup(struct kvr_engine *e, const struct kvr_request *req,
		      const struct kvr_key *keys, uint32_t n, struct kvr_hit *ret_hit);
/* The answer of a lookup went out under that number. */
void kvr_engine_looked(struct kvr_engine *e, const struct kvr_request *req, uint64_t number);
int kvr_engine_release(struct kvr_engine *e, const struct kvr_request *req);
int kvr_engine_store_begin(struct kvr_engine *e, const struct kvr_request *req,
			   const struct kvr_key *keys, uint32_t n, uint64_t deadline_ns,
			   struct kvr_engine_answer *ret_answer, struct kvr_engine_block *blocks);
/* layered: it is proposed, and starts when all ranks voted for it. */
int kvr_engine_load_begin(struct kvr_engine *e, const struct kvr_request *req, uint32_t n,
			  int layered, uint64_t deadline_ns, struct kvr_engine_answer *ret_answer,
			  struct kvr_engine_block *blocks);
/* answer->count: blocks that are being read; covered: the prefix that is stored. */
int kvr_engine_prefetch(struct kvr_engine *e, const struct kvr_request *req,
			const struct kvr_key *keys, uint32_t n, uint32_t budget,
			struct kvr_engine_answer *ret_answer);
/* Blocks of it that are in the pool, and its stage. 0, or -ENOENT. */
int kvr_engine_prefetch_status(struct kvr_engine *e, const struct kvr_request *req,
			       uint32_t *ret_done, uint32_t *ret_stage, int *ret_status);
/* req NULL: all. */
void kvr_engine_prefetch_cancel(struct kvr_engine *e, const struct kvr_request *req);
/* kind DECISION or RESET (with what the store is for from then on, or NULL). */
int kvr_engine_propose(struct kvr_engine *e, const struct kvr_request *req, enum kvr_op_kind kind,
		       const struct kvr_model *model, uint64_t deadline_ns,
		       struct kvr_engine_answer *ret_answer);
/* Ends what that request has: its pin, and its operations (kvr_op_abort). Returns how many. */
int kvr_engine_abort(struct kvr_engine *e, const struct kvr_request *req);
/* The leader's own failure: the operation fails with it once its ranks answered. */
int kvr_engine_fail(struct kvr_engine *e, const struct kvr_request *req, enum kvr_op_kind kind,
		    int status);
/* The answer of a begin is published: the operation starts. Or it could not be published, no rank
 * learned of it: it never was. */
void kvr_engine_begun(struct kvr_engine *e, const struct kvr_engine_answer *answer);
void kvr_engine_cancel(struct kvr_engine *e, const struct kvr_engine_answer *answer);
/* Until the operation reaches `stage` or ends. Returns the value of its word (good blocks), or
 * -errno. */
int kvr_engine_wait_op(struct kvr_engine *e, const struct kvr_request *req, enum kvr_op_kind kind,
		       enum kvr_stage stage, uint64_t deadline_ns);
/* The blocks of a running load, for a leader that asks. Returns their number. */
int kvr_engine_op_blocks(struct kvr_engine *e, const struct kvr_request *req,
			 struct kvr_engine_block *blocks, uint32_t max);

/* Records that no tick was finished with, oldest first, from the from-th on: copies up to max.
 * Returns their number. ret_names may be NULL. */
uint32_t kvr_engine_records(struct kvr_engine *e, uint32_t from, struct kvr_completion *ret,
			    struct kvr_engine_name *ret_names, uint32_t max);
/* Finishes a tick that told the first n of them: their operations' entries may be used again.
 * -EOWNERDEAD and the like: the epoch was over before, and that tick never was. */
int kvr_engine_tick(struct kvr_engine *e, uint64_t tick, uint32_t n, uint64_t deadline_ns);
/* The epoch is over: what is in flight ends as lost, with a record as every end. */
void kvr_engine_lose(struct kvr_engine *e, int cause);
/* The first n records were told to the leader's caller, after the end of the epoch. */
void kvr_engine_told(struct kvr_engine *e, uint32_t n);

/* Waits until no operation is in flight. */
int kvr_engine_drain(struct kvr_engine *e, uint64_t deadline_ns);
void kvr_engine_stats(struct kvr_engine *e, struct kvr_stats *ret_stats);
const char *kvr_engine_degraded(struct kvr_engine *e, uint32_t i);

#endif
