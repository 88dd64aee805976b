/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handle of a group: its memory and mappings, and how a member says who it is and leaves. What
 * decides whether a process may become one is in group_create.c, _attach.c and _takeover.c.
 */
#include "group_member.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "atomic.h"
#include "clock.h"
#include "err.h"
#include "fork.h"
#include "group_watcher.h"
#include "point.h"
#include "process.h"
#include "shm.h"

#define LOCK_WAIT_NS (5 * KVR_SEC)

const char *kvr_member_dir(const struct kvr_group *g)
{
	return g->dir[0] ? g->dir : NULL;
}

void kvr_member_path(const struct kvr_group *g, enum kvr_shm_kind kind, uint64_t epoch,
		     char path[KVR_SHM_PATH])
{
	/* Not made anew: the user may be another by now. */
	kvr_shm_sibling(path, g->path, kind, epoch);
}

void kvr_member_unmap(struct kvr_group *g)
{
	kvr_shm_unmap(g->seg, g->layout.total);
	kvr_shm_unmap(g->own, g->own_bytes);
	kvr_shm_unmap(g->bells, g->layout.leader - g->layout.bells);
	g->seg = g->own = NULL;
	g->bells = NULL;
	if (g->fd >= 0)
		close(g->fd);
	g->fd = -1;
}

void kvr_member_free(struct kvr_group *g)
{
	if (g)
		kvr_member_unmap(g);
	free(g);
}

static int check_opts(const struct kvr_group_opts *o, int leader)
{
	if (!o && !leader)
		return 0;
	if (!o || o->size != sizeof *o)
		return KVR_FAIL(-EINVAL, "group options: size is %zu, this library expects %zu",
				o ? o->size : 0, sizeof *o);
	if (o->takeover > KVR_TAKEOVER_FENCE)
		return KVR_FAIL(-EINVAL, "group options: takeover is %u, 0 to %d are possible",
				o->takeover, KVR_TAKEOVER_FENCE);
	if (o->config_len > KVR_CONFIG_MAX || (o->config_len && !o->config))
		return KVR_FAIL(-EINVAL,
				"group options: config_len is %u, config %p; at most %u "
				"bytes, with a pointer, are possible",
				o->config_len, o->config, KVR_CONFIG_MAX);
	if (o->dir && (!o->dir[0] || strlen(o->dir) >= sizeof((struct kvr_group *)0)->dir))
		return KVR_FAIL(-EINVAL, "group options: dir has %zu bytes, 1 to %zu are possible",
				strlen(o->dir), sizeof((struct kvr_group *)0)->dir - 1);
	return o->setup ? kvr_setup_valid(o->setup) : 0;
}

int kvr_member_new(const char *name, const struct kvr_group_opts *o, uint32_t rank,
		   struct kvr_group **ret)
{
	char path[KVR_SHM_PATH], dir[PATH_MAX];
	struct kvr_group *g;
	int err = check_opts(o, rank == KVR_LEADER);

	/* The working directory may be another by the time it is closed. One that is not there is
	 * whoever's turn it is that needs it. */
	if (!err && o && o->dir && !realpath(o->dir, dir))
		snprintf(dir, sizeof dir, "%s", o->dir);
	if (!err && o && o->dir && strlen(dir) >= sizeof g->dir)
		err = KVR_FAIL(-EINVAL,
			       "group options: dir is %.100s...: %zu bytes, %zu are possible", dir,
			       strlen(dir), sizeof g->dir - 1);
	if (!err)
		err = kvr_shm_path(path, sizeof path, o && o->dir ? dir : NULL, name,
				   KVR_SHM_SEGMENT, 0);
	if (err)
		return err;
	g = calloc(1, sizeof *g);
	if (!g)
		return KVR_FAIL(-ENOMEM, "no memory for the handle of group %s", name);
	snprintf(g->name, sizeof g->name, "%s", name);
	snprintf(g->path, sizeof g->path, "%s", path);
	if (o && o->dir)
		memcpy(g->dir, dir, strlen(dir) + 1);
	g->rank = rank;
	g->pid = (uint32_t)getpid();
	g->forks = kvr_fork_generation();
	g->fd = -1;
	*ret = g;
	return 0;
}

int kvr_member_map(struct kvr_group *g)
{
	const struct kvr_layout *l = &g->layout;
	int leader = g->rank == KVR_LEADER;
	uint64_t at = leader ? l->leader : kvr_layout_rank(l, g->rank);

	g->own_bytes = leader ? l->leader_end - l->leader : l->rank_stride;
	g->seg = kvr_shm_map(g->fd, 0, l->total, 0);
	g->own = g->seg ? kvr_shm_map(g->fd, at, g->own_bytes, 1) : NULL;
	g->bells = g->own ? kvr_shm_map(g->fd, l->bells, l->leader - l->bells, 1) : NULL;
	if (!g->bells)
		return kvr_fail_more(-ENOMEM, " (segment of group %s)", g->name);
	g->bell = &g->bells[leader ? l->ranks : g->rank];
	g->proc = (struct kvr_proc *)(void *)g->own;
	g->calls = leader ? kvr_group_leader_page(g)->calls : kvr_group_own_page(g)->calls;
	g->leader = (const struct kvr_leader_page *)(const void *)(g->seg + l->leader);
	g->takeover = (const struct kvr_seg_takeover *)(const void *)(g->seg + l->takeover);
	g->peer_count = leader ? l->ranks : 1;
	for (uint32_t i = 0; i < g->peer_count; i++)
		g->peers[i] = leader ? &kvr_group_rank_page(g, i)->proc.life
				     : &g->leader->proc.life;
	kvr_waiter_init(&g->waiter, g->bell);
	return 0;
}

