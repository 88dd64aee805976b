/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring between two pinned processes, against the bare line, against other rings and what the
 * kernel has. Each round runs every measure for about two milliseconds, so that those which are
 * compared are neighbours in time; bench/README.md says what each of them is.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ring_play.h"

#define SLICE_MAX_NS 2e6 /* of a measure that has one share of a round */
#define SLICE_MIN_NS 2e5
#define ROUNDS_MIN 3u
#define WATCHDOG_S 30u
#define MEASURES_MAX 128u
#define PAIRS_MIN_US 10000u /* a few of the scheduler's slices */

static const char *const kinds[] = { "round trip", "throughput", "throughput in batches", "wake-up",
				     "8 pairs" };
static const struct ring_impl *const impls[] = { &ring_kvring,	  &ring_ck,	 &ring_boost,
						 &ring_seqpacket, &ring_eventfd, &ring_futex };
#define IMPLS (sizeof(impls) / sizeof(impls[0]))

/* What --only names. */
enum { ONLY_RTT = 1, ONLY_THROUGHPUT = 2, ONLY_WAKE = 4, ONLY_PAIRS = 8, ONLY_IDLE = 16 };

static struct {
	uint32_t rounds;
	double seconds, idle;	  /* idle below 0: not told */
	unsigned int only, sizes; /* bits */
} opt = { .rounds = 81, .seconds = 20, .idle = -1, .only = 31, .sizes = (1u << RING_NSIZES) - 1 };

static struct ring_measure measures[MEASURES_MAX];
static struct ring_run run = { .measures = measures, .idle = -1, .cores = { -1, -1 } };
static double ns_per_tick;
static char playing[128]; /* what the watchdog says */

static void plan_add(const struct ring_impl *impl, enum ring_kind kind, uint32_t size,
		     ring_play play)
{
	struct ring_measure *m = &measures[run.nmeasures++];

	*m = (struct ring_measure){ .impl = impl,
				    .kind = kind,
				    .size = size,
				    .play = play,
				    .figures = calloc(RING_STATS, sizeof(*m->figures)) };
	m->count = kind == RING_RTT ? 200 : kind == RING_WAKE ? 12 : 2000;
	if (!m->figures) {
		perror("bench-ring");
		exit(1);
	}
}

/* Whether these measures of that size are wanted; something without a payload has one size only. */
static int wanted(const struct ring_impl *impl, int kind, size_t size)
{
	static const unsigned int bit[] = { ONLY_RTT, ONLY_THROUGHPUT, ONLY_THROUGHPUT };
	int any_size = !impl->play[RING_RTT][1];

	return (opt.only & bit[kind]) && (any_size || opt.sizes & 1u << size) &&
	       impl->play[kind][size];
}

/* Measures that are compared stand next to each other. */
static void plan_make(const int present[IMPLS])
{
	size_t size, i;
	int kind;

	if (opt.only & ONLY_RTT)
		plan_add(&ring_floor, RING_RTT, 8, ring_floor.play[RING_RTT][0]);
	for (size = 0; size < RING_NSIZES; size++)
		for (kind = RING_RTT; kind <= RING_BATCHED; kind++)
			for (i = 0; i < IMPLS; i++)
				if (present[i] && wanted(impls[i], kind, size))
					plan_add(impls[i], (enum ring_kind)kind, ring_sizes[size],
						 impls[i]->play[kind][size]);
	for (i = 0; i < IMPLS && (opt.only & ONLY_WAKE); i++)
		if (present[i] && impls[i]->wake)
			plan_add(impls[i], RING_WAKE, RING_WAKE_SIZE, impls[i]->wake);
	if (opt.only & ONLY_PAIRS) {
		plan_add(&ring_kvring, RING_PAIRS, 32, NULL);
		plan_add(&ring_futex, RING_PAIRS, 32, NULL);
	}
}

static double shares(const struct ring_measure *m)
{
	return m->kind == RING_PAIRS ? 5 : m->kind == RING_WAKE ? 2 : 1;
}

/* Both sides play measure k. Returns the ns that it took. */
static uint64_t side_play(struct ring_side *side)
{
	const struct ring_measure *m = &measures[side->s->measure];
	uint64_t start;

	ring_prepare(side, m->size);
	ring_meet(side);
	start = ring_now();
	m->play(side, side->s->count);
	ring_meet(side);
	return ring_now() - start;
}

static void __attribute__((noreturn)) side_main(struct ring_shared *s)
{
	static struct ring_side side;

	side = (struct ring_side){ .s = s, .id = 1, .random = 7 };
	for (;;) {
		ring_meet(&side);
		if (s->measure < run.nmeasures)
			side_play(&side);
		else
			s->idle = ring_idle(&side, run.idle_ms);
	}
}

