/* reshard_to.c -- see reshard_to.h. */
#include "lab2_forward/reshard_to.h"
#include "common/comm/comm_calls.h"
#include "common/device/device_calls.h"
#include "lab1_flatparam/flat_param.h"
#include "lab2_forward/forward.h"

/* How many elements of unit u each rank keeps. */
static size_t near_elems(const fsdp *f, int u)
{
    const size_t n = (size_t)comm_size(f->own.near_group), elems = f->units[u].layout.padded_elems;
    return size_round_up(elems / n + (elems % n != 0), FLAT_ALIGN_ELEMS);
}

/* This rank's part of the gathered array, and its bytes. In the per-parameter layout (lab 1's
 * dim0.h) the parts of the last ranks may be shorter, or empty. */
static void *near_at(const fsdp *f, int u, size_t *bytes)
{
    const size_t elems = near_elems(f, u), begin = (size_t)comm_rank(f->own.near_group) * elems;
    const size_t end = f->units[u].layout.padded_elems, left = end > begin ? end - begin : 0;
    *bytes = min_size(left, elems) * dtype_bytes(f->run.param_dtype);
    return full_at(f, u, begin);
}

fsdp_status near_keep(fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    size_t bytes;
    if (!f->own.near_group || !f->own.near_keeps || unit->stays_after_forward || unit->own.near)
        return FSDP_OK;
    const void *mine = near_at(f, u, &bytes);
    TRY(comm_alloc(f->own.near_group, f->compute, MEM_PARAMS_FULL,
                   near_elems(f, u) * dtype_bytes(f->run.param_dtype), "near shard",
                   &unit->own.near));
    TRY(device_copy(f->compute, unit->own.near, mine, bytes));
    return event_record(unit->consumed, f->compute);
}

fsdp_status near_gather(fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    const dtype t = f->run.param_dtype;
    const size_t elems = near_elems(f, u);
    comm *c = f->own.near_group;
    size_t bytes;
    TRY(stream_wait_event(f->gather_stream, unit->consumed));
    TRY(comm_alloc(c, f->gather_stream, MEM_PARAMS_FULL,
                   (size_t)comm_size(c) * elems * dtype_bytes(t), "gathered unit", &unit->full));
    unit->state = UNIT_GATHERING;
    void *mine = near_at(f, u, &bytes);
    TRY(device_copy(f->gather_stream, mine, unit->own.near, bytes));
    TRY(comm_all_gather(c, f->gather_stream, unit->name, t, mine, unit->full, elems));
    return event_record(unit->gathered, f->gather_stream);
}

void near_drop(fsdp *f)
{
    for (int u = 0; u < f->n_units; u++) {
        device_free(f->compute, f->units[u].own.near);
        f->units[u].own.near = NULL;
    }
}
