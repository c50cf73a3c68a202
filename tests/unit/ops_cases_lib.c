/* ops_cases_lib.c -- see ops_cases_lib.h. */
#include "tests/unit/ops_cases_lib.h"
#include <stdlib.h>
#include <string.h>
#include "common/base/philox.h"

/* A case is an operation and up to six sizes; what they mean is up to its run function. Outputs
 * come first in the arena, so that they are the result. */
typedef struct ops_case {
    const char *name;
    fsdp_status (*run)(const struct ops_case *c, const ops *o, stream *s, ops_result *r);
    size_t x[6];
} ops_case;

void ops_test_fill(uint64_t name, float std, float *out, size_t elems)
{
    philox_normal_fill(20240607, name, 0, elems, std, out);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* result_vec -- the next `elems` of the result, filled with normal values. */
static float *result_vec(ops_result *r, size_t elems)
{
    float *vec = r->data + r->elems;
    ops_test_fill(1000 + r->elems, 1.0f, vec, elems);
    r->elems += elems;
    return vec;
}

enum { MAX_INPUTS = 8, RESULT_ELEMS = 1 << 21 };

/* Inputs of the case in progress; freed after it. */
typedef struct inputs {
    void *vec[MAX_INPUTS];
    size_t n;
} inputs;

static float *input_vec(inputs *in, size_t elems)
{
    float *vec = malloc((elems + 1) * sizeof *vec);
    ops_test_fill(in->n, 1.0f, vec, elems);
    in->vec[in->n++] = vec;
    return vec;
}

static int32_t *input_tokens(inputs *in, size_t elems, size_t vocab)
{
    int32_t *tokens = malloc((elems + 1) * sizeof *tokens);
    for (size_t i = 0; i < elems; i++)
        tokens[i] = (int32_t)(philox_u32(7, in->n, i) % vocab);
    in->vec[in->n++] = tokens;
    return tokens;
}

static fsdp_status finish(inputs *in, stream *s, fsdp_status status)
{
    if (status == FSDP_OK)
        status = stream_sync(s);
    while (in->n > 0)
        free(in->vec[--in->n]);
    return status;
}

/* ---- one function per operation ------------------------------------------------------------- */

/* x: m, n, k, trans_a, trans_b, accumulate */
static fsdp_status run_matmul(const ops_case *c, const ops *o, stream *s, ops_result *r)
{
    inputs in = {0};
    const size_t m = c->x[0], n = c->x[1], k = c->x[2];
    return finish(&in, s,
                  o->matmul(s, &(matmul_args){.out = result_vec(r, m * n),
                                              .a = input_vec(&in, m * k),
                                              .b = input_vec(&in, k * n),
                                              .m = m,
                                              .n = n,
                                              .k = k,
                                              .trans_a = c->x[3],
                                              .trans_b = c->x[4],
                                              .accumulate = c->x[5]}));
}

/* The same, b cast to bf16 and a rounded by the product. */
static fsdp_status run_matmul_bf16(const ops_case *c, const ops *o, stream *s, ops_result *r)
{
    inputs in = {0};
    const size_t m = c->x[0], n = c->x[1], k = c->x[2];
    const float *a = input_vec(&in, m * k), *b = input_vec(&in, k * n);
    void *b_bf16 = input_vec(&in, k * n);
    fsdp_status status = o->cast(
        s,
        &(cast_args){
            .out = b_bf16, .in = b, .out_type = DTYPE_BF16, .in_type = DTYPE_F32, .elems = k * n});
    if (status == FSDP_OK)
        status = o->matmul(s, &(matmul_args){.out = result_vec(r, m * n),
                                             .a = a,
                                             .b = b_bf16,
                                             .m = m,
                                             .n = n,
                                             .k = k,
                                             .trans_a = c->x[3],
                                             .trans_b = c->x[4],
                                             .accumulate = c->x[5],
                                             .b_type = DTYPE_BF16,
                                             .compute = DTYPE_BF16});
    return finish(&in, s, status);
}

/* x: rows, cols */
static fsdp_status run_bias(const ops_case *c, const ops *o, stream *s, ops_result *r)
{
    inputs in = {0};
    const size_t rows = c->x[0], cols = c->x[1];
    const float *x = input_vec(&in, rows * cols), *bias = input_vec(&in, cols);
    fsdp_status status = o->bias_add(
        s, &(bias_add_args){result_vec(r, rows * cols), x, bias, rows, cols, DTYPE_F32});
    if (status == FSDP_OK)
        status =
            o->bias_backward(s, &(bias_backward_args){result_vec(r, cols), x, rows, cols, false});
    return finish(&in, s, status);
}

/* x: batch, seq_len, width, vocab, no_positions */
static fsdp_status run_embedding(const ops_case *c, const ops *o, stream *s, ops_result *r)
{
    inputs in = {0};
    const size_t batch = c->x[0], seq_len = c->x[1], width = c->x[2], vocab = c->x[3];
    const int32_t *tokens = input_tokens(&in, batch * seq_len, vocab);
    const float *wte = input_vec(&in, vocab * width), *wpe = input_vec(&in, seq_len * width);
    fsdp_status status =
        o->embedding(s, &(embedding_args){.out = result_vec(r, batch * seq_len * width),
                                          .wte = wte,
                                          .wpe = c->x[4] ? NULL : wpe,
                                          .tokens = tokens,
                                          .batch = batch,
                                          .seq_len = seq_len,
                                          .width = width,
                                          .vocab = vocab});
    if (status == FSDP_OK)
        status = o->embedding_backward(
            s, &(embedding_backward_args){.d_wte = result_vec(r, vocab * width),
                                          .d_wpe = c->x[4] ? NULL : result_vec(r, seq_len * width),
                                          .d_out = input_vec(&in, batch * seq_len * width),
                                          .tokens = tokens,
                                          .batch = batch,
                                          .seq_len = seq_len,
                                          .width = width,
                                          .vocab = vocab});
    return finish(&in, s, status);
}

/* x: rows, cols, residual */
static fsdp_status run_layernorm(const ops_case *c, const ops *o, stream *s, ops_result *r)
{
    inputs in = {0};
    const size_t rows = c->x[0], cols = c->x[1];
    const float *x = input_vec(&in, rows * cols), *gain = input_vec(&in, cols);
    const layernorm_args fwd = {.out = result_vec(r, rows * cols),
                                .mean = result_vec(r, rows),
                                .rstd = result_vec(r, rows),
                                .in = x,
                                .gain = gain,
                                .bias = input_vec(&in, cols),
                                .rows = rows,
                                .cols = cols,
                                .eps = 1e-5f};
    fsdp_status status = o->layernorm(s, &fwd);
    if (status == FSDP_OK)
        status = o->layernorm_backward(
            s,
            &(layernorm_backward_args){.d_in = result_vec(r, rows * cols),
                                       .d_gain = result_vec(r, cols),
                                       .d_bias = result_vec(r, cols),
                                       .d_out = input_vec(&in, rows * cols),
                                       .in = x,
                                       .gain = gain,
                                       .mean = fwd.mean,
                                       .rstd = fwd.rstd,
                                       .d_residual = c->x[2] ? input_vec(&in, rows * cols) : NULL,
                                       .rows = rows,
                                       .cols = cols});
    return finish(&in, s, status);
}

/* x: elems */
static fsdp_status run_gelu(const ops_case *c, const ops *o, stream *s, ops_result *r)
{
    inputs in = {0};
    const size_t elems = c->x[0];
    const float *x = input_vec(&in, elems);
    fsdp_status status = o->gelu(s, &(gelu_args){result_vec(r, elems), x, elems});
    if (status == FSDP_OK)
        status = o->gelu_backward(
            s, &(gelu_backward_args){result_vec(r, elems), input_vec(&in, elems), x, elems});
    return finish(&in, s, status);
}

/* x: batch, seq_len, n_head, n_kv_head, head_dim. q, k, v are slices of one array, as are their
 * gradients. */
static fsdp_status run_attention(const ops_case *c, const ops *o, stream *s, ops_result *r)
{
    inputs in = {0};
    const size_t n_rows = c->x[0] * c->x[1], d = c->x[4];
    const size_t q_width = c->x[2] * d, kv_width = c->x[3] * d, stride = q_width + 2 * kv_width;
    const float *qkv = input_vec(&in, n_rows * stride);
    const attention_args fwd = {.out = result_vec(r, n_rows * q_width),
                                .lse = result_vec(r, n_rows * c->x[2]),
                                .q = qkv,
                                .k = qkv + q_width,
                                .v = qkv + q_width + kv_width,
                                .q_stride = stride,
                                .k_stride = stride,
                                .v_stride = stride,
                                .batch = c->x[0],
                                .seq_len = c->x[1],
                                .n_head = c->x[2],
                                .n_kv_head = c->x[3],
                                .head_dim = d,
                                .scale = 0.25f};
    fsdp_status status = o->attention(s, &fwd);
    float *d_qkv = result_vec(r, n_rows * stride);
    if (status == FSDP_OK)
        status = o->attention_backward(
            s, &(attention_backward_args){.d_q = d_qkv,
                                          .d_k = d_qkv + q_width,
                                          .d_v = d_qkv + q_width + kv_width,
                                          .d_out = input_vec(&in, n_rows * q_width),
                                          .out = fwd.out,
                                          .lse = fwd.lse,
                                          .q = fwd.q,
                                          .k = fwd.k,
                                          .v = fwd.v,
                                          .q_stride = stride,
                                          .k_stride = stride,
                                          .v_stride = stride,
                                          .batch = c->x[0],
                                          .seq_len = c->x[1],
                                          .n_head = c->x[2],
                                          .n_kv_head = c->x[3],
                                          .head_dim = d,
                                          .scale = 0.25f});
    return finish(&in, s, status);
}

/* x: rows, vocab */
static fsdp_status run_cross_entropy(const ops_case *c, const ops *o, stream *s, ops_result *r)
{
    inputs in = {0};
    const size_t rows = c->x[0], vocab = c->x[1];
    return finish(
        &in, s,
        o->cross_entropy(s, &(cross_entropy_args){.loss = result_vec(r, 1),
                                                  .d_logits = result_vec(r, rows * vocab),
                                                  .logits = input_vec(&in, rows * vocab),
                                                  .targets = input_tokens(&in, rows, vocab),
                                                  .rows = rows,
                                                  .vocab = vocab}));
}

/* x: elems */
static fsdp_status run_elementwise(const ops_case *c, const ops *o, stream *s, ops_result *r)
{
    inputs in = {0};
    const size_t elems = c->x[0];
    const float *a = input_vec(&in, elems), *b = input_vec(&in, elems);
    fsdp_status status = o->add(s, &(add_args){result_vec(r, elems), a, b, elems, DTYPE_F32});
    if (status == FSDP_OK)
        status = o->scale(s, &(scale_args){result_vec(r, elems), 0.7f, b, elems});
    return finish(&in, s, status);
}

/* x: elems. v holds squares: it must not be negative. */
static fsdp_status run_optimizers(const ops_case *c, const ops *o, stream *s, ops_result *r)
{
    inputs in = {0};
    const size_t elems = c->x[0];
    const float *grad = input_vec(&in, elems), *coef = input_vec(&in, 1);
    adamw_args adamw = {.param = result_vec(r, elems),
                        .m = result_vec(r, elems),
                        .v = result_vec(r, elems),
                        .grad = grad,
                        .grad_coef = coef,
                        .elems = elems};
    adamw_scalars(
        &adamw,
        &(adamw_config){
            .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = 2});
    for (size_t i = 0; i < elems; i++)
        adamw.v[i] *= adamw.v[i];
    fsdp_status status = o->adamw(s, &adamw);
    if (status == FSDP_OK)
        status = o->sgd(s, &(sgd_args){.param = result_vec(r, elems),
                                       .grad = grad,
                                       .grad_coef = coef,
                                       .elems = elems,
                                       .lr = 0.1f,
                                       .weight_decay = 0.01f});
    return finish(&in, s, status);
}

/* x: elems */
static fsdp_status run_norm(const ops_case *c, const ops *o, stream *s, ops_result *r)
{
    inputs in = {0};
    rsum sum = {0};
    fsdp_status status =
        o->sum_squares(s, &(sum_squares_args){&sum, input_vec(&in, c->x[0]), c->x[0]});
    if (status == FSDP_OK)
        status = o->clip_coef(s, &(clip_coef_args){result_vec(r, 1), result_vec(r, 1), &sum, 3.0f});
    return finish(&in, s, status);
}

/* ---- the catalogue: 1, primes, both sides of tile edges, enough work for several threads ---- */

static const ops_case CASES[] = {
    {"matmul 1x1x1", run_matmul, {1, 1, 1, 0, 0, 0}},
    {"matmul 3x5x7 accumulate", run_matmul, {3, 5, 7, 0, 0, 1}},
    {"matmul one row", run_matmul, {1, 513, 130, 0, 0, 0}},
    {"matmul one row NT", run_matmul, {1, 801, 130, 0, 1, 0}},
    {"matmul one column", run_matmul, {300, 1, 65, 0, 0, 1}},
    {"matmul NN", run_matmul, {67, 401, 300, 0, 0, 0}},
    {"matmul NT", run_matmul, {67, 401, 300, 0, 1, 1}},
    {"matmul TN", run_matmul, {67, 401, 300, 1, 0, 1}},
    {"matmul TT", run_matmul, {67, 401, 300, 1, 1, 0}},
    {"matmul wide", run_matmul, {64, 1600, 96, 0, 0, 0}},
    {"matmul tall TN", run_matmul, {521, 100, 64, 1, 0, 1}},
    {"matmul deep NT", run_matmul, {5, 6, 2053, 0, 1, 0}},
    {"matmul deep, one row", run_matmul, {1, 5, 2053, 0, 0, 0}},
    {"matmul deep, one column TN", run_matmul, {192, 1, 2053, 1, 0, 0}},
    {"matmul bf16 one row", run_matmul_bf16, {1, 513, 130, 0, 0, 1}},
    {"matmul bf16 NN", run_matmul_bf16, {67, 401, 301, 0, 0, 0}},
    {"matmul bf16 NT", run_matmul_bf16, {67, 401, 300, 0, 1, 0}},
    {"matmul bf16 TN", run_matmul_bf16, {267, 401, 67, 1, 0, 1}},
    {"matmul bf16 deep", run_matmul_bf16, {1, 5, 2053, 0, 0, 0}},
    {"bias 1x1", run_bias, {1, 1}},
    {"bias 7x130", run_bias, {7, 130}},
    {"bias 601x451", run_bias, {601, 451}},
    {"embedding 1", run_embedding, {1, 1, 1, 1}},
    {"embedding 7x97", run_embedding, {7, 97, 401, 53}},
    {"embedding without positions", run_embedding, {1, 661, 400, 17, 1}},
    {"layernorm 1x1", run_layernorm, {1, 1}},
    {"layernorm 5x17", run_layernorm, {5, 17}},
    {"layernorm 659x403", run_layernorm, {659, 403, 1}},
    {"gelu 1", run_gelu, {1}},
    {"gelu 70001", run_gelu, {70001}},
    {"attention T=1", run_attention, {1, 1, 1, 1, 1}},
    {"attention T=9", run_attention, {2, 9, 3, 3, 5}},
    {"attention T=63 GQA", run_attention, {1, 63, 4, 2, 16}},
    {"attention T=64", run_attention, {2, 64, 2, 2, 64}},
    {"attention T=65 MQA", run_attention, {1, 65, 3, 1, 32}},
    {"attention T=200 GQA", run_attention, {1, 200, 4, 2, 24}},
    {"cross_entropy 1x1", run_cross_entropy, {1, 1}},
    {"cross_entropy 67x1003", run_cross_entropy, {67, 1003}},
    {"cross_entropy 601x131", run_cross_entropy, {601, 131}},
    {"elementwise 1", run_elementwise, {1}},
    {"elementwise 270001", run_elementwise, {270001}},
    {"optimizers 1", run_optimizers, {1}},
    {"optimizers 270001", run_optimizers, {270001}},
    {"norm 1", run_norm, {1}},
    {"norm 200003", run_norm, {200003}},
};

size_t ops_case_count(void)
{
    return sizeof CASES / sizeof CASES[0];
}

const char *ops_case_name(size_t i)
{
    return CASES[i].name;
}

ops_result ops_case_run(size_t i, const ops *o, stream *s)
{
    ops_result r = {.data = malloc(RESULT_ELEMS * sizeof(float))};
    r.status = CASES[i].run(&CASES[i], o, s, &r);
    FSDP_ASSERT(r.elems <= RESULT_ELEMS);
    return r;
}