static int compare_u32(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

/* Median, 99 %, 99.9 % and the worst of the samples, but for those at the beginning. */
static void evaluate_samples(const struct ring_side *side, struct ring_measure *m, uint32_t round)
{
	static const double at[RING_STATS] = { 0.5, 0.99, 0.999, 1 };
	uint64_t n = side->s->count, warm = n / 8, f;
	double unit = m->kind == RING_RTT ? ns_per_tick : 1;
	uint32_t *v = side->s->samples + warm;

	n -= warm;
	qsort(v, n, sizeof(*v), compare_u32);
	if (m->kind == RING_WAKE)
		while (n && v[n - 1] == UINT32_MAX) /* found awake */
			n--;
	for (f = 0; f < RING_STATS; f++)
		m->figures[f][round] = n ? unit * v[(size_t)((double)(n - 1) * at[f])]
					 : (double)NAN;
}

/* From now on, what is named may take that long. */
static void watch(const char *name, const char *what, uint32_t size, unsigned int seconds)
{
	seconds += WATCHDOG_S;
	snprintf(playing, sizeof(playing),
		 "%s, %s, %u bytes: no end after %u s: a process hangs, or others have its core",
		 name, what, size, seconds);
	alarm(seconds);
}

static int streams(const struct ring_measure *m)
{
	return m->kind == RING_STREAM || m->kind == RING_BATCHED;
}

/* So many messages the next time; within what the tables hold and what says something. */
static void count_scale(struct ring_measure *m, double by)
{
	double least = streams(m) ? 256 : 16, most = streams(m) ? 1 << 24 : RING_SAMPLES;

	m->count = (uint64_t)fmin(fmax((double)m->count * by, least), most);
}

/*
 * Plays a measure once and keeps its figures as those of `round`; the next time with as many
 * messages as take `slice` ns.
 */
static void measure_run(struct ring_side *side, struct ring_measure *m, double slice,
			uint32_t round)
{
	struct ring_shared *s = side->s;
	uint64_t took;

	watch(m->impl->name, kinds[m->kind], m->size, 0);
	slice *= shares(m);
	if (m->kind == RING_PAIRS) {
		m->figures[0][round] = ring_pairs_run(m->impl == &ring_futex,
						      (uint64_t)fmax(slice / 1e3, PAIRS_MIN_US));
		return;
	}
	s->measure = (uint64_t)(m - measures);
	s->count = m->count;
	ring_meet(side);
	took = side_play(side);
	if (streams(m))
		m->figures[0][round] =
			1e3 * (double)s->streamed / ((double)(s->last - s->first) * ns_per_tick);
	else
		evaluate_samples(side, m, round);
	/* Little by little: once, others may have had the core. */
	count_scale(m, fmin(fmax(slice / (double)took, 0.25), 4));
}

/* What a tick is worth; 1 where ticks are nanoseconds. */
static void ticks_measure(void)
{
	struct timespec pause = { .tv_nsec = 10000000 };
	uint64_t t = ticks(), ns = ring_now();

	nanosleep(&pause, NULL);
	t = ticks() - t;
	ns_per_tick = (double)(ring_now() - ns) / (double)t;
}

/* Every other round goes backwards, so that nobody always plays behind the same neighbour. */
static void rounds_run(struct ring_side *side)
{
	uint64_t start = ring_now(), now, longest = 0, begun;
	uint64_t deadline = start + (uint64_t)(opt.seconds * 1e9);
	double sum = 0, slice = SLICE_MIN_NS;
	int progress = isatty(STDERR_FILENO);
	size_t i, k, n = run.nmeasures;

	for (k = 0; k < n; k++)
		sum += shares(&measures[k]);
	for (i = 0; i < 2; i++) /* finds out how many messages fill a slice */
		for (k = 0; k < n; k++)
			measure_run(side, &measures[k], SLICE_MIN_NS, 0);
	now = ring_now();
	if (now < deadline)
		slice = 0.85 * (double)(deadline - now) / opt.rounds / sum;
	slice = fmin(fmax(slice, SLICE_MIN_NS), SLICE_MAX_NS);
	for (k = 0; k < n; k++)
		count_scale(&measures[k], slice / SLICE_MIN_NS);
	for (run.rounds = 0; run.rounds < opt.rounds; run.rounds++) {
		begun = ring_now();
		if (run.rounds >= ROUNDS_MIN && begun + longest > deadline)
			break;
		if (progress)
			fprintf(stderr, "\rround %u of %u ", run.rounds + 1, opt.rounds);
		for (k = 0; k < n; k++)
			measure_run(side, &measures[run.rounds % 2 ? n - 1 - k : k], slice,
				    run.rounds);
		now = ring_now() - begun;
		longest = now > longest ? now : longest;
	}
	alarm(0);
	if (progress)
		fputs("\r\033[K", stderr);
	if (run.rounds < opt.rounds)
		fprintf(stderr, "bench-ring: %u rounds of %u in %g s\n", run.rounds, opt.rounds,
			opt.seconds);
	run.seconds = (double)(ring_now() - start) / 1e9;
}

static void idle_run(struct ring_side *side)
{
	watch("kvring", "idle", 0, (unsigned int)(run.idle_ms / 1000));
	side->s->measure = run.nmeasures;
	ring_meet(side);
	ring_meet(side);
	alarm(0);
	run.idle = side->s->idle;
}

static void machine_name(void)
{
	FILE *f = fopen("/proc/cpuinfo", "re");
	char line[256], name[96] = "unknown CPU";
	struct utsname u;

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "model name : %95[^\n\"\\]", name) == 1)
			break;
	if (f)
		fclose(f);
	uname(&u);
	snprintf(run.machine, sizeof(run.machine), "%s, %s %.64s", name, u.sysname, u.release);
}

