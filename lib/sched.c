/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue in front of one device (sched.h). A transfer has one request at the device at a time:
 * the kernel splits large ones itself and in parallel, and with a single part there is never a
 * second one in flight when the first fails.
 *
 * A transfer is in exactly one place: waiting in the queue of its class, at the device, or ended.
 * Queues are linked through xfer->next, so that neither submit nor poll allocates.
 */
#include "sched.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>

#include "clock.h"
#include "err.h"
#include "util.h"

/* Linux moves at most 2 GiB - 4 KiB in one call, and a result has 31 bits. */
#define REQ_MAX (1u << 30)
/* After so many picks of better classes the oldest waiter of a class goes first. */
#define PATIENCE 8u
#define REAP_BATCH 64u

struct queue {
	struct kvr_xfer *head;
	struct kvr_xfer **tail;
};

struct kvr_sched {
	struct kvr_io *io;
	uint64_t max_inflight;
	uint64_t max_queued;
	uint64_t inflight; /* bytes at the device */
	uint64_t queued;   /* bytes of class STORE that wait */
	uint64_t pending;  /* transfers not yet returned */
	uint64_t waiting;  /* transfers in wait[] */
	int unflushed;	   /* the device took requests that it has not handed to the kernel */
	struct queue wait[KVR_CLASSES];
	uint32_t passed[KVR_CLASSES]; /* picks of better classes while this one waited */
	struct queue ended;
};

static void queue_init(struct queue *q)
{
	q->head = NULL;
	q->tail = &q->head;
}

static void queue_push(struct queue *q, struct kvr_xfer *x)
{
	x->next = NULL;
	*q->tail = x;
	q->tail = &x->next;
}

static void queue_push_front(struct queue *q, struct kvr_xfer *x)
{
	x->next = q->head;
	if (!q->head)
		q->tail = &x->next;
	q->head = x;
}

/* Unlinks the transfer that *at points to. */
static struct kvr_xfer *queue_take(struct queue *q, struct kvr_xfer **at)
{
	struct kvr_xfer *x = *at;

	*at = x->next;
	if (!x->next)
		q->tail = at;
	x->next = NULL;
	return x;
}

int kvr_sched_create(struct kvr_io *io, uint64_t max_inflight, uint64_t max_queued,
		     struct kvr_sched **ret_sched)
{
	struct kvr_sched *s;
	unsigned c;

	if (!kvr_is_pow2(io->align) || io->align > REQ_MAX || !io->depth)
		return KVR_FAIL(
			-EINVAL,
			"kvr_sched_create: device %s has alignment %u and depth %u; expected "
			"a power of two up to 1 GiB, and at least 1",
			io->ops->name, io->align, io->depth);
	s = calloc(1, sizeof *s);
	if (!s)
		return KVR_FAIL(-ENOMEM, "kvr_sched_create: no memory for %zu bytes", sizeof *s);
	s->io = io;
	s->max_inflight = max_inflight;
	s->max_queued = max_queued;
	for (c = 0; c < KVR_CLASSES; c++)
		queue_init(&s->wait[c]);
	queue_init(&s->ended);
	*ret_sched = s;
	return 0;
}

void kvr_sched_destroy(struct kvr_sched *s)
{
	free(s);
}

uint64_t kvr_sched_pending(const struct kvr_sched *s)
{
	return s->pending;
}

static const char *op_name(const struct kvr_xfer *x)
{
	return x->op == KVR_IO_READ ? "read" : "write";
}

static int xfer_valid(const struct kvr_io *io, const struct kvr_xfer *x)
{
	uint64_t mask = io->align - 1;

	return (x->op == KVR_IO_READ || x->op == KVR_IO_WRITE) && x->class < KVR_CLASSES &&
	       x->buf && x->len && x->len <= io->bytes && x->off <= io->bytes - x->len &&
	       !(((uintptr_t)x->buf | x->off | x->len) & mask);
}

/* Adds to the queue of its class; what has begun goes on before what has not. */
static void wait_add(struct kvr_sched *s, struct kvr_xfer *x, int front)
{
	if (front)
		queue_push_front(&s->wait[x->class], x);
	else
		queue_push(&s->wait[x->class], x);
	if (x->class == KVR_CLASS_STORE)
		s->queued += x->len - x->done;
	s->waiting++;
}

