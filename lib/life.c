/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The liveness word on the kernel's robust list, spoken to directly: glibc offers the list only
 * through robust mutexes, which would put their own pointers into the shared page. Here the list
 * head and its one entry are thread-local, and futex_offset leads from the entry to the word.
 *
 * What the kernel does when the thread ends, by exit, execve or kill: for each entry, and for
 * list_op_pending, it takes entry + futex_offset; if the word's tid is the dying thread's, the word
 * becomes FUTEX_OWNER_DIED. This is done before the address space is torn down. A forked child
 * starts without a list. And if the word says FUTEX_WAITERS, as it always does here, one of those
 * who sleep on it is woken (they may not write it: their mapping is read-only).
 */
#include "life.h"

#include <errno.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "atomic.h"
#include "err.h"

/* struct robust_list_head of linux/futex.h, volatile: the kernel reads it at any instruction. */
struct robust_entry {
	struct robust_entry *volatile next;
};
struct robust_head {
	struct robust_entry list; /* circular: points to itself when empty */
	volatile long futex_offset;
	struct robust_entry *volatile pending;
};
_Static_assert(sizeof(struct robust_head) == sizeof(struct robust_list_head), "robust list");
_Static_assert(offsetof(struct robust_head, pending) ==
		       offsetof(struct robust_list_head, list_op_pending),
	       "robust list");

static _Thread_local struct {
	struct robust_head head;
	struct robust_entry entry;
	uint32_t *word;
	uint32_t tid;	/* who filled this in: a forked child inherits the bytes, not the list */
	void *old_head; /* what was registered before, glibc's */
	size_t old_len;
} robust;

static int robust_list_replace(uint32_t *word, uint32_t tid)
{
	if (syscall(SYS_get_robust_list, 0, &robust.old_head, &robust.old_len) < 0)
		robust.old_head = NULL;
	robust.head.list.next = &robust.head.list;
	/* Through integers: the two lie in different objects. */
	robust.head.futex_offset = (long)((uintptr_t)word - (uintptr_t)&robust.entry);
	robust.head.pending = NULL;
	if (syscall(SYS_set_robust_list, &robust.head, sizeof(robust.head)) < 0)
		return KVR_FAIL(-errno,
				"liveness word: set_robust_list was refused: %s; allow this "
				"system call in the sandbox's filter",
				kvr_strerror(errno));
	robust.word = word;
	robust.tid = tid;
	return 0;
}

static void robust_list_restore(void)
{
	if (robust.old_head)
		syscall(SYS_set_robust_list, robust.old_head, robust.old_len);
	robust.word = NULL;
}

/* Why the word could not be taken. */
static int hold_refused(uint32_t seen)
{
	if (kvr_life_of(seen) == KVR_LIFE_DEAD)
		return KVR_FAIL(-EOWNERDEAD,
				"liveness word: its owner died (word %#x); a word is "
				"taken once, make a new epoch",
				seen);
	return KVR_FAIL(-EBUSY, "liveness word: thread %u holds it already (word %#x)",
			seen & FUTEX_TID_MASK, seen);
}

int kvr_life_hold(uint32_t *word)
{
	uint32_t tid = (uint32_t)gettid();
	int err;

	if (robust.word && robust.tid == tid)
		return KVR_FAIL(-EBUSY,
				"liveness word: thread %u holds another one already; use "
				"one thread for each",
				tid);
	err = robust_list_replace(word, tid);
	if (err)
		return err;
	/* Announced before it is taken: killed in between, the kernel still looks at the word. */
	robust.head.pending = &robust.entry;
	if (!kvr_cas_acq_rel32(word, 0, tid | FUTEX_WAITERS)) { /* L1, pairs with L2 */
		robust.head.pending = NULL;
		robust_list_restore();
		return hold_refused(kvr_load_relaxed32(word));
	}
	robust.entry.next = &robust.head.list;
	robust.head.list.next = &robust.entry;
	robust.head.pending = NULL;
	return 0;
}

void kvr_life_drop(uint32_t *word)
{
	uint32_t tid = (uint32_t)gettid();

	if (robust.word != word || robust.tid != tid)
		return;
	robust.head.pending = &robust.entry;
	robust.head.list.next = &robust.head.list;
	kvr_store_release32(word, 0); /* L1, pairs with L2 */
	robust.head.pending = NULL;
	robust_list_restore();
}

enum kvr_life_state kvr_life_of(uint32_t word)
{
	if (word & FUTEX_OWNER_DIED)
		return KVR_LIFE_DEAD;
	return word & FUTEX_TID_MASK ? KVR_LIFE_ALIVE : KVR_LIFE_NONE;
}

enum kvr_life_state kvr_life_peek(const uint32_t *word)
{
	return kvr_life_of(kvr_load_acquire32(word)); /* L2, pairs with L1 */
}
