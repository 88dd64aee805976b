/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress model on its own: a leader and three ranks. The engine moves operations on while the
 * leader's caller sleeps; a leader that dies between two copies of a publish leaves equal sets
 * behind.
 */
#include "cluster.h"
#include "point.h"

#define RANKS 3u
#define KEYS 8u

static void keys_of(struct kvr_key *keys, uint64_t family)
{
	cluster_keys(family, keys, KEYS);
}

/* --- the caller sleeps
 * ---------------------------------------------------------------------------- */

static void begin_then_sleep(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_request req = cluster_request(1, 0);
	struct kvr_block blocks[KEYS];
	struct kvr_key keys[KEYS];
	uint32_t covered;

	(void)rank;
	keys_of(keys, 1);
	MUST(kvr_connector_store_begin(c, &req, keys, KEYS, SOON, blocks, KEYS, &covered) == KEYS);
	test_sleep_ms(5000);
	for (uint32_t r = 0; r < RANKS; r++)
		cl->area->word[CLUSTER_RANKS][r] =
			__atomic_load_n(&cl->area->word[r][0], __ATOMIC_ACQUIRE);
	cluster_shutdown(c);
}

static void store_meanwhile(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_request req = cluster_request(1, 0);
	struct kvr_block blocks[KEYS];
	struct kvr_key keys[KEYS];
	uint32_t covered;

	keys_of(keys, 1);
	MUST(kvr_connector_store_begin(c, &req, keys, KEYS, SOON, blocks, KEYS, &covered) == KEYS);
	for (uint32_t i = 0; i < KEYS; i++)
		cluster_fill(c, &keys[blocks[i].index], &blocks[i]);
	MUST(!kvr_connector_store_copied(c, &req, 0));
	MUST(!kvr_connector_wait_store(c, &req, KVR_STAGE_WRITTEN, SOON));
	__atomic_store_n(&cl->area->word[rank][0], 1, __ATOMIC_RELEASE);
	cluster_shutdown(c);
}

START_TEST(test_stores_reach_written_while_the_leaders_caller_sleeps)
{
	struct cluster cl;

	cluster_init(&cl, RANKS, 1, 16, 16);
	cluster_start(&cl, begin_then_sleep, store_meanwhile);
	cluster_join(&cl, 0, 30000);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_uint_eq(cl.area->word[CLUSTER_RANKS][r], 1); /* before it woke */
	cluster_exit(&cl);
}
END_TEST

/* --- the leader dies within a publish
 * ------------------------------------------------------------- */

static uint32_t copies_before_death;
static uint32_t publishes_before_death;

static void die_between_copies(enum kvr_point point, uint32_t arg)
{
	(void)arg;
	if (point != KVR_POINT_publish_copied)
		return;
	if (publishes_before_death) {
		publishes_before_death--;
		return;
	}
	if (!copies_before_death--)
		raise(SIGKILL);
}

static void die_in_tick(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_completion done[64];
	struct kvr_key keys[KEYS];

	/* Rank 0 alone writes: nothing else waits for the others to join. */
	for (uint32_t r = 0; r < RANKS; r++)
		while (!__atomic_load_n(&cl->area->word[r][2], __ATOMIC_ACQUIRE))
			test_sleep_ms(1);
	keys_of(keys, 1);
	for (uint64_t id = 1; id <= 4; id++) {
		keys_of(keys, id);
		cluster_store(c, id, 0, keys, 2, rank);
	}
	MUST(kvr_connector_check_completed(c, KVR_TICK, 1, SOON, done, 64, NULL) > 0);
	for (uint64_t id = 5; id <= 8; id++) {
		keys_of(keys, id);
		cluster_store(c, id, 0, keys, 2, rank);
	}
	kvr_point_hook = die_between_copies; /* the completions of tick 2 */
	kvr_connector_check_completed(c, KVR_TICK, 2, SOON, done, 64, NULL);
	_exit(1);
}

static void collect_until_death(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_completion done[64];
	struct kvr_key keys[KEYS];
	uint64_t hash = 0, count = 0;
	int n;

	__atomic_store_n(&cl->area->word[rank][2], 1, __ATOMIC_RELEASE);
	for (uint64_t id = 1; id <= 8; id++) {
		keys_of(keys, id);
		cluster_store(c, id, 0, keys, 2, rank);
	}
	while ((n = kvr_connector_check_completed(c, KVR_TICK, 2, SOON, done, 64, NULL)) > 0)
		for (int i = 0; i < n; i++, count++)
			hash = (hash ^ (done[i].request.id << 8 | done[i].stage)) *
			       0x100000001b3ull;
	MUST(n == -EOWNERDEAD);
	MUST(strstr(kvr_explain(), "leader"));
	cl->area->word[rank][0] = count;
	cl->area->word[rank][1] = hash;
}

static void die_after(uint32_t copies)
{
	struct cluster cl;

	cluster_init(&cl, RANKS, 1, 32, 0);
	copies_before_death = copies;
	publishes_before_death = 0;
	cluster_start(&cl, die_in_tick, collect_until_death);
	cluster_join(&cl, 1u << CLUSTER_RANKS, 30000);
	ck_assert_uint_gt(cl.area->word[0][0], 0);
	for (uint32_t r = 1; r < RANKS; r++) {
		ck_assert_uint_eq(cl.area->word[r][0], cl.area->word[0][0]);
		ck_assert_uint_eq(cl.area->word[r][1], cl.area->word[0][1]);
	}
	cluster_exit(&cl);
}

START_TEST(test_survivors_have_equal_sets_when_the_leader_dies_between_copies)
{
	die_after((uint32_t)_i);
}
END_TEST

static Suite *make(void)
{
	Suite *s = suite_create("progress");
	TCase *t = tcase_create("model");

	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_stores_reach_written_while_the_leaders_caller_sleeps);
	tcase_add_loop_test(t, test_survivors_have_equal_sets_when_the_leader_dies_between_copies,
			    0, RANKS);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make);
}
