/* hang_report.h -- the last calls that the ranks of a job with FSDP_HANG_DIR left, compared. */
#pragma once
#include <stdio.h>
#include "common/base/status.h"

/* hang_report -- for each group in which ranks wait: the call, who is in it and who is not; calls
 * that differ; whose file is missing; and the ranks that all others wait for.
 *   dir     holds rank-00000.txt ..., one of each rank that could write
 *   errors  FSDP_EIO it cannot be read, or holds no file; FSDP_EINVAL a damaged file, or no rank
 *           waits; FSDP_ENOMEM */
fsdp_status hang_report(const char *dir, FILE *out);
