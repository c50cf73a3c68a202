/* train.h -- the training loop, which is the same for every engine.
 *
 *   train_open -> train_run -> train_close, or train_rehearse in place of train_run
 *   each step: begin_step; micro-steps (forward, backward); optimizer_step; loss over all ranks
 *
 * The host issues a step and then reads the figures of the step before, so it never waits for the
 * device within a step. It reads a step's figures at once only if an evaluation, a checkpoint or
 * the end follows, or with step_by_step. With a mask, the ranks' hosts add up how many targets
 * count before a step's update is issued; streams go on. The logged loss and gradient norm of step
 * t are from before its update; the norm is from before clipping. */
#pragma once
#include "common/comm/comm.h"
#include "common/data/data.h"
#include "common/model/runner.h"
#include "common/steps/engine.h"
#include "common/steps/train_config.h"
#include "common/weights/source_files.h"

/* While peers write or read files, a collective waits this many times its usual limit. */
enum { TRAIN_FILES_TIMES = 12 };

/* Functions that the loop calls; any of them may be NULL. */
typedef struct train_observer {
    void *self;
    /* begin_step -- step `step` is about to be issued. All ranks fail or none; a failure ends the
     * run. */
    fsdp_status (*begin_step)(void *self, int64_t step);
    /* end_step -- optimizer_step has been issued. */
    fsdp_status (*end_step)(void *self);
    /* pause -- a checkpoint follows, which does not belong to a step. */
    void (*pause)(void *self);
} train_observer;

typedef struct train_setup {
    const train_config *cfg;
    const run_context *run;
    const corpus *data;     /* NULL: zeros and no loss file, for a rehearsal */
    const corpus *val_data; /* NULL: no evaluation; may equal data */
    engine *engine;
    runner *runner;
    FILE *log;                  /* rank 0: receives the progress; NULL: do not print it */
    train_observer observer;    /* zeroed: no functions */
    ckpt_store *store;          /* NULL: no checkpoints */
    const source_files *source; /* what exports take over; NULL: nothing */
    int64_t first_step;         /* > 0 after --resume */
    int64_t sample_offset;      /* step t begins at sample t * global_batch + sample_offset */
    bool step_by_step;          /* read a step's figures before the next one is issued */
} train_setup;

/* What the run measured. step_stats is of the last step or, with run->forward_only, of the last
 * batch. */
typedef struct train_result {
    double first_loss, last_loss, ms_per_step; /* ms_per_step: the median over the steps */
    comm_stats step_stats;
    bool failed_alike; /* train_run failed, with the same failure on all ranks */
    bool ended_early;  /* SIGTERM ended the run, after a save */
} train_result;

typedef struct train_loop train_loop;
/* train_open -- allocate buffers, and on rank 0 open the loss file (--loss-csv) with its old
 * rows before first_step. All ranks fail or none.
 *   setup  borrowed until train_close */
fsdp_status train_open(const train_setup *setup, train_loop **out);
/* train_run -- run all steps. Collectives after it wait TRAIN_FILES_TIMES as long as in a step.
 * The loss file appears at every checkpoint and at the end; if no step is left to run, it stays as
 * it was. If train_run fails and result->failed_alike is false, other ranks may not have failed:
 * the caller then calls train_discard and ends the job.
 * With run->forward_only no step is run; if val_data is given, it is evaluated once.
 * With --save-async a checkpoint is published at the first step whose figures say that all ranks
 * have written it, and at the latest before the next checkpoint begins, at the end of the run, or
 * when training has diverged.
 * With setup->store and comm_config.keeps_signals, a signal to any rank takes effect on all ranks
 * at the end of the step after the one in which it came: SIGUSR1 saves a checkpoint, SIGTERM saves
 * one and ends the run. Signals after the last step are ignored. */
fsdp_status train_run(train_loop *l, train_result *result);
/* train_rehearse -- run n steps as train_run does, but write, print and check nothing: for a plan
 * on a dry device. *last_step = the collective calls of the last step. */
fsdp_status train_rehearse(train_loop *l, int n, comm_stats *last_step);
/* train_rehearse_evaluation -- evaluate n_batches as train_run does, but at most two: the second
 * one shows the units that stay gathered. *last_batch = the collective calls of the last batch. */
fsdp_status train_rehearse_evaluation(train_loop *l, size_t n_batches, comm_stats *last_batch);
/* train_eval_batches -- the number of global batches in an evaluation on val_data; the last one may
 * be filled in part. */
size_t train_eval_batches(const train_config *cfg, const corpus *val_data);
/* train_discard -- remove the half-written loss file, and free nothing: streams may still have
 * work. */
void train_discard(train_loop *l);
/* train_close -- free everything, and remove a loss file that train_run did not finish. NULL and a
 * discarded loop are accepted. */
void train_close(train_loop *l);
