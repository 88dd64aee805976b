/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A member's page as facts, and as half a sentence. The page is another process's: each word is
 * loaded once, and the names are copied and bounded.
 */
#include "peer.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "atomic.h"
#include "clock.h"
#include "life.h"
#include "process.h"
#include "util.h"

typedef unsigned long long ull;

/* Appends to a text of fixed size; what does not fit is cut. */
static void add(char *text, size_t size, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static void add(char *text, size_t size, const char *fmt, ...)
{
	size_t used = strlen(text);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text + used, size - used, fmt, ap);
	va_end(ap);
}

void kvr_peer_age(uint64_t since_ns, char *text, size_t size)
{
	uint64_t now = kvr_now(), age = since_ns < now ? now - since_ns : 0;

	if (age < KVR_SEC)
		add(text, size, "%llu ms", (ull)(age / KVR_MS));
	else
		add(text, size, "%llu.%llu s", (ull)(age / KVR_SEC),
		    (ull)(age / (KVR_SEC / 10) % 10));
}

/* Of a process whose word says that it lives. */
static uint32_t alive_state(enum kvr_process_state s)
{
	switch (s) {
	case KVR_PROCESS_STOPPED:
		return KVR_PEER_STOPPED;
	case KVR_PROCESS_DUMPS:
		return KVR_PEER_DUMPING;
	default:
		return KVR_PEER_ALIVE;
	}
}

void kvr_peer_read(const struct kvr_proc *p, uint32_t rank, struct kvr_peer *ret)
{
	enum kvr_life_state life = kvr_life_peek(&p->life);
	uint32_t state = kvr_load_acquire32(&p->state); /* G2, pairs with G1 */
	struct kvr_process who = { .pid = kvr_load_relaxed32(&p->pid),
				   .start_time = kvr_load_relaxed(&p->start_time),
				   .space = kvr_load_relaxed(&p->space) };
	enum kvr_process_state now = KVR_PROCESS_UNKNOWN;

	memset(ret, 0, sizeof *ret);
	ret->rank = rank;
	ret->gone = -1;
	ret->pid = who.pid;
	if (state == KVR_PROC_ABSENT) {
		/* Dead in the middle of attaching is dead, too. */
		ret->state = life == KVR_LIFE_NONE    ? KVR_PEER_ABSENT
			     : life == KVR_LIFE_ALIVE ? KVR_PEER_ATTACHING
						      : KVR_PEER_DEAD;
		ret->gone = life == KVR_LIFE_NONE ? 1 : -1;
		return;
	}
	now = kvr_process_state(&who);
	if (now != KVR_PROCESS_UNKNOWN)
		ret->gone = now == KVR_PROCESS_GONE;
	ret->state = state == KVR_PROC_LEFT  ? KVR_PEER_LEFT
		     : life == KVR_LIFE_DEAD ? KVR_PEER_DEAD
		     : life == KVR_LIFE_NONE ? KVR_PEER_LEFT
					     : alive_state(now);
	ret->failed = state == KVR_PROC_FAILED;
	ret->call = kvr_load_relaxed32(&p->in_call);
	ret->call_channel = kvr_load_relaxed32(&p->call_arg);
	ret->call_ns = kvr_load_relaxed(&p->call_ns);
	ret->progress_ns = kvr_load_relaxed(&p->progress_ns);
	ret->phase_until_ns = kvr_load_relaxed(&p->phase_until);
	if (ret->phase_until_ns)
		kvr_text_copy(ret->phase, sizeof ret->phase, p->phase, sizeof p->phase);
}

void kvr_peer_text(const struct kvr_peer *p, char *text, size_t size)
{
	uint64_t now = kvr_now();

	if (p->state == KVR_PEER_ABSENT) {
		add(text, size, "not attached");
		return;
	}
	add(text, size, "pid %u, %s", p->pid, kvr_peer_state_name(p->state));
	if (p->failed)
		add(text, size, ", it declared the epoch over");
	if (p->state == KVR_PEER_ATTACHING)
		return;
	if (p->call) {
		add(text, size, ", in %s ", kvr_call_name(p->call));
		if (p->call == KVR_CALL_PUBLISH || p->call == KVR_CALL_TAKE ||
		    p->call == KVR_CALL_EXPECT)
			add(text, size, "of channel %s ", kvr_channel_name(p->call_channel));
		add(text, size, "for ");
		kvr_peer_age(p->call_ns, text, size);
	} else if (p->progress_ns) {
		add(text, size, ", in no call, last seen ");
		kvr_peer_age(p->progress_ns, text, size);
		add(text, size, " ago");
	}
	if (p->phase_until_ns > now)
		add(text, size, ", in the long phase \"%s\" for %llu s more", p->phase,
		    (ull)((p->phase_until_ns - now) / KVR_SEC + 1));
	else if (p->phase_until_ns)
		add(text, size, ", its long phase \"%s\" should have ended", p->phase);
}
