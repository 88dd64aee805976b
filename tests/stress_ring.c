/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rings and bells between processes, over many seeds, with a third process that stops and continues
 * the others at random moments, also for longer than the back-stop:
 *
 *   traffic   writer and reader of one ring with random sizes, batches, aborts, rewinds, and bytes
 *             that look like commit words; both spin, wait or sleep. Every byte is checked.
 *   sleeps    teams that wake each other, nearly every wait a real sleep.
 *   drops     wake-ups that are dropped on purpose, and counted exactly.
 *
 * Nobody may hang and no wake may get lost. A ringer that was held up between its publish and its
 * ring for longer than the grace time is measured, and may count once each: see kvring/wait.h.
 *
 * A round follows from its seed, but for the times: a failure may need some tries of its seed.
 * CK_RUN_CASE=sleeps make stress T=ring ROUNDS=400 is ten million sleeps.
 */
#include "ring_sides.h"
#include "ring_traffic.h"
#include "ring_wakes.h"

#define HANG_MS (60000u * SIDE_SLOW)
#define SLEEPS_A_ROUND (KVR_TEST_TSAN || KVR_TEST_ASAN ? 10000u : 25000u)

static struct {
	uint64_t messages, bytes, sleeps, switches, lost, held, stops, longs, dropped;
	uint64_t calm; /* sleeps of games in which no ring was held up: there no wake was lost */
} sum;

static void sum_side(const struct side *s)
{
	sum.messages += s->messages;
	sum.bytes += s->bytes;
	sum.sleeps += s->sleeps;
	sum.switches += s->switches;
	sum.lost += s->lost;
	sum.held += s->held;
}

/* Lost wakes that nothing explains have failed the round before. */
static void sum_print(const char *what, uint64_t rounds, uint64_t seed)
{
	printf("%s: %llu rounds, %llu messages, %.3f GB checked, %llu sleeps (%llu switches), "
	       "%llu stops (%llu of them longer than the back-stop)\n",
	       what, (unsigned long long)rounds, (unsigned long long)sum.messages,
	       (double)sum.bytes / 1e9, (unsigned long long)sum.sleeps,
	       (unsigned long long)sum.switches, (unsigned long long)sum.stops,
	       (unsigned long long)sum.longs);
	printf("%s: %llu wakes dropped and counted, 0 other lost wakes in %llu sleeps of games "
	       "without a held-up ring; %llu rings held up, of which %llu counted; seed %llu\n",
	       what, (unsigned long long)sum.dropped, (unsigned long long)sum.calm,
	       (unsigned long long)sum.held, (unsigned long long)(sum.lost - sum.dropped),
	       (unsigned long long)seed);
	fflush(stdout);
}

/* A generator for a round; `part` keeps the three parts of one seed apart. */
static uint64_t round_random(uint64_t seed, uint64_t part)
{
	return traffic_mix(seed + part * 0x9e3779b97f4a7c15ull);
}

static uint32_t pick(uint64_t *x, uint32_t n)
{
	return test_random(x) % n;
}

/* Half of the rounds without any; then short ones, and in some a few long ones. */
static struct stops stops_plan(uint64_t *x)
{
	struct stops s = { .x = *x, .budget_ns = 50 * SIDE_MS };

	switch (pick(x, 8)) {
	case 0:
	case 1:
		s.gap_us = 1 + pick(x, 4000);
		s.hold_us = 1 + pick(x, 3000);
		break;
	case 2:
		s.gap_us = 20000;
		s.hold_us = 20000;
		s.long_left = 1 + pick(x, 2);
		break;
	case 3: /* all the time */
		s.gap_us = 300;
		s.hold_us = 300;
		break;
	default:
		break;
	}
	return s;
}

static const char *run(const pid_t *pids, uint32_t n, struct stops *s)
{
	const char *why = sides_run(pids, n, s, test_deadline_ms(HANG_MS));

	sum.stops += s->count;
	sum.longs += s->longs;
	return why;
}

/* An overloaded machine: more runnable processes than CPUs. */
static void hogs_start(pid_t *pids, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		pids[i] = side_fork();
		while (!pids[i])
			kvr_relax();
	}
}

