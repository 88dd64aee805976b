/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leader and ranks as processes that do the same random requests, with pauses, signals, failures,
 * retries, a full pool, a store that evicts; in a quarter of the rounds one of them is killed at a
 * random moment, and the group starts again on the same files. connector_work.h says what each
 * process does. What must hold:
 *
 *   every operation ends once, with the same stage and status on all; after the same tick all had
 *   the same completions; the same answers on all; no wrong byte; shutdown in time; nothing is left
 *   in /dev/shm; after a death all others end with its cause and name who died; what was told to be
 *   written is found again.
 *
 * That is test_many_groups. test_whole_protocol does everything else that the protocol has, in any
 * order on each process, and nobody dies: aborts at any moment, retries and names that come again,
 * refusals, launches that fail, loads by layers, prefetches, decisions, resets, flipped bytes,
 * ranks that are slow, rings, tables and pools that are full. The same must hold, and:
 *
 *   whoever is not in the way of an operation does not fail it; the votes of all have one outcome;
 *   a flipped byte is a miss; a slot is not used again while a rank copies; nothing that was stored
 *   before a reset is found after it; at the end nothing is in quarantine, pinned or in flight; no
 *   rank is said to have drifted where all made the same calls in the same order.
 *
 *   stress_connector_world.h    what the processes share, and how they do it
 *   stress_connector_plan.c     what they do: the same for all, from the seed
 *   stress_connector_side.c     a process; _calls.c, _request.c, _small.c, _reset.c: its steps
 *   stress_connector_judge.c    what must hold
 *   stress_connector_round.c    what kind of group, and its processes
 *
 * KVR_TEST_FLOWS: flows of such a round (100, at most 4096). KVR_TEST_KNOWN: see enum known.
 *
 * A round's requests depend on its seed alone, its timing does not: a failure may need some tries
 * of its seed.
 */
#include "connector_work.h"
#include "stress_connector_world.h"

#include <glob.h>
#include <stdarg.h>
#include <sys/mman.h>

#define DEATH_NS (2000000000ull * SLOW)
#define HANG_MS (60000ull * SLOW)

struct round {
	struct cluster cl;
	struct work work;
	uint64_t seed, rng;
	uint32_t ranks;
	pid_t pid[WORK_PROCS]; /* 0: reaped, or none */
	int status[WORK_PROCS];
	uint32_t victim; /* WORK_PROCS: nobody yet */
	uint64_t kill_ns;
};

static struct round round_;
static uint64_t kills, interrupts, loaded, stored, refused, completions;

static uint32_t pick(struct round *r, uint32_t n)
{
	return (uint32_t)(work_rng(&r->rng) % n);
}

static const char *who(uint32_t proc)
{
	static const char *name[WORK_PROCS] = { "rank 0", "rank 1", "rank 2", "rank 3",	   "rank 4",
						"rank 5", "rank 6", "rank 7", "the leader" };

	return name[proc];
}

/* --- verdicts --------------------------------------------------------------------------------- */

static void show(struct round *r)
{
	char tool[4096], command[4200];

	for (uint32_t p = 0; p < WORK_PROCS; p++) {
		const struct work_log *l = &r->work.shared->log[p];

		if (r->pid[p])
			fprintf(stderr, "%s (pid %d) is in step %u: %s\n", who(p), (int)r->pid[p],
				l->step, l->doing ? l->doing : "its start");
	}
	test_tool(tool, sizeof tool, "ring-dump");
	snprintf(command, sizeof command, "%s %s >&2", tool, r->cl.name);
	if (system(command))
		fprintf(stderr, "ring-dump failed\n");
}

static void bad_round(struct round *r, const char *fmt, ...)
	__attribute__((noreturn, format(printf, 2, 3)));
