/* SPDX-License-Identifier: Apache-2.0 */
/* The tier's states one by one: what a lookup sees, what is evicted and what never is. The random
 * driver is in test_tier_model.c, restarts are in test_tier_recover.c. */
#include "tier_helpers.h"

#define POOL 4u

/* What is free must be what was free at the start. */
static void check_all_free(const struct rig *r, uint32_t retired)
{
	struct kvr_store_info info = { 0 };

	ck_assert_uint_eq(r->t.free_slot_count, POOL);
	ck_assert_uint_eq(r->t.free_block_count, r->t.capacity);
	ck_assert_uint_eq(r->t.index.count, 0);
	if (!r->store)
		return;
	kvr_store_info(r->store, &info);
	ck_assert_uint_eq(info.used, 0);
	ck_assert_uint_eq(info.retired_slots, retired);
}

static uint32_t reserve(struct rig *r, uint32_t n)
{
	struct kvr_key key = key_of(n);
	uint32_t id = KVR_NO_BLOCK;

	ck_assert_int_eq(kvr_tier_reserve(&r->t, 0, &key, &id), 0);
	ck_assert_uint_lt(id, r->t.capacity);
	ck_assert_uint_lt(r->t.blocks[id].slot, POOL);
	return id;
}

/* A whole block in the pool. */
static uint32_t put(struct rig *r, uint32_t n)
{
	uint32_t id = reserve(r, n);

	kvr_tier_ready(&r->t, id, r->t.next_seq++, n);
	return id;
}

/* A whole block in the pool and on the store. */
static uint32_t put_both(struct rig *r, uint32_t n)
{
	uint32_t id = put(r, n);

	ck_assert_int_eq(kvr_tier_place(&r->t, id), 0);
	kvr_tier_written(&r->t, id, 0);
	return id;
}

/* Is the key known and whole? Looks without a trace: no pin stays, and nothing becomes newer. */
static int known(struct rig *r, uint32_t n)
{
	struct kvr_key key = key_of(n);
	uint32_t id = kvr_index_find(&r->t.index, 0, &key);

	return id != KVR_INDEX_NONE && !r->t.blocks[id].copying;
}

static uint32_t match(struct rig *r, uint32_t first, uint32_t n, uint32_t *ids, uint32_t *ret_host)
{
	struct kvr_key keys[16];
	uint32_t i;

	for (i = 0; i < n; i++)
		keys[i] = key_of(first + i);
	return kvr_tier_match(&r->t, 0, keys, n, ids, ret_host);
}

/* --- host tier alone ---------------------------------------------------------------------------
 */

START_TEST(test_copying_block_is_invisible_until_ready)
{
	uint32_t ids[4], host = 9, id;
	struct kvr_key key = key_of(1);
	struct rig r;

	rig_init(&r, POOL, 0);
	id = reserve(&r, 1);
	ck_assert_uint_eq(match(&r, 1, 1, ids, &host), 0);
	ck_assert_uint_eq(host, 0);
	/* but its key is taken */
	ck_assert_int_eq(kvr_tier_reserve(&r.t, 0, &key, ids), -EEXIST);
	kvr_tier_ready(&r.t, id, 5, 77);
	ck_assert_uint_eq(r.t.blocks[id].seq, 5);
	ck_assert_uint_eq(r.t.blocks[id].sum, 77);
	ck_assert_int_eq(kvr_tier_reserve(&r.t, 0, &key, ids), -EEXIST);
	ck_assert_uint_eq(match(&r, 1, 1, ids, &host), 1);
	ck_assert_uint_eq(ids[0], id);
	ck_assert_uint_eq(host, 1);
	ck_assert_uint_eq(r.t.blocks[id].pins, 1);
	/* another namespace knows nothing of it */
	ck_assert_uint_eq(kvr_tier_match(&r.t, 1, &key, 1, ids + 1, &host), 0);
	ck_assert_int_eq(kvr_tier_reserve(&r.t, 1, &key, ids + 1), 0);
	kvr_tier_kill(&r.t, ids[1], 0);
	kvr_tier_unpin(&r.t, ids, 1);
	kvr_tier_kill(&r.t, id, 0);
	check_all_free(&r, 0);
	rig_exit(&r);
}
END_TEST

