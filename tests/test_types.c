/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes of blocks: what tiles a block exactly and what does not; and the names of constants. */
#include "harness.h"

#include "kvring/err.h"
#include "kvring/types.h"
#include "must.h"

/* --- shapes that the library makes ------------------------------------------------------------ */

START_TEST(test_split_gives_each_rank_its_part)
{
	struct kvr_shape s;
	uint32_t r;

	/* Llama-3-70B on 8 ranks */
	ck_assert_int_eq(kvr_shape_split(8, 80, 5 << 20, &s), 0);
	ck_assert_uint_eq(s.layer_groups, 80);
	ck_assert_uint_eq(s.layer_bytes, 65536);
	ck_assert_uint_eq(s.shards, 8);
	for (r = 0; r < 8; r++) {
		ck_assert_uint_eq(s.shard[r].writer, r);
		ck_assert_uint_eq(s.shard[r].readers, 1u << r);
		ck_assert_uint_eq(s.shard[r].first_layer, 0);
		ck_assert_uint_eq(s.shard[r].layers, 80);
		ck_assert_uint_eq(s.shard[r].offset, r * 8192);
		ck_assert_uint_eq(s.shard[r].bytes, 8192);
		ck_assert_uint_eq(s.shard[r].reserved, 0);
	}
	for (; r < KVR_MAX_SHARDS; r++) /* shapes are compared as bytes: unused ones are 0 */
		ck_assert_uint_eq(s.shard[r].bytes | s.shard[r].readers | s.shard[r].layers, 0);
	ck_assert_int_eq(kvr_shape_check(&s, 8), 0);
	ck_assert_int_eq(kvr_shape_check(&s, 64), 0);
	ck_assert_int_eq(kvr_shape_check(&s, 7), -EINVAL); /* a writer that does not exist */
}
END_TEST

START_TEST(test_replicated_is_written_once_and_read_by_all)
{
	struct kvr_shape s;

	/* DeepSeek-V3 on 8 ranks */
	ck_assert_int_eq(kvr_shape_replicated(8, 61, 1124352, &s), 0);
	ck_assert_uint_eq(s.layer_groups, 61);
	ck_assert_uint_eq(s.layer_bytes, 18432);
	ck_assert_uint_eq(s.shards, 1);
	ck_assert_uint_eq(s.shard[0].writer, 0);
	ck_assert_uint_eq(s.shard[0].readers, 0xff);
	ck_assert_uint_eq(s.shard[0].layers, 61);
	ck_assert_uint_eq(s.shard[0].bytes, 18432);
	ck_assert_int_eq(kvr_shape_check(&s, 8), 0);
	ck_assert_int_eq(kvr_shape_replicated(64, 1, 1, &s), 0);
	ck_assert(s.shard[0].readers == UINT64_MAX);
	ck_assert_int_eq(kvr_shape_check(&s, 64), 0);
	ck_assert_int_eq(kvr_shape_replicated(1, 1, 1, &s), 0);
	ck_assert_uint_eq(s.shard[0].readers, 1);
	ck_assert_int_eq(kvr_shape_check(&s, 1), 0);
}
END_TEST

START_TEST(test_shapes_of_every_number_of_ranks)
{
	struct kvr_shape s;
	uint32_t ranks;

	for (ranks = 1; ranks <= KVR_MAX_RANKS; ranks++) {
		ck_assert_int_eq(kvr_shape_split(ranks, 3, 3ull * 24 * ranks, &s), 0);
		ck_assert_int_eq(kvr_shape_check(&s, ranks), 0);
		ck_assert_int_eq(kvr_shape_replicated(ranks, 3, 3ull * 24 * ranks, &s), 0);
		ck_assert_int_eq(kvr_shape_check(&s, ranks), 0);
	}
}
END_TEST

