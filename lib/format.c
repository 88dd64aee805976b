/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The on-disk format: sizes, seals and checks (format.h has the byte tables). Pure functions on
 * memory. All that is checked here comes from a disk or from memory that other processes can
 * write, so numbers are bounded before they are used, and a header page is copied before it is
 * judged: what the caller relies on must not change between the two.
 */
#include "format.h"

#include <errno.h>
#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "err.h"
#include "hash.h"
#include "util.h"

#define BLOCK_MAX (1ull << 30)
#define ALIGN_MAX (1u << 20)
#define HEADER_MAX (KVR_HEADER_FIXED + 8u * KVR_SEGMENTS_MAX)
/* Slot numbers are kept in 32 bits in memory: 2 PiB of 512 KiB slots a device. */
#define SLOTS_MAX UINT32_MAX

static uint64_t first8(const uint8_t *bytes)
{
	uint64_t v;

	memcpy(&v, bytes, sizeof v);
	return v;
}

int kvr_geometry_init(const struct kvr_shape *shape, uint32_t align, struct kvr_geometry *ret_geo)
{
	struct kvr_geometry g = { 0 };
	uint64_t segments = 0;
	uint32_t i;
	int err = kvr_shape_check(shape, KVR_MAX_RANKS);

	if (err)
		return err;
	if (!kvr_is_pow2(align) || align > ALIGN_MAX)
		return KVR_FAIL(-EINVAL,
				"kvr_geometry_init: alignment %u; expected a power of two up to %u",
				align, ALIGN_MAX);
	for (i = 0; i < shape->shards; i++)
		segments += shape->shard[i].layers;
	g.block_bytes = shape->layer_bytes * shape->layer_groups;
	if (segments > KVR_SEGMENTS_MAX || g.block_bytes > BLOCK_MAX)
		return KVR_FAIL(-EINVAL,
				"kvr_geometry_init: a block of %" PRIu64 " bytes in %" PRIu64
				" segments; up to %llu bytes and %u segments are supported",
				g.block_bytes, segments, BLOCK_MAX, KVR_SEGMENTS_MAX);
	g.align = align < KVR_PAGE ? KVR_PAGE : align;
	g.layer_bytes = shape->layer_bytes;
	g.layer_groups = shape->layer_groups;
	g.shards = shape->shards;
	g.segments = (uint32_t)segments;
	g.header_bytes = (uint32_t)kvr_align_up(KVR_HEADER_FIXED + 8u * segments, g.align);
	g.slot_bytes = g.header_bytes + kvr_align_up(g.block_bytes, g.align);
	*ret_geo = g;
	return 0;
}

/* --- slot images ------------------------------------------------------------------------------ */

static size_t header_used(const struct kvr_geometry *geo)
{
	return KVR_HEADER_FIXED + 8u * (size_t)geo->segments;
}

uint64_t kvr_shape_hash(const struct kvr_shape *shape)
{
	struct kvr_shape s;

	if (!shape)
		return 0;
	memset(&s, 0, sizeof s);
	s.layer_groups = shape->layer_groups;
	s.shards = shape->shards;
	s.layer_bytes = shape->layer_bytes;
	memcpy(s.shard, shape->shard, kvr_min(shape->shards, KVR_MAX_SHARDS) * sizeof s.shard[0]);
	return kvr_hash(&s, sizeof s, 0);
}

uint64_t kvr_slot_seal(void *image, const struct kvr_geometry *geo, const struct kvr_key *key,
		       uint64_t space, uint64_t seq, uint64_t cache_generation)
{
	struct kvr_slot_header *h = image;
	uint64_t payload_end = geo->header_bytes + geo->block_bytes;
	size_t used = header_used(geo);
	uint64_t checksum;

	memset(h, 0, KVR_HEADER_FIXED);
	memset((char *)image + used, 0, geo->header_bytes - used);
	memset((char *)image + payload_end, 0, geo->slot_bytes - payload_end);
	h->magic = KVR_SLOT_MAGIC;
	h->version = KVR_FORMAT_VERSION;
	h->segments = geo->segments;
	h->seq = seq;
	h->key = *key;
	h->space = space;
	h->cache_generation = cache_generation;
	h->block_bytes = geo->block_bytes;
	h->layer_bytes = geo->layer_bytes;
	h->layer_groups = geo->layer_groups;
	h->shards = geo->shards;
	checksum = kvr_hash(h, used, 0);
	h->checksum = checksum;
	return checksum;
}

