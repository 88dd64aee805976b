/* SPDX-License-Identifier: Apache-2.0 */
/* The connector's calls: the leader's part, and the switch to the rank's (connector_rank.c). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "atomic.h"
#include "connector_priv.h"
#include "err.h"
#include "kvring/ring.h"
#include "kvring/store.h"
#include "util.h"

#define POOL_ALIGN 4096u /* of slots: what direct I/O needs on the devices we know */

static int is_leader(const struct kvr_connector *c)
{
	return c->rank == KVR_LEADER;
}

static struct kvr_request clean(const struct kvr_request *req)
{
	return (struct kvr_request){ .id = req->id, .space = req->space, .attempt = req->attempt };
}

static void number_segments(struct kvr_connector *c)
{
	uint32_t next = 0;

	for (uint32_t s = 0; s < c->config.shape.shards; s++) {
		c->shard_base[s] = next;
		next += c->config.shape.shard[s].layers;
	}
}

/* Blocks whose answer fits one message. */
static uint32_t blocks_per_message(uint32_t max_payload)
{
	return (uint32_t)((max_payload - sizeof(struct kvr_engine_answer)) /
			  sizeof(struct kvr_engine_block));
}

/* --- opening
 * -------------------------------------------------------------------------------------- */

static int lead_check(const struct kvr_connector_opts *o, struct kvr_geometry *ret_geo)
{
	int err;

	if (!o || o->size != sizeof *o)
		return KVR_FAIL(-EINVAL,
				"kvr_connector_lead: opts->size is %zu, this library's is %zu; was "
				"the caller compiled against another version?",
				o ? o->size : 0, sizeof *o);
	if (!o->shape)
		return KVR_FAIL(-EINVAL, "kvr_connector_lead: opts->shape is NULL");
	if (o->stores && !o->store_paths)
		return KVR_FAIL(-EINVAL, "kvr_connector_lead: %u stores but no paths", o->stores);
	err = kvr_shape_check(o->shape, o->ranks);
	return err ? err : kvr_geometry_init(o->shape, POOL_ALIGN, ret_geo);
}

static int lead_group(struct kvr_connector *c, const char *name, const struct kvr_connector_opts *o)
{
	uint32_t ring = o->ring_bytes ? o->ring_bytes : 131072;
	struct kvr_group_opts go = { .size = sizeof go,
				     .dir = o->dir,
				     .ranks = o->ranks,
				     .ring_bytes = ring,
				     .ops = o->ops,
				     .events = o->events,
				     .model = o->model,
				     .config = &c->config,
				     .config_len = sizeof c->config,
				     .config_kind = KVR_CONFIG_CONNECTOR,
				     .event_fd = c->event_fd };
	uint32_t payload = kvr_ring_max_payload(ring);

	if (!payload)
		return KVR_FAIL(-EINVAL,
				"kvr_connector_lead: ring_bytes is %u; a power of two from "
				"%u to %u",
				ring, KVR_RING_MIN, KVR_RING_MAX);
	c->config.version = KVR_CONFIG_VERSION;
	c->config.max_blocks = blocks_per_message(payload - (uint32_t)sizeof(struct kvr_msg_head));
	c->config.pool_slots = kvr_pool_slots(o->host_bytes, &c->geo);
	c->config.slot_bytes = c->geo.slot_bytes;
	c->config.shape = *o->shape;
	if (!c->config.pool_slots)
		return KVR_FAIL(-EINVAL,
				"kvr_connector_lead: %llu bytes of host memory do not hold one "
				"block; a slot is %llu bytes, and %u are the pool's header",
				(unsigned long long)o->host_bytes,
				(unsigned long long)c->geo.slot_bytes, KVR_POOL_DATA);
	return kvr_group_create(name, &go, &c->group);
}

