/* SPDX-License-Identifier: Apache-2.0 */
/* The sentence of the last failure, per thread. A fixed buffer: nothing to free, nothing to fail.
 */
#include "err.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char sentence[1536];

int kvr_fail(int err, const char *fmt, ...)
{
	char text[sizeof sentence]; /* arguments may point into the old sentence */
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	memcpy(sentence, text, sizeof sentence);
	return err;
}

int kvr_fail_more(int err, const char *fmt, ...)
{
	char text[sizeof sentence]; /* as above */
	size_t used = strlen(sentence);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	snprintf(sentence + used, sizeof sentence - used, "%s", text);
	return err;
}

const char *kvr_explain(void)
{
	return sentence;
}

const char *kvr_strerror(int err)
{
	const char *text = strerrordesc_np(err < 0 && err != INT_MIN ? -err : err);

	return text ? text : "unknown error";
}
