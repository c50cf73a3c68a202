/* cpu_matmul.c -- matrix products over a fixed grid of tiles. See cpu_kernels.h.
 *
 * A tile spans all of k and is computed by one thread: by one call of a gemm, or by one for each
 * leaf of a part of the tile. The grid depends on (m,n,k) alone, and oneDNN's bits on the grid.
 * Bits of the other kernels depend on k alone. A tile's products are fp32; bias and residual are
 * added and the sums are rounded while the tile is in the cache. */
#include "common/ops/cpu_kernels.h"
#include "common/ops/row_elem.h"

/* Other tiles than 256 x 384 changed the speed of a step's products by 1 to 3%, up and down.
 * Columns are a multiple of all blocks' widths (48, 32, 16). Narrower tiles pack rows of op(a) once
 * more, so they are used only if wide ones would be too few for the threads, and only if a narrow
 * tile is worth handing to a thread (2 MFLOP: about 20 us). */
enum { TILE_M = GEMM_MAX_M, TILE_N = 384, NARROW_TILE_N = 192, FEW_TILES = 16, FINISH_ROWS = 16 };
static const size_t MIN_TILE_MACS = (size_t)1 << 20;

static size_t choose_tile_n(const matmul_args *a)
{
    const size_t n_tiles = tiles_of(a->m, TILE_M) * tiles_of(a->n, TILE_N);
    const size_t narrow_macs = min_size(a->m, TILE_M) * NARROW_TILE_N * a->k;
    return n_tiles < FEW_TILES && narrow_macs >= MIN_TILE_MACS ? NARROW_TILE_N : TILE_N;
}

/* A matmul on its stream. */
typedef struct matmul_job {
    matmul_args args;
    gemm_fn gemm;
    size_t tile_n;
    gemm_args at; /* of a part of a tile, for leaf_products */
} matmul_job;

/* Whether products go directly into out: it is fp32, and is not also the residual. */
static bool in_place(const matmul_args *a)
{
    return a->out_type == DTYPE_F32 && a->residual != a->out;
}

static fsdp_status products(const matmul_job *j, gemm_args *g)
{
    for (size_t r = 0; r < g->m && g->k == 0 && !g->accumulate; r++)
        memset(g->c + r * g->ldc, 0, g->n * sizeof *g->c);
    return g->k > 0 ? j->gemm(g) : FSDP_OK;
}

/* A leaf's part of k. args: the products for all leaves. */
static fsdp_status leaf_products(const void *args, const leaf_part *p)
{
    const matmul_job *j = args;
    const size_t k = j->args.k / j->args.leaves;
    gemm_args g = j->at;
    g.a = row_at(g.a, p->leaf * k * g.lda, g.a_type);
    g.b = row_at(g.b, p->leaf * k * g.ldb, g.b_type);
    g.c = p->out;
    g.ldc = p->ld;
    g.m = p->rows;
    g.n = p->cols;
    g.k = k;
    g.streams = g.streams && p->ld == j->at.ldc; /* not a left sibling */
    g.left = p->left;
    return products(j, &g);
}

/* The tile by blocks, so that the leaves' sums stay in a cache. gemm_portable copies its operands,
 * which takes larger blocks to pay. */
static fsdp_status sum_leaves(const matmul_job *j, const gemm_args *g)
{
    const bool copies = j->gemm == gemm_portable;
    const size_t rows = copies ? 96 : 128, cols = LEAVES_ELEMS / rows;
    matmul_job part = *j;
    for (size_t row = 0; row < g->m; row += rows)
        for (size_t col = 0; col < g->n; col += cols) {
            part.at = *g;
            part.at.a = row_at(g->a, row, g->a_type);
            part.at.b = row_at(g->b, col, g->b_type);
            const leaf_part all = {.out = g->c + row * g->ldc + col,
                                   .rows = min_size(rows, g->m - row),
                                   .cols = min_size(cols, g->n - col),
                                   .ld = g->ldc};
            TRY(leaves_sum(leaf_products, &part, all, j->args.leaves));
        }
    return FSDP_OK;
}

static fsdp_status matmul_tile(const void *args, size_t tile)
{
    const matmul_job *j = args;
    const matmul_args *a = &j->args;
    const size_t n_tiles_n = tiles_of(a->n, j->tile_n);
    const size_t row = tile / n_tiles_n * TILE_M, col = tile % n_tiles_n * j->tile_n;
    const size_t out_stride = row_stride(a->out_stride, a->n);
    _Alignas(64) float buf[TILE_M * TILE_N];
    gemm_args g = {.m = min_size(TILE_M, a->m - row),
                   .n = min_size(j->tile_n, a->n - col),
                   .k = a->k,
                   .lda = matmul_a_stride(a),
                   .ldb = a->trans_b ? a->k : a->n,
                   .a_type = a->type,
                   .b_type = a->type,
                   .trans_a = a->trans_a,
                   .trans_b = a->trans_b,
                   .accumulate = a->accumulate};
    g.a = row_at(a->a, a->trans_a ? row : row * g.lda, a->type);
    g.b = row_at(a->b, a->trans_b ? col * g.ldb : col, a->type);
    g.c = in_place(a) ? (float *)a->out + row * out_stride + col : buf;
    g.ldc = in_place(a) ? out_stride : g.n;
    g.streams = a->trans_a && in_place(a) && !a->accumulate;
    TRY(a->leaves > 1 ? sum_leaves(j, &g) : products(j, &g));
    for (size_t r = 0; r < g.m && (a->bias || a->residual || !in_place(a)); r++)
        BY_TYPE(matmul_finish_row, a->type, a, row + r, col, g.n, g.c + r * g.ldc);
    return FSDP_OK;
}

fsdp_status matmul_launch(stream *s, const matmul_args *a, gemm_fn gemm)
{
    const matmul_job j = {.args = *a, .gemm = gemm, .tile_n = choose_tile_n(a)};
    FSDP_ASSERT(a->leaves <= 1 || (a->trans_a && !a->trans_b && in_place(a) && !a->accumulate));
    const size_t n_tiles = tiles_of(a->m, TILE_M) * tiles_of(a->n, j.tile_n);
    const tiling t = {matmul_tile, n_tiles, a->m * a->n * a->k, MIN_TILE_MACS};
    return tiles_launch(s, t, &j, sizeof j, matmul_work(a));
}

/* ---- matmul_finish --------------------------------------------------------------------------- */

static fsdp_status matmul_finish_tile(const void *args, size_t tile)
{
    const matmul_finish_args *a = args;
    const size_t n = a->of.n, end = min_size(a->of.m, (tile + 1) * FINISH_ROWS);
    for (size_t r = tile * FINISH_ROWS; r < end; r++)
        BY_TYPE(matmul_finish_row, a->of.type, &a->of, r, 0, n,
                a->products + r * row_stride(a->of.out_stride, n));
    return FSDP_OK;
}

TILED(matmul_finish, tiles_of(a->of.m, FINISH_ROWS), a->of.m * a->of.n, MIN_PARALLEL_ELEMS)