static int lead_engine(struct kvr_connector *c, const struct kvr_connector_opts *o)
{
	const struct kvr_seg_header *h = &c->group->header;
	struct kvr_engine_opts eo = {
		.pool = { .dir = o->dir,
			  .name = c->group->name,
			  .uuid = h->uuid,
			  .epoch = h->epoch,
			  .host_bytes = o->host_bytes,
			  .node = o->numa_node,
			  .model = &h->model,
			  .shape = &c->config.shape,
			  .geo = &c->geo },
		.store = { .size = sizeof eo.store,
			   .paths = o->store_paths,
			   .npaths = o->stores,
			   .flags = o->store_flags,
			   .bytes = o->store_bytes,
			   .model = &h->model,
			   .shape = &c->config.shape,
			   .lock_deadline_ns = o->lock_deadline_ns,
			   .progress = o->progress,
			   .progress_arg = o->progress_arg },
		.max_blocks = c->config.max_blocks,
		.event_fd = c->event_fd,
	};

	c->max_payload = kvr_channels_max_payload(c->channels);
	c->chunk = (uint32_t)((c->max_payload - sizeof(struct kvr_wire_complete)) /
			      sizeof(struct kvr_wire_record));
	c->blocks = calloc(c->config.max_blocks, sizeof *c->blocks);
	c->names = calloc(c->chunk, sizeof *c->names);
	c->message = malloc(c->max_payload);
	if (!c->blocks || !c->names || !c->message)
		return KVR_FAIL(-ENOMEM, "kvr_connector_lead: no memory");
	return kvr_engine_start(c->group, &eo, &c->engine);
}

int kvr_connector_lead(const char *name, const struct kvr_connector_opts *opts,
		       struct kvr_connector **ret_connector)
{
	struct kvr_connector *c;
	struct kvr_geometry geo;
	int err = lead_check(opts, &geo);

	if (err)
		return err;
	c = calloc(1, sizeof *c);
	if (!c)
		return KVR_FAIL(-ENOMEM, "kvr_connector_lead: no memory");
	c->geo = geo;
	c->pid = getpid();
	c->rank = KVR_LEADER;
	c->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	err = c->event_fd < 0 ? KVR_FAIL(-errno, "kvr_connector_lead: no eventfd") : 0;
	if (!err)
		err = lead_group(c, name, opts);
	if (!err)
		err = kvr_channels_open(c->group, &c->channels);
	if (!err)
		err = lead_engine(c, opts);
	if (err) {
		char text[1024];

		strncpy(text, kvr_explain(), sizeof text - 1);
		text[sizeof text - 1] = 0;
		kvr_connector_close(c);
		return KVR_FAIL(err, "%s", text);
	}
	number_segments(c);
	*ret_connector = c;
	return 0;
}

static int join_config(struct kvr_connector *c)
{
	uint32_t len, kind;
	const void *config = kvr_group_config(c->group, &len, &kind);
	int err;

	if (kind != KVR_CONFIG_CONNECTOR || len != sizeof c->config)
		return KVR_FAIL(-EPROTO,
				"rank %u: group %s was not made by a connector: configuration of "
				"kind %u, %u bytes; expected kind %u, %zu bytes",
				c->rank, c->group->name, kind, len, KVR_CONFIG_CONNECTOR,
				sizeof c->config);
	memcpy(&c->config, config, sizeof c->config);
	if (c->config.version != KVR_CONFIG_VERSION)
		return KVR_FAIL(-EPROTO,
				"rank %u: the leader's connector configuration is version %u, this "
				"library's %u",
				c->rank, c->config.version, KVR_CONFIG_VERSION);
	err = kvr_shape_check(&c->config.shape, kvr_group_ranks(c->group));
	if (!err)
		err = kvr_geometry_init(&c->config.shape, POOL_ALIGN, &c->geo);
	if (!err && (c->geo.slot_bytes != c->config.slot_bytes || !c->config.pool_slots ||
		     c->config.pool_slots > UINT32_MAX || !c->config.max_blocks ||
		     c->config.max_blocks > blocks_per_message(c->max_payload)))
		err = KVR_FAIL(-EBADMSG,
			       "rank %u: the leader's configuration has slots of %llu bytes (%llu "
			       "expected), %llu slots, %u blocks a message",
			       c->rank, (unsigned long long)c->config.slot_bytes,
			       (unsigned long long)c->geo.slot_bytes,
			       (unsigned long long)c->config.pool_slots, c->config.max_blocks);
	return err;
}

