/* SPDX-License-Identifier: Apache-2.0 */
/* The on-disk format: sizes of real models, seals, and that no damaged or hostile byte is believed.
 */
#include "harness.h"

#include "format.h"
#include "kvring/err.h"
#include "util.h"

static const uint8_t uuid[16] = { 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2, 3, 4, 5, 6 };
static const struct kvr_model model = {
	.name = "org/model",
	.revision = "abc123",
	.dtype = "bf16",
	.page_tokens = 16,
	.layers = 61,
	.heads = 1,
	.head_dim = 576,
};

static uint64_t rng_next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static struct kvr_geometry geometry(const struct kvr_shape *shape, uint32_t align)
{
	struct kvr_geometry geo;

	ck_assert_int_eq(kvr_geometry_init(shape, align, &geo), 0);
	return geo;
}

static struct kvr_shape small_shape(void)
{
	struct kvr_shape shape;

	ck_assert_int_eq(kvr_shape_split(4, 8, 64 * 1024, &shape), 0);
	return shape;
}

/* A superblock as format writes it. */
static struct kvr_super valid_super(const struct kvr_shape *shape, uint64_t bytes)
{
	struct kvr_geometry geo = geometry(shape, 4096);
	struct kvr_super s = {
		.magic = KVR_SUPER_MAGIC,
		.version = KVR_FORMAT_VERSION,
		.header_bytes = geo.header_bytes,
		.update = 7,
		.ordinal = 1,
		.devices = 2,
		.cache_generation = 3,
		.device_bytes = bytes,
		.slot_bytes = geo.slot_bytes,
		.block_bytes = geo.block_bytes,
		.align = 4096,
		.segments = geo.segments,
		.model = model,
		.layer_groups = shape->layer_groups,
		.shards = shape->shards,
		.layer_bytes = shape->layer_bytes,
	};

	memcpy(s.shard, shape->shard, sizeof s.shard);
	s.slots = kvr_format_slots(bytes, &geo, &s.data_offset);
	kvr_super_seal(&s);
	return s;
}

START_TEST(test_geometry_of_real_models)
{
	struct kvr_shape shape;
	struct kvr_geometry geo;

	/* DeepSeek-V3, MLA: pages that are no multiple of 4096 */
	ck_assert_int_eq(kvr_shape_replicated(8, 61, 1124352, &shape), 0);
	geo = geometry(&shape, 512);
	ck_assert_uint_eq(geo.segments, 61);
	ck_assert_uint_eq(geo.header_bytes, 4096);
	ck_assert_uint_eq(geo.slot_bytes, 4096 + 1126400);
	/* Llama-3-70B on 8 ranks: more than one header page */
	ck_assert_int_eq(kvr_shape_split(8, 80, 5 << 20, &shape), 0);
	geo = geometry(&shape, 4096);
	ck_assert_uint_eq(geo.segments, 640);
	ck_assert_uint_eq(geo.header_bytes, 8192);
	ck_assert_uint_eq(geo.slot_bytes, 8192 + (5 << 20));
	geo = geometry(&shape, 65536);
	ck_assert_uint_eq(geo.header_bytes, 65536);
	ck_assert_uint_eq(geo.slot_bytes, 65536 + (5 << 20));
	ck_assert_uint_eq(geo.align, 65536);
}
END_TEST

START_TEST(test_geometry_rejects_what_is_out_of_range)
{
	struct kvr_shape shape = small_shape();
	struct kvr_geometry geo;

	ck_assert_int_eq(kvr_geometry_init(&shape, 0, &geo), -EINVAL);
	ck_assert_int_eq(kvr_geometry_init(&shape, 3000, &geo), -EINVAL);
	ck_assert_int_eq(kvr_geometry_init(&shape, 1u << 31, &geo), -EINVAL);
	ck_assert_int_eq(kvr_shape_split(64, 80, 80 * 64 * 64, &shape), 0); /* 5120 segments */
	ck_assert_int_eq(kvr_geometry_init(&shape, 4096, &geo), -EINVAL);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "5120"));
	ck_assert_int_eq(kvr_shape_replicated(1, 4, 2ull << 30, &shape), 0);
	ck_assert_int_eq(kvr_geometry_init(&shape, 4096, &geo), -EINVAL);
	shape = small_shape();
	shape.shard[1].bytes--;
	ck_assert_int_eq(kvr_geometry_init(&shape, 4096, &geo), -EINVAL);
}
END_TEST

