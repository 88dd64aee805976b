/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the engine's files: its operations, and what runs under its lock. */
#ifndef KVR_ENGINE_PRIV_H
#define KVR_ENGINE_PRIV_H

#include <pthread.h>

#include "engine.h"
#include "tier.h"
#include "util.h"

#define KVR_OPEN_OPS 64u   /* operations that wait for ranks at once: bounds the ranks' memory */
#define KVR_ENGINE_IO 256u /* blocks in flight to and from the store */
#define KVR_PART_BYTES (256u << 10) /* of a part, at least: below it the device's rate falls */
#define KVR_PARTS 32u		    /* of a block, at most */
#define KVR_FETCH_IO 64u	    /* of them for prefetches, so that a demand always finds room */

/*
 * An operation. Entry i of the segment's table is its public face. A store's blocks are its own (it
 * reserved them and the ranks copy them) or *joined*: known already, perhaps still on their way by
 * another store. It pins all of them until its end, and ends when the last of them is written.
 */
struct kvr_op {
	struct kvr_request req;
	uint64_t number; /* of its begin: a name may be used again after the end */
	uint32_t gen;
	uint32_t kind;	   /* enum kvr_op_kind */
	uint32_t stage;	   /* enum kvr_stage */
	uint32_t reached;  /* the last stage before an end */
	uint32_t n;	   /* blocks in ids, in the order of the keys */
	uint32_t blocks;   /* of them: for the ranks to copy */
	uint32_t *ids;	   /* [max_blocks] */
	uint8_t *own;	   /* [max_blocks] store: 1 for each id that this store reserved */
	uint64_t need;	   /* ranks whose word this stage waits for, */
	uint64_t acked;	   /* and those of them that answered */
	uint32_t good;	   /* load: leading blocks that are right on all so far */
	uint32_t next;	   /* first block that was not yet seen to be where this stage wants it */
	int32_t status;	   /* first failure */
	uint32_t flags;	   /* KVR_OP_LAYERED */
	uint64_t deadline; /* decision, load by layers, reset: of the votes */
	/* A load by layers reads its own blocks in parts: part 0 of each, then part 1. own[i] is 1
	 * and the parts of block i that came. */
	uint32_t chunks, groups_each, part_next, groups;
	uint32_t left[KVR_PARTS]; /* of the own blocks, for each part */
	uint32_t held;		  /* quarantine: it ended, and ranks in `need` may still copy */
	uint32_t told;		  /* a tick told its end */
	uint32_t used; /* 0: the entry may be taken; what it was stays readable until then */
	uint32_t prev, next_op; /* in the list of those in flight, or held */
};

/* What is told at the next tick. */
struct kvr_engine_record {
	struct kvr_completion c;
	uint32_t entry, gen;
	uint32_t reached; /* the last stage before an end */
	uint32_t end;	  /* 1: the entry is free once this is published */
};

/* The pinned blocks of a request's lookup. */
struct kvr_pin {
	struct kvr_request req;
	uint64_t lookup; /* number of its answer */
	uint32_t n;
	uint32_t *ids;
};

/* A block's transfer; `op` must stay in place while it runs. */
struct kvr_engine_io {
	struct kvr_store_op op;
	uint32_t block;
	uint32_t write;
	uint32_t prefetch;
	uint32_t part; /* 1: of a load by layers, this one: */
	uint32_t entry, gen, index, chunk;
	struct kvr_engine_io *next;
};

struct kvr_engine {
	pthread_mutex_t lock;
	struct kvr_group *group;
	struct kvr_engine_opts opts;
	struct kvr_geometry geo;
	struct kvr_pool pool;
	struct kvr_store *store; /* NULL: none. Used by the engine thread alone */
	struct kvr_tier tier;
	uint64_t writers, readers, all; /* ranks that write or read any shard; and every rank */
	/* operations */
	struct kvr_op *ops; /* [layout.ops] */
	uint32_t *op_ids;
	uint8_t *op_own;
	uint32_t *free_ops, free_head, free_count; /* FIFO: an entry rests as long as possible */
	uint32_t active; /* head of the list of operations in flight, or KVR_NO_OP */
	uint32_t held;	 /* likewise of those in quarantine */
	uint32_t active_count, open_count;
	uint64_t held_ops, held_slots;
	struct kvr_pin *pins; /* [layout.ops], the first pin_count in use */
	uint32_t pin_count;
	uint32_t *pin_ids;
	uint64_t begun; /* operations so far */
	/* records: a ring of layout.ops x KVR_OP_RECORDS, so that it never overflows */
	struct kvr_engine_record *done;
	uint64_t done_head, done_tail;
	uint32_t done_mask;
	/* blocks on their way to and from the store */
	uint32_t *write_queue, *read_queue; /* rings of block numbers */
	uint64_t *write_since;		    /* when each was queued */
	uint64_t write_head, write_tail, read_head, read_tail;
	uint32_t *fetch_queue; /* as read_queue, for prefetches: those that somebody waits for go
				  first, and what was taken back stays in it until its turn */
	uint64_t fetch_head, fetch_tail;
	uint32_t fetch_running;
	uint32_t part_bytes;
	uint32_t queue_mask;
	struct kvr_engine_io *io, *free_io;
	uint64_t io_running;
	/* the thread */
	pthread_t thread;
	int event_fd;
	int started, stopping;
	uint32_t cancel; /* opening the store is to stop */
	int leaked;	 /* I/O that never ended still owns buffers */
	int open_result;
	char open_text[1536];
	int group_error; /* once the epoch is over */
	uint32_t reset;	 /* the entry of a reset under way, or KVR_NO_OP: nothing is begun */
	int reset_ready; /* all is quiet: the thread does it, without the lock */
	int has_model;
	struct kvr_model model; /* of the reset */
	struct {
		uint64_t word; /* 0: none; the first that no rank can have written */
		uint32_t rank, entry, gen, kind, blocks; /* whose, and of which operation */
	} bad_ack;
	int waiting; /* a caller sleeps on the leader's bell */
	int changed; /* a word changed: ring */
	struct kvr_stats stats;
	struct kvr_store_info info; /* refreshed by the engine thread */
};

