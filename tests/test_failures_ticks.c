/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failures that others had when all ranks had to make the same calls equally often, in the same
 * order, or at the same time, to learn which operations are done. Here completions are state: how
 * often, when and in what order a rank asks changes nothing, and all have the same set after the
 * same tick.
 */
#include "failures.h"

/* --- processes -------------------------------------------------------------------------------- */

/* All write (which 2, 4 or 8 can); or rank 0 alone, and all read. */
static void run(uint32_t ranks, int all_write, cluster_fn fn)
{
	cluster_init(&cl, ranks, !all_write, 64, 0);
	cluster_run(&cl, fn);
}

#define EMPTY 20u

static void drains_empty(struct cluster *unused, struct kvr_connector *c, uint32_t r)
{
	(void)unused;
	await_members();
	for (uint32_t i = 1; i <= EMPTY && (CLUSTER_LEADER(r) || r == 0); i++)
		MUST(ask(c, r, KVR_NEXT, 0) == 0 && told_of(r)->tick == i);
	for (uint32_t i = 0; i < 1000 && r == 2; i++)
		MUST(ask(c, r, KVR_NOW, 0) == 0 && told_of(r)->tick <= EMPTY);
	MUST(CLUSTER_LEADER(r) || ask(c, r, KVR_TICK, EMPTY) == 0);
	/* And what comes afterwards is the same for all. */
	cluster_keys(1, keys, N);
	cluster_store(c, 1, 0, keys, N, r);
	MUST(ask(c, r, KVR_TICK, EMPTY + 1) == 3);
	cluster_shutdown(c);
}

/* The leader had nothing in flight and sent nothing; the receivers asked all the same, and took
 * what came next for the answer. */
START_TEST(test_empty_drain_is_an_answer)
{
	run(4, 1, drains_empty);
	all_were_told(3, EMPTY + 1);
}
END_TEST

#define STORES 12u

static void drains_under_pressure(struct cluster *unused, struct kvr_connector *c, uint32_t r)
{
	uint64_t rng = 7 * (r + 1);

	(void)unused;
	await_members();
	for (uint64_t id = 1; id <= STORES; id++) {
		cluster_keys(id, keys, 2);
		cluster_store(c, id, 0, keys, 2, r);
		if (CLUSTER_LEADER(r))
			ask(c, r, KVR_NEXT, 0);
		/* Rank 0 never runs short; 1 does now and then, 2 all the time. */
		for (uint32_t i = 0; !CLUSTER_LEADER(r) && i < r * 10; i++) {
			rng = rng * 6364136223846793005ull + 1442695040888963407ull;
			if (r == 2 || rng >> 62 == 3)
				ask(c, r, KVR_NOW, 0);
		}
	}
	ask(c, r, KVR_TICK, STORES + 1);
	if (!CLUSTER_LEADER(r))
		MUST(ask(c, r, KVR_TICK, STORES + 1) == 0 && ask(c, r, KVR_NOW, 0) == 0);
	cluster_shutdown(c);
}

/* Memory ran short on one rank alone, which evicted, and drained first: once more than its peers.
 */
START_TEST(test_drain_count_may_differ_between_ranks)
{
	run(3, 0, drains_under_pressure);
	all_were_told(3 * STORES, 0);
}
END_TEST

static void own_order(struct cluster *unused, struct kvr_connector *c, uint32_t r)
{
	(void)unused;
	await_members();
	cluster_keys(1, keys, STORES);
	for (uint64_t i = 0; i < 2 * STORES; i++) {
		/* Rank 1 stores last to first and looks up afterwards, the others alternate. */
		int store = r == 1 ? i < STORES : i % 2 == 0;
		uint64_t k = r == 1 ? (STORES - 1 - i % STORES) : i / 2;
		struct kvr_request req = cluster_request(k + 1, 0);
		struct kvr_block block;
		struct kvr_hit hit;
		uint32_t covered;

		if (!i && !CLUSTER_LEADER(r))
			await_step(1); /* the leader needed none of the ranks */
		if (!store) {
			MUST(!kvr_connector_lookup(c, &req, &keys[64], 1, SOON, &hit));
			MUST(hit.blocks == 0);
			continue;
		}
		MUST(kvr_connector_store_begin(c, &req, &keys[k], 1, SOON, &block, 1, &covered) ==
		     1);
		if (r == 0)
			cluster_fill(c, &keys[k], &block);
		MUST(!kvr_connector_store_copied(c, &req, 0));
	}
	reach(1);
	for (uint64_t id = 1; id <= STORES; id++) {
		struct kvr_request req = cluster_request(id, 0);

		MUST(!kvr_connector_wait_store(c, &req, KVR_STAGE_HOST, SOON));
	}
	ask(c, r, KVR_TICK, 1);
	cluster_shutdown(c);
}

/* Stages of a pipeline were at different steps, and waited for each other in a circle. */
START_TEST(test_ranks_at_different_steps_do_not_wait_for_each_other)
{
	run(3, 0, own_order);
	all_were_told(3 * STORES, 1);
}
END_TEST

