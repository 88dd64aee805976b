/* SPDX-License-Identifier: Apache-2.0 */
/* See stress_group_round.h. */
#include "stress_group_round.h"

#include <stdarg.h>
#include <sys/stat.h>

#include "shm.h"

#define TROUBLES_A_ROUND 6u /* reported; all are counted */

struct tally tally;

static const char *const trouble_name[TROUBLES] = { "hang", "wrong cause", "leftover", "broken" };

/* --- reports --- */

static const char *who(const struct round *r, uint32_t i)
{
	static char text[4][64];
	static uint32_t next;
	char *t = text[next++ % 4];

	if (r->w->actor[i].rank == NOBODY)
		snprintf(t, sizeof text[0], "leader (actor %u, pid %d)", i, (int)r->process[i].pid);
	else
		snprintf(t, sizeof text[0], "rank %u (actor %u, pid %d)", r->w->actor[i].rank, i,
			 (int)r->process[i].pid);
	return t;
}

static void report(struct round *r, enum trouble kind, const char *fmt, va_list ap)
{
	char text[1600];

	vsnprintf(text, sizeof text, fmt, ap);
	tally.trouble[kind]++;
	if (r->troubles++ >= TROUBLES_A_ROUND)
		return;
	printf("%s: %s, %u ranks: %s: make stress T=group SEED=%llu ROUNDS=1\n", trouble_name[kind],
	       r->deed, r->w->ranks, text, (unsigned long long)r->seed);
	fflush(stdout);
}

void round_trouble(struct round *r, enum trouble kind, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	report(r, kind, fmt, ap);
	va_end(ap);
}

void round_bad(struct round *r, enum trouble kind, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	report(r, kind, fmt, ap);
	va_end(ap);
	longjmp(r->out, 1);
}

static char state_of(pid_t pid)
{
	char path[40], text[256] = "", *at;
	int fd, n;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? 0 : (int)read(fd, text, sizeof text - 1);
	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	at = strrchr(text, ')');
	return at && at[1] ? at[2] : '-';
}

static void show(struct round *r)
{
	char tool[4096], command[4500];

	for (uint32_t i = 0; i < r->actors; i++) {
		const struct actor *a = &r->w->actor[i];

		if (r->process[i].running)
			printf("  %s, state %c, in reign %d: %s; %llu calls, %llu messages\n",
			       who(r, i), state_of(r->process[i].pid), (int)a->reign - 1, a->doing,
			       (unsigned long long)a->calls, (unsigned long long)a->got);
	}
	for (uint32_t i = 0; i < r->w->notes && i < WORLD_NOTES; i++) {
		const struct note *n = &r->w->note[i];

		if (n->rc)
			printf("  %s in reign %d: %d %s\n", who(r, n->actor), (int)n->reign, n->rc,
			       n->text);
	}
	fflush(stdout);
	test_tool(tool, sizeof tool, "ring-dump");
	if (r->w->dir[0])
		snprintf(command, sizeof command, "%s --dir %s %s", tool, r->w->dir, r->w->name);
	else
		snprintf(command, sizeof command, "%s %s", tool, r->w->name);
	if (system(command))
		printf("  (%s failed)\n", command);
}

void round_hang(struct round *r, const char *what)
{
	show(r);
	round_bad(r, TROUBLE_HANG, "%s did not come within %llu ms", what,
		  (unsigned long long)HANG_MS);
}

/* --- processes --- */

uint32_t cast_index(const struct round *r, const struct actor *a)
{
	return (uint32_t)(a - r->w->actor);
}

struct process *cast_process(struct round *r, const struct actor *a)
{
	return &r->process[cast_index(r, a)];
}

int cast_runs(const struct round *r, uint32_t index)
{
	return index != NOBODY && r->process[index].running;
}

struct actor *leader_of(struct round *r)
{
	return r->leader == NOBODY ? NULL : &r->w->actor[r->leader];
}

