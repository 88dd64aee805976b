/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random traffic through one ring. Every message follows from the plan and its number, so that the
 * reader knows each byte that must come: its length, its tag, and a payload that is noise or is
 * full of commit words of this lap, the next two and the last one.
 *
 * The two halves run as threads or as processes. They say what went wrong as a sentence; nothing
 * here uses Check's assertions.
 */
#ifndef TESTS_RING_TRAFFIC_H
#define TESTS_RING_TRAFFIC_H

#include "harness.h"

#include <sched.h>
#include <sys/mman.h>

#include "atomic.h"
#include "kvring/err.h"
#include "kvring/ring.h"
#include "kvring/wait.h"
#include "ring_helpers.h"
#include "ring_sides.h"

enum traffic_wait {
	TRAFFIC_SPIN,  /* polls: its peer never rings */
	TRAFFIC_WAIT,  /* kvr_wait() as it comes */
	TRAFFIC_SLEEP, /* kvr_wait() that never spins */
};

struct traffic_plan {
	uint64_t seed;
	uint64_t start;	   /* first position, in cells */
	uint64_t deadline; /* ns */
	uint32_t bytes;	   /* of cells */
	uint32_t count;	   /* messages */
	uint32_t first;	   /* number of the first message */
	uint32_t batch;	   /* at most so many messages a commit */
	uint32_t hold;	   /* the reader releases one time in so many */
	uint32_t hostile;  /* so many messages of 8 are full of commit words */
	uint32_t aborts;   /* 1: one batch in 4 is aborted */
	uint32_t rewinds;  /* 1: one peek in 16 is followed by a rewind */
	uint32_t pauses;   /* 0 none, 1 spins, 2 sleeps */
	uint32_t halts;	   /* a side stops itself at one publish in so many; 0 never */
	enum traffic_wait writer_waits, reader_waits;
};

#define TRAFFIC_PAGE 4096u

/* In memory that both sides map. Each page has one writer, but for the bells. */
struct traffic {
	struct kvr_bell writer_bell, reader_bell;
	struct traffic_plan plan;
	uint32_t prepared; /* the writer is ready */
	uint32_t over;	   /* a side failed: the other one need not wait */
	_Alignas(TRAFFIC_PAGE) struct side writer;
	_Alignas(TRAFFIC_PAGE) struct side reader;
	struct kvr_ring_cursor cursor;
	_Alignas(TRAFFIC_PAGE) uint8_t cells[]; /* the ring: its control line and its cells */
};

static inline size_t traffic_bytes(uint32_t bytes)
{
	return sizeof(struct traffic) + kvr_ring_memsize(bytes);
}

/* `t` is zeroed. The reader's cursor must stand at the start before the writer looks at it. */
static inline void traffic_set(struct traffic *t, const struct traffic_plan *plan)
{
	t->plan = *plan;
	t->cursor.pos = plan->start;
}

static inline uint64_t traffic_mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

struct traffic_msg {
	uint64_t x; /* what its bytes follow from */
	uint32_t n; /* the plan's, from 0 */
	uint32_t len;
	uint32_t tag;
	int hostile;
};

/* Message n; `junk` makes another one of it, which is aborted. */
static inline struct traffic_msg traffic_msg(const struct traffic_plan *p, uint32_t n,
					     uint64_t junk)
{
	uint64_t x = traffic_mix(p->seed ^ (n + 1) * 0x9e3779b97f4a7c15ull ^ junk << 32);
	uint32_t max = kvr_ring_max_payload(p->bytes), roll = (uint32_t)(x >> 8), len;

	switch (x % 8) {
	case 0:
		len = max;
		break;
	case 1: /* a cell's end, and a byte to both sides */
		len = roll % (max / 64 + 1) * 64 + 47 + roll / 8 % 3;
		break;
	case 2:
		len = roll % (max + 1);
		break;
	default:
		len = roll % 200;
	}
	if (len > max)
		len = max;
	return (struct traffic_msg){ .x = x,
				     .n = n,
				     .len = len,
				     .tag = (uint32_t)(x >> 32),
				     .hostile = junk || (x >> 3) % 8 < p->hostile };
}

/*
 * A commit word in cell `pos`: of this lap, the next two or the last one, or of a position that has
 * differs from that in one bit. Beside it a number that may be right.
 */
static inline void traffic_words(const struct traffic_plan *p, const struct traffic_msg *m,
				 uint64_t pos, uint64_t words[2])
{
	uint64_t x = traffic_mix(m->x ^ pos), at = pos + (x % 4 - 1) * (p->bytes / KVR_RING_CELL);
	uint32_t low;

	if (!(x >> 10 & 7))
		at ^= 1ull << (x >> 16 & 31);
	switch (x >> 2 & 3) {
	case 0:
		low = (uint32_t)(x >> 32) & 0xffffff; /* mostly an impossible length */
		break;
	case 1:
		low = 1u << 30 | ((uint32_t)(x >> 32) & 0xff);
		break;
	default:
		low = (uint32_t)(x >> 32) % 48;
	}
	words[0] = at << 32 | 1u << 31 | low;
	words[1] = (uint64_t)(p->first + m->n + (x >> 4 & 3)) << 32 | (x & 0xff);
}

