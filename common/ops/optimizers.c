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
    a.ranges = part->ranges;
    return a;
}

static fsdp_status update_adamw(const ops *o, stream *s, const optim_scalars *sc,
                                const optim_part *part)
{
    const adamw_args a = optim_adamw(sc, part);
    return o->adamw(s, &a);
}

static optim_args update_of(const optim_scalars *sc, const optim_part *part)
{
    const optim_config *c = &sc->config;
    return (optim_args){.param = part->param,
                        .grad = part->grad,
                        .grad_coef = sc->adamw.grad_coef,
                        .elems = part->elems,
                        .state = {part->state[0], part->state[1]},
                        .lr = (float)c->lr,
                        .weight_decay = (float)c->weight_decay,
                        .config = *c,
                        .ranges = part->ranges};
}

#define UPDATE(kind, op, ...)                                                                      \
    static fsdp_status update_##op(const ops *o, stream *s, const optim_scalars *sc,               \
                                   const optim_part *part)                                         \
    {                                                                                              \
        const optim_args a = update_of(sc, part);                                                  \
        return o->op(s, &a);                                                                       \
    }
UPDATE_RULES(UPDATE)

#define ROW(kind, op, betas, reads_eps, eps, n_states, ...)                                        \
    [OPTIMIZER_##kind] = {#op, betas, eps, 0, n_states, __VA_ARGS__, __VA_ARGS__, update_##op},

/* In our checkpoints AdamW's states are named m and v, as in the oldest checkpoints. */
static const optimizer_rule RULES[N_OPTIMIZERS] = {
    [OPTIMIZER_ADAMW] = {"adamw",
                         true,
                         ADAMW_EPS,
                         ADAMW_WEIGHT_DECAY,
                         2,
                         {"m", "v"},
                         {"exp_avg", "exp_avg_sq"},
                         update_adamw},
    [OPTIMIZER_MOMENTUM] = {.name = "sgd with momentum",
                            .n_states = 1,
                            .states = {"momentum_buffer"},
                            .pytorch = {"momentum_buffer"},
                            .update = update_sgd},
    UPDATE_RULES(ROW)};

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
