/* SPDX-License-Identifier: Apache-2.0 */
/* The test hook behind KVR_POINT(), and the points' names. */
#include "point.h"

void (*kvr_point_hook)(enum kvr_point point, uint32_t arg);

const char *kvr_point_name(uint32_t point)
{
#define NAME(name) #name,
	static const char *const names[] = { KVR_POINTS(NAME) };
#undef NAME

	return point < KVR_POINT_COUNT ? names[point] : "?";
}
