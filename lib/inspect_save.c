/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving a segment, and the trailer of a saved one. The copy is taken while the processes write, so
 * the order matters: of rings, recorders and call logs the count is read again after the bytes, as
 * for a look (inspect_priv.h), and what a count says comes after what it counts: first rings and
 * payloads, then the leader's page, then the ranks', which say what was taken.
 */
#include "inspect_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "alike.h"
#include "clock.h"
#include "err.h"
#include "hash.h"
#include "kvring/ring.h"
#include "util.h"

#define CHUNK (1u << 20)

struct copy {
	struct kvr_inspect *in;
	int fd;
	char temp[PATH_MAX];
	uint8_t *chunk;
};

static int save_failed(const struct copy *c)
{
	return KVR_FAIL(-errno, "%s: %s", c->temp, kvr_strerror(errno));
}

static int put(const struct copy *c, const void *bytes, size_t len, uint64_t off)
{
	size_t done = 0;

	if (lseek(c->fd, (off_t)off, SEEK_SET) < 0)
		return save_failed(c);
	while (done < len) {
		ssize_t n = write(c->fd, (const uint8_t *)bytes + done, len - done);

		if (n < 0 && errno != EINTR)
			return save_failed(c);
		done += n > 0 ? (size_t)n : 0;
	}
	return 0;
}

static int is_zero(const uint8_t *p, size_t len)
{
	return !len || (!p[0] && !memcmp(p, p + 1, len - 1));
}

/* Bytes [off, end) as they are. The file has its size already: zeros need no room. */
static int copy_bytes(const struct copy *c, uint64_t off, uint64_t end)
{
	int err = 0;

	while (!err && off < end) {
		size_t n = (size_t)kvr_min(CHUNK, end - off);

		err = read_at(c->in, c->chunk, n, off);
		if (!err && !is_zero(c->chunk, n))
			err = put(c, c->chunk, n, off);
		off += n;
	}
	return err;
}

/* A count that lies in front of what it counts, once that is copied. */
static int copy_count(const struct copy *c, uint64_t off)
{
	uint64_t count;
	int err = read_at(c->in, &count, sizeof count, off);

	return err ? err : put(c, &count, sizeof count, off);
}

static int copy_ring(const struct copy *c, uint32_t channel, uint32_t rank, uint64_t *ret_later)
{
	const struct kvr_layout *l = &c->in->layout;
	uint64_t off = kvr_layout_ring(l, channel, rank);
	int err = copy_count(c, off);

	if (!err)
		err = copy_bytes(c, off + KVR_RING_CTL, off + KVR_RING_CTL + l->ring_bytes);
	return err ? err : read_at(c->in, ret_later, sizeof *ret_later, off);
}

/* A call log: count, records, count; and then what the writer may have touched is not there. */
static int copy_log(const struct copy *c, uint64_t off)
{
	uint32_t window = c->in->layout.window;
	size_t bytes = sizeof(struct kvr_alike_log) + window * sizeof(struct kvr_alike_call);
	int err = kvr_inspect_log_bytes(c->in, off);

	return err ? err : put(c, c->in->scratch, bytes, off);
}

/* Recorder and call logs of a process. */
static int copy_history(const struct copy *c, uint32_t rank)
{
	const struct kvr_layout *l = &c->in->layout;
	uint64_t at = kvr_inspect_recorder_at(c->in, rank);
	int err = copy_bytes(
		c, at, at + sizeof(struct kvr_rec_ctl) + l->events * sizeof(struct kvr_event));

	if (!err)
		err = copy_count(c, at);
	at = kvr_inspect_logs_at(c->in, rank);
	for (uint32_t kind = 0; !err && kind < KVR_ALIKES; kind++)
		err = copy_log(c, at + kvr_layout_log(l, kind));
	return err;
}

static int copy_page(const struct copy *c, uint32_t rank)
{
	const struct kvr_layout *l = &c->in->layout;
	uint8_t page[KVR_PAGE];
	int err = kvr_inspect_page(c->in, rank, page);

	return err ? err
		   : put(c, page, sizeof page,
			 rank == KVR_LEADER ? l->leader : kvr_layout_rank(l, rank));
}

