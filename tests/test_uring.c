/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_uring behind the I/O table. Older kernels, tight limits and full queues are played by three
 * functions of liburing that this program defines itself, and by one of eventfd's: the library's
 * calls end here first.
 */
#include "uring.h"

#include <dlfcn.h>
#include <liburing.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "harness.h"
#include "io_suite.h"
#include "kvring/err.h"

#define KERNEL_6_0 IORING_SETUP_DEFER_TASKRUN
#define KERNEL_5_19 (KERNEL_6_0 | IORING_SETUP_SINGLE_ISSUER)
#define KERNEL_5_17 (KERNEL_5_19 | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_SUBMIT_ALL)

static const uint32_t lacking[] = { 0, KERNEL_6_0, KERNEL_5_19, KERNEL_5_17 };
#define VARIANTS 5 /* these four, and one without registered buffers */

static uint32_t lacks;	      /* flags that this kernel does not know */
static uint32_t flags_got;    /* of the last ring */
static int register_error;    /* of io_uring_register_buffers() */
static uint64_t register_end; /* register of each buffer only so much around its end */
static unsigned registered;
static int submit_errors[8]; /* to be returned first, then 0 */
static unsigned submit_error;
static int pipe_to_fill = -1; /* gets four bytes just before the next eventfd_read() */

int io_uring_queue_init_params(unsigned entries, struct io_uring *ring, struct io_uring_params *p)
{
	int (*real)(unsigned, struct io_uring *, struct io_uring_params *);

	if (p->flags & lacks)
		return -EINVAL;
	flags_got = p->flags;
	*(void **)&real = dlsym(RTLD_NEXT, "io_uring_queue_init_params");
	return real(entries, ring, p);
}

int io_uring_register_buffers(struct io_uring *ring, const struct iovec *vecs, unsigned n)
{
	int (*real)(struct io_uring *, const struct iovec *, unsigned);
	struct iovec near_end[4];
	unsigned i;

	if (register_error)
		return register_error;
	registered = n;
	*(void **)&real = dlsym(RTLD_NEXT, "io_uring_register_buffers");
	if (!register_end)
		return real(ring, vecs, n);
	ck_assert_uint_le(n, 4);
	for (i = 0; i < n; i++) {
		near_end[i].iov_len = register_end;
		near_end[i].iov_base = vecs[i].iov_base;
		if (i == 0) /* the pages before the first border, and those after it */
			near_end[i].iov_base =
				(uint8_t *)vecs[i].iov_base + vecs[i].iov_len - register_end;
	}
	return real(ring, near_end, n);
}

int io_uring_submit(struct io_uring *ring)
{
	int (*real)(struct io_uring *);

	if (submit_error < 8 && submit_errors[submit_error])
		return submit_errors[submit_error++];
	*(void **)&real = dlsym(RTLD_NEXT, "io_uring_submit");
	return real(ring);
}

int eventfd_read(int fd, eventfd_t *value)
{
	int (*real)(int, eventfd_t *);

	if (pipe_to_fill >= 0)
		ck_assert_int_eq(write(pipe_to_fill, "abcd", 4), 4);
	pipe_to_fill = -1;
	*(void **)&real = dlsym(RTLD_NEXT, "eventfd_read");
	return real(fd, value);
}

static int open_uring(int variant, const struct kvr_file *file, uint32_t depth, void *pool,
		      uint64_t pool_bytes, struct kvr_io **ret_io)
{
	if (variant == VARIANTS - 1)
		pool = NULL;
	else
		lacks = lacking[variant];
	return kvr_uring_open(file->fd, file->bytes, file->align, depth, pool, pool_bytes, ret_io);
}

static const struct io_kind kind = { "uring", VARIANTS, open_uring };

START_TEST(test_uring_registers_the_pool)
{
	struct io_set set;

	io_set_up(&set, &kind, 0, 1 << 20, IO_DEPTH);
	ck_assert_str_eq(set.io->ops->name, "io_uring");
	if (set.io->degraded[0])
		test_skip(set.io->degraded);
	else
		ck_assert_uint_eq(registered, 1);
	io_set_down(&set);
}
END_TEST

START_TEST(test_uring_steps_down_flag_by_flag)
{
	static const uint32_t must[] = {
		IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
		IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN,
		IORING_SETUP_COOP_TASKRUN,
		0,
	};
	struct io_set set;

	io_set_up(&set, &kind, _i, 1 << 20, IO_DEPTH);
	if (lacks == lacking[_i] && (flags_got & must[_i]) != must[_i])
		test_skip("this kernel itself lacks the flags");
	ck_assert_uint_eq(flags_got & lacking[_i], 0);
	ck_assert_int_eq(io_one(set.io, KVR_IO_READ, set.pool, 0, 4096), 4096);
	io_set_down(&set);
}
END_TEST

