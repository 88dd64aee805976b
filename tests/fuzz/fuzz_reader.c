/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members of a living group whose peers write what they like. The leader and rank 1 have channels,
 * rank 0 has a connector whose leader is played here: it publishes answers that are almost right,
 * writes words of operations, and has a pool. Besides, any number of the segment changes, through a
 * mapping of the file that no member knows: between two calls, and in the middle of one whenever
 * the library looks at the clock or passes a labelled point.
 *
 * Whatever comes, a call ends, soon after its deadline, with a count or an errno; what it returns
 * lies in the ring, the pool or the caller's room; and it writes only to what is its own.
 *
 * The group is made once. Each input starts from its bytes, its handles and its pool as they were
 * then.
 */
#include "fuzz.h"

#include "world.h"

/* --- the leader ------------------------------------------------------------------------------- */

static uint64_t watermark_of(uint32_t channel)
{
	return seg_get(w.fd,
		       w.l.leader + offsetof(struct kvr_leader_page, watermark) + channel * 8u, 8);
}

/* To the ranks in `set`, nearly always. */
static void lead_publish(struct script *s, uint32_t channel, uint64_t set, uint32_t tag,
			 const struct kvr_request *r, const void *data, uint32_t len)
{
	uint8_t how = script_u8(s);
	uint64_t before = w.from->published[channel];
	uint64_t deadline = any_deadline(s);
	int rc;

	if (how >= 0xe0)
		set = how % 8;
	call_begin(s);
	rc = call_end(LEAD, deadline,
		      kvr_channels_publish(w.from, channel, set, tag, r, data, len, deadline));
	must(rc <= 0);
	if (set > 3)
		must(rc == -EINVAL);
	else if (len > kvr_channels_max_payload(w.from))
		must(rc == -EMSGSIZE);
	else if (!rc && certain)
		must(watermark_of(channel) == before + 1 &&
		     w.from->published[channel] == before + 1);
}

static void lead_message(struct script *s)
{
	uint32_t channel = any_channel(s), len = script_u8(s);
	struct kvr_request r = any_request(s);
	uint8_t data[SEG_BULK / 4 + 1];

	/* Through the ring, or the bulk area; or a byte too long. */
	len = len < 0xc0 ? len % 84 : len == 0xff ? sizeof data : (len - 0xbf) * 16;
	script_bytes(s, data, 21);
	memset(data + 21, 0xd5, sizeof data - 21);
	lead_publish(s, channel, 2, KVR_TAG_USER + script_u8(s) % 3, &r, data, len);
}

/* The answer to a begin, and the first word of its operation. `how` says what is wrong with it. */
static void answer(struct script *s, const struct op *o, int store, uint32_t count, uint8_t how)
{
	uint32_t i, len = (uint32_t)(sizeof(struct kvr_engine_answer) +
				     count * sizeof(struct kvr_engine_block));
	struct {
		struct kvr_engine_answer a;
		struct kvr_engine_block b[4];
	} m;
	uint32_t *number = (uint32_t *)(void *)&m;

	memset(&m, 0, sizeof m);
	m.a = (struct kvr_engine_answer){
		.entry = o->entry, .gen = o->gen, .count = count, .covered = store ? count : 0
	};
	for (i = 0; i < 4; i++)
		m.b[i] = (struct kvr_engine_block){
			i, i, store ? kvr_hash(&w.keys[i], sizeof w.keys[i], o->r.space) : w.sums[i]
		};
	if (how < 0xe0)
		peer_op(o, KVR_STAGE_BEGUN, 0);
	for (i = 0; i < 4 && how % 8 == 7; i++)
		m.b[i].index = 0;
	if (how >= 0xf8)
		m.a.status = (int32_t)seg_value(s, 0);
	if (how >= 0xf8)
		m.a.reason = how % 5;
	for (i = how >= 0xc0 && how < 0xf8 ? 1 + how % 2 : 0; i; i--) {
		number += script_u8(s) % 8;
		*number = (uint32_t)seg_value(s, *number);
		len += script_u8(s) < 0x20;
	}
	lead_publish(s, store ? KVR_CH_STORE : KVR_CH_LOAD, 1,
		     store ? KVR_TAG_STORE_BEGIN : KVR_TAG_LOAD_BEGIN, &o->r, &m, len);
}

