/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How soon the others know of a kill -9. A scene is one group and one death: a leader, ranks that
 * sleep in kvr_channels_take(), one rank that watches by other means, and one of them is killed.
 * Several scenes are set up at once and then killed one after another, each at a random time, since
 * it matters how long ago the sleepers fell asleep.
 *
 * The watching rank sleeps on a robust mutex that the victim holds, which is what the kernel can do
 * at best; then it asks kvr_group_check() until that knows, too; then it waits for the victim's
 * pidfd. So one kill gives all figures.
 */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "group_bench.h"
#include "kvring/err.h"
#include "kvring/wait.h"

#define SCENES 32u
#define RANKS 4u
#define WATCHING 2u /* the rank that does */
#define DYING 3u    /* the rank that does, unless the leader does */
#define LEADER RANKS
#define ROLES (RANKS + 1)
#define LOOK_NS (10 * GROUP_MS)
#define PATIENCE_NS (6 * GROUP_HANG_NS)
#define FILL_BYTES_PER_S 1e8 /* at least */
#define RESIDENT_SHARE 0.35

enum victim { BY_LEADER, BY_RANK, BY_RANK_LOOKED, VICTIMS };
enum setting { EMPTY, CHILD, STOPPED, RESIDENT, SETTINGS };

static const char *const victims[] = { "leader", "rank", "rank, leader looks" };
static const char *const settings[] = { "empty", "forked child alive", "stopped", "resident" };

struct seen {
	uint64_t ns; /* 0: not yet */
	uint32_t slept;
};

/* Shared by all who play in it. */
struct scene {
	enum victim victim;
	enum setting setting;
	char name[KVR_NAME_MAX];
	uint32_t ready, reports; /* how many are */
	uint32_t held;		 /* the victim has the mutex */
	pid_t victim_pid, child_pid;
	pthread_mutex_t mutex;
	uint64_t killed_ns;
	struct seen seen[ROLES];
	uint64_t floor_ns, check_ns, gone_ns;
	pid_t pids[ROLES]; /* the worker's alone */
};

static struct scene *scenes;
static pid_t worker;

enum who { OF_ONE, ALL_ASLEEP, OF_LEADER, OF_FLOOR, OF_CHECK, OF_PIDFD, WHO };
static const char *const whos[] = { "one rank asleep in take()",
				    GROUP_ALL_ASLEEP,
				    "the leader",
				    "floor: asleep on a robust mutex",
				    "kvr_group_check() right after that",
				    "pidfd: the process is gone" };
static struct group_row *rows[VICTIMS][SETTINGS][WHO];

/* --- those who play --- */

static void count(uint32_t *word)
{
	__atomic_add_fetch(word, 1, __ATOMIC_ACQ_REL);
}

static void await(const uint32_t *word, uint32_t least, uint64_t ns, const char *what)
{
	uint64_t deadline = group_now() + ns;

	while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < least) {
		if (group_now() > deadline || group_is_broken())
			group_broken(what);
		group_nap(GROUP_MS / 2);
	}
}

static int dies(const struct scene *s, uint32_t role)
{
	return role == (s->victim == BY_LEADER ? LEADER : DYING);
}

/*
 * Lives on when the victim is dead, until the worker ends it. It must not outlive the worker
 * either, so it asks twice: first for a word when its parent dies, then for its own end when the
 * next parent, which is the worker, does.
 */
static void __attribute__((noreturn)) child_main(pid_t parent)
{
	sigset_t set;
	int sig;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	prctl(PR_SET_PDEATHSIG, SIGUSR1);
	if (getppid() == parent)
		sigwait(&set, &sig);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (getppid() == worker)
		pause();
	_exit(0);
}

/* In pages of the usual size, as it takes the kernel longest to free those. */
static void resident_fill(uint64_t bytes)
{
	volatile uint8_t *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint64_t at;

	if (mem == MAP_FAILED)
		group_broken("mmap of --resident bytes");
	madvise((void *)(uintptr_t)mem, bytes, MADV_NOHUGEPAGE);
	for (at = 0; at < bytes; at += 4096)
		mem[at] = 1;
}

