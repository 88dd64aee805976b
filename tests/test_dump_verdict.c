/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ring-dump says of a group in a sentence, and its exit status for it: fine, drift, stall,
 * over, unreadable. What took a while is told from what takes too long by --stall: 0.1 s, which has
 * passed, and an hour, which has not.
 */
#include "cluster.h"
#include "dump_util.h"
#include "fork.h"
#include "point.h"

static char name[KVR_NAME_MAX];
static struct side l, r[2];

static void setup_group(void)
{
	test_tool(tool, sizeof tool, "ring-dump");
	setup_tool();
	make_dump_group(name, &l, r, NULL);
}

static void teardown_group(void)
{
	end_group(&l, r);
	teardown();
}

/* Who forks members has no threads of a group's in this process. */
static void setup_processes(void)
{
	test_tool(tool, sizeof tool, "ring-dump");
	setup_tool();
}

/* Waits until what was done before is older than 0.1 s. */
static void pass(void)
{
	test_sleep_ms(120);
}

/* With that limit: status, and the words that the verdict has. */
static void verdict(const char *stall, int status, const char *word, ...) __attribute__((sentinel));
static void verdict(const char *stall, int status, const char *word, ...)
{
	va_list ap;
	int got = run(tool, NULL, "--verdict", "--stall", stall, name, NULL);

	ck_assert_msg(got == status, "status %d instead of %d: %s", got, status, output);
	ck_assert_ptr_eq(strchr(output, '\n'), output + strlen(output) - 1);
	va_start(ap, word);
	for (; word; word = va_arg(ap, const char *))
		ck_assert_msg(strstr(output, word), "\"%s\" is not in: %s", word, output);
	va_end(ap);
}

/* Rank 1 has read all there is. */
static void read_all(void)
{
	struct kvr_message m;

	must(kvr_channels_take(r[1].c, KVR_CH_STORE, 0, &m));
	must(kvr_channels_take(r[1].c, KVR_CH_USER0, 0, &m));
	ops_of(&l)[1].word = 0;
}

/* --- fine ------------------------------------------------------------------------------------- */

START_TEST(test_fine)
{
	char line[100];

	verdict("3600", 0, "fine: leader and 2 of 2 ranks alive; leader active ", "; tick 0",
		"rank 1 is 1 message behind on", NULL);
	snprintf(line, sizeof line, "%s: fine: ", name);
	ck_assert_int_eq(run(tool, NULL, "--check", name, NULL), 0);
	begins(line);
	ck_assert_ptr_eq(strchr(output, '\n'), output + strlen(output) - 1);
	/* Nobody waits, nothing is unread: an idle group is fine however long. */
	read_all();
	pass();
	verdict("0.1", 0, "fine: ", NULL);
	verdict("0", 0, "fine: ", NULL);
	kvr_group_leader_page(l.g)->quarantined_ops = 2;
	kvr_group_leader_page(l.g)->quarantined_slots = 1;
	verdict("0", 0, "fine: ", "2 ended operations hold 1 slot in quarantine", NULL);
}
END_TEST

/* --- drift ------------------------------------------------------------------------------------ */

static void calls(struct kvr_alike_logs *a, uint64_t first, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		call_alike(a, KVR_ALIKE_STORE, first + i);
}

