/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages larger than a ring's limit: one copy in the bulk area, which is given back in order, and
 * all that holds of small ones.
 */
#include "bulk_sides.h"
#include "kvring/inspect.h"
#include "point.h"

static uint64_t used(void)
{
	return l.g->leader->bulk_used;
}

START_TEST(test_sizes_around_the_limits)
{
	static const uint32_t sizes[] = {
		0,    1,    SMALL_MAX - 1, SMALL_MAX,	 SMALL_MAX + 1, SMALL_MAX + 63,
		4095, 4096, 4097,	   LARGEST - 64, LARGEST - 1,	LARGEST
	};
	uint32_t ranks = (uint32_t)_i;
	struct kvr_message m;

	open_sides(ranks, BULK);
	ck_assert_uint_eq(kvr_channels_max_payload(l.c), LARGEST);
	ck_assert_uint_eq(kvr_channels_max_payload(r[0].c), LARGEST);
	ck_assert_uint_eq(kvr_channels_inline_payload(r[0].c), SMALL_MAX);
	for (uint32_t i = 0; i < 5 * KVR_ARRAY_LEN(sizes); i++) {
		uint32_t len = sizes[i % KVR_ARRAY_LEN(sizes)];
		ptrdiff_t offset = 0;

		must(put(CH, 0, len, 0));
		for (uint32_t k = 0; k < ranks; k++) {
			ptrdiff_t at;

			must(kvr_channels_take(r[k].c, CH, 0, &m));
			ck_assert_uint_eq(m.len, len);
			ck_assert_uint_eq(m.number, i + 1);
			ck_assert_uint_eq(wrong_bytes(&m), 0);
			at = (const uint8_t *)m.data - area(&r[k]);
			ck_assert_int_eq(at >= 0 && at + len <= BULK, len > SMALL_MAX);
			/* One copy, whatever the number of ranks. */
			ck_assert(!k || len <= SMALL_MAX || at == offset);
			ck_assert(len <= SMALL_MAX || at % 64 == 0);
			offset = at;
		}
	}
	ck_assert_int_eq(put(CH, 0, LARGEST + 1, 0), -EMSGSIZE);
	explained(kvr_explain(), "USER0: 16385 bytes", "2000 at most in rings of 16384",
		  "ring_bytes", "16384 in a bulk area of 65536", "bulk_bytes", NULL);
	must(put(CH, 0, 1, 0)); /* nothing was published to any */
	get(&r[0], CH, 5 * KVR_ARRAY_LEN(sizes) + 1, 1);
	close_sides(ranks);
}
END_TEST

/* A bulk area whose quarter is less than what a ring takes is of no use, and does no harm. */
START_TEST(test_bulk_area_smaller_than_the_ring)
{
	open_sides(1, 4096);
	ck_assert_uint_eq(kvr_channels_max_payload(l.c), SMALL_MAX);
	must(put(CH, 0, SMALL_MAX, 0));
	get(&r[0], CH, 1, SMALL_MAX);
	ck_assert_int_eq(put(CH, 0, SMALL_MAX + 1, 0), -EMSGSIZE);
	explained(kvr_explain(), "2000 at most", "1024 in a bulk area of 4096", NULL);
	close_sides(1);
}
END_TEST

/* What one rank holds holds up all that came later, on all channels, and not less. */
START_TEST(test_room_comes_back_in_order)
{
	open_sides(2, BULK);
	must(put(CH, 0, LARGEST, 0));
	must(put(CH + 1, 2, LARGEST, 0));
	must(put(CH, 1, LARGEST, 0));
	must(put(CH + 2, 0, LARGEST, 0));
	ck_assert_uint_eq(used(), BULK);
	ck_assert_int_eq(put(CH + 3, 0, SMALL_MAX + 1, 0), -EAGAIN);
	/* All but the first, which rank 1 still has. */
	get(&r[1], CH + 1, 1, LARGEST);
	give_back(&r[1], CH + 1);
	for (uint32_t k = 0; k < 2; k++) {
		get(&r[k], CH + 2, 1, LARGEST);
		give_back(&r[k], CH + 2);
	}
	get(&r[0], CH, 1, LARGEST);
	get(&r[0], CH, 2, LARGEST);
	give_back(&r[0], CH);
	ck_assert_int_eq(put(CH + 3, 0, SMALL_MAX + 1, 0), -EAGAIN);
	ck_assert_uint_eq(used(), BULK);
	get(&r[1], CH, 1, LARGEST);
	ck_assert_int_eq(put(CH + 3, 0, SMALL_MAX + 1, 0), -EAGAIN); /* it still looks at it */
	give_back(&r[1], CH);
	must(put(CH + 3, 0, SMALL_MAX + 1, 0));
	ck_assert_uint_eq(used(), kvr_align_up(SMALL_MAX + 1, 64));
	for (uint32_t i = 1; i <= 3; i++)
		must(put(CH + 3, 0, LARGEST - 4096 * i, 0));
	for (uint32_t k = 0; k < 2; k++) {
		get(&r[k], CH + 3, 1, SMALL_MAX + 1);
		for (uint32_t i = 1; i <= 3; i++)
			get(&r[k], CH + 3, 1 + i, LARGEST - 4096 * i);
	}
	close_sides(2);
}
END_TEST

