/* SPDX-License-Identifier: Apache-2.0 */
/* A group as text for people: the verdict first, then tables that stay narrow. */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "dump.h"

static void saved(const struct dump *d, FILE *out)
{
	time_t at = (time_t)(d->group.saved_unix_ns / 1000000000u);
	char text[64];
	struct tm tm;

	if (!d->group.saved_unix_ns || !gmtime_r(&at, &tm) ||
	    !strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &tm))
		return;
	fprintf(out, "saved      %s: ages and processes are those of then\n", text);
}

static void header(const struct dump *d, FILE *out)
{
	const struct kvr_inspect_group *g = &d->group;
	char age[32];

	fprintf(out, "group      %s  epoch %" PRIu64 "  uuid ", g->name, g->epoch);
	for (size_t i = 0; i < sizeof g->uuid; i++)
		fprintf(out, "%02x", g->uuid[i]);
	fprintf(out, "\nfile       ");
	for (const char *p = d->path; *p; p++)
		putc(*p >= ' ' && *p <= '~' ? *p : '?', out);
	fprintf(out, "  %" PRIu64 " bytes, layout %" PRIu32 ", kvring %s\n", g->total_bytes,
		g->version, g->library);
	saved(d, out);
	fprintf(out,
		"created    %s ago by pid %" PRIu32 "  ranks %" PRIu32 "  ring %" PRIu32
		" bytes  ops %" PRIu32 "  events %" PRIu32 "  bulk %" PRIu64 " of %" PRIu32
		" bytes\n",
		dump_age(d, g->created_ns, age), g->creator_pid, g->ranks, g->ring_bytes, g->ops,
		g->events, g->bulk_used, g->bulk_bytes);
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
	if (dump_in_phase(d, p))
		fprintf(out, ", in the long phase \"%s\" for %s more", p->phase,
			dump_span(p->phase_until - d->group.now_ns, age));
	else if (p->phase_until && p->alive > 0 && d->group.same_boot)
		fprintf(out, ", its long phase \"%s\" should have ended", p->phase);
}

static void process(const struct dump *d, const struct kvr_inspect_proc *p, FILE *out)
{
	char who[16], age[32];

	if (!dump_filter_rank(&d->filter, p->rank))
		return;
	fprintf(out,
		"%-7s %8" PRIu32 " %-9s %10s %9" PRIu64 " %6" PRIu64 " %6" PRIu64 " %6" PRIu64
		" %6" PRIu64 " %6" PRIu64 " %6" PRIu64 "  ",
		dump_who(p->rank, who), p->pid, dump_alive(p), dump_age(d, p->progress_ns, age),
		p->rank == DUMP_LEADER ? d->group.tick_done : p->tick_seen, p->lost_wakes,
		p->expired, p->mismatches, p->late, p->duplicate, p->foreign);
	in_call(d, p, out);
	fprintf(out, "\n");
}

static void calls(const struct dump *d, const struct kvr_inspect_proc *p, FILE *out)
{
	char who[16];
	int any = 0;

	if (!dump_filter_rank(&d->filter, p->rank))
		return;
	for (uint32_t c = 1; c < sizeof p->calls / sizeof p->calls[0]; c++) {
		const char *call = kvr_inspect_call_name(c);

		/* A page that was overwritten counts calls that do not exist. */
		if (!p->calls[c] || *call == '?')
			continue;
		if (!any++)
			fprintf(out, "  calls of %s%s:", p->rank == DUMP_LEADER ? "the " : "rank ",
				dump_who(p->rank, who));
		fprintf(out, " %s %" PRIu64, call, p->calls[c]);
	}
	if (any)
		fprintf(out, "\n");
}

