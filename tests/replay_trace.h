/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces for the tests of kv-replay, and what they must give, counted independently of it: block i
 * of a request is a hit when an earlier request began with the same i + 1 ids, nothing was evicted,
 * and the weights did not change in between.
 */
#ifndef TESTS_REPLAY_TRACE_H
#define TESTS_REPLAY_TRACE_H

#include "replay_tool.h"

#define TRACE_REQUESTS 256
#define TRACE_IDS 96

struct own_trace {
	uint32_t n, blocks[TRACE_REQUESTS];
	uint64_t ids[TRACE_REQUESTS][TRACE_IDS];
};

static inline uint64_t next_random(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* Requests that begin as an earlier one does, up to a random block, and go on by themselves. */
static inline void write_trace(const char *path, uint64_t seed, uint32_t requests, uint32_t longest)
{
	static struct own_trace t;
	FILE *f = fopen(path, "we");
	uint64_t next = 1000;
	uint32_t i, k, keep, from;

	ck_assert_ptr_nonnull(f);
	for (i = 0; i < requests; i++) {
		from = i ? (uint32_t)(next_random(&seed) % i) : 0;
		keep = i ? (uint32_t)(next_random(&seed) % (t.blocks[from] + 1)) : 0;
		t.blocks[i] = keep + (uint32_t)(next_random(&seed) % 8);
		if (t.blocks[i] > longest)
			t.blocks[i] = longest;
		for (k = 0; k < t.blocks[i]; k++)
			t.ids[i][k] = k < keep ? t.ids[from][k] : next++;
		/* ids at other positions: the same number is another block there */
		if (i % 5 == 4 && t.blocks[i])
			t.ids[i][t.blocks[i] - 1] = t.ids[from][0];
		fprintf(f, i % 2 ? "{\"hash_ids\":[" : "{\"x\": [{}, \"\\\"\"], \"hash_ids\": [ ");
		for (k = 0; k < t.blocks[i]; k++)
			fprintf(f, "%s%" PRIu64, k ? ", " : "", t.ids[i][k]);
		fprintf(f, "], \"timestamp\": %u, \"output_length\": 1, \"input_length\": %u}\n", i,
			512 * t.blocks[i]);
	}
	fclose(f);
}

static inline void read_trace(const char *path, struct own_trace *t)
{
	FILE *f = fopen(path, "re");
	char line[8192], *p;

	ck_assert_ptr_nonnull(f);
	memset(t, 0, sizeof(*t));
	while (fgets(line, sizeof(line), f)) {
		p = strchr(strstr(line, "\"hash_ids\""), '[') + 1;
		while (*p == ' ')
			p++;
		while (*p != ']') {
			t->ids[t->n][t->blocks[t->n]++] = strtoull(p, &p, 10);
			while (*p == ',' || *p == ' ')
				p++;
		}
		t->n++;
	}
	fclose(f);
}

/* Ids that two requests begin with alike. */
static inline uint32_t trace_shared(const struct own_trace *t, uint32_t i, uint32_t j)
{
	uint32_t k = 0;

	while (k < t->blocks[i] && k < t->blocks[j] && t->ids[i][k] == t->ids[j][k])
		k++;
	return k;
}

/* Hits and references when nothing is evicted; every: requests between two resets, 0: none. */
static inline uint64_t count_hits(const struct own_trace *t, uint32_t every,
				  uint64_t *ret_references)
{
	uint32_t i, j, k, most;
	uint64_t hits = 0;

	*ret_references = 0;
	for (i = 0; i < t->n; i++) {
		for (most = 0, j = every ? i / every * every : 0; j < i; j++) {
			k = trace_shared(t, i, j);
			most = k > most ? k : most;
		}
		hits += most;
		*ret_references += t->blocks[i];
	}
	return hits;
}

/* A trace of the private directory, and what it must give. */
static inline char *make_trace(struct tool *tool, uint32_t requests, uint32_t longest,
			       uint32_t every, uint64_t *ret_hits, uint64_t *ret_references)
{
	static struct own_trace t;
	char *path = tool_path(tool, "trace.jsonl");

	write_trace(path, 7, requests, longest);
	read_trace(path, &t);
	ck_assert_uint_eq(t.n, requests);
	*ret_hits = count_hits(&t, every, ret_references);
	ck_assert_uint_gt(*ret_hits, *ret_references / 10);
	ck_assert_uint_lt(*ret_hits, *ret_references);
	return path;
}

#endif
