/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's part of the connector, shared by its files: connector_ops.c (what it knows of
 * operations), connector_rank.c (lookup, store), connector_load.c (loads, bytes),
 * connector_ticks.c (completions), connector_input.c (bounds).
 */
#ifndef KVR_CONNECTOR_RANK_H
#define KVR_CONNECTOR_RANK_H

#include "atomic.h"
#include "connector_priv.h"

#define KVR_NO_LIST UINT32_MAX

void kvr_rank_op_forget(struct kvr_rank_ops *k, struct kvr_rank_op *op);
/* The operation of an answer, with a list for its blocks unless it needs none; NULL: no room. */
struct kvr_rank_op *kvr_rank_op_add(struct kvr_connector *c, const struct kvr_request *req,
				    uint32_t kind, const struct kvr_engine_answer *a);
struct kvr_engine_block *kvr_rank_list(struct kvr_connector *c, const struct kvr_rank_op *op);
void kvr_rank_list_drop(struct kvr_connector *c, struct kvr_rank_op *op);
/* It ended, as far as the leader's word or a completion says. */
int kvr_rank_op_ended(const struct kvr_connector *c, const struct kvr_rank_op *op);
static inline struct kvr_rank_page *kvr_rank_page(struct kvr_connector *c)
{
	return kvr_group_own_page(c->group);
}
/* One more in a counter of this rank's page. */
static inline void kvr_rank_count(uint64_t *counter)
{
	kvr_store_relaxed(counter, *counter + 1);
}
/* That answer will not be taken; arg: the connector. The leader is told. */
void kvr_rank_begin_dropped(void *arg, const struct kvr_message *m);
/* Stores this rank's word for an operation and rings the leader, unless the entry is another's. */
void kvr_rank_acknowledge(struct kvr_connector *c, uint32_t entry, uint32_t gen, enum kvr_ack code,
			  uint32_t value);
void kvr_rank_answer(struct kvr_connector *c, struct kvr_rank_op *op, enum kvr_ack code,
		     uint32_t value);
/* The sentence of an operation that has no other end; and of one that is not known here. */
int kvr_rank_lost(struct kvr_connector *c, const struct kvr_rank_op *op);
int kvr_rank_unknown(struct kvr_connector *c, const struct kvr_request *req, uint32_t kind);
/* Waits until the leader's word says that stage, or an end. 0 and the word's value, or -errno. */
int kvr_rank_wait_op(struct kvr_connector *c, struct kvr_rank_op *op, enum kvr_stage stage,
		     uint64_t deadline_ns, uint32_t *ret_value);
/* Waits until so many layer groups of a load are in the pool. 0 or -errno. */
int kvr_rank_wait_layers(struct kvr_connector *c, struct kvr_rank_op *op, uint32_t groups,
			 uint64_t deadline_ns);
/* The answer to a begin: copied, bounded, and remembered. 0 or -errno. No generation: there is no
 * operation, and neither *ret_op nor *ret_message is set. */
int kvr_rank_take_begin(struct kvr_connector *c, uint32_t kind, const struct kvr_request *req,
			uint32_t n, uint64_t deadline_ns, struct kvr_engine_answer *ret_answer,
			struct kvr_rank_op **ret_op, struct kvr_message *ret_message);
void kvr_rank_fill(struct kvr_connector *c, const struct kvr_rank_op *op, uint32_t n,
		   struct kvr_block *ret_blocks);
/* This rank writes a shard: its answer to a store is waited for. */
int kvr_rank_writes(const struct kvr_connector *c);
/* The operation ended without this rank: it gives the blocks back. */
void kvr_rank_give_up(struct kvr_connector *c, struct kvr_rank_op *op);
/* This rank's segments of a block: hashes them into its header page. */
void kvr_rank_hash(struct kvr_connector *c, uint32_t slot);

#endif
