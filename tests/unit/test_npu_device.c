/* test_npu_device.c -- the parts of a device that are specific to ACL: its start and end, the
 * pool of device memory, and messages about unsuitable machines and wrong programs.
 * test_accel_device.c tests what all accelerators share.
 *
 *     FSDP_DEVICE=npu-sim build/tests/unit/test_npu_device
 *
 * On other devices every test is skipped. On a real NPU the tests that need an unsuitable machine
 * are skipped too. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/unit/accel_lib.h"

enum { REPEAT_INITIALIZE = 100002, CONTEXT_NULL = 107002 };

static device *open_npu(const device_config *more)
{
    need_accel("npu");
    return open_accel(more);
}

/* Grade 6.1 tests the other codes, and the numbers of types and copies. */
TEST(test_hint_of_a_thread_without_context)
{
    need_accel("npu");
    fsdp_status (*status)(int, const char *) = plugin_symbol("npu_status");
    assert_int_equal(status(CONTEXT_NULL, "sync"), FSDP_EDEVICE);
    assert_non_null(strstr(fsdp_error_get()->hint, "aclrtSetCurrentContext"));
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

/* ---- the pool -------------------------------------------------------------------------------- */

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

/* A program that initialises and finalises ACL itself. */
static int run_initialised(void)
{
    int (*init)(const char *) = plugin_symbol("aclInit"),
                           (*end)(void) = plugin_symbol("aclFinalize");
    setvbuf(stdout, NULL, _IONBF, 0);
    printf("init: %d\n", init(NULL));
    device_close(open_npu(&(device_config){0}));
    printf("end: %d\n", end());
    return 0;
}

int main(int argc, char **argv)
{
    alarm(600); /* a deadlock is a failure, not a hang */
    if (argc > 1)
        return run_initialised();
    return tests_run(NULL, NULL);
}