static void processes(const struct dump *d, FILE *out)
{
	fprintf(out, "\n%-7s %8s %-9s %10s %9s %6s %6s %6s %6s %6s %6s  %s\n", "RANK", "PID",
		"STATE", "ACTIVE", "TICK", "LOST", "EXPIRE", "WRONG", "LATE", "DUPL", "FOREIG",
		"NOW");
	process(d, &d->leader, out);
	for (uint32_t r = 0; r < d->group.ranks; r++)
		process(d, &d->rank[r], out);
	calls(d, &d->leader, out);
	for (uint32_t r = 0; r < d->group.ranks; r++)
		calls(d, &d->rank[r], out);
}

static void channels(const struct dump *d, FILE *out)
{
	int any = 0;

	for (uint32_t c = 0; c < KVR_CHANNELS; c++)
		for (uint32_t r = 0; r < d->group.ranks; r++) {
			const struct kvr_inspect_channel *ch = &d->channel[c][r];
			char age[32];

			if (!ch->published || !dump_filter_channel(&d->filter, c) ||
			    !dump_filter_rank(&d->filter, r))
				continue;
			if (!any++)
				fprintf(out, "\n%-9s %4s %10s %10s %10s %8s %8s  %s\n", "CHANNEL",
					"RANK", "LAST", "PUBLISHED", "TAKEN", "BEHIND", "CELLS",
					"OLDEST UNREAD");
			fprintf(out,
				"%-9s %4" PRIu32 " %10" PRIu64 " %10" PRIu64 " %10" PRIu64
				" %8" PRIu64 " %8" PRIu64 "  %s\n",
				kvr_channel_name(c), r, d->group.watermark[c], ch->published,
				ch->taken, dump_lag(ch),
				ch->writer_cells > ch->reader_cells
					? ch->writer_cells - ch->reader_cells
					: 0,
				dump_age(d, ch->oldest_unread_ns, age));
		}
	if (!any)
		fprintf(out, "\nno message was published\n");
}

static int shown_op(const struct dump *d, const struct kvr_inspect_op *o, int quarantined)
{
	const struct dump_filter *f = &d->filter;

	return dump_quarantined(o) == quarantined && dump_filter_request(f, &o->request) &&
	       (f->rank < 0 || f->rank >= 64 || (o->need | o->acked) >> f->rank & 1);
}

static void operation(const struct dump *d, const struct kvr_inspect_op *o, FILE *out)
{
	char request[40], age[32], in_stage[32], waits[DUMP_SET_MAX], acked[DUMP_SET_MAX];

	fprintf(out, "%-8s %-14s %-10s %8" PRIu32 " ", kvr_inspect_op_name(o->kind),
		dump_request(&o->request, request), kvr_stage_name(o->stage), o->blocks);
	if (o->layered)
		fprintf(out, "%8" PRIu32, o->layers);
	else
		fprintf(out, "%8s", "-");
	fprintf(out, " %10s %10s  %-9s %s\n", dump_age(d, o->begun_ns, age),
		dump_age(d, o->stage_ns, in_stage), dump_set(dump_unanswered(o), waits),
		dump_set(o->acked, acked));
}

static void operations(const struct dump *d, int quarantined, FILE *out)
{
	int any = 0;

	for (uint32_t i = 0; i < d->op_count; i++) {
		if (!shown_op(d, &d->ops[i], quarantined))
			continue;
		if (!any++)
			fprintf(out, "\n%-8s %-14s %-10s %8s %8s %10s %10s  %-9s %s\n",
				quarantined ? "HELD" : "OP", "REQUEST", "STAGE", "BLOCKS", "LAYERS",
				"AGE", "IN STAGE", "WAITS FOR", "ACKED BY");
		operation(d, &d->ops[i], out);
	}
}

static void quarantine(const struct dump *d, FILE *out)
{
	if (d->group.quarantined_ops || d->group.quarantined_slots)
		fprintf(out,
			"\nquarantine %" PRIu64 " operations that ended hold %" PRIu64
			" slots of the pool until the ranks below answer or are gone\n",
			d->group.quarantined_ops, d->group.quarantined_slots);
	operations(d, 1, out);
}

