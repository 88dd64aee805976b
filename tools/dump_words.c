/* SPDX-License-Identifier: Apache-2.0 */
/* Ages, sets, names: the words that all forms of output share. */
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "dump.h"

void dump_say(struct dump_line *l, const char *fmt, ...)
{
	size_t left = l->size - l->used;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(l->text + l->used, left, fmt, ap);
	va_end(ap);
	if (n > 0)
		l->used += (size_t)n < left ? (size_t)n : left - 1;
}

uint64_t dump_since(const struct dump *d, uint64_t ns)
{
	if (!ns || !d->group.same_boot)
		return UINT64_MAX;
	return d->group.now_ns > ns ? d->group.now_ns - ns : 0;
}

int dump_in_phase(const struct dump *d, const struct kvr_inspect_proc *p)
{
	return d->group.same_boot && p->phase_until > d->group.now_ns;
}

const char *dump_alive(const struct kvr_inspect_proc *p)
{
	if (p->alive < 0)
		return "died";
	if (p->alive > 0)
		return p->peer == KVR_PEER_STOPPED     ? "stopped"
		       : p->peer == KVR_PEER_DUMPING   ? "dumping"
		       : p->peer == KVR_PEER_ATTACHING ? "attaching"
						       : "alive";
	return kvr_inspect_state_name(p->state); /* absent, left */
}

const char *dump_span(uint64_t ns, char buf[32])
{
	double s = (double)ns / 1e9;

	if (s < 1e-3)
		snprintf(buf, 32, "%.0f us", s * 1e6);
	else if (s < 1)
		snprintf(buf, 32, "%.1f ms", s * 1e3);
	else if (s < 600)
		snprintf(buf, 32, "%.1f s", s);
	else if (s < 100 * 60)
		snprintf(buf, 32, "%.0f min", s / 60);
	else if (s < 100 * 3600)
		snprintf(buf, 32, "%.1f h", s / 3600);
	else
		snprintf(buf, 32, "%.0f days", s / 86400);
	return buf;
}

const char *dump_age(const struct dump *d, uint64_t ns, char buf[32])
{
	uint64_t age = dump_since(d, ns);

	return age == UINT64_MAX ? "-" : dump_span(age, buf);
}

const char *dump_tag(uint32_t tag, char buf[32])
{
	const char *name = tag < KVR_TAG_USER ? kvr_tag_name(tag) : "?";

	if (strcmp(name, "?") != 0)
		return name;
	snprintf(buf, 32, "%" PRIu32, tag);
	return buf;
}

const char *dump_who(uint32_t rank, char buf[16])
{
	if (rank == DUMP_LEADER)
		return "leader";
	snprintf(buf, 16, "%" PRIu32, rank);
	return buf;
}

const char *dump_set(uint64_t ranks, char buf[DUMP_SET_MAX])
{
	struct dump_line l = { buf, DUMP_SET_MAX, 0 };

	buf[0] = 0;
	for (uint32_t r = 0; r < 64; r++) {
		uint32_t first = r;

		if (!(ranks >> r & 1))
			continue;
		while (r < 63 && ranks >> (r + 1) & 1)
			r++;
		dump_say(&l, "%s%" PRIu32, l.used ? "," : "", first);
		if (r > first)
			dump_say(&l, "-%" PRIu32, r);
	}
	return ranks ? buf : "none";
}

const char *dump_request(const struct kvr_request *r, char buf[40])
{
	snprintf(buf, 40, "%" PRIu64 "/%" PRIu32, r->id, r->attempt);
	return buf;
}

int dump_filter_request(const struct dump_filter *f, const struct kvr_request *r)
{
	return !f->by_request ||
	       (r->id == f->request && (f->attempt < 0 || r->attempt == f->attempt));
}

int dump_filter_rank(const struct dump_filter *f, uint32_t rank)
{
	return f->rank < 0 || f->rank == rank;
}

int dump_filter_channel(const struct dump_filter *f, uint32_t channel)
{
	return f->channel < 0 || f->channel == channel;
}

int dump_filter_event(const struct dump_filter *f, const struct kvr_inspect_event *e)
{
	return dump_filter_request(f, &e->request) && dump_filter_channel(f, e->channel) &&
	       (f->tag < 0 || f->tag == e->tag);
}

int dump_by_time(const void *a, const void *b)
{
	const struct kvr_inspect_event *x = a, *y = b;

	if (x->ns != y->ns)
		return x->ns < y->ns ? -1 : 1;
	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return x->index < y->index ? -1 : x->index > y->index;
}
