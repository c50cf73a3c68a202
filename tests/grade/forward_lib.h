/* forward_lib.h -- task 2.5: a forward pass of a whole model. */
#pragma once
#include "tests/grade/grade_lib.h"

fsdp_status task_2_5(grade *g);
