/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for Check on machines that have none for the compiler's target: what tests/ uses of
 * it, under Check's names, with its environment variables and its closing line. Each test runs in
 * a forked child. CHECK_SKIP names a file of tests that are left out. Not here: suites chosen by
 * name or tag, exit and signal tests, logs.
 */
#ifndef TESTS_ARM64_CHECK_H
#define TESTS_ARM64_CHECK_H

#include <stdint.h>
#include <string.h>

struct check_test {
	const char *name;
	void (*fn)(int);
};

typedef struct check_suite Suite;
typedef struct check_case TCase;
typedef struct check_runner SRunner;
typedef struct check_test TTest;

enum print_output { CK_SILENT, CK_MINIMAL, CK_NORMAL, CK_VERBOSE, CK_ENV };

#define START_TEST(test)                                       \
	static void test##_fn(int _i);                         \
	static const TTest test##_test = { #test, test##_fn }; \
	static const TTest *test = &test##_test;               \
	static void test##_fn(int _i __attribute__((unused)))
#define END_TEST

Suite *suite_create(const char *name);
void suite_add_tcase(Suite *s, TCase *tc);
TCase *tcase_create(const char *name);
void tcase_set_timeout(TCase *tc, double seconds);
void tcase_add_checked_fixture(TCase *tc, void (*setup)(void), void (*teardown)(void));
void tcase_add_unchecked_fixture(TCase *tc, void (*setup)(void), void (*teardown)(void));
void tcase_add_loop_test(TCase *tc, const TTest *test, int from, int to);
#define tcase_add_test(tc, test) tcase_add_loop_test(tc, test, 0, 1)
SRunner *srunner_create(Suite *s);
void srunner_run_all(SRunner *r, enum print_output mode);
int srunner_ntests_failed(SRunner *r);
void srunner_free(SRunner *r);

/* Says where and why, and ends the test. */
void check_failed(const char *file, int line, const char *fmt, ...)
	__attribute__((noreturn, format(printf, 3, 4)));

#define ck_abort_msg(...) check_failed(__FILE__, __LINE__, __VA_ARGS__)
#define ck_assert_msg(x, ...) ((x) ? (void)0 : check_failed(__FILE__, __LINE__, __VA_ARGS__))
#define ck_assert(x) ck_assert_msg(x, "not true: %s", #x)

#define check_number_(type, fmt, x, op, y)                                                     \
	do {                                                                                   \
		type check_x_ = (type)(x);                                                     \
		type check_y_ = (type)(y);                                                     \
		ck_assert_msg(check_x_ op check_y_, "%s %s %s: they are " fmt " and " fmt, #x, \
			      #op, #y, check_x_, check_y_);                                    \
	} while (0)
#define ck_assert_int_eq(x, y) check_number_(intmax_t, "%jd", x, ==, y)
#define ck_assert_int_ne(x, y) check_number_(intmax_t, "%jd", x, !=, y)
#define ck_assert_int_lt(x, y) check_number_(intmax_t, "%jd", x, <, y)
#define ck_assert_int_le(x, y) check_number_(intmax_t, "%jd", x, <=, y)
#define ck_assert_int_gt(x, y) check_number_(intmax_t, "%jd", x, >, y)
#define ck_assert_int_ge(x, y) check_number_(intmax_t, "%jd", x, >=, y)
#define ck_assert_uint_eq(x, y) check_number_(uintmax_t, "%ju", x, ==, y)
#define ck_assert_uint_ne(x, y) check_number_(uintmax_t, "%ju", x, !=, y)
#define ck_assert_uint_lt(x, y) check_number_(uintmax_t, "%ju", x, <, y)
#define ck_assert_uint_le(x, y) check_number_(uintmax_t, "%ju", x, <=, y)
#define ck_assert_uint_gt(x, y) check_number_(uintmax_t, "%ju", x, >, y)
#define ck_assert_uint_ge(x, y) check_number_(uintmax_t, "%ju", x, >=, y)
#define ck_assert_double_le(x, y) check_number_(double, "%g", x, <=, y)
#define ck_assert_double_ge(x, y) check_number_(double, "%g", x, >=, y)
#define ck_assert_ptr_eq(x, y) check_number_(const void *, "%p", x, ==, y)
#define ck_assert_ptr_ne(x, y) check_number_(const void *, "%p", x, !=, y)
#define ck_assert_ptr_null(x) check_number_(const void *, "%p", x, ==, NULL)
#define ck_assert_ptr_nonnull(x) check_number_(const void *, "%p", x, !=, NULL)

#define check_text_(x, op, y)                                                                  \
	do {                                                                                   \
		const char *check_x_ = (x), *check_y_ = (y);                                   \
		ck_assert_msg(check_x_ &&check_y_ &&strcmp(check_x_, check_y_) op 0,           \
			      "%s %s %s: they are \"%s\" and \"%s\"", #x, #op, #y,             \
			      check_x_ ? check_x_ : "(null)", check_y_ ? check_y_ : "(null)"); \
	} while (0)
#define ck_assert_str_eq(x, y) check_text_(x, ==, y)
#define ck_assert_str_ne(x, y) check_text_(x, !=, y)
#define ck_assert_mem_eq(x, y, n) ck_assert_msg(!memcmp(x, y, n), "%s and %s differ", #x, #y)
#define ck_assert_mem_ne(x, y, n) ck_assert_msg(memcmp(x, y, n), "%s and %s are equal", #x, #y)

#endif
