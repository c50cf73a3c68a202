/* cpu_tiles.c -- the one place where CPU kernels start threads. See cpu_tiles.h. */
#include "common/device/cpu_tiles.h"
#include <omp.h>
#include "common/device/guard.h"

static fsdp_status run_here(size_t n_tiles, tile_fn tile, const void *args)
{
    for (size_t i = 0; i < n_tiles; i++)
        TRY(tile(args, i));
    return FSDP_OK;
}

/* Tiles are handed out one by one, because some take longer than others; which thread computes a
 * tile does not change the result. One tile, or one thread, starts no parallel region, because
 * small models mostly have small operations.
 *
 * While the threads compute, they have the caller's right to guarded memory. At the end all but the
 * caller give it up, because a thread may serve another caller next. (With keys, a thread that
 * starts here inherits the caller's right.) */
fsdp_status tiles_run(int n_threads, size_t n_tiles, tile_fn tile, const void *args)
{
    if (n_threads <= 1 || n_tiles <= 1)
        return run_here(n_tiles, tile, args);
    if ((size_t)n_threads > n_tiles)
        n_threads = (int)n_tiles;
    fsdp_error_info error = {.status = FSDP_OK};
    bool right = guard_right();
#pragma omp parallel num_threads(n_threads) default(none) shared(n_tiles, tile, args, error, right)
    {
        guard_right_set(right);
#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < n_tiles; i++) {
            if (tile(args, i) != FSDP_OK) {
#pragma omp critical(fsdp_tiles_error)
                error = *fsdp_error_get();
            }
        }
        guard_right_set(right && omp_get_thread_num() == 0);
    }
    return error.status != FSDP_OK ? fsdp_error_set(&error) : FSDP_OK;
}
