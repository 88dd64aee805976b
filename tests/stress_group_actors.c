/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all actors do. Each checks by itself what one process can check; what needs more than one
 * view goes into notes and pasts.
 */
#include "stress_group_actors.h"

#include <sched.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "shm.h"

struct world *world_;
struct actor *self_;
static uint64_t rng_;

uint32_t actor_pick(uint32_t n)
{
	return world_pick(&rng_, n);
}

/* --- what all of them do --- */

void actor_wrong(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(self_->wrong, sizeof self_->wrong, fmt, ap);
	va_end(ap);
	_exit(1);
}

void actor_note(enum note_kind kind, uint32_t reign, uint64_t epoch, int rc, uint64_t begin_ns,
		uint64_t deadline_ns)
{
	uint32_t i = kvr_add_acq_rel32(&world_->notes, 1);
	struct note *n = &world_->note[i];

	if (i >= WORLD_NOTES)
		actor_wrong("more than %u notes", WORLD_NOTES);
	n->kind = kind;
	n->actor = (uint32_t)(self_ - world_->actor);
	n->reign = reign;
	n->rc = rc;
	n->epoch = epoch;
	n->begin_ns = begin_ns;
	n->end_ns = kvr_now();
	n->deadline_ns = deadline_ns;
	snprintf(n->text, sizeof n->text, "%s", rc < 0 ? kvr_explain() : "");
	kvr_store_release32(&n->done, 1);
}

struct past *actor_past(uint32_t reign, int rc)
{
	uint32_t i = kvr_add_acq_rel32(&world_->pasts, 1);
	struct past *p = &world_->past[i];

	if (i >= WORLD_PASTS)
		actor_wrong("more than %u pasts", WORLD_PASTS);
	p->actor = (uint32_t)(self_ - world_->actor);
	p->reign = reign;
	p->rank = self_->rank;
	p->rc = rc;
	return p;
}

uint32_t actor_order(void)
{
	return kvr_load_acquire32(&self_->order);
}

int actor_over(void)
{
	return kvr_load_acquire32(&world_->over) != 0;
}

static void count_maps(int *ret_maps)
{
	char line[512], perms[8];
	FILE *f = fopen("/proc/self/maps", "re");

	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "%*s %7s", perms) == 1 && perms[3] == 's')
			++*ret_maps;
	if (f)
		fclose(f);
}

struct residue actor_residue(void)
{
	struct residue r = { 0 };

	for (int fd = 0; fd < 256; fd++)
		r.fds += fcntl(fd, F_GETFD) >= 0;
	count_maps(&r.maps);
	return r;
}

void actor_no_residue(const struct residue *before, const char *after)
{
	struct residue now = actor_residue();

	if (now.fds != before->fds || now.maps != before->maps)
		actor_wrong("after %s: %d open files and %d shared mappings, before: %d and %d",
			    after, now.fds, now.maps, before->fds, before->maps);
}

void actor_late(const char *call, uint64_t deadline_ns, uint32_t stops)
{
	uint64_t now = kvr_now();

	self_->timeouts++;
	if (now < deadline_ns)
		actor_wrong("%s returned %llu us before its deadline: %s", call,
			    (unsigned long long)(deadline_ns - now) / 1000, kvr_explain());
	if (now > deadline_ns + LATE_NS && stops == kvr_load_acquire32(&self_->stops) &&
	    !(stops & 1))
		actor_wrong("%s returned %llu ms after its deadline: %s", call,
			    (unsigned long long)(now - deadline_ns) / 1000000, kvr_explain());
}

void actor_answer(uint64_t begin_ns)
{
	uint64_t ask = kvr_load_acquire(&self_->ask_ns);

	if (!ask || begin_ns <= ask || self_->answer_ns == ask)
		return;
	snprintf(self_->answer, sizeof self_->answer, "%s", kvr_explain());
	kvr_store_release(&self_->answer_ns, ask);
}

static void at_point(enum kvr_point at, uint32_t arg)
{
	static uint32_t passed;

	(void)arg;
	if ((uint32_t)at != self_->trap.point || ++passed != self_->trap.nth)
		return;
	kvr_store_release(&self_->trapped_ns, kvr_now());
	raise(self_->trap.signal);
}

uint64_t actor_patience(void)
{
	return self_->patience_ms ? kvr_deadline(self_->patience_ms) : 0;
}

struct kvr_group_opts actor_options(void)
{
	return (struct kvr_group_opts){ .size = sizeof(struct kvr_group_opts),
					.dir = world_->dir[0] ? world_->dir : NULL,
					.event_fd = -1 };
}

/* --- bells: whoever sleeps must be rung by whoever ends the epoch --- */

void bells_look(struct bells *b)
{
	struct kvr_seg_header header;
	struct kvr_layout layout;
	char path[KVR_SHM_PATH];
	uint64_t bytes;
	int fd;

	memset(b, 0, sizeof *b);
	if (kvr_shm_path(path, sizeof path, actor_options().dir, world_->name, KVR_SHM_SEGMENT, 0))
		actor_wrong("%s", kvr_explain());
	fd = kvr_shm_open(path, 0, &bytes);
	if (fd < 0)
		return;
	if (kvr_shm_read(fd, &header, sizeof header, 0) ||
	    kvr_header_check(&header, bytes, path, &layout))
		actor_wrong("what has the group's name is no segment: %s", kvr_explain());
	b->seg = kvr_shm_map(fd, 0, layout.leader, 0);
	b->bytes = layout.leader;
	close(fd);
	if (!b->seg)
		actor_wrong("%s", kvr_explain());
	b->bell = (const void *)(b->seg + layout.bells);
	b->takeover = (const void *)(b->seg + layout.takeover);
	b->pid = header.pid;
	b->epoch = header.epoch;
	b->n = layout.ranks + 1;
	for (uint32_t i = 0; i < b->n; i++) {
		/* In this order: a ring in between leaves `parked` 0, or is seen by `seq`. */
		b->seq[i] = kvr_load_acquire32(&b->bell[i].seq);
		b->parked[i] = kvr_load_acquire32(&b->bell[i].parked);
	}
}

void bells_rung(struct bells *b, const char *after)
{
	for (uint32_t i = 0; i < b->n; i++)
		if (b->parked[i] && kvr_load_acquire32(&b->bell[i].seq) == b->seq[i])
			actor_wrong("%s did not ring bell %u of %u, where somebody sleeps", after,
				    i, b->n - 1);
}

void bells_end(struct bells *b)
{
	kvr_shm_unmap(b->seg, b->bytes);
}

void actor_main(struct world *world, uint32_t index)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	world_ = world;
	self_ = &world->actor[index];
	rng_ = self_->seed;
	kvr_store_release32(&self_->pid, (uint32_t)getpid());
	if (self_->trap.point != KVR_POINT_COUNT)
		kvr_point_hook = at_point;
	while (kvr_load_acquire32(&world->go) < self_->go)
		sched_yield();
	switch (self_->role) {
	case ROLE_LEADER:
		actor_leader();
		break;
	case ROLE_RANK:
		actor_rank();
		break;
	case ROLE_TICKER:
		actor_ticker();
		break;
	case ROLE_TICKED:
		actor_ticked();
		break;
	}
	self_->doing = "its end";
	_exit(0);
}
