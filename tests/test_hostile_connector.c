/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Somebody writes to the segment of a connector who should not. Each number that a rank reads of
 * the leader, and the leader of a rank, is overwritten in turn: the call that meets it names it,
 * keeps to what it said first, and the others go on. Leader and both ranks are handles of one
 * process.
 */
#include "cluster.h"

#include <stddef.h>
#include <sys/mman.h>

#include "channel_priv.h"
#include "connector_priv.h"
#include "point.h"
#include "shm.h"

#define RANKS 2u
#define N 3u /* keys of a request */

static struct cluster cl;
static struct kvr_connector *lead, *rank[RANKS];
static uint8_t *wild;
static size_t wild_bytes;
static struct kvr_key keys[64];
static uint64_t next_id;

static void ok(int err)
{
	if (err < 0)
		ck_abort_msg("%d: %s", err, kvr_explain());
}

static void says(const char *text)
{
	ck_assert_msg(strstr(kvr_explain(), text), "\"%s\" is not in: %s", text, kvr_explain());
}

static void setup(void)
{
	char path[KVR_SHM_PATH];
	int fd;

	cluster_init(&cl, RANKS, 0, 16, 0);
	ok(kvr_connector_lead(cl.name, &cl.opts, &lead));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_join(cl.name, r, NULL, SOON, &rank[r]));
	ok(kvr_shm_path(path, sizeof path, NULL, cl.name, KVR_SHM_SEGMENT, 0));
	fd = open(path, O_RDWR | O_CLOEXEC);
	wild_bytes = lead->group->layout.total;
	wild = mmap(NULL, wild_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(wild, MAP_FAILED);
	close(fd);
	cluster_keys(1, keys, 64);
}

static void teardown(void)
{
	for (uint32_t r = 0; r < RANKS; r++)
		kvr_connector_close(rank[r]);
	kvr_connector_close(lead);
	kvr_group_remove(cl.name, NULL);
	munmap(wild, wild_bytes);
	cluster_exit(&cl);
}

static struct kvr_op_entry *entry_at(uint32_t entry)
{
	return (struct kvr_op_entry *)(void *)(wild + lead->group->layout.leader_ops) + entry;
}

static struct kvr_ack_entry *ack_at(uint32_t r, uint32_t entry)
{
	const struct kvr_layout *l = &lead->group->layout;

	return (struct kvr_ack_entry *)(void *)(wild + kvr_layout_rank(l, r) + l->rank_acks) +
	       entry;
}

static struct kvr_leader_page *leader_page(void)
{
	return (struct kvr_leader_page *)(void *)(wild + lead->group->layout.leader);
}

/* The payload, behind its head, of the message in rank r's ring that starts in that cell. */
static uint8_t *message_at(uint32_t channel, uint32_t r, uint64_t cell)
{
	return wild + kvr_layout_ring(&lead->group->layout, channel, r) + KVR_RING_CTL +
	       cell * KVR_RING_CELL + KVR_RING_HEADER + sizeof(struct kvr_msg_head);
}

static uint64_t next_cell(uint32_t channel, uint32_t r)
{
	return lead->channels->writer[channel * RANKS + r].pos;
}

static void put32(uint8_t *at, uint32_t v)
{
	memcpy(at, &v, sizeof v);
}

/* The leader's begin; the rank's is next. The keys are the id's own. */
static struct kvr_request lead_store(void)
{
	struct kvr_request req = { .id = ++next_id };
	struct kvr_block blocks[N];
	uint32_t covered;
	int n;

	cluster_keys(1000 + req.id, keys, N);
	n = kvr_connector_store_begin(lead, &req, keys, N, SOON, blocks, N, &covered);
	ok(n);
	ck_assert_int_eq(n, N);
	return req;
}

static int rank_store(uint32_t r, const struct kvr_request *req)
{
	struct kvr_block blocks[N];
	uint32_t covered;
	int n = kvr_connector_store_begin(rank[r], req, keys, N, SOON, blocks, N, &covered);

	for (int i = 0; i < n; i++)
		cluster_fill(rank[r], &keys[blocks[i].index], &blocks[i]);
	return n < 0 ? n : kvr_connector_store_copied(rank[r], req, 0);
}

