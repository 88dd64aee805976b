/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A leader and two ranks, a thread each, go through the same random list of requests, each as fast
 * as it can, and abort some of them whenever they like. Afterwards all heard the same, every
 * operation ended once, and nothing is pinned, copied, read or in quarantine any more. While a rank
 * has blocks, nobody else touches its bytes.
 */
#include "trio.h"

#include <pthread.h>

#include "engine_priv.h"

#define GROUPS 8u
#define ITEMS 400u
#define MAX 8u
#define KEYS 96u

enum kind { STORE, LOAD, LAYERS, PREFETCH, DECIDE, RESET };

struct item {
	enum kind kind;
	uint32_t first, n;
	int abort;	    /* of the request, by all */
	uint32_t lead_us;   /* the leader's pause before its abort */
	uint32_t us[RANKS]; /* the ranks' before theirs */
	int skip[RANKS];    /* that rank aborts without having begun */
	int vote[RANKS], outcome[RANKS];
	int copied[RANKS];
	int got[1 + RANKS], got2[1 + RANKS];
};

static struct kvr_key keys[KEYS];
static struct item items[ITEMS];
static struct kvr_shape shape;
static struct kvr_completion told[1 + RANKS][8 * ITEMS];
static uint32_t tolds[1 + RANKS];
static uint64_t seed;
static int bad;

static uint32_t rnd(uint32_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)((seed >> 20) % n);
}

#define SAY(...)                                             \
	do {                                                 \
		fprintf(stderr, __VA_ARGS__);                \
		__atomic_store_n(&bad, 1, __ATOMIC_RELAXED); \
	} while (0)

/* A signal handler may run at any time: the same call goes on. */
#define AGAIN(call)                       \
	({                                \
		int again_;               \
                                          \
		do                        \
			again_ = (call);  \
		while (again_ == -EINTR); \
		again_;                   \
	})

static int signals, leaves, turns;

static void make_items(void)
{
	for (uint32_t i = 0; i < ITEMS; i++) {
		struct item *t = &items[i];
		uint32_t k = rnd(100);

		memset(t, 0, sizeof *t);
		t->kind = k < 35   ? STORE
			  : k < 50 ? LOAD
			  : k < 75 ? LAYERS
			  : k < 87 ? PREFETCH
			  : k < 98 ? DECIDE
				   : RESET;
		t->first = rnd(KEYS / MAX) * MAX;
		t->n = 1 + rnd(MAX);
		t->abort = t->kind != RESET && rnd(3) == 0;
		t->lead_us = rnd(2) ? 0 : rnd(2000);
		for (uint32_t r = 0; r < RANKS; r++) {
			t->us[r] = rnd(2) ? 0 : rnd(2000);
			t->skip[r] = t->abort && t->kind != LAYERS && rnd(6) == 0;
			t->vote[r] = rnd(8) ? 0 : -ENOSPC;
			t->outcome[r] = rnd(8) ? 0 : -EIO;
			t->copied[r] = rnd(12) ? 0 : -EIO;
		}
	}
}

static struct kvr_connector *actor(uint32_t a)
{
	return a ? rank[a - 1] : lead;
}

static void poll_ticks(uint32_t a, enum kvr_tick_mode mode)
{
	int n = AGAIN(kvr_connector_check_completed(actor(a), mode, 0, SOON, told[a] + tolds[a],
						    8 * ITEMS - tolds[a], NULL));

	if (n < 0)
		SAY("actor %u: check_completed: %d %s\n", a, n, kvr_explain());
	else
		tolds[a] += (uint32_t)n;
}

/* Own spans of the blocks: filled, and untouched by others until they are given back. */
static void fill(uint32_t r, const struct kvr_key *k, struct kvr_block *b, int n)
{
	for (int i = 0; i < n; i++)
		cluster_fill(rank[r], &k[b[i].index], &b[i]);
}

