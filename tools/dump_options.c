/* SPDX-License-Identifier: Apache-2.0 */
/* The command line. What is wrong in it is said in a sentence, and nothing is done. */
#include "dump_options.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "kvring/version.h"

static const char usage[] =
	"usage: ring-dump [--dir DIR] [options] [NAME|FILE]\n"
	"Shows a kvring group, live or dead, without disturbing it; without a name, lists the groups.\n"
	"\n"
	"NAME is a group's name; FILE, with a '/' in it (./FILE), is a segment, also a retired or saved\n"
	"one.\n"
	"\n"
	"What to do (one of these; else everything is shown as text):\n"
	"  --verdict       one or two sentences on how the group is\n"
	"  --check         the same as one line for monitoring; without a name, of all groups\n"
	"  --json          everything as one JSON object; with --follow, one a line\n"
	"  --prom          the text format of Prometheus; without a name, of all groups\n"
	"  --watch [SEC]   a table that is drawn again every SEC seconds (1); q or Ctrl-C ends\n"
	"  --follow        events of all processes as they come, until the group is over\n"
	"  --save FILE     a copy of the segment, with the time and the state of the processes\n"
	"  --gc            removes what groups left behind of which nobody lives: the only one that\n"
	"                  changes anything; with a name, of that group\n"
	"\n"
	"What to show:\n"
	"  --show VIEWS    of ranks, channels, operations, quarantine, barriers, logs, messages,\n"
	"                  events, joined by commas (all)\n"
	"  --messages N    the last N messages of each channel (8)\n"
	"  --events N      the last N events of all flight recorders (16)\n"
	"  --last N        both, and of the call logs the last N calls (with --show logs: 8)\n"
	"  --channel NAME  of that channel alone: LOOKUP, STORE, ... USER3\n"
	"  --tag TAG       of that tag, a name or a number\n"
	"  --rank R        of that rank, or leader\n"
	"  --request ID[/ATTEMPT]\n"
	"                  of that request\n"
	"\n"
	"Others:\n"
	"  --dir DIR       where the segments are (/dev/shm)\n"
	"  --stall SEC     what takes longer is a stall (10)\n"
	"  --dry-run       with --gc: says what it would remove\n"
	"  --force         with --save: replaces FILE\n"
	"  --help, --version\n"
	"\n"
	"Exit status: 0 fine; 1 ranks made different calls (drift), or somebody waits in vain (stall);\n"
	"2 it is over: its leader or a rank died, it was declared failed, or a newer epoch exists;\n"
	"3 it cannot be read; 64 wrong usage. --watch, --follow, --prom, --save and --gc: 0 when they\n"
	"did their work.\n";

enum {
	OPT_DIR = 256,
	OPT_SHOW,
	OPT_MESSAGES,
	OPT_EVENTS,
	OPT_LAST,
	OPT_CHANNEL,
	OPT_TAG,
	OPT_RANK,
	OPT_REQUEST,
	OPT_STALL,
	OPT_JSON,
	OPT_FORCE,
	OPT_DRY_RUN,
	OPT_HELP,
	OPT_VERSION,
	OPT_MODE /* + enum dump_mode */
};

static const struct option table[] = {
	{ "dir", required_argument, NULL, OPT_DIR },
	{ "show", required_argument, NULL, OPT_SHOW },
	{ "messages", required_argument, NULL, OPT_MESSAGES },
	{ "events", required_argument, NULL, OPT_EVENTS },
	{ "last", required_argument, NULL, OPT_LAST },
	{ "channel", required_argument, NULL, OPT_CHANNEL },
	{ "tag", required_argument, NULL, OPT_TAG },
	{ "rank", required_argument, NULL, OPT_RANK },
	{ "request", required_argument, NULL, OPT_REQUEST },
	{ "stall", required_argument, NULL, OPT_STALL },
	{ "json", no_argument, NULL, OPT_JSON },
	{ "force", no_argument, NULL, OPT_FORCE },
	{ "dry-run", no_argument, NULL, OPT_DRY_RUN },
	{ "help", no_argument, NULL, OPT_HELP },
	{ "version", no_argument, NULL, OPT_VERSION },
	{ "verdict", no_argument, NULL, OPT_MODE + DUMP_VERDICT },
	{ "check", no_argument, NULL, OPT_MODE + DUMP_CHECK },
	{ "prom", no_argument, NULL, OPT_MODE + DUMP_PROM },
	{ "watch", optional_argument, NULL, OPT_MODE + DUMP_WATCH },
	{ "follow", no_argument, NULL, OPT_MODE + DUMP_FOLLOW },
	{ "save", required_argument, NULL, OPT_MODE + DUMP_SAVE },
	{ "gc", no_argument, NULL, OPT_MODE + DUMP_GC },
	{ NULL, 0, NULL, 0 },
};

