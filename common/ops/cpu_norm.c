/* cpu_norm.c -- layer normalisation, and the column sums that gradients of biases are. Both tables.
 *
 * Sums along a row go by lanes (cpu_kernels.h). Sums over rows are taken column by column in row
 * order: a tile is a band of columns, all rows of it. */
#include <math.h>
#include "common/ops/cpu_kernels.h"

enum { BAND_COLS = 256 }; /* columns of one tile of a sum over rows: 1 kB of each row */

/* Rows of one tile of row-wise work. */
static size_t tile_rows(size_t cols)
{
    const size_t rows = TILE_ELEMS / 2 / cols;
    return rows > 0 ? rows : 1;
}

/* ---- sums over rows ------------------------------------------------------------------------- */

/* The sum of a column becomes part of its gradient. It began at +0, so it is never -0, and writing
 * it gives the bits of adding it to 0. */
static void deliver(float *grad, const float *sum, size_t n, bool overwrite)
{
    for (size_t c = 0; c < n; c++)
        grad[c] = overwrite ? sum[c] : grad[c] + sum[c];
}

static fsdp_status bias_backward_tile(const void *args, size_t tile)
{
    const bias_backward_args *a = args;
    const size_t begin = tile * BAND_COLS, width = min_size(BAND_COLS, a->cols - begin);
    float sum[BAND_COLS] = {0};
    for (size_t r = 0; r < a->rows; r++) {
        const float *d_out = a->d_out + r * a->cols + begin;
        for (size_t c = 0; c < width; c++)
            sum[c] += d_out[c];
    }
    deliver(a->d_bias + begin, sum, width, a->overwrite);
    return FSDP_OK;
}

static fsdp_status bias_backward_kernel(void *args, int n_threads)
{
    const bias_backward_args *a = args;
    n_threads = threads_for(n_threads, a->rows * a->cols, MIN_PARALLEL_ELEMS);
    return tiles_run(n_threads, tiles_of(a->cols, BAND_COLS), bias_backward_tile, a);
}

fsdp_status cpu_bias_backward(stream *s, const bias_backward_args *a)
{
    return kernel_launch(s, bias_backward_kernel, a, sizeof *a, bias_backward_work(a));
}

/* ---- layernorm ------------------------------------------------------------------------------ */

/* sum of (x - mean)^2 by lanes; what fills up the last vector adds 0. */
static float sum_square_deviations(const float *x, size_t n, float mean)
{
    lanes acc = {0};
    for (size_t i = 0; i < n; i += LANES) {
        lanes v;
        lanes_load(&v, x + i, n - i, mean);
        v -= mean;
        acc += v * v;
    }
    return lanes_sum(&acc);
}

static void layernorm_row(const layernorm_args *a, size_t r)
{
    const float *in = a->in + r * a->cols;
    float *out = a->out + r * a->cols;
    const float mean = vec_sum(in, a->cols) / (float)a->cols;
    const float variance = sum_square_deviations(in, a->cols, mean) / (float)a->cols;
    const float rstd = 1.0f / sqrtf(variance + a->eps);
    for (size_t begin = 0; begin < a->cols; begin += PARAM_PIECE) {
        const size_t n = min_size(PARAM_PIECE, a->cols - begin);
        float gain_buf[PARAM_PIECE], bias_buf[PARAM_PIECE];
        const float *gain = param_piece(a->gain, a->param_type, begin, n, gain_buf);
        const float *bias = param_piece(a->bias, a->param_type, begin, n, bias_buf);
        for (size_t c = 0; c < n; c++)
            out[begin + c] = (in[begin + c] - mean) * rstd * gain[c] + bias[c];
    }
    a->mean[r] = mean;
    a->rstd[r] = rstd;
}

static fsdp_status layernorm_tile(const void *args, size_t tile)
{
    const layernorm_args *a = args;
    const size_t n_rows = tile_rows(a->cols), end = min_size(a->rows, (tile + 1) * n_rows);
    for (size_t r = tile * n_rows; r < end; r++)
        layernorm_row(a, r);
    return FSDP_OK;
}

static fsdp_status layernorm_kernel(void *args, int n_threads)
{
    const layernorm_args *a = args;
    if (a->cols == 0)
        return FSDP_OK;
    n_threads = threads_for(n_threads, a->rows * a->cols, MIN_PARALLEL_ELEMS);
    return tiles_run(n_threads, tiles_of(a->rows, tile_rows(a->cols)), layernorm_tile, a);
}

