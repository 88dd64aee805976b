/* SPDX-License-Identifier: Apache-2.0 */
/* Ends of requests: names that are used again at once, proposals, and loads that cannot end. */
#include "trio.h"

#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "engine_priv.h"

static struct kvr_key keys[64];

static void setup(void)
{
	trio_open(16, 32);
	cluster_keys(1, keys, 64);
}

static int abort_on(struct kvr_connector *c, uint64_t id)
{
	struct kvr_request req = { .id = id };

	return kvr_connector_abort(c, &req);
}

static int begin_soon(struct kvr_connector *c, uint64_t id, struct kvr_block *b)
{
	struct kvr_request req = { .id = id };
	uint32_t covered;

	return kvr_connector_store_begin(c, &req, keys, N, kvr_deadline(100), b, N, &covered);
}

/* All make the same calls in the same order: begin, abort, begin. The leader is some calls ahead.
 */
START_TEST(test_name_is_used_again_by_a_leader_that_is_ahead)
{
	struct kvr_block b[N];

	ok(begin_on(lead, 1, keys, N, b));
	ok(begin_on(rank[0], 1, keys, N, b));
	if (_i)
		ok(begin_on(rank[1], 1, keys, N, b));
	ck_assert_int_eq(abort_on(lead, 1), 1);
	ck_assert_int_eq(begin_on(lead, 1, keys, N, b), N);
	for (uint32_t r = 0; r < RANKS; r++) {
		if (r && !_i)
			begin_soon(rank[r], 1, b);
		ok(abort_on(rank[r], 1));
	}
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert_int_eq(begin_soon(rank[r], 1, b), N);
		for (uint32_t i = 0; i < N; i++)
			cluster_fill(rank[r], &keys[i], &b[i]);
		ok(copied_on(rank[r], 1, 0));
	}
	ok(kvr_connector_wait_store(lead, &(struct kvr_request){ .id = 1 }, KVR_STAGE_HOST, SOON));
}
END_TEST

/*
 * A rank aborts before its leader began, and does not begin: it has nothing to drop yet. Its leader
 * aborts, too; since much is in quarantine, the store ends when all ranks answered: never.
 */
START_TEST(test_rank_that_aborted_before_the_leader_began)
{
	struct kvr_block b[N];

	ok(begin_on(lead, 1, keys + 10, N, b)); /* 3 of 16 slots in quarantine for a while */
	for (uint32_t r = 0; r < RANKS; r++)
		ok(begin_on(rank[r], 1, keys + 10, N, b));
	ck_assert_int_eq(abort_on(lead, 1), 1);
	await_word(&leader_page()->quarantined_slots, N);
	ok(abort_on(rank[1], 2));
	ok(begin_on(lead, 2, keys, N, b));
	ok(begin_on(rank[0], 2, keys, N, b));
	ck_assert_int_eq(abort_on(lead, 2), 1);
	ok(abort_on(rank[0], 2));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(abort_on(rank[r], 1));
	ck_assert_uint_eq(end_of(2, KVR_KIND_STORE).stage, KVR_STAGE_CANCELLED);
	await_word(&leader_page()->quarantined_slots, 0);
}
END_TEST

/* The same with more than a quarter of the pool: what all begin next is refused in time, so that
 * the leader comes to the tick that ends the quarantine. */
START_TEST(test_begin_after_such_an_abort)
{
	struct kvr_completion c[64];
	struct kvr_block b[6];

	ok(abort_on(rank[1], 2));
	ck_assert_int_eq(begin_on(lead, 2, keys, 6, b), 6);
	ck_assert_int_eq(begin_on(rank[0], 2, keys, 6, b), 6);
	ck_assert_int_eq(abort_on(lead, 2), 1);
	ok(abort_on(rank[0], 2));
	ck_assert_int_eq(begin_on(lead, 3, keys + 20, N, b), -EAGAIN);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(begin_on(rank[r], 3, keys + 20, N, b), -EAGAIN);
	tick_all(c, 64);
	await_word(&leader_page()->quarantined_slots, 0);
	ck_assert_int_eq(begin_on(lead, 3, keys + 20, N, b), N);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(begin_on(rank[r], 3, keys + 20, N, b), N);
}
END_TEST

