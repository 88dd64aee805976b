/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store on real files, with io_uring and with pread threads (loop tests: 0 and 1): what
 * survives, what damage does. test_store_open.c has what is refused, test_oracle.c the broken
 * devices.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "fault.h"
#include "store_kit.h"
#include "util.h"

/* --- what survives ---------------------------------------------------------------------------- */

START_TEST(test_reopen_finds_what_was_written)
{
	struct kvr_store_opts o = options(1, 4 * MIB, _i);
	struct kvr_store *store = open_ok(&o);
	struct kvr_store_info info = info_of(store);
	uint64_t first = kvr_store_next_seq(store), i;
	const struct kvr_store_found *f;
	struct kit_found found;
	struct stat st;

	ck_assert_str_eq(info.backend, _i ? "pread" : "io_uring");
	ck_assert_uint_eq(info.slots, (4 * MIB - 8192 - 24576) / 24576);
	ck_assert_uint_eq(info.used, 0);
	for (i = 0; i < 50; i++)
		put(store, i, first + i);
	info = info_of(store);
	ck_assert_uint_eq(info.writes, 50);
	ck_assert_uint_eq(info.used, 50);
	close_ok(store);
	ck_assert_int_eq(stat(paths[0], &st), 0);
	ck_assert_int_eq(st.st_size, 4 * MIB);
	ck_assert_int_eq(st.st_mode & 0777, 0600);

	o.flags &= ~(uint32_t)KVR_STORE_CREATE;
	o.bytes = 0;
	store = open_ok(&o);
	info = info_of(store);
	ck_assert_uint_eq(info.recovered, 50);
	ck_assert_uint_eq(info.used, 50);
	ck_assert_uint_eq(info.bad_records, 0);
	ck_assert_uint_gt(kvr_store_next_seq(store), first + 49);
	found = kit_scan(store);
	ck_assert_uint_eq(found.n, 50);
	for (i = 0; i < 50; i++) {
		f = kit_find(&found, i);
		ck_assert_ptr_nonnull(f);
		ck_assert_uint_eq(f->seq, first + i);
		ck_assert_int_eq(kit_read(store, f), 0);
	}
	free(found.at);
	close_ok(store);
}
END_TEST

START_TEST(test_directory_gets_a_file_of_its_own)
{
	struct kvr_store_opts o = options(1, 4 * MIB, _i);
	const char *given[] = { dir };
	char path[400];

	o.paths = given;
	close_ok(open_ok(&o));
	snprintf(path, sizeof path, "%s/kvring.store", dir);
	ck_assert_int_eq(access(path, F_OK), 0);
	close_ok(open_ok(&o));
}
END_TEST

START_TEST(test_newest_write_of_a_key_counts)
{
	struct kvr_store_opts o = options(2, 4 * MIB, _i);
	struct kvr_store *store = open_ok(&o);
	uint64_t seq = kvr_store_next_seq(store), i;
	struct kit_found found;

	for (i = 0; i < 30; i++)
		put(store, i % 3, seq + (i * 7) % 30);
	close_ok(store);
	store = open_ok(&o);
	found = kit_scan(store);
	ck_assert_uint_eq(found.n, 3);
	ck_assert_uint_eq(info_of(store).used, 3); /* the older ones' slots are free */
	for (i = 0; i < 3; i++) {
		/* i * 7 % 30 over i = 0, 3, ..: the highest of each class of numbers */
		uint64_t k, newest = 0;

		for (k = i; k < 30; k += 3)
			newest = newest < k * 7 % 30 ? k * 7 % 30 : newest;
		ck_assert_uint_eq(kit_find(&found, i)->seq, seq + newest);
		ck_assert_int_eq(kit_read(store, kit_find(&found, i)), 0);
	}
	free(found.at);
	close_ok(store);
}
END_TEST

START_TEST(test_seqs_rise_over_runs)
{
	struct kvr_store_opts o = options(1, 4 * MIB, _i);
	struct kvr_store *store = open_ok(&o);
	uint64_t seq = kvr_store_next_seq(store);

	close_ok(store); /* nothing recorded, as after a crash */
	store = open_ok(&o);
	ck_assert_uint_gt(kvr_store_next_seq(store), seq + 1000000);
	close_ok(store);
}
END_TEST

