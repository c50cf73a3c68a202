/* setup.c -- set up a run: from options to an engine that is ready to train. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/environment.h"
#include "common/model/family.h"
#include "common/ops/backends.h"
#include "common/weights/export.h"
#include "trainer/rates.h"
#include "trainer/trainer.h"

/* Whether this process runs alone although its environment announces several ranks: its options
 * need only one process, and comm_launched_apart allows it. */
static bool is_apart(const trainer_options *o)
{
    const bool is_one = o->parallel == PARALLEL_SINGLE || o->plan_ranks > 0;
    return comm_launched_apart() && (o->comm == COMM_SELF || (o->comm == COMM_AUTO && is_one));
}

fsdp_status trainer_connect(trainer *t)
{
    t->told = &t->is_told;
    const backend *b = backend_of(t->opt->device);
    if (!b->device) /* the device was refused; open the CPU just to report that */
        b = backend_of(0);
    device_config dc = {.backend = b->device,
                        .index = backend_device_index(comm_launched_local_rank(), b->n_devices()),
                        .n_threads = 1,
                        .memory_limit_bytes = (size_t)t->opt->device_memory_mib << 20,
                        .rank = comm_launched_rank(),
                        .n_ranks = comm_launched_ranks(),
                        .debug_fill = environment_number("FSDP_DEBUG_FILL") != 0,
                        .async_compute = environment_number("FSDP_ASYNC_COMPUTE") != 0};
    (void)comm_schedule_seed(&dc.schedule_seed); /* environment_check refuses a bad value */
    if (device_open(&dc, &t->run.dev) != FSDP_OK) {
        if (t->refused.status == FSDP_OK)
            t->refused = *fsdp_error_get();
        b = backend_of(0);
        dc.backend = b->device;
        dc.index = 0;
        TRY(device_open(&dc, &t->run.dev));
    }
    if (t->opt->snapshot)
        TRY(snapshot_open(t->run.dev, &t->snapshot));
    t->runs_ahead = dc.async_compute || dc.schedule_seed != 0 || !device_memory_is_host(t->run.dev);
    /* Ranks started by one launcher belong to one job. --comm self on several ranks is refused
     * later, when the ranks can agree on the error. */
    const bool apart = is_apart(t->opt);
    comm_backend wanted = apart ? COMM_SELF : trainer_comm(t->opt);
    /* if parsing the options failed, it may have any value */
    bool is_known = apart || wanted == COMM_MPI || wanted == COMM_SHM || wanted == COMM_NATIVE;
    comm_config cc = {.backend = comm_launched_ranks() > 1 && !is_known ? COMM_AUTO : wanted,
                      .native = b->native,
                      .keeps_signals = t->opt->save_dir != NULL,
                      .sums = b->fast()->sums};
    TRY(comm_open(t->run.dev, &cc, &t->run.world));
    return device_set_threads(t->run.dev, pin_threads(t->run.world));
}

/* Check that all ranks have the same options; name the one that differs. */
static fsdp_status check_same_options(trainer *t)
{
    char mine[8 * PATH_MAX], *rest = mine, *save = NULL; /* room for all paths of a command line */
    TRY(comm_agree(t->run.world, options_canonical(TRAINER_OPTIONS, t->opt, mine, sizeof mine)));
    for (char *word = strtok_r(rest, " ", &save); word; word = strtok_r(NULL, " ", &save))
        TRY(comm_same(t->run.world, "the option", word));
    return FSDP_OK;
}

/* Refuse a run that needs more memory than is available, before any allocation. If the CPU plays a
 * device with its own memory, that memory is host memory too. */
static fsdp_status check_memory(const trainer *t)
{
    const size_t *planned = t->plan.memory_bytes;
    const size_t on_host =
        planned[MEM_ON_HOST] + (device_runs_c(t->run.dev) ? planned[MEM_TOTAL] : 0);
    bool limited;
    const size_t have = trainer_memory(t, &limited);
    char hint[256];
    snprintf(hint, sizeof hint,
             "use %s--gradient-checkpointing, --chunk-loss, more ranks, --sharding full, a smaller "
             "--size, --batch-size or --seq-len; --plan prints the parts",
             t->cfg.offloads ? "a smaller --offload-piece (the device holds two), " : "");
    TRY(trainer_check_need("this run", planned[MEM_TOTAL], have,
                           limited ? "memory are available to it by --device-memory"
                                   : "memory are available to it",
                           hint));
    if (planned[MEM_ON_HOST] == 0)
        return FSDP_OK;
    return trainer_check_on_host(
        t, "this run", on_host,
        "use ranks on more hosts, or leave --cpu-offload, --optimizer-offload and "
        "--save-async out; --plan prints the parts");
}