static uint32_t entry_of(const struct kvr_request *req)
{
	return kvr_rank_op_find(&rank[1]->known, req, KVR_OP_STORE)->entry;
}

static int done(uint32_t r, enum kvr_tick_mode mode, uint64_t tick, struct kvr_completion *c)
{
	return kvr_connector_check_completed(rank[r], mode, tick, SOON, c, 64, NULL);
}

static uint64_t lead_tick(void)
{
	struct kvr_completion c[64];
	uint64_t tick;

	ok(kvr_connector_check_completed(lead, KVR_NEXT, 0, SOON, c, 64, &tick));
	return tick;
}

/* A whole store, which all must bring to its end. */
static void others_go_on(void)
{
	struct kvr_request req = lead_store();

	for (uint32_t r = 0; r < RANKS; r++)
		ok(rank_store(r, &req));
	ok(kvr_connector_wait_store(lead, &req, KVR_STAGE_HOST, SOON));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_wait_store(rank[r], &req, KVR_STAGE_HOST, SOON));
}

/* --- answers ---------------------------------------------------------------------------------- */

#define ANSWER(field) offsetof(struct kvr_engine_answer, field)
#define BLOCK(i, field)                                                             \
	(sizeof(struct kvr_engine_answer) + (i) * sizeof(struct kvr_engine_block) + \
	 offsetof(struct kvr_engine_block, field))

static const struct {
	size_t at;
	uint32_t wrong;
	const char *says;
} answers[] = {
	{ ANSWER(status), 1, "its status is 1, -4095 to 0 is possible" },
	{ ANSWER(status), (uint32_t)-4096, "its status is -4096" },
	{ ANSWER(reason), 4, "its reason is 4, 0 to 3" },
	{ ANSWER(entry), 64, "its entry is 64, 0 to 63" },
	{ ANSWER(gen), 0, "its generation is 0, 1 to 4294967295" },
	{ ANSWER(covered), 0, "covered is 0, 1 to 3" },
	{ ANSWER(covered), 2, "number of blocks is 3, 0 to 2" },
	{ ANSWER(count), 2, "its length is 88, 72 to 72" },
	{ BLOCK(0, slot), 16, "its slot is 16, 0 to 15" },
	{ BLOCK(0, slot), 9, "slot for key 0 is 9, whose header page has another key" },
	{ BLOCK(1, index), 0, "its index is 0, 1 to 1" },
	{ BLOCK(2, index), 3, "its index is 3, 2 to 2" },
};

START_TEST(test_impossible_answer_is_named)
{
	uint64_t cell = next_cell(KVR_CH_STORE, 0);
	struct kvr_request req = lead_store();

	put32(message_at(KVR_CH_STORE, 0, cell) + answers[_i].at, answers[_i].wrong);
	ck_assert_int_eq(rank_store(0, &req), -EBADMSG);
	says("rank 0");
	says(answers[_i].says);
	ok(rank_store(1, &req));
	/* The leader counts on rank 0, which says that it will not come, if it knows of what. */
	if (answers[_i].at != ANSWER(entry) && answers[_i].at != ANSWER(gen)) {
		ck_assert_int_eq(kvr_connector_wait_store(lead, &req, KVR_STAGE_HOST, SOON),
				 -EBADMSG);
		ck_assert_int_eq(kvr_connector_wait_store(rank[1], &req, KVR_STAGE_HOST, SOON),
				 -EBADMSG);
	}
	others_go_on();
}
END_TEST

static const struct {
	struct kvr_wire_lookup w;
	const char *says;
} lookups[] = {
	{ { 0, 0, 0, 1, 0 }, "its status is 1" },
	{ { 0, 0, 0, -5000, 0 }, "its status is -5000" },
	{ { 2, 3, 0, 0, 0 }, "in host memory is 3, 0 to 2" },
	{ { 2, 1, 2, 0, 0 }, "on NVMe is 2, 1 to 1" },
	{ { 4, 4, 0, 0, 0 }, "a longer hit" },
};

