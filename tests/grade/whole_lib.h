/* whole_lib.h -- the tasks that do not stand in labN.c, most of which put a lab's parts together.
 */
#pragma once
#include "tests/grade/grade_lib.h"

fsdp_status task_2_5(grade *g); /* forward_lib.c: a forward pass of a whole model */
fsdp_status task_3_3(grade *g); /* step_lib.c: a finished sum becomes a gradient */
fsdp_status task_3_4(grade *g); /* ... the micro-steps of a step */
fsdp_status task_3_5(grade *g); /* ... the sharding strategies */
fsdp_status task_3_6(grade *g); /* ... the end of a backward pass */
fsdp_status task_3_7(grade *g); /* whole_lib.c: a step of SGD on a whole model */
fsdp_status task_4_5(grade *g); /* ckpt_lib.c: checkpoints from any number of ranks to any other */
fsdp_status task_4_6(grade *g); /* tiny_lib.c: 20 steps of tiny */
