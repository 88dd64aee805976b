/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events move word by word through atomic accesses, since a reader may copy a slot at the moment
 * in which it is overwritten. It notices that afterwards: whoever saw one word of the newer event
 * (R4) also sees the count that was stored before it (R1, R3), and drops the copy.
 */
#include "recorder.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "atomic.h"
#include "clock.h"
#include "err.h"
#include "util.h"

#define EVENT_WORDS (sizeof(struct kvr_event) / sizeof(uint64_t))

void kvr_recorder_init(struct kvr_recorder *r, void *mem, uint32_t events, uint32_t rank)
{
	struct kvr_rec_ctl *ctl = mem;

	*r = (struct kvr_recorder){
		.ctl = ctl,
		.events = (struct kvr_event *)(void *)(ctl + 1),
		.capacity = events,
		.rank = rank,
	};
}

void kvr_recorder_add(struct kvr_recorder *r, const struct kvr_event *event)
{
	uint64_t *slot = (uint64_t *)(void *)&r->events[r->count & (r->capacity - 1)];
	struct kvr_event filled = *event;
	uint64_t words[EVENT_WORDS];
	size_t i;

	filled.ns = kvr_now();
	filled.rank = r->rank;
	filled.pad = 0;
	filled.index = r->count;
	memcpy(words, &filled, sizeof(words));
	for (i = 0; i < EVENT_WORDS; i++)
		kvr_store_release(&slot[i], words[i]); /* R3, pairs with R4 */
	kvr_store_release(&r->ctl->count, ++r->count); /* R1, pairs with R2 */
}

/* Copies event `index`. 0 when it is not, or no longer, the one in its slot. */
static int event_copy(const struct kvr_rec_ctl *ctl, uint32_t events, uint64_t index,
		      struct kvr_event *ret_event)
{
	const uint64_t *slot = (const uint64_t *)(const void *)(ctl + 1);
	uint64_t words[EVENT_WORDS];
	size_t i;

	slot += (index & (events - 1)) * EVENT_WORDS;
	for (i = 0; i < EVENT_WORDS; i++)
		words[i] = kvr_load_acquire(&slot[i]); /* R4, pairs with R3 */
	memcpy(ret_event, words, sizeof(*ret_event));
	/* While the count is n the writer may be inside the slot of n, which is that of n - events.
	 */
	return ret_event->index == index &&
	       kvr_load_acquire(&ctl->count) - index < events; /* R2, pairs with R1 */
}

uint32_t kvr_recorder_last(const void *mem, uint32_t events, int channel,
			   struct kvr_event *ret_events, uint32_t max)
{
	const struct kvr_rec_ctl *ctl = mem;
	struct kvr_event event;
	uint64_t index, left;
	uint32_t n = 0;

	if (!kvr_is_pow2(events))
		return 0;
	index = kvr_load_acquire(&ctl->count); /* R2, pairs with R1 */
	/* From the newest backwards, into the end of the array. */
	for (left = kvr_min(index, events - 1); left && n < max; left--) {
		index--;
		if (!event_copy(ctl, events, index, &event))
			continue;
		if (channel < 0 || event.channel == channel)
			ret_events[max - ++n] = event;
	}
	memmove(ret_events, ret_events + (max - n), n * sizeof(event));
	return n;
}

struct text {
	char *at;
	size_t left;
};

static void __attribute__((format(printf, 2, 3))) text_add(struct text *t, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(t->at, t->left, fmt, ap);
	va_end(ap);
	if (n > 0) {
		size_t used = kvr_min((uint64_t)n, t->left - 1);

		t->at += used;
		t->left -= used;
	}
}

/* A tag by its name; the caller's own tags have numbers only. */
static void text_add_tag(struct text *t, const char *what, uint64_t tag)
{
	const char *name = tag < KVR_TAG_USER ? kvr_tag_name((uint32_t)tag) : "?";

	if (name[0] == '?')
		text_add(t, " %s %" PRIu64, what, tag);
	else
		text_add(t, " %s %s", what, name);
}

static void text_add_age(struct text *t, uint64_t ns, uint64_t now_ns)
{
	double age = now_ns > ns ? (double)(now_ns - ns) : 0;

	if (age < 1e6)
		text_add(t, "%.1f us ago", age / 1e3);
	else if (age < 1e9)
		text_add(t, "%.1f ms ago", age / 1e6);
	else
		text_add(t, "%.1f s ago", age / 1e9);
}

static void text_add_message(struct text *t, const struct kvr_event *e)
{
	text_add(t, " channel %s number %" PRIu64 " request %" PRIu64 "/%" PRIu32,
		 kvr_channel_name(e->channel), e->number, e->request, e->attempt);
	text_add_tag(t, "tag", e->tag);
	if (e->kind == KVR_EV_MISMATCH)
		text_add_tag(t, "expected", e->arg);
}

void kvr_event_text(const struct kvr_event *e, uint64_t now_ns, char *ret_text, uint32_t size)
{
	struct text t = { ret_text, size };

	if (!size)
		return;
	text_add_age(&t, e->ns, now_ns);
	text_add(&t, " %s", kvr_event_kind_name(e->kind));
	switch (e->kind) {
	case KVR_EV_CALL:
		text_add(&t, " %s request %" PRIu64 "/%" PRIu32, kvr_call_name(e->call), e->request,
			 e->attempt);
		text_add(&t, " result %" PRId32, e->result);
		break;
	case KVR_EV_STAGE:
		text_add(&t, " request %" PRIu64 "/%" PRIu32 " stage %s", e->request, e->attempt,
			 kvr_stage_name((uint32_t)kvr_min(e->arg, UINT32_MAX)));
		break;
	case KVR_EV_DEATH:
		text_add(&t, " rank %" PRIu64, e->arg);
		break;
	default:
		text_add_message(&t, e);
	}
	if (e->result < 0)
		text_add(&t, " (%s)", kvr_strerror(e->result));
}
