/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices and their superblocks: format, opening, reset.
 *
 * Superblocks. There are two on each device and only one is rewritten at a time, so that a power
 * cut leaves one. Each write is synced and read back: the promise of a reset hangs on it. A reset
 * rewrites both, so that it does not hang on one sector. What counts is the highest generation
 * that any superblock or record of the set has: records of a generation are written only after its
 * reset was durable.
 *
 * Every open raises `update`, and the seqs of a run start at update << 32: a write that a crash
 * kept from being recorded does not share its seq with a later one.
 */
#include "store_state.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "clock.h"
#include "err.h"
#include "util.h"

#define TRIES 3
/* At a device: enough for any drive, and a demand load does not wait long behind it. */
#define INFLIGHT_BYTES (8u << 20)
/* Of stores that wait, before more are refused. */
#define QUEUED_BYTES (64u << 20)

/* --- options ---------------------------------------------------------------------------------- */

int store_options(const struct kvr_store_opts *opts, struct kvr_store_opts *ret_opts)
{
	struct kvr_store_opts o = { 0 };

	if (opts->size < offsetof(struct kvr_store_opts, pool) || opts->size > sizeof o)
		return KVR_FAIL(-EINVAL,
				"kvr_store_open: opts.size is %zu; expected "
				"sizeof(struct kvr_store_opts), %zu here",
				opts->size, sizeof o);
	memcpy(&o, opts, opts->size);
	if (!o.model || !o.shape)
		return KVR_FAIL(-EINVAL, "kvr_store_open: opts.model and opts.shape are needed");
	if (o.bytes && o.bytes < (uint64_t)KVR_PAGE * (o.npaths ? o.npaths : 1))
		return KVR_FAIL(-ENOSPC,
				"kvr_store_open: opts.bytes is %" PRIu64
				" for %u devices: not even one block; 0 means as they are",
				o.bytes, o.npaths);
	*ret_opts = o;
	return 0;
}

uint64_t store_share(const struct kvr_store_opts *opts, uint32_t n)
{
	return opts->bytes / n / KVR_PAGE * KVR_PAGE;
}

int store_geometry(const struct kvr_shape *shape, uint32_t align, uint64_t bytes,
		   struct kvr_geometry *ret_geo)
{
	struct kvr_geometry geo;
	uint64_t offset, least;
	int err;

	/* Superblocks and table pages are written alone. */
	if (align > KVR_PAGE)
		return KVR_FAIL(
			-EINVAL,
			"kvr_store_open: a device wants direct I/O in units of %u bytes; up to "
			"%u are supported; open it with KVR_STORE_BUFFERED",
			align, KVR_PAGE);
	err = kvr_geometry_init(shape, align, &geo);
	if (err)
		return err;
	least = kvr_align_up(KVR_TABLE_OFFSET + KVR_PAGE, geo.align) + geo.slot_bytes;
	if (!kvr_format_slots(bytes, &geo, &offset))
		return KVR_FAIL(-ENOSPC,
				"kvr_store_open: %" PRIu64 " bytes a device are smaller than one "
				"block: at least %" PRIu64 " bytes are needed",
				bytes, least);
	*ret_geo = geo;
	return 0;
}

void store_degrade(struct kvr_store *store, const char *fmt, ...)
{
	va_list ap;

	if (store->nsentences == STORE_SENTENCES)
		return;
	va_start(ap, fmt);
	vsnprintf(store->sentence[store->nsentences++], sizeof store->sentence[0], fmt, ap);
	va_end(ap);
}

/* --- devices ---------------------------------------------------------------------------------- */

static int queue_create(struct kvr_io *io, uint64_t slot_bytes, struct kvr_sched **ret_sched)
{
	uint64_t inflight = INFLIGHT_BYTES, queued = QUEUED_BYTES;

	if (inflight < 2 * slot_bytes)
		inflight = 2 * slot_bytes;
	if (queued < 8 * slot_bytes)
		queued = 8 * slot_bytes;
	return kvr_sched_create(io, inflight, queued, ret_sched);
}

int store_replace_io(struct kvr_store *store, uint32_t i, struct kvr_io *io)
{
	struct store_dev *d = &store->dev[i];
	struct kvr_sched *sched;
	int err = queue_create(io, store->geo.slot_bytes, &sched);

	if (err)
		return err;
	d->io->ops->close(d->io, kvr_now() + STORE_IO_NS);
	kvr_sched_destroy(d->sched);
	d->io = io;
	d->sched = sched;
	return 0;
}

