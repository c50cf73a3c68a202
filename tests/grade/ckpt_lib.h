/* ckpt_lib.h -- task 4.5: checkpoints from any number of ranks to any other. */
#pragma once
#include "tests/grade/grade_lib.h"

fsdp_status task_4_5(grade *g);
