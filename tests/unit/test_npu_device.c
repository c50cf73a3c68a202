/* test_npu_device.c -- the parts of a device that are specific to ACL: its numbers, contexts of
 * threads, the pool of device memory, and messages about unsuitable machines and wrong programs.
 * test_accel_device.c tests what all accelerators share.
 *
 *     FSDP_DEVICE=npu-sim build/tests/unit/test_npu_device
 *
 * On other devices every test is skipped. On a real NPU the tests that need an unsuitable machine
 * are skipped too. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "tests/unit/accel_lib.h"

enum { REPEAT_INITIALIZE = 100002, CONTEXT_NULL = 107002, NO_MEMORY = 207001 };

static device *open_npu(const device_config *more)
{
    need_accel("npu");
    return open_accel(more);
}

/* ---- numbers --------------------------------------------------------------------------------- */

TEST(test_maps)
{
    need_accel("npu");
    int (*acl)(dtype) = plugin_symbol("npu_acl_type"),
        (*hccl)(dtype) = plugin_symbol("npu_hccl_type");
    int (*kind)(int) = plugin_symbol("npu_copy_kind");
    fsdp_status (*status)(int, const char *) = plugin_symbol("npu_status");
    const int acl_expected[] = {
        [DTYPE_F32] = 0, [DTYPE_BF16] = 27, [DTYPE_I64] = 9, [DTYPE_U8] = 4};
    const int hccl_expected[] = {
        [DTYPE_F32] = 4, [DTYPE_BF16] = 11, [DTYPE_I64] = 5, [DTYPE_U8] = 7};
    for (int t = 0; t < 4; t++) {
        assert_int_equal(acl((dtype)t), acl_expected[t]);
        assert_int_equal(hccl((dtype)t), hccl_expected[t]);
    }
    assert_int_equal(acl((dtype)4), -1);
    assert_int_equal(hccl((dtype)4), -1);
    assert_int_equal(kind(0), 3); /* within the device */
    assert_int_equal(kind(1), 1); /* from the host */
    assert_int_equal(kind(2), 2); /* to the host */
    OK(status(0, "aclrtMalloc"));
    assert_int_equal(status(NO_MEMORY, "aclrtMalloc"), FSDP_ENOMEM);
    assert_int_equal(status(200000, "aclInit"), FSDP_ENOMEM);
    assert_int_equal(status(507015, "sync"), FSDP_EDEVICE);
    assert_says("sync: ACL's error 507015");
    assert_int_equal(status(CONTEXT_NULL, "sync"), FSDP_EDEVICE);
    assert_non_null(strstr(fsdp_error_get()->hint, "aclrtSetCurrentContext"));
}

/* ACL's error text can be read once. It belongs to the call that failed last. */
TEST(test_words)
{
    device *d = open_npu(&(device_config){0});
    int (*npu_free)(void *) = plugin_symbol("aclrtFree");
    fsdp_status (*status)(int, const char *) = plugin_symbol("npu_status");
    const int code = npu_free(NULL);
    assert_int_equal(code, 100000);
    assert_int_equal(status(code, "give back"), FSDP_EDEVICE);
    assert_says("give back: ACL's error 100000: ");
    assert_null(strstr(fsdp_error_get()->what, "no message"));
    assert_int_equal(status(code, "give back"), FSDP_EDEVICE);
    assert_says("no message");
    device_close(d);
}

/* ---- the device ------------------------------------------------------------------------------ */

TEST(test_initialised_once)
{
    device *first = open_npu(&(device_config){0}), *second = open_npu(&(device_config){0});
    int (*init)(const char *) = plugin_symbol("aclInit");
    assert_int_equal(init(NULL), REPEAT_INITIALIZE);
    device_close(first);
    void *block = new_block(device_compute_stream(second), 100, "goes on");
    OK(device_zero(device_compute_stream(second), block, 100));
    OK(stream_sync(device_compute_stream(second)));
    device_free(device_compute_stream(second), block);
    device_close(second);
    device_close(open_npu(&(device_config){0}));
    expect_output(output_of("initialised", "A=B"), "init: 0\nend: 0\n");
}

