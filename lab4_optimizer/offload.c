/* offload.c -- task 4.7: the update of arrays that live in host memory. */
#include "lab4_optimizer/offload.h"
#include "common/comm/comm_sums.h"
#include "common/device/device_calls.h"
#include "lab2_forward/fsdp_setup.h"
#include "lab3_backward/backward.h"
#include "lab3_backward/grad_offload.h"

/* ---- provided: where the arrays are ---------------------------------------------------------- */

static int n_states(const fsdp_optimizer *o)
{
    return optimizer_of(o->r->f->run.optimizer)->n_states;
}

size_t offload_arrays(const fsdp_optimizer *o)
{
    return (size_t)n_states(o) + (shard_is_on_host(o->r->f) ? 2 : 0);
}

/* Upload an array to *at, the next free place of the piece: *copy. */
static fsdp_status bring(stream *up, const float *array, size_t elems, float **at, float **copy)
{
    *copy = *at;
    *at += size_round_up(elems, FLAT_ALIGN_ELEMS);
    return device_copy(up, *copy, array, elems * sizeof **copy);
}

fsdp_status offload_bring(fsdp_optimizer *o, const offload_piece *p, update_part *part)
{
    stream *up = o->r->f->given.offload->up;
    optim_part *a = &part->arrays;
    float *at = p->mem, *grad;
    update_part_point(o, part);
    for (int k = 0; k < n_states(o); k++)
        TRY(bring(up, a->state[k], a->elems, &at, &a->state[k]));
    if (!shard_is_on_host(o->r->f))
        return FSDP_OK;
    TRY(bring(up, a->param, a->elems, &at, &a->param));
    TRY(bring(up, a->grad, a->elems, &at, &grad));
    a->grad = grad;
    return FSDP_OK;
}

fsdp_status offload_take(fsdp_optimizer *o, const update_part *part)
{
    stream *down = o->r->f->given.offload->down;
    const size_t bytes = part->arrays.elems * sizeof(float);
    update_part home = *part;
    update_part_point(o, &home);
    for (int k = 0; k < n_states(o); k++)
        TRY(device_copy(down, home.arrays.state[k], part->arrays.state[k], bytes));
    return shard_is_on_host(o->r->f)
               ? device_copy(down, home.arrays.param, part->arrays.param, bytes)
               : FSDP_OK;
}

/* ---- 4.7 ------------------------------------------------------------------------------------- */

fsdp_status offload_squares(fsdp_optimizer *o, int u)
{
    /* SOLUTION BEGIN 4.7 */
    const unit_optim *unit = &o->units[u];
    if (unit->n_ranges == 0)
        return FSDP_OK;
    return o->ops->sum_squares(o->compute,
                               &(sum_squares_args){.sum = o->norm_sum,
                                                   .x = o->r->grads[u].shard_grad,
                                                   .elems = o->r->f->units[u].layout.shard_elems,
                                                   .ranges = {unit->ranges, unit->n_ranges}});
    /* SOLUTION END 4.7 */
}

fsdp_status offload_update_part(fsdp_optimizer *o, const optim_scalars *scalars, adamw_fn adamw,
                                update_part *part)
{
    /* SOLUTION BEGIN 4.7 */
    offload *x = o->r->f->given.offload;
    offload_piece *p;
    TRY(offload_next(x, &p));
    TRY(offload_bring(o, p, part));
    TRY(offload_order(x, x->up, o->compute));
    TRY(update_run(o, scalars, adamw, part));
    TRY(offload_order(x, o->compute, x->down));
    TRY(offload_take(o, part));
    return event_record(p->used, x->down);
    /* SOLUTION END 4.7 */
}

fsdp_status offload_norm(fsdp_optimizer *o, float grad_scale)
{
    /* SOLUTION BEGIN 4.7 */
    TRY(device_zero(o->compute, o->norm_sum, sizeof *o->norm_sum));
    for (int u = 0; u < o->n_units; u++) {
        if (o->r->f->units[u].given.frozen)
            continue;
        TRY(grad_finish(o->r, u, grad_scale));
        TRY(grad_all_gather(o->r, u));
        TRY(offload_squares(o, u));
        TRY(grad_park(o->r, u));
    }
    TRY(event_record(o->squared, o->compute));
    TRY(stream_wait_event(o->norm_stream, o->squared));
    TRY(comm_all_reduce(o->norm_group, o->norm_stream, "grad norm", DTYPE_I64, o->norm_sum->bin,
                        RSUM_BINS));
    TRY(event_record(o->added, o->norm_stream));
    return stream_wait_event(o->compute, o->added);
    /* SOLUTION END 4.7 */
}

fsdp_status offload_step(fsdp_optimizer *o, const step_scalars *sc, adamw_fn adamw, float *norm)
{
    /* SOLUTION BEGIN 4.7 */
    TRY(offload_norm(o, sc->grad_scale));
    TRY(o->ops->clip_coef(o->compute, &(clip_coef_args){.norm = o->norm,
                                                        .coef = o->coef,
                                                        .sum = o->norm_sum,
                                                        .max_norm = sc->clip_norm}));
    TRY(device_copy(o->compute, norm, o->norm, sizeof *norm));
    return optimizer_update(o, sc, adamw);
    /* SOLUTION END 4.7 */
}

/* ---- provided: all pieces of all shards ------------------------------------------------------ */

fsdp_status offload_update(fsdp_optimizer *o, const optim_scalars *scalars, adamw_fn adamw)
{
    fsdp *f = o->r->f;
    offload *x = f->given.offload;
    const bool opens = !shard_is_on_host(f);
    TRY(offload_order(x, x->down, x->up));
    if (opens)
        TRY(offload_open_ring(x, fsdp_most_shard_elems(f), offload_arrays(o)));
    const size_t most = offload_piece_elems(x, offload_arrays(o));
    for (int u = 0; u < f->n_units; u++) {
        const size_t n = f->units[u].given.frozen ? 0 : f->units[u].layout.shard_elems;
        for (size_t at = 0; at < n; at += most) {
            update_part part = {.u = u, .begin = at, .arrays.elems = min_size(n - at, most)};
            TRY(offload_update_part(o, scalars, adamw, &part));
        }
    }
    if (opens)
        offload_close_ring(x);
    TRY(offload_order(x, x->down, x->up));
    return offload_order(x, x->down, o->compute);
}
