/* SPDX-License-Identifier: Apache-2.0 */
/* The connector's calls between real processes: a leader and its ranks, a pool, a store on disk. */
#include "cluster.h"

#define KEYS 12u

static struct kvr_key keys[KEYS];

static void make_keys(uint64_t family)
{
	cluster_keys(family, keys, KEYS);
}

/* --- store and load
 * ------------------------------------------------------------------------------- */

/* The engine drops a load's pins when the last rank is done: what is evicted next depends on it. */
static void until_load_ended(struct kvr_connector *c)
{
	struct kvr_completion done[64];
	int n, ended = 0;

	while (!ended) {
		n = kvr_connector_check_completed(c, KVR_NEXT, 0, SOON, done, 64, NULL);
		MUST(n >= 0);
		for (int i = 0; i < n; i++)
			ended |= done[i].kind == 2;
		test_sleep_ms(1);
	}
}

static void round_trip(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	make_keys(1);
	MUST(cluster_load(c, 1, 0, keys, KEYS, rank) == 0);
	cluster_store(c, 1, 0, keys, KEYS, rank);
	MUST(cluster_load(c, 2, 0, keys, KEYS, rank) == KEYS);
	if (CLUSTER_LEADER(rank))
		until_load_ended(c);
	make_keys(2); /* pushes the first family out of a pool of 16 slots */
	cluster_store(c, 3, 0, keys, KEYS, rank);
	make_keys(1);
	MUST(cluster_load(c, 4, 0, keys, KEYS, rank) == (cl->dir[0] ? KEYS : 4));
	cluster_shutdown(c);
	if (CLUSTER_LEADER(rank) && cl->dir[0]) {
		struct kvr_stats s;

		MUST(!kvr_connector_stats(c, &s));
		MUST(s.hit_blocks_nvme > 0 && s.blocks_bad == 0 && s.blocks_written == 2 * KEYS);
	}
}

static void round_trip_with(uint32_t ranks, int replicated, uint32_t slots)
{
	struct cluster cl;

	cluster_init(&cl, ranks, replicated, 16, slots);
	cluster_run(&cl, round_trip);
	cluster_exit(&cl);
}

START_TEST(test_what_was_stored_is_loaded_by_ranks_with_a_shard_each)
{
	round_trip_with(4, 0, 40);
}
END_TEST

START_TEST(test_what_was_stored_is_loaded_by_ranks_that_read_the_same)
{
	round_trip_with(3, 1, 40);
}
END_TEST

/* The pool alone: 12 blocks of the second family leave the heads of the first. */
START_TEST(test_without_a_store_heads_outlive_tails)
{
	round_trip_with(2, 0, 0);
}
END_TEST

static void store_only(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	(void)cl;
	make_keys(1);
	cluster_store(c, 1, 0, keys, KEYS, rank);
	MUST(!kvr_connector_wait_store(c, &(struct kvr_request){ .id = 1 }, KVR_STAGE_WRITTEN,
				       SOON));
	cluster_shutdown(c);
}

static void load_only(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	(void)cl;
	make_keys(1);
	MUST(cluster_load(c, 1, 0, keys, KEYS, rank) == KEYS);
	cluster_shutdown(c);
}

START_TEST(test_a_restart_finds_what_was_written)
{
	struct cluster cl;

	cluster_init(&cl, 2, 0, 16, 32);
	cluster_run(&cl, store_only);
	cluster_run(&cl, load_only);
	cluster_exit(&cl);
}
END_TEST

static void store_then_die(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	(void)cl;
	make_keys(1);
	cluster_store(c, 1, 0, keys, KEYS, rank);
	MUST(!kvr_connector_wait_store(c, &(struct kvr_request){ .id = 1 }, KVR_STAGE_WRITTEN,
				       SOON));
	raise(SIGKILL);
}

static void store_then_lose_leader(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	(void)cl;
	make_keys(1);
	cluster_store(c, 1, 0, keys, KEYS, rank);
	MUST(kvr_connector_shutdown(c, SOON) == -EOWNERDEAD);
	MUST(strstr(kvr_explain(), "leader"));
}

START_TEST(test_what_was_written_survives_kill_9_of_the_leader)
{
	struct cluster cl;

	cluster_init(&cl, 2, 0, 16, 32);
	cluster_start(&cl, store_then_die, store_then_lose_leader);
	cluster_join(&cl, 1u << CLUSTER_RANKS, 30000);
	cluster_run(&cl, load_only);
	cluster_exit(&cl);
}
END_TEST

/* --- answers and completions
 * ---------------------------------------------------------------------- */

static uint64_t mix(uint64_t hash, const struct kvr_completion *d)
{
	return (hash ^ (d->request.id << 16 | d->kind << 12 | d->stage << 4 | d->tick << 24)) *
	       0x100000001b3ull;
}

