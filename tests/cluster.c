/* SPDX-License-Identifier: Apache-2.0 */
/* See cluster.h. */
#include "cluster.h"

#include <sys/mman.h>

#define BLOCK 65536u

void cluster_init(struct cluster *cl, uint32_t ranks, int replicated, uint32_t blocks,
		  uint32_t slots)
{
	static struct kvr_model model = { .name = "test", .page_tokens = 16 };

	memset(cl, 0, sizeof *cl);
	test_name(cl->name, sizeof cl->name, "cl");
	ck_assert_int_eq(0, replicated ? kvr_shape_replicated(ranks, 2, BLOCK, &cl->shape)
				       : kvr_shape_split(ranks, 2, BLOCK, &cl->shape));
	cl->opts = (struct kvr_connector_opts){ .size = sizeof cl->opts,
						.ranks = ranks,
						.ops = 64,
						.ring_bytes = 32768,
						.model = &model,
						.shape = &cl->shape,
						.host_bytes = 4096 + blocks * (BLOCK + 4096ull) };
	if (slots) {
		test_tmpdir(cl->dir, sizeof cl->dir);
		cl->path = cl->dir;
		cl->opts.store_paths = &cl->path;
		cl->opts.stores = 1;
		cl->opts.store_flags = KVR_STORE_CREATE;
		cl->opts.store_bytes =
			8192 + ((slots * 128 + 4095) & ~4095u) + slots * (BLOCK + 4096ull);
	}
	cl->area = mmap(NULL, sizeof *cl->area, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			-1, 0);
	ck_assert_ptr_ne(cl->area, MAP_FAILED);
}

static void child(struct cluster *cl, cluster_fn fn, uint32_t rank)
{
	struct kvr_connector *c;
	int err;

	if (CLUSTER_LEADER(rank))
		err = kvr_connector_lead(cl->name, &cl->opts, &c);
	else
		err = kvr_connector_join(cl->name, rank, &cl->opts, SOON, &c);
	if (err) {
		fprintf(stderr, "rank %d: %s\n", (int)rank, kvr_explain());
		_exit(1);
	}
	fn(cl, c, rank);
	kvr_connector_close(c);
	_exit(0);
}

void cluster_start(struct cluster *cl, cluster_fn leader, cluster_fn rank)
{
	if (leader && !(cl->leader = fork()))
		child(cl, leader, UINT32_MAX);
	for (uint32_t r = 0; rank && r < cl->opts.ranks; r++)
		if (!(cl->rank[r] = fork()))
			child(cl, rank, r);
}

static void reap_one(pid_t *pid, int killed, uint64_t timeout_ms)
{
	int status;

	if (*pid <= 0)
		return;
	status = test_reap(*pid, timeout_ms);
	*pid = 0;
	if (killed)
		ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	else
		ck_assert_int_eq(status, 0);
}

void cluster_join(struct cluster *cl, uint32_t killed, uint64_t timeout_ms)
{
	for (uint32_t r = 0; r < cl->opts.ranks; r++)
		reap_one(&cl->rank[r], killed >> r & 1, timeout_ms);
	reap_one(&cl->leader, killed >> CLUSTER_RANKS & 1, timeout_ms);
}

/* A killed leader leaves its names for the next one: take over and close, as a user would. */
void cluster_exit(struct cluster *cl)
{
	struct kvr_group_opts go = { .size = sizeof go, .ranks = 1, .event_fd = -1 };
	struct kvr_group *g;
	char pattern[128];

	if (!kvr_group_create(cl->name, &go, &g))
		kvr_group_close(g);
	for (int epoch = 1; epoch < 8; epoch++) {
		snprintf(pattern, sizeof pattern, "/dev/shm/kvr-%u-%s.%d", (unsigned)geteuid(),
			 cl->name, epoch);
		unlink(pattern);
	}
	if (cl->dir[0])
		test_rmdir(cl->dir);
	munmap(cl->area, sizeof *cl->area);
}

struct kvr_key cluster_key(uint64_t family, uint32_t index)
{
	struct kvr_key key;

