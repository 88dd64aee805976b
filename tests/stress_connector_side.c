/* SPDX-License-Identifier: Apache-2.0 */
/* What every side does: opens, runs its flows, asks for completions, ends. */
#include "stress_connector_world.h"

#include "atomic.h"
#include "engine_priv.h"
#include "connector_priv.h"

#include <sys/time.h>

const char *const state_name[S_STATES] = {
	"lookup",
	"load_begin",
	"load_wait_layer",
	"load_wait",
	"a load is held",
	"load_done",
	"store_begin",
	"store_begin again",
	"copying",
	"store_copied",
	"wait_store",
	"release",
	"prefetch",
	"prefetch_status",
	"propose",
	"vote",
	"decided",
	"outcome",
	"reset",
	"reset_wait",
	"after a reset",
	"a byte flips",
	"ends",
	"pass",
	"over",
};

static struct side sides[2];

static uint32_t load32(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

/* --- words of a side -------------------------------------------------------------------------- */

void side_bad(struct side *s, const char *what, const char *where, long long value)
{
	if (__atomic_exchange_n(&s->w->shared->failed, 1, __ATOMIC_ACQ_REL))
		_exit(0);
	fprintf(stderr, "%s %d, flow %u, in %s, %s (%s): %s: %lld; explain: %s\n",
		s->lead ? "leader" : "rank", (int)s->rank, s->log->flow, s->log->state,
		s->log->doing, where, what, value, kvr_explain());
	_exit(1);
}

/* Nobody dies here, and no byte of the segment is damaged: the epoch does not end by itself. */
int side_result(struct side *s, const char *call, const char *where, int result, uint64_t since)
{
	uint64_t ns = test_now_ns() - since;

	if (ns > s->log->longest_ns) {
		s->log->longest_ns = ns;
		s->log->longest = call;
	}
	s->log->timeouts += result == -ETIMEDOUT;
	if (result == -EOWNERDEAD || result == -ESTALE || result == -ESHUTDOWN ||
	    result == -EINVAL || result == -ENOMEM || result == -ENOBUFS)
		side_bad(s, call, where, result);
	return result;
}

/* Until when a call waits that may find nothing. */
uint64_t side_soon(struct side *s)
{
	return mine(s, 6) ? test_now_ns() : test_deadline_ms(mine(s, 4));
}

void side_idle(struct side *s)
{
	struct timespec t = { 0, 1000 + (long)mine(s, s->w->lazy ? 200000 : 20000) };

	nanosleep(&t, NULL);
}

static void on_alarm(int sig)
{
	(void)sig;
}

static void start_signals(struct side *s)
{
	struct sigaction sa = { .sa_handler = on_alarm };
	struct itimerval t = { 0 };

	sigemptyset(&sa.sa_mask);
	sigaction(SIGALRM, &sa, NULL);
	t.it_interval.tv_usec = t.it_value.tv_usec = (int)(300 + mine(s, 5000));
	if (mine(s, 3) == 0)
		setitimer(ITIMER_REAL, &t, NULL);
}

/* --- names ------------------------------------------------------------------------------------ */

struct name *side_name(struct side *s, const struct kvr_request *req, uint32_t kind)
{
	uint64_t h = req->id * 0x9e3779b97f4a7c15ull ^ req->attempt * 0xbf58476d1ce4e5b9ull ^
		     req->space * 77 ^ kind;
	uint32_t i = (uint32_t)(work_rng(&h) % W_NAMES);

	for (;; i = (i + 1) % W_NAMES) {
		struct name *n = &s->names[i];

		if (!n->used) {
			n->used = 1;
			n->req = *req;
			n->kind = kind;
		}
		if (n->kind == kind && n->req.id == req->id && n->req.space == req->space &&
		    n->req.attempt == req->attempt)
			return n;
	}
}

int side_told(struct side *s, uint32_t f)
{
	uint32_t published = s->w->shared->flow[f].published;

	for (uint32_t k = 0; k < published; k++)
		if (s->log->seen[f][k].exists && !s->log->seen[f][k].over)
			return 0;
	return 1;
}

/* --- completions ------------------------------------------------------------------------------ */

/* Leader: which of its operations of that name? The oldest without an end. */
static void attribute(struct side *s, struct told *t, struct name *n)
{
	int end = t->c.stage >= KVR_STAGE_END;
	struct seen *e;

	t->flow = NOBODY;
	CHECK(s, n->begun > n->ended, t->c.request.id);
	t->flow = n->flow[n->ended % 4];
	t->begin = n->begin[n->ended % 4];
	if (!end)
		return;
	e = &s->log->seen[t->flow][t->begin];
	CHECK(s, e->exists && !e->over, t->flow);
	e->over = 1;
}

/* Leader: that key can be found from now on, if nothing is ever evicted. */
static void keep(struct side *s, const struct told *t)
{
	const struct seen *e = &s->log->seen[t->flow][t->begin];
	struct flow flow;

	if (!s->w->keeps || t->c.kind != KVR_KIND_STORE || t->c.stage != KVR_STAGE_WRITTEN)
		return;
	plan_flow(s->w, t->flow, &flow);
	for (uint32_t i = e->more >> 16; i < (e->more >> 16) + (e->more & 0xffff); i++) {
		uint32_t number = plan_number(s->w, &flow, i);

		if (number < W_SHARED_KEYS)
			s->kept[number] = s->generation + 1;
	}
}

static void told(struct side *s, const struct kvr_completion *c, uint64_t at)
{
	struct name *n = side_name(s, &c->request, c->kind);
	struct told *t = &s->log->told[s->log->dones];

	CHECK(s, s->log->dones < W_DONE, s->log->dones);
	CHECK(s, c->tick && c->tick <= at && c->tick > s->tick, c->tick);
	CHECK(s, c->stage != KVR_STAGE_LOST, c->request.id);
	*t = (struct told){ .c = *c };
	if (s->lead) {
		attribute(s, t, n);
		keep(s, t);
	}
	n->ended += c->stage >= KVR_STAGE_END;
	__atomic_store_n(&s->log->dones, s->log->dones + 1, __ATOMIC_RELEASE);
}

/* A tick that told nothing leaves no trace: the count is that of the one before. But how far a rank
 * was without a completion must be seen, too. */
static void log_tick(struct side *s)
{
	struct side_log *l = s->log;
	uint32_t at = l->ticks;

	if (at && l->tick[at - 1].count == l->dones) {
		if (s->lead)
			return;
		at--;
	}
	CHECK(s, at < W_TICKS, at);
	l->tick[at] = (struct tick_log){ s->tick, l->dones };
	__atomic_store_n(&l->ticks, at + 1, __ATOMIC_RELEASE);
}

/* One question, sometimes with too little room: then nothing must be lost. */
static void ask(struct side *s, enum kvr_tick_mode mode, uint64_t tick, uint64_t deadline)
{
	static struct kvr_completion done[8192];
	uint32_t max = mine(s, 6) ? 8192 : 1 + mine(s, 4);
	uint64_t at = 0;
	int n;

	do {
		n = CALL(s, deadline,
			 kvr_connector_check_completed(s->c, mode, tick, until, done, max, &at));
		max = 8192;
	} while (n == -EMSGSIZE);
	s->open = s->lead && n == -ETIMEDOUT;
	if (n == -ETIMEDOUT)
		return;
	CHECK(s, n >= 0, n);
	CHECK(s, mode != KVR_TICK || at == tick, at);
	for (int i = 0; i < n; i++)
		told(s, &done[i], at);
	if (at > s->tick)
		s->tick = at;
	else
		CHECK(s, !n && !s->lead, n);
	log_tick(s);
}

void side_ticks(struct side *s)
{
	uint64_t until = mine(s, 8) ? test_now_ns() : test_deadline_ms(mine(s, 4));
	uint32_t how = mine(s, 8);

	s->log->polls++;
	if (s->lead) {
		uint64_t held =
			kvr_load_relaxed(&kvr_group_leader_page(s->c->group)->quarantined_slots);

		if (held > s->log->quarantine)
			s->log->quarantine = held;
		if (how < 3 && !s->open)
			ask(s, KVR_TICK, s->tick + 1 + mine(s, 3), until);
		else
			ask(s, how < 6 ? KVR_NEXT : KVR_NOW, 0, until);
		return;
	}
	if (how == 0)
		ask(s, KVR_TICK, s->tick + mine(s, 3), until);
	else if (how == 1)
		ask(s, KVR_TICK, mine(s, 2) ? s->tick : 1, until); /* again */
	else if (how == 2)
		ask(s, KVR_NEXT, 0, until);
	else
		ask(s, KVR_NOW, 0, until);
}

/* --- flows ------------------------------------------------------------------------------------ */

typedef int (*step_fn)(struct side *s, struct run *x);

static int step_ends(struct side *s, struct run *x)
{
	int over = load32(&s->w->shared->flow[x->f].over) > x->pass;

	/* All make the call, at the latest now. */
	if (x->flow.aborts && !(s->log->aborted[x->f] >> x->pass & 1)) {
		if (!s->lead && x->flow.aborts == 2 && !over)
			return 0;
		abort_flow(s, x);
		return 1;
	}
	if (s->lead && !side_told(s, x->f)) {
		if (mine(s, 8) == 0)
			side_ticks(s);
		return 0;
	}
	go(s, x, S_PASS);
	return 1;
}

/* A second time, under higher attempts or the same ones. */
static int step_pass(struct side *s, struct run *x)
{
	struct flow_word *word = &s->w->shared->flow[x->f];

	if (s->lead && word->over == x->pass)
		no_more(s, x);
	if (load32(&word->over) <= x->pass)
		return 0;
	if (x->flow.again == AGAIN_NOT || x->pass == 1) {
		go(s, x, S_OVER);
		return 1;
	}
	mark(s, x, 3);
	if (x->flow.again == AGAIN_SAME_NAME && marks(s, x, 3) != (all_ranks(s) | 1u << W_LEAD))
		return 0;
	if (x->flow.again == AGAIN_SAME_NAME)
		x->attempt = 0;
	else
		x->attempt = word->base_attempts[0];
	x->taken = word->base[0];
	x->pass = 1;
	plan_second(&x->flow);
	x->steps = 0;
	x->hit = x->at = x->sub = x->covered = 0;
	x->tries = 0;
	go(s, x,
	   x->flow.kind == FLOW_REQUEST	   ? S_LOOKUP
	   : x->flow.kind == FLOW_PREFETCH ? S_PREFETCH
					   : S_PROPOSE);
	return 1;
}

static const step_fn step_of[S_STATES] = {
	[S_LOOKUP] = step_lookup,
	[S_LOAD_BEGIN] = step_load_begin,
	[S_LAYER] = step_layer,
	[S_LOAD_WAIT] = step_load_wait,
	[S_LOAD_HOLD] = step_load_hold,
	[S_LOAD_DONE] = step_load_done,
	[S_STORE_BEGIN] = step_store_begin,
	[S_STORE_TWICE] = step_store_twice,
	[S_STORE_HOLD] = step_store_hold,
	[S_STORE_COPIED] = step_store_copied,
	[S_STORE_WAIT] = step_store_wait,
	[S_RELEASE] = step_release,
	[S_PREFETCH] = step_prefetch,
	[S_PREFETCH_LOOK] = step_prefetch_look,
	[S_PROPOSE] = step_propose,
	[S_VOTE] = step_vote,
	[S_DECIDED] = step_decided,
	[S_OUTCOME] = step_outcome,
	[S_RESET] = step_reset,
	[S_RESET_WAIT] = step_reset_wait,
	[S_RESET_AFTER] = step_reset_after,
	[S_FLIP] = step_flip,
	[S_ENDS] = step_ends,
	[S_PASS] = step_pass,
};

static void move(struct side *s, struct run *x)
{
	s->log->flow = x->f;
	for (int moved = 1; moved && x->state != S_OVER;) {
		s->log->state = state_name[x->state];
		/* The rank's last chance is the end of its pass. */
		if (x->flow.aborts && x->state < S_ENDS && x->steps >= x->abort_step &&
		    (s->lead || x->flow.aborts == 1 ||
		     load32(&s->w->shared->flow[x->f].over) > x->pass)) {
			abort_flow(s, x);
			continue;
		}
		moved = step_of[x->state](s, x);
		s->log->steps += (uint32_t)moved;
		x->steps += !moved && x->flow.aborts && mine(s, 16) == 0; /* also while it waits */
		if (moved && mine(s, 3) == 0)
			break;
	}
	s->log->run[x->f % W_WINDOW].flow = x->f;
	s->log->run[x->f % W_WINDOW].begins = (uint16_t)x->taken;
	s->log->run[x->f % W_WINDOW].attempt = (uint16_t)x->attempt;
	s->log->run[x->f % W_WINDOW].state = (uint8_t)x->state;
	s->log->run[x->f % W_WINDOW].pass = (uint8_t)x->pass;
	s->log->run[x->f % W_WINDOW].sub = (uint8_t)x->sub;
	s->log->run[x->f % W_WINDOW].aborts = (uint8_t)(x->flow.aborts + 4 * x->flow.again);
	if (test_now_ns() - x->since > PATIENCE_MS * 1000000)
		side_bad(s, "this flow does not move", W_HERE, x->f);
}

static uint32_t slowest(const struct side *s)
{
	uint32_t least = UINT32_MAX;

	for (uint32_t i = 0; i < W_SIDES; i++)
		if (i < s->w->ranks || i == W_LEAD) {
			uint32_t done = load32(&s->w->shared->log[i].done);

			if (done < least)
				least = done;
		}
	return least;
}

static void start(struct side *s, uint32_t f, const struct flow *flow)
{
	static const enum state first[FLOW_KINDS] = { S_LOOKUP, S_PREFETCH, S_PROPOSE, S_RESET,
						      S_LOOKUP };
	struct run *x = &s->run[f % W_WINDOW];

	*x = (struct run){ .f = f, .flow = *flow, .state = first[flow->kind] };
	x->req = flow->req;
	x->since = x->began = test_now_ns();
	x->abort_step = s->lead ? flow->abort_step : mine(s, 12);
	plan_keys(flow, x->keys);
}

/* Flows come in in order, a window ahead of the slowest side; some stand alone. */
static void admit(struct side *s)
{
	uint32_t least = slowest(s);

	while (s->admitted < s->w->flows && s->admitted < least + s->w->window &&
	       s->wall <= least) {
		struct flow flow;

		plan_flow(s->w, s->admitted, &flow);
		if (flow.barrier && least < s->admitted)
			break;
		start(s, s->admitted++, &flow);
		if (flow.barrier)
			s->wall = s->admitted;
	}
}

static void finished(struct side *s)
{
	uint32_t done = s->log->done;

	while (done < s->admitted && s->run[done % W_WINDOW].state == S_OVER) {
		uint64_t ns = test_now_ns() - s->run[done % W_WINDOW].began;

		if (ns > s->log->longest_flow_ns)
			s->log->longest_flow_ns = ns;
		done++;
	}
	__atomic_store_n(&s->log->done, done, __ATOMIC_RELEASE);
}

/* Everything that is in hand moves as far as it can, in an order of this side's own. */
static int turn(struct side *s)
{
	uint32_t before = s->log->steps, done, n, from;

	admit(s);
	done = s->log->done;
	n = s->admitted - done;
	from = n && mine(s, 3) == 0 ? mine(s, n) : 0;
	for (uint32_t i = 0; i < n; i++) {
		struct run *x = &s->run[(done + (from + i) % n) % W_WINDOW];

		if (x->state != S_OVER && mine(s, 8) && (!s->stuck || s->stuck == x))
			move(s, x);
	}
	finished(s);
	if (mine(s, 5) == 0)
		side_ticks(s);
	if (s->w->lazy && mine(s, 400) == 0)
		test_sleep_ms(mine(s, 12));
	return s->log->steps != before;
}

/* --- the end ---------------------------------------------------------------------------------- */

/* Slots of the pool that are neither free nor can be evicted. */
static uint64_t stuck_slots(struct side *s)
{
	struct kvr_engine *e = s->c->engine;
	uint64_t slots;

	pthread_mutex_lock(&e->lock);
	CHECK(s, !e->pin_count, e->pin_count);
	CHECK(s, !e->open_count, e->open_count);
	slots = e->tier.free_slot_count;
	for (uint32_t i = 0; i < e->tier.capacity; i++)
		slots += e->tier.blocks[i].used && e->tier.blocks[i].in_host;
	pthread_mutex_unlock(&e->lock);
	return e->pool.slots - slots;
}

static int all_told(const struct side *s)
{
	for (uint32_t i = 0; i < W_NAMES; i++)
		if (s->names[i].begun != s->names[i].ended)
			return 0;
	return 1;
}

/* Nothing is left of anything: nothing in flight, in quarantine, pinned. */
static void lead_end(struct side *s, uint32_t n)
{
	const struct kvr_leader_page *page = kvr_group_leader_page(s->c->group);
	uint64_t deadline = test_deadline_ms(PATIENCE_MS);
	struct kvr_stats st;

	s->log->state = "the end";
	do {
		side_ticks(s);
		for (uint32_t i = 1; i < n; i++)
			ask(&s[i], KVR_NOW, 0, 0);
		CHECK(s, test_now_ns() < deadline, kvr_load_relaxed(&page->quarantined_slots));
	} while (!all_told(s) || kvr_load_acquire(&page->quarantined_ops));
	while (stuck_slots(s)) {
		CHECK(s, test_now_ns() < deadline, stuck_slots(s));
		side_idle(s);
	}
	CHECK(s, !kvr_load_relaxed(&page->quarantined_slots), 0);
	CHECK(s, !kvr_connector_stats(s->c, &st), 0);
	CHECK(s, st.ops_begun == st.ops_ended, st.ops_begun - st.ops_ended);
	__atomic_store_n(&s->w->shared->last_tick, s->tick, __ATOMIC_RELEASE);
}

static void rank_end(struct side *s)
{
	const struct kvr_rank_page *page = kvr_group_own_page(s->c->group);

	while (s->tick < s->w->shared->last_tick)
		ask(s, KVR_TICK, s->w->shared->last_tick, test_deadline_ms(PATIENCE_MS));
	for (uint32_t i = 0; i < W_NAMES; i++)
		CHECK(s, s->names[i].ended >= s->names[i].begun, s->names[i].req.id);
	s->log->late = (uint32_t)page->late;
	s->log->duplicate = (uint32_t)page->duplicate;
	s->log->foreign = (uint32_t)page->foreign;
	s->log->drift = page->drift;
}

static void shut_down(struct side *s)
{
	uint64_t deadline = test_deadline_ms(PATIENCE_MS);

	s->log->state = "shutdown";
	CHECK(s, !CALL(s, 0, kvr_connector_shutdown(s->c, deadline)), 0);
	s->log->finished = 1;
}

static void side_open(struct side *s, const struct world *w, uint32_t index, int shares)
{
	struct cluster *cl = w->cl;
	uint64_t deadline = test_deadline_ms(PATIENCE_MS);
	int r;

	s->w = w;
	s->index = index;
	s->lead = index == W_LEAD;
	s->rank = s->lead ? UINT32_MAX : index;
	s->shares = shares;
	s->log = &w->shared->log[index];
	s->mine = w->seed ^ (index + 1) * 0x9e3779b97f4a7c15ull;
	s->log->state = s->log->doing = "opening";
	if (mine(s, 2))
		start_signals(s);
	do
		r = s->lead ? kvr_connector_lead(cl->name, &cl->opts, &s->c)
			    : kvr_connector_join(cl->name, s->rank, &cl->opts, deadline, &s->c);
	while (r == -EINTR);
	CHECK(s, !r, r);
	start_signals(s);
}

/* The leader's side ends first: it says which tick is the last one. */
static void end_all(struct side *first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (first[i].lead)
			lead_end(&first[i], n);
		/* What a rank did not begin before its abort, it hears of so. */
		while (!__atomic_load_n(&first[i].w->shared->last_tick, __ATOMIC_ACQUIRE)) {
			ask(&first[i], KVR_NOW, 0, 0);
			side_idle(&first[i]);
		}
		if (!first[i].lead)
			rank_end(&first[i]);
	}
	for (uint32_t i = 0; i < n; i++)
		shut_down(&first[i]);
	while (n--)
		kvr_connector_close(first[n].c);
}

/* index W_LEAD may bring rank 0 along. */
void side_main(const struct world *w, uint32_t index)
{
	uint32_t n = index == W_LEAD && w->joint ? 2 : 1, left = n;

	side_open(&sides[0], w, index, n == 2);
	if (n == 2)
		side_open(&sides[1], w, 0, 1);
	while (left) {
		int moved = 0;

		left = 0;
		for (uint32_t i = 0; i < n; i++) {
			moved |= turn(&sides[i]);
			left += sides[i].log->done < w->flows;
		}
		if (!moved && mine(&sides[0], 2))
			side_idle(&sides[0]);
		else if (!moved)
			side_ticks(&sides[mine(&sides[0], n)]);
	}
	/* Others may still need this side's ticks. */
	while (slowest(&sides[0]) < w->flows) {
		for (uint32_t i = 0; i < n; i++)
			side_ticks(&sides[i]);
		side_idle(&sides[0]);
	}
	end_all(sides, n);
	_exit(0);
}
