/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking into a group without disturbing it: the segment is opened read-only and read with pread;
 * no lock is taken, nothing is registered, nothing is mapped (a file that is truncated meanwhile is
 * an error, not a signal). Works on a live group, a dead one, a retired segment and a saved copy.
 *
 * One thread at a time may use a handle. Everything read is bounded; nonsense gives -EBADMSG.
 */
#ifndef KVRING_INSPECT_H
#define KVRING_INSPECT_H

#include "kvring/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvr_inspect;

struct kvr_inspect_group {
	char name[KVR_NAME_MAX];
	char library[24];
	uint8_t uuid[16];
	uint64_t epoch;
	uint64_t total_bytes;
	uint64_t created_ns;
	uint32_t version;
	uint32_t ranks;
	uint32_t ring_bytes;
	uint32_t ops;
	uint32_t events;
	uint32_t bulk_bytes;
	uint32_t creator_pid;
	struct kvr_model model;
	char setup[504];     /* the leader's fingerprint, lines "name=value" */
	uint64_t retired_by; /* 0, or the epoch that replaced this one */
	uint64_t tick_done;
	uint64_t watermark[KVR_CHANNELS];
	uint32_t state; /* of the leader; kvr_inspect_state_name() */
	int32_t cause;	/* why the leader declared it failed */
	uint32_t blamed;
	uint32_t same_boot; /* 0: ages are meaningless, the machine restarted */
	/* operations that ended while a rank may still copy, and the slots of the pool they hold */
	uint64_t quarantined_ops, quarantined_slots;
	uint64_t bulk_used; /* bytes of large messages that a rank may still read */
};

struct kvr_inspect_proc {
	uint32_t rank; /* UINT32_MAX: the leader */
	uint32_t pid;
	uint32_t state;
	int32_t alive;	/* 1 alive, 0 nobody or left, -1 died */
	uint32_t peer;	/* enum kvr_peer_state: also stopped, dumping core */
	char phase[24]; /* name of its long phase */
	uint32_t in_call;
	uint32_t call_channel;
	uint64_t call_ns;
	uint64_t progress_ns;
	uint64_t phase_until;
	uint64_t tick_seen;
	uint64_t lost_wakes, expired, mismatches;
	/* not applied: about operations that ended, told twice, never known */
	uint64_t late, duplicate, foreign;
	uint64_t calls[32];
	uint64_t taken[KVR_CHANNELS];
};

struct kvr_inspect_channel {
	uint32_t channel;
	uint32_t rank;
	uint64_t published; /* messages put into this rank's ring */
	uint64_t taken;	    /* messages the rank took */
	uint64_t writer_cells, reader_cells;
	uint64_t oldest_unread_ns; /* time it was published, 0 unknown or none */
};

struct kvr_inspect_message {
	uint32_t channel, rank, tag, len, seq;
	int32_t read; /* 1: the rank took it; 0: it may; -1: above the watermark, nobody may */
	uint64_t number;
	struct kvr_request request;
	uint8_t payload[64]; /* its first bytes */
};

struct kvr_inspect_op {
	struct kvr_request request;
	uint32_t entry, kind, stage, value, blocks;
	uint32_t layered; /* a load by layers: */
	uint32_t layers;  /* layer groups that are in the pool */
	uint64_t begun_ns, stage_ns;
	uint64_t need, acked; /* ranks that this stage waits for; those that answered */
};

/* path: a file; or name (dir NULL: /dev/shm). Waits for nothing. -ENOENT; -EPROTO "not a kvring
 * segment" with the reason, or another version with both values; -EACCES. */
KVR_API int kvr_inspect_open(const char *path, struct kvr_inspect **ret_inspect);
KVR_API int kvr_inspect_open_name(const char *dir, const char *name,
				  struct kvr_inspect **ret_inspect);
KVR_API void kvr_inspect_close(struct kvr_inspect *inspect);

KVR_API int kvr_inspect_group(struct kvr_inspect *inspect, struct kvr_inspect_group *ret_group);
/* rank UINT32_MAX: the leader. */
KVR_API int kvr_inspect_proc(struct kvr_inspect *inspect, uint32_t rank,
			     struct kvr_inspect_proc *ret_proc);
KVR_API int kvr_inspect_channel(struct kvr_inspect *inspect, uint32_t channel, uint32_t rank,
				struct kvr_inspect_channel *ret_channel);
/* The last max messages still readable in that ring, oldest first. Returns their number. */
KVR_API int kvr_inspect_messages(struct kvr_inspect *inspect, uint32_t channel, uint32_t rank,
				 struct kvr_inspect_message *ret_messages, uint32_t max);
/* Operations that have not ended, or hold slots that a rank may still copy. Returns their number.
 */
KVR_API int kvr_inspect_ops(struct kvr_inspect *inspect, struct kvr_inspect_op *ret_ops,
			    uint32_t max);
/* The last max recorder events of a process as text lines with age, oldest first, each passed to
 * fn. channel -1: all. Returns their number. */
KVR_API int kvr_inspect_events(struct kvr_inspect *inspect, uint32_t rank, int channel,
			       uint32_t max, void (*fn)(void *arg, uint64_t ns, const char *line),
			       void *arg);

KVR_API const char *kvr_inspect_state_name(uint32_t state);
KVR_API const char *kvr_inspect_call_name(uint32_t call);
KVR_API const char *kvr_inspect_op_name(uint32_t kind);

/* Files of this user's groups in dir (NULL: /dev/shm): fn for each segment, current or retired. */
KVR_API int kvr_inspect_list(const char *dir, void (*fn)(void *arg, const char *path), void *arg);

#ifdef __cplusplus
}
#endif
#endif
