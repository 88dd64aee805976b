/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A leader that is stopped with work in flight, and a new one: who may use segment, pool and store.
 * Real processes, real files; what belongs to the new leader is compared byte by byte.
 */
#include <signal.h>
#include <sys/wait.h>

#include "cluster.h"
#include "hash.h"

#define KEYS 4u
#define WATCH_MS 300u /* how long the bytes are watched */

static struct cluster cl;

/* Both sides: stores, until the epoch ends. The end must be one of `ends`. */
static void store_on(struct kvr_connector *c, uint32_t rank)
{
	struct kvr_completion done[64];
	int lead = CLUSTER_LEADER(rank), rc = 0;
	uint64_t *stores = &cl.area->word[lead ? CLUSTER_LEAD : rank][0];

	for (uint64_t id = 1; !rc; id++) {
		struct kvr_request req = cluster_request(id, 0);
		struct kvr_block blocks[KEYS];
		struct kvr_key keys[KEYS];
		uint32_t covered;
		int n;

		cluster_keys(id, keys, KEYS);
		n = kvr_connector_store_begin(c, &req, keys, KEYS, SOON, blocks, KEYS, &covered);
		for (int i = 0; !lead && i < n; i++)
			cluster_fill(c, &keys[blocks[i].index], &blocks[i]);
		rc = n < 0 ? n : kvr_connector_store_copied(c, &req, 0);
		if (!rc || rc == -EAGAIN)
			rc = kvr_connector_check_completed(c, lead ? KVR_NEXT : KVR_NOW, 0, SOON,
							   done, 64, NULL);
		rc = rc > 0 ? 0 : rc;
		__atomic_store_n(stores, id, __ATOMIC_RELEASE);
	}
	if (rc != -ESTALE && rc != -EOWNERDEAD)
		fprintf(stderr, "rank %d: %s\n", (int)rank, kvr_explain());
	MUST(rc == -ESTALE || rc == -EOWNERDEAD);
	cl.area->word[lead ? CLUSTER_LEAD : rank][1] = (uint64_t)-rc;
}

static void old_side(struct cluster *unused, struct kvr_connector *c, uint32_t rank)
{
	(void)unused;
	store_on(c, rank);
}

/* Stops the leader while stores run. */
static void stop_leader(void)
{
	uint64_t end = test_deadline_ms(20000);
	int status;

	while (__atomic_load_n(&cl.area->word[0][0], __ATOMIC_ACQUIRE) < 20 && test_now_ns() < end)
		test_sleep_ms(1);
	ck_assert_uint_ge(cl.area->word[0][0], 20);
	kill(cl.leader, SIGSTOP);
	ck_assert_int_eq(waitpid(cl.leader, &status, WUNTRACED), cl.leader);
	ck_assert(WIFSTOPPED(status));
}

static uint64_t file_hash(const char *path)
{
	FILE *f = fopen(path, "r");
	static char buf[1 << 20];
	uint64_t hash = 0;
	size_t n;

	ck_assert_msg(f != NULL, "%s", path);
	while ((n = fread(buf, 1, sizeof buf, f)) > 0)
		hash = kvr_hash(buf, n, hash);
	fclose(f);
	return hash;
}

static uint64_t store_hash(void)
{
	char path[512];

	snprintf(path, sizeof path, "%s/kvring.store", cl.dir);
	return file_hash(path);
}

static uint64_t pool_hash(struct kvr_connector *c)
{
	uint64_t bytes;
	const void *pool = kvr_connector_pool(c, &bytes);

	return kvr_hash(pool, bytes, 0);
}

static struct kvr_connector *lead(uint32_t takeover, int expected)
{
	struct kvr_connector_opts o = cl.opts;
	struct kvr_connector *c = NULL;
	int rc;

	o.takeover = takeover;
	o.lock_deadline_ns = test_deadline_ms(expected ? 300 : 10000);
	rc = kvr_connector_lead(cl.name, &o, &c);
	ck_assert_msg(rc == expected, "%d: %s", rc, kvr_explain());
	return c;
}

