/* row_norm.h -- a row of layer and RMS normalisation, forward and backward, and sums over rows. See
 * row_sums.h. */
#pragma once
#include <math.h>
#include "common/ops/ops.h"
#include "common/ops/row_sums.h"

/* norm_of -- a normalised element. */
ROW_FN float norm_of(float x, float mean, float rstd)
{
    return (x - mean) * rstd;
}

/* square -- x * x; evaluates x once. */
ROW_FN float square(float x)
{
    return x * x;
}

/* layernorm_row -- row r of out, mean and rstd. */
ROW_FN void layernorm_row(const layernorm_args *a, size_t r, dtype type)
{
    const size_t cols = a->cols;
    const void *in = row_at(a->in, r * cols, type), *gain = a->gain, *bias = a->bias;
    void *out = row_out_at(a->out, r * cols, type);
    const float mean = row_sum(in, cols, type) / (float)cols;
    float acc[LANES] = {0};
    ROW_BY_LANES(cols, i, l, acc[l] += square(row_load(in, i, type) - mean));
    const float rstd = 1.0f / sqrtf(lanes_sum(acc) / (float)cols + a->eps);
    for (size_t c = 0; c < cols; c++)
        row_store(out, c,
                  norm_of(row_load(in, c, type), mean, rstd) * row_load(gain, c, type) +
                      row_load(bias, c, type),
                  type);
    a->mean[r] = mean;
    a->rstd[r] = rstd;
}

/* layernorm_backward_row -- row r of d_in. With n = (in - mean) * rstd and g = d_out * gain:  d_in
 * = rstd (g - avg(g) - n avg(g n)). */
ROW_FN void layernorm_backward_row(const layernorm_backward_args *a, size_t r, dtype type)
{
    const size_t cols = a->cols, at = r * cols;
    const void *d_out = row_at(a->d_out, at, type), *in = row_at(a->in, at, type), *gain = a->gain;
    const void *residual = a->d_residual ? row_at(a->d_residual, at, type) : NULL;
    void *d_in = row_out_at(a->d_in, at, type);
    const float mean = a->mean[r], rstd = a->rstd[r];
    float acc[LANES] = {0};
    ROW_BY_LANES(cols, i, l,
                 acc[l] += row_load(d_out, i, type) * row_load(gain, i, type) *
                           norm_of(row_load(in, i, type), mean, rstd));
    const float avg_g = row_dot(d_out, gain, cols, type) / (float)cols;
    const float avg_gn = lanes_sum(acc) / (float)cols;
    for (size_t c = 0; c < cols; c++) {
        const float g = row_load(d_out, c, type) * row_load(gain, c, type);
        const float norm = norm_of(row_load(in, c, type), mean, rstd);
        const float d = rstd * (g - avg_g - norm * avg_gn);
        row_store(d_in, c, residual ? d + row_load(residual, c, type) : d, type);
    }
}

typedef struct row_range {
    size_t begin, end;
} row_range;

/* all_rows -- all of `rows`. */
ROW_FN row_range all_rows(size_t rows)
{
    const row_range all = {0, rows};
    return all;
}

/* bias_backward_columns -- the columns [begin, begin + width) of a sum over rows, in their order:
 * sum[c] += d_out[r,begin + c]. */
ROW_FN void bias_backward_columns(const bias_backward_args *a, row_range rows, size_t begin,
                                  size_t width, float *sum, dtype type)
{
    for (size_t r = rows.begin; r < rows.end; r++) {
        const void *d_out = row_at(a->d_out, r * a->cols + begin, type);
        for (size_t c = 0; c < width; c++)
            sum[c] += row_load(d_out, c, type);
    }
}

/* layernorm_backward_columns -- the same, sum [2,width]: of d_out * norm for d_gain, of d_out for
 * d_bias. */
ROW_FN void layernorm_backward_columns(const layernorm_backward_args *a, row_range rows,
                                       size_t begin, size_t width, float *sum, dtype type)
{
    float *__restrict__ gain = sum, *__restrict__ bias = sum + width;
    for (size_t r = rows.begin; r < rows.end; r++) {
        const void *d_out = row_at(a->d_out, r * a->cols + begin, type);
        const void *in = row_at(a->in, r * a->cols + begin, type);
        const float mean = a->mean[r], rstd = a->rstd[r];
        for (size_t c = 0; c < width; c++) {
            const float d = row_load(d_out, c, type);
            gain[c] += d * norm_of(row_load(in, c, type), mean, rstd);
            bias[c] += d;
        }
    }
}

/* rmsnorm_row -- row r of out and rstd. */
ROW_FN void rmsnorm_row(const rmsnorm_args *a, size_t r, dtype type)
{
    const size_t cols = a->cols;
    const void *in = row_at(a->in, r * cols, type), *gain = a->gain;
    void *out = row_out_at(a->out, r * cols, type);
    const float rstd = 1.0f / sqrtf(row_dot(in, in, cols, type) / (float)cols + a->eps);
    for (size_t c = 0; c < cols; c++)
        row_store(out, c, row_load(in, c, type) * rstd * row_load(gain, c, type), type);
    a->rstd[r] = rstd;
}

/* rmsnorm_backward_row -- row r of d_in. With n = in * rstd and g = d_out * gain:
 *
 *     d_in = rstd (g - n avg(g n)) */
ROW_FN void rmsnorm_backward_row(const rmsnorm_backward_args *a, size_t r, dtype type)
{
    const size_t cols = a->cols, at = r * cols;
    const void *d_out = row_at(a->d_out, at, type), *in = row_at(a->in, at, type), *gain = a->gain;
    const void *residual = a->d_residual ? row_at(a->d_residual, at, type) : NULL;
    void *d_in = row_out_at(a->d_in, at, type);
    const float rstd = a->rstd[r];
    float acc[LANES] = {0};
    ROW_BY_LANES(cols, i, l,
                 acc[l] += row_load(d_out, i, type) * row_load(gain, i, type) *
                           (row_load(in, i, type) * rstd));
    const float avg_gn = lanes_sum(acc) / (float)cols;
    for (size_t c = 0; c < cols; c++) {
        const float g = row_load(d_out, c, type) * row_load(gain, c, type);
        const float d = rstd * (g - row_load(in, c, type) * rstd * avg_gn);
        row_store(d_in, c, residual ? d + row_load(residual, c, type) : d, type);
    }
}

/* rmsnorm_backward_columns -- as layernorm_backward_columns, for d_gain. */
ROW_FN void rmsnorm_backward_columns(const rmsnorm_backward_args *a, row_range rows, size_t begin,
                                     size_t width, float *sum, dtype type)
{
    for (size_t r = rows.begin; r < rows.end; r++) {
        const void *d_out = row_at(a->d_out, r * a->cols + begin, type);
        const void *in = row_at(a->in, r * a->cols + begin, type);
        for (size_t c = 0; c < width; c++)
            sum[c] += row_load(d_out, c, type) * (row_load(in, c, type) * a->rstd[r]);
    }
}

/* gradient_deliver -- add column sums to grad, or write them. A sum began at +0, so it is never -0,
 * and writing it gives the same bits as adding it to 0. */
ROW_FN void gradient_deliver(float *grad, const float *sum, size_t n, bool overwrite)
{
    for (size_t c = 0; c < n; c++)
        grad[c] = overwrite ? sum[c] : grad[c] + sum[c];
}