START_TEST(test_rank_with_a_store_more_drifts)
{
	struct kvr_alike_logs logs[3];

	logs_of(&l, &logs[2]);
	logs_of(&r[0], &logs[0]);
	logs_of(&r[1], &logs[1]);
	calls(&logs[2], 1, 20);
	calls(&logs[0], 1, 15);
	verdict("3600", 0, "fine: ", NULL); /* behind is no drift */
	calls(&logs[0], 16, 5);
	logs[1].base = NULL; /* it notices nothing */
	calls(&logs[1], 1, 16);
	calls(&logs[1], 1000, 1);
	verdict("3600", 1,
		"drift: rank 1 and the leader differ from their store 17: request "
		"1000/0 there, 17/0 in the leader",
		"rank 1 made 3 stores fewer than rank 0", NULL);
	ck_assert_ptr_null(strstr(output, "noticed"));
	calls(&logs[1], 17, 4);
	verdict("3600", 1, "from their store 17: ", "rank 1 made 1 store more than rank 0", NULL);
	ck_assert_int_eq(run(tool, NULL, "--check", name, NULL), 1);
	has("drift: ", NULL);
	/* The rank notices, and the logs go on beyond it. */
	logs_of(&r[1], &logs[1]);
	logs[1].kind[KVR_ALIKE_STORE].count = 21;
	calls(&logs[1], 30, 1);
	calls(&logs[2], 21, 400);
	ck_assert_int_ne(kvr_group_own_page(r[1].g)->drift.kind, 0);
	verdict("3600", 1,
		"drift: rank 1 and the leader differ from their store 17: request "
		"1000/0 there, 17/0 in the leader (noticed ",
		NULL);
	ck_assert_int_eq(run(tool, NULL, "--json", name, NULL), 1);
	json("d['status'] == 1 and [(x['kind'], x['rank'], x['call'], x['request']['id'], "
	     "x['leader_request']['id'], x['exact'], x['noticed']) for x in d['drift']] == "
	     "[('store', 1, 17, 1000, 17, True, True)] and d['verdict'].startswith('drift')");
	ck_assert_int_eq(run(tool, NULL, "--show", "logs", name, NULL), 1);
	has("differs from the leader from call 17", NULL);
}
END_TEST

START_TEST(test_other_kinds_of_drift)
{
	struct kvr_alike_logs logs[3];
	struct kvr_request req = { .id = 5 };

	logs_of(&l, &logs[2]);
	logs_of(&r[0], &logs[0]);
	logs_of(&r[1], &logs[1]);
	logs[0].base = logs[1].base = NULL;
	/* The same requests with other keys. */
	kvr_alike_call(&logs[2], KVR_ALIKE_LOOKUP, &req, 3, NULL);
	kvr_alike_call(&logs[0], KVR_ALIKE_LOOKUP, &req, 4, NULL);
	verdict("3600", 1,
		"drift: rank 0 and the leader differ from their lookup 1: request 5/0, "
		"with 4 keys there, 3 in the leader",
		NULL);
	/* All ranks against the leader; the logs go on, and the first difference is out of sight.
	 */
	kvr_alike_call(&logs[1], KVR_ALIKE_LOOKUP, &req, 4, NULL);
	for (uint64_t i = 0; i < 600; i++)
		for (uint32_t k = 0; k < 3; k++)
			call_alike(&logs[k], KVR_ALIKE_LOOKUP, 100 + i);
	verdict("3600", 1,
		"drift: ranks 0-1, which are all, differ from the leader; rank 0 and the "
		"leader differ at the latest from their lookup ",
		"with other keys or in another namespace", NULL);
}
END_TEST

/* Through the connector: rank 1 looks something up that nobody else asked for. */
static void drifting(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_request extra = cluster_request(999, 0);
	struct kvr_key keys[4];
	struct kvr_hit hit;

	cluster_keys(7, keys, 4);
	if (rank == 1)
		MUST(kvr_connector_lookup(c, &extra, keys, 2, test_deadline_ms(50), &hit) ==
		     -ETIMEDOUT);
	for (uint64_t id = 1; id <= 5; id++) {
		struct kvr_request req = cluster_request(id, 0);

		MUST(!kvr_connector_lookup(c, &req, keys, 4, SOON, &hit));
	}
	cl->area->word[CLUSTER_LEADER(rank) ? CLUSTER_LEAD : rank][0] = 1;
	while (!__atomic_load_n(&cl->area->step, __ATOMIC_ACQUIRE))
		test_sleep_ms(1);
	cluster_shutdown(c);
}

