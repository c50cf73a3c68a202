/* issue.h -- how an operation puts CUDA's work on a stream. For C and for kernels' files. */
#pragma once
#include <cuda_runtime_api.h>
#include "common/accel/accel.h"

EXTERN_C_BEGIN

/* What an operation issues on the stream when it is called. args are the caller's. */
typedef cudaError_t (*cuda_issue_fn)(stream *s, const void *args);

/* cuda_issue -- accel_issue of such a function.
 *   errors  work.status; the stream's; what cuda_status makes of fn's result */
fsdp_status cuda_issue(stream *s, cuda_issue_fn fn, const void *args, op_work work);
/* cuda_issue_as -- the same for what a watch is told with the names and accesses of *what. */
fsdp_status cuda_issue_as(stream *s, cuda_issue_fn fn, const void *args, const launch_config *what);

EXTERN_C_END
