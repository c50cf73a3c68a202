/* optimizers.h -- the table of update rules, one row per optimizer_kind. Code that allocates, saves
 * or updates optimizer state reads the row. A new rule needs a formula and a row in update_rules.h,
 * a row of op_list.h, and a function in row_elem.h.
 *
 *   per step:  optim_scalars_make -> optimizer_of(kind)->update, for each part of the model */
#pragma once
#include "common/ops/ops.h"

EXTERN_C_BEGIN

/* clang-format off */
#define KIND(kind, ...) OPTIMIZER_##kind,
typedef enum optimizer_kind {
    OPTIMIZER_ADAMW,
    UPDATE_RULES(KIND)
    OPTIMIZER_MOMENTUM, /* SGD with momentum, Nesterov's or plain; OPTIMIZER_SGD has none */
    N_OPTIMIZERS
} optimizer_kind;
#undef KIND
/* clang-format on */

/* The choices of --optimizer, in the order of optimizer_kind. */
#define OPTIMIZER_CHOICE(kind, op, ...) "|" #op
#define OPTIMIZER_CHOICES               "adamw" UPDATE_RULES(OPTIMIZER_CHOICE)

/* The defaults of AdamW. */
#define ADAMW_WEIGHT_DECAY 0.1
#define ADAMW_EPS          1e-8

/* The scalars of a step, which all parts share. */
typedef struct optim_scalars {
    optim_config config;
    adamw_args
        adamw; /* grad_coef, which all rules read, and AdamW's scalars; its other members are 0 */
} optim_scalars;

/* optim_scalars_make -- grad_coef: device memory, the factor of all gradients; NULL: 1. */
void optim_scalars_make(const optim_config *c, const float *grad_coef, optim_scalars *out);

/* Elements of arrays in device memory. */
typedef struct optim_part {
    float *param;
    float *state[OPTIM_MAX_STATES]; /* NULL from n_states on */
    const float *grad;
    size_t elems;
    range_table ranges; /* of the elems */
} optim_part;

typedef struct optimizer_rule {
    const char *name;         /* in checkpoints */
    bool betas;               /* whether the rule reads --beta1 and --beta2 */
    double eps, weight_decay; /* defaults; eps 0: the rule has no --eps */
    int n_states;             /* arrays as long as the parameters, zero before the first step */
    const char *states[OPTIM_MAX_STATES];  /* [n_states] their names in checkpoints */
    const char *pytorch[OPTIM_MAX_STATES]; /* [n_states] their names in PyTorch, for exports */
    /* Update one part: calls an operation of ops.h (cost and accesses: op_work.h). */
    fsdp_status (*update)(const ops *o, stream *s, const optim_scalars *sc, const optim_part *part);
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
