/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the group share: the steps of becoming a member, and of replacing one. */
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
/* Removes the name of the group's pool, under the name lock. Who maps it keeps its memory. 1: there
 * was one. */
int kvr_member_remove_pool(const struct kvr_group *g);
/* Takes the name lock: descriptor and path for kvr_shm_unlock(), or -errno. */
int kvr_member_lock(const struct kvr_group *g, char path[KVR_SHM_PATH]);
/* Reads and checks the header behind fd, and copies the first 128 bytes of its leader's page. */
int kvr_member_look(int fd, uint64_t bytes, const char *path, struct kvr_seg_header *ret_header,
		    struct kvr_layout *ret_layout, struct kvr_proc *ret_leader);
/* Was it made before the machine was started? Then nobody of it lives. */
int kvr_member_other_boot(const struct kvr_seg_header *h);

/* A segment under our name. */
struct kvr_old_segment {
	int fd;	   /* -1: there is none. The caller closes it */
	int alive; /* its leader lives */
	struct kvr_seg_header header;
	struct kvr_layout layout;
	struct kvr_proc leader;
};

/* Is there one, and may it be replaced? Decides the epoch and uuid of g. 0 or -errno. */
int kvr_old_look(struct kvr_group *g, uint32_t takeover, struct kvr_old_segment *old);
/* Ends its leader if asked for, tells its ranks, and moves it out of the way. */
int kvr_old_retire(struct kvr_group *g, const struct kvr_group_opts *o,
		   const struct kvr_old_segment *old);

#endif
