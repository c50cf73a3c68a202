/* train.h -- the training loop, the same for every engine.
 *
 *   train_open -> train_run -> train_close, or train_rehearse in place of train_run
 *   each step: begin_step; micro-steps (forward, backward); optimizer_step; loss over all ranks
 *
 * The host issues a step and then reads the figures of the step before, so it never waits for the
 * device within a step. It catches up where something else follows: an evaluation, a checkpoint,
 * the end. The logged loss and gradient norm of step t precede its update; the norm precedes
 * clipping. */
#pragma once
#include "common/comm/comm.h"
#include "common/data/data.h"
#include "common/model/runner.h"
#include "common/steps/engine.h"
#include "common/steps/train_config.h"

/* How many times the limit of a collective peers may take to write or read files. */
enum { TRAIN_FILES_TIMES = 12 };
/* What an evaluation reads at most, unless train_config says how many batches. */
enum { EVAL_SEQUENCES = 128 };

/* Who is told what the loop does; any function may be NULL. */
typedef struct train_observer {
    void *self;
    /* begin_step -- all ranks are about to issue step `step`. All fail or none; it ends the run */
    fsdp_status (*begin_step)(void *self, int64_t step);
    /* end_step -- the optimizer's step has been issued. */
    fsdp_status (*end_step)(void *self);
    /* pause -- what follows is no part of a step: a checkpoint. */
    void (*pause)(void *self);
} train_observer;

typedef struct train_setup {
    const train_config *cfg;
    const run_context *run;
    const corpus *data;     /* NULL: zeros, for a rehearsal */
    const corpus *val_data; /* NULL: no evaluation; may be data */
    engine *engine;
    runner *runner;
    FILE *log;               /* rank 0: where progress is printed; NULL: nowhere */
    train_observer observer; /* zeroed: nobody */
    ckpt_store *store;       /* NULL: no checkpoints */
    int64_t first_step;      /* > 0 after --resume */
    bool step_by_step;       /* read a step's figures before the next one is issued */
} train_setup;

/* What the run measured. Figures of one step come from the last step or, with run->forward_only,
 * of the last batch. */
typedef struct train_result {
    double first_loss, last_loss, ms_per_step; /* ms_per_step: the median over the steps */
    comm_stats step_stats;
    bool failed_alike; /* train_run failed, and all ranks returned the failure */
    bool ended_early;  /* SIGTERM asked for it, and what there was is saved */
} train_result;

typedef struct train_loop train_loop;
/* train_open -- allocate buffers, and on rank 0 open the loss file (cfg->loss_csv), which keeps its
 * rows before first_step. All ranks fail or none.
 *   setup  borrowed until train_close */
fsdp_status train_open(const train_setup *setup, train_loop **out);
/* train_run -- run all steps; afterwards the job waits TRAIN_FILES_TIMES as long as in a step. The
 * loss file appears at every checkpoint and at the end; if no step is left to run, it stays as it
 * was. If train_run fails and result->failed_alike is false, the failure may have struck one rank
 * only: the caller then calls train_discard and ends the job.
 * With run->forward_only no step is made: val_data, if it is given, is evaluated once.
 * With cfg->save_async a checkpoint is published at the first step whose figures say that all ranks
 * have written it, before the next one begins, or at the end; a divergence publishes it too.
 * With setup->store and comm_config.keeps_signals, SIGUSR1 to any rank makes all save and go on,
 * and SIGTERM save and end: at the end of the step after the one in which it came. What comes later
 * than the last step is not heeded. */
fsdp_status train_run(train_loop *l, train_result *result);
/* train_rehearse -- the first n steps as train_run makes them, but nothing is written, printed or
 * judged: what a dry device is asked to show. *last_step: the calls of the last of them. */
fsdp_status train_rehearse(train_loop *l, int n, comm_stats *last_step);
/* train_rehearse_evaluation -- evaluate n_batches as train_run does, but at most two. The second
 * one needs no gather of units that the first one left gathered. *last_batch: the calls of the last
 * of them. */
fsdp_status train_rehearse_evaluation(train_loop *l, size_t n_batches, comm_stats *last_batch);
/* train_eval_batches -- the number of global batches in an evaluation on val_data, at least one. */
size_t train_eval_batches(const train_config *cfg, const corpus *val_data);
/* train_discard -- remove the half-written loss file, and nothing else: streams may still work. */
void train_discard(train_loop *l);
/* train_close -- free everything. A loss file that train_run did not finish is removed. NULL is
 * accepted, and a loop that was discarded. */
void train_close(train_loop *l);
