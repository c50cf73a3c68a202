/* asks.h -- what the judge sends to its workers, besides plain arrays. Both are built from one tree
 * and run on one machine, so structs are sent as they are. */
#pragma once
#include "common/sum/grad_acc.h"
#include "lab1_flatparam/flat_param.h"
#include "lab5_prefetch/prefetch.h"

enum { ASK_UNITS = 4, ASK_UNIT_PARAMS = 3 };

typedef struct ask_unit {
    size_t offset[ASK_UNIT_PARAMS], elems[ASK_UNIT_PARAMS], used;
    int n_params;
    bool frozen;
} ask_unit;

/* Units that the worker makes by hand, and how they are sharded over the world. */
typedef struct ask_units {
    ask_unit units[ASK_UNITS];
    sharding_strategy sharding;
    int shard_size; /* ranks of a shard group */
    grad_acc_mode mode;
} ask_units;

/* A model, and how it runs. The last members are read by runs of whole trainings only. */
typedef struct ask_run {
    model_config shape;
    uint64_t seed;
    size_t batch;
    int accum;
    wrap_policy wrap;
    sharding_strategy sharding;
    int shard_size;
    bool trains; /* or one forward pass */
    int steps;
    optimizer_kind optimizer;
    prefetch_config prefetch;
    float lr, clip_norm;
} ask_run;
