/* SPDX-License-Identifier: Apache-2.0 */
/* The host pool: its sizes, its file, and who may attach to it. */
#include "harness.h"

#include <dirent.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "hash.h"
#include "kvring/err.h"
#include "must.h"
#include "node.h"
#include "pool.h"
#include "shm.h"

static const uint8_t uuid[16] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };
static const struct kvr_model model = { .name = "org/model", .dtype = "bf16", .layers = 61 };
static struct kvr_shape shape;
static struct kvr_geometry geo;
static char name[KVR_NAME_MAX];
static char path[KVR_SHM_PATH];

/* Options of a group of its own with `slots` slots of 16 KiB + header. */
static struct kvr_pool_opts options(uint64_t slots)
{
	ck_assert_int_eq(kvr_shape_split(4, 4, 16384, &shape), 0);
	ck_assert_int_eq(kvr_geometry_init(&shape, 4096, &geo), 0);
	return (struct kvr_pool_opts){ .name = name,
				       .uuid = uuid,
				       .epoch = 3,
				       .host_bytes = KVR_POOL_DATA + slots * geo.slot_bytes,
				       .node = KVR_NODE_ANY,
				       .model = &model,
				       .shape = &shape,
				       .geo = &geo };
}

/* In the process that forks the tests: one that fails leaves its file, the next must not meet it.
 */
static void choose_name(void)
{
	test_name(name, sizeof name, "pool");
	ck_assert_int_eq(kvr_shm_path(path, sizeof path, NULL, name, KVR_SHM_POOL, 0), 0);
}

static void remove_file(void)
{
	unlink(path);
}

