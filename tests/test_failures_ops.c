/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failures that others had with single operations: what a launch, a copy, an abort, a reset or a
 * name that is used twice did to a server. Here each operation has one end with its cause, the same
 * on all ranks, and leaves nothing behind.
 */
#include "failures.h"

static const struct kvr_request one = { .id = 1 }, two = { .id = 2 };

static void open_host(void)
{
	trio_open(POOL, 0);
	cluster_keys(1, keys, 128);
}

/* With a store, and what was stored first only there. */
static void open_store(void)
{
	trio_open(POOL, 64);
	cluster_keys(1, keys, 128);
	for (uint64_t id = 1000; id < 1005; id++) {
		store_all(id, keys + 8 * (id - 1000), 8);
		ck_assert_uint_eq(end_of(id, KVR_KIND_STORE).stage, KVR_STAGE_WRITTEN);
	}
}

static void load_begin_all(const struct kvr_request *req, const struct kvr_key *k)
{
	ck_assert_uint_eq(lookup_all(req->id, k, N), N);
	ck_assert_int_eq(kvr_connector_load_begin(lead, req, N, SOON), N);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_load_begin(rank[r], req, N, SOON), N);
}

static int load_wait_on(uint32_t r, const struct kvr_request *req, const struct kvr_key *k,
			uint64_t deadline)
{
	struct kvr_block b[N];

	return kvr_connector_load_wait(rank[r], req, k, deadline, b, N);
}

/* Both wait for the load and verify it, in turn: neither ends its wait without the other. */
static void load_wait_all(const struct kvr_request *req, const struct kvr_key *k)
{
	uint64_t deadline = SOON;

	while (load_wait_on(0, req, k, kvr_deadline(1)) < 0 && kvr_deadline(0) < deadline)
		load_wait_on(1, req, k, kvr_deadline(1));
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(load_wait_on(r, req, k, SOON), N);
}

/* --- lookups ---------------------------------------------------------------------------------- */

/* On one shared tag a lookup was given a list of finished stores; and an empty message, of which it
 * then read the fields. */
START_TEST(test_lookup_never_gets_another_kinds_answer)
{
	struct kvr_channels *ch = kvr_connector_channels(lead);
	struct kvr_completion c[64];
	struct kvr_block b[N];
	struct kvr_hit hit;

	store_all(9, keys, N);
	/* All of these are before it, some under its very name. */
	ck_assert_int_eq(begin_on(lead, 1, keys + 20, N, b), N);
	ok(kvr_connector_propose(lead, &one, "m", 1, SOON));
	ok(kvr_connector_check_completed(lead, KVR_NEXT, 0, SOON, c, 64, NULL));
	ok(kvr_connector_lookup(lead, &one, keys, N, SOON, &hit));
	for (uint32_t r = 0; r < RANKS; r++) {
		ok(kvr_connector_lookup(rank[r], &one, keys, N, SOON, &hit));
		ck_assert_uint_eq(hit.blocks, N);
		ck_assert_int_eq(begin_on(rank[r], 1, keys + 20, N, b), N);
		ck_assert_int_eq(
			kvr_connector_check_completed(rank[r], KVR_NEXT, 0, SOON, c, 64, NULL), 3);
	}
	/* A miss is an answer with all its fields; nothing at all is none, and is named. */
	ck_assert_uint_eq(found(keys + 60, N), 0);
	ok(kvr_channels_publish(ch, KVR_CH_LOOKUP, 0, KVR_TAG_LOOKUP_RESULT, &two, NULL, 0, SOON));
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert_int_eq(kvr_connector_lookup(rank[r], &two, keys, N, SOON, &hit),
				 -EBADMSG);
		must_say("channel LOOKUP (LOOKUP_RESULT, 0 bytes): not the size of a lookup");
	}
	ck_assert_uint_eq(found(keys, N), N);
	copied_all(1);
	ends(1, KVR_KIND_STORE, KVR_STAGE_DONE, 0);
}
END_TEST

