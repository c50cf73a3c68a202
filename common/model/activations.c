/* activations.c -- what a micro-batch computes on (activations, scratch, tokens), and the calls of
 * a layer on it. */
#include <stdlib.h>
#include "common/base/dtype.h"
#include "common/model/runner_impl.h"

static size_t max_scratch_elems(const model *m, size_t call_batch, size_t seq_len)
{
    size_t most = 0;
    for (int i = 0; i < m->n_layers; i++) {
        size_t e = m->layers[i].scratch_elems(&m->layers[i], call_batch, seq_len, true);
        most = e > most ? e : most;
    }
    return most;
}

static void call_shape(const run_context *run, size_t *call_batch, size_t *n_calls)
{
    bool by_leaf = run->mode == GRAD_ACC_CANONICAL;
    *call_batch = by_leaf ? 1 : run->batch;
    *n_calls = by_leaf ? run->batch : 1;
}

size_t runner_activation_bytes(const run_context *run)
{
    const model *m = run->m;
    size_t b = run->batch, T = run->seq_len, row = T * m->config.d_model, rounding = 0;
    size_t call_batch, n_calls;
    call_shape(run, &call_batch, &n_calls);
    size_t elems = 2 * b * row + max_scratch_elems(m, call_batch, T) + n_calls;
    for (int i = 0; i < m->n_layers; i++) {
        const layer *l = &m->layers[i];
        elems += n_calls * l->saved_elems(l, call_batch, T);
        elems += i + 1 < m->n_layers ? b * row : 0;
        size_t bytes = l->rounding_bytes(l, call_batch, T, run->param_dtype);
        rounding = bytes > rounding ? bytes : rounding;
    }
    return rounding + elems * sizeof(float) + 2 * b * T * sizeof(int32_t);
}

/* Find the first and the last layer of each unit: its hooks are called around them. */
static fsdp_status find_unit_uses(runner *r)
{
    const runner_config *c = &r->cfg;
    r->first_layer = malloc((size_t)c->n_units * sizeof *r->first_layer);
    r->last_layer = malloc((size_t)c->n_units * sizeof *r->last_layer);
    if (!r->first_layer || !r->last_layer)
        return fsdp_error(FSDP_ENOMEM, "", "runner: no host memory");
    for (int u = 0; u < c->n_units; u++)
        r->first_layer[u] = r->last_layer[u] = -1;
    for (int i = 0; i < c->run.m->n_layers; i++) {
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
    const model *m = r->cfg.run.m;
    size_t b = r->cfg.run.batch, T = r->cfg.run.seq_len, n = (size_t)m->n_layers;
    r->outs = calloc(n, sizeof *r->outs);
    r->saved = calloc(n, sizeof *r->saved);
    r->saved_elems = calloc(n, sizeof *r->saved_elems);
    if (!r->outs || !r->saved || !r->saved_elems)
        return fsdp_error(FSDP_ENOMEM, "", "runner: no host memory");
    const mem_category cat = MEM_ACTIVATIONS;
    for (size_t i = 0; i < n; i++) {
        const layer *l = &m->layers[i];
        r->saved_elems[i] = l->saved_elems(l, r->call_batch, T);
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
    const run_context *run = &config->run;
    r->s = device_compute_stream(run->dev);
    call_shape(run, &r->call_batch, &r->n_calls);
    r->row_elems = run->seq_len * run->m->config.d_model;
    grad_acc_init(&r->loss_acc, run->mode, run->ops->sums, 1, MEM_OTHER, "loss");
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
    for (int i = 0; i < r->cfg.run.m->n_layers; i++) {
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

fsdp_status runner_load(runner *r, const micro_step *ms)
{
    size_t token_bytes = r->cfg.run.batch * r->cfg.run.seq_len * sizeof(int32_t);
    TRY(device_upload(r->s, r->tokens, ms->tokens, token_bytes));
    return device_upload(r->s, r->targets, ms->targets, token_bytes);
}

layer_io runner_call(const runner *r, int i, size_t leaf, bool training)
{
    const layer *l = &r->cfg.run.m->layers[i];
    size_t row = leaf * r->row_elems, tok = leaf * r->cfg.run.seq_len;
    bool last = i + 1 == r->cfg.run.m->n_layers;
    return (layer_io){
        .batch = r->call_batch,
        .seq_len = r->cfg.run.seq_len,
        .in = i > 0 ? r->outs[i - 1] + row : NULL,
        .out = last ? NULL : r->outs[i] + row,
        .tokens = r->tokens + tok,
        .targets = r->targets + tok,
        .saved = r->saved[i] + leaf * r->saved_elems[i],
        .scratch = r->scratch,
        .loss = r->leaf_loss + leaf,
        .params = r->cfg.views->params + l->first_param,
        .param_type = r->cfg.run.param_dtype,
        .grads = r->cfg.views->grads + l->first_param,
        .training = training,
    };
}

fsdp_status runner_unit_done(runner *r, int i, const int *last)
{
    bool waits = r->cfg.host_sync && last[r->cfg.layer_unit[i]] == i;
    return waits ? stream_sync(r->s) : FSDP_OK;
}

fsdp_status runner_layer_forward(runner *r, int i, bool training)
{
    const layer *l = &r->cfg.run.m->layers[i];
    device_set_scope(r->cfg.run.dev, l->name, "forward");
    for (size_t leaf = 0; leaf < r->n_calls; leaf++) {
        layer_io io = runner_call(r, i, leaf, training);
        TRY(l->forward(l, r->cfg.run.ops, r->s, &io));
    }
    return runner_unit_done(r, i, r->last_layer);
}
