/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NUMA placement. Machines with two nodes are rare where tests run, so a second one is played: the
 * library's calls of libnuma and mbind() end in this program, which shows what would be asked for.
 */
#include "node.h"

#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>

#include "harness.h"
#include "kvring/err.h"

static int nodes = 1;	 /* of this machine */
static unsigned allowed; /* bits: those that this process may use */

static struct {
	unsigned calls;
	void *addr;
	unsigned long len, mask;
	int mode;
} asked;
static int refuse;

int numa_available(void)
{
	return nodes ? 0 : -1;
}

int numa_num_configured_nodes(void)
{
	return nodes;
}

struct bitmask *numa_get_mems_allowed(void)
{
	struct bitmask *mask = numa_bitmask_alloc(64);

	*mask->maskp = allowed;
	return mask;
}

long mbind(void *addr, unsigned long len, int mode, const unsigned long *mask, unsigned long max,
	   unsigned flags)
{
	ck_assert_uint_gt(max, 4);
	ck_assert_uint_eq(flags, MPOL_MF_MOVE); /* the pages are there already */
	asked.calls++;
	asked.addr = addr;
	asked.len = len;
	asked.mode = mode;
	asked.mask = *mask;
	errno = refuse;
	return refuse ? -1 : 0;
}

static _Alignas(4096) char memory[8192];

START_TEST(test_one_node_needs_nothing)
{
	nodes = _i; /* 0: a kernel without NUMA */
	ck_assert_int_eq(kvr_node_count(), 1);
	ck_assert_int_eq(kvr_node_bind(memory, sizeof(memory), 0), 0);
	ck_assert_int_eq(kvr_node_bind(memory, sizeof(memory), KVR_NODE_ANY), 0);
	ck_assert_int_eq(kvr_node_bind(memory, sizeof(memory), KVR_NODE_INTERLEAVE), 0);
	ck_assert_int_eq(kvr_node_bind(memory, sizeof(memory), 1), -EINVAL);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "node 1 does not exist"));
	ck_assert_int_eq(kvr_node_bind(memory, sizeof(memory), -3), -EINVAL);
	ck_assert_uint_eq(asked.calls, 0);
}
END_TEST

START_TEST(test_two_nodes_are_bound_or_interleaved)
{
	nodes = 2;
	allowed = 5; /* nodes 0 and 2: numbers may have gaps */
	ck_assert_int_eq(kvr_node_count(), 2);
	ck_assert_int_eq(kvr_node_bind(memory, sizeof(memory), 2), 0);
	ck_assert_int_eq(asked.mode, MPOL_BIND);
	ck_assert_uint_eq(asked.mask, 4);
	ck_assert_ptr_eq(asked.addr, memory);
	ck_assert_uint_eq(asked.len, sizeof(memory));
	ck_assert_int_eq(kvr_node_bind(memory, sizeof(memory), KVR_NODE_INTERLEAVE), 0);
	ck_assert_int_eq(asked.mode, MPOL_INTERLEAVE);
	ck_assert_uint_eq(asked.mask, 5);
	ck_assert_int_eq(kvr_node_bind(memory, sizeof(memory), KVR_NODE_ANY), 0);
	ck_assert_uint_eq(asked.calls, 2);
}
END_TEST

START_TEST(test_nodes_out_of_reach_are_refused)
{
	nodes = 2;
	allowed = 2; /* a cpuset */
	ck_assert_int_eq(kvr_node_bind(memory, sizeof(memory), 0), -EINVAL);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "cpuset"));
	ck_assert_int_eq(kvr_node_bind(memory, sizeof(memory), 64), -EINVAL);
	ck_assert_int_eq(kvr_node_bind(memory + 1, 100, 1), -EINVAL);
	ck_assert_int_eq(kvr_node_bind(memory, sizeof(memory), 1), 0);
	ck_assert_uint_eq(asked.calls, 0);
}
END_TEST

START_TEST(test_kernel_that_refuses_is_explained)
{
	nodes = 2;
	allowed = 3;
	refuse = EPERM;
	ck_assert_int_eq(kvr_node_bind(memory, sizeof(memory), 0), -EPERM);
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "NUMA node 0 failed"));
	ck_assert_ptr_nonnull(strstr(kvr_explain(), "seccomp"));
	ck_assert_int_eq(kvr_node_bind(memory, sizeof(memory), KVR_NODE_INTERLEAVE), -EPERM);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("node");
	TCase *tc = tcase_create("node");

	tcase_add_loop_test(tc, test_one_node_needs_nothing, 0, 2);
	tcase_add_test(tc, test_two_nodes_are_bound_or_interleaved);
	tcase_add_test(tc, test_nodes_out_of_reach_are_refused);
	tcase_add_test(tc, test_kernel_that_refuses_is_explained);
	suite_add_tcase(s, tc);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
