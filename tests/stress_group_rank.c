/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of raw channels: attaches, takes in all the ways there are, looks at every byte, and after
 * the end of an epoch drains what was finished and attaches again.
 */
#include "channel_priv.h"
#include "stress_group_actors.h"

struct member {
	struct kvr_group *g;
	struct kvr_channels *c;
	uint32_t reign, max, pid; /* of the leader */
	uint64_t last[WORLD_CHANNELS];
	uint32_t style[WORLD_CHANNELS];
	int ended[WORLD_CHANNELS]; /* what a call said that nothing more can come after */
	char end_text[300];	   /* of the last of them */
};

enum { TAKE, EXPECT, TAKE_FOR, DRAIN, STYLES };

/* 0, or why not: told to end, or refused. */
static int rank_attach(struct member *k)
{
	struct kvr_group_opts o = actor_options();
	uint32_t tries = 0, noted = 0, len, kind;
	const struct world_config *config;
	int rc, last = 0;

	self_->doing = "kvr_group_attach";
	for (;;) {
		uint64_t begin = kvr_now(), deadline = kvr_deadline(self_->attach_ms);
		uint32_t stops = kvr_load_acquire32(&self_->stops);

		if (actor_over() || actor_order() != ORDER_RUN)
			return -ECANCELED;
		rc = kvr_group_attach(world_->name, self_->rank, &o, deadline, &k->g);
		self_->calls++;
		if (!rc)
			break;
		if (kvr_now() >= deadline)
			actor_late("kvr_group_attach", deadline, stops);
		if (rc != last || noted++ < 4)
			actor_note(NOTE_ATTACH, NOBODY, 0, rc, begin, deadline);
		last = rc;
		kvr_store_release(&self_->tried_ns, begin);
		if (self_->tries && ++tries >= self_->tries)
			return rc;
	}
	config = kvr_group_config(k->g, &len, &kind);
	if (len != sizeof *config || config->seed != world_->seed ||
	    config->reign >= kvr_load_acquire32(&world_->reigns))
		actor_wrong("attached to a group with another configuration");
	k->reign = (uint32_t)config->reign;
	k->pid = world_->reign[k->reign].pid;
	actor_note(NOTE_ATTACH, k->reign, kvr_group_epoch(k->g), 0, kvr_now(), 0);
	return 0;
}

static void got(struct member *k, uint32_t ch, const struct kvr_message *m)
{
	uint64_t want = letter_next(world_, k->reign, ch, self_->rank, k->last[ch] + 1, 1);
	struct letter l = letter_of(world_, k->reign, ch, want, k->max);
	const uint8_t *data = m->data;

	if (m->number != want)
		actor_wrong("channel %s: after message %llu came %llu, to this rank goes %llu",
			    kvr_channel_name(m->channel), (unsigned long long)k->last[ch],
			    (unsigned long long)m->number, (unsigned long long)want);
	if (m->channel != KVR_CH_USER0 + ch || m->tag != l.tag || m->request.id != l.id ||
	    m->request.attempt != l.attempt || m->request.space != ch || m->len != l.len)
		actor_wrong("channel %s: message %llu has another head: tag %u, %u bytes",
			    kvr_channel_name(m->channel), (unsigned long long)want, m->tag, m->len);
	for (uint32_t i = 0; i < l.len; i++)
		if (data[i] != letter_byte(&l, i))
			actor_wrong("channel %s: message %llu: byte %u of %u is wrong",
				    kvr_channel_name(m->channel), (unsigned long long)want, i,
				    l.len);
	if (k->ended[ch])
		actor_wrong("channel %s: message %llu came after the end of the epoch, which was "
			    "%d: %s",
			    kvr_channel_name(m->channel), (unsigned long long)want, k->ended[ch],
			    k->end_text);
	k->last[ch] = want;
	kvr_store_relaxed(&self_->last[ch], want);
	kvr_store_release(&self_->got, self_->got + 1);
}

struct drained {
	struct member *k;
	uint32_t ch;
};

