/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watcher: the thread that holds a process's liveness word, and that feeds an eventfd for
 * programs that sleep in epoll. It is the only thread that the ring half starts. It blocks all
 * signals, so that no handler of the program ever runs on it. It sleeps on the liveness words of
 * those whom the process may wait for, and rings the process's own bell when one of them dies;
 * else, without an eventfd, it sleeps from start to stop.
 */
#ifndef KVR_GROUP_WATCHER_H
#define KVR_GROUP_WATCHER_H

#include <stdint.h>

#include "kvring/wait.h"

struct kvr_watcher;

/*
 * Starts the thread and returns once it holds `life`. With event_fd > 0 (copied), it is written
 * after every ring of `bell`. The death of an owner of one of the `count` words in `peers` (which
 * must outlive the watcher) rings the bell. -EBUSY,
 * -EOWNERDEAD as kvr_life_hold(); -EINVAL on a bad eventfd; -EAGAIN when no thread is to be had.
 */
int kvr_watcher_start(uint32_t *life, struct kvr_bell *bell, const uint32_t *const *peers,
		      uint32_t count, int event_fd, struct kvr_watcher **ret);
/* How many of the peers are dead, as far as the watcher was told. By any thread. */
uint32_t kvr_watcher_deaths(const struct kvr_watcher *w);
/* Lets go of the word, ends the thread, frees. NULL is fine. */
void kvr_watcher_stop(struct kvr_watcher *w);
/* In a forked child, where the thread does not exist: frees only. */
void kvr_watcher_forget(struct kvr_watcher *w);

#endif
