/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting on a bell into which a peer writes what it likes: before the wait, and whenever the
 * waiter looks. Every call must return, and with the right answer. An endless wait is found by
 * libFuzzer's own time limit.
 */
#include "fuzz.h"

#include <errno.h>

#include "clock.h"
#include "kvring/wait.h"

#define SPIN_NS 20000u /* no spin is longer */

/* One wait. */
struct look {
	struct script *s;
	struct kvr_bell *bell;
	uint32_t calls, answer_at; /* the call that answers */
	int answer;
};

/* The peer: any words, a bell that rings, or nothing. */
static void peer_step(struct script *s, struct kvr_bell *bell)
{
	uint32_t seq = bell->seq, parked = bell->parked;

	switch (script_u8(s) % 4) {
	case 0:
		bell->seq = script_u32(s);
		bell->parked = script_u32(s);
		break;
	case 1:
		bell->parked = script_u8(s) % 3;
		bell->seq += script_u8(s) % 2;
		break;
	case 2:
		kvr_bell_ring(bell);
		must(!bell->parked && bell->seq == seq + (parked != 0));
		break;
	default:
		break;
	}
}

static int look(void *arg)
{
	struct look *l = arg;

	if (++l->calls >= l->answer_at)
		return l->answer;
	if (l->s->left)
		peer_step(l->s, l->bell);
	return 0;
}

/* *millis: how long the waits of this input may still last. */
static void wait_step(struct script *s, struct kvr_waiter *w, uint32_t *millis)
{
	struct look l = { .s = s, .bell = w->bell, .answer_at = 1 + script_u8(s) };
	uint64_t sleeps = w->sleeps, deadline = 0, now = kvr_now();
	uint8_t how = script_u8(s);
	int rc;

	l.answer = (int)script_u32(s);
	if (!l.answer)
		l.answer = 1;
	if (how < 0x10 && *millis) {
		*millis -= 1;
		deadline = now + KVR_MS;
	} else if (how < 0x80) { /* it answers before the first sleep */
		l.answer_at = 1 + l.answer_at % 2;
		deadline = 0 - (uint64_t)how;
	} else if (how < 0xc0) {
		deadline = now + how;
	}
	rc = kvr_wait(w, look, &l, deadline);
	must(l.calls >= 1 && l.calls <= l.answer_at);
	if (l.calls == l.answer_at)
		must(rc == l.answer);
	else
		must((rc == -ETIMEDOUT && kvr_now() >= deadline) || rc == -EINTR);
	if (!deadline)
		must(l.calls == 1 && w->sleeps == sleeps);
	must(w->spin_ns <= SPIN_NS && !w->lost_wakes);
}

/* Arrivals one after another, at the second look: they teach the waiter to spin. */
static void burst_step(struct script *s, struct kvr_waiter *w)
{
	struct look l = { .s = s, .bell = w->bell, .answer = 1 };
	uint8_t n;

	for (n = script_u8(s) % 64; n; n--) {
		l.calls = 0;
		l.answer_at = 2 - script_u8(s) % 2;
		must(kvr_wait(w, look, &l, UINT64_MAX) == 1);
		must(l.calls == l.answer_at && w->spin_ns <= SPIN_NS);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct script s = { data, size };
	struct kvr_bell *bell = aligned_alloc(sizeof(*bell), sizeof(*bell));
	uint32_t millis = 2;
	struct kvr_waiter w;

	must(bell);
	memset(bell, script_u8(&s), sizeof(*bell));
	kvr_waiter_init(&w, bell);
	while (s.left) {
		switch (script_u8(&s) % 8) {
		case 0:
			burst_step(&s, &w);
			break;
		case 1:
		case 2:
		case 3:
			peer_step(&s, bell);
			break;
		default:
			wait_step(&s, &w, &millis);
			break;
		}
	}
	free(bell);
	return 0;
}