	for (uint32_t i = 0; i < 4; i++) {
		uint64_t word = (family * 1000003 + index + 1) * (0x9e3779b97f4a7c15ull + 2 * i);

		memcpy(key.bytes + 8 * i, &word, 8);
	}
	return key;
}

struct kvr_request cluster_request(uint64_t id, uint32_t attempt)
{
	return (struct kvr_request){ .id = id, .attempt = attempt };
}

uint8_t cluster_byte(const struct kvr_key *key, uint64_t offset)
{
	return (uint8_t)(key->bytes[offset & 31] ^ (offset >> 5) * 7);
}

void cluster_fill(struct kvr_connector *c, const struct kvr_key *key, struct kvr_block *block)
{
	struct kvr_span spans[64];
	uint32_t n = kvr_connector_spans(c, 1, spans, 64);

	for (uint32_t s = 0; s < n; s++)
		for (uint64_t i = spans[s].offset; i < spans[s].offset + spans[s].bytes; i++)
			block->payload[i] = cluster_byte(key, i);
}

uint64_t cluster_wrong(struct kvr_connector *c, const struct kvr_key *key,
		       const struct kvr_block *block)
{
	struct kvr_span spans[64];
	uint32_t n = kvr_connector_spans(c, 0, spans, 64);
	uint64_t wrong = 0;

	for (uint32_t s = 0; s < n; s++)
		for (uint64_t i = spans[s].offset; i < spans[s].offset + spans[s].bytes; i++)
			wrong += block->payload[i] != cluster_byte(key, i);
	return wrong;
}

void cluster_store(struct kvr_connector *c, uint64_t id, uint32_t attempt,
		   const struct kvr_key *keys, uint32_t n, uint32_t rank)
{
	struct kvr_block blocks[1024];

	for (uint32_t at = 0, covered; at < n; at += covered) {
		struct kvr_request req = cluster_request(id, attempt++);
		int count = kvr_connector_store_begin(c, &req, keys + at, n - at, SOON, blocks,
						      1024, &covered);

		MUST(count >= 0 && covered > 0);
		for (int i = 0; i < count && !CLUSTER_LEADER(rank); i++)
			cluster_fill(c, &keys[at + blocks[i].index], &blocks[i]);
		MUST(!kvr_connector_store_copied(c, &req, 0));
		MUST(!kvr_connector_wait_store(c, &req, KVR_STAGE_HOST, SOON));
	}
}

/* One part: as much as the pool has room for now. */
static uint32_t load_part(struct kvr_connector *c, const struct kvr_request *req,
			  const struct kvr_key *keys, uint32_t n, uint32_t rank, int *ret_more)
{
	struct kvr_block blocks[1024];
	struct kvr_hit hit;
	int begun = 0, good = 0;

	MUST(!kvr_connector_lookup(c, req, keys, n, SOON, &hit));
	if (hit.blocks) {
		begun = kvr_connector_load_begin(c, req, hit.blocks, SOON);
		MUST(begun > 0);
		good = kvr_connector_load_wait(c, req, keys, SOON, blocks, 1024);
		MUST(good >= 0);
		for (int i = 0; i < good && !CLUSTER_LEADER(rank); i++)
			MUST(cluster_wrong(c, &keys[i], &blocks[i]) == 0);
		MUST(!kvr_connector_load_done(c, req));
	}
	MUST(!kvr_connector_release(c, req));
	*ret_more = good && good == begun;
	return (uint32_t)good;
}

uint32_t cluster_load(struct kvr_connector *c, uint64_t id, uint32_t attempt,
		      const struct kvr_key *keys, uint32_t n, uint32_t rank)
{
	uint32_t at = 0;
	int more = 1;

	while (at < n && more) {
		struct kvr_request req = cluster_request(id, attempt++);

		at += load_part(c, &req, keys + at, n - at, rank, &more);
	}
	return at;
}

void cluster_shutdown(struct kvr_connector *c)
{
	MUST(!kvr_connector_shutdown(c, SOON));
}

void cluster_keys(uint64_t family, struct kvr_key *ret_keys, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		ret_keys[i] = cluster_key(family, i);
}

void cluster_run(struct cluster *cl, cluster_fn fn)
{
	cluster_start(cl, fn, fn);
	cluster_join(cl, 0, 40000);
}