START_TEST(test_drift_of_a_connector_is_found)
{
	uint64_t deadline = test_deadline_ms(20000);
	struct cluster cl;
	uint32_t there = 0;

	cluster_init(&cl, 4, 0, 16, 0);
	snprintf(name, sizeof name, "%s", cl.name);
	cluster_start(&cl, drifting, drifting);
	while (there < 5 && test_now_ns() < deadline) {
		there = cl.area->word[CLUSTER_LEAD][0] != 0;
		for (uint32_t i = 0; i < 4; i++)
			there += cl.area->word[i][0] != 0;
		test_sleep_ms(1);
	}
	ck_assert_uint_eq(there, 5);
	verdict("3600", 1,
		"drift: rank 1 and the leader differ from their lookup 1: request 999/0 "
		"there, 1/0 in the leader",
		"rank 1 made 1 lookup more than ranks 0,2-3", NULL);
	__atomic_store_n(&cl.area->step, 1, __ATOMIC_RELEASE);
	cluster_join(&cl, 0, 20000);
	cluster_exit(&cl);
}
END_TEST

/* --- stalls ----------------------------------------------------------------------------------- */

START_TEST(test_rank_that_does_not_read)
{
	char pid[128];

	ops_of(&l)[1].word = 0;
	pass();
	verdict("3600", 0, "fine: ", NULL);
	snprintf(pid, sizeof pid,
		 "stall: rank 1 (pid %d) does not read STORE: 1 message, the oldest ",
		 (int)getpid());
	verdict("0.1", 1, pid, " old; it is in no call, active ", NULL);
	/* Inside a call that does not look there. */
	kvr_group_enter(r[1].g, KVR_CALL_TAKE, KVR_CH_USER3);
	verdict("0.1", 1, pid, " old; it is in take for ", NULL);
	/* It said that it would be busy. */
	must(kvr_group_phase(r[1].g, "compile", test_deadline_ms(60000)));
	verdict("0.1", 0, "fine: ", "rank 1 is in the long phase \"compile\" for ", NULL);
	must(kvr_group_phase(r[1].g, "compile", test_now_ns() - 1));
	verdict("0.1", 1, pid, "its long phase \"compile\" should have ended", NULL);
	must(kvr_group_phase(r[1].g, "", 0));
	kvr_group_leave(r[1].g, KVR_CALL_TAKE, KVR_CH_USER3, NULL, 0);
}
END_TEST

/* The event of the publish is overwritten: then the message is at least as old as the oldest. */
START_TEST(test_age_of_an_unread_message_that_no_event_tells)
{
	struct kvr_message m;

	for (uint32_t i = 0; i < 1100; i++) {
		must(kvr_channels_publish(l.c, KVR_CH_USER1, 1, 300, NULL, NULL, 0, 0));
		must(kvr_channels_take(r[0].c, KVR_CH_USER1, 0, &m));
	}
	pass();
	verdict("0.1", 1, "stall: rank 1 ", "does not read", "the oldest at least ", NULL);
	verdict("3600", 0, "fine: ", NULL);
}
END_TEST

static void cut_off(enum kvr_point point, uint32_t rank)
{
	(void)rank;
	if (point == KVR_POINT_publish_committed) {
		kvr_point_hook = NULL;
		_exit(0);
	}
}

/* A message above the watermark is nothing that a rank could read. */
START_TEST(test_half_a_publish_is_no_fault_of_the_rank)
{
	pid_t pid;

	read_all();
	pid = fork();
	if (!pid) { /* the handle is the parent's: only its memory is used */
		struct kvr_channels *c = l.c;

		kvr_point_hook = cut_off;
		l.g->forks = kvr_fork_generation();
		l.g->pid = (uint32_t)getpid();
		kvr_channels_publish(c, KVR_CH_USER0, 0, 300, NULL, "x", 1, 0);
		_exit(99);
	}
	ck_assert_int_eq(test_reap(pid, 5000), 0);
	pass();
	verdict("0.1", 0, "fine: ", NULL);
}
END_TEST

