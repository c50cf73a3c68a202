/* cpu_tiles.h -- the threads of CPU kernels.
 *
 *   stream_launch -> kernel(args, n_threads) -> tiles_run -> tile(args, i)
 *
 * The tiling of an output depends only on its shape, and one thread computes a tile. So no result
 * depends on the number of threads. */
#pragma once
#include <stddef.h>
#include "common/base/dtype.h"

/* Elements of one tile of element-wise work, and the least elements for which threads are started
 * (_EXPS: with an exponential). To wake threads takes 2 us, or up to 50 us on a busy machine. An
 * element takes about 0.1 ns, or 1 ns with an exponential. */
enum { TILE_ELEMS = 1 << 15, MIN_PARALLEL_ELEMS = 1 << 18, MIN_PARALLEL_EXPS = 1 << 16 };

typedef fsdp_status (*tile_fn)(const void *args, size_t tile);

/* tiles_run -- tile(args, i) for i < n_tiles, on up to n_threads threads, each tile once; returns
 * after all have run. If a tile fails, the other tiles may or may not have run; the error of one of
 * the failed tiles becomes this thread's error. */
fsdp_status tiles_run(int n_threads, size_t n_tiles, tile_fn tile, const void *args);

/* threads_for -- n_threads, or 1 if the work is too small to pay for a second thread. */
static inline int threads_for(int n_threads, size_t work, size_t min_work)
{
    return work < min_work ? 1 : n_threads;
}

/* tiles_of -- the number of tiles of `elems` elements; the last tile may be smaller. */
static inline size_t tiles_of(size_t elems, size_t tile_elems)
{
    return elems / tile_elems + (elems % tile_elems != 0);
}