/* A second lookup of the same request overwrote the task of the first, whose block stayed pinned
 * for ever. */
START_TEST(test_duplicate_lookup_leaves_no_pin_behind)
{
	struct kvr_block b[POOL];
	struct kvr_key fresh[POOL];
	uint32_t covered;

	store_all(9, keys, POOL);
	for (uint32_t i = 0; i < 5; i++)
		ck_assert_uint_eq(lookup_all(1, keys + i, POOL - i), POOL - i);
	cluster_keys(2, fresh, POOL);
	/* The last one holds: of the others nothing is left but what it does not have. */
	ck_assert_int_eq(
		kvr_connector_store_begin(lead, &two, fresh, POOL, SOON, b, POOL, &covered), 4);
	ck_assert_uint_eq(covered, 4);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_store_begin(rank[r], &two, fresh, POOL, SOON, b,
							   POOL, &covered),
				 4);
	copied_all(2);
	ends(2, KVR_KIND_STORE, KVR_STAGE_DONE, 0);
	ok(kvr_connector_release(lead, &one)); /* once */
	pool_is_free();
}
END_TEST

/* --- stores ----------------------------------------------------------------------------------- */

/* Followers gave the GPU's slots away before their copies to the host had ended. */
START_TEST(test_gpu_slots_are_free_only_when_every_rank_has_copied)
{
	struct kvr_completion c[64];
	struct kvr_block b[N];

	begin_all(1, keys, N, b);
	ok(copied_on(rank[0], 1, 0));
	ck_assert_int_eq(kvr_connector_wait_store(rank[0], &one, KVR_STAGE_COPIED,
						  kvr_deadline(20)),
			 -ETIMEDOUT);
	must_say("stage copied of the store of request 1/0");
	ck_assert_int_eq(kvr_connector_wait_store(lead, &one, KVR_STAGE_COPIED, kvr_deadline(20)),
			 -ETIMEDOUT);
	must_say("not acknowledged by ");
	must_say("rank 1 (pid ");
	ck_assert_int_eq(tick_all(c, 64), 0);
	ck_assert_uint_eq(found(keys, N), 0);
	ok(copied_on(rank[1], 1, 0));
	ok(kvr_connector_wait_store(rank[0], &one, KVR_STAGE_COPIED, SOON));
	ok(kvr_connector_wait_store(lead, &one, KVR_STAGE_HOST, SOON));
	ck_assert_int_eq(tick_all(c, 64), 3);
	ck_assert_uint_eq(c[0].stage, KVR_STAGE_COPIED);
	ck_assert_uint_eq(c[1].stage, KVR_STAGE_HOST);
	ck_assert_uint_eq(found(keys, N), N);
}
END_TEST

/* The launch failed: before the ranks were told, and all servers died of an exception; or after,
 * and they tracked a store that nobody ran. */
START_TEST(test_store_launch_that_fails_is_data_and_no_exception)
{
	struct kvr_block b[N];
	uint32_t covered;

	ok(kvr_connector_refuse(lead, KVR_KIND_STORE, &one, -ENODEV, SOON));
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert_int_eq(kvr_connector_store_begin(rank[r], &one, keys, N, SOON, b, N,
							   &covered),
				 -ENODEV);
		must_say("store of request 1/0 was refused by the leader");
		ck_assert_int_eq(kvr_connector_wait_store(rank[r], &one, KVR_STAGE_COPIED, SOON),
				 -ENOENT);
	}
	begin_all(2, keys, N, b);
	ok(copied_on(lead, 2, -EREMOTEIO));
	copied_all(2);
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert_int_eq(kvr_connector_wait_store(rank[r], &two, KVR_STAGE_HOST, SOON),
				 -EREMOTEIO);
		must_say("store of request 2/0 ended as failed");
	}
	ends(2, KVR_KIND_STORE, KVR_STAGE_FAILED, -EREMOTEIO);
	ck_assert_uint_eq(found(keys, N), 0);
	ck_assert_int_eq(store_all(3, keys, N), N);
	ck_assert_uint_eq(found(keys, N), N);
	ok(kvr_group_check(kvr_connector_group(lead)));
}
END_TEST

