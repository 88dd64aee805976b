/* SPDX-License-Identifier: Apache-2.0 */
/* Segments by name, by file, or all of them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dump_options.h"

/* Without '/' it is a group's name, whatever lies in the current directory. */
int dump_open(const struct dump_options *o, struct kvr_inspect **ret_in, char *ret_path,
	      size_t size)
{
	snprintf(ret_path, size, "%s", o->what);
	if (strchr(o->what, '/'))
		return kvr_inspect_open(o->what, ret_in);
	snprintf(ret_path, size, "%s/kvr-%u-%s", o->dir ? o->dir : "/dev/shm", (unsigned)geteuid(),
		 o->what);
	return kvr_inspect_open_name(o->dir, o->what, ret_in);
}

struct collect {
	struct dump_paths *paths;
	int failed;
};

static void collect(void *arg, const char *path)
{
	struct collect *c = arg;
	struct dump_paths *p = c->paths;
	void *more = NULL;

	if (!(p->count & (p->count - 1)) || !p->path)
		more = realloc(p->path, (p->count ? 2 * (size_t)p->count : 1) * sizeof *p->path);
	else
		more = p->path;
	if (!more) {
		c->failed = 1;
		return;
	}
	p->path = more;
	snprintf(p->path[p->count++], sizeof *p->path, "%s", path);
}

static int by_text(const void *a, const void *b)
{
	return strcmp(a, b);
}

int dump_paths(const char *dir, struct dump_paths *ret)
{
	struct collect c = { ret, 0 };
	int err;

	*ret = (struct dump_paths){ 0 };
	err = kvr_inspect_list(dir, collect, &c);
	if (err >= 0 && ret->count)
		qsort(ret->path, ret->count, sizeof *ret->path, by_text);
	return err < 0 ? err : c.failed ? -ENOMEM : 0;
}