START_TEST(test_uring_refuses_impossible_numbers)
{
	struct kvr_io *io = NULL;

	ck_assert_int_eq(kvr_uring_open(-1, 4096, 512, 1, NULL, 0, &io), -EINVAL);
	ck_assert_int_eq(kvr_uring_open(0, 4096, 0, 1, NULL, 0, &io), -EINVAL);
	ck_assert_int_eq(kvr_uring_open(0, 4096, 512, 0, NULL, 0, &io), -EINVAL);
	ck_assert_int_eq(kvr_uring_open(0, 4096, 512, 40000, NULL, 0, &io), -EINVAL);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "40000"));
	ck_assert_ptr_null(io);
}
END_TEST

/* A reader of a pipe ends when the test wants it to. */
static void *write_later(void *arg)
{
	test_sleep_ms(100);
	ck_assert_int_eq(write(*(int *)arg, "0123456789", 10), 10);
	return NULL;
}

START_TEST(test_uring_sleeper_wakes_when_a_late_request_ends)
{
	static uint8_t buf[4096];
	struct kvr_io_req req = io_request(KVR_IO_READ, buf, 0, sizeof(buf));
	struct kvr_io *io;
	pthread_t thread;
	struct pollfd p;
	uint64_t start;
	int ends[2], n;

	lacks = lacking[_i];
	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	ck_assert_msg(!kvr_uring_open(ends[0], 0, 512, 4, NULL, 0, &io), "%s", kvr_explain());
	p = (struct pollfd){ .fd = io->ops->fd(io), .events = POLLIN };
	ck_assert_int_eq(io->ops->submit(io, &req), 0);
	ck_assert_int_eq(io->ops->flush(io), 0);
	ck_assert_int_eq(pthread_create(&thread, NULL, write_later, &ends[1]), 0);
	start = test_now_ns();
	do
		n = poll(&p, 1, 10000);
	while (n < 0 && errno == EINTR);
	ck_assert_uint_lt(test_now_ns() - start, 10000000000u);
	ck_assert_int_eq(n, 1);
	io_wait(io, 1);
	ck_assert_int_eq(req.res, 10); /* short, and said as it is */
	pthread_join(thread, NULL);
	ck_assert_int_eq(io->ops->close(io, 0), 0);
	close(ends[1]);
}
END_TEST

START_TEST(test_uring_requests_that_end_while_silence_is_declared_are_seen)
{
	struct kvr_io_req reqs[5], *got;
	static uint8_t buf[5];
	struct kvr_io *io;
	struct pollfd p;
	int ends[2], i;

	lacks = lacking[_i];
	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	ck_assert_int_eq(kvr_uring_open(ends[0], 0, 512, 5, NULL, 0, &io), 0);
	p = (struct pollfd){ .fd = io->ops->fd(io), .events = POLLIN };
	for (i = 0; i < 5; i++) {
		reqs[i] = io_request(KVR_IO_READ, &buf[i], 0, 1);
		ck_assert_int_eq(io->ops->submit(io, &reqs[i]), 0);
	}
	ck_assert_int_eq(io->ops->flush(io), 0);
	ck_assert_int_eq(write(ends[1], "0", 1), 1);
	io_wait(io, 1);
	/* This one finds nothing, makes the descriptor unreadable, and looks again. */
	pipe_to_fill = ends[1];
	ck_assert_int_eq(io->ops->reap(io, &got, 1), 1);
	ck_assert_int_eq(pipe_to_fill, -1);
	for (i = 0; i < 3; i++) {
		ck_assert_int_eq(poll(&p, 1, 1000), 1);
		ck_assert_int_eq(io->ops->reap(io, &got, 1), 1);
	}
	ck_assert_int_eq(io->ops->close(io, 0), 0);
	close(ends[1]);
}
END_TEST

START_TEST(test_uring_hanging_device_is_leaked)
{
	static uint8_t buf[4096];
	struct kvr_io_req req = io_request(KVR_IO_READ, buf, 0, sizeof(buf));
	struct kvr_io *io;
	int ends[2];

	lacks = lacking[_i];
	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	ck_assert_int_eq(kvr_uring_open(ends[0], 0, 512, 4, NULL, 0, &io), 0);
	ck_assert_int_eq(io->ops->submit(io, &req), 0);
	ck_assert_int_eq(io->ops->close(io, test_deadline_ms(50)), 1);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "1 requests"));
	close(ends[1]);
}
END_TEST