/* Each refusal says the numbers, and the caller's shape stays as it was. */
START_TEST(test_impossible_shapes_are_refused)
{
	static const struct {
		int split;
		uint32_t ranks, groups;
		uint64_t bytes;
		const char *said;
	} table[] = {
		{ 1, 0, 4, 4096, "0 ranks" },	     { 1, 65, 4, 65 * 16, "65 ranks" },
		{ 1, 4, 0, 4096, "0 layer groups" }, { 1, 4, 4, 0, "0 bytes" },
		{ 1, 4, 3, 4096, "3 layer groups" }, { 1, 3, 4, 4096, "3 ranks" },
		{ 0, 0, 4, 4096, "0 ranks" },	     { 0, 65, 4, 4096, "65 ranks" },
		{ 0, 4, 0, 4096, "0 layer groups" }, { 0, 4, 4, 0, "0 bytes" },
		{ 0, 4, 7, 4096, "4096 bytes" },     { 1, UINT32_MAX, 1, 1, "4294967295 ranks" },
		{ 1, 64, 1, 63, "63 bytes" },	     { 0, 1, UINT32_MAX, 4096, "4294967295" },
	};
	struct kvr_shape s, before;
	size_t i;
	int err;

	memset(&s, 0x5a, sizeof s);
	before = s;
	for (i = 0; i < sizeof table / sizeof table[0]; i++) {
		err = (table[i].split ? kvr_shape_split : kvr_shape_replicated)(
			table[i].ranks, table[i].groups, table[i].bytes, &s);
		ck_assert_msg(err == -EINVAL, "row %zu: %d", i, err);
		ck_assert_msg(strstr(kvr_explain(), table[i].said) != NULL, "row %zu: %s", i,
			      kvr_explain());
		ck_assert_msg(strstr(kvr_explain(),
				     table[i].split ? "kvr_shape_split" : "kvr_shape_replicated") !=
				      NULL,
			      "row %zu: %s", i, kvr_explain());
		ck_assert_int_eq(memcmp(&s, &before, sizeof s), 0);
	}
}
END_TEST

/* --- shapes of a caller ------------------------------------------------------------------------
 */

/* 2 pipeline stages x 2 tensor ranks: 6 layer groups of 100 bytes, 4 + 2 layers. */
static struct kvr_shape pipeline(void)
{
	struct kvr_shape s = { .layer_groups = 6, .layer_bytes = 100, .shards = 4 };
	uint32_t r;

	for (r = 0; r < 4; r++)
		s.shard[r] = (struct kvr_shard){ .writer = r,
						 .first_layer = r < 2 ? 0 : 4,
						 .layers = r < 2 ? 4 : 2,
						 .offset = r % 2 * 40,
						 .bytes = r % 2 ? 60 : 40,
						 .readers = 1u << r };
	return s;
}

START_TEST(test_pipeline_by_tensor_shape)
{
	struct kvr_shape s = pipeline(), t;

	ck_assert_int_eq(kvr_shape_check(&s, 4), 0);
	/* the order of shards does not matter */
	t = s;
	t.shard[0] = s.shard[3];
	t.shard[3] = s.shard[0];
	ck_assert_int_eq(kvr_shape_check(&t, 4), 0);
	/* stages that cut their layers differently */
	s.shard[2].bytes = 10;
	s.shard[3].offset = 10;
	s.shard[3].bytes = 90;
	ck_assert_int_eq(kvr_shape_check(&s, 4), 0);
	/* one rank writes two of them, all read one */
	s.shard[3].writer = 0;
	s.shard[2].readers = 0xf;
	ck_assert_int_eq(kvr_shape_check(&s, 4), 0);
	/* a shard that ends where the next layers begin is no overlap, one further is */
	s.shard[0].layers = 5;
	ck_assert_int_eq(kvr_shape_check(&s, 4), -EINVAL);
}
END_TEST

enum field { LAYER_GROUPS, LAYER_BYTES, SHARDS, WRITER, FIRST, LAYERS, OFFSET, BYTES, READERS };

