/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The byte tables of a segment: one file a group and epoch, in the directory of shared memory.
 *
 *   region        offset     bytes                  writer
 *   header        0          4096                   leader, before it is visible
 *   takeover      P          4096                   a taker, under the name lock
 *   bells         2 P        (ranks + 1) x 128      anyone: any value only wakes
 *   leader area   next P     4096 | ops x 128 | recorder | call logs | rings          leader
 *                            [channel][rank] | bulk
 *   rank area r   next P     4096 | ops x 16 ack words | recorder | call logs         rank r
 *
 * P is the kernel's page size (4096; up to 65536 on arm64), and each area begins at a multiple of
 * it, so that every page has one writer and the others map it read-only. A ring is KVR_RING_CTL +
 * ring_bytes. Bell r < ranks is rank r's, bell `ranks` is the leader's. kvr_layout_init() computes
 * all offsets from six numbers of the header; attachers keep the result in private memory and
 * never look at the header again.
 *
 * Size: 2 P + up(128 (ranks + 1))
 *     + up(4096 + 128 ops + R + 10 ranks (128 + ring_bytes) + bulk_bytes)
 *     + ranks x up(4096 + 16 ops + R)
 * with R = 128 + 64 events + 6 (128 + 32 window) and up() rounding to P. 8 ranks, defaults, P =
 * 4096: 12.3 MiB.
 *
 * Every value read from another's page is input: loaded once, bounded, then used.
 *
 * Versions. KVR_SEG_VERSION changes with any size, offset or meaning below, and processes of
 * different versions refuse each other. A minor version may give meaning to reserved bytes (they
 * are 0 until then) without that: it sets a bit of `compat` when others may ignore the addition, of
 * `incompat` when they would do harm. Unknown bits of `compat` are ignored, of `incompat` refused.
 * `magic`, `version` and `library` stay where they are for ever, so that each version can name
 * the other.
 */
#ifndef KVR_LAYOUT_H
#define KVR_LAYOUT_H

#include "kvring/types.h"

#define KVR_SEG_MAGIC 0x313047455352564bull /* "KVRSEG01" in memory */
#define KVR_SEG_VERSION 4u
#define KVR_LEADER 0xffffffffu /* in place of a rank */
#define KVR_CONFIG_MAX 3072u
#define KVR_SETUP_MAX 504u
#define KVR_SEG_INCOMPAT 0ull /* the bits that this library knows */

/*
 * Header. Constant once visible. The checksum is XXH3-64 of bytes 0..4087 with `magic` as 0: magic
 * is stored last.
 */
