/* train_export.c -- see train_export.h. */
#include "common/steps/train_export.h"
#include "common/checkpoint/ckpt_store.h"
#include "common/model/tensor_parallel.h"
#include "common/weights/export.h"

/* An export in progress. */
typedef struct export_run {
    export_writer w;
    const engine *engine;
    ckpt_origin of;
    int array;
    ckpt_piece next; /* the next parameter, whole */
} export_run;

static fsdp_status export_param(void *ctx, const float *values, size_t elems)
{
    export_run *x = ctx;
    const model *m = x->of.m;
    int l = 0;
    while (m->params[x->next.param].tied_to != NOT_TIED || !ckpt_has(m, x->next.param, x->array))
        x->next.param++;
    while (x->next.param >= m->layers[l].first_param + m->layers[l].n_params)
        l++;
    x->next.unit = x->engine->unit_name(x->engine->self, x->engine->layer_unit[l]);
    x->next.elems = elems;
    TRY(ckpt_check_finite(&x->of, &x->next, x->array, values));
    const param_spec *spec = &m->params[x->next.param++];
    for (size_t done = 0, n; done < elems; done += n) {
        const size_t at = param_from_file(spec, spec->cut.blocks, done, &n);
        n = n < elems - done ? n : elems - done;
        TRY(export_append(&x->w, values + at, n));
    }
    return FSDP_OK;
}

/* Open the writer, on rank 0 only. */
static fsdp_status begin_export(const train_setup *setup, train_exported what, const char *path,
                                export_run *x)
{
    const uint64_t most_bytes = (uint64_t)setup->cfg->opt->export_shard_mib << 20;
    if (comm_rank(setup->run->world) != 0)
        return FSDP_OK;
    if (what == TRAIN_STATES)
        return export_begin_states(x->of.m, x->of.optimizer, x->of.step, path, &x->w);
    return export_begin(x->of.m, path, most_bytes, setup->source, &x->w);
}

fsdp_status train_export(const train_setup *setup, train_exported what, const char *path,
                         int64_t step)
{
    comm *world = setup->run->world;
    const engine *e = setup->engine;
    export_run x = {.engine = e,
                    .of = {.what = "export",
                           .m = setup->run->m,
                           .optimizer = optimizer_of(setup->run->optimizer),
                           .step = step,
                           .newest = setup->store ? setup->store->newest : 0}};
    const int n_arrays = what == TRAIN_STATES ? x.of.optimizer->n_states : 1;
    fsdp_status status = comm_agree(world, begin_export(setup, what, path, &x));
    for (int i = 0; i < n_arrays && status == FSDP_OK; i++) {
        x.array = what == TRAIN_STATES ? i + 1 : 0;
        x.next.param = 0;
        status = e->read_array(e->self, x.array, export_param, &x);
    }
    if (status == FSDP_OK)
        return comm_agree(world, comm_rank(world) == 0 ? export_end(&x.w) : FSDP_OK);
    export_cancel(&x.w);
    return status;
}
