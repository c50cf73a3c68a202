/* ops_check_lib.c -- see ops_check_lib.h. */
#include "tests/unit/ops_check_lib.h"
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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

/* oneDNN reads it once, when it is first called. */
#define ISA_VARIABLE "ONEDNN_MAX_CPU_ISA"

void ops_test_with_avx2(const char *argument)
{
    if (getenv(ISA_VARIABLE) != NULL)
        skip();
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const int null = open("/dev/null", O_WRONLY);
        if (null < 0 || dup2(null, STDOUT_FILENO) < 0 || dup2(null, STDERR_FILENO) < 0 ||
            setenv(ISA_VARIABLE, "AVX2", 1) != 0)
            _exit(126);
        execl("/proc/self/exe", program_invocation_short_name, argument, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (status != 0)
        fail_msg("with AVX2: status %d; run this program with " ISA_VARIABLE "=AVX2 to see why",
                 status);
}

const ops *ops_table(int i)
{
    return i == 0 ? ops_cpu_fast() : ops_cpu_portable();
}

bool ops_refused(fsdp_status status)
{
    return status == FSDP_EINVAL && strstr(fsdp_error_get()->what, " has no operation ") != NULL;
}

/* Exactly as long as asked for, so that a sanitizer sees reads after the end. */
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

/* Both tables sum k terms of about normal distribution, in different orders. A partial sum of j
 * terms is about sqrt(j), and each addition rounds by half an eps of it. So the standard deviation
 * is eps/2 sqrt(1 + 2 + ... + k) < eps k / 2; the bound is 16 of these. k is at most 300; in "deep"
 * cases 2053. Two such results that are stored in bf16 may round to neighbours, which are at most
 * 2^-7 of their size apart. Attention's backward reads such an out. The terms of d_out . out are
 * below 8, so d_out . out is off by 2^-7 of 8, and a gradient by a quarter of that times a
 * probability and an element: 2^-6. */
void expect_case_near(size_t i, const ops_result *got, const ops_result *want, double rounding)
{
    const char *name = ops_case_name(i);
    const bool rounded = want->type == DTYPE_BF16;
    const double through_out = rounded && strncmp(name, "attention", 9) == 0 ? 1.0 / 64 : 0.0;
    const double sums = 8.0 * FLT_EPSILON * (strstr(name, "deep") ? 2053 : 300);
    for (size_t e = 0; e < want->elems && !strstr(name, "large"); e++) {
        const double value = (double)want->data[e];
        const double bound = sums + through_out + (rounded ? 1.0 / 128 : rounding) * fabs(value);
        if (!(fabs((double)got->data[e] - value) <= bound))
            fail_msg("%s: element %zu is %.9g, expected %.9g", name, e, (double)got->data[e],
                     value);
    }
}

fsdp_status ops_bad_call(int which, const ops *o, stream *s, float *x, float *y,
                         const int32_t *numbers)
{
    if (which == 0)
        return o->embedding(s,
                            &(embedding_args){x, y, NULL, numbers, 1, 3, 2, 3, DTYPE_F32, {0, 0}});
    if (which == 1)
        return o->embedding_backward(
            s, &(embedding_backward_args){
                   x, NULL, y, numbers, 1, 3, 2, 3, 0, NULL, DTYPE_F32, {0, 0}});
    return o->cross_entropy(
        s,
        &(cross_entropy_args){.loss = x, .logits = y, .targets = numbers, .rows = 3, .vocab = 3});
}