static void meetings(const struct dump *d, FILE *out)
{
	for (uint32_t i = 0; i < d->meet_count; i++) {
		const struct kvr_inspect_meet *m = &d->meets[i];
		char set[DUMP_SET_MAX], missing[DUMP_SET_MAX], kind[32] = "barrier";
		int no_leader = m->with_leader && !m->leader_arrived;

		if (!i)
			fprintf(out, "\n%-18s %-14s %10s  %s\n", "BARRIER", "SET", "ROUND",
				"HAS NOT COME");
		if (m->values)
			snprintf(kind, sizeof kind, "reduction of %" PRIu32, m->values);
		fprintf(out, "%-18s %s%-*s %10" PRIu64 "  %s%s%s%s\n", kind,
			m->with_leader ? "leader," : "", m->with_leader ? 7 : 14,
			dump_set(m->ranks, set), m->round, no_leader ? "leader" : "",
			no_leader && m->ranks & ~m->arrived ? "," : "",
			no_leader && !(m->ranks & ~m->arrived)
				? ""
				: dump_set(m->ranks & ~m->arrived, missing),
			m->differ ? "; they brought different numbers of values" : "");
	}
}

static void log_row(const struct dump *d, uint32_t rank, uint32_t kind, FILE *out)
{
	const struct kvr_inspect_log *log =
		&d->log[rank == DUMP_LEADER ? DUMP_LEADER_AT : rank][kind];
	uint64_t its = d->log[DUMP_LEADER_AT][kind].count;
	char who[16], age[32], request[40], note[96] = "";

	if ((!log->count && !its) || !dump_filter_rank(&d->filter, rank))
		return;
	if (rank < KVR_MAX_RANKS && d->drifted[rank] >> kind & 1)
		snprintf(note, sizeof note, "differs from the leader %s call %" PRIu64,
			 d->drift[rank][kind].exact ? "from" : "at the latest from",
			 d->drift[rank][kind].index + 1);
	else if (log->count != its)
		snprintf(note, sizeof note, "%" PRIu64 " %s",
			 log->count > its ? log->count - its : its - log->count,
			 log->count > its ? "ahead" : "behind");
	fprintf(out, "%-9s %-7s %12" PRIu64 " %10s  %-14s %s\n", kvr_inspect_alike_name(kind),
		dump_who(rank, who), log->count, dump_age(d, log->last_ns, age),
		log->last_known ? dump_request(&log->last.request, request) : "-", note);
}

static void logs(const struct dump *d, FILE *out)
{
	char who[16], request[40];
	int any = 0;

	for (uint32_t k = 0; k < KVR_ALIKE_KINDS; k++)
		for (uint32_t r = 0; r <= d->group.ranks; r++)
			any |= d->log[r < d->group.ranks ? r : DUMP_LEADER_AT][k].count != 0;
	if (!any)
		return;
	fprintf(out, "\n%-9s %-7s %12s %10s  %-14s\n", "LOG OF", "RANK", "CALLS", "LAST",
		"REQUEST");
	for (uint32_t k = 0; k < KVR_ALIKE_KINDS; k++) {
		log_row(d, DUMP_LEADER, k, out);
		for (uint32_t r = 0; r < d->group.ranks; r++)
			log_row(d, r, k, out);
	}
	for (uint32_t i = 0; i < d->call_count; i++) {
		const struct dump_calls *c = &d->calls[i];

		if (!i)
			fprintf(out, "\n%-9s %-7s %12s %-14s %8s  %s\n", "CALL", "RANK", "NUMBER",
				"REQUEST", "KEYS", "HASH OF ALL SO FAR");
		fprintf(out, "%-9s %-7s %12" PRIu64 " %-14s %8" PRIu32 "  %016" PRIx64 "\n",
			kvr_inspect_alike_name(c->kind), dump_who(c->rank, who), c->call.index + 1,
			dump_request(&c->call.request, request), c->call.keys, c->call.chain);
	}
}

