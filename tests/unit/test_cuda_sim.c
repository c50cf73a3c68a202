/* test_cuda_sim.c -- what the stand-in for CUDA says of mistakes in kernels, and its matrix
 * instruction. With FSDP_DEVICE=cuda-sim only. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/sim/cuda/planted.h"
#include "tests/unit/ops_cases_lib.h"
#include "tests/unit/target_lib.h"
#include "tests/unit/unit_lib.h"

static planted_launch_fn planted_run;

/* ---- mistakes that end the process ----------------------------------------------------------- */

enum { N_OUT = PLANTED_BLOCKS * PLANTED_THREADS };

/* Launches the kernel and gets its numbers. Each call opens a device of its own. */
static void run_kernel(planted_kernel kernel, bool correct, float out[N_OUT])
{
    device *d = NULL;
    void *on_device;
    OK(device_open(&(device_config){.backend = target_backend()->device, .n_threads = 1}, &d));
    stream *s = device_compute_stream(d);
    OK(device_alloc(s, MEM_OTHER, N_OUT * sizeof *out, "planted", &on_device));
    OK(planted_run(s, &(planted_args){.kernel = kernel, .correct = correct, .out = on_device}));
    OK(device_download(s, out, on_device, N_OUT * sizeof *out));
    OK(stream_sync(s));
    device_free(s, on_device);
    device_close(d);
}