struct actor *rank_of(struct round *r, uint32_t rank)
{
	return r->at[rank] == NOBODY ? NULL : &r->w->actor[r->at[rank]];
}

static struct actor *cast(struct round *r, enum role role, uint32_t rank)
{
	static const uint32_t patience[] = { 0, 2, 20, 20, 100, 400 };
	struct actor *a = &r->w->actor[r->actors];

	if (r->actors >= WORLD_ACTORS)
		round_bad(r, TROUBLE_BROKEN, "more than %u processes", WORLD_ACTORS);
	r->actors++;
	a->role = !r->ticks ? role : role == ROLE_LEADER ? ROLE_TICKER : ROLE_TICKED;
	a->rank = rank;
	a->doing = "its start";
	a->seed = world_mix(r->seed * 131 + r->actors);
	a->trap.point = KVR_POINT_COUNT;
	a->ask_rank = NOBODY;
	a->attach_ms = 20 + pick(r, 150);
	a->patience_ms = patience[pick(r, 6)];
	return a;
}

struct actor *cast_leader(struct round *r)
{
	struct actor *a = cast(r, ROLE_LEADER, NOBODY);

	if (a->patience_ms > 200)
		a->patience_ms = 200;
	a->tries = 1;
	a->blind = pick(r, 4) == 0;
	a->early = (int)pick(r, 2);
	return a;
}

struct actor *cast_rank(struct round *r, uint32_t rank)
{
	struct actor *a = cast(r, ROLE_RANK, rank);

	a->habit = pick(r, 4) ? HABIT_EAGER : HABIT_SLOW;
	a->lingers = pick(r, 3) == 0;
	a->polls_waiting = pick(r, 3) == 0;
	return a;
}

void cast_start(struct round *r, struct actor *a)
{
	uint32_t i = cast_index(r, a);
	struct process *p = &r->process[i];

	fflush(stdout);
	p->pid = fork();
	if (!p->pid)
		actor_main(r->w, i);
	if (p->pid < 0)
		round_bad(r, TROUBLE_BROKEN, "fork: %s", strerror(errno));
	p->running = 1;
	if (a->rank == NOBODY)
		r->leader = i;
	else
		r->at[a->rank] = i;
}

static void ended(struct round *r, uint32_t i, int status)
{
	const struct actor *a = &r->w->actor[i];
	struct process *p = &r->process[i];

	p->running = p->stopped = 0;
	p->status = status;
	if (r->starved == i)
		r->starved = NOBODY;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 1)
		round_bad(r, TROUBLE_BROKEN, "%s, %s: %s", who(r, i), a->doing, a->wrong);
	if (WIFEXITED(status) && !WEXITSTATUS(status))
		return;
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL || !death_ns(r, i))
		round_bad(r, TROUBLE_BROKEN, "%s, %s: ended with status %#x", who(r, i), a->doing,
			  (unsigned)status);
	tally.kills++;
	if (a->trapped_ns && a->trap.signal == SIGKILL)
		tally.killed_at[a->trap.point]++;
}

static void reap(struct round *r)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0)
		for (uint32_t i = 0; i < r->actors; i++) {
			if (r->process[i].pid != pid || !r->process[i].running)
				continue;
			if (WIFSTOPPED(status))
				r->process[i].stopped = 1;
			else if (WIFCONTINUED(status))
				r->process[i].stopped = 0;
			else
				ended(r, i, status);
		}
}

static void signal_stop(struct round *r, struct actor *a)
{
	a->stop_ns = kvr_now();
	kvr_add_acq_rel32(&a->stops, 1);
	if (!a->trapped_ns)
		kill(cast_process(r, a)->pid, SIGSTOP);
}

static void signal_continue(struct round *r, struct actor *a)
{
	kvr_store_release(&a->cont_ns, kvr_now());
	kill(cast_process(r, a)->pid, SIGCONT);
	kvr_add_acq_rel32(&a->stops, 1);
}

