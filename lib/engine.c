/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's thread: opens the store, moves operations and I/O on, sleeps. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "atomic.h"
#include "clock.h"
#include "engine_priv.h"
#include "err.h"
#include "point.h"

#define DRAIN_NS (5 * KVR_SEC)
#define STALL_NS KVR_SEC /* a write that finds no slot of the store for so long is given up */

void kvr_engine_wake(struct kvr_engine *e)
{
	uint64_t one = 1;
	ssize_t n = write(e->event_fd, &one, sizeof one);

	(void)n; /* full means readable already */
}

void kvr_io_put(struct kvr_engine *e, struct kvr_engine_io *io)
{
	e->fetch_running -= io->prefetch;
	io->next = e->free_io;
	e->free_io = io;
	e->io_running--;
}

struct kvr_engine_io *kvr_io_get(struct kvr_engine *e, uint32_t block, uint32_t write)
{
	struct kvr_engine_io *io = e->free_io;
	const struct kvr_tier_block *b = &e->tier.blocks[block];
	const struct kvr_index_key *k = &e->tier.keys[block];

	e->free_io = io->next;
	e->io_running++;
	io->block = block;
	io->write = write;
	io->prefetch = 0;
	io->part = 0;
	memset(&io->op, 0, sizeof io->op);
	io->op.where = b->where;
	io->op.image = kvr_pool_image(&e->pool, b->slot);
	io->op.key = k->key;
	io->op.space = k->space;
	io->op.seq = b->seq;
	io->op.header_checksum = b->sum;
	io->op.demand = !write;
	io->op.user = io;
	return io;
}

/* Reads first: somebody waits for them. */
static int pump_reads(struct kvr_engine *e)
{
	int changed = 0;

	/* After a death no read starts: its slot may be one that a survivor still copies from. */
	while (e->read_head != e->read_tail && e->free_io && !e->group_error) {
		uint32_t block = e->read_queue[e->read_head & e->queue_mask];
		struct kvr_engine_io *io = kvr_io_get(e, block, 0);
		int err = kvr_store_read(e->store, &io->op);

		if (err == -EAGAIN) {
			kvr_io_put(e, io);
			break;
		}
		e->read_head++;
		changed = 1;
		e->tier.blocks[block].reading = KVR_READ_RUNNING;
		if (err) {
			kvr_io_put(e, io);
			kvr_tier_fetched(&e->tier, block, 0, 1);
		}
	}
	return changed;
}

/* After those that somebody waits for, and never all there is room for. */
static int pump_fetches(struct kvr_engine *e)
{
	int changed = 0;

	while (e->fetch_head != e->fetch_tail && e->read_head == e->read_tail && e->free_io &&
	       e->fetch_running < KVR_FETCH_IO && !e->group_error) {
		uint32_t block = e->fetch_queue[e->fetch_head & e->queue_mask];
		struct kvr_tier_block *b = &e->tier.blocks[block];
		struct kvr_engine_io *io;
		int err;

		if (b->reading !=
		    KVR_READ_PREFETCH) { /* taken back, or somebody waits for it now */
			e->fetch_head++;
			continue;
		}
		io = kvr_io_get(e, block, 0);
		io->op.demand = 0;
		err = kvr_store_read(e->store, &io->op);
		if (err == -EAGAIN) {
			kvr_io_put(e, io);
			break;
		}
		e->fetch_head++;
		changed = 1;
		b->reading = KVR_READ_RUNNING;
		io->prefetch = !err;
		e->fetch_running += !err;
		if (err) {
			kvr_io_put(e, io);
			kvr_tier_fetched(&e->tier, block, 0, 1);
		}
	}
	return changed;
}

/* What became of the block at the head of the write queue. */
enum head { HEAD_WAITS, HEAD_GONE, HEAD_GIVEN_UP };

/* A block for which the store has had no slot since it was queued: all are pinned. */
static enum head stalled(struct kvr_engine *e, uint32_t block)
{
	if (kvr_now() - e->write_since[e->write_head & e->queue_mask] < STALL_NS)
		return HEAD_WAITS;
	kvr_tier_unqueue(&e->tier, block, -ENOSPC);
	return HEAD_GIVEN_UP;
}

static enum head start_write(struct kvr_engine *e, uint32_t block)
{
	struct kvr_engine_io *io;
	int err;