int kvr_slot_check(const void *image, const struct kvr_geometry *geo, const struct kvr_key *key,
		   uint64_t space, uint64_t checksum)
{
	/* Also for a header that is mapped by others: what is hashed is what is compared. */
	uint64_t copy[HEADER_MAX / 8];
	struct kvr_slot_header head, *h = &head;
	size_t used = header_used(geo);
	uint64_t stored, computed;

	memcpy(copy, image, used);
	memcpy(h, copy, sizeof *h);
	if (h->magic != KVR_SLOT_MAGIC || h->version != KVR_FORMAT_VERSION)
		return KVR_FAIL(-EBADMSG,
				"slot header: magic %#" PRIx64
				" version %u; expected %#llx version "
				"%u: the slot was never written, or with something else",
				h->magic, h->version, KVR_SLOT_MAGIC, KVR_FORMAT_VERSION);
	stored = h->checksum;
	if (stored != checksum)
		return KVR_FAIL(-EBADMSG,
				"slot header: checksum %#" PRIx64 ", its record has %#" PRIx64
				": the slot holds another write (seq %" PRIu64 ")",
				stored, checksum, h->seq);
	copy[offsetof(struct kvr_slot_header, checksum) / 8] = 0;
	computed = kvr_hash(copy, used, 0);
	if (computed != stored)
		return KVR_FAIL(-EBADMSG,
				"slot header: its bytes have checksum %#" PRIx64
				", expected %#" PRIx64 ": torn or damaged",
				computed, stored);
	if (memcmp(&h->key, key, sizeof *key) || h->space != space)
		return KVR_FAIL(-EBADMSG,
				"slot header: key %016" PRIx64 "... in space %" PRIu64
				"; expected %016" PRIx64 "... in %" PRIu64,
				be64toh(first8(h->key.bytes)), h->space,
				be64toh(first8(key->bytes)), space);
	if (h->segments != geo->segments || h->block_bytes != geo->block_bytes)
		return KVR_FAIL(-EBADMSG,
				"slot header: %" PRIu64 " bytes in %u segments; expected %" PRIu64
				" in %u",
				h->block_bytes, h->segments, geo->block_bytes, geo->segments);
	return 0;
}

uint64_t kvr_segment_sum(const void *data, uint64_t len, const struct kvr_key *key, uint32_t index)
{
	return kvr_hash(data, len, first8(key->bytes) ^ index);
}

/* --- slot records ----------------------------------------------------------------------------- */

static uint64_t record_sum(const struct kvr_record *rec, const uint8_t uuid[16], uint64_t slot)
{
	struct kvr_record copy = *rec;

	copy.checksum = 0;
	return kvr_hash(&copy, sizeof copy, first8(uuid) ^ slot);
}

void kvr_record_seal(struct kvr_record *rec, const uint8_t uuid[16], uint64_t slot)
{
	rec->checksum = record_sum(rec, uuid, slot);
}

int kvr_record_check(const struct kvr_record *rec, const uint8_t uuid[16], uint64_t slot)
{
	static const struct kvr_record empty;

	if (!rec->checksum && !memcmp(rec, &empty, sizeof empty))
		return 0;
	return rec->seq && rec->checksum == record_sum(rec, uuid, slot) ? 1 : -EBADMSG;
}

/* --- superblocks ------------------------------------------------------------------------------ */

uint64_t kvr_format_slots(uint64_t bytes, const struct kvr_geometry *geo, uint64_t *ret_data_offset)
{
	uint64_t slots, offset;

	if (bytes < KVR_TABLE_OFFSET)
		return 0;
	slots = (bytes - KVR_TABLE_OFFSET) / (geo->slot_bytes + KVR_RECORD_BYTES);
	slots = kvr_min(slots, SLOTS_MAX);
	/* The guess leaves out how the table is rounded up: too high by a few at most. */
	for (; slots; slots--) {
		offset = KVR_TABLE_OFFSET + kvr_align_up(slots * KVR_RECORD_BYTES, KVR_PAGE);
		offset = kvr_align_up(offset, geo->align);
		if (offset <= bytes && (bytes - offset) / geo->slot_bytes >= slots) {
			*ret_data_offset = offset;
			return slots;
		}
	}
	return 0;
}

