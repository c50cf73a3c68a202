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

static fsdp_status bias_backward_tile(const void *args, size_t tile)
{
    const bias_backward_args *a = args;
    const size_t begin = tile * BAND_COLS, width = min_size(BAND_COLS, a->cols - begin);
    float sum[BAND_COLS] = {0};
    BY_TYPE(bias_backward_columns, a->type, a, begin, width, sum);
    gradient_deliver(a->d_bias + begin, sum, width, a->overwrite);
    return FSDP_OK;
}

TILED(bias_backward, tiles_of(a->cols, BAND_COLS), a->rows * a->cols, MIN_PARALLEL_ELEMS)

/* ---- layernorm ------------------------------------------------------------------------------ */

static fsdp_status layernorm_tile(const void *args, size_t tile)
{
    const layernorm_args *a = args;
    const size_t n_rows = tile_rows(a->cols), end = min_size(a->rows, (tile + 1) * n_rows);
    for (size_t r = tile * n_rows; r < end; r++)
        BY_TYPE(layernorm_row, a->type, a, r);
    return FSDP_OK;
}

TILED(layernorm, tiles_of(a->rows, tile_rows(a->cols)), a->rows * a->cols, MIN_PARALLEL_ELEMS)

/* ---- layernorm_backward --------------------------------------------------------------------- */

/* d_gain, d_bias of a band of columns. */
static fsdp_status layernorm_param_tile(const void *args, size_t tile)
{
    const layernorm_backward_args *a = args;
    const size_t begin = tile * BAND_COLS, width = min_size(BAND_COLS, a->cols - begin);
    float gain[BAND_COLS] = {0}, bias[BAND_COLS] = {0};
    BY_TYPE(layernorm_backward_columns, a->type, a, begin, width, ((norm_sums){gain, bias}));
    gradient_deliver(a->d_gain + begin, gain, width, a->overwrite);
    gradient_deliver(a->d_bias + begin, bias, width, a->overwrite);
    return FSDP_OK;
}

static fsdp_status layernorm_backward_tile(const void *args, size_t tile)
{
    const layernorm_backward_args *a = args;
    const size_t n_rows = tile_rows(a->cols), end = min_size(a->rows, (tile + 1) * n_rows);
    for (size_t r = tile * n_rows; r < end; r++)
        BY_TYPE(layernorm_backward_row, a->type, a, r);
    return FSDP_OK;
}

static fsdp_status layernorm_backward_kernel(void *args, int n_threads)
{
    const layernorm_backward_args *a = args;
    n_threads = threads_for(n_threads, a->rows * a->cols, MIN_PARALLEL_ELEMS);
    TRY(tiles_run(n_threads, tiles_of(a->cols, BAND_COLS), layernorm_param_tile, a));
    return tiles_run(n_threads, tiles_of(a->rows, tile_rows(a->cols)), layernorm_backward_tile, a);
}

KERNEL(layernorm_backward)

/* ---- rmsnorm -------------------------------------------------------------------------------- */

static fsdp_status rmsnorm_tile(const void *args, size_t tile)
{
    const rmsnorm_args *a = args;
    const size_t n_rows = tile_rows(a->cols), end = min_size(a->rows, (tile + 1) * n_rows);
    for (size_t r = tile * n_rows; r < end; r++)
        BY_TYPE(rmsnorm_row, a->type, a, r);
    return FSDP_OK;
}

TILED(rmsnorm, tiles_of(a->rows, tile_rows(a->cols)), a->rows * a->cols, MIN_PARALLEL_ELEMS)

static fsdp_status rmsnorm_gain_tile(const void *args, size_t tile)
{
    const rmsnorm_backward_args *a = args;
    const size_t begin = tile * BAND_COLS, width = min_size(BAND_COLS, a->cols - begin);
    float sum[BAND_COLS] = {0};
    BY_TYPE(rmsnorm_backward_columns, a->type, a, begin, width, sum);
    gradient_deliver(a->d_gain + begin, sum, width, a->overwrite);
    return FSDP_OK;
}

static fsdp_status rmsnorm_backward_tile(const void *args, size_t tile)
{
    const rmsnorm_backward_args *a = args;
    const size_t n_rows = tile_rows(a->cols), end = min_size(a->rows, (tile + 1) * n_rows);
    for (size_t r = tile * n_rows; r < end; r++)
        BY_TYPE(rmsnorm_backward_row, a->type, a, r);
    return FSDP_OK;
}

static fsdp_status rmsnorm_backward_kernel(void *args, int n_threads)
{
    const rmsnorm_backward_args *a = args;
    n_threads = threads_for(n_threads, a->rows * a->cols, MIN_PARALLEL_ELEMS);
    TRY(tiles_run(n_threads, tiles_of(a->cols, BAND_COLS), rmsnorm_gain_tile, a));
    return tiles_run(n_threads, tiles_of(a->rows, tile_rows(a->cols)), rmsnorm_backward_tile, a);
}

KERNEL(rmsnorm_backward)