static void bad_round(struct round *r, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	for (uint32_t p = 0; p < WORK_PROCS; p++)
		if (r->pid[p]) {
			kill(r->pid[p], SIGKILL);
			waitpid(r->pid[p], NULL, 0);
		}
	cluster_exit(&r->cl);
	ck_abort_msg("%s; %u ranks, %s: make stress T=connector SEED=%llu ROUNDS=1", text, r->ranks,
		     r->cl.dir[0] ? "with a store" : "without a store",
		     (unsigned long long)r->seed);
	abort();
}

static int lived(const struct round *r, uint32_t p)
{
	return r->status[p] == 0 && (p < r->ranks || p == WORK_LEADER);
}

static void compare_answers(struct round *r)
{
	const struct work_log *a = &r->work.shared->log[WORK_LEADER], *b;

	for (uint32_t p = 0; p < r->ranks; p++) {
		b = &r->work.shared->log[p];
		for (uint32_t i = 0; i < a->answers && i < b->answers; i++)
			if (a->answer[i] != b->answer[i])
				bad_round(r, "%s was told other things than the leader in step %u",
					  who(p), i);
		if (!a->end && !b->end && lived(r, p) && lived(r, WORK_LEADER) &&
		    a->answers != b->answers)
			bad_round(r, "%s did %u steps, the leader %u", who(p), b->answers,
				  a->answers);
	}
}

/* The leader's last tick up to that one; beyond its last known one, only the very same tick. */
static const struct work_tick *same_tick(const struct work_log *l, uint64_t tick)
{
	const struct work_tick *found = NULL;

	for (uint32_t i = 0; i < l->ticks && l->tick[i].tick <= tick; i++)
		found = &l->tick[i];
	if (l->ticks && l->tick[l->ticks - 1].tick < tick)
		return NULL;
	return found;
}

static void compare_ticks(struct round *r, uint32_t p, uint32_t q)
{
	const struct work_log *l = &r->work.shared->log[p], *m = &r->work.shared->log[q];

	for (uint32_t i = 0; i < l->ticks; i++) {
		const struct work_tick *a = &l->tick[i], *b = same_tick(m, a->tick);

		if (!b || (q != WORK_LEADER && b->tick != a->tick))
			continue;
		if (a->count != b->count || a->hash != b->hash)
			bad_round(r, "after tick %llu %s had %llu completions, %s %llu%s",
				  (unsigned long long)a->tick, who(p), (unsigned long long)a->count,
				  who(q), (unsigned long long)b->count,
				  a->count == b->count ? ", other ones" : "");
	}
}

static void compare_ends(struct round *r, uint32_t p)
{
	const struct work_log *l = &r->work.shared->log[p];

	if (!lived(r, p) || !l->end)
		return;
	if (l->end != -EOWNERDEAD)
		bad_round(r, "%s was killed; %s ended with %d: %s", who(r->victim), who(p), l->end,
			  l->end_text);
	if (!strstr(l->end_text, who(r->victim)))
		bad_round(r, "%s was killed; %s says: %s", who(r->victim), who(p), l->end_text);
	if (l->end_ns > r->kill_ns + DEATH_NS)
		bad_round(r, "%s was killed; %s ended %llu ms later", who(r->victim), who(p),
			  (unsigned long long)(l->end_ns - r->kill_ns) / 1000000);
}

static void judge(struct round *r)
{
	int killed = r->victim < WORK_PROCS && r->status[r->victim] != 0;

	for (uint32_t p = 0; p < WORK_PROCS; p++) {
		const struct work_log *l = &r->work.shared->log[p];

		if (r->status[p] && !(p == r->victim && WIFSIGNALED(r->status[p]) &&
				      WTERMSIG(r->status[p]) == SIGKILL))
			bad_round(r, "%s ended with status %#x; its words are above", who(p),
				  (unsigned)r->status[p]);
		if (l->end && !killed)
			bad_round(r, "%s lost the group, and nobody died: %s", who(p), l->end_text);
		if (l->wrong)
			bad_round(r, "%s saw %llu wrong bytes", who(p),
				  (unsigned long long)l->wrong);
		compare_ends(r, p);
		interrupts += l->interrupts;
		loaded += p < r->ranks ? l->loaded : 0;
		stored += p == WORK_LEADER ? l->stored : 0;
		refused += p == WORK_LEADER ? l->refused : 0;
		completions += l->ticks ? l->tick[l->ticks - 1].count : 0;
	}
	kills += (uint64_t)killed;
	compare_answers(r);
	for (uint32_t p = 0; p < r->ranks; p++)
		for (uint32_t q = p + 1; q < WORK_PROCS; q++)
			if (q < r->ranks || q == WORK_LEADER)
				compare_ticks(r, p, q);
}

