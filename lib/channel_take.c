/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels, a rank's half. A message goes through the caller's hands in place: it is peeked, and
 * its cells are given back to the ring by the next call on the channel.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "atomic.h"
#include "channel_priv.h"
#include "err.h"
#include "point.h"

#define POLLS 1024u /* empty polls between two looks for what is lost; a power of two */

typedef unsigned long long ull;

/*
 * The channel is out of use, for the reason that kvr_explain() has. The first one is kept: what is
 * in memory by the next call may be other bytes. The ring's reader refuses from now on, also what
 * only this layer finds wrong: so the way of a good message has no question of its own.
 */
static int broken(struct kvr_channels *c, uint32_t channel)
{
	struct kvr_inbox *in = &c->inbox[channel];

	if (!in->broken[0])
		snprintf(in->broken, sizeof in->broken,
			 "rank %u, channel %s: after message %llu: %s; the segment was "
			 "overwritten, and the channel cannot be read any more",
			 c->g->rank, kvr_channel_name(channel), (ull)in->last, kvr_explain());
	if (!in->reader.error) {
		in->reader.error = -EBADMSG;
		in->reader.limit = 0;
		in->reader.why = "its content is impossible";
	}
	return KVR_FAIL(-EBADMSG, "%s", in->broken);
}

static int bad_length(struct kvr_channels *c, uint32_t channel, uint32_t len)
{
	size_t head = sizeof(struct kvr_msg_head);

	kvr_ring_rewind(&c->inbox[channel].reader);
	KVR_FAIL(-EBADMSG, "there is one whose length is %u, and %zu to %zu is possible", len, head,
		 head + c->inline_payload);
	return broken(c, channel);
}

/*
 * The payload is in the bulk area: the message in the ring says where. What stands there is input,
 * as it is in the ring; where it stands was copied, and is within the area from here on.
 */
static int find_bulk(struct kvr_channels *c, uint32_t channel, struct kvr_arrival *a)
{
	const struct kvr_layout *l = &c->g->layout;
	uint32_t len = a->head.bulk;
	uint64_t offset = 0;

	if (a->len == sizeof offset)
		memcpy(&offset, a->data, sizeof offset);
	if (a->len == sizeof offset && len > c->inline_payload && len <= c->max_payload &&
	    offset <= l->bulk_bytes - len && offset % KVR_BULK_ALIGN == 0) {
		a->data = c->g->seg + l->bulk + offset;
		a->len = len;
		return 1;
	}
	kvr_ring_rewind(&c->inbox[channel].reader);
	KVR_FAIL(-EBADMSG,
		 "there is one, number %llu, with %u bytes in the ring that say: %u bytes at %llu "
		 "of the bulk area; it has %u, and a message 8 in the ring and %u to %u there, "
		 "from a multiple of %u on",
		 (ull)a->head.number, a->len, len, (ull)offset, l->bulk_bytes,
		 c->inline_payload + 1, c->max_payload, KVR_BULK_ALIGN);
	return broken(c, channel);
}

/* What the leader says, also what no longer counts because of a newer one: it only rises. */
static uint64_t raw_watermark(const struct kvr_channels *c, uint32_t channel)
{
	return kvr_load_acquire(&c->g->leader->watermark[channel]); /* M2, pairs with M1 */
}

/*
 * A number that no leader gives: they rise, and one publish at a time is under way. 0 when it is
 * that one. The watermark is read after the message, so it is not one of an earlier time.
 */
static int bad_number(struct kvr_channels *c, uint32_t channel, uint64_t number)
{
	struct kvr_inbox *in = &c->inbox[channel];
	uint64_t watermark = raw_watermark(c, channel);

	kvr_ring_rewind(&in->reader);
	if (number > in->last && (number <= watermark || number - watermark == 1))
		return 0;
	KVR_FAIL(-EBADMSG,
		 "there is one whose number is %llu, and the channel's watermark is %llu: from "
		 "%llu to one above the watermark is possible",
		 (ull)number, (ull)watermark, (ull)in->last + 1);
	return broken(c, channel);
}

/*
 * The leader may wait for room: its bell is rung each time its view of the cursor moved. That is
 * when a quarter of the ring was given back, or when the ring is empty; and costs one exchange when
 * the leader does not sleep.
 */
