/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the processes of a round of the whole protocol share, and how they do it.
 *
 *   flow    one request's life: lookups, a load, a store in parts; or a prefetch, a decision, a
 *           reset, a flipped byte. All processes derive the same flows from the round's seed.
 *   begin   a message of a flow: the leader's k-th publish is what each rank takes as its k-th.
 *   side    the leader, or a rank. A process has one; a leader that holds a shard has two.
 *   run     a flow in the hands of a side: a state, which a step moves on or leaves.
 *
 * A side runs a window of flows at once, in an order of its own, and never waits for long: what is
 * not there yet is tried again. So no order can lock up, and a flow that does not move is a fault.
 * Each side writes what it was told, and what it did that matters, into its log; after the round
 * the test compares the logs and judges the ends (stress_connector_judge.c).
 */
#ifndef TESTS_STRESS_CONNECTOR_WORLD_H
#define TESTS_STRESS_CONNECTOR_WORLD_H

#include "cluster.h"
#include "connector_work.h"

#include "layout.h"

#define W_RANKS 16u
#define W_LEAD W_RANKS /* index of the leader's side */
#define W_SIDES (W_RANKS + 1)
#define W_FLOWS 4096u
#define W_BEGINS 32u /* of one flow */
#define W_LEN 24u    /* keys of one flow */
#define W_WINDOW 64u
#define W_DONE 65536u
#define W_TICKS 65536u
#define W_SHARED_KEYS 512u
#define NOBODY (UINT32_MAX - 1)

#define SLOW (KVR_TEST_TSAN ? 10u : KVR_TEST_ASAN ? 3u : 1u)
#define PATIENCE_MS (20000ull * SLOW)

enum flow_kind { FLOW_REQUEST, FLOW_PREFETCH, FLOW_DECISION, FLOW_RESET, FLOW_FLIP, FLOW_KINDS };
enum load_kind { LOAD_NONE, LOAD_WHOLE, LOAD_LAYERS };
enum again { AGAIN_NOT, AGAIN_RETRY, AGAIN_SAME_NAME };
enum reset_how {
	RESET_CLEAN,
	RESET_BUSY,	  /* a rank still has blocks: nothing is reset */
	RESET_QUARANTINE, /* and then gives them back */
	RESET_LATE,	  /* a rank does not come until the deadline */
	RESET_ABORTED,
	RESET_UNTAKEN, /* a rank did not take an answer */
	RESET_PREFETCH,
	RESET_MEANWHILE, /* other calls while it is under way */
	RESET_HOWS
};

struct flow {
	enum flow_kind kind;
	struct kvr_request req;
	int barrier; /* nothing else runs at the same time */
	/* keys: [0, branch) of one family, the rest of another; or of no other flow's */
	uint64_t family, other;
	uint32_t branch, n, own;
	uint32_t lookups, load_n, store_n, part;
	enum load_kind load;
	uint32_t refuse; /* enum kvr_kind of the call that the leader refuses, or NOBODY */
	int refuse_status;
	uint32_t fails;	     /* the rank whose copy fails, or NOBODY */
	uint32_t lead_fails; /* 1: the launch fails in the leader after the begin */
	uint32_t gives_up;   /* the rank that does not wait for its load, or NOBODY */
	uint32_t late;	     /* the rank that votes too late, or NOBODY; */
	uint32_t early;	     /* and the one that does not wait so long */
	uint32_t differs;    /* the rank that loads whole what is loaded by layers, or NOBODY */
	uint32_t wait;	     /* stage of a store to wait for, or 0 */
	uint32_t twice;	     /* a begin is repeated while the operation is in flight */
	uint32_t aborts;     /* 0 not; 1 each side when it likes; 2 ranks after the leader */
	uint32_t abort_step; /* the leader's */
	enum again again;
	uint32_t budget, cancels; /* of a prefetch */
	uint32_t contested, votes_ms, len;
	enum reset_how reset;
	uint32_t someone; /* a rank: who has blocks, who flips */
	uint64_t dice;	  /* for what else all must know */
};

