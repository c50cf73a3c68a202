/* update_rules.h -- the update rules besides AdamW (optim.h): their arguments, their formulas and
 * their rows, from which optimizers.h makes its table. All arrays are in device memory. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/ops/optim.h"

enum { OPTIM_MAX_STATES = 2 };

/* The parameters of a step's update, from options and schedule, for every optimizer. */
typedef struct optim_config {
    double lr, weight_decay, eps;
    double beta1, beta2, momentum, rho;
    bool nesterov;
    int64_t step; /* from 0 */
} optim_config;

/* An update by a rule of UPDATE_RULES, one pass, element-wise. */
typedef struct optim_args {
    float *param;
    const float *grad, *grad_coef; /* grad_coef NULL: 1 */
    size_t elems;
    float *state[OPTIM_MAX_STATES];
    float lr, weight_decay; /* weight_decay: 0 for tensors that do not decay */
    optim_config config;    /* the rule's other numbers, each rounded to fp32 once */
    range_table ranges;     /* of the elems */
} optim_args;

/* The update rules besides AdamW, by their names in --optimizer. Each begins with
 *   g = grad * (*grad_coef) + weight_decay * p
 *
 * sgd: torch.optim.SGD without dampening
 *   b = momentum * b + g; g = b, or with nesterov g + momentum * b      unless state[0] is NULL
 *   p = p - lr * g
 * The first step sets b = g, as in PyTorch.
 *
 * adadelta: torch.optim.Adadelta [Adadelta alg. 1]
 *   square_avg = rho * square_avg + (1 - rho) * (g*g)
 *   delta = sqrt(acc_delta + eps) / sqrt(square_avg + eps) * g     with the old acc_delta
 *   acc_delta = rho * acc_delta + (1 - rho) * (delta*delta)
 *   p = p - lr * delta
 *
 * RULE(KIND, op, betas, reads_eps, eps, n_states, states):
 *   betas, reads_eps   1: the rule reads --beta1 and --beta2, or --eps; else 0
 *   eps                default of --eps
 *   states             their names in our checkpoints and in PyTorch */
#define UPDATE_RULES(RULE)                                                                         \
    RULE(SGD, sgd, 0, 0, 0, 0, {NULL})                                                             \
    RULE(ADADELTA, adadelta, 0, 1, 1e-6, 2, {"square_avg", "acc_delta"})

#define UPDATE_ARGS(kind, op, ...) typedef optim_args op##_args;
UPDATE_RULES(UPDATE_ARGS)
#undef UPDATE_ARGS
