/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of inspect share: the handle, and reads of its file.
 *
 * Nothing is mapped, so a file that shrinks is a short read and not SIGBUS, and nobody can change
 * bytes between a check and their use: each read is a copy.
 *
 * A copy may still be torn: the processes write while the kernel copies. Three rules deal with it.
 * Single words are written and copied whole. Words that belong together are read again until two
 * readings agree (a few times; then the last one must do). Of rings, recorders and call logs the
 * writer's count is read again *after* the bytes, and what the writer may have touched meanwhile is
 * left out.
 */
#ifndef KVR_INSPECT_PRIV_H
#define KVR_INSPECT_PRIV_H

#include "kvring/inspect.h"
#include "layout.h"
#include "shm.h"

#define KVR_INSPECT_TRIES 8

/*
 * Behind the segment in a file that kvr_inspect_save() wrote: what a copy of the bytes alone does
 * not tell. `later` is the control word of each ring as it was after its cells were copied.
 */
#define KVR_SAVED_MAGIC 0x314556415352564bull /* "KVRSAVE1" in memory */
#define KVR_SAVED_VERSION 1u
struct kvr_saved {
	uint64_t magic;
	uint32_t version;
	uint32_t bytes;	 /* of this struct */
	uint64_t now_ns; /* CLOCK_MONOTONIC of the machine when it was saved */
	uint64_t unix_ns;
	uint8_t boot_id[16];
	uint32_t same_boot; /* the segment was made since that machine was started */
	uint32_t reserved;
	char library[24]; /* that saved it */
	struct kvr_saved_proc {
		int32_t alive, gone;
		uint32_t peer, reserved;
	} proc[KVR_MAX_RANKS + 1]; /* of the ranks; the last one is the leader's */
	uint64_t later[KVR_CHANNELS][KVR_MAX_RANKS];
	uint64_t checksum; /* XXH3-64 of all before */
};

struct kvr_inspect {
	int fd;
	int same_boot;
	int on_disk; /* a copy: the kernel no longer marks its words when somebody dies */
	struct kvr_seg_header header;
	struct kvr_layout layout;
	struct kvr_saved *saved; /* NULL: live, or the bytes alone */
	uint8_t *scratch;	 /* a ring, a recorder or the operation table */
	size_t scratch_bytes;
};

static inline int read_at(struct kvr_inspect *in, void *buf, size_t len, uint64_t off)
{
	return kvr_shm_read(in->fd, buf, len, off);
}

/* Room for so many bytes at in->scratch. */
int kvr_inspect_scratch(struct kvr_inspect *in, size_t bytes);
/* The page of a process, which begins with its struct kvr_proc. */
int kvr_inspect_page(struct kvr_inspect *in, uint32_t rank, void *ret_page);
/* 0, or -EINVAL: the group has no such rank. */
int kvr_inspect_check_rank(const struct kvr_inspect *in, const char *call, uint32_t rank);
/* The same, and the leader is fine, too. */
int kvr_inspect_check_proc(const struct kvr_inspect *in, const char *call, uint32_t rank);
/* Offset of the recorder, and of the call logs, of a process. */
uint64_t kvr_inspect_recorder_at(const struct kvr_inspect *in, uint32_t rank);
uint64_t kvr_inspect_logs_at(const struct kvr_inspect *in, uint32_t rank);
/* Bytes of a recorder into scratch, with the count as it was after they were copied. */
int kvr_inspect_recorder(struct kvr_inspect *in, uint32_t rank);
/* A call log into scratch, without what its writer may have touched meanwhile. */
int kvr_inspect_log_bytes(struct kvr_inspect *in, uint64_t off);
/* Entry i of the table of operations: its word was the same before and after the rest. */
int kvr_inspect_op_entry(struct kvr_inspect *in, uint32_t i, struct kvr_op_entry *e);
/* What ages are relative to. */
uint64_t kvr_inspect_now(const struct kvr_inspect *in);
/* The trailer of a saved copy, if there is one behind `bytes` bytes: in->saved. 0 or -errno. */
int kvr_inspect_saved_read(struct kvr_inspect *in, uint64_t bytes, uint64_t file_bytes,
			   const char *path);

#endif
