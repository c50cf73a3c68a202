/* profile_impl.h -- what profile.c lends to profile_write.c. */
#pragma once
#include "common/observe/profile.h"

/* profile_get_roof -- what profile_set_roof set; zeros without it. */
profile_roof profile_get_roof(profile *p);
/* work_cost_add -- *sum += c. */
void work_cost_add(work_cost *sum, work_cost c);
