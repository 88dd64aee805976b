/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that run apart: the trace of what went wrong elsewhere showed the victim, the rank that
 * waited in vain, and never the call, long before, in which another one had begun to differ. Here
 * the first such call is known on the spot, before anything hangs, and after everybody died; and
 * nothing but such a call raises the alarm.
 */
#include "failures.h"

#include "alike.h"

#define CALLS 8u
#define SKIPPED 4u /* the request that rank 1 leaves out */

static void open_host(void)
{
	trio_open(POOL, 0);
	cluster_keys(1, keys, 128);
	store_all(1000, keys, N); /* alike on all */
}

static uint32_t window(void)
{
	return lead->group->layout.window;
}

/* UINT32_MAX: the leader's. */
static const void *log_of(uint32_t r, enum kvr_alike kind)
{
	const struct kvr_layout *l = &lead->group->layout;
	uint64_t at = CLUSTER_LEADER(r) ? l->leader_logs : kvr_layout_rank(l, r) + l->rank_logs;

	return lead->group->seg + at + kvr_layout_log(l, kind);
}

static int differs(uint32_t r, enum kvr_alike kind, struct kvr_alike_difference *ret)
{
	return kvr_alike_compare(log_of(r, kind), log_of(UINT32_MAX, kind), window(), ret);
}

static int drift_of(uint32_t r, struct kvr_drift *ret)
{
	return kvr_alike_drift(&kvr_group_rank_page(lead->group, r)->drift, ret);
}

/* No rank but `except` differs from the leader in anything. */
static void all_alike(uint32_t except)
{
	struct kvr_alike_difference d;
	struct kvr_drift drift;

	for (uint32_t r = 0; r < RANKS; r++) {
		if (r == except)
			continue;
		ck_assert_int_eq(drift_of(r, &drift), 0);
		for (uint32_t kind = 0; kind < KVR_ALIKES; kind++)
			ck_assert_int_eq(differs(r, kind, &d), 0);
	}
}

/* The id-th request's call of that kind, on one. */
static int call(struct kvr_connector *c, enum kvr_alike kind, uint64_t id, uint64_t deadline)
{
	struct kvr_request req = { .id = id };
	struct kvr_block b[N];
	struct kvr_hit hit;
	uint32_t covered;

	switch (kind) {
	case KVR_ALIKE_LOOKUP:
		return kvr_connector_lookup(c, &req, keys, N, deadline, &hit);
	case KVR_ALIKE_STORE:
		return kvr_connector_store_begin(c, &req, keys, N, deadline, b, N, &covered);
	case KVR_ALIKE_LOAD:
		return kvr_connector_load_begin(c, &req, N, deadline);
	case KVR_ALIKE_PREFETCH:
		return kvr_connector_prefetch(c, &req, keys, N, 0, deadline);
	default:
		return c == lead ? kvr_connector_propose(c, &req, NULL, 0, deadline)
				 : kvr_connector_proposal(c, &req, NULL, 0, deadline);
	}
}

static void call_all(enum kvr_alike kind, uint64_t id)
{
	ok(call(lead, kind, id, SOON));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(call(rank[r], kind, id, SOON));
}

static void is_first(const struct kvr_drift *d, enum kvr_alike kind, uint64_t index, uint64_t here,
		     uint64_t there)
{
	ck_assert_uint_eq(d->kind, kind + 1u);
	ck_assert_uint_eq(d->index, index);
	ck_assert_uint_eq(d->request, here);
	ck_assert_uint_eq(d->its_request, there);
	ck_assert_uint_eq(d->exact, 1);
	ck_assert_uint_ne(d->ns, 0);
	ck_assert_uint_le(d->ns, kvr_deadline(0));
}

