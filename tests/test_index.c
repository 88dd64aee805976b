/* SPDX-License-Identifier: Apache-2.0 */
/* The index against a plain array, above all where runs of places are long and wrap around. */
#include "harness.h"

#include "hash.h"
#include "index.h"
#include "must.h"

#define SPACES 3u

static uint64_t rng_next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static struct kvr_key key_of(uint64_t n)
{
	struct kvr_key key;

	memset(&key, 0, sizeof key);
	memcpy(&key, &n, sizeof n);
	return key;
}

static uint64_t home_of(const struct kvr_index *ix, const struct kvr_index_key *k)
{
	return kvr_hash(&k->key, sizeof k->key, k->space) & ix->mask;
}

/* The index and the array that it is compared with. */
struct model {
	struct kvr_index ix;
	struct kvr_index_key *keys;
	uint8_t *in;
	uint32_t capacity, count;
};

static void model_init(struct model *m, uint32_t capacity)
{
	m->capacity = capacity;
	m->count = 0;
	m->keys = calloc(capacity, sizeof *m->keys);
	m->in = calloc(capacity, 1);
	must(m->keys && m->in);
	must_eq(kvr_index_init(&m->ix, m->keys, capacity), 0);
	must_eq(m->ix.count, 0);
	ck_assert_uint_ge(m->ix.mask + 1, 2ull * capacity);
}

static void model_exit(struct model *m)
{
	kvr_index_exit(&m->ix);
	free(m->keys);
	free(m->in);
}

static uint32_t model_find(const struct model *m, uint64_t space, const struct kvr_key *key)
{
	uint32_t id;

	for (id = 0; id < m->capacity; id++)
		if (m->in[id] && m->keys[id].space == space &&
		    !memcmp(&m->keys[id].key, key, sizeof *key))
			return id;
	return KVR_INDEX_NONE;
}

static void model_insert(struct model *m, uint32_t id, uint64_t space, struct kvr_key key)
{
	m->keys[id] = (struct kvr_index_key){ key, space };
	kvr_index_insert(&m->ix, id);
	m->in[id] = 1;
	m->count++;
}

static void model_remove(struct model *m, uint32_t id)
{
	must_eq(kvr_index_remove(&m->ix, id), m->in[id]);
	m->count -= m->in[id];
	m->in[id] = 0;
}

/* Every id once, and reachable: no empty place between its home and where it is. */
static void check_places(const struct model *m)
{
	uint8_t *seen = calloc(m->capacity, 1);
	uint64_t i, at;
	uint32_t id, found = 0;

	ck_assert_ptr_nonnull(seen);
	for (i = 0; i <= m->ix.mask; i++) {
		id = m->ix.places[i].id;
		if (id == KVR_INDEX_NONE)
			continue;
		must(id < m->capacity);
		must(m->in[id] && !seen[id]);
		seen[id] = 1;
		found++;
		for (at = home_of(&m->ix, &m->keys[id]); at != i; at = (at + 1) & m->ix.mask)
			must(m->ix.places[at].id != KVR_INDEX_NONE);
	}
	free(seen);
	must_eq(found, m->count);
	must_eq(m->ix.count, m->count);
}

static void check_all_found(const struct model *m)
{
	uint32_t id;

	for (id = 0; id < m->capacity; id++)
		if (m->in[id])
			must_eq(kvr_index_find(&m->ix, m->keys[id].space, &m->keys[id].key), id);
}

START_TEST(test_empty_index_finds_nothing)
{
	struct kvr_key key = key_of(1);
	struct model m;

	model_init(&m, 5);
	must_eq(kvr_index_find(&m.ix, 0, &key), KVR_INDEX_NONE);
	must_eq(kvr_index_remove(&m.ix, 0), 0);
	check_places(&m);
	model_exit(&m);
	model_exit(&(struct model){ 0 }); /* one that was never made */
	model_init(&m, 0);
	must_eq(kvr_index_find(&m.ix, 0, &key), KVR_INDEX_NONE);
	model_exit(&m);
}
END_TEST

