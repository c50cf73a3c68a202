/* grad_offload.c -- see grad_offload.h. */
#include "lab3_backward/grad_offload.h"
#include "common/sum/sum_run.h"
#include "lab2_forward/host_state.h"

static fsdp_status fetch(reducer *r, int n, grad_acc *acc, bool all)
{
    const int top = all ? TREE_SUM_LEVELS - 1 : sum_run_top(acc, r->batch_level, n);
    for (int k = 0; k <= top; k++) { /* slots below batch_level are empty */
        const uint64_t bit = UINT64_C(1) << k;
        if (acc->parked & bit)
            TRY(offload_fetch(r->f->given.offload, acc->elems, &acc->tree.slot[k]));
        acc->parked &= ~bit;
    }
    return FSDP_OK;
}

fsdp_status grads_fetch(reducer *r, int u, stream *on, bool all)
{
    offload *x = r->f->given.offload;
    unit_grad *g = &r->grads[u];
    if (!shard_is_on_host(r->f))
        return FSDP_OK;
    TRY(offload_fetch_begin(x, g->buffer.acc.n_parked));
    for (grad_buffer *b = &g->buffer; b; b = b->next)
        TRY(fetch(r, r->f->units[u].given.place.n_reduce, &b->acc, all));
    return offload_order(x, x->up, on);
}

static fsdp_status park(offload *x, grad_acc *acc)
{
    for (int k = 0; k < TREE_SUM_LEVELS; k++) {
        const uint64_t bit = UINT64_C(1) << k;
        if (!acc->tree.slot[k] || acc->parked & bit)
            continue;
        TRY(offload_park(x, acc->elems, &acc->tree.slot[k]));
        acc->parked |= bit;
    }
    return FSDP_OK;
}

fsdp_status grads_park(reducer *r, int u, stream *on)
{
    offload *x = r->f->given.offload;
    unit_grad *g = &r->grads[u];
    if (!shard_is_on_host(r->f))
        return FSDP_OK;
    TRY(offload_order(x, on, x->down));
    for (grad_buffer *b = &g->buffer; b; b = b->next)
        TRY(park(x, &b->acc));
    TRY(offload_park_end(x));
    g->buffer.acc.n_parked = x->n_parked;
    return FSDP_OK;
}

fsdp_status grad_park(reducer *r, int u)
{
    fsdp *f = r->f;
    offload *x = f->given.offload;
    TRY(offload_order(x, f->compute, x->down));
    TRY(offload_park(x, f->units[u].layout.shard_elems, &r->grads[u].shard_grad));
    return offload_park_end(x);
}