/* Refuse offloading if the device has no memory of its own. */
static fsdp_status check_offload(const trainer *t)
{
    if (!t->cfg.offloads || !device_memory_is_host(t->run.dev))
        return FSDP_OK;
    return fsdp_error(
        FSDP_EINVAL, "pass --device separate, whose memory the host cannot reach, or leave it out",
        "%s: the memory of --device %s is the host's own, so moving arrays to the "
        "host would free nothing",
        t->opt->cpu_offload ? "--cpu-offload" : "--optimizer-offload", device_name(t->run.dev));
}

/* Refuse --gradient-checkpointing if no layer of the model belongs to its part. */
static fsdp_status check_recompute(const trainer *t)
{
    const recompute_spec *spec = &t->cfg.recompute;
    for (int i = 0; i < t->m.n_layers; i++)
        if (spec->part == RECOMPUTE_NOTHING || recompute_wants(spec, &t->m.layers[i]))
            return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "leave attention and mlp out, to run whole blocks again",
                      "--gradient-checkpointing: got '%s', but no layer of %s is such a part",
                      t->opt->checkpointing, t->m.family->title);
}

/* Check that --init-from has the tensors of its config.json, before a plan of what it has not. */
static fsdp_status check_weights(const trainer *t)
{
import weights;
    TRY(import_open(t->opt->init_from, &t->m, &weights));
    import_close(&weights);
    return FSDP_OK;
}

/* Resolve the options, create the model, and fill in t->run, which all parts of the run use. */
static fsdp_status prepare_model(trainer *t)
{
    const trainer_options *o = t->opt;
    const trainer_config *c = &t->cfg;
    if (o->comm == COMM_SELF && comm_size(t->run.world) > 1)
        return fsdp_error(FSDP_EINVAL,
                          "leave --comm out, or run build/fsdp_train without a launcher",
                          "--comm self: got %d ranks, expected 1", comm_size(t->run.world));
    TRY(trainer_config_resolve(o, comm_size(t->run.world), &t->cfg, &t->model_cfg));
    TRY(check_offload(t));
    if (c->init_note && *c->init_note && comm_rank(t->run.world) == 0)
        fprintf(stderr, "note: %s\n", c->init_note);
    TRY(model_create(&t->model_cfg, &t->m));
    if (o->init_from && !o->plan && !o->resume)
        TRY(check_weights(t));
    TRY(check_recompute(t));
    TRY(model_freeze(&t->m, c->forward_only ? NULL : o->freeze));
    t->m.chunk_rows = (size_t)o->chunk_loss;
    t->run.m = &t->m;
    t->run.mode = (grad_acc_mode)o->reduction;
    t->run.batch = (size_t)c->train.batch_size;
    t->run.seq_len = (size_t)c->train.seq_len;
    t->run.grad_accum = (int)c->train.grad_accum;
    t->run.no_sync = c->no_sync;
    t->run.seed = (uint64_t)o->seed;
    t->run.param_dtype = (dtype)o->param_dtype;
    t->run.reduce_dtype = (dtype)o->reduce_dtype;
    t->run.forward_only = c->forward_only;
    t->run.no_norm = o->no_grad_norm;
    t->run.optimizer = o->train.momentum > 0 ? OPTIMIZER_MOMENTUM : (optimizer_kind)o->optimizer;
    TRY(backend_ops(o->device, o->ops != OPS_FAST, &t->run.ops));
    return model_check_ops(&t->m, t->run.ops, device_compute_stream(t->run.dev));
}

/* ---- the machine of a plan ------------------------------------------------------------------- */

/* Fill in t->costs: the machine of --plan-prices or --plan-device, or this machine, which all ranks
 * measure together, and the links of --plan-link and --plan-copies. */
