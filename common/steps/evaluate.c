/* evaluate.c -- evaluations of the training loop; see train_impl.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/model/family.h"
#include "common/steps/train_impl.h"

static size_t logits_bytes(const train_loop *l)
{
    const run_context *run = l->setup->run;
    return l->b * l->T * run->m->config.vocab_size * dtype_bytes(run->param_dtype);
}

fsdp_status train_open_answers(train_loop *l)
{
    if (!l->setup->run->m->family->metric)
        return FSDP_OK;
    l->host_logits = malloc(logits_bytes(l));
    if (!l->host_logits)
        return fsdp_error(FSDP_ENOMEM, "", "training loop: no host memory");
    return device_alloc(l->s, MEM_OTHER, logits_bytes(l), "logits", &l->logits);
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
        TRY(train_load_micro_step(l, setup->val_data, first, end, f, &ms));
        TRY(runner_forward(setup->runner, &ms));
        if (l->logits && setup->val_data)
            TRY(count_correct(l, &ms));
    }
    TRY(train_send_figures(l, f, false));
    *stats = comm_job_stats_read(setup->run->world);
    return train_await_figures(l, f, &unused);
}

fsdp_status train_rehearse_evaluation(train_loop *l, size_t n_batches, comm_stats *last_batch)
{
    for (size_t i = 0; i < n_batches && i < 2; i++)
        TRY(evaluate_batch(l, 0, 0, last_batch));
    return FSDP_OK;
}

/* The number of samples that the options ask for. */
static size_t eval_wanted(const train_config *cfg, const corpus *val_data)
{
    if (cfg->opt->eval_batches > 0)
        return (size_t)cfg->opt->eval_batches * (size_t)cfg->global_batch;
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

void train_note_evaluation(const train_loop *l)
{
    const train_setup *setup = l->setup;
    if (!setup->val_data || setup->cfg->opt->eval_batches == 0 || comm_rank(setup->run->world) != 0)
        return;
    const size_t wanted = eval_wanted(setup->cfg, setup->val_data);
    const size_t n = eval_samples(setup->cfg, setup->val_data);
    if (n < wanted)
        fprintf(
            setup->log,
            "note: --eval-batches %lld asks for %zu samples; there are %zu, each evaluated once\n",
            (long long)setup->cfg->opt->eval_batches, wanted, n);
}

fsdp_status train_evaluate(train_loop *l, int64_t step, comm_stats *last_batch)
{
    const train_setup *setup = l->setup;
    const size_t global = (size_t)setup->cfg->global_batch, nodes = l->n_nodes;
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
    TRY(train_scale_of(l, setup->val_data, "evaluation", 0, (int64_t)n, &scale));
    const float loss = tree_sum_f32(l->eval_losses, n_batches * nodes) * scale;
    if (!isfinite(loss)) {
        l->failed_alike = true;
        const char *hint = setup->run->forward_only ? "pass other weights" : DIVERGED_HINT;
        return fsdp_error(FSDP_EINVAL, hint,
                          "evaluation after step %lld: got loss %g, expected a finite number",
                          (long long)step + 1, (double)loss);
    }
    if (family->metric) {
        TRY(train_sum_ranks(l, "correct answers", &l->n_correct));
        snprintf(answers, sizeof answers, "%s %.2f%%  ", family->metric,
                 100.0 * (double)l->n_correct / (double)n);
    }
    if (comm_rank(setup->run->world) == 0)
        fprintf(setup->log, "eval  step %lld  %s %.9g  %s(%zu %s)\n", (long long)step + 1,
                setup->val_data == setup->data ? "loss" : "val loss", (double)loss, answers, n,
                family->samples ? family->samples : "sequences");
    return FSDP_OK;
}
