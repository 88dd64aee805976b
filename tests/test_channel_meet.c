/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Barriers and reductions: nobody is through before all have come, every minimum is the true one,
 * whoever is missing is named, and what others write in their pages does no harm.
 */
#include <sched.h>
#include <sys/time.h>

#include "sides.h"

#define MOST 8u	    /* ranks */
#define LEAD MOST   /* the leader, in arrays */
#define SETS 14u    /* that one schedule has */
#define ROUNDS 2000 /* of a schedule */
#define LATE 15000  /* ms; nothing takes that long unless it hangs */

/* What the members of a schedule share, behind the reports. */
struct play {
	uint32_t ranks, sets, rounds, delays;
	uint64_t seed;
	uint64_t set[SETS];
	uint32_t with_leader[SETS];
	uint64_t at[SETS][MOST + 1]; /* the round in which each has come */
};

static struct play *play;

static void begin(void)
{
	setup();
	play = (void *)((char *)reports + (512 << 10));
}

/* In a child: what must be true. */
#define OWES(cond)                                                                              \
	do {                                                                                    \
		if (!(cond)) {                                                                  \
			fprintf(stderr, "%s:%d: pid %d: %s; explain: %s\n", __FILE__, __LINE__, \
				(int)getpid(), #cond, kvr_explain());                           \
			_exit(1);                                                               \
		}                                                                               \
	} while (0)

/* In the test: becomes true within seconds, or it hangs. */
#define UNTIL(cond)                                                                  \
	do {                                                                         \
		uint64_t until_ = test_deadline_ms(LATE);                            \
                                                                                     \
		while (!(cond)) {                                                    \
			ck_assert_msg(test_now_ns() < until_, "never true: " #cond); \
			test_sleep_ms(1);                                            \
		}                                                                    \
	} while (0)

static uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t x = a * 0x9e3779b97f4a7c15u + b;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* Of this member in this round; both ends of the range are frequent. */
static int64_t value_of(uint64_t round, uint32_t who, uint32_t i)
{
	uint64_t v = mix(play->seed + round, who * 16 + i);

	return v % 16 == 0 ? INT64_MIN : v % 16 == 1 ? INT64_MAX : (int64_t)v;
}

static int is_member(uint32_t set, uint32_t who)
{
	return who == LEAD ? play->with_leader[set] != 0 : play->set[set] >> who & 1;
}

static void delay(uint64_t round, uint32_t who)
{
	uint64_t d = mix(play->seed ^ round, 77 + who);

	if (d % 16 == 0)
		usleep((useconds_t)(d >> 8) % 300);
	else if (d % 16 == 1)
		sched_yield();
	else if (d % 256 == 2)
		test_sleep_ms(2);
}

static uint32_t who_is(const struct side *s)
{
	return s->g->rank == KVR_LEADER ? LEAD : s->g->rank;
}

/* One round: 0 or the call's error; the minimum and the others' places are checked. */
static int one_round(struct side *s, uint64_t k, uint32_t set)
{
	uint32_t n = (uint32_t)(mix(play->seed, k * 2 + 1) % (KVR_MEET_VALUES + 1));
	int64_t v[KVR_MEET_VALUES], least[KVR_MEET_VALUES];
	uint32_t who = who_is(s);
	int err;

	for (uint32_t i = 0; i < n; i++)
		v[i] = value_of(k, who, i);
	__atomic_store_n(&play->at[set][who], k, __ATOMIC_RELEASE);
	err = n ? kvr_channels_min_reduce(s->c, play->set[set], (int)play->with_leader[set], v, n,
					  v, test_deadline_ms(LATE))
		: kvr_channels_barrier(s->c, play->set[set], (int)play->with_leader[set],
				       test_deadline_ms(LATE));
	for (uint32_t i = 0; !err && i < n; i++)
		least[i] = INT64_MAX;
	for (uint32_t m = 0; !err && m <= MOST; m++) {
		if (!is_member(set, m))
			continue;
		OWES(__atomic_load_n(&play->at[set][m], __ATOMIC_ACQUIRE) >= k);
		for (uint32_t i = 0; i < n; i++)
			least[i] = value_of(k, m, i) < least[i] ? value_of(k, m, i) : least[i];
	}
	for (uint32_t i = 0; !err && i < n; i++)
		OWES(v[i] == least[i]);
	return err;
}

/* All rounds of the schedule that this one is a member of. */
static int rounds(struct side *s, struct report *r)
{
	uint32_t who = who_is(s), set;
	int err = 0;

	for (uint64_t k = 1; !err && k <= play->rounds; k++) {
		set = (uint32_t)(mix(play->seed, k * 2) % play->sets);
		if (!is_member(set, who))
			continue;
		if (play->delays)
			delay(k, who);
		err = one_round(s, k, set);
		r->seen += !err;
		/* A ringer that had no CPU for 100 ms counts, too. */
		if (s->g->waiter.lost_wakes > 20 + k / 50)
			err = -ETIME;
	}
	return err;
}

/* Plays what is in `play`; the test is the leader, and a member where its handle is asked for. */
static void play_all(void)
{
	struct report led = { 0 };
	char name[KVR_NAME_MAX];
	pid_t pids[MOST];
	struct side s;

	test_name(name, sizeof name, "meet");
	for (uint32_t r = 0; r < play->ranks; r++)
		pids[r] = spawn(name, r, rounds);
	must(lead_all(name, play->ranks, &s));
	must(rounds(&s, &led));
	for (uint32_t r = 0; r < play->ranks; r++) {
		ck_assert_int_eq(test_reap(pids[r], 30000), 0);
		ck_assert_msg(!reports[r].err, "rank %u: %s", r, reports[r].why);
	}
	leave(&s);
}

START_TEST(test_all_ranks_meet_and_every_minimum_is_true)
{
	*play = (struct play){
		.ranks = (uint32_t)_i, .sets = 1, .rounds = ROUNDS, .delays = 1, .seed = test_seed()
	};
	play->set[0] = (1u << _i) - 1;
	play->with_leader[0] = _i & 1;
	play_all();
	for (uint32_t r = 0; r < play->ranks; r++)
		ck_assert_uint_eq(reports[r].seen, ROUNDS);
}
END_TEST

/* As fast as they can: the last two often arrive at the same time. */
START_TEST(test_no_delays)
{
	*play = (struct play){
		.ranks = (uint32_t)_i, .sets = 1, .rounds = 20000, .seed = test_seed()
	};
	play->set[0] = (1u << _i) - 1;
	play_all();
}
END_TEST

/* Each rank is in four of the seven, with and without the leader: eight, the most it can. */
START_TEST(test_all_sets_of_three_ranks)
{
	*play = (struct play){
		.ranks = 3, .sets = 14, .rounds = 8000, .delays = 1, .seed = test_seed()
	};
	for (uint32_t i = 0; i < 14; i++) {
		play->set[i] = i % 7 + 1;
		play->with_leader[i] = i / 7;
	}
	play_all();
}
END_TEST

static int meet_twice(struct side *s, struct report *r)
{
	uint64_t pair = s->g->rank == 0 ? 3 : s->g->rank == 1 ? 6 : 5;
	uint64_t other = s->g->rank == 0 ? 5 : s->g->rank == 1 ? 3 : 6;
	int64_t v[2] = { s->g->rank, -(int64_t)s->g->rank };

	/* Round and round: each begins with another of its two sets, so all must poll. */
	for (r->seen = 0; r->seen < 200; r->seen++) {
		uint64_t deadline = test_deadline_ms(LATE);
		int a = -EAGAIN, b = -EAGAIN;
		int64_t x[2], y[2];

		while (a == -EAGAIN || b == -EAGAIN) {
			if (a == -EAGAIN)
				a = kvr_channels_min_reduce(s->c, pair, 0, v, 2, x, 0);
			if (b == -EAGAIN)
				b = kvr_channels_min_reduce(s->c, other, 0, v, 2, y, 0);
			OWES((!a || a == -EAGAIN) && (!b || b == -EAGAIN));
			OWES(test_now_ns() < deadline);
			sched_yield();
		}
		OWES(x[0] == __builtin_ctzll(pair) && x[1] == -(pair > 3 ? 2 : 1));
		OWES(y[0] == __builtin_ctzll(other) && y[1] == -(other > 3 ? 2 : 1));
	}
	return 0;
}

START_TEST(test_overlapping_sets_in_circular_order_when_polled)
{
	char name[KVR_NAME_MAX];
	pid_t pids[RANKS];
	struct side s;

	test_name(name, sizeof name, "meet");
	for (uint32_t r = 0; r < RANKS; r++)
		pids[r] = spawn(name, r, meet_twice);
	must(lead_all(name, RANKS, &s));
	reap(pids, RANKS);
	leave(&s);
}
END_TEST

/* The one who is late is another one each round, and all others sleep. */
static int one_late(struct side *s, struct report *r)
{
	uint64_t start = test_now_ns();
	int err = 0;

	for (r->seen = 0; !err && r->seen < 300; r->seen++) {
		if (r->seen % 4 == s->g->rank)
			test_sleep_ms(2);
		err = kvr_channels_barrier(s->c, 0, 0, test_deadline_ms(LATE));
		if (s->g->waiter.lost_wakes > 20)
			err = -ETIME;
	}
	r->sum = s->g->waiter.sleeps;
	/* The back-stop ends sleeps, too, on a machine that is busy. */
	r->last = (test_now_ns() - start) / KVR_BACKSTOP_NS;
	return err;
}

START_TEST(test_nobody_is_woken_in_vain_or_forgotten)
{
	char name[KVR_NAME_MAX];
	pid_t pids[4];
	struct side s;

	test_name(name, sizeof name, "meet");
	for (uint32_t r = 0; r < 4; r++)
		pids[r] = spawn(name, r, one_late);
	must(lead_all(name, 4, &s));
	for (uint32_t r = 0; r < 4; r++)
		ck_assert_int_eq(test_reap(pids[r], 60000), 0);
	for (uint32_t r = 0; r < 4; r++) {
		ck_assert_int_eq(reports[r].err, 0);
		ck_assert_uint_gt(reports[r].sum, 100); /* else this shows nothing */
		ck_assert_uint_le(reports[r].sum, 300 + 30 + reports[r].last);
	}
	leave(&s);
}
END_TEST

/* --- who does not come --- */

/* Five rounds, then rank 2 comes no more. */
static int five_rounds(struct side *s, struct report *r)
{
	int err = 0;

	while (!err) {
		if (s->g->rank == 2 && r->seen == 5)
			await_go(1);
		if (s->g->rank == 2 && *go)
			break;
		err = kvr_channels_barrier(s->c, 0, (int)play->with_leader[0],
					   test_deadline_ms(LATE));
		__atomic_store_n(&r->seen, r->seen + 1, __ATOMIC_RELEASE);
	}
	return err;
}

static int in_barrier(struct side *s, uint32_t rank)
{
	struct kvr_peer peer;

	must(kvr_group_peer(s->g, rank, &peer));
	return peer.call == KVR_CALL_BARRIER &&
	       __atomic_load_n(&reports[2].seen, __ATOMIC_ACQUIRE) == 5;
}

/* Bit 0: the leader is a member. Bit 1: it makes no call at all. */
START_TEST(test_killed_member_ends_the_wait_and_is_named)
{
	int with_leader = _i & 1, idle = _i & 2, err = 0;
	uint64_t start, deadline = test_deadline_ms(LATE);
	char name[KVR_NAME_MAX];
	pid_t pids[RANKS];
	struct side s;

	play->with_leader[0] = (uint32_t)with_leader;
	test_name(name, sizeof name, "meet");
	for (uint32_t r = 0; r < RANKS; r++)
		pids[r] = spawn(name, r, five_rounds);
	must(lead_all(name, RANKS, &s));
	for (int k = 0; with_leader && k < 5; k++)
		must(kvr_channels_barrier(s.c, 0, 1, deadline));
	UNTIL(in_barrier(&s, 0) && in_barrier(&s, 1));
	start = test_now_ns();
	kill(pids[2], SIGKILL);
	if (with_leader && !idle)
		err = kvr_channels_barrier(s.c, 0, 1, deadline);
	else
		while (!idle && !err && test_now_ns() < deadline)
			err = kvr_group_check(s.g);
	reap(pids, 2);
	ck_assert_uint_lt(test_now_ns() - start, 5000000000u);
	ck_assert_int_eq(err, idle ? 0 : -EOWNERDEAD);
	for (uint32_t r = 0; r < 2; r++) {
		ck_assert_int_eq(reports[r].err, -EOWNERDEAD);
		explained(reports[r].why, "rank 2 (pid ", NULL);
	}
	if (idle)
		explained(reports[0].why, "kvr_channels_barrier over ranks 0x7", "round 6",
			  "died before it arrived", NULL);
	test_reap(pids[2], 10000);
	leave(&s);
	kvr_group_remove(name, NULL);
}
END_TEST

START_TEST(test_member_that_leaves_is_waited_for_no_longer)
{
	char name[KVR_NAME_MAX];
	pid_t pids[RANKS];
	struct side s;

	play->with_leader[0] = 0;
	test_name(name, sizeof name, "meet");
	for (uint32_t r = 0; r < RANKS; r++)
		pids[r] = spawn(name, r, five_rounds);
	must(lead_all(name, RANKS, &s));
	UNTIL(in_barrier(&s, 0) && in_barrier(&s, 1));
	*go = 1;
	reap(pids, RANKS);
	for (uint32_t r = 0; r < 2; r++) {
		ck_assert_int_eq(reports[r].err, -ESHUTDOWN);
		explained(reports[r].why, "kvr_channels_barrier over ranks 0x7: round 6: rank 2 (",
			  "left before it arrived", NULL);
	}
	ck_assert_int_eq(kvr_group_check(s.g), 0); /* that is no reason to end an epoch */
	leave(&s);
}
END_TEST

START_TEST(test_what_a_member_did_before_it_left_counts)
{
	int64_t v[2] = { 3, INT64_MIN }, min[2];
	char name[KVR_NAME_MAX];
	struct side l, a, b;

	test_name(name, sizeof name, "meet");
	must(lead(name, 2, &l));
	must(join(name, 0, &a));
	must(join(name, 1, &b));
	ck_assert_int_eq(kvr_channels_min_reduce(b.c, 3, 0, v, 2, min, 0), -EAGAIN);
	leave(&b);
	v[0] = 2;
	v[1] = 0;
	must(kvr_channels_min_reduce(a.c, 0, 0, v, 2, min, test_deadline_ms(LATE)));
	ck_assert_int_eq(min[0], 2);
	ck_assert_int_eq(min[1], INT64_MIN);
	ck_assert_int_eq(kvr_channels_min_reduce(a.c, 0, 0, v, 2, min, 0), -ESHUTDOWN);
	explained(kvr_explain(), "kvr_channels_min_reduce over ranks 0x3: round 2: rank 1 (",
		  "left before it arrived", NULL);
	ck_assert_int_eq(min[0], 2);
	leave(&a);
	leave(&l);
}
END_TEST

/* The second call has other values, which do not count. */
static int reduce_late(struct side *s, struct report *r)
{
	int64_t v[2] = { 100 + s->g->rank, -5 }, w[2] = { -1000, -1000 }, min[2] = { 7, 7 };
	int err;

	OWES(!kvr_channels_barrier(s->c, 0, 0, test_deadline_ms(LATE)));
	__atomic_store_n(&r->seen, 1, __ATOMIC_RELEASE);
	await_go(s->g->rank == 2 ? 2 : 1);
	if (s->g->rank < 2) {
		OWES(kvr_channels_min_reduce(s->c, 0, 0, v, 2, min, test_deadline_ms(200)) ==
		     -ETIMEDOUT);
		OWES(strstr(kvr_explain(), "rank 2 (pid "));
		OWES(strstr(kvr_explain(), ", stopped"));
		OWES(strstr(kvr_explain(), ") has not arrived"));
		OWES(strstr(kvr_explain(), "calling again goes on with this round"));
		OWES(min[0] == 7);
		OWES(kvr_channels_barrier(s->c, 0, 0, 0) == -EINVAL);
		OWES(strstr(kvr_explain(), "round 2 is a reduction of 2 values and has not ended"));
		__atomic_store_n(&r->seen, 2, __ATOMIC_RELEASE);
		v[0] = w[0];
		v[1] = w[1];
	}
	err = kvr_channels_min_reduce(s->c, 0, 0, v, 2, min, test_deadline_ms(LATE));
	r->last = (uint64_t)min[0];
	r->sum = (uint64_t)min[1];
	return err;
}

START_TEST(test_stopped_member_is_named_and_the_round_goes_on)
{
	char name[KVR_NAME_MAX];
	struct kvr_peer peer;
	pid_t pids[RANKS];
	struct side s;

	test_name(name, sizeof name, "meet");
	for (uint32_t r = 0; r < RANKS; r++)
		pids[r] = spawn(name, r, reduce_late);
	must(lead_all(name, RANKS, &s));
	UNTIL(__atomic_load_n(&reports[2].seen, __ATOMIC_ACQUIRE) == 1);
	kill(pids[2], SIGSTOP);
	UNTIL(!kvr_group_peer(s.g, 2, &peer) && peer.state == KVR_PEER_STOPPED);
	*go = 1;
	UNTIL(__atomic_load_n(&reports[0].seen, __ATOMIC_ACQUIRE) == 2 &&
	      __atomic_load_n(&reports[1].seen, __ATOMIC_ACQUIRE) == 2);
	*go = 2;
	kill(pids[2], SIGCONT);
	reap(pids, RANKS);
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert_msg(!reports[r].err, "rank %u: %s", r, reports[r].why);
		ck_assert_int_eq((int64_t)reports[r].last, 100);
		ck_assert_int_eq((int64_t)reports[r].sum, -5);
	}
	leave(&s);
}
END_TEST

START_TEST(test_three_of_those_who_are_missing_are_named)
{
	char name[KVR_NAME_MAX];
	struct side l, a;

	test_name(name, sizeof name, "meet");
	must(lead(name, 8, &l));
	must(join(name, 0, &a));
	ck_assert_int_eq(kvr_channels_barrier(a.c, 0, 1, test_deadline_ms(20)), -ETIMEDOUT);
	explained(kvr_explain(), "kvr_channels_barrier over ranks 0xff and the leader: round 1: ",
		  "rank 1 (not attached), rank 2 (not attached), rank 3 (not attached) and 5 more "
		  "have not arrived",
		  NULL);
	ck_assert_int_eq(kvr_channels_barrier(a.c, 5, 1, test_deadline_ms(20)), -ETIMEDOUT);
	explained(kvr_explain(), "rank 2 (not attached), the leader (pid ",
		  ") have not arrived; calling", NULL);
	ck_assert_int_eq(kvr_channels_barrier(l.c, 0, 1, test_deadline_ms(20)), -ETIMEDOUT);
	explained(kvr_explain(), "rank 1 (not attached), rank 2 (", " and 4 more have", NULL);
	leave(&a);
	leave(&l);
}
END_TEST

static void on_alarm(int sig)
{
	(void)sig;
}

static int interrupted(struct side *s, struct report *r)
{
	struct itimerval each = { { 0, 20000 }, { 0, 20000 } };
	struct sigaction a = { .sa_handler = on_alarm };
	int64_t v = -9, min = 0;
	int err;

	sigaction(SIGALRM, &a, NULL);
	setitimer(ITIMER_REAL, &each, NULL);
	while ((err = kvr_channels_min_reduce(s->c, 0, 1, &v, 1, &min, test_deadline_ms(LATE))) ==
	       -EINTR) {
		OWES(strstr(kvr_explain(), "calling again goes on"));
		v = -1000 - v;
		__atomic_store_n(&r->seen, r->seen + 1, __ATOMIC_RELEASE);
	}
	r->last = (uint64_t)min;
	return err;
}

START_TEST(test_call_that_a_signal_ended_goes_on)
{
	int64_t v = 4, min = 0;
	char name[KVR_NAME_MAX];
	struct side s;
	pid_t pid;

	test_name(name, sizeof name, "meet");
	pid = spawn(name, 0, interrupted);
	must(lead_all(name, 1, &s));
	UNTIL(__atomic_load_n(&reports[0].seen, __ATOMIC_ACQUIRE) > 1);
	must(kvr_channels_min_reduce(s.c, 0, 1, &v, 1, &min, test_deadline_ms(LATE)));
	reap(&pid, 1);
	ck_assert_msg(!reports[0].err, "%s", reports[0].why);
	ck_assert_int_eq((int64_t)reports[0].last, -9);
	ck_assert_int_eq(min, -9);
	leave(&s);
}
END_TEST

/* --- the leader --- */

static int until_error(struct side *s, struct report *r)
{
	int with_leader = s->g->rank == 2, err;
	uint64_t set = s->g->rank == 2 ? 4 : 3;

	/* Ranks 0 and 1 meet on and on; rank 2 waits for the leader. */
	do {
		__atomic_store_n(&r->seen, r->seen + 1, __ATOMIC_RELEASE);
		err = kvr_channels_barrier(s->c, set, with_leader, test_deadline_ms(LATE));
	} while (!err);
	return err;
}

static void fail_with_eio(struct side *s)
{
	OWES(!kvr_group_fail(s->g, 1, -EIO));
}

static void leave_well(struct side *s)
{
	leave(s);
}

static void die(struct side *s)
{
	(void)s;
	kill(getpid(), SIGKILL);
}

static void taken_over(struct side *s)
{
	OWES(kvr_channels_barrier(s->c, 1, 1, test_deadline_ms(LATE)) == -ESTALE);
}

static const struct {
	void (*deed)(struct side *s);
	int err;
} ends[] = { { die, -EOWNERDEAD },
	     { fail_with_eio, -EIO },
	     { leave_well, -ESHUTDOWN },
	     { taken_over, -ESTALE } };

static int lead_until(const char *name, int end)
{
	struct side s;

	if (lead_all(name, RANKS, &s))
		return 99;
	await_go(1);
	ends[end].deed(&s);
	await_go(2);
	return 0;
}

static struct kvr_group *take_over(const char *name)
{
	struct kvr_group_opts o = {
		.size = sizeof o, .ranks = 2, .ring_bytes = RING, .takeover = KVR_TAKEOVER_FENCE
	};
	struct kvr_group *g = NULL;

	must(kvr_group_create(name, &o, &g));
	return g;
}

START_TEST(test_end_of_the_epoch_ends_every_wait)
{
	char name[KVR_NAME_MAX];
	struct kvr_group *next = NULL;
	pid_t pids[RANKS], leader;

	test_name(name, sizeof name, "meet");
	for (uint32_t r = 0; r < RANKS; r++)
		pids[r] = spawn(name, r, until_error);
	leader = fork();
	if (!leader) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(lead_until(name, _i));
	}
	for (uint32_t r = 0; r < RANKS; r++)
		UNTIL(__atomic_load_n(&reports[r].seen, __ATOMIC_ACQUIRE));
	test_sleep_ms(20);
	*go = 1;
	if (ends[_i].err == -ESTALE)
		next = take_over(name);
	reap(pids, RANKS);
	*go = 2;
	ck_assert_int_eq(test_reap(leader, 10000), ends[_i].deed == die ? SIGKILL : 0);
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert_int_eq(reports[r].err, ends[_i].err);
		explained(reports[r].why, "leader", NULL);
	}
	kvr_group_close(next);
	kvr_group_remove(name, NULL);
}
END_TEST

