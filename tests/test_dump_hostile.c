/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring-dump on segments that somebody overwrote, and on one that is cut off while it is read: it
 * ends, with one of its statuses, and what it prints a terminal can show.
 */
#include "dump_util.h"

static char dir[256], file[300], name[KVR_NAME_MAX];
static uint8_t *whole, *bytes;
static size_t len;

/* A segment with something of everything in it, as a file of its own. */
static void setup_file(void)
{
	char path[KVR_SHM_PATH];
	struct kvr_alike_logs logs[2];
	struct side l, r[2];

	test_tool(tool, sizeof tool, "ring-dump");
	setup_tool();
	test_tmpdir(dir, sizeof dir);
	snprintf(file, sizeof file, "%s/hostile", dir);
	make_dump_group(name, &l, r, NULL);
	logs_of(&l, &logs[0]);
	logs_of(&r[1], &logs[1]);
	for (uint64_t i = 0; i < 50; i++)
		for (uint32_t k = 0; k < KVR_ALIKES; k++) {
			call_alike(&logs[0], (enum kvr_alike)k, i);
			call_alike(&logs[1], (enum kvr_alike)k, i + i / 40);
		}
	for (uint32_t i = 2; i < 16; i++)
		ops_of(&l)[i] = (struct kvr_op_entry){ .word = kvr_word(i, i % KVR_STAGES, i),
						       .request = i,
						       .kind = i % KVR_OP_KINDS,
						       .need = 3,
						       .stage_ns = i,
						       .begun_ns = i };
	kvr_group_own_page(r[0].g)->meet[0] = (struct kvr_meet){ .ranks = 3, .round = 257 };
	kvr_group_enter(r[0].g, KVR_CALL_BARRIER, 0);
	path_of(name, KVR_SHM_SEGMENT, 0, path);
	whole = load(path, &len);
	bytes = malloc(len);
	ck_assert_ptr_nonnull(bytes);
	end_group(&l, r);
}

static void teardown_file(void)
{
	free(whole);
	free(bytes);
	test_rmdir(dir);
	teardown();
}

/* Bytes anywhere, mostly where something is; large, small and random values. */
static void flip(void)
{
	struct kvr_seg_header *header = (void *)bytes;

	memcpy(bytes, whole, len);
	for (long n = 1L << lrand48() % 14; n--;) {
		size_t at = (size_t)lrand48() % len;

		for (int i = 0; i < 8 && !bytes[at] && at >= 4096; i++)
			at = (size_t)lrand48() % len;
		if (at < 4096 && lrand48() % 16)
			continue;
		bytes[at] = (uint8_t)(lrand48() % 2 ? lrand48() : -(lrand48() % 2));
	}
	if (lrand48() % 8)
		header->checksum = kvr_header_sum(header);
	save(file, bytes, len);
}

static void printable(void)
{
	for (const char *at = output; *at; at++)
		ck_assert_msg(*at == '\n' || (*at >= ' ' && *at <= '~'), "byte %#x in %.2000s",
			      (unsigned)(unsigned char)*at, output);
}

START_TEST(test_overwritten_segments)
{
	static const char *const modes[][2] = {
		{ "--events=100", NULL },
		{ "--json", "--last=50" },
		{ "--prom", NULL },
		{ "--check", "--stall=0" },
		{ "--show=logs,messages", "--request=3" },
	};
	int few = KVR_TEST_ASAN || KVR_TEST_TSAN;
	uint64_t seed = test_seed(), rounds = test_rounds(few ? 5 : 15), read = 0;
	char copy[320];

	snprintf(copy, sizeof copy, "%s/copy", dir);
	srand48((long)seed);
	for (uint64_t i = 0; i < rounds; i++) {
		flip();
		for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++) {
			int status = run(tool, NULL, modes[m][0], file, modes[m][1], NULL);

			ck_assert_int_le(status, 3);
			ck_assert_uint_gt(strlen(output), 0);
			printable();
			read += status < 3;
		}
		if (run(tool, NULL, "--save", copy, "--force", file, NULL))
			continue;
		ck_assert_int_le(run(tool, NULL, "--check", copy, NULL), 2);
		ck_assert_int_eq(run(tool, NULL, "--follow", copy, NULL), 0);
		printable();
	}
	ck_assert_uint_gt(read, rounds);
}
END_TEST

/* Cut off and made whole again, on and on, by somebody else. */
START_TEST(test_segment_that_is_truncated_while_it_is_read)
{
	uint64_t end = test_deadline_ms(1000), tries = 0, failed = 0;
	pid_t pid;

	save(file, whole, len);
	pid = fork();
	if (!pid) {
		int fd = open(file, O_RDWR | O_CLOEXEC);
		uint64_t seed = 1;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			if (ftruncate(fd, (off_t)(seed >> 33) % (off_t)len) ||
			    ftruncate(fd, (off_t)len) || pwrite(fd, whole, len, 0) != (ssize_t)len)
				_exit(99);
			test_sleep_ms((seed >> 60) % 3);
		}
	}
	for (; test_now_ns() < end || !failed; tries++) {
		int status = run(tool, NULL, tries % 2 ? "--json" : "--events=50", file, NULL);

		ck_assert_int_le(status, 3);
		if (status == 3) {
			begins("ring-dump: ");
			failed++;
		}
		ck_assert_msg(test_now_ns() < end + 20 * 1000000000ull, "%d looks, none failed",
			      (int)tries);
	}
	kill(pid, SIGKILL);
	test_reap(pid, 5000);
	printf("looks: %d, of which failed %d\n", (int)tries, (int)failed);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("dump_hostile");
	TCase *t = tcase_create("dump_hostile");

	tcase_add_checked_fixture(t, setup_file, teardown_file);
	tcase_set_timeout(t, 120);
	tcase_add_test(t, test_overwritten_segments);
	tcase_add_test(t, test_segment_that_is_truncated_while_it_is_read);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	if (KVR_TEST_TSAN)
		return test_no_threads_of_its_own();
	return kvr_test_main(suite);
}
