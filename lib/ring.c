/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring's invariant, from which everything else follows:
 *
 *   The word at `published` does not match that position, from before the reader can get there
 *   until commit().
 *
 * What is reserved or put gets its words at once, but the first of a batch: commit() stores that,
 * and the chain from there on is complete. What the cell behind a batch holds is of the last lap. A
 * commit word of that time has another position; bytes of a payload can be anything. So `suspect`
 * says how far to look at the word behind a message, and to clear it if it matches. put() has the
 * bytes at hand, and knows; what a caller writes after reserve() it does not: that costs a look,
 * and for a look a line that crosses between the two cores. A ring of small messages never looks.
 *
 * abort() forgets the batch, and suspects all that it may have written.
 *
 * What a message costs is lines that cross between two cores, 100 to 200 ns each way, and how many
 * are on their way at once. Hence:
 *
 *   - one line a small message: no second word to clear, or only to look at;
 *   - all stores to the line that the reader polls come together, at commit: it would take the line
 *     away between two of them, and it has to come back;
 *   - few stores in all: each waits in the core's store buffer for the lines of those before it, so
 *     the size of that buffer, divided by the stores a message, is how many messages are on their
 *     way. So a message's number is pos - extra and not a counter, the first header and the control
 *     line are one word each, and the fast paths save no registers;
 *   - a reader of a stream touches no line that is not written yet, and fetches those that are;
 *   - the reader's cursor is told four times a lap, or when the reader is idle.
 */
#include "kvring/ring.h"

#include <errno.h>
#include <string.h>

#include "atomic.h"
#include "err.h"
#include "ring_word.h"
#include "util.h"

typedef unsigned long long ull;

#define FIRST (KVR_RING_CELL - KVR_RING_HEADER) /* bytes of payload in the first cell */
#define FETCH 8u				/* cells that a reader fetches ahead */
#define STREAM 32u				/* messages found one after another make a stream */
#define STREAM_MAX (1u << 20)
#define STREAM_ENDS 4u /* looks at the control line in a row that find few */
#define SLIP 64u       /* times kvr_relax(), 10 to 20 ns each on x86 */

_Static_assert(KVR_RING_CTL == KVR_LINE, "the control line has its own lines");
_Static_assert(sizeof(struct kvr_ring_cursor) == KVR_LINE, "the cursor has its own lines");
/* Tag and number travel as one 64-bit word. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the byte table of ring.h");

/* What the control line says: cells and messages published, mod 2^32 each, in one store. */
static inline uint64_t ctl_make(uint64_t pos, uint64_t seq)
{
	return pos << 32 | (uint32_t)seq;
}

size_t kvr_ring_memsize(uint32_t bytes)
{
	return bytes_ok(bytes) ? (size_t)KVR_RING_CTL + bytes : 0;
}

uint32_t kvr_ring_max_payload(uint32_t bytes)
{
	return bytes_ok(bytes) ? bytes / 8 - KVR_RING_HEADER : 0;
}

static int args_check(const char *call, const void *mem, uint32_t bytes, const void *cursor,
		      uint64_t start)
{
	if (!bytes_ok(bytes))
		return KVR_FAIL(-EINVAL,
				"%s: %u bytes of cells; a power of two from %u to %u is "
				"needed",
				call, bytes, KVR_RING_MIN, KVR_RING_MAX);
	if (!mem || (uintptr_t)mem % KVR_RING_CELL)
		return KVR_FAIL(-EINVAL, "%s: memory at %p; it must be aligned to %u", call, mem,
				KVR_RING_CELL);
	if (!cursor || (uintptr_t)cursor % sizeof(uint64_t))
		return KVR_FAIL(-EINVAL, "%s: cursor at %p; it must be aligned to 8", call, cursor);
	if (offset_of(bytes / KVR_RING_CELL, start))
		return KVR_FAIL(-EINVAL,
				"%s: start %llu; it must be a multiple of the capacity, "
				"%u cells",
				call, (unsigned long long)start, bytes / KVR_RING_CELL);
	return 0;
}