START_TEST(test_operations_that_wait)
{
	struct kvr_op_entry *op = &ops_of(&l)[1];
	uint64_t now;

	read_all();
	*op = (struct kvr_op_entry){ .word = kvr_word(1, KVR_STAGE_BEGUN, 0),
				     .request = 17,
				     .attempt = 2,
				     .kind = KVR_OP_STORE,
				     .begun_ns = test_now_ns(),
				     .stage_ns = test_now_ns(),
				     .need = 3,
				     .acked = 1 };
	pass();
	verdict("3600", 0, "fine: ", NULL);
	verdict("0.1", 1, "stall: store 17/2 has been begun for ",
		"rank 1 has not answered (it is in no call, active ", NULL);
	must(kvr_group_phase(r[1].g, "capture", test_deadline_ms(60000)));
	verdict("0.1", 0, "fine: ", "\"capture\"", NULL);
	op->acked = 0; /* one of the two is not excused */
	verdict("0.1", 1, "rank 0 has not answered, rank 1 is in a long phase", NULL);
	must(kvr_group_phase(r[1].g, "", 0));
	verdict("0.1", 1, "ranks 0-1 have not answered", NULL);
	op->word = kvr_word(1, KVR_STAGE_FAILED, EIO);
	verdict("0.1", 1, "store 17/2 ended (failed) ", " ago and holds its slots: ranks 0-1 have",
		NULL);
	op->word = kvr_word(1, KVR_STAGE_HOST, 0);
	op->need = 0;
	verdict("0.1", 1, "store 17/2 has been host for ", "the leader has not taken it further",
		NULL);
	op->word = kvr_word(1, KVR_STAGE_DONE, 0);
	verdict("0.1", 0, "fine: ", NULL);
	/* Many: the oldest three, and how many more. */
	now = test_now_ns();
	for (uint32_t i = 1; i < 7; i++)
		ops_of(&l)[i] = (struct kvr_op_entry){ .word = kvr_word(1, KVR_STAGE_BEGUN, 0),
						       .request = i,
						       .kind = KVR_OP_LOAD,
						       .stage_ns = now - i * 1000,
						       .need = 1 };
	pass();
	verdict("0.1", 1, "stall: load 6/0 ", "; load 5/0 ", "; load 4/0 ", "; and 3 more", NULL);
}
END_TEST

START_TEST(test_barrier_with_a_missing_member)
{
	struct kvr_meet *lead = kvr_group_leader_page(l.g)->meet,
			*rank0 = kvr_group_own_page(r[0].g)->meet,
			*rank1 = kvr_group_own_page(r[1].g)->meet;

	read_all();
	*rank0 = (struct kvr_meet){ .ranks = 3, .round = 7 << 8 };
	*rank1 = (struct kvr_meet){ .ranks = 3, .round = 6 << 8 };
	pass();
	verdict("0.1", 0, "fine: ", NULL); /* nobody is inside of it */
	kvr_group_enter(r[0].g, KVR_CALL_BARRIER, 0);
	pass();
	verdict("3600", 0, "fine: ", NULL);
	verdict("0.1", 1, "stall: barrier 7 of ranks 0-1: rank 0 waited up to ",
		"; rank 1 has not come (it is in no call", NULL);
	must(kvr_group_phase(r[1].g, "warm-up", test_deadline_ms(60000)));
	verdict("0.1", 0, "fine: ", "\"warm-up\"", NULL);
	must(kvr_group_phase(r[1].g, "", 0));
	rank1->round = 7 << 8;
	verdict("0.1", 0, "fine: ", NULL); /* on its way out */
	/* With the leader, which is the one that has not come. */
	*rank0 = *rank1 = (struct kvr_meet){ .ranks = 3, .with_leader = 1, .round = 3 << 8 | 1 };
	*lead = (struct kvr_meet){ .ranks = 3, .with_leader = 1, .round = 2 << 8 | 1 };
	verdict("0.1", 1, "stall: reduction 3 of ranks 0-1 and the leader: rank 0 waited up to ",
		"the leader has not come (it is in no call", NULL);
	kvr_group_leave(r[0].g, KVR_CALL_BARRIER, 0, NULL, 0);
}
END_TEST

