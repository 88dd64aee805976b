/* SPDX-License-Identifier: Apache-2.0 */
/* The one function of util.h that is too long to be inline. */
#include "util.h"

void kvr_text_copy(char *to, size_t size, const char *from, size_t len)
{
	size_t i;

	for (i = 0; i + 1 < size && i < len && from[i]; i++)
		to[i] = from[i] >= 0x20 && from[i] < 0x7f ? from[i] : '?';
	to[i] = 0;
}
