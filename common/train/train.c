/* train.c -- see train.h. */
#include "common/train/train.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/atomic_file.h"
#include "common/base/clock.h"
#include "common/model/export.h"
#include "common/observe/progress.h"

enum { EVAL_SEQUENCES = 128 };

/* Buffers of one run. A micro-steps, b sequences in each, T tokens in a sequence, W ranks. */
struct train_loop {
    const train_setup *setup;
    stream *s;
    size_t A, b, T, W;
    int32_t *tokens;  /* host, [A][b][T]: kept for the whole step, because streams may lag behind */
    int32_t *targets; /* the same */
    float *losses;    /* device [W*A]: rank r's A sums at r*A */
    float *norm;      /* device [1] */
    float *host_losses; /* [W*A] */
    float *in_order;    /* [W*A] the same, in order of micro-step and then rank */
    double *ms;         /* [steps] */
    atomic_file csv;
    progress *progress;
};

static fsdp_status open_here(const train_setup *setup, train_loop *l)
{
    const train_config *c = setup->cfg;
    *l = (train_loop){.setup = setup,
                      .s = device_compute_stream(setup->run->dev),
                      .A = (size_t)setup->run->grad_accum,
                      .b = setup->run->batch,
                      .T = setup->run->seq_len,
                      .W = (size_t)comm_size(setup->run->world)};
    size_t step_tokens = l->A * l->b * l->T;
    l->tokens = malloc(step_tokens * sizeof *l->tokens);
    l->targets = malloc(step_tokens * sizeof *l->targets);
    l->host_losses = malloc(l->W * l->A * sizeof *l->host_losses);
    l->in_order = malloc(l->W * l->A * sizeof *l->in_order);
    l->ms = calloc((size_t)c->steps + 1, sizeof *l->ms);
    if (!l->tokens || !l->targets || !l->host_losses || !l->in_order || !l->ms)
        return fsdp_error(FSDP_ENOMEM, "", "training loop: no host memory");
    TRY(device_alloc_f32(l->s, MEM_OTHER, l->W * l->A, "losses", &l->losses));
    TRY(device_alloc_f32(l->s, MEM_OTHER, 1, "norm", &l->norm));
    if (comm_rank(setup->run->world) != 0)
        return FSDP_OK;
    l->progress = progress_open(setup->log, c->steps, c->global_batch * c->seq_len, true);
    if (!c->loss_csv)
        return FSDP_OK;
    TRY(atomic_file_open(&l->csv, c->loss_csv, "pass a --loss-csv path that can be written"));
    fprintf(l->csv.out, "step,loss,grad_norm,lr,ms\n");
    return FSDP_OK;
}

void train_discard(train_loop *l)
{
    atomic_file_cancel(&l->csv);
}

void train_close(train_loop *l)
{
    if (!l)
        return;
    progress_close(l->progress);
    train_discard(l);
    device_free(l->s, l->losses);
    device_free(l->s, l->norm);
    free(l->tokens);
    free(l->targets);
    free(l->host_losses);
    free(l->in_order);
    free(l->ms);
    free(l);
}

fsdp_status train_open(const train_setup *setup, train_loop **out)
{
    train_loop *l = calloc(1, sizeof *l);
    fsdp_status status = comm_agree(
        setup->run->world,
        l ? open_here(setup, l) : fsdp_error(FSDP_ENOMEM, "", "training loop: no host memory"));
    if (status != FSDP_OK) {
        fsdp_error_info why = *fsdp_error_get();
        train_close(l);
        fsdp_error_set(&why);
        return status;
    }
    *out = l;
    return FSDP_OK;
}

/* Load micro-step a of this rank. In the batch that starts at sequence `first` it has sequences
 * a*W*b + r*b ... + b-1. */
static void load_sequences(train_loop *l, const corpus *data, uint64_t first, size_t a)
{
    size_t r = (size_t)comm_rank(l->setup->run->world);
    for (size_t j = 0; j < l->b; j++) {
        size_t at = (a * l->b + j) * l->T;
        sample_sequence(data, first + a * l->W * l->b + r * l->b + j, l->T, l->tokens + at,
                        l->targets + at);
    }
}