/* Ranks ask in different ways; after the same tick they have the same set. */
static void ticks(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_completion done[256];
	uint64_t hash = 0, count = 0, reached;

	for (uint64_t tick = 1; tick <= 30; tick++) {
		int n;

		make_keys(tick);
		if (tick % 3)
			cluster_store(c, tick, 0, keys, 2, rank);
		if (rank == 1 && tick % 5)
			continue; /* skips ticks */
		n = kvr_connector_check_completed(c, rank == 2 ? KVR_NEXT : KVR_TICK, tick, SOON,
						  done, 256, &reached);
		MUST(n >= 0 && reached == tick);
		for (int i = 0; i < n; i++, count++)
			hash = mix(hash, &done[i]);
		if (CLUSTER_LEADER(rank))
			continue;
		MUST(kvr_connector_check_completed(c, KVR_TICK, tick, SOON, done, 256, NULL) == 0);
		if (rank == 2 || tick == 30)
			continue; /* NEXT goes on from where NOW came to; the last is shutdown's */
		n = kvr_connector_check_completed(c, KVR_NOW, 0, SOON, done, 256, NULL);
		MUST(n >= 0); /* of later ticks already, if any; those of shutdown do not count */
		for (int i = 0; i < n && done[i].tick <= 30; i++, count++)
			hash = mix(hash, &done[i]);
	}
	cl->area->word[CLUSTER_LEADER(rank) ? CLUSTER_LEAD : rank][0] = count;
	cl->area->word[CLUSTER_LEADER(rank) ? CLUSTER_LEAD : rank][1] = hash;
	cluster_shutdown(c);
}

START_TEST(test_all_ranks_have_the_same_completions_however_they_ask)
{
	struct cluster cl;

	cluster_init(&cl, 4, 0, 64, 128);
	cluster_run(&cl, ticks);
	ck_assert_uint_ge(cl.area->word[CLUSTER_LEAD][0], 20);
	for (uint32_t r = 0; r < 4; r++) {
		ck_assert_uint_eq(cl.area->word[r][0], cl.area->word[CLUSTER_LEAD][0]);
		ck_assert_uint_eq(cl.area->word[r][1], cl.area->word[CLUSTER_LEAD][1]);
	}
	cluster_exit(&cl);
}
END_TEST

static void one_end(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_completion done[64];
	struct kvr_request req = cluster_request(7, 0);
	struct kvr_block blocks[KEYS];
	uint32_t covered, stages[KVR_STAGES] = { 0 };
	int n;

	(void)cl;
	make_keys(1);
	cluster_store(c, 7, 0, keys, 4, rank);
	MUST(!kvr_connector_wait_store(c, &req, KVR_STAGE_WRITTEN, SOON));
	req.attempt = 1; /* all four are stored: nothing to copy */
	MUST(kvr_connector_store_begin(c, &req, keys, 4, SOON, blocks, KEYS, &covered) == 0);
	MUST(covered == 4);
	MUST(!kvr_connector_store_copied(c, &req, 0));
	MUST(!kvr_connector_wait_store(c, &req, KVR_STAGE_WRITTEN, SOON));
	MUST(kvr_connector_check_completed(c, KVR_TICK, 1, SOON, done, 2, NULL) == 2);
	MUST(kvr_connector_check_completed(c, KVR_TICK, 2, SOON, done, 64, NULL) == 4);
	for (n = 0; n < 4; n++)
		stages[done[n].stage]++;
	MUST(stages[KVR_STAGE_WRITTEN] == 2); /* the first is in the tick before it */
	/* waiting for an unknown request is an error, at once */
	req.id = 99;
	MUST(kvr_connector_wait_store(c, &req, KVR_STAGE_HOST, SOON) == -ENOENT);
	cluster_shutdown(c);
}

START_TEST(test_an_operation_ends_once_and_an_unknown_one_is_an_error)
{
	struct cluster cl;

	cluster_init(&cl, 2, 0, 16, 32);
	cluster_run(&cl, one_end);
	cluster_exit(&cl);
}
END_TEST

/* More operations than the table has entries: ended ones make room, and can still be asked about.
 */
static void many(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_completion done[512];

	(void)cl;
	for (uint64_t id = 1; id <= 200; id++) {
		struct kvr_request req = cluster_request(id, 0);

		make_keys(id);
		cluster_store(c, id, 0, keys, 1, rank);
		MUST(!kvr_connector_wait_store(c, &req, KVR_STAGE_WRITTEN, SOON));
		if (id % 20 == 0)
			MUST(kvr_connector_check_completed(c, KVR_TICK, id, SOON, done, 512,
							   NULL) == 60);
	}
	cluster_shutdown(c);
}

START_TEST(test_entries_of_ended_operations_are_used_again)
{
	struct cluster cl;

	cluster_init(&cl, 2, 0, 16, 256);
	cluster_run(&cl, many);
	cluster_exit(&cl);
}
END_TEST

