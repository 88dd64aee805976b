/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of the segment that has our name already. Its leader is dead or has left: then it is
 * over. Or its leader lives, perhaps stopped or only slow: that is for the caller to decide, since
 * it still owns memory and files (enum kvr_takeover). Whatever is no segment, or one of another
 * layout, is nobody's to judge: it stays as it is.
 *
 * Nothing here happens without the name lock, and nothing to the old segment before the new one is
 * whole. Then the order is: end the old leader, put up the fence, mark (its waiters end with
 * -ESTALE), rename. Killed at any point in between, the next taker finds either the old segment,
 * marked or not, or no segment at all.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "atomic.h"
#include "clock.h"
#include "err.h"
#include "group_member.h"
#include "peer.h"
#include "point.h"
#include "process.h"
#include "util.h"

#define END_NS (5 * KVR_SEC)

typedef unsigned long long ull;

int kvr_member_other_boot(const struct kvr_seg_header *h)
{
	uint8_t boot[16];

	/* In a directory on disk a liveness word outlives the machine, and reads "alive". */
	return !kvr_process_boot_id(boot) && memcmp(boot, h->boot_id, sizeof boot) != 0;
}

int kvr_member_look(int fd, uint64_t bytes, const char *path, struct kvr_seg_header *ret_header,
		    struct kvr_layout *ret_layout, struct kvr_proc *ret_leader)
{
	int err;

	if (bytes < sizeof *ret_header)
		return KVR_FAIL(
			-EPROTO,
			"%s has %llu bytes, less than a header of %zu: it is no kvring "
			"segment, or was truncated, and stays as it is; choose another name "
			"or remove it",
			path, (ull)bytes, sizeof *ret_header);
	err = kvr_shm_read(fd, ret_header, sizeof *ret_header, 0);
	if (!err)
		err = kvr_header_check(ret_header, bytes, path, ret_layout);
	if (!err && ret_layout->page < kvr_shm_page())
		err = KVR_FAIL(
			-EPROTO,
			"%s: page is %u, this kernel's is %u: others' pages cannot be mapped "
			"without being writable",
			path, ret_layout->page, kvr_shm_page());
	if (!err)
		err = kvr_shm_read(fd, ret_leader, sizeof *ret_leader, ret_layout->leader);
	return err;
}

/* Opens what has the name. 1: there is a segment; 0: there is none; or why it is not for us. */
static int old_open(const char *path, struct kvr_old_segment *old)
{
	uint64_t bytes;
	int err;

	old->fd = kvr_shm_open(path, 1, &bytes);
	if (old->fd == -ENOENT)
		return 0;
	if (old->fd < 0)
		return old->fd;
	err = kvr_member_look(old->fd, bytes, path, &old->header, &old->layout, &old->leader);
	if (err)
		return err;
	old->alive = kvr_life_of(old->leader.life) == KVR_LIFE_ALIVE &&
		     !kvr_member_other_boot(&old->header);
	return 1;
}

/* -EBUSY, with who it is and what it does. */
static int old_lives(const struct kvr_old_segment *old, const char *name, const char *advice)
{
	char who[256] = "";
	struct kvr_peer peer;

	kvr_peer_read(&old->leader, KVR_LEADER, &peer);
	kvr_peer_text(&peer, who, sizeof who);
	return KVR_FAIL(-EBUSY, "group %s: the leader of epoch %llu lives (%s); %s", name,
			(ull)old->header.epoch, who, advice);
}

static struct kvr_process old_process(const struct kvr_old_segment *old)
{
	return (struct kvr_process){ .pid = old->header.pid,
				     .start_time = old->header.start_time,
				     .space = old->header.space };
}

static int is_self(const struct kvr_old_segment *old)
{
	struct kvr_process self;

	kvr_process_self(&self);
	return self.space && old->header.pid == self.pid && old->header.space == self.space &&
	       old->header.start_time == self.start_time;
}