/* An operation that failed was dropped: its graph never ended, was told as a time-out much later,
 * and kept its blocks. */
START_TEST(test_failed_operation_ends_once_with_its_cause)
{
	struct kvr_block b[N];
	struct kvr_stats s;

	begin_all(1, keys, N, b);
	ok(copied_on(rank[0], 1, 0));
	ok(copied_on(rank[1], 1, -EIO));
	ends(1, KVR_KIND_STORE, KVR_STAGE_FAILED, -EIO);
	no_other_end(1);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_wait_store(rank[r], &one, KVR_STAGE_COPIED, SOON),
				 -EIO);
	ck_assert_int_eq(kvr_connector_wait_store(lead, &one, KVR_STAGE_COPIED, SOON), -EIO);
	ok(kvr_connector_stats(lead, &s));
	ck_assert_uint_eq(s.ops_begun, s.ops_ended);
	ck_assert_uint_eq(s.ops_failed, 1);
	ck_assert_uint_eq(s.pool_free, s.pool_slots);
	pool_is_free();
}
END_TEST

/* A task that the table had forgotten counted as done. */
START_TEST(test_unknown_operation_is_no_success)
{
	struct kvr_connector *const all[] = { lead, rank[0], rank[1] };
	struct kvr_block b[N];
	uint32_t done;

	for (uint32_t i = 0; i < 3; i++) {
		ck_assert_int_eq(kvr_connector_wait_store(all[i], &one, KVR_STAGE_COPIED, SOON),
				 -ENOENT);
		must_say("no store of request 1/0");
		ck_assert_int_eq(kvr_connector_load_wait(all[i], &one, keys, SOON, b, N), -ENOENT);
		ck_assert_int_eq(kvr_connector_prefetch_status(all[i], &one, &done), -ENOENT);
		ck_assert_int_eq(kvr_connector_decided(all[i], &one, SOON), -ENOENT);
		ck_assert_int_eq(kvr_connector_reset_wait(all[i], &one, SOON), -ENOENT);
	}
	/* One that failed long ago, when its entry has been another's since. */
	begin_all(1, keys, N, b);
	for (uint32_t r = 0; r < RANKS; r++)
		ok(copied_on(rank[r], 1, -EIO));
	ends(1, KVR_KIND_STORE, KVR_STAGE_FAILED, -EIO);
	for (uint64_t id = 100; id < 100 + 2 * cl.opts.ops; id++) {
		store_all(id, keys + id % 100, 1);
		end_of(id, KVR_KIND_STORE);
	}
	for (uint32_t i = 0; i < 3; i++)
		ck_assert_int_lt(kvr_connector_wait_store(all[i], &one, KVR_STAGE_COPIED, SOON), 0);
}
END_TEST

/* --- names ------------------------------------------------------------------------------------ */

/* One integration wanted the abort before the store, another after it, and the server had one hook.
 */
