/* profiled.c -- --profile DIR: counts the operations, the collectives and the steps of a run.
 *
 *   profile_run_open (before the engine) -> profile_run_watch (the engine) -> training
 *   -> profile_run_write -> profile_run_close
 *
 * It watches three places. The device reports its operations (device_set_watch), the group reports
 * its collectives (comm_set_watch), and the training loop gets an engine that says when a step
 * begins. A step ends with its last collective, that of the losses. An evaluation after it is
 * counted with it, a checkpoint is not. */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/ops/profile_roof.h"
#include "trainer/trainer.h"

/* ---- collectives ---------------------------------------------------------------------------- */

static void count_collective(void *self, const comm_record *r)
{
    profile_add(self, PROFILE_COLLECTIVE, &(work_key){.name = comm_op_name(r->op)}, r->calls,
                r->seconds, (work_cost){.bytes = r->bytes});
}

/* ---- operations ----------------------------------------------------------------------------- */

/* Which calls count is decided when they are issued: a stream may run them in a later step. */
static uint64_t is_counted(void *self, const device_act *act)
{
    return act->kind == ACT_LAUNCH && act->work.key.name && profile_is_counting(self);
}

static void count_operation(void *self, const device_act *act)
{
    bool computes = act->stream == device_compute_stream(stream_device(act->stream));
    profile_add(self, computes ? PROFILE_COMPUTE : PROFILE_SIDE, &act->work.key, 1,
                act->end_s - act->begin_s, act->work.cost);
}

/* ---- the engine: itself, and the beginning of a step ----------------------------------------- */

static fsdp_status watched_begin_step(void *self)
{
    trainer *t = self;
    profile_step_begin(t->profile);
    return t->engine.begin_step(t->engine.self);
}

static fsdp_status watched_optimizer_step(void *self, const step_scalars *sc, float *norm)
{
    trainer *t = self;
    return t->engine.optimizer_step(t->engine.self, sc, norm);
}

static fsdp_status watched_read_params(void *self, engine_sink sink, void *ctx)
{
    trainer *t = self;
    return t->engine.read_params(t->engine.self, sink, ctx);
}

static fsdp_status watched_save(void *self, const char *dir, int64_t next_step)
{
    trainer *t = self;
    profile_step_end(t->profile);
    return t->engine.save(t->engine.self, dir, next_step);
}

engine *profile_run_watch(trainer *t)
{
    if (!t->profile)
        return &t->engine;
    t->watched_engine = t->engine;
    t->watched_engine.self = t;
    t->watched_engine.begin_step = watched_begin_step;
    t->watched_engine.optimizer_step = watched_optimizer_step;
    t->watched_engine.read_params = watched_read_params;
    t->watched_engine.save = watched_save;
    return &t->watched_engine;
}

/* ---- the directory -------------------------------------------------------------------------- */

static fsdp_status dir_make(const char *dir)
{
    struct stat is = {0};
    const char *hint = "pass a --profile directory that can be written";
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return fsdp_error(FSDP_EIO, hint, "cannot make %s: %s", dir, strerror(errno));
    bool is_dir = stat(dir, &is) == 0 && S_ISDIR(is.st_mode);
    if (!is_dir || access(dir, W_OK | X_OK) != 0)
        return fsdp_error(FSDP_EIO, hint, "--profile: got %s, expected a directory to write to: %s",
                          dir, is_dir ? strerror(errno) : "it is none");
    return FSDP_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

fsdp_status profile_run_open(trainer *t)
{
    if (!t->cfg.profile_dir)
        return FSDP_OK;
    TRY(comm_agree(t->run.world, dir_make(t->cfg.profile_dir))); /* now, before hours of training */
    t->profile = profile_create();
    if (!t->profile)
        return fsdp_error(FSDP_ENOMEM, "", "profile: no host memory");
    profile_roof roof;
    TRY(ops_profile_roof(t->run.ops, device_compute_stream(t->run.dev),
                         t->cfg.param_dtype == DTYPE_BF16, &roof));
    ledger_reset_peaks(
        device_ledger(t->run.dev)); /* the peaks of the run are reported, not these */
    profile_set_roof(t->profile, roof);
    device_set_watch(t->run.dev, &(device_watch){t->profile, is_counted, count_operation});
    comm_set_watch(t->run.world, &(comm_watch){.self = t->profile, .ended = count_collective});
    return FSDP_OK;
}

static fsdp_status write_here(trainer *t)
{
    const char *dir = t->cfg.profile_dir;
    char path[PATH_MAX];
    TRY(dir_make(dir));
    snprintf(path, sizeof path, "%s/profile-rank-%d.csv", dir, comm_rank(t->run.world));
    TRY(profile_write_csv(t->profile, path));
    if (comm_rank(t->run.world) != 0)
        return FSDP_OK;
    snprintf(path, sizeof path, "%s/profile.md", dir);
    return profile_write_table(t->profile, path);
}

fsdp_status profile_run_write(trainer *t)
{
    if (!t->profile)
        return FSDP_OK;
    profile_step_end(t->profile);
    return comm_agree(t->run.world, write_here(t));
}

void profile_run_close(trainer *t)
{
    if (!t->profile)
        return;
    comm_set_watch(t->run.world, NULL);
    device_set_watch(t->run.dev, NULL);
    profile_free(t->profile);
    t->profile = NULL;
}
