/* train.c -- see train.h. */
#include "common/steps/train.h"
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include "common/checkpoint/ckpt_store.h"
#include "common/model/family.h"
#include "common/observe/progress.h"
#include "common/steps/loss_csv.h"

#define DIVERGED_HINT "lower --lr, add --warmup-steps or set --clip-grad 1"
static const char NORM_HINT[] =
    DIVERGED_HINT ". If not every rank says so, add --check-order: a wait may be missing";

/* How many ranks a signal has asked to save, or to save and end, and how many ranks' threads still
 * write a checkpoint. The counts come with a step's losses, so all ranks see them at one step. */
enum { ASKED_TO_SAVE, ASKED_TO_END, STILL_WRITING, N_COUNTS };

/* The figures of a step, which the host reads after it has issued the next step. There are two: the
 * host reads one while the device fills the other. */
typedef struct step_figures {
    float *losses;      /* device [W*A]: rank r's A sums at r*A */
    float *norm;        /* device [1] */
    float *host_losses; /* [W*A] */
    float host_norm;
    void *counts;                  /* device [N_COUNTS], or NULL without setup->store */
    int64_t host_counts[N_COUNTS]; /* of this rank, until the sums arrive */
    float scale;     /* 1 / the number of targets that count: losses and gradients are sums */
    event *begun;    /* timed; recorded on compute before the step */
    event *computed; /* recorded on compute after it */
    event *arrived;  /* timed; recorded on loss_stream: the host may read */
} step_figures;

/* Buffers of one run. A micro-steps, b sequences in each, T tokens in a sequence, W ranks. */
struct train_loop {
    const train_setup *setup;
    stream *s;           /* compute */
    stream *loss_stream; /* owned; gathers the losses, over loss_group */
    comm *loss_group;    /* owned; all ranks */
    size_t A, b, T, W;
    bool asked_to_save; /* some rank was, which was read and not yet obeyed */
    bool asked_to_end;
    bool writing;       /* some rank was STILL_WRITING in the last step read, or a save has begun */
    size_t input_bytes; /* of a sample: T rows of the model's input */
    char *inputs;       /* host, [A][b] samples of the step being issued */
    int32_t *targets;   /* host, [A][b][T] */
    float *values;      /* [T rows] inputs of a sample before they are rounded to bf16, or NULL */
    /* If the family has a metric, the logits of a micro-step on the device and on the host, and the
     * number of correct answers in an evaluation. Else NULL and 0. */
    void *logits, *host_logits;
    int64_t n_correct;
    step_figures figures[2]; /* step t uses figures[t % 2] */
    bool failed_alike;       /* what failed has failed on all ranks */
    int64_t next_read;       /* the step whose figures the host reads next */
    int64_t n_counting;      /* targets that count, of the samples that this rank has loaded */
    float *in_order;         /* [W*A] losses in order of run_batch_node */
    float *eval_losses;      /* losses of an evaluation, batch after batch, each as in_order */
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
    TRY(device_zero(l->s, f->losses, l->W * l->A * sizeof *f->losses));
    if (l->setup->store)
        TRY(device_alloc(l->s, MEM_OTHER, sizeof f->host_counts, "counts", &f->counts));
    TRY(device_alloc_f32(l->s, MEM_OTHER, 1, "norm", &f->norm));
    TRY(event_create_timed(d, &f->begun));
    TRY(event_create(d, &f->computed));
    return event_create_timed(d, &f->arrived);
}

static void close_figures(train_loop *l, step_figures *f)
{
    device_free(l->s, f->losses);
    device_free(l->s, f->norm);
    device_free(l->s, f->counts);
    free(f->host_losses);
    event_free(f->begun);
    event_free(f->computed);
    event_free(f->arrived);
}

static size_t logits_bytes(const train_loop *l)
{
    const run_context *run = l->setup->run;
    return l->b * l->T * run->m->config.vocab_size * dtype_bytes(run->param_dtype);
}

/* Allocate what the metric needs. */
static fsdp_status open_answers(train_loop *l)
{
    if (!l->setup->run->m->family->metric)
        return FSDP_OK;
    l->host_logits = malloc(logits_bytes(l));
    if (!l->host_logits)
        return fsdp_error(FSDP_ENOMEM, "", "training loop: no host memory");
    return device_alloc(l->s, MEM_OTHER, logits_bytes(l), "logits", &l->logits);
}