START_TEST(test_match_returns_the_longest_prefix)
{
	uint32_t ids[8] = { 0 }, host, copying;
	struct rig r;

	rig_init(&r, POOL, 0);
	put(&r, 10);
	put(&r, 11);
	copying = reserve(&r, 12);
	put(&r, 13);
	ck_assert_uint_eq(match(&r, 10, 6, ids, &host), 2); /* ends at the one being copied */
	ck_assert_uint_eq(host, 2);
	kvr_tier_unpin(&r.t, ids, 2);
	ck_assert_uint_eq(match(&r, 9, 6, ids, &host), 0); /* begins with a miss */
	ck_assert_uint_eq(match(&r, 10, 0, ids, &host), 0);
	ck_assert_uint_eq(match(&r, 10, 1, ids, &host), 1);
	kvr_tier_unpin(&r.t, ids, 1);
	kvr_tier_ready(&r.t, copying, 1, 1);
	ck_assert_uint_eq(match(&r, 10, 6, ids, &host), 4); /* 14 is a miss */
	ck_assert_uint_eq(host, 4);
	kvr_tier_unpin(&r.t, ids, 4);
	kvr_tier_kill(&r.t, ids[1], 0);
	ck_assert_uint_eq(match(&r, 10, 6, ids, &host), 1); /* 11 is one now */
	kvr_tier_unpin(&r.t, ids, 1);
	rig_exit(&r);
}
END_TEST

/* A prompt may repeat a block: each occurrence holds its own pin. */
START_TEST(test_match_of_a_repeated_key)
{
	struct kvr_key keys[3] = { key_of(1), key_of(1), key_of(1) };
	uint32_t ids[3], host, id;
	struct rig r;

	rig_init(&r, POOL, 0);
	id = put(&r, 1);
	ck_assert_uint_eq(kvr_tier_match(&r.t, 0, keys, 3, ids, &host), 3);
	ck_assert_uint_eq(r.t.blocks[id].pins, 3);
	ck_assert_uint_eq(host, 3);
	kvr_tier_unpin(&r.t, ids, 2);
	ck_assert_int_eq(r.t.blocks[id].in_host, 0);
	kvr_tier_unpin(&r.t, ids + 2, 1);
	ck_assert_int_eq(r.t.blocks[id].in_host, 1);
	rig_exit(&r);
}
END_TEST

START_TEST(test_full_pool_evicts_tails_before_heads)
{
	uint32_t ids[4], host, n;
	struct rig r;

	rig_init(&r, POOL, 0);
	for (n = 0; n < POOL; n++)
		put(&r, n);
	ck_assert_uint_eq(match(&r, 0, POOL, ids, &host), POOL);
	kvr_tier_unpin(&r.t, ids, POOL);
	for (n = POOL; n-- > 0;) { /* 3, 2, 1, 0 */
		ck_assert(known(&r, n));
		put(&r, 100 + n);
		ck_assert(!known(&r, n));
		ck_assert(!n || known(&r, n - 1));
	}
	ck_assert_uint_eq(r.t.host_evictions, POOL);
	rig_exit(&r);
}
END_TEST

START_TEST(test_least_recently_used_is_evicted_first)
{
	uint32_t ids[4], host, n;
	struct rig r;

	rig_init(&r, POOL, 0);
	for (n = 0; n < POOL; n++)
		put(&r, n);
	ck_assert_uint_eq(match(&r, 0, 1, ids, &host), 1); /* 0 is used again */
	kvr_tier_unpin(&r.t, ids, 1);
	put(&r, 50);
	ck_assert(known(&r, 0) && !known(&r, 1) && known(&r, 2));
	put(&r, 51);
	put(&r, 52);
	ck_assert(known(&r, 0) && !known(&r, 2) && !known(&r, 3));
	put(&r, 53);
	ck_assert(!known(&r, 0) && known(&r, 50));
	rig_exit(&r);
}
END_TEST

