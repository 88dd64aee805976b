/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors. Every call returns 0 or a count on success, or a negative errno value. The vocabulary is
 * fixed:
 *
 *   -EINVAL      an argument is out of range; the sentence names it
 *   -EAGAIN      nothing there, or no room, at this moment; calling again later may work
 *   -EMSGSIZE    a message or an answer is larger than the limit that the sentence names
 *   -ETIMEDOUT   the deadline passed; the sentence says what was awaited and what the peer last did
 *   -EINTR       a signal handler ran while the call slept; calling again goes on
 *   -EPROTO      the other side differs: layout, version, configuration, or the tag of a message
 *   -EBADMSG     bytes from shared memory or disk are impossible; first evidence is in the sentence
 *   -EOWNERDEAD  the leader or a rank died; the sentence names it
 *   -ESTALE      a newer epoch of the group exists; attach again
 *   -ESHUTDOWN   the leader ended the group in good order
 *   -EBUSY       somebody else owns it; the sentence says who
 *   -ENOENT      no such group, request or operation
 *   -ENOSPC      not enough space; the sentence has the bytes needed and found
 *   -ECANCELED   the operation was cancelled before it ended
 */
#ifndef KVRING_ERR_H
#define KVRING_ERR_H

#include "kvring/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The last failure on this thread as one sentence: which call, which object, observed against
 * expected, what to do. "" when nothing failed yet. Valid until the next kvr call on this thread;
 * never freed by the caller. Safe from any thread.
 */
KVR_API const char *kvr_explain(void);

/* A short text for an error number; takes -errno or errno. Never NULL. Safe from any thread. */
KVR_API const char *kvr_strerror(int err);

#ifdef __cplusplus
}
#endif
#endif
