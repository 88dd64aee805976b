/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that are killed: with a reset under way, and with votes out. */
#include "trio.h"

#include <sys/mman.h>

#define ROUNDS 25u

static struct kvr_key keys[64];

/* --- resets ----------------------------------------------------------------------------------- */

/* Leader and ranks in one process: stores, resets, says so, again and again. */
static void stores_and_resets(volatile uint64_t *done)
{
	struct kvr_completion c[64];

	ok(kvr_connector_lead(cl.name, &cl.opts, &lead));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_join(cl.name, r, NULL, SOON, &rank[r]));
	for (uint64_t k = done[0] + 1;; k++) {
		struct kvr_request req = { .id = k, .attempt = 1 };

		cluster_keys(k, keys, 8);
		done[1] = k; /* may be there from now on */
		store_all(k, keys, 8);
		ok(kvr_connector_wait_store(lead, &(struct kvr_request){ .id = k },
					    KVR_STAGE_WRITTEN, SOON));
		ok(kvr_connector_reset(lead, &req, NULL, SOON));
		for (uint32_t r = 0; r < RANKS; r++)
			ok(kvr_connector_reset(rank[r], &req, NULL, SOON));
		for (uint32_t r = 0; r < RANKS; r++)
			ok(kvr_connector_reset_wait(rank[r], &req, SOON));
		done[0] = k;
		for (uint32_t n = 0; n < 2; n++)
			tick_all(c, 64);
	}
}

START_TEST(test_killed_in_the_middle_of_a_reset)
{
	uint64_t *done =
		mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	ck_assert_ptr_ne(done, MAP_FAILED);
	cluster_init(&cl, RANKS, 0, 16, 64);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint64_t before = done[0], deadline = SOON;
		pid_t pid = fork();

		if (!pid) {
			stores_and_resets(done);
			_exit(0);
		}
		while (done[0] == before && kvr_deadline(0) < deadline)
			usleep(1000);
		usleep((round * 7919) % 23000);
		kill(pid, SIGKILL);
		ck_assert(WIFSIGNALED(test_reap(pid, 20000)));
		ck_assert_uint_ne(done[0], before);
		ok(kvr_connector_lead(cl.name, &cl.opts, &lead));
		for (uint32_t r = 0; r < RANKS; r++)
			ok(kvr_connector_join(cl.name, r, NULL, SOON, &rank[r]));
		for (uint64_t k = done[0] > 5 ? done[0] - 5 : 1; k <= done[0]; k++) {
			cluster_keys(k, keys, 8);
			for (uint32_t i = 0; i < 8; i++) {
				ck_assert_uint_eq(lookup_all(7000 + i, keys + i, 1), 0);
			}
		}
		for (uint32_t r = 0; r < RANKS; r++)
			kvr_connector_close(rank[r]);
		kvr_connector_close(lead);
	}
	munmap(done, 4096);
	cluster_exit(&cl);
}
END_TEST

/* --- votes ------------------------------------------------------------------------------------ */

enum { PROPOSED, VOTED, COMMITTED, CASES };

static int when;

static void leader(struct cluster *c, struct kvr_connector *k, uint32_t r)
{
	struct kvr_request req = cluster_request(3, 0), pre = cluster_request(1, 0);
	struct kvr_hit hit;

	(void)r;
	cluster_keys(1, keys, N);
	cluster_store(k, 1, 0, keys, N, r);
	(void)pre;
	MUST(!kvr_connector_lookup(k, &req, keys, N, SOON, &hit));
	MUST(kvr_connector_load_begin_layers(k, &req, N, SOON) == (int)N);
	MUST(!kvr_connector_propose(k, &req, "x", 1, SOON));
	if (when == COMMITTED)
		MUST(!kvr_connector_decided(k, &req, SOON));
	__atomic_store_n(&c->area->step, 1, __ATOMIC_RELEASE);
	for (;;)
		pause();
}

static void follower(struct cluster *c, struct kvr_connector *k, uint32_t r)
{
	struct kvr_request req = cluster_request(3, 0);
	struct kvr_completion done[64];
	struct kvr_hit hit;
	char m[4];
	int n, err, lost = 0;

	cluster_keys(1, keys, N);
	cluster_store(k, 1, 0, keys, N, r);
	MUST(!kvr_connector_lookup(k, &req, keys, N, SOON, &hit));
	MUST(kvr_connector_proposal(k, &req, m, 4, SOON) == 1);
	if (when == COMMITTED || (when == VOTED && r == 0))
		MUST(!kvr_connector_vote(k, &req, 0));
	__atomic_store_n(&c->area->word[r][0], 1, __ATOMIC_RELEASE);
	err = kvr_connector_load_begin_layers(k, &req, N, r ? kvr_deadline(600000) : SOON);
	if (when != COMMITTED || r)
		err = kvr_connector_load_begin_layers(k, &req, N, SOON);
	c->area->word[r][1] = (uint64_t)(int64_t)err;
	c->area->word[r][2] = (uint64_t)(int64_t)kvr_connector_decided(k, &req, SOON);
	while ((n = kvr_connector_check_completed(k, KVR_NEXT, 0, SOON, done, 64, NULL)) >= 0)
		for (int i = 0; i < n; i++)
			lost += done[i].stage == KVR_STAGE_LOST;
	c->area->word[r][3] = (uint64_t)lost;
	c->area->word[r][4] = (uint64_t)(int64_t)n;
}

START_TEST(test_leader_killed_with_votes_out)
{
	uint64_t deadline = SOON;

	when = _i;
	cluster_init(&cl, RANKS, 0, 16, 0);
	cluster_start(&cl, leader, follower);
	while (kvr_deadline(0) < deadline &&
	       !(__atomic_load_n(&cl.area->step, __ATOMIC_ACQUIRE) &&
		 __atomic_load_n(&cl.area->word[0][0], __ATOMIC_ACQUIRE) &&
		 __atomic_load_n(&cl.area->word[1][0], __ATOMIC_ACQUIRE)))
		usleep(1000);
	usleep(100000);
	kill(cl.leader, SIGKILL);
	cluster_join(&cl, 1u << CLUSTER_RANKS, 30000);
	for (uint32_t w = 2; w < 5; w++)
		ck_assert_msg(cl.area->word[0][w] == cl.area->word[1][w], "word %u: %lld %lld", w,
			      (long long)cl.area->word[0][w], (long long)cl.area->word[1][w]);
	ck_assert_int_eq((int64_t)cl.area->word[0][2], when == COMMITTED ? 0 : -EOWNERDEAD);
	ck_assert_uint_ge(cl.area->word[0][3], 2);
	ck_assert_int_eq((int64_t)cl.area->word[0][4], -EOWNERDEAD);
	cluster_exit(&cl);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("connector_kill");
	TCase *t = tcase_create("kill");

	tcase_set_timeout(t, 100);
	tcase_add_test(t, test_killed_in_the_middle_of_a_reset);
	tcase_add_loop_test(t, test_leader_killed_with_votes_out, 0, CASES);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
