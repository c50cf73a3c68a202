/* kernels.c -- every operation of ops.h at the shapes of GPT-2 124M, beside the machine's roof.
 *
 *   kernels --roof FILE --roof-only                 measure the roof alone: "key,value" lines
 *   kernels [--ops fast|portable] [--rows N] [--seq-len T] [--attention-t T] [--optimizer]
 *           [--csv FILE] [--roof FILE]
 *
 * One warm-up, then repeats for about 0.3 s (at least 3, or 1 of what takes longer than 1 s):
 * median and quartiles. Bytes are what the operation must read and write at least, each array once;
 * FLOP of attention are those of the causal half. Percent: least time by the roof / median. The
 * roof is measured first, in the same run; --roof FILE raises it to what an earlier run saw, and
 * keeps the result. Arrays stay warm between repeats, so the roof of the cache that holds them is
 * used. */
#include <math.h>
#include <omp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/philox.h"
#include "common/ops/ops.h"
#include "tests/bench/bench_lib.h"

enum { C = 768, HEADS = 12, HEAD_DIM = 64, FF = 3072, VOCAB = 50257, PARAMS = 124439808 };
enum { MAX_REPS = 200, N_ARRAYS = 4 };

typedef struct bench {
    const ops *ops;
    stream *s;
    bench_roof roof;
    FILE *csv;
    size_t rows, seq_len; /* rows = sequences * seq_len */
    float *x[N_ARRAYS];   /* [array_elems] each, small random numbers */
    size_t array_elems;
    int32_t *tokens; /* [rows] */
    rsum *sum;
    float *scalars; /* [4] */
} bench;

/* ---- measuring one ------------------------------------------------------------------------- */

typedef fsdp_status (*kernel_fn)(const ops *o, stream *s, const void *args);

