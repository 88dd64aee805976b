/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group in use: is it well, why not, who waits for whom. What it takes to become a member is in
 * group_create.c, _attach.c and _takeover.c, what it takes to leave in group_member.c.
 *
 * Everything read from a page of another process is loaded once and bounded before it is used: a
 * cause that is no errno or a rank that does not exist becomes "unknown", never an index.
 */
#include "group.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "atomic.h"
#include "clock.h"
#include "err.h"
#include "fork.h"
#include "group_watcher.h"
#include "peer.h"
#include "point.h"
#include "shm.h"
#include "util.h"

typedef unsigned long long ull;

#define ERRNO_MAX 4095

static const struct kvr_proc *proc_of(const struct kvr_group *g, uint32_t rank)
{
	if (rank == KVR_LEADER)
		return &g->leader->proc;
	return rank < g->layout.ranks ? &kvr_group_rank_page(g, rank)->proc : NULL;
}

static uint32_t state_of(const struct kvr_proc *p)
{
	return kvr_load_acquire32(&p->state); /* G2, pairs with G1 */
}

void kvr_group_describe(const struct kvr_group *g, uint32_t rank, char *ret_text, size_t size)
{
	const struct kvr_proc *p = proc_of(g, rank);
	char text[256] = "the leader (";
	struct kvr_peer peer;

	if (rank != KVR_LEADER)
		snprintf(text, sizeof text, "rank %u (", rank);
	if (p) {
		kvr_peer_read(p, rank, &peer);
		kvr_peer_text(&peer, text, sizeof text - 2);
	} else {
		snprintf(text + strlen(text), sizeof text - strlen(text), "there is none");
	}
	snprintf(ret_text, size, "%s)", text);
}

static int inert(const struct kvr_group *g, const char *call)
{
	if (g->forks == kvr_fork_generation())
		return 0;
	return KVR_FAIL(-EINVAL,
			"group %s: %s in a forked child: the handle is its parent's (pid %u); the "
			"child must attach by itself, as another rank",
			g->name, call, g->pid);
}

int kvr_group_peer(struct kvr_group *g, uint32_t rank, struct kvr_peer *ret_peer)
{
	const struct kvr_proc *p = proc_of(g, rank);
	int err = inert(g, "kvr_group_peer");

	if (err)
		return err;
	if (!p)
		return KVR_FAIL(-EINVAL, "group %s: kvr_group_peer(rank %u): it has %u ranks",
				g->name, rank, g->layout.ranks);
	kvr_peer_read(p, rank, ret_peer);
	return 0;
}

int kvr_group_phase(struct kvr_group *g, const char *what, uint64_t until_ns)
{
	struct kvr_proc *p = g->proc;
	int err = inert(g, "kvr_group_phase");

	if (err)
		return err;
	kvr_store_relaxed(&p->phase_until, 0);
	memset(p->phase, 0, sizeof p->phase);
	if (until_ns)
		snprintf(p->phase, sizeof p->phase, "%s", what ? what : "");
	kvr_store_relaxed(&p->phase_until, until_ns);
	kvr_store_relaxed(&p->progress_ns, kvr_now());
	return 0;
}

int kvr_group_visible(struct kvr_group *g)
{
	int err = kvr_group_check(g), same;

	if (err)
		return err;
	same = kvr_shm_same(g->fd, g->path);
	if (!same)
		return 0;
	if (same == -ESTALE)
		return KVR_FAIL(-ESTALE,
				"group %s: somebody removed %s while epoch %llu lived, and another "
				"leader has the name by now; end this epoch",
				g->name, g->path, (ull)g->header.epoch);
	return KVR_FAIL(same,
			"group %s: %s of the living epoch %llu: %s; was it removed (RemoveIPC of "
			"systemd, rm)? No process can attach any more: end this epoch and make a "
			"new one",
			g->name, g->path, (ull)g->header.epoch, kvr_strerror(same));
}

static const char *retired_text(uint32_t cause)
{
	switch (cause) {
	case KVR_RETIRED_DEAD:
		return "had died";
	case KVR_RETIRED_LEFT:
		return "had left";
	case KVR_RETIRED_KILLED:
		return "was killed by it, to take over";
	case KVR_RETIRED_FENCED:
		return "was shut out by it, alive or not";
	default:
		return "was gone";
	}
}

