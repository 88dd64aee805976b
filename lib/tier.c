/* SPDX-License-Identifier: Apache-2.0 */
/* Where blocks lie and which are evicted; see tier.h. */
#include "tier.h"

#include <errno.h>
#include <stdlib.h>

#include "err.h"

/* --- two lists of blocks that may be evicted, through a common sentinel --------------------------
 */

static void host_unlink(struct kvr_tier *t, uint32_t id)
{
	struct kvr_tier_block *b = &t->blocks[id];

	t->blocks[b->host.prev].host.next = b->host.next;
	t->blocks[b->host.next].host.prev = b->host.prev;
	b->in_host = 0;
}

static void host_append(struct kvr_tier *t, uint32_t id)
{
	struct kvr_tier_block *end = &t->blocks[t->capacity], *b = &t->blocks[id];

	b->host = (struct kvr_tier_link){ end->host.prev, t->capacity };
	t->blocks[end->host.prev].host.next = id;
	end->host.prev = id;
	b->in_host = 1;
}

static void disk_unlink(struct kvr_tier *t, uint32_t id)
{
	struct kvr_tier_block *b = &t->blocks[id];

	t->blocks[b->disk.prev].disk.next = b->disk.next;
	t->blocks[b->disk.next].disk.prev = b->disk.prev;
	b->in_disk = 0;
}

static void disk_append(struct kvr_tier *t, uint32_t id)
{
	struct kvr_tier_block *end = &t->blocks[t->capacity], *b = &t->blocks[id];

	b->disk = (struct kvr_tier_link){ end->disk.prev, t->capacity };
	t->blocks[end->disk.prev].disk.next = id;
	end->disk.prev = id;
	b->in_disk = 1;
}

static void free_slot(struct kvr_tier *t, struct kvr_tier_block *b)
{
	t->free_slots[t->free_slot_count++] = b->slot;
	b->slot = KVR_NO_SLOT;
}

static void free_block(struct kvr_tier *t, uint32_t id)
{
	struct kvr_tier_block *b = &t->blocks[id];

	if (b->slot != KVR_NO_SLOT)
		free_slot(t, b);
	if (b->where != KVR_NOWHERE)
		kvr_store_free(t->store, b->where);
	if (!b->dead)
		kvr_index_remove(&t->index, id);
	b->used = 0;
	t->free_blocks[t->free_block_count++] = id;
}

/* After any change of a block: is it on the lists it belongs to, and is it still anything? */
static void settle(struct kvr_tier *t, uint32_t id)
{
	struct kvr_tier_block *b = &t->blocks[id];
	int idle = !b->pins && !b->copying && !b->reading && !b->queued && !b->writing;
	int gone = idle && (b->dead || (b->slot == KVR_NO_SLOT && b->where == KVR_NOWHERE));
	int host = idle && !gone && b->slot != KVR_NO_SLOT;
	int disk = idle && !gone && b->where != KVR_NOWHERE;

	if (b->in_host && !host)
		host_unlink(t, id);
	if (b->in_disk && !disk)
		disk_unlink(t, id);
	if (host && !b->in_host)
		host_append(t, id);
	if (disk && !b->in_disk)
		disk_append(t, id);
	if (gone)
		free_block(t, id);
}

int kvr_tier_init(struct kvr_tier *t, uint32_t pool_slots, struct kvr_store *store)
{
	struct kvr_store_info info = { 0 };

	if (store)
		kvr_store_info(store, &info);
	*t = (struct kvr_tier){ .pool_slots = pool_slots, .store = store, .next_seq = 1 };
	/* Each block holds a slot somewhere, so there are never more. */
	if (info.slots > UINT32_MAX - 2 - pool_slots)
		return KVR_FAIL(-EINVAL, "tier: %llu slots of the store are more than supported",
				(unsigned long long)info.slots);
	t->capacity = pool_slots + (uint32_t)info.slots;
	t->keys = calloc(t->capacity, sizeof *t->keys);
	t->blocks = calloc((size_t)t->capacity + 1, sizeof *t->blocks);
	t->free_blocks = calloc(t->capacity, sizeof *t->free_blocks);
	t->free_slots = calloc(pool_slots, sizeof *t->free_slots);
	if (!t->keys || !t->blocks || !t->free_blocks || !t->free_slots ||
	    kvr_index_init(&t->index, t->keys, t->capacity)) {
		kvr_tier_exit(t);
		return KVR_FAIL(-ENOMEM, "tier: no memory for %u blocks", t->capacity);
	}
	for (uint32_t i = 0; i < t->capacity; i++)
		t->free_blocks[t->free_block_count++] = t->capacity - 1 - i;
	for (uint32_t i = 0; i < pool_slots; i++)
		t->free_slots[t->free_slot_count++] = pool_slots - 1 - i;
	t->blocks[t->capacity].host = (struct kvr_tier_link){ t->capacity, t->capacity };
	t->blocks[t->capacity].disk = (struct kvr_tier_link){ t->capacity, t->capacity };
	return 0;
}

