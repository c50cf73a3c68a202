/* test_cuda_device.c -- what only CUDA devices have: pinned memory that peers map, and CUDA's
 * errors for wrong machines and wrong programs. test_accel_device.c has what other accelerators
 * have too.
 *
 *     FSDP_DEVICE=cuda-sim build/tests/unit/test_cuda_device
 *
 * On another device every test is skipped. On a real GPU, tests that need a wrong machine are
 * skipped. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include "common/base/page.h"
#include "tests/sim/cuda/include/cuda_runtime_api.h"
#include "tests/unit/accel_lib.h"

/* A function of the plug-in's CUDA; one that must return this error. */
#define CUDA(call)              ((__typeof__(call) *)plugin_symbol(#call))
#define WANT(call, result, ...) assert_int_equal(CUDA(cuda##call)(__VA_ARGS__), cuda##result)

static device *open_cuda(const device_config *more)
{
    need_accel("cuda");
    return open_accel(more);
}

/* Writes to the block show in another mapping of the file. */
ON_THIS(test_pinned_memory_is_shared, open_cuda(&(device_config){0}))
{
    char *pinned = new_host_block(s, 10000, "shared"), *on_gpu = new_block(s, 10000, "not shared");
    device_share at;
    assert_false(device_share_find(d, on_gpu, 1, &at));
    assert_false(device_share_find(d, pinned + 100, (size_t)1 << 20, &at));
    assert_true(device_share_find(d, pinned + 100, 9900, &at));
    assert_int_equal(at.inner, 100);
    assert_int_equal(at.bytes % PAGE_BYTES, 0);
    char *mapped =
        mmap(NULL, at.bytes, PROT_READ, MAP_SHARED, device_share_fd(d), (off_t)at.offset);
    assert_ptr_not_equal(mapped, MAP_FAILED);
    strcpy(pinned + 100, "seen by a peer");
    assert_string_equal(mapped + at.inner, "seen by a peer");
    munmap(mapped, at.bytes);
    device_free(s, pinned);
    assert_true(device_share_find(d, pinned, 1, &at)); /* the free may still be queued */
    device_free(s, on_gpu);
}

/* ---- machines that are wrong ----------------------------------------------------------------- */

TEST(test_wrong_machines)
{
    need_sim("cuda");
    expect_no_open("FSDP_SIM_GPUS", "0", 0, FSDP_ESKIP,
                   "no GPU that CUDA can use (no CUDA-capable");
    expect_no_open("FSDP_SIM_DRIVER", "12040", 0, FSDP_EDEVICE,
                   "the driver is for CUDA 12.4, and the plug-in was built with CUDA 13.0");
    expect_no_open("FSDP_SIM_DRIVER", "0", 0, FSDP_ESKIP, "no GPU that CUDA can use");
    expect_no_open("FSDP_SIM_GPUS", "2", 2, FSDP_EINVAL, "GPU 2, expected one from 0 to 1");
    expect_no_open("NVIDIA_TF32_OVERRIDE", "1", 0, FSDP_EINVAL,
                   "got '1', expected 0: cuBLAS would round fp32 operands to TF32");
    expect_no_open(NULL, NULL, -1, FSDP_EINVAL, "GPU -1, expected");
    expect_no_open("FSDP_SIM_SM", "70", 0, FSDP_EDEVICE, "no kernel image is available");
    assert_non_null(strstr(fsdp_error_get()->hint, "CUDA_ARCHS"));
    fsdp_status (*status)(int error, const char *what) = plugin_symbol("cuda_status");
    assert_int_equal(status(209, "gelu"), FSDP_EDEVICE); /* a GPU that the code was not built for */
    assert_says("gelu: no kernel image is available for execution on the device");
    assert_non_null(strstr(fsdp_error_get()->hint, "CUDA_ARCHS"));
    setenv("FSDP_SIM_GPUS", "0", 1);
    assert_int_equal(target_backend()->n_devices(), 0);
    unsetenv("FSDP_SIM_GPUS");
    assert_true(target_backend()->n_devices() > 0);
}

