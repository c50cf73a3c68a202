/* profile_run.c -- --profile DIR: counts the operations, the collectives and the steps of a run,
 * and keeps a timeline of some of them.
 *
 *   profile_run_open (before the engine) -> profile_run_step ... -> profile_run_write
 *   -> profile_run_close
 *
 * It watches three places. The device reports its operations (device_set_watch), the group reports
 * its collectives (comm_set_watch), and the training loop says when a step begins
 * (train_observer). A step ends with its last collective, that of the losses. An evaluation after
 * it is counted with it, a checkpoint is not.
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
    profile *profile;
    timeline_watch *watch;
    device_watch to_timeline; /* the tables of `watch` */
    comm_watch comm_to_timeline;
    timeline *traced, *latest; /* of the first steps; of a later one */
    timeline *current;         /* one of the two, NULL between steps */
    int64_t n_begun;           /* steps */
    int64_t at_item;           /* of current: where the step under way begins */
    timeline_job job;
    order_check *order; /* with --check-order: it is told too */
    bool told_lost;
} profile_run;

/* ---- operations ----------------------------------------------------------------------------- */

/* Whether a call counts is decided when it is issued: a stream may run it in a later step. The
 * token is that of the timeline, and whether the profile counts the call. */
static uint64_t act_issued(void *self, const device_act *act)
{
    profile_run *p = self;
    if (p->order)
        (void)order_check_issued(p->order, act);
    bool counts = act->kind == ACT_LAUNCH && act->work.key.name && profile_is_counting(p->profile);
    return p->to_timeline.issued(p->to_timeline.self, act) << 1 | counts;
}

static void act_ran(void *self, const device_act *act)
{
    profile_run *p = self;
    device_act of_timeline = *act;
    of_timeline.token = act->token >> 1;
    if (of_timeline.token != 0)
        p->to_timeline.ran(p->to_timeline.self, &of_timeline);
    if ((act->token & 1) == 0)
        return;
    bool computes = act->stream == device_compute_stream(stream_device(act->stream));
    profile_add(p->profile, computes ? PROFILE_COMPUTE : PROFILE_SIDE, &act->work.key, 1,
                act->end_s - act->begin_s, act->work.cost);
}

/* ---- collectives ---------------------------------------------------------------------------- */

static uint64_t collective_issued(void *self, const comm_record *r)
{
    profile_run *p = self;
    return p->comm_to_timeline.issued(p->comm_to_timeline.self, r);
}

static void collective_ended(void *self, const comm_record *r)
{
    profile_run *p = self;
    p->comm_to_timeline.ended(p->comm_to_timeline.self, r);
    profile_add(p->profile, PROFILE_COLLECTIVE, &(work_key){.name = comm_op_name(r->op)}, r->calls,
                r->seconds, (work_cost){.bytes = r->bytes});
}

/* ---- steps ---------------------------------------------------------------------------------- */

static void add_time(profile_run *p, profile_kind kind, const char *name, double seconds)
{
    profile_add(p->profile, kind, &(work_key){.name = name}, 1, seconds, (work_cost){0});
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
    profile_step_begin(p->profile);
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
    profile_step_end(t->profiled->profile);
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

static void profile_run_free(profile_run *p)
{
    profile_free(p->profile);
    timeline_watch_free(p->watch);
    timeline_free(p->traced);
    timeline_free(p->latest);
    free(p);
}

static fsdp_status profile_run_create(const run_context *run, profile_run **out)
{
    const int rank = comm_rank(run->world);
    profile_run *p = calloc(1, sizeof *p);
    if (!p)
        return fsdp_error(FSDP_ENOMEM, "", "profile: no host memory");
    *p = (profile_run){.profile = profile_create(),
                       .watch = timeline_watch_create(run->dev),
                       .traced = timeline_create(rank),
                       .latest = timeline_create(rank)};
    if (!p->profile || !p->watch || !p->traced || !p->latest) {
        profile_run_free(p);
        return fsdp_error(FSDP_ENOMEM, "", "profile: no host memory");
    }
    p->to_timeline = timeline_watch_device(p->watch);
    p->comm_to_timeline = timeline_watch_comm(p->watch);
    *out = p;
    return FSDP_OK;
}

/* On one host there is one clock. */
static fsdp_status compare_clocks(trainer *t, timeline_job *job)
{
    comm *world = t->run.world;
    *job = (timeline_job){.world_size = comm_size(world)};
    if (comm_local_size(world) == comm_size(world))
        return FSDP_OK;
    return clock_offset_measure(world, &job->offset_s, &job->bound_s);
}

fsdp_status profile_run_open(trainer *t)
{
    if (!t->cfg.profile_dir)
        return FSDP_OK;
    TRY(comm_agree(t->run.world, dir_make(t->cfg.profile_dir))); /* now, before hours of training */
    TRY(profile_run_create(&t->run, &t->profiled));
    t->profiled->order = t->order;
    profile_roof roof;
    TRY(ops_profile_roof(t->run.ops, device_compute_stream(t->run.dev),
                         t->cfg.param_dtype == DTYPE_BF16, &roof));
    TRY(compare_clocks(t, &t->profiled->job));
    ledger_reset_peaks(
        device_ledger(t->run.dev)); /* the peaks of the run are reported, not these */
    profile_set_roof(t->profiled->profile, roof);
    device_set_watch(t->run.dev, &(device_watch){t->profiled, act_issued, act_ran});
    comm_set_watch(t->run.world, &(comm_watch){t->profiled, collective_issued, collective_ended});
    return FSDP_OK;
}

fsdp_status profile_run_write(trainer *t, FILE *out)
{
    profile_run *p = t->profiled;
    if (!p)
        return FSDP_OK;
    profile_run_pause(t);
    TRY(comm_agree(t->run.world, dir_make(t->cfg.profile_dir)));
    timeline_shift(p->traced, p->job.offset_s);
    return profile_files_write(&(profile_files){.dir = t->cfg.profile_dir,
                                                .world = t->run.world,
                                                .profile = p->profile,
                                                .traced = timeline_read(p->traced),
                                                .job = p->job},
                               out);
}

void profile_run_close(trainer *t)
{
    if (!t->profiled)
        return;
    comm_set_watch(t->run.world, NULL);
    device_set_watch(t->run.dev, NULL);
    profile_run_free(t->profiled);
    t->profiled = NULL;
}