START_TEST(test_calls_that_last_too_long)
{
	struct kvr_alike_logs logs[3];
	struct kvr_request req = { .id = 44, .attempt = 1 };

	read_all();
	kvr_group_enter(l.g, KVR_CALL_LOOKUP, KVR_CH_LOOKUP);
	pass();
	verdict("3600", 0, "fine: ", NULL);
	verdict("0.1", 1, "stall: the leader has been inside lookup for ", NULL);
	must(kvr_group_phase(l.g, "load weights", test_deadline_ms(60000)));
	verdict("0.1", 0, "the leader is in the long phase \"load weights\"", NULL);
	must(kvr_group_phase(l.g, "", 0));
	kvr_group_leave(l.g, KVR_CALL_LOOKUP, KVR_CH_LOOKUP, NULL, 0);
	/* A rank asks for what the leader never asks for. */
	logs_of(&l, &logs[2]);
	logs_of(&r[0], &logs[0]);
	kvr_alike_call(&logs[0], KVR_ALIKE_STORE, &req, 1, NULL);
	kvr_group_enter(r[0].g, KVR_CALL_STORE_BEGIN, KVR_CH_STORE);
	pass();
	verdict("0.1", 1, "stall: rank 0 has been inside store_begin for ",
		", request 44/1, which the leader has not called", NULL);
	/* That comes before those who merely wait. */
	kvr_group_enter(l.g, KVR_CALL_LOAD_WAIT, KVR_CH_LOAD);
	kvr_group_enter(r[1].g, KVR_CALL_LOAD_WAIT, KVR_CH_LOAD);
	pass();
	verdict("0.1", 1, "stall: rank 0 has been inside store_begin for ",
		"not called; the leader has been inside load_wait for ", NULL);
	ck_assert_ptr_null(strstr(output, "rank 1"));
	kvr_group_leave(r[0].g, KVR_CALL_STORE_BEGIN, KVR_CH_STORE, NULL, 0);
	verdict("0.1", 1, "stall: the leader has been inside load_wait for ", NULL);
	ck_assert_ptr_null(strstr(output, "rank 1"));
	kvr_group_leave(l.g, KVR_CALL_LOAD_WAIT, KVR_CH_LOAD, NULL, 0);
	verdict("0.1", 1, "stall: rank 1 has been inside load_wait for ", NULL);
	kvr_group_leave(r[1].g, KVR_CALL_LOAD_WAIT, KVR_CH_LOAD, NULL, 0);
	call_alike(&logs[2], KVR_ALIKE_STORE, 44);
	/* Waiting for the leader's next tick or message may be right. */
	kvr_group_own_page(r[0].g)->proc.tick_seen = 41;
	kvr_group_leader_page(l.g)->tick_done = 41;
	kvr_group_enter(l.g, KVR_CALL_CHECK_COMPLETED, KVR_CH_COMPLETE);
	kvr_group_leave(l.g, KVR_CALL_CHECK_COMPLETED, KVR_CH_COMPLETE, NULL, 0);
	kvr_group_enter(r[0].g, KVR_CALL_CHECK_COMPLETED, KVR_CH_COMPLETE);
	test_sleep_ms(1100);
	kvr_group_leader_page(l.g)->calls[KVR_CALL_STORE_BEGIN] = 1;
	verdict("0.1", 1, "drift: ", NULL); /* store 44/0 and 44/1 */
	logs_of(&r[0], &logs[0]);
	memset(logs[0].logs, 0, kvr_layout_log(&l.g->layout, KVR_ALIKES));
	memset(&kvr_group_own_page(r[0].g)->drift, 0, sizeof(struct kvr_drift));
	verdict("0.1", 0, "fine: ", "rank 0 has waited in check_completed for 1.",
		" s for tick 42; the leader finished tick 41 1.", " s ago and is in no call", NULL);
	/* But not if the leader itself hangs. */
	kvr_group_enter(l.g, KVR_CALL_LOAD_BEGIN, KVR_CH_LOAD);
	pass();
	verdict("0.1", 1, "stall: the leader has been inside load_begin for ", NULL);
	kvr_group_leave(l.g, KVR_CALL_LOAD_BEGIN, KVR_CH_LOAD, NULL, 0);
	kvr_group_enter(l.g, KVR_CALL_CHECK_COMPLETED, KVR_CH_COMPLETE);
	pass();
	verdict("0.1", 1, "stall: the leader has been inside check_completed for ", NULL);
	kvr_group_leave(l.g, KVR_CALL_CHECK_COMPLETED, KVR_CH_COMPLETE, NULL, 0);
	kvr_group_leave(r[0].g, KVR_CALL_CHECK_COMPLETED, KVR_CH_COMPLETE, NULL, 0);
}
END_TEST