/* One process at a time gets no CPU for a while. */
static void starve(struct round *r)
{
	uint64_t now = kvr_now();
	uint32_t i;

	if ((!r->starve && r->starved == NOBODY) || now < r->starve_ns)
		return;
	if (r->starved != NOBODY) {
		signal_continue(r, &r->w->actor[r->starved]);
		r->starved = NOBODY;
		r->starve_ns = now + pick(r, 10) * KVR_MS;
		return;
	}
	i = pick(r, r->actors);
	if (!r->process[i].running || r->process[i].stopped ||
	    r->w->actor[i].trap.point != KVR_POINT_COUNT)
		return;
	signal_stop(r, &r->w->actor[i]);
	r->starved = i;
	r->starve_ns = now + pick(r, pick(r, 8) ? 30 : 250) * KVR_MS;
	tally.stops++;
}

void round_pump(struct round *r)
{
	reap(r);
	starve(r);
}

void cast_kill(struct round *r, struct actor *a)
{
	struct process *p = cast_process(r, a);

	if (!p->running)
		return;
	if (!a->kill_ns)
		kvr_store_release(&a->kill_ns, kvr_now());
	kill(p->pid, SIGKILL);
}

void cast_stop(struct round *r, struct actor *a)
{
	signal_stop(r, a);
	tally.stops++;
	ROUND_AWAIT(r, cast_process(r, a)->stopped, "the stop of a process");
}

void cast_await_trap(struct round *r, struct actor *a)
{
	struct process *p = cast_process(r, a);

	ROUND_AWAIT(r, !p->running || p->stopped, kvr_point_name(a->trap.point));
	if (!a->trapped_ns)
		round_bad(r, TROUBLE_BROKEN, "%s ended before it came to %s %u times",
			  who(r, cast_index(r, a)), kvr_point_name(a->trap.point), a->trap.nth);
	if (a->trap.signal == SIGSTOP) {
		signal_stop(r, a);
		tally.stops++;
		tally.stopped_at[a->trap.point]++;
	}
}

void cast_continue(struct round *r, struct actor *a)
{
	signal_continue(r, a);
	ROUND_AWAIT(r, !cast_process(r, a)->stopped || !cast_process(r, a)->running,
		    "the end of a stop");
}

void cast_await_end(struct round *r, struct actor *a)
{
	char what[80];

	snprintf(what, sizeof what, "the end of %s", who(r, cast_index(r, a)));
	ROUND_AWAIT(r, !cast_process(r, a)->running, what);
}

struct actor *cast_some_rank(struct round *r)
{
	uint32_t first = pick(r, r->w->ranks);

	for (uint32_t i = 0; i < r->w->ranks; i++) {
		uint32_t rank = (first + i) % r->w->ranks;

		if (cast_runs(r, r->at[rank]) && !r->process[r->at[rank]].stopped)
			return rank_of(r, rank);
	}
	round_bad(r, TROUBLE_BROKEN, "no rank runs");
}

/* --- steps --- */

void group_start_ranks(struct round *r)
{
	uint32_t first = pick(r, r->w->ranks);

	for (uint32_t i = 0; i < r->w->ranks; i++) {
		uint32_t rank = (first + i) % r->w->ranks;

		if (!cast_runs(r, r->at[rank]) && !(r->away >> rank & 1)) {
			tally.restarts += r->at[rank] != NOBODY;
			cast_start(r, cast_rank(r, rank));
		}
	}
}

void group_start(struct round *r, struct actor *leader)
{
	if (pick(r, 2)) {
		cast_start(r, leader);
		group_start_ranks(r);
	} else {
		group_start_ranks(r);
		cast_start(r, leader);
	}
}

