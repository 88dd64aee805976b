/* SPDX-License-Identifier: Apache-2.0 */
/* New leaders: after a death, several at once, and against one that lives. */
#include "stress_group_round.h"

static void end_leader(struct round *r)
{
	cast_kill(r, leader_of(r));
	cast_await_end(r, leader_of(r));
}

static void goes_on(struct round *r, struct actor *l)
{
	group_start_ranks(r);
	group_await_joined(r, group_await_reign(r, l));
	group_await_traffic(r);
}

/* Several at the same time: one of them makes the epoch, the others are told who did. */
static void rivals(struct round *r, int one_dies)
{
	uint32_t n = 2 + pick(r, 3), first = r->w->reigns, won = 0;
	struct actor *taker[4], *winner = NULL;
	static const uint32_t points[] = { KVR_POINT_create_locked,   KVR_POINT_create_made,
					   KVR_POINT_create_held,     KVR_POINT_create_closing,
					   KVR_POINT_create_marked,   KVR_POINT_create_retired,
					   KVR_POINT_create_published };

	for (uint32_t i = 0; i < n; i++) {
		taker[i] = cast_leader(r);
		taker[i]->go = 1;
		if (one_dies && !i)
			taker[i]->trap = (struct trap){ points[pick(r, 7)], 1, SIGKILL };
		cast_start(r, taker[i]);
	}
	tally.takeovers++;
	kvr_store_release32(&r->w->go, 1);
	for (uint32_t i = 0; i < n; i++)
		ROUND_AWAIT(r,
			    kvr_load_acquire32(&taker[i]->reign) ||
				    !cast_process(r, taker[i])->running,
			    "the end of each taker's call");
	for (uint32_t i = first; i < r->w->reigns; i++)
		if (r->w->reign[i].state == REIGN_MADE) {
			won++;
			winner = &r->w->actor[r->w->reign[i].actor];
		}
	if (won != 1)
		round_bad(r, TROUBLE_BROKEN, "%u of %u rivals won", won, n);
	r->leader = cast_index(r, winner);
	goes_on(r, winner);
}

static void chain(struct round *r)
{
	for (uint32_t n = 3 + pick(r, 3); n; n--) {
		end_leader(r);
		goes_on(r, group_new_leader(r, KVR_TAKEOVER_REFUSE));
	}
}

/* What a dead leader left is removed by hand: the name starts anew. */
static void removed(struct round *r)
{
	const char *dir = r->w->dir[0] ? r->w->dir : NULL;
	struct actor *l = leader_of(r);
	int rc = kvr_group_remove(r->w->name, dir);

	if (rc != -EBUSY || !strstr(kvr_explain(), "lives (pid"))
		round_bad(r, TROUBLE_CAUSE, "kvr_group_remove of a living group: %d %s", rc,
			  kvr_explain());
	l->fail_cause = -EIO;
	l->fail_blamed = pick(r, r->w->ranks);
	kvr_store_release32(&l->order, ORDER_FAIL);
	cast_await_end(r, l);
	group_await_ended(r, r->reign);
	r->removed_ns = kvr_now();
	rc = kvr_group_remove(r->w->name, dir);
	if (rc)
		round_bad(r, TROUBLE_LEFT, "kvr_group_remove: %d %s", rc, kvr_explain());
	goes_on(r, group_new_leader(r, KVR_TAKEOVER_REFUSE));
}

static void refused(struct round *r, int stopped)
{
	struct actor *l = leader_of(r);

	if (stopped)
		cast_stop(r, l);
	group_refused(r, KVR_TAKEOVER_REFUSE, -EBUSY);
	if (stopped)
		cast_continue(r, l);
	group_await_traffic(r);
}

static void by_force(struct round *r, uint32_t takeover, int stopped)
{
	struct actor *old = leader_of(r), *l;

	if (stopped)
		cast_stop(r, old);
	if (takeover == KVR_TAKEOVER_KILL)
		kvr_store_release(&old->kill_ns, kvr_now());
	l = group_new_leader(r, takeover);
	group_await_reign(r, l);
	if (takeover == KVR_TAKEOVER_KILL) {
		/* Its process is gone when the call returns. */
		char path[32], exe[16];

		snprintf(path, sizeof path, "/proc/%d/exe", (int)cast_process(r, old)->pid);
		if (cast_process(r, old)->running && readlink(path, exe, sizeof exe) > 0)
			round_bad(r, TROUBLE_BROKEN, "the old leader still runs");
		cast_await_end(r, old);
	} else if (stopped) {
		/* The new epoch is under way before the old leader hears of it. */
		goes_on(r, l);
		cast_continue(r, old);
		cast_await_end(r, old);
	} else {
		cast_await_end(r, old);
	}
	goes_on(r, l);
}

