/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of bench-group share. One process keeps watch over all others and removes what
 * they leave; one works: it leads groups, starts ranks, kills. Whatever the others tell it goes
 * through memory that was shared before they were forked.
 */
#ifndef GROUP_BENCH_H
#define GROUP_BENCH_H

#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "kvring/channel.h"
#include "kvring/group.h"

#define GROUP_RANKS 64u /* at most, KVR_MAX_RANKS */
#define GROUP_MS 1000000ull
#define GROUP_LINE 128u
/* Nothing that is awaited here takes that long; after it, a process is said to hang. */
#define GROUP_HANG_NS (20000 * GROUP_MS)

/* --- figures --- */

struct group_series {
	double *v;
	size_t n, room;
};

/* One line of the report. */
struct group_row {
	const char *metric, *unit;
	const char *victim, *setting, *who; /* of a death; else NULL */
	const char *peer;		    /* of a collective call: whose it is; else NULL */
	uint32_t ranks, size;
	/* One a round, or every sample of all rounds where a round has few. */
	struct group_series value;
	struct group_series p50, p99; /* of each round; empty where `value` has the samples */
	struct group_series ratio;    /* to kvring's value in the same round */
	double max;
	size_t samples;
};

struct group_run {
	struct group_row rows[512];
	size_t nrows;
	uint32_t rounds_publish, rounds_attach, rounds_death, rounds_collective;
	double seconds; /* they took */
	char machine[192];
	int core, ncores; /* the leader's, and how many may be used */
	char others[64];  /* the ranks' cores, for people */
	char gloo[96];	  /* which versions; "" absent */
};

/* What the command line says. */
struct group_options {
	uint32_t rounds;
	double seconds;
	uint64_t resident;
	uint64_t ranks; /* bit r - 1: a group with r ranks; 0: not told */
	int publish, attach, death, collective, json;
};

extern struct group_run group_run;
extern struct group_options group_opt;

/* group_report.c */
struct group_row *group_row(const char *metric, const char *unit, uint32_t ranks, uint32_t size);
void group_add(struct group_series *s, double v);
/* One round's samples, sorted by the call: its median, 99 % and worst. */
void group_add_round(struct group_row *row, double *samples, size_t n);
void group_sample(struct group_row *row, double v);
double group_median(double *v, size_t n);		       /* sorts them */
double group_quantile(const struct group_series *s, double q); /* sorts it; NAN: empty */
void group_report(void);

/* Who must know of a death within the goal. */
#define GROUP_ALL_ASLEEP "the last rank asleep in take()"

/* --- processes, group_common.c --- */

extern const char *group_dir;	 /* private, below /dev/shm; gone when the bench ends */
extern double group_ns_per_tick; /* what group_ticks() counts */
extern cpu_set_t group_all, group_first, group_rest; /* CPUs: all, the leader's, the ranks' */

void group_set_up(void); /* clocks and CPUs */
/*
 * Runs work() in a child, and returns its exit status when no process that it started is left and
 * `group_dir` is gone. A signal that would end this process ends the child first.
 */
int group_supervise(int (*work)(void), double limit_s);
/* 0 in the child, which does not outlive its parent. */
pid_t group_fork(void);
/* Ends this process, which ends the bench. The first one says why; the others follow from it. */
void group_broken(const char *what) __attribute__((noreturn, cold));
int group_is_broken(void);
void *group_memory(size_t bytes); /* zeroed, shared with all processes forked later */
void group_pin(const cpu_set_t *set);
/* For process i of n that all work at the same time: a CPU of its own, or all where there are not
 * enough. */
void group_cpus_of(uint32_t i, uint32_t n, cpu_set_t *ret_set);
void group_cpus_text(const cpu_set_t *set, char *to, size_t size); /* "1-3,6" */
void group_nap(uint64_t ns);
void group_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void group_progress(const char *what, uint32_t round);
uint64_t group_now(void);
uint64_t group_random(uint64_t below);
uint64_t group_memory_available(void);
/* Voluntary switches of this thread: whether it slept in between. */
long group_sleeps(void);
void group_futex_wait(const uint32_t *word, uint32_t seen, uint64_t ns);
void group_futex_wake(const uint32_t *word);

static inline void group_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* The cheapest clock, once all before it is done. */
static inline uint64_t group_ticks(void)
{
#if defined(__x86_64__)
	unsigned int core;

	return __builtin_ia32_rdtscp(&core);
#else
	return group_now();
#endif
}

/* --- ranks that do what they are told, group_agents.c --- */

enum group_order {
	ORDER_ATTACH,
	ORDER_DRAIN,
	ORDER_POLL,
	ORDER_TAKE,
	ORDER_STREAM,  /* takes `count` messages, asleep or not; `stamp`: when it had the last */
	ORDER_BARRIER, /* `count` times, after some for warming up; `ns`: they took */
	ORDER_MIN,     /* the same with a reduction of three values */
	ORDER_FUTEX,   /* the same with a barrier of one counter and one futex */
	ORDER_CLOSE
};

#define GROUP_SLOTS 64u /* groups that an agent is in at the same time */

/* Agent r is rank r of whatever group it is told to attach to. */
struct group_agent {
	uint32_t told; /* number of the last order; a futex */
	uint32_t order, slot, count;
	char name[KVR_NAME_MAX];
	uint32_t done __attribute__((aligned(GROUP_LINE))); /* as `told` when it is done; a futex */
	uint64_t ns;					    /* the call took */
	uint64_t got __attribute__((aligned(GROUP_LINE)));  /* POLL, TAKE: messages, so far */
	uint64_t stamp; /* when it had the last of them; the same clock for all */
	uint32_t slept; /* whether it slept before */
};

#define GROUP_PAYLOAD 1024u /* the longest */
#define GROUP_ENTRIES 64u
/* Message n carries the beginning of entry n % GROUP_ENTRIES. */
const void *group_payload(uint64_t number);
extern const struct group_agent *group_agents;
void group_agents_start(uint32_t n); /* pinned to `group_rest` */
void group_agents_stop(void);
/* Orders for agents [from, to); and waiting until they are done. */
void group_tell(uint32_t from, uint32_t to, enum group_order order, uint32_t slot, uint32_t count,
		const char *name);
void group_await(uint32_t from, uint32_t to);
/* The same, without a look in between: they may need this core. */
void group_await_asleep(uint32_t from, uint32_t to);
/* Waits until the first n agents have `count` messages of the POLL or TAKE they are in. */
void group_await_got(uint32_t n, uint64_t count);

/* --- the other side of a comparison: torch.distributed with gloo, group_gloo.c --- */

#define GROUP_GLOO_WORLD 16u
#define GROUP_GLOO_NUMBERS 64u

/* What each process says of one order: times in ns, or CLOCK_MONOTONIC stamps. */
struct group_gloo_said {
	uint64_t number[GROUP_GLOO_WORLD][GROUP_GLOO_NUMBERS];
};
/* 0: it is absent, and that was told. */
int group_gloo_start(uint32_t world);
/* One order to the first n of them: "barrier", "min", "message" or "stream". 0: it is broken, that
 * was told, and it takes no more. */
int group_gloo_run(const char *order, uint32_t n, uint32_t size, uint32_t count,
		   struct group_gloo_said *ret);
void group_gloo_stop(void);

/* --- the measures: each adds its rows, and ends by itself after about so many seconds --- */

void group_publish(double seconds);
void group_attach(double seconds);
void group_death(double seconds);
void group_collective(double seconds);

#endif
