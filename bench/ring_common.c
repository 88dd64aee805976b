/* SPDX-License-Identifier: Apache-2.0 */
/* What both sides need whatever they play: things to send, a place to meet, clocks, futexes. */
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kvring/err.h"
#include "ring_play.h"

#define SPINS 1000 /* looks at the other side before sleeping */

#define SIZE(n) n,
const uint32_t ring_sizes[RING_NSIZES] = { RING_SIZES(SIZE) };

#define TABLE(n)                                                                        \
	static struct message_##n table_##n[ENTRIES(n)] __attribute__((aligned(4096))); \
	static uint64_t folds_##n[ENTRIES(n)];                                          \
	_Static_assert(sizeof(table_##n) == STRIDE(n) * ENTRIES(n), "no holes in a table");
RING_SIZES(TABLE)

#define KNOWN(n) { n, ENTRIES(n), (uint8_t *)table_##n, folds_##n },
static const struct table {
	uint32_t size, entries;
	uint8_t *source;
	uint64_t *folds;
} tables[RING_NSIZES] = { RING_SIZES(KNOWN) };

static uint32_t random_next(uint32_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 17;
	*x ^= *x << 5;
	return *x;
}

/* Before the fork, so that the reader knows what the writer sends. */
void ring_tables(void)
{
	uint32_t x = 2463534242u, e, i;
	const struct table *t;
	struct ring_head *h;

	for (t = tables; t < tables + RING_NSIZES; t++)
		for (e = 0; e < t->entries; e++) {
			h = (struct ring_head *)(void *)(t->source + e * STRIDE(t->size));
			*h = (struct ring_head){ .tag = e, .len = t->size };
			for (i = 0; i < t->size; i++)
				((uint8_t *)(h + 1))[i] = (uint8_t)random_next(&x);
			t->folds[e] = fold(h + 1, t->size);
		}
}

/* Messages are numbered from 1 on in each measure. */
void ring_prepare(struct ring_side *side, uint32_t size)
{
	const struct table *t = tables;
	uint32_t e;

	while (t->size != size)
		t++;
	side->size = size;
	side->source = t->source;
	side->folds = t->folds;
	for (e = 0; e < t->entries; e++)
		((struct ring_head *)(void *)(t->source + e * STRIDE(size)))->seq = e ? e
										      : t->entries;
}

void *ring_memory(size_t bytes)
{
	void *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (mem == MAP_FAILED) {
		perror("bench-ring: mmap");
		exit(1);
	}
	return mem;
}

void ring_pin(int core)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET((size_t)core, &set);
	if (!sched_setaffinity(0, sizeof(set), &set))
		return;
	fprintf(stderr, "bench-ring: core %d: ", core);
	perror("sched_setaffinity");
	_exit(1);
}

static int children[32];
static size_t nchildren;

int ring_fork(void)
{
	int parent = getpid(), pid = fork();

	if (pid < 0) {
		perror("bench-ring: fork");
		exit(1);
	}
	if (pid) {
		children[nchildren++] = pid;
		return pid;
	}
	signal(SIGCHLD, SIG_DFL);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1); /* it died before we asked */
	return 0;
}

void ring_children_end(void)
{
	signal(SIGCHLD, SIG_DFL);
	while (nchildren) {
		kill(children[--nchildren], SIGKILL);
		waitpid(children[nchildren], NULL, 0);
	}
}

uint64_t ring_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The kernel's answer: 0 or more, or -1 with errno. */
long ring_sleep_on(const void *word, uint32_t seen)
{
	return syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
}

void ring_wake_up(const void *word, int sleepers)
{
	syscall(SYS_futex, word, FUTEX_WAKE, sleepers, NULL, NULL, 0);
}

void ring_broken(const char *impl, const char *what)
{
	const char *why = kvr_explain();

	fprintf(stderr, "bench-ring: %s: %s%s%s\n", impl, what, *why ? ": " : "", why);
	_exit(1);
}

/*
 * Both sides come here before either goes on. Spins, so that they go on together; then sleeps, so
 * that the other's core is all that is busy. A side that died is seen by the parent's SIGCHLD.
 */
void ring_meet(struct ring_side *side)
{
	uint32_t mine = ++side->meetings, seen;
	uint32_t *here = (uint32_t *)&side->s->arrived[side->id];
	uint32_t *there = (uint32_t *)&side->s->arrived[!side->id];
	int i;

	__atomic_store_n(here, mine, __ATOMIC_RELEASE);
	ring_wake_up(here, 1);
	for (i = 0; i < SPINS; i++) {
		if (__atomic_load_n(there, __ATOMIC_ACQUIRE) - mine < UINT32_MAX / 2)
			return;
		relax();
	}
	while ((seen = __atomic_load_n(there, __ATOMIC_ACQUIRE)) - mine >= UINT32_MAX / 2)
		ring_sleep_on(there, seen);
}

/* How often the kernel took this thread off its core because it had nothing to do. */
static long sleeps(void)
{
	struct rusage r;

	getrusage(RUSAGE_THREAD, &r);
	return r.ru_nvcsw;
}

/*
 * Wake-ups of a sleeper. Side 0 leaves it alone for a while, notes the time and posts; side 1 takes
 * the time with the message in hand. A wake-up that found it awake does not count: UINT32_MAX.
 */
void ring_wakes(struct ring_side *side, uint64_t count, void (*post)(struct ring_side *, uint64_t),
		void (*await)(struct ring_side *, uint64_t))
{
	struct ring_shared *s = side->s;
	uint64_t i, now, until;
	long before;

	for (i = 1; i <= count; i++) {
		if (side->id) {
			before = sleeps();
			await(side, i);
			now = ring_now();
			s->samples[i - 1] = UINT32_MAX;
			if (sleeps() != before)
				sample(side, i, now - s->stamp.value);
			__atomic_store_n(&s->got.value, i, __ATOMIC_RELEASE);
			continue;
		}
		until = ring_now() + RING_QUIET_NS +
			random_next(&side->random) % (3 * RING_QUIET_NS);
		while (ring_now() < until)
			relax();
		s->stamp.value = ring_now();
		post(side, i);
		while (__atomic_load_n(&s->got.value, __ATOMIC_ACQUIRE) != i)
			relax();
	}
}
