/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring with a peer that writes what it likes. The first byte of the input chooses:
 *
 *   reader  the peer owns the cells: any bytes, and messages that are almost right
 *   writer  the peer owns the reader's cursor
 *   both    an honest writer and an honest reader; payloads look like commit words
 *   walk    an inspector's copy, of any size, at any address, with any `published`
 *
 * What must come out is said here a second time, after the header's text and without the
 * library's code. The memory has exactly the ring's bytes, so that a sanitizer sees its ends.
 */
#include "fuzz.h"

#include <errno.h>

#include "kvring/err.h"
#include "kvring/ring.h"

#define CELL KVR_RING_CELL
#define HEADER KVR_RING_HEADER
#define VALID (1ull << 31)
#define PADDING (1ull << 30)
#define SUMS (8u * KVR_RING_MIN / CELL) /* a message a cell in the largest ring here */

/* A ring and what is known of it. A side that the peer plays has no library part. */
struct ring {
	struct script *s;
	uint8_t *mem, *cells;
	uint8_t *shadow; /* the peer's bytes of `mem`: the reader must leave them alone */
	struct kvr_ring_cursor *cursor;
	uint32_t bytes, max;
	uint64_t capacity, start;

	struct kvr_ring_writer w;
	uint64_t pos, published; /* the writer's */
	uint32_t put, committed; /* messages */
	int cursor_lied;	 /* the reader's cursor was impossible at some time */
	uint64_t sums[SUMS];	 /* of the payloads that are in the ring */

	struct kvr_ring_reader r;
	uint64_t next, released; /* the reader's */
	uint32_t taken, released_taken;
	int writer_dead, reader_dead;
	uint32_t hidden; /* peeks in a row that missed a message */
};

static uint64_t index_of(const struct ring *g, uint64_t pos)
{
	return pos % g->capacity;
}

static uint64_t to_end(const struct ring *g, uint64_t pos)
{
	return g->capacity - index_of(g, pos);
}

static uint64_t cells_of(uint64_t len)
{
	return (HEADER + len + CELL - 1) / CELL;
}

static uint64_t word_at(const struct ring *g, uint64_t pos)
{
	uint64_t word;

	memcpy(&word, g->cells + index_of(g, pos) * CELL, sizeof(word));
	return word;
}

/* Reads every byte, whether or not the sum is used. */
static uint64_t bytes_sum(const void *data, uint32_t len)
{
	const uint8_t *p = data;
	uint64_t sum = len;
	uint32_t i;

	for (i = 0; i < len; i++)
		sum = sum * 0x100000001b3 ^ p[i];
	__asm__ volatile("" : : "r"(sum));
	return sum;
}

/* Any size, at the start or up to 3 laps before a position wraps in 32, 63 or 64 bits. */
static void ring_open(struct ring *g, struct script *s)
{
	uint8_t how = script_u8(s);
	static const uint64_t wraps[] = { 0, 0, 1ull << 32, 1ull << 63 };

	*g = (struct ring){ .s = s, .bytes = KVR_RING_MIN << (how & 3) };
	g->capacity = g->bytes / CELL;
	g->start = wraps[how >> 2 & 3] - (how >> 4 & 3) * g->capacity;
	g->max = kvr_ring_max_payload(g->bytes);
	g->mem = aligned_alloc(CELL, kvr_ring_memsize(g->bytes));
	g->shadow = malloc(kvr_ring_memsize(g->bytes));
	g->cursor = aligned_alloc(sizeof(*g->cursor), sizeof(*g->cursor));
	must(g->mem && g->shadow && g->cursor);
	g->cells = g->mem + KVR_RING_CTL;
	memset(g->cursor, 0, sizeof(*g->cursor));
	memset(g->mem, 0, kvr_ring_memsize(g->bytes));
	memset(g->shadow, 0, kvr_ring_memsize(g->bytes));
	g->pos = g->published = g->next = g->released = g->start;
}