static void tell_leader(struct kvr_channels *c, struct kvr_inbox *in)
{
	if (in->shown == in->reader.shown)
		return;
	in->shown = in->reader.shown;
	kvr_group_ring_leader(c->g);
}

/* Ends the caller's look at the last message. */
static void give_back(struct kvr_channels *c, struct kvr_inbox *in)
{
	if (in->held) {
		kvr_ring_release(&in->reader);
		/* Of what is in the bulk area few messages fill it: the leader may wait for one. */
		if (in->held_bulk)
			kvr_ring_show(&in->reader);
		KVR_POINT(take_released, c->g->rank);
		in->held = 0;
		tell_leader(c, in);
	}
	if (in->lent) {
		kvr_stash_drop(&in->stash, in->lent);
		in->lent = NULL;
	}
}

int kvr_channels_front(struct kvr_channels *c, uint32_t channel, struct kvr_arrival *ret)
{
	struct kvr_inbox *in = &c->inbox[channel];
	struct kvr_ring_msg msg;
	int got = kvr_ring_peek(&in->reader, &msg);

	if (got < 0)
		return broken(c, channel);
	if (!got) {
		tell_leader(c, in); /* the peek shows the cursor when the ring is empty */
		return 0;
	}
	if (msg.len < sizeof ret->head)
		return bad_length(c, channel, msg.len);
	memcpy(&ret->head, msg.data, sizeof ret->head);
	if (ret->head.number > kvr_group_watermark(c->g, channel) || ret->head.number <= in->last)
		return bad_number(c, channel, ret->head.number);
	ret->data = (const uint8_t *)msg.data + sizeof ret->head;
	ret->len = msg.len - (uint32_t)sizeof ret->head;
	ret->tag = msg.tag;
	return ret->head.bulk ? find_bulk(c, channel, ret) : 1;
}

/*
 * The ring knows what the leader copied into it. Where all that is published comes here, the
 * watermark says it, too: it is stored after the copies that it counts (M1), so what it counts has
 * come, or is in the ring.
 */
int kvr_channels_lost(struct kvr_channels *c, uint32_t channel)
{
	struct kvr_inbox *in = &c->inbox[channel];
	struct kvr_ring_msg msg;
	uint64_t watermark;
	int got;

	give_back(c, in); /* so that a rewind goes no further than here */
	if (kvr_ring_check(&in->reader))
		return broken(c, channel);
	watermark = raw_watermark(c, channel);
	if (watermark == in->last || (watermark > in->last && !(c->whole >> channel & 1)))
		return 0;
	got = watermark > in->last ? kvr_ring_peek(&in->reader, &msg) : 0;
	if (got > 0) {
		kvr_ring_rewind(&in->reader);
		return 0;
	}
	if (!got)
		KVR_FAIL(-EBADMSG, "the channel's watermark is %llu, and %s", (ull)watermark,
			 watermark < in->last ? "that message was there"
					      : "the ring holds no message after that one");
	return broken(c, channel);
}

int kvr_channels_drained(struct kvr_channels *c, uint32_t channel)
{
	if (raw_watermark(c, channel) == c->inbox[channel].last)
		return 1;
	return kvr_channels_lost(c, channel);
}

void kvr_channels_whole(struct kvr_channels *c, uint32_t channels)
{
	c->whole = channels;
}

/* The message leaves the ring, to the caller or to the stash. */
static void leaves(struct kvr_channels *c, uint32_t channel, const struct kvr_arrival *a)
{
	struct kvr_inbox *in = &c->inbox[channel];

	in->last = a->head.number;
	in->held = 1;
	in->held_bulk = a->head.bulk != 0;
	kvr_store_relaxed(&kvr_group_own_page(c->g)->taken[channel], ++in->taken);
}

static struct kvr_message message(uint32_t channel, const struct kvr_arrival *a)
{
	return (struct kvr_message){ .channel = channel,
				     .tag = a->tag,
				     .number = a->head.number,
				     .request = kvr_channels_request(&a->head),
				     .data = a->data,
				     .len = a->len };
}

static void deliver(struct kvr_channels *c, enum kvr_call call, uint32_t channel,
		    const struct kvr_arrival *a, struct kvr_message *ret)
{
	struct kvr_message m = message(channel, a);

	leaves(c, channel, a);
	KVR_POINT(take_peeked, channel);
	kvr_channels_record(c->g, KVR_EV_TAKE, call, &m, 0);
	*ret = m;
}

