/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated device must itself be right, else every test of the store that stands on it proves
 * nothing: repeatable from its seed, each kind of fault as announced and at about its rate, and a
 * power cut that keeps what was synced and any subset of the rest.
 */
#include "harness.h"

#include <poll.h>

#include "fault.h"
#include "hash.h"

#define SECTOR 512u
#define UNIT 4096u
#define DEVICE (1u << 20)
#define DEPTH 32u

static uint64_t random_state = 1;

static uint64_t random_below(uint64_t n)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (random_state >> 33) % n;
}

static struct kvr_io *open_device(uint64_t seed, const struct kvr_fault_rates *rates)
{
	struct kvr_io *io = NULL;

	ck_assert_int_eq(kvr_fault_open(DEVICE, UNIT, DEPTH, seed, rates, &io), 0);
	return io;
}

static void *buffer(size_t len)
{
	void *p = aligned_alloc(UNIT, len);

	ck_assert_ptr_nonnull(p);
	return p;
}

static void give(struct kvr_io *io, struct kvr_io_req *req, uint32_t op, void *buf, uint64_t off,
		 uint32_t len)
{
	*req = (struct kvr_io_req){ .buf = buf, .off = off, .len = len, .op = op };
	ck_assert_int_eq(io->ops->submit(io, req), 0);
	ck_assert_int_eq(io->ops->flush(io), 0);
}

/* One request alone; returns its result. */
static int32_t move(struct kvr_io *io, uint32_t op, void *buf, uint64_t off, uint32_t len)
{
	struct kvr_io_req req, *ended = NULL;

	give(io, &req, op, buf, off, len);
	ck_assert_int_eq(io->ops->reap(io, &ended, 1), 1);
	ck_assert_ptr_eq(ended, &req);
	return req.res;
}

static int readable(struct kvr_io *io)
{
	struct pollfd p = { .fd = io->ops->fd(io), .events = POLLIN };

	return poll(&p, 1, 0) == 1 && (p.revents & POLLIN);
}

/* 1 when each byte of the sector is `value`. */
static int sector_is(const uint8_t *image, uint64_t sector, uint8_t value)
{
	const uint8_t *p = image + sector * SECTOR;

	return p[0] == value && !memcmp(p, p + 1, SECTOR - 1);
}

START_TEST(test_open_rejects_impossible_devices)
{
	struct kvr_io *io = NULL;

	ck_assert_int_eq(kvr_fault_open(DEVICE, 256, DEPTH, 1, NULL, &io), -EINVAL);
	ck_assert_int_eq(kvr_fault_open(DEVICE, 1000, DEPTH, 1, NULL, &io), -EINVAL);
	ck_assert_int_eq(kvr_fault_open(DEVICE + 512, UNIT, DEPTH, 1, NULL, &io), -EINVAL);
	ck_assert_int_eq(kvr_fault_open(0, UNIT, DEPTH, 1, NULL, &io), -EINVAL);
	ck_assert_int_eq(kvr_fault_open(DEVICE, UNIT, 0, 1, NULL, &io), -EINVAL);
	ck_assert_ptr_null(io);
	kvr_fault_free(NULL);
}
END_TEST

START_TEST(test_without_faults_reads_return_what_was_written)
{
	struct kvr_io *io = open_device(1, NULL);
	uint8_t *a = buffer(4 * UNIT), *b = buffer(4 * UNIT);
	uint64_t off;
	unsigned i;

	for (off = 0; off + 4 * UNIT <= DEVICE; off += 4 * UNIT) {
		for (i = 0; i < 4 * UNIT; i++)
			a[i] = (uint8_t)random_below(256);
		ck_assert_int_eq(move(io, KVR_IO_WRITE, a, off, 4 * UNIT), 4 * UNIT);
		ck_assert_int_eq(move(io, KVR_IO_READ, b, off, 4 * UNIT), 4 * UNIT);
		ck_assert_mem_eq(a, b, 4 * UNIT);
		ck_assert_mem_eq(a, kvr_fault_image(io) + off, 4 * UNIT);
	}
	ck_assert_uint_eq(io->inflight, 0);
	ck_assert_int_eq(io->ops->close(io, 0), 0);
	kvr_fault_free(io);
	free(a);
	free(b);
}
END_TEST