/* Stores and loads with new ranks, in processes of their own. */
static void new_rank(struct cluster *unused, struct kvr_connector *c, uint32_t rank)
{
	struct kvr_key keys[KEYS];

	(void)unused;
	cluster_keys(1000, keys, KEYS);
	cluster_store(c, 1000, 0, keys, KEYS, rank);
	MUST(cluster_load(c, 1001, 0, keys, KEYS, rank) == KEYS);
	cluster_shutdown(c);
}

START_TEST(test_killed_leaders_store_does_not_change_under_the_new_one)
{
	struct kvr_connector *c;
	uint64_t store, pool;

	cluster_init(&cl, 2, 0, 32, 64);
	if (_i)
		cl.opts.store_flags |= KVR_STORE_NO_URING;
	cluster_start(&cl, old_side, old_side);
	stop_leader();
	lead(KVR_TAKEOVER_REFUSE, -EBUSY);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "stopped"));
	c = lead(KVR_TAKEOVER_KILL, 0);
	ck_assert_uint_eq(kvr_group_epoch(kvr_connector_group(c)), 2);
	store = store_hash();
	pool = pool_hash(c);
	ck_assert_uint_ne(store, 0);
	test_sleep_ms(WATCH_MS);
	ck_assert_uint_eq(store_hash(), store);
	ck_assert_uint_eq(pool_hash(c), pool);
	cluster_join(&cl, 1u << CLUSTER_RANKS, 20000);
	kvr_connector_close(c);
	cluster_exit(&cl);
}
END_TEST

START_TEST(test_fenced_leader_keeps_its_store)
{
	cluster_init(&cl, 2, 0, 32, 64);
	cluster_start(&cl, old_side, old_side);
	stop_leader();
	lead(KVR_TAKEOVER_FENCE, -EBUSY);
	ck_assert_msg(strstr(kvr_explain(), "lock"), "%s", kvr_explain());
	kill(cl.leader, SIGCONT);
	cluster_join(&cl, 0, 20000); /* all end with -ESTALE */
	ck_assert_uint_eq(cl.area->word[CLUSTER_LEAD][1], ESTALE);
	kvr_connector_close(lead(KVR_TAKEOVER_REFUSE, 0)); /* the lock is free */
	cluster_exit(&cl);
}
END_TEST

/* Its pool and its segment are its own; the new leader's do not change when it goes on. */
START_TEST(test_leader_that_lost_only_its_segment_changes_nothing)
{
	struct kvr_connector *c;
	uint64_t pool;

	cluster_init(&cl, 2, 0, 32, 0);
	cluster_start(&cl, old_side, old_side);
	stop_leader();
	c = lead(KVR_TAKEOVER_FENCE, 0);
	pool = pool_hash(c);
	kill(cl.leader, SIGCONT);
	test_sleep_ms(WATCH_MS);
	ck_assert_uint_eq(pool_hash(c), pool);
	cluster_join(&cl, 0, 20000);
	for (uint32_t r = 0; r < 2; r++)
		ck_assert_uint_eq(cl.area->word[r][1], ESTALE);
	ck_assert_uint_eq(cl.area->word[CLUSTER_LEAD][1], ESTALE);
	ck_assert_uint_eq(pool_hash(c), pool);
	ck_assert_int_eq(kvr_group_visible(kvr_connector_group(c)), 0);
	/* And it works, with new ranks. (TSan does not follow a fork after threads.) */
	if (!KVR_TEST_TSAN) {
		cluster_start(&cl, NULL, new_rank);
		new_rank(&cl, c, UINT32_MAX);
		cluster_join(&cl, 0, 30000);
	}
	kvr_connector_close(c);
	cluster_exit(&cl);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("connector_takeover");
	TCase *t = tcase_create("takeover");

	tcase_set_timeout(t, 90);
	tcase_add_loop_test(t, test_killed_leaders_store_does_not_change_under_the_new_one, 0, 2);
	tcase_add_test(t, test_fenced_leader_keeps_its_store);
	tcase_add_test(t, test_leader_that_lost_only_its_segment_changes_nothing);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
