/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a trace: one JSON object a line, with timestamp, input_length, output_length and hash_ids
 * in any order; other fields are skipped. A trace is input from outside, so every line is checked
 * as JSON to its end, lengths and counts are bounded, and what is wrong is told with file and line.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "replay.h"

#define LINE_MAX_BYTES (4u << 20) /* 65536 ids of 20 digits, and room for other fields */
#define MAX_DEPTH 32u		  /* of values in fields that are skipped */
#define NEEDS "a request needs timestamp, input_length, output_length and hash_ids"

static const char *const field_names[] = { "timestamp", "input_length", "output_length",
					   "hash_ids" };
enum { F_TIMESTAMP, F_INPUT, F_OUTPUT, F_IDS, F_COUNT };

struct scan {
	const char *line, *p, *end;
	char why[256];
};

struct number {
	const char *text;
	int len; /* of the text, at most 40 for printing */
	int negative, integer, overflow;
	uint64_t value; /* when integer and no overflow */
};

__attribute__((format(printf, 2, 3))) static int bad(struct scan *s, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(s->why, sizeof(s->why), format, args);
	va_end(args);
	return -1;
}

static int bad_json(struct scan *s, const char *expected)
{
	size_t column = (size_t)(s->p - s->line) + 1;

	if (s->p >= s->end)
		return bad(s, "not JSON: the line ends at column %zu, %s was expected", column,
			   expected);
	return bad(s, "not JSON: %s was expected at column %zu", expected, column);
}

static void blanks(struct scan *s)
{
	while (s->p < s->end && strchr(" \t\r\n", *s->p) && *s->p)
		s->p++;
}

/* The next character after blanks, 0 at the end. */
static char look(struct scan *s)
{
	blanks(s);
	return s->p < s->end ? *s->p : 0;
}

static int take(struct scan *s, char c, const char *expected)
{
	if (look(s) != c)
		return bad_json(s, expected);
	s->p++;
	return 0;
}

static int hex4(struct scan *s)
{
	int i;

	for (i = 0; i < 4; i++, s->p++)
		if (s->p >= s->end || !*s->p || !strchr("0123456789abcdefABCDEF", *s->p))
			return bad_json(s, "a hexadecimal digit");
	return 0;
}

/* A string; its raw text, escapes not resolved. */
static int scan_string(struct scan *s, const char **ret_text, size_t *ret_len)
{
	const char *text;

	if (take(s, '"', "a string in double quotes"))
		return -1;
	for (text = s->p; s->p < s->end && *s->p != '"';) {
		if ((unsigned char)*s->p < 0x20)
			return bad_json(s, "a printable character in the string");
		if (*s->p++ != '\\')
			continue;
		if (s->p >= s->end || !*s->p || !strchr("\"\\/bfnrtu", *s->p))
			return bad_json(s, "an escape that JSON has");
		if (*s->p++ == 'u' && hex4(s))
			return -1;
	}
	if (s->p >= s->end)
		return bad_json(s, "the end of a string");
	*ret_text = text;
	*ret_len = (size_t)(s->p++ - text);
	return 0;
}

static int digit(const struct scan *s)
{
	return s->p < s->end && *s->p >= '0' && *s->p <= '9';
}

static int digits(struct scan *s)
{
	if (!digit(s))
		return bad_json(s, "a digit");
	while (digit(s))
		s->p++;
	return 0;
}

/* A number by JSON's grammar: no leading zero or plus, digits after a point. */
static int scan_number(struct scan *s, struct number *ret)
{
	struct number n = { .integer = 1 };
	uint64_t d;

	look(s);
	n.text = s->p;
	if (s->p < s->end && *s->p == '-') {
		n.negative = 1;
		s->p++;
	}
	if (!digit(s))
		return bad_json(s, "a number");
	if (*s->p == '0' && s->p + 1 < s->end && s->p[1] >= '0' && s->p[1] <= '9')
		return bad_json(s, "a number without leading zeros");
	for (; digit(s); s->p++) {
		d = (uint64_t)(*s->p - '0');
		if (n.value > (UINT64_MAX - d) / 10)
			n.overflow = 1;
		n.value = n.value * 10 + d;
	}
	if (s->p < s->end && *s->p == '.') {
		n.integer = 0;
		s->p++;
		if (digits(s))
			return -1;
	}
	if (s->p < s->end && (*s->p == 'e' || *s->p == 'E')) {
		n.integer = 0;
		s->p++;
		if (s->p < s->end && (*s->p == '+' || *s->p == '-'))
			s->p++;
		if (digits(s))
			return -1;
	}
	n.len = s->p - n.text < 40 ? (int)(s->p - n.text) : 40;
	*ret = n;
	return 0;
}

