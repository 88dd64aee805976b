/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of kv-replay share.
 *
 * A job is what to do; every process inherits it by fork and only reads it. The leader is the
 * process that was started (or, for the first half of --restart, a child of it), the ranks are its
 * children, forked before any thread or handle of the library exists. What processes report goes to
 * the `struct replay_area`, memory shared by all, where each record has one writer and is read by
 * others after that writer ended: no ordering is needed.
 *
 * The leader tells the ranks what comes next over a channel of its own (KVR_CH_USER0), so that it
 * can stop early and drain as long as it needs to; all else are the symmetric calls of connector.h.
 */
#ifndef REPLAY_H
#define REPLAY_H

#include <limits.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "kvring/connector.h"
#include "kvring/inspect.h"
#include "kvring/store.h"

#define REPLAY_LEADER UINT32_MAX
#define REPLAY_MAX_IDS 65536u	      /* hash ids of one request */
#define REPLAY_MAX_REQUESTS 10000000u /* of one run */
#define REPLAY_MAX_AHEAD 1024u	      /* requests looked ahead */
#define REPLAY_DRAIN_TICKS 4096u      /* after the last request of a phase, at most */
#define REPLAY_DEADLINE_MS 60000u     /* of every call: long, since machines may be slow */
#define REPLAY_END_MS 900u	      /* after a failure everybody has ended, or is killed */

enum { REPLAY_OK = 0, REPLAY_FAILED = 1, REPLAY_BAD_INPUT = 2, REPLAY_INTERRUPTED = 130 };

/* --- what to do: replay_opts.c ------------------------------------------------------------- */

struct replay_opts {
	const char *trace; /* NULL: generated */
	const char *name;
	const char *stores[KVR_MAX_DEVICES];
	uint32_t nstores;
	uint32_t requests; /* 0: all of the trace, or the generator's default */
	uint32_t ranks;
	uint32_t layer_groups;
	uint32_t prefetch;	  /* requests looked ahead; 0: none */
	uint32_t prefetch_budget; /* blocks; 0: a quarter of the pool */
	uint32_t reset_every;	  /* requests; 0: never */
	double abort;		  /* share of the requests */
	uint64_t block_bytes, host, nvme, seed;
	int layers, replicated, restart, json, no_uring, verbose;
	int done;	     /* --help or --version was printed */
	char temp[PATH_MAX]; /* private directory of the store, "" without one */
	struct kvr_model model;
	struct kvr_shape shape;
};

/* 0, or -1 after a sentence on stderr. */
int replay_opts_parse(int argc, char **argv, struct replay_opts *ret_opts);
/* Makes the private directory if no --store was given. 0, or -1 after a sentence. */
int replay_temp_make(struct replay_opts *opts);
void replay_temp_remove(const struct replay_opts *opts);

/* --- the requests: replay_trace.c, replay_generate.c ---------------------------------------- */

struct replay_request {
	size_t first; /* in ids */
	uint32_t blocks;
};

struct replay_trace {
	struct replay_request *requests;
	uint64_t *ids;
	size_t n, cap, nids, idcap;
	uint32_t longest; /* blocks of the longest request */
};

/* Appends. 0, or -ENOMEM. */
int replay_trace_id(struct replay_trace *trace, uint64_t id);
int replay_trace_request(struct replay_trace *trace, size_t first);
/* Reads at most `max` requests (0: all). 0, or -1 after "FILE:LINE: reason" on stderr. */
int replay_trace_read(const char *path, uint32_t max, struct replay_trace *trace);
void replay_trace_free(struct replay_trace *trace);
/* Multi-turn conversations that share system prompts. 0, or -1 after a sentence. */
int replay_generate(uint64_t seed, uint32_t requests, struct replay_trace *trace);

/* --- keys and bytes: replay_pattern.c -------------------------------------------------------- */

/* keys[i] names ids[0..i], so equal prefixes have equal keys and nothing else has. */
void replay_keys(uint64_t seed, const uint64_t *ids, uint32_t n, struct kvr_key *ret_keys);
/* The bytes that the block of this key holds at [offset, offset + bytes). */
void replay_fill(const struct kvr_key *key, uint64_t offset, uint64_t bytes, uint8_t *to);
/* How many of them differ; *ret_first is the offset of the first that does, if any. */
uint64_t replay_compare(const struct kvr_key *key, uint64_t offset, uint64_t bytes,
			const uint8_t *from, uint64_t *ret_first);