static inline uint64_t *cell_word(const struct kvr_ring_writer *w, uint64_t pos)
{
	return (uint64_t *)(void *)(w->cells + offset_of(w->capacity, pos) * KVR_RING_CELL);
}

int kvr_ring_writer_init(struct kvr_ring_writer *w, void *mem, uint32_t bytes,
			 const struct kvr_ring_cursor *cursor, uint64_t start)
{
	int err = args_check("kvr_ring_writer_init", mem, bytes, cursor, start);

	if (err)
		return err;
	*w = (struct kvr_ring_writer){
		.cells = (uint8_t *)mem + KVR_RING_CTL,
		.ctl = mem,
		.cursor = cursor,
		.capacity = bytes / KVR_RING_CELL,
		.limit = kvr_ring_max_payload(bytes) + 1,
		.pos = start,
		.published = start,
		.reader = start,
		.suspect = start,
		.extra = start,
		.published_extra = start,
	};
	/* Whatever was here before must not look like messages, to a reader or to an inspector. */
	memset(mem, 0, KVR_RING_CTL + (size_t)bytes);
	w->ctl[0] = ctl_make(start, 0);
	return 0;
}

/* The first evidence, again: what is in the reader's memory now may be something else. */
static __attribute__((cold)) int cursor_error(const struct kvr_ring_writer *w)
{
	return KVR_FAIL(w->error,
			"kvr_ring: the reader's cursor is at cell %llu; it was at %llu and %llu "
			"were published, so it can be from %llu to %llu. The reader's memory was "
			"overwritten; this ring is out of use, make a new one",
			(ull)w->bad_cursor, (ull)w->reader, (ull)w->bad_published, (ull)w->reader,
			(ull)w->bad_published);
}

/* Looks at the reader's cursor again: may `need` cells be written? */
static int writer_refresh(struct kvr_ring_writer *w, uint64_t need)
{
	uint64_t seen = kvr_load_acquire(&w->cursor->pos); /* P2, pairs with C2 */

	/* Modulo 2^64. It only rises, and not above what was published; so it never lags too far.
	 */
	if (seen - w->reader > w->published - w->reader) {
		w->error = -EBADMSG;
		w->limit = 0;
		w->bad_cursor = seen;
		w->bad_published = w->published;
		return cursor_error(w);
	}
	w->reader = seen;
	return w->pos - seen + need > w->capacity ? -EAGAIN : 0;
}

static inline uint64_t tag_make(uint64_t seq, uint32_t tag)
{
	return seq << 32 | tag;
}

/*
 * The message (or padding) at `pos`. Its header becomes visible with the batch: now if it is not
 * the first, at commit() if it is. The reader polls the first one's line: each store that comes
 * early costs that line another way there and back.
 */
static inline void header_put(struct kvr_ring_writer *w, uint64_t pos, uint32_t low, uint32_t tag)
{
	uint64_t *cell = cell_word(w, pos);

	if (pos == w->published) {
		w->first = (uint64_t)tag << 32 | low;
	} else {
		kvr_store_relaxed(cell + 1, tag_make(pos - w->extra, tag));
		kvr_store_relaxed(cell, pos << 32 | low);
	}
}

/* Before cell `to`, a word behind a message has to be looked at. */
static inline void suspect_to(struct kvr_ring_writer *w, uint64_t to)
{
	if ((int64_t)(w->suspect - to) < 0)
		w->suspect = to;
}

/* Fills up the ring's end: no cell of it may look like a message in the next lap. */
static void pad(struct kvr_ring_writer *w, uint64_t cells)
{
	uint64_t i;

	header_put(w, w->pos,
		   WORD_VALID | WORD_PADDING | ((uint32_t)cells * KVR_RING_CELL - KVR_RING_HEADER),
		   0);
	for (i = 1; i < cells; i++)
		kvr_store_relaxed(cell_word(w, w->pos + i), 0);
	w->pos += cells;
	w->extra += cells;
}

/* A message of this length simply fits where the writer is. */
static inline int fits(const struct kvr_ring_writer *w, uint32_t len)
{
	const uint64_t pos = w->pos, cells = cells_of(len), capacity = w->capacity;

	return len < w->limit && pos - w->reader + cells <= capacity &&
	       offset_of(capacity, pos) + cells <= capacity &&
	       (int64_t)(w->suspect - pos - cells) <= 0;
}

