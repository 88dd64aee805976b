/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tier against a model, driven by one seed: random calls in every order that an engine may make
 * them, each outcome predicted, and after each the tier's own books checked.
 *
 * The model keeps a row a block and two plain arrays for the order of eviction. It says what must
 * happen; check_books() knows nothing of it and says what must be true in any case.
 */
#include "must.h"
#include "tier_helpers.h"

#define KEYS 40u
#define SPACES 2u
#define MOST 64u  /* blocks */
#define HOLDS 6u  /* requests that pin something */
#define LENGTH 6u /* of a request */

enum {
	SAW_EXIST,
	SAW_NO_SLOT,
	SAW_HOST_VICTIM,
	SAW_NO_SPACE,
	SAW_DISK_VICTIM,
	SAW_HIT,
	SAW_PARTIAL,
	SAW_KILL_READING,
	SAW_KILL_WRITING,
	SAW_KILL_PINNED,
	SAW_FETCH_FAILED,
	SAW_FETCH_REFUSED,
	SAW_KINDS
};

struct row {
	uint32_t key, space, pins;
	int used, dead, copying, reading, queued, writing, slot, where, error;
};

struct order {
	uint32_t id[MOST], n;
};

struct hold {
	uint32_t id[LENGTH], n;
};

struct sim {
	struct rig r;
	uint64_t rng;
	uint32_t store_slots, retired, slots_free, where_free;
	struct row row[MOST];
	struct order host, disk;
	struct hold hold[HOLDS];
	uint64_t host_evictions, disk_evictions;
	uint64_t outcome[SAW_KINDS]; /* how often each was seen */
};

static uint32_t pick(struct sim *m, uint32_t below)
{
	uint64_t z = m->rng += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return (uint32_t)((z ^ (z >> 31)) % below);
}

/* --- the model ---------------------------------------------------------------------------------
 */

static int order_has(const struct order *o, uint32_t id)
{
	uint32_t i;

	for (i = 0; i < o->n; i++)
		if (o->id[i] == id)
			return 1;
	return 0;
}

static void order_set(struct order *o, uint32_t id, int in)
{
	uint32_t i;

	if (in == order_has(o, id))
		return;
	if (in) {
		o->id[o->n++] = id;
		return;
	}
	for (i = 0; o->id[i] != id; i++)
		;
	memmove(&o->id[i], &o->id[i + 1], (--o->n - i) * sizeof o->id[0]);
}

static void settle(struct sim *m, uint32_t id)
{
	struct row *b = &m->row[id];
	int idle = !b->pins && !b->copying && !b->reading && !b->queued && !b->writing;

	if (idle && (b->dead || (!b->slot && !b->where))) {
		m->slots_free += (uint32_t)b->slot;
		m->where_free += (uint32_t)b->where;
		*b = (struct row){ 0 };
		idle = 0;
	}
	order_set(&m->host, id, idle && b->slot);
	order_set(&m->disk, id, idle && b->where);
}

static uint32_t find(const struct sim *m, uint32_t space, uint32_t key)
{
	uint32_t id;

	for (id = 0; id < MOST; id++)
		if (m->row[id].used && !m->row[id].dead && m->row[id].key == key &&
		    m->row[id].space == space)
			return id;
	return KVR_NO_BLOCK;
}

/* 1: there is a free pool slot now. */
static int make_room(struct sim *m)
{
	uint32_t victim;

	if (!m->slots_free) {
		if (!m->host.n)
			return 0;
		victim = m->host.id[0];
		m->row[victim].slot = 0;
		m->slots_free++;
		m->host_evictions++;
		m->outcome[SAW_HOST_VICTIM]++;
		settle(m, victim);
	}
	return 1;
}

static void retire(struct sim *m, uint32_t id)
{
	m->row[id].where = 0;
	m->retired++;
}

