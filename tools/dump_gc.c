/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --gc: removes what groups left behind, by name. Nothing is removed of a name as long as anything
 * of it may be somebody's: a living process in any of its segments (an old leader that was fenced,
 * too), a file that is not ours or that this version cannot judge, a pool that somebody has open.
 * kvr_group_remove() then decides again, under the name lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dump_options.h"
#include "kvring/err.h"
#include "kvring/group.h"

#define NAMES_MAX 4096u

/* What is known of one name. */
struct name {
	char name[KVR_NAME_MAX];
	uint32_t files, segments;
	uint64_t bytes;
	char keep[400]; /* why it stays; "" it may go */
	int unsure;	/* that is since it cannot be judged, not since somebody lives */
};

struct gc {
	const struct dump_options *o;
	struct name *names;
	uint32_t count;
	int failed;
};

static struct name *name_of(struct gc *gc, const char *name)
{
	for (uint32_t i = 0; i < gc->count; i++)
		if (!strcmp(gc->names[i].name, name))
			return &gc->names[i];
	if (gc->count == NAMES_MAX) {
		gc->failed = 1;
		return NULL;
	}
	snprintf(gc->names[gc->count].name, KVR_NAME_MAX, "%s", name);
	return &gc->names[gc->count++];
}

static void say_alive(struct dump_line *l, const struct kvr_inspect_proc *p, const char *who)
{
	if (p->alive > 0)
		dump_say(l, "%s%s (pid %" PRIu32 ") lives", l->used ? ", " : "", who, p->pid);
}

/* A segment, current or retired: who of it lives? */
static void look_segment(struct name *n, const char *path)
{
	struct dump_line l = { n->keep, sizeof n->keep, strlen(n->keep) };
	struct kvr_inspect *in;
	struct kvr_inspect_group g;
	struct kvr_inspect_proc p;
	int err = kvr_inspect_open(path, &in);
	char who[16];

	n->segments++;
	if (!err) {
		err = kvr_inspect_group(in, &g);
		if (!err && g.same_boot) {
			err = kvr_inspect_proc(in, UINT32_MAX, &p);
			if (!err)
				say_alive(&l, &p, "its leader");
			for (uint32_t r = 0; !err && r < g.ranks; r++) {
				snprintf(who, sizeof who, "rank %" PRIu32, r);
				err = kvr_inspect_proc(in, r, &p);
				if (!err)
					say_alive(&l, &p, who);
			}
		}
		kvr_inspect_close(in);
	}
	if (!err || err == -ENOENT)
		return;
	dump_say(&l, "%s%s", l.used ? "; " : "", kvr_explain());
	n->unsure = 1;
}

/*
 * Whoever uses a pool has it open for writing, and then nobody is given a lease for reading. What
 * is no pool is nobody's to remove.
 */
static void look_pool(struct name *n, const char *path)
{
	struct dump_line l = { n->keep, sizeof n->keep, strlen(n->keep) };
	int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	char magic[8] = "";

	if (fd < 0)
		return; /* gone, or kvr_group_remove() will say */
	if (read(fd, magic, sizeof magic) != sizeof magic || memcmp(magic, "KVRPOOL1", 8) != 0) {
		dump_say(&l, "%s%s is no pool", l.used ? "; " : "", path);
		n->unsure = 1;
	} else if (fcntl(fd, F_SETLEASE, F_RDLCK)) {
		n->unsure = errno != EAGAIN;
		dump_say(&l, "%s%s %s open", l.used ? "; " : "",
			 n->unsure ? "it cannot be told who has" : "somebody has", path);
	} else {
		fcntl(fd, F_SETLEASE, F_UNLCK);
	}
	close(fd);
}

static void add(void *arg, const struct kvr_inspect_file *f)
{
	struct gc *gc = arg;
	struct name *n;
	struct stat st;

	if (gc->o->what && strcmp(f->name, gc->o->what) != 0)
		return;
	n = name_of(gc, f->name);
	if (!n)
		return;
	n->files++;
	if (!lstat(f->path, &st))
		n->bytes += (uint64_t)st.st_blocks * 512;
	if (f->kind == KVR_FILE_SEGMENT || f->kind == KVR_FILE_RETIRED)
		look_segment(n, f->path);
	else if (f->kind == KVR_FILE_POOL)
		look_pool(n, f->path);
}

static int by_name(const void *a, const void *b)
{
	const struct name *x = a, *y = b;

	return strcmp(x->name, y->name);
}

/* A line for each. 0; 1: it could not be removed. */
static int remove_one(const struct gc *gc, const struct name *n)
{
	const char *what = gc->o->dry_run ? "would remove" : "removed";
	int err;

	if (n->keep[0]) {
		printf("%-12s %s: %s\n", n->unsure ? "left alone" : "alive", n->name, n->keep);
		return 0;
	}
	err = gc->o->dry_run ? 0 : kvr_group_remove(n->name, gc->o->dir);
	/* A lock file alone: whoever held it was killed, and looking removed it. */
	if (err == -ENOENT && !n->segments)
		err = 0;
	if (err) {
		printf("%-12s %s: %s\n", err == -EBUSY ? "alive" : "left alone", n->name,
		       kvr_explain());
		return err != -EBUSY && err != -ENOENT;
	}
	printf("%-12s %s: %" PRIu32 " file%s, %.1f MiB; nobody of it lives\n", what, n->name,
	       n->files, n->files == 1 ? "" : "s", (double)n->bytes / 1048576);
	return 0;
}

int dump_gc(const struct dump_options *o)
{
	struct gc gc = { .o = o };
	int failed = 0, err;

	signal(SIGIO, SIG_IGN); /* somebody opens a pool while we have the lease */
	gc.names = calloc(NAMES_MAX, sizeof *gc.names);
	if (!gc.names) {
		fprintf(stderr, "ring-dump: out of memory\n");
		return DUMP_UNREADABLE;
	}
	err = kvr_inspect_files(o->dir, add, &gc);
	if (err < 0) {
		fprintf(stderr, "ring-dump: %s\n", kvr_explain());
		free(gc.names);
		return DUMP_UNREADABLE;
	}
	qsort(gc.names, gc.count, sizeof *gc.names, by_name);
	for (uint32_t i = 0; i < gc.count; i++)
		failed |= remove_one(&gc, &gc.names[i]);
	if (!gc.count)
		printf("nothing of %s%suid %u in %s\n", o->what ? o->what : "", o->what ? ", " : "",
		       (unsigned)geteuid(), o->dir ? o->dir : "/dev/shm");
	if (gc.failed)
		fprintf(stderr, "ring-dump: more than %u names; run it again\n", NAMES_MAX);
	free(gc.names);
	return failed ? DUMP_UNREADABLE : DUMP_FINE;
}