TEST(test_is_deterministic)
{
    need_sim("npu");
    device *d = open_npu(&(device_config){0});
    bool (*is_deterministic)(void) = plugin_symbol("sim_acl_is_deterministic");
    assert_true(is_deterministic());
    device_close(d);
}

typedef struct asked {
    int (*get_device)(int32_t *);
    int *code;
} asked;

static fsdp_status run_ask(void *args, int n_threads)
{
    const asked *a = args;
    int32_t index;
    *a->code = a->get_device(&index);
    return FSDP_OK;
}

static void *thread_ask(void *args)
{
    (void)run_ask(args, 1);
    return NULL;
}

/* A new thread has no context. The threads of host tasks have the device's context. */
TEST(test_contexts_of_threads)
{
    device *d = open_npu(&(device_config){0});
    stream *s = device_compute_stream(d);
    int code = -1;
    asked a = {(int (*)(int32_t *))plugin_symbol("aclrtGetDevice"), &code};
    pthread_t thread;
    pthread_create(&thread, NULL, thread_ask, &a);
    pthread_join(thread, NULL);
    assert_int_equal(code, CONTEXT_NULL);
    OK(launch_c(s, run_ask, &a, sizeof a));
    OK(stream_sync(s));
    assert_int_equal(code, 0);
    device_close(d);
}

TEST(test_timed_events_order)
{
    device *d = open_npu(&(device_config){0});
    stream *s = device_compute_stream(d), *side = new_stream(d, "side");
    event *begin, *end;
    double elapsed_s;
    int list[1], elems = 0;
    sem_t gate;
    OK(event_create_timed(d, &begin));
    OK(event_create_timed(d, &end));
    close_gate(s, &gate);
    OK(event_record(begin, s));
    OK(stream_wait_event(side, begin));
    OK(launch_c(side, run_append, &(append_args){list, &elems, 1}, sizeof(append_args)));
    usleep(20000);
    assert_int_equal(elems, 0);
    open_gate(&gate);
    OK(event_record(end, side));
    OK(event_sync(end));
    assert_int_equal(elems, 1);
    OK(event_elapsed_s(begin, end, &elapsed_s));
    assert_true(elapsed_s >= 0);
    event_free(begin);
    event_free(end);
    device_close(d);
}

/* ---- the pool -------------------------------------------------------------------------------- */

/* The stream that freed a block may get it again at once. Another stream gets it only after the
 * first stream is done. */
TEST(test_blocks_are_reused)
{
    device *d = open_npu(&(device_config){0});
    stream *s = device_compute_stream(d), *side = new_stream(d, "side");
    enum { BYTES = 1 << 20 };
    sem_t gate;
    void *first = new_block(s, BYTES, "first");
    assert_int_equal((uintptr_t)first % 64, 0);
    close_gate(s, &gate);
    OK(device_zero(s, first, BYTES));
    device_free(s, first);
    void *others = new_block(side, BYTES, "other's");
    assert_ptr_not_equal(others, first);
    void *larger = new_block(s, BYTES + 1, "larger");
    assert_ptr_not_equal(larger, first);
    void *again = new_block(s, BYTES - 100, "again");
    assert_ptr_equal(again, first);
    device_free(s, again);
    device_free(s, larger);
    open_gate(&gate);
    OK(stream_sync(s));
    device_free(s, others); /* it was allocated on `side` */
    OK(stream_sync(s));
    OK(device_alloc(side, MEM_OTHER, BYTES, "either", &others));
    OK(device_alloc(side, MEM_OTHER, BYTES, "either", &again));
    assert_true(again == first || others == first);
    device_free(side, again);
    device_free(side, others);
    device_close(d);
}

/* Blocks of one size go back to ACL when another size needs their memory. */
TEST(test_other_sizes_take_over)
{
    need_sim("npu");
    setenv("FSDP_SIM_MEMORY_MIB", "64", 1);
    device *d = open_npu(&(device_config){0});
    stream *s = device_compute_stream(d);
    void *block[4];
    for (int i = 0; i < 4; i++)
        OK(device_alloc(s, MEM_OTHER, 12 << 20, "twelve", &block[i]));
    for (int i = 0; i < 4; i++)
        device_free(s, block[i]);
    OK(device_alloc(s, MEM_OTHER, 50 << 20, "fifty", &block[0]));
    assert_int_equal(device_alloc(s, MEM_ACTIVATIONS, 20 << 20, "twenty", &block[1]), FSDP_ENOMEM);
    assert_says("of 'twenty' (activations); the device holds 52428800 bytes");
    OK(device_zero(s, block[0], 50 << 20)); /* the device still works */
    device_free(s, block[0]);
    OK(stream_sync(s));
    device_close(d);
    unsetenv("FSDP_SIM_MEMORY_MIB");
}

