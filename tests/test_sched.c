/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue in front of a device: exact transfers from inexact completions. A scripted device,
 * whose every answer the test chooses, shows the rules one by one; the simulated device shows them
 * under load, all faults at once.
 */
#include "harness.h"

#include <sys/eventfd.h>

#include "clock.h"
#include "err.h"
#include "fault.h"
#include "sched.h"
#include "util.h"

#define UNIT 4096u
#define DEVICE (1u << 20)
#define LOTS (1u << 30)

/* A device that remembers what it was asked and answers what the test tells it. */
struct script {
	struct kvr_io io;
	struct kvr_io_req *held[64];
	/* every request seen, in order */
	struct kvr_io_req seen[512];
	unsigned n_seen;
	/* answers in turn; after the last one: everything asked */
	const int32_t *answers;
	unsigned n_answers;
	unsigned answered;
	int repeat;	/* the answers start again */
	int submit_err; /* of submit, for so many calls: */
	unsigned submit_bad;
	int flush_err;
	unsigned flush_bad;
	unsigned flushes;
	int hold; /* reap returns nothing */
	int event;
	uint64_t peak; /* bytes in flight */
	uint8_t image[DEVICE];
};

#define ALL INT32_MIN /* an answer: all that was asked */

static struct script *script_of(struct kvr_io *io)
{
	return (struct script *)io;
}

static int script_submit(struct kvr_io *io, struct kvr_io_req *req)
{
	struct script *d = script_of(io);
	uint64_t bytes = req->len;
	unsigned i;

	if (d->submit_bad) {
		d->submit_bad--;
		return d->submit_err;
	}
	if (io->inflight == io->depth)
		return -EAGAIN;
	ck_assert_uint_eq(((uintptr_t)req->buf | req->off | req->len) % UNIT, 0);
	for (i = 0; i < io->inflight; i++)
		bytes += d->held[i]->len;
	if (bytes > d->peak)
		d->peak = bytes;
	d->held[io->inflight++] = req;
	if (d->n_seen < KVR_ARRAY_LEN(d->seen))
		d->seen[d->n_seen++] = *req;
	return 0;
}

static int script_flush(struct kvr_io *io)
{
	struct script *d = script_of(io);

	if (d->flush_bad) {
		d->flush_bad--;
		return d->flush_err;
	}
	d->flushes++;
	return 0;
}

static int32_t script_answer(struct script *d, const struct kvr_io_req *req)
{
	int32_t res = (int32_t)req->len;
	uint32_t n;

	if (d->answered == d->n_answers && d->repeat)
		d->answered = 0;
	if (d->answered < d->n_answers && d->answers[d->answered++] != ALL)
		res = d->answers[d->answered - 1];
	n = res > 0 && res <= (int32_t)req->len ? (uint32_t)res : 0;
	if (req->op == KVR_IO_READ)
		memcpy(req->buf, d->image + req->off, n);
	else
		memcpy(d->image + req->off, req->buf, n);
	return res;
}

static int script_reap(struct kvr_io *io, struct kvr_io_req **ret_reqs, unsigned max)
{
	struct script *d = script_of(io);

	if (!max || !io->inflight || d->hold)
		return 0;
	ret_reqs[0] = d->held[0]; /* one by one: the order of answers is that of requests */
	ret_reqs[0]->res = script_answer(d, ret_reqs[0]);
	io->inflight--;
	memmove(d->held, d->held + 1, io->inflight * sizeof d->held[0]);
	return 1;
}

static int script_fd(struct kvr_io *io)
{
	return script_of(io)->event;
}

static const struct kvr_io_ops script_ops = {
	.name = "scripted",
	.submit = script_submit,
	.flush = script_flush,
	.reap = script_reap,
	.fd = script_fd,
};

static struct script *device;
static struct kvr_sched *sched;
static uint8_t *memory; /* 1 MiB of buffers */

static void open_script(uint32_t depth, uint64_t max_inflight, uint64_t max_queued)
{
	device = calloc(1, sizeof *device);
	memory = aligned_alloc(UNIT, DEVICE);
	ck_assert(device && memory);
	device->io = (struct kvr_io){
		.ops = &script_ops, .bytes = DEVICE, .align = UNIT, .depth = depth
	};
	device->event = eventfd(1, EFD_CLOEXEC); /* readable always: every sleep is short */
	ck_assert_int_eq(kvr_sched_create(&device->io, max_inflight, max_queued, &sched), 0);
}