static int count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	ck_assert_ptr_nonnull(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static int exists(const char *file)
{
	return access(file, F_OK) == 0;
}

/* Created and published: 0, or the error of either. */
static int make_pool(const struct kvr_pool_opts *o, struct kvr_pool *ret_pool)
{
	struct kvr_pool p;
	int err = kvr_pool_create(o, &p);

	if (err)
		return err;
	err = kvr_pool_publish(&p);
	if (err)
		kvr_pool_close(&p);
	else
		*ret_pool = p;
	return err;
}

static struct kvr_pool create(const struct kvr_pool_opts *o)
{
	struct kvr_pool p;

	ck_assert_msg(!make_pool(o, &p), "%s", kvr_explain());
	return p;
}

/* --- sizes -------------------------------------------------------------------------------------
 */

START_TEST(test_slots_that_fit)
{
	struct kvr_pool_opts o = options(1);

	ck_assert_uint_eq(geo.slot_bytes, 4096 + 16384);
	ck_assert_uint_eq(kvr_pool_slots(0, o.geo), 0);
	ck_assert_uint_eq(kvr_pool_slots(KVR_POOL_DATA - 1, o.geo), 0);
	ck_assert_uint_eq(kvr_pool_slots(KVR_POOL_DATA, o.geo), 0);
	ck_assert_uint_eq(kvr_pool_slots(KVR_POOL_DATA + geo.slot_bytes - 1, o.geo), 0);
	ck_assert_uint_eq(kvr_pool_slots(KVR_POOL_DATA + geo.slot_bytes, o.geo), 1);
	ck_assert_uint_eq(kvr_pool_slots(KVR_POOL_DATA + 8 * geo.slot_bytes - 1, o.geo), 7);
	ck_assert_uint_eq(kvr_pool_slots(UINT64_MAX, o.geo),
			  (UINT64_MAX - KVR_POOL_DATA) / geo.slot_bytes);
}
END_TEST

/* Slots of real models: each a header and the payload behind it, both on pages of their own. */
static void check_images(uint64_t payload, uint32_t header)
{
	struct kvr_shape real = shape;
	struct kvr_pool_opts o = options(1);
	struct kvr_pool p;
	uint32_t slot;
	uint64_t i;

	shape = real;
	ck_assert_int_eq(kvr_geometry_init(&shape, 4096, &geo), 0);
	ck_assert_uint_eq(geo.header_bytes, header);
	ck_assert_uint_ge(geo.slot_bytes, header + payload);
	ck_assert_uint_lt(geo.slot_bytes, header + payload + 4096);
	o.host_bytes = KVR_POOL_DATA + 3 * geo.slot_bytes + 4000; /* the rest is not used */
	p = create(&o);
	ck_assert_uint_eq(p.slots, 3);
	ck_assert_uint_eq(p.bytes, KVR_POOL_DATA + 3 * geo.slot_bytes);
	for (slot = 0; slot < 3; slot++) {
		uint8_t *image = kvr_pool_image(&p, slot);

		ck_assert_uint_eq((uintptr_t)image % 4096, 0);
		ck_assert_uint_eq((uintptr_t)(image + geo.header_bytes) % 4096, 0);
		memset(image, (int)slot + 1, geo.slot_bytes);
	}
	for (slot = 0; slot < 3; slot++)
		for (i = 0; i < geo.slot_bytes; i += 2048)
			must_eq(kvr_pool_image(&p, slot)[i], slot + 1);
	ck_assert(kvr_pool_image(&p, 2) + geo.slot_bytes == p.mem + p.bytes);
	/* all that was the slots' alone: the header is as it was */
	ck_assert_int_eq(memcmp(p.mem, "KVRPOOL1", 8), 0);
	kvr_pool_close(&p);
}

START_TEST(test_slots_of_real_models)
{
	ck_assert_int_eq(kvr_shape_replicated(8, 61, 1124352, &shape), 0); /* DeepSeek-V3 */
	check_images(1124352, 4096);
	ck_assert_uint_eq(geo.slot_bytes, 4096 + 1126400);
	ck_assert_int_eq(kvr_shape_split(8, 80, 5 << 20, &shape), 0); /* Llama-3-70B */
	check_images(5 << 20, 8192);
	ck_assert_uint_eq(geo.segments, 640);
}
END_TEST

/* --- create and close ------------------------------------------------------------------------- */

START_TEST(test_create_makes_a_private_file_with_a_header)
{
	struct kvr_pool_opts o = options(5);
	int fds = count_fds();
	struct kvr_pool p = create(&o);
	struct kvr_pool_header h;
	struct stat st;
	uint64_t sum, i;

	kvr_pool_set_generation(&p, 9);
	ck_assert_str_eq(p.path, path);
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_int_eq(st.st_size, (off_t)p.bytes);
	ck_assert_uint_eq(st.st_mode & 07777, 0600);
	ck_assert_uint_ge((uint64_t)st.st_blocks * 512, p.bytes); /* reserved, not sparse */
	memcpy(&h, p.mem, sizeof h);
	ck_assert(h.magic == KVR_POOL_MAGIC && h.version == KVR_POOL_VERSION);
	ck_assert_uint_eq(h.header_bytes, geo.header_bytes);
	ck_assert_int_eq(memcmp(h.uuid, uuid, sizeof uuid), 0);
	ck_assert_uint_eq(h.epoch, 3);
	ck_assert_uint_eq(h.slots, 5);
	ck_assert_uint_eq(h.slot_bytes, geo.slot_bytes);
	ck_assert_uint_eq(h.block_bytes, 16384);
	ck_assert_uint_eq(h.cache_generation, 9);
	ck_assert_int_eq(memcmp(&h.model, &model, sizeof model), 0);
	ck_assert(h.shape_hash == kvr_shape_hash(&shape));
	for (i = 0; i < sizeof h.reserved; i++)
		must_eq(h.reserved[i], 0);
	sum = h.checksum;
	h.checksum = h.cache_generation = 0;
	ck_assert_uint_eq(kvr_hash(&h, sizeof h, 0), sum);
	for (i = KVR_POOL_DATA; i < p.bytes; i++) /* nobody else's old bytes */
		must_eq(p.mem[i], 0);
	ck_assert(fcntl(p.fd, F_GETFD) & FD_CLOEXEC);
	kvr_pool_close(&p);
	ck_assert(!exists(path));
	kvr_pool_close(&p); /* twice is harmless, and so is one that was never made */
	p = (struct kvr_pool){ .fd = -1 };
	kvr_pool_close(&p);
	ck_assert_int_eq(count_fds(), fds);
}
END_TEST

START_TEST(test_create_without_a_model)
{
	struct kvr_pool_opts o = options(1);
	static const struct kvr_model none;
	struct kvr_pool p, q;

	o.model = NULL;
	p = create(&o);
	ck_assert_int_eq(
		memcmp(p.mem + offsetof(struct kvr_pool_header, model), &none, sizeof none), 0);
	ck_assert_int_eq(kvr_pool_attach(&o, 1, 0, &q), 0);
	kvr_pool_close(&q);
	kvr_pool_close(&p);
}
END_TEST

/* Nothing of a pool that could not be made stays, and the caller's struct is as it was. */
static void check_refused(const struct kvr_pool_opts *o, int expected, const char *said)
{
	int fds = count_fds(), err;
	struct kvr_pool p, before;

	memset(&p, 0x5a, sizeof p);
	before = p;
	err = make_pool(o, &p);
	ck_assert_msg(err == expected, "%d instead of %d: %s", err, expected, kvr_explain());
	ck_assert_msg(strstr(kvr_explain(), said) != NULL, "no \"%s\": %s", said, kvr_explain());
	ck_assert_int_eq(memcmp(&p, &before, sizeof p), 0);
	ck_assert_int_eq(count_fds(), fds);
}

START_TEST(test_create_refuses_impossible_options)
{
	struct kvr_pool_opts o = options(1), good = o;

	o.host_bytes--;
	check_refused(&o, -EINVAL, "0 slots");
	o.host_bytes = 0;
	check_refused(&o, -EINVAL, "0 slots");
	o.host_bytes = UINT64_MAX; /* more than a slot's number can count */
	check_refused(&o, -EINVAL, "host memory");
	o = good;
	o.name = "../escape";
	check_refused(&o, -EINVAL, "../escape");
	o = good;
	o.node = 4000;
	check_refused(&o, -EINVAL, "4000");
	o = good;
	o.dir = "/nonexistent-directory";
	check_refused(&o, -ENOENT, "/nonexistent-directory");
	ck_assert(!exists(path));
}
END_TEST

START_TEST(test_create_never_replaces_a_file)
{
	struct kvr_pool_opts o = options(2);
	struct kvr_pool p = create(&o), q;

	kvr_pool_image(&p, 1)[7] = 77;
	o.epoch = 4;
	check_refused(&o, -EEXIST, path);
	o.epoch = 3;
	ck_assert_int_eq(kvr_pool_attach(&o, 2, 0, &q), 0);
	ck_assert_uint_eq(kvr_pool_image(&q, 1)[7], 77);
	kvr_pool_close(&q);
	ck_assert(exists(path)); /* a rank leaves it there */
	kvr_pool_close(&p);
	ck_assert(!exists(path));
}
END_TEST

START_TEST(test_close_leaves_the_next_epochs_pool)
{
	struct kvr_pool_opts o = options(2);
	struct kvr_pool old = create(&o), new, rank;

	ck_assert_int_eq(kvr_pool_attach(&o, 2, 0, &rank), 0);
	ck_assert_int_eq(unlink(path), 0); /* as a takeover does */
	o.epoch = 4;
	new = create(&o);
	/* a late write of the dead leader lands in the old memory */
	memset(kvr_pool_image(&old, 0), 0xee, geo.slot_bytes);
	ck_assert_uint_eq(kvr_pool_image(&rank, 0)[9], 0xee);
	ck_assert_uint_eq(kvr_pool_image(&new, 0)[9], 0);
	kvr_pool_close(&old);
	ck_assert(exists(path));
	ck_assert_uint_eq(kvr_pool_image(&rank, 0)[9], 0xee); /* it lives on for who maps it */
	kvr_pool_close(&rank);
	kvr_pool_close(&new);
	ck_assert(!exists(path));
}
END_TEST

/* I/O that never ended may still write to it: the name goes, the memory stays. */
START_TEST(test_unlink_keeps_the_memory)
{
	struct kvr_pool_opts o = options(2);
	int fds = count_fds();
	struct kvr_pool p = create(&o), next;
	uint8_t *image = kvr_pool_image(&p, 1);

	kvr_pool_unlink(&p);
	ck_assert(!exists(path));
	ck_assert_int_eq(count_fds(), fds);
	next = create(&o);
	memset(image, 0xee, geo.slot_bytes);
	ck_assert_uint_eq(kvr_pool_image(&next, 1)[0], 0);
	kvr_pool_close(&p); /* harmless */
	ck_assert(exists(path));
	kvr_pool_close(&next);
	ck_assert_uint_eq(image[geo.slot_bytes - 1], 0xee);
	munmap(image - geo.slot_bytes - KVR_POOL_DATA, KVR_POOL_DATA + 2 * geo.slot_bytes);
}
END_TEST

/* A reset raises it while ranks attach and look. */
START_TEST(test_generation_changes_without_a_new_checksum)
{
	struct kvr_pool_opts o = options(2);
	struct kvr_pool p = create(&o), q;
	const struct kvr_pool_header *h = (const struct kvr_pool_header *)(const void *)p.mem;

	ck_assert_uint_eq(h->cache_generation, 0);
	kvr_pool_set_generation(&p, 1ull << 40);
	ck_assert_int_eq(kvr_pool_attach(&o, 2, 0, &q), 0);
	kvr_pool_set_generation(&p, (1ull << 40) + 1);
	h = (const struct kvr_pool_header *)(const void *)q.mem;
	ck_assert_uint_eq(h->cache_generation, (1ull << 40) + 1);
	kvr_pool_close(&q);
	kvr_pool_close(&p);
}
END_TEST

/* In a child with a mount namespace of its own: nothing stays mounted, whatever happens. */
static int create_on_tiny_tmpfs(const char *dir)
{
	struct kvr_pool_opts o = options(100); /* 2 MiB */
	struct kvr_pool p;
	char needed[32];

	o.dir = dir;
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("kvr-test", dir, "tmpfs", 0, "size=256k,mode=0700"))
		return 77;
	snprintf(needed, sizeof needed, "%llu", (unsigned long long)o.host_bytes);
	if (make_pool(&o, &p) != -ENOSPC)
		return 1;
	if (!strstr(kvr_explain(), needed) || !strstr(kvr_explain(), dir) ||
	    !strstr(kvr_explain(), "--shm-size"))
		return 2;
	o.host_bytes = KVR_POOL_DATA + 2 * geo.slot_bytes;
	if (make_pool(&o, &p)) /* what was reserved is free again */
		return 3;
	if (strncmp(p.path, dir, strlen(dir)) != 0 || !exists(p.path))
		return 4;
	kvr_pool_close(&p);
	return umount(dir) ? 5 : 0;
}

