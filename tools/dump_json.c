/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group as one JSON object; ring-dump(1) has the schema. Ages are milliseconds, null when
 * unknown; sets of ranks are arrays; 64-bit counts are plain numbers.
 */
#include <inttypes.h>
#include <string.h>

#include "dump.h"

/* Names and sentences are ASCII already, paths may hold anything: bytes beyond it become '?'. */
static void string(const char *s, FILE *out)
{
	putc('"', out);
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (c == '"' || c == '\\')
			fprintf(out, "\\%c", c);
		else if (c < 0x20)
			fprintf(out, "\\u%04x", c);
		else
			putc(c < 0x7f ? c : '?', out);
	}
	putc('"', out);
}

static void field(const char *name, const char *value, FILE *out)
{
	fprintf(out, "\"%s\":", name);
	string(value, out);
}

static void number(const char *name, uint64_t v, FILE *out)
{
	fprintf(out, ",\"%s\":%" PRIu64, name, v);
}

static void boolean(const char *name, int v, FILE *out)
{
	fprintf(out, ",\"%s\":%s", name, v ? "true" : "false");
}

static void age(const struct dump *d, const char *name, uint64_t ns, FILE *out)
{
	uint64_t ago = dump_since(d, ns);

	if (ago == UINT64_MAX)
		fprintf(out, ",\"%s\":null", name);
	else
		fprintf(out, ",\"%s\":%.3f", name, (double)ago / 1e6);
}

/* null for the leader. */
static void rank(const char *name, uint32_t r, FILE *out)
{
	if (r == DUMP_LEADER)
		fprintf(out, "\"%s\":null", name);
	else
		fprintf(out, "\"%s\":%" PRIu32, name, r);
}

static void set(const char *name, uint64_t ranks, FILE *out)
{
	const char *comma = "";

	fprintf(out, ",\"%s\":[", name);
	for (uint32_t r = 0; r < 64; r++)
		if (ranks >> r & 1) {
			fprintf(out, "%s%" PRIu32, comma, r);
			comma = ",";
		}
	putc(']', out);
}

static void hex(const char *name, const uint8_t *bytes, size_t len, FILE *out)
{
	fprintf(out, ",\"%s\":\"", name);
	for (size_t i = 0; i < len; i++)
		fprintf(out, "%02x", bytes[i]);
	putc('"', out);
}

static void request(const struct kvr_request *r, FILE *out)
{
	fprintf(out,
		",\"request\":{\"id\":%" PRIu64 ",\"space\":%" PRIu64 ",\"attempt\":%" PRIu32 "}",
		r->id, r->space, r->attempt);
}

/* Of those that are known without their namespace. */
static void short_request(const char *name, const struct kvr_request *r, FILE *out)
{
	fprintf(out, ",\"%s\":{\"id\":%" PRIu64 ",\"attempt\":%" PRIu32 "}", name, r->id,
		r->attempt);
}

static void group(const struct dump *d, FILE *out)
{
	const struct kvr_inspect_group *g = &d->group;

	fprintf(out, "{");
	field("name", g->name, out);
	number("epoch", g->epoch, out);
	hex("uuid", g->uuid, sizeof g->uuid, out);
	fprintf(out, ",");
	field("file", d->path, out);
	number("bytes", g->total_bytes, out);
	number("layout", g->version, out);
	fprintf(out, ",");
	field("library", g->library, out);
	age(d, "age_ms", g->created_ns, out);
	number("creator_pid", g->creator_pid, out);
	number("ranks", g->ranks, out);
	number("ring_bytes", g->ring_bytes, out);
	number("ops", g->ops, out);
	number("events", g->events, out);
	number("bulk_bytes", g->bulk_bytes, out);
	number("bulk_used", g->bulk_used, out);
	number("quarantined_ops", g->quarantined_ops, out);
	number("quarantined_slots", g->quarantined_slots, out);
	number("tick", g->tick_done, out);
	age(d, "tick_ms", d->tick_ns, out);
	boolean("ending", g->ending != 0, out);
	number("retired_by", g->retired_by, out);
	if (g->retired_by) {
		fprintf(out, ",");
		field("retired_how", kvr_inspect_retired_name(g->retired_how), out);
		age(d, "retired_ms", g->retired_ns, out);
	}
	fprintf(out, ",");
	field("state", kvr_inspect_state_name(g->state), out);
	fprintf(out, ",\"cause\":%" PRId32, g->cause);
	if (g->cause && g->blamed < g->ranks)
		number("blamed", g->blamed, out);
	boolean("same_boot", g->same_boot != 0, out);
	if (g->saved_unix_ns)
		number("saved_unix_ms", g->saved_unix_ns / 1000000, out);
	fprintf(out, ",\"model\":{");
	field("name", g->model.name, out);
	fprintf(out, ",");
	field("revision", g->model.revision, out);
	fprintf(out, ",");
	field("dtype", g->model.dtype, out);
	fprintf(out, "},");
	field("setup", g->setup, out);
	fprintf(out, "}");
}

