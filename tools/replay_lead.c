/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The leader: starts the ranks, makes the group, gives out the requests, and at the end waits until
 * every operation has its end. The ranks are forked first, before this process has any thread: a
 * thread that held a lock during fork would leave it locked for ever in the child. They wait on a
 * pipe until the group is there, and the leader waits on another until all have attached; from then
 * on the library tells of any death.
 *
 * On the first pipe 'g' means that the group is there, 'x' that the leader gives up and cleans up
 * itself. The ranks see by its end that the leader is dying.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kvring/err.h"
#include "replay.h"

struct crew {
	struct replay_area *area;
	uint32_t n;
	pid_t pid[KVR_MAX_RANKS]; /* 0: ended */
	int go[2], ready[2];
	uint32_t failed; /* ended without success */
};

static void sleep_ms(uint64_t ms)
{
	struct timespec t = { (time_t)(ms / 1000), (long)(ms % 1000) * 1000000 };

	nanosleep(&t, NULL);
}

static void shut(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* A rank that was killed cannot say so itself. */
static void note_end(struct crew *crew, uint32_t rank, int status)
{
	struct replay_proc *p = &crew->area->proc[1 + rank];
	pid_t pid = crew->pid[rank];

	crew->pid[rank] = 0;
	if (!status)
		return;
	crew->failed++;
	if (p->sentence[0])
		return;
	if (WIFSIGNALED(status))
		snprintf(p->sentence, sizeof(p->sentence),
			 "rank %u (pid %d) was killed by signal %d (%s)", rank, (int)pid,
			 WTERMSIG(status), strsignal(WTERMSIG(status)));
	else
		snprintf(p->sentence, sizeof(p->sentence),
			 "rank %u (pid %d) ended with exit status %d", rank, (int)pid,
			 WEXITSTATUS(status));
	replay_complain("%s", p->sentence);
}

/* Reaps those that ended. The number of those that did not. */
static uint32_t reap(struct crew *crew)
{
	uint32_t i, left = 0;
	int status;

	for (i = 0; i < crew->n; i++) {
		if (!crew->pid[i])
			continue;
		if (waitpid(crew->pid[i], &status, WNOHANG) == crew->pid[i])
			note_end(crew, i, status);
		else
			left++;
	}
	return left;
}

/* Waits for all; kills those that are late. */
static void reap_all(struct crew *crew, uint64_t ms)
{
	uint64_t until = replay_now() + ms * 1000000u;
	uint32_t i;

	while (reap(crew) && replay_now() < until)
		sleep_ms(1);
	for (i = 0; i < crew->n; i++) {
		if (!crew->pid[i])
			continue;
		replay_complain("rank %u (pid %d) does not end: killed", i, (int)crew->pid[i]);
		kill(crew->pid[i], SIGKILL);
	}
	while (reap(crew))
		sleep_ms(1);
}

static void crew_close(struct crew *crew)
{
	shut(&crew->go[0]);
	shut(&crew->go[1]);
	shut(&crew->ready[0]);
	shut(&crew->ready[1]);
}

static int crew_start(const struct replay_job *job, struct crew *crew, uint32_t first, uint32_t end)
{
	pid_t pid;
	uint32_t i;

	*crew = (struct crew){ .area = job->area, .go = { -1, -1 }, .ready = { -1, -1 } };
	job->area->proc[0].pid = getpid();
	if (pipe2(crew->go, O_CLOEXEC) || pipe2(crew->ready, O_CLOEXEC))
		goto failed;
	if (job->opts.verbose)
		replay_complain("leader pid %d", (int)getpid());
	for (i = 0; i < job->opts.ranks; i++) {
		pid = fork();
		if (pid < 0)
			goto failed;
		if (!pid) {
			/* The leader's end alone must keep the pipe open. */
			shut(&crew->go[1]);
			shut(&crew->ready[0]);
			replay_rank(job, i, first, end, crew->go[0], crew->ready[1]);
		}
		crew->pid[crew->n++] = pid;
		if (job->opts.verbose)
			replay_complain("rank %u pid %d", i, (int)pid);
	}
	shut(&crew->go[0]);
	shut(&crew->ready[1]);
	return 0;
failed:
	replay_complain("cannot start rank %u of %u: %s", crew->n, job->opts.ranks,
			strerror(errno));
	for (i = 0; i < crew->n; i++)
		kill(crew->pid[i], SIGKILL);
	while (reap(crew))
		sleep_ms(1);
	crew_close(crew);
	return -1;
}

/* A rank that is stopped answers nobody, and waits end late, or never. KVR_MAX_RANKS: none is. */
static uint32_t stopped_rank(const struct crew *crew)
{
	siginfo_t info;
	uint32_t i;

	for (i = 0; i < crew->n; i++) {
		info.si_pid = 0;
		if (crew->pid[i] &&
		    !waitid(P_PID, (id_t)crew->pid[i], &info, WSTOPPED | WNOHANG | WNOWAIT) &&
		    info.si_pid == crew->pid[i])
			return i;
	}
	return KVR_MAX_RANKS;
}

static void tell_crew(struct crew *crew, char word)
{
	uint32_t i;

	for (i = 0; i < crew->n; i++)
		if (write(crew->go[1], &word, 1) != 1) /* the rank is gone: reaping tells */
			break;
}

/*
 * Says why and ends the epoch. The cause is never one of those that mean "call again", which a rank
 * might do.
 */
static void give_up(struct replay_run *run, struct crew *crew, int err, const char *why)
{
	int again = err == -EINTR || err == -EAGAIN || err == -ETIMEDOUT || err == -EMSGSIZE;
	uint32_t stopped = stopped_rank(crew);
	char blame[64] = "";

	if (stopped < crew->n)
		snprintf(blame, sizeof(blame), "; rank %u (pid %d) is stopped", stopped,
			 (int)crew->pid[stopped]);
	replay_fail(run, "%s%s%s", err == -EINTR ? "ended by a second signal: " : "", why, blame);
	kvr_group_fail(kvr_connector_group(run->c), stopped, again ? -ECANCELED : err);
	tell_crew(crew, 'x');
}

/* Until every rank has attached. 0, or -1: one ended instead, or does not come. */
static int await_crew(struct replay_run *run, struct crew *crew)
{
	uint64_t until = replay_now() + REPLAY_DEADLINE_MS * 1000000ull;
	struct pollfd poll_ready = { .fd = crew->ready[0], .events = POLLIN };
	char bytes[KVR_MAX_RANKS], why[64];
	uint32_t attached = 0;
	ssize_t n;

	while (attached < crew->n) {
		if (poll(&poll_ready, 1, 20) > 0) {
			n = read(crew->ready[0], bytes, sizeof(bytes));
			if (n > 0)
				attached += (uint32_t)n;
		}
		if (reap(crew) < crew->n) {
			give_up(run, crew, -ECANCELED, "a rank ended before it had attached");
			return -1;
		}
		if (replay_now() > until || replay_stop > 1) {
			snprintf(why, sizeof(why), "only %u of %u ranks attached", attached,
				 crew->n);
			give_up(run, crew, replay_stop > 1 ? -EINTR : -ETIMEDOUT, why);
			return -1;
		}
	}
	return 0;
}

int replay_order(struct replay_run *run, uint32_t tag, uint64_t value)
{
	return REPLAY_RETRY(kvr_channels_publish(kvr_connector_channels(run->c), KVR_CH_USER0, 0,
						 tag, NULL, &value, sizeof(value),
						 kvr_deadline(REPLAY_DEADLINE_MS)));
}

static int make_group(struct replay_run *run)
{
	const struct replay_opts *o = &run->job->opts;
	struct kvr_connector_opts opts = {
		.size = sizeof(opts),
		.model = &o->model,
		.ranks = o->ranks,
		.shape = &o->shape,
		.host_bytes = o->host,
		.store_flags = KVR_STORE_CREATE | (o->no_uring ? KVR_STORE_NO_URING : 0),
		.store_paths = o->nstores ? o->stores : NULL,
		.stores = o->nstores,
		.store_bytes = o->nvme,
		.progress = replay_progress_open,
	};
	int r;

	/* The first signal ends it: there is nothing to finish in good order yet. */
	do
		r = kvr_connector_lead(o->name, &opts, &run->c);
	while (r == -EINTR && !replay_stop);
	replay_progress_clear();
	return r;
}

/* Nobody would reap or clean up after a leader whose parent is gone. */
static int asked_to_stop(const struct replay_job *job)
{
	return replay_stop || (job->parent && getppid() != job->parent);
}

/* 0: not before that request. */
static int reset(struct replay_run *run, uint32_t index)
{
	uint32_t every = run->job->opts.reset_every;
	int r;

	if (!every || !index || index % every)
		return 0;
	r = replay_order(run, REPLAY_CMD_RESET, index);
	return r ? r : replay_run_reset(run, index);
}

/* Slots that a rank may still copy; 0, too, when nobody knows. */
static uint64_t quarantined(struct replay_run *run)
{
	struct kvr_inspect_group group;
	struct replay_counts *c = &run->job->area->counts;

	if (!run->inspect || kvr_inspect_group(run->inspect, &group))
		return 0;
	if (group.quarantined_slots > c->quarantine_most)
		c->quarantine_most = group.quarantined_slots;
	return group.quarantined_slots;
}

static int requests(struct replay_run *run)
{
	uint32_t i;
	int r;

	for (i = run->first; i < run->end; i++) {
		if (asked_to_stop(run->job)) {
			run->job->area->interrupted = 1;
			break;
		}
		r = reset(run, i);
		if (!r)
			r = replay_ahead(run, i);
		if (!r)
			r = replay_order(run, REPLAY_CMD_REQUEST, i);
		if (!r)
			r = replay_run_request(run, i);
		if (r)
			return r;
		if (run->plan.abort)
			quarantined(run);
		replay_progress(run);
	}
	return replay_ahead_stop(run);
}

/* Ticks until every operation has its end. Those that never get one are counted by the caller. */
static int drain(struct replay_run *run)
{
	uint64_t until = replay_now() + REPLAY_DEADLINE_MS * 1000000ull;
	uint32_t i;
	int r;

	for (i = 0; i < REPLAY_DRAIN_TICKS - 1 && run->book.open && replay_now() < until; i++) {
		if (!replay_run_settle(run) && i)
			sleep_ms(i < 10 ? 1 : 10);
		if (replay_stop > 1) {
			run->own = "operations are in flight";
			return -EINTR;
		}
		r = replay_order(run, REPLAY_CMD_TICK, run->tick + 1);
		if (!r)
			r = replay_run_tick(run);
		if (r)
			return r;
	}
	return 0;
}

/*
 * Operations ended, and ranks that were slower than the leader have yet to say that they do not
 * copy any more. They do, while they live: what is left at the end is a fault.
 */
static int leave_quarantine(struct replay_run *run)
{
	uint64_t until = replay_now() + REPLAY_DEADLINE_MS * 1000000ull;
	int r = 0;

	while (quarantined(run) && !r && replay_now() < until && replay_stop < 2) {
		sleep_ms(1);
		r = kvr_group_check(kvr_connector_group(run->c));
	}
	run->job->area->counts.quarantined += quarantined(run);
	return r;
}

static void keep_degraded(struct replay_run *run)
{
	struct replay_area *area = run->job->area;
	const char *text;
	uint32_t i, k;

	for (i = 0; (text = kvr_connector_degraded(run->c, i)); i++) {
		for (k = 0; k < area->degraded; k++)
			if (!strncmp(area->sentence[k], text, sizeof(area->sentence[k]) - 1))
				break;
		if (k == area->degraded && k < REPLAY_SENTENCES)
			snprintf(area->sentence[area->degraded++], sizeof(area->sentence[0]), "%s",
				 text);
	}
}

/* While the handle lives: what the library counted. */
static void keep_figures(struct replay_run *run)
{
	struct replay_area *area = run->job->area;
	struct kvr_stats s, *sum = &area->stats;

	keep_degraded(run);
	area->run_ns += replay_now() - run->began_ns;
	if (area->phases < 2)
		area->epochs[area->phases++] = kvr_group_epoch(kvr_connector_group(run->c));
	if (kvr_connector_stats(run->c, &s))
		return;
	sum->blocks_recovered = s.blocks_recovered;
	sum->blocks_written += s.blocks_written;
	sum->blocks_bad += s.blocks_bad;
	sum->host_evictions += s.host_evictions;
	sum->nvme_evictions += s.nvme_evictions;
	sum->bytes_read += s.bytes_read;
	sum->bytes_written += s.bytes_written;
	sum->pool_slots = s.pool_slots;
	sum->store_slots = s.store_slots;
	sum->store_used = s.store_used;
}

/* After the ranks have left, or died: their pages stay. */
static void keep_answers(struct replay_run *run)
{
	struct replay_counts *c = &run->job->area->counts;
	struct kvr_inspect_proc proc;
	uint32_t i;

	for (i = 0; run->inspect && i < run->job->opts.ranks; i++) {
		if (kvr_inspect_proc(run->inspect, i, &proc))
			continue;
		c->late += proc.late;
		c->duplicate += proc.duplicate;
		c->foreign += proc.foreign;
	}
}

/* With the group made and all ranks attached. 0, or -errno that was told. */
static int lead(struct replay_run *run, struct crew *crew)
{
	int r;

	run->began_ns = replay_now();
	r = requests(run);
	if (!r)
		r = drain(run);
	run->proc->unfinished += run->book.open + run->book.stray;
	if (!r)
		r = leave_quarantine(run);
	if (!r)
		r = replay_order(run, REPLAY_CMD_END, 0);
	if (r) /* first of all: the library keeps one sentence, that of the last failure */
		give_up(run, crew, r, replay_why(run, r));
	keep_figures(run);
	if (r)
		return r;
	r = REPLAY_RETRY(kvr_connector_shutdown(run->c, kvr_deadline(REPLAY_DEADLINE_MS)));
	if (r)
		give_up(run, crew, r, replay_why(run, r));
	keep_answers(run);
	return r;
}

/* Memory, and a look into the own segment, which tells what no call does. */
static int open_run(struct replay_run *run)
{
	if (kvr_inspect_open_name(NULL, run->job->opts.name, &run->inspect)) {
		run->inspect = NULL;
		replay_complain("quarantine and answers that were not applied are not counted: %s",
				kvr_explain());
	}
	return replay_run_open(run);
}

int replay_lead(const struct replay_job *job, uint32_t first, uint32_t end)
{
	struct replay_area *area = job->area;
	struct replay_run run = { .job = job,
				  .proc = &area->proc[0],
				  .rank = REPLAY_LEADER,
				  .first = first,
				  .end = end };
	int r, status = REPLAY_OK;
	struct crew crew;

	run.tick_hash = area->tick_hash + area->tick_base;
	run.proc->finished = 0;
	if (crew_start(job, &crew, first, end))
		return REPLAY_FAILED;
	r = make_group(&run);
	if (r) {
		replay_complain("%s", replay_why(&run, r)); /* about what it was told to use */
		status = REPLAY_BAD_INPUT;
		area->interrupted |= replay_stop > 0; /* such as while it waited for a lock */
		tell_crew(&crew, 'x');
	} else if ((r = open_run(&run))) {
		replay_fail(&run, "%s", replay_why(&run, r));
		tell_crew(&crew, 'x');
	} else {
		tell_crew(&crew, 'g');
		r = await_crew(&run, &crew);
		if (!r)
			r = lead(&run, &crew);
	}
	replay_progress_clear();
	reap_all(&crew, r ? REPLAY_END_MS : REPLAY_DEADLINE_MS);
	crew_close(&crew);
	kvr_inspect_close(run.inspect);
	kvr_connector_close(run.c);
	replay_run_close(&run);
	area->tick_base += run.tick;
	if (status == REPLAY_OK && (r || crew.failed))
		status = REPLAY_FAILED;
	run.proc->finished = status == REPLAY_OK;
	if (status == REPLAY_OK && area->interrupted)
		status = REPLAY_INTERRUPTED;
	return status;
}
