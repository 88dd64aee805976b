/* SPDX-License-Identifier: Apache-2.0 */
/* The store on devices made by somebody else: tests open it on simulated ones. */
#ifndef KVR_STORE_H
#define KVR_STORE_H

#include "format.h"
#include "io.h"
#include "kvring/store.h"

/*
 * As kvr_store_open(), on n devices that are already locked; takes them over on success.
 * opts->paths, npaths, pool and depth are ignored. blank: format them, whatever they hold
 * (opts->bytes 0: as large as they are).
 */
int kvr_store_open_io(const struct kvr_store_opts *opts, struct kvr_io **ios, uint32_t n, int blank,
		      struct kvr_store **ret_store);

const struct kvr_geometry *kvr_store_geometry(const struct kvr_store *store);

#endif
