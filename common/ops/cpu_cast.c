/* cpu_cast.c -- conversion between fp32 and bf16, for both tables. Element-wise: the loops are
 * integer arithmetic (base/dtype.h), so vectorised bodies and scalar tails give the same bits. */
#include "common/ops/cpu_kernels.h"

static fsdp_status cast_tile(const void *args, size_t tile)
{
    const cast_args *a = args;
    const size_t begin = tile * TILE_ELEMS, end = min_size(a->elems, begin + TILE_ELEMS);
    if (a->out_type == a->in_type) {
        const size_t bytes = dtype_bytes(a->in_type);
        memcpy((char *)a->out + begin * bytes, (const char *)a->in + begin * bytes,
               (end - begin) * bytes);
    } else if (a->out_type == DTYPE_BF16) {
        uint16_t *restrict out = a->out;
        const float *restrict in = a->in;
        for (size_t i = begin; i < end; i++)
            out[i] = bf16_from_f32(in[i]);
    } else {
        float *restrict out = a->out;
        const uint16_t *restrict in = a->in;
        for (size_t i = begin; i < end; i++)
            out[i] = f32_from_bf16(in[i]);
    }
    return FSDP_OK;
}

ELEMENTWISE(cast, MIN_PARALLEL_ELEMS)