/* It does not: refused, full as far as is known, at the ring's end, or suspect. */
static int make_room(struct kvr_ring_writer *w, uint32_t len)
{
	uint64_t cells = cells_of(len), to_end, padding, behind;
	int err;

	if (w->error)
		return cursor_error(w);
	if (len >= w->limit)
		return KVR_FAIL(-EMSGSIZE,
				"kvr_ring: a message of %u bytes; this ring takes %u at "
				"most, an eighth of its size",
				len, w->limit - 1);
	to_end = w->capacity - offset_of(w->capacity, w->pos);
	padding = cells > to_end ? to_end : 0;
	if (w->pos - w->reader + padding + cells > w->capacity) {
		err = writer_refresh(w, padding + cells);
		if (err)
			return err;
	}
	if (padding)
		pad(w, padding);
	/* The cell behind may hold what looks like the next message: of a payload, or aborted. */
	behind = w->pos + cells;
	if ((int64_t)(w->suspect - behind) > 0 &&
	    word_matches(kvr_load_relaxed(cell_word(w, behind)), behind))
		kvr_store_relaxed(cell_word(w, behind), 0);
	return 0;
}

/* The message at `pos`, which fits there. */
static inline void message_add(struct kvr_ring_writer *w, uint32_t tag, uint32_t len)
{
	const uint64_t pos = w->pos, cells = cells_of(len);

	header_put(w, pos, WORD_VALID | len, tag);
	w->pos = pos + cells;
	if (cells > 1)
		w->extra += cells - 1;
}

static inline int reserve_here(struct kvr_ring_writer *w, uint32_t tag, uint32_t len,
			       void **ret_payload)
{
	*ret_payload = cell_word(w, w->pos) + 2;
	message_add(w, tag, len);
	if (len > FIRST) /* what the caller will write there is not known */
		suspect_to(w, w->pos + w->capacity);
	return 0;
}

/* Calls stand in functions of their own, so that the fast paths save no registers. */
static __attribute__((noinline)) int reserve_slow(struct kvr_ring_writer *w, uint32_t tag,
						  uint32_t len, void **ret_payload)
{
	int err = make_room(w, len);

	return err ? err : reserve_here(w, tag, len, ret_payload);
}

int kvr_ring_reserve(struct kvr_ring_writer *w, uint32_t tag, uint32_t len, void **ret_payload)
{
	if (__builtin_expect(!fits(w, len), 0))
		return reserve_slow(w, tag, len, ret_payload);
	return reserve_here(w, tag, len, ret_payload);
}

/* At most what the first cell takes, in few stores. */
static inline void copy_first(uint8_t *to, const uint8_t *from, uint32_t len)
{
	uint32_t i;

	if (len >= 16) {
		if (len > 32)
			memcpy(to + 16, from + 16, 16);
		memcpy(to, from, 16);
		memcpy(to + len - 16, from + len - 16, 16);
	} else if (len >= 8) {
		memcpy(to, from, 8);
		memcpy(to + len - 8, from + len - 8, 8);
	} else {
		for (i = 0; i < len; i++)
			to[i] = from[i];
	}
}

/*
 * `word` is the first of the cell at `pos`, behind a message's first: would a reader of the next
 * lap take it for a message? Taken from the source: in the ring, the core would wait for its own
 * store.
 */
static inline void word_check(struct kvr_ring_writer *w, uint64_t pos, uint64_t word)
{
	if (__builtin_expect(word_matches(word, pos + w->capacity), 0))
		suspect_to(w, pos + w->capacity + 1);
}

