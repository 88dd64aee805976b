/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The on-disk format, and the slot image that pool and disk share.
 *
 *   device region     offset                    bytes
 *   superblock A      0                         4096
 *   superblock B      4096                      4096     the valid one with higher `update` counts
 *   slot table        8192                      up(slots x 128, 4096)
 *   slots             data_offset               slots x slot_bytes
 *
 *   slot image        offset                    bytes
 *   header page       0                         header_bytes = up(160 + 8 x segments, 4096)
 *   payload           header_bytes              block_bytes, padded with zeros up to slot_bytes
 *
 * data_offset and slot_bytes are multiples of the device's alignment (4096 at least), so that any
 * block size works with direct I/O: DeepSeek-V3's 1,124,352-byte page takes 4096 + 1,126,400.
 * Llama-3-70B's 5 MiB page with 80 layer groups on 8 ranks has 640 segments: 8192 + 5 MiB.
 *
 * The pool keeps each block as the same image: store and load are one transfer of header and
 * payload, and the pool's slot metadata is the header page.
 *
 * Chain of trust, without journal, free list or flush on the data path:
 *
 *   record --checksum--> header page --checksums--> each segment of the payload
 *
 * A record that is torn fails its own checksum (seeded with device and slot number, so that one
 * written to another place fails, too). A header page that is lost, old, torn or misdirected does
 * not have the checksum in the record; `seq` is unique to one write, so no two pages are equal.
 * A lost, torn or misdirected payload sector fails its segment's checksum. Each is a miss.
 *
 * Order of writing a slot: image, then (after its completion) the table page with the record. A
 * crash between leaves the old record, which no longer matches the header page: a miss, as
 * intended. Eviction writes nothing. Reset raises cache_generation in the superblock and syncs:
 * records of older generations are void for ever. Of two valid records with one key, the higher seq
 * counts.
 */
#ifndef KVR_FORMAT_H
#define KVR_FORMAT_H

#include "kvring/types.h"

#define KVR_SUPER_MAGIC 0x315250555352564bull /* "KVRSUPR1" */
#define KVR_SLOT_MAGIC 0x31544f4c5352564bull  /* "KVRSLOT1" */
#define KVR_FORMAT_VERSION 1u
#define KVR_TABLE_OFFSET 8192u
#define KVR_RECORD_BYTES 128u
#define KVR_RECORDS_PAGE 32u /* records in a table page of 4096 bytes */
#define KVR_SEGMENTS_MAX 4096u
#define KVR_HEADER_FIXED 160u

/* Superblock: 4096 bytes. checksum: XXH3-64 of all other bytes (checksum as 0), seed 0. */
struct kvr_super {
	uint64_t magic;		    /*    0 */
	uint32_t version;	    /*    8  KVR_FORMAT_VERSION; any difference is refused */
	uint32_t header_bytes;	    /*   12  of a slot */
	uint64_t checksum;	    /*   16 */
	uint64_t update;	    /*   24  raised by each rewrite */
	uint8_t uuid[16];	    /*   32  of this device */
	uint8_t set_uuid[16];	    /*   48  of all devices of the store */
	uint32_t ordinal;	    /*   64  of this device in the set */
	uint32_t devices;	    /*   68  in the set */
	uint64_t cache_generation;  /*   72 */
	uint64_t device_bytes;	    /*   80  that the format covers; the file may not be shorter */
	uint64_t slots;		    /*   88 */
	uint64_t slot_bytes;	    /*   96 */
	uint64_t data_offset;	    /*  104 */
	uint64_t block_bytes;	    /*  112  payload without padding */
	uint64_t compat;	    /*  120  unknown bits ignored */
	uint64_t incompat;	    /*  128  unknown bits refused */
	uint32_t align;		    /*  136  of the device when it was formatted */
	uint32_t segments;	    /*  140 */
	struct kvr_model model;	    /*  144  144 bytes */
	uint32_t layer_groups;	    /*  288 */
	uint32_t shards;	    /*  292 */
	uint64_t layer_bytes;	    /*  296 */
	struct kvr_shard shard[64]; /* 304  40 bytes each */
	uint8_t reserved[1232];	    /* 2864 */
};
_Static_assert(sizeof(struct kvr_shard) == 40, "shard");
_Static_assert(sizeof(struct kvr_super) == 4096, "superblock");
_Static_assert(offsetof(struct kvr_super, checksum) == 16, "superblock");
_Static_assert(offsetof(struct kvr_super, uuid) == 32, "superblock");
_Static_assert(offsetof(struct kvr_super, cache_generation) == 72, "superblock");
_Static_assert(offsetof(struct kvr_super, align) == 136, "superblock");
_Static_assert(offsetof(struct kvr_super, model) == 144, "superblock");
_Static_assert(offsetof(struct kvr_super, layer_groups) == 288, "superblock");
_Static_assert(offsetof(struct kvr_super, shard) == 304, "superblock");
_Static_assert(offsetof(struct kvr_super, reserved) == 2864, "superblock");

/*
 * Slot record: 128 bytes; all zero: never written. checksum: XXH3-64 of all other bytes (checksum
 * as 0), seed = first 8 bytes of the device uuid ^ slot number.
 */
