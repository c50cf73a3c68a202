/* fast_norm.cu -- layer and RMS normalisation and sums over rows, for the fast table. The kernels
 * treat an RMS norm as a layer norm without `mean`: every mean is 0, and there is no bias.
 *
 * Rows: a warp computes a row. It reads the row three times (an RMS norm: twice), for the mean, for
 * the variance, and for the result. Only the first read goes to memory, the others hit the cache (a
 * row of 768 is 3 kB). Lane l takes elements l, l + 32, ..., so that a warp reads neighbours
 * together. Lanes are added by exchanges across the warp, in a fixed order.
 *
 * Sums over rows (gradients of gain and bias): rows are cut into at most MAX_BANDS bands; the cut
 * depends only on the number of rows. A thread adds a column of a band, so that a warp reads
 * neighbours together, and writes its sum to scratch memory. Then one thread per column adds the
 * bands in order. There are no atomics, so equal arguments give equal bits. */
#include "common/cuda/kernels.h"
#include "common/cuda/launch.h"
#include "common/cuda/reduce.h"
#include "common/ops/row_norm.h"

enum { ROW_WARPS = BLOCK_THREADS / WARP_LANES }; /* rows of a block */

/* row_of_warp -- the row of this warp. */
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
    for (size_t c = lane; c < cols && a->mean; c += WARP_LANES)
        sum += row_load(in, c, type);
    const float mean = a->mean ? warp_sum(sum) / (float)cols : 0.0f;
    for (size_t c = lane; c < cols; c += WARP_LANES)
        squares += square(row_load(in, c, type) - mean);
    const float rstd = 1.0f / sqrtf(warp_sum(squares) / (float)cols + a->eps);
    for (size_t c = lane; c < cols; c += WARP_LANES)
        row_store(out, c,
                  fmaf(norm_of(row_load(in, c, type), mean, rstd), row_load(a->gain, c, type),
                       a->bias ? row_load(a->bias, c, type) : 0.0f),
                  type);
    if (lane == 0 && a->mean)
        a->mean[r] = mean;
    if (lane == 0)
        a->rstd[r] = rstd;
}

__global__ void fast_layernorm_kernel(layernorm_args a)
{
    const size_t r = row_of_warp();
    if (r < a.rows)
        BY_TYPE(normalise_row, a.type, &a, r);
}

OPERATION(fast, layernorm, fast_layernorm_kernel, groups_of(a->rows, ROW_WARPS), BLOCK_THREADS, *a)

static layernorm_args without_mean(const rmsnorm_args *a)
{
    layernorm_args norm = {};
    norm.out = a->out;
    norm.rstd = a->rstd;
    norm.in = a->in;
    norm.gain = a->gain;
    norm.rows = a->rows;
    norm.cols = a->cols;
    norm.eps = a->eps;
    norm.type = a->type;
    return norm;
}

OPERATION(fast, rmsnorm, fast_layernorm_kernel, groups_of(a->rows, ROW_WARPS), BLOCK_THREADS,
          without_mean(a))

/* ---- sums over rows -------------------------------------------------------------------------- */

static const size_t MAX_BANDS = 64, MIN_BAND_ROWS = 32;

/* The column sums that go to of.d_bias and of.d_gain; one of the two may be NULL. */
typedef struct column_sums {
    layernorm_backward_args of;
    float *scratch; /* [n_bands][1 or 2][cols] */
    size_t band_rows, n_bands;
} column_sums;

/* mean_of -- the mean that the forward pass subtracted from row r. */
static __device__ inline float mean_of(const layernorm_backward_args *a, size_t r)
{
    return a->mean ? a->mean[r] : 0.0f;
}

static __host__ __device__ inline size_t band_elems(const column_sums *a)
{
    return ((a->of.d_bias != NULL) + (a->of.d_gain != NULL)) * a->of.cols;
}

static __device__ inline void sum_band(const column_sums *sums, size_t band, size_t c, dtype type)
{
    const layernorm_backward_args *a = &sums->of;
    const size_t begin = band * sums->band_rows, end = begin + sums->band_rows;
    float bias = 0.0f, gain = 0.0f;
    for (size_t r = begin; r < end && r < a->rows; r++) {
        const float d = row_load(a->d_out, r * a->cols + c, type);
        bias += d;
        if (a->d_gain)
            gain =
                fmaf(d, norm_of(row_load(a->in, r * a->cols + c, type), mean_of(a, r), a->rstd[r]),
                     gain);
    }
    float *to = sums->scratch + band * band_elems(sums) + c;
    if (a->d_bias)
        to[0] = bias;
    if (a->d_gain)
        to[a->d_bias ? a->cols : 0] = gain;
}

__global__ void fast_band_kernel(column_sums a)
{
    const size_t c = global_thread();
    if (c < a.of.cols)
        BY_TYPE(sum_band, a.of.type, &a, (size_t)blockIdx.y, c);
}

