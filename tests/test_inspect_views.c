/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a look finds beside messages: recorders event by event, operations in quarantine, who has
 * not come to a barrier, which rank made other calls than the leader, and the files of groups.
 */
#include "inspect_util.h"

/* --- recorders ---------------------------------------------------------------------------------
 */

START_TEST(test_events_come_one_after_the_other)
{
	struct kvr_inspect_event e[32];
	uint64_t next = 0, count;
	char name[KVR_NAME_MAX], text[256];
	struct kvr_inspect *in;
	struct kvr_message m;
	struct side l, r[2];

	make_group(name, &l, r);
	must(kvr_inspect_open_name(NULL, name, &in));
	must(kvr_inspect_event_count(in, LEADER, &count));
	ck_assert_uint_eq(count, 6);
	ck_assert_int_eq(kvr_inspect_events_next(in, LEADER, &next, e, 4), 4);
	ck_assert_uint_eq(next, 4);
	ck_assert_int_eq(kvr_inspect_events_next(in, LEADER, &next, e + 4, 4), 2);
	ck_assert_uint_eq(next, 6);
	ck_assert_int_eq(kvr_inspect_events_next(in, LEADER, &next, e, 4), 0);
	for (uint32_t i = 0; i < 6; i++) {
		ck_assert_uint_eq(e[i].index, i);
		ck_assert_uint_eq(e[i].number, i + 1);
		ck_assert_uint_eq(e[i].request.id, i + 1);
		ck_assert_uint_eq(e[i].rank, LEADER);
		ck_assert_str_eq(kvr_inspect_event_name(e[i].kind), "PUBLISH");
		ck_assert(!i || e[i].ns >= e[i - 1].ns);
	}
	kvr_inspect_event_text(&e[5], text, sizeof text);
	ck_assert_str_eq(text, "PUBLISH channel USER0 number 6 request 6/0 tag 262");
	kvr_inspect_event_text(&e[5], text, 8);
	ck_assert_str_eq(text, "PUBLISH");
	/* More, until the recorder has gone round: what is overwritten is left out. */
	for (uint32_t i = 7; i <= 30; i++) {
		must(publish(&l, 1, KVR_TAG_USER, i, NULL, 0));
		must(take(&r[0], &m));
	}
	ck_assert_int_eq(kvr_inspect_events_next(in, LEADER, &next, e, 32), 15);
	ck_assert_uint_eq(next, 30);
	for (uint32_t i = 0; i < 15; i++)
		ck_assert_uint_eq(e[i].index, 15 + i);
	ck_assert_int_eq(kvr_inspect_events_next(in, 2, &next, e, 32), -EINVAL);
	ck_assert_int_eq(kvr_inspect_event_count(in, 2, &next), -EINVAL);
	kvr_inspect_close(in);
	end_group(&l, r);
}
END_TEST

/* Counts and indices of others' making. */
START_TEST(test_recorder_of_nonsense_ends)
{
	struct kvr_inspect_event e[32];
	uint64_t values[] = { 0, 1, 15, 16, 17, 1u << 31, UINT64_MAX / 2, UINT64_MAX }, next;
	char name[KVR_NAME_MAX];
	struct kvr_inspect *in;
	struct side l, r[2];

	make_group(name, &l, r);
	must(kvr_inspect_open_name(NULL, name, &in));
	for (uint32_t i = 0; i < 8; i++)
		for (uint32_t k = 0; k < 8; k++) {
			int n;

			l.g->rec.ctl->count = values[i];
			next = values[k];
			n = kvr_inspect_events_next(in, LEADER, &next, e, 32);
			ck_assert_int_ge(n, 0);
			ck_assert_int_le(n, 15);
			ck_assert_uint_ge(next, values[k]);
		}
	kvr_inspect_close(in);
	end_group(&l, r);
}
END_TEST

/* --- operations ----------------------------------------------------------------------------------
 */