START_TEST(test_cancel_and_close_are_two_calls_in_any_order)
{
	struct kvr_block b[2 * N];

	store_all(9, keys, N);
	/* Cancelled, then stored. */
	ck_assert_uint_eq(lookup_all(1, keys, N), N);
	ck_assert_int_eq(abort_all(&one), 0);
	ck_assert_int_eq(store_all(1, keys + 10, N), N);
	/* Stored, then cancelled: what is copied goes on, though it waits for another store. */
	begin_all(3, keys + 20, N, b);
	ck_assert_int_eq(begin_on(lead, 2, keys + 20, 2 * N, b),
			 N); /* the others are on their way */
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(begin_on(rank[r], 2, keys + 20, 2 * N, b), N);
	copied_all(2);
	ok(kvr_connector_wait_store(lead, &two, KVR_STAGE_COPIED, SOON));
	ck_assert_int_eq(abort_all(&two), 0);
	copied_all(3);
	ends(2, KVR_KIND_STORE, KVR_STAGE_DONE, 0);
	ck_assert_uint_eq(found(keys + 10, N), N);
	ck_assert_uint_eq(found(keys + 20, 2 * N), 2 * N);
	/* And closed before, between or after: no pin is left. */
	for (uint32_t i = 0; i < 3; i++) {
		ck_assert_uint_eq(lookup_all(1, keys, N), N);
		if (i == 1)
			abort_all(&one);
		ok(kvr_connector_release(lead, &one));
		if (i == 2)
			abort_all(&one);
	}
	pool_is_free();
}
END_TEST

/* A client sent one id twice, and the server crashed, or hung on the first one's answer. */
START_TEST(test_request_id_may_come_again)
{
	struct kvr_request again = { .id = 1, .attempt = 1 };
	struct kvr_block b[2 * N];
	struct kvr_hit hit;
	uint32_t covered;

	store_all(9, keys, N);
	/* The ranks never took the first try's answer: it does not answer the second. */
	ok(kvr_connector_lookup(lead, &one, keys + 60, N, SOON, &hit));
	ck_assert_uint_eq(hit.blocks, 0);
	ok(kvr_connector_lookup(lead, &again, keys, N, SOON, &hit));
	for (uint32_t r = 0; r < RANKS; r++) {
		ok(kvr_connector_lookup(rank[r], &again, keys, N, SOON, &hit));
		ck_assert_uint_eq(hit.blocks, N);
	}
	/* The same name while it runs is refused on all; another attempt is another store. */
	begin_all(1, keys + 10, N, b);
	ck_assert_int_eq(begin_on(lead, 1, keys + 20, N, b), -EEXIST);
	must_say("request 1 attempt 0 already has a store; raise the attempt");
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(begin_on(rank[r], 1, keys + 20, N, b), -EEXIST);
	ck_assert_int_eq(
		kvr_connector_store_begin(lead, &again, keys + 20, N, SOON, b, N, &covered), N);
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert_int_eq(kvr_connector_store_begin(rank[r], &again, keys + 20, N, SOON, b,
							   N, &covered),
				 N);
		ok(kvr_connector_store_copied(rank[r], &again, -EIO));
	}
	copied_all(1);
	ck_assert_int_eq(kvr_connector_wait_store(rank[0], &again, KVR_STAGE_HOST, SOON), -EIO);
	ok(kvr_connector_wait_store(rank[0], &one, KVR_STAGE_HOST, SOON));
	ck_assert_uint_eq(found(keys + 10, N), N);
	ck_assert_uint_eq(found(keys + 20, N), 0);
	/* After the end the name is free. */
	ck_assert_int_eq(store_all(1, keys + 30, N), N);
	ck_assert_uint_eq(found(keys + 30, N), N);
}
END_TEST

/* Two counters handed out the same number, for a batch and for a graph, and one of the two was
 * never completed. */
