/* SPDX-License-Identifier: Apache-2.0 */
/* What the rounds say: medians with their spread, ratios within rounds, a table, JSON, the goals.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring_bench.h"

static const struct metric {
	const char *name, *unit, *title;
	enum ring_kind kind;
	unsigned int stat;
	int rate; /* more is better */
} metrics[] = {
	{ "rtt_p50", "ns", "round trip, median; floor: a bare cache line to and fro", RING_RTT, 0,
	  0 },
	{ "rtt_p99", "ns", "round trip, 99 %", RING_RTT, 1, 0 },
	{ "rtt_p999", "ns", "round trip, 99.9 %", RING_RTT, 2, 0 },
	{ "rtt_max", "ns", "round trip, the longest of a round", RING_RTT, 3, 0 },
	{ "throughput", "M/s", "messages one way, each published alone", RING_STREAM, 0, 1 },
	{ "throughput_batch", "M/s", "messages one way, up to 16 at once", RING_BATCHED, 0, 1 },
	{ "wake_p50", "ns", "wake-up of a sleeper, median; floor: a bare futex", RING_WAKE, 0, 0 },
	{ "wake_p99", "ns", "wake-up of a sleeper, 99 %", RING_WAKE, 1, 0 },
	{ "wake_max", "ns", "wake-up of a sleeper, the longest of a round", RING_WAKE, 3, 0 },
	{ "pairs8", "M/s", "round trips of 8 pairs on 2 cores; floor: the same, asleep on a futex",
	  RING_PAIRS, 0, 1 },
};
#define METRICS (sizeof(metrics) / sizeof(metrics[0]))

struct spread {
	double median, low, high; /* NAN when there is nothing */
};

int ring_compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Of those rounds that have a figure in `of`, divided by that of `by` if there is one. */
static struct spread spread_of(const struct ring_run *run, const double *of, const double *by)
{
	static double v[RING_ROUNDS];
	uint32_t i, n = 0;

	for (i = 0; i < run->rounds && of; i++) {
		v[n] = by ? of[i] / by[i] : of[i];
		if (isfinite(v[n]))
			n++;
	}
	if (!n)
		return (struct spread){ (double)NAN, (double)NAN, (double)NAN };
	qsort(v, n, sizeof(v[0]), ring_compare);
	return (struct spread){ v[n / 2], v[n / 10], v[n - 1 - n / 10] };
}

static const struct ring_measure *find(const struct ring_run *run, const char *name,
				       enum ring_kind kind, uint32_t size)
{
	size_t i;

	for (i = 0; i < run->nmeasures; i++)
		if (run->measures[i].kind == kind && run->measures[i].size == size &&
		    !strcmp(run->measures[i].impl->name, name))
			return &run->measures[i];
	return NULL;
}

/* What the metric's ratio is to: the cheapest thing that does it at all. NULL: there is none. */
static const struct ring_measure *floor_of(const struct ring_run *run, const struct metric *x)
{
	if (x->kind == RING_RTT)
		return find(run, "floor", x->kind, 8);
	if (x->kind == RING_WAKE || x->kind == RING_PAIRS)
		return find(run, "futex", x->kind, 32);
	return NULL;
}

/* The peer whose median is the best. */
static const struct ring_measure *best_peer(const struct ring_run *run, const struct metric *x,
					    uint32_t size)
{
	const struct ring_measure *best = NULL, *m;
	double v, best_v = 0;

	for (m = run->measures; m < run->measures + run->nmeasures; m++) {
		if (m->kind != x->kind || m->size != size || !m->impl->peer)
			continue;
		v = spread_of(run, m->figures[x->stat], NULL).median;
		if (isfinite(v) && (!best || (x->rate ? v > best_v : v < best_v))) {
			best = m;
			best_v = v;
		}
	}
	return best;
}

struct row {
	struct spread figure;
	double to_floor, to_peer; /* NAN: there is none */
	const struct ring_measure *m, *peer;
};

