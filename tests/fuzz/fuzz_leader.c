/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A leader with a connector, and two ranks that are bytes alone: their pages, cursors and
 * acknowledgements hold what the input says, and change whenever it says so, also in the middle of
 * a call. The engine's thread looks at them at any moment.
 *
 * Whatever they hold, a call ends, soon after its deadline, with a count or an errno; blocks lie in
 * the pool, an operation has one end; the ranks' pages stay as they are; and a close leaves
 * nothing.
 */
#include "fuzz.h"

#include "group.h"
#include "kvring/connector.h"
#include "kvring/wait.h"
#include "segment.h"

#define RANKS 2u
#define SLOTS 4u
#define KEYS 4u /* one more than an operation can have */
#define HANG_NS (5 * KVR_SEC)

static struct side {
	struct kvr_connector *c;
	struct kvr_layout l;
	int fd;
	uint8_t *map, *shadow; /* the file; the ranks' part of it as it must be */
	struct kvr_key keys[KEYS];
	uint64_t begun, ended; /* operations */
	uint32_t millis;       /* how long the waits of this input may still last */
	int patience;	       /* in how many waits it may still be in vain */
	int strange;	       /* acknowledgements were not only those of a story */
	int tired; /* a call took long: a refusal, which ranks that read nothing must get */
} g;

/* --- the ranks ------------------------------------------------------------------------ */

static void rank_store(uint64_t off, const void *bytes, size_t len)
{
	memcpy(g.map + off, bytes, len);
	memcpy(g.shadow + off, bytes, len);
}

static void rank_word(uint64_t off, uint64_t v)
{
	rank_store(off, &v, sizeof v);
}

static uint64_t page_of(uint32_t rank)
{
	return kvr_layout_rank(&g.l, rank);
}

static void ring_leader(void)
{
	struct kvr_bell *bells = (void *)(g.map + g.l.bells);

	kvr_bell_ring(&bells[RANKS]);
}

/* Both attach, as it looks from outside. */
static void ranks_come(void)
{
	struct kvr_proc p = { .life = 4711, .state = KVR_PROC_ACTIVE, .pid = (uint32_t)getpid() };

	for (p.rank = 0; p.rank < RANKS; p.rank++)
		rank_store(page_of(p.rank), &p, sizeof p);
}

/* Reads what is in a ring: all of it, or `more`. */
static void take(uint32_t rank, uint32_t channel, uint64_t more)
{
	uint64_t ctl, page = page_of(rank);

	memcpy(&ctl, g.map + kvr_layout_ring(&g.l, channel, rank), sizeof ctl);
	rank_word(page + offsetof(struct kvr_rank_page, cursor) +
			  channel * sizeof(struct kvr_ring_cursor),
		  (ctl >> 32) + more);
	rank_word(page + offsetof(struct kvr_rank_page, taken) + channel * 8u, (uint32_t)ctl);
}

static void rank_reads(struct script *s)
{
	uint32_t rank = script_u8(s) % RANKS, channel;

	for (channel = 0; channel < KVR_CHANNELS; channel++)
		take(rank, channel, script_delta(s));
	ring_leader();
}

/* What is refused is told to the ranks, which gets a second if they do not read: too long here. */
static void make_room(uint32_t channel)
{
	uint32_t rank;

	for (rank = 0; rank < RANKS; rank++)
		take(rank, channel, 0);
}

static uint32_t gen_of(uint32_t entry)
{
	uint64_t word;

	memcpy(&word, g.map + g.l.leader_ops + entry * sizeof(struct kvr_op_entry), sizeof word);
	return kvr_word_gen(word);
}

static void ack(uint32_t ranks, uint32_t entry, uint64_t word)
{
	uint32_t rank;

	for (rank = 0; rank < RANKS; rank++)
		if (ranks >> rank & 1)
			rank_word(page_of(rank) + g.l.rank_acks +
					  entry * sizeof(struct kvr_ack_entry),
				  word);
	ring_leader();
}