START_TEST(test_impossible_hit_is_named)
{
	struct kvr_request req = { .id = 5 };
	struct kvr_wire_lookup w = lookups[_i].w;
	struct kvr_hit hit;

	w.keys = kvr_keys_sum(0, keys, N);
	ok(kvr_channels_publish(lead->channels, KVR_CH_LOOKUP, 1, KVR_TAG_LOOKUP_RESULT, &req, &w,
				sizeof w, SOON));
	ck_assert_int_eq(kvr_connector_lookup(rank[0], &req, keys, N, SOON, &hit), -EBADMSG);
	says(lookups[_i].says);
	others_go_on();
}
END_TEST

/* --- completions ------------------------------------------------------------------------------ */

static const struct kvr_wire_record good = {
	.id = 7, .kind = KVR_OP_STORE, .stage = KVR_STAGE_DONE, .blocks = 1, .entry = 3, .gen = 1
};

#define RECORD(field, value, text)                                                                \
	{                                                                                         \
		offsetof(struct kvr_wire_record, field), sizeof good.field, (uint32_t)value, text \
	}
static const struct {
	size_t at, size;
	uint32_t wrong;
	const char *says;
} records[] = {
	RECORD(kind, 0, "record's kind is 0, 1 to 5"),
	RECORD(kind, 6, "record's kind is 6, 1 to 5"),
	RECORD(stage, 0, "record's stage is 0, 1 to 10"),
	RECORD(stage, 11, "record's stage is 11, 1 to 10"),
	RECORD(status, 1, "record's status is 1, 0 to 0"),
	RECORD(status, -5, "record's status is -5, 0 to 0"),
	RECORD(stage, KVR_STAGE_FAILED, "record's status is 0, -4095 to -1"),
	RECORD(blocks, 1 << 30, "record's number of blocks is 1073741824"),
	RECORD(entry, 64, "record's entry is 64, 0 to 63"),
	RECORD(gen, 0, "record's generation is 0"),
};
#define RECORDS ((int)(sizeof records / sizeof records[0]))

static void publish_record(uint64_t tick, uint32_t count, const struct kvr_wire_record *r)
{
	uint8_t bytes[sizeof(struct kvr_wire_complete) + sizeof *r];
	struct kvr_wire_complete w = { tick, count, 0 };

	memcpy(bytes, &w, sizeof w);
	memcpy(bytes + sizeof w, r, sizeof *r);
	ok(kvr_channels_publish(lead->channels, KVR_CH_COMPLETE, 1, KVR_TAG_STORE_COMPLETE, NULL,
				bytes, sizeof bytes, SOON));
}

/* Completions are wrong for good on rank 0; rank 1, which had none of `before` yet, goes on. */
static void completions_stay_broken(int before)
{
	struct kvr_completion c[64];
	char first[1536];
	uint64_t tick;

	snprintf(first, sizeof first, "%s", kvr_explain());
	others_go_on();
	tick = lead_tick();
	ck_assert_int_eq(done(0, KVR_NOW, 0, c), -EBADMSG);
	ck_assert_str_eq(kvr_explain(), first);
	ck_assert_int_eq(done(0, KVR_TICK, tick, c), -EBADMSG);
	ck_assert_str_eq(kvr_explain(), first);
	ck_assert_int_eq(done(1, KVR_TICK, tick, c), before + 3); /* copied, host, done */
}

START_TEST(test_impossible_completion_is_named)
{
	struct kvr_wire_record r = good;
	struct kvr_completion c[64];

	rank[1]->channels->whole = 0; /* what follows it is told of alone is for rank 0 */
	if (_i < RECORDS)
		memcpy((uint8_t *)&r + records[_i].at, &records[_i].wrong, records[_i].size);
	publish_record(_i == RECORDS + 1 ? UINT64_MAX : 1, _i == RECORDS ? 2 : 1, &r);
	ck_assert_int_eq(done(0, KVR_NOW, 0, c), -EBADMSG);
	says("rank 0: message 1 of channel COMPLETE");
	says(_i < RECORDS    ? records[_i].says
	     : _i == RECORDS ? "its length and its count do not agree"
			     : "its tick is 18446744073709551615, 1 or more");
	completions_stay_broken(0);
}
END_TEST

