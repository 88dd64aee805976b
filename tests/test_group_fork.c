/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A forked child has its parent's handles: memory, mappings and descriptors, but not the
 * membership. Every call is refused with a sentence, no byte that others see changes, and closing
 * disturbs nobody.
 */
#include "cluster.h"
#include "group_ends.h"
#include "namespaces.h"

/* The whole of a file; NULL when it cannot be read. */
static uint8_t *bytes_of(const char *file, size_t *ret_len)
{
	int fd = open(file, O_RDONLY | O_CLOEXEC);
	off_t len = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
	uint8_t *p = len > 0 ? malloc((size_t)len) : NULL;

	if (p && pread(fd, p, (size_t)len, 0) != len) {
		free(p);
		p = NULL;
	}
	if (fd >= 0)
		close(fd);
	*ret_len = (size_t)len;
	return p;
}

/* Names the call that was not refused with a sentence of its own. */
#define REFUSED(call)                                                            \
	do {                                                                     \
		kvr_fail(0, "nothing was said");                                 \
		if ((call) != -EINVAL || !strstr(kvr_explain(), "forked child")) \
			return #call;                                            \
	} while (0)

static void no_message(void *arg, const struct kvr_message *m)
{
	(void)arg;
	(void)m;
}

static const char *group_calls(struct end *l, struct end *r)
{
	struct kvr_request q = { .id = 1 };
	struct kvr_channels *c;
	struct kvr_message m;
	struct kvr_peer p;

	REFUSED(kvr_channels_open(l->g, &c));
	REFUSED(kvr_channels_open(r->g, &c));
	REFUSED(kvr_group_check(l->g));
	REFUSED(kvr_group_check(r->g));
	REFUSED(kvr_group_fail(l->g, 0, -EIO));
	REFUSED(kvr_group_fail(r->g, 0, -EIO));
	REFUSED(kvr_group_visible(l->g));
	REFUSED(kvr_group_visible(r->g));
	REFUSED(kvr_group_peer(l->g, 0, &p));
	REFUSED(kvr_group_peer(r->g, KVR_LEADER, &p));
	REFUSED(kvr_group_phase(l->g, "x", UINT64_MAX));
	REFUSED(kvr_group_phase(r->g, "x", UINT64_MAX));
	REFUSED(kvr_channels_publish(l->c, CH, 0, 1, &q, "x", 1, 0));
	REFUSED(kvr_channels_take(r->c, CH, 0, &m));
	REFUSED(kvr_channels_take(r->c, CH, test_deadline_ms(10), &m));
	REFUSED(kvr_channels_expect(r->c, CH, 1, 0, &m));
	REFUSED(kvr_channels_take_for(r->c, CH, 1, &q, 0, &m));
	REFUSED(kvr_channels_forget(r->c, CH, &q));
	REFUSED(kvr_channels_drain(r->c, CH, no_message, NULL));
	return NULL;
}

static const char *connector_calls(struct kvr_connector *c)
{
	struct kvr_request q = { .id = 1 };
	struct kvr_key key = { 0 };
	struct kvr_completion done[4];
	struct kvr_block blocks[4];
	struct kvr_stats stats;
	struct kvr_hit hit;
	uint64_t soon = test_deadline_ms(100), tick;
	uint32_t covered;

	REFUSED(kvr_connector_lookup(c, &q, &key, 1, soon, &hit));
	REFUSED(kvr_connector_release(c, &q));
	REFUSED(kvr_connector_store_begin(c, &q, &key, 1, soon, blocks, 4, &covered));
	REFUSED(kvr_connector_store_copied(c, &q, 0));
	REFUSED(kvr_connector_wait_store(c, &q, KVR_STAGE_HOST, soon));
	REFUSED(kvr_connector_load_begin(c, &q, 1, soon));
	REFUSED(kvr_connector_load_wait(c, &q, &key, soon, blocks, 4));
	REFUSED(kvr_connector_load_done(c, &q));
	REFUSED(kvr_connector_check_completed(c, KVR_NEXT, 0, soon, done, 4, &tick));
	REFUSED(kvr_connector_shutdown(c, soon));
	REFUSED(kvr_connector_stats(c, &stats));
	return NULL;
}

