/* SPDX-License-Identifier: Apache-2.0 */
/* Logs of the calls that all must make alike, and whether a rank made others than the leader. */
#include "inspect_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alike.h"
#include "err.h"
#include "util.h"

_Static_assert(KVR_ALIKE_KINDS == KVR_ALIKES, "public and internal");

uint64_t kvr_inspect_logs_at(const struct kvr_inspect *in, uint32_t rank)
{
	const struct kvr_layout *l = &in->layout;

	return rank == KVR_LEADER ? l->leader_logs : kvr_layout_rank(l, rank) + l->rank_logs;
}

static size_t log_size(const struct kvr_inspect *in)
{
	return sizeof(struct kvr_alike_log) + in->layout.window * sizeof(struct kvr_alike_call);
}

int kvr_inspect_log_bytes(struct kvr_inspect *in, uint64_t off)
{
	uint64_t count, later;
	int err = kvr_inspect_scratch(in, log_size(in));

	if (!err)
		err = read_at(in, &count, sizeof count, off);
	if (!err)
		err = read_at(in, in->scratch, log_size(in), off);
	if (!err)
		err = read_at(in, &later, sizeof later, off);
	if (err)
		return err;
	memcpy(in->scratch, &count, sizeof count);
	kvr_alike_copied(in->scratch, in->layout.window, later);
	return 0;
}

/* A log of a process, to be freed, or NULL with the error. */
static void *read_log(struct kvr_inspect *in, uint32_t rank, uint32_t kind, int *ret_err)
{
	uint64_t off = kvr_inspect_logs_at(in, rank) + kvr_layout_log(&in->layout, kind);
	int err = kvr_inspect_log_bytes(in, off);
	void *copy = NULL;

	if (!err) {
		copy = malloc(log_size(in));
		if (copy)
			memcpy(copy, in->scratch, log_size(in));
		else
			err = KVR_FAIL(-ENOMEM, "kvr_inspect: no memory for %zu bytes",
				       log_size(in));
	}
	*ret_err = err;
	return copy;
}

static int check_kind(const char *call, uint32_t kind)
{
	if (kind < KVR_ALIKES)
		return 0;
	return KVR_FAIL(-EINVAL, "%s: kind %u; there are %d", call, kind, KVR_ALIKES);
}

static struct kvr_inspect_call call_of(const struct kvr_alike_call *c)
{
	return (struct kvr_inspect_call){ .index = c->index,
					  .chain = c->chain,
					  .request = { .id = c->request, .attempt = c->attempt },
					  .keys = c->keys };
}

int kvr_inspect_log(struct kvr_inspect *inspect, uint32_t rank, uint32_t kind,
		    struct kvr_inspect_log *ret_log, struct kvr_inspect_call *ret_calls,
		    uint32_t max)
{
	struct kvr_inspect_log log = { .rank = rank, .kind = kind };
	uint32_t window = inspect->layout.window, n = 0;
	int err = kvr_inspect_check_proc(inspect, "kvr_inspect_log", rank);
	struct kvr_alike_call call;
	uint64_t from;

	if (!err)
		err = check_kind("kvr_inspect_log", kind);
	if (!err)
		err = kvr_inspect_log_bytes(inspect,
					    kvr_inspect_logs_at(inspect, rank) +
						    kvr_layout_log(&inspect->layout, kind));
	if (err)
		return err;
	log.count = kvr_alike_count(inspect->scratch);
	memcpy(&log.last_ns, inspect->scratch + offsetof(struct kvr_alike_log, ns),
	       sizeof log.last_ns);
	if (log.count && kvr_alike_read(inspect->scratch, window, log.count - 1, &call)) {
		log.last = call_of(&call);
		log.last_known = 1;
	}
	from = log.count - kvr_min(log.count, kvr_min(max, window));
	for (; from < log.count; from++)
		if (kvr_alike_read(inspect->scratch, window, from, &call))
			ret_calls[n++] = call_of(&call);
	*ret_log = log;
	return (int)n;
}

/* The evidence in the rank's page: it stays when the logs have gone on. */
static int noticed(struct kvr_inspect *in, uint32_t rank, uint32_t kind,
		   struct kvr_inspect_drift *ret)
{
	union {
		struct kvr_rank_page rank;
		struct kvr_proc proc;
	} page;
	struct kvr_drift d;
	int err = kvr_inspect_page(in, rank, &page);

	if (err)
		return err;
	if (!kvr_alike_drift(&page.rank.drift, &d) || d.kind != kind + 1)
		return 0;
	ret->noticed = 1;
	ret->exact = d.exact;
	ret->index = d.index;
	ret->ns = d.ns;
	ret->request = (struct kvr_request){ .id = d.request, .attempt = d.attempt };
	ret->its_request = (struct kvr_request){ .id = d.its_request, .attempt = d.its_attempt };
	return 1;
}

int kvr_inspect_drift(struct kvr_inspect *inspect, uint32_t rank, uint32_t kind,
		      struct kvr_inspect_drift *ret_drift)
{
	struct kvr_inspect_drift drift = { .rank = rank, .kind = kind };
	struct kvr_alike_difference d;
	void *mine = NULL, *its = NULL;
	int err = kvr_inspect_check_rank(inspect, "kvr_inspect_drift", rank), found = 0;

	if (!err)
		err = check_kind("kvr_inspect_drift", kind);
	/* The rank's first: it calls, and then waits for the leader's answer. */
	if (!err)
		mine = read_log(inspect, rank, kind, &err);
	if (!err)
		its = read_log(inspect, KVR_LEADER, kind, &err);
	if (!err)
		err = found = noticed(inspect, rank, kind, &drift);
	if (err >= 0) {
		drift.calls = kvr_alike_count(mine);
		drift.its_calls = kvr_alike_count(its);
		if (!found && kvr_alike_compare(mine, its, inspect->layout.window, &d)) {
			found = 1;
			drift.exact = d.exact != 0;
			drift.index = d.index;
			drift.request = call_of(&d.mine).request;
			drift.its_request = call_of(&d.its).request;
			drift.keys = d.mine.keys;
			drift.its_keys = d.its.keys;
		}
		*ret_drift = drift;
	}
	free(mine);
	free(its);
	return err < 0 ? err : found;
}

const char *kvr_inspect_alike_name(uint32_t kind)
{
	return kvr_alike_name(kind);
}
