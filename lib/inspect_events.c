/* SPDX-License-Identifier: Apache-2.0 */
/* Flight recorders: the last events as sentences, or one after the other as they come. */
#include "inspect_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "err.h"
#include "recorder.h"
#include "util.h"

uint64_t kvr_inspect_recorder_at(const struct kvr_inspect *in, uint32_t rank)
{
	const struct kvr_layout *l = &in->layout;

	return rank == KVR_LEADER ? l->leader_rec : kvr_layout_rank(l, rank) + l->rank_rec;
}

int kvr_inspect_recorder(struct kvr_inspect *in, uint32_t rank)
{
	size_t bytes = sizeof(struct kvr_rec_ctl) + in->layout.events * sizeof(struct kvr_event);
	uint64_t at = kvr_inspect_recorder_at(in, rank);
	int err = kvr_inspect_scratch(in, bytes);

	if (!err)
		err = read_at(in, in->scratch, bytes, at);
	if (!err)
		err = read_at(in, in->scratch, sizeof(uint64_t), at);
	return err;
}

int kvr_inspect_events(struct kvr_inspect *inspect, uint32_t rank, int channel, uint32_t max,
		       void (*fn)(void *arg, uint64_t ns, const char *line), void *arg)
{
	uint32_t capacity = inspect->layout.events;
	uint64_t now = kvr_inspect_now(inspect);
	struct kvr_event *events;
	char line[256];
	int err = kvr_inspect_check_proc(inspect, "kvr_inspect_events", rank);

	if (!err)
		err = kvr_inspect_recorder(inspect, rank);
	if (err || !max)
		return err;
	max = (uint32_t)kvr_min(max, capacity);
	events = calloc(max, sizeof *events);
	if (!events)
		return KVR_FAIL(-ENOMEM, "kvr_inspect_events: no memory for %u events", max);
	max = kvr_recorder_last(inspect->scratch, capacity, channel, events, max);
	for (uint32_t i = 0; i < max; i++) {
		kvr_event_text(&events[i], now, line, sizeof line);
		fn(arg, events[i].ns, line);
	}
	free(events);
	return (int)max;
}

int kvr_inspect_event_count(struct kvr_inspect *inspect, uint32_t rank, uint64_t *ret_count)
{
	int err = kvr_inspect_check_proc(inspect, "kvr_inspect_event_count", rank);

	return err ? err
		   : read_at(inspect, ret_count, sizeof *ret_count,
			     kvr_inspect_recorder_at(inspect, rank));
}

/* Slots of events [from, from + n) into scratch, in their order. */
static int read_slots(struct kvr_inspect *in, uint32_t rank, uint64_t from, uint32_t n)
{
	const uint64_t size = sizeof(struct kvr_event);
	uint64_t at = kvr_inspect_recorder_at(in, rank) + sizeof(struct kvr_rec_ctl);
	uint32_t capacity = in->layout.events, slot = (uint32_t)from & (capacity - 1);
	uint32_t first = (uint32_t)kvr_min(n, capacity - slot);
	int err = kvr_inspect_scratch(in, n * size);

	if (!err)
		err = read_at(in, in->scratch, first * size, at + slot * size);
	if (!err && n > first)
		err = read_at(in, in->scratch + first * size, (n - first) * size, at);
	return err;
}

static struct kvr_inspect_event event_of(const struct kvr_event *e, uint32_t rank)
{
	return (struct kvr_inspect_event){
		.index = e->index,
		.ns = e->ns,
		.number = e->number,
		.arg = e->arg,
		.request = { .id = e->request, .attempt = e->attempt },
		.rank = rank,
		.kind = e->kind,
		.channel = e->channel,
		.call = e->call,
		.tag = e->tag,
		.result = e->result,
	};
}

int kvr_inspect_events_next(struct kvr_inspect *inspect, uint32_t rank, uint64_t *next,
			    struct kvr_inspect_event *ret_events, uint32_t max)
{
	uint32_t capacity = inspect->layout.events, n, got = 0;
	uint64_t count, from;
	int err = kvr_inspect_event_count(inspect, rank, &count);

	if (err || *next >= count)
		return err;
	/* The writer may be inside the slot of event `count`, which is that of count - capacity. */
	from = kvr_max(*next, count > capacity - 1 ? count - (capacity - 1) : 0);
	n = (uint32_t)kvr_min(kvr_min(max, capacity - 1), count - from);
	err = read_slots(inspect, rank, from, n);
	if (!err)
		err = kvr_inspect_event_count(inspect, rank, &count);
	if (err)
		return err;
	for (uint32_t i = 0; i < n; i++) {
		struct kvr_event e;

		memcpy(&e, inspect->scratch + i * sizeof e, sizeof e);
		if (e.index == from + i && count - e.index < capacity)
			ret_events[got++] = event_of(&e, rank);
	}
	*next = from + n;
	return (int)got;
}

void kvr_inspect_event_text(const struct kvr_inspect_event *event, char *ret_text, size_t size)
{
	struct kvr_event e = { .ns = event->ns,
			       .request = event->request.id,
			       .number = event->number,
			       .arg = event->arg,
			       .attempt = event->request.attempt,
			       .tag = event->tag,
			       .result = event->result,
			       .rank = event->rank,
			       .kind = (uint8_t)event->kind,
			       .channel = (uint8_t)event->channel,
			       .call = (uint16_t)event->call };
	char line[256];
	const char *at;

	if (!size)
		return;
	kvr_event_text(&e, e.ns, line, sizeof line);
	at = strstr(line, "ago "); /* its age is not what is asked for */
	kvr_text_copy(ret_text, size, at ? at + 4 : line, sizeof line - 4);
}

const char *kvr_inspect_event_name(uint32_t kind)
{
	return kvr_event_kind_name(kind);
}
