/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many at once: users with the same group name, groups in one tree of processes, as many ranks as
 * there can be, a rank number given twice, and a process that is more than one member.
 */
#include "group_ends.h"

#include <grp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "atomic.h"
#include "kvring/inspect.h"
#include "point.h"
#include "util.h"

static int say(struct end *e, uint64_t set, uint64_t value)
{
	return kvr_channels_publish(e->c, CH, set, KVR_TAG_USER, NULL, &value, sizeof value,
				    test_deadline_ms(WAIT_MS));
}

/* The value, or -errno. */
static int64_t hear(struct end *e, uint64_t deadline_ns)
{
	struct kvr_message m;
	uint64_t value;
	int rc = kvr_channels_take(e->c, CH, deadline_ns, &m);

	if (rc)
		return rc;
	if (m.len != sizeof value)
		return -EPROTO;
	memcpy(&value, m.data, sizeof value);
	return (int64_t)value;
}

/* --- two users, one name, one directory --- */

static const uid_t users[2] = { 61801, 61802 };

static void become(uid_t uid)
{
	if (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid))
		_exit(77);
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* forgotten when the uid changes */
}

/* /dev/shm: sticky and world-writable, the place where users meet. */
static int shared_directory(void)
{
	struct stat st;

	if (geteuid()) {
		test_skip("only root can be two users");
		return 0;
	}
	if (stat(KVR_SHM_DIR, &st) || (st.st_mode & 01777) != 01777) {
		test_skip(KVR_SHM_DIR " is not a sticky directory that all may write");
		return 0;
	}
	opts.dir = NULL;
	opts.ranks = 1;
	return 1;
}

static void user_path(char file[KVR_SHM_PATH], int user, const char *suffix)
{
	snprintf(file, KVR_SHM_PATH, KVR_SHM_DIR "/kvr-%u-%s%s", (unsigned)users[user], name,
		 suffix);
}

/* Says its uid, again and again. */
static int user_leader(struct member *m)
{
	struct end e = { 0 };
	int rc;

	become(users[m->rank]);
	rc = end_lead(name, &e);
	member_report(m, rc, e.g);
	while (!rc && member_order(m))
		member_report(m, say(&e, 0, users[m->rank]), e.g);
	if (!rc)
		end_close(&e);
	return 0;
}

static int user_rank(struct member *m)
{
	struct end e = { 0 };
	int rc;

	become(users[m->rank]);
	rc = end_join(name, 0, &e);
	member_report(m, rc, e.g);
	while (!rc && member_order(m))
		member_report(m, (int)hear(&e, test_deadline_ms(WAIT_MS)), e.g);
	if (!rc)
		end_close(&e);
	return 0;
}

START_TEST(test_two_users_have_a_group_of_the_same_name)
{
	struct member l[2], r[2];
	char file[KVR_SHM_PATH];

	if (!shared_directory())
		return;
	for (int u = 0; u < 2; u++) {
		r[u] = member_start(user_rank, (uint32_t)u);
		l[u] = member_start(user_leader, (uint32_t)u);
	}
	for (int u = 0; u < 2; u++) {
		struct stat st;

		member_ready(&l[u]);
		member_ready(&r[u]);
		user_path(file, u, "");
		ck_assert_int_eq(lstat(file, &st), 0);
		ck_assert_uint_eq(st.st_uid, users[u]);
		ck_assert_uint_eq(st.st_mode, S_IFREG | 0600);
	}
	for (int i = 0; i < 20; i++)
		for (int u = 0; u < 2; u++) {
			member_tell(&l[u], 'p');
			member_tell(&r[u], 't');
			member_ready(&l[u]);
			ck_assert_int_eq(member_hears(&r[u]).rc, users[u]);
		}
	/* One ends; the other goes on. */
	member_end(&r[0]);
	member_end(&l[0]);
	member_tell(&l[1], 'p');
	member_tell(&r[1], 't');
	member_ready(&l[1]);
	ck_assert_int_eq(member_hears(&r[1]).rc, users[1]);
	member_end(&r[1]);
	member_end(&l[1]);
	for (int u = 0; u < 2; u++) {
		user_path(file, u, "");
		ck_assert_int_eq(access(file, F_OK), -1);
	}
}
END_TEST

