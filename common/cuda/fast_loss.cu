/* fast_loss.cu -- softmax cross-entropy for the fast table.
 *
 * A block computes one row. Each thread reads every BLOCK_THREADS-th part of 16 bytes, at once if
 * the row is aligned to that, and keeps a running maximum and the sum of exponentials relative to
 * it:
 *     top' = max(top, x ...);  sum' = sum exp(top - top') + exp(x - top') ...
 * A tree of fixed shape joins the threads' pairs (top, sum). Then each thread reads its logits
 * again, from the cache (a row of GPT-2 is 100 kB of bf16), and writes their gradients, which may
 * overwrite the logits. Losses of rows are doubles in scratch memory. A last block adds them:
 * thread i adds the losses of rows i, i + BLOCK_THREADS, ..., then a tree adds these sums.
 * [Milakov & Gimelshein 2018] */
#include "common/cuda/loss.h"
#include "common/cuda/parts.h"

/* A running softmax: the maximum, and the sum of exp(x - top). */
typedef struct top_sum {
    float top, sum;
} top_sum;

/* top == MASKED means "no element yet": exp(MASKED - x) is 0. */
static __device__ inline top_sum top_sum_join(top_sum a, top_sum b)
{
    const float top = a.top > b.top ? a.top : b.top;
    const float sum = a.sum * expf(a.top - top) + b.sum * expf(b.top - top);
    return (top_sum){top, sum};
}

/* Add the elements of a part. A NaN makes the sum NaN. */
static __device__ inline top_sum top_sum_add(top_sum a, const float *x, size_t n)
{
    float top = a.top;
    for (size_t e = 0; e < n; e++)
        top = larger(x[e], top);
    float sum = a.sum * expf(a.top - top);
    for (size_t e = 0; e < n; e++)
        sum += expf(x[e] - top);
    return (top_sum){top, sum};
}

/* load_part -- x = the part of a row from element i on, MASKED beyond the row's end. store_part --
 * the reverse. */
static __device__ inline void load_part(float *x, const void *row, size_t i, size_t vocab,
                                        bool at_once, dtype type)
{
    const size_t n = part_elems(VECTOR, type);
    if (at_once && i + n <= vocab)
        load(x, row, i, n, true, type);
    else
        for (size_t e = 0; e < n; e++)
            x[e] = i + e < vocab ? row_load(row, i + e, type) : MASKED;
}
static __device__ inline void store_part(void *row, size_t i, const float *x, size_t vocab,
                                         bool at_once, dtype type)
{
    const size_t n = part_elems(VECTOR, type);
    if (at_once && i + n <= vocab)
        store(row, i, x, n, true, type);
    else
        for (size_t e = 0; e < n && i + e < vocab; e++)
            row_store(row, i + e, x[e], type);
}

/* Join the pairs of all threads; all threads get the result. */
static __device__ inline top_sum block_join(top_sum mine)
{
    __shared__ top_sum of[BLOCK_THREADS];
    of[threadIdx.x] = mine;
    __syncthreads();
    for (unsigned half = BLOCK_THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            of[threadIdx.x] = top_sum_join(of[threadIdx.x], of[threadIdx.x + half]);
        __syncthreads();
    }
    return of[0];
}

static __device__ inline void loss_row(const loss_job *j, dtype type)
{
    const cross_entropy_args *a = &j->args;
    const size_t r = blockIdx.x, place = cut_place(a->cut, a->targets[r]);
    const size_t n = part_elems(VECTOR, type), mine = threadIdx.x * n, step = BLOCK_THREADS * n;
    const void *logits = logits_row(a, r, type);
    void *d_logits = d_logits_row(a, r, type);
    const bool at_once = ((uintptr_t)logits | (uintptr_t)d_logits) % PART_BYTES == 0;
    vocab_part of_row = {MASKED, 0.0f, place < a->vocab ? row_load(logits, place, type) : 0.0f};
    float x[MOST_ELEMS];
    top_sum mine_of = {MASKED, 0.0f};
    for (size_t i = mine; i < a->vocab && !a->parts; i += step) {
        load_part(x, logits, i, a->vocab, at_once, type);
        mine_of = top_sum_add(mine_of, x, n);
    }
    mine_of = block_join(mine_of); /* after its barriers, d_logits may overwrite logits */
    of_row.top = mine_of.top;
    of_row.sum = mine_of.sum;
    if (a->parts)
        of_row = vocab_join(a, r);
    if (threadIdx.x == 0)
        j->row_loss[r] = pm_log((double)of_row.sum) + ((double)of_row.top - (double)of_row.target);
    for (size_t i = mine; i < a->vocab && d_logits; i += step) {
        load_part(x, logits, i, a->vocab, at_once, type);
        for (size_t e = 0; e < n; e++) {
            x[e] = expf(x[e] - of_row.top) / of_row.sum;
            x[e] -= i + e == place ? 1.0f : 0.0f;
        }
        store_part(d_logits, i, x, a->vocab, at_once, type);
    }
}

__global__ void fast_loss_kernel(loss_job j)
{
    const cross_entropy_args *a = &j.args;
    if (has_loss(&j, blockIdx.x, threadIdx.x, BLOCK_THREADS))
        BY_TYPE(loss_row, a->type, &j);
}

__global__ void fast_loss_sum_kernel(loss_job j)
{
    const cross_entropy_args *a = &j.args;
    __shared__ double of[BLOCK_THREADS];
    double sum = 0.0;
    for (size_t r = threadIdx.x; r < a->rows; r += BLOCK_THREADS)
        sum += j.row_loss[r];
    of[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned half = BLOCK_THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            of[threadIdx.x] += of[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x > 0)
        return;
    const double total = a->total ? *a->total + of[0] : of[0];
    if (a->total)
        *a->total = total;
    if (a->loss)
        *a->loss = (float)total;
}

static cudaError_t cross_entropy_issue(stream *s, const void *args)
{
    const loss_job *j = (const loss_job *)args;
    const cross_entropy_args *a = &j->args;
    cudaError_t error = cudaSuccess;
    if (a->rows > 0)
        error = LAUNCH(fast_loss_kernel, (unsigned)a->rows, BLOCK_THREADS, s, *j);
    if (error != cudaSuccess)
        return error;
    return LAUNCH(fast_loss_sum_kernel, 1, BLOCK_THREADS, s, *j);
}

fsdp_status fast_cross_entropy(stream *s, const cross_entropy_args *a)
{
    return cross_entropy_by(cross_entropy_issue, s, a);
}
