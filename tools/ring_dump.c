/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring-dump: looks into a group from outside. It opens the segment read-only, reads with pread,
 * takes no lock and registers nothing, so it cannot disturb; and it works when nobody is left to
 * answer. (--gc alone changes anything: see dump_gc.c.)
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dump_options.h"
#include "kvring/err.h"

static const struct dump_want *summary(const struct dump_options *o)
{
	static struct dump_want want;

	want = (struct dump_want){ .filter = DUMP_EVERYTHING, .stall_ns = o->want.stall_ns };
	return &want;
}

static const char *sentence(int err)
{
	return err == -ENOMEM ? "out of memory" : kvr_explain();
}

/* Looks at one segment. 0 or -errno; dump_free() in any case. */
static int look(const char *path, const struct dump_want *want, struct dump *d)
{
	struct kvr_inspect *in;
	int err = kvr_inspect_open(path, &in);

	memset(d, 0, sizeof *d);
	if (err)
		return err;
	err = dump_read(in, path, want, d);
	kvr_inspect_close(in);
	return err;
}

static int worse(int a, int b)
{
	return a > b ? a : b;
}

/* --- all groups ------------------------------------------------------------------------------ */

static int list(const struct dump_options *o, const struct dump_paths *all)
{
	static struct dump d; /* large */
	int status = DUMP_FINE, shown = 0;

	if (o->json)
		fputs("{\"groups\":[", stdout);
	for (uint32_t i = 0; i < all->count; i++) {
		int err = look(all->path[i], summary(o), &d);

		if (err != -ENOENT) /* else it ended in between */
			(o->json ? dump_list_json : dump_list_text)(
				&d, all->path[i], err ? sentence(err) : NULL, !shown++, stdout);
		/* Retired segments are kept on purpose and say nothing about the present. */
		if (!err && !d.group.retired_by)
			status = worse(status, d.status);
		dump_free(&d);
	}
	if (o->json)
		fputs("]}\n", stdout);
	else if (!shown)
		printf("no groups of uid %u in %s\n", (unsigned)geteuid(),
		       o->dir ? o->dir : "/dev/shm");
	return status;
}

/* A line for each current group. */
static int check_all(const struct dump_options *o, const struct dump_paths *all)
{
	static struct dump d; /* large */
	int status = DUMP_FINE, shown = 0;

	for (uint32_t i = 0; i < all->count; i++) {
		int err = look(all->path[i], summary(o), &d);

		if (!err && !d.group.retired_by) {
			printf("%s: %s\n", d.group.name, d.verdict);
			status = worse(status, d.status);
			shown++;
		} else if (err && err != -ENOENT) {
			printf("%s: cannot read: %s\n", all->path[i], sentence(err));
			status = DUMP_UNREADABLE;
			shown++;
		}
		dump_free(&d);
	}
	if (!shown)
		printf("no groups of uid %u in %s\n", (unsigned)geteuid(),
		       o->dir ? o->dir : "/dev/shm");
	return status;
}

/* All at the same time: each name comes once. */
static int prom_all(const struct dump_options *o, const struct dump_paths *all)
{
	struct dump **groups = calloc(all->count + 1, sizeof(struct dump *));
	uint32_t n = 0, unreadable = 0;
	int err = groups ? 0 : -ENOMEM;

	for (uint32_t i = 0; !err && i < all->count; i++) {
		struct dump *d = calloc(1, sizeof *d);
		int looked = d ? look(all->path[i], summary(o), d) : -ENOMEM;

		if (looked == -ENOMEM)
			err = looked;
		else if (looked && looked != -ENOENT)
			unreadable++;
		if (!looked && !d->group.retired_by) {
			groups[n++] = d;
			continue;
		}
		if (d)
			dump_free(d);
		free(d);
	}
	if (!err)
		dump_prom((const struct dump *const *)groups, n, unreadable, stdout);
	else
		fprintf(stderr, "ring-dump: out of memory\n");
	while (n) {
		dump_free(groups[--n]);
		free(groups[n]);
	}
	free(groups);
	return err ? DUMP_UNREADABLE : DUMP_FINE;
}

static int all_groups(const struct dump_options *o)
{
	struct dump_paths all;
	int err = dump_paths(o->dir, &all), status = DUMP_UNREADABLE;

	if (err)
		fprintf(stderr, "ring-dump: %s\n", sentence(err));
	else if (o->mode == DUMP_CHECK)
		status = check_all(o, &all);
	else if (o->mode == DUMP_PROM)
		status = prom_all(o, &all);
	else
		status = list(o, &all);
	free(all.path);
	return status;
}

/* --- one group ------------------------------------------------------------------------------- */

static int unreadable(const struct dump_options *o, int err)
{
	int file = err == -ENOENT && !strchr(o->what, '/') && !access(o->what, F_OK);

	if (o->mode == DUMP_CHECK)
		printf("%s: cannot read: %s\n", o->what, sentence(err));
	else if (err == -ENOENT && !strchr(o->what, '/'))
		fprintf(stderr, "ring-dump: no group '%s': %s%s%s\n", o->what, kvr_explain(),
			file ? "; for the file say ./" : "", file ? o->what : "");
	else
		fprintf(stderr, "ring-dump: %s\n", sentence(err));
	return DUMP_UNREADABLE;
}

static int print(const struct dump_options *o, const struct dump *d)
{
	switch (o->mode) {
	case DUMP_CHECK:
		printf("%s: %s\n", d->group.name, d->verdict);
		return d->status;
	case DUMP_VERDICT:
		puts(d->verdict);
		return d->status;
	case DUMP_PROM:
		dump_prom(&d, 1, 0, stdout);
		return DUMP_FINE;
	default:
		(o->json ? dump_json : dump_text)(d, stdout);
		return d->status;
	}
}

static int one_group(const struct dump_options *o)
{
	static struct dump d; /* large */
	struct kvr_inspect *in;
	char path[4096];
	int err = dump_open(o, &in, path, sizeof path), status;

	if (err)
		return unreadable(o, err);
	err = dump_read(in, path, o->mode == DUMP_SHOW ? &o->want : summary(o), &d);
	status = err ? unreadable(o, err) : print(o, &d);
	kvr_inspect_close(in);
	dump_free(&d);
	return status;
}

static int save(const struct dump_options *o)
{
	struct kvr_inspect *in;
	char path[4096];
	int err = dump_open(o, &in, path, sizeof path);

	if (err)
		return unreadable(o, err);
	err = kvr_inspect_save(in, o->save, o->force);
	kvr_inspect_close(in);
	if (err) {
		fprintf(stderr, "ring-dump: %s%s\n", kvr_explain(),
			err == -EEXIST ? " (--force)" : "");
		return DUMP_UNREADABLE;
	}
	printf("%s saved to %s\n", path, o->save);
	return DUMP_FINE;
}

static int run(const struct dump_options *o)
{
	switch (o->mode) {
	case DUMP_WATCH:
		return dump_watch(o);
	case DUMP_FOLLOW:
		return dump_follow(o);
	case DUMP_SAVE:
		return save(o);
	case DUMP_GC:
		return dump_gc(o);
	default:
		return o->what ? one_group(o) : all_groups(o);
	}
}

int main(int argc, char **argv)
{
	struct dump_options o;
	int status = dump_options(argc, argv, &o);

	if (status < 0)
		status = run(&o);
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "ring-dump: cannot write: %s\n", kvr_strerror(errno));
		return DUMP_UNREADABLE;
	}
	return status;
}