START_TEST(test_pinned_and_copying_blocks_are_never_evicted)
{
	uint32_t ids[POOL], host, id = 12345;
	struct kvr_key key = key_of(99);
	struct rig r;

	rig_init(&r, POOL, 0);
	put(&r, 0);
	put(&r, 1);
	ck_assert_uint_eq(match(&r, 0, 2, ids, &host), 2);
	kvr_tier_pin(&r.t, ids, 1);
	ids[2] = reserve(&r, 2);
	ids[3] = reserve(&r, 3);
	ck_assert_int_eq(kvr_tier_reserve(&r.t, 0, &key, &id), -EAGAIN);
	ck_assert_uint_eq(id, 12345);
	kvr_tier_unpin(&r.t, ids, 2); /* 0 has one more pin, 1 has none */
	ck_assert_int_eq(kvr_tier_reserve(&r.t, 0, &key, &id), 0);
	ck_assert(known(&r, 0) && !known(&r, 1));
	key = key_of(98);
	ck_assert_int_eq(kvr_tier_reserve(&r.t, 0, &key, &id), -EAGAIN);
	ck_assert_uint_eq(r.t.host_evictions, 1);
	kvr_tier_unpin(&r.t, ids, 1);
	ck_assert_int_eq(kvr_tier_reserve(&r.t, 0, &key, &id), 0);
	rig_exit(&r);
}
END_TEST

START_TEST(test_killed_copy_frees_its_slot_and_key)
{
	uint32_t id;
	struct rig r;

	rig_init(&r, POOL, 0);
	id = reserve(&r, 1);
	kvr_tier_kill(&r.t, id, 0);
	check_all_free(&r, 0);
	/* the same while the operation pins it */
	id = reserve(&r, 1);
	kvr_tier_pin(&r.t, &id, 1);
	kvr_tier_kill(&r.t, id, 1);
	ck_assert_uint_eq(r.t.free_slot_count, POOL - 1);
	put(&r, 1); /* the key is free at once, the slot is not */
	ck_assert_uint_eq(r.t.free_slot_count, POOL - 2);
	kvr_tier_unpin(&r.t, &id, 1);
	ck_assert_uint_eq(r.t.free_slot_count, POOL - 1);
	ck_assert(known(&r, 1));
	rig_exit(&r);
}
END_TEST

START_TEST(test_killed_block_lives_until_its_last_pin)
{
	uint32_t ids[2], host, slot;
	struct rig r;

	rig_init(&r, POOL, 0);
	put(&r, 1);
	ck_assert_uint_eq(match(&r, 1, 1, ids, &host), 1);
	ck_assert_uint_eq(match(&r, 1, 1, ids + 1, &host), 1);
	slot = r.t.blocks[ids[0]].slot;
	kvr_tier_kill(&r.t, ids[0], 0);
	kvr_tier_kill(&r.t, ids[0], 0); /* two loads may find the same bad bytes */
	ck_assert(!known(&r, 1));
	kvr_tier_unpin(&r.t, ids, 1);
	ck_assert_uint_eq(r.t.blocks[ids[0]].slot, slot);
	ck_assert_uint_eq(r.t.free_slot_count, POOL - 1);
	kvr_tier_unpin(&r.t, ids + 1, 1);
	check_all_free(&r, 0);
	rig_exit(&r);
}
END_TEST

/* --- with a store ------------------------------------------------------------------------------
 */