/* One that is not there: without it a rank would have fewer than the others after the tick. */
START_TEST(test_lost_completion_is_named)
{
	struct kvr_completion c[64];
	uint64_t cell = next_cell(KVR_CH_COMPLETE, 0), tick;

	others_go_on();
	tick = lead_tick();
	*(uint64_t *)(void *)(message_at(KVR_CH_COMPLETE, 0, cell) - KVR_RING_HEADER -
			      sizeof(struct kvr_msg_head)) ^= 1ull << 50;
	ck_assert_int_eq(done(0, _i ? KVR_NOW : KVR_TICK, tick, c), -EBADMSG);
	says("rank 0, channel COMPLETE: after message 0:");
	says("message 0 must be at cell 0");
	ck_assert_int_eq(done(1, KVR_TICK, tick, c), 3);
	completions_stay_broken(0);
}
END_TEST

START_TEST(test_impossible_tick_is_named)
{
	struct kvr_completion c[64];
	uint64_t tick, *word = &leader_page()->tick_done;

	for (int i = 0; i < 5; i++) {
		tick = lead_tick();
		ok(done(0, KVR_TICK, tick, c));
		ok(done(1, KVR_TICK, tick, c));
	}
	*word = _i ? UINT64_MAX : 2;
	ck_assert_int_eq(done(0, KVR_NOW, 0, c), -EBADMSG);
	says("rank 0: tick_done of the leader's page is");
	says("and was 5");
	completions_stay_broken(0);
}
END_TEST

/* A tick that is not done yet, and its first completion. */
START_TEST(test_tick_that_was_not_is_found_out)
{
	struct kvr_completion c[64];

	ok(done(1, KVR_TICK, lead_tick(), c));
	leader_page()->tick_done = 1ull << 40;
	ck_assert_int_eq(done(0, KVR_NOW, 0, c), 0);
	leader_page()->tick_done = 1;
	others_go_on();
	lead_tick();
	ck_assert_int_eq(done(0, KVR_NOW, 0, c), -EBADMSG);
	says("rank 0: message 1 of channel COMPLETE: its tick is 2, 1099511627777 or more");
	says("tick_done of the leader's page was 1099511627776");
	completions_stay_broken(3);
}
END_TEST

START_TEST(test_end_that_was_not_announced)
{
	struct kvr_completion c[64];

	leader_page()->watermark[KVR_CH_CONTROL] = 4;
	leader_page()->ending = 1;
	ck_assert_int_eq(done(0, KVR_NEXT, 0, c), -EBADMSG);
	says("rank 0, channel CONTROL");
	says("watermark is 4");
	others_go_on();
}
END_TEST

/* --- words of operations ---------------------------------------------------------------------- */

static const struct {
	int gen;
	uint32_t stage, value;
	const char *says;
} words[] = {
	{ -1, KVR_STAGE_BEGUN, 0, "its generation is 1, 2 to 4294967295" },
	{ -2, KVR_STAGE_BEGUN, 0, "its generation is 0, 2 to 4294967295" },
	{ 0, KVR_STAGES, 0, "its stage is 11, 0 to 10" },
	{ 0, 255, 0, "its stage is 255, 0 to 10" },
	{ 0, KVR_STAGE_HOST, 1, "number of good blocks is 1, 0 to 0" },
	{ 0, KVR_STAGE_FAILED, 0, "its errno is 0, 1 to 4095" },
	{ 0, KVR_STAGE_LOST, 60000, "its errno is 60000, 1 to 4095" },
	{ 0, KVR_STAGE_FAILED, KVR_STAGE_FAILED << 16 | 5, "stage before the end is 8, 0 to 7" },
};

/* So that entries have a generation before this one. */
static void use_all_entries(void)
{
	for (uint32_t i = 0; i < 64; i++) {
		struct kvr_completion c[64];
		uint64_t tick;

		others_go_on();
		tick = lead_tick();
		ok(done(0, KVR_TICK, tick, c));
		ok(done(1, KVR_TICK, tick, c));
	}
}

