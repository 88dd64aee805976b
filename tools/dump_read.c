/* SPDX-License-Identifier: Apache-2.0 */
/* Reads everything that ring-dump shows of one group. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dump.h"
#include "kvring/err.h"

#define OPS_MAX 65536u	 /* more a group cannot have */
#define DEEP_MAX 262144u /* messages that are looked at for a filter, of all rings of a channel */
#define PIECE 1024u	 /* events that are read at a time */

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

/* The last calls of a log that the filter lets through. */
static void add_calls(struct dump *d, const struct dump_want *want,
		      const struct kvr_inspect_log *log, const struct kvr_inspect_call *calls,
		      uint32_t n)
{
	uint32_t keep = 0, skip;

	for (uint32_t i = 0; i < n; i++)
		keep += dump_filter_request(&want->filter, &calls[i].request) != 0;
	skip = keep > want->calls ? keep - want->calls : 0;
	for (uint32_t i = 0; i < n; i++) {
		if (!dump_filter_request(&want->filter, &calls[i].request))
			continue;
		if (skip)
			skip--;
		else
			d->calls[d->call_count++] =
				(struct dump_calls){ log->rank, log->kind, calls[i] };
	}
}

static int read_log(struct kvr_inspect *in, struct dump *d, const struct dump_want *want,
		    uint32_t rank, uint32_t kind, struct kvr_inspect_call *room, uint32_t max)
{
	struct kvr_inspect_log *log = &d->log[rank == DUMP_LEADER ? DUMP_LEADER_AT : rank][kind];
	int got = kvr_inspect_log(in, rank, kind, log, room, max);

	if (got > 0 && dump_filter_rank(&want->filter, rank))
		add_calls(d, want, log, room, (uint32_t)got);
	return got < 0 ? got : 0;
}

static int read_logs(struct kvr_inspect *in, struct dump *d, const struct dump_want *want)
{
	uint32_t logs = (d->group.ranks + 1) * KVR_ALIKE_KINDS;
	uint32_t max = want->filter.by_request && want->calls ? DUMP_CALLS_MAX : want->calls;
	struct kvr_inspect_call *room = calloc(max ? max : 1, sizeof *room);
	int err = 0;

	d->calls = calloc((size_t)logs * want->calls + 1, sizeof *d->calls);
	if (!room || !d->calls)
		err = -ENOMEM;
	for (uint32_t kind = 0; kind < KVR_ALIKE_KINDS; kind++) {
		if (!err)
			err = read_log(in, d, want, DUMP_LEADER, kind, room, max);
		for (uint32_t r = 0; !err && r < d->group.ranks; r++) {
			int differs;

			err = read_log(in, d, want, r, kind, room, max);
			differs = err ? err : kvr_inspect_drift(in, r, kind, &d->drift[r][kind]);
			if (differs > 0)
				d->drifted[r] |= (uint8_t)(1u << kind);
			err = differs < 0 ? differs : err;
		}
	}
	free(room);
	return err;
}