static int sleeps(struct side *s, struct report *rep)
{
	(void)s;
	rep->seen = 1;
	pause();
	return 0;
}

static int meets(struct side *s, struct report *rep)
{
	rep->seen = 1;
	kvr_channels_barrier(s->c, 3, 0, test_deadline_ms(20000));
	pause();
	return 0;
}

/* A rank that really waits in a barrier, to which the other one never came. */
START_TEST(test_real_barrier)
{
	uint64_t deadline = test_deadline_ms(10000);
	struct side s;
	pid_t rank[2];

	test_name(name, sizeof name, "dump");
	rank[0] = spawn(name, 0, meets);
	rank[1] = spawn(name, 1, sleeps);
	must(lead_all(name, 2, &s));
	do
		ck_assert_int_eq(run(tool, NULL, "--show", "ranks,barriers", name, NULL), 0);
	while (!strstr(output, "in barrier") && test_now_ns() < deadline);
	has("barrier            0-1                     1  1\n", NULL);
	pass();
	verdict("0.1", 1, "stall: barrier 1 of ranks 0-1: rank 0 waited up to ",
		"; rank 1 has not come (it is in no call", NULL);
	verdict("3600", 0, "fine: ", NULL);
	for (int i = 0; i < 2; i++)
		kill(rank[i], SIGKILL);
	for (int i = 0; i < 2; i++)
		test_reap(rank[i], 5000);
	leave(&s);
}
END_TEST

/* A leader that ends in good order waits for who does not leave. */
static void stays(struct cluster *cl, struct kvr_connector *c, uint32_t rank)
{
	if (CLUSTER_LEADER(rank))
		while (!cl->area->word[0][0] || !cl->area->word[1][0])
			test_sleep_ms(1);
	else
		cl->area->word[rank][0] = 1;
	while (rank == 1 && !__atomic_load_n(&cl->area->step, __ATOMIC_ACQUIRE))
		test_sleep_ms(1);
	MUST(!kvr_connector_shutdown(c, SOON));
}

START_TEST(test_shutdown_waits_for_a_rank)
{
	uint64_t deadline = test_deadline_ms(20000);
	struct cluster cl;

	cluster_init(&cl, 2, 0, 16, 0);
	snprintf(name, sizeof name, "%s", cl.name);
	cluster_start(&cl, stays, stays);
	do /* until rank 0 has left */
		run(tool, NULL, "--verdict", name, NULL);
	while (!strstr(output, "1 of 2 ranks alive") && test_now_ns() < deadline);
	pass();
	verdict("0.1", 1, "does not read CONTROL: 1 message",
		"; the leader has been inside shutdown for ", ": rank 1 has not left",
		", the last one: the leader announced the end", NULL);
	verdict("3600", 0, "fine: ", "the leader announced the end", NULL);
	__atomic_store_n(&cl.area->step, 1, __ATOMIC_RELEASE);
	cluster_join(&cl, 0, 20000);
	cluster_exit(&cl);
}
END_TEST

