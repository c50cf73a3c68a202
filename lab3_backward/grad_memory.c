/* grad_memory.c -- provided, no task: the memory of unreduced gradients, and the views through
 * which layers write it. */
#include "lab3_backward/reducer_setup.h"
#include "lab3_backward/second_use.h"

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
    if (g->second)
        views[g->second->param] = g->second->buffer.full_grad;
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
    if (f->units[u].frozen)
        return FSDP_OK;
    for (grad_buffer *b = &g->buffer; b; b = grad_buffer_next(g, b)) {
        if (b->full_grad)
            return fsdp_error(FSDP_ESTATE, "end_backward makes memory only for units that had none",
                              "full_grad_alloc: unit %d (%s) has gradient memory already", u,
                              f->units[u].name);
        TRY(comm_alloc_f32(f->reduce_group, f->compute, MEM_GRADS_FULL, b->elems, "unit gradient",
                           &b->full_grad));
        if (!g->visited)
            TRY(device_zero(f->compute, b->full_grad, b->elems * sizeof(float)));
    }
    grad_views_bind(r, u);
    return g->visited ? zero_gaps(r, u) : FSDP_OK;
}

void full_grad_free(reducer *r, int u)
{
    unit_grad *g = &r->grads[u];
    for (grad_buffer *b = &g->buffer; b; b = grad_buffer_next(g, b)) {
        device_free(r->f->compute, b->full_grad);
        b->full_grad = NULL;
    }
    grad_views_bind(r, u);
}