/* --- what came out: replay_figures.c -----------------------------------------------------------
 */

/* Log-linear: 32 buckets for each power of two, so a percentile is at most 3 % too high. */
#define REPLAY_BUCKETS 1920u
enum {
	REPLAY_LOOKUP,
	REPLAY_LAYER, /* until the first layer group is there; told by rank 0 */
	REPLAY_LOAD,
	REPLAY_STORE,
	REPLAY_REQUEST,
	REPLAY_LATENCIES
};

struct replay_latency {
	uint64_t count, max_ns;
	uint32_t bucket[REPLAY_BUCKETS];
};
void replay_latency_add(struct replay_latency *latency, uint64_t ns);
uint64_t replay_latency_at(const struct replay_latency *latency, double part);

/* Blocks of requests that were not aborted: how far those come differs from process to process. */
struct replay_blocks {
	uint64_t copied, loaded, hits_host, hits_nvme;
};

/* Of one process (in a run with --restart: of all that had this role). */
struct replay_proc {
	pid_t pid;
	int finished;		       /* reached the end of its phase in good order */
	uint64_t requests, references; /* references: of those not aborted */
	uint64_t aborted, resets;
	struct replay_blocks blocks;
	uint64_t wrong_bytes, unfinished;
	uint64_t ops, ops_failed, ops_cancelled; /* failed: also lost with the epoch */
	uint64_t store_bytes, store_ns, load_bytes, load_ns;
	uint64_t ticks;
	char wrong[256];     /* the first wrong byte, "" without one */
	char sentence[1536]; /* why it failed, "" if it did not */
};

/* What the leader counted beside that, sums over the phases. */
struct replay_counts {
	uint64_t possible; /* hits of the requests if all that was stored were there still */
	uint64_t stale;	   /* hits beyond that, of a cache that began empty: a fault */
	/* requests that something was prefetched for; blocks that came, and were there when their
	 * request was, or were not, or not needed; blocks that had not come by then */
	uint64_t prefetches, prefetched, prefetch_used, prefetch_wasted, prefetch_cancelled;
	uint64_t late, duplicate, foreign;     /* answers of ranks that were not applied */
	uint64_t quarantined, quarantine_most; /* slots, at the end and (after a request) at most */
};

#define REPLAY_SENTENCES 32
struct replay_area {
	/* written by the leader */
	uint64_t epochs[2];
	uint32_t phases, degraded;
	int interrupted, began_empty;
	uint64_t run_ns;	/* from the first request to the last tick, of all phases */
	uint64_t tick_base;	/* ticks of the phases before */
	struct kvr_stats stats; /* sums over the phases; recovered: of the last */
	struct replay_counts counts;
	char sentence[REPLAY_SENTENCES][512];
	struct replay_latency latency[REPLAY_LATENCIES];
	/* written by each process: [0] the leader, [1 + r] rank r */
	struct replay_proc proc[KVR_MAX_RANKS + 1];
	/* chained hash of the completions up to a tick, [process * tick_room + tick_base + tick] */
	uint64_t tick_room;
	uint64_t tick_hash[];
};

struct replay_job {
	struct replay_opts opts;
	struct replay_trace trace;
	struct replay_area *area;
	pid_t parent; /* of a leader that is not the first process: it stops without it */
};

/* Ticks at which all processes had the same completions; *ret_total of how many. */
uint64_t replay_ticks_equal(const struct replay_job *job, uint64_t *ret_total);
/* 1 when every rank counted the same blocks, operations, aborts and resets as the leader. */
int replay_counts_equal(const struct replay_job *job);
uint64_t replay_wrong_bytes(const struct replay_job *job);
/* Operations without exactly one end, in the process that has most of them. */
uint64_t replay_unfinished(const struct replay_job *job);
/* The exit status that the figures deserve. */
int replay_verdict(const struct replay_job *job);
uint64_t replay_now(void); /* CLOCK_MONOTONIC, ns */

/* --- the books: replay_book.c ------------------------------------------------------------------
 */

/*
 * Which operations began, and that each has exactly one end and its stages only rise. An operation
 * is named by its kind, the request's index + 1, and an attempt: from 1 on for each lookup, load or
 * store of the request; 0 is what is done for it before it comes, its prefetch and a reset.
 */