void kvr_member_enter(struct kvr_group *g)
{
	const struct kvr_layout *l = &g->layout;
	struct kvr_proc *p = g->proc;
	struct kvr_process self;

	kvr_process_self(&self);
	kvr_store_relaxed32(&p->pid, self.pid);
	kvr_store_relaxed32(&p->rank, g->rank);
	kvr_store_relaxed(&p->start_time, self.start_time);
	kvr_store_relaxed(&p->space, self.space);
	kvr_store_relaxed(&p->progress_ns, kvr_now());
	kvr_store_release32(&p->state, KVR_PROC_ACTIVE); /* G1, pairs with G2 */
	kvr_recorder_init(
		&g->rec, g->own + (g->rank == KVR_LEADER ? l->leader_rec - l->leader : l->rank_rec),
		l->events, g->rank);
}

int kvr_member_lock(const struct kvr_group *g, char path[KVR_SHM_PATH])
{
	kvr_member_path(g, KVR_SHM_LOCK, 0, path);
	return kvr_shm_lock(path, kvr_now() + LOCK_WAIT_NS);
}

int kvr_group_with_names(struct kvr_group *g, int (*fn)(void *arg), void *arg)
{
	char lock[KVR_SHM_PATH];
	int fd = kvr_member_lock(g, lock), err;

	if (fd < 0)
		return fd;
	if (kvr_shm_same(g->fd, g->path))
		err = KVR_FAIL(
			-ESTALE,
			"group %s: %s is not epoch %llu's any more: another leader took over, "
			"or it was removed",
			g->name, g->path, (unsigned long long)g->header.epoch);
	else
		err = fn(arg);
	kvr_shm_unlock(fd, lock);
	return err;
}

int kvr_member_remove_pool(const struct kvr_group *g)
{
	char path[KVR_SHM_PATH];
	uint64_t bytes;
	int fd, err;

	kvr_member_path(g, KVR_SHM_POOL, 0, path);
	fd = kvr_shm_open(path, 0, &bytes);
	if (fd < 0)
		return 0;
	err = kvr_shm_unlink(fd, path);
	close(fd);
	return !err;
}

/*
 * Under the name lock: another leader may take over from us although we live. If the lock is not to
 * be had in time, the names stay: the next leader finds that we have left.
 */
static void remove_names(struct kvr_group *g, int failed)
{
	uint64_t deadline = kvr_now() + LOCK_WAIT_NS;
	char lock[KVR_SHM_PATH];
	int fd;

	kvr_member_path(g, KVR_SHM_LOCK, 0, lock);
	do
		fd = kvr_shm_lock(lock, deadline);
	while (fd == -EINTR && kvr_now() < deadline);
	/* No lock file in a full directory: then nobody else gets one either. */
	if (fd < 0 && fd != -ENOSPC)
		return;
	/* Unless the name is another's by now: then so is the pool's. */
	if (!kvr_shm_same(g->fd, g->path)) {
		kvr_member_remove_pool(g);
		if (!failed)
			kvr_shm_unlink(g->fd, g->path);
	}
	if (fd >= 0)
		kvr_shm_unlock(fd, lock);
}

static void leave_leader(struct kvr_group *g)
{
	int failed = kvr_load_relaxed32(&g->proc->state) == KVR_PROC_FAILED;

	/* A declared failure stays to be read: it says more than "left". */
	if (!failed)
		kvr_store_release32(&g->proc->state, KVR_PROC_LEFT); /* G1, pairs with G2 */
	KVR_POINT(leave_told, 0);
	for (uint32_t i = 0; i <= g->layout.ranks; i++)
		kvr_bell_ring(&g->bells[i]);
	remove_names(g, failed);
	KVR_POINT(leave_unlinked, 0);
	kvr_watcher_stop(g->watcher);
}

/* A child in a pid namespace of its own may have its parent's pid; one that was made by _Fork() or
 * clone() is not counted. */
static int is_inherited(const struct kvr_group *g)
{
	return g->forks != kvr_fork_generation() || g->pid != (uint32_t)getpid();
}

void kvr_group_abandon(struct kvr_group *g)
{
	if (g->rank == KVR_LEADER || !g->watcher || is_inherited(g))
		return;
	kvr_store_release32(&g->proc->state, KVR_PROC_ABSENT); /* G1, pairs with G2 */
	kvr_watcher_stop(g->watcher);
	g->watcher = NULL;
	kvr_group_ring_leader(g); /* it may wait for the last rank to go */
}

void kvr_group_close(struct kvr_group *g)
{
	if (!g)
		return;
	if (is_inherited(g)) {
		/* A forked child inherited the mappings, not the membership. */
		kvr_watcher_forget(g->watcher);
	} else if (g->rank == KVR_LEADER) {
		leave_leader(g);
	} else if (g->watcher) {
		kvr_store_release32(&g->proc->state, KVR_PROC_LEFT); /* G1, pairs with G2 */
		KVR_POINT(leave_rank, g->rank);
		kvr_watcher_stop(g->watcher);
		kvr_group_ring_leader(g);
	}
	kvr_member_free(g);
}