static void ring_close(struct ring *g)
{
	free(g->mem);
	free(g->shadow);
	free(g->cursor);
}

/* --- the peer's half of a reader ----------------------------------------------------- */

static void peer_store(struct ring *g, uint64_t at, const void *from, size_t len)
{
	memcpy(g->mem + at, from, len);
	memcpy(g->shadow + at, from, len);
}

static void peer_header(struct ring *g, uint64_t pos, uint64_t low, uint32_t seq)
{
	uint64_t words[2] = { pos << 32 | low, (uint64_t)seq << 32 | script_u8(g->s) };

	peer_store(g, KVR_RING_CTL + index_of(g, pos) * CELL, words, sizeof(words));
}

/* A legal length, one just over the maximum, or any. */
static uint32_t any_len(const struct ring *g)
{
	uint8_t how = script_u8(g->s);

	if (how < 0xc0)
		return how % (g->max + 2);
	if (how < 0xf0)
		return script_u16(g->s) % (g->max + 66);
	return how < 0xf8 ? g->max - how % 2 : script_u32(g->s);
}

/* What a writer would put there, as many as fit into a lap: messages and padding. */
static void peer_run(struct ring *g)
{
	uint64_t pos = g->next, cells;
	uint32_t seq = g->taken, len, n = script_u8(g->s) % 16;

	for (; n && pos - g->next < g->capacity; n--) {
		len = script_u16(g->s) % (g->max + 1);
		cells = cells_of(len);
		if (cells > to_end(g, pos)) {
			peer_header(g, pos, VALID | PADDING | (to_end(g, pos) * CELL - HEADER), 0);
			pos += to_end(g, pos);
		}
		peer_header(g, pos, VALID | len, seq++);
		pos += cells;
	}
}

static void peer_step(struct ring *g)
{
	uint8_t bytes[32], n;
	uint64_t at, pos = g->next;

	switch (script_u8(g->s) % 5) {
	case 0: /* any bytes anywhere */
		at = script_u16(g->s) % kvr_ring_memsize(g->bytes);
		n = script_u8(g->s) % sizeof(bytes);
		if (n > kvr_ring_memsize(g->bytes) - at)
			n = (uint8_t)(kvr_ring_memsize(g->bytes) - at);
		script_bytes(g->s, bytes, sizeof(bytes));
		peer_store(g, at, bytes, n);
		break;
	case 1: /* a message of any length where the reader looks, or nearby */
		pos += script_delta(g->s);
		peer_header(g, pos, VALID | any_len(g), g->taken + (uint32_t)script_delta(g->s));
		break;
	case 2: /* padding, to the end or not quite, and a message behind it */
		at = to_end(g, pos) * CELL - HEADER + script_delta(g->s);
		peer_header(g, pos, VALID | PADDING | (at & 0xffffff), 0);
		pos += to_end(g, pos);
		peer_header(g, pos, VALID | any_len(g), g->taken + (uint32_t)script_delta(g->s));
		break;
	case 3:
		peer_run(g);
		break;
	default: /* one bit of the header where the reader looks */
		n = script_u8(g->s);
		at = KVR_RING_CTL + index_of(g, pos) * CELL + n / 8 % HEADER;
		bytes[0] = (uint8_t)(g->mem[at] ^ 1u << n % 8);
		peer_store(g, at, bytes, 1);
		break;
	}
}

/* --- the reader ---------------------------------------------------------------------- */

static int at_position(uint64_t word, uint64_t pos)
{
	return word >> 31 == (pos << 32 | VALID) >> 31;
}

