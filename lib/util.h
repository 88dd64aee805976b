/* SPDX-License-Identifier: Apache-2.0 */
/* Small arithmetic that every layer needs. */
#ifndef KVR_UTIL_H
#define KVR_UTIL_H

#include <stddef.h>
#include <stdint.h>

#include "kvring/types.h"

#define KVR_PAGE 4096u
#define KVR_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

static inline uint64_t kvr_align_up(uint64_t v, uint64_t to)
{
	return (v + to - 1) / to * to;
}

static inline int kvr_is_pow2(uint64_t v)
{
	return v && !(v & (v - 1));
}

static inline uint64_t kvr_min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t kvr_max(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* The 64-bit number nearest to `base` that ends in these 32 bits. */
static inline uint64_t kvr_near(uint64_t base, uint32_t low)
{
	return base + (uint64_t)(int64_t)(int32_t)(low - (uint32_t)base);
}

/* A request's name without what a caller may have left in the reserved bytes. */
static inline struct kvr_request kvr_request_name(const struct kvr_request *r)
{
	return (struct kvr_request){ .id = r->id, .space = r->space, .attempt = r->attempt };
}

static inline int kvr_request_equal(const struct kvr_request *a, const struct kvr_request *b)
{
	return a->id == b->id && a->space == b->space && a->attempt == b->attempt;
}

/*
 * Copies a text field of fixed size that may lack its final 0 (it came from shared memory or disk)
 * and replaces what is not printable ASCII, so that it can go into a sentence.
 */
void kvr_text_copy(char *to, size_t size, const char *from, size_t len);

#endif
