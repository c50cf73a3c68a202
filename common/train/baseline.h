/* baseline.h -- the two runs that FSDP is compared with: one device, and data parallel (DDP).
 *
 * Every rank holds all parameters, all gradients and all optimizer state. DDP averages gradients by
 * a reduce-scatter of each micro-step and one all-gather per step; with one rank it is the
 * single-device baseline. The update uses ops->adamw over whole parameters. [DDP §3] */
#pragma once
#include "common/train/engine.h"

typedef struct baseline_config {
    const model *m;
    const ops *ops;
    device *dev;
    comm *comm;
    grad_acc_mode mode;
    int level; /* log2 of the sequences per rank and micro-step (canonical), else 0 */
    int grad_accum;
    uint64_t seed;
    optimizer_kind optimizer; /* sgd holds no moments */
    dtype param_dtype;        /* DTYPE_BF16: the model computes with a rounded copy */
    dtype reduce_dtype;       /* in which gradients are summed, see ops/grad_acc.h: sum_dtype */
} baseline_config;

/* baseline_create -- parameters made by param_init_range; *out is freed by out->free(out->self). */
fsdp_status baseline_create(const baseline_config *config, engine *out);
fsdp_status baseline_plan(const baseline_config *config, int world_size, memory_plan *mem,
                          traffic_plan *traffic);
