/* fast_norm.cu -- layer and RMS normalisation and sums over rows, for the fast table. The kernels
 * treat an RMS norm as a layer norm without `mean`: every mean is 0, and there is no bias.
 *
 * Rows: a warp computes a row. It reads the row three times (an RMS norm: twice), for the mean, for
 * the variance, and for the result. Only the first read goes to memory, the others hit the cache (a
 * row of 768 is 3 kB). A lane takes parts of a row, 32 parts apart, so that a warp reads neighbours
 * together. A part is 16 bytes if these divide a row, else one element; so the bits depend on the
 * shape alone. A part is loaded at once if all arrays are aligned. Lanes are added by exchanges
 * across the warp, in a fixed order.
 *
 * Gradients: one kernel. Rows are cut into bands; the cut depends only on the shape. A block
 * computes d_in of its band and adds the band's columns for the gradients of gain and bias (a bias
 * alone: some of the columns), a thread for each part of a row. The sums go to scratch memory.
 * There, of each FAN blocks the one that ends last adds the FAN sums in the order of the bands,
 * then of FAN such blocks the last one, and so on; the last of all delivers. Only integers are
 * added atomically, so equal arguments give equal bits. */
#include "common/cuda/kernels.h"
#include "common/cuda/launch.h"
#include "common/cuda/parts.h"
#include "common/cuda/reduce.h"
#include "common/ops/row_norm.h"

enum { ROW_WARPS = 4, NORM_THREADS = ROW_WARPS * WARP_LANES }; /* a block; a warp has one row */

/* ---- layernorm ------------------------------------------------------------------------------- */

static __device__ inline void normalise_row(const layernorm_args *a, size_t r, part_kind kind,
                                            dtype type)
{
    const size_t cols = a->cols, n = part_elems(kind, type), lane = threadIdx.x % WARP_LANES;
    const void *in = row_at(a->in, r * cols, type);
    const bool at_once = kind == VECTOR;
    float sum = 0.0f, squares = 0.0f, x[MOST_ELEMS], gain[MOST_ELEMS], bias[MOST_ELEMS] = {0};
    for (size_t c = lane * n; c < cols && a->mean; c += WARP_LANES * n) {
        load(x, in, c, n, at_once, type);
        for (size_t e = 0; e < n; e++)
            sum += x[e];
    }
    const float mean = a->mean ? warp_sum(sum) / (float)cols : 0.0f;
    for (size_t c = lane * n; c < cols; c += WARP_LANES * n) {
        load(x, in, c, n, at_once, type);
        for (size_t e = 0; e < n; e++)
            squares += square(x[e] - mean);
    }
    const float rstd = 1.0f / sqrtf(warp_sum(squares) / (float)cols + a->eps);
    for (size_t c = lane * n; c < cols; c += WARP_LANES * n) {
        load(x, in, c, n, at_once, type);
        load(gain, a->gain, c, n, at_once, type);
        if (a->bias)
            load(bias, a->bias, c, n, at_once, type);
        for (size_t e = 0; e < n; e++)
            x[e] = fmaf(norm_of(x[e], mean, rstd), gain[e], bias[e]);
        store(a->out, r * cols + c, x, n, at_once, type);
    }
    if (lane == 0 && a->mean)
        a->mean[r] = mean;
    if (lane == 0)
        a->rstd[r] = rstd;
}

__global__ void fast_layernorm_kernel(layernorm_args a, part_kind kind)
{
    const size_t r = (size_t)blockIdx.x * ROW_WARPS + threadIdx.x / WARP_LANES;
    if (r < a.rows)
        BY_PART(normalise_row, kind, a.type, &a, r);
}

static part_kind forward_kind(const layernorm_args *a)
{
    const void *const arrays[] = {a->out, a->in, a->gain, a->bias};
    return part_kind_for(a->cols, a->type, arrays, 4);
}

OPERATION(fast, layernorm, fast_layernorm_kernel, groups_of(a->rows, ROW_WARPS), NORM_THREADS, *a,
          forward_kind(a))

