/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recovery: reads the slot table in one sweep and tells which slots are in use. The payload is not
 * looked at: a record that does not match its slot any more is found out at its first load.
 *
 * Everything here comes from disk. A record counts only if its checksum fits its device and slot,
 * and its numbers are ones that a store can have given.
 */
#include "store_state.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "err.h"
#include "hash.h"
#include "util.h"

_Static_assert(offsetof(struct kvr_record, space) ==
		       offsetof(struct kvr_record, key) + sizeof(struct kvr_key),
	       "key and space are hashed as one");

/* --- recovery --------------------------------------------------------------------------------- */

int store_set_check(struct kvr_store *store)
{
	const struct kvr_super *first = store->dev[0].super;
	struct store_dev t;
	uint32_t i, at;

	if (first->devices != store->ndev)
		return KVR_FAIL(
			-EPROTO,
			"kvr_store_open: the store was made of %u devices, %u are given (the "
			"first of them is device %u of it); give all, or reformat",
			first->devices, store->ndev, first->ordinal);
	for (i = 0; i < store->ndev; i++) {
		const struct kvr_super *s = store->dev[i].super;

		if (memcmp(s->set_uuid, first->set_uuid, 16) || s->devices != first->devices)
			return KVR_FAIL(
				-EPROTO,
				"kvr_store_open: path %u belongs to another store than path "
				"0; give the paths of one, or reformat",
				store->dev[i].given);
		if (s->slot_bytes != first->slot_bytes || s->header_bytes != first->header_bytes)
			return KVR_FAIL(-EPROTO,
					"kvr_store_open: slots of %" PRIu64
					" bytes on path %u, of %" PRIu64 " on path 0",
					s->slot_bytes, store->dev[i].given, first->slot_bytes);
	}
	for (i = 0; i < store->ndev; i++) {
		for (at = i; at < store->ndev && store->dev[at].super->ordinal != i; at++)
			;
		if (at == store->ndev)
			return KVR_FAIL(
				-EPROTO,
				"kvr_store_open: device %u of the store is missing and another "
				"is there twice (a copy?)",
				i);
		t = store->dev[i];
		store->dev[i] = store->dev[at];
		store->dev[at] = t;
	}
	return 0;
}

int store_set_match(struct kvr_store *store, const struct kvr_store_opts *o)
{
	const struct kvr_super *s = store->dev[0].super;
	uint64_t bytes = store_share(o, store->ndev);
	struct kvr_geometry geo;
	uint32_t i;
	int err = 0;

	for (i = 0; !err && i < store->ndev; i++)
		err = kvr_super_match(store->dev[i].super, o->model, o->shape);
	if (!err)
		err = kvr_geometry_init(o->shape, s->align, &geo);
	for (i = 0; !err && i < store->ndev; i++) {
		s = store->dev[i].super;
		if (store->dev[i].io->align > geo.align)
			err = KVR_FAIL(-EPROTO,
				       "kvr_store_open: path %u wants direct I/O in units of %u "
				       "bytes, the store was made for %u; reformat it, or open it "
				       "with KVR_STORE_BUFFERED",
				       store->dev[i].given, store->dev[i].io->align, geo.align);
		else if (bytes && s->device_bytes != bytes)
			err = KVR_FAIL(-EPROTO,
				       "kvr_store_open: path %u is a store of %" PRIu64
				       " bytes, this run asks for %" PRIu64
				       " (bytes / paths); ask for the same, for 0 to take it as it "
				       "is, or reformat it",
				       store->dev[i].given, s->device_bytes, bytes);
	}
	if (!err)
		store->geo = geo;
	return err;
}

/* Reads the table. A page that cannot be read costs its records. */
static int table_read(struct kvr_store *store, const struct kvr_store_opts *o, struct store_dev *d)
{
	uint64_t size = store_pages(d) * KVR_PAGE, at, len, page;
	int err;

	for (at = 0; at < size; at += len) {
		store_progress(o, "reading the slot table", at, size);
		len = kvr_min(size - at, STORE_CHUNK);
		err = store_transfer(store, d, KVR_IO_READ, (char *)d->table + at,
				     KVR_TABLE_OFFSET + at, len);
		for (page = at; err && page < at + len; page += KVR_PAGE) {
			if (!store_transfer(store, d, KVR_IO_READ, (char *)d->table + page,
					    KVR_TABLE_OFFSET + page, KVR_PAGE))
				continue;
			memset((char *)d->table + page, 0, KVR_PAGE);
			store->bad_records += KVR_RECORDS_PAGE;
		}
		if (d->leaked)
			return err;
	}
	store_progress(o, "reading the slot table", size, size);
	return 0;
}