/* ---- programs that are wrong: each in a process of its own ----------------------------------- */

enum { ELEMS = 1000 };

typedef struct wrong {
    device *d;
    stream *s, *side;
    float *in, *out;
} wrong;

static fsdp_status gelu(stream *s, float *out, const float *in, size_t elems)
{
    return target_backend()->portable()->gelu(
        s, &(gelu_args){.out = out, .in = in, .elems = elems, .type = DTYPE_F32});
}

static void wrong_open(wrong *w)
{
    static float ones[ELEMS];
    w->d = open_cuda(&(device_config){.debug_fill = true});
    w->s = device_compute_stream(w->d);
    w->side = new_stream(w->d, "side");
    for (int i = 0; i < ELEMS; i++)
        ones[i] = 1;
    w->in = new_block(w->s, sizeof ones, "victim");
    w->out = new_block(w->s, sizeof ones, "result");
    OK(device_upload(w->s, w->in, ones, sizeof ones));
    OK(stream_sync(w->s));
}

static void wrong_close(wrong *w)
{
    device_free(w->s, w->in);
    device_free(w->s, w->out);
    device_close(w->d);
}

static void wrong_one_behind(wrong *w)
{
    OK(gelu(w->s, w->out, w->in, ELEMS + 1));
    device_free(w->s, w->out);
    (void)stream_sync(w->s);
}

/* Prints the result of a kernel that did not wait for its input, or whose input came by another
 * stream. */
static void print_result(wrong *w)
{
    float back = 0;
    OK(device_download(w->s, &back, w->out, sizeof back));
    OK(stream_sync(w->s));
    printf("result %s\n", back == back ? "a number" : "nan");
}

static void wrong_no_event(wrong *w)
{
    sem_t gate;
    float *late, one = 1;
    OK(device_alloc_f32(w->side, MEM_OTHER, 1, "late", &late));
    OK(stream_sync(w->side));
    close_gate(w->side, &gate);
    OK(device_upload(w->side, late, &one, sizeof one));
    OK(gelu(w->s, w->out, late, 1));
    OK(stream_sync(w->s));
    open_gate(&gate);
    print_result(w);
}

static void wrong_stream_of_copy(wrong *w)
{
    sem_t gate;
    OK(device_zero(w->s, w->in, 4));
    OK(stream_sync(w->s));
    close_gate(w->s, &gate);
    OK(gelu(w->s, w->out, w->in, 1));
    OK(device_copy(w->side, w->in, w->out, 4)); /* belongs on w->s */
    OK(stream_sync(w->side));
    open_gate(&gate);
    print_result(w);
}

static fsdp_status run_open_later(void *args, int n_threads)
{
    usleep(300000);
    sem_post(*(sem_t **)args);
    return FSDP_OK;
}

/* `use` runs code for the first time while stream `far` waits for a task on `side`, whose thread
 * waits for the gate. */
static sem_t first_gate;

static void first_use(wrong *w, fsdp_status (*use)(wrong *w))
{
    order x = {.elems = 0};
    event *e = new_event(w->d);
    stream *far = new_stream(w->d, "far");
    close_gate(w->side, &first_gate);
    OK(event_record(e, w->side));
    OK(stream_wait_event(far, e));
    OK(order_add(&x, far, 5));
    OK(use(w));
    open_gate(&first_gate);
    OK(stream_sync(far));
    OK(stream_sync(w->s));
    printf("task has run: %d\n", x.list[0]);
}

static fsdp_status use_kernel(wrong *w)
{
    return gelu(w->s, w->out, w->in, ELEMS);
}

static void wrong_first_kernel(wrong *w)
{
    first_use(w, use_kernel);
}

static fsdp_status multiply(wrong *w)
{
    return target_backend()->fast()->matmul(w->s, &(matmul_args){.out = w->out,
                                                                 .a = w->in,
                                                                 .b = w->in,
                                                                 .m = 10,
                                                                 .n = 10,
                                                                 .k = 10,
                                                                 .type = DTYPE_F32,
                                                                 .out_type = DTYPE_F32});
}