static int old_allowed(const struct kvr_old_segment *old, const char *name, uint32_t takeover)
{
	if (is_self(old))
		return old_lives(old, name,
				 "it is this very process: close that handle first, or choose "
				 "another name");
	if (takeover == KVR_TAKEOVER_REFUSE)
		return old_lives(old, name,
				 "end it first, take over from it (kvr_group_opts.takeover), or "
				 "choose another name");
	return 0;
}

int kvr_old_look(struct kvr_group *g, uint32_t takeover, struct kvr_old_segment *old)
{
	char path[KVR_SHM_PATH];
	int err;

	kvr_member_path(g, KVR_SHM_SEGMENT, 0, path);
	err = old_open(path, old);
	if (err < 0)
		return err;
	if (!err) {
		g->header.epoch = 1;
		return kvr_shm_random(g->header.uuid, sizeof g->header.uuid);
	}
	if (old->alive) {
		err = old_allowed(old, g->name, takeover);
		if (err)
			return err;
	}
	if (old->header.epoch == UINT64_MAX)
		return KVR_FAIL(-EPROTO, "%s: epoch is %llu, there is no next one", path,
				(ull)old->header.epoch);
	g->header.epoch = old->header.epoch + 1;
	memcpy(g->header.uuid, old->header.uuid, sizeof g->header.uuid);
	return 0;
}

/* Why it is over; kills its leader where that was asked for. enum kvr_retired or -errno. */
static int old_end(const struct kvr_old_segment *old, const struct kvr_group_opts *o,
		   const char *name)
{
	struct kvr_process who = old_process(old);
	uint64_t deadline = o->takeover_deadline_ns;
	int err;

	if (!old->alive)
		return kvr_life_of(old->leader.life) == KVR_LIFE_NONE ? KVR_RETIRED_LEFT
								      : KVR_RETIRED_DEAD;
	if (o->takeover == KVR_TAKEOVER_FENCE)
		return KVR_RETIRED_FENCED;
	err = kvr_process_kill(&who, deadline ? deadline : kvr_now() + END_NS);
	if (err)
		return kvr_fail_more(err,
				     " (the leader of epoch %llu of group %s; nothing was "
				     "taken over)",
				     (ull)old->header.epoch, name);
	return KVR_RETIRED_KILLED;
}

/* How far the old leader is counts from now on, whatever it still does. */
static int old_fence(struct kvr_seg_takeover *t, const struct kvr_leader_page *leader,
		     uint64_t new_epoch)
{
	int err;

	/* A taker before us got this far: what counts is said, and ranks may have drained to it. */
	if (kvr_load_acquire(&t->new_epoch) == new_epoch) /* K2, pairs with K1 */
		return 0;
	/* One may have died in here; the name lock says that none lives. */
	kvr_store_relaxed32(&t->closing, 0);
	err = kvr_life_hold(&t->closing); /* N1, pairs with N2: it is an exchange */
	if (err)
		return err;
	KVR_POINT(create_closing, 0);
	kvr_store_relaxed(&t->tick_done,
			  kvr_load_acquire(&leader->tick_done)); /* T2, pairs with T1 */
	for (uint32_t ch = 0; ch < KVR_CHANNELS; ch++)
		kvr_store_relaxed(&t->watermark[ch],
				  kvr_load_acquire(&leader->watermark[ch])); /* M2, pairs with M1 */
	kvr_store_release(&t->new_epoch, new_epoch);			     /* K1, pairs with K2 */
	kvr_life_drop(&t->closing);
	return 0;
}

