/* SPDX-License-Identifier: Apache-2.0 */
/* Two histories of calls: where they differ first, which the test knows since it made them. */
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
static Suite *make_suite(void)
{
	Suite *s = suite_create("alike_histories");
	TCase *t = tcase_create("alike_histories");

	tcase_add_test(t, test_compare_finds_the_first_difference);
	tcase_add_test(t, test_histories_at_random);
	tcase_add_test(t, test_histories_far_apart);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
