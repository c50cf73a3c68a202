/* test_accel_ops.c -- the portable operations of the device that FSDP_DEVICE names, and the sums of
 * vectors, against those of the CPU: the same bits. A device that has one table only has portable
 * sums and elements, whatever else it computes. */
#include <stdlib.h>
#include <string.h>
#include "common/ops/op_work.h"
#include "common/sum/sum_run.h"
#include "tests/unit/ops_check_lib.h"
#include "tests/unit/target_lib.h"

/* The device under test and the CPU, each with its compute stream and its portable table, or the
 * only one that it has. */
typedef struct side {
    device *d;
    stream *s;
    const ops *o;
} side;
static side target, cpu;

static int setup(void **state)
{
    const backend *b = target_backend();
    device_config config = {.backend = b->device, .n_threads = 1, .debug_fill = true};
    OK(device_open(&config, &target.d));
    config.backend = &device_cpu;
    OK(device_open(&config, &cpu.d));
    target.s = device_compute_stream(target.d);
    target.o = target_ops();
    cpu.s = device_compute_stream(cpu.d);
    cpu.o = ops_cpu_portable();
    *state = NULL;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    device_close(target.d);
    device_close(cpu.d);
    return 0;
}

static uint64_t draw(uint64_t *seed, uint64_t n)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*seed >> 33) % n;
}

/* A copy of x [bytes] in the device's memory; the caller frees it there. */
static void *copy_to(const side *to, const void *x, size_t bytes)
{
    void *vec = NULL;
    OK(device_alloc(to->s, MEM_OTHER, bytes, "test", &vec));
    OK(device_upload(to->s, vec, x, bytes));
    return vec;
}

/* Both devices hold the same [bytes] there. */
static void compare(const void *on_target, const void *on_cpu, size_t bytes, const char *what)
{
    unsigned char *got = malloc(bytes + 1), *expected = malloc(bytes + 1);
    OK(device_download(target.s, got, on_target, bytes));
    OK(device_download(cpu.s, expected, on_cpu, bytes));
    OK(stream_sync(target.s));
    OK(stream_sync(cpu.s));
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != expected[i])
            fail_msg("%s: byte %zu of %zu is %02x, expected %02x", what, i, bytes, got[i],
                     expected[i]);
    free(got);
    free(expected);
}

/* ---- sums of vectors ------------------------------------------------------------------------- */

enum { MOST_INPUTS = 9, MOST_STEPS = 5 };

typedef struct sum_case {
    grad_acc_mode mode;
    dtype sum_dtype;
    size_t elems;
    uint64_t seed;
} sum_case;

/* n nodes of a level into the accumulator of one side. */
static void take_in(const side *x, grad_acc *acc, int level, int n, void *const *sent, size_t bytes)
{
    const void *in[MOST_INPUTS];
    sum_run run;
    for (int i = 0; i < n; i++)
        in[i] = copy_to(x, sent[i], bytes);
    OK(sum_run_begin(acc, x->s, level, n, &run));
    OK(sum_run_launch(x->o->sums, x->s, &run, in, "pass", "test"));
    sum_run_end(&run, x->s);
    for (int i = 0; i < n; i++)
        device_free(x->s, (void *)(uintptr_t)in[i]);
}

static int level_draw(uint64_t *seed, uint64_t nodes)
{
    int level = (int)draw(seed, 5);
    while (nodes & ((UINT64_C(1) << level) - 1))
        level--;
    return level;
}

