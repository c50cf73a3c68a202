/* check_args.h -- which arguments an operation takes; for all backends. */
#pragma once
#include "common/ops/ops.h"

/* check_type -- FSDP_EINVAL naming the operation `op` unless arrays of type t can be its. */
static inline fsdp_status check_type(const char *op, dtype t)
{
    if (t == DTYPE_F32 || t == DTYPE_BF16)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "pass DTYPE_F32 or DTYPE_BF16",
                      "%s: elements stored as %s, expected f32 or bf16", op, dtype_name(t));
}

/* check_matmul -- FSDP_EINVAL unless a matmul takes these types, bias and residual. */
static inline fsdp_status check_matmul(const matmul_args *a)
{
    TRY(check_type("matmul", a->type));
    if (a->out_type != a->type && a->out_type != DTYPE_F32)
        return fsdp_error(FSDP_EINVAL, "store what a matmul makes as its operands, or in fp32",
                          "matmul: out as %s, expected f32 or %s", dtype_name(a->out_type),
                          dtype_name(a->type));
    if (a->accumulate && (a->out_type != DTYPE_F32 || a->bias || a->residual))
        return fsdp_error(FSDP_EINVAL, "accumulate in fp32; add bias and residual by another call",
                          "matmul: accumulates in %s %s bias or residual, expected f32 without",
                          dtype_name(a->out_type), a->bias || a->residual ? "with" : "without");
    return FSDP_OK;
}

/* attention_is_empty -- whether there is nothing to do. */
static inline bool attention_is_empty(const attention_shape *x)
{
    return x->batch == 0 || x->seq_len == 0 || x->n_head == 0 || x->head_dim == 0;
}

/* check_attention -- check_type; asserts that heads come in whole groups. */
static inline fsdp_status check_attention(const char *op, const attention_shape *x)
{
    TRY(check_type(op, x->type));
    FSDP_ASSERT(attention_is_empty(x) || (x->n_kv_head > 0 && x->n_head % x->n_kv_head == 0));
    return FSDP_OK;
}