START_TEST(test_nothing_ends_before_flush)
{
	struct kvr_io *io = open_device(1, NULL);
	uint8_t *a = buffer(UNIT);
	struct kvr_io_req req = { .buf = a, .len = UNIT, .op = KVR_IO_READ }, *ended;

	memset(a, 7, UNIT);
	ck_assert_int_eq(io->ops->submit(io, &req), 0);
	ck_assert_uint_eq(io->inflight, 1);
	ck_assert_int_eq(readable(io), 0);
	ck_assert_int_eq(io->ops->reap(io, &ended, 1), 0);
	ck_assert_int_eq(io->ops->flush(io), 0);
	ck_assert_int_eq(readable(io), 1);
	/* Who looks too early sees neither old nor new bytes. */
	ck_assert_uint_ne(a[0], 7);
	ck_assert_uint_ne(a[0], 0);
	ck_assert_int_eq(io->ops->reap(io, &ended, 1), 1);
	ck_assert_int_eq(readable(io), 0);
	ck_assert_uint_eq(a[0], 0);
	ck_assert_uint_eq(io->inflight, 0);
	kvr_fault_free(io);
	free(a);
}
END_TEST

START_TEST(test_refuses_more_than_depth)
{
	struct kvr_io *io = open_device(1, NULL);
	struct kvr_io_req reqs[DEPTH + 1], *ended[DEPTH + 1];
	uint8_t *a = buffer(UNIT);
	unsigned i;

	for (i = 0; i < DEPTH; i++)
		give(io, &reqs[i], KVR_IO_READ, a, 0, UNIT);
	reqs[DEPTH] = reqs[0];
	ck_assert_int_eq(io->ops->submit(io, &reqs[DEPTH]), -EAGAIN);
	ck_assert_uint_eq(io->inflight, DEPTH);
	ck_assert_int_eq(io->ops->reap(io, ended, DEPTH + 1), (int)DEPTH);
	for (i = 0; i < DEPTH; i++) /* in order unless told otherwise */
		ck_assert_ptr_eq(ended[i], &reqs[i]);
	ck_assert_int_eq(io->ops->submit(io, &reqs[DEPTH]), 0);
	ck_assert_int_eq(io->ops->close(io, 0), 0);
	kvr_fault_free(io);
	free(a);
}
END_TEST

START_TEST(test_bad_requests_end_with_einval)
{
	struct kvr_io *io = open_device(1, NULL);
	uint8_t *a = buffer(2 * UNIT);

	ck_assert_int_eq(move(io, KVR_IO_READ, a + 512, 0, UNIT), -EINVAL);
	ck_assert_int_eq(move(io, KVR_IO_READ, a, 512, UNIT), -EINVAL);
	ck_assert_int_eq(move(io, KVR_IO_WRITE, a, 0, 512), -EINVAL);
	ck_assert_int_eq(move(io, KVR_IO_WRITE, a, DEVICE, UNIT), -EINVAL);
	ck_assert_int_eq(move(io, KVR_IO_WRITE, a, UINT64_MAX - UNIT + 1, UNIT), -EINVAL);
	ck_assert_int_eq(move(io, KVR_IO_READ, a, DEVICE - UNIT, 2 * UNIT), -EINVAL);
	ck_assert_int_eq(move(io, KVR_IO_READ, a, 0, 0), -EINVAL);
	ck_assert_int_eq(move(io, 2, a, 0, UNIT), -EINVAL);
	ck_assert_int_eq(move(io, KVR_IO_READ, NULL, 0, UNIT), -EINVAL);
	kvr_fault_free(io);
	free(a);
}
END_TEST

