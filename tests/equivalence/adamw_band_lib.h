/* adamw_band_lib.h -- how far other orders of AdamW's operations move losses and norms. */
#pragma once
#include "tests/equivalence/suite_lib.h"

/* Bound on the relative difference of a loss or a norm in 20 steps. The largest measured
 * differences are 1.08e-7 and 1.12e-7, one unit in the last place. tests/grade/tiny_lib.c allows
 * eight times the band. */
#define ADAMW_BAND 1.2e-7

/* adamw_band -- in the run of tests/reference/tiny.csv, three other orders of AdamW's operations
 * must stay within ADAMW_BAND. The device must run C. */
fsdp_status adamw_band(suite *s);
