/* SPDX-License-Identifier: Apache-2.0 */
/* A new leader while the old one lives: refuse, kill, fence. Real processes, really stopped. */
#include <sys/wait.h>

#include "group_util.h"
#include "kvring/channel.h"
#include "peer.h"
#include "point.h"
#include "process.h"
#include "util.h"

#define MESSAGES 12u /* fit into a ring */

/* --- a leader that publishes, and stops itself at a point --- */

static enum kvr_point stop_at;
static uint32_t stop_after;

static void stop_here(enum kvr_point at, uint32_t arg)
{
	(void)arg;
	if (at == stop_at && !stop_after--)
		raise(SIGSTOP);
}

/* In a member: an end, with a count in place of the epoch. */
static void report_end(struct member *m, int rc, uint64_t count)
{
	struct report r = { .rc = rc, .epoch = count };

	snprintf(r.why, sizeof r.why, "%s", rc < 0 ? kvr_explain() : "");
	if (write(m->out, &r, sizeof r) != sizeof r)
		_exit(98);
}

/* Publishes until it is told why not; reports that, with how many were. */
static int publisher(struct member *m)
{
	struct kvr_group *g = NULL;
	struct kvr_channels *c = NULL;
	int rc = kvr_group_create(name, &opts, &g);
	uint64_t i;

	if (!rc)
		rc = kvr_channels_open(g, &c);
	member_report(m, rc, g);
	if (rc)
		return 1;
	member_order(m); /* the ranks are there */
	kvr_point_hook = stop_here;
	for (i = 0; i < MESSAGES; i++) {
		rc = kvr_channels_publish(c, KVR_CH_USER0, 0, 300, NULL, &i, sizeof i,
					  test_deadline_ms(5000));
		if (rc)
			break;
	}
	report_end(m, rc, i);
	member_order(m);
	kvr_channels_close(c);
	kvr_group_close(g);
	return 0;
}

/* Takes until it is told why not; reports that, with how many there were. */
static int taker(struct member *m)
{
	struct kvr_group *g = NULL;
	struct kvr_channels *c = NULL;
	int rc = kvr_group_attach(name, m->rank, &opts, test_deadline_ms(8000), &g);
	struct kvr_message msg;
	uint64_t n = 0;

	if (!rc)
		rc = kvr_channels_open(g, &c);
	member_report(m, rc, g);
	if (rc)
		return 1;
	/* Rank 0 takes as it comes; the others begin when they are told. */
	if (m->rank)
		member_order(m);
	while (!(rc = kvr_channels_take(c, KVR_CH_USER0, test_deadline_ms(8000), &msg)))
		n++;
	report_end(m, rc, n);
	kvr_channels_close(c);
	kvr_group_close(g);
	return 0;
}

static struct member start(int (*run)(struct member *), uint32_t rank)
{
	struct member m = member_start(run, rank);
	struct report r = member_hears(&m);

	ck_assert_msg(!r.rc, "rank %u: %d %s", rank, r.rc, r.why);
	return m;
}

static void await_stopped(const struct member *m)
{
	int status;

	ck_assert_int_eq(waitpid(m->pid, &status, WUNTRACED), m->pid);
	ck_assert(WIFSTOPPED(status));
}

/* --- refuse --- */

START_TEST(test_refused_with_who_it_is_and_what_it_does)
{
	struct member l = start_leader();
	char text[64];

	ck_assert_int_eq(try_create(), -EBUSY);
	snprintf(text, sizeof text, "pid %d, alive", (int)l.pid);
	explained(text);
	kill(l.pid, SIGSTOP);
	await_stopped(&l);
	ck_assert_int_eq(try_create(), -EBUSY);
	snprintf(text, sizeof text, "pid %d, stopped", (int)l.pid);
	explained(text);
	explained("kvr_group_opts.takeover");
	kill(l.pid, SIGCONT);
	member_end(&l);
	ck_assert_int_eq(files_in_dir(), 0);
}
END_TEST

START_TEST(test_own_group_is_never_taken_over)
{
	struct kvr_group *g = create();

	for (opts.takeover = 0; opts.takeover <= KVR_TAKEOVER_FENCE; opts.takeover++) {
		ck_assert_int_eq(try_create(), -EBUSY);
		explained("it is this very process");
	}
	opts.takeover = 0;
	ck_assert_int_eq(kvr_group_check(g), 0);
	ck_assert_int_eq(kvr_group_visible(g), 0);
	kvr_group_close(g);
}
END_TEST

/* --- kill --- */

