/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv-replay with loads by layers, prefetches, aborts and resets, alone and together. Without aborts
 * the hits are exactly those of the trace (replay_trace.h), whatever else is asked for.
 * The program is that of the same build: test_tool().
 */
#include "replay_trace.h"

static struct tool tool;

static void setup(void)
{
	tool_setup(&tool);
}

static void teardown(void)
{
	tool_teardown(&tool);
}

#define SMALL                                                                                      \
	"--ranks", "3", "--block-bytes", "48KiB", "--json", "--store", tool.dir, "--host", "2MiB", \
		"--nvme", "96MiB"

static void assert_hits(uint64_t hits)
{
	tool_assert_right(&tool);
	tool_assert_number(&tool, "hit_blocks", hits);
	tool_assert_number(&tool, "possible_hits", hits);
	tool_assert_number(&tool, "blocks_loaded", hits);
	tool_assert_number(&tool, "operations_failed", 0);
	tool_assert_number(&tool, "bad_blocks", 0);
	if (strstr(tool.out, "\"replicated\": false")) /* else: ranks that nobody waits for */
		tool_assert_number(&tool, "late", 0);
	tool_assert_number(&tool, "duplicate", 0);
	tool_assert_number(&tool, "foreign", 0);
}

/* What was prefetched is counted once. */
static void assert_prefetches(void)
{
	ck_assert_uint_gt(tool_number(&tool, "prefetches"), 0);
	ck_assert_uint_eq(tool_number(&tool, "prefetched_used") +
				  tool_number(&tool, "prefetched_wasted"),
			  tool_number(&tool, "prefetched_blocks"));
}

/* --- loads by layers -------------------------------------------------------------------------- */

/* Spans that lie within a layer, that are layers, and that go over all of them. */
static const struct shape {
	const char *ranks, *bytes, *groups, *how;
} shapes[] = {
	{ "3", "49152", "4", "--verbose" },    { "3", "12357", "3", "--verbose" },
	{ "3", "50000", "5", "--replicated" }, { "1", "40000", "8", "--verbose" },
	{ "2", "65536", "1", "--verbose" },
};

START_TEST(test_layers_hit_exactly_what_the_trace_has)
{
	const struct shape *s = &shapes[_i];
	uint64_t hits, references;
	char *trace = make_trace(&tool, 80, 24, 0, &hits, &references);

	TOOL_RUN(&tool, 0, "--trace", trace, "--ranks", s->ranks, "--block-bytes", s->bytes,
		 "--layer-groups", s->groups, s->how, "--json", "--store", tool.dir, "--host",
		 "2MiB", "--nvme", "96MiB", "--layers");
	assert_hits(hits);
	tool_says(tool.out, "\"layers\": true");
	ck_assert_uint_gt(tool_number(&tool, "hit_blocks_nvme"), 0);
}
END_TEST

START_TEST(test_layers_of_a_request_larger_than_the_pool)
{
	uint64_t hits, references;
	char *trace = make_trace(&tool, 40, 90, 0, &hits, &references);

	TOOL_RUN(&tool, 0, "--trace", trace, "--ranks", "3", "--block-bytes", "48KiB", "--json",
		 "--store", tool.dir, "--host", "228KiB", "--nvme", "96MiB", "--layers",
		 "--prefetch", "2");
	assert_hits(hits);
	ck_assert_uint_le(tool_number(&tool, "pool_slots"), 4);
}
END_TEST

/* A bad block fails the load for all; what is before it is a hit all the same. */
START_TEST(test_rotten_store_is_a_miss_by_layers)
{
	uint64_t hits, references, at, whole;
	char *trace = make_trace(&tool, 60, 24, 0, &hits, &references);
	struct stat st;
	char byte;
	int fd;

	TOOL_RUN(&tool, 0, "--trace", trace, SMALL);
	fd = open(tool_path(&tool, "kvring.store"), O_RDWR | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fstat(fd, &st), 0);
	for (at = 4u << 20; at < (uint64_t)st.st_size - 65536; at += 1000000) {
		ck_assert_int_eq(pread(fd, &byte, 1, (off_t)at), 1);
		byte ^= 1;
		ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
	}
	close(fd);
	TOOL_RUN(&tool, 0, "--trace", trace, SMALL, "--layers");
	tool_assert_right(&tool);
	ck_assert_uint_gt(tool_number(&tool, "bad_blocks"), 0);
	ck_assert_uint_gt(tool_number(&tool, "blocks_stored"), 0);
	whole = tool_number(&tool, "hit_blocks");
	ck_assert_uint_gt(whole, hits);
	ck_assert_uint_lt(whole, references);
	/* what was right behind a bad block is neither a hit, nor stored again */
	ck_assert_uint_le(whole + tool_number(&tool, "blocks_stored"), references);
}
END_TEST

