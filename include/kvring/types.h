/* SPDX-License-Identifier: Apache-2.0 */
/* Types shared by the public headers: keys, requests, the model's geometry, tags and stages. */
#ifndef KVRING_TYPES_H
#define KVRING_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include "kvring/version.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVR_MAX_RANKS 64 /* a set of ranks is one 64-bit mask */
#define KVR_MAX_SHARDS 64
#define KVR_MAX_DEVICES 16
#define KVR_NAME_MAX 48 /* bytes of a group's name, with the final 0 */

/*
 * The name of a block: 32 bytes that identify a run of tokens *and all tokens before it*, such as a
 * chained SHA-256 or XXH3. Two blocks with equal keys in one namespace are the same bytes.
 */
struct kvr_key {
	uint8_t bytes[32];
};

/*
 * One request's name. `id` is the caller's; `attempt` tells a retry, or a later part of a request
 * that is served in parts, from the first. `space` is the namespace: tenant, adapter, salt. Keys
 * in different namespaces never match.
 */
struct kvr_request {
	uint64_t id;
	uint64_t space;
	uint32_t attempt;
	uint32_t reserved; /* 0 */
};

/*
 * What a cached block depends on. All fields are compared by name when a rank attaches and when a
 * store is opened; one that differs is refused with both values. Unused bytes are 0.
 */
struct kvr_model {
	char name[64];	   /* "deepseek-ai/DeepSeek-V3" */
	char revision[40]; /* commit or checksum of the weights */
	char dtype[16];	   /* "bf16", "fp8_e4m3" */
	uint32_t page_tokens;
	uint32_t layers;
	uint32_t heads;
	uint32_t head_dim;
	uint32_t flags; /* the caller's own; compared */
	uint32_t reserved;
};

/*
 * A rectangle of a block: in each of the layer groups [first_layer, first_layer + layers) the bytes
 * [offset, offset + bytes). One rank writes it, the ranks in `readers` read it.
 */
struct kvr_shard {
	uint32_t writer;
	uint32_t first_layer;
	uint32_t layers;
	uint32_t reserved;
	uint64_t offset;
	uint64_t bytes;
	uint64_t readers; /* bit r: rank r reads these bytes */
};

/*
 * The shape of a block: `layer_groups` runs of `layer_bytes` bytes each, layer-major, so that one
 * layer of all ranks is one contiguous range. The shards tile the block exactly: no byte without a
 * writer, none with two. A *segment* is one layer group of one shard: the unit of checksums.
 *
 *   Llama-3-70B, 8 tensor ranks, 16-token page: 5 MiB = 80 groups of 64 KiB, 8 shards of 8 KiB each
 *   DeepSeek-V3 MLA, 8 tensor ranks: 1,124,352 = 61 groups of 18,432, one shard, readers 0xff
 */
struct kvr_shape {
	uint32_t layer_groups;
	uint32_t shards;
	uint64_t layer_bytes;
	struct kvr_shard shard[KVR_MAX_SHARDS];
};

/* Every rank writes and reads its own 1/ranks of each layer group. layer_bytes % ranks must be 0.
 */
KVR_API int kvr_shape_split(uint32_t ranks, uint32_t layer_groups, uint64_t block_bytes,
			    struct kvr_shape *ret_shape);
/* All ranks read the same bytes, rank 0 writes them (MLA under tensor parallelism). */
KVR_API int kvr_shape_replicated(uint32_t ranks, uint32_t layer_groups, uint64_t block_bytes,
				 struct kvr_shape *ret_shape);
/* 0, or -EINVAL with the shard and byte that is covered twice, not at all, or by no rank. */
KVR_API int kvr_shape_check(const struct kvr_shape *shape, uint32_t ranks);

/* Channels from the leader to the ranks. Each kind of exchange has its own: ticks are no clock. */
enum kvr_channel {
	KVR_CH_LOOKUP,
	KVR_CH_STORE,
	KVR_CH_COMPLETE,
	KVR_CH_LOAD,
	KVR_CH_PREFETCH,
	KVR_CH_CONTROL,
	KVR_CH_USER0,
	KVR_CH_USER1,
	KVR_CH_USER2,
	KVR_CH_USER3,
	KVR_CHANNELS
};

/* Tags below 256 belong to the library; a caller's own start at KVR_TAG_USER. */
enum kvr_tag {
	KVR_TAG_NONE,
	KVR_TAG_LOOKUP_RESULT,
	KVR_TAG_STORE_BEGIN,
	KVR_TAG_STORE_COMPLETE,
	KVR_TAG_LOAD_BEGIN,
	KVR_TAG_SHUTDOWN,
	KVR_TAG_RESET,
	KVR_TAG_PREFETCH,
	KVR_TAG_PROPOSE,
	KVR_TAG_USER = 256
};

