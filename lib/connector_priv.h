/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the connector's files: what travels on its channels, and a rank's memory of operations.
 * Everything a rank reads from a message was copied out of the ring and is bounded before use.
 *
 *   Y1 leader: store-release of `ending`, after    Y2 rank: load-acquire of it
 *      its last tick and the announcement
 *      without it: a rank that waits for a tick is told that there is none, and one is
 */
#ifndef KVR_CONNECTOR_PRIV_H
#define KVR_CONNECTOR_PRIV_H

#include "alike.h"
#include "engine.h"
#include "hash.h"
#include "kvring/connector.h"

#define KVR_CONFIG_CONNECTOR 1u /* kvr_seg_header.config_kind */
#define KVR_CONFIG_VERSION 1u
#define KVR_OPEN_LISTS 64u /* as many operations wait for a rank at once (engine) */

/* kvr_seg_header.config */
struct kvr_conn_config {
	uint32_t version;
	uint32_t max_blocks;
	uint64_t pool_slots;
	uint64_t slot_bytes;
	struct kvr_shape shape;
};
_Static_assert(sizeof(struct kvr_conn_config) <= KVR_CONFIG_MAX, "config");

/* Payload of LOOKUP_RESULT. */
struct kvr_wire_lookup {
	uint32_t blocks, host, nvme;
	int32_t status;
	uint64_t keys; /* kvr_keys_sum(): all ranks must pass the same */
};
/* The last key of a run stands for all before it. */
static inline uint64_t kvr_keys_sum(uint64_t space, const struct kvr_key *keys, uint32_t n)
{
	return n ? kvr_hash(&keys[n - 1], sizeof *keys, space ^ n) : 0;
}
/*
 * STORE_BEGIN and LOAD_BEGIN: a struct kvr_engine_answer, then `count` struct kvr_engine_block.
 * PREFETCH: the former alone. PROPOSE: it, then the caller's manifest. RESET: it, then the
 * watermarks of all channels: what was published before it is forgotten.
 */
_Static_assert(sizeof(struct kvr_engine_answer) == 40, "wire");

_Static_assert(sizeof(struct kvr_engine_block) == 16, "wire");

/* STORE_COMPLETE: the head, then `count` records. */
struct kvr_wire_complete {
	uint64_t tick;
	uint32_t count;
	uint32_t reserved;
};
struct kvr_wire_record {
	uint64_t id, space;
	uint32_t attempt;
	uint8_t kind, stage;
	uint8_t reached; /* the last stage before an end */
	uint8_t reserved;
	int32_t status;
	uint32_t blocks;
	uint32_t entry, gen; /* which operation: names can be used again */
};
_Static_assert(sizeof(struct kvr_wire_record) == 40, "wire");

/* What a rank knows of an operation. */
struct kvr_rank_op {
	struct kvr_request req;
	uint32_t used, kind, entry, gen;
	uint32_t n;
	uint32_t list;	  /* which list of blocks it holds, or UINT32_MAX */
	uint32_t stage;	  /* of the end, once a completion told it; else 0 */
	uint32_t reached; /* last stage before the end that completions told */
	int32_t status;
	uint64_t since;	   /* 0: begun here; else the tick of the first completion about it */
	uint64_t end_tick; /* of the completion that told the end */
	uint32_t voted, good;
	uint32_t layered;
	uint32_t agreed;   /* by layers: the begin returned, and the load with it */
	uint32_t layers;   /* by layers: groups that this rank verified */
	uint32_t answered; /* this rank's last word is stored: it touches no block any more */
	uint32_t closed;   /* aborted here: what is said of that name now is of another one */
	uint32_t held;	   /* a wait looks at it */
	uint32_t next;	   /* in its bucket */
	uint32_t bad; /* the leader's word for it was impossible: this one, when so much was told */
	uint32_t bad_told;
	uint64_t bad_word;
};

struct kvr_rank_ops {
	struct kvr_rank_op *ops;
	uint32_t *buckets;
	uint32_t capacity; /* power of two */
	uint32_t cursor;
	struct kvr_engine_block *lists; /* [KVR_OPEN_LISTS][max_blocks] */
	uint64_t lists_used;
	struct kvr_slot_header *header; /* copy of the one being verified */
	/* Lookups that had their answer and were not released: as many as the leader can pin. */
	struct kvr_rank_lookup {
		struct kvr_request req;
		uint64_t number; /* of the answer; 0: free */
		uint32_t blocks; /* of the hit */
	} * looked;
	uint32_t looked_n; /* entries that were ever used */
	/* completions taken from the ring, not yet given to the caller */
	struct kvr_completion *pending;
	uint64_t head, tail;
	uint64_t pending_mask;
	uint64_t pulled_tick; /* of the last message on COMPLETE */
	uint64_t whole_tick;  /* of no tick up to this one there can be more */
	uint64_t seen_tick;   /* tick_done of the leader's page */
	char broken[512];     /* first evidence that completions cannot be right any more */
	uint64_t done;	      /* the highest tick that this rank saw done */
	int over;	      /* the epoch is over: */
	uint64_t last_tick;   /* so far it counts */
};