START_TEST(test_impossible_word_of_an_operation_is_named)
{
	struct kvr_request req;
	uint64_t right, *word;
	char first[1536];

	use_all_entries();
	req = lead_store();
	ok(rank_store(1, &req));
	ok(kvr_connector_store_begin(rank[0], &req, keys, N, SOON, (struct kvr_block[N]){ 0 }, N,
				     &(uint32_t){ 0 }));
	word = &entry_at(entry_of(&req))->word;
	right = *word;
	*word = kvr_word(kvr_word_gen(right) + (uint32_t)words[_i].gen, words[_i].stage,
			 words[_i].value);
	ck_assert_int_eq(kvr_connector_wait_store(rank[0], &req, KVR_STAGE_HOST, SOON), -EBADMSG);
	says("rank 0: the store of request");
	says(words[_i].says);
	snprintf(first, sizeof first, "%s", kvr_explain());
	*word = right;
	ck_assert_int_eq(kvr_connector_wait_store(rank[0], &req, KVR_STAGE_HOST, SOON), -EBADMSG);
	ck_assert_str_eq(kvr_explain(), first);
	ok(kvr_connector_store_copied(rank[0], &req, 0));
	ok(kvr_connector_wait_store(rank[1], &req, KVR_STAGE_HOST, SOON));
	ok(kvr_connector_wait_store(lead, &req, KVR_STAGE_HOST, SOON));
	others_go_on();
}
END_TEST

/* Completions told of a later stage than the word does. */
START_TEST(test_word_behind_the_completions_is_named)
{
	struct kvr_request req = lead_store();
	struct kvr_completion c[64];
	uint64_t *word;

	ok(rank_store(0, &req));
	ok(rank_store(1, &req));
	ok(kvr_connector_wait_store(lead, &req, KVR_STAGE_HOST, SOON));
	ck_assert_int_eq(done(0, KVR_TICK, lead_tick(), c), 3);
	word = &entry_at(entry_of(&req))->word;
	*word = kvr_word(kvr_word_gen(*word), KVR_STAGE_BEGUN, 0);
	ck_assert_int_eq(kvr_connector_wait_store(rank[0], &req, KVR_STAGE_HOST, SOON), -EBADMSG);
	says("its stage is 1, 7 to 10 is possible");
	others_go_on();
}
END_TEST

/* --- words of ranks --------------------------------------------------------------------------- */

static const struct {
	uint32_t gen, code, value;
} acks[] = {
	{ 0, KVR_ACK_NONE, 0 },	      { 0, KVR_ACK_FAILED + 1, N },    { 0, 255, N },
	{ 0, KVR_ACK_COPIED, N + 1 }, { 0, KVR_ACK_COPIED, N - 1 },    { 0, KVR_ACK_VERIFIED, N },
	{ 0, KVR_ACK_DONE, 0 },	      { 0, KVR_ACK_FAILED, 0 },	       { 0, KVR_ACK_FAILED, 4096 },
	{ 1, KVR_ACK_COPIED, N },     { 1u << 31, KVR_ACK_COPIED, N },
};

START_TEST(test_impossible_word_of_a_rank_is_named)
{
	struct kvr_request req = lead_store(), second;
	struct kvr_ack_entry *ack;
	struct kvr_op_entry *entry;
	char text[160], first[1536];

	ok(rank_store(1, &req));
	entry = entry_at(entry_of(&req));
	ack = ack_at(0, entry_of(&req));
	ack->word =
		kvr_word(kvr_word_gen(entry->word) + acks[_i].gen, acks[_i].code, acks[_i].value);
	snprintf(text, sizeof text,
		 "rank 0's for entry %u, %#llx: generation %u, code %u, value %u.", entry_of(&req),
		 (unsigned long long)ack->word, kvr_word_gen(ack->word), acks[_i].code,
		 acks[_i].value);
	ck_assert_int_eq(kvr_connector_wait_store(lead, &req, KVR_STAGE_HOST, SOON), -EBADMSG);
	says(text);
	says("or 1 with code 2 and 3 blocks, or code 5 and an errno");
	snprintf(first, sizeof first, "%s", strstr(kvr_explain(), "the first impossible"));
	ack->word = 0;
	ck_assert_int_eq(kvr_connector_wait_store(rank[1], &req, KVR_STAGE_HOST, SOON), -EBADMSG);
	ck_assert_int_eq(rank_store(0, &req), 0); /* its answer comes too late */
	others_go_on();
	/* The evidence stays: also for one that fails later. */
	second = lead_store();
	ok(rank_store(1, &second));
	ack_at(0, entry_of(&second))->word = ~0ull;
	ck_assert_int_eq(kvr_connector_wait_store(lead, &second, KVR_STAGE_HOST, SOON), -EBADMSG);
	says(first);
}
END_TEST