/* A leader that really waits for room, and a rank that really is stopped. */
START_TEST(test_leader_waits_for_a_stopped_rank)
{
	uint64_t deadline = test_deadline_ms(10000);
	char other[KVR_NAME_MAX], who[128];
	pid_t leader, rank;
	struct side s;
	uint8_t data[1000] = { 0 };

	test_name(other, sizeof other, "dump");
	snprintf(name, sizeof name, "%s", other);
	leader = fork();
	if (!leader) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (lead_all(other, 1, &s))
			_exit(99);
		while (!publish(&s, 0, 300, 1, data, sizeof data))
			;
		_exit(98);
	}
	rank = spawn(other, 0, sleeps);
	while (!reports[0].seen && test_now_ns() < deadline)
		test_sleep_ms(1);
	ck_assert_int_eq(kill(rank, SIGSTOP), 0);
	ck_assert_int_eq(waitpid(rank, NULL, WUNTRACED), rank);
	do {
		test_sleep_ms(10);
		ck_assert_int_eq(run(tool, NULL, "--json", "--stall", "3600", other, NULL), 0);
	} while (!strstr(output, "\"in_call\":\"publish\"") && test_now_ns() < deadline);
	pass();
	snprintf(who, sizeof who, "stall: rank 0 (pid %d) does not read USER0: ", (int)rank);
	verdict("0.1", 1, who, "it is stopped, in no call",
		"; the leader has been inside publish (USER0) for ", ": rank 0 has ",
		" unread there", NULL);
	snprintf(who, sizeof who, "rank 0 (pid %d) is stopped", (int)rank);
	verdict("3600", 0, "fine: ", who, NULL);
	kill(rank, SIGKILL);
	kill(leader, SIGKILL);
	test_reap(rank, 5000);
	test_reap(leader, 5000);
	remove_group(other);
}
END_TEST

START_TEST(test_stopped_with_nothing_to_do)
{
	uint64_t deadline = test_deadline_ms(10000);
	struct side s;
	pid_t rank;

	test_name(name, sizeof name, "dump");
	rank = spawn(name, 0, sleeps);
	must(lead_all(name, 1, &s));
	while (!reports[0].seen && test_now_ns() < deadline)
		test_sleep_ms(1);
	ck_assert_int_eq(kill(rank, SIGSTOP), 0);
	ck_assert_int_eq(waitpid(rank, NULL, WUNTRACED), rank);
	pass();
	verdict("0.1", 1, "stall: rank 0 was last active ", "is stopped", NULL);
	kill(rank, SIGKILL);
	test_reap(rank, 5000);
	leave(&s);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("dump_verdict");
	TCase *t = tcase_create("dump_verdict"), *p = tcase_create("processes");

	tcase_add_checked_fixture(t, setup_group, teardown_group);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_fine);
	tcase_add_test(t, test_rank_with_a_store_more_drifts);
	tcase_add_test(t, test_other_kinds_of_drift);
	tcase_add_test(t, test_rank_that_does_not_read);
	tcase_add_test(t, test_age_of_an_unread_message_that_no_event_tells);
	tcase_add_test(t, test_half_a_publish_is_no_fault_of_the_rank);
	tcase_add_test(t, test_operations_that_wait);
	tcase_add_test(t, test_barrier_with_a_missing_member);
	tcase_add_test(t, test_calls_that_last_too_long);
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(p, setup_processes, teardown);
	tcase_set_timeout(p, 60);
	tcase_add_test(p, test_drift_of_a_connector_is_found);
	tcase_add_test(p, test_real_barrier);
	tcase_add_test(p, test_shutdown_waits_for_a_rank);
	tcase_add_test(p, test_leader_waits_for_a_stopped_rank);
	tcase_add_test(p, test_stopped_with_nothing_to_do);
	suite_add_tcase(s, p);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
