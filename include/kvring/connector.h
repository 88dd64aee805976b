/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connector: what an inference worker calls. The leader owns the tier (index, host pool, store)
 * and decides; every rank makes the same calls with the same arguments, learns the decision, and
 * does its share of the copying. Answers are matched by (request id, space, attempt), never by
 * order.
 *
 *   leader                                 every rank
 *   lookup      longest stored prefix,     lookup      the same hit
 *               pinned
 *   load_begin  reads what is on NVMe      load_begin  where the blocks will be
 *   load_wait   the ranks' verdict         load_wait   waits, verifies its segments, votes: the
 *                                                      same number of blocks on every rank
 *                                          (copies them to the GPU)
 *   load_done                              load_done   the slots may be reused
 *   release     drops the pin              release
 *   store_begin skips what is stored,      store_begin the blocks to copy, and where to
 *               reserves slots             (copies its spans into them)
 *   store_copied                           store_copied  hashes its segments, acknowledges
 *   check_completed(tick)                  check_completed(tick)  the same completions at a tick
 *   wait_store                             wait_store  until a stage, or the end
 *   shutdown                               shutdown
 *
 * A thread in the leader, the engine, moves operations on whether or not the leader's caller is
 * busy: from copied to host to written, from read to verified.
 *
 * A leader that holds a shard itself opens both: lead(), and join() as rank 0, in one process. For
 * each call it uses the leader's handle first and the rank's second; for load_wait the rank's
 * alone.
 *
 * Lookups, stores, loads, prefetches, decisions and resets are to be made alike by all processes:
 * the same requests, each kind in the same order. Polls are not, nor waits, releases and aborts.
 * Each process logs its calls in shared memory, a rank compares them with its leader's, and the
 * first difference is kept in its page: ring-dump --check tells of it before anything hangs. A call
 * that is made again since its answer did not come (-EINTR, -EAGAIN, -ETIMEDOUT) counts once.
 *
 * One thread at a time may use a handle. Deadlines are absolute (kvr_deadline()). -EINTR: call
 * again with the same arguments.
 *
 * The epoch is over when the leader died or left, another one took over, or the leader declared it
 * over (since a rank died, or with kvr_group_fail()). Calls return why: -EOWNERDEAD, -ESHUTDOWN,
 * -ESTALE, the declared cause. check_completed then tells how every operation in flight ended;
 * after that the handle can only be closed.
 */
#ifndef KVRING_CONNECTOR_H
#define KVRING_CONNECTOR_H

#include "kvring/channel.h"
#include "kvring/group.h"
#include "kvring/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvr_connector;

#define KVR_NUMA_ANY 0
#define KVR_NUMA_INTERLEAVE (-1)
#define KVR_NUMA_NODE(n) ((n) + 1)

struct kvr_connector_opts {
	size_t size;	 /* sizeof(struct kvr_connector_opts) */
	const char *dir; /* of shared memory; NULL: /dev/shm */
	const struct kvr_model
		*model;	   /* leader: may be NULL (all zero). Rank: compared unless NULL */
	const char *setup; /* as in struct kvr_group_opts */
	uint32_t ranks;	   /* rank: compared unless 0 */
	/* the rest is for the leader */
	uint32_t ring_bytes, ops, events, bulk_bytes; /* 0: defaults of group.h */
	const struct kvr_shape *shape;
	uint64_t host_bytes; /* of the pool; a slot is header_bytes + padded block */
	int32_t numa_node;   /* of the pool: KVR_NUMA_ANY (0), KVR_NUMA_INTERLEAVE, KVR_NUMA_NODE(n)
			      */
	uint32_t store_flags;		/* KVR_STORE_... */
	const char *const *store_paths; /* see kvr_store_opts; none: host tier only */
	uint32_t stores;
	uint32_t takeover;    /* enum kvr_takeover: when a leader of that name lives */
	uint64_t store_bytes; /* of all devices together; 0: as they are */
	/* Until when a leader that is taken over, and then its I/O lock, are waited for; 0: 5 s
	 * from now. */
	uint64_t lock_deadline_ns;
	/* called by the engine's thread, which blocks all signals, while lead() waits */
	void (*progress)(void *arg, const char *what, uint64_t done, uint64_t total);
	void *progress_arg;
};

