/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group: the processes of one node that share one segment. The leader creates it, ranks attach.
 * Each incarnation is an epoch; a new leader makes a new segment under the same name.
 *
 * One thread at a time may use a handle. The library adds one thread to each process, the watcher,
 * which holds the process's liveness word and blocks all signals.
 *
 * A forked child inherits the mappings but not the membership: its calls are refused with -EINVAL
 * and change nothing.
 *
 * Space: a segment takes exactly
 *
 *     2 P + up(128 (ranks + 1))
 *   + up(4096 + 128 ops + R + 10 ranks (128 + ring_bytes) + bulk_bytes)
 *   + ranks x up(4096 + 16 ops + R)
 *
 * bytes, with R = 128 + 64 events + 6 (128 + 8 events, at least 512) and up() rounding to P, the
 * kernel's page size (4096 on x86-64): 12.3 MiB for 8 ranks with defaults.
 * They are reserved when it is created; nothing grows later. With the segment of a group that ended
 * badly and two older ones kept for a look, a name takes at most four times as much.
 */
#ifndef KVRING_GROUP_H
#define KVRING_GROUP_H

#include "kvring/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvr_group;

/* What kvr_group_create() does about a leader of that name which lives, however slow it is, or
 * stopped. (A dead one is always taken over.) */
enum kvr_takeover {
	KVR_TAKEOVER_REFUSE, /* -EBUSY, naming it */
	/* SIGKILL by pidfd, then waits until its process is gone. -EBUSY: it cannot be killed from
	 * here (another pid namespace, this very process); -EPERM; -ETIMEDOUT. */
	KVR_TAKEOVER_KILL,
	/* Leaves it alone and takes its name: it and its ranks end with -ESTALE. It keeps what else
	 * it has: its pool, and its store, which nobody can open until it is gone. */
	KVR_TAKEOVER_FENCE
};

struct kvr_group_opts {
	size_t size;	     /* sizeof(struct kvr_group_opts) */
	const char *dir;     /* NULL: /dev/shm. A tmpfs; leader and ranks must agree */
	uint32_t ranks;	     /* leader: 1..64. Ranks: compared unless 0 */
	uint32_t ring_bytes; /* leader: cells of a ring, power of two; 0: 131072 */
	uint32_t ops;	     /* leader: operations in flight at most, power of two; 0: 1024 */
	uint32_t events;     /* leader: events a recorder holds, power of two; 0: 1024 */
	/* leader: bytes for messages that are larger than a ring's limit, power of two; one may
	 * have a quarter of them; 0: 1 MiB */
	uint32_t bulk_bytes;
	const struct kvr_model *model; /* NULL: all zero. Ranks: compared, NULL: not compared */
	/*
	 * The caller's own fingerprint: lines "name=value", such as "tp_size=8\npp_size=2\n", at
	 * most 503 bytes. Ranks: compared name by name, so that the error says which one differs;
	 * NULL: not compared. Copied.
	 */
	const char *setup;
	const void *config;  /* leader: opaque bytes for the ranks (a layer above defines them) */
	uint32_t config_len; /* at most 3072 */
	uint32_t config_kind;
	/* -1 (or 0), or an eventfd that the watcher feeds when the bell rings; non-blocking, or
	 * closing waits while it is full. */
	int event_fd;
	uint32_t takeover;	       /* leader: enum kvr_takeover */
	uint64_t takeover_deadline_ns; /* leader: for KVR_TAKEOVER_KILL; 0: 5 s from now */
};

/*
 * Creates epoch 1, or takes over the name of a group that is over with the next epoch (its uuid
 * stays, its segment is kept as retired: the last two; its waiters get -ESTALE; its pool file is
 * unlinked). -EBUSY: its leader lives (pid and state named). -EPROTO: the file under that name is
 * no segment of ours, or of another layout: nothing is touched. -ENOSPC with the bytes needed and
 * found. Also those of the system calls it takes, with a sentence: -EMFILE, -ENOMEM, -EAGAIN (no
 * thread), -EIO (no /proc).
 */