/* What the parent has, and its child inherits. */
static struct end parent_l, parent_r;
static struct kvr_connector *parent_cl, *parent_cr; /* NULL: no connector */
static char files[2][KVR_SHM_PATH];

static const char *child_calls(void)
{
	const char *bad = group_calls(&parent_l, &parent_r);

	if (!bad && parent_cl)
		bad = connector_calls(parent_cl);
	if (!bad && parent_cr)
		bad = connector_calls(parent_cr);
	if (parent_cl) {
		kvr_connector_close(parent_cr);
		kvr_connector_close(parent_cl);
	} else {
		end_close(&parent_r);
		end_close(&parent_l);
	}
	return bad;
}

/* Its parent is stopped, so that nobody else writes. */
static const char *child_main(void)
{
	uint8_t *before[2] = { NULL }, *after;
	const char *bad;
	size_t len[2], now;

	for (int i = 0; i < 2; i++)
		if (files[i][0] && !(before[i] = bytes_of(files[i], &len[i])))
			return "the file is not there before";
	bad = child_calls();
	for (int i = 0; !bad && i < 2; i++) {
		if (!files[i][0])
			continue;
		after = bytes_of(files[i], &now);
		if (!after || now != len[i] || memcmp(before[i], after, now) != 0)
			bad = i ? "the pool changed" : "the segment changed";
		free(after);
	}
	free(before[0]);
	free(before[1]);
	return bad;
}

static int parent_connector(void)
{
	static struct cluster cl;
	struct kvr_request q = { .id = 9 };
	struct kvr_key key = { 0 };
	struct kvr_hit hit;

	cluster_init(&cl, 1, 0, 4, 0);
	cl.opts.dir = dir;
	if (kvr_connector_lead(name, &cl.opts, &parent_cl) ||
	    kvr_connector_join(name, 0, &cl.opts, SOON, &parent_cr) ||
	    kvr_connector_lookup(parent_cl, &q, &key, 1, SOON, &hit) ||
	    kvr_connector_lookup(parent_cr, &q, &key, 1, SOON, &hit))
		return -1;
	parent_l.g = kvr_connector_group(parent_cl);
	parent_l.c = kvr_connector_channels(parent_cl);
	parent_r.g = kvr_connector_group(parent_cr);
	parent_r.c = kvr_connector_channels(parent_cr);
	kvr_shm_path(files[1], sizeof files[1], dir, name, KVR_SHM_POOL, 0);
	return 0;
}

/* Both sides still work, and know of no death. */
static int parent_works(void)
{
	struct kvr_request q = { .id = 10 };
	struct kvr_key key = { 0 };
	struct kvr_message m;
	struct kvr_hit hit;
	int rc = kvr_group_watch_ranks(parent_l.g);

	if (!rc)
		rc = kvr_group_check(parent_r.g);
	if (!rc && parent_cl) {
		rc = kvr_connector_lookup(parent_cl, &q, &key, 1, SOON, &hit);
		return rc ? rc : kvr_connector_lookup(parent_cr, &q, &key, 1, SOON, &hit);
	}
	if (!rc)
		rc = end_publish(&parent_l, 1, WAIT_MS);
	return rc ? rc : kvr_channels_take(parent_r.c, CH, test_deadline_ms(WAIT_MS), &m);
}