/* What the leader and the ranks tell each other beside the library: no more than when to try. */
struct flow_word {
	uint32_t published; /* messages */
	uint32_t attempts;  /* names that the leader used: attempts [0, that) */
	uint32_t over;	    /* passes in which the leader publishes nothing more, */
	uint32_t base[2];   /* and how many messages and names there were then */
	uint32_t base_attempts[2];
	uint32_t mark[4]; /* sides that came to a place, one bit each */
};

/* What a side was told about the k-th begin of a flow, and what it did to it. */
struct seen {
	uint8_t asked;	/* 1: the call returned */
	uint8_t kind;	/* enum kvr_kind */
	uint8_t pass;	/* of the flow */
	uint8_t failed; /* this side said that its part failed, with `said` */
	uint8_t spoke;	/* this side's part was said to be good */
	uint8_t gave_up;
	uint8_t waited; /* 1: `told` is what a wait returned */
	uint8_t joined; /* some of the keys were known: their fate is another store's */
	uint8_t exists; /* the call began an operation */
	uint8_t over;	/* leader: its end was told */
	uint8_t cut;	/* leader: it called abort, or cancel, for it */
	uint8_t speaks; /* this side is about to say that its part is good, or not */
	uint8_t surely; /* leader: it failed it while it was under way */
	uint16_t attempt;
	int32_t value; /* what the call returned */
	uint32_t more; /* what else it told, as a sum */
	int32_t said;
	int32_t told;
};

struct told {
	struct kvr_completion c;
	uint32_t flow, begin; /* leader: which operation; flow NOBODY: it began none of that name */
};

struct tick_log {
	uint64_t tick;
	uint32_t count;
};

struct side_log {
	struct seen seen[W_FLOWS][W_BEGINS];
	uint8_t aborted[W_FLOWS];      /* this side aborted: bit p of pass p */
	uint16_t abort_ended[W_FLOWS]; /* leader: operations that its aborts ended */
	struct told told[W_DONE];
	struct tick_log tick[W_TICKS];
	uint32_t dones, ticks;
	uint32_t done; /* flows that are over here, without a gap */
	uint32_t steps;
	const char *doing, *state; /* literals: all processes are forks of one */
	uint32_t flow;
	struct {
		uint32_t flow;
		uint16_t begins, attempt;
		uint8_t state, pass, sub, aborts;
	} run[W_WINDOW];		 /* for the report of a hang */
	uint32_t at[KVR_KIND_RESET + 1]; /* begins of each kind that it had */
	uint64_t interrupts, wrong, early, timeouts, longest_ns, longest_flow_ns;
	uint64_t quarantine, polls;
	struct kvr_drift drift;
	uint32_t aborts[32]; /* by state */
	uint32_t late, duplicate, foreign;
	const char *longest;
	int finished;
};

struct order {
	uint32_t count;
	uint32_t place[W_FLOWS * 4]; /* flow << 8 | begin */
};

struct shared {
	uint32_t failed; /* somebody said why it gave up: what the others say is a consequence */
	uint64_t last_tick;
	struct flow_word flow[W_FLOWS];
	uint64_t id[W_FLOWS];	       /* of their requests */
	uint32_t taint[W_SHARED_KEYS]; /* generation + 1 in which its bytes were damaged */
	struct order order[KVR_KIND_RESET + 1];
	struct side_log log[W_SIDES];
};

/*
 * What the library is known to do wrong, and this test does not do, or does not mind. A bit that is
 * not set in KVR_TEST_KNOWN (a number) is minded.
 */
enum known {
	/* a leader that is a rank, too, waits for room in its own rings until the votes' deadline
	 */
	KNOWN_JOINT_SMALL_RING = 1,
	/* load_begin_layers that a signal interrupts just when the load ends: the call that goes on
	 * waits for another load */
	KNOWN_AGREE_AGAIN = 2,
	KNOWN_ALL = 3
};

/* What all know of a round. */
struct world {
	struct cluster *cl;
	struct shared *shared;
	uint64_t seed;
	uint32_t ranks, flows, window;
	uint32_t writers, groups; /* ranks that write: the first ones; layer groups */
	uint32_t spaces, families, length;
	uint32_t max_parts, max_lookups;
	uint32_t mix[FLOW_KINDS]; /* out of 256 */
	int joint;		  /* the leader holds rank 0's shard */
	int alike;		  /* all make all calls in the same order */
	int keeps;		  /* the store has room for all keys, and no byte is flipped */
	int aborts, flips, calm;
	int control;	/* decisions or resets */
	int layers;	/* loads by layers */
	int tight;	/* the pool has no room for all at once */
	int lazy;	/* processes sleep now and then */
	uint32_t known; /* faults of the library that are worked around */
};