START_TEST(test_slots_fill_the_device_and_no_more)
{
	uint64_t rng = test_seed(), bytes, slots, offset, need, i;
	struct kvr_shape shape;
	struct kvr_geometry geo;

	for (i = 0; i < 20000; i++) {
		uint32_t align = 512u << rng_next(&rng) % 8;

		ck_assert_int_eq(kvr_shape_split(2, 2, 4 + 4 * (rng_next(&rng) % 100000), &shape),
				 0);
		geo = geometry(&shape, align);
		bytes = rng_next(&rng) % (64ull << (rng_next(&rng) % 24)) * 1024;
		offset = 0;
		slots = kvr_format_slots(bytes, &geo, &offset);
		if (slots) {
			ck_assert_uint_ge(offset, KVR_TABLE_OFFSET + slots * KVR_RECORD_BYTES);
			ck_assert_uint_eq(offset % align, 0);
			ck_assert_uint_le(offset + slots * geo.slot_bytes, bytes);
		}
		need = kvr_align_up(8192 + kvr_align_up((slots + 1) * 128, 4096), geo.align) +
		       (slots + 1) * geo.slot_bytes;
		ck_assert_uint_gt(need, bytes);
	}
}
END_TEST

START_TEST(test_sealed_image_is_found_whole_and_padded)
{
	struct kvr_shape shape;
	struct kvr_geometry geo;
	struct kvr_key key = { { 1, 2, 3 } };
	struct kvr_slot_header *h;
	char *image;
	uint64_t sum, i;

	ck_assert_int_eq(kvr_shape_replicated(8, 61, 1124352, &shape), 0);
	geo = geometry(&shape, 4096);
	image = aligned_alloc(4096, geo.slot_bytes);
	memset(image, 0xee, geo.slot_bytes);
	h = (struct kvr_slot_header *)(void *)image;
	for (i = 0; i < geo.segments; i++)
		h->sum[i] = i * 77;
	sum = kvr_slot_seal(image, &geo, &key, 5, 42, 3);
	ck_assert_int_eq(kvr_slot_check(image, &geo, &key, 5, sum), 0);
	ck_assert_uint_eq(h->seq, 42);
	ck_assert_uint_eq(h->cache_generation, 3);
	for (i = 0; i < geo.segments; i++)
		ck_assert_uint_eq(h->sum[i], i * 77);
	for (i = KVR_HEADER_FIXED + 8 * geo.segments; i < geo.header_bytes; i++)
		ck_assert_int_eq(image[i], 0);
	ck_assert_int_eq(image[geo.header_bytes + geo.block_bytes - 1], (char)0xee);
	for (i = geo.header_bytes + geo.block_bytes; i < geo.slot_bytes; i++)
		ck_assert_int_eq(image[i], 0);
	free(image);
}
END_TEST

START_TEST(test_any_flipped_bit_of_a_header_is_found)
{
	struct kvr_shape shape = small_shape();
	struct kvr_geometry geo = geometry(&shape, 4096);
	struct kvr_key key = { { 1, 2, 3 } }, other = { { 1, 2, 4 } };
	uint8_t *image = aligned_alloc(4096, geo.slot_bytes);
	uint64_t sum, bit;

	memset(image, 7, geo.slot_bytes);
	sum = kvr_slot_seal(image, &geo, &key, 5, 42, 3);
	for (bit = 0; bit < 8 * (KVR_HEADER_FIXED + 8ull * geo.segments); bit++) {
		image[bit / 8] ^= (uint8_t)(1 << bit % 8);
		ck_assert_int_eq(kvr_slot_check(image, &geo, &key, 5, sum), -EBADMSG);
		image[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	ck_assert_int_eq(kvr_slot_check(image, &geo, &key, 5, sum), 0);
	ck_assert_int_eq(kvr_slot_check(image, &geo, &other, 5, sum), -EBADMSG);
	ck_assert_int_eq(kvr_slot_check(image, &geo, &key, 6, sum), -EBADMSG);
	ck_assert_int_eq(kvr_slot_check(image, &geo, &key, 5, sum + 1), -EBADMSG);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "another write"));
	/* a later write of the same block is another page */
	ck_assert_uint_ne(kvr_slot_seal(image, &geo, &key, 5, 43, 3), sum);
	memset(image, 0, geo.slot_bytes);
	ck_assert_int_eq(kvr_slot_check(image, &geo, &key, 5, 0), -EBADMSG);
	free(image);
}
END_TEST

