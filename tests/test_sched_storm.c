/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue in front of a device, under load on the simulated one: random transfers under random
 * faults. The device is cut into places; each has one transfer at a time, so what a place must hold
 * is known after every write that ended with 0.
 */
#include "harness.h"

#include "fault.h"
#include "sched.h"

#define UNIT 4096u

static struct kvr_sched *sched;

#define PLACES 24u
#define PLACE (8 * UNIT)

struct place {
	struct kvr_xfer x;
	uint8_t *buf;
	uint8_t want[PLACE];
	int known[PLACE / UNIT]; /* want is what must be there */
	int busy;
};

static struct place places[PLACES];
static uint64_t random_state;

static uint64_t random_below(uint64_t n)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (random_state >> 33) % n;
}

static void begin(struct place *p, uint64_t off)
{
	uint64_t first = random_below(PLACE / UNIT);
	uint64_t n = 1 + random_below(PLACE / UNIT - first), i;

	p->x = (struct kvr_xfer){ .buf = p->buf,
				  .off = off + first * UNIT,
				  .len = n * UNIT,
				  .op = (uint32_t)random_below(2),
				  .user = p,
				  .class = (uint32_t)random_below(KVR_CLASSES) };
	if (p->x.op == KVR_IO_WRITE) {
		for (i = 0; i < n * UNIT / 8; i++)
			((uint64_t *)(void *)p->buf)[i] = random_below(UINT32_MAX);
		for (i = first; i < first + n; i++)
			p->known[i] = 0;
	} else {
		memset(p->buf, 0, PLACE);
	}
	p->busy = kvr_sched_submit(sched, &p->x) == 0;
	if (!p->busy) /* the queue of stores is full */
		ck_assert_uint_eq(p->x.class, KVR_CLASS_STORE);
}

static void check(struct place *p, uint64_t off, int honest)
{
	uint64_t first = (p->x.off - off) / UNIT, i;

	ck_assert_int_eq(p->busy, 1); /* each ends exactly once */
	p->busy = 0;
	ck_assert_int_le(p->x.result, 0);
	if (p->x.result)
		return;
	for (i = 0; i < p->x.len / UNIT; i++) {
		if (p->x.op == KVR_IO_WRITE) {
			memcpy(p->want + (first + i) * UNIT, p->buf + i * UNIT, UNIT);
			p->known[first + i] = 1;
		} else if (honest && p->known[first + i]) {
			ck_assert_mem_eq(p->want + (first + i) * UNIT, p->buf + i * UNIT, UNIT);
		}
	}
}

static void storm(const struct kvr_fault_rates *r, uint64_t seed, int honest)
{
	struct kvr_xfer *ended[16];
	struct kvr_io *io = NULL;
	unsigned begun = 0, done = 0, good = 0, bad = 0, i;
	int n, k;

	random_state = seed;
	memset(places, 0, sizeof places);
	for (i = 0; i < PLACES; i++)
		ck_assert_ptr_nonnull(places[i].buf = aligned_alloc(UNIT, PLACE));
	ck_assert_int_eq(kvr_fault_open(PLACES * PLACE, UNIT, 8, seed, r, &io), 0);
	ck_assert_int_eq(kvr_sched_create(io, 24 * UNIT, 16 * UNIT, &sched), 0);
	while (begun < 2000 || done < begun) {
		for (i = 0; i < PLACES && begun < 2000; i++) {
			if (places[i].busy || random_below(3))
				continue;
			begin(&places[i], i * PLACE);
			begun += (unsigned)places[i].busy;
		}
		n = kvr_sched_poll(sched, ended, 1 + (unsigned)random_below(16));
		ck_assert_int_ge(n, 0);
		for (k = 0; k < n; k++) {
			struct place *p = ended[k]->user;

			check(p, (uint64_t)(p - places) * PLACE, honest);
			good += !ended[k]->result;
			bad += ended[k]->result != 0;
		}
		done += (unsigned)n;
		ck_assert_uint_eq(kvr_sched_pending(sched), begun - done);
	}
	ck_assert_uint_gt(good, 500);
	ck_assert(r->eio ? bad > 20 : !bad);
	ck_assert_uint_eq(io->inflight, 0);
	kvr_sched_destroy(sched);
	kvr_fault_free(io);
	for (i = 0; i < PLACES; i++)
		free(places[i].buf);
}

START_TEST(test_storm_of_repairable_faults_fails_nothing)
{
	struct kvr_fault_rates r = { .short_io = 5000, .eagain = 1500, .late = 2000, .reorder = 1 };

	storm(&r, test_seed(), 1);
	r.reorder = 0;
	storm(&r, 2, 1);
}
END_TEST

START_TEST(test_storm_of_errors_never_gives_wrong_bytes)
{
	struct kvr_fault_rates r = { .short_io = 3000,
				     .eio = 500,
				     .eagain = 1000,
				     .late = 1000,
				     .reorder = 1,
				     .empty = 200,
				     .enospc = 200 };

	storm(&r, test_seed(), 1);
	storm(&r, 4, 1);
}
END_TEST

START_TEST(test_storm_of_all_faults_ends_each_once)
{
	struct kvr_fault_rates r = { .short_io = 2000,
				     .eio = 300,
				     .eagain = 1000,
				     .late = 1000,
				     .lost_write = 300,
				     .torn_write = 300,
				     .misdirected = 300,
				     .flip = 300,
				     .reorder = 1,
				     .empty = 100,
				     .enospc = 100 };

	storm(&r, test_seed(), 0);
	storm(&r, 6, 0);
}
END_TEST

static Suite *make(void)
{
	Suite *s = suite_create("sched_storm");
	TCase *t = tcase_create("storm");

	tcase_set_timeout(t, 30);
	tcase_add_test(t, test_storm_of_repairable_faults_fails_nothing);
	tcase_add_test(t, test_storm_of_errors_never_gives_wrong_bytes);
	tcase_add_test(t, test_storm_of_all_faults_ends_each_once);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make);
}
