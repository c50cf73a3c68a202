/* row_elem.h -- operations on single elements: gelu, swiglu, rotary positions, the optimizers'
 * updates, embedding's sums, and what a matmul adds to its products. See row_sums.h. */
#pragma once
#include <float.h>
#include <math.h>
#include "common/base/pmath.h"
#include "common/ops/ops.h"
#include "common/ops/row_sums.h"
#include "common/sum/rsum_digits.h"

#define GELU_SCALE 0.7978845608028654f /* sqrt(2/pi) */
#define GELU_CUBIC 0.044715f

/* gelu_tanh -- tanh(sqrt(2/pi) (x + 0.044715 x^3)). */
ROW_FN float gelu_tanh(float x)
{
    return pm_tanhf(GELU_SCALE * (x + GELU_CUBIC * (x * x * x)));
}

/* gelu_at -- element i of out. */
ROW_FN void gelu_at(const gelu_args *a, size_t i, dtype type)
{
    const float x = row_load(a->in, i, type);
    row_store(a->out, i, 0.5f * x * (1.0f + gelu_tanh(x)), type);
}

/* gelu_slope -- gelu'(x) = (1 + t)/2 + x/2 (1 - t^2) u', t = tanh(u), u' = sqrt(2/pi) (1 +
 * 3*0.044715 x^2). */
