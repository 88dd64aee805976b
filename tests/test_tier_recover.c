/* SPDX-License-Identifier: Apache-2.0 */
/* The tier after a restart: what was written is found, nothing else is, and the store goes on. */
#include "must.h"
#include "tier_helpers.h"

#define POOL 4u

/* Writes block n for good, with real I/O. */
static void write_block(struct rig *r, struct kvr_store *store, uint32_t n, uint8_t *image)
{
	struct kvr_store_op op = { .image = image, .key = key_of(n), .space = n % 3 }, *ended;
	struct kvr_store_info info;
	uint64_t deadline = test_deadline_ms(5000);
	uint32_t id;

	kvr_store_info(store, &info);
	ck_assert_int_eq(kvr_tier_reserve(&r->t, op.space, &op.key, &id), 0);
	memset(image, (int)n, r->geo.slot_bytes);
	op.seq = r->t.next_seq++;
	op.header_checksum =
		kvr_slot_seal(image, &r->geo, &op.key, op.space, op.seq, info.cache_generation);
	kvr_tier_ready(&r->t, id, op.seq, op.header_checksum);
	ck_assert_int_eq(kvr_tier_place(&r->t, id), 0);
	op.where = r->t.blocks[id].where;
	ck_assert_int_eq(kvr_store_write(store, &op), 0);
	while (!kvr_store_poll(store, &ended, 1))
		must(test_now_ns() < deadline);
	ck_assert_int_eq(op.result, 0);
	kvr_tier_written(&r->t, id, 0);
}

/* Block n is on the store alone, and its slot holds what was written. */
static void read_block(struct rig *r, struct kvr_store *store, uint32_t n, uint8_t *image)
{
	struct kvr_store_op op = { .image = image, .key = key_of(n), .space = n % 3 }, *ended;
	uint64_t deadline = test_deadline_ms(5000);
	uint32_t id, host, i;

	ck_assert_uint_eq(kvr_tier_match(&r->t, op.space, &op.key, 1, &id, &host), 1);
	ck_assert_uint_eq(host, 0);
	ck_assert_int_eq(kvr_tier_fetch(&r->t, id, KVR_READ_DEMAND), 0);
	op.where = r->t.blocks[id].where;
	op.header_checksum = r->t.blocks[id].sum;
	ck_assert_int_eq(kvr_store_read(store, &op), 0);
	while (!kvr_store_poll(store, &ended, 1))
		must(test_now_ns() < deadline);
	ck_assert_int_eq(op.result, 0);
	for (i = 0; i < 8192; i++)
		must_eq(image[r->geo.header_bytes + i], n);
	kvr_tier_fetched(&r->t, id, 1, 0);
	kvr_tier_unpin(&r->t, &id, 1);
}

/* The second life of the tier: 12 blocks were written to 8 slots, so the last 8 are there. */
static void check_recovered(struct rig *r, struct kvr_store *store, uint64_t next_seq,
			    uint8_t *image)
{
	struct kvr_key key;
	uint32_t n;

	kvr_tier_recover(&r->t);
	ck_assert_uint_eq(r->t.recovered, 8);
	ck_assert_uint_ge(r->t.next_seq, next_seq);
	ck_assert_uint_eq(r->t.free_block_count, r->t.capacity - 8);
	ck_assert_uint_eq(r->t.free_slot_count, POOL);
	for (n = 0; n < 12; n++) {
		key = key_of(n);
		ck_assert_int_eq(kvr_index_find(&r->t.index, n % 3, &key) != KVR_INDEX_NONE,
				 n >= 4);
		ck_assert_uint_eq(kvr_index_find(&r->t.index, 3, &key), KVR_INDEX_NONE);
	}
	for (n = 4; n < 12; n++)
		read_block(r, store, n, image);
	/* a full store goes on: what was recovered may be evicted */
	write_block(r, store, 20, image);
	ck_assert_uint_eq(r->t.disk_evictions, 1);
}

START_TEST(test_recover_takes_in_what_was_written)
{
	uint8_t *image = aligned_alloc(4096, 65536);
	uint64_t next_seq;
	struct rig r;
	uint32_t n;

	ck_assert_ptr_nonnull(image);
	rig_init(&r, POOL, 8);
	kvr_tier_recover(&r.t);
	ck_assert_uint_eq(r.t.recovered, 0);
	for (n = 0; n < 12; n++)
		write_block(&r, r.store, n, image);
	next_seq = r.t.next_seq;
	ck_assert_int_eq(kvr_store_close(r.store, test_deadline_ms(1000)), 0);
	kvr_tier_exit(&r.t);
	r.store = store_on(r.io, 0);
	ck_assert_int_eq(kvr_tier_init(&r.t, POOL, r.store), 0);
	check_recovered(&r, r.store, next_seq, image);
	rig_exit(&r);
	free(image);
}
END_TEST

/* The same with a file, and the kernel's I/O. */
START_TEST(test_recover_from_a_file)
{
	uint8_t *image = aligned_alloc(4096, 65536);
	char dir[256];
	const char *path = dir;
	struct kvr_store_opts o = { .size = sizeof o,
				    .paths = &path,
				    .npaths = 1,
				    .flags = KVR_STORE_CREATE,
				    .model = &model,
				    .shape = &shape };
	struct rig r = { .io = NULL };
	uint64_t next_seq;
	uint32_t n;

	ck_assert_ptr_nonnull(image);
	test_tmpdir(dir, sizeof dir);
	ck_assert_int_eq(kvr_shape_split(2, 2, 8192, &shape), 0);
	ck_assert_int_eq(kvr_geometry_init(&shape, 4096, &r.geo), 0);
	o.bytes = 8192 + 4096 + 8 * r.geo.slot_bytes;
	ck_assert_msg(!kvr_store_open(&o, &r.store), "%s", kvr_explain());
	ck_assert_uint_eq(kvr_store_geometry(r.store)->slot_bytes, r.geo.slot_bytes);
	ck_assert_int_eq(kvr_tier_init(&r.t, POOL, r.store), 0);
	for (n = 0; n < 12; n++)
		write_block(&r, r.store, n, image);
	next_seq = r.t.next_seq;
	kvr_tier_exit(&r.t);
	ck_assert_int_eq(kvr_store_close(r.store, test_deadline_ms(2000)), 0);
	ck_assert_msg(!kvr_store_open(&o, &r.store), "%s", kvr_explain());
	ck_assert_int_eq(kvr_tier_init(&r.t, POOL, r.store), 0);
	check_recovered(&r, r.store, next_seq, image);
	kvr_tier_exit(&r.t);
	ck_assert_int_eq(kvr_store_close(r.store, test_deadline_ms(2000)), 0);
	test_rmdir(dir);
	free(image);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("tier_recover");
	TCase *c = tcase_create("recover");

	tcase_add_test(c, test_recover_takes_in_what_was_written);
	tcase_add_test(c, test_recover_from_a_file);
	suite_add_tcase(s, c);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
