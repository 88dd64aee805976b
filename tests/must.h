/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assertions for loops. Those of Check tell the parent process of each success, which is a system
 * call; a model that checks everything after each of thousands of steps spends its time with that.
 */
#ifndef TESTS_MUST_H
#define TESTS_MUST_H

#include <check.h>
#include <stdint.h>

#define must(x)                                           \
	do {                                              \
		if (!(x))                                 \
			ck_abort_msg("not true: %s", #x); \
	} while (0)

#define must_eq(a, b)                                                                     \
	do {                                                                              \
		uint64_t must_a = (uint64_t)(a), must_b = (uint64_t)(b);                  \
                                                                                          \
		if (must_a != must_b)                                                     \
			ck_abort_msg("%s is %lld, %s is %lld", #a, (long long)must_a, #b, \
				     (long long)must_b);                                  \
	} while (0)

#endif