ROW_FN float gelu_slope(float x)
{
    const float t = gelu_tanh(x);
    const float d_inner = GELU_SCALE * (1.0f + 3.0f * GELU_CUBIC * (x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * d_inner;
}

/* gelu_backward_at -- element i of d_in. */
ROW_FN void gelu_backward_at(const gelu_backward_args *a, size_t i, dtype type)
{
    const float slope = gelu_slope(row_load(a->in, i, type));
    row_store(a->d_in, i, row_load(a->d_out, i, type) * slope, type);
}

/* sigmoid -- 1 / (1 + exp(-x)). */
ROW_FN float sigmoid(float x)
{
    return 1.0f / (1.0f + pm_expf(-x));
}

/* silu_slope -- silu'(x) = s (1 + x (1 - s)), s = sigmoid(x). */
ROW_FN float silu_slope(float x)
{
    const float s = sigmoid(x);
    return s * (1.0f + x * (1.0f - s));
}

/* swiglu_at -- element i of out. swiglu_backward_at -- element i of d_gate and d_up. */
ROW_FN void swiglu_at(const swiglu_args *a, size_t i, dtype type)
{
    const float x = row_load(a->gate, i, type);
    row_store(a->out, i, x * sigmoid(x) * row_load(a->up, i, type), type);
}
ROW_FN void swiglu_backward_at(const swiglu_backward_args *a, size_t i, dtype type)
{
    const float x = row_load(a->gate, i, type), d = row_load(a->d_out, i, type);
    const float d_gate = d * row_load(a->up, i, type) * silu_slope(x);
    row_store(a->d_up, i, d * (x * sigmoid(x)), type);
    row_store(a->d_gate, i, d_gate, type);
}

/* rope_pair -- cosine and sine of the angle of pair i at position t. The angle may have any
 * size: it is converted to turns, and whole turns are dropped. */
ROW_FN void rope_pair(const rope_args *a, size_t t, size_t i, float *c, float *s)
{
    const double turns = (double)((float)t * a->inv_freq[i]) * 0x1.45f306dc9c883p-3;
    double sine, cosine;
    pm_sincos_turns(turns - floor(turns), &sine, &cosine);
    *c = (float)cosine;
    *s = (float)(a->inverse ? -sine : sine);
}

/* rope_pairs -- pair i of every head of row r. */
ROW_FN void rope_pairs(const rope_args *a, size_t r, size_t i, dtype type)
{
    const size_t step = a->interleaved ? 2 : 1, apart = a->interleaved ? 1 : a->head_dim / 2;
    void *x = row_out_at(a->x, r * a->stride, type);
    float c, s;
    rope_pair(a, r % a->seq_len, i, &c, &s);
    for (size_t h = 0; h < a->n_head; h++) {
        const size_t at = h * a->head_dim + i * step;
        const float p = row_load(x, at, type), q = row_load(x, at + apart, type);
        row_store(x, at, p * c - q * s, type);
        row_store(x, at + apart, p * s + q * c, type);
    }
}

/* add_at -- element i of out. */
ROW_FN void add_at(const add_args *a, size_t i, dtype round_to)
{
    const float x = bf16_round(a->a[i]);
    if (round_to == DTYPE_F32)
        a->out[i] = a->a[i] + a->b[i];
    else
        a->out[i] = a->b == NULL ? x : bf16_round(x + bf16_round(a->b[i]));
}

/* clip_elem -- norm and coef. */
ROW_FN void clip_elem(const clip_coef_args *a)
{
    const float norm = (float)sqrt(rsum_value(a->sum));
    float coef = 1.0f;
    if (a->max_norm != 0.0f && norm <= FLT_MAX) {
        const float ratio = a->max_norm / (norm + 1e-6f);
        coef = ratio < 1.0f ? ratio : 1.0f;
    }
    *a->norm = norm;
    *a->coef = coef;
}

/* sgd_elem -- update element i, given g = grad * coef. */
ROW_FN void sgd_elem(const sgd_args *a, float g, size_t i)
{
    const float momentum = (float)a->config.momentum;
    float *param = &a->param[i];
    g = g + a->weight_decay * *param;
    if (a->state[0] != NULL) {
        float *buffer = &a->state[0][i];
        *buffer = momentum * *buffer + g;
        g = a->config.nesterov ? g + momentum * *buffer : *buffer;
    }
    *param = *param - a->lr * g;
}

/* adadelta_elem -- likewise. */
ROW_FN void adadelta_elem(const adadelta_args *a, float g, size_t i)
{
    const float rho = (float)a->config.rho, rest = (float)(1.0 - a->config.rho);
    const float eps = (float)a->config.eps;
    float *param = &a->param[i], *square_avg = &a->state[0][i], *acc_delta = &a->state[1][i];
    g = g + a->weight_decay * *param;
    *square_avg = rho * *square_avg + rest * (g * g);
    const float delta = sqrtf(*acc_delta + eps) / sqrtf(*square_avg + eps) * g;
    *acc_delta = rho * *acc_delta + rest * (delta * delta);
    *param = *param - a->lr * delta;
}

/* embedding_row -- row r of out, its columns [begin, begin + width): wte[token] + wpe[position]. */
ROW_FN void embedding_row(const embedding_args *a, size_t r, size_t begin, size_t width, dtype type)
{
    const size_t place = cut_place(a->cut, a->tokens[r]);
    const size_t bytes = width * (type == DTYPE_F32 ? sizeof(float) : sizeof(uint16_t));
    void *out = row_out_at(a->out, r * a->width + begin, type);
    if (place >= a->vocab) {
        memset(out, 0, bytes);
        return;
    }
    const void *wte = row_at(a->wte, place * a->width + begin, type);
    if (a->wpe == NULL) {
        memcpy(out, wte, bytes);
        return;
    }
    const void *wpe = row_at(a->wpe, r % a->seq_len * a->width + begin, type);
    for (size_t c = 0; c < width; c++)
        row_store(out, c, row_load(wte, c, type) + row_load(wpe, c, type), type);
}

/* embedding_backward_row -- add row r of d_out, its columns [begin, begin + width), to the rows of
 * d_wte and d_wpe for its token and position. */
ROW_FN void embedding_backward_row(const embedding_backward_args *a, size_t r, size_t begin,
                                   size_t width, dtype type)
{
    const void *d_out = row_at(a->d_out, r * a->width + begin, type);
    const size_t place = cut_place(a->cut, a->tokens[r]);
    float *d_wte = place < a->vocab ? a->d_wte + place * a->width + begin : NULL;
    for (size_t c = 0; c < width && d_wte; c++)
        d_wte[c] += row_load(d_out, c, type);
    if (a->d_wpe == NULL)
        return;
    float *d_wpe = a->d_wpe + r % a->seq_len * a->width + begin;
    for (size_t c = 0; c < width; c++)
        d_wpe[c] += row_load(d_out, c, type);
}

/* matmul_finish_row -- store n products of row `row`, from column `col` on, in out: + bias, +
 * residual, then one rounding. x may be that part of out, unless out is also the residual. */
ROW_FN void matmul_finish_row(const matmul_args *a, size_t row, size_t col, size_t n, float *x,
                              dtype type)
{
    const size_t at = row * row_stride(a->out_stride, a->n) + col;
    const void *bias = a->bias ? row_at(a->bias, col, type) : NULL;
    const void *residual = a->residual ? row_at(a->residual, at, type) : NULL;
    for (size_t c = 0; c < n && bias; c++)
        x[c] += row_load(bias, c, type);
    for (size_t c = 0; c < n && residual; c++)
        x[c] += row_load(residual, c, type);
    if (a->out_type == DTYPE_BF16)
        for (size_t c = 0; c < n; c++)
            row_store(a->out, at + c, x[c], DTYPE_BF16);
    else if (x != (const float *)a->out + at)
        memcpy((float *)a->out + at, x, n * sizeof *x);
}
