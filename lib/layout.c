/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Offsets of a segment and the checks of its header. Pure arithmetic on private copies: nothing
 * here sees shared memory.
 */
#include "layout.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "err.h"
#include "hash.h"
#include "util.h"

#define RING_CTL 128u
#define RING_MIN 1024u
#define RING_MAX (64u << 20)
#define BELL_BYTES 128u
#define WINDOW_MIN 16u
#define BULK_MIN 4096u
#define BULK_MAX (1u << 30)
#define PAGE_MAX 65536u /* of arm64 and ppc64 kernels */

typedef unsigned long long ull;

static int in_range(const char *what, uint64_t v, uint64_t low, uint64_t high, int pow2)
{
	if (v >= low && v <= high && (!pow2 || kvr_is_pow2(v)))
		return 0;
	return KVR_FAIL(-EINVAL, "%s is %llu; %llu to %llu%s is supported", what, (ull)v, (ull)low,
			(ull)high, pow2 ? ", a power of two," : "");
}

int kvr_layout_init(struct kvr_layout *ret, uint32_t page, uint32_t ranks, uint32_t ring_bytes,
		    uint32_t ops, uint32_t events, uint32_t bulk_bytes)
{
	struct kvr_layout l = { .page = page,
				.ranks = ranks,
				.ring_bytes = ring_bytes,
				.ops = ops,
				.events = events,
				.bulk_bytes = bulk_bytes,
				.window = events / 4 < WINDOW_MIN ? WINDOW_MIN : events / 4 };
	const uint64_t logs = kvr_layout_log(&l, KVR_ALIKES);
	uint64_t recorder = sizeof(struct kvr_rec_ctl) + events * sizeof(struct kvr_event);
	int err = in_range("page", page, KVR_PAGE, PAGE_MAX, 1);

	if (!err)
		err = in_range("ranks", ranks, 1, KVR_MAX_RANKS, 0);
	if (!err)
		err = in_range("ring_bytes", ring_bytes, RING_MIN, RING_MAX, 1);
	if (!err)
		err = in_range("ops", ops, 16, 65536, 1);
	if (!err)
		err = in_range("events", events, 16, 1u << 20, 1);
	if (!err)
		err = in_range("bulk_bytes", bulk_bytes, BULK_MIN, BULK_MAX, 1);
	if (err)
		return err;
	l.takeover = page;
	l.bells = 2ull * page;
	l.leader = l.bells + kvr_align_up((uint64_t)(ranks + 1) * BELL_BYTES, page);
	l.leader_ops = l.leader + sizeof(struct kvr_leader_page);
	l.leader_rec = l.leader_ops + (uint64_t)ops * sizeof(struct kvr_op_entry);
	l.leader_logs = l.leader_rec + recorder;
	l.rings = l.leader_logs + logs;
	l.bulk = kvr_layout_ring(&l, KVR_CHANNELS, 0);
	l.leader_end = kvr_align_up(l.bulk + bulk_bytes, page);
	l.rank0 = l.leader_end;
	l.rank_acks = sizeof(struct kvr_rank_page);
	l.rank_rec = l.rank_acks + (uint64_t)ops * sizeof(struct kvr_ack_entry);
	l.rank_logs = l.rank_rec + recorder;
	l.rank_stride = kvr_align_up(l.rank_logs + logs, page);
	l.total = l.rank0 + ranks * l.rank_stride;
	*ret = l;
	return 0;
}

/* Size of a struct, and the offset of each field that another process reads. */
#define SIZE(s) (uint32_t)sizeof(struct s)
#define AT(s, f) (uint32_t) offsetof(struct s, f)

