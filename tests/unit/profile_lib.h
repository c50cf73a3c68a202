/* profile_lib.h -- what the tests of profiles share. */
#pragma once
#include "common/observe/profile.h"
#include "tests/unit/unit_lib.h"

/* warm_profile -- a profile after its first step, so that it counts. The caller frees it. */
profile *warm_profile(profile_roof roof);
/* totals_of -- the totals that profile_read returns. */
profile_totals totals_of(profile *p);
void sleep_ms(long ms);
/* expect_near -- got is within `tolerance` of `expected`. */
void expect_near(double got, double expected, double tolerance);
