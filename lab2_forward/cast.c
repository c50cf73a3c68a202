/* cast.c -- task 2.6: what changes when parameters are gathered in bf16. */
#include "lab2_forward/forward.h"

void *full_at(const fsdp *f, int u, size_t elems)
{
    return (char *)f->units[u].full + elems * dtype_bytes(f->run.param_dtype);
}

fsdp_status shard_round(fsdp *f, int u, void *slice)
{
    const fsdp_unit *unit = &f->units[u];
    size_t elems = unit->layout.shard_elems;
    /* SOLUTION BEGIN 2.6 */
    return f->run.ops->cast(f->gather_stream, &(cast_args){.out = slice,
                                                           .in = unit->shard,
                                                           .out_type = f->run.param_dtype,
                                                           .in_type = DTYPE_F32,
                                                           .elems = elems});
    /* SOLUTION END 2.6 */
}
