/* train.c -- see train.h. */
#include "common/train/train.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/atomic_file.h"
#include "common/model/export.h"
#include "common/observe/progress.h"

enum { EVAL_SEQUENCES = 128 };

/* What a step leaves to be read when the next one has been issued. There are two: the host reads
 * the one while the device fills the other. */
typedef struct step_figures {
    float *losses;      /* device [W*A]: rank r's A sums at r*A */
    float *norm;        /* device [1] */
    float *host_losses; /* [W*A] */
    float host_norm;
    event *begun;    /* timed; recorded on compute before the step */
    event *computed; /* recorded on compute after it */
    event *arrived;  /* timed; recorded on loss_stream: the host may read */
} step_figures;

/* Buffers of one run. A micro-steps, b sequences in each, T tokens in a sequence, W ranks. */
struct train_loop {
    const train_setup *setup;
    stream *s;           /* compute */
    stream *loss_stream; /* owned; where the losses are gathered, on a group of its own */
    comm *loss_group;    /* owned; all ranks */
    size_t A, b, T, W;
    int32_t *tokens;         /* host, [A][b][T] of the step that is being issued */
    int32_t *targets;        /* the same */
    step_figures figures[2]; /* of even and odd steps */
    int64_t next_read;       /* the step whose figures the host reads next */
    float *in_order;         /* [W*A] losses in order of micro-step and then rank */
    double *ms;              /* [steps] */
    atomic_file csv;
    progress *progress;
};

static fsdp_status open_figures(train_loop *l, step_figures *f)
{
    device *d = l->setup->run->dev;
    f->host_losses = malloc(l->W * l->A * sizeof *f->host_losses);
    if (!f->host_losses)
        return fsdp_error(FSDP_ENOMEM, "", "training loop: no host memory");
    TRY(device_alloc_f32(l->s, MEM_OTHER, l->W * l->A, "losses", &f->losses));
    TRY(device_alloc_f32(l->s, MEM_OTHER, 1, "norm", &f->norm));
    TRY(event_create_timed(d, &f->begun));
    TRY(event_create(d, &f->computed));
    return event_create_timed(d, &f->arrived);
}

static void close_figures(train_loop *l, step_figures *f)
{
    device_free(l->s, f->losses);
    device_free(l->s, f->norm);
    free(f->host_losses);
    event_free(f->begun);
    event_free(f->computed);
    event_free(f->arrived);
}

