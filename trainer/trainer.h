/* trainer.h -- the parts of build/fsdp_train: set-up, plan, report. main() is in fsdp_train_main.c.
 *
 *   trainer_connect -> trainer_prepare -> trainer_allocate -> train_run -> report_run
 *   -> trainer_free */
#pragma once
#include "common/base/atomic_file.h"
#include "common/checkpoint/ckpt_source.h"
#include "common/observe/snapshot.h"
#include "common/steps/digests.h"
#include "common/steps/profile_run.h"
#include "common/steps/train.h"
#include "trainer/fsdp_engine.h"
#include "trainer/plan.h"
#include "trainer/trainer_config.h"

/* Everything that a run owns; trainer_free frees it. */
struct trainer {
    const trainer_options *opt; /* borrowed */
    trainer_config cfg;         /* from trainer_prepare on */
    model_config model_cfg;
    run_context run;         /* owns dev and world */
    mesh mesh;               /* of --parallel fsdp */
    comm *near_group;        /* of --reshard-to, else NULL */
    comm *kv_group;          /* of tp ranks whose blocks share keys and values, else NULL */
    fsdp_error_info refused; /* why this rank refuses its options or device; ranks agree on it */
    bool runs_ahead;         /* the host runs ahead of the compute stream */
    bool is_told, *told;     /* see prefetch_config; in a plan told is the trainer's */
    model m;
    corpus data, val_data;
    source_files source; /* of --init-from, on rank 0, for exports */
    ckpt_store store;    /* of --save; with dir "" it only has the run's facts, for --resume */
    engine engine;
    int *segments; /* [n_layers] of --gradient-checkpointing, else NULL */
    int n_cut;     /* how often a border between units cuts the chosen layers of a block */
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

/* trainer_connect -- open the device and the group of all ranks, and pin the threads. If the device
 * cannot be opened, open the CPU, and set t->refused, so that trainer_prepare fails on all ranks.
 *   errors  any error of comm_open */
fsdp_status trainer_connect(trainer *t);
/* trainer_check_program -- check that all ranks run the same program in the same floating-point
 * mode.
 *   collective  all ranks; all fail or none
 *   errors      FSDP_EMISMATCH naming a rank and both values */
fsdp_status trainer_check_program(const trainer *t);
/* check_float_mode -- FSDP_EINVAL unless this thread rounds to nearest, and reads and writes
 * denormals. option, value: what needs it; the option's value "fast" does not. */
fsdp_status check_float_mode(const char *option, const char *value);
/* trainer_check_bits -- check what the bits of a canonical run depend on: the usual floating-point
 * mode and, for --ops fast, one compiler and one kind of processor. Other runs get a note if ranks
 * differ in the latter.
 *   collective  all ranks, same options; all fail or none
 *   errors      FSDP_EINVAL the mode; FSDP_EMISMATCH */
fsdp_status trainer_check_bits(const trainer *t);
/* pin_threads -- return the number of threads of one rank: OMP_NUM_THREADS if it is set, else cores
 * / ranks of this host. Pin this thread, and the threads it starts later, to cores of this rank's
 * own, so that ranks do not move, and memory stays near the rank that touches it first. It pins
 * only if the ranks of the host need all cores that the process may use; if cores are left over, or
 * a launcher has bound the ranks, the system decides. FSDP_PIN=0 turns pinning off. */
int pin_threads(const comm *world);
/* trainer_prepare -- check options on all ranks, plan memory, check outputs, open data.
 *   t       t->refused is this rank's error of trainer_options_parse or trainer_connect
 *   errors  all ranks fail or none; rank 0's message names the rank that failed */
fsdp_status trainer_prepare(trainer *t);
/* trainer_open_data -- open t->data and t->val_data, and set t->store.data.
 *   collective  all ranks; all fail or none
 *   errors      any error of opening a corpus; FSDP_EINVAL: data that do not fit the model or each
 *               other; FSDP_EMISMATCH: this rank has other files than rank 0 */
fsdp_status trainer_open_data(trainer *t);
/* trainer_check_need -- FSDP_ENOMEM with the hint if need > have; where: for the message. To be
 * called before memory is allocated. */
fsdp_status trainer_check_need(const char *what, size_t need, size_t have, const char *where,
                               const char *hint);
/* trainer_check_on_host -- FSDP_ENOMEM with the hint if `what` needs more than this rank's share of
 * the host's memory. */
fsdp_status trainer_check_on_host(const trainer *t, const char *what, size_t need,
                                  const char *hint);
/* trainer_about -- check that all ranks have the same data, and fill in t->store with the run's
 * facts.
 *   collective  all ranks; all fail or none
 *   errors      FSDP_EMISMATCH: ranks have different data */
fsdp_status trainer_about(trainer *t);
/* trainer_place -- set t->store.sample_offset, so that a resumed run goes on reading where the run
 * that saved had stopped. If anything has changed that is read, rank 0 says where and why. */
void trainer_place(trainer *t, const ckpt_manifest *saved);
/* trainer_compare_paths -- FSDP_EINVAL if an output is an input of the run, or another output: by
 * name, as a file with several names, in a folder, through links, also if it does not exist yet. */
fsdp_status trainer_compare_paths(const trainer *t);
/* trainer_check_outputs -- check that every file and directory the run will write can be written.
 *   errors  FSDP_EIO naming the option and the path */
fsdp_status trainer_check_outputs(const trainer *t);
/* trainer_fsdp_config -- the configuration of --parallel fsdp; it borrows from t. */
fsdp_config trainer_fsdp_config(const trainer *t);
/* trainer_memory -- the bytes that a run may use on this rank, or on the device of a plan.
 * *limited = whether --device-memory is the limit. */
size_t trainer_memory(const trainer *t, bool *limited);
/* trainer_choose_recompute -- for --gradient-checkpointing=auto, choose what is recomputed:
 * nothing, or a part of the last n blocks. Of the choices whose plans fit the rank with the least
 * memory, take the one with the fewest FLOPs. If none fits, take all blocks.
 *   errors  any error of plan_make and comm_host_gather */
fsdp_status trainer_choose_recompute(trainer *t);
/* trainer_print_recompute -- print what is recomputed; nothing without the option. */
void trainer_print_recompute(const trainer *t, FILE *out);
/* trainer_val_data -- the data to evaluate: --val-data or, with --eval-only, the training data;
 * NULL: none. */
const corpus *trainer_val_data(const trainer *t);
/* trainer_make -- create mesh, engine and runner on t->run's device and group. Opens no files. */
fsdp_status trainer_make(trainer *t);
/* trainer_allocate -- create engine and runner, resume, and open the output files.
 *   errors  all ranks fail or none */
fsdp_status trainer_allocate(trainer *t);
/* trainer_free -- free everything; a zeroed struct is accepted. */
void trainer_free(trainer *t);

/* print_shards -- print how many rows or elements of each parameter, and how much padding, each
 * rank holds. Call it on one rank. Adjacent units that are alike are printed once.
 *   errors  FSDP_ENOMEM; any error of fsdp_lay_out */
fsdp_status print_shards(const trainer *t, FILE *out);
/* report_plan -- print the tables of t->plan and, with --plan-fit, what else would fit. Call it on
 * rank 0. */
void report_plan(const trainer *t, FILE *out);
/* report_is_exact -- whether a run must use exactly the planned memory in this row. It need not if
 * an accelerator's libraries need workspaces, which a plan does not know; if a canonical run has
 * more micro-steps than a plan runs, because the plan then has only a bound for its sums; or over
 * shm+mpi, because a plan does not know the memory of its calls. */
bool report_is_exact(const trainer *t, int row);
/* report_run -- collective: rank 0 prints the tables with the measured bytes beside the planned
 * ones, and writes --memory-report. All ranks fail or none. */
fsdp_status report_run(trainer *t, const train_result *result, FILE *out);
