/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of 2 to 16 real processes with traffic on several channels, and one hostile thing a round:
 * a process is killed or stopped at a labelled point or at any time, several at once, all; a rank
 * comes back alone; leaders take over, from the dead and from the living, several at once; an epoch
 * is declared over or ends well in the middle of everything; ranks read nothing, or get no CPU.
 * What must hold:
 *
 *   whoever waits ends in time, with a sentence that is true: who died, who declared what, which
 *   epoch is newer; what was finished before an end is taken first, and the same by all; nobody
 *   reads what was not finished; the next epoch comes up and has traffic; nothing is left: no
 *   process, file, lock, descriptor, mapping.
 *
 * What is done follows from the seed: seed % (number of deeds) is the deed, so that consecutive
 * seeds do everything once. The timing does not follow: a failure may need some tries of its seed.
 *
 *   stress_group_world.h      what the processes share
 *   stress_group_actors.c     what they all do; _leader.c, _rank.c; _ticks.c: of the connector
 *   stress_group_round.c      the test's hands: starts, stops, kills, waits
 *   stress_group_points.c     what is done: at labelled points
 *   stress_group_deeds.c      at any time; _takeovers.c: by new leaders
 *   stress_group_judge.c      what must hold
 */
#include "stress_group_round.h"

#include <sys/mman.h>

struct deed {
	const char *name;
	void (*run)(struct round *r, uint32_t arg);
	uint32_t arg;
	int default_dir;
};

/* After those at each point. */
static const struct deed deeds[] = {
	{ "a leader is killed", deed_kill, VICTIM_LEADER, 0 },
	{ "a leader is killed", deed_kill, VICTIM_LEADER, 0 },
	{ "a rank is killed", deed_kill, VICTIM_RANK, 0 },
	{ "a rank is killed", deed_kill, VICTIM_RANK, 0 },
	{ "ranks are killed", deed_kill, VICTIM_RANKS, 0 },
	{ "leader and ranks are killed", deed_kill, VICTIM_LEADER_AND_RANKS, 0 },
	{ "leader and ranks are killed", deed_kill, VICTIM_LEADER_AND_RANKS, 0 },
	{ "all are killed", deed_kill, VICTIM_ALL, 0 },
	{ "a rank comes back after its death", deed_restart, RESTART_DEAD, 0 },
	{ "a rank comes back after its death", deed_restart, RESTART_SEEN_DEAD, 0 },
	{ "a rank comes back after it left", deed_restart, RESTART_LEFT, 0 },
	{ "a rank is there twice", deed_restart, RESTART_ALIVE, 0 },
	{ "a rank is blamed", deed_fail, DECLARED_RANK, 0 },
	{ "nobody is blamed", deed_fail, DECLARED_NOBODY, 0 },
	{ "the leader starts a new epoch", deed_fail, DECLARED_RESTARTS, 0 },
	{ "a rank that does not read is blamed", deed_fail, DECLARED_FLOOD, 0 },
	{ "a good end", deed_close, CLOSING_TRAFFIC, 0 },
	{ "a good end while ranks attach", deed_close, CLOSING_ATTACH, 0 },
	{ "a good end with full rings", deed_close, CLOSING_FLOOD, 0 },
	{ "ranks leave", deed_leave, 40, 0 },
	{ "all ranks leave", deed_leave, 100, 0 },
	{ "a rank does not read", deed_flood, 0, 0 },
	{ "ranks do not read", deed_flood, 50, 0 },
	{ "no rank reads", deed_flood, 100, 0 },
	{ "processes get no CPU", deed_starve, 0, 0 },
	{ "takeover", deed_takeover, TAKEOVER_ONE, 0 },
	{ "takeover in /dev/shm", deed_takeover, TAKEOVER_ONE, 1 },
	{ "rivals", deed_takeover, TAKEOVER_RIVALS, 0 },
	{ "rivals, one is killed", deed_takeover, TAKEOVER_RIVAL_DIES, 0 },
	{ "one takeover after the other", deed_takeover, TAKEOVER_CHAIN, 0 },
	{ "kvr_group_remove", deed_takeover, TAKEOVER_REMOVED, 0 },
	{ "a living leader refuses", deed_takeover, TAKEOVER_REFUSED, 0 },
	{ "a stopped leader refuses", deed_takeover, TAKEOVER_REFUSED_STOPPED, 0 },
	{ "takeover kills", deed_takeover, TAKEOVER_KILLS, 0 },
	{ "takeover kills a stopped one", deed_takeover, TAKEOVER_KILLS_STOPPED, 0 },
	{ "takeover fences", deed_takeover, TAKEOVER_FENCES, 0 },
	{ "takeover fences", deed_takeover, TAKEOVER_FENCES, 0 },
	{ "takeover fences a stopped one", deed_takeover, TAKEOVER_FENCES_STOPPED, 0 },
	{ "takeover fences a stopped one", deed_takeover, TAKEOVER_FENCES_STOPPED, 0 },
	{ "a fencing takeover is killed", deed_takeover, TAKEOVER_FENCE_DIES, 0 },
	{ "everybody takes over", deed_takeover, TAKEOVER_FREE_FOR_ALL, 0 },
	{ "everybody takes over", deed_takeover, TAKEOVER_FREE_FOR_ALL, 0 },
	{ "fenced in the middle", deed_take_from, KVR_TAKEOVER_FENCE, 0 },
	{ "fenced in the middle", deed_take_from, KVR_TAKEOVER_FENCE, 0 },
	{ "killed in the middle", deed_take_from, KVR_TAKEOVER_KILL, 0 },
	{ "a takeover overslept", deed_oversleep, 0, 0 },
	{ "a takeover overslept", deed_oversleep, 0, 0 },
};