fsdp_status cpu_layernorm(stream *s, const layernorm_args *a)
{
    return kernel_launch(s, layernorm_kernel, a, sizeof *a, layernorm_work(a));
}

/* ---- layernorm_backward --------------------------------------------------------------------- */

/* d_gain, d_bias of a band of columns: sums over rows of d_out * norm and of d_out. */
static fsdp_status layernorm_param_tile(const void *args, size_t tile)
{
    const layernorm_backward_args *a = args;
    const size_t begin = tile * BAND_COLS, width = min_size(BAND_COLS, a->cols - begin);
    float gain_sum[BAND_COLS] = {0}, bias_sum[BAND_COLS] = {0};
    for (size_t r = 0; r < a->rows; r++) {
        const float *d_out = a->d_out + r * a->cols + begin;
        const float *in = a->in + r * a->cols + begin;
        const float mean = a->mean[r], rstd = a->rstd[r];
        for (size_t c = 0; c < width; c++) {
            gain_sum[c] += d_out[c] * ((in[c] - mean) * rstd);
            bias_sum[c] += d_out[c];
        }
    }
    deliver(a->d_gain + begin, gain_sum, width, a->overwrite);
    deliver(a->d_bias + begin, bias_sum, width, a->overwrite);
    return FSDP_OK;
}

/* With n = (in - mean) * rstd and g = d_out * gain:  d_in = rstd (g - avg(g) - n avg(g n)). */
static void layernorm_backward_row(const layernorm_backward_args *a, size_t r)
{
    const size_t row = r * a->cols;
    const float *d_out = a->d_out + row, *in = a->in + row;
    const float mean = a->mean[r], rstd = a->rstd[r];
    float buf[PARAM_PIECE];
    lanes sum_g = {0}, sum_gn = {0};
    for (size_t begin = 0; begin < a->cols; begin += PARAM_PIECE) {
        const size_t n = min_size(PARAM_PIECE, a->cols - begin);
        const float *gain = param_piece(a->gain, a->param_type, begin, n, buf);
        for (size_t c = 0; c < n; c += LANES) {
            lanes dv, gv, xv;
            lanes_load(&dv, d_out + begin + c, n - c, 0.0f);
            lanes_load(&gv, gain + c, n - c, 0.0f);
            lanes_load(&xv, in + begin + c, n - c, mean);
            const lanes g = dv * gv;
            sum_g += g;
            sum_gn += g * ((xv - mean) * rstd);
        }
    }
    const float avg_g = lanes_sum(&sum_g) / (float)a->cols;
    const float avg_gn = lanes_sum(&sum_gn) / (float)a->cols;
    float *d_in = a->d_in + row;
    for (size_t begin = 0; begin < a->cols; begin += PARAM_PIECE) {
        const size_t n = min_size(PARAM_PIECE, a->cols - begin);
        const float *gain = param_piece(a->gain, a->param_type, begin, n, buf);
        for (size_t c = 0; c < n; c++) {
            const float norm = (in[begin + c] - mean) * rstd;
            d_in[begin + c] = rstd * (d_out[begin + c] * gain[c] - avg_g - norm * avg_gn);
        }
    }
    if (a->d_residual) {
        for (size_t c = 0; c < a->cols; c++)
            d_in[c] += a->d_residual[row + c];
    }
}

static fsdp_status layernorm_backward_tile(const void *args, size_t tile)
{
    const layernorm_backward_args *a = args;
    const size_t n_rows = tile_rows(a->cols), end = min_size(a->rows, (tile + 1) * n_rows);
    for (size_t r = tile * n_rows; r < end; r++)
        layernorm_backward_row(a, r);
    return FSDP_OK;
}

static fsdp_status layernorm_backward_kernel(void *args, int n_threads)
{
    const layernorm_backward_args *a = args;
    if (a->cols == 0)
        return FSDP_OK;
    n_threads = threads_for(n_threads, a->rows * a->cols, MIN_PARALLEL_ELEMS);
    if (a->rows > 0 || a->overwrite)
        TRY(tiles_run(n_threads, tiles_of(a->cols, BAND_COLS), layernorm_param_tile, a));
    return tiles_run(n_threads, tiles_of(a->rows, tile_rows(a->cols)), layernorm_backward_tile, a);
}

fsdp_status cpu_layernorm_backward(stream *s, const layernorm_backward_args *a)
{
    return kernel_launch(s, layernorm_backward_kernel, a, sizeof *a, layernorm_backward_work(a));
}