/* A stashed message that nobody will ask for any more: its owner is told while it is still there.
 */
static void drop(struct kvr_channels *c, uint32_t channel, struct kvr_stashed *e)
{
	struct kvr_message m = { .channel = channel,
				 .tag = e->tag,
				 .number = e->number,
				 .request = e->request,
				 .data = e->data,
				 .len = e->len };

	if (c->dropped)
		c->dropped(c->dropped_arg, &m);
	kvr_stash_drop(&c->inbox[channel].stash, e);
}

static void expire(struct kvr_channels *c, uint32_t channel, struct kvr_stashed *e)
{
	struct kvr_proc *proc = c->g->proc;
	struct kvr_message m = { .channel = channel,
				 .tag = e->tag,
				 .number = e->number,
				 .request = e->request,
				 .len = e->len };

	kvr_store_relaxed(&proc->expired, proc->expired + 1);
	kvr_channels_record(c->g, KVR_EV_EXPIRE, KVR_CALL_TAKE, &m, 0);
	drop(c, channel, e);
}

/* Copies the message at the front for later and gives its ring space back. */
static int stash_front(struct kvr_channels *c, uint32_t channel, const struct kvr_arrival *a)
{
	struct kvr_inbox *in = &c->inbox[channel];
	struct kvr_stashed *oldest;
	int err;

	while ((oldest = kvr_stash_full(&in->stash, a->len)))
		expire(c, channel, oldest);
	err = kvr_stash_put(&in->stash, a);
	if (err) {
		kvr_ring_rewind(&in->reader);
		return KVR_FAIL(
			err,
			"kvr_channels_take_for: rank %u, channel %s: no memory to keep message "
			"%llu of %u bytes for later; it stays in the ring",
			c->g->rank, kvr_channel_name(channel), (ull)a->head.number, a->len);
	}
	leaves(c, channel, a);
	give_back(c, in);
	return 0;
}

struct want {
	struct kvr_channels *c;
	const struct kvr_request *request; /* NULL: whatever comes */
	uint32_t channel;
	uint32_t tag;
	uint32_t rung;	 /* the bell's seq at the last look, */
	uint64_t sleeps; /* and the waiter's sleeps */
	struct kvr_arrival got;
};

static int ready(void *arg)
{
	struct want *w = arg;
	int err;

	while ((err = kvr_channels_front(w->c, w->channel, &w->got)) == 1 && w->request) {
		struct kvr_request request = kvr_channels_request(&w->got.head);

		if (w->got.tag == w->tag && kvr_request_equal(&request, w->request))
			break;
		/* For somebody else, who will ask later. */
		err = stash_front(w->c, w->channel, &w->got);
		if (err)
			break;
	}
	return err;
}

/* Was there a sleep since the last look, and did nobody ring? Then the back-stop ended it. */
static int slept_in_vain(struct want *w)
{
	const struct kvr_waiter *waiter = &w->c->g->waiter;
	uint32_t rung = kvr_load_relaxed32(&waiter->bell->seq);
	int in_vain = waiter->sleeps != w->sleeps && rung == w->rung;

	w->sleeps = waiter->sleeps;
	w->rung = rung;
	return in_vain;
}

static int waiting(void *arg)
{
	struct want *w = arg;
	int err;

	if (w->c->waits)
		w->c->waits(w->c->waits_arg);
	err = ready(w);
	if (!err && slept_in_vain(w))
		err = kvr_channels_lost(w->c, w->channel);
	return err;
}

/* A poll that found nothing. */
static int polled(struct want *w)
{
	int end = kvr_group_check(w->c->g), err = 0;

	if (end) /* once more: what came between that look and the end must not be lost */
		err = ready(w);
	else if (!(++w->c->inbox[w->channel].polls % POLLS))
		err = kvr_channels_lost(w->c, w->channel);
	/* Again, as a fence may have begun to go up, which hides what was finished; and that look
	 * may have set a sentence of its own. */
	if (end && !err)
		end = kvr_group_check(w->c->g);
	if (err)
		return err;
	return end ? end : -EAGAIN;
}