static fsdp_status fill_costs(trainer *t)
{
    const trainer_options *o = t->opt;
    const trainer_config *c = &t->cfg;
    plan_costs *costs = &t->costs;
    if (!c->is_timed)
        return FSDP_OK;
    if (o->plan_prices) {
        TRY(prices_read(o->plan_prices, &costs->prices));
        costs->machine.reached = 1;
        costs->config.upload = costs->prices.upload;
        costs->config.download = costs->prices.download;
    } else if (o->plan_device >= PLAN_FIRST_DEVICE) {
        virtual_device_of(o->plan_device - PLAN_FIRST_DEVICE, &costs->machine, &costs->config);
    } else {
        TRY(rates_measure(&t->run, &costs->machine, &costs->config));
    }
    costs->machine.is_bf16 = o->param_dtype == DTYPE_BF16;
    if (o->plan_link) {
        costs->config.ranks_per_host = 0;
        costs->config.link = c->link;
    }
    if (o->plan_copies) {
        costs->config.upload = c->upload;
        costs->config.download = c->download;
    }
    if (!c->offloads ||
        (costs->config.upload.bytes_per_s > 0 && costs->config.download.bytes_per_s > 0))
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL,
                      "pass --plan-copies UP,DOWN,LATENCY or the profile of a run on a device with "
                      "memory of its own, or leave offload out",
                      "%s: %s has no rate of copies between host and device",
                      o->plan_prices ? "--plan-prices" : "--plan-device",
                      o->plan_prices ? fsdp_printable(o->plan_prices).text : costs->machine.model);
}

static fsdp_status largest_unit(const trainer *t, size_t *elems)
{
    const fsdp_config config = trainer_fsdp_config(t);
    mesh_shape shape;
    fsdp f;
    *elems = 0;
    TRY(mesh_shape_make(1, (const int[N_AXES]){[AXIS_SHARD] = 1}, 0,
                        &shape)); /* used_elems is the same for every W */
    TRY(fsdp_lay_out(&config, &shape, &f));
    for (int u = UNIT_ROOT + 1; u < f.n_units; u++) {
        size_t all = 0;
        for (int i = 0; i < f.units[u].given.n_parts; i++)
            all += f.units[f.units[u].given.parts[i]].layout.used_elems;
        *elems = all > *elems ? all : *elems;
    }
    fsdp_free(&f);
    return FSDP_OK;
}

/* --bucket auto: choose the largest number of parameters in a bucket so that the planned step is
 * shortest. Try 1, 2, 4 ... times the largest unit. A larger bucket costs memory, so it must make
 * the step at least 1% shorter. */
static fsdp_status choose_buckets(trainer *t)
{
    size_t largest, best_elems = 0;
    plan now, best;
    if (!t->cfg.bucket_auto)
        return FSDP_OK;
    TRY(largest_unit(t, &largest));
    TRY(plan_make(t, 0, true, &best));
    for (size_t n = 1; n <= 64 && largest > 0; n *= 2) {
        t->cfg.bucket_elems = n * largest;
        TRY(plan_make(t, 0, true, &now));
        if (now.times.step_s <= 0.99 * best.times.step_s) {
            best = now;
            best_elems = t->cfg.bucket_elems;
        } else if (n > 1) {
            break;
        }
    }
    t->cfg.bucket_elems = best_elems;
    return FSDP_OK;
}

static fsdp_status prepare_here(trainer *t)
{
    TRY(fill_costs(t));
    TRY(choose_buckets(t));
    TRY(trainer_choose_recompute(t));
    const int rank = t->opt->plan ? t->cfg.plan_rank : comm_rank(t->run.world);
    TRY(plan_make(t, rank, t->cfg.is_timed, &t->plan));
    if (t->opt->plan)
        return FSDP_OK;
    TRY(check_memory(t));
    return trainer_check_outputs(t);
}

fsdp_status trainer_prepare(trainer *t)
{
    fsdp_error_set(&t->refused);
    TRY(comm_agree(t->run.world, t->refused.status));
    TRY(check_same_options(t));
    TRY(trainer_check_bits(t));
    TRY(comm_agree(t->run.world, prepare_model(t)));
    TRY(comm_agree(t->run.world, trainer_compare_paths(t)));
    if (!t->opt->plan) /* first, since plans depend on the size of the validation data */
        TRY(trainer_open_data(t));
    TRY(comm_agree(t->run.world, prepare_here(t)));
    return t->opt->plan ? FSDP_OK : trainer_about(t);
}

/* --check-order: check every step for work on two streams that no event orders. */
static fsdp_status watch_order(trainer *t)
{
    if (!t->opt->check_order)
        return FSDP_OK;
    t->order = order_check_create();
    if (!t->order)
        return fsdp_error(FSDP_ENOMEM, "", "order check: no host memory");
    order_check_tell(t->order, comm_rank(t->run.world), comm_size(t->run.world));
    const device_watch watch = order_check_watch(t->order);
    device_set_watch(t->run.dev, &watch);
    return FSDP_OK;
}

