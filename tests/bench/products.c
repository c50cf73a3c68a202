/* products.c -- products of a fast table, of oneDNN and of libxsmm, in turns, on the same operands.
 *
 *   products --csv FILE [--type fp32|bf16] [--rows N] [--inputs K] [--outputs N]
 *
 * Three products of a layer with a weight [k,n]: forward y [m,n] = x w; backward x, d_x [m,k] =
 * d_y wT; backward w, d_w [k,n] = xT d_y. Models store some weights transposed, so forward is also
 * measured with w stored [n,k] (forward wT). Results are fp32. Weights and their gradients come
 * from memory: the calls take copies of them in turn, which are larger than the caches together.
 * Packing is part of a call. The median of about 0.3 s, on all threads.
 *
 * oneDNN: sgemm, or for bf16 a matmul primitive that is made once. libxsmm, if its header was there
 * (libxsmm-dev): a kernel for fp32 operands as they are stored, over blocks of the result. */
#include <errno.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/options.h"
#include "common/device/device_impl.h"
#include "common/ops/ops.h"
#include "tests/bench/bench_lib.h"
#ifdef FSDP_HAVE_DNNL
#include <dnnl.h>
#endif
#if __has_include(<libxsmm.h>)
#include <libxsmm.h>
#define HAVE_XSMM 1
#endif

enum { MAX_REPS = 100, MAX_COPIES = 64, COLD_BYTES = 256 << 20 };

typedef struct product {
    const char *name;
    bool trans_a, trans_b;
    dtype type;
    size_t m, n, k;
} product;

typedef struct operands {
    const void *a, *b;
    float *c;
} operands;

typedef fsdp_status (*multiply_fn)(void *self, const product *p, const operands *x);

/* ---- ours ------------------------------------------------------------------------------------ */

static fsdp_status ours(void *self, const product *p, const operands *x)
{
    stream *s = self;
    TRY(ops_cpu_fast()->matmul(s, &(matmul_args){.out = x->c,
                                                 .a = x->a,
                                                 .b = x->b,
                                                 .m = p->m,
                                                 .n = p->n,
                                                 .k = p->k,
                                                 .trans_a = p->trans_a,
                                                 .trans_b = p->trans_b,
                                                 .type = p->type,
                                                 .out_type = DTYPE_F32}));
    return stream_sync(s);
}

/* ---- oneDNN ---------------------------------------------------------------------------------- */

#ifdef FSDP_HAVE_DNNL
static fsdp_status sgemm_run(void *self, const product *p, const operands *x)
{
    (void)self;
    const dnnl_dim_t lda = (dnnl_dim_t)(p->trans_a ? p->m : p->k),
                     ldb = (dnnl_dim_t)(p->trans_b ? p->k : p->n);
    const dnnl_status_t status = dnnl_sgemm(
        p->trans_a ? 'T' : 'N', p->trans_b ? 'T' : 'N', (dnnl_dim_t)p->m, (dnnl_dim_t)p->n,
        (dnnl_dim_t)p->k, 1.0f, x->a, lda, x->b, ldb, 0.0f, x->c, (dnnl_dim_t)p->n);
    return status == dnnl_success ? FSDP_OK : fsdp_error(FSDP_ENOMEM, "", "dnnl_sgemm");
}
#endif

#if defined FSDP_HAVE_DNNL && DNNL_VERSION_MAJOR < 3
typedef struct primitive {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t run;
    dnnl_memory_t memory[3];
} primitive;

static bool desc_make(dnnl_memory_desc_t *d, size_t rows, size_t cols, bool trans,
                      dnnl_data_type_t t)
{
    const dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)cols};
    const dnnl_dims_t strides = {trans ? 1 : (dnnl_dim_t)cols, trans ? (dnnl_dim_t)rows : 1};
    return dnnl_memory_desc_init_by_strides(d, 2, dims, t, strides) == dnnl_success;
}

