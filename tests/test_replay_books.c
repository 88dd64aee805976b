/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kv-replay judges by is only worth something if it finds faults: its books of operations, and
 * the hits that are possible. The sources are compiled into this program.
 */
#include "harness.h"

#include "../tools/replay_book.c"
#include "../tools/replay_oracle.c"

static struct replay_proc proc;
static struct replay_book book;

static void setup(void)
{
	memset(&proc, 0, sizeof(proc));
	ck_assert_int_eq(replay_book_open(&book, &proc, 10, 20), 0);
}

static void teardown(void)
{
	replay_book_close(&book);
}

static struct kvr_request attempt(uint32_t index)
{
	struct kvr_request request;

	ck_assert_int_eq(replay_book_attempt(&book, index, &request), 0);
	return request;
}

static void told(struct kvr_request request, uint32_t kind, uint32_t stage)
{
	struct kvr_completion c = { .request = request, .kind = kind, .stage = stage };

	replay_book_completed(&book, &c);
}

static void assert_books(uint64_t open, uint64_t stray)
{
	ck_assert_uint_eq(book.open, open);
	ck_assert_uint_eq(book.stray, stray);
}

START_TEST(test_each_operation_has_one_end)
{
	struct kvr_request load, store;

	replay_book_request(&book, 10);
	load = attempt(10);
	ck_assert_uint_eq(load.id, 11);
	ck_assert_uint_eq(load.attempt, 1);
	replay_book_begun(&book, &load, KVR_KIND_LOAD);
	store = attempt(10);
	ck_assert_uint_eq(store.attempt, 2);
	replay_book_begun(&book, &store, KVR_KIND_STORE);
	assert_books(2, 0);
	told(load, KVR_KIND_LOAD, KVR_STAGE_DONE);
	told(store, KVR_KIND_STORE, KVR_STAGE_COPIED);
	told(store, KVR_KIND_STORE, KVR_STAGE_HOST);
	assert_books(1, 0);
	told(store, KVR_KIND_STORE, KVR_STAGE_WRITTEN);
	assert_books(0, 0);
	ck_assert_uint_eq(proc.ops, 2);
	ck_assert_uint_eq(proc.ops_failed + proc.ops_cancelled, 0);
	told(store, KVR_KIND_STORE, KVR_STAGE_WRITTEN); /* a second one */
	assert_books(0, 1);
	told(load, KVR_KIND_LOAD, KVR_STAGE_FAILED); /* after another */
	assert_books(0, 2);
	ck_assert_uint_eq(proc.ops_failed, 0);
}
END_TEST

START_TEST(test_stages_only_rise)
{
	struct kvr_request store;

	replay_book_request(&book, 10);
	store = attempt(10);
	replay_book_begun(&book, &store, KVR_KIND_STORE);
	told(store, KVR_KIND_STORE, KVR_STAGE_HOST);
	told(store, KVR_KIND_STORE, KVR_STAGE_COPIED);
	assert_books(1, 1);
	told(store, KVR_KIND_STORE, KVR_STAGE_HOST);
	assert_books(1, 2);
	told(store, KVR_KIND_STORE, KVR_STAGES);
	assert_books(1, 3);
	told(store, KVR_KIND_STORE, KVR_STAGE_CANCELLED);
	assert_books(0, 3);
	ck_assert_uint_eq(proc.ops_cancelled, 1);
}
END_TEST

START_TEST(test_ends_of_nothing_are_strays)
{
	struct kvr_request lookup, other;

	replay_book_request(&book, 10);
	replay_book_request(&book, 11);
	lookup = attempt(11);
	told(lookup, KVR_KIND_LOAD, KVR_STAGE_DONE); /* nothing began */
	assert_books(0, 1);
	replay_book_begun(&book, &lookup, KVR_KIND_LOAD);
	told(lookup, KVR_KIND_STORE, KVR_STAGE_WRITTEN); /* of another kind */
	assert_books(1, 2);
	other = lookup;
	other.id = 11; /* a request without attempts */
	told(other, KVR_KIND_LOAD, KVR_STAGE_DONE);
	other.id = 13; /* one that has not come */
	told(other, KVR_KIND_LOAD, KVR_STAGE_DONE);
	other.id = 10; /* of another phase */
	told(other, KVR_KIND_LOAD, KVR_STAGE_DONE);
	other.id = 21;
	told(other, KVR_KIND_LOAD, KVR_STAGE_DONE);
	other = lookup;
	other.attempt = 2;
	told(other, KVR_KIND_LOAD, KVR_STAGE_DONE);
	other.attempt = 0;
	told(other, KVR_KIND_LOAD, KVR_STAGE_DONE);
	assert_books(1, 8);
}
END_TEST