/* An acknowledgement for what an entry of the table is now, or nearly so. */
static void rank_acks(struct script *s)
{
	uint32_t ranks = 1 + script_u8(s) % 3, entry = script_u8(s) % 4;
	uint8_t how = script_u8(s), value = script_u8(s);

	ack(ranks, entry,
	    kvr_word(gen_of(entry) + (how >= 0xf0), how < 0xe0 ? 1 + how % 4u : how,
		     value < 0xe0 ? value % (KEYS + 1) : script_u32(s)));
}

/* Dies, leaves, or looks strange. */
static void rank_goes(struct script *s)
{
	uint64_t page = page_of(script_u8(s) % RANKS);
	uint8_t how = script_u8(s);
	uint32_t life = how % 4 == 0 ? FUTEX_OWNER_DIED : how % 4 == 1 ? 0 : 4711;
	uint32_t state = how / 4 % 5;

	if (how >= 0x60)
		return;
	rank_store(page + offsetof(struct kvr_proc, state), &state, sizeof state);
	rank_store(page + offsetof(struct kvr_proc, life), &life, sizeof life);
	ring_leader();
}

/* Any number that is not the leader's own. */
static void rank_change(struct script *s)
{
	struct seg_place p = seg_pick(s, &g.l);
	uint64_t v = seg_value(s, seg_get(g.fd, p.off, p.size));

	if (p.off + p.size > g.l.leader && p.off < g.l.leader_end)
		return;
	rank_store(p.off, &v, p.size);
}

/* A rank may write any byte of the pool. */
static void rank_pool(struct script *s)
{
	uint64_t bytes, off, v;
	uint8_t *mem = kvr_connector_pool(g.c, &bytes);

	off = script_u16(s) * 8u % bytes;
	memcpy(&v, mem + off, sizeof v);
	v = seg_value(s, v);
	memcpy(mem + off, &v, sizeof v);
}

static void rank_step(struct script *s)
{
	g.strange = 1;
	switch (script_u8(s) % 16) {
	case 0:
		rank_goes(s);
		break;
	case 1:
		rank_pool(s);
		break;
	case 2:
	case 3:
	case 4:
		rank_change(s);
		break;
	case 5:
	case 6:
	case 7:
	case 8:
		rank_reads(s);
		break;
	default:
		rank_acks(s);
		break;
	}
}

/* --- calls ------------------------------------------------------------------------------ */

static struct seg_later later;
static _Thread_local int calling; /* not the engine's thread */
static uint64_t call_start;

/* The library's clock, and that of everybody else in this program. */
int clock_gettime(clockid_t id, struct timespec *ret)
{
	if (calling && seg_later_now(&later)) {
		calling = 0;
		while (later.s.left)
			rank_step(&later.s);
		calling = 1;
	}
	return (int)syscall(SYS_clock_gettime, id, ret);
}

static void call_begin(struct script *s)
{
	seg_later_set(&later, s, 12);
	call_start = kvr_now();
	calling = 1;
}

/* The engine may be at work: only the leader's pages and the bells are left out. */
static int call_end(uint64_t deadline, int rc)
{
	uint64_t until = kvr_max(call_start, deadline) + HANG_NS;

	calling = 0;
	must(kvr_now() < until);
	must(rc >= -4095 && (rc >= 0 || *kvr_explain()));
	g.tired |= kvr_now() > call_start + KVR_SEC / 2;
	must(!memcmp(g.map, g.shadow, g.l.bells));
	must(!memcmp(g.map + g.l.rank0, g.shadow + g.l.rank0, g.l.total - g.l.rank0));
	return rc;
}

static uint64_t any_deadline(struct script *s)
{
	uint8_t how = script_u8(s);

	if (how < 0x60 || !g.millis)
		return how % 2;
	g.millis--;
	return kvr_now() + KVR_MS;
}

static struct kvr_request any_request(struct script *s)
{
	uint8_t how = script_u8(s);

	return (struct kvr_request){ .id = how % 3, .space = how >= 0xf0, .attempt = how / 3 % 2 };
}

