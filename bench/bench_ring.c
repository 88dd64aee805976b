/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring between two pinned processes, against the bare line: how long a line takes to and fro
 * between the same two cores (the floor), how long a 32-byte message takes, and how many messages
 * go through. Rounds alternate between all measures; ratios are taken within a round.
 */
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "ring_play.h"

#define ROUNDS_MAX 1000u
#define FIGURES 4u

static const struct measure {
	const char *impl;
	uint32_t size, batch;
	void (*play)(struct side *side, uint64_t count);
} measures[] = {
	{ "floor", 8, 0, play_floor }, /* first: the others' ratios need it */
	{ "kvring", 32, 0, play_kvr },
#if HAVE_CK
	{ "ck_ring", 32, 0, play_ck },
	{ "ck_ring", 48, 1, play_ck_48 },
#endif
	{ "kvring", 48, 1, play_kvr_48 },
	{ "kvring", 64, 1, play_kvr_64 },
	{ "kvring", 48, BATCH, play_kvr_48_batch },
	{ "kvring", 64, BATCH, play_kvr_64_batch },
};
#define MEASURES (sizeof(measures) / sizeof(measures[0]))

static double figures[MEASURES][FIGURES][ROUNDS_MAX];

static void meet(struct side *side)
{
	uint64_t mine = side->s->arrived[side->id].value + 1;

	__atomic_store_n(&side->s->arrived[side->id].value, mine, __ATOMIC_RELEASE);
	while (__atomic_load_n(&side->s->arrived[!side->id].value, __ATOMIC_ACQUIRE) < mine)
		sched_yield();
}

/* Fresh rings, then the measure, in step with the other process. Returns its nanoseconds. */
static uint64_t side_play(struct side *side)
{
	struct shared *s = side->s;
	unsigned int out = side->id, in = !out;
	uint64_t start;

	side->last = 0;
	s->bounce[out].value = 0;
	if (kvr_ring_writer_init(&side->out, s->ring[out], BYTES, &s->cursor[out], 0))
		broken("writer");
#if HAVE_CK
	ck_ring_init(&s->ck[out], BYTES / 64);
#endif
	meet(side);
	if (kvr_ring_reader_init(&side->in, s->ring[in], BYTES, &s->cursor[in], 0))
		broken("reader");
	meet(side);
	start = now_ns();
	measures[s->measure].play(side, s->count);
	meet(side);
	return now_ns() - start;
}

static void pin(int core)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET((size_t)core, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		perror("bench-ring: sched_setaffinity");
}

static void child_main(struct shared *s, int core)
{
	static struct side side;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGCHLD, SIG_DFL);
	pin(core);
	side = (struct side){ .s = s, .id = 1 };
	for (;;) {
		meet(&side);
		if (s->measure >= MEASURES)
			_exit(0);
		side_play(&side);
	}
}

static int compare_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static int compare_double(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Runs measure k once and keeps its figures as those of `round`. Returns nanoseconds a message. */
static double measure_run(struct side *side, size_t k, uint64_t count, uint32_t round)
{
	static const double at[FIGURES] = { 0.5, 0.99, 0.999, 1 };
	uint64_t ns, first;
	double per_tick;
	size_t f;

	side->s->measure = k;
	side->s->count = count;
	meet(side);
	first = ticks();
	ns = side_play(side);
	per_tick = (double)ns / (double)(ticks() - first);
	if (measures[k].batch) {
		figures[k][0][round] = (double)count * 1e3 / (double)ns;
		return (double)ns / (double)count;
	}
	qsort(samples, count, sizeof(samples[0]), compare_u64);
	for (f = 0; f < FIGURES; f++)
		figures[k][f][round] =
			per_tick * (double)samples[(size_t)((double)(count - 1) * at[f])];
	return (double)ns / (double)count;
}

static struct {
	uint32_t rounds;
	double seconds;
	int json, cores[2];
	char machine[128];
} opt = { .rounds = 15, .seconds = 4, .cores = { -1, -1 }, .machine = "unknown machine" };

static void report(size_t k, uint32_t f)
{
	static const char *const names[] = { "rtt_p50", "rtt_p99", "rtt_p99.9", "rtt_max" };
	static double v[ROUNDS_MAX], ratio[ROUNDS_MAX];
	const struct measure *m = &measures[k];
	const char *name = !m->batch ? names[f] : m->batch > 1 ? "throughput_batch" : "throughput";
	const char *unit = m->batch ? "M/s" : "ns";
	uint32_t i, n = opt.rounds;
	char text[32] = "null";

	for (i = 0; i < n; i++) {
		v[i] = figures[k][f][i];
		ratio[i] = v[i] / figures[0][f][i];
	}
	qsort(v, n, sizeof(v[0]), compare_double);
	qsort(ratio, n, sizeof(ratio[0]), compare_double);
	if (!m->batch)
		snprintf(text, sizeof(text), "%.3f", ratio[n / 2]);
	if (opt.json)
		printf("{\"bench\":\"ring\",\"impl\":\"%s\",\"metric\":\"%s\",\"size\":%u,"
		       "\"batch\":%u,\"value\":%.2f,\"low\":%.2f,\"high\":%.2f,"
		       "\"unit\":\"%s\",\"ratio_to_floor\":%s,"
		       "\"rounds\":%u,\"machine\":\"%s\",\"cores\":[%d,%d]}\n",
		       m->impl, name, m->size, m->batch, v[n / 2], v[n / 10], v[n - 1 - n / 10],
		       unit, text, n, opt.machine, opt.cores[0], opt.cores[1]);
	else
		printf("%-8s %-17s %4u B %11.1f %-4s [%.1f .. %.1f]%s%s\n", m->impl, name, m->size,
		       v[n / 2], unit, v[n / 10], v[n - 1 - n / 10], m->batch ? "" : "  x floor ",
		       m->batch ? "" : text);
}

/* Warms up, and finds out how many messages fill this measure's share of the time. */
static uint64_t calibrate(struct side *side, size_t k)
{
	uint64_t count = measures[k].batch ? 100000 : 2000;
	double ns = measure_run(side, k, count, 0);

	ns = opt.seconds * 1e9 / opt.rounds / (double)MEASURES / ns;
	if (!measures[k].batch && ns > SAMPLES_MAX)
		return SAMPLES_MAX;
	return ns < 1000 ? 1000 : (uint64_t)ns;
}

static void machine_name(char *ret_name, size_t size)
{
	FILE *f = fopen("/proc/cpuinfo", "re");
	char line[256], name[128];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "model name : %127[^\n\"\\]", name) == 1) {
			snprintf(ret_name, size, "%s", name);
			break;
		}
	if (f)
		fclose(f);
}

