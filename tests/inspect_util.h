/* SPDX-License-Identifier: Apache-2.0 */
/* Groups to look into, in this process or as a crowd of real ones, and every look there is. */
#ifndef TESTS_INSPECT_UTIL_H
#define TESTS_INSPECT_UTIL_H

#include <sys/stat.h>

#include "alike.h"
#include "kvring/inspect.h"
#include "sides.h"

#define LEADER UINT32_MAX

static inline void path_of(const char *name, enum kvr_shm_kind kind, uint64_t epoch,
			   char path[KVR_SHM_PATH])
{
	must(kvr_shm_path(path, KVR_SHM_PATH, NULL, name, kind, epoch));
}

/* The whole file, for comparing and for breaking. */
static inline uint8_t *load(const char *path, size_t *ret_len)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	uint8_t *bytes;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fstat(fd, &st), 0);
	bytes = malloc((size_t)st.st_size);
	ck_assert_ptr_nonnull(bytes);
	ck_assert_int_eq(pread(fd, bytes, (size_t)st.st_size, 0), st.st_size);
	close(fd);
	*ret_len = (size_t)st.st_size;
	return bytes;
}

static inline void save(const char *path, const void *bytes, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(pwrite(fd, bytes, len, 0), (ssize_t)len);
	close(fd);
}

static inline void count_event(void *arg, uint64_t ns, const char *line)
{
	ck_assert_ptr_nonnull(line);
	(void)ns;
	++*(int *)arg;
}

/* Every call, with results that must be possible. Returns the number of errors. */
static inline int everything(struct kvr_inspect *in)
{
	static struct kvr_inspect_message m[16];
	static struct kvr_inspect_op ops[32];
	static struct kvr_inspect_event e[8];
	static struct kvr_inspect_meet meets[24];
	static struct kvr_inspect_call calls[8];
	struct kvr_inspect_group g;
	struct kvr_inspect_log log;
	struct kvr_inspect_drift drift;
	struct kvr_inspect_channel c;
	struct kvr_inspect_proc p;
	int bad = 0, n, seen;
	uint64_t next;
	char text[256];

	if (kvr_inspect_group(in, &g))
		return 1;
	ck_assert_ptr_nonnull(kvr_inspect_state_name(g.state));
	ck_assert_uint_lt(strlen(g.name), sizeof g.name);
	for (uint32_t r = 0; r <= g.ranks; r++) {
		uint32_t rank = r < g.ranks ? r : LEADER;

		bad += kvr_inspect_proc(in, rank, &p) != 0;
		ck_assert_ptr_nonnull(kvr_inspect_call_name(p.in_call));
		seen = 0;
		n = kvr_inspect_events(in, rank, -1, 8, count_event, &seen);
		ck_assert_int_le(n, 8);
		ck_assert_int_eq(n < 0 ? 0 : n, seen);
		bad += n < 0;
		next = 0;
		n = kvr_inspect_events_next(in, rank, &next, e, 8);
		ck_assert_int_le(n, 8);
		bad += n < 0;
		for (int i = 0; i < n; i++) {
			kvr_inspect_event_text(&e[i], text, sizeof text);
			ck_assert_uint_gt(strlen(text), 0);
		}
		for (uint32_t kind = 0; kind < KVR_ALIKES; kind++) {
			n = kvr_inspect_log(in, rank, kind, &log, calls, 8);
			ck_assert_int_le(n, 8);
			bad += n < 0;
			n = rank == LEADER ? 0 : kvr_inspect_drift(in, rank, kind, &drift);
			ck_assert_int_le(n, 1);
			bad += n < 0;
		}
	}
	n = kvr_inspect_meets(in, meets, 24);
	ck_assert_int_le(n, 24);
	bad += n < 0;
	for (int i = 0; i < n; i++)
		ck_assert_uint_ne(meets[i].ranks, 0);
	for (uint32_t i = 0; i < KVR_CHANNELS * g.ranks; i++) {
		bad += kvr_inspect_channel(in, i / g.ranks, i % g.ranks, &c) != 0;
		n = kvr_inspect_messages(in, i / g.ranks, i % g.ranks, m, 16);
		ck_assert_int_le(n, 16);
		bad += n < 0;
	}
	n = kvr_inspect_ops(in, ops, 32);
	ck_assert_int_le(n, 32);
	for (int i = 0; i < n; i++)
		ck_assert_ptr_nonnull(kvr_inspect_op_name(ops[i].kind));
	return bad + (n < 0);
}

