/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large messages as a rank meets them: every way to take one, what is kept and what is forgotten,
 * messages that name what no leader names, and how inspectors see them.
 */
#include <sys/wait.h>

#include "bulk_sides.h"
#include "kvring/inspect.h"

static int take_as(struct side *s, uint32_t channel, uint64_t id, struct kvr_message *m)
{
	struct kvr_request request = { .id = id };

	return kvr_channels_take_for(s->c, channel, KVR_TAG_USER, &request, 0, m);
}

static void check(const struct kvr_message *m, uint64_t number, uint32_t len)
{
	ck_assert_uint_eq(m->number, number);
	ck_assert_uint_eq(m->len, len);
	ck_assert_uint_eq(wrong_bytes(m), 0);
}

static uint64_t told[16]; /* numbers that a callback was told of */
static uint32_t told_count;

static void dropped(void *arg, const struct kvr_message *m)
{
	*(uint32_t *)arg += wrong_bytes(m) + (m->request.id != m->number);
	told[told_count++ % 16] = m->number;
}

static void drained(void *arg, const struct kvr_message *m)
{
	check(m, ++*(uint64_t *)arg, LARGEST);
}

START_TEST(test_every_way_to_take)
{
	struct kvr_message m;
	uint64_t last = 5;

	open_sides(1, BULK);
	for (int i = 0; i < 4; i++)
		must(put(CH, 0, LARGEST, 0));
	ck_assert_int_eq(kvr_channels_expect(r[0].c, CH, KVR_TAG_USER + 1, 0, &m), -EPROTO);
	explained(kvr_explain(), "message 1 carries", NULL);
	must(kvr_channels_expect(r[0].c, CH, KVR_TAG_USER, 0, &m)); /* it stayed */
	check(&m, 1, LARGEST);
	must(take_as(&r[0], CH, 3, &m)); /* the second goes to the stash, the third is in place */
	check(&m, 3, LARGEST);
	ck_assert((const uint8_t *)m.data >= area(&r[0]) &&
		  (const uint8_t *)m.data < area(&r[0]) + BULK);
	must(take_as(&r[0], CH, 2, &m));
	check(&m, 2, LARGEST);
	must(put(CH, 0, LARGEST, 0));
	must(put(CH, 0, LARGEST, 0));
	must(put(CH, 0, LARGEST, 0)); /* what is stashed holds no room of the leader's */
	check(&m, 2, LARGEST);
	must(take_as(&r[0], CH, 5, &m));
	must(take_as(&r[0], CH, 4, &m));
	check(&m, 4, LARGEST);
	ck_assert_int_eq(kvr_channels_drain(r[0].c, CH, drained, &last), 2);
	ck_assert_uint_eq(last, 7);
	ck_assert_uint_eq(r[0].g->proc->expired, 0);
	close_sides(1);
}
END_TEST

/* The messages of the stash of that channel. */
static uint32_t stashed(void)
{
	return r[0].c->inbox[CH].stash.count;
}

static uint64_t memory(void)
{
	const struct kvr_stash *s = &r[0].c->inbox[CH].stash;
	uint64_t sum = 0;

	for (uint32_t i = 0; s->entries && i < KVR_STASH; i++) {
		sum += s->entries[i].room;
		/* What held a large one is not kept for the next. */
		ck_assert(s->entries[i].used || s->entries[i].room <= SMALL_MAX);
	}
	return sum;
}

