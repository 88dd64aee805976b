/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bulk area: payloads that are larger than a ring takes, written once for all ranks. What a
 * rank knows of one is in its ring, so it is given back with that message: the ring's cursor says
 * so, and its order (C2, P2) keeps the leader from writing over what is still read.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "atomic.h"
#include "channel_priv.h"
#include "clock.h"
#include "err.h"

#define EXTENTS_MAX 1024u

static uint64_t aligned(uint64_t len)
{
	return kvr_align_up(len, KVR_BULK_ALIGN);
}

int kvr_bulk_open(struct kvr_channels *c)
{
	const struct kvr_layout *l = &c->g->layout;
	struct kvr_bulk *b = &c->bulk;
	uint64_t least = aligned(c->inline_payload + 1);

	b->mem = c->g->own + (l->bulk - l->leader);
	b->bytes = l->bulk_bytes;
	b->extents = 1;
	/* As many as the area holds of the smallest. */
	while (b->extents < EXTENTS_MAX && b->extents * least < b->bytes)
		b->extents *= 2;
	b->extent = calloc(b->extents, sizeof *b->extent);
	b->at = calloc((size_t)b->extents * l->ranks, sizeof *b->at);
	if (b->extent && b->at)
		return 0;
	return KVR_FAIL(-ENOMEM, "kvr_channels_open: no memory for %u extents of the bulk area",
			b->extents);
}

void kvr_bulk_close(struct kvr_channels *c)
{
	free(c->bulk.extent);
	free(c->bulk.at);
}

static struct kvr_extent_at *at(const struct kvr_channels *c, uint64_t extent, uint32_t rank)
{
	return &c->bulk.at[(extent & (c->bulk.extents - 1)) * c->g->layout.ranks + rank];
}

/* For inspectors. */
static void tell_used(struct kvr_channels *c)
{
	kvr_store_relaxed(&kvr_group_leader_page(c->g)->bulk_used, c->bulk.pos - c->bulk.freed);
}

/*
 * Lets go of all messages that every rank gave back, up to the first that one did not: 0, and
 * *ret_rank has it; or -EBADMSG, it will never be known. 1: nobody reads any more.
 */
static int reclaim(struct kvr_channels *c, uint32_t *ret_rank)
{
	struct kvr_bulk *b = &c->bulk;

	for (; b->tail != b->head; b->tail++) {
		struct kvr_extent *e = &b->extent[b->tail & (b->extents - 1)];

		for (; e->waits; e->waits &= e->waits - 1) {
			uint32_t r = (uint32_t)__builtin_ctzll(e->waits);
			struct kvr_ring_writer *w = &c->writer[e->channel * c->g->layout.ranks + r];
			int passed = kvr_ring_passed(w, at(c, b->tail, r)->passed);

			if (passed != 1 && !kvr_channels_left(c->g, r)) {
				*ret_rank = r;
				return passed;
			}
		}
		b->freed = e->end;
	}
	b->freed = b->pos;
	return 1;
}

/* Where the next payload begins: not so close to the area's end that it would not fit. */
static uint64_t begin_of(const struct kvr_bulk *b, uint64_t bytes)
{
	uint64_t to_end = b->bytes - (b->pos & (b->bytes - 1));

	return b->pos + (bytes > to_end ? to_end : 0);
}

int kvr_bulk_room(struct kvr_channels *c, uint32_t len, uint32_t *ret_rank)
{
	struct kvr_bulk *b = &c->bulk;
	uint64_t bytes = aligned(len);
	int err = reclaim(c, ret_rank);

	tell_used(c);
	if (begin_of(b, bytes) + bytes - b->freed <= b->bytes && b->head - b->tail < b->extents)
		return 1;
	if (!err)
		return 0;
	return KVR_FAIL(err, "kvr_channels_publish: rank %u, channel %s, bulk area: %s", *ret_rank,
			kvr_channel_name(b->extent[b->tail & (b->extents - 1)].channel),
			kvr_explain());
}

uint64_t kvr_bulk_put(struct kvr_channels *c, uint32_t channel, uint64_t set, uint64_t number,
		      const void *data, uint32_t len)
{
	struct kvr_bulk *b = &c->bulk;
	uint64_t bytes = aligned(len), begin = begin_of(b, bytes);
	uint64_t offset = begin & (b->bytes - 1);

	memcpy(b->mem + offset, data, len);
	b->pos = begin + bytes;
	b->extent[b->head++ & (b->extents - 1)] = (struct kvr_extent){ .end = b->pos,
								       .number = number,
								       .ns = kvr_now(),
								       .waits = set,
								       .channel = channel,
								       .len = len };
	tell_used(c);
	return offset;
}

void kvr_bulk_sent(struct kvr_channels *c, uint32_t rank)
{
	struct kvr_bulk *b = &c->bulk;
	uint64_t newest = b->head - 1;
	const struct kvr_extent *e = &b->extent[newest & (b->extents - 1)];
	const struct kvr_ring_writer *w = &c->writer[e->channel * c->g->layout.ranks + rank];

	*at(c, newest, rank) = (struct kvr_extent_at){ .passed = w->published,
						       .sent = w->published - w->published_extra };
}
