/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of an epoch, whatever ends it: every operation that a process was told of has exactly one
 * end there, and what the leader's ticks told is the same on all.
 *
 * Each story is the same up to its last act. Rank 0 writes all blocks, and then
 *
 *   stores 1, 2      told by tick 1
 *   store 4          begun, and never copied; rank 2 takes its begin when all is over
 *   store 9          joined 4: its COPIED is told by tick 1, its end never comes; rank 2 does not
 *                    begin it and knows it from that completion alone
 *   store 3          ended, and not told: tick 2 would
 *   store 3          the same name once more, ended, and not told; rank 2 takes its begin when all
 *                    is over
 *   store 8          ended, and not told; rank 2 does not begin it
 *   load 5           begun; ranks 0 and 2 wait for it
 *   load 6           verified by all, and in use
 */
#include "atomic.h"
#include "cluster.h"
#include "connector_priv.h"
#include "engine_priv.h"
#include "point.h"

#include <sys/mman.h>

#define RANKS 3u
#define KEYS 4u
#define IDS 10u
#define MANY 64u
#define LEADER (1u << CLUSTER_LEAD)
#define PROCS (CLUSTER_RANKS + 1)
#define TICK1 7u	   /* completions */
#define TICK2 (TICK1 + 9u) /* and those of tick 2: three messages */

/* What a process was told. */
struct story {
	uint32_t begun[2][IDS], told[2][IDS], ends[2][IDS]; /* stores, loads */
	uint32_t lost;
	uint64_t count, hash; /* of what ticks told, in order */
	uint64_t last;	      /* tick */
	uint64_t epoch;	      /* a name may have been used before */
	uint64_t untold;      /* leader: ends that it had decided and no tick told */
	int end, waited[2][2];
	int begun7; /* what store_begin of request 7 said */
	char text[1600], wait_text[2][2][1600], end_text[1600];
};

static struct story *stories;

enum act {
	ACT_TICK,   /* the leader ends tick 2 */
	ACT_BEGIN,  /* it begins store 7 */
	ACT_FAIL,   /* it declares the epoch over */
	ACT_CLOSE,  /* it closes its handle */
	ACT_UNTOLD, /* rank 1 dies before it has published a begin */
	ACT_RANK_DIES,
	ACT_STALE, /* it dies, and another one takes over before the ranks look */
	ACT_FENCE  /* it is stopped in tick 2, another one takes over, and it goes on */
};

static struct plan {
	enum act act;
	enum kvr_point point; /* where it dies in that; KVR_POINT_COUNT: nowhere */
	uint32_t skip;	      /* not the first time there, but after so many */
	int cause;	      /* that all are told; 0: as the moment has it */
	uint64_t last;	      /* the last tick; 0: as the moment has it */
} plan;
static int racing; /* there it does not die, but rank 1 does; or for ACT_FENCE, another one leads */
static struct cluster *playing;