/* The bytes for the cells behind the first, of a message at `pos`. */
static inline void copy_rest(struct kvr_ring_writer *w, uint64_t pos, const uint8_t *from,
			     uint32_t len)
{
	uint8_t *to = (uint8_t *)(cell_word(w, pos) + 8);
	uint64_t word;
	uint32_t at;

	if (len <= FIRST)
		copy_first(to, from, len);
	else
		memcpy(to, from, len);
	for (at = 0; at < len; at += KVR_RING_CELL) {
		/* What is checked is what is there, even if somebody changes the source. */
		word = 0;
		memcpy(&word, from + at, kvr_min(len - at, sizeof(word)));
		kvr_store_relaxed(cell_word(w, ++pos), word);
		word_check(w, pos, word);
	}
}

static inline int put_any(struct kvr_ring_writer *w, uint32_t tag, const uint8_t *from,
			  uint32_t len)
{
	int err = fits(w, len) ? 0 : make_room(w, len);

	if (err)
		return err;
	if (len > FIRST)
		copy_rest(w, w->pos, from + FIRST, len - FIRST);
	copy_first((uint8_t *)(cell_word(w, w->pos) + 2), from, len < FIRST ? len : FIRST);
	message_add(w, tag, len);
	return 0;
}

static __attribute__((noinline)) int put_slow(struct kvr_ring_writer *w, uint32_t tag,
					      const uint8_t *from, uint32_t len)
{
	return put_any(w, tag, from, len);
}

/* What fits() says, of a message of one cell. */
static inline int small_fits(const struct kvr_ring_writer *w, uint32_t len)
{
	return len <= FIRST && len < w->limit && w->pos - w->reader < w->capacity &&
	       (int64_t)(w->suspect - w->pos) <= 1;
}

int kvr_ring_put(struct kvr_ring_writer *w, uint32_t tag, const void *data, uint32_t len)
{
	if (__builtin_expect(!small_fits(w, len), 0))
		return put_slow(w, tag, data, len);
	copy_first((uint8_t *)(cell_word(w, w->pos) + 2), data, len);
	header_put(w, w->pos, WORD_VALID | len, tag);
	w->pos++;
	return 0;
}

static inline void batch_publish(struct kvr_ring_writer *w)
{
	const uint64_t first = w->published, pos = w->pos, extra = w->extra;
	uint64_t *cell = cell_word(w, first), *ctl = w->ctl;

	kvr_store_relaxed(cell + 1,
			  tag_make(first - w->published_extra, (uint32_t)(w->first >> 32)));
	kvr_store_release(cell, first << 32 | (uint32_t)w->first); /* P1, pairs with C1 */
	w->published = pos;
	if (extra != w->published_extra)
		w->published_extra = extra;
	kvr_store_release(ctl, ctl_make(pos, pos - extra)); /* P3, pairs with C3 */
}

void kvr_ring_commit(struct kvr_ring_writer *w)
{
	if (w->pos != w->published)
		batch_publish(w);
}

void kvr_ring_abort(struct kvr_ring_writer *w)
{
	suspect_to(w, w->pos);
	w->pos = w->published;
	w->extra = w->published_extra;
}

static __attribute__((noinline)) int write_slow(struct kvr_ring_writer *w, uint32_t tag,
						const uint8_t *from, uint32_t len)
{
	int err = put_any(w, tag, from, len);

	if (!err)
		batch_publish(w);
	return err;
}

/* A message alone, of two cells, that fits: fewer stores than the general way. */
static __attribute__((noinline)) int write_two(struct kvr_ring_writer *w, uint32_t tag,
					       const uint8_t *from, uint32_t len)
{
	const uint64_t pos = w->pos, extra = w->extra;
	uint64_t *cell = cell_word(w, pos);

	copy_rest(w, pos, from + FIRST, len - FIRST);
	copy_first((uint8_t *)(cell + 2), from, FIRST);
	kvr_store_relaxed(cell + 1, tag_make(pos - extra, tag));
	kvr_store_release(cell, word_make(pos, 0, len)); /* P1, pairs with C1 */
	w->pos = pos + 2;
	w->published = pos + 2;
	w->extra = extra + 1;
	w->published_extra = extra + 1;
	kvr_store_release(w->ctl, ctl_make(pos + 2, pos + 1 - extra)); /* P3, pairs with C3 */
	return 0;
}

