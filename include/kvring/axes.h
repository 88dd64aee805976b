/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pipeline x context x tensor: which ranks share what. Pure arithmetic, no group is needed.
 *
 * Ranks are numbered as vLLM and SGLang number theirs: pipeline stage first, then context, then
 * tensor, the tensor ranks of a stage next to each other:
 *
 *     rank = (p * context + c) * tensor + t
 *
 * The sets are masks, as kvr_channels_publish(), _barrier() and _min_reduce() take them.
 */
#ifndef KVRING_AXES_H
#define KVRING_AXES_H

#include "kvring/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The leader of a set is its lowest rank, so each set has exactly one. (What SGLang's communicator
 * calls a CP leader, the rank through which the tensor ranks of one context position are reached,
 * leads its tensor set: KVR_ROLE_TENSOR_LEADER.)
 */
enum kvr_role {
	KVR_ROLE_FIRST_STAGE = 1u << 0,	   /* p == 0; leads its pipeline set */
	KVR_ROLE_LAST_STAGE = 1u << 1,	   /* p == the last one: has the logits */
	KVR_ROLE_STAGE_LEADER = 1u << 2,   /* c == 0 and t == 0 */
	KVR_ROLE_CONTEXT_LEADER = 1u << 3, /* c == 0: of the ranks with its p and t */
	KVR_ROLE_TENSOR_LEADER = 1u << 4,  /* t == 0: of the ranks with its p and c */
	KVR_ROLE_SYNC_LEADER = 1u << 5	   /* rank 0: p == 0, c == 0 and t == 0 */
};

struct kvr_axes {
	uint32_t pipeline_size, context_size, tensor_size;
	uint32_t rank;
	uint32_t p, c, t; /* its coordinates */
	uint32_t roles;	  /* enum kvr_role */
	/* Sets that it is in, itself included: */
	uint64_t pipeline; /* same c and t: those to whom its activations go */
	uint64_t context;  /* same p and t: one sequence, cut into parts */
	uint64_t tensor;   /* same p and c: one layer, cut into parts */
	uint64_t stage;	   /* same p: all who hold these layers */
	uint64_t all;
};

/*
 * Where this rank is. 0; -EINVAL: a size is 0, there are more than KVR_MAX_RANKS ranks, or this
 * rank is none of them.
 */
KVR_API int kvr_axes_of(uint32_t pipeline, uint32_t context, uint32_t tensor, uint32_t rank,
			struct kvr_axes *ret_axes);

/*
 * The shape of a block under these axes. Its layer groups are divided among the stages in order,
 * the first ones getting one more where that leaves a remainder; the bytes of a layer among the
 * tensor ranks. All context ranks of a stage and tensor rank read the same bytes, the one with
 * c == 0 writes them. `replicated`, as under MLA: the bytes of a layer are not divided, all ranks
 * of the stage read them, and its leader writes them.
 *
 * 0; -EINVAL, also with fewer layer groups than stages, a block that is no whole number of layer
 * groups, or a layer that is no whole number of tensor parts.
 */
KVR_API int kvr_shape_axes(uint32_t pipeline, uint32_t context, uint32_t tensor,
			   uint32_t layer_groups, uint64_t block_bytes, int replicated,
			   struct kvr_shape *ret_shape);

#ifdef __cplusplus
}
#endif
#endif