/* A group with a leader and two ranks in this process, some messages taken and some not. */
static inline void make_group(char name[KVR_NAME_MAX], struct side *l, struct side r[2])
{
	struct kvr_group_opts o = { .size = sizeof o,
				    .ranks = 2,
				    .ring_bytes = 1024,
				    .ops = 16,
				    .events = 16,
				    .bulk_bytes = 4096 };
	struct kvr_message m;

	test_name(name, KVR_NAME_MAX, "inspect");
	must(kvr_group_create(name, &o, &l->g));
	must(kvr_channels_open(l->g, &l->c));
	for (uint32_t i = 0; i < 2; i++)
		must(join(name, i, &r[i]));
	for (uint32_t i = 1; i <= 6; i++) {
		must(publish(l, 0, KVR_TAG_USER + i, i, "payload", 7));
		must(take(&r[0], &m));
		if (i <= 2)
			must(take(&r[1], &m));
	}
}

/* The logs of calls that all make alike, as the connector would keep them. */
static inline void logs_of(struct side *s, struct kvr_alike_logs *a)
{
	const struct kvr_layout *l = &s->g->layout;

	if (s->g->rank == KVR_LEADER)
		kvr_alike_init(a, l, s->g->own + (l->leader_logs - l->leader), NULL, NULL);
	else
		kvr_alike_init(a, l, s->g->own + l->rank_logs, s->g->seg + l->leader_logs,
			       &kvr_group_own_page(s->g)->drift);
}

/* A whole call of that kind. */
static inline void call_alike(struct kvr_alike_logs *a, enum kvr_alike kind, uint64_t id)
{
	struct kvr_request req = { .id = id };

	kvr_alike_call(a, kind, &req, 1, NULL);
	kvr_alike_answered(a, kind);
}

static inline struct kvr_op_entry *ops_of(struct side *l)
{
	return (void *)(l->g->own + (l->g->layout.leader_ops - l->g->layout.leader));
}

static inline void end_group(struct side *l, struct side r[2])
{
	leave(&r[0]);
	leave(&r[1]);
	leave(l);
}

/* Leader of the next tests: publishes without end, each message filled with its number. */
static inline void publish_for_ever(const char *name)
{
	struct side s;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (lead_all(name, 2, &s))
		_exit(99);
	for (uint64_t i = 1;; i++) {
		uint8_t data[200];

		memset(data, (int)(i & 0xff), sizeof data);
		if (publish(&s, 0, KVR_TAG_USER, i, data, (uint32_t)(i % sizeof data)))
			_exit(98);
	}
}

/* Messages of that leader are whole and in order, however they were copied. */
static inline void check_messages(const struct kvr_inspect_message *m, int n)
{
	for (int i = 0; i < n; i++) {
		uint32_t shown = m[i].len < sizeof m[i].payload ? m[i].len : sizeof m[i].payload;

		ck_assert_uint_eq(m[i].request.id, m[i].number);
		ck_assert_uint_eq(m[i].len, m[i].number % 200);
		for (uint32_t b = 0; b < shown; b++)
			ck_assert_uint_eq(m[i].payload[b], m[i].number & 0xff);
		if (i)
			ck_assert_uint_eq(m[i].number, m[i - 1].number + 1);
	}
}

struct crowd {
	char name[KVR_NAME_MAX];
	pid_t leader, rank[2];
};

static inline void start_crowd(struct crowd *c)
{
	test_name(c->name, sizeof c->name, "inspect");
	c->rank[0] = spawn(c->name, 0, take_all);
	c->rank[1] = spawn(c->name, 1, take_all);
	c->leader = fork();
	if (!c->leader)
		publish_for_ever(c->name);
}

/* Stopped first: who saw another one dead would leave in good order. */
static inline void kill_crowd(const struct crowd *c)
{
	const pid_t pids[] = { c->rank[0], c->rank[1], c->leader };

	for (uint32_t i = 0; i < 3; i++) {
		ck_assert_int_eq(kill(pids[i], SIGSTOP), 0);
		ck_assert_int_eq(waitpid(pids[i], NULL, WUNTRACED), pids[i]);
	}
	for (uint32_t i = 0; i < 3; i++)
		kill(pids[i], SIGKILL);
	for (uint32_t i = 0; i < 3; i++)
		test_reap(pids[i], 5000);
}

/* Opens it once messages flow. */
static inline int all_alive(struct kvr_inspect *in)
{
	struct kvr_inspect_proc p;

	for (uint32_t r = 0; r < 3; r++) {
		must(kvr_inspect_proc(in, r < 2 ? r : LEADER, &p));
		if (p.alive != 1)
			return 0;
	}
	return 1;
}

static inline struct kvr_inspect *open_running(const struct crowd *c)
{
	uint64_t deadline = test_deadline_ms(10000);
	struct kvr_inspect *in = NULL;
	struct kvr_inspect_group g = { 0 };

	while ((g.watermark[KVR_CH_USER0] < 1000 || !all_alive(in)) && test_now_ns() < deadline) {
		test_sleep_ms(1);
		if (!in && kvr_inspect_open_name(NULL, c->name, &in))
			continue;
		must(kvr_inspect_group(in, &g));
	}
	ck_assert_uint_ge(g.watermark[KVR_CH_USER0], 1000);
	return in;
}

#endif
