/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels, the leader's half: rings, watermarks and the group's waiting put together. The ring
 * knows bytes, the group knows who lives; here they become messages that all ranks get or none.
 */
#include "channel_priv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atomic.h"
#include "err.h"
#include "fork.h"
#include "point.h"

typedef unsigned long long ull;

static int opened_before(const struct kvr_group *g, uint32_t channel)
{
	return KVR_FAIL(
		-EBUSY,
		"kvr_channels_open: channel %s of group %s was used by this process in epoch "
		"%llu already; channels are opened once an epoch",
		kvr_channel_name(channel), g->name, (ull)g->header.epoch);
}

static int leader_open(struct kvr_channels *c)
{
	struct kvr_group *g = c->g;
	const struct kvr_layout *l = &g->layout;

	c->writer = calloc((size_t)KVR_CHANNELS * l->ranks, sizeof *c->writer);
	if (!c->writer)
		return KVR_FAIL(-ENOMEM, "kvr_channels_open: no memory for %u writers",
				KVR_CHANNELS * l->ranks);
	for (uint32_t ch = 0; ch < KVR_CHANNELS; ch++) {
		if (kvr_group_leader_page(g)->watermark[ch])
			return opened_before(g, ch);
		for (uint32_t r = 0; r < l->ranks; r++) {
			const uint64_t *cursor = kvr_group_rank_page(g, r)->cursor[ch];
			/* The segment is zeroed and may have readers: this stores 0 over 0. */
			int err = kvr_ring_writer_init(
				&c->writer[ch * l->ranks + r],
				g->own + (kvr_layout_ring(l, ch, r) - l->leader), l->ring_bytes,
				(const void *)cursor, 0);

			if (err)
				return err;
		}
	}
	return kvr_bulk_open(c);
}

static int rank_open(struct kvr_channels *c)
{
	struct kvr_group *g = c->g;
	struct kvr_rank_page *page = kvr_group_own_page(g);

	for (uint32_t ch = 0; ch < KVR_CHANNELS; ch++) {
		struct kvr_inbox *in = &c->inbox[ch];
		const uint8_t *ring = g->seg + kvr_layout_ring(&g->layout, ch, g->rank);
		int err;

		if (page->taken[ch] || page->cursor[ch][0])
			return opened_before(g, ch);
		err = kvr_ring_reader_init(&in->reader, ring, g->layout.ring_bytes,
					   (void *)page->cursor[ch], 0);
		if (err)
			return err;
		kvr_stash_init(&in->stash, c->max_payload, c->inline_payload);
		snprintf(in->what, sizeof in->what, "a message on channel %s",
			 kvr_channel_name(ch));
	}
	return 0;
}

int kvr_channels_open(struct kvr_group *group, struct kvr_channels **ret_channels)
{
	struct kvr_channels *c;
	int err;

	if (group->forks != kvr_fork_generation())
		return KVR_FAIL(-EINVAL,
				"kvr_channels_open in a forked child: the group is its parent's");
	c = calloc(1, sizeof *c);
	if (!c)
		return KVR_FAIL(-ENOMEM, "kvr_channels_open: no memory for %zu bytes", sizeof *c);
	c->g = group;
	c->inline_payload = kvr_ring_max_payload(group->layout.ring_bytes) -
			    (uint32_t)sizeof(struct kvr_msg_head);
	c->max_payload = (uint32_t)kvr_max(c->inline_payload, group->layout.bulk_bytes / 4);
	err = group->rank == KVR_LEADER ? leader_open(c) : rank_open(c);
	if (err) {
		kvr_channels_close(c);
		return err;
	}
	*ret_channels = c;
	return 0;
}

void kvr_channels_close(struct kvr_channels *channels)
{
	if (!channels)
		return;
	for (uint32_t ch = 0; ch < KVR_CHANNELS; ch++)
		kvr_stash_free(&channels->inbox[ch].stash);
	kvr_bulk_close(channels);
	free(channels->writer);
	free(channels);
}

uint32_t kvr_channels_max_payload(const struct kvr_channels *channels)
{
	return channels->max_payload;
}

uint32_t kvr_channels_inline_payload(const struct kvr_channels *channels)
{
	return channels->inline_payload;
}

int kvr_channels_begin(const struct kvr_channels *c, const char *name, enum kvr_call call,
		       uint32_t channel)
{
	int leader = c->g->rank == KVR_LEADER;

	if (c->g->forks != kvr_fork_generation())
		return KVR_FAIL(-EINVAL, "%s in a forked child: the handle is its parent's", name);
	if (channel >= KVR_CHANNELS)
		return KVR_FAIL(-EINVAL, "%s: channel %u; there are %d", name, channel,
				KVR_CHANNELS);
	if ((call == KVR_CALL_PUBLISH) != leader)
		return KVR_FAIL(-EINVAL,
				"%s on channel %s: the leader publishes, ranks take; this is %s",
				name, kvr_channel_name(channel), leader ? "the leader" : "a rank");
	return 0;
}

