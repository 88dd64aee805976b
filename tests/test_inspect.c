/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking into groups: live ones while they run, dead, retired, saved and broken ones. The broken
 * ones matter most: whatever the bytes are, every call ends with a number or an error.
 */
#include "inspect_util.h"
#include "point.h"

START_TEST(test_live_group_is_shown)
{
	char name[KVR_NAME_MAX];
	struct side l, r[2];
	struct kvr_inspect *in;
	struct kvr_inspect_group g;
	struct kvr_inspect_channel c;
	struct kvr_inspect_proc p;
	struct kvr_inspect_message m[8];
	int seen = 0;

	make_group(name, &l, r);
	must(kvr_inspect_open_name(NULL, name, &in));
	must(kvr_inspect_group(in, &g));
	ck_assert_str_eq(g.name, name);
	ck_assert_uint_eq(g.epoch, 1);
	ck_assert_uint_eq(g.ranks, 2);
	ck_assert_uint_eq(g.creator_pid, (uint32_t)getpid());
	ck_assert_uint_eq(g.watermark[KVR_CH_USER0], 6);
	ck_assert_uint_eq(g.retired_by, 0);
	ck_assert_uint_eq(g.same_boot, 1);
	ck_assert_str_eq(kvr_inspect_state_name(g.state), "active");
	must(kvr_inspect_proc(in, LEADER, &p));
	ck_assert_int_eq(p.alive, 1);
	ck_assert_uint_eq(p.calls[KVR_CALL_PUBLISH], 6);
	must(kvr_inspect_proc(in, 1, &p));
	ck_assert_int_eq(p.alive, 1);
	ck_assert_uint_eq(p.pid, (uint32_t)getpid());
	ck_assert_uint_eq(p.calls[KVR_CALL_TAKE], 2);
	ck_assert_uint_eq(p.taken[KVR_CH_USER0], 2);
	must(kvr_inspect_channel(in, KVR_CH_USER0, 1, &c));
	ck_assert_uint_eq(c.published, 6);
	ck_assert_uint_eq(c.taken, 2);
	ck_assert_uint_gt(c.oldest_unread_ns, g.created_ns);
	ck_assert_uint_le(c.oldest_unread_ns, test_now_ns());
	must(kvr_inspect_channel(in, KVR_CH_USER0, 0, &c));
	ck_assert_uint_eq(c.taken, 6);
	ck_assert_uint_eq(c.oldest_unread_ns, 0);
	ck_assert_int_eq(kvr_inspect_messages(in, KVR_CH_USER0, 1, m, 3), 3);
	for (uint32_t i = 0; i < 3; i++) {
		ck_assert_uint_eq(m[i].number, i + 4);
		ck_assert_uint_eq(m[i].request.id, i + 4);
		ck_assert_uint_eq(m[i].tag, KVR_TAG_USER + i + 4);
		ck_assert_uint_eq(m[i].len, 7);
		ck_assert_mem_eq(m[i].payload, "payload", 8);
		ck_assert_int_eq(m[i].read, 0);
	}
	ck_assert_int_eq(kvr_inspect_messages(in, KVR_CH_USER0, 1, m, 8), 6);
	ck_assert_int_eq(m[1].read, 1);
	ck_assert_int_eq(kvr_inspect_messages(in, KVR_CH_USER0, 1, m, 0), 0);
	ck_assert_int_eq(kvr_inspect_events(in, LEADER, KVR_CH_USER0, 4, count_event, &seen), 4);
	ck_assert_int_eq(seen, 4);
	ck_assert_int_eq(kvr_inspect_events(in, LEADER, KVR_CH_LOOKUP, 4, count_event, &seen), 0);
	kvr_inspect_close(in);
	end_group(&l, r);
}
END_TEST

