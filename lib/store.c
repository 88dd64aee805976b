/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots and transfers of an open store. A write is two transfers in order: the image, then the
 * table page with its record. Nothing is flushed: whatever of the two is lost makes a miss
 * (format.h), and a process that is killed loses nothing, since the kernel has both. Nothing here
 * allocates.
 */
#include "store_state.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "err.h"
#include "util.h"

#define XFER_BATCH 64u

static struct store_dev *dev_of(struct kvr_store *store, kvr_where where)
{
	return &store->dev[where >> STORE_SLOT_BITS];
}

static uint64_t slot_of(kvr_where where)
{
	return where & (((uint64_t)1 << STORE_SLOT_BITS) - 1);
}

static int where_valid(const struct kvr_store *store, kvr_where where)
{
	uint64_t i = where >> STORE_SLOT_BITS;

	return i < store->ndev && slot_of(where) < store->dev[i].slots;
}

/* --- slots ------------------------------------------------------------------------------------ */

int kvr_store_alloc(struct kvr_store *store, kvr_where *ret_where)
{
	struct store_dev *d;
	uint64_t slot;
	uint32_t i, at;

	for (i = 0; i < store->ndev; i++) {
		at = (store->next_dev + i) % store->ndev;
		d = &store->dev[at];
		if (d->offline || !d->nfree)
			continue;
		slot = d->ring[d->ring_head];
		d->ring_head = d->ring_head + 1 == d->slots ? 0 : d->ring_head + 1;
		d->nfree--;
		d->nused++;
		d->state[slot] = SLOT_USED;
		store->next_dev = at + 1;
		*ret_where = (uint64_t)at << STORE_SLOT_BITS | slot;
		return 0;
	}
	return -ENOSPC; /* an everyday answer: no sentence */
}

/* Only a slot that is in use changes: a slot given back twice would be handed out twice. */
void kvr_store_free(struct kvr_store *store, kvr_where where)
{
	struct store_dev *d;
	uint64_t slot = slot_of(where), at;

	if (!where_valid(store, where) || dev_of(store, where)->state[slot] != SLOT_USED)
		return;
	d = dev_of(store, where);
	at = d->ring_head + d->nfree;
	d->ring[at < d->slots ? at : at - d->slots] = (uint32_t)slot;
	d->nfree++;
	d->nused--;
	d->state[slot] = SLOT_FREE;
}

void kvr_store_retire(struct kvr_store *store, kvr_where where)
{
	struct store_dev *d;

	if (!where_valid(store, where) || dev_of(store, where)->state[slot_of(where)] != SLOT_USED)
		return;
	d = dev_of(store, where);
	d->state[slot_of(where)] = SLOT_RETIRED;
	d->nused--;
	d->nretired++;
}

void store_count_slots(struct store_dev *d)
{
	uint64_t slot;

	d->ring_head = d->nfree = d->nused = d->nretired = 0;
	for (slot = 0; slot < d->slots; slot++) {
		if (d->state[slot] == SLOT_FREE)
			d->ring[d->nfree++] = (uint32_t)slot;
		else if (d->state[slot] == SLOT_USED)
			d->nused++;
		else
			d->nretired++;
	}
}

/* --- transfers -------------------------------------------------------------------------------- */

/* The operation's own failure, or the device's: enough of these in a row take it offline. */
static void note_result(struct store_dev *d, int err)
{
	if (!err)
		d->errors = 0;
	else if (++d->errors >= STORE_MAX_ERRORS)
		d->offline = 1;
}

/* The operation ends: poll() returns it. */
static void finish(struct kvr_store *store, struct kvr_store_op *op, int is_read, int result)
{
	store->inflight--;
	dev_of(store, op->where)->inflight--;
	if (is_read)
		store->reads++;
	else
		store->writes++;
	if (result == -EBADMSG)
		store->checksum_errors++;
	else if (result && is_read)
		store->read_errors++;
	else if (result)
		store->write_errors++;
	op->result = result;
	op->state = OP_ENDED;
	store_priv(op)->next = NULL;
	*store->ended_tail = op;
	store->ended_tail = &store_priv(op)->next;
	store->nended++;
}

