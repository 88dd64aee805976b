/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leaders and ranks of channels, for the tests of channels and of those who look into them. Ranks
 * are children that report through memory shared with the test and die with it; where nothing
 * depends on processes, leader and rank are two handles of one process, which do not know of each
 * other.
 */
#ifndef TESTS_SIDES_H
#define TESTS_SIDES_H

#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "atomic.h"
#include "channel_priv.h"
#include "harness.h"
#include "kvring/err.h"
#include "shm.h"

#define RANKS 3u
#define RING 16384u /* bytes */

/* What one rank says about its run. */
struct report {
	uint64_t seen; /* messages */
	uint64_t sum;  /* over everything in them, in order */
	uint64_t last;
	int err;
	char why[1536];
};

static struct report *reports;
static volatile uint32_t *go; /* a step of the test, for children that wait for it */

static inline void setup(void)
{
	reports = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(reports, MAP_FAILED);
	go = (uint32_t *)(void *)((char *)reports + (1 << 20) - 4096);
}

static inline void teardown(void)
{
	munmap(reports, 1 << 20);
}

static inline void await_go(uint32_t step)
{
	uint64_t deadline = test_deadline_ms(10000);

	while (*go < step && test_now_ns() < deadline)
		test_sleep_ms(1);
}

struct side {
	struct kvr_group *g;
	struct kvr_channels *c;
};

static inline int lead(const char *name, uint32_t ranks, struct side *s)
{
	struct kvr_group_opts o = { .size = sizeof o, .ranks = ranks, .ring_bytes = RING };
	int err = kvr_group_create(name, &o, &s->g);

	return err ? err : kvr_channels_open(s->g, &s->c);
}

/* As lead, and every rank has attached: a leader that ends sooner leaves late ranks nothing. */
static inline int lead_all(const char *name, uint32_t ranks, struct side *s)
{
	uint64_t deadline = test_deadline_ms(10000);
	int err = lead(name, ranks, s);

	for (uint32_t r = 0; !err && r < ranks; r++)
		while (!kvr_load_acquire32(&kvr_group_rank_page(s->g, r)->proc.state)) {
			if (test_now_ns() > deadline)
				return -ETIMEDOUT;
			test_sleep_ms(1);
		}
	return err;
}

static inline int join(const char *name, uint32_t rank, struct side *s)
{
	int err = kvr_group_attach(name, rank, NULL, test_deadline_ms(10000), &s->g);

	return err ? err : kvr_channels_open(s->g, &s->c);
}

static inline void leave(struct side *s)
{
	kvr_channels_close(s->c);
	kvr_group_close(s->g);
}

static inline void must(int err)
{
	if (err)
		ck_abort_msg("%s: %s", kvr_strerror(err), kvr_explain());
}

/* A child that attaches as `rank` and runs body; exit status 0 unless it says otherwise. */
static inline pid_t spawn(const char *name, uint32_t rank,
			  int (*body)(struct side *, struct report *))
{
	pid_t pid = fork();
	struct side s;

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (join(name, rank, &s)) {
		fprintf(stderr, "rank %u: %s\n", rank, kvr_explain());
		_exit(99);
	}
	reports[rank].err = body(&s, &reports[rank]);
	snprintf(reports[rank].why, sizeof reports[rank].why, "%s", kvr_explain());
	leave(&s);
	_exit(0);
}

static inline void reap(const pid_t *pids, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		ck_assert_int_eq(test_reap(pids[i], 10000), 0);
}

static inline void tell(struct report *r, const struct kvr_message *m)
{
	const uint8_t *bytes = m->data;
	uint64_t sum = r->sum * 31 + m->tag + m->number * 7 + m->request.id;

	for (uint32_t i = 0; i < m->len; i++)
		sum = sum * 31 + bytes[i];
	r->sum = sum;
	r->last = m->number;
	r->seen++;
}

/* Takes until something ends it. */
static inline int take_all(struct side *s, struct report *r)
{
	struct kvr_message m;
	int err;

	while (!(err = kvr_channels_take(s->c, KVR_CH_USER0, test_deadline_ms(10000), &m)))
		tell(r, &m);
	return err;
}

static inline int publish(struct side *s, uint64_t set, uint32_t tag, uint64_t id, const void *data,
			  uint32_t len)
{
	struct kvr_request request = { .id = id };

	return kvr_channels_publish(s->c, KVR_CH_USER0, set, tag, &request, data, len,
				    test_deadline_ms(10000));
}

static inline int take(struct side *s, struct kvr_message *m)
{
	return kvr_channels_take(s->c, KVR_CH_USER0, 0, m);
}

static inline int take_for(struct side *s, uint32_t tag, uint64_t id, struct kvr_message *m)
{
	struct kvr_request request = { .id = id };

	return kvr_channels_take_for(s->c, KVR_CH_USER0, tag, &request, 0, m);
}

/* The sentence of the last failure has all of these words (NULL ends them). */
static inline void explained(const char *text, ...) __attribute__((sentinel));
static inline void explained(const char *text, ...)
{
	const char *word;
	va_list ap;

	va_start(ap, text);
	while ((word = va_arg(ap, const char *)))
		ck_assert_msg(strstr(text, word), "\"%s\" is not in: %s", word, text);
	va_end(ap);
}

/* The segment of a dead group stays for whoever looks into it. */
static inline void remove_group(const char *name)
{
	must(kvr_group_remove(name, NULL));
}

#endif
