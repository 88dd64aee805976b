/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring: one writer, one reader, variable-length messages, in any memory that both can see.
 *
 * The memory is cut into 64-byte cells. A message occupies whole cells; its first 16 bytes are a
 * header whose first word, the *commit word*, is written last. The reader polls exactly the cell
 * where the next message must start, so a small message costs one line transfer a hop. The word
 * carries the low 32 bits of the cell's position: a word left by an earlier lap does not match, and
 * means that nothing is there yet. So consumed cells are not cleared.
 *
 * Payload bytes of an earlier lap could look like a commit word. The writer makes sure that they
 * never do where the reader looks next: see lib/ring.c.
 *
 *   byte  size  field      writer  meaning
 *      0     8  commit     W       bits 63..32 position (in cells) mod 2^32; bit 31 always 1;
 *                                  bit 30 padding up to the end of the ring; bits 23..0 length
 *      8     4  tag        W       the caller's
 *     12     4  seq        W       number of the message in this ring, mod 2^32 (padding has none)
 *     16     n  payload    W
 *
 * The control line in front of the cells begins with one word: bits 63..32 cells published, bits
 * 31..0 messages published, each mod 2^32. It is for inspectors, a hint to the reader of a
 * stream, and what kvr_ring_check() compares with. The reader's cursor lies in memory of the
 * reader's, so that each page has one writer.
 *
 * Order. Each access below is paired with its partner:
 *
 *   P1 writer: store-release of the commit word    C1 reader: load-acquire of the commit word
 *      without it: the reader sees a length or a payload that is not there yet
 *   C2 reader: store-release of its cursor         P2 writer: load-acquire of the reader's cursor
 *      without it: the writer overwrites bytes that the reader is still reading
 *   P3 writer: store-release of the control line   C3 reader: load-acquire of it, to check the ring
 *      without it: a message that is on its way looks like one that was overwritten
 *
 * What the writer stores beside the commit word of a batch's first message needs no order of its
 * own: P1 publishes it. All calls are wait-free; a peek in a stream (many messages one after
 * another) may stay for about a microsecond, so that the writer gets ahead. One thread at a time
 * may use a writer, one a reader.
 */
#ifndef KVRING_RING_H
#define KVRING_RING_H

#include "kvring/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVR_RING_CELL 64u
#define KVR_RING_HEADER 16u	 /* bytes of a message's header */
#define KVR_RING_CTL 128u	 /* bytes before the cells: the writer's control line */
#define KVR_RING_MIN 1024u	 /* bytes of cells, a power of two, at least and ... */
#define KVR_RING_MAX (64u << 20) /* ... at most */

/* The reader's cursor; 128 bytes, so that no other word shares its line or the adjacent one. */
struct kvr_ring_cursor {
	uint64_t pos; /* cells consumed since the start. R writes (C2), W reads (P2) */
	uint64_t pad[15];
};

struct kvr_ring_writer {
	uint8_t *cells;
	uint64_t capacity;  /* cells */
	uint64_t pos;	    /* next cell to reserve */
	uint64_t published; /* cells the reader may see */
	uint64_t reader;    /* last bounded copy of the reader's cursor */
	uint64_t suspect;   /* before this cell, look at the word behind a message */
	uint64_t extra;	    /* cells that start no message: pos - extra messages are reserved */
	uint64_t published_extra;
	uint64_t first; /* of the first reserved message: tag, flags, length */
	uint64_t *ctl;	/* the control line: see above */
	const struct kvr_ring_cursor *cursor; /* the reader's; untrusted */
	uint32_t limit; /* one more than the longest message; 0 after an error */
	int error;	/* sticky -EBADMSG, and its evidence: */
	uint64_t bad_cursor, bad_published;
};

struct kvr_ring_reader {
	const uint8_t *cells;
	uint64_t capacity;
	uint64_t pos;	   /* next cell to peek */
	uint64_t gate;	   /* in a stream: look at the control line when `pos` gets here */
	uint64_t released; /* cells given back by the caller */
	uint64_t shown;	   /* what the writer was told (C2): at most a quarter behind */
	struct kvr_ring_cursor *cursor;
	uint32_t seq; /* expected of the next message */
	uint32_t released_seq;
	uint32_t idle;	 /* number of the message that was not there at the last look at a cell */
	uint32_t limit;	 /* one more than the longest message; 0 after an error */
	uint32_t stream; /* messages in a row that make a stream */
	uint32_t few;	 /* looks at the control line in a row that found few */
	int error;	 /* sticky -EBADMSG, and its evidence: */
	uint32_t bad_seq;
	uint64_t bad_cell, bad_word, bad_beside, bad_ctl;
	const char *why;
};

struct kvr_ring_msg {
	const void *data; /* points into the ring; valid until it is released */
	uint32_t len;
	uint32_t tag;
	uint32_t seq;
};