int kvr_sched_submit(struct kvr_sched *s, struct kvr_xfer *x)
{
	if (!xfer_valid(s->io, x))
		return KVR_FAIL(-EINVAL,
				"kvr_sched_submit: op %u, class %u, buffer %p, offset %" PRIu64
				", %" PRIu64 " bytes; device %s has %" PRIu64
				" bytes and wants all three aligned to %u",
				x->op, x->class, x->buf, x->off, x->len, s->io->ops->name,
				s->io->bytes, s->io->align);
	/* No sentence: a full queue is an everyday answer. A store larger than the bound goes when
	 * it is the only one. */
	if (x->class == KVR_CLASS_STORE && s->queued &&
	    (s->queued > s->max_queued || x->len > s->max_queued - s->queued))
		return -EAGAIN;
	x->result = 0;
	x->tries = 0;
	x->done = 0;
	wait_add(s, x, 0);
	s->pending++;
	return 0;
}

static void end(struct kvr_sched *s, struct kvr_xfer *x, int result)
{
	x->result = result;
	queue_push(&s->ended, x);
}

/* The class whose oldest waiter goes next, or KVR_CLASSES when nothing waits. */
static unsigned pick(const struct kvr_sched *s)
{
	unsigned best = KVR_CLASSES, c;

	for (c = KVR_CLASSES; c-- > 0;)
		if (s->wait[c].head)
			best = c;
	for (c = 0; c < KVR_CLASSES; c++)
		if (s->wait[c].head && s->passed[c] >= PATIENCE)
			return c;
	return best;
}

static void picked(struct kvr_sched *s, unsigned class)
{
	unsigned c;

	s->passed[class] = 0;
	for (c = class + 1; c < KVR_CLASSES; c++)
		if (s->wait[c].head)
			s->passed[c]++;
}

/* 0 when the oldest waiter of this class left the queue. */
static int start(struct kvr_sched *s, unsigned class)
{
	struct kvr_xfer *x = s->wait[class].head;
	uint64_t len = kvr_min(x->len - x->done, REQ_MAX);
	int err;

	/* One that does not fit waits, and all behind it: else small ones would starve it. */
	if (s->inflight && (s->inflight > s->max_inflight || len > s->max_inflight - s->inflight))
		return -EAGAIN;
	x->req = (struct kvr_io_req){
		.buf = (char *)x->buf + x->done,
		.off = x->off + x->done,
		.len = (uint32_t)len,
		.op = x->op,
		.user = x,
	};
	err = s->io->ops->submit(s->io, &x->req);
	if (err == -EAGAIN)
		return err;
	queue_take(&s->wait[class], &s->wait[class].head);
	s->waiting--;
	if (class == KVR_CLASS_STORE)
		s->queued -= x->len - x->done;
	picked(s, class);
	if (err) {
		KVR_FAIL(err, "device %s refused a %s of %" PRIu64 " bytes at %" PRIu64 ": %s",
			 s->io->ops->name, op_name(x), len, x->req.off, kvr_strerror(err));
		end(s, x, err);
		return 0;
	}
	s->inflight += len;
	s->unflushed = 1;
	return 0;
}

/* Gives the device what it may have. 0 or the device's -errno; what it took it keeps. */
static int start_all(struct kvr_sched *s)
{
	unsigned class;
	int err;

	while ((class = pick(s)) < KVR_CLASSES)
		if (start(s, class))
			break;
	if (!s->unflushed)
		return 0;
	err = s->io->ops->flush(s->io);
	if (!err)
		s->unflushed = 0;
	return err;
}

static int again(int err)
{
	return err == -EINTR || err == -EAGAIN || err == -EBUSY || err == -ECANCELED;
}

static void fail(struct kvr_sched *s, struct kvr_xfer *x, int err, const char *why)
{
	KVR_FAIL(err,
		 "device %s: %s of %u bytes at %" PRIu64 " (%" PRIu64 " of %" PRIu64
		 " bytes were done, %u tries): result %d, %s",
		 s->io->ops->name, op_name(x), x->req.len, x->req.off, x->done, x->len,
		 x->tries + 1, x->req.res, why);
	end(s, x, err);
}