struct kvr_connector {
	struct kvr_group *group;
	struct kvr_channels *channels;
	struct kvr_engine *engine; /* leader */
	struct kvr_conn_config config;
	struct kvr_geometry geo;
	struct kvr_pool pool;		     /* rank */
	struct kvr_rank_ops known;	     /* rank */
	uint32_t shard_base[KVR_MAX_SHARDS]; /* segment number of each shard's first */
	struct kvr_engine_block *blocks;     /* leader: scratch */
	struct kvr_engine_name *names;	     /* leader: scratch, [chunk] */
	uint32_t chunk;			     /* records a message holds */
	uint8_t *message;		     /* leader: scratch */
	uint32_t max_payload;
	uint32_t rank; /* or KVR_LEADER */
	int event_fd;
	uint64_t tick;	    /* leader: last done. rank: last returned */
	uint64_t open_tick; /* leader: tick whose publishing was interrupted, or 0 */
	uint32_t open_told; /* leader: records that it published before */
	int ended;	    /* rank: the leader's end was taken */
	uint32_t forks;	    /* a forked child's copy of the handle is inert */
	uint32_t polls;	    /* rank: that found nothing */
	int answered;	    /* the call in hand took, or published, its answer */
	struct kvr_alike_logs alike;
};

/* A rank waits this much longer than its caller said for the leader's answer to a begin: a leader
 * that finds no room until the same deadline says so to all. */
#define KVR_ANSWER_GRACE_NS 1000000000ull

/* Where the begin of each kind of operation travels. */
extern const struct kvr_begin_place {
	uint32_t channel, tag;
} kvr_begins[KVR_OP_KINDS];

/* Ends what is there of a connector; also of one that did not open. */
void kvr_connector_destroy(struct kvr_connector *c);
/* The sentence of a call that gave out n lost operations: how many, and why. */
void kvr_connector_explain_lost(struct kvr_connector *c, uint32_t n);

/* The leader's part of each call. */
int kvr_lead_lookup(struct kvr_connector *c, const struct kvr_request *req,
		    const struct kvr_key *keys, uint32_t n, uint64_t deadline_ns,
		    struct kvr_hit *ret_hit);
int kvr_lead_store_begin(struct kvr_connector *c, const struct kvr_request *req,
			 const struct kvr_key *keys, uint32_t n, uint64_t deadline_ns,
			 struct kvr_block *ret_blocks, uint32_t *ret_covered);
int kvr_lead_load_begin(struct kvr_connector *c, const struct kvr_request *req, uint32_t n,
			int layered, uint64_t deadline_ns);
int kvr_lead_prefetch(struct kvr_connector *c, const struct kvr_request *req,
		      const struct kvr_key *keys, uint32_t n, uint32_t budget,
		      uint64_t deadline_ns);
int kvr_lead_propose(struct kvr_connector *c, const struct kvr_request *req, const void *manifest,
		     uint32_t len, uint64_t deadline_ns);
int kvr_lead_reset(struct kvr_connector *c, const struct kvr_request *req,
		   const struct kvr_model *model, uint64_t deadline_ns);
int kvr_lead_load_wait(struct kvr_connector *c, const struct kvr_request *req, uint64_t deadline_ns,
		       struct kvr_block *ret_blocks, uint32_t max);
int kvr_lead_check_completed(struct kvr_connector *c, enum kvr_tick_mode mode, uint64_t tick,
			     uint64_t deadline_ns, struct kvr_completion *ret, uint32_t max,
			     uint64_t *ret_tick);
int kvr_lead_shutdown(struct kvr_connector *c, uint64_t deadline_ns);
int kvr_lead_refuse(struct kvr_connector *c, enum kvr_kind kind, const struct kvr_request *req,
		    int status, uint64_t deadline_ns);

/* connector_rank.c, for connector_ticks.c and back. */
struct kvr_rank_op *kvr_rank_op_find(struct kvr_rank_ops *k, const struct kvr_request *request,
				     uint32_t kind);
/* That very operation, or NULL. */
struct kvr_rank_op *kvr_rank_op_exact(struct kvr_rank_ops *k, const struct kvr_request *request,
				      uint32_t kind, uint32_t entry, uint32_t gen);
/* A place for a new operation; NULL: none is free. */
struct kvr_rank_op *kvr_rank_op_place(struct kvr_connector *c, const struct kvr_request *req,
				      uint32_t kind, uint32_t entry, uint32_t gen);
/* Its end was told by a tick up to `done`. */
int kvr_rank_op_told(const struct kvr_connector *c, const struct kvr_rank_op *op, uint64_t done);
uint64_t kvr_rank_op_word(const struct kvr_connector *c, uint32_t entry);
uint64_t kvr_rank_done(struct kvr_connector *c);
int kvr_rank_bad_message(struct kvr_connector *c, const struct kvr_message *m, const char *why);
/* Takes what is on COMPLETE into `pending`. 0, or -errno other than "nothing there". */
int kvr_rank_pull(struct kvr_connector *c);

