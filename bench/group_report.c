/* SPDX-License-Identifier: Apache-2.0 */
/* The figures: medians with their spread, as a table or as JSON, and whether the goal is met. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "group_bench.h"

#define GOAL_MS 250.0

struct group_run group_run;

struct group_row *group_row(const char *metric, const char *unit, uint32_t ranks, uint32_t size)
{
	struct group_row *row = &group_run.rows[group_run.nrows];

	if (group_run.nrows == sizeof(group_run.rows) / sizeof(group_run.rows[0])) {
		fputs("bench-group: too many rows\n", stderr);
		exit(1);
	}
	group_run.nrows++;
	*row = (struct group_row){ .metric = metric, .unit = unit, .ranks = ranks, .size = size };
	return row;
}

void group_add(struct group_series *s, double v)
{
	if (s->n == s->room) {
		s->room = s->room ? 2 * s->room : 64;
		s->v = realloc(s->v, s->room * sizeof(*s->v));
		if (!s->v) {
			perror("bench-group");
			exit(1);
		}
	}
	s->v[s->n++] = v;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Nearest rank: a value that was seen. */
static double quantile(const double *sorted, size_t n, double q)
{
	double at = ceil(q * (double)n);

	return n ? sorted[at < 1 ? 0 : (size_t)at - 1] : (double)NAN;
}

double group_median(double *v, size_t n)
{
	qsort(v, n, sizeof(*v), compare);
	return quantile(v, n, 0.5);
}

double group_quantile(const struct group_series *s, double q)
{
	if (s->n)
		qsort(s->v, s->n, sizeof(*s->v), compare);
	return quantile(s->v, s->n, q);
}

void group_add_round(struct group_row *row, double *samples, size_t n)
{
	qsort(samples, n, sizeof(*samples), compare);
	group_add(&row->p50, quantile(samples, n, 0.5));
	group_add(&row->p99, quantile(samples, n, 0.99));
	row->max = fmax(row->max, samples[n - 1]);
	row->samples += n;
}

void group_sample(struct group_row *row, double v)
{
	group_add(&row->value, v);
	row->max = fmax(row->max, v);
	row->samples++;
}

/* What a row says. */
struct figures {
	double value, low, high, p50, p99, max;
};

static struct figures figures_of(const struct group_row *row)
{
	const struct group_series *s = row->value.n ? &row->value : &row->p50;
	struct figures f = { group_quantile(s, 0.5),
			     group_quantile(s, 0.1),
			     group_quantile(s, 0.9),
			     0,
			     0,
			     row->samples ? row->max : (double)NAN };

