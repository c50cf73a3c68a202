/* reshard_to.c -- see reshard_to.h. */
#include "lab2_forward/reshard_to.h"
#include "common/comm/comm_calls.h"
#include "common/device/device.h"
#include "lab2_forward/forward.h"

static size_t near_elems(const fsdp *f, int u)
{
    return f->units[u].layout.padded_elems / (size_t)comm_size(f->near_group);
}

/* This rank's part of the gathered array. */
static void *near_at(const fsdp *f, int u)
{
    return full_at(f, u, (size_t)comm_rank(f->near_group) * near_elems(f, u));
}

fsdp_status near_keep(fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    if (!f->near_group || !f->near_keeps || unit->stays_after_forward || unit->near)
        return FSDP_OK;
    const size_t bytes = near_elems(f, u) * dtype_bytes(f->run.param_dtype);
    TRY(device_alloc(f->compute, MEM_PARAMS_FULL, bytes, "near shard", &unit->near));
    TRY(device_copy(f->compute, unit->near, near_at(f, u), bytes));
    return event_record(unit->consumed, f->compute);
}

fsdp_status near_gather(fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    const dtype t = f->run.param_dtype;
    const size_t elems = near_elems(f, u);
    comm *c = f->near_group;
    TRY(stream_wait_event(f->gather_stream, unit->consumed));
    TRY(comm_alloc(c, f->gather_stream, MEM_PARAMS_FULL, unit->layout.padded_elems * dtype_bytes(t),
                   "gathered unit", &unit->full));
    unit->state = UNIT_GATHERING;
    TRY(device_copy(f->gather_stream, near_at(f, u), unit->near, elems * dtype_bytes(t)));
    TRY(comm_all_gather(c, f->gather_stream, unit->name, t, near_at(f, u), unit->full, elems));
    return event_record(unit->gathered, f->gather_stream);
}

void near_drop(fsdp *f)
{
    for (int u = 0; u < f->n_units; u++) {
        device_free(f->compute, f->units[u].near);
        f->units[u].near = NULL;
    }
}