/* 1 when the wanted message is at the front, or why not. Polling sets no sentence for "not yet". */
static int await(struct want *w, enum kvr_call call, uint64_t deadline_ns)
{
	int err = ready(w), lost;

	if (err) {
		kvr_channels_count(w->c->g, call);
		return err;
	}
	if (!deadline_ns)
		return polled(w);
	slept_in_vain(w);
	err = kvr_channels_wait(w->c->g, call, w->channel, waiting, w, deadline_ns,
				w->c->inbox[w->channel].what);
	if (err != -ETIMEDOUT)
		return err;
	lost = kvr_channels_lost(w->c, w->channel);
	return lost ? lost : kvr_explain_late(w->c, w->channel, w->tag, w->request);
}

/* Checks and counts a rank's call, and ends the look at the message before. */
static int begin(struct kvr_channels *c, const char *name, enum kvr_call call, uint32_t channel)
{
	int err = kvr_channels_begin(c, name, call, channel);

	if (!err)
		give_back(c, &c->inbox[channel]);
	return err;
}

int kvr_channels_take(struct kvr_channels *channels, uint32_t channel, uint64_t deadline_ns,
		      struct kvr_message *ret_message)
{
	struct want w = { .c = channels, .channel = channel };
	int err = begin(channels, "kvr_channels_take", KVR_CALL_TAKE, channel);

	if (!err)
		err = await(&w, KVR_CALL_TAKE, deadline_ns);
	if (err < 0)
		return err;
	deliver(channels, KVR_CALL_TAKE, channel, &w.got, ret_message);
	return 0;
}

static int mismatch(struct kvr_channels *c, uint32_t channel, const struct kvr_arrival *a,
		    uint32_t tag)
{
	struct kvr_proc *proc = c->g->proc;
	struct kvr_message m = { .channel = channel,
				 .tag = a->tag,
				 .number = a->head.number,
				 .request = kvr_channels_request(&a->head) };
	int err;

	kvr_ring_rewind(&c->inbox[channel].reader);
	err = kvr_explain_mismatch(c, channel, a, tag);
	kvr_store_relaxed(&proc->mismatches, proc->mismatches + 1);
	kvr_channels_record(c->g, KVR_EV_MISMATCH, KVR_CALL_EXPECT, &m, tag);
	return err;
}

int kvr_channels_expect(struct kvr_channels *channels, uint32_t channel, uint32_t tag,
			uint64_t deadline_ns, struct kvr_message *ret_message)
{
	struct want w = { .c = channels, .channel = channel, .tag = tag };
	int err = begin(channels, "kvr_channels_expect", KVR_CALL_EXPECT, channel);

	if (!err)
		err = await(&w, KVR_CALL_EXPECT, deadline_ns);
	if (err < 0)
		return err;
	if (w.got.tag != tag)
		return mismatch(channels, channel, &w.got, tag);
	deliver(channels, KVR_CALL_EXPECT, channel, &w.got, ret_message);
	return 0;
}

static void lend(struct kvr_channels *c, uint32_t channel, struct kvr_stashed *e,
		 struct kvr_message *ret)
{
	struct kvr_message m = { .channel = channel,
				 .tag = e->tag,
				 .number = e->number,
				 .request = e->request,
				 .data = e->data,
				 .len = e->len };

	c->inbox[channel].lent = e;
	kvr_channels_count(c->g, KVR_CALL_TAKE);
	kvr_channels_record(c->g, KVR_EV_TAKE, KVR_CALL_TAKE, &m, 0);
	*ret = m;
}

int kvr_channels_take_for(struct kvr_channels *channels, uint32_t channel, uint32_t tag,
			  const struct kvr_request *request, uint64_t deadline_ns,
			  struct kvr_message *ret_message)
{
	struct want w = { .c = channels, .request = request, .channel = channel, .tag = tag };
	int err = begin(channels, "kvr_channels_take_for", KVR_CALL_TAKE, channel);
	struct kvr_stashed *e;

	if (err)
		return err;
	e = kvr_stash_find(&channels->inbox[channel].stash, tag, request);
	if (e) {
		lend(channels, channel, e, ret_message);
		return 0;
	}
	err = await(&w, KVR_CALL_TAKE, deadline_ns);
	if (err < 0)
		return err;
	deliver(channels, KVR_CALL_TAKE, channel, &w.got, ret_message);
	return 0;
}

