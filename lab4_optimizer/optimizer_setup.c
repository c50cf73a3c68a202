/* create.c -- memory of the optimizer: provided, no task. */
#include <stdlib.h>
#include "lab4_optimizer/optimizer.h"

/* Ranges of the master copy: of this rank's shard, or, when parameters are not sharded, of all
 * shards one behind the other. */
static fsdp_status find_ranges(const fsdp *f, const fsdp_unit *unit, unit_optim *o)
{
    const flat_layout *l = &unit->layout;
    bool whole = f->config.sharding == SHARDING_NONE;
    int first = whole ? 0 : comm_rank(f->config.comm);
    int last = whole ? l->world_size - 1 : first;
    size_t most = (size_t)(last - first + 1) * (size_t)l->n_slots;
    o->ranges = calloc(most + 1, sizeof *o->ranges);
    if (!o->ranges)
        return fsdp_error(FSDP_ENOMEM, "", "optimizer_create: no host memory");
    for (int r = first; r <= last; r++) {
        int n = 0;
        decay_range *out = o->ranges + o->n_ranges;
        TRY(decay_ranges(l, f->config.m->params, r, out, &n));
        for (int i = 0; i < n; i++)
            out[i].begin += (size_t)(r - first) * l->shard_elems;
        o->n_ranges += n;
    }
    return FSDP_OK;
}

static fsdp_status create_unit(fsdp_optimizer *o, int u)
{
    fsdp *f = o->b->f;
    const fsdp_unit *unit = &f->units[u];
    unit_optim *opt = &o->units[u];
    if (unit->frozen)
        return FSDP_OK;
    TRY(find_ranges(f, unit, opt));
    if (o->kind != OPTIMIZER_ADAMW)
        return FSDP_OK;
    size_t own =
        f->config.sharding == SHARDING_NONE ? unit->layout.padded_elems : unit->layout.shard_elems;
    TRY(device_alloc_f32(f->compute, MEM_OPTIMIZER, own, "first moment", &opt->m));
    TRY(device_alloc_f32(f->compute, MEM_OPTIMIZER, own, "second moment", &opt->v));
    TRY(device_zero(f->compute, opt->m, own * sizeof(float)));
    return device_zero(f->compute, opt->v, own * sizeof(float));
}

fsdp_status optimizer_create(reducer *b, optimizer_kind kind, fsdp_optimizer *o)
{
    *o = (fsdp_optimizer){.b = b, .kind = kind};
    fsdp_status status = FSDP_OK;
    o->units = calloc((size_t)b->f->n_units, sizeof *o->units);
    if (!o->units)
        return fsdp_error(FSDP_ENOMEM, "", "optimizer_create: no host memory");
    stream *s = b->f->compute;
    GOTO_ON_FAIL(
        status, device_alloc(s, MEM_OTHER, sizeof *o->norm_sum, "norm bins", (void **)&o->norm_sum),
        fail);
    GOTO_ON_FAIL(status, device_alloc_f32(s, MEM_OTHER, 1, "norm", &o->norm), fail);
    GOTO_ON_FAIL(status, device_alloc_f32(s, MEM_OTHER, 1, "clip coefficient", &o->coef), fail);
    for (int u = 0; u < b->f->n_units; u++)
        GOTO_ON_FAIL(status, create_unit(o, u), fail);
    return FSDP_OK;
fail:
    optimizer_free(o);
    return status;
}

void optimizer_free(fsdp_optimizer *o)
{
    for (int u = 0; o->units && u < o->b->f->n_units; u++) {
        device_free(o->b->f->compute, o->units[u].m);
        device_free(o->b->f->compute, o->units[u].v);
        free(o->units[u].ranges);
    }
    if (o->b) {
        device_free(o->b->f->compute, o->norm_sum);
        device_free(o->b->f->compute, o->norm);
        device_free(o->b->f->compute, o->coef);
    }
    free(o->units);
    *o = (fsdp_optimizer){0};
}