/* The payload of a message that starts in cell `pos`. */
static inline void traffic_fill(const struct traffic_plan *p, const struct traffic_msg *m,
				uint64_t pos, uint8_t *to)
{
	uint64_t words[2];
	uint32_t i;

	for (i = 0; i + 8 <= m->len; i += 8) {
		words[0] = (m->x + i) * 0x9e3779b97f4a7c15ull;
		memcpy(to + i, words, 8);
	}
	for (; i < m->len; i++)
		to[i] = (uint8_t)(m->x + i);
	for (i = 48; m->hostile && i < m->len; i += 64) {
		traffic_words(p, m, ++pos, words);
		memcpy(to + i, words, m->len - i < 16 ? m->len - i : 16);
	}
}

/* Waits as the plan says. As kvr_wait(). */
static inline int traffic_await(struct kvr_waiter *w, enum traffic_wait how, int (*ready)(void *),
				void *arg, uint64_t deadline)
{
	int rc, i;

	if (how != TRAFFIC_SPIN)
		return kvr_wait(w, ready, arg, deadline);
	do {
		for (i = 0; i < 64; i++) {
			rc = ready(arg);
			if (rc)
				return rc;
			kvr_relax();
		}
		sched_yield();
	} while (test_now_ns() < deadline);
	return -ETIMEDOUT;
}

/* A side stands still now and then, so that the other one finds the ring empty, or full. */
static inline void traffic_pause(const struct traffic_plan *p, uint64_t *x)
{
	uint32_t roll = test_random(x);
	struct timespec t = { 0, 1000 * (long)(roll / 64 % 100) };

	if (!p->pauses || roll % 64)
		return;
	if (p->pauses == 2)
		nanosleep(&t, NULL);
	else
		for (roll = roll / 64 % 500; roll; roll--)
			kvr_relax();
}

/* Right before a ring. The parent lets it go on. */
static inline void traffic_halt(const struct traffic_plan *p, uint64_t *x)
{
	if (p->halts && !(test_random(x) % p->halts))
		raise(SIGSTOP);
}

static inline const char *traffic_error(struct traffic *t, struct side *me, const char *what,
					uint32_t n, int rc)
{
	kvr_store_relaxed32(&t->over, 1);
	snprintf(me->why, sizeof me->why, "%s, message %u: %d (%s)", what, n, rc,
		 rc == -EBADMSG ? kvr_explain() : strerror(-rc));
	return me->why;
}

/* --- the writer ------------------------------------------------------------------------------- */

struct traffic_writer {
	struct traffic *t;
	struct side *me;
	struct kvr_ring_writer w;
	struct kvr_waiter waiter;
	uint64_t x;
	struct traffic_msg m; /* to be reserved, or put, next */
	void *payload;	      /* NULL: it is there already */
	uint8_t *copy;	      /* as much as the longest message */
};

/* s->m's payload, for the place that the ring will give to it. */
static inline void traffic_copy(struct traffic_writer *s)
{
	uint64_t cells = (KVR_RING_HEADER + s->m.len + KVR_RING_CELL - 1) / KVR_RING_CELL;
	uint64_t pos = s->w.pos, to_end = s->w.capacity - pos % s->w.capacity;

	if (cells > to_end)
		pos += to_end;
	traffic_fill(&s->t->plan, &s->m, pos, s->copy);
	s->payload = NULL;
}

static inline int traffic_put(struct traffic_writer *s)
{
	traffic_copy(s);
	return kvr_ring_put(&s->w, s->m.tag, s->copy, s->m.len);
}

/* Makes room for s->m, every second one with its payload. */
static inline int traffic_room(void *arg)
{
	struct traffic_writer *s = arg;
	int err = s->m.n % 2 ? traffic_put(s)
			     : kvr_ring_reserve(&s->w, s->m.tag, s->m.len, &s->payload);

	if (err == -EAGAIN)
		return kvr_load_relaxed32(&s->t->over) ? -ECANCELED : 0;
	return err ? err : 1;
}

static inline void traffic_write_payload(struct traffic_writer *s)
{
	uint64_t cells = (KVR_RING_HEADER + s->m.len + KVR_RING_CELL - 1) / KVR_RING_CELL;

	if (s->payload)
		traffic_fill(&s->t->plan, &s->m, s->w.pos - cells, s->payload);
}

