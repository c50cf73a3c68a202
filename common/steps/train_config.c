/* train_config.c -- see train_config.h. */
#include "common/steps/train_config.h"
#include "common/base/pmath.h"

int64_t train_end(const train_config *cfg)
{
    return cfg->stop_after > 0 && cfg->stop_after < cfg->steps ? cfg->stop_after : cfg->steps;
}

double train_lr(const train_config *cfg, int64_t step)
{
    double t = (double)step, warmup = (double)cfg->warmup_steps, left = (double)cfg->steps - warmup;
    if (t < warmup)
        return cfg->lr * (t + 1.0) / warmup;
    double share = left > 0 ? (t - warmup) / left : 1.0;
    return cfg->min_lr +
           (cfg->lr - cfg->min_lr) * (1.0 + pm_cos(3.14159265358979323846 * share)) / 2.0;
}
