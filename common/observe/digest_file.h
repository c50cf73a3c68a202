/* digest_file.h -- the file of --digests: what it holds, and the first place where two differ.
 *
 * A file is text: DIGEST_TITLE, lines "# name: value" about the run, DIGEST_COLUMNS, the rows, and
 * a last line "# end: N rows". A row holds a sum (mod 2^64) of hashes of elements in 16 hex digits,
 * which is the same for every number of ranks and every way of sharding. The rows of a step stand
 * in the order in which the step computes:
 *
 *   each micro-step   forward copy of a layer's parameters, output of the layer   layers in order
 *                     backward copy of a layer's parameters                   layers in reverse
 *   the last one      reduced gradient of the layers' parameters              layers in reverse
 *
 * Outputs are added over the micro-steps of a step, so that the last micro-step has the sums of the
 * whole step, which do not depend on how the step is cut into micro-steps. Of two runs that read
 * other tokens, the output of the embedding differs first.
 *
 * A copy is what the model reads after pre_forward or pre_backward; the output of the last layer is
 * the loss; a reduced gradient is the mean one, before clipping. If ranks hold different copies
 * of a parameter, the row has the copy of the last rank that differs from rank 0, and the column
 * value says so. With --digest-values a row for each element comes before the row of its array,
 * whose sum is made of theirs: the columns element and value say which it is, and what. */
#pragma once
#include <stdbool.h>
#include <stdio.h>
#include "common/base/status.h"

#define DIGEST_TITLE   "# digests of fsdp_train, form 3"
#define DIGEST_COLUMNS "step,micro,unit,kind,name,hash,element,value"

/* digest_bisect -- compare the steps that both files have, in the order of computing. If the runs'
 * micro-steps hold other sequences, compare only the last one of each step.
 *   in, names  files, read from where they stand; what messages call them
 *   differ     undefined after an error
 *   out        gets a line for each fact in which the runs differ, and the line "first difference:
 *              ..." or "identical digests: ..."
 *   errors     FSDP_EINVAL: a file is not of --digests, damaged or cut; the runs have other models
 *              or sequences, or no step in common; one has --reduction fast, so that bits may
 *              differ */
fsdp_status digest_bisect(FILE *const in[2], const char *const names[2], FILE *out, bool *differ);
