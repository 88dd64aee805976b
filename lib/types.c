/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes of blocks, and the names of channels, tags and stages. */
#include "kvring/types.h"

#include <errno.h>
#include <string.h>

#include "err.h"
#include "util.h"

static int shape_base(const char *call, uint32_t ranks, uint32_t layer_groups, uint64_t block_bytes)
{
	if (ranks < 1 || ranks > KVR_MAX_RANKS)
		return KVR_FAIL(-EINVAL, "%s: %u ranks; 1 to %u are supported", call, ranks,
				KVR_MAX_RANKS);
	if (layer_groups < 1 || block_bytes < 1 || block_bytes % layer_groups)
		return KVR_FAIL(
			-EINVAL,
			"%s: a block of %llu bytes cannot be divided into %u layer groups of "
			"equal size",
			call, (unsigned long long)block_bytes, layer_groups);
	return 0;
}

int kvr_shape_split(uint32_t ranks, uint32_t layer_groups, uint64_t block_bytes,
		    struct kvr_shape *ret_shape)
{
	int err = shape_base("kvr_shape_split", ranks, layer_groups, block_bytes);

	if (err)
		return err;
	uint64_t layer = block_bytes / layer_groups;

	if (layer % ranks)
		return KVR_FAIL(-EINVAL,
				"kvr_shape_split: a layer group of %llu bytes cannot be divided "
				"among %u ranks; choose a multiple, or a replicated shape",
				(unsigned long long)layer, ranks);
	memset(ret_shape, 0, sizeof *ret_shape);
	ret_shape->layer_groups = layer_groups;
	ret_shape->layer_bytes = layer;
	ret_shape->shards = ranks;
	for (uint32_t r = 0; r < ranks; r++)
		ret_shape->shard[r] = (struct kvr_shard){ .writer = r,
							  .layers = layer_groups,
							  .offset = layer / ranks * r,
							  .bytes = layer / ranks,
							  .readers = 1ull << r };
	return 0;
}

int kvr_shape_replicated(uint32_t ranks, uint32_t layer_groups, uint64_t block_bytes,
			 struct kvr_shape *ret_shape)
{
	int err = shape_base("kvr_shape_replicated", ranks, layer_groups, block_bytes);

	if (err)
		return err;
	memset(ret_shape, 0, sizeof *ret_shape);
	ret_shape->layer_groups = layer_groups;
	ret_shape->layer_bytes = block_bytes / layer_groups;
	ret_shape->shards = 1;
	ret_shape->shard[0] =
		(struct kvr_shard){ .layers = layer_groups,
				    .bytes = ret_shape->layer_bytes,
				    .readers = ranks == 64 ? ~0ull : (1ull << ranks) - 1 };
	return 0;
}

static int shard_check(const struct kvr_shape *s, uint32_t i, uint32_t ranks)
{
	const struct kvr_shard *h = &s->shard[i];

	if (h->writer >= ranks)
		return KVR_FAIL(-EINVAL, "shape: shard %u is written by rank %u of %u", i,
				h->writer, ranks);
	if (!h->readers || (ranks < 64 && h->readers >> ranks))
		return KVR_FAIL(-EINVAL, "shape: shard %u has readers %#llx, of %u ranks", i,
				(unsigned long long)h->readers, ranks);
	if (!h->layers || h->first_layer >= s->layer_groups ||
	    h->layers > s->layer_groups - h->first_layer)
		return KVR_FAIL(-EINVAL, "shape: shard %u covers layer groups %u + %u of %u", i,
				h->first_layer, h->layers, s->layer_groups);
	if (!h->bytes || h->offset >= s->layer_bytes || h->bytes > s->layer_bytes - h->offset)
		return KVR_FAIL(-EINVAL, "shape: shard %u covers bytes %llu + %llu of %llu", i,
				(unsigned long long)h->offset, (unsigned long long)h->bytes,
				(unsigned long long)s->layer_bytes);
	return 0;
}

static int covers(const struct kvr_shard *h, uint32_t layer, uint64_t byte)
{
	return h->first_layer <= layer && layer < h->first_layer + h->layers && h->offset <= byte &&
	       byte < h->offset + h->bytes;
}