KVR_API int kvr_group_create(const char *name, const struct kvr_group_opts *opts,
			     struct kvr_group **ret_group);

/*
 * Attaches as `rank`, waiting for a living leader until the deadline (absolute CLOCK_MONOTONIC ns).
 * At once: -EPROTO: incompatible, both values named; -EPERM: not this user's; -EBUSY: a living
 * process has that rank; -EINVAL: the group has no such rank; -EINTR: a signal handler ran.
 * At the deadline, since a next epoch would have helped: -ETIMEDOUT: absent; -EOWNERDEAD: its
 * leader is dead; -EBUSY: that rank died or left in this epoch (a rank attaches once an epoch);
 * -ESTALE: taken over, and the new epoch is not there yet; the cause of an epoch that its leader
 * declared over.
 */
KVR_API int kvr_group_attach(const char *name, uint32_t rank, const struct kvr_group_opts *opts,
			     uint64_t deadline_ns, struct kvr_group **ret_group);

/*
 * Leaves in good order. The leader's close marks the group as left, wakes all, and removes the
 * name; only the segment of an epoch that was declared over (kvr_group_fail) stays to be looked at,
 * as that of a dead leader does, until the next kvr_group_create() or kvr_group_remove(). NULL is
 * fine. Never fails; waits until the watcher has stopped, and up to 5 s for another leader that is
 * looking at the name.
 */
KVR_API void kvr_group_close(struct kvr_group *group);

/*
 * Removes what a group that is over left behind in dir (NULL: /dev/shm): segment, pool, retired
 * segments. 0; -ENOENT: there is nothing; -EBUSY: its leader lives; -EPROTO: no segment of ours.
 */
KVR_API int kvr_group_remove(const char *name, const char *dir);

/*
 * 0 while all is well; else why waiting makes no sense, with a sentence that names who: -EOWNERDEAD
 * (the leader died, or the leader declared a rank dead), -ESTALE (newer epoch), -ESHUTDOWN, the
 * cause of kvr_group_fail(), -EBADMSG (a page of the leader's was overwritten), -EINVAL (a forked
 * child). A leader's call that follows a rank's death (by less than a millisecond; by 100 ms where
 * the kernel has no futex_waitv()) declares the epoch over, so that all ranks learn it;
 * kvr_channels_publish() makes it, too, as does the connector's engine without being asked.
 * While another leader takes over, which takes microseconds unless it is stopped then, a rank's
 * call returns 0 whatever happened: first must be known what counts.
 */
KVR_API int kvr_group_check(struct kvr_group *group);

/*
 * The leader ends the epoch, naming a rank (or KVR_MAX_RANKS for none) and a cause (-errno). All
 * waits of all ranks end with that cause; one that means "try again" (EINTR, EAGAIN, ETIMEDOUT,
 * EMSGSIZE) becomes -ECANCELED, so that nobody tries for ever. To go on: close, and create the next
 * epoch, whose number the ranks are told, and to which they attach again.
 */
KVR_API int kvr_group_fail(struct kvr_group *group, uint32_t rank, int cause);

/*
 * 0: processes can still attach. -ENOENT: somebody removed the group's file (RemoveIPC of systemd
 * when the user logs out, rm): who is in goes on, nobody else gets in; end the epoch and make a new
 * one. -ESTALE: and another group has the name. Some system calls: for a health check.
 */
KVR_API int kvr_group_visible(struct kvr_group *group);

/*
 * Says that this process will be busy until then ("compile", "graph capture"; at most 23 bytes are
 * kept), so that nobody takes it for stuck: sentences and ring-dump name it. until_ns 0 ends it.
 */
KVR_API int kvr_group_phase(struct kvr_group *group, const char *what, uint64_t until_ns);

/* What is known of a member. rank UINT32_MAX: the leader. Some system calls. 0 or -EINVAL. */
KVR_API int kvr_group_peer(struct kvr_group *group, uint32_t rank, struct kvr_peer *ret_peer);

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