/* A rank may hear of its end before it makes the call; a reset's comes after. */
START_TEST(test_prefetch_may_end_before_it_is_known)
{
	struct kvr_request request = { .id = 15 };

	told(request, KVR_KIND_PREFETCH, KVR_STAGE_DONE);
	assert_books(0, 0);
	replay_book_begun(&book, &request, KVR_KIND_PREFETCH);
	assert_books(0, 0);
	ck_assert_uint_eq(proc.ops, 1);
	told(request, KVR_KIND_RESET, KVR_STAGE_DONE);
	assert_books(0, 1);
	replay_book_begun(&book, &request, KVR_KIND_RESET);
	told(request, KVR_KIND_RESET, KVR_STAGE_DONE);
	assert_books(0, 1);
	request.attempt = 1;
	told(request, KVR_KIND_PREFETCH, KVR_STAGE_DONE);
	assert_books(0, 2);
}
END_TEST

START_TEST(test_oldest_store)
{
	struct kvr_request first, second, found;
	uint32_t i;

	ck_assert_int_eq(replay_book_oldest_store(&book, &found), 0);
	replay_book_request(&book, 10);
	first = attempt(10);
	replay_book_begun(&book, &first, KVR_KIND_LOAD);
	replay_book_request(&book, 11);
	for (i = 0; i < 5000; i++) /* the list grows */
		first = attempt(11);
	replay_book_begun(&book, &first, KVR_KIND_STORE);
	replay_book_request(&book, 12);
	second = attempt(12);
	replay_book_begun(&book, &second, KVR_KIND_STORE);
	ck_assert_int_eq(replay_book_oldest_store(&book, &found), 1);
	ck_assert_mem_eq(&found, &first, sizeof(found));
	told(first, KVR_KIND_STORE, KVR_STAGE_WRITTEN);
	ck_assert_int_eq(replay_book_oldest_store(&book, &found), 1);
	ck_assert_mem_eq(&found, &second, sizeof(found));
	told(second, KVR_KIND_STORE, KVR_STAGE_LOST);
	ck_assert_int_eq(replay_book_oldest_store(&book, &found), 0);
	ck_assert_uint_eq(proc.ops_failed, 1);
}
END_TEST

/* Against a list of all that came. */
START_TEST(test_possible_hits)
{
	static struct kvr_key keys[20000];
	struct replay_oracle oracle = { 0 };
	uint64_t state = test_seed();
	uint32_t i, n, have = 0;

	for (i = 0; i < 20000; i++)
		for (n = 0; n < 4; n++) {
			state = state * 6364136223846793005u + 1442695040888963407u;
			memcpy(keys[i].bytes + 8 * n, &state, 8);
		}
	memset(keys[5].bytes, 0, 8); /* the word that stands for nothing */
	while (have < 19000) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		n = 1 + (uint32_t)(state >> 33) % 900;
		i = (uint32_t)(state >> 45) % (have + 1);
		ck_assert_int_eq(replay_oracle_request(&oracle, keys + i, n),
				 (int)(i + n < have ? n : have - i));
		have = i + n > have ? i + n : have;
	}
	ck_assert_uint_eq(oracle.n, have);
	replay_oracle_reset(&oracle);
	ck_assert_int_eq(replay_oracle_request(&oracle, keys, 100), 0);
	ck_assert_int_eq(replay_oracle_request(&oracle, keys, 101), 100);
	replay_oracle_reset(&oracle);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("replay_books");
	TCase *c = tcase_create("books");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, test_each_operation_has_one_end);
	tcase_add_test(c, test_stages_only_rise);
	tcase_add_test(c, test_ends_of_nothing_are_strays);
	tcase_add_test(c, test_prefetch_may_end_before_it_is_known);
	tcase_add_test(c, test_oldest_store);
	tcase_add_test(c, test_possible_hits);
	suite_add_tcase(s, c);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
