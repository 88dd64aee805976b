/* SPDX-License-Identifier: Apache-2.0 */
/* The connector when something goes wrong: copies that fail, wrong keys and bytes, full pools,
 * deaths. */
#include "atomic.h"
#include "cluster.h"
#include "connector_priv.h"

#define KEYS 12u

static struct kvr_key keys[KEYS];

static void make_keys(uint64_t family)
{
	cluster_keys(family, keys, KEYS);
}

static void load_two(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	(void)cl;
	make_keys(1);
	MUST(cluster_load(c, 1, 0, keys, 2, rank) == 2);
	cluster_shutdown(c);
}

static void store_two_then_lose_leader(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	(void)cl;
	make_keys(1);
	cluster_store(c, 1, 0, keys, 2, rank);
	MUST(kvr_connector_shutdown(c, SOON) == -EOWNERDEAD);
	MUST(strstr(kvr_explain(), "leader"));
}

/* --- failures
 * ------------------------------------------------------------------------------------- */

static void failed_copy(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_request req = cluster_request(1, 0);
	struct kvr_completion done[8];
	struct kvr_block blocks[KEYS];
	uint32_t covered;

	(void)cl;
	make_keys(1);
	MUST(kvr_connector_store_begin(c, &req, keys, 3, SOON, blocks, KEYS, &covered) == 3);
	MUST(!kvr_connector_store_copied(c, &req, rank == 1 ? -EIO : 0));
	MUST(kvr_connector_wait_store(c, &req, KVR_STAGE_HOST, SOON) == -EIO);
	MUST(kvr_connector_check_completed(c, KVR_TICK, 1, SOON, done, 8, NULL) == 1);
	MUST(done[0].stage == KVR_STAGE_FAILED && done[0].status == -EIO);
	MUST(cluster_load(c, 2, 0, keys, 3, rank) == 0); /* no hit on a failed store */
	cluster_store(c, 3, 0, keys, 3, rank);		 /* and it can be stored again */
	MUST(cluster_load(c, 4, 0, keys, 3, rank) == 3);
	cluster_shutdown(c);
}

START_TEST(test_a_rank_that_cannot_copy_fails_the_store_on_all)
{
	struct cluster cl;

	cluster_init(&cl, 3, 1, 16, 0);
	cl.shape.shard[0].writer = 1;
	cluster_run(&cl, failed_copy);
	cluster_exit(&cl);
}
END_TEST

/* Rank 1 breaks a byte of its own shard in block 5: all ranks get the five blocks before it. */
static void bad_segment(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_request req = cluster_request(2, 0);
	struct kvr_block blocks[KEYS], stored[KEYS];
	struct kvr_span span;
	struct kvr_hit hit;
	uint32_t covered;

	(void)cl;
	make_keys(1);
	req = cluster_request(1, 0);
	MUST(kvr_connector_store_begin(c, &req, keys, KEYS, SOON, stored, KEYS, &covered) == KEYS);
	for (uint32_t i = 0; i < KEYS && !CLUSTER_LEADER(rank); i++)
		cluster_fill(c, &keys[i], &stored[i]);
	MUST(!kvr_connector_store_copied(c, &req, 0));
	MUST(!kvr_connector_wait_store(c, &req, KVR_STAGE_HOST, SOON));
	if (rank == 1) {
		kvr_connector_spans(c, 1, &span, 1);
		stored[5].payload[span.offset] ^= 1;
	}
	req = cluster_request(2, 0);
	MUST(!kvr_connector_lookup(c, &req, keys, KEYS, SOON, &hit) && hit.blocks == KEYS);
	MUST(kvr_connector_load_begin(c, &req, KEYS, SOON) == KEYS);
	MUST(kvr_connector_load_wait(c, &req, keys, SOON, blocks, KEYS) == 5);
	MUST(!kvr_connector_load_done(c, &req));
	MUST(!kvr_connector_release(c, &req));
	MUST(cluster_load(c, 3, 0, keys, KEYS, rank) == 5); /* a miss from now on */
	cluster_shutdown(c);
}

