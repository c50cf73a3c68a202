/* profile_run.c -- --profile DIR: counts the operations, the collectives and the steps of a run,
 * and keeps a timeline of some of them.
 *
 *   profile_run_open (before the engine) -> profile_run_step ... -> profile_run_write
 *   -> profile_run_close
 *
 * A timeline_watch is told of the operations of the device and of the collectives of the group, and
 * the training loop says when a step begins (train_observer). A step ends with its last collective,
 * that of the losses. An evaluation after it is counted with it, a checkpoint is not.
 *
 * The first step warms up and is left out. Every other one is recorded in a timeline, from which
 * the profile learns for what the compute stream stood still. The timeline of the first
 * TRACED_STEPS of them is kept and written; that of a later one is forgotten when the next one
 * begins. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/observe/clock_offset.h"
#include "common/observe/timeline_stats.h"
#include "common/observe/timeline_watch.h"
#include "common/ops/profile_roof.h"
#include "trainer/profile_files.h"
#include "trainer/trainer.h"

typedef struct profile_run {
    profile_files files;
    timeline_watch *watch;
    timeline *traced, *latest; /* of the first steps; of a later one */
    timeline *current;         /* one of the two, NULL between steps */
    int64_t n_begun;           /* steps */
    int64_t at_item;           /* of current: where the step under way begins */
    bool told_lost;
} profile_run;

/* ---- steps ---------------------------------------------------------------------------------- */

static void add_time(profile_run *p, profile_kind kind, const char *name, double seconds)
{
    profile_add(p->files.profile, kind, &(work_key){.name = name}, 1, seconds, (work_cost){0});
}

/* Tell the profile what the compute stream did in the step under way beside its operations. */
static void count_stalls(profile_run *p)
{
    timeline_view v = timeline_read(p->current);
    timeline_step step;
    if (v.n_lost > 0 && !p->told_lost)
        fprintf(stderr,
                "note: rank %d: a step has more operations than a timeline holds; what it "
                "waited for is neither counted nor drawn\n",
                v.rank);
    p->told_lost = p->told_lost || v.n_lost > 0;
    if (v.n_lost > 0 || !timeline_next_step(&v, p->at_item, &step))
        return;
    timeline_cursor c = {step.first, step.begin_s};
    timeline_stall stall;
    while (timeline_next_stall(&v, &c, step.end, &stall))
        add_time(p, PROFILE_EXPOSED, stall.cause_name, stall.seconds);
    add_time(p, PROFILE_REST, "copies and fills", step.move_s);
    add_time(p, PROFILE_REST, "waits for other streams", step.wait_s);
}

/* The step under way, if there is one, is over. */
static void step_over(profile_run *p)
{
    if (!p->current)
        return;
    count_stalls(p);
    p->current = NULL;
    timeline_watch_to(p->watch, NULL);
}

void profile_run_step(trainer *t, int64_t step)
{
    profile_run *p = t->profiled;
    if (!p)
        return;
    step_over(p);
    profile_step_begin(p->files.profile);
    if (p->n_begun++ == 0)
        return;
    p->current = p->n_begun - 1 <= TRACED_STEPS ? p->traced : p->latest;
    if (p->current == p->latest)
        timeline_clear(p->latest);
    p->at_item = timeline_read(p->current).n_items;
    timeline_watch_to(p->watch, p->current);
    timeline_watch_step(p->watch, step);
}

void profile_run_pause(trainer *t)
{
    if (!t->profiled)
        return;
    step_over(t->profiled);
    profile_step_end(t->profiled->files.profile);
}

/* ---- the directory -------------------------------------------------------------------------- */

static fsdp_status dir_make(const char *dir)
{
    if (mkdir(dir, 0777) == 0 || errno == EEXIST)
        return FSDP_OK;
    return fsdp_error(FSDP_EIO, PROFILE_HINT, "cannot make %s: %s", dir, strerror(errno));
}

/* ---- life ------------------------------------------------------------------------------------ */

fsdp_status profile_run_open(trainer *t)
{
    comm *world = t->run.world;
    profile_roof roof;
    timeline_job job = {.world_size = comm_size(world)};
    if (!t->cfg.profile_dir)
        return FSDP_OK;
    TRY(comm_agree(world, dir_make(t->cfg.profile_dir))); /* now, before hours of training */
    TRY(ops_profile_roof(t->run.ops, device_compute_stream(t->run.dev),
                         t->cfg.param_dtype == DTYPE_BF16, &roof));
    ledger_reset_peaks(
        device_ledger(t->run.dev));              /* the peaks of the run are reported, not these */
    if (comm_local_size(world) < job.world_size) /* on one host there is one clock */
        TRY(clock_offset_measure(world, &job.offset_s, &job.bound_s));
    profile_run *p = t->profiled = calloc(1, sizeof *p);
    if (p) {
        p->files = (profile_files){t->cfg.profile_dir, world, profile_create(roof), .job = job};
        p->watch = timeline_watch_create(t->run.dev, world, p->files.profile, t->order);
        p->traced = timeline_create(comm_rank(world), job.offset_s);
        p->latest = timeline_create(comm_rank(world), job.offset_s);
    }
    if (!p || !p->files.profile || !p->watch || !p->traced || !p->latest)
        return fsdp_error(FSDP_ENOMEM, "", "profile: no host memory");
    return FSDP_OK;
}

fsdp_status profile_run_write(trainer *t, FILE *out)
{
    profile_run *p = t->profiled;
    if (!p)
        return FSDP_OK;
    profile_run_pause(t);
    TRY(comm_agree(t->run.world, dir_make(t->cfg.profile_dir)));
    p->files.traced = timeline_read(p->traced);
    return profile_files_write(&p->files, out);
}

void profile_run_close(trainer *t)
{
    profile_run *p = t->profiled;
    if (!p)
        return;
    comm_set_watch(t->run.world, NULL);
    device_set_watch(t->run.dev, NULL);
    profile_free(p->files.profile);
    timeline_watch_free(p->watch);
    timeline_free(p->traced);
    timeline_free(p->latest);
    free(p);
    t->profiled = NULL;
}