START_TEST(test_looking_changes_no_byte)
{
	char name[KVR_NAME_MAX], path[KVR_SHM_PATH];
	struct side l, r[2];
	struct kvr_inspect *in;
	uint8_t *before, *after;
	size_t len;

	make_group(name, &l, r);
	path_of(name, KVR_SHM_SEGMENT, 0, path);
	before = load(path, &len);
	must(kvr_inspect_open(path, &in));
	ck_assert_int_eq(everything(in), 0);
	kvr_inspect_close(in);
	after = load(path, &len);
	ck_assert_int_eq(memcmp(before, after, len), 0);
	free(before);
	free(after);
	end_group(&l, r);
}
END_TEST

START_TEST(test_operations_that_have_not_ended_are_shown)
{
	char name[KVR_NAME_MAX];
	struct side l, r[2];
	struct kvr_inspect *in;
	struct kvr_inspect_op ops[16];
	struct kvr_op_entry *table;

	make_group(name, &l, r);
	table = (void *)(l.g->own + (l.g->layout.leader_ops - l.g->layout.leader));
	table[2] = (struct kvr_op_entry){ .word = kvr_word(7, KVR_STAGE_COPIED, 0),
					  .request = 99,
					  .space = 5,
					  .attempt = 1,
					  .kind = KVR_OP_STORE,
					  .blocks = 12,
					  .begun_ns = 1000,
					  .stage_ns = 2000,
					  .acked = 3 };
	table[3] = (struct kvr_op_entry){ .word = kvr_word(7, KVR_STAGE_WRITTEN, 0) };
	table[4] = (struct kvr_op_entry){ .word = kvr_word(7, 200, 0) };
	table[15] = (struct kvr_op_entry){ .word = kvr_word(1, KVR_STAGE_BEGUN, 0), .kind = 77 };
	must(kvr_inspect_open_name(NULL, name, &in));
	ck_assert_int_eq(kvr_inspect_ops(in, ops, 16), 2);
	ck_assert_uint_eq(ops[0].entry, 2);
	ck_assert_uint_eq(ops[0].request.id, 99);
	ck_assert_uint_eq(ops[0].request.space, 5);
	ck_assert_uint_eq(ops[0].stage, KVR_STAGE_COPIED);
	ck_assert_uint_eq(ops[0].blocks, 12);
	ck_assert_uint_eq(ops[0].acked, 3);
	ck_assert_str_eq(kvr_inspect_op_name(ops[0].kind), "store");
	ck_assert_uint_eq(ops[1].entry, 15);
	ck_assert_str_eq(kvr_inspect_op_name(ops[1].kind), "?");
	ck_assert_int_eq(kvr_inspect_ops(in, ops, 1), 1);
	kvr_inspect_close(in);
	end_group(&l, r);
}
END_TEST

START_TEST(test_arguments_out_of_range_are_refused)
{
	char name[KVR_NAME_MAX];
	struct side l, r[2];
	struct kvr_inspect *in;
	struct kvr_inspect_proc p;
	struct kvr_inspect_channel c;
	struct kvr_inspect_message m;
	int seen = 0;

	make_group(name, &l, r);
	must(kvr_inspect_open_name(NULL, name, &in));
	ck_assert_int_eq(kvr_inspect_proc(in, 2, &p), -EINVAL);
	explained(kvr_explain(), "rank 2", "has 2", NULL);
	ck_assert_int_eq(kvr_inspect_channel(in, KVR_CHANNELS, 0, &c), -EINVAL);
	ck_assert_int_eq(kvr_inspect_channel(in, 0, 2, &c), -EINVAL);
	ck_assert_int_eq(kvr_inspect_messages(in, 0, 2, &m, 1), -EINVAL);
	ck_assert_int_eq(kvr_inspect_events(in, 2, -1, 1, count_event, &seen), -EINVAL);
	kvr_inspect_close(in);
	kvr_inspect_close(NULL);
	ck_assert_int_eq(kvr_inspect_open_name(NULL, "../x", &in), -EINVAL);
	ck_assert_int_eq(kvr_inspect_open_name(NULL, "no-such-group", &in), -ENOENT);
	end_group(&l, r);
}
END_TEST

