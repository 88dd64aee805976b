/* SPDX-License-Identifier: Apache-2.0 */
/* How a connector comes to be: a leader makes group, pool, store and engine; a rank joins them. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "channel_priv.h"
#include "connector_priv.h"
#include "err.h"
#include "fork.h"
#include "kvring/ring.h"
#include "node.h"
#include "util.h"

#define BULK_BYTES 1048576u /* group.h's default */
#define POOL_ALIGN 4096u    /* of slots: what direct I/O needs on the devices we know */

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
				     .bulk_bytes = o->bulk_bytes,
				     .model = o->model,
				     .setup = o->setup,
				     .takeover = o->takeover,
				     .takeover_deadline_ns = o->lock_deadline_ns,
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
	/* What fits one message: a ring's, or one in the bulk area. */
	payload = (uint32_t)kvr_max(payload - sizeof(struct kvr_msg_head),
				    (o->bulk_bytes ? o->bulk_bytes : BULK_BYTES) / 4);
	c->config.max_blocks = blocks_per_message(payload);
	c->config.pool_slots = kvr_pool_slots(o->host_bytes, &c->geo);
	c->config.slot_bytes = c->geo.slot_bytes;
	c->config.shape = *o->shape;
	if (c->config.pool_slots > UINT32_MAX / 2)
		return KVR_FAIL(
			-EINVAL,
			"kvr_connector_lead: %llu bytes of host memory are %llu slots, more "
			"than supported",
			(unsigned long long)o->host_bytes,
			(unsigned long long)c->config.pool_slots);
	if (!c->config.pool_slots)
		return KVR_FAIL(-EINVAL,
				"kvr_connector_lead: %llu bytes of host memory do not hold one "
				"block; a slot is %llu bytes, and %u are the pool's header",
				(unsigned long long)o->host_bytes,
				(unsigned long long)c->geo.slot_bytes, KVR_POOL_DATA);
	return kvr_group_create(name, &go, &c->group);
}

/* The public numbering makes zeroed options mean "anywhere". */
static int node_of(int32_t numa_node)
{
	if (numa_node == KVR_NUMA_ANY)
		return KVR_NODE_ANY;
	return numa_node < 0 ? KVR_NODE_INTERLEAVE : numa_node - KVR_NUMA_NODE(0);
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
			  .node = node_of(o->numa_node),
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
	/* Completions go through the rings: a rank that is slow then holds up nobody's bulk area.
	 */
	c->chunk = (uint32_t)((kvr_channels_inline_payload(c->channels) -
			       sizeof(struct kvr_wire_complete)) /
			      sizeof(struct kvr_wire_record));
	c->blocks = calloc(c->config.max_blocks, sizeof *c->blocks);
	c->names = calloc(c->chunk, sizeof *c->names);
	c->message = malloc(c->max_payload);
	if (!c->blocks || !c->names || !c->message)
		return KVR_FAIL(-ENOMEM, "kvr_connector_lead: no memory");
	kvr_alike_init(&c->alike, &c->group->layout,
		       c->group->own + (c->group->layout.leader_logs - c->group->layout.leader),
		       NULL, NULL);
	return kvr_engine_start(c->group, &eo, &c->engine);
}

/* Never 0, which group options take for "none", however the program was started. */
static int make_eventfd(void)
{
	int low = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int fd = low < 0 || low > 2 ? low : fcntl(low, F_DUPFD_CLOEXEC, 3);
	int err = fd < 0 ? KVR_FAIL(-errno, "no eventfd: %s", kvr_strerror(errno)) : 0;

	if (fd != low && low >= 0)
		close(low);
	return err ? err : fd;
}

/* Closing what was opened may set sentences of its own: the first one counts. */
static int give_up(struct kvr_connector *c, int err)
{
	char text[1024];

	strncpy(text, kvr_explain(), sizeof text - 1);
	text[sizeof text - 1] = 0;
	kvr_connector_destroy(c);
	return KVR_FAIL(err, "%s", text);
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
	c->forks = kvr_fork_generation();
	c->rank = KVR_LEADER;
	c->event_fd = make_eventfd();
	err = c->event_fd < 0 ? c->event_fd : 0;
	if (!err)
		err = lead_group(c, name, opts);
	if (!err)
		err = kvr_channels_open(c->group, &c->channels);
	if (!err)
		err = lead_engine(c, opts);
	if (err)
		return give_up(c, err);
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

/* The rest of a join, once the rank is a member. */
static int join_member(struct kvr_connector *c, const char *dir, uint64_t deadline_ns)
{
	int err = kvr_channels_open(c->group, &c->channels);

	if (err)
		return err;
	c->max_payload = kvr_channels_max_payload(c->channels);
	kvr_alike_init(&c->alike, &c->group->layout, c->group->own + c->group->layout.rank_logs,
		       c->group->seg + c->group->layout.leader_logs,
		       &kvr_group_own_page(c->group)->drift);
	err = join_config(c);
	if (err)
		return err;
	struct kvr_pool_opts po = { .dir = dir,
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

/*
 * A leader may end between the two halves of a join: its own opening failed, or a signal ended it
 * and it calls again. The next one may come, as kvr_group_attach() has it: until the deadline.
 */
static int join(struct kvr_connector *c, const char *name, const struct kvr_connector_opts *o,
		uint64_t deadline_ns)
{
	struct kvr_group_opts go = { .size = sizeof go,
				     .dir = o ? o->dir : NULL,
				     .ranks = o ? o->ranks : 0,
				     .model = o ? o->model : NULL,
				     .setup = o ? o->setup : NULL,
				     .event_fd = -1 };
	int err;

	for (;;) {
		err = kvr_group_attach(name, c->rank, &go, deadline_ns, &c->group);
		if (!err)
			err = join_member(c, go.dir, deadline_ns);
		if (!err || !c->group)
			return err;
		/* Nothing was taken yet: the same call may come again, in this epoch. */
		kvr_group_abandon(c->group);
		if ((err != -ESHUTDOWN && err != -EOWNERDEAD && err != -ESTALE) ||
		    kvr_deadline(0) >= deadline_ns)
			return err;
		kvr_channels_close(c->channels);
		kvr_group_close(c->group);
		c->channels = NULL;
		c->group = NULL;
	}
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
	c->forks = kvr_fork_generation();
	c->rank = rank;
	c->event_fd = -1;
	err = join(c, name, opts, deadline_ns);
	if (err)
		return give_up(c, err);
	number_segments(c);
	*ret_connector = c;
	return 0;
}
