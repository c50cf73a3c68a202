/* test_npu_aclnn.c -- aclnn's rules that its stand-in enforces: what the first phase refuses, how
 * long executors, tensors and workspaces live, what is not deterministic. Only with
 * FSDP_DEVICE=npu-sim.
 *
 * aclnn's headers are C++, so the signatures of its calls are repeated here. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/unit/accel_lib.h"

enum { PARAM_NULLPTR = 161001, PARAM_INVALID = 161002, INNER_NULLPTR = 561103 };
enum { F32 = 0, I32 = 3, I64 = 9, BF16 = 27, ND = 2, NZ = 29 };

typedef int32_t (*phase2_fn)(void *workspace, uint64_t bytes, void *executor, void *queue);
typedef int32_t (*mm_fn)(const void *a, const void *b, void *out, int8_t math, uint64_t *bytes,
                         void **executor);
typedef int32_t (*add_fn)(const void *a, const void *b, const void *alpha, void *out,
                          uint64_t *bytes, void **executor);
typedef int32_t (*rms_fn)(const void *x, const void *gamma, double eps, const void *y,
                          const void *rstd, uint64_t *bytes, void **executor);
typedef int32_t (*rms_grad_fn)(const void *dy, const void *x, const void *rstd, const void *gamma,
                               const void *dx, const void *dgamma, uint64_t *bytes,
                               void **executor);
typedef int32_t (*rotary_fn)(const void *x, const void *cos, const void *sin, int64_t mode,
                             const void *out, uint64_t *bytes, void **executor);
typedef int32_t (*silu_grad_fn)(const void *grad, const void *x, const void *out, uint64_t *bytes,
                                void **executor);
typedef int32_t (*embedding_grad_fn)(const void *grad, const void *numbers, uint64_t n,
                                     uint64_t padding, bool by_freq, const void *out,
                                     uint64_t *bytes, void **executor);

static device *dev;
static stream *s;
static void *queue;
static float *memory; /* device memory, MEMORY floats */
enum { MEMORY = 1 << 14, WORKSPACE = MEMORY / 2 };

static void *(*create_tensor)(const int64_t *, uint64_t, int, const int64_t *, int64_t, int,
                              const int64_t *, uint64_t, void *);
static void *(*create_scalar)(void *, int);
static int32_t (*destroy_tensor)(const void *), (*destroy_scalar)(const void *);
static int32_t (*destroy_executor)(void *);
static mm_fn mm_begin;
static add_fn add_begin;
static phase2_fn mm_run, add_run;

static int setup(void **state)
{
    void *(*queue_of)(stream *) = NULL;
    *state = NULL;
    need_sim("npu");
    dev = open_accel(&(device_config){0});
    s = device_compute_stream(dev);
    queue_of = plugin_symbol("accel_queue_of");
    queue = queue_of(s);
    create_tensor = plugin_symbol("aclCreateTensor");
    create_scalar = plugin_symbol("aclCreateScalar");
    destroy_tensor = plugin_symbol("aclDestroyTensor");
    destroy_scalar = plugin_symbol("aclDestroyScalar");
    destroy_executor = plugin_symbol("aclDestroyAclOpExecutor");
    mm_begin = plugin_symbol("aclnnMmGetWorkspaceSize");
    mm_run = plugin_symbol("aclnnMm");
    add_begin = plugin_symbol("aclnnAddGetWorkspaceSize");
    add_run = plugin_symbol("aclnnAdd");
    OK(device_alloc_f32(s, MEM_OTHER, MEMORY, "operands", &memory));
    return 0;
}

