/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The I/O table on io_uring.
 *
 * Whose ring it is. With SINGLE_ISSUER only one thread may enter the kernel for a ring. Stores are
 * opened by one thread and driven by another, so the ring is made disabled: files, buffers and
 * eventfd are registered meanwhile, which any thread may do as long as there is no issuer, and the
 * first flush() enables it, which makes its thread the issuer.
 *
 * What to sleep on. Polling the descriptor of a ring with DEFER_TASKRUN is no use: completions wait
 * as task work and, from Linux 6.3 on, do not wake pollers of the ring (on 6.18 poll() sleeps until
 * its timeout). A registered eventfd is signalled when task work arrives, with every set of flags.
 * It is read, and so made unreadable, only by a reap() that found nothing: a busy caller pays for
 * no system call here.
 *
 * When it is quiet. Each request in flight holds the file's open description, and so its I/O lock.
 * close() gives the lock up only when nothing is in flight; otherwise the kernel does, later.
 */
#include "uring.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "err.h"
#include "fork.h"
#include "util.h"

#define SQ_MOST 256u	   /* more at once gains nothing; older kernels count it as locked memory */
#define DEPTH_MOST 32768u  /* the kernel's limit of entries */
#define CHUNK (1ull << 30) /* the kernel's limit of one registered buffer */
#define CHUNKS_MOST 16384u /* and of their number */
#define INTERRUPTS_MOST 16 /* submissions in a row that a signal may interrupt */
#define IDLE_MOST 64	   /* reaps of nothing before the eventfd is looked at all the same */

struct uring {
	struct kvr_io io; /* first: the table's functions get a pointer to it */
	struct io_uring ring;
	int fd;
	int event_fd;
	pid_t pid;
	uint32_t idle; /* reaps in a row that found nothing */
	uint8_t *pool; /* NULL: no buffers are registered */
	uint64_t pool_bytes;
	uint8_t disabled; /* not enabled yet: no thread is the issuer */
	uint8_t fixed_file;
	uint8_t stuck;	   /* the kernel had no room; reap() tries again */
	uint8_t signalled; /* the eventfd may be readable */
};

/* What the kernel may offer, best first. A kernel without one of these says EINVAL. */
static const uint32_t ladder[] = {
	/* 6.1 */
	IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
		IORING_SETUP_SUBMIT_ALL | IORING_SETUP_R_DISABLED,
	/* 6.0 */
	IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
		IORING_SETUP_SUBMIT_ALL | IORING_SETUP_R_DISABLED,
	/* 5.19 */
	IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL,
	0,
};

static void signal_event(struct uring *u)
{
	u->signalled = 1;
	eventfd_write(u->event_fd, 1);
}

/* liburing 2.3 declares io_uring_enable_rings() but does not export it. */
static int enable(struct uring *u)
{
	if (syscall(SYS_io_uring_register, u->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0))
		return KVR_FAIL(-errno, "kvr_uring: enabling the ring failed: %s",
				kvr_strerror(errno));
	u->disabled = 0;
	return 0;
}

static int uring_flush(struct kvr_io *io)
{
	struct uring *u = (struct uring *)io;
	int interrupts = 0;
	int n;

	if (u->disabled && io_uring_sq_ready(&u->ring)) {
		n = enable(u);
		if (n)
			return n;
	}
	u->stuck = 0;
	while (io_uring_sq_ready(&u->ring)) {
		n = io_uring_submit(&u->ring);
		if (n > 0 || (n == -EINTR && interrupts++ < INTERRUPTS_MOST))
			continue;
		if (n == -EEXIST)
			return KVR_FAIL(
				n, "kvr_uring: this thread is not the one that submitted first. "
				   "Drive a device from one thread");
		if (n != 0 && n != -EAGAIN && n != -EBUSY && n != -EINTR)
			return KVR_FAIL(n, "kvr_uring: io_uring_enter failed: %s", kvr_strerror(n));
		/* No memory for requests just now. They stay queued; reap() is made to come back.
		 */
		u->stuck = 1;
		signal_event(u);
		return n ? n : -EAGAIN;
	}
	return 0;
}

