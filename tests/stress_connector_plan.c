/* SPDX-License-Identifier: Apache-2.0 */
/* What the flows of a round are: the same in every process, from the round's seed alone. */
#include "stress_connector_world.h"

static uint32_t pick(uint64_t *dice, uint32_t n)
{
	return (uint32_t)((work_rng(dice) >> 16) % n);
}

static uint64_t dice_of(uint64_t seed, uint64_t a, uint64_t b)
{
	uint64_t x = seed ^ a * 0x2545f4914f6cdd1dull ^ b * 0x9e3779b97f4a7c15ull;

	work_rng(&x);
	return x;
}

static uint32_t some_rank(const struct world *w, uint64_t *dice, uint32_t one_in)
{
	uint32_t r = pick(dice, w->ranks);

	return pick(dice, one_in) ? NOBODY : r;
}

/* --- keys ------------------------------------------------------------------------------------- */

static uint64_t family_at(const struct flow *t, uint32_t i)
{
	return i < t->branch ? t->family : t->other;
}

void plan_keys(const struct flow *t, struct kvr_key *ret)
{
	for (uint32_t i = 0; i < t->n; i++)
		ret[i] = cluster_key(family_at(t, i), i);
}

uint32_t plan_number(const struct world *w, const struct flow *t, uint32_t i)
{
	if (t->own)
		return W_SHARED_KEYS;
	return ((uint32_t)t->req.space * w->families + (uint32_t)family_at(t, i)) * w->length + i;
}

/* The bytes depend on the namespace, too: the key alone must not be enough to find a block. */
struct kvr_key plan_content(const struct flow *t, uint32_t i, uint32_t generation)
{
	return cluster_key(1000000 + 2 * generation + t->req.space,
			   (uint32_t)family_at(t, i) * 64 + i);
}

static void choose_keys(const struct world *w, uint32_t f, struct flow *t, uint64_t *dice)
{
	t->req.space = pick(dice, w->spaces);
	t->n = 1 + pick(dice, pick(dice, 3) ? w->length / 3 + 1 : w->length);
	if (t->n > w->length)
		t->n = w->length;
	t->family = pick(dice, w->families);
	t->other = pick(dice, 3) ? t->family : pick(dice, w->families);
	t->branch = pick(dice, t->n + 1);
	t->own = pick(dice, 6) == 0;
	if (t->own)
		t->family = t->other = 1000 + f;
}

/* --- requests --------------------------------------------------------------------------------- */

static void choose_faults(const struct world *w, struct flow *t, uint64_t *dice)
{
	static const uint32_t refusals[] = { KVR_KIND_LOOKUP, KVR_KIND_STORE, KVR_KIND_LOAD };
	uint32_t r;

	t->gives_up = some_rank(w, dice, 12);
	r = pick(dice, w->writers);
	t->fails = pick(dice, 10) ? NOBODY : r;
	t->lead_fails = pick(dice, 24) == 0;
	if (pick(dice, 16) == 0 && !w->alike)
		t->refuse = refusals[pick(dice, 3)];
	if (t->load == LOAD_LAYERS && pick(dice, 24) == 0) {
		t->late = pick(dice, w->ranks);
		t->early = (t->late + 1 + pick(dice, w->ranks - 1)) % w->ranks;
	} else if (t->load == LOAD_LAYERS && pick(dice, 24) == 0) {
		t->differs = pick(dice, w->ranks);
	}
}

static void choose_request(const struct world *w, struct flow *t, uint64_t *dice)
{
	static const uint32_t stages[] = { 0, 0, KVR_STAGE_COPIED, KVR_STAGE_HOST,
					   KVR_STAGE_WRITTEN };

	t->lookups = pick(dice, 5) ? 1 : pick(dice, w->max_lookups + 1);
	t->load = pick(dice, 4) ? (pick(dice, 3) || !w->layers ? LOAD_WHOLE : LOAD_LAYERS)
				: LOAD_NONE;
	t->load_n = 1 + pick(dice, t->n + 2);
	t->store_n = pick(dice, 4) ? 1 + pick(dice, t->n) : 0;
	t->part = w->max_parts > 1 && pick(dice, 2) ? (t->store_n + w->max_parts - 1) / w->max_parts
						    : t->store_n;
	t->wait = stages[pick(dice, 5)];
	t->twice = pick(dice, 8) == 0 && w->max_parts > 1 && !t->aborts;
	/* A leader that waits with its own shard for votes aborts nothing meanwhile. */
	if (w->joint && t->aborts && t->load)
		t->load = LOAD_WHOLE;
	if (!w->calm)
		choose_faults(w, t, dice);
}

static void choose_abort(const struct world *w, struct flow *t, uint64_t *dice)
{
	if (!w->aborts || pick(dice, 5))
		return;
	t->aborts = 1 + pick(dice, 2);
	t->abort_step = pick(dice, pick(dice, 2) ? 5 : 14);
}

/* --- the others ------------------------------------------------------------------------------- */