static void lead_answer(struct script *s)
{
	struct op o = any_op(s);
	uint8_t how = script_u8(s);

	answer(s, &o, how % 2, how / 2 % 4, script_u8(s));
}

/* A hit, or one in which a number is another. */
static void found(struct script *s, const struct kvr_request *r)
{
	uint8_t how = script_u8(s);
	struct kvr_wire_lookup m = { .blocks = 1 + how % KEYS, .host = how / 4 % 2 };
	uint32_t len = sizeof m;

	m.keys = kvr_keys_sum(r->space, w.keys, KEYS);
	if (how >= 0xa0 && how < 0xc0)
		m.blocks = (uint32_t)seg_value(s, m.blocks);
	m.nvme = m.blocks - m.host;
	if (how >= 0xc0 && how < 0xd8)
		m.status = (int32_t)seg_value(s, 0);
	if (how >= 0xd8 && how < 0xf0)
		m.host = (uint32_t)seg_value(s, m.host);
	if (how >= 0xf0)
		len -= script_u8(s) % len;
	lead_publish(s, KVR_CH_LOOKUP, 1, KVR_TAG_LOOKUP_RESULT, r, &m, len);
}

static void lead_lookup(struct script *s)
{
	struct kvr_request r = any_request(s);

	found(s, &r);
}

static void completion(struct script *s, const struct op *o, uint8_t how)
{
	struct {
		struct kvr_wire_complete w;
		struct kvr_wire_record r;
	} m;
	uint32_t len = sizeof m, i;

	memset(&m, 0, sizeof m);
	m.w.tick = seg_get(w.fd, w.l.leader + offsetof(struct kvr_leader_page, tick_done), 8) + 1;
	m.w.count = 1;
	m.r = (struct kvr_wire_record){ .id = o->r.id,
					.space = o->r.space,
					.attempt = o->r.attempt,
					.kind = (uint8_t)(1 + how % 2),
					.stage = (uint8_t)(2 + how / 2 % 8),
					.blocks = 1,
					.entry = o->entry,
					.gen = o->gen };
	if (m.r.stage >= KVR_STAGE_FAILED)
		m.r.status = -EIO;
	if (how >= 0xc0) {
		i = script_u8(s) % (sizeof m / 4);
		((uint32_t *)(void *)&m)[i] = (uint32_t)seg_value(s, ((uint32_t *)(void *)&m)[i]);
		len -= script_u8(s) < 0x20;
	}
	lead_publish(s, KVR_CH_COMPLETE, 1, KVR_TAG_STORE_COMPLETE, NULL, &m, len);
}

static void lead_completion(struct script *s)
{
	struct op o = any_op(s);

	completion(s, &o, script_u8(s));
}

static void lead_other(struct script *s)
{
	uint64_t told[KVR_CHANNELS] = { 0 };
	uint8_t how = script_u8(s);

	if (how < 0x40) {
		lead_publish(s, KVR_CH_CONTROL, 1, KVR_TAG_SHUTDOWN, NULL, told, sizeof told);
	} else if (how < 0xe0) {
		call_begin(s);
		must(call_end(LEAD, 0, kvr_group_watch_ranks(w.group[LEAD])) <= 0);
	} else {
		call_begin(s);
		must(call_end(LEAD, 0,
			      kvr_group_fail(w.group[LEAD], how % 4, -(int)(1 + how % 128))) <= 0);
	}
}

/* --- a rank with channels ----------------------------------------------------------------------
 */

static int in_ring(uint32_t channel, const void *data, uint32_t len)
{
	const uint8_t *ring = w.group[RAW]->seg + kvr_layout_ring(&w.l, channel, 1);
	const uint8_t *p = data;

	if (p < ring || p >= ring + KVR_RING_CTL + SEG_RING)
		return 0;
	must(p >= ring + KVR_RING_CTL + KVR_RING_HEADER + sizeof(struct kvr_msg_head));
	must(len <= kvr_channels_inline_payload(w.to));
	must(p + len <= ring + KVR_RING_CTL + SEG_RING);
	return 1;
}

static int in_bulk(const void *data, uint32_t len)
{
	const uint8_t *bulk = w.group[RAW]->seg + w.l.bulk, *p = data;

	if (p < bulk || p >= bulk + SEG_BULK)
		return 0;
	must(len > kvr_channels_inline_payload(w.to) && len <= kvr_channels_max_payload(w.to));
	must(p + len <= bulk + SEG_BULK);
	return 1;
}