/*
 * Leader: creates the group (or takes over the name of one that is over, or of a living one if
 * opts->takeover says so), the pool and the store, recovers what the store holds, and starts the
 * engine. A living leader that was only fenced keeps its store: opening the same files is -EBUSY
 * until it is gone. Errors: those of kvr_group_create() and
 * kvr_store_open(); -EINVAL with the argument; -ENOSPC with bytes needed and found.
 */
KVR_API int kvr_connector_lead(const char *name, const struct kvr_connector_opts *opts,
			       struct kvr_connector **ret_connector);
/* Rank: attaches, maps the pool. opts may be NULL. Errors: those of kvr_group_attach(). */
KVR_API int kvr_connector_join(const char *name, uint32_t rank,
			       const struct kvr_connector_opts *opts, uint64_t deadline_ns,
			       struct kvr_connector **ret_connector);

/*
 * Leader: finds and pins the prefix (one pin a request, replaced by a repeated lookup), publishes.
 * Rank: takes the answer of that request. The same on all ranks.
 */
KVR_API int kvr_connector_lookup(struct kvr_connector *c, const struct kvr_request *request,
				 const struct kvr_key *keys, uint32_t n, uint64_t deadline_ns,
				 struct kvr_hit *ret_hit);
/* Drops the pin of lookup. Blocks that a running load uses stay until it ends. No message. */
KVR_API int kvr_connector_release(struct kvr_connector *c, const struct kvr_request *request);
/*
 * Ends what that request and attempt still have. All ranks make the call, each when it no longer
 * touches blocks of the request: copies to the GPU or from it have ended or were cancelled. No
 * message, no wait.
 *
 * Leader: drops the pin; a store that not all ranks have copied, a load, a prefetch or a decision
 * ends as cancelled, which check_completed tells. What a rank may still copy is in quarantine until
 * that rank made this call, answered (store_copied, load_done) or left; ring-dump shows it. While
 * more than a quarter of the pool's slots is there, no store or load begins (-EAGAIN after 2 s, or
 * at the deadline). A store that
 * all ranks have copied goes on to its end. Returns the number of operations that it ends.
 *
 * Rank: drops the answers to calls of that name that it did not make or that it gave up, and gives
 * its blocks back. Returns 0. What comes after for that request should have another attempt.
 */
KVR_API int kvr_connector_abort(struct kvr_connector *c, const struct kvr_request *request);
/*
 * Leader: cannot make the call that the ranks make, or will make, for that request (a lookup, or
 * the begin of a store, load or prefetch, or the proposal of a decision): tells them, and their
 * call returns `status` (a negative errno) at once, with no operation. A failure before there is
 * anything to fail, as data and not as silence.
 */
KVR_API int kvr_connector_refuse(struct kvr_connector *c, enum kvr_kind kind,
				 const struct kvr_request *request, int status,
				 uint64_t deadline_ns);

/* A block of an operation. */
struct kvr_block {
	uint32_t index; /* in the keys of the call */
	uint32_t slot;
	uint8_t *payload; /* block_bytes in the pool; this rank's spans of it are its own */
};

/* A run of bytes within a block. */
struct kvr_span {
	uint64_t offset;
	uint64_t bytes;
};

/* The spans of a block that this rank writes (or reads), in order, adjacent ones merged. Returns
 * their number, also when it is larger than max. */
KVR_API uint32_t kvr_connector_spans(const struct kvr_connector *c, int write,
				     struct kvr_span *ret_spans, uint32_t max);
/* Blocks that one operation can have at most. */
KVR_API uint32_t kvr_connector_max_blocks(const struct kvr_connector *c);
/* Slots of the pool. */
KVR_API uint32_t kvr_connector_pool_slots(const struct kvr_connector *c);
/* The pool's mapping, for pinning it to a GPU. */
KVR_API void *kvr_connector_pool(const struct kvr_connector *c, uint64_t *ret_bytes);