START_TEST(test_stash_has_a_bound_in_bytes)
{
	uint32_t wrong = 0;
	struct kvr_message m;

	/* 64 of a ring's limit are more than four of the largest. */
	open_sides(1, BULK);
	kvr_channels_on_drop(r[0].c, dropped, &wrong);
	for (uint32_t i = 1; i <= KVR_STASH; i++) {
		must(put(CH, 0, SMALL_MAX, 0));
		ck_assert_int_eq(take_as(&r[0], CH, 9999, &m), -EAGAIN);
	}
	ck_assert_uint_eq(r[0].g->proc->expired, 0);
	ck_assert_uint_eq(memory(), KVR_STASH * SMALL_MAX);
	must(put(CH, 0, LARGEST, 0)); /* the oldest go, as many as it takes */
	ck_assert_int_eq(take_as(&r[0], CH, 9999, &m), -EAGAIN);
	ck_assert_uint_eq(r[0].g->proc->expired, told_count);
	ck_assert_uint_eq(told_count, (LARGEST + SMALL_MAX - 1) / SMALL_MAX);
	for (uint32_t i = 0; i < told_count; i++)
		ck_assert_uint_eq(told[i], i + 1);
	for (uint32_t i = 0; i < 40; i++) {
		must(put(CH, 0, LARGEST, 0));
		ck_assert_int_eq(take_as(&r[0], CH, 9999, &m), -EAGAIN);
		ck_assert_uint_le(memory(), KVR_STASH * SMALL_MAX * 2);
	}
	ck_assert_uint_eq(stashed(), KVR_STASH * SMALL_MAX / LARGEST);
	ck_assert_int_eq(kvr_channels_forget_upto(r[0].c, CH, KVR_STASH + 40),
			 KVR_STASH * SMALL_MAX / LARGEST - 1);
	ck_assert_uint_eq(stashed(), 1);
	ck_assert_uint_le(memory(), KVR_STASH * SMALL_MAX + LARGEST);
	must(take_as(&r[0], CH, KVR_STASH + 41, &m));
	check(&m, KVR_STASH + 41, LARGEST);
	ck_assert_int_eq(take_as(&r[0], CH, KVR_STASH + 1, &m), -EAGAIN);
	ck_assert_uint_eq(wrong, 0);
	/* To forget is no reason for others to expire. */
	must(put(CH, 0, LARGEST, 0));
	must(put(CH, 0, LARGEST, 0));
	wrong = (uint32_t)r[0].g->proc->expired;
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(kvr_channels_forget(r[0].c, CH, &(struct kvr_request){ .id = 7 }),
				 0);
	ck_assert_uint_eq(r[0].g->proc->expired, wrong);
	must(take_as(&r[0], CH, KVR_STASH + 42, &m));
	check(&m, KVR_STASH + 42, LARGEST);
	close_sides(1);
}
END_TEST

START_TEST(test_forget_upto_drops_what_was_published_before)
{
	static const uint32_t lens[] = { 5, LARGEST, 0, SMALL_MAX + 1, 4096, 9, LARGEST, 1 };
	uint32_t wrong = 0;
	struct kvr_message m;

	open_sides(2, 2 * BULK);
	kvr_channels_on_drop(r[0].c, dropped, &wrong);
	ck_assert_int_eq(kvr_channels_forget_upto(r[0].c, CH, 99), 0);
	for (uint32_t i = 0; i < 8; i++)
		must(put(CH, i == 2 ? 2 : 0, lens[i], 0));
	must(put(CH + 1, 0, 4, 0));
	must(take_as(&r[0], CH, 4, &m)); /* 1 and 2 are stashed, 3 is not for this rank */
	ck_assert_uint_eq(stashed(), 2);
	ck_assert_int_eq(kvr_channels_forget_upto(r[0].c, CH, 0), 0);
	ck_assert_int_eq(kvr_channels_forget_upto(r[0].c, CH, 1), 1);
	ck_assert_int_eq(kvr_channels_forget_upto(r[0].c, CH, 6), 3);
	ck_assert_int_eq(kvr_channels_forget_upto(r[0].c, CH, 6), 0);
	ck_assert_uint_eq(told_count, 4);
	ck_assert(told[0] == 1 && told[1] == 2 && told[2] == 5 && told[3] == 6);
	ck_assert_uint_eq(wrong, 0);
	ck_assert_uint_eq(kvr_group_own_page(r[0].g)->taken[CH], 5);
	get(&r[0], CH, 7, LARGEST);
	ck_assert_int_eq(kvr_channels_forget_upto(r[0].c, CH, UINT64_MAX), 1);
	ck_assert_int_eq(kvr_channels_take(r[0].c, CH, 0, &m), -EAGAIN);
	kvr_channels_on_drop(r[0].c, NULL, NULL);
	must(put(CH, 0, LARGEST, 0));
	ck_assert_int_eq(kvr_channels_forget_upto(r[0].c, CH, 9), 1);
	ck_assert_uint_eq(r[0].g->proc->expired, 0);
	get(&r[0], CH + 1, 1, 4); /* of that channel alone */
	ck_assert_int_eq(kvr_channels_forget_upto(r[0].c, KVR_CHANNELS, 1), -EINVAL);
	ck_assert_int_eq(kvr_channels_forget_upto(l.c, CH, 1), -EINVAL);
	close_sides(2);
}
END_TEST