/* A payload lies in one piece: what does not fit at the area's end goes to its start. */
START_TEST(test_end_of_the_area_is_left_out)
{
	struct kvr_message m;

	open_sides(1, BULK);
	for (uint32_t i = 1; i <= 5; i++) {
		must(put(CH, 0, 12288, 0)); /* five of them leave 4096 */
		get(&r[0], CH, i, 12288);
	}
	must(put(CH, 0, 4096, 0)); /* the end, exactly */
	must(kvr_channels_take(r[0].c, CH, 0, &m));
	ck_assert_ptr_eq(m.data, area(&r[0]) + BULK - 4096);
	for (uint32_t i = 7; i <= 11; i++) {
		must(put(CH, 0, 12288, 0));
		get(&r[0], CH, i, 12288);
	}
	must(put(CH, 0, 4097, 0));
	ck_assert_uint_eq(used(), 12288 + 4096 + 4160); /* the 11th is still looked at */
	must(kvr_channels_take(r[0].c, CH, 0, &m));
	ck_assert_ptr_eq(m.data, area(&r[0]));
	ck_assert_uint_eq(wrong_bytes(&m), 0);
	close_sides(1);
}
END_TEST

START_TEST(test_rank_that_fills_the_bulk_area_is_named)
{
	open_sides(3, BULK);
	must(put(CH + 1, 1, 10, 0));
	for (uint32_t i = 0; i < 4; i++)
		must(put(CH, 0, LARGEST, 0));
	for (uint32_t i = 1; i <= 4; i++) {
		get(&r[0], CH, i, LARGEST);
		get(&r[2], CH, i, LARGEST);
	}
	give_back(&r[0], CH);
	give_back(&r[2], CH);
	ck_assert_int_eq(put(CH + 1, 5, 5000, test_deadline_ms(20)), -ETIMEDOUT);
	explained(kvr_explain(), "rank 1 does not read channel USER0: it has not taken message 1 ",
		  "of 16384 bytes, published ", "ms ago, which is the oldest of 4 in the bulk area",
		  "of 65536 bytes", "bulk_bytes", "no room for 5000", "4 messages behind",
		  "last progress", "alive", "Nothing was published to any rank", NULL);
	get(&r[1], CH, 1, LARGEST);
	ck_assert_int_eq(put(CH + 1, 5, 5000, test_deadline_ms(20)), -ETIMEDOUT);
	explained(kvr_explain(), "rank 1 does not read channel USER0: it took and has not",
		  "message 1 of 16384", "3 messages behind", NULL);
	get(&r[1], CH, 2, LARGEST);
	must(put(CH + 1, 5, 5000, 0));
	ck_assert_int_eq(put(CH + 1, 5, LARGEST, test_deadline_ms(20)), -ETIMEDOUT);
	explained(kvr_explain(), "message 2 of 16384", NULL);
	kvr_group_own_page(r[1].g)->taken[CH] = 1ull << 40;
	ck_assert_int_eq(put(CH + 1, 5, LARGEST, test_deadline_ms(20)), -ETIMEDOUT);
	explained(kvr_explain(), "says that it took 1099511627776", "4 were published", NULL);
	close_sides(3);
}
END_TEST

static void ignore(void *arg, const struct kvr_message *m)
{
	(void)arg;
	(void)m;
}

