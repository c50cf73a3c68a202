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
#include "tests/unit/accel_lib.h"

static device *open_cuda(const device_config *more)
{
    need_accel("cuda");
    return open_accel(more);
}

/* Writes to the block show in another mapping of the file. */
TEST(test_pinned_memory_is_shared)
{
    device *d = open_cuda(&(device_config){0});
    stream *s = device_compute_stream(d);
    char *pinned, *on_gpu;
    device_share at;
    pinned = new_host_block(s, 10000, "shared");
    on_gpu = new_block(s, 10000, "not shared");
    assert_false(device_share_find(d, on_gpu, 1, &at));
    assert_false(device_share_find(d, pinned + 100, (size_t)1 << 20, &at));
    assert_true(device_share_find(d, pinned + 100, 9900, &at));
    assert_int_equal(at.inner, 100);
    assert_int_equal(at.bytes % 4096, 0);
    char *mapped =
        mmap(NULL, at.bytes, PROT_READ, MAP_SHARED, device_share_fd(d), (off_t)at.offset);
    assert_ptr_not_equal(mapped, MAP_FAILED);
    strcpy(pinned + 100, "seen by a peer");
    assert_string_equal(mapped + at.inner, "seen by a peer");
    munmap(mapped, at.bytes);
    device_free(s, pinned);
    assert_true(device_share_find(d, pinned, 1, &at)); /* the free may still be queued */
    device_free(s, on_gpu);
    device_close(d);
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
    OK(device_alloc_f32(w->s, MEM_OTHER, ELEMS, "victim", &w->in));
    OK(device_alloc_f32(w->s, MEM_OTHER, ELEMS, "result", &w->out));
    OK(device_upload(w->s, w->in, ones, sizeof ones));
    OK(stream_sync(w->s));
}

static void wrong_fault(wrong *w)
{
    void *more = (void *)1;
    float back;
    OK(gelu(w->s, w->out, w->in, ELEMS));
    OK(device_zero(w->s, w->in, 4));
    (void)gelu(w->s, w->out, w->in, ELEMS);
    (void)device_download(w->s, &back, w->out, sizeof back);
    printf("sync: %s\n", fsdp_status_name(stream_sync(w->s)));
    printf("words: %s\n", fsdp_error_get()->what);
    printf("launch: %s\n", fsdp_status_name(gelu(w->s, w->out, w->in, ELEMS)));
    printf("other stream: %s\n", fsdp_status_name(stream_sync(w->side)));
    printf("alloc: %s\n", fsdp_status_name(device_alloc(w->s, MEM_OTHER, 8, "more", &more)));
    device_free(w->s, w->in);
    device_free(w->s, w->out);
    device_close(w->d);
    printf("closed\n");
}

static void wrong_host_read(wrong *w)
{
    printf("read %g\n", (double)*(volatile float *)w->in);
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
    append_args append = {.list = (int[1]){0}, .elems = &(int){0}, .value = 5};
    event *e = new_event(w->d);
    stream *far = new_stream(w->d, "far");
    close_gate(w->side, &first_gate);
    OK(event_record(e, w->side));
    OK(stream_wait_event(far, e));
    OK(launch_c(far, run_append, &append, sizeof append));
    OK(use(w));
    open_gate(&first_gate);
    OK(stream_sync(far));
    OK(stream_sync(w->s));
    printf("task has run: %d\n", append.list[0]);
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
    void *e;
    int (*make)(void **, unsigned) = plugin_symbol("cudaEventCreateWithFlags");
    int (*put)(void *) = plugin_symbol("cudaEventDestroy");
    int (*query)(void *) = plugin_symbol("cudaEventQuery");
    (void)make(&e, 0);
    (void)put(e);
    (void)query(e);
}