static void kill_row(struct sim *m, uint32_t id, int retiring)
{
	struct row *b = &m->row[id];

	m->outcome[SAW_KILL_READING] += (uint64_t)b->reading;
	m->outcome[SAW_KILL_WRITING] += (uint64_t)b->writing;
	m->outcome[SAW_KILL_PINNED] += b->pins != 0;
	b->dead = 1;
	b->copying = 0;
	if (retiring && b->where && !b->reading && !b->writing)
		retire(m, id);
	settle(m, id);
}

/* --- what must be true in any case ---------------------------------------------------------------
 */

static void check_slots(const struct kvr_tier *t)
{
	uint8_t seen[MOST] = { 0 };
	uint32_t i, held = 0;

	for (i = 0; i < t->free_slot_count; i++) {
		must(t->free_slots[i] < t->pool_slots);
		must_eq(seen[t->free_slots[i]]++, 0);
	}
	for (i = 0; i < t->capacity; i++) {
		const struct kvr_tier_block *b = &t->blocks[i];

		if (!b->used || b->slot == KVR_NO_SLOT)
			continue;
		must(b->slot < t->pool_slots);
		must_eq(seen[b->slot]++, 0);
		held++;
	}
	must_eq(t->free_slot_count + held, t->pool_slots);
}

static void check_blocks(const struct sim *m)
{
	const struct kvr_tier *t = &m->r.t;
	struct kvr_store_info info = { 0 };
	uint32_t i, k, used = 0, live = 0, where = 0;

	for (i = 0; i < t->capacity; i++) {
		const struct kvr_tier_block *b = &t->blocks[i];

		used += b->used;
		if (!b->used)
			continue;
		live += !b->dead;
		must_eq(kvr_index_find(&t->index, t->keys[i].space, &t->keys[i].key) == i,
			!b->dead);
		if (b->where == KVR_NOWHERE)
			continue;
		where++;
		for (k = 0; k < i; k++)
			must(!t->blocks[k].used || t->blocks[k].where != b->where);
	}
	for (i = 0; i < t->free_block_count; i++)
		must_eq(t->blocks[t->free_blocks[i]].used, 0);
	must_eq(t->free_block_count + used, t->capacity);
	must_eq(t->index.count, live);
	for (i = 0; i <= t->index.mask; i++) {
		k = t->index.places[i].id;
		must(k == KVR_INDEX_NONE || (t->blocks[k].used && !t->blocks[k].dead));
	}
	if (m->r.store)
		kvr_store_info(m->r.store, &info);
	must_eq(info.used, where);
	must_eq(info.retired_slots, m->retired);
}

/* Membership is exactly: idle, unpinned, and has a place there. */
static void check_lists(const struct kvr_tier *t)
{
	uint32_t i;

	for (i = 0; i < t->capacity; i++) {
		const struct kvr_tier_block *b = &t->blocks[i];
		int idle = b->used && !b->dead && !b->pins && !b->copying && !b->reading &&
			   !b->queued && !b->writing;

		if (!b->used)
			continue;
		must_eq(b->in_host, idle && b->slot != KVR_NO_SLOT);
		must_eq(b->in_disk, idle && b->where != KVR_NOWHERE);
		must(!idle || b->in_host || b->in_disk);
	}
}

static void check_books(const struct sim *m)
{
	check_slots(&m->r.t);
	check_blocks(m);
	check_lists(&m->r.t);
}

/* --- and what must have happened -----------------------------------------------------------------
 */

static void check_orders(const struct sim *m)
{
	const struct kvr_tier_block *b = m->r.t.blocks;
	uint32_t end = m->r.t.capacity, at = end, i;

	for (i = 0; i < m->host.n; i++, at = b[at].host.next) {
		must_eq(b[at].host.next, m->host.id[i]);
		must_eq(b[m->host.id[i]].host.prev, at);
	}
	must_eq(b[at].host.next, end);
	must_eq(b[end].host.prev, at);
	for (i = 0, at = end; i < m->disk.n; i++, at = b[at].disk.next) {
		must_eq(b[at].disk.next, m->disk.id[i]);
		must_eq(b[m->disk.id[i]].disk.prev, at);
	}
	must_eq(b[at].disk.next, end);
	must_eq(b[end].disk.prev, at);
}

