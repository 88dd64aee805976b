/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake: attaching waits for a whole segment, and refuses, with a reason, any other. */
#include "group_util.h"

#include <sys/stat.h>

#include "util.h"

START_TEST(test_attach_waits_for_the_leader)
{
	struct member r[2], l;

	r[0] = member_start(member_rank, 0);
	r[1] = member_start(member_rank, 3);
	test_sleep_ms(50);
	l = start_leader();
	for (int i = 0; i < 2; i++) {
		struct report got = member_hears(&r[i]);

		ck_assert_msg(!got.rc, "%s", got.why);
		ck_assert_uint_eq(got.epoch, 1);
	}
	member_end(&r[0]);
	member_end(&r[1]);
	member_end(&l);
}
END_TEST

START_TEST(test_attach_without_leader_ends_at_the_deadline)
{
	uint64_t t = test_now_ns();

	ck_assert_int_eq(try_attach(0, 60), -ETIMEDOUT);
	ck_assert_uint_ge(test_now_ns() - t, 60000000);
	explained("absent");
	explained(path);
	ck_assert_int_eq(kvr_group_attach(name, 0, &opts, 0, (void *)&t), -ETIMEDOUT);
}
END_TEST

/* Attaches again and again while groups come and go; any answer but these is a half-built one. */
static int member_attach_loop(struct member *m)
{
	uint64_t until = test_deadline_ms(700);
	int good = 0;

	while (test_now_ns() < until) {
		struct kvr_group *g;
		int rc = kvr_group_attach(name, 0, &opts, test_now_ns() + 300000, &g);

		if (rc != 0 && rc != -ETIMEDOUT && rc != -EBUSY) {
			member_report(m, rc, NULL);
			return 1;
		}
		if (rc)
			continue;
		good += g->header.ranks == 4 && g->header.config_len == 3072 &&
			g->header.config[3071] == 0x5a;
		kvr_group_close(g);
	}
	member_report(m, good, NULL);
	return 0;
}

START_TEST(test_never_visible_half_built)
{
	uint8_t config[3072];
	struct pollfd p;
	struct member m;
	struct report r;

	memset(config, 0x5a, sizeof config);
	opts.config = config;
	opts.config_len = sizeof config;
	m = member_start(member_attach_loop, 0);
	p = (struct pollfd){ .fd = m.from, .events = POLLIN };
	while (!poll(&p, 1, 0)) {
		struct kvr_group *g = create();

		test_sleep_ms(1);
		kvr_group_close(g);
	}
	r = member_hears(&m);
	ck_assert_msg(r.rc > 0, "%d %s", r.rc, r.why);
	member_end(&m);
}
END_TEST

/* Writes a header into the file of a living group. */
static void put_header(struct kvr_seg_header *h, int fix_sum)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fix_sum)
		h->checksum = kvr_header_sum(h);
	ck_assert_int_eq(pwrite(fd, h, sizeof *h, 0), sizeof *h);
	close(fd);
}

START_TEST(test_attach_refuses_every_changed_byte)
{
	struct kvr_group *l = create();
	struct kvr_seg_header good = l->header;
	int fd = open(path, O_RDWR | O_CLOEXEC);

	for (size_t i = 0; i < sizeof good; i++) {
		uint8_t b = ((uint8_t *)&good)[i], changed = b ^ 0x10;

		ck_assert_int_eq(pwrite(fd, &changed, 1, (off_t)i), 1);
		ck_assert_msg(try_attach(0, 0) == -EPROTO, "byte %zu: %s", i, kvr_explain());
		ck_assert_int_eq(pwrite(fd, &b, 1, (off_t)i), 1);
	}
	close(fd);
	ck_assert_int_eq(try_attach(0, 0), 0);
	kvr_group_close(l);
}
END_TEST

START_TEST(test_attach_refuses_other_layout_version_and_tags)
{
	struct kvr_group *l = create();
	struct kvr_seg_header good = l->header, h = good;

	h.layout_hash ^= 1;
	put_header(&h, 1);
	ck_assert_int_eq(try_attach(0, 1000), -EPROTO);
	explained("layout_hash");
	h = good, h.version = KVR_SEG_VERSION + 5;
	put_header(&h, 1);
	ck_assert_int_eq(try_attach(0, 1000), -EPROTO);
	explained("version is 0x9");
	explained("0x4");
	h = good, h.tag_hash = 0xabc;
	put_header(&h, 1);
	ck_assert_int_eq(try_attach(0, 1000), -EPROTO);
	explained("tag_hash is 0xabc");
	h = good, h.ranks = 5;
	put_header(&h, 1);
	ck_assert_int_eq(try_attach(0, 1000), -EPROTO);
	explained("total_bytes");
	h = good, strcpy(h.name, "other");
	put_header(&h, 1);
	ck_assert_int_eq(try_attach(0, 1000), -EPROTO);
	explained("other");
	/* Nothing was repaired or removed because of it. */
	h = good;
	put_header(&h, 0);
	ck_assert_int_eq(try_attach(0, 1000), 0);
	kvr_group_close(l);
}
END_TEST

