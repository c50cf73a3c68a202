/* tiny_lib.h -- task 4.6: 20 steps of tiny. */
#pragma once
#include "tests/grade/grade_lib.h"

fsdp_status task_4_6(grade *g);
