/* SPDX-License-Identifier: Apache-2.0 */
/* The small things that everything stands on: arithmetic, text from elsewhere, hashes, time. */
#include "harness.h"

#include "clock.h"
#include "hash.h"
#include "kvring/types.h"
#include "must.h"
#include "util.h"

/* --- util ------------------------------------------------------------------------------------ */

START_TEST(test_align_up)
{
	ck_assert_uint_eq(kvr_align_up(0, 4096), 0);
	ck_assert_uint_eq(kvr_align_up(1, 4096), 4096);
	ck_assert_uint_eq(kvr_align_up(4095, 4096), 4096);
	ck_assert_uint_eq(kvr_align_up(4096, 4096), 4096);
	ck_assert_uint_eq(kvr_align_up(4097, 4096), 8192);
	ck_assert_uint_eq(kvr_align_up(1124352, 4096), 1126400);
	ck_assert_uint_eq(kvr_align_up(7, 1), 7);
	ck_assert_uint_eq(kvr_align_up(7, 3), 9); /* no power of two is needed */
	ck_assert_uint_eq(kvr_align_up((1ull << 62) + 1, 1ull << 32), (1ull << 62) + (1ull << 32));
}
END_TEST

START_TEST(test_is_pow2)
{
	unsigned bit;

	ck_assert_int_eq(kvr_is_pow2(0), 0);
	for (bit = 0; bit < 64; bit++)
		ck_assert_int_eq(kvr_is_pow2(1ull << bit), 1);
	for (bit = 2; bit < 64; bit++) {
		ck_assert_int_eq(kvr_is_pow2((1ull << bit) - 1), 0);
		ck_assert_int_eq(kvr_is_pow2((1ull << bit) + 1), 0);
	}
	ck_assert_int_eq(kvr_is_pow2(UINT64_MAX), 0);
}
END_TEST

START_TEST(test_min)
{
	ck_assert_uint_eq(kvr_min(1, 2), 1);
	ck_assert_uint_eq(kvr_min(2, 1), 1);
	ck_assert_uint_eq(kvr_min(3, 3), 3);
	ck_assert_uint_eq(kvr_min(0, UINT64_MAX), 0);
	ck_assert_uint_eq(kvr_min(UINT64_MAX, 1ull << 63), 1ull << 63);
}
END_TEST

START_TEST(test_text_copy_ends_and_is_printable)
{
	char to[8];
	const char raw[6] = { 'a', 'b', 'c', 'd', 'e', 'f' }; /* no final 0 */
	const char odd[6] = { 'x', '\n', (char)0xff, 0x7f, 0x1b, ' ' };

	kvr_text_copy(to, sizeof to, raw, sizeof raw);
	ck_assert_str_eq(to, "abcdef");
	kvr_text_copy(to, sizeof to, "ab\0cd", 5);
	ck_assert_str_eq(to, "ab");
	kvr_text_copy(to, sizeof to, odd, sizeof odd);
	ck_assert_str_eq(to, "x???? ");
	memset(to, 'z', sizeof to);
	kvr_text_copy(to, 4, "abcdef", 6);
	ck_assert_str_eq(to, "abc");
	ck_assert_int_eq(to[4], 'z');
	kvr_text_copy(to, 1, "abc", 3);
	ck_assert_str_eq(to, "");
	kvr_text_copy(to, sizeof to, raw, 0);
	ck_assert_str_eq(to, "");
}
END_TEST

/* --- hash ------------------------------------------------------------------------------------ */

#define SEED 0x9e3779b185ebca8dull /* xxHash's PRIME64, in whose sanity check these values are */

static const struct {
	size_t len;
	uint64_t plain, seeded;
} reference[] = {
	{ 0, 0x2d06800538d394c2, 0xa8a6b918b2f0364a },
	{ 1, 0xc44bdff4074eecdb, 0x032be332dd766ef8 },
	{ 6, 0x27b56a84cd2d7325, 0x84589c116ab59ab9 },
	{ 12, 0xa713daf0dfbb77e7, 0xe7303e1b2336de0e },
	{ 24, 0xa3fe70bf9d3510eb, 0x850e80fc35bdd690 },
	{ 48, 0x397da259ecba1f11, 0xadc2cbaa44acc616 },
	{ 80, 0xbcdefbbb2c47c90a, 0xc6dd0cb699532e73 },
	{ 195, 0xcd94217ee362ec3a, 0xba68003d370cb3d9 },
	{ 403, 0xcdeb804d65c6dea4, 0x6259f6ecfd6443fd },
	{ 512, 0x617e49599013cb6b, 0x3ce457de14c27708 },
	{ 2048, 0xdd59e2c3a5f038e0, 0x66f81670669ababc },
	{ 2240, 0x6e73a90539cf2948, 0x757ba8487d1b5247 },
	{ 2367, 0xcb37aeb9e5d361ed, 0xd2db3415b942b42a },
};

/* The bytes of xxHash's own sanity check. */
static void reference_bytes(uint8_t *buf, size_t len)
{
	uint64_t gen = 2654435761u;
	size_t i;

	for (i = 0; i < len; i++) {
		buf[i] = (uint8_t)(gen >> 56);
		gen *= 11400714785074694797ull;
	}
}

START_TEST(test_hash_is_xxh3)
{
	uint8_t buf[2400];
	size_t i;

	reference_bytes(buf, sizeof buf);
	for (i = 0; i < KVR_ARRAY_LEN(reference); i++) {
		ck_assert_uint_eq(kvr_hash(buf, reference[i].len, 0), reference[i].plain);
		ck_assert_uint_eq(kvr_hash(buf, reference[i].len, SEED), reference[i].seeded);
	}
}
END_TEST

