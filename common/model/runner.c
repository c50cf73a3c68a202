/* runner.c -- see runner.h. */
#include "common/base/dtype.h"
#include "common/model/runner.h"
#include <stdlib.h>
#include <string.h>

struct runner {
    runner_config cfg;
    stream *s;
    size_t call_batch, n_calls; /* sequences per call of a layer; calls per micro-step */
    size_t row_elems;           /* elements of one sequence between layers: T*C */
    float **outs;               /* [n_layers] [b,T,C]; the last layer has none */
    float **saved;              /* [n_layers] [n_calls * saved_elems] */
    size_t *saved_elems;        /* [n_layers] of one call */
    float *d_ping, *d_pong;     /* [b,T,C] gradients between layers */
    float *scratch;
    float *leaf_loss;              /* [n_calls] */
    int32_t *tokens, *targets;     /* [b,T] */
    int *first_layer, *last_layer; /* [n_units] in forward order; -1 for a unit without layers */
    grad_acc loss_acc;
};

static size_t max_scratch_elems(const model *m, size_t call_batch, size_t seq_len)
{
    size_t most = 0;
    for (int i = 0; i < m->n_layers; i++) {
        size_t e = m->layers[i].scratch_elems(&m->layers[i], call_batch, seq_len, true);
        most = e > most ? e : most;
    }
    return most;
}

static size_t layer_param_elems(const model *m, const layer *st)
{
    size_t n = 0;
    for (int p = st->first_param; p < st->first_param + st->n_params; p++)
        n += m->params[p].frozen ? 0 : m->params[p].elems;
    return n;
}

static void call_shape(size_t batch, grad_acc_mode mode, size_t *call_batch, size_t *n_calls)
{
    *call_batch = mode == GRAD_ACC_CANONICAL ? 1 : batch;
    *n_calls = mode == GRAD_ACC_CANONICAL ? batch : 1;
}

size_t runner_activation_bytes(const model *m, size_t batch, size_t seq_len, grad_acc_mode mode,
                               dtype param_type)
{
    size_t call_batch, n_calls, row = seq_len * m->config.d_model, rounding = 0;
    call_shape(batch, mode, &call_batch, &n_calls);
    size_t elems = 2 * batch * row + max_scratch_elems(m, call_batch, seq_len) + n_calls;
    for (int i = 0; i < m->n_layers; i++) {
        elems += n_calls * m->layers[i].saved_elems(&m->layers[i], call_batch, seq_len);
        elems += i + 1 < m->n_layers ? batch * row : 0;
        size_t bytes = m->layers[i].rounding_bytes(&m->layers[i], call_batch, seq_len, param_type);
        rounding = bytes > rounding ? bytes : rounding;
    }
    return rounding + elems * sizeof(float) + 2 * batch * seq_len * sizeof(int32_t);
}

size_t runner_leaf_bytes(const model *m, size_t batch, grad_acc_mode mode)
{
    if (mode != GRAD_ACC_CANONICAL || batch == 1)
        return 0;
    size_t most = 0;
    for (int i = 0; i < m->n_layers; i++) {
        size_t e = layer_param_elems(m, &m->layers[i]);
        most = e > most ? e : most;
    }
    return most * (size_t)size_log2_floor(batch) * sizeof(float);
}

/* Which layer uses a unit first and last: where its hooks are called. */
static fsdp_status find_unit_uses(runner *r)
{
    const runner_config *c = &r->cfg;
    r->first_layer = malloc((size_t)c->n_units * sizeof *r->first_layer);
    r->last_layer = malloc((size_t)c->n_units * sizeof *r->last_layer);
    if (!r->first_layer || !r->last_layer)
        return fsdp_error(FSDP_ENOMEM, "", "runner: no host memory");
    for (int u = 0; u < c->n_units; u++)
        r->first_layer[u] = r->last_layer[u] = -1;
    for (int i = 0; i < c->m->n_layers; i++) {
        int u = c->layer_unit[i];
        FSDP_ASSERT(u >= 0 && u < c->n_units);
        if (r->first_layer[u] < 0)
            r->first_layer[u] = i;
        r->last_layer[u] = i;
    }
    return FSDP_OK;
}

