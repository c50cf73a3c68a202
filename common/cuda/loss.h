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

/* has_loss -- whether row r has a target in the vocabulary; if not, its loss is zeroed, and its
 * gradient by the threads of the row. Complains unless it is NO_TARGET. */
static __device__ inline bool has_loss(const loss_job *j, size_t r, unsigned thread,
                                       unsigned n_threads)
{
    const cross_entropy_args *a = &j->args;
    if (a->targets[r] != NO_TARGET &&
        number_fits(j->complaint, ABOUT_TARGET, a->targets[r], r, cut_all(a->cut, a->vocab)))
        return true;
    for (size_t i = thread; i < a->vocab && a->d_logits; i += n_threads)
        row_store(d_logits_row(a, r, a->type), i, 0.0f, a->type);
    if (thread == 0)
        j->row_loss[r] = 0.0;
    return false;
}

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