START_TEST(test_namespaces_are_apart)
{
	struct kvr_key key = key_of(77);
	struct model m;
	uint32_t s;

	model_init(&m, 4);
	for (s = 0; s < 3; s++)
		model_insert(&m, s, 10 + s, key);
	for (s = 0; s < 3; s++)
		must_eq(kvr_index_find(&m.ix, 10 + s, &key), s);
	must_eq(kvr_index_find(&m.ix, 9, &key), KVR_INDEX_NONE);
	model_remove(&m, 1);
	must_eq(kvr_index_find(&m.ix, 11, &key), KVR_INDEX_NONE);
	must_eq(kvr_index_find(&m.ix, 10, &key), 0);
	must_eq(kvr_index_find(&m.ix, 12, &key), 2);
	model_remove(&m, 1);
	check_places(&m);
	model_exit(&m);
}
END_TEST

/* Keys that differ in one bit, the last byte too. */
START_TEST(test_every_bit_of_a_key_counts)
{
	struct kvr_key key = key_of(0x1234567890abcdef), other;
	struct model m;
	uint32_t bit;

	model_init(&m, 300);
	model_insert(&m, 0, 0, key);
	for (bit = 0; bit < 256; bit++) {
		other = key;
		other.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
		must_eq(kvr_index_find(&m.ix, 0, &other), KVR_INDEX_NONE);
		model_insert(&m, bit + 1, 0, other);
	}
	check_all_found(&m);
	check_places(&m);
	model_exit(&m);
}
END_TEST

/* Random work: phases that fill up to the capacity and drain again. */
static void drive(struct model *m, uint64_t *rng, uint32_t steps, uint32_t keys,
		  const struct kvr_index_key *from)
{
	uint32_t step, filling = 1, id, n;

	for (step = 0; step < steps; step++) {
		const struct kvr_index_key *k = &from[rng_next(rng) % keys];

		id = kvr_index_find(&m->ix, k->space, &k->key);
		must_eq(id, model_find(m, k->space, &k->key));
		n = rng_next(rng) % 8;
		if (m->count == m->capacity || (n == 0 && m->count > m->capacity / 2))
			filling = 0;
		else if (m->count < m->capacity / 4)
			filling = 1;
		if (id != KVR_INDEX_NONE && (n < 2 || !filling)) {
			model_remove(m, id);
			must_eq(kvr_index_find(&m->ix, k->space, &k->key), KVR_INDEX_NONE);
		} else if (id == KVR_INDEX_NONE && m->count < m->capacity && (filling || n < 2)) {
			for (id = (uint32_t)(rng_next(rng) % m->capacity); m->in[id];)
				id = (id + 1) % m->capacity;
			model_insert(m, id, k->space, k->key);
		}
		if (step % 16 == 0) {
			check_places(m);
			check_all_found(m);
		}
	}
}

/* Fills the index whole: the half that stays empty is what ends every search. */
static void fill(struct model *m, uint32_t keys, const struct kvr_index_key *from)
{
	uint32_t id = 0, n;

	for (n = 0; n < keys && m->count < m->capacity; n++) {
		if (model_find(m, from[n].space, &from[n].key) != KVR_INDEX_NONE)
			continue;
		while (m->in[id])
			id++;
		model_insert(m, id, from[n].space, from[n].key);
	}
	must_eq(m->count, m->capacity);
	check_places(m);
	check_all_found(m);
}

START_TEST(test_random_work_against_an_array)
{
	static const uint32_t capacities[] = { 1, 2, 7, 8, 9, 64, 100, 257 };
	uint64_t rng = test_seed();
	struct kvr_index_key from[600];
	struct model m;
	uint32_t i, n;

	for (i = 0; i < sizeof capacities / sizeof capacities[0]; i++) {
		for (n = 0; n < 600; n++)
			from[n] = (struct kvr_index_key){ key_of(rng_next(&rng) % 200),
							  rng_next(&rng) % SPACES };
		model_init(&m, capacities[i]);
		drive(&m, &rng, 1500, 600, from);
		fill(&m, 600, from);
		model_exit(&m);
	}
}
END_TEST