START_TEST(test_uring_loses_nothing_when_the_kernel_has_no_room)
{
	struct kvr_io_req a, b;
	struct io_set set;
	struct pollfd p;

	io_set_up(&set, &kind, _i, 1 << 20, IO_DEPTH);
	p = (struct pollfd){ .fd = set.io->ops->fd(set.io), .events = POLLIN };
	a = io_request(KVR_IO_READ, set.pool, 0, 4096);
	b = io_request(KVR_IO_READ, set.pool + 4096, 4096, 4096);
	submit_errors[0] = -EINTR;
	submit_errors[1] = -EAGAIN;
	submit_errors[2] = -EBUSY;
	submit_error = 0;
	ck_assert_int_eq(set.io->ops->submit(set.io, &a), 0);
	ck_assert_int_eq(set.io->ops->submit(set.io, &b), 0);
	ck_assert_int_eq(set.io->ops->flush(set.io), -EAGAIN);
	ck_assert_uint_eq(set.io->inflight, 2);
	ck_assert_int_eq(poll(&p, 1, 0), 1); /* so that the caller comes back */
	ck_assert_int_eq(set.io->ops->flush(set.io), -EBUSY);
	io_wait(set.io, 2); /* reap() alone gets it going again */
	ck_assert_int_eq(a.res, 4096);
	ck_assert_int_eq(b.res, 4096);
	io_set_down(&set);
}
END_TEST

static void *read_one(void *arg)
{
	struct io_set *set = arg;

	ck_assert_int_eq(io_one(set->io, KVR_IO_READ, set->pool, 0, 4096), 4096);
	return NULL;
}

START_TEST(test_uring_says_when_a_second_thread_submits)
{
	static struct kvr_io_req req;
	struct io_set set;
	pthread_t thread;

	io_set_up(&set, &kind, 0, 1 << 20, IO_DEPTH);
	if (flags_got & IORING_SETUP_SINGLE_ISSUER) {
		ck_assert_int_eq(pthread_create(&thread, NULL, read_one, &set), 0);
		pthread_join(thread, NULL);
		req = io_request(KVR_IO_READ, set.pool, 0, 4096);
		ck_assert_int_eq(set.io->ops->submit(set.io, &req), 0);
		ck_assert_int_eq(set.io->ops->flush(set.io), -EEXIST);
		ck_assert_ptr_nonnull(strstr(kvr_explain(), "one thread"));
		ck_assert_int_eq(set.io->ops->close(set.io, test_deadline_ms(20)), 1);
		set.io = NULL;
	} else {
		test_skip("this kernel has no IORING_SETUP_SINGLE_ISSUER");
	}
	io_set_down(&set);
}
END_TEST

START_TEST(test_uring_finds_the_registered_buffer)
{
	const uint64_t gib = 1ull << 30, bytes = 2 * gib + (1u << 20);
	struct kvr_io *io;
	struct io_set set;
	uint8_t *pool;

	io_set_up(&set, &kind, 0, 4 << 20, IO_DEPTH);
	ck_assert_int_eq(set.io->ops->close(set.io, 0), 0);
	set.io = NULL;
	ck_assert_int_eq(kvr_file_open(set.path, 0, &set.file), 0);
	pool = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ck_assert_ptr_ne(pool, MAP_FAILED);
	register_end = 1u << 20;
	ck_assert_int_eq(kvr_uring_open(set.file.fd, set.file.bytes, set.file.align, 4, pool, bytes,
					&io),
			 0);
	ck_assert_uint_eq(registered, 3);
	/* The kernel answers EFAULT when a request lies outside of the buffer that it names. */
	ck_assert_int_eq(io_one(io, KVR_IO_READ, pool + gib - 8192, 0, 8192), 8192);
	ck_assert_int_eq(io_one(io, KVR_IO_READ, pool + gib, 0, 8192), 8192);
	ck_assert_int_eq(io_one(io, KVR_IO_READ, pool + gib - 4096, 0, 8192), 8192);
	ck_assert_int_eq(io_one(io, KVR_IO_WRITE, pool + 2 * gib, 0, 8192), 8192);
	ck_assert_int_eq(io_one(io, KVR_IO_WRITE, pool + bytes - 4096, 0, 4096), 4096);
	if (io->degraded[0])
		test_skip(io->degraded);
	else
		ck_assert_int_eq(io_one(io, KVR_IO_READ, pool + gib / 2, 0, 4096), -EFAULT);
	ck_assert_int_eq(io->ops->close(io, test_deadline_ms(1000)), 0);
	munmap(pool, bytes);
	io_set_down(&set);
}
END_TEST

START_TEST(test_uring_goes_on_unregistered_and_says_so)
{
	struct io_set set;

	register_error = -ENOMEM;
	io_set_up(&set, &kind, 0, 3 << 20, IO_DEPTH);
	ck_assert_ptr_nonnull(strstr(set.io->degraded, "3145728 bytes of locked memory"));
	ck_assert_uint_lt(strlen(set.io->degraded), sizeof(set.io->degraded) - 1);
	ck_assert_int_eq(io_one(set.io, KVR_IO_WRITE, set.pool, 0, 65536), 65536);
	ck_assert_int_eq(io_one(set.io, KVR_IO_READ, set.pool, 0, 65536), 65536);
	io_set_down(&set);
}
END_TEST