static fsdp_status alloc_activations(runner *r)
{
    const model *m = r->cfg.m;
    size_t b = r->cfg.batch, T = r->cfg.seq_len, n = (size_t)m->n_layers;
    r->outs = calloc(n, sizeof *r->outs);
    r->saved = calloc(n, sizeof *r->saved);
    r->saved_elems = calloc(n, sizeof *r->saved_elems);
    if (!r->outs || !r->saved || !r->saved_elems)
        return fsdp_error(FSDP_ENOMEM, "", "runner: no host memory");
    const mem_category cat = MEM_ACTIVATIONS;
    for (size_t i = 0; i < n; i++) {
        const layer *st = &m->layers[i];
        r->saved_elems[i] = st->saved_elems(st, r->call_batch, T);
        TRY(device_alloc_f32(r->s, cat, r->n_calls * r->saved_elems[i], "saved", &r->saved[i]));
        if (i + 1 < n)
            TRY(device_alloc_f32(r->s, cat, b * r->row_elems, "layer output", &r->outs[i]));
    }
    TRY(device_alloc_f32(r->s, cat, b * r->row_elems, "d_ping", &r->d_ping));
    TRY(device_alloc_f32(r->s, cat, b * r->row_elems, "d_pong", &r->d_pong));
    TRY(device_alloc_f32(r->s, cat, max_scratch_elems(m, r->call_batch, T), "scratch",
                         &r->scratch));
    TRY(device_alloc_f32(r->s, cat, r->n_calls, "leaf losses", &r->leaf_loss));
    size_t token_bytes = b * T * sizeof(int32_t);
    TRY(device_alloc(r->s, cat, token_bytes, "tokens", (void **)&r->tokens));
    return device_alloc(r->s, cat, token_bytes, "targets", (void **)&r->targets);
}

fsdp_status runner_create(const runner_config *config, runner **out)
{
    runner *r = calloc(1, sizeof *r);
    if (!r)
        return fsdp_error(FSDP_ENOMEM, "", "runner: no host memory");
    r->cfg = *config;
    r->s = device_compute_stream(config->dev);
    call_shape(config->batch, config->mode, &r->call_batch, &r->n_calls);
    r->row_elems = config->seq_len * config->m->config.d_model;
    grad_acc_init(&r->loss_acc, config->mode, config->ops, 1, MEM_OTHER, "loss");
    fsdp_status status;
    GOTO_ON_FAIL(status, find_unit_uses(r), fail);
    GOTO_ON_FAIL(status, alloc_activations(r), fail);
    *out = r;
    return FSDP_OK;
fail:
    runner_free(r);
    return status;
}

void runner_free(runner *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->cfg.m->n_layers; i++) {
        if (r->outs)
            device_free(r->s, r->outs[i]);
        if (r->saved)
            device_free(r->s, r->saved[i]);
    }
    void *blocks[] = {r->d_ping, r->d_pong, r->scratch, r->leaf_loss, r->tokens, r->targets};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        device_free(r->s, blocks[i]);
    grad_acc_free(&r->loss_acc, r->s);
    free(r->outs);
    free(r->saved);
    free(r->saved_elems);
    free(r->first_layer);
    free(r->last_layer);
    free(r);
}

/* The arguments of call `leaf` of layer i: slices of the micro-batch's arrays. */
static layer_io layer_call(const runner *r, int i, size_t leaf, bool training)
{
    const layer *st = &r->cfg.m->layers[i];
    size_t row = leaf * r->row_elems, tok = leaf * r->cfg.seq_len;
    bool last = i + 1 == r->cfg.m->n_layers;
    return (layer_io){
        .batch = r->call_batch,
        .seq_len = r->cfg.seq_len,
        .in = i > 0 ? r->outs[i - 1] + row : NULL,
        .out = last ? NULL : r->outs[i] + row,
        .tokens = r->tokens + tok,
        .targets = r->targets + tok,
        .saved = r->saved[i] + leaf * r->saved_elems[i],
        .scratch = r->scratch,
        .loss = r->leaf_loss + leaf,
        .params = r->cfg.views->params + st->first_param,
        .param_type = r->cfg.param_type,
        .grads = r->cfg.views->grads + st->first_param,
        .training = training,
    };
}

static fsdp_status call_hook(fsdp_status (*hook)(void *, int), void *self, int unit)
{
    return hook ? hook(self, unit) : FSDP_OK;
}

/* *loss = sum of the calls' losses, leaves numbered by sequence. */
static fsdp_status sum_losses(runner *r, float *loss)
{
    for (size_t leaf = 0; leaf < r->n_calls; leaf++)
        TRY(grad_acc_push(&r->loss_acc, r->s, 0, r->leaf_loss + leaf));
    float *sum;
    TRY(grad_acc_finish(&r->loss_acc, r->s, &sum));
    fsdp_status status = device_copy(r->s, loss, sum, sizeof *loss);
    device_free(r->s, sum);
    return status;
}

fsdp_status runner_forward(runner *r, const int32_t *tokens, const int32_t *targets, bool training,
                           float *loss)
{
    const runner_config *c = &r->cfg;
    size_t token_bytes = c->batch * c->seq_len * sizeof(int32_t);
    TRY(device_upload(r->s, r->tokens, tokens, token_bytes));
    TRY(device_upload(r->s, r->targets, targets, token_bytes));
    for (int i = 0; i < c->m->n_layers; i++) {
        const layer *st = &c->m->layers[i];
        int u = c->layer_unit[i];
        if (i == r->first_layer[u])
            TRY(call_hook(c->hooks.pre_forward, c->hooks.self, u));
        for (size_t leaf = 0; leaf < r->n_calls; leaf++) {
            layer_io io = layer_call(r, i, leaf, training);
            TRY(st->forward(st, c->ops, r->s, &io));
        }
        if (i == r->last_layer[u])
            TRY(call_hook(c->hooks.post_forward, c->hooks.self, u));
    }
    return sum_losses(r, loss);
}