static void messages(const struct dump *d, FILE *out)
{
	for (uint32_t i = 0; i < d->message_count; i++) {
		const struct dump_message *m = &d->messages[i];
		char request[40], tag[32], set[DUMP_SET_MAX];

		if (!i)
			fprintf(out, "\n%-9s %8s %-15s %-14s %6s  %-18s %s\n", "MESSAGES", "NUMBER",
				"TAG", "REQUEST", "BYTES", "TO, TAKEN BY", "DATA");
		fprintf(out, "%-9s %8" PRIu64 " %-15s %-14s %6" PRIu32 "  %s",
			kvr_channel_name(m->m.channel), m->m.number, dump_tag(m->m.tag, tag),
			dump_request(&m->m.request, request), m->m.len, dump_set(m->ranks, set));
		if (m->whole)
			fprintf(out, " by %s", dump_set(m->taken, set));
		else
			fprintf(out, " not whole: nobody may take it");
		fprintf(out, m->m.len ? "  " : "");
		for (uint32_t b = 0; b < m->m.len && b < 16; b++)
			fprintf(out, "%02x", m->m.payload[b]);
		fprintf(out, "%s%s\n", m->m.len > 16 ? "..." : "",
			!m->m.bulk	? ""
			: m->m.bulk > 0 ? " (in the bulk area)"
					: " (names no place in the bulk area)");
	}
}

static void events(const struct dump *d, FILE *out)
{
	for (uint32_t i = 0; i < d->event_count; i++) {
		const struct kvr_inspect_event *e = &d->events[i];
		char who[16], age[32], text[256];

		if (!i)
			fprintf(out, "\nEVENTS\n");
		kvr_inspect_event_text(e, text, sizeof text);
		fprintf(out, "%s%-*s %s ago %s\n", e->rank == DUMP_LEADER ? "" : "rank ",
			e->rank == DUMP_LEADER ? 9 : 4, dump_who(e->rank, who),
			dump_age(d, e->ns, age), text);
	}
}

void dump_text(const struct dump *d, FILE *out)
{
	fprintf(out, "%s\n", d->verdict);
	header(d, out);
	if (d->views & DUMP_RANKS)
		processes(d, out);
	if (d->views & DUMP_CHANNELS)
		channels(d, out);
	if (d->views & DUMP_OPERATIONS)
		operations(d, 0, out);
	if (d->views & DUMP_QUARANTINE)
		quarantine(d, out);
	if (d->views & DUMP_MEETINGS)
		meetings(d, out);
	if (d->views & DUMP_LOGS)
		logs(d, out);
	if (d->views & DUMP_MESSAGES)
		messages(d, out);
	if (d->views & DUMP_EVENTS)
		events(d, out);
}

void dump_list_text(const struct dump *d, const char *path, const char *broken, int first,
		    FILE *out)
{
	uint32_t alive = 0;
	char ranks[32];

	if (first)
		fprintf(out, "%-24s %6s %8s %-9s %7s %9s  %s\n", "GROUP", "EPOCH", "LEADER",
			"STATE", "RANKS", "TICK", "FILE");
	if (broken) {
		fprintf(out, "%-24s %6s %8s %-9s %7s %9s  %s\n", "-", "-", "-", "broken", "-", "-",
			broken);
		return;
	}
	for (uint32_t r = 0; r < d->group.ranks; r++)
		alive += d->rank[r].alive > 0;
	snprintf(ranks, sizeof ranks, "%" PRIu32 "/%" PRIu32, alive, d->group.ranks);
	fprintf(out, "%-24s %6" PRIu64 " %8" PRIu32 " %-9s %7s %9" PRIu64 "  %s\n", d->group.name,
		d->group.epoch, d->leader.pid,
		d->group.retired_by ? "retired" : dump_alive(&d->leader), ranks, d->group.tick_done,
		path);
}
