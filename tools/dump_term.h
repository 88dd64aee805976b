/* SPDX-License-Identifier: Apache-2.0 */
/* A terminal that is drawn again and again. */
#ifndef DUMP_TERM_H
#define DUMP_TERM_H

#include <stddef.h>
#include <stdint.h>

struct dump_term {
	int is_tty; /* standard output is one */
	uint32_t rows, columns;
};

/* Looks at standard output; a terminal shows another page from now on, until dump_term_end(). */
void dump_term_begin(struct dump_term *t);
void dump_term_end(void);
/* Its size now. */
void dump_term_size(struct dump_term *t);
/* Draws lines over what is there, cut to its size. 0, or -1 when it is gone. */
int dump_term_draw(const struct dump_term *t, const char *text);
/* Waits so long, for a key, or for a signal. 1: it is to end. */
int dump_term_wait(const struct dump_term *t, uint64_t ns);

#endif