static struct row row_make(const struct ring_run *run, const struct metric *x,
			   const struct ring_measure *m)
{
	const struct ring_measure *floor = floor_of(run, x), *peer = best_peer(run, x, m->size);
	const double *mine = m->figures[x->stat];

	if (!m->impl->peer && strcmp(m->impl->name, "kvring"))
		peer = NULL;
	return (struct row){
		.m = m,
		.peer = peer,
		.figure = spread_of(run, mine, NULL),
		.to_floor = floor ? spread_of(run, mine, floor->figures[x->stat]).median
				  : (double)NAN,
		.to_peer = peer ? spread_of(run, mine, peer->figures[x->stat]).median : (double)NAN,
	};
}

static const char *number(char *to, size_t size, const char *format, double v,
			  const char *otherwise)
{
	if (isfinite(v))
		snprintf(to, size, format, v);
	else
		snprintf(to, size, "%s", otherwise);
	return to;
}

static void json_row(const struct ring_run *run, const struct metric *x, const struct row *r)
{
	const char *form = x->rate ? "%.4f" : "%.1f";
	char t[5][32];

	printf("{\"bench\":\"ring\",\"impl\":\"%s\",\"metric\":\"%s\",\"size\":%u,\"value\":%s,"
	       "\"low\":%s,\"high\":%s,\"unit\":\"%s\",\"rounds\":%u,\"ratio_to_floor\":%s,"
	       "\"ratio_to_best_peer\":%s,\"machine\":\"%s\",\"cores\":[%d,%d]}\n",
	       r->m->impl->name, x->name, r->m->size,
	       number(t[0], sizeof(t[0]), form, r->figure.median, "null"),
	       number(t[1], sizeof(t[1]), form, r->figure.low, "null"),
	       number(t[2], sizeof(t[2]), form, r->figure.high, "null"), x->unit, run->rounds,
	       number(t[3], sizeof(t[3]), "%.3f", r->to_floor, "null"),
	       number(t[4], sizeof(t[4]), "%.3f", r->to_peer, "null"), run->machine, run->cores[0],
	       run->cores[1]);
}

static void table_row(const struct metric *x, const struct row *r)
{
	const char *form = x->rate ? "%.2f" : "%.0f";
	char t[5][32];

	printf("%6u  %-10s %10s  [%8s .. %8s]  %8s  %8s%s%s\n", r->m->size, r->m->impl->name,
	       number(t[0], sizeof(t[0]), form, r->figure.median, "-"),
	       number(t[1], sizeof(t[1]), form, r->figure.low, "-"),
	       number(t[2], sizeof(t[2]), form, r->figure.high, "-"),
	       number(t[3], sizeof(t[3]), "%.2f", r->to_floor, ""),
	       number(t[4], sizeof(t[4]), "%.2f", r->to_peer, ""), r->peer ? "  " : "",
	       r->peer ? r->peer->impl->name : "");
}

static void metric_report(const struct ring_run *run, const struct metric *x)
{
	const struct ring_measure *m;
	uint32_t last = 0;
	struct row r;
	int any = 0;

	for (m = run->measures; m < run->measures + run->nmeasures; m++) {
		if (m->kind != x->kind)
			continue;
		r = row_make(run, x, m);
		if (run->json) {
			json_row(run, x, &r);
			continue;
		}
		if (!any++)
			printf("\n%s, %s: %s\n bytes  %-10s %10s  [%8s .. %8s]  %8s  %8s\n",
			       x->name, x->unit, x->title, "", "median", "10 %", "90 %", "/ floor",
			       "/ best peer");
		else if (m->size != last && x->kind <= RING_BATCHED)
			putchar('\n');
		last = m->size;
		table_row(x, &r);
	}
}

/* A line of the goals: the ratio of two measures' figures; `of` is NULL when nobody asked for it.
 */
static void goal(const struct ring_run *run, const char *what, const double *of, const double *by,
		 double wanted, int at_least)
{
	double v = of && by ? spread_of(run, of, by).median : (double)NAN;
	char t[32];

	if (!of)
		return;
	printf("  %-52s %8s  (%s %4.2f)  %s\n", what, number(t, sizeof(t), "%.2f", v, "-"),
	       at_least ? "at least" : "at most ", wanted,
	       !isfinite(v)				? "not measured"
	       : (at_least ? v >= wanted : v <= wanted) ? "met"
							: "missed");
}