static void process(const struct dump *d, const struct kvr_inspect_proc *p, FILE *out)
{
	const char *comma = "";

	fprintf(out, "{");
	rank("rank", p->rank, out);
	number("pid", p->pid, out);
	fprintf(out, ",");
	field("state", dump_alive(p), out);
	fprintf(out, ",\"alive\":%s,\"in_call\":", p->alive > 0 ? "true" : "false");
	if (p->in_call) {
		string(kvr_inspect_call_name(p->in_call), out);
		age(d, "in_call_ms", p->call_ns, out);
	} else {
		fprintf(out, "null,\"in_call_ms\":null");
	}
	age(d, "active_ms", p->progress_ns, out);
	fprintf(out, ",\"phase\":");
	if (dump_in_phase(d, p))
		string(p->phase, out);
	else
		fprintf(out, "null");
	number("tick", p->rank == DUMP_LEADER ? d->group.tick_done : p->tick_seen, out);
	number("lost_wakes", p->lost_wakes, out);
	number("expired", p->expired, out);
	number("mismatches", p->mismatches, out);
	number("late", p->late, out);
	number("duplicate", p->duplicate, out);
	number("foreign", p->foreign, out);
	fprintf(out, ",\"calls\":{");
	for (uint32_t c = 1; c < sizeof p->calls / sizeof p->calls[0]; c++) {
		const char *call = kvr_inspect_call_name(c);

		/* A page that was overwritten counts calls that do not exist: "?", and twice. */
		if (!p->calls[c] || *call == '?')
			continue;
		fprintf(out, "%s\"%s\":%" PRIu64, comma, call, p->calls[c]);
		comma = ",";
	}
	fprintf(out, "}}");
}

static void channels(const struct dump *d, FILE *out)
{
	const char *comma = "";

	fprintf(out, ",\"channels\":[");
	for (uint32_t c = 0; c < KVR_CHANNELS; c++)
		for (uint32_t r = 0; r < d->group.ranks; r++) {
			const struct kvr_inspect_channel *ch = &d->channel[c][r];

			if (!ch->published || !dump_filter_channel(&d->filter, c) ||
			    !dump_filter_rank(&d->filter, r))
				continue;
			fprintf(out, "%s{", comma);
			field("channel", kvr_channel_name(c), out);
			number("rank", r, out);
			number("last", d->group.watermark[c], out);
			number("published", ch->published, out);
			number("taken", ch->taken, out);
			number("behind", dump_lag(ch), out);
			number("writer_cells", ch->writer_cells, out);
			number("reader_cells", ch->reader_cells, out);
			number("oldest_unread", ch->oldest_unread, out);
			age(d, "oldest_unread_ms", ch->oldest_unread_ns, out);
			fprintf(out, "}");
			comma = ",";
		}
	fprintf(out, "]");
}

