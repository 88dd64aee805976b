/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the store's tests share: files in a directory of their own, a small model and shape, blocks
 * whose bytes follow from key and seq, segment checksums as ranks compute and verify them, and
 * transfers that are waited for.
 */
#ifndef TESTS_STORE_KIT_H
#define TESTS_STORE_KIT_H

#include <poll.h>
#include <sys/stat.h>

#include "harness.h"
#include "kvring/err.h"
#include "store.h"

#define MIB (1u << 20)

static inline uint64_t kit_rng(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* Blocks of 20,000 bytes in 2 shards x 5 layer groups: a slot is 4096 + 20,480 bytes. */
#define KIT_BLOCK 20000u
static const struct kvr_model kit_model = {
	.name = "org/kit", .revision = "r1", .dtype = "bf16", .page_tokens = 16, .layers = 5
};
#define KIT_SHAPE                                                                                 \
	{                                                                                         \
		.layer_groups = 5, .shards = 2, .layer_bytes = 4000,                              \
		.shard = {                                                                        \
			{ .writer = 0, .layers = 5, .bytes = 2000, .readers = 1 },                \
			{ .writer = 1, .layers = 5, .offset = 2000, .bytes = 2000, .readers = 2 } \
		},                                                                                \
	}
static const struct kvr_shape kit_shape = KIT_SHAPE;

/* All bytes of a key differ from those of the next number. */
static inline struct kvr_key kit_key(uint64_t number)
{
	struct kvr_key key;
	uint64_t state = number, v;
	int i;

	for (i = 0; i < 4; i++) {
		v = kit_rng(&state);
		memcpy(&key.bytes[8 * i], &v, 8);
	}
	return key;
}

/* Payload of the block `key` as it was stored with `seq`. KIT_BLOCK is a multiple of 8. */
static inline void kit_payload(void *payload, const struct kvr_key *key, uint64_t seq)
{
	uint64_t state, v, i;

	memcpy(&state, key->bytes, sizeof state);
	state ^= seq * 0x9e3779b97f4a7c15u;
	for (i = 0; i < KIT_BLOCK; i += 8) {
		v = kit_rng(&state);
		memcpy((char *)payload + i, &v, 8);
	}
}

/* Calls fn for each segment of an image; stops at the first that is not 0. */
static inline int kit_segments(void *image, const struct kvr_geometry *geo,
			       const struct kvr_key *key,
			       int (*fn)(uint64_t *stored, uint64_t computed))
{
	struct kvr_slot_header *h = image;
	uint32_t s, l, index = 0;
	int err = 0;

	for (s = 0; s < kit_shape.shards; s++) {
		const struct kvr_shard *shard = &kit_shape.shard[s];

		for (l = 0; !err && l < shard->layers; l++, index++)
			err = fn(&h->sum[index],
				 kvr_segment_sum((char *)image + geo->header_bytes +
							 (shard->first_layer + l) *
								 kit_shape.layer_bytes +
							 shard->offset,
						 shard->bytes, key, index));
	}
	return err;
}

static inline int kit_set_sum(uint64_t *stored, uint64_t computed)
{
	*stored = computed;
	return 0;
}

static inline int kit_same_sum(uint64_t *stored, uint64_t computed)
{
	return *stored == computed ? 0 : -EBADMSG;
}

/* A whole image, sealed; returns its header's checksum. */
static inline uint64_t kit_fill(void *image, const struct kvr_store *store,
				const struct kvr_key *key, uint64_t seq)
{
	const struct kvr_geometry *geo = kvr_store_geometry(store);
	struct kvr_store_info info;

	kvr_store_info(store, &info);
	kit_payload((char *)image + geo->header_bytes, key, seq);
	kit_segments(image, geo, key, kit_set_sum);
	return kvr_slot_seal(image, geo, key, 1, seq, info.cache_generation);
}

/* As ranks do after the engine checked the header. */
static inline int kit_verify(void *image, const struct kvr_store *store, const struct kvr_key *key)
{
	return kit_segments(image, kvr_store_geometry(store), key, kit_same_sum);
}

/* 1 when the payload is byte for byte what was stored. */
static inline int kit_bytes_right(const void *image, const struct kvr_store *store,
				  const struct kvr_key *key, uint64_t seq)
{
	static char want[KIT_BLOCK];

	kit_payload(want, key, seq);
	return !memcmp((const char *)image + kvr_store_geometry(store)->header_bytes, want,
		       KIT_BLOCK);
}

static inline void *kit_image(const struct kvr_store *store)
{
	void *image = aligned_alloc(4096, kvr_store_geometry(store)->slot_bytes);

	ck_assert_ptr_nonnull(image);
	return image;
}

/* Waits until this operation is returned; others must not be in flight. */
static inline int kit_wait(struct kvr_store *store, struct kvr_store_op *op)
{
	uint64_t deadline = test_deadline_ms(10000);
	struct pollfd p[KVR_MAX_DEVICES];
	int fds[KVR_MAX_DEVICES];
	struct kvr_store_op *ended;
	uint32_t i, n = kvr_store_fds(store, fds, KVR_MAX_DEVICES);

	for (i = 0; i < n; i++)
		p[i] = (struct pollfd){ .fd = fds[i], .events = POLLIN };
	while (!kvr_store_poll(store, &ended, 1)) {
		ck_assert_msg(test_now_ns() < deadline, "an operation did not end");
		poll(p, n, 20);
	}
	ck_assert_ptr_eq(ended, op);
	return op->result;
}

static inline int kit_write(struct kvr_store *store, kvr_where where, uint64_t number, uint64_t seq)
{
	struct kvr_store_op op = { .where = where, .key = kit_key(number), .space = 1, .seq = seq };
	int err;

	op.image = kit_image(store);
	op.header_checksum = kit_fill(op.image, store, &op.key, seq);
	err = kvr_store_write(store, &op);
	if (!err)
		err = kit_wait(store, &op);
	free(op.image);
	return err;
}

/* Reads what a scan found and verifies it as ranks do: 0, -EBADMSG, or another error. Bytes that
 * pass and are wrong fail the test. */
static inline int kit_read(struct kvr_store *store, const struct kvr_store_found *found)
{
	struct kvr_store_op op = { .where = found->where,
				   .key = found->key,
				   .space = found->space,
				   .header_checksum = found->header_checksum,
				   .demand = 1 };
	int err;

	op.image = kit_image(store);
	err = kvr_store_read(store, &op);
	if (!err)
		err = kit_wait(store, &op);
	if (!err)
		err = kit_verify(op.image, store, &op.key);
	if (!err)
		ck_assert_msg(kit_bytes_right(op.image, store, &op.key, found->seq),
			      "wrong bytes passed all checksums");
	free(op.image);
	return err;
}

/* What a scan found, in memory. */
struct kit_found {
	struct kvr_store_found *at;
	uint64_t n, room;
};

static inline void kit_take(void *arg, const struct kvr_store_found *found)
{
	struct kit_found *f = arg;

	if (f->n == f->room) {
		f->room = f->room ? 2 * f->room : 64;
		f->at = realloc(f->at, f->room * sizeof *f->at);
		ck_assert_ptr_nonnull(f->at);
	}
	f->at[f->n++] = *found;
}

static inline struct kit_found kit_scan(struct kvr_store *store)
{
	struct kit_found f = { 0 };

	ck_assert_uint_eq(kvr_store_scan(store, kit_take, &f), f.n);
	return f;
}

static inline const struct kvr_store_found *kit_find(const struct kit_found *f, uint64_t number)
{
	struct kvr_key key = kit_key(number);
	uint64_t i;

	for (i = 0; i < f->n; i++)
		if (!memcmp(&f->at[i].key, &key, sizeof key))
			return &f->at[i];
	return NULL;
}

/* --- files ----------------------------------------------------------------------------------- */

static char dir[256];
static char paths[4][300];
static const char *path_list[4] = { paths[0], paths[1], paths[2], paths[3] };

static inline void setup(void)
{
	unsigned i;

	test_tmpdir(dir, sizeof dir);
	for (i = 0; i < 4; i++)
		snprintf(paths[i], sizeof paths[i], "%s/device%u", dir, i);
}

static inline void teardown(void)
{
	test_rmdir(dir);
}

static inline struct kvr_store_opts options(uint32_t npaths, uint64_t bytes, int loop)
{
	struct kvr_store_opts o = {
		.size = sizeof o,
		.paths = path_list,
		.npaths = npaths,
		.flags = KVR_STORE_CREATE | (loop ? KVR_STORE_NO_URING : 0),
		.bytes = bytes,
		.model = &kit_model,
		.shape = &kit_shape,
	};

	return o;
}

static inline struct kvr_store *open_ok(const struct kvr_store_opts *o)
{
	struct kvr_store *store = NULL;
	int err = kvr_store_open(o, &store);

	ck_assert_msg(!err, "%d: %s", err, kvr_explain());
	return store;
}

static inline void close_ok(struct kvr_store *store)
{
	ck_assert_int_eq(kvr_store_close(store, test_deadline_ms(5000)), 0);
}

/* Expects `err` and each of the words in the sentence. */
static inline void open_fails(const struct kvr_store_opts *o, int err, const char *word,
			      const char *word2)
{
	struct kvr_store *store = (struct kvr_store *)(void *)&store;
	int got = kvr_store_open(o, &store);

	ck_assert_msg(got == err, "%d: %s", got, got < 0 ? kvr_explain() : "");
	ck_assert_ptr_eq(store, (struct kvr_store *)(void *)&store);
	ck_assert_msg(!word || strstr(kvr_explain(), word) != NULL, "%s", kvr_explain());
	ck_assert_msg(!word2 || strstr(kvr_explain(), word2) != NULL, "%s", kvr_explain());
}

static inline struct kvr_store_info info_of(const struct kvr_store *store)
{
	struct kvr_store_info info;

	kvr_store_info(store, &info);
	return info;
}

static inline uint64_t put(struct kvr_store *store, uint64_t number, uint64_t seq)
{
	kvr_where where;

	ck_assert_int_eq(kvr_store_alloc(store, &where), 0);
	ck_assert_int_eq(kit_write(store, where, number, seq), 0);
	return where;
}

static inline void patch(const char *path, uint64_t off, const void *bytes, size_t len)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(pwrite(fd, bytes, len, (off_t)off), (ssize_t)len);
	close(fd);
}

static inline void flip(const char *path, uint64_t off)
{
	uint8_t byte;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	ck_assert_int_eq(pread(fd, &byte, 1, (off_t)off), 1);
	close(fd);
	byte ^= 16;
	patch(path, off, &byte, 1);
}

static inline char *slurp(const char *path, size_t *ret_len)
{
	struct stat st;
	char *data;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fstat(fd, &st), 0);
	data = malloc((size_t)st.st_size + 1);
	ck_assert_int_eq(read(fd, data, (size_t)st.st_size), st.st_size);
	close(fd);
	*ret_len = (size_t)st.st_size;
	return data;
}

static inline void copy_file(const char *from, const char *to)
{
	size_t len;
	char *data = slurp(from, &len);
	int fd = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	ck_assert_int_eq(write(fd, data, len), (ssize_t)len);
	close(fd);
	free(data);
}

#endif
