/* backward.c -- tasks 3.1 to 3.6: gather again, reduce-scatter a unit's gradient, finish it, clear
 * it; how long each unit stays gathered. */
#include "common/comm/comm_calls.h"
#include "common/device/device_calls.h"
#include "lab2_forward/forward.h"
#include "lab3_backward/dim0_reduce.h"
#include "lab3_backward/grad_offload.h"
#include "lab3_backward/no_sync.h"
#include "lab3_backward/second_use.h"

/* ---- hooks of a backward pass ---------------------------------------------------------------- */

fsdp_status backward_pre_hook(void *self, int u)
{
    reducer *r = self;
    fsdp *f = r->f;
    /* SOLUTION BEGIN 3.1 */
    TRY(unshard_begin(f, u)); /* nothing happens for a unit that forward kept */
    TRY(unshard_wait(f, u));
    r->grads[u].visited = true;
    return full_grad_alloc(r, u);
    /* SOLUTION END 3.1 */
}

fsdp_status backward_post_hook(void *self, int u)
{
    reducer *r = self;
    /* SOLUTION BEGIN 3.2b */
    TRY(reshard(r->f, u)); /* a resident unit stays */
    TRY(reduce_begin(r, u));
    return reduce_wait(r, u);
    /* SOLUTION END 3.2b */
}

fsdp_status backward_end_hook(void *self)
{
    reducer *r = self;
    fsdp *f = r->f;
    /* SOLUTION BEGIN 3.6 */
    for (int u = f->n_units - 1; u >= 0; u--) {
        if (!r->grads[u].visited) {
            TRY(full_grad_alloc(r, u));
            TRY(reduce_begin(r, u));
        }
        TRY(reduce_wait(r, u));
        TRY(reshard(f, u));
        r->grads[u].visited = false;
    }
    return FSDP_OK;
    /* SOLUTION END 3.6 */
}

static fsdp_status pre_forward(void *self, int u)
{
    return forward_pre_hook(((reducer *)self)->f, u);
}

static fsdp_status post_forward(void *self, int u)
{
    fsdp *f = ((reducer *)self)->f;
    TRY(reducer_leave_forward(self, u));
    return forward_post_hook(f, u);
}

static fsdp_status pre_backward(void *self, int u)
{
    ((reducer *)self)->f->own.in_backward = true;
    return backward_pre_hook(self, u);
}

unit_hooks fsdp_backward_hooks(reducer *r)
{
    return (unit_hooks){.self = r,
                        .begin_micro = reducer_begin_micro,
                        .pre_forward = pre_forward,
                        .post_forward = post_forward,
                        .pre_backward = pre_backward,
                        .post_backward = backward_post_hook,
                        .end_backward = backward_end_hook};
}

/* ---- the reduction of one unit --------------------------------------------------------------- */

fsdp_status reduce_begin(reducer *r, int u)
{
    fsdp *f = r->f;
    unit_grad *g = &r->grads[u];
    if (f->units[u].frozen)
        return FSDP_OK;
    if (f->own.defers)
        return no_sync_keep(r, u);
    if (g->reducing || !g->buffer.full_grad)
        return fsdp_error(FSDP_ESTATE,
                          "pair every reduce_begin with a backward_pre_hook and a reduce_wait",
                          "reduce_begin: unit %d (%s) %s", u, f->units[u].name,
                          g->reducing ? "is reducing already" : "has no gradient memory");
    TRY(no_sync_join(r, u));
    TRY(grads_fetch(r, u, f->reduce_stream, false));
    if (f->units[u].layout.row_ranks > 0) {
        TRY(dim0_reduce_begin(r, u));
        return second_use_reduce(r, u);
    }
    /* SOLUTION BEGIN 3.2a */
    TRY(event_record(g->computed, f->compute));
    TRY(stream_wait_event(f->reduce_stream, g->computed));
    g->reducing = true;
    grad_buffer *b = &g->buffer;
    TRY(comm_reduce_scatterv(f->reduce_group, f->reduce_stream, f->units[u].name, b->full_grad,
                             b->slices, &b->acc, r->batch_level));
    TRY(event_record(g->reduced, f->reduce_stream));
    /* SOLUTION END 3.2a */
    return second_use_reduce(r, u);
}

