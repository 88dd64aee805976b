/* SPDX-License-Identifier: Apache-2.0 */
/* Everything. Reading order: connector.h (the worker's calls), group.h, channel.h, ring.h, store.h.
 */
#ifndef KVRING_H
#define KVRING_H

#include "kvring/axes.h"
#include "kvring/channel.h"
#include "kvring/connector.h"
#include "kvring/err.h"
#include "kvring/group.h"
#include "kvring/inspect.h"
#include "kvring/ring.h"
#include "kvring/store.h"
#include "kvring/types.h"
#include "kvring/version.h"
#include "kvring/wait.h"

#endif