/* A message that rank 1 got. Only take_for has some that lie neither in the ring nor in the bulk
 * area. */
static void check_message(const struct kvr_message *m, uint32_t channel, int kept)
{
	int there = in_ring(channel, m->data, m->len) || in_bulk(m->data, m->len);

	must(m->channel == channel && (there || kept));
	read_all(m->data, m->len);
	if (there && !kept) {
		must(m->number > w.last[channel]);
		must(!certain || m->number <= watermark_of(channel));
	}
	if (m->number > w.last[channel])
		w.last[channel] = m->number;
}

static uint64_t taken_of(uint32_t channel)
{
	return seg_get(
		w.fd,
		kvr_layout_rank(&w.l, 1) + offsetof(struct kvr_rank_page, taken) + channel * 8u, 8);
}

static void raw_take(struct script *s, uint32_t channel, int expect)
{
	uint32_t tag = KVR_TAG_USER;
	uint64_t deadline = any_deadline(s), before = w.to->inbox[channel].taken;
	struct kvr_message m, untouched;
	int rc;

	memset(&untouched, 0x5a, sizeof untouched);
	m = untouched;
	tag += script_u8(s) % 3;
	call_begin(s);
	rc = call_end(RAW, deadline,
		      expect ? kvr_channels_expect(w.to, channel, tag, deadline, &m)
			     : kvr_channels_take(w.to, channel, deadline, &m));
	must(rc <= 0);
	if (!rc) {
		must(!expect || m.tag == tag);
		check_message(&m, channel, 0);
	} else {
		must(!memcmp(&m, &untouched, sizeof m));
	}
	must(w.to->inbox[channel].taken == before + !rc);
	if (certain && !rc) /* what was in the page before, others may have written */
		must(taken_of(channel) == before + 1);
}

static void raw_take_for(struct script *s)
{
	uint32_t channel = any_channel(s), tag = KVR_TAG_USER + script_u8(s) % 3;
	struct kvr_request r = any_request(s);
	uint64_t deadline = any_deadline(s);
	struct kvr_message m;
	int rc;

	call_begin(s);
	rc = call_end(RAW, deadline, kvr_channels_take_for(w.to, channel, tag, &r, deadline, &m));
	must(rc <= 0);
	if (!rc) {
		must(m.tag == tag && kvr_request_equal(&m.request, &r));
		check_message(&m, channel, 1);
	}
}

static void drained(void *arg, const struct kvr_message *m)
{
	uint32_t *n = arg;

	check_message(m, m->channel, 0);
	++*n;
}

static void raw_drain(struct script *s)
{
	uint32_t channel = any_channel(s), n = 0;
	int rc;

	call_begin(s);
	rc = call_end(RAW, 0, kvr_channels_drain(w.to, channel, drained, &n));
	must(rc == (int)n || (rc < 0 && !n));
}

/* What was met on the way counts as taken; numbers in the ring go on behind it. */
static void was_met(uint32_t channel)
{
	const struct kvr_stash *t = &w.to->inbox[channel].stash;

	if (w.to->inbox[channel].last > w.last[channel])
		w.last[channel] = w.to->inbox[channel].last;
	must(t->count <= KVR_STASH && t->bytes <= t->limit);
}

static void raw_forget_upto(struct script *s, uint32_t channel)
{
	uint64_t number = w.last[channel] + script_delta(s) + 1;
	const struct kvr_stash *t = &w.to->inbox[channel].stash;
	int rc;

	call_begin(s);
	rc = call_end(RAW, 0, kvr_channels_forget_upto(w.to, channel, number));
	must(rc >= 0 || rc == -EBADMSG);
	was_met(channel);
	for (uint32_t i = 0; t->entries && i < KVR_STASH; i++)
		must(!t->entries[i].used || t->entries[i].number > number);
}

static void raw_forget(struct script *s)
{
	uint32_t channel = any_channel(s);
	struct kvr_request r = any_request(s);
	struct kvr_stashed *e = w.to->inbox[channel].stash.entries;
	int rc;

	call_begin(s);
	rc = call_end(RAW, 0, kvr_channels_forget(w.to, channel, &r));
	must(rc <= (int)KVR_STASH);
	was_met(channel);
	for (e = w.to->inbox[channel].stash.entries; rc >= 0 && e && r.id < 3; r.id = 3)
		for (uint32_t i = 0; i < KVR_STASH; i++)
			must(!e[i].used || e[i].len <= kvr_channels_max_payload(w.to));
}

