/* SPDX-License-Identifier: Apache-2.0 */
/* One outcome for all, also for a rank that asks late; one answer to a load by layers. */
#include "trio.h"

#include <sys/time.h>

#include "engine_priv.h"

static struct kvr_key keys[128];

static void setup(void)
{
	trio_open(16, 64);
	cluster_keys(1, keys, 128);
}

/* So many operations without a part for any rank that each entry of the table was used again. */
static void use_entries_again(void)
{
	struct kvr_completion c[64];
	struct kvr_block b[N];

	for (uint64_t id = 5000; id < 5000 + cl.opts.ops + 16; id++) {
		ck_assert_int_eq(begin_on(lead, id, keys, N, b), 0);
		ck_assert_int_eq(begin_on(rank[0], id, keys, N, b), 0);
		ok(kvr_connector_wait_store(lead, &(struct kvr_request){ .id = id },
					    KVR_STAGE_WRITTEN, SOON));
		ok(kvr_connector_check_completed(lead, KVR_NEXT, 0, SOON, c, 64, NULL));
		ok(kvr_connector_check_completed(rank[0], KVR_NOW, 0, SOON, c, 64, NULL));
	}
}

/* It was committed: how it ended is another question, whenever a rank asks. */
START_TEST(test_outcome_that_is_asked_for_late)
{
	struct kvr_request req = { .id = 3 };
	char m[8];

	store_all(1, keys, N);
	ok(kvr_connector_propose(lead, &req, "m", 1, SOON));
	for (uint32_t r = 0; r < RANKS; r++) {
		ok(kvr_connector_proposal(rank[r], &req, m, sizeof m, SOON));
		ok(kvr_connector_vote(rank[r], &req, 0));
	}
	ck_assert_int_eq(kvr_connector_decided(lead, &req, SOON), 0);
	ck_assert_int_eq(kvr_connector_decided(rank[0], &req, SOON), 0);
	if (_i)
		ck_assert_int_eq(kvr_connector_abort(lead, &req), 1);
	else
		ok(kvr_connector_outcome(rank[0], &req, -EIO));
	use_entries_again();
	ck_assert_int_eq(kvr_connector_decided(rank[1], &req, SOON), 0);
}
END_TEST

/* The number that arrived stays what it was. */
START_TEST(test_prefetch_that_is_asked_about_late)
{
	struct kvr_request req = { .id = 7 };
	uint32_t done = 99;

	for (uint64_t id = 1; id < 5; id++) {
		store_all(id, keys + (id - 1) * 8, 8);
		end_of(id, KVR_KIND_STORE);
	}
	ck_assert_int_eq(kvr_connector_prefetch(lead, &req, keys, 8, 0, SOON), 8);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_prefetch(rank[r], &req, keys, 8, 0, SOON), 8);
	ck_assert_uint_eq(end_of(7, KVR_KIND_PREFETCH).blocks, 8);
	ck_assert_int_eq(kvr_connector_prefetch_status(rank[1], &req, &done), 1);
	ck_assert_uint_eq(done, 8);
	use_entries_again();
	ck_assert_int_eq(kvr_connector_prefetch_status(rank[1], &req, &done), 1);
	ck_assert_uint_eq(done, 8);
}
END_TEST

struct late {
	uint64_t id, deadline;
	int got;
};

static void *other(void *arg)
{
	struct late *l = arg;
	struct kvr_request req = { .id = l->id };

	l->got = kvr_connector_load_begin_layers(rank[1], &req, N, SOON);
	return NULL;
}

/* A rank whose deadline passes at the very moment of the commit: the number on all, or none. */
START_TEST(test_deadline_at_the_commit)
{
	store_all(1, keys, N);
	end_of(1, KVR_KIND_STORE);
	for (uint64_t id = 100; id < 500; id++) {
		struct kvr_request req = { .id = id };
		struct late l = { .id = id };
		pthread_t t;
		int got;

		ck_assert_uint_eq(lookup_all(id, keys, N), N);
		ck_assert_int_eq(kvr_connector_load_begin_layers(lead, &req, N, SOON), N);
		pthread_create(&t, NULL, other, &l);
		usleep(500);
		got = kvr_connector_load_begin_layers(rank[0], &req, N,
						      kvr_deadline(0) + (id % 100) * 3000);
		pthread_join(t, NULL);
		if ((got == N) != (l.got == N))
			ck_abort_msg("load %llu: %d on rank 0, %d on rank 1",
				     (unsigned long long)id, got, l.got);
		ok(kvr_connector_abort(lead, &req));
		for (uint32_t r = 0; r < RANKS; r++)
			ok(kvr_connector_abort(rank[r], &req));
		end_of(id, KVR_KIND_LOAD);
	}
}
END_TEST

