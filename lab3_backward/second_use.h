/* second_use.h -- lab 3, provided: the second use of a tied parameter (GPT-2: the embedding, used
 * by the head) delivers its gradient at another time than the first use. In canonical mode, where
 * the sum must have one fixed shape, the two uses are summed separately, and their sums are added
 * last. So a second use has a buffer of its own, the `next` of its unit's buffer, and the code that
 * handles a unit's gradient handles each of its buffers. */
#pragma once
#include "lab3_backward/reducer.h"

/* second_use_init -- append a buffer for each trained second use in unit u, if mode is canonical.
 *   errors  FSDP_ENOMEM */
fsdp_status second_use_init(reducer *r, int u);
