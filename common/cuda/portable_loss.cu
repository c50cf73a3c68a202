/* portable_loss.cu -- softmax cross-entropy and its gradient, with the bits of ops/row_softmax.h.
 *
 * A warp computes one row, in three passes: the maximum, the sum of exponentials, the gradient. In
 * each pass the lanes read neighbours. The CPU computes a maximum in 32 lanes and a sum in 16, each
 * lane in the order of its elements, and then joins the lanes by a tree. Here each lane of the warp
 * is one of the 32. For a sum, lane l < 16 adds from each 32 exponentials first its own and then
 * the one of lane l + 16. At the end one thread adds the losses of the rows in order. */
#include "common/cuda/loss.h"
#include "common/cuda/reduce.h"

enum { ROWS = 4 }; /* of a block */

/* The x of the lane whose number is higher by `apart`. */
static __device__ inline float from_above(float x, unsigned apart)
{
    return __shfl_down_sync((unsigned)ALL_LANES, x, apart);
}

static __device__ inline float from_first(float x)
{
    return __shfl_sync((unsigned)ALL_LANES, x, 0);
}

static __device__ inline float max_by_warp(const void *x, size_t n, dtype type)
{
    float top = -__builtin_inff();
    for (size_t i = threadIdx.x % WARP_LANES; i < n; i += WARP_LANES)
        top = larger(row_load(x, i, type), top);
    for (unsigned apart = 16; apart >= 4; apart /= 2)
        top = larger(top, from_above(top, apart));
    top = larger(top, from_above(top, 1));
    return from_first(larger(top, from_above(top, 2)));
}

static __device__ inline float exp_at(const void *x, size_t i, float top, dtype type)
{
    return pm_expf_upto40(row_load(x, i, type) - top);
}

/* Elements past the end count as zeros, which do not change a sum of exponentials. */
static __device__ inline float sum_exp_by_warp(const void *x, size_t n, float top, dtype type)
{
    float sum = 0.0f;
    for (size_t begin = 0; begin < n; begin += WARP_LANES) {
        const size_t i = begin + threadIdx.x % WARP_LANES;
        const float e = i < n ? exp_at(x, i, top, type) : 0.0f, later = from_above(e, LANES);
        sum += e;
        sum += later;
    }
    for (unsigned apart = LANES / 2; apart > 0; apart /= 2)
        sum += from_above(sum, apart);
    return from_first(sum);
}

static __device__ inline double loss_row(const cross_entropy_args *a, size_t r, dtype type)
{
    const size_t vocab = a->vocab, target = (size_t)a->targets[r];
    const void *logits = logits_row(a, r, type);
    const float target_logit = row_load(logits, target, type); /* first: d_logits may be logits */
    const float top = max_by_warp(logits, vocab, type);
    const float sum = sum_exp_by_warp(logits, vocab, top, type);
    for (size_t i = threadIdx.x % WARP_LANES; i < vocab && a->d_logits; i += WARP_LANES) {
        const float p = exp_at(logits, i, top, type) / sum;
        row_store(d_logits_row(a, r, type), i, i == target ? p - 1.0f : p, type);
    }
    return pm_log((double)sum) + ((double)top - (double)target_logit);
}

__global__ void loss_rows_kernel(loss_job j)
{
    const cross_entropy_args *a = &j.args;
    const size_t r = (size_t)blockIdx.x * ROWS + threadIdx.x / WARP_LANES;
    if (r >= a->rows)
        return;
    if (!has_loss(&j, r, threadIdx.x % WARP_LANES, WARP_LANES))
        return;
    const double loss = BY_TYPE(loss_row, a->type, a, r);
    if (threadIdx.x % WARP_LANES == 0)
        j.row_loss[r] = loss;
}

__global__ void loss_sum_kernel(loss_job j)
{
    double total = j.args.total ? *j.args.total : 0.0;
    for (size_t r = 0; r < j.args.rows; r++)
        total += j.row_loss[r];
    if (j.args.total)
        *j.args.total = total;
    *j.args.loss = (float)total;
}

static cudaError_t cross_entropy_issue(stream *s, const void *args)
{
    const loss_job *j = (const loss_job *)args;
    cudaError_t error = cudaSuccess;
    if (j->args.rows > 0)
        error = LAUNCH(loss_rows_kernel, groups_of(j->args.rows, ROWS), ROWS * WARP_LANES, s, *j);
    return error == cudaSuccess ? LAUNCH(loss_sum_kernel, 1, 1, s, *j) : error;
}

fsdp_status portable_cross_entropy(stream *s, const cross_entropy_args *a)
{
    return cross_entropy_by(cross_entropy_issue, s, a);
}