static int join(struct kvr_connector *c, const char *name, const struct kvr_connector_opts *o,
		uint64_t deadline_ns)
{
	struct kvr_group_opts go = { .size = sizeof go,
				     .dir = o ? o->dir : NULL,
				     .model = o ? o->model : NULL,
				     .event_fd = -1 };
	int err = kvr_group_attach(name, c->rank, &go, deadline_ns, &c->group);

	if (!err)
		err = kvr_channels_open(c->group, &c->channels);
	if (err)
		return err;
	c->max_payload = kvr_channels_max_payload(c->channels);
	err = join_config(c);
	if (err)
		return err;
	struct kvr_pool_opts po = { .dir = go.dir,
				    .name = c->group->name,
				    .uuid = c->group->header.uuid,
				    .epoch = c->group->header.epoch,
				    .model = &c->group->header.model,
				    .shape = &c->config.shape,
				    .geo = &c->geo };

	/* In slices, so that the leader's death ends the wait. */
	do {
		err = kvr_group_check(c->group);
		if (!err)
			err = kvr_pool_attach(&po, c->config.pool_slots,
					      kvr_min(deadline_ns, kvr_deadline(50)), &c->pool);
	} while (err == -ETIMEDOUT && kvr_deadline(0) < deadline_ns);
	return err ? err : kvr_rank_open(c);
}

int kvr_connector_join(const char *name, uint32_t rank, const struct kvr_connector_opts *opts,
		       uint64_t deadline_ns, struct kvr_connector **ret_connector)
{
	struct kvr_connector *c;
	int err;

	if (opts && opts->size != sizeof *opts)
		return KVR_FAIL(-EINVAL,
				"kvr_connector_join: opts->size is %zu, this library's "
				"is %zu",
				opts->size, sizeof *opts);
	c = calloc(1, sizeof *c);
	if (!c)
		return KVR_FAIL(-ENOMEM, "kvr_connector_join: no memory");
	c->pid = getpid();
	c->rank = rank;
	c->event_fd = -1;
	err = join(c, name, opts, deadline_ns);
	if (err) {
		char text[1024];

		strncpy(text, kvr_explain(), sizeof text - 1);
		text[sizeof text - 1] = 0;
		kvr_connector_close(c);
		return KVR_FAIL(err, "%s", text);
	}
	number_segments(c);
	*ret_connector = c;
	return 0;
}

void kvr_connector_close(struct kvr_connector *c)
{
	if (!c || c->pid != getpid())
		return; /* a forked child: threads and names are its parent's */
	kvr_engine_stop(c->engine);
	kvr_channels_close(c->channels);
	kvr_group_close(c->group);
	if (!is_leader(c)) {
		kvr_pool_close(&c->pool);
		kvr_rank_close(c);
	}
	if (c->event_fd >= 0)
		close(c->event_fd);
	free(c->blocks);
	free(c->names);
	free(c->message);
	free(c);
}

/* --- calls
 * ---------------------------------------------------------------------------------------- */

static int enter(struct kvr_connector *c, enum kvr_call call, uint32_t channel)
{
	kvr_group_enter(c->group, call, channel);
	return is_leader(c) ? kvr_group_check(c->group) : 0;
}

static int leave(struct kvr_connector *c, enum kvr_call call, uint32_t channel,
		 const struct kvr_request *req, int result)
{
	return kvr_group_leave(c->group, call, channel, req, result);
}