static void close_script(void)
{
	ck_assert_uint_eq(device->io.inflight, 0);
	kvr_sched_destroy(sched);
	close(device->event);
	free(device);
	free(memory);
}

static void answers(const int32_t *list, unsigned n, int repeat)
{
	device->answers = list;
	device->n_answers = n;
	device->answered = 0;
	device->repeat = repeat;
}

static struct kvr_xfer xfer(uint32_t op, uint32_t class, uint64_t off, uint64_t len)
{
	return (struct kvr_xfer){ .buf = memory + off,
				  .off = off,
				  .len = len,
				  .op = op,
				  .class = class };
}

/* Polls until n transfers ended; fails when the device is idle before that. */
static void drain(struct kvr_xfer **ret, unsigned n)
{
	unsigned got = 0, idle = 0;
	int k;

	while (got < n) {
		k = kvr_sched_poll(sched, ret + got, n - got);
		ck_assert_int_ge(k, 0);
		got += (unsigned)k;
		idle = k ? 0 : idle + 1;
		ck_assert_uint_lt(idle, 1000);
	}
	ck_assert_int_eq(kvr_sched_poll(sched, ret, 1), 0);
}

/* One transfer alone: its result. */
static int run(struct kvr_xfer *x)
{
	struct kvr_xfer *ended = NULL;

	ck_assert_int_eq(kvr_sched_submit(sched, x), 0);
	ck_assert_uint_eq(kvr_sched_pending(sched), 1);
	drain(&ended, 1);
	ck_assert_ptr_eq(ended, x);
	ck_assert_uint_eq(kvr_sched_pending(sched), 0);
	return x->result;
}

START_TEST(test_create_rejects_impossible_devices)
{
	struct script *d = calloc(1, sizeof *d);
	struct kvr_sched *s = NULL;

	ck_assert_ptr_nonnull(d);
	d->io = (struct kvr_io){ .ops = &script_ops, .bytes = DEVICE, .align = 1000, .depth = 1 };
	ck_assert_int_eq(kvr_sched_create(&d->io, LOTS, LOTS, &s), -EINVAL);
	d->io.align = 0;
	ck_assert_int_eq(kvr_sched_create(&d->io, LOTS, LOTS, &s), -EINVAL);
	d->io.align = UNIT;
	d->io.depth = 0;
	ck_assert_int_eq(kvr_sched_create(&d->io, LOTS, LOTS, &s), -EINVAL);
	ck_assert_ptr_null(s);
	kvr_sched_destroy(NULL);
	free(d);
}
END_TEST

START_TEST(test_rejects_bad_alignment_and_range)
{
	struct kvr_xfer good, x;

	open_script(4, LOTS, LOTS);
	good = xfer(KVR_IO_READ, KVR_CLASS_DEMAND, 0, UNIT);
#define REJECTED(field, value)                                          \
	do {                                                            \
		x = good;                                               \
		x.field = value;                                        \
		ck_assert_int_eq(kvr_sched_submit(sched, &x), -EINVAL); \
	} while (0)
	REJECTED(buf, memory + 512);
	REJECTED(buf, NULL);
	REJECTED(off, 512);
	REJECTED(off, DEVICE);
	REJECTED(off, UINT64_MAX - UNIT + 1);
	REJECTED(len, 0);
	REJECTED(len, UNIT + 512);
	REJECTED(len, (uint64_t)DEVICE + UNIT);
	REJECTED(len, UINT64_MAX - UNIT + 1);
	REJECTED(op, 2);
	REJECTED(class, KVR_CLASSES);
#undef REJECTED
	ck_assert_uint_eq(kvr_sched_pending(sched), 0);
	ck_assert_int_eq(run(&good), 0);
	close_script();
}
END_TEST

