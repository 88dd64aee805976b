/* SPDX-License-Identifier: Apache-2.0 */
/* See oracle.h. */
#include "oracle.h"

#include "fault.h"
#include "store_kit.h"
#include "store_state.h"
#include "util.h"

#define DEVICES_MAX 2u
#define DEVICE_BYTES (1u << 20) /* 42 slots */
#define KEYS 90u
#define OPS 12u

/* What the caller of a store knows of a key. */
struct entry {
	int live;
	int ended;   /* its write did */
	int durable; /* and a sync followed */
	int proven;  /* must load: its bytes cannot have been lost on an honest device */
	uint32_t busy;
	kvr_where where;
	uint64_t seq, sum;
};

struct issued {
	uint64_t seq;
	uint32_t number;
	uint32_t generation; /* the model's own count of resets and formats */
};

struct slot_op {
	struct kvr_store_op op;
	int inflight, is_read;
	uint32_t number;
	uint64_t seq;
};

struct world {
	uint64_t rng;
	int lying;
	enum mutant mutant;
	uint32_t ndev;
	struct kvr_io *io[DEVICES_MAX];
	struct kvr_store *store;
	struct kvr_store_opts opts;
	struct entry entry[KEYS];
	struct slot_op ops[OPS];
	struct issued *issued;
	uint64_t nissued, room;
	uint32_t generation;
	int in_doubt; /* a reset failed: it holds, or it does not */
	uint64_t store_generation;
	uint64_t next_seq, retired;
	uint64_t seed;
	struct oracle_verdict v;
};

/* Where it was noticed helps more than that it was. */
#define BROKEN(w) ((w)->v.broken++, (w)->v.broken_line = __LINE__)

