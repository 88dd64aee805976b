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
 */
#ifndef KVR_ALIKE_H
#define KVR_ALIKE_H

#include "layout.h"

/* A process's own logs. One thread at a time. */
struct kvr_alike {
	uint8_t *logs;	     /* own, writable */
	const uint8_t *base; /* the leader's, to compare with; NULL: this is the leader */
	struct kvr_drift *drift;
	const struct kvr_layout *layout;
	struct {
		uint64_t count, chain;
		struct kvr_request open; /* called, and not answered yet: */
		int is_open;		 /* calling again for it is the same call */
	} kind[KVR_ALIKES];
};

/* leader, drift: NULL in the leader. The logs are zeroed memory. */
void kvr_alike_init(struct kvr_alike *a, const struct kvr_layout *layout, void *logs,
		    const void *leader, struct kvr_drift *drift);
/*
 * This process makes that call; `keys` and `last` (the last of the keys, which stands for all
 * before it; NULL: none) are what else must be equal. Nothing when it only goes on with a call that
 * had no answer yet. A rank then compares with the leader's record of the same index, if it is
 * there, and keeps the first difference in its page.
 */
void kvr_alike_call(struct kvr_alike *a, enum kvr_alike kind, const struct kvr_request *request,
		    uint32_t keys, const struct kvr_key *last);
/* The call in hand has its answer, whatever that is. */
void kvr_alike_answered(struct kvr_alike *a, enum kvr_alike kind);

/* Copies the record of that index from a log (another's, mapped read-only, or a copy of its bytes).
 * 0: it is not, or no longer, there. */
int kvr_alike_read(const void *log, uint32_t window, uint64_t index,
		   struct kvr_alike_call *ret_call);
/* Calls in a log. */
uint64_t kvr_alike_count(const void *log);

/* The first difference between two logs of a kind. */
struct kvr_alike_difference {
	uint64_t index;			 /* of the call */
	int exact;			 /* 0: they differed before that, too */
	struct kvr_alike_call mine, its; /* chain 0: that process did not make it yet */
};
/* 1: they differ; 0: one is a beginning of the other, as far as can be seen. */
int kvr_alike_compare(const void *mine, const void *its, uint32_t window,
		      struct kvr_alike_difference *ret);

#endif
