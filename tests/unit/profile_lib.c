/* profile_lib.c -- see profile_lib.h. */
#include "tests/unit/profile_lib.h"
#include <time.h>

profile *warm_profile(void)
{
    profile *p = profile_create();
    assert_non_null(p);
    profile_step_begin(p);
    profile_step_begin(p);
    return p;
}

void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

void expect_near(double got, double expected, double tolerance)
{
    if (!(got >= expected - tolerance && got <= expected + tolerance))
        fail_msg("got %.9g, expected %.9g +- %.3g", got, expected, tolerance);
}
