/* SPDX-License-Identifier: Apache-2.0 */
/* Pipeline x context x tensor, compared with loops over all ranks that know nothing of masks. */
#include "kvring/axes.h"

#include <errno.h>

#include "harness.h"
#include "kvring/err.h"

#define SIDE 8u /* sizes that are tried on each axis */

struct at {
	uint32_t p, c, t;
};

/* Counts up in the order of the numbering; no division. */
static void number_all(uint32_t pp, uint32_t cp, uint32_t tp, struct at ret[KVR_MAX_RANKS])
{
	uint32_t rank = 0;

	for (uint32_t p = 0; p < pp; p++)
		for (uint32_t c = 0; c < cp; c++)
			for (uint32_t t = 0; t < tp; t++)
				ret[rank++] = (struct at){ p, c, t };
}

/* All of these must hold; Check is told once, not for each of thousands. */
#define HOLDS(cond)                                                                                \
	do {                                                                                       \
		if (!(cond))                                                                       \
			ck_abort_msg("%u x %u x %u, rank %u: not true: %s", pp, cp, tp, r, #cond); \
	} while (0)

static void sets_of_one(uint32_t pp, uint32_t cp, uint32_t tp, uint32_t r, const struct at *at)
{
	uint64_t pipeline = 0, context = 0, tensor = 0, stage = 0, all = 0;
	struct at me = at[r];
	struct kvr_axes a;

	HOLDS(!kvr_axes_of(pp, cp, tp, r, &a));
	for (uint32_t o = 0; o < pp * cp * tp; o++) {
		uint64_t bit = 1ull << o;

		pipeline |= at[o].c == me.c && at[o].t == me.t ? bit : 0;
		context |= at[o].p == me.p && at[o].t == me.t ? bit : 0;
		tensor |= at[o].p == me.p && at[o].c == me.c ? bit : 0;
		stage |= at[o].p == me.p ? bit : 0;
		all |= bit;
	}
	HOLDS(a.p == me.p && a.c == me.c && a.t == me.t && a.rank == r);
	HOLDS(a.pipeline_size == pp && a.context_size == cp && a.tensor_size == tp);
	HOLDS(a.pipeline == pipeline && a.context == context && a.tensor == tensor);
	HOLDS(a.stage == stage && a.all == all);
	HOLDS(!(a.roles & KVR_ROLE_FIRST_STAGE) == (me.p != 0));
	HOLDS(!(a.roles & KVR_ROLE_LAST_STAGE) == (me.p != pp - 1));
	/* A leader is the lowest of its set. */
	HOLDS(!(a.roles & KVR_ROLE_STAGE_LEADER) == (r != (uint32_t)__builtin_ctzll(stage)));
	HOLDS(!(a.roles & KVR_ROLE_CONTEXT_LEADER) == (r != (uint32_t)__builtin_ctzll(context)));
	HOLDS(!(a.roles & KVR_ROLE_TENSOR_LEADER) == (r != (uint32_t)__builtin_ctzll(tensor)));
	HOLDS(!(a.roles & KVR_ROLE_SYNC_LEADER) == (r != 0));
	HOLDS(!(a.roles >> 6));
}

/* Every size up to 64 ranks. */
START_TEST(test_coordinates_sets_and_roles)
{
	struct at at[KVR_MAX_RANKS];
	uint32_t sizes = 0;

	for (uint32_t pp = 1; pp <= KVR_MAX_RANKS; pp++)
		for (uint32_t cp = 1; pp * cp <= KVR_MAX_RANKS; cp++)
			for (uint32_t tp = 1; pp * cp * tp <= KVR_MAX_RANKS; tp++, sizes++) {
				number_all(pp, cp, tp, at);
				for (uint32_t r = 0; r < pp * cp * tp; r++)
					sets_of_one(pp, cp, tp, r, at);
			}
	ck_assert_uint_gt(sizes, 600);
}
END_TEST

START_TEST(test_numbering_is_that_of_vllm_and_sglang)
{
	struct kvr_axes a;

	ck_assert_int_eq(kvr_axes_of(2, 2, 4, 13, &a), 0);
	ck_assert_uint_eq(a.p, 1);
	ck_assert_uint_eq(a.c, 1);
	ck_assert_uint_eq(a.t, 1);
	ck_assert_uint_eq(a.pipeline, 1u << 5 | 1u << 13);
	ck_assert_uint_eq(a.context, 1u << 9 | 1u << 13);
	ck_assert_uint_eq(a.tensor, 0xf000);
	ck_assert_uint_eq(a.stage, 0xff00);
	ck_assert_uint_eq(a.roles, KVR_ROLE_LAST_STAGE);
	ck_assert_int_eq(kvr_axes_of(2, 2, 4, 0, &a), 0);
	ck_assert_uint_eq(a.roles, 0x3f & ~(unsigned int)KVR_ROLE_LAST_STAGE);
	ck_assert_int_eq(kvr_axes_of(2, 2, 4, 8, &a), 0);
	ck_assert_uint_eq(a.roles, KVR_ROLE_LAST_STAGE | KVR_ROLE_STAGE_LEADER |
					   KVR_ROLE_CONTEXT_LEADER | KVR_ROLE_TENSOR_LEADER);
	ck_assert_int_eq(kvr_axes_of(1, 1, 1, 0, &a), 0);
	ck_assert_uint_eq(a.roles, 0x3f);
	ck_assert_int_eq(kvr_axes_of(1, 1, 64, 63, &a), 0);
	ck_assert(a.tensor == UINT64_MAX && a.all == UINT64_MAX);
}
END_TEST

static void refused(int err, const char *text)
{
	ck_assert_int_eq(err, -EINVAL);
	ck_assert_msg(strstr(kvr_explain(), text), "\"%s\" is not in: %s", text, kvr_explain());
}

START_TEST(test_refused_axes)
{
	struct kvr_axes a, before;

	memset(&a, 0x5a, sizeof a);
	before = a;
	refused(kvr_axes_of(0, 1, 1, 0, &a), "kvr_axes_of: pipeline 0 x context 1 x tensor 1;");
	refused(kvr_axes_of(1, 0, 1, 0, &a), "pipeline 1 x context 0 x tensor 1;");
	refused(kvr_axes_of(1, 1, 0, 0, &a), "pipeline 1 x context 1 x tensor 0;");
	refused(kvr_axes_of(5, 13, 1, 0, &a), "pipeline 5 x context 13 x tensor 1;");
	refused(kvr_axes_of(1, 1, 65, 0, &a), "at most 64 ranks");
	refused(kvr_axes_of(1u << 16, 1u << 16, 1, 0, &a), "65536"); /* whose product wraps to 0 */
	refused(kvr_axes_of(1, 1u << 31, 2, 0, &a), "2147483648");
	refused(kvr_axes_of(2, 2, 2, 8, &a),
		"rank 8; pipeline 2 x context 2 x tensor 2 has ranks 0 to 7");
	refused(kvr_axes_of(1, 1, 1, UINT32_MAX, &a), "rank 4294967295");
	ck_assert_mem_eq(&a, &before, sizeof a);
}
END_TEST

/* --- shapes --- */

/* The stage of each layer group: dealt out one by one, then in order. */
static void deal(uint32_t pp, uint32_t layers, uint32_t *ret_stage)
{
	uint32_t has[KVR_MAX_RANKS] = { 0 }, l = 0;

	for (uint32_t i = 0; i < layers; i++)
		has[i % pp]++;
	for (uint32_t p = 0; p < pp; p++)
		for (uint32_t i = 0; i < has[p]; i++)
			ret_stage[l++] = p;
}

/* Who writes this byte, and who reads it; the number of shards that have it. */
static uint32_t shards_of(const struct kvr_shape *s, uint32_t layer, uint64_t byte,
			  struct kvr_shard *ret)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->shards; i++) {
		const struct kvr_shard *h = &s->shard[i];

		if (layer < h->first_layer || layer >= h->first_layer + h->layers ||
		    byte < h->offset || byte >= h->offset + h->bytes)
			continue;
		*ret = *h;
		n++;
	}
	return n;
}