static micro_step micro_step_of(const train_loop *l, size_t a, bool training)
{
    size_t at = a * l->b * l->T, mine = (size_t)comm_rank(l->setup->run->world) * l->A;
    return (micro_step){.tokens = l->tokens + at,
                        .targets = l->targets + at,
                        .a = (int)a,
                        .n_micro = (int)l->A,
                        .training = training,
                        .loss = l->losses + mine + a};
}

/* *loss = the sum over the sequences of all ranks' micro-steps, in one tree whose node number a*W +
 * r is micro-step a of rank r. */
static fsdp_status sum_losses(train_loop *l, size_t A, float *loss)
{
    float *mine = l->losses + (size_t)comm_rank(l->setup->run->world) * A;
    TRY(comm_all_gather(l->setup->run->world, l->s, "loss", DTYPE_F32, mine, l->losses, A));
    float *by_rank = l->host_losses;
    TRY(device_download(l->s, by_rank, l->losses, l->W * A * sizeof *by_rank));
    TRY(stream_sync(l->s));
    for (size_t a = 0; a < A; a++)
        for (size_t r = 0; r < l->W; r++)
            l->in_order[a * l->W + r] = by_rank[r * A + a];
    *loss = tree_sum_f32(l->in_order, l->W * A);
    return FSDP_OK;
}

static step_scalars scalars_of(const train_config *c, int64_t step)
{
    return (step_scalars){
        .optimizer = (optimizer_kind)c->optimizer,
        .step = step,
        .lr = train_lr(c, step),
        .beta1 = c->beta1,
        .beta2 = c->beta2,
        .eps = c->eps,
        .weight_decay = c->weight_decay,
        .clip_norm = (float)c->clip_grad,
        .grad_scale = 1.0f / (float)(c->global_batch * c->seq_len),
    };
}

/* One optimizer step. *loss is the mean over the global batch, *norm that before clipping. */
static fsdp_status train_step(train_loop *l, int64_t step, float *loss, float *norm)
{
    const train_setup *setup = l->setup;
    const train_config *c = setup->cfg;
    step_scalars sc = scalars_of(c, step);
    TRY(setup->engine->begin_step(setup->engine->self));
    for (size_t a = 0; a < l->A; a++) {
        micro_step ms = micro_step_of(l, a, true);
        load_sequences(l, setup->data, (uint64_t)step * (uint64_t)c->global_batch, a);
        TRY(runner_forward(setup->runner, &ms));
        TRY(runner_backward(setup->runner));
    }
    TRY(setup->engine->optimizer_step(setup->engine->self, &sc, l->norm));
    TRY(sum_losses(l, l->A, loss));
    TRY(device_download(l->s, norm, l->norm, sizeof *norm));
    TRY(stream_sync(l->s));
    *loss *= sc.grad_scale;
    return FSDP_OK;
}

/* The loss of one global batch of the validation corpus, forward only. */
static fsdp_status evaluate_batch(train_loop *l, uint64_t first, float *loss)
{
    const train_setup *setup = l->setup;
    for (size_t a = 0; a < l->A; a++) {
        micro_step ms = micro_step_of(l, a, false);
        load_sequences(l, setup->val_data, first, a);
        TRY(runner_forward(setup->runner, &ms));
    }
    return sum_losses(l, l->A, loss);
}

/* Prints the mean loss over the first sequences of the validation corpus, in whole global batches:
 * the same sequences every time, summed in the same shape for every number of ranks. */
static fsdp_status evaluate(train_loop *l, int64_t step)
{
    const train_setup *setup = l->setup;
    size_t global = (size_t)setup->cfg->global_batch, n_seqs = setup->val_data->n_tokens / l->T;
    size_t n_batches = (n_seqs < EVAL_SEQUENCES ? n_seqs : EVAL_SEQUENCES) / global;
    n_batches = n_batches > 0 ? n_batches : 1;
    float sums[EVAL_SEQUENCES];
    for (size_t i = 0; i < n_batches; i++)
        TRY(evaluate_batch(l, i * global, &sums[i]));
    float loss = tree_sum_f32(sums, n_batches) / (float)(n_batches * global * l->T);
    if (comm_rank(setup->run->world) == 0)
        fprintf(setup->log, "eval  step %lld  val loss %.9g  (%zu sequences)\n",
                (long long)step + 1, (double)loss, n_batches * global);
    return FSDP_OK;
}