static void set_field(struct kvr_shape *s, enum field field, uint32_t shard, uint64_t value)
{
	struct kvr_shard *h = &s->shard[shard];

	switch (field) {
	case LAYER_GROUPS:
		s->layer_groups = (uint32_t)value;
		break;
	case LAYER_BYTES:
		s->layer_bytes = value;
		break;
	case SHARDS:
		s->shards = (uint32_t)value;
		break;
	case WRITER:
		h->writer = (uint32_t)value;
		break;
	case FIRST:
		h->first_layer = (uint32_t)value;
		break;
	case LAYERS:
		h->layers = (uint32_t)value;
		break;
	case OFFSET:
		h->offset = value;
		break;
	case BYTES:
		h->bytes = value;
		break;
	case READERS:
		h->readers = value;
		break;
	}
}

/* One field of a good shape is wrong: what the sentence must name. */
static const struct {
	enum field field;
	uint32_t shard;
	uint64_t value;
	const char *said;
} wrong[] = {
	{ SHARDS, 0, 0, "0 shards" },
	{ SHARDS, 0, 65, "65 shards" },
	{ SHARDS, 0, UINT32_MAX, "shards" },
	{ SHARDS, 0, 3, "covers byte 40 of layer group 4" }, /* a gap: the last shard is missing */
	{ LAYER_GROUPS, 0, 0, "0 layer groups" },
	{ LAYER_GROUPS, 0, 4097, "4097 layer groups" },
	{ LAYER_GROUPS, 0, 7, "covers byte 0 of layer group 6" }, /* a layer that nobody writes */
	{ LAYER_GROUPS, 0, 5, "shard 2" },			  /* and one that is not there */
	{ LAYER_BYTES, 0, 0, "0 bytes" },
	{ LAYER_BYTES, 0, (1ull << 30) + 1, "1073741825 bytes" },
	{ LAYER_BYTES, 0, UINT64_MAX, "bytes" },
	{ LAYER_BYTES, 0, 101, "covers byte 100 of layer group 0" },
	{ LAYER_BYTES, 0, 99, "shard 1" },
	{ WRITER, 2, 4, "shard 2 is written by rank 4" },
	{ WRITER, 2, UINT32_MAX, "shard 2" },
	{ READERS, 1, 0, "shard 1" },
	{ READERS, 1, 0x10, "0x10" },
	{ READERS, 1, UINT64_MAX, "shard 1" },
	{ FIRST, 3, 6, "shard 3" },
	{ FIRST, 3, 5, "shard 3" },
	{ FIRST, 3, UINT32_MAX, "shard 3" },
	{ LAYERS, 3, 0, "shard 3" },
	{ LAYERS, 3, 3, "shard 3" },
	{ LAYERS, 3, UINT32_MAX, "shard 3" },
	{ LAYERS, 3, UINT32_MAX - 3, "shard 3" }, /* first + layers is 0 in 32 bits */
	{ BYTES, 1, 0, "shard 1" },
	{ BYTES, 1, 61, "shard 1" },
	{ BYTES, 1, UINT64_MAX, "shard 1" },
	{ BYTES, 1, UINT64_MAX - 39, "shard 1" }, /* offset + bytes is 0 in 64 bits */
	{ BYTES, 1, 59, "covers byte 99 of layer group 0" },
	{ OFFSET, 1, 41, "shard 1" },
	{ OFFSET, 1, 100, "shard 1" },
	{ OFFSET, 1, UINT64_MAX - 59, "shard 1" },
	{ OFFSET, 1, 39, "shards 0 and 1 overlap" },
	{ FIRST, 2, 3, "shards 0 and 2 overlap" },
	{ LAYERS, 1, 5, "shards 1 and 3 overlap" },
	{ BYTES, 0, 41, "shards 0 and 1 overlap" },
	{ LAYERS, 0, 3, "covers byte 0 of layer group 3" },
};

START_TEST(test_check_names_what_is_wrong)
{
	struct kvr_shape s;
	size_t i;
	int err;

	for (i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		s = pipeline();
		set_field(&s, wrong[i].field, wrong[i].shard, wrong[i].value);
		err = kvr_shape_check(&s, 4);
		ck_assert_msg(err == -EINVAL, "row %zu (%s): %d", i, wrong[i].said, err);
		ck_assert_msg(strstr(kvr_explain(), wrong[i].said) != NULL,
			      "row %zu wants \"%s\": %s", i, wrong[i].said, kvr_explain());
	}
}
END_TEST