static const char usage[] =
	"Usage: bench-ring [--rounds N] [--seconds S] [--cores A,B] [--sizes LIST] [--only LIST]\n"
	"                  [--idle S] [--json]\n"
	"Messages between two processes: kvring, a bare cache line, other rings, and what the kernel\n"
	"has. Medians of rounds, with their 10th and 90th percentile; ratios are taken within a round.\n"
	"  --rounds N     1 to 1000 (81): as many of them as fit into\n"
	"  --seconds S    of the whole run (20)\n"
	"  --cores A,B    one for each process (the first that are allowed, of two cores if possible)\n"
	"  --sizes LIST   bytes of payload, some of 8,32,48,64,256,1024,4096 (all)\n"
	"  --only LIST    some of rtt,throughput,wake,pairs,idle (all)\n"
	"  --idle S       how long a reader waits for nothing, on top of --seconds (2, within them)\n"
	"  --json         one object a line\n"
	"bench/README.md says what is measured, and how.\n";

static void __attribute__((noreturn))
refuse(const char *option, const char *value, const char *wanted)
{
	fprintf(stderr, "bench-ring: %s '%s': must be %s\n", option, value, wanted);
	exit(2);
}

static double number(const char *option, const char *text, double least, double most)
{
	char *end, wanted[64];
	double v = strtod(text, &end);

	if (end != text && !*end && v >= least && v <= most)
		return v;
	snprintf(wanted, sizeof(wanted), "a number from %g to %g", least, most);
	refuse(option, text, wanted);
}

static uint32_t whole(const char *option, const char *text, double least, double most)
{
	double v = number(option, text, least, most);

	if (v != floor(v))
		refuse(option, text, "a whole number");
	return (uint32_t)v;
}

/* The bits of the words of `list`, which are separated by commas. */
static unsigned int words(const char *option, const char *list, const char *const *known)
{
	unsigned int bits = 0, i;
	const char *at = list;
	char wanted[128] = "a list of ";
	size_t len;

	for (i = 0; known[i]; i++) {
		strcat(wanted, i ? "," : "");
		strcat(wanted, known[i]);
	}
	for (;; at += len + 1) {
		len = strcspn(at, ",");
		for (i = 0; known[i]; i++)
			if (strlen(known[i]) == len && !strncmp(known[i], at, len))
				break;
		if (!known[i])
			refuse(option, list, wanted);
		bits |= 1u << i;
		if (!at[len])
			return bits;
	}
}

static void cores_parse(const char *text)
{
	char rest;

	if (sscanf(text, "%d,%d%c", &run.cores[0], &run.cores[1], &rest) != 2 || run.cores[0] < 0 ||
	    run.cores[0] >= CPU_SETSIZE || run.cores[1] < 0 || run.cores[1] >= CPU_SETSIZE ||
	    run.cores[0] == run.cores[1])
		refuse("--cores", text, "two different cores, like 0,1");
}

static void options(int argc, char **argv)
{
#define NAME(n) #n,
	static const char *const sizes[] = { RING_SIZES(NAME) NULL };
	static const char *const metrics[] = { "rtt", "throughput", "wake", "pairs", "idle", NULL };
	static const struct option longs[] = {
		{ "rounds", 1, NULL, 'r' }, { "seconds", 1, NULL, 's' }, { "cores", 1, NULL, 'c' },
		{ "sizes", 1, NULL, 'z' },  { "only", 1, NULL, 'o' },	 { "idle", 1, NULL, 'i' },
		{ "json", 0, NULL, 'j' },   { "help", 0, NULL, 'h' },	 { NULL, 0, NULL, 0 }
	};
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 'r')
			opt.rounds = whole("--rounds", optarg, 1, RING_ROUNDS);
		else if (c == 's')
			opt.seconds = number("--seconds", optarg, 0.1, 3600);
		else if (c == 'c')
			cores_parse(optarg);
		else if (c == 'z')
			opt.sizes = words("--sizes", optarg, sizes);
		else if (c == 'o')
			opt.only = words("--only", optarg, metrics);
		else if (c == 'i')
			opt.idle = number("--idle", optarg, 0, 86400);
		else if (c == 'j')
			run.json = 1;
		else if (c == 'h')
			exit(fputs(usage, stdout) < 0);
		else
			exit(2); /* getopt said why */
	}
	if (optind < argc)
		refuse("argument", argv[optind], "an option; see --help");
	if (opt.idle < 0 && (opt.only & ONLY_IDLE)) {
		opt.idle = fmin(2, opt.seconds / 10);
		opt.seconds -= opt.idle;
	}
	run.idle_ms = opt.only & ONLY_IDLE ? (uint64_t)(opt.idle * 1e3) : 0;
}

