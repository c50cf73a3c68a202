/* planted.h -- kernels with planted mistakes, for tests of the stand-in. They are part of the
 * stand-in; the plug-in for GPUs has none of them. */
#pragma once
#include "common/device/device.h"

EXTERN_C_BEGIN

enum { PLANTED_THREADS = 64, PLANTED_BLOCKS = 2 };

typedef enum planted_kernel {
    BLOCK_NEIGHBOUR, /* out[i] = the number of the thread before, through shared memory */
    WARP_NEIGHBOUR,  /* out[i] = the number of the other lane of a pair, through shared memory */
    BARRIER_IN_BRANCH,
    BARRIERS_APART,
    LANE_MISSING,
    MASK_WITHOUT_CALLER,
    EXCHANGES_APART,
    COUNT_WITHOUT_FENCE, /* between what the block wrote and its count */
    READ_WITHOUT_FENCE,  /* between its count and what it reads of other blocks */
    COUNTED_EARLY        /* the block that is counted last copies the other one's numbers, all 1;
                            a block is counted before all its threads have written */
} planted_kernel;

typedef struct planted_args {
    planted_kernel kernel;
    bool correct; /* run without the mistake */
    float *out;   /* device memory [PLANTED_BLOCKS * PLANTED_THREADS] */
} planted_args;

/* planted_launch -- launch the kernel on a stream of a CUDA device. */
fsdp_status planted_launch(stream *s, const planted_args *a);

/* sim_pool_gets -- how many blocks the pool was asked for so far. */
unsigned sim_pool_gets(void);

EXTERN_C_END