/*
 * Stores keys[0..n). Leader: skips blocks that are stored or on their way, reserves slots for the
 * others as far as the pool has room, waiting for at least one until the deadline, and publishes.
 * All: ret_blocks (room for max, at least min(n, max_blocks)) gets the blocks to copy; *ret_covered
 * how many of the keys were handled: call again with a higher attempt for the rest. Returns the
 * number of blocks to copy; 0 when all covered keys are known. The operation ends when all covered
 * keys are written, also those that another store brought on their way. -EAGAIN: no room until the
 * deadline, or the table is full (the sentence says which): the same on all ranks (which wait up to
 * a second longer for it), and there is no operation. -EEXIST: that request and attempt already
 * stores.
 */
KVR_API int kvr_connector_store_begin(struct kvr_connector *c, const struct kvr_request *request,
				      const struct kvr_key *keys, uint32_t n, uint64_t deadline_ns,
				      struct kvr_block *ret_blocks, uint32_t max,
				      uint32_t *ret_covered);
/* Rank: this rank's spans of all blocks are copied (status 0): hashes them and acknowledges; or
 * could not be (status < 0): the operation fails with it on all ranks. A rank that writes no shard
 * is not waited for, and its status does not count. For a store that ended meanwhile, or a second
 * time, the call changes nothing, is counted (ring-dump: late, duplicate) and returns 0; -ENOENT
 * (foreign): no such store. Leader: status < 0 fails the operation (its launch went wrong after the
 * begin); else nothing to do. */
KVR_API int kvr_connector_store_copied(struct kvr_connector *c, const struct kvr_request *request,
				       int status);
/*
 * Waits until the store of that request reaches `stage` (COPIED, HOST, WRITTEN) or ends. 0 when the
 * stage was reached (a store without devices ends at HOST and counts as reached); the cause
 * (-errno) when it failed, or why the epoch is over when it was lost with it (the sentence says
 * which); -ENOENT: no such store is known here.
 */
KVR_API int kvr_connector_wait_store(struct kvr_connector *c, const struct kvr_request *request,
				     enum kvr_stage stage, uint64_t deadline_ns);

/*
 * Loads the first n blocks of the request's lookup. Leader: starts reads of what is only on NVMe,
 * publishes. Returns the number of blocks that are being loaded, at most n (fewer when the pool has
 * no room for more until the deadline); 0: nothing is left of the prefix, and there is no
 * operation; -ENOENT: no lookup of that request is pinned; -EAGAIN.
 */
KVR_API int kvr_connector_load_begin(struct kvr_connector *c, const struct kvr_request *request,
				     uint32_t n, uint64_t deadline_ns);
/*
 * Rank: waits until the bytes are in the pool, verifies the header pages and the segments this rank
 * reads (keys: those of lookup), votes, and waits for the others' votes. Returns the number of
 * leading blocks that are good on every rank, the same for all, and the blocks. Leader: waits for
 * that number; blocks of which the ranks are done already are zero. The ranks meet here: all wait
 * for their loads in the same order, or go on after -ETIMEDOUT and come back. The blocks stay until
 * load_done.
 */
KVR_API int kvr_connector_load_wait(struct kvr_connector *c, const struct kvr_request *request,
				    const struct kvr_key *keys, uint64_t deadline_ns,
				    struct kvr_block *ret_blocks, uint32_t max);
/* Rank: copied out; the slots may be reused. Leader: nothing to do. */
KVR_API int kvr_connector_load_done(struct kvr_connector *c, const struct kvr_request *request);

/*
 * The same load by layers: a rank copies a layer group while others are still being read. All or
 * nothing: what the ranks used of a block before another one's turned out bad cannot be taken back,
 * so a bad segment on any rank, or a read that fails, ends the load for all.
 *
 * It is a decision: the leader proposes (blocks, number of layer groups, generation), each rank
 * checks it and votes in its call, which waits until all did. Leader: returns at once with the
 * number of blocks. Rank: that number, or why there is no load, the same on all ranks: a vote
 * against it, or -ETIMEDOUT since one did not vote until the deadline (its own, or the leader's);
 * it is rolled back, and nothing else. -EPROTO: the other side begins a load of the whole.
 */
