/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sides of a test as processes: what each of them did, in memory that all share, and a parent
 * that stops and continues them at random moments until they end.
 *
 * A side may also stop itself, at the one place where it hurts most: between a publish and its
 * ring. The parent continues it as it does the others.
 */
#ifndef TESTS_RING_SIDES_H
#define TESTS_RING_SIDES_H

#include "harness.h"

#include <sched.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "kvring/wait.h"
#include "ring_helpers.h"

#define SIDE_SLOW (KVR_TEST_TSAN ? 10u : KVR_TEST_ASAN ? 4u : 1u)
#define SIDE_MS 1000000ull
/* How long a ringer may take from its publish to the end of its ring: kvring/wait.h. */
#define SIDE_GRACE_NS (10 * SIDE_MS)
#define SIDE_BACKSTOP_MS 100u

/* What one side did; written by it alone. */
struct side {
	_Alignas(128) uint64_t messages;
	uint64_t bytes;	   /* checked */
	uint64_t sleeps;   /* entered */
	uint64_t switches; /* voluntary context switches: sleeps that the kernel saw */
	uint64_t lost;	   /* lost wakes that its waiter counted */
	uint64_t held;	   /* own rings that took longer than the grace time */
	char why[256];	   /* what went wrong */
};

static inline void *side_map(size_t bytes)
{
	void *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	ck_assert_ptr_ne(mem, MAP_FAILED);
	return mem;
}

/* fork(), and a child that does not outlive its parent. */
static inline pid_t side_fork(void)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	else
		ck_assert_int_gt(pid, 0);
	return pid;
}

/* For the end of a side: what it says, or NULL when all went well. */
static inline void side_exit(struct side *me, const struct kvr_waiter *w, const char *why)
	__attribute__((noreturn));
static inline void side_exit(struct side *me, const struct kvr_waiter *w, const char *why)
{
	struct rusage use;

	getrusage(RUSAGE_SELF, &use);
	me->switches = (uint64_t)use.ru_nvcsw;
	me->sleeps = w->sleeps;
	me->lost = w->lost_wakes;
	if (why && why != me->why)
		snprintf(me->why, sizeof me->why, "%s", why);
	_exit(why ? 1 : 0);
}

/*
 * Rings for what was published at `from` or later. A ringer that is held up for longer than `grace`
 * ns in between counts as a lost wake of whoever sleeps, once each; so it is measured.
 */
static inline void side_ring(struct side *me, struct kvr_bell *bell, uint64_t from, uint64_t grace)
{
	kvr_bell_ring(bell);
	if (test_now_ns() - from >= grace)
		me->held++;
}

/* 1 when a process, or a thread of this one, is in a sleep of the kernel's. */
static inline int side_asleep(pid_t id)
{
	char path[64], state = 0;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)id);
	f = fopen(path, "re");
	if (f && fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
		state = 0;
	if (f)
		fclose(f);
	return state == 'S';
}

/* --- the parent's half ------------------------------------------------------------------------ */

/* How the parent disturbs its children, and how often it did. */
struct stops {
	uint64_t x;	    /* a generator */
	uint32_t gap_us;    /* at most so long between two stops; 0: stops nobody */
	uint32_t hold_us;   /* at most so long a stop, but for ... */
	uint32_t long_left; /* ... so many that last longer than the back-stop */
	uint64_t budget_ns; /* for all stops but the long ones together */
	uint64_t count, longs;
};

#define SIDES_MAX 16

struct child {
	pid_t pid; /* 0: it ended */
	int stopped;
	uint64_t until; /* when it goes on */
};

static inline uint32_t stops_random(struct stops *s, uint32_t n)
{
	return n ? test_random(&s->x) % n : 0;
}

static inline uint64_t stops_hold_ns(struct stops *s)
{
	uint64_t hold = 1000ull * stops_random(s, s->hold_us);

	s->count++;
	if (s->long_left && !stops_random(s, 3)) {
		s->long_left--;
		s->longs++;
		return (SIDE_BACKSTOP_MS + 5 + stops_random(s, 200)) * SIDE_MS;
	}
	if (hold > s->budget_ns)
		hold = 0;
	s->budget_ns -= hold;
	return hold;
}

/* Looks at one child. 1 while it runs, 0 when it ended well, -1 otherwise. */
static inline int child_look(struct child *c, struct stops *s, uint64_t now)
{
	int status;

	if (waitpid(c->pid, &status, WNOHANG | WUNTRACED) == c->pid) {
		if (WIFSTOPPED(status)) {
			c->stopped = 1;
			c->until = now + stops_hold_ns(s);
			return 1;
		}
		c->pid = 0;
		return status ? -1 : 0;
	}
	if (c->stopped && now >= c->until) {
		c->stopped = 0;
		kill(c->pid, SIGCONT);
	}
	return 1;
}

static inline void children_kill(struct child *c, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (c[i].pid) {
			kill(c[i].pid, SIGKILL);
			waitpid(c[i].pid, NULL, 0);
			c[i].pid = 0;
		}
}

/*
 * Until all of them have ended. NULL, or what went wrong: then none is left, either. One in four
 * stops is of all at once.
 */
static inline const char *sides_run(const pid_t *pids, uint32_t n, struct stops *s,
				    uint64_t deadline)
{
	struct child c[SIDES_MAX] = { { 0 } };
	uint64_t now = test_now_ns(), next = now + 1000ull * stops_random(s, s->gap_us);
	uint32_t i, left = n, victim;

	for (i = 0; i < n; i++)
		c[i].pid = pids[i];
	while (left) {
		now = test_now_ns();
		for (i = 0; i < n; i++) {
			int rc = c[i].pid ? child_look(&c[i], s, now) : 1;

			if (!rc)
				left--;
			if (rc < 0 || (left && now >= deadline)) {
				children_kill(c, n);
				return rc < 0 ? "a side failed" : "a side did not end in time";
			}
		}
		if (s->gap_us && s->budget_ns > 1000ull * s->hold_us && now >= next) {
			victim = stops_random(s, 4) ? stops_random(s, n) : n;
			for (i = 0; i < n; i++)
				if (c[i].pid && !c[i].stopped && (victim == n || victim == i))
					kill(c[i].pid, SIGSTOP);
			next = now + 1000ull * stops_random(s, s->gap_us);
		}
		usleep(100);
	}
	return NULL;
}

static inline void sides_must_end(const pid_t *pids, uint32_t n, uint64_t deadline)
{
	struct stops none = { 0 };
	const char *why = sides_run(pids, n, &none, deadline);

	ck_assert_msg(!why, "%s", why);
}

#endif
