/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests for a run without a trace: conversations that go on. Each begins with one of a few
 * system prompts, and each turn's prompt is the whole conversation so far and something new. That
 * is the pattern a KV cache lives from: a long shared prefix, a new tail.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "replay.h"

#define SESSIONS 24u
#define PROMPTS 4u
#define MAX_BLOCKS 64u /* of a conversation, before a new one takes its place */

struct session {
	uint64_t ids[MAX_BLOCKS];
	uint32_t n;
};

struct generator {
	uint64_t state, next_id;
	struct session prompt[PROMPTS], session[SESSIONS];
};

/* splitmix64 */
static uint64_t random_next(struct generator *g)
{
	uint64_t x = g->state += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static uint32_t random_below(struct generator *g, uint32_t n)
{
	return (uint32_t)(random_next(g) % n);
}

static void grow(struct generator *g, struct session *s, uint32_t blocks)
{
	while (blocks-- && s->n < MAX_BLOCKS)
		s->ids[s->n++] = g->next_id++;
}

static int turn(struct generator *g, struct replay_trace *trace)
{
	struct session *s = &g->session[random_below(g, SESSIONS)];
	size_t first = trace->nids;
	uint32_t i;
	int r = 0;

	if (!s->n || s->n == MAX_BLOCKS || !random_below(g, 12))
		*s = g->prompt[random_below(g, PROMPTS)];
	grow(g, s, 1 + random_below(g, 6)); /* what the user says */
	for (i = 0; i < s->n && !r; i++)
		r = replay_trace_id(trace, s->ids[i]);
	grow(g, s, random_below(g, 4)); /* the answer: part of the next prompt */
	return r ? r : replay_trace_request(trace, first);
}

int replay_generate(uint64_t seed, uint32_t requests, struct replay_trace *trace)
{
	struct generator *g = calloc(1, sizeof(*g));
	uint32_t i;
	int r = g ? 0 : -ENOMEM;

	if (g) {
		g->state = seed;
		for (i = 0; i < PROMPTS; i++)
			grow(g, &g->prompt[i], 2 + random_below(g, 6));
	}
	for (i = 0; i < requests && !r; i++)
		r = turn(g, trace);
	free(g);
	if (r)
		replay_complain("no memory for %u requests. Ask for fewer with --requests",
				requests);
	return r ? -1 : 0;
}
