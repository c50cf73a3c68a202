/* train_config.h -- the trainer's options, and what follows from them.
 *
 *   train_config_parse (argv) -> train_config_resolve (the model's shape, the batch for W ranks) */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "common/base/options.h"
#include "common/model/unit.h"
#include "common/train/engine.h"

enum train_parallel { PARALLEL_SINGLE, PARALLEL_DDP, PARALLEL_FSDP };
enum train_ops { OPS_FAST, OPS_PORTABLE };

typedef struct train_config {
    int parallel;
    int family;
    const char *size;
    int64_t n_blocks, n_head, d_model, d_ff, vocab_size, n_positions; /* 0: the preset's */
    int64_t seq_len, steps, warmup_steps, seed;
    int64_t batch_size, grad_accum, global_batch; /* 0: see resolve */
    double lr, min_lr, weight_decay, beta1, beta2, eps, clip_grad;
    int optimizer;
    const char *data, *val_data;
    int64_t eval_every, synthetic_tokens;
    int sharding, wrap_kind;
    const char *wrap;
    int64_t wrap_min_elems;
    int reduction, comm, ops;
    int param_dtype, reduce_dtype; /* dtype */
    const char *loss_csv, *export_init_dir, *export_dir, *save_dir, *resume, *memory_report,
        *profile_dir;
    int64_t save_every;
    bool plan;
} train_config;

extern const option_spec TRAIN_OPTIONS[];

/* train_config_parse -- FSDP_ESKIP after --help was printed. */
fsdp_status train_config_parse(int argc, char **argv, train_config *cfg);

/* train_config_resolve -- fills model_cfg, and cfg's batch fields so that
 * global_batch = world_size * batch_size * grad_accum.
 *   Only --global-batch G given: batch_size is the largest power of two, at most 8, that divides
 *   G/W.
 *   errors  FSDP_EINVAL: does not fit, batch not a power of two in canonical mode,
 *           --parallel single with several ranks, ... */
fsdp_status train_config_resolve(train_config *cfg, int world_size, model_config *model_cfg);

/* train_lr -- learning rate of step t (from 0):
 *   t < warmup: lr*(t+1)/warmup
 *   else        min_lr + (lr-min_lr)*(1 + cos(pi*(t-warmup)/(steps-warmup)))/2 */
double train_lr(const train_config *cfg, int64_t step);
