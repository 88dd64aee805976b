/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ring-dump knows about one group, read once and then printed as text or JSON, so that both
 * say the same thing about the same moment.
 */
#ifndef DUMP_H
#define DUMP_H

#include <stdint.h>
#include <stdio.h>

#include "kvring/inspect.h"

#define DUMP_LEADER UINT32_MAX
#define DUMP_EVENTS_MAX 100000u
#define DUMP_MESSAGES_MAX 10000u

enum { DUMP_OK = 0, DUMP_DEAD = 2, DUMP_UNREADABLE = 3, DUMP_USAGE = 64 };

/* One publish, as it lies in the rings of the ranks. */
struct dump_message {
	struct kvr_inspect_message m; /* as in the first of these rings */
	uint64_t ranks;		      /* in whose ring it still is */
	uint64_t taken;		      /* who took it */
	int whole;		      /* 0: above the watermark, so nobody may act on it */
};

struct dump_event {
	uint64_t ns;
	uint32_t who; /* rank, or DUMP_LEADER */
	char line[232];
};

struct dump {
	char path[384];
	uint64_t now_ns;
	struct kvr_inspect_group group;
	struct kvr_inspect_proc leader;
	struct kvr_inspect_proc rank[KVR_MAX_RANKS];
	struct kvr_inspect_channel channel[KVR_CHANNELS][KVR_MAX_RANKS];
	struct kvr_inspect_op *ops;
	uint32_t op_count;
	struct dump_message *messages; /* by channel, then number */
	uint32_t message_count;
	struct dump_event *events; /* by time */
	uint32_t event_count;
	char verdict[512];
	int status; /* DUMP_OK or DUMP_DEAD */
};

/* 0 or -errno with kvr_explain(). messages: so many a channel; events: so many in all. */
int dump_read(struct kvr_inspect *inspect, const char *path, uint32_t messages, uint32_t events,
	      struct dump *ret);
void dump_free(struct dump *d);

void dump_text(const struct dump *d, FILE *out);
void dump_json(const struct dump *d, FILE *out);

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

/* alive, stalled and so on, in a word. */
const char *dump_alive(const struct kvr_inspect_proc *p);
/* "3.2 ms", "-" for 0 or when the machine restarted since. */
const char *dump_age(const struct dump *d, uint64_t ns, char buf[32]);
/* "STORE_BEGIN", or "300" for a tag of the caller's. */
const char *dump_tag(uint32_t tag, char buf[32]);

#endif