static uint64_t super_sum(const struct kvr_super *super)
{
	struct kvr_super copy = *super;

	copy.checksum = 0;
	return kvr_hash(&copy, sizeof copy, 0);
}

void kvr_super_seal(struct kvr_super *super)
{
	super->checksum = super_sum(super);
}

static void super_shape(const struct kvr_super *super, struct kvr_shape *ret_shape)
{
	ret_shape->layer_groups = super->layer_groups;
	ret_shape->shards = super->shards;
	ret_shape->layer_bytes = super->layer_bytes;
	memcpy(ret_shape->shard, super->shard, sizeof ret_shape->shard);
}

static int super_check_sizes(const struct kvr_super *s, uint64_t device_bytes)
{
	struct kvr_geometry geo;
	struct kvr_shape shape;
	uint64_t table = KVR_TABLE_OFFSET + kvr_align_up(s->slots * KVR_RECORD_BYTES, KVR_PAGE);

	super_shape(s, &shape);
	if (kvr_geometry_init(&shape, s->align, &geo))
		return kvr_fail_more(-EBADMSG, " (in a superblock)");
	if (s->header_bytes != geo.header_bytes || s->slot_bytes != geo.slot_bytes ||
	    s->block_bytes != geo.block_bytes || s->segments != geo.segments)
		return KVR_FAIL(-EBADMSG,
				"superblock: slots of %u + %" PRIu64 " bytes, blocks of %" PRIu64
				" in %u segments; its shape makes that %u + %" PRIu64 ", %" PRIu64
				", %u",
				s->header_bytes, s->slot_bytes, s->block_bytes, s->segments,
				geo.header_bytes, geo.slot_bytes, geo.block_bytes, geo.segments);
	if (s->slots < 1 || s->slots > SLOTS_MAX || s->data_offset < table ||
	    s->data_offset % geo.align || s->data_offset > s->device_bytes ||
	    (s->device_bytes - s->data_offset) / s->slot_bytes < s->slots)
		return KVR_FAIL(-EBADMSG,
				"superblock: %" PRIu64 " slots of %" PRIu64 " bytes from %" PRIu64
				" on do not lie behind their table and within %" PRIu64 " bytes",
				s->slots, s->slot_bytes, s->data_offset, s->device_bytes);
	if (s->device_bytes > device_bytes)
		return KVR_FAIL(-EBADMSG,
				"superblock: covers %" PRIu64 " bytes, the device has %" PRIu64
				": it was cut short",
				s->device_bytes, device_bytes);
	return 0;
}

int kvr_super_check(const struct kvr_super *super, uint64_t device_bytes)
{
	uint64_t sum;

	if (super->magic != KVR_SUPER_MAGIC)
		return KVR_FAIL(-EPROTO,
				"superblock: magic %#" PRIx64
				", expected %#llx: not a kvring store",
				super->magic, KVR_SUPER_MAGIC);
	sum = super_sum(super);
	if (super->version != KVR_FORMAT_VERSION)
		return KVR_FAIL(
			-EPROTO,
			"superblock: format version %u, this library reads version %u; use the "
			"library that wrote the store, or reformat",
			super->version, KVR_FORMAT_VERSION);
	if (super->checksum != sum)
		return KVR_FAIL(-EBADMSG,
				"superblock: its bytes have checksum %#" PRIx64
				", expected %#" PRIx64 ": torn or damaged",
				sum, super->checksum);
	if (super->incompat)
		return KVR_FAIL(-EPROTO,
				"superblock: needs features %#" PRIx64
				" that this library lacks; use a newer one, or reformat",
				super->incompat);
	if (super->devices < 1 || super->devices > KVR_MAX_DEVICES ||
	    super->ordinal >= super->devices)
		return KVR_FAIL(-EBADMSG, "superblock: device %u of %u; up to %u are supported",
				super->ordinal, super->devices, KVR_MAX_DEVICES);
	return super_check_sizes(super, device_bytes);
}

