/* npu_ops_shared.c -- steps that several operations share. See npu_ops.h. */
#include "lab6_npu/npu_ops.h"

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

fsdp_status npu_add_grad(stream *s, float *grad, const float *part, size_t elems)
{
    const npu_view to = view_f32(grad, elems);
    return aclnn_add(s, to, to, view_f32(part, elems));
}
