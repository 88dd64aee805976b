/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group of three members in one process, made once: the leader and rank 1 have channels, rank 0
 * has a connector, whose leader is the fuzzer. Everything is put back for each input: the file's
 * bytes, the pool's, the handles.
 *
 * Besides, a peer that no member knows: it writes through a mapping of the file, between two calls
 * and in the middle of one, whenever the library looks at the clock or passes a labelled point.
 * What the file must hold otherwise is kept in a shadow of it.
 */
#ifndef TESTS_FUZZ_WORLD_H
#define TESTS_FUZZ_WORLD_H

#include "segment.h"

#include "channel_priv.h"
#include "group.h"
#include "hash.h"
#include "point.h"
#include "pool.h"

#define SLOTS 4u
#define KEYS 4u
#define HANG_NS (5 * KVR_SEC)

enum side { LEAD, CONN, RAW, SIDES };

static struct world {
	struct kvr_group *group[SIDES]; /* the leader's, rank 0's, rank 1's */
	struct kvr_group saved[SIDES];
	struct kvr_channels *from, *to; /* the leader's, rank 1's */
	struct kvr_connector *c;	/* rank 0's */
	struct kvr_layout l;
	struct kvr_geometry geo;
	struct kvr_pool pool;
	int fd;
	uint8_t *map, *image, *shadow; /* the file; as it was at first; as it must be */
	uint8_t *pool_image, *pool_shadow;
	struct kvr_key keys[KEYS];
	uint64_t sums[SLOTS];	     /* of the sealed header pages */
	uint64_t last[KVR_CHANNELS]; /* number of the last message that rank 1 took */
	uint32_t millis;	     /* how long the waits of this input may still last */
	int flooded;		     /* this input had its flood */
} w;

/* --- the peer's bytes ------------------------------------------------------------------ */

static inline void peer_store(uint64_t off, const void *bytes, size_t len)
{
	must(off + len <= w.l.total);
	memcpy(w.map + off, bytes, len);
	memcpy(w.shadow + off, bytes, len);
}

static inline void peer_word(uint64_t off, uint64_t v)
{
	peer_store(off, &v, sizeof v);
}

static inline void peer_change(struct script *s)
{
	struct seg_place p = seg_change(s, &w.l, w.fd);

	memcpy(w.shadow + p.off, w.map + p.off, p.size);
}

static inline struct kvr_request any_request(struct script *s)
{
	uint8_t how = script_u8(s);

	return (struct kvr_request){ .id = how % 3,
				     .space = how >= 0xf0,
				     .attempt = how >= 0xc0 && how < 0xf0 };
}

/* An operation of a request, and its place in the leader's table. */
struct op {
	struct kvr_request r;
	uint32_t entry, gen;
};

/* A few are enough, some are impossible. */
static inline struct op any_op(struct script *s)
{
	struct op o = { .r = any_request(s) };
	uint8_t how = script_u8(s);

	o.gen = how < 0xf0 ? 1 + how / 2 % 2 : script_u8(s);
	o.entry = how % 2;
	if (how >= 0xe0)
		o.entry = how % 4 == 0	 ? SEG_OPS - 1 + how / 4 % 4
			  : how % 4 == 1 ? 1u << how / 4 % 8 * 4
					 : script_u32(s);
	return o;
}

/* Mostly one of two, so that messages and their readers meet. */
static inline uint32_t any_channel(struct script *s)
{
	uint8_t how = script_u8(s);

	return how < 0xc0 ? KVR_CH_USER0 + how % 2u : how % KVR_CHANNELS;
}

/* A place in the bulk area, nearly always a good one. */
static inline void any_place(struct script *s, uint32_t *ret_len, uint64_t *ret_offset)
{
	uint8_t how = script_u8(s);

	*ret_len = SEG_RING / 8 - KVR_RING_HEADER - (uint32_t)sizeof(struct kvr_msg_head) + 1 +
		   how * 8u % (SEG_BULK / 4);
	*ret_offset = how % 8 * (SEG_BULK / 8);
	if (how >= 0xc0)
		*ret_offset = seg_value(s, *ret_offset);
	if (how >= 0xe0)
		*ret_len = (uint32_t)seg_value(s, *ret_len);
}