START_TEST(test_full_memory_is_an_error_and_no_signal)
{
	char dir[256];
	int status;
	pid_t pid;

	test_tmpdir(dir, sizeof dir);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (!pid)
		_exit(create_on_tiny_tmpfs(dir));
	status = test_reap(pid, 10000);
	test_rmdir(dir);
	ck_assert_msg(WIFEXITED(status), "wait status %#x", (unsigned)status);
	if (WEXITSTATUS(status) == 77)
		test_skip("no tmpfs can be mounted here (needs root and CAP_SYS_ADMIN)");
	else
		ck_assert_int_eq(WEXITSTATUS(status), 0);
}
END_TEST

/* --- attach ------------------------------------------------------------------------------------
 */

/* Another process sees the same bytes, and they stay when it leaves. */
START_TEST(test_two_processes_share_the_slots)
{
	struct kvr_pool_opts o = options(3);
	struct kvr_pool p = create(&o), q;
	uint64_t i;
	pid_t pid;

	memset(kvr_pool_image(&p, 1), 0x11, geo.slot_bytes);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (!pid) {
		munmap(p.mem, p.bytes); /* a rank has its own mapping alone */
		if (kvr_pool_attach(&o, 3, test_deadline_ms(5000), &q))
			_exit(1);
		if (q.owner || q.slots != 3 || q.slot_bytes != geo.slot_bytes || q.bytes != p.bytes)
			_exit(2);
		for (i = 0; i < geo.slot_bytes; i++)
			if (kvr_pool_image(&q, 1)[i] != 0x11)
				_exit(3);
		memset(kvr_pool_image(&q, 2), 0x22, geo.slot_bytes);
		kvr_pool_close(&q);
		_exit(exists(path) ? 0 : 4);
	}
	ck_assert_int_eq(test_reap(pid, 10000), 0);
	for (i = 0; i < geo.slot_bytes; i++)
		must_eq(kvr_pool_image(&p, 2)[i], 0x22);
	kvr_pool_close(&p);
}
END_TEST