KVR_API int kvr_connector_load_begin_layers(struct kvr_connector *c,
					    const struct kvr_request *request, uint32_t n,
					    uint64_t deadline_ns);
/*
 * Rank: waits until layer group `group` of all blocks is in the pool, verifies the segments of it
 * that this rank reads (and of those before it, if they were skipped). Returns the number of blocks
 * (room for all of them), or the cause once the load failed anywhere: -EBADMSG for a bad segment.
 * After the last group: kvr_connector_load_wait() says whether it was good on all ranks, which
 * needs all of them to come so far; kvr_connector_load_done() in any case.
 */
KVR_API int kvr_connector_load_wait_layer(struct kvr_connector *c,
					  const struct kvr_request *request,
					  const struct kvr_key *keys, uint32_t group,
					  uint64_t deadline_ns, struct kvr_block *ret_blocks,
					  uint32_t max);

/*
 * Brings blocks of the stored prefix of keys[0..n) that are only on NVMe into the pool, at most
 * `budget` of them (0: as many as fit), in order, behind everything that somebody waits for. Never
 * waits for room in the pool. Returns the number of blocks that are being read, the same on all
 * ranks; 0: there is nothing to do, and no operation. -EEXIST, -EAGAIN (the table is full). It pins
 * the prefix until its end, and no rank has to do anything for it; the end is told by
 * check_completed (`blocks`: those that arrived).
 */
KVR_API int kvr_connector_prefetch(struct kvr_connector *c, const struct kvr_request *request,
				   const struct kvr_key *keys, uint32_t n, uint32_t budget,
				   uint64_t deadline_ns);
/* 0: it runs; 1: it ended well; the cause (-errno) when it was cancelled; -ENOENT. *ret_done:
 * blocks that arrived so far. Any rank, any time: a look, which sends nothing. */
KVR_API int kvr_connector_prefetch_status(struct kvr_connector *c,
					  const struct kvr_request *request, uint32_t *ret_done);
/* Leader: no further read of it starts, and it ends as cancelled; what arrived stays. Rank: nothing
 * has to be done; it may make the call. */
KVR_API int kvr_connector_prefetch_cancel(struct kvr_connector *c,
					  const struct kvr_request *request);

/*
 * Decisions of the caller's own, such as "every rank found room for this restore": the leader
 * proposes with a manifest; each rank takes it, checks, and votes (0, or why not); all learn the
 * one outcome: committed, once all voted for it, or aborted with the first cause, also when votes
 * are missing at the leader's deadline (-ETIMEDOUT). After the commit each rank says how it went;
 * the operation ends as done, or as failed with the first cause, which check_completed tells all.
 *
 *   leader                           every rank
 *   propose(manifest)                proposal(): the manifest
 *                                    vote(status)
 *   decided(): 0, or the cause       decided(): the same
 *                                    outcome(status)
 *   (vote(), outcome() with status < 0: the leader itself is against it, or failed)
 *
 * propose, vote and outcome do not wait for anybody, so a leader that is a rank, too, makes both.
 */
KVR_API int kvr_connector_propose(struct kvr_connector *c, const struct kvr_request *request,
				  const void *manifest, uint32_t len, uint64_t deadline_ns);
/* Rank: returns the manifest's length. -EMSGSIZE: larger than max; this rank votes against it. Or
 * why the leader refused to propose (kvr_connector_refuse). */
KVR_API int kvr_connector_proposal(struct kvr_connector *c, const struct kvr_request *request,
				   void *ret_manifest, uint32_t max, uint64_t deadline_ns);
/* status: 0 or a negative errno. A second vote, or one that is late, is counted and not applied. */
KVR_API int kvr_connector_vote(struct kvr_connector *c, const struct kvr_request *request,
			       int status);
KVR_API int kvr_connector_decided(struct kvr_connector *c, const struct kvr_request *request,
				  uint64_t deadline_ns);
KVR_API int kvr_connector_outcome(struct kvr_connector *c, const struct kvr_request *request,
				  int status);