static int check_stale(const struct kvr_group *g, uint64_t new_epoch)
{
	const struct kvr_seg_takeover *t = g->takeover;
	int reason = (int)kvr_load_relaxed32((const uint32_t *)(const void *)&t->reason);
	uint32_t blamed = kvr_load_relaxed32(&t->blamed);
	char age[32] = "", who[32] = "no rank in particular";

	if (new_epoch != g->header.epoch + 1)
		return KVR_FAIL(-EBADMSG,
				"group %s: new_epoch of the takeover page is %llu, 0 or %llu is "
				"possible: it was overwritten; close this handle",
				g->name, (ull)new_epoch, (ull)g->header.epoch + 1);
	kvr_peer_age(kvr_load_relaxed(&t->ns), age, sizeof age);
	KVR_FAIL(-ESTALE,
		 "group %s: epoch %llu is over, epoch %llu was made %s ago by pid %u because the "
		 "leader %s",
		 g->name, (ull)g->header.epoch, (ull)new_epoch, age, kvr_load_relaxed32(&t->pid),
		 retired_text(kvr_load_relaxed32(&t->cause)));
	if (blamed < g->layout.ranks)
		snprintf(who, sizeof who, "rank %u", blamed);
	if (reason < 0 && reason >= -ERRNO_MAX)
		kvr_fail_more(-ESTALE, " after it had declared the epoch over: %s, because of %s",
			      kvr_strerror(reason), who);
	return kvr_fail_more(-ESTALE, "; close this handle and attach again");
}

/* Another leader takes over, and has not said yet what counts. Who it is, it said before. */
static int is_closing(const struct kvr_group *g)
{
	return kvr_life_peek(&g->takeover->closing) == KVR_LIFE_ALIVE && /* N2, pairs with N1 */
	       kvr_load_relaxed32(&g->takeover->pid);
}

/* Nobody would ever say what counts: all would wait for ever. */
static int check_closing(const struct kvr_group *g)
{
	uint32_t closing = kvr_load_acquire32(&g->takeover->closing); /* N2, pairs with N1 */

	if (!closing || kvr_load_relaxed32(&g->takeover->pid))
		return 0;
	return KVR_FAIL(-EBADMSG,
			"group %s: closing of the takeover page is %#x, 0 is possible without the "
			"pid of a taker: it was overwritten; close this handle",
			g->name, closing);
}

/* How much of `seen`, a count of the leader's, still counts. */
uint64_t kvr_group_fenced(const struct kvr_group *g, const uint64_t *fence, uint64_t seen)
{
	int closing = is_closing(g);

	if (kvr_load_acquire(&g->takeover->new_epoch)) /* K2, pairs with K1 */
		return kvr_min(seen, kvr_load_relaxed(fence));
	return closing ? 0 : seen;
}

/* What a caller would take for "again" must not be the end of an epoch. */
static int final_cause(int cause)
{
	if (cause == -EINTR || cause == -EAGAIN || cause == -ETIMEDOUT || cause == -EMSGSIZE)
		return -ECANCELED;
	return cause;
}

static int check_failed(const struct kvr_group *g)
{
	uint32_t blamed = kvr_load_relaxed32(&g->leader->proc.blamed);
	int cause = (int)kvr_load_relaxed32((const uint32_t *)(const void *)&g->leader->proc.cause);
	char who[256] = "no rank in particular";

	if (cause > -1 || cause < -ERRNO_MAX)
		return KVR_FAIL(-EBADMSG,
				"group %s: the leader declared epoch %llu over with the impossible "
				"cause %d; close this handle and attach to the next epoch",
				g->name, (ull)g->header.epoch, cause);
	if (blamed < g->layout.ranks)
		kvr_group_describe(g, blamed, who, sizeof who);
	return KVR_FAIL(final_cause(cause),
			"group %s: the leader declared epoch %llu over: %s, because of %s; close "
			"this handle and attach to the next epoch",
			g->name, (ull)g->header.epoch,
			cause == -EOWNERDEAD ? "a process died" : kvr_strerror(cause), who);
}

static int check_dead(const struct kvr_group *g)
{
	const struct kvr_leader_page *l = g->leader;
	char who[256];

	kvr_group_describe(g, KVR_LEADER, who, sizeof who);
	return KVR_FAIL(
		-EOWNERDEAD,
		"group %s: the leader of epoch %llu died, after tick %llu: %s; start it again, "
		"close this handle and attach",
		g->name, (ull)g->header.epoch, (ull)kvr_load_relaxed(&l->tick_done), who);
}

