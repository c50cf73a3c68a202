/* test_chunk_loss.c -- a head that computes its loss in chunks: the bits of a head without chunks
 * in portable operations, and a derived bound in fast ones.
 *
 * Bounds of the fast operations. Two heads read the same bits of x = norm(in) and of the weights w.
 * They may sum each product in another order, because a library may choose by its shape. u = 2^-24,
 * gamma_k = k u / (1 - k u) [Higham, Accuracy and Stability, ch. 4], and v = 2^-8 in bf16, 0 in
 * fp32. The logits z, p and d = p - onehot below are the exact ones. R rows, V tokens, width C.
 *
 * - Logits. Each head is within e_rv = gamma_C sum_c |x_rc w_vc| + v |z_rv| of z_rv. So two
 *   heads are within D = 2 max_v e_rv of each other in row r.
 * - Softmax. A term exp(z - top) is off by at most q_rv = u (4 |z - top| + 32) of it, as in
 *   test_ops_double.c, and the sum of a row by max_v q_rv + gamma_V of it. Let S be 4 times the
 *   last. Two heads are within p (exp(2 D) - 1 + S) of each other.
 * - The gradient d. Each head rounds p - 1, and rounds d when it stores it. So two heads are within
 *   E_rv = p (exp(2 D) - 1 + S) + 2 (u + v) |d_rv|.
 * - The loss. 2 D + S for each row, and 2 u |loss| for the last rounding.
 * - The weight's gradient. sum_r E_rv |x_rc| + 2 gamma_R sum_r (|d_rv| + E_rv) |x_rc| for any cut
 *   into chunks: adding up chunks is one more order of the same sum.
 * - The norm's gradient g = d w. F_rc = sum_v E_rv |w_vc| + 2 gamma_V sum_v (|d_rv| + E_rv)
 *   |w_vc| + 2 v |g_rc|.
 * - Gain and bias. sum_r F_rc |y_rc| + 2 gamma_{R+2} sum_r |g_rc y_rc|, where y = (in - mean) rstd
 *   for the gain and y = 1 for the bias.
 * - The input's gradient is linear in a = g gain: rstd (a - mean(a) - y mean(a y)). Its bound is
 *   rstd (A + mean(A) + |y| mean(A |y|)) + 2 (u + v) |itself|, where A = F |gain| + 2 gamma_{C+8}
 *   |a| has the roundings of the means, too. */
#include "tests/unit/unit_lib.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit/model_lib.h"

enum { BATCH = 3, SEQ = 50, ROWS = BATCH * SEQ, C = 34, V = 301 };
static const size_t CHUNKS[] = {1, 7, 50, 64, ROWS, 1000};
enum { N_CHUNKS = sizeof CHUNKS / sizeof *CHUNKS };

/* ---- a head ---------------------------------------------------------------------------------- */

/* A model after a training and an evaluation. The head's weight has its own gradient, separate from
 * the tied one. */
typedef struct head {
    rig r;
    float loss, eval_loss;
    float *d_weight; /* with the rig's canary */
} head;

static const param_spec *spec_of(const head *h, int k)
{
    return &h->r.m.params[h->r.m.n_params - 3 + k];
}

static float *grad_of(const head *h, int k)
{
    return h->r.views.grads[h->r.m.n_params - 3 + k];
}

static void head_run(head *h, const ops *o, dtype type, size_t chunk_rows)
{
    static const model_config MODEL = {.family = "gpt2",
                                       .n_blocks = 1,
                                       .n_head = 2,
                                       .d_model = C,
                                       .d_ff = 14,
                                       .vocab_size = V,
                                       .max_seq_len = SEQ};
    rig_open(&h->r, &(rig_config){.model = &MODEL,
                                  .ops = o,
                                  .type = type,
                                  .batch = BATCH,
                                  .seq_len = SEQ,
                                  .chunk_rows = chunk_rows});
    const int tied = h->r.m.n_params - 1;
    const size_t bytes = h->r.m.params[tied].elems * sizeof(float);
    h->d_weight = rig_array(bytes);
    memset(h->d_weight, 0, bytes);
    h->r.views.grads[tied] = h->d_weight;
    h->eval_loss = rig_forward(&h->r, false, false);
    assert_true(rig_forward(&h->r, false, true) == h->eval_loss);
    h->loss = rig_forward(&h->r, true, true);
    assert_true(chunk_rows == 0 || h->loss == -1.0f); /* not known yet */
    rig_backward(&h->r);
    h->loss = *h->r.loss;
}