static void check_blocks(const struct kvr_block *b, int n, uint32_t keys)
{
	uint64_t bytes;
	const uint8_t *mem = kvr_connector_pool(g.c, &bytes);
	int i, k;

	for (i = 0; i < n; i++) {
		if (!b[i].payload) /* the ranks were done with it */
			continue;
		must(b[i].slot < SLOTS && b[i].index < keys);
		must(b[i].payload > mem && b[i].payload < mem + bytes);
		for (k = 0; k < i; k++)
			must(!b[k].payload || b[k].slot != b[i].slot);
	}
}

static void lead_lookup(struct script *s, const struct kvr_request *r)
{
	uint32_t n = script_u8(s) % (KEYS + 1);
	uint64_t deadline = any_deadline(s);
	struct kvr_hit hit = { 0 };
	int rc;

	call_begin(s);
	rc = call_end(deadline, kvr_connector_lookup(g.c, r, g.keys, n, deadline, &hit));
	must(rc <= 0 && hit.blocks <= n && hit.host + hit.nvme == hit.blocks);
}

/* Returns what the call returned. */
static int store_begin(struct script *s, const struct kvr_request *r)
{
	uint32_t n = script_u8(s) % (KEYS + 1), covered = 0;
	uint64_t deadline = any_deadline(s);
	struct kvr_block *b = malloc(KEYS * sizeof *b);
	int rc;

	must(b);
	make_room(KVR_CH_STORE);
	call_begin(s);
	rc = call_end(deadline + 2 * KVR_SEC,
		      kvr_connector_store_begin(g.c, r, g.keys, n, deadline, b, KEYS, &covered));
	must(rc <= (int)n && covered <= n && rc <= (int)covered);
	must(covered <= kvr_connector_max_blocks(g.c));
	check_blocks(b, rc, n);
	g.begun += rc >= 0;
	free(b);
	return rc;
}

static void lead_store_begin(struct script *s, const struct kvr_request *r)
{
	store_begin(s, r);
}

static int load_begin(struct script *s, const struct kvr_request *r)
{
	uint32_t n = script_u8(s) % (KEYS + 1);
	uint64_t deadline = any_deadline(s);
	int rc;

	make_room(KVR_CH_LOAD);
	call_begin(s);
	rc = call_end(deadline + 2 * KVR_SEC, kvr_connector_load_begin(g.c, r, n, deadline));
	must(rc <= (int)n);
	g.begun += rc > 0;
	return rc;
}

static void lead_load_begin(struct script *s, const struct kvr_request *r)
{
	load_begin(s, r);
}

static void lead_load_wait(struct script *s, const struct kvr_request *r)
{
	uint32_t max = script_u8(s) % (KEYS + 1);
	uint64_t deadline = any_deadline(s);
	struct kvr_block *b = malloc(max * sizeof *b);
	int rc;

	must(b);
	call_begin(s);
	rc = call_end(deadline, kvr_connector_load_wait(g.c, r, g.keys, deadline, b, max));
	must(rc <= (int)max);
	check_blocks(b, rc, KEYS);
	free(b);
}

static void lead_wait_store(struct script *s, const struct kvr_request *r)
{
	uint64_t deadline = any_deadline(s);
	enum kvr_stage stage = KVR_STAGE_COPIED + script_u8(s) % 4;

	call_begin(s);
	must(call_end(deadline, kvr_connector_wait_store(g.c, r, stage, deadline)) <= 0);
}

static void lead_tick(struct script *s, const struct kvr_request *r)
{
	enum kvr_tick_mode mode = script_u8(s) % 3;
	uint64_t tick = script_u8(s), deadline = any_deadline(s);
	uint32_t max = script_u8(s) % 8;
	struct kvr_completion *done = malloc(max * sizeof *done);
	int i, rc;

	(void)r;
	must(done);
	call_begin(s);
	rc = call_end(deadline,
		      kvr_connector_check_completed(g.c, mode, tick, deadline, done, max, &tick));
	must(rc <= (int)max);
	for (i = 0; i < rc; i++) {
		must(done[i].kind == KVR_OP_STORE || done[i].kind == KVR_OP_LOAD);
		must(done[i].stage > KVR_STAGE_BEGUN && done[i].stage < KVR_STAGES);
		/* When the epoch is over, an end that came too late for the ranks is of no tick. */
		must(done[i].status <= 0 && done[i].status >= -4095 && done[i].tick >= tick);
		g.ended += done[i].stage >= KVR_STAGE_END;
	}
	must(g.ended <= g.begun);
	free(done);
}