static int part_valid(const struct kvr_store *store, const struct kvr_store_op *op)
{
	if (!op->bytes)
		return !op->from;
	return (op->from | op->bytes) % store->geo.align == 0 &&
	       (uint64_t)op->from + op->bytes <= store->geo.slot_bytes &&
	       (op->from ? op->from : op->bytes) >= store->geo.header_bytes;
}

static int submit(struct kvr_store *store, struct kvr_store_op *op, int is_read, uint32_t class)
{
	struct store_dev *d;
	struct store_op *p = store_priv(op);
	int err;

	if (!where_valid(store, op->where) ||
	    dev_of(store, op->where)->state[slot_of(op->where)] != SLOT_USED)
		return KVR_FAIL(-EINVAL,
				"%s: slot %#" PRIx64
				" is not in use: kvr_store_alloc() gives slots",
				is_read ? "kvr_store_read" : "kvr_store_write", op->where);
	if (is_read && !part_valid(store, op))
		return KVR_FAIL(-EINVAL,
				"kvr_store_read: a part of %u bytes from %u on; a slot has %" PRIu64
				", the first %u are read at once, and the unit is %u",
				op->bytes, op->from, store->geo.slot_bytes, store->geo.header_bytes,
				store->geo.align);
	d = dev_of(store, op->where);
	p->xfer = (struct kvr_xfer){
		.buf = (uint8_t *)op->image + (is_read ? op->from : 0),
		.off = d->super->data_offset + slot_of(op->where) * store->geo.slot_bytes +
		       (is_read ? op->from : 0),
		.len = is_read && op->bytes ? op->bytes : store->geo.slot_bytes,
		.op = is_read ? KVR_IO_READ : KVR_IO_WRITE,
		.class = class,
		.user = op,
	};
	err = d->offline ? 0 : kvr_sched_submit(d->sched, &p->xfer);
	if (err)
		return err;
	op->state = is_read ? OP_READ : OP_IMAGE;
	store->inflight++;
	d->inflight++;
	if (d->offline)
		finish(store, op, is_read, -EIO);
	return 0;
}

uint64_t kvr_store_seal(const struct kvr_store *store, void *image, const struct kvr_key *key,
			uint64_t space, uint64_t seq)
{
	return kvr_slot_seal(image, &store->geo, key, space, seq, store->cache_generation);
}

int kvr_store_write(struct kvr_store *store, struct kvr_store_op *op)
{
	return submit(store, op, 0, KVR_CLASS_STORE);
}

int kvr_store_read(struct kvr_store *store, struct kvr_store_op *op)
{
	return submit(store, op, 1, op->demand ? KVR_CLASS_DEMAND : KVR_CLASS_PREFETCH);
}

/* --- table pages ------------------------------------------------------------------------------ */

static void page_list(struct store_dev *d, uint64_t number)
{
	struct store_page *page = &d->pages[number];

	if (page->writing || page->listed)
		return;
	page->listed = 1;
	page->next = d->to_write;
	d->to_write = (uint32_t)number + 1;
}

/* The image is on the device: its record waits for the next write of its page. */
static void record_wait(struct store_dev *d, struct kvr_store_op *op)
{
	uint64_t number = slot_of(op->where) / KVR_RECORDS_PAGE;

	op->state = OP_WAITING;
	store_priv(op)->next = d->pages[number].waiting;
	d->pages[number].waiting = op;
	page_list(d, number);
}

static void record_fill(const struct kvr_store *store, struct store_dev *d,
			const struct kvr_store_op *op)
{
	uint64_t slot = slot_of(op->where);
	struct kvr_record *rec = &d->table[slot];

	*rec = (struct kvr_record){
		.key = op->key,
		.space = op->space,
		.seq = op->seq,
		.cache_generation = store->cache_generation,
		.header_checksum = op->header_checksum,
		.bytes = store->geo.block_bytes,
	};
	kvr_record_seal(rec, d->super->uuid, slot);
}

