/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Becoming a member of a group whose file holds what it likes: attach, join, and create over it.
 * The file is a good one of which the input changed numbers, size, mode or kind, before a call or
 * in the middle of one; the pool's file, too.
 *
 * What a call must return is said here a second time, from the file's bytes. A change in the middle
 * leaves that open, and asks only that the call ends, with an errno, and writes nowhere but into
 * what is its own.
 */
#include "fuzz.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

#include "clock.h"
#include "connector_priv.h"
#include "expect.h"
#include "group.h"
#include "hash.h"
#include "kvring/err.h"
#include "kvring/inspect.h"
#include "point.h"

#define MOST (512u << 10) /* bytes of a file */
#define HANG_NS (5 * KVR_SEC)

static struct kvr_layout layout; /* for changes: as the file was last given one */
static char seg[KVR_SHM_PATH], pool[KVR_SHM_PATH], other[KVR_SHM_PATH];

/* --- what happens in the middle of a call ----------------------------------------------- */

static struct seg_later later;
static _Thread_local int calling;

/* Of numbers alone: a mapped file that loses pages is SIGBUS for everybody. */
static void occasion(void)
{
	int fd;

	if (!calling || !seg_later_now(&later))
		return;
	fd = open(seg, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return;
	while (later.s.left)
		seg_change(&later.s, &layout, fd);
	close(fd);
}

ssize_t pread(int fd, void *to, size_t len, off_t off)
{
	occasion();
	if (calling)
		memset(to, 0xa5, len);
	return (ssize_t)syscall(SYS_pread64, fd, to, len, off);
}

static void at_point(enum kvr_point point, uint32_t arg)
{
	(void)point;
	(void)arg;
	occasion();
}

static uint64_t call_start;

/* Returns 1 when the result can be told from the file as it is now. */
static int call_begin(struct script *s)
{
	int certain;

	seg_later_set(&later, s, 10);
	certain = !later.when;
	call_start = kvr_now();
	calling = 1;
	return certain;
}

static int call_end(int rc, uint64_t deadline)
{
	uint64_t until = kvr_max(call_start, deadline) + HANG_NS;

	calling = 0;
	must(rc <= 0 && rc >= -4095 && (!rc || *kvr_explain()));
	must(kvr_now() < until);
	return rc;
}

/*
 * Whom a changed page names must not be killed. The kernel is told to refuse, here and for good;
 * where it would not, nobody is asked to kill.
 */
static int kill_refused;

static void refuse_kill(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_send_signal, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_kill, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { KVR_ARRAY_LEN(code), code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
		return;
	kill_refused = syscall(SYS_pidfd_send_signal, -1, 0, NULL, 0) < 0 && errno == EPERM;
}

/* --- files ---------------------------------------------------------------------------------- */

/* Something else under the name than what belongs there. */
static void file_replace(struct script *s, const char *path)
{
	struct stat st;

	switch (script_u8(s) % 6) {
	case 0:
		must(!chmod(path, 0644) || errno == ENOENT);
		return;
	case 1:
		if (!lstat(path, &st) && S_ISREG(st.st_mode)) {
			must(!rename(path, other) && !symlink(other, path));
			return;
		}
		break;
	case 2:
		unlink(path);
		must(!mkfifo(path, 0600) || errno == EEXIST);
		return;
	case 3:
		unlink(path);
		must(!mkdir(path, 0600) || errno == EEXIST);
		return;
	default:
		break;
	}
	if (unlink(path))
		rmdir(path);
}

static int file_make(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	must(fd >= 0);
	return fd;
}

/* What lets a taker or an attacher go on: a leader that lives, died, left, failed. */
static void leader_set(struct script *s, int fd)
{
	uint8_t how = script_u8(s);
	uint64_t life = layout.leader, state = life + offsetof(struct kvr_proc, state);

	if (how % 8 == 1)
		seg_put(fd, life, 4, seg_get(fd, life, 4) | FUTEX_OWNER_DIED);
	if (how % 8 == 2 || how % 8 == 3) {
		seg_put(fd, life, 4, 0);
		seg_put(fd, state, 4, KVR_PROC_LEFT);
	}
	if (how % 8 == 4)
		seg_put(fd, state, 4, KVR_PROC_FAILED);
	if (how % 8 == 5)
		seg_put(fd, layout.takeover, 8, how);
	if (how >= 0xe0) /* the last epochs there can be */
		seg_put(fd, offsetof(struct kvr_seg_header, epoch), 8, UINT64_MAX - how / 8 % 2);
}

/* A pool that belongs to the segment, as far as its configuration is possible, and nearly so. */
static void pool_make(struct script *s)
{
	uint8_t how = script_u8(s), n;
	struct kvr_pool_header p = { .magic = KVR_POOL_MAGIC, .version = KVR_POOL_VERSION };
	struct state x = state_of(seg);
	struct kvr_conn_config c;
	struct kvr_geometry geo;
	uint64_t at;
	int fd;

	if (x.data && how < 0xf0) {
		memcpy(&c, x.header->config, sizeof c);
		memcpy(p.uuid, x.header->uuid, sizeof p.uuid);
		p.epoch = x.header->epoch;
		p.slots = c.pool_slots;
		p.shape_hash = kvr_shape_hash(&c.shape);
		if (!kvr_geometry_init(&c.shape, 4096, &geo)) {
			p.header_bytes = geo.header_bytes;
			p.slot_bytes = geo.slot_bytes;
			p.block_bytes = geo.block_bytes;
		}
		p.checksum = kvr_hash(&p, sizeof p, 0);
	}
	for (n = how % 4 ? 0 : 1 + how / 4 % 3; n; n--) {
		at = script_u8(s) % 30 * 8u;
		((uint8_t *)&p)[at + script_u8(s) % 8] ^= (uint8_t)(1u << script_u8(s) % 8);
		if (how < 0x80) {
			p.checksum = 0;
			p.checksum = kvr_hash(&p, sizeof p, 0);
		}
	}
	fd = file_make(pool);
	must(write(fd, &p, sizeof p) == sizeof p);
	if (p.slots <= MOST && p.slot_bytes <= MOST && p.slots * p.slot_bytes <= MOST)
		must(!ftruncate(fd, (off_t)(KVR_POOL_DATA + p.slots * p.slot_bytes)));
	if (how % 16 == 5)
		must(!ftruncate(fd, (off_t)(KVR_POOL_DATA + script_u8(s) % 8 * KVR_PAGE)));
	close(fd);
	if (how == 0x7c)
		file_replace(s, pool);
	state_free(&x);
}

/* Half of the changes are where an attacher looks first. */
static void change(struct script *s, int fd)
{
	switch (script_u8(s) % 4) {
	case 0:
		seg_change_at(s, fd, SEG_ONE_OF(s, seg_header_fields));
		break;
	case 1:
		seg_change_at(s, fd, SEG_ONE_OF(s, seg_config_fields));
		break;
	default:
		seg_change(s, &layout, fd);
		break;
	}
}

static void segment_make(struct script *s)
{
	static struct kvr_layout sample_layout;
	static uint8_t *sample;
	uint8_t how = script_u8(s), n;
	int fd;

	if (!sample) {
		seg_dir_open();
		sample = seg_sample(&sample_layout);
		seg_path(seg, KVR_SHM_SEGMENT, 0);
		seg_path(pool, KVR_SHM_POOL, 0);
		snprintf(other, sizeof other, "%s/other", seg_dir);
		kvr_point_hook = at_point;
		refuse_kill();
	}
	layout = sample_layout;
	fd = file_make(seg);
	must(write(fd, sample, layout.total) == (ssize_t)layout.total);
	if (how % 8 == 1)
		seg_resize(s, fd, MOST, &layout);
	leader_set(s, fd);
	for (n = how / 8 % 8; n; n--)
		change(s, fd);
	if (how < 0xf0)
		seg_seal(fd);
	if (how % 16 == 2)
		must(!ftruncate(fd, (off_t)(script_u32(s) % (layout.total + 8192))));
	close(fd);
	if (how % 16 == 3)
		file_replace(s, seg);
}

/* --- a member -------------------------------------------------------------------------------- */

static void count_message(void *arg, const struct kvr_message *m)
{
	uint32_t *n = arg;

	must(m->len < SEG_RING * 4 && m->channel < KVR_CHANNELS);
	++*n;
}

/* Takes what is there, and changes numbers in between. `x` follows those changes. */
static void use_channels(struct script *s, struct kvr_group *g, struct state *x, int fd)
{
	uint32_t steps = script_u8(s) % 12, told, channel;
	struct kvr_channels *c = NULL;
	struct kvr_message m;
	struct seg_place p;
	int rc = kvr_channels_open(g, &c);

	must(!rc || rc == -EBUSY);
	while (!rc && steps--) {
		channel = script_u8(s) % KVR_CHANNELS;
		switch (script_u8(s) % 4) {
		case 0:
			told = 0;
			rc = kvr_channels_drain(c, channel, count_message, &told);
			must(rc < 0 || rc == (int)told);
			rc = 0;
			break;
		case 1:
			kvr_channels_take(c, channel, 0, &m);
			break;
		case 2:
			kvr_channels_expect(c, channel, KVR_TAG_USER + script_u8(s) % 4, 0, &m);
			break;
		default:
			p = seg_change(s, &layout, fd);
			if (x->data && p.off + p.size <= x->bytes)
				must(syscall(SYS_pread64, fd, x->data + p.off, p.size, p.off) ==
				     (long)p.size);
			break;
		}
	}
	kvr_channels_close(c);
}

static void use_group(struct script *s, struct kvr_group *g, struct state *x)
{
	int fd = open(seg, O_RDWR | O_CLOEXEC | O_NOFOLLOW), rc = kvr_group_check(g);
	uint32_t i, r, len, kind;
	struct kvr_peer peer;
	char text[256];

	must(fd >= 0 && rc <= 0 && rc >= -4095);
	must(kvr_group_ranks(g) <= KVR_MAX_RANKS && kvr_group_epoch(g));
	kvr_group_config(g, &len, &kind);
	must(len <= KVR_CONFIG_MAX);
	for (i = 0; i <= kvr_group_ranks(g); i++) {
		r = i == kvr_group_ranks(g) ? KVR_LEADER : i;
		kvr_group_describe(g, r, text, sizeof text);
		must(*text && strnlen(text, sizeof text) < sizeof text);
		must(!kvr_group_peer(g, r, &peer));
		must(peer.rank == r && peer.state < KVR_PEER_STATES);
		must(strnlen(peer.phase, sizeof peer.phase) < sizeof peer.phase);
		must(peer.gone >= -1 && peer.gone <= 1 && peer.failed <= 1);
	}
	must(kvr_group_peer(g, i, &peer) == -EINVAL);
	must(!kvr_group_phase(g, "fuzz", kvr_now()));
	rc = kvr_group_visible(g);
	must(rc <= 0 && rc >= -4095);
	use_channels(s, g, x, fd);
	close(fd);
}

/* An eventfd for the watcher, now and then; -1: none. */
static int any_eventfd(struct script *s)
{
	int fd = script_u8(s) % 8 ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	must(fd == -1 || fd > 2);
	return fd;
}

static uint32_t any_rank(struct script *s)
{
	uint8_t how = script_u8(s);

	return how < 0xf0 ? how % 4 : how < 0xf8 ? 60u + how % 8 : UINT32_MAX;
}

/* NULL, the sample's model, or one that differs by a bit. */
static const struct kvr_model *any_model(struct script *s, struct kvr_model *m)
{
	uint8_t how = script_u8(s);

	if (how < 0x80)
		return NULL;
	*m = seg_model;
	if (how >= 0xe0)
		((uint8_t *)m)[script_u8(s) % 140] ^= (uint8_t)(1u << how % 8);
	return m;
}

/* Mostly what a rank says that knows nothing; else what is right, or nearly so. */
static void any_claims(struct script *s, uint32_t *ret_ranks, const char **ret_setup)
{
	static const char *const setups[] = { NULL,	NULL,  SEG_SETUP,      "pp=1\ntp=2",
					      "tp=2\n", "pp=", "tp=2\nep=3\n", "" };
	uint8_t how = script_u8(s);

	*ret_setup = setups[how % 8];
	*ret_ranks = how < 0x80 ? 0 : how < 0xe0 ? layout.ranks : how;
}

static uint64_t any_deadline(struct script *s)
{
	return script_u8(s) % 16 ? 0 : kvr_now() + KVR_MS;
}

static void try_attach(struct script *s)
{
	uint32_t rank = any_rank(s);
	struct kvr_group_opts o = seg_opts(0, NULL);
	struct kvr_group *g = (void *)&o;
	struct state before = state_of(seg), after;
	struct kvr_model model;
	uint64_t own = 0, len = 0, deadline = any_deadline(s);
	int rc, certain;

	o.model = any_model(s, &model);
	any_claims(s, &o.ranks, &o.setup);
	o.event_fd = any_eventfd(s);
	certain = call_begin(s);
	rc = call_end(kvr_group_attach(SEG_NAME, rank, &o, deadline, &g), deadline);
	certain &= rc != -EINTR; /* libFuzzer has a timer */
	if (certain)
		must(rc == attach_expected(&before, rank, o.ranks, o.model, o.setup));
	if (!rc) {
		must(g->rank == rank && rank < g->layout.ranks);
		own = kvr_layout_rank(&g->layout, rank);
		len = g->layout.rank_stride;
		use_group(s, g, &before);
		kvr_group_close(g);
	} else {
		must(g == (void *)&o);
	}
	after = state_of(seg);
	if (certain)
		must_be_same(&before, &after, own, len);
	state_free(&before);
	state_free(&after);
	if (o.event_fd > 0)
		close(o.event_fd);
}

/* A group that was just made: of the next epoch, whole, and ready for ranks. */
static void use_new(struct kvr_group *g, const struct state *old)
{
	struct kvr_group_opts o = seg_opts(0, NULL);
	struct kvr_inspect_group shown;
	struct kvr_inspect *in;
	struct kvr_group *rank;
	struct state now = state_of(seg);

	must(now.good && (now.mode & 07777) == 0600);
	must(now.header->epoch == (old->mode ? old->header->epoch + 1 : 1));
	must(now.header->epoch == kvr_group_epoch(g));
	if (old->mode)
		must(!memcmp(now.header->uuid, old->header->uuid, sizeof now.header->uuid));
	must(!kvr_inspect_open(seg, &in) && !kvr_inspect_group(in, &shown));
	must(!shown.retired_by && shown.ranks == kvr_group_ranks(g));
	kvr_inspect_close(in);
	must(!kvr_group_attach(SEG_NAME, 0, &o, 0, &rank) && !kvr_group_check(rank));
	kvr_group_close(rank);
	state_free(&now);
}

/* The segment that was there before: marked, fenced, and moved out of the way. */
static void check_retired(const struct state *old, uint32_t takeover)
{
	const struct kvr_proc *p = proc_at(old, old->l.leader);
	const struct kvr_leader_page *leader = (const void *)p;
	const struct kvr_seg_takeover *before = (const void *)(old->data + old->l.takeover);
	uint32_t cause = KVR_RETIRED_DEAD;
	const struct kvr_seg_takeover *t;
	char path[KVR_SHM_PATH];
	struct state now;

	if (leader_lives(old))
		cause = takeover == KVR_TAKEOVER_FENCE ? KVR_RETIRED_FENCED : KVR_RETIRED_KILLED;
	else if (!(p->life & (FUTEX_OWNER_DIED | FUTEX_TID_MASK)))
		cause = KVR_RETIRED_LEFT;
	seg_path(path, KVR_SHM_RETIRED, old->header->epoch);
	now = state_of(path);
	must(now.good && now.inode == old->inode);
	t = (const void *)(now.data + now.l.takeover);
	must(t->new_epoch == old->header->epoch + 1 && t->pid == (uint32_t)getpid());
	must(t->cause == cause);
	/* A fence that stood before stays: ranks may have gone by it. */
	if (before->new_epoch != t->new_epoch) {
		must(!t->closing && t->tick_done == leader->tick_done);
		must(!memcmp(t->watermark, leader->watermark,
			     KVR_CHANNELS * sizeof t->watermark[0]));
	}
	if (p->state == KVR_PROC_FAILED)
		must(t->reason == p->cause && t->blamed == p->blamed);
	must_be_same(old, &now, now.l.takeover, sizeof *t);
	state_free(&now);
}

/* The pool's name goes with the epoch; what is not ours stays. */
static void must_be_gone(const char *path)
{
	struct state x = state_of(path);

	must(!ours(&x));
	state_free(&x);
}

/* Ends a leader: in good order nothing stays, else what is to be looked at. */
static void end_leader(struct script *s, struct kvr_group *g, int certain)
{
	int failed = script_u8(s) % 4 == 0;
	struct state now;

	if (failed)
		must(!kvr_group_fail(g, KVR_MAX_RANKS, -EIO));
	kvr_group_close(g);
	if (!certain)
		return;
	now = state_of(seg);
	must(now.good == failed);
	if (failed)
		must(proc_at(&now, now.l.leader)->state == KVR_PROC_FAILED && !leader_lives(&now));
	state_free(&now);
}

static void try_create(struct script *s)
{
	struct kvr_conn_config c;
	struct kvr_group_opts o = seg_opts(1 + script_u8(s) % 3, &c);
	struct state before = state_of(seg), after;
	struct kvr_group *g = (void *)&o;
	int rc, certain, expected;

	seg_config(&c, o.ranks, 1);
	o.event_fd = any_eventfd(s);
	o.takeover = script_u8(s) % 4;
	if (o.takeover == KVR_TAKEOVER_KILL && !kill_refused)
		o.takeover = KVR_TAKEOVER_FENCE;
	certain = call_begin(s);
	expected = create_expected(&before, o.takeover, &certain);
	rc = call_end(kvr_group_create(SEG_NAME, &o, &g), 0);
	must(rc == expected || !certain);
	after = state_of(seg);
	if (rc) {
		must(g == (void *)&o);
		if (certain)
			must_be_same(&before, &after, 0, 0);
	} else {
		must_be_gone(pool);
		if (certain) {
			use_new(g, &before);
			if (before.mode)
				check_retired(&before, o.takeover);
		}
		end_leader(s, g, certain);
	}
	if (o.event_fd > 0)
		close(o.event_fd);
	state_free(&before);
	state_free(&after);
}

static void try_remove(struct script *s)
{
	struct state before = state_of(seg), after;
	int certain = call_begin(s), rc = call_end(kvr_group_remove(SEG_NAME, seg_dir), 0);

	after = state_of(seg);
	/* Without a segment there may still be retired ones, or a pool. */
	if (certain && (rc != -ENOENT || before.mode))
		must(rc == remove_expected(&before));
	if (!rc)
		must_be_gone(pool);
	if (!rc)
		must(!after.mode);
	else if (certain)
		must_be_same(&before, &after, 0, 0);
	state_free(&before);
	state_free(&after);
}

/* --- a connector ---------------------------------------------------------------------------- */

static void check_spans(struct kvr_connector *c, int write)
{
	uint32_t n = kvr_connector_spans(c, write, NULL, 0), i;
	struct kvr_span *spans = malloc(n * sizeof *spans);
	uint64_t end = 0;

	must(spans && n <= c->config.shape.layer_groups * KVR_MAX_SHARDS);
	must(kvr_connector_spans(c, write, spans, n) == n);
	for (i = 0; i < n; i++) {
		must(spans[i].bytes && spans[i].offset >= end);
		end = spans[i].offset + spans[i].bytes;
		must(end > spans[i].offset && end <= c->geo.block_bytes);
	}
	free(spans);
}

static void use_connector(struct kvr_connector *c)
{
	struct kvr_request r = { .id = 7, .space = 1 };
	struct kvr_completion done[4];
	uint64_t bytes, tick;
	struct kvr_hit hit;
	uint8_t *mem = kvr_connector_pool(c, &bytes);
	int rc;

	must(mem && bytes <= KVR_POOL_DATA + MOST);
	must(bytes == KVR_POOL_DATA + c->geo.slot_bytes * kvr_connector_pool_slots(c));
	memset(mem + KVR_POOL_DATA, 1, bytes - KVR_POOL_DATA);
	must(kvr_connector_max_blocks(c) <= c->max_payload / sizeof(struct kvr_engine_block));
	check_spans(c, 0);
	check_spans(c, 1);
	rc = kvr_connector_check_completed(c, KVR_NOW, 0, 0, done, 4, &tick);
	must(rc <= 4 && rc >= -4095);
	rc = kvr_connector_lookup(c, &r, NULL, 3, 0, &hit);
	must(rc <= 0 && rc >= -4095 && (rc || hit.blocks <= 3));
}

static void try_join(struct script *s)
{
	uint32_t rank = any_rank(s);
	struct kvr_connector_opts o = { .size = sizeof o, .dir = seg_dir };
	struct kvr_connector *c = (void *)&o;
	struct state before = state_of(seg);
	uint64_t deadline = any_deadline(s);
	struct kvr_model model;
	int rc, certain, expected;

	o.model = any_model(s, &model);
	any_claims(s, &o.ranks, &o.setup);
	certain = call_begin(s);
	rc = call_end(kvr_connector_join(SEG_NAME, rank, &o, deadline, &c), deadline);
	if (certain && rc != -EINTR) {
		expected = attach_expected(&before, rank, o.ranks, o.model, o.setup);
		must(!expected || rc == expected);
	}
	if (!rc) {
		use_connector(c);
		kvr_connector_close(c);
	} else {
		must(c == (void *)&o);
	}
	state_free(&before);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct script s = { data, size };
	uint32_t calls = 6;
	int fd, file;

	segment_make(&s);
	fd = seg_next_fd();
	while (s.left && calls--) {
		switch (script_u8(&s) % 8) {
		case 0:
		case 1:
			try_attach(&s);
			break;
		case 2:
		case 3:
			try_create(&s);
			break;
		case 4:
			if (access(pool, F_OK))
				pool_make(&s);
			try_join(&s);
			break;
		case 5:
			try_remove(&s);
			break;
		default:
			file = open(seg, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
			if (file < 0)
				break;
			change(&s, file);
			seg_seal(file);
			close(file);
			break;
		}
	}
	must(seg_next_fd() == fd && !seg_mappings());
	seg_dir_clear();
	return 0;
}