START_TEST(test_segment_sum_knows_its_block_and_place)
{
	struct kvr_key a = { { 1 } }, b = { { 2 } };
	char data[1000];

	memset(data, 1, sizeof data);
	ck_assert_uint_eq(kvr_segment_sum(data, 1000, &a, 3), kvr_segment_sum(data, 1000, &a, 3));
	ck_assert_uint_ne(kvr_segment_sum(data, 1000, &a, 3), kvr_segment_sum(data, 1000, &a, 4));
	ck_assert_uint_ne(kvr_segment_sum(data, 1000, &a, 3), kvr_segment_sum(data, 1000, &b, 3));
	ck_assert_uint_ne(kvr_segment_sum(data, 1000, &a, 3), kvr_segment_sum(data, 999, &a, 3));
}
END_TEST

START_TEST(test_any_flipped_bit_of_a_record_is_found)
{
	struct kvr_record rec = { .key = { { 1 } }, .seq = 5, .cache_generation = 1, .bytes = 9 };
	uint8_t other[16] = { 1 };
	uint8_t *bytes = (uint8_t *)&rec;
	unsigned bit;

	kvr_record_seal(&rec, uuid, 17);
	ck_assert_int_eq(kvr_record_check(&rec, uuid, 17), 1);
	ck_assert_int_eq(kvr_record_check(&rec, uuid, 18), -EBADMSG);
	ck_assert_int_eq(kvr_record_check(&rec, other, 17), -EBADMSG);
	for (bit = 0; bit < 8 * sizeof rec; bit++) {
		bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
		ck_assert_int_eq(kvr_record_check(&rec, uuid, 17), -EBADMSG);
		bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	memset(&rec, 0, sizeof rec);
	ck_assert_int_eq(kvr_record_check(&rec, uuid, 17), 0);
	kvr_record_seal(&rec, uuid, 17); /* whole, but of no write */
	ck_assert_int_eq(kvr_record_check(&rec, uuid, 17), -EBADMSG);
}
END_TEST

START_TEST(test_any_flipped_bit_of_a_superblock_is_found)
{
	struct kvr_shape shape = small_shape();
	struct kvr_super s = valid_super(&shape, 16 << 20);
	uint8_t *bytes = (uint8_t *)&s;
	unsigned bit;

	ck_assert_int_eq(kvr_super_check(&s, 16 << 20), 0);
	ck_assert_int_eq(kvr_super_check(&s, 17 << 20), 0);
	ck_assert_int_eq(kvr_super_check(&s, (16 << 20) - 1), -EBADMSG);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "16777216"));
	for (bit = 0; bit < 8 * sizeof s; bit += 1 + bit % 3) {
		bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
		ck_assert_int_lt(kvr_super_check(&s, 16 << 20), 0);
		bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	ck_assert_int_eq(kvr_super_check(&s, 16 << 20), 0);
}
END_TEST

START_TEST(test_superblock_of_other_versions)
{
	struct kvr_shape shape = small_shape();
	struct kvr_super s = valid_super(&shape, 16 << 20);

	s.compat = 5;
	kvr_super_seal(&s);
	ck_assert_int_eq(kvr_super_check(&s, 16 << 20), 0);
	s.incompat = 1;
	kvr_super_seal(&s);
	ck_assert_int_eq(kvr_super_check(&s, 16 << 20), -EPROTO);
	s.version = 2;
	ck_assert_int_eq(kvr_super_check(&s, 16 << 20), -EPROTO);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "version 2"));
	s.magic++;
	ck_assert_int_eq(kvr_super_check(&s, 16 << 20), -EPROTO);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "not a kvring store"));
}
END_TEST

/* Whole superblocks with numbers that someone made up: what passes must be safe to use. */
START_TEST(test_hostile_superblock_is_bounded)
{
	static const uint64_t nasty[] = { 0,	      1,	  63,	     64,  65,
					  4095,	      4096,	  1u << 31,  ~0u, 1ull << 40,
					  1ull << 57, 1ull << 63, UINT64_MAX };
	struct kvr_shape shape = small_shape();
	uint64_t rng = test_seed(), bytes = 16 << 20, passed = 0;
	int i, k;

	for (i = 0; i < 20000; i++) {
		struct kvr_super s = valid_super(&shape, bytes);
		uint64_t v;

		for (k = 0; k < 1 + (int)(rng_next(&rng) % 3); k++) {
			size_t at = 8 + rng_next(&rng) % (480 / 4) * 4;
			size_t len = rng_next(&rng) % 2 ? 4 : 8;

			v = nasty[rng_next(&rng) % KVR_ARRAY_LEN(nasty)] + rng_next(&rng) % 3 - 1;
			memcpy((char *)&s + at, &v, len);
		}
		kvr_super_seal(&s);
		if (kvr_super_check(&s, bytes))
			continue;
		passed++;
		ck_assert_uint_le(s.device_bytes, bytes);
		ck_assert_uint_lt(s.ordinal, s.devices);
		ck_assert_uint_le(s.devices, KVR_MAX_DEVICES);
		ck_assert_uint_ge(s.slots, 1);
		ck_assert_uint_le(s.slots, bytes / s.slot_bytes);
		ck_assert_uint_le(s.data_offset + s.slots * s.slot_bytes, bytes);
		ck_assert_uint_ge(s.data_offset, KVR_TABLE_OFFSET + s.slots * KVR_RECORD_BYTES);
	}
	ck_assert_uint_gt(passed, 0);
}
END_TEST