static int scan_word(struct scan *s, const char *word)
{
	size_t len = strlen(word);

	if ((size_t)(s->end - s->p) < len || memcmp(s->p, word, len))
		return bad_json(s, "a value");
	s->p += len;
	return 0;
}

static int skip_value(struct scan *s, uint32_t depth);

/* The inside of an array or object whose values do not matter. */
static int skip_inside(struct scan *s, uint32_t depth, char end)
{
	const char *text;
	size_t len;

	s->p++;
	if (look(s) == end) {
		s->p++;
		return 0;
	}
	for (;;) {
		if (end == '}' && (scan_string(s, &text, &len) || take(s, ':', "':'")))
			return -1;
		if (skip_value(s, depth + 1))
			return -1;
		if (look(s) == end)
			break;
		if (take(s, ',', end == '}' ? "',' or '}'" : "',' or ']'"))
			return -1;
	}
	s->p++;
	return 0;
}

/* Recursion ends at MAX_DEPTH. */
static int skip_value(struct scan *s, uint32_t depth)
{
	struct number number;
	const char *text;
	size_t len;

	if (depth > MAX_DEPTH)
		return bad(s, "values are nested deeper than %u", MAX_DEPTH);
	switch (look(s)) {
	case '{':
		return skip_inside(s, depth, '}');
	case '[':
		return skip_inside(s, depth, ']');
	case '"':
		return scan_string(s, &text, &len);
	case 't':
		return scan_word(s, "true");
	case 'f':
		return scan_word(s, "false");
	case 'n':
		return scan_word(s, "null");
	default:
		return look(s) == '-' || digit(s) ? scan_number(s, &number)
						  : bad_json(s, "a value");
	}
}

static int scan_length(struct scan *s, uint32_t field)
{
	const char *name = field_names[field];
	struct number n;

	if (look(s) != '-' && !digit(s))
		return skip_value(s, 0) ? -1 : bad(s, "%s is not a number", name);
	if (scan_number(s, &n))
		return -1;
	if (n.negative)
		return bad(s, "%s is negative (%.*s)", name, n.len, n.text);
	if (field == F_TIMESTAMP) /* milliseconds, with or without a fraction */
		return 0;
	if (!n.integer || n.overflow || n.value > INT64_MAX)
		return bad(s, "%s is not a whole number from 0 to 2^63 - 1 (%.*s)", name, n.len,
			   n.text);
	return 0;
}

static int scan_ids(struct scan *s, struct replay_trace *trace)
{
	uint32_t count = 0;
	struct number n;

	if (look(s) != '[')
		return skip_value(s, 0) ? -1 : bad(s, "hash_ids is not a list of numbers");
	s->p++;
	if (look(s) == ']') {
		s->p++;
		return 0;
	}
	for (;;) {
		if (look(s) != '-' && !digit(s))
			return skip_value(s, 0) ? -1
						: bad(s, "hash_ids[%u] is not a number", count);
		if (scan_number(s, &n))
			return -1;
		if (n.negative || !n.integer || n.overflow)
			return bad(s,
				   "hash_ids[%u] is not a whole number from 0 to 2^64 - 1 (%.*s)",
				   count, n.len, n.text);
		if (count++ == REPLAY_MAX_IDS)
			return bad(s, "hash_ids has more than %u ids; split the request",
				   REPLAY_MAX_IDS);
		if (replay_trace_id(trace, n.value))
			return bad(s, "no memory for more ids. Read fewer lines with --requests");
		if (look(s) == ']')
			break;
		if (take(s, ',', "',' or ']'"))
			return -1;
	}
	s->p++;
	return 0;
}

/* One field of a request: its name and value. */
static int scan_field(struct scan *s, struct replay_trace *trace, uint32_t *seen)
{
	const char *text = "";
	uint32_t field;
	size_t len = 0;

	if (scan_string(s, &text, &len) || take(s, ':', "':'"))
		return -1;
	for (field = 0; field < F_COUNT; field++)
		if (len == strlen(field_names[field]) && !memcmp(text, field_names[field], len))
			break;
	if (field == F_COUNT)
		return skip_value(s, 0);
	if (*seen & 1u << field)
		return bad(s, "%s stands there twice", field_names[field]);
	*seen |= 1u << field;
	return field == F_IDS ? scan_ids(s, trace) : scan_length(s, field);
}