static const char usage[] =
	"Usage: bench-ring [--rounds N] [--seconds S] [--cores A,B] [--json]\n"
	"Round trips and throughput of a ring between two processes on cores A and B (default: the\n"
	"first two that are allowed), against a bare cache line. Medians of N rounds (15) within\n"
	"about S seconds (4), with the 10th and 90th percentile of the rounds.\n";

/* The first two CPUs of the affinity mask, unless told. 0, or -1 when there is only one. */
static int choose_cores(void)
{
	cpu_set_t set;
	int cpu, n = 0;

	if (opt.cores[0] >= 0)
		return 0;
	if (sched_getaffinity(0, sizeof(set), &set))
		return -1;
	for (cpu = 0; cpu < CPU_SETSIZE && n < 2; cpu++)
		if (CPU_ISSET((size_t)cpu, &set))
			opt.cores[n++] = cpu;
	return n == 2 ? 0 : -1;
}

static int parse(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "rounds", 1, NULL, 'r' }, { "seconds", 1, NULL, 's' }, { "cores", 1, NULL, 'c' },
		{ "json", 0, NULL, 'j' },   { "help", 0, NULL, 'h' },	 { NULL, 0, NULL, 0 }
	};
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 'r')
			opt.rounds = (uint32_t)strtoul(optarg, NULL, 10);
		else if (c == 's')
			opt.seconds = strtod(optarg, NULL);
		else if (c == 'j')
			opt.json = 1;
		else if (c == 'h')
			return fputs(usage, stdout), 0;
		else if (c != 'c' || sscanf(optarg, "%d,%d", &opt.cores[0], &opt.cores[1]) != 2)
			return fputs(usage, stderr), 2;
	}
	if (optind < argc || opt.rounds < 1 || opt.rounds > ROUNDS_MAX || !(opt.seconds > 0) ||
	    !(opt.seconds < 3600) || opt.cores[0] >= CPU_SETSIZE || opt.cores[1] >= CPU_SETSIZE ||
	    (opt.cores[0] >= 0) != (opt.cores[1] >= 0))
		return fputs(usage, stderr), 2;
	return -1;
}

static void on_child(int sig)
{
	(void)sig;
	_exit(1); /* it said why */
}

int main(int argc, char **argv)
{
	static struct side side;
	uint64_t counts[MEASURES];
	uint32_t round, f;
	int rc = parse(argc, argv);
	size_t k;

	if (rc >= 0)
		return rc;
	if (choose_cores()) {
		puts("skipped: two processes that spin need two CPUs");
		return 0;
	}
	machine_name(opt.machine, sizeof(opt.machine));
	side.s = mmap(NULL, sizeof(*side.s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (side.s == MAP_FAILED)
		return perror("bench-ring: mmap"), 1;
	signal(SIGCHLD, on_child);
	rc = fork();
	if (rc < 0)
		return perror("bench-ring: fork"), 1;
	if (!rc)
		child_main(side.s, opt.cores[1]);
	pin(opt.cores[0]);
	for (k = 0; k < MEASURES; k++)
		counts[k] = calibrate(&side, k);
	for (round = 0; round < opt.rounds; round++)
		for (k = 0; k < MEASURES; k++)
			measure_run(&side, k, counts[k], round);
	signal(SIGCHLD, SIG_DFL);
	side.s->measure = MEASURES;
	meet(&side);
	waitpid(rc, NULL, 0);
	if (!opt.json)
		printf("%s, cores %d and %d, %u rounds\n", opt.machine, opt.cores[0], opt.cores[1],
		       opt.rounds);
	if (!HAVE_CK)
		fputs("ck_ring: absent (ck_ring.h was not found at build time)\n", stderr);
	for (k = 0; k < MEASURES; k++)
		for (f = 0; f < (measures[k].batch ? 1 : FIGURES); f++)
			report(k, f);
	return 0;
}
