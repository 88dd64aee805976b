/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib/channel_meet.c, unchanged, under relacy: members that meet in every order that the scheduler
 * thinks of, where a load may return an older value unless the orders forbid it.
 *
 *   meet [RUNS [FIRST]]    FIRST: the seed of the first random schedule
 *
 * The values of a reduction are plain memory to relacy: so one that is overwritten before all have
 * taken it, or taken before it is there, is a data race, and the two slots are enough if there is
 * none. There is no back-stop: a wake-up that is lost is a thread that never ends. Every minimum is
 * compared, so nobody is through too early either.
 *
 * Exit status: 0; 3, when relacy found something (history on standard error); 2, usage.
 */
#include <cerrno>
#include <streambuf>

static const int again = -EAGAIN; /* relacy redefines the names of its pthread model */

#include <relacy/relacy.hpp>

#include "meet.h"
#include "meet_atomic.h"

enum { DEPTH = 3000 }; /* steps of a run, before a wait counts as endless */
enum { USAGE = 2, FOUND = 3 };

/* One round: who meets, and the number of values. */
struct round {
	unsigned ranks;
	int with_leader;
	unsigned n;
};

struct scenario {
	const char *name;
	unsigned ranks; /* 2: the third one is the leader */
	struct round rounds[5];
};

static const struct scenario scenarios[] = {
	{ "two ranks", 3, { { 3, 0, 1 }, { 3, 0, 2 }, { 3, 0, 1 }, { 3, 0, 1 } } },
	{ "three ranks", 3, { { 7, 0, 1 }, { 7, 0, 1 }, { 7, 0, 1 } } },
	{ "barriers", 3, { { 7, 0, 0 }, { 7, 0, 1 }, { 7, 0, 0 }, { 7, 0, 1 } } },
	{ "a rank and the leader", 2, { { 1, 1, 1 }, { 1, 1, 1 }, { 1, 1, 1 } } },
	{ "two ranks and the leader", 2, { { 3, 1, 1 }, { 3, 1, 1 }, { 3, 1, 1 } } },
	/* The first entry of each rank is that of one of two sets of the same ranks. */
	{ "with it and without", 2, { { 3, 1, 1 }, { 3, 0, 1 }, { 3, 0, 1 }, { 3, 1, 1 } } },
	{ "two sets", 3, { { 3, 0, 1 }, { 6, 0, 1 }, { 6, 0, 1 }, { 3, 0, 1 } } },
};
enum { ROUNDS = sizeof scenarios[0].rounds / sizeof scenarios[0].rounds[0] };

static const struct scenario *scenario;
static const char *found; /* why this run failed, where relacy does not say it */

#define MUST(x, why)                                                                             \
	do {                                                                                     \
		if (!(x)) {                                                                      \
			found = why;                                                             \
			rl::ctx().fail_test(why, rl::test_result_user_assert_failed, (RL_INFO)); \
		}                                                                                \
	} while (0)

struct shadow {
	rl::atomic<uint64_t> shared[SHARED_WORDS];
	rl::var<uint64_t> value[VALUE_WORDS];
};
static struct shadow *shadow;

static rl::memory_order order_of(enum model_order order)
{
	static const rl::memory_order orders[] = { rl::mo_relaxed, rl::mo_acquire, rl::mo_release,
						   rl::mo_acq_rel, rl::mo_seq_cst };

	return orders[order];
}

#define AT(line) rl::debug_info("", "lib/channel_meet.c", line)

uint64_t model_load(const void *p, unsigned size, enum model_order order, unsigned line)
{
	unsigned i;

	switch (world_word(p, &i)) {
	case SHARED:
		return shadow->shared[i](AT(line)).load(order_of(order));
	case VALUE:
		return shadow->value[i](AT(line)).load();
	default:
		return size == 8 ? *(const uint64_t *)p : *(const uint32_t *)p;
	}
}

void model_store(void *p, unsigned size, uint64_t v, enum model_order order, unsigned line)
{
	unsigned i;

	switch (world_word(p, &i)) {
	case SHARED:
		shadow->shared[i](AT(line)).store(v, order_of(order));
		break;
	case VALUE:
		shadow->value[i](AT(line)).store(v);
		break;
	default:
		if (size == 8)
			*(uint64_t *)p = v;
		else
			*(uint32_t *)p = (uint32_t)v;
	}
}

