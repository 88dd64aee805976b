/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A leader and ranks of a small connector without a store, for the two points of a tick. Each step
 * is one store of one block and one tick; a rank sums up the completions it was told. After the
 * same tick all were told the same, and nobody knows of a tick that the leader did not finish.
 */
#include "stress_group_actors.h"

#define BLOCK 4096u
#define BLOCKS 8u

static struct kvr_shape shape;

static struct kvr_connector_opts options(const struct world *w, uint32_t leader)
{
	struct kvr_connector_opts o = { .size = sizeof o, .dir = w->dir[0] ? w->dir : NULL };

	if (!leader)
		return o;
	if (kvr_shape_split(w->ranks, 1, w->ranks * BLOCK, &shape))
		actor_wrong("%s", kvr_explain());
	o.ranks = w->ranks;
	o.ring_bytes = 4096;
	o.ops = 64;
	o.events = 16;
	o.bulk_bytes = 4096;
	o.takeover = self_->takeover;
	o.shape = &shape;
	o.host_bytes = 4096 + BLOCKS * (w->ranks * BLOCK + 4096ull);
	return o;
}

static struct kvr_request request(uint64_t step)
{
	return (struct kvr_request){ .id = step };
}

static struct kvr_key key(const struct world *w, uint64_t step)
{
	struct kvr_key k;

	for (uint32_t i = 0; i < 4; i++) {
		uint64_t x = world_mix(w->seed + 4 * step + i);

		memcpy(k.bytes + 8 * i, &x, 8);
	}
	return k;
}

/* 0, or why the group is over: "calling again goes on". */
static int again(int rc, uint64_t deadline, uint32_t stops)
{
	if (rc != -ETIMEDOUT && rc != -EAGAIN)
		return rc;
	if (rc == -ETIMEDOUT)
		actor_late("a call of the connector", deadline, stops);
	return actor_order() == ORDER_RUN && !actor_over() ? 0 : -ECANCELED;
}

/* One store and one tick. -EAGAIN: nothing was published, do it again. */
static int tick_step(struct kvr_connector *c, struct reign *reign, uint64_t step)
{
	struct kvr_request req = request(step);
	struct kvr_key k = key(world_, step);
	struct kvr_completion done[64];
	struct kvr_block block;
	uint32_t covered;
	uint64_t tick = 0;
	int rc;

	self_->doing = "the leader's store";
	rc = kvr_connector_store_begin(c, &req, &k, 1, kvr_deadline(20), &block, 1, &covered);
	if (rc == -ETIMEDOUT)
		return -EAGAIN;
	/* No room: the ranks hear of it, too, and store nothing in this step. */
	if (rc < 0 && rc != -EAGAIN)
		return rc;
	self_->doing = "the leader's tick";
	do
		rc = kvr_connector_check_completed(c, KVR_NEXT, 0, kvr_deadline(20), done,
						   KVR_ARRAY_LEN(done), &tick);
	while ((rc == -ETIMEDOUT || rc == -EAGAIN) && actor_order() == ORDER_RUN);
	if (rc < 0)
		return rc;
	kvr_store_release(&reign->ticks, tick);
	kvr_store_release(&reign->published[0], step);
	return 0;
}

void actor_ticker(void)
{
	struct actor *self = self_;
	struct world *w = world_;
	uint32_t index = kvr_add_acq_rel32(&w->reigns, 1);
	struct kvr_connector_opts o = options(w, 1);
	struct reign *r = &w->reign[index];
	struct residue before = actor_residue();
	struct kvr_connector *c;
	uint64_t step = 1, begin = kvr_now();
	int rc;

	r->actor = (uint32_t)(self - w->actor);
	r->pid = (uint32_t)getpid();
	r->begin_ns = begin;
	kvr_store_release32(&r->state, REIGN_BEGUN);
	rc = kvr_connector_lead(w->name, &o, &c);
	if (rc)
		actor_wrong("kvr_connector_lead: %s", kvr_explain());
	r->epoch = kvr_group_epoch(kvr_connector_group(c));
	r->made_ns = kvr_now();
	actor_note(NOTE_CREATE, index, r->epoch, 0, begin, 0);
	kvr_store_release32(&r->state, REIGN_MADE);
	kvr_store_release32(&self->reign, index + 1);
	while (actor_order() == ORDER_RUN && !actor_over()) {
		begin = kvr_now();
		rc = tick_step(c, r, step);
		if (rc && rc != -EAGAIN)
			break;
		step += !rc;
		self->calls++;
		test_sleep_ms(1);
	}
	if (rc && rc != -EAGAIN)
		actor_note(NOTE_LEAD, index, r->epoch, rc, begin, 0);
	self->doing = "the leader's close";
	kvr_store_release(&r->close_ns, kvr_now());
	/* No shutdown: ranks stop where they are, with stores that they never copied. */
	kvr_connector_close(c);
	kvr_store_release(&r->closed_ns, kvr_now());
	actor_no_residue(&before, "kvr_connector_close of a leader");
}

struct ticked {
	struct kvr_connector *c;
	struct world *w;
	struct actor *self;
	uint64_t step, tick, told, sum;
	int began; /* the store of this step */
};

/* One that ended with the epoch: its tick is the last one. Who began what then, differs. */
static int is_lost(const struct kvr_completion *done)
{
	return done->stage == KVR_STAGE_LOST;
}

