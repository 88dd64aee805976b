/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated device (fault.h). Every decision is drawn from one generator, at submit and at the
 * completion of a request and nowhere else: a caller that polls more often gets the same faults.
 *
 * Which sectors differ between the two images is one bit each. A sector that is written twice
 * before a sync may also keep its first content: then a coin makes that durable at the second
 * write.
 */
#include "fault.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "err.h"
#include "util.h"

#define SECTOR 512u
#define SCALE 10000u /* of the rates */
#define POISON 0xdb  /* what the buffer of an unfinished read holds */

enum fate {
	FATE_GOOD,
	FATE_SHORT,
	FATE_EMPTY,
	FATE_ERROR,
	FATE_LOST,
	FATE_TORN,
	FATE_MISDIRECTED,
	FATE_FLIP,
	FATE_STUCK,
};

struct held {
	struct kvr_io_req *req;
	enum fate fate;
	int err;      /* FATE_ERROR */
	uint64_t due; /* not before so many requests have ended */
};

struct fault {
	struct kvr_io io; /* first: the handle points to it */
	struct kvr_fault_rates rates;
	struct kvr_fault_stats stats;
	uint64_t rng;
	uint64_t ended;
	uint8_t *visible;
	uint8_t *durable;
	uint64_t *dirty;  /* a bit per sector: visible is newer than durable */
	uint64_t words;	  /* of dirty[] */
	uint32_t flushed; /* held[0..flushed) may end */
	int gone;
	int event;	    /* an eventfd, */
	int signaled;	    /* readable now */
	struct held held[]; /* io.inflight of them, oldest first */
};

static struct fault *fault_of(struct kvr_io *io)
{
	return (struct fault *)io;
}

/* splitmix64: every seed is a good one, also 0. */
static uint64_t rng_next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* In [0, n). The bias of the remainder does not matter here. */
static uint64_t below(struct fault *f, uint64_t n)
{
	return rng_next(&f->rng) % n;
}

static int chance(struct fault *f, uint32_t rate)
{
	return rate && below(f, SCALE) < rate;
}

static int is_dirty(const struct fault *f, uint64_t sector)
{
	return (int)(f->dirty[sector / 64] >> (sector % 64) & 1);
}

static void set_dirty(struct fault *f, uint64_t sector)
{
	f->dirty[sector / 64] |= (uint64_t)1 << (sector % 64);
}

static void harden(struct fault *f, uint64_t sector)
{
	memcpy(f->durable + sector * SECTOR, f->visible + sector * SECTOR, SECTOR);
	f->dirty[sector / 64] &= ~((uint64_t)1 << (sector % 64));
}

static void write_sector(struct fault *f, uint64_t sector, const uint8_t *from)
{
	if (is_dirty(f, sector) && below(f, 2))
		harden(f, sector);
	memcpy(f->visible + sector * SECTOR, from, SECTOR);
	set_dirty(f, sector);
}

static void write_bytes(struct fault *f, uint64_t off, const void *from, uint64_t len)
{
	uint64_t i;

	for (i = 0; i < len / SECTOR; i++)
		write_sector(f, off / SECTOR + i, (const uint8_t *)from + i * SECTOR);
}

static int req_valid(const struct kvr_io *io, const struct kvr_io_req *req)
{
	return (req->op == KVR_IO_READ || req->op == KVR_IO_WRITE) && req->buf && req->len &&
	       req->len <= INT32_MAX && req->len <= io->bytes && req->off <= io->bytes - req->len &&
	       !(((uintptr_t)req->buf | req->off | req->len) & (io->align - 1));
}

static void draw_error(struct fault *f, struct held *h, int err, uint64_t *count)
{
	h->fate = FATE_ERROR;
	h->err = err;
	++*count;
	if (err == -ENODEV)
		f->gone = 1;
}

static int retry_errno(struct fault *f)
{
	static const int errs[] = { -EAGAIN, -EINTR, -ECANCELED };

	return errs[below(f, KVR_ARRAY_LEN(errs))];
}

