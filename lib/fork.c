/* SPDX-License-Identifier: Apache-2.0 */
/* One handler for all descriptors: pthread_atfork() cannot be taken back. */
#include "fork.h"

#include <pthread.h>
#include <unistd.h>

#include "atomic.h"

#define GUARDED 256u

static uint32_t guarded[GUARDED]; /* fd + 1; 0: free */
static uint32_t generation;

/* In the child, where this is the only thread. Only close(), which is allowed there. */
static void in_child(void)
{
	for (uint32_t i = 0; i < GUARDED; i++) {
		uint32_t fd = kvr_load_relaxed32(&guarded[i]);

		if (fd)
			close((int)fd - 1);
		kvr_store_relaxed32(&guarded[i], 0);
	}
	kvr_store_relaxed32(&generation, kvr_load_relaxed32(&generation) + 1);
}

static void arm(void)
{
	pthread_atfork(NULL, NULL, in_child);
}

static void armed(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, arm);
}

void kvr_fork_guard(int fd)
{
	armed();
	for (uint32_t i = 0; i < GUARDED; i++)
		if (kvr_cas_acq_rel32(&guarded[i], 0, (uint32_t)fd + 1)) /* H1, pairs with H1 */
			return;
}

void kvr_fork_unguard(int fd)
{
	for (uint32_t i = 0; i < GUARDED; i++)
		if (kvr_cas_acq_rel32(&guarded[i], (uint32_t)fd + 1, 0)) /* H1, pairs with H1 */
			return;
}

uint32_t kvr_fork_generation(void)
{
	armed();
	return kvr_load_relaxed32(&generation);
}
