/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds of the whole protocol: what kind of group, its processes, and their end. */
#include "stress_connector_world.h"

#include "format.h"

#include <glob.h>
#include <stdarg.h>
#include <sys/mman.h>

#define HANG_MS (2 * PATIENCE_MS)

struct whole {
	struct cluster cl;
	struct world w;
	uint64_t rng;
	pid_t pid[W_SIDES]; /* 0: reaped, or none */
	int status[W_SIDES];
};

static struct whole whole;

static uint32_t pick(struct whole *r, uint32_t n)
{
	return (uint32_t)((work_rng(&r->rng) >> 16) % n);
}

/* --- verdicts --------------------------------------------------------------------------------- */

static void show_runs(const struct whole *r, uint32_t side)
{
	const struct side_log *l = &r->w.shared->log[side];

	for (uint32_t k = 0; r->w.alike && k <= KVR_KIND_RESET; k++)
		if (l->at[k] < r->w.shared->order[k].count)
			fprintf(stderr, "    the next begin of kind %u is %u of flow %u\n", k,
				r->w.shared->order[k].place[l->at[k]] & 0xff,
				r->w.shared->order[k].place[l->at[k]] >> 8);
	for (uint32_t f = l->done; f < l->done + W_WINDOW; f++) {
		uint32_t i = f % W_WINDOW;

		if (l->run[i].flow == f && l->run[i].state != S_OVER && (f || l->run[i].begins))
			fprintf(stderr,
				"    flow %u, pass %u: %s, %u of %u begins, aborts %u again %u\n",
				f, l->run[i].pass, state_name[l->run[i].state], l->run[i].begins,
				r->w.shared->flow[f].published, l->run[i].aborts & 3,
				l->run[i].aborts >> 2);
	}
}

static void show(const struct whole *r)
{
	char tool[4096], command[4200];

	for (uint32_t i = 0; i < W_SIDES; i++) {
		const struct side_log *l = &r->w.shared->log[i];

		if (!l->state)
			continue;
		fprintf(stderr, "%s %u (pid %d): %u flows over, in flow %u, %s: %s; tick %llu\n",
			i == W_LEAD ? "leader" : "rank", i, (int)r->pid[i], l->done, l->flow,
			l->state, l->doing,
			(unsigned long long)(l->ticks ? l->tick[l->ticks - 1].tick : 0));
		show_runs(r, i);
	}
	test_tool(tool, sizeof tool, "ring-dump");
	snprintf(command, sizeof command, "%s %s >&2", tool, r->cl.name);
	if (system(command))
		fprintf(stderr, "ring-dump failed\n");
}

static void bad_round(struct whole *r, const char *fmt, ...)
	__attribute__((noreturn, format(printf, 2, 3)));
static void bad_round(struct whole *r, const char *fmt, ...)
{
	char text[900];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	for (uint32_t i = 0; i < W_SIDES; i++)
		if (r->pid[i]) {
			kill(r->pid[i], SIGKILL);
			waitpid(r->pid[i], NULL, 0);
		}
	cluster_exit(&r->cl);
	ck_abort_msg("%s; %u ranks%s, %u flows, window %u, %s%s: make stress T=connector "
		     "SEED=%llu ROUNDS=1",
		     text, r->w.ranks, r->w.joint ? " (one with the leader)" : "", r->w.flows,
		     r->w.window, r->cl.dir[0] ? "with a store" : "without a store",
		     r->w.alike ? ", all calls alike" : "", (unsigned long long)r->w.seed);
	abort();
}

static void nothing_is_left(struct whole *r)
{
	char pattern[128];
	glob_t g;

	snprintf(pattern, sizeof pattern, "/dev/shm/*%s*", r->cl.name);
	if (!glob(pattern, 0, NULL, &g))
		bad_round(r, "left behind: %s", g.gl_pathv[0]);
	globfree(&g);
}

/* --- what kind of group ----------------------------------------------------------------------- */

static uint32_t choose_shape(struct whole *r)
{
	uint32_t groups = 1 + pick(r, 3), ranks = r->w.ranks;
	uint32_t bytes = ranks * (8 + 8 * pick(r, 512 / (ranks * groups)));
	int replicated = pick(r, 3) == 0;
	struct kvr_shape *s = &r->cl.shape;

	if (replicated)
		ck_assert(!kvr_shape_replicated(ranks, groups, groups * (uint64_t)bytes, s));
	else
		ck_assert(!kvr_shape_split(ranks, groups, groups * (uint64_t)bytes, s));
	r->w.writers = replicated ? 1 : ranks;
	r->w.groups = groups;
	return ((KVR_HEADER_FIXED + 8 * groups * (replicated ? 1 : ranks) + 4095) & ~4095u) +
	       ((groups * bytes + 4095) & ~4095u);
}