/* rank 1: with connectors. The child obeys the first order, the parent the others. */
static int member_forks(struct member *m)
{
	struct report r = { 0 };
	const char *bad;
	pid_t pid;

	if (m->rank)
		MUST(!parent_connector());
	else
		MUST(!end_lead(name, &parent_l) && !end_join(name, 0, &parent_r) &&
		     !parent_works());
	kvr_shm_path(files[0], sizeof files[0], dir, name, KVR_SHM_SEGMENT, 0);
	MUST(!end_publish(&parent_l, 1, WAIT_MS)); /* something that a child could take */
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (member_order(m) != 'c')
			_exit(1);
		bad = child_main();
		r.rc = bad != NULL;
		snprintf(r.why, sizeof r.why, "%s: %s", bad ? bad : "", bad ? kvr_explain() : "");
		_exit(write(m->out, &r, sizeof r) != sizeof r);
	}
	member_report(m, 0, NULL);
	raise(SIGSTOP);
	MUST(waitpid(pid, NULL, 0) == pid);
	while (member_order(m))
		member_report(m, parent_works(), NULL);
	if (parent_cl) {
		kvr_connector_close(parent_cr);
		kvr_connector_close(parent_cl);
	} else {
		end_close(&parent_r);
		end_close(&parent_l);
	}
	return 0;
}

START_TEST(test_forked_child_is_refused_and_changes_nothing)
{
	struct member m = member_start(member_forks, (uint32_t)_i);
	struct kvr_group *other;
	struct report r;
	int status;

	r = member_hears(&m);
	ck_assert_msg(!r.rc, "%d %s", r.rc, r.why);
	ck_assert_int_eq(waitpid(m.pid, &status, WUNTRACED), m.pid);
	ck_assert(WIFSTOPPED(status));
	member_tell(&m, 'c');
	r = member_hears(&m);
	ck_assert_msg(!r.rc, "%s", r.why);
	ck_assert(file_there(KVR_SHM_SEGMENT, 0));
	kill(m.pid, SIGCONT);
	member_tell(&m, 'w');
	r = member_hears(&m);
	ck_assert_msg(!r.rc, "%d %s", r.rc, r.why);
	if (!_i) {
		/* Nor did it take a place, or give one away. */
		ck_assert_int_eq(try_attach(0, 50), -EBUSY);
		opts.ranks = 0;
		other = attach(1);
		kvr_group_close(other);
	}
	member_end(&m);
	ck_assert_int_eq(files_in_dir(), 0);
}
END_TEST

/* The child of process 1 is process 1, too: in a namespace of its own. */
static void same_number(void)
{
	struct end l = { 0 }, r = { 0 };
	uint64_t deadline = test_deadline_ms(8000);
	int status = 1;
	pid_t pid;

	MUST(getpid() == 1);
	MUST(!end_lead(name, &l) && !end_join(name, 0, &r));
	if (unshare(CLONE_NEWPID))
		_exit(77);
	pid = fork();
	if (!pid) {
		if (getpid() != 1)
			_exit(1);
		end_close(&r);
		end_close(&l);
		_exit(0);
	}
	while (waitpid(pid, &status, WNOHANG) != pid && test_now_ns() < deadline)
		test_sleep_ms(1);
	MUST(!status);
	MUST(!kvr_group_visible(l.g) && !kvr_group_check(r.g));
	MUST(!end_publish(&l, 1, WAIT_MS));
	end_close(&r);
	end_close(&l);
}

START_TEST(test_child_with_its_parents_number_ends_nothing)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (namespaces_enter(CLONE_NEWPID))
			_exit(77);
		pid = fork();
		if (!pid) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			same_number();
			_exit(0);
		}
		_exit(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status)
			      ? WEXITSTATUS(status)
			      : 1);
	}
	status = test_reap(pid, 15000);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		test_skip("no new pid namespaces here");
	else
		ck_assert_msg(!status, "status %#x", status);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("group_fork");
	TCase *t = tcase_create("fork");

	tcase_set_timeout(t, 40);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, test_forked_child_is_refused_and_changes_nothing, 0, 2);
	tcase_add_test(t, test_child_with_its_parents_number_ends_nothing);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