#define KVR_OP_RECORDS 4u /* copied, host, end; a power of two */
#define KVR_NO_OP UINT32_MAX

/* All below: with the lock held. */
void kvr_op_stage(struct kvr_engine *e, struct kvr_op *op, enum kvr_stage stage, uint32_t value,
		  int record);
void kvr_op_end(struct kvr_engine *e, struct kvr_op *op, enum kvr_stage stage, int status);
struct kvr_op *kvr_op_find(struct kvr_engine *e, const struct kvr_request *req,
			   enum kvr_op_kind kind);
/* NULL: the table is full. */
struct kvr_op *kvr_op_new(struct kvr_engine *e, const struct kvr_request *req,
			  enum kvr_op_kind kind, uint32_t flags);
/* Undoes kvr_op_new(): no rank saw the operation, and nobody is told. */
void kvr_op_drop(struct kvr_engine *e, struct kvr_op *op);
/*
 * Ends an operation in flight as cancelled. What ranks may still copy stays in quarantine until
 * each of them answered or left; nothing is begun while more than a quarter of the pool is there. A
 * store that all ranks have copied is left alone: its blocks are whole, and it needs nothing of its
 * request. Returns 1 unless it was left alone.
 */
int kvr_op_abort(struct kvr_engine *e, struct kvr_op *op, int status);
/* Likewise, but it failed: ranks may be in the middle of what they were told to copy. */
void kvr_op_cut(struct kvr_engine *e, struct kvr_op *op, int status);
/* Takes the acknowledgements of a step from the ranks that it needs. 1 when all are there. */
int kvr_op_acks(struct kvr_engine *e, struct kvr_op *op, enum kvr_ack step);
/* Layer groups of all blocks that are in the pool, in order. */
void kvr_op_layers(struct kvr_engine *e, struct kvr_op *op, uint32_t groups);
/* What an operation of that kind does next. 1: something changed. */
int kvr_prefetch_progress(struct kvr_engine *e, struct kvr_op *op);
int kvr_decision_progress(struct kvr_engine *e, struct kvr_op *op);
int kvr_reset_progress(struct kvr_engine *e, struct kvr_op *op);
/* Loads by layers (engine_layers.c): */
int kvr_layers_progress(struct kvr_engine *e, struct kvr_op *op);
/* Divides its blocks, after they are known. */
void kvr_layers_divide(struct kvr_engine *e, struct kvr_op *op);
/* The next parts go to the store. 1: something changed. */
int kvr_layers_pump(struct kvr_engine *e);
void kvr_layers_part(struct kvr_engine *e, const struct kvr_engine_io *io, int result);
/* It ends: blocks of which not all parts came are read whole, for whoever else counts on them. */
void kvr_layers_stop(struct kvr_engine *e, struct kvr_op *op);
/* For engine_layers.c: */
struct kvr_engine_io *kvr_io_get(struct kvr_engine *e, uint32_t block, uint32_t write);
void kvr_io_put(struct kvr_engine *e, struct kvr_engine_io *io);
int kvr_load_read(struct kvr_engine *e, struct kvr_op *op);
void kvr_load_bad(struct kvr_engine *e, struct kvr_op *op);
/* Takes back the reads of a prefetch that did not start. */
void kvr_prefetch_stop(struct kvr_engine *e, struct kvr_op *op);
/* The engine's thread, without the lock: the reset itself. */
void kvr_reset_run(struct kvr_engine *e);
/* The entry may be used again. */
void kvr_op_free(struct kvr_engine *e, struct kvr_op *op);
/* Moves all operations on. 1: something changed. */
int kvr_ops_progress(struct kvr_engine *e);
/* The epoch is over: what is in flight ends as lost. An operation whose answer is being published
 * is left to kvr_engine_begun() or kvr_engine_cancel(): perhaps it never was. */
void kvr_ops_lose(struct kvr_engine *e, int status);
void kvr_engine_wake(struct kvr_engine *e);

static inline uint32_t kvr_op_entry(const struct kvr_engine *e, const struct kvr_op *op)
{
	return (uint32_t)(op - e->ops);
}

#endif