static void __attribute__((noreturn)) victim_main(struct scene *s)
{
	pid_t self = getpid();

	if (s->setting == RESIDENT)
		resident_fill(group_opt.resident);
	if (s->setting == CHILD) {
		s->child_pid = fork();
		if (!s->child_pid)
			child_main(self);
		if (s->child_pid < 0)
			group_broken("fork");
	}
	if (pthread_mutex_lock(&s->mutex))
		group_broken("the victim's mutex");
	s->victim_pid = self;
	count(&s->held);
	count(&s->ready);
	for (;;)
		pause();
}

/* All together: a rank that leaves wakes the leader. */
static void __attribute__((noreturn))
leave(struct scene *s, struct kvr_group *g, struct kvr_channels *c)
{
	count(&s->reports);
	await(&s->reports, RANKS, PATIENCE_NS, "somebody is told of no death");
	kvr_channels_close(c);
	kvr_group_close(g);
	_exit(0);
}

/* So that sleepers, who look by themselves each KVR_BACKSTOP_NS, do so at different times. */
static void stagger(void)
{
	group_nap(group_random(KVR_BACKSTOP_NS));
}

static void seen(struct scene *s, uint32_t role, uint64_t now, long before)
{
	s->seen[role] = (struct seen){ now, group_sleeps() != before };
}

static void take(struct scene *s, struct kvr_channels *c, uint32_t rank)
{
	struct kvr_message m;
	uint64_t now;
	long before;
	int rc;

	stagger();
	count(&s->ready);
	before = group_sleeps();
	rc = kvr_channels_take(c, KVR_CH_USER0, group_now() + PATIENCE_NS, &m);
	now = group_now();
	if (rc != -EOWNERDEAD)
		group_broken("a rank that waits is told of no death");
	seen(s, rank, now, before);
}

static void watch(struct scene *s, struct kvr_group *g)
{
	struct pollfd p = { .fd = -1, .events = POLLIN };

	await(&s->held, 1, PATIENCE_NS, "the victim has no mutex");
	p.fd = (int)syscall(SYS_pidfd_open, s->victim_pid, 0);
	count(&s->ready);
	if (pthread_mutex_lock(&s->mutex) != EOWNERDEAD)
		group_broken("the victim's mutex tells of no death");
	s->floor_ns = group_now();
	pthread_mutex_consistent(&s->mutex);
	pthread_mutex_unlock(&s->mutex);
	if (s->victim == BY_LEADER) {
		while (!kvr_group_check(g))
			sched_yield();
		s->check_ns = group_now();
	}
	if (p.fd >= 0 && poll(&p, 1, (int)(GROUP_HANG_NS / GROUP_MS)) == 1)
		s->gone_ns = group_now();
}

static void __attribute__((noreturn)) rank_main(struct scene *s, uint32_t rank)
{
	struct kvr_group_opts o = { .size = sizeof(o), .dir = group_dir, .event_fd = -1 };
	struct kvr_channels *c;
	struct kvr_group *g;

	if (kvr_group_attach(s->name, rank, &o, group_now() + GROUP_HANG_NS, &g) ||
	    kvr_channels_open(g, &c))
		group_broken("a rank that is to see a death");
	if (dies(s, rank))
		victim_main(s);
	if (rank == WATCHING)
		watch(s, g);
	else
		take(s, c, rank);
	leave(s, g, c);
}

/* The ring of a rank that does not read is full; the leader waits for room, asleep. */
static int leader_publish(struct scene *s, struct kvr_channels *c)
{
	static const uint8_t zeros[256];
	uint64_t set = 1u << DYING;
	int rc;

	do
		rc = kvr_channels_publish(c, KVR_CH_USER0, set, KVR_TAG_USER, NULL, zeros,
					  sizeof(zeros), 0);
	while (!rc);
	if (rc != -EAGAIN)
		group_broken("the leader cannot fill a ring");
	stagger();
	count(&s->ready);
	return kvr_channels_publish(c, KVR_CH_USER0, set, KVR_TAG_USER, NULL, zeros, sizeof(zeros),
				    group_now() + PATIENCE_NS);
}