START_TEST(test_operation_that_ended_and_holds_slots_is_shown)
{
	char name[KVR_NAME_MAX];
	struct side l, r[2];
	struct kvr_inspect *in;
	struct kvr_inspect_op ops[16];
	struct kvr_op_entry *table;

	make_group(name, &l, r);
	table = ops_of(&l);
	table[1] = (struct kvr_op_entry){ .word = kvr_word(3, KVR_STAGE_FAILED, EIO),
					  .request = 5,
					  .kind = KVR_OP_STORE,
					  .need = 3,
					  .acked = 1 };
	table[2] = table[1];
	table[2].acked = 3; /* all answered: its slots are free */
	table[3] = (struct kvr_op_entry){ .word = kvr_word(9, KVR_STAGE_COMMITTED, 0),
					  .kind = KVR_OP_LOAD,
					  .flags = KVR_OP_LAYERED,
					  .layers = 9ull << 32 | 7,
					  .need = 2 };
	table[4] = table[3];
	table[4].layers = 8ull << 32 | 7; /* of an earlier operation in this entry */
	must(kvr_inspect_open_name(NULL, name, &in));
	ck_assert_int_eq(kvr_inspect_ops(in, ops, 16), 3);
	ck_assert_uint_eq(ops[0].entry, 1);
	ck_assert_uint_eq(ops[0].need & ~ops[0].acked, 2);
	ck_assert_uint_eq(ops[0].stage, KVR_STAGE_FAILED);
	ck_assert_uint_eq(ops[1].entry, 3);
	ck_assert_uint_eq(ops[1].layered, 1);
	ck_assert_uint_eq(ops[1].layers, 7);
	ck_assert_uint_eq(ops[2].layers, 0);
	kvr_inspect_close(in);
	end_group(&l, r);
}
END_TEST

/* --- barriers and reductions
 * ------------------------------------------------------------------------ */

static void meet_set(struct kvr_meet *m, uint64_t ranks, uint32_t with_leader, uint64_t round,
		     uint32_t values)
{
	*m = (struct kvr_meet){ .ranks = ranks,
				.with_leader = with_leader,
				.round = round << 8 | values };
}

START_TEST(test_who_has_not_come_to_a_barrier_is_shown)
{
	struct kvr_inspect_meet m[KVR_MEETS * 3];
	struct kvr_meet *lead, *rank[2];
	char name[KVR_NAME_MAX];
	struct kvr_inspect *in;
	struct side l, r[2];

	make_group(name, &l, r);
	lead = kvr_group_leader_page(l.g)->meet;
	rank[0] = kvr_group_own_page(r[0].g)->meet;
	rank[1] = kvr_group_own_page(r[1].g)->meet;
	must(kvr_inspect_open_name(NULL, name, &in));
	ck_assert_int_eq(kvr_inspect_meets(in, m, KVR_MEETS * 3), 0);
	/* Rank 1 was never there, rank 0 and the leader are in round 3 and 2. */
	meet_set(&lead[0], 3, 1, 2, 0);
	meet_set(&rank[0][4], 3, 1, 3, 0);
	/* Another set, in other entries: all have come, with different values. */
	meet_set(&rank[0][0], 3, 0, 7, 2);
	meet_set(&rank[1][7], 3, 0, 7, 3);
	ck_assert_int_eq(kvr_inspect_meets(in, m, KVR_MEETS * 3), 2);
	ck_assert_uint_eq(m[0].ranks, 3);
	ck_assert_uint_eq(m[0].with_leader, 1);
	ck_assert_uint_eq(m[0].round, 3);
	ck_assert_uint_eq(m[0].arrived, 1);
	ck_assert_uint_eq(m[0].leader_arrived, 0);
	ck_assert_uint_eq(m[0].values, 0);
	ck_assert_uint_eq(m[0].differ, 0);
	ck_assert_uint_eq(m[1].with_leader, 0);
	ck_assert_uint_eq(m[1].round, 7);
	ck_assert_uint_eq(m[1].arrived, 3);
	ck_assert_uint_eq(m[1].differ, 1);
	/* The last one comes. */
	meet_set(&lead[0], 3, 1, 3, 0);
	meet_set(&rank[1][0], 3, 1, 3, 0);
	ck_assert_int_eq(kvr_inspect_meets(in, m, KVR_MEETS * 3), 2);
	ck_assert_uint_eq(m[0].arrived, 3);
	ck_assert_uint_eq(m[0].leader_arrived, 1);
	/* Sets that cannot be: ranks that the group lacks, and members that are not in it. */
	meet_set(&rank[1][1], 4, 0, 1, 0);
	meet_set(&rank[1][2], UINT64_MAX, 0, 1, 0);
	meet_set(&rank[1][3], 1, 0, 1, 0);
	meet_set(&lead[1], 2, 0, 1, 0);
	ck_assert_int_eq(kvr_inspect_meets(in, m, KVR_MEETS * 3), 2);
	ck_assert_int_eq(kvr_inspect_meets(in, m, 1), 1);
	ck_assert_int_eq(kvr_inspect_meets(in, m, 0), 0);
	kvr_inspect_close(in);
	end_group(&l, r);
}
END_TEST