static int lead_lookup(struct kvr_connector *c, const struct kvr_request *req,
		       const struct kvr_key *keys, uint32_t n, uint64_t deadline_ns,
		       struct kvr_hit *ret_hit)
{
	struct kvr_hit hit = { 0 };
	int status = kvr_engine_lookup(c->engine, req, keys, n, &hit);
	struct kvr_wire_lookup w = { hit.blocks, hit.host, hit.nvme, status };
	int err = kvr_channels_publish(c->channels, KVR_CH_LOOKUP, 0, KVR_TAG_LOOKUP_RESULT, req,
				       &w, sizeof w, deadline_ns);

	if (err) {
		kvr_engine_release(c->engine, req);
		return err;
	}
	if (!status)
		*ret_hit = hit;
	return status;
}

int kvr_connector_lookup(struct kvr_connector *c, const struct kvr_request *request,
			 const struct kvr_key *keys, uint32_t n, uint64_t deadline_ns,
			 struct kvr_hit *ret_hit)
{
	struct kvr_request req = clean(request);
	int err = enter(c, KVR_CALL_LOOKUP, KVR_CH_LOOKUP);

	if (!err)
		err = is_leader(c) ? lead_lookup(c, &req, keys, n, deadline_ns, ret_hit)
				   : kvr_rank_lookup(c, &req, deadline_ns, n, ret_hit);
	return leave(c, KVR_CALL_LOOKUP, KVR_CH_LOOKUP, &req, err);
}

int kvr_connector_release(struct kvr_connector *c, const struct kvr_request *request)
{
	struct kvr_request req = clean(request);

	kvr_group_enter(c->group, KVR_CALL_RELEASE, KVR_CH_LOOKUP);
	if (is_leader(c)) {
		kvr_engine_release(c->engine, &req);
	} else {
		/* Without a pin there is no load; stores of the request may still come. */
		kvr_channels_forget(c->channels, KVR_CH_LOOKUP, &req);
		kvr_channels_forget(c->channels, KVR_CH_LOAD, &req);
	}
	return leave(c, KVR_CALL_RELEASE, KVR_CH_LOOKUP, &req, 0);
}

/* Publishes the answer of a begin and starts the operation; one that no rank will learn of is
 * dropped. */
static int publish_begin(struct kvr_connector *c, uint32_t channel, uint32_t tag,
			 const struct kvr_request *req, const struct kvr_engine_answer *a,
			 uint64_t deadline_ns)
{
	size_t len = sizeof *a + a->count * sizeof *c->blocks;
	char text[512] = "";
	int err;

	if (a->status)
		strncpy(text, kvr_explain(), sizeof text - 1);
	memcpy(c->message, a, sizeof *a);
	memcpy(c->message + sizeof *a, c->blocks, a->count * sizeof *c->blocks);
	err = kvr_channels_publish(c->channels, channel, 0, tag, req, c->message, (uint32_t)len,
				   deadline_ns);
	if (a->status)
		return err ? err : KVR_FAIL(a->status, "%s", text);
	if (err)
		kvr_engine_cancel(c->engine, a);
	else
		kvr_engine_begun(c->engine, a);
	return err;
}

static int lead_store_begin(struct kvr_connector *c, const struct kvr_request *req,
			    const struct kvr_key *keys, uint32_t n, uint64_t deadline_ns,
			    struct kvr_block *ret_blocks, uint32_t *ret_covered)
{
	struct kvr_pool *pool = kvr_engine_pool(c->engine);
	struct kvr_engine_answer a;
	int err = kvr_engine_store_begin(c->engine, req, keys, n, deadline_ns, &a, c->blocks);

	/* A refusal after the deadline still has to reach the ranks, which wait for it. */
	if (!err)
		err = publish_begin(c, KVR_CH_STORE, KVR_TAG_STORE_BEGIN, req, &a,
				    a.status ? kvr_deadline(1000) : deadline_ns);
	if (err)
		return err;
	for (uint32_t i = 0; i < a.count; i++)
		ret_blocks[i] = (struct kvr_block){
			.index = c->blocks[i].index,
			.slot = c->blocks[i].slot,
			.payload = kvr_pool_image(pool, c->blocks[i].slot) + c->geo.header_bytes,
		};
	*ret_covered = a.covered;
	return (int)a.count;
}