/* --- fingerprint ------------------------------------------------------------------------------ */

struct field {
	const char *name;
	size_t off, len; /* len 4 or 8: a number */
	int text;
};

#define NUMBER(type, name, member)                                                         \
	{                                                                                  \
		name, offsetof(struct type, member), sizeof(((struct type *)0)->member), 0 \
	}
#define TEXT(type, name, member)                                                           \
	{                                                                                  \
		name, offsetof(struct type, member), sizeof(((struct type *)0)->member), 1 \
	}

static const struct field model_fields[] = {
	TEXT(kvr_model, "model.name", name),
	TEXT(kvr_model, "model.revision", revision),
	TEXT(kvr_model, "model.dtype", dtype),
	NUMBER(kvr_model, "model.page_tokens", page_tokens),
	NUMBER(kvr_model, "model.layers", layers),
	NUMBER(kvr_model, "model.heads", heads),
	NUMBER(kvr_model, "model.head_dim", head_dim),
	NUMBER(kvr_model, "model.flags", flags),
};

static const struct field shape_fields[] = {
	NUMBER(kvr_shape, "shape.layer_groups", layer_groups),
	NUMBER(kvr_shape, "shape.layer_bytes", layer_bytes),
	NUMBER(kvr_shape, "shape.shards", shards),
};

static const struct field shard_fields[] = {
	NUMBER(kvr_shard, "writer", writer), NUMBER(kvr_shard, "first_layer", first_layer),
	NUMBER(kvr_shard, "layers", layers), NUMBER(kvr_shard, "offset", offset),
	NUMBER(kvr_shard, "bytes", bytes),   NUMBER(kvr_shard, "readers", readers),
};

static uint64_t number_at(const void *base, const struct field *f)
{
	uint32_t v32;
	uint64_t v64;

	if (f->len == 4) {
		memcpy(&v32, (const char *)base + f->off, 4);
		return v32;
	}
	memcpy(&v64, (const char *)base + f->off, 8);
	return v64;
}

/* Compares field by field; `where` goes before the name of one that differs. */
static int match(const struct field *fields, size_t n, const char *where, const void *stored,
		 const void *wanted)
{
	char a[72], b[72];
	const char *sa, *sb;
	size_t i;

	for (i = 0; i < n; i++) {
		const struct field *f = &fields[i];

		sa = (const char *)stored + f->off;
		sb = (const char *)wanted + f->off;
		if (f->text) {
			if (!strncmp(sa, sb, f->len))
				continue;
			kvr_text_copy(a, sizeof a, sa, f->len);
			kvr_text_copy(b, sizeof b, sb, f->len);
			return KVR_FAIL(-EPROTO,
					"the store was made with %s%s \"%s\", this run has \"%s\"; "
					"use another path, or reformat it",
					where, f->name, a, b);
		}
		if (number_at(stored, f) != number_at(wanted, f))
			return KVR_FAIL(-EPROTO,
					"the store was made with %s%s %" PRIu64
					", this run has %" PRIu64
					"; use another path, or reformat it",
					where, f->name, number_at(stored, f), number_at(wanted, f));
	}
	return 0;
}

int kvr_super_match(const struct kvr_super *super, const struct kvr_model *model,
		    const struct kvr_shape *shape)
{
	struct kvr_shape stored;
	char where[32];
	uint32_t i;
	int err;

	super_shape(super, &stored);
	err = match(model_fields, KVR_ARRAY_LEN(model_fields), "", &super->model, model);
	if (!err)
		err = match(shape_fields, KVR_ARRAY_LEN(shape_fields), "", &stored, shape);
	for (i = 0; !err && i < stored.shards && i < KVR_MAX_SHARDS; i++) {
		snprintf(where, sizeof where, "shape.shard[%u].", i);
		err = match(shard_fields, KVR_ARRAY_LEN(shard_fields), where, &stored.shard[i],
			    &shape->shard[i]);
	}
	return err;
}
