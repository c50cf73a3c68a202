/* small_lib.h -- a small GPT-2 through labs 1 and 2, or 1 to 3, on W ranks. It expects nothing: the
 * judge's worker (worker.c) runs it too. */
#pragma once
#include "lab1_flatparam/flat_param.h"
#include "common/data/data.h"
#include "common/model/runner.h"
#include "tests/grade/handmade_lib.h"

enum { MOST_TOKENS = 32 };

typedef struct whole_config {
    const model_config *model; /* GPT-2; its max_seq_len tokens are a sequence */
    uint64_t seed;             /* of weights and data */
    size_t batch;              /* batch sequences have at most MOST_TOKENS tokens */
    int accum;                 /* micro-steps of a step */
    wrap_policy wrap;
    sharding_strategy sharding;
    int fsdp_size; /* ranks of a shard group, under SHARDING_HYBRID */
    bool trains;   /* with lab 3; else forward only */
} whole_config;

typedef struct whole {
    fixture notes; /* compute, comm, verdict and copies only */
    const whole_config *config;
    device *dev;
    comm *comm;
    mesh grid;
    model m;
    corpus data;
    fsdp f;
    reducer r;
    runner *run;
    bool in_step;     /* forward only: the host waits for compute after each unit */
    float *loss;      /* device [1] */
    struct twin *t;   /* whole_lib.h */
    float *twin_grad; /* [param_elems] */
} whole;

/* whole_open, whole_close -- make the model from the seed, and take it apart. */
fsdp_status whole_open(grade *g, const whole_config *config, whole *w);
fsdp_status whole_close(whole *w);
/* whole_leaf -- the number of the `batch` sequences that this rank computes in micro-step a. */
uint64_t whole_leaf(const whole *w, int a);
/* whole_forward -- run a forward pass, and backward if training; waits for *loss. */
fsdp_status whole_forward(whole *w, int a, bool training, float *loss);
/* whole_scale -- what turns the sum of a step's gradients into a mean over tokens. */
float whole_scale(const whole *w);