START_TEST(test_a_wrong_byte_on_one_rank_fails_the_block_for_all)
{
	struct cluster cl;

	cluster_init(&cl, 2, 0, 16, 0);
	cluster_run(&cl, bad_segment);
	cluster_exit(&cl);
}
END_TEST

/* A pool whose slots are all pinned: the refusal reaches every rank, and passes with the pin. */
static void no_room(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_request pin = cluster_request(2, 0), req = cluster_request(3, 0);
	struct kvr_block blocks[KEYS];
	struct kvr_hit hit;
	uint32_t covered;

	(void)cl;
	make_keys(1);
	cluster_store(c, 1, 0, keys, KEYS, rank);
	MUST(!kvr_connector_lookup(c, &pin, keys, KEYS, SOON, &hit) && hit.blocks == KEYS);
	make_keys(2);
	MUST(kvr_connector_store_begin(c, &req, keys, 2,
				       CLUSTER_LEADER(rank) ? test_deadline_ms(200) : SOON, blocks,
				       KEYS, &covered) == -EAGAIN);
	if (CLUSTER_LEADER(rank))
		MUST(strstr(kvr_explain(), "pinned"));
	MUST(!kvr_connector_release(c, &pin));
	cluster_store(c, 3, 1, keys, 2, rank);
	cluster_shutdown(c);
}

START_TEST(test_no_room_is_the_same_answer_on_all_ranks)
{
	struct cluster cl;

	cluster_init(&cl, 2, 0, KEYS, 0);
	cluster_run(&cl, no_room);
	cluster_exit(&cl);
}
END_TEST

static void other_keys(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_request req = cluster_request(1, 0);
	struct kvr_block blocks[KEYS];
	uint32_t covered;
	int n;

	(void)cl;
	make_keys(rank == 1 ? 2 : 1);
	n = kvr_connector_store_begin(c, &req, keys, 2, SOON, blocks, KEYS, &covered);
	MUST(n == (rank == 1 ? -EPROTO : 2));
	if (rank == 1)
		MUST(strstr(kvr_explain(), "key 0"));
	MUST(!kvr_connector_store_copied(c, &req, 0));
	MUST(kvr_connector_wait_store(c, &req, KVR_STAGE_HOST, SOON) == -EPROTO);
	cluster_shutdown(c);
}

START_TEST(test_a_rank_with_other_keys_is_told_and_nothing_is_stored)
{
	struct cluster cl;

	cluster_init(&cl, 2, 0, 16, 0);
	cluster_run(&cl, other_keys);
	cluster_exit(&cl);
}
END_TEST

/* Rank 1 skips the store of request 1 and asks for many later ones: request 1 ends on all. */
static void skipped(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_request req = cluster_request(1, 0);
	struct kvr_block blocks[KEYS];
	uint32_t covered;

	(void)cl;
	make_keys(1);
	if (rank != 1) {
		MUST(kvr_connector_store_begin(c, &req, keys, 1, SOON, blocks, KEYS, &covered) ==
		     1);
		MUST(!kvr_connector_store_copied(c, &req, 0));
	}
	for (uint64_t id = 2; id <= KVR_STASH + 1; id++) {
		req = cluster_request(id, 0);
		if (rank != 1)
			MUST(kvr_connector_store_begin(c, &req, keys, 0, SOON, blocks, KEYS,
						       &covered) == 0);
	}
	req = cluster_request(1000, 0); /* the answer comes after all those that rank 1 skipped */
	MUST(kvr_connector_store_begin(c, &req, keys, 0, SOON, blocks, KEYS, &covered) == 0);
	req = cluster_request(1, 0);
	if (rank != 1)
		MUST(kvr_connector_wait_store(c, &req, KVR_STAGE_HOST, SOON) == -ECANCELED);
	cluster_shutdown(c);
}

START_TEST(test_a_rank_that_skips_a_request_does_not_keep_it_open)
{
	struct cluster cl;

	cluster_init(&cl, 2, 0, 16, 0);
	cl.opts.ops = 256;
	cluster_run(&cl, skipped);
	cluster_exit(&cl);
}
END_TEST

