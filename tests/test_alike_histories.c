/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two logs of calls: where they differ first, which the test knows since it made the histories; and
 * logs that nobody wrote.
 */
#include "alike_helpers.h"

#define NOWHERE UINT64_MAX

/* --- two logs --------------------------------------------------------------------------------- */

static int compare(const struct world *w, struct kvr_alike_difference *ret)
{
	struct kvr_alike_difference back;
	const void *mine = log_of(&w->rank, KIND), *its = log_of(&w->lead, KIND);
	int found = kvr_alike_compare(mine, its, WINDOW, ret);

	ck_assert_int_eq(kvr_alike_compare(its, mine, WINDOW, &back), found);
	if (found) {
		ck_assert_uint_eq(back.index, ret->index);
		ck_assert_int_eq(back.exact, ret->exact);
		ck_assert_mem_eq(&back.its, &ret->mine, sizeof(back.its));
		ck_assert_mem_eq(&back.mine, &ret->its, sizeof(back.mine));
	}
	return found;
}

/* What two histories show that have m and i calls and differ from call `first` on. */
static void assert_compare(const struct world *w, uint64_t m, uint64_t i, uint64_t first)
{
	uint64_t newest = kvr_max(m, i), both = kvr_min(m, i);
	uint64_t oldest = newest >= WINDOW ? newest - WINDOW + 1 : 0;
	struct kvr_alike_difference d;

	if (both <= oldest || first >= both) {
		ck_assert_int_eq(compare(w, &d), 0);
		return;
	}
	ck_assert_int_eq(compare(w, &d), 1);
	ck_assert_uint_eq(d.index, kvr_max(first, oldest));
	ck_assert_int_eq(d.exact, !oldest || first > oldest);
	ck_assert_uint_eq(d.mine.index, d.index);
	ck_assert_uint_eq(d.its.index, d.index);
	ck_assert_uint_ne(d.mine.chain, d.its.chain);
}

START_TEST(test_compare_finds_the_first_difference)
{
	struct world *w = world_new();
	uint64_t m, i, first, n;

	for (m = 0; m < 2 * WINDOW + 3; m++)
		for (i = 0; i < 2 * WINDOW + 3; i++)
			for (first = 0; first <= kvr_min(m, i); first++) {
				world_again(w);
				for (n = 0; n < i; n++)
					make(&w->lead, KIND, call_make(n));
				for (n = 0; n < m; n++)
					make(&w->rank, KIND, call_make(n == first ? 1000 : n));
				assert_compare(w, m, i, first);
			}
}
END_TEST

/* Between the last call that was equal and the first that was not lies one that nobody can read. */
START_TEST(test_what_cannot_be_read_is_not_exact)
{
	struct world *w = world_new();
	struct kvr_alike_difference d;
	uint64_t n;

	make_all(&w->lead, 0, 10);
	for (n = 0; n < 10; n++)
		make(&w->rank, KIND, call_make(n < 6 ? n : n + 1000));
	ck_assert_int_eq(compare(w, &d), 1);
	ck_assert_uint_eq(d.index, 6);
	ck_assert_int_eq(d.exact, 1);
	log_of(&w->lead, KIND)->call[5].index = 77;
	ck_assert_int_eq(compare(w, &d), 1);
	ck_assert_uint_eq(d.index, 6);
	ck_assert_int_eq(d.exact, 0);
	log_of(&w->lead, KIND)->call[9].index = 77; /* the newest: nothing can be said */
	ck_assert_int_eq(compare(w, &d), 0);
}
END_TEST

/* --- histories at random ---------------------------------------------------------------------- */

#define MOST (6 * WINDOW)

static uint32_t draw(uint64_t *x, uint32_t below)
{
	*x = *x * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*x >> 33) % below;
}

/* Out of few, so that equal ones follow each other. */
static struct call call_draw(uint64_t *x)
{
	return (struct call){
		.req = { .id = draw(x, 3), .space = draw(x, 2), .attempt = draw(x, 2) },
		.keys = draw(x, 2),
		.has_last = draw(x, 2),
		.last = { { (uint8_t)draw(x, 2) } }
	};
}

static void edit(uint64_t *x, struct call *h, uint32_t *n)
{
	uint32_t at = draw(x, *n + 1), what = draw(x, 3);

	if (what == 0 && *n < MOST) {
		memmove(h + at + 1, h + at, (*n - at) * sizeof(*h));
		h[at] = call_draw(x);
		(*n)++;
	} else if (at < *n && what == 1) {
		memmove(h + at, h + at + 1, (*n - at - 1) * sizeof(*h));
		(*n)--;
	} else if (at < *n) {
		h[at] = call_draw(x);
	}
}