/* Each way to give a message back tells a leader that sleeps. */
START_TEST(test_leader_that_waits_is_woken)
{
	struct kvr_request other = { .id = 999 };
	struct kvr_message m;
	struct kvr_bell *bell;
	uint32_t seq;

	open_sides(1, BULK);
	bell = &l.g->bells[1];
	for (int i = 0; i < 4; i++)
		must(put(CH, 0, LARGEST, 0));
	must(kvr_channels_take(r[0].c, CH, 0, &m));
	for (int i = 0; i < 5; i++) {
		ck_assert_int_eq(put(CH, 0, LARGEST, 0), -EAGAIN);
		seq = kvr_load_relaxed32(&bell->seq);
		bell->parked = 1; /* as a sleeper says */
		if (i == 0)
			must(kvr_channels_take(r[0].c, CH, 0, &m));
		else if (i == 1)
			give_back(&r[0], CH);
		else if (i == 2)
			ck_assert_int_eq(kvr_channels_drain(r[0].c, CH, ignore, NULL), 4);
		else if (i == 3)
			ck_assert_int_eq(kvr_channels_take_for(r[0].c, CH, 1, &other, 0, &m),
					 -EAGAIN); /* four go to the stash */
		else
			ck_assert_int_eq(kvr_channels_forget_upto(r[0].c, CH, 99), 8);
		ck_assert_uint_gt(kvr_load_relaxed32(&bell->seq), seq);
		for (int k = 0; k < (i < 2 ? 1 : 4); k++)
			must(put(CH, 0, LARGEST, 0));
	}
	close_sides(1);
}
END_TEST

START_TEST(test_all_or_none)
{
	struct kvr_message m;
	uint64_t n = 0;

	open_sides(2, BULK);
	while (!put(CH, 2, 0, 0)) /* rank 1's ring fills up */
		n++;
	ck_assert_uint_eq(n, RING / KVR_RING_CELL);
	ck_assert_int_eq(put(CH, 0, LARGEST, 0), -EAGAIN);
	ck_assert_int_eq(put(CH, 0, LARGEST, test_deadline_ms(10)), -ETIMEDOUT);
	explained(kvr_explain(), "rank 1 does not read channel USER0", "in a ring of 16384", NULL);
	ck_assert_uint_eq(used(), 0);
	ck_assert_uint_eq(l.c->bulk.pos, 0);
	ck_assert_int_eq(kvr_channels_take(r[0].c, CH, 0, &m), -EAGAIN);
	must(put(CH, 1, LARGEST, 0));
	get(&r[0], CH, n + 1, LARGEST);
	/* And the reverse. */
	for (int i = 0; i < 3; i++)
		must(put(CH + 1, 2, LARGEST, 0));
	ck_assert_int_eq(put(CH + 2, 0, LARGEST, test_deadline_ms(10)), -ETIMEDOUT);
	explained(kvr_explain(), "bulk area", "rank 0", "it took", NULL);
	ck_assert_int_eq(kvr_channels_take(r[0].c, CH + 2, 0, &m), -EAGAIN);
	ck_assert_int_eq(kvr_channels_take(r[1].c, CH + 2, 0, &m), -EAGAIN);
	ck_assert_uint_eq(l.g->leader->watermark[CH + 2], 0);
	must(put(CH + 2, 0, SMALL_MAX, 0)); /* small ones do not care */
	get(&r[0], CH + 2, 1, SMALL_MAX);
	get(&r[1], CH + 2, 1, SMALL_MAX);
	get(&r[1], CH + 1, 1, LARGEST);
	close_sides(2);
}
END_TEST

/* Only so many messages at a time, however small they are and however large the area is. */
START_TEST(test_many_small_extents_are_bounded)
{
	uint32_t n = 0;

	lead_with(64, 1024, 1 << 20);
	while (!put(CH + n / 64 % 4, 1ull << n % 64, 81, 0))
		n++;
	ck_assert_uint_eq(n, l.c->bulk.extents);
	ck_assert_uint_eq(n, 1024);
	ck_assert_uint_lt(used(), 1 << 20);
	ck_assert_int_eq(put(CH, 2, 81, test_deadline_ms(10)), -ETIMEDOUT);
	explained(kvr_explain(), "the oldest of 1024 in", "rank 0", NULL);
	must(join(name, 0, &r[0]));
	must(join(name, 1, &r[1]));
	get(&r[0], CH, 1, 81);
	get(&r[0], CH, 65, 81);
	must(put(CH, 2, 81, 0));
	ck_assert_int_eq(put(CH, 2, 81, 0), -EAGAIN); /* rank 1 has the next one */
	for (uint32_t i = 0; i < 4; i++)
		get(&r[1], CH, 2 + i * 64, 81);
	close_sides(2);
}
END_TEST

