/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The long sentences of channels. A wrong tag, or a message that does not come, is how two sides
 * find out that they ran apart; which of them did is seen only when the counts and histories of
 * both stand side by side, and this is where both are at hand.
 */
#include <errno.h>
#include <stdio.h>

#include "atomic.h"
#include "channel_priv.h"
#include "clock.h"
#include "err.h"

#define HISTORY 4u     /* events of each side in a sentence */
#define AGE_EVENTS 64u /* events that are searched for a message */

typedef unsigned long long ull;

static double ms_since(uint64_t ns)
{
	uint64_t now = kvr_now();

	return now > ns ? (double)(now - ns) / 1e6 : 0;
}

static const struct kvr_ring_writer *writer_of(const struct kvr_channels *c, uint32_t channel,
					       uint32_t rank)
{
	return &c->writer[channel * c->g->layout.ranks + rank];
}

/* Messages that were published to this rank (rings start at 0). */
static uint64_t sent_to(const struct kvr_channels *c, uint32_t channel, uint32_t rank)
{
	const struct kvr_ring_writer *w = writer_of(c, channel, rank);

	return w->published - w->published_extra;
}

/* The end of the sentence about a rank that is waited for. */
static int add_slow(const struct kvr_channels *c, uint32_t rank, uint64_t taken, uint64_t sent)
{
	const struct kvr_group *g = c->g;
	uint64_t progress = kvr_load_relaxed(&kvr_group_rank_page(g, rank)->proc.progress_ns);
	char who[256];

	kvr_group_describe(g, rank, who, sizeof who);
	if (taken > sent)
		kvr_fail_more(0,
			      " (its page says that it took %llu messages, and %llu were published "
			      "to it: it was overwritten)",
			      (ull)taken, (ull)sent);
	if (progress)
		kvr_fail_more(0, ", and made its last progress %.1f ms ago", ms_since(progress));
	kvr_fail_more(0,
		      ": %s. Nothing was published to any rank; wait longer, or end the epoch with "
		      "kvr_group_fail()",
		      who);
	kvr_group_add_unlinked(g);
	return -ETIMEDOUT;
}

int kvr_explain_full(const struct kvr_channels *c, uint32_t channel, uint32_t rank)
{
	const struct kvr_ring_writer *w = writer_of(c, channel, rank);
	const struct kvr_group *g = c->g;
	uint64_t taken = kvr_load_relaxed(&kvr_group_rank_page(g, rank)->taken[channel]);
	uint64_t sent = sent_to(c, channel, rank);

	KVR_FAIL(-ETIMEDOUT,
		 "kvr_channels_publish: rank %u does not read channel %s: it is %llu messages and "
		 "%llu bytes behind, in a ring of %u bytes",
		 rank, kvr_channel_name(channel), (ull)(taken < sent ? sent - taken : 0),
		 (ull)(w->published - w->reader) * KVR_RING_CELL, g->layout.ring_bytes);
	return add_slow(c, rank, taken, sent);
}

int kvr_explain_bulk(const struct kvr_channels *c, uint32_t rank, uint32_t len)
{
	const struct kvr_bulk *b = &c->bulk;
	uint64_t i = b->tail & (b->extents - 1);
	const struct kvr_extent *e = &b->extent[i];
	const struct kvr_group *g = c->g;
	uint64_t taken = kvr_load_relaxed(&kvr_group_rank_page(g, rank)->taken[e->channel]);
	uint64_t sent = sent_to(c, e->channel, rank);
	int took = taken >= b->at[i * g->layout.ranks + rank].sent;

	KVR_FAIL(-ETIMEDOUT,
		 "kvr_channels_publish: rank %u does not read channel %s: it %s message %llu of %u "
		 "bytes, published %.1f ms ago, which is the oldest of %llu in the bulk area of %u "
		 "bytes (kvr_group_opts.bulk_bytes), and there is no room for %u; it is %llu "
		 "messages behind there",
		 rank, kvr_channel_name(e->channel),
		 took ? "took and has not given back (its next call on the channel does)"
		      : "has not taken",
		 (ull)e->number, e->len, ms_since(e->ns), (ull)(b->head - b->tail), b->bytes, len,
		 (ull)(taken < sent ? sent - taken : 0));
	return add_slow(c, rank, taken, sent);
}

static const void *recorder_of(const struct kvr_group *g, uint32_t rank)
{
	if (rank == KVR_LEADER)
		return g->seg + g->layout.leader_rec;
	return g->seg + kvr_layout_rank(&g->layout, rank) + g->layout.rank_rec;
}

static uint32_t last_events(const struct kvr_channels *c, uint32_t rank, uint32_t channel,
			    struct kvr_event *ret, uint32_t max)
{
	return kvr_recorder_last(recorder_of(c->g, rank), c->g->layout.events, (int)channel, ret,
				 max);
}

static void add_events(const struct kvr_channels *c, uint32_t rank, uint32_t channel)
{
	struct kvr_event e[HISTORY];
	uint32_t n = last_events(c, rank, channel, e, HISTORY);
	uint64_t now = kvr_now();

	kvr_fail_more(0, " %s's last events on it:%s",
		      rank == KVR_LEADER ? "The leader" : "This rank", n ? "" : " none.");
	for (uint32_t i = 0; i < n; i++) {
		char text[160];

		kvr_event_text(&e[i], now, text, sizeof text);
		kvr_fail_more(0, " %s%s", text, i + 1 < n ? ";" : ".");
	}
}

