/* npu_work_lib.h -- tasks 6.4 to 6.6: what an NPU does for the labs. */
#pragma once
#include "tests/grade/grade_lib.h"

fsdp_status task_6_4(grade *g); /* collectives */
fsdp_status task_6_5(grade *g); /* products */
fsdp_status task_6_6(grade *g); /* a training step */