/* Draws for every kind in turn: the first that hits is it. */
static void draw_fate(struct fault *f, struct held *h)
{
	const struct kvr_fault_rates *r = &f->rates;
	struct kvr_fault_stats *n = &f->stats;
	int is_write = h->req->op == KVR_IO_WRITE;

	if (f->gone || chance(f, r->gone))
		draw_error(f, h, -ENODEV, &n->gone);
	else if (chance(f, r->stuck))
		h->fate = FATE_STUCK, n->stuck++;
	else if (chance(f, r->eio))
		draw_error(f, h, -EIO, &n->eio);
	else if (is_write && chance(f, r->enospc))
		draw_error(f, h, -ENOSPC, &n->enospc);
	else if (chance(f, r->eagain))
		draw_error(f, h, retry_errno(f), &n->eagain);
	else if (is_write && chance(f, r->lost_write))
		h->fate = FATE_LOST, n->lost_write++;
	else if (is_write && chance(f, r->torn_write))
		h->fate = FATE_TORN, n->torn_write++;
	else if (is_write && chance(f, r->misdirected))
		h->fate = FATE_MISDIRECTED, n->misdirected++;
	else if (!is_write && chance(f, r->flip))
		h->fate = FATE_FLIP, n->flip++;
	else if (chance(f, r->empty))
		h->fate = FATE_EMPTY, n->empty++;
	else if (h->req->len > f->io.align && chance(f, r->short_io))
		h->fate = FATE_SHORT, n->short_io++;
}

static int fault_submit(struct kvr_io *io, struct kvr_io_req *req)
{
	struct fault *f = fault_of(io);
	struct held *h = &f->held[io->inflight];

	if (io->inflight == io->depth)
		return -EAGAIN;
	io->inflight++;
	*h = (struct held){ .req = req };
	f->stats.requests++;
	if (!req_valid(io, req)) {
		h->fate = FATE_ERROR;
		h->err = -EINVAL;
		return 0;
	}
	draw_fate(f, h);
	if (h->fate != FATE_STUCK && chance(f, f->rates.late)) {
		h->due = f->ended + 8 + below(f, 56);
		f->stats.late++;
	}
	if (req->op == KVR_IO_READ)
		memset(req->buf, POISON, req->len);
	return 0;
}

/* The bytes that an honest request moves. */
static uint32_t moved(struct fault *f, const struct held *h)
{
	if (h->fate == FATE_EMPTY)
		return 0;
	if (h->fate == FATE_SHORT)
		return (uint32_t)(1 + below(f, h->req->len / f->io.align - 1)) * f->io.align;
	return h->req->len;
}

static int32_t end_read(struct fault *f, const struct held *h)
{
	struct kvr_io_req *req = h->req;
	uint32_t len;
	uint64_t bit;

	if (h->fate == FATE_ERROR)
		return h->err;
	len = moved(f, h);
	memcpy(req->buf, f->visible + req->off, len);
	if (h->fate == FATE_FLIP) {
		bit = below(f, (uint64_t)len * 8);
		((uint8_t *)req->buf)[bit / 8] ^= (uint8_t)(1u << (bit % 8));
	}
	return (int32_t)len;
}

/* Where a misdirected write goes: any aligned place that is not its own; its own when none is. */
static uint64_t elsewhere(struct fault *f, const struct kvr_io_req *req)
{
	uint64_t places = (f->io.bytes - req->len) / f->io.align + 1;
	uint64_t own = req->off / f->io.align;

	if (places < 2)
		return req->off;
	return (own + 1 + below(f, places - 1)) % places * f->io.align;
}

static int32_t end_write(struct fault *f, const struct held *h)
{
	struct kvr_io_req *req = h->req;
	uint32_t sectors = req->len / SECTOR;
	uint32_t len = req->len;

	switch (h->fate) {
	case FATE_ERROR:
		/* Nobody may rely on what lies there after EIO: old, new, or both. */
		if (h->err == -EIO)
			write_bytes(f, req->off, req->buf, below(f, sectors + 1) * SECTOR);
		return h->err;
	case FATE_LOST:
		return (int32_t)len;
	case FATE_TORN:
		write_bytes(f, req->off, req->buf, below(f, sectors) * SECTOR);
		return (int32_t)len;
	case FATE_MISDIRECTED:
		write_bytes(f, elsewhere(f, req), req->buf, len);
		return (int32_t)len;
	default:
		len = moved(f, h);
		write_bytes(f, req->off, req->buf, len);
		return (int32_t)len;
	}
}