struct replay_book {
	struct replay_proc *proc; /* counts operations */
	uint32_t first, end;	  /* requests of this phase */
	uint8_t *attempts;	  /* kind and stage; requests one after another */
	size_t n, cap, *base;	  /* base: where a request begins */
	size_t oldest;		  /* the first that may be a store without an end */
	uint8_t *before;	  /* prefetch and reset, two for each request */
	uint64_t open, stray;	  /* stray: ends of nothing that is open */
};

/* 0, or -ENOMEM. */
int replay_book_open(struct replay_book *book, struct replay_proc *proc, uint32_t first,
		     uint32_t end);
void replay_book_close(struct replay_book *book);
/* A request begins; names its next lookup or operation. 0, or -ENOMEM. */
void replay_book_request(struct replay_book *book, uint32_t index);
int replay_book_attempt(struct replay_book *book, uint32_t index, struct kvr_request *ret_request);
/* Of a prefetch that is known already, nothing: a rank may learn of its end first. */
void replay_book_begun(struct replay_book *book, const struct kvr_request *request, uint32_t kind);
void replay_book_completed(struct replay_book *book, const struct kvr_completion *completion);
/* The oldest store without an end. 1, or 0: there is none. */
int replay_book_oldest_store(struct replay_book *book, struct kvr_request *ret_request);

/* --- hits that are possible: replay_oracle.c ---------------------------------------------------
 */

struct replay_oracle {
	uint64_t *seen; /* open addressing; 0: free */
	size_t n, size; /* size: a power of two, or 0 */
};

/* How many of the leading keys came before; the others have come now. Or -ENOMEM. */
int replay_oracle_request(struct replay_oracle *oracle, const struct kvr_key *keys, uint32_t n);
void replay_oracle_reset(struct replay_oracle *oracle); /* nothing came before */

/* --- one process: replay_run.c -----------------------------------------------------------------
 */

/* Where a request may be aborted, in the order in which it comes along. */
enum replay_point {
	REPLAY_NEVER,
	REPLAY_HIT,	/* looked up */
	REPLAY_LOADING, /* begun */
	REPLAY_LAYERS,	/* between two layer groups */
	REPLAY_LOADED,	/* compared, and the slots not given back */
	REPLAY_GIVEN_BACK,
	REPLAY_MISSES,	/* before a store */
	REPLAY_COPYING, /* half of the blocks */
	REPLAY_COPIED,	/* before they are in host memory */
	REPLAY_STORED,
	REPLAY_POINTS
};

/* What becomes of a request: the same on all, but for `lags`. */
struct replay_plan {
	enum replay_point abort;
	uint32_t layer; /* where `abort` is REPLAY_LAYERS: after this one */
	int lags;	/* a rank that goes on for one point more */
};

struct replay_ahead {
	struct replay_ahead_one *one; /* [window + 1], by index */
	uint32_t window, budget;      /* requests, blocks */
	uint32_t next;		      /* request to look at */
	uint32_t out;		      /* blocks for requests that have not come */
};

struct replay_run {
	const struct replay_job *job;
	struct replay_proc *proc;
	uint64_t *tick_hash; /* own, [tick] */
	struct kvr_connector *c;
	uint32_t rank;	     /* or REPLAY_LEADER */
	uint32_t first, end; /* requests of this phase */
	struct kvr_request request;
	struct replay_plan plan;
	struct replay_blocks now; /* of this request */
	struct kvr_key *keys;
	struct kvr_block *blocks;
	struct kvr_span *write, *read;
	uint32_t writes, reads, max_blocks;
	struct kvr_completion *completions;
	uint32_t room;
	uint64_t tick, chain;
	struct replay_book book;
	const char *own; /* why this program, not the library, gave up; or NULL */
	/* leader */
	struct replay_ahead ahead;
	struct replay_oracle oracle;
	struct kvr_inspect *inspect; /* of its own group; NULL: cannot be had */
	uint64_t began_ns;	     /* of the phase */
};

/* How often the leader was asked to stop. The first lets it finish the request, the second does
 * not. */
extern volatile sig_atomic_t replay_stop;
/* Calls again when a signal handler ran. */
#define REPLAY_RETRY(call)                                         \
	({                                                         \
		int retry_result;                                  \
		do                                                 \
			retry_result = (call);                     \
		while (retry_result == -EINTR && replay_stop < 2); \
		retry_result;                                      \
	})