static int read_meets(struct kvr_inspect *in, struct dump *d)
{
	int got = kvr_inspect_meets(in, d->meets, DUMP_MEETS_MAX);

	d->meet_count = got > 0 ? (uint32_t)got : 0;
	return got < 0 ? got : 0;
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

static uint32_t select_messages(struct dump_message *list, uint32_t n, const struct dump_filter *f)
{
	uint32_t out = 0;

	for (uint32_t i = 0; i < n; i++)
		if (dump_filter_request(f, &list[i].m.request) &&
		    (f->tag < 0 || f->tag == list[i].m.tag) &&
		    (f->rank < 0 || (f->rank < 64 && list[i].ranks >> f->rank & 1)))
			list[out++] = list[i];
	return out;
}

struct rings {
	struct kvr_inspect_message *ring; /* of one rank, [max] */
	struct dump_message *list;	  /* of all, [max x ranks] */
	uint32_t max;
};

/* The rings of one channel. Returns the number of publishes in them, or -errno. */
static int read_channel_messages(struct kvr_inspect *in, const struct dump *d, uint32_t channel,
				 const struct rings *room)
{
	uint32_t n = 0;
	int got = 0;

	for (uint32_t r = 0; got >= 0 && r < d->group.ranks; r++) {
		if (!d->channel[channel][r].published)
			continue;
		got = kvr_inspect_messages(in, channel, r, room->ring, room->max);
		for (int i = 0; i < got; i++) {
			const struct kvr_inspect_message *m = &room->ring[i];

			room->list[n++] = (struct dump_message){
				.m = *m,
				.ranks = 1ull << r,
				.taken = m->read > 0 ? 1ull << r : 0,
				.whole = m->read >= 0,
			};
		}
	}
	return got < 0 ? got : (int)merge(room->list, n);
}

static int read_messages(struct kvr_inspect *in, struct dump *d, const struct dump_want *want)
{
	const struct dump_filter *f = &want->filter;
	int deep = f->by_request || f->tag >= 0 || f->rank >= 0;
	uint32_t max = deep ? DEEP_MAX / d->group.ranks : want->messages;
	struct rings room = { .max = max };
	int got = 0;

	room.max = max < d->group.ring_bytes / 64 ? max : d->group.ring_bytes / 64;
	room.ring = calloc(room.max, sizeof *room.ring);
	room.list = calloc((size_t)room.max * d->group.ranks, sizeof *room.list);
	d->messages = calloc((size_t)want->messages * KVR_CHANNELS, sizeof *d->messages);
	if (!room.ring || !room.list || !d->messages)
		got = -ENOMEM;
	for (uint32_t c = 0; got >= 0 && c < KVR_CHANNELS; c++) {
		uint32_t n, keep;

		if (!dump_filter_channel(f, c))
			continue;
		got = read_channel_messages(in, d, c, &room);
		if (got < 0)
			break;
		n = select_messages(room.list, (uint32_t)got, f);
		keep = n < want->messages ? n : want->messages;
		memcpy(d->messages + d->message_count, room.list + (n - keep),
		       keep * sizeof *room.list);
		d->message_count += keep;
	}
	free(room.ring);
	free(room.list);
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

/* The last `max` events of one process that the filter lets through, in any order. */
static int read_recorder(struct kvr_inspect *in, const struct dump_want *want, uint32_t rank,
			 struct kvr_inspect_event *list, uint32_t max)
{
	const struct dump_filter *f = &want->filter;
	int deep = f->by_request || f->tag >= 0 || f->channel >= 0;
	struct kvr_inspect_event piece[PIECE];
	uint64_t next = 0, count, n = 0;
	int got = kvr_inspect_event_count(in, rank, &count);

	if (!got && !deep && count > max)
		next = count - max;
	while (got >= 0 && next < count) {
		uint64_t before = next;

		got = kvr_inspect_events_next(in, rank, &next, piece, PIECE);
		for (int i = 0; i < got; i++)
			if (dump_filter_event(f, &piece[i]))
				list[n++ % max] = piece[i];
		if (next <= before) /* a count that went back: somebody writes nonsense */
			break;
	}
	return got < 0 ? got : (int)(n < max ? n : max);
}

static int read_events(struct kvr_inspect *in, struct dump *d, const struct dump_want *want)
{
	uint32_t max = want->events;
	uint32_t each = max < d->group.events ? max : d->group.events;
	int got = 0;

	d->events = calloc((size_t)each * (d->group.ranks + 1), sizeof *d->events);
	if (!d->events)
		return -ENOMEM;
	for (uint32_t r = 0; got >= 0 && r <= d->group.ranks; r++) {
		uint32_t who = r < d->group.ranks ? r : DUMP_LEADER;

		if (!dump_filter_rank(&want->filter, who))
			continue;
		got = read_recorder(in, want, who, d->events + d->event_count, each);
		d->event_count += got > 0 ? (uint32_t)got : 0;
	}
	if (got < 0)
		return got;
	qsort(d->events, d->event_count, sizeof *d->events, dump_by_time);
	if (d->event_count > max) {
		memmove(d->events, d->events + (d->event_count - max), max * sizeof *d->events);
		d->event_count = max;
	}
	return 0;
}

/* What the leader's recorder says about its last tick. */
static int read_tick(struct kvr_inspect *in, struct dump *d)
{
	struct kvr_inspect_event e[PIECE];
	uint64_t next = 0, count;
	int got = kvr_inspect_events_next(in, DUMP_LEADER, &next, e, 1);

	d->oldest_event_ns = got > 0 ? e[0].ns : 0;
	if (got >= 0)
		got = kvr_inspect_event_count(in, DUMP_LEADER, &count);
	if (got < 0)
		return got;
	next = count > PIECE ? count - PIECE : 0;
	got = kvr_inspect_events_next(in, DUMP_LEADER, &next, e, PIECE);
	for (int i = 0; i < got; i++)
		if (e[i].result >= 0 && !strcmp(kvr_inspect_event_name(e[i].kind), "CALL") &&
		    !strcmp(kvr_inspect_call_name(e[i].call), "check_completed"))
			d->tick_ns = e[i].ns;
	return got < 0 ? got : 0;
}

int dump_read(struct kvr_inspect *inspect, const char *path, const struct dump_want *want,
	      struct dump *d)
{
	int err;

	memset(d, 0, sizeof *d);
	snprintf(d->path, sizeof d->path, "%s", path);
	d->stall_ns = want->stall_ns;
	d->views = want->views;
	d->filter = want->filter;
	err = read_processes(inspect, d);
	if (!err)
		err = read_channels(inspect, d);
	if (!err)
		err = read_logs(inspect, d, want);
	if (!err)
		err = read_meets(inspect, d);
	if (!err && want->messages)
		err = read_messages(inspect, d, want);
	if (!err)
		err = read_ops(inspect, d);
	if (!err)
		err = read_tick(inspect, d);
	if (!err && want->events)
		err = read_events(inspect, d, want);
	/* What was read last is the newest. */
	if (!err && !d->group.saved_unix_ns)
		d->group.now_ns = kvr_deadline(0);
	if (!err)
		dump_judge(d);
	return err;
}

void dump_free(struct dump *d)
{
	free(d->ops);
	free(d->messages);
	free(d->events);
	free(d->calls);
	d->ops = NULL;
	d->messages = NULL;
	d->events = NULL;
	d->calls = NULL;
}
