/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Poll, spin, sleep. With words to watch, the sleep is a futex_waitv() on the bell and on them; for
 * the bell that is the same as a futex_wait(): compared and queued in one step. The futexes are
 * shared (not private) ones: sleeper and ringer are processes that map the bells at different
 * addresses.
 *
 * Why the spin is short: a spinner saves the peer a system call and itself a wake-up, some
 * microseconds together, but burns the very core that the peer may need when there are more
 * processes than cores. So it spins for twice the usual gap between arrivals and never longer than
 * SPIN_CAP_NS, about what a sleep and its wake-up cost; when arrivals are rarer than that, or there
 * is one core only, it sleeps at once. And when spins end in a sleep all the same, as they do where
 * the peer has to wait for a core, it leaves them out, for longer and longer.
 */
#include "wait_watch.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "atomic.h"
#include "clock.h"
#include "util.h"

_Static_assert(sizeof(struct kvr_bell) == KVR_LINE, "the bell has its own lines");

#define SPIN_CAP_NS 6000u
#define SPIN_LOOKS 8u /* looks between two readings of the clock */
#define SKIP_MAX 256u /* waits without a spin after one that was in vain */
/* A pause says little about the rate before and after it: it counts as this much. */
#define GAP_MAX_NS (8u * SPIN_CAP_NS)
/*
 * A ringer may be between its publish and its xchg; it gets this long before it counts as silent.
 * In steps: a pause of the whole machine, or of a stopped process group, takes one of them away,
 * not all.
 */
#define GRACE_NS (10u * KVR_MS)
#define GRACE_STEP_NS KVR_MS
#define WATCH_AFTER_NS KVR_MS