START_TEST(test_short_completions_go_on_where_they_stopped)
{
	/* Parts of a unit are moved once more: 5000 counts as 4096. */
	static const int32_t parts[] = { 5000, UNIT, 3 * UNIT - 1, 512 };
	static const uint64_t offs[] = { 0, 1, 2, 4, 4 };
	struct kvr_xfer x;
	unsigned i;

	open_script(4, LOTS, LOTS);
	for (i = 0; i < DEVICE; i++)
		device->image[i] = (uint8_t)(i * 2654435761u >> 24);
	memset(memory, 0, DEVICE);
	x = xfer(KVR_IO_READ, KVR_CLASS_DEMAND, 8 * UNIT, 16 * UNIT);
	answers(parts, KVR_ARRAY_LEN(parts), 0);
	ck_assert_int_eq(run(&x), 0);
	ck_assert_mem_eq(memory + x.off, device->image + x.off, x.len);
	ck_assert_uint_eq(memory[x.off - 1], 0);
	ck_assert_uint_eq(memory[x.off + x.len], 0);
	ck_assert_uint_eq(device->n_seen, 5);
	for (i = 0; i < 5; i++) {
		ck_assert_uint_eq(device->seen[i].off, x.off + offs[i] * UNIT);
		ck_assert_uint_eq(device->seen[i].len, (16 - offs[i]) * UNIT);
		ck_assert_ptr_eq(device->seen[i].buf, memory + device->seen[i].off);
	}
	x.op = KVR_IO_WRITE;
	memset(memory, 77, DEVICE);
	answers(parts, KVR_ARRAY_LEN(parts), 0);
	ck_assert_int_eq(run(&x), 0);
	ck_assert_mem_eq(memory + x.off, device->image + x.off, x.len);
	close_script();
}
END_TEST

START_TEST(test_what_has_begun_goes_on_before_what_has_not)
{
	static const int32_t one = UNIT;
	struct kvr_xfer x[2], *ended[2];

	open_script(1, LOTS, LOTS);
	x[0] = xfer(KVR_IO_READ, KVR_CLASS_DEMAND, 0, 2 * UNIT);
	x[1] = xfer(KVR_IO_READ, KVR_CLASS_DEMAND, 8 * UNIT, UNIT);
	answers(&one, 1, 0);
	ck_assert_int_eq(kvr_sched_submit(sched, &x[0]), 0);
	ck_assert_int_eq(kvr_sched_submit(sched, &x[1]), 0);
	drain(ended, 2);
	ck_assert_uint_eq(device->seen[1].off, UNIT);
	ck_assert_uint_eq(device->seen[2].off, 8 * UNIT);
	close_script();
}
END_TEST

START_TEST(test_who_is_told_to_try_again_lets_the_others_go_first)
{
	static const int32_t busy = -EAGAIN;
	struct kvr_xfer x[2], *ended[2];

	open_script(1, LOTS, LOTS);
	x[0] = xfer(KVR_IO_READ, KVR_CLASS_DEMAND, 0, UNIT);
	x[1] = xfer(KVR_IO_READ, KVR_CLASS_DEMAND, 8 * UNIT, UNIT);
	answers(&busy, 1, 0);
	ck_assert_int_eq(kvr_sched_submit(sched, &x[0]), 0);
	ck_assert_int_eq(kvr_sched_submit(sched, &x[1]), 0);
	drain(ended, 2);
	ck_assert_ptr_eq(ended[0], &x[1]);
	ck_assert_ptr_eq(ended[1], &x[0]);
	close_script();
}
END_TEST

START_TEST(test_retries_end_with_the_devices_error)
{
	static const int32_t errs[] = { -EAGAIN, -EINTR, -EBUSY, -ECANCELED };
	struct kvr_xfer x;
	unsigned i;

	open_script(4, LOTS, LOTS);
	for (i = 0; i < KVR_ARRAY_LEN(errs); i++) {
		answers(&errs[i], 1, 1);
		device->n_seen = 0;
		x = xfer(KVR_IO_READ, KVR_CLASS_DEMAND, 0, UNIT);
		ck_assert_int_eq(run(&x), errs[i]);
		ck_assert_uint_eq(device->n_seen, 1 + KVR_SCHED_RETRIES);
	}
	close_script();
}
END_TEST