static void setup(void)
{
	stories = mmap(NULL, sizeof *stories * PROCS, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(stories, MAP_FAILED);
}

static void teardown(void)
{
	munmap(stories, sizeof *stories * PROCS);
}

static struct story *story_of(uint32_t rank)
{
	return &stories[CLUSTER_LEADER(rank) ? CLUSTER_LEAD : rank];
}

/* What was done; each by one process. */
enum step {
	STEP_JOINED,
	STEP_BEGUN,  /* everything, by each rank */
	STEP_DIE,    /* for rank 1 */
	STEP_TAKEN,  /* another one leads */
	STEP_LOOKED, /* rank 0 knows that the epoch is over, and was told everything */
	STEP_CALLED, /* the leader's call is over */
	STEP_DONE    /* and the leader's story */
};

static uint64_t *step_of(struct cluster *cl, enum step step)
{
	return &cl->area->word[0][step];
}

static void await(struct cluster *cl, enum step step, uint64_t count)
{
	uint64_t deadline = test_deadline_ms(10000);

	while (kvr_load_acquire(step_of(cl, step)) < count && test_now_ns() < deadline)
		test_sleep_ms(1);
}

static void reach(struct cluster *cl, enum step step)
{
	__atomic_add_fetch(step_of(cl, step), 1, __ATOMIC_ACQ_REL);
}

/* --- what all do first ------------------------------------------------------------------------ */

static int begin(struct kvr_connector *c, uint64_t id, const struct kvr_key *keys, uint32_t n,
		 struct kvr_block *blocks, uint32_t rank)
{
	struct kvr_request req = cluster_request(id, 0);
	uint32_t covered;
	int r = kvr_connector_store_begin(c, &req, keys, n, SOON, blocks, KEYS, &covered);

	story_of(rank)->begun[0][id] += r >= 0;
	return r;
}

static void store(struct kvr_connector *c, uint64_t id, const struct kvr_key *keys, uint32_t n,
		  enum kvr_stage stage, uint32_t rank)
{
	struct kvr_request req = cluster_request(id, 0);
	struct kvr_block blocks[KEYS];
	int count = begin(c, id, keys, n, blocks, rank);

	MUST(count >= 0);
	for (int i = 0; i < count && rank == 0; i++)
		cluster_fill(c, &keys[blocks[i].index], &blocks[i]);
	MUST(!kvr_connector_store_copied(c, &req, 0));
	MUST(!kvr_connector_wait_store(c, &req, stage, SOON));
}

static void tell(struct story *s, const struct kvr_completion *d, uint64_t at)
{
	uint64_t word[3] = { d->request.id << 32 | d->kind << 16 | d->stage, (uint64_t)d->status,
			     d->tick };
	uint32_t load = d->kind - 1;

	MUST(load < 2 && d->request.id < IDS);
	s->told[load][d->request.id] = 1;
	s->ends[load][d->request.id] += d->stage >= KVR_STAGE_END;
	if (d->stage == KVR_STAGE_LOST) {
		s->lost++;
		MUST(d->status < 0 && d->tick == at);
		return;
	}
	MUST(d->tick <= at || s == &stories[CLUSTER_LEAD]);
	s->untold += d->tick > at && d->stage >= KVR_STAGE_END;
	for (uint32_t i = 0; i < 3 && d->tick <= at; i++)
		s->hash = (s->hash ^ word[i]) * 0x100000001b3ull;
	s->count += d->tick <= at;
}

/* One question, with as much room as `max` at first. */
static int ask(struct kvr_connector *c, enum kvr_tick_mode mode, uint64_t tick, uint32_t max,
	       uint32_t rank)
{
	struct story *s = story_of(rank);
	struct kvr_completion done[MANY];
	uint64_t at = s->last;
	uint32_t lost = s->lost;
	int n = kvr_connector_check_completed(c, mode, tick, SOON, done, max, &at);

	if (n == -EMSGSIZE) {
		n = kvr_connector_check_completed(c, mode, tick, SOON, done, MANY, &at);
	}
	for (int i = 0; i < n; i++)
		tell(s, &done[i], at);
	if (n >= 0)
		s->last = at;
	if (s->lost > lost)
		snprintf(s->text, sizeof s->text, "%s", kvr_explain());
	return n;
}

/* The two keys of a family. */
static void load(struct kvr_connector *c, uint64_t id, uint64_t family, uint32_t rank)
{
	struct kvr_request req = cluster_request(id, 0);
	struct kvr_key keys[KEYS];
	struct kvr_hit hit;

	cluster_keys(family, keys, KEYS);
	MUST(!kvr_connector_lookup(c, &req, keys, 2, SOON, &hit) && hit.blocks == 2);
	MUST(kvr_connector_load_begin(c, &req, 2, SOON) == 2);
	story_of(rank)->begun[1][id]++;
}

static int load_wait(struct kvr_connector *c, uint64_t id, uint64_t family)
{
	struct kvr_request req = cluster_request(id, 0);
	struct kvr_block blocks[KEYS];
	struct kvr_key keys[KEYS];

	cluster_keys(family, keys, KEYS);
	return kvr_connector_load_wait(c, &req, keys, SOON, blocks, KEYS);
}

static void together(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_block blocks[KEYS];
	struct kvr_key keys[KEYS];

	story_of(rank)->epoch = kvr_group_epoch(c->group);
	/* Nobody joins a dead group. */
	reach(cl, STEP_JOINED);
	await(cl, STEP_JOINED, RANKS + 1);
	cluster_keys(4, keys, KEYS);
	if (rank != 2)
		MUST(begin(c, 4, keys, 2, blocks, rank) == 2);
	if (rank != 2)
		store(c, 9, keys, 3, KVR_STAGE_COPIED, rank);
	for (uint64_t id = 1; id <= 3; id++) {
		cluster_keys(id, keys, KEYS);
		store(c, id, keys, 2, KVR_STAGE_WRITTEN, rank);
		if (id == 2)
			MUST(!CLUSTER_LEADER(rank) || ask(c, KVR_TICK, 1, MANY, rank) == TICK1);
	}
	if (rank != 2) {
		store(c, 3, keys, 2, KVR_STAGE_WRITTEN, rank);
		store(c, 8, keys, 2, KVR_STAGE_WRITTEN, rank);
	}
	load(c, 5, 1, rank);
	load(c, 6, 2, rank);
	MUST(load_wait(c, 6, 2) == 2);
}

/* --- the last act ----------------------------------------------------------------------------- */

static void die(enum kvr_point point, uint32_t arg)
{
	(void)arg;
	if (point == KVR_POINT_tick_published && plan.point == KVR_POINT_tick_done)
		test_sleep_ms(20); /* ranks take completions before their tick is done */
	if (point == plan.point && !plan.skip--)
		raise(SIGKILL);
}

/* At that point of the leader's call rank 1 dies, and for rank 0 the epoch is over. */
static void race(enum kvr_point point, uint32_t arg)
{
	(void)arg;
	if (point != plan.point || plan.skip--)
		return;
	if (plan.act == ACT_FENCE) {
		raise(SIGSTOP);
		return;
	}
	reach(playing, STEP_DIE);
	await(playing, STEP_LOOKED, 1);
}

/* Until the epoch is over and everything was told. */
static void drain(struct kvr_connector *c, uint32_t rank)
{
	static const enum kvr_tick_mode mode[] = { KVR_NEXT, KVR_TICK, KVR_NOW };
	int lead = CLUSTER_LEADER(rank), n, none;
	struct story *s = story_of(rank);

	do {
		/* Without room nothing is given, and nothing is lost. */
		none = kvr_connector_check_completed(c, lead ? KVR_NEXT : mode[rank], 1000, SOON,
						     NULL, 0, NULL);
		n = ask(c, lead ? KVR_NEXT : mode[rank], 1000, lead ? 2 : rank ? MANY : 1, rank);
		MUST(none == 0 || (none == -EMSGSIZE ? n > 0 : n < 0));
		if (rank == 2 || lead)
			test_sleep_ms(2);
	} while (n >= 0);
	s->end = n;
	snprintf(s->end_text, sizeof s->end_text, "%s", kvr_explain());
	/* And so it stays. */
	MUST(ask(c, KVR_NOW, 0, MANY, rank) < 0 && ask(c, KVR_TICK, 1, MANY, rank) < 0);
}

/* A rank may still copy to or from the blocks of a lost operation: they must stay what they are. */
static void lost_are_pinned(struct kvr_connector *c)
{
	struct kvr_engine *e = c->engine;
	struct kvr_request req;
	uint32_t n = 0;

	for (uint64_t id = 5; id <= 6; id++) {
		req = cluster_request(id, 0);
		MUST(!kvr_connector_release(c, &req)); /* that pin is another one */
	}
	pthread_mutex_lock(&e->lock);
	for (uint32_t i = 0; i < c->group->layout.ops; i++)
		for (uint32_t b = 0; e->ops[i].stage == KVR_STAGE_LOST && b < e->ops[i].n; b++, n++)
			MUST(e->tier.blocks[e->ops[i].ids[b]].pins > 0);
	pthread_mutex_unlock(&e->lock);
	MUST(n >= 2 + 3 + 2 + 2); /* of 4, 9, 5 and 6 */
}

static void wait_in_vain(struct kvr_connector *c, uint32_t when, uint32_t rank)
{
	struct kvr_request req = cluster_request(4, 0);
	struct story *s = story_of(rank);

	if (rank != 2)
		s->waited[when][0] = kvr_connector_wait_store(c, &req, KVR_STAGE_COPIED, SOON);
	snprintf(s->wait_text[when][0], sizeof s->wait_text[when][0], "%s", kvr_explain());
	if (rank != 1)
		s->waited[when][1] = load_wait(c, 5, 1);
	snprintf(s->wait_text[when][1], sizeof s->wait_text[when][1], "%s", kvr_explain());
	if (when)
		MUST(load_wait(c, 6, 2) == s->end &&
		     strstr(kvr_explain(), "load of request 6/0 was lost with epoch"));
}

/* By the word that the leader writes. */
static uint32_t stage_of(struct kvr_connector *c, uint64_t id)
{
	struct kvr_request req = cluster_request(id, 0);
	struct kvr_rank_op *op = kvr_rank_op_find(&c->known, &req, KVR_OP_STORE);

	MUST(op);
	return kvr_word_code(kvr_rank_op_word(c, op->entry));
}

static int dies(void)
{
	return (racing && plan.act != ACT_FENCE) || plan.act == ACT_UNTOLD ||
	       plan.act == ACT_RANK_DIES;
}

static void rank_plays(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct story *s = story_of(rank);
	struct kvr_block blocks[KEYS];
	struct kvr_key keys[KEYS];

	together(cl, c, rank);
	reach(cl, STEP_BEGUN);
	if (plan.act == ACT_STALE)
		await(cl, STEP_TAKEN, 1);
	if (racing && rank == 2)
		await(cl, STEP_CALLED, 1);
	if (rank == 1 && dies()) {
		await(cl, STEP_DIE, 1);
		if (plan.act != ACT_RANK_DIES || plan.point == KVR_POINT_COUNT)
			raise(SIGKILL);
		kvr_point_hook = die;
	} else if (plan.act == ACT_BEGIN) {
		cluster_keys(7, keys, KEYS);
		s->begun7 = begin(c, 7, keys, 1, blocks, rank);
		if (racing && rank == 2 && s->begun7 >= 0) /* it was over before it began */
			MUST(stage_of(c, 7) == KVR_STAGE_LOST);
	}
	if (rank != 1 || plan.act != ACT_RANK_DIES)
		wait_in_vain(c, 0, rank);
	drain(c, rank);
	if (rank == 0)
		reach(cl, STEP_LOOKED);
	if (racing && rank == 0) { /* what the leader published since then changes nothing */
		await(cl, STEP_CALLED, 1);
		drain(c, rank);
	}
	if (rank == 2) {
		/* They are in the ring since long ago, and have their one end each, too. */
		cluster_keys(4, keys, KEYS);
		MUST(begin(c, 4, keys, 2, blocks, rank) == 2);
		cluster_keys(3, keys, KEYS);
		MUST(begin(c, 3, keys, 2, blocks, rank) == 0);
		drain(c, rank);
	}
	wait_in_vain(c, 1, rank); /* which says the same, now that the end was told */
	if (plan.act == ACT_FENCE)
		await(cl, STEP_DONE, 1); /* a rank that leaves may fail an operation */
}

/* As store_begin, whose publish finds that the epoch is over. */
static void begin_untold(struct kvr_connector *c)
{
	struct kvr_request req = cluster_request(7, 0);
	struct kvr_engine *e = c->engine;
	struct kvr_engine_answer a;
	struct kvr_key keys[KEYS];
	int over = 0;

	cluster_keys(7, keys, KEYS);
	MUST(!kvr_engine_store_begin(e, &req, keys, 2, SOON, &a, c->blocks) && a.count == 2);
	reach(playing, STEP_DIE);
	while (!over) {
		test_sleep_ms(1);
		pthread_mutex_lock(&e->lock);
		over = e->group_error;
		pthread_mutex_unlock(&e->lock);
	}
	kvr_engine_cancel(e, &a);
}

static void leader_plays(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_block blocks[KEYS];
	struct kvr_key keys[KEYS];

	together(cl, c, rank);
	/* All have begun everything: who dies now cannot keep the others from it. */
	await(cl, STEP_BEGUN, RANKS);
	playing = cl;
	if (plan.act == ACT_RANK_DIES)
		reach(cl, STEP_DIE);
	else
		kvr_point_hook = racing ? race : die;
	switch (plan.act) {
	case ACT_TICK:
	case ACT_FENCE:
		ask(c, KVR_TICK, 2, MANY, rank);
		break;
	case ACT_BEGIN:
		cluster_keys(7, keys, KEYS);
		story_of(rank)->begun7 = begin(c, 7, keys, 1, blocks, rank);
		break;
	case ACT_FAIL:
		MUST(!kvr_group_fail(kvr_connector_group(c), KVR_MAX_RANKS, -EIO));
		break;
	case ACT_CLOSE:
		return;
	case ACT_STALE:
		raise(SIGKILL);
		break;
	case ACT_UNTOLD:
		begin_untold(c);
		break;
	case ACT_RANK_DIES:
		break;
	}
	reach(cl, STEP_CALLED);
	if (plan.act != ACT_RANK_DIES)
		wait_in_vain(c, 0, rank);
	drain(c, rank);
	wait_in_vain(c, 1, rank);
	lost_are_pinned(c);
	reach(cl, STEP_DONE);
}

/* --- verdicts --------------------------------------------------------------------------------- */

static void judge_ends(const struct story *s, uint32_t p)
{
	for (uint32_t load = 0; load < 2; load++)
		for (uint32_t id = 0; id < IDS; id++) {
			uint32_t want = s->begun[load][id];

			if (!want && p != CLUSTER_LEAD)
				want = s->told[load][id];
			ck_assert_msg(s->ends[load][id] == want, "process %u: %s %u: %u ends of %u",
				      p, load ? "load" : "store", id, s->ends[load][id], want);
		}
}

static void judge_texts(const struct cluster *cl, const struct story *s, uint32_t p)
{
	static const char *op[] = { "store of request 4/0", "load of request 5/0" };
	unsigned long long epoch = s->epoch;
	char text[128];

	snprintf(text, sizeof text, "lost with epoch %llu of group %s: ", epoch, cl->name);
	ck_assert_msg(strstr(s->text, text) && strstr(s->text, "operation"), "process %u: %s", p,
		      s->text);
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t when = i / 2, which = i % 2;

		if (p + which == 2 && p < RANKS)
			continue; /* did not wait for that one, or began it later */
		if (!when && plan.act == ACT_RANK_DIES && p == CLUSTER_LEAD)
			continue;
		snprintf(text, sizeof text, "%s was lost with epoch %llu: group %s", op[which],
			 epoch, cl->name);
		ck_assert_int_eq(s->waited[when][which], s->end);
		ck_assert_msg(strstr(s->wait_text[when][which], text), "process %u: %s", p,
			      s->wait_text[when][which]);
	}
}