/* What is behind the page of a rank. */
static int copy_acks(const struct copy *c, uint32_t rank)
{
	const struct kvr_layout *l = &c->in->layout;
	uint64_t area = kvr_layout_rank(l, rank);

	return copy_bytes(c, area + l->rank_acks, area + l->rank_rec);
}

static int copy_ops(const struct copy *c)
{
	const struct kvr_layout *l = &c->in->layout;
	int err = 0;

	for (uint32_t i = 0; !err && i < l->ops; i++) {
		struct kvr_op_entry e = { 0 };

		err = kvr_inspect_op_entry(c->in, i, &e);
		if (!err && e.word)
			err = put(c, &e, sizeof e, l->leader_ops + i * sizeof e);
	}
	return err;
}

static int copy_segment(const struct copy *c, struct kvr_saved *s)
{
	const struct kvr_layout *l = &c->in->layout;
	int err = put(c, &c->in->header, sizeof c->in->header, 0);

	for (uint32_t ch = 0; ch < KVR_CHANNELS; ch++)
		for (uint32_t r = 0; !err && r < l->ranks; r++)
			err = copy_ring(c, ch, r, &s->later[ch][r]);
	if (!err)
		err = copy_bytes(c, l->bulk, l->bulk + l->bulk_bytes);
	if (!err)
		err = copy_ops(c);
	if (!err)
		err = copy_history(c, KVR_LEADER);
	if (!err)
		err = copy_page(c, KVR_LEADER);
	for (uint32_t r = 0; !err && r < l->ranks; r++) {
		err = copy_history(c, r);
		if (!err)
			err = copy_acks(c, r);
		if (!err)
			err = copy_page(c, r);
	}
	if (!err)
		err = copy_bytes(c, l->takeover, l->takeover + KVR_PAGE);
	return err;
}

/* The processes last of all: who dies meanwhile is seen as dead. */
static int fill(struct kvr_inspect *in, struct kvr_saved *s)
{
	struct timespec t;
	int err = 0;

	s->magic = KVR_SAVED_MAGIC;
	s->version = KVR_SAVED_VERSION;
	s->bytes = sizeof *s;
	for (uint32_t r = 0; !err && r <= in->layout.ranks; r++) {
		int leader = r == in->layout.ranks;
		struct kvr_inspect_proc p = { 0 };

		err = kvr_inspect_proc(in, leader ? KVR_LEADER : r, &p);
		s->proc[leader ? KVR_MAX_RANKS : r] =
			(struct kvr_saved_proc){ .alive = p.alive, .gone = p.gone, .peer = p.peer };
	}
	s->now_ns = kvr_now();
	clock_gettime(CLOCK_REALTIME, &t);
	s->unix_ns = (uint64_t)t.tv_sec * KVR_SEC + (uint64_t)t.tv_nsec;
	s->same_boot = in->same_boot != 0;
	memcpy(s->boot_id, in->header.boot_id, sizeof s->boot_id);
	snprintf(s->library, sizeof s->library, "%s", KVR_VERSION_STRING);
	s->checksum = kvr_hash(s, offsetof(struct kvr_saved, checksum), 0);
	return err;
}

static int write_copy(struct copy *c)
{
	struct kvr_saved *s = calloc(1, sizeof *s);
	int err = 0;

	c->chunk = malloc(CHUNK);
	if (!s || !c->chunk)
		err = KVR_FAIL(-ENOMEM, "kvr_inspect_save: no memory for %u bytes", CHUNK);
	if (!err && ftruncate(c->fd, (off_t)c->in->layout.total))
		err = save_failed(c);
	if (!err)
		err = copy_segment(c, s);
	if (!err && c->in->saved)
		memcpy(s, c->in->saved, sizeof *s); /* it stays what it is a copy of */
	else if (!err)
		err = fill(c->in, s);
	if (!err)
		err = put(c, s, sizeof *s, c->in->layout.total);
	if (!err && fsync(c->fd))
		err = save_failed(c);
	free(c->chunk);
	free(s);
	return err;
}