struct kvr_seg_header {
	uint64_t magic;		/*    0 */
	uint32_t version;	/*    8  KVR_SEG_VERSION; any difference is refused */
	uint32_t header_bytes;	/*   12  4096 */
	uint64_t layout_hash;	/*   16  of all sizes and offsets below */
	uint64_t total_bytes;	/*   24  must equal fstat's */
	uint64_t compat;	/*   32  unknown bits are ignored */
	uint64_t incompat;	/*   40  unknown bits are refused */
	uint8_t uuid[16];	/*   48  of the group; one for all its epochs */
	uint64_t epoch;		/*   64  1 for the first */
	uint8_t boot_id[16];	/*   72 */
	uint64_t created_ns;	/*   88  CLOCK_MONOTONIC */
	uint32_t pid;		/*   96  creator */
	uint32_t ranks;		/*  100  1..64 */
	uint64_t start_time;	/*  104  field 22 of /proc/pid/stat */
	uint32_t ring_bytes;	/*  112  power of two */
	uint32_t ops;		/*  116  entries of the operation table */
	uint32_t events;	/*  120  events a recorder holds; power of two */
	uint32_t channels;	/*  124  KVR_CHANNELS */
	uint64_t tag_hash;	/*  128  of the library's tag catalogue */
	char library[24];	/*  136  version string, for people */
	char name[48];		/*  160 */
	struct kvr_model model; /*  208  144 bytes: the caller's configuration fingerprint */
	uint32_t config_len;	/*  352  bytes of config in use */
	uint32_t config_kind;	/*  356  who defines config: 1 the connector */
	uint64_t space;		/*  360  in which `pid` and `start_time` mean it; process.h */
	uint32_t page;		/*  368  P: the creator's page size */
	uint32_t bulk_bytes;	/*  372  power of two */
	uint32_t reserved0[34]; /*  376 */
	uint8_t config[3072];	/*  512  opaque to the group: shape and pool of the connector */
	char setup[504];	/* 3584  lines "name=value": the caller's own fingerprint */
	uint64_t checksum;	/* 4088 */
};
_Static_assert(sizeof(struct kvr_model) == 144, "model");
_Static_assert(sizeof(struct kvr_seg_header) == 4096, "header");
_Static_assert(offsetof(struct kvr_seg_header, version) == 8, "header");
_Static_assert(offsetof(struct kvr_seg_header, layout_hash) == 16, "header");
_Static_assert(offsetof(struct kvr_seg_header, uuid) == 48, "header");
_Static_assert(offsetof(struct kvr_seg_header, epoch) == 64, "header");
_Static_assert(offsetof(struct kvr_seg_header, created_ns) == 88, "header");
_Static_assert(offsetof(struct kvr_seg_header, ring_bytes) == 112, "header");
_Static_assert(offsetof(struct kvr_seg_header, library) == 136, "header");
_Static_assert(offsetof(struct kvr_seg_header, model) == 208, "header");
_Static_assert(offsetof(struct kvr_seg_header, space) == 360, "header");
_Static_assert(offsetof(struct kvr_seg_header, bulk_bytes) == 372, "header");
_Static_assert(offsetof(struct kvr_seg_header, config) == 512, "header");
_Static_assert(offsetof(struct kvr_seg_header, setup) == 3584, "header");
_Static_assert(offsetof(struct kvr_seg_header, checksum) == 4088, "header");

/*
 * Takeover page. Written under the name lock by the process that makes the newer epoch.
 *
 * The fence: the old leader may live and publish on (it was stopped, and goes on). So the taker
 * freezes what counts: while it holds `closing`, ranks take nothing; then it copies how far the
 * leader is; then new_epoch makes the copy true, and ranks drain up to it, and not beyond. A taker
 * that dies in between changed nothing: `closing` is a liveness word.
 */
struct kvr_seg_takeover {
	uint64_t new_epoch;	/*   0  0: current. K1 store-release, pairs with K2 */
	uint32_t pid;		/*   8  of the taker */
	uint32_t cause;		/*  12  enum kvr_retired */
	uint64_t ns;		/*  16 */
	int32_t reason;		/*  24  why the old leader declared it over, negative errno, or 0 */
	uint32_t blamed;	/*  28  rank that it blamed, or KVR_LEADER */
	uint32_t closing;	/*  32  liveness word of the taker's thread. N1, pairs with N2 */
	uint32_t reserved0;	/*  36 */
	uint64_t tick_done;	/*  40  the leader's, as far as it counts */
	uint64_t watermark[16]; /*  48  likewise */
	uint8_t reserved[4096 - 176];
};
_Static_assert(sizeof(struct kvr_seg_takeover) == 4096, "takeover");
_Static_assert(offsetof(struct kvr_seg_takeover, reason) == 24, "takeover");
_Static_assert(offsetof(struct kvr_seg_takeover, closing) == 32, "takeover");
_Static_assert(offsetof(struct kvr_seg_takeover, watermark) == 48, "takeover");
enum kvr_retired {
	KVR_RETIRED_NOT,
	KVR_RETIRED_DEAD,   /* its leader was dead */
	KVR_RETIRED_LEFT,   /* it had left, or had declared the epoch over and left */
	KVR_RETIRED_KILLED, /* the taker killed it */
	KVR_RETIRED_FENCED  /* it may live, and has only lost its name */
};