START_TEST(test_a_part_of_a_unit_is_no_progress)
{
	static const int32_t part = 512;
	struct kvr_xfer x;

	open_script(4, LOTS, LOTS);
	answers(&part, 1, 1);
	x = xfer(KVR_IO_READ, KVR_CLASS_DEMAND, 0, 2 * UNIT);
	ck_assert_int_eq(run(&x), -EIO);
	ck_assert_uint_eq(device->n_seen, 1 + KVR_SCHED_RETRIES);
	close_script();
}
END_TEST

START_TEST(test_progress_renews_the_retries)
{
	int32_t list[4 * KVR_SCHED_RETRIES];
	struct kvr_xfer x;
	unsigned i;

	for (i = 0; i < KVR_ARRAY_LEN(list); i++)
		list[i] = (i + 1) % KVR_SCHED_RETRIES ? -EAGAIN : (int32_t)UNIT;
	open_script(4, LOTS, LOTS);
	answers(list, KVR_ARRAY_LEN(list), 0);
	x = xfer(KVR_IO_WRITE, KVR_CLASS_STORE, 0, 16 * UNIT);
	memset(memory, 3, DEVICE);
	ck_assert_int_eq(run(&x), 0);
	ck_assert_mem_eq(memory, device->image, 16 * UNIT);
	ck_assert_uint_eq(device->n_seen, KVR_ARRAY_LEN(list) + 1);
	close_script();
}
END_TEST

START_TEST(test_hard_errors_end_once)
{
	static const int32_t eio[] = { UNIT, -EIO }, enospc[] = { -ENOSPC }, none[] = { UNIT, 0 };
	static const int32_t more[] = { 5 * UNIT };
	struct kvr_xfer x;

	open_script(4, LOTS, LOTS);
	x = xfer(KVR_IO_WRITE, KVR_CLASS_DEMAND, 0, 4 * UNIT);
	answers(eio, 2, 0);
	ck_assert_int_eq(run(&x), -EIO);
	ck_assert_uint_eq(device->n_seen, 2);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "scripted"));
	answers(enospc, 1, 0);
	ck_assert_int_eq(run(&x), -ENOSPC);
	answers(none, 2, 0);
	ck_assert_int_eq(run(&x), -EIO);
	answers(more, 1, 0);
	ck_assert_int_eq(run(&x), -EIO);
	ck_assert_uint_eq(device->n_seen, 6);
	ck_assert_int_eq(run(&x), 0); /* the next life of the same transfer is a new one */
	close_script();
}
END_TEST

START_TEST(test_full_store_queue_says_eagain)
{
	struct kvr_xfer s[4], big, other, *ended[8];
	unsigned i;

	open_script(4, LOTS, 3 * UNIT);
	for (i = 0; i < 4; i++)
		s[i] = xfer(KVR_IO_WRITE, KVR_CLASS_STORE, i * UNIT, UNIT);
	for (i = 0; i < 3; i++)
		ck_assert_int_eq(kvr_sched_submit(sched, &s[i]), 0);
	ck_assert_int_eq(kvr_sched_submit(sched, &s[3]), -EAGAIN);
	other = xfer(KVR_IO_READ, KVR_CLASS_PREFETCH, 8 * UNIT, 8 * UNIT);
	ck_assert_int_eq(kvr_sched_submit(sched, &other), 0);
	ck_assert_uint_eq(kvr_sched_pending(sched), 4);
	drain(ended, 4);
	ck_assert_int_eq(kvr_sched_submit(sched, &s[3]), 0);
	drain(ended, 1);
	/* Larger than the bound: alone. */
	big = xfer(KVR_IO_WRITE, KVR_CLASS_STORE, 16 * UNIT, 9 * UNIT);
	ck_assert_int_eq(kvr_sched_submit(sched, &big), 0);
	ck_assert_int_eq(kvr_sched_submit(sched, &s[0]), -EAGAIN);
	drain(ended, 1);
	ck_assert_int_eq(big.result, 0);
	close_script();
}
END_TEST

START_TEST(test_demand_goes_before_prefetch_before_store)
{
	struct kvr_xfer x[9], *ended[9];
	unsigned i;

	open_script(1, LOTS, LOTS);
	for (i = 0; i < 9; i++) {
		x[i] = xfer(KVR_IO_READ, 2 - i % 3, i * UNIT, UNIT);
		ck_assert_int_eq(kvr_sched_submit(sched, &x[i]), 0);
	}
	drain(ended, 9);
	for (i = 0; i < 9; i++) /* 2 5 8, 1 4 7, 0 3 6 */
		ck_assert_uint_eq(device->seen[i].off, (2 - i / 3 + i % 3 * 3) * UNIT);
	close_script();
}
END_TEST

