/* SPDX-License-Identifier: Apache-2.0 */
/* What is computed from the records of all processes: percentiles, sums, and the verdict. */
#include <string.h>
#include <time.h>

#include "replay.h"

uint64_t replay_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/*
 * Bucket of a value: below 64 the value itself; above, the power of two and the five bits that
 * follow its first one.
 */
static uint32_t bucket_of(uint64_t ns)
{
	uint32_t shift;

	if (ns < 64)
		return (uint32_t)ns;
	shift = 58 - (uint32_t)__builtin_clzll(ns);
	return shift * 32 + (uint32_t)(ns >> shift);
}

/* Largest value of a bucket. */
static uint64_t bucket_top(uint32_t bucket)
{
	uint32_t shift;

	if (bucket < 64)
		return bucket;
	shift = bucket / 32 - 1;
	return (((uint64_t)bucket - shift * 32 + 1) << shift) - 1;
}

void replay_latency_add(struct replay_latency *latency, uint64_t ns)
{
	latency->count++;
	latency->bucket[bucket_of(ns)]++;
	if (ns > latency->max_ns)
		latency->max_ns = ns;
}

uint64_t replay_latency_at(const struct replay_latency *latency, double part)
{
	double want = part * (double)latency->count;
	uint64_t seen = 0, top;
	uint32_t i;

	for (i = 0; i < REPLAY_BUCKETS; i++) {
		seen += latency->bucket[i];
		if (latency->bucket[i] && (double)seen >= want) {
			top = bucket_top(i);
			return top < latency->max_ns ? top : latency->max_ns;
		}
	}
	return latency->max_ns;
}

uint64_t replay_ticks_equal(const struct replay_job *job, uint64_t *ret_total)
{
	const struct replay_area *area = job->area;
	uint64_t tick, equal = 0, hash;
	uint32_t p, ranks = job->opts.ranks;

	for (tick = 1; tick <= area->proc[0].ticks; tick++) {
		hash = area->tick_hash[tick];
		for (p = 1; p <= ranks; p++)
			if (area->tick_hash[p * area->tick_room + tick] != hash)
				break;
		equal += p > ranks;
	}
	*ret_total = area->proc[0].ticks;
	return equal;
}

int replay_counts_equal(const struct replay_job *job)
{
	const struct replay_proc *leader = &job->area->proc[0], *rank;
	uint32_t p;

	for (p = 1; p <= job->opts.ranks; p++) {
		rank = &job->area->proc[p];
		if (memcmp(&rank->blocks, &leader->blocks, sizeof(rank->blocks)) ||
		    rank->ops != leader->ops || rank->ops_failed != leader->ops_failed ||
		    rank->ops_cancelled != leader->ops_cancelled ||
		    rank->aborted != leader->aborted || rank->resets != leader->resets ||
		    rank->ticks != leader->ticks)
			return 0;
	}
	return 1;
}

uint64_t replay_wrong_bytes(const struct replay_job *job)
{
	uint64_t sum = 0;
	uint32_t p;

	for (p = 0; p <= job->opts.ranks; p++)
		sum += job->area->proc[p].wrong_bytes;
	return sum;
}

uint64_t replay_unfinished(const struct replay_job *job)
{
	uint64_t most = 0;
	uint32_t p;

	for (p = 0; p <= job->opts.ranks; p++)
		if (job->area->proc[p].unfinished > most)
			most = job->area->proc[p].unfinished;
	return most;
}

int replay_verdict(const struct replay_job *job)
{
	uint64_t total, equal = replay_ticks_equal(job, &total);
	uint32_t p;

	for (p = 0; p <= job->opts.ranks; p++)
		if (!job->area->proc[p].finished || job->area->proc[p].sentence[0])
			return REPLAY_FAILED;
	if (equal != total || replay_wrong_bytes(job) || replay_unfinished(job) ||
	    !replay_counts_equal(job) || job->area->counts.quarantined || job->area->counts.stale)
		return REPLAY_FAILED;
	return job->area->interrupted ? REPLAY_INTERRUPTED : REPLAY_OK;
}
