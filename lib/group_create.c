/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a group begins: create, take over, attach.
 *
 * A taker builds the new segment whole before it touches the old one, so that a failure on the way
 * (no room, no thread) leaves everything as it was. From then on the order is: mark the old segment
 * (its waiters end with -ESTALE), rename it, link the new one. Killed at any point in between, the
 * next taker finds either the marked old segment, or no segment at all.
 *
 * An attacher looks with pread, which survives any file, and maps only what it has checked.
 */
#include "group_member.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "atomic.h"
#include "clock.h"
#include "err.h"
#include "group_watcher.h"
#include "kvring/ring.h"
#include "point.h"
#include "shm.h"
#include "util.h"

_Static_assert(KVR_RING_CTL == 128, "kvr_layout_ring() has it as a number");

#define LOCK_WAIT_NS (5 * KVR_SEC)
#define RING_BYTES 131072u
#define OPS 1024u
#define EVENTS 1024u

typedef unsigned long long ull;

static uint32_t or_default(uint32_t v, uint32_t otherwise)
{
	return v ? v : otherwise;
}

/* --- create --- */

/* A segment under our name whose leader is dead or has left. */
struct old_segment {
	int fd; /* -1: there is none */
	uint32_t cause;
	struct kvr_seg_header header;
	struct kvr_layout layout;
};

static int other_boot(const struct kvr_seg_header *h)
{
	uint8_t boot[16];

	/* In a directory on disk a liveness word outlives the machine, and reads "alive". */
	return !kvr_shm_boot_id(boot) && memcmp(boot, h->boot_id, sizeof boot) != 0;
}

/* Reads and checks the header behind fd, and copies the first 128 bytes of its leader's page. */
static int segment_look(int fd, uint64_t bytes, const char *path, struct kvr_seg_header *ret_header,
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
	if (!err)
		err = kvr_shm_read(fd, ret_leader, sizeof *ret_leader, ret_layout->leader);
	return err;
}

/* Under the name lock: is there a predecessor, and is it over? Decides epoch and uuid. */
static int old_look(struct kvr_group *g, struct old_segment *old)
{
	char path[KVR_SHM_PATH];
	struct kvr_proc leader;
	uint64_t bytes;
	int err;

	kvr_member_path(g, KVR_SHM_SEGMENT, 0, path);
	old->fd = kvr_shm_open(path, 1, &bytes);
	if (old->fd == -ENOENT) {
		g->header.epoch = 1;
		return kvr_shm_random(g->header.uuid, sizeof g->header.uuid);
	}
	if (old->fd < 0)
		return old->fd;
	err = segment_look(old->fd, bytes, path, &old->header, &old->layout, &leader);
	if (err)
		return err;
	if (kvr_life_of(leader.life) == KVR_LIFE_ALIVE && !other_boot(&old->header))
		return KVR_FAIL(-EBUSY,
				"group %s: the leader of epoch %llu is alive (pid %u in its pid "
				"namespace); end it first, or choose another name",
				g->name, (ull)old->header.epoch, old->header.pid);
	if (old->header.epoch == UINT64_MAX)
		return KVR_FAIL(-EPROTO, "%s: epoch is %llu, there is no next one", path,
				(ull)old->header.epoch);
	old->cause = kvr_life_of(leader.life) == KVR_LIFE_NONE ? KVR_TAKEOVER_RESTART
							       : KVR_TAKEOVER_DEAD;
	g->header.epoch = old->header.epoch + 1;
	memcpy(g->header.uuid, old->header.uuid, sizeof g->header.uuid);
	return 0;
}

