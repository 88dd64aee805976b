/* SPDX-License-Identifier: Apache-2.0 */
/* What group_create.c and group_member.c share: the steps of becoming a member. */
#ifndef KVR_GROUP_MEMBER_H
#define KVR_GROUP_MEMBER_H

#include "group.h"
#include "shm.h"

/* Checks name and options (NULL is fine for a rank) and makes an empty handle. */
int kvr_member_new(const char *name, const struct kvr_group_opts *opts, uint32_t rank,
		   struct kvr_group **ret);
void kvr_member_free(struct kvr_group *g);
/* Maps the checked segment behind g->fd and fills in what follows from the layout. */
int kvr_member_map(struct kvr_group *g);
/* Undoes it, and closes g->fd. */
void kvr_member_unmap(struct kvr_group *g);
/* Writes who we are. The page must be ours already: a page has one writer. */
void kvr_member_enter(struct kvr_group *g);

/* NULL for /dev/shm. */
const char *kvr_member_dir(const struct kvr_group *g);
void kvr_member_path(const struct kvr_group *g, enum kvr_shm_kind kind, uint64_t epoch,
		     char path[KVR_SHM_PATH]);
/* Removes the name of the group's pool, under the name lock. Who maps it keeps its memory. */
void kvr_member_remove_pool(const struct kvr_group *g);

#endif