int kvr_connector_store_begin(struct kvr_connector *c, const struct kvr_request *request,
			      const struct kvr_key *keys, uint32_t n, uint64_t deadline_ns,
			      struct kvr_block *ret_blocks, uint32_t max, uint32_t *ret_covered)
{
	struct kvr_request req = clean(request);
	int err = enter(c, KVR_CALL_STORE_BEGIN, KVR_CH_STORE);

	if (!err && max < kvr_min(n, c->config.max_blocks))
		err = KVR_FAIL(-EINVAL, "store_begin: room for %u blocks, %llu may come", max,
			       (unsigned long long)kvr_min(n, c->config.max_blocks));
	if (!err)
		err = is_leader(c) ? lead_store_begin(c, &req, keys, n, deadline_ns, ret_blocks,
						      ret_covered)
				   : kvr_rank_store_begin(c, &req, keys, n, deadline_ns, ret_blocks,
							  ret_covered);
	return leave(c, KVR_CALL_STORE_BEGIN, KVR_CH_STORE, &req, err);
}

int kvr_connector_store_copied(struct kvr_connector *c, const struct kvr_request *request,
			       int status)
{
	struct kvr_request req = clean(request);
	int err = enter(c, KVR_CALL_STORE_COPIED, KVR_CH_STORE);

	if (!err && !is_leader(c))
		err = kvr_rank_store_copied(c, &req, status);
	return leave(c, KVR_CALL_STORE_COPIED, KVR_CH_STORE, &req, err);
}

int kvr_connector_wait_store(struct kvr_connector *c, const struct kvr_request *request,
			     enum kvr_stage stage, uint64_t deadline_ns)
{
	struct kvr_request req = clean(request);
	int err = enter(c, KVR_CALL_WAIT_STORE, KVR_CH_STORE);

	if (!err && (stage < KVR_STAGE_COPIED || stage > KVR_STAGE_WRITTEN))
		err = KVR_FAIL(-EINVAL,
			       "wait_store: %s is no stage to wait for; copied, host or "
			       "written",
			       kvr_stage_name(stage));
	if (!err)
		err = is_leader(c) ? kvr_engine_wait_op(c->engine, &req, KVR_OP_STORE, stage,
							deadline_ns)
				   : kvr_rank_wait_store(c, &req, stage, deadline_ns);
	return leave(c, KVR_CALL_WAIT_STORE, KVR_CH_STORE, &req, err < 0 ? err : 0);
}

int kvr_connector_load_begin(struct kvr_connector *c, const struct kvr_request *request, uint32_t n,
			     uint64_t deadline_ns)
{
	struct kvr_request req = clean(request);
	int err = enter(c, KVR_CALL_LOAD_BEGIN, KVR_CH_LOAD);

	if (!err && is_leader(c)) {
		struct kvr_engine_answer a;

		err = kvr_engine_load_begin(c->engine, &req, n, deadline_ns, &a, c->blocks);
		if (!err)
			err = publish_begin(c, KVR_CH_LOAD, KVR_TAG_LOAD_BEGIN, &req, &a,
					    a.status ? kvr_deadline(1000) : deadline_ns);
		if (!err)
			err = (int)a.count;
	} else if (!err) {
		err = kvr_rank_load_begin(c, &req, n, deadline_ns);
	}
	return leave(c, KVR_CALL_LOAD_BEGIN, KVR_CH_LOAD, &req, err);
}