static void look(uint32_t r, uint32_t i, const struct kvr_key *k, struct kvr_block *b, int n,
		 const char *when)
{
	for (int j = 0; j < n; j++) {
		uint64_t wrong = cluster_wrong(rank[r], &k[b[j].index], &b[j]);

		if (wrong)
			SAY("rank %u item %u (kind %d abort %d) block %d slot %u: %llu wrong %s\n",
			    r, i, items[i].kind, items[i].abort, j, b[j].slot,
			    (unsigned long long)wrong, when);
	}
}

static void lead_item(uint32_t i)
{
	struct item *t = &items[i];
	struct kvr_request req = { .id = 1000 + i };
	const struct kvr_key *k = keys + t->first;
	struct kvr_block b[MAX];
	struct kvr_hit hit;
	uint32_t covered;

	switch (t->kind) {
	case STORE:
		t->got[0] = AGAIN(
			kvr_connector_store_begin(lead, &req, k, t->n, SOON, b, MAX, &covered));
		break;
	case LOAD:
	case LAYERS:
		ok(AGAIN(kvr_connector_lookup(lead, &req, k, t->n, SOON, &hit)));
		if (!hit.blocks)
			break;
		t->got[0] = t->kind == LOAD
				    ? AGAIN(kvr_connector_load_begin(lead, &req, hit.blocks, SOON))
				    : AGAIN(kvr_connector_load_begin_layers(lead, &req, hit.blocks,
									    SOON));
		break;
	case PREFETCH:
		t->got[0] =
			AGAIN(kvr_connector_prefetch(lead, &req, k, t->n, rnd(3) ? 0 : 2, SOON));
		break;
	case DECIDE:
		t->got[0] = AGAIN(kvr_connector_propose(lead, &req, &i, sizeof i, SOON));
		break;
	default:
		t->got[0] = AGAIN(kvr_connector_reset(lead, &req, NULL, kvr_deadline(300)));
		t->got2[0] = AGAIN(kvr_connector_reset_wait(lead, &req, SOON));
	}
	if (t->abort) {
		if (t->lead_us)
			usleep(t->lead_us);
		ok(AGAIN(kvr_connector_abort(lead, &req)));
	}
	if (t->kind == DECIDE && !t->got[0])
		t->got2[0] = AGAIN(kvr_connector_decided(lead, &req, SOON));
	if (t->kind == LOAD || t->kind == LAYERS)
		ok(AGAIN(kvr_connector_release(lead, &req)));
}

static void rank_load(uint32_t r, uint32_t i, const struct kvr_request *req,
		      const struct kvr_key *k)
{
	struct item *t = &items[i];
	struct kvr_block b[MAX];
	struct kvr_hit hit = { 0 };
	int n, good = 0;

	n = AGAIN(kvr_connector_lookup(rank[r], req, k, t->n, SOON, &hit));
	if (n)
		SAY("rank %u item %u: lookup %d %s\n", r, i, n, kvr_explain());
	if (!hit.blocks)
		return;
	n = t->kind == LOAD
		    ? AGAIN(kvr_connector_load_begin(rank[r], req, hit.blocks, SOON))
		    : AGAIN(kvr_connector_load_begin_layers(rank[r], req, hit.blocks, SOON));
	t->got[1 + r] = n;
	for (uint32_t g = 0; n > 0 && t->kind == LAYERS && g < GROUPS; g += 1 + (i & 1)) {
		good = AGAIN(kvr_connector_load_wait_layer(rank[r], req, k, g, SOON, b, MAX));
		if (good < 0)
			break;
		if (good != n)
			SAY("rank %u item %u: layer %u gave %d of %d\n", r, i, g, good, n);
	}
	if (n > 0 && good >= 0)
		good = AGAIN(kvr_connector_load_wait(rank[r], req, k, SOON, b, MAX));
	t->got2[1 + r] = good;
	if (good == -ETIMEDOUT || n == -ETIMEDOUT)
		SAY("rank %u item %u abort %d: %d %d %s\n", r, i, t->abort, n, good, kvr_explain());
	if (good > 0)
		look(r, i, k, b, good, "after the load");
	if (t->us[r])
		usleep(t->us[r]);
	if (good > 0)
		look(r, i, k, b, good, "before load_done");
	if (n > 0 && !t->abort)
		ok(AGAIN(kvr_connector_load_done(rank[r], req)));
}