/* The first product may wait for the tasks, so a task on another stream opens the gate. */
static fsdp_status use_product(wrong *w)
{
    sem_t *gate = &first_gate;
    stream *opener = new_stream(w->d, "opener");
    OK(launch_c(opener, run_open_later, &gate, sizeof gate));
    return multiply(w);
}

static void wrong_first_product(wrong *w)
{
    first_use(w, use_product);
}

static void wrong_handle(wrong *w)
{
    cudaEvent_t e;
    (void)CUDA(cudaEventCreateWithFlags)(&e, 0);
    (void)CUDA(cudaEventDestroy)(e);
    (void)CUDA(cudaEventQuery)(e);
}

static const struct wrong_program {
    const char *name;
    void (*run)(wrong *w);
} WRONG[] = {{"one-behind", wrong_one_behind},         {"no-event", wrong_no_event},
             {"copy-elsewhere", wrong_stream_of_copy}, {"first-kernel", wrong_first_kernel},
             {"first-product", wrong_first_product},   {"destroyed", wrong_handle}};

static int run_wrong(const char *name)
{
    wrong w;
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    setvbuf(stdout, NULL, _IONBF, 0);
    wrong_open(&w);
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++)
        if (strcmp(WRONG[i].name, name) == 0)
            WRONG[i].run(&w);
    fflush(stdout);
    _exit(0);
}

/* The stand-in finds these mistakes. */
TEST(test_planted_mistakes)
{
    need_sim("cuda");
    expect_output(output_of("one-behind", "A=B"),
                  "a block of 4000 bytes was written 0 bytes after its end; kernels launched "
                  "last: gelu_kernel");
    expect_output(output_of("destroyed", "A=B"),
                  "CUDA stand-in: cudaEventQuery of an event that is destroyed");
    expect_output(output_of("no-event", "A=B"), "result nan");
    expect_output(output_of("copy-elsewhere", "A=B"), "result nan");
}

/* CUDA loads code at its first use, and may wait for the GPU then. So the device loads kernels when
 * it opens, and host tasks run while the first product of a plan waits. */
TEST(test_first_use_of_code)
{
    need_accel("cuda");
    expect_output(output_of("first-kernel", "A=B"), "task has run: 5");
    expect_output(output_of("first-product", "A=B"), "task has run: 5");
}

/* Wrong calls get the error codes that CUDA has for them. */
TEST(test_stand_in_refuses)
{
    static char host[8192], *const page = host;
    wrong w;
    cudaStream_t s;
    cudaEvent_t e;
    need_sim("cuda");
    wrong_open(&w);
    WANT(StreamCreateWithPriority, Success, &s, cudaStreamNonBlocking, 0);
    WANT(EventCreateWithFlags, Success, &e, cudaEventDisableTiming);
    WANT(EventElapsedTime, ErrorInvalidResourceHandle, &(float){0}, e, e);
    WANT(MemcpyAsync, ErrorInvalidValue, w.in, w.out, 4, cudaMemcpyHostToDevice, s);
    WANT(MemcpyAsync, ErrorInvalidValue, w.in, host, ELEMS * 4 + 1, cudaMemcpyDefault, s);
    WANT(MemsetAsync, ErrorInvalidValue, host, 0, 8, s);
    WANT(MemsetAsync, ErrorInvalidValue, w.in, 0, ELEMS * 4 + 1, s);
    WANT(FreeAsync, ErrorInvalidValue, host, s);
    WANT(FreeAsync, ErrorInvalidValue, w.in + 1, s);
    WANT(FreeHost, ErrorInvalidValue, host);
    WANT(HostUnregister, ErrorHostMemoryNotRegistered, page);
    WANT(HostRegister, Success, page, sizeof host, 0);
    WANT(HostRegister, ErrorHostMemoryAlreadyRegistered, page + 4096, 4096, 0);
    WANT(HostUnregister, Success, page);
    host[0] = 1;
    WANT(MemcpyAsync, Success, host, w.in, 4, cudaMemcpyDefault, s); /* pageable: has ended */
    assert_memory_equal(host, &(float){1}, 4);
    WANT(EventDestroy, Success, e);
    WANT(StreamDestroy, Success, s);
    wrong_close(&w);
}

