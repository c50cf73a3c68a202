/* portable_loss.cu -- softmax cross-entropy and its gradient, with the CPU's bits
 * (ops/row_softmax.h). A thread does one row; then one thread adds the rows' losses in their order.
 */
#include "common/cuda/complaint.h"
#include "common/cuda/kernels.h"
#include "common/cuda/launch.h"
#include "common/ops/row_softmax.h"

enum { WARP = 32 };

typedef struct loss_job {
    cross_entropy_args args;
    double *row_loss; /* [rows] */
    complaint_box *complaint;
} loss_job;

__global__ void loss_rows_kernel(loss_job j)
{
    const cross_entropy_args *a = &j.args;
    const size_t r = global_thread();
    if (r >= a->rows)
        return;
    const bool fits = number_fits(j.complaint, ABOUT_TARGET, a->targets[r], r, a->vocab);
    j.row_loss[r] = fits ? BY_TYPE(cross_entropy_row, a->type, a, r) : 0.0;
}

__global__ void loss_sum_kernel(loss_job j)
{
    double total = 0.0;
    for (size_t r = 0; r < j.args.rows; r++)
        total += j.row_loss[r];
    *j.args.loss = (float)total;
}

static cudaError_t cross_entropy_issue(cudaStream_t s, const void *args)
{
    const loss_job *j = (const loss_job *)args;
    cudaError_t error = cudaSuccess;
    if (j->args.rows > 0)
        error = LAUNCH(loss_rows_kernel, (unsigned)((j->args.rows + WARP - 1) / WARP), WARP, s, *j);
    return error == cudaSuccess ? LAUNCH(loss_sum_kernel, 1, 1, s, *j) : error;
}

fsdp_status portable_cross_entropy(stream *s, const cross_entropy_args *a)
{
    const size_t bytes = a->rows * sizeof(double);
    loss_job j = {*a, NULL, complaint_of(s)};
    op_work w = cross_entropy_work(a);
    TRY(check_type("cross_entropy", a->type));
    if (bytes > 0)
        TRY(device_alloc(s, MEM_ACTIVATIONS, bytes, "cross_entropy", (void **)&j.row_loss));
    op_writes(&w, j.row_loss, bytes);
    fsdp_status status = cuda_issue(s, cross_entropy_issue, &j, w);
    device_free(s, j.row_loss);
    return status;
}
