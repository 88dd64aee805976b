/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring-dump: looks into a group from outside. It opens the segment read-only, reads with pread,
 * takes no lock and registers nothing, so it cannot disturb; and it works when nobody is left to
 * answer.
 */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dump.h"
#include "kvring/err.h"
#include "kvring/version.h"

static const char usage[] =
	"usage: ring-dump [--dir DIR] [options] [NAME|FILE]\n"
	"Shows a kvring group, live or dead, without disturbing it; without a name, lists the groups.\n"
	"\n"
	"NAME is a group's name; FILE, with a '/' in it (./FILE), is a segment, also a retired or saved\n"
	"one.\n"
	"\n"
	"  --dir DIR       where the segments are (/dev/shm)\n"
	"  --messages N    the last N messages of each channel (8)\n"
	"  --events N      the last N events of all flight recorders (16)\n"
	"  --json          one JSON object\n"
	"  --help, --version\n"
	"\n"
	"Exit status: 0 shown and alive; 2 shown, and its leader or a rank is dead or a newer epoch\n"
	"exists; 3 it cannot be read; 64 wrong usage.\n";

struct options {
	const char *dir;
	const char *what;
	uint32_t messages;
	uint32_t events;
	int json;
};

struct list {
	const struct options *o;
	int count;
	int status;
};

static int number(const char *option, const char *text, uint32_t max, uint32_t *ret)
{
	char *end;
	unsigned long v;

	errno = 0;
	v = strtoul(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno || v > max) {
		fprintf(stderr, "ring-dump: --%s %s: a number from 0 to %u is needed\n", option,
			text, (unsigned)max);
		return DUMP_USAGE;
	}
	*ret = (uint32_t)v;
	return 0;
}

/* -1: go on; else exit with it. */
static int parse(int argc, char **argv, struct options *o)
{
	static const struct option table[] = {
		{ "dir", required_argument, NULL, 'd' },
		{ "messages", required_argument, NULL, 'm' },
		{ "events", required_argument, NULL, 'e' },
		{ "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'v' },
		{ NULL, 0, NULL, 0 },
	};
	int c, err = 0;

	while (!err && (c = getopt_long(argc, argv, "", table, NULL)) != -1) {
		switch (c) {
		case 'd':
			o->dir = optarg;
			break;
		case 'm':
			err = number("messages", optarg, DUMP_MESSAGES_MAX, &o->messages);
			break;
		case 'e':
			err = number("events", optarg, DUMP_EVENTS_MAX, &o->events);
			break;
		case 'j':
			o->json = 1;
			break;
		case 'h':
			fputs(usage, stdout);
			return 0;
		case 'v':
			puts("ring-dump (kvring) " KVR_VERSION_STRING);
			return 0;
		default:
			fputs(usage, stderr);
			return DUMP_USAGE;
		}
	}
	if (!err && argc - optind > 1) {
		fprintf(stderr, "ring-dump: one group at a time: '%s' is too many\n",
			argv[optind + 1]);
		err = DUMP_USAGE;
	}
	o->what = optind < argc ? argv[optind] : NULL;
	return err ? err : -1;
}

static void list_one(void *arg, const char *path)
{
	static struct dump d; /* large */
	struct list *l = arg;
	struct kvr_inspect *in;
	int err = kvr_inspect_open(path, &in);
	char why[1024] = "";

	memset(&d, 0, sizeof d);
	if (!err) {
		err = dump_read(in, path, 0, 0, &d);
		kvr_inspect_close(in);
	}
	if (err == -ENOENT) /* it ended in between */
		return;
	if (err)
		snprintf(why, sizeof why, "%s", kvr_explain());
	(l->o->json ? dump_list_json : dump_list_text)(&d, path, err ? why : NULL, !l->count,
						       stdout);
	/* Retired segments are kept on purpose and say nothing about the present. */
	if (!err && !d.group.retired_by && d.status && !l->status)
		l->status = d.status;
	l->count++;
	dump_free(&d);
}

static int list(const struct options *o)
{
	struct list l = { o, 0, DUMP_OK };

	if (o->json)
		fputs("{\"groups\":[", stdout);
	if (kvr_inspect_list(o->dir, list_one, &l) < 0) {
		fprintf(stderr, "ring-dump: %s\n", kvr_explain());
		return DUMP_UNREADABLE;
	}
	if (o->json)
		fputs("]}\n", stdout);
	else if (!l.count)
		printf("no groups of uid %u in %s\n", (unsigned)geteuid(),
		       o->dir ? o->dir : "/dev/shm");
	return l.status;
}

/* Without '/' it is a group's name, whatever lies in the current directory. */
static int open_what(const struct options *o, struct kvr_inspect **ret_in, char *ret_path,
		     size_t size)
{
	snprintf(ret_path, size, "%s", o->what);
	if (strchr(o->what, '/'))
		return kvr_inspect_open(o->what, ret_in);
	snprintf(ret_path, size, "%s/kvr-%u-%s", o->dir ? o->dir : "/dev/shm", (unsigned)geteuid(),
		 o->what);
	return kvr_inspect_open_name(o->dir, o->what, ret_in);
}

static int show(const struct options *o)
{
	static struct dump d; /* large */
	struct kvr_inspect *in;
	char path[4096];
	int err = open_what(o, &in, path, sizeof path);

	if (err == -ENOENT && !strchr(o->what, '/')) {
		fprintf(stderr, "ring-dump: no group '%s': %s%s%s\n", o->what, kvr_explain(),
			access(o->what, F_OK) ? "" : "; for the file say ./",
			access(o->what, F_OK) ? "" : o->what);
		return DUMP_UNREADABLE;
	}
	if (!err) {
		err = dump_read(in, path, o->messages, o->events, &d);
		kvr_inspect_close(in);
	}
	if (!err)
		(o->json ? dump_json : dump_text)(&d, stdout);
	else if (err == -ENOMEM)
		fprintf(stderr, "ring-dump: out of memory\n");
	else
		fprintf(stderr, "ring-dump: %s\n", kvr_explain());
	dump_free(&d);
	return err ? DUMP_UNREADABLE : d.status;
}

int main(int argc, char **argv)
{
	struct options o = { .messages = 8, .events = 16 };
	int status = parse(argc, argv, &o);

	if (status < 0)
		status = o.what ? show(&o) : list(&o);
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "ring-dump: cannot write: %s\n", kvr_strerror(errno));
		return DUMP_UNREADABLE;
	}
	return status;
}