static void hogs_end(const pid_t *pids, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		kill(pids[i], SIGKILL);
		waitpid(pids[i], NULL, 0);
	}
}

/* --- traffic ---------------------------------------------------------------------------------- */

static struct traffic_plan traffic_plan(uint64_t seed, uint64_t *x)
{
	static const uint32_t batches[] = { 1, 4, 40 }, holds[] = { 1, 3, 30 };
	uint32_t bytes = KVR_RING_MIN << pick(x, 11);
	uint64_t cells = bytes / KVR_RING_CELL, laps = pick(x, 4);
	const uint64_t starts[] = { 0, (1ull << 32) - laps * cells, 0 - laps * cells,
				    (uint64_t)test_random(x) * cells };
	struct traffic_plan p = {
		.seed = seed,
		.start = starts[pick(x, 4)],
		.deadline = test_deadline_ms(HANG_MS),
		.bytes = bytes,
		.first = pick(x, 2) ? 0u - pick(x, 3000) : 0,
		.batch = batches[pick(x, 3)],
		.hold = holds[pick(x, 3)],
		.hostile = pick(x, 3) * 4,
		.aborts = pick(x, 2),
		.rewinds = pick(x, 2),
		.pauses = pick(x, 3),
		.writer_waits = (enum traffic_wait)pick(x, 3),
		.reader_waits = (enum traffic_wait)pick(x, 3),
	};

	/* About as many bytes in every round: most messages are short, some are an eighth. */
	p.count = (48u << 20) / SIDE_SLOW / (bytes / 40 + 400);
	if (p.pauses == 2)
		p.count /= 4;
	return p;
}

static void traffic_bad(const struct traffic *t, const char *why)
{
	const struct traffic_plan *p = &t->plan;

	ck_abort_msg("%s. Writer: %s. Reader: %s. %u bytes of cells, start %#llx, %u messages from "
		     "%u on, batch %u, hold %u, hostile %u, aborts %u, rewinds %u, pauses %u, "
		     "waits %d and %d; wrote %llu, read %llu, lost wakes %llu and %llu, rings "
		     "held up %llu and %llu: make stress T=ring SEED=%llu ROUNDS=1",
		     why, t->writer.why, t->reader.why, p->bytes, (unsigned long long)p->start,
		     p->count, p->first, p->batch, p->hold, p->hostile, p->aborts, p->rewinds,
		     p->pauses, (int)p->writer_waits, (int)p->reader_waits,
		     (unsigned long long)t->writer.messages, (unsigned long long)t->reader.messages,
		     (unsigned long long)t->writer.lost, (unsigned long long)t->reader.lost,
		     (unsigned long long)t->writer.held, (unsigned long long)t->reader.held,
		     (unsigned long long)p->seed);
}

/*
 * Each side maps the memory anew, at an address of its own, and what the other one alone writes is
 * read-only.
 */