static int scan_line(struct scan *s, struct replay_trace *trace)
{
	size_t first = trace->nids;
	uint32_t seen = 0, field;

	if (take(s, '{', "an object in braces"))
		return -1;
	if (look(s) == '}') {
		s->p++;
	} else {
		for (;;) {
			if (scan_field(s, trace, &seen))
				return -1;
			if (look(s) == '}')
				break;
			if (take(s, ',', "',' or '}'"))
				return -1;
		}
		s->p++;
	}
	look(s);
	if (s->p < s->end)
		return bad_json(s, "the end of the line");
	for (field = 0; field < F_COUNT; field++)
		if (!(seen & 1u << field))
			return bad(s, "lacks %s: " NEEDS, field_names[field]);
	if (replay_trace_request(trace, first))
		return bad(s, "no memory for more requests. Read fewer lines with --requests");
	return 0;
}

/* Reads a line without its end. Its length; -1 at the end of the file, -2 when it is too long. */
static long read_line(FILE *f, char *buf)
{
	long n = 0;
	int c;

	while ((c = getc_unlocked(f)) != EOF && c != '\n') {
		if (n == (long)LINE_MAX_BYTES)
			return -2;
		buf[n++] = (char)c;
	}
	return c == EOF && !n ? -1 : n;
}

static int read_lines(FILE *f, const char *path, uint32_t max, char *buf,
		      struct replay_trace *trace)
{
	struct scan s;
	uint64_t number;
	long len;

	for (number = 1; trace->n < max; number++) {
		len = read_line(f, buf);
		if (len == -1)
			break;
		if (len == -2) {
			replay_complain("%s:%" PRIu64 ": a line of more than %u bytes", path,
					number, LINE_MAX_BYTES);
			return -1;
		}
		s = (struct scan){ .line = buf, .p = buf, .end = buf + len };
		if (!look(&s) && s.p == s.end) /* blank */
			continue;
		if (scan_line(&s, trace)) {
			replay_complain("%s:%" PRIu64 ": %s", path, number, s.why);
			return -1;
		}
	}
	if (ferror(f)) {
		replay_complain("%s:%" PRIu64 ": cannot be read: %s", path, number,
				strerror(errno));
		return -1;
	}
	if (!trace->n) {
		replay_complain("%s: no request in it: " NEEDS, path);
		return -1;
	}
	return 0;
}

int replay_trace_read(const char *path, uint32_t max, struct replay_trace *trace)
{
	FILE *f = fopen(path, "re");
	char *buf = NULL;
	struct stat st;
	int r = -1;

	if (!max || max > REPLAY_MAX_REQUESTS)
		max = REPLAY_MAX_REQUESTS;
	if (!f || fstat(fileno(f), &st)) {
		replay_complain("--trace %s: %s. Name a file of JSON lines", path, strerror(errno));
	} else if (S_ISDIR(st.st_mode)) {
		replay_complain("--trace %s: a directory. Name a file of JSON lines", path);
	} else if (!(buf = malloc(LINE_MAX_BYTES))) {
		replay_complain("--trace %s: no memory for a line of %u bytes", path,
				LINE_MAX_BYTES);
	} else {
		r = read_lines(f, path, max, buf, trace);
	}
	free(buf);
	if (f)
		fclose(f);
	return r;
}

int replay_trace_id(struct replay_trace *trace, uint64_t id)
{
	size_t cap = trace->idcap ? 2 * trace->idcap : 4096;
	uint64_t *grown;

	if (trace->nids == trace->idcap) {
		grown = reallocarray(trace->ids, cap, sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		trace->ids = grown;
		trace->idcap = cap;
	}
	trace->ids[trace->nids++] = id;
	return 0;
}

int replay_trace_request(struct replay_trace *trace, size_t first)
{
	size_t cap = trace->cap ? 2 * trace->cap : 256;
	struct replay_request *grown;
	uint32_t blocks = (uint32_t)(trace->nids - first);

	if (trace->n == trace->cap) {
		grown = reallocarray(trace->requests, cap, sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		trace->requests = grown;
		trace->cap = cap;
	}
	trace->requests[trace->n++] = (struct replay_request){ .first = first, .blocks = blocks };
	if (blocks > trace->longest)
		trace->longest = blocks;
	return 0;
}

void replay_trace_free(struct replay_trace *trace)
{
	free(trace->requests);
	free(trace->ids);
	*trace = (struct replay_trace){ 0 };
}