/*
 * A success needs no event of its own, the message has one. A call made by another call of the
 * library (the connector's) is part of that one.
 */
int kvr_channels_wait(struct kvr_group *g, enum kvr_call call, uint32_t channel,
		      int (*ready)(void *), void *arg, uint64_t deadline_ns, const char *what)
{
	int outer = !g->proc->in_call;
	int err;

	if (outer)
		kvr_group_enter(g, call, channel);
	err = kvr_group_wait(g, ready, arg, deadline_ns, what);
	if (outer && err < 0)
		kvr_group_leave(g, call, channel, NULL, err);
	else if (outer)
		kvr_store_relaxed32(&g->proc->in_call, KVR_CALL_NONE);
	return err;
}

void kvr_channels_record(struct kvr_group *g, enum kvr_event_kind kind, enum kvr_call call,
			 const struct kvr_message *m, uint64_t arg)
{
	struct kvr_event e = { .request = m->request.id,
			       .number = m->number,
			       .arg = arg,
			       .attempt = m->request.attempt,
			       .tag = m->tag,
			       .kind = (uint8_t)kind,
			       .channel = (uint8_t)m->channel,
			       .call = (uint16_t)call };
	const struct kvr_event *last;

	kvr_recorder_add(&g->rec, &e);
	/* The event's time: one reading of the clock is enough. */
	last = &g->rec.events[(g->rec.count - 1) & (g->rec.capacity - 1)];
	kvr_store_relaxed(&g->proc->progress_ns, kvr_load_relaxed(&last->ns));
}

void kvr_channels_count(struct kvr_group *g, enum kvr_call call)
{
	if (!g->proc->in_call)
		kvr_store_relaxed(&g->calls[call], g->calls[call] + 1);
}

struct kvr_request kvr_channels_request(const struct kvr_msg_head *head)
{
	return (struct kvr_request){ .id = head->request,
				     .space = head->space,
				     .attempt = head->attempt };
}

struct publish {
	struct kvr_channels *c;
	uint32_t channel, tag, len;
	int bulk; /* the payload goes into the bulk area, and its offset there into the rings */
	int bulk_full; /* that is where room was missing */
	uint32_t full; /* the rank without room, or that holds up the bulk area */
	uint64_t set;
	void *to[KVR_MAX_RANKS]; /* where each copy goes */
};

static struct kvr_ring_writer *writer_of(const struct publish *p, uint32_t rank)
{
	return &p->c->writer[p->channel * p->c->g->layout.ranks + rank];
}

static void abort_all(const struct publish *p, uint64_t set)
{
	for (; set; set &= set - 1)
		kvr_ring_abort(writer_of(p, (uint32_t)__builtin_ctzll(set)));
}

/*
 * Reserves in every ring of the set: 1; or in none: 0. Only this thread fills the rings and the
 * bulk area, so room that was found stays, but a reservation would have to be remembered over the
 * wait: it is dropped.
 */
static int reserve_all(void *arg)
{
	struct publish *p = arg;
	struct kvr_group *g = p->c->g;
	uint32_t payload = p->bulk ? (uint32_t)sizeof(uint64_t) : p->len;
	uint32_t bytes = (uint32_t)sizeof(struct kvr_msg_head) + payload;
	uint64_t got = 0;
	int room = p->bulk ? kvr_bulk_room(p->c, p->len, &p->full) : 1;

	p->bulk_full = room != 1;
	if (room != 1)
		return room ? room : kvr_group_watch_ranks(g);
	for (uint64_t rest = p->set; rest; rest &= rest - 1) {
		uint32_t r = (uint32_t)__builtin_ctzll(rest);
		int err = kvr_ring_reserve(writer_of(p, r), p->tag, bytes, &p->to[r]);

		if (!err) {
			got |= 1ull << r;
			continue;
		}
		if ((err == -EAGAIN || err == -EBADMSG) && kvr_channels_left(g, r)) {
			p->set &= ~(1ull << r);
			continue;
		}
		abort_all(p, got);
		if (err != -EAGAIN)
			return KVR_FAIL(err, "kvr_channels_publish: rank %u, channel %s: %s", r,
					kvr_channel_name(p->channel), kvr_explain());
		p->full = r;
		return kvr_group_watch_ranks(g);
	}
	return 1;
}

/*
 * Every copy, then the one word that makes them true for all. The event comes before that word:
 * whoever has the message also finds in the leader's recorder when it was published.
 */
