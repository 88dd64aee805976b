/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chain covers all calls before it. So where two chains are equal, all calls before were; one
 * look at the newest call that both made is enough as long as there is no difference, and the first
 * one is found by halving.
 *
 * Another's log is input. What is written there decides which records are looked at, but each look
 * is bounded, and so is their number: by the bits of a count.
 */
#include "alike.h"

#include <string.h>

#include "atomic.h"
#include "clock.h"
#include "hash.h"
#include "util.h"

#define CALL_WORDS (sizeof(struct kvr_alike_call) / sizeof(uint64_t))
#define KEY_WORDS (sizeof(struct kvr_key) / sizeof(uint64_t))

void kvr_alike_init(struct kvr_alike_logs *a, const struct kvr_layout *layout, void *logs,
		    const void *leader, struct kvr_drift *drift)
{
	*a = (struct kvr_alike_logs){
		.logs = logs, .base = leader, .drift = drift, .layout = layout
	};
}

/* --- reading -------------------------------------------------------------------------------- */

uint64_t kvr_alike_count(const void *log)
{
	const struct kvr_alike_log *l = log;

	return kvr_load_acquire(&l->count); /* D2, pairs with D1 */
}

int kvr_alike_read(const void *log, uint32_t window, uint64_t index,
		   struct kvr_alike_call *ret_call)
{
	const struct kvr_alike_log *l = log;
	const uint64_t *slot;
	uint64_t word;
	size_t i;

	/* Looked at first: half of a record that is just being written must not pass. */
	if (!kvr_is_pow2(window) || index >= kvr_alike_count(log))
		return 0;
	slot = (const uint64_t *)(const void *)&l->call[index & (window - 1)];
	for (i = 0; i < CALL_WORDS; i++) {
		word = kvr_load_acquire(&slot[i]); /* D6, pairs with D5 */
		memcpy((uint8_t *)ret_call + i * sizeof(word), &word, sizeof(word));
	}
	/* While the count is n the writer may be inside the slot of n, which is that of n - window.
	 */
	return ret_call->index == index && ret_call->chain && kvr_alike_count(log) - index < window;
}

void kvr_alike_copied(void *copy, uint32_t window, uint64_t later)
{
	struct kvr_alike_log *log = copy;

	if (!kvr_is_pow2(window))
		return;
	for (uint32_t i = 0; i < window; i++)
		if (later - log->call[i].index >= window)
			log->call[i].chain = 0; /* no record has that */
}

/* --- comparing ------------------------------------------------------------------------------ */

enum look { UNSEEN, EQUAL, DIFFERENT };

static enum look look_at(const void *mine, const void *its, uint32_t window, uint64_t index,
			 struct kvr_alike_difference *ret)
{
	struct kvr_alike_difference d = { .index = index };

	if (!kvr_alike_read(mine, window, index, &d.mine) ||
	    !kvr_alike_read(its, window, index, &d.its))
		return UNSEEN;
	if (d.mine.chain == d.its.chain)
		return EQUAL;
	*ret = d;
	return DIFFERENT;
}

/* The first difference from call *same on, up to which they are known to be equal; or moves *same.
 */
static int compare(const void *mine, const void *its, uint32_t window, uint64_t *same,
		   struct kvr_alike_difference *ret)
{
	uint64_t low = *same, high = kvr_min(kvr_alike_count(mine), kvr_alike_count(its));
	enum look seen = high > *same ? look_at(mine, its, window, high - 1, ret) : UNSEEN;

	if (seen == EQUAL)
		*same = high;
	if (seen != DIFFERENT)
		return 0;
	high--;
	while (low < high) {
		uint64_t middle = low + (high - low) / 2;

		seen = look_at(mine, its, window, middle, ret);
		if (seen == DIFFERENT)
			high = middle;
		else
			low = middle + 1; /* unseen: overwritten, as all before it */
		if (seen == EQUAL)
			*same = low;
	}
	ret->exact = ret->index == *same;
	return 1;
}

int kvr_alike_compare(const void *mine, const void *its, uint32_t window,
		      struct kvr_alike_difference *ret)
{
	uint64_t same = 0;

	return compare(mine, its, window, &same, ret);
}

int kvr_alike_drift(const struct kvr_drift *drift, struct kvr_drift *ret_drift)
{
	uint32_t kind = kvr_load_acquire32(&drift->kind); /* D4, pairs with D3 */

	if (!kind || kind > KVR_ALIKES)
		return 0;
	*ret_drift = (struct kvr_drift){
		.kind = kind,
		.attempt = kvr_load_relaxed32(&drift->attempt),
		.index = kvr_load_relaxed(&drift->index),
		.request = kvr_load_relaxed(&drift->request),
		.its_request = kvr_load_relaxed(&drift->its_request),
		.its_attempt = kvr_load_relaxed32(&drift->its_attempt),
		.exact = kvr_load_relaxed32(&drift->exact) == 1,
		.ns = kvr_load_relaxed(&drift->ns),
	};
	return 1;
}

/* --- a process's own log -------------------------------------------------------------------- */

