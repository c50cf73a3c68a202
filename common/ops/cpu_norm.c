/* cpu_norm.c -- layer and RMS normalisation, and the sums over rows that give gradients of biases.
 * Both tables use this file.
 *
 * A sum along a row uses lanes (row_sums.h). A sum over rows adds each column in row order: a tile
 * is a band of columns with all its rows. */
#include "common/ops/cpu_kernels.h"
#include "common/ops/row_norm.h"

enum { BAND_COLS = 256 }; /* columns of one tile of a sum over rows: 1 kB of each row */

/* Rows of one tile of row-wise work. */
static size_t tile_rows(size_t cols)
{
    const size_t rows = cols > 0 ? TILE_ELEMS / 2 / cols : 0;
    return rows > 0 ? rows : 1;
}

/* ---- sums over rows ------------------------------------------------------------------------- */

/* A band of columns of the arguments `args` of an operation: [begin, begin + BAND_COLS). */
typedef struct band {
    const void *args;
    size_t begin, width;
} band;

/* BAND_TILE(name, op, n, sums, ...) defines name, which adds up n arrays [cols] for a band of
 * columns by sums(a, r, band, sum, type), the sums [n][width] over the rows [r.begin, r.end); then
 * come their names in a. */
#define BAND_TILE(name, op, n, sums, ...)                                                          \
    static fsdp_status name##_leaf(const void *args, const leaf_part *p)                           \
    {                                                                                              \
        const band *b = args;                                                                      \
        const op##_args *a = b->args;                                                              \
        const size_t rows = a->rows / (a->leaves > 1 ? a->leaves : 1);                             \
        memset(p->out, 0, n * b->width * sizeof *p->out);                                          \
        BY_TYPE(sums, a->type, a, ((row_range){p->leaf * rows, (p->leaf + 1) * rows}), b->begin,   \
                b->width, p->out);                                                                 \
        leaf_add(p);                                                                               \
        return FSDP_OK;                                                                            \
    }                                                                                              \
    static fsdp_status name(const void *args, size_t tile)                                         \
    {                                                                                              \
        const op##_args *a = args;                                                                 \
        const size_t begin = tile * BAND_COLS, width = min_size(BAND_COLS, a->cols - begin);       \
        float sum[n * BAND_COLS], *const out[n] = {__VA_ARGS__};                                   \
        const leaf_part all = {.out = sum, .rows = n, .cols = width, .ld = width};                 \
        TRY(leaves_sum(name##_leaf, &(band){a, begin, width}, all, a->leaves));                    \
        for (size_t i = 0; i < n; i++)                                                             \
            gradient_deliver(out[i] + begin, sum + i * width, width, a->overwrite);                \
        return FSDP_OK;                                                                            \
    }

BAND_TILE(bias_backward_tile, bias_backward, 1, bias_backward_columns, a->d_bias)
TILED(bias_backward, tiles_of(a->cols, BAND_COLS), a->rows * a->cols, MIN_PARALLEL_ELEMS)

/* ---- rows ------------------------------------------------------------------------------------ */

#define ROW_TILES(a) tiles_of((a)->rows, tile_rows((a)->cols))

/* FORWARD(op) defines cpu_op. BACKWARD(op, param_tile) does too: param_tile makes the gradients of
 * parameters for a band of columns, op_row a row of d_in. */
#define FORWARD(op)                                                                                \
    ROW_TILE(op, a->rows, tile_rows(a->cols), op##_row)                                            \
    TILED(op, ROW_TILES(a), a->rows * a->cols, MIN_PARALLEL_ELEMS)
#define BACKWARD(op, param_tile)                                                                   \
    ROW_TILE(op, a->rows, tile_rows(a->cols), op##_row)                                            \
    static fsdp_status op##_kernel(void *args, int n_threads)                                      \
    {                                                                                              \
        const op##_args *a = args;                                                                 \
        n_threads = threads_for(n_threads, a->rows * a->cols, MIN_PARALLEL_ELEMS);                 \
        TRY(tiles_run(n_threads, tiles_of(a->cols, BAND_COLS), param_tile, a));                    \
        return tiles_run(n_threads, ROW_TILES(a), op##_tile, a);                                   \
    }                                                                                              \
    KERNEL(op)

/* ---- layernorm ------------------------------------------------------------------------------ */

BAND_TILE(layernorm_param_tile, layernorm_backward, 2, layernorm_backward_columns, a->d_gain,
          a->d_bias)
FORWARD(layernorm)
BACKWARD(layernorm_backward, layernorm_param_tile)

/* ---- rmsnorm -------------------------------------------------------------------------------- */

BAND_TILE(rmsnorm_gain_tile, rmsnorm_backward, 1, rmsnorm_backward_columns, a->d_gain)
FORWARD(rmsnorm)
BACKWARD(rmsnorm_backward, rmsnorm_gain_tile)