static int teardown(void **state)
{
    device_free(s, memory);
    device_close(dev);
    dev = NULL;
    return 0;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* A matrix that begins `at` floats after the start of `memory`. */
static void *matrix(int type, size_t at, int64_t rows, int64_t cols)
{
    const int64_t dim[] = {rows, cols}, stride[] = {cols, 1};
    return create_tensor(dim, 2, type, stride, 0, ND, dim, 2, memory + at);
}

static void *vector(int type, size_t at, int64_t elems)
{
    const int64_t stride = 1;
    return create_tensor(&elems, 1, type, &stride, 0, ND, &elems, 1, memory + at);
}

static void put(size_t at, const void *x, size_t elems)
{
    OK(device_upload(s, memory + at, x, elems * sizeof(float)));
}

static void get(float *x, size_t at, size_t elems)
{
    OK(device_download(s, x, memory + at, elems * sizeof *x));
    OK(stream_sync(s));
}

/* Operands [2,3] and [3,2] with small whole numbers, and out [2,2]. */
typedef struct product {
    void *a, *b, *out;
} product;
enum { A = 0, B = 64, OUT = 128 };
static const float A_VALUES[6] = {1, 2, 3, 4, 5, 6}, B_VALUES[6] = {1, -1, 2, 0, 3, 2};
static const float AB[4] = {14, 5, 32, 8};

static product product_new(void)
{
    put(A, A_VALUES, 6), put(B, B_VALUES, 6);
    return (product){matrix(F32, A, 2, 3), matrix(F32, B, 3, 2), matrix(F32, OUT, 2, 2)};
}

static void product_free(product *p)
{
    assert_int_equal(destroy_tensor(p->a), 0);
    assert_int_equal(destroy_tensor(p->b), 0);
    assert_int_equal(destroy_tensor(p->out), 0);
}

static void *product_begin(const product *p, uint64_t *bytes)
{
    void *executor = NULL;
    assert_int_equal(mm_begin(p->a, p->b, p->out, 0, bytes, &executor), 0);
    assert_true(*bytes > 0 && *bytes % 32 == 0 && *bytes <= sizeof(float) * (MEMORY - WORKSPACE));
    return executor;
}

static void expect_product(void)
{
    float got[4];
    get(got, OUT, 4);
    assert_memory_equal(got, AB, sizeof AB);
}

/* ---- the first phase ------------------------------------------------------------------------- */

static void expect_refused(const void *a, const void *b, void *out, int8_t math, int32_t code)
{
    uint64_t bytes = 0;
    void *executor = NULL;
    assert_int_equal(mm_begin(a, b, out, math, &bytes, &executor), code);
    assert_int_equal(mm_run(memory + WORKSPACE, bytes, executor, queue), PARAM_NULLPTR);
}

TEST_AROUND(test_refuses_matrices, setup, teardown)
{
    product p = product_new();
    const int64_t dim[] = {2, 3}, stride[] = {3, 1}, small = 5;
    void *wrong[] = {matrix(BF16, A, 2, 3),
                     matrix(I64, A, 2, 3),
                     matrix(F32, A, 2, 4),
                     vector(F32, A, 6),
                     matrix(F32, A + 1, 2, 3), /* not a multiple of 32 bytes */
                     create_tensor(dim, 2, F32, stride, 0, NZ, dim, 2, memory + A),
                     create_tensor(dim, 2, F32, stride, 0, ND, &small, 1, memory + A),
                     create_tensor(dim, 2, F32, stride, 1, ND, dim, 2, memory + A)};
    expect_refused(NULL, p.b, p.out, 0, PARAM_NULLPTR);
    expect_refused(p.a, NULL, p.out, 0, PARAM_NULLPTR);
    expect_refused(p.a, p.b, NULL, 0, PARAM_NULLPTR);
    expect_refused(p.a, p.b, p.out, 5, PARAM_INVALID);
    expect_refused(p.b, p.b, p.out, 0, PARAM_INVALID);
    expect_refused(p.a, p.b, p.a, 0, PARAM_INVALID);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        expect_refused(wrong[i], p.b, p.out, 0, PARAM_INVALID);
        assert_int_equal(destroy_tensor(wrong[i]), 0);
    }
    expect_refused(wrong[0], p.b, p.out, 0, PARAM_INVALID); /* the tensor was destroyed */
    assert_int_equal(mm_begin(p.a, p.b, p.out, 0, NULL, NULL), PARAM_NULLPTR);
    product_free(&p);
}

TEST_AROUND(test_refuses_sums, setup, teardown)
{
    uint64_t bytes;
    float one = 1;
    void *executor = NULL, *alpha = create_scalar(&one, F32), *a = vector(F32, A, 4);
    void *wrong[] = {vector(BF16, B, 4), vector(F32, B, 3), matrix(F32, B, 2, 4)};
    assert_int_equal(add_begin(a, a, NULL, a, &bytes, &executor), PARAM_NULLPTR);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(add_begin(a, wrong[i], alpha, a, &bytes, &executor), PARAM_INVALID);
        assert_int_equal(destroy_tensor(wrong[i]), 0);
    }
    assert_int_equal(add_begin(a, a, alpha, a, &bytes, &executor), 0);
    assert_int_equal(destroy_executor(executor), 0);
    assert_int_equal(destroy_executor(executor), PARAM_INVALID);
    destroy_tensor(a), destroy_scalar(alpha);
}