/* dead: who has no story to tell. */
static void judge(const struct cluster *cl, uint32_t dead)
{
	const struct story *first = &stories[0], *s;

	for (uint32_t p = 0; p < PROCS; p++) {
		s = &stories[p];
		if (dead >> p & 1 || (p >= RANKS && p != CLUSTER_LEAD))
			continue;
		ck_assert_int_eq(s->end, plan.cause ? plan.cause : first->end);
		if (plan.last)
			ck_assert_uint_eq(s->last, plan.last);
		ck_assert_uint_ge(s->count, TICK1);
		if (plan.last || plan.act == ACT_FENCE)
			ck_assert_uint_eq(s->count, s->last == 1 ? TICK1 : TICK2);
		if (p == 2 && plan.last == 1)
			ck_assert_uint_eq(s->told[0][8], 0); /* beyond the last tick */
		ck_assert_msg(
			s->last == first->last && s->count == first->count &&
				s->hash == first->hash,
			"process %u had %llu completions up to tick %llu, rank 0 %llu up to %llu",
			p, (unsigned long long)s->count, (unsigned long long)s->last,
			(unsigned long long)first->count, (unsigned long long)first->last);
		judge_ends(s, p);
		judge_texts(cl, s, p);
		if (!racing)
			ck_assert_int_eq(s->begun7 < 0, first->begun7 < 0);
	}
}

