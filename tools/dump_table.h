/* SPDX-License-Identifier: Apache-2.0 */
/* A live group as a table with rates. */
#ifndef DUMP_TABLE_H
#define DUMP_TABLE_H

#include "dump.h"

/* What rates are made of. */
struct dump_counts {
	uint64_t ns; /* 0: nothing yet */
	uint64_t epoch;
	uint8_t uuid[16];
	uint64_t tick;
	uint64_t watermark[KVR_CHANNELS];
	uint64_t calls[KVR_MAX_RANKS + 1], messages[KVR_MAX_RANKS + 1];
};
void dump_counts(const struct dump *d, struct dump_counts *ret);

/* "what  14:03:07, every 1.0 s" */
void dump_table_title(const char *what, uint64_t interval_ns, FILE *out);
void dump_table(const struct dump *d, const struct dump_counts *before, uint32_t columns,
		uint32_t most_ops, uint64_t interval_ns, FILE *out);
/* The newest few. */
void dump_table_events(const struct dump *d, uint32_t most, FILE *out);

#endif