START_TEST(test_rank_that_left_holds_no_room)
{
	open_sides(2, BULK);
	for (int i = 0; i < 4; i++)
		must(put(CH, 0, LARGEST, 0));
	for (uint32_t i = 1; i <= 4; i++)
		get(&r[0], CH, i, LARGEST);
	give_back(&r[0], CH);
	ck_assert_int_eq(put(CH, 0, LARGEST, 0), -EAGAIN);
	leave(&r[1]);
	r[1].g = NULL;
	for (uint32_t i = 5; i < 50; i++) {
		must(put(CH, i % 2 ? 0 : 2, LARGEST, 0));
		if (i % 2)
			get(&r[0], CH, i, LARGEST);
	}
	/* The last one, too: then a message goes to nobody, and counts. */
	leave(&r[0]);
	r[0].g = NULL;
	for (uint32_t i = 50; i < 1000; i++)
		must(put(CH, 0, LARGEST, 0));
	ck_assert_uint_eq(l.g->leader->watermark[CH], 999);
	close_sides(2);
}
END_TEST

/* --- real processes --------------------------------------------------------------------------- */

static uint64_t seed;
static uint32_t ranks_;
#define TRAFFIC 2500u
#define TAG_END (KVR_TAG_USER + 9)

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

/* What message `number` of a channel is: so each rank knows what must come. */
static uint64_t set_of(uint32_t channel, uint64_t number)
{
	uint64_t all = ~0ull >> (64 - ranks_), x = mix(seed + channel * 977 + mix(number));

	return x % 3 && x >> 8 & all ? x >> 8 & all : all;
}

static uint32_t len_of(uint32_t channel, uint64_t number, uint32_t max)
{
	uint64_t x = mix(seed * 3 + channel * 13 + mix(number));

	return (uint32_t)(x >> 8) % (x % 4 == 0 ? 81 : x % 4 == 1 ? max + 1 : max / 4);
}

/* One channel of a rank. */
struct reading {
	struct kvr_message held; /* still looked at */
	uint64_t last;
	int looks, ended;
	struct report *rep;
};

static void read_one(void *arg, const struct kvr_message *m)
{
	struct reading *d = arg;
	uint64_t want = d->last + 1;

	if (m->tag == TAG_END) {
		d->ended = 1;
		return;
	}
	while (!(set_of(m->channel, want) >> d->rep->last & 1))
		want++;
	d->last = want;
	d->rep->seen++;
	if (m->number != want || m->len != len_of(m->channel, want, 4096) || wrong_bytes(m))
		d->rep->sum++;
}

/* Messages of four channels in any order, each looked at again before it is given back. */
static int read_traffic(struct side *s, struct report *rep)
{
	uint64_t x = seed + s->g->rank, deadline = test_deadline_ms(60000);
	struct reading d[4] = { { .rep = rep }, { .rep = rep }, { .rep = rep }, { .rep = rep } };
	uint32_t c, late = 0;
	int n, err = 0;

	rep->last = s->g->rank;
	while (!(d[0].ended && d[1].ended && d[2].ended && d[3].ended)) {
		x = mix(x + 1);
		c = (uint32_t)x % 4;
		if (test_now_ns() > deadline)
			return -ETIMEDOUT;
		if (d[c].looks && wrong_bytes(&d[c].held))
			rep->sum += 1000;
		d[c].looks = 0;
		if (x >> 8 & 7) {
			err = kvr_channels_take(s->c, CH + c, late > 64 ? test_deadline_ms(2) : 0,
						&d[c].held);
			d[c].looks = !err && d[c].held.tag != TAG_END;
			if (!err)
				read_one(&d[c], &d[c].held);
		} else {
			n = kvr_channels_drain(s->c, CH + c, read_one, &d[c]);
			err = n > 0 ? 0 : n ? n : -EAGAIN;
		}
		late = err ? late + 1 : 0;
		if (err && err != -EAGAIN && err != -ETIMEDOUT)
			return err;
	}
	return 0;
}