/* What any member asks about itself and others. */
static void any_look(struct script *s)
{
	enum side who = script_u8(s) % SIDES;
	struct kvr_group *g = w.group[who];
	uint32_t rank = script_u8(s) % 4;
	struct kvr_peer p;
	char text[200];
	int rc;

	if (rank == 3)
		rank = KVR_LEADER;
	call_begin(s);
	rc = call_end(who, 0, kvr_group_check(g));
	must(rc <= 0);
	kvr_group_describe(g, rank, text, sizeof text);
	must(*text && strnlen(text, sizeof text) < sizeof text);
	rc = kvr_group_peer(g, rank, &p);
	must(rank == 2 ? rc == -EINVAL : !rc && p.state < KVR_PEER_STATES && p.rank == rank);
	must(rc || strnlen(p.phase, sizeof p.phase) < sizeof p.phase);
	must(kvr_group_visible(g) <= 0);
}

static void raw_step(struct script *s)
{
	switch (script_u8(s) % 8) {
	case 0:
	case 1:
		raw_take(s, any_channel(s), 0);
		break;
	case 2:
		raw_take(s, any_channel(s), 1);
		break;
	case 3:
	case 4:
		raw_take_for(s);
		break;
	case 5:
		raw_drain(s);
		break;
	case 6:
		if (script_u8(s) % 2)
			raw_forget(s);
		else
			raw_forget_upto(s, any_channel(s));
		break;
	default:
		any_look(s);
		break;
	}
}

/* --- a rank with a connector ---------------------------------------------------------------------
 */

/* A rank waits for the answer to a begin for a second longer than it was told. */
static uint64_t begin_deadline(struct script *s)
{
	uint64_t deadline = any_deadline(s);

	return deadline > 1 ? deadline - KVR_ANSWER_GRACE_NS : deadline;
}

static void check_blocks(const struct kvr_block *b, int n, uint32_t keys)
{
	int i;

	for (i = 0; i < n; i++) {
		must(b[i].slot < SLOTS && b[i].index < keys);
		must(b[i].payload == w.c->pool.mem + KVR_POOL_DATA + b[i].slot * w.geo.slot_bytes +
					     w.geo.header_bytes);
	}
}

static void conn_lookup(struct script *s, const struct kvr_request *r)
{
	uint64_t deadline = any_deadline(s);
	struct kvr_hit hit = { 0 };
	int rc;

	call_begin(s);
	rc = call_end(CONN, deadline, kvr_connector_lookup(w.c, r, w.keys, KEYS, deadline, &hit));
	must(rc <= 0);
	must(hit.blocks <= KEYS && hit.host <= hit.blocks && hit.host + hit.nvme == hit.blocks);
	must(!rc || !hit.blocks);
}

/* The keys, and nothing behind them. */
static struct kvr_key *some_keys(uint32_t n)
{
	struct kvr_key *keys = malloc(n * sizeof *keys);

	must(keys);
	memcpy(keys, w.keys, n * sizeof *keys);
	return keys;
}

static void conn_store_begin(struct script *s, const struct kvr_request *r)
{
	uint32_t n = 1 + script_u8(s) % KEYS, covered = n;
	uint64_t deadline = begin_deadline(s);
	struct kvr_block *b = malloc(n * sizeof *b);
	struct kvr_key *keys = some_keys(n);
	int rc;

	must(b);
	call_begin(s);
	rc = call_end(CONN, deadline + KVR_ANSWER_GRACE_NS,
		      kvr_connector_store_begin(w.c, r, keys, n, deadline, b, n, &covered));
	must(rc <= (int)n && covered <= n);
	check_blocks(b, rc, n);
	free(b);
	free(keys);
}

static void conn_store_copied(struct script *s, const struct kvr_request *r)
{
	uint8_t how = script_u8(s);

	call_begin(s);
	must(call_end(CONN, 0, kvr_connector_store_copied(w.c, r, how < 0xc0 ? 0 : 0xc0 - how)) <=
	     0);
}