static fsdp_status record_step(train_loop *l, int64_t step, float loss, float norm, double ms)
{
    const train_setup *setup = l->setup;
    ledger_figures mem = ledger_read(device_ledger(setup->run->dev));
    progress_step(l->progress, step, (double)loss, (double)norm, ms, mem.peak_total_bytes);
    if (!l->csv.out)
        return FSDP_OK;
    fprintf(l->csv.out, "%lld,%.9g,%.9g,%.9g,%.3f\n", (long long)step, (double)loss, (double)norm,
            train_lr(setup->cfg, step), ms);
    if (fflush(l->csv.out) != 0)
        return fsdp_error(FSDP_EIO, "free some space or pass another --loss-csv",
                          "cannot write %s: %s", l->csv.path, strerror(errno));
    return FSDP_OK;
}

static bool due(int64_t every, int64_t step, int64_t steps)
{
    return step + 1 == steps || (every > 0 && (step + 1) % every == 0);
}

/* Loss and norm come out of collectives, so all ranks see the same. */
static fsdp_status check_finite(int64_t step, float loss, float norm, bool *failed_alike)
{
    if (isfinite(loss) && isfinite(norm))
        return FSDP_OK;
    *failed_alike = true;
    return fsdp_error(FSDP_EINVAL, "lower --lr, add --warmup-steps or set --clip-grad 1",
                      "training diverged at step %lld: loss %g, gradient norm %g", (long long)step,
                      (double)loss, (double)norm);
}

static fsdp_status save(train_loop *l, int64_t step, bool *failed_alike)
{
    const train_setup *setup = l->setup;
    fsdp_status status = setup->engine->save(setup->engine->self, setup->cfg->save_dir, step + 1);
    *failed_alike = status == FSDP_EIO; /* agreed on; other errors may strike one rank */
    return status;
}

static fsdp_status after_step(train_loop *l, int64_t step, bool *failed_alike)
{
    const train_setup *setup = l->setup;
    const train_config *c = setup->cfg;
    if (setup->val_data && due(c->eval_every, step, c->steps))
        TRY(evaluate(l, step));
    return c->save_dir && due(c->save_every, step, c->steps) ? save(l, step, failed_alike)
                                                             : FSDP_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

fsdp_status train_run(train_loop *l, train_result *result)
{
    const train_setup *setup = l->setup;
    int64_t n = 0;
    *result = (train_result){0};
    for (int64_t step = setup->first_step; step < setup->cfg->steps; step++, n++) {
        float loss = 0, norm = 0;
        double begun_s = clock_now_s();
        comm_job_stats_reset(setup->run->world);
        TRY(train_step(l, step, &loss, &norm));
        l->ms[n] = 1e3 * (clock_now_s() - begun_s);
        result->step_stats = comm_job_stats_read(setup->run->world);
        result->first_loss = n == 0 ? (double)loss : result->first_loss;
        result->last_loss = (double)loss;
        TRY(record_step(l, step, loss, norm, l->ms[n]));
        TRY(check_finite(step, loss, norm, &result->failed_alike));
        TRY(after_step(l, step, &result->failed_alike));
    }
    qsort(l->ms, (size_t)n, sizeof *l->ms, by_value);
    result->ms_per_step = n > 0 ? l->ms[n / 2] : 0.0;
    fsdp_status status =
        comm_agree(setup->run->world, l->csv.out ? atomic_file_commit(&l->csv) : FSDP_OK);
    result->failed_alike = status == FSDP_EIO;
    return status;
}

static fsdp_status append_param(void *ctx, int param, const float *values, size_t elems)
{
    (void)param;
    return export_append(ctx, values, elems);
}

fsdp_status train_export(const train_setup *setup, const char *dir)
{
    export_writer *w = NULL;
    bool writes = comm_rank(setup->run->world) == 0;
    fsdp_status status =
        comm_agree(setup->run->world, writes ? export_begin(setup->run->m, dir, &w) : FSDP_OK);
    if (status == FSDP_OK)
        status = setup->engine->read_params(setup->engine->self, append_param, w);
    if (!writes)
        return status == FSDP_OK ? comm_agree(setup->run->world, FSDP_OK) : status;
    if (status != FSDP_OK) {
        fsdp_error_info why = *fsdp_error_get();
        export_cancel(w);
        fsdp_error_set(&why);
        return status;
    }
    return comm_agree(setup->run->world, export_end(w));
}
