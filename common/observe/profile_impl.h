/* profile_impl.h -- what profile.c lends to profile_write.c. */
#pragma once
#include "common/observe/profile.h"

profile_roof profile_get_roof(profile *p);
void work_cost_add(work_cost *sum, work_cost c);
