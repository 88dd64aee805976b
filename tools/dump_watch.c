/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks at a group, or at all, again and again. The segment is opened anew each time: the same name
 * may be a newer epoch by now, or nothing.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "dump_options.h"
#include "dump_table.h"
#include "dump_term.h"
#include "kvring/err.h"

#define EVENTS_MAX 200u /* that a terminal shows */

struct watch {
	const struct dump_options *o;
	struct dump_term term;
	struct dump d;
	struct dump_counts before;
	char last[1024]; /* verdict of the last look that found a group */
};

/* Columns and rows are those of the terminal; elsewhere nothing is cut. */
static uint32_t columns(const struct watch *w)
{
	return w->term.is_tty ? w->term.columns : 200;
}

/* 1: w->d is what was found; dump_free() it. */
static int look(struct watch *w, FILE *out)
{
	struct dump_want want = w->o->want;
	struct kvr_inspect *in;
	char path[4096];
	int err = dump_open(w->o, &in, path, sizeof path);

	want.messages = want.calls = 0;
	if (w->term.is_tty) /* more than fits is cut */
		want.events = w->term.rows < EVENTS_MAX ? w->term.rows : EVENTS_MAX;
	if (!err) {
		err = dump_read(in, path, &want, &w->d);
		kvr_inspect_close(in);
	}
	if (!err) {
		dump_table(&w->d, &w->before, columns(w), w->term.is_tty ? 6 : 16,
			   w->o->interval_ns, out);
		dump_counts(&w->d, &w->before);
		snprintf(w->last, sizeof w->last, "%s", w->d.verdict);
	} else {
		dump_table_title(w->o->what, w->o->interval_ns, out);
		fprintf(out, "%s%s\n", err == -ENOENT ? "there is no such group now: " : "",
			err == -ENOMEM ? "out of memory" : kvr_explain());
		if (w->last[0])
			fprintf(out, "when it was last seen: %s\n", w->last);
		dump_free(&w->d);
	}
	return !err;
}

/* The newest events, in the rows that are left. */
static void fill(const struct watch *w, const char *text, FILE *out)
{
	uint32_t rows = 0;

	for (; *text; text++)
		rows += *text == '\n';
	if (!w->term.is_tty)
		rows = 0;
	if (rows + 2 < w->term.rows || !w->term.is_tty) {
		fprintf(out, "\n");
		dump_table_events(&w->d, w->term.is_tty ? w->term.rows - rows - 1 : EVENTS_MAX,
				  out);
	}
}

static void look_all(struct watch *w, FILE *out)
{
	const struct dump_want want = { .filter = DUMP_EVERYTHING,
					.stall_ns = w->o->want.stall_ns };
	struct dump_paths all;
	uint32_t shown = 0;

	dump_table_title("all groups", w->o->interval_ns, out);
	if (dump_paths(w->o->dir, &all))
		fprintf(out, "%s\n", kvr_explain());
	for (uint32_t i = 0; i < all.count; i++) {
		struct kvr_inspect *in;
		int err = kvr_inspect_open(all.path[i], &in);

		memset(&w->d, 0, sizeof w->d);
		if (!err) {
			err = dump_read(in, all.path[i], &want, &w->d);
			kvr_inspect_close(in);
		}
		if (err != -ENOENT)
			dump_list_text(&w->d, all.path[i], err ? kvr_explain() : NULL, !shown++,
				       out);
		if (!err && w->d.status)
			fprintf(out, "    %s\n", w->d.verdict);
		dump_free(&w->d);
	}
	if (!shown)
		fprintf(out, "none in %s\n", w->o->dir ? w->o->dir : "/dev/shm");
	free(all.path);
}

/* One frame, or one table. 0; -1: nobody sees it any more. */
static int show(struct watch *w)
{
	char *text = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&text, &size);
	int err;

	if (!out)
		return -1;
	if (!w->o->what)
		look_all(w, out);
	else if (look(w, out)) {
		if (!fflush(out))
			fill(w, text, out);
		dump_free(&w->d);
	}
	if (fclose(out)) {
		free(text);
		return -1;
	}
	if (w->term.is_tty)
		err = dump_term_draw(&w->term, text);
	else
		err = fputs(text, stdout) < 0 || putchar('\n') < 0 || fflush(stdout) ? -1 : 0;
	free(text);
	return err;
}

int dump_watch(const struct dump_options *o)
{
	static struct watch w; /* large */
	int err = 0, over = 0;

	w.o = o;
	dump_signals();
	dump_term_begin(&w.term);
	while (!err && !over && !dump_ended) {
		dump_term_size(&w.term);
		err = show(&w);
		if (!err)
			over = dump_term_wait(&w.term, o->interval_ns);
	}
	dump_term_end();
	return err ? DUMP_UNREADABLE : DUMP_FINE;
}