static void shape_of_one(uint32_t pp, uint32_t cp, uint32_t tp, uint32_t layers, int replicated)
{
	uint32_t stage[3 * SIDE], bytes = replicated ? 3 : 2 * tp, r = 0;
	struct at at[KVR_MAX_RANKS];
	struct kvr_shape s;

	number_all(pp, cp, tp, at);
	deal(pp, layers, stage);
	if (kvr_shape_axes(pp, cp, tp, layers, (uint64_t)layers * bytes, replicated, &s))
		ck_abort_msg("%u x %u x %u, %u layers: %s", pp, cp, tp, layers, kvr_explain());
	HOLDS(s.layer_groups == layers && s.layer_bytes == bytes);
	HOLDS(s.shards == pp * (replicated ? 1 : tp));
	HOLDS(!kvr_shape_check(&s, pp * cp * tp));
	for (uint32_t l = 0; l < layers; l++)
		for (uint32_t b = 0; b < bytes; b++) {
			uint32_t t = replicated ? 0 : b / 2;
			struct kvr_shard h = { 0 };

			HOLDS(shards_of(&s, l, b, &h) == 1);
			for (r = 0; r < pp * cp * tp; r++) {
				int part = at[r].p == stage[l] && (replicated || at[r].t == t);

				HOLDS((h.readers >> r & 1) == (unsigned int)part);
				HOLDS((h.writer == r) == (part && at[r].c == 0 && at[r].t == t));
			}
			HOLDS(r == 64 || !(h.readers >> r));
		}
}