/* The leader does other things, and now and then looks at its ranks. */
static int leader_look(struct scene *s, struct kvr_group *g)
{
	struct kvr_peer peer;

	count(&s->ready);
	do {
		group_nap(LOOK_NS);
		if (kvr_group_peer(g, DYING, &peer))
			group_broken("the leader cannot look");
	} while (peer.state != KVR_PEER_DEAD);
	if (kvr_group_fail(g, DYING, -EOWNERDEAD))
		group_broken("kvr_group_fail");
	return -EOWNERDEAD;
}

static void __attribute__((noreturn)) leader_main(struct scene *s)
{
	struct kvr_group_opts o = { .size = sizeof(o),
				    .dir = group_dir,
				    .ranks = RANKS,
				    .ring_bytes = 4096, /* they do not matter, and many are made */
				    .ops = 16,
				    .events = 16,
				    .event_fd = -1 };
	struct kvr_channels *c;
	struct kvr_group *g;
	uint64_t now;
	long before;
	int rc;

	/* A leader that was killed before left its segment under the name: this takes it over. */
	if (kvr_group_create(s->name, &o, &g) || kvr_channels_open(g, &c))
		group_broken("a leader that is to see a death");
	if (dies(s, LEADER))
		victim_main(s);
	before = group_sleeps();
	rc = s->victim == BY_RANK ? leader_publish(s, c) : leader_look(s, g);
	now = group_now();
	if (rc != -EOWNERDEAD)
		group_broken("the leader is told of no death");
	seen(s, LEADER, now, before);
	leave(s, g, c);
}

/* --- the worker --- */

static void scene_start(struct scene *s, enum victim victim, enum setting setting)
{
	pthread_mutexattr_t attr;
	uint32_t role;

	memset(s, 0, sizeof(*s));
	s->victim = victim;
	s->setting = setting;
	snprintf(s->name, sizeof(s->name), "death-%u", (unsigned int)(s - scenes));
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(&s->mutex, &attr);
	pthread_mutexattr_destroy(&attr);
	for (role = 0; role < ROLES; role++) {
		pid_t pid = group_fork();

		if (!pid && role == LEADER)
			leader_main(s);
		if (!pid)
			rank_main(s, role);
		s->pids[role] = pid;
	}
}

static void scene_kill(struct scene *s)
{
	if (s->setting == STOPPED) {
		kill(s->victim_pid, SIGSTOP);
		group_nap(GROUP_MS);
	}
	s->killed_ns = group_now();
	kill(s->victim_pid, SIGKILL);
}

static void scene_end(struct scene *s)
{
	uint32_t role;
	int status;

	await(&s->reports, RANKS, GROUP_HANG_NS, "somebody is told of no death");
	for (role = 0; role < ROLES; role++) {
		if (waitpid(s->pids[role], &status, 0) != s->pids[role] ||
		    (status && !dies(s, role)))
			exit(1); /* it said why */
	}
	if (s->child_pid) { /* ours since its parent died */
		if (kill(s->child_pid, 0))
			group_broken("the victim's child did not outlive it");
		kill(s->child_pid, SIGKILL);
		waitpid(s->child_pid, &status, 0);
	}
}

static void sample(const struct scene *s, enum who who, uint64_t ns)
{
	if (ns)
		group_sample(rows[s->victim][s->setting][who],
			     ((double)ns - (double)s->killed_ns) / 1e6);
}

static void scene_evaluate(const struct scene *s)
{
	uint64_t last = 0;
	uint32_t rank;

	for (rank = 0; rank < RANKS; rank++) {
		if (rank == WATCHING || dies(s, rank))
			continue;
		if (!s->seen[rank].slept)
			group_broken("a rank that waits did not sleep");
		last = s->seen[rank].ns > last ? s->seen[rank].ns : last;
	}
	sample(s, OF_ONE, s->seen[0].ns);
	sample(s, ALL_ASLEEP, last);
	sample(s, OF_LEADER, s->seen[LEADER].ns);
	sample(s, OF_FLOOR, s->floor_ns);
	sample(s, OF_CHECK, s->check_ns);
	sample(s, OF_PIDFD, s->gone_ns);
}

