/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must come of attach, create and remove, said a second time after the headers' text and from
 * the bytes of the file that has the group's name.
 */
#ifndef TESTS_FUZZ_EXPECT_H
#define TESTS_FUZZ_EXPECT_H

#include "segment.h"

#include "kvring/group.h"
#include "process.h"

struct state {
	mode_t mode; /* 0: nothing has the name */
	ino_t inode;
	uint64_t bytes;
	uint8_t *data; /* of a regular file */
	const struct kvr_seg_header *header;
	struct kvr_layout l;
	int good; /* header and size are right */
};

static inline void state_free(struct state *x)
{
	free(x->data);
}

static inline int header_good(struct state *x)
{
	const struct kvr_seg_header *h = x->header;

	return h->magic == KVR_SEG_MAGIC && h->version == KVR_SEG_VERSION &&
	       h->header_bytes == sizeof *h && h->layout_hash == kvr_layout_hash() &&
	       h->checksum == kvr_header_sum(h) && !h->incompat && h->channels == KVR_CHANNELS &&
	       !kvr_layout_init(&x->l, h->page, h->ranks, h->ring_bytes, h->ops, h->events,
				h->bulk_bytes) &&
	       h->total_bytes == x->l.total && x->bytes == x->l.total &&
	       h->config_len <= sizeof h->config && h->epoch && memchr(h->name, 0, sizeof h->name);
}

static inline struct state state_of(const char *path)
{
	struct state x = { 0 };
	struct stat st;
	int fd;

	if (lstat(path, &st))
		return x;
	x.mode = st.st_mode;
	x.inode = st.st_ino;
	if (!S_ISREG(st.st_mode))
		return x;
	x.bytes = (uint64_t)st.st_size;
	x.data = calloc(1, x.bytes + sizeof(struct kvr_seg_header));
	fd = open(path, O_RDONLY | O_CLOEXEC);
	must(x.data && fd >= 0);
	must(syscall(SYS_pread64, fd, x.data, x.bytes, 0) == (long)x.bytes);
	close(fd);
	x.header = (const void *)x.data;
	x.good = x.bytes >= sizeof *x.header && header_good(&x);
	return x;
}

static inline const struct kvr_proc *proc_at(const struct state *x, uint64_t off)
{
	return (const void *)(x->data + off);
}

static inline uint32_t tid_of(uint32_t life)
{
	return life & FUTEX_OWNER_DIED ? 0 : life & FUTEX_TID_MASK;
}

static inline int other_boot(const struct state *x)
{
	uint8_t boot[16];

	return !kvr_process_boot_id(boot) && memcmp(boot, x->header->boot_id, sizeof boot);
}

/* Of our user's and by us, as far as the file itself tells. */
static inline int ours(const struct state *x)
{
	return S_ISREG(x->mode) && (x->mode & 07777) == 0600;
}

/* What a look at the name alone says. */
static inline int file_expected(const struct state *x, int absent)
{
	if (!x->mode)
		return absent;
	if (!ours(x))
		return S_ISREG(x->mode) ? -EPERM : -EPROTO;
	/* Smaller pages than the kernel's cannot be mapped one by one. */
	return x->good && x->l.page >= kvr_shm_page() ? 0 : -EPROTO;
}

static inline int leader_expected(const struct state *x)
{
	const struct kvr_seg_takeover *t = (const void *)(x->data + x->l.takeover);
	const struct kvr_proc *p = proc_at(x, x->l.leader);

	if (t->new_epoch)
		return -ESTALE;
	if (p->life & FUTEX_OWNER_DIED || other_boot(x))
		return -EOWNERDEAD;
	if (p->state == KVR_PROC_FAILED)
		return p->cause < 0 && p->cause > -4096 ? p->cause : -EOWNERDEAD;
	return tid_of(p->life) && p->state == KVR_PROC_ACTIVE ? 0 : -ETIMEDOUT;
}

static inline int attach_expected(const struct state *x, uint32_t rank, uint32_t ranks,
				  const struct kvr_model *model, const char *setup)
{
	const struct kvr_proc *p;
	int err;

	if (rank >= KVR_MAX_RANKS)
		return -EINVAL;
	err = file_expected(x, -ETIMEDOUT);
	if (!err)
		err = leader_expected(x);
	if (err)
		return err;
	if (strcmp(x->header->name, SEG_NAME) || x->header->tag_hash != kvr_tag_hash())
		return -EPROTO;
	if (rank >= x->header->ranks)
		return -EINVAL;
	if (ranks && ranks != x->header->ranks)
		return -EPROTO;
	if (model && kvr_model_check(&x->header->model, model, ""))
		return -EPROTO;
	if (setup && kvr_setup_check(x->header->setup, setup, ""))
		return -EPROTO;
	p = proc_at(x, kvr_layout_rank(&x->l, rank));
	return p->life || p->state != KVR_PROC_ABSENT ? -EBUSY : 0;
}

static inline int leader_lives(const struct state *x)
{
	return tid_of(proc_at(x, x->l.leader)->life) && !other_boot(x);
}

static inline int is_self(const struct kvr_seg_header *h)
{
	struct kvr_process self;

	kvr_process_self(&self);
	return self.space && h->pid == self.pid && h->space == self.space &&
	       h->start_time == self.start_time;
}

/* *ret_certain is cleared where it depends on other processes. */
static inline int create_expected(const struct state *x, uint32_t takeover, int *ret_certain)
{
	int err = takeover > KVR_TAKEOVER_FENCE ? -EINVAL : file_expected(x, 0);

	if (err || !x->mode)
		return err;
	if (leader_lives(x)) {
		if (takeover == KVR_TAKEOVER_REFUSE || is_self(x->header))
			return -EBUSY;
		if (takeover == KVR_TAKEOVER_KILL)
			*ret_certain = 0;
	}
	return x->header->epoch == UINT64_MAX ? -EPROTO : 0;
}

static inline int remove_expected(const struct state *x)
{
	int err = file_expected(x, 0);

	if (err || !x->mode)
		return err;
	return leader_lives(x) ? -EBUSY : 0;
}

/* Nothing but [own, own + len) and the bells may differ. */
static inline void must_be_same(const struct state *a, const struct state *b, uint64_t own,
				uint64_t len)
{
	const struct kvr_layout *l = &a->l;

	must(a->mode == b->mode && a->inode == b->inode && a->bytes == b->bytes);
	if (!a->data)
		return;
	if (!len) {
		must(!memcmp(a->data, b->data, a->bytes));
		return;
	}
	must(!memcmp(a->data, b->data, kvr_min(own, l->bells)));
	if (own > l->leader)
		must(!memcmp(a->data + l->leader, b->data + l->leader, own - l->leader));
	own = kvr_max(own + len, l->leader);
	must(!memcmp(a->data + own, b->data + own, a->bytes - own));
}

#endif