static fsdp_status open_here(const train_setup *setup, train_loop *l)
{
    const train_config *c = setup->cfg;
    *l = (train_loop){.setup = setup,
                      .s = device_compute_stream(setup->run->dev),
                      .next_read = setup->first_step,
                      .A = (size_t)setup->run->grad_accum,
                      .b = setup->run->batch,
                      .T = setup->run->seq_len,
                      .W = (size_t)comm_size(setup->run->world)};
    size_t step_tokens = l->A * l->b * l->T;
    l->tokens = malloc(step_tokens * sizeof *l->tokens);
    l->targets = malloc(step_tokens * sizeof *l->targets);
    l->in_order = malloc(l->W * l->A * sizeof *l->in_order);
    l->ms = calloc((size_t)c->steps + 1, sizeof *l->ms);
    if (!l->tokens || !l->targets || !l->in_order || !l->ms)
        return fsdp_error(FSDP_ENOMEM, "", "training loop: no host memory");
    TRY(stream_create(setup->run->dev, &(stream_config){.name = "loss"}, &l->loss_stream));
    TRY(open_figures(l, &l->figures[0]));
    TRY(open_figures(l, &l->figures[1]));
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
    stream_free(l->loss_stream); /* waits for what is in flight */
    comm_close(l->loss_group);
    close_figures(l, &l->figures[0]);
    close_figures(l, &l->figures[1]);
    free(l->tokens);
    free(l->targets);
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
    if (status == FSDP_OK)
        status = comm_split(setup->run->world, 0, comm_rank(setup->run->world), &l->loss_group);
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

static micro_step micro_step_of(const train_loop *l, const step_figures *f, size_t a, bool training)
{
    size_t at = a * l->b * l->T, mine = (size_t)comm_rank(l->setup->run->world) * l->A;
    return (micro_step){.tokens = l->tokens + at,
                        .targets = l->targets + at,
                        .a = (int)a,
                        .n_micro = (int)l->A,
                        .training = training,
                        .loss = f->losses + mine + a};
}

/* Bring the losses of all ranks, and the norm, to the host: there when f->arrived is reached. */
static fsdp_status send_figures(train_loop *l, step_figures *f)
{
    float *mine = f->losses + (size_t)comm_rank(l->loss_group) * l->A;
    stream *s = l->loss_stream;
    TRY(event_record(f->computed, l->s));
    TRY(stream_wait_event(s, f->computed));
    TRY(comm_all_gather(l->loss_group, s, "loss", DTYPE_F32, mine, f->losses, l->A));
    TRY(device_download(s, f->host_losses, f->losses, l->W * l->A * sizeof *f->losses));
    TRY(device_download(s, &f->host_norm, f->norm, sizeof *f->norm));
    return event_record(f->arrived, s);
}

/* Wait for the figures. *loss = the sum over the sequences of all ranks' micro-steps, in one tree
 * whose node number a*W + r is micro-step a of rank r. */
static fsdp_status await_figures(train_loop *l, step_figures *f, float *loss)
{
    TRY(event_sync(f->arrived));
    for (size_t a = 0; a < l->A; a++)
        for (size_t r = 0; r < l->W; r++)
            l->in_order[a * l->W + r] = f->host_losses[r * l->A + a];
    *loss = tree_sum_f32(l->in_order, l->W * l->A);
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

/* Issue one optimizer step. Nothing here waits for the device. */
static fsdp_status train_step(train_loop *l, int64_t step)
{
    const train_setup *setup = l->setup;
    const train_config *c = setup->cfg;
    step_figures *f = &l->figures[step % 2];
    step_scalars sc = scalars_of(c, step);
    if (setup->observer.begin_step)
        TRY(setup->observer.begin_step(setup->observer.self, step));
    TRY(event_record(f->begun, l->s));
    TRY(setup->engine->begin_step(setup->engine->self));
    for (size_t a = 0; a < l->A; a++) {
        micro_step ms = micro_step_of(l, f, a, true);
        load_sequences(l, setup->data, (uint64_t)step * (uint64_t)c->global_batch, a);
        TRY(runner_forward(setup->runner, &ms));
        TRY(runner_backward(setup->runner));
    }
    device_set_scope(setup->run->dev, NULL, NULL);
    TRY(setup->engine->optimizer_step(setup->engine->self, &sc, f->norm));
    return send_figures(l, f);
}

/* The loss of one global batch of the validation corpus, forward only. */
static fsdp_status evaluate_batch(train_loop *l, uint64_t first, float *loss)
{
    const train_setup *setup = l->setup;
    step_figures *f = &l->figures[0]; /* all steps have been read */
    for (size_t a = 0; a < l->A; a++) {
        micro_step ms = micro_step_of(l, f, a, false);
        load_sequences(l, setup->val_data, first, a);
        TRY(runner_forward(setup->runner, &ms));
    }
    TRY(send_figures(l, f));
    return await_figures(l, f, loss);
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
    if (setup->observer.pause)
        setup->observer.pause(setup->observer.self);
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

/* Whether something follows step `step` that reads or writes what it computes. */
static bool stops_after(const train_loop *l, int64_t step)
{
    const train_config *c = l->setup->cfg;
    return l->setup->step_by_step || step + 1 == c->steps ||
           (l->setup->val_data && due(c->eval_every, step, c->steps)) ||
           (c->save_dir && due(c->save_every, step, c->steps));
}

/* Read and report the steps up to `last` that have not been read. The loss is the mean over the
 * global batch, the norm that before clipping. */
static fsdp_status read_steps(train_loop *l, int64_t last, train_result *result)
{
    for (; l->next_read <= last; l->next_read++) {
        int64_t step = l->next_read, n = step - l->setup->first_step;
        step_figures *f = &l->figures[step % 2];
        float loss;
        double seconds;
        TRY(await_figures(l, f, &loss));
        TRY(event_elapsed_s(f->begun, f->arrived, &seconds));
        loss *= scalars_of(l->setup->cfg, step).grad_scale;
        l->ms[n] = 1e3 * seconds;
        result->first_loss = n == 0 ? (double)loss : result->first_loss;
        result->last_loss = (double)loss;
        TRY(record_step(l, step, loss, f->host_norm, l->ms[n]));
        TRY(check_finite(step, loss, f->host_norm, &result->failed_alike));
    }
    return FSDP_OK;
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
        bool stops = stops_after(l, step);
        comm_job_stats_reset(setup->run->world);
        TRY(train_step(l, step));
        result->step_stats = comm_job_stats_read(setup->run->world);
        TRY(read_steps(l, stops ? step : step - 1, result));
        if (stops)
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