/* A run of random requests with every kind of fault, as one number. */
static uint64_t trace(uint64_t seed, unsigned empty_polls, struct kvr_fault_stats *ret_stats)
{
	struct kvr_fault_rates r = { .short_io = 500,
				     .eio = 300,
				     .eagain = 500,
				     .late = 500,
				     .lost_write = 300,
				     .torn_write = 300,
				     .misdirected = 300,
				     .flip = 300,
				     .reorder = 1,
				     .empty = 200,
				     .enospc = 200 };
	struct kvr_io *io = open_device(seed, &r);
	struct kvr_io_req reqs[DEPTH], *free_reqs[DEPTH], *ended[DEPTH];
	uint8_t *mem = buffer(DEPTH * 4 * UNIT);
	uint64_t hash = 0, given = 0, n_free = DEPTH, i;
	int n, k;

	random_state = 42; /* the caller's part is always the same */
	memset(mem, 1, DEPTH * 4 * UNIT);
	for (i = 0; i < DEPTH; i++)
		free_reqs[i] = &reqs[i];
	while (given < 2000 || n_free < DEPTH) {
		while (given < 2000 && n_free && random_below(4)) {
			struct kvr_io_req *q = free_reqs[--n_free];
			uint32_t units = (uint32_t)(1 + random_below(4));

			give(io, q, (uint32_t)random_below(2), mem + (q - reqs) * 4 * (int)UNIT,
			     random_below(DEVICE / UNIT - 4) * UNIT, units * UNIT);
			given++;
		}
		n = io->ops->reap(io, ended, (unsigned)DEPTH);
		for (k = 0; k < n; k++) {
			struct kvr_io_req *q = ended[k];
			uint64_t what[3] = { (uint64_t)(q - reqs), (uint64_t)q->res,
					     kvr_hash(q->buf, q->len, 0) };

			hash = kvr_hash(what, sizeof what, hash);
			free_reqs[n_free++] = q;
		}
		for (i = 0; i < empty_polls && n_free == DEPTH; i++)
			ck_assert_int_eq(io->ops->reap(io, ended, DEPTH), 0);
		if (random_below(50) == 0)
			ck_assert_int_eq(io->ops->sync(io), 0);
	}
	kvr_fault_crash(io, seed);
	hash = kvr_hash(kvr_fault_image(io), DEVICE, hash);
	kvr_fault_get_stats(io, ret_stats);
	kvr_fault_free(io);
	free(mem);
	return hash;
}

START_TEST(test_same_seed_gives_same_trace)
{
	struct kvr_fault_stats a, b, c;
	uint64_t first = trace(5, 0, &a);

	ck_assert_uint_eq(trace(5, 3, &b), first);
	ck_assert_mem_eq(&a, &b, sizeof a);
	ck_assert_uint_ne(trace(6, 0, &c), first);
	ck_assert_uint_eq(a.requests, 2000);
	ck_assert_uint_eq(a.crashes, 1);
	ck_assert(a.short_io && a.eio && a.eagain && a.late && a.lost_write && a.torn_write);
	ck_assert(a.misdirected && a.flip && a.empty && a.enospc);
}
END_TEST

/* What the outside can see of one request. */
struct seen {
	uint64_t full, part, none, eio, retry, enospc, flipped, wrong;
};

/* n requests of 4 units, alone each, op alternating; what can be told from outside is counted. */
static struct seen observe(struct kvr_io *io, unsigned n, uint32_t op)
{
	uint8_t *a = buffer(4 * UNIT), *want = kvr_fault_image(io);
	struct seen s = { 0 };
	unsigned i, k, bits;
	int32_t res;

	for (i = 0; i < n; i++) {
		uint64_t off = random_below(DEVICE / UNIT - 4) * UNIT;

		memset(a, (int)(i % 250 + 1), 4 * UNIT);
		res = move(io, op, a, off, 4 * UNIT);
		s.full += res == 4 * UNIT;
		s.part += res > 0 && res < (int32_t)(4 * UNIT);
		s.none += res == 0;
		s.eio += res == -EIO;
		s.enospc += res == -ENOSPC;
		s.retry += res == -EAGAIN || res == -EINTR || res == -ECANCELED;
		ck_assert(res < 0 || res % (int32_t)UNIT == 0);
		if (res <= 0 || !memcmp(a, want + off, (size_t)res))
			continue;
		for (k = 0, bits = 0; k < (unsigned)res; k++)
			bits += (unsigned)__builtin_popcount((unsigned)(a[k] ^ want[off + k]));
		s.flipped += bits == 1;
		s.wrong += bits > 1;
	}
	free(a);
	return s;
}

