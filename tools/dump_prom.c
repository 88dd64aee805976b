/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups in the text format of Prometheus: each name once, with its help and type, then its samples
 * of all groups. What is not known (an age of another start of the machine) has no sample.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "dump.h"

/* Where samples go, and the name that they have. */
struct prom {
	FILE *out;
	const char *name, *type, *help;
	int begun;
};

static void quoted(const char *s, FILE *out)
{
	putc('"', out);
	for (; *s; s++) {
		if (*s == '\n')
			fputs("\\n", out);
		else if (*s == '"' || *s == '\\')
			fprintf(out, "\\%c", *s);
		else
			putc(*s >= ' ' && *s <= '~' ? *s : '?', out);
	}
	putc('"', out);
}

/* kvring_NAME{group="...",LABEL="VALUE",...}; the labels are pairs of strings that NULL ends. */
static void begin(struct prom *p, const struct dump *d, va_list labels)
{
	const char *label;

	if (!p->begun++)
		fprintf(p->out, "# HELP kvring_%s %s\n# TYPE kvring_%s %s\n", p->name, p->help,
			p->name, p->type);
	fprintf(p->out, "kvring_%s{group=", p->name);
	quoted(d->group.name, p->out);
	while ((label = va_arg(labels, const char *))) {
		fprintf(p->out, ",%s=", label);
		quoted(va_arg(labels, const char *), p->out);
	}
	fprintf(p->out, "} ");
}

static void __attribute__((sentinel)) count(struct prom *p, const struct dump *d, uint64_t v, ...)
{
	va_list ap;

	va_start(ap, v);
	begin(p, d, ap);
	va_end(ap);
	fprintf(p->out, "%" PRIu64 "\n", v);
}

/* An age in seconds. */
static void __attribute__((sentinel)) since(struct prom *p, const struct dump *d, uint64_t ns, ...)
{
	uint64_t age = dump_since(d, ns);
	va_list ap;

	if (age == UINT64_MAX)
		return;
	va_start(ap, ns);
	begin(p, d, ap);
	va_end(ap);
	fprintf(p->out, "%.6f\n", (double)age / 1e9);
}

/* --- of a group ---------------------------------------------------------------------------------
 */

static void info(struct prom *p, const struct dump *d)
{
	char epoch[24], uuid[33], layout[12];

	snprintf(epoch, sizeof epoch, "%" PRIu64, d->group.epoch);
	snprintf(layout, sizeof layout, "%" PRIu32, d->group.version);
	for (size_t i = 0; i < sizeof d->group.uuid; i++)
		snprintf(uuid + 2 * i, 3, "%02x", d->group.uuid[i]);
	count(p, d, 1, "epoch", epoch, "uuid", uuid, "layout", layout, "library", d->group.library,
	      "file", d->path, NULL);
}

static void status(struct prom *p, const struct dump *d)
{
	count(p, d, (uint64_t)d->status, NULL);
}

static void epoch_age(struct prom *p, const struct dump *d)
{
	since(p, d, d->group.created_ns, NULL);
}

static void segment_bytes(struct prom *p, const struct dump *d)
{
	count(p, d, d->group.total_bytes, NULL);
}

static void quarantined_operations(struct prom *p, const struct dump *d)
{
	count(p, d, d->group.quarantined_ops, NULL);
}

static void quarantined_slots(struct prom *p, const struct dump *d)
{
	count(p, d, d->group.quarantined_slots, NULL);
}

static void bulk_used(struct prom *p, const struct dump *d)
{
	count(p, d, d->group.bulk_used, NULL);
}

static void bulk_bytes(struct prom *p, const struct dump *d)
{
	count(p, d, d->group.bulk_bytes, NULL);
}

/* --- of each process
 * ------------------------------------------------------------------------------ */

/* fn for each process that is or was there. */
static void each(struct prom *p, const struct dump *d,
		 void (*fn)(struct prom *p, const struct dump *d, const struct kvr_inspect_proc *x,
			    const char *who))
{
	char who[16];

	fn(p, d, &d->leader, "leader");
	for (uint32_t r = 0; r < d->group.ranks; r++)
		if (d->rank[r].pid)
			fn(p, d, &d->rank[r], dump_who(r, who));
}

#define PROC(name)                                                                \
	static void name##_of(struct prom *p, const struct dump *d,               \
			      const struct kvr_inspect_proc *x, const char *who); \
	static void name(struct prom *p, const struct dump *d)                    \
	{                                                                         \
		each(p, d, name##_of);                                            \
	}                                                                         \
	static void name##_of(struct prom *p, const struct dump *d,               \
			      const struct kvr_inspect_proc *x, const char *who)