/* The leader goes on while the fence goes up: the tick is done before the copy, or after it. */
static void go_on(enum kvr_point point, uint32_t arg)
{
	(void)arg;
	if (point != KVR_POINT_create_closing)
		return;
	kill(playing->leader, SIGCONT);
	test_sleep_ms(50);
}

/* Another leader takes over from one that is dead or stopped. */
static struct kvr_group *take_over(struct cluster *cl, int early)
{
	struct kvr_group_opts go = {
		.size = sizeof go, .ranks = 1, .takeover = KVR_TAKEOVER_FENCE, .event_fd = -1
	};
	struct kvr_group *g;
	int status;

	playing = cl;
	ck_assert_int_eq(waitpid(cl->leader, &status, WUNTRACED), cl->leader);
	ck_assert(plan.act == ACT_FENCE ? WIFSTOPPED(status) : WIFSIGNALED(status));
	if (plan.act == ACT_STALE)
		cl->leader = 0;
	kvr_point_hook = early ? go_on : NULL;
	ck_assert_msg(!kvr_group_create(cl->name, &go, &g), "%s", kvr_explain());
	kvr_point_hook = NULL;
	reach(cl, STEP_TAKEN);
	await(cl, STEP_LOOKED, 1);
	if (plan.act == ACT_FENCE)
		kill(cl->leader, SIGCONT);
	return g;
}