/* The area is right, but one part is covered twice and another not at all. */
START_TEST(test_check_finds_an_overlap_that_balances_a_gap)
{
	struct kvr_shape s = { .layer_groups = 2, .layer_bytes = 100, .shards = 2 };

	s.shard[0] = (struct kvr_shard){ .layers = 2, .bytes = 50, .readers = 1 };
	s.shard[1] = (struct kvr_shard){ .layers = 2, .bytes = 50, .offset = 25, .readers = 1 };
	ck_assert_int_eq(kvr_shape_check(&s, 1), -EINVAL);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "overlap"));
	s.shard[1] = s.shard[0];
	ck_assert_int_eq(kvr_shape_check(&s, 1), -EINVAL);
	s.shard[1].offset = 50;
	ck_assert_int_eq(kvr_shape_check(&s, 1), 0);
}
END_TEST

/* The header promises the byte that is covered twice, or by nobody. */
START_TEST(test_check_says_which_byte)
{
	struct kvr_shape s = { .layer_groups = 1, .layer_bytes = 70000, .shards = 2 };

	s.shard[0] = (struct kvr_shard){ .layers = 1, .bytes = 12345, .readers = 1 };
	s.shard[1] = (struct kvr_shard){
		.layers = 1, .offset = 12321, .bytes = 70000 - 12321, .readers = 1
	};
	ck_assert_int_eq(kvr_shape_check(&s, 1), -EINVAL);
	ck_assert_msg(strstr(kvr_explain(), "12321") != NULL, "overlap: %s", kvr_explain());
	s.shard[1].offset = 12400;
	s.shard[1].bytes = 70000 - 12400;
	ck_assert_int_eq(kvr_shape_check(&s, 1), -EINVAL);
	ck_assert_msg(strstr(kvr_explain(), "12345") != NULL, "gap: %s", kvr_explain());
}
END_TEST

START_TEST(test_check_bounds_ranks)
{
	struct kvr_shape s;

	ck_assert_int_eq(kvr_shape_replicated(1, 1, 64, &s), 0);
	ck_assert_int_eq(kvr_shape_check(&s, 0), -EINVAL);
	ck_assert_int_eq(kvr_shape_check(&s, 65), -EINVAL);
	ck_assert_int_eq(kvr_shape_check(&s, UINT32_MAX), -EINVAL);
	s.shard[0].readers = 1ull << 63;
	ck_assert_int_eq(kvr_shape_check(&s, 63), -EINVAL);
	ck_assert_int_eq(kvr_shape_check(&s, 64), 0);
}
END_TEST

/* The largest shape that is allowed: no sum of it overflows. */
START_TEST(test_check_of_the_largest_shape)
{
	struct kvr_shape s;

	ck_assert_int_eq(kvr_shape_split(64, 4096, 4096ull << 30, &s), 0);
	ck_assert_int_eq(kvr_shape_check(&s, 64), 0);
	s.shard[63].bytes--;
	ck_assert_int_eq(kvr_shape_check(&s, 64), -EINVAL);
}
END_TEST

static uint32_t pick(uint64_t *state, uint32_t below)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*state >> 33) % below;
}

/* Random small shapes against a map of every byte. */
START_TEST(test_check_agrees_with_counting_every_byte)
{
	uint64_t rng = test_seed();
	uint32_t i, k, l, b, good = 0;

	for (i = 0; i < 60000; i++) {
		struct kvr_shape s = { .layer_groups = 1 + pick(&rng, 2),
				       .layer_bytes = 1 + pick(&rng, 3),
				       .shards = 1 + pick(&rng, 3) };
		uint8_t map[2][3] = { 0 };
		int exact = 1;

		for (k = 0; k < s.shards; k++) {
			struct kvr_shard *h = &s.shard[k];

			*h = (struct kvr_shard){ .first_layer = pick(&rng, s.layer_groups),
						 .offset = pick(&rng, (uint32_t)s.layer_bytes),
						 .readers = 1 };
			h->layers = 1 + pick(&rng, s.layer_groups - h->first_layer);
			h->bytes = 1 + pick(&rng, (uint32_t)(s.layer_bytes - h->offset));
			for (l = 0; l < h->layers; l++)
				for (b = 0; b < h->bytes; b++)
					map[h->first_layer + l][h->offset + b]++;
		}
		for (l = 0; l < s.layer_groups; l++)
			for (b = 0; b < s.layer_bytes; b++)
				exact &= map[l][b] == 1;
		must_eq(kvr_shape_check(&s, 1), exact ? 0 : -EINVAL);
		good += (uint32_t)exact;
	}
	ck_assert_uint_gt(good, 1000);
}
END_TEST