static void head_free(head *h)
{
    free(h->d_weight);
    h->r.views.grads[h->r.m.n_params - 1] = h->r.views.grads[0];
    rig_close(&h->r);
}

/* ---- bits ------------------------------------------------------------------------------------ */

TEST(test_same_bits)
{
    for (int t = 0; t < 2; t++) {
        const dtype type = t ? DTYPE_BF16 : DTYPE_F32;
        head whole;
        head_run(&whole, ops_cpu_portable(), type, 0);
        for (size_t i = 0; i < N_CHUNKS; i++) {
            head h;
            head_run(&h, ops_cpu_portable(), type, CHUNKS[i]);
            assert_memory_equal(&h.loss, &whole.loss, sizeof h.loss);
            assert_memory_equal(&h.eval_loss, &whole.loss, sizeof h.loss);
            assert_memory_equal(h.r.logits, whole.r.logits,
                                ROWS * h.r.m.config.vocab_size * dtype_bytes(type));
            for (int p = 0; p < h.r.m.n_params; p++)
                assert_memory_equal(h.r.views.grads[p], whole.r.views.grads[p],
                                    h.r.m.params[p].elems * sizeof(float));
            head_free(&h);
        }
        head_free(&whole);
    }
}

/* A frozen weight costs no product, and the other gradients are the same. */
static fsdp_status (*plain_matmul)(stream *s, const matmul_args *a);
static int n_products;

static fsdp_status counted_matmul(stream *s, const matmul_args *a)
{
    n_products++;
    return plain_matmul(s, a);
}

static int products_of(head *h, bool frozen)
{
    rig *r = &h->r;
    const int last = r->m.n_layers - 1;
    const layer *l = &r->m.layers[last];
    float *grads[3] = {grad_of(h, 0), grad_of(h, 1), frozen ? NULL : grad_of(h, 2)};
    ops counted = *r->o;
    plain_matmul = counted.matmul;
    counted.matmul = counted_matmul;
    layer_io io = rig_io(r, last);
    io.training = io.keeps = true;
    io.scratch = r->scratch[1];
    io.d_in[0] = r->d_out[last - 1];
    io.grads = grads;
    io.overwrite = (const bool[]){true, true, true};
    n_products = 0;
    OK(l->forward(l, &counted, r->s, &io));
    OK(l->backward(l, &counted, r->s, &io));
    return n_products;
}

TEST(test_products)
{
    head whole;
    head_run(&whole, ops_cpu_portable(), DTYPE_F32, 0);
    head parts;
    head_run(&parts, ops_cpu_portable(), DTYPE_F32, 50);
    assert_int_equal(products_of(&whole, false), 3);
    assert_int_equal(products_of(&parts, false), 3 * 3); /* none is computed twice */
    for (int k = 0; k < 3; k++) /* only later chunks read what the gradients hold */
        assert_memory_equal(grad_of(&parts, k), grad_of(&whole, k),
                            spec_of(&parts, k)->elems * sizeof(float));
    assert_int_equal(products_of(&parts, true), 3 * 2);
    head_free(&whole);
    head_free(&parts);
}

/* ---- bounds ---------------------------------------------------------------------------------- */

static const double U = 0x1p-24;

static double gamma_of(size_t k)
{
    return (double)k * U / (1.0 - (double)k * U);
}