static void ring_all(struct kvr_group *g)
{
	for (uint32_t i = 0; i <= g->layout.ranks; i++)
		kvr_bell_ring(&g->bells[i]);
}

int kvr_group_fail(struct kvr_group *g, uint32_t rank, int cause)
{
	struct kvr_proc *p = g->proc;
	int err = inert(g, "kvr_group_fail");

	if (err)
		return err;
	if (g->rank != KVR_LEADER)
		return KVR_FAIL(-EINVAL, "group %s: rank %u cannot end the epoch, the leader can",
				g->name, g->rank);
	if ((rank >= g->layout.ranks && rank != KVR_MAX_RANKS) || cause > -1 || cause < -ERRNO_MAX)
		return KVR_FAIL(
			-EINVAL,
			"group %s: kvr_group_fail(rank %u, cause %d): a rank below %u or %d "
			"for none, and a negative errno are expected",
			g->name, rank, cause, g->layout.ranks, KVR_MAX_RANKS);
	if (!kvr_cas_acq_rel32(&g->failing, 0, 1)) /* F1, pairs with F1 */
		return 0;
	kvr_store_relaxed32((uint32_t *)(void *)&p->cause, (uint32_t)final_cause(cause));
	kvr_store_relaxed32(&p->blamed, rank < g->layout.ranks ? rank : KVR_LEADER);
	KVR_POINT(fail_caused, rank);
	kvr_store_release32(&p->state, KVR_PROC_FAILED); /* G1, pairs with G2 */
	KVR_POINT(fail_declared, rank);
	ring_all(g);
	return 0;
}

/* The leader: the first dead rank ends the epoch. */
static void look_at_ranks(struct kvr_group *g)
{
	for (uint32_t r = 0; r < g->layout.ranks; r++) {
		const struct kvr_proc *p = proc_of(g, r);

		if (kvr_life_peek(&p->life) != KVR_LIFE_DEAD || state_of(p) == KVR_PROC_LEFT)
			continue;
		kvr_group_fail(g, r, -EOWNERDEAD);
		break;
	}
}

int kvr_group_check(struct kvr_group *g)
{
	uint64_t new_epoch = kvr_load_acquire(&g->takeover->new_epoch); /* K2, pairs with K1 */
	const struct kvr_proc *leader = &g->leader->proc;
	enum kvr_life_state life;
	uint32_t state;
	int err = inert(g, "a call");

	if (err)
		return err;
	if (new_epoch)
		return check_stale(g, new_epoch);
	err = check_closing(g);
	if (err)
		return err;
	if (g->rank == KVR_LEADER && g->watcher && kvr_watcher_deaths(g->watcher))
		look_at_ranks(g);
	/* Whatever ended it: first must be known up to where all drain. */
	if (g->rank != KVR_LEADER && is_closing(g))
		return 0;
	/* In this order: a leader that leaves stores its state before it lets go of the word. */
	life = kvr_life_peek(&leader->life);
	state = state_of(leader);
	if (state == KVR_PROC_FAILED)
		return check_failed(g);
	if (g->rank == KVR_LEADER || (life == KVR_LIFE_ALIVE && state == KVR_PROC_ACTIVE))
		return 0;
	/* Also when it died on its last steps: some were told already that it left. */
	if (life == KVR_LIFE_DEAD && state != KVR_PROC_LEFT)
		return check_dead(g);
	if (state == KVR_PROC_LEFT)
		return KVR_FAIL(-ESHUTDOWN,
				"group %s: the leader (pid %u) ended epoch %llu in good order",
				g->name, g->header.pid, (ull)g->header.epoch);
	return KVR_FAIL(
		-EBADMSG,
		"group %s: the leader's page says state %s (%u) while its liveness word says "
		"%s: it was overwritten; close this handle",
		g->name, kvr_proc_state_name(state), state,
		life == KVR_LIFE_ALIVE ? "alive" : "nobody");
}

int kvr_group_watch_ranks(struct kvr_group *g)
{
	look_at_ranks(g);
	return kvr_group_check(g);
}

struct group_wait {
	struct kvr_group *g;
	int (*ready)(void *);
	void *arg;
	int ended; /* what ended it, with a sentence of its own; 0: the deadline or a signal */
};