START_TEST(test_written_block_survives_eviction_from_the_pool)
{
	uint32_t ids[8], host, n;
	struct rig r;

	rig_init(&r, POOL, 6);
	for (n = 0; n < POOL; n++)
		put_both(&r, n);
	put(&r, 100);
	put(&r, 101);
	ck_assert_uint_eq(r.t.host_evictions, 2);
	ck_assert_uint_eq(match(&r, 0, POOL, ids, &host), POOL);
	ck_assert_uint_eq(host, 2);
	ck_assert_uint_eq(r.t.blocks[ids[0]].slot, KVR_NO_SLOT);
	ck_assert(r.t.blocks[ids[0]].where != KVR_NOWHERE);
	kvr_tier_unpin(&r.t, ids, POOL);
	rig_exit(&r);
}
END_TEST

START_TEST(test_block_being_written_keeps_its_slot)
{
	struct kvr_key key = key_of(50);
	uint32_t id[POOL], other, n;
	struct rig r;

	rig_init(&r, POOL, 6);
	for (n = 0; n < POOL; n++) {
		id[n] = put(&r, n);
		ck_assert_int_eq(kvr_tier_place(&r.t, id[n]), 0);
	}
	ck_assert_int_eq(kvr_tier_reserve(&r.t, 0, &key, &other), -EAGAIN);
	kvr_tier_written(&r.t, id[2], 0);
	ck_assert_int_eq(kvr_tier_reserve(&r.t, 0, &key, &other), 0);
	ck_assert_uint_eq(r.t.blocks[id[2]].slot, KVR_NO_SLOT);
	ck_assert(known(&r, 2));
	rig_exit(&r);
}
END_TEST

START_TEST(test_failed_write_retires_the_slot_and_keeps_the_block)
{
	struct kvr_store_info info;
	struct rig r;
	uint32_t id;

	rig_init(&r, POOL, 2);
	id = put(&r, 1);
	ck_assert_int_eq(kvr_tier_place(&r.t, id), 0);
	kvr_tier_written(&r.t, id, -EIO);
	ck_assert_int_eq(r.t.blocks[id].error, -EIO);
	kvr_store_info(r.store, &info);
	ck_assert_uint_eq(info.retired_slots, 1);
	ck_assert_uint_eq(info.used, 0);
	ck_assert(known(&r, 1));
	ck_assert(r.t.blocks[id].where == KVR_NOWHERE);
	ck_assert_int_eq(r.t.blocks[id].in_host, 1);
	ck_assert_int_eq(kvr_tier_place(&r.t, id), 0); /* the other slot */
	kvr_tier_written(&r.t, id, -ENODEV);
	ck_assert_int_eq(r.t.blocks[id].error, -ENODEV);
	ck_assert_int_eq(kvr_tier_place(&r.t, id), -ENOSPC);
	ck_assert_int_eq(r.t.blocks[id].writing, 0);
	ck_assert_int_eq(r.t.blocks[id].in_host, 1);
	kvr_tier_kill(&r.t, id, 0);
	check_all_free(&r, 2);
	rig_exit(&r);
}
END_TEST

/* A full queue: the block waits, and cannot lose its slot of the pool meanwhile. */
START_TEST(test_unplace_undoes_place)
{
	struct kvr_tier_block before;
	struct rig r;
	uint32_t id;

	rig_init(&r, POOL, 1);
	id = put(&r, 1);
	ck_assert_int_eq(kvr_tier_queue(&r.t, id), 1);
	before = r.t.blocks[id];
	ck_assert_int_eq(kvr_tier_place(&r.t, id), 0);
	ck_assert_int_eq(r.t.blocks[id].queued, 0);
	ck_assert_int_eq(r.t.blocks[id].writing, 1);
	kvr_tier_unplace(&r.t, id);
	ck_assert_int_eq(memcmp(&before, &r.t.blocks[id], sizeof before), 0);
	ck_assert_int_eq(kvr_tier_place(&r.t, id), 0); /* the only slot is free again */
	kvr_tier_kill(&r.t, id, 0);
	kvr_tier_unplace(&r.t, id);
	ck_assert(r.t.blocks[id].used); /* it is still in the engine's queue */
	kvr_tier_unqueue(&r.t, id, -ECANCELED);
	check_all_free(&r, 0);
	rig_exit(&r);
}
END_TEST

