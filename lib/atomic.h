/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one file that spells memory orders. Ordered accesses carry a letter at the call, paired in
 * the table of the noun's header. Own words that a single thread writes are read relaxed. No
 * standalone fences: a race checker does not see them.
 */
#ifndef KVR_ATOMIC_H
#define KVR_ATOMIC_H

#include <stdint.h>

/* Two adjacent lines: x86 prefetches lines in pairs, some arm64 cores have 128-byte lines. */
#define KVR_LINE 128u

_Static_assert(__atomic_always_lock_free(8, 0), "64-bit words must be lock-free");

static inline uint64_t kvr_load_relaxed(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static inline uint64_t kvr_load_acquire(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static inline void kvr_store_relaxed(uint64_t *p, uint64_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELAXED);
}

static inline void kvr_store_release(uint64_t *p, uint64_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
}

static inline uint32_t kvr_load_relaxed32(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static inline uint32_t kvr_load_acquire32(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static inline void kvr_store_relaxed32(uint32_t *p, uint32_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELAXED);
}

static inline void kvr_store_release32(uint32_t *p, uint32_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
}

static inline uint64_t kvr_xchg_acq_rel(uint64_t *p, uint64_t v)
{
	return __atomic_exchange_n(p, v, __ATOMIC_ACQ_REL);
}

/*
 * For Dekker's handshake over different words: each side exchanges its own, then loads the other's,
 * and one of them at least must see what the other did. Acquire and release do not promise that.
 */
static inline uint64_t kvr_xchg_seq_cst(uint64_t *p, uint64_t v)
{
	return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);
}

static inline uint64_t kvr_load_seq_cst(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}

static inline uint32_t kvr_xchg_acq_rel32(uint32_t *p, uint32_t v)
{
	return __atomic_exchange_n(p, v, __ATOMIC_ACQ_REL);
}

static inline uint32_t kvr_add_acq_rel32(uint32_t *p, uint32_t v)
{
	return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
}

/* 1 when *p was `from` and is `to` now. */
static inline int kvr_cas_acq_rel32(uint32_t *p, uint32_t from, uint32_t to)
{
	return __atomic_compare_exchange_n(p, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* A hint to the core that this is a spin loop. */
static inline void kvr_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

#endif