static int wait_ready(void *arg)
{
	struct group_wait *w = arg;
	int end = w->ready(w->arg), bad;

	if (!end) {
		bad = kvr_group_check(w->g);
		/* Once more: what it finished between that look and its end must not be lost. */
		if (bad)
			end = w->ready(w->arg);
		/* That look may have set a sentence of its own. */
		if (bad && !end)
			end = kvr_group_check(w->g);
	}
	w->ended = end;
	return end;
}

void kvr_group_add_unlinked(const struct kvr_group *g)
{
	if (kvr_shm_unlinked(g->fd))
		kvr_fail_more(0,
			      "; somebody removed the group's file in %s (RemoveIPC of "
			      "systemd, rm): no process can attach any more",
			      g->dir[0] ? g->dir : KVR_SHM_DIR);
}

static int wait_failed(struct kvr_group *g, int err, const char *what)
{
	char waited[32] = "", leader[256];

	if (err == -EINTR)
		return KVR_FAIL(err,
				"group %s: a signal handler ran while waiting for %s; calling "
				"again goes on",
				g->name, what);
	if (err != -ETIMEDOUT)
		return KVR_FAIL(err, "group %s: waiting for %s: %s", g->name, what,
				kvr_strerror(err));
	kvr_peer_age(g->proc->in_call ? g->proc->call_ns : kvr_now(), waited, sizeof waited);
	kvr_group_describe(g, KVR_LEADER, leader, sizeof leader);
	KVR_FAIL(err, "group %s epoch %llu: the deadline passed after %s while waiting for %s; ",
		 g->name, (ull)g->header.epoch, waited, what);
	if (g->rank != KVR_LEADER)
		kvr_fail_more(err, "%s; calling again goes on waiting", leader);
	else
		kvr_fail_more(err, "calling again goes on waiting");
	kvr_group_add_unlinked(g);
	return err;
}

int kvr_group_wait(struct kvr_group *g, int (*ready)(void *), void *arg, uint64_t deadline_ns,
		   const char *what)
{
	struct group_wait w = { .g = g, .ready = ready, .arg = arg };
	int rc = kvr_wait(&g->waiter, wait_ready, &w, deadline_ns);

	kvr_store_relaxed(&g->proc->lost_wakes, g->waiter.lost_wakes);
	/* Also the time of the last arrival: no reading of the clock where nothing was awaited. */
	if (g->waiter.last_ns > kvr_load_relaxed(&g->proc->progress_ns))
		kvr_store_relaxed(&g->proc->progress_ns, g->waiter.last_ns);
	return rc < 0 && !w.ended ? wait_failed(g, rc, what) : rc;
}

void kvr_group_enter(struct kvr_group *g, enum kvr_call call, uint32_t channel)
{
	struct kvr_proc *p = g->proc;
	uint64_t now = kvr_now();

	kvr_store_relaxed32(&p->in_call, call);
	kvr_store_relaxed32(&p->call_arg, channel);
	kvr_store_relaxed(&p->call_ns, now);
	kvr_store_relaxed(&p->progress_ns, now);
	if ((uint32_t)call < KVR_CALL_SLOTS)
		kvr_store_relaxed(&g->calls[call], g->calls[call] + 1);
}

int kvr_group_leave(struct kvr_group *g, enum kvr_call call, uint32_t channel,
		    const struct kvr_request *req, int result)
{
	struct kvr_event e = { .kind = KVR_EV_CALL,
			       .call = (uint16_t)call,
			       .channel = (uint8_t)channel,
			       .result = result };
	const struct kvr_event *last;

	if (req) {
		e.request = req->id;
		e.attempt = req->attempt;
	}
	kvr_recorder_add(&g->rec, &e);
	/* The event's time: one reading of the clock is enough. */
	last = &g->rec.events[(g->rec.count - 1) & (g->rec.capacity - 1)];
	kvr_store_relaxed(&g->proc->progress_ns, kvr_load_relaxed(&last->ns));
	kvr_store_relaxed32(&g->proc->in_call, KVR_CALL_NONE);
	return result;
}

uint64_t kvr_group_epoch(const struct kvr_group *g)
{
	return g->header.epoch;
}

uint32_t kvr_group_ranks(const struct kvr_group *g)
{
	return g->layout.ranks;
}

uint32_t kvr_group_rank(const struct kvr_group *g)
{
	return g->rank;
}

const void *kvr_group_config(const struct kvr_group *g, uint32_t *ret_len, uint32_t *ret_kind)
{
	*ret_len = g->header.config_len;
	*ret_kind = g->header.config_kind;
	return g->header.config;
}
