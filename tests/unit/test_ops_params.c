/* test_ops_params.c -- gradients of parameters are overwritten as they are added to zero. Both
 * tables share it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit/ops_check_lib.h"

static stream *s;

static int setup(void **state)
{
    s = ops_test_open(state);
    return 0;
}

/* ---- overwrite: what adding to 0 gives, whatever was there ----------------------------------- */

enum { OW_B = 2, OW_T = 3, OW_C = 70, OW_ROWS = OW_B * OW_T };

/* All gradients of parameters that d_out [rows, C] makes, one after the other. */
typedef struct param_grads {
    float bias[OW_C], norm_gain[OW_C], norm_bias[OW_C];
    float conv_weight[2 * 3 * 4], conv_bias[2];
} param_grads;

static void add_grads(const float *d_out, size_t batch, bool overwrite, param_grads *g)
{
    const ops *o = ops_cpu_fast();
    const size_t rows = batch * OW_T;
    float d_in[OW_ROWS * OW_C], x[OW_ROWS * OW_C], gain[OW_C], mean[OW_ROWS] = {0}, rstd[OW_ROWS];
    ops_test_fill(1, 1.0f, x, OW_ROWS * OW_C);
    ops_test_fill(2, 1.0f, gain, OW_C);
    for (int r = 0; r < OW_ROWS; r++)
        rstd[r] = 1.0f;
    OK(o->bias_backward(s,
                        &(bias_backward_args){g->bias, d_out, rows, OW_C, overwrite, DTYPE_F32}));
    OK(o->layernorm_backward(s, &(layernorm_backward_args){.d_in = d_in,
                                                           .d_gain = g->norm_gain,
                                                           .d_bias = g->norm_bias,
                                                           .d_out = d_out,
                                                           .in = x,
                                                           .gain = gain,
                                                           .mean = mean,
                                                           .rstd = rstd,
                                                           .rows = rows,
                                                           .cols = OW_C,
                                                           .overwrite = overwrite}));
    /* [batch, 2, 4, 6] of d_out, [batch, 3, 5, 7] of x */
    OK(o->conv2d_backward(s, &(conv2d_backward_args){.d_weight = g->conv_weight,
                                                     .d_bias = g->conv_bias,
                                                     .d_out = d_out,
                                                     .in = x,
                                                     .overwrite = overwrite,
                                                     .shape = {batch, 3, 2, 5, 7, 2, DTYPE_F32}}));
}

static void test_overwrite(void **state)
{
    (void)state;
    float d_out[OW_ROWS * OW_C];
    ops_test_fill(3, 1.0f, d_out, OW_ROWS * OW_C);
    for (size_t c = 0; c < OW_ROWS * OW_C; c += 7)
        d_out[c] = -0.0f; /* 0 + -0 is +0, and so are sums of -0 that begin at 0 */
    d_out[5] = NAN;
    for (size_t batch = 0; batch <= OW_B; batch++) {
        param_grads added = {0}, written;
        memset(&written, 0xff, sizeof written);
        add_grads(d_out, batch, false, &added);
        add_grads(d_out, batch, true, &written);
        expect_same_bits((float *)&written, (float *)&added, sizeof added / sizeof(float),
                         "gradients overwritten", "added to 0");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_overwrite),
    };
    return cmocka_run_group_tests(tests, setup, ops_test_close);
}
