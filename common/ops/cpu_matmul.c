/* cpu_matmul.c -- matrix products over a fixed grid of tiles. See cpu_kernels.h.
 *
 * A tile spans the whole of k and is one single-threaded gemm call, so the grid is what fixes the
 * bits (gemm_portable does not even depend on that). It is chosen by (m,n,k) alone. */
#include "common/ops/cpu_kernels.h"

/* oneDNN runs tiles of 256 x 384 within a few percent of its speed on the whole; multiples of 48
 * columns suit it best. Narrower tiles cost it 5%, so they are used only when there would be few
 * tiles for the threads, and only where one is still worth handing out (2 MFLOP: some 20 us). */
enum { TILE_M = 256, TILE_N = 384, NARROW_TILE_N = 192, FEW_TILES = 16 };
static const size_t MIN_TILE_MACS = (size_t)1 << 20;

static size_t choose_tile_n(const matmul_args *a)
{
    const size_t n_tiles = tiles_of(a->m, TILE_M) * tiles_of(a->n, TILE_N);
    const size_t narrow_macs = min_size(a->m, TILE_M) * NARROW_TILE_N * a->k;
    return n_tiles < FEW_TILES && narrow_macs >= MIN_TILE_MACS ? NARROW_TILE_N : TILE_N;
}

typedef struct matmul_job {
    const matmul_args *a;
    gemm_fn gemm;
    size_t tile_m, tile_n, n_tiles_n;
} matmul_job;

static fsdp_status matmul_tile(const void *args, size_t tile)
{
    const matmul_job *j = args;
    const matmul_args *a = j->a;
    const size_t row = tile / j->n_tiles_n * j->tile_m, col = tile % j->n_tiles_n * j->tile_n;
    const size_t lda = a->trans_a ? a->m : a->k, ldb = a->trans_b ? a->k : a->n;
    const gemm_args g = {
        .c = a->out + row * a->n + col,
        .a = a->a + (a->trans_a ? row : row * lda),
        .b = a->b + (a->trans_b ? col * ldb : col),
        .m = min_size(j->tile_m, a->m - row),
        .n = min_size(j->tile_n, a->n - col),
        .k = a->k,
        .ldc = a->n,
        .lda = lda,
        .ldb = ldb,
        .trans_a = a->trans_a,
        .trans_b = a->trans_b,
        .accumulate = a->accumulate,
    };
    return j->gemm(&g);
}

fsdp_status matmul_tiled(const matmul_args *a, int n_threads, gemm_fn gemm)
{
    if (a->m == 0 || a->n == 0)
        return FSDP_OK;
    if (a->k == 0) {
        if (!a->accumulate)
            memset(a->out, 0, a->m * a->n * sizeof *a->out);
        return FSDP_OK;
    }
    const size_t tile_n = choose_tile_n(a);
    const matmul_job job = {a, gemm, TILE_M, tile_n, tiles_of(a->n, tile_n)};
    n_threads = threads_for(n_threads, a->m * a->n * a->k, MIN_TILE_MACS);
    return tiles_run(n_threads, tiles_of(a->m, TILE_M) * job.n_tiles_n, matmul_tile, &job);
}
