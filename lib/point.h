/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Labelled points of the protocol, where a test may kill or stop the process. The hook is hidden
 * from the shared library's users and NULL outside tests; a point costs one predictable branch.
 * All points are listed here, so that a test can tell which of them it reached; one that is not
 * does not compile.
 */
#ifndef KVR_POINT_H
#define KVR_POINT_H

#include <stdint.h>

/* Name, and what was done last when it is reached. `arg` is a rank or a channel. */
#define KVR_POINTS(X)                                                       \
	X(create_locked)     /* the name lock is held */                    \
	X(create_made)	     /* the new segment is whole, without a name */ \
	X(create_held)	     /* the leader's liveness word is taken */      \
	X(create_closing)    /* ranks of the old epoch take nothing */      \
	X(create_marked)     /* the old segment names its successor */      \
	X(create_retired)    /* it has its new name */                      \
	X(create_published)  /* the new segment has the name */             \
	X(attach_looked)     /* a living group with a free place */         \
	X(attach_claimed)    /* the rank's liveness word is taken */        \
	X(attach_entered)    /* the rank is active */                       \
	X(leave_told)	     /* the leader's page says that it left */      \
	X(leave_unlinked)    /* the names are gone, the word is held */     \
	X(leave_rank)	     /* the rank's page says that it left */        \
	X(fail_caused)	     /* cause and rank are written, not yet true */ \
	X(fail_declared)     /* nobody was woken yet */                     \
	X(publish_reserved)  /* room in every ring */                       \
	X(bulk_copied)	     /* a large payload, no ring names it */        \
	X(publish_copied)    /* one copy is written, not committed */       \
	X(publish_committed) /* all copies, before the watermark */         \
	X(publish_marked)    /* the watermark, before the bells */          \
	X(take_peeked)	     /* the message is the caller's */              \
	X(take_released)     /* its cells are the ring's again */           \
	X(tick_published)    /* all of a tick but its word */               \
	X(tick_checked)	     /* the epoch was well */                       \
	X(tick_done)	     /* and its word, before the bells */

#define KVR_POINT_ENUM(name) KVR_POINT_##name,
enum kvr_point { KVR_POINTS(KVR_POINT_ENUM) KVR_POINT_COUNT };
#undef KVR_POINT_ENUM

extern void (*kvr_point_hook)(enum kvr_point point, uint32_t arg);
/* "create_locked"; "?" out of range. */
const char *kvr_point_name(uint32_t point);

#define KVR_POINT(point, arg)                                     \
	do {                                                      \
		if (__builtin_expect(kvr_point_hook != 0, 0))     \
			kvr_point_hook(KVR_POINT_##point, (arg)); \
	} while (0)

#endif