static void assert_about(uint64_t got, unsigned n, uint32_t rate)
{
	uint64_t want = (uint64_t)n * rate / 10000;

	ck_assert_uint_ge(got, want * 7 / 10);
	ck_assert_uint_le(got, want * 13 / 10);
}

#define N 3000u

START_TEST(test_each_kind_comes_at_its_rate_and_is_counted)
{
	struct kvr_fault_rates none = { 0 }, r;
	struct kvr_io *io = open_device(11, NULL);
	struct kvr_fault_stats t;
	struct seen s;

#define EXPECT(kind, op, field, total)                                                       \
	do {                                                                                 \
		struct kvr_fault_stats before;                                               \
		r = none;                                                                    \
		r.kind = 1000;                                                               \
		kvr_fault_set_rates(io, &r);                                                 \
		kvr_fault_get_stats(io, &before);                                            \
		s = observe(io, N, op);                                                      \
		kvr_fault_get_stats(io, &t);                                                 \
		assert_about(t.kind - before.kind, N, 1000);                                 \
		ck_assert_uint_eq(s.field, t.kind - before.kind);                            \
		ck_assert_uint_eq(s.full + s.part + s.none + s.eio + s.retry + s.enospc, N); \
		ck_assert_uint_eq(s.full, N - (total));                                      \
	} while (0)
	EXPECT(short_io, KVR_IO_READ, part, s.part);
	EXPECT(short_io, KVR_IO_WRITE, part, s.part);
	EXPECT(empty, KVR_IO_READ, none, s.none);
	EXPECT(empty, KVR_IO_WRITE, none, s.none);
	EXPECT(eio, KVR_IO_READ, eio, s.eio);
	EXPECT(eio, KVR_IO_WRITE, eio, s.eio);
	EXPECT(eagain, KVR_IO_READ, retry, s.retry);
	EXPECT(eagain, KVR_IO_WRITE, retry, s.retry);
	EXPECT(enospc, KVR_IO_WRITE, enospc, s.enospc);
	EXPECT(flip, KVR_IO_READ, flipped, 0);
	EXPECT(lost_write, KVR_IO_WRITE, wrong, 0);
	EXPECT(torn_write, KVR_IO_WRITE, wrong, 0);
	EXPECT(misdirected, KVR_IO_WRITE, wrong, 0);
#undef EXPECT
	ck_assert_uint_eq(t.requests, 13 * N);
	kvr_fault_free(io);
}
END_TEST

START_TEST(test_lost_write_changes_nothing)
{
	struct kvr_fault_rates r = { .lost_write = 10000 };
	struct kvr_io *io = open_device(3, &r);
	uint8_t *a = buffer(4 * UNIT);
	uint64_t i;

	memset(a, 9, 4 * UNIT);
	ck_assert_int_eq(move(io, KVR_IO_WRITE, a, 8 * UNIT, 4 * UNIT), 4 * UNIT);
	for (i = 0; i < DEVICE / SECTOR; i++)
		ck_assert_int_eq(sector_is(kvr_fault_image(io), i, 0), 1);
	kvr_fault_free(io);
	free(a);
}
END_TEST

START_TEST(test_torn_write_leaves_a_prefix_of_sectors)
{
	struct kvr_fault_rates r = { .torn_write = 10000 };
	struct kvr_io *io = open_device(3, &r);
	uint8_t *a = buffer(4 * UNIT), *image = kvr_fault_image(io);
	uint64_t i, fresh, lengths = 0, sectors = 4 * UNIT / SECTOR;
	int round;

	memset(a, 9, 4 * UNIT);
	for (round = 0; round < 40; round++) {
		memset(image, 1, DEVICE);
		ck_assert_int_eq(move(io, KVR_IO_WRITE, a, 8 * UNIT, 4 * UNIT), 4 * UNIT);
		for (fresh = 0; sector_is(image, 8 * UNIT / SECTOR + fresh, 9); fresh++)
			;
		ck_assert_uint_lt(fresh, sectors);
		for (i = 0; i < DEVICE / SECTOR; i++)
			if (i < 8 * UNIT / SECTOR || i >= 8 * UNIT / SECTOR + fresh)
				ck_assert_int_eq(sector_is(image, i, 1), 1);
		lengths |= (uint64_t)1 << fresh;
	}
	ck_assert_int_gt(__builtin_popcountll(lengths), 5);
	kvr_fault_free(io);
	free(a);
}
END_TEST

