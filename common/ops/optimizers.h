/* optimizers.h -- the table of update rules, one row per optimizer_kind. Code that allocates, saves
 * or updates optimizer state reads the row. So a new optimizer needs a row, an operation in ops.h
 * and an option.
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

/* The names of optimizers, and the choices of an option in the order of optimizer_kind. */
#define NAME_ADAMW        "adamw"
#define NAME_SGD          "sgd"
#define NAME_ADADELTA     "adadelta"
#define OPTIMIZER_CHOICES NAME_ADAMW "|" NAME_SGD "|" NAME_ADADELTA

/* Defaults. Those that have no name are 0. */
#define ADAMW_WEIGHT_DECAY 0.1
#define ADAMW_EPS          1e-8
#define ADADELTA_EPS       1e-6

/* The scalars of a step, which all parts share. */
typedef struct optim_scalars {
    optim_config config;
    adamw_args
        adamw; /* grad_coef, which all rules read, and AdamW's scalars; its other members are 0 */
} optim_scalars;

/* optim_scalars_make -- grad_coef: device memory, the factor of all gradients; NULL: 1. */
void optim_scalars_make(const optim_config *c, const float *grad_coef, optim_scalars *out);

/* A run of elements with the same update, in device memory. */
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
    /* Update one part: calls an operation of ops.h (cost and accesses: op_work.h). */
    fsdp_status (*update)(const ops *o, stream *s, const optim_scalars *sc, const optim_part *part);
    double weight_decay, eps; /* defaults */
} optimizer_rule;

/* optimizer_of -- the row of a kind; static. */
const optimizer_rule *optimizer_of(optimizer_kind kind);

/* optim_state_alloc -- allocate the states, [elems] each and zeroed, MEM_OPTIMIZER, on s; if
 * on_host, by device_alloc_host. The caller frees each with device_free, after a failure too.
 * errors: FSDP_ENOMEM. */
fsdp_status optim_state_alloc(stream *s, const optimizer_rule *rule, size_t elems, bool on_host,
                              float *state[OPTIM_MAX_STATES]);

/* optim_adamw -- the arguments of AdamW's update of one part. */
adamw_args optim_adamw(const optim_scalars *sc, const optim_part *part);

EXTERN_C_END
