/* adamw_band_lib.h -- how far other orders of AdamW's formula move losses and norms. */
#pragma once
#include "tests/equivalence/suite_lib.h"

/* The largest relative difference of a loss or a norm in 20 steps: 1.08e-7 and 1.12e-7 were
 * measured, one unit in the last place. tests/grade/tiny_lib.c allows eight times as much. */
#define ADAMW_BAND 1.2e-7

/* adamw_band -- three other orders of AdamW stay within ADAMW_BAND in the run of
 * tests/reference/tiny.csv. The device runs C. */
fsdp_status adamw_band(suite *s);