int kvr_ring_write(struct kvr_ring_writer *w, uint32_t tag, const void *data, uint32_t len)
{
	const uint64_t pos = w->pos;
	uint64_t *cell = cell_word(w, pos);

	if (__builtin_expect(pos != w->published || !small_fits(w, len), 0)) {
		if (pos == w->published && len > FIRST && len <= 2 * FIRST && fits(w, len))
			return write_two(w, tag, data, len);
		return write_slow(w, tag, data, len);
	}
	copy_first((uint8_t *)(cell + 2), data, len);
	kvr_store_relaxed(cell + 1, tag_make(pos - w->extra, tag));
	kvr_store_release(cell, word_make(pos, 0, len)); /* P1, pairs with C1 */
	w->pos = pos + 1;
	w->published = pos + 1;
	kvr_store_release(w->ctl, ctl_make(pos + 1, pos + 1 - w->extra)); /* P3, pairs with C3 */
	return 0;
}

int kvr_ring_passed(struct kvr_ring_writer *w, uint64_t pos)
{
	int err;

	if ((int64_t)(w->reader - pos) >= 0)
		return 1;
	err = w->error ? cursor_error(w) : writer_refresh(w, 0);
	return err ? err : (int64_t)(w->reader - pos) >= 0;
}

int kvr_ring_reader_init(struct kvr_ring_reader *r, const void *mem, uint32_t bytes,
			 struct kvr_ring_cursor *cursor, uint64_t start)
{
	int err = args_check("kvr_ring_reader_init", mem, bytes, cursor, start);

	if (err)
		return err;
	*r = (struct kvr_ring_reader){
		.cells = (const uint8_t *)mem + KVR_RING_CTL,
		.cursor = cursor,
		.capacity = bytes / KVR_RING_CELL,
		.limit = kvr_ring_max_payload(bytes) + 1,
		.pos = start,
		.gate = start - 1,
		.stream = STREAM,
		.released = start,
		.shown = start,
	};
	kvr_store_relaxed(&cursor->pos, start); /* nothing was read yet: no order */
	return 0;
}

static inline void reader_show(struct kvr_ring_reader *r)
{
	kvr_store_release(&r->cursor->pos, r->released); /* C2, pairs with P2 */
	r->shown = r->released;
}

/* Idle, so there is time to tell the writer. */
static inline int peek_nothing(struct kvr_ring_reader *r)
{
	if (r->shown != r->released)
		reader_show(r);
	return 0;
}

void kvr_ring_show(struct kvr_ring_reader *r)
{
	if (r->shown != r->released)
		reader_show(r);
}

/* The first evidence, again: what is in the ring now may be something else. */
static __attribute__((cold)) int peek_error(const struct kvr_ring_reader *r)
{
	return KVR_FAIL(
		r->error,
		"kvr_ring: message %u must be at cell %llu of a ring of %llu, which holds the "
		"commit word %#llx beside number %u: %s. The control line says that %u messages "
		"are published, up to cell %u. Nothing was consumed; the ring was overwritten and "
		"is out of use",
		r->bad_seq, (ull)r->bad_cell, (ull)r->capacity, (ull)r->bad_word,
		(uint32_t)(r->bad_beside >> 32), r->why, (uint32_t)r->bad_ctl,
		(uint32_t)(r->bad_ctl >> 32));
}

static inline const uint64_t *reader_cell(const struct kvr_ring_reader *r, uint64_t pos)
{
	return (const void *)(r->cells + offset_of(r->capacity, pos) * KVR_RING_CELL);
}

static inline const uint64_t *reader_ctl(const struct kvr_ring_reader *r)
{
	return (const void *)(r->cells - KVR_RING_CTL);
}

static __attribute__((cold)) int broken(struct kvr_ring_reader *r, uint64_t pos, uint64_t word,
					uint64_t ctl, const char *why)
{
	r->error = -EBADMSG;
	r->limit = 0;
	r->why = why;
	r->bad_seq = r->seq;
	r->bad_cell = pos;
	r->bad_word = word;
	r->bad_beside = kvr_load_relaxed(reader_cell(r, pos) + 1);
	r->bad_ctl = ctl;
	return peek_error(r);
}