START_TEST(test_misdirected_write_hits_another_place)
{
	struct kvr_fault_rates r = { .misdirected = 10000 };
	struct kvr_io *io = open_device(3, &r);
	uint8_t *a = buffer(UNIT), *image = kvr_fault_image(io);
	uint64_t i, units, places = 0;
	int round;

	memset(a, 9, UNIT);
	for (round = 0; round < 40; round++) {
		memset(image, 1, DEVICE);
		ck_assert_int_eq(move(io, KVR_IO_WRITE, a, 8 * UNIT, UNIT), UNIT);
		units = 0;
		for (i = 0; i < DEVICE / UNIT; i++) {
			if (!memcmp(image + i * UNIT, a, UNIT)) {
				ck_assert_uint_ne(i, 8);
				units++;
				places |= (uint64_t)1 << (i % 64);
			} else {
				ck_assert_uint_eq(image[i * UNIT], 1);
			}
		}
		ck_assert_uint_eq(units, 1);
	}
	ck_assert_int_gt(__builtin_popcountll(places), 5);
	kvr_fault_free(io);
	free(a);
}
END_TEST

START_TEST(test_late_requests_are_overtaken_but_end)
{
	struct kvr_fault_rates late = { .late = 10000 }, none = { 0 };
	struct kvr_io *io = open_device(3, &late);
	struct kvr_io_req slow, fast[8], *ended;
	uint8_t *a = buffer(UNIT);
	int i;

	give(io, &slow, KVR_IO_READ, a, 0, UNIT);
	kvr_fault_set_rates(io, &none);
	for (i = 0; i < 8; i++)
		give(io, &fast[i], KVR_IO_READ, a, 0, UNIT);
	for (i = 0; i < 8; i++) {
		ck_assert_int_eq(io->ops->reap(io, &ended, 1), 1);
		ck_assert_ptr_eq(ended, &fast[i]);
	}
	ck_assert_int_eq(readable(io), 1);
	ck_assert_int_eq(io->ops->reap(io, &ended, 1), 1); /* nothing else is there */
	ck_assert_ptr_eq(ended, &slow);
	kvr_fault_free(io);
	free(a);
}
END_TEST

START_TEST(test_reorder_ends_in_another_order_and_in_portions)
{
	struct kvr_fault_rates r = { .reorder = 1 };
	struct kvr_io *io = open_device(3, &r);
	struct kvr_io_req reqs[DEPTH], *ended[DEPTH];
	uint8_t *a = buffer(UNIT);
	int moved = 0, n, total = 0, polls = 0;
	unsigned i;

	for (i = 0; i < DEPTH; i++)
		give(io, &reqs[i], KVR_IO_READ, a, 0, UNIT);
	while (total < (int)DEPTH) {
		ck_assert_int_eq(readable(io), 1);
		n = io->ops->reap(io, ended + total, DEPTH);
		ck_assert_int_ge(n, 1);
		total += n;
		polls++;
	}
	ck_assert_int_gt(polls, 1);
	for (i = 0; i < DEPTH; i++)
		moved += ended[i] != &reqs[i];
	ck_assert_int_gt(moved, (int)DEPTH / 2);
	kvr_fault_free(io);
	free(a);
}
END_TEST

START_TEST(test_stuck_requests_are_counted_by_close)
{
	struct kvr_fault_rates stuck = { .stuck = 10000 }, none = { 0 };
	struct kvr_io *io = open_device(3, &stuck);
	struct kvr_io_req reqs[3], *ended;
	uint8_t *a = buffer(UNIT);

	memset(a, 5, UNIT);
	give(io, &reqs[0], KVR_IO_READ, a, 0, UNIT);
	give(io, &reqs[1], KVR_IO_READ, a, 0, UNIT);
	ck_assert_int_eq(readable(io), 0);
	ck_assert_int_eq(io->ops->reap(io, &ended, 1), 0);
	kvr_fault_set_rates(io, &none);
	memset(a, 5, UNIT);
	give(io, &reqs[2], KVR_IO_WRITE, a, UNIT, UNIT);
	ck_assert_uint_eq(io->inflight, 3);
	ck_assert_int_eq(io->ops->close(io, test_deadline_ms(1)), 2);
	ck_assert_uint_eq(io->inflight, 0);
	/* Closing drains the others and keeps the image; a next owner goes on. */
	ck_assert_uint_eq(kvr_fault_image(io)[UNIT], 5);
	ck_assert_int_eq(move(io, KVR_IO_READ, a, UNIT, UNIT), UNIT);
	kvr_fault_free(io);
	free(a);
}
END_TEST

