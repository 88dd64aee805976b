/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events of all processes as they come, one a line, in the order of their times. A process stamps
 * an event before others can see it, and may be interrupted in between, so what is very new is held
 * back for a while.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dump_options.h"
#include "kvring/err.h"

#define LOOK_NS 200000000u /* between two looks; */
#define FAST_NS 2000000u   /* where a recorder would go round meanwhile */
#define HOLD_NS 200000000u
#define PIECE 512u /* events of a process that are read at a time */

struct source {
	uint32_t rank;
	uint64_t next;	 /* index to read from */
	uint64_t missed; /* overwritten before they were read */
};

struct follow {
	const struct dump_options *o;
	struct kvr_inspect *in;
	char path[4096];
	struct dump d; /* its group and leader, as of the last look */
	struct source source[KVR_MAX_RANKS + 1];
	uint32_t sources;
	struct kvr_inspect_event *held; /* read, and not printed yet */
	size_t count, room;
	uint64_t pause_ns;
	uint64_t most;	    /* new events of one process in the last look */
	uint64_t offset_ns; /* CLOCK_REALTIME - CLOCK_MONOTONIC */
};

static uint64_t clock_ns(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int hold(struct follow *f, const struct kvr_inspect_event *e, uint32_t n)
{
	if (f->count + n > f->room) {
		size_t room = 2 * (f->count + n);
		void *more = realloc(f->held, room * sizeof *f->held);

		if (!more)
			return -ENOMEM;
		f->held = more;
		f->room = room;
	}
	memcpy(f->held + f->count, e, n * sizeof *e);
	f->count += n;
	return 0;
}

/* All that is new of one process, up to what is there now. */
static int read_source(struct follow *f, struct source *s)
{
	struct kvr_inspect_event piece[PIECE];
	uint64_t count;
	int got = kvr_inspect_event_count(f->in, s->rank, &count);

	if (!got && count - s->next > f->most)
		f->most = count - s->next;
	while (got >= 0 && s->next < count) {
		uint64_t from = s->next;

		got = kvr_inspect_events_next(f->in, s->rank, &s->next, piece, PIECE);
		if (s->next <= from)
			break;
		if (got < 0)
			break;
		s->missed += s->next - from - (uint64_t)got;
		if (dump_filter_rank(&f->o->want.filter, s->rank))
			got = hold(f, piece, (uint32_t)got);
	}
	return got < 0 ? got : 0;
}

/* "14:03:07.123456 rank 3  TAKE ...", by this machine's clock. */
static void print(const struct follow *f, const struct kvr_inspect_event *e)
{
	char who[16], text[256], when[32];
	time_t at;
	struct tm tm;

	if (f->o->json) {
		dump_event_json(&f->d, e, stdout);
		putchar('\n');
		return;
	}
	at = (time_t)((e->ns + f->offset_ns) / 1000000000u);
	if (!localtime_r(&at, &tm) || !strftime(when, sizeof when, "%H:%M:%S", &tm))
		snprintf(when, sizeof when, "%" PRIu64, e->ns / 1000000000u);
	kvr_inspect_event_text(e, text, sizeof text);
	printf("%s.%06" PRIu64 " %s%-*s %s\n", when, (e->ns + f->offset_ns) % 1000000000u / 1000,
	       e->rank == DUMP_LEADER ? "" : "rank ", e->rank == DUMP_LEADER ? 7 : 2,
	       dump_who(e->rank, who), text);
}

static void say_missed(struct follow *f)
{
	char who[16];

	for (uint32_t i = 0; i < f->sources; i++) {
		struct source *s = &f->source[i];

		if (s->missed && !f->o->json && dump_filter_rank(&f->o->want.filter, s->rank))
			printf("... %" PRIu64 " events of %s%s were overwritten before they were "
			       "read\n",
			       s->missed, s->rank == DUMP_LEADER ? "the " : "rank ",
			       dump_who(s->rank, who));
		s->missed = 0;
	}
}

/* Prints what is not newer than that. */
static void flush_held(struct follow *f, uint64_t until_ns)
{
	size_t n = 0;

	if (f->count)
		qsort(f->held, f->count, sizeof *f->held, dump_by_time);
	for (; n < f->count && f->held[n].ns <= until_ns; n++)
		if (dump_filter_event(&f->o->want.filter, &f->held[n]))
			print(f, &f->held[n]);
	memmove(f->held, f->held + n, (f->count - n) * sizeof *f->held);
	f->count -= n;
	say_missed(f);
	fflush(stdout);
}

/* Looks again sooner when recorders fill up, later when little happens. */
static int read_all(struct follow *f)
{
	int err = 0;

	f->most = 0;
	for (uint32_t i = 0; !err && i < f->sources; i++)
		err = read_source(f, &f->source[i]);
	if (f->most > f->d.group.events / 4)
		f->pause_ns = f->pause_ns / 4 > FAST_NS ? f->pause_ns / 4 : FAST_NS;
	else if (f->most < f->d.group.events / 16)
		f->pause_ns = 2 * f->pause_ns < LOOK_NS ? 2 * f->pause_ns : LOOK_NS;
	return err;
}

/* The last events that are there already, as many as were asked for. */
static int begin(struct follow *f)
{
	int err = kvr_inspect_group(f->in, &f->d.group);
	uint64_t most;

	if (err)
		return err;
	f->sources = f->d.group.ranks + 1;
	most = f->o->want.events < f->d.group.events ? f->o->want.events : f->d.group.events - 1;
	for (uint32_t i = 0; !err && i < f->sources; i++) {
		struct source *s = &f->source[i];
		uint64_t count;

		s->rank = i < f->d.group.ranks ? i : DUMP_LEADER;
		err = kvr_inspect_event_count(f->in, s->rank, &count);
		if (!err && count > most)
			s->next = count - most;
	}
	return err;
}

/* 1: nothing of importance can follow any more. */
static int is_over(struct follow *f, int *ret_err)
{
	*ret_err = kvr_inspect_group(f->in, &f->d.group);
	if (!*ret_err)
		*ret_err = kvr_inspect_proc(f->in, DUMP_LEADER, &f->d.leader);
	return *ret_err || f->d.group.retired_by || f->d.leader.alive <= 0 ||
	       !strcmp(kvr_inspect_state_name(f->d.group.state), "failed") ||
	       f->d.group.saved_unix_ns;
}

static int say_over(struct follow *f)
{
	const struct dump_want none = { .filter = DUMP_EVERYTHING,
					.stall_ns = f->o->want.stall_ns };
	int err = 0;

	if (f->o->json)
		return 0;
	if (f->d.group.saved_unix_ns) {
		printf("over: this is a saved copy\n");
		return 0;
	}
	err = dump_read(f->in, f->path, &none, &f->d);
	if (!err)
		printf("over: %s\n", f->d.verdict);
	dump_free(&f->d);
	return err;
}

static int follow(struct follow *f)
{
	uint64_t now;
	int over = 0, err = begin(f);

	while (!err && !over && !dump_ended) {
		now = clock_ns(CLOCK_MONOTONIC);
		f->offset_ns = clock_ns(CLOCK_REALTIME) - now;
		over = is_over(f, &err);
		if (!err)
			err = read_all(f);
		if (err)
			break;
		flush_held(f, over ? UINT64_MAX : now - HOLD_NS);
		if (ferror(stdout))
			return DUMP_UNREADABLE;
		if (!over)
			dump_pause(f->pause_ns);
	}
	/* What came in a last look, and what was held back. */
	if (!err && read_all(f) == 0)
		flush_held(f, UINT64_MAX);
	if (over && !err)
		err = say_over(f);
	if (err)
		fprintf(stderr, "ring-dump: %s\n",
			err == -ENOMEM ? "out of memory" : kvr_explain());
	return err ? DUMP_UNREADABLE : DUMP_FINE;
}

int dump_follow(const struct dump_options *o)
{
	static struct follow f; /* large */
	int status;

	f.o = o;
	f.pause_ns = FAST_NS;
	if (dump_open(o, &f.in, f.path, sizeof f.path)) {
		fprintf(stderr, "ring-dump: %s\n", kvr_explain());
		return DUMP_UNREADABLE;
	}
	dump_signals();
	status = follow(&f);
	free(f.held);
	kvr_inspect_close(f.in);
	return status;
}
