/* SPDX-License-Identifier: Apache-2.0 */
/* Pipeline x context x tensor. */
#include "kvring/axes.h"

#include <errno.h>
#include <string.h>

#include "err.h"

typedef unsigned long long ull;

static int check_sizes(const char *call, uint32_t pipeline, uint32_t context, uint32_t tensor)
{
	/* Each is bounded first: the product of three may wrap. */
	if (pipeline >= 1 && context >= 1 && tensor >= 1 && pipeline <= KVR_MAX_RANKS &&
	    context <= KVR_MAX_RANKS && tensor <= KVR_MAX_RANKS &&
	    pipeline * context * tensor <= KVR_MAX_RANKS)
		return 0;
	return KVR_FAIL(-EINVAL,
			"%s: pipeline %u x context %u x tensor %u; each 1 or more, and together at "
			"most %u ranks are possible",
			call, pipeline, context, tensor, KVR_MAX_RANKS);
}

/* `count` ranks from `first` on, so far apart. */
static uint64_t row(uint32_t first, uint32_t count, uint32_t apart)
{
	uint64_t set = 0;

	for (uint32_t i = 0; i < count; i++)
		set |= 1ull << (first + i * apart);
	return set;
}

int kvr_axes_of(uint32_t pipeline, uint32_t context, uint32_t tensor, uint32_t rank,
		struct kvr_axes *ret_axes)
{
	int err = check_sizes("kvr_axes_of", pipeline, context, tensor);
	uint32_t stage = context * tensor, p, c, t;

	if (err)
		return err;
	if (rank >= pipeline * stage)
		return KVR_FAIL(-EINVAL,
				"kvr_axes_of: rank %u; pipeline %u x context %u x tensor %u has "
				"ranks 0 to %u",
				rank, pipeline, context, tensor, pipeline * stage - 1);
	p = rank / stage;
	c = rank / tensor % context;
	t = rank % tensor;
	*ret_axes = (struct kvr_axes){ .pipeline_size = pipeline,
				       .context_size = context,
				       .tensor_size = tensor,
				       .rank = rank,
				       .p = p,
				       .c = c,
				       .t = t,
				       .pipeline = row(c * tensor + t, pipeline, stage),
				       .context = row(p * stage + t, context, tensor),
				       .tensor = row(p * stage + c * tensor, tensor, 1),
				       .stage = row(p * stage, stage, 1),
				       .all = row(0, pipeline * stage, 1) };
	ret_axes->roles = (p == 0 ? KVR_ROLE_FIRST_STAGE : 0u) |
			  (p == pipeline - 1 ? KVR_ROLE_LAST_STAGE : 0u) |
			  (c == 0 && t == 0 ? KVR_ROLE_STAGE_LEADER : 0u) |
			  (c == 0 ? KVR_ROLE_CONTEXT_LEADER : 0u) |
			  (t == 0 ? KVR_ROLE_TENSOR_LEADER : 0u) |
			  (rank == 0 ? KVR_ROLE_SYNC_LEADER : 0u);
	return 0;
}

static int check_block(uint32_t pipeline, uint32_t parts, uint32_t layer_groups,
		       uint64_t block_bytes)
{
	if (layer_groups < pipeline)
		return KVR_FAIL(-EINVAL,
				"kvr_shape_axes: %u layer groups cannot be divided among %u "
				"pipeline stages; each must have one",
				layer_groups, pipeline);
	if (!block_bytes || block_bytes % layer_groups)
		return KVR_FAIL(-EINVAL,
				"kvr_shape_axes: a block of %llu bytes cannot be divided into %u "
				"layer groups of equal size",
				(ull)block_bytes, layer_groups);
	if (block_bytes / layer_groups % parts)
		return KVR_FAIL(-EINVAL,
				"kvr_shape_axes: a layer group of %llu bytes cannot be divided "
				"among %u tensor ranks; choose a multiple, or a replicated shape",
				(ull)(block_bytes / layer_groups), parts);
	return 0;
}

/* The shard of one tensor rank of one stage; none of them is empty. */
static struct kvr_shard shard_of(const struct kvr_axes *a, const struct kvr_shape *s,
				 uint32_t parts)
{
	uint32_t least = s->layer_groups / a->pipeline_size;
	uint32_t more = s->layer_groups % a->pipeline_size;
	uint64_t bytes = s->layer_bytes / parts;

	return (struct kvr_shard){ .writer = a->rank,
				   .first_layer = a->p * least + (a->p < more ? a->p : more),
				   .layers = least + (a->p < more),
				   .offset = bytes * a->t,
				   .bytes = bytes,
				   .readers = parts == 1 ? a->stage : a->context };
}

int kvr_shape_axes(uint32_t pipeline, uint32_t context, uint32_t tensor, uint32_t layer_groups,
		   uint64_t block_bytes, int replicated, struct kvr_shape *ret_shape)
{
	int err = check_sizes("kvr_shape_axes", pipeline, context, tensor);
	uint32_t parts = replicated ? 1 : tensor, ranks = pipeline * context * tensor;
	struct kvr_shape s = { .layer_groups = layer_groups };

	if (!err)
		err = check_block(pipeline, parts, layer_groups, block_bytes);
	if (err)
		return err;
	s.layer_bytes = block_bytes / layer_groups;
	for (uint32_t rank = 0; rank < ranks; rank++) {
		struct kvr_axes a;

		/* Cannot fail. At most one shard a rank, so there is room. */
		if (kvr_axes_of(pipeline, context, tensor, rank, &a))
			break;
		if (a.c == 0 && a.t < parts)
			s.shard[s.shards++] = shard_of(&a, &s, parts);
	}
	err = kvr_shape_check(&s, ranks);
	if (!err)
		*ret_shape = s;
	return err;
}
