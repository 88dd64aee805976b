/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words of messages, of the leader's operations and of the ranks' answers are overwritten at random
 * between the leader's call and the ranks'. No call crashes, hangs, or returns more than is
 * possible. Leader and both ranks are handles of one process.
 */
#include <sys/mman.h>

#include "channel_priv.h"
#include "engine_priv.h"
#include "shm.h"

#include "trio.h" /* last: its names are short */

static uint8_t *wild;
static struct kvr_key keys[64];
static uint64_t seed = 88172645463325252u, next_id = 100;

static uint64_t rnd(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static void open_wild(void)
{
	char path[KVR_SHM_PATH];
	int fd;

	trio_open(16, 32);
	ok(kvr_shm_path(path, sizeof path, NULL, cl.name, KVR_SHM_SEGMENT, 0));
	fd = open(path, O_RDWR | O_CLOEXEC);
	wild = mmap(NULL, lead->group->layout.total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(wild, MAP_FAILED);
	close(fd);
	cluster_keys(1, keys, 64);
	store_all(1, keys, 8);
	end_of(1, KVR_KIND_STORE);
}

static void close_wild(void)
{
	munmap(wild, lead->group->layout.total);
	trio_close();
}

static uint32_t hostile(void)
{
	static const uint32_t values[] = { 0,	  1,	      2,	  3,	      5,
					   16,	  63,	      64,	  255,	      4096,
					   65535, 0x7fffffff, 0x80000000, 0xfffffff0, 0xffffffff };

	return rnd() % 4 ? values[rnd() % KVR_ARRAY_LEN(values)] : (uint32_t)rnd();
}

static void turn(uint32_t channel, uint32_t r, uint64_t cell)
{
	const struct kvr_layout *l = &lead->group->layout;
	uint8_t *at;
	uint32_t v = hostile();

	switch (rnd() % 4) {
	case 0:
	case 1: /* the answer in rank r's ring */
		at = wild + kvr_layout_ring(l, channel, r) + KVR_RING_CTL + cell * KVR_RING_CELL +
		     KVR_RING_HEADER + sizeof(struct kvr_msg_head) + 4 * (rnd() % 16);
		break;
	case 2: /* the leader's operations */
		at = wild + l->leader_ops + sizeof(struct kvr_op_entry) * (rnd() % 64) +
		     (rnd() % 2 ? 64 : 0) + 4 * (rnd() % 2);
		break;
	default:
		at = wild + kvr_layout_rank(l, r) + l->rank_acks + 16 * (rnd() % 64) +
		     4 * (rnd() % 2);
	}
	memcpy(at, &v, sizeof v);
}

static void in_range(int got, int most)
{
	ck_assert_msg(got >= -4095 && got <= most, "%d of at most %d: %s", got, most,
		      kvr_explain());
}

static uint64_t cell_of(uint32_t channel, uint32_t r)
{
	return lead->channels->writer[channel * RANKS + r].pos &
	       (lead->group->layout.ring_bytes / KVR_RING_CELL - 1);
}

static const uint32_t channels[] = { KVR_CH_LOAD, KVR_CH_PREFETCH, KVR_CH_CONTROL, KVR_CH_CONTROL,
				     KVR_CH_LOAD };

static void rank_one(uint32_t kind, uint32_t r, struct kvr_request req, uint64_t cell)
{
	uint32_t channel = channels[kind];
	struct kvr_block b[16];
	uint32_t done;
	char m[64];
	uint64_t soon = kvr_deadline(8);

	switch (kind) {
	case 0:
		in_range(kvr_connector_load_begin_layers(rank[r], &req, N, soon - 1000000000), N);
		in_range(kvr_connector_load_wait_layer(rank[r], &req, keys, 1, soon, b, 16), N);
		in_range(kvr_connector_load_wait(rank[r], &req, keys, soon, b, 16), N);
		in_range(kvr_connector_load_done(rank[r], &req), 0);
		break;
	case 1:
		in_range(kvr_connector_prefetch(rank[r], &req, keys, 8, 0, soon - 1000000000), 8);
		in_range(kvr_connector_prefetch_status(rank[r], &req, &done), 1);
		break;
	case 2:
		in_range(kvr_connector_proposal(rank[r], &req, m, 64, soon - 1000000000), 64);
		in_range(kvr_connector_vote(rank[r], &req, 0), 0);
		if (rnd() % 2)
			turn(channel, r, cell);
		in_range(kvr_connector_decided(rank[r], &req, soon), 0);
		in_range(kvr_connector_outcome(rank[r], &req, 0), 0);
		break;
	case 3:
		in_range(kvr_connector_reset(rank[r], &req, NULL, soon - 1000000000), 0);
		in_range(kvr_connector_reset_wait(rank[r], &req, soon), 0);
		break;
	default:
		in_range(kvr_connector_load_begin(rank[r], &req, N, soon - 1000000000), N);
		in_range(kvr_connector_load_wait(rank[r], &req, keys, soon, b, 16), N);
		in_range(kvr_connector_load_done(rank[r], &req), 0);
	}
}

static void one(uint32_t kind)
{
	struct kvr_request req = { .id = ++next_id };
	uint64_t cell[RANKS];
	struct kvr_hit hit;

	if (kind == 0 || kind == 4) {
		in_range(kvr_connector_lookup(lead, &req, keys, N, SOON, &hit), 0);
		for (uint32_t r = 0; r < RANKS; r++)
			kvr_connector_lookup(rank[r], &req, keys, N, kvr_deadline(20), &hit);
	}
	for (uint32_t r = 0; r < RANKS; r++)
		cell[r] = cell_of(channels[kind], r);
	switch (kind) {
	case 0:
		in_range(kvr_connector_load_begin_layers(lead, &req, N, kvr_deadline(30)), N);
		break;
	case 1:
		in_range(kvr_connector_prefetch(lead, &req, keys, 8, 0, kvr_deadline(30)), 8);
		break;
	case 2:
		in_range(kvr_connector_propose(lead, &req, "hello", 5, kvr_deadline(30)), 0);
		break;
	case 3:
		in_range(kvr_connector_reset(lead, &req, NULL, kvr_deadline(30)), 0);
		break;
	default:
		in_range(kvr_connector_load_begin(lead, &req, N, kvr_deadline(30)), N);
	}
	for (uint32_t n = (uint32_t)(rnd() % 3); n--;)
		turn(channels[kind], (uint32_t)(rnd() % RANKS), cell[rnd() % RANKS]);
	for (uint32_t r = 0; r < RANKS; r++)
		rank_one(kind, r, req, cell[r]);
	in_range(kvr_connector_abort(lead, &req), 16);
	for (uint32_t r = 0; r < RANKS; r++)
		in_range(kvr_connector_abort(rank[r], &req), 0);
	in_range(kvr_connector_release(lead, &req), 0);
}

START_TEST(test_words_at_random)
{
	struct kvr_completion c[256];

	if (getenv("FOUND_SEED"))
		seed *= strtoull(getenv("FOUND_SEED"), NULL, 0) * 2 + 1;
	for (uint32_t round = 0; round < 40; round++) {
		open_wild();
		for (uint32_t n = 0; n < 20; n++) {
			one((uint32_t)(rnd() % 5));
			in_range(kvr_connector_check_completed(lead, KVR_NEXT, 0, kvr_deadline(50),
							       c, 256, NULL),
				 256);
			for (uint32_t r = 0; r < RANKS; r++)
				in_range(kvr_connector_check_completed(rank[r], KVR_NOW, 0, 0, c,
								       256, NULL),
					 256);
		}
		close_wild();
	}
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("hostile_protocol");
	TCase *t = tcase_create("hostile");

	tcase_set_timeout(t, 100);
	tcase_add_test(t, test_words_at_random);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