static void plant(const char *file, mode_t mode)
{
	int fd = open(file, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, "planted", 7), 7);
	ck_assert_int_eq(fchmod(fd, mode), 0);
	ck_assert_int_eq(fchown(fd, users[1], users[1]), 0);
	close(fd);
}

/* What the other user left under this user's names: an error that names it, and it stays. */
START_TEST(test_files_of_another_user_are_refused_and_stay)
{
	static const char *const suffixes[] = { "", ".lock" };
	static const mode_t modes[] = { 0600, 0666 };
	char file[KVR_SHM_PATH];

	if (!shared_directory())
		return;
	for (size_t s = 0; s < KVR_ARRAY_LEN(suffixes); s++)
		for (size_t i = 0; i < KVR_ARRAY_LEN(modes); i++) {
			struct stat before, after;
			struct report r;
			struct member l;

			user_path(file, 0, suffixes[s]);
			plant(file, modes[i]);
			ck_assert_int_eq(lstat(file, &before), 0);
			l = member_start(user_leader, 0);
			r = member_hears(&l);
			ck_assert_msg(r.rc == -EPERM || r.rc == -EACCES, "%s: %d %s", file, r.rc,
				      r.why);
			ck_assert_msg(strstr(r.why, file), "%s", r.why);
			member_end(&l);
			ck_assert_int_eq(lstat(file, &after), 0);
			ck_assert(before.st_ino == after.st_ino && after.st_size == 7 &&
				  before.st_mode == after.st_mode &&
				  before.st_ctim.tv_nsec == after.st_ctim.tv_nsec);
			ck_assert_int_eq(unlink(file), 0);
			/* And nothing of its own is left. */
			user_path(file, 0, s ? "" : ".lock");
			ck_assert_int_eq(access(file, F_OK), -1);
		}
}
END_TEST

/* --- ten groups, each process in two of them, the test in all --- */

#define MANY_GROUPS 10u
#define MESSAGES 200u

static void group_name(char group[64], uint32_t i)
{
	snprintf(group, 64, "%s-%u", name, i % MANY_GROUPS);
}

static uint64_t value_of(uint32_t group, uint32_t k)
{
	return (group % MANY_GROUPS) * 100000u + k;
}

/* Leads one group and is rank 0 of the next one. */
static int member_of_two(struct member *m)
{
	struct end own = { 0 }, next = { 0 };
	char group[64];
	uint32_t k;
	int rc;

	group_name(group, m->rank);
	rc = end_lead(group, &own);
	member_report(m, rc, own.g);
	group_name(group, m->rank + 1);
	if (!rc)
		rc = end_join(group, 0, &next);
	for (k = 0; !rc && k < MESSAGES; k++) {
		int64_t got;

		rc = say(&own, 0, value_of(m->rank, k));
		if (rc)
			break;
		got = hear(&next, test_deadline_ms(WAIT_MS));
		if (got != (int64_t)value_of(m->rank + 1, k))
			rc = got < 0 ? (int)got : -EBADMSG;
	}
	if (!rc)
		rc = kvr_group_watch_ranks(own.g);
	member_report(m, rc, own.g);
	member_order(m);
	end_close(&next);
	end_close(&own);
	return 0;
}

static void count_path(void *arg, const char *file)
{
	(void)file;
	++*(int *)arg;
}