static void nothing_left(struct round *r)
{
	char pattern[128];
	glob_t g;

	snprintf(pattern, sizeof pattern, "/dev/shm/*%s*", r->cl.name);
	if (!glob(pattern, 0, NULL, &g))
		bad_round(r, "left behind: %s", g.gl_pathv[0]);
	globfree(&g);
}

/* --- an incarnation --------------------------------------------------------------------------- */

static void start(struct round *r)
{
	struct work_shared *s = r->work.shared;

	s->opened = 0;
	memset(s->log, 0, sizeof s->log);
	memset(r->status, 0, sizeof r->status);
	r->victim = WORK_PROCS;
	for (uint32_t p = 0; p < WORK_PROCS; p++) {
		if (p >= r->ranks && p != WORK_LEADER)
			continue;
		fflush(stdout);
		r->pid[p] = fork();
		if (!r->pid[p])
			work_run(&r->work, p == WORK_LEADER ? UINT32_MAX : p);
		if (r->pid[p] < 0)
			bad_round(r, "fork: %s", strerror(errno));
	}
}

/* Returns how many still run. */
static uint32_t reap(struct round *r)
{
	uint32_t left = 0;

	for (uint32_t p = 0; p < WORK_PROCS; p++) {
		if (!r->pid[p])
			continue;
		if (waitpid(r->pid[p], &r->status[p], WNOHANG) == r->pid[p])
			r->pid[p] = 0;
		else
			left++;
	}
	return left;
}

/* One that still runs: who finished cannot be killed. */
static void kill_somebody(struct round *r)
{
	uint32_t p = pick(r, 3) ? pick(r, r->ranks) : WORK_LEADER;

	if (!r->pid[p])
		return;
	r->victim = p;
	r->kill_ns = test_now_ns();
	kill(r->pid[p], SIGKILL);
}

static void incarnation(struct round *r)
{
	uint64_t hang = test_deadline_ms(HANG_MS), kill_at = UINT64_MAX;
	uint64_t delay = pick(r, 400u * SLOW);

	start(r);
	while (reap(r)) {
		uint64_t now = test_now_ns();

		if (r->work.deadly && kill_at == UINT64_MAX &&
		    __atomic_load_n(&r->work.shared->opened, __ATOMIC_ACQUIRE) == r->ranks + 1)
			kill_at = now + delay * 1000000;
		if (now >= kill_at && r->victim == WORK_PROCS) {
			kill_somebody(r);
			kill_at = UINT64_MAX - 1;
		}
		if (now >= hang) {
			show(r);
			bad_round(r, "processes still run after %llu ms",
				  (unsigned long long)HANG_MS);
		}
		test_sleep_ms(1);
	}
	judge(r);
}

/* --- a round ---------------------------------------------------------------------------------- */

static void choose_shape(struct round *r)
{
	uint32_t layers = 1 + pick(r, 3), bytes = 64 * (1 + pick(r, 64));
	int replicated = pick(r, 3) == 0;
	struct kvr_shape *s = &r->cl.shape;

	if (replicated)
		ck_assert(!kvr_shape_replicated(r->ranks, layers, layers * 4ull * bytes, s));
	else
		ck_assert(
			!kvr_shape_split(r->ranks, layers, (uint64_t)layers * r->ranks * bytes, s));
	r->work.writers = replicated ? 1 : r->ranks;
}

