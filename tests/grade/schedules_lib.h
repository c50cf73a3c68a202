/* schedules_lib.h -- task 5.6. */
#pragma once
#include "tests/grade/grade_lib.h"

fsdp_status task_5_6(grade *g);