/* Gradient pointers of a layer's own parameters inside one vector, NULL for frozen ones. */
static void point_into(const model *m, const layer *st, float *vec, float **grads)
{
    for (int k = 0; k < st->n_params; k++) {
        const param_spec *p = &m->params[st->first_param + k];
        grads[k] = p->frozen ? NULL : vec;
        vec += p->frozen ? 0 : p->elems;
    }
}

static const bool ALL_OVERWRITTEN[LAYER_MAX_PARAMS] = {
    true, true, true, true, true, true, true, true, true, true, true, true, true, true, true, true};

/* One call of a layer. d_out, d_in: of the whole micro-batch. */
static fsdp_status call_backward(runner *r, int i, size_t leaf, const float *d_out, float *d_in,
                                 float *const *grads, const bool *overwrite)
{
    const layer *st = &r->cfg.m->layers[i];
    layer_io io = layer_call(r, i, leaf, true);
    io.d_out = d_out ? d_out + leaf * r->row_elems : NULL;
    io.d_in = d_in ? d_in + leaf * r->row_elems : NULL;
    io.grads = grads;
    io.overwrite = overwrite;
    return st->backward(st, r->cfg.ops, r->s, &io);
}

/* What the leaves of one node of the tree are added into, and where the gradients between layers
 * are. */
typedef struct leaf_node {
    int layer;
    size_t first, n; /* leaves; n is a power of two */
    const float *d_out;
    float *d_in;
} leaf_node;

/* grads = the node's sum: its left half goes there, its right half into memory of its own, which is
 * then added. So the leftmost leaf is computed in place, and nothing is zeroed or copied. */
static fsdp_status sum_leaves(runner *r, const leaf_node *node, float *const *grads)
{
    const model *m = r->cfg.m;
    const layer *st = &m->layers[node->layer];
    if (node->n == 1)
        return call_backward(r, node->layer, node->first, node->d_out, node->d_in, grads,
                             ALL_OVERWRITTEN);
    leaf_node left = *node, right = *node;
    left.n = right.n = node->n / 2;
    right.first += left.n;
    TRY(sum_leaves(r, &left, grads));
    float *vec, *part[LAYER_MAX_PARAMS];
    TRY(device_alloc_f32(r->s, MEM_GRADS_FULL, layer_param_elems(m, st), "leaf gradients", &vec));
    point_into(m, st, vec, part);
    fsdp_status status = sum_leaves(r, &right, part);
    for (int k = 0; k < st->n_params && status == FSDP_OK; k++)
        if (grads[k] && part[k])
            status =
                r->cfg.ops->add(r->s, &(add_args){.out = grads[k],
                                                  .a = grads[k],
                                                  .b = part[k],
                                                  .elems = m->params[st->first_param + k].elems,
                                                  .round_to = r->cfg.reduce_type});
    device_free(r->s, vec);
    return status;
}

/* A tied parameter's view may be shared with a layer that comes later in the model, whose backward
 * has been before: then there is something to add to. */
static void find_overwrites(const runner *r, const layer *st, bool *overwrite)
{
    const model *m = r->cfg.m;
    float **grads = r->cfg.views->grads;
    for (int k = 0; k < st->n_params; k++) {
        int p = st->first_param + k;
        overwrite[k] = true;
        for (int q = st->first_param + st->n_params; q < m->n_params; q++)
            if (m->params[q].tied_to == p && grads[q] == grads[p])
                overwrite[k] = false;
    }
}

static fsdp_status layer_backward(runner *r, int i, const float *d_out, float *d_in)
{
    const layer *st = &r->cfg.m->layers[i];
    float *const *grads = r->cfg.views->grads + st->first_param;
    if (r->cfg.mode == GRAD_ACC_CANONICAL) {
        leaf_node all = {.layer = i, .n = r->n_calls, .d_out = d_out, .d_in = d_in};
        return sum_leaves(r, &all, grads);
    }
    bool overwrite[LAYER_MAX_PARAMS];
    find_overwrites(r, st, overwrite);
    return call_backward(r, i, 0, d_out, d_in, grads, overwrite);
}

fsdp_status runner_backward(runner *r)
{
    const runner_config *c = &r->cfg;
    float *d_out = NULL, *d_in = r->d_ping;
    for (int i = c->m->n_layers - 1; i >= 0; i--) {
        int u = c->layer_unit[i];
        if (i == r->last_layer[u])
            TRY(call_hook(c->hooks.pre_backward, c->hooks.self, u));
        TRY(layer_backward(r, i, d_out, i > 0 ? d_in : NULL));
        if (i == r->first_layer[u])
            TRY(call_hook(c->hooks.post_backward, c->hooks.self, u));
        d_out = d_in;
        d_in = d_in == r->d_ping ? r->d_pong : r->d_ping;
    }
    return c->hooks.end_backward ? c->hooks.end_backward(c->hooks.self) : FSDP_OK;
}