START_TEST(test_queued_block_stays_in_the_pool)
{
	struct kvr_key key = key_of(50);
	uint32_t id[POOL], other, n;
	struct rig r;

	rig_init(&r, POOL, 6);
	for (n = 0; n < POOL; n++) {
		id[n] = put(&r, n);
		ck_assert_int_eq(kvr_tier_queue(&r.t, id[n]), 1);
	}
	ck_assert_int_eq(kvr_tier_reserve(&r.t, 0, &key, &other), -EAGAIN);
	kvr_tier_unqueue(&r.t, id[1], -ENOSPC);
	ck_assert_int_eq(r.t.blocks[id[1]].error, -ENOSPC);
	ck_assert(known(&r, 1));
	ck_assert_int_eq(kvr_tier_reserve(&r.t, 0, &key, &other), 0);
	ck_assert(!known(&r, 1));
	/* killed in the queue: gone when it leaves it */
	kvr_tier_kill(&r.t, id[2], 1);
	ck_assert_uint_eq(r.t.free_slot_count, 0);
	kvr_tier_unqueue(&r.t, id[2], -ECANCELED);
	ck_assert_uint_eq(r.t.free_slot_count, 1);
	rig_exit(&r);
}
END_TEST

START_TEST(test_only_a_block_that_needs_it_is_queued)
{
	struct rig r;
	uint32_t id;

	rig_init(&r, POOL, 2);
	id = put(&r, 1);
	ck_assert_int_eq(kvr_tier_queue(&r.t, id), 1);
	ck_assert_int_eq(kvr_tier_queue(&r.t, id), 0); /* waits already */
	ck_assert_int_eq(kvr_tier_place(&r.t, id), 0);
	ck_assert_int_eq(kvr_tier_queue(&r.t, id), 0); /* is being written */
	kvr_tier_written(&r.t, id, -EIO);
	ck_assert_int_eq(kvr_tier_queue(&r.t, id), 1); /* has failed: once more */
	ck_assert_int_eq(r.t.blocks[id].error, 0);
	ck_assert_int_eq(kvr_tier_place(&r.t, id), 0);
	kvr_tier_written(&r.t, id, 0);
	ck_assert_int_eq(kvr_tier_queue(&r.t, id), 0); /* is on the store */
	kvr_tier_pin(&r.t, &id, 1);
	kvr_tier_kill(&r.t, id, 1);
	ck_assert_int_eq(kvr_tier_queue(&r.t, id), 0); /* is dead */
	kvr_tier_unpin(&r.t, &id, 1);
	check_all_free(&r, 2);
	rig_exit(&r);
}
END_TEST

START_TEST(test_full_store_evicts_its_oldest_idle_block)
{
	uint32_t ids[4], host, id[4];
	struct rig r;

	rig_init(&r, POOL, 2);
	id[0] = put_both(&r, 0);
	id[1] = put_both(&r, 1);
	ck_assert_uint_eq(match(&r, 0, 1, ids, &host), 1); /* 0 is in use */
	id[2] = put_both(&r, 2);
	ck_assert(r.t.blocks[id[0]].where != KVR_NOWHERE);
	ck_assert(r.t.blocks[id[1]].where == KVR_NOWHERE);
	ck_assert(known(&r, 1)); /* it is still in the pool */
	ck_assert_uint_eq(r.t.disk_evictions, 1);
	ck_assert_uint_eq(match(&r, 2, 1, ids + 1, &host), 1);
	id[3] = put(&r, 3);
	ck_assert_int_eq(kvr_tier_place(&r.t, id[3]), -ENOSPC); /* both are pinned */
	kvr_tier_unpin(&r.t, ids, 1);
	ck_assert_int_eq(kvr_tier_place(&r.t, id[3]), 0);
	ck_assert(r.t.blocks[id[0]].where == KVR_NOWHERE);
	kvr_tier_written(&r.t, id[3], 0);
	kvr_tier_unpin(&r.t, ids + 1, 1);
	rig_exit(&r);
}
END_TEST