static struct traffic *traffic_remap(int fd, const struct traffic *old, int reader)
{
	size_t bytes = traffic_bytes(old->plan.bytes);
	uint8_t *other = mmap(NULL, TRAFFIC_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct traffic *t = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int err = other == MAP_FAILED || t == MAP_FAILED;

	if (!err && reader)
		err = mprotect(&t->writer, TRAFFIC_PAGE, PROT_READ) ||
		      mprotect(t->cells, bytes - sizeof *t, PROT_READ);
	else if (!err)
		err = mprotect(&t->reader, TRAFFIC_PAGE, PROT_READ);
	if (err)
		_exit(3);
	return t;
}

static void traffic_child(int fd, struct traffic *t, int reader)
{
	struct kvr_waiter w = { 0 };
	const char *why;

	t = traffic_remap(fd, t, reader);
	why = reader ? traffic_read(t, &w) : traffic_write(t, &w);
	side_exit(reader ? &t->reader : &t->writer, &w, why);
}

static void traffic_judge(const struct traffic *t, const char *why)
{
	const uint64_t ctl = *(const uint64_t *)(const void *)t->cells;

	if (why)
		traffic_bad(t, why);
	if (ctl != (t->cursor.pos << 32 | (uint32_t)(t->plan.first + t->plan.count)))
		traffic_bad(t, "the cursors do not meet at the end");
	if (t->reader.lost > t->writer.held || t->writer.lost > t->reader.held)
		traffic_bad(t, "a wake was lost");
	sum_side(&t->writer);
	sum_side(&t->reader);
	sum.messages -= t->plan.count; /* moved, not seen */
	if (!t->writer.held && !t->reader.held)
		sum.calm += t->writer.sleeps + t->reader.sleeps;
}

static void traffic_round(uint64_t seed)
{
	uint64_t x = round_random(seed, 1);
	struct traffic_plan p = traffic_plan(seed, &x);
	struct stops s = stops_plan(&x);
	int fd = memfd_create("kvr-test-ring", MFD_CLOEXEC), reader;
	uint32_t n = pick(&x, 12) ? 0 : 4;
	struct traffic *t;
	pid_t pids[2], hogs[4];
	const char *why;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, (off_t)traffic_bytes(p.bytes)), 0);
	t = mmap(NULL, traffic_bytes(p.bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(t, MAP_FAILED);
	if (pick(&x, 2)) /* more of the worst place, some of them for long */
		p.halts = 1 + p.count / 4;
	if (s.long_left || p.halts)
		s.long_left++;
	if (n)
		p.count /= 4;
	traffic_set(t, &p);
	hogs_start(hogs, n);
	for (reader = 0; reader < 2; reader++) {
		pids[reader] = side_fork();
		if (!pids[reader])
			traffic_child(fd, t, reader);
	}
	why = run(pids, 2, &s);
	hogs_end(hogs, n);
	traffic_judge(t, why);
	munmap(t, traffic_bytes(p.bytes));
	close(fd);
}

START_TEST(test_traffic)
{
	uint64_t seed = test_seed(), rounds = test_rounds(100), i;

	for (i = 0; i < rounds; i++)
		traffic_round(seed + i);
	sum_print("traffic", rounds, seed);
	ck_assert_uint_gt(sum.messages, 0);
}
END_TEST

/* --- sleeps ----------------------------------------------------------------------------------- */

static struct team_plan team_plan(uint64_t seed, uint64_t *x)
{
	static const uint32_t spins[] = { 0, 0, 0, 20000 }, delays[] = { 0, 0, 30, 300 };
	struct team_plan p = {
		.seed = seed,
		.deadline = test_deadline_ms(HANG_MS),
		.members = { 1 + pick(x, TEAM_MAX), 1 + pick(x, TEAM_MAX) },
		.spin_ns = { 0, spins[pick(x, 4)] },
		.delay = { delays[pick(x, 4)], delays[pick(x, 4)] },
		.cpus = (enum team_cpus)pick(x, 3),
	};

	if (pick(x, 2)) /* the plain game of two */
		p.members[0] = p.members[1] = 1;
	p.turns = SLEEPS_A_ROUND / 4 / (p.members[0] + p.members[1]);
	return p;
}

static void team_bad(const struct team_game *g, const char *why)
{
	const struct team_plan *p = &g->plan;
	const char *first = "";
	uint32_t team, i;

	for (team = 0; team < 2; team++)
		for (i = 0; i < TEAM_MAX; i++) {
			const struct side *s = &g->side[team][i];

			if (!*first)
				first = s->why;
			if (s->lost || s->held)
				fprintf(stderr, "team %u, member %u: lost %llu, held up %llu\n",
					team, i, (unsigned long long)s->lost,
					(unsigned long long)s->held);
		}
	ck_abort_msg("%s. %s. %u and %u members, spins %u and %u, delays %u and %u, cpus %d, %u "
		     "turns: make stress T=ring SEED=%llu ROUNDS=1",
		     why, first, p->members[0], p->members[1], p->spin_ns[0], p->spin_ns[1],
		     p->delay[0], p->delay[1], (int)p->cpus, p->turns, (unsigned long long)p->seed);
}

static void team_round(uint64_t seed)
{
	struct team_game *g = side_map(sizeof *g);
	uint64_t x = round_random(seed, 2), calm = 0, held, sleeps;
	uint32_t n, i;

	while (calm < SLEEPS_A_ROUND) {
		pid_t pids[2 * TEAM_MAX];
		struct stops s = pick(&x, 2) ? (struct stops){ .x = x } : stops_plan(&x);
		const char *why;

		memset(g, 0, sizeof *g);
		g->plan = team_plan(seed, &x);
		g->bell[0].seq = g->bell[1].seq = pick(&x, 2) ? 0u - pick(&x, 2000) : 0;
		if (s.long_left)
			g->plan.halts = 1 + g->plan.turns / 4;
		n = team_start(g, pids);
		why = run(pids, n, &s);
		if (why)
			team_bad(g, why);
		if (team_unexplained(g))
			team_bad(g, "a wake was lost");
		held = sum.held;
		sleeps = sum.sleeps;
		for (i = 0; i < 2 * TEAM_MAX; i++)
			sum_side(&g->side[i / TEAM_MAX][i % TEAM_MAX]);
		if (sum.held == held)
			calm += sum.sleeps - sleeps;
	}
	sum.calm += calm;
	munmap(g, sizeof *g);
}

START_TEST(test_sleeps)
{
	uint64_t seed = test_seed(), rounds = test_rounds(100), i;

	for (i = 0; i < rounds; i++)
		team_round(seed + i);
	sum_print("sleeps", rounds, seed);
	/* Most of them were real. */
	ck_assert_uint_ge(sum.calm, rounds * SLEEPS_A_ROUND);
	ck_assert_uint_gt(sum.switches, sum.sleeps / 2);
}
END_TEST

/* --- drops ------------------------------------------------------------------------------------ */

static void drop_round(uint64_t seed)
{
	struct drop_game *g = side_map(sizeof *g);
	uint64_t x = round_random(seed, 3);
	struct stops s = stops_plan(&x);
	uint32_t n = pick(&x, 4) ? 0 : 4, held;
	pid_t pids[2], hogs[4];
	const char *why;

	g->plan = (struct drop_plan){
		.seed = seed,
		.deadline = test_deadline_ms(HANG_MS),
		.drops = 1 + pick(&x, 20),
		.rings = 1 + pick(&x, 40),
		.halts = s.long_left ? 10 : 0,
	};
	hogs_start(hogs, n);
	drop_start(g, pids);
	why = run(pids, 2, &s);
	hogs_end(hogs, n);
	if (!why && g->real != g->plan.drops)
		why = "other drops than planned";
	if (!why && drop_wrong(g))
		why = "a lost wake too many or too few";
	if (why)
		ck_abort_msg("%s. Turn %u of %u, %u dropped, %llu lost; sleeper: %s, ringer: %s: "
			     "make stress T=ring SEED=%llu ROUNDS=1",
			     why, drop_wrong(g), g->last, g->real,
			     (unsigned long long)g->side[0].lost, g->side[0].why, g->side[1].why,
			     (unsigned long long)seed);
	sum.dropped += g->real;
	sum_side(&g->side[0]);
	sum.messages += g->last;
	for (n = held = 0; n <= g->last; n++)
		held += g->turn[n].held;
	sum.held += held;
	if (!held)
		sum.calm += g->side[0].sleeps;
	munmap(g, sizeof *g);
}

START_TEST(test_drops)
{
	/* A dropped wake takes longer than 100 ms: fewer rounds. */
	uint64_t seed = test_seed(), rounds = (test_rounds(100) + 15) / 16, i;

	for (i = 0; i < rounds; i++)
		drop_round(seed + i);
	sum_print("drops", rounds, seed);
	ck_assert_uint_ge(sum.dropped, rounds);
}
END_TEST

/* A case each, so that CK_RUN_CASE chooses. */
static void add(Suite *s, const char *name, const TTest *test)
{
	TCase *t = tcase_create(name);

	tcase_set_timeout(t, 120.0 + 5.0 * (double)test_rounds(100));
	tcase_add_test(t, test);
	suite_add_tcase(s, t);
}

static Suite *make_suite(void)
{
	Suite *s = suite_create("stress ring");

	add(s, "traffic", test_traffic);
	add(s, "sleeps", test_sleeps);
	add(s, "drops", test_drops);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
