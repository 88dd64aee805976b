/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments for the fuzz targets: a private directory, the bytes of a group that was in use, and
 * changes of single numbers, mostly where somebody reads one and mostly to a value that is almost
 * right.
 */
#ifndef TESTS_FUZZ_SEGMENT_H
#define TESTS_FUZZ_SEGMENT_H

#include "fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "connector_priv.h"
#include "kvring/err.h"
#include "kvring/ring.h"
#include "layout.h"
#include "shm.h"
#include "util.h"

#define SEG_NAME "fuzz"
#define SEG_RANKS 3u /* of a sample: 0 lives, 1 left, 2 never came */
#define SEG_RING 1024u
#define SEG_OPS 16u
#define SEG_EVENTS 16u
#define SEG_BULK 4096u

/* --- a private directory ------------------------------------------------------------- */

static char seg_dir[48];

static inline void seg_dir_clear(void)
{
	DIR *d = opendir(seg_dir);
	struct dirent *e;

	while (d && (e = readdir(d)))
		if (e->d_name[0] != '.' && unlinkat(dirfd(d), e->d_name, 0))
			unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR);
	if (d)
		closedir(d);
}

/*
 * Made once, and removed by a child when this process has ended: a finding ends it without any
 * handler. The child leaves the session, so that what ends the fuzzer does not end it.
 */
static inline void seg_dir_open(void)
{
	const char *base = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm";
	int ends[2];
	pid_t pid;
	char c;

	snprintf(seg_dir, sizeof seg_dir, "%s/kvr-test-fuzz-XXXXXX", base);
	must(mkdtemp(seg_dir) && !pipe2(ends, O_CLOEXEC));
	pid = fork();
	must(pid >= 0);
	if (pid) {
		close(ends[0]);
		return;
	}
	close(ends[1]);
	setsid();
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	while (read(ends[0], &c, 1) < 0 && errno == EINTR)
		;
	seg_dir_clear();
	_exit(rmdir(seg_dir) != 0);
}

static inline void seg_path(char path[KVR_SHM_PATH], enum kvr_shm_kind kind, uint64_t epoch)
{
	must(!kvr_shm_path(path, KVR_SHM_PATH, seg_dir, SEG_NAME, kind, epoch));
}

/* The number that the next descriptor gets: the same before and after, or one is lost. */
static inline int seg_next_fd(void)
{
	int fd = dup(2);

	must(fd >= 0);
	close(fd);
	return fd;
}

/* Mappings of files in the directory. */
static inline uint32_t seg_mappings(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	uint32_t n = 0;
	char line[512];

	must(f);
	while (fgets(line, sizeof line, f))
		n += strstr(line, seg_dir) != NULL;
	fclose(f);
	return n;
}

/* --- numbers in a file ---------------------------------------------------------------- */

/* Directly: a target may have a pread() of its own. */
static inline uint64_t seg_get(int fd, uint64_t off, uint32_t size)
{
	uint64_t v = 0;

	if (syscall(SYS_pread64, fd, &v, size, off) < 0)
		v = 0;
	return v;
}

static inline void seg_put(int fd, uint64_t off, uint32_t size, uint64_t v)
{
	must(syscall(SYS_pwrite64, fd, &v, size, off) == (long)size);
}

/* A number: where it is, and its bytes, 1 to 8. */
struct seg_place {
	uint64_t off;
	uint32_t size;
};

#define SEG_FIELD(s, f)                                                                 \
	{                                                                               \
		offsetof(struct s, f),                                                  \
			sizeof(((struct s *)0)->f) < 8 ? sizeof(((struct s *)0)->f) : 8 \
	}
#define SEG_CONFIG(f)                                                                          \
	{                                                                                      \
		offsetof(struct kvr_seg_header, config) + offsetof(struct kvr_conn_config, f), \
			sizeof(((struct kvr_conn_config *)0)->f)                               \
	}

