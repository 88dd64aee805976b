/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The oracle of kv-replay is only worth something if it finds wrong bytes: its source is compiled
 * into this program.
 */
#include "harness.h"

#include "../tools/replay_pattern.c"

#define BYTES 4096u

static uint8_t block[BYTES], other[BYTES];

static struct kvr_key key_of(uint64_t id)
{
	struct kvr_key key;

	replay_keys(1, &id, 1, &key);
	return key;
}

/* However a block is cut into spans, its bytes are the same. */
START_TEST(test_bytes_depend_on_the_offset_alone)
{
	struct kvr_key key = key_of(7);
	uint64_t state = test_seed(), first = 0;
	uint32_t at, n;
	int round;

	replay_fill(&key, 0, BYTES, block);
	for (round = 0; round < 200; round++) {
		memset(other, 0, sizeof(other));
		for (at = 0; at < BYTES; at += n) {
			state = state * 6364136223846793005u + 1442695040888963407u;
			n = 1 + (uint32_t)(state >> 33) % (round % 2 ? 40u : 1500u);
			if (n > BYTES - at)
				n = BYTES - at;
			replay_fill(&key, at, n, other + at);
			ck_assert_uint_eq(replay_compare(&key, at, n, block + at, &first), 0);
		}
		ck_assert_int_eq(memcmp(block, other, BYTES), 0);
	}
}
END_TEST

START_TEST(test_wrong_bytes_are_counted_exactly)
{
	static const uint32_t wrong_at[] = { 3, 4, 8, 17, 23, 24, 1000, 1007, 2047, 4000, 4001 };
	struct kvr_key key = key_of(7);
	uint64_t first, expected, first_expected;
	uint32_t i, from, end;

	replay_fill(&key, 0, BYTES, block);
	for (i = 0; i < sizeof(wrong_at) / sizeof(wrong_at[0]); i++)
		block[wrong_at[i]] ^= (uint8_t)(1u << i % 8);
	for (from = 0; from < 30; from++) {
		for (end = from; end < 2100; end += end < 60 ? 1 : 97) {
			expected = 0;
			first_expected = first = UINT64_MAX;
			for (i = 0; i < sizeof(wrong_at) / sizeof(wrong_at[0]); i++) {
				if (wrong_at[i] < from || wrong_at[i] >= end)
					continue;
				if (!expected++)
					first_expected = wrong_at[i];
			}
			ck_assert_uint_eq(replay_compare(&key, from, end - from, block + from,
							 &first),
					  expected);
			ck_assert_uint_eq(first, first_expected);
		}
	}
}
END_TEST

/* Another block's bytes, or the right ones at another place, are wrong nearly everywhere. */
START_TEST(test_misplaced_bytes_are_wrong)
{
	struct kvr_key key = key_of(7), wrong = key_of(8);
	uint64_t first;
	uint32_t by;

	replay_fill(&key, 0, BYTES, block);
	ck_assert_uint_gt(replay_compare(&wrong, 0, BYTES, block, &first), BYTES * 9 / 10);
	for (by = 1; by < 64; by++)
		ck_assert_uint_gt(replay_compare(&key, 0, BYTES - by, block + by, &first),
				  (BYTES - by) * 9 / 10);
	memset(block, 0, BYTES);
	ck_assert_uint_gt(replay_compare(&key, 0, BYTES, block, &first), BYTES * 9 / 10);
}
END_TEST

START_TEST(test_key_names_the_whole_prefix)
{
	const uint64_t a[] = { 1, 2, 3, 4 }, b[] = { 1, 2, 9, 4 };
	struct kvr_key ka[4], kb[4], seeded[4];
	int i, k;

	replay_keys(1, a, 4, ka);
	replay_keys(1, b, 4, kb);
	replay_keys(2, a, 4, seeded);
	for (i = 0; i < 4; i++) {
		ck_assert((memcmp(&ka[i], &kb[i], sizeof(ka[i])) == 0) == (i < 2));
		ck_assert_int_ne(memcmp(&ka[i], &seeded[i], sizeof(ka[i])), 0);
		for (k = 0; k < i; k++)
			ck_assert_int_ne(memcmp(&ka[i], &ka[k], sizeof(ka[i])), 0);
	}
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("replay_pattern");
	TCase *c = tcase_create("oracle");

	tcase_add_test(c, test_bytes_depend_on_the_offset_alone);
	tcase_add_test(c, test_wrong_bytes_are_counted_exactly);
	tcase_add_test(c, test_misplaced_bytes_are_wrong);
	tcase_add_test(c, test_key_names_the_whole_prefix);
	suite_add_tcase(s, c);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