/*
 * The weights changed: no block that was stored before may ever be found again. All make the call,
 * then wait. The leader begins nothing else until it is over (-EBUSY), stops prefetches, and asks
 * the ranks; a rank drops the answers it did not take, and votes for it unless it still has blocks
 * of an operation (-EBUSY, and nothing is reset). When all did, no operation is in flight, no slot
 * in quarantine and no transfer running, the engine raises the cache generation on every device,
 * durably, then frees every block and every pin. All of this until the leader's deadline, or
 * nothing is reset (-EBUSY, -ETIMEDOUT).
 *
 * model (leader): what the store is for from then on, with the new revision; NULL: as before. The
 * group itself keeps the model that it was made with.
 *
 * reset_wait: 0; or why not, the same everywhere: then everything is as before, unless the store
 * failed (its cause): then the memory is empty, and blocks may come back after a restart; call
 * again, or format.
 */
KVR_API int kvr_connector_reset(struct kvr_connector *c, const struct kvr_request *request,
				const struct kvr_model *model, uint64_t deadline_ns);
KVR_API int kvr_connector_reset_wait(struct kvr_connector *c, const struct kvr_request *request,
				     uint64_t deadline_ns);

enum kvr_tick_mode {
	KVR_TICK, /* leader: ends tick T (> the last). Rank: waits for tick T; all up to it */
	KVR_NEXT, /* leader: the next tick. Rank: waits for the tick after its last */
	KVR_NOW	  /* leader: the next tick. Rank: what there is, without waiting */
};

/*
 * Leader: publishes what was passed since its last tick, under that tick. Rank: every completion
 * stamped up to the tick that it has not had. Skipping ticks or asking twice is harmless; after the
 * same tick all ranks had the same set in the same order. Returns their number; *ret_tick (may be
 * NULL) is the tick reached. -EMSGSIZE: more than max; nothing is lost, call with more room.
 *
 * When the epoch is over, every operation that this process began or was told of still gets its one
 * end. First comes what the leader's ticks told up to the last one that it finished, which is the
 * same tick on all ranks. Then, in as many calls as it takes, a completion with stage LOST for each
 * operation whose end they did not tell: its tick is the last one, its status why the epoch is
 * over, and kvr_explain() says how many were lost, with which epoch, and why. From then on the call
 * returns why.
 *
 * LOST says that the ranks cannot know more, not that nothing was done: what was written is found
 * again in the next epoch. The slots of lost operations are not used again in this one. A leader
 * that lives on is told of them, too; before, it gets the ends that came too late for the ranks,
 * under a tick above *ret_tick, which no rank will see.
 */
KVR_API int kvr_connector_check_completed(struct kvr_connector *c, enum kvr_tick_mode mode,
					  uint64_t tick, uint64_t deadline_ns,
					  struct kvr_completion *ret_completions, uint32_t max,
					  uint64_t *ret_tick);

/*
 * The good end. Leader: lets operations in flight end, tells the ranks what ended at a last tick
 * (this caller asks before, with check_completed), announces the end, waits for the ranks of other
 * processes to leave. Rank: waits for the announcement, which comes after everything published
 * before. 0, or -ETIMEDOUT naming what did not end. Close afterwards in any case.
 */
KVR_API int kvr_connector_shutdown(struct kvr_connector *c, uint64_t deadline_ns);
/* Drops the handle. Leader without shutdown: operations in flight are lost; nothing that was
 * written is. Removes the names in shared memory. NULL is fine. */
KVR_API void kvr_connector_close(struct kvr_connector *c);

/* Leader: counters. */
KVR_API int kvr_connector_stats(struct kvr_connector *c, struct kvr_stats *ret_stats);
/* Leader: the i-th degradation as a sentence, or NULL. Valid until close. */
KVR_API const char *kvr_connector_degraded(struct kvr_connector *c, uint32_t i);
/* The group and the channels underneath, for the caller's own channels. */
KVR_API struct kvr_group *kvr_connector_group(struct kvr_connector *c);
KVR_API struct kvr_channels *kvr_connector_channels(struct kvr_connector *c);

#ifdef __cplusplus
}
#endif
#endif
