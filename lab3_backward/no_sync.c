/* no_sync.c -- task 3.9: gradients that wait for the last micro-step of a step. */
#include "lab3_backward/no_sync.h"
#include "common/comm/comm_sums.h"
#include "common/device/device_calls.h"
#include "lab3_backward/backward.h"

fsdp_status no_sync_keep(reducer *r, int u)
{
    /* SOLUTION BEGIN 3.9 */
    fsdp *f = r->f;
    unit_grad *g = &r->grads[u];
    for (grad_buffer *b = &g->buffer; b; b = grad_buffer_next(g, b))
        TRY(grad_acc_give(&b->local, f->compute, run_batch_level(&f->run), &b->full_grad));
    full_grad_free(r, u);
    return FSDP_OK;
    /* SOLUTION END 3.9 */
}

fsdp_status no_sync_join(reducer *r, int u)
{
    fsdp *f = r->f;
    unit_grad *g = &r->grads[u];
    if (g->buffer.local.n_pushed == 0)
        return FSDP_OK;
    /* SOLUTION BEGIN 3.9 */
    for (grad_buffer *b = &g->buffer; b; b = grad_buffer_next(g, b))
        TRY(grad_acc_finish_into(&b->local, f->compute, b->full_grad));
    return FSDP_OK;
    /* SOLUTION END 3.9 */
}

fsdp_status replicas_reduce(reducer *r, int u)
{
    fsdp *f = r->f;
    unit_grad *g = &r->grads[u];
    const size_t shard_elems = f->units[u].layout.shard_elems;
    comm *c = f->units[u].given.place.replica_group;
    float *shard;
    grad_acc sum;
    fsdp_status status;
    TRY(comm_alloc_f32(c, f->compute, MEM_GRADS_SHARD, shard_elems, "gradient", &shard));
    grad_acc_init(&sum, f->run.mode, f->run.ops->sums, g->slice.elems, MEM_GRADS_SHARD,
                  "gradient slice");
    sum.sum_dtype = f->run.reduce_dtype;
    for (int k = 0; k < comm_size(c); k++)
        f->given.replica_slices[k] = (comm_slice){(size_t)k * g->slice.elems, g->slice.elems};
    GOTO_ON_FAIL(status, device_copy(f->compute, shard, g->shard_grad, shard_elems * sizeof *shard),
                 done);
    device_free(f->compute, g->shard_grad);
    g->shard_grad = NULL;
    GOTO_ON_FAIL(status, event_record(g->computed, f->compute), done);
    GOTO_ON_FAIL(status, stream_wait_event(f->reduce_stream, g->computed), done);
    GOTO_ON_FAIL(status,
                 comm_reduce_scatterv(c, f->reduce_stream, f->units[u].name, shard,
                                      f->given.replica_slices, &sum, 0),
                 done);
    GOTO_ON_FAIL(status, event_record(g->reduced, f->reduce_stream), done);
    GOTO_ON_FAIL(status, stream_wait_event(f->compute, g->reduced), done);
    status = grad_acc_finish(&sum, f->compute, &g->shard_grad);
done:
    device_free(f->compute, shard);
    grad_acc_free(&sum, f->compute);
    return status;
}