/* --- calls made alike
 * ------------------------------------------------------------------------------- */

START_TEST(test_rank_that_is_behind_does_not_drift)
{
	struct kvr_alike_logs a, b;
	struct kvr_inspect_call calls[8];
	struct kvr_inspect_drift drift;
	struct kvr_inspect_log log;
	char name[KVR_NAME_MAX];
	struct kvr_inspect *in;
	struct side l, r[2];

	make_group(name, &l, r);
	logs_of(&l, &a);
	logs_of(&r[1], &b);
	for (uint64_t i = 0; i < 40; i++) {
		call_alike(&a, KVR_ALIKE_STORE, 100 + i);
		if (i < 30)
			call_alike(&b, KVR_ALIKE_STORE, 100 + i);
	}
	must(kvr_inspect_open_name(NULL, name, &in));
	ck_assert_int_eq(kvr_inspect_drift(in, 1, KVR_ALIKE_STORE, &drift), 0);
	ck_assert_uint_eq(drift.calls, 30);
	ck_assert_uint_eq(drift.its_calls, 40);
	ck_assert_int_eq(kvr_inspect_drift(in, 0, KVR_ALIKE_STORE, &drift), 0);
	ck_assert_int_eq(kvr_inspect_log(in, LEADER, KVR_ALIKE_STORE, &log, calls, 3), 3);
	ck_assert_uint_eq(log.count, 40);
	ck_assert_uint_eq(log.last_known, 1);
	ck_assert_uint_eq(log.last.request.id, 139);
	ck_assert_uint_gt(log.last_ns, 0);
	for (uint32_t i = 0; i < 3; i++) {
		ck_assert_uint_eq(calls[i].index, 37 + i);
		ck_assert_uint_eq(calls[i].request.id, 137 + i);
		ck_assert_uint_eq(calls[i].keys, 1);
	}
	/* Of a window of 16 the last 15 can be read. */
	ck_assert_int_eq(kvr_inspect_log(in, LEADER, KVR_ALIKE_STORE, &log, calls, 0), 0);
	ck_assert_int_eq(kvr_inspect_log(in, LEADER, KVR_ALIKE_LOAD, &log, calls, 8), 0);
	ck_assert_uint_eq(log.last_known, 0);
	ck_assert_int_eq(kvr_inspect_log(in, 2, 0, &log, calls, 8), -EINVAL);
	ck_assert_int_eq(kvr_inspect_log(in, 0, KVR_ALIKES, &log, calls, 8), -EINVAL);
	ck_assert_int_eq(kvr_inspect_drift(in, LEADER, 0, &drift), -EINVAL);
	ck_assert_int_eq(kvr_inspect_drift(in, 0, KVR_ALIKES, &drift), -EINVAL);
	ck_assert_str_eq(kvr_inspect_alike_name(KVR_ALIKE_STORE), "store");
	kvr_inspect_close(in);
	end_group(&l, r);
}
END_TEST

START_TEST(test_first_call_that_differs_is_found_and_stays_known)
{
	struct kvr_alike_logs a, b;
	struct kvr_inspect_drift drift;
	char name[KVR_NAME_MAX];
	struct kvr_inspect *in;
	struct side l, r[2];

	make_group(name, &l, r);
	logs_of(&l, &a);
	logs_of(&r[0], &b);
	for (uint64_t i = 0; i < 20; i++)
		call_alike(&a, KVR_ALIKE_STORE, 100 + i);
	b.base = NULL; /* this rank notices nothing by itself */
	for (uint64_t i = 0; i < 15; i++)
		call_alike(&b, KVR_ALIKE_STORE, 100 + i);
	call_alike(&b, KVR_ALIKE_STORE, 7);
	call_alike(&b, KVR_ALIKE_STORE, 115);
	must(kvr_inspect_open_name(NULL, name, &in));
	ck_assert_int_eq(kvr_inspect_drift(in, 0, KVR_ALIKE_STORE, &drift), 1);
	ck_assert_uint_eq(drift.noticed, 0);
	ck_assert_uint_eq(drift.exact, 1);
	ck_assert_uint_eq(drift.index, 15);
	ck_assert_uint_eq(drift.request.id, 7);
	ck_assert_uint_eq(drift.its_request.id, 115);
	ck_assert_uint_eq(drift.calls, 17);
	ck_assert_uint_eq(drift.its_calls, 20);
	ck_assert_int_eq(kvr_inspect_drift(in, 0, KVR_ALIKE_LOAD, &drift), 0);
	ck_assert_int_eq(kvr_inspect_drift(in, 1, KVR_ALIKE_STORE, &drift), 0);
	/* The logs go on and forget; what the rank noticed stays. */
	b.base = r[0].g->seg + r[0].g->layout.leader_logs;
	for (uint64_t i = 0; i < 40; i++) {
		call_alike(&a, KVR_ALIKE_STORE, 1000 + i);
		call_alike(&b, KVR_ALIKE_STORE, 1000 + i);
	}
	ck_assert_int_eq(kvr_inspect_drift(in, 0, KVR_ALIKE_STORE, &drift), 1);
	ck_assert_uint_eq(drift.noticed, 1);
	ck_assert_uint_eq(drift.exact, 1);
	ck_assert_uint_eq(drift.index, 15);
	ck_assert_uint_eq(drift.request.id, 7);
	ck_assert_uint_eq(drift.its_request.id, 115);
	ck_assert_uint_gt(drift.ns, 0);
	ck_assert_uint_eq(drift.calls, 57);
	/* Evidence of a kind that does not exist is none; the logs still tell, not so exactly. */
	kvr_group_own_page(r[0].g)->drift.kind = KVR_ALIKES + 1;
	ck_assert_int_eq(kvr_inspect_drift(in, 0, KVR_ALIKE_STORE, &drift), 1);
	ck_assert_uint_eq(drift.noticed, 0);
	ck_assert_uint_eq(drift.exact, 0);
	ck_assert_uint_gt(drift.index, 15);
	kvr_inspect_close(in);
	end_group(&l, r);
}
END_TEST