/* What peek must return, and where the message starts. */
static int peek_expected(const struct ring *g, uint64_t *ret_pos)
{
	uint64_t pos = g->next, word = word_at(g, pos), len;
	uint32_t header[4];

	if (g->reader_dead)
		return -EBADMSG;
	if (word == (pos << 32 | VALID | PADDING | (to_end(g, pos) * CELL - HEADER)) &&
	    to_end(g, pos) < g->capacity / 8) {
		pos += to_end(g, pos);
		word = word_at(g, pos);
		if (!at_position(word, pos))
			return -EBADMSG;
	}
	if (!at_position(word, pos))
		return 0;
	len = word & (VALID - 1);
	if (len > g->max || cells_of(len) > to_end(g, pos))
		return -EBADMSG;
	memcpy(header, g->cells + index_of(g, pos) * CELL, sizeof(header));
	if (header[3] != g->taken)
		return -EBADMSG;
	*ret_pos = pos;
	return 1;
}

static void check_message(const struct ring *g, const struct kvr_ring_msg *m, uint64_t pos)
{
	uintptr_t from = (uintptr_t)g->cells, data = (uintptr_t)m->data;
	uint32_t header[4];

	must(data >= from + HEADER && data <= from + g->bytes);
	must(m->len <= g->max && m->len <= from + g->bytes - data);
	must(data == from + index_of(g, pos) * CELL + HEADER);
	memcpy(header, (const uint8_t *)m->data - HEADER, sizeof(header));
	must(m->len == (header[0] & (VALID - 1)) && header[1] == (uint32_t)pos);
	must(m->tag == header[2] && m->seq == header[3] && m->seq == g->taken);
}

/* Returns what peek returned; *ret_sum is of the payload. */
static int reader_peek(struct ring *g, uint64_t *ret_sum)
{
	const struct kvr_ring_msg untouched = { .data = g, .len = 0x5a5a5a5a, .seq = 0xa5a5a5a5 };
	struct kvr_ring_msg m = untouched;
	uint64_t pos = 0, shown = g->cursor->pos;
	int gate = g->r.gate == g->next;
	int expected = peek_expected(g, &pos), rc = kvr_ring_peek(&g->r, &m);

	if (rc == 1) /* before the verdict: of bytes outside, the address sanitizer says more */
		*ret_sum = bytes_sum(m.data, m.len);
	/* In a stream a control line that lies can hide a message, but not for long. */
	g->hidden = rc == expected ? 0 : g->hidden + 1;
	must(rc == expected || (!rc && gate && g->hidden < 4));
	if (rc == 1) {
		check_message(g, &m, pos);
		g->next = pos + cells_of(m.len);
		g->taken++;
	} else {
		must(!memcmp(&m, &untouched, sizeof(m)));
	}
	if (rc < 0) {
		must(*kvr_explain());
		g->reader_dead = 1;
	}
	must(g->cursor->pos == (rc ? shown : g->released));
	must(g->r.pos == g->next && g->r.seq == g->taken);
	return rc;
}

static void reader_release(struct ring *g)
{
	uint64_t shown = g->cursor->pos;

	kvr_ring_release(&g->r);
	g->released = g->next;
	g->released_taken = g->taken;
	must(g->cursor->pos == shown || g->cursor->pos == g->released);
	must(g->released - g->cursor->pos < g->capacity / 4);
}

static void reader_rewind(struct ring *g)
{
	kvr_ring_rewind(&g->r);
	g->next = g->released;
	g->taken = g->released_taken;
}

static void reader_open(struct ring *g)
{
	must(!kvr_ring_reader_init(&g->r, g->mem, g->bytes, g->cursor, g->start));
	must(g->cursor->pos == g->start);
}

/*
 * Good messages, peeked and released, until the reader is at most `left` cells before the end:
 * where lengths and padding meet it.
 */
static void reader_advance(struct ring *g, uint64_t left)
{
	uint64_t cells, sum;

	while (to_end(g, g->next) > left && !g->reader_dead) {
		cells = to_end(g, g->next) - left;
		if (cells > g->capacity / 8)
			cells = g->capacity / 8;
		peer_header(g, g->next, VALID | (cells * CELL - HEADER), g->taken);
		reader_peek(g, &sum);
	}
	reader_release(g);
}