/* ---- unsuitable machines and wrong programs -------------------------------------------------- */

TEST(test_wrong_machines)
{
    need_sim("npu");
    expect_no_open("FSDP_SIM_NPUS", "0", 0, FSDP_ESKIP, "no NPU");
    assert_non_null(strstr(fsdp_error_get()->hint, "npu-smi"));
    expect_no_open("FSDP_SIM_NPUS", "2", 2, FSDP_EINVAL, "NPU 2, expected one from 0 to 1");
    expect_no_open(NULL, NULL, -1, FSDP_EINVAL, "NPU -1, expected");
    setenv("FSDP_SIM_NPUS", "0", 1);
    assert_int_equal(target_backend()->n_devices(), 0);
    unsetenv("FSDP_SIM_NPUS");
    assert_true(target_backend()->n_devices() > 0);
}

/* A fill that fails on the NPU, in a process of its own. The stream that waits reports the error
 * first; then every call does. */
static void run_fault(void)
{
    device *d = open_npu(&(device_config){0});
    stream *s = device_compute_stream(d), *side = new_stream(d, "side");
    char *block, back[100];
    block = new_block(s, sizeof back, "block");
    OK(device_zero(s, block, sizeof back));
    OK(stream_sync(s));
    printf("issue: %s\n", fsdp_status_name(device_zero(s, block, sizeof back)));
    (void)device_download(s, back, block, sizeof back);
    printf("sync: %s\n", fsdp_status_name(stream_sync(s)));
    printf("words: %s\n", fsdp_error_get()->what);
    printf("fill: %s\n", fsdp_status_name(device_zero(s, block, 1)));
    printf("other stream: %s\n", fsdp_status_name(stream_sync(side)));
    device_free(s, block);
    device_close(d);
    printf("closed\n");
}

static void run_host_read(void)
{
    device *d = open_npu(&(device_config){0});
    float *block;
    OK(device_alloc_f32(device_compute_stream(d), MEM_OTHER, 1, "block", &block));
    printf("read %g\n", (double)*(volatile float *)block);
}

/* A program that initialises and finalises ACL itself. */
static void run_initialised(void)
{
    int (*init)(const char *) = plugin_symbol("aclInit"),
                           (*end)(void) = plugin_symbol("aclFinalize");
    printf("init: %d\n", init(NULL));
    device_close(open_npu(&(device_config){0}));
    printf("end: %d\n", end());
}

static int run_wrong(const char *name)
{
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    setvbuf(stdout, NULL, _IONBF, 0);
    if (strcmp(name, "fault") == 0)
        run_fault();
    else if (strcmp(name, "initialised") == 0)
        run_initialised();
    else
        run_host_read();
    return 0;
}

TEST(test_fault)
{
    need_sim("npu");
    const char *text = output_of("fault", "FSDP_SIM_FAULT=aclrtMemsetAsync:2");
    expect_output(text, "issue: FSDP_OK\nsync: FSDP_EDEVICE\nwords: NPU 0 failed: ACL's error 5");
    expect_output(text, "; issued last on stream 'compute': ");
    expect_output(text, "fill: FSDP_EDEVICE\nother stream: FSDP_EDEVICE\nclosed\n");
}

TEST(test_host_read)
{
    need_sim("npu");
    device *d;
    if (device_open(&(device_config){.backend = SEPARATE.backend, .n_threads = 1}, &d) != FSDP_OK) {
        printf("SKIP %s\n", fsdp_error_get()->what);
        return;
    }
    device_close(d);
    expect_output(output_of("host-read", "A=B"),
                  "host access to device memory: 'memory of the NPU'");
}

int main(int argc, char **argv)
{
    alarm(100); /* a deadlock is a failure, not a hang */
    if (argc > 1)
        return run_wrong(argv[1]);
    return tests_run(NULL, NULL);
}
