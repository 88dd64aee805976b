/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a group begins: the leader makes its segment. It is built whole before the old one under that
 * name is touched (group_takeover.c) and before it gets a name itself, so that a failure on the way
 * (no room, no thread) leaves the old one as it was, but for its pool's name if it is over, and
 * retired ones if there is no room.
 */
#include "group_member.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "atomic.h"
#include "clock.h"
#include "err.h"
#include "group_watcher.h"
#include "kvring/ring.h"
#include "point.h"
#include "process.h"
#include "shm.h"
#include "util.h"

_Static_assert(KVR_RING_CTL == 128, "kvr_layout_ring() has it as a number");

#define RING_BYTES 131072u
#define OPS 1024u
#define EVENTS 1024u
#define BULK_BYTES 1048576u

typedef unsigned long long ull;

static uint32_t or_default(uint32_t v, uint32_t otherwise)
{
	return v ? v : otherwise;
}

static int header_fill(struct kvr_group *g, const struct kvr_group_opts *o)
{
	struct kvr_seg_header *h = &g->header;
	struct kvr_process self;
	int err = kvr_layout_init(&g->layout, kvr_shm_page(), o->ranks,
				  or_default(o->ring_bytes, RING_BYTES), or_default(o->ops, OPS),
				  or_default(o->events, EVENTS),
				  or_default(o->bulk_bytes, BULK_BYTES));

	if (err)
		return kvr_fail_more(err, " (group options)");
	err = kvr_process_boot_id(h->boot_id);
	if (err)
		return err;
	kvr_process_self(&self);
	h->version = KVR_SEG_VERSION;
	h->header_bytes = sizeof *h;
	h->layout_hash = kvr_layout_hash();
	h->total_bytes = g->layout.total;
	h->created_ns = kvr_now();
	h->pid = self.pid;
	h->start_time = self.start_time;
	h->space = self.space;
	h->page = g->layout.page;
	h->ranks = g->layout.ranks;
	h->ring_bytes = g->layout.ring_bytes;
	h->ops = g->layout.ops;
	h->events = g->layout.events;
	h->bulk_bytes = g->layout.bulk_bytes;
	h->channels = KVR_CHANNELS;
	h->tag_hash = kvr_tag_hash();
	snprintf(h->library, sizeof h->library, "%s", KVR_VERSION_STRING);
	snprintf(h->name, sizeof h->name, "%s", g->name);
	if (o->model)
		h->model = *o->model;
	if (o->setup)
		strncpy(h->setup, o->setup, sizeof h->setup - 1);
	if (o->config_len)
		memcpy(h->config, o->config, o->config_len);
	h->config_len = o->config_len;
	h->config_kind = o->config_kind;
	h->checksum = kvr_header_sum(h);
	h->magic = KVR_SEG_MAGIC;
	return 0;
}

/* An anonymous file with a whole header. */
static int segment_make(struct kvr_group *g)
{
	struct kvr_seg_header *h;

	g->fd = kvr_shm_create(kvr_member_dir(g), g->layout.total);
	/* A restart is worth more than what was kept for a look. */
	if (g->fd == -ENOSPC && kvr_shm_prune(kvr_member_dir(g), g->name, UINT64_MAX, 0) > 0)
		g->fd = kvr_shm_create(kvr_member_dir(g), g->layout.total);
	if (g->fd < 0)
		return kvr_fail_more(g->fd, " (segment of group %s, %u ranks)", g->name,
				     g->layout.ranks);
	h = kvr_shm_map(g->fd, 0, sizeof *h, 1);
	if (!h)
		return kvr_fail_more(-ENOMEM, " (header of group %s)", g->name);
	*h = g->header;
	kvr_shm_unmap(h, sizeof *h);
	return kvr_member_map(g);
}

static int create_locked(struct kvr_group *g, const struct kvr_group_opts *o,
			 struct kvr_old_segment *old)
{
	char path[KVR_SHM_PATH];
	int err = kvr_old_look(g, o->takeover, old);

	if (err)
		return err;
	/*
	 * Nobody has a right to the pool of an epoch that is over: those who still map it keep its
	 * memory, the name goes, and the room may be what the new segment needs.
	 */
	if (!old->alive)
		kvr_member_remove_pool(g);
	err = header_fill(g, o);
	if (!err)
		err = segment_make(g);
	if (err)
		return err;
	KVR_POINT(create_made, 0);
	/* The word is held before anybody can see it: a visible segment has a living leader. */
	kvr_member_enter(g);
	err = kvr_watcher_start(&g->proc->life, g->bell, g->peers, g->peer_count, o->event_fd,
				&g->watcher);
	if (err)
		return kvr_fail_more(err, " (leader of group %s)", g->name);
	KVR_POINT(create_held, 0);
	if (old->fd >= 0)
		err = kvr_old_retire(g, o, old);
	if (!err && old->alive)
		kvr_member_remove_pool(g);
	kvr_member_path(g, KVR_SHM_SEGMENT, 0, path);
	if (!err)
		err = kvr_shm_publish(g->fd, path);
	if (err)
		kvr_watcher_stop(g->watcher);
	KVR_POINT(create_published, 0);
	return err;
}

int kvr_group_create(const char *name, const struct kvr_group_opts *opts,
		     struct kvr_group **ret_group)
{
	struct kvr_old_segment old = { .fd = -1 };
	char lock[KVR_SHM_PATH];
	struct kvr_group *g;
	int lock_fd, err = kvr_member_new(name, opts, KVR_LEADER, &g);

	if (err)
		return err;
	lock_fd = kvr_member_lock(g, lock);
	if (lock_fd < 0) {
		kvr_member_free(g);
		return lock_fd;
	}
	KVR_POINT(create_locked, 0);
	err = create_locked(g, opts, &old);
	if (old.fd >= 0)
		close(old.fd);
	kvr_shm_unlock(lock_fd, lock);
	if (err)
		kvr_member_free(g);
	else
		*ret_group = g;
	return err;
}