static const struct seg_place seg_header_fields[] = {
	SEG_FIELD(kvr_seg_header, ranks),	 SEG_FIELD(kvr_seg_header, ring_bytes),
	SEG_FIELD(kvr_seg_header, ops),		 SEG_FIELD(kvr_seg_header, events),
	SEG_FIELD(kvr_seg_header, total_bytes),	 SEG_FIELD(kvr_seg_header, epoch),
	SEG_FIELD(kvr_seg_header, config_len),	 SEG_FIELD(kvr_seg_header, config_kind),
	SEG_FIELD(kvr_seg_header, channels),	 SEG_FIELD(kvr_seg_header, incompat),
	SEG_FIELD(kvr_seg_header, compat),	 SEG_FIELD(kvr_seg_header, magic),
	SEG_FIELD(kvr_seg_header, version),	 SEG_FIELD(kvr_seg_header, header_bytes),
	SEG_FIELD(kvr_seg_header, layout_hash),	 SEG_FIELD(kvr_seg_header, uuid),
	SEG_FIELD(kvr_seg_header, boot_id),	 SEG_FIELD(kvr_seg_header, created_ns),
	SEG_FIELD(kvr_seg_header, pid),		 SEG_FIELD(kvr_seg_header, start_time),
	SEG_FIELD(kvr_seg_header, tag_hash),	 SEG_FIELD(kvr_seg_header, library),
	SEG_FIELD(kvr_seg_header, library[16]),	 SEG_FIELD(kvr_seg_header, name),
	SEG_FIELD(kvr_seg_header, name[40]),	 SEG_FIELD(kvr_seg_header, model.name),
	SEG_FIELD(kvr_seg_header, model.dtype),	 SEG_FIELD(kvr_seg_header, model.revision),
	SEG_FIELD(kvr_seg_header, model.layers), SEG_FIELD(kvr_seg_header, model.flags),
	SEG_FIELD(kvr_seg_header, space),	 SEG_FIELD(kvr_seg_header, setup),
	SEG_FIELD(kvr_seg_header, page),	 SEG_FIELD(kvr_seg_header, reserved0),
	SEG_FIELD(kvr_seg_header, setup[8]),	 SEG_FIELD(kvr_seg_header, setup[496]),
	SEG_FIELD(kvr_seg_header, checksum),
};

/* The connector's part of the header. */
static const struct seg_place seg_config_fields[] = {
	SEG_CONFIG(version),
	SEG_CONFIG(max_blocks),
	SEG_CONFIG(pool_slots),
	SEG_CONFIG(slot_bytes),
	SEG_CONFIG(shape.layer_groups),
	SEG_CONFIG(shape.shards),
	SEG_CONFIG(shape.layer_bytes),
	SEG_CONFIG(shape.shard[0].writer),
	SEG_CONFIG(shape.shard[0].first_layer),
	SEG_CONFIG(shape.shard[0].layers),
	SEG_CONFIG(shape.shard[0].offset),
	SEG_CONFIG(shape.shard[0].bytes),
	SEG_CONFIG(shape.shard[0].readers),
	SEG_CONFIG(shape.shard[1].writer),
	SEG_CONFIG(shape.shard[1].first_layer),
	SEG_CONFIG(shape.shard[1].layers),
	SEG_CONFIG(shape.shard[1].offset),
	SEG_CONFIG(shape.shard[1].bytes),
	SEG_CONFIG(shape.shard[1].readers),
};

static const struct seg_place seg_takeover_fields[] = {
	SEG_FIELD(kvr_seg_takeover, new_epoch),	   SEG_FIELD(kvr_seg_takeover, pid),
	SEG_FIELD(kvr_seg_takeover, cause),	   SEG_FIELD(kvr_seg_takeover, ns),
	SEG_FIELD(kvr_seg_takeover, reason),	   SEG_FIELD(kvr_seg_takeover, blamed),
	SEG_FIELD(kvr_seg_takeover, closing),	   SEG_FIELD(kvr_seg_takeover, tick_done),
	SEG_FIELD(kvr_seg_takeover, watermark[0]), SEG_FIELD(kvr_seg_takeover, watermark[2]),
	SEG_FIELD(kvr_seg_takeover, watermark[6]),
};