/* The victim of the store was nowhere else: it is forgotten. */
START_TEST(test_block_in_neither_place_is_forgotten)
{
	struct rig r;
	uint32_t n;

	rig_init(&r, POOL, 1);
	put_both(&r, 0);
	for (n = 1; n <= POOL; n++)
		put(&r, n);
	ck_assert(known(&r, 0)); /* on the store alone */
	put_both(&r, 5);
	ck_assert(!known(&r, 0));
	ck_assert_uint_eq(r.t.disk_evictions, 1);
	ck_assert_uint_eq(r.t.free_block_count, r.t.capacity - POOL);
	rig_exit(&r);
}
END_TEST

/* A block on the store alone, pinned as a load would. */
static uint32_t on_store_alone(struct rig *r, uint32_t n, int pin)
{
	uint32_t id = put_both(r, n), k, host, got;

	for (k = 0; k < POOL; k++)
		put(r, 1000 + k);
	ck_assert_uint_eq(r->t.blocks[id].slot, KVR_NO_SLOT);
	if (pin) {
		ck_assert_uint_eq(match(r, n, 1, &got, &host), 1);
		ck_assert_uint_eq(host, 0);
		ck_assert_uint_eq(got, id);
	}
	return id;
}

START_TEST(test_fetch_brings_a_block_back)
{
	uint32_t id, host, got;
	struct rig r;

	rig_init(&r, POOL, 2);
	id = on_store_alone(&r, 1, 1);
	ck_assert_int_eq(kvr_tier_fetch(&r.t, id, KVR_READ_DEMAND), 0);
	ck_assert_uint_lt(r.t.blocks[id].slot, POOL);
	ck_assert(!known(&r, 1000)); /* the oldest made room */
	/* another request joins the read: a hit, but not in the pool yet */
	ck_assert_uint_eq(match(&r, 1, 1, &got, &host), 1);
	ck_assert_uint_eq(host, 0);
	kvr_tier_fetched(&r.t, id, 1, 0);
	kvr_tier_unpin(&r.t, &got, 1);
	ck_assert_uint_eq(match(&r, 1, 1, &got, &host), 1);
	ck_assert_uint_eq(host, 1);
	kvr_tier_unpin(&r.t, &got, 1);
	ck_assert_int_eq(r.t.blocks[id].in_host, 0);
	kvr_tier_unpin(&r.t, &id, 1);
	ck_assert_int_eq(r.t.blocks[id].in_host, 1);
	ck_assert_int_eq(r.t.blocks[id].in_disk, 1);
	rig_exit(&r);
}
END_TEST

START_TEST(test_fetch_without_a_slot_changes_nothing)
{
	uint32_t id, ids[POOL], host, k;
	struct rig r;

	rig_init(&r, POOL, 2);
	id = on_store_alone(&r, 1, 1);
	for (k = 0; k < POOL; k++)
		ck_assert_uint_eq(match(&r, 1000 + k, 1, &ids[k], &host), 1);
	ck_assert_int_eq(kvr_tier_fetch(&r.t, id, KVR_READ_DEMAND), -EAGAIN);
	ck_assert_uint_eq(r.t.blocks[id].slot, KVR_NO_SLOT);
	ck_assert_int_eq(r.t.blocks[id].reading, 0);
	kvr_tier_unpin(&r.t, ids, 1);
	ck_assert_int_eq(kvr_tier_fetch(&r.t, id, KVR_READ_DEMAND), 0);
	kvr_tier_fetched(&r.t, id, 1, 0);
	kvr_tier_unpin(&r.t, &id, 1);
	kvr_tier_unpin(&r.t, ids + 1, POOL - 1);
	rig_exit(&r);
}
END_TEST