/* Two stores of one key: the second waits for the first one's copy and write. */
static void joined(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_request first = cluster_request(1, 0), second = cluster_request(2, 0);
	struct kvr_block blocks[KEYS], none[KEYS];
	uint32_t covered;

	(void)cl;
	make_keys(1);
	MUST(kvr_connector_store_begin(c, &first, keys, 3, SOON, blocks, KEYS, &covered) == 3);
	MUST(kvr_connector_store_begin(c, &second, keys, 3, SOON, none, KEYS, &covered) == 0);
	MUST(covered == 3);
	MUST(!kvr_connector_store_copied(c, &second, 0));
	MUST(kvr_connector_wait_store(c, &second, KVR_STAGE_HOST, test_deadline_ms(100)) ==
	     -ETIMEDOUT);
	for (uint32_t i = 0; i < 3 && !CLUSTER_LEADER(rank); i++)
		cluster_fill(c, &keys[i], &blocks[i]);
	if (CLUSTER_LEADER(rank))
		test_sleep_ms(150); /* the ranks' time-outs come first */
	test_sleep_ms(150);
	MUST(!kvr_connector_store_copied(c, &first, 0));
	MUST(!kvr_connector_wait_store(c, &second, KVR_STAGE_WRITTEN, SOON));
	MUST(!kvr_connector_wait_store(c, &first, KVR_STAGE_WRITTEN, SOON));
	MUST(cluster_load(c, 3, 0, keys, 3, rank) == 3);
	cluster_shutdown(c);
}

START_TEST(test_a_store_of_blocks_on_their_way_ends_when_they_are_written)
{
	struct cluster cl;

	cluster_init(&cl, 2, 0, 16, 16);
	cluster_run(&cl, joined);
	cluster_exit(&cl);
}
END_TEST

/* --- deaths
 * --------------------------------------------------------------------------------------- */

static void until_rank_dies(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_completion done[64];
	uint64_t tick = 1;
	int n = 0;

	make_keys(1);
	cluster_store(c, 1, 0, keys, 2, rank);
	kvr_store_release(&cl->area->word[CLUSTER_LEADER(rank) ? CLUSTER_LEAD : rank][1], 1);
	if (rank == 1) {
		for (uint32_t r = 0; r < cl->opts.ranks; r++) /* nobody joins a dead group */
			while (!kvr_load_acquire(&cl->area->word[r][1]))
				test_sleep_ms(1);
		cl->area->word[1][0] = test_now_ns();
		raise(SIGKILL);
	}
	while (n >= 0) {
		n = kvr_connector_check_completed(c, KVR_NEXT, 0, SOON, done, 64, NULL);
		if (CLUSTER_LEADER(rank))
			test_sleep_ms(5);
		MUST(tick++ < 5000);
	}
	MUST(n == -EOWNERDEAD);
	MUST(strstr(kvr_explain(), "rank 1"));
	cl->area->word[CLUSTER_LEADER(rank) ? CLUSTER_LEAD : rank][0] = test_now_ns();
}

START_TEST(test_a_dead_rank_ends_every_wait_and_is_named)
{
	struct cluster cl;

	cluster_init(&cl, 3, 1, 16, 0);
	cluster_start(&cl, until_rank_dies, until_rank_dies);
	cluster_join(&cl, 1u << 1, 30000);
	for (uint32_t r = 0; r <= CLUSTER_LEAD; r++)
		if (r != 1 && cl.area->word[r][0])
			ck_assert_uint_lt(cl.area->word[r][0] - cl.area->word[1][0], 1000000000);
	cluster_exit(&cl);
}
END_TEST

/* A rank that waits for a tick when the leader ends the group is told, not left to its deadline. */
static void end_while_waiting(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_completion done[8];

	(void)cl;
	if (!CLUSTER_LEADER(rank)) {
		MUST(kvr_connector_check_completed(c, KVR_TICK, 1000, SOON, done, 8, NULL) ==
		     -ESHUTDOWN);
		MUST(strstr(kvr_explain(), "tick 1000 will not come"));
	} else {
		test_sleep_ms(50);
	}
	cluster_shutdown(c);
}

START_TEST(test_a_rank_that_waits_for_a_tick_learns_of_the_end)
{
	struct cluster cl;

	cluster_init(&cl, 2, 0, 16, 0);
	cluster_run(&cl, end_while_waiting);
	cluster_exit(&cl);
}
END_TEST