static const struct wrong_program {
    const char *name;
    void (*run)(wrong *w);
} WRONG[] = {{"fault", wrong_fault},
             {"host-read", wrong_host_read},
             {"one-behind", wrong_one_behind},
             {"no-event", wrong_no_event},
             {"copy-elsewhere", wrong_stream_of_copy},
             {"first-kernel", wrong_first_kernel},
             {"first-product", wrong_first_product},
             {"destroyed", wrong_handle}};

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

TEST(test_fault_of_a_kernel)
{
    need_sim("cuda");
    const char *text = output_of("fault", "FSDP_SIM_FAULT=gelu_kernel:2");
    expect_output(text, "sync: FSDP_EDEVICE\nwords: GPU 0 failed: an illegal memory access was "
                        "encountered (cudaErrorIllegalAddress); issued last on stream 'compute': ");
    expect_output(text, "upload, gelu, fill, gelu");
    expect_output(text, "launch: FSDP_EDEVICE\nother stream: FSDP_EDEVICE\nalloc: FSDP_EDEVICE\n");
    expect_output(text, "closed\n");
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
    device *d;
    if (device_open(&(device_config){.backend = SEPARATE.backend, .n_threads = 1}, &d) != FSDP_OK) {
        printf("SKIP %s\n", fsdp_error_get()->what);
        return;
    }
    device_close(d);
    expect_output(output_of("host-read", "A=B"),
                  "host access to device memory: 'memory of the GPU' (4064 bytes), byte 0");
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
    enum { INVALID_VALUE = 1, INVALID_HANDLE = 400, REGISTERED = 712, NOT_REGISTERED = 713 };
    enum { HOST_TO_DEVICE = 1, ANY_KIND = 4, UNTIMED = 2, NON_BLOCKING = 1 };
    static char host[8192], *const page = host;
    wrong w;
    void *s, *e;
    need_sim("cuda");
    wrong_open(&w);
    int (*create)(void **, unsigned, int) = plugin_symbol("cudaStreamCreateWithPriority");
    int (*destroy)(void *) = plugin_symbol("cudaStreamDestroy");
    int (*event_make)(void **, unsigned) = plugin_symbol("cudaEventCreateWithFlags");
    int (*event_put)(void *) = plugin_symbol("cudaEventDestroy");
    int (*elapsed)(float *, void *, void *) = plugin_symbol("cudaEventElapsedTime");
    int (*copy)(void *, const void *, size_t, int, void *) = plugin_symbol("cudaMemcpyAsync");
    int (*fill)(void *, int, size_t, void *) = plugin_symbol("cudaMemsetAsync");
    int (*gpu_free)(void *, void *) = plugin_symbol("cudaFreeAsync");
    int (*pin)(void *, size_t, unsigned) = plugin_symbol("cudaHostRegister");
    int (*unpin)(void *) = plugin_symbol("cudaHostUnregister");
    int (*host_free)(void *) = plugin_symbol("cudaFreeHost");
    float ms;
    assert_int_equal(create(&s, NON_BLOCKING, 0), 0);
    assert_int_equal(event_make(&e, UNTIMED), 0);
    assert_int_equal(elapsed(&ms, e, e), INVALID_HANDLE);
    assert_int_equal(copy(w.in, w.out, 4, HOST_TO_DEVICE, s), INVALID_VALUE);
    assert_int_equal(copy(w.in, host, ELEMS * 4 + 1, ANY_KIND, s), INVALID_VALUE);
    assert_int_equal(fill(host, 0, 8, s), INVALID_VALUE);
    assert_int_equal(fill(w.in, 0, ELEMS * 4 + 1, s), INVALID_VALUE);
    assert_int_equal(gpu_free(host, s), INVALID_VALUE);
    assert_int_equal(gpu_free(w.in + 1, s), INVALID_VALUE);
    assert_int_equal(host_free(host), INVALID_VALUE);
    assert_int_equal(unpin(page), NOT_REGISTERED);
    assert_int_equal(pin(page, sizeof host, 0), 0);
    assert_int_equal(pin(page + 4096, 4096, 0), REGISTERED);
    assert_int_equal(unpin(page), 0);
    host[0] = 1;
    assert_int_equal(copy(host, w.in, 4, ANY_KIND, s), 0); /* pageable: the copy has ended */
    assert_memory_equal(host, &(float){1}, 4);
    assert_int_equal(event_put(e), 0);
    assert_int_equal(destroy(s), 0);
    device_free(w.s, w.in);
    device_free(w.s, w.out);
    device_close(w.d);
}

