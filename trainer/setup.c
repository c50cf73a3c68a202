/* setup.c -- from options to an engine that is ready to train. */
#include <dirent.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/model/gpt2.h"
#include "common/observe/progress.h"
#include "common/train/baseline.h"
#include "trainer/trainer.h"

enum { CHECKPOINT_NAME_BYTES = 32 }; /* what a checkpoint adds to its directory's path */

/* Threads of one rank: OMP_NUM_THREADS when set, else cores / local ranks. No group exists yet. */
static int threads_per_rank(void)
{
    const char *text = getenv("OMP_NUM_THREADS");
    if (text && atoi(text) > 0)
        return atoi(text);
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int each = cores / comm_launched_local_ranks();
    return each > 0 ? each : 1;
}

static bool flag_is_set(const char *name)
{
    const char *text = getenv(name);
    return text && *text && strcmp(text, "0") != 0;
}

fsdp_status trainer_connect(trainer *t)
{
    device_config dc = {.kind = DEVICE_CPU,
                        .n_threads = threads_per_rank(),
                        .debug_fill = flag_is_set("FSDP_DEBUG_FILL"),
                        .async_compute = flag_is_set("FSDP_ASYNC_COMPUTE")};
    TRY(device_open(&dc, &t->dev));
    /* Ranks that a launcher started belong together; --comm self on several is refused once they
     * can agree. */
    comm_backend wanted = (comm_backend)t->cfg.comm;
    bool is_known =
        wanted == COMM_MPI || wanted == COMM_SHM; /* options may not have been understood */
    comm_config cc = {.backend = comm_launched_ranks() > 1 && !is_known ? COMM_AUTO : wanted};
    TRY(comm_open(t->dev, &cc, &t->comm));
    pin_to_cores(t->comm, dc.n_threads);
    return FSDP_OK;
}

/* Ranks started with different options would train different models: say which option it is. */
static fsdp_status check_same_options(trainer *t)
{
    char mine[8 * PATH_MAX], *rest = mine, *save = NULL; /* more than the paths of a command line */
    options_canonical(TRAIN_OPTIONS, &t->cfg, mine, sizeof mine);
    for (char *word = strtok_r(rest, " ", &save); word; word = strtok_r(NULL, " ", &save))
        TRY(comm_same(t->comm, "the option", word));
    return FSDP_OK;
}

static fsdp_status open_data(trainer *t)
{
    train_config *c = &t->cfg;
    size_t T = (size_t)c->seq_len, vocab = t->model_cfg.vocab_size;
    const char *note = "";
    if (c->synthetic_tokens > 0)
        TRY(corpus_synthetic(0, (size_t)c->synthetic_tokens, vocab < 256 ? vocab : 256, &t->data));
    else if (c->data)
        TRY(corpus_open_file(c->data, vocab, T, &t->data));
    else
        TRY(corpus_open_default(T, &t->data, &note));
    if (t->data.vocab_size > vocab)
        return fsdp_error(FSDP_EINVAL, "pass a larger --vocab-size",
                          "%s has tokens up to %zu, --vocab-size is %zu", t->data.source,
                          t->data.vocab_size - 1, vocab);
    if (t->data.n_tokens < T + 1)
        return fsdp_error(FSDP_EINVAL, "pass more data or a smaller --seq-len",
                          "%s has %zu tokens, expected at least %zu", t->data.source,
                          t->data.n_tokens, T + 1);
    if (*note && comm_rank(t->comm) == 0)
        fprintf(stderr, "note: %s\n", note);
    return c->val_data ? corpus_open_file(c->val_data, vocab, T, &t->val_data) : FSDP_OK;
}

