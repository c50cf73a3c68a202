/* profile_lib.c -- see profile_lib.h. */
#include "tests/unit/profile_lib.h"
#include <time.h>

profile *warm_profile(profile_roof roof)
{
    profile *p = profile_create(roof);
    assert_non_null(p);
    profile_step_begin(p);
    profile_step_begin(p);
    return p;
}

profile_totals totals_of(profile *p)
{
    profile_totals t;
    profile_row rows[PROFILE_MAX_ROWS];
    profile_read(p, &t, rows);
    return t;
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
