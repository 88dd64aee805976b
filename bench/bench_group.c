/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group of real processes: what a publish costs by the number of ranks, how long it takes to
 * become a member, how soon the others know that one of them was killed, and how long it takes to
 * meet. bench/README.md says how each is measured.
 */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "group_bench.h"

#define SECONDS_MAX 3600
/* Beyond what was asked for: the last round of each measure, and its end. */
#define LIMIT_S 300

static const char usage[] =
	"Usage: bench-group [--rounds N] [--seconds S] [--only LIST] [--ranks LIST]\n"
	"                   [--resident BYTES] [--json]\n"
	"A group of real processes: the leader's cost of a publish, by ranks; the time to create and\n"
	"to attach; the time until a kill -9 is known; barrier, reduction, publish and a stream of\n"
	"messages against a bare futex and gloo. Medians of rounds, or of all samples where a round\n"
	"has few, with their 10th and 90th percentile.\n"
	"  --rounds N        1 to 1000 (81): as many of them as fit into\n"
	"  --seconds S       of the whole run (30)\n"
	"  --only LIST       some of publish,attach,death,collective (all)\n"
	"  --ranks LIST      sizes of group (publish: 1,2,4,8,16,32,64; attach: 1,8,64;\n"
	"                    collective: 2,4 processes, from 2 to 16 are possible)\n"
	"  --resident BYTES  of the large process that is killed, like 512MiB (4GiB; 0: none)\n"
	"  --json            one object a line\n"
	"bench/README.md says what is measured, and how.\n";

static void __attribute__((noreturn))
refuse(const char *option, const char *value, const char *wanted)
{
	fprintf(stderr, "bench-group: %s '%s': must be %s\n", option, value, wanted);
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

static uint64_t bytes(const char *option, const char *text)
{
	static const char *const units[] = { "", "KiB", "MiB", "GiB", "TiB" };
	unsigned int i;
	char *end;
	uint64_t v = strtoull(text, &end, 10);

	for (i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (end != text && *text != '-' && !strcmp(end, units[i]) &&
		    v <= UINT64_MAX >> (10 * i))
			return v << (10 * i);
	refuse(option, text, "a size, like 512MiB or 4GiB");
}

static void ranks_parse(const char *text)
{
	const char *at = text;
	char *end;
	unsigned long v;

	for (;; at = end + 1) {
		v = strtoul(at, &end, 10);
		if (end == at || v < 1 || v > GROUP_RANKS || (*end && *end != ','))
			refuse("--ranks", text, "a list of numbers from 1 to 64, like 1,8");
		group_opt.ranks |= 1ull << (v - 1);
		if (!*end)
			return;
	}
}

static void only_parse(const char *text)
{
	const struct {
		const char *name;
		int *flag;
	} known[] = { { "publish", &group_opt.publish },
		      { "attach", &group_opt.attach },
		      { "death", &group_opt.death },
		      { "collective", &group_opt.collective } };
	const char *at = text;
	size_t len, i;

	for (;; at += len + 1) {
		len = strcspn(at, ",");
		for (i = 0; i < sizeof(known) / sizeof(known[0]); i++)
			if (strlen(known[i].name) == len && !strncmp(known[i].name, at, len))
				break;
		if (i == sizeof(known) / sizeof(known[0]))
			refuse("--only", text, "a list of publish,attach,death,collective");
		*known[i].flag = 1;
		if (!at[len])
			return;
	}
}

static void options(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "rounds", 1, NULL, 'r' },   { "seconds", 1, NULL, 's' }, { "only", 1, NULL, 'o' },
		{ "ranks", 1, NULL, 'n' },    { "json", 0, NULL, 'j' },	   { "help", 0, NULL, 'h' },
		{ "resident", 1, NULL, 'm' }, { NULL, 0, NULL, 0 }
	};
	double rounds;
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 'r') {
			rounds = number("--rounds", optarg, 1, 1000);
			if (rounds != floor(rounds))
				refuse("--rounds", optarg, "a whole number");
			group_opt.rounds = (uint32_t)rounds;
		} else if (c == 's') {
			group_opt.seconds = number("--seconds", optarg, 0.1, SECONDS_MAX);
		} else if (c == 'o') {
			only_parse(optarg);
		} else if (c == 'n') {
			ranks_parse(optarg);
		} else if (c == 'm') {
			group_opt.resident = bytes("--resident", optarg);
		} else if (c == 'j') {
			group_opt.json = 1;
		} else if (c == 'h') {
			exit(fputs(usage, stdout) < 0);
		} else {
			exit(2); /* getopt said why */
		}
	}
	if (optind < argc)
		refuse("argument", argv[optind], "an option; see --help");
	if (!group_opt.publish && !group_opt.attach && !group_opt.death && !group_opt.collective)
		group_opt.publish = group_opt.attach = group_opt.death = group_opt.collective = 1;
}

/* Deaths first: their processes are small then, and share nothing with the other measures. */
static int work(void)
{
	double publish = group_opt.publish * 0.3, attach = group_opt.attach * 0.2;
	double death = group_opt.death * 0.5, collective = group_opt.collective * 0.4;
	double by = group_opt.seconds / (publish + attach + death + collective);
	uint64_t start = group_now();

	group_set_up();
	if (group_opt.death)
		group_death(by * death);
	if (group_opt.attach)
		group_attach(by * attach);
	if (group_opt.publish)
		group_publish(by * publish);
	if (group_opt.collective)
		group_collective(by * collective);
	group_progress(NULL, 0);
	group_run.seconds = (double)(group_now() - start) / 1e9;
	group_report();
	return fflush(stdout) ? 1 : 0;
}

int main(int argc, char **argv)
{
	options(argc, argv);
	return group_supervise(work, 2 * group_opt.seconds + LIMIT_S);
}
