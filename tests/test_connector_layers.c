/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads by layers: nobody starts before all agreed, a layer can be used as soon as it is there, and
 * one bad segment on one rank ends it for all.
 */
#include "trio.h"

#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "engine_priv.h"

#define GROUPS 2u

static struct kvr_key keys[64];
static const struct kvr_request load = { .id = 5 };
static struct kvr_block blocks[N];

static void setup(void)
{
	trio_open(16, 32);
	cluster_keys(1, keys, 64);
	ck_assert_uint_eq(cl.shape.layer_groups, GROUPS);
	store_all(1, keys, N);
	end_of(1, KVR_KIND_STORE);
	ck_assert_uint_eq(lookup_all(load.id, keys, N), N);
}

/* Rank 1's call in a thread: rank 0's waits for it. */
static void *agree(void *arg)
{
	(void)arg;
	return (void *)(intptr_t)kvr_connector_load_begin_layers(rank[1], &load, N, SOON);
}

static void begin(void)
{
	pthread_t t;
	void *other;

	ck_assert_int_eq(kvr_connector_load_begin_layers(lead, &load, N, SOON), N);
	pthread_create(&t, NULL, agree, NULL);
	ck_assert_int_eq(kvr_connector_load_begin_layers(rank[0], &load, N, SOON), N);
	pthread_join(t, &other);
	ck_assert_int_eq((intptr_t)other, N);
}

static int layer(uint32_t r, uint32_t group, uint64_t deadline)
{
	return kvr_connector_load_wait_layer(rank[r], &load, keys, group, deadline, blocks, N);
}

static int whole(uint32_t r, uint64_t deadline)
{
	return kvr_connector_load_wait(rank[r], &load, keys, deadline, blocks, N);
}

static struct kvr_completion load_end(void)
{
	struct kvr_completion c = end_of(load.id, KVR_KIND_LOAD);

	await_word(&leader_page()->quarantined_ops, 0);
	return c;
}

START_TEST(test_all_layers_of_all_blocks)
{
	begin();
	for (uint32_t g = 0; g < GROUPS; g++)
		for (uint32_t r = 0; r < RANKS; r++) {
			ck_assert_int_eq(layer(r, g, SOON), N);
			for (uint32_t i = 0; i < N; i++)
				ck_assert_uint_eq(cluster_wrong(rank[r], &keys[i], &blocks[i]), 0);
		}
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert_int_eq(layer(r, 0, SOON), N); /* again */
		ck_assert_int_eq(whole(r, SOON), N);
		ok(kvr_connector_load_done(rank[r], &load));
	}
	ck_assert_uint_eq(load_end().stage, KVR_STAGE_DONE);
}
END_TEST

START_TEST(test_layers_may_be_skipped)
{
	begin();
	ck_assert_int_eq(layer(0, GROUPS - 1, SOON), N);
	ck_assert_int_eq(whole(1, SOON), N); /* without any layer */
	ck_assert_int_eq(whole(0, SOON), N);
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_load_done(rank[r], &load));
	ck_assert_uint_eq(load_end().stage, KVR_STAGE_DONE);
}
END_TEST

/* Everything else into the pool, so that keys[0..N) are only on the store. */
static void evict(void)
{
	ok(kvr_connector_release(lead, &load));
	for (uint64_t id = 10; id < 14; id++) {
		store_all(id, keys + id * 4, 4);
		end_of(id, KVR_KIND_STORE);
	}
	ck_assert_uint_eq(lookup_all(load.id, keys, N), N);
}

/* In one part a block, and in as many as there are layers. */
START_TEST(test_blocks_from_the_store)
{
	if (_i)
		lead->engine->part_bytes = 4096;
	evict();
	begin();
	for (uint32_t r = 0; r < RANKS; r++)
		for (uint32_t g = 0; g < GROUPS; g++)
			ck_assert_int_eq(layer(r, g, SOON), N);
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert_int_eq(whole(r, SOON), N);
		for (uint32_t i = 0; i < N; i++)
			ck_assert_uint_eq(cluster_wrong(rank[r], &keys[i], &blocks[i]), 0);
		ok(kvr_connector_load_done(rank[r], &load));
	}
	ck_assert_uint_eq(load_end().stage, KVR_STAGE_DONE);
}
END_TEST