/* --- bytes that no leader writes -------------------------------------------------------------- */

/* Message `n` in the ring of a rank, writable. */
static uint64_t *cell(uint32_t rank, uint64_t n)
{
	uint8_t *ring = l.g->own + (kvr_layout_ring(&l.g->layout, CH, rank) - l.g->layout.leader);

	return (uint64_t *)(void *)(ring + KVR_RING_CTL + n * KVR_RING_CELL);
}

/* The channel says the same for ever, the others go on. */
static void stays_broken(void)
{
	struct kvr_message m;
	char first[1536];

	snprintf(first, sizeof first, "%s", kvr_explain());
	ck_assert_int_eq(kvr_channels_take(r[0].c, CH, 0, &m), -EBADMSG);
	ck_assert_str_eq(kvr_explain(), first);
	ck_assert_int_eq(kvr_channels_take(r[0].c, CH, test_deadline_ms(60000), &m), -EBADMSG);
	ck_assert_int_eq(kvr_channels_forget_upto(r[0].c, CH, 99), -EBADMSG);
	ck_assert_int_eq(take_as(&r[0], CH, 1, &m), -EBADMSG);
	ck_assert_str_eq(kvr_explain(), first);
	ck_assert_uint_eq(r[0].c->inbox[CH].reader.pos, r[0].c->inbox[CH].reader.released);
	get(&r[1], CH, 1, 4096);
	get(&r[1], CH, 2, 4096);
	must(put(CH + 1, 0, 4096, 0));
	get(&r[0], CH + 1, 1, 4096);
	get(&r[1], CH + 1, 1, 4096);
}

START_TEST(test_impossible_place_is_named)
{
	static const struct {
		uint64_t offset;
		uint32_t len;
	} bad[] = {
		{ 0, 1 },
		{ 0, SMALL_MAX },
		{ 0, LARGEST + 1 },
		{ 0, BULK },
		{ 0, UINT32_MAX },
		{ 1, 4096 },
		{ 32, 4096 },
		{ BULK - 4096 + 64, 4096 },
		{ BULK - 4096 + 64, 4033 },
		{ BULK, 4096 },
		{ 1ull << 32, 4096 },
		{ 0 - 64ull, 4096 },
		{ 0 - 4096ull, 4096 },
	};
	char text[64];
	struct kvr_message m;
	uint64_t *c, right[2];

	open_sides(2, BULK);
	must(put(CH, 0, 4096, 0));
	must(put(CH, 0, 4096, 0));
	get(&r[0], CH, 1, 4096);
	c = cell(0, 1);
	right[0] = c[5], right[1] = c[6];
	ck_assert_uint_eq(right[0] >> 32, 4096);
	ck_assert_uint_eq(right[1], 4096);
	if (_i == KVR_ARRAY_LEN(bad)) { /* the last place there is: good */
		c[6] = BULK - 4096;
		must(kvr_channels_take(r[0].c, CH, 0, &m));
		ck_assert_ptr_eq(m.data, area(&r[0]) + BULK - 4096);
		ck_assert_uint_eq(m.len, 4096);
		close_sides(2);
		return;
	}
	c[5] = (uint64_t)bad[_i].len << 32;
	c[6] = bad[_i].offset;
	ck_assert_int_eq(kvr_channels_take(r[0].c, CH, 0, &m), -EBADMSG);
	snprintf(text, sizeof text, "%u bytes at %llu of the bulk area; it has 65536", bad[_i].len,
		 (unsigned long long)bad[_i].offset);
	explained(kvr_explain(), "rank 0, channel USER0: after message 1:", "number 2", text,
		  "2001 to 16384", "the segment was overwritten", NULL);
	c[5] = right[0];
	c[6] = right[1];
	stays_broken();
	close_sides(2);
}
END_TEST