static cudaError_t rmsnorm_issue(stream *s, const void *args)
{
    const rmsnorm_args *of = (const rmsnorm_args *)args;
    const layernorm_args a = {of->out, NULL,     of->rstd, of->in,  of->gain,
                              NULL,    of->rows, of->cols, of->eps, of->type};
    return LAUNCH(fast_layernorm_kernel, groups_of(a.rows, ROW_WARPS), NORM_THREADS, s, a,
                  forward_kind(&a));
}

ISSUED(fast, rmsnorm)

/* ---- gradients: the sums of a band ----------------------------------------------------------- */

/* MAX_BANDS: at most as many blocks add to the same columns. TILE_ROWS: a norm's rows whose
 * averages are in shared memory at a time. */
static const size_t MAX_BANDS = 512, MIN_BAND_ROWS = 4, TILE_ROWS = 32, FAN = 16;

/* The gradients of a norm; or of a bias: then `of` has no d_gain, and no rows of a norm. Block b
 * computes band b / n_groups, columns b % n_groups * group_cols and up. */
typedef struct band_call {
    layernorm_backward_args of;
    part_kind kind;
    size_t band_rows, n_bands, group_cols;
    unsigned n_groups;
    float *sums;      /* [n_bands, then sums of FAN of these, ...][n_sums][cols] */
    unsigned *counts; /* [n_groups][nodes_above(n_bands)], 0 before and after the kernel */
} band_call;

/* How many sums of FAN others are made of n, until one is left. */
static __host__ __device__ inline size_t nodes_above(size_t n)
{
    size_t nodes = 0;
    for (; n > 1; n = groups_of(n, FAN))
        nodes += groups_of(n, FAN);
    return nodes;
}

/* A column has a sum of d_out, for the bias, and then one of d_out * norm, for the gain; an RMS
 * norm has only the latter, a bias only the former. */
static __host__ __device__ inline size_t n_sums(const band_call *a)
{
    return (a->of.d_bias != NULL) + (a->of.d_gain != NULL);
}

static __device__ inline float *sums_at(const band_call *a, size_t node, size_t which)
{
    return a->sums + (node * n_sums(a) + which) * a->of.cols;
}

/* A thread's first column, and where the columns of its block end. It has parts of n columns,
 * NORM_THREADS parts apart. */
static __device__ inline size_t first_column(const band_call *a, size_t n)
{
    return blockIdx.x % a->n_groups * a->group_cols + threadIdx.x * n;
}
static __device__ inline size_t end_column(const band_call *a)
{
    return smaller((blockIdx.x % a->n_groups + 1) * a->group_cols, a->of.cols);
}

/* What d_in of a row takes. With norm = (in - mean) * rstd and g = d_out * gain:  d_in = rstd (g -
 * avg(g) - norm avg(g norm)). Without `mean` there is no avg(g). */
typedef struct row_numbers {
    float mean, rstd, avg_g, avg_gn;
} row_numbers;

static __device__ inline row_numbers average_row(const layernorm_backward_args *a, size_t r,
                                                 part_kind kind, dtype type)
{
    const size_t cols = a->cols, n = part_elems(kind, type);
    const float mean = a->mean ? a->mean[r] : 0.0f, rstd = a->rstd[r];
    float sum_g = 0.0f, sum_gn = 0.0f, d[MOST_ELEMS], x[MOST_ELEMS], gain[MOST_ELEMS];
    for (size_t c = threadIdx.x % WARP_LANES * n; c < cols; c += WARP_LANES * n) {
        load(d, a->d_out, r * cols + c, n, kind == VECTOR, type);
        load(x, a->in, r * cols + c, n, kind == VECTOR, type);
        load(gain, a->gain, c, n, kind == VECTOR, type);
        for (size_t e = 0; e < n; e++) {
            const float g = d[e] * gain[e];
            sum_g += g;
            sum_gn = fmaf(g, norm_of(x[e], mean, rstd), sum_gn);
        }
    }
    const float avg_g = a->mean ? warp_sum(sum_g) / (float)cols : 0.0f;
    return row_numbers{mean, rstd, avg_g, warp_sum(sum_gn) / (float)cols};
}

/* Rows of a band; the numbers of the first and the following ones. */
typedef struct band_tile {
    size_t begin, end;
    const row_numbers *numbers; /* NULL: of a bias */
} band_tile;

