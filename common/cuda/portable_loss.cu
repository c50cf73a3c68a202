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

/* vocab_part_of by the lanes of a warp, which all get the result. */
static __device__ inline vocab_part part_by_warp(const void *logits, size_t vocab, size_t place,
                                                 dtype type)
{
    vocab_part x = {MASKED, 0.0f, 0.0f};
    if (place < vocab) /* first: d_logits may be logits */
        x.target = row_load(logits, place, type);
    if (vocab > 0) {
        x.top = max_by_warp(logits, vocab, type);
        x.sum = sum_exp_by_warp(logits, vocab, x.top, type);
    }
    return x;
}

__global__ void vocab_part_kernel(vocab_part_args a)
{
    const size_t r = (size_t)blockIdx.x * ROWS + threadIdx.x / WARP_LANES;
    if (r >= a.rows)
        return;
    const void *logits = row_at(a.logits, r * row_stride(a.stride, a.vocab), a.type);
    const vocab_part x =
        BY_TYPE(part_by_warp, a.type, logits, a.vocab, cut_place(a.cut, a.targets[r]));
    if (threadIdx.x % WARP_LANES == 0)
        a.parts[r] = x;
}

OPERATION(cuda, vocab_part, vocab_part_kernel, groups_of(a->rows, ROWS), ROWS *WARP_LANES, *a)

static __device__ inline double loss_row(const cross_entropy_args *a, size_t r, dtype type)
{
    const size_t vocab = a->vocab, place = cut_place(a->cut, a->targets[r]);
    const void *logits = logits_row(a, r, type);
    const vocab_part x = a->parts ? vocab_join(a, r) : part_by_warp(logits, vocab, place, type);
    for (size_t i = threadIdx.x % WARP_LANES; i < vocab && a->d_logits; i += WARP_LANES) {
        const float p = exp_at(logits, i, x.top, type) / x.sum;
        row_store(d_logits_row(a, r, type), i, i == place ? p - 1.0f : p, type);
    }
    return pm_log((double)x.sum) + ((double)x.top - (double)x.target);
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
    if (j.args.loss)
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