static void batch(enum victim victim, enum setting setting)
{
	uint32_t n = setting == RESIDENT ? 1 : SCENES, i;
	uint64_t fill = 0;

	if (setting == RESIDENT)
		fill = (uint64_t)((double)group_opt.resident / FILL_BYTES_PER_S * 1e9);
	for (i = 0; i < n; i++)
		scene_start(&scenes[i], victim, setting);
	for (i = 0; i < n; i++)
		await(&scenes[i].ready, ROLES, GROUP_HANG_NS + fill, "a group does not start");
	/* All sleep by now; for how long, modulo the back-stop, is anybody's guess. */
	group_nap(10 * GROUP_MS + group_random(KVR_BACKSTOP_NS));
	for (i = 0; i < n; i++) {
		scene_kill(&scenes[i]);
		group_nap(GROUP_MS + group_random(3 * GROUP_MS));
	}
	for (i = 0; i < n; i++)
		scene_end(&scenes[i]);
	for (i = 0; i < n; i++)
		scene_evaluate(&scenes[i]);
}

static int resident_possible(void)
{
	static int told;
	uint64_t there = group_memory_available();

	if (there / 2 >= group_opt.resident)
		return 1;
	if (!told++)
		group_skip("death of a process with %.1f GiB resident: %.1f GiB are available, "
			   "twice as much as it needs is asked for (--resident)",
			   (double)group_opt.resident / (1u << 30), (double)there / (1u << 30));
	return 0;
}

static int wanted(enum victim victim, enum setting setting)
{
	if (victim == BY_RANK_LOOKED)
		return setting == EMPTY;
	return setting != RESIDENT || group_opt.resident;
}

static void rows_make(void)
{
	static char resident[32];
	enum victim v;
	enum setting t;
	enum who w;

	snprintf(resident, sizeof(resident), "%.3g GiB resident",
		 (double)group_opt.resident / (1u << 30));
	for (v = 0; v < VICTIMS; v++)
		for (t = 0; t < SETTINGS; t++)
			for (w = 0; w < WHO && wanted(v, t); w++) {
				if (w == (v == BY_LEADER ? OF_LEADER : OF_CHECK))
					continue;
				rows[v][t][w] = group_row("death", "ms", RANKS, 0);
				rows[v][t][w]->victim = victims[v];
				rows[v][t][w]->setting = t == RESIDENT ? resident : settings[t];
				rows[v][t][w]->who = whos[w];
			}
}

static void round_run(void)
{
	enum victim v;
	enum setting t;

	for (v = 0; v < VICTIMS; v++)
		for (t = 0; t < RESIDENT; t++)
			if (wanted(v, t))
				batch(v, t);
}

/* Those with much memory take seconds each: they get a share of the time, and one kill at least. */
static void round_resident(uint64_t start, uint64_t deadline)
{
	static uint64_t spent, longest;
	uint64_t begun = group_now(), took;
	enum victim v;

	if ((double)spent > RESIDENT_SHARE * (double)(begun - start) || begun + longest > deadline)
		return;
	for (v = 0; v < VICTIMS; v++)
		if (wanted(v, RESIDENT) && resident_possible())
			batch(v, RESIDENT);
	took = group_now() - begun;
	spent += took;
	longest = took > longest ? took : longest;
}

static void segments_remove(void)
{
	char name[KVR_NAME_MAX];
	uint32_t i;
	int rc;

	for (i = 0; i < SCENES; i++) {
		snprintf(name, sizeof(name), "death-%u", i);
		rc = kvr_group_remove(name, group_dir);
		if (rc && rc != -ENOENT)
			group_broken("kvr_group_remove");
	}
}

void group_death(double seconds)
{
	uint64_t start = group_now(), deadline = start + (uint64_t)(seconds * 1e9), begun;
	uint64_t longest = 0, took;
	uint32_t round;

	worker = getpid();
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	scenes = group_memory(SCENES * sizeof(*scenes));
	rows_make();
	for (round = 0; round < group_opt.rounds; round++) {
		begun = group_now();
		if (round && begun + longest > deadline)
			break;
		group_progress("death", round);
		round_run();
		took = group_now() - begun;
		longest = took > longest ? took : longest;
		round_resident(start, deadline);
	}
	group_run.rounds_death = round;
	/* Killed leaders, and those that failed, left their segments to be looked at. */
	segments_remove();
}
