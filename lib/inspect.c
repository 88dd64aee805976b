/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a segment to look into it; its group, processes, rings and messages. */
#include "inspect_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "clock.h"
#include "err.h"
#include "kvring/ring.h"
#include "life.h"
#include "peer.h"
#include "process.h"
#include "recorder.h"
#include "util.h"

static int open_file(const char *path, uint64_t *ret_bytes)
{
	/* O_NONBLOCK: a FIFO must not hold us up. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;
	int err = 0;

	if (fd < 0)
		return KVR_FAIL(-errno, "%s: %s", path, kvr_strerror(errno));
	if (fstat(fd, &st))
		err = KVR_FAIL(-errno, "%s: %s", path, kvr_strerror(errno));
	else if (!S_ISREG(st.st_mode))
		err = KVR_FAIL(-EPROTO, "%s is not a kvring segment: it is no regular file", path);
	else if (st.st_size < (off_t)sizeof(struct kvr_seg_header))
		err = KVR_FAIL(
			-EPROTO,
			"%s is not a kvring segment: it has %lld bytes, a header alone has %zu",
			path, (long long)st.st_size, sizeof(struct kvr_seg_header));
	if (err) {
		close(fd);
		return err;
	}
	*ret_bytes = (uint64_t)st.st_size;
	return fd;
}

static int check_header(struct kvr_inspect *in, uint64_t bytes, const char *path)
{
	const struct kvr_seg_header *h = &in->header;
	char why[512];
	int err;

	if (h->magic != KVR_SEG_MAGIC)
		return KVR_FAIL(-EPROTO,
				"%s is not a kvring segment: it starts with %#llx instead of %#llx",
				path, (unsigned long long)h->magic,
				(unsigned long long)KVR_SEG_MAGIC);
	err = kvr_header_check(h, bytes, "its header", &in->layout);
	if (!err)
		return 0;
	snprintf(why, sizeof why, "%s", kvr_explain());
	return KVR_FAIL(err, "%s is not a kvring segment%s: %s", path,
			h->version == KVR_SEG_VERSION ? "" : " that this version can read", why);
}

int kvr_inspect_open(const char *path, struct kvr_inspect **ret_inspect)
{
	struct kvr_inspect *in;
	struct statfs fs;
	uint8_t boot[16];
	uint64_t bytes = 0;
	int fd = open_file(path, &bytes), err;

	if (fd < 0)
		return fd;
	in = calloc(1, sizeof *in);
	if (!in) {
		close(fd);
		return KVR_FAIL(-ENOMEM, "kvr_inspect_open: no memory for %zu bytes", sizeof *in);
	}
	in->fd = fd;
	err = kvr_shm_read(fd, &in->header, sizeof in->header, 0);
	if (!err && in->header.magic == KVR_SEG_MAGIC && in->header.total_bytes < bytes) {
		err = kvr_inspect_saved_read(in, in->header.total_bytes, bytes, path);
		bytes = in->saved ? in->header.total_bytes : bytes;
	}
	if (!err)
		err = check_header(in, bytes, path);
	if (err) {
		kvr_inspect_close(in);
		return err;
	}
	in->same_boot = in->saved ? (int)in->saved->same_boot
				  : !kvr_process_boot_id(boot) &&
					    !memcmp(boot, in->header.boot_id, sizeof boot);
	in->on_disk = !in->same_boot || fstatfs(fd, &fs) || fs.f_type != TMPFS_MAGIC;
	*ret_inspect = in;
	return 0;
}

int kvr_inspect_open_name(const char *dir, const char *name, struct kvr_inspect **ret_inspect)
{
	char path[KVR_SHM_PATH];
	int err = kvr_shm_path(path, sizeof path, dir, name, KVR_SHM_SEGMENT, 0);

	return err ? err : kvr_inspect_open(path, ret_inspect);
}

void kvr_inspect_close(struct kvr_inspect *inspect)
{
	if (!inspect)
		return;
	close(inspect->fd);
	free(inspect->saved);
	free(inspect->scratch);
	free(inspect);
}

int kvr_inspect_scratch(struct kvr_inspect *in, size_t bytes)
{
	if (bytes > in->scratch_bytes) {
		uint8_t *p = realloc(in->scratch, bytes);

		if (!p)
			return KVR_FAIL(-ENOMEM, "kvr_inspect: no memory for %zu bytes", bytes);
		in->scratch = p;
		in->scratch_bytes = bytes;
	}
	return 0;
}

uint64_t kvr_inspect_now(const struct kvr_inspect *in)
{
	return in->saved ? in->saved->now_ns : kvr_now();
}

static int agree(const struct kvr_proc *a, const struct kvr_proc *b)
{
	return a->state == b->state && a->pid == b->pid && a->in_call == b->in_call &&
	       a->call_arg == b->call_arg && a->call_ns == b->call_ns;
}

int kvr_inspect_page(struct kvr_inspect *in, uint32_t rank, void *ret_page)
{
	const struct kvr_layout *l = &in->layout;
	uint64_t off = rank == KVR_LEADER ? l->leader : kvr_layout_rank(l, rank);
	struct kvr_proc again;
	int err;

	for (int i = 0; i < KVR_INSPECT_TRIES; i++) {
		err = read_at(in, ret_page, KVR_PAGE, off);
		if (!err)
			err = read_at(in, &again, sizeof again, off);
		if (err || agree(ret_page, &again))
			return err;
	}
	return 0;
}

int kvr_inspect_check_rank(const struct kvr_inspect *in, const char *call, uint32_t rank)
{
	if (rank < in->layout.ranks)
		return 0;
	return KVR_FAIL(-EINVAL, "%s: rank %u; the group has %u", call, rank, in->layout.ranks);
}

int kvr_inspect_check_proc(const struct kvr_inspect *in, const char *call, uint32_t rank)
{
	return rank == KVR_LEADER ? 0 : kvr_inspect_check_rank(in, call, rank);
}

static int check_ring(const struct kvr_inspect *in, const char *call, uint32_t channel,
		      uint32_t rank)
{
	if (channel >= KVR_CHANNELS)
		return KVR_FAIL(-EINVAL, "%s: channel %u; there are %d", call, channel,
				KVR_CHANNELS);
	return kvr_inspect_check_rank(in, call, rank);
}

/* Printable, but for the ends of lines. */
static void setup_copy(char to[KVR_SETUP_MAX], const char from[KVR_SETUP_MAX])
{
	size_t n = strnlen(from, KVR_SETUP_MAX - 1);

	for (size_t i = 0; i < n; i++)
		to[i] = from[i] == '\n' || (from[i] >= ' ' && from[i] <= '~') ? from[i] : '?';
	to[n] = 0;
}

/* What an old leader does after its epoch was taken from it does not count. */
static void fence(struct kvr_inspect_group *g, const struct kvr_seg_takeover *t)
{
	g->retired_how = t->cause;
	g->retired_pid = t->pid;
	g->retired_ns = t->ns;
	g->tick_done = kvr_min(g->tick_done, t->tick_done);
	for (uint32_t c = 0; c < KVR_CHANNELS; c++)
		g->watermark[c] = kvr_min(g->watermark[c], t->watermark[c]);
}

int kvr_inspect_group(struct kvr_inspect *inspect, struct kvr_inspect_group *ret_group)
{
	const struct kvr_seg_header *h = &inspect->header;
	struct kvr_leader_page page;
	struct kvr_seg_takeover takeover;
	struct kvr_inspect_group g = { 0 };
	int err = kvr_inspect_page(inspect, KVR_LEADER, &page);

	if (!err)
		err = read_at(inspect, &takeover, sizeof takeover, inspect->layout.takeover);
	if (err)
		return err;
	kvr_text_copy(g.name, sizeof g.name, h->name, sizeof h->name);
	kvr_text_copy(g.library, sizeof g.library, h->library, sizeof h->library);
	memcpy(g.uuid, h->uuid, sizeof g.uuid);
	g.epoch = h->epoch;
	g.total_bytes = h->total_bytes;
	g.created_ns = h->created_ns;
	g.version = h->version;
	g.ranks = h->ranks;
	g.ring_bytes = h->ring_bytes;
	g.ops = h->ops;
	g.events = h->events;
	g.bulk_bytes = h->bulk_bytes;
	g.creator_pid = h->pid;
	g.model = h->model;
	kvr_text_copy(g.model.name, sizeof g.model.name, h->model.name, sizeof h->model.name);
	kvr_text_copy(g.model.revision, sizeof g.model.revision, h->model.revision,
		      sizeof h->model.revision);
	kvr_text_copy(g.model.dtype, sizeof g.model.dtype, h->model.dtype, sizeof h->model.dtype);
	setup_copy(g.setup, h->setup);
	g.retired_by = takeover.new_epoch;
	g.tick_done = page.tick_done;
	memcpy(g.watermark, page.watermark, sizeof g.watermark);
	if (g.retired_by)
		fence(&g, &takeover);
	g.state = page.proc.state;
	g.cause = page.proc.cause;
	g.blamed = page.proc.blamed;
	g.same_boot = (uint32_t)inspect->same_boot;
	g.now_ns = kvr_inspect_now(inspect);
	g.saved_unix_ns = inspect->saved ? inspect->saved->unix_ns : 0;
	g.quarantined_ops = page.quarantined_ops;
	g.quarantined_slots = page.quarantined_slots;
	g.bulk_used = page.bulk_used;
	g.ending = page.ending;
	*ret_group = g;
	return 0;
}

static int32_t alive(const struct kvr_inspect *in, const struct kvr_proc *p)
{
	switch (kvr_life_of(p->life)) {
	case KVR_LIFE_NONE:
		return 0;
	case KVR_LIFE_DEAD:
		return -1;
	case KVR_LIFE_ALIVE:
		break;
	}
	/* Nobody updates a copy on disk: ask for the process itself. */
	if (in->on_disk && (!in->same_boot || kvr_process_start_time(p->pid) != p->start_time))
		return -1;
	return 1;
}

static void liveness(const struct kvr_inspect *in, uint32_t rank, const struct kvr_proc *page,
		     struct kvr_inspect_proc *p)
{
	struct kvr_peer peer;

	kvr_peer_read(page, rank, &peer);
	memcpy(p->phase, peer.phase, sizeof p->phase);
	if (in->saved) { /* what became of them since then is not shown */
		const struct kvr_saved_proc *s =
			&in->saved->proc[rank == KVR_LEADER ? KVR_MAX_RANKS : rank];

		p->alive = s->alive;
		p->gone = s->gone;
		p->peer = s->peer;
		return;
	}
	p->alive = alive(in, page);
	p->gone = peer.gone;
	p->peer = p->alive < 0 ? (uint32_t)KVR_PEER_DEAD : peer.state;
}

int kvr_inspect_proc(struct kvr_inspect *inspect, uint32_t rank, struct kvr_inspect_proc *ret_proc)
{
	union {
		struct kvr_leader_page leader;
		struct kvr_rank_page rank;
		struct kvr_proc proc;
	} page;
	struct kvr_inspect_proc p = { .rank = rank };
	int err = kvr_inspect_check_proc(inspect, "kvr_inspect_proc", rank);

	if (!err)
		err = kvr_inspect_page(inspect, rank, &page);
	if (err)
		return err;
	p.pid = page.proc.pid;
	p.state = page.proc.state;
	liveness(inspect, rank, &page.proc, &p);
	p.in_call = page.proc.in_call;
	p.call_channel = page.proc.call_arg;
	p.call_ns = page.proc.call_ns;
	p.progress_ns = page.proc.progress_ns;
	p.phase_until = page.proc.phase_until;
	p.tick_seen = page.proc.tick_seen;
	p.lost_wakes = page.proc.lost_wakes;
	p.expired = page.proc.expired;
	p.mismatches = page.proc.mismatches;
	_Static_assert(sizeof p.calls == sizeof page.rank.calls, "counts of calls");
	if (rank == KVR_LEADER) {
		memcpy(p.calls, page.leader.calls, sizeof p.calls);
		p.late = page.leader.late;
		p.duplicate = page.leader.duplicate;
		p.foreign = page.leader.foreign;
	} else {
		memcpy(p.calls, page.rank.calls, sizeof p.calls);
		p.late = page.rank.late;
		p.duplicate = page.rank.duplicate;
		p.foreign = page.rank.foreign;
		memcpy(p.taken, page.rank.taken, sizeof p.taken);
	}
	*ret_proc = p;
	return 0;
}

/* What one ring and its two cursors say; `cells` of the messages lie in scratch. */
struct ring_copy {
	uint64_t published_cells, published; /* before the cells were copied */
	uint64_t later_cells;		     /* and after */
	uint64_t reader_cells, taken;
	uint64_t watermark;
};

/* Words alone: the rank's first, so that it is not seen ahead of the leader. */
static int read_cursors(struct kvr_inspect *in, uint32_t channel, uint32_t rank,
			struct ring_copy *ret)
{
	const struct kvr_layout *l = &in->layout;
	uint64_t page = kvr_layout_rank(l, rank), ctl;
	int err = read_at(in, &ret->reader_cells, sizeof(uint64_t),
			  page + offsetof(struct kvr_rank_page, cursor[0]) +
				  channel * sizeof(struct kvr_ring_cursor));

	if (!err)
		err = read_at(in, &ret->taken, sizeof(uint64_t),
			      page + offsetof(struct kvr_rank_page, taken[0]) +
				      channel * sizeof(uint64_t));
	if (!err)
		err = read_at(in, &ctl, sizeof ctl, kvr_layout_ring(l, channel, rank));
	if (err)
		return err;
	ret->published_cells = kvr_near(ret->reader_cells, (uint32_t)(ctl >> 32));
	ret->published = kvr_near(ret->taken, (uint32_t)ctl);
	return 0;
}

/* Up to which message of a channel ranks may act. */
static int read_watermark(struct kvr_inspect *in, uint32_t channel, uint64_t *ret)
{
	const struct kvr_layout *l = &in->layout;
	uint64_t at = channel * sizeof(uint64_t), new_epoch, fence;
	int err = read_at(in, ret, sizeof *ret,
			  l->leader + offsetof(struct kvr_leader_page, watermark[0]) + at);

	if (!err)
		err = read_at(in, &new_epoch, sizeof new_epoch, l->takeover);
	if (err || !new_epoch)
		return err;
	err = read_at(in, &fence, sizeof fence,
		      l->takeover + offsetof(struct kvr_seg_takeover, watermark[0]) + at);
	if (!err)
		*ret = kvr_min(*ret, fence);
	return err;
}

static int read_ring(struct kvr_inspect *in, uint32_t channel, uint32_t rank, struct ring_copy *ret)
{
	const struct kvr_layout *l = &in->layout;
	uint64_t off = kvr_layout_ring(l, channel, rank), ctl = 0;
	int err = kvr_inspect_scratch(in, l->ring_bytes);

	if (!err)
		err = read_cursors(in, channel, rank, ret);
	if (!err)
		err = read_at(in, in->scratch, l->ring_bytes, off + KVR_RING_CTL);
	if (!err && in->saved)
		ctl = in->saved->later[channel][rank];
	else if (!err)
		err = read_at(in, &ctl, sizeof ctl, off);
	if (!err)
		ret->later_cells = kvr_near(ret->published_cells, (uint32_t)(ctl >> 32));
	return err ? err : read_watermark(in, channel, &ret->watermark);
}

struct walk {
	struct kvr_inspect *in;
	const struct ring_copy *ring;
	uint64_t capacity;
	uint32_t channel, rank;
	uint32_t count; /* of messages met */
	uint32_t skip;	/* of these, that are too old to return */
	int err;
	struct kvr_inspect_message *ret;
};

/*
 * Whether the writer may have been inside these cells while they were copied. It writes one message
 * at a time beyond what it published, a quarter of the ring at most with the padding before it; and
 * since its count is a relaxed store, it may be a message further than the count says.
 */
static int overwritten(const struct walk *w, uint64_t pos)
{
	return w->ring->later_cells + w->capacity / 2 - pos > w->capacity;
}

static void walk_count(void *arg, const struct kvr_ring_msg *msg, uint64_t pos)
{
	struct walk *w = arg;

	if (msg->len >= sizeof(struct kvr_msg_head) && !overwritten(w, pos))
		w->count++;
}

/* The payload is in the bulk area; up to here it is what the ring says of it. */
static int read_bulk(struct kvr_inspect *in, uint32_t len, struct kvr_inspect_message *m)
{
	const struct kvr_layout *l = &in->layout;
	uint64_t offset = 0;

	m->bulk = -1;
	if (m->len != sizeof offset)
		return 0;
	memcpy(&offset, m->payload, sizeof offset);
	if (offset > l->bulk_bytes || len > l->bulk_bytes - offset)
		return 0;
	memset(m->payload, 0, sizeof offset);
	m->bulk = 1;
	m->len = len;
	return read_at(in, m->payload, kvr_min(len, sizeof m->payload), l->bulk + offset);
}

/*
 * Who gives a message back has counted it before. So a payload in the bulk area that may be another
 * one's, because its rank was faster than we, is of a message that counts as taken now.
 */
static int read_taken(struct kvr_inspect *in, uint32_t channel, uint32_t rank,
		      struct kvr_inspect_message *m, int n)
{
	uint64_t taken;
	int err = read_at(in, &taken, sizeof taken,
			  kvr_layout_rank(&in->layout, rank) +
				  offsetof(struct kvr_rank_page, taken[0]) +
				  channel * sizeof(uint64_t));

	for (int i = 0; !err && i < n; i++)
		if (m[i].bulk && m[i].read < 1 && (int32_t)((uint32_t)taken - m[i].seq) > 0)
			m[i].read = 1;
	return err;
}

static void walk_fill(void *arg, const struct kvr_ring_msg *msg, uint64_t pos)
{
	struct kvr_inspect_message m = { 0 };
	struct walk *w = arg;
	struct kvr_msg_head head;

	if (msg->len < sizeof head || overwritten(w, pos))
		return;
	if (w->skip) {
		w->skip--;
		return;
	}
	memcpy(&head, msg->data, sizeof head);
	m.channel = w->channel;
	m.rank = w->rank;
	m.tag = msg->tag;
	m.seq = msg->seq;
	m.len = msg->len - (uint32_t)sizeof head;
	m.number = head.number;
	m.request = (struct kvr_request){ .id = head.request,
					  .space = head.space,
					  .attempt = head.attempt };
	memcpy(m.payload, (const uint8_t *)msg->data + sizeof head,
	       kvr_min(m.len, sizeof m.payload));
	if (head.bulk && !w->err)
		w->err = read_bulk(w->in, head.bulk, &m);
	/* The number in the ring has 32 bits, what was taken has 64. */
	if ((int32_t)((uint32_t)w->ring->taken - m.seq) > 0)
		m.read = 1;
	else if (m.number > w->ring->watermark)
		m.read = -1;
	*w->ret++ = m;
}

int kvr_inspect_messages(struct kvr_inspect *inspect, uint32_t channel, uint32_t rank,
			 struct kvr_inspect_message *ret_messages, uint32_t max)
{
	const struct kvr_layout *l = &inspect->layout;
	struct ring_copy ring;
	struct walk w = { .in = inspect,
			  .ring = &ring,
			  .capacity = l->ring_bytes / KVR_RING_CELL,
			  .channel = channel,
			  .rank = rank,
			  .ret = ret_messages };
	int err = check_ring(inspect, "kvr_inspect_messages", channel, rank);

	if (!err)
		err = read_ring(inspect, channel, rank, &ring);
	if (err)
		return err;
	kvr_ring_walk(inspect->scratch, l->ring_bytes, ring.published_cells, walk_count, &w);
	w.skip = w.count > max ? w.count - max : 0;
	kvr_ring_walk(inspect->scratch, l->ring_bytes, ring.published_cells, walk_fill, &w);
	err = w.err;
	if (!err)
		err = read_taken(inspect, channel, rank, ret_messages, (int)(w.ret - ret_messages));
	return err ? err : (int)(w.ret - ret_messages);
}

/* Number of the message that is `seq` in its ring. */
struct find {
	uint32_t seq;
	uint64_t number;
};

static void walk_find(void *arg, const struct kvr_ring_msg *msg, uint64_t pos)
{
	struct find *f = arg;

	(void)pos;
	if (msg->seq == f->seq && msg->len >= sizeof(struct kvr_msg_head))
		memcpy(&f->number, msg->data, sizeof f->number);
}

/* When the leader published message `number`, as far as its recorder still knows; else 0. */
static int published_ns(struct kvr_inspect *in, uint32_t channel, uint64_t number, uint64_t *ret_ns)
{
	uint32_t max = in->layout.events;
	int err = kvr_inspect_recorder(in, KVR_LEADER);
	struct kvr_event *events;

	if (err)
		return err;
	events = calloc(max, sizeof *events);
	if (!events)
		return KVR_FAIL(-ENOMEM, "kvr_inspect: no memory for %u events", max);
	max = kvr_recorder_last(in->scratch, in->layout.events, (int)channel, events, max);
	for (uint32_t i = 0; i < max; i++)
		if (events[i].kind == KVR_EV_PUBLISH && events[i].number == number)
			*ret_ns = events[i].ns;
	free(events);
	return 0;
}

int kvr_inspect_channel(struct kvr_inspect *inspect, uint32_t channel, uint32_t rank,
			struct kvr_inspect_channel *ret_channel)
{
	struct kvr_inspect_channel c = { .channel = channel, .rank = rank };
	struct ring_copy ring;
	int err = check_ring(inspect, "kvr_inspect_channel", channel, rank);

	if (!err)
		err = read_cursors(inspect, channel, rank, &ring);
	if (!err && ring.published > ring.taken) {
		struct find f = { .seq = (uint32_t)ring.taken };

		err = read_ring(inspect, channel, rank, &ring);
		if (!err)
			kvr_ring_walk(inspect->scratch, inspect->layout.ring_bytes,
				      ring.published_cells, walk_find, &f);
		if (!err && f.number && f.number <= ring.watermark) {
			c.oldest_unread = f.number;
			err = published_ns(inspect, channel, f.number, &c.oldest_unread_ns);
		}
	}
	if (err)
		return err;
	c.published = ring.published;
	c.taken = ring.taken;
	c.writer_cells = ring.published_cells;
	c.reader_cells = ring.reader_cells;
	*ret_channel = c;
	return 0;
}

const char *kvr_inspect_state_name(uint32_t state)
{
	return kvr_proc_state_name(state);
}

const char *kvr_inspect_call_name(uint32_t call)
{
	return kvr_call_name(call);
}

const char *kvr_inspect_retired_name(uint32_t how)
{
	static const char *const names[] = { [KVR_RETIRED_NOT] = "not retired",
					     [KVR_RETIRED_DEAD] = "dead",
					     [KVR_RETIRED_LEFT] = "left",
					     [KVR_RETIRED_KILLED] = "killed",
					     [KVR_RETIRED_FENCED] = "fenced" };

	return how < KVR_ARRAY_LEN(names) ? names[how] : "?";
}