	if (e->tier.blocks[block].dead) {
		kvr_tier_unqueue(&e->tier, block, -ECANCELED);
		return HEAD_GONE;
	}
	if (kvr_tier_place(&e->tier, block))
		return stalled(e, block);
	io = kvr_io_get(e, block, 1);
	err = kvr_store_write(e->store, &io->op);
	if (!err)
		return HEAD_GONE;
	kvr_io_put(e, io);
	kvr_tier_unplace(&e->tier, block);
	if (err == -EAGAIN)
		return HEAD_WAITS;
	kvr_tier_unqueue(&e->tier, block, err);
	return HEAD_GONE;
}

/*
 * After one that was given up the operations look first: the end of its store may unpin the very
 * slots that the next one needs.
 */
static int pump_writes(struct kvr_engine *e)
{
	enum head head = HEAD_GONE;
	int changed = 0;

	while (head == HEAD_GONE && e->write_head != e->write_tail && e->free_io) {
		head = start_write(e, e->write_queue[e->write_head & e->queue_mask]);
		if (head != HEAD_WAITS) {
			e->write_head++;
			changed = 1;
		}
	}
	return changed;
}

static int reap(struct kvr_engine *e)
{
	struct kvr_store_op *ended[64];
	int n, total = 0;

	while ((n = kvr_store_poll(e->store, ended, 64)) > 0) {
		for (int i = 0; i < n; i++) {
			struct kvr_engine_io *io = ended[i]->user;
			uint32_t block = io->block, write = io->write;
			int result = ended[i]->result;

			kvr_io_put(e, io);
			if (io->part) {
				kvr_layers_part(e, io, result);
			} else if (write) {
				kvr_tier_written(&e->tier, block, result);
			} else {
				e->stats.blocks_bad += result != 0;
				kvr_tier_fetched(&e->tier, block, !result, result != -EBADMSG);
			}
		}
		total += n;
	}
	return total;
}

/* One round under the lock. Returns 1 when something changed. */
static int turn(struct kvr_engine *e)
{
	int changed = 0;

	/* First: ranks that leave since the epoch is over fail no operation. */
	if (!e->group_error) {
		e->group_error = kvr_group_watch_ranks(e->group);
		if (e->group_error) {
			kvr_ops_lose(e, e->group_error);
			changed = 1;
		}
	}
	if (e->store) {
		changed |= reap(e) > 0;
		changed |= pump_reads(e);
		changed |= kvr_layers_pump(e);
		changed |= pump_fetches(e);
		changed |= kvr_ops_progress(e);
		changed |= pump_writes(e);
		changed |= reap(e) > 0; /* also hands over what was just submitted */
		kvr_store_info(e->store, &e->info);
	}
	changed |= kvr_ops_progress(e);
	kvr_store_relaxed(&e->group->proc->progress_ns, kvr_now());
	return changed;
}

static void ring(struct kvr_engine *e, int ranks, int caller)
{
	if (ranks)
		for (uint32_t r = 0; r < e->group->layout.ranks; r++)
			kvr_group_ring_rank(e->group, r);
	if (caller)
		kvr_group_ring_leader(e->group);
}

static void sleep_until_work(struct kvr_engine *e, int busy)
{
	struct pollfd fds[1 + KVR_MAX_DEVICES] = { { e->event_fd, POLLIN, 0 } };
	int store_fds[KVR_MAX_DEVICES];
	nfds_t n = 1;
	uint64_t count;

	if (e->store)
		for (uint32_t i = 0, m = kvr_store_fds(e->store, store_fds, KVR_MAX_DEVICES); i < m;
		     i++)
			fds[n++] = (struct pollfd){ store_fds[i], POLLIN, 0 };
	/* The time-out is the back-stop for liveness and for writes that found no slot. */
	if (poll(fds, n, busy ? 20 : 100) > 0 && fds[0].revents) {
		ssize_t got = read(e->event_fd, &count, sizeof count);

		(void)got;
	}
}

static int open_store(struct kvr_engine *e)
{
	struct kvr_store_opts o = e->opts.store;

	o.pool = e->pool.mem + KVR_POOL_DATA;
	o.pool_bytes = e->pool.bytes - KVR_POOL_DATA;
	o.cancel = &e->cancel;
	return kvr_store_open(&o, &e->store);
}

static int publish_pool(void *pool)
{
	return kvr_pool_publish(pool);
}