START_TEST(test_a_device_that_is_gone_stays_gone)
{
	struct kvr_fault_rates r = { .gone = 1000 }, none = { 0 };
	struct kvr_io *io = open_device(3, &r);
	uint8_t *a = buffer(UNIT);
	int i;

	for (i = 0; i < 1000; i++)
		if (move(io, KVR_IO_READ, a, 0, UNIT) == -ENODEV)
			break;
	ck_assert_int_lt(i, 1000);
	for (i = 0; i < 50; i++)
		ck_assert_int_eq(move(io, KVR_IO_WRITE, a, 0, UNIT), -ENODEV);
	ck_assert_int_eq(io->ops->sync(io), -ENODEV);
	kvr_fault_set_rates(io, &none);
	ck_assert_int_eq(move(io, KVR_IO_READ, a, 0, UNIT), UNIT);
	ck_assert_int_eq(io->ops->sync(io), 0);
	kvr_fault_free(io);
	free(a);
}
END_TEST

static void fill(struct kvr_io *io, uint8_t value, uint64_t off, uint64_t len)
{
	uint8_t *a = buffer(UNIT);
	uint64_t at;

	memset(a, value, UNIT);
	for (at = off; at < off + len; at += UNIT)
		ck_assert_int_eq(move(io, KVR_IO_WRITE, a, at, UNIT), UNIT);
	free(a);
}

START_TEST(test_crash_keeps_what_was_synced)
{
	struct kvr_io *io;
	uint64_t seed, i;

	for (seed = 0; seed < 20; seed++) {
		io = open_device(seed, NULL);
		fill(io, 1, 0, DEVICE);
		ck_assert_int_eq(io->ops->sync(io), 0);
		kvr_fault_crash(io, seed);
		for (i = 0; i < DEVICE / SECTOR; i++)
			ck_assert_int_eq(sector_is(kvr_fault_image(io), i, 1), 1);
		kvr_fault_crash(io, seed + 100); /* nothing is dirty: nothing changes */
		for (i = 0; i < DEVICE / SECTOR; i++)
			ck_assert_int_eq(sector_is(kvr_fault_image(io), i, 1), 1);
		kvr_fault_free(io);
	}
}
END_TEST

/* Old content 1 synced, then 2 and in its second half 3 written without a sync. */
static void unsynced(struct kvr_io *io)
{
	fill(io, 1, 0, DEVICE);
	ck_assert_int_eq(io->ops->sync(io), 0);
	fill(io, 2, DEVICE / 2, DEVICE / 2);
	fill(io, 3, DEVICE / 4 * 3, DEVICE / 4);
}