/* A message where a reader looks: as a writer would put it, but for what the script adds. */
static inline void peer_message(struct script *s, uint32_t rank, uint32_t channel)
{
	const struct kvr_channels *c = rank ? w.to : w.c->channels;
	const struct kvr_inbox *in = &c->inbox[channel];
	uint64_t pos = in->reader.pos + script_delta(s), cell, mark;
	struct kvr_request r = any_request(s);
	struct {
		uint64_t word;
		uint32_t tag, seq;
		struct kvr_msg_head head;
		uint64_t offset;
	} m;
	uint32_t len = script_u8(s);

	/* Nearly always what a message may have; else a little more, or less than a head. */
	len = len < 0xe0   ? (uint32_t)sizeof m.head + len % 81
	      : len < 0xf0 ? SEG_RING / 8 - KVR_RING_HEADER + len % 16 * len % 64
			   : (uint32_t)script_delta(s);
	m.word = pos << 32 | 1ull << 31 | (len & 0x7fffffff);
	m.tag = channel < KVR_CH_USER0 ? 1 + channel % 4u
				       : (uint32_t)KVR_TAG_USER + script_u8(s) % 3;
	m.seq = in->reader.seq + (uint32_t)script_delta(s);
	m.head = (struct kvr_msg_head){ .number = in->last + 1 + script_delta(s),
					.request = r.id,
					.space = r.space,
					.attempt = r.attempt };
	m.offset = 0;
	if (script_u8(s) >= 0xc0) {
		any_place(s, &m.head.bulk, &m.offset);
		len = (uint32_t)(sizeof m.head + sizeof m.offset + script_delta(s));
		m.word = pos << 32 | 1ull << 31 | (len & 0x7fffffff);
	}
	cell = kvr_layout_ring(&w.l, channel, rank) + KVR_RING_CTL +
	       pos % (SEG_RING / KVR_RING_CELL) * KVR_RING_CELL;
	peer_store(cell, &m, sizeof m);
	mark = w.l.leader + offsetof(struct kvr_leader_page, watermark) + channel * 8u;
	if (script_u8(s) < 0xe0 && m.head.number > seg_get(w.fd, mark, 8))
		peer_word(mark, m.head.number);
}

static inline void peer_forge(struct script *s)
{
	uint32_t rank = script_u8(s) % 2;

	peer_message(s, rank, rank ? any_channel(s) : script_u8(s) % 4u);
}

static inline void peer_op(const struct op *o, uint32_t stage, uint32_t value)
{
	peer_word(w.l.leader_ops + o->entry % SEG_OPS * sizeof(struct kvr_op_entry),
		  kvr_word(o->gen, stage, value));
}

static inline void peer_op_word(struct script *s)
{
	uint32_t stage = script_u8(s), value = script_u8(s);
	struct op o = any_op(s);

	stage = stage < 0xf0 ? 1 + stage % KVR_STAGES : stage;
	value = value < 0xc0 ? value % 5 : script_u32(s);
	peer_op(&o, stage, value);
}

static inline void peer_tick(struct script *s)
{
	uint64_t at = w.l.leader + offsetof(struct kvr_leader_page, tick_done);

	peer_word(at, seg_get(w.fd, at, 8) + 1 + script_delta(s));
}

/* A number of the pool: of its header, of a slot's header page, of a block. */
static inline void peer_pool(struct script *s)
{
	uint64_t off = KVR_POOL_DATA + script_u8(s) % SLOTS * w.geo.slot_bytes, v;
	uint8_t how = script_u8(s);

	if (how < 0x80)
		off += how % 24 * 8u; /* magic to the last sum */
	else
		off += w.geo.header_bytes + how % 16 * 8u;
	memcpy(&v, w.pool.mem + off, sizeof v);
	v = seg_value(s, v);
	memcpy(w.pool.mem + off, &v, sizeof v);
	memcpy(w.pool_shadow + off, &v, sizeof v);
}

/* How an epoch ends, or looks as if it did: the leader's state and word, a cause, a successor. */
static inline void peer_end(struct script *s)
{
	static const uint32_t lives[] = { 4711, 0, FUTEX_OWNER_DIED, FUTEX_OWNER_DIED | 4711 };
	uint64_t leader = w.l.leader, next = w.group[LEAD]->header.epoch + 1;
	uint8_t how = script_u8(s);
	uint32_t state = how / 4 % 5;
	int32_t cause = how < 0x80 ? -EIO : (int32_t)seg_value(s, 0);

	if (how % 4 == 0) {
		peer_word(w.l.takeover, how < 0xe0 ? next : script_u64(s));
		return;
	}
	peer_store(leader + offsetof(struct kvr_proc, cause), &cause, sizeof cause);
	peer_store(leader + offsetof(struct kvr_proc, state), &state, sizeof state);
	if (how % 4 == 1)
		peer_store(leader + offsetof(struct kvr_proc, life), &SEG_ONE_OF(s, lives),
			   sizeof lives[0]);
}