static fsdp_status open_here(const train_setup *setup, train_loop *l)
{
    const train_config *c = setup->cfg;
    const model *m = setup->run->m;
    const dtype param_dtype = setup->run->param_dtype;
    *l = (train_loop){.setup = setup,
                      .s = device_compute_stream(setup->run->dev),
                      .next_read = setup->first_step,
                      .A = (size_t)setup->run->grad_accum,
                      .b = setup->run->batch,
                      .T = setup->run->seq_len,
                      .W = (size_t)comm_size(setup->run->world)};
    const size_t input_elems = l->T * m->input.width;
    const bool is_values = m->input.kind == ARRAY_VALUES;
    const bool rounds = is_values && param_dtype == DTYPE_BF16;
    l->input_bytes = input_elems * (is_values ? dtype_bytes(param_dtype) : sizeof(int32_t));
    l->values = rounds ? malloc(input_elems * sizeof *l->values) : NULL;
    l->inputs = calloc(l->A * l->b, l->input_bytes);
    l->targets = calloc(l->A * l->b, l->T * sizeof *l->targets);
    l->in_order = malloc(l->W * l->A * sizeof *l->in_order);
    l->ms = calloc((size_t)c->steps + 1, sizeof *l->ms);
    const size_t n_eval = setup->val_data ? train_eval_batches(c, setup->val_data) : 0;
    l->eval_losses = malloc((n_eval * l->W * l->A + 1) * sizeof *l->eval_losses);
    if ((rounds && !l->values) || !l->inputs || !l->targets || !l->in_order || !l->ms ||
        !l->eval_losses)
        return fsdp_error(FSDP_ENOMEM, "", "training loop: no host memory");
    TRY(stream_create(setup->run->dev, &(stream_config){.name = "loss"}, &l->loss_stream));
    TRY(open_figures(l, &l->figures[0]));
    TRY(open_figures(l, &l->figures[1]));
    TRY(open_answers(l));
    size_t saved_elems = 0;
    if (setup->store)
        TRY(setup->engine->saved_elems(setup->engine->self, &saved_elems));
    if (c->save_async)
        TRY(ckpt_async_open(l->s, saved_elems, &setup->store->async));
    if (comm_rank(setup->run->world) != 0)
        return FSDP_OK;
    if (setup->log)
        l->progress = progress_open(setup->log, train_end(c), c->global_batch * c->seq_len,
                                    m->family->unit ? m->family->unit : "tok", true);
    return c->loss_csv ? loss_csv_open(&l->csv, c->loss_csv, setup->first_step) : FSDP_OK;
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
    stream_free(l->loss_stream); /* waits for its work */
    comm_close(l->loss_group);
    if (l->setup->store)
        ckpt_async_close(l->setup->store->async);
    close_figures(l, &l->figures[0]);
    close_figures(l, &l->figures[1]);
    device_free(l->s, l->logits);
    free(l->host_logits);
    free(l->values);
    free(l->inputs);
    free(l->targets);
    free(l->in_order);
    free(l->eval_losses);
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
        status = comm_range(setup->run->world, 0, 1, (int)l->W, &l->loss_group);
    if (status != FSDP_OK) {
        fsdp_error_info why = *fsdp_error_get();
        train_close(l);
        fsdp_error_set(&why);
        return status;
    }
    *out = l;
    return FSDP_OK;
}

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

/* Fill in micro-step ms->a of this rank in the batch that starts at sample `first`, and load its
 * samples, those from `end` on as nothing. data NULL: they stay zero. */
