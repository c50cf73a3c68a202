/* adamw_lib.h -- tasks 4.1 and 4.2: what one rank does with its shard. */
#pragma once
#include "lab4_optimizer/optimizer_setup.h"
#include "tests/grade/exact_lib.h"
#include "tests/grade/grade_lib.h"

fsdp_status task_4_1(grade *g); /* AdamW on a shard and its state */
fsdp_status task_4_2(grade *g); /* weight decay by parameter */