static inline void traffic_ring(struct traffic_writer *s, uint64_t from)
{
	if (s->t->plan.reader_waits == TRAFFIC_SPIN)
		return;
	traffic_halt(&s->t->plan, &s->x);
	side_ring(s->me, &s->t->reader_bell, from, SIDE_GRACE_NS);
}

static inline void traffic_publish(struct traffic_writer *s)
{
	uint64_t from = test_now_ns();

	kvr_ring_commit(&s->w);
	traffic_ring(s, from);
}

/* One message in one call. */
static inline int traffic_write_one(struct traffic_writer *s, uint32_t n)
{
	uint64_t from = test_now_ns();
	int err;

	s->m = traffic_msg(&s->t->plan, n, 0);
	traffic_copy(s);
	err = kvr_ring_write(&s->w, s->m.tag, s->copy, s->m.len);
	if (!err)
		traffic_ring(s, from);
	return err;
}

/* Reserves a batch of messages from number n on, as far as there is room. How many, or an error. */
static inline int traffic_batch(struct traffic_writer *s, uint32_t n, uint64_t junk)
{
	const struct traffic_plan *p = &s->t->plan;
	int rc, got = 0, want = 1 + (int)(test_random(&s->x) % p->batch);

	for (; got < want && n < p->count; got++, n++) {
		s->m = traffic_msg(p, n, junk);
		rc = traffic_room(s);
		if (rc < 0)
			return rc;
		if (!rc)
			break;
		traffic_write_payload(s);
	}
	return got;
}

static inline int traffic_write_step(struct traffic_writer *s, uint32_t *n)
{
	const struct traffic_plan *p = &s->t->plan;
	uint64_t junk = p->aborts && !(test_random(&s->x) % 4) ? 1 + test_random(&s->x) : 0;
	int got, rc;

	if (!junk && !(test_random(&s->x) % 4)) {
		rc = traffic_write_one(s, *n);
		if (rc != -EAGAIN) {
			*n += !rc;
			return rc;
		}
	}
	got = traffic_batch(s, *n, junk);
	if (got < 0)
		return got;
	if (junk) {
		kvr_ring_abort(&s->w);
		return 0;
	}
	if (!got) { /* no room for a single one */
		rc = traffic_await(&s->waiter, p->writer_waits, traffic_room, s, p->deadline);
		if (rc < 0)
			return rc;
		traffic_write_payload(s);
		got = 1;
	}
	*n += (uint32_t)got;
	traffic_publish(s);
	return 0;
}

/* The whole half. NULL, or what went wrong. */
static inline const char *traffic_write(struct traffic *t, struct kvr_waiter *ret_waiter)
{
	struct traffic_writer s = { .t = t, .me = &t->writer, .x = t->plan.seed * 2 + 1 };
	const struct traffic_plan *p = &t->plan;
	uint32_t n = 0;
	int err = kvr_ring_writer_init(&s.w, t->cells, p->bytes, &t->cursor, p->start);

	if (err)
		return traffic_error(t, s.me, "kvr_ring_writer_init", n, err);
	s.copy = malloc(kvr_ring_max_payload(p->bytes));
	if (!s.copy)
		return traffic_error(t, s.me, "malloc", n, -ENOMEM);
	s.w.extra = s.w.published_extra = p->start - p->first; /* what the numbers follow from */
	kvr_waiter_init(&s.waiter, &t->writer_bell);
	if (p->writer_waits == TRAFFIC_SLEEP)
		s.waiter.spin_cap_ns = 0;
	kvr_store_release32(&t->prepared, 1);
	while (!err && n < p->count) {
		err = traffic_write_step(&s, &n);
		traffic_pause(p, &s.x);
	}
	s.me->messages = n;
	free(s.copy);
	*ret_waiter = s.waiter;
	return err ? traffic_error(t, s.me, "the writer", n, err) : NULL;
}

/* --- the reader ------------------------------------------------------------------------------- */

struct traffic_reader {
	struct traffic *t;
	struct side *me;
	struct kvr_ring_reader r;
	struct kvr_waiter waiter;
	struct kvr_ring_msg m; /* peeked last */
	uint64_t x;
	uint64_t shown;	   /* the cursor for which the writer's bell was rung last */
	uint32_t peeked;   /* messages since the start */
	uint32_t released; /* messages since the start */
	uint8_t *expect;
};

/* The cursor may have moved since `from`: then a writer may have room. */
static inline void traffic_tell(struct traffic_reader *s, uint64_t from)
{
	if (s->shown == s->r.shown)
		return;
	s->shown = s->r.shown;
	if (s->t->plan.writer_waits == TRAFFIC_SPIN)
		return;
	traffic_halt(&s->t->plan, &s->x);
	side_ring(s->me, &s->t->writer_bell, from, SIDE_GRACE_NS);
}