START_TEST(test_lower_classes_do_not_starve)
{
	struct kvr_xfer x[KVR_CLASSES][8], *ended[64];
	unsigned went[KVR_CLASSES] = { 0 }, since[KVR_CLASSES] = { 0 }, c, i;
	int k, n;

	/* All classes have waiters at all times: each that ended is submitted again. */
	open_script(1, LOTS, LOTS);
	for (c = 0; c < KVR_CLASSES; c++) {
		for (i = 0; i < 8; i++) {
			x[c][i] = xfer(KVR_IO_READ, c, i * UNIT, UNIT);
			ck_assert_int_eq(kvr_sched_submit(sched, &x[c][i]), 0);
		}
	}
	while (went[0] + went[1] + went[2] < 400) {
		n = kvr_sched_poll(sched, ended, 64);
		ck_assert_int_ge(n, 0);
		for (k = 0; k < n; k++) {
			for (c = 0; c < KVR_CLASSES; c++)
				since[c] = c == ended[k]->class ? 0 : since[c] + 1;
			for (c = 0; c < KVR_CLASSES; c++)
				ck_assert_uint_le(since[c], 10);
			went[ended[k]->class]++;
			ck_assert_int_eq(kvr_sched_submit(sched, ended[k]), 0);
		}
	}
	ck_assert_uint_gt(went[0], 300);
	ck_assert_uint_gt(went[1], 30);
	ck_assert_uint_gt(went[2], 30);
	drain(ended, 24);
	close_script();
}
END_TEST

START_TEST(test_bytes_in_flight_are_bounded)
{
	struct kvr_xfer x[16], *ended[16];
	unsigned i;

	open_script(64, 4 * UNIT, LOTS);
	for (i = 0; i < 15; i++)
		x[i] = xfer(KVR_IO_READ, KVR_CLASS_DEMAND, i * 3 * UNIT, (1 + i % 3) * UNIT);
	x[15] = xfer(KVR_IO_READ, KVR_CLASS_DEMAND, 64 * UNIT, 2 * UNIT);
	device->hold = 1;
	for (i = 0; i < 16; i++)
		ck_assert_int_eq(kvr_sched_submit(sched, &x[i]), 0);
	ck_assert_int_eq(kvr_sched_poll(sched, ended, 16), 0);
	ck_assert_uint_eq(device->io.inflight, 2); /* 1 + 2; the 3 do not fit */
	device->hold = 0;
	drain(ended, 16);
	ck_assert_uint_le(device->peak, 4 * UNIT);
	for (i = 0; i < 16; i++)
		ck_assert_int_eq(x[i].result, 0);
	/* One that is larger than the bound goes, alone. */
	x[0] = xfer(KVR_IO_READ, KVR_CLASS_DEMAND, 0, 9 * UNIT);
	device->hold = 1;
	ck_assert_int_eq(kvr_sched_submit(sched, &x[0]), 0);
	ck_assert_int_eq(kvr_sched_submit(sched, &x[1]), 0);
	ck_assert_int_eq(kvr_sched_poll(sched, ended, 16), 0);
	ck_assert_uint_eq(device->io.inflight, 1);
	device->hold = 0;
	drain(ended, 2);
	ck_assert_uint_eq(device->peak, 9 * UNIT);
	close_script();
}
END_TEST

START_TEST(test_a_device_without_room_keeps_them_queued)
{
	struct kvr_xfer x[3], *ended[3];
	unsigned i;

	open_script(2, LOTS, LOTS);
	device->submit_err = -EAGAIN;
	device->submit_bad = 100;
	for (i = 0; i < 3; i++) {
		x[i] = xfer(KVR_IO_READ, KVR_CLASS_DEMAND, i * UNIT, UNIT);
		ck_assert_int_eq(kvr_sched_submit(sched, &x[i]), 0);
	}
	for (i = 0; i < 50; i++)
		ck_assert_int_eq(kvr_sched_poll(sched, ended, 3), 0);
	device->submit_bad = 0;
	drain(ended, 3); /* that used up no retries */
	for (i = 0; i < 3; i++) {
		ck_assert_ptr_eq(ended[i], &x[i]);
		ck_assert_int_eq(x[i].result, 0);
		ck_assert_uint_eq(device->seen[i].off, i * UNIT);
	}
	close_script();
}
END_TEST

