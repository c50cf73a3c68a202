/* train_config.h -- what the training loop is told: the recipe, its length, and its files. */
#pragma once
#include <stdint.h>

typedef struct train_config {
    int64_t seq_len, steps, warmup_steps;
    int64_t batch_size, grad_accum, global_batch; /* global = ranks * batch_size * grad_accum */
    double lr, min_lr, weight_decay, beta1, beta2, eps, clip_grad;
    int optimizer;        /* optimizer_kind */
    int64_t eval_every;   /* steps; 0: at the end */
    const char *loss_csv; /* NULL: none */
    int64_t save_every;   /* steps; 0: at the end */
    int64_t stop_after;   /* steps have been made; 0: at the end */
} train_config;

/* train_end -- steps after which the run ends: cfg->steps, or stop_after if that is less. */
int64_t train_end(const train_config *cfg);

/* train_lr -- the learning rate of step t (from 0):
 *   t < warmup  lr*(t+1)/warmup
 *   else        min_lr + (lr-min_lr)*(1 + cos(pi*(t-warmup)/(steps-warmup)))/2 */
double train_lr(const train_config *cfg, int64_t step);