TEST_AROUND(test_refuses_norms, setup, teardown)
{
    const rms_fn begin = plugin_symbol("aclnnRmsNormGetWorkspaceSize");
    const rms_grad_fn grad = plugin_symbol("aclnnRmsNormGradGetWorkspaceSize");
    uint64_t bytes;
    void *e, *x = matrix(F32, 0, 3, 4), *y = matrix(F32, 64, 3, 4), *gamma = vector(F32, 128, 4);
    void *rstd = matrix(F32, 192, 3, 1), *short_rstd = vector(F32, 192, 3);
    void *wrong_rstd = matrix(F32, 192, 4, 1), *half = matrix(BF16, 64, 3, 4);
    void *empty = matrix(F32, 0, 0, 4), *no_rstd = matrix(F32, 192, 0, 1);
    void *wide = matrix(F32, 64, 3, 5), *half_gamma = vector(BF16, 128, 4);
    assert_int_equal(begin(x, gamma, 1e-5, y, NULL, &bytes, &e), PARAM_NULLPTR);
    assert_int_equal(begin(x, gamma, 1e-5, y, wrong_rstd, &bytes, &e), PARAM_INVALID);
    assert_int_equal(begin(x, gamma, 1e-5, half, rstd, &bytes, &e), PARAM_INVALID);
    assert_int_equal(begin(x, half_gamma, 1e-5, y, rstd, &bytes, &e), PARAM_INVALID);
    assert_int_equal(begin(x, gamma, 1e-5, wide, rstd, &bytes, &e), PARAM_INVALID);
    assert_int_equal(begin(empty, gamma, 1e-5, empty, no_rstd, &bytes, &e), PARAM_INVALID);
    assert_int_equal(grad(x, x, rstd, gamma, y, half_gamma, &bytes, &e), PARAM_INVALID);
    assert_int_equal(grad(wide, x, rstd, gamma, y, gamma, &bytes, &e), PARAM_INVALID);
    assert_int_equal(grad(x, x, rstd, gamma, half, gamma, &bytes, &e), PARAM_INVALID);
    void *const both[] = {rstd, short_rstd}; /* with and without the dimension of 1 */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(begin(x, gamma, 1e-5, y, both[i], &bytes, &e), 0);
        assert_int_equal(destroy_executor(e), 0);
        assert_int_equal(grad(x, x, both[i], gamma, y, gamma, &bytes, &e), 0);
        assert_int_equal(destroy_executor(e), 0);
    }
    void *all[] = {x,    y,     gamma,   rstd, short_rstd, wrong_rstd,
                   half, empty, no_rstd, wide, half_gamma};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_int_equal(destroy_tensor(all[i]), 0);
}

/* [b,s,n,d] in `memory`. Each row begins `apart` elements later than in a dense array. */
static void *heads(size_t at, const int64_t dim[4], int64_t apart)
{
    const int64_t row = dim[2] * dim[3] + apart, stride[] = {dim[1] * row, row, dim[3], 1};
    const int64_t storage = dim[0] * dim[1] * row;
    return create_tensor(dim, 4, F32, stride, 0, ND, &storage, 1, memory + at);
}

