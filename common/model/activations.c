/* activations.c -- allocates the memory of a micro-batch (activations, scratch, inputs), and runs
 * the forward functions of layers in it. */
#include <stdlib.h>
#include "common/base/dtype.h"
#include "common/model/runner_impl.h"

/* Find the layers around which the hooks of each unit are called. */
static fsdp_status find_unit_uses(runner *r)
{
    const runner_config *c = &r->cfg;
    r->first_layer = malloc(4 * (size_t)c->n_units * sizeof *r->first_layer);
    if (!r->first_layer)
        return fsdp_error(FSDP_ENOMEM, "", "runner: no host memory");
    r->last_layer = r->first_layer + c->n_units;
    r->begin_layer = r->last_layer + c->n_units;
    r->end_layer = r->begin_layer + c->n_units;
    r->border = model_border(c->run.m);
    if (c->run.forward_only)
        r->border = c->run.m->n_layers;
    for (int u = 0; u < 4 * c->n_units; u++)
        r->first_layer[u] = -1; /* fills all four lists */
    for (int i = 0; i < c->run.m->n_layers; i++) {
        int u = c->layer_unit[i];
        FSDP_ASSERT(u >= 0 && u < c->n_units);
        if (r->first_layer[u] < 0)
            r->first_layer[u] = i;
        if (r->end_layer[u] < 0 && i >= r->border)
            r->end_layer[u] = i;
        r->last_layer[u] = i;
        if (i >= r->border)
            r->begin_layer[u] = i;
    }
    return FSDP_OK;
}

/* Whether layer i has its own memory for what it saves. Layers before the border have no backward,
 * so they keep nothing. */
static bool owns_saved(const runner *r, int i)
{
    return i >= r->border && !runner_in_segment(r, i);
}

/* Whether layer i has its own memory for its output. Before the border, only the next layer reads
 * the output, so it is in d_ping or d_pong. */
static bool owns_out(const runner *r, int i)
{
    return i + 1 >= r->border && i + 1 < r->cfg.run.m->n_layers && !runner_goes_on(r, i);
}

/* Elements of the output of layer i for a leaf, or of this rank's part of the tokens. */
static size_t out_elems(const runner *r, int i)
{
    const model *m = r->cfg.run.m;
    return r->leaf_batch * (r->cfg.run.seq_len / m->token_parts) * m->layers[i].out_width;
}

/* Whether the outputs of layer i for all leaves are one array without gaps. */
static bool without_gaps(const runner *r, int i)
{
    const run_context *run = &r->cfg.run;
    return r->out_bytes[i] == out_elems(r, i) * dtype_bytes(run->param_dtype);
}

/* runner.calls of layer i. */
static size_t calls_of(const runner *r, int i)
{
    const run_context *run = &r->cfg.run;
    const bool chunked = run->m->chunk_rows > 0 && i + 1 == run->m->n_layers;
    const bool sums = run->m->layers[i].sums_leaves && run->ops->leaves_sum != NULL &&
                      run->ops->leaves_sum(run->param_dtype);
    return sums && !chunked && run->reduce_dtype == DTYPE_F32 && without_gaps(r, i) &&
                   (i == 0 || without_gaps(r, i - 1))
               ? 1
               : r->n_leaves;
}

/* *scratch_bytes: the most that any layer needs. A pass that keeps nothing saves in scratch. */
static fsdp_status alloc_layers(runner *r, size_t *scratch_bytes)
{
    const run_context *run = &r->cfg.run;
    *scratch_bytes = 0;
    for (int i = 0; i < run->m->n_layers; i++) {
        const layer *l = &run->m->layers[i];
        const size_t calls = r->calls[i] = calls_of(r, i), bytes = r->n_leaves * r->out_bytes[i];
        const layer_bytes need = l->bytes(l, run->batch / calls * run->seq_len, run->param_dtype);
        *scratch_bytes = need.scratch > *scratch_bytes ? need.scratch : *scratch_bytes;
        r->saved_bytes[i] = need.saved;
        if (owns_saved(r, i))
            TRY(runner_alloc(r, calls * need.saved, "saved", &r->saved[i]));
        else
            *scratch_bytes = need.saved > *scratch_bytes ? need.saved : *scratch_bytes;
        if (i + 1 < r->border)
            r->outs[i] = i % 2 ? r->d_pong : r->d_ping; /* unused until backward */
        else if (owns_out(r, i))
            TRY(runner_alloc(r, bytes, "layer output", &r->outs[i]));
    }
    return runner_alloc_segments(r);
}