static bool primitive_open(const product *p, primitive *out)
{
    dnnl_memory_desc_t d[3];
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t made = NULL;
    bool done =
        desc_make(&d[0], p->m, p->k, p->trans_a, dnnl_bf16) &&
        desc_make(&d[1], p->k, p->n, p->trans_b, dnnl_bf16) &&
        desc_make(&d[2], p->m, p->n, false, dnnl_f32) &&
        dnnl_engine_create(&out->engine, dnnl_cpu, 0) == dnnl_success &&
        dnnl_stream_create(&out->stream, out->engine, dnnl_stream_default_flags) == dnnl_success &&
        dnnl_matmul_desc_init(&desc, &d[0], &d[1], NULL, &d[2]) == dnnl_success &&
        dnnl_primitive_desc_create(&made, &desc, NULL, out->engine, NULL) == dnnl_success &&
        dnnl_primitive_create(&out->run, made) == dnnl_success;
    for (int i = 0; i < 3 && done; i++)
        done = dnnl_memory_create(&out->memory[i], &d[i], out->engine, DNNL_MEMORY_NONE) ==
               dnnl_success;
    dnnl_primitive_desc_destroy(made);
    return done;
}

static void primitive_close(primitive *p)
{
    for (int i = 0; i < 3; i++)
        dnnl_memory_destroy(p->memory[i]);
    dnnl_primitive_destroy(p->run);
    dnnl_stream_destroy(p->stream);
    dnnl_engine_destroy(p->engine);
}

static fsdp_status primitive_run(void *self, const product *p, const operands *x)
{
    primitive *q = self;
    (void)p;
    dnnl_memory_set_data_handle(q->memory[0], (void *)(uintptr_t)x->a);
    dnnl_memory_set_data_handle(q->memory[1], (void *)(uintptr_t)x->b);
    dnnl_memory_set_data_handle(q->memory[2], x->c);
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, q->memory[0]},
                                    {DNNL_ARG_WEIGHTS, q->memory[1]},
                                    {DNNL_ARG_DST, q->memory[2]}};
    const bool done = dnnl_primitive_execute(q->run, q->stream, 3, args) == dnnl_success &&
                      dnnl_stream_wait(q->stream) == dnnl_success;
    return done ? FSDP_OK : fsdp_error(FSDP_ENOMEM, "", "dnnl_primitive_execute");
}
#endif

/* ---- libxsmm --------------------------------------------------------------------------------- */

#ifdef HAVE_XSMM
enum { BLOCK_M = 64, BLOCK_N = 96, BLOCK_K = 384 };

/* A block of c, rows i and columns j on. libxsmm stores by columns: its A is our b. */
static void xsmm_block(const product *p, const operands *x, size_t i, size_t j)
{
    const int m = (int)(p->m - i < BLOCK_M ? p->m - i : BLOCK_M),
              n = (int)(p->n - j < BLOCK_N ? p->n - j : BLOCK_N), lda = (int)p->n, ldb = (int)p->k;
    const float one = 1;
    for (size_t q = 0; q < p->k; q += BLOCK_K) {
        const float beta = q > 0;
        const int k = (int)(p->k - q < BLOCK_K ? p->k - q : BLOCK_K);
        const libxsmm_smmfunction fn =
            libxsmm_smmdispatch(n, m, k, &lda, &ldb, &lda, &one, &beta, NULL, NULL);
        if (fn != NULL)
            fn((const float *)x->b + q * p->n + j, (const float *)x->a + i * p->k + q,
               x->c + i * p->n + j);
    }
}

static fsdp_status xsmm(void *self, const product *p, const operands *x)
{
    (void)self;
#pragma omp parallel for schedule(dynamic)
    for (size_t j = 0; j < p->n; j += BLOCK_N)
        for (size_t i = 0; i < p->m; i += BLOCK_M)
            xsmm_block(p, x, i, j);
    return FSDP_OK;
}
#endif

/* ---- measuring ------------------------------------------------------------------------------- */

typedef struct bench {
    stream *s;
    FILE *csv;
    dtype type;
    size_t rows, inputs, outputs, copies;
    void *of_rows[2];         /* x [rows,inputs] and d_y [rows,outputs] */
    void *weight[MAX_COPIES]; /* [inputs,outputs] of `type` */
    float *out[MAX_COPIES];   /* of the largest result */
} bench;

