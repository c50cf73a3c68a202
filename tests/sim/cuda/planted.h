/* planted.h -- kernels with mistakes: for tests of the stand-in, of which they are part. The
 * plug-in for GPUs has none of them. */
#pragma once
#include "common/device/device.h"

EXTERN_C_BEGIN

enum { PLANTED_THREADS = 64, PLANTED_BLOCKS = 2 };

typedef enum planted_kernel {
    BLOCK_NEIGHBOUR, /* out[i] = the thread before's number, through shared memory */
    WARP_NEIGHBOUR,  /* out[i] = that of the other lane of a pair, likewise */
    BARRIER_IN_BRANCH,
    BARRIERS_APART,
    LANE_MISSING,
    MASK_WITHOUT_CALLER,
    EXCHANGES_APART
} planted_kernel;

typedef struct planted_args {
    planted_kernel kernel;
    bool correct; /* the mistake is not there */
    float *out;   /* device memory [PLANTED_BLOCKS * PLANTED_THREADS] */
} planted_args;

/* planted_launch -- on a stream of a CUDA device. */
fsdp_status planted_launch(stream *s, const planted_args *a);

EXTERN_C_END
