/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib/atomic.h for the model of barriers: what lib/channel_meet.c calls goes to meet.cpp. Included
 * before it (-include), this takes lib/atomic.h's place by its guard.
 */
#ifndef KVR_ATOMIC_H
#define KVR_ATOMIC_H

#include <stdint.h>

#define KVR_LINE 128u

#ifdef __cplusplus
extern "C" {
#endif

enum model_order { RELAXED, ACQUIRE, RELEASE, ACQ_REL, SEQ_CST };

uint64_t model_load(const void *p, unsigned size, enum model_order order, unsigned line);
void model_store(void *p, unsigned size, uint64_t v, enum model_order order, unsigned line);
uint64_t model_xchg(void *p, unsigned size, uint64_t v, enum model_order order, unsigned line);
void model_add(void *p, unsigned size, uint64_t v, unsigned line); /* acq_rel */
void model_yield(void);
unsigned model_rand(unsigned below);

#ifdef __cplusplus
}
#endif

#define kvr_load_relaxed(p) model_load(p, 8, RELAXED, __LINE__)
#define kvr_load_acquire(p) model_load(p, 8, ACQUIRE, __LINE__)
#define kvr_load_seq_cst(p) model_load(p, 8, SEQ_CST, __LINE__)
#define kvr_load_relaxed32(p) ((uint32_t)model_load(p, 4, RELAXED, __LINE__))
#define kvr_load_acquire32(p) ((uint32_t)model_load(p, 4, ACQUIRE, __LINE__))
#define kvr_store_relaxed(p, v) model_store(p, 8, v, RELAXED, __LINE__)
#define kvr_store_release(p, v) model_store(p, 8, v, RELEASE, __LINE__)
#define kvr_store_relaxed32(p, v) model_store(p, 4, v, RELAXED, __LINE__)
#define kvr_xchg_acq_rel(p, v) model_xchg(p, 8, v, ACQ_REL, __LINE__)
#define kvr_xchg_seq_cst(p, v) model_xchg(p, 8, v, SEQ_CST, __LINE__)
#define kvr_xchg_acq_rel32(p, v) ((uint32_t)model_xchg(p, 4, v, ACQ_REL, __LINE__))
#define kvr_add_acq_rel32(p, v) model_add(p, 4, v, __LINE__)

static inline void kvr_relax(void)
{
}

#endif