uint64_t model_xchg(void *p, unsigned size, uint64_t v, enum model_order order, unsigned line)
{
	unsigned i;

	(void)size;
	MUST(world_word(p, &i) == SHARED, "an exchange of another word");
	return shadow->shared[i](AT(line)).exchange(v, order_of(order));
}

void model_add(void *p, unsigned size, uint64_t v, unsigned line)
{
	unsigned i;

	(void)size;
	MUST(world_word(p, &i) == SHARED, "an addition to another word");
	shadow->shared[i](AT(line)).fetch_add(v, rl::mo_acq_rel);
}

void model_yield(void)
{
	rl::yield(1, RL_INFO);
}

unsigned model_rand(unsigned below)
{
	return rl::rand(below);
}

static bool is_member(const struct round *r, unsigned who)
{
	return who < scenario->ranks ? r->ranks >> who & 1 : r->with_leader != 0;
}

/* Whose is the smallest changes from round to round. */
static int64_t value_of(unsigned k, unsigned who, unsigned i)
{
	return (int64_t)(k * 10) - (int64_t)((who + k + i) % MEMBERS);
}

struct meet_suite : rl::test_suite<meet_suite, MEMBERS> {
	struct shadow own;

	void before()
	{
		shadow = &own;
		world_reset(scenario->ranks);
		for (rl::atomic<uint64_t> &a : own.shared)
			a(RL_INFO).store(0, rl::mo_relaxed);
		for (rl::var<uint64_t> &v : own.value)
			v(RL_INFO).store(0);
	}

	void thread(unsigned who)
	{
		for (unsigned k = 0; k < ROUNDS && scenario->rounds[k].ranks; k++)
			if (is_member(&scenario->rounds[k], who))
				meet(&scenario->rounds[k], k, who);
	}

	void meet(const struct round *r, unsigned k, unsigned who)
	{
		int64_t mine[VALUES], least;
		int rc = again;

		for (unsigned i = 0; i < r->n; i++)
			mine[i] = value_of(k, who, i);
		if (!rl::rand(3))
			rc = world_meet(who, r->ranks, r->with_leader, mine, r->n, mine, 1);
		if (rc == again)
			rc = world_meet(who, r->ranks, r->with_leader, mine, r->n, mine, 0);
		MUST(!rc, "a call fails");
		for (unsigned i = 0; i < r->n; i++) {
			least = INT64_MAX;
			for (unsigned m = 0; m < MEMBERS; m++)
				if (is_member(r, m) && value_of(k, m, i) < least)
					least = value_of(k, m, i);
			MUST(mine[i] == least, "a minimum is wrong");
		}
	}
};

/* relacy replaces operator new while it runs: what it prints is kept without any allocation. */
struct : std::streambuf {
	char text[1 << 20]; /* ends with a 0 */
	size_t len;

	int overflow(int c)
	{
		if (len < sizeof text - 1)
			text[len++] = (char)c;
		return c;
	}
} captured;

int main(int argc, char **argv)
{
	uint64_t runs = argc > 1 ? strtoull(argv[1], nullptr, 0) : 10000, executions = 0;
	uint64_t first = argc > 2 ? strtoull(argv[2], nullptr, 0) : 1;
	std::ostream out(&captured);

	if (argc > 3 || !runs || !first)
		return USAGE;
	setvbuf(stdout, nullptr, _IOLBF, 0);
	for (const struct scenario &s : scenarios) {
		rl::test_params params;

		scenario = &s;
		found = nullptr;
		captured.len = 0;
		params.output_stream = params.progress_stream = &out;
		params.execution_depth_limit = DEPTH;
		params.search_type = rl::sched_random;
		params.iteration_count = first + runs - 1;
		params.initial_state = std::to_string(first).c_str();
		if (!rl::simulate<meet_suite>(params)) {
			fwrite(captured.text, 1, captured.len, stderr);
			printf("%s: schedule %llu: %s\n", s.name,
			       (unsigned long long)params.stop_iteration,
			       found ? found : rl::test_result_str(params.test_result));
			return FOUND;
		}
		executions += params.stop_iteration - (first - 1);
	}
	printf("%zu scenarios, %llu executions\n", sizeof scenarios / sizeof scenarios[0],
	       (unsigned long long)executions);
	return 0;
}