static void operation(const struct dump *d, const struct kvr_inspect_op *o, FILE *out)
{
	fprintf(out, "{");
	field("kind", kvr_inspect_op_name(o->kind), out);
	request(&o->request, out);
	fprintf(out, ",");
	field("stage", kvr_stage_name(o->stage), out);
	number("entry", o->entry, out);
	number("value", o->value, out);
	number("blocks", o->blocks, out);
	if (o->layered)
		number("layers", o->layers, out);
	age(d, "age_ms", o->begun_ns, out);
	age(d, "in_stage_ms", o->stage_ns, out);
	set("acked", o->acked, out);
	set("waits_for", dump_unanswered(o), out);
	fprintf(out, "}");
}

static void operations(const struct dump *d, const char *name, int quarantined, FILE *out)
{
	const char *comma = "";

	fprintf(out, ",\"%s\":[", name);
	for (uint32_t i = 0; i < d->op_count; i++) {
		if (dump_quarantined(&d->ops[i]) != quarantined ||
		    !dump_filter_request(&d->filter, &d->ops[i].request))
			continue;
		fprintf(out, "%s", comma);
		operation(d, &d->ops[i], out);
		comma = ",";
	}
	fprintf(out, "]");
}

static void meetings(const struct dump *d, FILE *out)
{
	fprintf(out, ",\"barriers\":[");
	for (uint32_t i = 0; i < d->meet_count; i++) {
		const struct kvr_inspect_meet *m = &d->meets[i];

		fprintf(out, "%s{", i ? "," : "");
		field("kind", m->values ? "reduction" : "barrier", out);
		set("ranks", m->ranks, out);
		boolean("with_leader", m->with_leader != 0, out);
		number("round", m->round, out);
		number("values", m->values, out);
		set("missing", m->ranks & ~m->arrived, out);
		boolean("leader_missing", m->with_leader && !m->leader_arrived, out);
		boolean("differ", m->differ != 0, out);
		fprintf(out, "}");
	}
	fprintf(out, "]");
}

static void logs(const struct dump *d, FILE *out)
{
	const char *comma = "";

	fprintf(out, ",\"logs\":[");
	for (uint32_t k = 0; k < KVR_ALIKE_KINDS; k++)
		for (uint32_t r = 0; r <= d->group.ranks; r++) {
			const struct kvr_inspect_log *log = &d->log[r ? r - 1 : DUMP_LEADER_AT][k];

			if (!log->count)
				continue;
			fprintf(out, "%s{", comma);
			field("kind", kvr_inspect_alike_name(k), out);
			fprintf(out, ",");
			rank("rank", r ? r - 1 : DUMP_LEADER, out);
			number("calls", log->count, out);
			age(d, "last_ms", log->last_ns, out);
			if (log->last_known)
				short_request("last", &log->last.request, out);
			fprintf(out, "}");
			comma = ",";
		}
	fprintf(out, "]");
}

static void drifts(const struct dump *d, FILE *out)
{
	const char *comma = "";

	fprintf(out, ",\"drift\":[");
	for (uint32_t r = 0; r < d->group.ranks; r++)
		for (uint32_t k = 0; k < KVR_ALIKE_KINDS; k++) {
			const struct kvr_inspect_drift *x = &d->drift[r][k];

			if (!(d->drifted[r] >> k & 1))
				continue;
			fprintf(out, "%s{", comma);
			field("kind", kvr_inspect_alike_name(k), out);
			number("rank", r, out);
			number("call", x->index + 1, out);
			boolean("exact", x->exact != 0, out);
			boolean("noticed", x->noticed != 0, out);
			age(d, "noticed_ms", x->ns, out);
			short_request("request", &x->request, out);
			short_request("leader_request", &x->its_request, out);
			number("calls", x->calls, out);
			number("leader_calls", x->its_calls, out);
			fprintf(out, "}");
			comma = ",";
		}
	fprintf(out, "]");
}