struct histories {
	struct call lead[MOST], rank[MOST];
	uint32_t leads, ranks;
	uint64_t first; /* difference, or NOWHERE */
};

static void histories_draw(uint64_t *x, struct histories *h)
{
	uint32_t edits = draw(x, 3), i;

	h->leads = draw(x, MOST);
	for (i = 0; i < h->leads; i++)
		h->lead[i] = call_draw(x);
	memcpy(h->rank, h->lead, sizeof(h->rank));
	h->ranks = draw(x, 2) ? h->leads : draw(x, h->leads + 1);
	while (edits--)
		edit(x, h->rank, &h->ranks);
	h->first = NOWHERE;
	for (i = 0; i < kvr_min(h->leads, h->ranks) && h->first == NOWHERE; i++)
		if (!call_equal(&h->lead[i], &h->rank[i]))
			h->first = i;
}

/* One call, with none, one or two tries in vain before. */
static void make_in_tries(uint64_t *x, struct kvr_alike_logs *a, struct call c)
{
	uint32_t tries = draw(x, 3);

	while (tries--)
		ask(a, KIND, c);
	make(a, KIND, c);
}

/* Both make their calls, at most `apart` from each other while both have some left. A rank that has
 * none goes on looking. */
static void histories_play(uint64_t *x, struct world *w, const struct histories *h, uint32_t apart)
{
	uint32_t l = 0, r = 0, run;
	struct kvr_drift d;
	int lead;

	while (l < h->leads || r < h->ranks) {
		lead = r == h->ranks || (l < h->leads && draw(x, 2));
		for (run = draw(x, apart) + 1; run; run--)
			if (lead && l < h->leads && (l < r + apart || r == h->ranks))
				make_in_tries(x, &w->lead, h->lead[l++]);
			else if (!lead && r < h->ranks && (r < l + apart || l == h->leads))
				make_in_tries(x, &w->rank, h->rank[r++]);
		if (r == h->ranks)
			kvr_alike_check(&w->rank, &d);
	}
}

START_TEST(test_histories_at_random)
{
	static struct histories h;
	struct world *w = world_new();
	uint64_t x = test_seed(), drifted = 0, round;

	for (round = 0; round < 4000; round++) {
		world_again(w);
		histories_draw(&x, &h);
		histories_play(&x, w, &h, WINDOW / 2 - 1);
		ck_assert_uint_eq(kvr_alike_count(log_of(&w->lead, KIND)), h.leads);
		ck_assert_uint_eq(kvr_alike_count(log_of(&w->rank, KIND)), h.ranks);
		assert_compare(w, h.ranks, h.leads, h.first);
		if (h.first == NOWHERE)
			assert_no_drift(w);
		else
			assert_drift(w, KIND, h.first, 1, h.rank[h.first], h.lead[h.first]);
		drifted += h.first != NOWHERE;
	}
	printf("%llu of %llu drifted\n", (unsigned long long)drifted, (unsigned long long)round);
	ck_assert_uint_gt(drifted, round / 10);
	ck_assert_uint_lt(drifted, round);
}
END_TEST

/* As far apart as it comes. What is found is there; what is said to be exact, is. */
START_TEST(test_histories_far_apart)
{
	static struct histories h;
	struct world *w = world_new();
	uint64_t x = test_seed(), exact = 0, inexact = 0, round;
	struct kvr_drift d;

	for (round = 0; round < 4000; round++) {
		world_again(w);
		histories_draw(&x, &h);
		histories_play(&x, w, &h, 3 * WINDOW);
		assert_compare(w, h.ranks, h.leads, h.first);
		if (!kvr_alike_check(&w->rank, &d)) {
			ck_assert(h.first == NOWHERE ||
				  kvr_max(h.leads, h.ranks) >=
					  kvr_min(h.leads, h.ranks) - 1 + WINDOW);
			continue;
		}
		ck_assert_uint_ge(d.index, h.first);
		if (d.exact)
			ck_assert_uint_eq(d.index, h.first);
		ck_assert_uint_eq(d.request, h.rank[d.index].req.id);
		ck_assert_uint_eq(d.its_request, h.lead[d.index].req.id);
		exact += d.exact;
		inexact += !d.exact;
	}
	printf("%llu exact, %llu not\n", (unsigned long long)exact, (unsigned long long)inexact);
	ck_assert_uint_gt(exact, 0);
	ck_assert_uint_gt(inexact, 0);
}
END_TEST
/* --- bytes that nobody wrote ------------------------------------------------------------------ */