static const struct seg_place seg_proc_fields[] = {
	SEG_FIELD(kvr_proc, life),	  SEG_FIELD(kvr_proc, state),
	SEG_FIELD(kvr_proc, pid),	  SEG_FIELD(kvr_proc, rank),
	SEG_FIELD(kvr_proc, start_time),  SEG_FIELD(kvr_proc, phase_until),
	SEG_FIELD(kvr_proc, progress_ns), SEG_FIELD(kvr_proc, in_call),
	SEG_FIELD(kvr_proc, call_arg),	  SEG_FIELD(kvr_proc, call_ns),
	SEG_FIELD(kvr_proc, tick_seen),	  SEG_FIELD(kvr_proc, lost_wakes),
	SEG_FIELD(kvr_proc, expired),	  SEG_FIELD(kvr_proc, mismatches),
	SEG_FIELD(kvr_proc, cause),	  SEG_FIELD(kvr_proc, blamed),
	SEG_FIELD(kvr_proc, space),	  SEG_FIELD(kvr_proc, phase),
	SEG_FIELD(kvr_proc, phase[16]),
};

static const struct seg_place seg_op_fields[] = {
	SEG_FIELD(kvr_op_entry, word),	   SEG_FIELD(kvr_op_entry, kind),
	SEG_FIELD(kvr_op_entry, blocks),   SEG_FIELD(kvr_op_entry, begun_ns),
	SEG_FIELD(kvr_op_entry, stage_ns), SEG_FIELD(kvr_op_entry, acked),
};

static const struct seg_place seg_event_fields[] = {
	SEG_FIELD(kvr_event, ns),     SEG_FIELD(kvr_event, arg),   SEG_FIELD(kvr_event, tag),
	SEG_FIELD(kvr_event, result), SEG_FIELD(kvr_event, kind),  SEG_FIELD(kvr_event, channel),
	SEG_FIELD(kvr_event, call),   SEG_FIELD(kvr_event, index),
};

/* A message as it lies in a ring: two words of the ring, the head, the payload. */
static const struct seg_place seg_cell_fields[] = {
	{ 0, 8 },  { 0, 4 },  { 4, 4 },	 { 8, 8 },  { 12, 4 }, { 16, 8 },
	{ 24, 8 }, { 32, 8 }, { 40, 4 }, { 48, 8 }, { 52, 4 }, { 56, 4 },
};

#define SEG_ONE_OF(s, table) ((table)[script_u8(s) % KVR_ARRAY_LEN(table)])

static inline struct seg_place seg_at(uint64_t base, struct seg_place field)
{
	field.off += base;
	return field;
}

static inline struct seg_place seg_event(struct script *s, uint64_t recorder, uint32_t events)
{
	if (script_u8(s) % 16 == 1)
		return (struct seg_place){ recorder, 8 }; /* the count */
	recorder += sizeof(struct kvr_rec_ctl) + script_u8(s) % events * sizeof(struct kvr_event);
	return seg_at(recorder, SEG_ONE_OF(s, seg_event_fields));
}

static inline struct seg_place seg_in_ring(struct script *s, const struct kvr_layout *l,
					   uint32_t channel, uint32_t rank)
{
	uint64_t ring = kvr_layout_ring(l, channel, rank);

	if (script_u8(s) % 8 == 0)
		return (struct seg_place){ ring, 8 }; /* the control line */
	ring += KVR_RING_CTL + script_u8(s) % (l->ring_bytes / KVR_RING_CELL) * KVR_RING_CELL;
	return seg_at(ring, SEG_ONE_OF(s, seg_cell_fields));
}

/* In the leader's page, behind its struct kvr_proc: the tick, watermarks, counts of calls. */
static inline struct seg_place seg_in_leader(struct script *s, const struct kvr_layout *l)
{
	uint8_t how = script_u8(s);

	if (how % 4 == 0)
		return (struct seg_place){ l->leader + offsetof(struct kvr_leader_page, tick_done),
					   8 };
	return (struct seg_place){
		l->leader + offsetof(struct kvr_leader_page, watermark) + how / 4 % 32 * 8u, 8
	};
}

static inline struct seg_place seg_in_rank(struct script *s, uint64_t page)
{
	uint32_t channel = script_u8(s) % 16; /* or call */

	switch (script_u8(s) % 3) {
	case 0:
		return (struct seg_place){
			page + offsetof(struct kvr_rank_page, calls) + channel * 8u, 8
		};
	case 1:
		return (struct seg_place){
			page + offsetof(struct kvr_rank_page, taken) + channel * 8u, 8
		};
	default:
		return (struct seg_place){ page + offsetof(struct kvr_rank_page, cursor) +
						   channel * sizeof(struct kvr_ring_cursor),
					   8 };
	}
}

