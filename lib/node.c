/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NUMA placement. Of libnuma only calls that report by return value are used: its numa_*_memory()
 * print to stderr when the kernel refuses, and mbind() is what they call anyway.
 */
#include "node.h"

#include <errno.h>
#include <numa.h>
#include <numaif.h>
#include <stdint.h>

#include "err.h"
#include "util.h"

static int fail_bind(int node, size_t len, int error)
{
	const char *why = error == EPERM ? ". The container forbids it: allow mbind in its seccomp "
					   "profile, or grant CAP_SYS_NICE"
					 : "";

	if (node < 0)
		return KVR_FAIL(-error,
				"kvr_node_bind: mbind of %zu bytes over all nodes failed: %s%s",
				len, kvr_strerror(error), why);
	return KVR_FAIL(-error, "kvr_node_bind: mbind of %zu bytes to NUMA node %d failed: %s%s",
			len, node, kvr_strerror(error), why);
}

int kvr_node_count(void)
{
	int count = numa_available() < 0 ? 1 : numa_num_configured_nodes();

	return count < 1 ? 1 : count;
}

static int bind_to(void *addr, size_t len, int node, const struct bitmask *allowed)
{
	struct bitmask *one;
	long ret;
	int error;

	if (node == KVR_NODE_INTERLEAVE) {
		ret = mbind(addr, len, MPOL_INTERLEAVE, allowed->maskp, allowed->size + 1,
			    MPOL_MF_MOVE);
		return ret ? fail_bind(node, len, errno) : 0;
	}
	if ((unsigned long)node >= allowed->size || !numa_bitmask_isbitset(allowed, (unsigned)node))
		return KVR_FAIL(
			-EINVAL,
			"kvr_node_bind: NUMA node %d does not exist or this process may not use its "
			"memory (cpuset). See numactl --hardware, or leave the node unset",
			node);
	if (numa_bitmask_weight(allowed) == 1)
		return 0; /* there is no other place */
	one = numa_allocate_nodemask();
	if (!one)
		return KVR_FAIL(-ENOMEM, "kvr_node_bind: no memory for a node mask");
	numa_bitmask_setbit(one, (unsigned)node);
	ret = mbind(addr, len, MPOL_BIND, one->maskp, one->size + 1, MPOL_MF_MOVE);
	error = errno;
	numa_bitmask_free(one);
	return ret ? fail_bind(node, len, error) : 0;
}

int kvr_node_bind(void *addr, size_t len, int node)
{
	struct bitmask *allowed;
	int err;

	if (node == KVR_NODE_ANY)
		return 0;
	if (node < KVR_NODE_INTERLEAVE)
		return KVR_FAIL(-EINVAL, "kvr_node_bind: %d is no NUMA node", node);
	if ((uintptr_t)addr % KVR_PAGE)
		return KVR_FAIL(-EINVAL, "kvr_node_bind: the address %p is not the start of a page",
				addr);
	if (kvr_node_count() == 1) {
		if (node <= 0)
			return 0;
		return KVR_FAIL(
			-EINVAL,
			"kvr_node_bind: NUMA node %d does not exist: this machine has node 0 alone",
			node);
	}
	allowed = numa_get_mems_allowed();
	if (!allowed)
		return KVR_FAIL(-ENOMEM, "kvr_node_bind: no memory for a node mask");
	err = bind_to(addr, len, node, allowed);
	numa_bitmask_free(allowed);
	return err;
}
