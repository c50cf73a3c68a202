/* row_adamw.h -- AdamW's update of one element, for all tables. It is lab 4's task 4.1, so a
 * learner's tree has no such file. See row_sums.h. */
#pragma once
#include <math.h>
#include "common/ops/ops.h"
#include "common/ops/row_sums.h"

/* adamw_elem -- one element's update, given g = grad * coef. */
ROW_FN void adamw_elem(const adamw_args *a, float g, float *param, float *m, float *v)
{
    const float decayed = *param - a->decay * *param;
    *m = a->beta1 * *m + a->one_minus_beta1 * g;
    *v = a->beta2 * *v + a->one_minus_beta2 * (g * g);
    *param = decayed - a->step_size * *m / (sqrtf(*v) / a->sqrt_bias2 + a->eps);
}