static void fetches_busy(uint32_t n)
{
	pthread_mutex_lock(&lead->engine->lock);
	lead->engine->fetch_running = n;
	pthread_mutex_unlock(&lead->engine->lock);
}

/* A rank that is behind hears of the end first. */
START_TEST(test_cancelled_prefetch_has_one_number)
{
	struct kvr_request req = { .id = 7 };
	struct kvr_completion c[8];

	for (uint64_t id = 1; id < 5; id++) {
		store_all(id, keys + (id - 1) * 8, 8);
		end_of(id, KVR_KIND_STORE);
	}
	fetches_busy(KVR_FETCH_IO); /* so that it stays */
	ck_assert_int_eq(kvr_connector_prefetch(lead, &req, keys, 8, 0, SOON), 8);
	ck_assert_int_eq(kvr_connector_prefetch(rank[0], &req, keys, 8, 0, SOON), 8);
	ok(kvr_connector_prefetch_cancel(lead, &req));
	ok(kvr_connector_check_completed(lead, KVR_NEXT, 0, SOON, c, 8, NULL));
	ok(kvr_connector_check_completed(rank[1], KVR_NEXT, 0, SOON, c, 8, NULL));
	fetches_busy(0);
	ck_assert_int_eq(kvr_connector_prefetch(rank[1], &req, keys, 8, 0, SOON), 8);
}
END_TEST

/* Cancelled after all had verified it; a rank asks when its entry was used again. */
START_TEST(test_aborted_load_that_is_asked_for_late)
{
	struct kvr_request req = { .id = 9 };
	struct kvr_block b[N];

	store_all(1, keys, N);
	ck_assert_uint_eq(lookup_all(9, keys, N), N);
	ck_assert_int_eq(kvr_connector_load_begin(lead, &req, N, SOON), N);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_load_begin(rank[r], &req, N, SOON), N);
	kvr_connector_load_wait(rank[0], &req, keys, kvr_deadline(100), b, N);
	for (uint32_t r = RANKS; r--;)
		ck_assert_int_eq(kvr_connector_load_wait(rank[r], &req, keys, SOON, b, N), N);
	ck_assert_int_eq(kvr_connector_abort(lead, &req), 1);
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_load_done(rank[r], &req));
	ck_assert_int_eq(kvr_connector_load_wait(rank[0], &req, keys, SOON, b, N), -ECANCELED);
	use_entries_again();
	ck_assert_int_eq(kvr_connector_load_wait(rank[1], &req, keys, SOON, b, N), -ECANCELED);
}
END_TEST

static void nothing(int sig)
{
	(void)sig;
}

/* A signal ends rank 1's wait after its vote; when it calls again the load was begun, and failed.
 */
START_TEST(test_load_by_layers_that_began_and_ended)
{
	struct sigaction act = { .sa_handler = nothing };
	struct itimerval soon = { .it_value.tv_usec = 30000 };
	struct kvr_request req = { .id = 9 };
	int first;

	store_all(1, keys, N);
	end_of(1, KVR_KIND_STORE);
	sigaction(SIGALRM, &act, NULL);
	ck_assert_uint_eq(lookup_all(9, keys, N), N);
	ck_assert_int_eq(kvr_connector_load_begin_layers(lead, &req, N, SOON), N);
	ck_assert_int_eq(setitimer(ITIMER_REAL, &soon, NULL), 0);
	ck_assert_int_eq(kvr_connector_load_begin_layers(rank[1], &req, N, SOON), -EINTR);
	first = kvr_connector_load_begin_layers(rank[0], &req, N, SOON);
	ck_assert_int_eq(first, N);
	ck_assert_int_eq(kvr_connector_abort(lead, &req), 1);
	ck_assert_int_eq(kvr_connector_load_begin_layers(rank[1], &req, N, SOON), first);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("connector_late");
	TCase *t = tcase_create("decide");

	tcase_add_checked_fixture(t, setup, trio_close);
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, test_outcome_that_is_asked_for_late, 0, 2);
	tcase_add_test(t, test_prefetch_that_is_asked_about_late);
	tcase_add_test(t, test_deadline_at_the_commit);
	tcase_add_test(t, test_cancelled_prefetch_has_one_number);
	tcase_add_test(t, test_aborted_load_that_is_asked_for_late);
	tcase_add_test(t, test_load_by_layers_that_began_and_ended);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
