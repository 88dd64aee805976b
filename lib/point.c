/* SPDX-License-Identifier: Apache-2.0 */
/* The test hook behind KVR_POINT(). */
#include "point.h"

void (*kvr_point_hook)(const char *point, uint32_t arg);