#define CHECK_FIELD(where, name, value)                                                          \
	do {                                                                                     \
		m = model;                                                                       \
		p = shape;                                                                       \
		where = (value);                                                                 \
		ck_assert_int_eq(kvr_super_match(&s, &m, &p), -EPROTO);                          \
		ck_assert_msg(strstr(kvr_explain(), " " name " ") != NULL, "%s", kvr_explain()); \
		ck_assert_msg(strstr(kvr_explain(), #value) != NULL, "%s", kvr_explain());       \
	} while (0)

START_TEST(test_match_names_the_first_field_that_differs)
{
	struct kvr_shape shape = small_shape(), p = shape;
	struct kvr_super s = valid_super(&shape, 16 << 20);
	struct kvr_model m = model;

	memset(m.name + strlen(m.name) + 1, 'x', 9); /* behind the text: no part of it */
	ck_assert_int_eq(kvr_super_match(&s, &m, &shape), 0);
	CHECK_FIELD(m.page_tokens, "model.page_tokens", 32);
	CHECK_FIELD(m.layers, "model.layers", 62);
	CHECK_FIELD(m.heads, "model.heads", 128);
	CHECK_FIELD(m.head_dim, "model.head_dim", 577);
	CHECK_FIELD(m.flags, "model.flags", 1234);
	CHECK_FIELD(p.layer_groups, "shape.layer_groups", 9);
	CHECK_FIELD(p.layer_bytes, "shape.layer_bytes", 999);
	CHECK_FIELD(p.shards, "shape.shards", 3);
	CHECK_FIELD(p.shard[3].writer, "shape.shard[3].writer", 2);
	CHECK_FIELD(p.shard[2].first_layer, "shape.shard[2].first_layer", 1);
	CHECK_FIELD(p.shard[1].layers, "shape.shard[1].layers", 7);
	CHECK_FIELD(p.shard[0].offset, "shape.shard[0].offset", 11);
	CHECK_FIELD(p.shard[3].bytes, "shape.shard[3].bytes", 13);
	CHECK_FIELD(p.shard[3].readers, "shape.shard[3].readers", 15);
	m = model;
	strcpy(m.dtype, "fp8\n\x80");
	ck_assert_int_eq(kvr_super_match(&s, &m, &shape), -EPROTO);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "model.dtype \"bf16\""));
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "\"fp8??\""));
	m = model;
	memset(m.name, 'n', sizeof m.name); /* no final 0 */
	ck_assert_int_eq(kvr_super_match(&s, &m, &shape), -EPROTO);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "model.name \"org/model\""));
	strcpy(m.name, "org/model");
	strcpy(m.revision, "abc124");
	ck_assert_int_eq(kvr_super_match(&s, &m, &shape), -EPROTO);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "abc124"));
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("format");
	TCase *t = tcase_create("format");

	tcase_add_test(t, test_geometry_of_real_models);
	tcase_add_test(t, test_geometry_rejects_what_is_out_of_range);
	tcase_add_test(t, test_slots_fill_the_device_and_no_more);
	tcase_add_test(t, test_sealed_image_is_found_whole_and_padded);
	tcase_add_test(t, test_any_flipped_bit_of_a_header_is_found);
	tcase_add_test(t, test_segment_sum_knows_its_block_and_place);
	tcase_add_test(t, test_any_flipped_bit_of_a_record_is_found);
	tcase_add_test(t, test_any_flipped_bit_of_a_superblock_is_found);
	tcase_add_test(t, test_superblock_of_other_versions);
	tcase_add_test(t, test_hostile_superblock_is_bounded);
	tcase_add_test(t, test_match_names_the_first_field_that_differs);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