static void calls_alike(const struct dump *d, FILE *out)
{
	if (!d->call_count)
		return;
	fprintf(out, ",\"calls\":[");
	for (uint32_t i = 0; i < d->call_count; i++) {
		const struct dump_calls *c = &d->calls[i];

		fprintf(out, "%s{", i ? "," : "");
		field("kind", kvr_inspect_alike_name(c->kind), out);
		fprintf(out, ",");
		rank("rank", c->rank, out);
		number("call", c->call.index + 1, out);
		short_request("request", &c->call.request, out);
		number("keys", c->call.keys, out);
		fprintf(out, ",\"hash\":\"%016" PRIx64 "\"}", c->call.chain);
	}
	fprintf(out, "]");
}

static void messages(const struct dump *d, FILE *out)
{
	fprintf(out, ",\"messages\":[");
	for (uint32_t i = 0; i < d->message_count; i++) {
		const struct dump_message *m = &d->messages[i];
		size_t shown = m->m.len < sizeof m->m.payload ? m->m.len : sizeof m->m.payload;
		char tag[32];

		fprintf(out, "%s{", i ? "," : "");
		field("channel", kvr_channel_name(m->m.channel), out);
		number("number", m->m.number, out);
		number("tag", m->m.tag, out);
		fprintf(out, ",");
		field("tag_name", dump_tag(m->m.tag, tag), out);
		request(&m->m.request, out);
		number("bytes", m->m.len, out);
		set("ranks", m->ranks, out);
		set("taken", m->taken, out);
		fprintf(out, ",\"whole\":%s", m->whole ? "true" : "false");
		fprintf(out, ",\"bulk\":%" PRId32, m->m.bulk);
		hex("data", m->m.payload, shown, out);
		fprintf(out, "}");
	}
	fprintf(out, "]");
}

void dump_event_json(const struct dump *d, const struct kvr_inspect_event *e, FILE *out)
{
	char text[256], tag[32];

	kvr_inspect_event_text(e, text, sizeof text);
	fprintf(out, "{");
	rank("rank", e->rank, out);
	number("ns", e->ns, out);
	age(d, "age_ms", e->ns, out);
	number("index", e->index, out);
	fprintf(out, ",");
	field("kind", kvr_inspect_event_name(e->kind), out);
	fprintf(out, ",");
	field("channel", kvr_channel_name(e->channel), out);
	fprintf(out, ",");
	field("call", kvr_inspect_call_name(e->call), out);
	number("number", e->number, out);
	fprintf(out, ",");
	field("tag", dump_tag(e->tag, tag), out);
	short_request("request", &e->request, out);
	fprintf(out, ",\"result\":%" PRId32 ",", e->result);
	field("text", text, out);
	fprintf(out, "}");
}

static void events(const struct dump *d, FILE *out)
{
	fprintf(out, ",\"events\":[");
	for (uint32_t i = 0; i < d->event_count; i++) {
		fprintf(out, "%s", i ? "," : "");
		dump_event_json(d, &d->events[i], out);
	}
	fprintf(out, "]");
}

/* How it is, which group, and who is in it. */
static void summary(const struct dump *d, FILE *out)
{
	field("verdict", d->verdict, out);
	fprintf(out, ",\"status\":%d,\"group\":", d->status);
	group(d, out);
	fprintf(out, ",\"leader\":");
	process(d, &d->leader, out);
	fprintf(out, ",\"ranks\":[");
	for (uint32_t r = 0; r < d->group.ranks; r++) {
		fprintf(out, "%s", r ? "," : "");
		process(d, &d->rank[r], out);
	}
	fprintf(out, "]");
}

void dump_json(const struct dump *d, FILE *out)
{
	fprintf(out, "{");
	summary(d, out);
	channels(d, out);
	operations(d, "operations", 0, out);
	operations(d, "quarantine", 1, out);
	meetings(d, out);
	logs(d, out);
	drifts(d, out);
	calls_alike(d, out);
	messages(d, out);
	events(d, out);
	fprintf(out, "}\n");
}

void dump_list_json(const struct dump *d, const char *path, const char *broken, int first,
		    FILE *out)
{
	fprintf(out, "%s{", first ? "" : ",");
	field("file", path, out);
	fprintf(out, ",");
	if (broken)
		field("broken", broken, out);
	else
		summary(d, out);
	fprintf(out, "}");
}