uint64_t kvr_layout_hash(void)
{
	/* clang-format off */
	const uint32_t table[] = {
		SIZE(kvr_seg_header), AT(kvr_seg_header, uuid), AT(kvr_seg_header, epoch),
		AT(kvr_seg_header, boot_id), AT(kvr_seg_header, pid), AT(kvr_seg_header, ranks),
		AT(kvr_seg_header, ring_bytes), AT(kvr_seg_header, ops),
		AT(kvr_seg_header, events), AT(kvr_seg_header, tag_hash),
		AT(kvr_seg_header, name), AT(kvr_seg_header, model),
		AT(kvr_seg_header, config_len), AT(kvr_seg_header, config),
		AT(kvr_seg_header, space), AT(kvr_seg_header, page),
		AT(kvr_seg_header, bulk_bytes), AT(kvr_seg_header, setup),
		AT(kvr_seg_header, checksum),
		SIZE(kvr_seg_takeover), AT(kvr_seg_takeover, pid), AT(kvr_seg_takeover, cause),
		AT(kvr_seg_takeover, ns), AT(kvr_seg_takeover, reason),
		AT(kvr_seg_takeover, blamed), AT(kvr_seg_takeover, closing),
		AT(kvr_seg_takeover, tick_done), AT(kvr_seg_takeover, watermark),
		BELL_BYTES, RING_CTL,
		SIZE(kvr_proc), AT(kvr_proc, state), AT(kvr_proc, pid), AT(kvr_proc, rank),
		AT(kvr_proc, start_time), AT(kvr_proc, phase_until), AT(kvr_proc, progress_ns),
		AT(kvr_proc, in_call), AT(kvr_proc, call_arg), AT(kvr_proc, call_ns),
		AT(kvr_proc, tick_seen), AT(kvr_proc, lost_wakes), AT(kvr_proc, expired),
		AT(kvr_proc, mismatches), AT(kvr_proc, cause), AT(kvr_proc, blamed),
		AT(kvr_proc, space), AT(kvr_proc, phase), KVR_CALLS,
		SIZE(kvr_leader_page), AT(kvr_leader_page, tick_done),
		AT(kvr_leader_page, watermark), AT(kvr_leader_page, calls),
		AT(kvr_leader_page, quarantined_ops), AT(kvr_leader_page, quarantined_slots),
		AT(kvr_leader_page, bulk_used), AT(kvr_leader_page, late),
		AT(kvr_leader_page, duplicate), AT(kvr_leader_page, foreign),
		AT(kvr_leader_page, ending), AT(kvr_leader_page, meet),
		SIZE(kvr_rank_page), AT(kvr_rank_page, calls), AT(kvr_rank_page, taken),
		AT(kvr_rank_page, cursor), AT(kvr_rank_page, meet), AT(kvr_rank_page, drift),
		AT(kvr_rank_page, late), AT(kvr_rank_page, duplicate), AT(kvr_rank_page, foreign),
		SIZE(kvr_meet), AT(kvr_meet, with_leader), AT(kvr_meet, round),
		AT(kvr_meet, value),
		SIZE(kvr_drift), AT(kvr_drift, attempt), AT(kvr_drift, index),
		AT(kvr_drift, request), AT(kvr_drift, its_request), AT(kvr_drift, its_attempt),
		AT(kvr_drift, exact), AT(kvr_drift, ns),
		SIZE(kvr_alike_log), AT(kvr_alike_log, ns), AT(kvr_alike_log, call), KVR_ALIKES,
		SIZE(kvr_alike_call), AT(kvr_alike_call, request), AT(kvr_alike_call, attempt),
		AT(kvr_alike_call, keys), AT(kvr_alike_call, index),
		SIZE(kvr_op_entry), AT(kvr_op_entry, request), AT(kvr_op_entry, space),
		AT(kvr_op_entry, attempt), AT(kvr_op_entry, kind), AT(kvr_op_entry, blocks),
		AT(kvr_op_entry, begun_ns), AT(kvr_op_entry, stage_ns), AT(kvr_op_entry, acked),
		AT(kvr_op_entry, layers), AT(kvr_op_entry, flags), AT(kvr_op_entry, need),
		KVR_OP_KINDS, SIZE(kvr_ack_entry), AT(kvr_ack_entry, layers),
		SIZE(kvr_msg_head), AT(kvr_msg_head, request), AT(kvr_msg_head, space),
		AT(kvr_msg_head, attempt), AT(kvr_msg_head, bulk),
		SIZE(kvr_rec_ctl),
		SIZE(kvr_event), AT(kvr_event, request), AT(kvr_event, number),
		AT(kvr_event, arg), AT(kvr_event, attempt), AT(kvr_event, tag),
		AT(kvr_event, result), AT(kvr_event, rank), AT(kvr_event, kind),
		AT(kvr_event, channel), AT(kvr_event, call), AT(kvr_event, index), KVR_EV_KINDS,
	};
	/* clang-format on */
	struct kvr_layout example;
	uint64_t hash = kvr_hash(table, sizeof table, KVR_SEG_VERSION);

	/* The formula, too: odd numbers, so that a term that moved shows. */
	memset(&example, 0, sizeof example);
	kvr_layout_init(&example, 8192, 33, 2048, 64, 32, 65536);
	return kvr_hash(&example, sizeof example, hash);
}

