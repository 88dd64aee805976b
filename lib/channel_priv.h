/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of channels: channel.c opens and publishes (the leader's half), channel_bulk.c has the
 * room for large messages, channel_take.c takes (a rank's half), channel_stash.c keeps messages
 * that were met before anybody asked for them, and channel_explain.c writes the long sentences.
 */
#ifndef KVR_CHANNEL_PRIV_H
#define KVR_CHANNEL_PRIV_H

#include "channel_meet.h"
#include "group.h"
#include "kvring/channel.h"
#include "kvring/ring.h"
#include "layout.h"
#include "util.h"

#define KVR_BULK_ALIGN 64u /* of a payload in the bulk area */

/* A message at the front of a ring: head copied once and checked, payload still in the ring or in
 * the bulk area. */
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
	uint32_t keep;	/* bytes that an entry keeps for the next one */
	uint64_t bytes; /* in all messages here, */
	uint64_t limit; /* and at most */
};

/* A rank's side of one channel. */
struct kvr_inbox {
	struct kvr_ring_reader reader;
	struct kvr_stash stash;
	struct kvr_stashed *lent; /* the caller still looks at this one */
	int held;		  /* the caller still looks at the message that was peeked, */
	int held_bulk;		  /* whose payload is in the bulk area */
	uint64_t shown;		  /* the cursor that the leader's bell was last rung for */
	uint64_t last;		  /* number of the newest message that left the ring */
	uint64_t taken;		  /* messages that left the ring */
	uint32_t polls;		  /* of an empty ring, since the start */
	char broken[768];	  /* the first evidence, once the channel is out of use */
	char what[48];		  /* for kvr_group_wait(): made once, not in each call */
};

/* A payload in the bulk area that somebody may still read. */
struct kvr_extent {
	uint64_t end;	 /* as `pos` of struct kvr_bulk */
	uint64_t number; /* of its message in its channel */
	uint64_t ns;	 /* when it was published */
	uint64_t waits;	 /* ranks that did not give it back, as far as was looked */
	uint32_t channel;
	uint32_t len;
};
/* Where its message is in the ring of one rank. */
struct kvr_extent_at {
	uint64_t passed; /* the ring's position behind it */
	uint64_t sent;	 /* messages in that ring up to it */
};

/*
 * Leader: the bulk area, filled round and round. Extents go in the order in which they came, so one
 * that a rank does not give back holds up all behind it; and a payload lies in one piece, so up to
 * a message's length is left out at the area's end. Positions are counted since the start.
 */
struct kvr_bulk {
	uint8_t *mem;
	uint64_t pos;	/* next byte to give out; a multiple of KVR_BULK_ALIGN */
	uint64_t freed; /* all before it may be written again */
	struct kvr_extent *extent;
	struct kvr_extent_at *at; /* [extent][rank] */
	uint64_t head, tail;	  /* extents that came, and that went */
	uint32_t bytes;		  /* of the area; a power of two */
	uint32_t extents;	  /* at most at a time; a power of two */
};

struct kvr_channels {
	struct kvr_group *g;
	uint32_t max_payload;		  /* of a message, wherever it lies, */
	uint32_t inline_payload;	  /* and in the ring */
	struct kvr_ring_writer *writer;	  /* leader: [channel][rank] */
	struct kvr_bulk bulk;		  /* leader */
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
/* Largest payload that goes through a ring. */
uint32_t kvr_channels_inline_payload(const struct kvr_channels *channels);
/* Who left in good order reads nothing any more, and nobody waits for it. */
static inline int kvr_channels_left(const struct kvr_group *g, uint32_t rank)
{
	/* G2, pairs with G1 */
	return kvr_load_acquire32(&kvr_group_rank_page(g, rank)->proc.state) == KVR_PROC_LEFT;
}

/* channel_bulk.c: the leader's. */

int kvr_bulk_open(struct kvr_channels *c);
void kvr_bulk_close(struct kvr_channels *c);
/* Is there room for so many bytes? 1; 0, and *ret_rank has not given back the oldest message; or
 * -EBADMSG, with the sentence: that rank's cursor is impossible. Takes nothing. */
int kvr_bulk_room(struct kvr_channels *c, uint32_t len, uint32_t *ret_rank);
/* Copies a payload in, for which there must be room, and returns its offset in the area. Each rank
 * of the set then gets a message that names it: kvr_bulk_sent(). */
uint64_t kvr_bulk_put(struct kvr_channels *c, uint32_t channel, uint64_t set, uint64_t number,
		      const void *data, uint32_t len);
/* The message that names the newest payload is committed to the ring of this rank. */
void kvr_bulk_sent(struct kvr_channels *c, uint32_t rank);

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

/* Rank: the message that the last call on that channel gave is not needed any more. A large one
 * that is kept while this rank waits for something else holds up the leader's next ones. */
void kvr_channels_give_back(struct kvr_channels *c, uint32_t channel);
/*
 * Rank: drops the oldest message of that tag and request that is stashed or in the ring, if fn
 * (NULL: always) says 1 to it. Returns how many. Nothing that is not there yet.
 */
int kvr_channels_forget_if(struct kvr_channels *c, uint32_t channel, uint32_t tag,
			   const struct kvr_request *request,
			   int (*fn)(void *arg, const struct kvr_message *message), void *arg);

/* channel_stash.c: private memory alone. */

/* `payload`: the largest of one message, and of one in a ring. */
void kvr_stash_init(struct kvr_stash *s, uint32_t payload, uint32_t inline_payload);
/* The message that has waited longest, when there is no room for another one of `len` bytes; else
 * NULL. */
struct kvr_stashed *kvr_stash_full(struct kvr_stash *s, uint32_t len);
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
/* Leader: `rank` holds the oldest message in the bulk area, which has no room for `len` bytes. */
int kvr_explain_bulk(const struct kvr_channels *c, uint32_t rank, uint32_t len);
/* Rank: another tag than the expected one is at the front; it was rewound. */
int kvr_explain_mismatch(struct kvr_channels *c, uint32_t channel, const struct kvr_arrival *a,
			 uint32_t tag);
/* Rank: appends counts and histories to the sentence of a wait that ran out of time. */
int kvr_explain_late(const struct kvr_channels *c, uint32_t channel, uint32_t tag,
		     const struct kvr_request *request);

#endif