static const double *figures(const struct ring_measure *m, unsigned int stat)
{
	return m ? m->figures[stat] : NULL;
}

/* Against the best other ring; its name goes into the line. */
static void goal_peer(const struct ring_run *run, const char *what, size_t metric, uint32_t size,
		      double wanted)
{
	const struct metric *x = &metrics[metric];
	const struct ring_measure *peer = best_peer(run, x, size);
	char text[64];

	if (peer && peer->impl == &ring_seqpacket) /* neither of them is here */
		peer = NULL;
	snprintf(text, sizeof(text), "%s %s", what, peer ? peer->impl->name : "another ring");
	goal(run, text, figures(find(run, "kvring", x->kind, size), x->stat),
	     figures(peer, x->stat), wanted, x->rate);
}

static void goals_report(const struct ring_run *run)
{
	const struct ring_measure *line = find(run, "floor", RING_RTT, 8);
	const struct ring_measure *rtt = find(run, "kvring", RING_RTT, 32);
	const struct ring_measure *batch = find(run, "kvring", RING_BATCHED, 48);
	const struct ring_measure *stream = find(run, "kvring", RING_STREAM, 48);
	const struct ring_measure *wake = find(run, "kvring", RING_WAKE, 32);
	const struct ring_measure *futex = find(run, "futex", RING_WAKE, 32);
	const struct ring_measure *pairs = find(run, "kvring", RING_PAIRS, 32);
	const struct ring_measure *asleep = find(run, "futex", RING_PAIRS, 32);

	puts("\ngoals: kvring's figure over another's, median of the rounds");
	goal(run, "round trip, 32 bytes, median, / a bare line", figures(rtt, 0), figures(line, 0),
	     1.2, 0);
	goal(run, "round trip, 32 bytes, 99.9 %, / a bare line's", figures(rtt, 2),
	     figures(line, 2), 3, 0);
	goal_peer(run, "round trip, 32 bytes, median, /", 0, 32, 1);
	goal_peer(run, "throughput, 48 bytes, /", 4, 48, 1.3);
	goal_peer(run, "throughput, 64 bytes, /", 4, 64, 1);
	goal(run, "throughput, 48 bytes, batched / alone", figures(batch, 0), figures(stream, 0),
	     1.2, 1);
	goal(run, "wake-up, median, / a bare futex", figures(wake, 0), figures(futex, 0), 1.2, 0);
	goal(run, "8 pairs on 2 cores / the same, asleep on a futex", figures(pairs, 0),
	     figures(asleep, 0), 0.8, 1);
	if (run->idle >= 0)
		printf("  %-52s %8.3f  (at most  0.10)  %s\n", "idle reader, % of a core",
		       run->idle, run->idle <= 0.1 ? "met" : "missed");
}

static void idle_report(const struct ring_run *run)
{
	if (run->json)
		printf("{\"bench\":\"ring\",\"impl\":\"kvring\",\"metric\":\"idle_cpu\",\"size\":0,"
		       "\"value\":%.4g,\"low\":%.4g,\"high\":%.4g,\"unit\":\"%%\",\"rounds\":1,"
		       "\"ratio_to_floor\":null,\"ratio_to_best_peer\":null,\"machine\":\"%s\","
		       "\"cores\":[%d,%d]}\n",
		       run->idle, run->idle, run->idle, run->machine, run->cores[0], run->cores[1]);
	else
		printf("\nidle_cpu: a reader that waited for %.1f s used %.4f %% of a core\n",
		       (double)run->idle_ms / 1e3, run->idle);
}

void ring_report(const struct ring_run *run)
{
	size_t i;

	if (!run->json)
		printf("%s, cores %d and %d%s, %u rounds in %.1f s\n", run->machine, run->cores[0],
		       run->cores[1], run->siblings ? " (threads of one core)" : "", run->rounds,
		       run->seconds);
	for (i = 0; i < METRICS; i++)
		metric_report(run, &metrics[i]);
	if (run->idle >= 0)
		idle_report(run);
	if (!run->json)
		goals_report(run);
}
