/* judge_models_lib.h -- tasks that run whole models, compared with one device. */
#pragma once
#include "common/base/status.h"

fsdp_status judge_2_5(void);
fsdp_status judge_3_7(void);
fsdp_status judge_4_6(void);
fsdp_status judge_5_6(void);
