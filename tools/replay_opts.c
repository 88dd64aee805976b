/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of kv-replay, and the directory that its store lies in. What does not parse, or
 * contradicts itself, is refused before anything is made; what only the library can judge (files,
 * devices, space) is left to it.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvring/err.h"
#include "replay.h"

#define DEFAULT_REQUESTS 200u
#define DEFAULT_NVME (1u << 30)
#define NOT_GIVEN UINT64_MAX

static const char help_text[] =
	"Usage: kv-replay [OPTION]...\n"
	"Replays requests against a KV cache on real files: starts a leader and ranks, looks up\n"
	"each request's blocks, loads what is stored and compares every byte on every rank, stores\n"
	"the rest, and proves that all ranks saw the same completions at the same tick.\n"
	"\n"
	"Requests\n"
	"  --trace FILE        JSON lines with timestamp, input_length, output_length, hash_ids;\n"
	"                      without it, generated conversations\n"
	"  --requests N        at most N of them (all of the trace, or 200 generated ones)\n"
	"  --seed N            of the keys, of the generator and of --abort (1)\n"
	"  --restart           stop everything half-way, go on with new processes on the same files\n"
	"Cache\n"
	"  --ranks N           processes that share a block, 1 to 64 (4)\n"
	"  --block-bytes SIZE  of all ranks together (256KiB)\n"
	"  --layer-groups N    of a block (4 if the block can be divided so, else 1)\n"
	"  --replicated        every rank reads the whole block, rank 0 writes it (as with MLA)\n"
	"  --host SIZE         host memory (64MiB)\n"
	"  --nvme SIZE         store files, of all directories together (1GiB, or what is there);\n"
	"                      0: host memory only\n"
	"  --store DIR         where they lie; repeatable: blocks are striped. Without it a private\n"
	"                      directory under $TMPDIR or /var/tmp, removed at the end\n"
	"  --no-uring          I/O by threads with pread and pwrite\n"
	"  --name NAME         of the group, as ring-dump shows it (kv-replay)\n"
	"Protocol\n"
	"  --layers            load by layers: a rank takes and compares a layer group as soon as it\n"
	"                      is there, while later ones are read\n"
	"  --prefetch N        look N requests ahead (1 to 1024), and bring what is stored of them on\n"
	"                      NVMe into host memory. When the request comes, its prefetch is\n"
	"                      cancelled: its load reads the rest, before what is only ahead\n"
	"  --prefetch-budget N at most N blocks, brought or on their way, for requests that have not\n"
	"                      come (a quarter of host memory)\n"
	"  --abort P           abort this share of the requests (0 to 1) on all ranks, each at a\n"
	"                      random point: before or during a load, between layers, before or\n"
	"                      during a store. Hits of the others then depend on timing\n"
	"  --reset-every N     the weights change every N requests: nothing from before is found\n"
	"Output\n"
	"  --json              one JSON object instead of the report\n"
	"  -v, --verbose       the processes, as they start\n"
	"  -h, --help          this text\n"
	"  -V, --version       the version\n"
	"\n"
	"Sizes are bytes, or a number with KiB, MiB, GiB or TiB.\n"
	"Exit status: 0 all bytes right, all operations ended, all ticks equal, no stale hit, no slot\n"
	"in quarantine; 1 not so, or somebody failed; 2 bad input; 130 interrupted.\n";

enum kind { FLAG, TEXT, STORE, SHARE, SIZE, U32, U64 };

#define AT(field) offsetof(struct replay_opts, field)

/* What is only a value of a field. */
static const struct setting {
	const char *name;
	enum kind kind;
	size_t at;
	uint64_t min, max;
} settings[] = {
	{ "trace", TEXT, AT(trace), 0, 0 },
	{ "requests", U32, AT(requests), 1, REPLAY_MAX_REQUESTS },
	{ "seed", U64, AT(seed), 0, UINT64_MAX },
	{ "restart", FLAG, AT(restart), 0, 0 },
	{ "ranks", U32, AT(ranks), 1, KVR_MAX_RANKS },
	{ "block-bytes", SIZE, AT(block_bytes), 0, 0 },
	{ "layer-groups", U32, AT(layer_groups), 1, 65536 },
	{ "replicated", FLAG, AT(replicated), 0, 0 },
	{ "host", SIZE, AT(host), 0, 0 },
	{ "nvme", SIZE, AT(nvme), 0, 0 },
	{ "store", STORE, 0, 0, 0 },
	{ "no-uring", FLAG, AT(no_uring), 0, 0 },
	{ "name", TEXT, AT(name), 0, 0 },
	{ "layers", FLAG, AT(layers), 0, 0 },
	{ "prefetch", U32, AT(prefetch), 1, REPLAY_MAX_AHEAD },
	{ "prefetch-budget", U32, AT(prefetch_budget), 1, UINT32_MAX },
	{ "abort", SHARE, AT(abort), 0, 0 },
	{ "reset-every", U32, AT(reset_every), 1, REPLAY_MAX_REQUESTS },
	{ "json", FLAG, AT(json), 0, 0 },
	{ "verbose", FLAG, AT(verbose), 0, 0 },
};

