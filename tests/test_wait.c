/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting: wake-ups by threads and processes, deadlines, signals, stopped processes, and the count
 * of lost wakes.
 */
#include "harness.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>

#include "atomic.h"
#include "clock.h"
#include "kvring/wait.h"
#include "ring_sides.h"
#include "ring_wakes.h"

#define LONG_MS 10000u
#define READY 7 /* what ready() returns when it is */

/* What the sides of a test share. */
struct shared {
	struct kvr_bell bell;
	uint32_t value; /* published before the bell rings */
	uint32_t pad[31];
};

/* What one waiter looks for; its own. */
struct look {
	struct shared *s;
	uint32_t want;
	uint32_t calls;
	uint32_t fail_at; /* the call that fails, 0 none */
};

static struct shared *shared_new(size_t n)
{
	struct shared *s = mmap(NULL, n * sizeof(*s), PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	ck_assert_ptr_ne(s, MAP_FAILED);
	return s;
}

static int look_ready(void *arg)
{
	struct look *l = arg;

	l->calls++;
	if (l->calls == l->fail_at)
		return -EOWNERDEAD;
	return kvr_load_acquire32(&l->s->value) >= l->want ? READY : 0;
}

static int wait_for(struct kvr_waiter *w, struct shared *s, uint32_t want)
{
	struct look l = { .s = s, .want = want };

	return kvr_wait(w, look_ready, &l, test_deadline_ms(LONG_MS));
}

static void publish(struct shared *s, uint32_t value)
{
	kvr_store_release32(&s->value, value);
}

/* What a peer thread does once the waiter sleeps. */
struct peer {
	struct shared *s;
	pid_t waiter;
	uint32_t value;
	int ring;
};

static void *peer_main(void *arg)
{
	struct peer *p = arg;

	while (!kvr_load_acquire32(&p->s->bell.parked) || !side_asleep(p->waiter))
		test_sleep_ms(1);
	publish(p->s, p->value);
	if (p->ring)
		kvr_bell_ring(&p->s->bell);
	return NULL;
}

static pthread_t thread_start(void *(*fn)(void *), void *arg)
{
	pthread_t t;

	ck_assert_int_eq(pthread_create(&t, NULL, fn, arg), 0);
	return t;
}

START_TEST(test_wake_by_a_thread)
{
	struct shared *s = shared_new(1);
	struct peer p = { .s = s, .waiter = gettid(), .value = 1, .ring = 1 };
	struct kvr_waiter w;
	pthread_t t;

	kvr_waiter_init(&w, &s->bell);
	t = thread_start(peer_main, &p);
	ck_assert_int_eq(wait_for(&w, s, 1), READY);
	pthread_join(t, NULL);
	ck_assert_uint_ge(w.sleeps, 1);
	ck_assert_uint_eq(w.lost_wakes, 0);
	ck_assert_uint_eq(s->bell.seq, 1);
	ck_assert_uint_eq(s->bell.parked, 0);
}
END_TEST

START_TEST(test_wake_by_a_process)
{
	struct shared *s = shared_new(1);
	struct kvr_waiter w;
	pid_t pid;

	kvr_waiter_init(&w, &s->bell);
	pid = fork();
	if (!pid) {
		struct peer p = { .s = s, .waiter = getppid(), .value = 1, .ring = 1 };

		peer_main(&p);
		_exit(0);
	}
	ck_assert_int_eq(wait_for(&w, s, 1), READY);
	ck_assert_int_eq(test_reap(pid, LONG_MS), 0);
	ck_assert_uint_eq(w.lost_wakes, 0);
}
END_TEST

/* One side of a game: waits for 1, 2, ... in its own half, answers in the other's. */
static int play(struct shared *own, struct shared *other, int serves, uint32_t rounds,
		uint64_t *ret_lost)
{
	struct kvr_waiter w;
	uint32_t i;

	kvr_waiter_init(&w, &own->bell);
	for (i = 1; i <= rounds; i++) {
		if (serves) {
			publish(other, i);
			kvr_bell_ring(&other->bell);
		}
		if (wait_for(&w, own, i) != READY)
			return -1;
		if (!serves) {
			publish(other, i);
			kvr_bell_ring(&other->bell);
		}
	}
	*ret_lost = w.lost_wakes;
	return 0;
}

START_TEST(test_two_processes_wake_each_other_for_long)
{
	struct shared *s = shared_new(2);
	uint64_t lost = 1;
	pid_t pid = fork();

	if (!pid)
		_exit(play(&s[1], &s[0], 0, 5000, &lost) || lost);
	ck_assert_int_eq(play(&s[0], &s[1], 1, 5000, &lost), 0);
	ck_assert_uint_eq(lost, 0);
	ck_assert_int_eq(test_reap(pid, LONG_MS), 0);
}
END_TEST

struct sleeper {
	struct shared *s;
	int rc;
	uint64_t lost;
};

static void *sleeper_main(void *arg)
{
	struct sleeper *sl = arg;
	struct kvr_waiter w;

	kvr_waiter_init(&w, &sl->s->bell);
	sl->rc = wait_for(&w, sl->s, 1);
	sl->lost = w.lost_wakes;
	return NULL;
}

START_TEST(test_one_ring_wakes_all_sleepers_of_a_bell)
{
	struct shared *s = shared_new(1);
	struct sleeper sl[3] = { { .s = s }, { .s = s }, { .s = s } };
	pthread_t t[3];
	int i;

	for (i = 0; i < 3; i++)
		t[i] = thread_start(sleeper_main, &sl[i]);
	test_sleep_ms(50);
	publish(s, 1);
	kvr_bell_ring(&s->bell);
	for (i = 0; i < 3; i++) {
		pthread_join(t[i], NULL);
		ck_assert_int_eq(sl[i].rc, READY);
		ck_assert_uint_eq(sl[i].lost, 0);
	}
}
END_TEST

/* Adds `value` in steps of 1, each with a ring: several ringers race for the same `parked`. */
static void *ringer_main(void *arg)
{
	struct peer *p = arg;
	uint32_t i;

	for (i = 0; i < p->value; i++) {
		kvr_add_acq_rel32(&p->s->value, 1);
		kvr_bell_ring(&p->s->bell);
	}
	return NULL;
}

START_TEST(test_two_ringers_lose_no_wake)
{
	struct shared *s = shared_new(1);
	struct peer p = { .s = s, .value = 3000 };
	struct kvr_waiter w;
	pthread_t t[2];
	uint32_t seen;

	kvr_waiter_init(&w, &s->bell);
	t[0] = thread_start(ringer_main, &p);
	t[1] = thread_start(ringer_main, &p);
	for (seen = 0; seen < 6000; seen = kvr_load_acquire32(&s->value))
		ck_assert_int_eq(wait_for(&w, s, seen + 1), READY);
	pthread_join(t[0], NULL);
	pthread_join(t[1], NULL);
	ck_assert_uint_eq(w.lost_wakes, 0);
}
END_TEST

START_TEST(test_past_deadline_polls_once)
{
	struct shared *s = shared_new(1);
	struct look l = { .s = s, .want = 1 };
	struct kvr_waiter w;

	kvr_waiter_init(&w, &s->bell);
	ck_assert_int_eq(kvr_wait(&w, look_ready, &l, 0), -ETIMEDOUT);
	ck_assert_uint_eq(l.calls, 1);
	publish(s, 1);
	ck_assert_int_eq(kvr_wait(&w, look_ready, &l, 0), READY);
	ck_assert_uint_eq(l.calls, 2);
	ck_assert_uint_eq(w.sleeps, 0);
}
END_TEST

START_TEST(test_deadline_ends_the_wait_not_before_it)
{
	struct shared *s = shared_new(1);
	struct look l = { .s = s, .want = 1 };
	uint64_t deadline = test_deadline_ms(450);
	struct kvr_waiter w;

	kvr_waiter_init(&w, &s->bell);
	ck_assert_int_eq(kvr_wait(&w, look_ready, &l, deadline), -ETIMEDOUT);
	ck_assert_uint_ge(test_now_ns(), deadline);
	ck_assert_uint_le(w.sleeps, 5); /* it slept: 450 ms in naps of 100 */
	ck_assert_uint_ge(l.calls, 2);
	ck_assert_uint_eq(w.lost_wakes, 0);
}
END_TEST

START_TEST(test_error_of_ready_ends_the_wait)
{
	struct shared *s = shared_new(1);
	struct look l = { .s = s, .want = 1, .fail_at = 1 };
	struct kvr_waiter w;

	kvr_waiter_init(&w, &s->bell);
	ck_assert_int_eq(kvr_wait(&w, look_ready, &l, test_deadline_ms(LONG_MS)), -EOWNERDEAD);
	/* Found by the back-stop, while nobody rings: a death is no lost wake. */
	l = (struct look){ .s = s, .want = 1, .fail_at = 5 };
	ck_assert_int_eq(kvr_wait(&w, look_ready, &l, test_deadline_ms(LONG_MS)), -EOWNERDEAD);
	ck_assert_uint_eq(w.lost_wakes, 0);
}
END_TEST

static void on_alarm(int sig)
{
	(void)sig;
}

START_TEST(test_signal_handler_ends_the_wait)
{
	struct sigaction act = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	struct itimerval every = { { 0, 20000 }, { 0, 20000 } }, never = { { 0, 0 }, { 0, 0 } };
	struct shared *s = shared_new(1);
	struct kvr_waiter w;

	kvr_waiter_init(&w, &s->bell);
	ck_assert_int_eq(sigaction(SIGALRM, &act, NULL), 0);
	/* Repeated: one that comes before the sleep does not end it. */
	ck_assert_int_eq(setitimer(ITIMER_REAL, &every, NULL), 0);
	ck_assert_int_eq(wait_for(&w, s, 1), -EINTR);
	ck_assert_int_eq(setitimer(ITIMER_REAL, &never, NULL), 0);
	publish(s, 1);
	ck_assert_int_eq(wait_for(&w, s, 1), READY); /* calling again goes on */
}
END_TEST

START_TEST(test_dropped_wakes_are_counted_exactly)
{
	static const int rings[] = { 0, 1, 0, 0, 1, 0 };
	struct shared *s = shared_new(1);
	struct kvr_waiter w;
	uint32_t i, dropped = 0;

	kvr_waiter_init(&w, &s->bell);
	for (i = 0; i < sizeof(rings) / sizeof(rings[0]); i++) {
		struct peer p = { .s = s, .waiter = gettid(), .value = i + 1, .ring = rings[i] };
		pthread_t t;

		kvr_store_relaxed32(&s->bell.parked, 0);
		t = thread_start(peer_main, &p);
		ck_assert_int_eq(wait_for(&w, s, i + 1), READY);
		pthread_join(t, NULL);
		dropped += !rings[i];
		ck_assert_uint_eq(w.lost_wakes, dropped);
	}
	ck_assert_uint_eq(dropped, 4);
}
END_TEST

/* Becomes true at the back-stop of the first sleep: the third look. */
static int ready_at_back_stop(void *arg)
{
	struct look *l = arg;

	if (++l->calls < 3)
		return 0;
	if (l->want)
		kvr_bell_ring(&l->s->bell);
	return READY;
}

/* The back-stop comes between a publish and its ring: late is not lost. */
START_TEST(test_late_ring_is_no_lost_wake)
{
	struct shared *s = shared_new(1);
	struct look late = { .s = s, .want = 1 }, never = { .s = s };
	struct kvr_waiter w;

	kvr_waiter_init(&w, &s->bell);
	ck_assert_int_eq(kvr_wait(&w, ready_at_back_stop, &late, test_deadline_ms(LONG_MS)), READY);
	ck_assert_uint_eq(w.sleeps, 1);
	ck_assert_uint_eq(w.lost_wakes, 0);
	ck_assert_int_eq(kvr_wait(&w, ready_at_back_stop, &never, test_deadline_ms(LONG_MS)),
			 READY);
	ck_assert_uint_eq(w.sleeps, 2);
	ck_assert_uint_eq(w.lost_wakes, 1);
}
END_TEST

/* Then nobody can say whether a ring would still have come. */
START_TEST(test_own_deadline_leaves_the_question_open)
{
	struct shared *s = shared_new(1);
	struct peer p = { .s = s, .waiter = gettid(), .value = 1 };
	struct look l = { .s = s, .want = 1 };
	struct kvr_waiter w;
	pthread_t t;

	kvr_waiter_init(&w, &s->bell);
	t = thread_start(peer_main, &p);
	kvr_wait(&w, look_ready, &l, test_deadline_ms(60));
	pthread_join(t, NULL);
	ck_assert_uint_eq(w.lost_wakes, 0);
}
END_TEST

/* Whatever a peer writes into a bell: the wait still ends, in time, with the right answer. */
static void *vandal_main(void *arg)
{
	struct shared *s = arg;
	uint32_t i, x = 1;

	for (i = 0; i < 20000; i++) {
		x = x * 1664525u + 1013904223u;
		kvr_store_relaxed32(&s->bell.seq, x);
		kvr_store_relaxed32(&s->bell.parked, x >> 7 & 3);
		if (!(i & 1023))
			test_sleep_ms(1);
	}
	kvr_store_relaxed32(&s->bell.parked, 0);
	publish(s, 1);
	return NULL;
}

START_TEST(test_overwritten_bell_costs_at_most_a_back_stop)
{
	struct shared *s = shared_new(1);
	struct kvr_waiter w;
	pthread_t t;

	kvr_waiter_init(&w, &s->bell);
	t = thread_start(vandal_main, s);
	ck_assert_int_eq(wait_for(&w, s, 1), READY);
	pthread_join(t, NULL);
}
END_TEST

/* --- stopped processes ------------------------------------------------------------------------ */

/* A child that waits for 1 and leaves with its number of lost wakes, 99 when it did not get it. */
static pid_t start_sleeper(struct shared *s, int (*ready)(void *))
{
	struct look l = { .s = s, .want = 1 };
	struct kvr_waiter w;
	pid_t pid = side_fork();
	int rc;

	if (pid)
		return pid;
	kvr_waiter_init(&w, &s->bell);
	w.spin_cap_ns = 0;
	rc = kvr_wait(&w, ready, &l, test_deadline_ms(LONG_MS));
	_exit(rc == READY ? (int)w.lost_wakes : 99);
}

static void await_sleep(struct shared *s, pid_t pid)
{
	uint64_t deadline = test_deadline_ms(LONG_MS);

	while ((!kvr_load_acquire32(&s->bell.parked) || !side_asleep(pid)) &&
	       test_now_ns() < deadline)
		test_sleep_ms(1);
}

static void await_stop(pid_t pid)
{
	int status;

	ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
	ck_assert(WIFSTOPPED(status));
}

START_TEST(test_stopped_sleeper_loses_no_wake)
{
	struct shared *s = shared_new(1);
	pid_t pid = start_sleeper(s, look_ready);

	await_sleep(s, pid);
	kill(pid, SIGSTOP);
	await_stop(pid);
	if (_i) /* its back-stop passes before the publish, or after it */
		test_sleep_ms(150);
	publish(s, 1);
	kvr_bell_ring(&s->bell);
	test_sleep_ms(_i ? 1 : 150);
	kill(pid, SIGCONT);
	ck_assert_int_eq(test_reap(pid, LONG_MS), 0);
}
END_TEST

/*
 * Stopped right after its publish, a ringer looks like one that will not ring: that counts, once.
 * Its ring comes late and wakes who has nothing to find; what comes then is as before.
 */
START_TEST(test_ringer_stopped_before_its_ring_counts_once)
{
	struct shared *s = shared_new(1);
	struct kvr_waiter w;
	pid_t pid, me = getpid();
	uint32_t i;

	pid = side_fork();
	if (!pid) {
		for (i = 1; i <= 3; i++) {
			while (!kvr_load_acquire32(&s->bell.parked) || !side_asleep(me))
				test_sleep_ms(1);
			publish(s, i);
			if (i == 1)
				raise(SIGSTOP);
			kvr_bell_ring(&s->bell);
		}
		_exit(0);
	}
	kvr_waiter_init(&w, &s->bell);
	ck_assert_int_eq(wait_for(&w, s, 1), READY);
	ck_assert_uint_eq(w.lost_wakes, 1);
	await_stop(pid);
	kill(pid, SIGCONT);
	ck_assert_int_eq(wait_for(&w, s, 2), READY);
	ck_assert_int_eq(wait_for(&w, s, 3), READY);
	ck_assert_uint_eq(w.lost_wakes, 1);
	ck_assert_int_eq(test_reap(pid, LONG_MS), 0);
}
END_TEST

/* Arms a timer for the grace time, 3 ms after the look that the back-stop brought. */
static int ready_and_timer(void *arg)
{
	struct itimerval soon = { { 0, 0 }, { 0, 3000 } };
	struct look *l = arg;

	if (++l->calls < 3)
		return 0;
	setitimer(ITIMER_REAL, &soon, NULL);
	return READY;
}

START_TEST(test_signal_in_the_grace_time_hides_no_lost_wake)
{
	struct sigaction act = { .sa_handler = on_alarm };
	struct shared *s = shared_new(1);
	struct look l = { .s = s };
	struct kvr_waiter w;

	ck_assert_int_eq(sigaction(SIGALRM, &act, NULL), 0);
	kvr_waiter_init(&w, &s->bell);
	ck_assert_int_eq(kvr_wait(&w, ready_and_timer, &l, test_deadline_ms(LONG_MS)), READY);
	ck_assert_uint_eq(w.sleeps, 1);
	ck_assert_uint_eq(w.lost_wakes, 1);
}
END_TEST

static void on_alarm_stop(int sig)
{
	(void)sig;
	raise(SIGSTOP);
}

/*
 * All processes of a machine, or of a terminal, stop and go on together. The time that passed
 * meanwhile is no time in which the ringer could have rung. It rings 2 ms later here; on a busy
 * machine that may come too late, so one time in ten is enough.
 */
START_TEST(test_pause_in_the_grace_time_is_not_the_ringers)
{
	struct sigaction act = { .sa_handler = on_alarm_stop };
	struct shared *s = shared_new(1);
	int i, status = 1;
	pid_t pid;

	ck_assert_int_eq(sigaction(SIGALRM, &act, NULL), 0);
	for (i = 0; i < 10 && status; i++) {
		pid = start_sleeper(s, ready_and_timer);
		await_stop(pid);
		test_sleep_ms(30);
		kill(pid, SIGCONT);
		test_sleep_ms(2);
		kvr_bell_ring(&s->bell);
		status = test_reap(pid, LONG_MS); /* the number of lost wakes */
	}
	ck_assert_int_eq(status, 0);
}
END_TEST

/* --- games of processes: see ring_wakes.h ----------------------------------------------------- */

START_TEST(test_drops_by_a_process_are_counted_exactly)
{
	struct drop_game *g = side_map(sizeof *g);
	pid_t pids[2];

	g->plan = (struct drop_plan){
		.seed = test_seed(),
		.deadline = test_deadline_ms(LONG_MS),
		.drops = 5,
		.rings = 10,
	};
	drop_start(g, pids);
	sides_must_end(pids, 2, g->plan.deadline);
	ck_assert_uint_eq(g->real, 5);
	ck_assert_uint_eq(drop_wrong(g), 0);
	ck_assert_uint_ge(g->side[0].lost, 5);
}
END_TEST

START_TEST(test_teams_lose_no_wake)
{
	static const uint32_t members[][2] = { { 1, 1 }, { 1, 4 }, { 3, 2 }, { 4, 4 } };
	struct team_game *g = side_map(sizeof *g);
	pid_t pids[2 * TEAM_MAX];
	uint32_t n;

	g->plan = (struct team_plan){
		.seed = test_seed(),
		.deadline = test_deadline_ms(LONG_MS),
		.turns = 1000,
		.members = { members[_i % 4][0], members[_i % 4][1] },
		.delay = { 0, 100 },
		.cpus = (enum team_cpus)(_i / 4),
	};
	g->bell[0].seq = g->bell[1].seq = 0u - 100; /* the futex word wraps, too */
	n = team_start(g, pids);
	sides_must_end(pids, n, g->plan.deadline);
	ck_assert_uint_eq(team_unexplained(g), 0);
}
END_TEST

/*
 * Eight pairs on one CPU that may all spin. Who spins for long keeps the peer that it waits for
 * from running, and each turn takes the scheduler's time slices: then this takes minutes.
 */
START_TEST(test_spinners_starve_nobody)
{
	uint64_t deadline = test_deadline_ms(2 * LONG_MS);
	pid_t pids[16];
	uint32_t i;

	for (i = 0; i < 8; i++) {
		struct team_game *g = side_map(sizeof *g);

		g->plan = (struct team_plan){
			.deadline = deadline,
			.turns = 2000 / SIDE_SLOW,
			.members = { 1, 1 },
			.spin_ns = { 20000, 20000 },
			.cpus = TEAM_ONE_CPU,
		};
		team_start(g, &pids[2 * i]);
	}
	sides_must_end(pids, 16, deadline);
}
END_TEST

/* One in a hundred of a core is no measure of speed: a waiter that polls takes all of it. */
START_TEST(test_waiting_takes_next_to_no_cpu)
{
	struct shared *s = shared_new(1);
	struct look l = { .s = s, .want = 1 };
	struct rusage before, after;
	struct kvr_waiter w;
	struct timeval used;

	kvr_waiter_init(&w, &s->bell);
	getrusage(RUSAGE_THREAD, &before);
	ck_assert_int_eq(kvr_wait(&w, look_ready, &l, test_deadline_ms(2000)), -ETIMEDOUT);
	getrusage(RUSAGE_THREAD, &after);
	timersub(&after.ru_utime, &before.ru_utime, &used);
	timeradd(&used, &after.ru_stime, &used);
	timersub(&used, &before.ru_stime, &used);
	ck_assert_int_eq(used.tv_sec, 0);
	ck_assert_int_lt(used.tv_usec, 20000);
}
END_TEST

START_TEST(test_spin_follows_the_gap_and_is_bounded)
{
	struct shared *s = shared_new(1);
	struct kvr_waiter w;
	uint32_t i;

	kvr_waiter_init(&w, &s->bell);
	ck_assert_uint_eq(w.spin_ns, 0);
	for (i = 1; i <= 3; i++) { /* rare arrivals: not worth a spin */
		struct peer p = { .s = s, .waiter = gettid(), .value = i, .ring = 1 };
		pthread_t t = thread_start(peer_main, &p);

		ck_assert_int_eq(wait_for(&w, s, i), READY);
		pthread_join(t, NULL);
		ck_assert_uint_eq(w.spin_ns, 0);
	}
	for (i = 0; i < 100; i++) { /* every second look finds something, at once */
		struct look l = { .s = s, .want = i & 1 ? 0 : UINT32_MAX };

		kvr_wait(&w, look_ready, &l, kvr_now() + 1000);
		ck_assert_uint_le(w.spin_ns, 6000);
	}
}
END_TEST

/* Where the peer has no core of its own, spins end in a sleep all the same. */
START_TEST(test_spins_in_vain_are_left_out)
{
	struct shared *s = shared_new(1);
	struct look never = { .s = s, .want = UINT32_MAX };
	struct look soon = { .s = s, .want = UINT32_MAX, .fail_at = 2 };
	struct kvr_waiter w;
	uint32_t i, vain;

	kvr_waiter_init(&w, &s->bell);
	for (i = 0; i < 40; i++) {
		w.spin_ns = 1000;
		kvr_wait(&w, look_ready, &never, kvr_now() + 20000);
	}
	vain = w.in_vain;
	ck_assert_uint_ge(vain, 7);
	ck_assert_uint_le(vain, 256);
	for (i = 0; i < 40; i++) /* a poll, or a deadline that ends the spin, says nothing */
		kvr_wait(&w, look_ready, &never, i % 2 ? 0 : kvr_now() + 100);
	ck_assert_uint_le(w.in_vain, vain);
	for (i = 0; i < 4; i++) { /* and come back when they help */
		w.skip = 0;
		w.spin_ns = 1000000000;
		soon.calls = 0;
		kvr_wait(&w, look_ready, &soon, test_deadline_ms(LONG_MS));
	}
	ck_assert_uint_le(w.in_vain, vain / 16);
}
END_TEST

START_TEST(test_no_spin_on_a_single_cpu)
{
	struct shared *s = shared_new(2);
	struct kvr_waiter w;
	uint64_t lost = 1;
	cpu_set_t old, one;
	size_t cpu;
	pid_t pid;

	ck_assert_int_eq(sched_getaffinity(0, sizeof(old), &old), 0);
	for (cpu = 0; !CPU_ISSET(cpu, &old); cpu++)
		;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
	kvr_waiter_init(&w, &s->bell);
	ck_assert_uint_eq(w.spin_cap_ns, 0);
	pid = fork(); /* and two that share a core do not starve each other */
	if (!pid)
		_exit(play(&s[1], &s[0], 0, 1000, &lost) || lost);
	ck_assert_int_eq(play(&s[0], &s[1], 1, 1000, &lost), 0);
	ck_assert_uint_eq(lost, 0);
	ck_assert_int_eq(test_reap(pid, LONG_MS), 0);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("wait");
	TCase *t = tcase_create("wait");

	tcase_add_test(t, test_wake_by_a_thread);
	tcase_add_test(t, test_wake_by_a_process);
	tcase_add_test(t, test_two_processes_wake_each_other_for_long);
	tcase_add_test(t, test_one_ring_wakes_all_sleepers_of_a_bell);
	tcase_add_test(t, test_two_ringers_lose_no_wake);
	tcase_add_test(t, test_past_deadline_polls_once);
	tcase_add_test(t, test_deadline_ends_the_wait_not_before_it);
	tcase_add_test(t, test_error_of_ready_ends_the_wait);
	tcase_add_test(t, test_signal_handler_ends_the_wait);
	tcase_add_test(t, test_dropped_wakes_are_counted_exactly);
	tcase_add_test(t, test_late_ring_is_no_lost_wake);
	tcase_add_test(t, test_own_deadline_leaves_the_question_open);
	tcase_add_test(t, test_overwritten_bell_costs_at_most_a_back_stop);
	tcase_add_test(t, test_spin_follows_the_gap_and_is_bounded);
	tcase_add_test(t, test_spins_in_vain_are_left_out);
	tcase_add_test(t, test_no_spin_on_a_single_cpu);
	tcase_add_test(t, test_waiting_takes_next_to_no_cpu);
	suite_add_tcase(s, t);
	t = tcase_create("stops");
	tcase_add_loop_test(t, test_stopped_sleeper_loses_no_wake, 0, 2);
	tcase_add_test(t, test_ringer_stopped_before_its_ring_counts_once);
	tcase_add_test(t, test_signal_in_the_grace_time_hides_no_lost_wake);
	tcase_add_test(t, test_pause_in_the_grace_time_is_not_the_ringers);
	suite_add_tcase(s, t);
	t = tcase_create("games");
	tcase_set_timeout(t, 30);
	tcase_add_test(t, test_drops_by_a_process_are_counted_exactly);
	tcase_add_loop_test(t, test_teams_lose_no_wake, 0, 12);
	tcase_add_test(t, test_spinners_starve_nobody);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
