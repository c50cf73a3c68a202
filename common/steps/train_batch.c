/* train_batch.c -- loading the samples of a batch; its figures, from all ranks to the host. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include "common/steps/train_impl.h"

/* ---- samples --------------------------------------------------------------------------------- */

/* Read sample k; values are converted to the type that the model computes with. */
static fsdp_status load_sample(const train_loop *l, const corpus *data, uint64_t k, void *inputs,
                               int32_t *targets)
{
    const array_spec *in = &l->setup->run->m->input;
    FSDP_ASSERT_EQ(in->kind == ARRAY_VALUES, data->images != NULL);
    TRY(sample_read(data, k, l->T, l->values ? l->values : inputs, targets));
    for (size_t i = 0; l->values && i < l->T * in->width; i++)
        ((uint16_t *)inputs)[i] = bf16_from_f32(l->values[i]);
    return FSDP_OK;
}

fsdp_status train_load_micro_step(train_loop *l, const corpus *data, uint64_t first, uint64_t end,
                                  const step_figures *f, micro_step *ms)
{
    const size_t r = (size_t)comm_rank(l->setup->run->world), a = (size_t)ms->a;
    char *inputs = l->inputs + a * l->b * l->input_bytes;
    int32_t *targets = l->targets + a * l->b * l->T;
    ms->inputs = inputs;
    ms->targets = targets;
    ms->first_sample = first + run_batch_begin(l->setup->run, a);
    ms->n_micro = (int)l->A;
    ms->loss = f->losses + r * l->A + a;
    for (size_t j = 0; j < l->b && data; j++) {
        char *in = inputs + j * l->input_bytes;
        int32_t *out = targets + j * l->T;
        const bool is_there = ms->first_sample + j < end;
        if (is_there)
            TRY(load_sample(l, data, ms->first_sample + j, in, out));
        else
            memset(in, 0, l->input_bytes);
        for (size_t t = 0; t < l->T; t++) {
            out[t] = is_there ? out[t] : NO_TARGET;
            l->n_counting += out[t] != NO_TARGET;
        }
    }
    return FSDP_OK;
}

fsdp_status train_sum_ranks(const train_loop *l, const char *what, int64_t *n)
{
    void *all;
    TRY(comm_host_gather(l->setup->run->world, what, n, sizeof *n, &all));
    *n = 0;
    for (size_t r = 0; r < l->W; r++)
        *n += mesh_leaf_of(&l->setup->run->shape, (int)r) >= 0 ? ((const int64_t *)all)[r] : 0;
    free(all);
    return FSDP_OK;
}

fsdp_status train_scale_of(train_loop *l, const corpus *data, const char *what, int64_t first,
                           int64_t end, float *scale)
{
    int64_t n = (end - first) * (int64_t)l->T;
    if (data && data->mask) {
        n = l->n_counting;
        TRY(train_sum_ranks(l, "targets", &n));
    }
    *scale = 1.0f / (float)n;
    if (n > 0)
        return FSDP_OK;
    l->failed_alike = true;
    return fsdp_error(FSDP_EINVAL,
                      "mend the mask, or pass a larger --global-batch, in an evaluation also "
                      "--eval-batches, so that a target counts in each",
                      "%s: samples %lld to %lld: got a mask in which no target counts, expected at "
                      "least one",
                      what, (long long)first, (long long)end - 1);
}

/* ---- figures --------------------------------------------------------------------------------- */

fsdp_status train_open_figures(train_loop *l, step_figures *f)
{
    device *d = l->setup->run->dev;
    f->host_losses = malloc(l->W * l->A * sizeof *f->host_losses);
    if (!f->host_losses)
        return fsdp_error(FSDP_ENOMEM, "", "training loop: no host memory");
    TRY(device_alloc_f32(l->s, MEM_OTHER, l->W * l->A, "losses", &f->losses));
    TRY(device_zero(l->s, f->losses, l->W * l->A * sizeof *f->losses));
    if (l->setup->store)
        TRY(device_alloc(l->s, MEM_OTHER, sizeof f->host_counts, "counts", &f->counts));
    TRY(device_alloc_f32(l->s, MEM_OTHER, 1, "norm", &f->norm));
    TRY(event_create_timed(d, &f->begun));
    TRY(event_create(d, &f->computed));
    return event_create_timed(d, &f->arrived);
}

void train_close_figures(train_loop *l, step_figures *f)
{
    device_free(l->s, f->losses);
    device_free(l->s, f->norm);
    device_free(l->s, f->counts);
    free(f->host_losses);
    event_free(f->begun);
    event_free(f->computed);
    event_free(f->arrived);
}

/* Issue the sum of the ranks' counts, on loss_stream. */
static fsdp_status send_counts(train_loop *l, step_figures *f)
{
    comm *world = l->setup->run->world;
    const size_t bytes = sizeof f->host_counts;
    f->host_counts[ASKED_TO_SAVE] = comm_signal_came(world, SIGUSR1);
    f->host_counts[ASKED_TO_END] = comm_signal_came(world, SIGTERM);
    f->host_counts[STILL_WRITING] = ckpt_async_writes(l->setup->store->async);
    TRY(device_upload(l->loss_stream, f->counts, f->host_counts, bytes));
    TRY(comm_all_reduce(l->loss_group, l->loss_stream, "counts", DTYPE_I64, f->counts, N_COUNTS));
    return device_download(l->loss_stream, f->host_counts, f->counts, bytes);
}

fsdp_status train_send_figures(train_loop *l, step_figures *f, bool of_step)
{
    float *mine = f->losses + (size_t)comm_rank(l->loss_group) * l->A;
    stream *s = l->loss_stream;
    TRY(event_record(f->computed, l->s));
    TRY(stream_wait_event(s, f->computed));
    TRY(comm_all_gather(l->loss_group, s, "loss", DTYPE_F32, mine, f->losses, l->A));
    TRY(device_download(s, f->host_losses, f->losses, l->W * l->A * sizeof *f->losses));
    TRY(device_download(s, &f->host_norm, f->norm, sizeof *f->norm));
    if (of_step && f->counts)
        TRY(send_counts(l, f));
    return event_record(f->arrived, s);
}

fsdp_status train_await_figures(train_loop *l, step_figures *f, float *loss)
{
    TRY(event_sync(f->arrived));
    const run_context *run = l->setup->run;
    for (size_t r = 0; r < l->W; r++) {
        const int leaf = mesh_leaf_of(&run->shape, (int)r);
        for (size_t a = 0; a < l->A && leaf >= 0; a++)
            l->in_order[run_batch_node(run, a, leaf)] = f->host_losses[r * l->A + a];
    }
    *loss = tree_sum_f32(l->in_order, l->n_nodes);
    return FSDP_OK;
}
