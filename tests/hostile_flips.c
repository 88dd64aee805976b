/* SPDX-License-Identifier: Apache-2.0 */
/* See hostile_flips.h. */
#include "hostile_flips.h"

#include <sys/mman.h>
#include <sys/prctl.h>

#include "cluster.h"
#include "group.h"
#include "shm.h"

#define RANKS 3u
#define PROCS (RANKS + 1)
#define LEADER RANKS
#define BLOCK 24576u
#define SLOTS 12u
#define KEYS 3u
#define FAMILIES 5u
#define CALL_MS 100u
#define ROUND_FLIPS 40u
#define SLOW (KVR_TEST_TSAN ? 10u : KVR_TEST_ASAN ? 3u : 1u)
/* The library's grace is a second; the rest is for a machine that is busy elsewhere. */
#define LATE_MS (1000u + 9000u * SLOW)
#define HANG_MS (30000u * SLOW)

struct proc {
	uint64_t calls, good, named, timeouts, over, other, late_ns, wrong;
	uint64_t step; /* the request it is at */
	const char *doing, *latest;
	uint64_t since;
	char over_text[512];
};

static struct area {
	struct proc proc[PROCS];
	uint32_t joined, stop;
} * area;

static struct cluster cl;
static struct proc *me;

/* --- the processes at work -------------------------------------------------------------------- */

static int stopping(void)
{
	return (int)__atomic_load_n(&area->stop, __ATOMIC_RELAXED) || me->over;
}

static uint64_t starts(const char *what)
{
	me->doing = what;
	me->since = test_now_ns();
	me->calls++;
	return test_deadline_ms(CALL_MS);
}

static int ends(struct kvr_connector *c, uint64_t deadline, int rc)
{
	uint64_t now = test_now_ns();

	if (now > deadline && now - deadline > me->late_ns) {
		me->late_ns = now - deadline;
		me->latest = me->doing;
	}
	me->doing = "nothing";
	if (rc >= 0)
		__atomic_fetch_add(&me->good, 1, __ATOMIC_RELAXED);
	else if (rc == -EBADMSG)
		me->named++;
	else if (rc == -ETIMEDOUT || rc == -EAGAIN)
		me->timeouts++;
	else
		me->other++;
	if (rc < 0 && kvr_group_check(kvr_connector_group(c))) {
		snprintf(me->over_text, sizeof me->over_text, "%s", kvr_explain());
		__atomic_fetch_add(&me->over, 1, __ATOMIC_RELAXED);
	}
	return rc;
}

#define CALL(what, call) (deadline = starts(what), ends(c, deadline, call))

static void store(struct kvr_connector *c, const struct kvr_request *req,
		  const struct kvr_key *keys, int leader)
{
	struct kvr_block blocks[KEYS];
	uint64_t deadline;
	uint32_t covered;
	int n = CALL("store_begin", kvr_connector_store_begin(c, req, keys, KEYS, deadline, blocks,
							      KEYS, &covered));

	if (n < 0)
		return;
	for (int i = 0; i < n && !leader; i++)
		cluster_fill(c, &keys[blocks[i].index], &blocks[i]);
	CALL("store_copied", kvr_connector_store_copied(c, req, 0));
	CALL("wait_store", kvr_connector_wait_store(c, req, KVR_STAGE_HOST, deadline));
}

static void load(struct kvr_connector *c, const struct kvr_request *req, const struct kvr_key *keys,
		 int leader)
{
	struct kvr_block blocks[KEYS];
	struct kvr_hit hit = { 0 };
	uint64_t deadline;
	int n = CALL("lookup", kvr_connector_lookup(c, req, keys, KEYS, deadline, &hit));

	if (!n && hit.blocks)
		n = CALL("load_begin", kvr_connector_load_begin(c, req, hit.blocks, deadline));
	if (n > 0) {
		n = CALL("load_wait",
			 kvr_connector_load_wait(c, req, keys, deadline, blocks, KEYS));
		for (int i = 0; i < n && !leader; i++)
			me->wrong += cluster_wrong(c, &keys[i], &blocks[i]);
		CALL("load_done", kvr_connector_load_done(c, req));
	}
	CALL("release", kvr_connector_release(c, req));
}

/* The leader is a few requests ahead of the slowest rank at most, and a rank never ahead of it. */
static void meet(int leader)
{
	uint64_t until = test_deadline_ms(CALL_MS), ahead = leader ? 3 : 0;

	for (uint32_t p = 0; p < PROCS; p++) {
		const struct proc *other = &area->proc[p];

		if (leader != (p != LEADER))
			continue;
		while (__atomic_load_n(&other->step, __ATOMIC_RELAXED) + ahead < me->step &&
		       !other->over && !stopping() && test_now_ns() < until)
			usleep(50);
	}
}