static inline void peer_step(struct script *s)
{
	uint8_t how = script_u8(s);

	if (how >= 0xf8) { /* rarely: most of what comes after it is refused */
		peer_end(s);
		return;
	}
	switch (how % 8) {
	case 0:
		peer_op_word(s);
		break;
	case 1:
		peer_tick(s);
		break;
	case 2:
		peer_pool(s);
		break;
	case 3:
	case 4:
		peer_forge(s);
		break;
	default:
		peer_change(s);
		break;
	}
}

/* --- calls --------------------------------------------------------------------------------- */

static struct seg_later later;
static _Thread_local int calling;
static int certain; /* nothing changes in the middle of this call */
static uint64_t call_start;

static inline void occasion(void)
{
	if (!calling || !seg_later_now(&later))
		return;
	calling = 0;
	while (later.s.left)
		peer_step(&later.s);
	calling = 1;
}

/* The library's clock, and that of everybody else in this program. */
int clock_gettime(clockid_t id, struct timespec *ret)
{
	occasion();
	return (int)syscall(SYS_clock_gettime, id, ret);
}

static inline void at_point(enum kvr_point point, uint32_t arg)
{
	(void)point;
	(void)arg;
	occasion();
}

static inline void call_begin(struct script *s)
{
	seg_later_set(&later, s, 12);
	certain = !later.when;
	call_start = kvr_now();
	calling = 1;
}

static inline void same(uint64_t from, uint64_t to)
{
	must(!memcmp(w.map + from, w.shadow + from, to - from));
}

/* A side may change its own pages, and everybody the bells. */
static inline void check_pages(enum side who)
{
	uint64_t own = who == LEAD ? w.l.leader : kvr_layout_rank(&w.l, who == RAW);
	uint64_t end = own + (who == LEAD ? w.l.leader_end - w.l.leader : w.l.rank_stride);

	same(0, w.l.bells);
	same(w.l.leader, own);
	same(end, w.l.total);
	memcpy(w.shadow + w.l.bells, w.map + w.l.bells, w.l.leader - w.l.bells);
	memcpy(w.shadow + own, w.map + own, end - own);
}

/* Of the pool, rank 0 may change the sums of the segments that it writes: the first two. */
static inline void check_pool(void)
{
	const size_t sums = offsetof(struct kvr_slot_header, sum), own = 2 * sizeof(uint64_t);
	uint64_t at = 0, next;
	uint32_t i;

	for (i = 0; i <= SLOTS; i++) {
		next = i < SLOTS ? KVR_POOL_DATA + i * w.geo.slot_bytes + sums : w.pool.bytes;
		must(!memcmp(w.pool.mem + at, w.pool_shadow + at, next - at));
		if (i < SLOTS)
			memcpy(w.pool_shadow + next, w.pool.mem + next, own);
		at = next + own;
	}
}

/* What rank 0 remembers of operations is bounded, whatever it was told. */
static inline void check_known(void)
{
	const struct kvr_rank_ops *k = &w.c->known;
	uint32_t i;

	must(k->tail - k->head <= k->pending_mask + 1);
	for (i = 0; i < k->capacity; i++)
		if (k->ops[i].used)
			must(k->ops[i].entry < SEG_OPS && k->ops[i].good <= k->ops[i].n &&
			     k->ops[i].n <= w.c->config.max_blocks);
}

/* Returns what the call returned: a count, 0, or an errno with a sentence. */
static inline int call_end(enum side who, uint64_t deadline, int rc)
{
	uint64_t until = kvr_max(call_start, deadline) + HANG_NS;

	calling = 0;
	must(kvr_now() < until);
	must(rc >= -4095 && (rc >= 0 || rc == -EAGAIN || *kvr_explain()));
	check_pages(who);
	if (who == CONN) {
		check_pool();
		check_known();
	}
	return rc;
}

/* Mostly a poll, sometimes one that looks at the clock, rarely a wait. */
static inline uint64_t any_deadline(struct script *s)
{
	uint8_t how = script_u8(s);

	if (how < 0xa0 || !w.millis)
		return how < 0x60 ? 0 : 1;
	w.millis--;
	return kvr_now() + KVR_MS;
}

static inline void read_all(const void *data, uint32_t len)
{
	const volatile uint8_t *p = data;
	uint32_t i;

	for (i = 0; i < len; i++)
		(void)p[i];
}

/* --- the group
 * ------------------------------------------------------------------------------------- */

