/* reshard_to.c -- see reshard_to.h. */
#include "lab2_forward/reshard_to.h"
#include "common/comm/comm_calls.h"
#include "common/device/device_calls.h"
#include "lab1_flatparam/flat_param.h"
#include "lab2_forward/forward.h"

static comm *near_of(const fsdp *f, int u)
{
    return f->units[u].given.place.near_group;
}

/* How many elements of unit u each rank keeps. */
static size_t near_elems(const fsdp *f, int u)
{
    const size_t n = (size_t)comm_size(near_of(f, u)), elems = f->units[u].layout.padded_elems;
    return size_round_up(elems / n + (elems % n != 0), FLAT_ALIGN_ELEMS);
}

/* This rank's part of the gathered array, and its bytes. In the per-parameter layout (lab 1's
 * dim0.h) the parts of the last ranks may be shorter, or empty. */
static void *near_at(const fsdp *f, int u, size_t *bytes)
{
    const size_t elems = near_elems(f, u), begin = (size_t)comm_rank(near_of(f, u)) * elems;
    const size_t end = f->units[u].layout.padded_elems, left = end > begin ? end - begin : 0;
    *bytes = min_size(left, elems) * dtype_bytes(f->run.param_dtype);
    return full_at(f, u, begin);
}

fsdp_status near_keep(fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    size_t bytes;
    if (!near_of(f, u) || !f->given.near_keeps || unit->stays_after_forward || unit->given.near)
        return FSDP_OK;
    const void *mine = near_at(f, u, &bytes);
    TRY(comm_alloc(near_of(f, u), f->compute, MEM_PARAMS_FULL,
                   near_elems(f, u) * dtype_bytes(f->run.param_dtype), "near shard",
                   &unit->given.near));
    TRY(device_copy(f->compute, unit->given.near, mine, bytes));
    unit->given.far = unit->given.place.way;
    unit->given.place.way.begin = near_gather;
    unit->given.place.way.is_ordered = true;
    return event_record(unit->given.consumed, f->compute);
}

fsdp_status near_gather(fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    const dtype t = f->run.param_dtype;
    const size_t elems = near_elems(f, u);
    comm *c = near_of(f, u);
    size_t bytes;
    TRY(stream_wait_event(f->gather_stream, unit->given.consumed));
    TRY(comm_alloc(c, f->gather_stream, MEM_PARAMS_FULL,
                   (size_t)comm_size(c) * elems * dtype_bytes(t), "gathered unit", &unit->full));
    unit->state = UNIT_GATHERING;
    void *mine = near_at(f, u, &bytes);
    TRY(device_copy(f->gather_stream, mine, unit->given.near, bytes));
    TRY(comm_all_gather(c, f->gather_stream, unit->name, t, mine, unit->full, elems));
    return event_record(unit->gathered, f->gather_stream);
}

void near_drop(fsdp *f)
{
    for (int u = 0; u < f->n_units; u++) {
        unit_given *given = &f->units[u].given;
        if (!given->near)
            continue;
        device_free(f->compute, given->near);
        given->near = NULL;
        given->place.way = given->far;
    }
}