/* Bytes of memory for `bytes` of cells (a power of two), control line included. 0: out of range. */
KVR_API size_t kvr_ring_memsize(uint32_t bytes);
/* Largest payload: an eighth of the cells, less the header. */
KVR_API uint32_t kvr_ring_max_payload(uint32_t bytes);

/*
 * Prepares `mem` (KVR_RING_CTL + bytes, aligned to 64, better to 128) and its writer. `cursor` must
 * hold `start`. The caller owns the memory; nothing is allocated. start: first position
 * in cells, 0 but in tests of wrap-around; must be a multiple of the capacity.
 */
KVR_API int kvr_ring_writer_init(struct kvr_ring_writer *w, void *mem, uint32_t bytes,
				 const struct kvr_ring_cursor *cursor, uint64_t start);
/* A reader of an initialised ring that nobody read yet. Writes *cursor alone. */
KVR_API int kvr_ring_reader_init(struct kvr_ring_reader *r, const void *mem, uint32_t bytes,
				 struct kvr_ring_cursor *cursor, uint64_t start);

/*
 * Reserves room for one message and returns where its payload goes. Several may be reserved before
 * one commit, which publishes all at once. Returns 0, -EAGAIN (full), -EMSGSIZE (over the maximum),
 * -EBADMSG (the reader's cursor is impossible; sticky, and so is its sentence).
 */
KVR_API int kvr_ring_reserve(struct kvr_ring_writer *w, uint32_t tag, uint32_t len,
			     void **ret_payload);
/*
 * The same with a copy of the payload: faster than to fill in what was reserved, unless the payload
 * is made right there. `data` may be anything when len is 0, and at any address.
 */
KVR_API int kvr_ring_put(struct kvr_ring_writer *w, uint32_t tag, const void *data, uint32_t len);
/* Publishes everything reserved or put since the last commit. No-op when nothing is. */
KVR_API void kvr_ring_commit(struct kvr_ring_writer *w);
/* Forgets everything reserved or put since the last commit; the reader never sees it. */
KVR_API void kvr_ring_abort(struct kvr_ring_writer *w);
/* put and commit. A failure publishes nothing, and leaves what was put before for a commit. */
KVR_API int kvr_ring_write(struct kvr_ring_writer *w, uint32_t tag, const void *data, uint32_t len);
/*
 * Whether the reader gave back everything before `pos`, a value that `published` had after a
 * commit: 1; 0: not yet, as far as it told; -EBADMSG (its cursor is impossible; sticky). For bytes
 * outside the ring that a message points to: after 1 the reader does not look at them any more.
 */
KVR_API int kvr_ring_passed(struct kvr_ring_writer *w, uint64_t pos);

/*
 * The next message that was not peeked yet: 1 and *ret_msg, 0 when there is none (in a stream, also
 * while its writer is between two stores of its commit), -EBADMSG when
 * the cell holds something impossible (sticky; nothing is consumed). Every field is copied once and
 * bounded; data[0..len) lies inside the ring.
 */
KVR_API int kvr_ring_peek(struct kvr_ring_reader *r, struct kvr_ring_msg *ret_msg);
/* Gives back everything peeked so far. The writer learns of it a quarter ring later, or at the
 * next peek that finds nothing. */
KVR_API void kvr_ring_release(struct kvr_ring_reader *r);
/* The writer may learn of it now: somebody may wait for less than a quarter ring. */
KVR_API void kvr_ring_show(struct kvr_ring_reader *r);
/* Forgets the peeks since the last release: the same messages come again. */
KVR_API void kvr_ring_rewind(struct kvr_ring_reader *r);

/*
 * For a reader that found nothing for longer than it expected: did the writer publish a message
 * beyond the last one peeked that is not where it must be? A commit word that was overwritten looks
 * like "nothing there" to a peek. 0, or -EBADMSG (sticky), which no healthy writer causes, wherever
 * it is or was stopped. Takes the writer's control line away from it: not for every peek.
 */
KVR_API int kvr_ring_check(struct kvr_ring_reader *r);

/*
 * For inspectors: walks the messages that are still readable in a *copy* of the cells. Finds the
 * oldest run of messages that ends exactly at `published` (the writer's cursor, untrusted), and
 * calls `fn` with each in order. Returns their number. Bytes of a payload that
 * look like a message can hide older ones. Never reads outside the copy and ends after
 * at most one lap, whatever the bytes are. pos is the message's position in cells.
 */
KVR_API int kvr_ring_walk(const void *cells, uint32_t bytes, uint64_t published,
			  void (*fn)(void *arg, const struct kvr_ring_msg *msg, uint64_t pos),
			  void *arg);

#ifdef __cplusplus
}
#endif
#endif
