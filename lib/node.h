/* SPDX-License-Identifier: Apache-2.0 */
/* NUMA placement through libnuma. On a machine with one node everything here succeeds trivially. */
#ifndef KVR_NODE_H
#define KVR_NODE_H

#include <stddef.h>

#define KVR_NODE_ANY (-1)
#define KVR_NODE_INTERLEAVE (-2)

/*
 * Binds (node >= 0) or interleaves [addr, addr+len). Pages that are there already move: shared
 * memory was reserved, and so allocated, before anybody could map it. 0 or -errno, with reason.
 */
int kvr_node_bind(void *addr, size_t len, int node);
int kvr_node_count(void);

#endif
