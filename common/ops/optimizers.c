/* optimizers.c -- see optimizers.h. */
#include "common/ops/optimizers.h"
#include "common/device/device.h"

void optim_scalars_make(const optim_config *c, const float *grad_coef, optim_scalars *out)
{
    *out = (optim_scalars){.config = *c, .adamw = {.grad_coef = grad_coef}};
    adamw_scalars(&out->adamw, c);
}

adamw_args optim_adamw(const optim_scalars *sc, const optim_part *part)
{
    adamw_args a = sc->adamw;
    a.param = part->param;
    a.m = part->state[0];
    a.v = part->state[1];
    a.grad = part->grad;
    a.elems = part->elems;
    a.decay = part->decay ? a.decay : 0.0f;
    return a;
}

static fsdp_status update_adamw(const ops *o, stream *s, const optim_scalars *sc,
                                const optim_part *part)
{
    const adamw_args a = optim_adamw(sc, part);
    return o->adamw(s, &a);
}

static fsdp_status update_sgd(const ops *o, stream *s, const optim_scalars *sc,
                              const optim_part *part)
{
    const optim_config *c = &sc->config;
    return o->sgd(s, &(sgd_args){.param = part->param,
                                 .momentum_buffer = part->state[0],
                                 .grad = part->grad,
                                 .grad_coef = sc->adamw.grad_coef,
                                 .elems = part->elems,
                                 .lr = (float)c->lr,
                                 .weight_decay = part->decay ? (float)c->weight_decay : 0.0f,
                                 .momentum = (float)c->momentum,
                                 .nesterov = c->nesterov});
}

static fsdp_status update_adadelta(const ops *o, stream *s, const optim_scalars *sc,
                                   const optim_part *part)
{
    const optim_config *c = &sc->config;
    return o->adadelta(s,
                       &(adadelta_args){.param = part->param,
                                        .square_avg = part->state[0],
                                        .acc_delta = part->state[1],
                                        .grad = part->grad,
                                        .grad_coef = sc->adamw.grad_coef,
                                        .elems = part->elems,
                                        .lr = (float)c->lr,
                                        .weight_decay = part->decay ? (float)c->weight_decay : 0.0f,
                                        .rho = (float)c->rho,
                                        .one_minus_rho = (float)(1.0 - c->rho),
                                        .eps = (float)c->eps});
}

/* In our checkpoints AdamW's states are named m and v, as in the oldest checkpoints. */
/* clang-format off */
static const optimizer_rule RULES[] = {
    [OPTIMIZER_ADAMW] = {NAME_ADAMW, 2, {"m", "v"}, {"exp_avg", "exp_avg_sq"}, update_adamw,
                         ADAMW_WEIGHT_DECAY, ADAMW_EPS},
    [OPTIMIZER_SGD] = {.name = NAME_SGD, .update = update_sgd},
    [OPTIMIZER_ADADELTA] = {NAME_ADADELTA, 2, {"square_avg", "acc_delta"}, {"square_avg", "acc_delta"},
                            update_adadelta, .eps = ADADELTA_EPS},
    [OPTIMIZER_MOMENTUM] = {NAME_SGD " with momentum", 1, {"momentum_buffer"}, {"momentum_buffer"}, update_sgd},
};
/* clang-format on */

const optimizer_rule *optimizer_of(optimizer_kind kind)
{
    return &RULES[kind];
}

fsdp_status optim_state_alloc(stream *s, const optimizer_rule *rule, size_t elems, bool on_host,
                              float *state[OPTIM_MAX_STATES])
{
    for (int k = 0; k < rule->n_states; k++) {
        TRY((on_host ? device_alloc_host_f32 : device_alloc_f32)(s, MEM_OPTIMIZER, elems,
                                                                 rule->pytorch[k], &state[k]));
        TRY(device_zero(s, state[k], elems * sizeof **state));
    }
    return FSDP_OK;
}