/* A head that says "in the bulk area" in front of anything but the place. */
START_TEST(test_message_that_names_no_place_is_named)
{
	struct {
		struct kvr_msg_head head;
		uint64_t offset[2];
	} bad = { .head = { .number = 1, .bulk = 4096 } };
	static const uint32_t lens[] = { 0, 7, 9, 16 };
	struct kvr_message m;

	open_sides(2, BULK);
	must(put(CH, 2, 4096, 0)); /* so that there is a message 1, of another rank */
	must(kvr_ring_write(&l.c->writer[CH * 2], KVR_TAG_USER, &bad,
			    (uint32_t)sizeof bad.head + lens[_i]));
	if (_i % 2)
		ck_assert_int_eq(kvr_channels_forget_upto(r[0].c, CH, 1), -EBADMSG);
	else
		ck_assert_int_eq(take_as(&r[0], CH, 1, &m), -EBADMSG);
	explained(kvr_explain(), "rank 0, channel USER0", "in the ring that say: 4096 bytes", NULL);
	must(put(CH, 2, 4096, 0));
	stays_broken();
	close_sides(2);
}
END_TEST

/* Above the watermark nothing is there, whatever it says. */
START_TEST(test_place_of_a_message_that_is_not_there_yet)
{
	struct {
		struct kvr_msg_head head;
		uint64_t offset;
	} early = { .head = { .number = 1, .bulk = UINT32_MAX }, .offset = 77 };
	struct kvr_message m;

	open_sides(1, BULK);
	must(kvr_ring_write(&l.c->writer[CH], KVR_TAG_USER, &early, sizeof early));
	ck_assert_int_eq(kvr_channels_take(r[0].c, CH, 0, &m), -EAGAIN);
	ck_assert_int_eq(kvr_channels_forget_upto(r[0].c, CH, 1), 0);
	close_sides(1);
}
END_TEST

START_TEST(test_lost_message_is_not_forgotten)
{
	open_sides(1, BULK);
	must(put(CH, 0, 4096, 0));
	must(put(CH, 0, 4096, 0));
	*cell(0, 1) ^= 1ull << 40;
	ck_assert_int_eq(kvr_channels_forget_upto(r[0].c, CH, 2), -EBADMSG);
	explained(kvr_explain(), "after message 1", NULL);
	close_sides(1);
}
END_TEST

/* The payload is input: another one stands there, nothing else happens. */
START_TEST(test_overwritten_payload_is_the_callers_to_check)
{
	struct kvr_message m;

	open_sides(1, BULK);
	must(put(CH, 0, 4096, 0));
	memset(l.g->own + (l.g->layout.bulk - l.g->layout.leader), 0x5a, BULK);
	must(kvr_channels_take(r[0].c, CH, 0, &m));
	ck_assert_uint_eq(m.len, 4096);
	ck_assert_uint_eq(((const uint8_t *)m.data)[4095], 0x5a);
	close_sides(1);
}
END_TEST

/* A cursor that cannot be is as good as one that never moves: its room is lost, what is left goes
 * on. */
START_TEST(test_impossible_cursor_holds_its_room)
{
	open_sides(2, BULK);
	must(put(CH, 0, LARGEST, 0));
	kvr_group_own_page(r[1].g)->cursor[CH][0] = 1ull << 50;
	for (uint32_t i = 1; i <= 3; i++) {
		must(put(CH + 1, 1, LARGEST, 0));
		get(&r[0], CH + 1, i, LARGEST);
	}
	ck_assert_int_eq(put(CH + 1, 1, LARGEST, 0), -EAGAIN); /* rank 0 has it, too */
	get(&r[0], CH, 1, LARGEST);
	give_back(&r[0], CH);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(put(CH + 1, 1, LARGEST, 0), -EBADMSG);
		explained(kvr_explain(), "rank 1, channel USER0, bulk area",
			  "cursor is at cell 1125899906842624", NULL);
		kvr_group_own_page(r[1].g)->cursor[CH][0] = 0;
	}
	ck_assert_int_eq(put(CH + 1, 1, LARGEST, test_deadline_ms(50)), -EBADMSG);
	must(put(CH + 1, 0, 100, 0));
	get(&r[0], CH + 1, 4, 100);
	leave(&r[1]);
	r[1].g = NULL;
	must(put(CH + 1, 0, LARGEST, 0));
	get(&r[0], CH + 1, 5, LARGEST);
	close_sides(2);
}
END_TEST

