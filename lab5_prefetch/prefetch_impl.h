/* prefetch_impl.h -- functions that lab 5's provided files share; internal. */
#pragma once
#include "lab2_forward/forward.h"
#include "lab5_prefetch/prefetch_setup.h"

/* prefetch_unwritten -- whether `status` says that a task of lab 5 is unwritten (FSDP_ETODO). If
 * so, rank 0 prints a note once (config.told), and the caller goes on without that task. */
bool prefetch_unwritten(prefetch *p, fsdp_status status);
/* prefetch_release -- limiter_release, if u counts and is SHARDED again, freed in order of s. */
fsdp_status prefetch_release(prefetch *p, int u, stream *s);