/* A GPU waits for host memory by the memory's address on the GPU. */
TEST(test_wait_for_mapped_memory)
{
    enum { INVALID_VALUE = 1, MAPPED = 2, NON_BLOCKING = 1, GEQ = 0 };
    int (*wait_value)(void *, unsigned long long, uint32_t, unsigned);
    static char pages[8192] __attribute__((aligned(4096)));
    void *s, *entry, *host, *plain, *on_gpu, *unused;
    need_sim("cuda");
    device *d = open_cuda(&(device_config){0});
    int (*create)(void **, unsigned, int) = plugin_symbol("cudaStreamCreateWithPriority");
    int (*destroy)(void *) = plugin_symbol("cudaStreamDestroy");
    int (*entry_of)(const char *, void **, unsigned, unsigned long long, int *) =
        plugin_symbol("cudaGetDriverEntryPointByVersion");
    int (*alloc)(void **, size_t, unsigned) = plugin_symbol("cudaHostAlloc");
    int (*address)(void **, void *, unsigned) = plugin_symbol("cudaHostGetDevicePointer");
    int (*pin)(void *, size_t, unsigned) = plugin_symbol("cudaHostRegister");
    int (*unpin)(void *) = plugin_symbol("cudaHostUnregister");
    int (*host_free)(void *) = plugin_symbol("cudaFreeHost");
    assert_int_equal(entry_of("cuStreamWaitValue32", &entry, 12000, 0, &(int){0}), 0);
    memcpy(&wait_value, &entry, sizeof entry);
    assert_int_equal(create(&s, NON_BLOCKING, 0), 0);
    assert_int_equal(alloc(&host, 8, MAPPED), 0);
    assert_int_equal(alloc(&plain, 8, 0), 0);
    assert_int_equal(pin(pages, sizeof pages, 0), 0);
    assert_int_equal(address(&on_gpu, host, 0), 0);
    assert_int_equal(address(&unused, plain, 0), INVALID_VALUE);
    assert_int_equal(address(&unused, pages, 0), INVALID_VALUE);
    *(volatile uint32_t *)host = 7;
    assert_int_equal(*(volatile uint32_t *)on_gpu, 7);
    assert_int_equal(wait_value(s, (uintptr_t)host, 7, GEQ), INVALID_VALUE);
    assert_int_equal(wait_value(s, (uintptr_t)pages, 0, GEQ), INVALID_VALUE);
    assert_int_equal(wait_value(s, (uintptr_t)on_gpu, 7, GEQ), 0);
    assert_int_equal(destroy(s), 0); /* waits for the stream's work */
    assert_int_equal(host_free(host), 0);
    assert_int_equal(host_free(plain), 0);
    assert_int_equal(unpin(pages), 0);
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
    int (*last_error)(void) = plugin_symbol("cudaPeekAtLastError");
    wrong_open(&w);
    event *e = new_event(w.d);
    close_gate(w.side, &gate);
    OK(event_record(e, w.side));
    assert_false(event_done(e));
    assert_int_equal(last_error(), 0);
    open_gate(&gate);
    event_free(e);
    device_free(w.s, w.in);
    device_free(w.s, w.out);
    device_close(w.d);
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
    device_free(w.s, w.in);
    device_free(w.s, w.out);
    device_close(w.d);
}

int main(int argc, char **argv)
{
    alarm(100); /* a deadlock is a failure, not a hang */
    if (argc > 1)
        return run_wrong(argv[1]);
    return tests_run(NULL, NULL);
}
