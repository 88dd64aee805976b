/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib/atomic.h for the model of the ring: what lib/ring.c calls goes to ring.cpp. Included before
 * lib/ring.c (-include), it takes lib/atomic.h's place by its guard. Only what the ring uses: a
 * helper that it does not have here must get a model first.
 */
#ifndef KVR_ATOMIC_H
#define KVR_ATOMIC_H

#include <stddef.h>
#include <stdint.h>

#define KVR_LINE 128u

#ifdef __cplusplus
extern "C" {
#endif

uint64_t model_load(const uint64_t *p, int acquire, const char *func, unsigned line);
void model_store(uint64_t *p, uint64_t v, int release, const char *func, unsigned line);

/* memcpy(), into the ring or elsewhere. */
void *model_copy(void *to, const void *from, size_t n);

#ifdef __cplusplus
}
#else
#define memcpy(to, from, n) model_copy(to, from, n)
#endif

#define kvr_load_relaxed(p) model_load(p, 0, __func__, __LINE__)
#define kvr_load_acquire(p) model_load(p, 1, __func__, __LINE__)
#define kvr_store_relaxed(p, v) model_store(p, v, 0, __func__, __LINE__)
#define kvr_store_release(p, v) model_store(p, v, 1, __func__, __LINE__)

static inline void kvr_relax(void)
{
}

#endif
