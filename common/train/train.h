/* train.h -- the training loop, the same for every engine.
 *
 *   for each step:  begin_step; micro-steps (forward, backward); optimizer_step;
 *                   loss over all ranks
 * Logged loss and gradient norm of step t are before its update; the norm is before clipping.    */
#pragma once
#include "common/data/data.h"
#include "common/model/runner.h"
#include "common/train/engine.h"
#include "common/train/train_config.h"

typedef struct train_setup {
    const train_config *cfg;
    const run_context *run;
    const corpus *data;
    const corpus *val_data; /* NULL: no evaluation */
    engine *engine;
    runner *runner;
    FILE *log;          /* rank 0: where progress goes */
    int64_t first_step; /* > 0 after --resume */
} train_setup;

/* What the run measured; figures of one step are of the last step. */
typedef struct train_result {
    double first_loss, last_loss, ms_per_step; /* median over the steps */
    comm_stats step_stats;
    bool failed_alike; /* a failure of train_run that all ranks returned */
} train_result;

/* train_open -- buffers and the loss file (rank 0: cfg->loss_csv). Agreed on: every rank fails or
 * none.
 * train_run -- all steps. Where a failure may have struck one rank only (result->failed_alike is
 * false) the caller ends the job, after train_discard.
 * train_discard -- removes the half-written loss file, and nothing else: streams may still be at
 * work.
 * train_close -- the loss file appears only if train_run ended well. NULL is accepted.
 * setup is borrowed until then. */
typedef struct train_loop train_loop;
fsdp_status train_open(const train_setup *setup, train_loop **out);
fsdp_status train_run(train_loop *l, train_result *result);
void train_discard(train_loop *l);
void train_close(train_loop *l);

/* train_export -- collective: DIR/model.safetensors and config.json of the engine's weights. */
fsdp_status train_export(const train_setup *setup, const char *dir);
