/* profile_roof.h -- measures the peak rates of this machine, with which a profile is compared. */
#pragma once
#include "common/observe/profile.h"
#include "common/ops/ops.h"

/* ops_profile_roof -- the fastest call of each kind in about 0.1 s for each, on all threads of s:
 *   flops_per_s        matmul, 768 x 768 x 768
 *   bf16_flops_per_s   the same in bf16, of operands stored in bf16; 0 unless with_bf16
 *   bytes_per_s        add of arrays of 32 MiB, 12 bytes an element (make bench: triad, 96 MiB)
 *   upload, download   copies of 1 KiB and of 32 MiB, if device memory is not host memory
 * Takes 96 MiB during the call, and for copies 32 MiB of host memory. If all ranks of a host call
 * it at once, each measures its own share.
 *   errors  FSDP_ENOMEM */
fsdp_status ops_profile_roof(const ops *o, stream *s, bool with_bf16, profile_roof *out);

enum { PROFILE_SMALL_COPY = 1 << 10, PROFILE_LARGE_COPY = 32 << 20 }; /* bytes */
/* profile_copy_link -- seconds = latency + bytes / rate, fitted to a small and a large copy. On a
 * busy machine even the fastest small copy may have been held up, so at most half of the large one
 * is latency. */
virtual_link profile_copy_link(double small_s, double large_s);
