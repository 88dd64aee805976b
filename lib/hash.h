/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums and hashes: XXH3-64, compiled in from libxxhash's header so that the compiler can
 * vectorise it. Not cryptographic: it finds broken bytes, not forged ones.
 */
#ifndef KVR_HASH_H
#define KVR_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t kvr_hash(const void *data, size_t len, uint64_t seed);

#endif
