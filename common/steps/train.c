/* train.c -- see train.h. */
#include "common/steps/train.h"
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include "common/model/family.h"
#include "common/steps/loss_csv.h"
#include "common/steps/train_impl.h"

static const char NORM_HINT[] = "lower --lr, add --warmup-steps or set --clip-grad 1. If not every "
                                "rank says so, add --check-order: a wait may be missing";

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
    l->n_nodes = (size_t)mesh_leaf_size(&setup->run->shape) * l->A;
    const size_t input_elems = l->T * m->input.width;
    const bool is_values = m->input.kind == ARRAY_VALUES;
    const bool rounds = is_values && param_dtype == DTYPE_BF16;
    l->input_bytes = input_elems * (is_values ? dtype_bytes(param_dtype) : sizeof(int32_t));
    l->values = rounds ? malloc(input_elems * sizeof *l->values) : NULL;
    l->inputs = calloc(l->A * l->b, l->input_bytes);
    l->targets = calloc(l->A * l->b, l->T * sizeof *l->targets);
    l->in_order = malloc(l->n_nodes * sizeof *l->in_order);
    l->ms = calloc((size_t)c->steps + 1, sizeof *l->ms);
    const size_t n_eval = setup->val_data ? train_eval_batches(c, setup->val_data) : 0;
    l->eval_losses = malloc((n_eval * l->n_nodes + 1) * sizeof *l->eval_losses);
    if ((rounds && !l->values) || !l->inputs || !l->targets || !l->in_order || !l->ms ||
        !l->eval_losses)
        return fsdp_error(FSDP_ENOMEM, "", "training loop: no host memory");
    TRY(stream_create(setup->run->dev, &(stream_config){.name = "loss"}, &l->loss_stream));
    TRY(train_open_figures(l, &l->figures[0]));
    TRY(train_open_figures(l, &l->figures[1]));
    TRY(train_open_answers(l));
    size_t saved_elems = 0;
    if (setup->store)
        TRY(setup->engine->saved_elems(setup->engine->self, &saved_elems));
    if (c->opt->save_async)
        TRY(ckpt_async_open(l->s, saved_elems, &setup->store->async));
    if (comm_rank(setup->run->world) != 0)
        return FSDP_OK;
    if (setup->log)
        l->progress = progress_open(setup->log, train_end(c), c->global_batch * c->seq_len,
                                    m->family->unit ? m->family->unit : "tok", true);
    const char *csv = setup->data ? c->opt->loss_csv : NULL;
    return csv ? loss_csv_open(&l->csv, csv, setup->first_step) : FSDP_OK;
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
    train_close_figures(l, &l->figures[0]);
    train_close_figures(l, &l->figures[1]);
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

static step_scalars scalars_of(const train_config *c, int64_t step, float scale)
{
    return (step_scalars){
        .optim = {.step = step,
                  .lr = train_lr(c, step),
                  .beta1 = c->opt->beta1,
                  .beta2 = c->opt->beta2,
                  .eps = c->eps,
                  .weight_decay = c->weight_decay,
                  .momentum = c->opt->momentum,
                  .nesterov = c->opt->nesterov,
                  .rho = c->opt->rho},
        .clip_norm = (float)c->opt->clip_grad,
        .grad_scale = scale,
    };
}

/* The first sample of a step. */
static int64_t first_sample(const train_loop *l, int64_t step)
{
    return step * l->setup->cfg->global_batch + l->setup->sample_offset;
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
        TRY(train_load_micro_step(l, setup->data, first, UINT64_MAX, f, &ms));
        TRY(runner_forward(setup->runner, &ms));
        TRY(runner_backward(setup->runner));
    }
    device_set_scope(setup->run->dev, NULL, NULL);
    snprintf(what, sizeof what, "step %lld", (long long)step + 1);
    TRY(train_scale_of(l, setup->data, what, first_sample(l, step), first_sample(l, step + 1),
                       &f->scale));
    const step_scalars sc = scalars_of(setup->cfg, step, f->scale);
    TRY(setup->engine->optimizer_step(setup->engine->self, &sc, f->norm));
    device_set_scope(setup->run->dev, NULL, NULL);
    if (setup->observer.end_step)
        TRY(setup->observer.end_step(setup->observer.self));
    return train_send_figures(l, f, true);
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

/* Read and report the steps up to `last` that have not been read. The loss is the mean over the
 * global batch; the norm is from before clipping. */
static fsdp_status read_steps(train_loop *l, int64_t last, train_result *result)
{
    for (; l->next_read <= last; l->next_read++) {
        int64_t step = l->next_read, n = step - l->setup->first_step;
        step_figures *f = &l->figures[step % 2];
        float loss;
        double seconds;
        TRY(train_await_figures(l, f, &loss));
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
            TRY(train_await_figures(l, &l->figures[(step - 1) % 2], &loss));
    }
    return train_await_figures(l, &l->figures[(n - 1) % 2], &loss);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static fsdp_status run_steps(train_loop *l, train_result *result)
{
    const train_setup *setup = l->setup;
    const train_config *c = setup->cfg;
    const int64_t end = train_end(c);
    comm_stats unused;
    train_note_evaluation(l);
    if (setup->run->forward_only && setup->val_data)
        TRY(train_evaluate(l, setup->first_step - 1, &result->step_stats));
    for (int64_t step = setup->first_step; step < end && !result->ended_early; step++) {
        const bool evaluates = setup->val_data && due(c->opt->eval_every, step, end);
        const bool saves = setup->store && due(c->opt->save_every, step, end);
        /* whether this step's figures are needed before the next step is issued */
        const bool stops = setup->step_by_step || step + 1 == end || evaluates || saves;
        comm_job_stats_reset(setup->run->world);
        TRY(train_step(l, step));
        result->step_stats = comm_job_stats_read(setup->run->world);
        TRY(read_steps(l, stops ? step : step - 1, result));
        TRY(train_end_save(l, false));
        if (!stops && !l->asked_to_save && !l->asked_to_end)
            continue;
        TRY(read_steps(l, step, result));
        if (evaluates)
            TRY(train_evaluate(l, step, &unused));
        if (saves || l->asked_to_save || l->asked_to_end)
            TRY(train_save(l));
        result->ended_early = l->asked_to_end && step + 1 < end;
        l->asked_to_save = l->asked_to_end = false;
        /* A SIGUSR1 that came during the save is answered by that save. */
        (void)comm_signal_came(setup->run->world, SIGUSR1);
    }
    TRY(train_save_unmade(l));
    return train_end_save(l, true);
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
        (void)train_end_save(l, true);
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