/* The number of requests that may end now. Late ones may when there are no others. */
static uint32_t ready(const struct fault *f, int late_too)
{
	uint32_t n = 0, i;

	for (i = 0; i < f->flushed; i++)
		n += f->held[i].fate != FATE_STUCK && (late_too || f->held[i].due <= f->ended);
	return n;
}

/* Removes the nth of those that may end and gives it its result. */
static struct kvr_io_req *end_one(struct fault *f, uint64_t nth, int late_too)
{
	struct held h;
	uint32_t i;

	for (i = 0;; i++) {
		h = f->held[i];
		if (h.fate != FATE_STUCK && (late_too || h.due <= f->ended) && !nth--)
			break;
	}
	memmove(&f->held[i], &f->held[i + 1], (f->io.inflight - i - 1) * sizeof h);
	f->io.inflight--;
	f->flushed--;
	f->ended++;
	if (h.fate == FATE_ERROR && h.err == -EINVAL)
		h.req->res = h.err;
	else
		h.req->res = h.req->op == KVR_IO_READ ? end_read(f, &h) : end_write(f, &h);
	return h.req;
}

/* The descriptor is readable exactly while something may end. */
static void announce(struct fault *f)
{
	int on = ready(f, 1) > 0;
	uint64_t one = 1;
	ssize_t n;

	if (on == f->signaled)
		return;
	n = on ? write(f->event, &one, sizeof one) : read(f->event, &one, sizeof one);
	if (n == (ssize_t)sizeof one)
		f->signaled = on;
}

static int fault_flush(struct kvr_io *io)
{
	struct fault *f = fault_of(io);

	f->flushed = io->inflight;
	announce(f);
	return 0;
}

static int fault_reap(struct kvr_io *io, struct kvr_io_req **ret_reqs, unsigned max)
{
	struct fault *f = fault_of(io);
	unsigned done = 0;
	uint32_t n = ready(f, 1);
	int late_too;

	if (n < max)
		max = n;
	/* A portion: so that requests of different polls overlap. Never none. */
	if (f->rates.reorder && max > 1)
		max = 1 + (unsigned)below(f, max);
	while (done < max) {
		n = ready(f, 0);
		late_too = !n;
		if (late_too)
			n = ready(f, 1);
		ret_reqs[done++] = end_one(f, f->rates.reorder ? below(f, n) : 0, late_too);
	}
	announce(f);
	return (int)done;
}

static int fault_fd(struct kvr_io *io)
{
	return fault_of(io)->event;
}

static int fault_sync(struct kvr_io *io)
{
	struct fault *f = fault_of(io);
	uint64_t i;

	if (f->gone)
		return KVR_FAIL(-ENODEV, "device %s: sync: the device is gone", io->ops->name);
	for (i = 0; i < f->words; i++)
		while (f->dirty[i])
			harden(f, i * 64 + (uint64_t)__builtin_ctzll(f->dirty[i]));
	return 0;
}

/* Needs no time: what can end ends now, and what is stuck would be so at any deadline. */
static int fault_close(struct kvr_io *io, uint64_t deadline_ns)
{
	struct fault *f = fault_of(io);
	uint32_t stuck;

	(void)deadline_ns;
	f->flushed = io->inflight;
	while (ready(f, 1))
		end_one(f, 0, 1);
	stuck = io->inflight;
	io->inflight = 0;
	f->flushed = 0;
	announce(f);
	return (int)stuck;
}

static const struct kvr_io_ops fault_ops = {
	.name = "simulated",
	.submit = fault_submit,
	.flush = fault_flush,
	.reap = fault_reap,
	.fd = fault_fd,
	.sync = fault_sync,
	.close = fault_close,
};