/* All homes within a few places around the end of the table: one run that wraps around, in which
 * every removal moves others. */
START_TEST(test_one_run_around_the_end_of_the_table)
{
	enum { CAPACITY = 40, KEYS = 120 };
	uint64_t rng = test_seed(), n = 0, home, span;
	struct kvr_index_key from[KEYS];
	struct model m;
	uint32_t have;

	for (span = 1; span <= 32; span *= 2) {
		model_init(&m, CAPACITY);
		for (have = 0; have < KEYS; n++) {
			from[have] = (struct kvr_index_key){ key_of(n), n % SPACES };
			home = home_of(&m.ix, &from[have]);
			/* the last `span` places and the first `span` - 1 */
			if (((home + span) & m.ix.mask) < 2 * span - 1)
				have++;
		}
		drive(&m, &rng, 1500, KEYS, from);
		fill(&m, KEYS, from);
		must(span > 4 || m.ix.places[0].id != KVR_INDEX_NONE);
		must(span > 4 || m.ix.places[m.ix.mask].id != KVR_INDEX_NONE);
		/* and out again, in random order */
		while (m.count) {
			model_remove(&m, (uint32_t)(rng_next(&rng) % CAPACITY));
			check_places(&m);
			check_all_found(&m);
		}
		model_exit(&m);
	}
}
END_TEST

struct tagged {
	uint64_t hash, n;
};

static int by_hash(const void *a, const void *b)
{
	uint64_t x = ((const struct tagged *)a)->hash, y = ((const struct tagged *)b)->hash;

	return x < y ? -1 : x > y;
}

/* The i-th of many pairs: one namespace with many keys, or many namespaces with one key. */
static struct kvr_index_key nth(int by_space, uint64_t i)
{
	return (struct kvr_index_key){ key_of(by_space ? 1 : i), by_space ? i : 1 };
}

/* Two entries with the same home and the same 32 bits of the hash: only the key and the namespace
 * themselves tell them apart. */
START_TEST(test_equal_tags_are_told_apart)
{
	enum { MANY = 1 << 19 };
	struct tagged *t = malloc(MANY * sizeof *t);
	struct kvr_index_key a, b;
	struct model m;
	uint32_t i, pairs = 0;

	ck_assert_ptr_nonnull(t);
	for (i = 0; i < MANY; i++) {
		a = nth(_i, i);
		/* the tag above, the home of the smallest table below it */
		t[i].hash = kvr_hash(&a.key, sizeof a.key, a.space);
		t[i].hash = (t[i].hash >> 32 << 4) | (t[i].hash & 15);
		t[i].n = i;
	}
	qsort(t, MANY, sizeof *t, by_hash);
	for (i = 1; i < MANY; i++) {
		if (t[i].hash != t[i - 1].hash)
			continue;
		a = nth(_i, t[i - 1].n);
		b = nth(_i, t[i].n);
		model_init(&m, 8);
		must_eq(m.ix.mask, 15);
		model_insert(&m, 0, a.space, a.key);
		must_eq(kvr_index_find(&m.ix, b.space, &b.key), KVR_INDEX_NONE);
		model_insert(&m, 1, b.space, b.key);
		check_all_found(&m);
		model_remove(&m, 0);
		must_eq(kvr_index_find(&m.ix, a.space, &a.key), KVR_INDEX_NONE);
		must_eq(kvr_index_find(&m.ix, b.space, &b.key), 1);
		model_exit(&m);
		pairs++;
	}
	free(t);
	ck_assert_uint_gt(pairs, 0);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("index");
	TCase *c = tcase_create("index");

	tcase_add_test(c, test_empty_index_finds_nothing);
	tcase_add_test(c, test_namespaces_are_apart);
	tcase_add_test(c, test_every_bit_of_a_key_counts);
	tcase_add_test(c, test_random_work_against_an_array);
	tcase_add_test(c, test_one_run_around_the_end_of_the_table);
	tcase_add_loop_test(c, test_equal_tags_are_told_apart, 0, 2);
	suite_add_tcase(s, c);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