START_TEST(test_reset_voids_all_blocks)
{
	struct kvr_store_opts o = options(2, 4 * MIB, _i);
	struct kvr_store *store = open_ok(&o);
	uint64_t seq = kvr_store_next_seq(store), gen = info_of(store).cache_generation, i;
	struct kit_found found;

	for (i = 0; i < 20; i++)
		put(store, i, seq++);
	ck_assert_int_eq(kvr_store_reset(store, NULL), 0);
	ck_assert_uint_eq(info_of(store).used, 0);
	ck_assert_uint_eq(info_of(store).cache_generation, gen + 1);
	put(store, 100, seq++);
	put(store, 101, seq++);
	close_ok(store);
	store = open_ok(&o);
	found = kit_scan(store);
	ck_assert_uint_eq(found.n, 2);
	ck_assert_uint_eq(info_of(store).cache_generation, gen + 1);
	ck_assert_uint_gt(kvr_store_next_seq(store), seq);
	ck_assert_int_eq(kit_read(store, kit_find(&found, 100)), 0);
	ck_assert_int_eq(kit_read(store, kit_find(&found, 101)), 0);
	ck_assert_int_eq(kvr_store_reset(store, NULL), 0);
	close_ok(store);
	free(found.at);
	/* with either superblock: both were rewritten */
	flip(paths[0], _i ? 24 : 4096 + 24);
	flip(paths[1], _i ? 24 : 4096 + 24);
	store = open_ok(&o);
	ck_assert_uint_eq(info_of(store).used, 0);
	ck_assert_uint_eq(info_of(store).cache_generation, gen + 2);
	close_ok(store);
}
END_TEST

START_TEST(test_reset_to_new_weights_refuses_the_old_ones)
{
	struct kvr_store_opts o = options(1, 4 * MIB, 0);
	struct kvr_store *store = open_ok(&o);
	struct kvr_model fresh = *o.model;

	put(store, 1, kvr_store_next_seq(store));
	strcpy(fresh.revision, "after-training");
	ck_assert_int_eq(kvr_store_reset(store, &fresh), 0);
	close_ok(store);
	ck_assert_int_eq(kvr_store_open(&o, &store), -EPROTO);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "revision"));
	o.model = &fresh;
	store = open_ok(&o);
	ck_assert_uint_eq(info_of(store).used, 0);
	close_ok(store);
}
END_TEST

/* --- slots and queues ------------------------------------------------------------------------- */

START_TEST(test_every_slot_is_given_once)
{
	struct kvr_store_opts o = options(3, 4 * MIB, _i);
	struct kvr_store *store = open_ok(&o);
	uint64_t slots = info_of(store).slots, n = 0, k, per[3] = { 0 };
	kvr_where *w = calloc(slots + 1, sizeof *w), again;

	while (!kvr_store_alloc(store, &w[n])) {
		per[w[n] >> 40]++;
		for (k = 0; k < n; k++)
			ck_assert_uint_ne(w[k], w[n]);
		n++;
		ck_assert_uint_le(n, slots);
		if (n == 30)
			ck_assert(per[0] == 10 && per[1] == 10 && per[2] == 10);
	}
	ck_assert_uint_eq(n, slots);
	ck_assert_uint_eq(info_of(store).used, slots);
	kvr_store_free(store, w[5]);
	kvr_store_free(store, w[5]); /* twice is once */
	kvr_store_free(store, KVR_NOWHERE);
	ck_assert_uint_eq(info_of(store).used, slots - 1);
	ck_assert_int_eq(kvr_store_alloc(store, &again), 0);
	ck_assert_uint_eq(again, w[5]);
	ck_assert_int_eq(kvr_store_alloc(store, &again), -ENOSPC);
	kvr_store_retire(store, w[7]);
	kvr_store_free(store, w[7]);
	ck_assert_int_eq(kvr_store_alloc(store, &again), -ENOSPC);
	ck_assert_uint_eq(info_of(store).retired_slots, 1);
	free(w);
	close_ok(store);
}
END_TEST

