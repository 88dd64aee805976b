/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels: tagged messages from the leader to every rank, or to a set. One ring a channel and
 * rank; what is larger than an eighth of a ring goes through the group's bulk area, where it is
 * written once for all ranks.
 *
 * A publish is all or none: room in every ring first, then every copy, then one word, the channel's
 * *watermark*. Ranks act on nothing above it, so a leader that dies between two copies leaves equal
 * histories behind.
 *
 *   M1 leader: store-release of watermark[channel]    M2 rank: load-acquire of it
 *      without it: a rank acts on a message that another rank never gets
 *
 * Most users want connector.h; the raw calls are for a caller's own channels (KVR_CH_USER0..3) and
 * for those who port a protocol that counts on order. One thread at a time may use a handle.
 */
#ifndef KVRING_CHANNEL_H
#define KVRING_CHANNEL_H

#include "kvring/group.h"
#include "kvring/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvr_channels;

struct kvr_message {
	uint32_t channel;
	uint32_t tag;
	uint64_t number; /* of the publish in its channel, from 1 */
	struct kvr_request request;
	/* Valid until the next call on this channel. In the leader's pages (or a copy, from
	 * take_for): input, which a stray pointer of the leader's may change at any time. */
	const void *data;
	uint32_t len;
	uint32_t reserved;
};

/*
 * All channels of this process's side of a group. The group stays the caller's and must outlive it.
 * Once an epoch and process: -EBUSY when messages went through already.
 */
KVR_API int kvr_channels_open(struct kvr_group *group, struct kvr_channels **ret_channels);
KVR_API void kvr_channels_close(struct kvr_channels *channels);

/* Largest payload of one message: that of a ring (kvr_ring_max_payload() less 32), or a quarter of
 * the bulk area, whichever is more. */
KVR_API uint32_t kvr_channels_max_payload(const struct kvr_channels *channels);

/*
 * Leader: publishes to the ranks in `set` (bit r: rank r; 0: all). Waits for room until the
 * deadline; a deadline of 0 polls (-EAGAIN). request may be NULL. 0; -ETIMEDOUT naming the rank
 * that does not read, its lag and age: nothing was published then; -EMSGSIZE; -EOWNERDEAD and the
 * like from kvr_group_check(), also when a rank is found dead while its ring is full; -EBADMSG
 * naming a rank whose cursor is impossible: nothing was published, the others can still be
 * published to, but for what needs the room of a large message that this rank has. A rank that left
 * in good order is never waited for.
 *
 * The bulk area is one for all channels and ranks, and its messages leave it in the order in which
 * they came: one that a rank does not read, or took and still looks at, holds up all that came
 * later. So a rank that takes a large message, and then nothing more from that channel for a while,
 * gives it back with kvr_channels_forget_upto(channels, channel, 0).
 */
KVR_API int kvr_channels_publish(struct kvr_channels *channels, uint32_t channel, uint64_t set,
				 uint32_t tag, const struct kvr_request *request, const void *data,
				 uint32_t len, uint64_t deadline_ns);

/*
 * Rank: the next message of a channel, waiting until the deadline; a deadline of 0 polls. It is
 * given back to the ring by the next call on this channel. 0; -ETIMEDOUT (-EAGAIN when polling,
 * also while another leader takes over, which hides what is there for some microseconds: who drains
 * goes on until the call says why the epoch is over);
 * -EBADMSG: what is in the ring no leader wrote, or what the leader published is not there. Then
 * the channel is out of use, and later calls repeat the first sentence; ...
 */
KVR_API int kvr_channels_take(struct kvr_channels *channels, uint32_t channel, uint64_t deadline_ns,
			      struct kvr_message *ret_message);

/*
 * Rank: as take, but the message must carry `tag`. Another tag gives -EPROTO; the message stays
 * where it is and the next call sees it again. The sentence has rank, channel, number, both tags,
 * both sides' counts and ages, and the last events of the leader and of this rank on that channel.
 */
KVR_API int kvr_channels_expect(struct kvr_channels *channels, uint32_t channel, uint32_t tag,
				uint64_t deadline_ns, struct kvr_message *ret_message);