static void page_ended(struct kvr_store *store, struct store_dev *d, uint64_t number, int result)
{
	struct store_page *page = &d->pages[number];
	struct kvr_store_op *op = page->writing, *next;

	page->writing = NULL;
	for (; op; op = next) {
		next = store_priv(op)->next;
		finish(store, op, 0, result);
	}
	if (page->waiting)
		page_list(d, number);
}

/* The first operation lends its transfer to all whose records go with this write. */
static void page_write(struct kvr_store *store, struct store_dev *d, uint64_t number)
{
	struct store_page *page = &d->pages[number];
	struct kvr_store_op *op, *first = page->waiting;
	struct store_op *p;
	int err;

	if (!first)
		return; /* a listed page has some */
	p = store_priv(first);
	for (op = first; op; op = store_priv(op)->next) {
		record_fill(store, d, op);
		op->state = OP_RECORD;
	}
	page->writing = first;
	page->waiting = NULL;
	p->xfer = (struct kvr_xfer){
		.buf = &d->table[number * KVR_RECORDS_PAGE],
		.off = KVR_TABLE_OFFSET + number * KVR_PAGE,
		.len = KVR_PAGE,
		.op = KVR_IO_WRITE,
		/* Small, and it frees buffers that wait: not behind the images of other stores,
		 * and never refused for a full queue. */
		.class = KVR_CLASS_PREFETCH,
		.user = first,
	};
	err = kvr_sched_submit(d->sched, &p->xfer);
	if (err)
		page_ended(store, d, number, err);
}

/* After a whole batch of completions, so that records of one page go in one write. */
static int pages_write(struct kvr_store *store, struct store_dev *d)
{
	uint32_t at = d->to_write;
	int any = at != 0;

	d->to_write = 0;
	while (at) {
		uint32_t number = at - 1;

		at = d->pages[number].next;
		d->pages[number].listed = 0;
		page_write(store, d, number);
	}
	return any;
}

/* --- completions ------------------------------------------------------------------------------ */

static void xfer_ended(struct kvr_store *store, struct store_dev *d, struct kvr_xfer *x)
{
	struct kvr_store_op *op = x->user;
	int result = x->result;

	note_result(d, result);
	if (!result && x->op == KVR_IO_READ)
		store->bytes_read += x->len;
	else if (!result)
		store->bytes_written += x->len;
	switch (op->state) {
	case OP_READ:
		if (!result && !op->from)
			result = kvr_slot_check(op->image, &store->geo, &op->key, op->space,
						op->header_checksum);
		finish(store, op, 1, result);
		break;
	case OP_IMAGE:
		/* On failure the old record stays: what is in the slot now does not match it. */
		if (result)
			finish(store, op, 0, result);
		else
			record_wait(d, op);
		break;
	default:
		page_ended(store, d, slot_of(op->where) / KVR_RECORDS_PAGE, result);
	}
}

/* Ends: each round needs transfers that ended or records that came with them. */
static void dev_poll(struct kvr_store *store, struct store_dev *d)
{
	struct kvr_xfer *x[XFER_BATCH];
	int n, i, wrote;

	do {
		n = kvr_sched_poll(d->sched, x, XFER_BATCH);
		if (n < 0) {
			note_result(d, n);
			return;
		}
		for (i = 0; i < n; i++)
			xfer_ended(store, d, x[i]);
		wrote = pages_write(store, d);
	} while (n == (int)XFER_BATCH || wrote);
}

int kvr_store_poll(struct kvr_store *store, struct kvr_store_op **ret_ops, uint32_t max)
{
	struct kvr_store_op *op;
	uint32_t i, n = 0;

	for (i = 0; i < store->ndev; i++)
		if (store->dev[i].inflight)
			dev_poll(store, &store->dev[i]);
	while (n < max && store->ended) {
		op = store->ended;
		store->ended = store_priv(op)->next;
		if (!store->ended)
			store->ended_tail = &store->ended;
		store->nended--;
		ret_ops[n++] = op;
	}
	return (int)n;
}