/* A taker that dies before it has the name harms no leader that lives. */
static void fence_dies(struct round *r)
{
	static const uint32_t points[] = { KVR_POINT_create_locked, KVR_POINT_create_made,
					   KVR_POINT_create_held, KVR_POINT_create_closing };
	struct actor *old = leader_of(r), *l = cast_leader(r);

	if (pick(r, 2))
		cast_stop(r, old);
	l->takeover = KVR_TAKEOVER_FENCE;
	l->trap = (struct trap){ points[pick(r, 4)], 1, SIGKILL };
	cast_start(r, l);
	cast_await_trap(r, l);
	r->leader = cast_index(r, old);
	if (cast_process(r, old)->stopped)
		cast_continue(r, old);
	group_await_traffic(r);
}

/* Everybody takes it from everybody; the last one to come stays. */
static void free_for_all(struct round *r)
{
	uint32_t n = 2 + pick(r, 3);
	struct actor *taker[4], *last = leader_of(r);

	for (uint32_t i = 0; i < n; i++) {
		taker[i] = cast_leader(r);
		taker[i]->go = 1;
		taker[i]->takeover = 1 + pick(r, 2);
	}
	/* Any of them may be killed by another one. */
	kvr_store_release(&last->kill_ns, kvr_now());
	for (uint32_t i = 0; i < n; i++) {
		kvr_store_release(&taker[i]->kill_ns, kvr_now());
		cast_start(r, taker[i]);
	}
	tally.takeovers += n;
	kvr_store_release32(&r->w->go, 1);
	for (uint32_t i = 0; i < n; i++)
		ROUND_AWAIT(r,
			    kvr_load_acquire32(&taker[i]->reign) ||
				    !cast_process(r, taker[i])->running,
			    "the end of each taker's call");
	for (uint32_t i = 0; i < r->w->reigns; i++) {
		struct reign *g = &r->w->reign[i];

		if (g->state == REIGN_MADE &&
		    g->epoch > (last->reign ? r->w->reign[last->reign - 1].epoch : 0))
			last = &r->w->actor[g->actor];
	}
	r->leader = cast_index(r, last);
	for (uint32_t i = 0; i < r->actors; i++)
		if (r->w->actor[i].rank == NOBODY && &r->w->actor[i] != last)
			cast_await_end(r, &r->w->actor[i]);
	last->kill_ns = 0;
	goes_on(r, last);
}

void deed_takeover(struct round *r, uint32_t kind)
{
	group_open(r);
	group_mood(r);
	if (kind >= TAKEOVER_REFUSED)
		r->starve = 0;
	switch (kind) {
	case TAKEOVER_ONE:
		end_leader(r);
		goes_on(r, group_new_leader(r, pick(r, 3)));
		break;
	case TAKEOVER_RIVALS:
	case TAKEOVER_RIVAL_DIES:
		end_leader(r);
		rivals(r, kind == TAKEOVER_RIVAL_DIES);
		break;
	case TAKEOVER_CHAIN:
		chain(r);
		break;
	case TAKEOVER_REMOVED:
		removed(r);
		break;
	case TAKEOVER_REFUSED:
	case TAKEOVER_REFUSED_STOPPED:
		refused(r, kind == TAKEOVER_REFUSED_STOPPED);
		break;
	case TAKEOVER_KILLS:
	case TAKEOVER_KILLS_STOPPED:
		by_force(r, KVR_TAKEOVER_KILL, kind == TAKEOVER_KILLS_STOPPED);
		break;
	case TAKEOVER_FENCES:
	case TAKEOVER_FENCES_STOPPED:
		by_force(r, KVR_TAKEOVER_FENCE, kind == TAKEOVER_FENCES_STOPPED);
		break;
	case TAKEOVER_FENCE_DIES:
		fence_dies(r);
		break;
	default:
		free_for_all(r);
		break;
	}
}
