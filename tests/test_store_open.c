/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a store on real files, with io_uring and with pread threads (loop tests: 0 and 1): what
 * is refused, that nothing of others is touched, and what a killed owner leaves.
 */
#include "store_kit.h"
#include "util.h"

/* --- what is refused -------------------------------------------------------------------------- */

START_TEST(test_other_fingerprint_is_refused_by_name)
{
	struct kvr_store_opts o = options(1, 4 * MIB, _i);
	struct kvr_model model = kit_model;
	struct kvr_store *store = open_ok(&o);
	size_t len, len2;
	char *before, *after;

	put(store, 1, kvr_store_next_seq(store));
	close_ok(store);
	before = slurp(paths[0], &len);
	strcpy(model.revision, "r2");
	o.model = &model;
	open_fails(&o, -EPROTO, "model.revision \"r1\"", "\"r2\"");
	o.model = &kit_model;
	o.bytes = 8 * MIB;
	open_fails(&o, -EPROTO, "4194304", "8388608");
	after = slurp(paths[0], &len2);
	ck_assert(len == len2 && !memcmp(before, after, len));
	free(before);
	free(after);
	/* what the caller gives up is made anew */
	o.flags |= KVR_STORE_REFORMAT;
	o.model = &model;
	store = open_ok(&o);
	ck_assert_uint_eq(info_of(store).used, 0);
	put(store, 2, kvr_store_next_seq(store));
	close_ok(store);
	o.flags = KVR_STORE_REFORMAT; /* nothing differs: nothing is formatted */
	store = open_ok(&o);
	ck_assert_uint_eq(info_of(store).used, 1);
	close_ok(store);
	o.bytes = 4 * MIB;
	close_ok(open_ok(&o));
	free(slurp(paths[0], &len));
	ck_assert_uint_eq(len, 4 * MIB);
}
END_TEST