static void rank_item(uint32_t r, uint32_t i)
{
	struct item *t = &items[i];
	struct kvr_request req = { .id = 1000 + i };
	const struct kvr_key *k = keys + t->first;
	struct kvr_block b[MAX];
	uint32_t covered, what;
	int n = -1;

	if (t->skip[r]) {
		ok(AGAIN(kvr_connector_abort(rank[r], &req)));
		return;
	}
	switch (t->kind) {
	case STORE:
		t->got[1 + r] = n = AGAIN(
			kvr_connector_store_begin(rank[r], &req, k, t->n, SOON, b, MAX, &covered));
		fill(r, k, b, n);
		if (t->us[r])
			usleep(t->us[r]);
		look(r, i, k, b, n, "before store_copied");
		if (n >= 0 && (!t->abort || t->us[r] % 2))
			ok(AGAIN(kvr_connector_store_copied(rank[r], &req, t->copied[r])));
		break;
	case LOAD:
	case LAYERS:
		rank_load(r, i, &req, k);
		break;
	case PREFETCH:
		t->got[1 + r] = AGAIN(kvr_connector_prefetch(rank[r], &req, k, t->n, 0, SOON));
		break;
	case DECIDE:
		t->got[1 + r] = n = AGAIN(kvr_connector_proposal(rank[r], &req, &what, 4, SOON));
		if (n == 4 && what != i)
			SAY("rank %u item %u: manifest of %u\n", r, i, what);
		t->got2[1 + r] = n; /* unless it is there: cancelled before this rank began */
		if (n == 4) {
			ok(AGAIN(kvr_connector_vote(rank[r], &req, t->vote[r])));
			t->got2[1 + r] = AGAIN(kvr_connector_decided(rank[r], &req, SOON));
			if (!t->got2[1 + r])
				ok(AGAIN(kvr_connector_outcome(rank[r], &req, t->outcome[r])));
		}
		break;
	default:
		t->got[1 + r] = AGAIN(kvr_connector_reset(rank[r], &req, NULL, SOON));
		t->got2[1 + r] = AGAIN(kvr_connector_reset_wait(rank[r], &req, SOON));
	}
	if (t->abort)
		ok(AGAIN(kvr_connector_abort(rank[r], &req)));
	if (t->kind == LOAD || t->kind == LAYERS)
		ok(AGAIN(kvr_connector_release(rank[r], &req)));
}

static void *go(void *arg)
{
	uint32_t a = (uint32_t)(uintptr_t)arg;

	for (uint32_t i = 0; i < ITEMS; i++) {
		if (a == 2 && leaves && i == ITEMS / 2) {
			kvr_connector_close(rank[1]);
			rank[1] = NULL;
			return NULL;
		}
		if (a)
			rank_item(a - 1, i);
		else
			lead_item(i);
		poll_ticks(a, a ? KVR_NOW : KVR_NEXT);
	}
	return NULL;
}

static void compare(void)
{
	for (uint32_t i = 0; i < (leaves ? ITEMS / 2 : ITEMS); i++) {
		const struct item *t = &items[i];

		if (t->abort)
			continue;
		if (t->kind != DECIDE && t->kind != RESET &&
		    (t->got[0] != t->got[1] || t->got[0] != t->got[2]))
			SAY("item %u kind %d: began as %d, %d, %d\n", i, t->kind, t->got[0],
			    t->got[1], t->got[2]);
		if (t->kind == DECIDE ? (t->got2[1] < 0) != (t->got2[2] < 0) ||
						(t->got2[0] < 0) != (t->got2[1] < 0)
				      : t->got2[1] != t->got2[2] ||
						(t->kind == RESET && t->got2[0] != t->got2[1]))
			SAY("item %u kind %d: %d, %d, %d\n", i, t->kind, t->got2[0], t->got2[1],
			    t->got2[2]);
	}
}

