/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A leader of raw channels: makes the group, publishes, looks after its ranks, ends the epoch as it
 * is told, and may make the next one.
 */
#include "channel_priv.h"
#include "stress_group_actors.h"

struct lead {
	struct kvr_group *g;
	struct kvr_channels *c;
	uint32_t index, max;
	struct reign *reign;
};

/* 0, or what kvr_group_create() says. */
static int lead_create(struct lead *k)
{
	struct world_config config = { .seed = world_->seed };
	struct kvr_group_opts o = actor_options();
	uint64_t begin;
	struct bells b;
	int rc;

	k->index = kvr_add_acq_rel32(&world_->reigns, 1);
	if (k->index >= WORLD_REIGNS)
		actor_wrong("more than %u reigns", WORLD_REIGNS);
	k->reign = &world_->reign[k->index];
	config.reign = k->index;
	o.ranks = world_->ranks;
	o.ring_bytes = world_->ring_bytes;
	o.ops = o.events = 16;
	o.bulk_bytes = o.ring_bytes < 4096 ? 4096 : o.ring_bytes; /* some messages go there */
	o.config = &config;
	o.config_len = sizeof config;
	o.takeover = self_->takeover;
	k->reign->actor = (uint32_t)(self_ - world_->actor);
	k->reign->pid = (uint32_t)getpid();
	bells_look(&b);
	begin = k->reign->begin_ns = kvr_now();
	kvr_store_release32(&k->reign->state, REIGN_BEGUN);
	rc = kvr_group_create(world_->name, &o, &k->g);
	if (!rc) {
		k->reign->epoch = kvr_group_epoch(k->g);
		k->reign->made_ns = kvr_now();
		/* Unless another taker was there between that look and the name lock. */
		if (b.n && kvr_load_acquire32(&b.takeover->pid) == (uint32_t)getpid())
			bells_rung(&b, "a takeover");
	}
	actor_note(NOTE_CREATE, k->index, rc ? 0 : k->reign->epoch, rc, begin, 0);
	kvr_store_release32(&k->reign->state, rc ? REIGN_REFUSED : REIGN_MADE);
	bells_end(&b);
	return rc;
}

static int publish_one(struct lead *k)
{
	uint32_t ch = actor_pick(world_->channels);
	uint64_t number = k->reign->published[ch] + 1, begin = kvr_now(),
		 deadline = actor_patience();
	struct letter l = letter_of(world_, k->index, ch, number, k->max);
	struct kvr_request req = { .id = l.id, .space = ch, .attempt = l.attempt };
	uint32_t stops = kvr_load_acquire32(&self_->stops), named;
	static uint8_t data[65536];
	int rc;

	for (uint32_t i = 0; i < l.len; i++)
		data[i] = letter_byte(&l, i);
	rc = kvr_channels_publish(k->c, KVR_CH_USER0 + ch, l.set, l.tag, &req, data, l.len,
				  deadline);
	if (!rc) {
		kvr_store_release(&k->reign->published[ch], number);
	} else if (rc == -ETIMEDOUT && deadline) {
		const char *at = strstr(kvr_explain(), "rank ");

		actor_late("kvr_channels_publish", deadline, stops);
		if (!at || sscanf(at, "rank %u does not read channel", &named) != 1 ||
		    named >= world_->ranks ||
		    (!(l.set >> named & 1) && l.len <= kvr_channels_inline_payload(k->c)))
			actor_wrong("a publish to ranks %#llx says: %s", (unsigned long long)l.set,
				    kvr_explain());
		if (self_->ask_rank == NOBODY || named == self_->ask_rank)
			actor_answer(begin);
		rc = 0;
	} else if (rc == -EAGAIN && !deadline) {
		test_sleep_ms(1);
		rc = 0;
	}
	return rc;
}

static void lead_fail(struct lead *k)
{
	int cause = self_->fail_cause, rc;
	uint64_t begin = kvr_now();
	struct bells b;

	bells_look(&b);
	k->reign->fail_cause = cause;
	k->reign->fail_blamed = self_->fail_blamed;
	kvr_store_release(&k->reign->fail_ns, begin);
	kvr_store_release32(&k->reign->failed, 1);
	self_->doing = "kvr_group_fail";
	rc = kvr_group_fail(k->g, self_->fail_blamed, cause);
	if (rc)
		actor_wrong("kvr_group_fail: %s", kvr_explain());
	bells_rung(&b, "kvr_group_fail");
	bells_end(&b);
	/* The first cause wins. */
	if (kvr_group_fail(k->g, KVR_MAX_RANKS, -EDOM))
		actor_wrong("kvr_group_fail, again: %s", kvr_explain());
	begin = kvr_now();
	rc = kvr_channels_publish(k->c, KVR_CH_USER0, 0, KVR_TAG_USER, NULL, NULL, 0, 0);
	if (!rc)
		actor_wrong("a publish after kvr_group_fail went through");
	actor_note(NOTE_LEAD, k->index, k->reign->epoch, rc, begin, 0);
	kvr_cas_acq_rel32(&self_->order, ORDER_FAIL, ORDER_RUN); /* once, not in the next epoch */
}

