/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A live group as a table: less than the whole, with rates, so that it fits a terminal. What is
 * most worth seeing comes first; the last events fill what room is left.
 */
#include "dump_table.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

/* "-" until there is a look to compare with. */
static const char *rate(uint64_t now, uint64_t before, double seconds, char buf[24])
{
	if (seconds <= 0 || now < before)
		return "-";
	snprintf(buf, 24, "%.0f", (double)(now - before) / seconds);
	return buf;
}

static uint64_t calls_of(const struct kvr_inspect_proc *p)
{
	uint64_t sum = 0;

	for (size_t c = 1; c < sizeof p->calls / sizeof p->calls[0]; c++)
		sum += p->calls[c];
	return sum;
}

static uint64_t taken_of(const struct kvr_inspect_proc *p)
{
	uint64_t sum = 0;

	for (size_t c = 0; c < KVR_CHANNELS; c++)
		sum += p->taken[c];
	return sum;
}

static uint64_t published(const struct dump *d)
{
	uint64_t sum = 0;

	for (uint32_t c = 0; c < KVR_CHANNELS; c++)
		sum += d->group.watermark[c];
	return sum;
}

void dump_counts(const struct dump *d, struct dump_counts *ret)
{
	memset(ret, 0, sizeof *ret);
	ret->ns = d->group.now_ns;
	ret->epoch = d->group.epoch;
	memcpy(ret->uuid, d->group.uuid, sizeof ret->uuid);
	ret->tick = d->group.tick_done;
	for (uint32_t c = 0; c < KVR_CHANNELS; c++)
		ret->watermark[c] = d->group.watermark[c];
	for (uint32_t r = 0; r < d->group.ranks; r++) {
		ret->calls[r] = calls_of(&d->rank[r]);
		ret->messages[r] = taken_of(&d->rank[r]);
	}
	ret->calls[DUMP_LEADER_AT] = calls_of(&d->leader);
	ret->messages[DUMP_LEADER_AT] = published(d);
}

/* Since the last look at the same epoch; 0: there was none. */
static double seconds(const struct dump_counts *now, const struct dump_counts *before)
{
	if (!before->ns || before->epoch != now->epoch || now->ns <= before->ns ||
	    memcmp(before->uuid, now->uuid, sizeof now->uuid) != 0)
		return 0;
	return (double)(now->ns - before->ns) / 1e9;
}

/* Breaks at blanks; at most so many lines. */
static void wrapped(const char *text, uint32_t columns, uint32_t lines, FILE *out)
{
	while (*text && lines--) {
		size_t len = strlen(text);

		if (len > columns) {
			for (len = columns; len && text[len] != ' '; len--)
				;
			if (!len)
				len = columns;
		}
		fprintf(out, "%.*s\n", (int)len, text);
		for (text += len; *text == ' '; text++)
			;
	}
}

static void process(const struct dump *d, const struct kvr_inspect_proc *p,
		    const struct dump_counts *now, const struct dump_counts *before, FILE *out)
{
	uint32_t at = p->rank == DUMP_LEADER ? DUMP_LEADER_AT : p->rank;
	double s = seconds(now, before);
	uint64_t behind = 0;
	char who[16], age[32], calls[24], messages[24];

	for (uint32_t c = 0; c < KVR_CHANNELS && at < KVR_MAX_RANKS; c++)
		behind += dump_lag(&d->channel[c][at]);
	fprintf(out, "%-7s %8" PRIu32 " %-9s %9" PRIu64 " %8s %8s %7" PRIu64 "  ",
		dump_who(p->rank, who), p->pid, dump_alive(p),
		p->rank == DUMP_LEADER ? d->group.tick_done : p->tick_seen,
		rate(now->calls[at], before->calls[at], s, calls),
		rate(now->messages[at], before->messages[at], s, messages), behind);
	if (dump_in_phase(d, p))
		fprintf(out, "\"%s\" for %s more", p->phase,
			dump_span(p->phase_until - d->group.now_ns, age));
	else if (p->in_call)
		fprintf(out, "%s for %s", kvr_inspect_call_name(p->in_call),
			dump_age(d, p->call_ns, age));
	else if (p->progress_ns)
		fprintf(out, "active %s ago", dump_age(d, p->progress_ns, age));
	fprintf(out, "\n");
}

static void channels(const struct dump *d, const struct dump_counts *now,
		     const struct dump_counts *before, FILE *out)
{
	int any = 0;

	for (uint32_t c = 0; c < KVR_CHANNELS; c++) {
		const struct kvr_inspect_channel *worst = &d->channel[c][0];
		char age[32], who[16], per_second[24];

		if (!d->group.watermark[c])
			continue;
		for (uint32_t r = 1; r < d->group.ranks; r++)
			if (dump_lag(&d->channel[c][r]) > dump_lag(worst))
				worst = &d->channel[c][r];
		if (!any++)
			fprintf(out, "\n%-9s %10s %8s %12s %7s  %s\n", "CHANNEL", "LAST", "PER SEC",
				"MOST BEHIND", "BY", "OLDEST UNREAD");
		fprintf(out, "%-9s %10" PRIu64 " %8s ", kvr_channel_name(c), d->group.watermark[c],
			rate(now->watermark[c], before->watermark[c], seconds(now, before),
			     per_second));
		if (dump_lag(worst))
			fprintf(out, "%12s %7" PRIu64 "  %s\n", dump_who(worst->rank, who),
				dump_lag(worst), dump_age(d, worst->oldest_unread_ns, age));
		else
			fprintf(out, "%12s %7s  -\n", "-", "-");
	}
}