#define ALL_DEEDS (2 * KVR_POINT_COUNT + KVR_ARRAY_LEN(deeds))
#define STEP 37u
#define FAILED_MAX 20u /* rounds: the list of them says more than the first */

static struct round round_;

_Static_assert(ALL_DEEDS % STEP, "STEP is a prime number: every deed comes by");

/* Every deed comes by once in ALL_DEEDS seeds; which follows which is no matter. */
static struct deed deed_of(uint64_t seed)
{
	uint32_t i = (uint32_t)(seed % ALL_DEEDS * STEP % ALL_DEEDS);
	static char name[64];

	if (i >= 2 * KVR_POINT_COUNT)
		return deeds[i - 2 * KVR_POINT_COUNT];
	snprintf(name, sizeof name, "%s at %s", i < KVR_POINT_COUNT ? "killed" : "stopped",
		 kvr_point_name(i % KVR_POINT_COUNT));
	return (struct deed){ .name = name,
			      .run = i < KVR_POINT_COUNT ? deed_kill_at : deed_stop_at,
			      .arg = i % (uint32_t)KVR_POINT_COUNT };
}

static void one_round(struct round *r, uint64_t seed)
{
	struct deed d = deed_of(seed);

	round_begin(r, seed, d.default_dir);
	r->deed = d.name;
	if (!setjmp(r->out)) {
		d.run(r, d.arg);
		round_finish(r);
	}
	round_clean(r);
	tally.rounds++;
	tally.failed += r->troubles > 0;
}

/* Returns how many points were missed. */
static uint32_t print_points(void)
{
	uint32_t missed = 0;

	printf("%-20s %6s %6s\n", "point", "kills", "stops");
	for (uint32_t i = 0; i < KVR_POINT_COUNT; i++) {
		printf("%-20s %6llu %6llu\n", kvr_point_name(i),
		       (unsigned long long)tally.killed_at[i],
		       (unsigned long long)tally.stopped_at[i]);
		missed += tally.killed_at[i] == 0;
		missed += tally.stopped_at[i] == 0;
	}
	return missed;
}

static void print_sums(uint64_t ns)
{
	typedef unsigned long long ull;

	printf("%llu s, %llu messages, %llu time-outs, %llu ends judged, %llu ranks asked again "
	       "while a fence went up; %u rounds do it all\n",
	       (ull)(ns / KVR_SEC), (ull)tally.messages, (ull)tally.timeouts, (ull)tally.ends,
	       (ull)tally.unsure, (unsigned)ALL_DEEDS);
	printf("%llu rounds, %llu kills, %llu stops, %llu restarts, %llu takeovers; hangs %llu, "
	       "wrong causes %llu, leftovers %llu, broken %llu; from a kill to the last survivor's "
	       "end at most %llu ms (seed %llu)\n",
	       (ull)tally.rounds, (ull)tally.kills, (ull)tally.stops, (ull)tally.restarts,
	       (ull)tally.takeovers, (ull)tally.trouble[TROUBLE_HANG],
	       (ull)tally.trouble[TROUBLE_CAUSE], (ull)tally.trouble[TROUBLE_LEFT],
	       (ull)tally.trouble[TROUBLE_BROKEN], (ull)(tally.longest_ns / KVR_MS),
	       (ull)tally.longest_seed);
	fflush(stdout);
}

START_TEST(test_many_groups)
{
	uint64_t seed = test_seed(), rounds = test_rounds(ALL_DEEDS), start = test_now_ns();
	struct round *r = &round_;
	uint32_t missed = 0;

	r->w = mmap(NULL, sizeof *r->w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(r->w, MAP_FAILED);
	for (uint64_t i = 0; i < rounds && tally.failed < FAILED_MAX + rounds / 20; i++)
		one_round(r, seed + i);
	if (rounds >= ALL_DEEDS)
		missed = print_points();
	print_sums(test_now_ns() - start);
	ck_assert_msg(!tally.failed, "%llu rounds failed; their seeds are above",
		      (unsigned long long)tally.failed);
	ck_assert_msg(!missed, "%u points were not reached", missed);
	munmap(r->w, sizeof *r->w);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("stress group");
	TCase *t = tcase_create("groups");

	tcase_set_timeout(t, 120.0 + 5.0 * (double)test_rounds(ALL_DEEDS));
	tcase_add_test(t, test_many_groups);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
