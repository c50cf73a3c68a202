/* test_clock_offset.c -- how clocks of ranks are compared.
 *
 *   build/fsdp_run -n W build/tests/unit/test_clock_offset          (W = 1: alone) */
#include <math.h>
#include "common/observe/clock_offset.h"
#include "tests/unit/comm_cases_lib.h"

/* Ranks of one host share one clock: the measured offset must be 0 within its bound. */
static void test_measured(comm_fixture *f)
{
    double offset_s = 1, bound_s = 1;
    CHECK_OK(f, clock_offset_measure(f->c, &offset_s, &bound_s));
    CHECK(f, f->rank > 0 || (offset_s == 0 && bound_s == 0), "rank 0 differs from itself");
    CHECK(f, fabs(offset_s) <= bound_s + 1e-9, "offset %g s, bound %g s", offset_s, bound_s);
    CHECK(f, bound_s >= 0 && bound_s < 1, "a range of %g s", bound_s);
}

int main(void)
{
    comm_fixture f;
    if (comm_test_open(&f, &device_cpu, false) != FSDP_OK)
        return 1;
    comm_test_run(&f, "clock_offset.measured", test_measured);
    return comm_test_close(&f);
}