/* In a child: without CAP_IPC_LOCK, and with 1 MiB of locked memory. 77: not possible here. */
static int open_with_little_memory(const char *path, uint8_t *pool, uint64_t bytes)
{
	struct rlimit limit = { 1 << 20, 1 << 20 };
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct none[2] = { { 0, 0, 0 }, { 0, 0, 0 } };
	struct kvr_file file;
	struct kvr_io *io;
	int err;

	if (setrlimit(RLIMIT_MEMLOCK, &limit) || syscall(SYS_capset, &head, none))
		return 77;
	if (kvr_file_open(path, 0, &file))
		return 1;
	err = kvr_uring_open(file.fd, file.bytes, file.align, 4, pool, bytes, &io);
	if (err)
		return err == -ENOMEM || err == -EPERM ? 77 : 2;
	if (!strstr(io->degraded, "the limit is 1048576;"))
		return 3;
	if (io_one(io, KVR_IO_READ, pool, 0, 65536) != 65536)
		return 4;
	return io->ops->close(io, test_deadline_ms(1000));
}

START_TEST(test_uring_respects_the_limit_of_locked_memory)
{
	struct io_set set;
	pid_t pid;
	int rc;

	io_set_up(&set, &kind, 0, 16 << 20, IO_DEPTH);
	pid = fork();
	if (!pid)
		_exit(open_with_little_memory(set.path, set.pool, set.pool_bytes));
	rc = WEXITSTATUS(test_reap(pid, 10000));
	if (rc == 77)
		test_skip("limit and capabilities cannot be dropped, or no ring without them");
	else
		ck_assert_int_eq(rc, 0);
	io_set_down(&set);
}
END_TEST

/* In a child: io_uring_setup fails with `error`, as in a container. 77: not possible here. */
static int open_refused(const char *path, int error)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof(code) / sizeof(code[0]), code };
	struct kvr_io *io = NULL;
	struct kvr_file file;

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
		return 77;
	if (kvr_file_open(path, 0, &file))
		return 1;
	if (kvr_uring_open(file.fd, file.bytes, file.align, 4, NULL, 0, &io) != -error)
		return 2;
	if (io || !strstr(kvr_explain(), "io_uring") || fcntl(file.fd, F_GETFD) < 0)
		return 3;
	return 0;
}

START_TEST(test_uring_refused_is_reported)
{
	static const int errors[] = { EPERM, ENOSYS, ENOMEM };
	struct io_set set;
	pid_t pid;
	int rc;

	io_set_up(&set, &kind, 0, 1 << 20, IO_DEPTH);
	pid = fork();
	if (!pid)
		_exit(open_refused(set.path, errors[_i]));
	rc = WEXITSTATUS(test_reap(pid, 10000));
	if (rc == 77)
		test_skip("no seccomp filter can be installed");
	else
		ck_assert_int_eq(rc, 0);
	io_set_down(&set);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("uring");
	TCase *tc = tcase_create("own");

	io_suite_add(s, &kind);
	tcase_add_test(tc, test_uring_registers_the_pool);
	tcase_add_loop_test(tc, test_uring_steps_down_flag_by_flag, 0, 4);
	tcase_add_test(tc, test_uring_refuses_impossible_numbers);
	tcase_add_loop_test(tc, test_uring_sleeper_wakes_when_a_late_request_ends, 0, 4);
	tcase_add_loop_test(tc, test_uring_requests_that_end_while_silence_is_declared_are_seen, 0,
			    4);
	tcase_add_loop_test(tc, test_uring_hanging_device_is_leaked, 0, 4);
	tcase_add_loop_test(tc, test_uring_loses_nothing_when_the_kernel_has_no_room, 0, 4);
	tcase_add_test(tc, test_uring_says_when_a_second_thread_submits);
	tcase_add_test(tc, test_uring_finds_the_registered_buffer);
	tcase_add_test(tc, test_uring_goes_on_unregistered_and_says_so);
	tcase_add_test(tc, test_uring_respects_the_limit_of_locked_memory);
	tcase_add_loop_test(tc, test_uring_refused_is_reported, 0, 3);
	suite_add_tcase(s, tc);
	return s;
}

int main(void)
{
	struct kvr_io *io;
	int err = kvr_uring_open(open("/dev/null", O_RDWR | O_CLOEXEC), 0, 512, 16, NULL, 0, &io);

	if (err == -EPERM || err == -ENOSYS || err == -ENOMEM) {
		test_skip(kvr_explain());
		return 77;
	}
	if (!err)
		io->ops->close(io, 0);
	return kvr_test_main(suite);
}
