/* cast.c -- task 2.6, and what else differs when parameters are gathered in bf16. */
#include "lab2_forward/fsdp.h"

void *full_at(const fsdp *f, int u, size_t elems)
{
    return (char *)f->units[u].full + elems * dtype_bytes(f->config.param_dtype);
}

fsdp_status shard_cast(fsdp *f, int u, void *slice)
{
    const fsdp_unit *unit = &f->units[u];
    size_t elems = unit->layout.shard_elems;
    if (f->config.param_dtype == DTYPE_F32)
        return device_copy(f->comm_stream, slice, unit->shard, elems * sizeof(float));
    /* SOLUTION BEGIN 2.6 */
    return f->config.ops->cast(f->comm_stream, &(cast_args){.out = slice,
                                                            .in = unit->shard,
                                                            .out_type = f->config.param_dtype,
                                                            .in_type = DTYPE_F32,
                                                            .elems = elems});
    /* SOLUTION END 2.6 */
}

fsdp_status fsdp_refresh(fsdp *f)
{
    if (f->config.sharding != SHARDING_NONE || f->config.param_dtype == DTYPE_F32)
        return FSDP_OK;
    for (int u = 0; u < f->n_units; u++)
        TRY(f->config.ops->cast(f->compute,
                                &(cast_args){.out = f->units[u].full,
                                             .in = f->units[u].shard,
                                             .out_type = f->config.param_dtype,
                                             .in_type = DTYPE_F32,
                                             .elems = f->units[u].layout.padded_elems}));
    return FSDP_OK;
}