static uint64_t hash_name(const char *name, uint64_t hash)
{
	return kvr_hash(name, strlen(name) + 1, hash);
}

uint64_t kvr_tag_hash(void)
{
	uint64_t hash = 0;

	for (uint32_t i = 0; i < KVR_CHANNELS; i++)
		hash = hash_name(kvr_channel_name(i), hash);
	for (uint32_t i = 0; i < KVR_TAG_USER; i++)
		hash = hash_name(kvr_tag_name(i), hash);
	for (uint32_t i = 0; i < KVR_STAGES; i++)
		hash = hash_name(kvr_stage_name(i), hash);
	return hash;
}

uint64_t kvr_header_sum(const struct kvr_seg_header *header)
{
	struct kvr_seg_header copy = *header;

	copy.magic = 0;
	return kvr_hash(&copy, offsetof(struct kvr_seg_header, checksum), 0);
}

static int differs(const char *path, const char *field, uint64_t theirs, uint64_t ours,
		   const char *hint)
{
	if (theirs == ours)
		return 0;
	return KVR_FAIL(-EPROTO, "%s: %s is %#llx (%llu), this library has %#llx (%llu); %s", path,
			field, (ull)theirs, (ull)theirs, (ull)ours, (ull)ours, hint);
}

/* What must hold before any other field means anything. */
static int check_kind(const struct kvr_seg_header *h, const char *path)
{
	const char *other = "use the same version of kvring in the leader and all ranks";
	int err = differs(path, "magic", h->magic, KVR_SEG_MAGIC,
			  "it is no kvring segment and stays as it is; choose another name");

	if (!err)
		err = differs(path, "version", h->version, KVR_SEG_VERSION, other);
	if (!err)
		err = differs(path, "header_bytes", h->header_bytes, sizeof *h, other);
	if (!err)
		err = differs(path, "layout_hash", h->layout_hash, kvr_layout_hash(), other);
	if (!err)
		return differs(path, "checksum of the header", h->checksum, kvr_header_sum(h),
			       "its bytes were changed after it was made; the group is unusable");
	if (h->magic == KVR_SEG_MAGIC) {
		char library[sizeof h->library];

		kvr_text_copy(library, sizeof library, h->library, sizeof h->library);
		kvr_fail_more(err, " (theirs: kvring %s, ours: %s)", library, KVR_VERSION_STRING);
	}
	return err;
}

int kvr_header_check(const struct kvr_seg_header *header, uint64_t file_bytes, const char *path,
		     struct kvr_layout *ret_layout)
{
	const char *broken = "the segment is broken or was truncated";
	const struct kvr_seg_header *h = header;
	struct kvr_layout l;
	int err = check_kind(h, path);

	if (err)
		return err;
	if (h->incompat & ~KVR_SEG_INCOMPAT)
		return KVR_FAIL(-EPROTO,
				"%s: incompat is %#llx, this library knows the bits %#llx; use "
				"the same version in the leader and all ranks",
				path, (ull)h->incompat, KVR_SEG_INCOMPAT);
	err = differs(path, "channels", h->channels, KVR_CHANNELS, broken);
	if (err)
		return err;
	if (kvr_layout_init(&l, h->page, h->ranks, h->ring_bytes, h->ops, h->events,
			    h->bulk_bytes)) {
		char why[200];

		snprintf(why, sizeof why, "%s", kvr_explain());
		return KVR_FAIL(-EPROTO, "%s: %s; %s", path, why, broken);
	}
	err = differs(path, "total_bytes", h->total_bytes, l.total, broken);
	if (!err && file_bytes != l.total)
		err = KVR_FAIL(-EPROTO, "%s: the file has %llu bytes, total_bytes is %llu; %s",
			       path, (ull)file_bytes, (ull)l.total, broken);
	if (!err && h->config_len > KVR_CONFIG_MAX)
		err = KVR_FAIL(-EPROTO, "%s: config_len is %u, at most %u is possible; %s", path,
			       h->config_len, KVR_CONFIG_MAX, broken);
	if (!err && (!h->epoch || !memchr(h->name, 0, sizeof h->name)))
		err = KVR_FAIL(-EPROTO, "%s: epoch is %llu (from 1), name %s its end; %s", path,
			       (ull)h->epoch, memchr(h->name, 0, sizeof h->name) ? "has" : "lacks",
			       broken);
	if (!err)
		*ret_layout = l;
	return err;
}

