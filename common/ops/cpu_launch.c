/* cpu_launch.c -- launches a kernel that is a single tiles_run. */
#include "common/ops/cpu_kernels.h"

/* The arguments of a tiles_launch as copied to its stream. */
typedef struct tiles_args {
    tiling t;
    _Alignas(max_align_t) char args[TILES_ARGS_BYTES];
} tiles_args;

static fsdp_status tiles_kernel(void *args, int n_threads)
{
    const tiles_args *a = args;
    n_threads = threads_for(n_threads, a->t.work, a->t.min_work);
    return tiles_run(n_threads, a->t.n_tiles, a->t.tile, a->args);
}

fsdp_status tiles_launch(stream *s, tiling t, const void *args, size_t args_bytes, op_work work)
{
    tiles_args a = {.t = t};
    FSDP_ASSERT(args_bytes <= sizeof a.args);
    memcpy(a.args, args, args_bytes);
    return kernel_launch(s, tiles_kernel, &a, offsetof(tiles_args, args) + args_bytes, work);
}