START_TEST(test_crash_keeps_a_subset_of_the_rest)
{
	unsigned all = 0, some = 0, torn = 0, whole = 0, first = 0;
	uint64_t seed, i, h, lost, kept; /* h: pages of 4096 bytes that are torn */
	struct kvr_io *io, *twin;
	const uint8_t *image;

	for (seed = 0; seed < 40; seed++) {
		io = open_device(7, NULL);
		unsynced(io);
		kvr_fault_crash(io, seed);
		image = kvr_fault_image(io);
		lost = kept = h = 0;
		for (i = 0; i < DEVICE / SECTOR; i++) {
			if (i < DEVICE / SECTOR / 2) {
				ck_assert_int_eq(sector_is(image, i, 1), 1);
				continue;
			}
			/* The first of two writes may be what survived. */
			if (sector_is(image, i, 3))
				ck_assert_uint_ge(i, DEVICE / SECTOR / 4 * 3);
			else if (!sector_is(image, i, 2))
				ck_assert_int_eq(sector_is(image, i, 1), 1);
			kept += image[i * SECTOR] != 1;
			lost += image[i * SECTOR] == 1;
			if (i >= DEVICE / SECTOR / 4 * 3)
				first += image[i * SECTOR] == 2;
			else
				h += i % 8 && image[i * SECTOR] != image[(i - 1) * SECTOR];
		}
		all += !lost;
		some += kept && lost;
		torn += h > 0;
		whole += kept && lost && !h;
		twin = open_device(7, NULL);
		unsynced(twin);
		kvr_fault_crash(twin, seed);
		ck_assert_mem_eq(kvr_fault_image(twin), image, DEVICE);
		kvr_fault_free(twin);
		kvr_fault_free(io);
	}
	ck_assert_uint_gt(all, 0);
	ck_assert_uint_gt(some, 5);
	ck_assert_uint_gt(torn, 5);
	ck_assert_uint_gt(whole, 5);
	ck_assert_uint_gt(first, 0);
}
END_TEST

START_TEST(test_crash_tears_requests_in_flight)
{
	unsigned old = 0, fresh = 0, mixed = 0;
	uint8_t *a = buffer(4 * UNIT);
	struct kvr_io_req req, *ended;
	struct kvr_io *io = open_device(9, NULL);
	uint64_t seed, i, n;

	for (seed = 0; seed < 60; seed++) {
		fill(io, 1, 0, 8 * UNIT);
		ck_assert_int_eq(io->ops->sync(io), 0);
		memset(a, 2, 4 * UNIT);
		give(io, &req, KVR_IO_WRITE, a, UNIT, 4 * UNIT);
		ck_assert_uint_eq(io->inflight, 1);
		kvr_fault_crash(io, seed);
		memset(a, 3, 4 * UNIT); /* dropped: the buffer is ours again */
		ck_assert_uint_eq(io->inflight, 0);
		ck_assert_int_eq(readable(io), 0);
		ck_assert_int_eq(io->ops->flush(io), 0);
		ck_assert_int_eq(io->ops->reap(io, &ended, 1), 0);
		for (i = 0, n = 0; i < 8 * UNIT / SECTOR; i++) {
			if (sector_is(kvr_fault_image(io), i, 2)) {
				ck_assert(i >= UNIT / SECTOR && i < 5 * UNIT / SECTOR);
				n++;
			} else {
				ck_assert_int_eq(sector_is(kvr_fault_image(io), i, 1), 1);
			}
		}
		old += n == 0;
		fresh += n == 4 * UNIT / SECTOR;
		mixed += n > 0 && n < 4 * UNIT / SECTOR;
	}
	ck_assert(old && fresh && mixed);
	kvr_fault_free(io);
	free(a);
}
END_TEST

static Suite *make(void)
{
	Suite *s = suite_create("fault");
	TCase *t = tcase_create("fault");

	tcase_set_timeout(t, 30);
	tcase_add_test(t, test_open_rejects_impossible_devices);
	tcase_add_test(t, test_without_faults_reads_return_what_was_written);
	tcase_add_test(t, test_nothing_ends_before_flush);
	tcase_add_test(t, test_refuses_more_than_depth);
	tcase_add_test(t, test_bad_requests_end_with_einval);
	tcase_add_test(t, test_same_seed_gives_same_trace);
	tcase_add_test(t, test_each_kind_comes_at_its_rate_and_is_counted);
	tcase_add_test(t, test_lost_write_changes_nothing);
	tcase_add_test(t, test_torn_write_leaves_a_prefix_of_sectors);
	tcase_add_test(t, test_misdirected_write_hits_another_place);
	tcase_add_test(t, test_late_requests_are_overtaken_but_end);
	tcase_add_test(t, test_reorder_ends_in_another_order_and_in_portions);
	tcase_add_test(t, test_stuck_requests_are_counted_by_close);
	tcase_add_test(t, test_a_device_that_is_gone_stays_gone);
	tcase_add_test(t, test_crash_keeps_what_was_synced);
	tcase_add_test(t, test_crash_keeps_a_subset_of_the_rest);
	tcase_add_test(t, test_crash_tears_requests_in_flight);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make);
}