/* The operands of call i: those as large as a weight are another copy each time. */
static operands operands_of(const bench *b, const product *p, size_t i)
{
    const size_t copy = i % b->copies;
    const void *x = b->of_rows[0], *d_y = b->of_rows[1];
    if (p->trans_a)
        return (operands){x, d_y, b->out[copy]};
    return (operands){p->n == b->outputs ? x : d_y, b->weight[copy], b->out[0]};
}

/* Who multiplies, and his times. */
typedef struct party {
    multiply_fn fn; /* NULL: none */
    void *self;
    double seconds[MAX_REPS];
} party;
enum { OURS, DNNL, XSMM, N_PARTIES };

static void time_once(const bench *b, const product *p, party *who, size_t i)
{
    const operands x = operands_of(b, p, i);
    const double begun = clock_now_s();
    if (who->fn != NULL && who->fn(who->self, p, &x) != FSDP_OK)
        who->fn = NULL;
    who->seconds[i] = clock_now_s() - begun;
}

/* In turns, after a warm-up of each. */
static void measure(const bench *b, const product *p)
{
    party all[N_PARTIES] = {[OURS] = {.fn = ours, .self = b->s}};
#ifdef FSDP_HAVE_DNNL
    if (p->type == DTYPE_F32)
        all[DNNL].fn = sgemm_run;
#if DNNL_VERSION_MAJOR < 3
    primitive made = {0};
    if (p->type == DTYPE_BF16 && primitive_open(p, &made)) {
        all[DNNL].fn = primitive_run;
        all[DNNL].self = &made;
    }
#endif
#endif
#ifdef HAVE_XSMM
    if (p->type == DTYPE_F32 && !p->trans_a && !p->trans_b)
        all[XSMM].fn = xsmm;
#endif
    double slowest = 0;
    for (int k = 0; k < N_PARTIES; k++) {
        time_once(b, p, &all[k], 0);
        slowest = fmax(slowest, all[k].seconds[0]);
    }
    const size_t reps = bench_reps(slowest, 0.3, 3, MAX_REPS);
    for (size_t i = 0; i < reps; i++)
        for (int k = 0; k < N_PARTIES; k++)
            time_once(b, p, &all[k], i);
    fprintf(b->csv, "%s,%s,%zu x %zu x %zu", p->type == DTYPE_BF16 ? "bf16" : "fp32", p->name, p->m,
            p->k, p->n);
    for (int k = 0; k < N_PARTIES; k++)
        if (all[k].fn == NULL)
            fprintf(b->csv, ",-");
        else
            fprintf(b->csv, ",%.0f",
                    2e-9 * (double)(p->m * p->n * p->k) /
                        bench_quartiles_of(all[k].seconds, reps).median);
    fprintf(b->csv, "\n");
#if defined FSDP_HAVE_DNNL && DNNL_VERSION_MAJOR < 3
    if (p->type == DTYPE_BF16)
        primitive_close(&made);
#endif
}

static void fill(void *x, size_t elems, dtype type)
{
    for (size_t i = 0; i < elems; i++) {
        const float value = (float)((i * 2654435761u) % 4093 + 1) / 16372.0f;
        if (type == DTYPE_BF16)
            ((uint16_t *)x)[i] = bf16_from_f32(value);
        else
            ((float *)x)[i] = value;
    }
}

static fsdp_status array_new(const bench *b, size_t elems, dtype type, void **out)
{
    TRY(device_alloc(b->s, MEM_OTHER, elems * dtype_bytes(type), "operand", out));
    fill(*out, elems, type);
    return FSDP_OK;
}