/* --- names ------------------------------------------------------------------------------------ */

START_TEST(test_names_are_distinct_and_bounded)
{
	static const char *(*const name[])(uint32_t) = { kvr_channel_name, kvr_tag_name,
							 kvr_stage_name };
	static const uint32_t count[] = { KVR_CHANNELS, KVR_TAG_PROPOSE + 1, KVR_STAGES };
	uint32_t f, i, k;

	for (f = 0; f < 3; f++) {
		for (i = 0; i < count[f]; i++) {
			ck_assert_ptr_nonnull(name[f](i));
			ck_assert_str_ne(name[f](i), "?");
			ck_assert_str_ne(name[f](i), "");
			for (k = 0; k < i; k++)
				ck_assert_str_ne(name[f](i), name[f](k));
		}
		ck_assert_str_eq(name[f](count[f]), "?");
	}
	ck_assert_str_eq(kvr_channel_name(UINT32_MAX), "?");
	ck_assert_str_eq(kvr_stage_name(UINT32_MAX), "?");
}
END_TEST

START_TEST(test_names_match_their_constants)
{
	ck_assert_str_eq(kvr_channel_name(KVR_CH_LOOKUP), "LOOKUP");
	ck_assert_str_eq(kvr_channel_name(KVR_CH_CONTROL), "CONTROL");
	ck_assert_str_eq(kvr_channel_name(KVR_CH_USER3), "USER3");
	ck_assert_str_eq(kvr_tag_name(KVR_TAG_NONE), "NONE");
	ck_assert_str_eq(kvr_tag_name(KVR_TAG_SHUTDOWN), "SHUTDOWN");
	ck_assert_str_eq(kvr_tag_name(KVR_TAG_RESET), "RESET");
	ck_assert_str_eq(kvr_tag_name(KVR_TAG_USER - 1), "?");
	ck_assert_str_eq(kvr_tag_name(KVR_TAG_USER), "USER");
	ck_assert_str_eq(kvr_tag_name(UINT32_MAX), "USER");
	ck_assert_str_eq(kvr_stage_name(KVR_STAGE_NONE), "none");
	ck_assert_str_eq(kvr_stage_name(KVR_STAGE_VERIFIED), "verified");
	ck_assert_str_eq(kvr_stage_name(KVR_STAGE_END), "written");
	ck_assert_str_eq(kvr_stage_name(KVR_STAGE_LOST), "lost");
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("types");
	TCase *c = tcase_create("types");

	tcase_add_test(c, test_split_gives_each_rank_its_part);
	tcase_add_test(c, test_replicated_is_written_once_and_read_by_all);
	tcase_add_test(c, test_shapes_of_every_number_of_ranks);
	tcase_add_test(c, test_impossible_shapes_are_refused);
	tcase_add_test(c, test_pipeline_by_tensor_shape);
	tcase_add_test(c, test_check_names_what_is_wrong);
	tcase_add_test(c, test_check_finds_an_overlap_that_balances_a_gap);
	tcase_add_test(c, test_check_says_which_byte);
	tcase_add_test(c, test_check_bounds_ranks);
	tcase_add_test(c, test_check_of_the_largest_shape);
	tcase_add_test(c, test_check_agrees_with_counting_every_byte);
	tcase_add_test(c, test_names_are_distinct_and_bounded);
	tcase_add_test(c, test_names_match_their_constants);
	suite_add_tcase(s, c);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