int kvr_fault_open(uint64_t bytes, uint32_t align, uint32_t depth, uint64_t seed,
		   const struct kvr_fault_rates *rates, struct kvr_io **ret_io)
{
	struct fault *f;

	if (!kvr_is_pow2(align) || align < SECTOR || !bytes || bytes % align || !depth)
		return KVR_FAIL(-EINVAL,
				"kvr_fault_open: %" PRIu64 " bytes, alignment %u, depth %u; "
				"expected a power of two from 512, a multiple of it, and 1 or more",
				bytes, align, depth);
	f = calloc(1, sizeof *f + depth * sizeof f->held[0]);
	if (!f)
		return KVR_FAIL(-ENOMEM, "kvr_fault_open: no memory");
	f->io = (struct kvr_io){
		.ops = &fault_ops, .bytes = bytes, .align = align, .depth = depth
	};
	f->rng = seed;
	if (rates)
		f->rates = *rates;
	f->words = (bytes / SECTOR + 63) / 64;
	f->visible = calloc(1, bytes);
	f->durable = calloc(1, bytes);
	f->dirty = calloc(f->words, sizeof f->dirty[0]);
	f->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!f->visible || !f->durable || !f->dirty || f->event < 0) {
		kvr_fault_free(&f->io);
		return KVR_FAIL(-ENOMEM,
				"kvr_fault_open: no memory for two images of %" PRIu64
				" bytes, or no descriptor",
				bytes);
	}
	*ret_io = &f->io;
	return 0;
}

void kvr_fault_free(struct kvr_io *io)
{
	struct fault *f = fault_of(io);

	if (!f)
		return;
	if (f->event >= 0)
		close(f->event);
	free(f->visible);
	free(f->durable);
	free(f->dirty);
	free(f);
}

void kvr_fault_set_rates(struct kvr_io *io, const struct kvr_fault_rates *rates)
{
	struct fault *f = fault_of(io);

	f->rates = rates ? *rates : (struct kvr_fault_rates){ 0 };
	f->gone = 0;
}

void kvr_fault_get_stats(const struct kvr_io *io, struct kvr_fault_stats *ret_stats)
{
	*ret_stats = ((const struct fault *)io)->stats;
}

uint8_t *kvr_fault_image(struct kvr_io *io)
{
	return fault_of(io)->visible;
}

/*
 * How one crash chooses what survives. Between "all" and "nothing" lie the cuts that hurt, so the
 * odds differ from crash to crash, and so does how many neighbours share their fate: a device loses
 * single sectors, its own pages, or whole requests.
 */
struct cut {
	uint64_t rng;
	uint64_t odds;	/* of 8 */
	uint64_t grain; /* sectors */
	uint64_t last;	/* grain of the last draw */
	int keep;
};

static int survives(struct cut *cut, uint64_t sector)
{
	if (sector / cut->grain != cut->last) {
		cut->last = sector / cut->grain;
		cut->keep = rng_next(&cut->rng) % 8 < cut->odds;
	}
	return cut->keep;
}

/* A write in flight reaches the device as if it had ended, or in a part of its sectors. */
static void land(struct fault *f, const struct held *h, struct cut *cut)
{
	struct kvr_io_req *req = h->req;
	uint64_t i, sector;

	if (req->op != KVR_IO_WRITE || !req_valid(&f->io, req))
		return;
	if (h->fate != FATE_GOOD && h->fate != FATE_SHORT && h->fate != FATE_STUCK) {
		if (rng_next(&cut->rng) % 2)
			end_write(f, h);
		return;
	}
	cut->last = UINT64_MAX;
	for (i = 0; i < req->len / SECTOR; i++) {
		sector = req->off / SECTOR + i;
		if (survives(cut, sector))
			write_sector(f, sector, (const uint8_t *)req->buf + i * SECTOR);
	}
}

void kvr_fault_crash(struct kvr_io *io, uint64_t seed)
{
	static const uint8_t odds[] = { 0, 1, 4, 4, 4, 4, 7, 8 };
	static const uint8_t grain[] = { 1, 1, 8, 64 };
	struct fault *f = fault_of(io);
	struct cut cut = { .rng = seed, .last = UINT64_MAX };
	uint64_t i, sector;
	uint32_t k;

	cut.odds = odds[rng_next(&cut.rng) % KVR_ARRAY_LEN(odds)];
	cut.grain = grain[rng_next(&cut.rng) % KVR_ARRAY_LEN(grain)];
	for (k = 0; k < io->inflight; k++)
		land(f, &f->held[k], &cut);
	io->inflight = 0;
	f->flushed = 0;
	cut.last = UINT64_MAX;
	for (i = 0; i < f->words; i++) {
		while (f->dirty[i]) {
			sector = i * 64 + (uint64_t)__builtin_ctzll(f->dirty[i]);
			if (!survives(&cut, sector))
				memcpy(f->visible + sector * SECTOR, f->durable + sector * SECTOR,
				       SECTOR);
			harden(f, sector);
		}
	}
	f->stats.crashes++;
	announce(f);
}
