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
    BY_TYPE(bias_backward_columns, a.type, &a, all_rows(a.rows), c, 1, &sum);
    gradient_deliver(a.d_bias + c, &sum, 1, a.overwrite);
}

OPERATION(portable, bias_backward, bias_backward_kernel, groups_of(a->cols, WARP_LANES), WARP_LANES,
          *a)

/* BACKWARD(op, params_kernel) -- defines portable_op: params_kernel makes the gradients of
 * parameters, a thread for each column, op_row a row of d_in. */
#define BACKWARD(op, params_kernel)                                                                \
    ROW_KERNEL(op, rows, op##_row)                                                                 \
    static cudaError_t op##_issue(stream *s, const void *args)                                     \
    {                                                                                              \
        const op##_args *a = (const op##_args *)args;                                              \
        const cudaError_t error =                                                                  \
            LAUNCH(params_kernel, groups_of(a->cols, WARP_LANES), WARP_LANES, s, *a);              \
        if (error != cudaSuccess || a->rows == 0)                                                  \
            return error;                                                                          \
        return LAUNCH(op##_kernel, groups_of(a->rows, WARP_LANES), WARP_LANES, s, *a);             \
    }                                                                                              \
    ISSUED(portable, op)

/* ---- layernorm ------------------------------------------------------------------------------- */

ROW_OPERATION(portable, layernorm, rows, layernorm_row)

/* ---- layernorm_backward ---------------------------------------------------------------------- */

__global__ void layernorm_params_kernel(layernorm_backward_args a)
{
    const size_t c = global_thread();
    float sums[2] = {0.0f, 0.0f};
    if (c >= a.cols)
        return;
    BY_TYPE(layernorm_backward_columns, a.type, &a, all_rows(a.rows), c, 1, sums);
    gradient_deliver(a.d_gain + c, &sums[0], 1, a.overwrite);
    gradient_deliver(a.d_bias + c, &sums[1], 1, a.overwrite);
}

BACKWARD(layernorm_backward, layernorm_params_kernel)

/* ---- rmsnorm --------------------------------------------------------------------------------- */

ROW_OPERATION(portable, rmsnorm, rows, rmsnorm_row)

__global__ void rmsnorm_gain_kernel(rmsnorm_backward_args a)
{
    const size_t c = global_thread();
    float gain = 0.0f;
    if (c >= a.cols)
        return;
    BY_TYPE(rmsnorm_backward_columns, a.type, &a, all_rows(a.rows), c, 1, &gain);
    gradient_deliver(a.d_gain + c, &gain, 1, a.overwrite);
}

BACKWARD(rmsnorm_backward, rmsnorm_gain_kernel)
