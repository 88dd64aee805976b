/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of channels: channel.c opens and publishes (the leader's half), channel_take.c takes (a
 * rank's half), channel_stash.c keeps messages that were met before anybody asked for them, and
 * channel_explain.c writes the long sentences.
 */
#ifndef KVR_CHANNEL_PRIV_H
#define KVR_CHANNEL_PRIV_H

#include "channel_meet.h"
#include "group.h"
#include "kvring/channel.h"
#include "kvring/ring.h"
#include "layout.h"
#include "util.h"

/* A message at the front of a ring: head copied once and checked, payload still in the ring. */
struct kvr_arrival {
	struct kvr_msg_head head;
	const void *data;
	uint32_t len;
	uint32_t tag;
};

/* A message kept for a later take_for. */
struct kvr_stashed {
	struct kvr_request request;
	uint64_t number;
	uint32_t tag;
	uint32_t len;
	uint32_t room; /* bytes of data, kept for the next one */
	int used;
	void *data;
};

struct kvr_stash {
	struct kvr_stashed *entries; /* KVR_STASH, made when first needed */
	uint32_t count;
};

/* A rank's side of one channel. */
struct kvr_inbox {
	struct kvr_ring_reader reader;
	struct kvr_stash stash;
	struct kvr_stashed *lent; /* the caller still looks at this one */
	int held;		  /* the caller still looks at the message that was peeked */
	uint64_t shown;		  /* the cursor that the leader's bell was last rung for */
	uint64_t last;		  /* number of the newest message that left the ring */
	uint64_t taken;		  /* messages that left the ring */
	uint32_t polls;		  /* of an empty ring, since the start */
	char broken[768];	  /* the first evidence, once the channel is out of use */
	char what[48];		  /* for kvr_group_wait(): made once, not in each call */
};

struct kvr_channels {
	struct kvr_group *g;
	uint32_t max_payload;
	struct kvr_ring_writer *writer;	  /* leader: [channel][rank] */
	uint64_t published[KVR_CHANNELS]; /* leader: its page is only told of these */
	uint32_t whole; /* rank, bit c: all that is published on channel c goes to every rank */
	struct kvr_inbox inbox[KVR_CHANNELS];			       /* rank */
	void (*dropped)(void *arg, const struct kvr_message *message); /* rank; may be NULL */
	void *dropped_arg;
	void (*waits)(void *arg); /* rank; may be NULL */
	void *waits_arg;
	struct kvr_meets meets;
};

/* channel.c: both halves. */

/* Checks what all calls check: is there such a channel, and may this process make this call? */
int kvr_channels_begin(const struct kvr_channels *c, const char *name, enum kvr_call call,
		       uint32_t channel);
/* kvr_group_wait(), shown to others as being in this call unless another one contains it. */
int kvr_channels_wait(struct kvr_group *g, enum kvr_call call, uint32_t channel,
		      int (*ready)(void *), void *arg, uint64_t deadline_ns, const char *what);
/* One event about this message; also the sign of life that it is. */
void kvr_channels_record(struct kvr_group *g, enum kvr_event_kind kind, enum kvr_call call,
			 const struct kvr_message *m, uint64_t arg);
/* Counts a call that need not wait. One that does is counted by kvr_group_enter(), one inside
 * another call is part of that. */
void kvr_channels_count(struct kvr_group *g, enum kvr_call call);
struct kvr_request kvr_channels_request(const struct kvr_msg_head *head);

/* channel_take.c. */

/*
 * The message at the front of the ring, if there is one and the leader finished it on all ranks: 1;
 * else 0, or -EBADMSG. It is peeked then; whoever does not want it rewinds.
 */
int kvr_channels_front(struct kvr_channels *c, uint32_t channel, struct kvr_arrival *ret);
/*
 * After nothing was at the front: 0, or -EBADMSG when there must be a message, since the leader's
 * counts say so. A healthy leader never causes it, wherever it was stopped.
 */
int kvr_channels_lost(struct kvr_channels *c, uint32_t channel);
/* Of a channel of kvr_channels_whole(): 1: all that was published was taken; 0: there is more in
 * the ring; or -EBADMSG, as above. */
int kvr_channels_drained(struct kvr_channels *c, uint32_t channel);
/* Rank: on these channels (bit c) every publish goes to all ranks. */
void kvr_channels_whole(struct kvr_channels *c, uint32_t channels);

/* channel_stash.c: private memory alone. */

/* The message that has waited longest, when there is no room for another one; else NULL. */
struct kvr_stashed *kvr_stash_full(struct kvr_stash *s);
/* Copies a message in; there must be room. 0 or -ENOMEM. */
int kvr_stash_put(struct kvr_stash *s, const struct kvr_arrival *a);
/* The oldest with this tag and request, or NULL. */
struct kvr_stashed *kvr_stash_find(struct kvr_stash *s, uint32_t tag,
				   const struct kvr_request *request);
void kvr_stash_drop(struct kvr_stash *s, struct kvr_stashed *entry);
/* Any message of this request, or NULL. */
struct kvr_stashed *kvr_stash_of(struct kvr_stash *s, const struct kvr_request *request);
/* The oldest message, if its number is not above this one; else NULL. */
struct kvr_stashed *kvr_stash_upto(struct kvr_stash *s, uint64_t number);
void kvr_stash_free(struct kvr_stash *s);

/* channel_explain.c: each sets the sentence and returns the error. */

/* Leader: `rank` does not read. */
int kvr_explain_full(const struct kvr_channels *c, uint32_t channel, uint32_t rank);
/* Rank: another tag than the expected one is at the front; it was rewound. */
int kvr_explain_mismatch(struct kvr_channels *c, uint32_t channel, const struct kvr_arrival *a,
			 uint32_t tag);
/* Rank: appends counts and histories to the sentence of a wait that ran out of time. */
int kvr_explain_late(const struct kvr_channels *c, uint32_t channel, uint32_t tag,
		     const struct kvr_request *request);

#endif