#define SETTINGS (sizeof(settings) / sizeof(settings[0]))
enum { FIRST_SETTING = 256, HELP = FIRST_SETTING + SETTINGS, VERSION };

/* Digits alone: no sign, no blank, no overflow. Returns what follows them, NULL without any. */
static const char *parse_digits(const char *text, uint64_t *ret)
{
	uint64_t value = 0, d;
	const char *p;

	for (p = text; *p >= '0' && *p <= '9'; p++) {
		d = (uint64_t)(*p - '0');
		if (value > (UINT64_MAX - d) / 10)
			return NULL;
		value = value * 10 + d;
	}
	*ret = value;
	return p == text ? NULL : p;
}

static int parse_number(const struct setting *s, const char *text, void *field)
{
	uint64_t value = 0;
	const char *rest = parse_digits(text, &value);

	if (!rest || *rest || value < s->min || value > s->max) {
		replay_complain("--%s %s: not a whole number from %" PRIu64 " to %" PRIu64, s->name,
				text, s->min, s->max);
		return -1;
	}
	if (s->kind == U32)
		*(uint32_t *)field = (uint32_t)value;
	else
		*(uint64_t *)field = value;
	return 0;
}

/* Digits, and a point before, among or after them: no sign, exponent, "inf" or hexadecimal. */
static int parse_share(const struct setting *s, const char *text, double *ret)
{
	double value = strtod(text, NULL);

	if (text[strspn(text, "0123456789.")] || !strpbrk(text, "0123456789") ||
	    strchr(text, '.') != strrchr(text, '.') || value > 1) {
		replay_complain("--%s %s: not a share from 0 to 1, such as 0.1", s->name, text);
		return -1;
	}
	*ret = value;
	return 0;
}

static int parse_size(const struct setting *s, const char *text, uint64_t *ret)
{
	static const char *const units[] = { "KiB", "MiB", "GiB", "TiB" };
	uint64_t value = 0;
	const char *rest = parse_digits(text, &value);
	uint32_t i, shift = 0;

	for (i = 0; rest && *rest && i < 4; i++)
		if (!strcmp(rest, units[i]))
			shift = 10 * (i + 1);
	if (!rest || (*rest && !shift)) {
		replay_complain("--%s %s: not a size. Write bytes, or a number with KiB, MiB, GiB "
				"or TiB, such as 64MiB",
				s->name, text);
		return -1;
	}
	if (value > (uint64_t)INT64_MAX >> shift) {
		replay_complain("--%s %s: more than 2^63 - 1 bytes", s->name, text);
		return -1;
	}
	*ret = value << shift;
	return 0;
}

/* A store must lie in what is there: a new file is made only inside a directory that was named. */
static int add_store(struct replay_opts *o, const char *path)
{
	struct stat st;

	if (o->nstores == KVR_MAX_DEVICES) {
		replay_complain("--store %s: more than %d directories", path, KVR_MAX_DEVICES);
		return -1;
	}
	if (stat(path, &st)) {
		replay_complain("--store %s: %s. Make the directory first, or name another", path,
				strerror(errno));
		return -1;
	}
	if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode)) {
		replay_complain("--store %s: neither a directory nor a store file", path);
		return -1;
	}
	o->stores[o->nstores++] = path;
	return 0;
}

/* Without --nvme, stores that are there are taken as they are: their sum, or 0 if one is missing.
 */
