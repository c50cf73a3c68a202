/* planted.h -- kernels with mistakes, and one that multiplies: for tests of the stand-in, of which
 * they are part. The plug-in for GPUs has none of them. */
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
    EXCHANGES_APART,
    PRODUCT /* out [16,64] = a [16,depth] b */
} planted_kernel;

typedef struct planted_args {
    planted_kernel kernel;
    bool correct; /* the mistake is not there */
    float *out;   /* device memory; but of PRODUCT, [PLANTED_BLOCKS * PLANTED_THREADS] */
    const void *a, *b;
    int depth;
    bool b_by_columns;  /* b is stored [64,depth], else [depth,64] */
    bool bf16, old_gpu; /* old_gpu: without the matrix instruction */
} planted_args;

/* planted_launch -- on a stream of a CUDA device. */
fsdp_status planted_launch(stream *s, const planted_args *a);
typedef fsdp_status (*planted_launch_fn)(stream *s, const planted_args *a);

EXTERN_C_END