#define LOOKER 8u /* whose report is the inspector's */

/* Looks while they work: what counts as not taken has its own bytes. */
static pid_t start_looker(void)
{
	struct report *rep = &reports[LOOKER];
	struct kvr_inspect_message m[16];
	struct kvr_inspect *in;
	pid_t pid = fork();

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (kvr_inspect_open_name(NULL, name, &in))
		_exit(99);
	for (uint32_t i = 0; *go == 0; i++) {
		uint32_t channel = CH + i % 4;
		int n = kvr_inspect_messages(in, channel, i / 4 % ranks_, m, 16);

		if (n < 0)
			_exit(98);
		while (n--) {
			struct kvr_message as = { .channel = channel,
						  .number = m[n].number,
						  .data = m[n].payload,
						  .len = m[n].len < 64 ? m[n].len : 64 };

			if (m[n].read || m[n].tag == TAG_END)
				continue;
			rep->seen += m[n].bulk == 1;
			rep->sum += wrong_bytes(&as) ||
				    m[n].len != len_of(channel, as.number, 4096);
		}
	}
	kvr_inspect_close(in);
	_exit(0);
}

static void await_ranks(uint32_t ranks)
{
	for (uint32_t k = 0; k < ranks; k++)
		while (!kvr_load_acquire32(&kvr_group_rank_page(l.g, k)->proc.state))
			test_sleep_ms(1);
}

/* Thousands of messages through an area that takes a few: it is full most of the time. */
START_TEST(test_random_traffic_arrives_whole)
{
	uint64_t expected[4] = { 0 };
	pid_t pids[4], looker;

	seed = test_seed();
	ranks_ = (uint32_t)_i;
	test_name(name, sizeof name, "bulk");
	for (uint32_t k = 0; k < ranks_; k++)
		pids[k] = spawn(name, k, read_traffic);
	lead_named(ranks_, 1024, 16384);
	ck_assert_uint_eq(kvr_channels_max_payload(l.c), 4096);
	await_ranks(ranks_);
	looker = start_looker();
	for (uint32_t i = 0; i < TRAFFIC; i++) {
		uint32_t channel = CH + (uint32_t)mix(seed + i) % 4;
		uint64_t number = l.c->published[channel] + 1, set = set_of(channel, number);

		must(put(channel, set, len_of(channel, number, 4096), test_deadline_ms(30000)));
		for (uint32_t k = 0; k < ranks_; k++)
			expected[k] += set >> k & 1;
		if (i % 64 == 0) /* at times the ranks find nothing */
			test_sleep_ms(1);
	}
	for (uint32_t c = 0; c < 4; c++)
		must(kvr_channels_publish(l.c, CH + c, 0, TAG_END, NULL, NULL, 0,
					  test_deadline_ms(30000)));
	for (uint32_t k = 0; k < ranks_; k++)
		ck_assert_int_eq(test_reap(pids[k], 60000), 0);
	*go = 1;
	ck_assert_int_eq(test_reap(looker, 10000), 0);
	ck_assert_uint_gt(l.c->bulk.pos, 16384 * 50); /* many times round */
	leave(&l);
	printf("an inspector saw %llu that were not taken\n",
	       (unsigned long long)reports[LOOKER].seen);
	ck_assert_uint_eq(reports[LOOKER].sum, 0);
	for (uint32_t k = 0; k < ranks_; k++) {
		ck_assert_msg(!reports[k].err, "rank %u: %s", k, reports[k].why);
		ck_assert_uint_eq(reports[k].seen, expected[k]);
		ck_assert_msg(!reports[k].sum, "rank %u: %llu wrong messages", k,
			      (unsigned long long)reports[k].sum);
	}
}
END_TEST

static int die(struct side *s, struct report *rep)
{
	struct kvr_message m;

	if (kvr_channels_take(s->c, CH, test_deadline_ms(10000), &m))
		return -EIO;
	rep->seen = 1;
	await_go(1);
	raise(SIGKILL);
	return 0;
}