static void drift_keep(struct kvr_alike_logs *a, enum kvr_alike kind,
		       const struct kvr_alike_difference *d)
{
	struct kvr_drift *drift = a->drift;

	a->drifted = 1;
	kvr_store_relaxed32(&drift->attempt, d->mine.attempt);
	kvr_store_relaxed(&drift->index, d->index);
	kvr_store_relaxed(&drift->request, d->mine.request);
	kvr_store_relaxed(&drift->its_request, d->its.request);
	kvr_store_relaxed32(&drift->its_attempt, d->its.attempt);
	kvr_store_relaxed32(&drift->exact, (uint32_t)d->exact);
	kvr_store_relaxed(&drift->ns, kvr_now());
	kvr_store_release32(&drift->kind, (uint32_t)kind + 1); /* D3, pairs with D4 */
}

/* What a rank called before its leader did is compared with a later call. */
static void compare_kind(struct kvr_alike_logs *a, enum kvr_alike kind)
{
	uint64_t at = kvr_layout_log(a->layout, kind);
	struct kvr_alike_difference d;

	if (!a->base || a->drifted || a->kind[kind].same == a->kind[kind].count)
		return;
	if (compare(a->logs + at, a->base + at, a->layout->window, &a->kind[kind].same, &d))
		drift_keep(a, kind, &d);
}

/* In words, not as a struct: the hash reads words, and a core waits for a word that was written in
 * halves just before. */
static uint64_t chain_next(uint64_t chain, enum kvr_alike kind, const struct kvr_request *request,
			   uint32_t keys, const struct kvr_key *last)
{
	uint64_t words[5 + KEY_WORDS] = { chain, request->id, request->space,
					  (uint64_t)request->attempt << 32 | keys,
					  (uint64_t)kind << 32 | (last != NULL) };

	if (last)
		memcpy(&words[5], last, sizeof(*last));
	chain = kvr_hash(words, sizeof(words), 0);
	return chain ? chain : 1;
}

static void append(struct kvr_alike_logs *a, enum kvr_alike kind, const struct kvr_request *request,
		   uint32_t keys)
{
	void *mem = a->logs + kvr_layout_log(a->layout, kind);
	struct kvr_alike_log *log = mem;
	struct kvr_alike_call call = { .chain = a->kind[kind].chain,
				       .request = request->id,
				       .attempt = request->attempt,
				       .keys = keys,
				       .index = a->kind[kind].count };
	uint64_t *slot = (uint64_t *)(void *)&log->call[call.index & (a->layout->window - 1)];
	uint64_t words[CALL_WORDS];
	size_t i;

	memcpy(words, &call, sizeof(words));
	for (i = 0; i < CALL_WORDS; i++)
		kvr_store_release(&slot[i], words[i]); /* D5, pairs with D6 */
	kvr_store_relaxed(&log->ns, kvr_now());
	kvr_store_release(&log->count, ++a->kind[kind].count); /* D1, pairs with D2 */
}

/* Makes it the last of the open calls. 1: it is open already. */
static int open_again(struct kvr_request *open, uint32_t opens, const struct kvr_request *request)
{
	for (uint32_t i = opens; i--;)
		if (kvr_request_equal(&open[i], request)) {
			memmove(&open[i], &open[i + 1], (opens - i - 1) * sizeof(*open));
			open[opens - 1] = kvr_request_name(request);
			return 1;
		}
	return 0;
}

void kvr_alike_call(struct kvr_alike_logs *a, enum kvr_alike kind,
		    const struct kvr_request *request, uint32_t keys, const struct kvr_key *last)
{
	struct kvr_request *open = a->kind[kind].open;
	uint32_t *opens = &a->kind[kind].opens;

	if (!open_again(open, *opens, request)) {
		a->kind[kind].chain = chain_next(a->kind[kind].chain, kind, request, keys, last);
		append(a, kind, request, keys);
		if (*opens == KVR_ALIKE_OPEN)
			memmove(open, open + 1, --*opens * sizeof(*open));
		open[(*opens)++] = kvr_request_name(request);
	}
	a->kind[kind].in_hand = 1;
	compare_kind(a, kind);
}

int kvr_alike_closed(struct kvr_alike_logs *a, enum kvr_alike kind,
		     const struct kvr_request *request)
{
	uint32_t *opens = &a->kind[kind].opens;

	if (!open_again(a->kind[kind].open, *opens, request))
		return 0;
	--*opens; /* it is the last one now */
	a->kind[kind].in_hand = 0;
	return 1;
}

void kvr_alike_answered(struct kvr_alike_logs *a, enum kvr_alike kind)
{
	a->kind[kind].opens -= a->kind[kind].in_hand != 0;
	a->kind[kind].in_hand = 0;
	compare_kind(a, kind);
}

int kvr_alike_check(struct kvr_alike_logs *a, struct kvr_drift *ret_drift)
{
	for (uint32_t kind = 0; kind < KVR_ALIKES; kind++)
		compare_kind(a, (enum kvr_alike)kind);
	return a->drifted && kvr_alike_drift(a->drift, ret_drift);
}