static void commit_all(struct publish *p, struct kvr_msg_head *head, const void *data)
{
	struct kvr_message m = { .channel = p->channel,
				 .tag = p->tag,
				 .number = head->number,
				 .request = kvr_channels_request(head) };
	struct kvr_group *g = p->c->g;
	uint32_t len = p->len;
	uint64_t rest, offset;

	KVR_POINT(publish_reserved, p->channel);
	if (p->bulk) {
		offset = kvr_bulk_put(p->c, p->channel, p->set, head->number, data, len);
		KVR_POINT(bulk_copied, p->channel);
		head->bulk = len;
		data = &offset;
		len = sizeof offset;
	}
	for (rest = p->set; rest; rest &= rest - 1) {
		uint32_t r = (uint32_t)__builtin_ctzll(rest);

		memcpy(p->to[r], head, sizeof *head);
		if (len)
			memcpy((uint8_t *)p->to[r] + sizeof *head, data, len);
		KVR_POINT(publish_copied, r);
		kvr_ring_commit(writer_of(p, r));
		if (p->bulk)
			kvr_bulk_sent(p->c, r);
	}
	kvr_channels_record(g, KVR_EV_PUBLISH, KVR_CALL_PUBLISH, &m, p->set);
	KVR_POINT(publish_committed, p->channel);
	p->c->published[p->channel] = head->number;
	/* M1, pairs with M2 */
	kvr_store_release(&kvr_group_leader_page(g)->watermark[p->channel], head->number);
	KVR_POINT(publish_marked, p->channel);
	for (rest = p->set; rest; rest &= rest - 1)
		kvr_group_ring_rank(g, (uint32_t)__builtin_ctzll(rest));
}

static int publish_check(const struct kvr_channels *c, uint32_t channel, uint64_t beyond,
			 uint32_t len)
{
	int err = kvr_channels_begin(c, "kvr_channels_publish", KVR_CALL_PUBLISH, channel);

	if (err)
		return err;
	if (beyond)
		return KVR_FAIL(-EINVAL,
				"kvr_channels_publish: the set names ranks %#llx; the group has %u",
				(ull)beyond, c->g->layout.ranks);
	if (len > c->max_payload)
		return KVR_FAIL(
			-EMSGSIZE,
			"kvr_channels_publish: channel %s: %u bytes; a message carries %u at most "
			"in rings of %u bytes (kvr_group_opts.ring_bytes), and %u in a bulk area "
			"of %u bytes (kvr_group_opts.bulk_bytes)",
			kvr_channel_name(channel), len, c->inline_payload, c->g->layout.ring_bytes,
			c->g->layout.bulk_bytes / 4, c->g->layout.bulk_bytes);
	return kvr_group_check(c->g);
}

/* Waits for room. 0, or why there is none, with the sentence unless the caller polls. */
static int publish_room(struct publish *p, uint64_t deadline_ns)
{
	int err = reserve_all(p);

	if (err > 0)
		kvr_channels_count(p->c->g, KVR_CALL_PUBLISH);
	if (!err && !deadline_ns)
		return -EAGAIN;
	if (!err)
		err = kvr_channels_wait(p->c->g, KVR_CALL_PUBLISH, p->channel, reserve_all, p,
					deadline_ns,
					p->bulk ? "room in the bulk area and every rank's ring"
						: "room in the ring of every rank");
	if (err == -ETIMEDOUT)
		return p->bulk_full ? kvr_explain_bulk(p->c, p->full, p->len)
				    : kvr_explain_full(p->c, p->channel, p->full);
	return err < 0 ? err : 0;
}

int kvr_channels_publish(struct kvr_channels *channels, uint32_t channel, uint64_t set,
			 uint32_t tag, const struct kvr_request *request, const void *data,
			 uint32_t len, uint64_t deadline_ns)
{
	struct kvr_group *g = channels->g;
	uint64_t all = ~0ull >> (64 - g->layout.ranks);
	struct publish p = { .c = channels,
			     .channel = channel,
			     .tag = tag,
			     .len = len,
			     .bulk = len > channels->inline_payload,
			     .set = set ? set : all };
	struct kvr_msg_head head = { 0 };
	int err = publish_check(channels, channel, set & ~all, len);

	if (!err)
		err = publish_room(&p, deadline_ns);
	if (err)
		return err;
	head.number = channels->published[channel] + 1;
	if (request) {
		head.request = request->id;
		head.space = request->space;
		head.attempt = request->attempt;
	}
	commit_all(&p, &head, data);
	/* A leader that was stopped meanwhile may have been replaced: then nobody takes this. */
	return kvr_group_watermark(g, channel) < head.number ? kvr_group_check(g) : 0;
}
