/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of bench-ring share. There are two sides, processes on a core each that were
 * forked from one. Side 0 starts round trips, writes streams and wakes; side 1 answers, reads and
 * sleeps. An implementation (kvring or a peer) is a table of functions that both sides call at the
 * same time; it keeps its own memory, shared and private. Included by C++, too.
 */
#ifndef RING_BENCH_H
#define RING_BENCH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RING_BYTES 65536u /* of the cells of a ring, and of a peer's at least */
#define RING_BATCH 16u
#define RING_SAMPLES 32768u
#define RING_WAKE_SIZE 32u
/* So long at least is a sleeper left alone before it is woken, and up to four times that. */
#define RING_QUIET_NS 50000u

/* The payload sizes, as constants in the loops: X is called with each. */
#define RING_SIZES(X) X(8) X(32) X(48) X(64) X(256) X(1024) X(4096)
#define RING_NSIZES 7u
extern const uint32_t ring_sizes[RING_NSIZES];

enum ring_kind { RING_RTT, RING_STREAM, RING_BATCHED, RING_WAKE, RING_PAIRS, RING_KINDS };

/* A word that one process writes; 128 bytes, as lines are fetched in pairs. */
struct ring_line {
	uint64_t value, pad[15];
};

struct ring_shared {
	struct ring_line arrived[2]; /* how often each side came to meet(); futex words */
	struct ring_line got;	     /* side 1: number of the last wake-up that is over */
	struct ring_line stamp;	     /* side 0: ns when the last wake-up began */
	uint64_t measure, count;     /* side 0: what to do next */
	uint64_t first, last;	     /* side 1: ticks around the counted part of a stream */
	uint64_t streamed;	     /* side 1: messages in it */
	double idle;		     /* side 1: percent of a core */
	uint32_t samples[RING_SAMPLES];
};

struct ring_side {
	struct ring_shared *s;
	unsigned int id;
	uint32_t meetings;
	uint32_t size;	       /* bytes of payload of this measure */
	uint8_t *source;       /* messages to send, a table; message i is entry i % length */
	const uint64_t *folds; /* what fold() makes of each entry's payload */
	uint32_t random;
};

/* `count` messages from the first to the last, on either side. */
typedef void (*ring_play)(struct ring_side *side, uint64_t count);

struct ring_impl {
	const char *name;
	int peer; /* counts when the best peer is looked for */
	/* Before the fork. NULL, or why this one is absent. */
	const char *(*setup)(void);
	ring_play play[RING_WAKE][RING_NSIZES]; /* RTT, STREAM, BATCHED; NULL: not measured */
	ring_play wake;
};

extern const struct ring_impl ring_floor, ring_kvring, ring_ck, ring_seqpacket, ring_eventfd,
	ring_futex;
/* Made by the C++ compiler where there is one; else its address is NULL. */
extern const struct ring_impl ring_boost __attribute__((weak));

/* ring_common.c */
void ring_tables(void);
void *ring_memory(size_t bytes); /* shared with all processes forked later; never NULL */
void ring_pin(int core);
int ring_fork(void);	      /* 0 in the child, which does not outlive its parent */
void ring_children_end(void); /* safe in a signal handler */
void ring_prepare(struct ring_side *side, uint32_t size);
void ring_meet(struct ring_side *side);
void ring_wakes(struct ring_side *side, uint64_t count, void (*post)(struct ring_side *, uint64_t),
		void (*await)(struct ring_side *, uint64_t));
uint64_t ring_now(void);
long ring_sleep_on(const void *word, uint32_t seen);
void ring_wake_up(const void *word, int sleepers);
void ring_broken(const char *impl, const char *what) __attribute__((noreturn, cold));

/* ring_kvring.c: a reader that waits, and nobody writes. Returns its percent of a core. */
double ring_idle(struct ring_side *side, uint64_t ms);

/* ring_pairs.c */
void ring_pairs_start(const int cores[2]);	    /* forks the processes; they sleep */
double ring_pairs_run(int futex_only, uint64_t us); /* M round trips a second */

/* One thing that each round measures, and what came out. */
#define RING_ROUNDS 1000u
#define RING_STATS 4u
struct ring_measure {
	const struct ring_impl *impl;
	enum ring_kind kind;
	uint32_t size;
	ring_play play;
	uint64_t count;			/* messages in a round: as many as fit its time */
	double (*figures)[RING_ROUNDS]; /* [RING_STATS]: ns, or M/s; NAN: none in that round */
};

struct ring_run {
	struct ring_measure *measures;
	size_t nmeasures;
	uint32_t rounds;
	double seconds; /* they took */
	double idle;	/* percent of a core; below 0: not measured */
	uint64_t idle_ms;
	char machine[192];
	int cores[2], siblings, json;
};

/* ring_report.c */
int ring_compare(const void *a, const void *b); /* doubles, for qsort() */
void ring_report(const struct ring_run *run);

#ifdef __cplusplus
}
#endif
#endif
