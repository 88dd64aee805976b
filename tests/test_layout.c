/* SPDX-License-Identifier: Apache-2.0 */
/* Offsets of a segment, and what its header is checked for. */
#include "harness.h"

#include "err.h"
#include "layout.h"
#include "util.h"

static struct kvr_seg_header good;
static struct kvr_layout layout;

static void setup(void)
{
	ck_assert_int_eq(kvr_layout_init(&layout, 4096, 8, 131072, 1024, 1024, 1048576), 0);
	memset(&good, 0, sizeof good);
	good.magic = KVR_SEG_MAGIC;
	good.version = KVR_SEG_VERSION;
	good.header_bytes = sizeof good;
	good.layout_hash = kvr_layout_hash();
	good.total_bytes = layout.total;
	good.epoch = 1;
	good.page = 4096;
	good.ranks = 8;
	good.ring_bytes = 131072;
	good.ops = good.events = 1024;
	good.bulk_bytes = 1048576;
	good.channels = KVR_CHANNELS;
	strcpy(good.name, "x");
	good.checksum = kvr_header_sum(&good);
}

START_TEST(test_documented_size)
{
	uint64_t r = 128 + 64 * 1024 + 6 * (128 + 32 * 256);
	uint64_t leader = 4096 + 128 * 1024 + r + 10ull * 8 * (128 + 131072) + 1048576;
	uint64_t rank = 4096 + 16 * 1024 + r;

	ck_assert_uint_eq(layout.total,
			  8192 + 4096 + kvr_align_up(leader, 4096) + 8 * kvr_align_up(rank, 4096));
	/* "8 ranks, defaults: 12.3 MiB", of Docker's 64. */
	ck_assert_uint_lt(layout.total, 64u << 20);
	ck_assert_uint_eq(layout.total * 10 / (1u << 20), 123);
}
END_TEST

static void check_areas(const struct kvr_layout *l)
{
	uint64_t rec = sizeof(struct kvr_rec_ctl) + l->events * sizeof(struct kvr_event);
	uint64_t ring = 128 + l->ring_bytes;

	ck_assert_uint_eq(l->takeover, l->page);
	ck_assert_uint_eq(l->bells, 2 * l->page);
	ck_assert_uint_ge(l->leader, l->bells + (l->ranks + 1) * 128);
	ck_assert_uint_ge(l->leader_ops, l->leader + 4096);
	ck_assert_uint_ge(l->leader_rec, l->leader_ops + l->ops * sizeof(struct kvr_op_entry));
	ck_assert_uint_ge(l->leader_logs, l->leader_rec + rec);
	ck_assert_uint_ge(l->rings, l->leader_logs + kvr_layout_log(l, KVR_ALIKES));
	ck_assert_uint_ge(l->window, 16);
	ck_assert_uint_ge(l->bulk, kvr_layout_ring(l, KVR_CHANNELS - 1, l->ranks - 1) + ring);
	ck_assert_uint_ge(l->leader_end, l->bulk + l->bulk_bytes);
	ck_assert_uint_ge(l->leader_end, kvr_layout_ring(l, KVR_CHANNELS - 1, l->ranks - 1) + ring);
	ck_assert_uint_ge(l->rank0, l->leader_end);
	ck_assert_uint_ge(l->rank_acks, 4096);
	ck_assert_uint_ge(l->rank_rec, l->rank_acks + l->ops * sizeof(struct kvr_ack_entry));
	ck_assert_uint_ge(l->rank_logs, l->rank_rec + rec);
	ck_assert_uint_ge(l->rank_stride, l->rank_logs + kvr_layout_log(l, KVR_ALIKES));
	ck_assert_uint_eq(l->total, kvr_layout_rank(l, l->ranks));
	ck_assert_uint_eq((l->leader | l->leader_end | l->rank0 | l->rank_stride) % l->page, 0);
	ck_assert_uint_eq((l->leader_rec | l->leader_logs | l->rings | l->bulk | l->rank_rec |
			   l->rank_logs |
			   ring) % 128,
			  0);
}

START_TEST(test_areas_do_not_overlap)
{
	uint32_t page = 4096u << (2 * _i), ranks, ring, ops, events;
	struct kvr_layout l;

	for (ranks = 1; ranks <= 64; ranks += 3)
		for (ring = 1024; ring <= 64u << 20; ring *= 16)
			for (ops = 16; ops <= 65536; ops *= 8)
				for (events = 16; events <= 1u << 20; events *= 16) {
					ck_assert_int_eq(kvr_layout_init(&l, page, ranks, ring, ops,
									 events, ring * 4),
							 0);
					check_areas(&l);
				}
}
END_TEST