/* One rank left one call out, and went on as if nothing were: everybody's answers fitted. */
START_TEST(test_one_call_left_out_by_one_rank_is_named)
{
	const enum kvr_alike kind = (enum kvr_alike)_i;
	const uint64_t before = kvr_alike_count(log_of(UINT32_MAX, kind)); /* alike, too */
	struct kvr_alike_difference d;
	struct kvr_drift drift, same;

	for (uint64_t id = 1; id <= CALLS && kind == KVR_ALIKE_LOAD; id++)
		call_all(KVR_ALIKE_LOOKUP, id);
	for (uint64_t id = 1; id < SKIPPED; id++)
		call_all(kind, id);
	all_alike(UINT32_MAX);
	ok(call(lead, kind, SKIPPED, SOON));
	ok(call(rank[0], kind, SKIPPED, SOON));
	ck_assert_int_eq(drift_of(1, &drift), 0); /* being late is nothing */
	ok(call(lead, kind, SKIPPED + 1, SOON));
	ok(call(rank[1], kind, SKIPPED + 1, SOON)); /* it has its answer: nothing hangs */
	ck_assert_int_eq(drift_of(1, &drift), 1);
	is_first(&drift, kind, before + SKIPPED - 1, SKIPPED + 1, SKIPPED);
	ok(call(rank[0], kind, SKIPPED + 1, SOON));
	/* What differs later, of this kind and others, is not what began it. */
	for (uint64_t id = SKIPPED + 2; id <= CALLS; id++)
		call_all(kind, id);
	ok(call(lead, KVR_ALIKE_DECISION, 77, SOON));
	ok(call(rank[0], KVR_ALIKE_DECISION, 77, SOON));
	call_all(KVR_ALIKE_DECISION, 78);
	ck_assert_int_eq(drift_of(1, &same), 1);
	ck_assert_mem_eq(&same, &drift, sizeof drift);
	/* Who compares the logs himself finds the same. */
	ck_assert_int_eq(differs(1, kind, &d), 1);
	ck_assert_uint_eq(d.index, before + SKIPPED - 1);
	ck_assert_uint_eq(d.mine.request, SKIPPED + 1);
	ck_assert_uint_eq(d.its.request, SKIPPED);
	ck_assert_int_eq(d.exact, 1);
	all_alike(1);
}
END_TEST

/* The stack of a wait in vain showed where one waited, and not why. */
START_TEST(test_wait_in_vain_says_since_when_this_rank_differs)
{
	struct kvr_request again = { .id = SKIPPED, .attempt = 1 };
	struct kvr_drift drift;
	struct kvr_hit hit;

	for (uint64_t id = 1; id < SKIPPED; id++)
		call_all(KVR_ALIKE_LOOKUP, id);
	ok(call(lead, KVR_ALIKE_LOOKUP, SKIPPED, SOON));
	ok(call(rank[0], KVR_ALIKE_LOOKUP, SKIPPED, SOON));
	/* It believes that this was tried before. */
	ck_assert_int_eq(kvr_connector_lookup(rank[1], &again, keys, N, kvr_deadline(30), &hit),
			 -ETIMEDOUT);
	must_say("this rank's calls differ from the leader's since its lookup number 3: request "
		 "4/1 here, 4/0 there");
	ck_assert_int_eq(drift_of(1, &drift), 1);
	is_first(&drift, KVR_ALIKE_LOOKUP, SKIPPED - 1, SKIPPED, SKIPPED);
	ck_assert_uint_eq(drift.attempt, 1);
	ck_assert_uint_eq(drift.its_attempt, 0);
	all_alike(1);
	/* It is told, and no more: what the leader said is there for who asks for it. */
	ok(call(rank[1], KVR_ALIKE_LOOKUP, SKIPPED, SOON));
	call_all(KVR_ALIKE_LOOKUP, SKIPPED + 1);
}
END_TEST

/* A checker that counted steps took a stage that was behind, or ahead, for one that differed. */
START_TEST(test_ahead_or_behind_is_no_drift)
{
	struct kvr_alike_difference d;

	for (uint64_t id = 1; id <= 40; id++) {
		ok(call(lead, KVR_ALIKE_LOOKUP, id, SOON));
		ok(call(rank[0], KVR_ALIKE_LOOKUP, id, SOON));
		all_alike(UINT32_MAX);
	}
	ck_assert_uint_eq(kvr_alike_count(log_of(1, KVR_ALIKE_LOOKUP)), 0);
	for (uint64_t id = 1; id <= 40; id++)
		ok(call(rank[1], KVR_ALIKE_LOOKUP, id, SOON));
	/* Before the leader: twice in vain, and it counts once. */
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_int_eq(call(rank[1], KVR_ALIKE_LOOKUP, 41, kvr_deadline(5)), -ETIMEDOUT);
	ck_assert_ptr_null(strstr(kvr_explain(), "differ"));
	all_alike(UINT32_MAX);
	call_all(KVR_ALIKE_LOOKUP, 41);
	all_alike(UINT32_MAX);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_uint_eq(kvr_alike_count(log_of(r, KVR_ALIKE_LOOKUP)), 41);
	ck_assert_int_eq(differs(1, KVR_ALIKE_LOOKUP, &d), 0);
}
END_TEST

