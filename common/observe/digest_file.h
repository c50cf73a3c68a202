/* digest_file.h -- the format of the file that --digests writes, and a search for the first place
 * where two such files differ.
 *
 * A file is text: DIGEST_TITLE, lines "# name: value" about the run, DIGEST_COLUMNS, the rows, and
 * a last line "# end: N rows". A row holds the sum (mod 2^64) of the hashes of an array's elements
 * in 16 hex digits. The sum is the same for every number of ranks and every way of sharding. The
 * rows of a step are in the order in which the step computes:
 *
 *   each micro-step   forward copy of a layer's parameters, output of the layer   layers in order
 *                     backward copy of a layer's parameters                   layers in reverse
 *   last micro-step   reduced gradient of the layers' parameters              layers in reverse
 *
 * Sums of outputs accumulate over the micro-steps of a step. So the last micro-step has the sums of
 * the whole step, which do not depend on how the step is divided into micro-steps. If two runs read
 * different tokens, the output of the embedding differs first.
 *
 * A copy is what the model reads after pre_forward or pre_backward. The output of the last layer is
 * the loss. A reduced gradient is the mean gradient before clipping. If ranks hold different copies
 * of a parameter, the row has the sum of the last rank whose copy differs from rank 0's, and column
 * `value` names that rank. With --digest-values, the rows of an array's elements come before the
 * row of the array, which has the sum of their hashes. Columns `element` and `value` give the place
 * and the value of an element. */
#pragma once
#include <stdbool.h>
#include <stdio.h>
#include "common/base/status.h"

#define DIGEST_TITLE   "# digests of fsdp_train, form 3"
#define DIGEST_COLUMNS "step,micro,unit,kind,name,hash,element,value"

/* digest_bisect -- compare the steps that both files have, in the order of computation. If the
 * runs' micro-steps hold different sequences, compare only the last micro-step of each step.
 *   in, names  files, read from their current positions; their names in messages
 *   differ     undefined after an error
 *   out        gets a line for each fact in which the runs differ, and the line "first difference:
 *              ..." or "identical digests: ..."
 *   errors     FSDP_EINVAL: a file was not written by --digests, or is damaged or cut; the runs
 *              have different models or sequences, or no step in common; one has --reduction fast,
 *              so bits may differ */
fsdp_status digest_bisect(FILE *const in[2], const char *const names[2], FILE *out, bool *differ);