static int older(const struct kvr_inspect_op *a, const struct kvr_inspect_op *b)
{
	return a->begun_ns != b->begun_ns ? a->begun_ns < b->begun_ns : a->entry < b->entry;
}

/* The oldest few, and how many there are. */
static void operations(const struct dump *d, uint32_t most, FILE *out)
{
	const struct kvr_inspect_op *last = NULL;
	char request[40], age[32], in_stage[32], waits[DUMP_SET_MAX];

	for (uint32_t n = 0; n < most && n < d->op_count; n++) {
		const struct kvr_inspect_op *o = NULL;

		for (uint32_t i = 0; i < d->op_count; i++)
			if ((!last || older(last, &d->ops[i])) && (!o || older(&d->ops[i], o)))
				o = &d->ops[i];
		if (!o)
			break;
		last = o;
		if (!n)
			fprintf(out, "\n%-8s %-14s %-10s %7s %10s %10s  %s\n", "OP", "REQUEST",
				"STAGE", "BLOCKS", "AGE", "IN STAGE", "WAITS FOR");
		fprintf(out, "%-8s %-14s %-10s %7" PRIu32 " %10s %10s  %s\n",
			kvr_inspect_op_name(o->kind), dump_request(&o->request, request),
			kvr_stage_name(o->stage), o->blocks, dump_age(d, o->begun_ns, age),
			dump_age(d, o->stage_ns, in_stage), dump_set(dump_unanswered(o), waits));
	}
	if (d->op_count > most)
		fprintf(out, "and %" PRIu32 " more operations\n", d->op_count - most);
}

static void barriers(const struct dump *d, FILE *out)
{
	for (uint32_t i = 0; i < d->meet_count; i++) {
		const struct kvr_inspect_meet *m = &d->meets[i];
		uint64_t missing = m->ranks & ~m->arrived;
		char set[DUMP_SET_MAX], who[DUMP_SET_MAX];
		int no_leader = m->with_leader && !m->leader_arrived;

		if (missing || no_leader)
			fprintf(out, "%s %" PRIu64 " of %s%s waits for %s%s%s\n",
				m->values ? "reduction" : "barrier", m->round,
				m->with_leader ? "leader," : "", dump_set(m->ranks, set),
				no_leader ? "leader" : "", no_leader && missing ? "," : "",
				missing ? dump_set(missing, who) : "");
	}
}

void dump_table_events(const struct dump *d, uint32_t most, FILE *out)
{
	uint32_t first = d->event_count > most ? d->event_count - most : 0;

	for (uint32_t i = first; i < d->event_count; i++) {
		const struct kvr_inspect_event *e = &d->events[i];
		char who[16], age[32], text[256];

		kvr_inspect_event_text(e, text, sizeof text);
		fprintf(out, "%-7s %9s ago %s\n", dump_who(e->rank, who), dump_age(d, e->ns, age),
			text);
	}
}

void dump_table_title(const char *what, uint64_t interval_ns, FILE *out)
{
	time_t at = time(NULL);
	char now[16] = "", span[32];
	struct tm tm;

	if (localtime_r(&at, &tm))
		strftime(now, sizeof now, "%H:%M:%S", &tm);
	fprintf(out, "%s  %s, every %s\n", what, now, dump_span(interval_ns, span));
}

void dump_table(const struct dump *d, const struct dump_counts *before, uint32_t columns,
		uint32_t most_ops, uint64_t interval_ns, FILE *out)
{
	struct dump_counts now;
	char title[160], age[32], per_second[24];

	dump_counts(d, &now);
	snprintf(title, sizeof title, "%s  epoch %" PRIu64 "  tick %" PRIu64 " (%s/s)  up %s",
		 d->group.name, d->group.epoch, d->group.tick_done,
		 rate(now.tick, before->tick, seconds(&now, before), per_second),
		 dump_age(d, d->group.created_ns, age));
	dump_table_title(title, interval_ns, out);
	wrapped(d->verdict, columns, 4, out);
	fprintf(out, "\n%-7s %8s %-9s %9s %8s %8s %7s  %s\n", "RANK", "PID", "STATE", "TICK",
		"CALLS/S", "MSGS/S", "BEHIND", "NOW");
	process(d, &d->leader, &now, before, out);
	for (uint32_t r = 0; r < d->group.ranks; r++)
		process(d, &d->rank[r], &now, before, out);
	channels(d, &now, before, out);
	operations(d, most_ops, out);
	barriers(d, out);
}
