/* loss.h -- code that both implementations of cross-entropy share. Only for .cu files. */
#pragma once
#include "common/cuda/complaint.h"
#include "common/cuda/kernels.h"
#include "common/cuda/launch.h"
#include "common/ops/row_softmax.h"

typedef struct loss_job {
    cross_entropy_args args;
    double *row_loss; /* [rows] */
    complaint_box *complaint;
} loss_job;

/* cross_entropy_by -- call issue(s, job) for *a; the job has scratch memory for losses of rows. */
static inline fsdp_status cross_entropy_by(cuda_issue_fn issue, stream *s,
                                           const cross_entropy_args *a)
{
    const size_t bytes = a->rows * sizeof(double);
    op_work work = cross_entropy_work(a);
    void *row_loss;
    if (work.ends)
        return work.status;
    TRY(device_alloc(s, MEM_OTHER, bytes, "losses of rows", &row_loss));
    const loss_job job = {*a, (double *)row_loss, complaint_of(s)};
    op_writes(&work, row_loss, bytes);
    const fsdp_status status = cuda_issue(s, issue, &job, work);
    device_free(s, row_loss);
    return status;
}