PROC(alive)
{
	count(p, d, x->alive > 0, "rank", who, NULL);
}

PROC(stopped)
{
	count(p, d, x->alive > 0 && x->peer == KVR_PEER_STOPPED, "rank", who, NULL);
}

PROC(long_phase)
{
	count(p, d, x->alive > 0 && dump_in_phase(d, x), "rank", who, NULL);
}

PROC(active)
{
	since(p, d, x->progress_ns, "rank", who, NULL);
}

PROC(in_call)
{
	if (x->alive > 0 && x->in_call)
		since(p, d, x->call_ns, "rank", who, "call", kvr_inspect_call_name(x->in_call),
		      NULL);
}

PROC(calls)
{
	for (uint32_t c = 1; c < sizeof x->calls / sizeof x->calls[0]; c++) {
		const char *call = kvr_inspect_call_name(c);

		if (x->calls[c] && *call != '?')
			count(p, d, x->calls[c], "rank", who, "call", call, NULL);
	}
}

PROC(tick)
{
	count(p, d, x->rank == DUMP_LEADER ? d->group.tick_done : x->tick_seen, "rank", who, NULL);
}

PROC(lost_wakes)
{
	count(p, d, x->lost_wakes, "rank", who, NULL);
}

PROC(expired)
{
	count(p, d, x->expired, "rank", who, NULL);
}

PROC(mismatches)
{
	count(p, d, x->mismatches, "rank", who, NULL);
}

PROC(late)
{
	count(p, d, x->late, "rank", who, NULL);
}

PROC(duplicate)
{
	count(p, d, x->duplicate, "rank", who, NULL);
}

PROC(foreign)
{
	count(p, d, x->foreign, "rank", who, NULL);
}

PROC(calls_alike)
{
	const struct kvr_inspect_log *log =
		d->log[x->rank == DUMP_LEADER ? DUMP_LEADER_AT : x->rank];

	for (uint32_t k = 0; k < KVR_ALIKE_KINDS; k++)
		if (log[k].count)
			count(p, d, log[k].count, "rank", who, "kind", kvr_inspect_alike_name(k),
			      NULL);
}

PROC(drift)
{
	if (x->rank != DUMP_LEADER)
		count(p, d, d->drifted[x->rank] != 0, "rank", who, NULL);
}

/* --- of each channel
 * -------------------------------------------------------------------------------- */

static void each_channel(struct prom *p, const struct dump *d,
			 void (*fn)(struct prom *p, const struct dump *d,
				    const struct kvr_inspect_channel *x, const char *who,
				    const char *channel))
{
	char who[16];

	for (uint32_t c = 0; c < KVR_CHANNELS; c++)
		for (uint32_t r = 0; r < d->group.ranks; r++)
			if (d->channel[c][r].published)
				fn(p, d, &d->channel[c][r], dump_who(r, who), kvr_channel_name(c));
}

#define CHANNEL(name)                                                               \
	static void name##_of(struct prom *p, const struct dump *d,                 \
			      const struct kvr_inspect_channel *x, const char *who, \
			      const char *channel);                                 \
	static void name(struct prom *p, const struct dump *d)                      \
	{                                                                           \
		each_channel(p, d, name##_of);                                      \
	}                                                                           \
	static void name##_of(struct prom *p, const struct dump *d,                 \
			      const struct kvr_inspect_channel *x, const char *who, \
			      const char *channel)

CHANNEL(published)
{
	count(p, d, x->published, "rank", who, "channel", channel, NULL);
}

CHANNEL(taken)
{
	count(p, d, x->taken, "rank", who, "channel", channel, NULL);
}

CHANNEL(behind)
{
	count(p, d, dump_lag(x), "rank", who, "channel", channel, NULL);
}

CHANNEL(oldest_unread)
{
	since(p, d, x->oldest_unread_ns, "rank", who, "channel", channel, NULL);
}

/* --- of operations
 * ----------------------------------------------------------------------------------- */

static int same(const char *a, const char *b)
{
	return !strcmp(a, b);
}

static void operations(struct prom *p, const struct dump *d)
{
	for (uint32_t kind = 0; kind < 16; kind++)
		for (uint32_t stage = 1; stage < KVR_STAGE_END; stage++) {
			uint64_t n = 0;

			for (uint32_t i = 0; i < d->op_count; i++)
				n += d->ops[i].kind == kind && d->ops[i].stage == stage;
			if (n && !same(kvr_inspect_op_name(kind), "?"))
				count(p, d, n, "kind", kvr_inspect_op_name(kind), "stage",
				      kvr_stage_name(stage), NULL);
		}
}