/* --- inspectors ------------------------------------------------------------------------------- */

static void look(int n, struct kvr_inspect_message *m)
{
	struct kvr_inspect *in;

	must(kvr_inspect_open_name(NULL, name, &in));
	ck_assert_int_eq(kvr_inspect_messages(in, CH, 0, m, 8), n);
	kvr_inspect_close(in);
}

START_TEST(test_inspector_sees_them_whole)
{
	struct kvr_inspect_message m[8];

	open_sides(2, BULK);
	must(put(CH, 0, 8, 0));
	must(put(CH, 0, LARGEST, 0));
	must(put(CH, 0, SMALL_MAX + 1, 0));
	get(&r[0], CH, 1, 8);
	get(&r[0], CH, 2, LARGEST);
	look(3, m);
	for (uint32_t i = 0; i < 3; i++) {
		uint32_t shown = i ? 64 : 8;

		ck_assert_uint_eq(m[i].len, i == 0 ? 8 : i == 1 ? LARGEST : SMALL_MAX + 1);
		ck_assert_int_eq(m[i].bulk, i > 0);
		ck_assert_int_eq(m[i].read, i < 2);
		bytes_of(CH, i + 1, 64);
		ck_assert_mem_eq(m[i].payload, buffer, shown);
	}
	/* No place: what the ring holds is shown. */
	cell(0, 2)[6] = BULK - SMALL_MAX;
	look(3, m);
	ck_assert_int_eq(m[2].bulk, -1);
	ck_assert_uint_eq(m[2].len, 8);
	ck_assert_mem_eq(m[2].payload, &(uint64_t){ BULK - SMALL_MAX }, 8);
	cell(0, 2)[6] = 0 - 64ull;
	cell(0, 1)[5] = ~0ull;
	look(3, m);
	ck_assert(m[2].bulk == -1 && m[1].bulk == -1 && !m[0].bulk);
	close_sides(2);
}
END_TEST

START_TEST(test_ring_dump_shows_them)
{
	char tool[4096], command[4300], text[8192], data[40], bytes[32];
	size_t used;
	FILE *out;

	test_tool(tool, sizeof tool, "ring-dump");
	open_sides(2, BULK);
	must(put(CH, 0, 12345, 0));
	for (int i = 0; i < 16; i++)
		snprintf(data + 2 * i, 3, "%02x", buffer[i]);
	for (int json = 0; json < 2; json++) {
		snprintf(command, sizeof command, "'%s' %s %s 2>&1", tool, json ? "--json" : "",
			 name);
		out = popen(command, "r");
		ck_assert_ptr_nonnull(out);
		used = fread(text, 1, sizeof text - 1, out);
		text[used] = 0;
		ck_assert_int_eq(pclose(out), 0);
		snprintf(bytes, sizeof bytes, json ? "\"bytes\":12345," : " 12345 ");
		explained(text, "USER0", bytes, data, NULL);
	}
	close_sides(2);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("channel_bulk_take");
	TCase *t = tcase_create("bulk_take");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, test_every_way_to_take);
	tcase_add_test(t, test_stash_has_a_bound_in_bytes);
	tcase_add_test(t, test_forget_upto_drops_what_was_published_before);
	tcase_add_loop_test(t, test_impossible_place_is_named, 0, 14);
	tcase_add_loop_test(t, test_message_that_names_no_place_is_named, 0, 4);
	tcase_add_test(t, test_place_of_a_message_that_is_not_there_yet);
	tcase_add_test(t, test_lost_message_is_not_forgotten);
	tcase_add_test(t, test_overwritten_payload_is_the_callers_to_check);
	tcase_add_test(t, test_impossible_cursor_holds_its_room);
	tcase_add_test(t, test_inspector_sees_them_whole);
	tcase_add_test(t, test_ring_dump_shows_them);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