/* States of a process in its page. */
enum kvr_proc_state {
	KVR_PROC_ABSENT,
	KVR_PROC_ACTIVE,
	KVR_PROC_LEFT,	/* ended in good order */
	KVR_PROC_FAILED /* leader alone: it declared the epoch over; `cause` and `blamed` say why */
};

/* First 128 bytes of the leader's and of each rank's page. */
struct kvr_proc {
	uint32_t life;	      /*   0  robust futex word: tid of the watcher; see life.h */
	uint32_t state;	      /*   4  enum kvr_proc_state. G1 store-release, pairs with G2 */
	uint32_t pid;	      /*   8 */
	uint32_t rank;	      /*  12  KVR_LEADER for the leader */
	uint64_t start_time;  /*  16 */
	uint64_t phase_until; /*  24  declared long phase: "slow until t" */
	uint64_t progress_ns; /*  32  last sign of life of its code; slow is not dead */
	uint32_t in_call;     /*  40  enum kvr_call it is inside of, 0 none */
	uint32_t call_arg;    /*  44  channel of that call */
	uint64_t call_ns;     /*  48  when it went in */
	uint64_t tick_seen;   /*  56  rank: last tick whose completions it took */
	uint64_t lost_wakes;  /*  64  wake-ups that only the back-stop delivered */
	uint64_t expired;     /*  72  messages nobody asked for */
	uint64_t mismatches;  /*  80  wrong tags met by expect */
	int32_t cause;	      /*  88  leader: why the epoch failed, negative errno */
	uint32_t blamed;      /*  92  leader: rank that it blames, or KVR_LEADER */
	uint64_t space;	      /*  96  in which `pid` and `start_time` mean it; process.h */
	char phase[24];	      /* 104  name of the long phase */
};
_Static_assert(sizeof(struct kvr_proc) == 128, "proc");
_Static_assert(offsetof(struct kvr_proc, progress_ns) == 32, "proc");
_Static_assert(offsetof(struct kvr_proc, tick_seen) == 56, "proc");
_Static_assert(offsetof(struct kvr_proc, cause) == 88, "proc");
_Static_assert(offsetof(struct kvr_proc, space) == 96, "proc");

/* Kinds of call, counted per process in its page and named by ring-dump. */
enum kvr_call {
	KVR_CALL_NONE,
	KVR_CALL_LOOKUP,
	KVR_CALL_RELEASE,
	KVR_CALL_STORE_BEGIN,
	KVR_CALL_STORE_COPIED,
	KVR_CALL_CHECK_COMPLETED,
	KVR_CALL_WAIT_STORE,
	KVR_CALL_LOAD_BEGIN,
	KVR_CALL_LOAD_WAIT,
	KVR_CALL_LOAD_DONE,
	KVR_CALL_SHUTDOWN,
	KVR_CALL_PUBLISH,
	KVR_CALL_TAKE,
	KVR_CALL_EXPECT,
	KVR_CALL_ABORT,
	KVR_CALL_REFUSE,
	KVR_CALL_PREFETCH,
	KVR_CALL_PREFETCH_CANCEL,
	KVR_CALL_LOAD_WAIT_LAYER,
	KVR_CALL_PROPOSE,
	KVR_CALL_VOTE,
	KVR_CALL_OUTCOME,
	KVR_CALL_RESET,
	KVR_CALL_BARRIER,
	KVR_CALL_MIN_REDUCE,
	KVR_CALLS
};
#define KVR_CALL_SLOTS 32

/*
 * A barrier or reduction over a set of processes: each member has an entry of that set in its own
 * page, the first free one when it first meets there. The values of two rounds, since the fastest
 * member may be in the next round while the slowest still reads this one.
 */
