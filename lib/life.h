/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The liveness word: how a peer learns that a process is dying within a millisecond of kill -9,
 * whatever its size.
 *
 * A thread of the process (the watcher) writes its tid into a futex word in the process's own page
 * and puts the word on its robust list. When the process dies, for whatever reason, the kernel sets
 * FUTEX_OWNER_DIED in it *before* it tears down memory, which at 8 GiB takes most of a second. It
 * works across pid namespaces (the dying thread compares its own tid) and is not inherited by a
 * forked child. The list entry lies in private memory: only the word is shared.
 *
 *   word = 0            nobody, or left in good order
 *   word = tid          alive (with FUTEX_WAITERS, so that the kernel wakes who watches the word)
 *   word & OWNER_DIED   died
 *
 * L1 holder: compare-and-swap of the word, release    L2 peer: load-acquire of the word
 *   without it: a peer sees a leader's live word beside an identity (pid, start time) not yet
 *   written. (A rank writes its own afterwards: its page is its own only then.)
 */
#ifndef KVR_LIFE_H
#define KVR_LIFE_H

#include <stdint.h>

enum kvr_life_state { KVR_LIFE_NONE, KVR_LIFE_ALIVE, KVR_LIFE_DEAD };

/*
 * Takes the word for the calling thread, which must stay until kvr_life_drop(): the thread's robust
 * list is replaced, so it may not use robust mutexes. 0; -EBUSY when somebody holds it; -EOWNERDEAD
 * when somebody who died held it (a word is taken once).
 */
int kvr_life_hold(uint32_t *word);
/* Writes 0. By the thread that holds it. */
void kvr_life_drop(uint32_t *word);

/* State of a copy of a word (from a mapping or a file). */
enum kvr_life_state kvr_life_of(uint32_t word);
/* Loads a peer's word, which may be mapped read-only. */
enum kvr_life_state kvr_life_peek(const uint32_t *word);

#endif