static int set_up(struct kvr_engine *e)
{
	uint64_t queue = 16;
	int err = e->opts.store.npaths ? open_store(e) : 0;

	if (!err)
		err = kvr_tier_init(&e->tier, (uint32_t)e->pool.slots, e->store);
	if (err)
		return err;
	kvr_tier_recover(&e->tier);
	if (e->store) {
		kvr_store_info(e->store, &e->info);
		if (e->info.slot_bytes != e->geo.slot_bytes)
			return KVR_FAIL(-EPROTO,
					"the store's slots are %llu bytes, the pool's %llu: its "
					"device wants another alignment",
					(unsigned long long)e->info.slot_bytes,
					(unsigned long long)e->geo.slot_bytes);
		kvr_pool_set_generation(&e->pool, e->info.cache_generation);
	}
	while (queue < e->pool.slots)
		queue *= 2;
	/* A queued block holds a pool slot, so the queues never overflow. */
	e->queue_mask = (uint32_t)queue - 1;
	e->write_queue = calloc(queue, sizeof *e->write_queue);
	e->write_since = calloc(queue, sizeof *e->write_since);
	e->read_queue = calloc(queue, sizeof *e->read_queue);
	e->fetch_queue = calloc(queue, sizeof *e->fetch_queue);
	if (!e->write_queue || !e->write_since || !e->read_queue || !e->fetch_queue)
		return KVR_FAIL(-ENOMEM, "engine: no memory for queues of %llu blocks",
				(unsigned long long)queue);
	/* Recovery took its time: another leader may have taken over meanwhile. */
	return kvr_group_with_names(e->group, publish_pool, &e->pool);
}

static int work_left(struct kvr_engine *e)
{
	return e->io_running || e->write_head != e->write_tail ||
	       (e->read_head != e->read_tail && !e->group_error);
}

/* The store belongs to this thread alone: the rings' single issuer must open, drive and drain it.
 */
static void *run(void *arg)
{
	struct kvr_engine *e = arg;
	uint64_t deadline = UINT64_MAX;
	int err = set_up(e);

	pthread_mutex_lock(&e->lock);
	e->open_result = err;
	strncpy(e->open_text, kvr_explain(), sizeof e->open_text - 1);
	e->started = 1;
	pthread_mutex_unlock(&e->lock);
	kvr_group_ring_leader(e->group);
	while (!err) {
		int changed, caller, ranks, busy;

		pthread_mutex_lock(&e->lock);
		changed = turn(e);
		busy = e->active_count || work_left(e);
		caller = e->waiting;
		ranks = e->changed;
		e->changed = 0;
		if (e->stopping && deadline == UINT64_MAX)
			deadline = kvr_now() + DRAIN_NS;
		err = e->stopping && (!work_left(e) || kvr_now() > deadline);
		pthread_mutex_unlock(&e->lock);
		ring(e, ranks, caller && changed);
		if (e->reset_ready) { /* set by this thread alone */
			kvr_reset_run(e);
			ring(e, 1, 1);
			continue;
		}
		if (!changed && !err)
			sleep_until_work(e, busy);
	}
	/* A device that never gave its buffers back keeps them: freeing them would be worse. */
	if (e->store && kvr_store_close(e->store, kvr_now() + DRAIN_NS) > 0)
		e->leaked = 1;
	return NULL;
}

static int start_thread(struct kvr_engine *e)
{
	sigset_t all, old;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(&e->thread, NULL, run, e);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (err)
		return KVR_FAIL(-err, "engine: no thread: %s", kvr_strerror(err));
	return 0;
}

static uint64_t ranks_of(const struct kvr_shape *s, int write)
{
	uint64_t set = 0;

	for (uint32_t i = 0; i < s->shards; i++)
		set |= write ? 1ull << s->shard[i].writer : s->shard[i].readers;
	return set;
}