START_TEST(test_numbers_out_of_range_are_named)
{
	static const struct {
		uint32_t ranks, ring, ops, events, bulk;
		const char *what;
	} bad[] = {
		{ 0, 1024, 16, 16, 4096, "ranks" },
		{ 65, 1024, 16, 16, 4096, "ranks" },
		{ 1, 512, 16, 16, 4096, "ring_bytes" },
		{ 1, 1025, 16, 16, 4096, "ring_bytes" },
		{ 1, 128u << 20, 16, 16, 4096, "ring_bytes" },
		{ 1, 1024, 8, 16, 4096, "ops" },
		{ 1, 1024, 131072, 16, 4096, "ops" },
		{ 1, 1024, 17, 16, 4096, "ops" },
		{ 1, 1024, 16, 0, 4096, "events" },
		{ 1, 1024, 16, 2u << 20, 4096, "events" },
		{ 1, 1024, 16, 48, 4096, "events" },
		{ 1, 1024, 16, 16, 2048, "bulk_bytes" },
		{ 1, 1024, 16, 16, 5000, "bulk_bytes" },
		{ 1, 1024, 16, 16, 2u << 30, "bulk_bytes" },
		{ UINT32_MAX, 1024, 16, 16, 4096, "ranks" },
	};
	struct kvr_layout l = { .total = 99 };

	for (size_t i = 0; i < KVR_ARRAY_LEN(bad); i++) {
		ck_assert_int_eq(kvr_layout_init(&l, 4096, bad[i].ranks, bad[i].ring, bad[i].ops,
						 bad[i].events, bad[i].bulk),
				 -EINVAL);
		ck_assert_ptr_nonnull(strstr(kvr_explain(), bad[i].what));
		ck_assert_uint_eq(l.total, 99);
	}
}
END_TEST

static int check(const struct kvr_seg_header *h, uint64_t bytes)
{
	struct kvr_layout l = { .total = 99 };
	int err = kvr_header_check(h, bytes, "/x/y", &l);

	ck_assert_uint_eq(l.total, err ? 99 : layout.total);
	return err;
}

START_TEST(test_header_every_flipped_bit_is_refused)
{
	ck_assert_msg(!check(&good, layout.total), "%s", kvr_explain());
	for (size_t i = 0; i < sizeof good * 8; i++) {
		struct kvr_seg_header h = good;

		((uint8_t *)&h)[i / 8] ^= (uint8_t)(1u << (i % 8));
		ck_assert_int_eq(check(&h, layout.total), -EPROTO);
	}
}
END_TEST

static void refused(struct kvr_seg_header *h, const char *theirs, const char *ours)
{
	h->checksum = kvr_header_sum(h);
	ck_assert_int_eq(check(h, layout.total), -EPROTO);
	ck_assert_msg(strstr(kvr_explain(), theirs) && strstr(kvr_explain(), ours), "%s",
		      kvr_explain());
}

START_TEST(test_header_names_the_field_and_both_values)
{
	struct kvr_seg_header h = good;

	h.version = 7;
	strcpy(h.library, "9.8.7");
	refused(&h, "version is 0x7", "0x4");
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "9.8.7"));
	ck_assert_ptr_nonnull(strstr(kvr_explain(), KVR_VERSION_STRING));
	h = good, h.layout_hash = 0x1234;
	refused(&h, "layout_hash is 0x1234", "");
	h = good, h.header_bytes = 8192;
	refused(&h, "header_bytes", "4096");
	h = good, h.incompat = 4;
	refused(&h, "incompat", "0x4");
	h = good, h.channels = 11;
	refused(&h, "channels", "11");
	h = good, h.page = 2048;
	refused(&h, "page is 2048", "4096 to 65536");
	h = good, h.page = 12288;
	refused(&h, "page is 12288", "power of two");
	h = good, h.ranks = 65;
	refused(&h, "ranks is 65", "1 to 64");
	h = good, h.ranks = 9;
	refused(&h, "total_bytes", "");
	h = good, h.ring_bytes = 3;
	refused(&h, "ring_bytes is 3", "");
	h = good, h.ops = 0;
	refused(&h, "ops is 0", "");
	h = good, h.events = UINT32_MAX;
	refused(&h, "events is 4294967295", "");
	h = good, h.total_bytes += 4096;
	refused(&h, "total_bytes", "");
	h = good, h.config_len = 3073;
	refused(&h, "config_len is 3073", "3072");
	h = good, h.epoch = 0;
	refused(&h, "epoch", "0");
	h = good, memset(h.name, 'a', sizeof h.name);
	refused(&h, "name lacks", "");
	h = good, h.magic = 0x42;
	refused(&h, "magic", "0x42");
	h = good, h.magic = 0;
	refused(&h, "magic", "");
}
END_TEST

