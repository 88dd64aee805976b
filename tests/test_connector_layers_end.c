/* SPDX-License-Identifier: Apache-2.0 */
/* Loads by layers that end while a rank is in the middle of a call. */
#include "trio.h"

#include <sys/mman.h>

#include "engine_priv.h"

#define GROUPS 2u

static struct kvr_key keys[64];
static const struct kvr_request load = { .id = 5 };
static struct kvr_block blocks[N];

static void setup(void)
{
	trio_open(16, 32);
	cluster_keys(1, keys, 64);
	store_all(1, keys, N);
	end_of(1, KVR_KIND_STORE);
	ck_assert_uint_eq(lookup_all(load.id, keys, N), N);
}

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

static uint8_t *touched;

/* The rank reads the last block's bytes: at this very moment the leader aborts the request. */
static void on_touch(int sig)
{
	(void)sig;
	mprotect(touched, 4096, PROT_READ | PROT_WRITE);
	kvr_connector_abort(lead, &load);
}

START_TEST(test_abort_while_a_rank_verifies_the_last_layer)
{
	struct sigaction old, act = { .sa_handler = on_touch, .sa_flags = (int)SA_RESETHAND };
	struct kvr_span spans[4];
	int got;

	begin();
	ck_assert_int_eq(layer(0, 0, SOON), N);
	ck_assert_uint_eq(kvr_connector_spans(rank[0], 0, spans, 4), GROUPS);
	touched = blocks[N - 1].payload + spans[1].offset;
	ck_assert_int_eq(mprotect(touched, 4096, PROT_NONE), 0);
	sigaction(SIGSEGV, &act, &old);
	got = layer(0, GROUPS - 1, SOON);
	sigaction(SIGSEGV, &old, NULL);
	ck_assert_msg(got == N || got == -ECANCELED, "%d", got);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("connector_layers_end");
	TCase *t = tcase_create("layers");

	tcase_add_checked_fixture(t, setup, trio_close);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_abort_while_a_rank_verifies_the_last_layer);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
