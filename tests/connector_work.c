/* SPDX-License-Identifier: Apache-2.0 */
/* See connector_work.h. */
#include "connector_work.h"

#include <sys/time.h>

#define IDS 512u
#define ATTEMPTS 16u
#define WANTS 3u
#define LENGTH_MAX 32u
#define HELD_MAX 8u
#define TICK_STEP \
	8u /* between two ticks that all ask for; the leader makes some of those between */
#define DONE_MAX 4096u
#define NOBODY (UINT32_MAX - 1) /* not the leader's rank */

/* What this process knows of one operation: told by begin, completions and waits. */
struct known {
	uint32_t begun, ends, reached, end;
	int32_t status;
	int32_t expect; /* status that the end must have; 1: any */
	int32_t waited; /* what wait_store said; 1: not asked */
	uint32_t waited_for;
	uint16_t key[LENGTH_MAX]; /* numbers of the keys that are written at the end */
	uint32_t keys;
};

struct want {
	struct kvr_request req;
	uint32_t family, other, branch, n; /* keys [0, branch) of one family, the rest of another */
	uint32_t from;			   /* keys of the families that come before */
	uint32_t load, store;		   /* blocks to ask for; 0: none */
	uint32_t gives_up, fails, skips;   /* the rank that does, or NOBODY */
	uint32_t wait;			   /* stage, or 0 */
	int twice, early, late, again;
	/* answers */
	uint32_t hit, begun;
	struct kvr_key keys[LENGTH_MAX];
};

struct part {
	struct want *want;
	struct kvr_request req;
	uint32_t at;
	int count;
	struct kvr_block blocks[LENGTH_MAX];
};

struct worker {
	const struct work *work;
	struct work_log *log;
	struct kvr_connector *c;
	uint32_t rank;
	int lead;
	uint64_t mine; /* random numbers of this process */
	uint64_t all;  /* the same in all processes; drawn at the start of a step alone */
	uint64_t tick; /* the next one that all ask for is this + TICK_STEP */
	uint64_t reached, count, hash, said;
	uint64_t patience; /* until then -ETIMEDOUT is an answer */
	struct kvr_request held[HELD_MAX];
	uint32_t nheld;
	struct want want[WANTS];
	struct part part[WANTS * ATTEMPTS];
	uint32_t wants, parts;
	int hold; /* begin everything, then copy */
};

static struct worker worker;
static struct known known[IDS * ATTEMPTS * 2];

static uint32_t all(struct worker *w, uint32_t n)
{
	return (uint32_t)(work_rng(&w->all) % n);
}

static uint32_t mine(struct worker *w, uint32_t n)
{
	return (uint32_t)(work_rng(&w->mine) % n);
}

/* --- ends ------------------------------------------------------------------------------------- */

static void bad(struct worker *w, const char *what, int line, long long value)
	__attribute__((noreturn));
static void bad(struct worker *w, const char *what, int line, long long value)
{
	fprintf(stderr, "%s %d, step %u, %s (connector_work.c:%d): %s: %lld; explain: %s\n",
		w->lead ? "leader" : "rank", (int)w->rank, w->log->step, w->log->doing, line, what,
		value, kvr_explain());
	_exit(1);
}