static fsdp_status load_micro_step(train_loop *l, const corpus *data, uint64_t first, uint64_t end,
                                   const step_figures *f, micro_step *ms)
{
    const size_t r = (size_t)comm_rank(l->setup->run->world), a = (size_t)ms->a;
    char *inputs = l->inputs + a * l->b * l->input_bytes;
    int32_t *targets = l->targets + a * l->b * l->T;
    ms->inputs = inputs;
    ms->targets = targets;
    ms->first_sample = first + run_batch_node(l->setup->run, a, r) * l->b;
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

/* Issue the transfer of all ranks' losses, of the norm and, for a step, of the counts to the host.
 * It is complete when f->arrived is reached. */
static fsdp_status send_figures(train_loop *l, step_figures *f, bool of_step)
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

/* Wait for the figures. *loss = the sum over the sequences of all ranks' micro-steps, as one tree
 * in the order of run_batch_node. */
static fsdp_status await_figures(train_loop *l, step_figures *f, float *loss)
{
    TRY(event_sync(f->arrived));
    for (size_t a = 0; a < l->A; a++)
        for (size_t r = 0; r < l->W; r++)
            l->in_order[run_batch_node(l->setup->run, a, r)] = f->host_losses[r * l->A + a];
    *loss = tree_sum_f32(l->in_order, l->W * l->A);
    return FSDP_OK;
}

static step_scalars scalars_of(const train_config *c, int64_t step, float scale)
{
    return (step_scalars){
        .optim = {.step = step,
                  .lr = train_lr(c, step),
                  .beta1 = c->beta1,
                  .beta2 = c->beta2,
                  .eps = c->eps,
                  .weight_decay = c->weight_decay,
                  .momentum = c->momentum,
                  .nesterov = c->nesterov,
                  .rho = c->rho},
        .clip_norm = (float)c->clip_grad,
        .grad_scale = scale,
    };
}

/* The first sample of a step. */
static int64_t first_sample(const train_loop *l, int64_t step)
{
    return step * l->setup->cfg->global_batch + l->setup->sample_offset;
}

/* *n = its sum over all ranks. The hosts wait for each other; streams go on. */
static fsdp_status sum_ranks(const train_loop *l, const char *what, int64_t *n)
{
    void *all;
    TRY(comm_host_gather(l->setup->run->world, what, n, sizeof *n, &all));
    *n = 0;
    for (size_t r = 0; r < l->W; r++)
        *n += ((const int64_t *)all)[r];
    free(all);
    return FSDP_OK;
}

/* *scale = 1 / the number of targets that count in the samples first ... end - 1, which all ranks
 * have loaded since n_counting was 0. what: for the message. */
static fsdp_status scale_of(train_loop *l, const corpus *data, const char *what, int64_t first,
                            int64_t end, float *scale)
{
    int64_t n = (end - first) * (int64_t)l->T;
    if (data && data->mask) {
        n = l->n_counting;
        TRY(sum_ranks(l, "targets", &n));
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

/* Issue one optimizer step. Nothing here waits for the device. */
static fsdp_status train_step(train_loop *l, int64_t step)
{
    const train_setup *setup = l->setup;
    step_figures *f = &l->figures[step % 2];
    char what[32];
    l->n_counting = 0;
    if (setup->observer.begin_step)
        TRY(setup->observer.begin_step(setup->observer.self, step));
    TRY(event_record(f->begun, l->s));
    if (setup->engine->begin_step)
        TRY(setup->engine->begin_step(setup->engine->self));
    for (size_t a = 0; a < l->A; a++) {
        const uint64_t first = (uint64_t)first_sample(l, step);
        micro_step ms = {.a = (int)a, .training = true};
        TRY(load_micro_step(l, setup->data, first, UINT64_MAX, f, &ms));
        TRY(runner_forward(setup->runner, &ms));
        TRY(runner_backward(setup->runner));
    }
    device_set_scope(setup->run->dev, NULL, NULL);
    snprintf(what, sizeof what, "step %lld", (long long)step + 1);
    TRY(scale_of(l, setup->data, what, first_sample(l, step), first_sample(l, step + 1),
                 &f->scale));
    const step_scalars sc = scalars_of(setup->cfg, step, f->scale);
    TRY(setup->engine->optimizer_step(setup->engine->self, &sc, f->norm));
    device_set_scope(setup->run->dev, NULL, NULL);
    if (setup->observer.end_step)
        TRY(setup->observer.end_step(setup->observer.self));
    return send_figures(l, f, true);
}

/* Add the number of correct answers of a micro-step to l->n_correct. */
static fsdp_status count_correct(train_loop *l, const micro_step *ms)
{
    const run_context *run = l->setup->run;
    TRY(device_download(l->s, l->host_logits, l->logits, logits_bytes(l)));
    TRY(stream_sync(l->s));
    l->n_correct += (int64_t)run->m->family->count_correct(run->m, l->host_logits, run->param_dtype,
                                                           ms->targets, l->b * l->T);
    return FSDP_OK;
}

/* Compute the losses of the validation corpus's samples first ... end - 1, at most a global batch,
 * in l->in_order; forward only. *stats = the collective calls. */
static fsdp_status evaluate_batch(train_loop *l, uint64_t first, uint64_t end, comm_stats *stats)
{
    float unused;
    const train_setup *setup = l->setup;
    step_figures *f = &l->figures[0]; /* all steps have been read */
    comm_job_stats_reset(setup->run->world);
    for (size_t a = 0; a < l->A; a++) {
        micro_step ms = {.a = (int)a, .logits = l->logits};
        TRY(load_micro_step(l, setup->val_data, first, end, f, &ms));
        TRY(runner_forward(setup->runner, &ms));
        if (l->logits && setup->val_data)
            TRY(count_correct(l, &ms));
    }
    TRY(send_figures(l, f, false));
    *stats = comm_job_stats_read(setup->run->world);
    return await_figures(l, f, &unused);
}

/* The number of samples that the options ask for. */
static size_t eval_wanted(const train_config *cfg, const corpus *val_data)
{
    if (cfg->eval_batches > 0)
        return (size_t)cfg->eval_batches * (size_t)cfg->global_batch;
    return corpus_eval_samples(val_data);
}

/* The number of samples that an evaluation reads: no more than there are. */
static size_t eval_samples(const train_config *cfg, const corpus *val_data)
{
    const size_t wanted = eval_wanted(cfg, val_data);
    const size_t there = corpus_samples(val_data, (size_t)cfg->seq_len);
    return there < wanted ? there : wanted;
}

size_t train_eval_batches(const train_config *cfg, const corpus *val_data)
{
    const size_t global = (size_t)cfg->global_batch;
    return (eval_samples(cfg, val_data) + global - 1) / global;
}

/* Print the mean loss and the family's metric over the first samples of the validation corpus, each
 * once. The losses of all micro-batches are summed as one tree, whose shape does not
 * depend on the number of ranks or, in canonical mode, on the sizes of batches. */
static fsdp_status evaluate(train_loop *l, int64_t step, comm_stats *last_batch)
{
    const train_setup *setup = l->setup;
    const size_t global = (size_t)setup->cfg->global_batch, nodes = l->W * l->A;
    const size_t n_batches = train_eval_batches(setup->cfg, setup->val_data);
    const size_t n = eval_samples(setup->cfg, setup->val_data);
    const model_family *family = setup->run->m->family;
    float scale;
    char answers[64] = "";
    l->n_correct = l->n_counting = 0;
    for (size_t i = 0; i < n_batches; i++) {
        TRY(evaluate_batch(l, i * global, n, last_batch));
        memcpy(l->eval_losses + i * nodes, l->in_order, nodes * sizeof *l->in_order);
    }
    TRY(scale_of(l, setup->val_data, "evaluation", 0, (int64_t)n, &scale));
    const float loss = tree_sum_f32(l->eval_losses, n_batches * nodes) * scale;
    if (!isfinite(loss)) {
        l->failed_alike = true;
        const char *hint = setup->run->forward_only ? "pass other weights" : DIVERGED_HINT;
        return fsdp_error(FSDP_EINVAL, hint,
                          "evaluation after step %lld: got loss %g, expected a finite number",
                          (long long)step + 1, (double)loss);
    }
    if (family->metric) {
        TRY(sum_ranks(l, "correct answers", &l->n_correct));
        snprintf(answers, sizeof answers, "%s %.2f%%  ", family->metric,
                 100.0 * (double)l->n_correct / (double)n);
    }
    if (comm_rank(setup->run->world) == 0)
        fprintf(setup->log, "eval  step %lld  %s %.9g  %s(%zu %s)\n", (long long)step + 1,
                setup->val_data == setup->data ? "loss" : "val loss", (double)loss, answers, n,
                family->samples ? family->samples : "sequences");
    return FSDP_OK;
}

static fsdp_status record_step(train_loop *l, const loss_row *row)
{
    progress_step(l->progress, row->step, (double)row->loss, (double)row->norm, row->ms,
                  ledger_read(device_ledger(l->setup->run->dev)).peak_total_bytes);
    return l->csv.out ? loss_csv_row(&l->csv, row) : FSDP_OK;
}

static bool due(int64_t every, int64_t step, int64_t end)
{
    return step + 1 == end || (every > 0 && (step + 1) % every == 0);
}

/* All ranks see the same loss, because it was gathered. A norm may be wrong on one rank only. Then
 * the other ranks go on, so this rank must end the job. */
static fsdp_status check_finite(train_loop *l, int64_t step, float loss, float norm)
{
    if (isfinite(loss) && isfinite(norm))
        return FSDP_OK;
    l->failed_alike = !isfinite(loss) || l->W == 1;
    return fsdp_error(FSDP_EINVAL, l->failed_alike ? DIVERGED_HINT : NORM_HINT,
                      "training diverged at step %lld: loss %g, gradient norm %g, expected finite",
                      (long long)step + 1, (double)loss, (double)norm);
}

static fsdp_status save_csv(train_loop *l)
{
    const train_config *c = l->setup->cfg;
    return loss_csv_save(&l->csv, c->loss_csv, l->next_read, l->next_read < train_end(c));
}

/* Begin a checkpoint, or finish the one in flight. If this publishes a checkpoint, publish the loss
 * file first; if that fails, no checkpoint is published. */
static fsdp_status write_files(train_loop *l, bool begins)
{
    const train_setup *setup = l->setup;
    const bool completes = !begins || !setup->store->async;
    if (setup->observer.pause)
        setup->observer.pause(setup->observer.self);
    comm_set_patience(setup->run->world, TRAIN_FILES_TIMES);
    fsdp_status status = comm_agree(setup->run->world, completes ? save_csv(l) : FSDP_OK);
    if (!begins)
        status = ckpt_save_finish(setup->store, status);
    else if (status == FSDP_OK)
        status = setup->engine->save(setup->engine->self, setup->store, l->next_read);
    comm_set_patience(setup->run->world, 1);
    /* all ranks have agreed on these; other errors may be one rank's own */
    l->failed_alike = status == FSDP_EIO || status == FSDP_EINVAL;
    return status;
}

/* Begin a checkpoint. All issued steps must have been read. */
static fsdp_status save(train_loop *l)
{
    const train_setup *setup = l->setup;
    if (ckpt_async_in_flight(setup->store->async)) {
        if (comm_rank(setup->run->world) == 0)
            fprintf(stderr,
                    "note: the checkpoint of step %lld waits until the one before it is written\n",
                    (long long)l->next_read);
        TRY(write_files(l, false));
    }
    l->writing = true; /* later steps report when writing has ended */
    return write_files(l, true);
}

/* Publish the checkpoint in flight if all ranks have written it. at_end: wait until they have. */
static fsdp_status end_save(train_loop *l, bool at_end)
{
    const ckpt_store *store = l->setup->store;
    if (!store || !ckpt_async_in_flight(store->async) || (l->writing && !at_end))
        return FSDP_OK;
    return write_files(l, false);
}

/* Read and report the steps up to `last` that have not been read. The loss is the mean over the
 * global batch; the norm is from before clipping. */
static fsdp_status read_steps(train_loop *l, int64_t last, train_result *result)
{
    for (; l->next_read <= last; l->next_read++) {
        int64_t step = l->next_read, n = step - l->setup->first_step;
        step_figures *f = &l->figures[step % 2];
        float loss;
        double seconds;
        TRY(await_figures(l, f, &loss));
        l->asked_to_save = l->asked_to_save || f->host_counts[ASKED_TO_SAVE] > 0;
        l->asked_to_end = l->asked_to_end || f->host_counts[ASKED_TO_END] > 0;
        l->writing = f->host_counts[STILL_WRITING] > 0;
        TRY(event_elapsed_s(f->begun, f->arrived, &seconds));
        loss *= f->scale;
        l->ms[n] = 1e3 * seconds;
        result->first_loss = n == 0 ? (double)loss : result->first_loss;
        result->last_loss = (double)loss;
        if (l->setup->run->no_norm)
            f->host_norm = NAN;
        TRY(record_step(l, &(loss_row){.step = step,
                                       .loss = loss,
                                       .norm = f->host_norm,
                                       .lr = train_lr(l->setup->cfg, step),
                                       .ms = l->ms[n]}));
        TRY(check_finite(l, step, loss, l->setup->run->no_norm ? 0 : f->host_norm));
    }
    return FSDP_OK;
}

/* As in train_run, the host reads the figures of a step after it has issued the next one. */
fsdp_status train_rehearse(train_loop *l, int n, comm_stats *last_step)
{
    float loss;
    for (int step = 0; step < n; step++) {
        comm_job_stats_reset(l->setup->run->world);
        TRY(train_step(l, step));
        *last_step = comm_job_stats_read(l->setup->run->world);
        if (step > 0)
            TRY(await_figures(l, &l->figures[(step - 1) % 2], &loss));
    }
    return await_figures(l, &l->figures[(n - 1) % 2], &loss);
}

fsdp_status train_rehearse_evaluation(train_loop *l, size_t n_batches, comm_stats *last_batch)
{
    for (size_t i = 0; i < n_batches && i < 2; i++)
        TRY(evaluate_batch(l, 0, 0, last_batch));
    return FSDP_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Say so if --eval-batches asks for more than there is. */
static void note_short_evaluation(const train_loop *l)
{
    const train_setup *setup = l->setup;
    if (!setup->val_data || setup->cfg->eval_batches == 0 || comm_rank(setup->run->world) != 0)
        return;
    const size_t wanted = eval_wanted(setup->cfg, setup->val_data);
    const size_t n = eval_samples(setup->cfg, setup->val_data);
    if (n < wanted)
        fprintf(
            setup->log,
            "note: --eval-batches %lld asks for %zu samples; there are %zu, each evaluated once\n",
            (long long)setup->cfg->eval_batches, wanted, n);
}

/* If no step was left to make, save what was resumed, or the initial state, unless the directory
 * has this step. */
static fsdp_status save_unmade(train_loop *l)
{
    const train_setup *setup = l->setup;
    bool is_saved = true;
    if (setup->store && setup->first_step >= train_end(setup->cfg))
        TRY(ckpt_store_has(setup->store, setup->first_step, &is_saved));
    if (is_saved)
        return FSDP_OK;
    train_discard(l); /* keep an old loss file */
    return save(l);
}

static fsdp_status run_steps(train_loop *l, train_result *result)
{
    const train_setup *setup = l->setup;
    const train_config *c = setup->cfg;
    const int64_t end = train_end(c);
    comm_stats unused;
    note_short_evaluation(l);
    if (setup->run->forward_only && setup->val_data)
        TRY(evaluate(l, setup->first_step - 1, &result->step_stats));
    for (int64_t step = setup->first_step; step < end && !result->ended_early; step++) {
        const bool evaluates = setup->val_data && due(c->eval_every, step, end);
        const bool saves = setup->store && due(c->save_every, step, end);
        /* whether this step's figures are needed before the next step is issued */
        const bool stops = setup->step_by_step || step + 1 == end || evaluates || saves;
        comm_job_stats_reset(setup->run->world);
        TRY(train_step(l, step));
        result->step_stats = comm_job_stats_read(setup->run->world);
        TRY(read_steps(l, stops ? step : step - 1, result));
        TRY(end_save(l, false));
        if (!stops && !l->asked_to_save && !l->asked_to_end)
            continue;
        TRY(read_steps(l, step, result));
        if (evaluates)
            TRY(evaluate(l, step, &unused));
        if (saves || l->asked_to_save || l->asked_to_end)
            TRY(save(l));
        result->ended_early = l->asked_to_end && step + 1 < end;
        l->asked_to_save = l->asked_to_end = false;
        /* A SIGUSR1 that came during the save is answered by that save. */
        (void)comm_signal_came(setup->run->world, SIGUSR1);
    }
    TRY(save_unmade(l));
    return end_save(l, true);
}

fsdp_status train_run(train_loop *l, train_result *result)
{
    const train_setup *setup = l->setup;
    comm_set_patience(setup->run->world, 1);
    *result = (train_result){0};
    fsdp_status status = run_steps(l, result);
    result->failed_alike = l->failed_alike;
    if (status == FSDP_EINVAL && result->failed_alike) { /* diverged: publish the save in flight */
        const fsdp_error_info why = *fsdp_error_get();
        (void)end_save(l, true);
        fsdp_error_set(&why);
    }
    TRY(status);
    const int64_t n = l->next_read - setup->first_step;
    qsort(l->ms, (size_t)n, sizeof *l->ms, by_value);
    result->ms_per_step = n > 0 ? l->ms[n / 2] : 0.0;
    if (n == 0) /* keep an old loss file */
        train_discard(l);
    comm_set_patience(setup->run->world, TRAIN_FILES_TIMES); /* the caller writes files next */
    status = comm_agree(setup->run->world, l->csv.out ? atomic_file_commit(&l->csv) : FSDP_OK);
    result->failed_alike = status == FSDP_EIO;
    return status;
}