static int header_fill(struct kvr_group *g, const struct kvr_group_opts *o)
{
	struct kvr_seg_header *h = &g->header;
	int err = kvr_layout_init(&g->layout, o->ranks, or_default(o->ring_bytes, RING_BYTES),
				  or_default(o->ops, OPS), or_default(o->events, EVENTS));

	if (err)
		return kvr_fail_more(err, " (group options)");
	err = kvr_shm_boot_id(h->boot_id);
	if (err)
		return err;
	h->version = KVR_SEG_VERSION;
	h->header_bytes = sizeof *h;
	h->layout_hash = kvr_layout_hash();
	h->total_bytes = g->layout.total;
	h->created_ns = kvr_now();
	h->pid = g->pid;
	h->start_time = kvr_shm_start_time(g->pid);
	h->ranks = g->layout.ranks;
	h->ring_bytes = g->layout.ring_bytes;
	h->ops = g->layout.ops;
	h->events = g->layout.events;
	h->channels = KVR_CHANNELS;
	h->tag_hash = kvr_tag_hash();
	snprintf(h->library, sizeof h->library, "%s", KVR_VERSION_STRING);
	snprintf(h->name, sizeof h->name, "%s", g->name);
	if (o->model)
		h->model = *o->model;
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

/* Tells everybody in the old segment, and moves it out of the way. */
static int old_retire(struct kvr_group *g, const struct old_segment *old)
{
	uint64_t bell_bytes = old->layout.leader - old->layout.bells;
	char path[KVR_SHM_PATH], retired[KVR_SHM_PATH];
	struct kvr_seg_takeover *t =
		kvr_shm_map(old->fd, sizeof(struct kvr_seg_header), sizeof *t, 1);
	struct kvr_bell *bells = t ? kvr_shm_map(old->fd, old->layout.bells, bell_bytes, 1) : NULL;
	int err = bells ? 0 : kvr_fail_more(-ENOMEM, " (old segment of group %s)", g->name);

	if (!err) {
		kvr_store_relaxed32(&t->pid, g->pid);
		kvr_store_relaxed32(&t->cause, old->cause);
		kvr_store_relaxed(&t->ns, kvr_now());
		kvr_store_release(&t->new_epoch, g->header.epoch); /* K1, pairs with K2 */
		KVR_POINT(create_marked, 0);
		for (uint32_t i = 0; i <= old->layout.ranks; i++)
			kvr_bell_ring(&bells[i]);
		kvr_member_path(g, KVR_SHM_SEGMENT, 0, path);
		kvr_member_path(g, KVR_SHM_RETIRED, old->header.epoch, retired);
		err = kvr_shm_retire(old->fd, path, retired);
		KVR_POINT(create_retired, 0);
		if (!err)
			kvr_shm_prune(kvr_member_dir(g), g->name, old->header.epoch);
	}
	kvr_shm_unmap(bells, bell_bytes);
	kvr_shm_unmap(t, sizeof *t);
	return err;
}

static int create_locked(struct kvr_group *g, const struct kvr_group_opts *o,
			 struct old_segment *old)
{
	char path[KVR_SHM_PATH];
	int err = old_look(g, old);

	if (err)
		return err;
	/*
	 * Nobody has a right to the pool of an epoch that is over: those who still map it keep its
	 * memory, the name goes, and the room may be what the new segment needs.
	 */
	kvr_member_remove_pool(g);
	err = header_fill(g, o);
	if (!err)
		err = segment_make(g);
	if (err)
		return err;
	KVR_POINT(create_made, 0);
	/* The word is held before anybody can see it: a visible segment has a living leader. */
	kvr_member_enter(g);
	err = kvr_watcher_start(&g->proc->life, g->bell, NULL, o->event_fd, &g->watcher);
	if (err)
		return kvr_fail_more(err, " (leader of group %s)", g->name);
	KVR_POINT(create_held, 0);
	if (old->fd >= 0)
		err = old_retire(g, old);
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
	struct old_segment old = { .fd = -1 };
	char lock[KVR_SHM_PATH];
	struct kvr_group *g;
	int lock_fd, err = kvr_member_new(name, opts, KVR_LEADER, &g);

	if (err)
		return err;
	kvr_member_path(g, KVR_SHM_LOCK, 0, lock);
	lock_fd = kvr_shm_lock(lock, kvr_now() + LOCK_WAIT_NS);
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

/* --- attach --- */

/* 0 when the leader lives and the epoch goes on. Whatever is wrong, a next leader may mend it. */
static int look_leader(struct kvr_group *g, const struct kvr_proc *leader)
{
	uint64_t epoch = g->header.epoch, next;
	int err = kvr_shm_read(g->fd, &next, sizeof next, sizeof(struct kvr_seg_header));

	if (err)
		return err;
	if (next)
		return KVR_FAIL(-ESTALE,
				"group %s: epoch %llu was taken over by epoch %llu, which did not "
				"appear in time",
				g->name, (ull)epoch, (ull)next);
	if (kvr_life_of(leader->life) == KVR_LIFE_DEAD || other_boot(&g->header))
		return KVR_FAIL(
			-EOWNERDEAD,
			"group %s: the leader of epoch %llu (pid %u) is dead and no new one "
			"came in time; start the leader",
			g->name, (ull)epoch, g->header.pid);
	if (leader->state == KVR_PROC_FAILED)
		return KVR_FAIL(
			leader->cause < 0 && leader->cause > -4096 ? leader->cause : -EOWNERDEAD,
			"group %s: the leader (pid %u) declared epoch %llu over (%s) and made "
			"no new one in time",
			g->name, g->header.pid, (ull)epoch, kvr_strerror(leader->cause));
	if (kvr_life_of(leader->life) != KVR_LIFE_ALIVE || leader->state != KVR_PROC_ACTIVE)
		return KVR_FAIL(-ETIMEDOUT,
				"group %s is absent: the leader (pid %u) ended epoch %llu in good "
				"order, and no new one came in time",
				g->name, g->header.pid, (ull)epoch);
	return 0;
}

/* Is the place free in this epoch? Sets *ret_again when a next epoch would help. */
static int look_rank(struct kvr_group *g, int *ret_again)
{
	enum kvr_life_state life;
	struct kvr_proc p;
	int err;

	err = kvr_shm_read(g->fd, &p, sizeof p, kvr_layout_rank(&g->layout, g->rank));
	if (err)
		return err;
	life = kvr_life_of(p.life);
	if (life == KVR_LIFE_ALIVE)
		return KVR_FAIL(-EBUSY,
				"group %s: rank %u of epoch %llu is taken by pid %u (0: it is just "
				"attaching), which is alive; is a rank number given twice?",
				g->name, g->rank, (ull)g->header.epoch, p.pid);
	if (life == KVR_LIFE_NONE && p.state == KVR_PROC_ABSENT)
		return 0;
	*ret_again = 1;
	return KVR_FAIL(-EBUSY,
			"group %s: rank %u of epoch %llu was taken by pid %u, which %s; a rank "
			"attaches once an epoch, and no new epoch came in time: restart the leader",
			g->name, g->rank, (ull)g->header.epoch, p.pid,
			life == KVR_LIFE_DEAD ? "died" : "left");
}

static int look_config(const struct kvr_group *g, const struct kvr_group_opts *o)
{
	const struct kvr_seg_header *h = &g->header;
	char where[96];

	if (strncmp(h->name, g->name, sizeof h->name) != 0)
		return KVR_FAIL(-EPROTO,
				"group %s: its segment says that it is group %.47s; was the "
				"file renamed?",
				g->name, h->name);
	if (h->tag_hash != kvr_tag_hash())
		return KVR_FAIL(
			-EPROTO,
			"group %s: tag_hash is %#llx there and %#llx here: leader and ranks "
			"know different tags; use the same version of kvring",
			g->name, (ull)h->tag_hash, (ull)kvr_tag_hash());
	if (g->rank >= h->ranks)
		return KVR_FAIL(-EINVAL, "group %s: rank %u of a group with %u ranks (0 to %u)",
				g->name, g->rank, h->ranks, h->ranks - 1);
	snprintf(where, sizeof where, "group %s", g->name);
	return o && o->model ? kvr_model_check(&h->model, o->model, where) : 0;
}

/*
 * One look at what has the name now; on success g->fd, header and layout are those of a group with
 * a living leader and a free place. *ret_again: the answer may change.
 */
static int attach_look(struct kvr_group *g, const struct kvr_group_opts *o, const char *path,
		       int *ret_again)
{
	struct kvr_proc leader;
	uint64_t bytes;
	int err;

	g->fd = kvr_shm_open(path, 1, &bytes);
	if (g->fd == -ENOENT) {
		*ret_again = 1;
		return KVR_FAIL(
			-ETIMEDOUT,
			"group %s is absent: %s does not exist; is the leader running, as the "
			"same user and with the same directory?",
			g->name, path);
	}
	if (g->fd < 0)
		return g->fd;
	err = segment_look(g->fd, bytes, path, &g->header, &g->layout, &leader);
	if (err)
		return err;
	/* Before anything that a next leader may do differently, such as another model. */
	err = look_leader(g, &leader);
	if (err) {
		*ret_again = 1;
		return err;
	}
	err = look_config(g, o);
	return err ? err : look_rank(g, ret_again);
}

/* Takes the place. *ret_again: somebody was faster. */
static int attach_claim(struct kvr_group *g, const struct kvr_group_opts *o, int *ret_again)
{
	int err = kvr_member_map(g);

	if (err)
		return err;
	err = kvr_watcher_start(&g->proc->life, g->bell, &g->leader->proc.life,
				o ? o->event_fd : -1, &g->watcher);
	if (err) {
		*ret_again = err == -EBUSY || err == -EOWNERDEAD;
		return kvr_fail_more(err, " (rank %u of group %s)", g->rank, g->name);
	}
	KVR_POINT(attach_claimed, g->rank);
	/* Free again, but somebody came and went since the look: his counts are in the page. */
	if (kvr_load_relaxed32(&g->proc->state) != KVR_PROC_ABSENT) {
		kvr_watcher_stop(g->watcher);
		*ret_again = 1;
		return KVR_FAIL(-EBUSY, "group %s: rank %u was taken before", g->name, g->rank);
	}
	kvr_member_enter(g);
	KVR_POINT(attach_entered, g->rank);
	kvr_group_ring_leader(g);
	return 0;
}

static int attach_pause(const struct kvr_group *g, uint64_t *pause_ns, uint64_t now,
			uint64_t deadline_ns)
{
	struct timespec t = kvr_timespec(kvr_min(*pause_ns, deadline_ns - now));

	*pause_ns = kvr_min(2 * *pause_ns, 10 * KVR_MS);
	if (!nanosleep(&t, NULL))
		return 0;
	return KVR_FAIL(
		-EINTR,
		"group %s: a signal handler ran while rank %u waited for the leader; calling "
		"again goes on",
		g->name, g->rank);
}

int kvr_group_attach(const char *name, uint32_t rank, const struct kvr_group_opts *opts,
		     uint64_t deadline_ns, struct kvr_group **ret_group)
{
	uint64_t pause_ns = KVR_MS, now;
	char path[KVR_SHM_PATH];
	struct kvr_group *g;
	int err, again;

	if (rank >= KVR_MAX_RANKS)
		return KVR_FAIL(-EINVAL, "group %.48s: rank %u; 0 to %d are possible",
				name ? name : "(null)", rank, KVR_MAX_RANKS - 1);
	err = kvr_member_new(name, opts, rank, &g);
	if (err)
		return err;
	kvr_member_path(g, KVR_SHM_SEGMENT, 0, path);
	for (;;) {
		again = 0;
		err = attach_look(g, opts, path, &again);
		if (!err)
			KVR_POINT(attach_looked, rank);
		if (!err)
			err = attach_claim(g, opts, &again);
		if (!err) {
			*ret_group = g;
			return 0;
		}
		kvr_member_unmap(g);
		now = kvr_now();
		if (!again || now >= deadline_ns)
			break;
		err = attach_pause(g, &pause_ns, now, deadline_ns);
		if (err)
			break;
	}
	kvr_member_free(g);
	return err;
}