/* The rank is there first: it waits over no pool, one of an old epoch, and its own. */
START_TEST(test_attach_waits_for_the_pool_of_its_epoch)
{
	struct kvr_pool_opts o = options(2), old;
	struct kvr_pool p, q;
	int ready[2], fds;
	pid_t pid;

	ck_assert_int_eq(pipe(ready), 0);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (!pid) {
		old = o;
		old.epoch = 2;
		test_sleep_ms(20);
		if (make_pool(&old, &p))
			_exit(1);
		test_sleep_ms(20);
		kvr_pool_close(&p);
		test_sleep_ms(20);
		if (make_pool(&o, &p))
			_exit(2);
		kvr_pool_image(&p, 0)[0] = 42;
		if (read(ready[0], &fds, 1) != 1) /* stays until the rank is there */
			_exit(3);
		kvr_pool_close(&p);
		_exit(0);
	}
	fds = count_fds();
	ck_assert_msg(!kvr_pool_attach(&o, 2, test_deadline_ms(10000), &q), "%s", kvr_explain());
	ck_assert_int_eq(count_fds(), fds + 1);
	ck_assert_int_eq(memcmp(q.mem + offsetof(struct kvr_pool_header, epoch), &o.epoch, 8), 0);
	ck_assert_int_eq(write(ready[1], "x", 1), 1);
	ck_assert_int_eq(test_reap(pid, 10000), 0);
	ck_assert_uint_eq(kvr_pool_image(&q, 0)[0], 42);
	kvr_pool_close(&q);
	close(ready[0]);
	close(ready[1]);
}
END_TEST