#define RUNNER(op)                                                                                 \
    static fsdp_status run_##op(const ops *o, stream *s, const void *args)                         \
    {                                                                                              \
        return o->op(s, (const op##_args *)args);                                                  \
    }
RUNNER(matmul)
RUNNER(bias_add)
RUNNER(bias_backward)
RUNNER(embedding)
RUNNER(embedding_backward)
RUNNER(layernorm)
RUNNER(layernorm_backward)
RUNNER(gelu)
RUNNER(gelu_backward)
RUNNER(attention)
RUNNER(attention_backward)
RUNNER(cross_entropy)
RUNNER(add)
RUNNER(scale)
RUNNER(sum_squares)
RUNNER(clip_coef)
RUNNER(adamw)
RUNNER(sgd)

typedef struct kernel {
    const char *name, *shape;
    kernel_fn run;
    const void *args;
    size_t flops, bytes; /* per call */
} kernel;

static fsdp_status time_once(const bench *b, const kernel *k, double *seconds)
{
    double begun = bench_now_s();
    TRY(k->run(b->ops, b->s, k->args));
    TRY(stream_sync(b->s));
    *seconds = bench_now_s() - begun;
    return FSDP_OK;
}

static fsdp_status measure(bench *b, const kernel *k)
{
    double seconds[MAX_REPS];
    TRY(time_once(b, k, &seconds[0]));
    size_t reps = seconds[0] > 1.0 ? 1 : bench_reps(seconds[0], 0.3, 3, MAX_REPS);
    for (size_t i = 0; i < reps; i++)
        TRY(time_once(b, k, &seconds[i]));
    bench_quartiles q = bench_quartiles_of(seconds, reps);
    const char *limit;
    double rate;
    double least_s = bench_bound(&b->roof, (double)k->flops, (double)k->bytes, &limit, &rate);
    char line[256];
    snprintf(line, sizeof line, "%s,%s,%s,%.4f,%.4f,%.4f,%.4f,%zu,%.1f,%.1f,%s,%.0f,%.0f",
             b->ops->name, k->name, k->shape, 1e3 * q.median, 1e3 * q.q1, 1e3 * q.q3,
             1e3 * seconds[0], reps, 1e-9 * (double)k->flops / q.median,
             1e-9 * (double)k->bytes / q.median, limit, rate, 100 * least_s / q.median);
    fprintf(b->csv, "%s\n", line);
    fflush(b->csv);
    return FSDP_OK;
}

/* ---- the cases ----------------------------------------------------------------------------- */

/* y[m,n] = x w, d_x = d_y w^T and d_w += x^T d_y of one weight [k,n] (the head's is stored [n,k]).
 */
static fsdp_status measure_linear(bench *b, const char *name, size_t n_in, size_t n_out,
                                  bool is_head)
{
    size_t rows = b->rows;
    size_t flops = 2 * rows * n_in * n_out;
    size_t in = 4 * rows * n_in, out = 4 * rows * n_out, w = 4 * n_in * n_out;
    char label[3][48], shape[64];
    const char *const parts[] = {"", " backward x", " backward w"};
    for (int i = 0; i < 3; i++)
        snprintf(label[i], sizeof label[i], "matmul %s%s", name, parts[i]);
    snprintf(shape, sizeof shape, "%zu x %zu x %zu", rows, n_in, n_out);
    matmul_args y = {.out = b->x[0],
                     .a = b->x[1],
                     .b = b->x[2],
                     .m = rows,
                     .n = n_out,
                     .k = n_in,
                     .trans_b = is_head};
    TRY(measure(b, &(kernel){label[0], shape, run_matmul, &y, flops, in + w + out}));
    matmul_args d_x = {.out = b->x[0],
                       .a = b->x[1],
                       .b = b->x[2],
                       .m = rows,
                       .n = n_in,
                       .k = n_out,
                       .trans_b = !is_head};
    TRY(measure(b, &(kernel){label[1], shape, run_matmul, &d_x, flops, in + w + out}));
    matmul_args d_w = {.out = b->x[0],
                       .a = b->x[1],
                       .b = b->x[2],
                       .m = is_head ? n_out : n_in,
                       .n = is_head ? n_in : n_out,
                       .k = rows,
                       .trans_a = true,
                       .accumulate = true};
    return measure(b, &(kernel){label[2], shape, run_matmul, &d_w, flops, in + 2 * w + out});
}

static fsdp_status measure_matmuls(bench *b)
{
    TRY(measure_linear(b, "qkv", C, 3 * C, false));
    TRY(measure_linear(b, "attention out", C, C, false));
    TRY(measure_linear(b, "mlp in", C, FF, false));
    TRY(measure_linear(b, "mlp out", FF, C, false));
    return measure_linear(b, "head", C, VOCAB, true);
}

static fsdp_status measure_attention(bench *b, size_t batch, size_t seq_len)
{
    size_t rows = batch * seq_len;
    size_t product = 2 * batch * HEADS * HEAD_DIM * seq_len * (seq_len + 1) / 2; /* causal */
    size_t bytes = 4 * rows * C;
    char shape[64];
    snprintf(shape, sizeof shape, "B %zu T %zu H %d D %d", batch, seq_len, HEADS, HEAD_DIM);
    float *qkv = b->x[0], *d_qkv = b->x[1];
    float *out = b->x[2], *d_out = b->x[3], *lse = b->x[2] + rows * C;
    const float scale = 1.0f / sqrtf(HEAD_DIM);
    attention_args forward = {.out = out,
                              .lse = lse,
                              .q = qkv,
                              .k = qkv + C,
                              .v = qkv + 2 * C,
                              .q_stride = 3 * C,
                              .k_stride = 3 * C,
                              .v_stride = 3 * C,
                              .batch = batch,
                              .seq_len = seq_len,
                              .n_head = HEADS,
                              .n_kv_head = HEADS,
                              .head_dim = HEAD_DIM,
                              .scale = scale};
    TRY(measure(b, &(kernel){"attention", shape, run_attention, &forward, 2 * product, 4 * bytes}));
    attention_backward_args backward = {.d_q = d_qkv,
                                        .d_k = d_qkv + C,
                                        .d_v = d_qkv + 2 * C,
                                        .d_out = d_out,
                                        .out = out,
                                        .lse = lse,
                                        .q = qkv,
                                        .k = qkv + C,
                                        .v = qkv + 2 * C,
                                        .q_stride = 3 * C,
                                        .k_stride = 3 * C,
                                        .v_stride = 3 * C,
                                        .batch = batch,
                                        .seq_len = seq_len,
                                        .n_head = HEADS,
                                        .n_kv_head = HEADS,
                                        .head_dim = HEAD_DIM,
                                        .scale = scale};
    return measure(b, &(kernel){"attention backward", shape, run_attention_backward, &backward,
                                5 * product, 8 * bytes});
}

/* Bias, GELU: rows of width FF, where they cost most. */
static fsdp_status measure_elementwise(bench *b)
{
    size_t rows = b->rows, elems = rows * FF;
    size_t bytes = 4 * elems;
    char shape[64];
    snprintf(shape, sizeof shape, "%zu x %d", rows, FF);
    bias_add_args bias = {.out = b->x[0], .in = b->x[0], .bias = b->x[1], .rows = rows, .cols = FF};
    TRY(measure(b, &(kernel){"bias add", shape, run_bias_add, &bias, elems, 2 * bytes}));
    bias_backward_args d_bias = {.d_bias = b->x[0], .d_out = b->x[1], .rows = rows, .cols = FF};
    TRY(measure(b, &(kernel){"bias backward", shape, run_bias_backward, &d_bias, elems, bytes}));
    gelu_args gelu = {.out = b->x[0], .in = b->x[1], .elems = elems};
    TRY(measure(b, &(kernel){"gelu", shape, run_gelu, &gelu, 0, 2 * bytes}));
    gelu_backward_args d_gelu = {.d_in = b->x[0], .d_out = b->x[1], .in = b->x[2], .elems = elems};
    TRY(measure(b, &(kernel){"gelu backward", shape, run_gelu_backward, &d_gelu, 0, 3 * bytes}));
    add_args add = {.out = b->x[0], .a = b->x[1], .b = b->x[2], .elems = rows * C};
    snprintf(shape, sizeof shape, "%zu x %d", rows, C);
    return measure(b, &(kernel){"add", shape, run_add, &add, rows * C, 12 * rows * C});
}

static fsdp_status measure_rows(bench *b)
{
    size_t rows = b->rows, batch = rows / b->seq_len;
    size_t bytes = 4 * rows * C, logits = 4 * rows * VOCAB;
    char shape[64];
    snprintf(shape, sizeof shape, "%zu x %d", rows, C);
    float *mean = b->x[3], *rstd = b->x[3] + rows;
    layernorm_args norm = {.out = b->x[0],
                           .mean = mean,
                           .rstd = rstd,
                           .in = b->x[1],
                           .gain = b->x[2],
                           .bias = b->x[2] + C,
                           .rows = rows,
                           .cols = C,
                           .eps = 1e-5f};
    TRY(measure(b, &(kernel){"layernorm", shape, run_layernorm, &norm, 0, 2 * bytes}));
    layernorm_backward_args d_norm = {.d_in = b->x[0],
                                      .d_gain = b->x[3] + 2 * rows,
                                      .d_bias = b->x[3] + 2 * rows + C,
                                      .d_out = b->x[1],
                                      .in = b->x[1] + rows * C,
                                      .gain = b->x[2],
                                      .mean = mean,
                                      .rstd = rstd,
                                      .d_residual = b->x[2] + C,
                                      .rows = rows,
                                      .cols = C};
    TRY(measure(
        b, &(kernel){"layernorm backward", shape, run_layernorm_backward, &d_norm, 0, 4 * bytes}));
    embedding_args emb = {.out = b->x[0],
                          .wte = b->x[1],
                          .wpe = b->x[2],
                          .tokens = b->tokens,
                          .batch = batch,
                          .seq_len = b->seq_len,
                          .width = C,
                          .vocab = VOCAB};
    TRY(measure(b, &(kernel){"embedding", shape, run_embedding, &emb, 0, 3 * bytes}));
    embedding_backward_args d_emb = {.d_wte = b->x[0],
                                     .d_wpe = b->x[1],
                                     .d_out = b->x[2],
                                     .tokens = b->tokens,
                                     .batch = batch,
                                     .seq_len = b->seq_len,
                                     .width = C,
                                     .vocab = VOCAB};
    TRY(measure(
        b, &(kernel){"embedding backward", shape, run_embedding_backward, &d_emb, 0, 4 * bytes}));
    cross_entropy_args loss = {.loss = b->scalars,
                               .d_logits = b->x[0],
                               .logits = b->x[1],
                               .targets = b->tokens,
                               .rows = rows,
                               .vocab = VOCAB};
    snprintf(shape, sizeof shape, "%zu x %d", rows, VOCAB);
    return measure(b, &(kernel){"cross entropy with gradient", shape, run_cross_entropy, &loss, 0,
                                2 * logits});
}

/* What runs once a step over all parameters. */
static fsdp_status measure_optimizer(bench *b)
{
    size_t elems = b->array_elems < PARAMS ? b->array_elems : PARAMS;
    size_t bytes = 4 * elems;
    char shape[64];
    snprintf(shape, sizeof shape, "%zu", elems);
    sum_squares_args squares = {.sum = b->sum, .x = b->x[0], .elems = elems};
    TRY(measure(b, &(kernel){"sum of squares", shape, run_sum_squares, &squares, 0, bytes}));
    clip_coef_args clip = {
        .norm = b->scalars, .coef = b->scalars + 1, .sum = b->sum, .max_norm = 1};
    TRY(measure(b, &(kernel){"clip coefficient", "1", run_clip_coef, &clip, 0, sizeof(rsum)}));
    scale_args scale = {.x = b->x[0], .factor = 1.0f, .elems = elems};
    TRY(measure(b, &(kernel){"scale", shape, run_scale, &scale, 0, 2 * bytes}));
    sgd_args sgd = {.param = b->x[0], .grad = b->x[1], .elems = elems, .lr = 1e-3f};
    TRY(measure(b, &(kernel){"sgd", shape, run_sgd, &sgd, 0, 3 * bytes}));
    adamw_args adamw = {
        .param = b->x[0], .grad = b->x[1], .m = b->x[2], .v = b->x[3], .elems = elems};
    adamw_scalars(&adamw, 1e-3, 0.9, 0.95, 1e-8, 0.1, 0);
    return measure(b, &(kernel){"adamw", shape, run_adamw, &adamw, 0, 7 * bytes});
}

/* ---- running ------------------------------------------------------------------------------- */

typedef struct bench_options {
    const char *roof, *ops, *csv;
    size_t rows, seq_len, attention_t;
    bool with_optimizer, roof_only;
} bench_options;

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static fsdp_status allocate(bench *b, const bench_options *o)
{
    size_t elems = max_size((size_t)VOCAB * C, b->rows * VOCAB);
    elems = max_size(elems, 4 * max_size(b->rows, o->attention_t) * FF);
    if (o->with_optimizer)
        elems = max_size(elems, PARAMS);
    b->array_elems = elems;
    for (int k = 0; k < N_ARRAYS; k++) {
        TRY(device_alloc_f32(b->s, MEM_OTHER, elems, "bench", &b->x[k]));
        for (size_t i = 0; i < elems; i++) /* in (0, 0.25], no two neighbours equal */
            b->x[k][i] = (float)((i * 2654435761u + (size_t)k * 40503u) % 4093 + 1) / 16372.0f;
    }
    TRY(device_alloc(b->s, MEM_OTHER, b->rows * sizeof *b->tokens, "bench", (void **)&b->tokens));
    for (size_t i = 0; i < b->rows; i++)
        b->tokens[i] = (int32_t)(philox_u32(1, 0, i) % VOCAB);
    TRY(device_alloc(b->s, MEM_OTHER, sizeof *b->sum, "bench", (void **)&b->sum));
    *b->sum = (rsum){0};
    return device_alloc_f32(b->s, MEM_OTHER, 4, "bench", &b->scalars);
}

static void release(bench *b)
{
    for (int k = 0; k < N_ARRAYS; k++)
        device_free(b->s, b->x[k]);
    device_free(b->s, b->tokens);
    device_free(b->s, b->sum);
    device_free(b->s, b->scalars);
}

static fsdp_status run(bench *b, const bench_options *o)
{
    TRY(bench_roof_measure(stream_threads(b->s), &b->roof));
    if (o->roof != NULL) {
        bench_roof_merge(&b->roof, o->roof);
        TRY(bench_roof_write(&b->roof, o->roof));
    }
    if (o->roof_only)
        return FSDP_OK;
    TRY(allocate(b, o));
    fprintf(b->csv, "ops,operation,shape,ms,q1,q3,best,runs,GFLOP/s,GB/s,limit,roof,%% of roof\n");
    TRY(measure_matmuls(b));
    TRY(measure_attention(b, b->rows / b->seq_len, b->seq_len));
    TRY(measure_elementwise(b));
    TRY(measure_rows(b));
    if (o->attention_t > 0)
        TRY(measure_attention(b, 1, o->attention_t));
    return o->with_optimizer ? measure_optimizer(b) : FSDP_OK;
}

static bool parse(int argc, char **argv, bench_options *o)
{
    *o = (bench_options){.ops = "fast", .rows = 256, .seq_len = 64};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (strcmp(name, "--optimizer") == 0 || strcmp(name, "--roof-only") == 0) {
            *(name[2] == 'o' ? &o->with_optimizer : &o->roof_only) = true;
            continue;
        }
        const char *value = i + 1 < argc ? argv[++i] : NULL;
        if (value == NULL)
            return false;
        if (strcmp(name, "--roof") == 0)
            o->roof = value;
        else if (strcmp(name, "--ops") == 0)
            o->ops = value;
        else if (strcmp(name, "--csv") == 0)
            o->csv = value;
        else if (strcmp(name, "--rows") == 0)
            o->rows = (size_t)atol(value);
        else if (strcmp(name, "--seq-len") == 0)
            o->seq_len = (size_t)atol(value);
        else if (strcmp(name, "--attention-t") == 0)
            o->attention_t = (size_t)atol(value);
        else
            return false;
    }
    return o->seq_len > 0 && o->rows > 0 && o->rows % o->seq_len == 0;
}

int main(int argc, char **argv)
{
    bench_options o;
    if (!parse(argc, argv, &o)) {
        fprintf(stderr,
                "usage: %s [--roof FILE] [--roof-only] [--ops fast|portable] [--rows N]\n"
                "       [--seq-len T] [--attention-t T] [--optimizer] [--csv FILE]\n",
                argv[0]);
        return 2;
    }
    bench b = {.rows = o.rows, .seq_len = o.seq_len, .csv = stdout};
    b.ops = strcmp(o.ops, "portable") == 0 ? ops_cpu_portable() : ops_cpu_fast();
    if (o.csv != NULL && (b.csv = fopen(o.csv, "w")) == NULL) {
        perror(o.csv);
        return 1;
    }
    device *d = NULL;
    device_config config = {.kind = DEVICE_CPU, .n_threads = omp_get_max_threads()};
    fsdp_status status = device_open(&config, &d);
    if (status == FSDP_OK) {
        b.s = device_compute_stream(d);
        status = run(&b, &o);
        release(&b);
        device_close(d);
    }
    if (status != FSDP_OK)
        fsdp_error_print(stderr, 0, 0);
    if (o.csv != NULL && fclose(b.csv) != 0)
        return 1;
    return status == FSDP_OK ? 0 : 1;
}
