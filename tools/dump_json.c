/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group as one JSON object. Ages are milliseconds, null when unknown; sets of ranks are arrays;
 * 64-bit counts are plain numbers.
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

static void age(const struct dump *d, const char *name, uint64_t ns, FILE *out)
{
	uint64_t ago = d->now_ns > ns ? d->now_ns - ns : 0;

	if (!ns || !d->group.same_boot)
		fprintf(out, ",\"%s\":null", name);
	else
		fprintf(out, ",\"%s\":%.3f", name, (double)ago / 1e6);
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
	number("tick", g->tick_done, out);
	number("retired_by", g->retired_by, out);
	fprintf(out, ",");
	field("state", kvr_inspect_state_name(g->state), out);
	fprintf(out, ",\"cause\":%" PRId32, g->cause);
	fprintf(out, ",\"same_boot\":%s,\"model\":{", g->same_boot ? "true" : "false");
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

	fprintf(out, "{\"rank\":");
	if (p->rank == DUMP_LEADER)
		fprintf(out, "null");
	else
		fprintf(out, "%" PRIu32, p->rank);
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
	if (p->phase_until > d->now_ns && d->group.same_boot)
		string(p->phase, out);
	else
		fprintf(out, "null");
	number("tick", p->rank == DUMP_LEADER ? d->group.tick_done : p->tick_seen, out);
	number("lost_wakes", p->lost_wakes, out);
	number("expired", p->expired, out);
	number("mismatches", p->mismatches, out);
	fprintf(out, ",\"calls\":{");
	for (uint32_t c = 1; c < 16; c++) {
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

			if (!ch->published)
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
			age(d, "oldest_unread_ms", ch->oldest_unread_ns, out);
			fprintf(out, "}");
			comma = ",";
		}
	fprintf(out, "]");
}

static void operations(const struct dump *d, FILE *out)
{
	fprintf(out, ",\"operations\":[");
	for (uint32_t i = 0; i < d->op_count; i++) {
		const struct kvr_inspect_op *o = &d->ops[i];

		fprintf(out, "%s{", i ? "," : "");
		field("kind", kvr_inspect_op_name(o->kind), out);
		request(&o->request, out);
		fprintf(out, ",");
		field("stage", kvr_stage_name(o->stage), out);
		number("entry", o->entry, out);
		number("value", o->value, out);
		number("blocks", o->blocks, out);
		age(d, "age_ms", o->begun_ns, out);
		age(d, "in_stage_ms", o->stage_ns, out);
		set("acked", o->acked, out);
		fprintf(out, "}");
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
		hex("data", m->m.payload, shown, out);
		fprintf(out, "}");
	}
	fprintf(out, "]");
}

static void events(const struct dump *d, FILE *out)
{
	fprintf(out, ",\"events\":[");
	for (uint32_t i = 0; i < d->event_count; i++) {
		const struct dump_event *e = &d->events[i];

		fprintf(out, "%s{\"rank\":", i ? "," : "");
		if (e->who == DUMP_LEADER)
			fprintf(out, "null");
		else
			fprintf(out, "%" PRIu32, e->who);
		number("ns", e->ns, out);
		fprintf(out, ",");
		field("text", e->line, out);
		fprintf(out, "}");
	}
	fprintf(out, "]");
}

void dump_json(const struct dump *d, FILE *out)
{
	fprintf(out, "{");
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
	channels(d, out);
	operations(d, out);
	messages(d, out);
	events(d, out);
	fprintf(out, "}\n");
}

void dump_list_json(const struct dump *d, const char *path, const char *broken, int first,
		    FILE *out)
{
	fprintf(out, "%s{", first ? "" : ",");
	field("file", path, out);
	if (broken) {
		fprintf(out, ",");
		field("broken", broken, out);
	} else {
		fprintf(out, ",");
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
	fprintf(out, "}");
}