START_TEST(test_ten_groups_at_once)
{
	struct member m[MANY_GROUPS];
	struct end e[MANY_GROUPS];
	uint32_t got[MANY_GROUPS] = { 0 }, all = 0;
	uint64_t deadline;
	char group[64];
	int n = 0;

	opts.ranks = 2;
	for (uint32_t i = 0; i < MANY_GROUPS; i++)
		m[i] = member_start(member_of_two, i);
	for (uint32_t i = 0; i < MANY_GROUPS; i++) {
		member_ready(&m[i]);
		group_name(group, i);
		ck_assert_msg(!end_join(group, 1, &e[i]), "%s", kvr_explain());
	}
	ck_assert_int_eq(kvr_inspect_list(dir, count_path, &n), MANY_GROUPS);
	deadline = test_deadline_ms(WAIT_MS);
	while (all < MANY_GROUPS * MESSAGES && test_now_ns() < deadline) {
		uint32_t before = all;

		for (uint32_t i = 0; i < MANY_GROUPS; i++) {
			int64_t v = got[i] < MESSAGES ? hear(&e[i], 0) : -EAGAIN;

			if (v == -EAGAIN)
				continue;
			ck_assert_msg(v == (int64_t)value_of(i, got[i]),
				      "group %u, message %u: %lld %s", i, got[i], (long long)v,
				      v < 0 ? kvr_explain() : "");
			got[i]++;
			all++;
		}
		if (all == before)
			sched_yield();
	}
	ck_assert_uint_eq(all, MANY_GROUPS * MESSAGES);
	for (uint32_t i = 0; i < MANY_GROUPS; i++) {
		member_ready(&m[i]);
		end_close(&e[i]);
	}
	/* None ends before all have heard everything: that would be a shutdown to its rank. */
	for (uint32_t i = 0; i < MANY_GROUPS; i++)
		member_end(&m[i]);
	ck_assert_int_eq(files_in_dir(), 0);
}
END_TEST

/* --- 64 ranks --- */

#define ALL KVR_MAX_RANKS
#define VICTIM 17u

/* Takes MESSAGES messages, then waits for the next one. */
static int member_listens(struct member *m)
{
	struct end e = { 0 };
	int rc = end_join(name, m->rank, &e);

	member_report(m, rc, e.g);
	for (uint32_t k = 0; !rc && k < MESSAGES; k++) {
		int64_t v = hear(&e, test_deadline_ms(WAIT_MS));

		if (v != k)
			rc = v < 0 ? (int)v : -EBADMSG;
	}
	member_report(m, rc, e.g);
	if (!rc)
		rc = (int)hear(&e, test_deadline_ms(WAIT_MS));
	member_report(m, rc, e.g);
	member_order(m);
	end_close(&e);
	return 0;
}

static uint32_t first_dead(struct kvr_group *g)
{
	struct kvr_peer p;
	uint32_t r;

	for (r = 0; r < ALL; r++) {
		ck_assert_int_eq(kvr_group_peer(g, r, &p), 0);
		if (p.state == KVR_PEER_DEAD)
			break;
	}
	return r;
}

START_TEST(test_death_of_one_of_64_ranks_is_told_to_the_others)
{
	struct end l = { 0 };
	struct member m[ALL];
	uint64_t deadline;
	uint32_t dead;
	char text[64];

	opts.ranks = ALL;
	/* They wait for it: no thread of this process before the last fork, for TSan. */
	for (uint32_t r = 0; r < ALL; r++)
		m[r] = member_start(member_listens, r);
	ck_assert_msg(!end_lead(name, &l), "%s", kvr_explain());
	for (uint32_t r = 0; r < ALL; r++)
		member_ready(&m[r]);
	for (uint32_t k = 0; k < MESSAGES; k++)
		ck_assert_msg(!say(&l, 0, k), "%s", kvr_explain());
	for (uint32_t r = 0; r < ALL; r++)
		member_ready(&m[r]);
	ck_assert_uint_eq(first_dead(l.g), ALL);
	kill(m[VICTIM].pid, SIGKILL);
	deadline = test_deadline_ms(WAIT_MS);
	while ((dead = first_dead(l.g)) == ALL && test_now_ns() < deadline)
		test_sleep_ms(1);
	ck_assert_uint_eq(dead, VICTIM);
	ck_assert_int_eq(kvr_group_fail(l.g, dead, -EOWNERDEAD), 0);
	snprintf(text, sizeof text, "rank %u (pid %d, dead", VICTIM, (int)m[VICTIM].pid);
	ck_assert_int_eq(kvr_group_check(l.g), -EOWNERDEAD);
	explained(text);
	for (uint32_t r = 0; r < ALL; r++) {
		struct report got;

		if (r == VICTIM)
			continue;
		got = member_hears(&m[r]);
		ck_assert_msg(got.rc == -EOWNERDEAD && strstr(got.why, text), "rank %u: %d %s", r,
			      got.rc, got.why);
		member_end(&m[r]);
	}
	member_kill(&m[VICTIM]);
	end_close(&l);
	ck_assert_int_eq(kvr_group_remove(name, dir), 0); /* what such an end leaves for a look */
	ck_assert_int_eq(files_in_dir(), 0);
}
END_TEST

