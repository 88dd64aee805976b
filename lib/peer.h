/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of a member of a group from its page: the answer to three questions that must not
 * be mixed up.
 *
 *   Should I stop waiting for it?   its liveness word: DEAD within a millisecond of kill -9
 *   Is it gone?                     its process has ended: its memory is given back. Not the same
 *                                   as quiet: I/O that it began may still land in the pool, and the
 *                                   lock on the store's files alone tells when that is over
 *   Is it only slow?                stopped, dumping core, in a declared long phase, or how long
 *                                   ago it was last seen: never a reason to take it for dead
 */
#ifndef KVR_PEER_H
#define KVR_PEER_H

#include <stddef.h>

#include "layout.h"

/* `p` may be mapped, or a private copy; all of it is bounded here. `rank` is for `ret` alone. */
void kvr_peer_read(const struct kvr_proc *p, uint32_t rank, struct kvr_peer *ret);
/* "pid 812, alive, in wait_store for 1.2 s". Appends to what is in `text`. */
void kvr_peer_text(const struct kvr_peer *p, char *text, size_t size);
/* "12 ms" or "3.1 s" since then. Appends. */
void kvr_peer_age(uint64_t since_ns, char *text, size_t size);

#endif