START_TEST(test_leader_takes_part_or_not)
{
	char name[KVR_NAME_MAX];
	int64_t v = 6, min;
	struct side l, a, b;

	test_name(name, sizeof name, "meet");
	must(lead(name, 2, &l));
	must(join(name, 0, &a));
	must(join(name, 1, &b));
	/* The same ranks with and without it are two sets. */
	ck_assert_int_eq(kvr_channels_barrier(a.c, 0, 1, 0), -EAGAIN);
	ck_assert_int_eq(kvr_channels_barrier(b.c, 0, 0, 0), -EAGAIN);
	ck_assert_int_eq(kvr_channels_barrier(b.c, 0, 1, 0), -EAGAIN);
	ck_assert_int_eq(kvr_channels_barrier(a.c, 0, 0, 0), 0);
	ck_assert_int_eq(kvr_channels_barrier(b.c, 0, 0, 0), 0);
	ck_assert_int_eq(kvr_channels_barrier(l.c, 3, 1, 0), 0);
	ck_assert_int_eq(kvr_channels_barrier(a.c, 0, 1, 0), 0);
	ck_assert_int_eq(kvr_channels_barrier(b.c, 0, 1, 0), 0);
	/* One rank and the leader; one rank alone. */
	ck_assert_int_eq(kvr_channels_min_reduce(l.c, 2, 1, &v, 1, &min, 0), -EAGAIN);
	v = 5;
	ck_assert_int_eq(kvr_channels_min_reduce(b.c, 2, 1, &v, 1, &min, 0), 0);
	ck_assert_int_eq(min, 5);
	min = 0;
	ck_assert_int_eq(kvr_channels_min_reduce(l.c, 2, 1, &v, 1, &min, 0), 0);
	ck_assert_int_eq(min, 5);
	v = 8;
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(kvr_channels_min_reduce(b.c, 2, 0, &v, 1, &min, 0), 0);
	ck_assert_int_eq(min, 8);
	leave(&b);
	leave(&a);
	leave(&l);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("channel_meet");
	TCase *t = tcase_create("meet");

	tcase_add_checked_fixture(t, begin, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, test_all_ranks_meet_and_every_minimum_is_true, 1, MOST + 1);
	tcase_add_loop_test(t, test_no_delays, 2, 5);
	tcase_add_test(t, test_all_sets_of_three_ranks);
	tcase_add_test(t, test_overlapping_sets_in_circular_order_when_polled);
	tcase_add_test(t, test_nobody_is_woken_in_vain_or_forgotten);
	tcase_add_loop_test(t, test_killed_member_ends_the_wait_and_is_named, 0, 4);
	tcase_add_test(t, test_member_that_leaves_is_waited_for_no_longer);
	tcase_add_test(t, test_what_a_member_did_before_it_left_counts);
	tcase_add_test(t, test_stopped_member_is_named_and_the_round_goes_on);
	tcase_add_test(t, test_three_of_those_who_are_missing_are_named);
	tcase_add_test(t, test_call_that_a_signal_ended_goes_on);
	tcase_add_loop_test(t, test_end_of_the_epoch_ends_every_wait, 0, 4);
	tcase_add_test(t, test_leader_takes_part_or_not);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