/* --- a rank number given twice, and a leader --- */

#define CONTENDERS 4u
#define ROUNDS 24u

static struct race {
	uint32_t leaders;	     /* 1: all want to lead; 0: to be the rank of the round */
	uint32_t start, looked, end; /* meeting points, counted over all rounds */
	int32_t rc[ROUNDS][CONTENDERS];
	int32_t pid[CONTENDERS];
	char why[ROUNDS][CONTENDERS][256];
} * race;

/* Everybody goes on when `until` have come. */
static void meet(uint32_t *count, uint32_t until)
{
	uint64_t deadline = test_deadline_ms(WAIT_MS);

	__atomic_add_fetch(count, 1, __ATOMIC_ACQ_REL);
	while (__atomic_load_n(count, __ATOMIC_ACQUIRE) < until) {
		if (test_now_ns() > deadline)
			_exit(96);
		sched_yield();
	}
}

static uint32_t contest_round, looks;

/* All have seen the place free before one of them takes it. */
static void look_together(enum kvr_point at, uint32_t arg)
{
	(void)arg;
	if (at == KVR_POINT_attach_looked && !looks++)
		meet(&race->looked, CONTENDERS * (contest_round + 1));
}

static int member_contends(struct member *m)
{
	uint32_t who = m->rank;

	race->pid[who] = getpid();
	kvr_point_hook = look_together;
	for (contest_round = 0; contest_round < ROUNDS; contest_round++) {
		struct kvr_group *g;
		int rc;

		looks = 0;
		meet(&race->start, CONTENDERS * (contest_round + 1));
		rc = race->leaders ? kvr_group_create(name, &opts, &g)
				   : kvr_group_attach(name, contest_round, &opts,
						      test_deadline_ms(WAIT_MS), &g);
		race->rc[contest_round][who] = rc;
		snprintf(race->why[contest_round][who], sizeof race->why[0][0], "%s",
			 rc ? kvr_explain() : "");
		meet(&race->end, CONTENDERS * (contest_round + 1));
		if (!rc)
			kvr_group_close(g);
	}
	return 0;
}

/* In each round one is in, and the others say which; `text` has a %d for its pid or 0. */
static void one_is_in(uint32_t round, const char *text)
{
	char named[96], unnamed[96];
	uint32_t in = 0;
	int winner = 0;

	for (uint32_t i = 0; i < CONTENDERS; i++)
		if (!race->rc[round][i]) {
			in++;
			winner = race->pid[i];
		}
	ck_assert_msg(in == 1, "round %u: %u got in", round, in);
	snprintf(named, sizeof named, "%s%d", text, winner);
	snprintf(unnamed, sizeof unnamed, "%s0 (0: it is just attaching)", text);
	for (uint32_t i = 0; i < CONTENDERS; i++) {
		const char *why = race->why[round][i];
		int rc = race->rc[round][i];

		ck_assert_msg(!rc || (rc == -EBUSY && (strstr(why, named) || strstr(why, unnamed))),
			      "round %u: %d %s", round, rc, why);
	}
}