static int give_name(const struct copy *c, const char *path, int replace)
{
	if (!replace && link(c->temp, path))
		return errno == EEXIST ? KVR_FAIL(-EEXIST,
						  "%s exists already, and stays as it is; "
						  "choose another name, or ask for replacing it",
						  path)
				       : KVR_FAIL(-errno, "%s: %s", path, kvr_strerror(errno));
	if (replace && rename(c->temp, path))
		return KVR_FAIL(-errno, "%s: %s", path, kvr_strerror(errno));
	if (!replace)
		unlink(c->temp);
	return 0;
}

/* A copy under a name like that would be taken for a group, or be one's end. */
static int check_name(const char *path)
{
	const char *file = strrchr(path, '/');
	char name[KVR_NAME_MAX];
	enum kvr_shm_kind kind;
	uint64_t epoch;

	if (kvr_shm_parse(file ? file + 1 : path, name, sizeof name, &kind, &epoch))
		return 0;
	return KVR_FAIL(-EINVAL,
			"%s: files of that name belong to the group %s; choose another name, such "
			"as one with an ending",
			path, name);
}

int kvr_inspect_save(struct kvr_inspect *inspect, const char *path, int replace)
{
	struct copy c = { .in = inspect };
	int n = snprintf(c.temp, sizeof c.temp, "%s.XXXXXX", path);
	int err = check_name(path);

	if (!err && (n < 0 || (size_t)n >= sizeof c.temp))
		err = KVR_FAIL(-ENAMETOOLONG, "%.64s...: the path is too long", path);
	if (err)
		return err;
	c.fd = mkostemp(c.temp, O_CLOEXEC); /* 0600 */
	if (c.fd < 0)
		return save_failed(&c);
	err = write_copy(&c);
	if (close(c.fd) && !err)
		err = save_failed(&c);
	if (!err)
		err = give_name(&c, path, replace);
	if (err)
		unlink(c.temp);
	return err;
}

/* --- reading one ----------------------------------------------------------------------------- */

static int check_saved(const struct kvr_saved *s, const char *path)
{
	if (s->version != KVR_SAVED_VERSION || s->bytes != sizeof *s) {
		char library[sizeof s->library];

		kvr_text_copy(library, sizeof library, s->library, sizeof s->library);
		return KVR_FAIL(-EPROTO,
				"%s was saved with version %u (%u bytes) of the trailer, by kvring "
				"%s; this is kvring %s and reads version %u (%zu bytes)",
				path, s->version, s->bytes, library, KVR_VERSION_STRING,
				KVR_SAVED_VERSION, sizeof *s);
	}
	if (s->checksum != kvr_hash(s, offsetof(struct kvr_saved, checksum), 0))
		return KVR_FAIL(-EPROTO,
				"%s is not what was saved: the checksum of its trailer differs",
				path);
	for (uint32_t i = 0; i <= KVR_MAX_RANKS; i++)
		if (s->proc[i].alive < -1 || s->proc[i].alive > 1)
			return KVR_FAIL(-EPROTO,
					"%s: its trailer has no such state of a process: %d", path,
					s->proc[i].alive);
	return 0;
}

int kvr_inspect_saved_read(struct kvr_inspect *in, uint64_t bytes, uint64_t file_bytes,
			   const char *path)
{
	struct kvr_saved s = { 0 };
	int err;

	if (file_bytes - bytes < sizeof s.magic + sizeof s.version)
		return 0;
	err = read_at(in, &s, (size_t)kvr_min(sizeof s, file_bytes - bytes), bytes);
	if (err || s.magic != KVR_SAVED_MAGIC)
		return err;
	err = check_saved(&s, path);
	if (!err && file_bytes - bytes != sizeof s)
		err = KVR_FAIL(-EPROTO, "%s: %llu bytes are behind the trailer of a saved copy",
			       path, (unsigned long long)(file_bytes - bytes - sizeof s));
	if (err)
		return err;
	in->saved = malloc(sizeof s);
	if (!in->saved)
		return KVR_FAIL(-ENOMEM, "kvr_inspect_open: no memory for %zu bytes", sizeof s);
	*in->saved = s;
	return 0;
}