static void check_model(const struct sim *m)
{
	const struct kvr_tier *t = &m->r.t;
	struct kvr_key key;
	uint32_t i;

	for (i = 0; i < t->capacity; i++) {
		const struct kvr_tier_block *b = &t->blocks[i];
		const struct row *w = &m->row[i];

		must_eq(b->used, w->used);
		if (!w->used)
			continue;
		key = key_of(w->key);
		must_eq(memcmp(&t->keys[i].key, &key, sizeof key), 0);
		must_eq(t->keys[i].space, w->space);
		must_eq(b->pins, w->pins);
		must_eq(b->dead, w->dead);
		must_eq(b->copying, w->copying);
		must_eq(b->reading != 0, w->reading);
		must_eq(b->queued, w->queued);
		must_eq(b->writing, w->writing);
		must_eq(b->error, w->error);
		must_eq(b->slot != KVR_NO_SLOT, w->slot);
		must_eq(b->where != KVR_NOWHERE, w->where);
	}
	must_eq(t->free_slot_count, m->slots_free);
	must_eq(t->host_evictions, m->host_evictions);
	must_eq(t->disk_evictions, m->disk_evictions);
	check_orders(m);
}

/* --- the calls ---------------------------------------------------------------------------------
 */

static struct hold *free_hold(struct sim *m)
{
	uint32_t i;

	for (i = 0; i < HOLDS; i++)
		if (!m->hold[i].n)
			return &m->hold[i];
	return NULL;
}

static void do_reserve(struct sim *m)
{
	uint32_t key = pick(m, KEYS), space = pick(m, SPACES), id = KVR_NO_BLOCK;
	uint32_t known = find(m, space, key);
	struct kvr_key k = key_of(key);
	struct hold *h = free_hold(m);
	int err = kvr_tier_reserve(&m->r.t, space, &k, &id);

	if (known != KVR_NO_BLOCK) {
		must_eq(err, -EEXIST);
		m->outcome[SAW_EXIST]++;
		return;
	}
	if (!make_room(m)) {
		must_eq(err, -EAGAIN);
		must_eq(id, KVR_NO_BLOCK);
		m->outcome[SAW_NO_SLOT]++;
		return;
	}
	must_eq(err, 0);
	must(id < m->r.t.capacity);
	must_eq(m->row[id].used, 0);
	m->slots_free--;
	m->row[id] = (struct row){ .key = key, .space = space, .used = 1, .copying = 1, .slot = 1 };
	if (h && pick(m, 2)) { /* an operation pins what it copies */
		h->id[h->n++] = id;
		kvr_tier_pin(&m->r.t, &id, 1);
		m->row[id].pins++;
		settle(m, id);
	}
}

static void do_match(struct sim *m)
{
	uint32_t ids[LENGTH], len, n = 1 + pick(m, LENGTH), space = pick(m, SPACES), i;
	uint32_t number[LENGTH], expected_host = 0, got_host = 99;
	struct hold *h = free_hold(m);
	struct kvr_key keys[LENGTH];

	if (!h)
		return;
	for (i = 0; i < n; i++) { /* mostly keys that are there */
		uint32_t id = pick(m, m->r.t.capacity);

		number[i] = m->row[id].used && m->row[id].space == space && pick(m, 8)
				    ? m->row[id].key
				    : pick(m, KEYS);
		keys[i] = key_of(number[i]);
	}
	len = kvr_tier_match(&m->r.t, space, keys, n, ids, &got_host);
	for (i = 0; i < n; i++) {
		uint32_t id = find(m, space, number[i]);

		if (id == KVR_NO_BLOCK || m->row[id].copying)
			break;
		must(i < len);
		must_eq(ids[i], id);
		expected_host += m->row[id].slot && !m->row[id].reading;
	}
	must_eq(len, i);
	must_eq(got_host, expected_host);
	for (i = 0; i < len; i++) {
		h->id[h->n++] = ids[i];
		m->row[ids[i]].pins++;
		settle(m, ids[i]);
	}
	m->outcome[SAW_HIT] += len == n;
	m->outcome[SAW_PARTIAL] += len && len < n;
}