/* A store that joined another one's blocks fails with it, and does not say that they can be hit. */
static void joined_failure(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_request first = cluster_request(1, 0), second = cluster_request(2, 0);
	struct kvr_block blocks[KEYS];
	uint32_t covered;
	int n;

	(void)cl;
	make_keys(1);
	MUST(kvr_connector_store_begin(c, &first, keys, 4, SOON, blocks, KEYS, &covered) == 4);
	n = kvr_connector_store_begin(c, &second, keys, 6, SOON, blocks, KEYS, &covered);
	MUST(n == 2 && covered == 6);
	for (int i = 0; i < n && !CLUSTER_LEADER(rank); i++)
		cluster_fill(c, &keys[blocks[i].index], &blocks[i]);
	MUST(!kvr_connector_store_copied(c, &second, 0));
	MUST(!kvr_connector_wait_store(c, &second, KVR_STAGE_COPIED, SOON));
	MUST(!kvr_connector_store_copied(c, &first, -EIO));
	MUST(kvr_connector_wait_store(c, &first, KVR_STAGE_HOST, SOON) == -EIO);
	MUST(kvr_connector_wait_store(c, &second, KVR_STAGE_HOST, SOON) == -ECANCELED);
	MUST(cluster_load(c, 3, 0, keys, 6, rank) == 0);
	cluster_store(c, 4, 0, keys, 6, rank);
	MUST(cluster_load(c, 5, 0, keys, 6, rank) == 6);
	cluster_shutdown(c);
}

START_TEST(test_a_store_that_joined_a_failed_one_fails)
{
	struct cluster cl;

	cluster_init(&cl, 2, 0, 16, 16);
	cluster_run(&cl, joined_failure);
	cluster_exit(&cl);
}
END_TEST

/* Rank 1 passes other keys to load_wait: its mistake is named, and no block is lost for it. */
static void other_load_keys(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_request req = cluster_request(2, 0);
	struct kvr_block blocks[KEYS];
	struct kvr_hit hit;
	int n;

	(void)cl;
	make_keys(1);
	cluster_store(c, 1, 0, keys, 3, rank);
	MUST(!kvr_connector_lookup(c, &req, keys, 3, SOON, &hit) && hit.blocks == 3);
	MUST(kvr_connector_load_begin(c, &req, 3, SOON) == 3);
	n = kvr_connector_load_wait(c, &req, rank == 1 ? keys + 1 : keys, SOON, blocks, KEYS);
	MUST(n == (rank == 1 ? -EPROTO : 0));
	if (rank == 1)
		MUST(strstr(kvr_explain(), "key 0 differs"));
	MUST(!kvr_connector_load_done(c, &req));
	MUST(!kvr_connector_release(c, &req));
	MUST(cluster_load(c, 3, 0, keys, 3, rank) == 3);
	cluster_shutdown(c);
}

START_TEST(test_a_rank_that_loads_with_other_keys_is_told)
{
	struct cluster cl;

	cluster_init(&cl, 2, 0, 16, 0);
	cluster_run(&cl, other_load_keys);
	cluster_exit(&cl);
}
END_TEST