/* Any number that somebody reads; now and then any bytes at all. */
static inline struct seg_place seg_pick(struct script *s, const struct kvr_layout *l)
{
	uint8_t how = script_u8(s);
	uint32_t rank = how / 16 % l->ranks;
	uint64_t page = kvr_layout_rank(l, rank), op;

	switch (how % 16) {
	case 0:
		return script_u8(s) % 4 ? SEG_ONE_OF(s, seg_header_fields)
					: SEG_ONE_OF(s, seg_config_fields);
	case 1:
		return seg_at(l->takeover, SEG_ONE_OF(s, seg_takeover_fields));
	case 2:
		return seg_at(l->leader, SEG_ONE_OF(s, seg_proc_fields));
	case 3:
	case 4:
		return seg_in_leader(s, l);
	case 5:
	case 6:
		op = l->leader_ops + script_u8(s) % l->ops * sizeof(struct kvr_op_entry);
		return seg_at(op, SEG_ONE_OF(s, seg_op_fields));
	case 7:
		return seg_event(s, l->leader_rec, l->events);
	case 8:
	case 9:
	case 10:
		return seg_in_ring(s, l, script_u8(s) % KVR_CHANNELS, rank);
	case 11:
		return seg_at(page, SEG_ONE_OF(s, seg_proc_fields));
	case 12:
		return seg_in_rank(s, page);
	case 13:
		return (struct seg_place){ page + l->rank_acks + script_u8(s) % l->ops * 16u, 8 };
	case 14:
		return seg_event(s, page + l->rank_rec, l->events);
	default:
		return (struct seg_place){ script_u32(s) % (l->total - 8), 1 + how / 16 % 8 };
	}
}

/* An edge, or what was there and a little more or less, or with one bit turned, or anything. */
static inline uint64_t seg_value(struct script *s, uint64_t old)
{
	static const uint64_t edges[] = { 0,
					  1,
					  2,
					  3,
					  63,
					  64,
					  1024,
					  4095,
					  4096,
					  1u << 16,
					  1u << 20,
					  INT32_MAX,
					  FUTEX_OWNER_DIED,
					  FUTEX_WAITERS,
					  UINT32_MAX - 4094,
					  UINT32_MAX,
					  1ull << 32,
					  INT64_MAX,
					  1ull << 63,
					  UINT64_MAX,
					  0x1b0a255c22256e22 /* "n%"\%, end of line, escape */ };
	uint64_t low;

	switch (script_u8(s) % 8) {
	case 0:
	case 1:
		return SEG_ONE_OF(s, edges);
	case 2:
		low = SEG_ONE_OF(s, edges);
		return SEG_ONE_OF(s, edges) << 32 | (uint32_t)low;
	case 3:
	case 4:
		return old + (uint64_t)(int8_t)script_u8(s);
	case 5:
		return old ^ 1ull << script_u8(s) % 64;
	case 6:
		return script_u8(s);
	default:
		return script_u64(s);
	}
}

/* A text that lacks its end: all bytes of its field are the same. */
static inline struct seg_place seg_fill(struct script *s, const struct kvr_layout *l, int fd)
{
#define TEXT(s, f)                                                \
	{                                                         \
		offsetof(struct s, f), sizeof(((struct s *)0)->f) \
	}
	static const struct seg_place texts[] = {
		TEXT(kvr_seg_header, library),
		TEXT(kvr_seg_header, name),
		TEXT(kvr_seg_header, model.name),
		TEXT(kvr_seg_header, model.revision),
		TEXT(kvr_seg_header, model.dtype),
		TEXT(kvr_seg_header, setup),
		TEXT(kvr_proc, phase),
	};
#undef TEXT
	static const uint8_t fills[] = { '\\', '"', '\n', 0x1b, '%', '=', 0xff, 0 };
	struct seg_place p = SEG_ONE_OF(s, texts);
	uint8_t bytes[KVR_SETUP_MAX];

	if (p.size == sizeof(((struct kvr_proc *)0)->phase) && script_u8(s) % 2)
		p = seg_at(l->leader, texts[KVR_ARRAY_LEN(texts) - 1]);
	memset(bytes, SEG_ONE_OF(s, fills), sizeof bytes);
	must(syscall(SYS_pwrite64, fd, bytes, p.size, p.off) == (long)p.size);
	return p;
}

