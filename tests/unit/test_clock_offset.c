/* test_clock_offset.c -- how clocks of ranks are compared. Run it by mpiexec -n W, or alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "common/base/wait_policy.h"
#include "common/observe/clock_offset.h"

static int n_failed;

static void check(bool holds, const char *what)
{
    if (!holds) {
        printf("FAIL %s\n", what);
        n_failed++;
    }
}

static void fail_if(fsdp_status status)
{
    if (status == FSDP_OK)
        return;
    fsdp_error_print(stderr, 0, 0);
    exit(EXIT_FAILURE);
}

/* Ranks of one host share one clock: the measured offset must be 0 within its bound. */
static void test_measure(comm *c)
{
    double offset_s = 1, bound_s = 1;
    fail_if(clock_offset_measure(c, &offset_s, &bound_s));
    check(comm_rank(c) > 0 || (offset_s == 0 && bound_s == 0), "rank 0 differs from itself");
    check(bound_s >= 0 && fabs(offset_s) <= bound_s + 1e-9, "the true offset, 0, is in the range");
    check(bound_s < 1, "the range is narrow");
}

/* Rank 0 prints PASS if no check has failed on any rank. A rank with a failure has said why. */
static void agree(comm *c, const char *name)
{
    fsdp_status mine = n_failed == 0 ? FSDP_OK : fsdp_error(FSDP_EINVAL, "", "%s failed", name);
    if (comm_agree(c, mine) == FSDP_OK && comm_rank(c) == 0)
        printf("PASS clock_offset.%s\n", name);
}

int main(int argc, char **argv)
{
    wait_policy_passive(argv);
    device *d;
    comm *c;
    fail_if(device_open(&(device_config){.backend = &device_cpu, .n_threads = 1}, &d));
    fail_if(comm_open(d, &(comm_config){.backend = COMM_AUTO}, &c));
    test_measure(c);
    agree(c, "measured");
    int rank = comm_rank(c), world_size = comm_size(c);
    comm_close(c);
    device_close(d);
    if (n_failed == 0)
        printf("DONE %d/%d\n", rank, world_size);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