/* Two requests pin a block that turns out to be bad: the second load has nothing left. */
static void nothing_left(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_request a = cluster_request(2, 0), b = cluster_request(3, 0);
	struct kvr_block blocks[KEYS];
	struct kvr_request req = cluster_request(1, 0);
	struct kvr_hit hit;
	uint32_t covered;

	(void)cl;
	make_keys(1);
	MUST(kvr_connector_store_begin(c, &req, keys, 1, SOON, blocks, KEYS, &covered) == 1);
	if (!CLUSTER_LEADER(rank))
		cluster_fill(c, &keys[0], &blocks[0]);
	MUST(!kvr_connector_store_copied(c, &req, 0));
	MUST(!kvr_connector_wait_store(c, &req, KVR_STAGE_HOST, SOON));
	MUST(!kvr_connector_lookup(c, &a, keys, 1, SOON, &hit) && hit.blocks == 1);
	MUST(!kvr_connector_lookup(c, &b, keys, 1, SOON, &hit) && hit.blocks == 1);
	if (rank == 0)
		blocks[0].payload[0] ^= 1;
	MUST(kvr_connector_load_begin(c, &a, 1, SOON) == 1);
	MUST(kvr_connector_load_wait(c, &a, keys, SOON, blocks, KEYS) == 0);
	MUST(!kvr_connector_load_done(c, &a));
	MUST(kvr_connector_load_begin(c, &b, 1, SOON) == 0);
	MUST(kvr_connector_load_wait(c, &b, keys, SOON, blocks, KEYS) == -ENOENT);
	MUST(!kvr_connector_release(c, &a));
	MUST(!kvr_connector_release(c, &b));
	if (!CLUSTER_LEADER(rank))
		MUST(kvr_connector_store_copied(c, &req, -70000) == -EINVAL);
	cluster_shutdown(c); /* no operation is left open */
}

START_TEST(test_a_load_of_nothing_is_no_operation)
{
	struct cluster cl;

	cluster_init(&cl, 1, 0, 16, 0);
	cluster_run(&cl, nothing_left);
	cluster_exit(&cl);
}
END_TEST

/* The leader forks a child that stays, and is killed: its store opens all the same. */
static void fork_and_die(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_request req = cluster_request(1, 0);
	struct kvr_hit hit;
	pid_t child;

	make_keys(1);
	cluster_store(c, 1, 0, keys, 2, rank);
	MUST(!kvr_connector_wait_store(c, &req, KVR_STAGE_WRITTEN, SOON));
	child = fork();
	if (!child) {
		/* The handle is the parent's: refused, and closing it touches nothing. */
		MUST(kvr_connector_lookup(c, &req, keys, 2, SOON, &hit) == -EINVAL);
		MUST(strstr(kvr_explain(), "forked child"));
		MUST(kvr_connector_stats(c, &(struct kvr_stats){ 0 }) == -EINVAL);
		MUST(kvr_group_fail(kvr_connector_group(c), 0, -EIO) == -EINVAL);
		kvr_connector_close(c);
		cl->area->word[CLUSTER_LEAD][1] = 1;
		pause();
		_exit(0);
	}
	while (!__atomic_load_n(&cl->area->word[CLUSTER_LEAD][1], __ATOMIC_ACQUIRE))
		test_sleep_ms(1);
	cl->area->word[CLUSTER_LEAD][0] = (uint64_t)child;
	raise(SIGKILL);
}

START_TEST(test_a_killed_leaders_forked_child_does_not_keep_the_store)
{
	struct cluster cl;

	cluster_init(&cl, 2, 0, 16, 32);
	if (_i)
		cl.opts.store_flags |= KVR_STORE_NO_URING;
	cluster_start(&cl, fork_and_die, store_two_then_lose_leader);
	cluster_join(&cl, 1u << CLUSTER_RANKS, 30000);
	make_keys(1);
	cluster_start(&cl, load_two, load_two);
	cluster_join(&cl, 0, 30000);
	kill((pid_t)cl.area->word[CLUSTER_LEAD][0], SIGKILL); /* an orphan; init reaps it */
	cluster_exit(&cl);
}
END_TEST

/* A rank whose join is too early for the pool calls again: its place is still free. */
START_TEST(test_a_join_that_timed_out_may_come_again)
{
	struct kvr_connector *lead, *rank = NULL;
	struct cluster cl;
	char pool[128], away[140];

	cluster_init(&cl, 1, 0, 16, 0);
	ck_assert_int_eq(0, kvr_connector_lead(cl.name, &cl.opts, &lead));
	snprintf(pool, sizeof pool, "/dev/shm/kvr-%u-%s.pool", (unsigned)geteuid(), cl.name);
	snprintf(away, sizeof away, "%s.away", pool);
	ck_assert_int_eq(0, rename(pool, away));
	ck_assert_int_eq(-ETIMEDOUT,
			 kvr_connector_join(cl.name, 0, NULL, test_deadline_ms(30), &rank));
	ck_assert_ptr_null(rank);
	ck_assert_int_eq(0, rename(away, pool));
	ck_assert_int_eq(0, kvr_connector_join(cl.name, 0, NULL, SOON, &rank));
	kvr_connector_close(rank);
	kvr_connector_close(lead);
	cluster_exit(&cl);
}
END_TEST