START_TEST(test_full_queue_says_again_and_loses_nothing)
{
	enum { N = 6000 };
	struct kvr_store_opts o = options(1, 192 * MIB, _i);
	struct kvr_store *store = open_ok(&o);
	struct kvr_store_op *ops = calloc(N, sizeof *ops), *ended[64];
	uint64_t deadline = test_deadline_ms(15000), seq = kvr_store_next_seq(store);
	uint32_t n = 0, done = 0, again = 0;
	struct kvr_key key = kit_key(1);
	void *image = kit_image(store);
	uint64_t sum = kit_fill(image, store, &key, seq);
	int err, i, got;

	while (done < N) {
		while (n < N) {
			ops[n] = (struct kvr_store_op){ .image = image,
							.key = key,
							.space = 1,
							.seq = seq,
							.header_checksum = sum };
			ck_assert_int_eq(kvr_store_alloc(store, &ops[n].where), 0);
			err = kvr_store_write(store, &ops[n]);
			if (err) {
				ck_assert_int_eq(err, -EAGAIN);
				kvr_store_free(store, ops[n].where);
				again++;
				break;
			}
			n++;
		}
		got = kvr_store_poll(store, ended, 64);
		for (i = 0; i < got; i++)
			ck_assert_int_eq(ended[i]->result, 0);
		done += (uint32_t)got;
		ck_assert_uint_eq(kvr_store_pending(store), n - done);
		ck_assert_msg(test_now_ns() < deadline, "%u of %u ended", done, n);
	}
	ck_assert_uint_gt(again, 0);
	ck_assert_uint_eq(info_of(store).writes, N);
	/* records of one page go together */
	ck_assert_uint_lt(info_of(store).bytes_written,
			  N * (info_of(store).slot_bytes + 4096ull) + 4 * MIB);
	free(image);
	free(ops);
	close_ok(store);
}
END_TEST

START_TEST(test_slot_not_in_use_is_refused)
{
	struct kvr_store_opts o = options(1, 4 * MIB, _i);
	struct kvr_store *store = open_ok(&o);
	struct kvr_store_op op = { .where = KVR_NOWHERE };

	ck_assert_int_eq(kvr_store_write(store, &op), -EINVAL);
	op.where = 3;
	ck_assert_int_eq(kvr_store_read(store, &op), -EINVAL);
	op.where = 1ull << 40;
	ck_assert_int_eq(kvr_store_read(store, &op), -EINVAL);
	ck_assert_uint_eq(kvr_store_pending(store), 0);
	close_ok(store);
}
END_TEST

/* --- damage ----------------------------------------------------------------------------------- */

START_TEST(test_one_superblock_is_enough)
{
	struct kvr_store_opts o = options(1, 4 * MIB, _i);
	struct kvr_store *store = open_ok(&o);
	int k;

	put(store, 1, kvr_store_next_seq(store));
	close_ok(store);
	for (k = 0; k < 4; k++) { /* opening mends what was damaged before */
		flip(paths[0], 4096u * (unsigned)(k % 2) + 200);
		store = open_ok(&o);
		ck_assert_uint_eq(info_of(store).used, 1);
		close_ok(store);
	}
	flip(paths[0], 200);
	flip(paths[0], 4096 + 200);
	open_fails(&o, -EBADMSG, "superblock", paths[0]);
	o.flags |= KVR_STORE_REFORMAT;
	store = open_ok(&o);
	ck_assert_uint_eq(info_of(store).used, 0);
	close_ok(store);
	patch(paths[0], 0, "GARBAGE!", 8);
	patch(paths[0], 4096, "GARBAGE!", 8);
	open_fails(&o, -EPROTO, "not a kvring store", NULL);
}
END_TEST

START_TEST(test_cut_file_is_refused)
{
	struct kvr_store_opts o = options(1, 4 * MIB, _i);

	close_ok(open_ok(&o));
	ck_assert_int_eq(truncate(paths[0], 3 * MIB), 0);
	o.bytes = 0;
	open_fails(&o, -EBADMSG, "cut short", paths[0]);
}
END_TEST

