/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv-replay as a user runs it, on traces whose hits are counted here, too (replay_trace.h).
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

#define SMALL "--ranks", "3", "--block-bytes", "48KiB", "--json", "--store", tool.dir

START_TEST(test_hits_are_exactly_those_of_the_trace)
{
	uint64_t hits, references;
	char *trace = make_trace(&tool, 120, 24, 0, &hits, &references);

	TOOL_RUN(&tool, 0, "--trace", trace, SMALL, "--host", "2MiB", "--nvme", "96MiB");
	tool_assert_right(&tool);
	tool_assert_number(&tool, "requests", 120);
	tool_assert_number(&tool, "references", references);
	tool_assert_number(&tool, "hit_blocks", hits);
	tool_assert_number(&tool, "blocks_loaded", hits);
	tool_assert_number(&tool, "blocks_stored", references - hits);
	tool_assert_number(&tool, "blocks_written", references - hits);
	ck_assert_uint_eq(tool_number(&tool, "hit_blocks_host") +
				  tool_number(&tool, "hit_blocks_nvme"),
			  hits);
	ck_assert_uint_gt(tool_number(&tool, "hit_blocks_nvme"), 0);
	ck_assert_uint_ge(tool_number(&tool, "ticks"), 120);
}
END_TEST

START_TEST(test_restart_hits_the_same_blocks)
{
	uint64_t hits, references;
	char *trace = make_trace(&tool, 120, 24, 0, &hits, &references);

	TOOL_RUN(&tool, 0, "--trace", trace, SMALL, "--host", "2MiB", "--nvme", "96MiB",
		 "--restart");
	tool_assert_right(&tool);
	tool_assert_number(&tool, "requests", 120);
	tool_assert_number(&tool, "hit_blocks", hits);
	ck_assert_uint_gt(tool_number(&tool, "recovered_blocks"), 0);
}
END_TEST

START_TEST(test_second_run_hits_what_the_first_stored)
{
	uint64_t hits, references;
	char *trace = make_trace(&tool, 60, 24, 0, &hits, &references);

	TOOL_RUN(&tool, 0, "--trace", trace, SMALL, "--nvme", "96MiB");
	tool_assert_right(&tool);
	TOOL_RUN(&tool, 0, "--trace", trace, SMALL); /* the size is that of the file */
	tool_assert_right(&tool);
	tool_assert_number(&tool, "hit_blocks", references);
	tool_assert_number(&tool, "recovered_blocks", references - hits);
	TOOL_RUN(&tool, 0, "--trace", trace, SMALL, "--seed", "2"); /* other keys, other bytes */
	tool_assert_right(&tool);
	tool_assert_number(&tool, "hit_blocks", hits);
}
END_TEST

START_TEST(test_evictions_leave_no_wrong_byte)
{
	uint64_t hits, references;
	char *trace = make_trace(&tool, 120, 24, 0, &hits, &references);

	TOOL_RUN(&tool, 0, "--trace", trace, SMALL, "--host", "2MiB", "--nvme", "4MiB");
	tool_assert_right(&tool);
	ck_assert_uint_gt(tool_number(&tool, "nvme_evictions"), 0);
	ck_assert_uint_gt(tool_number(&tool, "host_evictions"), 0);
	ck_assert_uint_le(tool_number(&tool, "hit_blocks"), hits);
	ck_assert_uint_gt(tool_number(&tool, "hit_blocks"), 0);
}
END_TEST

/* A pool of four slots, requests of up to 90 blocks. */
START_TEST(test_request_larger_than_the_pool_is_served_in_parts)
{
	uint64_t hits, references;
	char *trace = make_trace(&tool, 40, 90, 0, &hits, &references);

	TOOL_RUN(&tool, 0, "--trace", trace, SMALL, "--host", "228KiB", "--nvme", "96MiB");
	tool_assert_right(&tool);
	ck_assert_uint_le(tool_number(&tool, "pool_slots"), 4);
	tool_assert_number(&tool, "hit_blocks", hits);
}
END_TEST

/* Spans that begin and end inside a word, and are next to those of another rank. */
START_TEST(test_odd_block_sizes)
{
	uint64_t hits, references;
	char *trace = make_trace(&tool, 40, 24, 0, &hits, &references);

	TOOL_RUN(&tool, 0, "--trace", trace, "--ranks", "3", "--block-bytes", "12357",
		 "--layer-groups", "3", "--json", "--store", tool.dir, "--host", "1MiB", "--nvme",
		 "32MiB");
	tool_assert_right(&tool);
	tool_assert_number(&tool, "hit_blocks", hits);
}
END_TEST