static void futex_wake_all(const uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Sleeps while *word is `seen`, until the absolute time. 0 or an errno. */
static int futex_sleep(uint32_t *word, uint32_t seen, uint64_t until_ns)
{
	struct timespec until = kvr_timespec(until_ns);

	/* The bitset form alone takes an absolute time, and reads it as CLOCK_MONOTONIC. */
	if (syscall(SYS_futex, word, FUTEX_WAIT_BITSET, seen, &until, NULL,
		    FUTEX_BITSET_MATCH_ANY) < 0)
		return errno;
	return 0;
}

/* The bell, and then what is watched. */
struct sleep_on {
	struct futex_waitv word[1 + KVR_WATCH_MAX];
};

static struct futex_waitv futex_of(const uint32_t *word, uint32_t seen)
{
	return (struct futex_waitv){ .uaddr = (uintptr_t)word, .val = seen, .flags = FUTEX_32 };
}

/* As they are before the last look: who changes them afterwards ends the sleep. */
static void watch_begin(const struct kvr_waiter *w, uint32_t seen, struct sleep_on *ret)
{
	ret->word[0] = futex_of(&w->bell->seq, seen);
	for (uint32_t i = 0; i < w->watches; i++)
		ret->word[1 + i] = futex_of(w->watch[i], kvr_load_relaxed32(w->watch[i]));
}

/*
 * futex_sleep() on all of them. Queueing on many costs more than the sleep itself, so where rings
 * follow each other closely it is the bell alone.
 */
static int watch_sleep(struct kvr_waiter *w, const struct sleep_on *on, uint64_t until_ns)
{
	uint64_t soon = kvr_now() + WATCH_AFTER_NS;
	struct timespec until = kvr_timespec(until_ns);
	int err = soon < until_ns ? futex_sleep(&w->bell->seq, (uint32_t)on->word[0].val, soon)
				  : ETIMEDOUT;
	long woken;

	if (err != ETIMEDOUT)
		return err;
	woken = syscall(SYS_futex_waitv, on->word, 1 + w->watches, 0, &until, CLOCK_MONOTONIC);

	if (woken > 0) /* of all who sleep on the word of the dead the kernel wakes one */
		futex_wake_all(w->watch[woken - 1]);
	if (woken >= 0)
		return 0;
	if (errno == EAGAIN || errno == ETIMEDOUT || errno == EINTR)
		return errno;
	w->watches = 0; /* not in this kernel or sandbox: the back-stop finds out */
	return EAGAIN;
}

void kvr_bell_ring(struct kvr_bell *bell)
{
	if (kvr_xchg_acq_rel32(&bell->parked, 0)) { /* B1, pairs with B2 */
		kvr_add_acq_rel32(&bell->seq, 1);   /* B3, pairs with B4 */
		futex_wake_all(&bell->seq);
	}
}

void kvr_waiter_init(struct kvr_waiter *w, struct kvr_bell *bell)
{
	cpu_set_t cpus;

	*w = (struct kvr_waiter){ .bell = bell,
				  .gap_ns = GAP_MAX_NS,
				  .backstop_ns = KVR_BACKSTOP_NS };
	/* Refused on machines with more CPUs than the set has bits: then there are several. */
	if (!sched_getaffinity(0, sizeof(cpus), &cpus) && CPU_COUNT(&cpus) == 1)
		w->spin_cap_ns = 0;
	else
		w->spin_cap_ns = SPIN_CAP_NS;
}

void kvr_waiter_watch(struct kvr_waiter *w, const uint32_t *const *words, uint32_t count)
{
	w->watch = words;
	w->watches = (uint32_t)kvr_min(count, KVR_WATCH_MAX);
}

/* Something arrived after a wait: follow the inter-arrival time. */
static void arrived(struct kvr_waiter *w, uint64_t now)
{
	uint64_t gap = GAP_MAX_NS;

	if (w->last_ns)
		gap = kvr_min((now - w->last_ns) / (w->quick + 1), GAP_MAX_NS);
	w->last_ns = now;
	w->quick = 0;
	w->gap_ns = (7 * w->gap_ns + gap) / 8;
	w->spin_ns = w->gap_ns > w->spin_cap_ns ? 0 : kvr_min(2 * w->gap_ns, w->spin_cap_ns);
}

static int spin(struct kvr_waiter *w, int (*ready)(void *), void *arg, uint64_t *now,
		uint64_t deadline_ns)
{
	uint64_t until = kvr_min(*now + w->spin_ns, deadline_ns);
	unsigned int i;
	int rc;

	if (!w->spin_ns || *now >= deadline_ns)
		return 0;
	if (w->skip) {
		w->skip--;
		return 0;
	}
	while (*now < until) {
		for (i = 0; i < SPIN_LOOKS; i++) {
			kvr_relax();
			rc = ready(arg);
			if (rc) {
				w->in_vain /= 2;
				return rc;
			}
		}
		*now = kvr_now();
	}
	if (*now < deadline_ns) {
		w->in_vain = (uint32_t)kvr_min(2 * w->in_vain + 1, SKIP_MAX);
		w->skip = w->in_vain;
	}
	return 0;
}

/*
 * The back-stop found the condition true. Was it a wake-up that never came? `parked` is 1 since
 * before the sleep, so whoever rings raises seq; it is enough to give a late ringer its time. A
 * deadline that comes first leaves the question open. A signal handler does not: the wait is over
 * already, and returns what it found.
 */
static int nobody_rang(struct kvr_bell *bell, uint32_t seen, uint64_t deadline_ns)
{
	uint64_t now = kvr_now(), waited = 0, then;

	if (now + GRACE_NS >= deadline_ns)
		return 0;
	while (waited < GRACE_NS) {
		futex_sleep(&bell->seq, seen, now + GRACE_STEP_NS);
		if (kvr_load_relaxed32(&bell->seq) != seen)
			return 0;
		then = now;
		now = kvr_now();
		waited += kvr_min(now - then, GRACE_STEP_NS);
	}
	return 1;
}

/* One sleep, at most until the back-stop. 0: look at the time and go on. */
static int nap(struct kvr_waiter *w, int (*ready)(void *), void *arg, uint64_t now,
	       uint64_t deadline_ns)
{
	struct kvr_bell *bell = w->bell;
	uint64_t until = kvr_min(now + w->backstop_ns, deadline_ns);
	uint32_t seen = kvr_load_acquire32(&bell->seq); /* B4, pairs with B3 */
	struct sleep_on on;
	int rc, err;

	if (w->watches)
		watch_begin(w, seen, &on);
	kvr_xchg_acq_rel32(&bell->parked, 1); /* B2, pairs with B1 */
	rc = ready(arg);
	if (rc)
		return rc;
	w->sleeps++;
	if (w->watches)
		err = watch_sleep(w, &on, until);
	else
		err = futex_sleep(&bell->seq, seen, until);
	rc = ready(arg);
	if (rc > 0 && err == ETIMEDOUT && until < deadline_ns &&
	    nobody_rang(bell, seen, deadline_ns))
		w->lost_wakes++;
	if (rc || !err || err == EAGAIN || err == ETIMEDOUT)
		return rc;
	return -err; /* -EINTR, or a kernel that has no futexes for us */
}

int kvr_wait(struct kvr_waiter *w, int (*ready)(void *arg), void *arg, uint64_t deadline_ns)
{
	uint64_t now;
	int rc = ready(arg);

	if (rc) {
		w->quick++; /* without a look at the clock: this is the fast path */
		return rc;
	}
	now = kvr_now();
	rc = spin(w, ready, arg, &now, deadline_ns);
	while (!rc && now < deadline_ns) {
		rc = nap(w, ready, arg, now, deadline_ns);
		now = kvr_now();
	}
	if (rc > 0)
		arrived(w, now);
	return rc ? rc : -ETIMEDOUT;
}
