/* grad_memory.c -- provided, no task: the buffers of reductions, the memory of unreduced gradients,
 * and the views through which layers write it. */
#include <stdlib.h>
#include "common/comm/comm_calls.h"
#include "lab3_backward/reduce.h"
#include "lab3_backward/reducer_setup.h"

fsdp_status grad_buffer_init(const fsdp *f, int u, size_t begin, size_t elems, grad_buffer *out)
{
    *out = (grad_buffer){.begin = begin, .elems = elems};
    out->slices = calloc((size_t)f->units[u].given.place.n_reduce, sizeof *out->slices);
    return out->slices ? FSDP_OK : fsdp_error(FSDP_ENOMEM, "", "reducer_create: no host memory");
}

void grad_buffer_ready(const fsdp *f, int u, const char *label, grad_buffer *b)
{
    const run_context *run = &f->run;
    const placement *p = &f->units[u].given.place;
    grad_acc_init(&b->acc, run->mode, run->ops->sums, b->slices[p->rank % p->n_reduce].elems,
                  MEM_GRADS_SHARD, label);
    grad_acc_init(&b->local, run->mode, run->ops->sums, b->elems, MEM_GRADS_FULL, "unit gradient");
    b->acc.sum_dtype = b->local.sum_dtype = run->reduce_dtype;
}

void grad_buffer_free(const fsdp *f, grad_buffer *b)
{
    if (b->next)
        grad_buffer_free(f, b->next);
    free(b->next);
    device_free(f->compute, b->full_grad);
    grad_acc_free(&b->acc, f->compute);
    grad_acc_free(&b->local, f->compute);
    free(b->slices);
    *b = (grad_buffer){0};
}

void grad_views_bind(reducer *r, int u)
{
    const fsdp_unit *unit = &r->f->units[u];
    const model *m = r->f->run.m;
    unit_grad *g = &r->grads[u];
    float **views = r->f->views.grads;
    for (int i = 0; i < unit->layout.n_slots; i++) {
        const flat_slot *slot = &unit->layout.slots[i];
        float *grad = g->buffer.full_grad ? g->buffer.full_grad + slot->offset : NULL;
        views[slot->param] = grad;
        for (int p = m->params[slot->param].next_use; p > 0; p = m->params[p].next_use)
            views[p] = grad;
    }
    for (const grad_buffer *b = g->buffer.next; b; b = b->next)
        views[b->param] = b->full_grad;
}

/* Zero the gaps and the padding, which no layer writes. */
static fsdp_status zero_gaps(reducer *r, int u)
{
    const flat_layout *l = &r->f->units[u].layout;
    float *full = r->grads[u].buffer.full_grad;
    size_t next = 0;
    for (int i = 0; i < l->n_slots; i++) {
        TRY(device_zero(r->f->compute, full + next, (l->slots[i].offset - next) * sizeof *full));
        next = l->slots[i].offset + l->slots[i].elems;
    }
    return device_zero(r->f->compute, full + next, (l->padded_elems - next) * sizeof *full);
}

fsdp_status full_grad_alloc(reducer *r, int u)
{
    const fsdp *f = r->f;
    unit_grad *g = &r->grads[u];
    if (!g->way->begin)
        return FSDP_OK;
    for (grad_buffer *b = &g->buffer; b; b = b->next) {
        if (b->full_grad)
            return fsdp_error(FSDP_ESTATE, "end_backward makes memory only for units that had none",
                              "full_grad_alloc: unit %d (%s) has gradient memory already", u,
                              f->units[u].name);
        TRY(comm_alloc_f32(f->units[u].given.place.reduce_group, f->compute, MEM_GRADS_FULL,
                           b->elems, "unit gradient", &b->full_grad));
        if (!g->visited)
            TRY(device_zero(f->compute, b->full_grad, b->elems * sizeof(float)));
    }
    grad_views_bind(r, u);
    return g->visited ? zero_gaps(r, u) : FSDP_OK;
}

void full_grad_free(reducer *r, int u)
{
    unit_grad *g = &r->grads[u];
    for (grad_buffer *b = &g->buffer; b; b = b->next) {
        device_free(r->f->compute, b->full_grad);
        b->full_grad = NULL;
    }
    grad_views_bind(r, u);
}