static void nothing_is_left(void)
{
	struct kvr_engine *e = lead->engine;
	uint32_t used = 0;

	pthread_mutex_lock(&e->lock);
	if (e->active_count || e->open_count || e->pin_count || e->held_ops || e->held_slots ||
	    e->io_running || e->fetch_running)
		SAY("left: %u active, %u open, %u pins, %llu held of %llu slots, %llu io, %u "
		    "fetches\n",
		    e->active_count, e->open_count, e->pin_count, (unsigned long long)e->held_ops,
		    (unsigned long long)e->held_slots, (unsigned long long)e->io_running,
		    e->fetch_running);
	for (uint32_t i = e->active; i != KVR_NO_OP; i = e->ops[i].next_op)
		SAY("op %u: item %llu kind %u stage %u status %d need %llx acked %llx "
		    "skip %d %d\n",
		    i, (unsigned long long)e->ops[i].req.id - 1000, e->ops[i].kind, e->ops[i].stage,
		    e->ops[i].status, (unsigned long long)e->ops[i].need,
		    (unsigned long long)e->ops[i].acked, items[e->ops[i].req.id - 1000].skip[0],
		    items[e->ops[i].req.id - 1000].skip[1]);
	for (uint32_t id = 0; id < e->tier.capacity; id++) {
		const struct kvr_tier_block *b = &e->tier.blocks[id];

		used += b->used && b->slot != KVR_NO_SLOT;
		if (b->used && (b->pins || b->copying || b->reading || b->queued || b->writing ||
				b->dead || b->parts || b->part_bad))
			SAY("block %u: pins %u copying %u reading %u queued %u writing %u dead %u "
			    "parts %u\n",
			    id, b->pins, b->copying, b->reading, b->queued, b->writing, b->dead,
			    b->parts);
	}
	if (used + e->tier.free_slot_count != e->pool.slots)
		SAY("%u slots used, %u free of %llu\n", used, e->tier.free_slot_count,
		    (unsigned long long)e->pool.slots);
	pthread_mutex_unlock(&e->lock);
}

static void one_end_each(uint32_t a)
{
	static uint32_t ends[ITEMS];

	memset(ends, 0, sizeof ends);
	for (uint32_t i = 0; i < tolds[a]; i++)
		ends[told[a][i].request.id - 1000] += told[a][i].stage >= KVR_STAGE_END;
	for (uint32_t i = 0; i < ITEMS; i++)
		if (ends[i] > 1)
			SAY("actor %u: item %u ended %u times\n", a, i, ends[i]);
	if (tolds[a] != tolds[0] || memcmp(told[a], told[0], tolds[a] * sizeof told[0][0]))
		SAY("actor %u was told otherwise: %u, %u\n", a, tolds[a], tolds[0]);
}

static void nothing(int sig)
{
	(void)sig;
}

static int over;
static pthread_t actors[1 + RANKS];

/* Signals for the actors; and bytes of the store's file that turn. */
static void *trouble(void *arg)
{
	uint64_t mine = (uint64_t)(uintptr_t)arg * 77777 + 1;
	char path[300];
	int fd = -1;

	if (turns) {
		snprintf(path, sizeof path, "%s/kvring.store", cl.opts.store_paths[0]);
		fd = open(path, O_RDWR | O_CLOEXEC);
	}
	while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
		mine = mine * 6364136223846793005u + 1442695040888963407u;
		if (signals)
			pthread_kill(actors[(mine >> 33) % 3], SIGUSR1);
		if (fd >= 0 && (mine >> 40) % 8 == 0) {
			off_t at = 65536 + (off_t)((mine >> 20) % (40 * 69632));
			uint8_t b;

			if (pread(fd, &b, 1, at) == 1) {
				b ^= 16;
				if (pwrite(fd, &b, 1, at) != 1)
					b = 0;
			}
		}
		usleep(100 + (useconds_t)((mine >> 50) % 300));
	}
	if (fd >= 0)
		close(fd);
	return NULL;
}

