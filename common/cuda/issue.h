/* issue.h -- how an operation issues CUDA work on a stream. For .c and .cu files. */
#pragma once
#include <cuda_runtime_api.h>
#include "common/accel/accel.h"

EXTERN_C_BEGIN

/* A function that issues an operation's work on s now. args: the operation's arguments. */
typedef cudaError_t (*cuda_issue_fn)(stream *s, const void *args);

/* cuda_issue -- accel_issue, with a function that returns CUDA's error.
 *   errors  work.status; the stream's; cuda_status of fn's result */
fsdp_status cuda_issue(stream *s, cuda_issue_fn fn, const void *args, op_work work);
/* cuda_issue_as -- the same, but the watch gets the names and accesses of *what. */
fsdp_status cuda_issue_as(stream *s, cuda_issue_fn fn, const void *args, const launch_config *what);

/* cuda_counts_of -- *out: CUDA_COUNTS numbers in the GPU's memory, with which kernels on s count
 * their blocks. They are 0 when a kernel begins, because each kernel leaves them so. The first call
 * for a stream allocates and zeroes them.
 *   errors  FSDP_ENOMEM; the stream's */
enum { CUDA_COUNTS = 256 };
fsdp_status cuda_counts_of(stream *s, unsigned **out);

EXTERN_C_END
