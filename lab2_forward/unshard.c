/* unshard.c -- provided, no task: the states of units. Special cases are handled here; the tasks of
 * forward.c, called through a unit's `way`, do the rest. */
#include "lab2_forward/unshard.h"
#include "common/comm/comm_calls.h"
#include "lab2_forward/freeze.h"
#include "lab2_forward/host_state.h"
#include "lab2_forward/reshard_to.h"

static fsdp_status wrong_state(const fsdp_unit *u, const char *call, const char *expected)
{
    static const char *const names[] = {"SHARDED", "GATHERING", "GATHERED"};
    return fsdp_error(FSDP_ESTATE, "call unshard_begin, unshard_wait, reshard in this order",
                      "%s: unit %d (%s) is %s, expected %s", call, u->id, u->name, names[u->state],
                      expected);
}

void unit_use_groups(fsdp *f, int u)
{
    f->gather_group = f->units[u].given.place.gather_group;
    f->reduce_group = f->units[u].given.place.reduce_group;
    f->mesh.replicate = f->units[u].given.place.replica_group;
}

/* A gather reads the shard, which the optimizer may still be writing. */
static fsdp_status order_gather(fsdp *f, fsdp_unit *unit)
{
    event *after = f->gather_after;
    if (!after) {
        after = unit->given.consumed;
        TRY(event_record(after, f->compute));
    }
    return stream_wait_event(f->gather_stream, after);
}

/* Gather u, which is SHARDED, without its other parts. */
static fsdp_status gather_alone(fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    if (!unit->given.place.way.is_ordered)
        TRY(order_gather(f, unit));
    unit_use_groups(f, u);
    return unit->given.place.way.begin(f, u);
}

/* Call `step` of each part of u. */
static fsdp_status each_part(fsdp *f, int u, fsdp_status (*step)(fsdp *f, int part))
{
    const unit_given *given = &f->units[u].given;
    FSDP_ASSERT(given->n_parts > 0);
    for (int i = 0; i < given->n_parts; i++)
        TRY(step(f, given->parts[i]));
    return FSDP_OK;
}

static fsdp_status begin_part(fsdp *f, int u)
{
    const bool begins = f->units[u].state == UNIT_SHARDED && unit_is_used(f, u);
    return begins ? gather_alone(f, u) : FSDP_OK;
}

static fsdp_status wait_part(fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    if (unit->state == UNIT_SHARDED && unit_is_used(f, u))
        return wrong_state(unit, "unshard_wait", "GATHERING");
    return unit->state == UNIT_GATHERING ? unit->given.place.way.wait(f, u) : FSDP_OK;
}

static fsdp_status drop_part(fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    if (unit->state == UNIT_SHARDED || unit->stays_after_backward)
        return FSDP_OK;
    if (unit->state == UNIT_GATHERING)
        return wrong_state(unit, "reshard", "GATHERED");
    return unit->given.place.way.drop(f, u);
}

fsdp_status unshard_begin(fsdp *f, int u)
{
    return each_part(f, u, begin_part);
}

fsdp_status unshard_wait(fsdp *f, int u)
{
    return each_part(f, u, wait_part);
}

fsdp_status reshard(fsdp *f, int u)
{
    return f->given.keeps_now ? FSDP_OK : each_part(f, u, drop_part);
}

fsdp_status unshard_drop(fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    if (unit->state != UNIT_GATHERING)
        return FSDP_OK;
    TRY(stream_wait_event(f->compute, unit->gathered)); /* the optimizer may write the shard next */
    device_free(f->gather_stream, unit->full);          /* after the gather that writes it */
    unit->full = NULL;
    unit->state = UNIT_SHARDED;
    return FSDP_OK;
}

fsdp_status reshard_all(fsdp *f)
{
    for (int u = 0; u < f->n_units; u++) {
        TRY(unshard_drop(f, u));
        TRY(reshard(f, u));
    }
    return FSDP_OK;
}

fsdp_status shard_cast(fsdp *f, int u, void *slice)
{
    const fsdp_unit *unit = &f->units[u];
    if (shard_is_on_host(f))
        return offload_gather(f, u, f->run.param_dtype, slice);
    return f->run.param_dtype == DTYPE_F32 ? device_copy(f->gather_stream, slice, unit->shard,
                                                         unit->layout.shard_elems * sizeof(float))
                                           : shard_round(f, u, slice);
}

fsdp_status unit_gather_array(fsdp *f, int u, float *shard, float **full)
{
    fsdp_unit *unit = &f->units[u];
    float *const masters = unit->shard;
    event *const gather_after = f->gather_after;
    const dtype t = f->run.param_dtype;
    const bool is_shown = unit->given.is_shown;
    near_drop(f); /* the update of the last step came after the parts were kept ... */
    unit->shard = shard;
    unit->given.is_shown = is_shown && shard == masters;
    f->run.param_dtype = DTYPE_F32;
    f->gather_after = NULL; /* ... and after this event */
    fsdp_status status = gather_alone(f, u);
    *full = unit->full;
    unit->full = NULL;
    unit->state = UNIT_SHARDED;
    unit->shard = masters;
    unit->given.is_shown = is_shown;
    f->run.param_dtype = t;
    f->gather_after = gather_after;
    return status == FSDP_OK ? stream_wait_event(f->compute, unit->gathered) : status;
}
