/* judge_units_lib.h -- tasks about drawn units: gathers, reductions, norm, a step. */
#pragma once
#include "common/base/status.h"

fsdp_status judge_2_1(void);
fsdp_status judge_3_2a(void);
fsdp_status judge_3_3(void);
fsdp_status judge_4_3(void);
fsdp_status judge_4_4(void);