#define CHECK(w, cond, value)                                                     \
	do {                                                                      \
		if (!(cond))                                                      \
			bad(w, "not true: " #cond, __LINE__, (long long)(value)); \
	} while (0)

static uint64_t ask(struct worker *w, enum kvr_tick_mode mode, uint64_t tick);
/* A result that is not the call's own: the epoch's end, in a deadly round. What was begun ends. */
static int through(struct worker *w, const char *call, int line, int result)
{
	if (result != -EOWNERDEAD && result != -ESTALE && result != -ESHUTDOWN &&
	    result != -ETIMEDOUT)
		return result;
	if (result == -ETIMEDOUT && test_now_ns() < w->patience)
		return result;
	if (!w->work->deadly || result == -ETIMEDOUT)
		bad(w, call, line, result);
	if (!w->log->end) {
		w->log->end_ns = test_now_ns();
		w->log->end = result;
		snprintf(w->log->end_text, sizeof w->log->end_text, "%s", kvr_explain());
		for (;;) /* until it leads here again */
			ask(w, w->lead ? KVR_NEXT : KVR_NOW, 0);
	}
	for (uint32_t i = 0; i < IDS * ATTEMPTS * 2; i++)
		CHECK(w, !known[i].begun || known[i].ends == 1, known[i].ends);
	kvr_connector_close(w->c);
	_exit(0);
}

/* Calls again after a signal, with the same arguments: what is drawn is drawn once, as `until`. */
#define CALL(w, deadline, call)                      \
	({                                           \
		uint64_t until = (deadline);         \
		int call_r;                          \
                                                     \
		(void)until;                         \
		(w)->log->doing = #call;             \
		while ((call_r = (call)) == -EINTR)  \
			(w)->log->interrupts++;      \
		through(w, #call, __LINE__, call_r); \
	})

/* What all processes must be told alike; within a step in any order. */
static void say(struct worker *w, const struct kvr_request *req, int32_t answer)
{
	uint64_t word = req->id << 40 ^ (uint64_t)req->attempt << 32 ^ (uint32_t)answer;

	w->said += work_rng(&word);
}

static void said(struct worker *w)
{
	CHECK(w, w->log->answers < WORK_ANSWERS, w->log->answers);
	w->log->answer[w->log->answers] = w->said;
	__atomic_store_n(&w->log->answers, w->log->answers + 1, __ATOMIC_RELEASE);
	w->said = 0;
}

/* --- what must not matter --------------------------------------------------------------------- */

static void on_alarm(int sig)
{
	(void)sig;
}

static void start_signals(struct worker *w)
{
	struct sigaction sa = { .sa_handler = on_alarm };
	struct itimerval t = { 0 };

	sigemptyset(&sa.sa_mask);
	sigaction(SIGALRM, &sa, NULL);
	t.it_interval.tv_usec = t.it_value.tv_usec = (int)(300 + mine(w, 5000));
	if (mine(w, 2))
		setitimer(ITIMER_REAL, &t, NULL);
}

static void dawdle(struct worker *w)
{
	struct timespec t = { 0, (long)mine(w, 3000000) };

	if (mine(w, 12) == 0)
		nanosleep(&t, NULL);
}

/* Deadlines of begins: the leader's decides; the ranks wait for its answer. A leader that finds no
 * room for the answer in a ring has told nobody, and calls again. */
static uint64_t soon(struct worker *w)
{
	if (!w->lead)
		return SOON;
	if (!w->patience)
		w->patience = SOON;
	return test_deadline_ms(mine(w, 30));
}

/* --- keys ------------------------------------------------------------------------------------- */

static uint32_t family_at(const struct want *t, uint32_t i)
{
	return i < t->branch ? t->family : t->other;
}

static uint16_t key_number(const struct worker *w, const struct want *t, uint32_t i)
{
	const struct work *k = w->work;

	return (uint16_t)((t->req.space * k->families + family_at(t, i)) * k->length + t->from + i);
}

/* The bytes depend on the namespace, too: the key alone must not be enough to find a block. */
static struct kvr_key content(const struct worker *w, const struct want *t, uint32_t i)
{
	return cluster_key(1000, key_number(w, t, i));
}

static void make_keys(struct want *t)
{
	for (uint32_t i = 0; i < t->n; i++)
		t->keys[i] = cluster_key(family_at(t, i), t->from + i);
}

/* --- operations and completions --------------------------------------------------------------- */

static struct known *known_of(struct worker *w, const struct kvr_request *req, uint32_t kind)
{
	CHECK(w, req->id < IDS && req->attempt < ATTEMPTS && kind >= 1 && kind <= 2, req->id);
	return &known[(req->id * ATTEMPTS + req->attempt) * 2 + kind - 1];
}

/* A kill may come right after: what is marked here must have been true already. */
static void mark_written(struct worker *w, const struct known *k)
{
	for (uint32_t i = 0; i < k->keys; i++)
		__atomic_store_n(&w->work->shared->written[k->key[i]], 1, __ATOMIC_RELEASE);
}

static void begun(struct worker *w, const struct kvr_request *req, uint32_t kind, int expect)
{
	struct known *k = known_of(w, req, kind);

	CHECK(w, !k->begun, req->id);
	k->begun = 1;
	k->expect = expect;
	k->waited = 1;
}

/* Beyond tick `at` the leader alone is told, and no tick tells what was lost. */
static void completed(struct worker *w, const struct kvr_completion *d, uint64_t at)
{
	int over = d->stage == KVR_STAGE_LOST || (w->lead && d->tick > at);
	struct known *k = known_of(w, &d->request, d->kind);
	uint64_t word[5] = { d->request.id << 32 | d->request.attempt, d->request.space,
			     (uint64_t)d->kind << 32 | d->stage,
			     (uint64_t)d->blocks << 32 | (uint32_t)d->status, d->tick };

	CHECK(w, over ? w->work->deadly : d->tick && d->tick <= at, d->tick);
	for (uint32_t i = 0; i < 5 && !over; i++)
		w->hash = (w->hash ^ word[i]) * 0x9e3779b97f4a7c15ull + (w->hash >> 29);
	w->count += !over;
	CHECK(w, !k->ends && d->stage > k->reached, d->stage);
	if (d->stage >= KVR_STAGE_END) {
		k->ends++;
		k->end = d->stage;
		k->status = d->status;
	}
	if (d->stage < KVR_STAGE_FAILED)
		k->reached = d->stage;
	if (d->stage == KVR_STAGE_WRITTEN)
		mark_written(w, k);
}

static void reached(struct worker *w, uint64_t tick)
{
	struct work_log *l = w->log;

	if (tick > w->reached)
		w->reached = tick;
	CHECK(w, l->ticks < WORK_TICKS, tick);
	l->tick[l->ticks] = (struct work_tick){ w->reached, w->count, w->hash };
	__atomic_store_n(&l->ticks, l->ticks + 1, __ATOMIC_RELEASE);
}

/* One question, sometimes with too little room: then nothing must be lost. */
static uint64_t ask(struct worker *w, enum kvr_tick_mode mode, uint64_t tick)
{
	static struct kvr_completion done[DONE_MAX];
	uint32_t max = mine(w, 4) ? DONE_MAX : 1 + mine(w, 4);
	uint64_t at = 0;
	int n = CALL(w, SOON,
		     kvr_connector_check_completed(w->c, mode, tick, until, done, max, &at));

	if (n == -EMSGSIZE && !w->lead)
		n = CALL(w, SOON,
			 kvr_connector_check_completed(w->c, mode, tick, until, done, DONE_MAX,
						       &at));
	CHECK(w, n >= 0, n);
	for (int i = 0; i < n; i++)
		completed(w, &done[i], at);
	reached(w, at);
	return at;
}

static void between(struct worker *w)
{
	dawdle(w);
	if (mine(w, 6))
		return;
	if (!w->lead)
		ask(w, KVR_NOW, 0);
	else if (w->reached + 2 < w->tick + TICK_STEP)
		ask(w, mine(w, 2) ? KVR_NEXT : KVR_NOW, 0);
}

/* The tick that ends a step. */
static void tick(struct worker *w)
{
	uint32_t how = mine(w, 10);

	said(w);
	w->tick += TICK_STEP;
	if (w->lead) {
		ask(w, KVR_TICK, w->tick);
	} else if (how == 0) {
		return;
	} else if (how == 1) {
		ask(w, KVR_NOW, 0);
	} else if (how == 2) {
		while (w->reached < w->tick) /* NOW may have come further */
			ask(w, KVR_NEXT, 0);
	} else {
		ask(w, KVR_TICK, w->tick);
		if (how == 3)
			ask(w, KVR_TICK, w->tick);
	}
}

/* --- the plan of a step ----------------------------------------------------------------------- */

static uint32_t some_rank(struct worker *w, uint32_t n, uint32_t one_in)
{
	uint32_t r = all(w, n);

	return all(w, one_in) ? NOBODY : r;
}

static void plan_want(struct worker *w, struct want *t, uint64_t id)
{
	const struct work *k = w->work;
	static const uint32_t stages[] = { 0, KVR_STAGE_COPIED, KVR_STAGE_HOST, KVR_STAGE_WRITTEN };

	*t = (struct want){ .req = { .id = id, .space = all(w, k->spaces) } };
	t->n = 1 + all(w, k->length);
	t->family = all(w, k->families);
	t->other = all(w, 3) ? t->family : all(w, k->families);
	t->branch = all(w, t->n + 1);
	t->load = all(w, 4) ? 1 + all(w, t->n + 2) : 0;
	t->store = all(w, 4) ? 1 + all(w, t->n) : 0;
	t->gives_up = some_rank(w, k->cl->opts.ranks, 12);
	t->fails = some_rank(w, k->writers, 8);
	t->skips = some_rank(w, k->cl->opts.ranks, 16);
	t->wait = stages[all(w, 4)];
	t->twice = all(w, 8) == 0;
	t->early = all(w, 5) == 0;
	t->late = all(w, 4) == 0;
	t->again = all(w, 6) == 0;
	if (t->skips != NOBODY)
		t->load = 0; /* that rank never learns of the hit */
	make_keys(t);
}

static void plan(struct worker *w, uint32_t step)
{
	w->all = w->work->seed + step * 0x2545f4914f6cdd1dull;
	w->wants = 1 + all(w, WANTS);
	w->hold = (int)all(w, 2);
	w->parts = 0;
	for (uint32_t i = 0; i < w->wants; i++)
		plan_want(w, &w->want[i], step * WANTS + i);
	/* The same keys by two requests in flight. */
	if (w->wants > 1 && all(w, 3) == 0) {
		struct want *a = &w->want[0], *b = &w->want[1];

		b->req.space = a->req.space;
		b->family = a->family;
		b->other = a->other;
		b->branch = a->branch;
		make_keys(b);
	}
}

/* --- lookup and load -------------------------------------------------------------------------- */

static void lookup(struct worker *w, struct want *t)
{
	struct kvr_hit hit = { 0 };
	int r;

	if (t->skips == w->rank)
		return;
	for (int i = 0; i <= t->twice; i++) {
		r = CALL(w, SOON, kvr_connector_lookup(w->c, &t->req, t->keys, t->n, until, &hit));
		CHECK(w, !r, r);
		CHECK(w, hit.blocks <= t->n && hit.host + hit.nvme == hit.blocks, hit.blocks);
		t->hit = hit.blocks;
		if (t->skips == NOBODY)
			say(w, &t->req, (int32_t)hit.blocks);
	}
}

static void load_begin(struct worker *w, struct want *t)
{
	int r;

	if (!t->load || !t->hit)
		return;
	do
		r = CALL(w, soon(w), kvr_connector_load_begin(w->c, &t->req, t->load, until));
	while (r == -ETIMEDOUT);
	w->patience = 0;
	say(w, &t->req, r);
	if (r == -EAGAIN) {
		w->log->refused++;
		return;
	}
	CHECK(w, r > 0 && (uint32_t)r <= t->load && (uint32_t)r <= t->hit, r);
	t->begun = (uint32_t)r;
	begun(w, &t->req, 2, t->gives_up == NOBODY ? 0 : -ECANCELED);
	if (t->early)
		CALL(w, 0, kvr_connector_release(w->c, &t->req));
}

static void load_done(struct worker *w, struct want *t)
{
	dawdle(w);
	CHECK(w, !CALL(w, 0, kvr_connector_load_done(w->c, &t->req)), 0);
	if (mine(w, 8) == 0)
		CHECK(w, !CALL(w, 0, kvr_connector_load_done(w->c, &t->req)), 1);
	t->begun = 0;
}

/* 1: this load is over here. 0: the deadline passed. */
static int load_wait(struct worker *w, struct want *t, uint64_t deadline)
{
	struct kvr_block blocks[LENGTH_MAX];
	int good;

	if (t->gives_up != w->rank) {
		good = CALL(w, deadline,
			    kvr_connector_load_wait(w->c, &t->req, t->keys, until, blocks,
						    LENGTH_MAX));
		if (good == -ETIMEDOUT && test_now_ns() < w->patience)
			return 0;
		/* Nothing here damages bytes: all are good, unless a rank gave up. */
		CHECK(w, good == (t->gives_up == NOBODY ? (int)t->begun : 0), good);
		for (int i = 0; i < good && !w->lead; i++) {
			struct kvr_key key = content(w, t, (uint32_t)i);

			w->log->wrong += cluster_wrong(w->c, &key, &blocks[i]);
		}
		w->log->loaded += (uint32_t)good;
	}
	load_done(w, t);
	return 1;
}

static void load_end(struct worker *w, struct want *t)
{
	w->patience = 0;
	if (t->begun)
		load_wait(w, t, SOON);
}

/* A load ends when the last rank waits for it. Whoever waits in an order of its own must not wait
 * for long. */
static void loads_in_any_order(struct worker *w)
{
	uint32_t i = mine(w, w->wants), left = 0;

	w->patience = SOON;
	for (uint32_t k = 0; k < w->wants; k++)
		left += w->want[k].begun > 0;
	for (; left; i = (i + 1) % w->wants)
		if (w->want[i].begun)
			left -= (uint32_t)load_wait(w, &w->want[i], test_deadline_ms(mine(w, 4)));
	w->patience = 0;
}

static void release_held(struct worker *w, uint32_t keep)
{
	while (w->nheld > keep) {
		CALL(w, 0, kvr_connector_release(w->c, &w->held[0]));
		memmove(&w->held[0], &w->held[1], --w->nheld * sizeof w->held[0]);
	}
}

static void release(struct worker *w, struct want *t)
{
	if (t->late) {
		release_held(w, HELD_MAX - 1);
		w->held[w->nheld++] = t->req;
		return;
	}
	CALL(w, 0, kvr_connector_release(w->c, &t->req));
	if (mine(w, 8) == 0)
		CALL(w, 0, kvr_connector_release(w->c, &t->req));
}

/* --- store ------------------------------------------------------------------------------------ */

static int store_call(struct worker *w, struct part *p, uint32_t n, uint32_t *ret_covered)
{
	int r;

	do
		r = CALL(w, soon(w),
			 kvr_connector_store_begin(w->c, &p->req, p->want->keys + p->at, n, until,
						   p->blocks, LENGTH_MAX, ret_covered));
	while (r == -ETIMEDOUT);
	w->patience = 0;
	say(w, &p->req, r);
	return r;
}

static void store_begun(struct worker *w, struct part *p, uint32_t covered)
{
	struct want *t = p->want;
	struct known *k = known_of(w, &p->req, 1);
	int last = -1, fails = t->fails != NOBODY && p->count;

	/* Joined blocks share the fate of another store, which may fail; and a store may be full of
	 * pinned blocks. */
	begun(w, &p->req, 1,
	      fails						? -EIO
	      : (uint32_t)p->count == covered && w->work->keeps ? 0
								: 1);
	for (uint32_t i = 0; i < covered && !fails; i++)
		k->key[k->keys++] = key_number(w, t, p->at + i);
	if (k->end == KVR_STAGE_WRITTEN)
		mark_written(w, k); /* the completion was there first */
	for (int i = 0; i < p->count; i++) {
		CHECK(w, (int)p->blocks[i].index > last && p->blocks[i].index < covered, i);
		last = (int)p->blocks[i].index;
	}
	w->log->stored += (uint32_t)p->count;
}

/* The next part of a store. Returns how many keys it covered; 0: no room, twice. */
static uint32_t store_part(struct worker *w, struct want *t, uint32_t at, uint32_t *attempt)
{
	struct part *p = &w->part[w->parts];
	uint32_t covered = 0, unused = 0;

	for (int tries = 0; tries < 2 && *attempt < ATTEMPTS; tries++) {
		*p = (struct part){ .want = t, .req = t->req, .at = at };
		p->req.attempt = (*attempt)++;
		p->count = store_call(w, p, t->store - at, &covered);
		if (p->count >= 0)
			break;
		CHECK(w, p->count == -EAGAIN, p->count);
		w->log->refused++;
		release_held(w, 0);
	}
	if (p->count < 0 || !covered)
		return 0;
	w->parts++;
	say(w, &p->req, (int32_t)covered);
	store_begun(w, p, covered);
	if (t->again && p->count) {
		struct part same = *p;

		CHECK(w, store_call(w, &same, t->store - at, &unused) == -EEXIST, same.count);
	}
	return covered;
}

static void store_copied(struct worker *w, struct part *p)
{
	for (int i = 0; i < p->count && !w->lead; i++) {
		struct kvr_key key = content(w, p->want, p->at + p->blocks[i].index);

		cluster_fill(w->c, &key, &p->blocks[i]);
	}
	dawdle(w);
	CHECK(w,
	      !CALL(w, 0,
		    kvr_connector_store_copied(w->c, &p->req,
					       p->want->fails == w->rank ? -EIO : 0)),
	      p->req.id);
}

static void store(struct worker *w, struct want *t)
{
	uint32_t attempt = 0;

	for (uint32_t at = 0, covered; at < t->store; at += covered) {
		covered = store_part(w, t, at, &attempt);
		if (!covered)
			return;
		if (!w->hold)
			store_copied(w, &w->part[w->parts - 1]);
	}
}

static void store_wait(struct worker *w, struct part *p)
{
	struct known *k = known_of(w, &p->req, 1);
	uint32_t stage = p->want->wait;
	int r;

	if (!stage)
		return;
	r = CALL(w, SOON, kvr_connector_wait_store(w->c, &p->req, (enum kvr_stage)stage, until));
	/* What ended is forgotten when its place is needed; places are at least 16. */
	if (r == -ENOENT && (w->lead ? k->ends : w->parts > 8))
		return;
	k->waited = r;
	k->waited_for = stage;
	if (!r && stage == KVR_STAGE_WRITTEN && w->work->cl->dir[0])
		mark_written(w, k);
}

/* --- a step ----------------------------------------------------------------------------------- */

/* Everything is begun before anything is copied; the ranks take the answers in any order. */
static void stores_at_once(struct worker *w)
{
	uint32_t from = w->lead ? 0 : mine(w, w->wants);

	for (uint32_t i = 0; i < w->wants; i++)
		store(w, &w->want[(from + i) % w->wants]);
	between(w);
	from = w->parts ? mine(w, w->parts) : 0;
	for (uint32_t i = 0; i < w->parts; i++)
		store_copied(w, &w->part[(from + i) % w->parts]);
}

static void step(struct worker *w, uint32_t number)
{
	uint32_t from;

	w->log->step = number;
	plan(w, number);
	from = w->lead ? 0 : mine(w, w->wants);
	for (uint32_t i = 0; i < w->wants; i++)
		lookup(w, &w->want[(from + i) % w->wants]);
	between(w);
	for (uint32_t i = 0; i < w->wants; i++) {
		load_begin(w, &w->want[i]);
		if (!w->hold)
			load_end(w, &w->want[i]);
	}
	if (w->hold)
		loads_in_any_order(w);
	between(w);
	if (w->hold)
		stores_at_once(w);
	for (uint32_t i = 0; !w->hold && i < w->wants; i++)
		store(w, &w->want[i]);
	between(w);
	for (uint32_t i = 0; i < w->parts; i++)
		store_wait(w, &w->part[i]);
	for (uint32_t i = 0; i < w->wants; i++)
		release(w, &w->want[i]);
	if (number % 3 == 2)
		release_held(w, 1);
	tick(w);
}

/* --- a restart -------------------------------------------------------------------------------- */

/* 1: tried; 0: the table was full of loads that ended but were not told yet. */
static int find(struct worker *w, struct want *t, uint32_t number, int sure)
{
	int r = 1;

	lookup(w, t);
	CHECK(w, t->hit || !sure, number);
	if (t->hit) {
		load_begin(w, t);
		r = t->begun > 0;
		load_end(w, t);
		t->hit = 0;
	}
	CALL(w, 0, kvr_connector_release(w->c, &t->req));
	return r;
}

/* What was told to be written is there, and what is there is right. */
static void recover(struct worker *w)
{
	const struct work *k = w->work;
	uint32_t number = 0;

	for (uint32_t space = 0; space < k->spaces; space++)
		for (uint32_t i = 0; i < k->families * k->length; i++, number++) {
			struct want t = { .req = { .id = 256 + number / 2, .space = space },
					  .other = i / k->length,
					  .from = i % k->length,
					  .gives_up = NOBODY,
					  .skips = NOBODY,
					  .load = 1,
					  .n = 1 };

			t.req.attempt = number % 2 * (ATTEMPTS / 2);
			make_keys(&t);
			while (!find(w, &t, number, k->sure[number])) {
				tick(w);
				test_sleep_ms(w->lead ? 2 : 0);
				CHECK(w, ++t.req.attempt % (ATTEMPTS / 2), number);
			}
			if (number % 4 == 3)
				tick(w);
		}
}

/* --- all of it -------------------------------------------------------------------------------- */

/* What this process was told of each operation is consistent, and each ended once. */
static void judge(struct worker *w, int complete)
{
	for (uint32_t i = 0; i < IDS * ATTEMPTS * 2; i++) {
		const struct known *k = &known[i];

		w->log->step = i;
		CHECK(w, k->begun || (!k->reached && !k->ends), k->end);
		if (!k->begun || (!k->ends && !complete))
			continue;
		CHECK(w, k->ends == 1, k->ends);
		CHECK(w, (k->end == KVR_STAGE_FAILED) == (k->status != 0), k->end);
		CHECK(w, k->expect == 1 || k->expect == k->status, k->status);
		if (k->waited == 0)
			CHECK(w, k->reached >= k->waited_for, k->reached);
		else if (k->waited < 0)
			CHECK(w, k->waited == k->status && k->reached < k->waited_for, k->waited);
	}
}

static int all_ended(void)
{
	for (uint32_t i = 0; i < IDS * ATTEMPTS * 2; i++)
		if (known[i].begun && !known[i].ends)
			return 0;
	return 1;
}

static void end(struct worker *w)
{
	int patient = w->lead && (w->work->deadly || mine(w, 2)); /* the last tick tells ranks */
	uint64_t deadline = SOON;

	release_held(w, 0);
	while (patient && !all_ended()) {
		ask(w, KVR_NEXT, 0);
		CHECK(w, test_now_ns() < deadline, 0);
		test_sleep_ms(1);
	}
	CHECK(w, !CALL(w, SOON, kvr_connector_shutdown(w->c, until)), 0);
	if (!w->lead)
		ask(w, KVR_NOW, 0);
	w->log->doing = "the verdict";
	judge(w, !w->lead || patient);
	if (w->lead) {
		struct kvr_stats s;

		CHECK(w, !kvr_connector_stats(w->c, &s), 0);
		CHECK(w, s.ops_begun == s.ops_ended && !s.blocks_bad, s.ops_begun - s.ops_ended);
	}
	CHECK(w, !w->log->wrong, w->log->wrong);
}

static void open_it(struct worker *w)
{
	struct cluster *cl = w->work->cl;
	uint64_t deadline = SOON;
	int r;

	w->log->doing = "opening";
	do
		r = w->lead ? kvr_connector_lead(cl->name, &cl->opts, &w->c)
			    : kvr_connector_join(cl->name, w->rank, &cl->opts, deadline, &w->c);
	while (r == -EINTR);
	CHECK(w, !r, r);
	__atomic_add_fetch(&w->work->shared->opened, 1, __ATOMIC_ACQ_REL);
}

void work_run(const struct work *work, uint32_t rank)
{
	struct worker *w = &worker;

	w->work = work;
	w->rank = rank;
	w->lead = CLUSTER_LEADER(rank);
	w->log = &work->shared->log[w->lead ? WORK_LEADER : rank];
	w->mine = work->seed ^ (rank + 1) * 0x9e3779b97f4a7c15ull;
	if (mine(w, 2))
		start_signals(w);
	open_it(w);
	start_signals(w);
	if (work->recover)
		recover(w);
	for (uint32_t i = 0; i < work->steps; i++)
		step(w, i);
	end(w);
	kvr_connector_close(w->c);
	_exit(0);
}
