/* backward.c -- tasks 3.1 to 3.6: gather again, reduce-scatter a unit's gradient, finish it, clear
 * it; how long each unit stays gathered. */
#include "common/comm/comm_sums.h"
#include "common/device/device_calls.h"
#include "lab3_backward/backward.h"

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

/* ---- the reduction of one unit --------------------------------------------------------------- */

fsdp_status reduce_flat(reducer *r, int u)
{
    fsdp *f = r->f;
    unit_grad *g = &r->grads[u];
    /* SOLUTION BEGIN 3.2a */
    TRY(event_record(g->computed, f->compute));
    TRY(stream_wait_event(f->reduce_stream, g->computed));
    g->reducing = true;
    grad_buffer *b = &g->buffer;
    TRY(comm_reduce_scatterv(f->reduce_group, f->reduce_stream, f->units[u].name, b->full_grad,
                             b->slices, &b->acc, r->batch_level));
    TRY(event_record(g->reduced, f->reduce_stream));
    /* SOLUTION END 3.2a */
    return FSDP_OK;
}

fsdp_status reduce_flat_wait(reducer *r, int u)
{
    fsdp *f = r->f;
    unit_grad *g = &r->grads[u];
    /* SOLUTION BEGIN 3.2a */
    TRY(stream_wait_event(f->compute, g->reduced));
    g->reducing = false;
    full_grad_free(r, u);
    return FSDP_OK;
    /* SOLUTION END 3.2a */
}

/* ---- the end of a step ----------------------------------------------------------------------- */

fsdp_status finish_flat(reducer *r, int u, float scale)
{
    fsdp *f = r->f;
    const size_t used_elems = f->units[u].layout.used_elems;
    unit_grad *g = &r->grads[u];
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

fsdp_status all_gather_slices(reducer *r, int u)
{
    fsdp *f = r->f;
    const size_t shard_elems = f->units[u].layout.shard_elems;
    unit_grad *g = &r->grads[u];
    const size_t slice_elems = g->slice.elems;
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
