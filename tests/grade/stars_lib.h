/* stars_lib.h -- lab 3's tasks without points: no_sync and recomputation. */
#pragma once
#include "tests/grade/grade_lib.h"

fsdp_status task_3_9(grade *g);  /* gradients that wait for the last micro-step */
fsdp_status task_3_10(grade *g); /* segments that run again before their backward */