#define POLLS 100000u

/* How often each rank asks is its own affair, though it was in the counts that were compared. */
START_TEST(test_polls_are_no_drift)
{
	uint64_t rng = test_seed() | 1, id = 0;
	struct kvr_completion c[256];
	uint32_t done;

	for (uint32_t i = 0; i < POLLS; i++) {
		uint32_t r;

		rng = rng * 6364136223846793005ull + 1442695040888963407ull;
		r = rng >> 33 & 1;
		if (rng >> 53 == 0) { /* now and then something happens */
			id++;
			store_all(id, keys + id % 100, 1);
			ok(kvr_connector_check_completed(lead, KVR_NEXT, 0, SOON, c, 256, NULL));
		}
		switch (rng >> 40 & 63) {
		case 0:
			kvr_connector_prefetch_status(rank[r], &(struct kvr_request){ .id = i },
						      &done);
			break;
		case 1:
			kvr_connector_wait_store(rank[r], &(struct kvr_request){ .id = id },
						 KVR_STAGE_HOST, kvr_deadline(0));
			break;
		case 2:
			ok(kvr_connector_release(rank[r], &(struct kvr_request){ .id = i }));
			break;
		case 3:
			ok(kvr_connector_check_completed(rank[r], KVR_TICK, 0, SOON, c, 256, NULL));
			break;
		default:
			ok(kvr_connector_check_completed(rank[r], KVR_NOW, 0, 0, c, 256, NULL));
		}
	}
	ck_assert_uint_gt(id, 0);
	all_alike(UINT32_MAX);
	for (uint32_t kind = 0; kind < KVR_ALIKES; kind++)
		for (uint32_t r = 0; r < RANKS; r++)
			ck_assert_uint_eq(kvr_alike_count(log_of(r, kind)),
					  kvr_alike_count(log_of(UINT32_MAX, kind)));
	/* And the alarm still works. */
	ok(call(lead, KVR_ALIKE_LOOKUP, 1, SOON));
	ok(call(lead, KVR_ALIKE_LOOKUP, 2, SOON));
	ok(call(rank[1], KVR_ALIKE_LOOKUP, 2, SOON));
	ck_assert_int_eq(drift_of(1, &(struct kvr_drift){ 0 }), 1);
	all_alike(1);
}
END_TEST

/* The log was shorter than the way back to the cause, and showed a consequence as the cause. */
START_TEST(test_first_call_that_nobody_remembers_is_not_made_up)
{
	struct kvr_alike_difference d;
	struct kvr_drift drift;

	cluster_init(&cl, RANKS, 0, POOL, 0);
	cl.opts.events = 16;
	ok(kvr_connector_lead(cl.name, &cl.opts, &lead));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_join(cl.name, r, NULL, SOON, &rank[r]));
	ck_assert_uint_le(window(), 16);
	for (uint64_t id = 1; id <= 60; id++)
		ok(call(lead, KVR_ALIKE_LOOKUP, id, SOON));
	/* All of them have their answers, and rank 1 leaves the third one out. */
	for (uint64_t id = 1; id <= 60; id++) {
		ok(call(rank[0], KVR_ALIKE_LOOKUP, id, SOON));
		if (id != 3)
			ok(call(rank[1], KVR_ALIKE_LOOKUP, id, SOON));
	}
	ck_assert_int_eq(drift_of(1, &drift), 1);
	ck_assert_uint_eq(drift.kind, KVR_ALIKE_LOOKUP + 1u);
	ck_assert_uint_eq(drift.exact, 0);
	ck_assert_uint_ge(drift.index, 60 - window());
	ck_assert_uint_eq(drift.request, drift.its_request + 1);
	ck_assert_int_eq(differs(1, KVR_ALIKE_LOOKUP, &d), 1);
	ck_assert_int_eq(d.exact, 0);
	all_alike(1);
}
END_TEST

/* --- after everybody died --------------------------------------------------------------------- */

#define MEMBERS 3u

static void work_and_die(struct cluster *c, struct kvr_connector *k, uint32_t r)
{
	for (uint64_t id = 1; id <= CALLS; id++) {
		struct kvr_request req = cluster_request(id, 0);
		struct kvr_completion done[8];
		struct kvr_hit hit;

		if (r != 2 || id != SKIPPED)
			MUST(!kvr_connector_lookup(k, &req, keys, N, SOON, &hit));
		MUST(kvr_connector_check_completed(k, KVR_NEXT, 0, SOON, done, 8, NULL) == 0);
	}
	__atomic_add_fetch(&c->area->step, 1, __ATOMIC_ACQ_REL);
	await_step(MEMBERS + 1);
	raise(SIGKILL);
}