/* Add the tile's rows to the sums of the part from column c on, and compute d_in there. */
static __device__ inline void add_tile(const layernorm_backward_args *a, const band_tile *t,
                                       size_t c, float sum[2][MOST_ELEMS], part_kind kind,
                                       dtype type)
{
    const size_t n = part_elems(kind, type);
    float d[MOST_ELEMS], x[MOST_ELEMS], gain[MOST_ELEMS] = {0}, past[MOST_ELEMS] = {0};
    if (t->numbers && t->begin < t->end) /* without rows the arrays may be NULL */
        load(gain, a->gain, c, n, kind == VECTOR, type);
    for (size_t r = t->begin; r < t->end; r++) {
        const size_t at = r * a->cols + c;
        load(d, a->d_out, at, n, kind == VECTOR, type);
        for (size_t e = 0; e < n; e++)
            sum[0][e] += d[e];
        if (!t->numbers)
            continue;
        const row_numbers row = t->numbers[r - t->begin];
        load(x, a->in, at, n, kind == VECTOR, type);
        if (a->d_residual)
            load(past, a->d_residual, at, n, kind == VECTOR, type);
        for (size_t e = 0; e < n; e++) {
            const float norm = norm_of(x[e], row.mean, row.rstd);
            sum[1][e] = fmaf(d[e], norm, sum[1][e]);
            x[e] = row.rstd * (d[e] * gain[e] - row.avg_g - norm * row.avg_gn);
            x[e] = a->d_residual ? x[e] + past[e] : x[e];
        }
        store(a->d_in, at, x, n, kind == VECTOR, type);
    }
}

static __device__ inline void add_rows(const band_call *a, bool is_norm, part_kind kind, dtype type)
{
    __shared__ row_numbers numbers[TILE_ROWS];
    const size_t n = part_elems(kind, type), band = blockIdx.x / a->n_groups;
    const size_t begin = band * a->band_rows, end = smaller(begin + a->band_rows, a->of.rows);
    band_tile t = {begin, begin, is_norm ? numbers : NULL};
    do { /* also without rows: their sums are 0 */
        t.begin = t.end;
        t.end = is_norm ? smaller(t.begin + TILE_ROWS, end) : end;
        for (size_t r = t.begin + threadIdx.x / WARP_LANES; is_norm && r < t.end; r += ROW_WARPS) {
            const row_numbers row = average_row(&a->of, r, kind, type);
            if (threadIdx.x % WARP_LANES == 0)
                numbers[r - t.begin] = row;
        }
        if (is_norm)
            __syncthreads();
        for (size_t c = first_column(a, n); c < end_column(a); c += NORM_THREADS * n) {
            float sum[2][MOST_ELEMS] = {{0}};
            float *const bias = sums_at(a, band, 0), *const gain = sums_at(a, band, n_sums(a) - 1);
            if (t.begin > begin && a->of.d_bias)
                load(sum[0], bias, c, n, n > 1, DTYPE_F32);
            if (t.begin > begin && a->of.d_gain)
                load(sum[1], gain, c, n, n > 1, DTYPE_F32);
            add_tile(&a->of, &t, c, sum, kind, type);
            if (a->of.d_bias)
                store(bias, c, sum[0], n, n > 1, DTYPE_F32);
            if (a->of.d_gain)
                store(gain, c, sum[1], n, n > 1, DTYPE_F32);
        }
        if (is_norm)
            __syncthreads(); /* all threads have read the numbers before they are overwritten */
    } while (t.end < end);
}

/* ---- gradients: the sums of all bands -------------------------------------------------------- */