static void contest(uint32_t leaders)
{
	struct member m[CONTENDERS];
	struct kvr_group *l = NULL;
	char text[64];

	race = mmap(NULL, sizeof *race, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(race, MAP_FAILED);
	race->leaders = leaders;
	opts.ranks = ROUNDS;
	for (uint32_t i = 0; i < CONTENDERS; i++)
		m[i] = member_start(member_contends, i);
	if (!leaders)
		l = create();
	for (uint32_t i = 0; i < CONTENDERS; i++)
		member_end(&m[i]);
	for (uint32_t r = 0; r < ROUNDS; r++) {
		snprintf(text, sizeof text, "rank %u of epoch 1 is taken by pid ", r);
		one_is_in(r, leaders ? "lives (pid " : text);
	}
	kvr_group_close(l);
	ck_assert_int_eq(files_in_dir(), 0);
	munmap(race, sizeof *race);
}

START_TEST(test_of_a_rank_started_many_times_exactly_one_gets_in)
{
	contest(0);
}
END_TEST

START_TEST(test_of_leaders_started_at_once_exactly_one_gets_in)
{
	contest(1);
}
END_TEST

/* --- a process that is leader and rank --- */

/* Orders: 'p' publish and take one's own copy; 'l' and 'r' close leader or rank. */
static int member_leads_and_follows(struct member *m)
{
	struct end l = { 0 }, r = { 0 };
	int rc = end_lead(name, &l);
	char order;

	if (!rc)
		rc = end_join(name, 0, &r);
	member_report(m, rc, l.g);
	while ((order = member_order(m))) {
		rc = 0;
		if (order == 'p') {
			rc = say(&l, 0, 7);
			if (!rc)
				rc = (int)hear(&r, test_deadline_ms(WAIT_MS));
		} else if (order == 'l') {
			end_close(&l);
			rc = r.g ? (int)hear(&r, test_deadline_ms(WAIT_MS)) : 0;
		} else if (order == 'r') {
			end_close(&r);
			r.g = NULL;
		}
		member_report(m, rc, NULL);
	}
	return 0;
}

START_TEST(test_leader_that_is_a_rank_dies_as_both)
{
	struct member m = member_start(member_leads_and_follows, KVR_LEADER);
	struct kvr_group *next;
	struct end e = { 0 };

	member_ready(&m);
	ck_assert_msg(!end_join(name, 1, &e), "%s", kvr_explain());
	member_tell(&m, 'p');
	ck_assert_int_eq(hear(&e, test_deadline_ms(WAIT_MS)), 7);
	ck_assert_int_eq(member_hears(&m).rc, 7);
	ck_assert_int_eq(try_attach(0, 100), -EBUSY);
	member_kill(&m);
	ck_assert_int_eq(hear(&e, test_deadline_ms(WAIT_MS)), -EOWNERDEAD);
	explained("the leader of epoch 1 died");
	ck_assert_int_eq(kvr_life_peek(&kvr_group_rank_page(e.g, 0)->proc.life), KVR_LIFE_DEAD);
	next = create();
	ck_assert_uint_eq(kvr_group_epoch(next), 2);
	ck_assert_int_eq(try_attach(0, 3000), 0);
	end_close(&e);
	kvr_group_close(next);
}
END_TEST

START_TEST(test_leader_that_is_a_rank_ends_in_either_order)
{
	struct member m = member_start(member_leads_and_follows, KVR_LEADER);

	member_ready(&m);
	if (_i) {
		member_tell(&m, 'l');
		ck_assert_int_eq(member_hears(&m).rc, -ESHUTDOWN);
		member_tell(&m, 'r');
		member_ready(&m);
	} else {
		member_tell(&m, 'r');
		member_ready(&m);
		member_tell(&m, 'l');
		member_ready(&m);
	}
	member_end(&m);
	ck_assert_int_eq(files_in_dir(), 0);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("group_many");
	TCase *t = tcase_create("many");

	tcase_set_timeout(t, 40);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, test_two_users_have_a_group_of_the_same_name);
	tcase_add_test(t, test_files_of_another_user_are_refused_and_stay);
	tcase_add_test(t, test_ten_groups_at_once);
	tcase_add_test(t, test_death_of_one_of_64_ranks_is_told_to_the_others);
	tcase_add_test(t, test_of_a_rank_started_many_times_exactly_one_gets_in);
	tcase_add_test(t, test_of_leaders_started_at_once_exactly_one_gets_in);
	tcase_add_test(t, test_leader_that_is_a_rank_dies_as_both);
	tcase_add_loop_test(t, test_leader_that_is_a_rank_ends_in_either_order, 0, 2);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
