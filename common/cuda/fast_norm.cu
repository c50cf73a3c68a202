/* fast_norm.cu -- layer normalisation and sums over rows, for the fast table.
 *
 * Rows: a warp takes a row. It reads it three times, for the mean, for the variance, and to write
 * it; only the first time comes from memory, the others from the cache (a row of 768 is 3 kB). Lane
 * l takes elements l, l + 32, ..., so that a warp reads neighbours together. Lanes are added by
 * exchanges across the warp, in one fixed shape.
 *
 * Sums over rows (gradients of gain and bias): rows are cut into at most MAX_BANDS bands, by their
 * number alone. A thread takes a column of a band, so that a warp reads neighbours together, and
 * writes its sum to scratch; then a thread a column adds the bands in order. No atomics: equal
 * arguments give equal bits. */
#include "common/cuda/kernels.h"
#include "common/cuda/launch.h"
#include "common/cuda/reduce.h"
#include "common/ops/row_norm.h"

enum { ROW_WARPS = BLOCK_THREADS / WARP_LANES }; /* rows of a block */

/* row_of_warp -- the row that this warp takes. */
static __device__ inline size_t row_of_warp(void)
{
    return (size_t)blockIdx.x * ROW_WARPS + threadIdx.x / WARP_LANES;
}

/* ---- layernorm ------------------------------------------------------------------------------- */

static __device__ inline void normalise_row(const layernorm_args *a, size_t r, dtype type)
{
    const size_t cols = a->cols, lane = threadIdx.x % WARP_LANES;
    const void *in = row_at(a->in, r * cols, type);
    void *out = row_out_at(a->out, r * cols, type);
    float sum = 0.0f, squares = 0.0f;
    for (size_t c = lane; c < cols; c += WARP_LANES)
        sum += row_load(in, c, type);
    const float mean = warp_sum(sum) / (float)cols;
    for (size_t c = lane; c < cols; c += WARP_LANES)
        squares += square(row_load(in, c, type) - mean);
    const float rstd = 1.0f / sqrtf(warp_sum(squares) / (float)cols + a->eps);
    for (size_t c = lane; c < cols; c += WARP_LANES)
        row_store(out, c,
                  fmaf(norm_of(row_load(in, c, type), mean, rstd), row_load(a->gain, c, type),
                       row_load(a->bias, c, type)),
                  type);
    if (lane == 0) {
        a->mean[r] = mean;
        a->rstd[r] = rstd;
    }
}

__global__ void fast_layernorm_kernel(layernorm_args a)
{
    const size_t r = row_of_warp();
    if (r < a.rows)
        BY_TYPE(normalise_row, a.type, &a, r);
}

OPERATION(fast, layernorm, fast_layernorm_kernel, groups_of(a->rows, ROW_WARPS), BLOCK_THREADS, *a)

/* ---- sums over rows -------------------------------------------------------------------------- */

static const size_t MAX_BANDS = 64, MIN_BAND_ROWS = 32;

/* Sums of columns: `bias` of d_out, and `gain` of d_out times the normalised input, or NULL. */
typedef struct column_sums {
    float *gain, *bias;       /* [cols] */
    float *scratch;           /* [n_bands][1 or 2][cols] */
    const void *d_out, *in;   /* [rows,cols] */
    const float *mean, *rstd; /* [rows] */
    size_t rows, cols, band_rows, n_bands;
    bool overwrite;
    dtype type;
} column_sums;

static __device__ inline void sum_band(const column_sums *a, size_t band, size_t c, dtype type)
{
    const size_t begin = band * a->band_rows, end = begin + a->band_rows;
    float bias = 0.0f, gain = 0.0f;
    for (size_t r = begin; r < end && r < a->rows; r++) {
        const float d = row_load(a->d_out, r * a->cols + c, type);
        bias += d;
        if (a->gain)
            gain = fmaf(d, norm_of(row_load(a->in, r * a->cols + c, type), a->mean[r], a->rstd[r]),
                        gain);
    }
    float *to = a->scratch + band * (a->gain ? 2 : 1) * a->cols + c;
    to[0] = bias;
    if (a->gain)
        to[a->cols] = gain;
}

__global__ void fast_band_kernel(column_sums a)
{
    const size_t c = global_thread();
    if (c < a.cols)
        BY_TYPE(sum_band, a.type, &a, (size_t)blockIdx.y, c);
}

__global__ void fast_add_bands_kernel(column_sums a)
{
    const size_t i = global_thread(), c = i % a.cols, stride = (a.gain ? 2 : 1) * a.cols;
    float sum = 0.0f;
    if (i >= stride)
        return;
    for (size_t band = 0; band < a.n_bands; band++)
        sum += a.scratch[band * stride + i];
    gradient_deliver((i < a.cols ? a.bias : a.gain) + c, &sum, 1, a.overwrite);
}

