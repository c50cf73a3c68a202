/* train_config.c -- see train_config.h. */
#include "common/steps/train_config.h"
#include "common/base/pmath.h"

int64_t train_end(const train_config *cfg)
{
    const int64_t stop = cfg->opt->stop_after;
    return stop > 0 && stop < cfg->steps ? stop : cfg->steps;
}

/* base^n by repeated squaring. */
static double power(double base, int64_t n)
{
    double p = 1.0;
    for (; n > 0; n /= 2, base *= base)
        p *= n % 2 == 1 ? base : 1.0;
    return p;
}

double train_lr(const train_config *cfg, int64_t step)
{
    const train_options *o = cfg->opt;
    const int64_t warmup = o->warmup_steps, left = cfg->steps - warmup, after = step - warmup;
    const double share = left > 0 ? (double)after / (double)left : 1.0;
    if (after < 0)
        return o->lr * ((double)step + 1.0) / (double)warmup;
    switch (o->lr_schedule) {
    case SCHEDULE_COSINE:
        return cfg->min_lr +
               (o->lr - cfg->min_lr) * (1.0 + pm_cos(3.14159265358979323846 * share)) / 2.0;
    case SCHEDULE_LINEAR:
        return o->lr + (cfg->min_lr - o->lr) * share;
    case SCHEDULE_STEP:
        return o->lr * power(cfg->lr_gamma, after / o->lr_step_size);
    default:
        return o->lr;
    }
}