/* Small rings, no tick asked for: the leader's last tick needs room that waiting ranks must make.
 */
static void tick_needs_room(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	(void)cl;
	for (uint64_t id = 1; id <= 10; id++) {
		make_keys(id);
		cluster_store(c, id, 0, keys, 1, rank);
	}
	if (CLUSTER_LEADER(rank)) {
		struct kvr_completion done[64];

		MUST(kvr_connector_check_completed(c, KVR_TICK, 1, SOON, done, 64, NULL) == 30);
	}
	make_keys(1);
	MUST(cluster_load(c, 20, 0, keys, 1, rank) == 1); /* ranks wait for the leader's answer */
	cluster_shutdown(c);
}

START_TEST(test_a_rank_that_waits_makes_room_for_a_tick)
{
	struct cluster cl;

	cluster_init(&cl, 2, 0, 16, 0);
	cl.opts.ring_bytes = 1024;
	cluster_run(&cl, tick_needs_room);
	cluster_exit(&cl);
}
END_TEST

/* Rank 1 takes completions before it begins what they are about: it still learns of the end. */
static void behind(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_request req = cluster_request(1, 0);
	struct kvr_completion done[256];
	struct kvr_block blocks[KEYS];
	uint32_t covered;

	if (rank != 1) {
		for (uint64_t id = 1; id <= 40; id++) {
			make_keys(id);
			cluster_store(c, id, 0, keys, 1, rank);
			if (id % 8 == 0 && CLUSTER_LEADER(rank))
				MUST(kvr_connector_check_completed(c, KVR_NEXT, 0, SOON, done, 256,
								   NULL) == 24);
		}
		if (CLUSTER_LEADER(rank))
			cl->area->word[CLUSTER_LEAD][3] = 1;
	} else {
		while (!__atomic_load_n(&cl->area->word[CLUSTER_LEAD][3], __ATOMIC_ACQUIRE))
			test_sleep_ms(1);
		MUST(kvr_connector_check_completed(c, KVR_NOW, 0, SOON, done, 256, NULL) == 120);
		make_keys(1);
		MUST(kvr_connector_store_begin(c, &req, keys, 1, SOON, blocks, KEYS, &covered) ==
		     1);
		MUST(!kvr_connector_wait_store(c, &req, KVR_STAGE_HOST, SOON));
	}
	cluster_shutdown(c);
}

START_TEST(test_a_rank_that_is_behind_learns_of_the_end)
{
	struct cluster cl;

	cluster_init(&cl, 2, 1, 64, 0);
	cl.opts.ops = 16;
	cluster_run(&cl, behind);
	cluster_exit(&cl);
}
END_TEST

/* A store of 8 slots: 20 blocks do not fit, and say so; what waited behind them is written. */
static void too_many_blocks(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_request first = cluster_request(1, 0), second = cluster_request(2, 0);
	struct kvr_block blocks[32];
	struct kvr_key many[24];
	uint32_t covered;

	(void)cl;
	cluster_keys(1, many, 24);
	MUST(kvr_connector_store_begin(c, &first, many, 20, SOON, blocks, 32, &covered) == 20);
	for (uint32_t i = 0; i < 20 && !CLUSTER_LEADER(rank); i++)
		cluster_fill(c, &many[i], &blocks[i]);
	MUST(!kvr_connector_store_copied(c, &first, 0));
	MUST(kvr_connector_store_begin(c, &second, many + 20, 4, SOON, blocks, 32, &covered) == 4);
	for (uint32_t i = 0; i < 4 && !CLUSTER_LEADER(rank); i++)
		cluster_fill(c, &many[20 + i], &blocks[i]);
	MUST(!kvr_connector_store_copied(c, &second, 0));
	MUST(kvr_connector_wait_store(c, &first, KVR_STAGE_WRITTEN, SOON) == -ENOSPC);
	MUST(kvr_connector_wait_store(c, &first, KVR_STAGE_HOST, SOON) == 0);
	MUST(kvr_connector_wait_store(c, &second, KVR_STAGE_WRITTEN, SOON) == 0);
	cluster_shutdown(c);
}

