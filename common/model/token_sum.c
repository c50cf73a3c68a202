/* token_sum.c -- sums over the tokens of a call in the shape of a tree over runs of tokens; arrays
 * that are cut by tokens. See transformer.h. */
#include "common/comm/comm_sums.h"
#include "common/device/device.h"
#include "common/model/transformer.h"

/* Elements of this rank's part of a sequence. */
static size_t part_elems(const layer *l, const layer_io *io)
{
    return io->seq_len / l->model->token_parts * l->model->config.d_model;
}

fsdp_status gather_rows(const layer *l, stream *s, const layer_io *io, const void *own, void *all)
{
    const size_t n = part_elems(l, io), whole = n * l->model->token_parts;
    for (size_t j = 0; j < io->batch; j++)
        TRY(comm_all_gather(io->tp, s, l->name, io->type, element(own, j * n, io->type),
                            element(all, j * whole, io->type), n));
    return FSDP_OK;
}

fsdp_status keep_rows(const layer *l, stream *s, const layer_io *io, const void *all, void *own)
{
    const size_t n = part_elems(l, io), whole = n * l->model->token_parts;
    const size_t mine = (size_t)comm_rank(io->tp) * n, bytes = n * dtype_bytes(io->type);
    for (size_t j = 0; j < io->batch; j++) {
        const void *from = element(all, j * whole + mine, io->type);
        void *to = element(own, j * n, io->type);
        if (from != to)
            TRY(device_copy(s, to, from, bytes));
    }
    return FSDP_OK;
}

/* out = the sum over rows, as a tree over n runs of them; more [...] is scratch. */
static fsdp_status sum_runs(const token_sum *t, size_t first, size_t rows, size_t n, float *out,
                            float *more)
{
    const size_t half = rows / 2;
    if (n == 1)
        return t->add_part(t, first, rows, out);
    TRY(sum_runs(t, first, half, n / 2, out, more));
    TRY(sum_runs(t, first + half, half, n / 2, more, more + sum_step(t->elems)));
    return t->o->add(t->s, &(add_args){.out = out, .a = out, .b = more, .elems = t->elems});
}

/* sums [leaves]: of each leaf, over all ranks' runs; then the first is the tree over leaves. */
static fsdp_status sum_leaves(const token_sum *t, size_t leaves, float *sums)
{
    const layer_io *io = t->io;
    const model *m = t->l->model;
    const size_t step = sum_step(t->elems), rows = own_rows(t->l, io) / leaves;
    const size_t n = m->config.tp_blocks / m->token_parts;
    for (size_t i = 0; i < leaves; i++)
        TRY(sum_runs(t, i * rows, rows, n, sums + i * step, sums + leaves * step));
    if (m->token_parts > 1)
        TRY(comm_all_reduce(io->tp, t->s, t->l->name, DTYPE_F32, sums, leaves * step));
    for (size_t apart = 1; apart < leaves; apart *= 2)
        for (size_t i = 0; i < leaves; i += 2 * apart) {
            float *left = sums + i * step;
            TRY(t->o->add(
                t->s,
                &(add_args){.out = left, .a = left, .b = left + apart * step, .elems = t->elems}));
        }
    return FSDP_OK;
}

static fsdp_status deliver(const token_sum *t, const float *sum)
{
    for (size_t at = 0; at < t->elems; at += t->cols) {
        const int param = t->param + (int)(at / t->cols);
        float *grad = t->io->grads[param];
        if (grad != NULL && grad_adds(t->io, param))
            TRY(t->o->add(t->s,
                          &(add_args){.out = grad, .a = grad, .b = sum + at, .elems = t->cols}));
        else if (grad != NULL)
            TRY(device_copy(t->s, grad, sum + at, t->cols * sizeof *grad));
    }
    return FSDP_OK;
}

fsdp_status token_sum_run(const token_sum *t)
{
    const size_t leaves = t->io->leaves, most = leaves + VOCAB_PART_LEVELS;
    const size_t elems = most * sum_step(t->elems);
    float *sums;
    TRY(t->io->tp
            ? comm_alloc_f32(t->io->tp, t->s, MEM_GRADS_FULL, elems, "sums over tokens", &sums)
            : device_alloc_f32(t->s, MEM_GRADS_FULL, elems, "sums over tokens", &sums));
    fsdp_status status = sum_leaves(t, leaves, sums);
    IF_OK(status, deliver(t, sums));
    device_free(t->s, sums);
    return status;
}
