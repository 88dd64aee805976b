/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The group that lib/channel_meet.c meets in under relacy: pages, and what it calls of the layers
 * below. Sleep and ring are those of lib/wait.c without a back-stop, so a wake-up that is lost is a
 * thread that never ends.
 */
#include "meet_atomic.h" /* first: in place of lib/atomic.h */

#include "meet.h"

#include <string.h>

#include "channel_priv.h"
#include "fork.h"
#include "peer.h"

static _Alignas(KVR_LINE) uint8_t pages[MEMBERS][4096];
static struct kvr_bell bells[MEMBERS];
static struct kvr_group groups[MEMBERS];
static struct kvr_channels channels[MEMBERS];

static struct kvr_meet *entries(unsigned who)
{
	const struct kvr_group *g = &groups[who];

	return g->rank == KVR_LEADER ? ((struct kvr_leader_page *)(void *)g->own)->meet
				     : ((struct kvr_rank_page *)(void *)g->own)->meet;
}

void world_reset(unsigned ranks)
{
	memset(pages, 0, sizeof pages);
	memset(bells, 0, sizeof bells);
	memset(groups, 0, sizeof groups);
	memset(channels, 0, sizeof channels);
	for (unsigned i = 0; i < MEMBERS; i++) {
		struct kvr_group *g = &groups[i];

		g->rank = i < ranks ? i : KVR_LEADER;
		g->layout.ranks = ranks;
		g->layout.rank_stride = sizeof pages[0];
		g->seg = pages[0];
		g->own = pages[i];
		g->proc = (struct kvr_proc *)(void *)g->own;
		g->leader = (const struct kvr_leader_page *)(const void *)pages[LEADER];
		g->bells = bells;
		g->bell = &bells[i];
		g->waiter.bell = g->bell;
		channels[i].g = g;
	}
}

enum word world_word(const void *p, unsigned *ret_index)
{
	for (unsigned who = 0, n = 0; who < MEMBERS; who++) {
		for (unsigned e = 0; e < ENTRIES; e++, n++) {
			const struct kvr_meet *m = &entries(who)[e];
			size_t i = (size_t)((const int64_t *)p - &m->value[0][0]);

			*ret_index = 3 * n;
			if (p == &m->ranks)
				return SHARED;
			++*ret_index;
			if (p == &m->with_leader)
				return SHARED;
			++*ret_index;
			if (p == &m->round)
				return SHARED;
			*ret_index = (unsigned)(n * 2 * VALUES + i / KVR_MEET_VALUES * VALUES +
						i % KVR_MEET_VALUES);
			if (p >= (const void *)m->value && p < (const void *)(m->value + 2))
				return VALUE;
		}
		*ret_index = MEMBERS * ENTRIES * 3 + 2 * who;
		if (p == &bells[who].seq)
			return SHARED;
		++*ret_index;
		if (p == &bells[who].parked)
			return SHARED;
	}
	return PRIVATE;
}

int world_meet(unsigned who, uint64_t ranks, int with_leader, const int64_t *mine, unsigned n,
	       int64_t *ret_min, int poll)
{
	struct kvr_channels *c = &channels[who];

	if (n)
		return kvr_channels_min_reduce(c, ranks, with_leader, mine, n, ret_min, !poll);
	return kvr_channels_barrier(c, ranks, with_leader, !poll);
}

/* --- below --- */

void kvr_bell_ring(struct kvr_bell *bell)
{
	if (kvr_xchg_acq_rel32(&bell->parked, 0))
		kvr_add_acq_rel32(&bell->seq, 1);
}

int kvr_group_wait(struct kvr_group *g, int (*ready)(void *), void *arg, uint64_t deadline_ns,
		   const char *what)
{
	struct kvr_bell *bell = g->waiter.bell;
	int rc = ready(arg);

	(void)deadline_ns;
	(void)what;
	for (unsigned spins = model_rand(3); !rc && spins; spins--) {
		model_yield();
		rc = ready(arg);
	}
	while (!rc) {
		uint32_t seen = kvr_load_acquire32(&bell->seq);

		(void)kvr_xchg_acq_rel32(&bell->parked, 1);
		rc = ready(arg);
		if (rc)
			break;
		while (kvr_load_acquire32(&bell->seq) == seen)
			model_yield();
		rc = ready(arg);
	}
	return rc;
}

int kvr_group_check(struct kvr_group *g)
{
	(void)g;
	return 0;
}

void kvr_group_enter(struct kvr_group *g, enum kvr_call call, uint32_t channel)
{
	(void)g;
	(void)call;
	(void)channel;
}

int kvr_group_leave(struct kvr_group *g, enum kvr_call call, uint32_t channel,
		    const struct kvr_request *req, int result)
{
	(void)g;
	(void)call;
	(void)channel;
	(void)req;
	return result;
}

void kvr_group_describe(const struct kvr_group *g, uint32_t rank, char *ret_text, size_t size)
{
	(void)g;
	(void)rank;
	(void)size;
	*ret_text = 0;
}

void kvr_group_add_unlinked(const struct kvr_group *g)
{
	(void)g;
}

uint64_t kvr_group_fenced(const struct kvr_group *g, const uint64_t *fence, uint64_t seen)
{
	(void)g;
	(void)fence;
	return seen;
}

void kvr_peer_age(uint64_t since_ns, char *text, size_t size)
{
	(void)since_ns;
	(void)text;
	(void)size;
}

enum kvr_life_state kvr_life_peek(const uint32_t *word)
{
	(void)word;
	return KVR_LIFE_ALIVE;
}

uint32_t kvr_fork_generation(void)
{
	return 0;
}