/* After the connector is there: memory that this process needs. 0, or -ENOMEM. */
int replay_run_open(struct replay_run *run);
void replay_run_close(struct replay_run *run);
/* One request, as the leader or as a rank, with its tick. 0, or -errno of the library. */
int replay_run_request(struct replay_run *run, uint32_t index);
/* The weights change before this request. */
int replay_run_reset(struct replay_run *run, uint32_t index);
/* The next tick. */
int replay_run_tick(struct replay_run *run);
/* Leader: waits until a store that has no end yet is written. 1 when there was one. */
int replay_run_settle(struct replay_run *run);

/* Ends the run, against what only an operation had: a cache may lose. */
int replay_fatal(int err);
/* Names the next lookup or operation of the request. */
int replay_attempt(struct replay_run *run, uint32_t index);
uint64_t replay_deadline(void);
/* Is this process to abort its request here? */
int replay_due(const struct replay_run *run, enum replay_point point);
/* The begin of an operation failed with that error. Of a request that is aborted, others may have
 * ended it before this process began it: -ECANCELED. */
int replay_not_begun(struct replay_run *run, uint32_t kind, int err);
/* Leader: one more value. */
void replay_latency(const struct replay_run *run, uint32_t which, uint64_t began);

/* replay_load.c: looks up, loads and compares as much of run->keys[0..n) as is stored. 0; -errno;
 * -ECANCELED: the request is aborted here. */
int replay_load_prefix(struct replay_run *run, uint32_t index, uint32_t n, uint32_t *ret_pos);
/* replay_store.c: stores run->keys[pos..n), in parts. As above. */
int replay_store_rest(struct replay_run *run, uint32_t index, uint32_t pos, uint32_t n);

/* replay_ahead.c: a prefetch of at most that many blocks for a request that has not come. */
int replay_prefetch(struct replay_run *run, uint32_t index, uint32_t budget);
/* The rest is the leader's. Memory for it: 0, or -ENOMEM. */
int replay_ahead_open(struct replay_run *run);
void replay_ahead_close(struct replay_run *run);
/* This request comes next: ends its prefetch, and begins those for requests after it. */
int replay_ahead(struct replay_run *run, uint32_t index);
/* Its first lookup found this much; a prefetch ended; the request is over; what was stored counts
 * no more; no request comes any more. */
void replay_ahead_hit(struct replay_run *run, uint32_t index, const struct kvr_hit *hit);
void replay_ahead_completed(struct replay_run *run, const struct kvr_completion *completion);
void replay_ahead_over(struct replay_run *run, uint32_t index);
void replay_ahead_void(struct replay_run *run);
int replay_ahead_stop(struct replay_run *run);

/* A prefetch's value has its budget in the upper half. */
enum {
	REPLAY_CMD_REQUEST = KVR_TAG_USER,
	REPLAY_CMD_RESET,
	REPLAY_CMD_PREFETCH,
	REPLAY_CMD_TICK,
	REPLAY_CMD_END
};
/* Leader: tells the ranks what comes next. */
int replay_order(struct replay_run *run, uint32_t tag, uint64_t value);

/* --- processes: replay_lead.c, replay_rank.c ---------------------------------------------------
 */

/* Requests [first, end) with new processes; the caller is the leader and has no threads. Returns an
 * exit status. */
int replay_lead(const struct replay_job *job, uint32_t first, uint32_t end);
/* The life of a rank. It starts when a byte comes from `go`, and says on `ready` that it attached.
 * The end of `go` is the end of the leader. */
void replay_rank(const struct replay_job *job, uint32_t rank, uint32_t first, uint32_t end, int go,
		 int ready) __attribute__((noreturn));

/* --- words for people: replay_report.c ----------------------------------------------------------
 */

/* "kv-replay: ..." on stderr, in one write, so that lines of several processes do not mix. */
void replay_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Keeps and prints why a process failed. */
void replay_fail(struct replay_run *run, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* The library's sentence about `err`, or this program's own. */
const char *replay_why(const struct replay_run *run, int err);
/* Leader, on a terminal: the line that shows how far it is; and takes it away. */
void replay_progress(const struct replay_run *run);
void replay_progress_clear(void);
void replay_progress_open(void *arg, const char *what, uint64_t done, uint64_t total);
/* The end report on stdout, text or JSON. 0, or -1 when stdout could not be written. */
int replay_report(const struct replay_job *job, int status);

#endif