/* The exact head and the bounds above. */
typedef struct bounds {
    double v, loss;
    double w[V][C], gain[C];
    double y[ROWS][C], x[ROWS][C], rstd[ROWS]; /* of the norm */
    double d[ROWS][V], E[ROWS][V], d_x[ROWS][C], F[ROWS][C], d_in_off[ROWS][C];
    double d_w_off[V][C], d_gain_off[C], d_bias_off[C];
} bounds;

static void norm_row(bounds *b, const head *h, size_t r)
{
    const void *in = h->r.out[h->r.m.n_layers - 2], *bias = h->r.views.params[h->r.m.n_params - 2];
    double mean = 0, var = 0;
    for (size_t c = 0; c < C; c++)
        mean += (double)rig_at(&h->r, in, r * C + c) / (double)C;
    for (size_t c = 0; c < C; c++)
        var += pow((double)rig_at(&h->r, in, r * C + c) - mean, 2) / (double)C;
    b->rstd[r] = 1 / sqrt(var + (double)h->r.m.config.norm_eps);
    for (size_t c = 0; c < C; c++) {
        double *y = &b->y[r][c];
        *y = ((double)rig_at(&h->r, in, r * C + c) - mean) * b->rstd[r];
        b->x[r][c] = *y * b->gain[c] + (double)rig_at(&h->r, bias, c);
    }
}

static void loss_row(bounds *b, const head *h, size_t r)
{
    double *z = b->d[r], top = -INFINITY, apart = 0, sum = 0, term = 0;
    for (size_t v = 0; v < V; v++) {
        double abs_sum = 0;
        for (size_t c = 0; c < C; c++) {
            const double product = b->x[r][c] * b->w[v][c];
            z[v] += product;
            abs_sum += fabs(product);
        }
        top = fmax(top, z[v]);
        apart = fmax(apart, 2 * (gamma_of(C) * abs_sum + b->v * fabs(z[v])));
    }
    for (size_t v = 0; v < V; v++) {
        sum += exp(z[v] - top);
        term = fmax(term, U * (4 * fabs(z[v] - top) + 32));
    }
    const double of_terms = 4 * (term + gamma_of(V));
    b->loss += 2 * apart + of_terms;
    for (size_t v = 0; v < V; v++) {
        const double p = exp(z[v] - top) / sum;
        z[v] = p - (v == (size_t)h->r.targets[r] ? 1 : 0);
        b->E[r][v] = p * (exp(2 * apart) - 1 + of_terms) + 2 * (U + b->v) * fabs(z[v]);
    }
}

/* Row r of d_x and F, and its part in the sums over rows. */
static void product_row(bounds *b, size_t r)
{
    const double *d = b->d[r], *E = b->E[r];
    for (size_t c = 0; c < C; c++) {
        double *d_x = &b->d_x[r][c], *F = &b->F[r][c];
        const double x = fabs(b->x[r][c]), y = fabs(b->y[r][c]);
        for (size_t v = 0; v < V; v++) {
            const double w = b->w[v][c], most = fabs(d[v]) + E[v];
            *d_x += d[v] * w;
            *F += (E[v] + 2 * gamma_of(V) * most) * fabs(w);
            b->d_w_off[v][c] += (E[v] + 2 * gamma_of(ROWS) * most) * x;
        }
        *F += 2 * b->v * fabs(*d_x);
        b->d_gain_off[c] += (*F + 2 * gamma_of(ROWS + 2) * fabs(*d_x)) * y;
        b->d_bias_off[c] += *F + 2 * gamma_of(ROWS) * fabs(*d_x);
    }
}

