/* adamw_band_lib.h -- how far other orders of AdamW's formula move losses and norms. */
#pragma once
#include "tests/equivalence/suite_lib.h"

/* adamw_band -- print the figures; the run is that of tests/reference/tiny.csv. */
fsdp_status adamw_band(suite *s);