static void fill_random(uint64_t *x, void *log)
{
	uint8_t *bytes = log;
	uint32_t i;

	for (i = 0; i < LOG_BYTES; i++) {
		*x = *x * 6364136223846793005ull + 1442695040888963407ull;
		bytes[i] = (uint8_t)(*x >> 56);
	}
}

/* Random bytes, of which some are as they should be. */
static void fill_hostile(uint64_t *x, void *mem)
{
	struct kvr_alike_log *log = mem;
	uint64_t base, i;

	fill_random(x, log);
	base = log->call[0].keys % 8 ? log->call[0].keys % 40 : UINT64_MAX - 5;
	if (log->pad[0] & 1)
		log->count = base;
	for (i = 0; i < WINDOW && log->pad[0] & 2; i++)
		log->call[(base - i - 1) % WINDOW].index = base - i - 1;
	for (i = 0; i < WINDOW && log->pad[0] & 4; i++)
		log->call[i].chain %= 4;
}

START_TEST(test_hostile_logs_are_harmless)
{
	uint64_t x = test_seed(), found = 0, index, round;
	void *mine = malloc(LOG_BYTES), *its = malloc(LOG_BYTES); /* exact: a sanitizer sees */
	struct kvr_alike_difference d;
	struct kvr_alike_call got;

	for (round = 0; round < 20000; round++) {
		fill_hostile(&x, mine);
		fill_hostile(&x, its);
		index = round & 1 ? round % 50 : x;
		if (kvr_alike_read(its, WINDOW, index, &got)) {
			ck_assert_uint_eq(got.index, index);
			ck_assert_uint_ne(got.chain, 0);
		}
		if (kvr_alike_compare(mine, its, WINDOW, &d)) {
			found++;
			ck_assert_uint_ne(d.mine.chain, d.its.chain);
			ck_assert_uint_eq(d.mine.index, d.index);
			ck_assert_uint_eq(d.its.index, d.index);
		}
		ck_assert_int_eq(kvr_alike_compare(mine, its, 0, &d), 0);
		ck_assert_int_eq(kvr_alike_compare(mine, its, 12, &d), 0);
		kvr_alike_copied(its, 12, x);
		kvr_alike_copied(its, WINDOW, x);
	}
	printf("%llu differences\n", (unsigned long long)found);
	ck_assert_uint_gt(found, 0);
	free(mine);
	free(its);
}
END_TEST

/* A rank whose leader's log is overwritten, again and again, goes on and keeps one drift at most.
 */
START_TEST(test_a_rank_beside_a_hostile_leader)
{
	struct world *w = world_new();
	struct kvr_drift d, first;
	uint64_t x = test_seed(), round, n, drifted = 0;

	for (round = 0; round < 500; round++) {
		world_again(w);
		first.kind = 0;
		for (n = 0; n < 40; n++) {
			fill_hostile(&x, log_of(&w->lead, KIND));
			make(&w->rank, KIND, call_make(n));
			if (!kvr_alike_check(&w->rank, &d))
				continue;
			if (!first.kind)
				first = d;
			ck_assert_mem_eq(&d, &first, sizeof(d));
			ck_assert_uint_le(d.index, n);
			ck_assert_uint_eq(d.request, call_make(d.index).req.id);
		}
		drifted += first.kind != 0;
		ck_assert_uint_eq(kvr_alike_count(log_of(&w->rank, KIND)), 40);
	}
	ck_assert_uint_gt(drifted, 0);
}
END_TEST

START_TEST(test_hostile_evidence_is_bounded)
{
	struct kvr_drift page = { .kind = KVR_ALIKES + 1 }, d = { .index = 5 };

	ck_assert_int_eq(kvr_alike_drift(&page, &d), 0);
	page.kind = UINT32_MAX;
	ck_assert_int_eq(kvr_alike_drift(&page, &d), 0);
	ck_assert_uint_eq(d.index, 5);
	page.kind = KVR_ALIKES;
	page.exact = 77;
	ck_assert_int_eq(kvr_alike_drift(&page, &d), 1);
	ck_assert_uint_eq(d.exact, 0);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("alike_histories");
	TCase *t = tcase_create("alike_histories");

	tcase_add_test(t, test_compare_finds_the_first_difference);
	tcase_add_test(t, test_what_cannot_be_read_is_not_exact);
	tcase_add_test(t, test_histories_at_random);
	tcase_add_test(t, test_histories_far_apart);
	tcase_add_test(t, test_hostile_logs_are_harmless);
	tcase_add_test(t, test_a_rank_beside_a_hostile_leader);
	tcase_add_test(t, test_hostile_evidence_is_bounded);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	if (KVR_TEST_TSAN)
		return test_no_threads_of_its_own();
	return kvr_test_main(make_suite);
}