static void choose_mix(struct whole *r)
{
	struct world *w = &r->w;

	w->calm = pick(r, 6) == 0;
	w->aborts = !w->calm && !w->alike && pick(r, 4);
	w->flips = !w->calm && !w->keeps && pick(r, 3) == 0;
	w->mix[FLOW_PREFETCH] = r->cl.dir[0] ? 20 + pick(r, 60) : 4;
	w->control = pick(r, 4) != 0;
	w->mix[FLOW_DECISION] = w->control ? 8 + pick(r, 60) : 0;
	w->mix[FLOW_RESET] = w->control ? 2 - pick(r, 3) : 0;
	w->mix[FLOW_FLIP] = w->flips ? 4 : 0;
	w->mix[FLOW_REQUEST] = 256 - w->mix[FLOW_PREFETCH] - w->mix[FLOW_DECISION] -
			       w->mix[FLOW_RESET] - w->mix[FLOW_FLIP];
}

/* Few flows with many messages, or many with few: what a rank keeps for later is bounded. */
static void choose_window(struct whole *r)
{
	struct world *w = &r->w;
	uint32_t most = (r->cl.opts.ring_bytes / 8 - 80) / 16; /* blocks of one message */
	int wide = pick(r, 3) == 0;

	w->max_parts = wide ? 1 : 1 + pick(r, 4);
	w->max_lookups = wide ? 1 : 3;
	w->window = wide ? 8 + pick(r, 48) : 1 + pick(r, w->max_parts == 1 ? 14 : 9);
	w->spaces = 1 + pick(r, 2);
	w->length = 2 + pick(r, 11);
	if (w->length > (wide ? 1 : 2) * most)
		w->length = (wide ? 1 : 2) * most;
	w->families = W_SHARED_KEYS / (w->length * w->spaces);
	w->families = 1 + pick(r, w->families < 24 ? w->families : 24);
}

static uint32_t choose_ranks(struct whole *r)
{
	uint32_t x = pick(r, 12);

	return x < 9 ? 2 + pick(r, 3) : x < 11 ? 8 : 16;
}

static void choose_store(struct whole *r, uint32_t blocks, uint32_t slot)
{
	uint32_t slots = r->w.keeps ? W_SHARED_KEYS + 2 * blocks + W_WINDOW * W_LEN
				    : 2 * blocks + W_WINDOW * 4 + pick(r, 400);

	if (!r->cl.dir[0])
		return;
	r->cl.opts.store_bytes = 8192 + ((slots * 128 + 4095) & ~4095u) + (uint64_t)slots * slot;
	if (pick(r, 4) == 0)
		r->cl.opts.store_flags |= KVR_STORE_NO_URING;
}

static void choose(struct whole *r, uint64_t flows)
{
	static const uint32_t rings[] = { 1024, 2048, 4096, 32768, 131072 };
	static const uint32_t ops[] = { 16, 32, 64, 256 }, sizes[] = { 0, 66, 150 };
	struct world *w = &r->w;
	const char *env = getenv("KVR_TEST_KNOWN");
	uint32_t blocks, slot;

	w->ranks = choose_ranks(r);
	blocks = sizes[pick(r, 3)] + pick(r, 60);
	blocks = blocks < 66 ? blocks / 4 + 3 : blocks;
	cluster_init(&r->cl, w->ranks, 1, blocks, pick(r, 3) ? 64 : 0);
	w->cl = &r->cl;
	w->known = env && *env ? (uint32_t)strtoul(env, NULL, 0) : KNOWN_ALL;
	w->flows = (uint32_t)flows;
	w->joint = pick(r, 4) == 0;
	w->lazy = pick(r, 4) == 0;
	w->alike = pick(r, 4) == 0;
	w->keeps = r->cl.dir[0] && pick(r, 4) == 0;
	r->cl.opts.ring_bytes = rings[pick(r, 5)];
	r->cl.opts.ops = ops[pick(r, 4)];
	r->cl.opts.events = 256;
	choose_mix(r);
	choose_window(r);
	/* A leader that waits for room in a ring cannot vote for its own shard, nor read for it. */
	if (w->joint && w->known & KNOWN_JOINT_SMALL_RING && r->cl.opts.ring_bytes < 32768)
		r->cl.opts.ring_bytes = 32768;
	w->layers = !w->joint || r->cl.opts.ring_bytes >= 32768;
	w->tight = blocks < 2 * w->window * w->length;
	slot = choose_shape(r);
	r->cl.opts.host_bytes = 4096 + (uint64_t)blocks * slot;
	choose_store(r, blocks, slot);
}

/* --- processes -------------------------------------------------------------------------------- */

static void start(struct whole *r)
{
	for (uint32_t i = 0; i < W_SIDES; i++) {
		if ((i >= r->w.ranks && i != W_LEAD) || (i == 0 && r->w.joint))
			continue;
		fflush(stdout);
		r->pid[i] = fork();
		if (!r->pid[i])
			side_main(&r->w, i);
		if (r->pid[i] < 0)
			bad_round(r, "fork: %s", strerror(errno));
	}
}

