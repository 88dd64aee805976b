/* SPDX-License-Identifier: Apache-2.0 */
/* Reads everything that ring-dump shows of one group, and says in one line how it is. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dump.h"
#include "kvring/err.h"

#define OPS_MAX 65536u /* more a group cannot have */

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

const char *dump_alive(const struct kvr_inspect_proc *p)
{
	if (p->alive < 0)
		return "died";
	if (p->alive > 0)
		return p->peer == KVR_PEER_STOPPED   ? "stopped"
		       : p->peer == KVR_PEER_DUMPING ? "dumping"
						     : "alive";
	return kvr_inspect_state_name(p->state); /* absent, left */
}

const char *dump_age(const struct dump *d, uint64_t ns, char buf[32])
{
	double age = d->now_ns > ns ? (double)(d->now_ns - ns) : 0;

	if (!ns || !d->group.same_boot)
		return "-";
	if (age < 1e6)
		snprintf(buf, 32, "%.0f us", age / 1e3);
	else if (age < 1e9)
		snprintf(buf, 32, "%.1f ms", age / 1e6);
	else
		snprintf(buf, 32, "%.1f s", age / 1e9);
	return buf;
}

const char *dump_tag(uint32_t tag, char buf[32])
{
	const char *name = kvr_tag_name(tag);

	if (tag < KVR_TAG_USER && *name != '?')
		return name;
	snprintf(buf, 32, "%" PRIu32, tag);
	return buf;
}

static int read_processes(struct kvr_inspect *in, struct dump *d)
{
	int err = kvr_inspect_group(in, &d->group);

	if (!err)
		err = kvr_inspect_proc(in, DUMP_LEADER, &d->leader);
	for (uint32_t r = 0; !err && r < d->group.ranks; r++)
		err = kvr_inspect_proc(in, r, &d->rank[r]);
	return err;
}

static int read_channels(struct kvr_inspect *in, struct dump *d)
{
	int err = 0;

	for (uint32_t c = 0; c < KVR_CHANNELS; c++)
		for (uint32_t r = 0; !err && r < d->group.ranks; r++)
			err = kvr_inspect_channel(in, c, r, &d->channel[c][r]);
	return err;
}

static int by_number(const void *a, const void *b)
{
	const struct dump_message *x = a, *y = b;

	return x->m.number < y->m.number ? -1 : x->m.number > y->m.number;
}

/* Joins equal numbers of one channel: a publish to four ranks is one line, not four. */
static uint32_t merge(struct dump_message *list, uint32_t n)
{
	uint32_t out = 0;

	qsort(list, n, sizeof *list, by_number);
	for (uint32_t i = 0; i < n; i++) {
		if (out && list[out - 1].m.number == list[i].m.number) {
			list[out - 1].ranks |= list[i].ranks;
			list[out - 1].taken |= list[i].taken;
			continue;
		}
		list[out++] = list[i];
	}
	return out;
}

static int read_messages(struct kvr_inspect *in, struct dump *d, uint32_t max)
{
	struct kvr_inspect_message *ring = calloc(max, sizeof *ring);
	struct dump_message *list = calloc((size_t)max * d->group.ranks, sizeof *list);
	int got = 0;

	d->messages = calloc((size_t)max * KVR_CHANNELS, sizeof *d->messages);
	if (!ring || !list || !d->messages)
		got = -ENOMEM;
	for (uint32_t c = 0; got >= 0 && c < KVR_CHANNELS; c++) {
		uint32_t n = 0, keep;

		for (uint32_t r = 0; got >= 0 && r < d->group.ranks; r++) {
			if (!d->channel[c][r].published)
				continue;
			got = kvr_inspect_messages(in, c, r, ring, max);
			for (int i = 0; i < got; i++)
				list[n++] = (struct dump_message){ .m = ring[i],
								   .ranks = 1ull << r,
								   .taken = ring[i].read > 0
										    ? 1ull << r
										    : 0,
								   .whole = ring[i].read >= 0 };
		}
		n = merge(list, n);
		keep = n < max ? n : max;
		memcpy(d->messages + d->message_count, list + (n - keep), keep * sizeof *list);
		d->message_count += keep;
	}
	free(ring);
	free(list);
	return got < 0 ? got : 0;
}