START_TEST(test_header_compat_bits_are_ignored)
{
	struct kvr_seg_header h = good;

	h.compat = ~0ull;
	h.checksum = kvr_header_sum(&h);
	ck_assert_int_eq(check(&h, layout.total), 0);
}
END_TEST

START_TEST(test_header_of_another_file_size_is_refused)
{
	ck_assert_int_eq(check(&good, layout.total - 1), -EPROTO);
	ck_assert_int_eq(check(&good, layout.total + 1), -EPROTO);
	ck_assert_int_eq(check(&good, 4096), -EPROTO);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "4096 bytes"));
}
END_TEST

START_TEST(test_model_differences_are_named)
{
	struct kvr_model a = { .name = "llama",
			       .revision = "r1",
			       .dtype = "bf16",
			       .page_tokens = 16,
			       .layers = 80,
			       .heads = 8,
			       .head_dim = 128 };
	struct kvr_model b = a;

	/* What follows the final 0 does not count, and neither does a field without one. */
	memset(b.name + 8, 'x', sizeof b.name - 8);
	ck_assert_int_eq(kvr_model_check(&a, &b, "here"), 0);
	b = a, strcpy(b.name, "qwen");
	ck_assert_int_eq(kvr_model_check(&a, &b, "group g"), -EPROTO);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "group g: model.name is \"llama\" there and "
						    "\"qwen\" here"));
	b = a, memset(b.revision, '\n', sizeof b.revision);
	ck_assert_int_eq(kvr_model_check(&b, &a, "g"), -EPROTO);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "revision is \"????"));
	b = a, strcpy(b.dtype, "fp8");
	ck_assert_int_eq(kvr_model_check(&a, &b, "g"), -EPROTO);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "dtype"));
	b = a, b.head_dim = 64;
	ck_assert_int_eq(kvr_model_check(&a, &b, "g"), -EPROTO);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "head_dim is 128 there and 64 here"));
	b = a, b.flags = 1;
	ck_assert_int_eq(kvr_model_check(&a, &b, "g"), -EPROTO);
}
END_TEST

START_TEST(test_names_are_bounded)
{
	ck_assert_str_eq(kvr_call_name(KVR_CALL_EXPECT), "expect");
	ck_assert_str_eq(kvr_call_name(KVR_CALLS), "?");
	ck_assert_str_eq(kvr_proc_state_name(KVR_PROC_FAILED), "failed");
	ck_assert_str_eq(kvr_proc_state_name(UINT32_MAX), "?");
	ck_assert_str_eq(kvr_event_kind_name(KVR_EV_DEATH), "DEATH");
	ck_assert_str_eq(kvr_event_kind_name(KVR_EV_KINDS), "?");
	ck_assert_str_eq(kvr_op_kind_name(KVR_OP_LOAD), "load");
	ck_assert_str_eq(kvr_op_kind_name(99), "?");
	ck_assert_uint_ne(kvr_tag_hash(), kvr_layout_hash());
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("layout");
	TCase *t = tcase_create("layout");

	tcase_add_checked_fixture(t, setup, NULL);
	tcase_add_test(t, test_documented_size);
	tcase_add_loop_test(t, test_areas_do_not_overlap, 0, 3);
	tcase_add_test(t, test_numbers_out_of_range_are_named);
	tcase_add_test(t, test_header_every_flipped_bit_is_refused);
	tcase_add_test(t, test_header_names_the_field_and_both_values);
	tcase_add_test(t, test_header_compat_bits_are_ignored);
	tcase_add_test(t, test_header_of_another_file_size_is_refused);
	tcase_add_test(t, test_model_differences_are_named);
	tcase_add_test(t, test_names_are_bounded);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