static void lead_look(struct script *s, const struct kvr_request *r)
{
	struct kvr_group *group = kvr_connector_group(g.c);
	struct kvr_stats st;
	struct kvr_peer p;
	char text[200];

	(void)r;
	call_begin(s);
	must(call_end(0, kvr_group_check(group)) <= 0);
	kvr_group_describe(group, script_u8(s) % 3, text, sizeof text);
	must(*text && strnlen(text, sizeof text) < sizeof text);
	must(!kvr_group_peer(group, script_u8(s) % RANKS, &p) && p.state < KVR_PEER_STATES);
	must(!kvr_connector_stats(g.c, &st));
	must(st.ops_ended <= st.ops_begun && st.pool_free <= SLOTS && st.pool_slots == SLOTS);
}

static void lead_other(struct script *s, const struct kvr_request *r)
{
	uint8_t how = script_u8(s);
	uint64_t deadline = any_deadline(s);

	call_begin(s);
	if (how < 0x80)
		must(!call_end(0, kvr_connector_release(g.c, r)));
	else if (how < 0xc0)
		must(call_end(0, kvr_connector_load_done(g.c, r)) <= 0);
	else if (how < 0xf0)
		must(call_end(0, kvr_connector_store_copied(g.c, r, 0)) <= 0);
	else
		must(call_end(deadline, kvr_connector_shutdown(g.c, deadline)) <= 0);
}

/* --- a store, and a load of what it stored ------------------------------------------------ */

/* The newest operation's entry: entries are used in turn. */
static uint32_t newest(void)
{
	return (uint32_t)((g.begun - 1) % SEG_OPS);
}

/*
 * Both ranks acknowledge the newest operation, nearly always, each with a number of blocks. Returns
 * how many of them can be good at most.
 */
static int tell(struct script *s, enum kvr_ack code, int first, int second)
{
	uint8_t how = script_u8(s);
	uint32_t entry = newest(), gen = gen_of(entry), bit = 0;

	if (how >= 0xe0)
		rank_step(s);
	else if (how >= 0xd0)
		code = how % 6;
	if (how >= 0xd8 && how < 0xe0)
		first = script_u16(s);
	if (how >= 0xb0 && how < 0xd0)
		bit = 1u << script_u8(s) % 24;
	g.strange |= how >= 0xb0;
	if (how >= 0xf0)
		return KEYS;
	ack(1, entry, kvr_word(gen, code, (uint32_t)first ^ bit));
	ack(2, entry, kvr_word(gen, code, (uint32_t)second));
	if (g.strange)
		return KEYS;
	return second < first ? second : first;
}

/* Waits for the engine's thread, which needs no time unless something is wrong. */
static void await_host(struct script *s, const struct kvr_request *r)
{
	uint64_t deadline = g.patience ? kvr_now() + 5 * KVR_MS : 1;
	int rc;

	call_begin(s);
	rc = kvr_connector_wait_store(g.c, r, KVR_STAGE_HOST, deadline);
	must(call_end(deadline, rc) <= 0);
	g.patience -= rc == -ETIMEDOUT && g.patience;
}

static void await_votes(struct script *s, const struct kvr_request *r, int most)
{
	uint64_t deadline = g.patience ? kvr_now() + 5 * KVR_MS : 1;
	uint8_t how = script_u8(s);
	uint32_t room = how < 0xc0 ? KEYS : how % KEYS;
	struct kvr_block *b = malloc(room * sizeof *b);
	int rc;

	must(b);
	call_begin(s);
	rc = call_end(deadline, kvr_connector_load_wait(g.c, r, g.keys, deadline, b, room));
	must(rc <= (int)room && (rc <= most || g.strange));
	check_blocks(b, rc, KEYS);
	free(b);
	g.patience -= rc == -ETIMEDOUT && g.patience;
}