static void do_unpin(struct sim *m)
{
	struct hold *h = &m->hold[pick(m, HOLDS)];
	uint32_t i;

	kvr_tier_unpin(&m->r.t, h->id, h->n);
	for (i = h->n; i-- > 0;) { /* tails first */
		m->row[h->id[i]].pins--;
		settle(m, h->id[i]);
	}
	h->n = 0;
}

static void do_place(struct sim *m, uint32_t id)
{
	struct row *b = &m->row[id];
	int err = kvr_tier_place(&m->r.t, id);

	if (!m->where_free) {
		if (!m->disk.n) {
			must_eq(err, -ENOSPC);
			m->outcome[SAW_NO_SPACE]++;
			return;
		}
		uint32_t victim = m->disk.id[0];

		m->row[victim].where = 0;
		m->where_free++;
		m->disk_evictions++;
		m->outcome[SAW_DISK_VICTIM]++;
		settle(m, victim);
	}
	must_eq(err, 0);
	m->where_free--;
	b->where = b->writing = 1;
	b->queued = 0;
	settle(m, id);
}

static void do_queue(struct sim *m, uint32_t id)
{
	struct row *b = &m->row[id];
	int needed = b->slot && !b->where && !b->dead && !b->queued && !b->writing;

	must_eq(kvr_tier_queue(&m->r.t, id), needed);
	if (needed) {
		b->queued = 1;
		b->error = 0;
		settle(m, id);
	}
}

static void do_unqueue(struct sim *m, uint32_t id)
{
	kvr_tier_unqueue(&m->r.t, id, -ENOSPC);
	m->row[id].queued = 0;
	m->row[id].error = -ENOSPC;
	settle(m, id);
}

static void do_write_end(struct sim *m, uint32_t id)
{
	struct row *b = &m->row[id];
	uint32_t way = pick(m, 64);

	b->writing = 0;
	if (way < 20) {
		kvr_tier_unplace(&m->r.t, id);
		b->queued = 1;
		b->where = 0;
		m->where_free++;
	} else {
		b->error = way == 20 ? -EIO : 0;
		kvr_tier_written(&m->r.t, id, b->error);
		if (b->error)
			retire(m, id);
	}
	settle(m, id);
}

static void do_fetch(struct sim *m, uint32_t id)
{
	int err = kvr_tier_fetch(&m->r.t, id, KVR_READ_DEMAND);

	if (!make_room(m)) {
		must_eq(err, -EAGAIN);
		m->outcome[SAW_FETCH_REFUSED]++;
		return;
	}
	must_eq(err, 0);
	m->slots_free--;
	m->row[id].slot = m->row[id].reading = 1;
	settle(m, id);
}

static void do_read_end(struct sim *m, uint32_t id)
{
	int ok = pick(m, 8) != 0, retiring = !pick(m, 4);

	kvr_tier_fetched(&m->r.t, id, ok, retiring);
	m->row[id].reading = 0;
	if (ok) {
		settle(m, id);
	} else {
		m->outcome[SAW_FETCH_FAILED]++;
		kill_row(m, id, retiring);
	}
}

static void do_kill(struct sim *m, uint32_t id)
{
	int retiring = !pick(m, 16);

	kvr_tier_kill(&m->r.t, id, retiring);
	kill_row(m, id, retiring);
}

/* Something that an engine may do to this block in its state. */
static void do_block(struct sim *m, uint32_t id)
{
	const struct row *b = &m->row[id];

	if (!b->used)
		return;
	if (!pick(m, 24)) {
		do_kill(m, id);
	} else if (b->copying) {
		kvr_tier_ready(&m->r.t, id, 100 + id, 200 + id);
		m->row[id].copying = 0;
		settle(m, id);
		must_eq(m->r.t.blocks[id].seq, 100 + id);
		must_eq(m->r.t.blocks[id].sum, 200 + id);
	} else if (b->writing) {
		do_write_end(m, id);
	} else if (b->reading) {
		do_read_end(m, id);
	} else if (b->queued && pick(m, 8)) {
		do_place(m, id); /* also one that was killed since it was queued */
	} else if (b->queued) {
		do_unqueue(m, id);
	} else if (m->store_slots && (b->slot || !pick(m, 4))) {
		do_queue(m, id);
	} else if (b->where && !b->slot && !b->dead) {
		do_fetch(m, id);
	}
}

