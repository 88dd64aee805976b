/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking into a group without disturbing it: the segment is opened read-only and read with pread;
 * no lock is taken, nothing is registered, nothing is mapped (a file that is truncated meanwhile is
 * an error, not a signal). Works on a live group, a dead one, a retired segment and a saved copy.
 * Of a copy that kvr_inspect_save() made, ages and processes are those of that moment.
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
	char setup[504];      /* the leader's fingerprint, lines "name=value" */
	uint64_t retired_by;  /* 0, or the epoch that replaced this one: */
	uint64_t retired_ns;  /* when, */
	uint32_t retired_pid; /* who did it, */
	uint32_t retired_how; /* and the old leader; kvr_inspect_retired_name() */
	uint64_t tick_done;
	uint64_t watermark[KVR_CHANNELS];
	uint32_t state; /* of the leader; kvr_inspect_state_name() */
	int32_t cause;	/* why the leader declared it failed */
	uint32_t blamed;
	uint32_t same_boot;	/* 0: ages are meaningless, the machine restarted */
	uint64_t now_ns;	/* ages are relative to it; CLOCK_MONOTONIC */
	uint64_t saved_unix_ns; /* 0, or when the copy was saved, CLOCK_REALTIME */
	/* operations that ended while a rank may still copy, and the slots of the pool they hold */
	uint64_t quarantined_ops, quarantined_slots;
	uint64_t bulk_used; /* bytes of large messages that a rank may still read */
	uint64_t ending;    /* 0; or the last tick + 1: the leader announced a good end */
};

struct kvr_inspect_proc {
	uint32_t rank; /* UINT32_MAX: the leader */
	uint32_t pid;
	uint32_t state;
	int32_t alive;	/* 1 alive, 0 nobody or left, -1 died */
	int32_t gone;	/* 1: its memory is given back; 0 not yet; -1 unknown */
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
	uint64_t oldest_unread;	   /* its number; 0: none that may be taken */
	uint64_t oldest_unread_ns; /* time it was published, 0 unknown or none */
};

struct kvr_inspect_message {
	uint32_t channel, rank, tag, len, seq;
	int32_t read; /* 1: the rank took it; 0: it may; -1: above the watermark, nobody may */
	/* 0: the payload is in the ring; 1: in the bulk area, where something else may stand once
	 * all its ranks took it or left; -1: it names no place there, payload is what it says */
	int32_t bulk;
	uint32_t reserved;
	uint64_t number;
	struct kvr_request request;
	uint8_t payload[64]; /* its first bytes; 0 behind them */
};

struct kvr_inspect_op {
	struct kvr_request request;
	uint32_t entry, kind, stage, value, blocks;
	uint32_t layered; /* a load by layers: */
	uint32_t layers;  /* layer groups that are in the pool */
	uint64_t begun_ns, stage_ns;
	uint64_t need, acked; /* ranks that this stage waits for; those that answered */
};

/* An event of a flight recorder; kvr_inspect_event_name(), kvr_inspect_event_text(). */
struct kvr_inspect_event {
	uint64_t index; /* in its recorder, from 0 */
	uint64_t ns, number, arg;
	struct kvr_request request; /* without its space */
	uint32_t rank, kind, channel, call, tag;
	int32_t result;
};

/* A set of processes that met in barriers and reductions. */
struct kvr_inspect_meet {
	uint64_t ranks;	  /* of the set */
	uint64_t arrived; /* those in `round`; the others are where they were before */
	uint64_t round;	  /* the newest that anybody is in, from 1; 0 none yet */
	uint32_t with_leader, leader_arrived;
	uint32_t values; /* 0: a barrier; those of a reduction */
	uint32_t differ; /* 1: members of that round brought different numbers of values */
};