static void work(struct cluster *cluster, struct kvr_connector *c, uint32_t rank)
{
	int leader = CLUSTER_LEADER(rank);
	struct kvr_completion done[64];
	struct kvr_key keys[KEYS];
	uint64_t deadline, tick;

	(void)cluster;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	me = &area->proc[leader ? LEADER : rank];
	__atomic_fetch_add(&area->joined, 1, __ATOMIC_RELEASE);
	while (!stopping()) {
		struct kvr_request req = { .id = __atomic_add_fetch(&me->step, 1,
								    __ATOMIC_RELAXED) };

		meet(leader);
		cluster_keys(req.id / 2 % FAMILIES, keys, KEYS);
		if (req.id % 2)
			store(c, &req, keys, leader);
		else
			load(c, &req, keys, leader);
		CALL("check_completed",
		     kvr_connector_check_completed(c, leader ? KVR_NEXT : KVR_NOW, 0, deadline,
						   done, 64, &tick));
	}
	me->doing = "close";
	me->since = test_now_ns();
}

/* --- who flips -------------------------------------------------------------------------------- */

static uint64_t next(uint64_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x >> 11;
}

/* Where to hit: each region as often as the others, however small it is. */
static uint64_t place(const struct kvr_layout *l, uint64_t *x)
{
	static const uint32_t channels[] = { KVR_CH_LOOKUP, KVR_CH_STORE, KVR_CH_COMPLETE,
					     KVR_CH_LOAD, KVR_CH_CONTROL };
	uint64_t rank = next(x) % RANKS, area_of = kvr_layout_rank(l, (uint32_t)rank);
	uint64_t ring = kvr_layout_ring(l, channels[next(x) % 5], (uint32_t)rank);
	uint64_t cell = next(x) % (l->ring_bytes / KVR_RING_CELL);
	uint64_t rec = sizeof(struct kvr_rec_ctl) + l->events * sizeof(struct kvr_event);

	switch (next(x) % 12) {
	case 0:
		return next(x) % sizeof(struct kvr_seg_header);
	case 1:
		return l->takeover + next(x) % 256;
	case 2:
		return l->bells + next(x) % (PROCS * sizeof(struct kvr_bell));
	case 3:
		return l->leader + next(x) % 512;
	case 4:
		return l->leader_ops + next(x) % (l->ops * sizeof(struct kvr_op_entry));
	case 5:
		return l->leader_rec + next(x) % rec;
	case 6: /* a control line, or what a message begins with */
		return ring + (next(x) % 4 ? KVR_RING_CTL + cell * KVR_RING_CELL : 0) +
		       next(x) % 16;
	case 7:
	case 8:
		return ring + KVR_RING_CTL + next(x) % l->ring_bytes;
	case 9:
		return area_of + next(x) % 2432;
	case 10:
		return area_of + l->rank_acks + next(x) % (l->ops * sizeof(struct kvr_ack_entry));
	default:
		return area_of + l->rank_rec + next(x) % rec;
	}
}

static uint8_t *map(struct kvr_layout *l)
{
	char path[KVR_SHM_PATH];
	struct kvr_seg_header h;
	uint64_t bytes;
	uint8_t *wild;
	int fd;

	ck_assert_int_eq(kvr_shm_path(path, sizeof path, NULL, cl.name, KVR_SHM_SEGMENT, 0), 0);
	fd = kvr_shm_open(path, 1, &bytes);
	ck_assert_msg(fd >= 0, "%s", kvr_explain());
	ck_assert_int_eq(kvr_shm_read(fd, &h, sizeof h, 0), 0);
	ck_assert_int_eq(kvr_header_check(&h, bytes, path, l), 0);
	wild = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(wild, MAP_FAILED);
	close(fd);
	return wild;
}

/* What is left of a group whose own pages lie is not asked: all its names go. */
static void remove_all(void)
{
	static const enum kvr_shm_kind kinds[] = { KVR_SHM_SEGMENT, KVR_SHM_POOL, KVR_SHM_LOCK };
	char path[KVR_SHM_PATH];

	for (uint32_t i = 0; i < 3; i++)
		if (!kvr_shm_path(path, sizeof path, NULL, cl.name, kinds[i], 0))
			unlink(path);
}

static uint64_t good_calls(void)
{
	uint64_t sum = 0;

	for (uint32_t p = 0; p < PROCS; p++)
		sum += __atomic_load_n(&area->proc[p].good, __ATOMIC_RELAXED);
	return sum;
}

static int over(void)
{
	for (uint32_t p = 0; p < PROCS; p++)
		if (__atomic_load_n(&area->proc[p].over, __ATOMIC_RELAXED))
			return 1;
	return 0;
}

