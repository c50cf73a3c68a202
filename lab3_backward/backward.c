/* reduce.c -- tasks 3.2, 3.3, 3.4: reduce-scatter a unit's gradient, finish it, clear it. */
#include "lab3_backward/backward.h"

fsdp_status reduce_begin(reducer *b, int u)
{
    fsdp *f = b->f;
    unit_grad *g = &b->grads[u];
    if (g->reducing || !g->buffers[0].full_grad)
        return fsdp_error(FSDP_ESTATE,
                          "pair every reduce_begin with a backward_pre_hook and a reduce_wait",
                          "reduce_begin: unit %d (%s) %s", u, f->units[u].name,
                          g->reducing ? "is reducing already" : "has no gradient memory");
    /* SOLUTION BEGIN 3.2 */
    TRY(event_record(g->computed, f->compute));
    TRY(stream_wait_event(f->comm_stream, g->computed));
    g->reducing = true;
    for (int k = 0; k < g->n_buffers; k++) {
        grad_buffer *buffer = &g->buffers[k];
        if (buffer->slice_elems)
            TRY(comm_reduce_scatterv(f->config.comm, f->comm_stream, f->units[u].name,
                                     buffer->full_grad, buffer->slice_elems, &buffer->acc,
                                     b->level));
        else
            TRY(comm_reduce_scatter(f->config.comm, f->comm_stream, f->units[u].name,
                                    buffer->full_grad, f->units[u].layout.shard_elems, &buffer->acc,
                                    b->level));
    }
    return event_record(g->reduced, f->comm_stream);
    /* SOLUTION END 3.2 */
}

fsdp_status reduce_wait(reducer *b, int u)
{
    fsdp *f = b->f;
    unit_grad *g = &b->grads[u];
    if (!g->reducing)
        return FSDP_OK;
    /* SOLUTION BEGIN 3.2 */
    TRY(stream_wait_event(f->compute, g->reduced));
    g->reducing = false;
    for (int k = 0; k < g->n_buffers; k++) {
        device_free(f->compute, g->buffers[k].full_grad);
        g->buffers[k].full_grad = NULL;
    }
    grad_views_bind(b, u); /* now NULL: nobody adds to freed memory */
    return FSDP_OK;
    /* SOLUTION END 3.2 */
}

fsdp_status grad_finish(reducer *b, int u, float scale)
{
    fsdp *f = b->f;
    const ops *o = f->config.ops;
    const flat_layout *l = &f->units[u].layout;
    unit_grad *g = &b->grads[u];
    /* SOLUTION BEGIN 3.3 */
    TRY(grad_acc_finish(&g->buffers[0].acc, f->compute, &g->shard_grad));
    for (int k = 1; k < g->n_buffers; k++) {
        grad_buffer *buffer = &g->buffers[k];
        float *mine = g->shard_grad + buffer->shard_begin, *second;
        TRY(grad_acc_finish(&buffer->acc, f->compute, &second));
        TRY(o->add(f->compute,
                   &(add_args){.out = mine, .a = mine, .b = second, .elems = buffer->acc.elems}));
        device_free(f->compute, second);
    }
    TRY(o->scale(f->compute,
                 &(scale_args){.x = g->shard_grad, .factor = scale, .elems = l->shard_elems}));
    size_t begin = (size_t)comm_rank(f->config.comm) * l->shard_elems;
    size_t real = l->used_elems > begin ? l->used_elems - begin : 0;
    if (real >= l->shard_elems)
        return FSDP_OK;
    return device_zero(f->compute, g->shard_grad + real, (l->shard_elems - real) * sizeof(float));
    /* SOLUTION END 3.3 */
}

fsdp_status zero_grad(reducer *b)
{
    for (int u = 0; u < b->f->n_units; u++)
        if (b->grads[u].buffers[0].acc.n_pushed > 0)
            return fsdp_error(FSDP_ESTATE, "call grads_finish at the end of every step",
                              "zero_grad: unit %d (%s) still holds gradients of an unfinished step",
                              u, b->f->units[u].name);
    /* SOLUTION BEGIN 3.4 */
    for (int u = 0; u < b->f->n_units; u++) {
        device_free(b->f->compute, b->grads[u].shard_grad);
        b->grads[u].shard_grad = NULL;
    }
    return FSDP_OK;
    /* SOLUTION END 3.4 */
}

fsdp_status grads_finish(reducer *b, float scale)
{
    /* SOLUTION BEGIN 3.4 */
    for (int u = 0; u < b->f->n_units; u++) {
        if (b->f->units[u].frozen)
            continue;
        TRY(grad_finish(b, u, scale));
        if (b->f->config.sharding == SHARDING_NONE)
            TRY(grad_all_gather(b, u));
    }
    return FSDP_OK;
    /* SOLUTION END 3.4 */
}

