/* train_config.c -- see train_config.h. */
#include "common/steps/train_config.h"
#include "common/base/pmath.h"

int64_t train_end(const train_config *cfg)
{
    return cfg->stop_after > 0 && cfg->stop_after < cfg->steps ? cfg->stop_after : cfg->steps;
}

/* The rate of a schedule `step` steps after the warm-up, share of the steps that follow it. */
typedef double (*schedule_fn)(const train_config *c, int64_t step, double share);

static double cosine(const train_config *c, int64_t step, double share)
{
    (void)step;
    return c->min_lr + (c->lr - c->min_lr) * (1.0 + pm_cos(3.14159265358979323846 * share)) / 2.0;
}

static double linear(const train_config *c, int64_t step, double share)
{
    (void)step;
    return c->lr + (c->min_lr - c->lr) * share;
}

/* gamma^n by repeated squaring. */
static double by_steps(const train_config *c, int64_t step, double share)
{
    (void)share;
    double lr = c->lr, factor = c->lr_gamma;
    for (int64_t n = step / c->lr_step_size; n > 0; n /= 2, factor *= factor)
        lr *= n % 2 == 1 ? factor : 1.0;
    return lr;
}

static double constant(const train_config *c, int64_t step, double share)
{
    (void)step, (void)share;
    return c->lr;
}

static const schedule_fn SCHEDULES[] = {[SCHEDULE_COSINE] = cosine,
                                        [SCHEDULE_LINEAR] = linear,
                                        [SCHEDULE_STEP] = by_steps,
                                        [SCHEDULE_CONSTANT] = constant};

double train_lr(const train_config *cfg, int64_t step)
{
    const int64_t warmup = cfg->warmup_steps, left = cfg->steps - warmup;
    if (step < warmup)
        return cfg->lr * ((double)step + 1.0) / (double)warmup;
    const double share = left > 0 ? (double)(step - warmup) / (double)left : 1.0;
    return SCHEDULES[cfg->lr_schedule](cfg, step - warmup, share);
}
