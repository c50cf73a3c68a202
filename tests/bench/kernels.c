/* kernels.c -- every operation of ops.h at the shapes of GPT-2 124M, with activations and
 * parameters in fp32 and in bf16, compared with the machine's roof.
 *
 *   kernels --roof FILE --roof-only                 measure the roof alone: "key,value" lines
 *   kernels [--ops fast|portable] [--rows N] [--seq-len T] [--attention-t T] [--optimizer]
 *           [--csv FILE] [--roof FILE]
 *
 * One warm-up, then repeats for about 0.3 s (at least 3 repeats; 1 if one takes longer than 1 s):
 * median and quartiles. Bytes are the least that the operation must read and write, each array
 * once. FLOP of attention count the causal half. Percent: least time by the roof / median. The same
 * run measures the roof first; --roof FILE raises it to the values of an earlier run and keeps the
 * result. Arrays stay warm between repeats, so their cache's roof is used. */
#include <errno.h>
#include <math.h>
#include <omp.h>
#include <stdbool.h>
#include <string.h>
#include "common/base/options.h"
#include "common/base/philox.h"
#include "common/device/device_impl.h"
#include "common/ops/ops.h"
#include "tests/bench/bench_lib.h"
#include "tests/bench/roof_lib.h"

enum { C = 768, HEADS = 12, HEAD_DIM = 64, FF = 3072, VOCAB = 50257, PARAMS = 124439808 };
enum { MAX_REPS = 200, N_ARRAYS = 4 };

typedef struct bench {
    const ops *ops;
    stream *s;
    bench_roof roof;
    FILE *csv;
    size_t rows, seq_len;  /* rows = sequences * seq_len */
    float *x[N_ARRAYS];    /* [array_elems] each, small random numbers */
    uint16_t *h[N_ARRAYS]; /* the same in bf16 */
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
    const char *name, *part; /* the row's name; " bf16" is appended for that type */
    dtype type;
    const char *shape;
    kernel_fn run;
    const void *args;
    size_t flops, bytes; /* per call */
    bench_mix mix;       /* MIX_NONE: not an update in place */
} kernel;

static fsdp_status time_once(const bench *b, const kernel *k, double *seconds)
{
    double begun = clock_now_s();
    TRY(k->run(b->ops, b->s, k->args));
    TRY(stream_sync(b->s));
    *seconds = clock_now_s() - begun;
    return FSDP_OK;
}

/* The least time that a kernel can take here, and the limit that sets it. */
typedef struct bound {
    const char *limit;
    double rate, least_s;
} bound;

static void print_row(const bench *b, const kernel *k, const bound *u, double *seconds, size_t n)
{
    bench_quartiles q = bench_quartiles_of(seconds, n);
    fprintf(b->csv, "%s,%s%s%s,%s,%.4f,%.4f,%.4f,%.4f,%zu,%.1f,%.1f,%s,%.0f,%.0f\n", b->ops->name,
            k->name, k->part, k->type == DTYPE_BF16 ? " bf16" : "", k->shape, 1e3 * q.median,
            1e3 * q.q1, 1e3 * q.q3, 1e3 * seconds[0], n, 1e-9 * (double)k->flops / q.median,
            1e-9 * (double)k->bytes / q.median, u->limit, u->rate, 100 * u->least_s / q.median);
    fflush(b->csv);
}

/* For an update in place of PARAMS elements, the roof is the best pass of a loop that only moves
 * the same data. The loop runs over the same arrays, in turns with the operation. */