static uint64_t existing_bytes(const struct replay_opts *o)
{
	uint64_t sum = 0;
	struct stat st;
	uint32_t i;
	int fd, r;

	for (i = 0; i < o->nstores; i++) {
		fd = open(o->stores[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		r = fd < 0 ? stat(o->stores[i], &st) : fstatat(fd, "kvring.store", &st, 0);
		if (fd >= 0)
			close(fd);
		if (r || !S_ISREG(st.st_mode) || st.st_size <= 0)
			return 0;
		sum += (uint64_t)st.st_size;
	}
	return sum;
}

static int parse_setting(struct replay_opts *o, const struct setting *s, const char *text)
{
	void *field = (char *)o + s->at;

	switch (s->kind) {
	case FLAG:
		*(int *)field = 1;
		return 0;
	case TEXT:
		*(const char **)field = text;
		return 0;
	case STORE:
		return add_store(o, text);
	case SHARE:
		return parse_share(s, text, field);
	case SIZE:
		return parse_size(s, text, field);
	default:
		return parse_number(s, text, field);
	}
}

/* The model and the shape that the group and the store are made with. */
static int make_shape(struct replay_opts *o)
{
	uint32_t parts = o->replicated ? 1 : o->ranks;
	int r;

	if (!o->block_bytes) {
		replay_complain("--block-bytes 0: a block has at least one byte");
		return -1;
	}
	if (!o->layer_groups)
		o->layer_groups = o->block_bytes % (4u * parts) ? 1 : 4;
	r = o->replicated
		    ? kvr_shape_replicated(o->ranks, o->layer_groups, o->block_bytes, &o->shape)
		    : kvr_shape_split(o->ranks, o->layer_groups, o->block_bytes, &o->shape);
	if (r) {
		replay_complain("--block-bytes %" PRIu64 " --ranks %u --layer-groups %u: %s",
				o->block_bytes, o->ranks, o->layer_groups, kvr_explain());
		return -1;
	}
	snprintf(o->model.name, sizeof(o->model.name), "kv-replay");
	snprintf(o->model.dtype, sizeof(o->model.dtype), "bytes");
	o->model.page_tokens = 512;
	o->model.layers = o->layer_groups;
	o->model.heads = o->ranks;
	return 0;
}

static int check_opts(struct replay_opts *o)
{
	if (!*o->name || strlen(o->name) >= KVR_NAME_MAX) {
		replay_complain("--name '%s': 1 to %d characters", o->name, KVR_NAME_MAX - 1);
		return -1;
	}
	if (o->nvme == NOT_GIVEN)
		o->nvme = existing_bytes(o) ? existing_bytes(o) : DEFAULT_NVME;
	if (!o->nvme && o->nstores) {
		replay_complain("--nvme 0 means host memory only; then leave out --store");
		return -1;
	}
	if (!o->nvme && o->restart) {
		replay_complain("--restart with --nvme 0: nothing would be left to go on with");
		return -1;
	}
	if (!o->nvme && o->prefetch) {
		replay_complain("--prefetch with --nvme 0: there is nothing to fetch from");
		return -1;
	}
	if (!o->prefetch && o->prefetch_budget) {
		replay_complain("--prefetch-budget %u: without --prefetch nothing is prefetched",
				o->prefetch_budget);
		return -1;
	}
	if (!o->host) {
		replay_complain("--host 0: at least one block must fit into host memory");
		return -1;
	}
	if (!o->trace && !o->requests)
		o->requests = DEFAULT_REQUESTS;
	return make_shape(o);
}

static void make_options(struct option *options)
{
	size_t i;

	for (i = 0; i < SETTINGS; i++)
		options[i] =
			(struct option){ settings[i].name,
					 settings[i].kind == FLAG ? no_argument : required_argument,
					 NULL, FIRST_SETTING + (int)i };
	options[i++] = (struct option){ "help", no_argument, NULL, HELP };
	options[i++] = (struct option){ "version", no_argument, NULL, VERSION };
	options[i] = (struct option){ 0 };
}

/* 1: that was all that was asked for. */
static int take_option(struct replay_opts *o, int c, char **argv)
{
	const char letter[] = { '-', (char)optopt, 0 };

	switch (c) {
	case 'h':
	case HELP:
		fputs(help_text, stdout);
		return 1;
	case 'V':
	case VERSION:
		puts("kv-replay " KVR_VERSION_STRING);
		return 1;
	case 'v':
		o->verbose = 1;
		return 0;
	case ':':
		replay_complain("%s needs a value; see --help", argv[optind - 1]);
		return -1;
	case '?':
		replay_complain("%s: %s; see --help",
				optopt > ' ' && optopt < 127 ? letter : argv[optind - 1],
				optopt < FIRST_SETTING ? "no such option" : "takes no value");
		return -1;
	default:
		return parse_setting(o, &settings[c - FIRST_SETTING], optarg);
	}
}

int replay_opts_parse(int argc, char **argv, struct replay_opts *o)
{
	struct option options[SETTINGS + 3];
	int c, r = 0;

	*o = (struct replay_opts){ .name = "kv-replay",
				   .ranks = 4,
				   .block_bytes = 256u << 10,
				   .host = 64u << 20,
				   .nvme = NOT_GIVEN,
				   .seed = 1 };
	make_options(options);
	opterr = 0;
	while (!r && (c = getopt_long(argc, argv, ":vhV", options, NULL)) != -1)
		r = take_option(o, c, argv);
	o->done = r > 0;
	if (r)
		return r > 0 ? 0 : -1;
	if (optind < argc) {
		replay_complain("%s: not an option; see --help", argv[optind]);
		return -1;
	}
	return check_opts(o);
}

int replay_temp_make(struct replay_opts *o)
{
	const char *dir = getenv("TMPDIR");
	int n;

	if (o->nstores || !o->nvme)
		return 0;
	if (!dir || !*dir)
		dir = "/var/tmp";
	n = snprintf(o->temp, sizeof(o->temp), "%s/kv-replay-XXXXXX", dir);
	if (n < 0 || (size_t)n >= sizeof(o->temp))
		errno = ENAMETOOLONG;
	else if (mkdtemp(o->temp)) {
		o->stores[o->nstores++] = o->temp;
		return 0;
	}
	o->temp[0] = 0;
	replay_complain("no directory for the store under %s: %s. Name one with --store or TMPDIR",
			dir, strerror(errno));
	return -1;
}

/* The directory was made for this run alone, so whatever is in it goes. */
void replay_temp_remove(const struct replay_opts *o)
{
	DIR *dir = o->temp[0] ? opendir(o->temp) : NULL;
	struct dirent *entry;

	if (!dir)
		return;
	while ((entry = readdir(dir)))
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
			unlinkat(dirfd(dir), entry->d_name, 0);
	closedir(dir);
	rmdir(o->temp);
}