static cudaError_t column_sums_issue(stream *s, const column_sums *a)
{
    const dim3 grid(blocks_of(a->cols), (unsigned)a->n_bands);
    if (a->n_bands > 0) {
        const cudaError_t error = LAUNCH(fast_band_kernel, grid, BLOCK_THREADS, s, *a);
        if (error != cudaSuccess)
            return error;
    }
    return LAUNCH(fast_add_bands_kernel, blocks_of((a->gain ? 2 : 1) * a->cols), BLOCK_THREADS, s,
                  *a);
}

/* How rows are cut, and scratch for that; the caller frees it. */
static fsdp_status column_sums_begin(stream *s, column_sums *a, op_work *work)
{
    const size_t even = (a->rows + MAX_BANDS - 1) / MAX_BANDS;
    a->band_rows = even > MIN_BAND_ROWS ? even : MIN_BAND_ROWS;
    a->n_bands = (a->rows + a->band_rows - 1) / a->band_rows;
    const size_t elems = a->n_bands * (a->gain ? 2 : 1) * a->cols;
    TRY(device_alloc_f32(s, MEM_OTHER, elems, "sums over rows", &a->scratch));
    op_writes(work, a->scratch, elems * sizeof(float));
    return FSDP_OK;
}

static cudaError_t bias_backward_issue(stream *s, const void *args)
{
    return column_sums_issue(s, (const column_sums *)args);
}

fsdp_status fast_bias_backward(stream *s, const bias_backward_args *a)
{
    column_sums sums = {};
    op_work work = bias_backward_work(a);
    sums.bias = a->d_bias;
    sums.d_out = a->d_out;
    sums.rows = a->rows;
    sums.cols = a->cols;
    sums.overwrite = a->overwrite;
    sums.type = a->type;
    TRY(column_sums_begin(s, &sums, &work));
    fsdp_status status = cuda_issue(s, bias_backward_issue, &sums, work);
    device_free(s, sums.scratch);
    return status;
}

/* ---- layernorm_backward ---------------------------------------------------------------------- */

/* With n = (in - mean) * rstd and g = d_out * gain:  d_in = rstd (g - avg(g) - n avg(g n)). */
static __device__ inline void normalise_row_backward(const layernorm_backward_args *a, size_t r,
                                                     dtype type)
{
    const size_t cols = a->cols, at = r * cols, lane = threadIdx.x % WARP_LANES;
    const void *d_out = row_at(a->d_out, at, type), *in = row_at(a->in, at, type);
    const void *residual = a->d_residual ? row_at(a->d_residual, at, type) : NULL;
    void *d_in = row_out_at(a->d_in, at, type);
    const float mean = a->mean[r], rstd = a->rstd[r];
    float sum_g = 0.0f, sum_gn = 0.0f;
    for (size_t c = lane; c < cols; c += WARP_LANES) {
        const float g = row_load(d_out, c, type) * row_load(a->gain, c, type);
        sum_g += g;
        sum_gn = fmaf(g, norm_of(row_load(in, c, type), mean, rstd), sum_gn);
    }
    const float avg_g = warp_sum(sum_g) / (float)cols, avg_gn = warp_sum(sum_gn) / (float)cols;
    for (size_t c = lane; c < cols; c += WARP_LANES) {
        const float g = row_load(d_out, c, type) * row_load(a->gain, c, type);
        const float norm = norm_of(row_load(in, c, type), mean, rstd);
        const float d = rstd * (g - avg_g - norm * avg_gn);
        row_store(d_in, c, residual ? d + row_load(residual, c, type) : d, type);
    }
}

__global__ void fast_layernorm_backward_kernel(layernorm_backward_args a)
{
    const size_t r = row_of_warp();
    if (r < a.rows)
        BY_TYPE(normalise_row_backward, a.type, &a, r);
}

typedef struct norm_backward {
    layernorm_backward_args rows;
    column_sums columns;
} norm_backward;

static cudaError_t layernorm_backward_issue(stream *s, const void *args)
{
    const norm_backward *a = (const norm_backward *)args;
    const cudaError_t error = column_sums_issue(s, &a->columns);
    if (error != cudaSuccess || a->rows.rows == 0)
        return error;
    return LAUNCH(fast_layernorm_backward_kernel, groups_of(a->rows.rows, ROW_WARPS), BLOCK_THREADS,
                  s, a->rows);
}

fsdp_status fast_layernorm_backward(stream *s, const layernorm_backward_args *a)
{
    norm_backward both = {};
    op_work work = layernorm_backward_work(a);
    both.rows = *a;
    both.columns.gain = a->d_gain;
    both.columns.bias = a->d_bias;
    both.columns.d_out = a->d_out;
    both.columns.in = a->in;
    both.columns.mean = a->mean;
    both.columns.rstd = a->rstd;
    both.columns.rows = a->rows;
    both.columns.cols = a->cols;
    both.columns.overwrite = a->overwrite;
    both.columns.type = a->type;
    TRY(column_sums_begin(s, &both.columns, &work));
    fsdp_status status = cuda_issue(s, layernorm_backward_issue, &both, work);
    device_free(s, both.columns.scratch);
    return status;
}
