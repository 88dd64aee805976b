/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The I/O table on threads that call pread() and pwrite().
 *
 * A request goes: taken (by submit, the caller's thread alone) -> todo (by flush) -> a thread ->
 * done -> reap. One lock guards todo, done and the end; system calls are made without it. The
 * eventfd is readable exactly while `done` holds something.
 *
 * A thread that hangs in the kernel cannot be ended. close() then leaves it and what it uses
 * behind; the last thread to come back frees it, and closes the file and with it the I/O lock.
 */
#include "pread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "err.h"
#include "fork.h"
#include "util.h"

#define THREADS_MOST 256u
#define DEPTH_MOST 32768u

struct list {
	struct kvr_io_req *head, *tail;
};

struct pool {
	struct kvr_io io; /* first: the table's functions get a pointer to it */
	int fd;
	int event_fd;
	pid_t pid;
	struct list taken;
	pthread_mutex_t lock;
	pthread_cond_t work; /* todo is not empty, or stop */
	struct list todo, done;
	int stop;
	int abandoned;	  /* close() gave up: start nothing more, the last thread frees */
	uint32_t threads; /* that run */
	pthread_t thread[];
};

/* Moves a chain of requests to the end of a list. */
static void append(struct list *to, struct kvr_io_req *first, struct kvr_io_req *last)
{
	last->next = NULL;
	if (to->head)
		to->tail->next = first;
	else
		to->head = first;
	to->tail = last;
}

static struct kvr_io_req *pop(struct list *from)
{
	struct kvr_io_req *req = from->head;

	if (req)
		from->head = req->next;
	return req;
}

static void destroy(struct pool *p)
{
	kvr_fork_unguard(p->fd);
	close(p->event_fd);
	close(p->fd);
	pthread_cond_destroy(&p->work);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

static int32_t transfer(int fd, const struct kvr_io_req *req)
{
	ssize_t n;

	if (req->op == KVR_IO_READ)
		n = pread(fd, req->buf, req->len, (off_t)req->off);
	else
		n = pwrite(fd, req->buf, req->len, (off_t)req->off);
	return n < 0 ? -errno : (int32_t)n; /* Linux moves less than 2 GiB at once */
}

static void *serve(void *arg)
{
	struct pool *p = arg;
	struct kvr_io_req *req;
	int last;

	pthread_mutex_lock(&p->lock);
	for (;;) {
		while (!p->todo.head && !p->stop)
			pthread_cond_wait(&p->work, &p->lock);
		if (p->abandoned)
			break;
		req = pop(&p->todo);
		if (!req)
			break;
		pthread_mutex_unlock(&p->lock);
		req->res = transfer(p->fd, req);
		pthread_mutex_lock(&p->lock);
		if (!p->done.head)
			eventfd_write(p->event_fd, 1);
		append(&p->done, req, req);
	}
	last = !--p->threads && p->abandoned;
	pthread_mutex_unlock(&p->lock);
	if (last)
		destroy(p);
	return NULL;
}

static int pread_submit(struct kvr_io *io, struct kvr_io_req *req)
{
	struct pool *p = (struct pool *)io;

	if (io->inflight >= io->depth)
		return -EAGAIN;
	/* A write beyond the end would make the file longer. */
	if (req->op > KVR_IO_WRITE || req->off > INT64_MAX ||
	    (req->op == KVR_IO_WRITE && (req->off > io->bytes || req->len > io->bytes - req->off)))
		return -EINVAL;
	append(&p->taken, req, req);
	io->inflight++;
	return 0;
}

static int pread_flush(struct kvr_io *io)
{
	struct pool *p = (struct pool *)io;
	int many;

	if (!p->taken.head)
		return 0;
	many = p->taken.head != p->taken.tail;
	pthread_mutex_lock(&p->lock);
	append(&p->todo, p->taken.head, p->taken.tail);
	pthread_mutex_unlock(&p->lock);
	p->taken.head = NULL;
	if (many)
		pthread_cond_broadcast(&p->work);
	else
		pthread_cond_signal(&p->work);
	return 0;
}

static int pread_reap(struct kvr_io *io, struct kvr_io_req **ret_reqs, unsigned max)
{
	struct pool *p = (struct pool *)io;
	eventfd_t count;
	unsigned n = 0;

	pthread_mutex_lock(&p->lock);
	while (n < max && p->done.head)
		ret_reqs[n++] = pop(&p->done);
	if (n && !p->done.head)
		eventfd_read(p->event_fd, &count);
	pthread_mutex_unlock(&p->lock);
	io->inflight -= n;
	return (int)n;
}

static int pread_fd(struct kvr_io *io)
{
	return ((struct pool *)io)->event_fd;
}

static int pread_sync(struct kvr_io *io)
{
	struct pool *p = (struct pool *)io;
	int ret;

	do
		ret = fdatasync(p->fd);
	while (ret && errno == EINTR);
	return ret ? KVR_FAIL(-errno, "kvr_pread: fdatasync failed: %s", kvr_strerror(errno)) : 0;
}

static void drain(struct pool *p, uint64_t deadline_ns)
{
	struct kvr_io_req *reqs[64];
	struct pollfd at = { .fd = p->event_fd, .events = POLLIN };
	struct timespec left;
	uint64_t now;

	pread_flush(&p->io);
	while (p->io.inflight) {
		if (pread_reap(&p->io, reqs, KVR_ARRAY_LEN(reqs)))
			continue;
		now = kvr_now();
		if (now >= deadline_ns)
			break;
		left = kvr_timespec(deadline_ns - now);
		ppoll(&at, 1, &left, NULL);
	}
}

/* Ends the first `n` threads, none of which is in a system call. */
static void join(struct pool *p, uint32_t n)
{
	uint32_t i;

	pthread_mutex_lock(&p->lock);
	p->stop = 1;
	pthread_cond_broadcast(&p->work);
	pthread_mutex_unlock(&p->lock);
	for (i = 0; i < n; i++)
		pthread_join(p->thread[i], NULL);
}

/* From the unlock on, p belongs to its threads. */
static void abandon(struct pool *p)
{
	uint32_t i;

	pthread_mutex_lock(&p->lock);
	p->stop = 1;
	p->abandoned = 1;
	for (i = p->threads; i > 0; i--)
		pthread_detach(p->thread[i - 1]);
	pthread_cond_broadcast(&p->work);
	pthread_mutex_unlock(&p->lock);
}

static int pread_close(struct kvr_io *io, uint64_t deadline_ns)
{
	struct pool *p = (struct pool *)io;
	struct flock unlock = { .l_type = F_UNLCK, .l_whence = SEEK_SET };
	int leaked;

	/* A forked child: the file was closed when it forked, the threads are not here, and the
	 * mutex may have been held. Hands off. */
	if (p->pid != getpid())
		return 0;
	drain(p, deadline_ns);
	leaked = (int)io->inflight;
	if (leaked) {
		abandon(p);
		return kvr_fail(
			leaked, /* a count, not an error: no KVR_FAIL */
			"kvr_pread: %d requests did not end before the deadline: the device "
			"hangs. Their memory must never be used again; the I/O lock stays held "
			"until they end",
			leaked);
	}
	join(p, p->threads);
	fcntl(p->fd, F_OFD_SETLK, &unlock); /* a forked child's copy of fd must not keep it */
	destroy(p);
	return 0;
}

static const struct kvr_io_ops pread_ops = {
	.name = "pread",
	.submit = pread_submit,
	.flush = pread_flush,
	.reap = pread_reap,
	.fd = pread_fd,
	.sync = pread_sync,
	.close = pread_close,
};

static int start(struct pool *p, uint32_t threads)
{
	sigset_t all, old;
	uint32_t n = 0;
	int error = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	p->threads = threads; /* before any of them runs */
	while (n < threads && !error) {
		error = pthread_create(&p->thread[n], NULL, serve, p);
		if (!error)
			pthread_setname_np(p->thread[n++], "kvr-pread");
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!error)
		return 0;
	join(p, n);
	return KVR_FAIL(-error,
			"kvr_pread_open: thread %u of %u could not be started: %s. Raise the "
			"limit of tasks, or ask for fewer threads",
			n + 1, threads, kvr_strerror(error));
}

int kvr_pread_open(int fd, uint64_t bytes, uint32_t align, uint32_t depth, uint32_t threads,
		   struct kvr_io **ret_io)
{
	struct pool *p;
	int err;

	if (fd < 0 || !kvr_is_pow2(align) || !depth || depth > DEPTH_MOST || !threads ||
	    threads > THREADS_MOST)
		return KVR_FAIL(-EINVAL,
				"kvr_pread_open: descriptor %d, alignment %u, depth %u (1 to %u) "
				"or %u threads (1 to %u) is out of range",
				fd, align, depth, DEPTH_MOST, threads, THREADS_MOST);
	p = calloc(1, sizeof(*p) + threads * sizeof(p->thread[0]));
	if (!p)
		return KVR_FAIL(-ENOMEM, "kvr_pread_open: no memory for %u threads", threads);
	p->io = (struct kvr_io){
		.ops = &pread_ops, .bytes = bytes, .align = align, .depth = depth
	};
	snprintf(
		p->io.degraded, sizeof(p->io.degraded),
		"%u threads with pread and pwrite stand in for io_uring: at most as many transfers run "
		"at once, and each costs two thread switches",
		threads);
	p->fd = fd;
	p->pid = getpid();
	p->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (p->event_fd < 0) {
		err = KVR_FAIL(-errno, "kvr_pread_open: eventfd failed: %s", kvr_strerror(errno));
		free(p);
		return err;
	}
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->work, NULL);
	err = start(p, threads);
	if (err) {
		p->fd = -1; /* stays the caller's */
		destroy(p);
		return err;
	}
	*ret_io = &p->io;
	return 0;
}