int kvr_channels_forget(struct kvr_channels *channels, uint32_t channel,
			const struct kvr_request *request)
{
	int n, err = begin(channels, "kvr_channels_forget", KVR_CALL_TAKE, channel);
	struct kvr_inbox *in = &channels->inbox[channel < KVR_CHANNELS ? channel : 0];
	struct kvr_arrival a;
	struct kvr_stashed *e;

	if (err)
		return err;
	/* Also what is still in the ring, as far as the stash has room for what comes before it. */
	while (!err && kvr_channels_front(channels, channel, &a) == 1) {
		if (kvr_stash_full(&in->stash, a.len)) {
			kvr_ring_rewind(&in->reader);
			break;
		}
		err = stash_front(channels, channel, &a);
	}
	for (n = 0; (e = kvr_stash_of(&in->stash, request)); n++)
		drop(channels, channel, e);
	return n;
}

void kvr_channels_give_back(struct kvr_channels *c, uint32_t channel)
{
	give_back(c, &c->inbox[channel]);
}

int kvr_channels_forget_if(struct kvr_channels *channels, uint32_t channel, uint32_t tag,
			   const struct kvr_request *request,
			   int (*fn)(void *arg, const struct kvr_message *message), void *arg)
{
	int err = begin(channels, "kvr_channels_forget", KVR_CALL_TAKE, channel);
	struct kvr_inbox *in = &channels->inbox[channel];
	struct kvr_stashed *e;
	struct kvr_arrival a;

	while (!err && kvr_channels_front(channels, channel, &a) == 1) {
		if (kvr_stash_full(&in->stash, a.len)) {
			kvr_ring_rewind(&in->reader);
			break;
		}
		err = stash_front(channels, channel, &a);
	}
	e = err ? NULL : kvr_stash_find(&in->stash, tag, request);
	if (e && fn) {
		struct kvr_message m = { .channel = channel,
					 .tag = e->tag,
					 .number = e->number,
					 .request = e->request,
					 .data = e->data,
					 .len = e->len };

		if (!fn(arg, &m))
			e = NULL;
	}
	if (e)
		drop(channels, channel, e);
	return e != NULL;
}

int kvr_channels_forget_upto(struct kvr_channels *channels, uint32_t channel, uint64_t number)
{
	int n = 0, err = begin(channels, "kvr_channels_forget_upto", KVR_CALL_TAKE, channel);
	struct kvr_inbox *in = &channels->inbox[channel < KVR_CHANNELS ? channel : 0];
	struct kvr_stashed *e;
	struct kvr_arrival a;

	if (err)
		return err;
	for (; (e = kvr_stash_upto(&in->stash, number)); n++)
		drop(channels, channel, e);
	/* Numbers rise: what is to go stands in front. */
	for (; (err = kvr_channels_front(channels, channel, &a)) == 1; n++) {
		struct kvr_message m = message(channel, &a);

		if (m.number > number) {
			kvr_ring_rewind(&in->reader);
			return n;
		}
		if (channels->dropped)
			channels->dropped(channels->dropped_arg, &m);
		leaves(channels, channel, &a);
		give_back(channels, in);
	}
	if (!err && in->last < number)
		err = kvr_channels_lost(channels, channel);
	return err ? err : n;
}

void kvr_channels_on_wait(struct kvr_channels *channels, void (*fn)(void *arg), void *arg)
{
	channels->waits = fn;
	channels->waits_arg = arg;
}

void kvr_channels_on_drop(struct kvr_channels *channels,
			  void (*fn)(void *arg, const struct kvr_message *message), void *arg)
{
	channels->dropped = fn;
	channels->dropped_arg = arg;
}

int kvr_channels_drain(struct kvr_channels *channels, uint32_t channel,
		       void (*fn)(void *arg, const struct kvr_message *message), void *arg)
{
	struct want w = { .c = channels, .channel = channel };
	int err = begin(channels, "kvr_channels_drain", KVR_CALL_TAKE, channel);
	struct kvr_message m;
	uint64_t end;
	int n = 0;

	if (err)
		return err;
	/* What comes later is for the next call: a leader that never pauses must not keep us here.
	 */
	end = kvr_group_watermark(channels->g, channel);
	err = await(&w, KVR_CALL_TAKE, 0);
	while (err == 1) {
		deliver(channels, KVR_CALL_TAKE, channel, &w.got, &m);
		fn(arg, &m);
		give_back(channels, &channels->inbox[channel]);
		n++;
		err = m.number < end ? ready(&w) : 0;
	}
	/* What came before an error was delivered; the error comes again with the next call. */
	return n || err == -EAGAIN ? n : err;
}