START_TEST(test_messages_read_while_they_are_overwritten_are_whole)
{
	static struct kvr_inspect_message m[256];
	uint64_t end = test_deadline_ms(400), last = 0;
	struct kvr_inspect *in;
	struct crowd c;

	start_crowd(&c);
	in = open_running(&c);
	do {
		int n = kvr_inspect_messages(in, KVR_CH_USER0, 0, m, 256);

		ck_assert_int_ge(n, 0);
		check_messages(m, n);
		if (n) {
			ck_assert_uint_ge(m[n - 1].number, last);
			last = m[n - 1].number;
		}
		ck_assert_int_eq(everything(in), 0);
	} while (test_now_ns() < end);
	ck_assert_uint_gt(last, 0);
	kvr_inspect_close(in);
	kill_crowd(&c);
	remove_group(c.name);
}
END_TEST

START_TEST(test_group_whose_processes_were_all_killed_is_shown)
{
	static struct kvr_inspect_message m[8];
	struct kvr_inspect_group g;
	struct kvr_inspect_proc p;
	struct kvr_inspect *in;
	struct crowd c;
	int n, seen = 0;

	start_crowd(&c);
	in = open_running(&c);
	kill_crowd(&c);
	for (int again = 0; again < 2; again++) { /* with the handle of before, and a new one */
		must(kvr_inspect_group(in, &g));
		for (uint32_t r = 0; r < 3; r++) {
			must(kvr_inspect_proc(in, r < 2 ? r : LEADER, &p));
			ck_assert_int_eq(p.alive, -1);
		}
		ck_assert_uint_eq(p.pid, (uint32_t)c.leader);
		n = kvr_inspect_messages(in, KVR_CH_USER0, 1, m, 8);
		ck_assert_int_eq(n, 8);
		check_messages(m, n);
		/* One more than whole ones may be in this ring. */
		ck_assert_uint_ge(m[7].number, g.watermark[KVR_CH_USER0]);
		ck_assert_uint_le(m[7].number, g.watermark[KVR_CH_USER0] + 1);
		ck_assert_int_gt(kvr_inspect_events(in, 1, -1, 5, count_event, &seen), 0);
		kvr_inspect_close(in);
		must(kvr_inspect_open_name(NULL, c.name, &in));
	}
	kvr_inspect_close(in);
	remove_group(c.name);
}
END_TEST

static void die_before_the_last_copy(enum kvr_point point, uint32_t rank)
{
	if (point == KVR_POINT_publish_copied && rank == 1)
		raise(SIGKILL);
}

START_TEST(test_publish_that_was_cut_off_is_marked)
{
	struct kvr_group_opts o = { .size = sizeof o, .ranks = 2, .ring_bytes = 1024 };
	char name[KVR_NAME_MAX];
	struct kvr_inspect_message m;
	struct kvr_inspect *in;
	struct side s;
	pid_t pid;

	test_name(name, sizeof name, "inspect");
	pid = fork();
	if (!pid) {
		if (kvr_group_create(name, &o, &s.g) || kvr_channels_open(s.g, &s.c) ||
		    publish(&s, 1, 300, 1, "whole", 5))
			_exit(99);
		kvr_point_hook = die_before_the_last_copy;
		publish(&s, 0, 301, 2, "cut off", 7);
		_exit(98);
	}
	ck_assert_int_eq(WTERMSIG(test_reap(pid, 5000)), SIGKILL);
	must(kvr_inspect_open_name(NULL, name, &in));
	ck_assert_int_eq(kvr_inspect_messages(in, KVR_CH_USER0, 0, &m, 1), 1);
	ck_assert_uint_eq(m.number, 2);
	ck_assert_int_eq(m.read, -1);
	ck_assert_int_eq(kvr_inspect_messages(in, KVR_CH_USER0, 1, &m, 1), 0);
	kvr_inspect_close(in);
	remove_group(name);
}
END_TEST

struct found {
	const char *name;
	int current, retired;
};

static void find(void *arg, const char *path)
{
	struct found *f = arg;
	const char *at = strstr(path, f->name);

	if (!at)
		return;
	ck_assert_ptr_null(strstr(path, ".pool"));
	ck_assert_ptr_null(strstr(path, ".lock"));
	if (at[strlen(f->name)] == '.')
		f->retired++;
	else
		f->current++;
}