START_TEST(test_failed_fetch_is_a_miss)
{
	struct kvr_store_info info;
	struct rig r;
	uint32_t id;
	int retire;

	for (retire = 0; retire < 2; retire++) {
		rig_init(&r, POOL, 2);
		id = on_store_alone(&r, 1, 1);
		ck_assert_int_eq(kvr_tier_fetch(&r.t, id, KVR_READ_DEMAND), 0);
		kvr_tier_fetched(&r.t, id, 0, retire);
		ck_assert(!known(&r, 1));
		ck_assert(r.t.blocks[id].used && r.t.blocks[id].dead);
		kvr_tier_unpin(&r.t, &id, 1);
		ck_assert(!r.t.blocks[id].used);
		ck_assert_uint_eq(r.t.free_slot_count, 1);
		kvr_store_info(r.store, &info);
		ck_assert_uint_eq(info.used, 0);
		ck_assert_uint_eq(info.retired_slots, (uint32_t)retire);
		put_both(&r, 1); /* the key may come again */
		rig_exit(&r);
	}
}
END_TEST

START_TEST(test_kill_while_reading_waits_for_the_read)
{
	struct kvr_store_info info;
	uint32_t id, way;
	struct rig r;

	for (way = 0; way < 4; way++) { /* bit 0: read ok, bit 1: unpinned before it ends */
		rig_init(&r, POOL, 1);
		id = on_store_alone(&r, 1, 1);
		ck_assert_int_eq(kvr_tier_fetch(&r.t, id, KVR_READ_DEMAND), 0);
		kvr_tier_kill(&r.t, id, 1);
		ck_assert(!known(&r, 1));
		if (way & 2)
			kvr_tier_unpin(&r.t, &id, 1);
		ck_assert(r.t.blocks[id].used); /* the device still writes into its pool slot */
		ck_assert_uint_eq(r.t.free_slot_count, 0);
		kvr_store_info(r.store, &info);
		ck_assert_uint_eq(info.used, 1); /* and reads its slot of the store */
		kvr_tier_fetched(&r.t, id, way & 1, 1);
		if (!(way & 2))
			kvr_tier_unpin(&r.t, &id, 1);
		ck_assert(!r.t.blocks[id].used);
		ck_assert_uint_eq(r.t.free_slot_count, 1);
		kvr_store_info(r.store, &info);
		ck_assert_uint_eq(info.used, 0);
		ck_assert(way & 1 || info.retired_slots == 1);
		rig_exit(&r);
	}
}
END_TEST

START_TEST(test_kill_while_writing_waits_for_the_write)
{
	struct kvr_store_info info;
	uint32_t id, way;
	struct rig r;

	for (way = 0; way < 4; way++) { /* bit 0: written ok, bit 1: pinned meanwhile */
		rig_init(&r, POOL, 1);
		id = put(&r, 1);
		ck_assert_int_eq(kvr_tier_place(&r.t, id), 0);
		if (way & 2)
			kvr_tier_pin(&r.t, &id, 1);
		kvr_tier_kill(&r.t, id, 0);
		ck_assert(!known(&r, 1));
		ck_assert_uint_eq(r.t.free_slot_count, POOL - 1);
		kvr_store_info(r.store, &info);
		ck_assert_uint_eq(info.used, 1);
		kvr_tier_written(&r.t, id, way & 1 ? 0 : -EIO);
		if (way & 2)
			kvr_tier_unpin(&r.t, &id, 1);
		check_all_free(&r, !(way & 1));
		rig_exit(&r);
	}
}
END_TEST

START_TEST(test_kill_with_retire_takes_the_slot_out_of_use)
{
	struct kvr_store_info info;
	uint32_t id, pinned;
	struct rig r;

	for (pinned = 0; pinned < 2; pinned++) {
		rig_init(&r, POOL, 1);
		id = put_both(&r, 1);
		if (pinned)
			kvr_tier_pin(&r.t, &id, 1);
		kvr_tier_kill(&r.t, id, 1);
		kvr_store_info(r.store, &info);
		ck_assert_uint_eq(info.retired_slots, 1);
		ck_assert_uint_eq(info.used, 0);
		if (pinned)
			kvr_tier_unpin(&r.t, &id, 1);
		check_all_free(&r, 1);
		id = put(&r, 2);
		ck_assert_int_eq(kvr_tier_place(&r.t, id), -ENOSPC);
		rig_exit(&r);
	}
}
END_TEST