TEST_AROUND(test_refuses_rotations, setup, teardown)
{
    const rotary_fn begin = plugin_symbol("aclnnRotaryPositionEmbeddingGetWorkspaceSize");
    const int64_t dim[] = {2, 3, 2, 4}, angles[] = {1, 3, 1, 4}, odd[] = {2, 3, 2, 3};
    const int64_t odd_angles[] = {1, 3, 1, 3}, each_head[] = {1, 3, 2, 4}, longer[] = {1, 4, 1, 4};
    const int64_t many[] = {500, 1, 2, 4}, one[] = {1, 1, 1, 4};
    uint64_t bytes;
    void *e, *x = heads(0, dim, 0), *out = heads(256, dim, 0), *apart = heads(256, dim, 8);
    void *cos = heads(512, angles, 0), *sin = heads(640, angles, 0);
    void *odd_x = heads(0, odd, 0), *odd_out = heads(256, odd, 0);
    void *odd_cos = heads(512, odd_angles, 0), *heads_cos = heads(512, each_head, 0);
    void *long_cos = heads(512, longer, 0), *many_x = heads(0, many, 0);
    void *many_out = heads(4096, many, 0), *one_cos = heads(512, one, 0);
    assert_int_equal(begin(x, cos, NULL, 0, out, &bytes, &e), PARAM_NULLPTR);
    assert_int_equal(begin(x, cos, sin, 2, out, &bytes, &e), PARAM_INVALID);
    assert_int_equal(begin(x, cos, sin, 0, x, &bytes, &e), PARAM_INVALID);     /* in place */
    assert_int_equal(begin(x, cos, sin, 0, apart, &bytes, &e), PARAM_INVALID); /* not dense */
    assert_int_equal(begin(x, heads_cos, heads_cos, 0, out, &bytes, &e), PARAM_INVALID);
    assert_int_equal(begin(x, long_cos, long_cos, 0, out, &bytes, &e), PARAM_INVALID);
    assert_int_equal(begin(odd_x, odd_cos, odd_cos, 0, odd_out, &bytes, &e), PARAM_INVALID);
    assert_int_equal(begin(many_x, one_cos, one_cos, 1, many_out, &bytes, &e), PARAM_INVALID);
    void *const good[][3] = {{x, cos, out}, {apart, sin, x}, {many_x, one_cos, many_out}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(begin(good[i][0], good[i][1], good[i][1], 0, good[i][2], &bytes, &e), 0);
        assert_int_equal(destroy_executor(e), 0);
    }
    void *all[] = {x,       out,       apart,    cos,    sin,      odd_x,  odd_out,
                   odd_cos, heads_cos, long_cos, many_x, many_out, one_cos};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_int_equal(destroy_tensor(all[i]), 0);
}

/* silu may not repeat an operand; gelu may. */
TEST_AROUND(test_refuses_slopes, setup, teardown)
{
    const silu_grad_fn begin = plugin_symbol("aclnnSiluBackwardGetWorkspaceSize");
    uint64_t bytes;
    void *e, *x = matrix(F32, 0, 3, 4), *row = vector(F32, 64, 4), *half = matrix(BF16, 64, 3, 4);
    assert_int_equal(begin(x, row, x, &bytes, &e), PARAM_INVALID);
    assert_int_equal(begin(x, half, x, &bytes, &e), PARAM_INVALID);
    assert_int_equal(begin(x, x, x, &bytes, &e), 0);
    assert_int_equal(destroy_executor(e), 0);
    destroy_tensor(x), destroy_tensor(row), destroy_tensor(half);
}

/* ---- the second phase ------------------------------------------------------------------------ */

TEST_AROUND(test_executor_is_used_up, setup, teardown)
{
    product p = product_new();
    uint64_t bytes;
    void *executor = product_begin(&p, &bytes);
    assert_int_equal(mm_run(memory + WORKSPACE, bytes, executor, queue), 0);
    assert_int_equal(mm_run(memory + WORKSPACE, bytes, executor, queue), INNER_NULLPTR);
    assert_int_equal(mm_run(memory + WORKSPACE, bytes, NULL, queue), PARAM_NULLPTR);
    expect_product();
    executor = product_begin(&p, &bytes);
    assert_int_equal(add_run(memory + WORKSPACE, bytes, executor, queue), PARAM_INVALID);
    assert_int_equal(destroy_executor(executor), 0);
    product_free(&p);
}

TEST_AROUND(test_workspace, setup, teardown)
{
    product p = product_new();
    uint64_t bytes;
    void *executor = product_begin(&p, &bytes), *host = malloc(4096);
    assert_int_equal(mm_run(NULL, bytes, executor, queue), PARAM_NULLPTR);
    assert_int_equal(mm_run(memory + WORKSPACE, bytes - 1, executor, queue), PARAM_INVALID);
    assert_int_equal(mm_run(host, bytes, executor, queue), PARAM_INVALID);
    assert_int_equal(mm_run(memory + WORKSPACE, bytes, executor, queue), 0);
    expect_product();
    free(host);
    product_free(&p);
}

