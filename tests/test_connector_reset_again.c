/* SPDX-License-Identifier: Apache-2.0 */
/* Resets: what was published before, what the store refuses, who is woken, and who looks meanwhile.
 */
#include "trio.h"

#include <stddef.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "engine_priv.h"
#include "store_state.h"

static struct kvr_key keys[128];
static const struct kvr_request reset = { .id = 900 };

static void setup(void)
{
	trio_open(16, 64);
	cluster_keys(1, keys, 128);
	store_all(1, keys, 8);
	ck_assert_uint_eq(end_of(1, KVR_KIND_STORE).stage, KVR_STAGE_WRITTEN);
}

static void reset_called(const struct kvr_request *req, uint64_t deadline)
{
	ok(kvr_connector_reset(lead, req, NULL, deadline));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_reset(rank[r], req, NULL, SOON));
}

static void all_hear(const struct kvr_request *req, int status)
{
	ck_assert_int_eq(kvr_connector_reset_wait(lead, req, SOON), status);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(kvr_connector_reset_wait(rank[r], req, SOON), status);
}

/* The answer waits in the ranks' rings while everything that it tells of is voided. */
START_TEST(test_hit_from_before_is_not_given_out_afterwards)
{
	struct kvr_request req = { .id = 7 };
	struct kvr_hit hit = { 0 };

	ok(kvr_connector_lookup(lead, &req, keys, 8, SOON, &hit));
	ck_assert_uint_eq(hit.blocks, 8);
	reset_called(&reset, SOON);
	all_hear(&reset, 0);
	for (uint32_t r = 0; r < RANKS; r++) {
		memset(&hit, 0, sizeof hit);
		kvr_connector_lookup(rank[r], &req, keys, 8, kvr_deadline(50), &hit);
		ck_assert_uint_eq(hit.blocks, 0);
	}
}
END_TEST

/* "a rank drops the answers it did not take": so a store that no rank began holds nothing up. */
START_TEST(test_begin_that_no_rank_took_does_not_hold_it_up)
{
	struct kvr_block b[4];

	ck_assert_int_eq(begin_on(lead, 3, keys + 20, 4, b), 4);
	reset_called(&reset, kvr_deadline(3000));
	all_hear(&reset, 0);
}
END_TEST

static void *vote_later(void *arg)
{
	usleep(20000);
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_reset(rank[r], arg, NULL, SOON));
	return NULL;
}

START_TEST(test_leader_that_waits_for_it_is_woken)
{
	for (uint64_t id = 900; id < 905; id++) {
		struct kvr_request req = { .id = id };
		pthread_t t;

		ok(kvr_connector_reset(lead, &req, NULL, SOON));
		pthread_create(&t, NULL, vote_later, &req);
		ck_assert_int_eq(kvr_connector_reset_wait(lead, &req, SOON), 0);
		pthread_join(t, NULL);
	}
	ck_assert_uint_eq(lead->group->proc->lost_wakes, 0);
}
END_TEST

/* "unless the store failed: ... call again": when the device is well again, that helps. */
START_TEST(test_again_after_the_store_failed)
{
	struct kvr_request again = { .id = 901 };
	struct rlimit old, none;

	ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
	none = (struct rlimit){ 0, old.rlim_max };
	signal(SIGXFSZ, SIG_IGN);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &none), 0);
	reset_called(&reset, SOON);
	ck_assert_int_lt(kvr_connector_reset_wait(lead, &reset, SOON), 0);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
	reset_called(&again, SOON);
	all_hear(&again, 0);
}
END_TEST

/* --- a pin that is dropped while the store is at it ------------------------------------------- */

static void turn_byte(const struct kvr_key *key, uint64_t offset)
{
	char path[300];
	struct stat st;
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
		if (!memcmp(file + at + offsetof(struct kvr_slot_header, key), key, sizeof *key))
			file[at + offset] ^= 8;
	ck_assert_int_eq(msync(file, (size_t)st.st_size, MS_SYNC), 0);
	munmap(file, (size_t)st.st_size);
}

/* The block turned out to be another's: it is dead, has its slot of the store, and is pinned. */
static void dead_and_pinned(uint64_t id, const struct kvr_key *key)
{
	struct kvr_request req = { .id = id };
	struct kvr_block b[1];

	ck_assert_uint_eq(lookup_all(id, key, 1), 1);
	ok(kvr_connector_load_begin(lead, &req, 1, SOON));
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_load_begin(rank[r], &req, 1, SOON));
	await_host(id);
	kvr_connector_load_wait(rank[0], &req, key, kvr_deadline(5), b, 1);
	for (uint32_t r = RANKS; r--;)
		ck_assert_int_eq(kvr_connector_load_wait(rank[r], &req, key, SOON, b, 1), 0);
	for (uint32_t r = 0; r < RANKS; r++)
		ok(kvr_connector_load_done(rank[r], &req));
	end_of(id, KVR_KIND_LOAD);
}

/* Also with the thread sanitizer: nobody touches the store while the engine's thread resets it. */
START_TEST(test_release_while_the_store_is_reset)
{
	struct store_dev *dev = &lead->engine->store->dev[0];
	const struct kvr_rank_op *op;

	for (uint64_t id = 10; id < 14; id++) {
		store_all(id, keys + id * 4, 4);
		end_of(id, KVR_KIND_STORE);
	}
	for (uint32_t i = 0; i < 8; i++)
		turn_byte(&keys[i], 163);
	for (uint32_t i = 0; i < 8; i++)
		dead_and_pinned(30 + i, &keys[i]);
	reset_called(&reset, SOON);
	op = kvr_rank_op_find(&rank[0]->known, &reset, KVR_OP_RESET);
	ck_assert_ptr_nonnull(op);
	while (kvr_word_code(kvr_rank_op_word(rank[0], op->entry)) < KVR_STAGE_COMMITTED)
		;
	for (uint32_t i = 0; i < 8; i++)
		ok(kvr_connector_release(lead, &(struct kvr_request){ .id = 30 + i }));
	all_hear(&reset, 0);
	ck_assert_uint_eq(dev->nfree + dev->nused + dev->nretired, dev->slots);
	for (uint64_t i = 0; i < dev->nfree; i++)
		for (uint64_t k = 0; k < i; k++)
			ck_assert_uint_ne(dev->ring[(dev->ring_head + i) % dev->slots],
					  dev->ring[(dev->ring_head + k) % dev->slots]);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("connector_reset_again");
	TCase *t = tcase_create("reset");

	tcase_add_checked_fixture(t, setup, trio_close);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_hit_from_before_is_not_given_out_afterwards);
	tcase_add_test(t, test_begin_that_no_rank_took_does_not_hold_it_up);
	tcase_add_test(t, test_leader_that_waits_for_it_is_woken);
	tcase_add_test(t, test_again_after_the_store_failed);
	tcase_add_loop_test(t, test_release_while_the_store_is_reset, 0, 3);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