/* What a child wrote to standard error; its wait status. */
static int run_in_child(planted_kernel kernel, bool correct, char text[4096])
{
    int fds[2], status;
    size_t chars = 0;
    ssize_t n;
    assert_int_equal(pipe(fds), 0);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        float out[N_OUT];
        alarm(120);
        dup2(fds[1], STDERR_FILENO);
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        run_kernel(kernel, correct, out);
        _exit(0);
    }
    close(fds[1]);
    while ((n = read(fds[0], text + chars, 4095 - chars)) > 0)
        chars += (size_t)n;
    text[chars] = '\0';
    close(fds[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void test_misuse_ends_the_process(void **state)
{
    (void)state;
    static const struct {
        planted_kernel kernel;
        const char *says;
    } CASES[] = {
        {BARRIER_IN_BRANCH, "threads wait at a barrier that others have passed by"},
        {BARRIERS_APART, "threads wait at different barriers"},
        {LANE_MISSING, "lanes wait for others of their warp that do not come"},
        {MASK_WITHOUT_CALLER, "a thread takes part in an exchange whose mask is without it"},
        {EXCHANGES_APART, "the lanes of a warp are at different exchanges"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char text[4096];
        const int status = run_in_child(CASES[i].kernel, false, text);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT || !strstr(text, CASES[i].says) ||
            !strstr(text, "kernel misuse_kernel, block (0,0,0)") || !strstr(text, "planted.cc:"))
            fail_msg("expected \"%s\", got wait status %d and: %s", CASES[i].says, status, text);
        if (run_in_child(CASES[i].kernel, true, text) != 0)
            fail_msg("without the mistake: %s", text);
    }
}

/* ---- mistakes that show as values ------------------------------------------------------------ */

/* NaNs in each block. */
static void count_nans(const float *out, int n[PLANTED_BLOCKS])
{
    for (int i = 0; i < PLANTED_BLOCKS; i++)
        n[i] = 0;
    for (int i = 0; i < N_OUT; i++)
        n[i / PLANTED_THREADS] += isnan(out[i]) != 0;
}

/* A missing barrier shows in one of two blocks at least, since they run in two orders. */
static void test_missing_barriers_show(void **state)
{
    (void)state;
    float out[N_OUT];
    int n[PLANTED_BLOCKS];
    for (planted_kernel kernel = BLOCK_NEIGHBOUR; kernel <= WARP_NEIGHBOUR; kernel++) {
        run_kernel(kernel, true, out);
        for (int i = 0; i < N_OUT; i++) {
            const int own = i % PLANTED_THREADS, before = own > 0 ? own - 1 : 0;
            const int expected = kernel == BLOCK_NEIGHBOUR ? before : own ^ 1;
            assert_int_equal((int)out[i], expected);
        }
        run_kernel(kernel, false, out);
        count_nans(out, n);
        assert_true(n[0] + n[1] > 0);
        if (kernel == BLOCK_NEIGHBOUR)
            assert_true((n[0] == 0) != (n[1] == 0));
    }
}

/* ---- the matrix instruction ------------------------------------------------------------------ */

/* Values of one type in device memory, and as doubles. */
static void *fill(stream *s, uint64_t name, size_t elems, bool bf16, double *x)
{
    float *f32 = malloc(elems * sizeof *f32);
    uint16_t *h = malloc(elems * sizeof *h);
    void *on_device;
    ops_test_fill(name, 1.0f, f32, elems);
    for (size_t i = 0; i < elems; i++) {
        h[i] = bf16_from_f32(f32[i]);
        x[i] = (double)(bf16 ? f32_from_bf16(h[i]) : f32[i]);
    }
    OK(device_alloc(s, MEM_OTHER, elems * 4, "matrix", &on_device));
    OK(device_upload(s, on_device, bf16 ? (void *)h : (void *)f32, elems * (bf16 ? 2 : 4)));
    OK(stream_sync(s));
    free(f32), free(h);
    return on_device;
}

/* A sum of n products in fp32 is off by n u / (1 - n u) times the sum of their sizes at most. */
static void check_product(stream *s, planted_args args)
{
    enum { ROWS = 16, COLS = 64, MAX_DEPTH = 64 };
    static double a[ROWS * MAX_DEPTH], b[COLS * MAX_DEPTH];
    static float out[ROWS * COLS];
    const size_t depth = (size_t)args.depth;
    void *blocks[3];
    args.a = blocks[0] = fill(s, 1, ROWS * depth, args.bf16, a);
    args.b = blocks[1] = fill(s, 2, COLS * depth, args.bf16, b);
    OK(device_alloc(s, MEM_OTHER, sizeof out, "product", &blocks[2]));
    args.out = blocks[2];
    OK(planted_run(s, &args));
    OK(device_download(s, out, args.out, sizeof out));
    OK(stream_sync(s));
    for (size_t i = 0; i < ROWS * COLS; i++) {
        const size_t row = i / COLS, col = i % COLS;
        double sum = 0, size = 0;
        for (size_t k = 0; k < depth; k++) {
            const double term =
                a[row * depth + k] * b[args.b_by_columns ? col * depth + k : k * COLS + col];
            sum += term;
            size += fabs(term);
        }
        const double bound = (double)depth * 0x1p-23 * size;
        if (!(fabs((double)out[i] - sum) <= bound))
            fail_msg("%s, depth %zu, b by %s: (%zu,%zu) is %.9g, expected %.9g",
                     args.bf16 ? "bf16" : "f32", depth, args.b_by_columns ? "columns" : "rows", row,
                     col, (double)out[i], sum);
    }
    for (int i = 0; i < 3; i++)
        device_free(s, blocks[i]);
}

static void test_products(void **state)
{
    (void)state;
    device *d = NULL;
    OK(device_open(&(device_config){.backend = target_backend()->device, .n_threads = 1}, &d));
    for (int i = 0; i < 24; i++)
        check_product(device_compute_stream(d), (planted_args){.kernel = PRODUCT,
                                                               .depth = 16 << i % 3,
                                                               .b_by_columns = i / 3 % 2,
                                                               .bf16 = i / 6 % 2,
                                                               .old_gpu = i / 12});
    device_close(d);
}

int main(void)
{
    const char *name = getenv("FSDP_DEVICE");
    if (name == NULL || strcmp(name, "cuda-sim") != 0) {
        printf("SKIP FSDP_DEVICE is not cuda-sim\n");
        return 77;
    }
    planted_run = target_symbol("planted_launch");
    if (planted_run == NULL) {
        fprintf(stderr, "the stand-in has no planted_launch\n");
        return 2;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_misuse_ends_the_process),
        cmocka_unit_test(test_missing_barriers_show),
        cmocka_unit_test(test_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
