/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The eventfd: a ring costs the ringer a system call only when `parked` was 1, and says nothing
 * when it was 0. So the watcher arms the bell again *before* it writes the eventfd: what was
 * published before that is seen by whoever handles this event, what comes later rings again.
 */
#include "group_watcher.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "atomic.h"
#include "err.h"
#include "life.h"
#include "wait_watch.h"

#define STACK_BYTES (256u << 10)

struct kvr_watcher {
	uint32_t *life;
	struct kvr_bell own;
	struct kvr_bell *bell;
	const uint32_t *const *peers;
	uint32_t count;
	uint32_t dead; /* of these */
	struct kvr_waiter waiter;
	int event_fd;
	uint32_t seq; /* of the bell, when it was last looked at */
	pthread_t thread;
	pthread_mutex_t mutex; /* of what follows */
	pthread_cond_t cond;
	int started; /* 1: `result` is there */
	int result;
	char why[512]; /* the sentence of a failure: it is per thread */
	int stop;
};

static int stopping(struct kvr_watcher *w)
{
	int stop;

	pthread_mutex_lock(&w->mutex);
	stop = w->stop;
	pthread_mutex_unlock(&w->mutex);
	return stop;
}

/* Somebody died: whoever of this process sleeps on the bell has to look at the liveness words. */
static void look_at_peers(struct kvr_watcher *w)
{
	uint32_t dead = 0;
	int event;

	for (uint32_t i = 0; i < w->count; i++)
		dead += kvr_life_peek(w->peers[i]) == KVR_LIFE_DEAD;
	/* Stored first: the bell's exchange publishes it. */
	event = dead > kvr_load_relaxed32(&w->dead);
	kvr_store_relaxed32(&w->dead, dead);
	if (event)
		kvr_bell_ring(w->bell);
}

uint32_t kvr_watcher_deaths(const struct kvr_watcher *w)
{
	return kvr_load_relaxed32(&w->dead);
}

static int died(void *arg)
{
	struct kvr_watcher *w = arg;

	look_at_peers(w);
	/* Without futex_waitv() nobody wakes us for a death. */
	if (!w->waiter.watches)
		w->waiter.backstop_ns = KVR_BACKSTOP_NS;
	return stopping(w);
}

static int rung(void *arg)
{
	struct kvr_watcher *w = arg;
	uint32_t seq = kvr_load_relaxed32(&w->bell->seq);
	/* E1, pairs with E1: to the ringer this is B2 of wait.h, and B1 there its partner. */
	int event = !kvr_xchg_acq_rel32(&w->bell->parked, 1) || seq != w->seq;
	uint64_t one = 1;

	w->seq = seq;
	/* A full counter is readable already; a closed one is the caller's to notice. */
	if (event && write(w->event_fd, &one, sizeof one) < 0)
		(void)errno;
	look_at_peers(w);
	return stopping(w);
}

/* With an eventfd it sleeps on the process's bell, else on one of its own, which only stops it. */
static void feed(struct kvr_watcher *w)
{
	int (*ready)(void *) = w->event_fd > 0 ? rung : died;

	kvr_waiter_init(&w->waiter, w->event_fd > 0 ? w->bell : &w->own);
	kvr_waiter_watch(&w->waiter, w->peers, w->count);
	if (w->event_fd <= 0)
		w->waiter.backstop_ns = UINT64_MAX / 4; /* who waits for something has its own */
	while (!stopping(w))
		kvr_wait(&w->waiter, ready, w, UINT64_MAX / 2);
}

/* Tells kvr_watcher_start() how it went. */
static void report(struct kvr_watcher *w, int result)
{
	pthread_mutex_lock(&w->mutex);
	w->result = result;
	w->started = 1;
	if (result)
		snprintf(w->why, sizeof w->why, "%s", kvr_explain());
	pthread_cond_broadcast(&w->cond);
	pthread_mutex_unlock(&w->mutex);
}

static void *watch(void *arg)
{
	struct kvr_watcher *w = arg;
	int err = kvr_life_hold(w->life);

	pthread_setname_np(pthread_self(), "kvr-watcher");
	report(w, err);
	if (err)
		return NULL;
	feed(w);
	kvr_life_drop(w->life);
	return NULL;
}

/* The thread inherits a full mask: there is no moment in which it could run a handler. */
static int start_thread(struct kvr_watcher *w)
{
	sigset_t all, before;
	pthread_attr_t attr;
	int err = pthread_attr_init(&attr);

	if (err)
		return err;
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(&w->thread, &attr, watch, w);
	/* The program's thread-local data, which lie on the stack, need more. */
	if (err == EINVAL)
		err = pthread_create(&w->thread, NULL, watch, w);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return err;
}

static int await_start(struct kvr_watcher *w)
{
	pthread_mutex_lock(&w->mutex);
	while (!w->started)
		pthread_cond_wait(&w->cond, &w->mutex);
	pthread_mutex_unlock(&w->mutex);
	return w->result;
}

void kvr_watcher_forget(struct kvr_watcher *w)
{
	if (!w)
		return;
	if (w->event_fd > 0)
		close(w->event_fd);
	free(w);
}

int kvr_watcher_start(uint32_t *life, struct kvr_bell *bell, const uint32_t *const *peers,
		      uint32_t count, int event_fd, struct kvr_watcher **ret)
{
	struct kvr_watcher *w = calloc(1, sizeof *w);
	int err;

	if (!w)
		return KVR_FAIL(-ENOMEM, "no memory for the watcher");
	w->life = life;
	w->bell = bell;
	w->peers = peers;
	w->count = count;
	/*
	 * So that the first look always writes: a ring before it may have met nobody parked, and
	 * another waiter of this bell may have parked since, so nothing in the bell tells of it.
	 */
	w->seq = kvr_load_relaxed32(&bell->seq) - 1;
	pthread_mutex_init(&w->mutex, NULL);
	pthread_cond_init(&w->cond, NULL);
	if (event_fd > 0) {
		/* A copy: the caller may close its own, and the number may become another file. */
		w->event_fd = fcntl(event_fd, F_DUPFD_CLOEXEC, 3);
		if (w->event_fd < 0) {
			err = KVR_FAIL(-EINVAL, "event_fd %d: %s", event_fd, kvr_strerror(errno));
			kvr_watcher_forget(w);
			return err;
		}
	}
	err = start_thread(w);
	if (err) {
		kvr_watcher_forget(w);
		return KVR_FAIL(-err, "cannot start the watcher thread: %s", kvr_strerror(err));
	}
	err = await_start(w);
	if (err) {
		pthread_join(w->thread, NULL);
		kvr_fail(err, "%s", w->why);
		kvr_watcher_forget(w);
		return err;
	}
	*ret = w;
	return 0;
}

void kvr_watcher_stop(struct kvr_watcher *w)
{
	if (!w)
		return;
	pthread_mutex_lock(&w->mutex);
	w->stop = 1;
	pthread_cond_broadcast(&w->cond);
	pthread_mutex_unlock(&w->mutex);
	kvr_bell_ring(w->event_fd > 0 ? w->bell : &w->own);
	pthread_join(w->thread, NULL);
	pthread_mutex_destroy(&w->mutex);
	pthread_cond_destroy(&w->cond);
	kvr_watcher_forget(w);
}
