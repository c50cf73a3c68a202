/* explain_lib.h -- where a run begins to differ from the run that it should equal. */
#pragma once
#include <stdio.h>
#include "tests/grade/grade_lib.h"

/* explain -- what comm_agree makes of st. If a comparison of two runs has failed, make both again
 * with digests (run_config.digests), and add to the message what differs first.
 *   again       makes run 0, which was judged, or run 1, which it should equal
 *   collective  all ranks */
fsdp_status explain(grade *g, fsdp_status st,
                    fsdp_status (*again)(void *ctx, int which, FILE *rows), void *ctx);