#define KVR_MEETS 8u	   /* sets a process can be a member of in an epoch */
#define KVR_MEET_VALUES 6u /* of one reduction */
struct kvr_meet {
	uint64_t ranks;	      /*   0  of the set; 0: the entry is free. U3 store-release, U4 */
	uint32_t with_leader; /*   8  1: the leader, too */
	uint32_t reserved;    /*  12 */
	uint64_t round;	      /*  16  rounds << 8 | values. U1 exchange, pairs with U2 */
	int64_t value[2][6];  /*  24  of even and odd rounds */
	uint64_t reserved1;   /* 120 */
};
_Static_assert(sizeof(struct kvr_meet) == 128, "meet");
_Static_assert(offsetof(struct kvr_meet, round) == 16, "meet");
_Static_assert(offsetof(struct kvr_meet, value) == 24, "meet");

/* The first call that this rank made otherwise than the leader. */
struct kvr_drift {
	uint32_t kind;	      /*  0  enum kvr_alike + 1; 0: none. D3 store-release, pairs with D4 */
	uint32_t attempt;     /*  4 */
	uint64_t index;	      /*  8  of the call among those of its kind, from 0 */
	uint64_t request;     /* 16 */
	uint64_t its_request; /* 24  the leader's, at that index */
	uint32_t its_attempt; /* 32 */
	uint32_t exact;	      /* 36  0: they may have differed before, unseen */
	uint64_t ns;	      /* 40 */
	uint64_t reserved[2]; /* 48 */
};
_Static_assert(sizeof(struct kvr_drift) == 64, "drift");
_Static_assert(offsetof(struct kvr_drift, its_request) == 24, "drift");
_Static_assert(offsetof(struct kvr_drift, ns) == 40, "drift");

struct kvr_leader_page {
	struct kvr_proc proc;		/*    0 */
	uint64_t tick_done;		/*  128  T1 store-release, pairs with T2 */
	uint64_t tick_pad[15];		/*  136 */
	uint64_t watermark[16];		/*  256  publishes whole on all ranks, per channel. M1/M2 */
	uint64_t calls[KVR_CALL_SLOTS]; /*  384 */
	uint64_t quarantined_ops;	/*  640  ended while a rank may still copy */
	uint64_t quarantined_slots;	/*  648  of the pool, not used again until it cannot */
	uint64_t bulk_used; /*  656  bytes of the bulk area that a rank may still read */
	uint64_t late, duplicate, foreign; /*  664  acknowledgements that were not applied */
	uint64_t ending;		   /*  688  0; or the last tick + 1: the end is announced */
	uint64_t reserved0[9];		   /*  696 */
	struct kvr_meet meet[KVR_MEETS];   /*  768 */
	uint8_t reserved[4096 - 1792];	   /* 1792 */
};
_Static_assert(sizeof(struct kvr_leader_page) == 4096, "leader page");
_Static_assert(offsetof(struct kvr_leader_page, tick_done) == 128, "leader page");
_Static_assert(offsetof(struct kvr_leader_page, watermark) == 256, "leader page");
_Static_assert(offsetof(struct kvr_leader_page, calls) == 384, "leader page");
_Static_assert(offsetof(struct kvr_leader_page, quarantined_ops) == 640, "leader page");
_Static_assert(offsetof(struct kvr_leader_page, late) == 664, "leader page");
_Static_assert(offsetof(struct kvr_leader_page, ending) == 688, "leader page");
_Static_assert(offsetof(struct kvr_leader_page, meet) == 768, "leader page");