/* Two rectangles overlap exactly where the larger of their first bytes lies in both. */
static int overlap_check(const struct kvr_shape *s, uint32_t i, uint32_t j)
{
	const struct kvr_shard *a = &s->shard[i], *b = &s->shard[j];
	uint32_t layer = a->first_layer > b->first_layer ? a->first_layer : b->first_layer;
	uint64_t byte = a->offset > b->offset ? a->offset : b->offset;

	if (!covers(a, layer, byte) || !covers(b, layer, byte))
		return 0;
	return KVR_FAIL(-EINVAL,
			"shape: shards %u and %u overlap: both cover byte %llu of layer group %u",
			j, i, (unsigned long long)byte, layer);
}

static int gap_check(const struct kvr_shape *s, uint32_t layer)
{
	uint64_t byte = 0;

	while (byte < s->layer_bytes) {
		uint32_t i = 0;

		while (i < s->shards && !covers(&s->shard[i], layer, byte))
			i++;
		if (i == s->shards)
			return KVR_FAIL(-EINVAL,
					"shape: no shard covers byte %llu of layer group %u",
					(unsigned long long)byte, layer);
		byte = s->shard[i].offset + s->shard[i].bytes;
	}
	return 0;
}

int kvr_shape_check(const struct kvr_shape *shape, uint32_t ranks)
{
	if (shape->shards < 1 || shape->shards > KVR_MAX_SHARDS || ranks < 1 ||
	    ranks > KVR_MAX_RANKS)
		return KVR_FAIL(-EINVAL, "shape: %u shards (1 to %u), %u ranks (1 to %u)",
				shape->shards, KVR_MAX_SHARDS, ranks, KVR_MAX_RANKS);
	if (shape->layer_groups < 1 || shape->layer_groups > 4096 || shape->layer_bytes < 1 ||
	    shape->layer_bytes > (1ull << 30))
		return KVR_FAIL(-EINVAL,
				"shape: %u layer groups (1 to 4096) of %llu bytes (1 to 1 GiB)",
				shape->layer_groups, (unsigned long long)shape->layer_bytes);
	for (uint32_t i = 0; i < shape->shards; i++) {
		int err = shard_check(shape, i, ranks);

		if (err)
			return err;
		for (uint32_t j = 0; j < i && !err; j++)
			err = overlap_check(shape, i, j);
		if (err)
			return err;
	}
	for (uint32_t l = 0; l < shape->layer_groups; l++) {
		int err = gap_check(shape, l);

		if (err)
			return err;
	}
	return 0;
}

const char *kvr_channel_name(uint32_t channel)
{
	static const char *const names[] = { "LOOKUP",	"STORE", "COMPLETE", "LOAD",  "PREFETCH",
					     "CONTROL", "USER0", "USER1",    "USER2", "USER3" };

	_Static_assert(KVR_ARRAY_LEN(names) == KVR_CHANNELS, "a name a channel");
	return channel < KVR_CHANNELS ? names[channel] : "?";
}

const char *kvr_tag_name(uint32_t tag)
{
	static const char *const names[] = { "NONE",	       "LOOKUP_RESULT", "STORE_BEGIN",
					     "STORE_COMPLETE", "LOAD_BEGIN",	"SHUTDOWN",
					     "RESET",	       "PREFETCH",	"PROPOSE" };

	if (tag < KVR_ARRAY_LEN(names))
		return names[tag];
	return tag >= KVR_TAG_USER ? "USER" : "?";
}

const char *kvr_stage_name(uint32_t stage)
{
	static const char *const names[] = { "none",   "begun",	    "committed", "copied",
					     "host",   "verified",  "written",	 "done",
					     "failed", "cancelled", "lost" };

	_Static_assert(KVR_ARRAY_LEN(names) == KVR_STAGES, "a name a stage");
	return stage < KVR_STAGES ? names[stage] : "?";
}

const char *kvr_peer_state_name(uint32_t state)
{
	static const char *const names[] = { "not attached",	  "attaching",	  "alive",
					     "stopped",		  "dumping core", "dead",
					     "left in good order" };

	_Static_assert(KVR_ARRAY_LEN(names) == KVR_PEER_STATES, "a name a state");
	return state < KVR_PEER_STATES ? names[state] : "?";
}