static __attribute__((cold)) int peek_broken(struct kvr_ring_reader *r, uint64_t pos, uint64_t word,
					     const char *why)
{
	return broken(r, pos, word, kvr_load_relaxed(reader_ctl(r)), why);
}

/*
 * A reader that polls the cell takes its line away from a writer that is about to fill it. That is
 * the fastest way to learn of one message, and the slowest of many. So a reader that found many one
 * after another learns from the control line how far the writer is, takes everything up to there
 * (the gate) without a look at lines that are not written yet, and then looks at the control line
 * again. It is a hint, without any order: the commit words alone say what is there. And it is
 * believed for a while only, since a writer may have died just after a commit word.
 */
static uint32_t gate_look(struct kvr_ring_reader *r, uint64_t pos)
{
	uint64_t ctl = kvr_load_relaxed(reader_ctl(r)), cells = (uint32_t)((ctl >> 32) - pos), i;

	/* It may be behind: the writer stores it after the commit word. Or it lies. */
	if (cells > r->capacity)
		cells = 0;
	r->gate = pos + cells;
	for (i = 0; i < kvr_min(cells, FETCH + 1); i++)
		__builtin_prefetch(reader_cell(r, pos + i));
	return cells ? (uint32_t)ctl - r->seq : 0; /* messages */
}

/*
 * At the gate: 1 when the cell is worth a look, 0 when nothing is there. A reader as fast as its
 * writer would be back for each message, and take the control line away each time: it stays out of
 * the writer's way for about a microsecond (FastForward, PPoPP 2008, calls it slipping), and the
 * messages that come meanwhile are cheap.
 */
static __attribute__((noinline)) int gate_pass(struct kvr_ring_reader *r, uint64_t pos)
{
	uint32_t i, messages = gate_look(r, pos);

	if (messages < STREAM && r->gate - pos < r->capacity / 2) {
		for (i = 0; i < SLIP; i++)
			kvr_relax();
		messages = gate_look(r, pos);
	}
	if (messages >= STREAM / 4) {
		r->few = 0;
		r->stream = STREAM;
		return 1;
	}
	if (++r->few < STREAM_ENDS)
		return messages != 0;
	r->few = 0;
	/* Who peeks only when there is something never finds nothing: that is no stream. */
	r->stream = (uint32_t)kvr_min(2ull * r->stream, STREAM_MAX);
	r->gate = pos - 1; /* behind: back to the cells */
	r->idle = r->seq;
	return 1;
}

/*
 * Up to the gate all is written, and lies in the writer's cache: fetch it.
 * (always_inline: gcc drops the call of a function that does nothing but prefetch.)
 */
static inline __attribute__((always_inline)) void fetch_ahead(struct kvr_ring_reader *r,
							      uint64_t pos, uint32_t len)
{
	int64_t left = (int64_t)(r->gate - pos);

	if (left > FETCH) {
		__builtin_prefetch(reader_cell(r, pos + FETCH));
		if (len > FIRST)
			__builtin_prefetch(reader_cell(r, pos + FETCH + 1));
	} else if (left < 0 && r->seq - r->idle >= r->stream) {
		gate_look(r, pos);
	}
}

/* The message at pos, in `cell`, whose commit word is good. */
static inline int peek_take(struct kvr_ring_reader *r, uint64_t pos, const uint64_t *cell,
			    uint64_t word, struct kvr_ring_msg *ret_msg)
{
	uint64_t tag_seq = kvr_load_relaxed(cell + 1);
	uint32_t len = (uint32_t)word & WORD_LEN, seq = r->seq;

	if (__builtin_expect((uint32_t)(tag_seq >> 32) != seq, 0))
		return peek_broken(r, pos, word, "it has another number");
	ret_msg->data = cell + 2;
	ret_msg->len = len;
	ret_msg->tag = (uint32_t)tag_seq;
	ret_msg->seq = seq;
	r->pos = pos + cells_of(len);
	r->seq = seq + 1;
	fetch_ahead(r, pos, len);
	return 1;
}

/*
 * No plain message: nothing, padding (which is followed by its message in the same batch), or an
 * error.
 */