START_TEST(test_a_refused_request_ends_with_the_refusal)
{
	struct kvr_xfer x[2], *ended[2];

	open_script(2, LOTS, LOTS);
	device->submit_err = -ENODEV;
	device->submit_bad = 1;
	x[0] = xfer(KVR_IO_READ, KVR_CLASS_DEMAND, 0, UNIT);
	x[1] = xfer(KVR_IO_READ, KVR_CLASS_DEMAND, UNIT, UNIT);
	ck_assert_int_eq(kvr_sched_submit(sched, &x[0]), 0);
	ck_assert_int_eq(kvr_sched_submit(sched, &x[1]), 0);
	drain(ended, 2);
	ck_assert_int_eq(x[0].result, -ENODEV);
	ck_assert_int_eq(x[1].result, 0);
	close_script();
}
END_TEST

START_TEST(test_a_failed_flush_is_done_again)
{
	struct kvr_xfer x, *ended = NULL;

	open_script(2, LOTS, LOTS);
	x = xfer(KVR_IO_READ, KVR_CLASS_DEMAND, 0, UNIT);
	device->hold = 1;
	device->flush_err = -EBUSY;
	device->flush_bad = 1;
	ck_assert_int_eq(kvr_sched_submit(sched, &x), 0);
	ck_assert_int_eq(kvr_sched_poll(sched, &ended, 1), 0);
	device->flush_err = -EBADF;
	device->flush_bad = 1;
	ck_assert_int_eq(kvr_sched_poll(sched, &ended, 1), -EBADF);
	ck_assert_uint_eq(kvr_sched_pending(sched), 1);
	ck_assert_uint_eq(device->flushes, 0);
	device->hold = 0;
	drain(&ended, 1);
	ck_assert_uint_eq(device->flushes, 1);
	ck_assert_int_eq(x.result, 0);
	close_script();
}
END_TEST

START_TEST(test_poll_returns_no_more_than_asked)
{
	struct kvr_xfer x[5], *ended[5];
	unsigned i;

	open_script(8, LOTS, LOTS);
	for (i = 0; i < 5; i++) {
		x[i] = xfer(KVR_IO_READ, KVR_CLASS_DEMAND, i * UNIT, UNIT);
		ck_assert_int_eq(kvr_sched_submit(sched, &x[i]), 0);
	}
	ck_assert_int_eq(kvr_sched_poll(sched, ended, 0), 0);
	ck_assert_int_eq(kvr_sched_poll(sched, ended, 2), 2);
	ck_assert_uint_eq(kvr_sched_pending(sched), 3);
	ck_assert_int_eq(kvr_sched_poll(sched, ended + 2, 5), 3);
	ck_assert_int_eq(kvr_sched_poll(sched, ended, 5), 0);
	for (i = 0; i < 5; i++)
		ck_assert_ptr_eq(ended[i], &x[i]);
	close_script();
}
END_TEST

START_TEST(test_transfer_waits_for_its_own)
{
	struct kvr_fault_rates r = { .short_io = 8000, .eagain = 2000, .late = 3000, .reorder = 1 };
	struct kvr_xfer w, x, *ended[2];
	struct kvr_io *io = NULL;
	uint8_t *mem = aligned_alloc(UNIT, DEVICE);

	memset(mem, 6, DEVICE);
	ck_assert_int_eq(kvr_fault_open(DEVICE, UNIT, 8, 1, &r, &io), 0);
	ck_assert_int_eq(kvr_sched_create(io, LOTS, LOTS, &sched), 0);
	w = (struct kvr_xfer){ .buf = mem, .len = DEVICE / 2, .op = KVR_IO_WRITE };
	x = (struct kvr_xfer){
		.buf = mem + DEVICE / 2, .len = DEVICE / 2, .op = KVR_IO_READ, .off = DEVICE / 2
	};
	ck_assert_int_eq(kvr_sched_submit(sched, &w), 0);
	ck_assert_int_eq(kvr_sched_transfer(sched, &x, test_deadline_ms(5000)), 0);
	ck_assert_uint_eq(mem[DEVICE - 1], 0);
	while (kvr_sched_pending(sched))
		if (kvr_sched_poll(sched, ended, 2))
			ck_assert_ptr_eq(ended[0], &w);
	ck_assert_mem_eq(kvr_fault_image(io), mem, DEVICE / 2);
	x.off = 1;
	ck_assert_int_eq(kvr_sched_transfer(sched, &x, test_deadline_ms(5000)), -EINVAL);
	kvr_sched_destroy(sched);
	kvr_fault_free(io);
	free(mem);
}
END_TEST