START_TEST(test_hash_of_unaligned_bytes)
{
	static uint8_t room[2400 + 64];
	uint8_t *buf = malloc(2400);
	size_t i, shift;

	ck_assert_ptr_nonnull(buf);
	reference_bytes(buf, 2400);
	for (shift = 0; shift < 64; shift++) {
		memcpy(room + shift, buf, 2400);
		for (i = 0; i < KVR_ARRAY_LEN(reference); i++)
			must_eq(kvr_hash(room + shift, reference[i].len, 0), reference[i].plain);
	}
	free(buf);
}
END_TEST

/* Every length and every bit counts, and so does the seed: nothing behind the end does. */
START_TEST(test_hash_depends_on_bytes_length_and_seed)
{
	uint8_t buf[600];
	size_t len, i;

	reference_bytes(buf, sizeof buf);
	for (len = 1; len < 520; len++) {
		uint64_t sum = kvr_hash(buf, len, 1);

		must(sum != kvr_hash(buf, len, 2));
		must(sum != kvr_hash(buf, len - 1, 1));
		for (i = 0; i < len; i += 1 + len / 16) {
			buf[i] ^= (uint8_t)(1u << (i % 8));
			must(sum != kvr_hash(buf, len, 1));
			buf[i] ^= (uint8_t)(1u << (i % 8));
		}
		buf[len] ^= 0xff;
		must_eq(sum, kvr_hash(buf, len, 1));
		buf[len] ^= 0xff;
	}
}
END_TEST

/* A checksum of a page with its own field as 0 must not be that of a page of zeros. */
START_TEST(test_hash_of_zeros_is_not_zero)
{
	static const uint8_t zeros[4096];
	size_t len;

	for (len = 1; len <= sizeof zeros; len *= 2)
		ck_assert_uint_ne(kvr_hash(zeros, len, 0), 0);
	ck_assert_uint_ne(kvr_hash(zeros, 2048, 0), kvr_hash(zeros, 4096, 0));
}
END_TEST

/* --- clock ----------------------------------------------------------------------------------- */

START_TEST(test_time_is_monotonic)
{
	uint64_t before = test_now_ns(), a = kvr_now(), b = a;
	int i;

	for (i = 0; i < 10000; i++) {
		uint64_t now = kvr_now();

		must(now >= b);
		b = now;
	}
	ck_assert_uint_le(before, a);
	ck_assert_uint_le(b, test_now_ns());
}
END_TEST

START_TEST(test_timespec_of_ns)
{
	struct timespec t = kvr_timespec(0);

	ck_assert_int_eq(t.tv_sec, 0);
	ck_assert_int_eq(t.tv_nsec, 0);
	t = kvr_timespec(KVR_SEC - 1);
	ck_assert_int_eq(t.tv_sec, 0);
	ck_assert_int_eq(t.tv_nsec, 999999999);
	t = kvr_timespec(3 * KVR_SEC + 5 * KVR_MS);
	ck_assert_int_eq(t.tv_sec, 3);
	ck_assert_int_eq(t.tv_nsec, 5000000);
	t = kvr_timespec(UINT64_MAX); /* waits for ever, and is a legal time */
	ck_assert_int_gt(t.tv_sec, 0);
	ck_assert_int_ge(t.tv_nsec, 0);
	ck_assert_int_lt(t.tv_nsec, 1000000000);
}
END_TEST

START_TEST(test_deadline_lies_ahead)
{
	uint64_t before = kvr_now(), d = kvr_deadline(250), after = kvr_now();

	ck_assert_uint_ge(d, before + 250 * KVR_MS);
	ck_assert_uint_le(d, after + 250 * KVR_MS);
	d = kvr_deadline(0);
	ck_assert_uint_ge(d, after);
	ck_assert_uint_le(d, kvr_now());
}
END_TEST

/* "For ever" must not wrap around to a time that is past. */
START_TEST(test_deadline_saturates)
{
	ck_assert_uint_eq(kvr_deadline(UINT64_MAX), UINT64_MAX);
	ck_assert_uint_eq(kvr_deadline(UINT64_MAX / KVR_MS), UINT64_MAX);
	ck_assert_uint_eq(kvr_deadline(UINT64_MAX / KVR_MS + 1), UINT64_MAX);
	ck_assert_uint_gt(kvr_deadline(UINT64_MAX / KVR_MS / 2), kvr_now());
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("util");
	TCase *util = tcase_create("util"), *hash = tcase_create("hash");
	TCase *clock = tcase_create("clock");

	tcase_add_test(util, test_align_up);
	tcase_add_test(util, test_is_pow2);
	tcase_add_test(util, test_min);
	tcase_add_test(util, test_text_copy_ends_and_is_printable);
	tcase_add_test(hash, test_hash_is_xxh3);
	tcase_add_test(hash, test_hash_of_unaligned_bytes);
	tcase_add_test(hash, test_hash_depends_on_bytes_length_and_seed);
	tcase_add_test(hash, test_hash_of_zeros_is_not_zero);
	tcase_add_test(clock, test_time_is_monotonic);
	tcase_add_test(clock, test_timespec_of_ns);
	tcase_add_test(clock, test_deadline_lies_ahead);
	tcase_add_test(clock, test_deadline_saturates);
	suite_add_tcase(s, util);
	suite_add_tcase(s, hash);
	suite_add_tcase(s, clock);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
