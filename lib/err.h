/* SPDX-License-Identifier: Apache-2.0 */
/* How the library's files set the sentence that kvr_explain() returns. Cold paths only. */
#ifndef KVR_ERR_H
#define KVR_ERR_H

#include <errno.h>

#include "kvring/err.h"

/* Stores the sentence for this thread and returns `err`, so that `return kvr_fail(...)` reads well.
 */
int kvr_fail(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Appends to the sentence of this thread: a caller adds what it alone knows. Returns `err`. */
int kvr_fail_more(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The same for a true failure: the compiler then knows that the result is negative. */
#define KVR_FAIL(err, ...)                                      \
	__extension__({                                         \
		int kvr_failed_ = kvr_fail((err), __VA_ARGS__); \
		kvr_failed_ < 0 ? kvr_failed_ : -EIO;           \
	})

#endif