/* A GPU waits for host memory by the memory's address on the GPU. */
TEST(test_wait_for_mapped_memory)
{
    int (*wait_value)(cudaStream_t, unsigned long long, uint32_t, unsigned);
    static char pages[8192] __attribute__((aligned(4096)));
    cudaStream_t s;
    void *entry, *host, *plain, *on_gpu, *unused;
    need_sim("cuda");
    device *d = open_cuda(&(device_config){0});
    WANT(GetDriverEntryPointByVersion, Success, "cuStreamWaitValue32", &entry, 12000, 0,
         &(enum cudaDriverEntryPointQueryResult){0});
    memcpy(&wait_value, &entry, sizeof entry);
    WANT(StreamCreateWithPriority, Success, &s, cudaStreamNonBlocking, 0);
    WANT(HostAlloc, Success, &host, 8, cudaHostAllocMapped);
    WANT(HostAlloc, Success, &plain, 8, 0);
    WANT(HostRegister, Success, pages, sizeof pages, 0);
    WANT(HostGetDevicePointer, Success, &on_gpu, host, 0);
    WANT(HostGetDevicePointer, ErrorInvalidValue, &unused, plain, 0);
    WANT(HostGetDevicePointer, ErrorInvalidValue, &unused, pages, 0);
    *(volatile uint32_t *)host = 7;
    assert_int_equal(*(volatile uint32_t *)on_gpu, 7);
    assert_int_equal(wait_value(s, (uintptr_t)host, 7, 0), cudaErrorInvalidValue);
    assert_int_equal(wait_value(s, (uintptr_t)pages, 0, 0), cudaErrorInvalidValue);
    assert_int_equal(wait_value(s, (uintptr_t)on_gpu, 7, 0), 0);
    WANT(StreamDestroy, Success, s); /* waits for the stream's work */
    WANT(FreeHost, Success, host);
    WANT(FreeHost, Success, plain);
    WANT(HostUnregister, Success, pages);
    device_close(d);
}

static fsdp_status run_count(void *args, int n_threads)
{
    atomic_fetch_add(*(atomic_int **)args, 1);
    return FSDP_OK;
}

/* A host task whose launch fails never runs: the caller has counted it down. */
TEST(test_refused_task)
{
    atomic_int n_ran = 0, *counter = &n_ran;
    const launch_config task = {
        .fn = run_count, .args = &counter, .args_bytes = sizeof counter, .on_host = true};
    need_sim("cuda");
    device *d = open_cuda(&(device_config){0});
    stream *s = new_stream(d, "side");
    OK(stream_launch_work(s, &task));
    OK(stream_sync(s));
    setenv("FSDP_SIM_NO_WAIT", "1", 1);
    assert_int_equal(stream_launch_work(s, &task), FSDP_EDEVICE);
    unsetenv("FSDP_SIM_NO_WAIT");
    stream_free(s);
    assert_int_equal(atomic_load(&n_ran), 1);
    device_close(d);
}

/* An event query that comes too early leaves no error for a library to find. */
TEST(test_early_look_is_no_error)
{
    wrong w;
    sem_t gate;
    need_sim("cuda");
    wrong_open(&w);
    event *e = new_event(w.d);
    close_gate(w.side, &gate);
    OK(event_record(e, w.side));
    assert_false(event_done(e));
    assert_int_equal(CUDA(cudaPeekAtLastError)(), 0);
    open_gate(&gate);
    event_free(e);
    wrong_close(&w);
}

/* An error that a library has left does not fail the next launch. */
TEST(test_errors_of_libraries)
{
    wrong w;
    wrong_open(&w);
    for (int i = 0; i < 2; i++) { /* a new plan, then a known one */
        OK(multiply(&w));
        OK(gelu(w.s, w.out, w.in, ELEMS));
    }
    OK(stream_sync(w.s));
    wrong_close(&w);
}