static void add_counts(const struct kvr_channels *c, uint32_t channel)
{
	const struct kvr_group *g = c->g;
	const uint8_t *ring = g->seg + kvr_layout_ring(&g->layout, channel, g->rank);
	uint32_t published =
		(uint32_t)kvr_load_relaxed((const void *)ring); /* the control line's */
	uint64_t taken = kvr_load_relaxed(&kvr_group_rank_page(g, g->rank)->taken[channel]);
	uint64_t watermark = kvr_group_watermark(g, channel);

	kvr_fail_more(0,
		      " On %s the leader published %llu messages, %llu of them to this rank, which "
		      "took %llu.",
		      kvr_channel_name(channel), (ull)watermark,
		      (ull)kvr_max(taken, kvr_near(taken, published)), (ull)taken);
}

static int add_both(const struct kvr_channels *c, uint32_t channel, int err)
{
	add_events(c, KVR_LEADER, channel);
	add_events(c, c->g->rank, channel);
	return err;
}

/* A request that asks twice waits for what it had. */
static void add_taken_before(const struct kvr_channels *c, uint32_t channel, uint32_t tag,
			     const struct kvr_request *request)
{
	struct kvr_event e[AGE_EVENTS];
	uint32_t n = last_events(c, c->g->rank, channel, e, AGE_EVENTS);

	while (n--)
		if (e[n].kind == KVR_EV_TAKE && e[n].tag == tag && e[n].request == request->id &&
		    e[n].attempt == request->attempt) {
			kvr_fail_more(0, " This rank took it before, as number %llu, %.1f ms ago.",
				      (ull)e[n].number, ms_since(e[n].ns));
			return;
		}
}

int kvr_explain_late(const struct kvr_channels *c, uint32_t channel, uint32_t tag,
		     const struct kvr_request *request)
{
	kvr_fail_more(0, ".");
	if (request) {
		kvr_fail_more(0,
			      " Awaited: %s (%u) of request %llu/%u; messages kept for others: %u.",
			      kvr_tag_name(tag), tag, (ull)request->id, request->attempt,
			      c->inbox[channel].stash.count);
		add_taken_before(c, channel, tag, request);
	} else if (tag != KVR_TAG_NONE) {
		kvr_fail_more(0, " Awaited: %s (%u).", kvr_tag_name(tag), tag);
	}
	add_counts(c, channel);
	return add_both(c, channel, -ETIMEDOUT);
}

static void add_age(const struct kvr_channels *c, uint32_t channel, uint64_t number)
{
	struct kvr_event e[AGE_EVENTS];
	uint32_t n = last_events(c, KVR_LEADER, channel, e, AGE_EVENTS);

	while (n--)
		if (e[n].kind == KVR_EV_PUBLISH && e[n].number == number) {
			kvr_fail_more(0, " It was published %.1f ms ago.", ms_since(e[n].ns));
			return;
		}
}

/*
 * Number of the first message with this tag that waits in the ring, 0: none; *ret_before: how many
 * come before it. Consumes nothing.
 */
static uint64_t look_ahead(struct kvr_channels *c, uint32_t channel, uint32_t tag,
			   uint32_t *ret_before)
{
	struct kvr_inbox *in = &c->inbox[channel], before = *in;
	struct kvr_arrival a;
	uint64_t found = 0;

	*ret_before = 0;
	while (!found && kvr_channels_front(c, channel, &a) == 1) {
		in->last = a.head.number; /* the numbers must rise */
		if (a.tag == tag)
			found = a.head.number;
		else
			++*ret_before;
	}
	/* Also of what cannot be: it is met again, when it is its turn. */
	*in = before;
	return found;
}

/* Which side is ahead? The tag comes later, or was taken before. */
static void add_cause(const struct kvr_channels *c, uint32_t channel, uint32_t tag, uint64_t found,
		      uint32_t before)
{
	struct kvr_event e[AGE_EVENTS];
	uint32_t n = last_events(c, c->g->rank, channel, e, AGE_EVENTS);

	if (found) {
		kvr_fail_more(
			0,
			" Likely cause: the leader is ahead: %s (%u) comes as number %llu, after "
			"%u others that this rank should have taken first.",
			kvr_tag_name(tag), tag, (ull)found, before);
		return;
	}
	while (n--)
		if (e[n].kind == KVR_EV_TAKE && e[n].tag == tag) {
			kvr_fail_more(
				0,
				" Likely cause: this rank asked once too often: it took %s (%u) "
				"as number %llu, and no further one is there.",
				kvr_tag_name(tag), tag, (ull)e[n].number);
			return;
		}
	kvr_fail_more(0,
		      " Likely cause: the two follow different protocols: no %s (%u) is on this "
		      "channel.",
		      kvr_tag_name(tag), tag);
}

int kvr_explain_mismatch(struct kvr_channels *c, uint32_t channel, const struct kvr_arrival *a,
			 uint32_t tag)
{
	uint32_t before;
	uint64_t found = look_ahead(c, channel, tag, &before);
	char leader[256];

	kvr_group_describe(c->g, KVR_LEADER, leader, sizeof leader);
	KVR_FAIL(
		-EPROTO,
		"kvr_channels_expect: rank %u, channel %s: message %llu carries %s (%u) for request "
		"%llu/%u, expected was %s (%u). It stays where it is: take it, or expect its tag.",
		c->g->rank, kvr_channel_name(channel), (ull)a->head.number, kvr_tag_name(a->tag),
		a->tag, (ull)a->head.request, a->head.attempt, kvr_tag_name(tag), tag);
	add_age(c, channel, a->head.number);
	add_counts(c, channel);
	add_cause(c, channel, tag, found, before);
	kvr_fail_more(0, " Now: %s.", leader);
	return add_both(c, channel, -EPROTO);
}
