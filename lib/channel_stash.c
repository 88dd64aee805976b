/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stash of a channel: messages for other requests that a rank met while it looked for one. A
 * rank that is a few requests behind its leader never has more than a few here, so a scan is
 * enough. Large messages are few, too, since the leader waits for room; so that a rank that never
 * asks for them does not keep many, their bytes are bounded.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "channel_priv.h"

/* KVR_STASH messages out of a ring always fit, and so do four of the largest. */
void kvr_stash_init(struct kvr_stash *s, uint32_t payload, uint32_t inline_payload)
{
	s->keep = inline_payload;
	s->limit = kvr_max((uint64_t)KVR_STASH * inline_payload, 4ull * payload);
}

static struct kvr_stashed *oldest(const struct kvr_stash *s)
{
	struct kvr_stashed *found = NULL;

	for (uint32_t i = 0; s->count && i < KVR_STASH; i++) {
		struct kvr_stashed *e = &s->entries[i];

		if (e->used && (!found || e->number < found->number))
			found = e;
	}
	return found;
}

struct kvr_stashed *kvr_stash_full(struct kvr_stash *s, uint32_t len)
{
	return s->count == KVR_STASH || s->bytes + len > s->limit ? oldest(s) : NULL;
}

static struct kvr_stashed *place(const struct kvr_stash *s)
{
	struct kvr_stashed *e = s->entries;

	while (e->used)
		e++;
	return e;
}

int kvr_stash_put(struct kvr_stash *s, const struct kvr_arrival *a)
{
	struct kvr_stashed *e;

	if (!s->entries)
		s->entries = calloc(KVR_STASH, sizeof *s->entries);
	if (!s->entries)
		return -ENOMEM;
	e = place(s);
	if (e->room < a->len) {
		void *data = malloc(a->len);

		if (!data)
			return -ENOMEM;
		free(e->data);
		e->data = data;
		e->room = a->len;
	}
	s->count++;
	s->bytes += a->len;
	e->request = kvr_channels_request(&a->head);
	e->number = a->head.number;
	e->tag = a->tag;
	e->len = a->len;
	e->used = 1;
	if (a->len)
		memcpy(e->data, a->data, a->len);
	return 0;
}

struct kvr_stashed *kvr_stash_find(struct kvr_stash *s, uint32_t tag,
				   const struct kvr_request *request)
{
	struct kvr_stashed *found = NULL;

	for (uint32_t i = 0; s->count && i < KVR_STASH; i++) {
		struct kvr_stashed *e = &s->entries[i];

		if (e->used && e->tag == tag && kvr_request_equal(&e->request, request) &&
		    (!found || e->number < found->number))
			found = e;
	}
	return found;
}

void kvr_stash_drop(struct kvr_stash *s, struct kvr_stashed *entry)
{
	entry->used = 0;
	s->count--;
	s->bytes -= entry->len;
	if (entry->room > s->keep) {
		free(entry->data);
		entry->data = NULL;
		entry->room = 0;
	}
}

struct kvr_stashed *kvr_stash_of(struct kvr_stash *s, const struct kvr_request *request)
{
	for (uint32_t i = 0; s->count && i < KVR_STASH; i++)
		if (s->entries[i].used && kvr_request_equal(&s->entries[i].request, request))
			return &s->entries[i];
	return NULL;
}

struct kvr_stashed *kvr_stash_upto(struct kvr_stash *s, uint64_t number)
{
	struct kvr_stashed *e = oldest(s);

	return e && e->number <= number ? e : NULL;
}

void kvr_stash_free(struct kvr_stash *s)
{
	for (uint32_t i = 0; s->entries && i < KVR_STASH; i++)
		free(s->entries[i].data);
	free(s->entries);
	*s = (struct kvr_stash){ 0 };
}
