/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the verdict share. */
#ifndef DUMP_VERDICT_H
#define DUMP_VERDICT_H

#include "dump.h"

/* "the leader", "rank 3"; "rank 3", "ranks 0-2". */
void dump_say_who(struct dump_line *l, uint32_t rank);
void dump_say_set(struct dump_line *l, uint64_t ranks);
/* What it does now, or when it last did something. */
void dump_say_doing(struct dump_line *l, const struct dump *d, const struct kvr_inspect_proc *p);
/* Who waits in vain: sets d->status and returns 1 when somebody does. */
int dump_judge_stall(struct dump *d, struct dump_line *l);
/* Who waits longest for the leader, which may be right: it has nothing to say. */
void dump_say_waits(struct dump_line *l, const struct dump *d);

#endif