static int read_ops(struct kvr_inspect *in, struct dump *d)
{
	int got;

	d->ops = calloc(OPS_MAX, sizeof *d->ops);
	if (!d->ops)
		return -ENOMEM;
	got = kvr_inspect_ops(in, d->ops, OPS_MAX);
	d->op_count = got > 0 ? (uint32_t)got : 0;
	return got < 0 ? got : 0;
}

struct add {
	struct dump *d;
	uint32_t who;
};

static void add_event(void *arg, uint64_t ns, const char *line)
{
	struct add *a = arg;
	struct dump_event *e = &a->d->events[a->d->event_count++];

	e->ns = ns;
	e->who = a->who;
	snprintf(e->line, sizeof e->line, "%s", line);
}

static int by_time(const void *a, const void *b)
{
	const struct dump_event *x = a, *y = b;

	return x->ns < y->ns ? -1 : x->ns > y->ns;
}

static int read_events(struct kvr_inspect *in, struct dump *d, uint32_t max)
{
	uint32_t each = max < d->group.events ? max : d->group.events;
	struct add a = { d, DUMP_LEADER };
	int got;

	d->events = calloc((size_t)each * (d->group.ranks + 1), sizeof *d->events);
	if (!d->events)
		return -ENOMEM;
	got = kvr_inspect_events(in, DUMP_LEADER, -1, each, add_event, &a);
	for (a.who = 0; got >= 0 && a.who < d->group.ranks; a.who++)
		got = kvr_inspect_events(in, a.who, -1, each, add_event, &a);
	if (got < 0)
		return got;
	qsort(d->events, d->event_count, sizeof *d->events, by_time);
	if (d->event_count > max) {
		memmove(d->events, d->events + (d->event_count - max), max * sizeof *d->events);
		d->event_count = max;
	}
	return 0;
}

struct line {
	char *text;
	size_t size, used;
};

static void __attribute__((format(printf, 2, 3))) say(struct line *l, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(l->text + l->used, l->size - l->used, fmt, ap);
	va_end(ap);
	if (n > 0)
		l->used += (size_t)n < l->size - l->used ? (size_t)n : l->size - l->used - 1;
}

/* "ranks 1 and 3", "3 ranks" when there are many: the set of those that `is` says yes to. */
static uint32_t say_ranks(struct line *l, const struct dump *d, int32_t alive, const char *what)
{
	uint32_t n = 0, said = 0;

	for (uint32_t r = 0; r < d->group.ranks; r++)
		n += d->rank[r].alive == alive && d->rank[r].pid;
	if (!n)
		return 0;
	say(l, "%s%s", l->used ? "; " : "", n == 1 ? "rank" : "ranks");
	for (uint32_t r = 0; r < d->group.ranks && said < 8; r++)
		if (d->rank[r].alive == alive && d->rank[r].pid)
			say(l, "%s %" PRIu32 " (pid %" PRIu32 ")", said++ ? "," : "", r,
			    d->rank[r].pid);
	if (n > said)
		say(l, " and %" PRIu32 " more", n - said);
	say(l, " %s", what);
	return n;
}

/* Alive, and yet it does nothing. */
static void say_still(struct line *l, const struct kvr_inspect_proc *p)
{
	if (p->alive <= 0 || (p->peer != KVR_PEER_STOPPED && p->peer != KVR_PEER_DUMPING))
		return;
	if (p->rank == DUMP_LEADER)
		say(l, "; the leader");
	else
		say(l, "; rank %" PRIu32, p->rank);
	say(l, " (pid %" PRIu32 ") is %s", p->pid, kvr_peer_state_name(p->peer));
}