static void conn_wait_store(struct script *s, const struct kvr_request *r)
{
	static const enum kvr_stage stages[] = { KVR_STAGE_COPIED, KVR_STAGE_HOST,
						 KVR_STAGE_WRITTEN, KVR_STAGE_DONE };
	enum kvr_stage stage = stages[script_u8(s) % 4];
	uint64_t deadline = any_deadline(s);

	call_begin(s);
	must(call_end(CONN, deadline, kvr_connector_wait_store(w.c, r, stage, deadline)) <= 0);
}

static void conn_load_begin(struct script *s, const struct kvr_request *r)
{
	uint32_t n = 1 + script_u8(s) % KEYS;
	uint64_t deadline = begin_deadline(s);

	call_begin(s);
	must(call_end(CONN, deadline + KVR_ANSWER_GRACE_NS,
		      kvr_connector_load_begin(w.c, r, n, deadline)) <= (int)n);
}

static void conn_load_wait(struct script *s, const struct kvr_request *r)
{
	uint64_t deadline = any_deadline(s);
	uint32_t max = script_u8(s) % (KEYS + 1);
	struct kvr_block *b = malloc(max * sizeof *b);
	int rc;

	must(b);
	call_begin(s);
	rc = call_end(CONN, deadline, kvr_connector_load_wait(w.c, r, w.keys, deadline, b, max));
	must(rc <= (int)max);
	check_blocks(b, rc, KEYS);
	free(b);
}

static void conn_check_completed(struct script *s, const struct kvr_request *r)
{
	uint8_t how = script_u8(s);
	enum kvr_tick_mode mode = how % 3;
	uint64_t tick = how / 3 % 4, deadline = any_deadline(s), reached = 0;
	uint32_t max = script_u8(s) % 6;
	struct kvr_completion *done = malloc(max * sizeof *done);
	int i, rc;

	(void)r;
	must(done);
	call_begin(s);
	rc = call_end(CONN, deadline,
		      kvr_connector_check_completed(w.c, mode, tick, deadline, done, max,
						    &reached));
	must(rc <= (int)max);
	for (i = 0; i < rc; i++) {
		must(done[i].tick <= reached);
		must(done[i].kind == KVR_OP_STORE || done[i].kind == KVR_OP_LOAD);
		must(done[i].stage >= KVR_STAGE_BEGUN && done[i].stage < KVR_STAGES);
		must(done[i].status <= 0 && done[i].status >= -4095);
	}
	free(done);
}

static void conn_other(struct script *s, const struct kvr_request *r)
{
	uint8_t how = script_u8(s);

	call_begin(s);
	if (how < 0x60)
		must(call_end(CONN, 0, kvr_connector_load_done(w.c, r)) <= 0);
	else if (how < 0xc0)
		must(!call_end(CONN, 0, kvr_connector_release(w.c, r)));
	else
		must(call_end(CONN, 0, kvr_connector_shutdown(w.c, 0)) <= 0);
}

static void conn_load_done(struct script *s, const struct kvr_request *r)
{
	call_begin(s);
	must(call_end(CONN, 0, kvr_connector_load_done(w.c, r)) <= 0);
}

static void conn_step(struct script *s)
{
	static void (*const calls[])(struct script *, const struct kvr_request *) = {
		conn_lookup,	 conn_store_begin, conn_store_copied,	 conn_wait_store,
		conn_load_begin, conn_load_wait,   conn_check_completed, conn_other,
	};
	struct kvr_request r = any_request(s);

	calls[script_u8(s) % 8](s, &r);
}

/* --- longer stories --------------------------------------------------------------------------- */

/* Now and then something comes in between. */
static void maybe(struct script *s)
{
	uint8_t how = script_u8(s);

	if (how >= 0xd0)
		peer_step(s);
	else if (how >= 0xc0)
		conn_step(s);
}

static void tell(struct script *s, const struct op *o, uint32_t stage, uint32_t value)
{
	uint8_t how = script_u8(s);

	if (stage >= KVR_STAGE_FAILED)
		value = KVR_STAGE_COPIED << 16 | (how % 4 ? EIO : how % 8 * 1250u); /* 0, 5000 */
	if (how >= 0xd8)
		value = script_u32(s);
	else if (how >= 0xc0)
		value ^= 1u << script_u8(s) % 24;
	if (how < 0xf0)
		peer_op(o, stage, value);
}