static __attribute__((noinline)) int peek_odd(struct kvr_ring_reader *r, uint64_t word,
					      struct kvr_ring_msg *ret_msg)
{
	uint64_t pos = r->pos;
	struct parsed m;
	const char *why;

	if (r->error)
		return peek_error(r);
	if (!word_matches(word, pos)) {
		r->idle = r->seq;
		return peek_nothing(r);
	}
	why = word_parse(word, pos, r->capacity, &m);
	if (!why && m.padding) {
		pos += m.cells;
		word = kvr_load_relaxed(reader_cell(r, pos)); /* came with the padding's */
		why = word_parse(word, pos, r->capacity, &m); /* refuses padding at offset 0 */
	}
	return why ? peek_broken(r, pos, word, why)
		   : peek_take(r, pos, reader_cell(r, pos), word, ret_msg);
}

int kvr_ring_peek(struct kvr_ring_reader *r, struct kvr_ring_msg *ret_msg)
{
	const uint64_t pos = r->pos, capacity = r->capacity;
	const uint64_t *cell = reader_cell(r, pos);
	uint64_t word, len;

	if (__builtin_expect(pos == r->gate, 0) && !gate_pass(r, pos))
		return r->error ? peek_error(r) : peek_nothing(r);
	word = kvr_load_acquire(cell); /* C1, pairs with P1 */
	/* A word of this position, without flags, and a length that fits: one comparison. */
	len = word ^ word_make(pos, 0, 0);
	if (__builtin_expect(len >= r->limit || offset_of(capacity, pos) + cells_of(len) > capacity,
			     0))
		return peek_odd(r, word, ret_msg);
	return peek_take(r, pos, cell, word, ret_msg);
}

void kvr_ring_release(struct kvr_ring_reader *r)
{
	r->released = r->pos;
	r->released_seq = r->seq;
	if (r->released - r->shown >= r->capacity / 4)
		reader_show(r);
}

void kvr_ring_rewind(struct kvr_ring_reader *r)
{
	r->pos = r->released;
	r->seq = r->released_seq;
	r->idle = r->seq;
}

/* Cells and messages from the reader to the writer, or back: both, or neither, and within a lap. */
static int ctl_possible(int64_t cells, int64_t messages, uint64_t capacity)
{
	if (cells < 0) {
		cells = -cells;
		messages = -messages;
	}
	if (!cells)
		return !messages;
	return messages > 0 && messages <= cells && cells <= (int64_t)capacity;
}

/*
 * A commit word that was overwritten by anything else looks like one that is not there yet. The
 * control line tells the two apart, and a healthy ring never fails here, wherever its writer was
 * stopped:
 *
 *   - the control line is stored after the commit word (P3), and read before it (C3): so whatever
 *     it counts is in its cell, and stays there, since the cell is not given back yet;
 *   - a writer that is stopped between the two has published more than the control line says. Then
 *     the reader may be ahead of it, by one batch at most, and nothing is missed;
 *   - what is reserved, put or aborted is in no control line;
 *   - a batch, with its padding, is counted in one store. So cells and messages always belong
 *     together: both are ahead of the reader, or behind it, or neither;
 *   - positions are compared mod 2^32, which is more than twice the capacity of any ring.
 */
int kvr_ring_check(struct kvr_ring_reader *r)
{
	const uint64_t pos = r->pos, ctl = kvr_load_acquire(reader_ctl(r)); /* C3, pairs with P3 */
	const int64_t cells = (int32_t)((uint32_t)(ctl >> 32) - (uint32_t)pos);
	const char *why = NULL;
	struct parsed m;
	uint64_t word;

	if (r->error)
		return peek_error(r);
	if (!ctl_possible(cells, (int32_t)((uint32_t)ctl - r->seq), r->capacity))
		why = "the control line is impossible";
	if (!why && cells <= 0)
		return 0;
	word = kvr_load_relaxed(reader_cell(r, pos)); /* came with the control line */
	if (!why)
		why = word_parse(word, pos, r->capacity, &m);
	return why ? broken(r, pos, word, ctl, why) : 0;
}
