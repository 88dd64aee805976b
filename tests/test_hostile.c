/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Somebody writes to the segment who should not. Each word that channels read from another's page
 * is overwritten in turn: the call must name it, keep to what it said first, and disturb nobody
 * else. And a leader that is only stopped, wherever it is, must never look like that.
 */
#include "sides.h"

#include "point.h"

/* The whole segment, writable: what a stray pointer in any process of the group's user could do. */
static uint8_t *wild;
static size_t wild_bytes;

static void wild_open(const struct kvr_group *g)
{
	char path[KVR_SHM_PATH];
	int fd;

	must(kvr_shm_path(path, sizeof path, NULL, g->name, KVR_SHM_SEGMENT, 0));
	fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	wild_bytes = g->layout.total;
	wild = mmap(NULL, wild_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(wild, MAP_FAILED);
	close(fd);
}

static uint64_t *ring_word(const struct kvr_group *g, uint32_t channel, uint32_t rank,
			   uint64_t cell)
{
	return (uint64_t *)(void *)(wild + kvr_layout_ring(&g->layout, channel, rank) +
				    KVR_RING_CTL + cell * KVR_RING_CELL);
}

static uint64_t *control_line(const struct kvr_group *g, uint32_t channel, uint32_t rank)
{
	return (uint64_t *)(void *)(wild + kvr_layout_ring(&g->layout, channel, rank));
}

static struct kvr_leader_page *leader_page(const struct kvr_group *g)
{
	return (struct kvr_leader_page *)(void *)(wild + g->layout.leader);
}

static struct kvr_rank_page *rank_page(const struct kvr_group *g, uint32_t rank)
{
	return (struct kvr_rank_page *)(void *)(wild + kvr_layout_rank(&g->layout, rank));
}

static struct side l, r[RANKS];
static char name[KVR_NAME_MAX];

static void open_sides(void)
{
	setup();
	test_name(name, sizeof name, "hostile");
	must(lead(name, RANKS, &l));
	for (uint32_t i = 0; i < RANKS; i++)
		must(join(name, i, &r[i]));
	wild_open(l.g);
}

static void close_sides(void)
{
	for (uint32_t i = 0; i < RANKS; i++)
		if (r[i].g)
			leave(&r[i]);
	leave(&l);
	kvr_group_remove(name, NULL); /* what was declared over stays to be looked at */
	munmap(wild, wild_bytes);
	teardown();
}

/* Publishes n messages on USER0 to all. */
static void publish_n(uint32_t n)
{
	while (n--)
		must(publish(&l, 0, KVR_TAG_USER, n, "data", 5));
}

static int take_until(struct side *s, uint64_t ms, struct kvr_message *m)
{
	return kvr_channels_take(s->c, KVR_CH_USER0, test_deadline_ms(ms), m);
}

static void take_n(struct side *s, uint32_t n)
{
	struct kvr_message m;

	while (n--)
		must(take(s, &m));
}

static const char *numbered(const char *fmt, uint64_t v)
{
	static char text[8][64];
	static int next;
	char *t = text[next++ % 8];

	snprintf(t, sizeof text[0], fmt, (unsigned long long)v);
	return t;
}

/* The channel says the same for ever, although the word is right again; nobody else is concerned.
 */
static void stays_broken(struct side *s, uint32_t seen_by_others)
{
	struct kvr_message m;
	char first[1536];

	snprintf(first, sizeof first, "%s", kvr_explain());
	ck_assert_int_eq(take(s, &m), -EBADMSG);
	ck_assert_str_eq(kvr_explain(), first);
	ck_assert_int_eq(take_until(s, 60000, &m), -EBADMSG);
	ck_assert_str_eq(kvr_explain(), first);
	ck_assert_int_eq(kvr_channels_expect(s->c, KVR_CH_USER0, 1, 0, &m), -EBADMSG);
	ck_assert_str_eq(kvr_explain(), first);
	for (uint32_t i = 0; i < RANKS; i++)
		if (&r[i] != s)
			take_n(&r[i], seen_by_others);
	must(publish(&l, 0, KVR_TAG_USER, 9, "more", 5));
	for (uint32_t i = 0; i < RANKS; i++)
		if (&r[i] != s)
			take_n(&r[i], 1);
	must(kvr_channels_publish(l.c, KVR_CH_USER1, 0, 300, NULL, NULL, 0, 0));
	must(kvr_channels_take(s->c, KVR_CH_USER1, 0, &m));
}

/* How the rank asks: sleeping until the back-stop, until a short deadline, polling, or until a
 * deadline that has passed. */
static int ask(struct side *s, int how)
{
	struct kvr_message m;
	int err = -EAGAIN;

	if (how == 3)
		return kvr_channels_take(s->c, KVR_CH_USER0, 1, &m);
	if (how < 2)
		return take_until(s, how ? 20 : 60000, &m);
	for (int i = 0; i < 4096 && err == -EAGAIN; i++)
		err = take(s, &m);
	return err;
}

START_TEST(test_overwritten_commit_word_is_named)
{
	uint64_t *word = ring_word(l.g, KVR_CH_USER0, 0, 1), right;

	publish_n(3);
	take_n(&r[0], 1);
	right = *word;
	*word ^= 1ull << 40;
	ck_assert_int_eq(ask(&r[0], _i), -EBADMSG);
	explained(kvr_explain(), "rank 0, channel USER0: after message 1:", "message 1 must be",
		  "at cell 1 of", numbered("word %#llx ", *word), "says that 3 messages",
		  "the segment was overwritten", NULL);
	*word = right;
	stays_broken(&r[0], 3);
}
END_TEST

START_TEST(test_impossible_commit_word_is_named)
{
	uint64_t *word = ring_word(l.g, KVR_CH_USER0, 1, 0), right;

	publish_n(1);
	right = *word;
	*word ^= _i ? 1ull << 27 : 0x7f0000;
	ck_assert_int_eq(ask(&r[1], 2), -EBADMSG);
	explained(kvr_explain(), "rank 1, channel USER0", numbered("word %#llx ", *word),
		  _i ? "its flags" : "its length", NULL);
	*word = right;
	stays_broken(&r[1], 1);
}
END_TEST

/* Also when it counts more than there is: nobody counts that. */
START_TEST(test_impossible_control_line_is_named)
{
	uint64_t *ctl = control_line(l.g, KVR_CH_USER0, 2), right;

	publish_n(2);
	take_n(&r[2], 2);
	right = *ctl;
	*ctl = _i ? right ^ 1ull << 60 : right + (1ull << 32) + 1;
	ck_assert_int_eq(ask(&r[2], 0), -EBADMSG);
	explained(kvr_explain(), "rank 2, channel USER0",
		  _i ? "control line is impossible" : "cell 2",
		  numbered("up to cell %llu.", *ctl >> 32), NULL);
	*ctl = right;
	stays_broken(&r[2], 2);
}
END_TEST

/* The words behind a message's commit word: its number in the ring, in the channel, its length. */
START_TEST(test_impossible_number_is_named)
{
	uint64_t *cell = ring_word(l.g, KVR_CH_USER0, 0, 2), right[3];
	static const int at[] = { 1, 2, 2, 2 };
	static const uint64_t wrong[] = { 77ull << 32, 2, 5, 1ull << 50 };

	publish_n(3);
	take_n(&r[0], 2);
	memcpy(right, cell, sizeof right);
	cell[at[_i]] = wrong[_i];
	ck_assert_int_eq(ask(&r[0], 2), -EBADMSG);
	explained(kvr_explain(), "rank 0, channel USER0: after message 2:",
		  _i ? numbered("number is %llu, and the channel's watermark is 3: from 3 to",
				wrong[_i])
		     : "beside number 77",
		  NULL);
	memcpy(cell, right, sizeof right);
	stays_broken(&r[0], 3);
}
END_TEST

START_TEST(test_message_without_a_head_is_named)
{
	publish_n(1);
	take_n(&r[0], 1);
	must(kvr_ring_write(&l.c->writer[KVR_CH_USER0 * RANKS], 300, "short", 5));
	ck_assert_int_eq(ask(&r[0], 2), -EBADMSG);
	explained(kvr_explain(), "rank 0, channel USER0", "length is 5, and 32 to", NULL);
	stays_broken(&r[0], 1);
}
END_TEST

/* The leader's watermark is in its own page, and it goes by what it knows. */
START_TEST(test_impossible_watermark_is_named)
{
	uint64_t *watermark = &leader_page(l.g)->watermark[KVR_CH_USER0];
	struct kvr_message m;

	publish_n(5);
	take_n(&r[0], _i ? 5 : 3);
	*watermark = 2;
	ck_assert_int_eq(ask(&r[0], 0), -EBADMSG);
	explained(kvr_explain(), "rank 0, channel USER0", _i ? "after message 5" : "number is 4",
		  "watermark is 2", NULL);
	*watermark = 5;
	stays_broken(&r[0], 5);
	*watermark = 77;
	must(publish(&l, 2, KVR_TAG_USER, 1, "x", 2));
	must(take(&r[1], &m));
	ck_assert_uint_eq(m.number, 7);
	ck_assert_uint_eq(*watermark, 7);
}
END_TEST

/* Beyond what is in the ring: may be of other ranks, unless every publish comes to all. */
START_TEST(test_watermark_of_nothing_is_named_where_all_comes_to_all)
{
	uint64_t *watermark = &leader_page(l.g)->watermark[KVR_CH_USER0];

	publish_n(2);
	take_n(&r[0], 2);
	*watermark = 1ull << 44;
	ck_assert_int_eq(ask(&r[0], 1), -ETIMEDOUT);
	r[0].c->whole = 1u << KVR_CH_USER0;
	ck_assert_int_eq(ask(&r[0], _i), -EBADMSG);
	explained(kvr_explain(), "rank 0, channel USER0: after message 2:",
		  numbered("watermark is %llu", 1ull << 44), "no message", NULL);
	*watermark = 2;
	stays_broken(&r[0], 2);
}
END_TEST

/* What expect() finds while it looks for the cause of a mismatch does not count yet. */
START_TEST(test_impossible_message_behind_a_mismatch)
{
	struct kvr_message m;

	publish_n(3);
	*ring_word(l.g, KVR_CH_USER0, 0, 2) ^= 0x7f0000;
	ck_assert_int_eq(kvr_channels_expect(r[0].c, KVR_CH_USER0, 999, 0, &m), -EPROTO);
	take_n(&r[0], 2);
	ck_assert_int_eq(take(&r[0], &m), -EBADMSG);
	stays_broken(&r[0], 3);
}
END_TEST

/* --- what the leader reads of a rank ---------------------------------------------------------- */

/* Until the leader looks at the cursor again. */
static int publish_full(uint64_t set)
{
	struct kvr_message m;
	int err = 0;

	for (int i = 0; i < 100000 && !err; i++) {
		err = kvr_channels_publish(l.c, KVR_CH_USER0, set, KVR_TAG_USER, NULL, "x", 2, 0);
		for (uint32_t k = 0; k < RANKS; k += 2)
			while (!take(&r[k], &m))
				;
	}
	return err;
}

START_TEST(test_impossible_cursor_is_named_and_others_go_on)
{
	uint64_t *cursor = rank_page(l.g, 1)->cursor[KVR_CH_USER0];
	struct kvr_message m;
	char first[1536];

	*cursor = 1ull << 50;
	ck_assert_int_eq(publish_full(0), -EBADMSG);
	explained(kvr_explain(), "rank 1, channel USER0", "cursor is at cell 1125899906842624",
		  "can be from 0 to", NULL);
	snprintf(first, sizeof first, "%s", kvr_explain());
	*cursor = 0;
	ck_assert_int_eq(publish_full(0), -EBADMSG);
	ck_assert_str_eq(kvr_explain(), first);
	/* Nothing was published to anybody; the others still can be. */
	must(publish(&l, 5, KVR_TAG_USER, 1, "x", 2));
	must(take(&r[0], &m));
	must(take(&r[2], &m));
	/* And rank 1 by other channels. */
	must(kvr_channels_publish(l.c, KVR_CH_USER1, 0, 300, NULL, NULL, 0, 0));
	must(kvr_channels_take(r[1].c, KVR_CH_USER1, 0, &m));
	if (_i) { /* it leaves: nobody waits for it, nor for its cursor */
		leave(&r[1]);
		r[1].g = NULL;
		must(publish(&l, 0, KVR_TAG_USER, 1, "x", 2));
		must(take(&r[0], &m));
		return;
	}
	must(kvr_group_fail(l.g, 1, -EBADMSG));
	ck_assert_int_eq(take_until(&r[0], 60000, &m), -EBADMSG);
	explained(kvr_explain(), "declared epoch 1 over", "rank 1", NULL);
	ck_assert_int_eq(publish_full(0), -EBADMSG);
}
END_TEST

START_TEST(test_impossible_count_of_a_rank_is_named)
{
	uint64_t *taken = &rank_page(l.g, 1)->taken[KVR_CH_USER0];

	*taken = 1ull << 33;
	ck_assert_int_eq(publish_full(0), -EAGAIN); /* rank 1 does not read */
	ck_assert_int_eq(kvr_channels_publish(l.c, KVR_CH_USER0, 0, 1, NULL, "x", 2,
					      test_deadline_ms(10)),
			 -ETIMEDOUT);
	explained(kvr_explain(), "rank 1 does not read", "is 0 messages",
		  "says that it took 8589934592", NULL);
}
END_TEST

/* --- words that mean little ------------------------------------------------------------------- */

START_TEST(test_recorders_and_bells_are_not_believed)
{
	const struct kvr_layout *y = &l.g->layout;
	struct kvr_rec_ctl *leaders = (void *)(wild + y->leader_rec);
	struct kvr_rec_ctl *own = (void *)(wild + kvr_layout_rank(y, 0) + y->rank_rec);
	struct kvr_bell *bells = (void *)(wild + y->bells);
	uint64_t x = test_seed();
	struct kvr_message m;

	publish_n(3);
	take_n(&r[0], 3);
	for (int i = 0; i < 20; i++) {
		leaders->count = (uint64_t)test_now_ns() * x;
		own->count = i % 2 ? UINT64_MAX - (uint64_t)i : 1ull << (i * 3);
		memset(leaders + 1, i * 13, 64ull * y->events);
		memset(own + 1, ~i * 13, 64ull * y->events);
		for (uint32_t k = 0; k <= RANKS; k++) {
			bells[k].parked = (uint32_t)(x >> k);
			bells[k].seq = (uint32_t)(x >> (32 - k));
		}
		x = x * 6364136223846793005ull + 1;
		ck_assert_int_eq(ask(&r[0], 1), -ETIMEDOUT);
		ck_assert_int_eq(kvr_channels_expect(r[1].c, KVR_CH_USER0, 999, 0, &m), -EPROTO);
	}
	publish_n(1);
	must(take_until(&r[0], 5000, &m));
}
END_TEST

/* A taker that has not said yet what counts is no reason to call a message impossible. */
START_TEST(test_fence_is_no_impossible_watermark)
{
	struct kvr_seg_takeover *t = (void *)(wild + l.g->layout.takeover);
	struct kvr_message m;

	publish_n(5);
	take_n(&r[0], 2);
	r[0].c->whole = 1u << KVR_CH_USER0;
	t->pid = 1;
	t->closing = 1;
	ck_assert_int_eq(take(&r[0], &m), -EAGAIN);
	ck_assert_int_eq(kvr_channels_lost(r[0].c, KVR_CH_USER0), 0);
	t->watermark[KVR_CH_USER0] = 3;
	t->new_epoch = 2;
	must(take(&r[0], &m));
	ck_assert_int_eq(take(&r[0], &m), -ESTALE);
	ck_assert_int_eq(kvr_channels_lost(r[0].c, KVR_CH_USER0), 0);
}
END_TEST

/* A taker says who it is before it hides anything. */
START_TEST(test_fence_of_nobody_is_named)
{
	struct kvr_seg_takeover *t = (void *)(wild + l.g->layout.takeover);
	struct kvr_message m;

	publish_n(2);
	take_n(&r[0], 1);
	t->closing = 7u << (8 * _i);
	must(take(&r[0], &m)); /* it hides nothing */
	ck_assert_int_eq(take_until(&r[0], 60000, &m), -EBADMSG);
	explained(kvr_explain(), numbered("closing of the takeover page is %#llx", t->closing),
		  "pid", NULL);
	ck_assert_int_eq(publish(&l, 0, KVR_TAG_USER, 1, "x", 2), -EBADMSG);
}
END_TEST

/* --- a leader that is stopped ----------------------------------------------------------------- */

static enum kvr_point stop_at;
static uint32_t stop_after;

static void stop_there(enum kvr_point point, uint32_t arg)
{
	(void)arg;
	if (point == stop_at && !stop_after--)
		raise(SIGSTOP);
}

/* Stops at the point for the stop_after-th time, and goes on when it may. */
static void stopped_leader(void)
{
	struct side s;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (lead_all(name, RANKS, &s))
		_exit(1);
	kvr_point_hook = stop_there;
	for (uint64_t i = 1; i <= 4; i++)
		if (publish(&s, 0, KVR_TAG_USER, i, "data", 5))
			_exit(2);
	await_go(1);
	leave(&s);
	_exit(0);
}

static const enum kvr_point stops[] = { KVR_POINT_publish_reserved, KVR_POINT_publish_copied,
					KVR_POINT_publish_committed, KVR_POINT_publish_marked };

/* Each rank waits through several back-stops, and polls: nothing there yet is all it finds. */
static int patient(struct side *s, struct report *rep)
{
	struct kvr_message m;
	int err = 0;

	s->c->whole = s->g->rank ? 1u << KVR_CH_USER0 : 0;
	while (rep->seen < 4 && (!err || err == -ETIMEDOUT || err == -EAGAIN)) {
		err = take_until(s, 150, &m);
		if (!err)
			tell(rep, &m);
		for (int i = 0; i < 3000 && err == -ETIMEDOUT; i++) {
			int again = take(s, &m);

			if (!again)
				tell(rep, &m);
			if (again != -EAGAIN)
				err = again;
		}
		__atomic_fetch_add(&go[1 + s->g->rank], 1, __ATOMIC_RELAXED);
	}
	return err;
}

START_TEST(test_stopped_leader_is_only_waited_for)
{
	pid_t leader, pids[RANKS];
	siginfo_t ended = { 0 };
	int status;

	setup();
	test_name(name, sizeof name, "hostile");
	stop_at = stops[_i % 4];
	stop_after = (uint32_t)_i / 4;
	leader = fork();
	if (!leader)
		stopped_leader();
	for (uint32_t i = 0; i < RANKS; i++)
		pids[i] = spawn(name, i, patient);
	ck_assert_int_eq(waitpid(leader, &status, WUNTRACED), leader);
	ck_assert(WIFSTOPPED(status));
	/* Each has met it: a message that is there, or a wait, and another look after it. */
	for (uint32_t i = 0; i < RANKS; i++)
		while (__atomic_load_n(&go[1 + i], __ATOMIC_RELAXED) < stop_after + 3 &&
		       !waitid(P_PID, (id_t)pids[i], &ended, WEXITED | WNOHANG | WNOWAIT) &&
		       !ended.si_pid)
			test_sleep_ms(5);
	kill(leader, SIGCONT);
	reap(pids, RANKS);
	*go = 1;
	ck_assert_int_eq(test_reap(leader, 10000), 0);
	for (uint32_t i = 0; i < RANKS; i++) {
		ck_assert_msg(!reports[i].err, "rank %u: %s", i, reports[i].why);
		ck_assert_uint_eq(reports[i].seen, 4);
		ck_assert_uint_eq(reports[i].sum, reports[0].sum);
	}
	teardown();
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("hostile");
	TCase *t = tcase_create("words of the leader");

	tcase_add_checked_fixture(t, open_sides, close_sides);
	tcase_add_loop_test(t, test_overwritten_commit_word_is_named, 0, 4);
	tcase_add_loop_test(t, test_impossible_commit_word_is_named, 0, 2);
	tcase_add_loop_test(t, test_impossible_control_line_is_named, 0, 2);
	tcase_add_loop_test(t, test_impossible_number_is_named, 0, 4);
	tcase_add_test(t, test_message_without_a_head_is_named);
	tcase_add_loop_test(t, test_impossible_watermark_is_named, 0, 2);
	tcase_add_loop_test(t, test_watermark_of_nothing_is_named_where_all_comes_to_all, 0, 4);
	tcase_add_test(t, test_impossible_message_behind_a_mismatch);
	tcase_add_test(t, test_recorders_and_bells_are_not_believed);
	tcase_add_test(t, test_fence_is_no_impossible_watermark);
	tcase_add_loop_test(t, test_fence_of_nobody_is_named, 0, 4);
	suite_add_tcase(s, t);
	t = tcase_create("words of a rank");
	tcase_add_checked_fixture(t, open_sides, close_sides);
	tcase_add_loop_test(t, test_impossible_cursor_is_named_and_others_go_on, 0, 2);
	tcase_add_test(t, test_impossible_count_of_a_rank_is_named);
	suite_add_tcase(s, t);
	t = tcase_create("stopped");
	tcase_add_loop_test(t, test_stopped_leader_is_only_waited_for, 0, 8);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