static fsdp_status open_profile(trainer *t)
{
    char caption[128];
    const char *link = environment_text("FSDP_LINK");
    static const char *const MODES[] = {"one device", "DDP", "prefetch "};
    snprintf(caption, sizeof caption, "%s%.16s%s%s", MODES[t->cfg.parallel],
             t->cfg.parallel == PARALLEL_FSDP ? TRAINER_WORD("prefetch", t->cfg.prefetch) : "",
             link ? ", link " : "", link ? link : "");
    return profile_run_open(&t->run, t->opt->profile_dir, caption, t->order, &t->profiled);
}

static fsdp_status allocate_here(trainer *t)
{
    TRY(watch_order(t));
    if (t->opt->digests && comm_rank(t->run.world) == 0)
        TRY(atomic_file_open(&t->digest_file, t->opt->digests,
                             "pass a --digests path that can be written"));
    if (t->opt->profile_dir)
        TRY(open_profile(t));
    return trainer_make(t);
}

/* Open --save, and load --resume or --init-from, if given. A checkpoint takes precedence over
 * --init-from. */
static fsdp_status open_checkpoints(trainer *t)
{
    const trainer_options *o = t->opt;
    const bool is_auto = o->resume && strcmp(o->resume, "auto") == 0;
    ckpt_source from = {0};
    fsdp_status status = FSDP_OK;
    comm_set_patience(t->run.world, TRAIN_FILES_TIMES); /* until train_run resets it */
    if (o->save_dir) /* lock first, so that nobody removes what --resume auto reads */
        status = ckpt_store_open(&t->store, o->save_dir);
    if (status == FSDP_OK && o->resume)
        status =
            ckpt_source_open(&t->store, is_auto ? o->save_dir : o->resume, is_auto,
                             /* an evaluation takes only the weights of the saved run */
                             t->cfg.forward_only ? TRAINER_MAY_CHANGE : o->resume_change, &from);
    const bool resumes = status == FSDP_OK && *from.dir;
    const bool imports = status == FSDP_OK && o->init_from && !resumes;
    if (imports)
        status = comm_agree(t->run.world, ckpt_source_weights(o->init_from, &t->m, &from));
    t->store.newest = resumes ? from.manifest.id.step : 0;
    if (resumes && !t->cfg.forward_only)
        trainer_place(t, &from.manifest);
    if (status == FSDP_OK && o->save_dir)
        status = ckpt_store_claim(&t->store, resumes ? from.manifest.id.run : NULL);
    if (status == FSDP_OK && (resumes || imports))
        status = t->engine.load(t->engine.self, &from);
    ckpt_source_close(&from);
    return status;
}

/* End the run before this step if the order check found a violation in an earlier one. */
static fsdp_status observe_step(void *self, int64_t step)
{
    trainer *t = self;
    if (t->order)
        TRY(comm_agree(t->run.world, order_check_status(t->order)));
    profile_run_step(t->profiled, step);
    snapshot_step(t->snapshot, step);
    return FSDP_OK;
}

static fsdp_status observe_end_step(void *self)
{
    trainer *t = self;
    snapshot_end_step(t->snapshot);
    return t->digests ? digests_end_step(t->digests) : FSDP_OK;
}

static void observe_pause(void *self)
{
    profile_run_pause(((trainer *)self)->profiled);
}

fsdp_status trainer_allocate(trainer *t)
{
    const bool exports =
        comm_rank(t->run.world) == 0 && (t->opt->export_dir || t->opt->export_init_dir);
    TRY(comm_agree(t->run.world, allocate_here(t)));
    TRY(comm_agree(t->run.world, t->opt->init_from && exports
                                     ? source_files_open(t->opt->init_from, &t->source)
                                     : FSDP_OK));
    TRY(open_checkpoints(t));
    if (t->opt->digest_values)
        TRY(digests_keep_values(t->digests, t->opt->digest_values, t->store.newest,
                                train_end(&t->cfg.train)));
    t->setup = (train_setup){.cfg = &t->cfg.train,
                             .run = &t->run,
                             .data = &t->data,
                             .val_data = trainer_val_data(t),
                             .engine = &t->engine,
                             .observer = {t, observe_step, observe_end_step, observe_pause},
                             .runner = t->runner,
                             .log = stdout,
                             .store = t->opt->save_dir ? &t->store : NULL,
                             .source = t->source.config ? &t->source : NULL,
                             .first_step = t->store.newest,
                             .sample_offset = t->store.sample_offset,
                             .step_by_step = t->profiled != NULL};
    return train_open(&t->setup, &t->loop);
}
