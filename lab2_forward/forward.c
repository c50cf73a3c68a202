/* forward.c -- tasks 2.1 to 2.4: gather a unit, show it to the model, drop it again; and the hooks
 * that do so in a forward pass. */
#include "common/comm/comm_calls.h"
#include "common/device/device_calls.h"
#include "lab2_forward/dim0_gather.h"
#include "lab2_forward/forward.h"
#include "lab2_forward/freeze.h"
#include "lab2_forward/reshard_to.h"

static fsdp_status wrong_state(const fsdp_unit *u, const char *call, const char *expected)
{
    static const char *const names[] = {"SHARDED", "GATHERING", "GATHERED"};
    return fsdp_error(FSDP_ESTATE, "call unshard_begin, unshard_wait, reshard in this order",
                      "%s: unit %d (%s) is %s, expected %s", call, u->id, u->name, names[u->state],
                      expected);
}

/* A gather reads the shard, which the optimizer may still be writing. */
static fsdp_status order_gather(fsdp *f, fsdp_unit *unit)
{
    event *after = f->gather_after;
    if (!after) {
        after = unit->consumed;
        TRY(event_record(after, f->compute));
    }
    return stream_wait_event(f->gather_stream, after);
}

fsdp_status unshard_begin(fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    const int companion = unit->own.companion;
    if (companion && unit_is_used(f, companion))
        TRY(unshard_begin(f, companion));
    if (unit->state != UNIT_SHARDED)
        return FSDP_OK;
    if (unit->own.near)
        return near_gather(f, u);
    TRY(order_gather(f, unit));
    if (unit->layout.row_ranks > 0)
        return dim0_unshard_begin(f, u);
    /* SOLUTION BEGIN 2.1 */
    comm *c = f->gather_group;
    const flat_layout *l = &unit->layout;
    const dtype t = f->run.param_dtype;
    TRY(comm_alloc(c, f->gather_stream, MEM_PARAMS_FULL, l->padded_elems * dtype_bytes(t),
                   "gathered unit", &unit->full));
    unit->state = UNIT_GATHERING;
    void *mine = full_at(f, u, (size_t)comm_rank(c) * l->shard_elems);
    TRY(shard_cast(f, u, mine));
    TRY(comm_all_gather(c, f->gather_stream, unit->name, t, mine, unit->full, l->shard_elems));
    return event_record(unit->gathered, f->gather_stream);
    /* SOLUTION END 2.1 */
}

fsdp_status unshard_wait(fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    const int companion = unit->own.companion;
    if (companion && f->units[companion].state == UNIT_GATHERING)
        TRY(unshard_wait(f, companion));
    if (unit->state == UNIT_GATHERED)
        return FSDP_OK;
    if (unit->state == UNIT_SHARDED)
        return wrong_state(unit, "unshard_wait", "GATHERING");
    /* SOLUTION BEGIN 2.2 */
    TRY(stream_wait_event(f->compute, unit->gathered));
    unit->state = UNIT_GATHERED;
    return views_bind(f, u);
    /* SOLUTION END 2.2 */
}

fsdp_status views_bind(fsdp *f, int u)
{
    const fsdp_unit *unit = &f->units[u];
    const model *m = f->run.m;
    /* SOLUTION BEGIN 2.2 */
    for (int i = 0; i < unit->layout.n_slots; i++) {
        const flat_slot *slot = &unit->layout.slots[i];
        f->views.params[slot->param] = full_at(f, u, slot->offset);
        for (int p = m->params[slot->param].next_use; p > 0; p = m->params[p].next_use)
            f->views.params[p] = full_at(f, u, slot->offset);
    }
    return FSDP_OK;
    /* SOLUTION END 2.2 */
}

fsdp_status reshard(fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    if (unit->state == UNIT_SHARDED || unit->stays_after_backward || f->own.keeps_now)
        return FSDP_OK;
    if (unit->state == UNIT_GATHERING)
        return wrong_state(unit, "reshard", "GATHERED");
    if (unit->own.companion)
        TRY(reshard(f, unit->own.companion));
    /* SOLUTION BEGIN 2.3 */
    for (int p = unit->first_param; p < unit->end_param; p++)
        if (f->param_unit[p] == u)
            f->views.params[p] = NULL;
    device_free(f->compute, unit->full); /* after the kernels that still read it */
    unit->full = NULL;
    unit->state = UNIT_SHARDED;
    return FSDP_OK;
    /* SOLUTION END 2.3 */
}

fsdp_status forward_pre_hook(void *self, int u)
{
    fsdp *f = self;
    /* SOLUTION BEGIN 2.4 */
    TRY(unshard_begin(f, u));
    return unshard_wait(f, u);
    /* SOLUTION END 2.4 */
}

fsdp_status forward_post_hook(void *self, int u)
{
    fsdp *f = self;
    /* SOLUTION BEGIN 2.4 */
    if (f->units[u].stays_after_forward)
        return FSDP_OK;
    return reshard(f, u);
    /* SOLUTION END 2.4 */
}

unit_hooks fsdp_forward_hooks(fsdp *f)
{
    return (unit_hooks){
        .self = f, .pre_forward = forward_pre_hook, .post_forward = forward_post_hook};
}
