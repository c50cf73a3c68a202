/* ops_check_lib.c -- see ops_check_lib.h. */
#include "tests/unit/ops_check_lib.h"
#include <stdlib.h>
#include <string.h>

device *ops_test_device(int n_threads, bool async_compute)
{
    device *d = NULL;
    OK(device_open(&(device_config){.backend = &device_cpu,
                                    .n_threads = n_threads,
                                    .async_compute = async_compute},
                   &d));
    return d;
}

stream *ops_test_open(void **state)
{
    *state = ops_test_device(2, false);
    return device_compute_stream(*state);
}

int ops_test_close(void **state)
{
    device_close(*state);
    return 0;
}

const ops *ops_table(int i)
{
    return i == 0 ? ops_cpu_fast() : ops_cpu_portable();
}

bool ops_refused(fsdp_status status)
{
    return status == FSDP_EINVAL && strstr(fsdp_error_get()->what, " has no operation ") != NULL;
}

/* Exactly as long as asked for: a sanitizer sees what is read behind the end. */
static float *floats(size_t elems)
{
    return malloc(elems > 0 ? elems * sizeof(float) : 1);
}

float *normals(uint64_t name, float std, size_t elems)
{
    float *x = floats(elems);
    ops_test_fill(name, std, x, elems);
    return x;
}

float *filled(float value, size_t elems)
{
    float *x = floats(elems);
    for (size_t i = 0; i < elems; i++)
        x[i] = value;
    return x;
}

void expect_same_bits(const float *got, const float *expected, size_t elems, const char *what,
                      const char *where)
{
    for (size_t i = 0; i < elems; i++) {
        if (memcmp(got + i, expected + i, sizeof *got) != 0)
            fail_msg("%s, %s: element %zu is %a, expected %a", what, where, i, (double)got[i],
                     (double)expected[i]);
    }
}