static int dev_init(struct store_dev *d, struct kvr_io *io, uint32_t given)
{
	d->io = io;
	d->given = given;
	d->super = aligned_alloc(KVR_PAGE, KVR_PAGE);
	d->readback = aligned_alloc(KVR_PAGE, KVR_TABLE_OFFSET);
	if (!d->super || !d->readback)
		return KVR_FAIL(-ENOMEM, "kvr_store_open: no memory for superblocks");
	return queue_create(io, 0, &d->sched);
}

int store_dev_alloc(struct store_dev *d)
{
	uint64_t pages;

	d->slots = d->super->slots;
	pages = store_pages(d);
	d->table = aligned_alloc(KVR_PAGE, pages * KVR_PAGE);
	d->pages = calloc(pages, sizeof *d->pages);
	d->state = calloc(d->slots, 1);
	d->ring = calloc(d->slots, sizeof *d->ring);
	if (!d->table || !d->pages || !d->state || !d->ring)
		return KVR_FAIL(-ENOMEM,
				"kvr_store_open: no memory for a table of %" PRIu64
				" slots, %" PRIu64 " bytes",
				d->slots, pages * (KVR_PAGE + sizeof *d->pages) + 5 * d->slots);
	memset(d->table, 0, pages * KVR_PAGE);
	return 0;
}

void store_destroy(struct kvr_store *store)
{
	int leaked = 0;
	uint32_t i;

	for (i = 0; i < store->ndev; i++) {
		struct store_dev *d = &store->dev[i];

		leaked |= d->leaked;
		if (!d->leaked) {
			kvr_sched_destroy(d->sched);
			free(d->table);
			free(d->super);
			free(d->readback);
		}
		free(d->pages);
		free(d->state);
		free(d->ring);
	}
	if (!leaked) /* the devices' own transfers lie in it */
		free(store);
}

int store_transfer(struct kvr_store *store, struct store_dev *d, uint32_t op, void *buf,
		   uint64_t off, uint64_t len)
{
	int err;

	if (d->leaked)
		return -EIO;
	d->xfer = (struct kvr_xfer){
		.buf = buf, .off = off, .len = len, .op = op, .class = KVR_CLASS_DEMAND
	};
	err = kvr_sched_transfer(d->sched, &d->xfer, kvr_now() + STORE_IO_NS);
	if (err == -ETIMEDOUT)
		d->leaked = 1;
	if (!err && op == KVR_IO_READ)
		store->bytes_read += len;
	else if (!err)
		store->bytes_written += len;
	return err;
}

/* --- superblocks ------------------------------------------------------------------------------ */

int store_super_write(struct kvr_store *store, struct store_dev *d)
{
	uint32_t copy = d->copy ^ 1;
	uint64_t off = (uint64_t)copy * KVR_PAGE;
	int err = 0, i;

	d->super->update++;
	kvr_super_seal(d->super);
	for (i = 0; i < TRIES && !d->leaked; i++) {
		err = store_transfer(store, d, KVR_IO_WRITE, d->super, off, KVR_PAGE);
		if (!err)
			err = d->io->ops->sync(d->io);
		if (!err)
			err = store_transfer(store, d, KVR_IO_READ, d->readback, off, KVR_PAGE);
		if (!err && !memcmp(d->readback, d->super, KVR_PAGE)) {
			d->copy = copy;
			return 0;
		}
	}
	if (!err)
		return KVR_FAIL(-EIO,
				"device %u: its superblock reads back with other bytes than were "
				"written, %d times: replace the device",
				d->super->ordinal, TRIES);
	return kvr_fail_more(err, " (superblock of device %u)", d->super->ordinal);
}

/* The valid superblock with the higher update. Otherwise the error of the one that is more ours. */
static int super_read_once(struct kvr_store *store, struct store_dev *d)
{
	const struct kvr_super *s = d->readback;
	int err[2], best = -1, i, io;

	io = store_transfer(store, d, KVR_IO_READ, d->readback, 0, KVR_TABLE_OFFSET);
	if (io) /* one bad sector must not hide the other copy */
		for (i = 0; i < 2; i++)
			if (store_transfer(store, d, KVR_IO_READ,
					   (char *)d->readback + i * (int)KVR_PAGE,
					   (uint64_t)i * KVR_PAGE, KVR_PAGE))
				memset((char *)d->readback + i * (int)KVR_PAGE, 0, KVR_PAGE);
	for (i = 0; i < 2; i++) {
		err[i] = kvr_super_check(&s[i], d->io->bytes);
		if (!err[i] &&
		    (s[i].cache_generation > STORE_NUMBER_MAX || s[i].update > STORE_NUMBER_MAX))
			err[i] = KVR_FAIL(-EBADMSG,
					  "superblock: generation %" PRIu64 ", update %" PRIu64
					  ": impossible numbers",
					  s[i].cache_generation, s[i].update);
		if (!err[i] && (best < 0 || s[i].update > s[best].update))
			best = i;
	}
	if (best < 0) {
		if (io)
			return KVR_FAIL(io,
					"kvr_store_open: device %s: its superblocks cannot be "
					"read: %s",
					d->io->ops->name, kvr_strerror(io));
		i = s[0].magic == KVR_SUPER_MAGIC || s[1].magic != KVR_SUPER_MAGIC ? 0 : 1;
		kvr_super_check(&s[i], d->io->bytes); /* for its sentence */
		return err[i];
	}
	*d->super = s[best];
	d->copy = (uint32_t)best;
	return 0;
}

