/* trainer_options.h -- the options of fsdp_train as they were given: one row of TRAINER_OPTIONS and
 * one field for each. Nothing writes to them after trainer_options_parse. What follows from several
 * of them, or from the number of ranks, is in trainer_config.h.
 *
 * An option that passes a value on takes a row, a field, the place that reads it, its line in
 * docs/options.md, and a test. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "common/base/options.h"
#include "common/comm/comm.h"
#include "common/steps/train_config.h"
#include "lab3_backward/backward.h"

enum trainer_parallel { PARALLEL_SINGLE, PARALLEL_DDP, PARALLEL_FSDP };
/* Limits for a micro-step of a rank. With MAX_TOKENS and the limits of the model's options,
 * activations take less than 2^63 bytes. */
enum { MAX_BATCH = 65536, MAX_TOKENS = 1 << 26 };
/* A number whose default depends on other options. */
enum { NOT_GIVEN = -2 };
enum trainer_layout { LAYOUT_FLAT, LAYOUT_PER_PARAM };
enum trainer_ops { OPS_FAST, OPS_PORTABLE };
enum trainer_no_sync { NO_SYNC_OFF, NO_SYNC_ALL, NO_SYNC_REPLICAS };
enum trainer_reshard_after { RESHARD_AFTER_USE, RESHARD_AFTER_STEP };
/* The words of --wrap, in the order of wrap_policy. */
#define WRAP_POLICIES(between, size, last) "block" between "sub-block" between size last "model"
/* The last choice of --sharding, after those of sharding_strategy. */
enum { SHARDING_OPTIMIZER = SHARDING_HYBRID + 1 };
/* The first choices of --plan-device. Those from PLAN_FIRST_DEVICE on are virtual devices. */
enum trainer_plan_device { PLAN_NO_DEVICE, PLAN_THIS_DEVICE, PLAN_FIRST_DEVICE };

/* 0 and NULL: not given, unless the row says otherwise. */
typedef struct trainer_options {
    train_options train; /* the training loop takes these as they are */
    int64_t seq_len, steps, batch_size, grad_accum, global_batch;
    double min_lr, lr_gamma, weight_decay, eps;
    int parallel; /* trainer_parallel */
    int family;   /* 0: auto, else 1 + a number for model_family_at */
    const char *size;
    int64_t n_blocks, n_head, n_kv_head, d_model, d_ff, vocab_size, n_positions;
    int64_t seed;
    int optimizer; /* optimizer_kind; OPTIMIZER_SGD may have momentum */
    const char *init_from, *freeze;
    const char *data, *val_data, *data_mask, *val_mask;
    int data_format; /* corpus_format */
    int64_t synthetic_tokens;
    int sharding;                     /* sharding_strategy, or SHARDING_OPTIMIZER */
    int64_t fsdp_size, tp, tp_blocks; /* tp_blocks 0: tp */
    int no_sync, reshard_after;       /* trainer_no_sync, trainer_reshard_after */
    int64_t reshard_to;               /* ranks of a near group (reshard_to.h) */
    bool optimizer_offload, cpu_offload;
    double offload_piece_mib;
    const char *wrap;
    int layout;   /* trainer_layout */
    int prefetch; /* prefetch_mode */
    int64_t limit_all_gathers;
    const char *bucket, *checkpointing;
    int64_t chunk_loss; /* tokens per chunk */
    int device;         /* see backends.h */
    int64_t device_memory_mib;
    int reduction, comm, ops;      /* grad_acc_mode, see trainer_comm, trainer_ops */
    int param_dtype, reduce_dtype; /* dtype */
    const char *export_init_dir, *export_dir, *export_optimizer;
    const char *memory_report, *profile_dir, *snapshot;
    const char *save_dir, *resume, *resume_change;
    int64_t keep; /* number of checkpoints; 0: all */
    bool sequence_parallel, check_order, print_shards, no_grad_norm, eval_only;
    const char *digests, *digest_values;
    bool plan, plan_fit; /* plan: also if another --plan-... is given */
    int64_t plan_ranks, plan_fsdp_size, plan_rank;
    int plan_device; /* trainer_plan_device, or a later choice */
    const char *plan_link, *plan_copies, *plan_prices;
} trainer_options;

extern const option_spec TRAINER_OPTIONS[];
/* The word of a value of an option with choices: "prefetch", PREFETCH_BOTH -> "both". */
#define TRAINER_WORD(option, value) options_word(TRAINER_OPTIONS, option, value).text

/* trainer_options_parse -- fill in *o from the command line.
 *   errors  any error of options_parse and backend_check; FSDP_HELP: the caller prints the help;
 *           FSDP_EINVAL: --comm names the transport of another device */
fsdp_status trainer_options_parse(int argc, char **argv, trainer_options *o);

/* trainer_comm -- the transport of --comm, of which COMM_NATIVE has a name for each kind of device.
 * If parsing failed it may have any value. */
comm_backend trainer_comm(const trainer_options *o);