uint32_t kvr_store_fds(const struct kvr_store *store, int *ret_fds, uint32_t max)
{
	uint32_t i;

	for (i = 0; i < store->ndev && i < max; i++)
		ret_fds[i] = store->dev[i].io->ops->fd(store->dev[i].io);
	return i;
}

uint64_t kvr_store_pending(const struct kvr_store *store)
{
	return store->inflight + store->nended;
}

/* --- what the store knows --------------------------------------------------------------------- */

uint64_t kvr_store_scan(struct kvr_store *store,
			void (*fn)(void *arg, const struct kvr_store_found *found), void *arg)
{
	struct kvr_store_found found;
	uint64_t slot, n = 0;
	uint32_t i;

	for (i = 0; i < store->ndev; i++) {
		const struct store_dev *d = &store->dev[i];

		for (slot = 0; slot < d->slots; slot++) {
			if (d->state[slot] != SLOT_USED || !d->table[slot].seq)
				continue;
			found.key = d->table[slot].key;
			found.space = d->table[slot].space;
			found.seq = d->table[slot].seq;
			found.header_checksum = d->table[slot].header_checksum;
			found.where = (uint64_t)i << STORE_SLOT_BITS | slot;
			fn(arg, &found); /* may free the slot */
			n++;
		}
	}
	return n;
}

uint64_t kvr_store_next_seq(const struct kvr_store *store)
{
	return store->next_seq;
}

const struct kvr_geometry *kvr_store_geometry(const struct kvr_store *store)
{
	return &store->geo;
}

const char *kvr_store_degraded(const struct kvr_store *store, uint32_t i)
{
	return i < store->nsentences ? store->sentence[i] : NULL;
}

void kvr_store_info(const struct kvr_store *store, struct kvr_store_info *ret_info)
{
	struct kvr_store_info info = {
		.slot_bytes = store->geo.slot_bytes,
		.header_bytes = store->geo.header_bytes,
		.block_bytes = store->geo.block_bytes,
		.recovered = store->recovered,
		.bad_records = store->bad_records,
		.cache_generation = store->cache_generation,
		.bytes_read = store->bytes_read,
		.bytes_written = store->bytes_written,
		.reads = store->reads,
		.writes = store->writes,
		.read_errors = store->read_errors,
		.write_errors = store->write_errors,
		.checksum_errors = store->checksum_errors,
		.devices = store->ndev,
	};
	const char *name = store->dev[0].io->ops->name;
	uint32_t i;

	for (i = 0; i < store->ndev; i++) {
		info.slots += store->dev[i].slots;
		info.used += store->dev[i].nused;
		info.retired_slots += store->dev[i].nretired;
		info.devices_offline += store->dev[i].offline != 0;
	}
	kvr_text_copy(info.backend, sizeof info.backend, name, strlen(name));
	*ret_info = info;
}

/* --- the end ---------------------------------------------------------------------------------- */

static void drain(struct kvr_store *store, uint64_t deadline_ns)
{
	struct pollfd p[KVR_MAX_DEVICES];
	struct timespec t;
	uint64_t now;
	uint32_t i;

	for (;;) {
		kvr_store_poll(store, NULL, 0);
		now = kvr_now();
		if (!store->inflight || now >= deadline_ns)
			return;
		for (i = 0; i < store->ndev; i++)
			p[i] = (struct pollfd){ .fd = store->dev[i].io->ops->fd(store->dev[i].io),
						.events = POLLIN };
		/* Also what a device refused for now must be offered again. */
		t = kvr_timespec(kvr_min(deadline_ns - now, 5 * KVR_MS));
		ppoll(p, store->ndev, &t, NULL);
	}
}

int kvr_store_close(struct kvr_store *store, uint64_t deadline_ns)
{
	uint64_t lost = 0;
	uint32_t i;

	if (!store)
		return 0;
	drain(store, deadline_ns);
	for (i = 0; i < store->ndev; i++) {
		struct store_dev *d = &store->dev[i];

		if (d->io->ops->close(d->io, deadline_ns) <= 0)
			continue;
		d->leaked = 1;
		lost += d->inflight;
	}
	store_destroy(store);
	return (int)lost;
}