static int super_read(struct kvr_store *store, struct store_dev *d)
{
	int err = 0, i;

	for (i = 0; i < TRIES && !d->leaked; i++) {
		err = super_read_once(store, d);
		if (!err)
			break;
	}
	return err;
}

/* --- format ----------------------------------------------------------------------------------- */

static void super_fill(struct kvr_super *s, const struct kvr_store_opts *o,
		       const struct kvr_geometry *geo, uint32_t align)
{
	memset(s, 0, sizeof *s);
	s->magic = KVR_SUPER_MAGIC;
	s->version = KVR_FORMAT_VERSION;
	s->header_bytes = geo->header_bytes;
	s->cache_generation = 1;
	s->slot_bytes = geo->slot_bytes;
	s->block_bytes = geo->block_bytes;
	s->align = align;
	s->segments = geo->segments;
	s->model = *o->model;
	/* Bytes after the end of a text are not part of it. */
	memset(s->model.name, 0, sizeof s->model.name);
	memset(s->model.revision, 0, sizeof s->model.revision);
	memset(s->model.dtype, 0, sizeof s->model.dtype);
	memcpy(s->model.name, o->model->name, strnlen(o->model->name, sizeof s->model.name));
	memcpy(s->model.revision, o->model->revision,
	       strnlen(o->model->revision, sizeof s->model.revision));
	memcpy(s->model.dtype, o->model->dtype, strnlen(o->model->dtype, sizeof s->model.dtype));
	s->layer_groups = o->shape->layer_groups;
	s->shards = o->shape->shards;
	s->layer_bytes = o->shape->layer_bytes;
	memcpy(s->shard, o->shape->shard, o->shape->shards * sizeof s->shard[0]);
}

void store_progress(const struct kvr_store_opts *o, const char *what, uint64_t done, uint64_t total)
{
	if (o->progress)
		o->progress(o->progress_arg, what, done, total);
}

/* Zeros the table. Superblocks come last: a format that was cut short is none. */
static int format_table(struct kvr_store *store, const struct kvr_store_opts *o,
			struct store_dev *d)
{
	uint64_t size = store_pages(d) * KVR_PAGE, at, len;
	int err = 0;

	for (at = 0; !err && at < size; at += len) {
		store_progress(o, "writing the slot table", at, size);
		len = kvr_min(size - at, STORE_CHUNK);
		err = store_transfer(store, d, KVR_IO_WRITE, (char *)d->table + at,
				     KVR_TABLE_OFFSET + at, len);
	}
	if (err)
		return err;
	store_progress(o, "writing the slot table", size, size);
	return d->io->ops->sync(d->io);
}

static int format_dev(struct kvr_store *store, const struct kvr_store_opts *o, uint32_t i,
		      uint64_t bytes, const uint8_t set_uuid[16])
{
	struct store_dev *d = &store->dev[i];
	struct kvr_super *s = d->super;
	uint64_t update = 0, offset = 0, slots = kvr_format_slots(bytes, &store->geo, &offset);
	int err;

	/* Above what is there, so that the new one counts while an old one is left. */
	if (!super_read_once(store, d))
		update = s->update;
	super_fill(s, o, &store->geo, store->geo.align);
	s->update = update;
	if (getrandom(s->uuid, sizeof s->uuid, 0) != (ssize_t)sizeof s->uuid)
		return KVR_FAIL(-EIO, "kvr_store_open: getrandom: %s", kvr_strerror(errno));
	memcpy(s->set_uuid, set_uuid, sizeof s->set_uuid);
	s->ordinal = i;
	s->devices = store->ndev;
	s->device_bytes = bytes;
	s->slots = slots;
	s->data_offset = offset;
	err = store_dev_alloc(d);
	return err ? err : format_table(store, o, d);
}

