/* SPDX-License-Identifier: Apache-2.0 */
/* A leader and a rank with their logs, and calls of which all follows from a number. */
#ifndef TESTS_ALIKE_HELPERS_H
#define TESTS_ALIKE_HELPERS_H

#include "harness.h"

#include <sys/mman.h>

#include "alike.h"
#include "clock.h"
#include "util.h"

#define WINDOW 16u
#define KIND KVR_ALIKE_STORE
#define LOG_BYTES (sizeof(struct kvr_alike_log) + WINDOW * sizeof(struct kvr_alike_call))

struct world {
	struct kvr_layout layout;
	uint8_t *lead_mem, *rank_mem;
	struct kvr_drift *drift;
	struct kvr_alike_logs lead, rank;
};

/* Zeroed, and ends where nothing is mapped. */
static inline uint8_t *memory_new(uint64_t bytes)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), size = kvr_align_up(bytes, page);
	uint8_t *mem =
		mmap(NULL, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	ck_assert_ptr_ne(mem, MAP_FAILED);
	ck_assert_int_eq(mprotect(mem + size, page, PROT_NONE), 0);
	return mem + size - bytes;
}

static inline void world_init(struct world *w)
{
	kvr_alike_init(&w->lead, &w->layout, w->lead_mem, NULL, NULL);
	kvr_alike_init(&w->rank, &w->layout, w->rank_mem, w->lead_mem, w->drift);
}

static inline struct world *world_new(void)
{
	struct world *w = (void *)memory_new(sizeof(*w));
	void *drift = memory_new(sizeof(*w->drift));

	ck_assert_int_eq(kvr_layout_init(&w->layout, 4096, 1, 4096, 16, 4 * WINDOW, 4096), 0);
	ck_assert_uint_eq(w->layout.window, WINDOW);
	w->lead_mem = memory_new(kvr_layout_log(&w->layout, KVR_ALIKES));
	w->rank_mem = memory_new(kvr_layout_log(&w->layout, KVR_ALIKES));
	w->drift = drift;
	world_init(w);
	return w;
}

/* As new. */
static inline void world_again(struct world *w)
{
	memset(w->lead_mem, 0, kvr_layout_log(&w->layout, KVR_ALIKES));
	memset(w->rank_mem, 0, kvr_layout_log(&w->layout, KVR_ALIKES));
	memset(w->drift, 0, sizeof(*w->drift));
	world_init(w);
}

static inline struct kvr_alike_log *log_of(const struct kvr_alike_logs *a, enum kvr_alike kind)
{
	void *log = a->logs + kvr_layout_log(a->layout, kind);

	return log;
}

/* What is asked in a call. */
struct call {
	struct kvr_request req;
	uint32_t keys, has_last;
	struct kvr_key last;
};

/* Call n of a history; all its fields follow from n. */
static inline struct call call_make(uint64_t n)
{
	struct call c = {
		.req = { .id = n * 3 + 1, .space = n % 5, .attempt = (uint32_t)n ^ 0x5555 },
		.keys = (uint32_t)n * 7,
		.has_last = n % 4 != 0
	};

	memcpy(c.last.bytes, &n, sizeof(n));
	return c;
}

static inline int call_equal(const struct call *a, const struct call *b)
{
	return kvr_request_equal(&a->req, &b->req) && a->keys == b->keys &&
	       a->has_last == b->has_last &&
	       (!a->has_last || !memcmp(&a->last, &b->last, sizeof(a->last)));
}

static inline void ask(struct kvr_alike_logs *a, enum kvr_alike kind, struct call c)
{
	kvr_alike_call(a, kind, &c.req, c.keys, c.has_last ? &c.last : NULL);
}

static inline void make(struct kvr_alike_logs *a, enum kvr_alike kind, struct call c)
{
	ask(a, kind, c);
	kvr_alike_answered(a, kind);
}

static inline void make_all(struct kvr_alike_logs *a, uint64_t from, uint64_t to)
{
	for (; from < to; from++)
		make(a, KIND, call_make(from));
}

static inline void assert_drift(const struct world *w, enum kvr_alike kind, uint64_t index,
				uint32_t exact, struct call mine, struct call its)
{
	struct kvr_drift d;

	ck_assert_int_eq(kvr_alike_drift(w->drift, &d), 1);
	ck_assert_uint_eq(d.kind, (uint32_t)kind + 1);
	ck_assert_uint_eq(d.index, index);
	ck_assert_uint_eq(d.exact, exact);
	ck_assert_uint_eq(d.request, mine.req.id);
	ck_assert_uint_eq(d.attempt, mine.req.attempt);
	ck_assert_uint_eq(d.its_request, its.req.id);
	ck_assert_uint_eq(d.its_attempt, its.req.attempt);
	ck_assert_uint_le(d.ns, kvr_now());
	ck_assert_uint_ge(d.ns + 60 * KVR_SEC, kvr_now());
}

static inline void assert_no_drift(struct world *w)
{
	struct kvr_drift d;

	ck_assert_int_eq(kvr_alike_check(&w->rank, &d), 0);
	ck_assert_int_eq(kvr_alike_drift(w->drift, &d), 0);
	ck_assert_uint_eq(w->drift->kind, 0);
}

#endif