	f.p50 = row->p50.n ? group_quantile(&row->p50, 0.5) : f.value;
	f.p99 = row->p99.n ? group_quantile(&row->p99, 0.5) : group_quantile(s, 0.99);
	return f;
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

static uint32_t rounds_of(const struct group_row *row)
{
	if (!strcmp(row->metric, "death"))
		return group_run.rounds_death;
	if (!strcmp(row->metric, "create") || !strcmp(row->metric, "attach") ||
	    !strcmp(row->metric, "close"))
		return group_run.rounds_attach;
	if (row->peer)
		return group_run.rounds_collective;
	return group_run.rounds_publish;
}

static void json_row(const struct group_row *row)
{
	struct figures f = figures_of(row);
	const char *form = strcmp(row->unit, "ms") && !row->peer ? "%.1f" : "%.4f";
	char t[6][32];

	printf("{\"bench\":\"group\",\"metric\":\"%s\",", row->metric);
	if (row->peer)
		printf("\"peer\":\"%s\",", row->peer);
	if (row->ratio.n)
		printf("\"ratio\":%.3f,\"ratio_low\":%.3f,\"ratio_high\":%.3f,",
		       group_quantile(&row->ratio, 0.5), group_quantile(&row->ratio, 0.1),
		       group_quantile(&row->ratio, 0.9));
	if (row->victim)
		printf("\"victim\":\"%s\",\"setting\":\"%s\",\"who\":\"%s\",", row->victim,
		       row->setting, row->who);
	printf("\"ranks\":%u,\"size\":%u,\"value\":%s,\"low\":%s,\"high\":%s,\"p50\":%s,"
	       "\"p99\":%s,\"max\":%s,\"unit\":\"%s\",\"samples\":%zu,\"rounds\":%u,"
	       "\"machine\":\"%s\",\"cores\":[\"%d\",\"%s\"]}\n",
	       row->ranks, row->size, number(t[0], sizeof(t[0]), form, f.value, "null"),
	       number(t[1], sizeof(t[1]), form, f.low, "null"),
	       number(t[2], sizeof(t[2]), form, f.high, "null"),
	       number(t[3], sizeof(t[3]), form, f.p50, "null"),
	       number(t[4], sizeof(t[4]), form, f.p99, "null"),
	       number(t[5], sizeof(t[5]), form, f.max, "null"), row->unit, row->samples,
	       rounds_of(row), group_run.machine, group_run.core, group_run.others);
}

/* --- for people --- */

static const struct group_row *find(const char *metric, uint32_t ranks, uint32_t size)
{
	const struct group_row *row;

	for (row = group_run.rows; row < group_run.rows + group_run.nrows; row++)
		if (!strcmp(row->metric, metric) && row->ranks == ranks && row->size == size)
			return row;
	return NULL;
}

/* The line through all sizes of group, and how far the farthest of them lies from it. */
static void fit_report(const char *metric, uint32_t size)
{
	const struct group_row *a = find("publish_fit_a", 0, size), *row;
	const struct group_row *b = find("publish_fit_b", 0, size);
	struct figures fa, fb;
	double line, off, worst = 0;
	uint32_t ranks = 0;

	if (!a || !a->value.n || strcmp(metric, "publish"))
		return;
	fa = figures_of(a);
	fb = figures_of(b);
	for (row = group_run.rows; row < group_run.rows + group_run.nrows; row++) {
		if (strcmp(row->metric, "publish") || row->size != size)
			continue;
		line = fa.value + fb.value * row->ranks;
		off = figures_of(row).value / line - 1;
		if (fabs(off) > fabs(worst)) {
			worst = off;
			ranks = row->ranks;
		}
	}
	printf("%6u  ns = a + b R: a %.0f [%.0f .. %.0f], b %.1f [%.1f .. %.1f]; farthest from "
	       "the line: %u ranks, %+.0f %%\n",
	       size, fa.value, fa.low, fa.high, fb.value, fb.low, fb.high, ranks, 100 * worst);
}

static void publish_part(const char *metric, uint32_t size)
{
	const struct group_row *row;
	char t[5][32];

	for (row = group_run.rows; row < group_run.rows + group_run.nrows; row++) {
		struct figures f = figures_of(row);

		if (strcmp(row->metric, metric) || row->size != size)
			continue;
		printf("%6u %6u %9s  [%8s .. %8s] %8.1f %9s %9s %10.0f\n", size, row->ranks,
		       number(t[0], sizeof(t[0]), "%.0f", f.value, "-"),
		       number(t[1], sizeof(t[1]), "%.0f", f.low, "-"),
		       number(t[2], sizeof(t[2]), "%.0f", f.high, "-"), f.value / row->ranks,
		       number(t[3], sizeof(t[3]), "%.0f", f.p50, "-"),
		       number(t[4], sizeof(t[4]), "%.0f", f.p99, "-"), f.max);
	}
	fit_report(metric, size);
}

static void publish_report(const char *metric, const char *title)
{
	const struct group_row *row;
	uint32_t size = 0;

	for (row = group_run.rows; row < group_run.rows + group_run.nrows; row++) {
		if (strcmp(row->metric, metric) || row->size <= size)
			continue;
		if (!size)
			printf("\n%s, ns: %s\n bytes  ranks    median  [    10 %% ..     90 %%]"
			       "   a rank       p50       p99        max\n",
			       metric, title);
		size = row->size;
		publish_part(metric, size);
	}
}

static void attach_report(const char *metric, const char *title)
{
	const struct group_row *row;
	int any = 0;

	for (row = group_run.rows; row < group_run.rows + group_run.nrows; row++) {
		struct figures f = figures_of(row);

		if (strcmp(row->metric, metric) || !row->samples)
			continue;
		if (!any++)
			printf("\n%s, us: %s\n ranks        p50  [    10 %% ..     90 %%]     "
			       "   p99        max  samples\n",
			       metric, title);
		printf("%6u %10.0f  [%8.0f .. %8.0f] %10.0f %10.0f %8zu\n", row->ranks, f.value,
		       f.low, f.high, f.p99, f.max, row->samples);
	}
}

static void death_report(void)
{
	const struct group_row *row, *last = NULL;

	for (row = group_run.rows; row < group_run.rows + group_run.nrows; row++) {
		struct figures f = figures_of(row);

		if (strcmp(row->metric, "death") || !row->samples)
			continue;
		if (!last)
			puts("\ndeath, ms: from before kill(SIGKILL) until it is known\n"
			     " victim, setting  who                                     p50  [    "
			     "10 % ..     90 %]      p99      max  kills");
		if (!last || strcmp(last->victim, row->victim) ||
		    strcmp(last->setting, row->setting))
			printf(" %s, %s\n", row->victim, row->setting);
		last = row;
		printf("                  %-35s %7.2f  [%8.2f .. %8.2f] %8.2f %8.2f %6zu\n",
		       row->who, f.value, f.low, f.high, f.p99, f.max, row->samples);
	}
}

static void collective_title(void)
{
	printf("\ncollective, us a call, and times what kvring took in the same round; gloo: %s\n",
	       group_run.gloo[0] ? group_run.gloo : "absent");
	puts(" processes  measure         bytes  peer       median  [    10 % ..     90 %]  "
	     "times kvring");
}

static void collective_report(void)
{
	const struct group_row *row, *last = NULL;
	char size[16];

	for (row = group_run.rows; row < group_run.rows + group_run.nrows; row++) {
		struct figures f = figures_of(row);

		if (!row->peer || !row->samples)
			continue;
		if (!last)
			collective_title();
		snprintf(size, sizeof(size), "%u", row->size);
		if (last && last->ranks == row->ranks && last->size == row->size &&
		    !strcmp(last->metric, row->metric))
			printf("%10s  %-14s %6s  %-7s", "", "", "", row->peer);
		else
			printf("%10u  %-14s %6s  %-7s", row->ranks, row->metric,
			       row->size ? size : "-", row->peer);
		printf(" %9.2f  [%8.2f .. %8.2f]", f.value, f.low, f.high);
		if (row->ratio.n)
			printf("  %8.2f  [%.2f .. %.2f]", group_quantile(&row->ratio, 0.5),
			       group_quantile(&row->ratio, 0.1), group_quantile(&row->ratio, 0.9));
		putchar('\n');
		last = row;
	}
}

/* Two processes against gloo, and more than there are cores against the futex. */
static void collective_goals(void)
{
	const struct group_row *row;

	for (row = group_run.rows; row < group_run.rows + group_run.nrows; row++) {
		double ratio;

		if (!row->ratio.n)
			continue;
		ratio = group_quantile(&row->ratio, 0.5);
		if (!strcmp(row->peer, "gloo") && row->ranks == 2)
			printf("goal: %s, %u bytes, 2 processes: 100 times as fast as gloo: %.0f, "
			       "%s\n",
			       row->metric, row->size, ratio, ratio >= 100 ? "met" : "missed");
		if (!strcmp(row->peer, "futex") && row->ranks > (uint32_t)group_run.ncores)
			printf("goal: %s, %u processes on %d cores: at most 1.5 times a bare "
			       "futex: %.2f, %s\n",
			       row->metric, row->ranks, group_run.ncores, 1 / ratio,
			       ratio >= 1 / 1.5 ? "met" : "missed");
	}
}

static void goals_report(void)
{
	const struct group_row *row;
	int any = 0;

	for (row = group_run.rows; row < group_run.rows + group_run.nrows; row++) {
		struct figures f = figures_of(row);
		char text[96];

		if (strcmp(row->metric, "death") || strcmp(row->who, GROUP_ALL_ASLEEP) ||
		    !row->samples)
			continue;
		if (!any++)
			printf("\ngoal: all survivors know within %.0f ms, 99 %% of %s\n", GOAL_MS,
			       "the kills");
		snprintf(text, sizeof(text), "%s, %s", row->victim, row->setting);
		printf("  %-40s %8.1f ms of %5zu kills  %s%s\n", text, f.p99, row->samples,
		       f.p99 < GOAL_MS ? "met" : "missed",
		       row->samples < 100 ? " (so few: the worst of them)" : "");
	}
}

void group_report(void)
{
	const struct group_row *row;

	if (group_opt.json) {
		for (row = group_run.rows; row < group_run.rows + group_run.nrows; row++)
			if (row->value.n || row->p50.n)
				json_row(row);
		return;
	}
	printf("%s, leader on core %d, ranks on %s; rounds: publish %u, attach %u, death %u, "
	       "collective %u; %.1f s\n",
	       group_run.machine, group_run.core, group_run.others, group_run.rounds_publish,
	       group_run.rounds_attach, group_run.rounds_death, group_run.rounds_collective,
	       group_run.seconds);
	publish_report("publish", "the leader's cost; the ranks read between batches");
	publish_report("publish_asleep", "the leader's cost when every rank sleeps in take()");
	publish_report("last_asleep", "until the last of the ranks that slept has the message");
	publish_report("last_polled", "until the last of the ranks has it; each polls on its core");
	publish_report("skew_polled", "the same, from the first rank to the last");
	attach_report("create", "kvr_group_create(), rings of the default size");
	attach_report("attach", "kvr_group_attach() to a group that is there");
	attach_report("close", "kvr_group_close() of the leader");
	death_report();
	collective_report();
	goals_report();
	putchar('\n');
	collective_goals();
}
