/* whole_lib.h -- the tasks that put a lab's parts together; see whole_lib.c, ckpt_lib.c,
 * tiny_lib.c. */
#pragma once
#include "tests/grade/grade_lib.h"

fsdp_status task_3_7(grade *g); /* a step of SGD on a whole model */
fsdp_status task_4_5(grade *g); /* checkpoints from any number of ranks to any other */
fsdp_status task_4_6(grade *g); /* 20 steps of tiny */