static void choose_keys(struct round *r, uint32_t most)
{
	struct work *k = &r->work;

	k->spaces = 1 + pick(r, 2);
	k->families = 1 + pick(r, 5);
	k->length = 4 + pick(r, 21);
	while (k->spaces * k->families * k->length > most)
		if (k->families > 1)
			k->families--;
		else
			k->spaces = 1;
}

static void set_up(struct round *r, int deadly)
{
	static const uint32_t rings[] = { 1024, 2048, 4096, 32768 }, ops[] = { 16, 32, 64 };
	uint32_t blocks, slots, slot;
	struct work *k = &r->work;

	r->ranks = 2 + pick(r, 5);
	blocks = 8 + pick(r, 57);
	slots = pick(r, 10) < 3 ? 0 : pick(r, 8) ? 24 + pick(r, 105) : 1 + pick(r, 24);
	k->keeps = deadly && slots;
	if (k->keeps)
		slots = 128;
	cluster_init(&r->cl, r->ranks, 1, blocks, slots);
	choose_shape(r);
	choose_keys(r, k->keeps ? 112 : WORK_KEYS);
	slot = 4096 +
	       (((uint32_t)r->cl.shape.layer_bytes * r->cl.shape.layer_groups + 4095) & ~4095u);
	r->cl.opts.host_bytes = 4096 + (uint64_t)blocks * slot;
	if (slots)
		r->cl.opts.store_bytes =
			8192 + ((slots * 128 + 4095) & ~4095u) + (uint64_t)slots * slot;
	r->cl.opts.ring_bytes = rings[pick(r, 4)];
	r->cl.opts.ops = ops[pick(r, 3)];
	if (pick(r, 4) == 0)
		r->cl.opts.store_flags |= KVR_STORE_NO_URING;
	k->cl = &r->cl;
}

static void one_round(uint64_t seed, struct work_shared *shared)
{
	struct round *r = &round_;
	uint32_t deaths;

	memset(r, 0, sizeof *r);
	memset(shared, 0, sizeof *shared);
	r->seed = r->rng = seed;
	r->work.shared = shared;
	deaths = pick(r, 4) ? 0 : 1 + pick(r, 2);
	set_up(r, deaths > 0);
	for (uint32_t i = 0; i <= deaths; i++) {
		r->work.seed = work_rng(&r->rng);
		r->work.deadly = i < deaths;
		r->work.steps = r->work.deadly ? 80 : 10 + pick(r, 70);
		r->work.recover = i && r->work.keeps;
		memcpy(r->work.sure, shared->written, sizeof r->work.sure);
		incarnation(r);
	}
	if (!deaths)
		nothing_left(r);
	cluster_exit(&r->cl);
	nothing_left(r);
}

START_TEST(test_many_groups)
{
	uint64_t seed = test_seed(), rounds = test_rounds(100);
	struct work_shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
					  MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	ck_assert_ptr_ne(shared, MAP_FAILED);
	for (uint64_t i = 0; i < rounds; i++)
		one_round(seed + i, shared);
	printf("%llu rounds, %llu kills, %llu blocks stored, %llu loaded, %llu refusals, %llu "
	       "completions, %llu interrupted calls\n",
	       (unsigned long long)rounds, (unsigned long long)kills, (unsigned long long)stored,
	       (unsigned long long)loaded, (unsigned long long)refused,
	       (unsigned long long)completions, (unsigned long long)interrupts);
	ck_assert_uint_gt(stored, rounds);
	munmap(shared, sizeof *shared);
}
END_TEST

START_TEST(test_whole_protocol)
{
	whole_rounds(test_seed(), test_rounds(100));
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("stress connector");
	TCase *t = tcase_create("groups");

	tcase_set_timeout(t, 120.0 + 10.0 * (double)test_rounds(100));
	tcase_add_test(t, test_many_groups);
	suite_add_tcase(s, t);
	t = tcase_create("whole protocol");
	tcase_set_timeout(t, 120.0 + 10.0 * (double)test_rounds(100));
	tcase_add_test(t, test_whole_protocol);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