static void got_drained(void *arg, const struct kvr_message *m)
{
	struct drained *d = arg;

	got(d->k, d->ch, m);
}

/* One call on one channel. 0: something came, or why nothing did. */
static int take_call(struct member *k, uint32_t ch, uint64_t deadline)
{
	uint64_t number = letter_next(world_, k->reign, ch, self_->rank, k->last[ch] + 1, 1);
	struct letter l = letter_of(world_, k->reign, ch, number, k->max);
	struct kvr_request req = { .id = l.id, .space = ch, .attempt = l.attempt };
	struct drained d = { .k = k, .ch = ch };
	uint32_t at = KVR_CH_USER0 + ch;
	struct kvr_message m;
	int rc;

	switch (k->style[ch]) {
	case TAKE:
		rc = kvr_channels_take(k->c, at, deadline, &m);
		break;
	case EXPECT:
		rc = kvr_channels_expect(k->c, at, l.tag, deadline, &m);
		break;
	case TAKE_FOR:
		rc = kvr_channels_take_for(k->c, at, l.tag, &req, deadline, &m);
		break;
	default:
		rc = kvr_channels_drain(k->c, at, got_drained, &d);
		return rc > 0 ? 0 : rc ? rc : -EAGAIN;
	}
	if (!rc)
		got(k, ch, &m);
	/* Before it waits elsewhere: the room is everybody's. */
	if (!rc && m.len > kvr_channels_inline_payload(k->c) &&
	    kvr_channels_forget_upto(k->c, at, 0))
		actor_wrong("channel %s: a message was forgotten", kvr_channel_name(at));
	return rc;
}

static int take_one(struct member *k, uint32_t ch, uint64_t deadline)
{
	int rc = take_call(k, ch, deadline);

	if (rc && rc != -EAGAIN && rc != -ETIMEDOUT) {
		k->ended[ch] = rc;
		snprintf(k->end_text, sizeof k->end_text, "%s", kvr_explain());
	}
	return rc;
}

/* A time-out says who leads: all of them are looked at, not those alone that the test asks for. */
static void timed_out(const struct member *k, uint64_t begin, uint64_t deadline, uint32_t stops)
{
	char who[48];

	actor_late("a take", deadline, stops);
	snprintf(who, sizeof who, "the leader (pid %u,", k->pid);
	if (!strstr(kvr_explain(), who))
		actor_wrong("a time-out does not say \"%s\": %s", who, kvr_explain());
	actor_answer(begin);
}

/* 0: go on. */
static int rank_step(struct member *k)
{
	uint64_t begin = kvr_now(), deadline = actor_patience();
	uint32_t stops = kvr_load_acquire32(&self_->stops);
	uint32_t ch = actor_pick(world_->channels);
	struct kvr_message m;
	int rc;

	self_->calls++;
	/* Some never wait where messages come: asked for a time-out, they wait here. */
	if (kvr_load_acquire32(&self_->flood) ||
	    kvr_load_acquire(&self_->ask_ns) != self_->answer_ns) {
		self_->doing = "a take on a channel where nothing comes";
		rc = kvr_channels_take(k->c, WORLD_IDLE, deadline, &m);
		if (!rc)
			actor_wrong("a message came where none was published");
	} else {
		self_->doing = "a take";
		rc = take_one(k, ch, deadline);
	}
	if (rc == -ETIMEDOUT && deadline) {
		timed_out(k, begin, deadline, stops);
		rc = 0;
	} else if (rc == -EAGAIN && (!deadline || k->style[ch] == DRAIN)) {
		test_sleep_ms(1);
		rc = 0;
	}
	if (!rc && self_->habit == HABIT_SLOW && actor_pick(8) == 0)
		test_sleep_ms(actor_pick(4));
	return rc;
}

static void while_waiting(void *arg)
{
	struct member *k = arg;
	static int inside;

	if (inside++ || kvr_load_acquire32(&self_->flood)) {
		inside--;
		return;
	}
	/* Its end is reported by the call around this one. */
	for (uint32_t ch = 0; ch < world_->channels; ch++)
		if (k->style[ch] == DRAIN)
			take_one(k, ch, 0);
	inside--;
}

