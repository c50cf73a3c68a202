/* npu_ops_element.c -- operations on single elements, and two steps that other operations share.
 * See npu_ops.h. */
#include "lab6_npu/npu_ops.h"

/* ---- steps of other operations --------------------------------------------------------------- */

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

fsdp_status npu_host_task(stream *s, stream_fn fn, const void *args, size_t args_bytes,
                          const mem_access *touches)
{
    return stream_launch_work(s, &(launch_config){.fn = fn,
                                                  .args = args,
                                                  .args_bytes = args_bytes,
                                                  .on_host = true,
                                                  .name = "on the host",
                                                  .accesses = touches,
                                                  .n_accesses = 1});
}

/* ---- gelu ------------------------------------------------------------------------------------ */

static fsdp_status gelu_issue(stream *s, const void *args)
{
    const gelu_args *a = args;
    return aclnn_gelu(s, view_1d(a->out, npu_type(a->type), a->elems),
                      view_1d(a->in, npu_type(a->type), a->elems));
}

ISSUED(gelu)

static fsdp_status gelu_backward_issue(stream *s, const void *args)
{
    const gelu_backward_args *a = args;
    const aclDataType type = npu_type(a->type);
    return aclnn_gelu_backward(s, view_1d(a->d_in, type, a->elems),
                               view_1d(a->d_out, type, a->elems), view_1d(a->in, type, a->elems));
}

ISSUED(gelu_backward)

/* ---- swiglu ---------------------------------------------------------------------------------- */

/* silu(gate) is computed in out, or in scratch memory if out is up. */
static fsdp_status swiglu_issue(stream *s, const void *args)
{
    const swiglu_args *a = args;
    const aclDataType type = npu_type(a->type);
    const npu_view up = view_1d(a->up, type, a->elems), out = view_1d(a->out, type, a->elems);
    npu_view act = out;
    void *scratch = NULL;
    if (a->out == a->up) {
        TRY(device_alloc(s, MEM_OTHER, a->elems * dtype_bytes(a->type), "silu(gate)", &scratch));
        act.ptr = scratch;
    }
    fsdp_status status = aclnn_silu(s, act, view_1d(a->gate, type, a->elems));
    IF_OK(status, a->out == a->up ? aclnn_mul(s, out, up, act) : aclnn_mul(s, out, act, up));
    device_free(s, scratch);
    return status;
}

ISSUED(swiglu)

/* d_up is written before d_gate, and d_gate's last step does not read d_out. So d_up or d_gate may
 * be the same array as d_out. */
static fsdp_status swiglu_backward_steps(stream *s, const swiglu_backward_args *a, void *scratch)
{
    const aclDataType type = npu_type(a->type);
    const npu_view gate = view_1d(a->gate, type, a->elems), up = view_1d(a->up, type, a->elems);
    const npu_view d_out = view_1d(a->d_out, type, a->elems);
    const npu_view act = view_1d(scratch, type, a->elems);
    const npu_view d_act =
        view_1d((char *)scratch + a->elems * dtype_bytes(a->type), type, a->elems);
    TRY(aclnn_mul(s, d_act, d_out, up));
    TRY(aclnn_silu(s, act, gate));
    TRY(aclnn_mul(s, view_1d(a->d_up, type, a->elems), d_out, act));
    return aclnn_silu_backward(s, view_1d(a->d_gate, type, a->elems), d_act, gate);
}

static fsdp_status swiglu_backward_issue(stream *s, const void *args)
{
    const swiglu_backward_args *a = args;
    void *scratch;
    TRY(device_alloc(s, MEM_OTHER, 2 * a->elems * dtype_bytes(a->type),
                     "silu(gate) and its gradient", &scratch));
    const fsdp_status status = swiglu_backward_steps(s, a, scratch);
    device_free(s, scratch);
    return status;
}

ISSUED(swiglu_backward)

/* ---- cast ------------------------------------------------------------------------------------ */

static fsdp_status cast_issue(stream *s, const void *args)
{
    const cast_args *a = args;
    const npu_view out = view_1d(a->out, npu_type(a->out_type), a->elems);
    const npu_view in = view_1d(a->in, npu_type(a->in_type), a->elems);
    return a->out_type == a->in_type ? aclnn_copy(s, out, in) : aclnn_cast(s, out, in);
}

ISSUED(cast)

/* ---- add ------------------------------------------------------------------------------------- */

/* out = in, rounded to bf16 and converted back; half [elems] is scratch memory. */
static fsdp_status round_trip(stream *s, npu_view out, npu_view in, const void *half)
{
    const npu_view between = view_1d(half, ACL_BF16, (size_t)in.dim[0]);
    TRY(aclnn_cast(s, between, in));
    return aclnn_cast(s, out, between);
}

/* The rounded b is kept in `wide` until it is added, because out may be a or b. */
static fsdp_status add_rounded(stream *s, const add_args *a, const void *half, float *wide)
{
    const npu_view out = view_f32(a->out, a->elems), b = view_f32(wide, a->elems);
    if (a->b != NULL)
        TRY(round_trip(s, b, view_f32(a->b, a->elems), half));
    TRY(round_trip(s, out, view_f32(a->a, a->elems), half));
    if (a->b == NULL)
        return FSDP_OK;
    TRY(aclnn_add(s, out, out, b));
    return round_trip(s, out, out, half);
}

static fsdp_status add_issue(stream *s, const void *args)
{
    const add_args *a = args;
    const npu_view out = view_f32(a->out, a->elems);
    float *scratch;
    if (a->round_to == DTYPE_F32 && a->out == a->b)
        return aclnn_add(s, out, out, view_f32(a->a, a->elems));
    if (a->round_to == DTYPE_F32)
        return aclnn_add(s, out, view_f32(a->a, a->elems), view_f32(a->b, a->elems));
    TRY(device_alloc_f32(s, MEM_OTHER, 2 * a->elems, "rounded operands", &scratch));
    fsdp_status status = add_rounded(s, a, scratch + a->elems, scratch);
    device_free(s, scratch);
    return status;
}

ISSUED(add)

/* ---- scale ----------------------------------------------------------------------------------- */

static fsdp_status scale_issue(stream *s, const void *args)
{
    const scale_args *a = args;
    const npu_view x = view_f32(a->x, a->elems);
    return aclnn_muls(s, x, x, a->factor);
}

ISSUED(scale)