fsdp_status reduce_wait(reducer *r, int u)
{
    fsdp *f = r->f;
    unit_grad *g = &r->grads[u];
    if (!g->reducing)
        return FSDP_OK;
    /* SOLUTION BEGIN 3.2a */
    TRY(stream_wait_event(f->compute, g->reduced));
    g->reducing = false;
    full_grad_free(r, u);
    return FSDP_OK;
    /* SOLUTION END 3.2a */
}

/* ---- the end of a step ----------------------------------------------------------------------- */

fsdp_status grad_finish(reducer *r, int u, float scale)
{
    fsdp *f = r->f;
    const size_t used_elems = f->units[u].layout.used_elems;
    unit_grad *g = &r->grads[u];
    if (f->units[u].frozen)
        return FSDP_OK;
    TRY(grad_sum(r, u));
    if (f->units[u].layout.row_ranks > 0)
        return dim0_grad_finish(r, u, scale);
    /* SOLUTION BEGIN 3.3 */
    const comm_slice mine = g->slice;
    TRY(f->run.ops->scale(f->compute,
                          &(scale_args){.x = g->shard_grad, .factor = scale, .elems = mine.elems}));
    size_t real = used_elems > mine.begin ? used_elems - mine.begin : 0;
    if (real >= mine.elems)
        return FSDP_OK;
    return device_zero(f->compute, g->shard_grad + real, (mine.elems - real) * sizeof(float));
    /* SOLUTION END 3.3 */
}

fsdp_status zero_grad(reducer *r)
{
    for (int u = 0; u < r->f->n_units; u++)
        if (r->grads[u].buffer.acc.n_pushed > 0)
            return fsdp_error(FSDP_ESTATE, "call grads_finish at the end of every step",
                              "zero_grad: unit %d (%s) still holds gradients of an unfinished step",
                              u, r->f->units[u].name);
    /* SOLUTION BEGIN 3.4 */
    for (int u = 0; u < r->f->n_units; u++) {
        device_free(r->f->compute, r->grads[u].shard_grad);
        r->grads[u].shard_grad = NULL;
    }
    return FSDP_OK;
    /* SOLUTION END 3.4 */
}

fsdp_status grads_finish(reducer *r, float scale)
{
    /* SOLUTION BEGIN 3.4 */
    for (int u = 0; u < r->f->n_units; u++) {
        TRY(grad_finish(r, u, scale));
        TRY(grad_all_gather(r, u));
    }
    return FSDP_OK;
    /* SOLUTION END 3.4 */
}

/* ---- strategies ------------------------------------------------------------------------------ */

fsdp_status strategy_fill(sharding_strategy sharding, fsdp *f)
{
    /* SOLUTION BEGIN 3.5a */
    /* STUB: (void)f; */
    /* STUB: return sharding == SHARDING_FULL ? FSDP_OK : fsdp_todo("3.5a"); */
    bool keeps = sharding == SHARDING_GRAD_OP || sharding == SHARDING_NONE;
    for (int u = 0; u < f->n_units; u++) {
        f->units[u].stays_after_forward = keeps || u == UNIT_ROOT;
        f->units[u].stays_after_backward = sharding == SHARDING_NONE;
    }
    return FSDP_OK;
    /* SOLUTION END 3.5a */
}

fsdp_status grad_all_gather(reducer *r, int u)
{
    fsdp *f = r->f;
    const size_t shard_elems = f->units[u].layout.shard_elems;
    unit_grad *g = &r->grads[u];
    const size_t slice_elems = g->slice.elems;
    if (f->mesh.shape.replicate_size == 1 || f->units[u].frozen)
        return FSDP_OK;
    /* SOLUTION BEGIN 3.5b */
    comm *c = f->mesh.replicate;
    float *whole;
    TRY(comm_alloc_f32(c, f->compute, MEM_GRADS_SHARD, shard_elems, "gradient", &whole));
    float *mine = whole + (size_t)comm_rank(c) * slice_elems;
    fsdp_status status = device_copy(f->compute, mine, g->shard_grad, slice_elems * sizeof *mine);
    device_free(f->compute, g->shard_grad);
    g->shard_grad = whole;
    TRY(status);
    TRY(event_record(g->computed, f->compute));
    TRY(stream_wait_event(f->reduce_stream, g->computed));
    TRY(comm_all_gather(c, f->reduce_stream, f->units[u].name, DTYPE_F32, mine, whole,
                        slice_elems));
    TRY(event_record(g->reduced, f->reduce_stream));
    return stream_wait_event(f->compute, g->reduced);
    /* SOLUTION END 3.5b */
}
