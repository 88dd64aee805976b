/* SPDX-License-Identifier: Apache-2.0 */
/* The one public call about time. */
#include "clock.h"

#include "kvring/types.h"

uint64_t kvr_deadline(uint64_t ms)
{
	uint64_t now = kvr_now();

	return ms > (UINT64_MAX - now) / KVR_MS ? UINT64_MAX : now + ms * KVR_MS;
}