START_TEST(test_stopped_leader_is_killed_and_gone_before_the_next_one_leads)
{
	struct member l = start_leader(), r = start_rank(1);
	struct kvr_process old = { 0 };
	struct kvr_group *g, *again;
	struct report got;

	kvr_process_self(&old);
	old.pid = (uint32_t)l.pid;
	old.start_time = kvr_process_start_time(old.pid);
	member_tell(&r, 'w');
	kill(l.pid, SIGSTOP);
	await_stopped(&l);
	opts.takeover = KVR_TAKEOVER_KILL;
	g = create();
	ck_assert_int_eq(kvr_process_state(&old), KVR_PROCESS_GONE);
	ck_assert_uint_eq(kvr_group_epoch(g), 2);
	got = member_hears(&r);
	/* It may have seen the death before it was told who did it. */
	ck_assert_msg(got.rc == -EOWNERDEAD || got.rc == -ESTALE, "%d %s", got.rc, got.why);
	member_tell(&r, 'w');
	got = member_hears(&r);
	ck_assert_int_eq(got.rc, -ESTALE);
	ck_assert_msg(strstr(got.why, "epoch 2 was made") && strstr(got.why, "was killed by it"),
		      "%s", got.why);
	again = attach(1);
	ck_assert_int_eq(kvr_group_check(again), 0);
	kvr_group_close(again);
	member_end(&r);
	ck_assert_int_eq(WTERMSIG(test_reap(l.pid, 5000)), SIGKILL);
	kvr_group_close(g);
	ck_assert_int_eq(files_in_dir(), 1); /* the retired one */
	ck_assert_int_eq(kvr_group_remove(name, dir), 0);
	ck_assert_int_eq(files_in_dir(), 0);
}
END_TEST

/* A process that cannot be told apart is not killed, and nothing is taken over. */
START_TEST(test_leader_of_another_pid_namespace_is_not_killed)
{
	struct member l = start_leader();
	struct kvr_seg_header h;
	uint64_t bytes;
	int fd = kvr_shm_open(path, 1, &bytes);

	ck_assert_int_eq(kvr_shm_read(fd, &h, sizeof h, 0), 0);
	h.space++;
	h.checksum = kvr_header_sum(&h);
	ck_assert_int_eq(pwrite(fd, &h, sizeof h, 0), sizeof h);
	close(fd);
	opts.takeover = KVR_TAKEOVER_KILL;
	ck_assert_int_eq(try_create(), -EBUSY);
	explained("another pid or time namespace");
	explained("nothing was taken over");
	ck_assert_int_eq(kill(l.pid, 0), 0);
	ck_assert_int_eq(try_attach(0, 2000), 0);
	member_end(&l);
	ck_assert_int_eq(files_in_dir(), 0);
}
END_TEST

/* --- fence --- */

START_TEST(test_fenced_leader_finds_out_and_spares_the_new_one)
{
	struct member l = start_leader();
	struct kvr_group *g, *r;
	struct report got;

	kill(l.pid, SIGSTOP);
	await_stopped(&l);
	opts.takeover = KVR_TAKEOVER_FENCE;
	g = create();
	ck_assert_uint_eq(kvr_group_epoch(g), 2);
	kill(l.pid, SIGCONT);
	member_tell(&l, 'w');
	got = member_hears(&l);
	ck_assert_int_eq(got.rc, -ESTALE);
	ck_assert_msg(strstr(got.why, "was shut out by it"), "%s", got.why);
	member_end(&l); /* it closes */
	ck_assert_int_eq(kvr_group_check(g), 0);
	ck_assert_int_eq(kvr_group_visible(g), 0);
	r = attach(1);
	kvr_group_close(r);
	kvr_group_close(g);
	ck_assert_int_eq(kvr_group_remove(name, dir), 0);
	ck_assert_int_eq(files_in_dir(), 0);
}
END_TEST

/*
 * A leader that is stopped within a publish and goes on after the fence finishes that publish in
 * its own segment. No rank may take it, however late it looks: all have the same messages.
 */
