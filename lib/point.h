/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Labelled points of the protocol, where a test may kill or stop the process. The hook is hidden
 * from the shared library's users and NULL outside tests; a point costs one predictable branch.
 */
#ifndef KVR_POINT_H
#define KVR_POINT_H

#include <stdint.h>

extern void (*kvr_point_hook)(const char *point, uint32_t arg);

#define KVR_POINT(point, arg)                                 \
	do {                                                  \
		if (__builtin_expect(kvr_point_hook != 0, 0)) \
			kvr_point_hook((point), (arg));       \
	} while (0)

#endif