START_TEST(test_retired_segment_names_its_successor_and_is_listed)
{
	struct kvr_group_opts o = { .size = sizeof o, .ranks = 1, .ring_bytes = 1024 };
	char name[KVR_NAME_MAX], path[KVR_SHM_PATH];
	struct found f = { .name = name };
	struct kvr_inspect_group g;
	struct kvr_inspect *in;
	struct kvr_group *next;
	pid_t pid;

	test_name(name, sizeof name, "inspect");
	pid = fork();
	if (!pid) {
		struct kvr_group *old;

		_exit(kvr_group_create(name, &o, &old) ? 99 : raise(SIGKILL));
	}
	ck_assert_int_eq(WTERMSIG(test_reap(pid, 5000)), SIGKILL);
	must(kvr_group_create(name, &o, &next));
	ck_assert_int_gt(kvr_inspect_list(NULL, find, &f), 1);
	ck_assert_int_eq(f.current, 1);
	ck_assert_int_eq(f.retired, 1);
	path_of(name, KVR_SHM_RETIRED, 1, path);
	must(kvr_inspect_open(path, &in));
	must(kvr_inspect_group(in, &g));
	ck_assert_uint_eq(g.epoch, 1);
	ck_assert_uint_eq(g.retired_by, 2);
	kvr_inspect_close(in);
	must(kvr_inspect_open_name(NULL, name, &in));
	must(kvr_inspect_group(in, &g));
	ck_assert_uint_eq(g.epoch, 2);
	ck_assert_uint_eq(g.retired_by, 0);
	kvr_inspect_close(in);
	kvr_group_close(next);
	unlink(path);
	ck_assert_int_eq(kvr_inspect_list("/no/such/dir", find, &f), -ENOENT);
}
END_TEST

START_TEST(test_saved_copy_is_shown_and_knows_who_is_gone)
{
	char path[KVR_SHM_PATH], dir[256], copy[300];
	struct kvr_inspect_proc p;
	struct kvr_inspect *in;
	struct crowd c;
	uint8_t *bytes;
	size_t len;

	test_tmpdir(dir, sizeof dir);
	snprintf(copy, sizeof copy, "%s/saved", dir);
	start_crowd(&c);
	kvr_inspect_close(open_running(&c));
	path_of(c.name, KVR_SHM_SEGMENT, 0, path);
	bytes = load(path, &len);
	save(copy, bytes, len);
	free(bytes);
	must(kvr_inspect_open(copy, &in));
	ck_assert_int_eq(everything(in), 0);
	must(kvr_inspect_proc(in, LEADER, &p));
	ck_assert_int_eq(p.alive, 1);
	kill_crowd(&c);
	must(kvr_inspect_proc(in, LEADER, &p));
	if (!test_on_memory(dir))
		ck_assert_int_eq(p.alive, -1);
	kvr_inspect_close(in);
	remove_group(c.name);
	test_rmdir(dir);
}
END_TEST

static void refused(const char *path, const char *why)
{
	struct kvr_inspect *in;

	ck_assert_int_eq(kvr_inspect_open(path, &in), -EPROTO);
	explained(kvr_explain(), path, "is not a kvring segment", why, NULL);
}