START_TEST(test_damaged_record_header_and_payload_are_misses)
{
	struct kvr_store_opts o = options(1, 4 * MIB, _i);
	struct kvr_store *store = open_ok(&o);
	uint64_t seq = kvr_store_next_seq(store), data = 8192 + 24576, i;
	struct kit_found found;
	struct kvr_store_info info;

	for (i = 0; i < 10; i++)
		ck_assert_uint_eq(put(store, i, seq + i), i);
	close_ok(store);
	flip(paths[0], 8192 + 128 * 3 + 10);		 /* the record of slot 3 */
	flip(paths[0], data + 24576 * 4 + 33);		 /* the header of slot 4 */
	flip(paths[0], data + 24576 * 5 + 160 + 1);	 /* a segment's checksum */
	flip(paths[0], data + 24576 * 6 + 4096);	 /* the first byte of the payload */
	flip(paths[0], data + 24576 * 7 + 4096 + 19999); /* the last one */
	flip(paths[0], data + 24576 * 8 + 4096 + 20000); /* padding: nobody's */
	store = open_ok(&o);
	found = kit_scan(store);
	ck_assert_uint_eq(found.n, 9);
	ck_assert_ptr_null(kit_find(&found, 3));
	for (i = 0; i < 10; i++) {
		if (i == 3)
			continue;
		ck_assert_int_eq(kit_read(store, kit_find(&found, i)),
				 i >= 4 && i <= 7 ? -EBADMSG : 0);
	}
	info = info_of(store);
	ck_assert_uint_eq(info.bad_records, 1);
	ck_assert_uint_eq(info.checksum_errors, 2); /* the payload is for the ranks to check */
	ck_assert_uint_eq(info.read_errors, 0);
	ck_assert_uint_eq(info.devices_offline, 0);
	free(found.at);
	close_ok(store);
}
END_TEST

START_TEST(test_record_of_another_slot_or_store_is_none)
{
	struct kvr_store_opts o = options(1, 4 * MIB, _i), o2 = o;
	struct kvr_store *store = open_ok(&o);
	char page[4096], image[24576];
	int fd;

	ck_assert_uint_eq(put(store, 1, kvr_store_next_seq(store)), 0);
	close_ok(store);
	o2.paths = path_list + 1;
	close_ok(open_ok(&o2));
	fd = open(paths[0], O_RDWR | O_CLOEXEC);
	ck_assert_int_eq(pread(fd, page, 4096, 8192), 4096);
	ck_assert_int_eq(pread(fd, image, 24576, 8192 + 24576), 24576);
	close(fd);
	patch(paths[1], 8192, page, 4096);
	patch(paths[1], 8192 + 24576, image, 24576);
	patch(paths[0], 8192 + 128 * 9, page, 128);
	store = open_ok(&o);
	ck_assert_uint_eq(info_of(store).used, 1);
	ck_assert_uint_eq(info_of(store).bad_records, 1);
	close_ok(store);
	store = open_ok(&o2);
	ck_assert_uint_eq(info_of(store).used, 0);
	ck_assert_uint_eq(info_of(store).bad_records, 1);
	close_ok(store);
}
END_TEST

/* --- devices that fail ------------------------------------------------------------------------ */

START_TEST(test_device_that_fails_goes_offline_and_others_go_on)
{
	struct kvr_store_opts o = options(0, 0, 0);
	struct kvr_fault_rates rates = { .eio = 10000 };
	struct kvr_io *ios[2];
	struct kvr_store *store;
	kvr_where where;
	int i, failed = 0, ok = 0;

	for (i = 0; i < 2; i++)
		ck_assert_int_eq(kvr_fault_open(4 * MIB, 4096, 16, 1, NULL, &ios[i]), 0);
	ck_assert_int_eq(kvr_store_open_io(&o, ios, 2, 1, &store), 0);
	kvr_fault_set_rates(ios[1], &rates);
	for (i = 0; i < 60; i++) {
		ck_assert_int_eq(kvr_store_alloc(store, &where), 0);
		if (kit_write(store, where, (uint64_t)i, 1000 + (uint64_t)i)) {
			ck_assert_uint_eq(where >> 40, 1);
			kvr_store_retire(store, where);
			failed++;
		} else {
			ok++;
		}
	}
	ck_assert_int_eq(failed, 8);
	ck_assert_int_eq(ok, 52);
	ck_assert_uint_eq(info_of(store).devices_offline, 1);
	ck_assert_uint_eq(info_of(store).write_errors, 8);
	ck_assert_uint_eq(info_of(store).retired_slots, 8);
	close_ok(store);
	for (i = 0; i < 2; i++)
		kvr_fault_free(ios[i]);
}
END_TEST

static struct kvr_store *never_freed; /* reachable, so that no leak checker complains */