static void slow_rank(struct cluster *unused, struct kvr_connector *c, uint32_t r)
{
	(void)unused;
	await_members();
	if (r == 1)
		await_step(1); /* in a forward pass of its own, while the others do everything */
	for (uint64_t id = 1; id <= STORES; id++) {
		cluster_keys(id, keys, 2);
		cluster_store(c, id, 0, keys, 2, r);
		if (CLUSTER_LEADER(r) || r == 0)
			ask(c, r, KVR_NEXT, 0);
	}
	if (CLUSTER_LEADER(r)) {
		struct kvr_request req = cluster_request(99, 0);
		struct kvr_hit hit;

		MUST(!kvr_connector_lookup(c, &req, keys, 2, SOON, &hit) && hit.blocks == 2);
		reach(1);
	}
	ask(c, r, KVR_TICK, STORES + 1);
	cluster_shutdown(c);
}

/* Each message was a rendezvous: the first stage waited an hour for the last one's step. */
START_TEST(test_slow_receiver_does_not_make_the_leader_wait)
{
	run(2, 0, slow_rank);
	all_were_told(3 * STORES, STORES + 1);
}
END_TEST

/* --- steps in an exact order ------------------------------------------------------------------ */

static void open_trio(void)
{
	trio_open(16, 0);
	cluster_keys(1, keys, 128);
}

/* The leader's tick; and a rank's question, which must get so many. */
static void lead_tick(int expected)
{
	struct kvr_completion c[256];
	int n = kvr_connector_check_completed(lead, KVR_NEXT, 0, SOON, c, 256, NULL);

	ck_assert_int_eq(n, expected);
	hear(told_of(UINT32_MAX), c, n, 0);
}

static void rank_asks(uint32_t r, enum kvr_tick_mode mode, uint64_t tick, int expected)
{
	struct kvr_completion c[256];
	uint64_t at = 0;
	int n = kvr_connector_check_completed(rank[r], mode, tick, SOON, c, 256, &at);

	ck_assert_msg(n == expected, "rank %u: %d, not %d: %s", r, n, expected, kvr_explain());
	hear(told_of(r), c, n, at);
}

static void same_so_far(void)
{
	for (uint32_t r = 1; r < RANKS; r++) {
		ck_assert_uint_eq(told_of(r)->count, told_of(0)->count);
		ck_assert_uint_eq(told_of(r)->hash, told_of(0)->hash);
	}
}

/* The call that drains was lost in a refactoring: blocks stayed locked, and the server went idle
 * without a word. */
START_TEST(test_rank_that_never_drains_holds_nobody_and_can_be_seen)
{
	struct kvr_inspect_channel ch;
	struct kvr_inspect_group g;
	struct kvr_inspect_proc p;
	struct kvr_inspect *in;

	for (uint64_t id = 1; id <= 40; id++) { /* each evicts: the pool holds 16 blocks */
		ck_assert_int_eq(store_all(id, keys + id * 3 % 96, N), N);
		lead_tick(3);
		rank_asks(0, KVR_NEXT, 0, 3);
	}
	ok(kvr_inspect_open_name(NULL, cl.name, &in));
	ok(kvr_inspect_group(in, &g));
	ok(kvr_inspect_channel(in, KVR_CH_COMPLETE, 1, &ch));
	ck_assert_uint_eq(ch.published - ch.taken, 40);
	ck_assert_uint_ne(ch.oldest_unread_ns, 0);
	ck_assert_uint_le(ch.oldest_unread_ns, kvr_deadline(0));
	ok(kvr_inspect_proc(in, 1, &p));
	ck_assert_uint_eq(g.tick_done - p.tick_seen, 40);
	ok(kvr_inspect_channel(in, KVR_CH_COMPLETE, 0, &ch));
	ck_assert_uint_eq(ch.published, ch.taken);
	ok(kvr_inspect_proc(in, 0, &p));
	ck_assert_uint_eq(p.tick_seen, g.tick_done);
	kvr_inspect_close(in);
	rank_asks(1, KVR_NOW, 0, 120);
	same_so_far();
}
END_TEST

/* A rank with nothing in flight left the collective out that the others were waiting in. */
START_TEST(test_rank_with_nothing_to_say_may_skip_a_tick)
{
	for (uint64_t tick = 1; tick <= 6; tick++) {
		if (tick % 3 == 0)
			store_all(tick, keys + tick * N, N);
		lead_tick(tick % 3 ? 0 : 3);
		rank_asks(0, KVR_TICK, tick, tick % 3 ? 0 : 3);
		if (tick == 3)
			rank_asks(1, KVR_TICK, tick, 3); /* at its own store */
	}
	rank_asks(1, KVR_TICK, 6, 3);
	same_so_far();
	ck_assert_uint_eq(told_of(0)->count, 6);
}
END_TEST

