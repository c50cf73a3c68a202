/* prefetch_setup.h -- lab 5, provided: the table of hooks with overlap.
 *
 *   prefetch_create (it fills in the table of hooks) -> micro-steps -> prefetch_free
 *
 * A host that runs ahead issues the gathers of later units while earlier ones compute, so it
 * prefetches by itself ("implicit"). The limiter keeps the host from gathering the whole model, and
 * the host is never more than one micro-step ahead. */
#pragma once
#include "lab5_prefetch/prefetch.h"

/* prefetch_create -- give r->f's gathers and reductions a stream and a group each, and fill in
 * *out, the table of hooks of a training pass with overlap. A hook whose task is not written does
 * what labs 2 and 3 do, and rank 0 says so once (config->told).
 *   r           must outlive p, and must not move; p must not move either
 *   collective  all ranks of the world
 *   errors      FSDP_EINVAL: a limit out of range, or the mode is NONE or AUTO; FSDP_ENOMEM;
 *               errors of stream_create and comm_range; nothing is left behind */
fsdp_status prefetch_create(const prefetch_config *config, reducer *r, prefetch *p,
                            unit_hooks *out);
/* prefetch_free -- wait for both streams, free everything, and give r->f lab 2's stream and groups
 * back; a zeroed struct is accepted. */
void prefetch_free(prefetch *p);