struct kvr_rank_page {
	struct kvr_proc proc;		   /*    0 */
	uint64_t calls[KVR_CALL_SLOTS];	   /*  128 */
	uint64_t taken[16];		   /*  384  messages taken per channel */
	uint64_t cursor[16][16];	   /*  512  struct kvr_ring_cursor of each channel's ring */
	struct kvr_meet meet[KVR_MEETS];   /* 2560 */
	struct kvr_drift drift;		   /* 3584 */
	uint64_t late, duplicate, foreign; /* 3648  calls about, and completions of, operations that
					    *       ended, were told twice, or never were here */
	uint8_t reserved[4096 - 3672];	   /* 3672 */
};
_Static_assert(sizeof(struct kvr_rank_page) == 4096, "rank page");
_Static_assert(offsetof(struct kvr_rank_page, taken) == 384, "rank page");
_Static_assert(offsetof(struct kvr_rank_page, cursor) == 512, "rank page");
_Static_assert(offsetof(struct kvr_rank_page, meet) == 2560, "rank page");
_Static_assert(offsetof(struct kvr_rank_page, drift) == 3584, "rank page");
_Static_assert(offsetof(struct kvr_rank_page, late) == 3648, "rank page");
_Static_assert(KVR_CHANNELS <= 16, "channels");

/*
 * Call logs: of each kind of call that every process must make alike, a control line and the last
 * `window` records (a quarter of `events`, at least 16), overwritten in turn. `chain` is a hash of
 * this call and of all of its kind before it: two processes that have equal chains at an index made
 * equal calls up to there.
 */
enum kvr_alike {
	KVR_ALIKE_LOOKUP,
	KVR_ALIKE_STORE,
	KVR_ALIKE_LOAD,
	KVR_ALIKE_PREFETCH,
	KVR_ALIKE_DECISION,
	KVR_ALIKE_RESET,
	KVR_ALIKES
};
struct kvr_alike_call {
	uint64_t chain;	  /*  0 */
	uint64_t request; /*  8 */
	uint32_t attempt; /* 16 */
	uint32_t keys;	  /* 20 */
	uint64_t index;	  /* 24  from 0: a torn or lapped record does not match */
};
struct kvr_alike_log {
	uint64_t count; /*   0  calls so far. D1 store-release, pairs with D2 */
	uint64_t ns;	/*   8  of the last one */
	uint64_t pad[14];
	struct kvr_alike_call call[]; /* 128 */
};
_Static_assert(sizeof(struct kvr_alike_call) == 32, "alike call");
_Static_assert(offsetof(struct kvr_alike_call, attempt) == 16, "alike call");
_Static_assert(offsetof(struct kvr_alike_call, index) == 24, "alike call");
_Static_assert(sizeof(struct kvr_alike_log) == 128, "alike log");
_Static_assert(offsetof(struct kvr_alike_log, call) == 128, "alike log");

/*
 * Operation: 128 bytes, written by the leader. `word` is what ranks poll and is written last:
 * bits 63..32 generation of the entry (never 0 once used), 31..24 stage, 23..0 value: of a verified
 * load the number of good blocks; of a prefetch the blocks that are in the pool; of a failure the
 * errno in bits 15..0 and the last stage that was reached before in bits 23..16; else 0. `layers`
 * is for layered loads: generation in bits 63..32, layer groups that are in the pool, in order, in
 * 31..0. An operation that ended while ranks of `need` have not `acked` holds its slots:
 * quarantine.
 */
struct kvr_op_entry {
	uint64_t word;	      /*  0  O1 store-release, pairs with O2 */
	uint64_t request;     /*  8 */
	uint64_t space;	      /* 16 */
	uint32_t attempt;     /* 24 */
	uint32_t kind;	      /* 28  enum kvr_op_kind */
	uint32_t blocks;      /* 32 */
	uint32_t flags;	      /* 36  KVR_OP_LAYERED */
	uint64_t begun_ns;    /* 40 */
	uint64_t stage_ns;    /* 48 */
	uint64_t acked;	      /* 56  ranks whose ack of this stage arrived */
	uint64_t layers;      /* 64  L1 store-release, pairs with L2 */
	uint64_t need;	      /* 72  ranks whose ack this stage waits for */
	uint64_t reserved[6]; /* 80 */
};
_Static_assert(sizeof(struct kvr_op_entry) == 128, "op entry");
_Static_assert(offsetof(struct kvr_op_entry, attempt) == 24, "op entry");
_Static_assert(offsetof(struct kvr_op_entry, begun_ns) == 40, "op entry");
_Static_assert(offsetof(struct kvr_op_entry, layers) == 64, "op entry");
_Static_assert(offsetof(struct kvr_op_entry, need) == 72, "op entry");
enum kvr_op_kind {
	KVR_OP_NONE,
	KVR_OP_STORE,
	KVR_OP_LOAD,
	KVR_OP_PREFETCH,
	KVR_OP_DECISION,
	KVR_OP_RESET,
	KVR_OP_KINDS
};
#define KVR_OP_LAYERED 1u