/* Two loads of the same blocks: what the one does not finish, the other still needs. */
START_TEST(test_whole_load_of_the_same_blocks)
{
	struct kvr_request other = { .id = 6 };

	lead->engine->part_bytes = 4096;
	evict();
	if (_i) { /* the one by layers is never agreed to */
		ck_assert_int_eq(kvr_connector_load_begin_layers(lead, &load, N, SOON), N);
	} else {
		begin();
	}
	ck_assert_uint_eq(lookup_all(other.id, keys, N), N);
	ck_assert_int_eq(kvr_connector_load_begin(lead, &other, N, SOON), N);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_load_begin(rank[r], &other, N, SOON), N);
	ck_assert_int_eq(kvr_connector_abort(lead, &load), 1);
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_abort(rank[r], &load));
	await_host(other.id);
	ck_assert_int_eq(kvr_connector_load_wait(rank[0], &other, keys, kvr_deadline(5), blocks, N),
			 -ETIMEDOUT);
	for (uint32_t r = RANKS; r--;) {
		ck_assert_int_eq(kvr_connector_load_wait(rank[r], &other, keys, SOON, blocks, N),
				 N);
		for (uint32_t i = 0; i < N; i++)
			ck_assert_uint_eq(cluster_wrong(rank[r], &keys[i], &blocks[i]), 0);
	}
}
END_TEST

/* Of the block's slot in the store's file, behind everybody's back. */
static void turn_byte(const struct kvr_key *key, uint64_t offset)
{
	char path[300];
	struct stat st;
	uint32_t turned = 0;
	uint8_t *file;
	int fd;

	snprintf(path, sizeof path, "%s/kvring.store", cl.opts.store_paths[0]);
	fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fstat(fd, &st), 0);
	file = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(file, MAP_FAILED);
	close(fd);
	for (uint64_t at = 0; at + 4096 < (uint64_t)st.st_size; at += 4096)
		if (!memcmp(file + at + offsetof(struct kvr_slot_header, key), key, sizeof *key)) {
			file[at + offset] ^= 8;
			turned++;
		}
	ck_assert_uint_eq(turned, 1);
	ck_assert_int_eq(msync(file, (size_t)st.st_size, MS_SYNC), 0);
	munmap(file, (size_t)st.st_size);
}

/* Bytes that turned on the store: of the header page, which the read finds, or of the last layer.
 */
START_TEST(test_bad_bytes_on_the_store)
{
	struct kvr_engine *e = lead->engine;
	struct kvr_hit hit;

	e->part_bytes = 4096;
	evict();
	turn_byte(&keys[1], _i ? e->geo.header_bytes + e->geo.layer_bytes + 9 : 163);
	begin();
	for (uint32_t r = 0; r < RANKS; r++) {
		int err = layer(r, GROUPS - 1, SOON);

		if (err == N) /* the segment is the other rank's */
			err = whole(r, SOON);
		ck_assert_int_eq(err, -EBADMSG);
		ok(kvr_connector_load_done(rank[r], &load));
	}
	ck_assert_uint_eq(load_end().stage, KVR_STAGE_FAILED);
	ok(kvr_connector_lookup(lead, &(struct kvr_request){ .id = 77 }, keys, N, SOON, &hit));
	ck_assert_uint_eq(hit.blocks, 1);
	store_all(90, keys + 1, 2); /* and stored anew, it is found */
	ok(kvr_connector_lookup(lead, &(struct kvr_request){ .id = 78 }, keys, N, SOON, &hit));
	ck_assert_uint_eq(hit.blocks, N);
}
END_TEST

/* --- no agreement ----------------------------------------------------------------------------- */

START_TEST(test_rank_that_does_not_vote_until_its_deadline)
{
	struct kvr_completion c;

	ck_assert_int_eq(kvr_connector_load_begin_layers(lead, &load, N, SOON), N);
	ck_assert_int_eq(kvr_connector_load_begin_layers(rank[0], &load, N, kvr_deadline(30)),
			 -ETIMEDOUT);
	c = load_end();
	ck_assert_uint_eq(c.stage, KVR_STAGE_CANCELLED);
	ck_assert_int_eq(c.status, -ETIMEDOUT);
	ck_assert_int_eq(kvr_connector_load_begin_layers(rank[1], &load, N, SOON), -ETIMEDOUT);
	/* The block is as it was, and so is the pin. */
	ck_assert_int_eq(kvr_connector_load_begin(lead, &load, N, SOON), N);
}
END_TEST

START_TEST(test_vote_is_missing_at_the_leaders_deadline)
{
	ck_assert_int_eq(kvr_connector_load_begin_layers(lead, &load, N, kvr_deadline(50)), N);
	ck_assert_int_eq(kvr_connector_load_begin_layers(rank[0], &load, N, SOON), -ETIMEDOUT);
	must_say("ended as cancelled");
	ck_assert_uint_eq(load_end().stage, KVR_STAGE_CANCELLED);
}
END_TEST

