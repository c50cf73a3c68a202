/* complaint.h -- how a kernel says that a number in its input cannot be used.
 *
 *   kernel: number_fits(complaint_of(s), ...) ... the host has waited -> cuda_complaints: an error
 *
 * A device has one record, in memory that kernels write and the host reads. It keeps the first
 * complaint for good. The kernel leaves out what it complains of. */
#pragma once
#include "common/accel/accel_api.h"

EXTERN_C_BEGIN

typedef enum complaint_about { ABOUT_TOKEN, ABOUT_TARGET } complaint_about;

typedef struct complaint_box {
    int state; /* 0: nothing to say, 1: being written, 2: written */
    complaint_about about;
    int32_t number;
    unsigned long long position, n_numbers; /* 0 ... n_numbers-1 would have been good */
} complaint_box;

/* complaint_of -- where the kernels on s complain: at the GPU's address. */
complaint_box *complaint_of(stream *s);
/* cuda_complaints -- FSDP_EINVAL in the CPU's words if a kernel has complained, and then all
 * streams have failed. The host must have waited for the kernels that it wants to hear. */
fsdp_status cuda_complaints(accel_device *d);

EXTERN_C_END

#ifdef __cplusplus /* for kernels */
#include <cuda_runtime.h>

/* number_fits -- whether number is in 0 ... n-1; else the first to notice complains. */
static __device__ inline bool number_fits(complaint_box *c, complaint_about about, int32_t number,
                                          size_t position, size_t n)
{
    if (number >= 0 && (size_t)number < n)
        return true;
    if (atomicCAS(&c->state, 0, 1) != 0)
        return false;
    c->about = about;
    c->number = number;
    c->position = position;
    c->n_numbers = n;
    __threadfence_system();
    c->state = 2;
    return false;
}
#endif