static inline uint64_t traffic_clock(const struct traffic_reader *s)
{
	return s->t->plan.writer_waits == TRAFFIC_SPIN ? 0 : test_now_ns();
}

/* A peek that finds nothing shows the cursor. */
static inline int traffic_got(void *arg)
{
	struct traffic_reader *s = arg;
	uint64_t from = traffic_clock(s);
	int rc = kvr_ring_peek(&s->r, &s->m);

	if (rc)
		return rc;
	traffic_tell(s, from);
	return kvr_load_relaxed32(&s->t->over) ? -ECANCELED : 0;
}

static inline void traffic_release(struct traffic_reader *s)
{
	uint64_t from = traffic_clock(s);

	kvr_ring_release(&s->r);
	s->released = s->peeked;
	traffic_tell(s, from);
}

static inline void traffic_rewind(struct traffic_reader *s)
{
	kvr_ring_rewind(&s->r);
	s->peeked = s->released;
}

/* Is the peeked message the next one, in every byte? */
static inline const char *traffic_check(struct traffic_reader *s)
{
	const struct traffic_plan *p = &s->t->plan;
	struct traffic_msg m = traffic_msg(p, s->peeked, 0);
	const uint8_t *data = s->m.data, *cells = s->t->cells + KVR_RING_CTL;
	uint64_t width = (KVR_RING_HEADER + m.len + KVR_RING_CELL - 1) / KVR_RING_CELL;
	const char *what = NULL;

	if (s->peeked == p->count)
		what = "a message that nobody wrote";
	else if (s->m.seq != p->first + s->peeked)
		what = "another number";
	else if (s->m.tag != m.tag)
		what = "another tag";
	else if (s->m.len != m.len)
		what = "another length";
	else if (data < cells || data + m.len > cells + p->bytes)
		what = "a message outside the ring";
	if (!what) {
		traffic_fill(p, &m, s->r.pos - width, s->expect);
		if (m.len && memcmp(data, s->expect, m.len))
			what = "other bytes";
	}
	if (!what)
		return NULL;
	snprintf(s->me->why, sizeof s->me->why,
		 "%s: message %u, cell %#llx, len %u, tag %#x, seq %u", what, s->peeked,
		 (unsigned long long)(s->r.pos - width), s->m.len, s->m.tag, s->m.seq);
	return s->me->why;
}

static inline const char *traffic_read_step(struct traffic_reader *s)
{
	const struct traffic_plan *p = &s->t->plan;
	const char *why;
	int rc = traffic_got(s);

	if (!rc && s->peeked != s->released) { /* the writer may need that room */
		if (p->rewinds && !(test_random(&s->x) % 4))
			traffic_rewind(s);
		else
			traffic_release(s);
		return NULL;
	}
	if (!rc)
		rc = traffic_await(&s->waiter, p->reader_waits, traffic_got, s, p->deadline);
	if (rc < 0)
		return traffic_error(s->t, s->me, "the reader", s->peeked, rc);
	why = traffic_check(s);
	if (why)
		return why;
	s->peeked++;
	s->me->bytes += s->m.len;
	if (p->rewinds && !(test_random(&s->x) % 16))
		traffic_rewind(s);
	else if (!(test_random(&s->x) % p->hold))
		traffic_release(s);
	return NULL;
}

static inline const char *traffic_read(struct traffic *t, struct kvr_waiter *ret_waiter)
{
	struct traffic_reader s = { .t = t, .me = &t->reader, .x = t->plan.seed * 2 + 3 };
	const struct traffic_plan *p = &t->plan;
	const char *why = NULL;
	int err;

	while (!kvr_load_acquire32(&t->prepared) && test_now_ns() < p->deadline)
		sched_yield();
	err = kvr_ring_reader_init(&s.r, t->cells, p->bytes, &t->cursor, p->start);
	s.expect = malloc(kvr_ring_max_payload(p->bytes));
	if (err || !s.expect)
		return traffic_error(t, s.me, "kvr_ring_reader_init", 0, err);
	s.shown = p->start;
	s.r.seq = s.r.released_seq = p->first;
	kvr_waiter_init(&s.waiter, &t->reader_bell);
	if (p->reader_waits == TRAFFIC_SLEEP)
		s.waiter.spin_cap_ns = 0;
	while (!why && s.released < p->count) {
		why = traffic_read_step(&s);
		if (s.peeked == p->count && !why)
			traffic_release(&s);
		traffic_pause(p, &s.x);
	}
	/* And nothing behind it, whatever the payloads look like. */
	for (err = 0; err < 3 && !why; err++)
		if (traffic_got(&s))
			why = traffic_check(&s);
	free(s.expect);
	s.me->messages = s.released;
	*ret_waiter = s.waiter;
	return why;
}

#endif