/* Returns how many still run; an end that is none is the round's. */
static uint32_t reap(struct whole *r)
{
	uint32_t left = 0;

	for (uint32_t i = 0; i < W_SIDES; i++) {
		if (!r->pid[i])
			continue;
		if (waitpid(r->pid[i], &r->status[i], WNOHANG) != r->pid[i]) {
			left++;
			continue;
		}
		r->pid[i] = 0;
		if (r->status[i]) {
			show(r);
			bad_round(r, "%s %u ended with status %#x; its words are above",
				  i == W_LEAD ? "leader" : "rank", i, (unsigned)r->status[i]);
		}
	}
	return left;
}

static uint64_t progress(const struct whole *r)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < W_SIDES; i++)
		n += __atomic_load_n(&r->w.shared->log[i].steps, __ATOMIC_RELAXED) +
		     (uint64_t)r->w.shared->log[i].finished;
	return n;
}

static void run(struct whole *r)
{
	uint64_t hang = test_deadline_ms(HANG_MS), last = 0;

	start(r);
	while (reap(r)) {
		uint64_t now = progress(r);

		if (now != last)
			hang = test_deadline_ms(HANG_MS);
		last = now;
		if (test_now_ns() >= hang) {
			show(r);
			bad_round(r, "nothing moves");
		}
		test_sleep_ms(1);
	}
}

static void one_round(uint64_t seed, uint64_t flows)
{
	struct whole *r = &whole;
	const char *text;

	memset(r, 0, sizeof *r);
	r->w.seed = r->rng = seed;
	r->w.shared = mmap(NULL, sizeof *r->w.shared, PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ck_assert_ptr_ne(r->w.shared, MAP_FAILED);
	choose(r, flows);
	plan_ids(&r->w);
	run(r);
	text = judge_round(&r->w);
	if (text)
		bad_round(r, "%s", text);
	nothing_is_left(r);
	cluster_exit(&r->cl);
	nothing_is_left(r);
	munmap(r->w.shared, sizeof *r->w.shared);
}

/* --- figures ---------------------------------------------------------------------------------- */

static const char *const kinds[] = { "lookup", "store", "load", "prefetch", "decision", "reset" };

static void print_tally(void)
{
	const struct tally *t = &tally;
	uint64_t begun = 0;

	for (uint32_t k = KVR_KIND_STORE; k <= KVR_KIND_RESET; k++)
		begun += t->begun[k];
	printf("%llu rounds, %llu flows, %llu operations; %llu rounds with all calls alike, %llu "
	       "with a rank in the leader's process\n",
	       (unsigned long long)t->rounds, (unsigned long long)t->flows,
	       (unsigned long long)begun, (unsigned long long)t->alike,
	       (unsigned long long)t->joint);
	for (uint32_t k = KVR_KIND_STORE; k <= KVR_KIND_RESET; k++) {
		printf("  %-9s %8llu begun:", kinds[k], (unsigned long long)t->begun[k]);
		for (uint32_t i = KVR_STAGE_END; i < KVR_STAGES; i++)
			if (t->ended[k][i])
				printf(" %llu %s", (unsigned long long)t->ended[k][i],
				       kvr_stage_name(i));
		printf("\n");
	}
	printf("  %llu begins refused, %llu of them for want of room; %llu retries, %llu under the "
	       "same name\n  decisions: %llu committed, %llu rejected; resets: %llu, %llu refused; "
	       "%llu damaged blocks found\n  aborts by the leader's state:",
	       (unsigned long long)t->refused, (unsigned long long)t->again,
	       (unsigned long long)t->retries, (unsigned long long)t->same_name,
	       (unsigned long long)t->committed, (unsigned long long)t->rejected,
	       (unsigned long long)t->resets, (unsigned long long)t->resets_refused,
	       (unsigned long long)t->flips_found);
	for (uint32_t i = 0; i < S_STATES; i++)
		if (t->aborts[i])
			printf(" %llu %s,", (unsigned long long)t->aborts[i], state_name[i]);
	printf(" and %llu by ranks\n  at most %llu slots in quarantine; %llu completions, %llu "
	       "interrupted calls, %llu that ran out of time, %llu early ones; %llu late, %llu "
	       "repeated words\n  longest call %llu ms (%.60s), longest flow %llu ms\n",
	       (unsigned long long)t->rank_aborts, (unsigned long long)t->quarantined,
	       (unsigned long long)t->completions, (unsigned long long)t->interrupts,
	       (unsigned long long)t->timeouts, (unsigned long long)t->early,
	       (unsigned long long)t->late, (unsigned long long)t->duplicate,
	       (unsigned long long)t->longest_ns / 1000000, t->longest ? t->longest : "",
	       (unsigned long long)t->longest_flow_ns / 1000000);
}

void whole_rounds(uint64_t seed, uint64_t rounds)
{
	const char *env = getenv("KVR_TEST_FLOWS");
	uint64_t flows = env && *env ? strtoull(env, NULL, 0) : 100;

	ck_assert_uint_le(flows, W_FLOWS);
	for (uint64_t i = 0; i < rounds; i++)
		one_round(seed + i, flows);
	print_tally();
}