static void fenced_at(enum kvr_point at)
{
	uint32_t finished = 7 + (at == KVR_POINT_publish_marked);
	struct member l, r[3];
	struct kvr_group *g;
	struct report got;

	stop_at = at;
	/* publish_copied is passed once for each rank. */
	stop_after = at == KVR_POINT_publish_copied ? 7 * 4 + 2 : 7;
	l = start(publisher, KVR_LEADER);
	for (uint32_t i = 0; i < 3; i++)
		r[i] = start(taker, i);
	member_tell(&l, 'g');
	await_stopped(&l);
	member_tell(&r[1], 'g');
	opts.takeover = KVR_TAKEOVER_FENCE;
	g = create();
	opts.takeover = 0;
	kill(l.pid, SIGCONT);
	got = member_hears(&l);
	ck_assert_msg(got.rc == -ESTALE, "%s: %d %s", kvr_point_name(at), got.rc, got.why);
	ck_assert_msg(got.epoch == finished, "%s: %llu publishes went well", kvr_point_name(at),
		      (unsigned long long)got.epoch);
	member_tell(&r[2], 'g'); /* it looks when everything is in its ring */
	for (uint32_t i = 0; i < 3; i++) {
		got = member_hears(&r[i]);
		ck_assert_msg(got.rc == -ESTALE, "%s: %d %s", kvr_point_name(at), got.rc, got.why);
		ck_assert_msg(got.epoch == finished, "%s: rank %u took %llu of %u",
			      kvr_point_name(at), i, (unsigned long long)got.epoch, finished);
		member_end(&r[i]);
	}
	member_end(&l);
	kvr_group_close(g);
	ck_assert_int_eq(kvr_group_remove(name, dir), 0);
}

START_TEST(test_nothing_counts_that_a_fenced_leader_does)
{
	fenced_at(KVR_POINT_publish_reserved);
	fenced_at(KVR_POINT_publish_copied);
	fenced_at(KVR_POINT_publish_committed);
	fenced_at(KVR_POINT_publish_marked);
}
END_TEST

/* A taker that died between its two words changed nothing: the old group goes on. */
static int dying_taker(struct member *m)
{
	struct kvr_group *g;

	(void)m;
	opts.takeover = KVR_TAKEOVER_FENCE;
	kvr_group_create(name, &opts, &g);
	return 1;
}

static enum kvr_point die_at;

static void die_here(enum kvr_point at, uint32_t arg)
{
	(void)arg;
	if (at == die_at)
		raise(SIGKILL);
}

static void taker_dies(enum kvr_point at)
{
	struct member t;

	die_at = at;
	kvr_point_hook = die_here;
	t = member_start(dying_taker, KVR_LEADER);
	kvr_point_hook = NULL;
	ck_assert_int_eq(WTERMSIG(test_reap(t.pid, 5000)), SIGKILL);
	close(t.to);
	close(t.from);
}

/* A taker that died later said what counts; the next one must not say otherwise. */
START_TEST(test_a_second_taker_puts_up_no_other_fence)
{
	struct member l, r[2];
	struct kvr_group *g;
	struct report got;

	opts.ranks = 2;
	stop_at = KVR_POINT_publish_committed;
	stop_after = 7;
	l = start(publisher, KVR_LEADER);
	r[0] = start(taker, 0);
	r[1] = start(taker, 1);
	member_tell(&l, 'g');
	await_stopped(&l);
	taker_dies(KVR_POINT_create_marked);
	got = member_hears(&r[0]);
	ck_assert_msg(got.rc == -ESTALE && got.epoch == 7, "%d %s", got.rc, got.why);
	kill(l.pid, SIGCONT);
	got = member_hears(&l);
	ck_assert_msg(got.rc == -ESTALE, "%d %s", got.rc, got.why);
	opts.takeover = KVR_TAKEOVER_FENCE;
	g = create();
	member_tell(&r[1], 'g');
	got = member_hears(&r[1]);
	ck_assert_msg(got.rc == -ESTALE && got.epoch == 7, "took %llu: %d %s",
		      (unsigned long long)got.epoch, got.rc, got.why);
	member_end(&r[0]);
	member_end(&r[1]);
	member_end(&l);
	kvr_group_close(g);
	ck_assert_int_eq(kvr_group_remove(name, dir), 0);
}
END_TEST

START_TEST(test_taker_that_dies_while_it_fences_harms_nothing)
{
	struct member l, r;
	struct report got;

	stop_at = KVR_POINT_COUNT;
	l = start(publisher, KVR_LEADER);
	r = start(taker, 0);
	taker_dies(KVR_POINT_create_closing);
	member_tell(&l, 'g');
	got = member_hears(&l);
	ck_assert_msg(!got.rc, "%d %s", got.rc, got.why);
	member_end(&l);
	got = member_hears(&r);
	ck_assert_msg(got.rc == -ESHUTDOWN, "%d %s", got.rc, got.why);
	ck_assert_uint_eq(got.epoch, MESSAGES);
	member_end(&r);
}
END_TEST