void kvr_tier_exit(struct kvr_tier *t)
{
	kvr_index_exit(&t->index);
	free(t->keys);
	free(t->blocks);
	free(t->free_blocks);
	free(t->free_slots);
	t->keys = NULL;
	t->blocks = NULL;
	t->free_blocks = t->free_slots = NULL;
}

static uint32_t new_block(struct kvr_tier *t, uint64_t space, const struct kvr_key *key)
{
	uint32_t id = t->free_blocks[--t->free_block_count];

	t->keys[id] = (struct kvr_index_key){ *key, space };
	t->blocks[id] =
		(struct kvr_tier_block){ .where = KVR_NOWHERE, .slot = KVR_NO_SLOT, .used = 1 };
	kvr_index_insert(&t->index, id);
	return id;
}

static void take_in(void *arg, const struct kvr_store_found *found)
{
	struct kvr_tier *t = arg;
	uint32_t id = new_block(t, found->space, &found->key);

	t->blocks[id].where = found->where;
	t->blocks[id].sum = found->header_checksum;
	t->blocks[id].seq = found->seq;
	settle(t, id);
	t->recovered++;
}

static int by_seq(const void *a, const void *b, void *arg)
{
	const struct kvr_tier *t = arg;
	uint64_t x = t->blocks[*(const uint32_t *)a].seq, y = t->blocks[*(const uint32_t *)b].seq;

	return x < y ? -1 : x > y;
}

/* The store's order is that of its slots; what was written last is to be evicted last. */
static void age_in_order(struct kvr_tier *t)
{
	uint32_t *ids = malloc((t->recovered + 1) * sizeof *ids), n = 0;

	if (!ids)
		return; /* then the order is arbitrary, which is no fault */
	for (uint32_t id = 0; id < t->capacity; id++)
		if (t->blocks[id].used)
			ids[n++] = id;
	qsort_r(ids, n, sizeof *ids, by_seq, t);
	for (uint32_t i = 0; i < n; i++) {
		disk_unlink(t, ids[i]);
		disk_append(t, ids[i]);
	}
	free(ids);
}

void kvr_tier_recover(struct kvr_tier *t)
{
	if (!t->store)
		return;
	kvr_store_scan(t->store, take_in, t);
	age_in_order(t);
	t->next_seq = kvr_store_next_seq(t->store);
}

uint32_t kvr_tier_match(struct kvr_tier *t, uint64_t space, const struct kvr_key *keys, uint32_t n,
			uint32_t *ret_ids, uint32_t *ret_host)
{
	uint32_t len, host = 0;

	for (len = 0; len < n; len++) {
		uint32_t id = kvr_index_find(&t->index, space, &keys[len]);

		if (id == KVR_INDEX_NONE || t->blocks[id].copying)
			break;
		ret_ids[len] = id;
		host += t->blocks[id].slot != KVR_NO_SLOT && !t->blocks[id].reading;
	}
	kvr_tier_pin(t, ret_ids, len);
	*ret_host = host;
	return len;
}

void kvr_tier_pin(struct kvr_tier *t, const uint32_t *ids, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		t->blocks[ids[i]].pins++;
		settle(t, ids[i]);
	}
}

void kvr_tier_unpin(struct kvr_tier *t, const uint32_t *ids, uint32_t n)
{
	while (n--) {
		t->blocks[ids[n]].pins--;
		settle(t, ids[n]);
	}
}

static int take_slot(struct kvr_tier *t, uint32_t *ret_slot)
{
	if (!t->free_slot_count) {
		uint32_t id = t->blocks[t->capacity].host.next;

		if (id == t->capacity)
			return -EAGAIN;
		free_slot(t, &t->blocks[id]);
		t->host_evictions++;
		settle(t, id);
	}
	*ret_slot = t->free_slots[--t->free_slot_count];
	return 0;
}