/* Nobody may be called dead who was not killed. */
static void peer_look(struct kvr_group *g, uint32_t rank)
{
	struct kvr_peer p;

	if (kvr_group_peer(g, rank, &p))
		actor_wrong("kvr_group_peer: %s", kvr_explain());
	if (p.state != KVR_PEER_DEAD || !p.pid)
		return;
	for (uint32_t i = 0; i < WORLD_ACTORS; i++) {
		const struct actor *a = &world_->actor[i];

		if (a->pid == p.pid && !kvr_load_acquire(&a->kill_ns) &&
		    !kvr_load_acquire(&a->trapped_ns))
			actor_wrong("kvr_group_peer: rank %d, pid %u is %s; nobody killed it",
				    (int)rank, p.pid, kvr_peer_state_name(p.state));
	}
}

/* One step of a leader's life: 0, or why the epoch is over. */
static int lead_step(struct lead *k, uint64_t step)
{
	int rc = 0;

	/* No call at all: each of them would notice that a rank died. */
	kvr_store_release32(&self_->quieted, kvr_load_acquire32(&self_->quiet));
	if (self_->quieted) {
		test_sleep_ms(1);
		return 0;
	}
	self_->doing = "a publish";
	if (self_->early || kvr_load_acquire32(&k->reign->joined) >= world_->ranks)
		rc = publish_one(k);
	self_->doing = "looking after its ranks";
	if (!rc && !self_->blind)
		rc = step % 2 ? kvr_group_watch_ranks(k->g) : kvr_group_check(k->g);
	if (!rc && step % 64 == 63)
		rc = kvr_group_visible(k->g);
	if (!rc && step % 32 == 31)
		peer_look(k->g, actor_pick(world_->ranks));
	return rc;
}

/* Publishes until the epoch is over, or until it is told to end it. */
static void lead_serve(struct lead *k)
{
	uint64_t begin, step = 0;
	int rc = 0;

	for (;; step++) {
		uint32_t order = actor_order();

		if (order == ORDER_FAIL)
			lead_fail(k);
		if (order != ORDER_RUN || actor_over())
			return;
		begin = kvr_now();
		rc = lead_step(k, step);
		if (rc)
			break;
		self_->calls++;
		if (step % 8 == 7)
			test_sleep_ms(1);
	}
	if (rc != -ESTALE) /* else another one made a newer epoch, and this one lost its name */
		kvr_store_release32(&k->reign->failed, 1);
	actor_note(NOTE_LEAD, k->index, k->reign->epoch, rc, begin, 0);
}

static void lead_close(struct lead *k)
{
	struct bells b;

	self_->doing = "kvr_group_close";
	bells_look(&b);
	if (b.pid != (uint32_t)getpid() || b.epoch != k->reign->epoch)
		b.n = 0; /* another one has the name by now, which is no business of ours */
	kvr_store_release(&k->reign->close_ns, kvr_now());
	kvr_channels_close(k->c);
	kvr_group_close(k->g);
	bells_rung(&b, "a leader's close");
	bells_end(&b);
	kvr_store_release(&k->reign->closed_ns, kvr_now());
}

void actor_leader(void)
{
	struct residue before = actor_residue();
	struct lead k = { 0 };
	uint32_t tries = 0;
	int rc;

	do {
		self_->doing = "kvr_group_create";
		rc = lead_create(&k);
		if (rc) {
			actor_no_residue(&before, "a failed kvr_group_create");
			kvr_store_release(&self_->tried_ns, k.reign->begin_ns);
			if (self_->tries && ++tries >= self_->tries)
				return;
			test_sleep_ms(5);
			continue;
		}
		rc = kvr_channels_open(k.g, &k.c);
		if (rc)
			actor_wrong("kvr_channels_open: %s", kvr_explain());
		k.max = kvr_channels_max_payload(k.c);
		kvr_store_release32(&self_->reign, k.index + 1);
		lead_serve(&k);
		lead_close(&k);
		actor_no_residue(&before, "the leader's close");
		kvr_store_release32(&self_->reign, 0);
		rc = !self_->restarts;
	} while (!rc && !actor_over() && actor_order() != ORDER_CLOSE);
}
