/* SPDX-License-Identifier: Apache-2.0 */
/* The books of one process: see replay.h. */
#include <errno.h>
#include <stdlib.h>

#include "replay.h"

#define BYTE(kind, stage) ((uint8_t)((kind) << 4 | (stage)))
#define KIND(byte) ((uint32_t)(byte) >> 4) /* 0: a lookup, or nothing began */
#define STAGE(byte) ((byte)&15u)

int replay_book_open(struct replay_book *book, struct replay_proc *proc, uint32_t first,
		     uint32_t end)
{
	size_t i, requests = end - first;

	*book = (struct replay_book){ .proc = proc, .first = first, .end = end };
	book->base = calloc(requests + 1, sizeof(*book->base));
	book->before = calloc(requests + 1, 2);
	if (!book->base || !book->before)
		return -ENOMEM;
	for (i = 0; i <= requests; i++)
		book->base[i] = SIZE_MAX; /* not begun */
	return 0;
}

void replay_book_close(struct replay_book *book)
{
	free(book->base);
	free(book->before);
	free(book->attempts);
}

void replay_book_request(struct replay_book *book, uint32_t index)
{
	book->base[index - book->first] = book->n;
}

int replay_book_attempt(struct replay_book *book, uint32_t index, struct kvr_request *ret_request)
{
	size_t cap = book->cap ? 2 * book->cap : 4096;
	uint8_t *grown;

	if (book->n == book->cap) {
		grown = realloc(book->attempts, cap);
		if (!grown)
			return -ENOMEM;
		book->attempts = grown;
		book->cap = cap;
	}
	book->attempts[book->n++] = 0;
	*ret_request = (struct kvr_request){
		.id = index + 1ull, .attempt = (uint32_t)(book->n - book->base[index - book->first])
	};
	return 0;
}

/* The byte of an operation, or NULL: no request has that name. */
static uint8_t *find(struct replay_book *book, const struct kvr_request *request, uint32_t kind)
{
	size_t at, end;
	uint64_t i;

	if (request->id <= book->first || request->id > book->end)
		return NULL;
	i = request->id - 1 - book->first;
	if (kind == KVR_KIND_PREFETCH || kind == KVR_KIND_RESET)
		return request->attempt ? NULL : &book->before[2 * i + (kind == KVR_KIND_RESET)];
	at = book->base[i];
	end = book->base[i + 1];
	if (end == SIZE_MAX) /* the last request that began */
		end = book->n;
	return at < end && request->attempt && request->attempt <= end - at
		       ? &book->attempts[at + request->attempt - 1]
		       : NULL;
}

void replay_book_begun(struct replay_book *book, const struct kvr_request *request, uint32_t kind)
{
	uint8_t *byte = find(book, request, kind);

	if (!byte || *byte)
		return;
	*byte = BYTE(kind, KVR_STAGE_NONE);
	book->open++;
	book->proc->ops++;
}

void replay_book_completed(struct replay_book *book, const struct kvr_completion *c)
{
	uint8_t *byte = find(book, &c->request, c->kind);

	if (byte && !*byte && c->kind == KVR_KIND_PREFETCH)
		replay_book_begun(book, &c->request, c->kind);
	if (!byte || c->stage >= KVR_STAGES || KIND(*byte) != c->kind || STAGE(*byte) >= c->stage ||
	    STAGE(*byte) >= KVR_STAGE_END) {
		book->stray++; /* unknown, foreign, or beyond its end */
		return;
	}
	*byte = BYTE(c->kind, c->stage);
	if (c->stage < KVR_STAGE_END)
		return;
	book->open--;
	if (c->stage == KVR_STAGE_CANCELLED)
		book->proc->ops_cancelled++;
	else if (c->stage != KVR_STAGE_WRITTEN && c->stage != KVR_STAGE_DONE)
		book->proc->ops_failed++;
}

int replay_book_oldest_store(struct replay_book *book, struct kvr_request *ret_request)
{
	size_t i, at = 0;
	uint8_t byte;

	for (; book->oldest < book->n; book->oldest++) {
		byte = book->attempts[book->oldest];
		if (KIND(byte) == KVR_KIND_STORE && STAGE(byte) < KVR_STAGE_END)
			break;
	}
	if (book->oldest == book->n)
		return 0;
	for (i = 0; i < book->end - book->first && book->base[i] <= book->oldest; i++)
		at = i;
	*ret_request =
		(struct kvr_request){ .id = book->first + at + 1,
				      .attempt = (uint32_t)(book->oldest - book->base[at] + 1) };
	return 1;
}