static void fuzz_reader(struct script *s)
{
	struct ring g;
	uint64_t sum;
	uint32_t n;

	ring_open(&g, s);
	reader_open(&g);
	while (s->left) {
		switch (script_u8(s) % 16) {
		case 0:
			reader_release(&g);
			break;
		case 1:
			reader_rewind(&g);
			break;
		case 2:
			reader_advance(&g, 1 + script_u8(s) % (g.capacity / 8 + 1));
			break;
		case 3:
		case 4:
		case 5:
			reader_peek(&g, &sum);
			break;
		case 6:
		case 7: /* cells that nobody changes hold at most a lap of messages */
			for (n = 0; reader_peek(&g, &sum) == 1; n++)
				must(n < g.capacity);
			break;
		default:
			peer_step(&g);
			break;
		}
	}
	must(!memcmp(g.mem, g.shadow, kvr_ring_memsize(g.bytes)));
	ring_close(&g);
}

/* --- the writer ---------------------------------------------------------------------- */

/* Bytes, or a commit word for each cell that the payload covers: of this lap or of a later one. */
static void payload_fill(struct ring *g, uint8_t *to, uint32_t len, uint64_t pos)
{
	uint8_t how = script_u8(g->s);
	uint64_t words[2], ahead = how % 4 * g->capacity;
	uint32_t i, n;

	memset(to, how, len);
	if (how < 0x80)
		return;
	for (i = CELL - HEADER; i < len; i += CELL) {
		words[0] = (++pos + ahead) << 32 | VALID | (how >> 2 & 15);
		words[1] = (uint64_t)(g->put + 1) << 32;
		n = len - i < sizeof(words) ? len - i : sizeof(words);
		memcpy(to + i, words, n);
	}
}

/* What reserve must return while the cursor was never impossible. */
static int reserve_expected(const struct ring *g, uint32_t len, uint64_t need)
{
	if (g->writer_dead)
		return -EBADMSG;
	if (len > g->max)
		return -EMSGSIZE;
	return g->pos + need - g->cursor->pos > g->capacity ? -EAGAIN : 0;
}

/* After a call that put a message at `pos`, or returned an error. */
static void writer_after(struct ring *g, int rc, uint64_t pos, uint32_t len, uint64_t known)
{
	/* Whatever the cursor says, it is believed up to `published`, and only if it rises. */
	must(g->w.reader - known <= g->published - known);
	if (!rc) {
		g->pos = pos + cells_of(len);
		g->put++;
		must(g->pos - g->w.reader <= g->capacity);
	} else {
		must(rc == -EAGAIN || rc == -EBADMSG || rc == -EMSGSIZE);
	}
	if (rc == -EBADMSG) {
		must(*kvr_explain());
		g->writer_dead = 1;
	}
	must(g->w.pos == g->pos);
}

static void writer_reserve(struct ring *g, uint32_t len, uint64_t pos, int expected)
{
	uint64_t known = g->w.reader;
	uint8_t *payload;
	void *ret = g;
	int rc = kvr_ring_reserve(&g->w, script_u8(g->s), len, &ret);

	must(rc == expected || expected > 0);
	if (!rc) {
		payload = ret;
		must(payload == g->cells + index_of(g, pos) * CELL + HEADER);
		must(payload + len <= g->cells + g->bytes);
		payload_fill(g, payload, len, pos);
		g->sums[g->put % SUMS] = bytes_sum(payload, len);
	} else {
		must(ret == g);
	}
	writer_after(g, rc, pos, len, known);
}

/* kvr_ring_write publishes what was reserved before, too, but not when it fails. */
static void writer_copy(struct ring *g, int alone, uint32_t len, uint64_t pos, int expected)
{
	uint64_t known = g->w.reader;
	uint8_t *data = malloc(len <= g->max ? len : 1);
	int rc;

	must(data);
	if (len <= g->max)
		payload_fill(g, data, len, pos);
	rc = (alone ? kvr_ring_write : kvr_ring_put)(&g->w, script_u8(g->s), data, len);
	must(rc == expected || expected > 0);
	if (!rc)
		g->sums[g->put % SUMS] = bytes_sum(data, len);
	writer_after(g, rc, pos, len, known);
	if (!rc && alone) {
		g->published = g->pos;
		g->committed = g->put;
	}
	free(data);
}

