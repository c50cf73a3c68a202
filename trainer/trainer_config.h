/* trainer_config.h -- the trainer's options, and the settings derived from them.
 *
 *   trainer_config_parse (argv) -> trainer_config_resolve (model and batch, for W ranks) */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "common/base/options.h"
#include "common/model/unit.h"
#include "common/steps/train_config.h"
#include "lab3_backward/recompute.h"
#include "lab5_prefetch/prefetch_setup.h"

enum trainer_parallel { PARALLEL_SINGLE, PARALLEL_DDP, PARALLEL_FSDP };
/* Limits for a micro-step of a rank. With MAX_TOKENS and the limits of the model's options,
 * activations take less than 2^63 bytes. */
enum { MAX_BATCH = 65536, MAX_TOKENS = 1 << 26 };
enum trainer_layout { LAYOUT_FLAT, LAYOUT_PER_PARAM };
enum trainer_ops { OPS_FAST, OPS_PORTABLE };
enum trainer_no_sync { NO_SYNC_OFF, NO_SYNC_ALL, NO_SYNC_REPLICAS };
enum trainer_reshard_after { RESHARD_AFTER_USE, RESHARD_AFTER_STEP };
/* The value of --sharding optimizer, after the strategies; trainer_config_resolve replaces it. */
enum { SHARDING_OPTIMIZER = SHARDING_HYBRID + 1 };
/* The first choices of --plan-device. Those from PLAN_FIRST_DEVICE on are virtual devices. */
enum trainer_plan_device { PLAN_NO_DEVICE, PLAN_THIS_DEVICE, PLAN_FIRST_DEVICE };

typedef struct trainer_config {
    train_config train;
    int parallel;
    int family;
    const char *size; /* NULL: the size of init_from, or else the family's first preset */
    int64_t n_blocks, n_head, n_kv_head, d_model, d_ff, vocab_size,
        n_positions; /* 0: the preset's */
    int64_t seed;
    int optimizer;                     /* optimizer_kind; OPTIMIZER_SGD may have momentum */
    const char *init_from, *init_note; /* init_note: from import_model_config, or NULL */
    const char *freeze;
    const char *data, *val_data, *data_mask, *val_mask;
    int data_format; /* corpus_format */
    int64_t synthetic_tokens;
    int sharding; /* sharding_strategy */
    int64_t fsdp_size;
    int no_sync, reshard_after;                       /* trainer_no_sync, trainer_reshard_after */
    bool optimizer_offload, cpu_offload, keeps_grads; /* keeps_grads: see offload_config */
    double offload_piece_mib;
    int64_t reshard_to; /* ranks of a near group (reshard_to.h); 0: none */
    const char *wrap;
    int wrap_policy; /* wrap_policy, from the text in wrap */
    int64_t wrap_min_elems;
    int layout;   /* trainer_layout */
    int prefetch; /* prefetch_mode; trainer_config_resolve replaces PREFETCH_AUTO */
    bool prefetch_auto;
    int64_t limit_all_gathers;
    const char *bucket;
    bool bucket_auto;    /* choose bucket_elems: --bucket auto with FSDP on several ranks */
    size_t bucket_elems; /* from the text in bucket; 0: do not merge units */
    const char *checkpointing;
    bool recompute_auto, recompute_short; /* short: auto found no choice that fits */
    recompute_spec recompute;             /* from the text in checkpointing, or chosen by auto */
    int64_t chunk_loss;                   /* tokens per chunk; 0: all at once */
    int device;                           /* see backends.h */
    int64_t device_memory_mib;            /* 0: no limit */
    int reduction, comm, ops;             /* grad_acc_mode, comm_backend, trainer_ops */
    int param_dtype, reduce_dtype;        /* dtype */
    const char *export_init_dir, *export_dir, *export_optimizer;
    const char *memory_report, *profile_dir, *snapshot;
    const char *save_dir, *resume, *resume_change;
    int64_t keep; /* number of checkpoints to keep; 0: all */
    bool check_order, print_shards, no_grad_norm;
    bool eval_only, forward_only; /* forward_only: no step is run or planned, nothing is saved */
    const char *digests, *digest_values;
    bool plan, is_timed; /* is_timed: plans have times, to be printed or to choose buckets */
    int64_t plan_ranks, plan_fsdp_size; /* 0: the actual ranks; 0: as --sharding says */
    int n_ranks;                        /* of the job: plan_ranks, or the actual ranks */
    int64_t plan_rank;
    int plan_device; /* trainer_plan_device, or a later choice */
    const char *plan_link, *plan_copies, *plan_prices;
    double link_bytes_per_s, link_latency_s; /* from the text in plan_link */
    double upload_bytes_per_s, download_bytes_per_s, copy_latency_s; /* from plan_copies */
    bool plan_fit;
} trainer_config;

extern const option_spec TRAINER_OPTIONS[];

/* trainer_config_parse -- fill in *cfg from the command line.
 *   errors  any error of options_parse and backend_check; FSDP_HELP: the caller prints the help;
 *           FSDP_EINVAL: --comm names the transport of another device */
fsdp_status trainer_config_parse(int argc, char **argv, trainer_config *cfg);

/* trainer_config_resolve -- fill in *model_cfg and the fields of cfg that follow from others: those
 * parsed from texts; n_ranks W, which is --plan-ranks or else world_size; and the batch fields, so
 * that global_batch = W * batch_size * grad_accum. If only --global-batch G is given, batch_size is
 * the largest power of two up to 8 that divides G/W. --sharding optimizer becomes grad-op with
 * --no-sync and --reshard-after step. --eval-only becomes --steps 0. --plan-fsdp-size makes the
 * strategy hybrid. Any --plan-... option sets plan.
 *   errors  FSDP_EINVAL: the batch does not fit, or is not a power of two in canonical mode;
 *           --parallel single with several ranks; a shard group that does not divide W; ... */
fsdp_status trainer_config_resolve(trainer_config *cfg, int world_size, model_config *model_cfg);

/* trainer_config_check -- do the checks of trainer_config_resolve that depend on the number of
 * ranks and on the batch. Call it after changing n_ranks or batch_size. */
fsdp_status trainer_config_check(const trainer_config *cfg);

/* trainer_config_shard_size -- the number of ranks in a shard group of the job. */
int trainer_config_shard_size(const trainer_config *cfg);

extern const char TRAINER_MAY_CHANGE[]; /* comma-separated names for --resume-change */
/* trainer_check_change -- FSDP_EINVAL unless all names of --resume-change are known
 * (resume_facts.c). change: the comma-separated names; NULL: none. */
fsdp_status trainer_check_change(const char *change);