/* Each slot holds the block of the key of its number, as a leader seals it. */
static inline void seal_blocks(const struct kvr_shape *shape)
{
	uint32_t i, g;

	for (i = 0; i < SLOTS; i++) {
		struct kvr_slot_header *h = (void *)kvr_pool_image(&w.pool, i);
		uint8_t *payload = (uint8_t *)h + w.geo.header_bytes;

		memset(payload, (int)i, w.geo.block_bytes);
		for (g = 0; g < w.geo.segments; g++)
			h->sum[g] = kvr_segment_sum(payload + g % 2 * shape->layer_bytes +
							    shape->shard[g / 2].offset,
						    shape->shard[g / 2].bytes, &w.keys[i], g);
		w.sums[i] = kvr_slot_seal(h, &w.geo, &w.keys[i], 0, 1 + i, 0);
	}
}

static inline void make_pool(const struct kvr_conn_config *config)
{
	const struct kvr_seg_header *h = &w.group[LEAD]->header;
	struct kvr_pool_opts o = { .dir = seg_dir,
				   .name = SEG_NAME,
				   .uuid = h->uuid,
				   .epoch = h->epoch,
				   .node = -1,
				   .model = &seg_model,
				   .shape = &config->shape,
				   .geo = &w.geo };

	must(!kvr_geometry_init(&config->shape, 4096, &w.geo));
	o.host_bytes = KVR_POOL_DATA + SLOTS * w.geo.slot_bytes;
	must(!kvr_pool_create(&o, &w.pool) && !kvr_pool_publish(&w.pool));
	seal_blocks(&config->shape);
}

static inline uint8_t *copy_of(const void *bytes, size_t len)
{
	uint8_t *p = malloc(len);

	must(p);
	memcpy(p, bytes, len);
	return p;
}

static inline void world_make(void)
{
	struct kvr_conn_config config;
	struct kvr_group_opts o = seg_opts(2, &config);
	struct kvr_connector_opts co = { .size = sizeof co, .dir = seg_dir };
	uint32_t i;

	seg_dir_open();
	seg_config(&config, 2, SLOTS);
	for (i = 0; i < KEYS; i++)
		memset(&w.keys[i], (int)i + 1, sizeof w.keys[i]);
	must(!kvr_group_create(SEG_NAME, &o, &w.group[LEAD]));
	make_pool(&config);
	must(!kvr_connector_join(SEG_NAME, 0, &co, kvr_deadline(5000), &w.c));
	w.group[CONN] = w.c->group;
	must(!kvr_group_attach(SEG_NAME, 1, &o, 0, &w.group[RAW]));
	for (i = 0; i < SIDES; i++)
		w.saved[i] = *w.group[i];
	kvr_channels_close(w.c->channels);
	kvr_rank_close(w.c);
	w.l = w.group[LEAD]->layout;
	w.fd = w.group[LEAD]->fd;
	w.map = mmap(NULL, w.l.total, PROT_READ | PROT_WRITE, MAP_SHARED, w.fd, 0);
	must(w.map != MAP_FAILED);
	w.image = copy_of(w.map, w.l.total);
	w.shadow = copy_of(w.map, w.l.total);
	w.pool_image = copy_of(w.pool.mem, w.pool.bytes);
	w.pool_shadow = copy_of(w.pool.mem, w.pool.bytes);
	kvr_point_hook = at_point;
}

/* What an input takes it gives back, so that a leak is found in the one that has it. */
static inline void world_close(void)
{
	kvr_channels_close(w.from);
	kvr_channels_close(w.to);
	kvr_channels_close(w.c->channels);
	kvr_rank_close(w.c);
}

/* Everything as it was when the group was made. */
static inline void world_open(void)
{
	uint32_t i;

	memcpy(w.map, w.image, w.l.total);
	memcpy(w.pool.mem, w.pool_image, w.pool.bytes);
	for (i = 0; i < SIDES; i++)
		*w.group[i] = w.saved[i];
	memset(&w.c->known, 0, sizeof w.c->known);
	w.c->tick = 0;
	w.c->ended = 0;
	must(!kvr_channels_open(w.group[LEAD], &w.from) && !kvr_channels_open(w.group[RAW], &w.to));
	must(!kvr_channels_open(w.group[CONN], &w.c->channels) && !kvr_rank_open(w.c));
	/* Smaller tables, so that they are full soon. */
	w.c->known.capacity = 8;
	w.c->known.pending_mask = 3;
	w.c->known.lists_used = ~0ull << 5;
	memcpy(w.shadow, w.map, w.l.total);
	memcpy(w.pool_shadow, w.pool_image, w.pool.bytes);
	memset(w.last, 0, sizeof w.last);
	w.millis = 3;
	w.flooded = 0;
}

#endif