static void writer_put(struct ring *g)
{
	uint32_t len = any_len(g);
	uint64_t pos = g->pos;
	int expected = 1; /* nobody can tell */
	uint8_t how;

	if (cells_of(len) > to_end(g, pos))
		pos += to_end(g, pos);
	if (!g->cursor_lied || g->writer_dead || len > g->max)
		expected = reserve_expected(g, len, pos + cells_of(len) - g->pos);
	how = script_u8(g->s) % 4;
	if (how < 2)
		writer_reserve(g, len, pos, expected);
	else
		writer_copy(g, how == 2, len, pos, expected);
}

/* The invariant on top of lib/ring.c. */
static void writer_check(const struct ring *g)
{
	uint64_t ctl;

	must(!at_position(word_at(g, g->published), g->published));
	memcpy(&ctl, g->mem, sizeof(ctl));
	must(ctl == (g->published << 32 | g->committed));
}

static void writer_step(struct ring *g)
{
	switch (script_u8(g->s) % 8) {
	case 0:
		kvr_ring_abort(&g->w);
		g->pos = g->published;
		g->put = g->committed;
		break;
	case 1:
	case 2:
		kvr_ring_commit(&g->w);
		g->published = g->pos;
		g->committed = g->put;
		break;
	default:
		writer_put(g);
		break;
	}
	writer_check(g);
}

static void writer_open(struct ring *g)
{
	memset(g->mem, 0xa5, kvr_ring_memsize(g->bytes));
	must(!kvr_ring_writer_init(&g->w, g->mem, g->bytes, g->cursor, g->start));
	writer_check(g);
}

/* The reader's cursor: mostly a legal one, the ends of what is legal, or anything. */
static void cursor_step(struct ring *g)
{
	uint64_t from = g->cursor->pos, to;

	switch (script_u8(g->s) % 4) {
	case 0:
		to = g->published + script_delta(g->s);
		break;
	case 1:
		to = from + script_delta(g->s);
		break;
	default:
		to = g->cursor_lied ? g->published
				    : from + script_u8(g->s) % (g->published - from + 1);
		break;
	}
	if (to - from > g->published - from)
		g->cursor_lied = 1;
	g->cursor->pos = to;
}

static void fuzz_writer(struct script *s)
{
	struct ring g;

	ring_open(&g, s);
	g.cursor->pos = g.start;
	writer_open(&g);
	while (s->left) {
		if (script_u8(s) % 4)
			writer_step(&g);
		else
			cursor_step(&g);
	}
	ring_close(&g);
}

/* --- walk ---------------------------------------------------------------------------- */

/* What a walk showed so far. */
struct walked {
	struct ring *g;
	uint64_t published, end; /* behind the last message */
	uint32_t n, seq;
};

static int padding_at(const struct ring *g, uint64_t pos)
{
	return word_at(g, pos) == (pos << 32 | VALID | PADDING | (to_end(g, pos) * CELL - HEADER));
}

static void walk_see(void *arg, const struct kvr_ring_msg *m, uint64_t pos)
{
	struct walked *x = arg;
	struct ring *g = x->g;

	bytes_sum(m->data, m->len);
	must(x->published - pos - 1 < g->capacity);
	must(cells_of(m->len) <= x->published - pos);
	if (x->n) {
		must(m->seq == x->seq);
		if (pos != x->end)
			must(padding_at(g, x->end) && pos == x->end + to_end(g, x->end));
	}
	g->taken = m->seq; /* any number will do here */
	check_message(g, m, pos);
	x->n++;
	x->seq = m->seq + 1;
	x->end = pos + cells_of(m->len);
}

