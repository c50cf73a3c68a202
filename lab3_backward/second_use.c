/* second_use.c -- see second_use.h. */
#include "lab3_backward/second_use.h"
#include <stdlib.h>

/* Each rank keeps the elements of the parameter that lie in its slice of the unit. Worked example:
 * 12 elements, W = 3, slices of 4; elements 2 ... 8 are kept as 2, 4 and 1. */
static fsdp_status fill_slices(const fsdp_unit *unit, int slot, grad_buffer *b)
{
    const placement *p = &unit->given.place;
    for (int rank = 0; rank < p->n_reduce; rank++) {
        flat_piece *mine;
        int n_mine;
        TRY(unit_slice_pieces(unit, rank, &mine, &n_mine));
        for (int i = 0; i < n_mine; i++) {
            if (mine[i].slot != slot)
                continue;
            b->slices[rank] = (comm_slice){mine[i].param_begin, mine[i].elems};
            b->slice_begin = rank == p->rank ? mine[i].shard_begin : b->slice_begin;
        }
        free(mine);
    }
    return FSDP_OK;
}

static fsdp_status append(reducer *r, int u, int param, int slot)
{
    const fsdp *f = r->f;
    const flat_slot *at = &f->units[u].layout.slots[slot];
    grad_buffer *last = &r->grads[u].buffer;
    while (last->next)
        last = last->next;
    grad_buffer *b = last->next = calloc(1, sizeof *b);
    if (!b)
        return fsdp_error(FSDP_ENOMEM, "", "reducer_create: no host memory");
    TRY(grad_buffer_init(f, u, at->offset, at->elems, b));
    b->param = param;
    TRY(fill_slices(&f->units[u], slot, b));
    grad_buffer_ready(f, u, "gradient slice (second use)", b);
    return FSDP_OK;
}

fsdp_status second_use_init(reducer *r, int u)
{
    const model *m = r->f->run.m;
    const flat_layout *l = &r->f->units[u].layout;
    if (r->f->run.mode != GRAD_ACC_CANONICAL)
        return FSDP_OK;
    for (int i = 0; i < l->n_slots; i++)
        for (int p = m->params[l->slots[i].param].next_use; p > 0; p = m->params[p].next_use)
            if (!m->params[p].frozen)
                TRY(append(r, u, p, i));
    return FSDP_OK;
}