static fsdp_status allocate(bench *b)
{
    const size_t weight = b->inputs * b->outputs, y = b->rows * b->outputs, x = b->rows * b->inputs;
    const size_t most = weight > y ? weight > x ? weight : x : y > x ? y : x;
    const size_t enough = COLD_BYTES / (weight * dtype_bytes(b->type)) + 1;
    b->copies = enough < MAX_COPIES ? enough : MAX_COPIES;
    TRY(array_new(b, x, b->type, &b->of_rows[0]));
    TRY(array_new(b, y, b->type, &b->of_rows[1]));
    for (size_t i = 0; i < b->copies; i++) {
        void *out;
        TRY(array_new(b, weight, b->type, &b->weight[i]));
        TRY(array_new(b, i == 0 ? most : weight, DTYPE_F32, &out));
        b->out[i] = out;
    }
    return FSDP_OK;
}

static void release(bench *b)
{
    for (size_t i = 0; i < b->copies; i++) {
        device_free(b->s, b->weight[i]);
        device_free(b->s, b->out[i]);
    }
    device_free(b->s, b->of_rows[0]);
    device_free(b->s, b->of_rows[1]);
}

static fsdp_status run(bench *b)
{
    const size_t m = b->rows, k = b->inputs, n = b->outputs;
    const product products[] = {{"forward", false, false, b->type, m, n, k},
                                {"forward wT", false, true, b->type, m, n, k},
                                {"backward x", false, true, b->type, m, k, n},
                                {"backward w", true, false, b->type, k, n, m}};
    TRY(allocate(b));
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        measure(b, &products[i]);
    return FSDP_OK;
}

typedef struct bench_options {
    const char *csv;
    int type;
    int64_t rows, inputs, outputs;
} bench_options;

/* clang-format off */
#define FIELD(name) offsetof(bench_options, name)
static const option_spec OPTIONS[] = {
    {.name = "csv", .kind = OPT_STRING, .offset = FIELD(csv), .arg = "FILE", .group = "Products", .help = "append rows there"},
    {.name = "type", .kind = OPT_ENUM, .offset = FIELD(type), .def = "fp32", .choices = "fp32|bf16", .help = "of the operands"},
    {.name = "rows", .kind = OPT_INT, .offset = FIELD(rows), .def = "256", .min = 1, .max = 65536, .help = "tokens"},
    {.name = "inputs", .kind = OPT_INT, .offset = FIELD(inputs), .def = "768", .min = 1, .max = 1 << 20, .help = "of the layer"},
    {.name = "outputs", .kind = OPT_INT, .offset = FIELD(outputs), .def = "768", .min = 1, .max = 1 << 20, .help = "of the layer"},
    {0}};
/* clang-format on */
#undef FIELD

static fsdp_status open_and_run(bench *b, const bench_options *o)
{
    device *d = NULL;
    device_config config = {.backend = &device_cpu, .n_threads = omp_get_max_threads()};
    if (o->csv != NULL && (b->csv = fopen(o->csv, "a")) == NULL)
        return fsdp_error(FSDP_EIO, "pass a --csv file that can be written", "cannot write %s: %s",
                          o->csv, strerror(errno));
    TRY(device_open(&config, &d));
    b->s = device_compute_stream(d);
    const fsdp_status status = run(b);
    release(b);
    device_close(d);
    if (o->csv != NULL && fclose(b->csv) != 0 && status == FSDP_OK)
        return fsdp_error(FSDP_EIO, "free space on that disk", "cannot write %s", o->csv);
    return status;
}

int main(int argc, char **argv)
{
    bench_options o = {0};
    fsdp_status status = options_parse(OPTIONS, "products", argc, argv, &o);
    const int failed = status == FSDP_EINVAL ? 2 : 1;
    if (status == FSDP_HELP) {
        status = options_print_help(OPTIONS, "products [OPTION...]",
                                    "times the products of a layer, ours and libraries'");
    } else if (status == FSDP_OK) {
        bench b = {.csv = stdout,
                   .type = o.type == 1 ? DTYPE_BF16 : DTYPE_F32,
                   .rows = (size_t)o.rows,
                   .inputs = (size_t)o.inputs,
                   .outputs = (size_t)o.outputs};
        status = open_and_run(&b, &o);
    }
    if (status != FSDP_OK)
        fsdp_error_print(stderr, 0, 0);
    return status == FSDP_OK ? 0 : failed;
}