static void story(struct script *s, const struct kvr_request *r)
{
	int n = store_begin(s, r), votes[2];
	uint8_t how = script_u8(s);

	if (n < 0)
		return;
	tell(s, KVR_ACK_COPIED, n, n);
	await_host(s, r);
	if (how % 4 == 0)
		lead_tick(s, r);
	lead_lookup(s, r);
	n = load_begin(s, r);
	if (n <= 0)
		return;
	votes[0] = how < 0xc0 ? n : how % (n + 1);
	votes[1] = how < 0xc0 ? n : how / 8 % (n + 1);
	await_votes(s, r, tell(s, KVR_ACK_VERIFIED, votes[0], votes[1]));
	if (how % 4 == 1)
		lead_store_begin(s, r);
	tell(s, KVR_ACK_DONE, votes[0], votes[1]);
	lead_tick(s, r);
}

/* --- a whole life ------------------------------------------------------------------------- */

static void leader_open(void)
{
	struct kvr_connector_opts o = { .size = sizeof o,
					.dir = seg_dir,
					.model = &seg_model,
					.ranks = RANKS,
					.ring_bytes = SEG_RING,
					.ops = SEG_OPS,
					.events = SEG_EVENTS,
					.bulk_bytes = SEG_BULK,
					.host_bytes = 4096 + SLOTS * 8192 };
	struct kvr_shape shape;
	uint32_t i;

	must(!kvr_shape_split(RANKS, 2, 128, &shape));
	o.shape = &shape;
	for (i = 0; i < KEYS; i++)
		memset(&g.keys[i], (int)i + 1, sizeof g.keys[i]);
	must(!kvr_connector_lead(SEG_NAME, &o, &g.c));
	g.l = kvr_connector_group(g.c)->layout;
	g.fd = kvr_connector_group(g.c)->fd;
	g.map = mmap(NULL, g.l.total, PROT_READ | PROT_WRITE, MAP_SHARED, g.fd, 0);
	g.shadow = malloc(g.l.total);
	must(g.map != MAP_FAILED && g.shadow);
	memcpy(g.shadow, g.map, g.l.total);
	g.begun = g.ended = 0;
	g.millis = 3;
	g.patience = 1;
	g.strange = 0;
	g.tired = 0;
	ranks_come();
}

static void leader_close(void)
{
	struct kvr_proc *p = (void *)(g.map + g.l.leader);
	char path[KVR_SHM_PATH];
	int failed;

	kvr_connector_close(g.c);
	failed = p->state == KVR_PROC_FAILED;
	munmap(g.map, g.l.total);
	free(g.shadow);
	seg_path(path, KVR_SHM_POOL, 0);
	must(access(path, F_OK));
	seg_path(path, KVR_SHM_SEGMENT, 0);
	/* What failed stays to be looked at. */
	must(failed ? !unlink(path) : access(path, F_OK));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const calls[])(struct script *, const struct kvr_request *) = {
		lead_lookup,	 lead_lookup,	 lead_store_begin, lead_store_begin,
		lead_load_begin, lead_load_wait, lead_wait_store,  lead_tick,
		lead_tick,	 lead_look,	 lead_other,
	};
	struct script s = { data, size };
	struct kvr_request r;
	uint32_t steps = 50;
	uint8_t how;
	int fd;

	if (!*seg_dir)
		seg_dir_open();
	fd = seg_next_fd();
	leader_open();
	while (s.left && steps-- && !g.tired) {
		how = script_u8(&s);
		r = any_request(&s);
		if (how < 0x60)
			rank_step(&s);
		else if (how < 0x80)
			story(&s, &r);
		else
			calls[how % KVR_ARRAY_LEN(calls)](&s, &r);
	}
	leader_close();
	must(seg_next_fd() == fd && !seg_mappings());
	return 0;
}
