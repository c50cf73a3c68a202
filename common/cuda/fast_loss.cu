/* fast_loss.cu -- softmax cross-entropy for the fast table.
 *
 * A block computes one row. Each thread reads every BLOCK_THREADS-th logit and keeps a running
 * maximum and the sum of exponentials relative to it:
 *     top' = max(top, x);  sum' = sum exp(top - top') + exp(x - top')
 * A tree of fixed shape joins the threads' pairs (top, sum). Then each thread reads its logits
 * again, from the cache (a row of GPT-2 is 100 kB of bf16), and writes their gradients, which may
 * overwrite the logits. Losses of rows are doubles in scratch memory. A last block adds them:
 * thread i adds the losses of rows i, i + BLOCK_THREADS, ..., then a tree adds these sums.
 * [Milakov & Gimelshein 2018] */
#include "common/cuda/loss.h"

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

/* Add one element, with one exponential. A NaN makes the sum NaN. */
static __device__ inline top_sum top_sum_add(top_sum a, float x)
{
    if (x > a.top)
        return (top_sum){x, fmaf(a.sum, expf(a.top - x), 1.0f)};
    return (top_sum){a.top, a.sum + expf(x - a.top)};
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
    const size_t r = blockIdx.x, target = (size_t)a->targets[r];
    const void *logits = row_at(a->logits, r * a->vocab, type);
    const float target_logit = row_load(logits, target, type);
    top_sum of_row = {MASKED, 0.0f};
    for (size_t i = threadIdx.x; i < a->vocab; i += BLOCK_THREADS)
        of_row = top_sum_add(of_row, row_load(logits, i, type));
    of_row = block_join(of_row); /* after its barriers, d_logits may overwrite logits */
    if (threadIdx.x == 0)
        j->row_loss[r] = pm_log((double)of_row.sum) + ((double)of_row.top - (double)target_logit);
    if (a->d_logits == NULL)
        return;
    void *d_logits = row_out_at(a->d_logits, r * a->vocab, type);
    for (size_t i = threadIdx.x; i < a->vocab; i += BLOCK_THREADS) {
        const float p = expf(row_load(logits, i, type) - of_row.top) / of_row.sum;
        row_store(d_logits, i, i == target ? p - 1.0f : p, type);
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
