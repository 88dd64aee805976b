/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that every process of a group must make alike: lookups, stores, loads, prefetches,
 * decisions, resets. Each process keeps a log of its own: a count, and for the last `window` calls
 * of each kind what was asked and a hash of everything up to there. Whoever compares two logs finds
 * the first call that differs; how far two processes are apart is no difference. Polls are in no
 * log. Layout in layout.h (struct kvr_alike_log).
 *
 *   D1 writer: store-release of log->count       D2 reader: load-acquire of log->count
 *      without it: the reader takes a record that is not written yet
 *   D5 writer: store-release of each word        D6 reader: load-acquire of each word
 *      of a record                                  of a record
 *      without it: a word of the record that overwrites this one is seen, but not the count that
 *      the writer had stored before
 *   D3 a rank: store-release of drift.kind       D4 reader: load-acquire of drift.kind
 *      without it: evidence that is not written yet
 *
 * A reader looks at the count before it copies a record (is it whole?) and after (may the writer
 * have been inside its slot meanwhile?). So of a full log window - 1 records can be read.
 */
#ifndef KVR_ALIKE_H
#define KVR_ALIKE_H

#include "layout.h"

#define KVR_ALIKE_OPEN 64u /* as many messages as a channel keeps for later calls */

/* A process's own logs. One thread at a time. */
struct kvr_alike_logs {
	uint8_t *logs;	     /* own, writable */
	const uint8_t *base; /* the leader's, to compare with; NULL: this is the leader */
	struct kvr_drift *drift;
	const struct kvr_layout *layout;
	int drifted; /* a difference was found and kept */
	struct {
		uint64_t count, chain;
		uint64_t same; /* so many calls are known to be the leader's, too */
		/* Called, and not answered yet; the last one asked for is the last one here. */
		struct kvr_request open[KVR_ALIKE_OPEN];
		uint32_t opens;
		int in_hand; /* it was asked for, and nothing is known of an answer */
	} kind[KVR_ALIKES];
};

/* leader, drift: NULL in the leader. The logs and the drift are zeroed memory, aligned to 8. */
void kvr_alike_init(struct kvr_alike_logs *a, const struct kvr_layout *layout, void *logs,
		    const void *leader, struct kvr_drift *drift);
/*
 * This process makes that call; `keys` and `last` (the last of the keys, which stands for all
 * before it; NULL: none) are what else must be equal. Nothing when it only goes on with a call that
 * had no answer yet, also when it made others meanwhile: the answer to the first is still to come.
 * So many open calls are remembered; of more, the one not asked for the longest counts again.
 *
 * A rank then compares its calls of that kind, as far as both made them, with the leader's, and
 * keeps the first difference in its page.
 */
void kvr_alike_call(struct kvr_alike_logs *a, enum kvr_alike kind,
		    const struct kvr_request *request, uint32_t keys, const struct kvr_key *last);
/* The call in hand has its answer, whatever that is. Hence the leader made its own by now: a rank
 * compares again. */
void kvr_alike_answered(struct kvr_alike_logs *a, enum kvr_alike kind);
/* That call is given up: calling for that request again is another call. 1: there was one. */
int kvr_alike_closed(struct kvr_alike_logs *a, enum kvr_alike kind,
		     const struct kvr_request *request);
/* A rank compares all kinds again, such as after a wait in vain. 1: it drifted, now or before, and
 * *ret_drift is how. 0 in the leader. */
int kvr_alike_check(struct kvr_alike_logs *a, struct kvr_drift *ret_drift);

/* Copies the evidence from a rank's page. 1: there is some. */
int kvr_alike_drift(const struct kvr_drift *drift, struct kvr_drift *ret_drift);
/* Calls in a log. */
uint64_t kvr_alike_count(const void *log);
/* Copies the record of that index from a log (another's, mapped read-only, or a copy; see below).
 * 0: it is not, or no longer, there. */
int kvr_alike_read(const void *log, uint32_t window, uint64_t index,
		   struct kvr_alike_call *ret_call);
/*
 * Makes a copy of a log readable that was taken beside a running writer: its count first, then the
 * records, then the count again, which is `later`. What the writer may have touched meanwhile is
 * left out.
 */
void kvr_alike_copied(void *copy, uint32_t window, uint64_t later);

/* The first difference between two logs of a kind. */
struct kvr_alike_difference {
	uint64_t index; /* of the call */
	int exact;	/* 0: they may have differed before that, unseen */
	struct kvr_alike_call mine, its;
};
/* 1: they differ; 0: one is a beginning of the other, as far as can be seen. */
int kvr_alike_compare(const void *mine, const void *its, uint32_t window,
		      struct kvr_alike_difference *ret);

#endif