START_TEST(test_a_store_without_room_does_not_take_others_along)
{
	struct cluster cl;

	cluster_init(&cl, 2, 0, 40, 8);
	cluster_run(&cl, too_many_blocks);
	cluster_exit(&cl);
}
END_TEST

/* Rank 1 gives a request up without having begun its load: release tells the leader. */
static void released_unbegun(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_request req = cluster_request(2, 0);
	struct kvr_completion done[8];
	struct kvr_block blocks[KEYS];
	struct kvr_hit hit;

	make_keys(1);
	cluster_store(c, 1, 0, keys, 2, rank);
	MUST(!kvr_connector_lookup(c, &req, keys, 2, SOON, &hit) && hit.blocks == 2);
	if (rank != 1)
		MUST(kvr_connector_load_begin(c, &req, 2, SOON) == 2);
	if (CLUSTER_LEADER(rank))
		__atomic_store_n(&cl->area->step, 1, __ATOMIC_RELEASE);
	while (rank == 1 && !__atomic_load_n(&cl->area->step, __ATOMIC_ACQUIRE))
		test_sleep_ms(1);
	if (rank == 0) {
		MUST(kvr_connector_load_wait(c, &req, keys, SOON, blocks, KEYS) == 0);
		MUST(!kvr_connector_load_done(c, &req));
	}
	MUST(!kvr_connector_release(c, &req));
	cluster_shutdown(c); /* no load is left open */
	if (!CLUSTER_LEADER(rank))
		MUST(kvr_connector_check_completed(c, KVR_TICK, 1000, SOON, done, 1, NULL) ==
		     -EMSGSIZE); /* what ended comes before the end */
}

START_TEST(test_a_released_request_leaves_no_load_open)
{
	struct cluster cl;

	cluster_init(&cl, 2, 0, 16, 0);
	cluster_run(&cl, released_unbegun);
	cluster_exit(&cl);
}
END_TEST

/* An answer that comes again, with other blocks: those would pass for what was verified. */
static void begun_twice(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_request req = cluster_request(2, 0);
	struct {
		struct kvr_engine_answer a;
		struct kvr_engine_block b;
	} again = { .a = { .entry = 1, .gen = 1, .count = 1 } }; /* the store had entry 0 */
	struct kvr_block blocks[KEYS];
	struct kvr_hit hit;

	(void)cl;
	make_keys(1);
	cluster_store(c, 1, 0, keys, 2, rank);
	MUST(!kvr_connector_lookup(c, &req, keys, 2, SOON, &hit) && hit.blocks == 2);
	MUST(kvr_connector_load_begin(c, &req, 2, SOON) == 2);
	if (CLUSTER_LEADER(rank)) {
		MUST(!kvr_channels_publish(kvr_connector_channels(c), KVR_CH_LOAD, 0,
					   KVR_TAG_LOAD_BEGIN, &req, &again, sizeof again, SOON));
		MUST(kvr_connector_load_wait(c, &req, keys, SOON, blocks, KEYS) <= 0);
	} else {
		MUST(kvr_connector_load_begin(c, &req, 2, SOON) == -EBADMSG);
		MUST(strstr(kvr_explain(), "began that operation before"));
		MUST(!kvr_connector_load_done(c, &req));
	}
	MUST(!kvr_connector_release(c, &req));
	cluster_shutdown(c);
}

START_TEST(test_an_answer_is_taken_once)
{
	struct cluster cl;

	cluster_init(&cl, 2, 0, 16, 0);
	cluster_run(&cl, begun_twice);
	cluster_exit(&cl);
}
END_TEST