/*
 * Ack word of a rank for an operation: generation of the entry in bits 63..32, enum kvr_ack in
 * 31..24, value in 23..0 (good blocks, or an errno). A1 store-release, pairs with A2.
 */
struct kvr_ack_entry {
	uint64_t word; /* 0 */
	uint64_t
		layers; /* 8  generation, and layer groups this rank verified, as in the op entry */
};
_Static_assert(sizeof(struct kvr_ack_entry) == 16, "ack entry");
enum kvr_ack {
	KVR_ACK_NONE,
	KVR_ACK_VOTED, /* a decision, a load by layers: yes */
	KVR_ACK_COPIED,
	KVR_ACK_VERIFIED,
	KVR_ACK_DONE,
	KVR_ACK_FAILED,
	KVR_ACK_WITHDRAWN /* a vote for it, taken back before it was counted, or not at all */
};

static inline uint64_t kvr_word(uint32_t gen, uint32_t code, uint32_t value)
{
	return (uint64_t)gen << 32 | (uint64_t)(code & 0xff) << 24 | (value & 0xffffff);
}
static inline uint32_t kvr_word_gen(uint64_t w)
{
	return (uint32_t)(w >> 32);
}
static inline uint32_t kvr_word_code(uint64_t w)
{
	return (uint32_t)(w >> 24) & 0xff;
}
static inline uint32_t kvr_word_value(uint64_t w)
{
	return (uint32_t)w & 0xffffff;
}

/* Head of every channel message, before the caller's payload, inside the ring's payload. */
struct kvr_msg_head {
	/* Of this publish in its channel, from 1; above the watermark: not there yet. */
	uint64_t number;  /*  0 */
	uint64_t request; /*  8 */
	uint64_t space;	  /* 16 */
	uint32_t attempt; /* 24 */
	uint32_t bulk;	  /* 28  0; or bytes in the bulk area, where the payload (8 bytes) says */
};
_Static_assert(sizeof(struct kvr_msg_head) == 32, "message head");
_Static_assert(offsetof(struct kvr_msg_head, bulk) == 28, "message head");

/* Flight recorder: a control line, then `events` events of 64 bytes, overwritten in turn. */
struct kvr_rec_ctl {
	uint64_t count; /* 0  events written since the start. R1 store-release, pairs with R2 */
	uint64_t pad[15];
};
struct kvr_event {
	uint64_t ns;	  /*  0  CLOCK_MONOTONIC */
	uint64_t request; /*  8 */
	uint64_t number;  /* 16  of the message, or the tick */
	uint64_t arg;	  /* 24 */
	uint32_t attempt; /* 32 */
	uint32_t tag;	  /* 36 */
	int32_t result;	  /* 40 */
	uint32_t rank;	  /* 44  who wrote it */
	uint8_t kind;	  /* 48  enum kvr_event_kind */
	uint8_t channel;  /* 49 */
	uint16_t call;	  /* 50  enum kvr_call */
	uint32_t pad;	  /* 52 */
	uint64_t index; /* 56  its number in this recorder: a torn or lapped event does not match */
};
_Static_assert(sizeof(struct kvr_event) == 64, "event");
_Static_assert(offsetof(struct kvr_event, attempt) == 32, "event");
_Static_assert(offsetof(struct kvr_event, kind) == 48, "event");
enum kvr_event_kind {
	KVR_EV_NONE,
	KVR_EV_CALL, /* a connector call returned `result` */
	KVR_EV_PUBLISH,
	KVR_EV_TAKE,
	KVR_EV_MISMATCH, /* expect met another tag: `arg` is the expected one */
	KVR_EV_EXPIRE,	 /* a message nobody asked for was dropped */
	KVR_EV_STAGE,	 /* an operation reached stage `arg` */
	KVR_EV_DEATH,	 /* rank `arg` died */
	KVR_EV_KINDS
};