/* Stages took different numbers of completions at one step, and their caches grew apart. */
START_TEST(test_all_ranks_take_exactly_what_belongs_to_a_tick)
{
	struct kvr_completion c[2];

	for (uint64_t tick = 1; tick <= 5; tick++) {
		store_all(tick, keys + tick * N, N);
		lead_tick(3);
	}
	/* The leader is at tick 5; a rank at step 2 gets what belongs to 2, whenever it asks. */
	rank_asks(0, KVR_TICK, 2, 6);
	rank_asks(1, KVR_TICK, 1, 3);
	rank_asks(1, KVR_TICK, 2, 3);
	same_so_far();
	rank_asks(0, KVR_TICK, 1, 0); /* had it */
	/* Too little room takes nothing away. */
	ck_assert_int_eq(kvr_connector_check_completed(rank[0], KVR_TICK, 4, SOON, c, 2, NULL),
			 -EMSGSIZE);
	must_say("6 completions up to tick 4, room for 2");
	rank_asks(0, KVR_TICK, 4, 6);
	rank_asks(1, KVR_NEXT, 0, 3);
	rank_asks(1, KVR_NEXT, 0, 3);
	same_so_far();
	rank_asks(0, KVR_NOW, 0, 3);
	rank_asks(1, KVR_NOW, 0, 3);
	same_so_far();
	ck_assert_uint_eq(told_of(0)->hash, told_of(UINT32_MAX)->hash);
}
END_TEST

/* Leader and receivers were at different points of the protocol, and each answer went to whoever
 * asked next. */
START_TEST(test_leader_may_be_at_another_point_of_the_protocol)
{
	struct kvr_request seven = { .id = 7 }, skipped = { .id = 6 }, never = { .id = 99 };
	struct kvr_block b[2][N];
	struct kvr_hit hit;

	store_all(1, keys, N);
	ok(kvr_connector_lookup(lead, &skipped, keys, 1, SOON, &hit));
	ok(kvr_connector_lookup(lead, &seven, keys, N, SOON, &hit));
	ck_assert_int_eq(begin_on(lead, 8, keys + 10, N, b[0]), N);
	ck_assert_int_eq(kvr_connector_load_begin(lead, &seven, N, SOON), N);
	lead_tick(3);
	/* Rank 0 begins with the end, rank 1 leaves out what was aborted. */
	ck_assert_int_eq(begin_on(rank[0], 8, keys + 10, N, b[0]), N);
	ck_assert_int_eq(kvr_connector_load_begin(rank[0], &seven, N, SOON), N);
	ok(kvr_connector_lookup(rank[0], &seven, keys, N, SOON, &hit));
	ck_assert_uint_eq(hit.blocks, N);
	ok(kvr_connector_lookup(rank[0], &skipped, keys, 1, SOON, &hit));
	ck_assert_uint_eq(hit.blocks, 1);
	rank_asks(1, KVR_NOW, 0, 3);
	ok(kvr_connector_lookup(rank[1], &seven, keys, N, SOON, &hit));
	ck_assert_uint_eq(hit.blocks, N);
	ck_assert_int_eq(kvr_connector_load_begin(rank[1], &seven, N, SOON), N);
	ck_assert_int_eq(begin_on(rank[1], 8, keys + 10, N, b[1]), N);
	for (uint32_t i = 0; i < N; i++)
		ck_assert_uint_eq(b[0][i].slot, b[1][i].slot);
	ok(kvr_connector_abort(rank[1], &skipped));
	/* What the leader never said is missed, with what both did, and nothing else is taken. */
	ck_assert_int_eq(kvr_connector_lookup(rank[1], &never, keys, N, kvr_deadline(30), &hit),
			 -ETIMEDOUT);
	must_say("Awaited: LOOKUP_RESULT (1) of request 99/0");
	must_say("On LOOKUP the leader published 2 messages, 2 of them to this rank");
	must_say("The leader's last events on it: ");
	rank_asks(0, KVR_NOW, 0, 3);
	same_so_far();
	for (uint32_t r = 0; r < RANKS; r++) {
		ok(copied_on(rank[r], 8, 0));
		ck_assert_uint_eq(rank[r]->group->proc->mismatches, 0);
		ck_assert_uint_eq(rank[r]->group->proc->expired, 0);
	}
	ok(kvr_connector_wait_store(lead, &(struct kvr_request){ .id = 8 }, KVR_STAGE_HOST, SOON));
}
END_TEST

static void exit_cluster(void)
{
	cluster_exit(&cl);
}

static Suite *suite(void)
{
	Suite *s = suite_create("failures_ticks");
	TCase *t = tcase_create("processes");

	tcase_add_checked_fixture(t, NULL, exit_cluster);
	tcase_set_timeout(t, 90);
	tcase_add_test(t, test_empty_drain_is_an_answer);
	tcase_add_test(t, test_drain_count_may_differ_between_ranks);
	tcase_add_test(t, test_ranks_at_different_steps_do_not_wait_for_each_other);
	tcase_add_test(t, test_slow_receiver_does_not_make_the_leader_wait);
	suite_add_tcase(s, t);
	t = tcase_create("steps");
	tcase_add_checked_fixture(t, open_trio, trio_close);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_rank_that_never_drains_holds_nobody_and_can_be_seen);
	tcase_add_test(t, test_rank_with_nothing_to_say_may_skip_a_tick);
	tcase_add_test(t, test_all_ranks_take_exactly_what_belongs_to_a_tick);
	tcase_add_test(t, test_leader_may_be_at_another_point_of_the_protocol);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
