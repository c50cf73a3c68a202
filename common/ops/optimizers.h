/* optimizers.h -- the update rules: a row each, by optimizer_kind. All that holds, saves or updates
 * the state of an optimizer goes by its row, so a new one needs a row, an operation of ops.h and an
 * option.
 *
 *   per step:  optim_scalars_make -> optimizer_of(kind)->update, for each part of the model */
#pragma once
#include "common/ops/ops.h"

EXTERN_C_BEGIN

enum { OPTIM_MAX_STATES = 2 };

typedef enum optimizer_kind {
    OPTIMIZER_ADAMW,
    OPTIMIZER_SGD, /* no momentum */
    OPTIMIZER_ADADELTA,
    OPTIMIZER_MOMENTUM /* SGD with momentum, Nesterov's or plain */
} optimizer_kind;

/* What all parts share in a step. */
typedef struct optim_scalars {
    optim_config config;
    adamw_args
        adamw; /* grad_coef, and AdamW's scalars, which take time to form; the rest is zero */
} optim_scalars;

/* optim_scalars_make -- grad_coef: device memory, what gradients are multiplied by; NULL: 1. */
void optim_scalars_make(const optim_config *c, const float *grad_coef, optim_scalars *out);

/* A run of elements that are updated alike, in device memory. */
typedef struct optim_part {
    float *param;
    float *state[OPTIM_MAX_STATES]; /* NULL from n_states on */
    const float *grad;
    size_t elems;
    bool decay; /* weight decay applies */
} optim_part;

typedef struct optimizer_rule {
    const char *name; /* in checkpoints */
    int n_states;     /* arrays as long as the parameters, zero before the first step */
    const char *states[OPTIM_MAX_STATES];  /* [n_states] their names in checkpoints */
    const char *pytorch[OPTIM_MAX_STATES]; /* [n_states] their names in PyTorch, for exports */
    /* One step of one part: an operation of ops.h, whose cost and accesses op_work.h has. */
    fsdp_status (*update)(const ops *o, stream *s, const optim_scalars *sc, const optim_part *part);
} optimizer_rule;

/* optimizer_of -- the row of a kind; static. */
const optimizer_rule *optimizer_of(optimizer_kind kind);

/* optim_state_alloc -- the zeroed states [elems] of elems parameters, MEM_OPTIMIZER, on s; by
 * device_alloc_host with on_host. The caller frees each with device_free, after a failure too.
 * errors: FSDP_ENOMEM. */
fsdp_status optim_state_alloc(stream *s, const optimizer_rule *rule, size_t elems, bool on_host,
                              float *state[OPTIM_MAX_STATES]);

/* optim_adamw -- the arguments of AdamW's update of one part. */
adamw_args optim_adamw(const optim_scalars *sc, const optim_part *part);

EXTERN_C_END
