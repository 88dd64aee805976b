/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sleeping on more than the doorbell, for the watcher: the kernel wakes who sleeps on a robust
 * futex word when its holder dies. It wakes one sleeper of each word; that one wakes the others.
 *
 * Not for threads that may run signal handlers: futex_waitv() is restarted after a handler with
 * SA_RESTART, where futex_wait() returns EINTR, and the wait's caller would not get to know.
 */
#ifndef KVR_WAIT_WATCH_H
#define KVR_WAIT_WATCH_H

#include "kvring/wait.h"

#define KVR_WATCH_MAX 64u

/*
 * A sleep of this waiter shall also end when one of these words is woken. Up to KVR_WATCH_MAX; the
 * array and the words, which may be mapped read-only, must outlive the waiter. Where the kernel has
 * no futex_waitv() (before Linux 5.16, some sandboxes), nothing of it happens.
 */
void kvr_waiter_watch(struct kvr_waiter *w, const uint32_t *const *words, uint32_t count);

#endif