static void choose_decision(const struct world *w, struct flow *t, uint64_t *dice)
{
	t->len = pick(dice, 40);
	t->contested = pick(dice, 3) == 0;
	t->refuse = pick(dice, 16) || w->alike ? NOBODY : KVR_KIND_DECISION;
	t->lead_fails = pick(dice, 12) == 0;
	if (w->calm)
		t->lead_fails = 0;
	else if (pick(dice, 30) == 0)
		t->late = pick(dice, w->ranks);
	t->votes_ms = 2 + pick(dice, 20);
}

static void choose_reset(const struct world *w, uint32_t f, struct flow *t, uint64_t *dice)
{
	t->barrier = 1;
	t->own = 1;
	t->family = t->other = 1000 + f;
	t->n = t->store_n = 2;
	t->reset = w->alike ? RESET_CLEAN : (enum reset_how)pick(dice, RESET_HOWS);
	t->someone = pick(dice, w->ranks);
	t->aborts = 0;
}

static void choose_flip(const struct world *w, struct flow *t, uint64_t *dice)
{
	t->barrier = 1;
	t->own = 0;
	t->family = t->other = pick(dice, w->families);
	t->n = 1 + pick(dice, w->length);
	t->lookups = 1;
	t->load = pick(dice, 3) || !w->layers ? LOAD_WHOLE : LOAD_LAYERS;
	t->load_n = t->n;
	t->someone = pick(dice, w->ranks);
	t->aborts = 0;
}

static enum flow_kind kind_of(const struct world *w, uint64_t *dice)
{
	uint32_t x = pick(dice, 256), k = 0;

	while (k < FLOW_KINDS - 1 && x >= w->mix[k])
		x -= w->mix[k++];
	return (enum flow_kind)k;
}

/*
 * A name is used again as soon as the flow that had it is surely over; but not after an abort of
 * it, nor when a rank did not take an answer of it.
 */
void plan_ids(const struct world *w)
{
	uint32_t retired[W_WINDOW] = { 0 };

	for (uint32_t f = 0; f < w->flows; f++) {
		uint32_t *r = &retired[f % W_WINDOW];
		struct flow t;

		plan_flow(w, f, &t);
		w->shared->id[f] = 1 + f % W_WINDOW + *r * W_WINDOW;
		*r += t.aborts || t.kind == FLOW_RESET;
	}
}

void plan_flow(const struct world *w, uint32_t f, struct flow *ret)
{
	uint64_t dice = dice_of(w->seed, f, 1);
	struct flow *t = ret;

	*t = (struct flow){ .refuse = NOBODY,
			    .fails = NOBODY,
			    .gives_up = NOBODY,
			    .late = NOBODY,
			    .early = NOBODY,
			    .differs = NOBODY,
			    .refuse_status = -(int)(200 + f % 30) };
	t->kind = kind_of(w, &dice);
	choose_keys(w, f, t, &dice);
	choose_abort(w, t, &dice);
	switch (t->kind) {
	case FLOW_REQUEST:
		choose_request(w, t, &dice);
		break;
	case FLOW_PREFETCH:
		t->budget = pick(&dice, 3) ? 0 : 1 + pick(&dice, t->n);
		t->cancels = pick(&dice, 4) == 0;
		t->refuse = pick(&dice, 16) || w->alike ? NOBODY : KVR_KIND_PREFETCH;
		break;
	case FLOW_DECISION:
		choose_decision(w, t, &dice);
		break;
	case FLOW_RESET:
		choose_reset(w, f, t, &dice);
		break;
	default:
		choose_flip(w, t, &dice);
	}
	if (!t->barrier && pick(&dice, t->aborts ? 2 : 10) == 0)
		t->again = t->aborts || pick(&dice, 2) ? AGAIN_RETRY : AGAIN_SAME_NAME;
	if (w->max_parts == 1)
		t->again = AGAIN_NOT;
	t->req.id = w->shared->id[f];
	t->dice = dice;
}

/* In its second pass nobody aborts it, and nobody is late. */
void plan_second(struct flow *t)
{
	t->aborts = 0;
	t->late = t->early = NOBODY;
}

/* --- decisions -------------------------------------------------------------------------------- */

int plan_vote(const struct world *w, const struct flow *t, uint32_t pass, uint32_t rank)
{
	uint64_t dice = dice_of(t->dice, pass, 100 + rank);

	if (!t->contested || pick(&dice, w->ranks))
		return 0;
	return -300 - (int)pick(&dice, 90); /* like nothing that the library says itself */
}

int plan_outcome(const struct world *w, const struct flow *t, uint32_t pass, uint32_t rank)
{
	uint64_t dice = dice_of(t->dice, pass, 200 + rank);

	if (w->calm || pick(&dice, 6 * w->ranks))
		return 0;
	return -300 - (int)pick(&dice, 90); /* like nothing that the library says itself */
}

uint32_t plan_manifest(const struct flow *t, uint32_t pass, uint8_t *ret)
{
	for (uint32_t i = 0; i < t->len; i++)
		ret[i] = (uint8_t)(t->dice >> i % 56 ^ i ^ pass);
	return t->len;
}