START_TEST(test_death_of_a_rank_that_holds_room_ends_the_wait)
{
	pid_t pid;

	test_name(name, sizeof name, "bulk");
	pid = spawn(name, 0, die);
	lead_named(1, RING, BULK);
	await_ranks(1);
	for (int i = 0; i < 4; i++)
		must(put(CH, 0, LARGEST, 0));
	for (uint64_t end = test_deadline_ms(10000); !reports[0].seen && test_now_ns() < end;)
		test_sleep_ms(1);
	ck_assert_int_eq(put(CH + 1, 0, LARGEST, 0), -EAGAIN);
	*go = 1;
	ck_assert_int_eq(put(CH + 1, 0, LARGEST, test_deadline_ms(20000)), -EOWNERDEAD);
	explained(kvr_explain(), "rank 0", "dead", NULL);
	ck_assert_int_eq(WTERMSIG(test_reap(pid, 5000)), SIGKILL);
	leave(&l);
	remove_group(name);
}
END_TEST

static enum kvr_point kill_at;
static uint32_t kill_arg, passed;

static void hook(enum kvr_point point, uint32_t arg)
{
	if (point == kill_at && arg == kill_arg && ++passed > 20)
		raise(SIGKILL);
}

static void lead_and_die(void)
{
	kvr_point_hook = hook;
	for (uint32_t i = 0; i < 1000; i++)
		if (put(CH, 0, SMALL_MAX + 1 + i * 97 % 9000, test_deadline_ms(10000)))
			_exit(98);
	_exit(97);
}

static int take_bulk(struct side *s, struct report *rep)
{
	struct kvr_message m;
	int err;

	while (!(err = kvr_channels_take(s->c, CH, test_deadline_ms(10000), &m))) {
		tell(rep, &m);
		if (wrong_bytes(&m) || m.len <= SMALL_MAX)
			return -EIO;
	}
	return err;
}

static void kill_leader_at(enum kvr_point point, uint32_t arg, uint64_t expected)
{
	pid_t pids[RANKS], leader;

	memset(reports, 0, RANKS * sizeof *reports);
	kill_at = point;
	kill_arg = arg;
	test_name(name, sizeof name, "bulk");
	for (uint32_t k = 0; k < RANKS; k++)
		pids[k] = spawn(name, k, take_bulk);
	leader = fork();
	if (!leader) {
		if (lead_all(name, RANKS, &l))
			_exit(99);
		lead_and_die();
	}
	ck_assert_int_eq(WTERMSIG(test_reap(leader, 10000)), SIGKILL);
	reap(pids, RANKS);
	for (uint32_t k = 0; k < RANKS; k++) {
		ck_assert_msg(reports[k].seen == expected, "%s %u: rank %u saw %llu, expected %llu",
			      kvr_point_name(point), arg, k, (unsigned long long)reports[k].seen,
			      (unsigned long long)expected);
		ck_assert_uint_eq(reports[k].sum, reports[0].sum);
		ck_assert_int_eq(reports[k].err, -EOWNERDEAD);
	}
	remove_group(name);
}

START_TEST(test_leader_killed_in_a_large_publish_leaves_equal_histories)
{
	kill_leader_at(KVR_POINT_bulk_copied, CH, 20);
	for (uint32_t k = 0; k < RANKS; k++)
		kill_leader_at(KVR_POINT_publish_copied, k, 20);
	kill_leader_at(KVR_POINT_publish_committed, CH, 20);
	kill_leader_at(KVR_POINT_publish_marked, CH, 21);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("channel_bulk");
	TCase *t = tcase_create("bulk");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, test_sizes_around_the_limits, 1, 5);
	tcase_add_test(t, test_bulk_area_smaller_than_the_ring);
	tcase_add_test(t, test_room_comes_back_in_order);
	tcase_add_test(t, test_end_of_the_area_is_left_out);
	tcase_add_test(t, test_rank_that_fills_the_bulk_area_is_named);
	tcase_add_test(t, test_leader_that_waits_is_woken);
	tcase_add_test(t, test_all_or_none);
	tcase_add_test(t, test_many_small_extents_are_bounded);
	tcase_add_test(t, test_rank_that_left_holds_no_room);
	suite_add_tcase(s, t);
	t = tcase_create("processes");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, test_random_traffic_arrives_whole, 1, 5);
	tcase_add_test(t, test_death_of_a_rank_that_holds_room_ends_the_wait);
	tcase_add_test(t, test_leader_killed_in_a_large_publish_leaves_equal_histories);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