/* Traffic goes on between two flips, unless the last one stopped it for a while. */
static void let_work(uint64_t calls)
{
	uint64_t before = good_calls(), until = test_deadline_ms(10);

	while (good_calls() < before + calls && !over() && test_now_ns() < until)
		usleep(50);
}

static void reap_all(uint64_t seed)
{
	uint64_t deadline = test_deadline_ms(HANG_MS);

	for (uint32_t p = 0; p < PROCS; p++) {
		pid_t *pid = p == LEADER ? &cl.leader : &cl.rank[p];
		const struct proc *q = &area->proc[p];
		int status = 0;
		pid_t got;

		while (!(got = waitpid(*pid, &status, WNOHANG)) && test_now_ns() < deadline)
			test_sleep_ms(1);
		if (got == *pid && !status) {
			*pid = 0;
			continue;
		}
		for (uint32_t k = 0; k < PROCS; k++) {
			pid_t other = k == LEADER ? cl.leader : cl.rank[k];

			if (other > 0 && other != got)
				kill(other, SIGKILL);
		}
		remove_all();
		ck_abort_msg("%s%u %s in %s (step %llu, for %llu ms), status %#x; round of seed "
			     "%llu",
			     p == LEADER ? "the leader" : "rank ", p == LEADER ? 0 : p,
			     got ? "ended" : "hangs", q->doing ? q->doing : "its start",
			     (unsigned long long)q->step,
			     (unsigned long long)(test_now_ns() - q->since) / 1000000,
			     (unsigned)status, (unsigned long long)seed);
	}
}

static void add_up(struct flips_result *r, uint64_t seed)
{
	for (uint32_t p = 0; p < PROCS; p++) {
		const struct proc *q = &area->proc[p];

		r->calls += q->calls;
		r->good += q->good;
		r->named += q->named;
		r->timeouts += q->timeouts;
		r->other += q->other;
		r->over += q->over > 0;
		if (q->late_ns / 1000000 > r->late_ms)
			r->late_ms = q->late_ns / 1000000;
		ck_assert_msg(q->late_ns < LATE_MS * 1000000ull,
			      "%s took %llu ms beyond its deadline; round of seed %llu", q->latest,
			      (unsigned long long)q->late_ns / 1000000, (unsigned long long)seed);
		ck_assert_msg(!q->wrong, "rank %u saw %llu wrong bytes; round of seed %llu", p,
			      (unsigned long long)q->wrong, (unsigned long long)seed);
	}
}

static void round_start(uint64_t round)
{
	uint64_t deadline = test_deadline_ms(HANG_MS);

	memset(area, 0, sizeof *area);
	cluster_init(&cl, RANKS, 1, SLOTS, 0);
	ck_assert(!(round % 4 ? kvr_shape_split(RANKS, 2, BLOCK, &cl.shape)
			      : kvr_shape_replicated(RANKS, 2, BLOCK, &cl.shape)));
	cl.opts.host_bytes = 4096 + SLOTS * (BLOCK + 4096ull);
	cl.opts.ring_bytes = 2048; /* small, so that a flip hits something */
	cl.opts.ops = 16;
	cl.opts.events = 16;
	cl.opts.bulk_bytes = 4096;
	fflush(stdout);
	cluster_start(&cl, work, work);
	while (__atomic_load_n(&area->joined, __ATOMIC_ACQUIRE) < PROCS) {
		ck_assert_msg(test_now_ns() < deadline, "the group did not start");
		test_sleep_ms(1);
	}
}

struct flips_result flips_run(uint64_t seed, uint64_t flips)
{
	struct flips_result r = { 0 };
	struct kvr_layout l;
	uint8_t *wild;

	area = mmap(NULL, sizeof *area, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(area, MAP_FAILED);
	for (; r.flips < flips; r.rounds++) {
		uint64_t x = (seed + r.rounds) * 0x9e3779b97f4a7c15ull | 1;

		round_start(r.rounds);
		wild = map(&l);
		let_work(50);
		for (uint32_t n = 0; n < ROUND_FLIPS && r.flips < flips && !over(); n++) {
			uint8_t bits = (uint8_t)(1 + next(&x) % 255);
			uint64_t at = place(&l, &x);

			__atomic_fetch_xor(&wild[at], bits, __ATOMIC_RELAXED);
			r.flips++;
			let_work(1 + next(&x) % 64);
		}
		let_work(200);
		__atomic_store_n(&area->stop, 1, __ATOMIC_RELAXED);
		reap_all(seed + r.rounds);
		add_up(&r, seed + r.rounds);
		munmap(wild, l.total);
		remove_all();
		munmap(cl.area, sizeof *cl.area);
	}
	munmap(area, sizeof *area);
	return r;
}