static int model_text(const char *field, const char *theirs, const char *ours, size_t size,
		      const char *where)
{
	char a[64], b[64];

	if (!strncmp(theirs, ours, size))
		return 0;
	kvr_text_copy(a, sizeof a, theirs, size);
	kvr_text_copy(b, sizeof b, ours, size);
	return KVR_FAIL(-EPROTO, "%s: model.%s is \"%s\" there and \"%s\" here", where, field, a,
			b);
}

int kvr_model_check(const struct kvr_model *theirs, const struct kvr_model *ours, const char *where)
{
	const struct {
		const char *name;
		uint32_t a, b;
	} numbers[] = {
		{ "page_tokens", theirs->page_tokens, ours->page_tokens },
		{ "layers", theirs->layers, ours->layers },
		{ "heads", theirs->heads, ours->heads },
		{ "head_dim", theirs->head_dim, ours->head_dim },
		{ "flags", theirs->flags, ours->flags },
	};
	int err = model_text("name", theirs->name, ours->name, sizeof ours->name, where);

	if (!err)
		err = model_text("revision", theirs->revision, ours->revision,
				 sizeof ours->revision, where);
	if (!err)
		err = model_text("dtype", theirs->dtype, ours->dtype, sizeof ours->dtype, where);
	for (size_t i = 0; !err && i < KVR_ARRAY_LEN(numbers); i++)
		if (numbers[i].a != numbers[i].b)
			err = KVR_FAIL(-EPROTO, "%s: model.%s is %u there and %u here", where,
				       numbers[i].name, numbers[i].a, numbers[i].b);
	return err;
}

/* One line "name=value". */
struct field {
	const char *name, *value;
	size_t name_len, value_len;
};

/* The field at `at`, which ends before `end`: the next line's place, or NULL when there is none. */
static const char *field_read(const char *at, const char *end, struct field *ret)
{
	const char *stop, *equals;

	while (at < end && *at == '\n')
		at++;
	stop = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
	if (at == end)
		return NULL;
	if (!stop)
		stop = end;
	equals = memchr(at, '=', (size_t)(stop - at));
	ret->name = at;
	ret->name_len = (size_t)((equals ? equals : stop) - at);
	ret->value = equals ? equals + 1 : stop;
	ret->value_len = (size_t)(stop - ret->value);
	return stop;
}

static int field_find(const char *at, const char *end, const struct field *like, struct field *ret)
{
	while ((at = field_read(at, end, ret)))
		if (ret->name_len == like->name_len &&
		    !memcmp(ret->name, like->name, like->name_len))
			return 1;
	return 0;
}

int kvr_setup_valid(const char *setup)
{
	size_t len = strnlen(setup, KVR_SETUP_MAX);
	const char *at = setup, *end = setup + len;
	struct field f, again;

	if (len == KVR_SETUP_MAX)
		return KVR_FAIL(-EINVAL, "setup has more than the %u bytes that are possible",
				KVR_SETUP_MAX - 1);
	for (const char *p = setup; p < end; p++)
		if ((*p < ' ' || *p > '~') && *p != '\n')
			return KVR_FAIL(
				-EINVAL,
				"setup has the byte %#x at %zu; printable ASCII and ends of "
				"lines are possible",
				(unsigned)(unsigned char)*p, (size_t)(p - setup));
	while ((at = field_read(at, end, &f))) {
		if (!f.name_len || f.value == f.name + f.name_len)
			return KVR_FAIL(-EINVAL, "setup: \"%.*s\" is not name=value",
					(int)(at - f.name), f.name);
		if (field_find(at, end, &f, &again))
			return KVR_FAIL(-EINVAL, "setup has \"%.*s\" twice", (int)f.name_len,
					f.name);
	}
	return 0;
}

