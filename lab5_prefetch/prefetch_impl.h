/* prefetch_impl.h -- what lab 5's provided files share; internal. */
#pragma once
#include "lab2_forward/forward.h"
#include "lab5_prefetch/prefetch_setup.h"

/* prefetch_unwritten -- whether `status` says that a task is unwritten. Rank 0 says so once
 * (config.told), and the caller goes on without that task. */
bool prefetch_unwritten(prefetch *p, fsdp_status status);
/* prefetch_release -- unit u may have been freed in order of s; if so, it counts until then. */
fsdp_status prefetch_release(prefetch *p, int u, stream *s);
