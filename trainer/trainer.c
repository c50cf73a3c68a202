/* trainer.c -- create and free the parts of a trainer, on a real device or a dry one. */
#include <stdlib.h>
#include <string.h>
#include "common/base/environment.h"
#include "common/base/units.h"
#include "common/model/tensor_parallel.h"
#include "common/steps/baseline.h"
#include "lab5_prefetch/bucket.h"
#include "trainer/trainer.h"

/* The ranks of a host share its memory, but --device-memory is a limit for each rank. */
size_t trainer_memory(const trainer *t, bool *limited)
{
    const size_t have = device_mem_available(t->run.dev);
    const size_t limit = (size_t)t->opt->device_memory_mib << 20;
    const size_t live = ledger_read(device_ledger(t->run.dev)).live_total_bytes;
    *limited = limit > 0 && (t->opt->plan || have + live >= limit);
    if (t->opt->plan && (limit > 0 || t->costs.machine.model))
        return limit > 0 ? limit : (size_t)t->costs.machine.memory_bytes;
    return *limited ? have : have / (size_t)comm_local_size(t->run.world);
}

fsdp_status trainer_check_need(const char *what, size_t need, size_t have, const char *where,
                               const char *hint)
{
    char need_text[16], have_text[16];
    if (need <= have)
        return FSDP_OK;
    return fsdp_error(FSDP_ENOMEM, hint, "%s needs %s on each rank, %s of %s", what,
                      format_bytes(need, need_text, sizeof need_text),
                      format_bytes(have, have_text, sizeof have_text), where);
}

fsdp_status trainer_check_on_host(const trainer *t, const char *what, size_t need, const char *hint)
{
    return trainer_check_need(what, need,
                              host_mem_available("") / (size_t)comm_local_size(t->run.world),
                              "host memory are available to it", hint);
}

const corpus *trainer_val_data(const trainer *t)
{
    return t->opt->val_data ? &t->val_data : t->opt->eval_only ? &t->data : NULL;
}

fsdp_config trainer_fsdp_config(const trainer *t)
{
    const trainer_options *o = t->opt;
    const trainer_config *c = &t->cfg;
    return (fsdp_config){.run = t->run,
                         .mesh = &t->mesh,
                         .wrap = c->wrap,
                         .wrap_min_elems = c->wrap_min_elems,
                         .per_param = o->layout == LAYOUT_PER_PARAM,
                         .merge = c->bucket_elems > 0 ? bucket_assign : NULL,
                         .merge_max_elems = c->bucket_elems,
                         .offload = {.states = c->offloads,
                                     .shards = o->cpu_offload,
                                     .keeps_grads = o->digests != NULL,
                                     .piece_bytes = (size_t)(o->offload_piece_mib * (1 << 20))},
                         .near_group = t->near_group,
                         .keeps_for_step = o->reshard_after == RESHARD_AFTER_STEP ||
                                           o->sharding == SHARDING_OPTIMIZER,
                         .replicas_last = o->no_sync == NO_SYNC_REPLICAS};
}

/* Blocks that share keys and values may be on several neighbouring tp ranks. */
static fsdp_status open_kv_group(trainer *t)
{
    const int n = (int)(t->m.kv_share / t->m.n_tp_blocks), at = t->run.shape.at[AXIS_TP];
    if (n > 1)
        TRY(comm_range(t->mesh.tp, at / n * n, 1, n, &t->kv_group));
    t->run.kv = t->kv_group;
    return FSDP_OK;
}

fsdp_status trainer_make(trainer *t)
{
    int size[N_AXES];
    trainer_config_mesh(&t->cfg, size);
    TRY(mesh_shape_make(comm_size(t->run.world), size, comm_rank(t->run.world), &t->run.shape));
    TRY(model_share(&t->m, t->run.shape.at[AXIS_TP], t->run.shape.size[AXIS_TP],
                    t->opt->sequence_parallel));
    if (t->cfg.parallel == PARALLEL_FSDP) {
        TRY(mesh_open(t->run.world, size, &t->mesh));
        t->run.tp = t->mesh.tp;
        TRY(open_kv_group(t));
        const int near = (int)t->opt->reshard_to;
        if (near > 0)
            TRY(comm_range(t->mesh.shard, mesh_row_rank(&t->mesh.shape) / near * near, 1, near,
                           &t->near_group));
        const fsdp_config config = trainer_fsdp_config(t);
        const prefetch_config overlap = {
            .mode = t->cfg.prefetch, .limit = (int)t->opt->limit_all_gathers, .told = t->told};
        TRY(fsdp_engine_create(&config, t->cfg.sharding, &overlap, &t->engine));
    } else {
        TRY(baseline_create(&t->run, &t->engine));
    }
    if (t->cfg.recompute.part != RECOMPUTE_NOTHING) {
        t->segments = calloc((size_t)t->run.m->n_layers, sizeof *t->segments);
        if (!t->segments)
            return fsdp_error(FSDP_ENOMEM, "", "gradient checkpointing: no host memory");
        TRY(recompute_choose(&t->cfg.recompute, t->run.m, t->engine.layer_unit, t->segments,
                             &t->n_cut));
    }
    if (t->cfg.makes_digests)
        TRY(digests_create(&t->run, &t->engine, &t->store.about, t->digest_file.out, &t->digests));
    runner_config rc = {.run = t->run,
                        .layer_unit = t->engine.layer_unit,
                        .n_units = t->engine.n_units,
                        .segment = t->segments,
                        .run_again = recompute_segment,
                        .hooks = t->engine.hooks,
                        .look = t->digests ? digests_look : NULL,
                        .observer = t->digests,
                        .views = t->engine.views,
                        .host_sync = environment_number("FSDP_HOST_SYNC") != 0};
    return runner_create(&rc, &t->runner);
}

void trainer_free(trainer *t)
{
    train_close(t->loop);
    runner_free(t->runner);
    free(t->segments);
    digests_free(t->digests);
    atomic_file_cancel(&t->digest_file);
    if (t->engine.free)
        t->engine.free(t->engine.self);
    profile_run_close(t->profiled);
    if (t->order) /* no stream has work now */
        device_set_watch(t->run.dev, NULL);
    order_check_free(t->order);
    ckpt_store_close(&t->store);
    source_files_close(&t->source);
    corpus_close(&t->val_data);
    corpus_close(&t->data);
    model_free(&t->m);
    comm_close(t->near_group);
    comm_close(t->kv_group);
    mesh_close(&t->mesh);
    comm_close(t->run.world);
    device_close(t->run.dev);
    snapshot_free(t->snapshot);
    *t = (trainer){0};
}