START_TEST(test_storm)
{
	struct sigaction act = { .sa_handler = nothing };
	pthread_t *t = actors, other;
	uint64_t deadline;
	struct kvr_stats s;

	signals = _i % 4 == 1;
	leaves = _i % 4 == 2;
	turns = _i % 4 == 3;
	sigaction(SIGUSR1, &act, NULL);
	seed = 0x9e3779b97f4a7c15u * ((uint64_t)_i + 1);
	if (getenv("STORM_SEED"))
		seed *= strtoull(getenv("STORM_SEED"), NULL, 0);
	cluster_init(&cl, RANKS, 0, 16, 40);
	ok(kvr_shape_split(RANKS, GROUPS, 65536, &shape));
	cl.opts.shape = &shape;
	ok(kvr_connector_lead(cl.name, &cl.opts, &lead));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_join(cl.name, r, NULL, SOON, &rank[r]));
	lead->engine->part_bytes = 4096;
	cluster_keys(3, keys, KEYS);
	make_items();
	for (uint32_t a = 0; a <= RANKS; a++)
		pthread_create(&t[a], NULL, go, (void *)(uintptr_t)a);
	pthread_create(&other, NULL, trouble, (void *)(uintptr_t)_i);
	if (signals) /* a thread that is over takes none */
		usleep(3000000);
	__atomic_store_n(&over, signals, __ATOMIC_RELEASE);
	if (signals)
		pthread_join(other, NULL);
	for (uint32_t a = 0; a <= RANKS; a++)
		pthread_join(t[a], NULL);
	__atomic_store_n(&over, 1, __ATOMIC_RELEASE);
	if (!signals)
		pthread_join(other, NULL);
	deadline = test_deadline_ms(10000);
	do {
		poll_ticks(0, KVR_NEXT);
		for (uint32_t r = 0; r < RANKS - (uint32_t)leaves; r++)
			poll_ticks(1 + r, KVR_NEXT);
		ok(kvr_connector_stats(lead, &s));
		usleep(2000);
	} while ((s.ops_begun != s.ops_ended || leader_page()->quarantined_ops ||
		  lead->engine->io_running) &&
		 kvr_deadline(0) < deadline);
	for (uint32_t k = 0; k < 3; k++)
		for (uint32_t a = 0; a <= RANKS - (uint32_t)leaves; a++)
			poll_ticks(a, KVR_NEXT);
	compare();
	ok(kvr_connector_stats(lead, &s));
	for (uint32_t a = 0; getenv("STORM_SEED") && a <= RANKS; a++)
		if (actor(a))
			fprintf(stderr, "actor %u: %llu wakes lost\n", a,
				(unsigned long long)actor(a)->group->proc->lost_wakes);
	if (getenv("STORM_SEED"))
		fprintf(stderr,
			"%d: %llu begun, %llu failed, stored %llu written %llu loaded %llu bad "
			"%llu, read %llu MiB\n",
			_i, (unsigned long long)s.ops_begun, (unsigned long long)s.ops_failed,
			(unsigned long long)s.blocks_stored, (unsigned long long)s.blocks_written,
			(unsigned long long)s.blocks_loaded, (unsigned long long)s.blocks_bad,
			(unsigned long long)s.bytes_read >> 20);
	for (uint32_t a = 0; a <= RANKS - (uint32_t)leaves; a++)
		one_end_each(a);
	nothing_is_left();
	ck_assert_int_eq(bad, 0);
	trio_close();
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("connector_storm");
	TCase *t = tcase_create("storm");

	tcase_set_timeout(t, 100);
	tcase_add_loop_test(t, test_storm, 0, 4);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