/* Stages of an operation. They only rise; KVR_STAGE_WRITTEN and above are ends. */
enum kvr_stage {
	KVR_STAGE_NONE,
	/* slots reserved, ranks may copy (store); reads run (load, prefetch); ranks check what is
	 * proposed (decision, load by layers) */
	KVR_STAGE_BEGUN,
	KVR_STAGE_COMMITTED, /* decision, load by layers: every rank voted for it; reads run */
	KVR_STAGE_COPIED,    /* every writer copied and hashed: GPU memory may be reused */
	KVR_STAGE_HOST,	     /* store: a lookup may hit. load: bytes are in the pool, verify them */
	KVR_STAGE_VERIFIED, /* load: every rank verified; the status is the number of good blocks */
	KVR_STAGE_WRITTEN,  /* store: on the store, a restart finds it. END */
	KVR_STAGE_DONE, /* load: every rank is done with the slots; a store without devices. END */
	KVR_STAGE_FAILED,    /* END; status is the cause, a negative errno */
	KVR_STAGE_CANCELLED, /* END */
	KVR_STAGE_LOST, /* END; with the epoch, before the ranks were told another; status: why */
	KVR_STAGES
};
#define KVR_STAGE_END KVR_STAGE_WRITTEN /* stages from here on are ends */

/* The longest prefix of keys[0..n) that is stored, and how much of it is in host memory. */
struct kvr_hit {
	uint32_t blocks; /* at most what the pool and one message can hold */
	uint32_t host;
	uint32_t nvme;
	uint32_t reserved;
};

/* Kinds of operations; and a lookup, which is none, where a call needs a name for it. */
enum kvr_kind {
	KVR_KIND_LOOKUP,
	KVR_KIND_STORE,
	KVR_KIND_LOAD,
	KVR_KIND_PREFETCH,
	KVR_KIND_DECISION,
	KVR_KIND_RESET
};

/* What happened to an operation. One record for each stage it passes; exactly one end. */
struct kvr_completion {
	struct kvr_request request;
	uint32_t kind;	/* enum kvr_kind */
	uint32_t stage; /* enum kvr_stage; >= KVR_STAGE_END is the end */
	int32_t status; /* 0, or the cause of FAILED or LOST */
	uint32_t blocks;
	uint64_t tick; /* that told it; of LOST, the last one */
};

/* What a leader counted since it started. */
struct kvr_stats {
	uint64_t epoch;
	uint64_t lookups, lookup_keys, hit_blocks, hit_blocks_host, hit_blocks_nvme;
	uint64_t blocks_stored;	 /* reached host */
	uint64_t blocks_written; /* reached the store */
	uint64_t blocks_loaded;	 /* verified on all ranks */
	uint64_t blocks_bad;	 /* failed verification or read */
	uint64_t blocks_recovered;
	uint64_t host_evictions, nvme_evictions;
	uint64_t ops_begun, ops_ended, ops_failed;
	uint64_t pool_slots, pool_free, store_slots, store_used;
	uint64_t bytes_read, bytes_written;
	uint64_t tick;
};

/* What a member of a group is, as others see it. Only DEAD and LEFT end waits. */
enum kvr_peer_state {
	KVR_PEER_ABSENT,    /* not attached in this epoch */
	KVR_PEER_ATTACHING, /* on its way in */
	KVR_PEER_ALIVE,	    /* however slow it is */
	KVR_PEER_STOPPED,   /* alive, but stopped by a signal or a debugger */
	KVR_PEER_DUMPING,   /* it crashed and writes its core: it still has its memory */
	KVR_PEER_DEAD,	    /* it died; see kvr_peer.gone */
	KVR_PEER_LEFT,	    /* in good order */
	KVR_PEER_STATES
};

/* What is known of a member; from kvr_group_peer(). */
struct kvr_peer {
	uint32_t rank;	/* UINT32_MAX: the leader */
	uint32_t state; /* enum kvr_peer_state: should one stop waiting for it? */
	uint32_t pid;	/* in its own pid namespace */
	/* 1: its process has ended and given back its memory; 0: not yet; -1: cannot be told from
	 * here. I/O that it began may go on: the lock on the store's files tells about that. */
	int32_t gone;
	uint32_t failed; /* leader: it declared the epoch over */
	uint32_t call;	 /* kvr_inspect_call_name(): the call it is inside of; 0 none */
	uint32_t call_channel;
	uint32_t reserved;
	uint64_t call_ns;	 /* since then, CLOCK_MONOTONIC */
	uint64_t progress_ns;	 /* last sign of life of its code; slow is not dead */
	uint64_t phase_until_ns; /* 0: no long phase declared */
	char phase[24];
};

/* Absolute deadline `ms` milliseconds from now, in CLOCK_MONOTONIC nanoseconds, as all calls take
 * it. */
KVR_API uint64_t kvr_deadline(uint64_t ms);

/* Text for a channel, tag, stage or state of a member; "?" for a number out of range. Safe from any
 * thread. */
KVR_API const char *kvr_channel_name(uint32_t channel);
KVR_API const char *kvr_tag_name(uint32_t tag);
KVR_API const char *kvr_stage_name(uint32_t stage);
KVR_API const char *kvr_peer_state_name(uint32_t state);

#ifdef __cplusplus
}
#endif
#endif
