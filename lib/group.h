/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the layers above see of a group. Pages of others are mapped read-only: `seg` is the whole
 * segment read-only, `own` and the bells are writable.
 *
 *   G1 a process: store-release of its state        G2 peer: load-acquire of the state
 *      without it: "failed" or "left" is seen before its cause
 *   K1 taker: store-release of new_epoch            K2 anyone: load-acquire of new_epoch
 *      without it: -ESTALE with a cause not yet written
 *   N1 taker: takes `closing` (compare-and-swap), then  N2 anyone: load-acquire of `closing`, then
 *      loads the leader's counts                           K2, after the count
 *      without it: a rank acts on more than the taker copied. (No load passes an acquire.)
 *   F1 leader: compare-and-swap of `failing`        F1 another thread of the leader
 *      without it: two causes, mixed
 *   E1 watcher: xchg of its bell's `parked`; for the ringer it is B2 of wait.h
 *      without it: an eventfd that stays silent
 */
#ifndef KVR_GROUP_H
#define KVR_GROUP_H

#include "atomic.h"
#include "kvring/group.h"
#include "kvring/wait.h"
#include "layout.h"
#include "life.h"
#include "recorder.h"
#include "shm.h"

struct kvr_group {
	char name[KVR_NAME_MAX];
	char dir[256];		      /* absolute; "" /dev/shm */
	char path[KVR_SHM_PATH];      /* of the segment */
	struct kvr_seg_header header; /* private copy, checked */
	struct kvr_layout layout;
	uint32_t rank;	  /* or KVR_LEADER */
	uint32_t pid;	  /* whose handle it is: a forked child's close must not end its parent's */
	uint32_t failing; /* leader: 1 once a thread declares the epoch over (F1) */
	uint32_t forks;	  /* a forked child's copy of the handle is inert */
	int fd;
	const uint8_t *seg; /* whole segment, read-only */
	uint8_t *own;	    /* writable: the leader area, or this rank's area */
	uint64_t own_bytes;
	struct kvr_bell *bells; /* writable, all: ranks', then the leader's */
	struct kvr_bell *bell;	/* own */
	const struct kvr_seg_takeover *takeover;
	struct kvr_proc *proc; /* own page's first bytes */
	uint64_t *calls;       /* own counts by enum kvr_call */
	const struct kvr_leader_page *leader;
	const uint32_t *peers[KVR_MAX_RANKS]; /* liveness words of whom we wait for */
	uint32_t peer_count;		      /* a rank: the leader; the leader: all ranks */
	struct kvr_waiter waiter;	      /* of the caller's thread */
	struct kvr_recorder rec;	      /* of the caller's thread */
	struct kvr_watcher *watcher;
};

static inline struct kvr_leader_page *kvr_group_leader_page(struct kvr_group *g)
{
	return (struct kvr_leader_page *)(void *)g->own; /* leader only */
}
static inline struct kvr_rank_page *kvr_group_own_page(struct kvr_group *g)
{
	return (struct kvr_rank_page *)(void *)g->own; /* ranks only */
}
static inline const struct kvr_rank_page *kvr_group_rank_page(const struct kvr_group *g, uint32_t r)
{
	return (const struct kvr_rank_page *)(const void *)(g->seg +
							    kvr_layout_rank(&g->layout, r));
}
static inline void kvr_group_ring_rank(struct kvr_group *g, uint32_t rank)
{
	kvr_bell_ring(&g->bells[rank]);
}
static inline void kvr_group_ring_leader(struct kvr_group *g)
{
	kvr_bell_ring(&g->bells[g->layout.ranks]);
}

uint64_t kvr_group_fenced(const struct kvr_group *g, const uint64_t *fence, uint64_t seen);

static inline int kvr_group_untouched(const struct kvr_group *g)
{
	uint32_t closing = kvr_load_acquire32(&g->takeover->closing);	/* N2, pairs with N1 */
	uint64_t new_epoch = kvr_load_acquire(&g->takeover->new_epoch); /* K2, pairs with K1 */

	return __builtin_expect(closing || new_epoch, 0) == 0;
}

/*
 * How many publishes of a channel are whole on all ranks, and the last tick: what the leader says,
 * but not beyond the fence that a newer leader put up (the old one may live and go on).
 */
static inline uint64_t kvr_group_watermark(const struct kvr_group *g, uint32_t channel)
{
	uint64_t n = kvr_load_acquire(&g->leader->watermark[channel]); /* M2, pairs with M1 */

	return kvr_group_untouched(g) ? n
				      : kvr_group_fenced(g, &g->takeover->watermark[channel], n);
}
static inline uint64_t kvr_group_tick_done(const struct kvr_group *g)
{
	uint64_t n = kvr_load_acquire(&g->leader->tick_done); /* T2, pairs with T1 */

	return kvr_group_untouched(g) ? n : kvr_group_fenced(g, &g->takeover->tick_done, n);
}

/*
 * For the leader's engine: looks at all ranks' liveness words; on the first death declares the
 * epoch failed (kvr_group_fail with -EOWNERDEAD), wakes everyone. 0, or why the epoch is over
 * (-EOWNERDEAD, or the cause of an earlier kvr_group_fail). May be called by another thread than
 * the caller's; therefore it leaves the recorder alone.
 */
int kvr_group_watch_ranks(struct kvr_group *g);

/*
 * kvr_wait() with the group's liveness: ready() first, then kvr_group_check(), so that what the
 * leader finished is drained before its death is reported. `what` is for the sentence: "the answer
 * to lookup of request 7/0". -ETIMEDOUT says what the leader does and since when.
 */
int kvr_group_wait(struct kvr_group *g, int (*ready)(void *), void *arg, uint64_t deadline_ns,
		   const char *what);

/* Appends to the sentence of a failure that the group's file was removed, if it was. */
void kvr_group_add_unlinked(const struct kvr_group *g);

/*
 * Leader: calls fn(arg) under the name lock if our segment has the name: what fn does to a name of
 * the group's cannot hit another leader's. What fn returns; -ESTALE: another leader took over, or
 * the file was removed; -ETIMEDOUT; -EINTR.
 */
int kvr_group_with_names(struct kvr_group *g, int (*fn)(void *arg), void *arg);

/* Marks that this process is inside a call (for inspectors), and counts it. */
void kvr_group_enter(struct kvr_group *g, enum kvr_call call, uint32_t channel);
/* Leaves it; records the result. `req` may be NULL. Returns `result`. */
int kvr_group_leave(struct kvr_group *g, enum kvr_call call, uint32_t channel,
		    const struct kvr_request *req, int result);

/* As kvr_group_close() of a rank that did nothing yet: its place is free again in this epoch. The
 * handle stays, to be closed. */
void kvr_group_abandon(struct kvr_group *g);

/* "rank 3 (pid 812, alive, in wait_store for 1.2 s)" or "the leader (...)" for KVR_LEADER. */
void kvr_group_describe(const struct kvr_group *g, uint32_t rank, char *ret_text, size_t size);

#endif
