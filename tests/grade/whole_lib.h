/* whole_lib.h -- task 3.7: a step of SGD on a whole model. */
#pragma once
#include "lab3_backward/reducer.h"
#include "tests/grade/grade_lib.h"

fsdp_status task_3_7(grade *g);
/* whole_hybrid -- the same under HSDP, in shard groups of fsdp_size. */
fsdp_status whole_hybrid(grade *g, int fsdp_size);
