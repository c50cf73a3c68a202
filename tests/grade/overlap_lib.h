/* overlap_lib.h -- task 5.5. */
#pragma once
#include "tests/grade/grade_lib.h"

fsdp_status task_5_5(grade *g);
