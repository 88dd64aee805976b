/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks to and from a real file through kvr_store_*, as an engine drives it: one thread, a
 * registered pool, `depth` blocks in flight, asleep when nothing ended. First stores alone (with
 * eviction once the store is full), then loads alone, in random order. Latency is from submission
 * to poll().
 *
 * Compare with the device itself in the same minute:
 *   fio --name=x --filename=DIR/x --size=1g --bs=512k --iodepth=16 --rw=randread --direct=1
 *       --ioengine=io_uring --fixedbufs=1 --runtime=2 --time_based
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kvring/err.h"
#include "kvring/store.h"

#define DEPTH_MAX 1024u
#define SAMPLES (1u << 20)

struct bench {
	uint64_t slot, bytes, depth;
	double seconds;
	const char *dir;
	int json, no_uring;
	struct kvr_store *store;
	struct kvr_store_info info;
	char *pool;
	struct kvr_store_op *blocks; /* what was stored, by turn: the oldest is evicted first */
	uint64_t nblocks, head, seq;
	struct kvr_store_op ops[DEPTH_MAX];
	uint64_t began[DEPTH_MAX];
	uint32_t idle[DEPTH_MAX], nidle;
	uint32_t *us; /* latencies */
	uint64_t nus;
};

struct result {
	double gbps, p50, p99, p999, max;
	uint64_t ops, errors;
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t parse_size(const char *text)
{
	static const char *const units[] = { "", "KiB", "MiB", "GiB", "TiB" };
	char *end;
	uint64_t v = strtoull(text, &end, 10), shift = 0;
	unsigned i;

	for (i = 0; i < sizeof units / sizeof units[0]; i++, shift += 10)
		if (end != text && !strcmp(end, units[i]) && v && v <= UINT64_MAX >> shift)
			return v << shift;
	fprintf(stderr, "bench-store: '%s' is not a size like 512KiB or 1GiB\n", text);
	exit(2);
}

static void fail(const char *what)
{
	fprintf(stderr, "bench-store: %s: %s\n", what, kvr_explain());
	exit(1);
}

static void open_store(struct bench *b)
{
	static struct kvr_shape shape;
	static const struct kvr_model model = { .name = "bench" };
	char path[4096], *paths[] = { path };
	uint64_t pool_bytes = b->depth * (b->slot + 3 * 4096);
	struct kvr_store_opts o = {
		.size = sizeof o,
		.paths = (const char *const *)paths,
		.npaths = 1,
		.flags = KVR_STORE_CREATE | (b->no_uring ? KVR_STORE_NO_URING : 0u),
		.bytes = b->bytes,
		.model = &model,
		.shape = &shape,
		.depth = (uint32_t)b->depth,
	};

	snprintf(path, sizeof path, "%s/bench-store.%d", b->dir, (int)getpid());
	if (kvr_shape_replicated(1, 1, b->slot, &shape))
		fail("--slot");
	b->pool = mmap(NULL, pool_bytes, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (b->pool == MAP_FAILED) {
		fprintf(stderr, "bench-store: no memory for %llu bytes\n",
			(unsigned long long)pool_bytes);
		exit(1);
	}
	o.pool = b->pool;
	o.pool_bytes = pool_bytes;
	if (kvr_store_open(&o, &b->store))
		fail(b->dir);
	unlink(path); /* nothing is left however this ends */
	kvr_store_info(b->store, &b->info);
	b->seq = kvr_store_next_seq(b->store);
}

/* A free slot, the oldest block's if there is none other; 0 when all are in flight. */
static int place(struct bench *b, struct kvr_store_op *op)
{
	while (kvr_store_alloc(b->store, &op->where)) {
		if (!b->nblocks)
			return 0;
		kvr_store_free(b->store, b->blocks[b->head % b->info.slots].where);
		b->head++;
		b->nblocks--;
	}
	return 1;
}

static int start_store(struct bench *b, struct kvr_store_op *op)
{
	if (!place(b, op))
		return 0;
	op->seq = b->seq++;
	memcpy(op->key.bytes, &op->seq, sizeof op->seq);
	op->header_checksum = kvr_store_seal(b->store, op->image, &op->key, 0, op->seq);
	if (!kvr_store_write(b->store, op))
		return 1;
	kvr_store_free(b->store, op->where); /* queue full */
	return 0;
}

static int start_load(struct bench *b, struct kvr_store_op *op)
{
	static uint64_t rng = 88172645463325252u;
	const struct kvr_store_op *from;

	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	from = &b->blocks[(b->head + rng % b->nblocks) % b->info.slots];
	op->where = from->where;
	op->key = from->key;
	op->seq = from->seq;
	op->header_checksum = from->header_checksum;
	op->demand = 1;
	return !kvr_store_read(b->store, op);
}

static int by_value(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static double percentile(const struct bench *b, double p)
{
	return b->nus ? b->us[(uint64_t)(p * (double)(b->nus - 1))] : 0;
}

static void take(struct bench *b, struct kvr_store_op *op, int loads, struct result *r)
{
	uint32_t i = (uint32_t)(op - b->ops);
	uint64_t us = (now_ns() - b->began[i]) / 1000;

	b->idle[b->nidle++] = i;
	r->ops++;
	if (b->nus < SAMPLES)
		b->us[b->nus++] = us > UINT32_MAX ? UINT32_MAX : (uint32_t)us;
	if (op->result) {
		r->errors++;
		if (!loads)
			kvr_store_retire(b->store, op->where);
	} else if (!loads) {
		b->blocks[(b->head + b->nblocks++) % b->info.slots] = *op;
	}
}

static struct result phase(struct bench *b, int loads)
{
	uint64_t begin = now_ns(), end = begin + (uint64_t)(b->seconds * 1e9), now = begin;
	struct kvr_store_op *ended[64];
	struct result r = { 0 };
	struct pollfd p = { .events = POLLIN };
	int n, i;

	b->nus = 0;
	kvr_store_fds(b->store, &p.fd, 1);
	while (now < end || kvr_store_pending(b->store)) {
		while (now < end && b->nidle) {
			struct kvr_store_op *op = &b->ops[b->idle[b->nidle - 1]];

			b->began[op - b->ops] = now_ns();
			if (!(loads ? start_load(b, op) : start_store(b, op)))
				break;
			b->nidle--;
		}
		n = kvr_store_poll(b->store, ended, 64);
		for (i = 0; i < n; i++)
			take(b, ended[i], loads, &r);
		if (!n)
			poll(&p, 1, 10);
		now = now_ns();
	}
	qsort(b->us, b->nus, sizeof b->us[0], by_value);
	r.gbps = (double)r.ops * (double)b->info.block_bytes / (double)(now - begin);
	r.p50 = percentile(b, 0.5);
	r.p99 = percentile(b, 0.99);
	r.p999 = percentile(b, 0.999);
	r.max = percentile(b, 1);
	return r;
}

static void print_phase(const char *name, const struct result *r, int json)
{
	unsigned long long ops = r->ops, errors = r->errors;

	if (json)
		printf(", \"%s\": { \"gbps\": %.3f, \"ops\": %llu, \"errors\": %llu", name, r->gbps,
		       ops, errors);
	else
		printf("%-6s %8.3f GB/s  %8llu blocks  %llu errors", name, r->gbps, ops, errors);
	printf(json ? ", \"p50_us\": %.0f, \"p99_us\": %.0f, \"p999_us\": %.0f, \"max_us\": %.0f }"
		    : "  p50 %6.0f us  p99 %6.0f  p99.9 %6.0f  max %6.0f\n",
	       r->p50, r->p99, r->p999, r->max);
}

static void report(const struct bench *b, const struct result *store, const struct result *load)
{
	unsigned long long bytes = b->info.block_bytes, slots = b->info.slots, depth = b->depth;
	const char *why;
	uint32_t i;

	if (b->json)
		printf("{ \"backend\": \"%s\", \"block_bytes\": %llu, \"slots\": %llu, "
		       "\"depth\": %llu",
		       b->info.backend, bytes, slots, depth);
	else
		printf("%s, blocks of %llu bytes, %llu slots, depth %llu\n", b->info.backend, bytes,
		       slots, depth);
	print_phase("store", store, b->json);
	print_phase("load", load, b->json);
	if (b->json)
		printf(", \"degraded\": [");
	for (i = 0; (why = kvr_store_degraded(b->store, i)); i++)
		printf(b->json ? "%s\"%s\"" : "%sdegraded: %s\n", b->json && i ? ", " : "", why);
	if (b->json)
		printf("] }\n");
}

static void usage(void)
{
	puts("Usage: bench-store [--dir DIR] [--slot SIZE] [--bytes SIZE] [--seconds N]\n"
	     "                   [--depth N] [--no-uring] [--json]\n"
	     "Stores blocks to a file and loads them again: GB/s and latency percentiles.\n"
	     "  --dir DIR     where the file is made and removed (/var/tmp)\n"
	     "  --slot SIZE   bytes of a block, like 64KiB, 2MiB (512KiB)\n"
	     "  --bytes SIZE  of the store (1GiB)\n"
	     "  --seconds N   of each of the two phases (2)\n"
	     "  --depth N     blocks in flight, 1 to 1024 (16)");
	exit(0);
}

static void options(struct bench *b, int argc, char **argv)
{
	const struct option longs[] = {
		{ "dir", 1, NULL, 'd' },    { "slot", 1, NULL, 's' },
		{ "bytes", 1, NULL, 'b' },  { "seconds", 1, NULL, 't' },
		{ "depth", 1, NULL, 'n' },  { "no-uring", 0, &b->no_uring, 1 },
		{ "json", 0, &b->json, 1 }, { "help", 0, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 'd')
			b->dir = optarg;
		else if (c == 's')
			b->slot = parse_size(optarg);
		else if (c == 'b')
			b->bytes = parse_size(optarg);
		else if (c == 't')
			b->seconds = atof(optarg);
		else if (c == 'n')
			b->depth = parse_size(optarg);
		else if (c == 'h')
			usage();
		else if (c)
			exit(2);
	}
	if (optind < argc || b->depth < 1 || b->depth > DEPTH_MAX || !(b->seconds > 0)) {
		fprintf(stderr, "bench-store: see --help: a number is out of range, or an argument "
				"too many\n");
		exit(2);
	}
}

int main(int argc, char **argv)
{
	static struct bench b = {
		.slot = 512 << 10, .bytes = 1 << 30, .depth = 16, .seconds = 2, .dir = "/var/tmp"
	};
	struct result store, load = { 0 };
	uint64_t i;

	options(&b, argc, argv);
	open_store(&b);
	b.blocks = calloc(b.info.slots, sizeof *b.blocks);
	b.us = malloc(SAMPLES * sizeof *b.us);
	if (!b.blocks || !b.us)
		return 1;
	for (i = 0; i < b.depth; i++) {
		b.ops[i].image = b.pool + i * b.info.slot_bytes;
		memset(b.ops[i].image, (int)i + 1, b.info.slot_bytes);
		b.idle[b.nidle++] = (uint32_t)i;
	}
	store = phase(&b, 0);
	if (b.nblocks)
		load = phase(&b, 1);
	report(&b, &store, &load);
	kvr_store_close(b.store, now_ns() + 1000000000u);
	return store.errors || load.errors || !load.ops;
}
