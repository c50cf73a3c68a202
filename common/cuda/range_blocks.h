/* range_blocks.h -- ranges of an array (ops/ranges.h) as a __grid_constant__ argument of kernels,
 * which CUDA 11.8 would else copy for each thread. For .cu files. */
#pragma once
#include "common/cuda/launch.h"
#include "common/ops/ranges.h"

/* As many ranges as fit beside a kernel's other arguments: all of a transformer's block. Blocks of
 * BLOCK_THREADS: those of range i end before number end[i]. */
enum { MOST_RANGES = 32 };
typedef struct range_blocks {
    decay_range at[MOST_RANGES];
    unsigned end[MOST_RANGES];
    int n;
} range_blocks;

/* next_blocks -- the next MOST_RANGES ranges, from number *i on; like range_next. */
static inline bool next_blocks(const range_table *t, size_t elems, int *i, range_blocks *out)
{
    unsigned end = 0;
    for (out->n = 0; out->n < MOST_RANGES && range_next(t, i, 0, elems, &out->at[out->n]); out->n++)
        out->end[out->n] = end += blocks_of(out->at[out->n].elems);
    return out->n > 0;
}
