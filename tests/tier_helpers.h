/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the tier share: a tier with or without a small store on a simulated
 * device. The tier asks it for slots alone; who wants the bytes there does the I/O. */
#ifndef TESTS_TIER_HELPERS_H
#define TESTS_TIER_HELPERS_H

#include "harness.h"

#include "fault.h"
#include "kvring/err.h"
#include "store.h"
#include "tier.h"

static struct kvr_shape shape;
static const struct kvr_model model = { .name = "org/model", .dtype = "bf16", .layers = 2 };

struct rig {
	struct kvr_tier t;
	struct kvr_io *io;
	struct kvr_store *store;
	struct kvr_geometry geo;
};

static inline struct kvr_key key_of(uint32_t n)
{
	struct kvr_key key = { { 0 } };

	memcpy(&key, &n, sizeof n);
	return key;
}

static inline struct kvr_store *store_on(struct kvr_io *io, int blank)
{
	struct kvr_store_opts o = { .size = sizeof o, .model = &model, .shape = &shape };
	struct kvr_store *store = NULL;

	ck_assert_msg(!kvr_store_open_io(&o, &io, 1, blank, &store), "%s", kvr_explain());
	return store;
}

/* A pool of `pool` slots, a store of `slots` on a simulated device; 0: none. */
static inline void rig_init(struct rig *r, uint32_t pool, uint32_t slots)
{
	struct kvr_store_info info;

	*r = (struct rig){ .io = NULL };
	ck_assert_int_eq(kvr_shape_split(2, 2, 8192, &shape), 0);
	ck_assert_int_eq(kvr_geometry_init(&shape, 4096, &r->geo), 0);
	if (slots) {
		ck_assert_int_eq(kvr_fault_open(8192 + 4096 + slots * r->geo.slot_bytes, 4096, 16,
						1, NULL, &r->io),
				 0);
		r->store = store_on(r->io, 1);
		kvr_store_info(r->store, &info);
		ck_assert_uint_eq(info.slots, slots);
	}
	ck_assert_int_eq(kvr_tier_init(&r->t, pool, r->store), 0);
	ck_assert_uint_eq(r->t.capacity, pool + slots);
}

static inline void rig_exit(struct rig *r)
{
	kvr_tier_exit(&r->t);
	if (r->store)
		ck_assert_int_eq(kvr_store_close(r->store, test_deadline_ms(1000)), 0);
	if (r->io)
		kvr_fault_free(r->io);
}

#endif