__global__ void fast_add_bands_kernel(column_sums a)
{
    const size_t i = global_thread(), cols = a.of.cols, stride = band_elems(&a);
    float sum = 0.0f;
    if (i >= stride)
        return;
    for (size_t band = 0; band < a.n_bands; band++)
        sum += a.scratch[band * stride + i];
    gradient_deliver((i < cols && a.of.d_bias ? a.of.d_bias : a.of.d_gain) + i % cols, &sum, 1,
                     a.of.overwrite);
}

static cudaError_t column_sums_issue(stream *s, const void *args)
{
    const column_sums *a = (const column_sums *)args;
    const dim3 grid(blocks_of(a->of.cols), (unsigned)a->n_bands);
    cudaError_t error = cudaSuccess;
    if (a->n_bands > 0)
        error = LAUNCH(fast_band_kernel, grid, BLOCK_THREADS, s, *a);
    if (error != cudaSuccess)
        return error;
    return LAUNCH(fast_add_bands_kernel, blocks_of(band_elems(a)), BLOCK_THREADS, s, *a);
}

/* Set the bands and the scratch memory in *a, then call issue(s, a) for the operation. */
static fsdp_status in_bands(stream *s, column_sums *a, cuda_issue_fn issue, op_work work)
{
    const size_t even = (a->of.rows + MAX_BANDS - 1) / MAX_BANDS;
    a->band_rows = even > MIN_BAND_ROWS ? even : MIN_BAND_ROWS;
    a->n_bands = (a->of.rows + a->band_rows - 1) / a->band_rows;
    const size_t elems = a->n_bands * band_elems(a);
    if (work.ends)
        return work.status;
    TRY(device_alloc_f32(s, MEM_OTHER, elems, "sums over rows", &a->scratch));
    op_writes(&work, a->scratch, elems * sizeof(float));
    const fsdp_status status = cuda_issue(s, issue, a, work);
    device_free(s, a->scratch);
    return status;
}

fsdp_status fast_bias_backward(stream *s, const bias_backward_args *a)
{
    column_sums sums = {};
    sums.of.d_bias = a->d_bias;
    sums.of.d_out = a->d_out;
    sums.of.rows = a->rows;
    sums.of.cols = a->cols;
    sums.of.overwrite = a->overwrite;
    sums.of.type = a->type;
    return in_bands(s, &sums, column_sums_issue, bias_backward_work(a));
}

/* ---- layernorm_backward ---------------------------------------------------------------------- */

/* With n = (in - mean) * rstd and g = d_out * gain:  d_in = rstd (g - avg(g) - n avg(g n)).
 * Without `mean` there is no avg(g). */
static __device__ inline void normalise_row_backward(const layernorm_backward_args *a, size_t r,
                                                     dtype type)
{
    const size_t cols = a->cols, at = r * cols, lane = threadIdx.x % WARP_LANES;
    const void *d_out = row_at(a->d_out, at, type), *in = row_at(a->in, at, type);
    const void *residual = a->d_residual ? row_at(a->d_residual, at, type) : NULL;
    void *d_in = row_out_at(a->d_in, at, type);
    const float mean = mean_of(a, r), rstd = a->rstd[r];
    float sum_g = 0.0f, sum_gn = 0.0f;
    for (size_t c = lane; c < cols; c += WARP_LANES) {
        const float g = row_load(d_out, c, type) * row_load(a->gain, c, type);
        sum_g += g;
        sum_gn = fmaf(g, norm_of(row_load(in, c, type), mean, rstd), sum_gn);
    }
    const float avg_g = a->mean ? warp_sum(sum_g) / (float)cols : 0.0f;
    const float avg_gn = warp_sum(sum_gn) / (float)cols;
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

static cudaError_t layernorm_backward_issue(stream *s, const void *args)
{
    const layernorm_backward_args *a = &((const column_sums *)args)->of;
    const cudaError_t error = column_sums_issue(s, args);
    if (error != cudaSuccess || a->rows == 0)
        return error;
    return LAUNCH(fast_layernorm_backward_kernel, groups_of(a->rows, ROW_WARPS), BLOCK_THREADS, s,
                  *a);
}

fsdp_status fast_layernorm_backward(stream *s, const layernorm_backward_args *a)
{
    column_sums sums = {};
    sums.of = *a;
    return in_bands(s, &sums, layernorm_backward_issue, layernorm_backward_work(a));
}

fsdp_status fast_rmsnorm_backward(stream *s, const rmsnorm_backward_args *a)
{
    column_sums sums = {};
    sums.of.d_in = a->d_in;
    sums.of.d_gain = a->d_gain;
    sums.of.d_out = a->d_out;
    sums.of.in = a->in;
    sums.of.gain = a->gain;
    sums.of.d_residual = a->d_residual;
    sums.of.rstd = a->rstd;
    sums.of.rows = a->rows;
    sums.of.cols = a->cols;
    sums.of.overwrite = a->overwrite;
    sums.of.type = a->type;
    return in_bands(s, &sums, layernorm_backward_issue, rmsnorm_backward_work(a));
}
