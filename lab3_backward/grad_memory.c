/* grad_memory.c -- provided, no task: the memory of unreduced gradients, and the views through
 * which layers write it. */
#include "lab3_backward/backward.h"

void grad_views_bind(reducer *r, int u)
{
    const fsdp_unit *unit = &r->f->units[u];
    const model *m = r->f->run.m;
    unit_grad *g = &r->grads[u];
    float **views = r->f->views.grads;
    for (int i = 0; i < unit->layout.n_slots; i++) {
        const flat_slot *slot = &unit->layout.slots[i];
        float *grad = g->buffers[0].full_grad ? g->buffers[0].full_grad + slot->offset : NULL;
        views[slot->param] = m->params[slot->param].frozen ? NULL : grad;
        for (int p = 0; p < m->n_params; p++)
            if (m->params[p].tied_to == slot->param)
                views[p] = m->params[p].frozen ? NULL : grad;
    }
    for (int k = 1; k < g->n_buffers; k++)
        views[g->buffers[k].param] = g->buffers[k].full_grad;
}

/* Zero what no layer writes: the gaps, the padding, and the slots of frozen parameters. */
static fsdp_status zero_gaps(reducer *r, int u)
{
    const flat_layout *l = &r->f->units[u].layout;
    float *full = r->grads[u].buffers[0].full_grad;
    size_t next = 0;
    for (int i = 0; i < l->n_slots; i++) {
        if (r->f->run.m->params[l->slots[i].param].frozen)
            continue;
        TRY(device_zero(r->f->compute, full + next, (l->slots[i].offset - next) * sizeof *full));
        next = l->slots[i].offset + l->slots[i].elems;
    }
    return device_zero(r->f->compute, full + next, (l->padded_elems - next) * sizeof *full);
}

fsdp_status full_grad_alloc(reducer *r, int u)
{
    stream *s = r->f->compute;
    unit_grad *g = &r->grads[u];
    for (int k = 0; k < g->n_buffers; k++) {
        grad_buffer *buffer = &g->buffers[k];
        FSDP_ASSERT(buffer->full_grad == NULL);
        TRY(comm_alloc_f32(r->f->reduce_group, s, MEM_GRADS_FULL, buffer->elems, "unit gradient",
                           &buffer->full_grad));
        if (!g->visited)
            TRY(device_zero(s, buffer->full_grad, buffer->elems * sizeof(float)));
    }
    grad_views_bind(r, u);
    return g->visited ? zero_gaps(r, u) : FSDP_OK;
}