static const char *name_of(int c)
{
	for (size_t i = 0; table[i].name; i++)
		if (table[i].val == c)
			return table[i].name;
	return "?";
}

static int wrong(int c, const char *text, const char *needed)
{
	fprintf(stderr, "ring-dump: --%s %s: %s is needed\n", name_of(c), text, needed);
	return DUMP_USAGE;
}

/* Digits alone, up to max: their end; NULL: it is not. */
static const char *digits(const char *text, uint64_t max, uint64_t *ret)
{
	uint64_t v = 0;

	if (*text < '0' || *text > '9')
		return NULL;
	for (; *text >= '0' && *text <= '9'; text++) {
		uint64_t d = (uint64_t)(*text - '0');

		if (v > (max - d) / 10)
			return NULL;
		v = v * 10 + d;
	}
	*ret = v;
	return text;
}

static int number(int c, const char *text, uint32_t max, uint32_t *ret)
{
	const char *end;
	char needed[64];
	uint64_t v;

	end = digits(text, max, &v);
	if (!end || *end) {
		snprintf(needed, sizeof needed, "a number from 0 to %u", (unsigned)max);
		return wrong(c, text, needed);
	}
	*ret = (uint32_t)v;
	return 0;
}

/* "2", "0.5": up to a day. -1: it is not. */
static int64_t seconds(const char *text)
{
	uint64_t whole, ns = 0, unit = 1000000000u;
	const char *at = digits(text, 86400, &whole);

	if (!at)
		return -1;
	if (*at == '.' && at[1])
		for (at++; *at >= '0' && *at <= '9'; at++)
			ns += (unit /= 10) * (uint64_t)(*at - '0');
	return *at ? -1 : (int64_t)(whole * 1000000000u + ns);
}

static int duration(int c, const char *text, int64_t least_ns, uint64_t *ret_ns)
{
	int64_t ns = seconds(text);

	if (ns < least_ns)
		return wrong(c, text,
			     least_ns ? "a number of seconds from 0.1 to 86400"
				      : "a number of seconds from 0 to 86400");
	*ret_ns = (uint64_t)ns;
	return 0;
}

static int views(int c, const char *text, uint32_t *ret)
{
	static const char *const names[] = { "ranks",	 "channels", "operations", "quarantine",
					     "barriers", "logs",     "messages",   "events" };
	const size_t n = sizeof names / sizeof names[0];
	const char *at = text;

	for (*ret = 0; *at; at += *at == ',') {
		size_t len = strcspn(at, ","), i;

		for (i = 0; i < n; i++)
			if (strlen(names[i]) == len && !strncmp(at, names[i], len))
				break;
		if (i < n)
			*ret |= 1u << i;
		else if (len == 3 && !strncmp(at, "all", 3))
			*ret = DUMP_ALL;
		else
			break;
		at += len;
	}
	if (*at || !*ret)
		return wrong(c, text,
			     "a list of ranks, channels, operations, quarantine, barriers, logs, "
			     "messages, events, or all");
	return 0;
}

static int channel(int c, const char *text, int64_t *ret)
{
	for (uint32_t i = 0; i < KVR_CHANNELS; i++)
		if (!strcasecmp(text, kvr_channel_name(i))) {
			*ret = i;
			return 0;
		}
	return wrong(
		c, text,
		"a channel (LOOKUP, STORE, COMPLETE, LOAD, PREFETCH, CONTROL, USER0 to USER3)");
}

static int tag(int c, const char *text, int64_t *ret)
{
	const char *end;
	uint64_t v;

	for (uint32_t i = 1; i < KVR_TAG_USER; i++)
		if (strcmp(kvr_tag_name(i), "?") != 0 && !strcasecmp(text, kvr_tag_name(i))) {
			*ret = i;
			return 0;
		}
	end = digits(text, UINT32_MAX, &v);
	if (!end || *end)
		return wrong(c, text, "a tag of the library (STORE_BEGIN) or a number");
	*ret = (int64_t)v;
	return 0;
}

static int rank(int c, const char *text, int64_t *ret)
{
	uint32_t v;
	int err;

	if (!strcmp(text, "leader")) {
		*ret = DUMP_LEADER;
		return 0;
	}
	err = number(c, text, KVR_MAX_RANKS - 1, &v);
	if (!err)
		*ret = v;
	return err;
}

static int request(int c, const char *text, struct dump_filter *f)
{
	uint64_t id, attempt = 0;
	const char *at = digits(text, UINT64_MAX, &id), *slash = at;

	if (at && *at == '/')
		at = digits(at + 1, UINT32_MAX, &attempt);
	if (!at || *at)
		return wrong(c, text, "a request's number, or number/attempt,");
	f->by_request = 1;
	f->request = id;
	f->attempt = *slash ? (int64_t)attempt : -1;
	return 0;
}