int kvr_tier_reserve(struct kvr_tier *t, uint64_t space, const struct kvr_key *key,
		     uint32_t *ret_id)
{
	uint32_t slot;

	if (kvr_index_find(&t->index, space, key) != KVR_INDEX_NONE)
		return -EEXIST;
	if (take_slot(t, &slot))
		return -EAGAIN;
	*ret_id = new_block(t, space, key);
	t->blocks[*ret_id].slot = slot;
	t->blocks[*ret_id].copying = 1;
	return 0;
}

void kvr_tier_ready(struct kvr_tier *t, uint32_t id, uint64_t seq, uint64_t sum)
{
	t->blocks[id].copying = 0;
	t->blocks[id].seq = seq;
	t->blocks[id].sum = sum;
	settle(t, id);
}

void kvr_tier_kill(struct kvr_tier *t, uint32_t id, int retire)
{
	struct kvr_tier_block *b = &t->blocks[id];

	if (!b->dead)
		kvr_index_remove(&t->index, id);
	b->dead = 1;
	b->copying = 0;
	if (retire && b->where != KVR_NOWHERE && !b->writing && !b->reading) {
		if (b->in_disk)
			disk_unlink(t, id);
		kvr_store_retire(t->store, b->where);
		b->where = KVR_NOWHERE;
	}
	settle(t, id);
}

int kvr_tier_queue(struct kvr_tier *t, uint32_t id)
{
	struct kvr_tier_block *b = &t->blocks[id];

	if (b->where != KVR_NOWHERE || b->queued || b->writing || b->dead || b->slot == KVR_NO_SLOT)
		return 0;
	b->queued = 1;
	b->error = 0;
	settle(t, id);
	return 1;
}

void kvr_tier_unqueue(struct kvr_tier *t, uint32_t id, int error)
{
	t->blocks[id].queued = 0;
	t->blocks[id].error = (int16_t)error;
	settle(t, id);
}

int kvr_tier_place(struct kvr_tier *t, uint32_t id)
{
	struct kvr_tier_block *b = &t->blocks[id];
	int err = kvr_store_alloc(t->store, &b->where);

	/* More than once only when a victim's slot is on a device that went offline. */
	while (err == -ENOSPC) {
		uint32_t victim = t->blocks[t->capacity].disk.next;

		if (victim == t->capacity)
			break;
		kvr_store_free(t->store, t->blocks[victim].where);
		t->blocks[victim].where = KVR_NOWHERE;
		t->disk_evictions++;
		settle(t, victim);
		err = kvr_store_alloc(t->store, &b->where);
	}
	if (err) {
		b->where = KVR_NOWHERE;
		return -ENOSPC;
	}
	b->queued = 0;
	b->writing = 1;
	settle(t, id);
	return 0;
}

void kvr_tier_unplace(struct kvr_tier *t, uint32_t id)
{
	struct kvr_tier_block *b = &t->blocks[id];

	kvr_store_free(t->store, b->where);
	b->where = KVR_NOWHERE;
	b->writing = 0;
	b->queued = 1;
	settle(t, id);
}

void kvr_tier_written(struct kvr_tier *t, uint32_t id, int error)
{
	struct kvr_tier_block *b = &t->blocks[id];

	b->writing = 0;
	b->error = (int16_t)error;
	if (error) {
		kvr_store_retire(t->store, b->where);
		b->where = KVR_NOWHERE;
	}
	settle(t, id);
}

int kvr_tier_fetch(struct kvr_tier *t, uint32_t id, enum kvr_tier_reading reading)
{
	uint32_t slot;

	if (take_slot(t, &slot))
		return -EAGAIN;
	t->blocks[id].slot = slot;
	t->blocks[id].reading = (uint8_t)reading;
	settle(t, id);
	return 0;
}

void kvr_tier_unfetch(struct kvr_tier *t, uint32_t id)
{
	free_slot(t, &t->blocks[id]);
	t->blocks[id].reading = KVR_READ_NONE;
	settle(t, id);
}

void kvr_tier_clear(struct kvr_tier *t)
{
	for (uint32_t id = 0; id < t->capacity; id++) {
		struct kvr_tier_block *b = &t->blocks[id];

		if (!b->used)
			continue;
		if (b->in_host)
			host_unlink(t, id);
		if (b->in_disk)
			disk_unlink(t, id);
		b->where = KVR_NOWHERE;
		free_block(t, id);
	}
}

void kvr_tier_fetched(struct kvr_tier *t, uint32_t id, int ok, int retire)
{
	t->blocks[id].reading = KVR_READ_NONE;
	if (ok)
		settle(t, id);
	else
		kvr_tier_kill(t, id, retire);
}
