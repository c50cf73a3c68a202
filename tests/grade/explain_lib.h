/* explain_lib.h -- find where a run first differs from a run that it should equal. */
#pragma once
#include <stdio.h>
#include "tests/equivalence/run_lib.h"
#include "tests/grade/grade_lib.h"

/* expect_same_run -- the losses and norms of n_steps and of the evaluations before them have the
 * same bits, and so do the weights if both runs have them. */
fsdp_status expect_same_run(const char *what, const run_result *got, const run_result *want,
                            size_t n_steps);
/* explain -- agree on st (comm_agree). If a comparison of two runs failed, run both again with
 * digests (run_config.digests), and add the first difference to the message.
 *   again       runs run 0, the one that was judged, or run 1, which run 0 should equal
 *   collective  all ranks */
fsdp_status explain(grade *g, fsdp_status st,
                    fsdp_status (*again)(void *ctx, int which, FILE *rows), void *ctx);