/* connector_input.c: 0, or -EBADMSG with the name of what cannot be. */
int kvr_input_lookup(const struct kvr_connector *c, const struct kvr_message *m,
		     const struct kvr_wire_lookup *w);
/* kind: enum kvr_op_kind. n: keys that were passed. More than that is left to the caller. */
int kvr_input_answer(const struct kvr_connector *c, const struct kvr_message *m, uint32_t kind,
		     uint32_t n, const struct kvr_engine_answer *a);
int kvr_input_blocks(const struct kvr_connector *c, const struct kvr_message *m, int store,
		     const struct kvr_engine_answer *a, const struct kvr_engine_block *list);
/* A store's slot was given to this very key. */
int kvr_input_slot(const struct kvr_connector *c, const struct kvr_rank_op *op,
		   const struct kvr_engine_block *b, const struct kvr_key *key);
/* The tick and all records of a message on COMPLETE, whose length is right. */
int kvr_input_complete(const struct kvr_connector *c, const struct kvr_message *m,
		       const struct kvr_wire_complete *w);
/* The leader's word for an operation; told: op->reached before it was read. */
int kvr_input_word(const struct kvr_connector *c, struct kvr_rank_op *op, uint64_t word,
		   uint32_t told);
int kvr_input_tick(struct kvr_connector *c);
/* Keeps the first sentence about completions when err; returns that error from then on. */
int kvr_input_broken(struct kvr_connector *c, int err);

/* The rank's part of each call. */
int kvr_rank_open(struct kvr_connector *c);
void kvr_rank_close(struct kvr_connector *c);
int kvr_rank_lookup(struct kvr_connector *c, const struct kvr_request *req,
		    const struct kvr_key *keys, uint32_t n, uint64_t deadline_ns,
		    struct kvr_hit *ret_hit);
/* Is there certainly nothing for KVR_NOW? */
int kvr_rank_nothing_new(struct kvr_connector *c);
int kvr_rank_store_begin(struct kvr_connector *c, const struct kvr_request *req,
			 const struct kvr_key *keys, uint32_t n, uint64_t deadline_ns,
			 struct kvr_block *ret_blocks, uint32_t *ret_covered);
int kvr_rank_store_copied(struct kvr_connector *c, const struct kvr_request *req, int status);
/* open: kinds (bits) of which this rank made the call, and had no answer. */
void kvr_rank_abort(struct kvr_connector *c, const struct kvr_request *req, uint32_t open);
void kvr_rank_release(struct kvr_connector *c, const struct kvr_request *req, uint32_t open);
void kvr_rank_prefetch_cancel(struct kvr_connector *c, const struct kvr_request *req);
int kvr_rank_wait_store(struct kvr_connector *c, const struct kvr_request *req,
			enum kvr_stage stage, uint64_t deadline_ns);
int kvr_rank_load_begin(struct kvr_connector *c, const struct kvr_request *req, uint32_t n,
			int layered, uint64_t deadline_ns);
/* A begin by layers that had its answer and waits for the others: after -EINTR it goes on. */
int kvr_rank_load_resumes(struct kvr_connector *c, const struct kvr_request *req);
int kvr_rank_load_wait_layer(struct kvr_connector *c, const struct kvr_request *req,
			     const struct kvr_key *keys, uint32_t group, uint64_t deadline_ns,
			     struct kvr_block *ret_blocks, uint32_t max);
int kvr_rank_prefetch(struct kvr_connector *c, const struct kvr_request *req, uint32_t n,
		      uint64_t deadline_ns);
int kvr_rank_prefetch_status(struct kvr_connector *c, const struct kvr_request *req,
			     uint32_t *ret_done);
int kvr_rank_proposal(struct kvr_connector *c, const struct kvr_request *req, void *manifest,
		      uint32_t max, uint64_t deadline_ns);
int kvr_rank_vote(struct kvr_connector *c, const struct kvr_request *req, int status);
int kvr_rank_decided(struct kvr_connector *c, const struct kvr_request *req, uint32_t kind,
		     enum kvr_stage stage, uint64_t deadline_ns);
int kvr_rank_outcome(struct kvr_connector *c, const struct kvr_request *req, int status);
int kvr_rank_reset(struct kvr_connector *c, const struct kvr_request *req, uint64_t deadline_ns);
int kvr_rank_load_wait(struct kvr_connector *c, const struct kvr_request *req,
		       const struct kvr_key *keys, uint64_t deadline_ns,
		       struct kvr_block *ret_blocks, uint32_t max);
int kvr_rank_load_done(struct kvr_connector *c, const struct kvr_request *req);
int kvr_rank_check_completed(struct kvr_connector *c, enum kvr_tick_mode mode, uint64_t tick,
			     uint64_t deadline_ns, struct kvr_completion *ret, uint32_t max,
			     uint64_t *ret_tick);

#endif