static int lead_load_wait(struct kvr_connector *c, const struct kvr_request *req,
			  uint64_t deadline_ns, struct kvr_block *ret_blocks, uint32_t max)
{
	struct kvr_pool *pool = kvr_engine_pool(c->engine);
	int n, good = kvr_engine_wait_op(c->engine, req, KVR_OP_LOAD, KVR_STAGE_VERIFIED,
					 deadline_ns);

	if (good < 0)
		return good;
	if ((uint32_t)good > max)
		return KVR_FAIL(-EMSGSIZE, "load_wait: %d good blocks, room for %u", good, max);
	memset(ret_blocks, 0, (size_t)good * sizeof *ret_blocks);
	/* The ranks may be done already, and the slots used again: then only the number remains. */
	n = kvr_engine_op_blocks(c->engine, req, c->blocks, c->config.max_blocks);
	for (int i = 0; i < n && i < good; i++)
		ret_blocks[i] = (struct kvr_block){
			.index = c->blocks[i].index,
			.slot = c->blocks[i].slot,
			.payload = kvr_pool_image(pool, c->blocks[i].slot) + c->geo.header_bytes,
		};
	return good;
}

int kvr_connector_load_wait(struct kvr_connector *c, const struct kvr_request *request,
			    const struct kvr_key *keys, uint64_t deadline_ns,
			    struct kvr_block *ret_blocks, uint32_t max)
{
	struct kvr_request req = clean(request);
	int err = enter(c, KVR_CALL_LOAD_WAIT, KVR_CH_LOAD);

	if (!err)
		err = is_leader(c)
			      ? lead_load_wait(c, &req, deadline_ns, ret_blocks, max)
			      : kvr_rank_load_wait(c, &req, keys, deadline_ns, ret_blocks, max);
	return leave(c, KVR_CALL_LOAD_WAIT, KVR_CH_LOAD, &req, err);
}

int kvr_connector_load_done(struct kvr_connector *c, const struct kvr_request *request)
{
	struct kvr_request req = clean(request);
	int err = enter(c, KVR_CALL_LOAD_DONE, KVR_CH_LOAD);

	if (!err && !is_leader(c))
		err = kvr_rank_load_done(c, &req);
	return leave(c, KVR_CALL_LOAD_DONE, KVR_CH_LOAD, &req, err);
}

/* --- ticks
 * ---------------------------------------------------------------------------------------- */

static int publish_completions(struct kvr_connector *c, uint64_t tick,
			       const struct kvr_completion *done, uint32_t n, uint64_t deadline_ns)
{
	struct kvr_wire_complete w = { tick, n, 0 };
	size_t len = sizeof w + n * sizeof(struct kvr_wire_record);

	memcpy(c->message, &w, sizeof w);
	for (uint32_t i = 0; i < n; i++) {
		struct kvr_wire_record r = { .id = done[i].request.id,
					     .space = done[i].request.space,
					     .attempt = done[i].request.attempt,
					     .kind = (uint8_t)done[i].kind,
					     .stage = (uint8_t)done[i].stage,
					     .status = done[i].status,
					     .blocks = done[i].blocks,
					     .entry = c->names[i].entry,
					     .gen = c->names[i].gen };

		memcpy(c->message + sizeof w + i * sizeof r, &r, sizeof r);
	}
	return kvr_channels_publish(c->channels, KVR_CH_COMPLETE, 0, KVR_TAG_STORE_COMPLETE, NULL,
				    c->message, (uint32_t)len, deadline_ns);
}

/*
 * A tick that is interrupted between two of its messages stays open: the call that goes on with it
 * returns its records again, but does not publish them again.
 */
static int tick_records(struct kvr_connector *c, uint64_t t, uint64_t deadline_ns,
			struct kvr_completion *ret, uint32_t max, uint32_t *ret_total)
{
	uint32_t total = 0;

