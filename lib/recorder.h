/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flight recorder: each process appends fixed-size events to its own pages; anybody reads them,
 * live or after every process died. Layout in layout.h (struct kvr_rec_ctl, struct kvr_event).
 *
 *   R1 writer: store-release of ctl->count   R2 reader: load-acquire of ctl->count
 *      without it: the reader takes an event that is not written yet
 *   R3 writer: store-release of each word    R4 reader: load-acquire of each word
 *      of an event                              of an event
 *      without it: a word of the event that overwrites this one is seen, but not the count that
 *      the writer had stored before
 *
 * A reader copies an event and then accepts it only if its index is the expected one and the count
 * afterwards shows that the writer is not inside that slot (index > count - events).
 */
#ifndef KVR_RECORDER_H
#define KVR_RECORDER_H

#include "layout.h"

struct kvr_recorder {
	struct kvr_rec_ctl *ctl;
	struct kvr_event *events;
	uint32_t capacity; /* power of two */
	uint32_t rank;
	uint64_t count;
};

/* mem: sizeof(struct kvr_rec_ctl) + events * 64 bytes, zeroed, aligned to 8. */
void kvr_recorder_init(struct kvr_recorder *r, void *mem, uint32_t events, uint32_t rank);
/* Appends; fills in ns, rank and index. Wait-free; one thread at a time. */
void kvr_recorder_add(struct kvr_recorder *r, const struct kvr_event *event);
/*
 * Copies up to max of the newest events of a recorder (another's, mapped read-only, or a copy of
 * its bytes) into ret_events, oldest first, filtered by channel (-1: all). Returns their number.
 */
uint32_t kvr_recorder_last(const void *mem, uint32_t events, int channel,
			   struct kvr_event *ret_events, uint32_t max);
/* "12.3 ms ago TAKE channel STORE_COMPLETE number 17 request 5/0 tag ..." into text. */
void kvr_event_text(const struct kvr_event *event, uint64_t now_ns, char *ret_text, uint32_t size);

#endif