struct kvr_record {
	uint64_t checksum;  /*  0 */
	struct kvr_key key; /*  8 */
	uint64_t space;	    /* 40 */
	uint64_t seq;	    /* 48  slot generation: unique, rising over the whole store; 0: free */
	uint64_t cache_generation; /* 56 */
	uint64_t header_checksum;  /* 64  kvr_slot_header.checksum of the image */
	uint64_t bytes;		   /* 72  payload without padding */
	uint64_t reserved[6];	   /* 80 */
};
_Static_assert(sizeof(struct kvr_record) == KVR_RECORD_BYTES, "record");
_Static_assert(offsetof(struct kvr_record, key) == 8, "record");
_Static_assert(offsetof(struct kvr_record, seq) == 48, "record");
_Static_assert(offsetof(struct kvr_record, header_checksum) == 64, "record");

/*
 * Slot header page: 160 bytes and the segments' checksums; zeros up to header_bytes. The ranks
 * write sum[] (each its own segments), the engine seals the rest. checksum: XXH3-64 of the first
 * 160 + 8 x segments bytes with checksum as 0, seed 0.
 *
 * Segment (shard s, layer group l) has index = sum of `layers` of the shards before s, + (l -
 * first_layer). sum[index] = XXH3-64 of its bytes, seed = first 8 bytes of the key ^ index: bytes
 * of another block or another place do not match.
 */
struct kvr_slot_header {
	uint64_t magic;		   /*   0 */
	uint32_t version;	   /*   8 */
	uint32_t segments;	   /*  12 */
	uint64_t checksum;	   /*  16 */
	uint64_t seq;		   /*  24 */
	struct kvr_key key;	   /*  32 */
	uint64_t space;		   /*  64 */
	uint64_t cache_generation; /*  72 */
	uint64_t block_bytes;	   /*  80 */
	uint64_t layer_bytes;	   /*  88 */
	uint32_t layer_groups;	   /*  96 */
	uint32_t shards;	   /* 100 */
	uint8_t reserved[56];	   /* 104 */
	uint64_t sum[];		   /* 160 */
};
_Static_assert(offsetof(struct kvr_slot_header, key) == 32, "slot header");
_Static_assert(offsetof(struct kvr_slot_header, layer_groups) == 96, "slot header");
_Static_assert(offsetof(struct kvr_slot_header, sum) == KVR_HEADER_FIXED, "slot header");

/* Sizes that follow from a shape; computed once and shared by pool, store and ranks. */
struct kvr_geometry {
	uint64_t block_bytes, layer_bytes, slot_bytes;
	uint32_t header_bytes, segments, layer_groups, shards;
	uint32_t align; /* max(the device's, 4096): unit of header_bytes and slot_bytes */
	uint32_t reserved;
};

/* align: power of two; slot_bytes and header_bytes become multiples of max(align, 4096). -EINVAL
 * when a number is out of range (segments up to 4096, blocks up to 1 GiB). */
int kvr_geometry_init(const struct kvr_shape *shape, uint32_t align, struct kvr_geometry *ret_geo);

/* XXH3-64 over the fields of a shape, 0 for NULL: two pools or stores with equal hashes divide
 * blocks alike. */
uint64_t kvr_shape_hash(const struct kvr_shape *shape);

/* Fills in the slot header around sum[], zeros what pads header and payload, and returns the
 * header's checksum. The image is slot_bytes long. */
uint64_t kvr_slot_seal(void *image, const struct kvr_geometry *geo, const struct kvr_key *key,
		       uint64_t space, uint64_t seq, uint64_t cache_generation);
/* 0 when the image's header page is whole and is the one with this checksum, key and space;
 * -EBADMSG with observed and expected. */
int kvr_slot_check(const void *image, const struct kvr_geometry *geo, const struct kvr_key *key,
		   uint64_t space, uint64_t checksum);
/* Checksum of segment `index`, whose bytes are data[0..len). */
uint64_t kvr_segment_sum(const void *data, uint64_t len, const struct kvr_key *key, uint32_t index);

void kvr_super_seal(struct kvr_super *super);
/* 0 or -EPROTO / -EBADMSG with the reason. Bounds every number against device_bytes. */
int kvr_super_check(const struct kvr_super *super, uint64_t device_bytes);
/* Names the first field (model.*, shape, block_bytes...) that differs, both values; 0 or -EPROTO.
 */
int kvr_super_match(const struct kvr_super *super, const struct kvr_model *model,
		    const struct kvr_shape *shape);
/* How many slots fit a device of `bytes`; sets data_offset. 0: smaller than one block. */
uint64_t kvr_format_slots(uint64_t bytes, const struct kvr_geometry *geo,
			  uint64_t *ret_data_offset);

void kvr_record_seal(struct kvr_record *rec, const uint8_t uuid[16], uint64_t slot);
/* 1: valid, 0: empty (all zero), -EBADMSG: torn, misplaced or foreign (no sentence: the caller
 * sweeps over millions and counts). */
int kvr_record_check(const struct kvr_record *rec, const uint8_t uuid[16], uint64_t slot);

#endif