/* Index of the registered buffer that holds all of [buf, buf + len), or -1. */
static int chunk_of(const struct uring *u, const void *buf, uint32_t len)
{
	uint64_t at = (uint64_t)(uintptr_t)buf - (uint64_t)(uintptr_t)u->pool;

	if (!u->pool || !len || at >= u->pool_bytes || len > u->pool_bytes - at ||
	    at / CHUNK != (at + len - 1) / CHUNK)
		return -1;
	return (int)(at / CHUNK);
}

static void prepare(const struct uring *u, struct io_uring_sqe *sqe, struct kvr_io_req *req)
{
	int chunk = chunk_of(u, req->buf, req->len);
	int fd = u->fixed_file ? 0 : u->fd;

	if (req->op == KVR_IO_READ && chunk >= 0)
		io_uring_prep_read_fixed(sqe, fd, req->buf, req->len, req->off, chunk);
	else if (req->op == KVR_IO_READ)
		io_uring_prep_read(sqe, fd, req->buf, req->len, req->off);
	else if (chunk >= 0)
		io_uring_prep_write_fixed(sqe, fd, req->buf, req->len, req->off, chunk);
	else
		io_uring_prep_write(sqe, fd, req->buf, req->len, req->off);
	if (u->fixed_file)
		sqe->flags |= IOSQE_FIXED_FILE;
	io_uring_sqe_set_data(sqe, req);
}

static int uring_submit(struct kvr_io *io, struct kvr_io_req *req)
{
	struct uring *u = (struct uring *)io;
	struct io_uring_sqe *sqe;

	if (io->inflight >= io->depth)
		return -EAGAIN;
	/* A write beyond the end would make the file longer; an offset of -1 means "where it
	 * stands". */
	if (req->op > KVR_IO_WRITE || req->off > INT64_MAX ||
	    (req->op == KVR_IO_WRITE && (req->off > io->bytes || req->len > io->bytes - req->off)))
		return -EINVAL;
	sqe = io_uring_get_sqe(&u->ring);
	if (!sqe) {
		uring_flush(io);
		sqe = io_uring_get_sqe(&u->ring);
		if (!sqe)
			return -EAGAIN;
	}
	prepare(u, sqe, req);
	io->inflight++;
	return 0;
}

/* Enters the kernel only when it says that task work waits. */
static unsigned take(struct uring *u, struct kvr_io_req **reqs, unsigned max)
{
	struct io_uring_cqe *cqes[64];
	unsigned n = 0;
	unsigned i, got;

	while (n < max) {
		got = io_uring_peek_batch_cqe(&u->ring, cqes,
					      (unsigned)kvr_min(KVR_ARRAY_LEN(cqes), max - n));
		if (!got)
			break;
		for (i = 0; i < got; i++) {
			struct kvr_io_req *req = io_uring_cqe_get_data(cqes[i]);

			req->res = cqes[i]->res;
			reqs[n++] = req;
		}
		io_uring_cq_advance(&u->ring, got);
	}
	u->io.inflight -= n;
	return n;
}

static int uring_reap(struct kvr_io *io, struct kvr_io_req **ret_reqs, unsigned max)
{
	struct uring *u = (struct uring *)io;
	unsigned n;
	eventfd_t count;

	if (u->stuck)
		uring_flush(io);
	n = take(u, ret_reqs, max);
	if (n) {
		u->signalled = 1;
		u->idle = 0;
		return (int)n;
	}
	if (u->stuck || (!u->signalled && ++u->idle < IDLE_MOST))
		return 0;
	/* Read first, then look again: what ends in between has signalled before or is seen now. */
	eventfd_read(u->event_fd, &count);
	u->signalled = 0;
	u->idle = 0;
	n = take(u, ret_reqs, max);
	if (n)
		signal_event(u); /* more may be left, and its signal was just read */
	return (int)n;
}

static int uring_fd(struct kvr_io *io)
{
	return ((struct uring *)io)->event_fd;
}