START_TEST(test_numbers_of_different_kinds_do_not_collide)
{
	uint32_t seen[KVR_KIND_RESET + 1] = { 0 };
	struct kvr_completion c[256];
	uint64_t deadline = SOON;
	struct kvr_block b[N];

	/* Five things with one name, all in flight at once. */
	load_begin_all(&one, keys);
	begin_all(1, keys + 100, N, b);
	ck_assert_int_eq(kvr_connector_prefetch(lead, &one, keys + 8, N, 0, SOON), N);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_prefetch(rank[r], &one, keys + 8, N, 0, SOON), N);
	vote_all(&one, 1, 0, 0);
	all_hear(&one, 0);
	copied_all(1);
	load_wait_all(&one, keys);
	for (uint32_t r = 0; r < RANKS; r++) {
		ok(kvr_connector_load_done(rank[r], &one));
		ok(kvr_connector_outcome(rank[r], &one, 0));
	}
	while (seen[KVR_KIND_STORE] + seen[KVR_KIND_LOAD] + seen[KVR_KIND_PREFETCH] +
		       seen[KVR_KIND_DECISION] <
	       4) {
		for (int n = tick_all(c, 256); n-- > 0;)
			seen[c[n].kind] += c[n].request.id == 1 && c[n].stage >= KVR_STAGE_END &&
					   !c[n].status;
		ck_assert_uint_lt(kvr_deadline(0), deadline);
	}
	no_other_end(1);
	for (uint32_t kind = KVR_KIND_STORE; kind <= KVR_KIND_DECISION; kind++)
		ck_assert_uint_eq(seen[kind], 1);
}
END_TEST

/* --- loads, prefetches ------------------------------------------------------------------------ */

/* Ranks asked for a prefetch's progress different numbers of times, each time in a collective. */
START_TEST(test_prefetch_may_be_looked_at_any_number_of_times)
{
	uint32_t done[RANKS + 1] = { 0 };

	ck_assert_int_eq(kvr_connector_prefetch(lead, &one, keys, 8, 0, SOON), 8);
	ck_assert_int_eq(kvr_connector_prefetch(rank[0], &one, keys, 8, 0, SOON), 8);
	for (uint32_t i = 0; i < 500; i++) {
		ck_assert_int_ge(kvr_connector_prefetch_status(rank[0], &one, &done[0]), 0);
		ck_assert_uint_le(done[0], 8);
	}
	/* Rank 1 comes when it is over, and has not asked once. */
	ck_assert_uint_eq(end_of(1, KVR_KIND_PREFETCH).blocks, 8);
	ck_assert_int_eq(kvr_connector_prefetch(rank[1], &one, keys, 8, 0, SOON), 8);
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert_int_eq(kvr_connector_prefetch_status(rank[r], &one, &done[r]), 1);
		ck_assert_uint_eq(done[r], 8);
	}
	ck_assert_int_eq(kvr_connector_prefetch_status(lead, &one, &done[2]), 1);
	ck_assert_uint_eq(done[2], 8);
}
END_TEST

/* A load that was aborted never completed, and its blocks were never free again. */
START_TEST(test_aborted_load_completes_and_frees_its_blocks)
{
	uint64_t deadline = SOON;

	store_all(9, keys, N);
	load_begin_all(&one, keys);
	while (!kvr_rank_op_find(&rank[0]->known, &one, KVR_OP_LOAD)
			->voted) { /* it has the bytes */
		ck_assert_int_eq(load_wait_on(0, &one, keys, kvr_deadline(20)), -ETIMEDOUT);
		ck_assert_uint_lt(kvr_deadline(0), deadline);
	}
	ck_assert_int_eq(kvr_connector_abort(lead, &one), 1);
	ends(1, KVR_KIND_LOAD, KVR_STAGE_CANCELLED, -ECANCELED);
	await_word(&leader_page()->quarantined_slots, N); /* both may still copy out of them */
	ck_assert_int_eq(load_wait_on(0, &one, keys, SOON), -ECANCELED);
	must_say("load of request 1/0 ended as cancelled");
	await_word(&leader_page()->quarantined_slots, N);
	if (_i) {
		ok(kvr_connector_load_done(rank[1], &one));
		pool_is_free();
	} else { /* a rank that never says anything any more, but leaves */
		kvr_connector_close(rank[1]);
		rank[1] = NULL;
		await_word(&leader_page()->quarantined_slots, 0);
	}
	await_word(&leader_page()->quarantined_ops, 0);
}
END_TEST