static int allocate(struct kvr_engine *e)
{
	const uint32_t ops = e->group->layout.ops, max = e->opts.max_blocks;

	e->ops = calloc(ops, sizeof *e->ops);
	e->pins = calloc(ops, sizeof *e->pins);
	e->op_ids = calloc((size_t)ops * max, sizeof *e->op_ids); /* touched as far as used */
	e->pin_ids = calloc((size_t)ops * max, sizeof *e->pin_ids);
	e->free_ops = calloc(ops, sizeof *e->free_ops);
	e->done = calloc((size_t)ops * KVR_OP_RECORDS, sizeof *e->done);
	e->op_own = calloc((size_t)ops * max, sizeof *e->op_own);
	e->io = calloc(KVR_ENGINE_IO, sizeof *e->io);
	if (!e->ops || !e->pins || !e->op_ids || !e->pin_ids || !e->free_ops || !e->done ||
	    !e->op_own || !e->io)
		return KVR_FAIL(-ENOMEM, "engine: no memory for %u operations of %u blocks", ops,
				max);
	for (uint32_t i = 0; i < ops; i++) {
		e->ops[i].ids = e->op_ids + (size_t)i * max;
		e->ops[i].own = e->op_own + (size_t)i * max;
		e->pins[i].ids = e->pin_ids + (size_t)i * max;
		e->free_ops[e->free_count++] = i;
	}
	for (uint32_t i = 0; i < KVR_ENGINE_IO; i++) {
		e->io[i].next = e->free_io;
		e->free_io = &e->io[i];
	}
	e->active = e->held = e->reset = KVR_NO_OP;
	e->done_mask = ops * KVR_OP_RECORDS - 1;
	return 0;
}

static void destroy(struct kvr_engine *e)
{
	kvr_tier_exit(&e->tier);
	if (e->leaked)
		kvr_pool_unlink(&e->pool);
	else
		kvr_pool_close(&e->pool);
	pthread_mutex_destroy(&e->lock);
	free(e->ops);
	free(e->pins);
	free(e->op_ids);
	free(e->pin_ids);
	free(e->free_ops);
	free(e->done);
	free(e->op_own);
	if (!e->leaked)
		free(e->io);
	free(e->write_queue);
	free(e->write_since);
	free(e->read_queue);
	free(e->fetch_queue);
	free(e);
}

static int opened(void *arg)
{
	struct kvr_engine *e = arg;
	int started;

	pthread_mutex_lock(&e->lock);
	started = e->started;
	pthread_mutex_unlock(&e->lock);
	return started;
}

/*
 * Formatting and recovery take as long as the device needs; they report progress meanwhile. A
 * signal cancels them: the thread stops at its next step, and nothing is left. Unless it was done
 * already: then ranks may have joined, and the opening counts.
 */
static int wait_open(struct kvr_engine *e)
{
	int signalled = 0, err;

	do {
		err = kvr_group_wait(e->group, opened, e, UINT64_MAX, "the store to open");
		signalled |= err == -EINTR;
		kvr_store_relaxed32(&e->cancel, (uint32_t)signalled);
	} while (err == -EINTR);
	if (err > 0 && !e->open_result)
		return 0;
	pthread_mutex_lock(&e->lock);
	e->stopping = 1;
	pthread_mutex_unlock(&e->lock);
	kvr_engine_wake(e);
	pthread_join(e->thread, NULL);
	if (e->open_result == -EINTR)
		return KVR_FAIL(-EINTR, "a signal ended the wait for the store to open");
	if (e->open_result)
		return KVR_FAIL(e->open_result, "%s", e->open_text);
	return err;
}

int kvr_engine_start(struct kvr_group *group, const struct kvr_engine_opts *opts,
		     struct kvr_engine **ret_engine)
{
	struct kvr_engine *e = calloc(1, sizeof *e);
	int err;

	if (!e)
		return KVR_FAIL(-ENOMEM, "engine: no memory");
	pthread_mutex_init(&e->lock, NULL);
	e->group = group;
	e->opts = *opts;
	e->geo = *opts->pool.geo;
	e->event_fd = opts->event_fd;
	e->part_bytes = KVR_PART_BYTES;
	e->writers = ranks_of(opts->store.shape, 1);
	e->readers = ranks_of(opts->store.shape, 0);
	e->all = ~0ull >> (64 - group->layout.ranks);
	err = allocate(e);
	if (!err)
		err = kvr_pool_create(&opts->pool, &e->pool);
	if (!err)
		err = start_thread(e);
	if (!err)
		err = wait_open(e);
	if (err) {
		destroy(e);
		return err;
	}
	*ret_engine = e;
	return 0;
}

void kvr_engine_stop(struct kvr_engine *e)
{
	if (!e)
		return;
	pthread_mutex_lock(&e->lock);
	e->stopping = 1;
	pthread_mutex_unlock(&e->lock);
	kvr_engine_wake(e);
	pthread_join(e->thread, NULL);
	destroy(e);
}

struct kvr_pool *kvr_engine_pool(struct kvr_engine *e)
{
	return &e->pool;
}

const char *kvr_engine_degraded(struct kvr_engine *e, uint32_t i)
{
	return e->store ? kvr_store_degraded(e->store, i) : NULL;
}
