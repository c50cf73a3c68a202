/* portable_norm.cu -- layer and RMS normalisation, and column sums (the gradients of gains and
 * biases), with the CPU's bits (ops/row_norm.h).
 *
 * Normalisation: one thread per row. Column sums: one thread adds one column in row order, so a
 * warp reads 32 neighbours of each row. A block is one warp, to spread the few rows or columns over
 * many processors. */
#include "common/cuda/kernels.h"
#include "common/cuda/launch.h"
#include "common/cuda/reduce.h"
#include "common/ops/row_norm.h"

/* ---- bias_backward --------------------------------------------------------------------------- */

__global__ void bias_backward_kernel(bias_backward_args a)
{
    const size_t c = global_thread();
    float sum = 0.0f;
    if (c >= a.cols)
        return;
    BY_TYPE(bias_backward_columns, a.type, &a, c, 1, &sum);
    gradient_deliver(a.d_bias + c, &sum, 1, a.overwrite);
}

OPERATION(portable, bias_backward, bias_backward_kernel, groups_of(a->cols, WARP_LANES), WARP_LANES,
          *a)

/* ---- layernorm ------------------------------------------------------------------------------- */

ROW_OPERATION(portable, layernorm, rows, layernorm_row)

/* ---- layernorm_backward ---------------------------------------------------------------------- */

__global__ void layernorm_params_kernel(layernorm_backward_args a)
{
    const size_t c = global_thread();
    float gain = 0.0f, bias = 0.0f;
    const norm_sums sums = {&gain, &bias};
    if (c >= a.cols)
        return;
    BY_TYPE(layernorm_backward_columns, a.type, &a, c, 1, sums);
    gradient_deliver(a.d_gain + c, &gain, 1, a.overwrite);
    gradient_deliver(a.d_bias + c, &bias, 1, a.overwrite);
}

ROW_KERNEL(layernorm_backward, rows, layernorm_backward_row)

static cudaError_t layernorm_backward_issue(stream *s, const void *args)
{
    const layernorm_backward_args *a = (const layernorm_backward_args *)args;
    const cudaError_t error =
        LAUNCH(layernorm_params_kernel, groups_of(a->cols, WARP_LANES), WARP_LANES, s, *a);
    if (error != cudaSuccess || a->rows == 0)
        return error;
    return LAUNCH(layernorm_backward_kernel, groups_of(a->rows, WARP_LANES), WARP_LANES, s, *a);
}

ISSUED(portable, layernorm_backward)

/* ---- rmsnorm --------------------------------------------------------------------------------- */

ROW_OPERATION(portable, rmsnorm, rows, rmsnorm_row)

__global__ void rmsnorm_gain_kernel(rmsnorm_backward_args a)
{
    const size_t c = global_thread();
    float gain = 0.0f;
    if (c >= a.cols)
        return;
    BY_TYPE(rmsnorm_backward_columns, a.type, &a, c, 1, &gain);
    gradient_deliver(a.d_gain + c, &gain, 1, a.overwrite);
}

ROW_KERNEL(rmsnorm_backward, rows, rmsnorm_backward_row)

static cudaError_t rmsnorm_backward_issue(stream *s, const void *args)
{
    const rmsnorm_backward_args *a = (const rmsnorm_backward_args *)args;
    const cudaError_t error =
        LAUNCH(rmsnorm_gain_kernel, groups_of(a->cols, WARP_LANES), WARP_LANES, s, *a);
    if (error != cudaSuccess || a->rows == 0)
        return error;
    return LAUNCH(rmsnorm_backward_kernel, groups_of(a->rows, WARP_LANES), WARP_LANES, s, *a);
}

ISSUED(portable, rmsnorm_backward)