/* A completion came late, or a second time, and an assertion about its id ended the engine. */
START_TEST(test_late_and_repeated_completions_are_counted_and_not_applied)
{
	struct {
		struct kvr_wire_complete w;
		struct kvr_wire_record r;
	} again = { .w = { .count = 1 } };
	struct kvr_completion c[64];
	struct kvr_rank_op *op;
	struct kvr_block b[N];

	store_all(1, keys, N);
	again.w.tick = end_of(1, KVR_KIND_STORE).tick + 1;
	op = kvr_rank_op_find(&rank[0]->known, &one, KVR_OP_STORE);
	ck_assert_ptr_nonnull(op);
	again.r = (struct kvr_wire_record){ .id = 1,
					    .kind = KVR_OP_STORE,
					    .stage = KVR_STAGE_FAILED,
					    .status = -EIO,
					    .blocks = N,
					    .entry = op->entry,
					    .gen = op->gen };
	ok(kvr_channels_publish(kvr_connector_channels(lead), KVR_CH_COMPLETE, 0,
				KVR_TAG_STORE_COMPLETE, NULL, &again, sizeof again, SOON));
	ck_assert_int_eq(tick_all(c, 64), 0); /* of that tick */
	begin_all(2, keys + 10, N, b);
	ck_assert_int_eq(kvr_connector_abort(lead, &two), 1);
	ends(2, KVR_KIND_STORE, KVR_STAGE_CANCELLED, -ECANCELED);
	for (uint32_t r = 0; r < RANKS; r++) {
		ok(kvr_connector_wait_store(rank[r], &one, KVR_STAGE_HOST, SOON));
		ck_assert_uint_eq(rank_page(r)->duplicate, 1);
		ok(copied_on(rank[r], 2, 0)); /* of a store that ended meanwhile */
		ck_assert_uint_eq(rank_page(r)->late, 1);
		ok(copied_on(rank[r], 1, 0)); /* a second time */
		ck_assert_uint_eq(rank_page(r)->duplicate, 2);
		ck_assert_int_eq(copied_on(rank[r], 3, 0), -ENOENT); /* never here */
		ck_assert_uint_eq(rank_page(r)->foreign, 1);
	}
	ck_assert_uint_eq(found(keys, N), N);
	ck_assert_uint_eq(found(keys + 10, N), 0);
	no_other_end(2);
	pool_is_free();
}
END_TEST

/* --- resets ----------------------------------------------------------------------------------- */

static const struct kvr_request reset = { .id = 900 }, reset2 = { .id = 901 };

static void reset_heard(const struct kvr_request *req, int status)
{
	ck_assert_int_eq(kvr_connector_reset_wait(lead, req, SOON), status);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_reset_wait(rank[r], req, SOON), status);
}

static void reset_all(const struct kvr_request *req)
{
	ok(kvr_connector_reset(lead, req, NULL, SOON));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_reset(rank[r], req, NULL, SOON));
	reset_heard(req, 0);
}

/* A reset waited a while, swallowed the error, and freed slots that transfers still used. */
START_TEST(test_reset_frees_nothing_that_is_still_in_use)
{
	struct kvr_block b[N];

	load_begin_all(&one, keys);
	load_wait_all(&one, keys);
	ok(kvr_connector_load_done(rank[0], &one));
	/* Rank 1 still copies to its GPU. */
	ok(kvr_connector_reset(lead, &reset, NULL, SOON));
	ok(kvr_connector_reset(rank[0], &reset, NULL, SOON));
	ck_assert_int_eq(kvr_connector_reset(rank[1], &reset, NULL, SOON), -EBUSY);
	must_say("rank 1 still has the blocks of the load of request 1/0");
	reset_heard(&reset, -EBUSY);
	ends(900, KVR_KIND_RESET, KVR_STAGE_CANCELLED, -EBUSY);
	ck_assert_int_eq(kvr_connector_load_wait(rank[1], &one, keys, SOON, b, N), N);
	for (uint32_t i = 0; i < N; i++)
		ck_assert_uint_eq(cluster_wrong(rank[1], &keys[i], &b[i]), 0);
	ok(kvr_connector_load_done(rank[1], &one));
	ends(1, KVR_KIND_LOAD, KVR_STAGE_DONE, 0);
	ok(kvr_connector_release(lead, &one));
	ck_assert_uint_eq(found(keys, 8), 8);
	reset_all(&reset2);
	ck_assert_uint_eq(found(keys, 8), 0);
	pool_is_free();
}
END_TEST

