/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting: poll, spin a little, then sleep on one futex doorbell per process.
 *
 * A doorbell is two words on a line of its own, in a page that everybody may write: whatever a peer
 * writes there, the worst is a wake-up too many, or one that the back-stop delivers.
 *
 *   byte  size  field    meaning
 *      0     4  seq      futex word; rises when a sleeper is woken
 *      4     4  parked   1: somebody sleeps or is about to
 *
 * Ringer: publish; if (xchg(parked, 0)) { seq++; futex_wake(all) }.
 * Sleeper: s = seq; xchg(parked, 1); look again; futex_wait(seq == s).
 *
 *   B1 ringer: xchg of parked, acq_rel    B2 sleeper: xchg of parked, acq_rel
 *      Both read and write the same word, so one comes second and sees all that the first did
 *      before: a second ringer sees the 1 and wakes; a second sleeper sees what was published.
 *      Without it: published after the last look, and nobody woken.
 *   B3 ringer: add to seq, acq_rel        B4 sleeper: load-acquire of seq before its xchg
 *      A ringer that took the 1 of an earlier sleeper still raises seq, so whoever read the older
 *      seq does not fall asleep. Without it: that sleeper's 1 is gone and it sleeps on.
 *
 * Of B3 and B4 only the place matters, after B1 and before B2: the orders of those keep it (model
 * checked: both relaxed hold; B1 without release, B2 without acquire, or B4 behind B2, lose a
 * wake).
 *
 * A ringer pays a system call only when somebody sleeps. A back-stop wakes sleepers every 100 ms;
 * one that then finds its condition true, and no ring in 10 ms more, counts a lost wake: one for
 * each sleep that nothing else ended. What the count cannot tell:
 *
 *   A ringer that is held up for longer than that between its publish and the end of its
 *   kvr_bell_ring(), because it is stopped or has no CPU, looks like one that never rings. It may
 *   count, once for each sleeper; with several ringers of one bell, after half that time.
 *   A dropped wake that another ring, a signal or the caller's deadline made up for is not seen,
 * nor
 *   one that the kernel could not deliver since the bell is not in shared memory.
 */
#ifndef KVRING_WAIT_H
#define KVRING_WAIT_H

#include "kvring/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVR_BACKSTOP_NS 100000000ull

struct kvr_bell {
	uint32_t seq;
	uint32_t parked;
	uint32_t pad[30];
};

/* One a thread that waits; private memory. */
struct kvr_waiter {
	struct kvr_bell *bell;
	uint64_t spin_ns;     /* how long to spin before sleeping: follows the inter-arrival time */
	uint64_t last_ns;     /* last time something arrived */
	uint64_t gap_ns;      /* smoothed inter-arrival time */
	uint64_t quick;	      /* arrivals since last_ns that needed no wait */
	uint64_t spin_cap_ns; /* 0 when the thread may run on one CPU only */
	uint32_t in_vain;     /* rises with each spin that ended in a sleep; */
	uint32_t skip;	      /* so many waits go without one */
	uint64_t lost_wakes;
	uint64_t sleeps;
	uint64_t backstop_ns;	      /* KVR_BACKSTOP_NS */
	const uint32_t *const *watch; /* the library's own: other words that end a sleep */
	uint32_t watches;
	uint32_t reserved;
};

/*
 * After a publish: wakes whoever sleeps on the bell. Any thread of any process that maps it may
 * ring, at any time; one locked instruction when nobody sleeps.
 */
KVR_API void kvr_bell_ring(struct kvr_bell *bell);

/*
 * Prepares a waiter of the calling thread. `bell`: zeroed once by whoever made the memory, and
 * shared by as many waiters and ringers as like. Nothing is allocated.
 */
KVR_API void kvr_waiter_init(struct kvr_waiter *w, struct kvr_bell *bell);

/*
 * Calls ready(arg) until it returns non-zero or the deadline passes: > 0 there, < 0 an error that
 * ends the wait. It is called at least every 100 ms, so it may look at liveness, too. Returns what
 * ready returned, -ETIMEDOUT, or -EINTR when a signal handler ran. Sets no sentence: the caller
 * knows what was awaited. A deadline in the past polls once.
 */
KVR_API int kvr_wait(struct kvr_waiter *w, int (*ready)(void *arg), void *arg,
		     uint64_t deadline_ns);

#ifdef __cplusplus
}
#endif
#endif
