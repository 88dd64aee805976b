/* SPDX-License-Identifier: Apache-2.0 */
/* Loads by layers of blocks of odd shapes: what is given out is right at that very moment. */
#include "trio.h"

#include "engine_priv.h"

static struct kvr_key keys[64];
static struct kvr_shape shape;

static const struct form {
	uint32_t groups, layer, replicated;
} forms[] = {
	{ 61, 18432, 1 }, { 61, 18432, 0 }, { 61, 1000, 0 }, { 7, 4608, 0 },
	{ 33, 6144, 1 },  { 2, 300000, 0 }, { 1, 70000, 0 }, { 64, 4096, 0 },
	{ 20, 65536, 0 }, { 1024, 128, 0 }, { 5, 4094, 0 },
};
static const uint32_t parts[] = { 4096, 5000, 12288, 65536, KVR_PART_BYTES };

#define FORMS (sizeof forms / sizeof *forms)

static void open_form(const struct form *f)
{
	uint64_t block = (uint64_t)f->groups * f->layer, slot = block + 3 * 4096 + 65536;

	cluster_init(&cl, RANKS, 0, 16, 48);
	ok(f->replicated ? kvr_shape_replicated(RANKS, f->groups, block, &shape)
			 : kvr_shape_split(RANKS, f->groups, block, &shape));
	cl.opts.shape = &shape;
	cl.opts.host_bytes = 8 * slot;
	cl.opts.store_bytes = 65536 + 32 * slot;
	ok(kvr_connector_lead(cl.name, &cl.opts, &lead));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_join(cl.name, r, NULL, SOON, &rank[r]));
	cluster_keys(7, keys, 64);
}

static uint8_t byte_of(const struct kvr_key *key, uint64_t at)
{
	return (uint8_t)(key->bytes[at % 31] + (at >> 3) * 13 + (at >> 11));
}

static void fill(uint32_t r, const struct kvr_key *key, struct kvr_block *b)
{
	static struct kvr_span s[4096];
	uint32_t n = kvr_connector_spans(rank[r], 1, s, 4096);

	for (uint32_t i = 0; i < n; i++)
		for (uint64_t at = s[i].offset; at < s[i].offset + s[i].bytes; at++)
			b->payload[at] = byte_of(key, at);
}

/* Of the first `groups` layer groups. */
static uint64_t wrong(uint32_t r, const struct kvr_key *key, const struct kvr_block *b,
		      uint32_t groups)
{
	static struct kvr_span s[4096];
	uint32_t n = kvr_connector_spans(rank[r], 0, s, 4096);
	uint64_t bad = 0, end = groups * shape.layer_bytes;

	for (uint32_t i = 0; i < n; i++)
		for (uint64_t at = s[i].offset; at < s[i].offset + s[i].bytes && at < end; at++)
			bad += b->payload[at] != byte_of(key, at);
	return bad;
}

static void store_some(uint64_t id, const struct kvr_key *k, uint32_t n)
{
	struct kvr_block b[8];

	ck_assert_int_eq(begin_on(lead, id, k, n, b), (int)n);
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert_int_eq(begin_on(rank[r], id, k, n, b), (int)n);
		for (uint32_t i = 0; i < n; i++)
			fill(r, &k[b[i].index], &b[i]);
		ok(copied_on(rank[r], id, 0));
	}
	ck_assert_uint_eq(end_of(id, KVR_KIND_STORE).stage, KVR_STAGE_WRITTEN);
}

static struct kvr_request load;

static void *agree(void *arg)
{
	(void)arg;
	return (void *)(intptr_t)kvr_connector_load_begin_layers(rank[1], &load, N, SOON);
}

static void load_and_look(uint64_t id, uint32_t part_bytes, uint32_t step)
{
	struct kvr_block b[N];
	pthread_t t;
	void *other;

	lead->engine->part_bytes = part_bytes;
	load = (struct kvr_request){ .id = id };
	ck_assert_uint_eq(lookup_all(id, keys, N), N);
	ck_assert_int_eq(kvr_connector_load_begin_layers(lead, &load, N, SOON), N);
	pthread_create(&t, NULL, agree, NULL);
	ck_assert_int_eq(kvr_connector_load_begin_layers(rank[0], &load, N, SOON), N);
	pthread_join(t, &other);
	ck_assert_int_eq((intptr_t)other, N);
	for (uint32_t g = 0; g < shape.layer_groups; g += step)
		for (uint32_t r = 0; r < RANKS; r++) {
			uint32_t upto = g + step >= shape.layer_groups ? shape.layer_groups - 1 : g;

			ck_assert_int_eq(kvr_connector_load_wait_layer(rank[r], &load, keys, upto,
								       SOON, b, N),
					 N);
			for (uint32_t i = 0; i < N; i++)
				ck_assert_uint_eq(wrong(r, &keys[i], &b[i], upto + 1), 0);
		}
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert_int_eq(kvr_connector_load_wait(rank[r], &load, keys, SOON, b, N), N);
		ok(kvr_connector_load_done(rank[r], &load));
	}
	ck_assert_uint_eq(end_of(id, KVR_KIND_LOAD).stage, KVR_STAGE_DONE);
	ok(kvr_connector_release(lead, &load));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_release(rank[r], &load));
}

START_TEST(test_odd_shapes)
{
	uint32_t n = 0;

	open_form(&forms[_i]);
	store_some(1, keys, N);
	for (uint64_t id = 2; id < 4; id++)
		store_some(id, keys + id * 8, (uint32_t)kvr_min(lead->engine->pool.slots, 8));
	for (uint32_t p = 0; p < sizeof parts / sizeof *parts; p++) {
		uint32_t only = (uint32_t)kvr_min(lead->engine->pool.slots, 8);

		load_and_look(100 + n++, parts[p], shape.layer_groups > 100 ? 97 : 1);
		/* Out of the pool again: all, or all but some of its first blocks. */
		for (uint64_t id = 0; id < 2; id++) {
			struct kvr_request req = { .id = 200 + 2 * n + id };
			uint32_t k = p % 2 ? only - N : only;

			ok(kvr_connector_prefetch(lead, &req, keys + (2 + id) * 8, k, 0, SOON));
			for (uint32_t r = 0; r < RANKS; r++)
				ok(kvr_connector_prefetch(rank[r], &req, keys + (2 + id) * 8, k, 0,
							  SOON));
			ok(kvr_engine_drain(lead->engine, SOON));
		}
	}
	trio_close();
}
END_TEST

static Suite *suite(void)
{
	int few = KVR_TEST_TSAN || KVR_TEST_ASAN;
	Suite *s = suite_create("connector_shapes");
	TCase *t = tcase_create("shapes");

	tcase_set_timeout(t, 60);
	/* Under the sanitizers two small ones: one that is split, one that is replicated. */
	tcase_add_loop_test(t, test_odd_shapes, few ? 3 : 0, few ? 5 : (int)FORMS);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
