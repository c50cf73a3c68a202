/* complaint.h -- how a kernel reports that a token or target in its input is out of range.
 *
 *   kernel: number_fits(complaint_of(s), ...) ... the host has waited -> cuda_complaints: an error
 *
 * A device has one record, in memory that kernels write and the host reads. It keeps the first
 * complaint forever. The kernel skips the position or row that it reports. */
#pragma once
#include "common/accel/accel_api.h"

EXTERN_C_BEGIN

typedef enum complaint_about { ABOUT_TOKEN, ABOUT_TARGET } complaint_about;

typedef struct complaint_box {
    int state; /* 0: empty, 1: being written, 2: written */
    complaint_about about;
    int32_t number;
    unsigned long long position, n_numbers; /* valid numbers are 0 ... n_numbers-1 */
} complaint_box;

/* complaint_of -- the record for kernels on s: its address on the GPU. */
complaint_box *complaint_of(stream *s);
/* cuda_complaints -- FSDP_EINVAL, with the message of the CPU's operation, if a kernel has
 * complained; then all streams fail. It only finds complaints of kernels that the host has waited
 * for. */
fsdp_status cuda_complaints(accel_device *d);

EXTERN_C_END

#ifdef __cplusplus /* for kernels */
#include <cuda_runtime.h>

/* number_fits -- whether number is in 0 ... n-1. If it is not and the record is empty, write the
 * record. */
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
