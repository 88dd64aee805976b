/* SPDX-License-Identifier: Apache-2.0 */
/* What ring-dump was asked for, and the ways to answer. */
#ifndef DUMP_OPTIONS_H
#define DUMP_OPTIONS_H

#include "dump.h"

enum dump_mode {
	DUMP_SHOW, /* one group; without a name the list */
	DUMP_VERDICT,
	DUMP_CHECK,
	DUMP_PROM,
	DUMP_WATCH,
	DUMP_FOLLOW,
	DUMP_SAVE,
	DUMP_GC
};

struct dump_options {
	enum dump_mode mode;
	const char *dir;
	const char *what; /* name or file; NULL: all groups */
	const char *save;
	uint64_t interval_ns; /* of --watch */
	struct dump_want want;
	int json, force, dry_run;
};

/* -1: go on; else exit with it. */
int dump_options(int argc, char **argv, struct dump_options *ret);

/* A segment by name or file, in whatever directory; *ret_path for people. */
int dump_open(const struct dump_options *o, struct kvr_inspect **ret_in, char *ret_path,
	      size_t size);

/* Paths of the segments of all groups, sorted. */
struct dump_paths {
	char (*path)[384];
	uint32_t count;
};
/* 0 or -errno with the sentence. */
int dump_paths(const char *dir, struct dump_paths *ret);

/* Each returns the exit status. */
int dump_watch(const struct dump_options *o);
int dump_follow(const struct dump_options *o);
int dump_gc(const struct dump_options *o);

/* Set by SIGINT, SIGTERM and SIGHUP, once dump_signals() was called. */
extern volatile int dump_ended;
void dump_signals(void);
/* Waits so long, or until dump_ended. */
void dump_pause(uint64_t ns);

#endif