/* All offsets, computed and bounded once. */
struct kvr_layout {
	uint32_t page, ranks, ring_bytes, ops, events, bulk_bytes;
	uint32_t window; /* records in a call log */
	uint64_t total;
	uint64_t takeover, bells, leader, leader_ops, leader_rec, leader_logs, rings, bulk,
		leader_end;
	/* the last three within a rank area */
	uint64_t rank0, rank_stride, rank_acks, rank_rec, rank_logs;
};

/* 0, or -EINVAL when a number is out of range (page 4096..65536, ranks 1..64, ring_bytes 1 KiB..64
 * MiB, ops 16..65536, events 16..1 Mi, bulk_bytes 4 KiB..1 GiB). */
int kvr_layout_init(struct kvr_layout *ret, uint32_t page, uint32_t ranks, uint32_t ring_bytes,
		    uint32_t ops, uint32_t events, uint32_t bulk_bytes);
/*
 * Checks a private copy of a header against itself, this library and the size of its file, and
 * computes the layout. 0, or -EPROTO with both values of the first field that differs. `path` is
 * for the sentence. A valid header may still belong to a dead group, or to another model.
 */
int kvr_header_check(const struct kvr_seg_header *header, uint64_t file_bytes, const char *path,
		     struct kvr_layout *ret_layout);
/* What its checksum must be. */
uint64_t kvr_header_sum(const struct kvr_seg_header *header);
/* Compares what blocks depend on, field by field. 0, or -EPROTO with the field and both values. */
int kvr_model_check(const struct kvr_model *theirs, const struct kvr_model *ours,
		    const char *where);
/* 0, or -EINVAL with the reason: lines "name=value" (printable, each name once), at most
 * KVR_SETUP_MAX - 1 bytes. */
int kvr_setup_valid(const char *setup);
/* Compares two fingerprints name by name. `theirs` may lack its end or be nonsense. 0, or -EPROTO
 * with the name and both values. */
int kvr_setup_check(const char theirs[KVR_SETUP_MAX], const char *ours, const char *where);
/* XXH3-64 of the sizes and offsets of all structs above. */
uint64_t kvr_layout_hash(void);
/* XXH3-64 of the names of tags, channels and stages. */
uint64_t kvr_tag_hash(void);

static inline uint64_t kvr_layout_ring(const struct kvr_layout *l, uint32_t channel, uint32_t rank)
{
	return l->rings + (uint64_t)(channel * l->ranks + rank) * (128u + l->ring_bytes);
}
/* Of a kind, within the logs of a process. */
static inline uint64_t kvr_layout_log(const struct kvr_layout *l, uint32_t kind)
{
	return kind * (sizeof(struct kvr_alike_log) + l->window * sizeof(struct kvr_alike_call));
}
static inline uint64_t kvr_layout_rank(const struct kvr_layout *l, uint32_t rank)
{
	return l->rank0 + rank * l->rank_stride;
}

/* Text of a call, a state, an event kind, an op kind or a kind of call made alike; "?" out of
 * range. */
const char *kvr_call_name(uint32_t call);
const char *kvr_proc_state_name(uint32_t state);
const char *kvr_event_kind_name(uint32_t kind);
const char *kvr_op_kind_name(uint32_t kind);
const char *kvr_alike_name(uint32_t kind);

#endif
