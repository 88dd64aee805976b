/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a store by its paths: files, I/O locks, what may be overwritten, backends.
 *
 * No byte of a file is read before its I/O lock is held: a dead owner's writes may still be
 * landing. No byte is written unless the file is new, empty, all zeros at its start (a format that
 * was cut short), or a store of ours that the caller gave up with KVR_STORE_REFORMAT.
 *
 * Format and recovery use threads with pread and pwrite, on an open file description of their own:
 * a ring belongs to the first thread that uses it, which may be another than the one that opens,
 * and whoever closes a description drops its lock.
 */
#include "store_state.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "atomic.h"
#include "clock.h"
#include "err.h"
#include "file.h"
#include "pread.h"
#include "uring.h"
#include "util.h"

#define FILE_NAME "kvring.store"
#define HEAD_BYTES (1u << 20) /* zeros up to here: empty. Other formats have their marks before */
#define LOCK_NS (5 * KVR_SEC)
#define DEPTH 64u
#define PREAD_THREADS 8u

enum content { CONTENT_EMPTY, CONTENT_OURS, CONTENT_FOREIGN };

struct opening {
	struct kvr_store_opts o;
	uint32_t n;
	struct {
		char path[PATH_MAX];
		struct kvr_file file;
		struct kvr_io *io; /* of format and recovery */
		enum content content;
	} dev[KVR_MAX_DEVICES];
};

/* --- files ------------------------------------------------------------------------------------ */

static int path_resolve(const char *given, char *ret_path, size_t size)
{
	struct stat st;
	int dir = given && !stat(given, &st) && S_ISDIR(st.st_mode);
	int n = snprintf(ret_path, size, "%s%s", given ? given : "", dir ? "/" FILE_NAME : "");

	if (!given || !*given)
		return KVR_FAIL(-EINVAL, "kvr_store_open: a path is NULL or empty");
	if (n < 0 || (size_t)n >= size)
		return KVR_FAIL(-ENAMETOOLONG, "kvr_store_open: the path %.64s... is too long",
				given);
	return 0;
}

