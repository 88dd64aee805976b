/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group: the processes of one node that share one segment. The leader creates it, ranks attach.
 * Each incarnation is an epoch; a new leader makes a new segment under the same name.
 *
 * One thread at a time may use a handle. The library adds one thread to each process, the watcher,
 * which holds the process's liveness word and blocks all signals.
 *
 * A forked child inherits the mappings but not the membership: it must not use the handle.
 */
#ifndef KVRING_GROUP_H
#define KVRING_GROUP_H

#include "kvring/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvr_group;

struct kvr_group_opts {
	size_t size;	     /* sizeof(struct kvr_group_opts) */
	const char *dir;     /* NULL: /dev/shm. A tmpfs; leader and ranks must agree */
	uint32_t ranks;	     /* leader: 1..64 */
	uint32_t ring_bytes; /* leader: cells of a ring, power of two; 0: 131072 */
	uint32_t ops;	     /* leader: operations in flight at most, power of two; 0: 1024 */
	uint32_t events;     /* leader: events a recorder holds, power of two; 0: 1024 */
	const struct kvr_model *model; /* NULL: all zero. Ranks: compared, NULL: not compared */
	const void *config;  /* leader: opaque bytes for the ranks (a layer above defines them) */
	uint32_t config_len; /* at most 3072 */
	uint32_t config_kind;
	int event_fd; /* -1 (or 0), or an eventfd that the watcher feeds when the bell rings */
	uint32_t reserved;
};

/*
 * Creates epoch 1, or takes over the name of a dead group with the next epoch (its uuid stays, its
 * segment is kept as retired: the last two; its waiters get -ESTALE; its pool file is unlinked).
 * -EBUSY: its leader lives (pid named). -EPROTO: the file under that name is no segment of ours, or
 * of another layout: nothing is touched. -ENOSPC with the bytes needed and found.
 */
KVR_API int kvr_group_create(const char *name, const struct kvr_group_opts *opts,
			     struct kvr_group **ret_group);

/*
 * Attaches as `rank`, waiting for a living leader until the deadline (absolute CLOCK_MONOTONIC ns).
 * At once: -EPROTO: incompatible, both values named; -EPERM: not this user's; -EBUSY: a living
 * process has that rank; -EINVAL: the group has no such rank; -EINTR: a signal handler ran.
 * At the deadline, since a next epoch would have helped: -ETIMEDOUT: absent; -EOWNERDEAD: its
 * leader is dead; -EBUSY: that rank died or left in this epoch (a rank attaches once an epoch); the
 * cause of an epoch that its leader declared over.
 */
KVR_API int kvr_group_attach(const char *name, uint32_t rank, const struct kvr_group_opts *opts,
			     uint64_t deadline_ns, struct kvr_group **ret_group);

/* Leaves in good order. The leader's close marks the group as left, wakes all, and removes the
 * name. NULL is fine. Never fails; never waits longer than the watcher takes to stop. */
KVR_API void kvr_group_close(struct kvr_group *group);

/*
 * 0 while all is well; else why waiting makes no sense, with a sentence that names who: -EOWNERDEAD
 * (the leader died, or the leader declared a rank dead), -ESTALE (newer epoch), -ESHUTDOWN.
 */
KVR_API int kvr_group_check(struct kvr_group *group);

/* The leader ends the epoch, naming a rank (or KVR_MAX_RANKS for none) and a cause (-errno). All
 * waits of all ranks end with that cause; one that means "try again" (EINTR, EAGAIN, ETIMEDOUT,
 * EMSGSIZE) becomes -ECANCELED, so that nobody tries for ever. */
KVR_API int kvr_group_fail(struct kvr_group *group, uint32_t rank, int cause);

KVR_API uint64_t kvr_group_epoch(const struct kvr_group *group);
KVR_API uint32_t kvr_group_ranks(const struct kvr_group *group);
/* This process's rank; UINT32_MAX for the leader. */
KVR_API uint32_t kvr_group_rank(const struct kvr_group *group);
/* The leader's opaque bytes; private copy, valid until close. */
KVR_API const void *kvr_group_config(const struct kvr_group *group, uint32_t *ret_len,
				     uint32_t *ret_kind);

#ifdef __cplusplus
}
#endif
#endif