/*
 * Rank: the message for this request (id, space, attempt) and tag. Messages for other requests that
 * are met on the way are kept (up to KVR_STASH messages a channel) for later calls of take_for
 * alone; one that is never asked for expires when the stash is full, the oldest first, counted and
 * recorded, and never answers another request. -ENOMEM: no memory to keep one; it stays in the
 * ring.
 */
#define KVR_STASH 64u
KVR_API int kvr_channels_take_for(struct kvr_channels *channels, uint32_t channel, uint32_t tag,
				  const struct kvr_request *request, uint64_t deadline_ns,
				  struct kvr_message *ret_message);

/* Rank: fn is told of each message that expires or is forgotten, before it is gone, from within the
 * call that drops it; it must not call on that channel. NULL: nobody. */
KVR_API void kvr_channels_on_drop(struct kvr_channels *channels,
				  void (*fn)(void *arg, const struct kvr_message *message),
				  void *arg);

/* Rank: fn is called whenever a take of this handle looks again while it waits, so that a layer
 * above can take from other channels, with a deadline of 0: a leader that waits for room in one of
 * them answers in none. NULL: nobody. */
KVR_API void kvr_channels_on_wait(struct kvr_channels *channels, void (*fn)(void *arg), void *arg);

/* Rank: drops the messages of this request that are stashed or in the ring (after an abort).
 * Returns their number. */
KVR_API int kvr_channels_forget(struct kvr_channels *channels, uint32_t channel,
				const struct kvr_request *request);

/*
 * Rank: drops the messages up to this number (of the publish) that are stashed or in the ring, the
 * oldest first: after a reset, whose message says how far the leader was on each channel, none of
 * them is to answer anything. Returns their number, or -EBADMSG as take does, when some may be
 * left. 0: none, but like each call on the channel it gives back the message that was taken last.
 */
KVR_API int kvr_channels_forget_upto(struct kvr_channels *channels, uint32_t channel,
				     uint64_t number);

/*
 * Rank: calls fn for every message that is there now, in order. Returns their number or -errno. fn
 * must not call on this channel; the message is valid until it returns.
 */
KVR_API int kvr_channels_drain(struct kvr_channels *channels, uint32_t channel,
			       void (*fn)(void *arg, const struct kvr_message *message), void *arg);

/*
 * Barrier: waits until every member has called. The members are the ranks in `ranks` (bit r: rank
 * r; 0: all of the group), and with_leader the leader's own handle, too. All must say the same, and
 * only members may call. (A leader that is also a rank, in the same process, takes part as that
 * rank alone.) Members of different sets meet independently; a process can be a member of KVR_MEETS
 * sets in an epoch, however often it meets there.
 *
 * These are words in the members' own pages: no message, no ring, nothing that the leader must do.
 * 0 says that all have arrived, an error nothing about what the others get:
 *
 * -ETIMEDOUT names those who have not arrived; -EINTR: a signal handler ran; -EAGAIN: a deadline of
 * 0, which polls. This process has arrived all the same, and calling again with the same arguments
 * goes on with the same round (other numbers of values are -EINVAL, other values are not looked
 * at). -ESHUTDOWN: a member left, and will not come; -EOWNERDEAD: one is dead; and the causes of
 * kvr_group_check(). -EPROTO: another member is in a barrier while this one reduces, or reduces
 * another number of values; -EBADMSG: what another's page says is impossible. After these two the
 * set is out of use, and later calls repeat the first sentence. -ENOSPC: too many sets. -EBUSY:
 * this process met in this epoch already, through a handle of channels that it has closed.
 */
#define KVR_MEETS 8u
KVR_API int kvr_channels_barrier(struct kvr_channels *channels, uint64_t ranks, int with_leader,
				 uint64_t deadline_ns);

/*
 * The same, and ret_min[i] is the smallest mine[i] of all members, for i below n. n is 1 to
 * KVR_MEET_VALUES. ret_min is written only with 0, and may be `mine`.
 */
#define KVR_MEET_VALUES 6u
KVR_API int kvr_channels_min_reduce(struct kvr_channels *channels, uint64_t ranks, int with_leader,
				    const int64_t *mine, uint32_t n, int64_t *ret_min,
				    uint64_t deadline_ns);

#ifdef __cplusplus
}
#endif
#endif