static void input_row(bounds *b, size_t r)
{
    const double *y = b->y[r], n = (double)C, e = 2 * gamma_of(C + 8);
    double a_mean = 0, ay_mean = 0, off_mean = 0, off_y_mean = 0;
    for (size_t c = 0; c < C; c++) {
        const double a = b->d_x[r][c] * b->gain[c];
        const double off = b->F[r][c] * fabs(b->gain[c]) + e * fabs(a);
        a_mean += a / n;
        ay_mean += a * y[c] / n;
        off_mean += off / n;
        off_y_mean += off * fabs(y[c]) / n;
    }
    for (size_t c = 0; c < C; c++) {
        const double a = b->d_x[r][c] * b->gain[c];
        const double off = b->F[r][c] * fabs(b->gain[c]) + e * fabs(a);
        const double d_in = b->rstd[r] * (a - a_mean - y[c] * ay_mean);
        b->d_in_off[r][c] =
            b->rstd[r] * (off + off_mean + fabs(y[c]) * off_y_mean) + 2 * (U + b->v) * fabs(d_in);
    }
}

static const bounds *bounds_of(const head *h)
{
    static bounds b;
    memset(&b, 0, sizeof b);
    b.v = h->r.type == DTYPE_BF16 ? 0x1p-8 : 0;
    for (size_t i = 0; i < V * C; i++)
        b.w[i / C][i % C] = (double)rig_at(&h->r, h->r.views.params[0], i);
    for (size_t c = 0; c < C; c++)
        b.gain[c] = (double)rig_at(&h->r, h->r.views.params[h->r.m.n_params - 3], c);
    for (size_t r = 0; r < ROWS; r++) {
        norm_row(&b, h, r);
        loss_row(&b, h, r);
        product_row(&b, r);
        input_row(&b, r);
    }
    b.loss += 2 * U * (double)h->loss;
    return &b;
}

/* The largest ratio of a difference to its bound. A larger difference or a NaN fails. */
static double worst_of(const float *got, const float *expected, const double *off, size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        const double apart = fabs((double)got[i] - (double)expected[i]);
        if (!(apart <= off[i]))
            fail_msg("element %zu: got %g, expected %g, bound %g", i, (double)got[i],
                     (double)expected[i], off[i]);
        worst = fmax(worst, off[i] > 0 ? apart / off[i] : 0);
    }
    return worst;
}

static void check_bounds(dtype type)
{
    head whole;
    head_run(&whole, ops_cpu_fast(), type, 0);
    const bounds *b = bounds_of(&whole);
    const double *offs[] = {b->d_gain_off, b->d_bias_off, b->d_w_off[0]};
    const int before = whole.r.m.n_layers - 2;
    double worst[5] = {0};
    for (size_t i = 0; i < N_CHUNKS; i++) {
        head h;
        head_run(&h, ops_cpu_fast(), type, CHUNKS[i]);
        float d_in[2][ROWS * C];
        for (size_t e = 0; e < ROWS * C; e++) {
            d_in[0][e] = rig_at(&h.r, h.r.d_out[before], e);
            d_in[1][e] = rig_at(&whole.r, whole.r.d_out[before], e);
        }
        for (int k = 0; k < 3; k++)
            worst[k] = fmax(worst[k], worst_of(grad_of(&h, k), grad_of(&whole, k), offs[k],
                                               spec_of(&h, k)->elems));
        worst[3] = fmax(worst[3], worst_of(d_in[0], d_in[1], b->d_in_off[0], ROWS * C));
        worst[4] = fmax(worst[4], worst_of(&h.loss, &whole.loss, &b->loss, 1));
        worst[4] = fmax(worst[4], worst_of(&h.eval_loss, &whole.loss, &b->loss, 1));
        head_free(&h);
    }
    print_message("%s: at most %.2g of the bound of d_gain, %.2g of d_bias, %.2g of d_weight, %.2g "
                  "of d_in, %.2g of the loss\n",
                  type == DTYPE_BF16 ? "bf16" : "fp32", worst[0], worst[1], worst[2], worst[3],
                  worst[4]);
    head_free(&whole);
}

TEST(test_fast_bounds)
{
    check_bounds(DTYPE_F32);
    check_bounds(DTYPE_BF16);
}

int main(void)
{
    return tests_run(NULL, NULL);
}
