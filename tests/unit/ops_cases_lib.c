/* ops_cases_lib.c -- see ops_cases_lib.h. */
#include "tests/unit/ops_cases_lib.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/philox.h"
#include "common/ops/optimizers.h"

void ops_test_fill(uint64_t name, float std, float *out, size_t elems)
{
    philox_normal_fill(20240607, name, 0, elems, std, out);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Rounds x[elems] of fp32 to bf16, stored from the beginning of x on; and back. */
static void round_in_place(float *x, size_t elems)
{
    uint16_t *h = malloc((elems + 1) * sizeof *h);
    for (size_t i = 0; i < elems; i++)
        h[i] = bf16_from_f32(x[i]);
    memcpy(x, h, elems * sizeof *h);
    free(h);
}

static void expand_in_place(float *x, size_t elems)
{
    uint16_t *h = malloc((elems + 1) * sizeof *h);
    memcpy(h, x, elems * sizeof *h);
    for (size_t i = 0; i < elems; i++)
        x[i] = f32_from_bf16(h[i]);
    free(h);
}

enum { MAX_ARRAYS = 40, RESULT_ELEMS = 1 << 21 };

/* An array of the case in progress: on the device, and on the host with its first or its last
 * content. If device memory is the host's, both are the same. */
typedef struct array {
    void *device;
    float *host;
    size_t elems;
    dtype type;
} array;

typedef struct arrays {
    stream *s;
    ops_result *r;
    dtype type; /* of activations and parameters */
    array input[MAX_ARRAYS], result[MAX_ARRAYS];
    size_t n_inputs, n_results;
    fsdp_status status; /* of the first call that failed */
} arrays;

/* A case is an operation and up to eight sizes, whose meaning only its run function knows. */
typedef struct ops_case {
    const char *name;
    void (*run)(const struct ops_case *c, const ops *o, arrays *in);
    size_t x[8];
} ops_case;

/* Returns host [bytes] on the device: a copy, or host itself if device memory is the host's. */
static void *on_device(arrays *in, void *host, size_t bytes)
{
    void *vec = NULL;
    if (device_memory_is_host(stream_device(in->s)))
        return host;
    FSDP_ASSERT(device_alloc(in->s, MEM_OTHER, bytes, "case", &vec) == FSDP_OK);
    FSDP_ASSERT(device_upload(in->s, vec, host, bytes) == FSDP_OK);
    return vec;
}

static void *add_result(arrays *in, size_t elems, dtype t, bool square)
{
    ops_result *r = in->r;
    float *vec = r->data + r->elems;
    ops_test_fill(1000 + r->elems, 1.0f, vec, elems);
    r->elems += elems;
    for (size_t i = 0; i < elems && square; i++)
        vec[i] *= vec[i];
    if (t == DTYPE_BF16)
        round_in_place(vec, elems);
    void *there = on_device(in, vec, elems * dtype_bytes(t));
    in->result[in->n_results++] = (array){there, vec, elems, t};
    return there;
}

/* result -- the next `elems` of the result, filled with normal values. result_squares: in fp32 and
 * not negative. */
static void *result_as(arrays *in, size_t elems, dtype t)
{
    return add_result(in, elems, t, false);
}

static void *result(arrays *in, size_t elems)
{
    return result_as(in, elems, in->type);
}

static void *result_f32(arrays *in, size_t elems)
{
    return result_as(in, elems, DTYPE_F32);
}

static void *result_squares(arrays *in, size_t elems)
{
    return add_result(in, elems, DTYPE_F32, true);
}

static void *keep_input(arrays *in, float *host, size_t bytes)
{
    void *there = on_device(in, host, bytes);
    in->input[in->n_inputs++] = (array){there, host, bytes, DTYPE_U8};
    return there;
}

/* Zeros that the operation changes. */
static void *zeros(arrays *in, size_t bytes)
{
    void *there = keep_input(in, calloc(1, bytes), bytes);
    in->input[in->n_inputs - 1].elems = 0;
    return there;
}

/* input -- elems normal values times std (0: 1). */
static void *input_as(arrays *in, size_t elems, size_t std, dtype t)
{
    float *vec = malloc((elems + 1) * sizeof *vec);
    ops_test_fill(in->n_inputs, std ? (float)std : 1.0f, vec, elems);
    if (t == DTYPE_BF16)
        round_in_place(vec, elems);
    return keep_input(in, vec, elems * dtype_bytes(t));
}

static void *input_of(arrays *in, size_t elems, size_t std)
{
    return input_as(in, elems, std, in->type);
}

static void *input(arrays *in, size_t elems)
{
    return input_as(in, elems, 1, in->type);
}

static void *input_f32(arrays *in, size_t elems)
{
    return input_as(in, elems, 1, DTYPE_F32);
}

/* The first n_equal tokens are equal. */
static int32_t *input_tokens(arrays *in, size_t elems, size_t vocab, size_t n_equal, size_t none)
{
    int32_t *tokens = malloc((elems + 1) * sizeof *tokens);
    for (size_t i = 0; i < elems; i++)
        tokens[i] = i < n_equal           ? 0
                    : none && !(i % none) ? NO_TARGET
                                          : (int32_t)(philox_u32(7, in->n_inputs, i) % vocab);
    return keep_input(in, (float *)tokens, elems * sizeof *tokens);
}

static void free_on_device(arrays *in, const array *x)
{
    if (x->device != x->host)
        device_free(in->s, x->device);
}

/* Asserts that an input on a device has not changed. */
static void expect_kept(arrays *in, const array *x)
{
    if (x->device == x->host)
        return;
    void *now = malloc(x->elems + 1);
    FSDP_ASSERT(device_download(in->s, now, x->device, x->elems) == FSDP_OK);
    FSDP_ASSERT(stream_sync(in->s) == FSDP_OK);
    FSDP_ASSERT(memcmp(now, x->host, x->elems) == 0);
    free(now);
}

static fsdp_status finish(arrays *in)
{
    fsdp_status status = in->status;
    for (size_t i = 0; i < in->n_results && status == FSDP_OK; i++) {
        const array *x = &in->result[i];
        if (x->device != x->host)
            status = device_download(in->s, x->host, x->device, x->elems * dtype_bytes(x->type));
    }
    if (status == FSDP_OK)
        status = stream_sync(in->s);
    for (size_t i = 0; i < in->n_results; i++) {
        free_on_device(in, &in->result[i]);
        if (in->result[i].type == DTYPE_BF16)
            expand_in_place(in->result[i].host, in->result[i].elems);
    }
    for (size_t i = 0; i < in->n_inputs; i++) {
        if (status == FSDP_OK)
            expect_kept(in, &in->input[i]);
        free_on_device(in, &in->input[i]);
        free(in->input[i].host);
    }
    return status;
}

/* ---- one function per operation ------------------------------------------------------------- */

/* CALL -- call the operation of the table unless an earlier call of this case failed. */
#define CALL(op, ...)                                                                              \
    if (in->status == FSDP_OK)                                                                     \
    in->status = o->op(in->s, &(op##_args){__VA_ARGS__})

enum { TRANS_A = 1, TRANS_B = 2, ACCUMULATE = 4, BIAS = 8, RESIDUAL = 16, IN_PLACE = 32, F32 = 64 };

/* A product m x n x k. In bf16, a product that accumulates is in fp32. */
static void product(const size_t x[3], size_t form, const ops *o, arrays *in)
{
    const size_t m = x[0], n = x[1], k = x[2];
    const dtype out_type = form & (ACCUMULATE | F32) ? DTYPE_F32 : in->type;
    void *out = result_as(in, m * n, out_type);
    CALL(matmul, .out = out, .a = input(in, m * k), .b = input(in, k * n),
         .bias = form & BIAS ? input(in, n) : NULL,
         .residual = form & IN_PLACE   ? out
                     : form & RESIDUAL ? input(in, m * n)
                                       : NULL,
         .m = m, .n = n, .k = k, .trans_a = form & TRANS_A, .trans_b = form & TRANS_B,
         .accumulate = form & ACCUMULATE, .type = in->type, .out_type = out_type);
}

/* x: m, n, k, form */
static void run_matmul(const ops_case *c, const ops *o, arrays *in)
{
    product(c->x, c->x[3], o, in);
}

/* x: m, n, k */
static void run_matmul_forms(const ops_case *c, const ops *o, arrays *in)
{
    static const size_t FORMS[] = {RESIDUAL,
                                   TRANS_A | BIAS,
                                   TRANS_B | BIAS | RESIDUAL,
                                   TRANS_A | TRANS_B | BIAS | RESIDUAL,
                                   BIAS | IN_PLACE,
                                   TRANS_A | ACCUMULATE,
                                   TRANS_B | BIAS | RESIDUAL | F32};
    for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++)
        product(c->x, FORMS[i], o, in);
}

/* x: m, n, form: what is added to products */
static void run_finish(const ops_case *c, const ops *o, arrays *in)
{
    const size_t m = c->x[0], n = c->x[1], form = c->x[2];
    const dtype out_type = form & F32 ? DTYPE_F32 : in->type;
    float *products = form & IN_PLACE ? result_f32(in, m * n) : zeros(in, m * n * sizeof(float));
    void *out = form & IN_PLACE ? products : result_as(in, m * n, out_type);
    CALL(cast, .out = products, .in = input_f32(in, m * n), .elems = m * n);
    const matmul_args of = {.out = out,
                            .bias = form & BIAS ? input(in, n) : NULL,
                            .residual = form & RESIDUAL ? input(in, m * n) : NULL,
                            .m = m,
                            .n = n,
                            .type = in->type,
                            .out_type = out_type};
    CALL(matmul_finish, of, products);
}

/* x: rows, cols */
static void run_bias(const ops_case *c, const ops *o, arrays *in)
{
    const size_t rows = c->x[0], cols = c->x[1];
    CALL(bias_backward, result_f32(in, cols), input(in, rows * cols), rows, cols, 0, false,
         in->type);
}

/* x: batch, seq_len, width, vocab, no_positions, equal tokens. d_wpe has 9 positions more than
 * there are tokens; their gradients must not change. */
static void run_embedding(const ops_case *c, const ops *o, arrays *in)
{
    const size_t batch = c->x[0], seq_len = c->x[1], width = c->x[2], vocab = c->x[3];
    const int32_t *tokens = input_tokens(in, batch * seq_len, vocab, c->x[5], 0);
    const void *wte = input(in, vocab * width), *wpe = input(in, seq_len * width);
    CALL(embedding, .out = result(in, batch * seq_len * width), .wte = wte,
         .wpe = c->x[4] ? NULL : wpe, .tokens = tokens, .batch = batch, .seq_len = seq_len,
         .width = width, .vocab = vocab, .type = in->type);
    CALL(embedding_backward, .d_wte = result_f32(in, vocab * width),
         .d_wpe = c->x[4] ? NULL : result_f32(in, (seq_len + 9) * width),
         .d_out = input(in, batch * seq_len * width), .tokens = tokens, .batch = batch,
         .seq_len = seq_len, .width = width, .vocab = vocab, .type = in->type);
}

/* The part of a vocabulary that is block i of n. */
static vocab_cut block_of(size_t vocab, size_t n, size_t i, size_t *held)
{
    const size_t each = (vocab + n - 1) / n, first = i * each < vocab ? i * each : vocab;
    *held = first + each < vocab ? each : vocab - first;
    return (vocab_cut){first, vocab};
}

/* x: batch, seq_len, width, vocab, no_positions, blocks; each block alone */
static void run_embedding_blocks(const ops_case *c, const ops *o, arrays *in)
{
    const size_t batch = c->x[0], seq_len = c->x[1], width = c->x[2], vocab = c->x[3];
    const int32_t *tokens = input_tokens(in, batch * seq_len, vocab, 0, 0);
    const void *wpe = c->x[4] ? NULL : input(in, seq_len * width);
    const void *d_out = input(in, batch * seq_len * width);
    for (size_t i = 0, held; i < c->x[5]; i++) {
        const vocab_cut cut = block_of(vocab, c->x[5], i, &held);
        CALL(embedding, .out = result(in, batch * seq_len * width), .wte = input(in, held * width),
             .wpe = wpe, .tokens = tokens, .batch = batch, .seq_len = seq_len, .width = width,
             .vocab = held, .type = in->type, .cut = cut);
        CALL(embedding_backward, .d_wte = result_f32(in, held * width),
             .d_wpe = wpe ? result_f32(in, seq_len * width) : NULL, .d_out = d_out,
             .tokens = tokens, .batch = batch, .seq_len = seq_len, .width = width, .vocab = held,
             .type = in->type, .cut = cut);
    }
}

/* x: rows, cols, residual, overwrite, std */
static void run_layernorm(const ops_case *c, const ops *o, arrays *in)
{
    const size_t rows = c->x[0], cols = c->x[1];
    const void *x = input_of(in, rows * cols, c->x[4]), *gain = input(in, cols);
    float *mean = result_f32(in, rows), *rstd = result_f32(in, rows);
    CALL(layernorm, .out = result(in, rows * cols), .mean = mean, .rstd = rstd, .in = x,
         .gain = gain, .bias = input(in, cols), .rows = rows, .cols = cols, .eps = 1e-5f,
         .type = in->type);
    CALL(layernorm_backward, .d_in = result(in, rows * cols), .d_gain = result_f32(in, cols),
         .d_bias = result_f32(in, cols), .d_out = input(in, rows * cols), .in = x, .gain = gain,
         .mean = mean, .rstd = rstd, .d_residual = c->x[2] ? input(in, rows * cols) : NULL,
         .rows = rows, .cols = cols, .overwrite = c->x[3], .type = in->type);
}

/* x: rows, cols, residual, overwrite, std */
static void run_rmsnorm(const ops_case *c, const ops *o, arrays *in)
{
    const size_t rows = c->x[0], cols = c->x[1];
    const void *x = input_of(in, rows * cols, c->x[4]), *gain = input(in, cols);
    float *rstd = result_f32(in, rows);
    CALL(rmsnorm, .out = result(in, rows * cols), .rstd = rstd, .in = x, .gain = gain, .rows = rows,
         .cols = cols, .eps = 1e-5f, .type = in->type);
    CALL(rmsnorm_backward, .d_in = result(in, rows * cols), .d_gain = result_f32(in, cols),
         .d_out = input(in, rows * cols), .in = x, .gain = gain,
         .d_residual = c->x[2] ? input(in, rows * cols) : NULL, .rstd = rstd, .rows = rows,
         .cols = cols, .overwrite = c->x[3], .type = in->type);
}

/* x: batch, seq_len, n_head, head_dim, interleaved, elements between rows */
static void run_rope(const ops_case *c, const ops *o, arrays *in)
{
    const size_t stride = c->x[2] * c->x[3] + c->x[5];
    for (int inverse = 0; inverse < 2 && in->status == FSDP_OK; inverse++) {
        rope_args a = {.x = result(in, c->x[0] * c->x[1] * stride),
                       .stride = stride,
                       .batch = c->x[0],
                       .seq_len = c->x[1],
                       .n_head = c->x[2],
                       .head_dim = c->x[3],
                       .inverse = inverse == 1,
                       .interleaved = c->x[4],
                       .type = in->type};
        a.inv_freq[0] = 1.0f;
        for (size_t i = 1; i < c->x[3] / 2; i++)
            a.inv_freq[i] = a.inv_freq[i - 1] * 0.77f;
        in->status = o->rope(in->s, &a);
    }
}

/* x: elems, the place of forward's out (0: its own array, 1: in gate, 2: in up) and of backward's
 * d_out (0: in d_up, 1: in d_gate), std of gate */
static void run_swiglu(const ops_case *c, const ops *o, arrays *in)
{
    const size_t elems = c->x[0];
    void *out = result(in, elems), *d_gate = result(in, elems);
    void *d_up = result(in, elems);
    const void *gate = c->x[1] == 1 ? out : input_of(in, elems, c->x[3]);
    const void *up = c->x[1] == 2 ? out : input(in, elems);
    CALL(swiglu_backward, d_gate, d_up, c->x[2] ? d_gate : d_up, gate, up, elems, in->type);
    CALL(swiglu, out, gate, up, elems, in->type);
}

/* x: elems */
static void run_gelu(const ops_case *c, const ops *o, arrays *in)
{
    const size_t elems = c->x[0];
    const void *x = input(in, elems);
    CALL(gelu, result(in, elems), x, elems, in->type);
    CALL(gelu_backward, result(in, elems), input(in, elems), x, elems, in->type);
}

/* x: batch, seq_len, n_head, n_kv_head, head_dim, v_head_dim (0: as head_dim), std of q and k,
 * wide_kv. With std 0, q, k, v are slices of one array, and so are their gradients. Otherwise each
 * has its own array, q and v with elements between rows. */
static void run_attention(const ops_case *c, const ops *o, arrays *in)
{
    const size_t n_rows = c->x[0] * c->x[1], d = c->x[4], bytes = dtype_bytes(in->type);
    const size_t dv = c->x[5] ? c->x[5] : d, std = c->x[6], n_out = n_rows * c->x[2] * dv;
    const size_t q_width = c->x[2] * d, k_width = c->x[3] * d, v_width = c->x[3] * dv;
    const size_t stride = q_width + k_width + v_width;
    attention_shape x = {stride,  stride, stride, c->x[0], c->x[1], c->x[2],
                         c->x[3], d,      dv,     0.25f,   in->type};
    if (std)
        x.q_stride = q_width + 1, x.k_stride = k_width, x.v_stride = v_width + 3;
    char *q = input_of(in, n_rows * x.q_stride, std), *d_q = result(in, n_rows * x.q_stride);
    char *k = std ? input_of(in, n_rows * x.k_stride, std) : q + q_width * bytes;
    char *v = std ? input(in, n_rows * x.v_stride) : k + k_width * bytes;
    const dtype kv = c->x[7] ? DTYPE_F32 : in->type;
    char *d_k = std ? result_as(in, n_rows * x.k_stride, kv) : d_q + q_width * bytes;
    char *d_v = std ? result_as(in, n_rows * x.v_stride, kv) : d_k + k_width * bytes;
    void *out = result(in, n_out);
    float *lse = result_f32(in, n_rows * c->x[2]);
    CALL(attention, .out = out, .lse = lse, .q = q, .k = k, .v = v, .shape = x);
    CALL(attention_backward, .d_q = d_q, .d_k = d_k, .d_v = d_v, .d_out = input(in, n_out),
         .out = out, .lse = lse, .q = q, .k = k, .v = v, .shape = x, .wide_kv = c->x[7]);
}

/* x: rows, vocab, rows of a call (0: all), d_logits (0: its own array, 1: in place, 2: none),
 * std, from how many rows one has no target (0: none) */
static void run_cross_entropy(const ops_case *c, const ops *o, arrays *in)
{
    const size_t rows = c->x[0], vocab = c->x[1], most = c->x[2] ? c->x[2] : rows;
    const size_t bytes = vocab * dtype_bytes(in->type);
    cross_entropy_args a = {.loss = result_f32(in, 1),
                            .d_logits = c->x[3] < 2 ? result(in, rows * vocab) : NULL,
                            .targets = input_tokens(in, rows, vocab, 0, c->x[5]),
                            .vocab = vocab,
                            .type = in->type,
                            .total = c->x[2] ? zeros(in, sizeof(double)) : NULL};
    a.logits = c->x[3] == 1 ? a.d_logits : input_of(in, rows * vocab, c->x[4]);
    size_t first = 0;
    do {
        a.rows = rows - first < most ? rows - first : most;
        in->status = o->cross_entropy(in->s, &a);
        a.d_logits = a.d_logits ? (char *)a.d_logits + a.rows * bytes : NULL;
        a.logits = (const char *)a.logits + a.rows * bytes;
        a.targets += a.rows;
        first += most;
    } while (first < rows && in->status == FSDP_OK);
}

/* x: rows, vocab, blocks, then as run_cross_entropy: d_logits, std, no target; and elements between
 * rows */
static void run_vocab_blocks(const ops_case *c, const ops *o, arrays *in)
{
    const size_t rows = c->x[0], vocab = c->x[1], n = c->x[2], each = (vocab + n - 1) / n;
    const int32_t *targets = input_tokens(in, rows, vocab, 0, c->x[5]);
    float *parts = result_f32(in, 3 * n * rows);
    void *logits[MAX_ARRAYS];
    vocab_cut cut;
    for (size_t i = 0, held; i < n; i++) {
        logits[i] = c->x[3] == 1 ? result(in, rows * (each + c->x[6]))
                                 : input_of(in, rows * (each + c->x[6]), c->x[4]);
        cut = block_of(vocab, n, i, &held);
        CALL(vocab_part, (vocab_part *)parts + i * rows, logits[i], targets, rows, held,
             each + c->x[6], in->type, cut);
    }
    for (size_t i = 0, held; i < n; i++) {
        cut = block_of(vocab, n, i, &held);
        CALL(cross_entropy, .loss = i % 2 ? NULL : result_f32(in, 1),
             .d_logits = c->x[3] == 1   ? logits[i]
                         : c->x[3] == 0 ? result(in, rows * (each + c->x[6]))
                                        : NULL,
             .logits = logits[i], .targets = targets, .rows = rows, .vocab = held, .type = in->type,
             .logits_stride = each + c->x[6], .d_logits_stride = each + c->x[6],
             .parts = (vocab_part *)parts, .n_parts = n, .cut = cut);
    }
}

/* x: elems */
static void run_elementwise(const ops_case *c, const ops *o, arrays *in)
{
    const size_t elems = c->x[0];
    const float *a = input_f32(in, elems), *b = input_f32(in, elems);
    CALL(add, result_f32(in, elems), a, b, elems, DTYPE_F32);
    CALL(scale, result_f32(in, elems), 0.7f, elems);
}

/* n ranges of an array of `elems` elements, with gaps before, between and behind; some decay, one
 * is empty, and two lie outside the array. Without ranges: no table. */
static range_table ranges_of(size_t elems, size_t n)
{
    enum { ORIGIN = 1000, MOST = 80 };
    static decay_range at[MOST];
    const size_t each = n > 2 ? elems / (n - 2) : 0;
    FSDP_ASSERT(n <= MOST && (n == 0 || each > 4));
    for (size_t i = 0; i < n; i++)
        at[i] = (decay_range){ORIGIN - each + i * each + 2, i == 2 ? 0 : each - 3, i % 3 == 1};
    return (range_table){n > 0 ? at : NULL, (int)n, ORIGIN};
}

/* x: elems, gradients are not scaled, optimizer_kind, ranges */
static void run_update(const ops_case *c, const ops *o, arrays *in)
{
    const size_t elems = c->x[0];
    const optimizer_rule *rule = optimizer_of((optimizer_kind)c->x[2]);
    const float *grad = input_f32(in, elems);
    const float *coef = c->x[1] ? NULL : input_f32(in, 1);
    optim_config config = {.lr = 0.1,
                           .weight_decay = 0.01,
                           .eps = 1e-6,
                           .beta1 = 0.9,
                           .beta2 = 0.95,
                           .momentum = 0.9,
                           .rho = 0.9,
                           .step = 2};
    for (int nesterov = 0; nesterov < 2 && in->status == FSDP_OK; nesterov++) {
        optim_part part = {.param = result_f32(in, elems),
                           .grad = grad,
                           .elems = elems,
                           .ranges = ranges_of(elems, c->x[3])};
        optim_scalars scalars;
        config.nesterov = nesterov == 1;
        optim_scalars_make(&config, coef, &scalars);
        for (int k = 0; k < rule->n_states; k++)
            part.state[k] = result_squares(in, elems); /* averages of squares are not negative */
        in->status = rule->update(o, in->s, &scalars, &part);
    }
}

/* x: elems, ranges */
static void run_norm(const ops_case *c, const ops *o, arrays *in)
{
    const float *x = input_f32(in, c->x[0]);
    rsum *sum = zeros(in, sizeof *sum);
    CALL(sum_squares, .sum = sum, .x = x, .elems = c->x[0], .ranges = ranges_of(c->x[0], c->x[1]));
    CALL(clip_coef, result_f32(in, 1), result_f32(in, 1), sum, 3.0f);
}

enum { OVERWRITE = 1, NO_D_IN = 2, ONLY_D_IN = 4 };

/* x: images, channels in and out, height, width, kernel, which gradients */
static void run_conv2d(const ops_case *c, const ops *o, arrays *in)
{
    const dtype t = in->type;
    const conv_shape x = {c->x[0], c->x[1], c->x[2], c->x[3], c->x[4], c->x[5], t};
    const size_t n_in = x.batch * x.in_channels * x.height * x.width;
    const size_t n_w = x.out_channels * x.in_channels * x.kernel * x.kernel;
    const size_t n_out =
        x.batch * x.out_channels * (x.height + 1 - x.kernel) * (x.width + 1 - x.kernel);
    const void *image = input(in, n_in), *weight = input(in, n_w);
    CALL(conv2d, .out = result(in, n_out), .in = image, .weight = weight,
         .bias = input(in, x.out_channels), .shape = x);
    CALL(conv2d_backward, .d_in = c->x[6] & NO_D_IN ? NULL : result(in, n_in),
         .d_weight = c->x[6] & ONLY_D_IN ? NULL : result_f32(in, n_w),
         .d_bias = c->x[6] & ONLY_D_IN ? NULL : result_f32(in, x.out_channels),
         .d_out = input(in, n_out), .in = image, .weight = weight, .overwrite = c->x[6] & OVERWRITE,
         .shape = x);
}

/* x: planes, height, width */
static void run_max_pool2d(const ops_case *c, const ops *o, arrays *in)
{
    const size_t planes = c->x[0], height = c->x[1], width = c->x[2], n = planes * height * width;
    const size_t n_out = planes * (height / 2) * (width / 2);
    const void *x = input(in, n);
    CALL(max_pool2d, result(in, n_out), x, planes, height, width, in->type);
    CALL(max_pool2d_backward, result(in, n), input(in, n_out), x, planes, height, width, in->type);
}

/* relu and dropout. x: samples, elements of one, in place */
static void run_relu(const ops_case *c, const ops *o, arrays *in)
{
    const size_t elems = c->x[0] * c->x[1];
    void *out[3] = {result(in, elems), result(in, elems), result(in, elems)};
    const void *x = input(in, elems), *d_out = input(in, elems);
    CALL(relu, out[0], c->x[2] ? out[0] : x, elems, in->type);
    CALL(relu_backward, out[1], c->x[2] ? out[1] : d_out, x, elems, in->type);
    CALL(dropout, .out = out[2], .in = c->x[2] ? out[2] : x, .samples = c->x[0], .width = c->x[1],
         .p = 0.3f, .seed = 5, .first_sample = 70, .layer = 2, .type = in->type);
}

/* ---- the catalogue: 1, primes, both sides of tile edges, enough work for several threads ---- */

#define UPDATES(kind, rule, ...)                                                                   \
    {"update " #rule " 1", run_update, {1, 0, OPTIMIZER_##kind}},                                  \
        {"update " #rule " 270001", run_update, {270001, 0, OPTIMIZER_##kind}},                    \
        {"update " #rule " unscaled", run_update, {1000, 1, OPTIMIZER_##kind}},                    \
        {"update " #rule " of ranges", run_update, {70001, 0, OPTIMIZER_##kind, 12}},              \
        {"update " #rule " of many ranges", run_update, {3001, 0, OPTIMIZER_##kind, 75}},

/* Operations of fp32. */
static const ops_case PLAIN_CASES[] = {{"elementwise 1", run_elementwise, {1}},
                                       {"elementwise 270001", run_elementwise, {270001}},
                                       {"norm 1", run_norm, {1}},
                                       {"norm 200003", run_norm, {200003}},
                                       {"norm of ranges", run_norm, {70001, 12}},
                                       {"norm of many ranges", run_norm, {3001, 75}},
                                       UPDATES(ADAMW, adamw) UPDATE_RULES(UPDATES)
                                           UPDATES(MOMENTUM, momentum)};

/* Activations and parameters are in fp32, then in bf16. Sums and gradients of parameters stay in
 * fp32. "large": large inputs. */
static const ops_case CASES[] = {
    {"matmul_finish", run_finish, {70, 131, BIAS | RESIDUAL}},
    {"matmul_finish with a bias", run_finish, {3, 1003, BIAS}},
    {"matmul_finish with a residual, fp32", run_finish, {37, 64, RESIDUAL | F32}},
    {"matmul_finish in place", run_finish, {37, 64, BIAS | RESIDUAL | F32 | IN_PLACE}},
    {"matmul 1x1x1", run_matmul, {1, 1, 1}},
    {"matmul 3x5x7 accumulate", run_matmul, {3, 5, 7, ACCUMULATE}},
    {"matmul one row", run_matmul, {1, 513, 130}},
    {"matmul one row accumulate", run_matmul, {1, 513, 130, ACCUMULATE}},
    {"matmul one row NT", run_matmul, {1, 801, 130, TRANS_B}},
    {"matmul one column", run_matmul, {300, 1, 65, ACCUMULATE}},
    {"matmul NN", run_matmul, {67, 401, 300}},
    {"matmul NT", run_matmul, {67, 401, 300, TRANS_B | ACCUMULATE}},
    {"matmul NT, stored as it is", run_matmul, {67, 401, 300, TRANS_B}},
    {"matmul TN", run_matmul, {67, 401, 300, TRANS_A | ACCUMULATE}},
    {"matmul TN of few terms", run_matmul, {267, 401, 67, TRANS_A | ACCUMULATE}},
    {"matmul TT", run_matmul, {67, 401, 300, TRANS_A | TRANS_B}},
    {"matmul wide", run_matmul, {64, 1600, 96}},
    {"matmul tall TN", run_matmul, {521, 100, 64, TRANS_A | ACCUMULATE}},
    {"matmul deep NT", run_matmul, {5, 6, 2053, TRANS_B}},
    {"matmul deep, one row", run_matmul, {1, 5, 2053}},
    {"matmul deep, one column TN", run_matmul, {192, 1, 2053, TRANS_A}},
    {"matmul bias residual", run_matmul, {67, 401, 301, BIAS | RESIDUAL}},
    {"matmul bias residual TT", run_matmul, {5, 3, 0, TRANS_A | TRANS_B | BIAS | RESIDUAL}},
    {"matmul edges", run_matmul, {257, 385, 9, BIAS | RESIDUAL}},
    {"matmul narrow tiles", run_matmul, {40, 1001, 300, TRANS_B | BIAS}},
    {"matmul forms 64x64x16", run_matmul_forms, {64, 64, 16}},
    {"matmul forms 65x130x33", run_matmul_forms, {65, 130, 33}},
    {"matmul forms 1x3x100", run_matmul_forms, {1, 3, 100}},
    {"matmul forms 70x5x0", run_matmul_forms, {70, 5, 0}},
    {"bias 1x1", run_bias, {1, 1}},
    {"bias 7x130", run_bias, {7, 130}},
    {"bias 601x451", run_bias, {601, 451}},
    {"embedding 1", run_embedding, {1, 1, 1, 1}},
    {"embedding 7x97", run_embedding, {7, 97, 401, 53}},
    {"embedding without positions", run_embedding, {1, 661, 400, 17, 1}},
    {"embedding of equal tokens", run_embedding, {3, 41, 7, 12, 0, 40}},
    {"embedding of equal tokens, wide", run_embedding, {3, 41, 515, 12, 0, 40}},
    {"embedding of equal tokens, no positions", run_embedding, {3, 41, 7, 12, 1, 40}},
    {"embedding of nothing", run_embedding, {0, 41, 7, 12}},
    {"embedding in blocks", run_embedding_blocks, {3, 41, 7, 13, 0, 4}},
    {"embedding in blocks, no positions", run_embedding_blocks, {2, 97, 401, 53, 1, 2}},
    {"layernorm 1x1", run_layernorm, {1, 1}},
    {"layernorm 5x17", run_layernorm, {5, 17}},
    {"layernorm 3x15", run_layernorm, {3, 15, 1}},
    {"layernorm 2x256", run_layernorm, {2, 256, 1}},
    {"layernorm 659x403", run_layernorm, {659, 403, 1}},
    {"layernorm large 100x300", run_layernorm, {100, 300, 1, 1, 100}},
    {"layernorm large 100x77", run_layernorm, {100, 77, 0, 1, 100}},
    {"layernorm large 1x300", run_layernorm, {1, 300, 0, 0, 100}},
    {"layernorm of no rows", run_layernorm, {0, 300, 0, 1}},
    {"rmsnorm 1x1", run_rmsnorm, {1, 1}},
    {"rmsnorm 5x17", run_rmsnorm, {5, 17}},
    {"rmsnorm 659x403", run_rmsnorm, {659, 403, 1}},
    {"rmsnorm large 100x300", run_rmsnorm, {100, 300, 1, 1, 100}},
    {"rmsnorm large 100x77", run_rmsnorm, {100, 77, 0, 1, 100}},
    {"rmsnorm large 1x300", run_rmsnorm, {1, 300, 0, 0, 100}},
    {"rmsnorm of no rows", run_rmsnorm, {0, 300, 0, 1}},
    {"rope T=1", run_rope, {1, 1, 1, 2}},
    {"rope T=300", run_rope, {2, 300, 3, 20, 0, 5}},
    {"rope T=2000, one angle", run_rope, {1, 2000, 1, 2}},
    {"rope T=2000, one angle, interleaved", run_rope, {1, 2000, 1, 2, 1}},
    {"rope T=0", run_rope, {2, 0, 3, 8}},
    {"rope of odd rows", run_rope, {3, 90, 5, 6, 1, 1}},
    {"rope interleaved", run_rope, {1, 70, 2, 256, 1}},
    {"rope interleaved, narrow", run_rope, {1, 70, 2, 64, 1}},
    {"swiglu 0", run_swiglu, {0}},
    {"swiglu 1", run_swiglu, {1}},
    {"swiglu in gate", run_swiglu, {1000, 1, 1}},
    {"swiglu in up", run_swiglu, {1000, 2}},
    {"swiglu 70001", run_swiglu, {70001}},
    {"swiglu large", run_swiglu, {4097, 2, 0, 200}},
    {"gelu 1", run_gelu, {1}},
    {"gelu 70001", run_gelu, {70001}},
    {"attention T=1", run_attention, {1, 1, 1, 1, 1}},
    {"attention T=9", run_attention, {2, 9, 3, 3, 5}},
    {"attention T=63 GQA", run_attention, {1, 63, 4, 2, 16}},
    {"attention T=64", run_attention, {2, 64, 2, 2, 64}},
    {"attention T=65 MQA", run_attention, {1, 65, 3, 1, 32}},
    {"attention T=200 GQA", run_attention, {1, 200, 4, 2, 24}},
    {"attention T=600 GQA", run_attention, {1, 600, 4, 2, 64}},
    {"attention wide heads", run_attention, {1, 65, 2, 1, 403}},
    {"attention narrow values", run_attention, {2, 97, 4, 2, 24, 16}},
    {"attention narrow values T=300", run_attention, {1, 300, 4, 2, 24, 16}},
    {"attention narrow values of wide heads", run_attention, {1, 65, 2, 1, 300, 7}},
    {"attention large T=130", run_attention, {2, 130, 6, 2, 20, 20, 3}},
    {"attention large D=1", run_attention, {1, 33, 1, 1, 1, 1, 3}},
    {"attention large D=33", run_attention, {3, 97, 2, 2, 33, 33, 3}},
    {"attention large wide values", run_attention, {1, 64, 3, 3, 8, 11, 3}},
    {"attention large D=300", run_attention, {1, 70, 2, 1, 300, 270, 3}},
    {"attention large T=193", run_attention, {1, 193, 4, 1, 64, 40, 3}},
    {"attention large D=240, wide values", run_attention, {1, 70, 2, 1, 240, 300, 3}},
    {"cross_entropy 1x1", run_cross_entropy, {1, 1}},
    {"cross_entropy 67x1003", run_cross_entropy, {67, 1003}},
    {"cross_entropy 601x131", run_cross_entropy, {601, 131}},
    {"cross_entropy 67x1003 in parts", run_cross_entropy, {67, 1003, 20}},
    {"cross_entropy in place", run_cross_entropy, {70, 131, 0, 1}},
    {"cross_entropy large", run_cross_entropy, {70, 131, 0, 0, 5}},
    {"cross_entropy large, no gradient", run_cross_entropy, {70, 131, 0, 2, 5}},
    {"cross_entropy of no rows", run_cross_entropy, {0, 131}},
    {"cross_entropy, rows without a target", run_cross_entropy, {70, 131, 20, 1, 0, 3}},
    {"attention with wide gradients of keys", run_attention, {2, 67, 4, 1, 16, 0, 1, 1}},
    {"attention with wide gradients of keys, long", run_attention, {1, 300, 2, 1, 64, 48, 1, 1}},
    {"vocabulary in a block", run_vocab_blocks, {67, 131, 1}},
    {"vocabulary in 2 blocks", run_vocab_blocks, {67, 1003, 2, 0, 5}},
    {"vocabulary in 8 blocks, in place", run_vocab_blocks, {70, 131, 8, 1, 1, 3, 5}},
    {"vocabulary in 4 blocks, no gradient", run_vocab_blocks, {601, 131, 4, 2, 20}},
    {"cross_entropy, no row has a target", run_cross_entropy, {3, 131, 0, 0, 0, 1}},
    {"conv2d 1", run_conv2d, {1, 1, 1, 1, 1, 1}},
    {"conv2d 3 images", run_conv2d, {3, 5, 7, 9, 11, 3, OVERWRITE}},
    {"conv2d blocks", run_conv2d, {2, 33, 65, 21, 20, 3}},
    {"conv2d deep gradient", run_conv2d, {1, 1, 2, 49, 48, 5}},
    {"conv2d no images", run_conv2d, {0, 2, 3, 5, 4, 2, OVERWRITE}},
    {"conv2d whole image, d_in", run_conv2d, {3, 2, 3, 5, 5, 5, ONLY_D_IN}},
    {"conv2d d_weight and d_bias", run_conv2d, {3, 2, 3, 5, 7, 2, NO_D_IN | OVERWRITE}},
    {"max_pool2d 1", run_max_pool2d, {1, 2, 2}},
    {"max_pool2d 0 of 5x7", run_max_pool2d, {0, 5, 7}},
    {"max_pool2d 6 of 5x7", run_max_pool2d, {6, 5, 7}},
    {"max_pool2d 701 of 11x12", run_max_pool2d, {701, 11, 12}},
    {"relu 3x5", run_relu, {3, 5}},
    {"relu 131x1003", run_relu, {131, 1003}},
    {"relu in place", run_relu, {6, 35, 1}},
};

enum {
    N_PLAIN = sizeof PLAIN_CASES / sizeof *PLAIN_CASES,
    N_CASES = sizeof CASES / sizeof *CASES,
};

/* Case i: first the plain cases, then the others in fp32, then the others in bf16. */
static const ops_case *case_of(size_t i)
{
    return i < N_PLAIN ? &PLAIN_CASES[i] : &CASES[(i - N_PLAIN) % N_CASES];
}

static bool is_bf16(size_t i)
{
    return i >= N_PLAIN + N_CASES;
}

size_t ops_case_count(void)
{
    return N_PLAIN + 2 * N_CASES;
}

const char *ops_case_name(size_t i)
{
    static char name[64];
    snprintf(name, sizeof name, "%s%s", case_of(i)->name, is_bf16(i) ? " in bf16" : "");
    return name;
}

ops_result ops_case_run(size_t i, const ops *o, stream *s)
{
    ops_result r = {.data = malloc(RESULT_ELEMS * sizeof(float)),
                    .type = is_bf16(i) ? DTYPE_BF16 : DTYPE_F32};
    arrays in = {.s = s, .r = &r, .type = r.type};
    case_of(i)->run(case_of(i), o, &in);
    r.status = finish(&in);
    FSDP_ASSERT(r.elems <= RESULT_ELEMS);
    return r;
}