	while (total < max) {
		uint32_t room = (uint32_t)kvr_min(max - total, c->chunk), n;
		int err = 0;

		if (total < c->open_told)
			room = (uint32_t)kvr_min(room, c->open_told - total);
		n = kvr_engine_records(c->engine, total, ret + total, c->names, room);
		if (!n)
			break;
		for (uint32_t i = 0; i < n; i++)
			ret[total + i].tick = t;
		if (total >= c->open_told)
			err = publish_completions(c, t, ret + total, n, deadline_ns);
		if (err)
			return err;
		total += n;
		if (total > c->open_told)
			c->open_told = total;
	}
	if (total < c->open_told)
		return KVR_FAIL(-EMSGSIZE,
				"check_completed: tick %llu was begun with %u completions, room "
				"for %u",
				(unsigned long long)t, c->open_told, max);
	*ret_total = total;
	return 0;
}

static int lead_tick(struct kvr_connector *c, enum kvr_tick_mode mode, uint64_t tick,
		     uint64_t deadline_ns, struct kvr_completion *ret, uint32_t max,
		     uint64_t *ret_tick)
{
	uint64_t t = mode == KVR_TICK ? tick : c->open_tick ? c->open_tick : c->tick + 1;
	uint32_t total;
	int err;

	if (t <= c->tick || (c->open_tick && t != c->open_tick))
		return KVR_FAIL(-EINVAL, "check_completed: tick %llu; the last one was %llu%s",
				(unsigned long long)t, (unsigned long long)c->tick,
				c->open_tick ? ", and the next was begun under another number"
					     : "");
	c->open_tick = t;
	err = tick_records(c, t, deadline_ns, ret, max, &total);
	if (err)
		return err;
	kvr_store_release(&kvr_group_leader_page(c->group)->tick_done, t); /* T1, pairs with T2 */
	for (uint32_t r = 0; r < kvr_group_ranks(c->group); r++)
		kvr_group_ring_rank(c->group, r);
	kvr_engine_told(c->engine, total);
	c->tick = t;
	c->open_tick = 0;
	c->open_told = 0;
	if (ret_tick)
		*ret_tick = t;
	return (int)total;
}

int kvr_connector_check_completed(struct kvr_connector *c, enum kvr_tick_mode mode, uint64_t tick,
				  uint64_t deadline_ns, struct kvr_completion *ret_completions,
				  uint32_t max, uint64_t *ret_tick)
{
	int err = enter(c, KVR_CALL_CHECK_COMPLETED, KVR_CH_COMPLETE);

	if (!err)
		err = is_leader(c) ? lead_tick(c, mode, tick, deadline_ns, ret_completions, max,
					       ret_tick)
				   : kvr_rank_check_completed(c, mode, tick, deadline_ns,
							      ret_completions, max, ret_tick);
	return leave(c, KVR_CALL_CHECK_COMPLETED, KVR_CH_COMPLETE, NULL, err);
}

/* --- end
 * ------------------------------------------------------------------------------------------ */

/* All but those of this very process, which leave after the leader's call returns. */
static int ranks_left(void *arg)
{
	struct kvr_connector *c = arg;

	for (uint32_t r = 0; r < kvr_group_ranks(c->group); r++) {
		const struct kvr_proc *p = &kvr_group_rank_page(c->group, r)->proc;

		if (kvr_load_acquire32(&p->state) == KVR_PROC_ACTIVE && /* G2, pairs with G1 */
		    kvr_load_relaxed32(&p->pid) != (uint32_t)getpid())
			return 0;
	}
	return 1;
}

/* What ended while draining is told at a last tick, so that it comes before the announcement. */
static int last_tick(struct kvr_connector *c, uint64_t deadline_ns)
{
	struct kvr_completion *done = calloc(c->chunk, sizeof *done);
	int n = done ? 0 : KVR_FAIL(-ENOMEM, "shutdown: no memory");

	if (done)
		do
			n = lead_tick(c, KVR_NEXT, 0, deadline_ns, done, c->chunk, NULL);
		while (n == (int)c->chunk);
	free(done);
	return n < 0 ? n : 0;
}