/* ---- launches -------------------------------------------------------------------------------- */

/* Kernels that the call launches. */
#define LAUNCHES(...)                                                                              \
    ({                                                                                             \
        const unsigned before_ = launches();                                                       \
        OK(__VA_ARGS__);                                                                           \
        launches() - before_;                                                                      \
    })

/* Gradients that sum over rows or positions take few kernels. */
TEST(test_launches)
{
    enum { ROWS = 400, COLS = 24, MOST = 1025 };
    const ops *o = target_backend()->fast();
    need_sim("cuda");
    device *d = open_cuda(&(device_config){.debug_fill = true});
    stream *s = device_compute_stream(d);
    unsigned (*launches)(void) = plugin_symbol("sim_launches");
    float *x = new_block(s, MOST * COLS * sizeof *x, "in"), *y = new_block(s, MOST * COLS * 4, "y");
    int32_t *tokens = new_block(s, MOST * sizeof *tokens, "tokens");
    OK(device_zero(s, x, MOST * COLS * sizeof *x));
    OK(device_zero(s, y, MOST * COLS * sizeof *y));
    OK(device_zero(s, tokens, MOST * sizeof *tokens));
    bias_backward_args bias = {.d_bias = y, .d_out = x, .rows = ROWS, .cols = COLS};
    layernorm_backward_args norm = {.d_in = y, .d_gain = y + ROWS * COLS, .d_out = x, .in = x};
    norm.d_bias = norm.d_gain + COLS, norm.gain = norm.mean = norm.rstd = x;
    norm.rows = ROWS, norm.cols = COLS;
    rmsnorm_backward_args rms = {.d_in = y, .d_gain = y + ROWS * COLS, .d_out = x, .in = x};
    rms.gain = rms.rstd = x, rms.rows = ROWS, rms.cols = COLS;
    embedding_backward_args embed = {.d_wte = y, .d_wpe = y + COLS, .d_out = x, .tokens = tokens};
    embed.batch = 1, embed.seq_len = MOST - 1, embed.width = 1, embed.vocab = 1;
    const sum_squares_args squares = {.sum = (rsum *)(void *)y, .x = x, .elems = MOST * COLS};
    decay_range ranges[33];
    for (size_t i = 0; i < 33; i++)
        ranges[i] = (decay_range){2 * i, 1, true};
    for (int n = 32; n <= 33; n++) {
        const range_table table = {ranges, n, 0};
        const sum_squares_args some = {(rsum *)(void *)y, x, MOST, table};
        const adamw_args adamw = {
            .param = y, .m = y, .v = y, .grad = x, .elems = MOST, .ranges = table};
        const sgd_args sgd = {.param = y, .grad = x, .elems = MOST, .ranges = table};
        assert_int_equal(LAUNCHES(o->sum_squares(s, &some)), n == 32 ? 1 : 2);
        assert_int_equal(LAUNCHES(o->adamw(s, &adamw)), n == 32 ? 1 : 2);
        assert_int_equal(LAUNCHES(o->sgd(s, &sgd)), n == 32 ? 1 : 2);
    }
    assert_int_equal(LAUNCHES(o->sum_squares(s, &squares)), 1);
    assert_int_equal(LAUNCHES(o->bias_backward(s, &bias)), 1);
    assert_int_equal(LAUNCHES(o->layernorm_backward(s, &norm)), 1);
    assert_int_equal(LAUNCHES(o->rmsnorm_backward(s, &rms)), 1);
    assert_int_equal(LAUNCHES(o->embedding_backward(s, &embed)), 2);
    embed.seq_len = MOST;
    assert_int_equal(LAUNCHES(o->embedding_backward(s, &embed)), 3);
    device_free(s, x);
    device_free(s, y);
    device_free(s, tokens);
    device_close(d);
}

int main(int argc, char **argv)
{
    alarm(600); /* a deadlock is a failure, not a hang */
    if (argc > 1)
        return run_wrong(argv[1]);
    return tests_run(NULL, NULL);
}