/* A leader and a rank that call and call, and nobody looks into half of a record. */
static int calls_for_ever(struct side *s, struct report *rep)
{
	struct kvr_alike_logs a;

	(void)rep;
	logs_of(s, &a);
	a.base = NULL; /* alone: this is about the reader */
	for (uint64_t i = 0; i < UINT64_MAX; i++)
		call_alike(&a, (enum kvr_alike)(i % KVR_ALIKES), i / KVR_ALIKES);
	return 0;
}

START_TEST(test_logs_read_while_they_are_written_do_not_differ)
{
	uint64_t end, looks = 0, least = UINT64_MAX;
	struct kvr_inspect_drift drift;
	char name[KVR_NAME_MAX];
	struct kvr_inspect *in;
	struct side l;
	pid_t pids[3];

	test_name(name, sizeof name, "inspect");
	pids[2] = fork();
	if (!pids[2]) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (lead_all(name, 2, &l))
			_exit(99);
		_exit(calls_for_ever(&l, NULL));
	}
	for (uint32_t i = 0; i < 2; i++)
		pids[i] = spawn(name, i, calls_for_ever);
	end = test_deadline_ms(10000);
	while (kvr_inspect_open_name(NULL, name, &in) && test_now_ns() < end)
		test_sleep_ms(1);
	/* All three write, and have gone round. */
	for (; least < 10000 && test_now_ns() < end; test_sleep_ms(1)) {
		must(kvr_inspect_drift(in, 0, KVR_ALIKE_STORE, &drift) != 0);
		least = kvr_min(drift.calls, drift.its_calls);
		must(kvr_inspect_drift(in, 1, KVR_ALIKE_STORE, &drift) != 0);
		least = kvr_min(least, drift.calls);
	}
	for (end = test_deadline_ms(300); test_now_ns() < end; looks++)
		for (uint32_t k = 0; k < KVR_ALIKES; k++)
			ck_assert_int_eq(kvr_inspect_drift(in, looks % 2, k, &drift), 0);
	ck_assert_uint_gt(looks, 0);
	kvr_inspect_close(in);
	for (uint32_t i = 0; i < 3; i++)
		kill(pids[i], SIGKILL);
	for (uint32_t i = 0; i < 3; i++)
		test_reap(pids[i], 5000);
	remove_group(name);
}
END_TEST

/* --- what counts, and what does not any more
 * -------------------------------------------------------- */