/* lookup, release, lookup of one request, by a leader that is ahead. */
START_TEST(test_lookup_again_after_release)
{
	struct kvr_request req = { .id = 9 };
	struct kvr_hit hit;

	store_all(1, keys, N);
	ok(kvr_connector_lookup(lead, &req, keys, N, SOON, &hit));
	ok(kvr_connector_release(lead, &req));
	ok(kvr_connector_lookup(lead, &req, keys, N, SOON, &hit));
	for (uint32_t r = 0; r < RANKS; r++) {
		ok(kvr_connector_lookup(rank[r], &req, keys, N, SOON, &hit));
		ok(kvr_connector_release(rank[r], &req));
		ck_assert_int_eq(
			kvr_connector_lookup(rank[r], &req, keys, N, kvr_deadline(100), &hit), 0);
	}
}
END_TEST

/* What a rank did not take of the request is dropped, also a proposal. */
START_TEST(test_proposal_of_an_aborted_request_is_dropped)
{
	struct kvr_request req = { .id = 3 };
	char got[8] = "";

	ok(kvr_connector_propose(lead, &req, "old", 4, SOON));
	ck_assert_int_eq(abort_on(lead, 3), 1);
	for (uint32_t r = 0; r < RANKS; r++)
		ok(abort_on(rank[r], 3));
	ok(kvr_connector_propose(lead, &req, "new", 4, SOON));
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert_int_eq(kvr_connector_proposal(rank[r], &req, got, sizeof got, SOON), 4);
		ck_assert_str_eq(got, "new");
		ok(kvr_connector_vote(rank[r], &req, 0));
	}
	ck_assert_int_eq(kvr_connector_decided(lead, &req, SOON), 0);
}
END_TEST

/* --- loads ------------------------------------------------------------------------------------ */

/* The ranks are told that it was cancelled; so is the leader. */
START_TEST(test_aborted_load_is_the_same_for_all_who_wait)
{
	struct kvr_request req = { .id = 2 };
	struct kvr_block b[N];

	store_all(1, keys, N);
	ck_assert_uint_eq(lookup_all(2, keys, N), N);
	ck_assert_int_eq(kvr_connector_load_begin(lead, &req, N, SOON), N);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_load_begin(rank[r], &req, N, SOON), N);
	await_host(req.id);
	kvr_connector_load_wait(rank[0], &req, keys, kvr_deadline(5), b, N);
	for (uint32_t r = RANKS; r--;)
		ck_assert_int_eq(kvr_connector_load_wait(rank[r], &req, keys, SOON, b, N), N);
	ck_assert_int_eq(abort_on(lead, 2), 1);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_load_wait(rank[r], &req, keys, SOON, b, N),
				 -ECANCELED);
	ck_assert_int_eq(kvr_connector_load_wait(lead, &req, keys, SOON, b, N), -ECANCELED);
}
END_TEST

static void turn_byte(const struct kvr_key *key, uint64_t offset)
{
	char path[300];
	struct stat st;
	uint8_t *file;
	int fd;

	snprintf(path, sizeof path, "%s/kvring.store", cl.opts.store_paths[0]);
	fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fstat(fd, &st), 0);
	file = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(file, MAP_FAILED);
	close(fd);
	for (uint64_t at = 0; at + 4096 < (uint64_t)st.st_size; at += 4096)
		if (!memcmp(file + at + offsetof(struct kvr_slot_header, key), key, sizeof *key))
			file[at + offset] ^= 8;
	ck_assert_int_eq(msync(file, (size_t)st.st_size, MS_SYNC), 0);
	munmap(file, (size_t)st.st_size);
}

static const struct kvr_request load = { .id = 5 };

static void *agree(void *arg)
{
	(void)arg;
	return (void *)(intptr_t)kvr_connector_load_begin_layers(rank[1], &load, N, SOON);
}

static struct kvr_engine_io *swap_io(struct kvr_engine_io *io)
{
	struct kvr_engine *e = lead->engine;
	struct kvr_engine_io *was;

