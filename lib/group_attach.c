/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a rank gets in. An attacher looks with pread, which survives any file, and maps only what it
 * has checked. What it finds is absent, not ready, incompatible, over, or a living group; what a
 * next leader may mend is waited for until the deadline.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "atomic.h"
#include "clock.h"
#include "err.h"
#include "group_member.h"
#include "group_watcher.h"
#include "point.h"
#include "shm.h"
#include "util.h"

typedef unsigned long long ull;

/* 0 when the leader lives and the epoch goes on. Whatever is wrong, a next leader may mend it. */
static int look_leader(struct kvr_group *g, const struct kvr_proc *leader)
{
	uint64_t epoch = g->header.epoch, next;
	int err = kvr_shm_read(g->fd, &next, sizeof next, g->layout.takeover);

	if (err)
		return err;
	if (next)
		return KVR_FAIL(-ESTALE,
				"group %s: epoch %llu was taken over by epoch %llu, which did not "
				"appear in time",
				g->name, (ull)epoch, (ull)next);
	if (kvr_life_of(leader->life) == KVR_LIFE_DEAD || kvr_member_other_boot(&g->header))
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
	if (o && o->ranks && o->ranks != h->ranks)
		return KVR_FAIL(-EPROTO, "%s: ranks is %u there and %u here", where, h->ranks,
				o->ranks);
	if (o && o->model) {
		int err = kvr_model_check(&h->model, o->model, where);

		if (err)
			return err;
	}
	return o && o->setup ? kvr_setup_check(h->setup, o->setup, where) : 0;
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
	err = kvr_member_look(g->fd, bytes, path, &g->header, &g->layout, &leader);
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
	err = kvr_watcher_start(&g->proc->life, g->bell, g->peers, g->peer_count,
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