START_TEST(test_every_rank_reads_a_replicated_block)
{
	uint64_t hits, references;
	char *trace = make_trace(&tool, 40, 24, 0, &hits, &references);

	TOOL_RUN(&tool, 0, "--trace", trace, "--ranks", "3", "--replicated", "--block-bytes",
		 "50000", "--layer-groups", "5", "--json", "--store", tool.dir, "--host", "2MiB",
		 "--nvme", "64MiB");
	tool_assert_right(&tool);
	tool_assert_number(&tool, "hit_blocks", hits);
}
END_TEST

START_TEST(test_two_stores_by_threads)
{
	uint64_t hits, references;
	char *trace = make_trace(&tool, 40, 24, 0, &hits, &references);
	char *second = tool_path(&tool, "second");

	ck_assert_int_eq(mkdir(second, 0700), 0);
	TOOL_RUN(&tool, 0, "--trace", trace, SMALL, "--store", second, "--nvme", "96MiB", "--host",
		 "2MiB", "--no-uring");
	tool_assert_right(&tool);
	tool_assert_number(&tool, "hit_blocks", hits);
	ck_assert_int_eq(access(tool_path(&tool, "second/kvring.store"), F_OK), 0);
}
END_TEST

START_TEST(test_host_memory_alone)
{
	uint64_t hits, references;
	char *trace = make_trace(&tool, 40, 24, 0, &hits, &references);

	TOOL_RUN(&tool, 0, "--trace", trace, "--nvme", "0", "--json", "--host", "128MiB");
	tool_assert_right(&tool);
	tool_assert_number(&tool, "hit_blocks", hits);
	tool_assert_number(&tool, "hit_blocks_nvme", 0);
}
END_TEST

START_TEST(test_generated_run_cleans_up)
{
	char *tmp = tool_own_tmpdir(&tool);

	TOOL_RUN(&tool, 0, "--requests", "60", "--block-bytes", "64KiB", "--nvme", "64MiB");
	tool_says(tool.out, "wrong bytes      0");
	tool_says(tool.out, "right: every byte");
	ck_assert_int_eq(tool_entries(tmp), 0);
	TOOL_RUN(&tool, 0, "--requests", "60", "--block-bytes", "64KiB", "--nvme", "64MiB",
		 "--json");
	tool_assert_right(&tool);
	ck_assert_uint_gt(tool_number(&tool, "hit_blocks"), 100);
}
END_TEST

/* Bytes that rot on the device are a miss, never a hit. */
START_TEST(test_rotten_store_is_a_miss)
{
	uint64_t hits, references, at;
	char *trace = make_trace(&tool, 60, 24, 0, &hits, &references);
	struct stat st;
	char byte;
	int fd;

	TOOL_RUN(&tool, 0, "--trace", trace, SMALL, "--nvme", "32MiB");
	fd = open(tool_path(&tool, "kvring.store"), O_RDWR | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fstat(fd, &st), 0);
	/* Every 40,000th byte, but not where superblocks and the slot table may lie. */
	for (at = 1u << 20; at < (uint64_t)st.st_size - 65536; at += 40000) {
		ck_assert_int_eq(pread(fd, &byte, 1, (off_t)at), 1);
		byte ^= 1;
		ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
	}
	close(fd);
	TOOL_RUN(&tool, 0, "--trace", trace, SMALL, "--nvme", "32MiB");
	tool_assert_right(&tool);
	ck_assert_uint_gt(tool_number(&tool, "bad_blocks"), 0);
	ck_assert_uint_gt(tool_number(&tool, "blocks_stored"), 0);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("replay");
	TCase *c = tcase_create("runs");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, test_hits_are_exactly_those_of_the_trace);
	tcase_add_test(c, test_restart_hits_the_same_blocks);
	tcase_add_test(c, test_second_run_hits_what_the_first_stored);
	tcase_add_test(c, test_evictions_leave_no_wrong_byte);
	tcase_add_test(c, test_request_larger_than_the_pool_is_served_in_parts);
	tcase_add_test(c, test_odd_block_sizes);
	tcase_add_test(c, test_every_rank_reads_a_replicated_block);
	tcase_add_test(c, test_two_stores_by_threads);
	tcase_add_test(c, test_host_memory_alone);
	tcase_add_test(c, test_generated_run_cleans_up);
	tcase_add_test(c, test_rotten_store_is_a_miss);
	suite_add_tcase(s, c);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