/* Changes one number of the file. Behind its end there is nothing to change. */
static inline struct seg_place seg_change_at(struct script *s, int fd, struct seg_place p)
{
	uint64_t v = seg_value(s, seg_get(fd, p.off, p.size));
	struct stat st;

	must(!fstat(fd, &st));
	if (p.off + p.size > (uint64_t)st.st_size)
		p.size = 0;
	else
		seg_put(fd, p.off, p.size, v);
	return p;
}

/* Any number, or a text. */
static inline struct seg_place seg_change(struct script *s, const struct kvr_layout *l, int fd)
{
	struct stat st;

	must(!fstat(fd, &st));
	if ((uint64_t)st.st_size > l->leader + KVR_PAGE && script_u8(s) >= 0xf8)
		return seg_fill(s, l, fd);
	return seg_change_at(s, fd, seg_pick(s, l));
}

/* --- a change in the middle of a call -------------------------------------------------- */

/* What happens at the when-th occasion; its own bytes, so that the script does not depend on it. */
struct seg_later {
	struct script s;
	uint8_t bytes[16];
	uint32_t when; /* 0: never */
};

static inline void seg_later_set(struct seg_later *later, struct script *s, uint32_t most)
{
	uint8_t how = script_u8(s);

	later->when = 0;
	if (how % 3 != 2)
		return;
	later->when = 1 + how / 3 % most;
	script_bytes(s, later->bytes, sizeof later->bytes);
	later->s = (struct script){ later->bytes, sizeof later->bytes };
}

/* An occasion: 1 when it is time. */
static inline int seg_later_now(struct seg_later *later)
{
	return later->when && !--later->when;
}

/* --- the bytes of a group that was in use ----------------------------------------------- */

static const struct kvr_model seg_model = {
	.name = "model", .revision = "r1", .dtype = "bf16", .page_tokens = 16, .layers = 2
};

#define SEG_SETUP "tp=2\npp=1\n"

/* As kvr_connector_lead() makes it, for rings of SEG_RING bytes. */
static inline void seg_config(struct kvr_conn_config *c, uint32_t ranks, uint64_t slots)
{
	struct kvr_geometry geo;

	memset(c, 0, sizeof *c);
	c->version = KVR_CONFIG_VERSION;
	c->max_blocks = 3;
	c->pool_slots = slots;
	must(!kvr_shape_split(ranks, 2, ranks * 64ull, &c->shape));
	must(!kvr_geometry_init(&c->shape, 4096, &geo));
	c->slot_bytes = geo.slot_bytes;
}

static inline struct kvr_group_opts seg_opts(uint32_t ranks, const struct kvr_conn_config *c)
{
	return (struct kvr_group_opts){ .size = sizeof(struct kvr_group_opts),
					.dir = seg_dir,
					.ranks = ranks,
					.ring_bytes = SEG_RING,
					.ops = SEG_OPS,
					.events = SEG_EVENTS,
					.bulk_bytes = SEG_BULK,
					.model = &seg_model,
					.setup = SEG_SETUP,
					.config = c,
					.config_len = c ? sizeof *c : 0,
					.config_kind = KVR_CONFIG_CONNECTOR,
					.event_fd = -1 };
}

/* Messages taken, not yet taken, and over the ring's end. */
static inline void seg_traffic(struct kvr_channels *from, struct kvr_channels *to)
{
	struct kvr_request r = { .id = 7, .space = 1 };
	struct kvr_message m;
	uint32_t n;

	for (n = 0; n < 40; n++) {
		must(!kvr_channels_publish(from, KVR_CH_COMPLETE, 1, KVR_TAG_STORE_COMPLETE, &r,
					   "tick after tick", n % 16, 0));
		must(!kvr_channels_take(to, KVR_CH_COMPLETE, 0, &m));
	}
	for (n = 0; n < 4; n++) {
		r.id = n;
		must(!kvr_channels_publish(from, KVR_CH_USER0, 0, KVR_TAG_USER + n, &r,
					   "to everybody", 12, 0));
		must(!kvr_channels_publish(from, KVR_CH_LOOKUP, 1 + n % 2, KVR_TAG_LOOKUP_RESULT,
					   &r, NULL, 0, 0));
	}
	/* In each channel another last message for each rank. */
	for (n = 0; n < 3 * KVR_CHANNELS; n++)
		must(!kvr_channels_publish(from, n % KVR_CHANNELS, 1ull << n / KVR_CHANNELS,
					   KVR_TAG_USER, &r, "to one", 6, 0));
	must(!kvr_channels_take(to, KVR_CH_USER0, 0, &m));
	must(kvr_channels_expect(to, KVR_CH_USER0, KVR_TAG_USER, 0, &m) == -EPROTO);
}