static fsdp_status measure(bench *b, const kernel *k)
{
    double seconds[MAX_REPS], once;
    bound u = {.limit = "in-place", .least_s = INFINITY};
    TRY(time_once(b, k, &once));
    const size_t reps = once > 1.0 ? 1 : bench_reps(once, 0.3, 3, MAX_REPS);
    for (size_t i = 0; i < reps; i++) {
        TRY(time_once(b, k, &seconds[i]));
        if (k->mix != MIX_NONE)
            u.least_s = fmin(u.least_s, bench_in_place_s(b->x, PARAMS, k->mix, b->s->n_threads));
    }
    u.rate = 1e-9 * (double)k->bytes / u.least_s;
    if (k->mix == MIX_NONE) /* only products multiply in bf16 */
        u.least_s = bench_bound(&b->roof, k->run == run_matmul ? k->type : DTYPE_F32,
                                (double)k->flops, (double)k->bytes, &u.limit, &u.rate);
    print_row(b, k, &u, seconds, reps);
    return FSDP_OK;
}

/* ---- the cases ----------------------------------------------------------------------------- */

/* A row to measure. The function that uses ROW has variables `type` and `shape`. */
#define ROW(name, part, op, args, flops, bytes)                                                    \
    (&(kernel){name, part, type, shape, run_##op, args, flops, bytes, MIX_NONE})
#define IN_PLACE(mix, name, op, args, bytes)                                                       \
    (&(kernel){name, "", type, shape, run_##op, args, 0, bytes, mix})

/* Array i from element `at`, stored as `type`. */
static void *array(const bench *b, int i, size_t at, dtype type)
{
    return type == DTYPE_BF16 ? (void *)(b->h[i] + at) : (void *)(b->x[i] + at);
}

/* y[m,n] = x w + bias, d_x = d_y w^T and d_w += x^T d_y of one weight [k,n], as the model calls
 * them: gradients of weights are fp32. The head's weight is stored [n,k] and has no bias. */
static fsdp_status measure_linear(bench *b, const char *name, size_t n_in, size_t n_out,
                                  bool is_head, dtype type)
{
    size_t rows = b->rows, bytes_of = dtype_bytes(type), w = n_in * n_out;
    size_t flops = 2 * rows * w, in = rows * n_in, out = rows * n_out;
    char shape[64];
    snprintf(shape, sizeof shape, "%zu x %zu x %zu", rows, n_in, n_out);
    matmul_args y = {.out = array(b, 0, 0, type),
                     .a = array(b, 1, 0, type),
                     .b = array(b, 2, 0, type),
                     .bias = is_head ? NULL : array(b, 3, 0, type),
                     .m = rows,
                     .n = n_out,
                     .k = n_in,
                     .trans_b = is_head,
                     .type = type,
                     .out_type = type};
    size_t bytes = bytes_of * (in + w + out);
    TRY(measure(b, ROW(name, "", matmul, &y, flops, bytes)));
    matmul_args d_x = y;
    d_x.bias = NULL;
    d_x.n = n_in;
    d_x.k = n_out;
    d_x.trans_b = !is_head;
    TRY(measure(b, ROW(name, " backward x", matmul, &d_x, flops, bytes)));
    matmul_args d_w = {.out = b->x[0],
                       .a = array(b, 1, 0, type),
                       .b = array(b, 2, 0, type),
                       .m = is_head ? n_out : n_in,
                       .n = is_head ? n_in : n_out,
                       .k = rows,
                       .trans_a = true,
                       .accumulate = true,
                       .type = type};
    bytes = bytes_of * (in + out) + 2 * w * sizeof(float);
    return measure(b, ROW(name, " backward w", matmul, &d_w, flops, bytes));
}

static fsdp_status measure_matmuls(bench *b, dtype type)
{
    TRY(measure_linear(b, "matmul qkv", C, 3 * C, false, type));
    TRY(measure_linear(b, "matmul attention out", C, C, false, type));
    TRY(measure_linear(b, "matmul mlp in", C, FF, false, type));
    TRY(measure_linear(b, "matmul mlp out", FF, C, false, type));
    return measure_linear(b, "matmul head", C, VOCAB, true, type);
}

static fsdp_status measure_attention(bench *b, size_t batch, size_t seq_len, dtype type)
{
    size_t rows = batch * seq_len;
    size_t product = 2 * batch * HEADS * HEAD_DIM * seq_len * (seq_len + 1) / 2; /* causal */
    size_t bytes = dtype_bytes(type) * rows * C;
    char shape[64];
    snprintf(shape, sizeof shape, "B %zu T %zu H %d D %d", batch, seq_len, HEADS, HEAD_DIM);
    const attention_shape strides = {.q_stride = 3 * C,
                                     .k_stride = 3 * C,
                                     .v_stride = 3 * C,
                                     .batch = batch,
                                     .seq_len = seq_len,
                                     .n_head = HEADS,
                                     .n_kv_head = HEADS,
                                     .head_dim = HEAD_DIM,
                                     .v_head_dim = HEAD_DIM,
                                     .scale = 1.0f / sqrtf(HEAD_DIM),
                                     .type = type};
    attention_args forward = {.out = array(b, 2, 0, type),
                              .lse = b->x[3] + rows * C,
                              .q = array(b, 0, 0, type),
                              .k = array(b, 0, C, type),
                              .v = array(b, 0, 2 * C, type),
                              .shape = strides};
    TRY(measure(b, ROW("attention", "", attention, &forward, 2 * product, 4 * bytes)));
    attention_backward_args backward = {.d_q = array(b, 1, 0, type),
                                        .d_k = array(b, 1, C, type),
                                        .d_v = array(b, 1, 2 * C, type),
                                        .d_out = array(b, 3, 0, type),
                                        .out = forward.out,
                                        .lse = forward.lse,
                                        .q = forward.q,
                                        .k = forward.k,
                                        .v = forward.v,
                                        .shape = strides};
    return measure(
        b, ROW("attention", " backward", attention_backward, &backward, 5 * product, 8 * bytes));
}

/* Bias and GELU on rows of width FF, where they cost most. */
static fsdp_status measure_elementwise(bench *b, dtype type)
{
    size_t rows = b->rows, elems = rows * FF;
    size_t bytes = dtype_bytes(type) * elems;
    char shape[64];
    snprintf(shape, sizeof shape, "%zu x %d", rows, FF);
    bias_backward_args d_bias = {
        .d_bias = b->x[0], .d_out = array(b, 1, 0, type), .rows = rows, .cols = FF, .type = type};
    TRY(measure(b, ROW("bias", " backward", bias_backward, &d_bias, elems, bytes)));
    gelu_args gelu = {
        .out = array(b, 0, 0, type), .in = array(b, 1, 0, type), .elems = elems, .type = type};
    TRY(measure(b, ROW("gelu", "", gelu, &gelu, 0, 2 * bytes)));
    gelu_backward_args d_gelu = {.d_in = array(b, 0, 0, type),
                                 .d_out = array(b, 1, 0, type),
                                 .in = array(b, 2, 0, type),
                                 .elems = elems,
                                 .type = type};
    return measure(b, ROW("gelu", " backward", gelu_backward, &d_gelu, 0, 3 * bytes));
}

static fsdp_status measure_norm(bench *b, dtype type)
{
    size_t rows = b->rows, bytes = dtype_bytes(type) * rows * C;
    char shape[64];
    snprintf(shape, sizeof shape, "%zu x %d", rows, C);
    float *mean = b->x[3], *rstd = b->x[3] + rows;
    layernorm_args norm = {.out = array(b, 0, 0, type),
                           .mean = mean,
                           .rstd = rstd,
                           .in = array(b, 1, 0, type),
                           .gain = array(b, 2, 0, type),
                           .bias = array(b, 2, C, type),
                           .rows = rows,
                           .cols = C,
                           .eps = 1e-5f,
                           .type = type};
    TRY(measure(b, ROW("layernorm", "", layernorm, &norm, 0, 2 * bytes)));
    layernorm_backward_args d_norm = {.d_in = array(b, 0, 0, type),
                                      .d_gain = b->x[3] + 2 * rows,
                                      .d_bias = b->x[3] + 2 * rows + C,
                                      .d_out = array(b, 1, 0, type),
                                      .in = array(b, 1, rows * C, type),
                                      .gain = array(b, 2, 0, type),
                                      .mean = mean,
                                      .rstd = rstd,
                                      .d_residual = array(b, 2, C, type),
                                      .rows = rows,
                                      .cols = C,
                                      .type = type};
    return measure(b, ROW("layernorm", " backward", layernorm_backward, &d_norm, 0, 4 * bytes));
}

static fsdp_status measure_tokens(bench *b, dtype type)
{
    size_t rows = b->rows, batch = rows / b->seq_len;
    size_t elems = rows * C, bytes_of = dtype_bytes(type);
    char shape[64];
    snprintf(shape, sizeof shape, "%zu x %d", rows, C);
    embedding_args emb = {.out = array(b, 0, 0, type),
                          .wte = array(b, 1, 0, type),
                          .wpe = array(b, 2, 0, type),
                          .tokens = b->tokens,
                          .batch = batch,
                          .seq_len = b->seq_len,
                          .width = C,
                          .vocab = VOCAB,
                          .type = type};
    TRY(measure(b, ROW("embedding", "", embedding, &emb, 0, 3 * bytes_of * elems)));
    embedding_backward_args d_emb = {.d_wte = b->x[0],
                                     .d_wpe = b->x[1],
                                     .d_out = array(b, 2, 0, type),
                                     .tokens = b->tokens,
                                     .batch = batch,
                                     .seq_len = b->seq_len,
                                     .width = C,
                                     .vocab = VOCAB,
                                     .type = type};
    TRY(measure(
        b, ROW("embedding", " backward", embedding_backward, &d_emb, 0, (bytes_of + 12) * elems)));
    cross_entropy_args loss = {.loss = b->scalars,
                               .d_logits = array(b, 0, 0, type),
                               .logits = array(b, 1, 0, type),
                               .targets = b->tokens,
                               .rows = rows,
                               .vocab = VOCAB,
                               .type = type};
    snprintf(shape, sizeof shape, "%zu x %d", rows, VOCAB);
    return measure(b, ROW("cross entropy with gradient", "", cross_entropy, &loss, 0,
                          2 * bytes_of * rows * VOCAB));
}

static fsdp_status measure_type(bench *b, dtype type)
{
    TRY(measure_matmuls(b, type));
    TRY(measure_attention(b, b->rows / b->seq_len, b->seq_len, type));
    TRY(measure_elementwise(b, type));
    TRY(measure_norm(b, type));
    return measure_tokens(b, type);
}

/* Sums of gradients in fp32. */
static fsdp_status measure_add(bench *b)
{
    const dtype type = DTYPE_F32;
    size_t elems = b->rows * C;
    char shape[64];
    snprintf(shape, sizeof shape, "%zu x %d", b->rows, C);
    add_args add = {.out = b->x[0], .a = b->x[1], .b = b->x[2], .elems = elems};
    return measure(b, ROW("add", "", add, &add, elems, 12 * elems));
}

/* Operations that run once a step over all parameters. */
static fsdp_status measure_optimizer(bench *b)
{
    const dtype type = DTYPE_F32;
    size_t elems = PARAMS, bytes = 4 * elems; /* arrays hold this many, see allocate */
    char shape[64];
    snprintf(shape, sizeof shape, "%zu", elems);
    sum_squares_args squares = {.sum = b->sum, .x = b->x[0], .elems = elems};
    TRY(measure(b, ROW("sum of squares", "", sum_squares, &squares, 0, bytes)));
    clip_coef_args clip = {
        .norm = b->scalars, .coef = b->scalars + 1, .sum = b->sum, .max_norm = 1};
    TRY(measure(b, &(kernel){"clip coefficient", "", type, "1", run_clip_coef, &clip, 0,
                             sizeof(rsum), MIX_NONE}));
    scale_args scale = {.x = b->x[0], .factor = 1.0f, .elems = elems};
    TRY(measure(b, IN_PLACE(MIX_SCALE, "scale", scale, &scale, 2 * bytes)));
    sgd_args sgd = {.param = b->x[0], .grad = b->x[1], .elems = elems, .lr = 1e-3f};
    TRY(measure(b, IN_PLACE(MIX_SGD, "sgd", sgd, &sgd, 3 * bytes)));
    adamw_args adamw = {
        .param = b->x[0], .grad = b->x[1], .m = b->x[2], .v = b->x[3], .elems = elems};
    adamw_scalars(
        &adamw,
        &(optim_config){.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1});
    return measure(b, IN_PLACE(MIX_ADAMW, "adamw", adamw, &adamw, 7 * bytes));
}

/* ---- running ------------------------------------------------------------------------------- */

typedef struct bench_options {
    const char *roof, *csv;
    int ops; /* 1: portable */
    int64_t rows, seq_len, attention_t;
    bool with_optimizer, roof_only;
} bench_options;

/* clang-format off */
#define FIELD(name) offsetof(bench_options, name)
static const option_spec OPTIONS[] = {
    {.name = "ops", .kind = OPT_ENUM, .offset = FIELD(ops), .def = "fast", .choices = "fast|portable",
     .group = "Operations", .help = "which table of them"},
    {.name = "rows", .kind = OPT_INT, .offset = FIELD(rows), .def = "256", .min = 1, .max = 65536,
     .help = "tokens, a multiple of --seq-len"},
    {.name = "seq-len", .kind = OPT_INT, .offset = FIELD(seq_len), .def = "64", .min = 1, .max = 65536,
     .help = "tokens of a sequence"},
    {.name = "attention-t", .kind = OPT_INT, .offset = FIELD(attention_t), .min = 0, .max = 65536,
     .help = "attention also over one sequence of so many tokens"},
    {.name = "optimizer", .kind = OPT_BOOL, .offset = FIELD(with_optimizer),
     .help = "also what runs once a step over all parameters"},
    {.name = "csv", .kind = OPT_STRING, .offset = FIELD(csv), .arg = "FILE", .help = "write the table there"},
    {.name = "roof", .kind = OPT_STRING, .offset = FIELD(roof), .arg = "FILE", .group = "Roof",
     .help = "raise the roof to what this file has, and write it there"},
    {.name = "roof-only", .kind = OPT_BOOL, .offset = FIELD(roof_only), .help = "measure nothing else"},
    {0}};
/* clang-format on */
#undef FIELD

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static fsdp_status allocate(bench *b, const bench_options *o)
{
    size_t elems = max_size((size_t)VOCAB * C, b->rows * VOCAB);
    elems = max_size(elems, 4 * max_size(b->rows, (size_t)o->attention_t) * FF);
    if (o->with_optimizer)
        elems = max_size(elems, PARAMS);
    b->array_elems = elems;
    for (int k = 0; k < N_ARRAYS; k++) {
        TRY(device_alloc_f32(b->s, MEM_OTHER, elems, "bench", &b->x[k]));
        for (size_t i = 0; i < elems; i++) /* in (0, 0.25]; neighbours differ */
            b->x[k][i] = (float)((i * 2654435761u + (size_t)k * 40503u) % 4093 + 1) / 16372.0f;
        void *new_h = NULL;
        TRY(device_alloc(b->s, MEM_OTHER, elems * sizeof *b->h[k], "bench", &new_h));
        b->h[k] = new_h;
        for (size_t i = 0; i < elems; i++)
            b->h[k][i] = bf16_from_f32(b->x[k][i]);
    }
    void *new_tokens = NULL;
    TRY(device_alloc(b->s, MEM_OTHER, b->rows * sizeof *b->tokens, "bench", &new_tokens));
    b->tokens = new_tokens;
    for (size_t i = 0; i < b->rows; i++)
        b->tokens[i] = (int32_t)(philox_u32(1, 0, i) % VOCAB);
    void *new_sum = NULL;
    TRY(device_alloc(b->s, MEM_OTHER, sizeof *b->sum, "bench", &new_sum));
    b->sum = new_sum;
    *b->sum = (rsum){0};
    return device_alloc_f32(b->s, MEM_OTHER, 4, "bench", &b->scalars);
}

static void release(bench *b)
{
    for (int k = 0; k < N_ARRAYS; k++) {
        device_free(b->s, b->x[k]);
        device_free(b->s, b->h[k]);
    }
    device_free(b->s, b->tokens);
    device_free(b->s, b->sum);
    device_free(b->s, b->scalars);
}

static fsdp_status run(bench *b, const bench_options *o)
{
    TRY(bench_roof_measure(b->s, &b->roof));
    if (o->roof != NULL) {
        bench_roof_merge(&b->roof, o->roof);
        TRY(bench_roof_write(&b->roof, o->roof));
    }
    if (o->roof_only)
        return FSDP_OK;
    TRY(allocate(b, o));
    fprintf(b->csv, "ops,operation,shape,ms,q1,q3,best,runs,GFLOP/s,GB/s,limit,roof,%% of roof\n");
    TRY(measure_type(b, DTYPE_F32));
    TRY(measure_type(b, DTYPE_BF16));
    TRY(measure_add(b));
    if (o->attention_t > 0) {
        TRY(measure_attention(b, 1, (size_t)o->attention_t, DTYPE_F32));
        TRY(measure_attention(b, 1, (size_t)o->attention_t, DTYPE_BF16));
    }
    return o->with_optimizer ? measure_optimizer(b) : FSDP_OK;
}

static fsdp_status parse(int argc, char **argv, bench_options *o)
{
    TRY(options_parse(OPTIONS, "kernels", argc, argv, o));
    if (o->rows % o->seq_len != 0)
        return fsdp_error(FSDP_EINVAL, "pass --rows and --seq-len together",
                          "--rows: got %lld, expected a multiple of --seq-len %lld",
                          (long long)o->rows, (long long)o->seq_len);
    return FSDP_OK;
}

static fsdp_status open_and_run(bench *b, const bench_options *o)
{
    device *d = NULL;
    device_config config = {.backend = &device_cpu, .n_threads = omp_get_max_threads()};
    if (o->csv != NULL && (b->csv = fopen(o->csv, "w")) == NULL)
        return fsdp_error(FSDP_EIO, "pass a --csv file that can be written", "cannot write %s: %s",
                          o->csv, strerror(errno));
    fsdp_status status = device_open(&config, &d);
    if (status == FSDP_OK) {
        b->s = device_compute_stream(d);
        status = run(b, o);
        release(b);
        device_close(d);
    }
    if (o->csv != NULL && fclose(b->csv) != 0 && status == FSDP_OK)
        return fsdp_error(FSDP_EIO, "free space on that disk", "cannot write %s", o->csv);
    return status;
}

int main(int argc, char **argv)
{
    bench_options o = {0};
    fsdp_status status = parse(argc, argv, &o);
    const int failed = status == FSDP_EINVAL ? 2 : 1;
    if (status == FSDP_HELP) {
        status = options_print_help(OPTIONS, "kernels [OPTION...]",
                                    "times every operation at the shapes of GPT-2 124M");
    } else if (status == FSDP_OK) {
        bench b = {.rows = (size_t)o.rows, .seq_len = (size_t)o.seq_len, .csv = stdout};
        b.ops = o.ops == 1 ? ops_cpu_portable() : ops_cpu_fast();
        status = open_and_run(&b, &o);
    }
    if (status != FSDP_OK)
        fsdp_error_print(stderr, 0, 0);
    return status == FSDP_OK ? 0 : failed;
}