/* --- prefetches ------------------------------------------------------------------------------- */

START_TEST(test_prefetch_changes_no_hit)
{
	const char *last = _i ? "--layers" : "--verbose";
	uint64_t hits, references;
	char *trace = make_trace(&tool, 120, 24, 0, &hits, &references);

	TOOL_RUN(&tool, 0, "--trace", trace, SMALL, "--prefetch", "4", last);
	assert_hits(hits);
	assert_prefetches();
	tool_assert_number(&tool, "prefetch", 4);
}
END_TEST

/* All is on NVMe, and nothing has to go: whatever comes before its request is used. */
START_TEST(test_all_that_is_prefetched_is_used)
{
	uint64_t hits, references, blocks;
	char *trace = make_trace(&tool, 60, 24, 0, &hits, &references);

	TOOL_RUN(&tool, 0, "--trace", trace, SMALL);
	TOOL_RUN(&tool, 0, "--trace", trace, "--ranks", "3", "--block-bytes", "48KiB", "--json",
		 "--store", tool.dir, "--host", "64MiB", "--prefetch", "8");
	tool_assert_right(&tool);
	tool_assert_number(&tool, "hit_blocks", references);
	tool_assert_number(&tool, "prefetched_wasted", 0);
	blocks = tool_number(&tool, "prefetched_blocks");
	ck_assert_uint_gt(blocks + tool_number(&tool, "prefetch_cancelled"), 0);
	tool_assert_number(&tool, "prefetched_used", blocks);
	ck_assert_uint_le(blocks, references - hits);
	tool_assert_number(&tool, "operations_failed", 0);
}
END_TEST

/* No prefetch is for more than the budget, and one block is enough to go on. */
START_TEST(test_budget_bounds_each_prefetch)
{
	uint64_t hits, references, most;
	char *trace = make_trace(&tool, 60, 24, 0, &hits, &references);

	TOOL_RUN(&tool, 0, "--trace", trace, SMALL);
	TOOL_RUN(&tool, 0, "--trace", trace, "--ranks", "3", "--block-bytes", "48KiB", "--json",
		 "--store", tool.dir, "--host", "64MiB", "--prefetch", "64", "--prefetch-budget",
		 "1");
	tool_assert_right(&tool);
	tool_assert_number(&tool, "hit_blocks", references);
	most = tool_number(&tool, "prefetches");
	ck_assert_uint_gt(most, 0);
	ck_assert_uint_eq(tool_number(&tool, "prefetched_blocks") +
				  tool_number(&tool, "prefetch_cancelled"),
			  most);
}
END_TEST

/* --- resets ----------------------------------------------------------------------------------- */

START_TEST(test_reset_voids_what_was_stored)
{
	const char *more[] = { "--verbose", "--restart", "--layers", "--no-uring" };
	uint64_t hits, references;
	char *trace = make_trace(&tool, 120, 24, 25, &hits, &references);

	TOOL_RUN(&tool, 0, "--trace", trace, SMALL, "--reset-every", "25", more[_i]);
	assert_hits(hits);
	tool_assert_number(&tool, "resets", 4);
	if (_i == 1) /* the restart is after request 60, and of 50 to 59 something was written */
		ck_assert_uint_gt(tool_number(&tool, "recovered_blocks"), 0);
}
END_TEST

/* Prefetches for requests beyond it are in flight, or came for nothing. */
START_TEST(test_reset_stops_prefetches)
{
	uint64_t hits, references;
	char *trace = make_trace(&tool, 120, 24, 25, &hits, &references);

	TOOL_RUN(&tool, 0, "--trace", trace, SMALL, "--reset-every", "25", "--prefetch", "12",
		 "--restart");
	assert_hits(hits);
	assert_prefetches();
}
END_TEST

START_TEST(test_no_block_outlives_the_last_reset)
{
	uint64_t hits, references;
	char *trace = make_trace(&tool, 60, 24, 0, &hits, &references);

	TOOL_RUN(&tool, 0, "--trace", trace, SMALL, "--reset-every", "59");
	TOOL_RUN(&tool, 0, "--trace", trace, SMALL);
	tool_assert_right(&tool);
	/* the last request alone came after the reset */
	ck_assert_uint_le(tool_number(&tool, "recovered_blocks"), 24);
	ck_assert_uint_lt(tool_number(&tool, "hit_blocks"), references);
	ck_assert_uint_ge(tool_number(&tool, "hit_blocks"), hits);
}
END_TEST

/* --- aborts ----------------------------------------------------------------------------------- */

