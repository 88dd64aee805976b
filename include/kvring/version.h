/* SPDX-License-Identifier: Apache-2.0 */
/* Version of the library. The layouts in shared memory and on disk carry versions of their own. */
#ifndef KVRING_VERSION_H
#define KVRING_VERSION_H

#define KVR_VERSION_MAJOR 0
#define KVR_VERSION_MINOR 1
#define KVR_VERSION_PATCH 0
#define KVR_VERSION_STRING "0.1.0"

/* Marks what the shared library exports; lib/kvring.map holds the same list, and lint compares. */
#define KVR_API __attribute__((visibility("default")))

#endif
