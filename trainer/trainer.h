/* trainer.h -- the parts of build/fsdp_train: set up, plan, report. main() is fsdp_train_main.c. */
#pragma once
#include "common/observe/profile.h"
#include "common/train/train.h"
#include "trainer/plan.h"
#include "trainer/trainer_config.h"

/* Everything a run owns, in the order it is made; released in reverse. */
typedef struct trainer {
    trainer_config cfg;
    model_config model_cfg;
    run_context run; /* dev and world are owned */
    mesh mesh;       /* --parallel fsdp */
    model m;
    corpus data, val_data;
    engine engine;
    runner *runner;
    train_setup setup;
    train_loop *loop;
    memory_plan mem_plan;
    traffic_plan traffic_plan;
    int64_t first_step;
    profile *profile; /* --profile, else NULL */
    device_watch profile_watch;
    engine watched_engine; /* what the training loop gets then */
} trainer;

/* trainer_connect -- device and group; trainer_prepare -- checks options on all ranks, opens data,
 * plans memory; trainer_allocate -- engine, runner, output files. Failures of prepare and allocate
 * are agreed on: every rank returns one, rank 0's message names the rank. */
fsdp_status trainer_connect(trainer *t);
/* pin_to_cores -- keep this thread, and those it starts from here on, on cores of this rank's own,
 * so that what a rank touches first stays near it and ranks do not trade places. Only when the
 * ranks of the host take all cores that the process may use: with cores to spare, or bound by the
 * launcher, the system decides. FSDP_PIN=0: never. */
void pin_to_cores(const comm *c, int n_threads);
fsdp_status trainer_prepare(trainer *t, fsdp_status parsed);
/* trainer_check_outputs -- every file and directory that the run will write can be written. */
fsdp_status trainer_check_outputs(const trainer *t);
fsdp_status trainer_allocate(trainer *t);
void trainer_free(trainer *t);

/* profile_run_open -- with --profile: measures the roof, watches the device and the world.
 * profile_run_watch -- the engine for the training loop: t->engine, or one around it.
 * profile_run_write -- collective, agreed on: DIR/profile-rank-R.csv, by rank 0 DIR/profile.md.
 * profile_run_close -- when no stream works any more. All do nothing without --profile. */
fsdp_status profile_run_open(trainer *t);
engine *profile_run_watch(trainer *t);
fsdp_status profile_run_write(trainer *t);
void profile_run_close(trainer *t);

/* report_plan -- tables of bytes by formula; for rank 0. */
void report_plan(const trainer *t, FILE *out);
/* report_run -- collective: rank 0 prints them with the measured bytes beside,
 * and writes --memory-report. */
fsdp_status report_run(trainer *t, const train_result *result, FILE *out);