/* Drops what is not a record, and takes note of the highest numbers. */
static void table_check(struct kvr_store *store, struct store_dev *d)
{
	struct kvr_record *rec;
	uint64_t slot;
	int valid;

	for (slot = 0; slot < store_pages(d) * KVR_RECORDS_PAGE; slot++) {
		rec = &d->table[slot];
		valid = kvr_record_check(rec, d->super->uuid, slot);
		if (valid == 1 && slot < d->slots && rec->seq < STORE_NUMBER_MAX &&
		    rec->cache_generation < STORE_NUMBER_MAX) {
			if (rec->seq >= store->next_seq)
				store->next_seq = rec->seq + 1;
			if (rec->cache_generation > store->cache_generation)
				store->cache_generation = rec->cache_generation;
		} else if (valid) {
			store->bad_records++;
			memset(rec, 0, sizeof *rec);
		}
	}
}

/* Marks the slots of this generation's records. The others are void, also in memory: they go from
 * the disk with the next write of their page. */
static void table_mark(struct kvr_store *store, struct store_dev *d)
{
	uint64_t slot;

	for (slot = 0; slot < d->slots; slot++) {
		if (!d->table[slot].seq)
			continue;
		if (d->table[slot].cache_generation == store->cache_generation) {
			d->state[slot] = SLOT_USED;
			store->recovered++;
		} else {
			memset(&d->table[slot], 0, sizeof d->table[slot]);
		}
	}
}

static struct kvr_record *record_at(struct kvr_store *store, kvr_where where)
{
	return &store->dev[where >> STORE_SLOT_BITS]
			.table[where & (((uint64_t)1 << STORE_SLOT_BITS) - 1)];
}

static void record_drop(struct kvr_store *store, kvr_where where)
{
	struct kvr_record *rec = record_at(store, where);
	struct store_dev *d = &store->dev[where >> STORE_SLOT_BITS];

	memset(rec, 0, sizeof *rec);
	d->state[where & (((uint64_t)1 << STORE_SLOT_BITS) - 1)] = SLOT_FREE;
	store->recovered--;
}

/* Puts one record into the table of keys; of two with its key the older is dropped. */
static void key_insert(struct kvr_store *store, uint64_t *keys, uint64_t mask, uint64_t seed,
		       kvr_where where)
{
	struct kvr_record *rec = record_at(store, where), *other;
	uint64_t i = kvr_hash(&rec->key, sizeof rec->key + sizeof rec->space, seed) & mask;

	for (; keys[i]; i = (i + 1) & mask) {
		other = record_at(store, keys[i] - 1);
		if (memcmp(&other->key, &rec->key, sizeof rec->key) || other->space != rec->space)
			continue;
		if (rec->seq > other->seq) {
			record_drop(store, keys[i] - 1);
			keys[i] = where + 1;
		} else {
			record_drop(store, where);
		}
		return;
	}
	keys[i] = where + 1;
}

/* An evicted block's record stays on disk, so a key may have several. The newest counts. */
static int newest_only(struct kvr_store *store)
{
	uint64_t size = 64, slot, seed, *keys;
	uint32_t i;

	while (size < 2 * store->recovered)
		size *= 2;
	keys = calloc(size, sizeof *keys);
	if (!keys)
		return KVR_FAIL(-ENOMEM, "kvr_store_open: no memory for %" PRIu64 " keys", size);
	memcpy(&seed, store->dev[0].super->set_uuid, sizeof seed);
	for (i = 0; i < store->ndev; i++)
		for (slot = 0; slot < store->dev[i].slots; slot++)
			if (store->dev[i].state[slot] == SLOT_USED)
				key_insert(store, keys, size - 1, seed,
					   (uint64_t)i << STORE_SLOT_BITS | slot);
	free(keys);
	return 0;
}

int store_recover(struct kvr_store *store, const struct kvr_store_opts *o)
{
	uint32_t i;
	int err = 0;

	for (i = 0; !err && i < store->ndev; i++) {
		struct store_dev *d = &store->dev[i];

		err = store_dev_alloc(d);
		if (!err)
			err = table_read(store, o, d);
		if (err)
			return err;
		if (d->super->cache_generation > store->cache_generation)
			store->cache_generation = d->super->cache_generation;
		table_check(store, d);
	}
	for (i = 0; i < store->ndev; i++)
		table_mark(store, &store->dev[i]);
	err = newest_only(store);
	for (i = 0; !err && i < store->ndev; i++) {
		store_count_slots(&store->dev[i]);
		store->dev[i].super->cache_generation = store->cache_generation;
		err = store_super_write(store, &store->dev[i]);
	}
	return err;
}
