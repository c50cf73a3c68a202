/* slices.h -- slices of an array that lie one behind the other, from their lengths. */
#pragma once
#include "common/comm/comm.h"

static inline const comm_slice *slices_of(const size_t *lengths, int n, comm_slice *out)
{
    size_t begin = 0;
    for (int r = 0; r < n; r++) {
        out[r] = (comm_slice){.begin = begin, .elems = lengths[r]};
        begin += lengths[r];
    }
    return out;
}