/*
 * Everything that was finished before the end, and the end again, on each channel. While another
 * leader puts up its fence nobody can say how much that is: ask again.
 */
static void rank_drain(struct member *k, int rc)
{
	uint64_t until = kvr_deadline(HANG_MS);

	for (uint32_t ch = 0; ch < world_->channels; ch++) {
		uint64_t begin;
		int end;

		self_->doing = "draining";
		do {
			begin = kvr_now();
			end = take_one(k, ch, 0);
			self_->unsure += end == -EAGAIN;
		} while (!end || (end == -EAGAIN && begin < until));
		if (end == -EAGAIN)
			actor_wrong("channel %u: there may be more, after the end with %d", ch, rc);
		if (end != rc)
			actor_note(NOTE_WAIT, k->reign, kvr_group_epoch(k->g), end, begin, 0);
	}
}

static void rank_past(struct member *k, int rc)
{
	struct past *p = actor_past(k->reign, rc);

	for (uint32_t ch = 0; ch < world_->channels; ch++) {
		p->last[ch] = k->last[ch];
		p->watermark[ch] = kvr_group_watermark(k->g, KVR_CH_USER0 + ch);
	}
	kvr_store_release32(&p->done, 1);
}

/* Is there a newer epoch? Then the old handle must say so. */
static void rank_linger(struct member *k)
{
	uint64_t until = kvr_deadline(HANG_MS), since = world_->reign[k->reign].made_ns, begin;
	int newer = 0;

	self_->doing = "waiting for a newer epoch";
	while (!newer && self_->lingers && !actor_over() && actor_order() == ORDER_RUN &&
	       kvr_now() < until) {
		for (uint32_t i = 0; i < WORLD_REIGNS; i++)
			newer |= kvr_load_acquire32(&world_->reign[i].state) == REIGN_MADE &&
				 world_->reign[i].made_ns > since;
		test_sleep_ms(1);
	}
	if (!newer)
		return;
	begin = kvr_now();
	actor_note(NOTE_CHECK, k->reign, kvr_group_epoch(k->g), kvr_group_check(k->g), begin, 0);
}

/* Reads until the epoch is over, or until it is told to leave. */
static void rank_serve(struct member *k)
{
	uint64_t begin = 0;
	int rc = 0;

	while (!rc && actor_order() == ORDER_RUN) {
		begin = kvr_now();
		rc = rank_step(k);
	}
	if (rc) {
		actor_note(NOTE_WAIT, k->reign, kvr_group_epoch(k->g), rc, begin, 0);
		rank_drain(k, rc);
	}
	rank_past(k, rc);
	kvr_store_release32(&self_->reign, 0);
	if (rc && self_->lingers)
		rank_linger(k);
	self_->doing = "closing";
	kvr_channels_close(k->c);
	kvr_group_close(k->g);
}

void actor_rank(void)
{
	struct residue before = actor_residue();

	while (!actor_over() && actor_order() == ORDER_RUN) {
		struct member k = { 0 };

		if (rank_attach(&k)) {
			actor_no_residue(&before, "a failed kvr_group_attach");
			return;
		}
		if (kvr_channels_open(k.g, &k.c))
			actor_wrong("kvr_channels_open: %s", kvr_explain());
		k.max = kvr_channels_max_payload(k.c);
		for (uint32_t ch = 0; ch < WORLD_CHANNELS; ch++) {
			k.style[ch] = actor_pick(STYLES);
			kvr_store_relaxed(&self_->last[ch], 0);
		}
		if (self_->polls_waiting)
			kvr_channels_on_wait(k.c, while_waiting, &k);
		kvr_store_release(&self_->got, 0);
		self_->joins++;
		kvr_add_acq_rel32(&world_->reign[k.reign].joined, 1);
		kvr_store_release32(&self_->reign, k.reign + 1);
		rank_serve(&k);
		actor_no_residue(&before, "the rank's close");
	}
}