static void say_lag(struct line *l, const struct dump *d)
{
	const struct kvr_inspect_channel *worst = NULL;
	char age[32];

	for (uint32_t c = 0; c < KVR_CHANNELS; c++)
		for (uint32_t r = 0; r < d->group.ranks; r++)
			if (!worst || dump_lag(&d->channel[c][r]) > dump_lag(worst))
				worst = &d->channel[c][r];
	if (!worst || !dump_lag(worst))
		return;
	say(l, "; rank %" PRIu32 " is %" PRIu64 " messages behind on %s", worst->rank,
	    dump_lag(worst), kvr_channel_name(worst->channel));
	if (worst->oldest_unread_ns)
		say(l, " (the oldest is %s old)", dump_age(d, worst->oldest_unread_ns, age));
}

static void say_leader(struct line *l, const struct dump *d)
{
	const char *name = kvr_inspect_state_name(d->group.state);
	char age[32];

	if (d->leader.alive < 0)
		say(l, "leader (pid %" PRIu32 ") died", d->leader.pid);
	else if (d->leader.alive == 0)
		say(l, "leader (pid %" PRIu32 ") is gone (%s)", d->leader.pid, name);
	if (!strcmp(name, "failed")) {
		say(l, "%sthe leader ended the epoch: %s", l->used ? "; " : "",
		    kvr_strerror(d->group.cause));
		if (d->group.blamed < d->group.ranks)
			say(l, " (rank %" PRIu32 ")", d->group.blamed);
	}
	if (d->group.retired_by)
		say(l, "%sretired: epoch %" PRIu64 " replaced it", l->used ? "; " : "",
		    d->group.retired_by);
	if (!l->used)
		return;
	if (d->leader.progress_ns)
		say(l, "; leader last active %s ago", dump_age(d, d->leader.progress_ns, age));
}

static void verdict(struct dump *d)
{
	struct line l = { d->verdict, sizeof d->verdict, 0 };
	uint32_t n = 0, attached = 0;
	char age[32];

	if (!d->group.same_boot)
		say(&l, "a segment from before the machine restarted");
	say_leader(&l, d);
	n = say_ranks(&l, d, -1, "died");
	if (l.used) {
		d->status = DUMP_DEAD;
		if (say_ranks(&l, d, 1, "still alive") + n == 0)
			say(&l, "; no rank was attached");
	} else {
		for (uint32_t r = 0; r < d->group.ranks; r++)
			attached += d->rank[r].alive > 0;
		say(&l, "all alive: leader and %" PRIu32 " of %" PRIu32 " ranks", attached,
		    d->group.ranks);
	}
	say(&l, "; tick %" PRIu64, d->group.tick_done);
	if (d->status == DUMP_OK && d->leader.progress_ns)
		say(&l, "; leader active %s ago", dump_age(d, d->leader.progress_ns, age));
	say_still(&l, &d->leader);
	for (uint32_t r = 0; r < d->group.ranks; r++)
		say_still(&l, &d->rank[r]);
	say_lag(&l, d);
}

int dump_read(struct kvr_inspect *inspect, const char *path, uint32_t messages, uint32_t events,
	      struct dump *d)
{
	int err;

	memset(d, 0, sizeof *d);
	snprintf(d->path, sizeof d->path, "%s", path);
	err = read_processes(inspect, d);
	if (!err)
		err = read_channels(inspect, d);
	if (!err && messages)
		err = read_messages(inspect, d, messages);
	if (!err)
		err = read_ops(inspect, d);
	if (!err && events)
		err = read_events(inspect, d, events);
	d->now_ns = now();
	if (!err)
		verdict(d);
	return err;
}

void dump_free(struct dump *d)
{
	free(d->ops);
	free(d->messages);
	free(d->events);
}