/* Tells everybody in the old segment. */
static int old_mark(struct kvr_group *g, const struct kvr_old_segment *old, uint32_t cause)
{
	uint64_t bell_bytes = old->layout.leader - old->layout.bells;
	struct kvr_seg_takeover *t = kvr_shm_map(old->fd, old->layout.takeover, sizeof *t, 1);
	struct kvr_bell *bells = t ? kvr_shm_map(old->fd, old->layout.bells, bell_bytes, 1) : NULL;
	struct kvr_leader_page *leader =
		bells ? kvr_shm_map(old->fd, old->layout.leader, sizeof *leader, 0) : NULL;
	int err;

	if (leader && kvr_load_relaxed32(&leader->proc.state) == KVR_PROC_FAILED) {
		kvr_store_relaxed32((uint32_t *)(void *)&t->reason,
				    kvr_load_relaxed32((uint32_t *)(void *)&leader->proc.cause));
		kvr_store_relaxed32(&t->blamed, kvr_load_relaxed32(&leader->proc.blamed));
	} else if (leader) {
		kvr_store_relaxed32(&t->blamed, KVR_LEADER);
	}
	if (leader) {
		kvr_store_relaxed32(&t->pid, g->pid);
		kvr_store_relaxed32(&t->cause, cause);
		kvr_store_relaxed(&t->ns, kvr_now());
		err = old_fence(t, leader, g->header.epoch);
	} else {
		err = kvr_fail_more(-ENOMEM, " (old segment of group %s)", g->name);
	}
	if (!err) {
		KVR_POINT(create_marked, 0);
		for (uint32_t i = 0; i <= old->layout.ranks; i++)
			kvr_bell_ring(&bells[i]);
	}
	kvr_shm_unmap(bells, bell_bytes);
	kvr_shm_unmap(t, sizeof *t);
	kvr_shm_unmap(leader, leader ? sizeof *leader : 0);
	return err;
}

int kvr_old_retire(struct kvr_group *g, const struct kvr_group_opts *o,
		   const struct kvr_old_segment *old)
{
	char path[KVR_SHM_PATH], retired[KVR_SHM_PATH];
	int cause = old_end(old, o, g->name), err;

	if (cause < 0)
		return cause;
	err = old_mark(g, old, (uint32_t)cause);
	if (err)
		return err;
	kvr_member_path(g, KVR_SHM_SEGMENT, 0, path);
	kvr_member_path(g, KVR_SHM_RETIRED, old->header.epoch, retired);
	err = kvr_shm_retire(old->fd, path, retired);
	KVR_POINT(create_retired, 0);
	if (!err)
		kvr_shm_prune(kvr_member_dir(g), g->name, old->header.epoch, 1);
	return err;
}

static int remove_locked(struct kvr_group *g)
{
	struct kvr_old_segment old = { .fd = -1 };
	char path[KVR_SHM_PATH];
	int found, err;

	kvr_member_path(g, KVR_SHM_SEGMENT, 0, path);
	found = old_open(path, &old);
	err = found < 0 ? found : 0;
	if (found > 0 && old.alive)
		err = old_lives(&old, g->name, "a living group is not removed");
	if (!err && found)
		kvr_shm_unlink(old.fd, path);
	if (!err) {
		found |= kvr_member_remove_pool(g);
		found |= kvr_shm_prune(kvr_member_dir(g), g->name, UINT64_MAX, 0) > 0;
	}
	if (old.fd >= 0)
		close(old.fd);
	if (err || found)
		return err;
	return KVR_FAIL(-ENOENT, "group %s left nothing in %s", g->name,
			g->dir[0] ? g->dir : KVR_SHM_DIR);
}

int kvr_group_remove(const char *name, const char *dir)
{
	struct kvr_group_opts o = { .size = sizeof o, .dir = dir };
	char lock[KVR_SHM_PATH];
	struct kvr_group *g;
	int fd, err = kvr_member_new(name, &o, KVR_LEADER, &g);

	if (err)
		return err;
	fd = kvr_member_lock(g, lock);
	err = fd < 0 ? fd : remove_locked(g);
	if (fd >= 0)
		kvr_shm_unlock(fd, lock);
	kvr_member_free(g);
	return err;
}