uint32_t group_await_reign(struct round *r, struct actor *l)
{
	struct process *p = cast_process(r, l);

	ROUND_AWAIT(r, kvr_load_acquire32(&l->reign) || !p->running, "a new leader");
	if (!p->running) {
		const char *text = "";

		for (uint32_t i = 0; i < r->w->notes; i++)
			if (r->w->note[i].actor == cast_index(r, l))
				text = r->w->note[i].text;
		round_bad(r, TROUBLE_BROKEN, "%s ended without an epoch: %s",
			  who(r, cast_index(r, l)), text);
	}
	r->reign = l->reign - 1;
	return r->reign;
}

struct actor *group_new_leader(struct round *r, uint32_t takeover)
{
	struct actor *l = cast_leader(r);

	l->takeover = takeover;
	cast_start(r, l);
	tally.takeovers++;
	return l;
}

/* Of those ranks that can go on: how many are (joined 1) or are not (0) in that reign. */
static uint32_t ranks_in(struct round *r, uint32_t reign, int joined)
{
	uint32_t n = 0;

	for (uint32_t rank = 0; rank < r->w->ranks; rank++) {
		uint32_t i = r->at[rank];

		if (!cast_runs(r, i) || (r->process[i].stopped && r->starved != i) ||
		    (r->away >> rank & 1))
			continue;
		n += (kvr_load_acquire32(&r->w->actor[i].reign) == reign + 1) == joined;
	}
	return n;
}

void group_await_ended(struct round *r, uint32_t reign)
{
	ROUND_AWAIT(r, !ranks_in(r, reign, 1), "the end of the epoch on every rank");
}

void group_await_joined(struct round *r, uint32_t reign)
{
	ROUND_AWAIT(r, !ranks_in(r, reign, 0), "the attach of every rank");
}

static int traffic(struct round *r, uint64_t *base, uint32_t *joins, uint64_t more)
{
	int all = 1;

	for (uint32_t rank = 0; rank < r->w->ranks; rank++) {
		const struct actor *a = rank_of(r, rank);

		if (!a || !cast_runs(r, r->at[rank]) || r->process[r->at[rank]].stopped ||
		    (r->away >> rank & 1))
			continue;
		if (a->joins != joins[rank]) {
			base[rank] = 0;
			joins[rank] = a->joins;
		}
		if (!a->reign || kvr_load_acquire(&a->got) < base[rank] + more)
			all = 0;
	}
	return all;
}

void group_await_traffic(struct round *r)
{
	uint64_t base[WORLD_RANKS] = { 0 };
	uint64_t more = 2 + pick(r, pick(r, 2) ? 8 : 80);
	uint32_t joins[WORLD_RANKS] = { 0 };

	for (uint32_t rank = 0; rank < r->w->ranks; rank++)
		if (r->at[rank] != NOBODY) {
			kvr_store_release32(&rank_of(r, rank)->flood, 0);
			base[rank] = kvr_load_acquire(&rank_of(r, rank)->got);
			joins[rank] = rank_of(r, rank)->joins;
		}
	ROUND_AWAIT(r, traffic(r, base, joins, more), "messages on every rank");
}

void group_open(struct round *r)
{
	struct actor *l = cast_leader(r);

	group_start(r, l);
	group_await_joined(r, group_await_reign(r, l));
	group_await_traffic(r);
}

void group_recover(struct round *r)
{
	struct actor *l = leader_of(r);
	uint32_t old = r->reign;

	if (old != NOBODY)
		group_await_ended(r, old);
	if (l && old != NOBODY && cast_runs(r, r->leader) && l->restarts) {
		ROUND_AWAIT(r, kvr_load_acquire32(&l->reign) > old + 1, "the next epoch");
		tally.takeovers++;
	} else {
		if (l && cast_runs(r, r->leader))
			cast_await_end(r, l);
		l = group_new_leader(r, KVR_TAKEOVER_REFUSE);
	}
	r->away = 0;
	group_start_ranks(r);
	group_await_joined(r, group_await_reign(r, l));
	group_await_traffic(r);
}

