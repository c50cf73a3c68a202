/* check_type.h -- which element types an operation takes; for all backends. */
#pragma once
#include "common/base/dtype.h"

/* check_type -- FSDP_EINVAL naming the operation `op` unless arrays of type t can be its. */
static inline fsdp_status check_type(const char *op, dtype t)
{
    if (t == DTYPE_F32 || t == DTYPE_BF16)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "pass DTYPE_F32 or DTYPE_BF16",
                      "%s: elements stored as %s, expected f32 or bf16", op, dtype_name(t));
}
