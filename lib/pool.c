/* SPDX-License-Identifier: Apache-2.0 */
/* The host pool's file and mapping. */
#include "pool.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "atomic.h"
#include "clock.h"
#include "err.h"
#include "hash.h"
#include "node.h"
#include "shm.h"
#include "util.h"

uint64_t kvr_pool_slots(uint64_t host_bytes, const struct kvr_geometry *geo)
{
	return host_bytes < KVR_POOL_DATA ? 0 : (host_bytes - KVR_POOL_DATA) / geo->slot_bytes;
}

static uint64_t header_sum(const struct kvr_pool_header *header)
{
	struct kvr_pool_header h = *header;

	h.checksum = 0;
	h.cache_generation = 0;
	return kvr_hash(&h, sizeof h, 0);
}

static void header_fill(struct kvr_pool_header *h, const struct kvr_pool_opts *o, uint64_t slots)
{
	memset(h, 0, sizeof *h);
	h->magic = KVR_POOL_MAGIC;
	h->version = KVR_POOL_VERSION;
	h->header_bytes = o->geo->header_bytes;
	memcpy(h->uuid, o->uuid, sizeof h->uuid);
	h->epoch = o->epoch;
	h->slots = slots;
	h->slot_bytes = o->geo->slot_bytes;
	h->block_bytes = o->geo->block_bytes;
	if (o->model)
		h->model = *o->model;
	h->shape_hash = kvr_shape_hash(o->shape);
	h->checksum = header_sum(h);
}

int kvr_pool_create(const struct kvr_pool_opts *o, struct kvr_pool *ret_pool)
{
	uint64_t slots = kvr_pool_slots(o->host_bytes, o->geo);
	struct kvr_pool p = { .slots = slots, .slot_bytes = o->geo->slot_bytes, .owner = 1 };
	int err;

	if (slots < 1 || slots > UINT32_MAX - 1)
		return KVR_FAIL(-EINVAL,
				"pool of group %s: %llu bytes of host memory hold %llu slots of "
				"%llu bytes; at least one block must fit",
				o->name, (unsigned long long)o->host_bytes,
				(unsigned long long)slots, (unsigned long long)p.slot_bytes);
	p.bytes = KVR_POOL_DATA + slots * p.slot_bytes;
	err = kvr_shm_path(p.path, sizeof p.path, o->dir, o->name, KVR_SHM_POOL, 0);
	if (err)
		return err;
	p.fd = kvr_shm_create(o->dir, p.bytes);
	if (p.fd < 0)
		return p.fd;
	p.mem = kvr_shm_map(p.fd, 0, p.bytes, 1);
	if (!p.mem) {
		close(p.fd);
		return -ENOMEM;
	}
	err = kvr_node_bind(p.mem, p.bytes, o->node);
	header_fill((struct kvr_pool_header *)(void *)p.mem, o, slots);
	if (err) {
		munmap(p.mem, p.bytes);
		close(p.fd);
		return err;
	}
	*ret_pool = p;
	return 0;
}

int kvr_pool_publish(struct kvr_pool *pool)
{
	return kvr_shm_publish(pool->fd, pool->path);
}

/* -EAGAIN: not there yet, or still that of an earlier epoch. */
static int try_attach(const struct kvr_pool_opts *o, uint64_t slots, struct kvr_pool *p)
{
	struct kvr_pool_header h, expected;
	uint64_t bytes;
	int err;

	p->fd = kvr_shm_open(p->path, 1, &bytes);
	if (p->fd == -ENOENT)
		return -EAGAIN;
	if (p->fd < 0)
		return p->fd;
	err = kvr_shm_read(p->fd, &h, sizeof h, 0);
	if (!err && (h.magic != KVR_POOL_MAGIC || h.version != KVR_POOL_VERSION ||
		     h.checksum != header_sum(&h)))
		err = KVR_FAIL(-EPROTO,
			       "%s is not a pool of version %u: magic %#llx, version %u, checksum "
			       "%s; remove it if nobody uses it",
			       p->path, KVR_POOL_VERSION, (unsigned long long)h.magic, h.version,
			       h.checksum == header_sum(&h) ? "right" : "wrong");
	if (!err && (memcmp(h.uuid, o->uuid, sizeof h.uuid) || h.epoch != o->epoch))
		err = -EAGAIN;
	header_fill(&expected, o, slots);
	if (!err &&
	    (slots > UINT32_MAX - 1 || h.slots != slots || h.slot_bytes != expected.slot_bytes ||
	     h.header_bytes != expected.header_bytes || h.block_bytes != expected.block_bytes ||
	     h.shape_hash != expected.shape_hash || bytes != KVR_POOL_DATA + slots * h.slot_bytes))
		err = KVR_FAIL(-EBADMSG,
			       "%s has %llu slots of %llu bytes in %llu bytes%s; the segment says "
			       "%llu slots of %llu bytes",
			       p->path, (unsigned long long)h.slots,
			       (unsigned long long)h.slot_bytes, (unsigned long long)bytes,
			       h.shape_hash != expected.shape_hash ? ", and another shape" : "",
			       (unsigned long long)slots, (unsigned long long)expected.slot_bytes);
	if (err) {
		close(p->fd);
		return err;
	}
	p->bytes = bytes;
	p->slots = slots;
	p->slot_bytes = h.slot_bytes;
	return 0;
}

int kvr_pool_attach(const struct kvr_pool_opts *o, uint64_t slots, uint64_t deadline_ns,
		    struct kvr_pool *ret_pool)
{
	struct kvr_pool p = { .fd = -1 };
	int err = kvr_shm_path(p.path, sizeof p.path, o->dir, o->name, KVR_SHM_POOL, 0);

	if (err)
		return err;
	while ((err = try_attach(o, slots, &p)) == -EAGAIN) {
		struct timespec pause = kvr_timespec(2 * KVR_MS);

		if (kvr_now() >= deadline_ns)
			return KVR_FAIL(-ETIMEDOUT,
					"pool of group %s, epoch %llu: %s did not appear in time; "
					"its leader is still opening the store, or died",
					o->name, (unsigned long long)o->epoch, p.path);
		if (nanosleep(&pause, NULL))
			return KVR_FAIL(-EINTR, "pool of group %s: a signal ended the wait",
					o->name);
	}
	if (err)
		return err;
	p.mem = kvr_shm_map(p.fd, 0, p.bytes, 1);
	if (!p.mem) {
		close(p.fd);
		return -ENOMEM;
	}
	*ret_pool = p;
	return 0;
}

void kvr_pool_set_generation(struct kvr_pool *pool, uint64_t generation)
{
	struct kvr_pool_header *h = (void *)pool->mem;

	kvr_store_relaxed(&h->cache_generation, generation);
}

void kvr_pool_unlink(struct kvr_pool *pool)
{
	kvr_shm_unlink(pool->fd, pool->path);
	close(pool->fd);
	pool->mem = NULL;
}

void kvr_pool_close(struct kvr_pool *pool)
{
	if (!pool->mem)
		return;
	if (pool->owner)
		kvr_shm_unlink(pool->fd, pool->path);
	munmap(pool->mem, pool->bytes);
	close(pool->fd);
	pool->mem = NULL;
}