static void assert_after_aborts(void)
{
	tool_assert_right(&tool);
	tool_assert_number(&tool, "bad_blocks", 0);
	tool_assert_number(&tool, "foreign", 0);
}

START_TEST(test_aborts_leave_no_wrong_byte)
{
	static const char *const how[] = { "--verbose", "--layers", "--replicated", "--no-uring" };
	uint64_t hits, references, aborted;
	char *trace = make_trace(&tool, 120, 24, 0, &hits, &references);

	TOOL_RUN(&tool, 0, "--trace", trace, SMALL, "--abort", "0.4", how[_i]);
	assert_after_aborts();
	tool_assert_number(&tool, "requests", 120);
	ck_assert_uint_le(tool_number(&tool, "hit_blocks"), tool_number(&tool, "possible_hits"));
	aborted = tool_number(&tool, "aborted");
	ck_assert_uint_gt(aborted, 20);
	ck_assert_uint_lt(aborted, 80);
	ck_assert_uint_gt(tool_number(&tool, "operations_cancelled"), 0);
	ck_assert_uint_lt(tool_number(&tool, "references"), references);
	/* The same requests again, whatever else differs. */
	TOOL_RUN(&tool, 0, "--trace", trace, SMALL, "--abort", ".4", how[_i], "--prefetch", "3");
	assert_after_aborts();
	tool_assert_number(&tool, "aborted", aborted);
}
END_TEST

START_TEST(test_none_and_all_are_aborted)
{
	uint64_t hits, references;
	char *trace = make_trace(&tool, 60, 24, 0, &hits, &references);

	TOOL_RUN(&tool, 0, "--trace", trace, SMALL, "--abort", "0");
	assert_hits(hits);
	tool_assert_number(&tool, "aborted", 0);
	TOOL_RUN(&tool, 0, "--trace", trace, SMALL, "--abort", "1", "--seed", "9");
	assert_after_aborts();
	tool_assert_number(&tool, "aborted", 60);
	tool_assert_number(&tool, "references", 0);
	tool_assert_number(&tool, "hit_blocks", 0);
}
END_TEST

/* --- all together ----------------------------------------------------------------------------- */

START_TEST(test_all_together)
{
	uint64_t hits, references;
	char *trace = make_trace(&tool, 200, 24, 50, &hits, &references);

	TOOL_RUN(&tool, 0, "--trace", trace, SMALL, "--layers", "--prefetch", "4", "--reset-every",
		 "50", "--restart");
	assert_hits(hits);
	TOOL_RUN(&tool, 0, "--trace", trace, SMALL, "--layers", "--prefetch", "4", "--abort", "0.1",
		 "--reset-every", "50", "--restart", "--seed", "2");
	assert_after_aborts();
	tool_assert_number(&tool, "requests", 200);
	tool_assert_number(&tool, "resets", 3);
}
END_TEST

START_TEST(test_report_tells_all_of_it)
{
	TOOL_RUN(&tool, 0, "--requests", "60", "--store", tool.dir, "--nvme", "64MiB",
		 "--block-bytes", "64KiB", "--host", "2MiB", "--layers", "--prefetch", "4",
		 "--abort", "0.1", "--reset-every", "25");
	tool_says(tool.out, "loaded by layers");
	tool_says(tool.out, "first layer");
	tool_says(tool.out, "  prefetched ");
	tool_says(tool.out, "  aborted ");
	tool_says(tool.out, "  resets           2\n");
	tool_says(tool.out, "  quarantine       0 slots");
	tool_says(tool.out, "right: every byte");
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("replay_protocol");
	TCase *c = tcase_create("protocol");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_loop_test(c, test_layers_hit_exactly_what_the_trace_has, 0, 5);
	tcase_add_test(c, test_layers_of_a_request_larger_than_the_pool);
	tcase_add_test(c, test_rotten_store_is_a_miss_by_layers);
	tcase_add_loop_test(c, test_prefetch_changes_no_hit, 0, 2);
	tcase_add_test(c, test_all_that_is_prefetched_is_used);
	tcase_add_test(c, test_budget_bounds_each_prefetch);
	tcase_add_loop_test(c, test_reset_voids_what_was_stored, 0, 4);
	tcase_add_test(c, test_reset_stops_prefetches);
	tcase_add_test(c, test_no_block_outlives_the_last_reset);
	tcase_add_loop_test(c, test_aborts_leave_no_wrong_byte, 0, 4);
	tcase_add_test(c, test_none_and_all_are_aborted);
	tcase_add_test(c, test_all_together);
	tcase_add_test(c, test_report_tells_all_of_it);
	suite_add_tcase(s, c);
	return s;
}

int main(void)
{
	if (KVR_TEST_TSAN)
		return test_no_threads_of_its_own();
	return kvr_test_main(suite);
}
