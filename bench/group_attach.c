/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long it takes to make a group, with rings of the default size, and to become a rank of it.
 * The ranks attach one after another and the leader is there already, so nobody waits. The segment
 * is reserved and zeroed by create, and its pages are mapped by both calls, which is most of it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "group_bench.h"
#include "kvring/err.h"

struct sort {
	uint32_t ranks;
	struct group_row *create, *attach, *close;
};

static struct sort sorts[GROUP_RANKS];
static uint32_t nsorts;

/* 0: there is no room. */
static int play(const struct sort *s)
{
	struct kvr_group_opts o = {
		.size = sizeof(o), .dir = group_dir, .ranks = s->ranks, .event_fd = -1
	};
	struct kvr_group *g;
	char name[KVR_NAME_MAX];
	uint64_t start;
	uint32_t r;
	int rc;

	snprintf(name, sizeof(name), "attach-%u", s->ranks);
	start = group_now();
	rc = kvr_group_create(name, &o, &g);
	if (rc == -ENOSPC)
		return 0;
	if (rc)
		group_broken("create");
	group_sample(s->create, (double)(group_now() - start) / 1e3);
	for (r = 0; r < s->ranks; r++) {
		group_tell(r, r + 1, ORDER_ATTACH, 0, 0, name);
		group_await(r, r + 1);
		group_sample(s->attach, (double)group_agents[r].ns / 1e3);
	}
	group_tell(0, s->ranks, ORDER_CLOSE, 0, 0, NULL);
	group_await(0, s->ranks);
	start = group_now();
	kvr_group_close(g);
	group_sample(s->close, (double)(group_now() - start) / 1e3);
	return 1;
}

void group_attach(double seconds)
{
	uint64_t deadline = group_now() + (uint64_t)(seconds * 1e9), begun, longest = 0;
	uint64_t wanted = group_opt.ranks ? group_opt.ranks : 0x8000000000000081u;
	uint32_t r, i, round;

	for (r = 1; r <= GROUP_RANKS; r++) {
		if (!(wanted >> (r - 1) & 1))
			continue;
		sorts[nsorts++] = (struct sort){ r, group_row("create", "us", r, 0),
						 group_row("attach", "us", r, 0),
						 group_row("close", "us", r, 0) };
	}
	group_agents_start(sorts[nsorts - 1].ranks);
	group_pin(&group_first);
	for (round = 0; round < group_opt.rounds; round++) {
		begun = group_now();
		if (round >= 3 && begun + longest > deadline)
			break;
		group_progress("attach", round);
		for (i = 0; i < nsorts; i++)
			if (!play(&sorts[i])) {
				group_skip("attach with %u ranks: %s", sorts[i].ranks,
					   kvr_explain());
				nsorts = i;
			}
		longest = group_now() - begun > longest ? group_now() - begun : longest;
	}
	group_run.rounds_attach = round;
	group_agents_stop();
	group_pin(&group_all);
}