/* A test can make operators that need no workspace ask for one. */
TEST_AROUND(test_small_workspace, setup, teardown)
{
    float one = 1;
    void *executor, *alpha = create_scalar(&one, F32), *a = vector(F32, A, 4);
    void (*ask)(size_t) = plugin_symbol("sim_aclnn_workspace");
    for (uint64_t want = 0; want < 2; want++) {
        uint64_t bytes = 99;
        ask(want);
        assert_int_equal(add_begin(a, a, alpha, a, &bytes, &executor), 0);
        assert_true(bytes == want);
        if (want > 0)
            assert_int_equal(add_run(NULL, bytes, executor, queue), PARAM_NULLPTR);
        assert_int_equal(add_run(want > 0 ? memory + WORKSPACE : NULL, bytes, executor, queue), 0);
    }
    ask(0);
    destroy_tensor(a), destroy_scalar(alpha);
}

/* A tensor's whole storage must lie in one block, even if the view covers only part of it. */
TEST_AROUND(test_storage, setup, teardown)
{
    const int64_t dim = 4, stride = 1;
    float one = 1;
    void *alpha = create_scalar(&one, F32), *a = vector(F32, A, 4);
    for (int64_t more = 0; more < 2; more++) {
        const int64_t storage = MEMORY - A + more;
        uint64_t bytes;
        void *executor, *t = create_tensor(&dim, 1, F32, &stride, 0, ND, &storage, 1, memory + A);
        assert_int_equal(add_begin(a, t, alpha, a, &bytes, &executor), 0);
        assert_int_equal(add_run(NULL, bytes, executor, queue), more ? PARAM_INVALID : 0);
        if (more)
            assert_int_equal(destroy_executor(executor), 0);
        destroy_tensor(t);
    }
    destroy_tensor(a), destroy_scalar(alpha);
}

/* Tensors are used until the second phase returns. */
TEST_AROUND(test_tensors_live_until_the_second_phase, setup, teardown)
{
    product p = product_new();
    uint64_t bytes;
    void *executor = product_begin(&p, &bytes);
    assert_int_equal(mm_run(memory + WORKSPACE, bytes, executor, queue), 0);
    product_free(&p);
    expect_product();
    p = product_new();
    executor = product_begin(&p, &bytes);
    assert_int_equal(destroy_tensor(p.b), 0);
    assert_int_equal(mm_run(memory + WORKSPACE, bytes, executor, queue), INNER_NULLPTR);
    assert_int_equal(destroy_executor(executor), 0);
    assert_int_equal(destroy_tensor(p.b), PARAM_INVALID);
    destroy_tensor(p.a), destroy_tensor(p.out);
}