/*
 * A walk shows a run of good messages that ends at `published`. Whether it is the longest is not
 * asked: bytes in front of it that look like a message can hide its start.
 */
static uint32_t walk_check(struct ring *g, uint64_t published)
{
	struct walked x = { .g = g, .published = published };
	int n = kvr_ring_walk(g->cells, g->bytes, published, walk_see, &x);

	must(n == (int)x.n && n <= (int)g->capacity);
	if (n && x.end != published)
		must(padding_at(g, x.end) && x.end + to_end(g, x.end) == published);
	must(kvr_ring_walk(g->cells, g->bytes, published, NULL, NULL) == n);
	return x.n;
}

/* Messages one after another, from some cells before `published` up to it or nearly so. */
static void walk_run(struct ring *g, uint64_t published)
{
	uint64_t left = script_u16(g->s) % (g->capacity + 2), cells, words[2];
	uint32_t seq = script_u8(g->s), len, n = script_u8(g->s) % 32;

	for (; n && left; n--) {
		len = script_u8(g->s) * 4u % (g->max + 1);
		if (cells_of(len) > left && script_u8(g->s) % 8)
			len = (uint32_t)(left * CELL - HEADER) - script_u8(g->s) % 8;
		cells = cells_of(len);
		words[0] = (published - left) << 32 | VALID | len;
		words[1] = (uint64_t)seq++ << 32;
		if (cells > to_end(g, published - left)) {
			cells = to_end(g, published - left);
			words[0] ^= len | PADDING | (cells * CELL - HEADER);
			seq--;
		}
		memcpy(g->cells + index_of(g, published - left) * CELL, words, sizeof(words));
		left -= cells < left ? cells : left;
	}
}

static void fuzz_walk(struct script *s)
{
	uint8_t how = script_u8(s), shift = how >> 3 & 7, n;
	uint64_t published = script_delta(s), at;
	struct ring g = { .s = s };

	/* Sizes that no ring has are refused without a look at the bytes. */
	g.bytes = how & 4 ? script_u16(s) % 16384 : KVR_RING_MIN << (how & 3);
	g.capacity = g.bytes / CELL;
	g.max = kvr_ring_max_payload(g.bytes);
	g.mem = malloc(g.bytes + shift);
	must(g.mem);
	g.cells = g.mem + shift;
	memset(g.cells, how & 64 ? 0xff : 0, g.bytes);
	while (s->left && g.bytes) {
		if (g.max && script_u8(s) % 2) {
			walk_run(&g, published);
			continue;
		}
		at = script_u16(s) % g.bytes;
		n = script_u8(s) % 32;
		script_bytes(s, g.cells + at, n < g.bytes - at ? n : g.bytes - at);
	}
	must(!walk_check(&g, published) || g.max);
	free(g.mem);
}

/* --- both ---------------------------------------------------------------------------- */

static void fuzz_both(struct script *s)
{
	struct ring g;
	uint64_t sum = 0;
	uint32_t taken;

	ring_open(&g, s);
	writer_open(&g);
	reader_open(&g);
	while (s->left) {
		switch (script_u8(s) % 8) {
		case 0:
			reader_release(&g);
			break;
		case 1:
			reader_rewind(&g);
			break;
		case 2:
		case 3:
			taken = g.taken;
			must(reader_peek(&g, &sum) == (taken != g.committed));
			if (taken != g.taken)
				must(sum == g.sums[taken % SUMS]);
			break;
		case 4:
			taken = g.taken;
			walk_check(&g, g.published);
			g.taken = taken;
			break;
		default:
			writer_step(&g);
			break;
		}
	}
	must(!g.writer_dead && !g.reader_dead);
	ring_close(&g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const parts[])(struct script *) = { fuzz_reader, fuzz_writer, fuzz_both,
							  fuzz_walk };
	struct script s = { data, size };

	parts[script_u8(&s) % 4](&s);
	return 0;
}
