/* judge_plain_lib.h -- tasks whose functions the judge calls with plain numbers and arrays. */
#pragma once
#include "common/base/status.h"

fsdp_status judge_1_1(void);
fsdp_status judge_1_2(void);
fsdp_status judge_1_3(void);
fsdp_status judge_1_4(void);
fsdp_status judge_1_5(void);
fsdp_status judge_4_1(void);
fsdp_status judge_4_2(void);
fsdp_status judge_4_5(void);
