/* SPDX-License-Identifier: Apache-2.0 */
/* A leader with a shard: for each call its own handle first and the rank's second, in one thread;
 * the other rank is a thread of its own. No order of calls that is documented may block. */
#include "trio.h"

#include "engine_priv.h"

#define ROUNDS 60u
#define BLOCKS 6u

static struct kvr_key keys[64];

/* Both handles of the leader's process, or the other rank's alone. */
struct side {
	struct kvr_connector *l, *r;
	struct kvr_completion c[256];
};

static void must(int got, const char *what, uint64_t id)
{
	if (got < 0)
		ck_abort_msg("%s of %llu: %d %s", what, (unsigned long long)id, got, kvr_explain());
}

#define BOTH(call)                                 \
	do {                                       \
		struct kvr_connector *h = s->l;    \
		if (h)                             \
			must(call, #call, req.id); \
		h = s->r;                          \
		must(call, #call, req.id);         \
	} while (0)

static void round_of(struct side *s, uint64_t id)
{
	struct kvr_request req = { .id = id };
	const struct kvr_key *k = keys + (id % 8) * 8;
	struct kvr_block b[BLOCKS];
	struct kvr_hit hit;
	uint32_t covered, done;
	char m[8] = "";
	int n;

	if (s->l)
		must(kvr_connector_store_begin(s->l, &req, k, BLOCKS, SOON, b, BLOCKS, &covered),
		     "store", id);
	n = kvr_connector_store_begin(s->r, &req, k, BLOCKS, SOON, b, BLOCKS, &covered);
	must(n, "store", id);
	for (int i = 0; i < n; i++)
		cluster_fill(s->r, &k[b[i].index], &b[i]);
	BOTH(kvr_connector_store_copied(h, &req, 0));
	BOTH(kvr_connector_wait_store(h, &req, KVR_STAGE_HOST, SOON));
	BOTH(kvr_connector_check_completed(h, KVR_NEXT, 0, SOON, s->c, 256, NULL));
	req.attempt = 1;
	BOTH(kvr_connector_prefetch(h, &req, k, BLOCKS, 0, SOON));
	BOTH(kvr_connector_lookup(h, &req, k, covered, SOON, &hit));
	if (hit.blocks) {
		BOTH(kvr_connector_load_begin_layers(h, &req, hit.blocks, SOON));
		n = kvr_connector_load_wait_layer(s->r, &req, k, 0, SOON, b, BLOCKS);
		if (n != -ECANCELED || id % 3) /* else the other rank was first with its abort */
			must(n, "layer", id);
		if (id % 3) {
			must(kvr_connector_load_wait_layer(s->r, &req, k, 1, SOON, b, BLOCKS),
			     "layer", id);
			must(kvr_connector_load_wait(s->r, &req, k, SOON, b, BLOCKS), "wait", id);
			BOTH(kvr_connector_load_done(h, &req));
		} else {
			BOTH(kvr_connector_abort(h, &req));
		}
	}
	BOTH(kvr_connector_release(h, &req));
	if (kvr_connector_prefetch_status(s->r, &req, &done) == 0)
		BOTH(kvr_connector_prefetch_cancel(h, &req));
	req.attempt = 2;
	if (s->l)
		must(kvr_connector_propose(s->l, &req, "x", 1, SOON), "propose", id);
	must(kvr_connector_proposal(s->r, &req, m, 8, SOON), "proposal", id);
	BOTH(kvr_connector_vote(h, &req, 0));
	BOTH(kvr_connector_decided(h, &req, SOON));
	BOTH(kvr_connector_outcome(h, &req, 0));
	BOTH(kvr_connector_check_completed(h, KVR_NEXT, 0, SOON, s->c, 256, NULL));
	req.attempt = 3;
	if (id % 5 == 0) {
		BOTH(kvr_connector_reset(h, &req, NULL, SOON));
		BOTH(kvr_connector_reset_wait(h, &req, SOON));
	}
	BOTH(kvr_connector_abort(h, &req));
	BOTH(kvr_connector_check_completed(h, KVR_NEXT, 0, SOON, s->c, 256, NULL));
}

static void *other(void *arg)
{
	struct side *s = arg;

	for (uint64_t id = 1; id <= ROUNDS; id++)
		round_of(s, id);
	ok(kvr_connector_shutdown(s->r, SOON));
	return NULL;
}

START_TEST(test_all_calls_in_one_thread)
{
	static struct side mine, its;
	struct kvr_request req = { 0 };
	struct side *s = &mine;
	pthread_t t;

	trio_open(24, 40);
	cluster_keys(1, keys, 64);
	mine.l = lead;
	mine.r = rank[0];
	its.r = rank[1];
	pthread_create(&t, NULL, other, &its);
	for (uint64_t id = 1; id <= ROUNDS; id++)
		round_of(&mine, id);
	BOTH(kvr_connector_shutdown(h, SOON));
	pthread_join(t, NULL);
	ck_assert_uint_eq(leader_page()->quarantined_ops, 0);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_uint_eq(rank_page(r)->drift.kind, 0);
	trio_close();
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("connector_solo");
	TCase *t = tcase_create("solo");

	tcase_set_timeout(t, 100);
	tcase_add_test(t, test_all_calls_in_one_thread);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