START_TEST(test_foreign_and_truncated_files_are_refused_with_the_reason)
{
	char name[KVR_NAME_MAX], path[KVR_SHM_PATH], dir[256], file[300];
	uint64_t seed = test_seed();
	struct side l, r[2];
	struct kvr_inspect *in;
	uint8_t *bytes;
	size_t len;

	make_group(name, &l, r);
	path_of(name, KVR_SHM_SEGMENT, 0, path);
	bytes = load(path, &len);
	test_tmpdir(dir, sizeof dir);
	snprintf(file, sizeof file, "%s/file", dir);
	refused(dir, "no regular file");
	refused("/dev/null", "no regular file");
	ck_assert_int_eq(mkfifo(file, 0600), 0);
	refused(file, "no regular file");
	unlink(file);
	save(file, "", 0);
	refused(file, "0 bytes");
	save(file, bytes, 4095);
	refused(file, "4095 bytes");
	save(file, bytes, len - 1);
	refused(file, "total_bytes");
	save(file, bytes, 4096);
	refused(file, "4096");
	/* Ends while it is looked at. */
	save(file, bytes, len);
	must(kvr_inspect_open(file, &in));
	ck_assert_int_eq(everything(in), 0);
	ck_assert_int_eq(truncate(file, 8192), 0);
	ck_assert_int_gt(everything(in), 0);
	explained(kvr_explain(), "are missing", NULL);
	kvr_inspect_close(in);
	bytes[8] ^= 2; /* another version */
	save(file, bytes, len);
	refused(file, "version");
	for (size_t i = 0; i < len; i++)
		bytes[i] = (uint8_t)((seed = seed * 6364136223846793005u + 1442695040888963407u) >>
				     56);
	save(file, bytes, len);
	refused(file, "starts with");
	ck_assert_int_eq(kvr_inspect_open("/no/such/file", &in), -ENOENT);
	free(bytes);
	test_rmdir(dir);
	end_group(&l, r);
}
END_TEST

START_TEST(test_any_flipped_bytes_end_in_a_number_or_an_error)
{
	char name[KVR_NAME_MAX], path[KVR_SHM_PATH], dir[256], file[300];
	uint64_t seed = test_seed(), rounds = test_rounds(500);
	struct kvr_seg_header *header;
	struct side l, r[2];
	uint8_t *whole, *bytes;
	uint64_t opened = 0;
	size_t len;

	make_group(name, &l, r);
	path_of(name, KVR_SHM_SEGMENT, 0, path);
	whole = load(path, &len);
	end_group(&l, r);
	bytes = malloc(len);
	ck_assert_ptr_nonnull(bytes);
	header = (void *)bytes;
	test_tmpdir(dir, sizeof dir);
	snprintf(file, sizeof file, "%s/flipped", dir);
	srand48((long)seed);
	for (uint64_t i = 0; i < rounds; i++) {
		struct kvr_inspect *in;

		memcpy(bytes, whole, len);
		for (long n = 1L << lrand48() % 12; n--;) {
			size_t at = (size_t)lrand48() % (lrand48() % 8 ? len : 4096);

			/* Mostly behind the header, whose checksum finds it; small and large
			 * values. */
			if (at < 4096 && lrand48() % 64)
				at = 8192 + at;
			bytes[at] = (uint8_t)(lrand48() % 2 ? lrand48() : -(lrand48() % 2));
		}
		if (lrand48() % 2) /* a header that somebody made on purpose */
			header->checksum = kvr_header_sum(header);
		save(file, bytes, len);
		if (kvr_inspect_open(file, &in))
			continue;
		opened++;
		everything(in);
		kvr_inspect_close(in);
	}
	ck_assert_uint_gt(opened, rounds / 10);
	free(bytes);
	free(whole);
	test_rmdir(dir);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("inspect");
	TCase *t = tcase_create("inspect");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, test_live_group_is_shown);
	tcase_add_test(t, test_looking_changes_no_byte);
	tcase_add_test(t, test_operations_that_have_not_ended_are_shown);
	tcase_add_test(t, test_arguments_out_of_range_are_refused);
	tcase_add_test(t, test_messages_read_while_they_are_overwritten_are_whole);
	tcase_add_test(t, test_group_whose_processes_were_all_killed_is_shown);
	tcase_add_test(t, test_publish_that_was_cut_off_is_marked);
	tcase_add_test(t, test_retired_segment_names_its_successor_and_is_listed);
	tcase_add_test(t, test_saved_copy_is_shown_and_knows_who_is_gone);
	tcase_add_test(t, test_foreign_and_truncated_files_are_refused_with_the_reason);
	tcase_add_test(t, test_any_flipped_bytes_end_in_a_number_or_an_error);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