/* A vote for more blocks than there are. */
START_TEST(test_impossible_vote_of_a_rank_is_named)
{
	struct kvr_request req = { .id = 900 };
	struct kvr_block blocks[N];
	struct kvr_rank_op *op;
	struct kvr_hit hit;

	others_go_on(); /* stores keys[0..N) */
	ok(kvr_connector_lookup(lead, &req, keys, N, SOON, &hit));
	ck_assert_uint_eq(hit.blocks, N);
	ck_assert_int_eq(kvr_connector_load_begin(lead, &req, N, SOON), N);
	for (uint32_t r = 0; r < RANKS; r++) {
		ok(kvr_connector_lookup(rank[r], &req, keys, N, SOON, &hit));
		ck_assert_int_eq(kvr_connector_load_begin(rank[r], &req, N, SOON), N);
	}
	op = kvr_rank_op_find(&rank[0]->known, &req, KVR_OP_LOAD);
	ack_at(0, op->entry)->word = kvr_word(op->gen, KVR_ACK_VERIFIED, N + 1);
	/* It counts as a failure, so no block is good on all; the others come to their end. */
	ck_assert_int_eq(kvr_connector_load_wait(rank[1], &req, keys, SOON, blocks, N), 0);
	ok(kvr_connector_load_done(rank[1], &req));
	ack_at(0, op->entry)->word = kvr_word(op->gen, KVR_ACK_DONE, 0);
	ck_assert_int_eq(kvr_connector_load_wait(lead, &req, NULL, SOON, blocks, N), 0);
	others_go_on();
}
END_TEST

/* What the leader does about a rank whose cursor cannot be: it is told, and ends the epoch. */
START_TEST(test_leader_may_end_the_epoch)
{
	struct kvr_rank_page *page = (void *)(wild + kvr_layout_rank(&lead->group->layout, 1));
	struct kvr_request req = { .id = 1 };
	struct kvr_hit hit;
	int err = 0;

	page->cursor[KVR_CH_LOOKUP][0] = ~0ull;
	for (uint32_t i = 0; i < 100000 && !err; i++) {
		req.id = i;
		err = kvr_connector_lookup(lead, &req, keys, N, SOON, &hit);
		if (!err)
			ok(kvr_connector_lookup(rank[0], &req, keys, N, SOON, &hit));
	}
	ck_assert_int_eq(err, -EBADMSG);
	says("rank 1, channel LOOKUP");
	says("cursor is at cell 18446744073709551615");
	ok(kvr_group_fail(lead->group, 1, -EBADMSG));
	ck_assert_int_eq(kvr_connector_lookup(rank[0], &req, keys, N, SOON, &hit), -EBADMSG);
	says("because of rank 1");
}
END_TEST

/* A rank that writes no shard does not look into header pages: they may be sealed meanwhile. */
START_TEST(test_page_that_is_sealed_is_not_another_key)
{
	const struct kvr_engine_block *b;
	struct kvr_slot_header *h;
	struct kvr_request req;

	cluster_init(&cl, RANKS, 1, 16, 0);
	ok(kvr_connector_lead(cl.name, &cl.opts, &lead));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_join(cl.name, r, NULL, SOON, &rank[r]));
	req = lead_store();
	b = lead->blocks;
	h = (void *)kvr_pool_image(&rank[0]->pool, b->slot);
	memset(&h->key, 0, sizeof h->key);
	ok(rank_store(1, &req));
	ck_assert_int_eq(rank_store(0, &req), -EBADMSG); /* it writes */
	for (uint32_t r = 0; r < RANKS; r++)
		kvr_connector_close(rank[r]);
	kvr_connector_close(lead);
	cluster_exit(&cl);
}
END_TEST

/* --- a leader that is stopped ----------------------------------------------------------------- */

static const enum kvr_point stops[] = { KVR_POINT_publish_reserved,  KVR_POINT_publish_copied,
					KVR_POINT_publish_committed, KVR_POINT_publish_marked,
					KVR_POINT_tick_published,    KVR_POINT_tick_done };
static enum kvr_point stop_at;