static size_t kind_bytes(const runner *r, array_kind kind)
{
    return kind == ARRAY_VALUES ? dtype_bytes(r->cfg.run.param_dtype) : sizeof(float);
}

/* Bytes of the model's input, for one sample. */
static size_t input_bytes(const runner *r)
{
    const array_spec *in = &r->cfg.run.m->input;
    return r->cfg.run.seq_len * in->width * kind_bytes(r, in->kind);
}

/* Bytes of the output of layer i for a leaf. */
static size_t output_bytes(const runner *r, int i)
{
    return size_round_up(out_elems(r, i) * kind_bytes(r, ARRAY_VALUES), LAYER_ALIGN_BYTES);
}

static fsdp_status alloc_inputs(runner *r)
{
    const run_context *run = &r->cfg.run;
    const array_spec *in = &run->m->input;
    void *targets;
    TRY(device_alloc(r->s, MEM_ACTIVATIONS, run->batch * input_bytes(r), in->name, &r->inputs));
    TRY(device_alloc(r->s, MEM_ACTIVATIONS, run->batch * run->seq_len * sizeof *r->targets,
                     "targets", &targets));
    r->targets = targets;
    return FSDP_OK;
}

static fsdp_status alloc_activations(runner *r)
{
    const run_context *run = &r->cfg.run;
    const model *m = run->m;
    const bool by_leaf = run->mode == GRAD_ACC_CANONICAL;
    r->leaf_batch = by_leaf ? 1 : run->batch;
    r->n_leaves = by_leaf ? run->batch : 1;
    const size_t n = (size_t)m->n_layers;
    r->out_bytes = calloc(n, sizeof *r->out_bytes);
    r->outs = calloc(n, sizeof *r->outs);
    r->saved = calloc(n, sizeof *r->saved);
    r->saved_bytes = calloc(n, sizeof *r->saved_bytes);
    r->calls = calloc(n, sizeof *r->calls);
    if (!r->out_bytes || !r->outs || !r->saved || !r->saved_bytes || !r->calls)
        return fsdp_error(FSDP_ENOMEM, "", "runner: no host memory");
    const mem_category cat = MEM_ACTIVATIONS;
    size_t scratch_bytes, most = 0;
    for (int i = 0; i < m->n_layers; i++) {
        r->out_bytes[i] = output_bytes(r, i);
        most = r->out_bytes[i] > most ? r->out_bytes[i] : most;
    }
    TRY(runner_alloc(r, r->n_leaves * most, "d_ping", &r->d_ping)); /* or the embedding's output */
    TRY(runner_alloc(r, r->n_leaves * most, "d_pong", &r->d_pong));
    TRY(alloc_layers(r, &scratch_bytes));
    TRY(runner_alloc(r, scratch_bytes, "scratch", &r->scratch));
    TRY(device_alloc_f32(r->s, cat, r->n_leaves, "leaf losses", &r->leaf_loss));
    return alloc_inputs(r);
}

fsdp_status runner_create(const runner_config *config, runner **out)
{
    runner *r = calloc(1, sizeof *r);
    if (!r)
        return fsdp_error(FSDP_ENOMEM, "", "runner: no host memory");
    r->cfg = *config;
    const run_context *run = &config->run;
    r->s = device_compute_stream(run->dev);
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
    device_set_scope(r->cfg.run.dev, NULL, NULL); /* the layers' names may be freed now */
    for (int i = 0; i < r->cfg.run.m->n_layers; i++) {
        if (r->outs && owns_out(r, i))
            device_free(r->s, r->outs[i]);
        if (r->saved && owns_saved(r, i))
            device_free(r->s, r->saved[i]);
    }
    void *blocks[] = {r->d_ping,       r->d_pong,    r->scratch, r->shared_outs,
                      r->shared_saved, r->leaf_loss, r->inputs,  r->targets};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        device_free(r->s, blocks[i]);
    grad_acc_free(&r->loss_acc, r->s);
    free(r->out_bytes);
    free(r->outs);
    free(r->saved);
    free(r->saved_bytes);
    free(r->calls);
    free(r->first_layer); /* the other lists are in this block */
    free(r);
}