static void oldest_operation(struct prom *p, const struct dump *d)
{
	uint64_t oldest = 0;

	for (uint32_t i = 0; i < d->op_count; i++)
		if (!dump_quarantined(&d->ops[i]) && d->ops[i].begun_ns &&
		    (!oldest || d->ops[i].begun_ns < oldest))
			oldest = d->ops[i].begun_ns;
	since(p, d, oldest, NULL);
}

static void barrier_missing(struct prom *p, const struct dump *d)
{
	for (uint32_t i = 0; i < d->meet_count; i++) {
		const struct kvr_inspect_meet *m = &d->meets[i];
		uint64_t missing = m->ranks & ~m->arrived;
		char set[DUMP_SET_MAX];

		count(p, d,
		      (uint64_t)__builtin_popcountll(missing) +
			      (m->with_leader && !m->leader_arrived),
		      "set", dump_set(m->ranks, set), "leader", m->with_leader ? "1" : "0", NULL);
	}
}

static const struct {
	const char *name, *type, *help;
	void (*fn)(struct prom *p, const struct dump *d);
} metrics[] = {
	{ "info", "gauge", "What the group is; always 1.", info },
	{ "status", "gauge", "0 fine, 1 drift or a stall, 2 over: dead, failed or stale.", status },
	{ "epoch_age_seconds", "gauge", "Since the epoch began.", epoch_age },
	{ "segment_bytes", "gauge", "Of shared memory, without the pool.", segment_bytes },
	{ "alive", "gauge", "1 if the process lives.", alive },
	{ "stopped", "gauge", "1 if it is stopped by a signal or a debugger.", stopped },
	{ "long_phase", "gauge", "1 while it is in a long phase that it declared.", long_phase },
	{ "inactive_seconds", "gauge", "Since its last sign of life.", active },
	{ "in_call_seconds", "gauge", "How long it has been inside of that call.", in_call },
	{ "calls_total", "counter", "Calls by kind.", calls },
	{ "tick", "gauge", "The leader's last tick, and the last that a rank took.", tick },
	{ "lost_wakes_total", "counter", "Wake-ups that only the back-stop delivered.",
	  lost_wakes },
	{ "expired_total", "counter", "Messages that nobody asked for.", expired },
	{ "mismatches_total", "counter", "Messages of another tag than expected.", mismatches },
	{ "late_total", "counter", "Told about operations that had ended; not applied.", late },
	{ "duplicate_total", "counter", "Told twice; not applied.", duplicate },
	{ "foreign_total", "counter", "About operations never known; not applied.", foreign },
	{ "calls_alike_total", "counter", "Calls that all must make alike.", calls_alike },
	{ "drift", "gauge", "1 if this rank made other calls than the leader.", drift },
	{ "published_total", "counter", "Messages put into the rank's ring.", published },
	{ "taken_total", "counter", "Messages that the rank took.", taken },
	{ "behind", "gauge", "Messages that the rank has not taken.", behind },
	{ "oldest_unread_seconds", "gauge", "Age of the oldest of them.", oldest_unread },
	{ "operations", "gauge", "In flight.", operations },
	{ "oldest_operation_seconds", "gauge", "Age of the oldest in flight.", oldest_operation },
	{ "quarantined_operations", "gauge", "Ended, and a rank may still copy.",
	  quarantined_operations },
	{ "quarantined_slots", "gauge", "Of the pool, that these hold.", quarantined_slots },
	{ "bulk_used_bytes", "gauge", "Of large messages that a rank may still read.", bulk_used },
	{ "bulk_bytes", "gauge", "Room for large messages.", bulk_bytes },
	{ "barrier_missing", "gauge", "Members that have not come to the newest round.",
	  barrier_missing },
};

void dump_prom(const struct dump *const *all, uint32_t n, uint32_t unreadable, FILE *out)
{
	fprintf(out,
		"# HELP kvring_unreadable Files of groups that could not be read.\n"
		"# TYPE kvring_unreadable gauge\nkvring_unreadable %" PRIu32 "\n",
		unreadable);
	for (size_t i = 0; i < sizeof metrics / sizeof metrics[0]; i++) {
		struct prom p = { .out = out,
				  .name = metrics[i].name,
				  .type = metrics[i].type,
				  .help = metrics[i].help };

		for (uint32_t g = 0; g < n; g++)
			metrics[i].fn(&p, all[g]);
	}
}
