/* SPDX-License-Identifier: Apache-2.0 */
/* A group as text for people: the verdict first, then tables that stay narrow. */
#include <inttypes.h>
#include <string.h>

#include "dump.h"

static void header(const struct dump *d, FILE *out)
{
	const struct kvr_inspect_group *g = &d->group;
	char age[32];

	fprintf(out, "group      %s  epoch %" PRIu64 "  uuid ", g->name, g->epoch);
	for (size_t i = 0; i < sizeof g->uuid; i++)
		fprintf(out, "%02x", g->uuid[i]);
	fprintf(out, "\nfile       %s  %" PRIu64 " bytes, layout %" PRIu32 ", kvring %s\n", d->path,
		g->total_bytes, g->version, g->library);
	fprintf(out,
		"created    %s ago by pid %" PRIu32 "  ranks %" PRIu32 "  ring %" PRIu32
		" bytes  ops %" PRIu32 "  events %" PRIu32 "\n",
		dump_age(d, g->created_ns, age), g->creator_pid, g->ranks, g->ring_bytes, g->ops,
		g->events);
	if (g->model.name[0])
		fprintf(out, "model      %s %s %s\n", g->model.name, g->model.revision,
			g->model.dtype);
	if (g->setup[0])
		fprintf(out, "setup      ");
	for (const char *p = g->setup; *p; p++)
		putc(*p != '\n' ? *p : p[1] ? ' ' : '\n', out);
	if (g->setup[0] && g->setup[strlen(g->setup) - 1] != '\n')
		putc('\n', out);
}

/* What it is inside of, or why it says nothing. */
static void in_call(const struct dump *d, const struct kvr_inspect_proc *p, FILE *out)
{
	char age[32];

	if (p->in_call)
		fprintf(out, "in %s (%s) for %s", kvr_inspect_call_name(p->in_call),
			kvr_channel_name(p->call_channel), dump_age(d, p->call_ns, age));
	else
		fprintf(out, "-");
	if (p->phase_until > d->now_ns && d->group.same_boot)
		fprintf(out, ", in the long phase \"%s\" for %.1f s more", p->phase,
			(double)(p->phase_until - d->now_ns) / 1e9);
}

static void process(const struct dump *d, const struct kvr_inspect_proc *p, FILE *out)
{
	char who[16], age[32];

	if (p->rank == DUMP_LEADER)
		strcpy(who, "leader");
	else
		snprintf(who, sizeof who, "%" PRIu32, p->rank);
	fprintf(out,
		"%-7s %8" PRIu32 " %-7s %10s %9" PRIu64 " %6" PRIu64 " %6" PRIu64 " %6" PRIu64 "  ",
		who, p->pid, dump_alive(p), dump_age(d, p->progress_ns, age),
		p->rank == DUMP_LEADER ? d->group.tick_done : p->tick_seen, p->lost_wakes,
		p->expired, p->mismatches);
	in_call(d, p, out);
	fprintf(out, "\n");
}

static void calls(const struct kvr_inspect_proc *p, FILE *out)
{
	int any = 0;

	for (uint32_t c = 1; c < 16; c++) {
		if (!p->calls[c])
			continue;
		if (!any && p->rank == DUMP_LEADER)
			fprintf(out, "  calls of the leader:");
		else if (!any)
			fprintf(out, "  calls of rank %" PRIu32 ":", p->rank);
		fprintf(out, " %s %" PRIu64, kvr_inspect_call_name(c), p->calls[c]);
		any = 1;
	}
	if (any)
		fprintf(out, "\n");
}

static void processes(const struct dump *d, FILE *out)
{
	fprintf(out, "\n%-7s %8s %-7s %10s %9s %6s %6s %6s  %s\n", "RANK", "PID", "STATE", "ACTIVE",
		"TICK", "LOST", "EXPIRE", "WRONG", "NOW");
	process(d, &d->leader, out);
	for (uint32_t r = 0; r < d->group.ranks; r++)
		process(d, &d->rank[r], out);
	calls(&d->leader, out);
	for (uint32_t r = 0; r < d->group.ranks; r++)
		calls(&d->rank[r], out);
}

static void channels(const struct dump *d, FILE *out)
{
	int any = 0;

	for (uint32_t c = 0; c < KVR_CHANNELS; c++)
		for (uint32_t r = 0; r < d->group.ranks; r++) {
			const struct kvr_inspect_channel *ch = &d->channel[c][r];
			char age[32];

			if (!ch->published)
				continue;
			if (!any++)
				fprintf(out, "\n%-9s %4s %10s %10s %10s %8s  %s\n", "CHANNEL",
					"RANK", "LAST", "PUBLISHED", "TAKEN", "BEHIND",
					"OLDEST UNREAD");
			fprintf(out,
				"%-9s %4" PRIu32 " %10" PRIu64 " %10" PRIu64 " %10" PRIu64
				" %8" PRIu64 "  %s\n",
				kvr_channel_name(c), r, d->group.watermark[c], ch->published,
				ch->taken, dump_lag(ch), dump_age(d, ch->oldest_unread_ns, age));
		}
	if (!any)
		fprintf(out, "\nno message was published\n");
}