static baseline_config baseline_of(const trainer *t)
{
    const train_config *c = &t->cfg;
    int level = 0;
    while (c->reduction == GRAD_ACC_CANONICAL && (1 << level) < c->batch_size)
        level++;
    return (baseline_config){.m = &t->m,
                             .ops = t->ops,
                             .dev = t->dev,
                             .comm = t->comm,
                             .mode = (grad_acc_mode)c->reduction,
                             .level = level,
                             .grad_accum = (int)c->grad_accum,
                             .seed = (uint64_t)c->seed,
                             .param_dtype = (dtype)c->param_dtype,
                             .reduce_dtype = (dtype)c->reduce_dtype,
                             .optimizer = (optimizer_kind)c->optimizer};
}

static fsdp_engine_config fsdp_of(const trainer *t)
{
    const train_config *c = &t->cfg;
    baseline_config b = baseline_of(t);
    return (fsdp_engine_config){.fsdp = {.m = &t->m,
                                         .ops = t->ops,
                                         .dev = t->dev,
                                         .comm = t->comm,
                                         .wrap = (wrap_policy)c->wrap_kind,
                                         .wrap_min_elems = (size_t)c->wrap_min_elems,
                                         .sharding = (sharding_strategy)c->sharding,
                                         .seed = b.seed,
                                         .param_dtype = b.param_dtype,
                                         .reduce_dtype = b.reduce_dtype},
                                .mode = b.mode,
                                .level = b.level,
                                .grad_accum = b.grad_accum,
                                .optimizer = b.optimizer};
}

/* An export gathers the masters, a unit beside the root at a time, in fp32: with parameters in bf16
 * that can be more than a step gathers. */
static fsdp_status plan_export(trainer *t, const fsdp_engine_config *fc)
{
    memory_plan mem;
    traffic_plan traffic;
    fsdp_engine_config whole = *fc;
    size_t *most = &t->mem_plan.peak_bytes[MEM_PARAMS_FULL];
    bool exports = t->cfg.export_dir || t->cfg.export_init_dir;
    if (!exports || fc->fsdp.param_dtype == DTYPE_F32 || fc->fsdp.sharding == SHARDING_NONE)
        return FSDP_OK;
    whole.fsdp.param_dtype = DTYPE_F32;
    whole.fsdp.sharding = SHARDING_FULL;
    TRY(fsdp_plan(&whole, comm_size(t->comm), 1, 1, &mem, &traffic));
    if (mem.peak_bytes[MEM_PARAMS_FULL] > *most)
        *most = mem.peak_bytes[MEM_PARAMS_FULL];
    return FSDP_OK;
}

static fsdp_status make_plan(trainer *t)
{
    const train_config *c = &t->cfg;
    size_t b = (size_t)c->batch_size, T = (size_t)c->seq_len;
    int w = comm_size(t->comm);
    if (c->parallel == PARALLEL_FSDP) {
        fsdp_engine_config fc = fsdp_of(t);
        TRY(fsdp_plan(&fc, w, b, T, &t->mem_plan, &t->traffic_plan));
        TRY(plan_export(t, &fc));
    } else {
        baseline_config bc = baseline_of(t);
        TRY(baseline_plan(&bc, w, &t->mem_plan, &t->traffic_plan));
        t->mem_plan.peak_bytes[MEM_ACTIVATIONS] =
            runner_activation_bytes(&t->m, b, T, bc.mode, bc.param_dtype);
        t->mem_plan.peak_bytes[MEM_GRADS_FULL] += runner_leaf_bytes(&t->m, b, bc.mode);
    }
    uint64_t loss_bytes = (uint64_t)(w - 1) * (uint64_t)c->grad_accum * sizeof(float);
    t->traffic_plan.calls[COMM_OP_ALL_GATHER] += 1; /* of the losses */
    t->traffic_plan.bytes_sent[COMM_OP_ALL_GATHER] += loss_bytes;
    return FSDP_OK;
}