static void play(struct plan p, int race_too, uint32_t killed)
{
	struct kvr_group *next = NULL;
	struct cluster cl;

	plan = p;
	racing = race_too;
	memset(stories, 0, sizeof *stories * PROCS);
	cluster_init(&cl, RANKS, 1, 32, 0);
	cl.opts.ring_bytes = 2048; /* a tick of several messages */
	cluster_start(&cl, leader_plays, rank_plays);
	if (plan.act == ACT_STALE || plan.act == ACT_FENCE)
		next = take_over(&cl, race_too > 1);
	cluster_join(&cl, killed, 30000);
	kvr_group_close(next);
	judge(&cl, killed | (plan.act == ACT_CLOSE ? LEADER : 0));
	cluster_exit(&cl);
}

/* --- who ends it ------------------------------------------------------------------------------ */

static const struct plan leader_dies[] = {
	{ ACT_TICK, KVR_POINT_publish_reserved, 0, -EOWNERDEAD, 1 },
	{ ACT_TICK, KVR_POINT_publish_copied, 0, -EOWNERDEAD, 1 },
	{ ACT_TICK, KVR_POINT_publish_copied, 1, -EOWNERDEAD, 1 },
	{ ACT_TICK, KVR_POINT_publish_copied, 2, -EOWNERDEAD, 1 },
	{ ACT_TICK, KVR_POINT_publish_committed, 0, -EOWNERDEAD, 1 },
	{ ACT_TICK, KVR_POINT_publish_marked, 0, -EOWNERDEAD, 1 },
	{ ACT_TICK, KVR_POINT_publish_reserved, 1, -EOWNERDEAD, 1 },
	{ ACT_TICK, KVR_POINT_publish_copied, 4, -EOWNERDEAD, 1 },
	{ ACT_TICK, KVR_POINT_publish_committed, 1, -EOWNERDEAD, 1 },
	{ ACT_TICK, KVR_POINT_publish_marked, 1, -EOWNERDEAD, 1 },
	{ ACT_TICK, KVR_POINT_publish_copied, 7, -EOWNERDEAD, 1 },
	{ ACT_TICK, KVR_POINT_publish_marked, 2, -EOWNERDEAD, 1 },
	{ ACT_TICK, KVR_POINT_tick_published, 0, -EOWNERDEAD, 1 },
	{ ACT_TICK, KVR_POINT_tick_done, 0, -EOWNERDEAD, 2 },
	{ ACT_BEGIN, KVR_POINT_publish_reserved, 0, -EOWNERDEAD, 1 },
	{ ACT_BEGIN, KVR_POINT_publish_copied, 0, -EOWNERDEAD, 1 },
	{ ACT_BEGIN, KVR_POINT_publish_copied, 2, -EOWNERDEAD, 1 },
	{ ACT_BEGIN, KVR_POINT_publish_committed, 0, -EOWNERDEAD, 1 },
	{ ACT_BEGIN, KVR_POINT_publish_marked, 0, -EOWNERDEAD, 1 },
	{ ACT_FAIL, KVR_POINT_fail_caused, 0, -EOWNERDEAD, 1 },
	{ ACT_FAIL, KVR_POINT_fail_declared, 0, -EIO, 1 },
	{ ACT_STALE, KVR_POINT_COUNT, 0, -ESTALE, 1 },
};
#define LEADER_DIES (int)(sizeof leader_dies / sizeof leader_dies[0])