static void stop_there(enum kvr_point point, uint32_t arg)
{
	(void)arg;
	if (point != stop_at)
		return;
	kvr_point_hook = NULL;
	raise(SIGSTOP);
}

/* Stores, and is stopped in the tick that tells it. */
static void stopped_leader(struct cluster *cluster, struct kvr_connector *c, uint32_t r)
{
	struct kvr_completion told[64];
	struct kvr_key some[N];

	cluster_keys(1, some, N);
	cluster_store(c, 1, 0, some, N, r);
	kvr_point_hook = stop_there;
	MUST(kvr_connector_check_completed(c, KVR_NEXT, 0, SOON, told, 64, NULL) == 3);
	kvr_point_hook = NULL;
	cluster_shutdown(c);
	cluster->area->word[CLUSTER_LEAD][0] = 1;
}

/* Waits through back-stops, looks without waiting: there is nothing yet, or all of it. */
static void patient(struct cluster *cluster, struct kvr_connector *c, uint32_t r)
{
	struct kvr_completion told[64];
	struct kvr_key some[N];
	int n = 0, rc = 0;

	cluster_keys(1, some, N);
	cluster_store(c, 1, 0, some, N, r);
	while (n < 3) {
		rc = kvr_connector_check_completed(c, KVR_NEXT, 0, test_deadline_ms(150), told, 64,
						   NULL);
		MUST(rc >= 0 || rc == -ETIMEDOUT);
		n += rc > 0 ? rc : 0;
		__atomic_fetch_add(&cluster->area->word[r][0], 1, __ATOMIC_RELEASE);
		rc = kvr_connector_check_completed(c, KVR_NOW, 0, 0, told, 64, NULL);
		MUST(rc >= 0 || rc == -ETIMEDOUT);
		n += rc > 0 ? rc : 0;
	}
	cluster->area->word[r][0] = 1000;
	cluster_shutdown(c);
}

START_TEST(test_leader_stopped_in_a_tick_is_only_waited_for)
{
	uint64_t until = test_deadline_ms(15000);
	int status;

	cluster_init(&cl, RANKS, 0, 16, 0);
	stop_at = stops[_i];
	cluster_start(&cl, stopped_leader, patient);
	ck_assert_int_eq(waitpid(cl.leader, &status, WUNTRACED), cl.leader);
	ck_assert(WIFSTOPPED(status));
	for (uint32_t r = 0; r < RANKS; r++)
		while (__atomic_load_n(&cl.area->word[r][0], __ATOMIC_ACQUIRE) < 3 &&
		       test_now_ns() < until)
			test_sleep_ms(5);
	kill(cl.leader, SIGCONT);
	cluster_join(&cl, 0, 15000);
	ck_assert_uint_eq(cl.area->word[CLUSTER_LEAD][0], 1);
	cluster_exit(&cl);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("hostile_connector");
	TCase *t = tcase_create("words");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, test_impossible_answer_is_named, 0,
			    (int)(sizeof answers / sizeof answers[0]));
	tcase_add_loop_test(t, test_impossible_hit_is_named, 0,
			    (int)(sizeof lookups / sizeof lookups[0]));
	tcase_add_loop_test(t, test_impossible_completion_is_named, 0, RECORDS + 2);
	tcase_add_loop_test(t, test_lost_completion_is_named, 0, 2);
	tcase_add_loop_test(t, test_impossible_tick_is_named, 0, 2);
	tcase_add_test(t, test_tick_that_was_not_is_found_out);
	tcase_add_test(t, test_end_that_was_not_announced);
	tcase_add_loop_test(t, test_impossible_word_of_an_operation_is_named, 0,
			    (int)(sizeof words / sizeof words[0]));
	tcase_add_test(t, test_word_behind_the_completions_is_named);
	tcase_add_loop_test(t, test_impossible_word_of_a_rank_is_named, 0,
			    (int)(sizeof acks / sizeof acks[0]));
	tcase_add_test(t, test_impossible_vote_of_a_rank_is_named);
	tcase_add_test(t, test_leader_may_end_the_epoch);
	suite_add_tcase(s, t);
	t = tcase_create("others");
	tcase_add_test(t, test_page_that_is_sealed_is_not_another_key);
	tcase_add_loop_test(t, test_leader_stopped_in_a_tick_is_only_waited_for, 0, 6);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