START_TEST(test_transfer_asks_again_when_the_device_had_no_room)
{
	struct kvr_xfer x;
	uint64_t clear;

	open_script(2, LOTS, LOTS);
	/* Nothing is in flight, so the descriptor will never tell. */
	ck_assert_int_eq(read(device->event, &clear, sizeof clear), (int)sizeof clear);
	device->submit_err = -EAGAIN;
	device->submit_bad = 5;
	x = xfer(KVR_IO_READ, KVR_CLASS_DEMAND, 0, UNIT);
	ck_assert_int_eq(kvr_sched_transfer(sched, &x, test_deadline_ms(2000)), 0);
	close_script();
}
END_TEST

START_TEST(test_transfer_keeps_its_deadline)
{
	struct kvr_fault_rates r = { .stuck = 10000 };
	struct kvr_io *io = NULL;
	uint8_t *mem = aligned_alloc(UNIT, UNIT);
	struct kvr_xfer x = { .buf = mem, .len = UNIT, .op = KVR_IO_READ };
	uint64_t deadline = test_deadline_ms(30);

	ck_assert_int_eq(kvr_fault_open(DEVICE, UNIT, 8, 1, &r, &io), 0);
	ck_assert_int_eq(kvr_sched_create(io, LOTS, LOTS, &sched), 0);
	ck_assert_int_eq(kvr_sched_transfer(sched, &x, deadline), -ETIMEDOUT);
	ck_assert_uint_ge(kvr_now(), deadline);
	ck_assert_uint_eq(kvr_sched_pending(sched), 1);
	ck_assert_int_eq(io->ops->close(io, deadline), 1);
	kvr_sched_destroy(sched);
	kvr_fault_free(io);
	free(mem);
}
END_TEST

static Suite *make(void)
{
	Suite *s = suite_create("sched");
	TCase *t = tcase_create("sched");

	tcase_set_timeout(t, 30);
	tcase_add_test(t, test_create_rejects_impossible_devices);
	tcase_add_test(t, test_rejects_bad_alignment_and_range);
	tcase_add_test(t, test_short_completions_go_on_where_they_stopped);
	tcase_add_test(t, test_what_has_begun_goes_on_before_what_has_not);
	tcase_add_test(t, test_who_is_told_to_try_again_lets_the_others_go_first);
	tcase_add_test(t, test_retries_end_with_the_devices_error);
	tcase_add_test(t, test_a_part_of_a_unit_is_no_progress);
	tcase_add_test(t, test_progress_renews_the_retries);
	tcase_add_test(t, test_hard_errors_end_once);
	tcase_add_test(t, test_full_store_queue_says_eagain);
	tcase_add_test(t, test_demand_goes_before_prefetch_before_store);
	tcase_add_test(t, test_lower_classes_do_not_starve);
	tcase_add_test(t, test_bytes_in_flight_are_bounded);
	tcase_add_test(t, test_a_device_without_room_keeps_them_queued);
	tcase_add_test(t, test_a_refused_request_ends_with_the_refusal);
	tcase_add_test(t, test_a_failed_flush_is_done_again);
	tcase_add_test(t, test_poll_returns_no_more_than_asked);
	tcase_add_test(t, test_transfer_waits_for_its_own);
	tcase_add_test(t, test_transfer_asks_again_when_the_device_had_no_room);
	tcase_add_test(t, test_transfer_keeps_its_deadline);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make);
}
