/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ring-dump knows about one group, read once and then printed in whatever form, so that all
 * say the same thing about the same moment.
 */
#ifndef DUMP_H
#define DUMP_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kvring/inspect.h"

#define DUMP_LEADER UINT32_MAX
#define DUMP_LEADER_AT KVR_MAX_RANKS /* in arrays of all processes: behind the ranks */
#define DUMP_EVENTS_MAX 100000u
#define DUMP_MESSAGES_MAX 10000u
#define DUMP_MEETS_MAX ((KVR_MAX_RANKS + 1) * 8)
#define DUMP_CALLS_MAX 1000u

/* Exit statuses; those of a verdict are also what --check reports. */
enum {
	DUMP_FINE,
	DUMP_TROUBLE, /* drift, or a stall */
	DUMP_OVER,    /* somebody died, the epoch failed, or it is stale */
	DUMP_UNREADABLE,
	DUMP_USAGE = 64
};

/* What is shown; nothing of it changes the verdict. */
enum {
	DUMP_RANKS = 1,
	DUMP_CHANNELS = 2,
	DUMP_OPERATIONS = 4,
	DUMP_QUARANTINE = 8,
	DUMP_MEETINGS = 16,
	DUMP_LOGS = 32,
	DUMP_MESSAGES = 64,
	DUMP_EVENTS = 128,
	DUMP_ALL = 255
};

/* -1 or 0: everything. */
struct dump_filter {
	int64_t channel, tag, rank; /* rank: DUMP_LEADER, too */
	int by_request;
	uint64_t request;
	int64_t attempt;
};
#define DUMP_EVERYTHING \
	((struct dump_filter){ .channel = -1, .tag = -1, .rank = -1, .attempt = -1 })

struct dump_want {
	uint32_t views;
	uint32_t messages; /* of each channel, */
	uint32_t events;   /* of all processes, */
	uint32_t calls;	   /* and of each log: the last so many that the filter lets through */
	struct dump_filter filter;
	uint64_t stall_ns; /* what takes longer is no longer on its way */
};

/* One publish, as it lies in the rings of the ranks. */
struct dump_message {
	struct kvr_inspect_message m; /* as in the first of these rings */
	uint64_t ranks;		      /* in whose ring it still is */
	uint64_t taken;		      /* who took it */
	int whole;		      /* 0: above the watermark, so nobody may act on it */
};

struct dump_calls {
	uint32_t rank, kind;
	struct kvr_inspect_call call;
};

struct dump {
	char path[384];
	uint64_t stall_ns;
	uint32_t views;
	struct dump_filter filter;
	struct kvr_inspect_group group;
	struct kvr_inspect_proc leader;
	struct kvr_inspect_proc rank[KVR_MAX_RANKS];
	struct kvr_inspect_channel channel[KVR_CHANNELS][KVR_MAX_RANKS];
	struct kvr_inspect_log log[KVR_MAX_RANKS + 1][KVR_ALIKE_KINDS];
	struct kvr_inspect_drift drift[KVR_MAX_RANKS][KVR_ALIKE_KINDS];
	uint8_t drifted[KVR_MAX_RANKS]; /* bit k: in calls of kind k */
	struct kvr_inspect_meet meets[DUMP_MEETS_MAX];
	uint32_t meet_count;
	struct kvr_inspect_op *ops; /* those that ended and hold slots, too */
	uint32_t op_count;
	struct dump_message *messages; /* by channel, then number */
	uint32_t message_count;
	struct kvr_inspect_event *events; /* by time */
	uint32_t event_count;
	struct dump_calls *calls;
	uint32_t call_count;
	uint64_t tick_ns;	  /* when the leader finished its last tick; 0 unknown */
	uint64_t oldest_event_ns; /* of the leader's that can be read */
	char verdict[1024];
	int status; /* DUMP_FINE, _TROUBLE, _OVER */
};

/* 0 or -errno with kvr_explain(). */
int dump_read(struct kvr_inspect *inspect, const char *path, const struct dump_want *want,
	      struct dump *ret);
void dump_free(struct dump *d);
/* Sets d->verdict and d->status. */
void dump_judge(struct dump *d);

int dump_filter_request(const struct dump_filter *f, const struct kvr_request *r);
int dump_filter_rank(const struct dump_filter *f, uint32_t rank);
int dump_filter_channel(const struct dump_filter *f, uint32_t channel);
/* But for its rank: who reads a recorder knows whose it is. */
int dump_filter_event(const struct dump_filter *f, const struct kvr_inspect_event *e);
/* Of events, for qsort. */
int dump_by_time(const void *a, const void *b);

void dump_text(const struct dump *d, FILE *out);
void dump_json(const struct dump *d, FILE *out);
void dump_event_json(const struct dump *d, const struct kvr_inspect_event *e, FILE *out);
/* Each name once, then the values of all groups. unreadable: files of others. */
void dump_prom(const struct dump *const *all, uint32_t n, uint32_t unreadable, FILE *out);

/* The list of groups. broken: why a file cannot be read, NULL if it can. */
void dump_list_text(const struct dump *d, const char *path, const char *broken, int first,
		    FILE *out);
void dump_list_json(const struct dump *d, const char *path, const char *broken, int first,
		    FILE *out);

/* Messages that a rank has not taken; both counts are read at slightly different moments. */
static inline uint64_t dump_lag(const struct kvr_inspect_channel *c)
{
	return c->published > c->taken ? c->published - c->taken : 0;
}
/* It ended, and holds slots that a rank may still copy. */
static inline int dump_quarantined(const struct kvr_inspect_op *o)
{
	return o->stage >= KVR_STAGE_END;
}
/* Ranks that have not answered; of a group of 64 that is what the mask can hold. */
static inline uint64_t dump_unanswered(const struct kvr_inspect_op *o)
{
	return o->need & ~o->acked;
}
static inline const struct kvr_inspect_proc *dump_proc(const struct dump *d, uint32_t rank)
{
	return rank < KVR_MAX_RANKS ? &d->rank[rank] : &d->leader;
}
/* Time since then, 0 for the future; UINT64_MAX when it cannot be told. */
uint64_t dump_since(const struct dump *d, uint64_t ns);
/* In a long phase that it declared, and that is not over. */
int dump_in_phase(const struct dump *d, const struct kvr_inspect_proc *p);

/* alive, stopped and so on, in a word. */
const char *dump_alive(const struct kvr_inspect_proc *p);
/* "3.2 ms", "-" for 0 or when the machine restarted since. */
const char *dump_age(const struct dump *d, uint64_t ns, char buf[32]);
/* The same of a duration. */
const char *dump_span(uint64_t ns, char buf[32]);
/* "STORE_BEGIN", or "300" for a tag of the caller's. */
const char *dump_tag(uint32_t tag, char buf[32]);
/* "leader", "3". */
const char *dump_who(uint32_t rank, char buf[16]);
/* A set of ranks as "0-3,7", "none". */
#define DUMP_SET_MAX 200
const char *dump_set(uint64_t ranks, char buf[DUMP_SET_MAX]);
/* "17/0". */
const char *dump_request(const struct kvr_request *r, char buf[40]);

/* A text of fixed size that grows; what does not fit is cut. */
struct dump_line {
	char *text;
	size_t size, used;
};
void dump_say(struct dump_line *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