static int format(struct kvr_store *store, const struct kvr_store_opts *o)
{
	uint64_t bytes = store_share(o, store->ndev);
	uint32_t align = KVR_PAGE, i;
	uint8_t set_uuid[16];
	int err = 0;

	for (i = 0; i < store->ndev; i++) {
		uint64_t has = store->dev[i].io->bytes / KVR_PAGE * KVR_PAGE;

		if (!i && !bytes)
			bytes = has;
		bytes = kvr_min(bytes, has);
		if (store->dev[i].io->align > align)
			align = store->dev[i].io->align;
	}
	err = store_geometry(o->shape, align, bytes, &store->geo);
	if (!err && getrandom(set_uuid, sizeof set_uuid, 0) != (ssize_t)sizeof set_uuid)
		err = KVR_FAIL(-EIO, "kvr_store_open: getrandom: %s", kvr_strerror(errno));
	for (i = 0; !err && i < store->ndev; i++)
		err = format_dev(store, o, i, bytes, set_uuid);
	for (i = 0; !err && i < 2 * store->ndev; i++)
		err = store_super_write(store, &store->dev[i / 2]);
	for (i = 0; !err && i < store->ndev; i++)
		store_count_slots(&store->dev[i]);
	store->cache_generation = 1;
	return err;
}

/* --- opening ---------------------------------------------------------------------------------- */

static int mount(struct kvr_store *store, const struct kvr_store_opts *o)
{
	uint32_t i;
	int err = 0;

	for (i = 0; i < store->ndev; i++) {
		err = super_read(store, &store->dev[i]);
		if (err)
			return kvr_fail_more(err, " (path %u)", i);
	}
	err = store_set_check(store);
	if (!err)
		err = store_set_match(store, o);
	return err ? err : store_recover(store, o);
}

int kvr_store_open_io(const struct kvr_store_opts *opts, struct kvr_io **ios, uint32_t n, int blank,
		      struct kvr_store **ret_store)
{
	struct kvr_store_opts o;
	struct kvr_store *store;
	uint64_t update = 0;
	uint32_t i;
	int err = store_options(opts, &o);

	if (err)
		return err;
	if (n < 1 || n > KVR_MAX_DEVICES)
		return KVR_FAIL(-EINVAL, "kvr_store_open: %u devices; 1 to %u are supported", n,
				KVR_MAX_DEVICES);
	store = calloc(1, sizeof *store);
	if (!store)
		return KVR_FAIL(-ENOMEM, "kvr_store_open: no memory");
	store->ndev = n;
	store->ended_tail = &store->ended;
	for (i = 0; !err && i < n; i++)
		err = dev_init(&store->dev[i], ios[i], i);
	if (!err)
		err = blank ? format(store, &o) : mount(store, &o);
	if (err) {
		store_destroy(store);
		return err;
	}
	for (i = 0; i < n; i++)
		if (store->dev[i].super->update > update)
			update = store->dev[i].super->update;
	update = kvr_min(update, STORE_NUMBER_MAX >> 33) << 32;
	if (store->next_seq < update)
		store->next_seq = update;
	*ret_store = store;
	return 0;
}

/* --- reset ------------------------------------------------------------------------------------ */

int kvr_store_reset(struct kvr_store *store, const struct kvr_model *model)
{
	uint32_t i, done = 0;
	int err = 0, e;

	if (kvr_store_pending(store))
		return KVR_FAIL(-EBUSY,
				"kvr_store_reset: %" PRIu64 " operations are in flight; take them "
				"with kvr_store_poll() first",
				kvr_store_pending(store));
	store->cache_generation++;
	for (i = 0; i < store->ndev; i++) {
		struct store_dev *d = &store->dev[i];

		/* Also one that is offline: it may be well again, and is empty now in any case. */
		d->super->cache_generation = store->cache_generation;
		if (model)
			d->super->model = *model;
		e = store_super_write(store, d);
		if (!e)
			e = store_super_write(store, d);
		d->offline = e != 0;
		d->errors = 0;
		done += !e;
		err = e ? e : err;
		memset(d->table, 0, store_pages(d) * KVR_PAGE);
		for (uint64_t slot = 0; slot < d->slots; slot++)
			if (d->state[slot] == SLOT_USED)
				d->state[slot] = SLOT_FREE;
		store_count_slots(d);
	}
	/* One device of the set suffices: no open takes the set without it, and the highest counts.
	 */
	if (done)
		return 0;
	return kvr_fail_more(
		err ? err : -EIO,
		"; kvr_store_reset: no device took the new generation: after a restart "
		"old blocks might be found. Remove or reformat the store");
}
