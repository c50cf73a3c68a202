/* step_lib.h -- tasks 3.3 to 3.6 and 3.8: turn a finished sum into the gradient of a step. */
#pragma once
#include "tests/grade/grade_lib.h"

fsdp_status task_3_3(grade *g);  /* a finished sum becomes a gradient */
fsdp_status task_3_4(grade *g);  /* the micro-steps of a step */
fsdp_status task_3_5a(grade *g); /* the sharding strategies */
fsdp_status task_3_5b(grade *g); /* the gradients of replicas */
fsdp_status task_3_6(grade *g);  /* the end of a backward pass */
fsdp_status task_3_8(grade *g);  /* shard groups that replicate each other */