/* --- an epoch that its leader declared over --- */

START_TEST(test_next_epoch_names_the_reason_of_the_last)
{
	struct kvr_group *l = create(), *r = attach(1), *next, *again;

	ck_assert_int_eq(kvr_group_fail(l, 2, -ETIMEDOUT), 0); /* becomes ECANCELED */
	kvr_group_close(l);
	ck_assert_int_eq(kvr_group_check(r), -ECANCELED);
	explained("rank 2");
	ck_assert_int_eq(try_attach(0, 50), -ECANCELED);
	next = create();
	ck_assert_uint_eq(kvr_group_epoch(next), 2);
	ck_assert_int_eq(kvr_group_check(r), -ESTALE);
	explained("epoch 2 was made");
	explained("had declared the epoch over: ");
	explained("because of rank 2");
	again = attach(1);
	kvr_group_close(again);
	kvr_group_close(r);
	kvr_group_close(next);
	ck_assert_int_eq(kvr_group_remove(name, dir), 0);
}
END_TEST

/* --- the caller's own fingerprint --- */

START_TEST(test_fingerprint_names_what_differs)
{
	static const struct {
		const char *setup, *text;
	} bad[] = {
		{ "tp_size=4\npp_size=2\nkv=fp8", "setup tp_size is \"8\" there and \"4\" here" },
		{ "tp_size=8\npp_size=2", "setup kv is \"fp8\" there and missing here" },
		{ "tp_size=8\npp_size=2\nkv=fp8\nmla=1",
		  "setup mla is \"1\" here and missing there" },
		{ "", "setup tp_size is \"8\" there and missing here" },
		{ "kv=fp8\ntp_size=8\npp_size=20", "setup pp_size is \"2\" there and \"20\" here" },
	};
	struct kvr_group *l;

	opts.setup = "tp_size=8\npp_size=2\nkv=fp8\n";
	l = create();
	for (size_t i = 0; i < KVR_ARRAY_LEN(bad); i++) {
		opts.setup = bad[i].setup;
		ck_assert_int_eq(try_attach(0, 0), -EPROTO);
		explained(bad[i].text);
	}
	opts.setup = "kv=fp8\n\npp_size=2\ntp_size=8"; /* in any order */
	ck_assert_int_eq(try_attach(0, 0), 0);
	opts.setup = NULL;
	ck_assert_int_eq(try_attach(1, 0), 0);
	opts.ranks = 5;
	ck_assert_int_eq(try_attach(2, 0), -EPROTO);
	explained("ranks is 4 there and 5 here");
	opts.ranks = 0;
	ck_assert_int_eq(try_attach(2, 0), 0);
	kvr_group_close(l);
}
END_TEST

START_TEST(test_bad_fingerprints_are_refused)
{
	static const char *const bad[] = { "a", "a\n", "=1", "a=1\na=2", "a=\x01", "a=\xc3\xa4" };
	char long_one[KVR_SETUP_MAX + 1];

	for (size_t i = 0; i < KVR_ARRAY_LEN(bad); i++) {
		opts.setup = bad[i];
		ck_assert_int_eq(try_create(), -EINVAL);
	}
	memset(long_one, 'a', sizeof long_one - 1);
	long_one[1] = '=';
	long_one[sizeof long_one - 1] = 0;
	opts.setup = long_one;
	ck_assert_int_eq(try_create(), -EINVAL);
	explained("503 bytes that are possible");
	long_one[sizeof long_one - 2] = 0;
	ck_assert_int_eq(try_create(), 0);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("group_takeover");
	TCase *t = tcase_create("takeover");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_refused_with_who_it_is_and_what_it_does);
	tcase_add_test(t, test_own_group_is_never_taken_over);
	tcase_add_test(t, test_stopped_leader_is_killed_and_gone_before_the_next_one_leads);
	tcase_add_test(t, test_leader_of_another_pid_namespace_is_not_killed);
	tcase_add_test(t, test_fenced_leader_finds_out_and_spares_the_new_one);
	tcase_add_test(t, test_nothing_counts_that_a_fenced_leader_does);
	tcase_add_test(t, test_taker_that_dies_while_it_fences_harms_nothing);
	tcase_add_test(t, test_a_second_taker_puts_up_no_other_fence);
	tcase_add_test(t, test_next_epoch_names_the_reason_of_the_last);
	tcase_add_test(t, test_fingerprint_names_what_differs);
	tcase_add_test(t, test_bad_fingerprints_are_refused);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