static void story_load(struct script *s)
{
	struct op o = any_op(s);
	uint8_t how = script_u8(s);
	uint32_t count = 1 + how % 3;

	if (how / 4 % 2) {
		found(s, &o.r);
		conn_lookup(s, &o.r);
	}
	answer(s, &o, 0, count, how < 0x80 ? 0 : script_u8(s));
	maybe(s);
	conn_load_begin(s, &o.r);
	tell(s, &o, KVR_STAGE_HOST, count);
	maybe(s);
	conn_load_wait(s, &o.r);
	tell(s, &o, KVR_STAGE_VERIFIED, count);
	maybe(s);
	conn_load_wait(s, &o.r);
	maybe(s);
	if (how >= 0xf0) { /* the same answer again, with fewer blocks */
		answer(s, &o, 0, count > 1 ? count - 1 : 1, 0);
		conn_load_begin(s, &o.r);
		conn_load_wait(s, &o.r);
	}
	conn_load_done(s, &o.r);
	tell(s, &o, KVR_STAGE_DONE, count);
	completion(s, &o, script_u8(s));
}

static void story_store(struct script *s)
{
	struct op o = any_op(s);
	uint8_t how = script_u8(s);

	answer(s, &o, 1, how % 4, how < 0x80 ? 0 : script_u8(s));
	maybe(s);
	conn_store_begin(s, &o.r);
	maybe(s);
	conn_store_copied(s, &o.r);
	tell(s, &o, KVR_STAGE_COPIED + how / 4 % 2, 0);
	conn_wait_store(s, &o.r);
	maybe(s);
	tell(s, &o, KVR_STAGE_WRITTEN + how / 8 % 4, 0);
	conn_wait_store(s, &o.r);
	completion(s, &o, script_u8(s));
	peer_tick(s);
	conn_check_completed(s, &o.r);
}

/* Messages that only the peer wrote, each taken before the next. */
static void story_forged(struct script *s)
{
	uint32_t n = 1 + script_u8(s) % 4, channel = any_channel(s);

	while (n--) {
		peer_message(s, 1, channel);
		raw_take(s, channel, script_u8(s) >= 0xe0);
	}
}

/* More messages than a ring and a stash hold, which nobody asks for. */
static void story_flood(struct script *s)
{
	struct kvr_request nobody = { .id = 99 }, r = any_request(s);
	uint32_t n = script_u8(s) % 100, stores = script_u8(s) % 3;
	struct script none = { (const uint8_t *)"", 0 };
	struct kvr_message m;
	struct op o;

	if (w.flooded++)
		return;
	while (n--) {
		o = (struct op){ .r = r, .entry = n % SEG_OPS, .gen = 1 + n / SEG_OPS };
		o.r.id += n % 8;
		if (stores == 1) {
			answer(&none, &o, 1, n % 4, 0);
			conn_store_begin(&none, &nobody);
		} else if (stores == 2) {
			answer(&none, &o, 1, 1, 0);
			conn_store_begin(&none, &o.r);
		} else {
			lead_publish(&none, KVR_CH_USER0, 2, KVR_TAG_USER, &o.r, &n, sizeof n);
			call_begin(&none);
			call_end(RAW, 0,
				 kvr_channels_take_for(w.to, KVR_CH_USER0, KVR_TAG_USER, &nobody, 0,
						       &m));
		}
	}
	if (w.to->inbox[KVR_CH_USER0].last > w.last[KVR_CH_USER0])
		w.last[KVR_CH_USER0] = w.to->inbox[KVR_CH_USER0].last;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const leads[])(
		struct script *) = { lead_message,    lead_answer,     lead_answer, lead_lookup,
				     lead_completion, lead_completion, lead_other };
	struct script s = { data, size };
	uint32_t steps = 60;
	uint8_t how;

	if (!w.c)
		world_make();
	world_open();
	while (s.left && steps--) {
		how = script_u8(&s);
		if (how < 0x50)
			leads[how % KVR_ARRAY_LEN(leads)](&s);
		else if (how < 0x70)
			peer_step(&s);
		else if (how < 0xa0)
			raw_step(&s);
		else if (how < 0xd0)
			conn_step(&s);
		else if (how < 0xe8)
			story_load(&s);
		else if (how < 0xf8)
			story_store(&s);
		else if (how < 0xfe)
			story_forged(&s);
		else
			story_flood(&s);
	}
	world_close();
	return 0;
}