static void full_table(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_block blocks[KEYS];
	struct kvr_completion done[512];
	struct kvr_request req;
	uint32_t covered;

	(void)cl;
	for (uint64_t id = 1; id <= 64; id++) {
		make_keys(id);
		cluster_store(c, id, 0, keys, 1, rank);
	}
	make_keys(65);
	req = cluster_request(65, 0);
	MUST(kvr_connector_store_begin(c, &req, keys, 1,
				       CLUSTER_LEADER(rank) ? test_deadline_ms(100) : SOON, blocks,
				       KEYS, &covered) == -EAGAIN);
	if (CLUSTER_LEADER(rank))
		MUST(strstr(kvr_explain(), "check_completed"));
	MUST(kvr_connector_check_completed(c, KVR_TICK, 1, SOON, done, 512, NULL) > 0);
	cluster_store(c, 65, 0, keys, 1, rank);
	cluster_shutdown(c);
}

START_TEST(test_a_full_table_is_a_clear_error_on_all_and_passes)
{
	struct cluster cl;

	cluster_init(&cl, 2, 0, 128, 0);
	cluster_run(&cl, full_table);
	cluster_exit(&cl);
}
END_TEST

/* --- one process with both roles; facts
 * ----------------------------------------------------------- */

START_TEST(test_a_leader_with_a_shard_opens_both_in_one_process)
{
	struct kvr_block lead_blocks[KEYS], rank_blocks[KEYS];
	struct kvr_connector *lead, *rank;
	struct kvr_request req = cluster_request(1, 0);
	struct kvr_completion done[16];
	struct cluster cl;
	struct kvr_hit hit;
	uint32_t covered;

	cluster_init(&cl, 1, 0, 16, 0);
	make_keys(1);
	ck_assert_int_eq(0, kvr_connector_lead(cl.name, &cl.opts, &lead));
	ck_assert_int_eq(0, kvr_connector_join(cl.name, 0, NULL, SOON, &rank));
	ck_assert_int_eq(3, kvr_connector_store_begin(lead, &req, keys, 3, SOON, lead_blocks, KEYS,
						      &covered));
	ck_assert_int_eq(3, kvr_connector_store_begin(rank, &req, keys, 3, SOON, rank_blocks, KEYS,
						      &covered));
	for (int i = 0; i < 3; i++)
		cluster_fill(rank, &keys[i], &rank_blocks[i]);
	ck_assert_int_eq(0, kvr_connector_store_copied(rank, &req, 0));
	ck_assert_int_eq(0, kvr_connector_wait_store(lead, &req, KVR_STAGE_HOST, SOON));
	ck_assert_uint_eq(0, cluster_wrong(rank, &keys[2], &lead_blocks[2])); /* the same memory */
	ck_assert_int_eq(0, kvr_connector_lookup(lead, &req, keys, KEYS, SOON, &hit));
	ck_assert_uint_eq(hit.blocks, 3);
	ck_assert_int_eq(3, kvr_connector_check_completed(lead, KVR_TICK, 5, SOON, done, 16, NULL));
	ck_assert_int_eq(3, kvr_connector_check_completed(rank, KVR_TICK, 5, SOON, done, 16, NULL));
	kvr_connector_close(rank);
	kvr_connector_close(lead);
	cluster_exit(&cl);
}
END_TEST

START_TEST(test_bad_options_are_named)
{
	struct kvr_connector *c = NULL;
	struct kvr_connector_opts o;
	struct cluster cl;

	cluster_init(&cl, 2, 0, 16, 0);
	o = cl.opts;
	o.host_bytes = 4096;
	ck_assert_int_eq(-EINVAL, kvr_connector_lead(cl.name, &o, &c));
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "do not hold one block"));
	o = cl.opts;
	o.ring_bytes = 1000;
	ck_assert_int_eq(-EINVAL, kvr_connector_lead(cl.name, &o, &c));
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "power of two"));
	o = cl.opts;
	o.size = 8;
	ck_assert_int_eq(-EINVAL, kvr_connector_lead(cl.name, &o, &c));
	o = cl.opts;
	o.ranks = 65;
	ck_assert_int_eq(-EINVAL, kvr_connector_lead(cl.name, &o, &c));
	ck_assert_int_eq(-ETIMEDOUT,
			 kvr_connector_join(cl.name, 0, NULL, test_deadline_ms(50), &c));
	ck_assert_ptr_null(c);
	cluster_exit(&cl);
}
END_TEST

static Suite *make(void)
{
	Suite *s = suite_create("connector");
	TCase *t = tcase_create("calls");

	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_what_was_stored_is_loaded_by_ranks_with_a_shard_each);
	tcase_add_test(t, test_what_was_stored_is_loaded_by_ranks_that_read_the_same);
	tcase_add_test(t, test_without_a_store_heads_outlive_tails);
	tcase_add_test(t, test_a_restart_finds_what_was_written);
	tcase_add_test(t, test_what_was_written_survives_kill_9_of_the_leader);
	tcase_add_test(t, test_all_ranks_have_the_same_completions_however_they_ask);
	tcase_add_test(t, test_an_operation_ends_once_and_an_unknown_one_is_an_error);
	tcase_add_test(t, test_entries_of_ended_operations_are_used_again);
	tcase_add_test(t, test_a_full_table_is_a_clear_error_on_all_and_passes);
	tcase_add_test(t, test_a_leader_with_a_shard_opens_both_in_one_process);
	tcase_add_test(t, test_bad_options_are_named);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make);
}