/* Attach fails: with this error and sentence, and leaves nothing open. */
static void check_attach(const struct kvr_pool_opts *o, uint64_t slots, int expected,
			 const char *said)
{
	int fds = count_fds(), err;
	struct kvr_pool p, before;

	memset(&p, 0x5a, sizeof p);
	before = p;
	err = kvr_pool_attach(o, slots, test_deadline_ms(10), &p);
	ck_assert_msg(err == expected, "%d instead of %d: %s", err, expected, kvr_explain());
	ck_assert_msg(strstr(kvr_explain(), said) != NULL, "no \"%s\": %s", said, kvr_explain());
	ck_assert_int_eq(memcmp(&p, &before, sizeof p), 0);
	ck_assert_int_eq(count_fds(), fds);
}

START_TEST(test_attach_times_out)
{
	struct kvr_pool_opts o = options(2);
	uint8_t other[16] = { 99 };
	struct kvr_pool p, q;

	check_attach(&o, 2, -ETIMEDOUT, name); /* nothing there */
	p = create(&o);
	o.epoch = 4;
	check_attach(&o, 2, -ETIMEDOUT, "epoch 4"); /* that of an earlier epoch */
	o.epoch = 2;
	check_attach(&o, 2, -ETIMEDOUT, "epoch 2");
	o.epoch = 3;
	o.uuid = other; /* that of another group of the same name */
	check_attach(&o, 2, -ETIMEDOUT, path);
	o.uuid = uuid;
	/* what is there is taken, however late it is */
	ck_assert_int_eq(kvr_pool_attach(&o, 2, 0, &q), 0);
	kvr_pool_close(&q);
	kvr_pool_close(&p);
}
END_TEST

static void on_alarm(int sig)
{
	(void)sig;
}

START_TEST(test_signal_ends_the_wait)
{
	struct kvr_pool_opts o = options(2);
	struct sigaction sa = { .sa_handler = on_alarm };
	struct itimerval timer = { { 0, 5000 }, { 0, 5000 } };
	struct kvr_pool p;

	ck_assert_int_eq(sigaction(SIGALRM, &sa, NULL), 0);
	ck_assert_int_eq(setitimer(ITIMER_REAL, &timer, NULL), 0);
	ck_assert_int_eq(kvr_pool_attach(&o, 2, test_deadline_ms(10000), &p), -EINTR);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), name));
}
END_TEST

static void reseal(struct kvr_pool_header *h)
{
	struct kvr_pool_header copy = *h;

	copy.checksum = copy.cache_generation = 0;
	h->checksum = kvr_hash(&copy, sizeof copy, 0);
}

START_TEST(test_attach_refuses_a_damaged_header)
{
	struct kvr_pool_opts o = options(2);
	struct kvr_pool p = create(&o), q;
	struct kvr_pool_header *h = (struct kvr_pool_header *)(void *)p.mem, good = *h;
	uint32_t at;

	for (at = 0; at < sizeof *h; at += at < 240 ? 1 : 97) {
		if (at >= 72 && at < 80) /* the generation changes while others read */
			continue;
		p.mem[at] ^= 0x10;
		check_attach(&o, 2, -EPROTO, path);
		p.mem[at] ^= 0x10;
	}
	h->version = KVR_POOL_VERSION + 1; /* whole, but of another version */
	reseal(h);
	check_attach(&o, 2, -EPROTO, "version 2");
	memset(h, 0, sizeof *h);
	check_attach(&o, 2, -EPROTO, path);
	*h = good;
	ck_assert_int_eq(kvr_pool_attach(&o, 2, 0, &q), 0);
	kvr_pool_close(&q);
	kvr_pool_close(&p);
}
END_TEST