/* A number in /sys about a CPU; -1: not told. */
static int topology(int cpu, const char *what)
{
	char path[96];
	FILE *f;
	int v = -1;

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, what);
	f = fopen(path, "re");
	if (f && fscanf(f, "%d", &v) != 1)
		v = -1;
	if (f)
		fclose(f);
	return v;
}

static int same_core(int a, int b)
{
	return topology(a, "core_id") >= 0 && topology(a, "core_id") == topology(b, "core_id") &&
	       topology(a, "physical_package_id") == topology(b, "physical_package_id");
}

/*
 * Unless told, the first CPU of the affinity mask and the next that is no thread of the same core,
 * or failing that the next of any kind. Returns 0 when there is one CPU only.
 */
static int cores_choose(void)
{
	int *cores = run.cores, cpu, any = -1;
	cpu_set_t set;

	CPU_ZERO(&set);
	if (cores[0] < 0)
		sched_getaffinity(0, sizeof(set), &set);
	for (cpu = 0; cpu < CPU_SETSIZE && cores[1] < 0; cpu++) {
		if (!CPU_ISSET((size_t)cpu, &set))
			continue;
		if (cores[0] < 0)
			cores[0] = cpu;
		else if (!same_core(cores[0], cpu))
			cores[1] = cpu;
		else if (any < 0)
			any = cpu;
	}
	if (cores[1] < 0)
		cores[1] = any;
	run.siblings = cores[1] >= 0 && same_core(cores[0], cores[1]);
	return cores[1] >= 0;
}

static void complain(const char *why)
{
	ssize_t n = write(STDERR_FILENO, "bench-ring: ", 12);

	n = write(STDERR_FILENO, why, strlen(why));
	n = write(STDERR_FILENO, "\n", 1);
	(void)n;
}

/* Whichever process it is: the others wait for it, or will. */
static void on_child(int sig)
{
	siginfo_t info = { .si_pid = 0 };

	(void)sig;
	/* Not reaped yet: its number must stay its own until all of them are killed. */
	if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) || !info.si_pid)
		return;
	if (info.si_code != CLD_EXITED) /* else it said why */
		complain("one of its processes was killed");
	ring_children_end();
	_exit(1);
}

static void on_alarm(int sig)
{
	(void)sig;
	complain(playing);
	ring_children_end();
	_exit(1);
}

static int implementations_open(int present[IMPLS])
{
	const char *why;
	size_t i;

	for (i = 0; i < IMPLS; i++) {
		why = impls[i] ? impls[i]->setup() : "there was no C++ compiler at build time";
		if (why)
			fprintf(stderr, "%s: absent: %s\n", impls[i] ? impls[i]->name : "boost",
				why);
		present[i] = !why;
	}
	return present[0];
}

int main(int argc, char **argv)
{
	struct sigaction child = { .sa_handler = on_child, .sa_flags = SA_NOCLDSTOP | SA_RESTART };
	static struct ring_side side;
	int present[IMPLS];

	options(argc, argv);
	if (!cores_choose()) {
		puts("skipped: two processes that spin need two CPUs");
		return 0;
	}
	ring_pin(run.cores[1]); /* refused now, or not at all */
	ring_pin(run.cores[0]);
	machine_name();
	ring_tables();
	ticks_measure();
	if (!implementations_open(present))
		return 1;
	plan_make(present);
	side = (struct ring_side){ .s = ring_memory(sizeof(*side.s)), .random = 1 };
	signal(SIGALRM, on_alarm);
	sigaction(SIGCHLD, &child, NULL);
	if (!ring_fork()) {
		ring_pin(run.cores[1]);
		side_main(side.s);
	}
	if (opt.only & ONLY_PAIRS)
		ring_pairs_start(run.cores);
	if (run.nmeasures)
		rounds_run(&side);
	if (run.idle_ms)
		idle_run(&side);
	ring_children_end();
	ring_report(&run);
	return 0;
}
