/* optimizer_setup.c -- provided, no task: the optimizer's memory. */
#include <stdlib.h>
#include "common/device/device.h"
#include "lab4_optimizer/offload.h"
#include "lab4_optimizer/optimizer_setup.h"

static fsdp_status create_unit(fsdp_optimizer *o, int u)
{
    fsdp *f = o->r->f;
    const fsdp_unit *unit = &f->units[u];
    unit_optim *opt = &o->units[u];
    flat_piece *mine;
    int n_mine;
    if (unit->given.frozen)
        return FSDP_OK;
    opt->ranges = calloc((size_t)unit->layout.n_slots + 1, sizeof *opt->ranges);
    opt->updated = calloc((size_t)unit->layout.n_slots + 1, sizeof *opt->updated);
    if (!opt->ranges || !opt->updated)
        return fsdp_error(FSDP_ENOMEM, "", "optimizer_create: no host memory");
    TRY(decay_ranges(&unit->layout, f->run.m->params, unit->given.place.shard, opt->updated,
                     &opt->n_updated));
    opt->n_ranges = 0;
    TRY(unit_shard_pieces(unit, unit->given.place.shard, &mine, &n_mine));
    for (int i = 0; i < n_mine && unit->given.place.counts; i++)
        if (!f->run.m->params[unit->layout.slots[mine[i].slot].param].cut.elsewhere)
            opt->ranges[opt->n_ranges++] = opt->updated[i];
    free(mine);
    device_set_scope(f->run.dev, unit->name, NULL);
    fsdp_status status =
        optim_state_alloc(f->compute, optimizer_of(f->run.optimizer), unit->layout.shard_elems,
                          f->given.offload != NULL, opt->state);
    device_set_scope(f->run.dev, NULL, NULL);
    return status;
}

fsdp_status optimizer_create(reducer *r, fsdp_optimizer *o)
{
    stream *s = r->f->compute;
    void *norm_sum = NULL;
    *o = (fsdp_optimizer){.r = r,
                          .ops = r->f->run.ops,
                          .compute = s,
                          .n_units = r->f->n_units,
                          .norm_stream = r->f->comm_stream,
                          .norm_group = r->f->mesh.copy,
                          .update = update_shards};
    if (r->f->given.offload && offload_arrays(o) > 0)
        o->update = offload_update;
    fsdp_status status = FSDP_OK;
    o->units = calloc((size_t)r->f->n_units, sizeof *o->units);
    if (!o->units)
        return fsdp_error(FSDP_ENOMEM, "", "optimizer_create: no host memory");
    GOTO_ON_FAIL(status, device_alloc(s, MEM_OTHER, sizeof *o->norm_sum, "norm bins", &norm_sum),
                 fail);
    o->norm_sum = norm_sum;
    GOTO_ON_FAIL(status, device_alloc_f32(s, MEM_OTHER, 1, "norm", &o->norm), fail);
    GOTO_ON_FAIL(status, device_alloc_f32(s, MEM_OTHER, 1, "clip coefficient", &o->coef), fail);
    GOTO_ON_FAIL(status, event_create(r->f->run.dev, &o->squared), fail);
    GOTO_ON_FAIL(status, event_create(r->f->run.dev, &o->added), fail);
    for (int u = 0; u < r->f->n_units; u++)
        GOTO_ON_FAIL(status, create_unit(o, u), fail);
    if (r->f->given.offload) /* other streams read the moments */
        GOTO_ON_FAIL(status, stream_sync(s), fail);
    return FSDP_OK;
fail:
    optimizer_free(o);
    return status;
}

void optimizer_free(fsdp_optimizer *o)
{
    for (int u = 0; o->units && u < o->r->f->n_units; u++) {
        for (int k = 0; k < OPTIM_MAX_STATES; k++)
            device_free(o->r->f->compute, o->units[u].state[k]);
        free(o->units[u].ranges);
        free(o->units[u].updated);
    }
    if (o->r) {
        device_free(o->r->f->compute, o->norm_sum);
        device_free(o->r->f->compute, o->norm);
        device_free(o->r->f->compute, o->coef);
        event_free(o->squared);
        event_free(o->added);
    }
    free(o->units);
    *o = (fsdp_optimizer){0};
}