static int last(int c, const char *text, struct dump_want *want)
{
	uint32_t n;
	int err = number(c, text, DUMP_MESSAGES_MAX, &n);

	if (err)
		return err;
	want->messages = want->events = n;
	want->calls = n < DUMP_CALLS_MAX ? n : DUMP_CALLS_MAX;
	return 0;
}

static int mode(struct dump_options *o, int c, char **argv)
{
	enum dump_mode m = (enum dump_mode)(c - OPT_MODE);

	if (o->mode != DUMP_SHOW && o->mode != m) {
		fprintf(stderr, "ring-dump: --%s and --%s: one of them at a time\n",
			name_of((int)o->mode + OPT_MODE), name_of(c));
		return DUMP_USAGE;
	}
	o->mode = m;
	if (m == DUMP_SAVE)
		o->save = optarg;
	if (m != DUMP_WATCH)
		return 0;
	if (!optarg && argv[optind] && seconds(argv[optind]) >= 0)
		optarg = argv[optind++];
	return optarg ? duration(c, optarg, 100000000, &o->interval_ns) : 0;
}

static int option(struct dump_options *o, int c, char **argv)
{
	struct dump_want *w = &o->want;

	switch (c) {
	case OPT_DIR:
		o->dir = optarg;
		return 0;
	case OPT_SHOW:
		return views(c, optarg, &w->views);
	case OPT_MESSAGES:
		return number(c, optarg, DUMP_MESSAGES_MAX, &w->messages);
	case OPT_EVENTS:
		return number(c, optarg, DUMP_EVENTS_MAX, &w->events);
	case OPT_LAST:
		return last(c, optarg, w);
	case OPT_CHANNEL:
		return channel(c, optarg, &w->filter.channel);
	case OPT_TAG:
		return tag(c, optarg, &w->filter.tag);
	case OPT_RANK:
		return rank(c, optarg, &w->filter.rank);
	case OPT_REQUEST:
		return request(c, optarg, &w->filter);
	case OPT_STALL:
		return duration(c, optarg, 0, &w->stall_ns);
	case OPT_JSON:
		o->json = 1;
		return 0;
	case OPT_FORCE:
		o->force = 1;
		return 0;
	case OPT_DRY_RUN:
		o->dry_run = 1;
		return 0;
	default:
		return mode(o, c, argv);
	}
}

static int refuse(const char *why)
{
	fprintf(stderr, "ring-dump: %s\n", why);
	return DUMP_USAGE;
}

static int unknown(int c, const char *text)
{
	char letter[3] = { '-', (char)optopt, 0 };

	fprintf(stderr, "ring-dump: %s %s; --help lists the options\n",
		optopt > ' ' && optopt < 127 ? letter : text,
		c == ':' ? "needs a value" : "is no option, is not clear, or takes no value");
	return DUMP_USAGE;
}

/* What fits together. */
static int check(const struct dump_options *o)
{
	if (o->json && o->mode != DUMP_SHOW && o->mode != DUMP_FOLLOW)
		return refuse("--json is another form of the whole, or of --follow; not of this");
	if (o->dry_run && o->mode != DUMP_GC)
		return refuse("--dry-run goes with --gc: nothing else changes anything");
	if (o->force && o->mode != DUMP_SAVE)
		return refuse("--force goes with --save");
	if (!o->what && (o->mode == DUMP_VERDICT || o->mode == DUMP_FOLLOW || o->mode == DUMP_SAVE))
		return refuse("which group? --verdict, --follow and --save need a name or a file");
	if (o->what && o->mode == DUMP_GC && strchr(o->what, '/'))
		return refuse("--gc needs a group's name, and --dir for its directory, not a file");
	return -1;
}

int dump_options(int argc, char **argv, struct dump_options *o)
{
	int c, err = 0;

	*o = (struct dump_options){ .interval_ns = 1000000000u,
				    .want = { .views = DUMP_ALL,
					      .messages = 8,
					      .events = 16,
					      .filter = DUMP_EVERYTHING,
					      .stall_ns = 10000000000u } };
	opterr = 0;
	while (!err && (c = getopt_long(argc, argv, ":", table, NULL)) != -1) {
		if (c == OPT_HELP || c == OPT_VERSION) {
			fputs(c == OPT_HELP ? usage : "ring-dump (kvring) " KVR_VERSION_STRING "\n",
			      stdout);
			return 0;
		}
		if (c == '?' || c == ':')
			return unknown(c, argv[optind - 1]);
		err = option(o, c, argv);
	}
	if (err)
		return err;
	if (argc - optind > 1) {
		fprintf(stderr, "ring-dump: one group at a time: '%s' is too many\n",
			argv[optind + 1]);
		return DUMP_USAGE;
	}
	o->what = optind < argc ? argv[optind] : NULL;
	if (o->want.views != DUMP_ALL && o->want.views & DUMP_LOGS && !o->want.calls)
		o->want.calls = 8;
	return check(o);
}