enum state {
	S_LOOKUP,
	S_LOAD_BEGIN,
	S_LAYER,
	S_LOAD_WAIT,
	S_LOAD_HOLD,
	S_LOAD_DONE,
	S_STORE_BEGIN,
	S_STORE_TWICE,
	S_STORE_HOLD,
	S_STORE_COPIED,
	S_STORE_WAIT,
	S_RELEASE,
	S_PREFETCH,
	S_PREFETCH_LOOK,
	S_PROPOSE,
	S_VOTE,
	S_DECIDED,
	S_OUTCOME,
	S_RESET,
	S_RESET_WAIT,
	S_RESET_AFTER,
	S_FLIP,
	S_ENDS,
	S_PASS,
	S_OVER,
	S_STATES
};
extern const char *const state_name[S_STATES];

struct run {
	struct flow flow;
	uint32_t f;
	enum state state;
	uint32_t at, sub; /* counters of the state */
	uint32_t taken;	  /* begins that this side had */
	uint32_t attempt; /* the next free one */
	uint32_t pass, steps, abort_step, tries, hold;
	uint64_t since, began;
	uint32_t hit, begun, group, covered;
	int count, told;
	int expect; /* 1 + the block in which a byte was flipped */
	uint32_t load_attempt, load_k, store_k;
	struct kvr_request req, load; /* the last one begun */
	struct kvr_key keys[W_LEN];
	struct kvr_block blocks[W_LEN];
	struct kvr_block stored[W_LEN];
};

/* How often an operation of a name was begun and ended here; and, in the leader, for whom. */
struct name {
	struct kvr_request req;
	uint32_t kind, used;
	uint32_t begun, ended;
	uint32_t flow[4], begin[4];
};
#define W_NAMES 65536u

struct side {
	const struct world *w;
	struct side_log *log;
	struct kvr_connector *c;
	uint32_t rank, index;
	int lead, shares; /* its process has two sides */
	uint64_t mine;
	struct run run[W_WINDOW];
	uint32_t admitted, wall; /* flows begun here; the last barrier + 1 */
	uint64_t tick;
	int open;	   /* leader: its tick was begun and not ended */
	struct run *stuck; /* leader: where all calls are alike, the one that comes first */
	uint32_t generation;
	uint32_t kept[W_SHARED_KEYS]; /* leader: generation + 1 in which it was told to be stored */
	struct name names[W_NAMES];
};

/* --- stress_connector_plan.c --- */
/* Which names the flows have: before anything else. */
void plan_ids(const struct world *w);
void plan_flow(const struct world *w, uint32_t f, struct flow *ret);
void plan_second(struct flow *t);
void plan_keys(const struct flow *t, struct kvr_key *ret);
/* The number of a key that many flows share, or W_SHARED_KEYS. */
uint32_t plan_number(const struct world *w, const struct flow *t, uint32_t i);
/* What the bytes of that key are made of, in that generation. */
struct kvr_key plan_content(const struct flow *t, uint32_t i, uint32_t generation);
int plan_vote(const struct world *w, const struct flow *t, uint32_t pass, uint32_t rank);
int plan_outcome(const struct world *w, const struct flow *t, uint32_t pass, uint32_t rank);
uint32_t plan_manifest(const struct flow *t, uint32_t pass, uint8_t *ret);

/* --- stress_connector_side.c --- */
void side_main(const struct world *w, uint32_t index) __attribute__((noreturn));
void side_bad(struct side *s, const char *what, const char *where, long long value)
	__attribute__((noreturn));
int side_result(struct side *s, const char *call, const char *where, int result, uint64_t since);
uint64_t side_soon(struct side *s);
/* Leader: room is missing; rank: it is not there yet. */
void side_idle(struct side *s);
void side_ticks(struct side *s);
struct name *side_name(struct side *s, const struct kvr_request *req, uint32_t kind);
/* Leader: every operation of the flow was told to have ended. */
int side_told(struct side *s, uint32_t f);