static int uring_sync(struct kvr_io *io)
{
	struct uring *u = (struct uring *)io;
	int ret;

	do
		ret = fdatasync(u->fd);
	while (ret && errno == EINTR);
	return ret ? KVR_FAIL(-errno, "kvr_uring: fdatasync failed: %s", kvr_strerror(errno)) : 0;
}

static void drain(struct uring *u, uint64_t deadline_ns)
{
	struct kvr_io_req *reqs[64];
	struct pollfd p = { .fd = u->event_fd, .events = POLLIN };
	struct timespec left;
	uint64_t now;

	uring_flush(&u->io);
	while (u->io.inflight) {
		if (uring_reap(&u->io, reqs, KVR_ARRAY_LEN(reqs)))
			continue;
		now = kvr_now();
		if (now >= deadline_ns)
			break;
		left = kvr_timespec(deadline_ns - now);
		ppoll(&p, 1, &left, NULL);
	}
}

static int uring_close(struct kvr_io *io, uint64_t deadline_ns)
{
	struct uring *u = (struct uring *)io;
	struct flock unlock = { .l_type = F_UNLCK, .l_whence = SEEK_SET };
	int leaked = 0;

	/* A forked child: the ring and the file were closed when it forked, the rest is a copy of
	 * its parent's memory. Hands off. */
	if (u->pid != getpid())
		return 0;
	drain(u, deadline_ns);
	leaked = (int)io->inflight;
	if (leaked) {
		kvr_fail(leaked, /* a count, not an error: no KVR_FAIL */
			 "kvr_uring: %d requests did not end before the deadline: the device "
			 "hangs. Their memory must never be used again; the I/O lock stays held "
			 "until they end",
			 leaked);
	} else {
		/* The ring's own end is asynchronous: who opens file and pool next must find
		 * neither a device in use nor memory still counted as locked. */
		if (u->fixed_file)
			io_uring_unregister_files(&u->ring);
		if (u->pool)
			io_uring_unregister_buffers(&u->ring);
		fcntl(u->fd, F_OFD_SETLK, &unlock);
	}
	kvr_fork_unguard(u->ring.ring_fd);
	kvr_fork_unguard(u->fd);
	io_uring_queue_exit(&u->ring);
	close(u->event_fd);
	close(u->fd);
	free(u);
	return leaked;
}

static const struct kvr_io_ops uring_ops = {
	.name = "io_uring",
	.submit = uring_submit,
	.flush = uring_flush,
	.reap = uring_reap,
	.fd = uring_fd,
	.sync = uring_sync,
	.close = uring_close,
};

static int fail_setup(int err, uint32_t depth)
{
	switch (err) {
	case -EPERM:
	case -EACCES:
		return KVR_FAIL(
			err, "kvr_uring_open: io_uring is forbidden here: by a seccomp profile "
			     "(the default of containers) or by sysctl kernel.io_uring_disabled. "
			     "Allow io_uring_setup, io_uring_enter and io_uring_register");
	case -ENOSYS:
		return KVR_FAIL(
			err, "kvr_uring_open: this kernel has no io_uring that can be used: Linux "
			     "5.6 or newer built with CONFIG_IO_URING is needed");
	case -ENOMEM:
		return KVR_FAIL(
			err,
			"kvr_uring_open: no memory for an io_uring of %u requests. Raise the limit of "
			"locked memory (ulimit -l, LimitMEMLOCK), or ask for a smaller depth",
			depth);
	default:
		return KVR_FAIL(err, "kvr_uring_open: io_uring_setup failed: %s",
				kvr_strerror(err));
	}
}

static int make_ring(struct uring *u, uint32_t depth)
{
	unsigned entries = (unsigned)kvr_min(depth, SQ_MOST);
	int err = -EINVAL;
	size_t i;

	for (i = 0; i < KVR_ARRAY_LEN(ladder) && err == -EINVAL; i++) {
		struct io_uring_params p = { .flags = ladder[i] | IORING_SETUP_CQSIZE,
					     .cq_entries = depth };

		err = io_uring_queue_init_params(entries, &u->ring, &p);
		if (err)
			continue;
		u->disabled = !!(p.flags & IORING_SETUP_R_DISABLED);
		/* 5.6: the first with IORING_OP_READ and IORING_OP_WRITE. */
		if (!(p.features & IORING_FEAT_RW_CUR_POS)) {
			io_uring_queue_exit(&u->ring);
			err = -ENOSYS;
		}
	}
	return err ? fail_setup(err, depth) : 0;
}