/* Said before anything is allocated: what the run needs, and what there is. */
static fsdp_status check_memory(const trainer *t)
{
    size_t need = 0, have = device_mem_available(t->dev) / (size_t)comm_local_size(t->comm);
    for (int k = 0; k < MEM_CATEGORIES; k++)
        need += t->mem_plan.peak_bytes[k];
    if (need <= have)
        return FSDP_OK;
    char need_text[16], have_text[16];
    return fsdp_error(
        FSDP_ENOMEM,
        "use more ranks, --sharding full, a smaller --size, --batch-size or --seq-len; --plan "
        "prints the parts",
        "this run needs %s on each rank, %s of memory are available to it",
        fsdp_format_bytes(need, need_text, sizeof need_text),
        fsdp_format_bytes(have, have_text, sizeof have_text));
}

/* ---- outputs: what cannot be written is said before hours of training, not after ------------- */

static fsdp_status output_refused(const char *option, const char *path, const char *at,
                                  const char *why)
{
    return fsdp_error(FSDP_EIO, "pass a path in a directory that exists and can be written",
                      "--%s %s: %s: %s", option, path, at, why);
}

/* New files appear beside `path` and are renamed: its directory must be writable. */
static fsdp_status check_parent(const char *option, const char *path)
{
    char copy[PATH_MAX];
    struct stat st;
    if ((size_t)snprintf(copy, sizeof copy, "%s", path) >= sizeof copy - CHECKPOINT_NAME_BYTES)
        return output_refused(option, "", "the path", strerror(ENAMETOOLONG));
    const char *parent = dirname(copy);
    if (stat(parent, &st) != 0)
        return output_refused(option, path, parent, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return output_refused(option, path, parent, strerror(ENOTDIR));
    if (access(parent, W_OK | X_OK) != 0)
        return output_refused(option, path, parent, strerror(errno));
    return FSDP_OK;
}

/* A file, a device or a pipe. */
static fsdp_status check_output_file(const char *option, const char *path)
{
    struct stat st;
    if (!path)
        return FSDP_OK;
    bool exists = stat(path, &st) == 0;
    if (exists && S_ISDIR(st.st_mode))
        return output_refused(option, path, path, strerror(EISDIR));
    if (exists && !S_ISREG(st.st_mode))
        return access(path, W_OK) == 0 ? FSDP_OK
                                       : output_refused(option, path, path, strerror(errno));
    char *real =
        exists ? realpath(path, NULL) : NULL; /* of a link, what it points to is replaced */
    fsdp_status status = check_parent(option, real ? real : path);
    free(real);
    return status;
}

static fsdp_status check_output_dir(const char *option, const char *path)
{
    struct stat st;
    if (!path)
        return FSDP_OK;
    bool exists = stat(path, &st) == 0;
    if (exists && !S_ISDIR(st.st_mode))
        return output_refused(option, path, path, strerror(ENOTDIR));
    if (exists && access(path, W_OK | X_OK) != 0)
        return output_refused(option, path, path, strerror(errno));
    return exists ? FSDP_OK : check_parent(option, path);
}

static bool is_empty_dir(const char *path)
{
    int n = 0;
    DIR *d = opendir(path);
    while (d && n < 3 && readdir(d)) /* "." and ".." */
        n++;
    if (d)
        closedir(d);
    return d && n < 3;
}

/* A checkpoint replaces DIR as a whole, so DIR must be a checkpoint, empty or not there. */
static fsdp_status check_save_dir(const char *path)
{
    struct stat st;
    if (!path)
        return FSDP_OK;
    TRY(check_output_dir("save", path));
    TRY(check_parent("save", path));
    if (stat(path, &st) == 0 && !ckpt_exists(path) && !is_empty_dir(path))
        return fsdp_error(
            FSDP_EIO, "pass a new directory, or one that --save wrote",
            "--save %s: got a directory that holds other files, expected a checkpoint or none",
            path);
    return FSDP_OK;
}

static fsdp_status check_outputs(const trainer *t)
{
    const train_config *c = &t->cfg;
    TRY(check_save_dir(c->save_dir));
    TRY(check_output_dir("profile", c->profile_dir));
    if (comm_rank(t->comm) != 0)
        return FSDP_OK;
    TRY(check_output_file("loss-csv", c->loss_csv));
    TRY(check_output_dir("export-init", c->export_init_dir));
    TRY(check_output_dir("export", c->export_dir));
    return check_output_file("memory-report", c->memory_report);
}

static fsdp_status prepare_here(trainer *t)
{
    if (t->cfg.comm == COMM_SELF && comm_size(t->comm) > 1)
        return fsdp_error(FSDP_EINVAL,
                          "leave --comm out, or run build/fsdp_train without a launcher",
                          "--comm self: got %d ranks, expected 1", comm_size(t->comm));
    TRY(train_config_resolve(&t->cfg, comm_size(t->comm), &t->model_cfg));
    TRY(gpt2_create(&t->model_cfg, &t->m));
    t->ops = t->cfg.ops == OPS_FAST ? ops_cpu_fast() : ops_cpu_portable();
    TRY(make_plan(t));
    if (t->cfg.plan)
        return FSDP_OK;
    TRY(check_memory(t));
    TRY(check_outputs(t));
    return open_data(t);
}

fsdp_status trainer_prepare(trainer *t, fsdp_status parsed)
{
    TRY(comm_agree(t->comm, parsed));
    TRY(check_same_options(t));
    return comm_agree(t->comm, prepare_here(t));
}

static fsdp_status allocate_here(trainer *t)
{
    TRY(profile_run_open(t));
    if (t->cfg.parallel == PARALLEL_FSDP) {
        fsdp_engine_config fc = fsdp_of(t);
        TRY(fsdp_engine_create(&fc, &t->engine));
    } else {
        baseline_config bc = baseline_of(t);
        TRY(baseline_create(&bc, &t->engine));
    }
    runner_config rc = {.m = &t->m,
                        .ops = t->ops,
                        .dev = t->dev,
                        .batch = (size_t)t->cfg.batch_size,
                        .seq_len = (size_t)t->cfg.seq_len,
                        .mode = (grad_acc_mode)t->cfg.reduction,
                        .param_type = (dtype)t->cfg.param_dtype,
                        .reduce_type = (dtype)t->cfg.reduce_dtype,
                        .layer_unit = t->engine.layer_unit,
                        .n_units = t->engine.n_units,
                        .hooks = t->engine.hooks,
                        .views = t->engine.views};
    return runner_create(&rc, &t->runner);
}

/* --resume DIR, or --resume auto: the --save directory when it holds a checkpoint. */
static fsdp_status resume(trainer *t)
{
    const char *dir = t->cfg.resume;
    if (!dir)
        return FSDP_OK;
    if (strcmp(dir, "auto") == 0) {
        dir = t->cfg.save_dir;
        bool there = ckpt_exists(dir);
        TRY(comm_same(t->comm, "the checkpoint seen by --resume auto", there ? dir : "none"));
        if (!there)
            return FSDP_OK;
    }
    return t->engine.load(t->engine.self, dir, &t->first_step);
}

fsdp_status trainer_allocate(trainer *t)
{
    TRY(comm_agree(t->comm, allocate_here(t)));
    TRY(resume(t));
    t->job = (train_job){.cfg = &t->cfg,
                         .m = &t->m,
                         .ops = t->ops,
                         .dev = t->dev,
                         .comm = t->comm,
                         .data = &t->data,
                         .val_data = t->cfg.val_data ? &t->val_data : NULL,
                         .engine = profile_run_watch(t),
                         .runner = t->runner,
                         .log = stdout,
                         .first_step = t->first_step};
    return train_open(&t->job, &t->loop);
}

void trainer_free(trainer *t)
{
    train_close(t->loop);
    runner_free(t->runner);
    if (t->engine.free)
        t->engine.free(t->engine.self);
    profile_run_close(t);
    corpus_close(&t->val_data);
    corpus_close(&t->data);
    model_free(&t->m);
    comm_close(t->comm);
    device_close(t->dev);
    *t = (trainer){0};
}