START_TEST(test_every_byte_has_one_writer_and_its_readers)
{
	uint32_t shapes = 0;

	for (uint32_t pp = 1; pp <= SIDE; pp++)
		for (uint32_t cp = 1; cp <= SIDE; cp++)
			for (uint32_t tp = 1; tp <= SIDE && pp * cp * tp <= KVR_MAX_RANKS; tp++)
				for (uint32_t layers = pp; layers <= 2 * pp + 1; layers++) {
					shape_of_one(pp, cp, tp, layers, 0);
					shape_of_one(pp, cp, tp, layers, 1);
					shapes += 2;
				}
	ck_assert_uint_gt(shapes, 1500);
}
END_TEST

START_TEST(test_shapes_of_real_models)
{
	struct kvr_shape s;

	/* Llama-3-70B, 2 stages of 2 context x 4 tensor ranks: 16 KiB of each layer each */
	ck_assert_int_eq(kvr_shape_axes(2, 2, 4, 80, 5 << 20, 0, &s), 0);
	ck_assert_uint_eq(s.shards, 8);
	ck_assert_uint_eq(s.shard[5].writer, 9);
	ck_assert_uint_eq(s.shard[5].readers, 1u << 9 | 1u << 13);
	ck_assert_uint_eq(s.shard[5].first_layer, 40);
	ck_assert_uint_eq(s.shard[5].layers, 40);
	ck_assert_uint_eq(s.shard[5].offset, 16384);
	ck_assert_uint_eq(s.shard[5].bytes, 16384);
	/* DeepSeek-V3 (MLA), 4 stages of 8: 61 layers are 16 + 15 + 15 + 15 */
	ck_assert_int_eq(kvr_shape_axes(4, 1, 8, 61, 1124352, 1, &s), 0);
	ck_assert_uint_eq(s.shards, 4);
	ck_assert_uint_eq(s.shard[0].layers, 16);
	ck_assert_uint_eq(s.shard[1].first_layer, 16);
	ck_assert_uint_eq(s.shard[3].first_layer, 46);
	ck_assert_uint_eq(s.shard[3].layers, 15);
	ck_assert_uint_eq(s.shard[3].writer, 24);
	ck_assert_uint_eq(s.shard[3].readers, 0xff000000u);
	/* The most: 64 ranks, a shard each. */
	ck_assert_int_eq(kvr_shape_axes(8, 1, 8, 64, 64 * 64, 0, &s), 0);
	ck_assert_uint_eq(s.shards, 64);
	/* One stage is what the simpler calls make. */
	for (int replicated = 0; replicated < 2; replicated++) {
		struct kvr_shape other;

		ck_assert_int_eq(kvr_shape_axes(1, 1, 8, 61, 61 * 1024, replicated, &s), 0);
		ck_assert_int_eq(replicated ? kvr_shape_replicated(8, 61, 61 * 1024, &other)
					    : kvr_shape_split(8, 61, 61 * 1024, &other),
				 0);
		ck_assert_mem_eq(&s, &other, sizeof s);
	}
}
END_TEST

START_TEST(test_refused_shapes)
{
	struct kvr_shape s, before;

	memset(&s, 0x5a, sizeof s);
	before = s;
	refused(kvr_shape_axes(5, 1, 13, 65, 65 * 13, 0, &s),
		"kvr_shape_axes: pipeline 5 x context 1 x tensor 13; each 1 or more, and together at "
		"most 64 ranks");
	refused(kvr_shape_axes(0, 1, 1, 4, 4, 0, &s), "pipeline 0");
	refused(kvr_shape_axes(4, 1, 1, 3, 3, 0, &s), "3 layer groups cannot be divided among 4");
	refused(kvr_shape_axes(1, 1, 1, 0, 8, 0, &s), "0 layer groups");
	refused(kvr_shape_axes(1, 1, 1, 3, 8, 0, &s), "8 bytes cannot be divided into 3");
	refused(kvr_shape_axes(1, 1, 1, 3, 0, 0, &s), "0 bytes");
	refused(kvr_shape_axes(1, 1, 3, 2, 8, 0, &s),
		"4 bytes cannot be divided among 3 tensor ranks");
	ck_assert_int_eq(kvr_shape_axes(1, 1, 3, 2, 8, 1, &(struct kvr_shape){ 0 }), 0);
	refused(kvr_shape_axes(1, 1, 1, 5000, 5000, 0, &s), "5000 layer groups (1 to 4096)");
	refused(kvr_shape_axes(1, 1, 1, 1, 2ull << 30, 0, &s), "2147483648 bytes");
	ck_assert_mem_eq(&s, &before, sizeof s);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("axes");
	TCase *t = tcase_create("axes");

	tcase_add_test(t, test_coordinates_sets_and_roles);
	tcase_add_test(t, test_numbering_is_that_of_vllm_and_sglang);
	tcase_add_test(t, test_refused_axes);
	tcase_add_test(t, test_every_byte_has_one_writer_and_its_readers);
	tcase_add_test(t, test_shapes_of_real_models);
	tcase_add_test(t, test_refused_shapes);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