START_TEST(test_what_a_fenced_leader_does_does_not_count)
{
	struct kvr_group_opts o = { .size = sizeof o, .ranks = 2, .takeover = KVR_TAKEOVER_FENCE };
	char name[KVR_NAME_MAX], path[KVR_SHM_PATH];
	struct kvr_inspect_message m[8];
	struct kvr_inspect_channel c;
	struct kvr_inspect_group g;
	struct kvr_inspect *in;
	struct kvr_group *next;
	struct side l;
	int up[2], down[2];
	char byte = 0;
	pid_t pid;

	test_name(name, sizeof name, "inspect");
	ck_assert_int_eq(pipe2(up, O_CLOEXEC), 0);
	ck_assert_int_eq(pipe2(down, O_CLOEXEC), 0);
	pid = fork();
	if (!pid) { /* it does not know, and publishes once more */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (lead(name, 2, &l) || publish(&l, 0, 300, 1, "counts", 6) ||
		    write(up[1], "x", 1) != 1 || read(down[0], &byte, 1) != 1)
			_exit(99);
		kvr_group_leader_page(l.g)->watermark[KVR_CH_USER0] = 9;
		kvr_group_leader_page(l.g)->tick_done = 9;
		if (write(up[1], "x", 1) != 1)
			_exit(98);
		pause();
	}
	ck_assert_int_eq(read(up[0], &byte, 1), 1);
	must(kvr_group_create(name, &o, &next));
	ck_assert_int_eq(write(down[1], "x", 1), 1);
	ck_assert_int_eq(read(up[0], &byte, 1), 1);
	path_of(name, KVR_SHM_RETIRED, 1, path);
	must(kvr_inspect_open(path, &in));
	must(kvr_inspect_group(in, &g));
	ck_assert_uint_eq(g.retired_by, 2);
	ck_assert_uint_eq(g.retired_pid, (uint32_t)getpid());
	ck_assert_str_eq(kvr_inspect_retired_name(g.retired_how), "fenced");
	ck_assert_uint_gt(g.retired_ns, 0);
	ck_assert_uint_eq(g.watermark[KVR_CH_USER0], 1);
	ck_assert_uint_eq(g.tick_done, 0);
	ck_assert_int_eq(kvr_inspect_messages(in, KVR_CH_USER0, 0, m, 8), 1);
	ck_assert_int_eq(m[0].read, 0);
	must(kvr_inspect_channel(in, KVR_CH_USER0, 0, &c));
	ck_assert_uint_eq(c.oldest_unread, 1);
	kvr_inspect_close(in);
	kill(pid, SIGKILL);
	test_reap(pid, 5000);
	for (int i = 0; i < 2; i++) {
		close(up[i]);
		close(down[i]);
	}
	kvr_group_close(next);
	unlink(path);
}
END_TEST

struct kinds {
	const char *name;
	uint32_t seen[5];
	uint64_t epoch;
};

static void see(void *arg, const struct kvr_inspect_file *f)
{
	struct kinds *k = arg;

	if (strcmp(f->name, k->name) != 0)
		return;
	ck_assert_uint_lt(f->kind, 5);
	ck_assert_int_eq(access(f->path, F_OK), 0);
	k->seen[f->kind]++;
	k->epoch += f->epoch;
}

START_TEST(test_all_files_of_a_group_are_listed)
{
	static const enum kvr_shm_kind kinds[] = { KVR_SHM_RETIRED, KVR_SHM_POOL, KVR_SHM_LOCK };
	char name[KVR_NAME_MAX], path[KVR_SHM_PATH];
	struct kinds k = { .name = name };
	struct side l, r[2];

	make_group(name, &l, r);
	for (uint32_t i = 0; i < 3; i++) {
		path_of(name, kinds[i], 17, path);
		save(path, "x", 1);
	}
	ck_assert_int_ge(kvr_inspect_files(NULL, see, &k), 4);
	for (uint32_t i = 1; i < 5; i++)
		ck_assert_uint_eq(k.seen[i], 1);
	ck_assert_uint_eq(k.epoch, 17);
	ck_assert_int_eq(kvr_inspect_files("/no/such/dir", see, &k), -ENOENT);
	for (uint32_t i = 0; i < 3; i++) {
		path_of(name, kinds[i], 17, path);
		unlink(path);
	}
	end_group(&l, r);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("inspect_views");
	TCase *t = tcase_create("inspect_views");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, test_events_come_one_after_the_other);
	tcase_add_test(t, test_recorder_of_nonsense_ends);
	tcase_add_test(t, test_operation_that_ended_and_holds_slots_is_shown);
	tcase_add_test(t, test_who_has_not_come_to_a_barrier_is_shown);
	tcase_add_test(t, test_rank_that_is_behind_does_not_drift);
	tcase_add_test(t, test_first_call_that_differs_is_found_and_stays_known);
	tcase_add_test(t, test_logs_read_while_they_are_written_do_not_differ);
	tcase_add_test(t, test_what_a_fenced_leader_does_does_not_count);
	tcase_add_test(t, test_all_files_of_a_group_are_listed);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
