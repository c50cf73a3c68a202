/* trainer.h -- the parts of build/fsdp_train: set-up, plan, report. main() is in fsdp_train_main.c.
 *
 *   trainer_connect -> trainer_prepare -> trainer_allocate -> train_run -> report_run
 *   -> trainer_free */
#pragma once
#include "common/base/atomic_file.h"
#include "common/observe/snapshot.h"
#include "common/steps/digests.h"
#include "common/steps/profile_run.h"
#include "common/steps/train.h"
#include "trainer/fsdp_engine.h"
#include "trainer/plan.h"
#include "trainer/trainer_config.h"

/* Everything that a run owns, in the order of its making; trainer_free releases it in reverse. */
struct trainer {
    trainer_config cfg;
    model_config model_cfg;
    run_context run;         /* owns dev and world */
    mesh mesh;               /* of --parallel fsdp */
    comm *near_group;        /* of --reshard-to, else NULL */
    fsdp_error_info refused; /* why this rank refuses its options or device; ranks agree on it */
    bool runs_ahead;         /* the host, of the compute stream */
    bool is_told, *told; /* see prefetch_config; told: is_told of the trainer, not of its plans */
    model m;
    corpus data, val_data;
    ckpt_store store; /* of --save; dir "": only what the run is, for --resume */
    engine engine;
    int *segments; /* [n_layers] of --gradient-checkpointing, else NULL */
    int n_cut;     /* how often a border between units cuts a block's segment */
    runner *runner;
    train_setup setup;
    train_loop *loop;
    plan_costs costs;        /* of --plan-device, --plan-prices, --bucket auto, else zeroed */
    plan plan;               /* of this rank, or of --plan-rank */
    profile_run *profiled;   /* of --profile, else NULL */
    order_check *order;      /* of --check-order, else NULL */
    snapshot *snapshot;      /* of --snapshot, else NULL */
    atomic_file digest_file; /* of --digests, on rank 0 */
    digests *digests;        /* of --digests, else NULL */
};

/* trainer_connect -- open the device and the group of all ranks, and pin the threads. Where there
 * is no such device, t->refused says why, and trainer_prepare says so on all ranks.
 *   errors  those of comm_open */
fsdp_status trainer_connect(trainer *t);
/* pin_threads -- the number of threads of one rank: OMP_NUM_THREADS if it is set, else cores /
 * ranks of this host. Keeps this thread, and those it starts from here on, on cores of this rank's
 * own, so that what a rank touches first stays near it, and ranks do not trade places. It pins only
 * if the ranks of the host take all cores that the process may use; with cores to spare, or if a
 * launcher has bound the ranks, the system decides. FSDP_PIN=0 turns pinning off. */
int pin_threads(const comm *world);
/* trainer_prepare -- check options on all ranks, plan memory, check outputs, open data.
 *   t       refused: this rank's error of trainer_config_parse or trainer_connect
 *   errors  all ranks fail or none; rank 0's message names the rank that failed */
fsdp_status trainer_prepare(trainer *t);
/* trainer_about -- compare the data of all ranks, and say in t->store what the run is.
 *   collective  all ranks; all fail or none
 *   errors      FSDP_EMISMATCH: ranks have different data */
fsdp_status trainer_about(trainer *t);
/* trainer_check_outputs -- check that every file and directory the run will write can be written.
 *   errors  FSDP_EIO naming the option and the path */
fsdp_status trainer_check_outputs(const trainer *t);
/* trainer_flag -- whether a variable of the environment is set, and not to 0. */
bool trainer_flag(const char *name);
/* trainer_fsdp_config -- of --parallel fsdp; it borrows from t. */
fsdp_config trainer_fsdp_config(const trainer *t);
/* trainer_memory -- bytes that a run may take on this rank, or on the device of a plan. *limited:
 * --device-memory is the limit. */
size_t trainer_memory(const trainer *t, bool *limited);
/* trainer_choose_recompute -- for --gradient-checkpointing=auto, choose what runs again: nothing,
 * or a part of the last n blocks. Of the choices whose plans fit the rank with the least memory,
 * take the one with the fewest operations. If none fits, take all blocks.
 *   errors  those of plan_make and comm_host_gather */
fsdp_status trainer_choose_recompute(trainer *t);
/* trainer_print_recompute -- a line that says what runs again; nothing without the option. */
void trainer_print_recompute(const trainer *t, FILE *out);
/* trainer_val_data -- what is evaluated: --val-data or, with --eval-only, the training data; NULL:
 * nothing. */
const corpus *trainer_val_data(const trainer *t);
/* trainer_make -- mesh, engine and runner, on t->run's device and group: all that trains, without
 * files. */
fsdp_status trainer_make(trainer *t);
/* trainer_allocate -- make engine and runner, resume, open the output files. Errors as above. */
fsdp_status trainer_allocate(trainer *t);
/* trainer_free -- free everything; a zeroed struct is accepted. */
void trainer_free(trainer *t);

/* print_shards -- called by one rank: print which rank holds which rows, or elements, of each
 * parameter, and the padding. Neighbouring units that are alike are printed once.
 *   errors  FSDP_ENOMEM, and those of fsdp_lay_out */
fsdp_status print_shards(const trainer *t, FILE *out);
/* report_plan -- on rank 0: the tables of t->plan and, with --plan-fit, what else would fit. */
void report_plan(const trainer *t, FILE *out);
/* report_is_exact -- whether a run must hold exactly what was planned in a row of memory. A plan
 * has the CPU's operations, but an accelerator's libraries take workspaces too. If a canonical run
 * has more micro-steps than a plan makes, the plan has only a bound for its sums. Over shm+mpi, the
 * plan does not include what calls hold. */
bool report_is_exact(const trainer *t, int row);
/* report_run -- collective: rank 0 prints the tables with the measured bytes beside the planned,
 * and writes --memory-report. All ranks fail or none. */
fsdp_status report_run(trainer *t, const train_result *result, FILE *out);