void group_ask(struct round *r, struct actor *a, uint32_t rank)
{
	(void)r;
	a->ask_rank = rank;
	if (!a->patience_ms || a->patience_ms > 100)
		a->patience_ms = 20;
	kvr_store_release(&a->ask_ns, kvr_now());
}

void group_answered(struct round *r, struct actor *a, const char *fmt, ...)
{
	char words[128], what[200];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(words, sizeof words, fmt, ap);
	va_end(ap);
	snprintf(what, sizeof what, "a time-out of %s that says \"%s\"", who(r, cast_index(r, a)),
		 words);
	ROUND_AWAIT(r, kvr_load_acquire(&a->answer_ns) == a->ask_ns, what);
	if (!strstr(a->answer, words))
		round_bad(r, TROUBLE_CAUSE, "%s: no \"%s\" in: %s", who(r, cast_index(r, a)), words,
			  a->answer);
}

/* --- a round --- */

static int open_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

void round_begin(struct round *r, uint64_t seed, int default_dir)
{
	static const uint32_t rings[] = { 1024, 2048, 4096, 16384 };
	struct world *w = r->w;

	memset(w, 0, sizeof *w);
	memset(r->process, 0, sizeof r->process);
	r->seed = r->rng = seed;
	r->actors = r->away = 0;
	r->starve = r->ticks = 0;
	r->leader = r->reign = r->starved = r->fenced = NOBODY;
	r->removed_ns = 0;
	r->troubles = 0;
	for (uint32_t i = 0; i < WORLD_RANKS; i++)
		r->at[i] = NOBODY;
	r->deed = "its start";
	w->seed = world_mix(seed);
	test_name(w->name, sizeof w->name, "group");
	/* /dev/shm is where it will be used; only the names are apart. */
	snprintf(w->dir, sizeof w->dir, "/dev/shm/kvr-%s-XXXXXX", w->name);
	if (default_dir)
		w->dir[0] = 0;
	else if (!mkdtemp(w->dir))
		test_tmpdir(w->dir, sizeof w->dir);
	w->ranks = 2 + pick(r, pick(r, 3) ? 5 : 15);
	w->ring_bytes = rings[pick(r, 4)];
	w->channels = 1 + pick(r, WORLD_CHANNELS);
	r->fds = open_fds();
}

static uint32_t still_run(const struct round *r)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < r->actors; i++)
		n += r->process[i].running != 0;
	return n;
}

void round_finish(struct round *r)
{
	int fds;

	r->starve = 0;
	r->starve_ns = 0;
	kvr_store_release32(&r->w->over, 1);
	if (cast_runs(r, r->leader))
		kvr_store_release32(&leader_of(r)->order, ORDER_CLOSE);
	ROUND_AWAIT(r, !still_run(r), "the end of every process");
	if (waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD)
		round_trouble(r, TROUBLE_LEFT, "a process is left");
	judge_round(r);
	judge_files(r);
	fds = open_fds();
	if (fds != r->fds)
		round_trouble(r, TROUBLE_LEFT, "%d descriptors are open, %d were", fds, r->fds);
}

static void remove_one(void *arg, const char *file)
{
	const struct round *r = arg;
	char path[KVR_SHM_PATH];

	if (!strstr(file, r->w->name))
		return;
	snprintf(path, sizeof path, "%s/%.200s", r->w->dir[0] ? r->w->dir : KVR_SHM_DIR, file);
	unlink(path);
}

void round_clean(struct round *r)
{
	for (uint32_t i = 0; i < r->actors; i++)
		if (r->process[i].running) {
			kill(r->process[i].pid, SIGKILL);
			waitpid(r->process[i].pid, NULL, 0);
			r->process[i].running = 0;
		}
	kvr_shm_list(r->w->dir[0] ? r->w->dir : NULL, remove_one, r);
	if (r->w->dir[0])
		test_rmdir(r->w->dir);
}