static int lead_shutdown(struct kvr_connector *c, uint64_t deadline_ns)
{
	uint64_t told[KVR_CHANNELS];
	int err = kvr_engine_drain(c->engine, deadline_ns);

	if (!err)
		err = last_tick(c, deadline_ns);
	for (uint32_t i = 0; i < KVR_CHANNELS; i++)
		told[i] = kvr_load_relaxed(&c->group->leader->watermark[i]);
	if (!err)
		err = kvr_channels_publish(c->channels, KVR_CH_CONTROL, 0, KVR_TAG_SHUTDOWN, NULL,
					   told, sizeof told, deadline_ns);
	if (!err)
		err = kvr_group_wait(c->group, ranks_left, c, deadline_ns, "all ranks to leave");
	return err > 0 ? 0 : err;
}

int kvr_connector_shutdown(struct kvr_connector *c, uint64_t deadline_ns)
{
	struct kvr_request none = { 0 };
	struct kvr_message m;
	int err = enter(c, KVR_CALL_SHUTDOWN, KVR_CH_CONTROL);

	if (!err)
		err = is_leader(c)
			      ? lead_shutdown(c, deadline_ns)
			      : kvr_channels_take_for(c->channels, KVR_CH_CONTROL, KVR_TAG_SHUTDOWN,
						      &none, deadline_ns, &m);
	return leave(c, KVR_CALL_SHUTDOWN, KVR_CH_CONTROL, NULL, err);
}

/* --- facts
 * ---------------------------------------------------------------------------------------- */

uint32_t kvr_connector_spans(const struct kvr_connector *c, int write, struct kvr_span *ret_spans,
			     uint32_t max)
{
	const struct kvr_shape *shape = &c->config.shape;
	struct kvr_span last = { 0, 0 };
	uint32_t n = 0;

	/* In each layer group the next own shard by offset, until there is none. */
	for (uint32_t l = 0; !is_leader(c) && l < shape->layer_groups; l++)
		for (uint64_t from = 0;;) {
			const struct kvr_shard *best = NULL;

			for (uint32_t s = 0; s < shape->shards; s++) {
				const struct kvr_shard *h = &shape->shard[s];

				if ((write ? h->writer == c->rank : (h->readers >> c->rank & 1)) &&
				    h->first_layer <= l && l < h->first_layer + h->layers &&
				    h->offset >= from && (!best || h->offset < best->offset))
					best = h;
			}
			if (!best)
				break;
			from = best->offset + best->bytes;
			if (n &&
			    last.offset + last.bytes == l * shape->layer_bytes + best->offset) {
				last.bytes += best->bytes;
			} else {
				last = (struct kvr_span){ l * shape->layer_bytes + best->offset,
							  best->bytes };
				n++;
			}
			if (n <= max)
				ret_spans[n - 1] = last;
		}
	return n;
}

uint32_t kvr_connector_max_blocks(const struct kvr_connector *c)
{
	return c->config.max_blocks;
}

uint32_t kvr_connector_pool_slots(const struct kvr_connector *c)
{
	return (uint32_t)c->config.pool_slots;
}

void *kvr_connector_pool(const struct kvr_connector *c, uint64_t *ret_bytes)
{
	const struct kvr_pool *pool = is_leader(c) ? kvr_engine_pool(c->engine) : &c->pool;

	*ret_bytes = pool->bytes;
	return pool->mem;
}

int kvr_connector_stats(struct kvr_connector *c, struct kvr_stats *ret_stats)
{
	if (!is_leader(c))
		return KVR_FAIL(-EINVAL, "kvr_connector_stats: rank %u asked; the leader counts",
				c->rank);
	kvr_engine_stats(c->engine, ret_stats);
	ret_stats->tick = c->tick;
	return 0;
}

const char *kvr_connector_degraded(struct kvr_connector *c, uint32_t i)
{
	return is_leader(c) ? kvr_engine_degraded(c->engine, i) : NULL;
}

struct kvr_group *kvr_connector_group(struct kvr_connector *c)
{
	return c->group;
}

struct kvr_channels *kvr_connector_channels(struct kvr_connector *c)
{
	return c->channels;
}