/* What a tick told: of a later tick than the last, up to this one. */
static void told(struct ticked *t, const struct kvr_completion *done, uint64_t tick)
{
	if (done->tick > tick || (is_lost(done) ? done->tick != tick : done->tick <= t->tick))
		actor_wrong("a completion of tick %llu, stage %s, came from tick %llu to tick %llu",
			    (unsigned long long)done->tick, kvr_stage_name(done->stage),
			    (unsigned long long)t->tick, (unsigned long long)tick);
	if (is_lost(done))
		return;
	t->sum = world_mix(t->sum + done->request.id * 1000 + done->stage * 10 +
			   done->tick * 100003 + (uint64_t)(int64_t)done->status);
	t->told++;
}

static int ticked_tick(struct ticked *t, uint64_t deadline)
{
	struct kvr_completion done[64];
	uint64_t tick = t->tick;
	int rc = kvr_connector_check_completed(t->c, deadline ? KVR_NEXT : KVR_NOW, 0, deadline,
					       done, KVR_ARRAY_LEN(done), &tick);

	if (rc < 0)
		return rc;
	if (tick < t->tick || (deadline && tick == t->tick && !(rc && is_lost(&done[rc - 1]))))
		actor_wrong("after tick %llu came tick %llu", (unsigned long long)t->tick,
			    (unsigned long long)tick);
	for (int i = 0; i < rc; i++)
		told(t, &done[i], tick);
	t->tick = tick;
	kvr_store_release(&t->self->got, tick);
	return 0;
}

static int ticked_store(struct ticked *t, uint64_t deadline)
{
	struct kvr_request req = request(t->step + 1);
	struct kvr_key k = key(t->w, t->step + 1);
	struct kvr_span spans[WORLD_RANKS];
	struct kvr_block block;
	uint32_t covered, n;
	int rc = kvr_connector_store_begin(t->c, &req, &k, 1, deadline, &block, 1, &covered);

	if (rc == 1) {
		n = kvr_connector_spans(t->c, 1, spans, WORLD_RANKS);
		for (uint32_t i = 0; i < n && i < WORLD_RANKS; i++)
			memset(block.payload + spans[i].offset, (int)t->step, spans[i].bytes);
		rc = kvr_connector_store_copied(t->c, &req, 0);
	}
	/* No room is the answer of this step; a time-out is none. */
	if (rc == -EAGAIN)
		rc = 0;
	if (rc >= 0) {
		t->step++;
		t->began = 1;
	}
	return rc < 0 ? rc : 0;
}

static int ticked_step(struct ticked *t)
{
	uint32_t stops = kvr_load_acquire32(&t->self->stops);
	uint64_t begin = kvr_now(), deadline = kvr_deadline(t->self->patience_ms + 1);
	int rc;

	t->self->doing = t->began ? "a rank's check_completed" : "a rank's store";
	rc = t->began ? ticked_tick(t, deadline) : ticked_store(t, deadline);
	if (!rc && t->began && t->tick >= t->step)
		t->began = 0;
	t->self->calls++;
	if (rc == -ETIMEDOUT)
		actor_answer(begin);
	return again(rc, deadline, stops);
}

static void ticked_end(struct ticked *t, uint32_t reign, int rc, uint64_t begin)
{
	struct kvr_group *g = kvr_connector_group(t->c);
	struct past *p;

	actor_note(NOTE_WAIT, reign, kvr_group_epoch(g), rc, begin, 0);
	/* What the leader finished, and no more. */
	t->self->doing = "draining";
	do
		rc = ticked_tick(t, 0);
	while (!rc);
	p = actor_past(reign, rc);
	p->ticks = t->tick;
	p->told = t->told;
	p->sum = t->sum;
	p->tick_done = kvr_group_tick_done(g);
	kvr_store_release32(&p->done, 1);
}

void actor_ticked(void)
{
	struct actor *self = self_;
	struct world *w = world_;
	struct residue before = actor_residue();

	while (!actor_over() && actor_order() == ORDER_RUN) {
		struct kvr_connector_opts o = options(w, 0);
		struct ticked t = { .w = w, .self = self };
		uint32_t reign = NOBODY;
		uint64_t begin = 0;
		int rc = kvr_connector_join(w->name, self->rank, &o, kvr_deadline(200), &t.c);

		if (rc) {
			self->tried_ns = kvr_now();
			actor_no_residue(&before, "a failed kvr_connector_join");
			continue;
		}
		for (uint32_t i = 0; i < kvr_load_acquire32(&w->reigns); i++)
			if (w->reign[i].pid == kvr_connector_group(t.c)->header.pid)
				reign = i;
		if (reign == NOBODY)
			actor_wrong("joined a group that nobody made");
		kvr_add_acq_rel32(&w->reign[reign].joined, 1);
		kvr_store_release(&self->got, 0);
		self->joins++;
		kvr_store_release32(&self->reign, reign + 1);
		while (!rc && actor_order() == ORDER_RUN) {
			begin = kvr_now();
			rc = ticked_step(&t);
		}
		if (rc && rc != -ECANCELED)
			ticked_end(&t, reign, rc, begin);
		kvr_store_release32(&self->reign, 0);
		kvr_connector_close(t.c);
		actor_no_residue(&before, "kvr_connector_close of a rank");
	}
}
