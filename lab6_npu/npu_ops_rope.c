/* npu_ops_rope.c -- rotary positions by RotaryPositionEmbedding. See npu_ops.h.
 *
 * The operator needs the cosine and sine of each element's angle, [T,D]. Each call computes them
 * again: the host writes the positions and the frequencies, T + D numbers, and the NPU multiplies
 * them in fp32, like Hugging Face transformers. A negated frequency rotates backward. */
#include "lab6_npu/npu_ops.h"

/* The scratch memory of a call, fp32, in one block. */
typedef struct rope_scratch {
    float *positions, *frequencies; /* [T], [D], written by the host */
    float *angles, *cos, *sin;      /* [T,D] */
    float *in, *out;                /* [B,T,H,D]; in: x as fp32, only for bf16 */
} rope_scratch;

static fsdp_status scratch_get(stream *s, const rope_args *a, rope_scratch *x)
{
    const size_t T = a->seq_len, D = a->head_dim, elems = a->batch * T * a->n_head * D;
    const size_t copies = a->type == DTYPE_F32 ? 1 : 2;
    TRY(device_alloc_f32(s, MEM_OTHER, T + D + 3 * T * D + copies * elems, "rotary positions",
                         &x->positions));
    x->frequencies = x->positions + T;
    x->angles = x->frequencies + D;
    x->cos = x->angles + T * D;
    x->sin = x->cos + T * D;
    x->out = x->sin + T * D;
    x->in = x->out + elems;
    return FSDP_OK;
}

/* ---- angles ---------------------------------------------------------------------------------- */

typedef struct list_args {
    float *host; /* [T + D] */
    rope_args of;
} list_args;

static fsdp_status list_numbers(void *args, int n_threads)
{
    const list_args *l = args;
    const rope_args *a = &l->of;
    const size_t D = a->head_dim;
    (void)n_threads;
    for (size_t t = 0; t < a->seq_len; t++)
        l->host[t] = (float)t;
    for (size_t i = 0; i < D; i++) {
        const float freq = a->inv_freq[a->interleaved ? i / 2 : i % (D / 2)];
        l->host[a->seq_len + i] = a->inverse ? -freq : freq;
    }
    return FSDP_OK;
}

/* Let the host write positions and frequencies, and copy them, in order of s. */
static fsdp_status numbers_get(stream *s, const rope_args *a, const rope_scratch *x)
{
    const size_t bytes = (a->seq_len + a->head_dim) * sizeof(float);
    list_args list = {.of = *a};
    TRY(device_alloc_host_f32(s, MEM_OTHER, a->seq_len + a->head_dim, "positions", &list.host));
    const mem_access writes = {list.host, bytes, .writes = true};
    fsdp_status status = npu_host_task(s, list_numbers, &list, sizeof list, &writes);
    IF_OK(status, device_copy(s, x->positions, list.host, bytes));
    device_free(s, list.host);
    return status;
}

static fsdp_status angles_make(stream *s, const rope_args *a, const rope_scratch *x)
{
    const size_t T = a->seq_len, D = a->head_dim;
    const npu_view angles = view_2d(x->angles, ACL_FLOAT, T, D);
    TRY(aclnn_mul(s, angles, view_2d(x->positions, ACL_FLOAT, T, 1),
                  view_2d(x->frequencies, ACL_FLOAT, 1, D)));
    TRY(aclnn_cos(s, view_2d(x->cos, ACL_FLOAT, T, D), angles));
    return aclnn_sin(s, view_2d(x->sin, ACL_FLOAT, T, D), angles);
}

/* ---- rope ------------------------------------------------------------------------------------ */

/* Heads [B,T,H,D], with `stride` elements from one row to the next. */
static npu_view heads_view(const void *ptr, aclDataType type, const rope_args *a, size_t stride)
{
    const int64_t T = (int64_t)a->seq_len, D = (int64_t)a->head_dim, row = (int64_t)stride;
    return (npu_view){
        ptr, type, 4, {(int64_t)a->batch, T, (int64_t)a->n_head, D}, {T * row, row, D, 1}};
}

static npu_view table_view(const float *ptr, const rope_args *a)
{
    const int64_t T = (int64_t)a->seq_len, D = (int64_t)a->head_dim;
    return (npu_view){ptr, ACL_FLOAT, 4, {1, T, 1, D}, {T * D, D, D, 1}};
}

typedef struct rope_call {
    rope_args of;
    rope_scratch scratch;
} rope_call;

static fsdp_status rope_issue(stream *s, const void *args)
{
    const rope_call *call = args;
    const rope_args *a = &call->of;
    const rope_scratch *t = &call->scratch;
    const size_t width = a->n_head * a->head_dim;
    const npu_view x = heads_view(a->x, npu_type(a->type), a, a->stride);
    const npu_view wide = heads_view(t->in, ACL_FLOAT, a, width);
    const npu_view out = heads_view(t->out, ACL_FLOAT, a, width);
    const bool is_wide = a->type == DTYPE_F32;
    TRY(angles_make(s, a, t));
    if (!is_wide)
        TRY(aclnn_cast(s, wide, x));
    TRY(aclnn_rotary(s, out, is_wide ? x : wide, table_view(t->cos, a), table_view(t->sin, a),
                     a->interleaved));
    return is_wide ? aclnn_copy(s, x, out) : aclnn_cast(s, x, out);
}

fsdp_status npu_rope(stream *s, const rope_args *a)
{
    rope_call call = {.of = *a};
    const op_work work = rope_work(a);
    if (work.ends)
        return work.status;
    TRY(scratch_get(s, a, &call.scratch));
    fsdp_status status = numbers_get(s, a, &call.scratch);
    IF_OK(status, accel_issue(s, rope_issue, &call, work));
    device_free(s, call.scratch.positions);
    return status;
}