/* Some steps of drawn widths and levels on both sides; what the slots hold after each. */
static void run_sums(sum_case c)
{
    const size_t bytes = c.elems * dtype_bytes(c.sum_dtype);
    const side *sides[] = {&target, &cpu};
    grad_acc acc[2];
    void *sent[MOST_INPUTS];
    float *sum[2];
    uint64_t nodes = 0;
    for (int k = 0; k < 2; k++) {
        grad_acc_init(&acc[k], c.mode, sides[k]->o->sums, c.elems, MEM_GRADS_SHARD, "sum");
        acc[k].sum_dtype = c.sum_dtype;
    }
    for (int i = 0; i < MOST_INPUTS; i++)
        sent[i] = malloc(c.elems * sizeof(float) + 1);
    for (int step = 1 + (int)draw(&c.seed, MOST_STEPS); step > 0; step--) {
        const int n = 1 + (int)draw(&c.seed, MOST_INPUTS), level = level_draw(&c.seed, nodes);
        nodes += (uint64_t)n << level;
        for (int i = 0; i < n; i++) {
            float *vec = normals(c.seed + (uint64_t)i, 1.0f, c.elems);
            for (size_t e = 0; e < c.elems; e++)
                if (c.sum_dtype == DTYPE_BF16)
                    ((uint16_t *)sent[i])[e] = bf16_from_f32(vec[e]);
                else
                    ((float *)sent[i])[e] = vec[e];
            free(vec);
        }
        for (int k = 0; k < 2; k++)
            take_in(sides[k], &acc[k], level, n, sent, bytes);
        for (int k = 0; k < TREE_SUM_LEVELS; k++)
            if (acc[1].tree.slot[k] != NULL)
                compare(acc[0].tree.slot[k], acc[1].tree.slot[k], c.elems * sizeof(float), "slot");
    }
    for (int k = 0; k < 2; k++)
        OK(grad_acc_finish(&acc[k], sides[k]->s, &sum[k]));
    compare(sum[0], sum[1], c.elems * sizeof(float), "sum");
    for (int k = 0; k < 2; k++) {
        device_free(sides[k]->s, sum[k]);
        grad_acc_free(&acc[k], sides[k]->s);
    }
    for (int i = 0; i < MOST_INPUTS; i++)
        free(sent[i]);
}

static void test_sums(void **state)
{
    (void)state;
    static const size_t SIZES[] = {0, 1, 7, 255, 256, 257, 1000};
    for (uint64_t i = 0; i < 140; i++)
        run_sums((sum_case){.mode = i / 7 % 2 ? GRAD_ACC_CANONICAL : GRAD_ACC_FAST,
                            .sum_dtype = i / 14 % 2 ? DTYPE_BF16 : DTYPE_F32,
                            .elems = SIZES[i % 7],
                            .seed = i});
}

/* A sum of n vectors without an accumulator, into the last of them; more inputs than a kernel's
 * arguments have room for too. */
static void test_root(void **state)
{
    (void)state;
    enum { ELEMS = 3, MOST = 5000 };
    static const int COUNTS[] = {1, 2, 3, 5, 8, 13, 384, 385, 1000, MOST};
    static float in[MOST][2 * ELEMS];
    ops_test_fill(5, 1.0f, in[0], sizeof in / sizeof(float));
    const side *sides[] = {&target, &cpu};
    for (int c = 0; c < 10; c++)
        for (int t = 0; t < 2; t++) {
            const dtype type = t ? DTYPE_I64 : DTYPE_F32;
            const int n = COUNTS[c];
            void *all[2];
            for (int k = 0; k < 2; k++) {
                static const void *from[MOST];
                all[k] = copy_to(sides[k], in, sizeof in);
                for (int i = 0; i < n; i++)
                    from[i] = (float *)all[k] + (size_t)i * 2 * ELEMS;
                sum_run run =
                    sum_run_root((float *)all[k] + (size_t)(n - 1) * 2 * ELEMS, ELEMS, n, type);
                OK(sum_run_launch(sides[k]->o->sums, sides[k]->s, &run, from, "pass", "test"));
                memset(from, 0xA5, sizeof from);
            }
            compare(all[0], all[1], sizeof in, "root");
            for (int k = 0; k < 2; k++)
                device_free(sides[k]->s, all[k]);
        }
}

/* ---- operations ------------------------------------------------------------------------------ */

static const attention_shape WIDE_V = {.head_dim = 1, .v_head_dim = 2};

/* Appends "`rope`, ..." to text for each operation that o refuses. With no elements one that is
 * there does nothing; two always do something, and are not asked. */