START_TEST(test_foreign_file_is_never_touched)
{
	static const size_t sizes[] = { 1, 100, 8191, 8192, 70000, 3 * MIB };
	struct kvr_store_opts o = options(1, 4 * MIB, _i);
	unsigned i, k;

	o.flags |= KVR_STORE_REFORMAT;
	for (i = 0; i < KVR_ARRAY_LEN(sizes); i++) {
		size_t len, n = sizes[i];
		char *data = calloc(1, n), *after;
		int fd;

		/* zeros up to the last byte of what is looked at, or text all over */
		for (k = 0; k < n; k++)
			data[k] = i % 2 ? 0 : (char)('a' + k % 26);
		data[kvr_min(n, MIB) - 1] = 'x';
		fd = open(paths[0], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		ck_assert_int_eq(write(fd, data, n), (ssize_t)n);
		close(fd);
		open_fails(&o, -EPROTO, paths[0], "nothing was changed");
		after = slurp(paths[0], &len);
		ck_assert(len == n && !memcmp(data, after, n));
		free(after);
		free(data);
	}
}
END_TEST

START_TEST(test_zeros_are_an_empty_device)
{
	struct kvr_store_opts o = options(1, 4 * MIB, _i);
	struct kvr_store *store;
	size_t len;
	int fd = open(paths[0], O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	ck_assert_int_eq(ftruncate(fd, 6 * MIB), 0);
	close(fd);
	store = open_ok(&o);
	put(store, 1, kvr_store_next_seq(store));
	close_ok(store);
	free(slurp(paths[0], &len));
	ck_assert_uint_eq(len, 4 * MIB);
	store = open_ok(&o);
	ck_assert_uint_eq(info_of(store).used, 1);
	close_ok(store);
	/* as large as it is, when no size is given */
	ck_assert_int_eq(truncate(paths[0], 0), 0);
	ck_assert_int_eq(truncate(paths[0], 2 * MIB + 100), 0);
	o.bytes = 0;
	close_ok(open_ok(&o));
	ck_assert_int_eq(truncate(paths[0], 0), 0);
	open_fails(&o, -EINVAL, paths[0], "how large");
}
END_TEST

START_TEST(test_paths_that_cannot_be_used)
{
	struct kvr_store_opts o = options(1, 4 * MIB, _i);
	char path[400];
	const char *given[] = { path };

	o.flags &= ~(uint32_t)KVR_STORE_CREATE;
	open_fails(&o, -ENOENT, paths[0], NULL);
	o.flags |= KVR_STORE_CREATE;
	o.paths = given;
	snprintf(path, sizeof path, "%s/none/device", dir);
	open_fails(&o, -ENOENT, "none", NULL);
	snprintf(path, sizeof path, "%s/link", dir);
	close_ok(open_ok(&(struct kvr_store_opts){ o.size, path_list, 1, o.flags, o.bytes, o.model,
						   o.shape, NULL, 0, 0, 0, 0, NULL, NULL, NULL }));
	ck_assert_int_eq(symlink(paths[0], path), 0);
	open_fails(&o, -EINVAL, "symbolic link", NULL);
	memset(path, 'x', sizeof path - 1);
	path[sizeof path - 1] = 0;
	path[0] = '/';
	open_fails(&o, -ENAMETOOLONG, NULL, NULL);
	o.npaths = 0;
	open_fails(&o, -EINVAL, "0 paths", NULL);
	o.npaths = 17;
	open_fails(&o, -EINVAL, "17 paths", NULL);
	o = options(1, 4 * MIB, _i);
	o.size = 8;
	open_fails(&o, -EINVAL, "size", NULL);
	o.size = sizeof o + 8;
	open_fails(&o, -EINVAL, "size", NULL);
	o.size = sizeof o;
	o.model = NULL;
	open_fails(&o, -EINVAL, "model", NULL);
}
END_TEST

START_TEST(test_too_small_names_the_minimum)
{
	struct kvr_store_opts o = options(2, 2 * 36864 - 1, _i);
	struct kvr_store *store;

	open_fails(&o, -ENOSPC, "36864", NULL);
	ck_assert_int_ne(access(paths[0], F_OK), 0); /* nothing is left behind */
	ck_assert_int_ne(access(paths[1], F_OK), 0);
	o.bytes++;
	store = open_ok(&o);
	ck_assert_uint_eq(info_of(store).slots, 2);
	put(store, 1, kvr_store_next_seq(store));
	close_ok(store);
	o.bytes = 1ull << 60;
	o.flags |= KVR_STORE_REFORMAT;
	open_fails(&o, -ENOSPC, "free", NULL);
	o.bytes = 0; /* what was there is still there */
	store = open_ok(&o);
	ck_assert_uint_eq(info_of(store).used, 1);
	close_ok(store);
}
END_TEST

START_TEST(test_second_opener_is_busy)
{
	struct kvr_store_opts o = options(1, 4 * MIB, _i);
	struct kvr_store *store = open_ok(&o);
	pid_t pid;

	o.lock_deadline_ns = test_deadline_ms(30);
	open_fails(&o, -EBUSY, paths[0], NULL);
	put(store, 1, kvr_store_next_seq(store));
	pid = fork();
	if (!pid) {
		struct kvr_store *other;

		o.lock_deadline_ns = test_deadline_ms(30);
		_exit(kvr_store_open(&o, &other) == -EBUSY ? 0 : 1);
	}
	ck_assert_int_eq(test_reap(pid, 5000), 0);
	close_ok(store);
	close_ok(open_ok(&o));
}
END_TEST

START_TEST(test_device_set_must_be_whole)
{
	struct kvr_store_opts o = options(3, 6 * MIB, _i);
	const char *swapped[] = { paths[2], paths[0], paths[1] };
	const char *twice[] = { paths[0], paths[1], paths[3] };
	struct kvr_store *store = open_ok(&o);
	uint64_t seq = kvr_store_next_seq(store), i;
	struct kit_found found;

	ck_assert_uint_eq(info_of(store).devices, 3);
	for (i = 0; i < 30; i++)
		put(store, i, seq + i);
	close_ok(store);
	o.paths = swapped;
	store = open_ok(&o);
	found = kit_scan(store);
	ck_assert_uint_eq(found.n, 30);
	for (i = 0; i < 30; i++)
		ck_assert_int_eq(kit_read(store, kit_find(&found, i)), 0);
	free(found.at);
	close_ok(store);
	o.bytes = 0;
	o.npaths = 2;
	open_fails(&o, -EPROTO, "3 devices, 2 are given", NULL);
	o.npaths = 3;
	copy_file(paths[0], paths[3]);
	o.paths = twice;
	open_fails(&o, -EPROTO, "device 2 of the store is missing", NULL);
	ck_assert_int_eq(unlink(paths[3]), 0);
	open_fails(&o, -EPROTO, "is empty", NULL);
	ck_assert_int_ne(access(paths[3], F_OK), 0);
	o.paths = path_list + 3;
	o.npaths = 1;
	o.bytes = 2 * MIB;
	close_ok(open_ok(&o)); /* another store of one device */
	o.npaths = 3;
	o.bytes = 0;
	o.paths = twice;
	open_fails(&o, -EPROTO, "another store", NULL);
	o.paths = path_list;
	store = open_ok(&o);
	ck_assert_uint_eq(info_of(store).used, 30);
	close_ok(store);
}
END_TEST

/* --- kill -9 ---------------------------------------------------------------------------------- */

struct word {
	uint64_t begin; /* 1: about to write to this slot, 0: poll() has returned that write */
	uint64_t where, number, seq;
};

static void tell(int fd, uint64_t begin, const struct kvr_store_op *op, uint64_t number)
{
	struct word w = { begin, op->where, number, op->seq };

	if (write(fd, &w, sizeof w) != (ssize_t)sizeof w)
		_exit(9);
}

/* Writes and evicts for ever, eight at a time. */
static void writer(const struct kvr_store_opts *o, int fd, uint64_t rng)
{
	static struct kvr_store_op ops[8];
	struct kvr_store_op *ended[8];
	static kvr_where have[4096];
	uint64_t seq, n = 0, held = 0, number[8];
	struct kvr_store *store;
	struct kit_found found;
	int i, got, free_ops = 8;

	if (kvr_store_open(o, &store))
		_exit(8);
	seq = kvr_store_next_seq(store);
	found = kit_scan(store);
	for (n = 0; n < found.n; n++)
		have[held++] = found.at[n].where;
	for (i = 0; i < 8; i++)
		ops[i] = (struct kvr_store_op){ .image = kit_image(store), .space = 1 };
	for (;;) {
		for (i = 0; i < 8; i++) {
			struct kvr_store_op *op = &ops[i];

			if (op->user || kit_rng(&rng) % 3 == 0)
				continue;
			while (kvr_store_alloc(store, &op->where)) { /* evict any */
				uint64_t k = kit_rng(&rng) % held;

				kvr_store_free(store, have[k]);
				have[k] = have[--held];
			}
			number[i] = kit_rng(&rng) % 200;
			op->key = kit_key(number[i]);
			op->seq = seq++;
			op->header_checksum = kit_fill(op->image, store, &op->key, op->seq);
			op->user = op;
			tell(fd, 1, op, number[i]);
			if (kvr_store_write(store, op))
				_exit(7);
			free_ops--;
		}
		got = kvr_store_poll(store, ended, 8);
		for (i = 0; i < got; i++) {
			if (ended[i]->result)
				_exit(6);
			tell(fd, 0, ended[i], number[ended[i] - ops]);
			ended[i]->user = NULL;
			have[held++] = ended[i]->where;
			free_ops++;
		}
	}
}

/* Each write that poll() had returned, and whose slot was not written again, is there. */
static void check_after_kill(const struct kvr_store_opts *o, const struct word *last,
			     uint64_t *ret_n)
{
	struct kvr_store *store = open_ok(o);
	struct kit_found found = kit_scan(store);
	uint64_t i, slot, newest, sure = 0;

	for (i = 0; i < found.n; i++) {
		int err = kit_read(store, &found.at[i]);

		slot = found.at[i].where;
		ck_assert(!err || err == -EBADMSG);
		if (!last[slot].begin && last[slot].seq)
			ck_assert_int_eq(err, 0);
	}
	for (slot = 0; slot < 4096; slot++) {
		const struct kvr_store_found *f;

		if (last[slot].begin || !last[slot].seq)
			continue;
		sure++;
		f = kit_find(&found, last[slot].number);
		ck_assert_ptr_nonnull(f);
		newest = f->seq; /* of its key; the others were rightly dropped */
		ck_assert_uint_ge(newest, last[slot].seq);
	}
	*ret_n = sure;
	free(found.at);
	close_ok(store);
}

START_TEST(test_killed_writer_loses_no_ended_write)
{
	struct kvr_store_opts o = options(1, 8 * MIB, _i);
	uint64_t rng = test_seed(), total = 0, n, words = 0;
	static struct word last[4096];
	int round;

	for (round = 0; round < 6; round++) {
		struct word w;
		int fd[2];
		pid_t pid;

		ck_assert_int_eq(pipe2(fd, O_CLOEXEC), 0);
		pid = fork();
		if (!pid) {
			close(fd[0]);
			writer(&o, fd[1], rng);
		}
		close(fd[1]);
		n = 1 + kit_rng(&rng) % 1500;
		while (read(fd[0], &w, sizeof w) == (ssize_t)sizeof w) {
			ck_assert_uint_lt(w.where, 4096);
			last[w.where] = w;
			words++;
			if (!--n)
				kill(pid, SIGKILL); /* and read what it had still said */
		}
		close(fd[0]);
		ck_assert_int_eq(test_reap(pid, 5000), SIGKILL);
		check_after_kill(&o, last, &n);
		total += n;
	}
	ck_assert_uint_gt(words, 6);
	ck_assert_uint_gt(total, 0);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("store_open");
	TCase *t = tcase_create("store_open");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, test_other_fingerprint_is_refused_by_name, 0, 2);
	tcase_add_loop_test(t, test_foreign_file_is_never_touched, 0, 2);
	tcase_add_loop_test(t, test_zeros_are_an_empty_device, 0, 2);
	tcase_add_loop_test(t, test_paths_that_cannot_be_used, 0, 2);
	tcase_add_loop_test(t, test_too_small_names_the_minimum, 0, 2);
	tcase_add_loop_test(t, test_second_opener_is_busy, 0, 2);
	tcase_add_loop_test(t, test_device_set_must_be_whole, 0, 2);
	tcase_add_loop_test(t, test_killed_writer_loses_no_ended_write, 0, 2);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