START_TEST(test_a_leader_dies)
{
	const struct plan *p = &leader_dies[_i];

	play(*p, 0, LEADER);
	/* 4, 5, 6, 9; 3 twice and 8, unless tick 2 told them; 7, if its begin was published. */
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_uint_eq(stories[r].lost, 4 + stories[r].begun[0][7] +
							   (p->last == 2 ? 0
							    : r == 2	 ? 2
									 : 3));
	if (p->act == ACT_BEGIN)
		ck_assert_int_eq(stories[0].begun7,
				 p->point == KVR_POINT_publish_marked ? 1 : -EOWNERDEAD);
}
END_TEST

START_TEST(test_a_leader_declares_it_over)
{
	play((struct plan){ ACT_FAIL, KVR_POINT_COUNT, 0, -EIO, 1 }, 0, 0);
	ck_assert_uint_eq(stories[CLUSTER_LEAD].untold, 3); /* 3 twice, and 8 */
	ck_assert_uint_eq(stories[CLUSTER_LEAD].lost, 4);
	ck_assert_uint_eq(stories[0].lost, 7);
}
END_TEST

START_TEST(test_a_leader_closes_without_shutdown)
{
	play((struct plan){ ACT_CLOSE, KVR_POINT_COUNT, 0, -ESHUTDOWN, 1 }, 0, 0);
}
END_TEST

