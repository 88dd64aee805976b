/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a rank: it waits until the leader has made the group, attaches, does what the leader
 * says over the channel, and ends with a word of its own about what went wrong. It ignores the
 * signals that ask to stop (a terminal sends them to all): stopping is the leader's business. When
 * the leader dies, the library says so, and the rank ends itself.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kvring/err.h"
#include "replay.h"

#define ATTACH_MS 200u	   /* between two looks whether the leader is still there */
#define SILENCE_MS 600000u /* without an order: longer than all that the leader may wait for */
#define WORD_MS 5000u	   /* of the leader, or its end, after the epoch is over */
#define ORPHAN_NS 1000000000u

struct leader {
	pid_t pid;
	int go; /* it has the other end */
};

/*
 * A process that is killed lets go of its liveness word first, then of its files, and at last its
 * children get another parent. So "the leader died" may come while it still is the parent. After
 * the end of an epoch the leader, if it lives, says on the pipe that it cleans up itself.
 */
static int is_orphan(const struct leader *leader, int over)
{
	struct pollfd p = { .fd = leader->go, .events = POLLIN };
	struct timespec nap = { 0, 1000000 };
	uint64_t until;

	if (poll(&p, 1, over ? (int)WORD_MS : 0) > 0 && p.revents & POLLHUP)
		for (until = replay_now() + ORPHAN_NS;
		     getppid() == leader->pid && replay_now() < until;)
			nanosleep(&nap, NULL);
	return getppid() != leader->pid;
}

/* _exit(): what the parent had in its output buffers and handlers is not this process's. */
static void __attribute__((noreturn))
end(struct replay_run *run, const struct leader *leader, int over, int status)
{
	replay_run_close(run);
	if (is_orphan(leader, over)) /* nobody else is left to do it; all of them may */
		replay_temp_remove(&run->job->opts);
	_exit(status);
}

/* The next order of the leader, which may take long: its death, or its giving up, ends the wait. */
static int take(struct replay_run *run, uint32_t *ret_tag, uint64_t *ret_value)
{
	uint64_t until = kvr_deadline(SILENCE_MS);
	struct kvr_message message;
	int r, over = 0;

	do {
		r = REPLAY_RETRY(kvr_channels_take(kvr_connector_channels(run->c), KVR_CH_USER0,
						   kvr_deadline(REPLAY_DEADLINE_MS), &message));
		if (r == -ETIMEDOUT)
			over = kvr_group_check(kvr_connector_group(run->c));
	} while (r == -ETIMEDOUT && !over && replay_now() < until);
	if (over)
		return over;
	if (r < 0)
		return r;
	if (message.len != sizeof(*ret_value)) {
		run->own = "the leader's order does not have 8 bytes";
		return -EBADMSG;
	}
	memcpy(ret_value, message.data, sizeof(*ret_value));
	*ret_tag = message.tag;
	return 0;
}

static int obey(struct replay_run *run)
{
	uint32_t tag, index;
	uint64_t value;
	int r, here;

	for (;;) {
		r = take(run, &tag, &value);
		if (r)
			return r;
		index = (uint32_t)value;
		here = index >= run->first && index < run->end;
		if (tag == REPLAY_CMD_REQUEST && here)
			r = replay_run_request(run, index);
		else if (tag == REPLAY_CMD_RESET && here)
			r = replay_run_reset(run, index);
		else if (tag == REPLAY_CMD_PREFETCH && here)
			r = replay_prefetch(run, index, (uint32_t)(value >> 32));
		else if (tag == REPLAY_CMD_TICK && run->tick + 1 == value)
			r = replay_run_tick(run);
		else if (tag == REPLAY_CMD_END)
			return 0;
		else
			r = -EBADMSG, run->own = "the leader's order makes no sense here";
		if (r)
			return r;
	}
}

/*
 * The group is there, so this takes no time, unless its leader died since: to wait for a next one,
 * as the library would until the deadline, makes no sense here.
 */
static int attach(struct replay_run *run, const struct leader *leader)
{
	const struct replay_opts *o = &run->job->opts;
	struct kvr_connector_opts opts = { .size = sizeof(opts), .model = &o->model };
	uint64_t until = kvr_deadline(REPLAY_DEADLINE_MS);
	int r;

	do
		r = REPLAY_RETRY(kvr_connector_join(o->name, run->rank, &opts,
						    kvr_deadline(ATTACH_MS), &run->c));
	while ((r == -ETIMEDOUT || r == -EOWNERDEAD) && getppid() == leader->pid &&
	       replay_now() < until);
	return r;
}

static int join(struct replay_run *run, const struct leader *leader, int ready)
{
	char byte = 0;
	ssize_t n;
	int r;

	do
		n = read(leader->go, &byte, 1);
	while (n < 0 && errno == EINTR);
	if (n == 1 && byte == 'x') /* it could not make the group, and says why itself */
		end(run, leader, 0, REPLAY_OK);
	if (n != 1) {
		replay_fail(run, "the leader (pid %d) ended before the group was there",
			    (int)leader->pid);
		end(run, leader, 1, REPLAY_FAILED);
	}
	r = attach(run, leader);
	if (!r)
		r = replay_run_open(run);
	if (!r && write(ready, "r", 1) != 1) {
		run->own = "the leader ended while this rank attached";
		r = -EOWNERDEAD;
	}
	close(ready);
	return r;
}

void replay_rank(const struct replay_job *job, uint32_t rank, uint32_t first, uint32_t last, int go,
		 int ready)
{
	struct replay_area *area = job->area;
	struct replay_run run = {
		.job = job, .proc = &area->proc[1 + rank], .rank = rank, .first = first, .end = last
	};
	struct leader leader = { area->proc[0].pid, go };
	int r, over;

	run.tick_hash = area->tick_hash + (1 + rank) * area->tick_room + area->tick_base;
	run.proc->pid = getpid();
	run.proc->finished = 0;
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	r = join(&run, &leader, ready);
	if (!r)
		r = obey(&run);
	run.proc->unfinished += run.book.open + run.book.stray;
	if (!r)
		r = REPLAY_RETRY(kvr_connector_shutdown(run.c, kvr_deadline(REPLAY_DEADLINE_MS)));
	if (r) {
		replay_fail(&run, "%s", replay_why(&run, r));
		over = r == -EOWNERDEAD || (run.c && kvr_group_check(kvr_connector_group(run.c)));
		/* Without close: leaving in good order would tell the others that all is well. */
		end(&run, &leader, over, REPLAY_FAILED);
	}
	kvr_connector_close(run.c);
	run.proc->finished = 1;
	end(&run, &leader, 0, REPLAY_OK);
}