static void step(struct sim *m)
{
	switch (pick(m, 8)) {
	case 0:
	case 1:
		do_reserve(m);
		break;
	case 2:
		do_match(m);
		break;
	case 3:
		do_unpin(m);
		break;
	default:
		do_block(m, pick(m, m->r.t.capacity));
	}
	check_books(m);
	check_model(m);
}

/* Everything ends: then nothing may be held any more. */
static void end_all(struct sim *m)
{
	uint32_t i;

	for (i = 0; i < m->r.t.capacity; i++) {
		if (m->row[i].reading)
			do_read_end(m, i);
		if (m->row[i].writing)
			do_write_end(m, i);
		if (m->row[i].queued)
			do_unqueue(m, i);
		if (m->row[i].used)
			do_kill(m, i);
	}
	for (i = 0; i < HOLDS; i++) {
		kvr_tier_unpin(&m->r.t, m->hold[i].id, m->hold[i].n);
		m->hold[i].n = 0;
	}
	must_eq(m->r.t.free_slot_count, m->r.t.pool_slots);
	must_eq(m->r.t.free_block_count, m->r.t.capacity);
	check_books(m);
}

static void run(uint64_t seed, uint32_t pool, uint32_t store_slots, uint32_t steps,
		uint64_t outcome[SAW_KINDS])
{
	struct sim *m = calloc(1, sizeof *m);
	uint32_t i;

	ck_assert_ptr_nonnull(m);
	m->rng = seed;
	m->store_slots = m->where_free = store_slots;
	m->slots_free = pool;
	rig_init(&m->r, pool, store_slots);
	for (i = 0; i < steps; i++)
		step(m);
	end_all(m);
	rig_exit(&m->r);
	for (i = 0; i < SAW_KINDS; i++)
		outcome[i] += m->outcome[i];
	free(m);
}

START_TEST(test_random_calls_on_the_host_tier_alone)
{
	static const uint32_t pools[] = { 1, 2, 5, 16, 32 };
	uint64_t seed = test_seed(), outcome[SAW_KINDS] = { 0 };
	size_t i;

	for (i = 0; i < sizeof pools / sizeof pools[0]; i++)
		run(seed + i, pools[i], 0, 4000, outcome);
	ck_assert_uint_gt(outcome[SAW_EXIST], 0);
	ck_assert_uint_gt(outcome[SAW_NO_SLOT], 0);
	ck_assert_uint_gt(outcome[SAW_HOST_VICTIM], 0);
	ck_assert_uint_gt(outcome[SAW_HIT], 0);
	ck_assert_uint_gt(outcome[SAW_PARTIAL], 0);
	ck_assert_uint_gt(outcome[SAW_KILL_PINNED], 0);
}
END_TEST

START_TEST(test_random_calls_with_a_store)
{
	static const struct {
		uint32_t pool, store;
	} size[] = { { 1, 1 }, { 2, 5 }, { 6, 2 }, { 8, 8 }, { 4, 28 }, { 24, 24 } };
	uint64_t rounds = test_rounds(2), round, seed = test_seed(), outcome[SAW_KINDS] = { 0 };
	size_t i;

	for (round = 0; round < rounds; round++)
		for (i = 0; i < sizeof size / sizeof size[0]; i++)
			run(seed + 100 * round + i, size[i].pool, size[i].store, 2500, outcome);
	for (i = 0; i < SAW_KINDS; i++)
		ck_assert_msg(outcome[i] > 0, "outcome %zu was never seen", i);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("tier_model");
	TCase *c = tcase_create("model");

	tcase_add_test(c, test_random_calls_on_the_host_tier_alone);
	tcase_add_test(c, test_random_calls_with_a_store);
	suite_add_tcase(s, c);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
