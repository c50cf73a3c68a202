/* limiter_lib.h -- task 5.4. */
#pragma once
#include "tests/grade/grade_lib.h"

fsdp_status task_5_4(grade *g);
