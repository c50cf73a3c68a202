/* whole_lib.h -- a whole GPT-2 through labs 1 and 2, or 1 to 3, on W ranks, and its unsharded twin;
 * task 3.7. Checks are noted as in a fixture. */
#pragma once
#include "lab1_flatparam/flat_param.h"
#include "tests/equivalence/twin_lib.h"
#include "tests/grade/handmade_lib.h"

enum { WHOLE_SEQ_LEN = 8 };

typedef struct whole_config {
    size_t batch; /* 1, or 2 */
    wrap_policy wrap;
    sharding_strategy sharding;
    int fsdp_size; /* ranks of a shard group, under SHARDING_HYBRID */
    bool trains;   /* with lab 3; else forward only */
} whole_config;

typedef struct whole {
    fixture notes; /* compute, comm, verdict and copies only */
    device *dev;
    comm *comm;
    mesh grid;
    model m;
    corpus data;
    fsdp f;
    reducer r;
    runner *run;
    bool in_step; /* forward only: the host waits for compute after each unit */
    twin t;
    float *loss;      /* device [1] */
    float *twin_grad; /* [param_elems] */
} whole;

fsdp_status whole_run(grade *g, const whole_config *config, fsdp_status (*body)(whole *w));
/* whole_leaf -- the twin's leaf that this rank computes in micro-step a. */
uint64_t whole_leaf(const whole *w, int a);
/* whole_forward -- run a forward pass, and backward if training; waits for *loss. */
fsdp_status whole_forward(whole *w, int a, bool training, float *loss);

fsdp_status task_3_7(grade *g);
/* whole_hybrid -- task 3.7 under HSDP, in shard groups of fsdp_size. */
fsdp_status whole_hybrid(grade *g, int fsdp_size);