static __device__ inline void add_bands(const band_call *a, bool is_norm, part_kind kind,
                                        dtype type)
{
    const size_t n = part_elems(kind, type);
    unsigned *counts = a->counts + blockIdx.x % a->n_groups * nodes_above(a->n_bands);
    size_t node = blockIdx.x / a->n_groups, first = 0; /* of the `left` sums from `first` on */
    add_rows(a, is_norm, kind, type);
    for (size_t left = a->n_bands; left > 1; left = groups_of(left, FAN)) {
        const size_t begin = node / FAN * FAN, end = smaller(begin + FAN, left);
        node /= FAN;
        if (!is_last_block(counts + node, (unsigned)(end - begin)))
            return;
        for (size_t i = 0; i < n_sums(a); i++)
            for (size_t c = first_column(a, n); c < end_column(a); c += NORM_THREADS * n) {
                float sum[MOST_ELEMS] = {0}, x[MOST_ELEMS];
                for (size_t k = first + begin; k < first + end; k++) {
                    load(x, sums_at(a, k, i), c, n, n > 1, DTYPE_F32);
                    for (size_t e = 0; e < n; e++)
                        sum[e] += x[e];
                }
                store(sums_at(a, first + left + node, i), c, sum, n, n > 1, DTYPE_F32);
            }
        counts += groups_of(left, FAN);
        first += left;
    }
    for (size_t i = 0; i < n_sums(a); i++)
        for (size_t c = first_column(a, n); c < end_column(a); c += NORM_THREADS * n)
            gradient_deliver((i == 0 && a->of.d_bias ? a->of.d_bias : a->of.d_gain) + c,
                             sums_at(a, first, i) + c, n, a->of.overwrite);
}

__global__ void fast_bias_backward_kernel(band_call a)
{
    BY_PART(add_bands, a.kind, a.of.type, &a, false);
}

__global__ void fast_norm_backward_kernel(band_call a)
{
    BY_PART(add_bands, a.kind, a.of.type, &a, true);
}

static cudaError_t bands_issue(stream *s, const void *args)
{
    const band_call *a = (const band_call *)args;
    const unsigned n_blocks = (unsigned)(a->n_bands * a->n_groups);
    return a->of.d_gain == NULL ? LAUNCH(fast_bias_backward_kernel, n_blocks, NORM_THREADS, s, *a)
                                : LAUNCH(fast_norm_backward_kernel, n_blocks, NORM_THREADS, s, *a);
}

/* A block of a norm has all columns, because d_in of a row takes sums over them. Few bands of many
 * columns are not worth counting. */
static fsdp_status in_bands(stream *s, const layernorm_backward_args *of, op_work work)
{
    const void *const arrays[] = {of->d_in, of->d_out, of->in, of->gain, of->d_residual};
    band_call a = {};
    if (work.ends)
        return work.status;
    a.of = *of;
    a.kind = part_kind_for(of->cols, of->type, arrays, 5);
    a.group_cols = of->d_gain ? of->cols : NORM_THREADS * part_elems(a.kind, of->type);
    a.n_groups = groups_of(of->cols, a.group_cols);
    const size_t most = a.n_groups > MAX_BANDS / 4 ? 1 : MAX_BANDS / a.n_groups;
    const size_t even = groups_of(of->rows, most);
    a.band_rows = even > MIN_BAND_ROWS || most == 1 ? even : MIN_BAND_ROWS;
    a.n_bands = of->rows > 0 ? groups_of(of->rows, a.band_rows) : 1;
    const size_t nodes = nodes_above(a.n_bands);
    const size_t elems = (a.n_bands + nodes) * n_sums(&a) * of->cols;
    FSDP_ASSERT(a.n_groups * nodes <= CUDA_COUNTS);
    TRY(cuda_counts_of(s, &a.counts));
    TRY(device_alloc_f32(s, MEM_OTHER, elems, "sums over rows", &a.sums));
    op_writes(&work, a.sums, elems * sizeof(float));
    const fsdp_status status = cuda_issue(s, bands_issue, &a, work);
    device_free(s, a.sums);
    return status;
}

fsdp_status fast_bias_backward(stream *s, const bias_backward_args *a)
{
    const layernorm_backward_args of = {NULL,    NULL,      a->d_bias,    a->d_out, NULL,
                                        NULL,    NULL,      NULL,         NULL,     a->rows,
                                        a->cols, a->leaves, a->overwrite, a->type};
    return in_bands(s, &of, bias_backward_work(a));
}

fsdp_status fast_layernorm_backward(stream *s, const layernorm_backward_args *a)
{
    return in_bands(s, a, layernorm_backward_work(a));
}

fsdp_status fast_rmsnorm_backward(stream *s, const rmsnorm_backward_args *a)
{
    const layernorm_backward_args of = {a->d_in, a->d_gain,     NULL,         a->d_out, a->in,
                                        a->gain, a->d_residual, NULL,         a->rstd,  a->rows,
                                        a->cols, a->leaves,     a->overwrite, a->type};
    return in_bands(s, &of, rmsnorm_backward_work(a));
}