/* One request came back: the transfer ends, goes on, or tries again. */
static void complete(struct kvr_sched *s, struct kvr_io_req *req)
{
	struct kvr_xfer *x = req->user;
	uint32_t moved;

	s->inflight -= req->len;
	if (req->res < 0 && !again(req->res)) {
		fail(s, x, req->res, kvr_strerror(req->res));
		return;
	}
	if (req->res == 0) {
		fail(s, x, -EIO, "the device ends early");
		return;
	}
	if (req->res > 0 && (uint32_t)req->res > req->len) {
		fail(s, x, -EIO, "more than was asked: an impossible completion");
		return;
	}
	/* A request must start aligned, so a part of a unit is moved once more. */
	moved = req->res > 0 ? (uint32_t)req->res & ~(s->io->align - 1) : 0;
	if (moved) {
		x->done += moved;
		x->tries = 0;
		if (x->done == x->len)
			end(s, x, 0);
		else
			wait_add(s, x, 1);
		return;
	}
	if (x->tries == KVR_SCHED_RETRIES) {
		fail(s, x, req->res < 0 ? req->res : -EIO, "again and again");
		return;
	}
	/* Behind its class: the device said that it is not ready, so the others go first. */
	x->tries++;
	wait_add(s, x, 0);
}

/* Starts what may go and takes what the device ended. 0 or a failure to reach the kernel. */
static int step(struct kvr_sched *s)
{
	struct kvr_io_req *reqs[REAP_BATCH];
	int err = start_all(s), n, i, any = 0;

	/* Ends: nothing is started in this loop, so each round shrinks what is in flight. */
	while ((n = s->io->ops->reap(s->io, reqs, REAP_BATCH)) > 0) {
		for (i = 0; i < n; i++)
			complete(s, reqs[i]);
		any = 1;
	}
	if (any)
		err = start_all(s);
	return err == -EAGAIN || err == -EBUSY || err == -EINTR ? 0 : err;
}

int kvr_sched_poll(struct kvr_sched *s, struct kvr_xfer **ret_xfers, unsigned max)
{
	int err = step(s);
	unsigned n = 0;

	while (n < max && s->ended.head) {
		ret_xfers[n++] = queue_take(&s->ended, &s->ended.head);
		s->pending--;
	}
	if (!n && err)
		return KVR_FAIL(err,
				"device %s: handing requests to the kernel failed: %s. They stay "
				"with the device and are handed over again at the next poll",
				s->io->ops->name, kvr_strerror(err));
	return (int)n;
}

/* 1 when x was among the ended; others stay for poll(). */
static int take_ended(struct kvr_sched *s, const struct kvr_xfer *x)
{
	struct kvr_xfer **at;

	for (at = &s->ended.head; *at; at = &(*at)->next) {
		if (*at == x) {
			queue_take(&s->ended, at);
			s->pending--;
			return 1;
		}
	}
	return 0;
}

int kvr_sched_transfer(struct kvr_sched *s, struct kvr_xfer *x, uint64_t deadline_ns)
{
	struct pollfd p = { .fd = s->io->ops->fd(s->io), .events = POLLIN };
	int err = kvr_sched_submit(s, x);
	uint64_t now, left;
	struct timespec t;

	if (err)
		return err;
	for (;;) {
		err = step(s);
		if (take_ended(s, x))
			return x->result;
		now = kvr_now();
		if (now >= deadline_ns)
			return KVR_FAIL(-ETIMEDOUT,
					"device %s: a %s of %" PRIu64 " bytes at %" PRIu64
					" did not end before the deadline (%" PRIu64
					" bytes done, %u tries, last flush: %s); its buffer stays "
					"with the device",
					s->io->ops->name, op_name(x), x->len, x->off, x->done,
					x->tries, err ? kvr_strerror(err) : "ok");
		left = deadline_ns - now;
		/* The descriptor only tells of requests that reached the kernel. */
		if (s->waiting || s->unflushed)
			left = kvr_min(left, KVR_MS);
		t = kvr_timespec(left);
		p.revents = 0;
		ppoll(&p, 1, &t, NULL); /* a signal or an error only makes this round short */
	}
}
