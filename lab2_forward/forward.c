/* forward.c -- tasks 2.1 to 2.4: gather a unit, show it to the model, drop it again; and the hooks
 * that do so in a forward pass. */
#include "lab2_forward/forward.h"
#include "common/comm/comm_calls.h"
#include "common/device/device_calls.h"

fsdp_status gather_flat(fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
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

fsdp_status gather_wait(fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
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

fsdp_status unit_drop(fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
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