START_TEST(test_a_rank_dies)
{
	static const enum kvr_point points[] = { KVR_POINT_COUNT, KVR_POINT_take_peeked,
						 KVR_POINT_take_released };

	play((struct plan){ ACT_RANK_DIES, points[_i], 0, -EOWNERDEAD, 0 }, 0, 1u << 1);
	ck_assert_ptr_nonnull(strstr(stories[CLUSTER_LEAD].end_text, "rank 1"));
}
END_TEST

/*
 * The epoch ends while the leader is in a call: the tick that it would finish next is not done, for
 * rank 0 looked already and rank 2 looks later; the store that it begins is lost at once.
 */
START_TEST(test_a_rank_dies_while_the_leader_is_busy)
{
	static const struct plan plans[] = {
		{ ACT_TICK, KVR_POINT_publish_reserved, 0, -EOWNERDEAD, 1 },
		{ ACT_TICK, KVR_POINT_publish_marked, 0, -EOWNERDEAD, 1 },
		{ ACT_TICK, KVR_POINT_tick_published, 0, -EOWNERDEAD, 1 },
		{ ACT_BEGIN, KVR_POINT_publish_reserved, 0, -EOWNERDEAD, 1 },
		{ ACT_BEGIN, KVR_POINT_publish_marked, 0, -EOWNERDEAD, 1 },
	};

	play(plans[_i], 1, 1u << 1);
	if (plans[_i].act == ACT_BEGIN)
		ck_assert_int_eq(stories[CLUSTER_LEAD].begun7, 1);
}
END_TEST

/* What another leader saw of its ticks counts, and no other; the last one goes on meanwhile. */
START_TEST(test_a_leader_is_shut_out)
{
	static const struct plan plans[] = {
		{ ACT_FENCE, KVR_POINT_publish_copied, 1, -ESTALE, 1 },
		{ ACT_FENCE, KVR_POINT_publish_marked, 0, -ESTALE, 1 },
		{ ACT_FENCE, KVR_POINT_tick_published, 0, -ESTALE, 1 },
		{ ACT_FENCE, KVR_POINT_tick_checked, 0, -ESTALE, 1 },
		{ ACT_FENCE, KVR_POINT_tick_done, 0, -ESTALE, 2 },
		{ ACT_FENCE, KVR_POINT_tick_checked, 0, -ESTALE, 0 },
	};

	play(plans[_i], plans[_i].last ? 1 : 2, 0);
}
END_TEST

/* A store whose begin reached no rank is none, and has no end. */
START_TEST(test_a_rank_dies_before_a_begin_is_published)
{
	play((struct plan){ ACT_UNTOLD, KVR_POINT_COUNT, 0, -EOWNERDEAD, 1 }, 0, 1u << 1);
}
END_TEST

static Suite *make(void)
{
	Suite *s = suite_create("connector_lost");
	TCase *t = tcase_create("ends");

	tcase_set_timeout(t, 60);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, test_a_leader_dies, 0, LEADER_DIES);
	tcase_add_test(t, test_a_leader_declares_it_over);
	tcase_add_test(t, test_a_leader_closes_without_shutdown);
	tcase_add_loop_test(t, test_a_rank_dies, 0, 3);
	tcase_add_loop_test(t, test_a_rank_dies_while_the_leader_is_busy, 0, 5);
	tcase_add_loop_test(t, test_a_leader_is_shut_out, 0, 6);
	tcase_add_test(t, test_a_rank_dies_before_a_begin_is_published);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make);
}