/* The lock of one file given twice would be waited for in vain. */
static int named_twice(const struct opening *op, uint32_t i)
{
	struct stat a, b;

	if (fstat(op->dev[i].file.fd, &a))
		return KVR_FAIL(-errno, "kvr_store_open: %s: fstat failed", op->dev[i].path);
	for (uint32_t k = 0; k < i; k++)
		if (!fstat(op->dev[k].file.fd, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
			return KVR_FAIL(-EINVAL, "kvr_store_open: %s and %s are the same file",
					op->dev[k].path, op->dev[i].path);
	return 0;
}

static int cancelled(const struct opening *op)
{
	if (!op->o.cancel || !kvr_load_relaxed32(op->o.cancel))
		return 0;
	return KVR_FAIL(-EINTR, "kvr_store_open: cancelled while opening %s", op->o.paths[0]);
}

/* In slices, so that a cancel is seen. */
static int lock_wait(struct opening *op, uint32_t i, uint64_t deadline_ns)
{
	int err;

	do {
		uint64_t slice = kvr_min(deadline_ns, kvr_now() + 50 * KVR_MS);

		err = cancelled(op);
		if (!err)
			err = kvr_file_lock(&op->dev[i].file, op->dev[i].path, slice);
	} while (err == -EBUSY && kvr_now() < deadline_ns);
	return err;
}

static int file_open(struct opening *op, uint32_t i, uint64_t deadline_ns)
{
	struct kvr_file *file = &op->dev[i].file;
	const char *path = op->dev[i].path;
	int flags, err;

	err = path_resolve(op->o.paths[i], op->dev[i].path, sizeof op->dev[i].path);
	if (!err)
		err = kvr_file_open(path, !!(op->o.flags & KVR_STORE_CREATE), file);
	if (err)
		return err;
	if (op->o.flags & KVR_STORE_BUFFERED) {
		flags = fcntl(file->fd, F_GETFL);
		if (flags < 0 || fcntl(file->fd, F_SETFL, flags & ~O_DIRECT))
			return KVR_FAIL(-errno, "kvr_store_open: %s: fcntl: %s", path,
					kvr_strerror(errno));
		file->direct = 0;
		file->align = KVR_PAGE;
	}
	err = named_twice(op, i);
	return err ? err : lock_wait(op, i, deadline_ns);
}

/* A second description of the locked file, for format and recovery. */
static int mount_io_open(struct opening *op, uint32_t i)
{
	const struct kvr_file *file = &op->dev[i].file;
	const char *path = op->dev[i].path;
	struct stat a, b;
	int fd = open(path,
		      O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | (file->direct ? O_DIRECT : 0));
	int err;

	if (fd < 0)
		return KVR_FAIL(-errno, "kvr_store_open: %s: %s", path, kvr_strerror(errno));
	if (fstat(fd, &a) || fstat(file->fd, &b) || a.st_dev != b.st_dev || a.st_ino != b.st_ino) {
		close(fd);
		return KVR_FAIL(
			-EAGAIN,
			"kvr_store_open: %s was replaced while it was opened; who does that?",
			path);
	}
	err = kvr_pread_open(fd, file->bytes, file->align, 1, 1, &op->dev[i].io);
	if (err)
		close(fd);
	return err;
}

static void mount_io_close(struct opening *op, uint32_t i)
{
	if (op->dev[i].io)
		op->dev[i].io->ops->close(op->dev[i].io, kvr_now() + STORE_IO_NS);
	op->dev[i].io = NULL;
}

static enum content content_of(const char *head, uint64_t bytes)
{
	uint64_t magic[2] = { 0, 0 }, i;

	if (bytes >= KVR_TABLE_OFFSET) {
		memcpy(&magic[0], head, sizeof magic[0]);
		memcpy(&magic[1], head + KVR_PAGE, sizeof magic[1]);
	}
	if (magic[0] == KVR_SUPER_MAGIC || magic[1] == KVR_SUPER_MAGIC)
		return CONTENT_OURS;
	for (i = 0; i < bytes; i++)
		if (head[i])
			return CONTENT_FOREIGN;
	return CONTENT_EMPTY;
}

/* Looks at the start of the file, under its lock. */
static int file_probe(struct opening *op, uint32_t i)
{
	uint64_t bytes = op->dev[i].file.bytes, align = op->dev[i].file.align;
	uint64_t len = kvr_min(bytes / align * align, HEAD_BYTES);
	struct kvr_sched *sched;
	struct kvr_xfer *x;
	void *head;
	int err;

	op->dev[i].content = bytes ? CONTENT_FOREIGN : CONTENT_EMPTY;
	if (!len)
		return 0;
	err = mount_io_open(op, i);
	if (err)
		return err;
	err = kvr_sched_create(op->dev[i].io, HEAD_BYTES, HEAD_BYTES, &sched);
	if (err)
		return err;
	head = aligned_alloc(kvr_align_up(align, KVR_PAGE), HEAD_BYTES);
	x = calloc(1, sizeof *x);
	err = KVR_FAIL(-ENOMEM, "kvr_store_open: no memory");
	if (head && x) {
		*x = (struct kvr_xfer){ .buf = head, .len = len, .op = KVR_IO_READ };
		err = kvr_sched_transfer(sched, x, kvr_now() + STORE_IO_NS);
	}
	if (err == -ETIMEDOUT) /* the device may still write there: leaked */
		return err;    /* NOLINT(clang-analyzer-unix.Malloc) */
	if (!err)
		op->dev[i].content = content_of(head, len);
	kvr_sched_destroy(sched);
	free(x);
	free(head);
	return err ? kvr_fail_more(err, " (reading the start of %s)", op->dev[i].path) : 0;
}

/* --- what to do with them --------------------------------------------------------------------- */

static int fail_foreign(const struct opening *op, uint32_t i)
{
	return KVR_FAIL(
		-EPROTO,
		"kvr_store_open: %s has %" PRIu64
		" bytes that are not a kvring store; nothing was changed. Name another path, or "
		"remove what is there (a file: rm; a block device: blkdiscard, or zeros at its "
		"start)",
		op->dev[i].path, op->dev[i].file.bytes);
}

/* How large each device becomes, checked before a byte is changed. */
static int format_size(const struct opening *op, uint64_t *ret_bytes)
{
	uint64_t bytes = store_share(&op->o, op->n);
	struct kvr_geometry geo;
	uint32_t align = KVR_PAGE, i;

	for (i = 0; i < op->n; i++) {
		uint64_t has = op->dev[i].file.bytes / KVR_PAGE * KVR_PAGE;

		if (!op->o.bytes && !has)
			return KVR_FAIL(
				-EINVAL,
				"kvr_store_open: %s is empty and opts.bytes is 0: say how large "
				"the store is to be",
				op->dev[i].path);
		if (!op->o.bytes && (!i || has < bytes))
			bytes = has;
		if (op->dev[i].file.align > align)
			align = op->dev[i].file.align;
	}
	*ret_bytes = bytes;
	return store_geometry(op->o.shape, align, bytes, &geo);
}

static int open_blank(struct opening *op, struct kvr_store **ret_store)
{
	struct kvr_io *ios[KVR_MAX_DEVICES];
	uint64_t bytes = 0;
	uint32_t i;
	int err = format_size(op, &bytes);

	for (i = 0; !err && i < op->n; i++) {
		mount_io_close(op, i); /* its idea of the size is the old one */
		if (op->o.progress)
			op->o.progress(op->o.progress_arg, "reserving space", i * bytes,
				       op->n * bytes);
		err = cancelled(op);
		if (!err)
			err = kvr_file_reserve(&op->dev[i].file, op->dev[i].path, bytes);
		if (!err)
			err = mount_io_open(op, i);
		ios[i] = op->dev[i].io;
	}
	op->o.bytes = op->n * bytes;
	return err ? err : kvr_store_open_io(&op->o, ios, op->n, 1, ret_store);
}

static int open_found(struct opening *op, struct kvr_store **ret_store)
{
	struct kvr_io *ios[KVR_MAX_DEVICES];
	uint32_t i;

	for (i = 0; i < op->n; i++) {
		if (op->dev[i].content == CONTENT_EMPTY)
			return KVR_FAIL(
				-EPROTO,
				"kvr_store_open: %s is empty, but another path belongs to a "
				"store; give all its devices, or reformat",
				op->dev[i].path);
		ios[i] = op->dev[i].io;
	}
	return kvr_store_open_io(&op->o, ios, op->n, 0, ret_store);
}

static int open_files(struct opening *op, struct kvr_store **ret_store)
{
	uint64_t deadline = op->o.lock_deadline_ns ? op->o.lock_deadline_ns : kvr_now() + LOCK_NS;
	uint32_t i, empty = 0;
	int err = 0;

	for (i = 0; i < op->n; i++)
		op->dev[i].file.fd = -1;
	for (i = 0; !err && i < op->n; i++)
		err = file_open(op, i, deadline);
	for (i = 0; !err && i < op->n; i++) {
		err = file_probe(op, i);
		empty += op->dev[i].content == CONTENT_EMPTY;
	}
	if (err)
		return err;
	for (i = 0; i < op->n; i++)
		if (op->dev[i].content == CONTENT_FOREIGN)
			return fail_foreign(op, i);
	if (empty == op->n)
		return open_blank(op, ret_store);
	err = open_found(op, ret_store);
	if ((err == -EPROTO || err == -EBADMSG) && op->o.flags & KVR_STORE_REFORMAT)
		return open_blank(op, ret_store);
	if (err)
		kvr_fail_more(err, " [%s%s; nothing was changed]", op->dev[0].path,
			      op->n > 1 ? " and others" : "");
	return err;
}

/* --- backends --------------------------------------------------------------------------------- */

static int backend_open(struct opening *op, struct kvr_store *store, uint32_t i,
			struct kvr_io **ret_io)
{
	struct kvr_file *file = &op->dev[i].file;
	uint32_t depth = op->o.depth ? op->o.depth : DEPTH;
	int err;

	if (!(op->o.flags & KVR_STORE_NO_URING)) {
		err = kvr_uring_open(file->fd, file->bytes, file->align, depth, op->o.pool,
				     op->o.pool_bytes, ret_io);
		if (!err || (err != -EPERM && err != -EACCES && err != -ENOSYS && err != -ENOMEM))
			return err;
		store_degrade(store, "%s: io_uring is not used. %s", op->dev[i].path,
			      kvr_explain());
	}
	return kvr_pread_open(file->fd, file->bytes, file->align, depth, PREAD_THREADS, ret_io);
}

/* Each device moves from the opening's description to the locked one. */
static int backends_open(struct opening *op, struct kvr_store *store)
{
	struct kvr_io *io;
	uint32_t k, i;
	int err;

	for (k = 0; k < store->ndev; k++) {
		i = store->dev[k].given;
		err = backend_open(op, store, i, &io);
		if (err)
			return err;
		op->dev[i].file.fd = -1; /* the backend's now */
		err = store_replace_io(store, k, io);
		if (err) {
			io->ops->close(io, 0);
			return err;
		}
		if (!op->dev[i].file.direct)
			store_degrade(
				store,
				"%s: I/O is buffered (%s): every block passes through the page "
				"cache, which costs a copy and takes memory from others",
				op->dev[i].path,
				op->o.flags & KVR_STORE_BUFFERED ? "as asked"
								 : "no O_DIRECT there");
		if (io->degraded[0])
			store_degrade(store, "%s: %s", op->dev[i].path, io->degraded);
	}
	return 0;
}

int kvr_store_open(const struct kvr_store_opts *opts, struct kvr_store **ret_store)
{
	struct kvr_store *store = NULL;
	struct opening *op = calloc(1, sizeof *op);
	uint32_t i;
	int err;

	if (!op)
		return KVR_FAIL(-ENOMEM, "kvr_store_open: no memory");
	err = store_options(opts, &op->o);
	if (!err && (op->o.npaths < 1 || op->o.npaths > KVR_MAX_DEVICES || !op->o.paths))
		err = KVR_FAIL(-EINVAL, "kvr_store_open: %u paths; 1 to %u are supported",
			       op->o.npaths, KVR_MAX_DEVICES);
	if (!err) {
		op->n = op->o.npaths;
		err = open_files(op, &store);
	}
	if (!err) { /* the store has them */
		for (i = 0; i < op->n; i++)
			op->dev[i].io = NULL;
		err = backends_open(op, store);
	}
	if (store && err) {
		kvr_store_close(store, kvr_now() + KVR_SEC);
		store = NULL;
	}
	for (i = 0; i < op->n; i++) {
		mount_io_close(op, i);
		if (err && op->dev[i].file.created)
			unlink(op->dev[i].path);
		kvr_file_close(&op->dev[i].file);
	}
	free(op);
	if (!err)
		*ret_store = store;
	return err;
}