/* A reset only warned of tasks in flight, and their late writes brought the old weights' blocks
 * back. */
START_TEST(test_late_write_does_not_bring_old_blocks_back)
{
	struct kvr_block b[N];

	begin_all(1, keys + 60, N, b);
	ok(copied_on(rank[0], 1, 0));
	ck_assert_int_eq(kvr_connector_abort(lead, &one), 1);
	/* Rank 1 is in the middle of its copy, and does not answer in time. */
	ok(kvr_connector_reset(lead, &reset, NULL, kvr_deadline(50)));
	ok(kvr_connector_reset(rank[0], &reset, NULL, SOON));
	ck_assert_int_eq(kvr_connector_reset_wait(rank[0], &reset, SOON), -ETIMEDOUT);
	ck_assert_int_eq(kvr_connector_reset(rank[1], &reset, NULL, SOON), -EBUSY);
	reset_heard(&reset, -ETIMEDOUT);
	ck_assert_uint_eq(found(keys, 8), 8); /* everything is as before */
	ok(copied_on(rank[1], 1, 0));
	ck_assert_uint_eq(rank_page(1)->late, 1);
	/* This one is on its way to the drive when the next reset begins. */
	store_all(2, keys + 70, 8);
	reset_all(&reset2);
	ck_assert_uint_eq(found(keys, 8) + found(keys + 60, N) + found(keys + 70, 8), 0);
	for (uint32_t r = 0; r < RANKS; r++)
		kvr_connector_close(rank[r]);
	kvr_connector_close(lead);
	ok(kvr_connector_lead(cl.name, &cl.opts, &lead));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_join(cl.name, r, NULL, SOON, &rank[r]));
	ck_assert_uint_eq(found(keys, 8) + found(keys + 60, N) + found(keys + 70, 8), 0);
	for (uint32_t i = 0; i < 40; i += 8)
		ck_assert_uint_eq(found(keys + i, 8), 0);
	ck_assert_int_eq(store_all(3, keys, 8), 8);
	ck_assert_uint_eq(found(keys, 8), 8);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("failures_ops");
	TCase *t = tcase_create("host");

	tcase_add_checked_fixture(t, open_host, trio_close);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_lookup_never_gets_another_kinds_answer);
	tcase_add_test(t, test_duplicate_lookup_leaves_no_pin_behind);
	tcase_add_test(t, test_gpu_slots_are_free_only_when_every_rank_has_copied);
	tcase_add_test(t, test_store_launch_that_fails_is_data_and_no_exception);
	tcase_add_test(t, test_failed_operation_ends_once_with_its_cause);
	tcase_add_test(t, test_unknown_operation_is_no_success);
	tcase_add_test(t, test_cancel_and_close_are_two_calls_in_any_order);
	tcase_add_test(t, test_request_id_may_come_again);
	tcase_add_loop_test(t, test_aborted_load_completes_and_frees_its_blocks, 0, 2);
	tcase_add_test(t, test_late_and_repeated_completions_are_counted_and_not_applied);
	suite_add_tcase(s, t);
	t = tcase_create("store");
	tcase_add_checked_fixture(t, open_store, trio_close);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_numbers_of_different_kinds_do_not_collide);
	tcase_add_test(t, test_prefetch_may_be_looked_at_any_number_of_times);
	tcase_add_test(t, test_reset_frees_nothing_that_is_still_in_use);
	tcase_add_test(t, test_late_write_does_not_bring_old_blocks_back);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