/* Not fatal: without, each request looks up the pages that it moves. */
static void register_pool(struct uring *u, uint8_t *pool, uint64_t bytes)
{
	unsigned n = (unsigned)((bytes + CHUNK - 1) / CHUNK);
	struct rlimit lock = { .rlim_cur = RLIM_INFINITY };
	struct iovec *vecs;
	char limit[32] = "unlimited";
	unsigned i;
	int err = -E2BIG;

	if (bytes / CHUNK < CHUNKS_MOST) {
		vecs = calloc(n, sizeof(*vecs));
		err = -ENOMEM;
		for (i = 0; vecs && i < n; i++) {
			vecs[i].iov_base = pool + i * CHUNK;
			vecs[i].iov_len = (size_t)kvr_min(CHUNK, bytes - i * CHUNK);
		}
		if (vecs)
			err = io_uring_register_buffers(&u->ring, vecs, n);
		free(vecs);
	}
	if (!err) {
		u->pool = pool;
		u->pool_bytes = bytes;
		return;
	}
	getrlimit(RLIMIT_MEMLOCK, &lock);
	if (lock.rlim_cur != RLIM_INFINITY)
		snprintf(limit, sizeof(limit), "%llu", (unsigned long long)lock.rlim_cur);
	snprintf(
		u->io.degraded, sizeof(u->io.degraded),
		"pool not registered with io_uring (%s): it needs %llu bytes of locked memory, the limit "
		"is %s; each transfer pins its pages anew",
		kvr_strerror(err), (unsigned long long)bytes, limit);
}

int kvr_uring_open(int fd, uint64_t bytes, uint32_t align, uint32_t depth, void *pool,
		   uint64_t pool_bytes, struct kvr_io **ret_io)
{
	struct uring *u;
	int err;

	if (fd < 0 || !kvr_is_pow2(align) || !depth || depth > DEPTH_MOST)
		return KVR_FAIL(-EINVAL,
				"kvr_uring_open: descriptor %d, alignment %u or depth %u (1 to %u) "
				"is out of range",
				fd, align, depth, DEPTH_MOST);
	u = calloc(1, sizeof(*u));
	if (!u)
		return KVR_FAIL(-ENOMEM, "kvr_uring_open: no memory for %zu bytes", sizeof(*u));
	u->io = (struct kvr_io){
		.ops = &uring_ops, .bytes = bytes, .align = align, .depth = depth
	};
	u->fd = fd;
	u->pid = getpid();
	u->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (u->event_fd < 0) {
		err = KVR_FAIL(-errno, "kvr_uring_open: eventfd failed: %s", kvr_strerror(errno));
		goto no_event;
	}
	err = make_ring(u, depth);
	if (err)
		goto no_ring;
	err = io_uring_register_eventfd(&u->ring, u->event_fd);
	if (err) {
		KVR_FAIL(err, "kvr_uring_open: registering an eventfd failed: %s",
			 kvr_strerror(err));
		goto no_register;
	}
	/* A child's copy of the mapping would keep the ring, its file and so the I/O lock. */
	err = io_uring_ring_dontfork(&u->ring);
	if (err) {
		KVR_FAIL(err, "kvr_uring_open: madvise(MADV_DONTFORK) failed: %s",
			 kvr_strerror(err));
		goto no_register;
	}
	u->fixed_file = !io_uring_register_files(&u->ring, &fd, 1);
	if (pool && pool_bytes)
		register_pool(u, pool, pool_bytes);
	kvr_fork_guard(u->ring.ring_fd);
	*ret_io = &u->io;
	return 0;

no_register:
	io_uring_queue_exit(&u->ring);
no_ring:
	close(u->event_fd);
no_event:
	free(u);
	return err;
}