static void list_refused(const ops *o, char text[512])
{
#define LIST_IF_REFUSED_WITH(op, words, ...)                                                       \
    {                                                                                              \
        const op##_args none = {__VA_ARGS__};                                                      \
        if (op##_work(&none).ends && ops_refused(o->op(target.s, &none)))                          \
            snprintf(text + strlen(text), 512 - strlen(text), "%s`" #op "`" words,                 \
                     *text ? ", " : "");                                                           \
    }
#define LIST_IF_REFUSED(op) LIST_IF_REFUSED_WITH(op, "", 0)
    EACH_OP(LIST_IF_REFUSED)
    LIST_IF_REFUSED_WITH(attention, " with Dv > D", .shape = WIDE_V)
    LIST_IF_REFUSED_WITH(attention_backward, " with Dv > D", .shape = WIDE_V)
#undef LIST_IF_REFUSED
#undef LIST_IF_REFUSED_WITH
}

static void test_refusals_are_documented(void **state)
{
    (void)state;
    const char *readme = "common/ops/README.md";
    const backend *b = target_backend();
    char line[1024] = "", name[64], refused[2][512] = {{0}}, cell[512];
    list_refused(b->fast(), refused[0]);
    list_refused(target.o, refused[1]);
    assert_string_equal(refused[0], refused[1]);
    FILE *f = fopen(readme, "r");
    assert_non_null(f);
    snprintf(name, sizeof name, "`%s`", b->name);
    while (strstr(line, name) == NULL && fgets(line, sizeof line, f) != NULL)
        ;
    fclose(f);
    snprintf(cell, sizeof cell, "| %.500s |\n", *refused[0] ? refused[0] : "none");
    if (strlen(line) < strlen(cell) || strcmp(line + strlen(line) - strlen(cell), cell) != 0)
        fail_msg("%s refuses %s, its line in %s is: %s", b->name, cell, readme, line);
}

static void need_portable(void)
{
    if (!target_is_portable())
        skip();
}

static void test_catalogue(void **state)
{
    (void)state;
    need_portable();
    for (size_t i = 0; i < ops_case_count(); i++) {
        ops_result got = ops_case_run(i, target.o, target.s);
        const bool refused = ops_refused(got.status);
        ops_result expected = ops_case_run(i, cpu.o, cpu.s);
        OK(refused ? FSDP_OK : got.status);
        OK(expected.status);
        if (!refused)
            expect_same_bits(got.data, expected.data, expected.elems, ops_case_name(i), "");
        free(got.data);
        free(expected.data);
    }
}

/* The arrays of one call on one side. */
typedef struct arrays {
    const side *x;
    void *ptr[12];
    size_t bytes[12];
    int n;
} arrays;

static void *put(arrays *a, const void *host, size_t bytes)
{
    a->bytes[a->n] = bytes;
    return a->ptr[a->n++] = copy_to(a->x, host, bytes);
}

/* Normal values times std, stored as t; each array has others. */
static void *values(arrays *a, size_t elems, float std, dtype t)
{
    float *vec = normals(77 + (uint64_t)a->n, std, elems);
    uint16_t *rounded = malloc((elems + 1) * sizeof *rounded);
    for (size_t i = 0; i < elems; i++)
        rounded[i] = bf16_from_f32(vec[i]);
    void *there = put(a, t == DTYPE_F32 ? (void *)vec : rounded, elems * dtype_bytes(t));
    free(rounded);
    free(vec);
    return there;
}

/* Numbers below n; the first are all equal. */
static int32_t *numbers(arrays *a, size_t elems, int32_t n)
{
    int32_t *x = malloc((elems + 1) * sizeof *x);
    for (size_t i = 0; i < elems; i++)
        x[i] = i < 40 ? 0 : (int32_t)(i * i % 31) % n;
    void *there = put(a, x, elems * sizeof *x);
    free(x);
    return there;
}

typedef void (*call_fn)(arrays *a, dtype type, int variant);

/* One call on both sides, in fp32 and in bf16: then all of their arrays are the same. */
static void both(const char *what, call_fn call, int n_variants)
{
    for (int v = 0; v < 2 * n_variants; v++) {
        const dtype type = v % 2 ? DTYPE_BF16 : DTYPE_F32;
        arrays got = {.x = &target}, expected = {.x = &cpu};
        char name[96];
        call(&got, type, v / 2);
        call(&expected, type, v / 2);
        assert_int_equal(got.n, expected.n);
        for (int i = 0; i < got.n; i++) {
            snprintf(name, sizeof name, "%s, %s, variant %d, array %d", what, dtype_name(type),
                     v / 2, i);
            compare(got.ptr[i], expected.ptr[i], got.bytes[i], name);
            device_free(target.s, got.ptr[i]);
            device_free(cpu.s, expected.ptr[i]);
        }
    }
}

static void call_matmul(arrays *a, dtype type, int v)
{
    static const size_t SIZES[][3] = {{64, 64, 16}, {65, 130, 33}, {1, 3, 100}, {70, 5, 0}};
    const size_t m = SIZES[v / 8][0], n = SIZES[v / 8][1], k = SIZES[v / 8][2];
    const bool aliased = v % 8 == 4 && type == DTYPE_F32, adds = v % 8 == 5;
    matmul_args x = {.m = m, .n = n, .k = k, .type = type, .accumulate = adds};
    x.out_type = adds || v % 8 == 6 ? DTYPE_F32 : type;
    x.trans_a = v % 2, x.trans_b = v / 2 % 2;
    x.out = values(a, m * n, 1.0f, x.out_type);
    x.a = values(a, m * k, 1.0f, type), x.b = values(a, k * n, 1.0f, type);
    x.bias = adds || v % 8 == 0 ? NULL : values(a, n, 1.0f, type);
    x.residual = adds || v % 8 == 1 ? NULL : aliased ? x.out : values(a, m * n, 1.0f, type);
    OK(a->x->o->matmul(a->x->s, &x));
}

static void call_norm(arrays *a, dtype type, int v)
{
    const size_t rows = v < 2 ? 100 : v < 4 ? 0 : 1, cols = v % 2 ? 77 : 300;
    layernorm_args x = {.rows = rows, .cols = cols, .type = type, .eps = 1e-5f};
    layernorm_backward_args y = {.rows = rows, .cols = cols, .type = type, .overwrite = v != 4};
    x.out = values(a, rows * cols, 1.0f, type);
    x.mean = values(a, rows, 1.0f, DTYPE_F32), x.rstd = values(a, rows, 1.0f, DTYPE_F32);
    x.in = values(a, rows * cols, 100.0f, type), x.gain = values(a, cols, 1.0f, type);
    x.bias = values(a, cols, 1.0f, type);
    y.d_in = values(a, rows * cols, 1.0f, type), y.d_out = values(a, rows * cols, 1.0f, type);
    y.d_gain = values(a, cols, 1.0f, DTYPE_F32), y.d_bias = values(a, cols, 1.0f, DTYPE_F32);
    y.in = x.in, y.gain = x.gain, y.mean = x.mean, y.rstd = x.rstd;
    y.d_residual = v == 0 ? x.out : NULL;
    bias_backward_args z = {values(a, cols, 1.0f, DTYPE_F32), y.d_out, rows, cols, v != 4, type};
    OK(a->x->o->layernorm(a->x->s, &x));
    OK(a->x->o->layernorm_backward(a->x->s, &y));
    OK(a->x->o->bias_backward(a->x->s, &z));
}

static void call_rmsnorm(arrays *a, dtype type, int v)
{
    const size_t rows = v < 2 ? 100 : v < 4 ? 0 : 1, cols = v % 2 ? 77 : 300;
    rmsnorm_args x = {.rows = rows, .cols = cols, .type = type, .eps = 1e-5f};
    rmsnorm_backward_args y = {.rows = rows, .cols = cols, .type = type, .overwrite = v != 4};
    x.out = values(a, rows * cols, 1.0f, type), x.rstd = values(a, rows, 1.0f, DTYPE_F32);
    x.in = values(a, rows * cols, 100.0f, type), x.gain = values(a, cols, 1.0f, type);
    y.d_in = values(a, rows * cols, 1.0f, type), y.d_out = values(a, rows * cols, 1.0f, type);
    y.d_gain = values(a, cols, 1.0f, DTYPE_F32);
    y.in = x.in, y.gain = x.gain, y.rstd = x.rstd;
    y.d_residual = v == 0 ? x.out : NULL;
    OK(a->x->o->rmsnorm(a->x->s, &x));
    OK(a->x->o->rmsnorm_backward(a->x->s, &y));
}

/* The last of many positions; no rows; one angle; heads that begin at odd elements. */
static void call_rope(arrays *a, dtype type, int v)
{
    static const size_t SHAPES[][4] = {{1, 2000, 1, 2}, {2, 0, 3, 8}, {3, 90, 5, 6}};
    const size_t batch = SHAPES[v / 2][0], T = SHAPES[v / 2][1], H = SHAPES[v / 2][2];
    const size_t D = SHAPES[v / 2][3], stride = H * D + (v == 5 ? 1 : 0);
    rope_args x = {.stride = stride, .batch = batch, .seq_len = T, .n_head = H, .head_dim = D};
    x.x = values(a, batch * T * stride, 1.0f, type);
    x.type = type;
    x.inverse = x.interleaved = v % 2;
    for (size_t i = 0; i < D / 2; i++)
        x.inv_freq[i] = 1.0f / (float)(1 + 7 * i);
    OK(a->x->o->rope(a->x->s, &x));
}

/* Far beyond where exp() is 0 or infinite; in place as layers have it, or not. */
static void call_swiglu(arrays *a, dtype type, int v)
{
    const size_t n = v == 2 ? 0 : 4097;
    swiglu_args x = {.elems = n, .type = type};
    swiglu_backward_args y = {.elems = n, .type = type};
    y.gate = values(a, n, v == 1 ? 200.0f : 2.0f, type), y.up = values(a, n, 1.0f, type);
    y.d_out = y.d_up = values(a, n, 1.0f, type);
    y.d_gate = values(a, n, 1.0f, type);
    OK(a->x->o->swiglu_backward(a->x->s, &y));
    x.gate = y.gate, x.up = y.up;
    x.out = v == 0 ? (void *)(uintptr_t)y.gate : v == 1 ? (void *)(uintptr_t)y.up : y.d_gate;
    OK(a->x->o->swiglu(a->x->s, &x));
}

/* Tokens that occur often, in one warp's 32 positions and far apart; more columns than a block has.
 * More positions than tokens of a sequence. */
static void call_embedding(arrays *a, dtype type, int v)
{
    const size_t batch = v == 3 ? 0 : 3, seq_len = 41, width = v == 1 ? 515 : 7, vocab = 12;
    const size_t n = batch * seq_len;
    embedding_args x = {.batch = batch, .seq_len = seq_len, .width = width, .vocab = vocab};
    embedding_backward_args y = {.batch = batch, .seq_len = seq_len, .width = width};
    x.type = y.type = type;
    x.out = values(a, n * width, 1.0f, type);
    x.wte = values(a, vocab * width, 1.0f, type);
    x.wpe = v == 2 ? NULL : values(a, seq_len * width, 1.0f, type);
    x.tokens = y.tokens = numbers(a, n, 12);
    y.vocab = vocab;
    y.d_wte = values(a, vocab * width, 1.0f, DTYPE_F32);
    y.d_wpe = v == 2 ? NULL : values(a, 50 * width, 1.0f, DTYPE_F32);
    y.d_out = values(a, n * width, 1.0f, type);
    OK(a->x->o->embedding(a->x->s, &x));
    OK(a->x->o->embedding_backward(a->x->s, &y));
}

/* Heads of q, k and v in arrays of their own, with elements between rows that nobody touches. */
static void call_attention(arrays *a, dtype type, int v)
{
    static const size_t SHAPES[][6] = {{2, 130, 6, 2, 20, 20},  {1, 33, 1, 1, 1, 1},
                                       {3, 97, 2, 2, 33, 33},   {1, 64, 3, 3, 8, 11},
                                       {1, 70, 2, 1, 300, 270}, {1, 193, 4, 1, 64, 40},
                                       {1, 70, 2, 1, 240, 300}};
    const size_t batch = SHAPES[v][0], T = SHAPES[v][1], H = SHAPES[v][2], KV = SHAPES[v][3];
    const size_t D = SHAPES[v][4], Dv = SHAPES[v][5], rows = batch * T;
    const attention_shape shape = {.q_stride = H * D + 1,
                                   .k_stride = KV * D,
                                   .v_stride = KV * Dv + 3,
                                   .batch = batch,
                                   .seq_len = T,
                                   .n_head = H,
                                   .n_kv_head = KV,
                                   .head_dim = D,
                                   .v_head_dim = Dv,
                                   .scale = 0.3f,
                                   .type = type};
    attention_args x = {.shape = shape};
    attention_backward_args y = {.shape = shape};
    x.out = values(a, rows * H * Dv, 1.0f, type), x.lse = values(a, rows * H, 1.0f, DTYPE_F32);
    y.q = x.q = values(a, rows * shape.q_stride, 3.0f, type);
    y.k = x.k = values(a, rows * shape.k_stride, 3.0f, type);
    y.v = x.v = values(a, rows * shape.v_stride, 1.0f, type);
    y.d_q = values(a, rows * shape.q_stride, 1.0f, type);
    y.d_k = values(a, rows * shape.k_stride, 1.0f, type);
    y.d_v = values(a, rows * shape.v_stride, 1.0f, type);
    y.d_out = values(a, rows * H * Dv, 1.0f, type);
    y.out = x.out, y.lse = x.lse;
    OK(a->x->o->attention(a->x->s, &x));
    OK(a->x->o->attention_backward(a->x->s, &y));
}

/* d_in alone; d_weight and d_bias alone; no images, which leaves zeros. An image that a kernel
 * covers; planes that a pool does not; samples that are no multiple of four; in place. */
static void call_images(arrays *a, dtype type, int v)
{
    const size_t batch = v == 2 ? 0 : 3, K = v == 0 ? 5 : 2, H = 5, W = v == 0 ? 5 : 7;
    const conv_shape shape = {batch, 2, 3, H, W, K, type};
    const size_t in = batch * 2 * H * W, out = batch * 3 * (H + 1 - K) * (W + 1 - K);
    conv2d_args x = {.shape = shape};
    conv2d_backward_args y = {.shape = shape, .overwrite = v > 0};
    void *d = values(a, in, 1.0f, type);
    y.in = x.in = values(a, in, 1.0f, type), y.weight = x.weight = values(a, 6 * K * K, 1.0f, type);
    x.out = values(a, out, 1.0f, type), x.bias = values(a, 3, 1.0f, type);
    y.d_out = values(a, out, 1.0f, type), y.d_in = v == 1 ? NULL : d;
    y.d_weight = v == 0 ? NULL : values(a, 6 * K * K, 1.0f, DTYPE_F32);
    y.d_bias = v == 0 ? NULL : values(a, 3, 1.0f, DTYPE_F32);
    OK(a->x->o->conv2d(a->x->s, &x));
    OK(a->x->o->conv2d_backward(a->x->s, &y));
    max_pool2d_args pool = {values(a, batch * 2 * 2 * 3, 1.0f, type), x.in, batch * 2, H, W, type};
    OK(a->x->o->max_pool2d(a->x->s, &pool));
    max_pool2d_backward_args back = {d, pool.out, x.in, batch * 2, H, W, type};
    OK(a->x->o->max_pool2d_backward(a->x->s, &back));
    OK(a->x->o->relu(a->x->s, &(relu_args){d, d, in, type}));
    OK(a->x->o->relu_backward(a->x->s, &(relu_backward_args){x.out, x.out, y.d_out, out, type}));
    OK(a->x->o->dropout(a->x->s, &(dropout_args){d, d, batch * 2, H * W, 0.5f, 9, 1, 0, type}));
}

static void call_cross_entropy(arrays *a, dtype type, int v)
{
    const size_t rows = v == 2 ? 0 : 70, vocab = 131;
    cross_entropy_args x = {.rows = rows, .vocab = vocab, .type = type};
    void *logits = values(a, rows * vocab, 5.0f, type);
    x.loss = values(a, 1, 1.0f, DTYPE_F32);
    x.logits = logits, x.d_logits = v == 0 ? NULL : logits;
    x.targets = numbers(a, rows, 31);
    OK(a->x->o->cross_entropy(a->x->s, &x));
}

/* `type` is what casts begin with; all numbers of bf16 are among the elements. */
static void call_elementwise(arrays *a, dtype type, int v)
{
    enum { N = 1 << 16 };
    static uint32_t bits[N];
    for (uint32_t i = 0; i < N; i++)
        bits[i] = i << 16 | (i * 40503u & 0xffff);
    const dtype to = v % 2 ? DTYPE_BF16 : DTYPE_F32, add_to = type;
    const void *in = put(a, bits, N * dtype_bytes(type));
    float *x = values(a, N, 1.0f, DTYPE_F32);
    const float *y = values(a, N, 1.0f, DTYPE_F32);
    OK(a->x->o->cast(a->x->s, &(cast_args){values(a, N, 1.0f, to), in, to, type, N}));
    OK(a->x->o->add(a->x->s, &(add_args){x, x, v && add_to ? NULL : y, N, add_to}));
    OK(a->x->o->scale(a->x->s, &(scale_args){x, 0.7f, N}));
    OK(a->x->o->sums->cast(
        a->x->s, &(cast_args){values(a, N, 1.0f, DTYPE_BF16), x, DTYPE_BF16, DTYPE_F32, N}));
    OK(a->x->o->add(a->x->s, &(add_args){.round_to = add_to}));
    OK(a->x->o->cast(a->x->s, &(cast_args){.out_type = to}));
}

static void test_elements(void **state)
{
    (void)state;
    both("elementwise", call_elementwise, 2);
}

static void test_shapes(void **state)
{
    (void)state;
    need_portable();
    both("matmul", call_matmul, 32);
    both("norm", call_norm, 5);
    both("rmsnorm", call_rmsnorm, 5);
    both("rope", call_rope, 6);
    both("swiglu", call_swiglu, 3);
    both("embedding", call_embedding, 4);
    both("attention", call_attention, 7);
    both("cross_entropy", call_cross_entropy, 3);
    both("images", call_images, 3);
}

/* ---- exact sums ------------------------------------------------------------------------------ */

/* Elements of any exponent, of the smallest, of the largest; infinities; NaNs. */
static uint32_t odd_bits(uint64_t *seed, int kind)
{
    const uint32_t sign = (uint32_t)draw(seed, 2) << 31, fraction = (uint32_t)draw(seed, 1 << 23);
    const uint32_t any = (uint32_t)draw(seed, 255), rare = draw(seed, 50) == 0 ? 255 : 100;
    const uint32_t exponent[] = {any, 0, 254, rare, rare};
    return sign | exponent[kind] << 23 | (kind == 3 && rare == 255 ? 0 : fraction);
}

/* The bins say how many infinities and NaNs there were, and hold a sum that has been merged but not
 * normalised. */
static void test_sum_squares(void **state)
{
    (void)state;
    static const size_t SIZES[] = {1, 255, 257, 70001};
    static uint32_t bits[70001];
    uint64_t seed = 9;
    const side *sides[] = {&target, &cpu};
    for (int k = 0; k < 20; k++) {
        const size_t elems = SIZES[k % 4];
        rsum before = {{0}}, *sum[2];
        void *x[2], *norm[2];
        for (size_t i = 0; i < elems; i++)
            bits[i] = odd_bits(&seed, k / 4);
        for (int i = 0; i < RSUM_DIGITS; i++)
            before.bin[i] = (int64_t)draw(&seed, 1u << 30) << (k % 2 ? 20 : 2);
        for (int i = 0; i < 2; i++) {
            const side *on = sides[i];
            sum[i] = copy_to(on, &before, sizeof before);
            x[i] = copy_to(on, bits, elems * sizeof *bits);
            norm[i] = copy_to(on, bits, 2 * sizeof(float));
            OK(on->o->sum_squares(on->s, &(sum_squares_args){sum[i], x[i], elems}));
            OK(on->o->clip_coef(on->s, &(clip_coef_args){norm[i], (float *)norm[i] + 1, sum[i],
                                                         k % 3 ? 1.0f : 0.0f}));
        }
        compare(sum[0], sum[1], sizeof before, "bins");
        if (k / 4 < 4) /* which NaN comes out is not said */
            compare(norm[0], norm[1], 2 * sizeof(float), "norm, coef");
        for (int i = 0; i < 2; i++) {
            device_free(sides[i]->s, sum[i]);
            device_free(sides[i]->s, x[i]);
            device_free(sides[i]->s, norm[i]);
        }
    }
}

/* norm and coef of a sum of one square. */
static void call_clip(arrays *a, dtype type, int v)
{
    static const float ROOTS[] = {0.0f, 1e-20f, 4.0f, 3e38f}, MOST[] = {0.0f, 1.0f, 5.0f};
    rsum sum = {{0}};
    (void)type;
    rsum_add_squares(&sum, &ROOTS[v % 4], 1);
    OK(a->x->o->clip_coef(a->x->s, &(clip_coef_args){values(a, 1, 1.0f, DTYPE_F32),
                                                     values(a, 1, 1.0f, DTYPE_F32),
                                                     put(a, &sum, sizeof sum), MOST[v / 4]}));
}

static void test_clip(void **state)
{
    (void)state;
    both("clip_coef", call_clip, 12);
}

/* ---- numbers outside the vocabulary ---------------------------------------------------------- */

typedef fsdp_status (*bad_call)(arrays *a, const int32_t *numbers);

static fsdp_status bad_embedding(arrays *a, const int32_t *tokens)
{
    return a->x->o->embedding(a->x->s, &(embedding_args){values(a, 6, 1.0f, DTYPE_F32),
                                                         values(a, 6, 1.0f, DTYPE_F32), NULL,
                                                         tokens, 1, 3, 2, 3, DTYPE_F32});
}

static fsdp_status bad_embedding_backward(arrays *a, const int32_t *tokens)
{
    return a->x->o->embedding_backward(
        a->x->s,
        &(embedding_backward_args){values(a, 6, 1.0f, DTYPE_F32), NULL,
                                   values(a, 6, 1.0f, DTYPE_F32), tokens, 1, 3, 2, 3, DTYPE_F32});
}

static fsdp_status bad_cross_entropy(arrays *a, const int32_t *targets)
{
    return a->x->o->cross_entropy(a->x->s,
                                  &(cross_entropy_args){values(a, 1, 1.0f, DTYPE_F32), NULL,
                                                        values(a, 9, 1.0f, DTYPE_F32), targets, 3,
                                                        3, DTYPE_F32, NULL});
}

/* The words of the first error of this call; by a device of its own, which fails. */
static void words_of(const backend *b, bad_call call, int32_t bad, bool by_event, char *words)
{
    side x = {.o = b->portable != NULL ? b->portable() : b->fast()};
    OK(device_open(&(device_config){.backend = b->device, .n_threads = 1}, &x.d));
    x.s = device_compute_stream(x.d);
    arrays a = {.x = &x};
    event *e = NULL;
    OK(event_create(x.d, &e));
    fsdp_status status = call(&a, put(&a, (int32_t[3]){0, 1, bad}, 12));
    (void)event_record(e, x.s);
    if (status == FSDP_OK)
        status = by_event ? event_sync(e) : stream_sync(x.s);
    assert_int_equal(status, FSDP_EINVAL);
    snprintf(words, sizeof(fsdp_error_info), "%s / %s", fsdp_error_get()->what,
             fsdp_error_get()->hint);
    assert_int_equal(stream_sync(x.s), FSDP_EINVAL); /* it stays */
    event_free(e);
    while (a.n > 0)
        device_free(x.s, a.ptr[--a.n]);
    device_close(x.d);
}

static void test_bad_numbers(void **state)
{
    (void)state;
    static const bad_call CALLS[] = {bad_embedding, bad_embedding_backward, bad_cross_entropy};
    const backend on_cpu = {.device = &device_cpu, .portable = ops_cpu_portable};
    for (int k = 0; k < 12; k++) {
        char got[sizeof(fsdp_error_info)], expected[sizeof(fsdp_error_info)];
        words_of(target_backend(), CALLS[k / 4], k % 2 ? -1 : 3, k & 2, got);
        words_of(&on_cpu, CALLS[k / 4], k % 2 ? -1 : 3, k & 2, expected);
        assert_string_equal(got, expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_root),
        cmocka_unit_test(test_catalogue),
        cmocka_unit_test(test_elements),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_sum_squares),
        cmocka_unit_test(test_clip),
        cmocka_unit_test(test_bad_numbers),
        cmocka_unit_test(test_refusals_are_documented),
    };
    if (target_backend()->device == &device_cpu) {
        printf("SKIP FSDP_DEVICE names no device beside the CPU\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, setup, teardown);
}
