/* SPDX-License-Identifier: Apache-2.0 */
/* A leader or a rank with its channels, in a test or in one of its members. */
#ifndef TESTS_GROUP_ENDS_H
#define TESTS_GROUP_ENDS_H

#include "group_util.h"

#include "kvring/channel.h"

#define CH KVR_CH_USER0
#define WAIT_MS 15000 /* nothing takes that long unless it hangs */

struct end {
	struct kvr_group *g;
	struct kvr_channels *c;
};

static inline int end_lead(const char *group, struct end *e)
{
	int rc = kvr_group_create(group, &opts, &e->g);

	return rc ? rc : kvr_channels_open(e->g, &e->c);
}

static inline int end_join(const char *group, uint32_t rank, struct end *e)
{
	int rc = kvr_group_attach(group, rank, &opts, test_deadline_ms(WAIT_MS), &e->g);

	return rc ? rc : kvr_channels_open(e->g, &e->c);
}

static inline void end_close(struct end *e)
{
	kvr_channels_close(e->c);
	kvr_group_close(e->g);
}

/* One message; ms 0 polls. */
static inline int end_publish(struct end *l, uint64_t set, uint64_t ms)
{
	return kvr_channels_publish(l->c, CH, set, KVR_TAG_USER, NULL, "x", 1,
				    ms ? test_deadline_ms(ms) : 0);
}

/*
 * The member is in. Members are started before the test itself has a handle, and wait for the
 * leader: TSan forbids threads in the child of a process that has some.
 */
static inline void member_ready(struct member *m)
{
	struct report r = member_hears(m);

	ck_assert_msg(!r.rc, "%d %s", r.rc, r.why);
}

/* n messages on a channel to each of these ranks; all must arrive. 0, or what went wrong. */
static inline int end_traffic(struct end *l, struct end *r, uint32_t ranks, uint32_t channel,
			      uint32_t n)
{
	struct kvr_message m;
	int rc = 0;

	for (uint64_t k = 0; !rc && k < n; k++) {
		rc = kvr_channels_publish(l->c, channel, (1u << ranks) - 1, KVR_TAG_USER, NULL, &k,
					  sizeof k, test_deadline_ms(WAIT_MS));
		for (uint32_t i = 0; !rc && i < ranks; i++) {
			rc = kvr_channels_take(r[i].c, channel, test_deadline_ms(WAIT_MS), &m);
			if (!rc && (m.len != sizeof k || memcmp(m.data, &k, sizeof k) != 0))
				rc = -EBADMSG;
		}
	}
	return rc;
}

#endif