fsdp_status backward_pre_hook(void *self, int u)
{
    reducer *b = self;
    fsdp *f = b->f;
    /* SOLUTION BEGIN 3.1 */
    TRY(unshard_begin(f, u)); /* nothing happens for a unit that forward kept */
    TRY(unshard_wait(f, u));
    b->grads[u].visited = true;
    return f->units[u].frozen ? FSDP_OK : full_grad_alloc(b, u);
    /* SOLUTION END 3.1 */
}

fsdp_status backward_post_hook(void *self, int u)
{
    reducer *b = self;
    /* SOLUTION BEGIN 3.2 */
    if (!keep_after_backward(b->f->config.sharding))
        TRY(reshard(b->f, u));
    if (b->f->units[u].frozen)
        return FSDP_OK;
    TRY(reduce_begin(b, u));
    return reduce_wait(b, u);
    /* SOLUTION END 3.2 */
}

fsdp_status backward_end_hook(void *self)
{
    reducer *b = self;
    fsdp *f = b->f;
    /* SOLUTION BEGIN 3.6 */
    for (int u = f->n_units - 1; u >= 0; u--) {
        if (!b->grads[u].visited && !f->units[u].frozen) {
            TRY(full_grad_alloc(b, u));
            TRY(reduce_begin(b, u));
        }
        TRY(reduce_wait(b, u));
        if (!keep_after_backward(f->config.sharding))
            TRY(reshard(f, u));
        b->grads[u].visited = false;
    }
    return FSDP_OK;
    /* SOLUTION END 3.6 */
}

static fsdp_status pre_forward(void *self, int u)
{
    return forward_pre_hook(((reducer *)self)->f, u);
}

unit_hooks fsdp_backward_hooks(reducer *b)
{
    return (unit_hooks){.self = b,
                        .pre_forward = pre_forward,
                        .post_forward = strategy_post_forward_hook,
                        .pre_backward = backward_pre_hook,
                        .post_backward = backward_post_hook,
                        .end_backward = backward_end_hook};
}

fsdp_status sgd_step(reducer *b, float lr, float weight_decay, const float *grad_coef)
{
    fsdp *f = b->f;
    for (int u = 0; u < f->n_units; u++) {
        const flat_layout *l = &f->units[u].layout;
        size_t own = f->config.sharding == SHARDING_NONE ? l->padded_elems : l->shard_elems;
        if (f->units[u].frozen)
            continue;
        TRY(f->config.ops->sgd(f->compute, &(sgd_args){.param = f->units[u].shard,
                                                       .grad = b->grads[u].shard_grad,
                                                       .grad_coef = grad_coef,
                                                       .elems = own,
                                                       .lr = lr,
                                                       .weight_decay = weight_decay}));
    }
    return FSDP_OK;
}

bool keep_after_forward(sharding_strategy sharding, bool is_root)
{
    /* SOLUTION BEGIN 3.5 */
    /* STUB: return false; */
    return sharding != SHARDING_FULL || is_root;
    /* SOLUTION END 3.5 */
}

bool keep_after_backward(sharding_strategy sharding)
{
    /* SOLUTION BEGIN 3.5 */
    /* STUB: return false; */
    return sharding == SHARDING_NONE;
    /* SOLUTION END 3.5 */
}

fsdp_status strategy_post_forward_hook(void *self, int u)
{
    reducer *b = self;
    if (keep_after_forward(b->f->config.sharding, u == UNIT_ROOT))
        return FSDP_OK;
    return reshard(b->f, u);
}

fsdp_status grad_all_gather(reducer *b, int u)
{
    fsdp *f = b->f;
    const flat_layout *l = &f->units[u].layout;
    unit_grad *g = &b->grads[u];
    /* SOLUTION BEGIN 3.5 */
    comm *c = f->config.comm;
    float *full;
    TRY(comm_alloc_f32(c, f->compute, MEM_GRADS_SHARD, l->padded_elems, "gradient", &full));
    float *mine = full + (size_t)comm_rank(c) * l->shard_elems;
    fsdp_status status =
        device_copy(f->compute, mine, g->shard_grad, l->shard_elems * sizeof *mine);
    device_free(f->compute, g->shard_grad);
    g->shard_grad = full;
    TRY(status);
    TRY(event_record(g->computed, f->compute));
    TRY(stream_wait_event(f->comm_stream, g->computed));
    TRY(comm_all_gather(c, f->comm_stream, f->units[u].name, DTYPE_F32, mine, full,
                        l->shard_elems));
    TRY(event_record(g->reduced, f->comm_stream));
    return stream_wait_event(f->compute, g->reduced);
    /* SOLUTION END 3.5 */
}