/* A group that no connector made: the refusal does not cost the rank its place. */
START_TEST(test_a_refused_join_leaves_the_place_free)
{
	struct kvr_group_opts go = { .size = sizeof go, .ranks = 1, .event_fd = -1 };
	struct kvr_connector *c = NULL;
	struct kvr_group *leader, *rank;
	char name[KVR_NAME_MAX];

	test_name(name, sizeof name, "plain");
	ck_assert_int_eq(0, kvr_group_create(name, &go, &leader));
	ck_assert_int_eq(-EPROTO, kvr_connector_join(name, 0, NULL, SOON, &c));
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "not made by a connector"));
	ck_assert_int_eq(0, kvr_group_attach(name, 0, &go, SOON, &rank));
	kvr_group_close(rank);
	kvr_group_close(leader);
}
END_TEST

static void ignore(int sig)
{
	(void)sig;
}

/* A second leader waits for the store's I/O lock; a signal ends that wait at once. */
START_TEST(test_a_signal_ends_the_wait_for_a_busy_store)
{
	struct kvr_connector *first, *second = NULL;
	struct sigaction sa = { .sa_handler = ignore };
	struct cluster cl;
	char other[KVR_NAME_MAX];
	uint64_t began;
	int status = -1;
	pid_t pid;

	cluster_init(&cl, 1, 0, 16, 16);
	test_name(other, sizeof other, "second");
	pid = fork(); /* before any thread of the library's, for the thread sanitizer */
	if (!pid) {
		sigaction(SIGUSR1, &sa, NULL);
		while (!__atomic_load_n(&cl.area->step, __ATOMIC_ACQUIRE))
			test_sleep_ms(1);
		cl.opts.lock_deadline_ns = test_deadline_ms(20000);
		cl.area->word[0][0] = 1;
		MUST(kvr_connector_lead(other, &cl.opts, &second) == -EINTR);
		_exit(second ? 1 : 0);
	}
	ck_assert_int_eq(0, kvr_connector_lead(cl.name, &cl.opts, &first));
	__atomic_store_n(&cl.area->step, 1, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&cl.area->word[0][0], __ATOMIC_ACQUIRE))
		test_sleep_ms(1);
	test_sleep_ms(300);
	began = test_now_ns();
	while (!waitpid(pid, &status, WNOHANG) && test_now_ns() - began < 10000000000u) {
		kill(pid, SIGUSR1); /* it may not wait yet: again */
		test_sleep_ms(100);
	}
	ck_assert_int_eq(status, 0); /* -1: it never ended */
	kvr_connector_close(first);
	cluster_exit(&cl);
}
END_TEST

static Suite *make(void)
{
	Suite *s = suite_create("connector_fail");
	TCase *t = tcase_create("failures");

	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_a_rank_that_cannot_copy_fails_the_store_on_all);
	tcase_add_test(t, test_a_wrong_byte_on_one_rank_fails_the_block_for_all);
	tcase_add_test(t, test_no_room_is_the_same_answer_on_all_ranks);
	tcase_add_test(t, test_a_rank_with_other_keys_is_told_and_nothing_is_stored);
	tcase_add_test(t, test_a_rank_that_skips_a_request_does_not_keep_it_open);
	tcase_add_test(t, test_a_store_of_blocks_on_their_way_ends_when_they_are_written);
	tcase_add_test(t, test_a_dead_rank_ends_every_wait_and_is_named);
	tcase_add_test(t, test_a_rank_that_waits_for_a_tick_learns_of_the_end);
	tcase_add_test(t, test_a_store_that_joined_a_failed_one_fails);
	tcase_add_test(t, test_a_rank_that_loads_with_other_keys_is_told);
	tcase_add_test(t, test_a_load_of_nothing_is_no_operation);
	tcase_add_test(t, test_an_answer_is_taken_once);
	tcase_add_loop_test(t, test_a_killed_leaders_forked_child_does_not_keep_the_store, 0, 2);
	tcase_add_test(t, test_a_join_that_timed_out_may_come_again);
	tcase_add_test(t, test_a_rank_that_waits_makes_room_for_a_tick);
	tcase_add_test(t, test_a_rank_that_is_behind_learns_of_the_end);
	tcase_add_test(t, test_a_store_without_room_does_not_take_others_along);
	tcase_add_test(t, test_a_released_request_leaves_no_load_open);
	tcase_add_test(t, test_a_refused_join_leaves_the_place_free);
	tcase_add_test(t, test_a_signal_ends_the_wait_for_a_busy_store);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make);
}