START_TEST(test_attach_names_the_model_field)
{
	struct kvr_model a = { .name = "llama", .dtype = "bf16", .layers = 80 }, b = a;
	struct kvr_group *l;

	opts.model = &a;
	l = create();
	opts.model = &b;
	b.layers = 61;
	ck_assert_int_eq(try_attach(0, 1000), -EPROTO);
	explained("model.layers is 80 there and 61 here");
	opts.model = NULL;
	ck_assert_int_eq(try_attach(0, 1000), 0);
	opts.model = &a;
	ck_assert_int_eq(try_attach(1, 1000), 0);
	kvr_group_close(l);
}
END_TEST

START_TEST(test_truncated_file_is_refused)
{
	static const off_t sizes[] = { 0, 1, 4095, 4096, 8192, 40000 };
	struct kvr_group *l = create();
	off_t total = (off_t)l->layout.total;
	int copy, fd = open(path, O_RDONLY | O_CLOEXEC);
	uint8_t *bytes = malloc((size_t)total);

	ck_assert_int_eq(pread(fd, bytes, (size_t)total, 0), total);
	close(fd);
	/* A copy: shrinking the file of a living group would kill its leader. */
	kvr_group_close(l);
	copy = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	for (size_t i = 0; i < KVR_ARRAY_LEN(sizes); i++) {
		ck_assert_int_eq(ftruncate(copy, 0), 0);
		ck_assert_int_eq(pwrite(copy, bytes, (size_t)sizes[i], 0), sizes[i]);
		ck_assert_int_eq(try_attach(0, 1000), -EPROTO);
		ck_assert_int_eq(try_create(), -EPROTO);
	}
	ck_assert_int_eq(pwrite(copy, bytes, (size_t)total, 0), total);
	ck_assert_int_eq(ftruncate(copy, total + 1), 0);
	ck_assert_int_eq(try_attach(0, 1000), -EPROTO);
	ck_assert_int_eq(ftruncate(copy, total - 1), 0);
	ck_assert_int_eq(try_attach(0, 1000), -EPROTO);
	ck_assert_int_eq(try_create(), -EPROTO);
	close(copy);
	free(bytes);
}
END_TEST

/* Neither call may touch what it refuses. */
static void refused_untouched(int err)
{
	struct stat a, b;

	ck_assert_int_eq(lstat(path, &a), 0);
	ck_assert_int_eq(try_attach(0, 1000), err);
	ck_assert_int_eq(try_create(), err);
	ck_assert_int_eq(lstat(path, &b), 0);
	ck_assert(a.st_ino == b.st_ino && a.st_size == b.st_size && a.st_mode == b.st_mode &&
		  a.st_mtim.tv_nsec == b.st_mtim.tv_nsec && a.st_ctim.tv_nsec == b.st_ctim.tv_nsec);
}

START_TEST(test_foreign_files_are_refused_and_untouched)
{
	static char junk[20000];
	char other[KVR_SHM_PATH + 8];
	int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);

	memset(junk, 'j', sizeof junk);
	ck_assert_int_eq(write(fd, junk, sizeof junk), sizeof junk);
	close(fd);
	refused_untouched(-EPROTO);
	explained("magic");
	chmod(path, 0666);
	refused_untouched(-EPERM);
	explained("0666");
	if (!geteuid()) {
		chmod(path, 0600);
		ck_assert_int_eq(chown(path, 12345, (gid_t)-1), 0);
		refused_untouched(-EPERM);
		explained("12345");
	}
	snprintf(other, sizeof other, "%s.target", path);
	ck_assert_int_eq(rename(path, other), 0);
	ck_assert_int_eq(symlink(other, path), 0);
	refused_untouched(-EPROTO);
	unlink(path);
	ck_assert_int_eq(mkdir(path, 0700), 0);
	refused_untouched(-EPROTO);
	rmdir(path);
}
END_TEST

START_TEST(test_same_rank_twice)
{
	struct member l = start_leader(), r = start_rank(2);
	struct kvr_group *g;
	char pid[32];
	uint64_t t = test_now_ns();

	ck_assert_int_eq(try_attach(2, 5000), -EBUSY);
	ck_assert_uint_lt(test_now_ns() - t, 4000000000u); /* at once: waiting does not help */
	snprintf(pid, sizeof pid, "pid %d", (int)r.pid);
	explained(pid);
	explained("alive");
	g = attach(1);
	ck_assert_int_eq(try_attach(1, 0), -EBUSY);
	kvr_group_close(g);
	member_end(&r);
	/* It left; a new epoch might come, so this waits. */
	ck_assert_int_eq(try_attach(2, 30), -EBUSY);
	explained("left");
	ck_assert_int_eq(try_attach(1, 30), -EBUSY);
	ck_assert_int_eq(try_attach(4, 1000), -EINVAL);
	explained("rank 4 of a group with 4 ranks");
	member_end(&l);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("group_attach");
	TCase *t = tcase_create("handshake");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, test_attach_waits_for_the_leader);
	tcase_add_test(t, test_attach_without_leader_ends_at_the_deadline);
	tcase_add_test(t, test_never_visible_half_built);
	tcase_add_test(t, test_attach_refuses_every_changed_byte);
	tcase_add_test(t, test_attach_refuses_other_layout_version_and_tags);
	tcase_add_test(t, test_attach_names_the_model_field);
	tcase_add_test(t, test_truncated_file_is_refused);
	tcase_add_test(t, test_foreign_files_are_refused_and_untouched);
	tcase_add_test(t, test_same_rank_twice);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