fsdp_status runner_load(runner *r, const micro_step *ms)
{
    const size_t positions = r->cfg.run.batch * r->cfg.run.seq_len;
    TRY(device_upload(r->s, r->inputs, ms->inputs, r->cfg.run.batch * input_bytes(r)));
    return device_upload(r->s, r->targets, ms->targets, positions * sizeof *r->targets);
}

layer_io runner_call(const runner *r, int i, size_t call, runner_pass pass)
{
    const bool drops = pass == PASS_TRAINS && !owns_saved(r, i);
    const layer *l = &r->cfg.run.m->layers[i];
    const size_t leaves = r->n_leaves / r->calls[i], leaf = call * leaves;
    const size_t batch = leaves * r->leaf_batch, first = call * batch, T = r->cfg.run.seq_len;
    const size_t logits = T * r->cfg.run.m->config.vocab_size * kind_bytes(r, ARRAY_VALUES);
    return (layer_io){
        .batch = batch,
        .seq_len = T,
        .leaves = leaves,
        .type = r->cfg.run.param_dtype,
        .in = i > 0 ? runner_slice(r->outs[i - 1], leaf, r->out_bytes[i - 1])
                    : (char *)r->inputs + first * input_bytes(r),
        .out = runner_slice(r->outs[i], leaf, r->out_bytes[i]),
        .targets = r->targets + first * T,
        .saved = drops ? NULL : runner_slice(r->saved[i], call, r->saved_bytes[i]),
        .scratch = r->scratch,
        .loss = r->leaf_loss + leaf,
        .logits = i + 1 < r->cfg.run.m->n_layers ? NULL : runner_slice(r->ms.logits, first, logits),
        .tp = r->cfg.run.tp,
        .kv = r->cfg.run.kv,
        .seed = r->cfg.run.seed,
        .first_sample = r->ms.first_sample + first,
        .params = r->cfg.views->params + l->first_param,
        .grads = r->cfg.views->grads + l->first_param,
        .training = pass != PASS_EVALUATES,
        .keeps = pass != PASS_EVALUATES && !drops,
    };
}

const void *runner_output(const runner *r, int i, size_t j, dtype *type, size_t *elems)
{
    const run_context *run = &r->cfg.run;
    const size_t leaf = j / r->leaf_batch, place = j % r->leaf_batch;
    if (i + 1 == run->m->n_layers) {
        *type = DTYPE_F32;
        *elems = place == 0;
        return r->leaf_loss + leaf;
    }
    *type = run->param_dtype;
    *elems = out_elems(r, i) / r->leaf_batch;
    return (const char *)runner_slice(r->outs[i], leaf, r->out_bytes[i]) +
           place * *elems * dtype_bytes(*type);
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
    for (size_t call = 0; call < r->calls[i]; call++) {
        layer_io io = runner_call(r, i, call, training ? PASS_TRAINS : PASS_EVALUATES);
        TRY(l->forward(l, r->cfg.run.ops, r->s, &io));
    }
    return runner_unit_done(r, i, r->last_layer);
}

fsdp_status runner_layer_again(runner *r, int i, bool wants_out)
{
    const layer *l = &r->cfg.run.m->layers[i];
    device_set_scope(r->cfg.run.dev, l->name, "recompute");
    for (size_t call = 0; call < r->calls[i]; call++) {
        layer_io io = runner_call(r, i, call, PASS_AGAIN);
        if (!wants_out)
            io.out = NULL;
        TRY(l->forward(l, r->cfg.run.ops, r->s, &io));
    }
    return FSDP_OK;
}
