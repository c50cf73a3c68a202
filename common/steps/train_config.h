/* train_config.h -- what the training loop is told: its recipe, its length, and its files. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define DEFAULT_MIN_LR   1e-4
#define DEFAULT_LR_GAMMA 0.1

/* Options that the loop takes as they were given. */
typedef struct train_options {
    double lr;
    int lr_schedule; /* SCHEDULE_COSINE ... */
    int64_t warmup_steps, lr_step_size;
    double beta1, beta2, momentum, rho, clip_grad;
    bool nesterov;
    int64_t eval_every;       /* steps, and at the end; 0: only at the end */
    int64_t eval_batches;     /* global batches of an evaluation; 0: see corpus_eval_samples */
    const char *loss_csv;     /* NULL: none */
    int64_t export_shard_mib; /* largest size of an exported file of weights */
    int64_t save_every;       /* steps, and at the end; 0: only at the end */
    bool save_async;          /* a thread writes checkpoints */
    int64_t stop_after;       /* number of steps after which to stop; 0: `steps` */
} train_options;

/* The loop's options, and the numbers that depend on several options or on the number of ranks. */
typedef struct train_config {
    const train_options *opt; /* borrowed */
    int64_t seq_len, steps, batch_size, grad_accum;
    int64_t global_batch; /* ranks * batch_size * grad_accum */
    double min_lr, lr_gamma, weight_decay, eps;
} train_config;

/* train_end -- the number of steps after which the run ends: the less of steps and stop_after. */
int64_t train_end(const train_config *cfg);

enum { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_STEP, SCHEDULE_CONSTANT };

/* train_lr -- the learning rate of step t (from 0): lr*(t+1)/warmup if t < warmup, else with
 * u = t-warmup and share = u/(steps-warmup)
 *   cosine    min_lr + (lr-min_lr)*(1 + cos(pi*share))/2
 *   linear    lr + (min_lr-lr)*share
 *   step      lr*lr_gamma^floor(u/lr_step_size)
 *   constant  lr */
double train_lr(const train_config *cfg, int64_t step);