	pthread_mutex_lock(&e->lock);
	was = e->free_io;
	e->free_io = io;
	pthread_mutex_unlock(&e->lock);
	kvr_engine_wake(e);
	return was;
}

/* Too much is in quarantine, so the aborted load ends when the ranks answered, which they do; and
 * one of its reads fails. */
START_TEST(test_bad_read_of_an_aborted_load_by_layers)
{
	struct kvr_engine_io *io;
	struct kvr_block b[N];
	pthread_t t;
	void *other;

	store_all(1, keys, N);
	end_of(1, KVR_KIND_STORE);
	for (uint64_t id = 10; id < 14; id++) {
		store_all(id, keys + id * 4, 4);
		end_of(id, KVR_KIND_STORE);
	}
	ok(begin_on(lead, 2, keys + 4, N, b));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(begin_on(rank[r], 2, keys + 4, N, b));
	ck_assert_int_eq(abort_on(lead, 2), 1);
	await_word(&leader_page()->quarantined_slots, N);
	if (_i)
		turn_byte(&keys[1], 163);
	ck_assert_uint_eq(lookup_all(load.id, keys, N), N);
	io = swap_io(NULL);
	ck_assert_int_eq(kvr_connector_load_begin_layers(lead, &load, N, SOON), N);
	pthread_create(&t, NULL, agree, NULL);
	ck_assert_int_eq(kvr_connector_load_begin_layers(rank[0], &load, N, SOON), N);
	pthread_join(t, &other);
	ck_assert_int_eq((intptr_t)other, N);
	ck_assert_int_eq(abort_on(lead, load.id), 1);
	for (uint32_t r = 0; r < RANKS; r++)
		ok(abort_on(rank[r], load.id));
	swap_io(io);
	ck_assert_uint_eq(end_of(load.id, KVR_KIND_LOAD).stage, KVR_STAGE_CANCELLED);
}
END_TEST

/* The same, and a rank waits for a layer: it hears that there will be none. */
START_TEST(test_wait_for_a_layer_of_an_aborted_load)
{
	struct kvr_engine_io *io;
	struct kvr_block b[N];
	pthread_t t;
	void *other;

	store_all(1, keys, N);
	end_of(1, KVR_KIND_STORE);
	for (uint64_t id = 10; id < 14; id++) {
		store_all(id, keys + id * 4, 4);
		end_of(id, KVR_KIND_STORE);
	}
	ok(begin_on(lead, 2, keys + 4, N, b));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(begin_on(rank[r], 2, keys + 4, N, b));
	ck_assert_int_eq(abort_on(lead, 2), 1);
	await_word(&leader_page()->quarantined_slots, N);
	ck_assert_uint_eq(lookup_all(load.id, keys, N), N);
	io = swap_io(NULL);
	ck_assert_int_eq(kvr_connector_load_begin_layers(lead, &load, N, SOON), N);
	pthread_create(&t, NULL, agree, NULL);
	ck_assert_int_eq(kvr_connector_load_begin_layers(rank[0], &load, N, SOON), N);
	pthread_join(t, &other);
	ck_assert_int_eq((intptr_t)other, N);
	ck_assert_int_eq(abort_on(lead, load.id), 1);
	swap_io(io);
	ck_assert_int_eq(kvr_connector_load_wait_layer(rank[0], &load, keys, 0, kvr_deadline(2000),
						       b, N),
			 -ECANCELED);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("connector_names");
	TCase *t = tcase_create("abort");

	tcase_add_checked_fixture(t, setup, trio_close);
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, test_name_is_used_again_by_a_leader_that_is_ahead, 0, 2);
	tcase_add_test(t, test_rank_that_aborted_before_the_leader_began);
	tcase_add_test(t, test_begin_after_such_an_abort);
	tcase_add_test(t, test_lookup_again_after_release);
	tcase_add_test(t, test_proposal_of_an_aborted_request_is_dropped);
	tcase_add_test(t, test_aborted_load_is_the_same_for_all_who_wait);
	tcase_add_test(t, test_wait_for_a_layer_of_an_aborted_load);
	tcase_add_loop_test(t, test_bad_read_of_an_aborted_load_by_layers, 0, 2);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