/* Something without which the world cannot go on: also names the seed. */
#define REQUIRE(w, cond)                                                                           \
	do {                                                                                       \
		if (!(cond))                                                                       \
			ck_abort_msg("seed %llu: not true: %s; %s", (unsigned long long)(w)->seed, \
				     #cond, kvr_explain());                                        \
	} while (0)

static int syncs_fail;

static uint64_t pick(struct world *w, uint64_t n)
{
	return kit_rng(&w->rng) % n;
}

/* --- the devices ------------------------------------------------------------------------------ */

static void set_rates(struct world *w, int opening)
{
	struct kvr_fault_rates r = {
		.short_io = 300, .eagain = 300, .late = 500, .reorder = 1, .eio = 100
	};
	uint32_t i;

	if (opening && !w->lying)
		r.eio = 0; /* a sector of the table that cannot be read costs its records */
	if (w->lying) {
		r.lost_write = r.torn_write = r.misdirected = r.flip = 100;
		r.enospc = 20;
		r.gone = 1;
	}
	syncs_fail = 0;
	for (i = 0; i < w->ndev; i++)
		kvr_fault_set_rates(w->io[i], &r);
}

/*
 * Devices that break off: they go away, or lie, or say that a sync failed (so that what was written
 * before is in doubt when power goes). Until set_rates().
 */
static int (*real_sync)(struct kvr_io *io);

static int doubtful_sync(struct kvr_io *io)
{
	return syncs_fail ? -EIO : real_sync(io);
}

static void break_device(struct world *w, uint32_t i)
{
	struct kvr_fault_rates r = { .reorder = 1 };

	syncs_fail = pick(w, 3) == 0;
	if (w->lying && pick(w, 2))
		r.lost_write = r.torn_write = 3000;
	else if (!syncs_fail)
		r.gone = 1500;
	kvr_fault_set_rates(w->io[i], &r);
}

static void crash(struct world *w)
{
	uint32_t i;

	for (i = 0; i < w->ndev; i++)
		kvr_fault_crash(w->io[i], kit_rng(&w->rng));
	w->v.crashes++;
}

/* --- the model -------------------------------------------------------------------------------- */

static const struct issued *issued_find(const struct world *w, uint64_t seq)
{
	uint64_t lo = 0, hi = w->nissued, mid;

	while (lo < hi) { /* seqs rise */
		mid = (lo + hi) / 2;
		if (w->issued[mid].seq < seq)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < w->nissued && w->issued[lo].seq == seq ? &w->issued[lo] : NULL;
}

static void issue(struct world *w, uint32_t number, uint64_t seq)
{
	if (w->nissued == w->room) {
		w->room = w->room ? 2 * w->room : 1024;
		w->issued = realloc(w->issued, w->room * sizeof *w->issued);
		REQUIRE(w, w->issued);
	}
	if (w->nissued && w->issued[w->nissued - 1].seq >= seq)
		BROKEN(w);
	w->issued[w->nissued++] = (struct issued){ seq, number, w->generation };
}

/* Slots: used as the model counts them, the rest can be allocated, and no more. */
static void count_slots(struct world *w)
{
	static kvr_where got[DEVICES_MAX * 64];
	struct kvr_store_info info;
	uint64_t used = 0, n = 0, i;

	kvr_store_info(w->store, &info);
	for (i = 0; i < KEYS; i++)
		used += w->entry[i].live != 0;
	if (info.used != used || info.retired_slots != w->retired)
		BROKEN(w);
	if (info.devices_offline)
		return;
	while (n < KVR_ARRAY_LEN(got) && !kvr_store_alloc(w->store, &got[n]))
		n++;
	if (n + info.used + info.retired_slots != info.slots)
		BROKEN(w);
	for (i = 0; i < n; i++)
		kvr_store_free(w->store, got[i]);
}

static void drop(struct world *w, uint32_t number, int retire)
{
	struct entry *e = &w->entry[number];

	if (retire) {
		kvr_store_retire(w->store, e->where);
		w->retired++;
	} else {
		kvr_store_free(w->store, e->where);
	}
	e->live = 0;
}

static void forget_all(struct world *w)
{
	memset(w->entry, 0, sizeof w->entry);
	w->retired = 0;
}

/* --- loads and stores ------------------------------------------------------------------------- */

static void judge_load(struct world *w, struct slot_op *s)
{
	struct entry *e = &w->entry[s->number];
	int err = s->op.result;

	if (err == -EBADMSG && w->mutant == MUTANT_TAKE_BADMSG)
		err = 0;
	if (!err && w->mutant != MUTANT_SKIP_SEGMENTS && w->mutant != MUTANT_TAKE_BADMSG)
		err = kit_verify(s->op.image, w->store, &s->op.key);
	if (!err) {
		w->v.hits++;
		w->v.wrong += !kit_bytes_right(s->op.image, w->store, &s->op.key, s->seq);
		e->proven = 1;
		return;
	}
	if (err != -EBADMSG) {
		w->v.errors++; /* the device said so; the next try may go well */
		return;
	}
	w->v.misses++;
	if (!w->lying && e->proven)
		w->v.missing++;
	if (!e->busy)
		drop(w, s->number, (int)pick(w, 2));
}

static void ended(struct world *w, struct kvr_store_op *op)
{
	struct slot_op *s = op->user;
	struct entry *e = &w->entry[s->number];

	if (!s->inflight) { /* twice */
		BROKEN(w);
		return;
	}
	s->inflight = 0;
	e->busy--;
	if (s->is_read) {
		judge_load(w, s);
	} else if (op->result) {
		w->v.errors++;
		drop(w, s->number, (int)pick(w, 2));
	} else {
		e->ended = e->proven = 1;
	}
}

static void poll_some(struct world *w)
{
	struct kvr_store_op *got[4];
	int n = kvr_store_poll(w->store, got, 1 + (uint32_t)pick(w, 4)), i;

	for (i = 0; i < n; i++)
		ended(w, got[i]);
}

/* Every operation ends, within a bound that only a lost one exceeds. */
static void drain(struct world *w)
{
	uint64_t i;

	for (i = 0; kvr_store_pending(w->store); i++) {
		poll_some(w);
		if (i == 100000) {
			BROKEN(w);
			return;
		}
	}
	for (i = 0; i < OPS; i++)
		if (w->ops[i].inflight)
			BROKEN(w);
}

static struct slot_op *idle_op(struct world *w)
{
	uint32_t i, at = (uint32_t)pick(w, OPS);

	for (i = 0; i < OPS; i++)
		if (!w->ops[(at + i) % OPS].inflight)
			return &w->ops[(at + i) % OPS];
	return NULL;
}

/* A block that nobody uses, or KEYS. */
static uint32_t victim(struct world *w)
{
	uint32_t i, at = (uint32_t)pick(w, KEYS);

	for (i = 0; i < KEYS; i++, at = (at + 1) % KEYS)
		if (w->entry[at].live && !w->entry[at].busy)
			return at;
	return KEYS;
}

static void start_op(struct world *w, struct slot_op *s, uint32_t number, int is_read)
{
	struct entry *e = &w->entry[number];

	s->op.where = e->where;
	s->op.key = kit_key(number);
	s->op.space = 1;
	s->op.seq = e->seq;
	s->op.header_checksum = e->sum;
	s->op.demand = (uint32_t)pick(w, 2);
	s->op.user = s;
	s->is_read = is_read;
	s->number = number;
	s->seq = e->seq;
	s->inflight = 1;
	e->busy++;
}

static void start_store(struct world *w)
{
	uint32_t number = (uint32_t)pick(w, KEYS), other;
	struct entry *e = &w->entry[number];
	struct slot_op *s = idle_op(w);
	kvr_where where;

	if (!s || e->busy)
		return;
	if (e->live)
		drop(w, number, 0);
	while (kvr_store_alloc(w->store, &where)) {
		other = victim(w);
		if (other == KEYS)
			return;
		drop(w, other, 0);
	}
	*e = (struct entry){ .live = 1, .where = where, .seq = w->next_seq++ };
	start_op(w, s, number, 0);
	e->sum = s->op.header_checksum = kit_fill(s->op.image, w->store, &s->op.key, e->seq);
	issue(w, number, e->seq);
	w->v.stores++;
	if (kvr_store_write(w->store, &s->op)) {
		s->inflight = 0;
		e->busy--;
		drop(w, number, 0);
	}
}

static void start_load(struct world *w)
{
	uint32_t number = (uint32_t)pick(w, KEYS);
	struct entry *e = &w->entry[number];
	struct slot_op *s = idle_op(w);

	if (!s || !e->live || !e->ended)
		return;
	start_op(w, s, number, 1);
	memset(s->op.image, 0x5a, w->store->geo.slot_bytes);
	w->v.loads++;
	if (kvr_store_read(w->store, &s->op)) {
		s->inflight = 0;
		e->busy--;
	}
}

static void sync_all(struct world *w)
{
	uint32_t i;

	for (i = 0; i < w->ndev; i++)
		if (w->io[i]->ops->sync(w->io[i]))
			return;
	for (i = 0; i < KEYS; i++)
		w->entry[i].durable = w->entry[i].live && w->entry[i].ended;
}

/* --- opening ---------------------------------------------------------------------------------- */

struct recovery {
	struct world *w;
	struct entry entry[KEYS];
};

static void take_found(void *arg, const struct kvr_store_found *found)
{
	struct recovery *r = arg;
	struct world *w = r->w;
	const struct issued *is = issued_find(w, found->seq);
	struct kvr_key key;

	w->v.found++;
	if (is)
		key = kit_key(is->number);
	if (!is || is->generation != w->generation || memcmp(&key, &found->key, sizeof key) ||
	    found->space != 1 || r->entry[is->number].live) {
		w->v.wrong++;
		return;
	}
	r->entry[is->number] = (struct entry){ .live = 1,
					       .ended = 1,
					       .where = found->where,
					       .seq = found->seq,
					       .sum = found->header_checksum };
}

/* cut: power was lost, so that only what a sync followed is sure. */
static void compare_found(struct world *w, int cut)
{
	static struct recovery r;
	uint32_t i;

	if (w->in_doubt && w->store->cache_generation > w->store_generation) {
		w->generation++;
		forget_all(w);
	}
	w->in_doubt = 0;
	memset(&r, 0, sizeof r);
	r.w = w;
	kvr_store_scan(w->store, take_found, &r);
	for (i = 0; i < KEYS; i++) {
		const struct entry *before = &w->entry[i];
		struct entry *now = &r.entry[i];
		int sure = before->live && before->ended && before->proven &&
			   (!cut || before->durable);

		if (!w->lying && sure && (!now->live || now->seq != before->seq))
			w->v.missing++;
		now->proven = sure && now->seq == before->seq;
		now->durable = now->proven && before->durable;
	}
	memcpy(w->entry, r.entry, sizeof w->entry);
	w->retired = 0;
}

static void load_all(struct world *w)
{
	uint32_t i;

	for (i = 0; i < KEYS; i++) {
		struct entry *e = &w->entry[i];
		struct slot_op *s = &w->ops[0];

		if (!e->live)
			continue;
		start_op(w, s, i, 1);
		memset(s->op.image, 0x5a, w->store->geo.slot_bytes);
		w->v.loads++;
		REQUIRE(w, !kvr_store_read(w->store, &s->op));
		drain(w);
	}
}

static void open_blank(struct world *w)
{
	int err, tries = 0;

	do {
		set_rates(w, 1);
		err = kvr_store_open_io(&w->opts, w->io, w->ndev, 1, &w->store);
		REQUIRE(w, ++tries < 100);
	} while (err);
	w->v.formats++;
	w->generation++;
	forget_all(w);
	w->next_seq = kvr_store_next_seq(w->store);
	w->in_doubt = 0;
	w->nissued = 0; /* all before is nobody's: seqs may begin anew */
}

/* Devices that lie may have lost both superblocks. Others may not. */
static void open_again(struct world *w, int cut)
{
	int err = 0, tries;

	if (pick(w, 4) == 0) { /* an opening that breaks off anywhere, and power goes again */
		uint32_t i;

		for (i = 0; i < w->ndev; i++)
			break_device(w, i);
		if (!kvr_store_open_io(&w->opts, w->io, w->ndev, 0, &w->store))
			store_destroy(w->store);
		crash(w);
		cut = 1;
	}
	for (tries = 0; tries < 5; tries++) {
		set_rates(w, 1);
		err = kvr_store_open_io(&w->opts, w->io, w->ndev, 0, &w->store);
		if (!err)
			break;
	}
	w->v.opens++;
	if (err) {
		if (!w->lying)
			w->v.missing++;
		open_blank(w);
		return;
	}
	compare_found(w, cut);
	/* Seqs of different runs may not meet, unless the superblock that knew was overwritten. */
	if (kvr_store_next_seq(w->store) >= w->next_seq)
		w->next_seq = kvr_store_next_seq(w->store);
	else if (!w->lying)
		BROKEN(w);
	set_rates(w, 0);
	load_all(w);
	count_slots(w);
}

static void power_cut(struct world *w)
{
	uint32_t i;

	if (w->mutant == MUTANT_LOSE_RECORDS)
		sync_all(w);
	crash(w);
	store_destroy(w->store); /* without a word to the devices: the process is gone, too */
	for (i = 0; i < OPS; i++)
		w->ops[i].inflight = 0;
	if (w->mutant == MUTANT_LOSE_RECORDS)
		memset(kvr_fault_image(w->io[0]) + KVR_TABLE_OFFSET, 0, 2048);
	open_again(w, 1);
}

static void clean_end(struct world *w)
{
	drain(w);
	count_slots(w);
	if (kvr_store_close(w->store, test_deadline_ms(1000)))
		BROKEN(w);
	open_again(w, 0);
}

/* Sometimes with a device that breaks off meanwhile. */
static void reset(struct world *w)
{
	uint32_t i;
	int err;

	drain(w);
	if (pick(w, 2))
		break_device(w, (uint32_t)pick(w, w->ndev));
	w->store_generation = w->store->cache_generation;
	err = w->mutant == MUTANT_OLD_BLOCKS ? 0 : kvr_store_reset(w->store, NULL);
	w->v.resets++;
	if (err) { /* void or not: the store has said that it does not know */
		w->in_doubt = 1;
		power_cut(w);
		return;
	}
	w->generation++;
	forget_all(w);
	for (i = 0; i < w->ndev; i++) {
		if (w->store->dev[i].nused && w->mutant != MUTANT_OLD_BLOCKS)
			BROKEN(w);
		w->retired += w->store->dev[i].nretired;
	}
	if (w->mutant == MUTANT_OLD_BLOCKS || pick(w, 2))
		power_cut(w);
	else
		set_rates(w, 0);
}

/* --- a round ---------------------------------------------------------------------------------- */

static void step(struct world *w)
{
	uint64_t what = pick(w, 1000);
	uint32_t number;

	if (what < 330) {
		start_store(w);
	} else if (what < 560) {
		start_load(w);
	} else if (what < 580) {
		number = victim(w);
		if (number < KEYS)
			drop(w, number, 0);
	} else if (what < 590) {
		sync_all(w);
	} else if (what < 594) {
		power_cut(w);
	} else if (what < 596) {
		clean_end(w);
	} else if (what < 597) {
		reset(w);
	} else {
		poll_some(w);
	}
}

static void world_run(struct world *w, uint64_t seed, int lying, enum mutant mutant, int steps)
{
	static struct kvr_io_ops ops;
	uint32_t i;

	memset(w, 0, sizeof *w);
	w->rng = w->seed = seed;
	w->lying = lying;
	w->mutant = mutant;
	w->ndev = 1 + (uint32_t)pick(w, DEVICES_MAX);
	w->opts = (struct kvr_store_opts){ .size = sizeof w->opts,
					   .model = &kit_model,
					   .shape = &kit_shape };
	for (i = 0; i < w->ndev; i++) {
		REQUIRE(w, !kvr_fault_open(DEVICE_BYTES, pick(w, 2) ? 4096 : 512,
					   1 + (uint32_t)pick(w, 16), kit_rng(&w->rng), NULL,
					   &w->io[i]));
		ops = *w->io[i]->ops; /* those of the next device are equal */
		real_sync = ops.sync;
		ops.sync = doubtful_sync;
		w->io[i]->ops = &ops;
	}
	open_blank(w);
	set_rates(w, 0);
	for (i = 0; i < OPS; i++)
		w->ops[i].op.image = kit_image(w->store);
	while (steps-- > 0 && !w->v.broken)
		step(w);
	if (!w->v.broken)
		clean_end(w);
	if (!w->v.broken)
		drain(w);
	store_destroy(w->store);
	for (i = 0; i < OPS; i++)
		free(w->ops[i].op.image);
	for (i = 0; i < w->ndev; i++)
		kvr_fault_free(w->io[i]);
	free(w->issued);
}

struct oracle_verdict oracle_run(uint64_t seed, int lying, enum mutant mutant, int steps)
{
	static struct world w;

	world_run(&w, seed, lying, mutant, steps);
	return w.v;
}

int oracle_bad(const struct oracle_verdict *v)
{
	return v->wrong || v->missing || v->broken;
}

void oracle_add(struct oracle_verdict *sum, const struct oracle_verdict *v)
{
	sum->wrong += v->wrong;
	sum->missing += v->missing;
	sum->broken += v->broken;
	sum->stores += v->stores;
	sum->loads += v->loads;
	sum->hits += v->hits;
	sum->misses += v->misses;
	sum->errors += v->errors;
	sum->found += v->found;
	sum->crashes += v->crashes;
	sum->opens += v->opens;
	sum->resets += v->resets;
	sum->formats += v->formats;
}

void oracle_print(const char *devices, uint64_t rounds, const struct oracle_verdict *v)
{
	typedef unsigned long long ull;

	printf("%s devices: %llu rounds, %llu hits, %llu misses, %llu errors, %llu found after "
	       "%llu crashes, %llu formats; wrong %llu, missing %llu, broken %llu\n",
	       devices, (ull)rounds, (ull)v->hits, (ull)v->misses, (ull)v->errors, (ull)v->found,
	       (ull)v->crashes, (ull)v->formats, (ull)v->wrong, (ull)v->missing, (ull)v->broken);
}