START_TEST(test_kill_without_retire_gives_the_slot_back)
{
	struct rig r;
	uint32_t id;

	rig_init(&r, POOL, 1);
	id = put_both(&r, 1);
	kvr_tier_kill(&r.t, id, 0);
	check_all_free(&r, 0);
	id = on_store_alone(&r, 2, 0);
	kvr_tier_kill(&r.t, id, 0);
	put_both(&r, 3);
	rig_exit(&r);
}
END_TEST

/* As many blocks as there are places, each in one place alone: the most there can be. */
START_TEST(test_as_many_blocks_as_slots_of_both)
{
	struct kvr_key key = key_of(999);
	uint32_t n, id, ids[POOL + 5], host;
	struct rig r;

	rig_init(&r, POOL, 5);
	for (n = 0; n < 5; n++)
		put_both(&r, n);
	for (; n < 5 + POOL; n++)
		put(&r, n);
	ck_assert_uint_eq(r.t.free_block_count, 0);
	ck_assert_uint_eq(match(&r, 0, 5 + POOL, ids, &host), 5 + POOL);
	ck_assert_uint_eq(host, POOL);
	ck_assert_int_eq(kvr_tier_reserve(&r.t, 0, &key, &id), -EAGAIN);
	ck_assert_int_eq(kvr_tier_place(&r.t, ids[5]), -ENOSPC);
	kvr_tier_unpin(&r.t, ids, 5 + POOL);
	ck_assert_int_eq(kvr_tier_reserve(&r.t, 0, &key, &id), 0);
	ck_assert(!known(&r, 4 + POOL));
	rig_exit(&r);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("tier");
	TCase *host = tcase_create("host"), *both = tcase_create("store");

	tcase_add_test(host, test_copying_block_is_invisible_until_ready);
	tcase_add_test(host, test_match_returns_the_longest_prefix);
	tcase_add_test(host, test_match_of_a_repeated_key);
	tcase_add_test(host, test_full_pool_evicts_tails_before_heads);
	tcase_add_test(host, test_least_recently_used_is_evicted_first);
	tcase_add_test(host, test_pinned_and_copying_blocks_are_never_evicted);
	tcase_add_test(host, test_killed_copy_frees_its_slot_and_key);
	tcase_add_test(host, test_killed_block_lives_until_its_last_pin);
	tcase_add_test(both, test_written_block_survives_eviction_from_the_pool);
	tcase_add_test(both, test_block_being_written_keeps_its_slot);
	tcase_add_test(both, test_failed_write_retires_the_slot_and_keeps_the_block);
	tcase_add_test(both, test_unplace_undoes_place);
	tcase_add_test(both, test_queued_block_stays_in_the_pool);
	tcase_add_test(both, test_only_a_block_that_needs_it_is_queued);
	tcase_add_test(both, test_full_store_evicts_its_oldest_idle_block);
	tcase_add_test(both, test_block_in_neither_place_is_forgotten);
	tcase_add_test(both, test_fetch_brings_a_block_back);
	tcase_add_test(both, test_fetch_without_a_slot_changes_nothing);
	tcase_add_test(both, test_failed_fetch_is_a_miss);
	tcase_add_test(both, test_kill_while_reading_waits_for_the_read);
	tcase_add_test(both, test_kill_while_writing_waits_for_the_write);
	tcase_add_test(both, test_kill_with_retire_takes_the_slot_out_of_use);
	tcase_add_test(both, test_kill_without_retire_gives_the_slot_back);
	tcase_add_test(both, test_as_many_blocks_as_slots_of_both);
	suite_add_tcase(s, host);
	suite_add_tcase(s, both);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