/* A call that all processes must make alike. */
struct kvr_inspect_call {
	uint64_t index;		    /* among those of its kind, from 0 */
	uint64_t chain;		    /* hash of this and all before: equal ones had equal calls */
	struct kvr_request request; /* without its space */
	uint32_t keys;
	uint32_t reserved;
};
/* A process's log of one kind of them; kvr_inspect_alike_name(). */
struct kvr_inspect_log {
	uint32_t rank, kind;
	uint64_t count;
	uint64_t last_ns;
	uint32_t last_known; /* 0: `last` is not to be had */
	uint32_t reserved;
	struct kvr_inspect_call last;
};
/* The first call of a kind that a rank made otherwise than the leader. */
struct kvr_inspect_drift {
	uint32_t rank, kind;
	uint32_t exact;	  /* 0: they may have differed before, unseen */
	uint32_t noticed; /* 1: the rank wrote it down, at `ns`; 0: found in the logs just now */
	uint64_t index, ns;
	struct kvr_request request, its_request; /* the rank's, and the leader's */
	uint32_t keys, its_keys;		 /* 0 when noticed */
	uint64_t calls, its_calls;		 /* of that kind, so far */
};

/* A file of a group. */
struct kvr_inspect_file {
	const char *path, *name; /* of the group */
	uint32_t kind;		 /* enum kvr_inspect_file_kind */
	uint32_t reserved;
	uint64_t epoch; /* of a retired segment */
};
enum kvr_inspect_file_kind {
	KVR_FILE_SEGMENT = 1,
	KVR_FILE_RETIRED,
	KVR_FILE_POOL,
	KVR_FILE_LOCK /* of the name; there for moments */
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

/* Events that a process recorded so far. */
KVR_API int kvr_inspect_event_count(struct kvr_inspect *inspect, uint32_t rank,
				    uint64_t *ret_count);
/* Its events from index *next on, oldest first, at most max; *next becomes where to go on. Those
 * that were overwritten are left out: their indices are missing. Returns their number. */
KVR_API int kvr_inspect_events_next(struct kvr_inspect *inspect, uint32_t rank, uint64_t *next,
				    struct kvr_inspect_event *ret_events, uint32_t max);
/* "PUBLISH channel STORE number 17 request 5/0 tag ...". */
KVR_API void kvr_inspect_event_text(const struct kvr_inspect_event *event, char *ret_text,
				    size_t size);

/* Sets that met in barriers and reductions; at most (ranks + 1) x 8. Returns their number. */
KVR_API int kvr_inspect_meets(struct kvr_inspect *inspect, struct kvr_inspect_meet *ret_meets,
			      uint32_t max);
/* A log of calls made alike, and its last max calls as far as they can be read, oldest first.
 * Returns their number. */
KVR_API int kvr_inspect_log(struct kvr_inspect *inspect, uint32_t rank, uint32_t kind,
			    struct kvr_inspect_log *ret_log, struct kvr_inspect_call *ret_calls,
			    uint32_t max);
/* Did that rank make other calls of that kind than the leader? 1; 0: no, however far it is behind
 * or ahead. ret_drift has both counts in any case. */
KVR_API int kvr_inspect_drift(struct kvr_inspect *inspect, uint32_t rank, uint32_t kind,
			      struct kvr_inspect_drift *ret_drift);

#define KVR_ALIKE_KINDS 6u
KVR_API const char *kvr_inspect_state_name(uint32_t state);
KVR_API const char *kvr_inspect_call_name(uint32_t call);
KVR_API const char *kvr_inspect_op_name(uint32_t kind);
KVR_API const char *kvr_inspect_event_name(uint32_t kind);
KVR_API const char *kvr_inspect_alike_name(uint32_t kind);
/* What became of the leader of a retired epoch: "dead", "left", "killed", "fenced". */
KVR_API const char *kvr_inspect_retired_name(uint32_t how);

/*
 * Copies the segment to a file (0600, made under another name and then renamed), with the time and
 * what is known of each process: the copy is looked at as if it were now. -EEXIST unless `replace`;
 * -EINVAL: a name that a group's file has.
 */
KVR_API int kvr_inspect_save(struct kvr_inspect *inspect, const char *path, int replace);

/* Files of this user's groups in dir (NULL: /dev/shm): fn for each segment, current or retired. */
KVR_API int kvr_inspect_list(const char *dir, void (*fn)(void *arg, const char *path), void *arg);
/* All files of this user's groups in dir: fn for each. Returns their number. */
KVR_API int kvr_inspect_files(const char *dir,
			      void (*fn)(void *arg, const struct kvr_inspect_file *file),
			      void *arg);

#ifdef __cplusplus
}
#endif
#endif
