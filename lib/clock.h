/* SPDX-License-Identifier: Apache-2.0 */
/* Time is CLOCK_MONOTONIC in nanoseconds, everywhere; deadlines are absolute. */
#ifndef KVR_CLOCK_H
#define KVR_CLOCK_H

#include <stdint.h>
#include <time.h>

#define KVR_MS 1000000ull
#define KVR_SEC 1000000000ull

static inline uint64_t kvr_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * KVR_SEC + (uint64_t)t.tv_nsec;
}

static inline struct timespec kvr_timespec(uint64_t ns)
{
	struct timespec t = { (time_t)(ns / KVR_SEC), (long)(ns % KVR_SEC) };

	return t;
}

#endif
