/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fuzz targets share. A target is tests/fuzz/fuzz_NAME.c with LLVMFuzzerTestOneInput(); it
 * reads its input as a script: numbers one after another, zeros when the input is over.
 */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A property that must hold whatever the input is. */
#define must(x)                                                                                    \
	do {                                                                                       \
		if (!(x)) {                                                                        \
			fprintf(stderr, "%s:%d: %s: not true: %s\n", __FILE__, __LINE__, __func__, \
				#x);                                                               \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

struct script {
	const uint8_t *at;
	size_t left;
};

static inline void script_bytes(struct script *s, void *to, size_t len)
{
	size_t n = len < s->left ? len : s->left;

	memset(to, 0, len);
	if (n)
		memcpy(to, s->at, n);
	s->at += n;
	s->left -= n;
}

static inline uint8_t script_u8(struct script *s)
{
	uint8_t v;

	script_bytes(s, &v, sizeof(v));
	return v;
}

static inline uint16_t script_u16(struct script *s)
{
	uint16_t v;

	script_bytes(s, &v, sizeof(v));
	return v;
}

static inline uint32_t script_u32(struct script *s)
{
	uint32_t v;

	script_bytes(s, &v, sizeof(v));
	return v;
}

static inline uint64_t script_u64(struct script *s)
{
	uint64_t v;

	script_bytes(s, &v, sizeof(v));
	return v;
}

/* Mostly 0, else a small number of either sign, or any. */
static inline uint64_t script_delta(struct script *s)
{
	uint8_t v = script_u8(s);

	if (v < 0xa0)
		return 0;
	return v == 0xff ? script_u64(s) : (uint64_t)v - 0xd0;
}

#endif