START_TEST(test_attach_refuses_other_sizes)
{
	struct kvr_pool_opts o = options(2);
	struct kvr_pool p = create(&o);
	struct kvr_pool_header *h = (struct kvr_pool_header *)(void *)p.mem, good = *h;

	check_attach(&o, 3, -EBADMSG, "2 slots"); /* the segment says 3 */
	check_attach(&o, 0, -EBADMSG, "0 slots");
	h->slots = 3; /* more than the file holds */
	reseal(h);
	check_attach(&o, 3, -EBADMSG, "3 slots");
	*h = good;
	h->slot_bytes += 4096;
	reseal(h);
	check_attach(&o, 2, -EBADMSG, path);
	*h = good;
	h->header_bytes = 8192;
	reseal(h);
	check_attach(&o, 2, -EBADMSG, path);
	*h = good;
	ck_assert_int_eq(ftruncate(p.fd, (off_t)p.bytes - 4096), 0);
	check_attach(&o, 2, -EBADMSG, path);
	ck_assert_int_eq(ftruncate(p.fd, (off_t)p.bytes + 4096), 0);
	check_attach(&o, 2, -EBADMSG, path);
	ck_assert_int_eq(ftruncate(p.fd, 100), 0); /* not even a header */
	check_attach(&o, 2, -EBADMSG, "");
	kvr_pool_close(&p);
}
END_TEST

/* Slots whose bytes wrap around 64 bits and so equal the file's size. */
START_TEST(test_attach_bounds_the_number_of_slots)
{
	struct kvr_pool_opts o = options(2);
	uint64_t slots = 2;
	struct kvr_pool p;
	struct kvr_pool_header *h;

	geo.header_bytes = 4096;
	geo.slot_bytes = 8192; /* a power of two: slots + 2^51 has the same bytes */
	o.host_bytes = KVR_POOL_DATA + slots * geo.slot_bytes;
	p = create(&o);
	h = (struct kvr_pool_header *)(void *)p.mem;
	slots += 1ull << 51;
	h->slots = slots;
	reseal(h);
	check_attach(&o, slots, -EBADMSG, path);
	kvr_pool_close(&p);
}
END_TEST

START_TEST(test_attach_refuses_what_is_not_a_file_of_ours)
{
	struct kvr_pool_opts o = options(2);
	struct kvr_pool p = create(&o);
	char moved[KVR_SHM_PATH + 8];

	ck_assert_int_eq(chmod(path, 0644), 0);
	check_attach(&o, 2, -EPERM, "0644");
	ck_assert_int_eq(chmod(path, 0600), 0);
	snprintf(moved, sizeof moved, "%s.moved", path);
	ck_assert_int_eq(rename(path, moved), 0);
	ck_assert_int_eq(symlink(moved, path), 0);
	check_attach(&o, 2, -EPROTO, "symbolic link");
	kvr_pool_close(&p); /* unlinks what is its own alone: neither of the two names */
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(unlink(moved), 0);
	o.name = "bad name";
	check_attach(&o, 2, -EINVAL, "bad name");
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("pool");
	TCase *size = tcase_create("create"), *attach = tcase_create("attach");

	tcase_add_unchecked_fixture(size, choose_name, remove_file);
	tcase_add_checked_fixture(size, remove_file, NULL);
	tcase_add_unchecked_fixture(attach, choose_name, remove_file);
	tcase_add_checked_fixture(attach, remove_file, NULL);
	tcase_add_test(size, test_slots_that_fit);
	tcase_add_test(size, test_slots_of_real_models);
	tcase_add_test(size, test_create_makes_a_private_file_with_a_header);
	tcase_add_test(size, test_create_without_a_model);
	tcase_add_test(size, test_create_refuses_impossible_options);
	tcase_add_test(size, test_create_never_replaces_a_file);
	tcase_add_test(size, test_close_leaves_the_next_epochs_pool);
	tcase_add_test(size, test_unlink_keeps_the_memory);
	tcase_add_test(size, test_generation_changes_without_a_new_checksum);
	tcase_add_test(size, test_full_memory_is_an_error_and_no_signal);
	tcase_add_test(attach, test_two_processes_share_the_slots);
	tcase_add_test(attach, test_attach_waits_for_the_pool_of_its_epoch);
	tcase_add_test(attach, test_attach_times_out);
	tcase_add_test(attach, test_signal_ends_the_wait);
	tcase_add_test(attach, test_attach_refuses_a_damaged_header);
	tcase_add_test(attach, test_attach_refuses_other_sizes);
	tcase_add_test(attach, test_attach_bounds_the_number_of_slots);
	tcase_add_test(attach, test_attach_refuses_what_is_not_a_file_of_ours);
	suite_add_tcase(s, size);
	suite_add_tcase(s, attach);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