/* A copy of the segment's bytes, as a file that somebody kept. */
static uint8_t *saved(struct kvr_layout *ret)
{
	struct kvr_seg_header header;
	char path[128];
	uint8_t *bytes;
	off_t size;
	int fd;

	snprintf(path, sizeof path, "/dev/shm/kvr-%u-%s", (unsigned)geteuid(), cl.name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	size = lseek(fd, 0, SEEK_END);
	ck_assert_int_gt(size, 0);
	bytes = malloc((size_t)size);
	ck_assert_int_eq(pread(fd, bytes, (size_t)size, 0), size);
	close(fd);
	memcpy(&header, bytes, sizeof header);
	ok(kvr_header_check(&header, (uint64_t)size, path, ret));
	return bytes;
}

/* As a tool shows it. */
static void shown_by_inspection(void)
{
	struct kvr_inspect_drift d;
	struct kvr_inspect *in;

	ok(kvr_inspect_open_name(NULL, cl.name, &in));
	for (uint32_t r = 0; r < MEMBERS; r++)
		for (uint32_t kind = 0; kind < KVR_ALIKES; kind++)
			ck_assert_int_eq(kvr_inspect_drift(in, r, kind, &d),
					 r == 2 && kind == KVR_ALIKE_LOOKUP);
	ck_assert_int_eq(kvr_inspect_drift(in, 2, KVR_ALIKE_LOOKUP, &d), 1);
	ck_assert(d.exact && d.noticed);
	ck_assert_uint_eq(d.index, SKIPPED - 1);
	ck_assert_uint_eq(d.request.id, SKIPPED + 1);
	ck_assert_uint_eq(d.its_request.id, SKIPPED);
	ck_assert_uint_eq(d.calls, CALLS - 1);
	ck_assert_uint_eq(d.its_calls, CALLS);
	kvr_inspect_close(in);
}

/* When the watchdog had killed all processes, nothing was left to compare. */
START_TEST(test_dead_ranks_still_show_who_differed_first)
{
	struct kvr_alike_difference d;
	struct kvr_drift drift;
	struct kvr_layout l;
	uint8_t *bytes;

	cluster_init(&cl, MEMBERS, 1, POOL, 0);
	cluster_keys(1, keys, 128);
	cluster_start(&cl, work_and_die, work_and_die);
	cluster_join(&cl, 7u | 1u << CLUSTER_RANKS, 40000);
	bytes = saved(&l);
	for (uint32_t r = 0; r < MEMBERS; r++) {
		const void *page = bytes + kvr_layout_rank(&l, r);
		const struct kvr_rank_page *p = page;
		const uint8_t *log = bytes + kvr_layout_rank(&l, r) + l.rank_logs;

		ck_assert_int_eq(kvr_alike_compare(log, bytes + l.leader_logs, l.window, &d),
				 r == 2);
		ck_assert_int_eq(kvr_alike_drift(&p->drift, &drift), r == 2);
	}
	ck_assert_uint_eq(d.index, SKIPPED - 1);
	ck_assert_uint_eq(d.mine.request, SKIPPED + 1);
	ck_assert_uint_eq(d.its.request, SKIPPED);
	is_first(&drift, KVR_ALIKE_LOOKUP, SKIPPED - 1, SKIPPED + 1, SKIPPED);
	free(bytes);
	shown_by_inspection();
	cluster_exit(&cl);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("failures_drift");
	TCase *t = tcase_create("steps");

	tcase_add_checked_fixture(t, open_host, trio_close);
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, test_one_call_left_out_by_one_rank_is_named, 0,
			    KVR_ALIKE_DECISION + 1);
	tcase_add_test(t, test_wait_in_vain_says_since_when_this_rank_differs);
	tcase_add_test(t, test_ahead_or_behind_is_no_drift);
	tcase_add_test(t, test_polls_are_no_drift);
	suite_add_tcase(s, t);
	t = tcase_create("window");
	tcase_add_checked_fixture(t, NULL, trio_close);
	tcase_add_test(t, test_first_call_that_nobody_remembers_is_not_made_up);
	suite_add_tcase(s, t);
	t = tcase_create("processes");
	tcase_set_timeout(t, 90);
	tcase_add_test(t, test_dead_ranks_still_show_who_differed_first);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