/* --- stress_connector_calls.c: the calls, with what all sides do about them --- */
struct seen *seen_of(struct side *s, struct run *x, uint32_t k);
/* Rank: may it ask for the next begin? */
enum may { MAY_NOT_YET, MAY, MAY_EARLY, MAY_NEVER };
enum may may_take(struct side *s, struct run *x, uint32_t kind);
/* There was no room for the message, or it is not there yet. Returns 0. */
int not_yet(struct side *s, struct run *x);
/* The begin is there: -ETIMEDOUT is none. Returns its entry. */
struct seen *began(struct side *s, struct run *x, uint32_t kind, const struct kvr_request *req,
		   int value, uint32_t more);
void go(struct side *s, struct run *x, enum state state);
/* Leader: no message of this pass follows. */
void no_more(struct side *s, struct run *x);
void abort_flow(struct side *s, struct run *x);
uint64_t wrong_in(struct side *s, const struct run *x, uint32_t i, const struct kvr_block *b,
		  uint32_t groups);
void mark(struct side *s, struct run *x, uint32_t which);
uint32_t marks(struct side *s, struct run *x, uint32_t which);
uint32_t all_ranks(const struct side *s);

/* --- steps: 1: the run moved on --- */
int step_lookup(struct side *s, struct run *x);
int step_load_begin(struct side *s, struct run *x);
int step_layer(struct side *s, struct run *x);
int step_load_wait(struct side *s, struct run *x);
int step_load_hold(struct side *s, struct run *x);
int step_load_done(struct side *s, struct run *x);
int step_store_begin(struct side *s, struct run *x);
int step_store_twice(struct side *s, struct run *x);
int step_store_hold(struct side *s, struct run *x);
int step_store_copied(struct side *s, struct run *x);
int step_store_wait(struct side *s, struct run *x);
int step_release(struct side *s, struct run *x);
int step_prefetch(struct side *s, struct run *x);
int step_prefetch_look(struct side *s, struct run *x);
int step_propose(struct side *s, struct run *x);
int step_vote(struct side *s, struct run *x);
int step_decided(struct side *s, struct run *x);
int step_outcome(struct side *s, struct run *x);
int step_reset(struct side *s, struct run *x);
int step_reset_wait(struct side *s, struct run *x);
int step_reset_after(struct side *s, struct run *x);
int step_flip(struct side *s, struct run *x);

/* --- stress_connector_round.c, _judge.c --- */
void whole_rounds(uint64_t seed, uint64_t rounds);
struct tally {
	uint64_t rounds, flows, begun[KVR_KIND_RESET + 1];
	uint64_t ended[KVR_KIND_RESET + 1][KVR_STAGES];
	uint64_t refused, again, retries, same_name, aborts[32], rank_aborts;
	uint64_t quarantined, resets, resets_refused, committed, rejected, interrupts, timeouts;
	uint64_t early, flips_found, completions, late, duplicate, alike, joint;
	uint64_t longest_ns, longest_flow_ns;
	const char *longest;
};
extern struct tally tally;
/* NULL, or what did not hold. */
const char *judge_round(const struct world *w);

static inline uint32_t mine(struct side *s, uint32_t n)
{
	return (uint32_t)((work_rng(&s->mine) >> 16) % n);
}

#define W_TEXT(x) #x
#define W_LINE(x) W_TEXT(x)
#define W_HERE __FILE__ ":" W_LINE(__LINE__)

/* Calls again after a signal, with the same arguments: what is drawn is drawn once, as `until`. */
#define CALL(s, deadline, call)                                \
	({                                                     \
		uint64_t until = (deadline);                   \
		uint64_t call_t = test_now_ns();               \
		int call_r;                                    \
                                                               \
		(void)until;                                   \
		(s)->log->doing = #call;                       \
		while ((call_r = (call)) == -EINTR)            \
			(s)->log->interrupts++;                \
		side_result(s, #call, W_HERE, call_r, call_t); \
	})

#define CHECK(s, cond, value)                                                        \
	do {                                                                         \
		if (!(cond))                                                         \
			side_bad(s, "not true: " #cond, W_HERE, (long long)(value)); \
	} while (0)

#endif
