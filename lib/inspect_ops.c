/* SPDX-License-Identifier: Apache-2.0 */
/* The leader's table of operations, and the barriers and reductions in everybody's page. */
#include "inspect_priv.h"

#include <string.h>

#include "err.h"
#include "util.h"

int kvr_inspect_op_entry(struct kvr_inspect *in, uint32_t i, struct kvr_op_entry *e)
{
	uint64_t off = in->layout.leader_ops + i * sizeof *e, word;
	int err;

	for (int t = 0; t < KVR_INSPECT_TRIES; t++) {
		err = read_at(in, &word, sizeof word, off);
		if (err || word == e->word)
			return err;
		err = read_at(in, e, sizeof *e, off);
		if (err)
			return err;
	}
	return 0;
}

int kvr_inspect_ops(struct kvr_inspect *inspect, struct kvr_inspect_op *ret_ops, uint32_t max)
{
	uint32_t entries = inspect->layout.ops, n = 0;
	size_t bytes = entries * sizeof(struct kvr_op_entry);
	int err = kvr_inspect_scratch(inspect, bytes);

	if (!err)
		err = read_at(inspect, inspect->scratch, bytes, inspect->layout.leader_ops);
	for (uint32_t i = 0; !err && i < entries && n < max; i++) {
		struct kvr_op_entry e;
		uint32_t stage;

		memcpy(&e, inspect->scratch + i * sizeof e, sizeof e);
		if (!kvr_word_gen(e.word))
			continue;
		err = kvr_inspect_op_entry(inspect, i, &e);
		stage = kvr_word_code(e.word);
		if (err || stage < KVR_STAGE_BEGUN || stage >= KVR_STAGES ||
		    (stage >= KVR_STAGE_END && !(e.need & ~e.acked)))
			continue;
		ret_ops[n++] = (struct kvr_inspect_op){
			.request = { .id = e.request, .space = e.space, .attempt = e.attempt },
			.entry = i,
			.kind = e.kind,
			.stage = stage,
			.value = kvr_word_value(e.word),
			.blocks = e.blocks,
			.layered = e.flags & KVR_OP_LAYERED,
			.layers = e.layers >> 32 == kvr_word_gen(e.word) ? (uint32_t)e.layers : 0,
			.begun_ns = e.begun_ns,
			.stage_ns = e.stage_ns,
			.need = e.need,
			.acked = e.acked
		};
	}
	return err ? err : (int)n;
}

const char *kvr_inspect_op_name(uint32_t kind)
{
	return kvr_op_kind_name(kind);
}

/* A set, as one member's page knows it, into what is known of that set. */
static void meet_add(struct kvr_inspect_meet *m, const struct kvr_meet *e, uint32_t rank)
{
	uint64_t round = e->round >> 8;
	uint32_t values = e->round & 0xff;

	if (round > m->round) {
		m->round = round;
		m->values = values;
		m->arrived = m->leader_arrived = m->differ = 0;
	}
	if (round < m->round || !round)
		return;
	if (values != m->values)
		m->differ = 1;
	if (rank == KVR_LEADER)
		m->leader_arrived = 1;
	else
		m->arrived |= 1ull << rank;
}

static int meets_of(struct kvr_inspect *in, uint32_t rank, struct kvr_inspect_meet *ret, uint32_t n,
		    uint32_t max)
{
	uint64_t all = in->layout.ranks < 64 ? (1ull << in->layout.ranks) - 1 : UINT64_MAX;
	union {
		struct kvr_leader_page leader;
		struct kvr_rank_page rank;
	} page;
	const struct kvr_meet *meet = rank == KVR_LEADER ? page.leader.meet : page.rank.meet;
	int err = kvr_inspect_page(in, rank, &page);
	uint32_t i, k;

	for (i = 0; !err && i < KVR_MEETS; i++) {
		uint32_t with_leader = meet[i].with_leader == 1;

		/* A page that was overwritten may name anybody: who is in a set says so itself. */
		if (!meet[i].ranks || meet[i].ranks & ~all ||
		    !(rank == KVR_LEADER ? with_leader : meet[i].ranks >> rank & 1))
			continue;
		for (k = 0; k < n; k++)
			if (ret[k].ranks == meet[i].ranks && ret[k].with_leader == with_leader)
				break;
		if (k == max)
			continue;
		if (k == n)
			ret[n++] = (struct kvr_inspect_meet){ .ranks = meet[i].ranks,
							      .with_leader = with_leader };
		meet_add(&ret[k], &meet[i], rank);
	}
	return err ? err : (int)n;
}

int kvr_inspect_meets(struct kvr_inspect *inspect, struct kvr_inspect_meet *ret_meets, uint32_t max)
{
	int n = meets_of(inspect, KVR_LEADER, ret_meets, 0, max);

	for (uint32_t r = 0; n >= 0 && r < inspect->layout.ranks; r++)
		n = meets_of(inspect, r, ret_meets, (uint32_t)n, max);
	return n;
}