/* Every field of a is in b, with the same value. `mine`: a is this side's. */
static int setup_within(const char *a, const char *b, int mine, const char *where)
{
	const char *a_end = a + strlen(a), *b_end = b + strlen(b);
	struct field f, other;

	while ((a = field_read(a, a_end, &f))) {
		int found = field_find(b, b_end, &f, &other);

		if (!found)
			return KVR_FAIL(-EPROTO, "%s: setup %.*s is \"%.*s\" %s and missing %s",
					where, (int)f.name_len, f.name, (int)f.value_len, f.value,
					mine ? "here" : "there", mine ? "there" : "here");
		if (f.value_len != other.value_len || memcmp(f.value, other.value, f.value_len))
			return KVR_FAIL(-EPROTO,
					"%s: setup %.*s is \"%.*s\" there and \"%.*s\" here", where,
					(int)f.name_len, f.name, (int)other.value_len, other.value,
					(int)f.value_len, f.value);
	}
	return 0;
}

int kvr_setup_check(const char theirs[KVR_SETUP_MAX], const char *ours, const char *where)
{
	char copy[KVR_SETUP_MAX];
	int err;

	memcpy(copy, theirs, sizeof copy);
	copy[sizeof copy - 1] = 0;
	for (char *p = copy; *p; p++)
		if ((*p < ' ' || *p > '~') && *p != '\n')
			*p = '?';
	err = setup_within(ours, copy, 1, where);
	return err ? err : setup_within(copy, ours, 0, where);
}

static const char *pick(const char *const *names, size_t count, uint32_t i)
{
	return i < count ? names[i] : "?";
}

const char *kvr_call_name(uint32_t call)
{
	static const char *const names[] = {
		"none",		"lookup",	   "release",	      "store_begin",
		"store_copied", "check_completed", "wait_store",      "load_begin",
		"load_wait",	"load_done",	   "shutdown",	      "publish",
		"take",		"expect",	   "abort",	      "refuse",
		"prefetch",	"prefetch_cancel", "load_wait_layer", "propose",
		"vote",		"outcome",	   "reset",	      "barrier",
		"min_reduce"
	};

	_Static_assert(KVR_ARRAY_LEN(names) == KVR_CALLS, "a name a call");
	_Static_assert(KVR_CALLS <= KVR_CALL_SLOTS, "a count a call");
	return pick(names, KVR_ARRAY_LEN(names), call);
}

const char *kvr_proc_state_name(uint32_t state)
{
	static const char *const names[] = { "absent", "active", "left", "failed" };

	return pick(names, KVR_ARRAY_LEN(names), state);
}

const char *kvr_event_kind_name(uint32_t kind)
{
	static const char *const names[] = { "NONE",	 "CALL",   "PUBLISH", "TAKE",
					     "MISMATCH", "EXPIRE", "STAGE",   "DEATH" };

	_Static_assert(KVR_ARRAY_LEN(names) == KVR_EV_KINDS, "a name a kind");
	return pick(names, KVR_ARRAY_LEN(names), kind);
}

const char *kvr_op_kind_name(uint32_t kind)
{
	static const char *const names[] = { "none",	 "store",    "load",
					     "prefetch", "decision", "reset" };

	_Static_assert(KVR_ARRAY_LEN(names) == KVR_OP_KINDS, "a name a kind");
	return pick(names, KVR_ARRAY_LEN(names), kind);
}

const char *kvr_alike_name(uint32_t kind)
{
	static const char *const names[] = { "lookup",	 "store",    "load",
					     "prefetch", "decision", "reset" };

	_Static_assert(KVR_ARRAY_LEN(names) == KVR_ALIKES, "a name a kind");
	return pick(names, KVR_ARRAY_LEN(names), kind);
}
