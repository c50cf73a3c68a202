/* trainer_config.h -- the settings of a run that follow from its options for W ranks.
 *
 *   trainer_options_parse -> trainer_config_resolve -> a plan may choose recompute and buckets */
#pragma once
#include "common/model/unit.h"
#include "common/simulate/virtual_time.h"
#include "lab2_forward/fsdp_setup.h"
#include "lab3_backward/recompute.h"
#include "lab5_prefetch/prefetch_setup.h"
#include "trainer/trainer_options.h"

typedef struct trainer_config {
    train_config train;
    int n_ranks;      /* of the job: --plan-ranks, or the actual ranks */
    int axes[N_AXES]; /* sizes of the mesh's axes but replicate and shard, which follow; 0 is 1 */
    int plan_rank;
    enum trainer_parallel parallel;
    sharding_strategy sharding;
    int fsdp_size; /* of SHARDING_HYBRID */
    wrap_policy wrap;
    size_t wrap_min_elems; /* of WRAP_SIZE */
    size_t bucket_elems;   /* most parameters of a bucket; 0: do not merge units */
    bool offloads;         /* the optimizer's states are in host memory */
    bool no_sync;          /* with all ranks */
    prefetch_mode prefetch;
    bool prefetch_auto;
    bool bucket_auto;                     /* choose bucket_elems */
    recompute_spec recompute;             /* from --gradient-checkpointing, or chosen by auto */
    bool recompute_auto, recompute_short; /* short: auto found no choice that fits */
    bool forward_only;                    /* no step is run or planned, nothing is saved */
    bool is_timed;                        /* plans have times, to be printed or to choose buckets */
    bool makes_digests;                   /* not in a plan */
    virtual_link link, upload, download;  /* of --plan-link and --plan-copies */
    const char *init_note;                /* from import_model_config, or NULL */
} trainer_config;

/* trainer_config_resolve -- fill in *cfg and *model_cfg for a job of --plan-ranks, or else
 * world_size ranks. In cfg->train global_batch = n_ranks * batch_size * grad_accum; if only
 * --global-batch G is given, batch_size is the largest power of two up to 8 that divides G/W.
 * --sharding optimizer becomes grad-op with --no-sync and --reshard-after step. --eval-only becomes
 * --steps 0. --plan-fsdp-size makes the strategy hybrid.
 *   cfg     borrows o
 *   errors  FSDP_EINVAL: the batch does not fit, or is not a power of two in canonical mode;
 *           --parallel single with several ranks; a shard group that does not divide W; ... */
fsdp_status trainer_config_resolve(const trainer_options *o, int world_size, trainer_config *cfg,
                                   model_config *model_cfg);

/* trainer_config_check -- do the checks of trainer_config_resolve that depend on the number of
 * ranks and on the batch. Call it after changing n_ranks or batch_size. */
fsdp_status trainer_config_check(const trainer_options *o, const trainer_config *cfg);

/* trainer_config_data_ranks -- how many ranks of the job read different sequences. */
int trainer_config_data_ranks(const trainer_config *cfg);
/* trainer_config_shard_size -- the number of ranks in a shard group of the job. */
int trainer_config_shard_size(const trainer_config *cfg);
/* trainer_config_mesh -- the sizes of the job's mesh, for mesh_shape_make. */
void trainer_config_mesh(const trainer_config *cfg, int size[N_AXES]);

extern const char *const TRAINER_MAY_CHANGE; /* comma-separated names for --resume-change */
/* trainer_check_change -- FSDP_EINVAL unless all names of --resume-change are known
 * (resume_facts.c). change: the comma-separated names; NULL: none. */
fsdp_status trainer_check_change(const char *change);