START_TEST(test_close_counts_operations_that_never_ended)
{
	struct kvr_store_opts o = options(0, 0, 0);
	struct kvr_fault_rates rates = { .stuck = 10000 };
	static struct kvr_store_op op;
	struct kvr_io *io;
	struct kvr_store *store;

	ck_assert_int_eq(kvr_fault_open(4 * MIB, 4096, 16, 1, NULL, &io), 0);
	ck_assert_int_eq(kvr_store_open_io(&o, &io, 1, 1, &store), 0);
	kvr_fault_set_rates(io, &rates);
	op = (struct kvr_store_op){ .image = kit_image(store), .demand = 1 };
	ck_assert_int_eq(kvr_store_alloc(store, &op.where), 0);
	ck_assert_int_eq(kvr_store_read(store, &op), 0);
	never_freed = store;
	ck_assert_int_eq(kvr_store_close(store, test_deadline_ms(50)), 1);
	free(op.image);
	kvr_fault_free(io);
}
END_TEST

/* io_uring_setup() says EPERM from here on, as under a container's seccomp profile. */
static void forbid_io_uring(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = { KVR_ARRAY_LEN(code), code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog))
		_exit(77);
}

START_TEST(test_refused_io_uring_is_replaced_and_said)
{
	struct kvr_store_opts o = options(1, 4 * MIB, 0);
	pid_t pid = fork();
	int status;

	if (!pid) {
		struct kvr_store *store;
		struct kit_found found;

		forbid_io_uring();
		if (kvr_store_open(&o, &store))
			_exit(1);
		if (strcmp(info_of(store).backend, "pread"))
			_exit(2);
		if (!kvr_store_degraded(store, 0) ||
		    !strstr(kvr_store_degraded(store, 0), "io_uring"))
			_exit(3);
		put(store, 1, kvr_store_next_seq(store));
		found = kit_scan(store);
		if (found.n != 1 || kit_read(store, &found.at[0]))
			_exit(4);
		_exit(kvr_store_close(store, test_deadline_ms(1000)));
	}
	status = test_reap(pid, 5000);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
		test_skip("seccomp filters are not allowed here");
		return;
	}
	ck_assert_int_eq(status, 0);
}
END_TEST

START_TEST(test_buffered_is_said)
{
	struct kvr_store_opts o = options(1, 4 * MIB, _i);
	struct kvr_store *store;

	o.flags |= KVR_STORE_BUFFERED;
	store = open_ok(&o);
	ck_assert_ptr_nonnull(strstr(kvr_store_degraded(store, 0), "buffered"));
	put(store, 1, kvr_store_next_seq(store));
	close_ok(store);
	o.flags &= ~(uint32_t)KVR_STORE_BUFFERED;
	store = open_ok(&o);
	ck_assert_uint_eq(info_of(store).used, 1);
	close_ok(store);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("store");
	TCase *t = tcase_create("store");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, test_reopen_finds_what_was_written, 0, 2);
	tcase_add_loop_test(t, test_directory_gets_a_file_of_its_own, 0, 2);
	tcase_add_loop_test(t, test_newest_write_of_a_key_counts, 0, 2);
	tcase_add_loop_test(t, test_seqs_rise_over_runs, 0, 2);
	tcase_add_loop_test(t, test_reset_voids_all_blocks, 0, 2);
	tcase_add_test(t, test_reset_to_new_weights_refuses_the_old_ones);
	tcase_add_loop_test(t, test_every_slot_is_given_once, 0, 2);
	tcase_add_loop_test(t, test_full_queue_says_again_and_loses_nothing, 0, 2);
	tcase_add_loop_test(t, test_slot_not_in_use_is_refused, 0, 2);
	tcase_add_loop_test(t, test_one_superblock_is_enough, 0, 2);
	tcase_add_loop_test(t, test_cut_file_is_refused, 0, 2);
	tcase_add_loop_test(t, test_damaged_record_header_and_payload_are_misses, 0, 2);
	tcase_add_loop_test(t, test_record_of_another_slot_or_store_is_none, 0, 2);
	tcase_add_loop_test(t, test_buffered_is_said, 0, 2);
	tcase_add_test(t, test_device_that_fails_goes_offline_and_others_go_on);
	tcase_add_test(t, test_close_counts_operations_that_never_ended);
	tcase_add_test(t, test_refused_io_uring_is_replaced_and_said);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