/* A set of ranks as "0-3,7". */
static void set(uint64_t ranks, FILE *out)
{
	const char *comma = "";

	for (uint32_t r = 0; r < 64; r++) {
		uint32_t first = r;

		if (!(ranks >> r & 1))
			continue;
		while (r < 63 && ranks >> (r + 1) & 1)
			r++;
		fprintf(out, r > first ? "%s%" PRIu32 "-%" PRIu32 : "%s%" PRIu32, comma, first, r);
		comma = ",";
	}
	if (!ranks)
		fprintf(out, "none");
}

static void operations(const struct dump *d, FILE *out)
{
	if (!d->op_count)
		return;
	fprintf(out, "\n%-6s %-14s %-10s %8s %10s %10s  %s\n", "OP", "REQUEST", "STAGE", "BLOCKS",
		"AGE", "IN STAGE", "ACKED BY");
	for (uint32_t i = 0; i < d->op_count; i++) {
		const struct kvr_inspect_op *o = &d->ops[i];
		char request[48], a[32], b[32];

		snprintf(request, sizeof request, "%" PRIu64 "/%" PRIu32, o->request.id,
			 o->request.attempt);
		fprintf(out, "%-6s %-14s %-10s %8" PRIu32 " %10s %10s  ",
			kvr_inspect_op_name(o->kind), request, kvr_stage_name(o->stage), o->blocks,
			dump_age(d, o->begun_ns, a), dump_age(d, o->stage_ns, b));
		set(o->acked, out);
		fprintf(out, "\n");
	}
}

static void messages(const struct dump *d, FILE *out)
{
	for (uint32_t i = 0; i < d->message_count; i++) {
		const struct dump_message *m = &d->messages[i];
		char request[48], tag[32];

		if (!i)
			fprintf(out, "\n%-9s %8s %-15s %-14s %6s  %-18s %s\n", "MESSAGES", "NUMBER",
				"TAG", "REQUEST", "BYTES", "TO, TAKEN BY", "DATA");
		snprintf(request, sizeof request, "%" PRIu64 "/%" PRIu32, m->m.request.id,
			 m->m.request.attempt);
		fprintf(out, "%-9s %8" PRIu64 " %-15s %-14s %6" PRIu32 "  ",
			kvr_channel_name(m->m.channel), m->m.number, dump_tag(m->m.tag, tag),
			request, m->m.len);
		set(m->ranks, out);
		if (m->whole) {
			fprintf(out, " by ");
			set(m->taken, out);
		} else {
			fprintf(out, " not whole: nobody may take it");
		}
		fprintf(out, m->m.len ? "  " : "");
		for (uint32_t b = 0; b < m->m.len && b < 16; b++)
			fprintf(out, "%02x", m->m.payload[b]);
		fprintf(out, "%s\n", m->m.len > 16 ? "..." : "");
	}
}

static void events(const struct dump *d, FILE *out)
{
	for (uint32_t i = 0; i < d->event_count; i++) {
		const struct dump_event *e = &d->events[i];
		char who[16];

		if (!i)
			fprintf(out, "\nEVENTS\n");
		if (e->who == DUMP_LEADER)
			strcpy(who, "leader");
		else
			snprintf(who, sizeof who, "rank %" PRIu32, e->who);
		fprintf(out, "%-9s %s\n", who, e->line);
	}
}

void dump_text(const struct dump *d, FILE *out)
{
	fprintf(out, "%s\n", d->verdict);
	header(d, out);
	processes(d, out);
	channels(d, out);
	operations(d, out);
	messages(d, out);
	events(d, out);
}

void dump_list_text(const struct dump *d, const char *path, const char *broken, int first,
		    FILE *out)
{
	uint32_t alive = 0;
	char ranks[32];

	if (first)
		fprintf(out, "%-24s %6s %8s %-8s %7s %9s  %s\n", "GROUP", "EPOCH", "LEADER",
			"STATE", "RANKS", "TICK", "FILE");
	if (broken) {
		fprintf(out, "%-24s %6s %8s %-8s %7s %9s  %s\n", "-", "-", "-", "broken", "-", "-",
			broken);
		return;
	}
	for (uint32_t r = 0; r < d->group.ranks; r++)
		alive += d->rank[r].alive > 0;
	snprintf(ranks, sizeof ranks, "%" PRIu32 "/%" PRIu32, alive, d->group.ranks);
	fprintf(out, "%-24s %6" PRIu64 " %8" PRIu32 " %-8s %7s %9" PRIu64 "  %s\n", d->group.name,
		d->group.epoch, d->leader.pid,
		d->group.retired_by ? "retired" : dump_alive(&d->leader), ranks, d->group.tick_done,
		path);
}