/* Of every kind. */
static inline void seg_events(struct kvr_group *g)
{
	struct kvr_event e = { .request = 3, .tag = 1, .result = -EIO };

	for (e.kind = 0; e.kind < KVR_EV_KINDS; e.kind++)
		kvr_recorder_add(&g->rec, &e);
}

/* Operations at several stages. */
static inline void seg_operations(struct kvr_group *lead)
{
	const struct kvr_layout *l = &lead->layout;
	void *table = lead->own + (l->leader_ops - l->leader);
	struct kvr_op_entry *e = table;
	uint32_t i;

	for (i = 0; i < 6; i++)
		e[i] = (struct kvr_op_entry){ .word = kvr_word(1, KVR_STAGE_BEGUN + i, i),
					      .request = i,
					      .kind = 1 + i % 2,
					      .blocks = i,
					      .begun_ns = 1,
					      .stage_ns = 2,
					      .acked = i };
}

/*
 * A group of SEG_RANKS ranks whose leader and rank 0 live, in private memory. Nothing of it is left
 * in the directory.
 */
static inline uint8_t *seg_sample(struct kvr_layout *ret_layout)
{
	struct kvr_conn_config config;
	struct kvr_group_opts o = seg_opts(SEG_RANKS, &config);
	struct kvr_group *lead, *rank, *left;
	struct kvr_channels *from, *to;
	uint8_t *bytes;

	seg_config(&config, SEG_RANKS, 2);
	must(!kvr_group_create(SEG_NAME, &o, &lead));
	must(!kvr_group_attach(SEG_NAME, 0, &o, 0, &rank));
	must(!kvr_group_attach(SEG_NAME, 1, &o, 0, &left));
	must(!kvr_channels_open(lead, &from) && !kvr_channels_open(rank, &to));
	seg_traffic(from, to);
	seg_operations(lead);
	seg_events(lead);
	seg_events(rank);
	kvr_group_close(left);
	*ret_layout = lead->layout;
	bytes = malloc(lead->layout.total);
	must(bytes);
	memcpy(bytes, lead->seg, lead->layout.total);
	kvr_channels_close(from);
	kvr_channels_close(to);
	kvr_group_close(rank);
	kvr_group_close(lead);
	seg_dir_clear();
	return bytes;
}

/* The header's checksum is made right, so that what lies behind it is reached. */
static inline void seg_seal(int fd)
{
	struct kvr_seg_header h;

	if (syscall(SYS_pread64, fd, &h, sizeof h, 0) == sizeof h)
		seg_put(fd, offsetof(struct kvr_seg_header, checksum), 8, kvr_header_sum(&h));
}

/*
 * Another geometry, of at most `most` bytes, in header and file size; what was written for the old
 * one stays where it was. Returns 0 when the script chose an impossible one.
 */
static inline int seg_resize(struct script *s, int fd, uint64_t most, struct kvr_layout *l)
{
	uint8_t a = script_u8(s), b = script_u8(s);
	struct kvr_layout new;
	struct kvr_seg_header h;

	if (kvr_layout_init(&new, a < 0xd8 ? KVR_PAGE : KVR_PAGE / 2 << a % 8, a % 72,
			    SEG_RING / 2 << b % 4, 16u << b / 4 % 4, 16u << b / 16 % 4, SEG_BULK) ||
	    new.total > most || syscall(SYS_pread64, fd, &h, sizeof h, 0) != sizeof h)
		return 0;
	h.page = new.page;
	h.ranks = new.ranks;
	h.ring_bytes = new.ring_bytes;
	h.ops = new.ops;
	h.events = new.events;
	h.bulk_bytes = new.bulk_bytes;
	h.total_bytes = new.total;
	must(syscall(SYS_pwrite64, fd, &h, sizeof h, 0) == sizeof h);
	must(!ftruncate(fd, (off_t) new.total));
	*l = new;
	return 1;
}

#endif
