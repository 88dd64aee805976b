/* SPDX-License-Identifier: Apache-2.0 */
/* Leaders and ranks (sides.h) with a small bulk area, and messages whose every byte follows from
 * channel and number. */
#ifndef TESTS_BULK_SIDES_H
#define TESTS_BULK_SIDES_H

#include "sides.h"

#define BULK 65536u
#define LARGEST (BULK / 4)
#define SMALL_MAX (RING / 8 - 16 - 32) /* goes through the ring */
#define CH KVR_CH_USER0

static struct side l, r[4];
static char name[KVR_NAME_MAX];
static uint8_t buffer[1 << 20];

static inline void lead_named(uint32_t ranks, uint32_t ring, uint32_t bulk)
{
	struct kvr_group_opts o = {
		.size = sizeof o, .ranks = ranks, .ring_bytes = ring, .bulk_bytes = bulk
	};

	must(kvr_group_create(name, &o, &l.g));
	must(kvr_channels_open(l.g, &l.c));
}

static inline void lead_with(uint32_t ranks, uint32_t ring, uint32_t bulk)
{
	test_name(name, sizeof name, "bulk");
	lead_named(ranks, ring, bulk);
}

/* Leader and ranks in this process. */
static inline void open_sides(uint32_t ranks, uint32_t bulk)
{
	lead_with(ranks, RING, bulk);
	for (uint32_t i = 0; i < ranks; i++)
		must(join(name, i, &r[i]));
}

static inline void close_sides(uint32_t ranks)
{
	for (uint32_t i = 0; i < ranks; i++)
		if (r[i].g)
			leave(&r[i]);
	leave(&l);
}

/* The byte that belongs at `i` of that message. */
static inline uint8_t byte_of(uint32_t channel, uint64_t number, uint32_t i)
{
	uint64_t x = (number * 16 + channel + 1) * 0x9e3779b97f4a7c15ull;

	return (uint8_t)((x >> (i % 7 * 8)) + (i >> 6));
}

static inline const void *bytes_of(uint32_t channel, uint64_t number, uint32_t len)
{
	for (uint32_t i = 0; i < len; i++)
		buffer[i] = byte_of(channel, number, i);
	return buffer;
}

/* How many bytes of a message are not those of its number. */
static inline uint32_t wrong_bytes(const struct kvr_message *m)
{
	const uint8_t *data = m->data;
	uint32_t wrong = 0;

	for (uint32_t i = 0; i < m->len; i++)
		wrong += data[i] != byte_of(m->channel, m->number, i);
	return wrong;
}

/* Publishes the next message of a channel. */
static inline int put(uint32_t channel, uint64_t set, uint32_t len, uint64_t deadline)
{
	const void *data = bytes_of(channel, l.c->published[channel] + 1, len);
	struct kvr_request request = { .id = l.c->published[channel] + 1 };

	return kvr_channels_publish(l.c, channel, set, KVR_TAG_USER, &request, data, len, deadline);
}

/* The next one must be that, as it was published. */
static inline void get(struct side *s, uint32_t channel, uint64_t number, uint32_t len)
{
	struct kvr_message m;

	must(kvr_channels_take(s->c, channel, 0, &m));
	ck_assert_uint_eq(m.number, number);
	ck_assert_uint_eq(m.request.id, number);
	ck_assert_uint_eq(m.len, len);
	ck_assert_uint_eq(wrong_bytes(&m), 0);
}

static inline void give_back(struct side *s, uint32_t channel)
{
	ck_assert_int_eq(kvr_channels_forget_upto(s->c, channel, 0), 0);
}

static inline const uint8_t *area(const struct side *s)
{
	return s->g->seg + s->g->layout.bulk;
}

#endif