START_TEST(test_whole_here_and_by_layers_there)
{
	ck_assert_int_eq(kvr_connector_load_begin_layers(lead, &load, N, SOON), N);
	ck_assert_int_eq(kvr_connector_load_begin(rank[1], &load, N, SOON), -EPROTO);
	must_say("is by layers in the leader, and whole here");
	ck_assert_int_eq(kvr_connector_load_begin_layers(rank[0], &load, N, SOON), -EPROTO);
	ck_assert_uint_eq(load_end().stage, KVR_STAGE_CANCELLED);
}
END_TEST

START_TEST(test_whole_load_has_no_layers)
{
	ck_assert_int_eq(kvr_connector_load_begin(lead, &load, N, SOON), N);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_load_begin(rank[r], &load, N, SOON), N);
	ck_assert_int_eq(layer(0, 0, SOON), -EINVAL);
	ck_assert_int_eq(layer(0, GROUPS, SOON), -EINVAL);
	ck_assert_int_eq(kvr_connector_load_wait_layer(lead, &load, keys, 0, SOON, blocks, N),
			 -EINVAL);
}
END_TEST

/* --- after the commit ------------------------------------------------------------------------- */

/* A byte of rank 1's part of the last block turns, before the first layer or between the two. */
START_TEST(test_bad_segment_ends_the_load_for_all)
{
	struct kvr_span spans[4];
	struct kvr_hit hit;
	uint8_t *byte;

	begin();
	ck_assert_int_eq(layer(0, 0, SOON), N);
	if (_i)
		ck_assert_int_eq(layer(1, 0, SOON), N);
	ck_assert_uint_eq(kvr_connector_spans(rank[1], 0, spans, 4), GROUPS);
	byte = blocks[N - 1].payload + spans[_i].offset + 7;
	*byte ^= 0x40;
	ck_assert_int_eq(layer(1, (uint32_t)_i, SOON), -EBADMSG);
	ck_assert_int_eq(whole(0, SOON), -EBADMSG);
	ck_assert_int_eq(layer(0, 1, SOON), -EBADMSG);
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_load_done(rank[r], &load));
	ck_assert_uint_eq(load_end().stage, KVR_STAGE_FAILED);
	/* The bad block is a miss; those before it are not. */
	ok(kvr_connector_lookup(lead, &(struct kvr_request){ .id = 77 }, keys, N, SOON, &hit));
	ck_assert_uint_eq(hit.blocks, N - 1);
}
END_TEST

/* A rank that is in the middle of its copies keeps the slots from being used. */
START_TEST(test_failure_waits_for_those_who_copy)
{
	begin();
	ck_assert_int_eq(layer(1, 0, SOON), N);
	*(blocks[0].payload) ^= 1; /* of rank 0's part */
	ck_assert_int_eq(layer(0, 0, SOON), -EBADMSG);
	ck_assert_uint_eq(end_of(load.id, KVR_KIND_LOAD).stage, KVR_STAGE_FAILED);
	await_word(&leader_page()->quarantined_ops, 1);
	ok(kvr_connector_load_done(rank[1], &load));
	await_word(&leader_page()->quarantined_ops, 0);
}
END_TEST

START_TEST(test_abort_between_layers)
{
	begin();
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(layer(r, 0, SOON), N);
	ck_assert_int_eq(kvr_connector_abort(lead, &load), 1);
	ck_assert_uint_eq(end_of(load.id, KVR_KIND_LOAD).stage, KVR_STAGE_CANCELLED);
	await_word(&leader_page()->quarantined_slots, N);
	ck_assert_int_eq(layer(0, 1, SOON), -ECANCELED);
	ok(kvr_connector_abort(rank[1], &load));
	await_word(&leader_page()->quarantined_slots, 0);
	ck_assert_int_eq(layer(1, 1, SOON), -ECANCELED);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("connector_layers");
	TCase *t = tcase_create("layers");

	tcase_add_checked_fixture(t, setup, trio_close);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_all_layers_of_all_blocks);
	tcase_add_test(t, test_layers_may_be_skipped);
	tcase_add_loop_test(t, test_blocks_from_the_store, 0, 2);
	tcase_add_loop_test(t, test_whole_load_of_the_same_blocks, 0, 2);
	tcase_add_loop_test(t, test_bad_bytes_on_the_store, 0, 2);
	tcase_add_test(t, test_rank_that_does_not_vote_until_its_deadline);
	tcase_add_test(t, test_vote_is_missing_at_the_leaders_deadline);
	tcase_add_test(t, test_whole_here_and_by_layers_there);
	tcase_add_test(t, test_whole_load_has_no_layers);
	tcase_add_loop_test(t, test_bad_segment_ends_the_load_for_all, 0, 2);
	tcase_add_test(t, test_failure_waits_for_those_who_copy);
	tcase_add_test(t, test_abort_between_layers);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