/* An operand in host memory is refused in the second phase, before work is on the stream. */
TEST_AROUND(test_operands_of_the_host, setup, teardown)
{
    const int64_t dim[] = {3, 2}, stride[] = {2, 1};
    product p = product_new();
    uint64_t bytes;
    void *host = aligned_alloc(64, 64), *executor = NULL;
    void *b = create_tensor(dim, 2, F32, stride, 0, ND, dim, 2, host);
    assert_int_equal(mm_begin(p.a, b, p.out, 0, &bytes, &executor), 0);
    assert_int_equal(mm_run(memory + WORKSPACE, bytes, executor, queue), PARAM_INVALID);
    assert_int_equal(destroy_executor(executor), 0);
    assert_int_equal(destroy_tensor(b), 0);
    free(host);
    product_free(&p);
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* Math type 1 lets fp32 be multiplied as HF32, which drops bits of the operands. */
TEST_AROUND(test_cube_math_type, setup, teardown)
{
    const float x = 1.0f + 0x1p-20f, one = 1;
    float got;
    void *a = matrix(F32, A, 1, 1), *b = matrix(F32, B, 1, 1), *out = matrix(F32, OUT, 1, 1);
    put(A, &x, 1), put(B, &one, 1);
    for (int8_t math = 0; math < 2; math++) {
        uint64_t bytes;
        void *executor;
        assert_int_equal(mm_begin(a, b, out, math, &bytes, &executor), 0);
        assert_int_equal(mm_run(memory + WORKSPACE, bytes, executor, queue), 0);
        get(&got, OUT, 1);
        assert_true(got == (math == 0 ? x : 1.0f));
    }
    destroy_tensor(a), destroy_tensor(b), destroy_tensor(out);
}

enum { ROWS = 40 };

/* All rows, of one number each, are added to one element. Returns how many of 8 calls had another
 * sum than the first. */
static int sums_of_embedding(void)
{
    const embedding_grad_fn begin = plugin_symbol("aclnnEmbeddingDenseBackwardGetWorkspaceSize");
    const phase2_fn run = plugin_symbol("aclnnEmbeddingDenseBackward");
    void *grad = matrix(F32, A, ROWS, 1), *numbers = vector(I32, 512, ROWS);
    void *out = matrix(F32, OUT, 1, 1);
    float got[8];
    int different = 0;
    for (int i = 0; i < 8; i++) {
        uint64_t bytes;
        void *executor;
        assert_int_equal(begin(grad, numbers, 1, UINT64_MAX, false, out, &bytes, &executor), 0);
        assert_int_equal(run(memory + WORKSPACE, bytes, executor, queue), 0);
        get(&got[i], OUT, 1);
        different += got[i] != got[0];
    }
    destroy_tensor(grad), destroy_tensor(numbers), destroy_tensor(out);
    return different;
}

/* The same for the gradient of gamma, with rows of 1 whose norm is 1. */
static int sums_of_norm(void)
{
    const rms_grad_fn begin = plugin_symbol("aclnnRmsNormGradGetWorkspaceSize");
    const phase2_fn run = plugin_symbol("aclnnRmsNormGrad");
    void *dy = matrix(F32, A, ROWS, 1), *ones = matrix(F32, 1024, ROWS, 1);
    void *gamma = vector(F32, 1024, 1), *dx = matrix(F32, 2048, ROWS, 1);
    void *dgamma = vector(F32, OUT, 1);
    float got[8];
    int different = 0;
    for (int i = 0; i < 8; i++) {
        uint64_t bytes;
        void *executor;
        assert_int_equal(begin(dy, ones, ones, gamma, dx, dgamma, &bytes, &executor), 0);
        assert_int_equal(run(memory + WORKSPACE, bytes, executor, queue), 0);
        get(&got[i], OUT, 1);
        different += got[i] != got[0];
    }
    destroy_tensor(dy), destroy_tensor(ones), destroy_tensor(gamma);
    destroy_tensor(dx), destroy_tensor(dgamma);
    return different;
}

/* Without ACL_OPT_DETERMINISTIC each sum has another order. */
TEST_AROUND(test_order_of_sums, setup, teardown)
{
    int (*set_option)(int, int64_t) = plugin_symbol("aclrtCtxSetSysParamOpt");
    const int32_t numbers[ROWS] = {0};
    int (*const SUMS[])(void) = {sums_of_embedding, sums_of_norm};
    float x[ROWS], ones[ROWS];
    for (int i = 0; i < ROWS; i++) {
        x[i] = (float)(i % 2 ? 1 : -1) * expf((float)(i * 7 % 23));
        ones[i] = 1.0f;
    }
    put(A, x, ROWS), put(512, numbers, ROWS), put(1024, ones, ROWS);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(SUMS[i](), 0);
        assert_int_equal(set_option(0, 0), 0);
        assert_true(SUMS[i]() > 0);
        assert_int_equal(set_option(0, 1), 0);
        assert_int_equal(SUMS[i](), 0);
    }
}

/* ---- what ends the process ------------------------------------------------------------------- */

static int run_wrong(const char *name)
{
    void *state = NULL;
    if (setup(&state) != 0)
        return 2;
    if (strcmp(name, "leak") == 0)
        (void)vector(F32, A, 4);
    teardown(&state);
    return 0;
}

TEST(test_leak)
{
    expect_output(output_of("leak", "A=B"), "1 tensors, scalars, arrays and executors of aclnn");
    assert_null(strstr(output_of("none", "A=B"), "aclnn"));
}

int main(int argc, char **argv)
{
    alarm(600); /* a deadlock is a failure, not a hang */
    if (argc > 1)
        return run_wrong(argv[1]);
    if (getenv("FSDP_DEVICE") == NULL || strcmp(getenv("FSDP_DEVICE"), "npu-sim") != 0) {
        printf("SKIP FSDP_DEVICE is not npu-sim\n");
        return 77;
    }
    return tests_run(NULL, NULL);
}
