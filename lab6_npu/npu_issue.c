/* npu_issue.c -- what the operations of an NPU share: how they issue work, and two steps of
 * several. See npu_ops.h. */
#include "lab6_npu/npu_ops.h"

typedef struct issue_args {
    npu_issue_fn fn;
    const void *args;
    fsdp_status *status;
} issue_args;

/* What an operation has to say has words already; 0 keeps them. */
static int issue_now(stream *s, void *queue, const void *args)
{
    const issue_args *a = args;
    (void)queue;
    *a->status = a->fn(s, a->args);
    return 0;
}

fsdp_status npu_issue_as(stream *s, npu_issue_fn fn, const void *args, const launch_config *what)
{
    fsdp_status status = FSDP_OK;
    TRY(accel_issue_as(s, issue_now, &(issue_args){fn, args, &status}, what));
    return status;
}

fsdp_status npu_issue(stream *s, npu_issue_fn fn, const void *args, op_work work)
{
    return npu_issue_as(s, fn, args,
                        &(launch_config){.work = work.info,
                                         .accesses = work.accesses,
                                         .n_accesses = work.n_accesses});
}

fsdp_status npu_widen(stream *s, const void *in, dtype type, size_t elems, const float **out,
                      float **scratch)
{
    *out = in;
    *scratch = NULL;
    if (type == DTYPE_F32 || elems == 0)
        return FSDP_OK;
    TRY(device_alloc_f32(s, MEM_OTHER, elems, "operand in fp32", scratch));
    *out = *scratch;
    return aclnn_cast(s, view_f32(*scratch, elems), view_1d(in, ACL_BF16, elems));
}

fsdp_status npu_add_grad(stream *s, float *grad, const float *part, size_t elems, bool overwrite)
{
    const npu_view to = view_f32(grad, elems), from = view_f32(part, elems);
    return overwrite ? aclnn_copy(s, to, from) : aclnn_add(s, to, to, from);
}
